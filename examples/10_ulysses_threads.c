/* 10_ulysses_threads.c - computes attention over four ranks, threads of this process with a quarter
 * of the tokens each.
 *
 * An all-to-all before attention gives each rank all tokens of a quarter of the heads; one after it
 * returns the output.  8 query heads share 2 key heads, fewer than there are ranks.  q and k are 0
 * and v is the token's position, so the output is the mean position of all tokens up to this one.
 *
 * A second run sends latent rows of 4 numbers, from which each rank computes k and v.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/10_ulysses_threads.c -o 10_ulysses_threads -lpthread -lm
 * Expected output:
 *     keys and values: the outputs of 250 tokens on 4 ranks are right, that of token 62 is 31.0
 *     latent rows: the outputs of 250 tokens on 4 ranks are right, that of token 62 is 31.0
 */
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include <stdio.h>
#include "host_attention.h"
#include "thread_ranks.h"

enum { N_RANKS = 4, N_TOKENS = 250, LOCAL = 63, HEAD_SIZE = 16, LATENT = 4 }; /* 63: rounded up */
enum { Q_HEADS = 8, KV_HEADS = 2, Q_ROW = Q_HEADS * HEAD_SIZE, KV_ROW = KV_HEADS * HEAD_SIZE };

/* A model multiplies latent rows with weights of the block's heads. */
static memo_status expand_rows(void* args, memo_error* error) {
    const memo_latent_block* b = (const memo_latent_block*)args;
    const int64_t row = b->n_kv_heads * HEAD_SIZE;
    (void)error;
    for (int64_t i = 0; i < b->n_rows * row; i++) {
        ((float*)b->k)[i] = 0;
        ((float*)b->v)[i] = ((const float*)b->latent)[i / row * LATENT];
    }
    return MEMO_STATUS_OK;
}
static memo_status expand(void* device, memo_stream stream, const memo_latent_block* block,
                          memo_error* error) {
    memo_latent_block args = *block;
    return memo_host_device_launch((memo_device*)device, stream, expand_rows, &args, sizeof args,
                                   error);
}
static memo_status reduce(void* device, memo_stream stream, const memo_latent_block* block,
                          memo_error* error) {
    (void)device, (void)stream, (void)block;
    return memo_error_set(error, MEMO_STATUS_UNSUPPORTED, "this example has no backward");
}

/* q and v of a rank's rows; the host device takes any memory. */
static float q[LOCAL][Q_ROW], zeros[LOCAL][KV_ROW], out[N_RANKS][LOCAL][Q_ROW];
static float v[N_RANKS][LOCAL][KV_ROW], latent[N_RANKS][LOCAL][LATENT];
static int64_t positions[N_RANKS][LOCAL];

static memo_status attend(thread_rank* r, memo_error* error) {
    const int is_latent = *(const int*)r->user, me = r->comm->rank;
    const memo_latent keys = {LATENT, 0, expand, reduce, r->device};
    host_attention state = {r->device, 0};
    memo_sequence_desc desc = {0};
    memo_sequence* sequence = NULL;
    const memo_sequence_batch_desc one_document = {0};
    memo_sequence_batch* batch = NULL;
    memo_sp_attention_tensors tensors = {0};
    desc.device = r->device;
    desc.stream = r->stream;
    desc.comm = r->comm;
    desc.ulysses = N_RANKS;
    desc.n_tokens = N_TOKENS; /* not a multiple of 4: padded */
    desc.n_q_heads = Q_HEADS;
    desc.n_kv_heads = KV_HEADS;
    desc.head_size = HEAD_SIZE;
    desc.attention = host_attention_functions(&state);
    desc.sends_again = 1; /* without a backward, q, k and v by heads are not kept */
    if (is_latent) desc.latent = keys;

    memo_status status = memo_sequence_create(&desc, &sequence, error);
    if (!status) status = memo_sequence_batch_create(sequence, &one_document, &batch, error);
    memo_sequence_batch_get_positions(batch, positions[me]);
    for (int i = 0; i < LOCAL * KV_ROW; i++)
        v[me][i / KV_ROW][i % KV_ROW] = (float)positions[me][i / KV_ROW];
    for (int i = 0; i < LOCAL; i++) latent[me][i][0] = (float)positions[me][i];
    tensors.q = q;
    tensors.k = is_latent ? (const void*)latent[me] : zeros;
    tensors.v = is_latent ? NULL : v[me];
    tensors.out = out[me];
    if (!status) status = memo_sequence_batch_attend(batch, 0, &tensors, error);
    if (!status) status = memo_stream_synchronize(r->device, r->stream, error);
    memo_sequence_batch_destroy(batch);
    memo_sequence_destroy(sequence);
    return status;
}

int main(void) {
    memo_error error;
    int n_wrong = 0;
    for (int is_latent = 0; is_latent < 2; is_latent++) {
        if (thread_ranks_run(N_RANKS, attend, &is_latent, &error)) {
            fprintf(stderr, "10_ulysses_threads: %s\n", error.message);
            return 1;
        }
        for (int rank = 0; rank < N_RANKS; rank++)
            for (int i = 0; i < LOCAL && positions[rank][i] < N_TOKENS; i++) /* then padding */
                for (int j = 0; j < Q_ROW; j++)
                    n_wrong += fabsf(out[rank][i][j] - 0.5f * (float)positions[rank][i]) > 1e-4f;
        printf("%s: the outputs of %d tokens on %d ranks are %s, that of token 62 is %.1f\n",
               is_latent ? "latent rows" : "keys and values", N_TOKENS, N_RANKS,
               n_wrong ? "WRONG" : "right", (double)out[0][62][0]);
        memset(out, 0, sizeof out);
    }
    return n_wrong > 0;
}
