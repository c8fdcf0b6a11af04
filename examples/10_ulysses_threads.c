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
 *     rank 0 holds 63 tokens, works on 252 tokens of 2 heads, and sends 72576 bytes
 *     the output of token 200 is 100.0; all are right
 *     rank 0 holds 63 tokens, works on 252 tokens of 2 heads, and sends 51408 bytes
 *     the output of token 200 is 100.0; all are right
 */
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include <stdio.h>
#include "thread_ranks.h"

enum { N_RANKS = 4, N_TOKENS = 250, N_Q_HEADS = 8, N_KV_HEADS = 2, HEAD_SIZE = 16 };
enum { Q_ROW = N_Q_HEADS * HEAD_SIZE, KV_ROW = N_KV_HEADS * HEAD_SIZE, LATENT = 4 };
static float v[N_TOKENS][KV_ROW], latent[N_TOKENS][LATENT], out[N_TOKENS][Q_ROW];

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

static memo_status attend(thread_rank* r, memo_error* error) {
    memo_sharding_desc sharding_desc = {0};
    memo_sp_attention_desc desc = {0};
    memo_host_attention state = {r->device, 0};
    memo_exchange_desc causal = {0};
    memo_sp_attention* attention = NULL;
    memo_exchange* exchange = NULL;
    memo_sp_attention_sizes sizes;
    memo_sp_attention_tensors t;
    memo_device* d = r->device;
    const int is_latent = *(const int*)r->user; /* then k is latent rows, and v is not used */
    void* memory[5];                            /* q, k, v, out, lse */
    memo_status status;

    /* The tokens of this rank, and the attention over all of them. */
    sharding_desc.ulysses = N_RANKS;
    sharding_desc.n_tokens = N_TOKENS; /* not a multiple of 4: padded */
    if (memo_sharding_make(&sharding_desc, &desc.sharding, error)) return error->status;
    desc.device = d;
    desc.stream = r->stream;
    desc.ulysses = r->comm; /* memo_mesh_create would split a world that has a ring, too */
    desc.n_q_heads = N_Q_HEADS;
    desc.n_kv_heads = N_KV_HEADS;
    desc.head_size = HEAD_SIZE;
    desc.attention = memo_host_attention_functions(&state);
    desc.sends_again = 1; /* without a backward, q, k and v by heads are not kept */
    if (is_latent) {
        const memo_latent keys = {LATENT, 0, expand, reduce, d};
        desc.latent = keys;
    }
    if (memo_sp_attention_desc_get_sizes(&desc, &sizes, error)) return error->status;

    for (int i = 0; i < 5; i++) {
        int64_t row = i == 0 || i == 3 ? Q_ROW : KV_ROW;
        int64_t n_bytes = i == 4 ? sizes.lse_bytes : desc.sharding.local_tokens * row * 4;
        if (memo_device_alloc(d, n_bytes, &memory[i], error)) return error->status;
        memset(memory[i], 0, (size_t)n_bytes);
    }

    memset(&t, 0, sizeof t);
    t.q = memory[0];
    t.k = memory[1];
    t.v = memory[2];
    t.out = memory[3];
    t.lse = (float*)memory[4];

    if (is_latent) {
        memo_sharding_scatter(&desc.sharding, r->comm->rank, 1, sizeof latent[0], latent,
                              memory[1]);
    } else {
        memo_sharding_scatter(&desc.sharding, r->comm->rank, 1, sizeof v[0], v, memory[2]);
    }
    status = memo_sp_attention_create(&desc, &attention, error);
    if (!status) status = memo_exchange_create(attention, &causal, &exchange, error);
    if (!status) status = memo_sp_attention_forward(attention, exchange, &t, error);
    /* Operations that have begun must end, also after an error. */
    memo_status ended = memo_stream_synchronize(d, r->stream, status ? NULL : error);
    if (!status) status = ended;
    memo_sharding_gather(&desc.sharding, r->comm->rank, 1, sizeof out[0], memory[3], out);
    if (!status && r->comm->rank == 0)
        printf("rank 0 holds %d tokens, works on %d tokens of %d heads, and sends %d bytes\n",
               (int)desc.sharding.local_tokens, (int)desc.sharding.ring_tokens,
               (int)sizes.heads.n_q, (int)r->comm->sent_bytes);
    memo_exchange_destroy(exchange);
    memo_sp_attention_destroy(attention);
    return status; /* the device frees the memory */
}

int main(void) {
    memo_error error;
    int n_wrong = 0;
    for (int i = 0; i < N_TOKENS * KV_ROW; i++) v[i / KV_ROW][i % KV_ROW] = (float)(i / KV_ROW);
    for (int i = 0; i < N_TOKENS; i++) latent[i][0] = (float)i;
    for (int is_latent = 0; is_latent < 2; is_latent++) {
        if (thread_ranks_run(N_RANKS, attend, &is_latent, &error)) {
            fprintf(stderr, "10_ulysses_threads: %s\n", error.message);
            return 1;
        }
        for (int i = 0; i < N_TOKENS * Q_ROW; i++)
            n_wrong += fabsf(out[i / Q_ROW][i % Q_ROW] - 0.5f * (float)(i / Q_ROW)) > 1e-4f;
        printf("the output of token 200 is %.1f; %s\n", (double)out[200][0],
               n_wrong ? "some are WRONG" : "all are right");
        memset(out, 0, sizeof out);
    }
    return n_wrong > 0;
}
