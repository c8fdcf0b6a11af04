/* test_hooks.c - random trainers with hooks: every tensor is unpacked with the bytes that were
 * packed, in every budget, with faults and delays; recorded steps have no race; the audit finds
 * what differs, and nothing else. */
#include "scarce.h"
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_HOOKS_IMPLEMENTATION
#include "memo_plan.h"
#include "extras/memo_look.h"
#include "extras/memo_hooks.h"
#include "stats.h"
#include "owned.h"
#include "pattern.h"

OWNED_TYPE(memo_hooks, hooks, memo_hooks_destroy)
#define own_hooks OWNED(drop_hooks) memo_hooks

enum {
    LAYERS_MAX = 9,
    TENSORS_MAX = 5,
    SIZE_MAX_BYTES = 3000,
    SAVED = (LAYERS_MAX + 2) * TENSORS_MAX
};

/* A trainer.  Tensors of layer n_layers are packed before the first layer, those of n_layers + 1
 * after the last. */
typedef struct trainer {
    memo_device* host;
    const memo_device* device;
    memo_stream compute;
    memo_hooks_desc desc;
    memo_hooks* hooks;
    int32_t n_layers, n_tensors[LAYERS_MAX + 2];
    int64_t sizes[LAYERS_MAX + 2][TENSORS_MAX];
    int32_t late_layer;   /* its first tensor is unpacked last of all; -1: none */
    int32_t shared_layer; /* its first tensor is also unpacked by all layers above; -1: none */
    uint64_t cuts;        /* which tensors are unpacked by one call */
    int32_t skips_layer;  /* of the next step: unlike the plan */
    char* memory;         /* a tensor each */
    uint64_t step;
    int64_t kept_bytes, n_wrong, n_lines;
    char line[300];
} trainer;

static memo_status compute(trainer* r, void* bytes, int64_t n_bytes, uint64_t key, int checks) {
    pattern j = {bytes, 0, n_bytes, key * 7919, checks ? &r->n_wrong : NULL};
    if (r->desc.computes_on_host) return run_pattern(&j, NULL);
    memo_status status =
        checks ? MEMO_ANNOTATE(r->device, r->compute, "read", &error, memo_reads(bytes, n_bytes))
               : MEMO_ANNOTATE(r->device, r->compute, "write", &error, memo_writes(bytes, n_bytes));
    return status ? status
                  : memo_host_device_launch(r->host, r->compute, run_pattern, &j, sizeof j, &error);
}

static void keep_line(void* user, const char* message) {
    trainer* r = (trainer*)user;
    r->n_lines++;
    snprintf(r->line, sizeof r->line, "%s", message);
}

static void random_trainer(trainer* r) {
    memset(r, 0, sizeof *r);
    r->n_layers = (int32_t)memo_test_int(1, LAYERS_MAX);
    const int is_uniform = memo_test_int(0, 1) != 0;
    for (int32_t l = 0; l < r->n_layers + 2; l++) {
        r->n_tensors[l] = (int32_t)memo_test_int(0, TENSORS_MAX);
        if (is_uniform && l > 0 && l < r->n_layers) r->n_tensors[l] = r->n_tensors[0];
        for (int32_t t = 0; t < TENSORS_MAX; t++)
            r->sizes[l][t] =
                is_uniform && l > 0 ? r->sizes[0][t] : memo_test_int(0, SIZE_MAX_BYTES);
    }
    r->late_layer = memo_test_int(0, 3) ? -1 : (int32_t)memo_test_int(0, r->n_layers - 1);
    r->shared_layer = memo_test_int(0, 2) ? -1 : (int32_t)memo_test_int(0, r->n_layers - 1);
    r->cuts = memo_test_random();
    r->desc = MEMO_ZERO(memo_hooks_desc);
    r->desc.computes_on_host = memo_test_int(0, 3) == 0;
    r->desc.log.write = keep_line;
    r->desc.log.user = r;
}

/* All tensors, and none: the budgets in between are those in which the rules matter. */
static int64_t total_bytes(const trainer* r) {
    int64_t sum = 0;
    for (int32_t l = 0; l < r->n_layers + 2; l++)
        for (int32_t t = 0; t < r->n_tensors[l]; t++) sum += r->sizes[l][t];
    return sum;
}

static memo_status open_trainer(trainer* r, memo_device* host, const memo_device* device) {
    void* memory = NULL;
    r->host = host;
    r->device = r->desc.device = device;
    CHECK_OK(memo_device_alloc(host, SAVED * SIZE_MAX_BYTES, &memory, &error));
    r->memory = (char*)memory;
    memo_status status = memo_stream_create(device, "compute", 0, &r->compute, &error);
    r->desc.compute_stream = r->compute;
    return status ? status : memo_hooks_create(&r->desc, &r->hooks, &error);
}

static void close_trainer(trainer* r) {
    if (r->compute) IGNORE(memo_stream_synchronize(r->device, r->compute, NULL));
    memo_hooks_destroy(r->hooks);
    if (r->compute) memo_stream_destroy(r->device, r->compute, NULL);
    memo_device_free(r->host, r->memory, NULL);
}

/* Computes the tensors of a layer, and packs them.  What memo has copied is overwritten at once. */
static memo_status forward(trainer* r, int32_t l, int64_t* tokens) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t t = 0; t < r->n_tensors[l] && !status; t++) {
        const int64_t k = (int64_t)l * TENSORS_MAX + t, n = r->sizes[l][t];
        char* bytes = r->memory + k * SIZE_MAX_BYTES;
        status = compute(r, bytes, n, r->step * SAVED + (uint64_t)k, 0);
        if (!status) status = memo_hooks_pack(r->hooks, bytes, n, &tokens[k], &error);
        if (!status && tokens[k] >= 0) status = compute(r, bytes, n, 1, 0);
        if (!status && tokens[k] < 0) r->kept_bytes += n;
    }
    return status;
}

/* A backward: tensors in the order in which they are unpacked. */
typedef struct unpacks {
    int32_t n, order[SAVED * LAYERS_MAX];
} unpacks;

static void unpack(unpacks* u, int32_t l, int32_t t) { u->order[u->n++] = l * TENSORS_MAX + t; }

static void unpack_layer(trainer* r, unpacks* u, int32_t l, int32_t first) {
    for (int32_t t = r->n_tensors[l] - 1; t >= first; t--) unpack(u, l, t);
}

/* Unpacks by calls for some tensors, in another order within a call in each step, and reads the
 * bytes behind each call. */
static memo_status backward(trainer* r, const unpacks* u, const int64_t* tokens) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t i = 0, n; i < u->n && !status; i += n) {
        int64_t of_call[SAVED * LAYERS_MAX];
        int32_t k[SAVED * LAYERS_MAX];
        void* bytes[SAVED * LAYERS_MAX];
        for (n = 0; i + n < u->n && (!n || r->cuts >> u->order[i + n] % 64 & 1); n++) {
            const int32_t at = (int32_t)memo_test_int(0, n);
            k[n] = k[at];
            k[at] = u->order[i + n];
        }
        for (int32_t j = 0; j < n; j++) of_call[j] = tokens[k[j]];
        status = memo_hooks_unpack(r->hooks, of_call, n, bytes, &error);
        for (int32_t j = 0; j < n && !status; j++)
            status = compute(r, bytes[j], r->sizes[k[j] / TENSORS_MAX][k[j] % TENSORS_MAX],
                             r->step * SAVED + (uint64_t)k[j], 1);
    }
    return status;
}

static memo_status run_step(trainer* r, int has_backward) {
    int64_t tokens[SAVED];
    unpacks u = {0};
    const int32_t n = r->n_layers - (r->skips_layer && r->n_layers > 1);
    const int32_t late = r->late_layer < n && r->n_tensors[r->late_layer < 0 ? 0 : r->late_layer]
                             ? r->late_layer
                             : -1;
    r->step++;
    r->kept_bytes = 0;
    memo_status status = memo_hooks_begin(r->hooks, &error);
    if (!status) status = forward(r, r->n_layers, tokens);
    for (int32_t l = 0; l < n && !status; l++) {
        status = memo_hooks_set_layer(r->hooks, l, &error);
        if (!status) status = forward(r, l, tokens);
    }
    if (!status) status = memo_hooks_set_layer(r->hooks, -1, &error);
    if (!status) status = forward(r, r->n_layers + 1, tokens);
    unpack_layer(r, &u, r->n_layers + 1, 0);
    for (int32_t l = n - 1; l >= 0; l--) {
        if (l > r->shared_layer && r->shared_layer >= 0 && r->n_tensors[r->shared_layer])
            unpack(&u, r->shared_layer, 0);
        unpack_layer(r, &u, l, l == late);
    }
    unpack_layer(r, &u, r->n_layers, 0);
    if (late >= 0) unpack(&u, late, 0);
    if (has_backward && !status) status = backward(r, &u, tokens);
    return status ? status : memo_hooks_end(r->hooks, &error);
}

/* Records a step, with a budget between the least and all bytes. */
static void plan_trainer(trainer* r) {
    r->desc.device_bytes = 1;
    r->hooks->desc.device_bytes = 1;
    const memo_status status = run_step(r, 1);
    memo_hooks_stats stats;
    memo_hooks_get_stats(r->hooks, &stats);
    const int64_t least = status ? stats.kept_bytes + stats.swap.device_bytes : 1;
    if (!status) return; /* there is nothing to keep */
    CHECK(status == MEMO_STATUS_INFEASIBLE && strstr(error.message, "are enough"));
    r->hooks->desc.device_bytes = r->desc.device_bytes =
        least + memo_test_int(0, total_bytes(r) > least ? total_bytes(r) - least : 0);
    CHECK_OK(run_step(r, 1));
    memo_hooks_get_stats(r->hooks, &stats);
    CHECK(stats.kept_bytes + stats.swap.device_bytes <= r->desc.device_bytes);
}

TEST(unpacked_bytes_are_those_that_were_packed) {
    int64_t n_moved = 0, n_unplanned = 0;
    for (int64_t i = 0; i < memo_test_cases(300, 3000); i++) {
        own_device* host = new_host(i % 3 ? 0 : 1e8);
        memo_faults delays;
        trainer r;
        random_trainer(&r);
        r.desc.is_checked = i % 5 == 0;
        memo_faults_init(&delays, host);
        delays.delay_s = i % 4 ? 0 : 2e-4;
        delays.seed = memo_test_random();
        CHECK_OK(open_trainer(&r, host, &delays.device));
        memo_host_device_stats before = host_device_stats(host);
        plan_trainer(&r);

        memo_hooks_stats stats;

        memo_hooks_get_stats(r.hooks, &stats);
        /* memo allocates what the plan says. */
        memo_host_device_stats used = host_device_stats(host);
        CHECK(used.device_bytes ==
              before.device_bytes + stats.swap.device_bytes + 4 * r.hooks->slot_bytes);
        CHECK(used.host_bytes == before.host_bytes + stats.swap.host_bytes);
        const int64_t done = mallocs_done, planned_kept = r.n_lines ? -1 : stats.kept_bytes;
        for (int64_t step = 0; step < 3; step++) {
            CHECK_OK(run_step(&r, step != 1));
            CHECK_CASE(r.kept_bytes == planned_kept, "case %lld", (long long)i);
        }
        CHECK(mallocs_done == done || r.desc.is_checked);
        n_moved += stats.swap.swapped_bytes;

        /* A step that packs something else; then as planned again. */
        r.skips_layer = i % 3 == 0;
        if (i % 2 && r.n_tensors[0] && r.late_layer != 0)
            r.sizes[0][0] += r.sizes[0][0] < 2000 ? 600 : -600;
        CHECK_OK(run_step(&r, 1));
        r.skips_layer = 0;
        memo_hooks_get_stats(r.hooks, &stats);
        n_unplanned += stats.n_unplanned;
        CHECK_CASE(stats.n_unplanned == 0 || strstr(r.line, "of layer 0 is not as planned"), "%s",
                   r.line);
        CHECK_OK(run_step(&r, 1));
        CHECK_OK(memo_stream_synchronize(r.device, r.compute, &error));
        CHECK_CASE(r.n_wrong == 0, "case %lld: %lld bytes", (long long)i, (long long)r.n_wrong);
        CHECK(stats.n_findings == 0);
        close_trainer(&r);
    }
    CHECK(n_moved > 0 && n_unplanned > 0);
}

TEST(recorded_steps_have_no_race) {
    for (int64_t i = 0; i < memo_test_cases(150, 1000); i++) {
        own_device* host = new_host(0);
        trainer r;
        own_recorder* recorder = new_recorder((memo_recorder_desc){.device = host});
        random_trainer(&r);
        r.desc.computes_on_host = 0;
        CHECK_OK(open_trainer(&r, host, memo_recorder_get_device(recorder)));
        plan_trainer(&r);
        for (uint64_t step = 0; step < 3; step++) {
            r.skips_layer = step == 1;
            CHECK_OK(run_step(&r, memo_test_int(0, 3) != 0));
        }
        own_check* check = check_of(recorded(recorder));
        CHECK_CASE(check && check->n_races == 0, "case %lld", (long long)i);
        CHECK_OK(memo_stream_synchronize(r.device, r.compute, &error)); /* which counts */
        CHECK(r.n_wrong == 0);
        close_trainer(&r);
    }
}

TEST(a_fault_at_any_call_loses_nothing) {
    const int n = memo_test_cases(6, 40);
    int64_t n_failed = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint64_t seed = memo_test_random();
        memo_status status = MEMO_STATUS_DEVICE;
        for (int64_t k = 1; status && k < 5000; k++) {
            own_device* host = new_host(0);
            memo_faults f;
            trainer r;
            memo_test.state = seed;
            random_trainer(&r);
            r.desc.device_bytes = 1 + total_bytes(&r) * 2 / 3;
            memo_faults_init(&f, host);
            f.failing_call = k;
            status = open_trainer(&r, host, &f.device);
            for (int step = 0; step < 4 && r.hooks; step++) {
                const memo_status s = run_step(&r, 1);
                if (!s || s == MEMO_STATUS_INFEASIBLE) continue;
                CHECK_CASE(s == MEMO_STATUS_DEVICE && strstr(error.message, "on purpose"), "%s",
                           error.message);
                status = s;
            }
            IGNORE(memo_stream_synchronize(r.device, r.compute, NULL));
            CHECK_CASE(r.n_wrong == 0, "call %lld (%s)", (long long)k,
                       f.failed ? f.failed : "none");
            n_failed += f.failed != NULL;
            close_trainer(&r);
        }
        CHECK(!status);
    }
    CHECK_IS(n_failed, >=, n < 20 ? n : 16 * n);
}

TEST(the_audit_names_what_differs) {
    own_hooks* hooks = NULL;
    trainer lines; /* keeps lines of the log */
    char a[64];
    int64_t tokens[20];
    void* address = NULL;
    memset(&lines, 0, sizeof lines);
    memset(a, 1, sizeof a);
    memo_hooks_desc desc = {.is_checked = 1, .log.write = keep_line, .log.user = &lines};
    CHECK_OK(memo_hooks_create(&desc, &hooks, &error));
    CHECK_OK(memo_hooks_begin(hooks, &error));
    for (int32_t l = 0; l < 4; l++) {
        CHECK_OK(memo_hooks_set_layer(hooks, l, &error));
        for (int t = 0; t < (l == 3 ? 16 : 1); t++)
            CHECK_OK(memo_hooks_pack(hooks, a, sizeof a, &tokens[l + t], &error));
    }
    CHECK_OK(memo_hooks_set_layer(hooks, -1, &error));
    CHECK(tokens[0] < 0); /* its owner keeps it */

    CHECK_OK(memo_hooks_unpack(hooks, &tokens[3], 1, &address, &error));
    CHECK(address == a);
    a[0] = 0;
    CHECK_ERROR(memo_hooks_unpack(hooks, &tokens[2], 1, &address, &error), INVALID_STATE,
                "Tensor 0 of layer 2 changed between forward and backward (64 bytes)");
    a[0] = 1;
    for (int k = 4; k < 19; k++)
        CHECK_OK(memo_hooks_unpack(hooks, &tokens[k], 1, &address, &error));
    CHECK_OK(memo_hooks_unpack(hooks, &tokens[0], 1, &address, &error));
    CHECK(lines.n_lines == 1);
    CHECK_OK(memo_hooks_end(hooks, &error));
    CHECK(lines.n_lines == 2);
    CHECK_CASE(!strcmp(lines.line, "Tensor 0 of layer 1 was never unpacked (64 bytes)"), "%s",
               lines.line);
    CHECK_ERROR(memo_hooks_unpack(hooks, &tokens[3], 1, &address, &error), INVALID_STATE,
                "no micro-batch is open");
}

TEST(wrong_calls_are_refused) {
    own_hooks* hooks = NULL;
    void* address = NULL;
    const int64_t unknown = 12345;
    int64_t token = 0, stale;
    char a[8] = "";
    memo_hooks_desc desc = {.device_bytes = -1};
    memo_hooks* failed = (memo_hooks*)a;
    CHECK_ERROR(memo_hooks_create(&desc, &failed, &error), INVALID_ARGUMENT, "negative");
    CHECK(!failed);
    desc.device_bytes = 0;
    CHECK_OK(memo_hooks_create(&desc, &hooks, &error));
    CHECK_ERROR(memo_hooks_pack(hooks, a, 8, &token, &error), INVALID_STATE, "memo_hooks_begin");
    CHECK_OK(memo_hooks_begin(hooks, &error));
    CHECK_ERROR(memo_hooks_set_layer(hooks, 1, &error), INVALID_STATE, "layer 0 is next");
    CHECK_ERROR(memo_hooks_pack(hooks, NULL, 8, &token, &error), INVALID_ARGUMENT, "no bytes");
    CHECK_ERROR(memo_hooks_pack(hooks, a, -8, &token, &error), INVALID_ARGUMENT, "no bytes");
    CHECK_OK(memo_hooks_pack(hooks, a, 8, &stale, &error));
    CHECK_OK(memo_hooks_begin(hooks, &error)); /* abandons */
    CHECK_OK(memo_hooks_pack(hooks, a, 8, &token, &error));
    CHECK_ERROR(memo_hooks_unpack(hooks, &stale, 1, &address, &error), INVALID_ARGUMENT,
                "not of this micro-batch");
    CHECK_ERROR(memo_hooks_unpack(hooks, &unknown, 1, &address, &error), INVALID_ARGUMENT,
                "not of this micro-batch");
    CHECK_OK(memo_hooks_unpack(hooks, &token, 1, &address, &error));
    CHECK(address == a);
    CHECK_OK(memo_hooks_end(hooks, &error));
}

TEST(an_order_unlike_the_plans_is_refused) {
    own_device* host = new_host(0);
    own_hooks* hooks = NULL;
    int64_t tokens[6];
    void* address = NULL;
    char bytes[6][512];
    memset(bytes, 5, sizeof bytes);
    memo_hooks_desc desc = {.device = host, .computes_on_host = 1, .device_bytes = 2 * 512};
    CHECK_OK(memo_hooks_create(&desc, &hooks, &error));
    for (int step = 0; step < 3; step++) {
        CHECK_OK(memo_hooks_begin(hooks, &error));
        for (int32_t l = 0; l < 6; l++) {
            CHECK_OK(memo_hooks_set_layer(hooks, l, &error));
            CHECK_OK(memo_hooks_pack(hooks, bytes[l], 512, &tokens[l], &error));
            CHECK((tokens[l] < 0) == (step == 0));
        }
        CHECK_OK(memo_hooks_set_layer(hooks, -1, &error));
        for (int32_t l = 5; l >= 0 && step != 1; l--) {
            CHECK_OK(memo_hooks_unpack(hooks, &tokens[l], 1, &address, &error));
            CHECK(memcmp(address, bytes[l], 512) == 0);
        }
        if (step == 1) {
            CHECK_OK(memo_hooks_unpack(hooks, &tokens[2], 1, &address, &error));
            CHECK_ERROR(memo_hooks_unpack(hooks, &tokens[4], 1, &address, &error), INVALID_STATE,
                        "tensor 0 of layer 4: unpacked after layer 2");
        }
        CHECK_OK(memo_hooks_end(hooks, &error));
    }
}

/* --- operators that read tensors of several layers --- */

enum { N_LAYERS = 8, N_NUMBERS = 256 };

/* Each layer packs two tensors.  A norm at each border reads the second of a layer and the first of
 * the layer below, computes, and reads both again. */
typedef enum border { ONE_CALL, TWO_CALLS, LOWER_FIRST, BY_TURNS } border;

static int64_t border_step(memo_hooks* hooks, border way, int step, float own[][2][N_NUMBERS]) {
    int64_t tokens[N_LAYERS][2], n_wrong = 0;
    CHECK_OK(memo_hooks_begin(hooks, &error));
    for (int32_t l = 0; l < N_LAYERS; l++) {
        CHECK_OK(memo_hooks_set_layer(hooks, l, &error));
        CHECK_OK(memo_hooks_set_layer(hooks, l, &error)); /* it is open: nothing */
        for (int t = 0; t < 2; t++) {
            for (int i = 0; i < N_NUMBERS; i++) own[l][t][i] = (float)(step * 100 + l * 2 + t);
            CHECK_OK(memo_hooks_pack(hooks, own[l][t], sizeof own[l][t], &tokens[l][t], &error));
        }
    }
    for (int32_t l = N_LAYERS - 1; l > 0; l--) {
        const int64_t both[] = {tokens[l][1], tokens[l - 1][0]};
        const int is_lower_first = way == LOWER_FIRST || (way == BY_TURNS && step > 1 && l % 2);
        void* at[2] = {NULL, NULL};
        if (way == ONE_CALL) CHECK_OK(memo_hooks_unpack(hooks, both, 2, at, &error));
        for (int i = 0; i < 2 && way != ONE_CALL; i++) {
            const int k = i ^ is_lower_first;
            CHECK_OK(memo_hooks_unpack(hooks, &both[k], 1, &at[k], &error));
        }
        for (int i = 0; i < N_NUMBERS; i++) {
            n_wrong += ((float*)at[0])[i] != (float)(step * 100 + l * 2 + 1);
            n_wrong += ((float*)at[1])[i] != (float)(step * 100 + l * 2 - 2);
        }
    }
    CHECK_OK(memo_hooks_end(hooks, &error));
    return n_wrong;
}

TEST(an_operator_reads_tensors_of_two_layers) {
    static float own[N_LAYERS][2][N_NUMBERS];
    for (border way = ONE_CALL; way <= BY_TURNS; way = (border)(way + 1)) {
        own_device* host = new_host(0);
        own_hooks* hooks = NULL;
        memo_hooks_stats stats;
        memo_hooks_desc desc = {.device = host, .computes_on_host = 1, .is_checked = 1};
        desc.device_bytes = (N_LAYERS + 2) * (int64_t)sizeof own[0][0];
        CHECK_OK(memo_hooks_create(&desc, &hooks, &error));
        for (int step = 0; step < 4; step++)
            CHECK_CASE(border_step(hooks, way, step, own) == 0, "way %d, step %d", (int)way, step);
        memo_hooks_get_stats(hooks, &stats);
        CHECK(stats.swap.swapped_bytes > 0 && stats.n_findings == 2 * 4); /* two never unpacked */
    }
}

TEST(shared_tensors_stay_and_end_no_layer) {
    enum { BYTES = 4096, SHARED = 1024, PER_LAYER = 4, LAYERS = 10 };
    static char own[LAYERS][PER_LAYER][BYTES], shared[SHARED];
    memset(shared, 77, sizeof shared);

    /* The layer that packs it: the first, none, or a donor of keys, from which on all read it. */
    for (int32_t donor = -1; donor < LAYERS; donor += 5) {
        own_device* host = new_host(0);
        own_hooks* hooks = NULL;
        memo_hooks_stats stats;
        memo_hooks_desc desc = {.device = host, .computes_on_host = 1, .device_bytes = 12 * BYTES};
        CHECK_OK(memo_hooks_create(&desc, &hooks, &error));
        for (int step = 0; step < 3; step++) {
            int64_t tokens[LAYERS][PER_LAYER], token = 0;
            void* at = NULL;
            CHECK_OK(memo_hooks_begin(hooks, &error));
            for (int32_t l = -1; l < LAYERS; l++) {
                CHECK_OK(memo_hooks_set_layer(hooks, l, &error));
                if (l == donor) CHECK_OK(memo_hooks_pack(hooks, shared, SHARED, &token, &error));
                for (int k = 0; k < PER_LAYER && l >= 0; k++) {
                    memset(own[l][k], l * PER_LAYER + k + 1, BYTES);
                    CHECK_OK(memo_hooks_pack(hooks, own[l][k], BYTES, &tokens[l][k], &error));
                    if (tokens[l][k] >= 0) memset(own[l][k], 0, BYTES);
                }
            }
            for (int32_t l = LAYERS - 1; l >= 0; l--) {
                if (l >= donor) CHECK_OK(memo_hooks_unpack(hooks, &token, 1, &at, &error));
                CHECK(l < donor || ((char*)at)[SHARED - 1] == 77);
                for (int k = PER_LAYER - 1; k >= 0; k--) {
                    CHECK_OK(memo_hooks_unpack(hooks, &tokens[l][k], 1, &at, &error));
                    CHECK(((char*)at)[BYTES - 1] == l * PER_LAYER + k + 1);
                }
            }
            CHECK_OK(memo_hooks_end(hooks, &error));
        }
        memo_hooks_get_stats(hooks, &stats);
        CHECK_CASE(stats.kept_bytes <= 4 * BYTES && stats.swap.swapped_bytes >= 28 * BYTES,
                   "donor %d: %lld kept, %lld move", (int)donor, (long long)stats.kept_bytes,
                   (long long)stats.swap.swapped_bytes);
    }
}

/* --- checks --- */

/* Packs a tensor of 512 numbers in each of 6 layers, and unpacks them.  misreads: the forward
 * computes another tensor from the last one after its pack. */
static void nan_step(memo_hooks* hooks, float* own, int is_poisoned, int misreads) {
    int64_t tokens[7];
    float* at[6];
    CHECK_OK(memo_hooks_begin(hooks, &error));
    for (int32_t l = 0; l < 6; l++) {
        float* x = own + 512 * l;
        CHECK_OK(memo_hooks_set_layer(hooks, l, &error));
        for (int i = 0; i < 512; i++) x[i] = (float)(l + i);
        CHECK_OK(memo_hooks_pack(hooks, x, 2048, &tokens[l], &error));
        CHECK((x[3] != x[3]) == is_poisoned);
    }
    for (int i = 0; i < 512 && misreads; i++) own[512 * 6 + i] = 2 * own[512 * 5 + i] + 1;
    if (misreads && is_poisoned)
        CHECK_ERROR(memo_hooks_pack(hooks, own + 512 * 6, 2048, &tokens[6], &error), INVALID_STATE,
                    "Tensor 1 of layer 5 is computed from bytes of a tensor that memo has moved");
    for (int32_t l = 5; l >= 0; l--) {
        CHECK_OK(memo_hooks_unpack(hooks, &tokens[l], 1, (void**)&at[l], &error));
        CHECK(at[l][7] == (float)(l + 7));
        /* A layer ends with the second call after its own. */
        if (l < 4 && tokens[0] >= 0) CHECK(at[l + 2][7] != at[l + 2][7]);
    }
    CHECK_OK(memo_hooks_end(hooks, &error));
}

TEST(bytes_that_nobody_may_read_are_nan) {
    for (int k = 0; k < 4; k++) {
        const int reads_on = k / 2;
        own_device* host = new_host(0);
        memo_hooks* hooks = NULL;
        memo_stream compute = NULL;
        void* memory = NULL;
        CHECK_OK(memo_stream_create(host, "compute", 0, &compute, &error));
        CHECK_OK(memo_device_alloc(host, 7 * 2048, &memory, &error));
        memo_hooks_desc desc = {.device = host,
                                .compute_stream = compute,
                                .computes_on_host = k % 2,
                                .is_checked = 1,
                                .device_bytes = 2 * 2048,
                                .owner_reads_on = reads_on};
        CHECK_OK(memo_hooks_create(&desc, &hooks, &error));
        nan_step(hooks, (float*)memory, 0, 0);
        nan_step(hooks, (float*)memory, !reads_on, 0);
        nan_step(hooks, (float*)memory, !reads_on, 1);
        memo_hooks_destroy(hooks);
        CHECK_OK(memo_device_free(host, memory, &error));
        CHECK_OK(memo_stream_destroy(host, compute, &error));
    }
}

TEST(forgotten_tensors_are_one_line) {
    own_hooks* hooks = NULL;
    trainer lines;
    char a[64] = "";
    int64_t token;
    void* at;
    memo_hooks_stats stats;
    memset(&lines, 0, sizeof lines);
    memo_hooks_desc desc = {.is_checked = 1, .log.write = keep_line, .log.user = &lines};
    CHECK_OK(memo_hooks_create(&desc, &hooks, &error));
    for (int step = 0; step < 4; step++) { /* until another number is forgotten */
        const int n = step < 3 ? 10000 : 5000;
        CHECK_OK(memo_hooks_begin(hooks, &error));
        CHECK_OK(memo_hooks_set_layer(hooks, 0, &error));
        for (int i = 0; i < n; i++) CHECK_OK(memo_hooks_pack(hooks, a, sizeof a, &token, &error));
        CHECK_OK(memo_hooks_unpack(hooks, &token, 1, &at, &error));
        CHECK_OK(memo_hooks_end(hooks, &error));
        CHECK_IS(lines.n_lines, ==, step < 3 ? 1 : 2);
        CHECK_TEXT(lines.line,
                   step < 3 ? "Tensor 0 of layer 0 was never unpacked (64 bytes); so 9998 others"
                            : "Tensor 0 of layer 0 was never unpacked (64 bytes); so 4998 others");
    }
    memo_hooks_get_stats(hooks, &stats);
    CHECK_IS(stats.n_findings, ==, 3 * 9999 + 4999);
}

TEST(unchecked_hooks_find_nothing) {
    own_hooks* hooks = NULL;
    trainer lines;
    char a[64] = "";
    int64_t tokens[2];
    void* at;
    memo_hooks_stats stats;
    memset(&lines, 0, sizeof lines);
    memo_hooks_desc desc = {.log.write = keep_line, .log.user = &lines};
    CHECK_OK(memo_hooks_create(&desc, &hooks, &error));
    CHECK_OK(memo_hooks_begin(hooks, &error));
    CHECK_OK(memo_hooks_set_layer(hooks, 0, &error));
    for (int k = 0; k < 2; k++) CHECK_OK(memo_hooks_pack(hooks, a, sizeof a, &tokens[k], &error));
    CHECK_OK(memo_hooks_unpack(hooks, tokens, 1, &at, &error));
    CHECK_OK(memo_hooks_end(hooks, &error));
    memo_hooks_get_stats(hooks, &stats);
    CHECK(stats.n_findings == 0 && lines.n_lines == 0);
}

/* The plan evaluates sizes, for which memory is requested, some hundred times at most. */
TEST(planning_takes_a_time_that_grows_with_the_tensors) {
    int64_t n_requests[2];
    for (int k = 0; k < 2; k++) {
        const int32_t per_layer = k ? 2000 : 20;
        own_device* host = new_host(0);
        own_hooks* hooks = NULL;
        int64_t* tokens = (int64_t*)malloc((size_t)per_layer * 10 * sizeof *tokens);
        static char bytes[512];
        void* at;
        memo_hooks_desc desc = {.device = host, .computes_on_host = 1};
        desc.device_bytes = (int64_t)per_layer * 512 * 6;
        CHECK_OK(memo_hooks_create(&desc, &hooks, &error));
        CHECK_OK(memo_hooks_begin(hooks, &error));
        for (int32_t i = 0; i < per_layer * 10; i++) {
            CHECK_OK(memo_hooks_set_layer(hooks, i / per_layer, &error));
            CHECK_OK(memo_hooks_pack(hooks, bytes, sizeof bytes, &tokens[i], &error));
        }
        for (int32_t i = per_layer * 10 - 1; i >= 0; i--)
            CHECK_OK(memo_hooks_unpack(hooks, &tokens[i], 1, &at, &error));
        const long long before = mallocs_done;
        CHECK_OK(memo_hooks_end(hooks, &error));
        n_requests[k] = mallocs_done - before;
        free(tokens);
    }
    CHECK(n_requests[0] > 10 && n_requests[1] < 4 * n_requests[0]);
}

/* --- one budget for the arena and the hooks --- */

/* Layers that make random tensors, some of them scratch.  Each value is written when it is requested,
 * and read when it is unpacked. */
typedef struct fitted {
    memo_hooks* hooks;
    int32_t n_layers, n_tensors;
    int64_t sizes[12][4];
    int is_real, n_steps;
    int32_t n_forgotten; /* first layers, whose tensors are never unpacked */
    int64_t n_wrong, step;
} fitted;

static memo_status fitted_step(void* user, memo_arena* arena, memo_error* e) {
    fitted* f = (fitted*)user;
    int64_t tokens[12][4];
    void *own[12][4], *at[4], *scratch = NULL, *weights = NULL;
    memo_status status = MEMO_STATUS_OK;
    f->n_steps++;
    f->step++;
    if (!f->is_real) status = memo_arena_alloc(arena, 5000, 0, &weights, e);
    if (!status) status = memo_arena_begin(arena, e);
    if (!status) status = memo_hooks_begin(f->hooks, e);
    for (int32_t l = 0; l < f->n_layers && !status; l++) {
        status = memo_hooks_set_layer(f->hooks, l, e);
        for (int32_t t = 0; t < f->n_tensors && !status; t++) {
            const int64_t n = f->sizes[l][t];
            status = memo_arena_alloc(arena, n, 0, &own[l][t], e);
            if (!status) status = memo_arena_alloc(arena, n / 2, 0, &scratch, e);
            if (!status && f->is_real) memset(scratch, 99, (size_t)(n / 2));
            if (!status && f->is_real)
                memset(own[l][t], (int)(f->step * 50 + l * 4 + t) & 127, (size_t)n);
            if (!status) status = memo_arena_free(arena, scratch, e);
            if (!status) status = memo_hooks_pack(f->hooks, own[l][t], n, &tokens[l][t], e);
            if (!status && tokens[l][t] >= 0) status = memo_arena_free(arena, own[l][t], e);
        }
    }
    for (int32_t l = f->n_layers - 1; l >= f->n_forgotten && !status; l--) {
        status = memo_hooks_unpack(f->hooks, tokens[l], f->n_tensors, at, e);
        for (int32_t t = 0; t < f->n_tensors && !status; t++) {
            const char value = (char)((int)(f->step * 50 + l * 4 + t) & 127);
            for (int64_t i = 0; i < f->sizes[l][t] && f->is_real; i++)
                f->n_wrong += ((char*)at[t])[i] != value;
            if (tokens[l][t] < 0) status = memo_arena_free(arena, own[l][t], e);
        }
    }
    if (!status) status = memo_hooks_end(f->hooks, e);
    return status ? status : memo_arena_end(arena, e);
}

TEST(one_budget_plans_arena_and_hooks) {
    int64_t n_moved = 0, n_kept = 0;
    for (int k = 0; k < memo_test_cases(25, 200); k++) {
        own_device* host = new_host(0);
        own_hooks* hooks = NULL;
        own_plan* plan = NULL;
        own_arena* arena = NULL;
        memo_hooks_stats stats;
        fitted f = {.n_layers = (int32_t)memo_test_int(4, 12),
                    .n_tensors = (int32_t)memo_test_int(1, 4)};
        int64_t sum = 0;
        for (int32_t l = 0; l < f.n_layers; l++)
            for (int32_t t = 0; t < f.n_tensors; t++)
                sum += f.sizes[l][t] = k % 2 && l ? f.sizes[0][t] : memo_test_int(1, 20000);
        memo_hooks_desc desc = {.device = host, .computes_on_host = 1, .is_checked = k % 3 == 0};
        CHECK_OK(memo_hooks_create(&desc, &hooks, &error));
        f.hooks = hooks;

        /* What the refusal says is enough. */
        CHECK_ERROR(memo_hooks_fit(hooks, fitted_step, &f, 1, &plan, &error), INFEASIBLE, "enough");
        CHECK(plan == NULL);
        const int64_t least = atoll(strstr(error.message, "; ") + 2);
        const int64_t budget = k % 5 == 0 ? least : memo_test_int(least, least + sum);
        f.n_steps = 0;
        CHECK_OK(memo_hooks_fit(hooks, fitted_step, &f, budget, &plan, &error));
        CHECK_IS(f.n_steps, <, 32);
        memo_hooks_get_stats(hooks, &stats);
        const int64_t before = host_device_stats(host).device_bytes;
        CHECK(before == stats.swap.device_bytes + 4 * hooks->slot_bytes);
        CHECK_IS(plan->peak_bytes + stats.swap.device_bytes, <=, budget);
        n_moved += stats.swap.swapped_bytes;
        n_kept += stats.kept_bytes;

        memo_arena_desc replay = {.device = host, .plan = plan, .is_checked = k % 3 == 0};
        void* weights = NULL;
        CHECK_OK(memo_arena_create(&replay, &arena, &error));
        CHECK_OK(memo_arena_alloc(arena, 5000, 0, &weights, &error));
        f.is_real = 1;
        for (int step = 0; step < 3; step++) CHECK_OK(fitted_step(&f, arena, &error));
        CHECK_CASE(f.n_wrong == 0, "case %d: %lld", k, (long long)f.n_wrong);
    }
    CHECK(n_moved > 0 && n_kept > 0);
}

TEST(a_step_that_cannot_be_fitted_is_named) {
    own_device* host = new_host(0);
    own_hooks* hooks = NULL;
    memo_plan* plan = NULL;
    fitted f = {.n_layers = 4, .n_tensors = 1, .sizes = {{100}, {100}, {100}, {100}}};
    memo_hooks_desc desc = {0};
    CHECK_OK(memo_hooks_create(&desc, &f.hooks, &error));
    CHECK_ERROR(memo_hooks_fit(f.hooks, fitted_step, &f, 1000, &plan, &error), INVALID_ARGUMENT,
                "without a device");
    memo_hooks_destroy(f.hooks);
    desc.device = host, desc.computes_on_host = 1;
    CHECK_OK(memo_hooks_create(&desc, &hooks, &error));
    f.hooks = hooks;
    CHECK_ERROR(memo_hooks_fit(hooks, fitted_step, &f, 0, &plan, &error), INVALID_ARGUMENT,
                "pass a budget");
    f.n_forgotten = f.n_layers;
    CHECK_ERROR(memo_hooks_fit(hooks, fitted_step, &f, 1 << 20, &plan, &error), INVALID_STATE,
                "it must run a forward and a backward");
    f.n_forgotten = 0;
    CHECK_OK(memo_hooks_fit(hooks, fitted_step, &f, 1 << 20, &plan, &error));
    memo_plan_destroy(plan);
}

/* The first layer's tensor is forgotten, which a checked step would find. */
TEST(a_dry_step_finds_nothing) {
    own_device* host = new_host(0);
    own_hooks* hooks = NULL;
    own_plan* plan = NULL;
    memo_hooks_stats stats;
    fitted f = {.n_layers = 4, .n_tensors = 1, .sizes = {{100}, {100}, {100}, {100}}};
    memo_hooks_desc desc = {.device = host, .computes_on_host = 1, .is_checked = 1};
    CHECK_OK(memo_hooks_create(&desc, &hooks, &error));
    f.hooks = hooks;
    f.n_forgotten = 1;
    CHECK_OK(memo_hooks_fit(hooks, fitted_step, &f, 1 << 20, &plan, &error));
    memo_hooks_get_stats(hooks, &stats);
    CHECK_IS(stats.n_findings, ==, 0);
}
