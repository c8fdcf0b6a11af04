/* test_mistakes.c - what porters got wrong with an arena and hooks, planted one at a time: when
 * checked, each is named, makes the result NaN, or changes nothing.  test_session_mistakes has those
 * of sessions. */
#include "scarce.h"
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_HOOKS_IMPLEMENTATION
#include "memo_plan.h"
#include "extras/memo_hooks.h"
#include "owned.h"

static void drop_hooks(memo_hooks** hooks) { memo_hooks_destroy(*hooks); }

/* Each with how it comes out. */
#define MISTAKES(X)                                                                                \
    X(NONE, "right")                                                                               \
    X(FREED_TOO_EARLY_IN_THE_FORWARD, "NaN")                                                       \
    X(FREED_TOO_EARLY_IN_THE_BACKWARD, "NaN")                                                      \
    X(REQUESTS_IN_ANOTHER_ORDER, "record and plan again")                                          \
    X(FREED_TWICE, "free each buffer once")                                                        \
    X(OUTPUT_FREED, "NaN")                                                                         \
    X(REQUESTS_OF_ANOTHER_THREAD, "record and plan again")                                         \
    X(TAKEN_FOR_ZERO, "NaN")                                                                       \
    X(NUMBERS_FOR_BYTES, "behind its end; its size is too small, or was given in numbers")         \
    X(PERSISTENT_INSIDE_THE_STEP, "record and plan again")                                         \
    X(REQUEST_DEPENDS_ON_DATA, "record and plan again")                                            \
    X(PACKED_TOO_EARLY, "is computed from bytes of a tensor")                                      \
    X(KEPT_TENSOR_FREED, "changed between forward and backward")                                   \
    X(OWNERS_ADDRESS_KEPT, "NaN")                                                                  \
    X(NEVER_UNPACKED, "was never unpacked")                                                        \
    X(LAYERS_IN_ANOTHER_ORDER, "out of order (3); layer 2 is next")                                \
    X(SET_LAYER_FORGOTTEN, "Tensor 2 of layer 1 is not as planned")                                \
    X(OPERATOR_UNPACKS_TWO_LAYERS, "NaN")                                                          \
    X(PACKED_TWICE, "is computed from bytes of a tensor")                                          \
    X(TOKEN_OF_THE_STEP_BEFORE, "token: not of this micro-batch")                                  \
    X(BYTES_CHANGE_BETWEEN_STEPS, "is not as planned: its owner keeps it")                         \
    X(PACK_OUTSIDE_OF_A_STEP, "no micro-batch is open")
#define NAME_OF(name, outcome) name,
typedef enum mistake { MISTAKES(NAME_OF) N_MISTAKES } mistake;
#undef NAME_OF

enum { L = 8, N = 64, BYTES = 4 * N };

typedef struct trainer {
    memo_hooks* hooks;
    mistake m;
    int computes, layer; /* the layer with the mistake: one that moves, or one that is kept */
    int64_t old[L][2];   /* tokens of the step before */
    float w, dw[L];
    memo_error first; /* the first error, or line of the log */
} trainer;

static void keep_line(void* user, const char* message) {
    trainer* r = (trainer*)user;
    if (!r->first.message[0]) snprintf(r->first.message, sizeof r->first.message, "%s", message);
}

static void keep(trainer* r, memo_status status, const memo_error* e) {
    if (status) keep_line(r, e->message);
}
#define KEEP(call) keep(r, call, &e)

static float* take(trainer* r, memo_arena* arena, int64_t size_bytes) {
    static float nowhere[4 * N]; /* a refused request: the porter's program would stop */
    memo_error e;
    void* address = NULL;
    KEEP(memo_arena_alloc(arena, size_bytes, 0, &address, &e));
    return address ? (float*)address : nowhere;
}

/* x += tanh(w x) in each layer; the gradient of the sum of the last x. */
static float step(trainer* r, memo_arena* arena) {
    int64_t tokens[L][2], extra;
    float *own[L][2], *x, *g, *out, result;
    memo_error e;
    KEEP(memo_arena_begin(arena, &e));
    KEEP(memo_hooks_begin(r->hooks, &e));
    x = take(r, arena, BYTES);
    for (int i = 0; i < N && r->computes; i++) x[i] = 0.01f * (float)i;

    for (int l = 0; l < L; l++) {
        const mistake m = l == r->layer ? r->m : NONE;
        float *s, *u, *y = NULL;
        if (m == LAYERS_IN_ANOTHER_ORDER) KEEP(memo_hooks_set_layer(r->hooks, l + 1, &e));
        if (m != SET_LAYER_FORGOTTEN) KEEP(memo_hooks_set_layer(r->hooks, l, &e));
        if (m == REQUESTS_IN_ANOTHER_ORDER) y = take(r, arena, 2 * BYTES);
        if (m == REQUESTS_OF_ANOTHER_THREAD) (void)take(r, arena, 3 * BYTES);
        if (m == PERSISTENT_INSIDE_THE_STEP) (void)take(r, arena, 100000);
        s = take(r, arena, m == REQUEST_DEPENDS_ON_DATA ? 7 * BYTES : BYTES);
        if (m == PACKED_TOO_EARLY) KEEP(memo_hooks_pack(r->hooks, s, BYTES, &tokens[l][1], &e));
        u = take(r, arena, m == NUMBERS_FOR_BYTES ? N : BYTES);
        if (m != TAKEN_FOR_ZERO && r->computes) memset(u, 0, BYTES);
        if (m == FREED_TOO_EARLY_IN_THE_FORWARD) KEEP(memo_arena_free(arena, u, &e));
        for (int i = 0; i < N && r->computes; i++) u[i] += r->w * x[i], s[i] = tanhf(u[i]);
        if (m != FREED_TOO_EARLY_IN_THE_FORWARD) KEEP(memo_arena_free(arena, u, &e));
        if (m == FREED_TWICE) KEEP(memo_arena_free(arena, u, &e));
        if (!y) y = take(r, arena, 2 * BYTES);
        for (int i = 0; i < N && r->computes; i++) y[i] = x[i] + s[i];

        own[l][0] = x, own[l][1] = s;
        for (int k = 0; k < 2; k++) {
            const int64_t n_bytes = m == BYTES_CHANGE_BETWEEN_STEPS ? BYTES - 8 : BYTES;
            if (m == PACKED_TOO_EARLY && k == 1) continue;
            KEEP(memo_hooks_pack(r->hooks, own[l][k], n_bytes, &tokens[l][k], &e));
            if (m == PACKED_TWICE) KEEP(memo_hooks_pack(r->hooks, own[l][k], BYTES, &extra, &e));
            if (tokens[l][k] >= 0 || m == KEPT_TENSOR_FREED)
                KEEP(memo_arena_free(arena, own[l][k], &e));
        }
        x = y;
    }

    out = take(r, arena, BYTES);
    g = take(r, arena, BYTES);
    for (int i = 0; i < N && r->computes; i++) out[i] = x[i], g[i] = 1;
    KEEP(memo_arena_free(arena, x, &e));
    for (int l = L - 1; l >= 0; l--) {
        const mistake m = l == r->layer ? r->m : NONE;
        const int64_t* of = m == TOKEN_OF_THE_STEP_BEFORE ? r->old[l] : tokens[l];
        void* at[2] = {own[l][0], own[l][1]};
        float* next = take(r, arena, BYTES);
        if (m == NEVER_UNPACKED)
            KEEP(memo_hooks_unpack(r->hooks, of, 1, at, &e));
        else
            KEEP(memo_hooks_unpack(r->hooks, of, 2, at, &e));
        if (m == OPERATOR_UNPACKS_TWO_LAYERS) { /* by three calls, and reads the first after them */
            void* below;
            for (int k = 0; k < 2; k++)
                KEEP(memo_hooks_unpack(r->hooks, &tokens[l - 1][k], 1, &below, &e));
        }
        if (m == OWNERS_ADDRESS_KEPT) at[0] = own[l][0], at[1] = own[l][1];
        if (m == FREED_TOO_EARLY_IN_THE_BACKWARD) KEEP(memo_arena_free(arena, g, &e));
        for (int i = 0; i < N && r->computes; i++) {
            const float *xs = (const float*)at[0], *s = (const float*)at[1];
            const float d = g[i] * (1 - s[i] * s[i]);
            r->dw[l] += d * xs[i];
            next[i] = g[i] + r->w * d;
        }
        if (m != FREED_TOO_EARLY_IN_THE_BACKWARD) KEEP(memo_arena_free(arena, g, &e));
        g = next;
        for (int k = 0; k < 2; k++)
            if (tokens[l][k] < 0 && m != KEPT_TENSOR_FREED)
                KEEP(memo_arena_free(arena, own[l][k], &e));
    }
    KEEP(memo_arena_free(arena, g, &e));
    if (r->m == OUTPUT_FREED) KEEP(memo_arena_free(arena, out, &e));
    KEEP(memo_hooks_end(r->hooks, &e));
    if (r->m == PACK_OUTSIDE_OF_A_STEP) KEEP(memo_hooks_pack(r->hooks, out, 4, &extra, &e));
    KEEP(memo_arena_end(arena, &e));
    memcpy(r->old, tokens, sizeof tokens);

    result = r->computes ? out[1] : 0;
    for (int l = 0; l < L; l++) result += r->dw[l];
    return result;
}

static memo_status dry_step(void* user, memo_arena* arena, MEMO_UNUSED memo_error* e) {
    (void)step((trainer*)user, arena);
    return MEMO_STATUS_OK;
}

/* The result of a step with the mistake, after a step without. */
static float outcome(trainer* r, mistake m, int64_t device_bytes) {
    own_device* host = new_host(0);
    OWNED(drop_hooks) memo_hooks* hooks = NULL;
    own_plan* plan = NULL;
    own_arena* arena = NULL;
    float result = 0;
    memo_hooks_desc desc = {.device = host, .computes_on_host = 1, .is_checked = 1};
    desc.log.write = keep_line, desc.log.user = r;
    CHECK_OK(memo_hooks_create(&desc, &hooks, &error));
    memset(r, 0, sizeof *r);
    r->hooks = hooks;
    r->w = 0.1f;
    CHECK_OK(memo_hooks_fit(hooks, dry_step, r, device_bytes, &plan, &error));
    memo_arena_desc replay = {.device = host, .plan = plan, .is_checked = 1};
    CHECK_OK(memo_arena_create(&replay, &arena, &error));
    r->computes = 1;
    r->layer = m == KEPT_TENSOR_FREED ? L - 3 : 2;
    for (int k = 0; k < 2; k++) {
        r->m = k ? m : NONE;
        memset(r->dw, 0, sizeof r->dw);
        CHECK_CASE(!r->first.message[0], "%s", r->first.message);
        result = step(r, arena);
    }
    return result;
}

TEST(every_mistake_is_named_or_nan_or_harmless) {
#define NAME_OF(name, outcome) {#name, outcome},
    static const struct { const char *name, *outcome; } mistakes[] = {MISTAKES(NAME_OF)};
    trainer r;
    const int64_t budget = 9 << 10;
    const float right = outcome(&r, NONE, budget);
    CHECK_CASE(right > 0 && !r.first.message[0], "%g: %s", (double)right, r.first.message);
    for (int m = 0; m < N_MISTAKES; m++) {
        const float result = outcome(&r, (mistake)m, budget);
        const int is_nan = result != result, is_named = r.first.message[0] != 0;
        IN_CASE("%s: %g, %s", mistakes[m].name, (double)result, r.first.message);
        CHECK(is_named || is_nan || (result >= right && result <= right));
        if (strcmp(mistakes[m].outcome, "NaN") == 0)
            CHECK(is_nan);
        else if (m == NONE)
            CHECK(!is_named && result >= right && result <= right);
        else
            CHECK(strstr(r.first.message, mistakes[m].outcome));
    }
}
