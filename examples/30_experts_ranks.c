/* 30_experts_ranks.c - a mixture of experts over ranks: a row travels to the rank of its expert,
 * and its result back.
 *
 * Each token chooses two of eight experts.  Expert e multiplies a row by a_e; a token's output is
 * the sum of both results times their weights.  The loss is the sum of the output squared / 2.
 * Four ranks, threads of this process, give the bits of one rank: outputs, and gradients of tokens
 * and experts.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/30_experts_ranks.c -o 30_experts_ranks -lpthread -lm
 * Expected output:
 *     4 ranks receive 476, 666, 668 and 190 of 2000 rows; same outputs and gradients as 1 rank
 */
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include <stdio.h>
#include <stdlib.h>
#include "thread_ranks.h"

enum { RANKS = 4, TOKENS = 1000, CHOICES = 2, ROWS = TOKENS * CHOICES, EXPERTS = 8, C = 16 };

typedef struct job { /* of all ranks */
    float x[TOKENS][C], weight[TOKENS][CHOICES], a[EXPERTS][C];
    int32_t choice[TOKENS][CHOICES];
    float out[TOKENS][C], d_x[TOKENS][C], d_a[EXPERTS][C];
    int64_t n_received[RANKS];
} job;

/* Of a rank. */
typedef struct layer {
    job* j;
    int64_t begin, end; /* tokens */
    memo_share experts;
    memo_routing routing;
    int64_t counts[RANKS * EXPERTS];            /* of the routing: by sender and expert */
    int64_t place[TOKENS][CHOICES];             /* of a choice's row, in the order of the sender */
    float rows[ROWS][C];                        /* in the order of the sender */
    float x[ROWS][C], d_y[ROWS][C], y[ROWS][C]; /* in the order of the expert; y: or its d_x */
} layer;

/* Rows for each expert, in the order of tokens: the order that makes bits independent of ranks. */
static void sort_rows(layer* l, int64_t counts[EXPERTS]) {
    int64_t n = 0;
    for (int e = 0; e < EXPERTS; e++) {
        const int64_t before = n;
        for (int64_t t = l->begin; t < l->end; t++)
            for (int k = 0; k < CHOICES; k++)
                if (l->j->choice[t][k] == e) l->place[t][k] = n++;
        counts[e] = n - before;
    }
}

/* What a token's rows carry: x, or the gradient of an expert's result.  The gradient of out is
 * out. */
static void fill_rows(layer* l, int is_backward) {
    for (int64_t t = l->begin; t < l->end; t++)
        for (int k = 0; k < CHOICES; k++)
            for (int i = 0; i < C; i++)
                l->rows[l->place[t][k]][i] =
                    is_backward ? l->j->weight[t][k] * l->j->out[t][i] : l->j->x[t][i];
}

/* Sums what came back, in the order of choices. */
static void add_rows(layer* l, int is_backward) {
    for (int64_t t = l->begin; t < l->end; t++)
        for (int k = 0; k < CHOICES; k++)
            for (int i = 0; i < C; i++) {
                const float row = l->rows[l->place[t][k]][i];
                if (is_backward)
                    l->j->d_x[t][i] += row;
                else
                    l->j->out[t][i] += l->j->weight[t][k] * row;
            }
}

/* The experts of this rank compute their rows, which lie one expert after another. */
static void run_experts(layer* l, int n_ranks, int is_backward) {
    int64_t at = 0;
    for (int64_t e = l->experts.begin; e < l->experts.begin + l->experts.count; e++)
        for (int r = 0; r < n_ranks; r++)
            for (int64_t n = l->counts[r * EXPERTS + e]; n > 0; n--, at++)
                for (int i = 0; i < C; i++) {
                    l->y[at][i] = l->j->a[e][i] * (is_backward ? l->d_y : l->x)[at][i];
                    if (is_backward) l->j->d_a[e][i] += l->d_y[at][i] * l->x[at][i];
                }
}

static memo_status rank_main(thread_rank* r, memo_error* error) {
    layer* l = calloc(1, sizeof *l);
    memo_experts_desc desc = {r->device, r->stream, r->comm, EXPERTS, ROWS};
    memo_experts* experts = NULL;
    int64_t counts[EXPERTS];
    memo_status status;
    if (!l) return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no memory for a layer");
    l->j = r->user;
    l->begin = (int64_t)TOKENS * r->comm->rank / r->comm->size;
    l->end = (int64_t)TOKENS * (r->comm->rank + 1) / r->comm->size;
    l->experts = memo_share_of(EXPERTS, r->comm->size, r->comm->rank);
    l->routing.counts = l->counts;
    sort_rows(l, counts);

    status = memo_experts_create(&desc, &experts, error);
    if (!status) status = memo_experts_route(experts, counts, &l->routing, error);
    for (int back = 0; back < 2 && !status; back++) {
        float(*received)[C] = back ? l->d_y : l->x;
        fill_rows(l, back);
        status = memo_dispatch(experts, &l->routing, l->rows, received, C, MEMO_TYPE_F32, error);
        if (!status) status = memo_stream_synchronize(r->device, r->stream, error);
        if (!status) run_experts(l, r->comm->size, back);
        if (!status)
            status = memo_combine(experts, &l->routing, l->y, l->rows, C, MEMO_TYPE_F32, error);
        if (!status) status = memo_stream_synchronize(r->device, r->stream, error);
        if (!status) add_rows(l, back);
    }
    memo_experts_destroy(experts); /* waits for the stream */
    l->j->n_received[r->comm->rank] = l->routing.n_received;
    free(l);
    return status;
}

int main(void) {
    static job jobs[2]; /* one rank, four ranks */
    memo_error error;
    for (int k = 0; k < 2; k++) {
        job* j = &jobs[k];
        for (int i = 0; i < TOKENS * C; i++) j->x[i / C][i % C] = sinf((float)(i % 1009));
        for (int i = 0; i < EXPERTS * C; i++) j->a[i / C][i % C] = cosf((float)i);
        for (int t = 0; t < TOKENS; t++) { /* a router would choose */
            j->choice[t][0] = t * t % 7 % EXPERTS;
            j->choice[t][1] = (j->choice[t][0] + 1 + t % 3) % EXPERTS;
            j->weight[t][0] = 0.75f;
            j->weight[t][1] = 0.25f;
        }
        if (thread_ranks_run(k ? RANKS : 1, rank_main, j, &error)) {
            fprintf(stderr, "30_experts_ranks: %s\n", error.message);
            return 1;
        }
    }

    const int64_t* n = jobs[1].n_received;
    const int is_same = !memcmp(jobs[0].out, jobs[1].out, sizeof jobs[0].out) &&
                        !memcmp(jobs[0].d_x, jobs[1].d_x, sizeof jobs[0].d_x) &&
                        !memcmp(jobs[0].d_a, jobs[1].d_a, sizeof jobs[0].d_a);
    printf("%d ranks receive %d, %d, %d and %d of %d rows; %s outputs and gradients as 1 rank\n",
           RANKS, (int)n[0], (int)n[1], (int)n[2], (int)n[3], ROWS, is_same ? "same" : "OTHER");
    return !is_same;
}
