/* test_slices.c - sessions that compute layers in slices: losses and gradients have the bits of
 * every policy, device memory does not grow with the length, and plans, micro-batches and errors
 * are as without slices. */
#include "memo.h"
#include "memo_plan.h"
#include "extras/memo_look.h"
#include "owned.h"

#include <math.h>

/* --- a small causal model ---
 *
 * Width C, one head.  h += W2 relu(W1 (attention(h) + h)) + S, with keys and values of all rows so
 * far, and a gated state S that is carried from row to row: S = S / (1 + exp(-h)) + h.  S begins
 * at 0 with each document.  An expert takes the rows that begin with a number above 0, and adds
 * u^2 / 2 to them, u = h / (1 + h^2).  Row by row, in one order, so that forwards have the same
 * bits for every slice size.  The loss is 1/2 |h|^2 of the last layer. */
enum { C = 6, LAYERS = 5, ROWS_MOST = 96 };
enum {
    T_HANDED,
    T_INPUT,
    T_K,
    T_V,
    T_Q,
    T_ATTENTION,
    T_MIDDLE,
    T_RELU,
    T_STATE,
    T_EXPERT,
    T_UP,
    N_TENSORS
};
enum { B_KEYS, B_STATE, B_STATE_GRADIENT, N_BUFFERS };

typedef struct model {
    memo_session_desc desc;
    memo_session* session;
    memo_tensor tensors[N_TENSORS];
    memo_session_buffer buffers[N_BUFFERS];
    int64_t n_rows, document_rows;
    double x[ROWS_MOST][C];                         /* the embedding */
    double w[LAYERS][5][C][C], gw[LAYERS][5][C][C]; /* q, k, v, 1, 2 */
    double gx[ROWS_MOST][C], loss;
    int32_t n_recomputed;
    int breaks_order, forgets_input, mixes_rows, zeroes_last, forgets_routed;
    double* output; /* of the last slice, if not NULL */
} model;

static double* rows(const model* m, int32_t layer, int32_t t) {
    return (double*)memo_session_get_address(m->session, layer, t);
}

static void multiply(double* out, const double* in, double w[C][C]) {
    int j;
    for (int i = 0; i < C; i++)
        for (out[i] = 0, j = 0; j < C; j++) out[i] += w[i][j] * in[j];
}
/* gin += w^T gout, gw += gout in^T. */
static void multiply_back(double* gin, double gw[C][C], const double* gout, const double* in,
                          double w[C][C]) {
    for (int i = 0; i < C; i++)
        for (int j = 0; j < C; j++) {
            gin[j] += w[i][j] * gout[i];
            gw[i][j] += gout[i] * in[j];
        }
}

/* Weights of row i of the sequence over rows 0..i; shares has room for them. */
static void attend(const double* q, const double* k, int64_t i, double* shares) {
    double most = -1e300, sum = 0;
    int c;
    for (int64_t j = 0; j <= i; j++) {
        for (shares[j] = 0, c = 0; c < C; c++) shares[j] += q[c] * k[j * C + c];
        if (shares[j] > most) most = shares[j];
    }
    for (int64_t j = 0; j <= i; j++) sum += shares[j] = exp(shares[j] - most);
    for (int64_t j = 0; j <= i; j++) shares[j] /= sum;
}

/* One row of one tensor, from tensors before it; r is a row of the slice, i of the sequence. */
static void compute_row(model* m, int32_t layer, int32_t t, int64_t r, int64_t i) {
    double* in = t == T_UP ? NULL : rows(m, layer, T_INPUT) + r * C; /* r is no row of the input */
    double* out = rows(m, layer, t) + r * C;
    double shares[ROWS_MOST];
    int64_t j;
    if (t == T_K || t == T_V)
        multiply(rows(m, layer, t) + i * C, in, m->w[layer][t == T_K ? 1 : 2]);
    if (t == T_Q) multiply(out, in, m->w[layer][0]);
    if (t == T_ATTENTION) {
        attend(rows(m, layer, T_Q) + r * C, rows(m, layer, T_K), i, shares);
        for (int c = 0; c < C; c++)
            for (out[c] = in[c], j = 0; j <= i; j++)
                out[c] += shares[j] * rows(m, layer, T_V)[j * C + c];
    }
    if (t == T_MIDDLE) multiply(out, rows(m, layer, T_ATTENTION) + r * C, m->w[layer][3]);
    if (t == T_UP)
        for (int c = 0; c < C; c++) {
            const double z = rows(m, layer, T_EXPERT)[r * C + c];
            rows(m, layer, T_UP)[r * C + c] = z / (1 + z * z);
        }
    if (t == T_RELU)
        for (int c = 0; c < C; c++) {
            double z = rows(m, layer, T_MIDDLE)[r * C + c];
            out[c] = z > 0 ? z : 0;
        }
}

/* The state after row i of the sequence. */
static void carry(const model* m, double* state, const double* in, int64_t i) {
    for (int c = 0; c < C; c++)
        state[c] = (i % m->document_rows ? state[c] / (1 + exp(-in[c])) : 0) + in[c];
}

static int is_routed(const double* in) { return in[0] > 0; }

static void forward(void* user, memo_session* s, int32_t layer) {
    model* m = (model*)user;
    double* state = (double*)memo_session_get_buffer(m->session, B_STATE);
    int64_t begin, end;
    (void)s;
    memo_session_get_slice(m->session, &begin, &end);
    if (begin == 0) memset(state, 0, C * sizeof(double));
    memcpy(rows(m, layer, T_STATE), state, C * sizeof(double));
    for (int64_t r = 0; r < end - begin; r++) { /* all of one row, but LAYER tensors */
        double* first[N_TENSORS];
        memo_session_get_addresses(m->session, layer, m->mixes_rows ? begin + r : r, (void**)first);
        for (int32_t t = 0; t < T_EXPERT && !m->mixes_rows; t++)
            CHECK(first[t] ==
                  rows(m, layer, t) + (t == T_K || t == T_V || t >= T_STATE ? 0 : r * C));
        double add[C], *h = rows(m, layer, T_HANDED) + r * C;
        for (int c = 0; c < C && layer == 0; c++) h[c] = m->x[begin + r][c];
        for (int c = 0; c < C; c++)
            rows(m, layer, T_INPUT)[r * C + c] = m->forgets_input && layer ? 7 : h[c];
        for (int32_t t = T_K; t < T_STATE; t++) compute_row(m, layer, t, r, begin + r);
        carry(m, state, rows(m, layer, T_INPUT) + r * C, begin + r);
        multiply(add, rows(m, layer, T_RELU) + r * C, m->w[layer][4]);
        for (int c = 0; c < C; c++) h[c] += add[c] + state[c];
    }
    int64_t n = 0, k = 0;
    for (int64_t r = 0; r < end - begin; r++) n += is_routed(rows(m, layer, T_INPUT) + r * C);
    if (m->forgets_routed < 2) memo_session_set_routed(m->session, layer, n - m->forgets_routed);
    for (int64_t r = 0; r < end - begin; r++) {
        double *in = rows(m, layer, T_INPUT) + r * C, *h = rows(m, layer, T_HANDED) + r * C, *up;
        if (!is_routed(in)) continue;
        memcpy(rows(m, layer, T_EXPERT) + k * C, in, C * sizeof *in);
        compute_row(m, layer, T_UP, k, 0);
        up = rows(m, layer, T_UP) + k++ * C;
        for (int c = 0; c < C; c++) h[c] += up[c] * up[c] / 2;
    }
    if (m->output && layer == LAYERS - 1 && end == m->n_rows)
        memcpy(m->output, rows(m, layer, T_HANDED), (size_t)(end - begin) * C * sizeof(double));
}

static void recompute(void* user, memo_session* s, int32_t layer, int32_t t, int64_t first,
                      int64_t last) {
    model* m = (model*)user;
    int64_t begin, end;
    (void)s;
    memo_session_get_slice(m->session, &begin, &end);
    for (; first < last; first++, m->n_recomputed++) compute_row(m, layer, t, first, begin + first);
}

static void backward(void* user, memo_session* s, int32_t layer) {
    model* m = (model*)user;
    double *gk = (double*)memo_session_get_buffer(m->session, B_KEYS), *gv, shares[ROWS_MOST];
    double* gstate = (double*)memo_session_get_buffer(m->session, B_STATE_GRADIENT);
    double states[ROWS_MOST + 1][C]; /* before each row of the slice */
    int64_t begin, end, r, i, j, k = 0, n = memo_session_get_batch(m->session).n_rows;
    int c;
    (void)s;
    memo_session_get_slice(m->session, &begin, &end);
    gv = gk + n * C;
    if (m->zeroes_last ? begin == 0 : end == n) {
        for (i = 0; i < n * C; i++) gk[i] = gv[i] = 0;
        memset(gstate, 0, C * sizeof(double));
    }
    memcpy(states[0], rows(m, layer, T_STATE), sizeof states[0]);
    for (r = 0; r < end - begin; r++) {
        memcpy(states[r + 1], states[r], sizeof states[0]);
        k += is_routed(rows(m, layer, T_INPUT) + r * C);
        carry(m, states[r + 1], rows(m, layer, T_INPUT) + r * C, begin + r);
    }
    CHECK_IS(k, ==, memo_session_get_routed(m->session, layer));
    for (r = end - begin - 1; r >= 0; r--) {
        double *h = rows(m, layer, T_HANDED) + r * C, *in = rows(m, layer, T_INPUT) + r * C;
        double *q = rows(m, layer, T_Q) + r * C, *keys = rows(m, layer, T_K),
               *v = rows(m, layer, T_V);
        double grelu[C] = {0}, gattention[C] = {0}, gq[C] = {0}, sum = 0, dot[ROWS_MOST];
        i = begin + r;
        for (c = 0; c < C && layer == LAYERS - 1 && m->desc.step; c++)
            m->loss += h[c] * h[c] / 2; /* its gradient is h */
        double gcarried[C];
        for (c = 0; c < C; c++) {
            const double gate = i % m->document_rows ? 1 / (1 + exp(-in[c])) : 0;
            gstate[c] += h[c];
            gcarried[c] = gstate[c] * (1 + states[r][c] * gate * (1 - gate));
            gstate[c] *= gate;
        }
        k -= is_routed(in);
        for (c = 0; c < C && is_routed(in); c++) {
            const double z = rows(m, layer, T_EXPERT)[k * C + c];
            gcarried[c] +=
                h[c] * rows(m, layer, T_UP)[k * C + c] * (1 - z * z) / ((1 + z * z) * (1 + z * z));
        }
        multiply_back(grelu, m->gw[layer][4], h, rows(m, layer, T_RELU) + r * C, m->w[layer][4]);
        for (c = 0; c < C; c++)
            if (rows(m, layer, T_MIDDLE)[r * C + c] <= 0) grelu[c] = 0;
        multiply_back(gattention, m->gw[layer][3], grelu, rows(m, layer, T_ATTENTION) + r * C,
                      m->w[layer][3]);
        for (c = 0; c < C; c++) h[c] += gattention[c] + gcarried[c];
        attend(q, keys, i, shares);
        for (j = 0; j <= i; j++) {
            for (dot[j] = 0, c = 0; c < C; c++) {
                dot[j] += gattention[c] * v[j * C + c];
                gv[j * C + c] += shares[j] * gattention[c];
            }
            sum += shares[j] * dot[j];
        }
        for (j = 0; j <= i; j++)
            for (c = 0; c < C; c++) {
                gq[c] += shares[j] * (dot[j] - sum) * keys[j * C + c];
                gk[j * C + c] += shares[j] * (dot[j] - sum) * q[c];
            }
        multiply_back(h, m->gw[layer][0], gq, in, m->w[layer][0]);
        multiply_back(h, m->gw[layer][1], gk + i * C, in,
                      m->w[layer][1]); /* no later row adds to them */
        multiply_back(h, m->gw[layer][2], gv + i * C, in, m->w[layer][2]);
        for (c = 0; c < C && layer == 0; c++) m->gx[i][c] = h[c];
    }
}

/* The same without `step`. */
static void loss(void* user, memo_session* s) {
    model* m = (model*)user;
    const double* h = (double*)memo_session_get_address(s, LAYERS - 1, T_HANDED);
    int64_t begin, end;
    memo_session_get_slice(s, &begin, &end);
    for (int64_t r = end - begin - 1; r >= 0; r--)
        for (int c = 0; c < C; c++) m->loss += h[r * C + c] * h[r * C + c] / 2;
}
static void own_forward(void* user, memo_session* s, int32_t layer) {
    ((model*)user)->session = s;
    forward(user, s, layer);
}

static void step(void* user, memo_session* s) {
    model* m = (model*)user;
    int32_t layer, slice, n = memo_session_get_n_slices(s);
    m->session = s;
    for (layer = 0; layer < LAYERS; layer++)
        for (slice = 0; slice < n; slice++) {
            if (memo_session_forward_begin(s, m->breaks_order ? slice % LAYERS : layer))
                forward(m, s, layer);
            memo_session_forward_end(s, layer);
        }
    for (layer = LAYERS - 1; layer >= 0 && !memo_session_get_batch(s).is_forward_only; layer--)
        for (slice = 0; slice < n; slice++) {
            if (memo_session_backward_begin(s, layer)) backward(m, s, layer);
            memo_session_backward_end(s, layer);
        }
}

static void model_init(model* m, int64_t n_rows, int64_t slice_rows, memo_policy policy) {
    static const char* const names[] = {"handed", "input", "k",     "v",      "q", "attention",
                                        "middle", "relu",  "state", "expert", "up"};
    static const memo_tensor_rule rules[] = {
        MEMO_TENSOR_HANDED,  MEMO_TENSOR_INPUT,  MEMO_TENSOR_LAYER,      MEMO_TENSOR_LAYER,
        MEMO_TENSOR_ROWS,    MEMO_TENSOR_WHOLE,  MEMO_TENSOR_ROWS,       MEMO_TENSOR_ROWS,
        MEMO_TENSOR_CARRIED, MEMO_TENSOR_ROUTED, MEMO_TENSOR_ROUTED_ROWS};
    memset(m, 0, sizeof *m);
    for (int i = 0; i < N_TENSORS; i++) {
        m->tensors[i].name = names[i];
        m->tensors[i].row_bytes = C * (int64_t)sizeof(double);
        m->tensors[i].rule = rules[i];
    }
    m->buffers[B_KEYS] = (memo_session_buffer){.name = "gradients of keys and values",
                                               .row_bytes = 2 * C * (int64_t)sizeof(double),
                                               .first = MEMO_PASS_BACKWARD,
                                               .first_layer = MEMO_EACH_LAYER};
    m->buffers[B_STATE] = (memo_session_buffer){.name = "state",
                                                .size_bytes = C * (int64_t)sizeof(double),
                                                .first = MEMO_PASS_FORWARD,
                                                .first_layer = MEMO_EACH_LAYER};
    m->buffers[B_STATE_GRADIENT] = m->buffers[B_STATE];
    m->buffers[B_STATE_GRADIENT].first = MEMO_PASS_BACKWARD;
    m->n_rows = n_rows;
    m->document_rows = 11; /* no multiple of a slice */
    m->desc = MEMO_ZERO(memo_session_desc);
    m->desc.n_outputs = MEMO_NO_OUTPUTS;
    m->desc.tensors = m->tensors;
    m->desc.n_tensors = N_TENSORS;
    m->desc.n_layers = LAYERS;
    m->desc.n_rows = n_rows;
    m->desc.tile_rows = 2;
    m->desc.slice_rows = slice_rows ? slice_rows : n_rows;
    m->desc.routed_rows_layer = n_rows;
    m->desc.routed_rows_all = LAYERS * n_rows;
    m->desc.user = m;
    m->desc.step = step;
    m->desc.recompute = recompute;
    m->desc.buffers = m->buffers;
    m->desc.n_buffers = N_BUFFERS;
    m->desc.policy = policy;
    m->desc.has_alpha = 1, m->desc.alpha = 0.5;
    for (int i = 0; i < LAYERS * 5 * C * C; i++) (&m->w[0][0][0][0])[i] = 0.4 * sin(i * 1.7 + 1);
    for (int i = 0; i < ROWS_MOST * C; i++) (&m->x[0][0])[i] = cos(i * 0.9);
}

/* A micro-batch, whose loss and gradients remain. */
static memo_status run_batch(model* m, int64_t n_rows, int32_t shape) {
    memo_batch batch = {.n_rows = n_rows, .shape = shape};
    m->loss = 0;
    memset(m->gw, 0, sizeof m->gw);
    memset(m->gx, 0, sizeof m->gx);
    return memo_session_run(m->session, &batch, &error);
}

/* Two micro-batches of n_rows. */
static memo_status model_run(model* m, int64_t n_rows) {
    memo_status status = memo_session_create(&m->desc, &m->session, &error);
    if (status) m->session = NULL; /* step has seen that of a dry run */
    for (int k = 0; k < 2 && !status; k++) status = run_batch(m, n_rows, 0);
    return status;
}

/* The same, and no session remains. */
static void model_run_once(model* m, int64_t n_rows) {
    CHECK_OK(model_run(m, n_rows));
    memo_session_destroy(m->session);
}

static int same_bits(const model* a, const model* b) {
    return !memcmp(a->gw, b->gw, sizeof a->gw) && !memcmp(a->gx, b->gx, sizeof a->gx) &&
           !memcmp(&a->loss, &b->loss, sizeof a->loss);
}

/* The largest difference of a gradient from another, of the largest gradient. */
static double distance(const model* a, const model* b) {
    const double *x = &a->gw[0][0][0][0], *y = &b->gw[0][0][0][0];
    double most = 0, largest = 0;
    for (size_t i = 0; i < sizeof a->gw / sizeof *x; i++) {
        most = memo_test_worst(most, fabs(x[i] - y[i]));
        if (fabs(y[i]) > largest) largest = fabs(y[i]);
    }
    return most / largest + fabs(a->loss - b->loss) / fabs(b->loss);
}

/* Without slices, and in doubles: the reference. */
TEST(gradients_are_those_without_slices) {
    static const int64_t lengths[][3] = {{24, 6, 24}, {31, 8, 31}, {64, 2, 64}, {31, 8, 13},
                                         {20, 10, 7}, {9, 64, 9},  {96, 4, 95}};
    static model whole, sliced, first;
    const size_t n_lengths = sizeof lengths / sizeof lengths[0];
    int n_spilled = 0;
    for (size_t k = memo_test_all() ? 0 : 3; k < n_lengths; k++) {
        const int64_t n = lengths[k][0], rows_now = lengths[k][2];
        model_init(&whole, n, 0, MEMO_POLICY_KEEP);
        model_run_once(&whole, rows_now);
        for (int policy = 0; policy < MEMO_POLICY_ROWS + 3; policy++) {
            const int is_checked = policy == MEMO_POLICY_ROWS,
                      spills = policy == MEMO_POLICY_ROWS + 1;
            model_init(&sliced, n, lengths[k][1],
                       is_checked || spills            ? MEMO_POLICY_ALPHA
                       : policy > MEMO_POLICY_ROWS + 1 ? MEMO_POLICY_MEMO
                                                       : (memo_policy)policy);
            sliced.desc.is_checked = is_checked;
            if (spills) {
                sliced.desc.spill_directory = memo_test_folder();
                own_step_plan* plan = step_plan_of(&sliced.desc, NULL);
                sliced.desc.host_bytes = plan->host_bytes * 3 / 4 + 8192; /* two places of a page */
                n_spilled += plan->host_bytes > sliced.desc.host_bytes;
            }
            if (policy > MEMO_POLICY_ROWS + 1) sliced.desc.device_bytes = 18 * n * C * 8 + 3072;
            CHECK_CASE(model_run(&sliced, rows_now) == MEMO_STATUS_OK, "policy %d, %lld rows: %s",
                       policy, (long long)n, error.message);
            if (!sliced.session) continue;
            CHECK_CASE(memo_session_get_n_slices(sliced.session) == (n - 1) / lengths[k][1] + 1,
                       "%d", (int)memo_session_get_n_slices(sliced.session));
            memo_session_destroy(sliced.session);
            if (policy == 0) first = sliced;
            CHECK_CASE(same_bits(&sliced, &first),
                       "%lld rows, slices of %lld, policy %d: other bits", (long long)n,
                       (long long)lengths[k][1], policy);
            CHECK_CASE(policy != MEMO_POLICY_RECOMPUTE || sliced.n_recomputed > 0,
                       "nothing was recomputed");
        }
        /* The backward adds row by row from the last, in slices too: the same bits here. */
        CHECK_CASE(distance(&first, &whole) < 1e-13 &&
                       !memcmp(&first.loss, &whole.loss, sizeof whole.loss),
                   "%g", distance(&first, &whole));
    }
    CHECK_IS(n_spilled, >, 0);

    /* `loss` is called for each slice: before its backward, or after its forward alone, in which
     * the slices come in another order. */
    memo_batch batch = {.n_rows = 95, .is_forward_only = 1};
    model_init(&sliced, 96, 4, MEMO_POLICY_SWAP);
    sliced.desc.step = NULL;
    sliced.desc.forward = own_forward;
    sliced.desc.backward = backward;
    sliced.desc.loss = loss;
    CHECK_OK(model_run(&sliced, 95));
    CHECK_CASE(same_bits(&sliced, &first), "%g", distance(&sliced, &first));
    sliced.loss = 0;
    CHECK_OK(memo_session_run(sliced.session, &batch, &error));
    CHECK_CASE(fabs(sliced.loss / first.loss - 1) < 1e-14, "%g", sliced.loss);
    memo_session_destroy(sliced.session);
}

/* Device memory at one slice size, for 1 to 16 times the length: the formula, and a device that has
 * no more. */
TEST(memory_does_not_grow_with_the_length) {
    static const int64_t row = C * (int64_t)sizeof(double);
    int64_t rest = 0;
    for (int k = 1; k <= 16; k += k < 4 ? 1 : 3) {
        static model m;
        const int64_t n = 6 * k;
        const int64_t of_length =
            (2 * 2 + 2) * row * n; /* keys, values of two layers; gradients of one */
        model_init(&m, n, 6, MEMO_POLICY_ALPHA);
        own_step_plan* plan = step_plan_of(&m.desc, NULL);
        if (k == 3)
            rest =
                plan->device_bytes - of_length; /* fewer slices do not need both buffers in full */
        if (k > 3)
            CHECK_CASE(labs((long)(plan->device_bytes - of_length - rest)) <= 5 * 512,
                       "%lld rows: %lld and %lld bytes", (long long)n,
                       (long long)(plan->device_bytes - of_length), (long long)rest);
        memo_device* device =
            new_device((memo_host_device_desc){.device_memory_bytes = plan->device_bytes});
        m.desc.device = device;
        m.desc.computes_on_host = 1;
        CHECK_OK(memo_session_open(&m.desc, plan, &m.session, &error));
        CHECK_OK(memo_session_run(m.session, NULL, &error));
        memo_session_destroy(m.session);
        memo_host_device_destroy(device);
    }
}

/* A forward alone hands rows on through the host too: its output is that of a step.  Then a step,
 * from a plan that was written and read; a file for another slice size is refused. */
TEST(forwards_alone_and_plans_from_files) {
    static model m;
    char path[512];
    double output[2][6 * C];
    memo_step_plan* again = NULL;
    snprintf(path, sizeof path, "%s/slices.plan", memo_test_folder());
    model_init(&m, 30, 6, MEMO_POLICY_ALPHA);
    own_step_plan* plan = step_plan_of(&m.desc, NULL);
    expect_words(plan, "routed    expert: 0 of 150 rows are kept, the others move; at "
                       "most 6 in a step\nrouted    up: 0 of 150");
    CHECK_OK(memo_step_plan_write(plan, path, &error));
    m.desc.slice_rows = 0; /* the file's */
    CHECK_OK(memo_step_plan_read(&m.desc, path, &again, &error));
    CHECK_IS(again->swap.n_slices, ==, 5);
    CHECK_OK(memo_session_open(&m.desc, again, &m.session, &error));
    for (int k = 0; k < 2; k++) {
        memo_batch batch = {.is_forward_only = !k};
        m.output = output[k];
        CHECK_OK(memo_session_run(m.session, &batch, &error));
    }
    CHECK_IS(memcmp(output[0], output[1], sizeof output[0]), ==, 0);
    memo_session_destroy(m.session);
    memo_step_plan_destroy(again);
    m.desc.slice_rows = 4;
    CHECK_ERROR(memo_step_plan_read(&m.desc, path, &again, &error), INVALID_ARGUMENT,
                "it has 6 as slice_rows, the session has 4");
    CHECK_FAILS(memo_session_open(&m.desc, plan, &m.session, &error), INVALID_ARGUMENT);
}

static void scratch_of_a_layer(void* user, memo_session* s, int32_t layer) {
    const int is_checked = ((model*)user)->desc.is_checked; /* elsewhere NULL, or an error */
    double* scratch = NULL;
    if (!is_checked || layer == 2) scratch = (double*)memo_session_get_buffer(s, N_BUFFERS);
    CHECK_CASE((scratch != NULL) == (layer == 2), "layer %d", (int)layer);
    for (int i = 0; scratch && i < 6 * 9; i++) scratch[i] = i; /* rows of a slice */
    own_forward(user, s, layer);
}

/* A buffer of each slice of one layer. */
TEST(buffers_are_of_slices_of_a_layer) {
    static model m;
    memo_session_buffer of_layer[N_BUFFERS + 1];
    model_init(&m, 30, 6, MEMO_POLICY_KEEP);
    memcpy(of_layer, m.buffers, sizeof m.buffers);
    of_layer[N_BUFFERS] = (memo_session_buffer){.name = "scratch",
                                                .row_bytes = 9 * (int64_t)sizeof(double),
                                                .first = MEMO_PASS_FORWARD,
                                                .first_layer = MEMO_EACH_SLICE_OF(2)};
    m.desc.step = NULL, m.desc.forward = scratch_of_a_layer, m.desc.backward = backward;
    m.desc.buffers = of_layer, m.desc.n_buffers = N_BUFFERS + 1;
    for (m.desc.is_checked = 0; m.desc.is_checked < 2; m.desc.is_checked++) model_run_once(&m, 29);
    of_layer[N_BUFFERS].first_layer = MEMO_EACH_SLICE_OF(LAYERS);
    CHECK_ERROR(model_run(&m, 29), INVALID_ARGUMENT, "buffers[3]: `scratch` has an unknown pass");
}

TEST(mistakes_are_errors) {
    static model m;
    model_init(&m, 30, 6, MEMO_POLICY_KEEP);
    m.breaks_order = 1;
    CHECK_ERROR(model_run(&m, 30), INVALID_STATE,
                "begin and end each layer once for each slice, in a row");
    model_init(&m, 30, 7, MEMO_POLICY_KEEP);
    CHECK_ERROR(model_run(&m, 30), INVALID_ARGUMENT, "slice_rows: 7 rows split a tile of 2");
    model_init(&m, 30, 6, MEMO_POLICY_KEEP);
    m.tensors[T_HANDED].rule = MEMO_TENSOR_SWAPPED;
    CHECK_ERROR(model_run(&m, 30), INVALID_ARGUMENT,
                "memo_session_desc.slice_rows: set, but no tensor has rule HANDED");
    model_init(&m, 30, 6, MEMO_POLICY_KEEP);
    m.mixes_rows = 1; /* of the layer instead of the slice */
    CHECK_ERROR(model_run(&m, 30), INVALID_ARGUMENT,
                "memo_session_get_addresses: row: out of range (6); 0 to 5 are valid, counted from "
                "the first row of the open slice");
    memo_session_destroy(m.session);

    /* Zeroed in the last slice of the backward instead of the first. */
    model_init(&m, 30, 6, MEMO_POLICY_MEMO);
    const memo_session_output outputs[] = {{"gw", m.gw, sizeof m.gw, MEMO_TYPE_F64, LAYERS},
                                           {"gx", m.gx, sizeof m.gx, MEMO_TYPE_F64, 0}};
    m.desc.outputs = outputs, m.desc.n_outputs = 2;
    CHECK_OK(memo_session_verify(&m.desc, &error));
    m.zeroes_last = 1;
    CHECK_ERROR(memo_session_verify(&m.desc, &error), INVALID_ARGUMENT,
                "memo_session_verify: output `gw`, layer 0: in slices it differs by");

    /* More rows for the expert than declared. */
    model_init(&m, 30, 6, MEMO_POLICY_ALPHA);
    m.desc.routed_rows_layer = 5;
    CHECK_ERROR(model_run(&m, 30), INVALID_ARGUMENT,
                "memo_session_set_routed.n_rows: out of range");
    memo_session_destroy(m.session);

    /* Too few rows for the expert, or no number at all. */
    for (int k = 1; k < 4; k++) {
        model_init(&m, 30, 0, MEMO_POLICY_KEEP);
        m.desc.is_checked = k < 3; /* the second is an error in every session */
        m.forgets_routed = k;
        CHECK_CASE(model_run(&m, 30) &&
                       strstr(error.message,
                              k == 1 ? "layer 0, tensor `expert`, row"
                                     : "layer 0, tensor `expert`: its rows are not known; call "
                                       "memo_session_set_routed first"),
                   "%s", error.message);
        memo_session_destroy(m.session);
    }

    /* An INPUT that is not what HANDED was: found by a checked session. */
    model_init(&m, 30, 6, MEMO_POLICY_SWAP);
    m.desc.is_checked = 1;
    m.forgets_input = 1;
    CHECK_ERROR(model_run(&m, 30), INVALID_ARGUMENT, "tensor `input`");
    memo_session_destroy(m.session);
}

/* A fault in every call, of a checked session in some: a status, nothing leaked, and the next
 * micro-batch is right.  Returns the number of calls. */
static int64_t fail_every_call(int is_checked) {
    static model good, m;
    int64_t k;
    int n_failed = 0, is_done = 0;
    model_init(&good, 12, 4, MEMO_POLICY_SWAP);
    model_run_once(&good, 11);
    for (k = 1; !is_done && k < 10000; k += 1 + k / (is_checked ? 20 : 60)) {
        own_device* host = new_device(MEMO_ZERO(memo_host_device_desc));
        memo_faults f;
        memo_faults_init(&f, host);
        f.failing_call = k;
        model_init(&m, 12, 4, MEMO_POLICY_SWAP);
        m.desc.device = &f.device;
        m.desc.computes_on_host = 1;
        m.desc.is_checked = is_checked;
        memo_status status = model_run(&m, 11);
        is_done = !f.failed;
        CHECK_CASE(is_done || status || !is_checked, "call %lld, %s, fails unseen", (long long)k,
                   f.failed ? f.failed : "none");
        if (status && m.session) CHECK_OK(run_batch(&m, 11, 0));
        n_failed += status != MEMO_STATUS_OK;
        if (m.session) CHECK_CASE(same_bits(&m, &good), "after a fault at call %lld", (long long)k);
        memo_session_destroy(m.session);
    }
    CHECK_CASE(is_done && n_failed > 50, "%d failed, %lld calls", n_failed, (long long)k);
    return k;
}

TEST(every_fault_is_a_status) {
    const int64_t n_calls = fail_every_call(0);
    CHECK_IS(fail_every_call(1), >, n_calls);
}

/* Each shape has its number of slices, and the bits that it has alone. */
TEST(shapes_have_slices) {
    static const memo_shape shapes[] = {{31, 0}, {13, 0}, {31, 1}, {5, 0}};
    static const int32_t order[] = {0, 2, 1, 3, 2, 1, 0, 3};
    static model alone[4], all;
    for (int k = 0; k < 4; k++) {
        model_init(&alone[k], 31, 8, MEMO_POLICY_KEEP);
        if (shapes[k].is_forward_only) continue;
        model_run_once(&alone[k], shapes[k].n_rows);
    }
    for (int policy = 0; policy <= MEMO_POLICY_ROWS; policy++) {
        model_init(&all, 31, 8,
                   policy == MEMO_POLICY_ROWS ? MEMO_POLICY_ALPHA : (memo_policy)policy);
        all.desc.is_checked = policy == MEMO_POLICY_ROWS;
        all.desc.shapes = shapes;
        all.desc.n_shapes = 4;
        if (policy == MEMO_POLICY_MEMO) all.desc.device_bytes = 15 * 31 * C * 8 + 1024;
        CHECK_CASE(memo_session_create(&all.desc, &all.session, &error) == MEMO_STATUS_OK,
                   "policy %d: %s", policy, error.message);
        for (int k = 0; k < 8 && all.session; k++) {
            CHECK_OK(run_batch(&all, 0, order[k]));
            CHECK_IS(memo_session_get_n_slices(all.session), ==,
                     (shapes[order[k]].n_rows - 1) / 8 + 1);
            CHECK_CASE(shapes[order[k]].is_forward_only || same_bits(&all, &alone[order[k]]),
                       "policy %d, shape %d: other bits", policy, (int)order[k]);
        }
        memo_session_destroy(all.session);
    }
}

/* --- a clock of its own, which only computation moves --- */
static struct {
    memo_device inner;
    double now_s, times_s[4096];
    memo_event events[4096];
    int n;
} virtual_clock;

static int virtual_find(memo_event event) {
    int i = 0;
    while (i < virtual_clock.n && virtual_clock.events[i] != event) i++;
    return i;
}
static memo_status virtual_record(void* context, memo_event event, memo_stream stream,
                                  memo_error* e) {
    const int i = virtual_find(event);
    virtual_clock.events[i] = event;
    virtual_clock.times_s[i] = virtual_clock.now_s;
    if (i == virtual_clock.n && i < 4095) virtual_clock.n++;
    return virtual_clock.inner.event_record(context, event, stream, e);
}
static memo_status virtual_elapsed(MEMO_UNUSED void* context, memo_event begin, memo_event end,
                                   double* s, MEMO_UNUSED memo_error* e) {
    *s = virtual_clock.times_s[virtual_find(end)] - virtual_clock.times_s[virtual_find(begin)];
    if (*s == 0) *s = 1e-9; /* of copies */
    return MEMO_STATUS_OK;
}
/* A device whose events have the virtual time, from 0 on. */
static memo_device virtual_device(const memo_device* inner) {
    memo_device device = *inner;
    memset(&virtual_clock, 0, sizeof virtual_clock);
    virtual_clock.inner = *inner;
    device.event_record = virtual_record;
    device.event_elapsed = virtual_elapsed;
    return device;
}
/* Seconds of rows [begin, end), if a row and a row with one before it take so many. */
static double virtual_s(int64_t begin, int64_t end, double row_s, double pair_s) {
    return (double)(end - begin) * (row_s + pair_s * (double)(begin + end) / 2);
}
static void virtual_compute(memo_session* s, int32_t layer, double row_s, double pair_s) {
    int64_t begin, end;
    memo_session_get_slice(s, &begin, &end);
    virtual_clock.now_s += virtual_s(begin, end, row_s, pair_s) * (layer == 2 ? 7 : 1);
}
static void virtual_forward(MEMO_UNUSED void* user, memo_session* s, int32_t layer) {
    virtual_compute(s, layer, 3, 0.25);
}
/* The last layer's also computes the loss. */
static void virtual_backward(MEMO_UNUSED void* user, memo_session* s, int32_t layer) {
    virtual_compute(s, layer, 5 + (layer == LAYERS - 1), 0.75);
}
static void virtual_recompute(void* user, memo_session* s, int32_t layer, int32_t t, int64_t first,
                              int64_t last) {
    int64_t begin, end;
    (void)user;
    (void)layer;
    memo_session_get_slice(s, &begin, &end);
    if (t == T_ATTENTION)
        virtual_clock.now_s += virtual_s(begin + first, begin + last, 0.5, 0.125);
    else
        virtual_clock.now_s += (double)(last - first);
}

static void is_near(double a, double b) {
    CHECK_CASE(fabs(a - b) < 1e-6 * (1 + fabs(b)), "%g, not %g", a, b);
}

/* The times of its passes on the virtual device. */
static memo_profile measured(model* m) {
    own_device* inner = new_device(MEMO_ZERO(memo_host_device_desc));
    memo_device device = virtual_device(inner);
    memo_profile p;
    memo_stream stream = new_stream(&device, "compute");
    m->desc.step = NULL;
    m->desc.recompute = virtual_recompute;
    m->desc.device = &device;
    m->desc.compute_stream = stream;
    CHECK_OK(memo_session_measure(&m->desc, &p, &error));
    memo_stream_destroy(&device, stream, NULL);
    return p;
}

/* Measured times are the line that they were made from, whatever the number of slices.  One slow
 * layer of five does not change the times of its kind.  The rest of the micro-batch has what this
 * layer and the loss take in addition. */
TEST(times_are_lines) {
    static const int64_t lengths[][2] = {{48, 6}, {47, 12}, {45, 10}, {96, 32}, {31, 31}, {8, 2}};
    for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
        static model m;
        const int64_t n = lengths[k][0], rows_now = lengths[k][1];
        const double middle = (double)n / 2, all = (double)n, of_slice = (double)rows_now;
        const int has_slices = rows_now < n;
        model_init(&m, n, rows_now, MEMO_POLICY_MEMO);
        m.desc.tile_rows = 1;
        m.desc.forward = virtual_forward, m.desc.backward = virtual_backward;
        const memo_profile p = measured(&m);
        is_near(p.forward_s[0], of_slice * (3 + 0.25 * middle));
        is_near(p.backward_s[0], of_slice * (5 + 0.75 * middle));
        is_near(p.tensors[T_ATTENTION].recompute_s_per_row[0], 0.5 + 0.125 * middle);
        is_near(p.tensors[T_MIDDLE].recompute_s_per_row[0], 1);
        is_near(p.forward_growth_s[0], has_slices * of_slice * 0.125 * all);
        is_near(p.backward_growth_s[0], has_slices * of_slice * 0.375 * all);
        is_near(p.tensors[T_ATTENTION].recompute_growth_s_per_row[0], has_slices * 0.0625 * all);
        is_near(p.tensors[T_MIDDLE].recompute_growth_s_per_row[0], 0);
        is_near(p.between_s, all + 6 * (virtual_s(0, n, 3, 0.25) + virtual_s(0, n, 5, 0.75)));
    }
}

/* A layer in four is late, and takes 4 s instead of 1 s.  The profile's layers take what measured
 * micro-batches took, not the sum of medians. */
static void late_compute(MEMO_UNUSED void* user, MEMO_UNUSED memo_session* s,
                         MEMO_UNUSED int32_t layer) {
    static uint64_t draws = 1;
    draws = draws * 6364136223846793005u + 1442695040888963407u;
    virtual_clock.now_s += draws >> 62 ? 1 : 4;
}
TEST(late_layers_count) {
    static model m;
    model_init(&m, 48, 6, MEMO_POLICY_MEMO);
    m.desc.forward = m.desc.backward = late_compute;
    const memo_profile p = measured(&m);
    CHECK_CASE(p.forward_s[0] + p.backward_s[0] > 2.6 && p.forward_s[0] + p.backward_s[0] < 4,
               "%g s; the mean is 3.5", p.forward_s[0] + p.backward_s[0]);
}

/* What is measured are the largest slices that fit under any policy, even if recomputation alone
 * needs smaller ones. */
TEST(the_largest_slices_are_measured) {
    static const memo_policy policies[] = {MEMO_POLICY_RECOMPUTE, MEMO_POLICY_MEMO,
                                           MEMO_POLICY_RECOMPUTE};
    static const int fits[] = {0, 1, 1};
    enum { N = 2048 };
    static model m;
    memo_profile profile;
    memset(&virtual_clock, 0, sizeof virtual_clock);
    model_init(&m, N, 0, MEMO_POLICY_RECOMPUTE);
    m.desc.step = NULL;
    m.desc.forward = virtual_forward;
    m.desc.backward = virtual_backward;
    m.desc.recompute = virtual_recompute;
    for (int k = 0; k < 4; k++) {
        if (k) m.desc.policy = policies[k - 1];
        m.desc.slice_rows = k < 3 ? N : N / 2;
        own_step_plan* plan = step_plan_of(&m.desc, NULL);
        if (!k) m.desc.device_bytes = plan->device_bytes - 512;
        if (k) CHECK_CASE(plan->fits == fits[k - 1], "%d: %s", k, plan->shortage);
    }
    m.desc.policy = MEMO_POLICY_MEMO;
    m.desc.slice_rows = 0;
    CHECK_OK(memo_session_measure(&m.desc, &profile, &error));
    CHECK_IS(profile.n_rows, ==, N);
}

/* A larger table, for plans alone: times of a slice grow with its position. */
static void table_init(model* m, memo_profile* profile, int64_t n_rows) {
    model_init(m, n_rows, 0, MEMO_POLICY_MEMO);
    m->desc.slice_rows = 0;
    m->desc.tile_rows = 128;
    for (int t = 0; t < N_TENSORS; t++) m->tensors[t].row_bytes = 256 * (1 + t % 3);
    m->tensors[T_INPUT].row_bytes = m->tensors[T_HANDED].row_bytes;
    memset(profile, 0, sizeof *profile);
    profile->n_rows = 2048;
    profile->n_kinds = 1;
    profile->forward_s[0] = 0.010;
    profile->backward_s[0] = 0.025;
    profile->forward_growth_s[0] = 0.006;
    profile->backward_growth_s[0] = 0.015;
    profile->n_tensors = N_TENSORS;
    for (int t = 0; t < N_TENSORS; t++) {
        snprintf(profile->tensors[t].name, sizeof profile->tensors[t].name, "%s",
                 m->tensors[t].name);
        profile->tensors[t].recompute_s_per_row[0] =
            t < T_Q ? -1 : (t == T_ATTENTION ? 0.006 : 0.001) / 2048;
    }
    profile->tensors[T_ATTENTION].recompute_growth_s_per_row[0] = 0.006 / 2048;
    profile->copies[1].size_bytes = 1 << 20;
    profile->copies[1].out_s = profile->copies[1].back_s = (1 << 20) / 3e8;
}

/* slice_rows 0: the largest size that fits, and a plan whose time is that of the schedule. */
static int32_t most_slices = INT32_MAX;
static memo_status refusal;
static void refuse_slices(void* user, memo_session* s) {
    (void)user;
    if (memo_session_get_n_slices(s) > most_slices)
        memo_session_fail(s, refusal, "too many slices");
}

TEST(the_planner_chooses_the_size) {
    static model m;
    const int64_t n = memo_test_all() ? 16384 : 4096, of_length = (2 * 2 + 2) * n * 768;
    int n_sliced = 0;
    for (int k = memo_test_all() ? 0 : 2; k < 4; k++) {
        memo_profile profile;
        memo_kind_times kinds[1];
        double per_row[2 * N_TENSORS];
        table_init(&m, &profile, n);
        m.desc.device_bytes = of_length + (int64_t)(n >> k) * 7000;
        own_step_plan* plan = step_plan_of(&m.desc, &profile);
        CHECK_CASE(plan->fits, "%s", plan->shortage);
        if (!plan->fits || !plan->times) {
            memo_step_plan_destroy(plan);
            continue;
        }
        n_sliced += plan->swap.n_slices > 1;
        m.desc.setup = refuse_slices; /* the sizes end there, without an error */
        most_slices = plan->swap.n_slices;
        refusal = MEMO_STATUS_UNSUPPORTED;
        memo_step_plan* larger = step_plan_of(&m.desc, &profile);
        CHECK(larger && larger->fits && larger->swap.n_slices == most_slices);
        memo_step_plan_destroy(larger);
        refusal = MEMO_STATUS_COMM; /* a lost rank is one */
        most_slices = 1;
        if (plan->swap.n_slices > 1)
            CHECK_ERROR(memo_session_plan(&m.desc, &profile, &larger, &error), COMM, "too many");
        m.desc.setup = NULL;
        if (plan->swap.n_slices > 1) { /* a larger one does not fit, or is no faster */
            m.desc.slice_rows = 2 * plan->swap.n_rows;
            CHECK_OK(memo_session_plan(&m.desc, &profile, &larger, &error));
            CHECK_CASE(!larger->fits || larger->times->step_s >= plan->times->step_s,
                       "%g s, not %g s", larger->times->step_s, plan->times->step_s);
            memo_step_plan_destroy(larger);
        }

        /* The simulated schedule of the plan. */
        profile.forward_s[0] *= (double)plan->swap.n_rows / 2048;
        profile.backward_s[0] *= (double)plan->swap.n_rows / 2048;
        profile.forward_growth_s[0] *= (double)plan->swap.n_rows / 2048;
        profile.backward_growth_s[0] *= (double)plan->swap.n_rows / 2048;
        profile.n_rows = plan->swap.n_rows;
        memo_swap_plan_desc costs = {.swap = &plan->swap};
        CHECK_OK(memo_swap_plan_use_profile(&costs, kinds, per_row, &profile, &error));
        memo_swap_times times = {.kinds = kinds,
                                 .to_host_bytes_per_s = costs.to_host_bytes_per_s,
                                 .to_device_bytes_per_s = costs.to_device_bytes_per_s,
                                 .copy_s = costs.copy_s};
        own_schedule* schedule = schedule_of_swap(&plan->swap, &times);
        own_times* simulation = times_of(schedule);
        CHECK_CASE(fabs(simulation->makespan_s / plan->times->step_s - 1) < 0.05,
                   "%lld rows: %g s, predicted %g s", (long long)plan->swap.n_rows,
                   simulation->makespan_s, plan->times->step_s);
        printf("# %lld rows of %lld: %g s, predicted %g s\n", (long long)plan->swap.n_rows,
               (long long)n, simulation->makespan_s, plan->times->step_s);
    }
    CHECK_IS(n_sliced, >, 1);
}

/* Without enough host memory no size fits: the plan is the one that fits the device and lacks the
 * fewest bytes on the host. */
TEST(the_nearest_size_is_returned) {
    static model m;
    memo_profile profile;
    const int64_t n = 16384;
    memo_step_plan* other = NULL;
    int n_fit_device = 0;
    table_init(&m, &profile, n);
    m.desc.device_bytes = (2 * 2 + 2) * n * 768 / 2 + (n >> 2) * 7000;
    m.desc.host_bytes = n * 768;
    own_step_plan* plan = step_plan_of(&m.desc, NULL);
    CHECK(!plan->fits && plan->device_bytes <= m.desc.device_bytes);
    for (int64_t rows = n; rows >= 1024; rows /= 2) {
        m.desc.slice_rows = rows;
        CHECK_OK(memo_session_plan(&m.desc, NULL, &other, &error));
        CHECK(!other->fits);
        if (other->device_bytes <= m.desc.device_bytes) {
            n_fit_device++;
            CHECK_CASE((double)plan->host_bytes <= (double)other->host_bytes / 0.999,
                       "%lld bytes, %lld in slices of %lld", (long long)plan->host_bytes,
                       (long long)other->host_bytes, (long long)rows);
        }
        memo_step_plan_destroy(other);
    }
    CHECK_IS(n_fit_device, >, 0);
}

/* Small problems: no table is more than 1 % shorter than the plan, which may keep keys in all
 * slices of a layer. */
TEST(layers_keep_their_keys_if_that_is_faster) {
    enum { L = 3, S = 2, N = L * S };
    static const int64_t choices[] = {MEMO_ROWS_KEPT, 0, 2, 4};
    static const memo_tensor tensors[] = {{"h", 100, MEMO_TENSOR_HANDED, 0},
                                          {"k", 2048, MEMO_TENSOR_LAYER, 0},
                                          {"mlp", 1536, MEMO_TENSOR_ROWS, 0}};
    int n_keeping = 0;
    for (int round = 0; round < 6; round++) {
        memo_swap_plan* other = NULL;
        int64_t rows[N * 3];
        const double per_row[] = {-1, -1, 0.1 + 0.2 * memo_test_real()};
        double best_s = 1e300, moved_s = 1e300;
        int32_t i, kept;
        memo_kind_times times = {.forward_s = 1,
                                 .backward_s = 2,
                                 .forward_growth_s = 0.5,
                                 .recompute_s_per_row = per_row};
        memo_swap_desc swap = {.tensors = tensors,
                               .n_tensors = 3,
                               .n_layers = N,
                               .n_slices = S,
                               .n_rows = 4,
                               .tile_rows = 2};
        memo_swap_plan_desc desc = {.swap = &swap, .kinds = &times};
        desc.to_host_bytes_per_s = desc.to_device_bytes_per_s = 16384 / (1 + 4 * memo_test_real());
        for (i = 0; i < N * 3; i++) rows[i] = i % 3 == 0 ? MEMO_ROWS_KEPT : i % 3 == 1 ? 4 : 0;
        swap.rows = rows;
        memo_swap_sizes least = sizes_of_desc(&swap);
        for (i = 0; i < N * 3; i++) rows[i] = MEMO_ROWS_KEPT;
        memo_swap_sizes most = sizes_of_desc(&swap);
        desc.device_bytes =
            least.device_bytes + (most.device_bytes - least.device_bytes) * (round + 1) / 7;

        /* Every table. */
        for (int32_t code = 0; code < 1 << (2 * N + L); code++) {
            for (i = 0; i < N; i++) {
                kept = code >> (2 * N + i / S) & 1;
                rows[3 * i] = MEMO_ROWS_KEPT;
                rows[3 * i + 1] = kept ? MEMO_ROWS_KEPT : 4;
                rows[3 * i + 2] = choices[code >> 2 * i & 3];
            }
            memo_swap_sizes sizes = sizes_of_desc(&swap);
            if (sizes.device_bytes > desc.device_bytes) continue;
            CHECK_OK(memo_plan_swap(&desc, &other, &error));
            if (other->step_s < best_s) best_s = other->step_s;
            if (!(code >> 2 * N) && other->step_s < moved_s) moved_s = other->step_s;
            memo_swap_plan_destroy(other);
        }
        swap.rows = NULL;
        own_swap_plan* plan = swap_plan_of(&desc);
        CHECK_CASE(plan->step_s <= 1.01 * best_s, "round %d: %g s, not %g s", round, plan->step_s,
                   best_s);
        for (i = 0, kept = 0; i < N; i++) kept += plan->rows && plan->rows[3 * i + 1] < 0;
        CHECK_IS(kept % S, ==, 0);
        CHECK_CASE(kept || plan->step_s >= 0.99 * moved_s, "%g s", plan->step_s);
        n_keeping += kept && plan->step_s < 0.999 * moved_s;
        printf("# %lld bytes: %g s, best %g s, with all keys moved %g s\n",
               (long long)desc.device_bytes, plan->step_s, best_s, moved_s);
    }
    CHECK_IS(n_keeping, >, 0);
}
