/* experts.h - a mixture of experts in place of a layer's MLP: the router, and products with the
 * weights of each row's experts.
 *
 * A row has the same number of experts as any other, n_chosen, so that its tensors are as wide: up and
 * the activation have the columns of its first expert, then those of its second one, and so on.  All
 * rows can be recomputed alone, and slices, chunks and budgets are those of any layer.
 *
 * The router's logits and routes are skeletal too (layout.h): a row that is computed again goes
 * through the same experts.  Of equal logits the expert with the smaller number comes first. */
#ifndef GPT_EXPERTS_H
#define GPT_EXPERTS_H

#include "gpt/model/enqueue.h"

/* Returns whether a configuration is valid, and can have experts. */
memo_status gpt_experts_check(const gpt_config* config, memo_error* error);

/* Sets logits and routes of rows of x, which the MLP reads.  Nothing without experts. */
void gpt_choose_experts(gpt_model* model, int32_t layer, gpt_array logits, gpt_array routes,
                        gpt_array x, gpt_rows rows);

/* The product up or down (w): that of a layer's one matrix, or of each row's experts. */
void gpt_mlp_product(gpt_model* model, int32_t layer, int w, gpt_array y, gpt_array x,
                     gpt_array routes, gpt_rows rows);

/* Sets dx, adds to the gradient of the weights.  down: sets d_logits, unless there are no experts;
 * it has work memory of n_experts columns.  up: adds the router's part to dx. */
void gpt_mlp_product_back(gpt_model* model, int32_t layer, int w, gpt_array dx, gpt_array dy,
                          gpt_array x, const gpt_array* tensors, gpt_array d_logits, gpt_rows rows);

#endif
