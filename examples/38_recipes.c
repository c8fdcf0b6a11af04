/* 38_recipes.c - optimizers, clipping and loss scales, whenever the plan updates: docs/states.md.
 *
 *     adam            Adam; the rate follows a schedule
 *     clip-layer      each layer clips by its own norm
 *     clip-step       all layers clip by the norm of the step, known when its last backward is over
 *     clip-before     all layers clip by the norm of the step before
 *     overflow-skip   a loss scale: the trainer skips the update of a step that overflows
 *     overflow-flag   a loss scale: the update reads on the device that a gradient has overflowed
 *     tied            the part before the first layer and that behind the last share a table
 *     muon            the update has scratch
 *     moments8        moments of 8 bits: codes and scales
 *     bf16            weights in bf16 without masters, rounded at random
 *
 * Each step has two micro-batches.  Each recipe trains with everything on the device, then in the
 * least budget with each moment of the update (memo_update_at), from a checkpoint in the middle.
 * All runs of a recipe end with the same bits, and memo_session_verify agrees; where a moment is
 * wrong, memo refuses it or names it.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/38_recipes.c -o 38_recipes -lpthread -lm
 * Run, with the names of some recipes, or all:
 *     ./38_recipes
 * Expected output:
 *     adam           pass, deferred, fused: the same bits
 *     clip-layer     pass, deferred, fused: the same bits
 *     clip-step      pass, deferred: the same bits; fused: memo_session_set_update_values: ...
 *     clip-before    pass, deferred, fused: the same bits
 *     overflow-skip  pass, deferred: the same bits; fused: memo_session_skip_update: ...
 *     overflow-flag  pass, deferred: the same bits; fused: memo_session_verify: state `weights`, ...
 *     tied           pass, deferred, fused: the same bits
 *     muon           pass, deferred, fused: the same bits
 *     moments8       pass, deferred, fused: the same bits
 *     bf16           pass, deferred, fused: the same bits
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_CHECK_IMPLEMENTATION
#include "extras/memo_check.h"
#include <stdio.h>

enum { L = 6, T = 32, C = 16, N = 16, W = N * N, BLOCK = 64, V = 16, N_STEPS = 6, N_BATCHES = 2 };
enum { WEIGHTS, GRADS, MOMENTS, VARIANCES, SCALES_M, SCALES_V, N_STATES };
enum { TABLE = 3, D_TABLE, M_TABLE }; /* of the tied table */
static const memo_item acts[] = {MEMO_ITEM("inp", 4 * C, MEMO_MOVE)};
static const memo_state momentum[] = {{"weights", 4 * W, MEMO_STATE_WEIGHTS, 0},
                                      {"grads", 4 * W, MEMO_STATE_GRADIENT, 0},
                                      {"moments", 4 * W, MEMO_STATE_UPDATE, 0}};
static const memo_state adam[] = {{"weights", 4 * W, MEMO_STATE_WEIGHTS, 0},
                                  {"grads", 4 * W, MEMO_STATE_GRADIENT, 0},
                                  {"moments", 4 * W, MEMO_STATE_UPDATE, 0},
                                  {"variances", 4 * W, MEMO_STATE_UPDATE, 0}};
static const memo_state adam8[] = {{"weights", 4 * W, MEMO_STATE_WEIGHTS, 0},
                                   {"grads", 4 * W, MEMO_STATE_GRADIENT, 0},
                                   {"moments", W, MEMO_STATE_UPDATE, 0}, /* codes of 8 bits */
                                   {"variances", W, MEMO_STATE_UPDATE, 0},
                                   {"scales_m", 4 * W / BLOCK, MEMO_STATE_UPDATE, 0},
                                   {"scales_v", 4 * W / BLOCK, MEMO_STATE_UPDATE, 0}};
static const memo_state bf16[] = {{"weights", 2 * W, MEMO_STATE_WEIGHTS, 0},
                                  {"grads", 4 * W, MEMO_STATE_GRADIENT, 0},
                                  {"moments", 4 * W, MEMO_STATE_UPDATE, 0}};

#define ENDS (MEMO_STATE_FIRST | MEMO_STATE_LAST)
static const memo_state tied[] = {
    {"weights", 4 * W, MEMO_STATE_WEIGHTS, 0},
    {"grads", 4 * W, MEMO_STATE_GRADIENT, 0},
    {"moments", 4 * W, MEMO_STATE_UPDATE, 0},
    {"table", 4 * V* C, MEMO_STATE_WEIGHTS | MEMO_STATE_SHARED, ENDS}, /* one copy for both */
    {"d_table", 4 * V* C, MEMO_STATE_GRADIENT | MEMO_STATE_SHARED, ENDS},
    {"m_table", 4 * V* C, MEMO_STATE_UPDATE | MEMO_STATE_SHARED, ENDS}};

/* What the update of a step needs: it comes with the micro-batches of the step, or behind them. */
typedef struct of_step {
    int32_t step; /* from 1 on */
    float rate, clip, loss_scale;
} of_step;

/* The trainer's own, beside states: a checkpoint has it, too. */
static struct own {
    of_step now;
    int32_t batch_number;
    float squares[L], overflows[L]; /* of each layer's gradients; the last backward writes them */
} own;
static float x[T * C], dx[T * C]; /* between layers, (T, C) */

/* Scratch of one update at a time.  It lives as long as the session, so an update finds it at every
 * moment, and its bytes are in the budget. */
static const memo_session_buffer scratch = {.name = "scratch", .size_bytes = 16 * W};
#define SCRATCH(k) ((float*)memo_session_get_buffer(session, 0) + (k)*W)

typedef enum recipe {
    ADAM,
    CLIP_LAYER,
    CLIP_STEP,
    CLIP_BEFORE,
    OVERFLOW_SKIP,
    OVERFLOW_FLAG,
    TIED,
    MUON,
    MOMENTS8,
    BF16,
    N_RECIPES
} recipe;
static recipe now;

#define STATE(l, state) ((float*)memo_session_get_state(session, l, state))

/* ---- passes ------------------------------------------------------------------------------------ */

static float float_of(uint16_t half) {
    const uint32_t word = (uint32_t)half << 16;
    float f;
    memcpy(&f, &word, sizeof f);
    return f;
}

static const float* weights_of(memo_session* session, int32_t l) {
    static float unpacked[W];
    const void* w = memo_session_get_state(session, l, WEIGHTS);
    for (int i = 0; i < W && now == BF16; i++) unpacked[i] = float_of(((const uint16_t*)w)[i]);
    return now == BF16 ? unpacked : (const float*)w;
}

/* Row r of a micro-batch has token r; the next micro-batch has other rows. */
static float* row_of(float* table, int r) { return table + (r * 7 + own.batch_number) % V * C; }

static void forward(void* user, memo_session* session, int32_t l) {
    float* inp = memo_session_get_address(session, l, 0);
    const float* w = weights_of(session, l);
    float* table = now == TIED && l == 0 ? STATE(MEMO_LAYER_FIRST, TABLE) : NULL;
    for (int i = 0; i < T * C && l == 0; i++)
        x[i] = table ? row_of(table, i / C)[i % C] : sinf(0.3f * (float)(i + own.batch_number));
    memcpy(inp, x, sizeof x);
    for (int i = 0; i < T * C; i++) x[i] += tanhf(inp[i] * w[i % W]);
    (void)user;
}

/* Adds up what the last micro-batch leaves of this layer.  It writes, and never adds: an update that
 * is deferred still reads the numbers of the step before, until the first backward. */
static void measure(const float* g, int32_t l) {
    own.squares[l] = own.overflows[l] = 0;
    for (int i = 0; i < W; i++) {
        own.squares[l] += g[i] * g[i];
        if (!(fabsf(g[i]) <= 65504)) own.overflows[l] = 1; /* the largest number in f16 */
    }
}

static void between(void* user, memo_session* session) {
    float *table = now == TIED ? STATE(L, TABLE) : NULL, *d_table = table;
    int overflows = 0;
    if (table) d_table = STATE(L, D_TABLE);                        /* zero when a step begins */
    for (int l = 0; l < L; l++) overflows += own.overflows[l] > 0; /* in the step before */
    if (now == OVERFLOW_FLAG && overflows && own.batch_number % N_BATCHES == 0)
        own.now.loss_scale /= 16;
    for (int i = 0; i < T * C; i++) {
        dx[i] = x[i] * own.now.loss_scale;
        if (table) dx[i] -= row_of(table, T - 1 - i / C)[i % C];
        if (table) row_of(d_table, T - 1 - i / C)[i % C] -= dx[i];
    }
    (void)user;
}

static void backward(void* user, memo_session* session, int32_t l) {
    const float *inp = memo_session_get_address(session, l, 0), *w = weights_of(session, l);
    float* g = STATE(l, GRADS); /* zero when a step begins */
    for (int i = 0; i < T * C; i++) {
        const float y = tanhf(inp[i] * w[i % W]), d = dx[i];
        g[i % W] += d * (1 - y * y) * inp[i];
        dx[i] = d + d * (1 - y * y) * w[i % W];
    }
    for (int i = 0; i < T * C && l == 0 && now == TIED; i++)
        row_of(STATE(MEMO_LAYER_FIRST, D_TABLE), i / C)[i % C] += dx[i];
    if (!memo_session_get_batch(session).more_follow) measure(g, l);
    (void)user;
}

/* ---- updates: what they read is of their own step, whenever they run ------------------------------ */

/* The largest norm is 1. */
static float clip_of(float square) { return square > 1 ? 1 / sqrtf(square) : 1; }

static void add_momentum(float* w, float* m, const float* d, int n, float rate) {
    for (int i = 0; i < n; i++) {
        m[i] = 0.9f * m[i] + d[i];
        w[i] -= rate * m[i];
    }
}

static void add_adam(float* w, float* m, float* v, const float* d, const of_step* of) {
    const float of_m = 1 - powf(0.9f, (float)of->step), of_v = 1 - powf(0.99f, (float)of->step);
    for (int i = 0; i < W; i++) {
        m[i] = 0.9f * m[i] + 0.1f * d[i];
        v[i] = 0.99f * v[i] + 0.01f * d[i] * d[i];
        w[i] -= of->rate * (m[i] / of_m) / (sqrtf(v[i] / of_v) + 1e-8f);
    }
}

/* Blocks of numbers share a scale.  States are zero at first: codes of 0 with a scale of 0 are 0. */
static void unpack(float* numbers, const int8_t* codes, const float* scales) {
    for (int i = 0; i < W; i++) numbers[i] = (float)codes[i] * scales[i / BLOCK];
}
static void pack(const float* numbers, int8_t* codes, float* scales) {
    for (int i = 0; i < W; i++) {
        float* scale = &scales[i / BLOCK];
        if (i % BLOCK == 0) {
            *scale = 0;
            for (int k = i; k < i + BLOCK; k++) *scale = fmaxf(*scale, fabsf(numbers[k]) / 127);
        }
        codes[i] = (int8_t)(*scale > 0 ? lrintf(numbers[i] / *scale) : 0);
    }
}

static void multiply(float* c, const float* a, const float* b, int is_transposed) {
    for (int i = 0; i < N; i++) /* c (N, N) = a b, or a times b transposed */
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int k = 0; k < N; k++)
                sum += a[i * N + k] * (is_transposed ? b[j * N + k] : b[k * N + j]);
            c[i * N + j] = sum;
        }
}

/* Muon: the moments, made orthogonal by five steps of Newton and Schulz. */
static void add_muon(memo_session* session, int32_t l, const float* d, float rate) {
    float *w = STATE(l, WEIGHTS), *m = STATE(l, MOMENTS), square = 1e-12f;
    float *o = SCRATCH(1), *a = SCRATCH(2), *b = SCRATCH(3);
    for (int i = 0; i < W; i++) {
        m[i] = 0.9f * m[i] + d[i];
        square += m[i] * m[i];
    }
    for (int i = 0; i < W; i++) o[i] = m[i] / sqrtf(square);

    for (int k = 0; k < 5; k++) { /* o = 3.4445 o + (-4.775 a + 2.0315 a a) o, a = o o' */
        multiply(a, o, o, 1);
        multiply(b, a, a, 0);
        for (int i = 0; i < W; i++) b[i] = -4.775f * a[i] + 2.0315f * b[i];
        multiply(a, b, o, 0);
        for (int i = 0; i < W; i++) o[i] = 3.4445f * o[i] + a[i];
    }
    for (int i = 0; i < W; i++) w[i] -= rate * o[i];
}

/* A number for a place of a step: any plan draws it alike, which a generator would not. */
static uint32_t random_of(uint32_t seed, uint32_t step, uint32_t layer, uint32_t index) {
    uint64_t z = ((uint64_t)(seed ^ step * 0x9e3779b9u) << 32) + layer * 0x85ebca6bu + index;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(z >> 32);
}
static uint16_t half_of(float f, uint32_t random) { /* up with the odds of the bits that go */
    uint32_t word;
    memcpy(&word, &f, sizeof word);
    return (uint16_t)((word + (random & 0xffff)) >> 16);
}
static void add_to_halves(memo_session* session, int32_t l, const float* d, const of_step* of) {
    uint16_t* w = (uint16_t*)memo_session_get_state(session, l, WEIGHTS);
    float* m = STATE(l, MOMENTS);
    for (int i = 0; i < W; i++) {
        m[i] = 0.9f * m[i] + d[i];
        w[i] = half_of(float_of(w[i]) - of->rate * m[i],
                       random_of(42, (uint32_t)of->step, (uint32_t)l, (uint32_t)i));
    }
}

static void update(void* user, memo_session* session, int32_t l) {
    const float* g = STATE(l, GRADS);
    float *d = SCRATCH(0), *m = SCRATCH(1), *v = SCRATCH(2), square = 0;
    of_step of;
    memcpy(&of, memo_session_get_batch(session).values, sizeof of);
    if (now == TIED && STATE(l, TABLE)) /* the lower of both parts; when both have added */
        add_momentum(STATE(l, TABLE), STATE(l, M_TABLE), STATE(l, D_TABLE), V * C, of.rate);
    if (!g) return; /* the parts before the first layer and behind the last have no others */
    if (now == OVERFLOW_FLAG)
        of.loss_scale = own.now.loss_scale; /* `between` lowers it, on the device */
    for (int k = 0; k < L && now == OVERFLOW_FLAG; k++)
        if (own.overflows[k] > 0) return;
    for (int i = 0; i < W && now == CLIP_LAYER; i++) square += g[i] * g[i];
    if (now == CLIP_LAYER) of.clip = clip_of(square);
    for (int i = 0; i < W; i++) d[i] = of.clip * g[i] / of.loss_scale;

    switch (now) {
    case ADAM: add_adam(STATE(l, WEIGHTS), STATE(l, MOMENTS), STATE(l, VARIANCES), d, &of); break;
    case MUON: add_muon(session, l, d, of.rate); break;
    case BF16: add_to_halves(session, l, d, &of); break;
    case MOMENTS8:
        unpack(m, (const int8_t*)STATE(l, MOMENTS), STATE(l, SCALES_M));
        unpack(v, (const int8_t*)STATE(l, VARIANCES), STATE(l, SCALES_V));
        for (int i = 0; i < W; i++) v[i] *= v[i]; /* its root has the codes */
        add_adam(STATE(l, WEIGHTS), m, v, d, &of);
        for (int i = 0; i < W; i++) v[i] = sqrtf(v[i]);
        pack(m, (int8_t*)STATE(l, MOMENTS), STATE(l, SCALES_M));
        pack(v, (int8_t*)STATE(l, VARIANCES), STATE(l, SCALES_V));
        break;
    default: add_momentum(STATE(l, WEIGHTS), STATE(l, MOMENTS), d, W, of.rate);
    }
    (void)user;
}

/* ---- steps --------------------------------------------------------------------------------------- */

static memo_status end_step(memo_session* session, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    float square = 0, overflows = 0;
    for (int l = 0; l < L; l++) { /* over ranks, too, if there are several */
        square += own.squares[l];
        overflows += own.overflows[l];
    }
    if (now == OVERFLOW_SKIP && overflows > 0) {
        own.now.loss_scale /= 16;
        return memo_session_skip_update(session, error);
    }
    if (now == CLIP_BEFORE) own.now.clip = clip_of(square); /* of the next step */
    if (now == CLIP_STEP) {
        of_step of = own.now;
        of.clip = clip_of(square);
        status = memo_session_set_update_values(session, &of, sizeof of, error);
    }
    if (!status) status = memo_session_update(session, error);
    return status;
}

static memo_status train_step(void* user, memo_session* session, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    (void)user;
    own.now.step++;
    own.now.rate = (now == ADAM || now == MOMENTS8 ? 0.01f : 0.001f) * /* warm-up, then a cosine */
                   (own.now.step < 3 ? (float)own.now.step / 3
                                     : 0.5f + 0.5f * cosf((float)(own.now.step - 3) / N_STEPS));
    for (int k = 0; k < N_BATCHES && !status; k++, own.batch_number++) {
        memo_batch batch = {0};
        batch.more_follow = k < N_BATCHES - 1;
        batch.values = &own.now, batch.values_bytes = sizeof own.now; /* copied */
        status = memo_session_run(session, &batch, error);
    }
    return status ? status : end_step(session, error);
}

/* A checkpoint: all states but gradients.  Updates that are deferred run first. */
typedef struct checkpoint {
    struct own own;
    char states[L + 1][N_STATES][4 * W]; /* of FIRST, then of the layers */
} checkpoint;
static memo_status copy_states(memo_session* session, const memo_session_desc* desc, checkpoint* c,
                               int reads, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    for (int l = MEMO_LAYER_FIRST; l < L; l++)
        for (int i = 0; i < desc->n_states && !status; i++) {
            const int64_t n_bytes = desc->states[i].size_bytes;
            char* bytes = c->states[l + 1][i];
            if (desc->states[i].uses & MEMO_STATE_GRADIENT) continue;
            status = reads ? memo_session_read_state(session, l, i, 0, bytes, n_bytes, error)
                           : memo_session_write_state(session, l, i, 0, bytes, n_bytes, error);
        }
    if (reads) c->own = own;
    if (!reads) own = c->own;
    return status;
}

static memo_session_desc make_desc(int32_t may) {
    memo_session_desc desc = {0};
    desc.tensors = acts, desc.n_tensors = 1;
    desc.buffers = &scratch, desc.n_buffers = 1;
    desc.states = momentum, desc.n_states = 3;
    if (now == ADAM) desc.states = adam, desc.n_states = 4;
    if (now == MOMENTS8) desc.states = adam8, desc.n_states = 6;
    if (now == BF16) desc.states = bf16;
    if (now == TIED) desc.states = tied, desc.n_states = 6;
    desc.n_layers = L, desc.n_rows = T, desc.micro_batches = N_BATCHES;
    desc.forward = forward, desc.between = between, desc.backward = backward, desc.update = update;
    desc.update_may = may;
    desc.policy = MEMO_POLICY_SWAP; /* so small a model needs no times and no search */
    return desc;
}

/* First numbers. */
static void start(checkpoint* c) {
    memset(c, 0, sizeof *c);
    c->own.now.clip = c->own.now.loss_scale = 1;
    if (now == OVERFLOW_SKIP || now == OVERFLOW_FLAG) c->own.now.loss_scale = 1 << 14;
    for (int i = 0; i < V * C && now == TIED; i++) {
        const float t = sinf(0.7f * (float)i);
        memcpy(c->states[0][TABLE] + 4 * i, &t, sizeof t);
    }
    for (int i = 0; i < L * W; i++) {
        const float w = 0.2f + 0.1f * cosf((float)(i % W + i / W));
        const uint16_t half = half_of(w, 0);
        if (now == BF16)
            memcpy(c->states[1 + i / W][WEIGHTS] + 2 * (i % W), &half, sizeof half);
        else
            memcpy(c->states[1 + i / W][WEIGHTS] + 4 * (i % W), &w, sizeof w);
    }
}

/* Trains from first numbers to *c.  is_least: in the least budget, in two halves. */
static memo_status train(int is_least, int32_t may, checkpoint* c, memo_error* error) {
    memo_session_desc desc = make_desc(may);
    memo_status status = MEMO_STATUS_OK;
    const int n_parts = is_least ? 2 : 1;
    const int32_t at = may & MEMO_MAY_DEFER  ? MEMO_UPDATE_DEFERRED
                       : may & MEMO_MAY_FUSE ? MEMO_UPDATE_FUSED
                                             : MEMO_UPDATE_PASS;
    if (!is_least) desc.policy = MEMO_POLICY_KEEP;
    if (is_least) status = memo_session_get_least(&desc, &desc.device_bytes, error);
    start(c);
    for (int part = 0; part < n_parts && !status; part++) {
        memo_session* session;
        if ((status = memo_session_create(&desc, &session, error))) break;
        const memo_step_plan* plan = memo_session_get_info(session).plan;
        if (is_least &&
            (plan->update_at != at || plan->n_streamed == 0)) /* what we wanted to try */
            memo_session_fail(session, MEMO_STATUS_INVALID_STATE, "another plan than asked for");
        status = copy_states(session, &desc, c, 0, error);
        for (int k = 0; k < N_STEPS / n_parts && !status; k++)
            status = train_step(NULL, session, error);
        if (!status) status = copy_states(session, &desc, c, 1, error);
        memo_session_destroy(session);
    }
    return status;
}

/* Before training: are the moments right that the trainer allows? */
static memo_status verify(int32_t may, memo_error* error) {
    static checkpoint first;
    const memo_session_desc desc = make_desc(may);
    const memo_verify_output outputs[] = {{"own", &own, sizeof own, MEMO_TYPE_F32, 0}};
    memo_verify_desc check = {0};
    check.outputs = outputs, check.n_outputs = 1;
    check.train = train_step;
    start(&first);
    own = first.own;
    return memo_session_verify(&desc, &check, error);
}

static int run_recipe(const char* name) {
    static const char* const moments[] = {"pass", "deferred", "fused"};
    static const int32_t may[] = {0, MEMO_MAY_DEFER | MEMO_MAY_NOT_PASS,
                                  MEMO_MAY_FUSE | MEMO_MAY_NOT_PASS};
    static checkpoint kept, streamed;
    const int may_fuse = now != CLIP_STEP && now != OVERFLOW_SKIP && now != OVERFLOW_FLAG;
    memo_error error;
    memo_status status = verify(MEMO_MAY_DEFER | (may_fuse ? MEMO_MAY_FUSE : 0), &error);
    int n_other = 0;
    if (!status) status = train(0, 0, &kept, &error);
    for (int k = 0; k < 2 + may_fuse && !status; k++) {
        printf(k ? ", %s" : "%-14s %s", k ? moments[k] : name, moments[k]);
        status = train(1, may[k], &streamed, &error);
        n_other += memcmp(&kept, &streamed, sizeof kept) != 0;
    }
    if (status) return fprintf(stderr, "%s: %s\n", name, error.message), 1;
    printf(": %s", n_other ? "OTHER BITS" : "the same bits");

    if (!may_fuse) { /* the law does not allow it, or verify sees other bits */
        if (!train(1, may[2], &streamed, &error) && memcmp(&kept, &streamed, sizeof kept))
            status = verify(MEMO_MAY_FUSE, &error);
        else
            status = (memo_status)error.status;
        printf("; fused: %s", status ? error.message : "NOT FOUND");
        n_other += !status;
    }
    printf("\n");
    return n_other != 0;
}

int main(int argc, char** argv) {
    static const char* const names[N_RECIPES] = {
        "adam",          "clip-layer", "clip-step", "clip-before", "overflow-skip",
        "overflow-flag", "tied",       "muon",      "moments8",    "bf16"};
    int n_wrong = 0;
    for (int k = 1; k < argc; k++) {
        int i = 0;
        while (i < N_RECIPES && strcmp(argv[k], names[i])) i++;
        if (i == N_RECIPES) return fprintf(stderr, "usage: %s [RECIPE...]\n", argv[0]), 2;
    }
    for (int i = 0; i < N_RECIPES; i++) {
        int is_asked = argc < 2;
        for (int k = 1; k < argc; k++) is_asked |= !strcmp(argv[k], names[i]);
        now = (recipe)i;
        if (is_asked) n_wrong += run_recipe(names[i]);
    }
    return n_wrong > 0;
}
