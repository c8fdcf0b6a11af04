/* 11_packed_documents.c - packs documents into one sequence over a ring of three ranks, for two
 * batches.
 *
 * Short documents stay on one rank, and long ones are cut over as many as balance needs.
 * Documents may have any length.  Positions count within each document, and no label crosses a
 * border.  q and k are 0 and v is the token's place in the sequence, so the output is the mean
 * place of the document's tokens up to this one.  Only rows that another rank reads travel.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/11_packed_documents.c -o 11_packed_documents -lpthread -lm
 * Expected output:
 *     195 labels of all ranks, by which the sum of losses is divided; rank 0 sends 134 of 134 rows
 *     196 labels of all ranks, by which the sum of losses is divided; rank 0 sends 68 of 134 rows
 *     two forwards are 22 operations with 5 waits; races: 0
 *     67 tokens a rank
 *     rank 0: 5..71
 *     rank 1: 4..4, 72..77, 89..94, 95..96, 97..111, 142..156, 157..167, 189..199
 *     rank 2: 0..3, 78..88, 112..141, 168..188, 200..200
 *     token 130 is row 33 of rank 2, number 33 of its document, its output 113.5; all are right
 */
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include "extras/memo_look.h"
#include <stdio.h>
#include "thread_ranks.h"

enum { N_RANKS = 3, N_TOKENS = 200, MAX_DOCUMENTS = 5, N_BATCHES = 2, N_HEADS = 2, HEAD_SIZE = 16 };
enum { ROW = N_HEADS * HEAD_SIZE, MAX_LOCAL = 67 };
static const int64_t begins[N_BATCHES][MAX_DOCUMENTS + 1] = {{0, 5, 95, 97, 157, 200},
                                                             {0, 40, 41, 120, 200}};
static const int64_t n_documents[N_BATCHES] = {5, 4};
static int32_t tokens[N_TOKENS]; /* a trainer would embed them */
static float v[N_TOKENS][ROW], out[N_BATCHES][N_TOKENS][ROW];
static int64_t positions[N_BATCHES][N_TOKENS];

typedef struct rank_state {
    memo_sharding sharding;
    memo_sp_attention* attention;
    memo_sp_attention_tensors tensors;
    memo_exchange* exchange; /* of the batch */
    float qk[MAX_LOCAL][ROW], v[MAX_LOCAL][ROW], out[MAX_LOCAL][ROW], lse[MAX_LOCAL][N_HEADS];
    int64_t positions[MAX_LOCAL]; /* for rotary embeddings */
    int32_t labels[MAX_LOCAL];
    double sums[2]; /* of losses, of labels */
} rank_state;

static memo_status sharding_of(int batch, memo_sharding* sharding, memo_error* error) {
    memo_sharding_desc desc = {0};
    desc.kind = MEMO_SHARDING_DOCUMENTS;
    desc.ring = N_RANKS;
    desc.n_tokens = N_TOKENS;
    desc.document_begins = begins[batch];
    desc.n_documents = n_documents[batch];
    return memo_sharding_make(&desc, sharding, error);
}

/* Checks the operations that two forwards have enqueued on this rank. */
static memo_status check_schedule(memo_recorder* recorder, memo_error* error) {
    memo_schedule* schedule = NULL;
    memo_check* check = NULL;
    memo_status status = memo_recorder_get_schedule(recorder, &schedule, error);
    if (!status) status = memo_schedule_check(schedule, &check, error);
    if (!status)
        printf("two forwards are %d operations with %d waits; races: %d\n", (int)schedule->n_ops,
               (int)check->n_waits, (int)check->n_races);
    memo_check_destroy(check);
    return status;
}

static memo_status train_batch(thread_rank* r, rank_state* s, int batch, memo_error* error) {
    /* Without masks: causal, within the sharding's documents. */
    memo_exchange_desc desc = {0};
    memo_exchange_info info;
    int32_t me = r->comm->rank;
    desc.sharding = &s->sharding;
    memo_exchange_destroy(s->exchange); /* waits for the stream */
    memo_sharding_free(&s->sharding);
    s->exchange = NULL;
    if (sharding_of(batch, &s->sharding, error) ||
        memo_exchange_create(s->attention, &desc, &s->exchange, error))
        return error->status;
    memo_exchange_get_info(s->exchange, &info);

    /* NULL: the sharding's documents. */
    memo_sharding_positions(&s->sharding, me, NULL, 0, s->positions);
    s->sums[0] = 0;
    s->sums[1] =
        (double)memo_sharding_labels(&s->sharding, me, 1, tokens, 1, NULL, 0, -1, s->labels);
    memo_sharding_scatter(&s->sharding, me, 1, sizeof v[0], v, s->v);

    if (memo_sp_attention_forward(s->attention, s->exchange, &s->tensors, error) ||
        memo_all_reduce(r->comm, r->stream, s->sums, s->sums, 2, MEMO_TYPE_F64, MEMO_REDUCTION_SUM,
                        error) ||
        memo_stream_synchronize(r->device, r->stream, error))
        return error->status;
    if (me == 0)
        printf(
            "%.0f labels of all ranks, by which the sum of losses is divided; rank 0 sends %d of "
            "%d rows\n",
            s->sums[1], (int)info.sent_rows[0], (N_RANKS - 1) * (int)s->sharding.local_tokens);
    memo_sharding_gather(&s->sharding, me, 1, sizeof out[0][0], s->out, out[batch]);
    memo_sharding_gather(&s->sharding, me, 1, sizeof positions[0][0], s->positions,
                         positions[batch]);
    return MEMO_STATUS_OK;
}

static memo_status train(thread_rank* r, memo_error* error) {
    memo_sp_attention_desc desc = {0};
    memo_host_attention state = {r->device, 0};
    memo_recorder_desc recorder_desc = {0};
    memo_recorder* recorder = NULL;
    rank_state* s = (rank_state*)calloc(1, sizeof *s);
    memo_status status;
    if (!s) return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no memory for a rank");

    status = sharding_of(0, &desc.sharding, error);
    recorder_desc.device = r->device;
    if (!status) status = memo_recorder_create(&recorder_desc, &recorder, error);
    if (recorder) desc.device = memo_recorder_get_device(recorder);
    desc.stream = r->stream;
    desc.ring = r->comm; /* memo_mesh_create would split a world that has ulysses, too */
    desc.n_q_heads = desc.n_kv_heads = N_HEADS;
    desc.head_size = HEAD_SIZE;
    desc.attention = memo_host_attention_functions(&state);

    s->tensors.q = s->tensors.k = s->qk; /* the host device takes any memory */
    s->tensors.v = s->v;
    s->tensors.out = s->out;
    s->tensors.lse = s->lse[0];

    if (!status) status = memo_sp_attention_create(&desc, &s->attention, error);
    for (int batch = 0; batch < N_BATCHES && !status; batch++)
        status = train_batch(r, s, batch, error);
    if (!status && r->comm->rank == 0) status = check_schedule(recorder, error);

    /* Operations that have begun must end, also after an error. */
    memo_status ended = memo_stream_synchronize(r->device, r->stream, status ? NULL : error);
    if (!status) status = ended;
    memo_exchange_destroy(s->exchange);
    memo_sp_attention_destroy(s->attention);
    memo_recorder_destroy(recorder);
    memo_sharding_free(&desc.sharding);
    memo_sharding_free(&s->sharding);
    free(s);
    return status;
}

int main(void) {
    memo_sharding sharding;
    memo_error error;
    int n_wrong = 0;
    int64_t row;
    int32_t rank;
    for (int i = 0; i < N_TOKENS * ROW; i++) v[i / ROW][i % ROW] = (float)(i / ROW);
    if (sharding_of(0, &sharding, &error) || thread_ranks_run(N_RANKS, train, NULL, &error)) {
        fprintf(stderr, "11_packed_documents: %s\n", error.message);
        return 1;
    }

    for (int batch = 0; batch < N_BATCHES; batch++)
        for (int i = 0, document = 0; i < N_TOKENS; i++) {
            while (i >= begins[batch][document + 1]) document++;
            n_wrong +=
                fabsf(out[batch][i][0] - 0.5f * (float)(begins[batch][document] + i)) > 1e-4f;
        }

    printf("%d tokens a rank\n", (int)sharding.local_tokens);
    for (rank = 0; rank < N_RANKS; rank++) { /* the positions of its rows; 200 is padding */
        memo_run runs[3 * MAX_DOCUMENTS];
        const int32_t n = memo_sharding_runs(&sharding, rank, runs);
        printf("rank %d:", (int)rank);
        for (int32_t k = 0; k < n; k++)
            printf("%s %d..%d", k ? "," : "", (int)runs[k].start,
                   (int)(runs[k].start + runs[k].count - 1));
        printf("\n");
    }
    memo_sharding_find(&sharding, 130, &rank, &row);
    printf("token 130 is row %d of rank %d, number %d of its document, its output %.1f; %s\n",
           (int)row, (int)rank, (int)positions[0][130], (double)out[0][130][0],
           n_wrong ? "some are WRONG" : "all are right");
    memo_sharding_free(&sharding);
    return n_wrong > 0;
}
