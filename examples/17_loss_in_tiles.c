/* 17_loss_in_tiles.c - computes a classifier and its loss without the logits of all rows.  Two
 * tensor ranks (threads) hold half of the vocabulary each.
 *
 * Each row is one of 8 words, and the next word follows from it.  The weights start at 0, so the
 * first loss is ln 1000 = 6.908.  Logits exist for 16 rows and 500 columns at a time.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/17_loss_in_tiles.c -o 17_loss_in_tiles -lpthread -lm
 * Expected output:
 *     logits of a tile 32000 bytes, of all rows and columns 384000; a rank sends 1152 bytes
 *     step 1, loss 6.908 nats
 *     step 20, loss 0.002 nats
 */
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include <stdio.h>
#include "thread_ranks.h"

enum { N_RANKS = 2, N_ROWS = 96, N_IN = 8, VOCABULARY = 1000, TILE_ROWS = 16, N_STEPS = 20 };
static const float learning_rate = 100;

/* A rank's part of the classifier. */
typedef struct classifier {
    memo_device* device;
    float x[N_ROWS][N_IN]; /* what the last layer returns */
    int32_t labels[N_ROWS];
    float weights[VOCABULARY][N_IN],
        d_weights[VOCABULARY][N_IN]; /* this rank's columns come first */
} classifier;

typedef struct product {
    classifier* c;
    memo_loss_tile tile;
} product;

/* logits = x W^T, where a trainer calls BLAS or cuBLASLt. */
static memo_status multiply(void* args, memo_error* error) {
    const product* p = (const product*)args;
    float* logits = (float*)p->tile.logits;
    (void)error;
    for (int64_t r = 0; r < p->tile.n_rows; r++)
        for (int64_t o = 0; o < p->tile.n_columns; o++) {
            float sum = 0;
            for (int i = 0; i < N_IN; i++)
                sum += p->c->x[p->tile.first_row + r][i] * p->c->weights[o][i];
            *logits++ = sum;
        }
    return MEMO_STATUS_OK;
}

/* d_W += d_logits^T x.  A layer before it would also get d_x = d_logits W. */
static memo_status add_gradients(void* args, memo_error* error) {
    const product* p = (const product*)args;
    const float* d_logits = (const float*)p->tile.logits;
    (void)error;
    for (int64_t r = 0; r < p->tile.n_rows; r++)
        for (int64_t o = 0; o < p->tile.n_columns; o++, d_logits++)
            for (int i = 0; i < N_IN; i++)
                p->c->d_weights[o][i] += *d_logits * p->c->x[p->tile.first_row + r][i];
    return MEMO_STATUS_OK;
}

static memo_status logits(void* context, const memo_loss_tile* tile, memo_error* error) {
    product p = {(classifier*)context, *tile};
    return memo_host_device_launch(p.c->device, tile->stream, multiply, &p, sizeof p, error);
}
static memo_status gradients(void* context, const memo_loss_tile* tile, memo_error* error) {
    product p = {(classifier*)context, *tile};
    return memo_host_device_launch(p.c->device, tile->stream, add_gradients, &p, sizeof p, error);
}

static memo_status train(thread_rank* r, classifier* c, memo_error* error) {
    memo_loss_desc desc = {0};
    memo_loss_tensors tensors = {0};
    memo_loss_sizes sizes;
    memo_loss* loss = NULL;
    memo_status status;
    double sums[3], mean = 0;
    desc.device = r->device;
    desc.stream = r->stream;
    desc.tensor = r->comm;
    desc.vocabulary = VOCABULARY;
    desc.tile_rows = TILE_ROWS;
    desc.functions.context = c;
    desc.functions.logits = logits;
    desc.functions.gradients = gradients;
    tensors.n_rows = N_ROWS;
    tensors.labels = c->labels;
    tensors.sums = sums;
    tensors.scale = 1.0f / N_ROWS; /* the gradient of the mean */

    status = memo_loss_desc_get_sizes(&desc, &sizes, error);
    if (!status) status = memo_loss_create(&desc, &loss, error);
    if (!status && r->comm->rank == 0)
        printf("logits of a tile %d bytes, of all rows and columns %d; a rank sends %d bytes\n",
               (int)(sizes.tile_rows * sizes.n_columns) * 4, N_ROWS * VOCABULARY * 4,
               (int)sizes.sent_bytes_per_row * N_ROWS);
    for (int step = 1; step <= N_STEPS && !status; step++) {
        sums[0] = sums[1] = sums[2] = 0;
        memset(c->d_weights, 0, sizeof c->d_weights);
        status = memo_loss_run(loss, &tensors, error);
        if (!status) status = memo_loss_read(loss, sums, &mean, error); /* waits for the stream */
        if (status) break;
        for (int o = 0; o < VOCABULARY * N_IN; o++)
            c->weights[o / N_IN][o % N_IN] -= learning_rate * c->d_weights[o / N_IN][o % N_IN];
        if (r->comm->rank == 0 && (step == 1 || step == N_STEPS))
            printf("step %d, loss %.3f nats\n", step, mean);
    }
    memo_loss_destroy(loss); /* waits for the stream */
    return status;
}

/* The host device reads any memory of the process, so the tensors need no allocation on it. */
static memo_status run_rank(thread_rank* r, memo_error* error) {
    classifier* c = (classifier*)calloc(1, sizeof *c);
    memo_status status;
    if (!c) return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no memory for weights");
    c->device = r->device;
    for (int i = 0; i < N_ROWS; i++) {
        c->x[i][i % N_IN] = 1;
        c->labels[i] = 123 * (i % N_IN);
    }
    status = train(r, c, error);
    free(c);
    return status;
}

int main(void) {
    memo_error error;
    if (thread_ranks_run(N_RANKS, run_rank, NULL, &error)) {
        fprintf(stderr, "17_loss_in_tiles: %s\n", error.message);
        return 1;
    }
    return 0;
}
