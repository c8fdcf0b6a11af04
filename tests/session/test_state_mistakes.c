/* test_state_mistakes.c - what porters got wrong with states, planted one at a time in a trainer
 * with Adam, micro-batches and a clipped norm: a checked session in the least memory, or
 * memo_session_verify, names each.  test_session_mistakes has those without states. */
#include "memo_plan.h"
#include "extras/memo_check.h"
#include "owned.h"
#include <math.h>

enum { L = 4, T = 24, C = 8, P = C * C, MICRO_BATCHES = 3, STEPS = 4 };
enum { IN, OUT };
enum { W, G, M, V, MASTER, N_STATES };

#define BEHIND   "something writes behind it; its size_bytes is too small"
#define LAY      "something has written to where it lay in an earlier visit"
#define NO_VALUE "the update computes it from bytes without a value"
#define DEFERRED "an update that is deferred changes it"
#define FUSED    "a fused update changes it"
#define TWICE    "two runs from the same bytes differ"

/* Each with what a checked run says, and what verify says.  "": nothing. */
#define MISTAKES(X)                                                                                \
    X(NONE, "", "")                                                                                \
    X(NONE_DEFERRED, "", "")                                                                       \
    X(NONE_FUSED, "", "")                                                                          \
    X(MOMENT_TOO_SHORT, "state `m`, update: " BEHIND, BEHIND)                                      \
    X(LAST_STATE_TOO_SHORT, "state `v`, update: " BEHIND, BEHIND)                                  \
    X(GRADIENT_TOO_SHORT, "state `g`, backward: " BEHIND, BEHIND)                                  \
    X(MADE_IS_READ, "state `w`, update: " NO_VALUE, NO_VALUE)                                      \
    X(MADE_IS_NOT_WRITTEN, "state `w`, update: " NO_VALUE, NO_VALUE)                               \
    X(VALUES_TOO_SHORT, NO_VALUE, NO_VALUE)                                                        \
    X(READS_ENDED_ROWS, NO_VALUE, NO_VALUE)                                                        \
    X(KEPT_ADDRESS, NO_VALUE, NO_VALUE)                                                            \
    X(WRITES_KEPT_ADDRESS, "state `m`, update: " LAY, LAY)                                         \
    X(WRITES_WEIGHTS_IN_FORWARD, "the pass wrote to it", "the pass wrote to it")                   \
    X(GRADIENT_CLEARED, "backward: it drops what earlier micro-batches",                           \
      "the gradient is the same after one and after two")                                          \
    X(OWN_STEP, DEFERRED, DEFERRED)                                                                \
    X(NORM_OF_THIS_STEP, FUSED, FUSED)                                                             \
    X(COUNTS_OUTSIDE, TWICE, TWICE)
#define NAME_OF(name, checked, verified) name,
typedef enum mistake { MISTAKES(NAME_OF) N_MISTAKES } mistake;
#undef NAME_OF
#define NAME_OF(name, checked, verified) {#name, checked, verified},
static const struct { const char *name, *checked, *verified; } mistakes[] = {MISTAKES(NAME_OF)};

typedef struct values {
    int32_t step;
    float rate;
} values;

typedef struct trainer {
    mistake m;
    memo_session_desc desc;
    memo_state states[N_STATES];
    float x[T * C], dx[T * C];
    double squares[L]; /* of the last micro-batch's gradients */
    int32_t step, n_updates;
    float* kept; /* the address of a state in another visit */
    const float* rows;
} trainer;

static float* rows_of(memo_session* s, int32_t layer, int32_t t) {
    return (float*)memo_session_get_address(s, layer, t);
}
static float* state_of(memo_session* s, int32_t layer, int32_t i) {
    return (float*)memo_session_get_state(s, layer, i);
}

static void recompute(void* user, memo_session* s, int32_t layer, int32_t t, int64_t begin,
                      int64_t end) {
    const float *in = rows_of(s, layer, IN), *w = state_of(s, layer, W);
    float* out = rows_of(s, layer, OUT);
    (void)user, (void)t;
    for (int64_t r = begin; r < end; r++)
        for (int o = 0; o < C; o++) {
            float sum = 0;
            for (int i = 0; i < C; i++) sum += in[r * C + i] * w[o * C + i];
            out[r * C + o] = tanhf(sum);
        }
}
static void forward(void* user, memo_session* s, int32_t layer) {
    trainer* r = (trainer*)user;
    for (int i = 0; i < T * C && !layer; i++) r->x[i] = sinf((float)i * .1f);
    memcpy(rows_of(s, layer, IN), r->x, sizeof r->x);
    recompute(user, s, layer, OUT, 0, T);
    memcpy(r->x, rows_of(s, layer, OUT), sizeof r->x);
    if (r->m == WRITES_WEIGHTS_IN_FORWARD) state_of(s, layer, W)[3] *= .5f;
}
static void between(void* user, memo_session* s) {
    trainer* r = (trainer*)user;
    for (int i = 0; i < T * C; i++) r->dx[i] = r->x[i] - .3f;
    (void)s;
}
static void backward(void* user, memo_session* s, int32_t layer) {
    trainer* r = (trainer*)user;
    const float *in = rows_of(s, layer, IN), *out = rows_of(s, layer, OUT);
    const float* w = state_of(s, layer, W);
    float *g = state_of(s, layer, G), d[T * C];
    if (r->m == GRADIENT_CLEARED) memset(g, 0, sizeof(float) * P);
    for (int i = 0; i < T * C; i++) d[i] = r->dx[i] * (1 - out[i] * out[i]), r->dx[i] = 0;
    for (int row = 0; row < T; row++)
        for (int o = 0; o < C; o++)
            for (int i = 0; i < C; i++) {
                r->dx[row * C + i] += d[row * C + o] * w[o * C + i];
                g[o * C + i] += d[row * C + o] * in[row * C + i];
            }
    r->rows = in;
    if (memo_session_get_batch(s).more_follow) return;
    r->squares[layer] = 0;
    for (int i = 0; i < P; i++) r->squares[layer] += (double)g[i] * g[i];
}

/* Adam, which begins with a rate of the step. */
static void update(void* user, memo_session* s, int32_t layer) {
    trainer* r = (trainer*)user;
    float *w = state_of(s, layer, W), *g = state_of(s, layer, G), *m = state_of(s, layer, M);
    float *v = state_of(s, layer, V), *master = w, rate;
    const values* now = (const values*)memo_session_get_batch(s).values;
    double norm = 0;
    if (!w) return; /* FIRST and LAST have no states */
    for (int l = 0; l < L; l++) norm += r->squares[l];
    rate = now->rate / (1 + sqrtf((float)now->step));
    if (r->m == OWN_STEP) rate = .01f / (1 + sqrtf((float)r->step));
    if (r->m == NORM_OF_THIS_STEP) rate /= (float)sqrt(norm);
    if (r->m == COUNTS_OUTSIDE) rate *= (float)++r->n_updates;
    if (r->m == READS_ENDED_ROWS) rate *= r->rows[0];
    if (!r->kept) r->kept = m; /* of layer 0 */
    if (r->m == WRITES_KEPT_ADDRESS) r->kept[5] = m[5];
    if (r->m == KEPT_ADDRESS) m = r->kept;
    if (r->desc.n_states > MASTER) master = state_of(s, layer, MASTER);
    if (r->m == MADE_IS_READ) master = w;
    for (int i = 0; i < P; i++) {
        m[i] = .9f * m[i] + .1f * g[i];
        v[i] = .99f * v[i] + .01f * g[i] * g[i];
        master[i] -= rate * m[i] / (sqrtf(v[i]) + 1e-8f);
    }
    if (master != w) memcpy(w, master, sizeof(float) * (r->m == MADE_IS_NOT_WRITTEN ? P / 2 : P));
}

static memo_status train_step(void* user, memo_session* s, memo_error* e) {
    trainer* r = (trainer*)user;
    values now = {r->step, .01f};
    memo_batch batch = MEMO_ZERO(memo_batch);
    memo_status status = MEMO_STATUS_OK;
    batch.values = &now, batch.values_bytes = sizeof now;
    if (r->m == VALUES_TOO_SHORT) batch.values_bytes = sizeof now.step; /* of a member */
    for (int k = MICRO_BATCHES - 1; k >= 0 && !status; k--) {
        batch.more_follow = k > 0;
        status = memo_session_run(s, &batch, e);
    }
    if (!status) status = memo_session_update(s, e);
    r->step++;
    return status;
}

static void make(trainer* r, mistake m) {
    static const memo_item items[] = {MEMO_ITEM("in", 4 * C, MEMO_MOVE),
                                      MEMO_ITEM("out", 4 * C, MEMO_ROWS)};
    static const memo_state states[] = {{"w", 4 * P, MEMO_STATE_WEIGHTS, 0},
                                        {"g", 4 * P, MEMO_STATE_GRADIENT, 0},
                                        {"m", 4 * P, MEMO_STATE_UPDATE, 0},
                                        {"v", 4 * P, MEMO_STATE_UPDATE, 0},
                                        {"master", 4 * P, MEMO_STATE_UPDATE, 0}};
    const int has_master = m == MADE_IS_NOT_WRITTEN || m == NONE_FUSED;
    memset(r, 0, sizeof *r);
    r->m = m;
    memcpy(r->states, states, sizeof states);
    r->desc.tensors = items, r->desc.n_tensors = 2;
    r->desc.n_layers = L, r->desc.n_rows = T, r->desc.tile_rows = 4;
    r->desc.micro_batches = MICRO_BATCHES;
    r->desc.states = r->states, r->desc.n_states = has_master ? N_STATES : MASTER;
    r->desc.user = r, r->desc.forward = forward, r->desc.between = between;
    r->desc.backward = backward, r->desc.recompute = recompute, r->desc.update = update;

    if (m == MOMENT_TOO_SHORT) r->states[M].size_bytes /= 2;
    if (m == LAST_STATE_TOO_SHORT) r->states[V].size_bytes -= 4;
    if (m == GRADIENT_TOO_SHORT) r->states[G].size_bytes /= 2;
    if (has_master || m == MADE_IS_READ) r->states[W].uses |= MEMO_STATE_MADE;
    if (m == OWN_STEP || m == NONE_DEFERRED) r->desc.update_may = MEMO_MAY_DEFER;
    if (m == NORM_OF_THIS_STEP || m == NONE_FUSED) r->desc.update_may = MEMO_MAY_FUSE;
}

/* The weights after some steps, in the least memory. */
static memo_status train(trainer* r, int is_checked, float* weights) {
    own_session* s = NULL;
    const memo_verify_desc nothing = MEMO_ZERO(memo_verify_desc);
    memo_status status;
    r->desc.is_checked = is_checked;
    CHECK_OK(memo_session_get_least(&r->desc, &r->desc.device_bytes, &error));
    CHECK_OK(memo_session_create(&r->desc, &s, &error));
    CHECK_OK(memo_session_watch(s, &nothing, &error));
    for (int32_t l = 0; l < L; l++) {
        float first[P];
        for (int i = 0; i < P; i++) first[i] = .3f * cosf(37.f * (float)(l * P + i));
        CHECK_OK(memo_session_write_state(s, l, W, 0, first, sizeof first, &error));
        if (r->desc.n_states > MASTER)
            CHECK_OK(memo_session_write_state(s, l, MASTER, 0, first, sizeof first, &error));
    }
    status = MEMO_STATUS_OK;
    for (int k = 0; k < STEPS && !status; k++) status = train_step(r, s, &error);
    for (int32_t l = 0; l < L && !status; l++)
        status = memo_session_read_state(s, l, W, 0, weights + l * P, 4 * P, &error);
    return status;
}

TEST(a_checked_session_names_what_a_visit_shows) {
    static float weights[L * P];
    trainer r;
    for (int m = 0; m < N_MISTAKES; m++) {
        make(&r, (mistake)m);
        const memo_status status = train(&r, 1, weights);
        IN_CASE("%s: %s", mistakes[m].name, status ? error.message : "no error");
        CHECK((status != MEMO_STATUS_OK) == (mistakes[m].checked[0] != 0));
        if (status) CHECK(strstr(error.message, mistakes[m].checked));
    }
}

TEST(verify_runs_steps_both_ways) {
    trainer r;
    const memo_verify_output step = {"step", &r.step, sizeof r.step, MEMO_TYPE_I32, 0};
    memo_verify_desc check = {.outputs = &step, .n_outputs = 1, .train = train_step};
    for (int m = 0; m < N_MISTAKES; m++) {
        make(&r, (mistake)m);
        const memo_status status = memo_session_verify(&r.desc, &check, &error);
        IN_CASE("%s: %s", mistakes[m].name, status ? error.message : "no error");
        CHECK((status != MEMO_STATUS_OK) == (mistakes[m].verified[0] != 0));
        if (status) CHECK(strstr(error.message, mistakes[m].verified));
    }
}
