/* test_generated_mistakes.c - mistakes in random trainers (mutants.h).  A mutant whose results differ
 * between two plans is named: the desc or a call is refused, or a checked session or
 * memo_session_verify names it, or its results are NaN when checked.  A right trainer has the same
 * results under every plan, checked too, and is never named.
 *
 *     MUTANTS=10000 test_generated_mistakes mutants     so many
 *     MUTATION=STATE_BYTES SHOW=1 ...                   of one kind; a line for each */
#include "memo_plan.h"
#include "extras/memo_check.h"
#include "owned.h"
#include "at_once.h"
#include "mutants.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

/* A run of a trainer by a plan. */
typedef struct way {
    memo_policy policy;
    int32_t is_least, may, is_checked, verifies, is_right;
    int64_t device_bytes; /* of an earlier run with least memory; 0: not known */
} way;

typedef struct outcome {
    int has_ended, status, is_nan;
    int64_t device_bytes;
    uint64_t digest;
    char message[240];
} outcome;

enum { WAYS_MAX = 16 };
typedef enum verdict {
    SAME,
    REFUSED,
    STOPS,
    CHECKED,
    VERIFIED,
    IS_NAN,
    SILENT,
    N_VERDICTS
} verdict;
static const char* const verdict_names[] = {"harmless", "refused", "stops", "checked",
                                            "verified", "NaN",     "SILENT"};

static uint64_t mix(uint64_t hash, const void* bytes, size_t n) {
    for (size_t i = 0; i < n; i++) hash = (hash ^ ((const uint8_t*)bytes)[i]) * 1099511628211u;
    return hash;
}

/* First values, steps, and what they leave. */
static memo_status train(trainer* r, memo_session* s, outcome* o, memo_error* e) {
    static float bytes[4 * FLOATS_MAX];
    memo_status status = MEMO_STATUS_OK;
    o->digest = 14695981039346656037u;
    for (int k = 0; k < (r->desc.n_layers + 2) * r->desc.n_states && !status; k++) {
        const int32_t layer = k / r->desc.n_states - 1, i = k % r->desc.n_states;
        const memo_state* state = &r->states[i];
        if (state->uses & MEMO_STATE_GRADIENT) continue;
        for (int j = 0; j < state->size_bytes / 4; j++)
            bytes[j] = state->uses & (MEMO_STATE_FORWARD | MEMO_STATE_BACKWARD)
                           ? .2f + .1f * cosf((float)(j + layer + i))
                           : .01f;
        status = memo_session_write_state(s, layer, i, 0, bytes, state->size_bytes, e);
    }
    for (int k = 0; k < STEPS && !status; k++) status = train_step(r, s, e);

    for (int k = 0; k < (r->desc.n_layers + 2) * r->desc.n_states && !status; k++) {
        const memo_state* state = &r->states[k % r->desc.n_states];
        if (state->uses & MEMO_STATE_GRADIENT) continue;
        memset(bytes, 0, sizeof bytes);
        status = memo_session_read_state(s, k / r->desc.n_states - 1, k % r->desc.n_states, 0,
                                         bytes, state->size_bytes, e);
        o->digest = mix(o->digest, bytes, (size_t)state->size_bytes);
        for (int j = 0; j < state->size_bytes / 4; j++) o->is_nan |= isnan(bytes[j]);
    }
    o->digest = mix(o->digest, &r->loss, sizeof r->loss);
    o->digest = mix(o->digest, &r->validated, sizeof r->validated);
    o->is_nan |= isnan(r->loss) || isnan(r->validated);
    return status;
}

static void run(const trainer* of, const way* how, outcome* o) {
    static trainer r;
    memo_session* s = NULL;
    memo_error e;
    memo_status status = MEMO_STATUS_OK;
    memo_device device = at_once_device();
    r = *of;
    r.desc.user = &r;
    r.desc.device = &device, r.desc.computes_on_host = 1;
    r.desc.tensors = r.items, r.desc.states = r.states, r.desc.buffers = r.buffers;
    if (r.desc.layer_kinds) r.desc.layer_kinds = r.layer_kinds;
    if (r.desc.order) r.desc.order = r.order;
    if (r.desc.shapes) r.desc.shapes = r.shapes;
    const memo_verify_output outputs[] = {
        {"loss", &r.loss, sizeof r.loss, MEMO_TYPE_F64, 0},
        {"validated", &r.validated, sizeof r.validated, MEMO_TYPE_F64, 0},
        {"step", &r.step, sizeof r.step, MEMO_TYPE_I32, 0},
        {"number", &r.number, sizeof r.number, MEMO_TYPE_I32, 0}};
    memo_verify_desc check = {.outputs = outputs, .n_outputs = 4, .train = train_step};

    r.desc.policy = how->policy, r.desc.is_checked = how->is_checked;
    if (!how->verifies) r.desc.update_may = how->may ? how->may | MEMO_MAY_NOT_PASS : 0;
    r.desc.device_bytes = how->device_bytes;
    if (how->is_least && !how->device_bytes)
        status = memo_session_get_least(&r.desc, &r.desc.device_bytes, &e);
    o->device_bytes = r.desc.device_bytes;
    if (!status && how->verifies)
        status = memo_session_verify(&r.desc, &check, &e);
    else {
        if (!status) status = memo_session_create(&r.desc, &s, &e);
        if (!status) status = memo_session_watch(s, &check, &e);
        if (!status) status = train(&r, s, o, &e);
        memo_session_destroy(s);
    }
    o->status = (int)status;
    snprintf(o->message, sizeof o->message, "%.239s", status ? e.message : "");
    o->has_ended = 1;
}

/* In processes of their own, as some stop.  until_named: until one says what is wrong. */
static void run_all(const trainer* r, const trainer* right, const way* ways, int n, outcome* o,
                    int until_named) {
    static outcome* shared = NULL;
    int k = 0, status;
    if (!shared)
        shared = (outcome*)mmap(NULL, WAYS_MAX * sizeof *shared, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(shared, 0, WAYS_MAX * sizeof *shared);
    while (k < n) {
        const pid_t child = fork();
        if (!child) {
            alarm(30);
            if (!freopen("/dev/null", "w", stderr)) _exit(1);
            for (; k < n; k++) {
                run(ways[k].is_right ? right : r, &ways[k], &shared[k]);
                if (until_named && (shared[k].status || shared[k].is_nan)) break;
            }
            _exit(0);
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK_CASE(!WIFSIGNALED(status) || WTERMSIG(status) != SIGALRM, "a run does not end");
        while (k < n && shared[k].has_ended) k++;
        if (WIFEXITED(status)) break;
        k++; /* it has stopped */
    }
    memcpy(o, shared, (size_t)n * sizeof *o);
}

/* The plans of a trainer: with most and with least memory at each moment that it allows, and two
 * other ways for the rows. */
static int list_ways(const trainer* r, way* ways) {
    int n = 0;
    for (int32_t may = 0; may <= MEMO_MAY_FUSE; may++) {
        if (may & ~r->desc.update_may) continue;
        ways[n++] = (way){MEMO_POLICY_KEEP, 0, may, 0, 0, 0, 0};
        ways[n++] = (way){MEMO_POLICY_ALPHA, 1, may, 0, 0, 0, 0};
    }
    ways[n++] = (way){MEMO_POLICY_RECOMPUTE, 0, 0, 0, 0, 0, 0};
    ways[n++] = (way){MEMO_POLICY_SWAP, 0, 0, 0, 0, 0, 0};
    return n;
}

/* What a checked session says under each plan, then verify. */
static verdict check_all(const trainer* r, way* ways, int n, uint64_t digest, char* message) {
    outcome o[WAYS_MAX];
    const int is_right = r->m == RIGHT;
    verdict found = SILENT;
    for (int k = 0; k < n; k++) ways[k].is_checked = 1, ways[k].is_right = 0;
    ways[n++] = (way){MEMO_POLICY_ALPHA, 1, 0, 0, 1, 0, ways[1].device_bytes};
    run_all(r, r, ways, n, o, !is_right);
    for (int k = 0; k < n && getenv("SHOW"); k++)
        printf("#   checked %d: ended %d %016llx nan %d %s\n", k, o[k].has_ended,
               (unsigned long long)o[k].digest, o[k].is_nan, o[k].message);
    for (int k = 0; k < n; k++) {
        if (!o[k].has_ended && !is_right) continue;
        if (o[k].status && found == SILENT) {
            found = ways[k].verifies ? VERIFIED : CHECKED;
            strcpy(message, o[k].message);
        }
        if (o[k].is_nan && found == SILENT) found = IS_NAN;
        if (is_right)
            CHECK_CASE(o[k].has_ended && !o[k].status && !o[k].is_nan &&
                           (ways[k].verifies || o[k].digest == digest),
                       "way %d: %s", k, o[k].has_ended ? o[k].message : "it stops");
    }
    return found;
}

static verdict judge(const trainer* r, const trainer* right, char* message) {
    way ways[WAYS_MAX];
    outcome o[WAYS_MAX];
    int n = list_ways(r, ways), n_refused = 0, n_stopped = 0, is_same = 1;
    const int n_ways = n;
    if (mutations[r->m].is_promise) ways[n] = ways[0], ways[n++].is_right = 1;
    run_all(r, right, ways, n, o, 0);
    for (int k = 0; k < n && getenv("SHOW"); k++)
        printf("#   way %d: policy %d least %d may %d: ended %d %016llx nan %d %s\n", k,
               (int)ways[k].policy, (int)ways[k].is_least, (int)ways[k].may, o[k].has_ended,
               (unsigned long long)o[k].digest, o[k].is_nan, o[k].message);
    for (int k = 0; k < n; k++) {
        if (!ways[k].is_right) n_refused += o[k].has_ended && o[k].status;
        n_stopped += !o[k].has_ended;
        is_same &= o[k].digest == o[0].digest && o[k].status == o[0].status;
        if (o[k].status) strcpy(message, o[k].message);
        if (ways[k].is_least && !o[k].status) ways[k].device_bytes = o[k].device_bytes;
    }
    if (r->m == RIGHT) {
        CHECK_CASE(is_same && !n_refused && !n_stopped && !o[0].is_nan, "%s", message);
        (void)check_all(r, ways, n_ways, o[0].digest, message);
        return SAME;
    }
    if (n_refused == n_ways) return REFUSED;
    if (is_same && !n_stopped) return SAME;
    const verdict found = check_all(r, ways, n_ways, 0, message);
    return found == SILENT && n_stopped ? STOPS : found;
}

static void make_mutant(trainer* r, trainer* right, uint64_t seed) {
    memo_test.state = seed;
    make_trainer(r);
    *right = *r;
}

TEST(mutants_are_named) {
    static int64_t n[N_MUTATIONS][N_VERDICTS], sums[N_VERDICTS];
    static trainer r, right;
    const char *wished = getenv("MUTATION"), *number = getenv("MUTANTS"), *first = getenv("FIRST");
    const int64_t n_mutants = number ? atoll(number) : memo_test_cases(300, 10000);
    const int64_t begin = first ? atoll(first) : 0;
    for (int64_t k = begin; k < begin + n_mutants; k++) {
        char message[240] = "";
        int m = (int)((uint64_t)k % N_MUTATIONS);
        for (int i = 0; wished && i < N_MUTATIONS; i++)
            if (!strcmp(wished, mutations[i].name)) m = i;
        uint64_t seed = memo_test.seed + (uint64_t)k * 1000;
        do make_mutant(&r, &right, seed++);
        while (!mutate(&r, (mutation)m));
        IN_CASE("mutant %lld, %s, %s, %s", (long long)k, mutations[m].name, pass_names[r.pass],
                r.role >= 0 ? role_names[r.kind][r.role] : "");
        const verdict found = judge(&r, &right, message);
        if (getenv("SHOW") || found == SILENT)
            printf(
                "# %lld %s, %s, %s, by %d, %d layers, %d rows, slices %d, %d x %d, order %d, may "
                "%d: %s: %s\n",
                (long long)k, mutations[m].name, pass_names[r.pass],
                r.role >= 0 ? role_names[r.kind][r.role] : "", r.by, (int)r.desc.n_layers,
                (int)r.desc.n_rows, (int)r.desc.slice_rows, r.n_calls, r.n_of_call,
                (int)r.desc.n_order, (int)r.desc.update_may, verdict_names[found], message);
        CHECK(found != SILENT);
        n[m][found]++, sums[found]++;
    }
    printf("# %-20s", "");
    for (int v = 0; v < N_VERDICTS; v++) printf(" %8s", verdict_names[v]);
    for (int m = 0; m < N_MUTATIONS + 1; m++) {
        const int64_t* of = m < N_MUTATIONS ? n[m] : sums;
        printf("\n# %-20s", m < N_MUTATIONS ? mutations[m].name : "all");
        for (int v = 0; v < N_VERDICTS; v++) printf(" %8lld", (long long)of[v]);
    }
    printf("\n");
}
