/* config.h - the file config.json of a model: Llama 2 and 3, Qwen2, Qwen3 and Qwen3 MoE, as the
 * library transformers writes it.
 *
 * Fields that change what a model computes are read, or refused by name; others are ignored. */
#ifndef GPT_CONFIG_H
#define GPT_CONFIG_H

#include "gpt/model/gpt.h"

typedef enum gpt_family {
    GPT_FAMILY_LLAMA = 0,
    GPT_FAMILY_QWEN2,
    GPT_FAMILY_QWEN3,
    GPT_FAMILY_QWEN3_MOE,
    GPT_N_FAMILIES
} gpt_family;

typedef struct gpt_model_file {
    gpt_family family;
    int32_t end_token; /* eos_token_id, the first if there are several; -1: none */
} gpt_model_file;

/* Reads FOLDER/config.json.  Sets the fields of the model's shape: n_layers, hidden, n_heads,
 * n_kv_heads, head_size, vocabulary, mlp, mlp_columns, experts, norm_epsilon, rope, has_biases,
 * has_head_norms, is_tied.  The others keep their values.  Errors: IO, FORMAT, UNSUPPORTED (with
 * the field; or the program has no cJSON). */
memo_status gpt_read_config(const char* folder, gpt_config* config, gpt_model_file* file,
                            memo_error* error);

/* The text of config.json: that of FOLDER, with the type of the weights (config->type); folder
 * NULL: a new one, of a Llama.  Free it with free.  Returns NULL after an error. */
char* gpt_config_text(const char* folder, const gpt_config* config, memo_error* error);

#endif
