/* test_hooks.c - random trainers with hooks: every tensor is unpacked with the bytes that were
 * packed, in every budget, with faults and delays; recorded steps have no race; the audit finds
 * what differs, and nothing else. */
#include "scarce.h"
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_HOOKS_IMPLEMENTATION
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
    int32_t late_layer;  /* its first tensor is unpacked last of all; -1: none */
    int32_t skips_layer; /* of the next step: unlike the plan */
    char* memory;        /* a tensor each */
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
    r->desc = MEMO_ZERO(memo_hooks_desc);
    r->desc.computes_on_host = memo_test_int(0, 3) == 0;
    r->desc.least_bytes = memo_test_int(0, 1) ? 0 : 200;
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
    if (r->compute) memo_stream_synchronize(r->device, r->compute, NULL);
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

static memo_status backward(trainer* r, int32_t l, int32_t first, int32_t end, int64_t* tokens) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t t = end - 1; t >= first && !status; t--) {
        const int64_t k = (int64_t)l * TENSORS_MAX + t;
        void* bytes = NULL;
        status = memo_hooks_unpack(r->hooks, tokens[k], &bytes, &error);
        if (!status) status = compute(r, bytes, r->sizes[l][t], r->step * SAVED + (uint64_t)k, 1);
    }
    return status;
}

static memo_status run_step(trainer* r, int has_backward) {
    int64_t tokens[SAVED];
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
    if (has_backward && !status)
        status = backward(r, r->n_layers + 1, 0, r->n_tensors[r->n_layers + 1], tokens);
    for (int32_t l = n - 1; l >= 0 && has_backward && !status; l--)
        status = backward(r, l, l == late, r->n_tensors[l], tokens);
    if (has_backward && !status)
        status = backward(r, r->n_layers, 0, r->n_tensors[r->n_layers], tokens);
    if (late >= 0 && has_backward && !status) status = backward(r, late, 0, 1, tokens);
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
    for (int64_t i = 0; i < (memo_test_all() ? 3000 : 300); i++) {
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
        CHECK(used.device_bytes == before.device_bytes + stats.swap.device_bytes);
        CHECK(used.host_bytes == stats.swap.host_bytes);
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
    for (int64_t i = 0; i < (memo_test_all() ? 1000 : 150); i++) {
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
        CHECK(r.n_wrong == 0);
        close_trainer(&r);
    }
}

TEST(a_fault_at_any_call_loses_nothing) {
    int64_t n_failed = 0;
    for (int64_t i = 0; i < (memo_test_all() ? 40 : 6); i++) {
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
            memo_stream_synchronize(r.device, r.compute, NULL);
            CHECK_CASE(r.n_wrong == 0, "call %lld (%s)", (long long)k,
                       f.failed ? f.failed : "none");
            n_failed += f.failed != NULL;
            close_trainer(&r);
        }
        CHECK(!status);
    }
    CHECK(n_failed > 100);
}

TEST(the_audit_names_what_differs) {
    own_hooks* hooks = NULL;
    trainer lines; /* keeps lines of the log */
    char a[64], b[64];
    int64_t tokens[20];
    void* address = NULL;
    memset(&lines, 0, sizeof lines);
    memset(a, 1, sizeof a);
    memcpy(b, a, sizeof b);
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

    CHECK_OK(memo_hooks_unpack(hooks, tokens[3], &address, &error));
    CHECK(address == a);
    CHECK_OK(memo_hooks_compare(hooks, tokens[17], b, &error));
    b[63] = 2;
    CHECK_ERROR(memo_hooks_compare(hooks, tokens[17], b, &error), INVALID_STATE,
                "Tensor 14 of layer 3 differs after recomputation (64 bytes)");
    a[0] = 0;
    CHECK_ERROR(memo_hooks_unpack(hooks, tokens[2], &address, &error), INVALID_STATE,
                "Tensor 0 of layer 2 changed between forward and backward (64 bytes)");
    a[0] = 1;
    for (int k = 4; k < 19; k++) CHECK_OK(memo_hooks_unpack(hooks, tokens[k], &address, &error));
    CHECK_OK(memo_hooks_unpack(hooks, tokens[0], &address, &error));
    CHECK(lines.n_lines == 2);
    CHECK_OK(memo_hooks_end(hooks, &error));
    CHECK(lines.n_lines == 3);
    CHECK_CASE(!strcmp(lines.line, "Tensor 0 of layer 1 was never unpacked (64 bytes)"), "%s",
               lines.line);
    CHECK_ERROR(memo_hooks_unpack(hooks, tokens[3], &address, &error), INVALID_STATE,
                "no micro-batch is open");
}

TEST(wrong_calls_are_refused) {
    own_hooks* hooks = NULL;
    void* address = NULL;
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
    CHECK_ERROR(memo_hooks_unpack(hooks, stale, &address, &error), INVALID_ARGUMENT,
                "not of this micro-batch");
    CHECK_ERROR(memo_hooks_unpack(hooks, 12345, &address, &error), INVALID_ARGUMENT,
                "not of this micro-batch");
    CHECK_OK(memo_hooks_unpack(hooks, token, &address, &error));
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
            CHECK_OK(memo_hooks_unpack(hooks, tokens[l], &address, &error));
            CHECK(memcmp(address, bytes[l], 512) == 0);
        }
        if (step == 1) {
            CHECK_OK(memo_hooks_unpack(hooks, tokens[2], &address, &error));
            CHECK_ERROR(memo_hooks_unpack(hooks, tokens[4], &address, &error), INVALID_STATE,
                        "tensor 0 of layer 4: unpacked after layer 2");
        }
        CHECK_OK(memo_hooks_end(hooks, &error));
    }
}
