/* lora.h - adapters: which products of a layer have them, where A and B lie among the parameters, and
 * what they add to a product, forward and backward.
 *
 * A model with adapters has two flat arrays.  The parameters (gpt_parameter_at) are A and B of each
 * adapter: they train, and masters, gradients, moments, ZeRO, the norm of the gradient and
 * checkpoints are of them alone.  The frozen weights (GPT_FROZEN) have the layout of a model without
 * adapters; weights.h reads them from their files.
 *
 * x A^T is computed where it is needed, again in the backward, and nothing of it is kept: it has
 * `rank` columns.  Rows of up and gate take turns in one product, so B of each is spread over every
 * second row of a matrix of zeros before it is multiplied.
 *
 * Tensor ranks split B of a product that they split by outputs, and A of one that they split by
 * inputs.  The other of the two is a copy, and each rank has a partial gradient of it, as of a norm. */
#ifndef GPT_LORA_H
#define GPT_LORA_H

#include "gpt/model/layout.h"

/* ---- products with adapters -------------------------------------------------------------------- */

/* The names of their modules; bit i of gpt_lora.targets is of name i. */
extern const char* const gpt_lora_names[GPT_N_ADAPTED];

/* 0: all. */
static inline uint32_t gpt_lora_targets(const gpt_lora* lora) {
    return lora->targets ? lora->targets : (1u << GPT_N_ADAPTED) - 1;
}

/* The bits of names such as "q,v", "q_proj,v_proj" or "all"; 0: an unknown name. */
uint32_t gpt_lora_parse(const char* names);

/* The model whose weights are frozen: the same without adapters. */
static inline gpt_config gpt_base_config(const gpt_config* config) {
    gpt_config base = *config;
    memset(&base.lora, 0, sizeof base.lora);
    return base;
}

/* A product of a layer that has an adapter, on this rank: its weight; the numbers of a row that it
 * reads and writes, of up those of gate too.  w 0: it has none. */
typedef struct gpt_lora_product {
    int w;
    int64_t n_inputs, n_outputs;
} gpt_lora_product;
gpt_lora_product gpt_lora_product_at(const gpt_config* config, int i);

memo_status gpt_lora_check(const gpt_config* config, memo_error* error);

/* ---- parameters: as layout.h has them for a model without adapters ---------------------------- */

gpt_layout gpt_lora_layout(const gpt_config* config, gpt_widths widths);
int64_t gpt_lora_n_tensors(const gpt_config* config); /* of a layer */
gpt_parameter gpt_lora_parameter_at(const gpt_config* config, int64_t index);

/* The name in a file, such as "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight". */
void gpt_lora_put_name(const gpt_parameter* p, char* text, size_t n_text);

#endif
