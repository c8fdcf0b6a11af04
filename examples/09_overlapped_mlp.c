/* 09_overlapped_mlp.c - splits an MLP over two ranks, which are threads of this process.  The
 * all-reduce of one half of the batch runs while the other half computes.
 *
 * The first product is column-parallel, the second row-parallel.  Each rank has half of the width;
 * the output is the sum over both ranks.  The trainer supplies the functions; memo_blocks calls
 * them in order, with all-reduces and events.
 *
 * Build:
 *     cc -std=c99 -O2 -I. -Iexamples examples/09_overlapped_mlp.c -o 09_overlapped_mlp -lpthread -lm
 * Expected output:
 *     forward   compute: F1a F1b end-a end-b
 *     forward   comm:    cF1a cF1b
 *     backward  compute: R1a B1a W1a R1b B1b W1b end-a end-b
 *     backward  comm:    cB1a cB1b
 *     output 5.0, gradients: input 5.0, weights 8.0 and 16.0
 */
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include "extras/memo_look.h"

#include <stdio.h>
#include "linear_layers.h"
#include "thread_ranks.h"

#define N_RANKS 2
#define N_PARTS 2
#define ROWS    4 /* of a part */
#define HIDDEN  4
#define WIDTH   (8 / N_RANKS) /* of this rank */

typedef struct mlp {
    memo_device* device;
    linear_layer up, down;
    float up_weights[WIDTH * HIDDEN], down_weights[HIDDEN * WIDTH];
    float d_up[WIDTH * HIDDEN], d_down[HIDDEN * WIDTH];
    float x[N_PARTS][ROWS * HIDDEN], out[N_PARTS][ROWS * HIDDEN], d[N_PARTS][ROWS * HIDDEN];
    float y[N_PARTS][ROWS * HIDDEN], g[N_PARTS][ROWS * HIDDEN]; /* to be reduced */
    float act[N_PARTS][ROWS * WIDTH], d_act[N_PARTS][ROWS * WIDTH];
} mlp;

/* ---- functions on the stream, besides the products ---- */

typedef struct rows {
    float* to;
    const float* from;
    int n;
} rows;
static memo_status relu_run(void* args, memo_error* error) {
    rows* r = (rows*)args;
    for (int i = 0; i < r->n; i++) r->to[i] = r->to[i] > 0 ? r->to[i] : 0;
    (void)error;
    return MEMO_STATUS_OK;
}
static memo_status relu_backward_run(void* args, memo_error* error) {
    rows* r = (rows*)args;
    for (int i = 0; i < r->n; i++) r->to[i] = r->from[i] > 0 ? r->to[i] : 0;
    (void)error;
    return MEMO_STATUS_OK;
}
static memo_status add_run(void* args, memo_error* error) {
    rows* r = (rows*)args;
    for (int i = 0; i < r->n; i++) r->to[i] += r->from[i];
    (void)error;
    return MEMO_STATUS_OK;
}
static memo_status launch(mlp* m, memo_stream stream, memo_host_function function, float* to,
                          const float* from, int n, memo_error* error) {
    rows args = {to, from, n};
    return memo_host_device_launch(m->device, stream, function, &args, sizeof args, error);
}

/* ---- the block ---- */

static memo_status recompute(void* context, const memo_block_call* call, memo_error* error) {
    mlp* m = (mlp*)context;
    int s = call->part;
    if (linear_forward(&m->up, call->stream, m->x[s], m->act[s], ROWS, error)) return error->status;
    return launch(m, call->stream, relu_run, m->act[s], NULL, ROWS * WIDTH, error);
}
static memo_status forward(void* context, const memo_block_call* call, memo_error* error) {
    mlp* m = (mlp*)context;
    int s = call->part;
    if (recompute(context, call, error)) return error->status;
    return linear_forward(&m->down, call->stream, m->act[s], m->y[s], ROWS, error);
}
static memo_status backward(void* context, const memo_block_call* call, memo_error* error) {
    mlp* m = (mlp*)context;
    int s = call->part;
    if (linear_backward(&m->down, call->stream, m->d[s], m->d_act[s], ROWS, error) ||
        launch(m, call->stream, relu_backward_run, m->d_act[s], m->act[s], ROWS * WIDTH, error))
        return error->status;
    return linear_backward(&m->up, call->stream, m->d_act[s], m->g[s], ROWS, error);
}
static memo_status weights(void* context, const memo_block_call* call, memo_error* error) {
    mlp* m = (mlp*)context;
    int s = call->part;
    if (linear_weights(&m->down, call->stream, m->act[s], m->d[s], ROWS, error))
        return error->status;
    return linear_weights(&m->up, call->stream, m->x[s], m->d_act[s], ROWS, error);
}
static memo_status forward_end(void* context, const memo_block_call* call, memo_error* error) {
    mlp* m = (mlp*)context;
    int s = call->part;
    return launch(m, call->stream, add_run, m->out[s], m->y[s], ROWS * HIDDEN, error);
}
static memo_status backward_end(void* context, const memo_block_call* call, memo_error* error) {
    mlp* m = (mlp*)context;
    int s = call->part;
    return launch(m, call->stream, add_run, m->d[s], m->g[s], ROWS * HIDDEN, error);
}

/* ---- one rank ---- */

static memo_status print_order(const memo_blocks_schedule_desc* desc, int is_backward,
                               memo_error* error) {
    const int32_t passes = is_backward ? MEMO_BLOCKS_BACKWARD : MEMO_BLOCKS_FORWARD;
    memo_schedule* schedule;
    memo_status status =
        memo_blocks_generate(desc, NULL, passes | MEMO_BLOCKS_WEIGHTS, &schedule, error);
    for (int stream = 0; stream < 2 && !status; stream++) {
        printf("%-9s %s", is_backward ? "backward" : "forward", stream ? "comm:   " : "compute:");
        for (int64_t i = 0; i < schedule->n_ops; i++)
            if (schedule->ops[i].kind == MEMO_OP_RUN && schedule->ops[i].stream == stream)
                printf(" %s", memo_schedule_op_name(schedule, i));
        printf("\n");
    }
    memo_schedule_destroy(schedule);
    return status;
}

static void fill(float* to, int n, float value) {
    for (int i = 0; i < n; i++) to[i] = value;
}

static memo_status train(thread_rank* rank, memo_error* error) {
    static mlp all[N_RANKS];
    mlp* m = &all[rank->comm->rank];
    memo_blocks_desc desc = {0};
    memo_block_buffers buffers[N_PARTS];
    memo_blocks* blocks;
    memo_status status;

    /* Both products, with this rank's half of the weights. */
    m->device = rank->device;
    m->up.device = m->down.device = rank->device;
    m->up.split = LINEAR_COLUMN;
    m->down.split = LINEAR_ROW;
    m->up.n_in = m->down.n_out = HIDDEN;
    m->up.n_out = m->down.n_in = WIDTH;
    m->up.weights = m->up_weights;
    m->up.d_weights = m->d_up;
    m->down.weights = m->down_weights;
    m->down.d_weights = m->d_down;
    fill(m->up_weights, WIDTH * HIDDEN, 0.5f);
    fill(m->down_weights, HIDDEN * WIDTH, 0.25f);

    /* The parts of the batch. */
    memset(buffers, 0, sizeof buffers);
    for (int s = 0; s < N_PARTS; s++) {
        fill(m->x[s], ROWS * HIDDEN, 1);
        fill(m->out[s], ROWS * HIDDEN, 1); /* x, to which y is added */
        fill(m->d[s], ROWS * HIDDEN, 1);   /* gradient of the output */
        buffers[s].output = m->y[s];
        buffers[s].gradient = m->g[s];
        buffers[s].count = ROWS * HIDDEN;
    }

    /* The block with its functions. */
    desc.device = rank->device;
    desc.compute_stream = rank->stream;
    desc.comm = rank->comm;
    desc.schedule.order = MEMO_BLOCKS_FINE;
    desc.schedule.n_blocks = desc.schedule.blocks_per_layer = 1;
    desc.schedule.n_parts = N_PARTS;
    desc.buffers = buffers;
    desc.functions.context = m;
    desc.functions.forward = forward;
    desc.functions.recompute = recompute;
    desc.functions.backward = backward;
    desc.functions.weights = weights;
    desc.functions.forward_end = forward_end;
    desc.functions.backward_end = backward_end;

    status = memo_blocks_create(&desc, &blocks, error);
    if (status) return status;
    status = memo_blocks_forward(blocks, MEMO_ALL_LAYERS, error);
    if (!status) status = memo_blocks_backward(blocks, MEMO_ALL_LAYERS, error);
    if (!status) status = memo_stream_synchronize(rank->device, rank->stream, error);

    if (!status && rank->comm->rank == 0) {
        status = print_order(&desc.schedule, 0, error);
        if (!status) status = print_order(&desc.schedule, 1, error);
        printf("output %.1f, gradients: input %.1f, weights %.1f and %.1f\n", m->out[1][0],
               m->d[1][0], m->d_up[0], m->d_down[0]);
    }

    memo_blocks_destroy(blocks);
    return status;
}

int main(void) {
    memo_error error;
    memo_status status = thread_ranks_run(N_RANKS, train, NULL, &error);
    if (status) fprintf(stderr, "09_overlapped_mlp: %s\n", error.message);
    return status ? 1 : 0;
}
