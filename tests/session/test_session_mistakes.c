/* test_session_mistakes.c - what porters got wrong with a session, planted one at a time in a trainer
 * with its own loop: a checked session and memo_session_verify name each, or gradients are NaN, or
 * they have the right bits.  test_mistakes has those of an arena and hooks, and
 * test_generated_mistakes those of one field, access or call. */
#include "memo_plan.h"
#include "extras/memo_check.h"
#include "owned.h"
#include <math.h>
#include <pthread.h>

enum { L = 5, T = 40, C = 4, BLOCK = 4, N_STEPS = 7 };
enum { INP, NORM, RSTD, ATT, LSE, FC, N_TENSORS };

#define UNWRITTEN "wrote nothing into"
#define HANDED_ON                                                                                  \
    "changed after the layer had ended; a kernel of another layer, or on another stream, writes "  \
    "there; a layer hands rows on"
#define ORDER   "out of order"
#define OUTPUTS "outputs: norm was 0 and is "

/* Each with what a checked session says, and what verify says.  "NaN": gradients are; "": they have
 * the right bits, and verify passes.  NULL: verify runs no such micro-batch. */
#define MISTAKES(X)                                                                                \
    X(NONE, "", "")                                                                                \
    X(NO_OUTPUTS, "", "nothing to compare")                                                        \
    X(OUTPUT_MISSING, "", OUTPUTS)                                                                 \
    X(OUTPUT_SHORT, "", OUTPUTS)                                                                   \
    X(ADDRESSES_CACHED, UNWRITTEN, UNWRITTEN)                                                      \
    X(THREAD_STILL_COMPUTES, "changed after the layer had ended", "changed after the layer had")   \
    X(OUTPUT_INTO_NEXT_LAYER, HANDED_ON, HANDED_ON)                                                \
    X(BACKWARD_READS_ENDED_LAYER, "NaN", "a checked session changes it")                           \
    X(LAYER_TWICE, ORDER, ORDER)                                                                   \
    X(FORWARD_END_FORGOTTEN, ORDER, ORDER)                                                         \
    X(BACKWARD_BEGIN_FORGOTTEN, ORDER, ORDER)                                                      \
    X(NEVER_BOUND, UNWRITTEN, UNWRITTEN)                                                           \
    X(MORE_ROWS_THAN_DECLARED, "n_rows: out of range (41)", NULL)                                  \
    X(BEGIN_RESULT_IGNORED, "", "")                                                                \
    X(RUN_INSIDE_RUN, "called inside a micro-batch", "called inside a micro-batch")                \
    X(SESSION_GONE, UNWRITTEN, NULL)
#define NAME_OF(name, checked, verified) name,
typedef enum mistake { MISTAKES(NAME_OF) N_MISTAKES } mistake;
#undef NAME_OF

typedef struct row_addresses {
    float *inp, *norm, *rstd, *att, *lse, *fc;
} row_addresses;

typedef struct trainer {
    memo_session_desc desc;
    memo_item tensors[N_TENSORS];
    mistake m;
    float w[L], dw[L], db[L], x[T * C], dx[T * C], elsewhere[T];
    row_addresses cached[L];
    int is_cached[L];
    float* late; /* where the thread writes */
    memo_error inner;
} trainer;

static row_addresses addresses(trainer* r, memo_session* s, int32_t l) {
    row_addresses a = {0};
    memo_session_get_addresses(s, l, 0, (void**)&a);
    if (r->m == ADDRESSES_CACHED || r->m == SESSION_GONE) {
        if (!r->is_cached[l]) r->cached[l] = a;
        r->is_cached[l] = 1;
        a = r->cached[l];
    }
    if (r->m == NEVER_BOUND) a.lse = r->elsewhere;
    return a;
}

/* Rows [begin, end) of a tensor, and of the tensor that comes with it. */
static void normalize(const row_addresses* a, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
        float sum = 1e-5f;
        for (int c = 0; c < C; c++) sum += a->inp[i * C + c] * a->inp[i * C + c];
        const float r = 1 / sqrtf(sum / C);
        a->rstd[i] = r;
        for (int c = 0; c < C; c++) a->norm[i * C + c] = r * a->inp[i * C + c];
    }
}
/* Each row is the mean of the rows up to its own, from `begin` on. */
static void attend(const row_addresses* a, int64_t begin, int64_t end) {
    float sums[C] = {0}, weights = 0;
    for (int64_t i = begin; i < end; i++) {
        const float weight = expf(a->norm[i * C]);
        weights += weight;
        a->lse[i] = logf(weights);
        for (int c = 0; c < C; c++)
            a->att[i * C + c] = (sums[c] += weight * a->norm[i * C + c]) / weights;
    }
}
/* A whole block of rows is computed by other operations than a part of one, as in libraries. */
static void project(trainer* r, const row_addresses* a, int32_t l, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
        const int is_whole = (i - begin) / BLOCK * BLOCK + BLOCK <= end - begin;
        const float noise = 0.01f * (float)(i % 7);
        for (int c = 0; c < C; c++) {
            const float y = r->w[l] * a->att[i * C + c] + noise;
            a->fc[i * C + c] = is_whole ? tanhf(y) : 1 - 2 / (expf(2 * y) + 1);
        }
    }
}

static void recompute(void* user, memo_session* s, int32_t l, int32_t tensor, int64_t begin,
                      int64_t end) {
    trainer* r = (trainer*)user;
    const row_addresses a = addresses(r, s, l);
    const char* name = r->desc.tensors[tensor].name;
    if (!strcmp(name, "norm")) normalize(&a, begin, end);
    if (!strcmp(name, "att")) attend(&a, begin, end);
    if (!strcmp(name, "fc")) project(r, &a, l, begin, end);
}

static void* write_late(void* arguments) {
    trainer* r = (trainer*)arguments;
    r->late[3] = 7;
    return NULL;
}

static void forward(trainer* r, memo_session* s, int32_t l, int64_t n) {
    const row_addresses a = addresses(r, s, l);
    pthread_t thread;
    memcpy(a.inp, r->x, (size_t)n * C * sizeof(float));
    normalize(&a, 0, n);
    attend(&a, 0, n);
    project(r, &a, l, 0, n);
    for (int64_t i = 0; i < n * C; i++) r->x[i] += a.fc[i];
    if (r->m == OUTPUT_INTO_NEXT_LAYER && l + 1 < L)
        memcpy(addresses(r, s, l + 1).inp, r->x, (size_t)n * C * sizeof(float));
    if (r->m != THREAD_STILL_COMPUTES) return;
    if (l == 3) { /* of layer 2, which has ended */
        CHECK(!pthread_create(&thread, NULL, write_late, r));
        pthread_join(thread, NULL);
    }
    r->late = a.norm;
}

static void backward(trainer* r, memo_session* s, int32_t l, int64_t n) {
    const row_addresses a = addresses(r, s, l);
    const float* fc = a.fc;
    if (r->m == BACKWARD_READS_ENDED_LAYER && l + 1 < L) fc = addresses(r, s, l + 1).fc;
    for (int64_t i = 0; i < n; i++)
        for (int c = 0; c < C; c++) {
            const int64_t k = i * C + c;
            const float slope = r->dx[k] * (1 - fc[k] * fc[k]);
            r->dw[l] += slope * a.att[k];
            r->db[l] += slope * a.inp[k] * a.rstd[i] + 0.01f * a.lse[i] * a.norm[k];
            r->dx[k] += 0.1f * r->w[l] * slope;
        }
}

static void step(void* user, memo_session* s) {
    trainer* r = (trainer*)user;
    const int64_t n = memo_session_get_batch(s).n_rows;
    for (int64_t i = 0; i < n * C; i++) r->x[i] = sinf((float)i);
    for (int32_t l = 0; l < L; l++) {
        const int is_odd = l == 2; /* the layer with the mistake */
        if (memo_session_forward_begin(s, l) || r->m == BEGIN_RESULT_IGNORED) forward(r, s, l, n);
        if (r->m == RUN_INSIDE_RUN && is_odd)
            memo_session_fail(s, memo_session_run(s, NULL, &r->inner), r->inner.message);
        if (r->m != FORWARD_END_FORGOTTEN || !is_odd) memo_session_forward_end(s, l);
        if (r->m == LAYER_TWICE && is_odd) {
            if (memo_session_forward_begin(s, l)) forward(r, s, l, n);
            memo_session_forward_end(s, l);
        }
    }

    for (int64_t i = 0; i < n * C; i++) r->dx[i] = 0.1f * r->x[i];
    for (int32_t l = L - 1; l >= 0; l--) {
        const int is_forgotten = r->m == BACKWARD_BEGIN_FORGOTTEN && l == 2;
        if (is_forgotten || memo_session_backward_begin(s, l)) backward(r, s, l, n);
        memo_session_backward_end(s, l);
    }
}

static double norm(void* user) {
    const trainer* r = (const trainer*)user;
    double sum = 0;
    for (int l = 0; l < L; l++) sum += r->dw[l] * r->dw[l] + r->db[l] * r->db[l];
    return sqrt(sum);
}

static void make(trainer* r, mistake m) {
    static const memo_item tensors[N_TENSORS] = {
        MEMO_ITEM("inp", 4 * C, MEMO_MOVE), MEMO_ITEM("norm", 4 * C, MEMO_ROWS),
        MEMO_ITEM("rstd", 4, MEMO_WITH),    MEMO_ITEM("att", 4 * C, MEMO_WHOLE),
        MEMO_ITEM("lse", 4, MEMO_WITH),     MEMO_ITEM("fc", 4 * C, MEMO_ROWS)};
    memset(r, 0, sizeof *r);
    memcpy(r->tensors, tensors, sizeof tensors);
    r->m = m;
    for (int l = 0; l < L; l++) r->w[l] = 0.5f - 0.1f * (float)l;
    r->desc.tensors = r->tensors, r->desc.n_tensors = N_TENSORS;
    r->desc.n_layers = L, r->desc.n_rows = T, r->desc.tile_rows = 2 * BLOCK;
    r->desc.user = r, r->desc.step = step, r->desc.recompute = recompute;
}

static memo_status keep_memory(MEMO_UNUSED void* context, MEMO_UNUSED void* address,
                               MEMO_UNUSED memo_error* e) {
    return MEMO_STATUS_OK;
}
/* Stale addresses stay mapped: the device frees its memory at its end. */
static memo_device* kept_device(memo_device* table) {
    const memo_host_device_desc plain = MEMO_ZERO(memo_host_device_desc);
    memo_device* host = NULL;
    CHECK_OK(memo_host_device_create(&plain, &host, &error));
    *table = *host;
    table->device_free = keep_memory;
    return host;
}

/* Steps of a checked session; with SESSION_GONE after a session that has the addresses. */
static memo_status train(trainer* r, memo_policy policy, int64_t device_bytes) {
    memo_session* s = NULL;
    memo_status status = MEMO_STATUS_OK;
    memo_batch batch = {0};
    memo_device table;
    memo_device* host = kept_device(&table);
    r->desc.device = &table, r->desc.computes_on_host = 1;
    r->desc.is_checked = 1;
    r->desc.policy = policy, r->desc.device_bytes = device_bytes;
    if (r->m == MORE_ROWS_THAN_DECLARED) batch.n_rows = T + 1;
    for (int k = r->m != SESSION_GONE; k < 2 && !status; k++) {
        status = memo_session_create(&r->desc, &s, &error);
        for (int i = 0; i < (k ? N_STEPS : 1) && !status; i++) {
            memset(r->dw, 0, sizeof r->dw);
            memset(r->db, 0, sizeof r->db);
            status = memo_session_run(s, &batch, &error);
        }
        memo_session_destroy(s);
    }
    memo_host_device_destroy(host);
    return status;
}

static memo_status verify(trainer* r) {
    const memo_verify_output outputs[] = {{"dw", r->dw, sizeof r->dw, MEMO_TYPE_F32, L},
                                          {"db", r->db, sizeof r->db, MEMO_TYPE_F32, L}};
    memo_verify_output listed[2] = {outputs[0], outputs[1]};
    memo_verify_desc check = MEMO_ZERO(memo_verify_desc);
    memo_device table;
    memo_device* host = kept_device(&table);
    r->desc.device = &table, r->desc.computes_on_host = 1;
    check.outputs = listed, check.norm = norm;
    check.n_outputs = r->m == NO_OUTPUTS ? 0 : r->m == OUTPUT_MISSING ? 1 : 2;
    if (r->m == OUTPUT_SHORT) listed[1].size_bytes -= 8, listed[1].n_layers = L - 2;
    const memo_status status = memo_session_verify(&r->desc, &check, &error);
    memo_host_device_destroy(host);
    return status;
}

static int is_right(const trainer* r, const trainer* right) {
    return !memcmp(r->dw, right->dw, sizeof r->dw) && !memcmp(r->db, right->db, sizeof r->db);
}

#define NAME_OF(name, checked, verified) {#name, checked, verified},
static const struct { const char *name, *checked, *verified; } mistakes[] = {MISTAKES(NAME_OF)};

/* Without a budget, and with all recomputed; addresses, by a plan that follows timed steps. */
TEST(a_checked_session_names_each_or_trains_rightly) {
    static const struct {
        memo_policy policy;
        int64_t device_bytes;
    } plans[] = {{MEMO_POLICY_KEEP, 0}, {MEMO_POLICY_RECOMPUTE, 0}, {MEMO_POLICY_MEMO, 12 << 10}};
    trainer right, r;
    make(&right, NONE);
    CHECK_OK(train(&right, MEMO_POLICY_KEEP, 0));
    CHECK(norm(&right) > 0);
    for (int m = 0; m < N_MISTAKES; m++) {
        int n_seen = 0;
        const int n_plans = m == NONE || m == ADDRESSES_CACHED ? 3 : 2;
        for (int k = 0; k < n_plans; k++) {
            make(&r, (mistake)m);
            const memo_status status = train(&r, plans[k].policy, plans[k].device_bytes);
            const char* expected = mistakes[m].checked;
            IN_CASE("%s, plan %d: %s, norm %g of %g", mistakes[m].name, k,
                    status ? error.message : "no error", norm(&r), norm(&right));
            const int is_nan = !status && norm(&r) != norm(&r);
            CHECK(status || is_nan || is_right(&r, &right));
            if (status && strcmp(expected, "NaN"))
                CHECK(expected[0] && strstr(error.message, expected));
            n_seen += status || is_nan;
        }
        CHECK_IS(n_seen, ==, mistakes[m].checked[0] ? n_plans : 0);
    }
}

TEST(verify_names_what_checks_cannot_see) {
    trainer r;
    for (int m = 0; m < N_MISTAKES; m++) {
        if (!mistakes[m].verified) continue;
        make(&r, (mistake)m);
        const memo_status status = verify(&r);
        IN_CASE("%s: %s", mistakes[m].name, status ? error.message : "no error");
        CHECK((status != MEMO_STATUS_OK) == (mistakes[m].verified[0] != 0));
        if (status) CHECK(strstr(error.message, mistakes[m].verified));
    }
}
