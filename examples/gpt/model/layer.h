/* layer.h - a layer: where its tensors lie, its two blocks (attention and MLP) forward and
 * backward, and the plain order of the blocks.
 *
 * Of tensor ranks it uses only the width of a tensor. */
#ifndef GPT_LAYER_H
#define GPT_LAYER_H

#include "gpt/model/enqueue.h"

/* A tensor of the session, from its row `begin` on.  A dry run has no addresses. */
gpt_array gpt_skeletal(const gpt_model* model, int32_t layer, int tensor, int64_t begin);

/* Rows of a sub-batch, of the open slice. */
gpt_rows gpt_part_rows(const gpt_model* model, int32_t part);

/* Rows of the part in this rank's group of ranks that share the block. */
gpt_rows gpt_group_rows(const gpt_model* model, gpt_rows part, int32_t degree);

/* A skeletal tensor, of the open slice. */
gpt_array gpt_tensor(const gpt_model* model, int32_t layer, int tensor);

/* --- two blocks ---
 *
 * Each function computes a range of rows.  The forward computes all rows of a part.  Before the
 * backward, it computes the rows of the part that were neither kept nor swapped.  Their inputs are
 * kept, swapped in, or recomputed just before.  The same operations on the same tiles give the same
 * bits. */

/* From the layer's input to the projection, for the rows that `middle` needs; the result is y
 * (rows, hidden).  Over tensor ranks y is a partial sum. */
void gpt_compute_attention(gpt_model* model, int32_t layer, const gpt_rows need[GPT_N_TENSORS],
                           gpt_rows rows, gpt_array y);

/* From middle to the activation. */
void gpt_compute_mlp(gpt_model* model, int32_t layer, const gpt_rows need[GPT_N_TENSORS]);

/* Rows that the MLP computes at a time: a chunk, or all. */
int64_t gpt_mlp_rows(const gpt_model* model);

/* Computes the MLP's tensors of a chunk unless they are skeletal; gpt_end_chunk frees them. */
void gpt_begin_chunk(gpt_model* model, int32_t layer, gpt_rows rows);
void gpt_end_chunk(gpt_model* model);

/* dx is the gradient of the block's output stream.  The gradient of the block's input, without the
 * stream itself, is added to `to`, which may be dx.  Over tensor ranks this is a partial sum, also
 * through the norm, which is linear in it. */
void gpt_backward_mlp(gpt_model* model, int32_t layer, gpt_array to, gpt_array dx, gpt_rows rows);

/* The MLP's backward has read `middle`: it takes masked, and then dq. */
void gpt_backward_attention(gpt_model* model, int32_t layer, gpt_array to, gpt_array dx,
                            gpt_rows rows);

/* From the projection y to the activation. */
void gpt_compute_middle(gpt_model* model, int32_t layer, gpt_array y,
                        const gpt_rows need[GPT_N_TENSORS]);

/* Both blocks, for the rows in `need`.  The projection shares the memory of `middle`. */
void gpt_compute(gpt_model* model, int32_t layer, const gpt_rows need[GPT_N_TENSORS]);
void gpt_copy_rows(gpt_model* model, gpt_array to, gpt_array from, gpt_rows rows);

/* x: the residual stream (rows, hidden), in place. */
void gpt_forward_plain(gpt_model* model, int32_t layer, gpt_array x);

/* dx: the gradient of the layer's output (rows, hidden), replaced by the gradient of its input.
 * The residual stream passes gradients on unchanged, so each block adds to it. */
void gpt_backward_plain(gpt_model* model, int32_t layer, gpt_array dx);

#endif
