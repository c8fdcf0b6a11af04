/* 11_packed_documents.c - packs documents into one sequence over a ring of three ranks, for two
 * batches.
 *
 * Short documents stay on one rank, and long ones are cut over as many as balance needs.
 * Documents may have any length.  Positions count within each document, and no label crosses a
 * border.  q and k are 0 and v is the position, so the output is the mean position of the
 * document's tokens up to this one.  Only rows that another rank reads travel.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/11_packed_documents.c -o 11_packed_documents -lpthread -lm
 * Expected output:
 *     batch 0: 195 labels of all ranks; the outputs of 200 tokens are right
 *     batch 1: 189 labels of all ranks; the outputs of 193 tokens are right
 *     the last batch, 67 rows a rank
 *     rank 0: 0..6, 34..39, 41..54, 107..119, 120..131, 180..192, 193..194
 *     rank 1: 7..13, 27..33, 55..67, 94..106, 132..143, 168..179, 195..197
 *     rank 2: 14..26, 40..40, 68..93, 144..167, 198..200
 */
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include <stdio.h>
#include "host_attention.h"
#include "thread_ranks.h"

enum { N_RANKS = 3, N_TOKENS = 200, LOCAL = 67, N_BATCHES = 2, N_HEADS = 2, HEAD_SIZE = 16 };
enum { ROW = N_HEADS * HEAD_SIZE, MAX_RUNS = 20 };
static const int64_t begins[N_BATCHES][6] = {{0, 5, 95, 97, 157, 200}, {0, 40, 41, 120, 193}};
static const int64_t n_documents[N_BATCHES] = {5, 4}, n_tokens[N_BATCHES] = {200, 193};
static int32_t tokens[N_TOKENS]; /* a trainer would embed them */

/* Of each rank: its rows; the host device takes any memory. */
static float qk[LOCAL][ROW], v[N_RANKS][LOCAL][ROW], out[N_RANKS][LOCAL][ROW];
static int64_t positions[N_RANKS][LOCAL]; /* for rotary embeddings */
static int32_t labels[N_RANKS][LOCAL];
static int64_t n_labels[N_BATCHES][N_RANKS];
static int n_wrong[N_BATCHES][N_RANKS], n_runs[N_RANKS];
static memo_run runs[N_RANKS][MAX_RUNS];

/* What the example prints: labels, results, and who holds what. */
static void look(const memo_sharding* sharding, int me, int batch) {
    n_labels[batch][me] = memo_sharding_labels(sharding, me, 1, tokens, 1, NULL, 0, -1, labels[me]);
    for (int i = 0; i < LOCAL; i++)
        n_wrong[batch][me] += memo_sharding_position(sharding, me, i) < sharding->n_tokens &&
                              fabsf(out[me][i][0] - 0.5f * (float)positions[me][i]) > 1e-4f;
    n_runs[me] = memo_sharding_runs(sharding, me, runs[me]);
}

static memo_status train_batch(thread_rank* r, memo_sequence* sequence, int k, memo_error* error) {
    const memo_sequence_batch_desc desc = {n_tokens[k], begins[k], n_documents[k], NULL};
    const int me = r->comm->rank;
    memo_sp_attention_tensors tensors = {0};
    memo_sequence_batch* batch = NULL;
    memo_status status = memo_sequence_batch_create(sequence, &desc, &batch, error);
    if (status) return status; /* a thread that loads batches can do this */
    memo_sequence_batch_get_positions(batch, positions[me]);
    for (int i = 0; i < LOCAL * ROW; i++) v[me][i / ROW][i % ROW] = (float)positions[me][i / ROW];
    tensors.q = tensors.k = qk;
    tensors.v = v[me];
    tensors.out = out[me];
    status = memo_sequence_batch_attend(batch, 0, &tensors, error);
    if (!status) status = memo_stream_synchronize(r->device, r->stream, error);
    if (!status) look(memo_sequence_batch_get_sharding(batch), me, k);
    memo_sequence_batch_destroy(batch);
    return status;
}

static memo_status train(thread_rank* r, memo_error* error) {
    host_attention state = {r->device, 0};
    memo_sequence_desc desc = {0};
    memo_sequence* sequence = NULL;
    desc.device = r->device;
    desc.stream = r->stream;
    desc.comm = r->comm; /* a ring of all ranks */
    desc.n_tokens = N_TOKENS;
    desc.n_q_heads = desc.n_kv_heads = N_HEADS;
    desc.head_size = HEAD_SIZE;
    desc.attention = host_attention_functions(&state);
    memo_status status = memo_sequence_create(&desc, &sequence, error);
    for (int k = 0; k < N_BATCHES && !status; k++) status = train_batch(r, sequence, k, error);
    memo_sequence_destroy(sequence);
    return status;
}

int main(void) {
    memo_error error;
    int n_all = 0;
    if (thread_ranks_run(N_RANKS, train, NULL, &error)) {
        fprintf(stderr, "11_packed_documents: %s\n", error.message);
        return 1;
    }
    for (int batch = 0; batch < N_BATCHES; batch++) {
        const int64_t* n = n_labels[batch]; /* the sum of losses is divided by their sum */
        const int wrong = n_wrong[batch][0] + n_wrong[batch][1] + n_wrong[batch][2];
        printf("batch %d: %d labels of all ranks; the outputs of %d tokens are %s\n", batch,
               (int)(n[0] + n[1] + n[2]), (int)n_tokens[batch], wrong ? "WRONG" : "right");
        n_all += wrong;
    }
    printf("the last batch, %d rows a rank\n", LOCAL);
    for (int rank = 0; rank < N_RANKS;
         rank++) { /* the positions of its rows; from 193 on padding */
        printf("rank %d:", rank);
        for (int k = 0; k < n_runs[rank]; k++)
            printf("%s %d..%d", k ? "," : "", (int)runs[rank][k].start,
                   (int)(runs[rank][k].start + runs[rank][k].count - 1));
        printf("\n");
    }
    return n_all > 0;
}
