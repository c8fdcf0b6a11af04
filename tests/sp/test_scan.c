/* test_scan.c - recurrences over ranks against a reference in fp64 on one rank.
 *
 * The model is a gated delta net behind a short convolution, of one head; or gates alone, whose
 * logarithms travel.  For each token t of a document, with rows x = (k, v), gate a and S from 0:
 *
 *   (k, v)_t = sum over j of c_j x_{t-j}
 *   delta    S_t = a_t S_{t-1} (1 - r k_t k_t^T) + v_t k_t^T
 *   gates    S_t = S_{t-1} diag(a_t) + v_t k_t^T
 *   o_t = S_t q_t,  loss = sum of g_t o_t */
#include "memo_sp.h"
#include "extras/memo_look.h"
#include "thread_ranks.h"
#include "owned.h"

enum { K = 4, V = 3, X = K + V, WIDTH = 4, M = K * K, S = V * K, MOST = 96, RANKS = 9 };
enum { GATES, DELTA };

typedef struct token_rows { /* of all ranks */
    float x[MOST][X], a[MOST][K], q[MOST][K], g[MOST][V];
    double o[MOST][V], d_x[MOST][X], d_a[MOST][K], d_q[MOST][K], last[S], d_first[S];
} token_rows;

typedef struct scan_case {
    int kind, has_documents, has_initial;
    int32_t n_ranks;
    int64_t n, begins[RANKS + 1], documents[6], n_documents;
    float first[S], d_last[S]; /* the state before all rows, and the gradient of that after them */
    token_rows rows, expected;
    int64_t sent_bytes[RANKS];
} scan_case;

static const float filter[WIDTH] = {0.6f, -0.4f, 0.3f, 0.2f};
static const float r = 0.7f;

static int begins_document(const scan_case* c, int64_t t) {
    for (int i = 0; i < c->n_documents && c->has_documents; i++) /* with a token */
        if (c->documents[i] == t && c->documents[i + 1] > t) return 1;
    return 0;
}

/* ---- the reference: matrices in fp64, one token after another ---- */

static void reference(scan_case* c) {
    static double states[MOST + 1][V][K], y[MOST][X], d_y[MOST][X];
    token_rows* e = &c->expected;
    double d[V][K], none[V][K] = {{0}};
    memset(y, 0, sizeof y);
    memset(d_y, 0, sizeof d_y);
    memset(e, 0, sizeof *e);
    for (int i = 0; i < S; i++) states[0][i / K][i % K] = c->has_initial ? c->first[i] : 0;
    for (int64_t t = 0; t < c->n; t++) {
        double(*s)[K] = begins_document(c, t) ? none : states[t], (*to)[K] = states[t + 1];
        for (int j = 0; j < WIDTH && t - j >= 0; j++) {
            for (int i = 0; i < X; i++) y[t][i] += (double)filter[j] * c->rows.x[t - j][i];
            if (begins_document(c, t - j)) break;
        }
        for (int v = 0; v < V; v++)
            for (int k = 0; k < K; k++) {
                double decayed = s[v][k] * c->rows.a[t][c->kind == DELTA ? 0 : k];
                for (int i = 0; i < K && c->kind == DELTA; i++)
                    decayed -= (double)c->rows.a[t][0] * r * s[v][i] * y[t][i] * y[t][k];
                to[v][k] = decayed + y[t][K + v] * y[t][k];
                e->o[t][v] += to[v][k] * c->rows.q[t][k];
            }
    }
    memcpy(e->last, states[c->n], sizeof e->last);

    for (int i = 0; i < S; i++) d[i / K][i % K] = c->has_initial ? c->d_last[i] : 0;
    if (begins_document(c, c->n)) memset(d, 0, sizeof d);
    for (int64_t t = c->n - 1; t >= 0; t--) {
        double(*s)[K] = begins_document(c, t) ? none : states[t], before[V][K], *key = y[t],
        *d_key = d_y[t];
        const float* a = c->rows.a[t];
        for (int v = 0; v < V; v++) {
            double s_key = 0, d_dot = 0;
            for (int k = 0; k < K; k++) {
                e->d_q[t][k] += states[t + 1][v][k] * c->rows.g[t][v];
                d[v][k] += (double)c->rows.g[t][v] * c->rows.q[t][k];
                s_key += s[v][k] * key[k];
                d_dot += d[v][k] * key[k];
            }
            for (int k = 0; k < K; k++) {
                d_y[t][K + v] += d[v][k] * key[k];
                d_key[k] += d[v][k] * key[K + v];
                before[v][k] = d[v][k] * a[c->kind == DELTA ? 0 : k];
                if (c->kind == GATES) {
                    e->d_a[t][k] += d[v][k] * s[v][k];
                    continue;
                }
                e->d_a[t][0] += d[v][k] * (s[v][k] - r * s_key * key[k]);
                d_key[k] -= (double)a[0] * r * (s[v][k] * d_dot + d[v][k] * s_key);
                before[v][k] -= (double)a[0] * r * d_dot * key[k];
            }
        }
        memcpy(d, before, sizeof d);
        if (begins_document(c, t)) memset(d, 0, sizeof d);
        for (int j = 0; j < WIDTH && t - j >= 0; j++) {
            for (int i = 0; i < X; i++) e->d_x[t - j][i] += (double)filter[j] * d_y[t][i];
            if (begins_document(c, t - j)) break;
        }
    }
    memcpy(e->d_first, d, sizeof d);
}

/* ---- a rank: fp32, on its own rows ---- */

typedef struct scan_rank {
    scan_case* c;
    memo_device* device;
    int64_t begin, end;
    float y[MOST][X], d_y[MOST][X], states[MOST + 1][S], state[S], d_state[S];
    float x[MOST][X], d_x[MOST][X], halo[WIDTH - 1][X], d_halo[WIDTH - 1][X];
} scan_rank;

typedef struct scan_args {
    scan_rank* rank;
    memo_scan_call call;
} scan_args;

/* to = the state after row t, without what the row adds if M alone is meant. */
static void step(const scan_rank* me, int64_t t, const float* from, float* to, int n_rows,
                 int adds) {
    const float *a = me->c->rows.a[me->begin + t], *y = me->y[t];
    for (int v = 0; v < n_rows; v++) {
        float dot = 0;
        for (int k = 0; k < K; k++) dot += from[v * K + k] * y[k];
        for (int k = 0; k < K; k++)
            to[v * K + k] = (me->c->kind == DELTA ? a[0] * (from[v * K + k] - r * dot * y[k])
                                                  : a[k] * from[v * K + k]) +
                            (adds ? y[K + v] * y[k] : 0);
    }
}

static const float zeros[S];

/* The gradient of the state before row t, from that after it; and those of the row. */
static void step_back(scan_rank* me, int64_t t, float* d, int is_run) {
    scan_case* c = me->c;
    const int64_t at = me->begin + t;
    const float *a = c->rows.a[at], *y = me->y[t];
    const float* s = begins_document(c, at) ? zeros : me->states[t];
    float d_a[K] = {0}, d_q[K] = {0};
    for (int v = 0; v < V; v++) {
        float* dv = d + v * K;
        float s_key = 0, dot = 0;
        for (int k = 0; k < K; k++) {
            d_q[k] += me->states[t + 1][v * K + k] * c->rows.g[at][v];
            dv[k] += c->rows.g[at][v] * c->rows.q[at][k];
            s_key += s[v * K + k] * y[k];
            dot += dv[k] * y[k];
        }
        for (int k = 0; k < K; k++) {
            const float d_after = dv[k], before = s[v * K + k];
            dv[k] = c->kind == DELTA ? a[0] * (d_after - r * dot * y[k]) : a[k] * d_after;
            if (!is_run) continue;
            me->d_y[t][K + v] += d_after * y[k];
            me->d_y[t][k] += d_after * y[K + v];
            if (c->kind == DELTA) me->d_y[t][k] -= a[0] * r * (before * dot + d_after * s_key);
            d_a[c->kind == DELTA ? 0 : k] +=
                d_after * (before - (c->kind == DELTA ? r * s_key * y[k] : 0));
        }
    }
    for (int k = 0; k < K && is_run; k++) {
        c->rows.d_a[at][k] = d_a[k];
        c->rows.d_q[at][k] = d_q[k];
    }
}

static memo_status summarize_now(void* p, MEMO_UNUSED memo_error* e) {
    const scan_args* args = p;
    scan_rank* me = args->rank;
    const int64_t n = me->end - me->begin;
    float m[M] = {0}, next[M], *b = args->call.b;
    memset(b, 0, S * sizeof *b);
    for (int i = 0; i < K; i++) m[i] = me->c->kind == DELTA ? (i == 0) : 0;
    for (int i = 0; i < K && me->c->kind == DELTA; i++) m[i * K + i] = 1;
    for (int64_t t = 0; t < n; t++) {
        if (begins_document(me->c, me->begin + t) && !args->call.is_backward)
            memset(b, 0, S * sizeof *b);
        for (int k = 0; k < K && me->c->kind == GATES; k++)
            m[k] += logf(me->c->rows.a[me->begin + t][k]);
        if (me->c->kind == DELTA) step(me, t, m, next, K, 0), memcpy(m, next, sizeof m);
        if (!args->call.is_backward) step(me, t, b, next, V, 1), memcpy(b, next, S * sizeof *b);
    }
    for (int64_t t = n - 1; t >= 0 && args->call.is_backward; t--) {
        step_back(me, t, b, 0);
        if (begins_document(me->c, me->begin + t)) memset(b, 0, S * sizeof *b);
    }
    if (args->call.m) memcpy(args->call.m, m, (me->c->kind == DELTA ? M : K) * sizeof *m);
    return MEMO_STATUS_OK;
}

static memo_status compose_now(void* p, MEMO_UNUSED memo_error* e) {
    const memo_scan_call* c = &((const scan_args*)p)->call;
    const int is_delta = ((const scan_args*)p)->rank->c->kind == DELTA;
    for (int v = 0; v < V; v++)
        for (int k = 0; k < K; k++) {
            float sum = is_delta ? 0 : expf(c->then_m[k]) * c->first_b[v * K + k];
            for (int i = 0; i < K && is_delta; i++)
                sum += c->first_b[v * K + i] * c->then_m[c->is_backward ? k * K + i : i * K + k];
            c->b[v * K + k] = sum + c->then_b[v * K + k];
        }
    for (int i = 0; i < (is_delta ? M : K) && c->m; i++) { /* states are rows: S M1 M2 */
        const float* left = c->is_backward ? c->then_m : c->first_m;
        const float* right = c->is_backward ? c->first_m : c->then_m;
        c->m[i] = is_delta ? 0 : left[i] + right[i];
        for (int k = 0; k < K && is_delta; k++)
            c->m[i] += left[i / K * K + k] * right[k * K + i % K];
    }
    return MEMO_STATUS_OK;
}

static memo_status run_now(void* p, MEMO_UNUSED memo_error* e) {
    const scan_args* args = p;
    scan_rank* me = args->rank;
    token_rows* rows = &me->c->rows;
    const int64_t n = me->end - me->begin;
    float d[S];
    memcpy(args->call.is_backward ? d : me->states[0], args->call.state, sizeof d);
    for (int64_t t = 0; t < n && !args->call.is_backward; t++) {
        float* s = me->states[t + 1];
        step(me, t, begins_document(me->c, me->begin + t) ? zeros : me->states[t], s, V, 1);
        for (int v = 0; v < V; v++) {
            float o = 0;
            for (int k = 0; k < K; k++) o += s[v * K + k] * rows->q[me->begin + t][k];
            rows->o[me->begin + t][v] = o;
        }
    }
    for (int64_t t = n - 1; t >= 0 && args->call.is_backward; t--) {
        step_back(me, t, d, 1);
        if (begins_document(me->c, me->begin + t)) memset(d, 0, sizeof d);
    }
    for (int i = 0; i < S && args->call.is_backward && !me->begin; i++) rows->d_first[i] = d[i];
    for (int i = 0; i < S && !args->call.is_backward && me->end == me->c->n; i++)
        rows->last[i] = me->states[n][i];
    return MEMO_STATUS_OK;
}

#define LAUNCH(name)                                                                               \
    static memo_status name(void* p, const memo_scan_call* call, memo_error* e) {                  \
        const scan_args args = {p, *call};                                                         \
        return memo_host_device_launch(args.rank->device, call->stream, name##_now, &args,         \
                                       sizeof args, e);                                            \
    }
LAUNCH(summarize)
LAUNCH(compose)
LAUNCH(run)

/* y from rows and halo, and back. */
static void convolve(scan_rank* me, int is_backward) {
    for (int64_t t = 0; t < me->end - me->begin; t++)
        for (int64_t j = 0; j < WIDTH; j++) {
            const int64_t from = t - j, in_halo = from + WIDTH - 1;
            for (int i = 0; i < X && !is_backward; i++)
                me->y[t][i] += filter[j] * (from < 0 ? me->halo[in_halo] : me->x[from])[i];
            for (int i = 0; i < X && is_backward; i++)
                (from < 0 ? me->d_halo[in_halo] : me->d_x[from])[i] += filter[j] * me->d_y[t][i];
            if (from >= 0 && begins_document(me->c, me->begin + from)) break;
        }
}

static memo_scan_desc desc_of(const scan_case* c, scan_rank* me, thread_rank* t) {
    memo_scan_desc desc = {.device = t->device,
                           .stream = t->stream,
                           .comm = t->comm,
                           .m_count = c->kind == DELTA ? M : K,
                           .b_count = S,
                           .functions = (memo_scan_functions){me, summarize, compose, run},
                           .halo_rows = WIDTH - 1,
                           .halo_columns = X};
    return desc;
}

static memo_status scan_pass(thread_rank* t, memo_error* e) {
    scan_case* c = t->user;
    own_memory scan_rank* me = calloc(1, sizeof *me);
    memo_scan_desc desc = desc_of(c, me, t);
    memo_scan* scan = NULL;
    memo_scan_tensors tensors = {NULL, me->state, c->has_initial ? c->first : NULL};
    memo_status status = memo_scan_create(&desc, &scan, e);
    me->c = c;
    me->device = t->device;
    me->begin = c->begins[t->comm->rank];
    me->end = c->begins[t->comm->rank + 1];
    const size_t n_bytes = (size_t)(me->end - me->begin) * sizeof me->x[0];
    memcpy(me->x, c->rows.x[me->begin], n_bytes);
    if (!status)
        status = memo_scan_set_rows(scan, c->begins, c->has_documents ? c->documents : NULL,
                                    c->n_documents, e);
    if (!status) status = memo_scan_halo_forward(scan, me->x, me->halo, e);
    if (!status) status = memo_stream_synchronize(t->device, t->stream, e);
    if (!status) convolve(me, 0);
    if (!status) t->comm->sent_bytes = 0;
    if (!status) status = memo_scan_forward(scan, &tensors, e);
    c->sent_bytes[t->comm->rank] = t->comm->sent_bytes;
    tensors.state = me->d_state;
    tensors.initial = c->has_initial ? c->d_last : NULL;
    if (!status) status = memo_scan_backward(scan, &tensors, e);
    if (!status) status = memo_stream_synchronize(t->device, t->stream, e);
    if (!status) convolve(me, 1);
    if (!status) status = memo_scan_halo_backward(scan, me->d_halo, me->d_x, e);
    if (!status) status = memo_stream_synchronize(t->device, t->stream, e);
    for (int64_t i = me->begin; i < me->end; i++)
        for (int k = 0; k < X; k++) c->rows.d_x[i][k] = me->d_x[i - me->begin][k];
    memo_scan_destroy(scan);
    return status;
}

/* ---- cases ---- */

static void random_case(scan_case* c, int kind) {
    memset(c, 0, sizeof *c);
    c->kind = kind;
    c->n = memo_test_int(1, MOST);
    c->n_ranks = (int32_t)memo_test_int(1, RANKS);
    c->has_documents = memo_test_int(0, 2) == 0;
    c->has_initial = memo_test_int(0, 1) == 0;
    for (int i = 1; i < c->n_ranks; i++) /* some are empty */
        c->begins[i] =
            memo_test_int(0, 4) ? memo_test_int(c->begins[i - 1], c->n) : c->begins[i - 1];
    c->begins[c->n_ranks] = c->n;
    c->n_documents = memo_test_int(1, 5);
    for (int64_t i = 1; i < c->n_documents; i++) /* often at a rank's border */
        c->documents[i] =
            memo_test_int(0, 1) ? c->begins[memo_test_int(0, c->n_ranks)] : memo_test_int(0, c->n);
    for (int64_t i = 1; i < c->n_documents; i++)
        for (int64_t j = i; j > 1 && c->documents[j] < c->documents[j - 1]; j--) {
            const int64_t other = c->documents[j];
            c->documents[j] = c->documents[j - 1];
            c->documents[j - 1] = other;
        }
    c->documents[c->n_documents] = c->n + memo_test_int(0, 1) * memo_test_int(0, 3);
    for (int64_t i = memo_test_int(1, 2 * c->n_documents); i < c->n_documents; i++)
        c->documents[i] = c->documents[c->n_documents]; /* padding */
    for (int64_t t = 0; t < c->n; t++) {
        for (int i = 0; i < X; i++) c->rows.x[t][i] = (float)(memo_test_real() - 0.5);
        for (int i = 0; i < K; i++) /* some forget nearly everything */
            c->rows.a[t][i] = memo_test_int(0, 20) ? (float)(0.9 + 0.1 * memo_test_real()) : 1e-30f;
        for (int i = 0; i < K; i++) c->rows.q[t][i] = (float)(memo_test_real() - 0.5);
        for (int i = 0; i < V; i++) c->rows.g[t][i] = (float)(memo_test_real() - 0.5);
    }
    for (int i = 0; i < S; i++) {
        c->first[i] = (float)(memo_test_real() - 0.5);
        c->d_last[i] = (float)(memo_test_real() - 0.5);
    }
}

/* The largest error over the largest number; of one or two rows all numbers may cancel. */
static double error_of(const double* got, const double* expected, int64_t n) {
    double largest = 0.05, worst = 0;
    for (int64_t i = 0; i < n; i++) {
        if (fabs(expected[i]) > largest) largest = fabs(expected[i]);
        if (!(fabs(got[i] - expected[i]) <= worst)) worst = fabs(got[i] - expected[i]);
    }
    return worst / largest;
}

TEST(any_split_gives_the_states_and_gradients_of_one_rank) {
    static scan_case c;
    double worst = 0;
    for (int i = 0; i < 200; i++) {
        random_case(&c, i % 2);
        reference(&c);
        CHECK_OK(thread_ranks_run(c.n_ranks, scan_pass, &c, &error));
        const token_rows *got = &c.rows, *e = &c.expected;
        const double errors[] = {
            error_of(got->o[0], e->o[0], c.n * V),     error_of(got->d_x[0], e->d_x[0], c.n * X),
            error_of(got->d_a[0], e->d_a[0], c.n * K), error_of(got->d_q[0], e->d_q[0], c.n * K),
            error_of(got->last, e->last, S),           error_of(got->d_first, e->d_first, S)};
        for (int k = 0; k < 6; k++) {
            CHECK_CASE(errors[k] <= 2e-6, "case %d, %d ranks, %d rows: error %d is %g", i,
                       (int)c.n_ranks, (int)c.n, k, errors[k]);
            if (errors[k] > worst) worst = errors[k];
        }
    }
    printf("# largest error %.2g\n", worst);
}

/* Begins are padded to a fixed length; a document of the next slice begins behind the rows. */
TEST(a_document_begins_with_a_token) {
    static const int64_t documents[][5] = {
        {0, 3, 8}, {0, 3, 8, 8, 8}, {0, 3, 9, 9, 9}, {0, 3, 8, 9, 9}};
    static const int n_documents[] = {2, 4, 4, 4};
    static scan_case c;
    for (int i = 0; i < 4; i++) {
        do random_case(&c, DELTA);
        while (c.n < 8);
        c.n = c.begins[1] = 8;
        c.n_ranks = c.has_documents = c.has_initial = 1;
        c.n_documents = n_documents[i];
        memcpy(c.documents, documents[i], sizeof documents[i]);
        for (int t = 0; t < 8; t++) c.rows.a[t][0] = 0.9f; /* no row forgets */
        reference(&c);
        CHECK_OK(thread_ranks_run(1, scan_pass, &c, &error));
        CHECK_IS(error_of(c.rows.d_x[0], c.expected.d_x[0], 8 * X), <, 2e-6);
        const double of_last_row = c.expected.d_x[7][0];
        memset(c.d_last, 0, sizeof c.d_last);
        reference(&c); /* did the gradient behind the rows count? */
        CHECK_IS(c.expected.d_x[7][0] != of_last_row, ==, i < 3);
    }
}

/* Bytes sent by all ranks in a forward of n rows on 8 ranks. */
static int64_t forward_bytes(int64_t n, int64_t document) {
    static scan_case c;
    int64_t sum = 0;
    random_case(&c, DELTA);
    c.n = n;
    c.n_ranks = 8;
    c.has_initial = 0;
    c.has_documents = document > 0;
    c.n_documents = 2;
    c.documents[1] = document;
    c.documents[2] = n;
    for (int i = 0; i <= 8; i++) c.begins[i] = n * i / 8;
    CHECK_OK(thread_ranks_run(8, scan_pass, &c, &error));
    for (int i = 0; i < 8; i++) sum += c.sent_bytes[i];
    return sum;
}

TEST(bytes_do_not_grow_with_the_rows_and_stop_at_documents) {
    /* 7 + 6 + 4 messages; M goes with 6 + 4 of them. */
    CHECK_IS(forward_bytes(16, 0), ==, 17 * S * 4 + 10 * M * 4);
    CHECK_IS(forward_bytes(96, 0), ==, 17 * S * 4 + 10 * M * 4);
    /* Two groups of 4 ranks, of 3 + 2 messages and 2 of M each. */
    CHECK_IS(forward_bytes(16, 8), ==, 10 * S * 4 + 4 * M * 4);
    /* A document begins inside of rank 4: what is before reaches ranks 1 to 4. */
    CHECK_IS(forward_bytes(96, 53), ==,
             (4 + 3 + 1) * S * 4 + (3 + 1) * M * 4 + //
                 (3 + 2) * S * 4 + 2 * M * 4);
}

enum { ALIKE, OTHER_M, OTHER_ROWS, OTHER_DOCUMENTS, OTHER_PASS, ABSENT };

/* Rank 2 of three differs. */
static memo_status other_rank(thread_rank* t, memo_error* e) {
    static scan_case c;
    scan_rank me;
    const int other = t->comm->rank == 2 ? *(const int*)t->user : ALIKE;
    const int64_t begins[] = {0, 8, 9 + (other == OTHER_ROWS), 20};
    const int64_t documents[] = {0, 4 + (other == OTHER_DOCUMENTS), 20};
    memo_scan_desc desc = desc_of(&c, &me, t);
    memo_scan* scan = NULL;
    float x[MOST][X], halo[WIDTH][X];
    memset(x, 0, sizeof x);
    if (other == OTHER_M) desc.m_count++;
    if (other == ABSENT) return MEMO_STATUS_OK;
    memo_status status = memo_scan_create(&desc, &scan, e);
    if (!status) status = memo_scan_set_rows(scan, begins, documents, 2, e);
    if (!status && other == OTHER_PASS) status = memo_scan_halo_backward(scan, halo, x, e);
    if (!status && other != OTHER_PASS) status = memo_scan_halo_forward(scan, x, halo, e);
    if (!status) status = memo_stream_synchronize(t->device, t->stream, e);
    memo_scan_destroy(scan);
    return status;
}

TEST(a_rank_that_differs_is_named_on_all_ranks) {
    static const char* const names[] = {"",     "m_count", "row_begins", "document_begins",
                                        "pass", "rank"};
    const memo_host_device_desc device = {0};
    thread_ranks team;
    memo_comm_threads_desc desc = {.timeout_s = 0.2};
    for (int other = ALIKE; other <= ABSENT; other++) {
        CHECK_OK(thread_ranks_open(&team, &device, &desc, 3, &error));
        const memo_status status = thread_ranks_call(&team, other_rank, &other, &error);
        CHECK_CASE(status == (other ? MEMO_STATUS_COMM : MEMO_STATUS_OK), "%d: %s", other,
                   error.message);
        for (int i = 0; i < 3 && other && other != ABSENT; i++)
            CHECK_CASE(team.ranks[i].status == MEMO_STATUS_COMM &&
                           (i == 2 || other == OTHER_PASS ||
                            strstr(team.ranks[i].error.message, names[other])),
                       "%d, rank %d: %s", other, i, team.ranks[i].error.message);
        thread_ranks_close(&team);
    }
}

TEST(invalid_arguments) {
    own_device* device = new_device((memo_host_device_desc){0});
    thread_rank t = {.device = device};
    scan_case c = {0};
    scan_rank me;
    memo_scan* scan = NULL;
    float state[S];
    memo_scan_tensors tensors = {NULL, NULL, NULL};
    CHECK_OK(memo_stream_create(device, "compute", 0, &t.stream, &error));
    memo_scan_desc good = desc_of(&c, &me, &t), d;
#define REFUSED(change, text)                                                                      \
    do {                                                                                           \
        d = good;                                                                                  \
        change;                                                                                    \
        CHECK_ERROR(memo_scan_create(&d, &scan, &error), INVALID_ARGUMENT, text);                  \
        CHECK(!scan);                                                                              \
    } while (0)
    REFUSED(d.device = NULL, "device");
    REFUSED(d.b_count = 0, "b_count");
    REFUSED(d.m_count = -1, "m_count");
    REFUSED(d.halo_columns = 0, "halo_columns");
    REFUSED(d.halo_type = MEMO_TYPE_I32, "halo_type");
    REFUSED(d.functions.compose = NULL, "compose");

    CHECK_OK(memo_scan_create(&good, &scan, &error));
    CHECK_ERROR(memo_scan_forward(scan, &tensors, &error), INVALID_STATE, "memo_scan_set_rows");
    const int64_t down[] = {8, 7}, rows[] = {3, 7}, documents[] = {0, 5, 4};
    CHECK_ERROR(memo_scan_set_rows(scan, down, NULL, 0, &error), INVALID_ARGUMENT, "row_begins[0]");
    CHECK_ERROR(memo_scan_set_rows(scan, rows, documents, 2, &error), INVALID_ARGUMENT,
                "document_begins");
    CHECK_ERROR(memo_scan_forward(scan, &tensors, &error), INVALID_STATE, "memo_scan_set_rows");
    CHECK_OK(memo_scan_set_rows(scan, rows, NULL, 0, &error));
    CHECK_ERROR(memo_scan_forward(scan, &tensors, &error), INVALID_ARGUMENT, "state");
    CHECK_ERROR(memo_scan_halo_forward(scan, NULL, state, &error), INVALID_ARGUMENT, "rows");
    memo_scan_destroy(scan);
    CHECK_OK(memo_stream_destroy(device, t.stream, &error));
}
