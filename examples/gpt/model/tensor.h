/* tensor.h - layers split by columns over tensor ranks, and a micro-batch into parts: the two
 * blocks of a layer (layer.h) as functions that memo_blocks calls in its schedule's order.
 *
 * Each rank has its heads and its columns of the MLP.  Tensors as wide as the residual stream are
 * whole on all ranks and have the same bits, because a sum over ranks has.  Norms, embedding and
 * classifier are copies: with 256 byte values, splitting saves little and costs a sum of logits.
 * The gradients of embedding, final norm and classifier are whole and equal on every rank.  The
 * gradients of a layer's norms are partial sums, because g passes through the norm before it is
 * summed.  They are summed behind the backward, with the step's gradients.  In the norm of the
 * whole gradient a copy counts once.
 *
 * The policy selects the rows to recompute, as in the plain model.  `fine` recomputes without a
 * collective, so `middle` is kept or swapped.  The other orders repeat the projection and its sum,
 * but only for recomputed rows of `middle`.  A sum of the published order is omitted if nothing
 * reads it.
 *
 * Blocks may have different degrees (config.degrees).  Each group of `degree` adjacent tensor ranks
 * then shares a block and has a slice of every part's rows.  The gradients of its weights are also
 * summed over the groups.  If a larger degree or the classifier follows, the slices of the residual
 * stream are gathered on the comm stream, right after the sum.  In the backward, slices of the
 * gradient are gathered before a block of a larger degree.  Otherwise a rank continues with the
 * rows that it needs.  In a smaller degree a block's tensors have fewer and wider rows, and the
 * same bytes.  In every layer, parameters have room for the smallest degree's share.
 *
 * With config.mlp_rows the MLP of a part runs in chunks, whose memory follows each other.  The
 * gradients of its weights are then computed with those of its inputs, before the sum over
 * ranks. */
#ifndef GPT_TENSOR_H
#define GPT_TENSOR_H

#include "gpt/model/enqueue.h"

void gpt_forward_blocks(gpt_model* model, int32_t layer, gpt_array x);
void gpt_backward_blocks(gpt_model* model, int32_t layer, gpt_array dx);

/* Both blocks, for the rows in `need`, part by part, to measure recomputation.  The sum of `middle`
 * over ranks is omitted.  Sums of the previous layer may still run on another stream, and their
 * order would differ between ranks. */
void gpt_compute_parts(gpt_model* model, int32_t layer, const gpt_rows whole[GPT_N_TENSORS]);

/* Takes the work memory of each block's backward, of the open slice: gpt_memory.most.  The forward
 * takes no more, a chunk of the MLP's tensors. */
void gpt_measure_blocks(gpt_model* model);

/* Sums have the same address in every step: their stream accesses them while the compute stream
 * continues. */
int64_t gpt_partial_bytes(const gpt_model* model);
void gpt_destroy_blocks(gpt_model* model);

void gpt_create_blocks(gpt_model* model);

#endif
