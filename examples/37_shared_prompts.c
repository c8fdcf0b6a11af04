/* 37_shared_prompts.c - three answers to each of two prompts, as in reinforcement learning: each
 * prompt is in the sequence once, over a ring of four ranks.
 *
 * An answer sees its prompt and, causally, itself.  It begins with a copy of the prompt's last
 * token, so that each answer has a label for its first token.  With the prompts repeated for each
 * answer, the batch would have 2 x 3 x (prompt + answer) tokens.  q and k are 0 and v is the
 * position, so the output is the mean position of all tokens that a token sees: of its prompt and
 * its own, up to it.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/37_shared_prompts.c -o 37_shared_prompts -lpthread -lm
 * Expected output:
 *     743 tokens instead of 1579 with repeated prompts; the outputs of 743 tokens are right
 *     rank 0 computes 0.99 of the mean pairs, rank 1 1.01, rank 2 1.00, rank 3 1.00
 */
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include <stdio.h>
#include "host_attention.h"
#include "thread_ranks.h"

enum { N_RANKS = 4, N_TOKENS = 743, LOCAL = 186, N_DOCUMENTS = 8, HEAD_SIZE = 16 };
/* prompt, answer, answer, answer, prompt, ... */
static const int64_t begins[N_DOCUMENTS + 1] = {0, 301, 341, 418, 441, 558, 622, 653, 743};
static const int64_t parents[N_DOCUMENTS] = {-1, 0, 0, 0, -1, 4, 4, 4};

/* Of each rank: its rows; the host device takes any memory. */
static float qk[LOCAL][HEAD_SIZE], v[N_RANKS][LOCAL][HEAD_SIZE], out[N_RANKS][LOCAL][HEAD_SIZE];
static int64_t positions[N_RANKS][LOCAL]; /* for rotary embeddings */
static int n_wrong[N_RANKS];
static double n_pairs[N_RANKS];

static memo_status attend(thread_rank* r, memo_error* error) {
    const int me = r->comm->rank;
    host_attention state = {r->device, 0};
    memo_sequence_desc desc = {0};
    memo_sequence* sequence = NULL;
    const memo_sequence_batch_desc documents = {N_TOKENS, begins, N_DOCUMENTS, parents};
    memo_sequence_batch* batch = NULL;
    memo_sp_attention_tensors tensors = {0};
    desc.device = r->device;
    desc.stream = r->stream;
    desc.comm = r->comm;
    desc.n_tokens = N_TOKENS;
    desc.n_q_heads = desc.n_kv_heads = 1;
    desc.head_size = HEAD_SIZE;
    desc.has_trees = 1;
    desc.attention = host_attention_functions(&state);
    memo_status status = memo_sequence_create(&desc, &sequence, error);
    if (!status) status = memo_sequence_batch_create(sequence, &documents, &batch, error);
    if (!status) {
        memo_sequence_batch_get_positions(batch, positions[me]);
        for (int i = 0; i < LOCAL * HEAD_SIZE; i++)
            v[me][i / HEAD_SIZE][i % HEAD_SIZE] = (float)positions[me][i / HEAD_SIZE];
        tensors.q = tensors.k = qk;
        tensors.v = v[me];
        tensors.out = out[me];
        status = memo_sequence_batch_attend(batch, 0, &tensors, error);
    }
    if (!status) status = memo_stream_synchronize(r->device, r->stream, error);

    /* An answer's positions follow its prompt's, so that a token sees positions 0 to its own. */
    for (int i = 0; i < LOCAL && !status; i++) {
        const int64_t at = memo_sharding_position(memo_sequence_batch_get_sharding(batch), me, i);
        if (at >= N_TOKENS) continue; /* padding */
        n_wrong[me] += fabsf(out[me][i][0] - 0.5f * (float)positions[me][i]) > 1e-3f;
        n_pairs[me] += (double)positions[me][i] + 1;
    }
    memo_sequence_batch_destroy(batch);
    memo_sequence_destroy(sequence);
    return status;
}

int main(void) {
    memo_error error;
    int wrong = 0;
    int64_t n_repeated = 0;
    double mean = 0;
    if (thread_ranks_run(N_RANKS, attend, NULL, &error)) {
        fprintf(stderr, "37_shared_prompts: %s\n", error.message);
        return 1;
    }
    for (int i = 0; i < N_DOCUMENTS; i++) /* each answer with its prompt */
        if (parents[i] >= 0)
            n_repeated += begins[i + 1] - begins[i] + begins[parents[i] + 1] - begins[parents[i]];
    for (int rank = 0; rank < N_RANKS; rank++) {
        wrong += n_wrong[rank];
        mean += n_pairs[rank] / N_RANKS;
    }
    printf("%d tokens instead of %d with repeated prompts; the outputs of %d tokens are %s\n",
           N_TOKENS, (int)n_repeated, N_TOKENS, wrong ? "WRONG" : "right");
    for (int rank = 0; rank < N_RANKS; rank++)
        printf("%srank %d%s %.2f%s", rank ? ", " : "", rank, rank ? "" : " computes",
               n_pairs[rank] / mean, rank ? "" : " of the mean pairs");
    printf("\n");
    return wrong > 0;
}
