/* operations.c - what random sessions plan and enqueue, a line for each.  Two versions of memo do the
 * same if their lines are equal; the program and the headers beside it stay those of one version.
 *
 *     cc -O1 -std=gnu11 -DMEMO_TEST_OWN_MAIN -IMEMO -Itests/support -Itests/session \
 *         tests/session/operations.c -o operations -lpthread -lm
 *     ./operations 2000 1 >after          N SEED; MEMO: a folder with the headers of a version
 *     cmp before after
 *
 * Sessions with states in every moment of the update, in slices, groups and orders, with shapes, late
 * rows and a file.  Addresses count from the begin of the session's memory.  -DLINKED: memo comes from a library. */
#ifndef LINKED
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#endif
#include "memo.h"
#include "memo_plan.h"
#include "extras/memo_look.h"
#include "owned.h"
#include "item_choices.h"
#include "trainer.h"

enum { ROWS = 40 };

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* --- a hash of all that is seen --- */

static uint64_t hash;
static char* base[2]; /* memory of the device and of the host */
static int64_t size[2];

static void put(int64_t number) {
    hash = (hash ^ (uint64_t)number) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
}
static void put_range(memo_range r) {
    for (int k = 0; k < 2; k++) {
        const uint64_t begin = (uint64_t)(uintptr_t)base[k];
        if (!base[k] || r.begin < begin || r.end > begin + (uint64_t)size[k]) continue;
        put(k + 1);
        put((int64_t)(r.begin - begin));
    }
    put((int64_t)(r.end - r.begin));
}
static void put_plan(const memo_step_plan* plan) {
    for (; plan; plan = plan->next) {
        for (int64_t k = 0; k < (int64_t)plan->swap.n_layers * plan->swap.n_tensors; k++)
            put(plan->swap.rows[k]);
        put(plan->device_bytes), put(plan->host_bytes), put(plan->disk_bytes);
        put(plan->n_streamed), put(plan->n_spilled), put(plan->update_at);
        put(plan->update_is_on_host), put(plan->slice_rows);
    }
}
static int64_t put_operations(const memo_schedule* schedule) {
    int64_t n_waits = 0;
    for (int64_t k = 0; k < schedule->n_ops; k++) {
        const memo_op* op = &schedule->ops[k];
        n_waits += op->kind == MEMO_OP_WAIT;
        put((int64_t)op->kind), put(op->stream), put(op->event), put(op->link_bytes);
        for (int64_t i = 0; i < op->n_reads + op->n_writes; i++)
            put_range(schedule->ranges[op->first_range + i]);
    }
    return n_waits;
}

/* --- a session --- */

static void vary(trainer* t, int64_t i) {
    memo_session_desc* d = &t->desc;
    t_init_random(t, ROWS);
    if (i % 3 == 1) t_take_order(t);
    if (i % 3 == 2 && !d->n_group) { /* all tensors, with late rows and buffers */
        d->n_tensors = T_N_TENSORS, d->n_buffers = T_N_BUFFERS;
        d->routed_rows_layer = ROWS;
        d->routed_rows_all = d->n_layers * memo_test_int(5, ROWS);
        memset(t->kinds, 0, sizeof t->kinds);
        t->tensors[T_X].row_bytes = T_ROW_BYTES;
        t->tensors[T_INPUT].scope = MEMO_INPUT;
        if (!d->slice_rows) d->slice_rows = 4 * memo_test_int(2, 5);
        if (i % 2 == 0) {
            d->n_states = d->update_may = 0;
            d->states = NULL, d->update = NULL, d->update_host = NULL;
            d->update_on = MEMO_UPDATE_PLANNED;
        }
    }
    d->policy = (memo_policy)memo_test_int(0, MEMO_POLICY_SWAP);
    if (d->n_order) d->policy = MEMO_POLICY_RECOMPUTE;
    if (i % 5 == 0) d->spill_directory = "/tmp";
}

/* Three steps of two micro-batches, with a forward alone of the second shape in one of them. */
static memo_status run(trainer* t, memo_session* s) {
    const int has_look = t->desc.n_shapes > 1 && (!t->desc.n_order || t->shapes[1].is_forward_only);
    memo_status status = MEMO_STATUS_OK;
    for (int k = 0; k < 6 && !status; k++) {
        const memo_batch look = {.is_forward_only = 1, .shape = 1};
        memo_batch batch = {.more_follow = k % 2 == 0};
        t->rate = 7;
        batch.values = &t->rate, batch.values_bytes = sizeof t->rate;
        if (k == 2 && has_look) status = memo_session_run(s, &look, &error);
        if (!status) status = t_run_call(t, s, batch);
        if (!status && k % 2 && t->desc.n_states) status = memo_session_update(s, &error);
    }
    return status;
}

static void record(trainer* t, const memo_step_plan* plan, int64_t i) {
    memo_device* host = NULL;
    memo_recorder* recorder = NULL;
    memo_schedule* schedule = NULL;
    memo_session* s = NULL;
    const memo_host_device_desc host_desc = {0};
    memo_recorder_desc recorder_desc = {0};
    CHECK_OK(memo_host_device_create(&host_desc, &host, &error));
    recorder_desc.device = host;
    CHECK_OK(memo_recorder_create(&recorder_desc, &recorder, &error));
    t->desc.device = memo_recorder_get_device(recorder);
    t->host = host, t->desc.computes_on_host = 0, t->waits = 1;
    CHECK_OK(memo_stream_create(t->desc.device, "compute", 0, &t->desc.compute_stream, &error));

    /* Memory of the caller, so that addresses can be compared. */
    size[0] = size[1] = 8192;
    for (const memo_step_plan* p = plan; p; p = p->next) {
        size[0] = most(size[0], (p->device_bytes + 1023) / 512 * 512);
        size[1] = most(size[1], p->host_bytes + 8192);
    }
    for (int k = 0; k < 2; k++)
        if (posix_memalign((void**)&base[k], 4096, (size_t)size[k])) exit(2);
    t->desc.device_bytes = size[0], t->desc.device_memory = base[0];
    t->desc.host_bytes = size[1], t->desc.host_memory = base[1];
    if (memo_session_open(&t->desc, plan, &s, &error) || run(t, s))
        printf("%lld: %.200s\n", (long long)i, error.message);
    memo_session_destroy(s);
    memo_stream_destroy(t->desc.device, t->desc.compute_stream, NULL);
    CHECK_OK(memo_recorder_get_schedule(recorder, &schedule, &error));
    hash = 1;
    put_plan(plan);
    const uint64_t of_plan = hash;
    const int64_t n_waits = put_operations(schedule);
    printf("%lld plan %016llx, %lld operations, %lld waits %016llx, bytes %lld %lld\n",
           (long long)i, (unsigned long long)of_plan, (long long)schedule->n_ops,
           (long long)n_waits, (unsigned long long)hash, (long long)plan->device_bytes,
           (long long)plan->host_bytes);
    memo_recorder_destroy(recorder);
    memo_host_device_destroy(host);
    free(base[0]), free(base[1]);
}

static void one(int64_t i) {
    static trainer t;
    memo_step_plan* plan = NULL;
    int64_t least;
    vary(&t, i);
    if (memo_session_get_least(&t.desc, &least, &error)) {
        printf("%lld: %.200s\n", (long long)i, error.message);
        return;
    }
    t.desc.device_bytes = least + memo_test_int(0, 3) * memo_test_int(0, 4000);
    if (memo_test_int(0, 3) == 0) t.desc.host_bytes = 4096 * memo_test_int(2, 40);
    if (memo_session_plan(&t.desc, NULL, &plan, &error))
        printf("%lld: %.200s\n", (long long)i, error.message);
    else if (!plan->fits || (plan->next && !plan->next->fits))
        printf("%lld: %s\n", (long long)i, plan->shortage);
    else
        record(&t, plan, i);
    memo_step_plan_destroy(plan);
}

int main(int argc, char** argv) {
    const int64_t n = argc > 1 ? atoll(argv[1]) : 100, seed = argc > 2 ? atoll(argv[2]) : 1;
    for (int64_t i = 0; i < n; i++) {
        memo_test.state = (uint64_t)(seed * 1000003 + i);
        one(i);
    }
    return 0;
}
