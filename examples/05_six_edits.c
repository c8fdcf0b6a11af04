/* 05_six_edits.c - memo in a trainer shaped like llm.c.  The edits are numbered; the rest was there.
 *
 * The trainer is a stack of MLP blocks, out = inp + gelu(inp W1) W2.  Its activations were one array,
 * acts + l * size; its layers were calls in two loops.  It runs twice, keeping and swapping.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/05_six_edits.c -o 05_six_edits -lpthread -lm
 * Expected output:
 *     keep everything: device 4736 KiB, host 0 KiB
 *     half the rows:   device 1024 KiB, host 1920 KiB; gradients bitwise the same
 */
#define MEMO_IMPLEMENTATION /* Edit 1: include memo. */
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include <stdio.h>

enum { L = 8, T = 512, C = 32, TILE = 64 }; /* layers, tokens, channels, rows of one product */
static float params[L][2][4 * C * C], grads[L][2][4 * C * C]; /* W1 (C, 4C) and W2 (4C, C) */

/* Edit 2: describe a layer's activations; they were float* acts, 9 C a token. */
enum { INP, HIDDEN, GELU, N_ACTS };
static memo_swap_tensor acts[N_ACTS] = {{"inp", 4 * C, MEMO_SWAP_WHOLE, 0},     /* (T, C) */
                                        {"hidden", 16 * C, MEMO_SWAP_SPLIT, 0}, /* (T, 4C) */
                                        {"gelu", 16 * C, MEMO_SWAP_SPLIT, 0}};  /* (T, 4C) */
#define ROW(a, act, t) ((float*)memo_swap_row(&(a)->view[act], t)) /* was acts + t * width */

typedef struct args { /* of a kernel */
    int l;
    float *out, *dout, *scratch; /* (T, C): between layers; (TILE, 4C) */
    memo_swap_view view[N_ACTS];
    int64_t begin, end; /* rows of hidden and gelu to compute again */
} args;

static void matmul(float* out, const float* a, const float* b, int rows, int k, int n) {
    for (int r = 0; r < rows; r++) /* out (rows, n) += a (rows, k) b (k, n) */
        for (int i = 0; i < k; i++)
            for (int j = 0; j < n; j++) out[r * n + j] += a[r * k + i] * b[i * n + j];
}

static void mlp_hidden(const args* a, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t += TILE) {
        float *hidden = ROW(a, HIDDEN, t), *gelu = ROW(a, GELU, t);
        memset(hidden, 0, TILE * 4 * C * sizeof(float));
        matmul(hidden, ROW(a, INP, t), params[a->l][0], TILE, C, 4 * C);
        for (int i = 0; i < TILE * 4 * C; i++) gelu[i] = hidden[i] / (1 + expf(-hidden[i]));
    }
}

static memo_status layer_forward(void* arguments, memo_error* error) {
    const args* a = (const args*)arguments;
    (void)error;
    for (int t = 0; t < T; t++) memcpy(ROW(a, INP, t), a->out + t * C, C * sizeof(float));
    mlp_hidden(a, 0, T);
    for (int t = 0; t < T; t += TILE)
        matmul(a->out + t * C, ROW(a, GELU, t), params[a->l][1], TILE, 4 * C, C);
    return MEMO_STATUS_OK;
}

static memo_status layer_backward(void* arguments, memo_error* error) {
    const args* a = (const args*)arguments;
    (void)error;
    mlp_hidden(a, a->begin, a->end); /* Edit 3: recompute the rows that were not swapped. */
    for (int t = 0; t < T; t++) {
        float *dout = a->dout + t * C, *dhidden = a->scratch;
        const float *inp = ROW(a, INP, t), *hidden = ROW(a, HIDDEN, t), *gelu = ROW(a, GELU, t);
        for (int j = 0; j < 4 * C; j++) {
            float s = 1 / (1 + expf(-hidden[j])), sum = 0;
            for (int c = 0; c < C; c++) {
                sum += dout[c] * params[a->l][1][j * C + c];
                grads[a->l][1][j * C + c] += gelu[j] * dout[c];
            }
            dhidden[j] = sum * s * (1 + hidden[j] * (1 - s));
        }
        for (int c = 0; c < C; c++)
            for (int j = 0; j < 4 * C; j++) {
                dout[c] += dhidden[j] * params[a->l][0][c * 4 * C + j];
                grads[a->l][0][c * 4 * C + j] += dhidden[j] * inp[c];
            }
    }
    return MEMO_STATUS_OK;
}

static memo_status first_input(void* arguments, memo_error* error) { /* and the loss's gradient */
    const args* a = (const args*)arguments;
    (void)error;
    for (int i = 0; i < T * C; i++) a->out[i] = sinf((float)i), a->dout[i] = 1.0f / T;
    return MEMO_STATUS_OK;
}

/* A step.  Edit 4: buffers come from the arena; they were malloced.  Without an engine it is a dry
 * run: requests are recorded, nothing is computed. */
static memo_status step(memo_arena* arena, memo_swap* swap, memo_device* device, memo_stream stream,
                        memo_error* e) {
    void *out = NULL, *dout = NULL, *scratch = NULL;
    args a = {0, NULL, NULL, NULL, {{NULL, NULL, 0, 0}}, 0, 0};
    memo_status status = memo_arena_begin(arena, e);
    if (!status) status = memo_arena_alloc(arena, T * C * sizeof(float), 0, &out, e);
    if (!status) status = memo_arena_alloc(arena, T * C * sizeof(float), 0, &dout, e);
    a.out = (float*)out, a.dout = (float*)dout;
    if (!status && swap)
        status = memo_host_device_launch(device, stream, first_input, &a, sizeof a, e);
    for (int k = 0; k < 2 * L && !status; k++) { /* layers 0, 1, ..., L - 1, and back */
        int is_backward = k >= L;
        a.l = is_backward ? 2 * L - 1 - k : k;
        if (is_backward) status = memo_arena_alloc(arena, 4 * C * sizeof(float), 0, &scratch, e);
        a.scratch = (float*)scratch;
        if (swap && !status) {
            for (int i = 0; i < N_ACTS; i++) a.view[i] = memo_swap_get_view(swap, a.l, i);
            memo_swap_recompute_rows(swap, a.l, HIDDEN, &a.begin, &a.end);
            /* Edit 5: bracket each layer. */
            status = is_backward ? memo_swap_backward_begin(swap, a.l, e)
                                 : memo_swap_forward_begin(swap, a.l, e);
            if (!status)
                status = memo_host_device_launch(
                    device, stream, is_backward ? layer_backward : layer_forward, &a, sizeof a, e);
            if (!status)
                status = is_backward ? memo_swap_backward_end(swap, a.l, e)
                                     : memo_swap_forward_end(swap, a.l, e);
        }
        if (is_backward && !status) status = memo_arena_free(arena, scratch, e);
    }
    if (!status) status = memo_arena_free(arena, out, e);
    if (!status) status = memo_arena_free(arena, dout, e);
    return status ? status : memo_arena_end(arena, e);
}

/* Edit 6: before training, run a step dry and plan it; then make arena and engine, and train. */
static memo_status plan_step(const memo_swap_sizes* sizes, memo_plan** plan, memo_error* e) {
    memo_arena_desc desc = memo_arena_desc_default();
    memo_trace* trace = NULL;
    memo_arena* arena = NULL;
    void* buffers;
    memo_status status = memo_trace_create(&trace, e);
    desc.trace = trace; /* and no device: a dry run */
    if (!status) status = memo_arena_create(&desc, &arena, e);
    if (!status) status = memo_arena_alloc(arena, sizes->device_bytes, 0, &buffers, e);
    if (!status) status = step(arena, NULL, NULL, NULL, e);
    if (!status) status = memo_plan_from_trace(trace, 0, plan, e);
    if (!status) status = memo_plan_solve(*plan, NULL, e);
    memo_arena_destroy(arena);
    memo_trace_destroy(trace);
    return status;
}

static memo_status train(memo_swap_desc* desc, int n_steps, const char* name, memo_error* e) {
    memo_host_device_desc device_desc = memo_host_device_desc_default();
    memo_arena_desc arena_desc = memo_arena_desc_default();
    memo_device* device = NULL;
    memo_plan* plan = NULL;
    memo_arena* arena = NULL;
    memo_swap* swap = NULL;
    memo_stream stream = NULL;
    memo_swap_sizes sizes;
    memo_status status = memo_swap_get_sizes(desc, &sizes, e);
    if (!status) status = plan_step(&sizes, &plan, e);
    if (!status) status = memo_host_device_create(&device_desc, &device, e);
    if (!status) status = memo_stream_create(device, "compute", 0, &stream, e);
    arena_desc.device = desc->device = device;
    arena_desc.plan = plan;
    desc->compute_stream = stream;
    if (!status) status = memo_arena_create(&arena_desc, &arena, e);
    if (!status) status = memo_arena_alloc(arena, sizes.device_bytes, 0, &desc->device_memory, e);
    if (!status) status = memo_swap_create(desc, &swap, e);
    memset(grads, 0, sizeof grads);
    for (int i = 0; i < n_steps && !status; i++) status = step(arena, swap, device, stream, e);
    if (stream && memo_stream_synchronize(device, stream, status ? NULL : e) && !status)
        status = e->status;
    if (!status)
        printf("%s device %d KiB, host %d KiB", name,
               (int)(memo_host_device_get_stats(device).device_peak_bytes >> 10),
               (int)(memo_host_device_get_stats(device).host_peak_bytes >> 10));
    memo_swap_destroy(swap);
    memo_arena_destroy(arena);
    memo_plan_destroy(plan);
    memo_host_device_destroy(device);
    return status;
}

int main(void) {
    static float kept[L][2][4 * C * C];
    float* p = &params[0][0][0];
    memo_swap_desc desc = memo_swap_desc_default();
    memo_error error;
    for (int i = 0; i < L * 2 * 4 * C * C; i++) p[i] = 0.05f * cosf(37.0f * (float)i);
    desc.tensors = acts;
    desc.n_tensors = N_ACTS;
    desc.n_layers = L;
    desc.n_rows = T;
    desc.tile_rows = TILE;
    desc.alpha = 0.5;
    desc.n_resident_layers = L; /* all of them: keep everything */
    if (train(&desc, 3, "keep everything:", &error)) goto failed;
    printf("\n");
    memcpy(kept, grads, sizeof kept);
    desc.n_resident_layers = 1;
    if (train(&desc, 3, "half the rows:  ", &error)) goto failed;
    printf("; gradients %s\n", memcmp(kept, grads, sizeof kept) ? "differ" : "bitwise the same");
    return memcmp(kept, grads, sizeof kept) != 0;
failed:
    fprintf(stderr, "05_six_edits: %s\n", error.message);
    return 1;
}
