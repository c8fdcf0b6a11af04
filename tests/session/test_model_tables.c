/* test_model_tables.c - tables of models that people ask about: what a desc says of each, in ten
 * lines, and a trainer of it in plain loops.
 *
 * Each model trains some steps in the least memory that works, under other policies and in a checked
 * session, with the losses and weights of keeping everything, bit by bit.  Its gradients agree with
 * differences of its loss. */
#include "memo_plan.h"
#include "owned.h"

/* --- a model: its desc, and functions of a layer --- */

enum { R = 12 /* rows */, C = 4 /* columns */, ROW = C * 8, LAYERS_MAX = 16, STEPS = 3 };
enum { ITEMS_MAX = 6, BUFFERS_MAX = 16, W_MAX = C * C };
static const double rate = 0.05;

/* What the trainer has beside the session. */
static double x[R * C], dx[R * C];          /* between layers, (R, C) */
static double table[R * C], d_table[R * C]; /* of models whose layers share weights */
static double loss;
static int32_t step_number, route[R];
static int has_sgd; /* weights -= rate * gradients, whatever the model's own update is */

typedef struct model {
    memo_session_desc desc;
    memo_item items[ITEMS_MAX];
    memo_session_buffer buffers[BUFFERS_MAX];
    memo_state states[3];
    int32_t kinds[LAYERS_MAX];
    memo_turn order[6];
} model;

#define ITEM(l, item)   ((double*)memo_session_get_address(s, l, item))
#define BUFFER(buffer)  ((double*)memo_session_get_buffer(s, buffer))
#define STATE(l, state) ((double*)memo_session_get_state(s, l, state))

enum { WEIGHTS, GRADIENTS, MOMENTUM };
enum { INPUT, HIDDEN }; /* the first items of most models */

/* Rows [begin, end) of hidden = tanh(w in + next in / 2); w and in a column each. */
static void compute(const double* in, const double* w, double* hidden, int64_t begin, int64_t end) {
    for (int64_t i = begin * C; i < end * C; i++)
        hidden[i] = tanh(w[i % C] * in[i] + 0.5 * in[i % C == C - 1 ? i - C + 1 : i + 1]);
}
/* Adds to the gradients of w and in. */
static void differentiate(const double* in, const double* w, const double* hidden,
                          const double* d_hidden, double* d_w, double* d_in, int64_t n) {
    for (int64_t i = 0; i < n * C; i++) {
        const double d = d_hidden[i] * (1 - hidden[i] * hidden[i]);
        d_w[i % C] += d * in[i];
        d_in[i] += d * w[i % C];
        d_in[i % C == C - 1 ? i - C + 1 : i + 1] += 0.5 * d;
    }
}
static void add(double* to, const double* from, int64_t n) {
    for (int64_t i = 0; i < n * C; i++) to[i] += from[i];
}
static void fill_rows(double* rows, int64_t n) {
    for (int64_t i = 0; i < n * C; i++) rows[i] = sin((double)(i + 31 * step_number));
}
static double target(int64_t i) { return 0.5 * cos((double)(3 * i + step_number)); }

static void add_loss(const double* of, double* d, int64_t shift) {
    for (int64_t i = 0; i < R * C; i++) {
        const double error_of = of[i] - target(i + shift * C);
        loss += 0.5 * error_of * error_of;
        d[i] = error_of;
    }
}
static void squares(MEMO_UNUSED void* user, MEMO_UNUSED memo_session* s) { add_loss(x, dx, 0); }

/* out = in + hidden: the layer of most models. */
static void forward(MEMO_UNUSED void* user, memo_session* s, int32_t l) {
    if (l == 0) fill_rows(x, R);
    memcpy(ITEM(l, INPUT), x, sizeof x);
    compute(x, STATE(l, WEIGHTS), ITEM(l, HIDDEN), 0, R);
    add(x, ITEM(l, HIDDEN), R);
}
static void backward(MEMO_UNUSED void* user, memo_session* s, int32_t l) {
    double d[R * C];
    memcpy(d, dx, sizeof d);
    differentiate(ITEM(l, INPUT), STATE(l, WEIGHTS), ITEM(l, HIDDEN), d, STATE(l, GRADIENTS), dx,
                  R);
}
static void recompute(MEMO_UNUSED void* user, memo_session* s, int32_t l, MEMO_UNUSED int32_t item,
                      int64_t begin, int64_t end) {
    compute(ITEM(l, INPUT), STATE(l, WEIGHTS), ITEM(l, HIDDEN), begin, end);
}
static void update(void* user, memo_session* s, int32_t l) {
    const model* m = (const model*)user;
    double *w = STATE(l, WEIGHTS), *g = STATE(l, GRADIENTS);
    for (int64_t i = 0; w && i < m->states[WEIGHTS].size_bytes / 8; i++) w[i] -= rate * g[i];
}

static void put_item(model* m, memo_item item) { m->items[m->desc.n_tensors++] = item; }
static void put_buffer(model* m, memo_session_buffer buffer) {
    m->buffers[m->desc.n_buffers++] = buffer;
}
#define PUT_ITEM(...)   put_item(m, (memo_item)MEMO_ITEM(__VA_ARGS__))
#define PUT_BUFFER(...) put_buffer(m, (memo_session_buffer){__VA_ARGS__, 0})
#define FORWARD         MEMO_PASS_FORWARD
#define BACKWARD        MEMO_PASS_BACKWARD

/* A model of n layers without items: weights of n_words numbers a layer. */
static void begin_model(model* m, int32_t n_layers, int64_t n_words) {
    memo_session_desc* d = &m->desc;
    memset(m, 0, sizeof *m);
    *d = MEMO_ZERO(memo_session_desc);
    m->states[WEIGHTS] = (memo_state){"weights", 8 * n_words, MEMO_STATE_WEIGHTS, 0};
    m->states[GRADIENTS] = (memo_state){"gradients", 8 * n_words, MEMO_STATE_GRADIENT, 0};
    d->tensors = m->items, d->buffers = m->buffers, d->states = m->states, d->n_states = 2;
    d->n_layers = n_layers, d->n_rows = R, d->tile_rows = 3, d->layer_kinds = m->kinds;
    d->user = m, d->forward = forward, d->between = squares, d->backward = backward;
    d->recompute = recompute, d->update = update;
}

/* --- training, and what is compared --- */

typedef struct result {
    double losses[STEPS], weights[LAYERS_MAX][W_MAX], table[R * C];
} result;

static memo_status run_step(const model* m, memo_session* s, memo_error* e) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t k = 0; (k == 0 || k < m->desc.n_order) && !status; k++) {
        memo_batch batch = MEMO_ZERO(memo_batch);
        if (m->desc.n_order) batch.turn = m->order[k];
        status = memo_session_run(s, &batch, e);
    }
    if (!status && m->desc.n_states) status = memo_session_update(s, e);
    if (!status && !m->desc.n_states)
        for (int64_t i = 0; i < R * C; i++) table[i] -= rate * d_table[i], d_table[i] = 0;
    return status;
}

/* Sets all weights of a session, or reads them. */
static memo_status copy_weights(const model* m, memo_session* s, result* r, int reads) {
    const int64_t n_bytes = m->desc.n_states ? m->states[WEIGHTS].size_bytes : 0;
    memo_status status = MEMO_STATUS_OK;
    memcpy(reads ? r->table : table, reads ? table : r->table, sizeof table);
    for (int32_t l = 0; l < m->desc.n_layers && n_bytes && !status; l++)
        status = reads ? memo_session_read_state(s, l, WEIGHTS, 0, r->weights[l], n_bytes, &error)
                       : memo_session_write_state(s, l, WEIGHTS, 0, r->weights[l], n_bytes, &error);
    return status;
}

/* Trains from the weights of r, which get the last ones.  plan: of the session, for the caller. */
static void train(const model* m, int32_t n_steps, result* r, memo_step_plan** plan) {
    own_session* s = NULL;
    memset(d_table, 0, sizeof d_table);
    CHECK_OK(memo_session_plan(&m->desc, NULL, plan, &error));
    if (!*plan) return;
    CHECK_CASE((*plan)->fits, "%s", (*plan)->shortage);
    if (!(*plan)->fits) return;
    CHECK_OK(memo_session_open(&m->desc, *plan, &s, &error));
    if (s) CHECK_OK(copy_weights(m, s, r, 0));
    for (step_number = 0; s && step_number < n_steps; step_number++) {
        loss = 0;
        CHECK_OK(run_step(m, s, &error));
        r->losses[step_number] = loss;
    }
    if (s) CHECK_OK(copy_weights(m, s, r, 1));
}

static void first_weights(result* r) {
    memset(r, 0, sizeof *r);
    for (int32_t l = 0; l < LAYERS_MAX; l++)
        for (int32_t i = 0; i < W_MAX; i++) r->weights[l][i] = 0.4 * sin(7.0 * l + i) + 0.3;
    for (int32_t i = 0; i < R * C; i++) r->table[i] = 0.5 * sin(2.0 * i + 1);
}

/* Of one weight, by the update of a step, beside the difference of two losses.  Returns whether it
 * is not 0, as of a layer that is left out. */
static int check_gradient(const model* m, int32_t l, int32_t i) {
    const double e = 1e-5;
    double losses[2], *w, after, before;
    result r;
    for (int k = 0; k < 3; k++) {
        own_step_plan* plan = NULL;
        first_weights(&r);
        w = m->desc.n_states && l >= 0 ? &r.weights[l][i] : &r.table[i];
        before = *w;
        *w += k == 2 ? 0 : k ? e : -e;
        train(m, 1, &r, &plan);
        if (k < 2) losses[k] = r.losses[0];
        after = *w;
    }
    const double by_loss = (losses[1] - losses[0]) / (2 * e), by_update = (before - after) / rate;
    CHECK_CASE(fabs(by_loss - by_update) < 1e-6 * (1 + fabs(by_loss)),
               "layer %d, weight %d: %.9g by losses, %.9g by the backward", (int)l, (int)i, by_loss,
               by_update);
    return fabs(by_update) > 1e-9;
}

/* n_weights: of a layer, or of the table. */
static void trains_alike(model* m, int32_t n_weights) {
    static const memo_policy policies[] = {MEMO_POLICY_KEEP, MEMO_POLICY_RECOMPUTE,
                                           MEMO_POLICY_SWAP, MEMO_POLICY_MEMO, MEMO_POLICY_MEMO};
    result kept, other;
    int64_t kept_bytes = 0;
    int n_gradients = 0;
    for (int k = 0; k < 5; k++) {
        own_step_plan* plan = NULL;
        m->desc.policy = policies[k];
        m->desc.is_checked = k == 4;
        if (k >= 3) CHECK_OK(memo_session_get_least(&m->desc, &m->desc.device_bytes, &error));
        first_weights(k ? &other : &kept);
        train(m, STEPS, k ? &other : &kept, &plan);
        if (!plan || !plan->fits) return;
        if (!k) kept_bytes = plan->device_bytes;
        IN_CASE("policy %s in %lld of %lld bytes", memo_policy_name(policies[k]),
                (long long)plan->device_bytes, (long long)kept_bytes);
        if (k) CHECK(!memcmp(&kept, &other, sizeof kept));
        if (k >= 3) CHECK_IS(plan->device_bytes, <, kept_bytes);
    }
    CHECK(kept.losses[STEPS - 1] < kept.losses[0] * 10 && kept.losses[0] > 0);
    m->desc.policy = MEMO_POLICY_KEEP, m->desc.is_checked = 0, m->desc.device_bytes = 0;
    has_sgd = 1;
    for (int k = 0; k < 6; k++)
        n_gradients += check_gradient(m, (int32_t)memo_test_int(0, m->desc.n_layers - 1),
                                      (int32_t)memo_test_int(0, n_weights - 1));
    CHECK_IS(n_gradients, >, 0);
    has_sgd = 0;
}

/* --- attention residuals ---
 * A layer reads a mean of all outputs before it, weighted by softmax(q output): outputs 0 to n are
 * buffers on the device from their forward to their backward, with one for all their gradients. */

enum { N_RESIDUALS = 13 };
enum { MIXED = INPUT };

static void residual_shares(memo_session* s, int32_t l, int64_t row, double a[N_RESIDUALS]) {
    const double* q = STATE(l, WEIGHTS) + C;
    double sum = 0;
    for (int32_t i = 0; i <= l; i++) {
        const double* o = BUFFER(i) + row * C;
        a[i] = exp(q[0] * o[0] + q[1] * o[1] + q[2] * o[2] + q[3] * o[3]);
        sum += a[i];
    }
    for (int32_t i = 0; i <= l; i++) a[i] /= sum;
}
static void residual_recompute(MEMO_UNUSED void* user, memo_session* s, int32_t l, int32_t item,
                               int64_t begin, int64_t end) {
    double a[N_RESIDUALS], *mixed = ITEM(l, MIXED);
    if (item == HIDDEN) compute(mixed, STATE(l, WEIGHTS), ITEM(l, HIDDEN), begin, end);
    for (int64_t r = begin; r < end && item == MIXED; r++) {
        memset(mixed + r * C, 0, ROW);
        residual_shares(s, l, r, a);
        for (int32_t i = 0; i <= l; i++)
            for (int c = 0; c < C; c++) mixed[r * C + c] += a[i] * BUFFER(i)[r * C + c];
    }
}
static void residual_forward(void* user, memo_session* s, int32_t l) {
    if (l == 0) fill_rows(BUFFER(0), R);
    residual_recompute(user, s, l, MIXED, 0, R);
    residual_recompute(user, s, l, HIDDEN, 0, R);
    memcpy(BUFFER(l + 1), ITEM(l, HIDDEN), sizeof x);
    memcpy(x, BUFFER(l + 1), sizeof x);
}
static void residual_backward(void* user, memo_session* s, int32_t l) {
    const model* m = (const model*)user;
    double a[N_RESIDUALS], d_mixed[R * C] = {0}, *d_o = BUFFER(N_RESIDUALS);
    const double *mixed = ITEM(l, MIXED), *q = STATE(l, WEIGHTS) + C;
    double* d_q = STATE(l, GRADIENTS) + C;
    if (l == m->desc.n_layers - 1) {
        memset(d_o, 0, N_RESIDUALS * sizeof x);
        memcpy(d_o + (l + 1) * R * C, dx, sizeof dx);
    }
    differentiate(mixed, STATE(l, WEIGHTS), ITEM(l, HIDDEN), d_o + (l + 1) * R * C,
                  STATE(l, GRADIENTS), d_mixed, R);
    for (int64_t r = 0; r < R; r++) {
        residual_shares(s, l, r, a);
        for (int32_t i = 0; i <= l; i++) {
            const double* o = BUFFER(i) + r * C;
            double d_a = 0;
            for (int c = 0; c < C; c++) d_a += (o[c] - mixed[r * C + c]) * d_mixed[r * C + c];
            for (int c = 0; c < C; c++) {
                d_o[(i * R + r) * C + c] += a[i] * (d_mixed[r * C + c] + d_a * q[c]);
                d_q[c] += a[i] * d_a * o[c];
            }
        }
    }
}
static void attention_residuals(model* m) {
    const int32_t n = N_RESIDUALS - 1;
    begin_model(m, n, 2 * C); /* of the layer, and q */
    PUT_ITEM("mixed", ROW, MEMO_ROWS);
    PUT_ITEM("hidden", ROW, MEMO_ROWS);
    PUT_BUFFER("output 0", 0, ROW, FORWARD, 0, BACKWARD, 0);
    for (int32_t l = 0; l < n; l++) PUT_BUFFER("output", 0, ROW, FORWARD, l, BACKWARD, l);
    PUT_BUFFER("gradients", 0, N_RESIDUALS * ROW, BACKWARD, n - 1, BACKWARD, 0);
    m->desc.forward = residual_forward, m->desc.backward = residual_backward;
    m->desc.recompute = residual_recompute;
}
TEST(attention_residuals_train) {
    model m;
    attention_residuals(&m);
    trains_alike(&m, 2 * C);
}

/* --- looped layers ---
 * Two layers run three times: chunks of an order, F0 F1 F2 B2 B1 B0.  What layers share belongs to
 * the trainer, not to a layer. */

enum { N_LOOPED = 2, N_LOOPS = 3 };
static void looped_forward(MEMO_UNUSED void* user, memo_session* s, int32_t l) {
    if (l == 0) fill_rows(x, R);
    memcpy(ITEM(l, INPUT), x, sizeof x);
    compute(x, table + l % N_LOOPED * C, ITEM(l, HIDDEN), 0, R);
    add(x, ITEM(l, HIDDEN), R);
}
static void looped_backward(MEMO_UNUSED void* user, memo_session* s, int32_t l) {
    const int32_t of = l % N_LOOPED * C;
    double d[R * C];
    memcpy(d, dx, sizeof d);
    differentiate(ITEM(l, INPUT), table + of, ITEM(l, HIDDEN), d, d_table + of, dx, R);
}
static void looped_recompute(MEMO_UNUSED void* user, memo_session* s, int32_t l,
                             MEMO_UNUSED int32_t item, int64_t begin, int64_t end) {
    compute(ITEM(l, INPUT), table + l % N_LOOPED * C, ITEM(l, HIDDEN), begin, end);
}
static void looped_layers(model* m) {
    begin_model(m, N_LOOPED * N_LOOPS, C);
    PUT_ITEM("input", ROW, MEMO_MOVE);
    PUT_ITEM("hidden", ROW, MEMO_ROWS);
    for (int32_t k = 0; k < 2 * N_LOOPS; k++)
        m->order[k] =
            (memo_turn){0, k < N_LOOPS ? k : 2 * N_LOOPS - 1 - k, k < N_LOOPS ? FORWARD : BACKWARD};
    m->desc.order = m->order, m->desc.n_order = 2 * N_LOOPS;
    m->desc.n_states = 0, m->desc.update = NULL;
    m->desc.forward = looped_forward, m->desc.backward = looped_backward;
    m->desc.recompute = looped_recompute;
}
TEST(looped_layers_train) {
    model m;
    looped_layers(&m);
    trains_alike(&m, N_LOOPED * C);
}

/* --- experts one by one ---
 * An expert is a layer of its own kind, so that its weights come alone.  How many rows it gets is
 * known late; all experts of a block together get each row once. */

enum { N_EXPERTS = 3, N_BLOCKS = 2, A_BLOCK = 1 + N_EXPERTS };
enum { NUMBERS = 2, ROUTED, UP };
static void expert_forward(void* user, memo_session* s, int32_t l) {
    int64_t n = 0, k = 0;
    if (l % A_BLOCK == 0) {
        forward(user, s, l);
        for (int r = 0; r < R; r++) route[r] = (x[r * C] > 0.2) + (x[r * C + 1] > 0);
        return;
    }
    for (int r = 0; r < R; r++) n += route[r] == l % A_BLOCK - 1;
    memo_session_set_routed(s, l, n);
    for (int r = 0; r < R; r++) {
        if (route[r] != l % A_BLOCK - 1) continue;
        ITEM(l, NUMBERS)[k] = r;
        memcpy(ITEM(l, ROUTED) + k * C, x + r * C, ROW);
        compute(ITEM(l, ROUTED), STATE(l, WEIGHTS), ITEM(l, UP), k, k + 1);
        for (int c = 0; c < C; c++) x[r * C + c] += ITEM(l, UP)[k * C + c];
        k++;
    }
}
static void expert_backward(void* user, memo_session* s, int32_t l) {
    if (l % A_BLOCK == 0) backward(user, s, l);
    for (int64_t k = 0; k < memo_session_get_slice(s).n_routed && l % A_BLOCK; k++) {
        double d[C], *d_x = dx + (int64_t)ITEM(l, NUMBERS)[k] * C;
        memcpy(d, d_x, sizeof d);
        differentiate(ITEM(l, ROUTED) + k * C, STATE(l, WEIGHTS), ITEM(l, UP) + k * C, d,
                      STATE(l, GRADIENTS), d_x, 1);
    }
}
static void expert_recompute(void* user, memo_session* s, int32_t l, int32_t item, int64_t begin,
                             int64_t end) {
    if (item == HIDDEN) recompute(user, s, l, item, begin, end);
    if (item == UP) compute(ITEM(l, ROUTED), STATE(l, WEIGHTS), ITEM(l, UP), begin, end);
}
static void experts_one_by_one(model* m) {
    begin_model(m, N_BLOCKS * A_BLOCK, C);
    PUT_ITEM("input", ROW, MEMO_MOVE, 0, 0, 1u);
    PUT_ITEM("hidden", ROW, MEMO_ROWS, 0, 0, 1u);
    PUT_ITEM("numbers", 8, MEMO_MOVE, 0, MEMO_LATE_ROWS, 2u);
    PUT_ITEM("routed", ROW, MEMO_MOVE, 0, MEMO_LATE_ROWS, 2u);
    PUT_ITEM("up", ROW, MEMO_ROWS, 0, MEMO_LATE_ROWS, 2u);
    for (int32_t l = 0; l < m->desc.n_layers; l++) m->kinds[l] = l % A_BLOCK ? 1 : 0;
    m->desc.routed_rows_layer = R, m->desc.routed_rows_all = N_BLOCKS * R;
    m->desc.forward = expert_forward, m->desc.backward = expert_backward;
    m->desc.recompute = expert_recompute;
}
TEST(experts_train_one_by_one) {
    model m;
    experts_one_by_one(&m);
    trains_alike(&m, C);
}

/* --- vision patches ---
 * The first layers have patches, whose number a micro-batch decides, and the others tokens: two
 * kinds, and the rows of patches are late. */

enum { N_VISION = 2, PATCHES_MAX = 17, PATCHES = 2, VISION };
static double patches[PATCHES_MAX * C], d_patches[PATCHES_MAX * C];
static int64_t n_patches(void) { return 5 + 6 * (step_number % 3); } /* also above R */

static void vision_forward(void* user, memo_session* s, int32_t l) {
    const int64_t n = n_patches();
    if (l >= N_VISION) {
        forward(user, s, l);
        return;
    }
    if (l == 0) fill_rows(patches, n);
    memo_session_set_routed(s, l, n);
    memcpy(ITEM(l, PATCHES), patches, (size_t)n * ROW);
    compute(patches, STATE(l, WEIGHTS), ITEM(l, VISION), 0, n);
    add(patches, ITEM(l, VISION), n);
    if (l < N_VISION - 1) return;
    fill_rows(x, R);
    for (int64_t i = 0; i < n * C; i++) /* their mean into each token */
        for (int r = 0; r < R; r++) x[r * C + i % C] += patches[i] / (double)n;
}
static void vision_backward(void* user, memo_session* s, int32_t l) {
    const int64_t n = n_patches();
    double d[PATCHES_MAX * C];
    if (l >= N_VISION) {
        backward(user, s, l);
        return;
    }
    if (l == N_VISION - 1) memset(d_patches, 0, sizeof d_patches);
    for (int64_t i = 0; i < n * C && l == N_VISION - 1; i++)
        for (int r = 0; r < R; r++) d_patches[i] += dx[r * C + i % C] / (double)n;
    CHECK_IS(memo_session_get_slice(s).n_routed, ==, n);
    memcpy(d, d_patches, sizeof d);
    differentiate(ITEM(l, PATCHES), STATE(l, WEIGHTS), ITEM(l, VISION), d, STATE(l, GRADIENTS),
                  d_patches, n);
}
static void vision_recompute(void* user, memo_session* s, int32_t l, int32_t item, int64_t begin,
                             int64_t end) {
    if (item == HIDDEN) recompute(user, s, l, item, begin, end);
    if (item == VISION) compute(ITEM(l, PATCHES), STATE(l, WEIGHTS), ITEM(l, VISION), begin, end);
}
static void vision_patches(model* m) {
    begin_model(m, 6, C);
    PUT_ITEM("input", ROW, MEMO_MOVE, 0, 0, 1u);
    PUT_ITEM("hidden", ROW, MEMO_ROWS, 0, 0, 1u);
    PUT_ITEM("patches", ROW, MEMO_MOVE, 0, MEMO_LATE_ROWS, 2u);
    PUT_ITEM("vision", ROW, MEMO_ROWS, 0, MEMO_LATE_ROWS, 2u);
    for (int32_t l = 0; l < N_VISION; l++) m->kinds[l] = 1;
    m->desc.routed_rows_layer = PATCHES_MAX, m->desc.routed_rows_all = N_VISION * PATCHES_MAX;
    m->desc.forward = vision_forward, m->desc.backward = vision_backward;
    m->desc.recompute = vision_recompute;
}
TEST(vision_patches_train) {
    model m;
    vision_patches(&m);
    trains_alike(&m, C);
}

/* --- mirrored skips ---
 * The output of layer i is added before layer n - 1 - i: a buffer between the two forwards, and
 * one for its gradient between the two backwards. */

enum { N_MIRRORED = 6, N_SKIPS = N_MIRRORED / 2 };
static void skip_forward(void* user, memo_session* s, int32_t l) {
    if (l >= N_SKIPS) add(x, BUFFER(2 * (N_MIRRORED - 1 - l)), R);
    forward(user, s, l);
    if (l < N_SKIPS) memcpy(BUFFER(2 * l), x, sizeof x);
}
static void skip_backward(void* user, memo_session* s, int32_t l) {
    if (l < N_SKIPS) add(dx, BUFFER(2 * l + 1), R);
    backward(user, s, l);
    if (l >= N_SKIPS) memcpy(BUFFER(2 * (N_MIRRORED - 1 - l) + 1), dx, sizeof dx);
}
static void mirrored_skips(model* m) {
    begin_model(m, N_MIRRORED, C);
    PUT_ITEM("input", ROW, MEMO_MOVE);
    PUT_ITEM("hidden", ROW, MEMO_ROWS);
    for (int32_t i = 0; i < N_SKIPS; i++) {
        PUT_BUFFER("skip", 0, ROW, FORWARD, i, FORWARD, N_MIRRORED - 1 - i);
        PUT_BUFFER("gradient of skip", 0, ROW, BACKWARD, N_MIRRORED - 1 - i, BACKWARD, i);
    }
    m->desc.forward = skip_forward, m->desc.backward = skip_backward;
}
TEST(mirrored_skips_train) {
    model m;
    mirrored_skips(&m);
    trains_alike(&m, C);
}

/* --- heads that predict several tokens ---
 * Heads are layers of another kind, which read the output of the trunk: a buffer from the first
 * head's forward to its backward.  Each has a loss of its own. */

enum { N_TRUNK = 4, N_HEADS = 3, Z = 0 };
static void heads_forward(void* user, memo_session* s, int32_t l) {
    if (l < N_TRUNK) {
        forward(user, s, l);
        return;
    }
    if (l == N_TRUNK) memcpy(BUFFER(Z), x, sizeof x);
    compute(BUFFER(Z), STATE(l, WEIGHTS), ITEM(l, HIDDEN), 0, R);
    memcpy(x, BUFFER(Z), sizeof x);
    add(x, ITEM(l, HIDDEN), R);
    add_loss(x, dx, l - N_TRUNK);
}
static void heads_backward(void* user, memo_session* s, int32_t l) {
    double d[R * C];
    if (l < N_TRUNK) {
        backward(user, s, l);
        return;
    }
    if (l == N_TRUNK + N_HEADS - 1) memset(dx, 0, sizeof dx);
    for (int64_t i = 0; i < R * C; i++)
        d[i] = BUFFER(Z)[i] + ITEM(l, HIDDEN)[i] - target(i + (l - N_TRUNK) * C);
    add(dx, d, R);
    differentiate(BUFFER(Z), STATE(l, WEIGHTS), ITEM(l, HIDDEN), d, STATE(l, GRADIENTS), dx, R);
}
static void heads_recompute(MEMO_UNUSED void* user, memo_session* s, int32_t l,
                            MEMO_UNUSED int32_t item, int64_t begin, int64_t end) {
    const double* in = l < N_TRUNK ? ITEM(l, INPUT) : BUFFER(Z);
    compute(in, STATE(l, WEIGHTS), ITEM(l, HIDDEN), begin, end);
}
static void several_heads(model* m) {
    begin_model(m, N_TRUNK + N_HEADS, C);
    PUT_ITEM("input", ROW, MEMO_MOVE, 0, 0, 1u);
    PUT_ITEM("hidden", ROW, MEMO_ROWS);
    PUT_BUFFER("output of the trunk", 0, ROW, FORWARD, N_TRUNK, BACKWARD, N_TRUNK);
    for (int32_t l = N_TRUNK; l < N_TRUNK + N_HEADS; l++) m->kinds[l] = 1;
    m->desc.between = NULL;
    m->desc.forward = heads_forward, m->desc.backward = heads_backward;
    m->desc.recompute = heads_recompute;
}
TEST(heads_for_several_tokens_train) {
    model m;
    several_heads(&m);
    trains_alike(&m, C);
}

/* --- tied tables ---
 * The embedding is also the classifier: the trainer keeps the table and its gradient in buffers as
 * long as the session, while states of layers come and go. */

enum { VOCABULARY = 6, TABLE = 0, TABLE_GRADIENT };
static int32_t token(int64_t r) { return (int32_t)((r * r + 5 * step_number) % VOCABULARY); }
static void tied_loss(MEMO_UNUSED void* user, memo_session* s) {
    const double* w = BUFFER(TABLE);
    double* g = BUFFER(TABLE_GRADIENT);
    memset(g, 0, VOCABULARY * ROW);
    memset(dx, 0, sizeof dx);
    for (int64_t r = 0; r < R; r++) {
        double p[VOCABULARY], sum = 0;
        for (int v = 0; v < VOCABULARY; v++) {
            p[v] = 0;
            for (int c = 0; c < C; c++) p[v] += x[r * C + c] * w[v * C + c];
            sum += p[v] = exp(p[v]);
        }
        loss += log(sum) - log(p[token(r + 1)]);
        for (int v = 0; v < VOCABULARY; v++)
            for (int c = 0; c < C; c++) {
                const double d = p[v] / sum - (v == token(r + 1));
                g[v * C + c] += d * x[r * C + c];
                dx[r * C + c] += d * w[v * C + c];
            }
    }
}
static void tied_layer(void* user, memo_session* s, int32_t l) {
    for (int64_t r = 0; r < R && l == 0; r++) memcpy(x + r * C, BUFFER(TABLE) + token(r) * C, ROW);
    memcpy(ITEM(l, INPUT), x, sizeof x);
    recompute(user, s, l, HIDDEN, 0, R);
    add(x, ITEM(l, HIDDEN), R);
}
static void tied_backward(void* user, memo_session* s, int32_t l) {
    backward(user, s, l);
    for (int64_t r = 0; r < R && l == 0; r++)
        add(BUFFER(TABLE_GRADIENT) + token(r) * C, dx + r * C, 1);
}
static void tied_update(void* user, memo_session* s, int32_t l) {
    if (l != MEMO_LAYER_FIRST) {
        update(user, s, l);
        return;
    }
    for (int i = 0; i < VOCABULARY * C; i++) BUFFER(TABLE)[i] -= rate * BUFFER(TABLE_GRADIENT)[i];
    memcpy(table, BUFFER(TABLE), VOCABULARY * ROW);
}
static void tied_first(void* user, memo_session* s, int32_t l) {
    if (l == 0 && step_number == 0) memcpy(BUFFER(TABLE), table, VOCABULARY * ROW);
    tied_layer(user, s, l);
}
static void tied_tables(model* m) {
    begin_model(m, 5, C);
    PUT_ITEM("input", ROW, MEMO_MOVE);
    PUT_ITEM("hidden", ROW, MEMO_ROWS);
    PUT_BUFFER("table", VOCABULARY * ROW, 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0);
    PUT_BUFFER("gradient of the table", VOCABULARY * ROW, 0, MEMO_PASS_SESSION, 0,
               MEMO_PASS_SESSION, 0);
    m->desc.forward = tied_first, m->desc.between = tied_loss, m->desc.backward = tied_backward;
    m->desc.update = tied_update;
}
TEST(tied_tables_train) {
    model m;
    tied_tables(&m);
    trains_alike(&m, C);
    for (int k = 0; k < 3; k++)
        (void)check_gradient(&m, -1, (int32_t)memo_test_int(0, VOCABULARY * C - 1));
}

/* --- stochastic depth --- */

static int is_left_out(int32_t l) { return (l * 7 + step_number * 5) % 3 == 1; }
static void depth_forward(void* user, memo_session* s, int32_t l) {
    if (is_left_out(l))
        memo_session_skip_layer(s, l);
    else
        forward(user, s, l);
}
static void depth_backward(void* user, memo_session* s, int32_t l) {
    if (!is_left_out(l)) backward(user, s, l);
}
static void stochastic_depth(model* m) {
    begin_model(m, 8, C);
    PUT_ITEM("input", ROW, MEMO_MOVE);
    PUT_ITEM("hidden", ROW, MEMO_ROWS);
    m->desc.forward = depth_forward, m->desc.backward = depth_backward;
}
TEST(stochastic_depth_trains) {
    model m;
    stochastic_depth(&m);
    trains_alike(&m, C);
}

/* --- Muon ---
 * The update of a layer needs its whole matrix, which a state is: Newton and Schulz's iteration
 * makes the momentum orthogonal.  Its scratch is a buffer of the session. */

enum { SCRATCH = 0 };
static void multiply(double* c, const double* a, const double* b, int is_transposed) {
    for (int i = 0; i < C * C; i++) {
        c[i] = 0;
        for (int k = 0; k < C; k++)
            c[i] += a[i / C * C + k] * (is_transposed ? b[i % C * C + k] : b[k * C + i % C]);
    }
}
static void muon_update(void* user, memo_session* s, int32_t l) {
    double *w = STATE(l, WEIGHTS), *g = STATE(l, GRADIENTS), *m = STATE(l, MOMENTUM), sum = 0;
    double *o = BUFFER(SCRATCH), *a = o + C * C, *b = a + C * C, *c = b + C * C;
    if (!w || has_sgd) {
        update(user, s, l);
        return;
    }
    for (int i = 0; i < C * C; i++) m[i] = 0.9 * m[i] + g[i], sum += m[i] * m[i];
    for (int i = 0; i < C * C; i++) o[i] = m[i] / (sqrt(sum) + 1e-7);
    for (int k = 0; k < 5; k++) { /* o = 3.4445 o - 4.775 o o' o + 2.0315 o o' o o' o */
        multiply(a, o, o, 1);
        multiply(b, a, o, 0);
        multiply(c, a, b, 0);
        for (int i = 0; i < C * C; i++) o[i] = 3.4445 * o[i] - 4.775 * b[i] + 2.0315 * c[i];
    }
    for (int i = 0; i < C * C; i++) w[i] -= rate * o[i];
}
static void muon_recompute(MEMO_UNUSED void* user, memo_session* s, int32_t l,
                           MEMO_UNUSED int32_t item, int64_t begin, int64_t end) {
    const double *in = ITEM(l, INPUT), *w = STATE(l, WEIGHTS);
    for (int64_t i = begin * C; i < end * C; i++) {
        double sum = 0;
        for (int k = 0; k < C; k++) sum += in[i / C * C + k] * w[k * C + i % C];
        ITEM(l, HIDDEN)[i] = tanh(sum);
    }
}
static void muon_forward(void* user, memo_session* s, int32_t l) {
    if (l == 0) fill_rows(x, R);
    memcpy(ITEM(l, INPUT), x, sizeof x);
    muon_recompute(user, s, l, HIDDEN, 0, R);
    add(x, ITEM(l, HIDDEN), R);
}
static void muon_backward(MEMO_UNUSED void* user, memo_session* s, int32_t l) {
    const double *in = ITEM(l, INPUT), *w = STATE(l, WEIGHTS), *hidden = ITEM(l, HIDDEN);
    double d[R * C], *g = STATE(l, GRADIENTS);
    for (int i = 0; i < R * C; i++) d[i] = dx[i] * (1 - hidden[i] * hidden[i]);
    for (int i = 0; i < R * C; i++)
        for (int k = 0; k < C; k++) {
            g[k * C + i % C] += in[i / C * C + k] * d[i];
            dx[i / C * C + k] += d[i] * w[k * C + i % C];
        }
}
static void muon(model* m) {
    begin_model(m, 5, C * C);
    PUT_ITEM("input", ROW, MEMO_MOVE);
    PUT_ITEM("hidden", ROW, MEMO_ROWS);
    PUT_BUFFER("Newton-Schulz", 4 * C * C * 8, 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0);
    m->states[MOMENTUM] = (memo_state){"momentum", 8 * C * C, MEMO_STATE_UPDATE, 0};
    m->desc.n_states = 3;
    m->desc.forward = muon_forward, m->desc.backward = muon_backward;
    m->desc.recompute = muon_recompute, m->desc.update = muon_update;
}
TEST(muon_trains_in_each_place) {
    static const int32_t places[] = {0, MEMO_MAY_FUSE | MEMO_MAY_NOT_PASS,
                                     MEMO_MAY_DEFER | MEMO_MAY_NOT_PASS};
    for (int k = 0; k < 3; k++) {
        model m;
        muon(&m);
        m.desc.update_may = places[k];
        trains_alike(&m, C * C);
    }
}
