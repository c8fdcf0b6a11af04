/* The loss of 4000 tokens over a vocabulary of 1001, which two tensor ranks share.  Logits exist for 64
 * tokens at a time, half a vocabulary on each rank (memo_sp.h, chapter 9).
 *
 * Build:  cc -std=c99 -I. examples/17_loss_in_tiles.c -o 17_loss_in_tiles -lpthread -lm
 * Prints:
 *   all logits have 15640 KiB; a rank holds 125 KiB of them and sends 8 bytes a token
 *   loss of 3750 labels: 6.909, after a step of the classifier 6.746 */
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include <stdio.h>

#include "thread_ranks.h"

enum { N_RANKS = 2, N_TOKENS = 4000, HIDDEN = 16, VOCABULARY = 1001, TILE = 64 };

static float x[N_TOKENS][HIDDEN]; /* what the last layer gives; whole on each rank */
static int32_t labels[N_TOKENS];

/* A rank's rows of the classifier. */
typedef struct classifier {
    memo_linear linear;
    float weights[VOCABULARY][HIDDEN], d_weights[VOCABULARY][HIDDEN];
    float d_x[N_TOKENS][HIDDEN];
} classifier;

static memo_status logits(void* context, const memo_loss_tile* t, memo_error* error) {
    classifier* c = (classifier*)context;
    return memo_linear_forward(&c->linear, t->stream, x[t->first_row], (float*)t->logits, t->n_rows,
                               error);
}

static memo_status gradients(void* context, const memo_loss_tile* t, memo_error* error) {
    classifier* c = (classifier*)context;
    const float* d_logits = (const float*)t->logits;
    if (memo_linear_backward(&c->linear, t->stream, d_logits, c->d_x[t->first_row], t->n_rows,
                             error))
        return error->status;
    return memo_linear_weights(&c->linear, t->stream, x[t->first_row], d_logits, t->n_rows, error);
}

/* Two evaluations of the loss, with a step of gradient descent in between. */
static memo_status train(thread_rank* r, classifier* c, memo_loss* loss, memo_error* error) {
    memo_loss_tensors tensors = {N_TOKENS, labels, NULL, NULL, 0};
    double sums[2][2] = {{0, 0}, {0, 0}};
    int64_t i, n = c->linear.n_out * HIDDEN;
    tensors.scale = 1.0f / 3750; /* 1 / labels: the gradient of the mean */
    tensors.sums = sums[0];
    if (memo_loss_run(loss, &tensors, error) ||
        memo_all_reduce(r->comm, r->stream, c->d_x, c->d_x, N_TOKENS * HIDDEN, MEMO_TYPE_F32,
                        MEMO_REDUCTION_SUM, error) || /* for the layers before */
        memo_stream_synchronize(r->device, r->stream, error))
        return error->status;
    for (i = 0; i < n; i++) c->weights[0][i] -= 100 * c->d_weights[0][i];
    tensors.scale = 0; /* only the loss */
    tensors.sums = sums[1];
    if (memo_loss_run(loss, &tensors, error) ||
        memo_stream_synchronize(r->device, r->stream, error))
        return error->status;
    if (r->comm->rank == 0)
        printf("loss of %.0f labels: %.3f, after a step of the classifier %.3f\n", sums[0][1],
               sums[0][0] / sums[0][1], sums[1][0] / sums[1][1]);
    return MEMO_STATUS_OK;
}

static memo_status rank_main(thread_rank* r, memo_error* error) {
    memo_loss_desc desc = memo_loss_desc_default();
    classifier* c = (classifier*)calloc(1, sizeof *c);
    memo_loss_sizes sizes;
    memo_loss* loss = NULL;
    memo_status status;
    if (!c) return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no classifier");
    desc.device = r->device;
    desc.stream = r->stream;
    desc.tensor = r->comm;
    desc.vocabulary = VOCABULARY;
    desc.tile_rows = TILE;
    desc.functions.context = c;
    desc.functions.logits = logits;
    desc.functions.gradients = gradients;
    status = memo_loss_desc_get_sizes(&desc, &sizes, error);
    c->linear.functions = memo_host_linear_functions(r->device);
    c->linear.n_in = HIDDEN;
    c->linear.n_out = sizes.n_columns;
    c->linear.weights = c->weights[0]; /* all 0: every token is as likely as another */
    c->linear.d_weights = c->d_weights[0];
    if (!status && r->comm->rank == 0)
        printf("all logits have %d KiB; a rank holds %d KiB of them and sends %d bytes a token\n",
               N_TOKENS * VOCABULARY * 4 / 1024,
               (int)(sizes.tile_rows * sizes.n_columns * 4 / 1024), (int)sizes.sent_bytes_per_row);
    if (!status) status = memo_loss_create(&desc, &loss, error);
    if (!status) status = train(r, c, loss, error);
    memo_loss_destroy(loss);
    free(c);
    return status;
}

int main(void) {
    memo_error error;
    int i, k;
    for (i = 0; i < N_TOKENS; i++) {
        for (k = 0; k < HIDDEN; k++) x[i][k] = (float)(i * (k + 3) % 17) / 17 - 0.5f;
        labels[i] = i % 16 ? i * 7 % VOCABULARY : -1; /* -1: no loss, as for padding */
    }
    if (thread_ranks_run(N_RANKS, rank_main, NULL, &error)) {
        fprintf(stderr, "17_loss_in_tiles: %s\n", error.message);
        return 1;
    }
    return 0;
}
