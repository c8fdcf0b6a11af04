/* parallel.h - what several ranks do together at the end of a step, and what ZeRO splits: sums
 * of gradients and totals, each rank's part of the update, parameters gathered. */
#ifndef GPT_PARALLEL_H
#define GPT_PARALLEL_H

#include "degree_comms.h"
#include "gpt/model/enqueue.h"

/* All that this rank updates of a bucket: its own part, or all parts. */
gpt_rows gpt_updated_part(const gpt_model* model, int64_t bucket);

/* The elements of a parameter in a part; none: begin = end. */
gpt_rows gpt_part_rows_of(gpt_rows part, const gpt_parameter* p);

/* --- sums of gradients, behind the backward ---
 *
 * The sum of a bucket begins when its backward is enqueued, on a stream of its own, while the
 * compute stream goes on with the next bucket.  Each bucket is summed as a whole: where a sum is
 * cut may change its bits.  With zero 2 it is summed in every micro-batch, otherwise in the last
 * one of a step. */

/* The compute stream waits for all sums so far. */
void gpt_join_sums(gpt_model* model);
degree_comms* gpt_pair(gpt_model* model, int32_t degree, int32_t larger);

/* With zero 2 a bucket has a gradient only from its backward to the end of its sum.  Two buffers
 * take turns.  Returns the bytes of a buffer, 0 if it is not used. */
int64_t gpt_bucket_bytes(const gpt_model* model, gpt_buffer buffer);
void gpt_begin_bucket(gpt_model* model, int64_t bucket);

/* The bucket before gives its memory back now: its sum had the time of this bucket's backward. */
void gpt_give_summed_bucket(gpt_model* model);

/* Parts of a bucket that this rank has summed: of all ranks, or its own. */
int64_t gpt_n_parts(const gpt_model* model);

/* A gradient that leaves the device is complete, and its squares added, before its layer ends. */
void gpt_end_bucket(gpt_model* model, int64_t bucket);

/* Sums loss and votes over all ranks, and the squares if each rank has only its own part.  Tensor
 * ranks have the same loss. */
void gpt_reduce_totals(gpt_model* model);

/* --- the update --- */

/* The last bucket is first, as in the backward. */
void gpt_gradient_norm(gpt_model* model);

/* Callback of the session: the states of a bucket are on the device. */
void gpt_update_bucket(void* user, memo_session* session, int32_t layer);

/* Callback of the session, on a thread of the device: the states of a bucket are on the host. */
void gpt_update_bucket_on_host(void* user, int32_t layer, void* const* states);

/* Sets the master weights that this rank updates to the weights. */
void gpt_set_masters(gpt_model* model, int64_t bucket);

#endif
