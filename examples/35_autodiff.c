/* 35_autodiff.c - a small automatic differentiation whose tensors lie in an arena, and whose saved
 * tensors go through hooks: one budget for both.
 *
 * A graph of operations is made once: layers x += tanh(x W), and a loss.  A step runs them forward,
 * then backward.  An array is freed after its last use; an array that the backward reads is packed
 * after its last use in the forward, and freed if memo has taken it.  memo_hooks_fit runs the step
 * dry, and plans the arena and the hooks.  The last run is checked.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/35_autodiff.c -o 35_autodiff -lpthread -lm
 * Expected output:
 *     all memory: arena 4608 KiB + places 0 KiB, 0 KiB move each way
 *     2 MiB: arena ... KiB + places ... KiB, ... KiB move each way; gradients bitwise the same
 *     1.25 MiB: arena ... KiB + places ... KiB, ... KiB move each way; gradients bitwise the same
 *     checked: arena ... KiB + places ... KiB, ... KiB move each way; gradients bitwise the same
 *     200 KiB: memo_hooks_fit: device_bytes: too small (204800); ... are enough
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_HOOKS_IMPLEMENTATION
#include "memo_plan.h"
#include "extras/memo_hooks.h"
#include <stdio.h>
#include <stdlib.h>

enum { L = 16, T = 1024, C = 32, N = T * C, N_NODES = 3 * L + 2, BYTES = 4 * N };
typedef enum op { INPUT, LINEAR, TANH, ADD, LOSS } op;

/* An operation and the array that it makes, (T, C).  Of uses: in the forward, as an input; in the
 * backward, of its value. */
typedef struct node {
    op op;
    int a, b, layer;           /* inputs: nodes */
    int n_uses, n_saved;       /* of the graph */
    int uses_left, saved_left; /* of this step */
    float *x, *g;              /* value; gradient, NULL: none yet */
    int64_t token;
} node;

typedef struct trainer {
    node nodes[N_NODES];
    int n_nodes, computes;             /* 0: a dry run */
    float w[L * C * C], dw[L * C * C]; /* (L, C, C) */
    memo_hooks* hooks;
    memo_arena* arena;
    memo_error* error;
    memo_status status; /* the first error; later calls do nothing */
} trainer;

static int add_node(trainer* r, op o, int a, int b, int layer) {
    const node n = {o, a, b, layer, 0, 0, 0, 0, NULL, NULL, 0};
    r->nodes[a].n_uses += o != INPUT;
    r->nodes[b].n_uses += o == ADD;
    r->nodes[r->n_nodes] = n;
    /* The backward of a product and of the loss reads the input, that of tanh its own value. */
    r->nodes[a].n_saved += o == LINEAR || o == LOSS;
    r->nodes[r->n_nodes].n_saved += o == TANH;
    return r->n_nodes++;
}

static float* take(trainer* r) {
    void* address = NULL;
    if (!r->status) r->status = memo_arena_alloc(r->arena, BYTES, 0, &address, r->error);
    return (float*)address;
}
static void drop(trainer* r, float* x) {
    if (!r->status && x) r->status = memo_arena_free(r->arena, x, r->error);
}

/* After the last use in the forward: saved for the backward, or freed. */
static void leave(trainer* r, node* n) {
    if (--n->uses_left > 0 || r->status) return;
    if (n->n_saved) r->status = memo_hooks_pack(r->hooks, n->x, BYTES, &n->token, r->error);
    if (n->n_saved && n->token < 0) return; /* ours until its last backward */
    drop(r, n->x);
    n->x = NULL;
}

static void forward(trainer* r, node* n) {
    const float *a = r->nodes[n->a].x, *b = r->nodes[n->b].x;
    float* x = n->x = take(r);
    n->uses_left = n->n_uses, n->saved_left = n->n_saved, n->g = NULL;
    for (int i = 0; i < N && r->computes && !r->status; i++) {
        const int row = i / C * C;
        if (n->op == INPUT) x[i] = sinf((float)i);
        if (n->op == TANH) x[i] = tanhf(a[i]);
        if (n->op == ADD) x[i] = a[i] + b[i];
        if (n->op == LOSS) x[i] = a[i] * a[i] / N;
        if (n->op == LINEAR) x[i] = 0;
        for (int k = 0; k < C && n->op == LINEAR; k++)
            x[i] += a[row + k] * r->w[(n->layer * C + k) * C + i % C];
    }
    if (n->op != INPUT) leave(r, &r->nodes[n->a]);
    if (n->op == ADD) leave(r, &r->nodes[n->b]);
}

/* Adds to the gradient of an input; the first time the gradient begins. */
static float* gradient(trainer* r, node* of) {
    if (of->g) return of->g;
    of->g = take(r);
    if (r->computes && !r->status) memset(of->g, 0, BYTES);
    return of->g;
}

static void backward(trainer* r, node* n) {
    node* saved = n->op == TANH ? n : n->op == LINEAR || n->op == LOSS ? &r->nodes[n->a] : NULL;
    void* address = NULL;
    float *da, *db = NULL;
    if (n->op == INPUT) return;
    if (saved && !r->status)
        r->status = memo_hooks_unpack(r->hooks, &saved->token, 1, &address, r->error);
    da = gradient(r, &r->nodes[n->a]);
    if (n->op == ADD) db = gradient(r, &r->nodes[n->b]);
    for (int i = 0; i < N && r->computes && !r->status; i++) {
        const float *x = (float*)address, *row = x ? x + i / C * C : NULL;
        const float d = n->g ? n->g[i] : 1;
        if (n->op == ADD) da[i] += d, db[i] += d;
        if (n->op == TANH) da[i] += d * (1 - x[i] * x[i]);
        if (n->op == LOSS) da[i] += 2 * x[i] / N;
        for (int k = 0; k < C && n->op == LINEAR; k++) {
            r->dw[(n->layer * C + k) * C + i % C] += row[k] * d;
            da[i / C * C + k] += r->w[(n->layer * C + k) * C + i % C] * d;
        }
    }
    drop(r, n->g);
    if (saved && --saved->saved_left == 0 && saved->token < 0) drop(r, saved->x);
}

static memo_status step(void* user, memo_arena* arena, memo_error* error) {
    trainer* r = (trainer*)user;
    r->arena = arena, r->error = error;
    r->status = memo_arena_begin(arena, error);
    if (!r->status) r->status = memo_hooks_begin(r->hooks, error);
    for (int i = 0; i < r->n_nodes; i++) {
        if (!r->status) r->status = memo_hooks_set_layer(r->hooks, r->nodes[i].layer, error);
        forward(r, &r->nodes[i]);
    }
    for (int i = r->n_nodes - 1; i >= 0; i--) backward(r, &r->nodes[i]);
    if (!r->status) r->status = memo_hooks_end(r->hooks, error);
    return r->status ? r->status : memo_arena_end(arena, error);
}

/* Three steps in a budget. */
static memo_status train(trainer* r, int64_t device_bytes, int is_checked, memo_error* error) {
    memo_host_device_desc host = {0};
    memo_hooks_desc hooks = {0};
    memo_arena_desc desc = {0};
    memo_hooks_stats stats;
    memo_device* device = NULL;
    memo_arena* arena = NULL;
    memo_plan* plan = NULL;
    memo_status status = memo_host_device_create(&host, &device, error);
    hooks.device = device, hooks.computes_on_host = 1, hooks.is_checked = is_checked;
    if (!status) status = memo_hooks_create(&hooks, &r->hooks, error);
    r->computes = 0;
    if (!status) status = memo_hooks_fit(r->hooks, step, r, device_bytes, &plan, error);

    desc.device = device, desc.plan = plan, desc.is_checked = is_checked;
    r->computes = 1;
    if (!status) status = memo_arena_create(&desc, &arena, error);
    for (int i = 0; i < 3 && !status; i++) {
        memset(r->dw, 0, sizeof r->dw);
        status = step(r, arena, error);
        for (int k = 0; k < L * C * C; k++) r->w[k] -= r->dw[k];
    }
    if (!status) {
        memo_hooks_get_stats(r->hooks, &stats);
        printf("arena %d KiB + places %d KiB, %d KiB move each way", (int)(plan->peak_bytes >> 10),
               (int)(stats.swap.device_bytes >> 10), (int)(stats.swap.swapped_bytes >> 10));
    }
    memo_arena_destroy(arena);
    memo_plan_destroy(plan);
    memo_hooks_destroy(r->hooks);
    memo_host_device_destroy(device);
    return status;
}

static trainer* new_trainer(void) {
    trainer* r = (trainer*)calloc(1, sizeof *r);
    int x;
    if (!r) abort();
    for (int k = 0; k < L * C * C; k++) r->w[k] = 0.1f * cosf((float)k);
    x = add_node(r, INPUT, 0, 0, -1);
    for (int l = 0; l < L; l++) {
        const int h = add_node(r, TANH, add_node(r, LINEAR, x, 0, l), 0, l);
        x = add_node(r, ADD, x, h, l);
    }
    add_node(r, LOSS, x, 0, -1);
    return r;
}

int main(void) {
    static const struct {
        const char* name;
        int64_t device_bytes;
        int is_checked;
    } runs[] = {{"all memory", (int64_t)1 << 30, 0},
                {"2 MiB", 2 << 20, 0},
                {"1.25 MiB", 5 << 18, 0},
                {"checked", 5 << 18, 1},
                {"200 KiB", 200 << 10, 0}};
    trainer* first = NULL;
    memo_error error;
    for (int i = 0; i < 5; i++) {
        trainer* r = new_trainer();
        printf("%s: ", runs[i].name);
        if (train(r, runs[i].device_bytes, runs[i].is_checked, &error))
            printf("%s", error.message);
        else if (first)
            printf("; gradients %s",
                   memcmp(first->dw, r->dw, sizeof r->dw) ? "differ" : "bitwise the same");
        printf("\n");
        if (!first)
            first = r;
        else
            free(r);
    }
    free(first);
    return 0;
}
