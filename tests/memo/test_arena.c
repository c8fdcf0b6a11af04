/* test_arena.c - chapter 5 of memo.h: recording, replaying, and requests that diverge from the
 * plan. */
#include "scarce.h"
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#include "memo.h"
#include "stats.h"
#include "owned.h"

/* --- a device whose blocks are counted --- */

static struct {
    memo_device table, *host;
    int64_t n_allocs, n_live;
    char* latest;
} the_device;

static memo_status device_alloc(void* context, int64_t size_bytes, void** address, memo_error* e) {
    CHECK_IS(size_bytes, >, 0);
    memo_status status = the_device.host->device_alloc(context, size_bytes, address, e);
    if (status) return status;
    the_device.latest = (char*)*address;
    the_device.n_allocs++;
    the_device.n_live++;
    return MEMO_STATUS_OK;
}

static memo_status device_free(void* context, void* address, memo_error* e) {
    the_device.n_live--;
    return the_device.host->device_free(context, address, e);
}

/* Drops the one before. */
static const memo_device* fresh_device(int64_t capacity) {
    drop_device(&the_device.host);
    memset(&the_device, 0, sizeof the_device);
    the_device.host = new_device((memo_host_device_desc){.device_memory_bytes = capacity});
    the_device.table = *the_device.host;
    the_device.table.device_alloc = device_alloc;
    the_device.table.device_free = device_free;
    return &the_device.table;
}

/* --- plans --- */

/* The bytes of buffer i that buffer k > i may not share. */
static int64_t conflict_bytes(const memo_plan* plan, int64_t i, int64_t k) {
    const memo_buffer *a = &plan->buffers[i], *b = &plan->buffers[k];
    for (int64_t h = 0; h < plan->n_gaps; h++)
        if (plan->gaps[h].buffer == i && plan->gaps[h].begin <= b->begin &&
            plan->gaps[h].end >= memob_min(a->end, b->end) && b->begin < a->end)
            return 0;
    if (a->begin < b->end && b->begin < a->end) return memob_buffer_bytes(plan, i);
    for (int64_t h = 0; h < plan->n_holds; h++)
        if (plan->holds[h].buffer == i && plan->holds[h].lane == plan->buffers[k].lane &&
            plan->buffers[k].begin < plan->holds[h].until)
            return memob_buffer_bytes(plan, i);
    return 0;
}

/* Lowest offset at which a buffer meets none before it. */
static void first_fit(memo_plan* plan) {
    plan->peak_bytes = 0;
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        memo_buffer* buffer = &plan->buffers[i];
        int64_t alignment = buffer->alignment_bytes ? buffer->alignment_bytes : 1;
        buffer->offset_bytes = 0;
        for (int64_t k = 0; k < i && buffer->size_bytes > 0; k++) {
            const memo_buffer* other = &plan->buffers[k];
            int64_t bytes = conflict_bytes(plan, k, i), top = other->offset_bytes + bytes;
            if (bytes == 0 || top <= buffer->offset_bytes ||
                buffer->offset_bytes + memob_buffer_bytes(plan, i) <= other->offset_bytes)
                continue;
            buffer->offset_bytes = memob_align_up(top, alignment);
            k = -1; /* again from the start */
        }
        plan->peak_bytes =
            memob_max(plan->peak_bytes, buffer->offset_bytes + memob_buffer_bytes(plan, i));
    }
    plan->proof = MEMO_PROOF_FEASIBLE;
}

static memo_plan* planned(const memo_trace* trace, int64_t alignment) {
    memo_plan* plan = plan_of_trace(trace, alignment);
    first_fit(plan);
    CHECK_OK(memo_plan_validate(plan, &error));
    return plan;
}

static memo_plan* planned_text(const char* text, int64_t alignment) {
    own_trace* trace = trace_of_text(text);
    return planned(trace, alignment);
}

static int32_t is_checked; /* of the next arenas */

static memo_arena* replay(const memo_device* device, const memo_plan* plan) {
    memo_arena* arena = NULL;
    memo_arena_desc desc = {.device = device, .plan = plan, .is_checked = is_checked};
    CHECK_OK(memo_arena_create(&desc, &arena, &error));
    return arena;
}

/* Records into a new trace; device NULL: a dry run. */
static memo_arena* record(const memo_device* device, memo_trace** trace) {
    memo_arena* arena = NULL;
    CHECK_OK(memo_trace_create(trace, &error));
    memo_arena_desc desc = {.device = device, .trace = *trace, .is_checked = is_checked};
    CHECK_OK(memo_arena_create(&desc, &arena, &error));
    return arena;
}

/* Destroys both; the device's block went back. */
static void close_replay(memo_arena* arena, memo_plan* plan) {
    memo_arena_destroy(arena);
    CHECK_IS(the_device.n_live, ==, 0);
    memo_plan_destroy(plan);
}

static void* take(memo_arena* arena, int64_t size_bytes) {
    void* address = NULL;
    CHECK_OK(memo_arena_alloc(arena, size_bytes, 0, &address, &error));
    CHECK(address != NULL);
    return address;
}
static void drop(memo_arena* arena, void* address) {
    CHECK_OK(memo_arena_free(arena, address, &error));
}

/* --- the example at the head of memo.h --- */

static memo_status step(memo_arena* arena, memo_error* e) {
    void *x, *y;
    if (memo_arena_begin(arena, e) || memo_arena_alloc(arena, 3 << 20, 0, &x, e) ||
        memo_arena_alloc(arena, 1 << 20, 0, &y, e))
        return e->status;
    if (memo_arena_free(arena, x, e) || memo_arena_free(arena, y, e)) return e->status;
    return memo_arena_end(arena, e);
}

TEST(the_example_works) {
    own_trace* trace = NULL;
    memo_arena* arena = record(NULL, &trace);
    long long before;
    CHECK_OK(step(arena, &error));
    memo_arena_destroy(arena);
    memo_plan* plan = planned(trace, 0);
    arena = replay(fresh_device(5 << 20), plan);
    before = mallocs_done;
    for (int i = 0; i < 1000; i++) CHECK_OK(step(arena, &error));
    CHECK(mallocs_done == before && the_device.n_allocs == 1 &&
          host_device_stats(the_device.host).device_bytes == 4 << 20);
    CHECK_IS(arena_stats(arena).n_requests, ==, 2000);
    CHECK_IS(arena_stats(arena).reserved_bytes, ==, 4 << 20);
    close_replay(arena, plan);
}

/* --- recording --- */

TEST(recording_writes_the_requests_down) {
    for (int has_device = 0; has_device < 2; has_device++) {
        own_trace* trace = NULL;
        memo_arena* arena = record(has_device ? fresh_device(1 << 20) : NULL, &trace);
        void *weights, *a, *b;
        weights = take(arena, 1000);
        for (int i = 0; i < 3; i++) { /* only the first is recorded */
            CHECK_OK(memo_arena_begin(arena, &error));
            CHECK_OK(memo_arena_mark(arena, "layer 0 forward begin", &error));
            CHECK_OK(memo_arena_alloc(arena, 100, 2, &a, &error));
            b = take(arena, 0);
            CHECK(a != b && (uintptr_t)a % 512 == 0 && b != weights);
            CHECK_OK(memo_arena_use(arena, a, 1, &error));
            CHECK_OK(memo_arena_record(arena, 4, 1, &error));
            CHECK_OK(memo_arena_wait(arena, 4, 2, &error));
            drop(arena, a);
            drop(arena, b);
            CHECK_OK(memo_arena_end(arena, &error));
        }
        CHECK_IS(memo_arena_alloc(arena, 8, 0, &a, &error), ==, MEMO_STATUS_INVALID_STATE);
        drop(arena, weights);
        CHECK(trace->n_requests == 11 && trace->n_buffers == 3 && trace->n_live == 1);
        CHECK_IS(trace->requests[0].memory_class, ==, MEMO_CLASS_PERSISTENT);
        CHECK(trace->requests[3].id == 1 && trace->requests[3].stream == 2 &&
              trace->requests[3].memory_class == MEMO_CLASS_TRANSIENT);
        CHECK_IS(strcmp(trace->text + trace->requests[1].id, "iteration begin"), ==, 0);
        CHECK_IS(strcmp(trace->text + trace->requests[10].id, "iteration end"), ==, 0);
        CHECK_IS(arena_stats(arena).n_requests, ==, 7);
        CHECK_IS(arena_stats(arena).reserved_bytes, ==, 1100);
        memo_arena_destroy(arena);
        if (has_device) CHECK(the_device.n_live == 0 && the_device.n_allocs == 7);
    }
}

TEST(misuse_is_named) {
    own_trace* trace = NULL;
    memo_arena* arena = record(fresh_device(1024), &trace);
    void* b;
    CHECK_IS(memo_arena_end(arena, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_OK(memo_arena_begin(arena, &error));
    CHECK_IS(memo_arena_begin(arena, &error), ==, MEMO_STATUS_INVALID_STATE);
    void* a = take(arena, 100);
    int64_t n_requests = trace->n_requests;
    CHECK_IS(memo_arena_alloc(arena, -1, 0, &b, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_arena_alloc(arena, 10, 64, &b, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(the_device.n_live, ==, 1); /* the block of the refused request went back */
    CHECK_IS(memo_arena_alloc(arena, 1000, 0, &b, &error), ==, MEMO_STATUS_OUT_OF_DEVICE_MEMORY);
    CHECK_IS(memo_arena_free(arena, NULL, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_arena_free(arena, &error, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_arena_use(arena, &error, 0, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_arena_wait(arena, 3, 0, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_arena_mark(arena, "", &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(trace->n_requests, ==, n_requests);
    CHECK_OK(memo_arena_end(arena, &error)); /* frees what is left, for the trace too */
    CHECK(trace->n_live == 0 && trace->n_requests > n_requests);
    CHECK_IS(the_device.n_live, ==, 1); /* an output */
    CHECK_IS(memo_arena_free(arena, a, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_OK(memo_arena_begin(arena, &error));
    CHECK_IS(the_device.n_live, ==, 0);
    memo_arena_destroy(arena);
    memo_arena_destroy(NULL);
}

TEST(dry_addresses_never_meet) {
    own_trace* trace = NULL;
    own_arena* arena = record(NULL, &trace);
    uintptr_t first = 0, top = 0;
    void* live[50];
    for (int round = 0; round < 100; round++) {
        CHECK_OK(memo_arena_begin(arena, &error));
        for (int i = 0; i < 50; i++) {
            int64_t size_bytes = memo_test_int(0, 2) ? memo_test_int(0, 3000) : (int64_t)1 << 45;
            live[i] = take(arena, size_bytes);
            CHECK(live[i] && (uintptr_t)live[i] % 512 == 0);
            if (i == 0 && round == 0) first = (uintptr_t)live[0];
            if (i == 0)
                CHECK_IS((uintptr_t)live[0], ==, first); /* addresses are used again */
            else
                CHECK_IS((uintptr_t)live[i], >=, top);
            top = (uintptr_t)live[i] + (uintptr_t)(size_bytes + !size_bytes);
        }
        for (int i = 0; i < 50; i++) drop(arena, live[i]);
        CHECK_OK(memo_arena_end(arena, &error));
    }
    CHECK_OK(memo_arena_begin(arena, &error));
    for (int i = 0; i < 3; i++) {
        void* address;
        memo_status status = memo_arena_alloc(arena, MEMOB_BYTES_MAX, 0, &address, &error);
        CHECK(status == MEMO_STATUS_OK || status == MEMO_STATUS_OUT_OF_DEVICE_MEMORY);
    }
}

/* --- replaying a faithful trainer --- */

static const char* const small_trace =
    "malloc 0 1000\nmalloc 1 500\nmark iteration begin\nmalloc 2 100\nmalloc 3 2000\nmalloc 4 300\n"
    "free 3 2000\nmalloc 5 700\nfree 2 100\nfree 4 300\nfree 5 700\nmark iteration end\n";

TEST(replay_gives_the_planned_addresses) {
    memo_plan* plan = planned_text(small_trace, 256);
    memo_arena* arena = replay(fresh_device(1 << 20), plan);
    char* base = the_device.latest;
    long long before = mallocs_done;
    void *a, *b, *c, *d;
    void* w = take(arena, 1000);
    void* v = take(arena, 500);
    CHECK_IS((char*)w, ==, base + plan->buffers[0].offset_bytes);
    CHECK_IS((char*)v, ==, base + plan->buffers[1].offset_bytes);
    for (int round = 0; round < 5; round++) {
        int64_t less = round % 3; /* smaller than planned is served from the slot */
        CHECK_OK(memo_arena_begin(arena, &error));
        a = take(arena, 100 - less);
        b = take(arena, 2000 - less * 1000);
        c = take(arena, 300);
        drop(arena, b);
        d = take(arena, 700);
        CHECK_IS((char*)a, ==, base + plan->buffers[2].offset_bytes);
        CHECK_IS((char*)b, ==, base + plan->buffers[3].offset_bytes);
        CHECK_IS((char*)c, ==, base + plan->buffers[4].offset_bytes);
        CHECK_IS((char*)d, ==, base + plan->buffers[5].offset_bytes);
        drop(arena, a);
        drop(arena, c);
        drop(arena, d);
        CHECK_OK(memo_arena_use(arena, a, 0, &error)); /* costs nothing, asks nothing */
        CHECK_OK(memo_arena_mark(arena, "here", &error));
        CHECK_OK(memo_arena_end(arena, &error));
    }
    CHECK(mallocs_done == before && the_device.n_allocs == 1);
    CHECK_IS(arena_stats(arena).n_requests, ==, 22);
    drop(arena, v);
    CHECK_IS(memo_arena_free(arena, v, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_arena_free(arena, NULL, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    close_replay(arena, plan);
}

TEST(frees_may_come_early_and_batches_stop_early) {
    memo_plan* plan = planned_text(small_trace, 256);
    memo_arena* arena = replay(fresh_device(1 << 20), plan);
    CHECK_OK(memo_arena_begin(arena, &error)); /* without the persistent requests */
    void* a = take(arena, 100);
    void* b = take(arena, 2000);
    drop(arena, a);
    void* c = take(arena, 300);
    drop(arena, c);
    drop(arena, b);
    void* d = take(arena, 700);
    drop(arena, d);
    CHECK_OK(memo_arena_end(arena, &error));
    CHECK_OK(memo_arena_begin(arena, &error));
    CHECK_IS(take(arena, 100), ==, a);
    drop(arena, a);
    CHECK_OK(memo_arena_end(arena, &error));
    CHECK_OK(memo_arena_begin(arena, &error));
    CHECK_OK(memo_arena_end(arena, &error));
    CHECK_OK(memo_arena_begin(arena, &error));
    CHECK(take(arena, 100) == a && take(arena, 2000) == b);
    CHECK_OK(memo_arena_end(arena, &error)); /* outputs may stay to the end */
    CHECK_IS(memo_arena_free(arena, b, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_OK(memo_arena_begin(arena, &error));
    CHECK(take(arena, 100) == a && take(arena, 2000) == b);
    drop(arena, b);
    CHECK_OK(memo_arena_end(arena, &error));
    close_replay(arena, plan);
}

TEST(requests_of_no_bytes_have_addresses) {
    static const int64_t alignments[] = {1, 2, 512};
    for (int i = 0; i < 3; i++) {
        memo_plan* plan =
            planned_text("malloc 1 0\nmalloc 2 8\nmalloc 3 0\nmalloc 4 0\nmalloc 5 8\n"
                         "free 1 0\nfree 2 8\nfree 3 0\nfree 4 0\nfree 5 8\n",
                         alignments[i]);
        memo_arena* arena = replay(fresh_device(1 << 20), plan);
        void* live[5];
        for (int round = 0; round < 2; round++) {
            CHECK_OK(memo_arena_begin(arena, &error));
            for (int k = 0; k < 5; k++) {
                live[k] = take(arena, k == 1 || k == 4 ? 8 * !round : 0);
                for (int j = 0; j < k; j++) CHECK_IS(live[j], !=, live[k]);
            }
            for (int k = 4; k >= 0; k--) drop(arena, live[k]);
            CHECK_OK(memo_arena_end(arena, &error));
        }
        close_replay(arena, plan);
    }
}

TEST(an_empty_plan_replays) {
    memo_plan* plan = planned_text("mark iteration begin\n", 0);
    memo_arena* arena = replay(fresh_device(1), plan);
    void* address;
    CHECK_OK(memo_arena_begin(arena, &error));
    CHECK_IS(memo_arena_alloc(arena, 0, 0, &address, &error), ==, MEMO_STATUS_DIVERGED);
    CHECK_OK(memo_arena_end(arena, &error));
    close_replay(arena, plan);
}

TEST(temporaries_before_the_body_are_planned) {
    memo_plan* plan = planned_text("malloc 0 8\nmalloc 1 100\nmalloc 2 8\nfree 1 100\nmalloc 3 50\n"
                                   "mark iteration begin\nmalloc 4 100\nfree 4 100\nfree 3 50\n",
                                   1);
    memo_arena* arena = replay(fresh_device(1 << 20), plan);
    char* base = the_device.latest;
    void* a;
    CHECK_IS((char*)take(arena, 8), ==, base + plan->buffers[0].offset_bytes);
    void* t = take(arena, 100);
    CHECK_IS((char*)take(arena, 8), ==, base + plan->buffers[2].offset_bytes);
    CHECK_FAILS(memo_arena_begin(arena, &error), INVALID_STATE); /* its place is needed */
    drop(arena, t);
    void* u = take(arena, 50);
    for (int round = 0; round < 2; round++) {
        CHECK_OK(memo_arena_begin(arena, &error));
        a = take(arena, 100);
        CHECK_IS((char*)a, ==, base + plan->buffers[4].offset_bytes);
        drop(arena, a);
        if (round == 0) drop(arena, u);
        CHECK_OK(memo_arena_end(arena, &error));
    }
    close_replay(arena, plan);
}

TEST(lifetimes_that_wait_for_streams_replay) {
    own_trace* trace = NULL;
    own_plan* plan = NULL;
    for (int pass = 0; pass < 2; pass++) {
        if (pass) plan = planned(trace, 0);
        own_arena* arena = pass ? replay(fresh_device(1 << 20), plan) : record(NULL, &trace);
        for (int round = 0; round <= pass; round++) {
            CHECK_OK(memo_arena_begin(arena, &error));
            void* a = take(arena, 512);
            CHECK_OK(memo_arena_use(arena, a, 1, &error));
            CHECK_OK(memo_arena_record(arena, 0, 1, &error));
            drop(arena, a);
            void* b = take(arena, 512); /* stream 1 may still use a */
            CHECK_OK(memo_arena_wait(arena, 0, 0, &error));
            void* c = take(arena, 512); /* now it cannot */
            if (pass) CHECK(b != a && c == a);
            drop(arena, b);
            drop(arena, c);
            CHECK_OK(memo_arena_end(arena, &error));
        }
    }
}

/* --- divergence --- */

TEST(divergence_is_an_error) {
    memo_plan* plan = planned_text(small_trace, 256);
    memo_arena* arena = replay(fresh_device(1 << 20), plan);
    void *a, *d;
    CHECK_OK(memo_arena_begin(arena, &error));
    CHECK_IS(memo_arena_alloc(arena, 101, 0, &a, &error), ==, MEMO_STATUS_DIVERGED); /* too large */
    CHECK(strstr(error.message, "request 0 of the micro-batch asks for 101 bytes, but the plan has "
                                "buffer 2 of 100 bytes (id 2) here"));
    a = take(arena, 100); /* a refused request changes nothing */
    void* b = take(arena, 2000);
    void* c = take(arena, 300);
    CHECK_FAILS(memo_arena_alloc(arena, 700, 0, &d, &error), DIVERGED); /* not its turn */
    CHECK_TEXT(error.message, "first frees buffer 3 of 2000 bytes");
    drop(arena, b);
    d = take(arena, 700);
    CHECK_IS(memo_arena_alloc(arena, 0, 0, &b, &error), ==, MEMO_STATUS_DIVERGED); /* one more */
    CHECK_TEXT(error.message, "first frees buffer 2");
    drop(arena, a);
    drop(arena, c);
    drop(arena, d);
    CHECK_ERROR(memo_arena_alloc(arena, 0, 0, &b, &error), DIVERGED, "no more requests");
    CHECK_OK(memo_arena_end(arena, &error));
    CHECK_IS(arena_stats(arena).n_requests, ==, 4);
    close_replay(arena, plan);
}

/* --- random trainers, faithful or not: live buffers never share a byte --- */

typedef struct request {
    int64_t block; /* malloc of a block, or its free */
    int is_free;
} request;

typedef struct batch {
    request requests[200];
    int64_t sizes[200];
    int n;
} batch;

static batch random_batch(void) {
    int64_t live[200], n_live = 0, n_blocks = 0, n = memo_test_int(0, 60), k;
    batch made = {0};
    while (n_blocks < n || n_live) {
        request* r = &made.requests[made.n++];
        if (n_blocks < n && (n_live == 0 || memo_test_int(0, 8) < 5)) {
            made.sizes[n_blocks] = memo_test_int(0, 9) ? memo_test_int(1, 3000) : 0;
            r->block = n_blocks;
            live[n_live++] = n_blocks++;
        } else {
            k = memo_test_int(0, n_live - 1);
            r->block = live[k];
            r->is_free = 1;
            live[k] = live[--n_live];
        }
    }
    return made;
}

/* The same requests a little differently: order swapped, sizes changed, some left out, some new. */
static batch mutated(const batch* source) {
    batch made = *source;
    int i, n_changes = (int)memo_test_int(0, 6), n_blocks = 0;
    for (i = 0; i < made.n; i++) n_blocks += !made.requests[i].is_free;
    for (; n_changes > 0 && made.n > 0; n_changes--) {
        int at = (int)memo_test_int(0, made.n - 1);
        int64_t block = made.requests[at].block;
        switch (memo_test_int(0, 3)) {
        case 0:
            if (at + 1 < made.n && made.requests[at + 1].block != block) {
                request r = made.requests[at];
                made.requests[at] = made.requests[at + 1];
                made.requests[at + 1] = r;
            }
            break;
        case 1: made.sizes[block] = memo_test_int(0, 4000); break;
        case 2: { /* a block less */
            int k = 0;
            for (i = 0; i < made.n; i++)
                if (made.requests[i].block != block) made.requests[k++] = made.requests[i];
            made.n = k;
            break;
        }
        default: /* a block more */
            if (made.n > 190 || n_blocks > 190) break;
            memmove(&made.requests[at + 1], &made.requests[at],
                    (size_t)(made.n - at) * sizeof(request));
            made.requests[at].block = n_blocks;
            made.requests[at].is_free = 0;
            made.sizes[n_blocks] = memo_test_int(0, 1000);
            made.n++;
            made.requests[made.n].block = n_blocks++;
            made.requests[made.n++].is_free = 1;
        }
    }
    return made;
}

/* Runs a batch; blocks are filled on arrival and inspected before they go.  Returns the
 * refusals. */
static int run_batch(memo_arena* arena, const batch* b, int touches, int may_diverge) {
    void* address[200];
    int64_t k, n_diverged = 0, live_bytes[200];
    memset(address, 0, sizeof address);
    CHECK_OK(memo_arena_begin(arena, &error));
    for (int i = 0; i < b->n; i++) {
        int64_t block = b->requests[i].block, size_bytes = b->sizes[block];
        if (b->requests[i].is_free) {
            if (!address[block]) continue; /* was refused */
            for (k = 0; touches && k < live_bytes[block]; k++)
                if (((unsigned char*)address[block])[k] != (unsigned char)(block + 1)) break;
            CHECK(!touches || k == live_bytes[block]);
            drop(arena, address[block]);
            address[block] = NULL;
            continue;
        }
        live_bytes[block] = size_bytes;
        if (memo_arena_alloc(arena, size_bytes, 0, &address[block], &error)) {
            CHECK(error.status == MEMO_STATUS_DIVERGED && may_diverge);
            address[block] = NULL;
            n_diverged++;
            continue;
        }
        for (int j = 0; j < 200; j++) CHECK(j == block || address[j] != address[block]);
        if (touches) memset(address[block], (int)(block + 1) & 255, (size_t)size_bytes);
    }
    CHECK_OK(memo_arena_end(arena, &error));
    return (int)n_diverged;
}

TEST(random_trainers_never_share_a_byte) {
    int n_diverged = 0;
    for (int round = 0; round < 200; round++) {
        batch b = random_batch();
        own_trace* trace = NULL;
        const int has_device = round % 3 == 0;
        memo_arena* arena = record(has_device ? fresh_device(1 << 30) : NULL, &trace);
        run_batch(arena, &b, has_device, 0);
        memo_arena_destroy(arena);
        memo_plan* plan = planned(trace, (int64_t)1 << memo_test_int(0, 10));
        arena = replay(fresh_device(1 << 30), plan);
        for (int k = 0; k < 6; k++) {
            batch changed = mutated(&b);
            n_diverged += run_batch(arena, &changed, 1, 1);
            if (k % 2) CHECK_IS(run_batch(arena, &b, 1, 0), ==, 0); /* none is remembered */
        }
        close_replay(arena, plan);
    }
    CHECK_IS(n_diverged, >, 200);
}

/* --- checks --- */

static void refuses(const memo_arena_desc* desc, memo_status status, const char* reason) {
    memo_arena* arena = (memo_arena*)&arena;
    CHECK_CASE(memo_arena_create(desc, &arena, &error) == status && !arena, "%s", reason);
    CHECK_CASE(strstr(error.message, reason), "%s: \"%s\"", reason, error.message);
}

TEST(checked_trainers_run_as_others) {
    int n_diverged = 0;
    is_checked = 1;
    for (int round = 0; round < 40; round++) {
        batch b = random_batch();
        own_trace* trace = NULL;
        const int has_device = round % 3 != 0;
        memo_arena* arena = record(has_device ? fresh_device(1 << 30) : NULL, &trace);
        for (int k = 0; k < 3; k++) run_batch(arena, &b, has_device, 0);
        memo_arena_destroy(arena);
        memo_plan* plan = planned(trace, (int64_t)1 << memo_test_int(0, 12));
        arena = replay(fresh_device(1 << 30), plan);
        for (int k = 0; k < 4; k++) {
            batch changed = mutated(&b);
            n_diverged += run_batch(arena, &changed, 1, 1);
            CHECK_IS(run_batch(arena, &b, 1, 0), ==, 0);
        }
        close_replay(arena, plan);
    }
    is_checked = 0;
    CHECK_IS(n_diverged, >, 40);
}

/* What a porter may do wrong, and how it comes out. */
typedef enum mistake {
    NO_MISTAKE,
    FREED_TOO_EARLY,
    WRITTEN_AFTER_FREE,
    OUTPUT_FREED,
    TAKEN_FOR_ZERO,
    NUMBERS_FOR_BYTES,
    BEHIND_BY_ONE,
    BEHIND_PERSISTENT,
    KEPT_ADDRESS,
    N_MISTAKES
} mistake;

/* A step of 100 numbers: the output y = x + weights + 1, by a scratch.  Returns y[0], read after
 * the end, and the first error. */
static float mistaken_step(memo_arena* arena, mistake m, float* weights, float** kept,
                           memo_error* found) {
    memo_error e;
    const int64_t n = 100;
    float *x = NULL, *y = NULL, *scratch = NULL, result;
    memset(found, 0, sizeof *found);
#define KEEP_ERROR(call)                                                                           \
    do {                                                                                           \
        if ((call) && !found->status) *found = e;                                                  \
    } while (0)
#define TAKE(address, n_bytes)                                                                     \
    KEEP_ERROR(memo_arena_alloc(arena, n_bytes, 0, (void**)&(address), &e));                       \
    if (!(address)) return 0
    KEEP_ERROR(memo_arena_begin(arena, &e));
    TAKE(x, n * 4);
    for (int i = 0; i < n; i++) x[i] = (float)i;
    if (m == FREED_TOO_EARLY || m == WRITTEN_AFTER_FREE) KEEP_ERROR(memo_arena_free(arena, x, &e));
    TAKE(scratch, m == NUMBERS_FOR_BYTES ? n : n * 4);
    if (m != TAKEN_FOR_ZERO) memset(scratch, 0, (size_t)n * 4);
    for (int i = 0; i < n; i++) scratch[i] += weights[i];
    TAKE(y, n * 4);
    for (int i = 0; i < n + (m == BEHIND_BY_ONE); i++) y[i] = x[i % n] + scratch[i % n] + 1;
    if (m == BEHIND_PERSISTENT) weights[n + 1] = 0;
    if (m == WRITTEN_AFTER_FREE) x[3] = 1;
    if (m != FREED_TOO_EARLY && m != WRITTEN_AFTER_FREE) KEEP_ERROR(memo_arena_free(arena, x, &e));
    KEEP_ERROR(memo_arena_free(arena, scratch, &e));
    if (m == KEPT_ADDRESS) (*kept)[5] = 1; /* of the step before */
    if (m == OUTPUT_FREED) KEEP_ERROR(memo_arena_free(arena, y, &e));
    KEEP_ERROR(memo_arena_end(arena, &e));
    result = y[0];
    *kept = scratch;
    return result;
}

TEST(mistakes_of_porters_are_named_or_nan) {
    static const char* const messages[N_MISTAKES] = {
        "",
        "",
        "while it is free; it was freed too early, or its address was kept",
        "",
        "",
        "of 100 bytes",
        "byte 400, behind its end; its size is too small",
        "byte 404, behind its end",
        "while it is free"};
    is_checked = 1;
    for (int replays = 0; replays < 2; replays++)
        for (int m = NO_MISTAKE; m < N_MISTAKES - !replays; m++) { /* the last needs one address */
            own_trace* trace = NULL;
            memo_plan* plan = NULL;
            const memo_device* device = fresh_device(1 << 20);
            memo_arena* arena = record(device, &trace);
            float *weights = (float*)take(arena, 400), *kept = NULL, result = 0;
            const int is_nan = m == FREED_TOO_EARLY || m == WRITTEN_AFTER_FREE ||
                               m == OUTPUT_FREED || m == TAKEN_FOR_ZERO;
            memo_error found;
            for (int i = 0; i < 100; i++) weights[i] = 1;
            for (int step = 0; step < 2; step++) {
                result = mistaken_step(arena, NO_MISTAKE, weights, &kept, &found);
                CHECK_CASE(!found.status && result == 2, "%s", found.message);
            }
            if (replays) { /* planned without the mistake */
                memo_arena_destroy(arena);
                plan = planned(trace, 0);
                arena = replay(device, plan);
                weights = (float*)take(arena, 400);
                for (int i = 0; i < 100; i++) weights[i] = 1;
                result = mistaken_step(arena, NO_MISTAKE, weights, &kept, &found);
                CHECK_CASE(!found.status && result == 2, "%s", found.message);
            }
            result = mistaken_step(arena, (mistake)m, weights, &kept, &found);
            IN_CASE("mistake %d, replays %d: %s", m, replays, found.message);
            CHECK((found.status != MEMO_STATUS_OK) == (messages[m][0] != 0));
            CHECK_TEXT(found.message[0] && found.status ? found.message : messages[m], messages[m]);
            CHECK((result != result) == is_nan && (is_nan || result == 2 || found.status));
            result = mistaken_step(arena, NO_MISTAKE, weights, &kept, &found); /* said once */
            CHECK(!found.status && result == 2);
            memo_arena_destroy(arena);
            CHECK_IS(the_device.n_live, ==, 0);
            memo_plan_destroy(plan);
        }
    is_checked = 0;
}

/* A kernel that ends only when somebody waits for its stream. */
static int32_t gate;
static memo_status pass_gate(MEMO_UNUSED void* arguments, MEMO_UNUSED memo_error* e) {
    while (!__atomic_load_n(&gate, __ATOMIC_ACQUIRE)) memob_sleep_until(memob_now_ns() + 50000);
    return MEMO_STATUS_OK;
}
static memo_status open_gate(void* context, memo_stream stream, memo_error* e) {
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    return the_device.host->stream_synchronize(context, stream, e);
}

TEST(a_checked_arena_waits_for_streams_that_compute) {
    memo_plan* plan = planned_text(small_trace, 0);
    const memo_device* device = fresh_device(1 << 20);
    memo_stream compute;
    memo_arena* arena = NULL;
    the_device.table.stream_synchronize = open_gate;
    CHECK_OK(memo_stream_create(device, "compute", 0, &compute, &error));
    memo_arena_desc desc = {.device = device, .plan = plan, .is_checked = 1, .n_streams = 1};
    refuses(&desc, MEMO_STATUS_INVALID_ARGUMENT, "n_streams: 1 without streams");
    desc.streams = &compute;
    CHECK_OK(memo_arena_create(&desc, &arena, &error));
    for (int is_wrong = 0; is_wrong < 2; is_wrong++) {
        CHECK_OK(memo_arena_begin(arena, &error));
        void* a = take(arena, 100);
        gate = 0;
        CHECK_OK(memo_host_device_launch(the_device.host, compute, pass_gate, NULL, 0, &error));
        CHECK_OK(memo_fill(device, compute, a, 1, 100 + is_wrong, &error));
        if (is_wrong)
            CHECK_ERROR(memo_arena_free(arena, a, &error), INVALID_ARGUMENT,
                        "buffer 2 of 100 bytes (id 2): something writes to byte 100, behind");
        else
            drop(arena, a);
        CHECK_OK(memo_arena_end(arena, &error));
        __atomic_store_n(&gate, 1, __ATOMIC_RELEASE); /* if nobody has waited */
    }
    memo_arena_destroy(arena);
    CHECK_OK(memo_stream_destroy(device, compute, &error));
    memo_plan_destroy(plan);
}

TEST(recorded_traces_replay) {
    static const char* const names[] = {"gpt-h4096-n8-s64k-recompute", "llama-1b-s8k-store"};
    for (int i = 0; i < 2; i++) {
        char path[128];
        memo_arena* arena;
        void** addresses;
        int64_t k, n;
        snprintf(path, sizeof path, "tests/data/%s.trace", names[i]);
        own_trace* trace = trace_of_file(path);
        memo_plan* plan = planned(trace, 0);
        memo_arena_desc desc = {.plan = plan};
        desc.memory = (void*)(uintptr_t)((uint64_t)1 << 40); /* never touched */
        desc.memory_bytes = plan->peak_bytes;
        CHECK_OK(memo_arena_create(&desc, &arena, &error));
        addresses = (void**)calloc((size_t)trace->n_requests, sizeof(void*));
        for (int round = 0; round < 3; round++) {
            CHECK_OK(memo_arena_begin(arena, &error));
            for (k = 0, n = 0; k < trace->n_requests; k++) {
                if (trace->requests[k].kind == MEMO_REQUEST_MALLOC) {
                    addresses[k] = take(arena, trace->requests[k].size_bytes);
                    CHECK_IS((char*)addresses[k], ==,
                             (char*)desc.memory + plan->buffers[n++].offset_bytes);
                } else if (trace->requests[k].kind == MEMO_REQUEST_FREE) {
                    drop(arena, addresses[memob_request_origin(trace, k)]);
                }
            }
            CHECK_OK(memo_arena_end(arena, &error));
        }
        free(addresses);
        close_replay(arena, plan);
    }
}

/* --- abandoning --- */

TEST(abandoned_batches_leave_nothing) {
    memo_plan* plan = planned_text(small_trace, 256);
    memo_arena* arena = replay(fresh_device(1 << 20), plan);
    void *w = take(arena, 1000), *a, *x;
    memob_arena_abandon(arena); /* outside a micro-batch: nothing */
    CHECK_OK(memo_arena_begin(arena, &error));
    a = take(arena, 100);
    x = take(arena, 2000);
    CHECK_IS(the_device.n_live, ==, 1);
    memob_arena_abandon(arena);
    CHECK_IS(the_device.n_live, ==, 1);
    CHECK_IS(memo_arena_free(arena, a, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_arena_free(arena, x, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_arena_alloc(arena, 8, 0, &x, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_OK(memo_arena_begin(arena, &error));
    CHECK_IS(take(arena, 100), ==, a);
    memob_arena_abandon(arena);
    drop(arena, w);
    close_replay(arena, plan);
}

TEST(an_abandoned_recording_ends) {
    own_trace* trace = NULL;
    own_arena* arena = record(fresh_device(1 << 20), &trace);
    void* w = take(arena, 10);
    CHECK_OK(memo_arena_begin(arena, &error));
    take(arena, 30);
    memob_arena_abandon(arena);
    CHECK_IS(the_device.n_live, ==, 1);
    const int64_t n_requests = trace->n_requests;
    CHECK_OK(memo_arena_begin(arena, &error));
    drop(arena, take(arena, 50));
    CHECK_OK(memo_arena_end(arena, &error));
    drop(arena, w);
    CHECK(the_device.n_live == 0 && trace->n_requests == n_requests);
}

/* --- creation --- */

TEST(bad_descs_are_named) {
    const memo_status bad = MEMO_STATUS_INVALID_ARGUMENT;
    memo_plan* plan = planned_text(small_trace, 256);
    static double room[1024];
    char* memory = (char*)room + (256 - (uintptr_t)room % 256);
    memo_arena* arena;
    own_trace* trace = new_trace();
    memo_arena_desc desc = {.device = fresh_device(1 << 20)};
    refuses(&desc, bad, "set either trace, to record, or plan, to replay");
    desc.plan = plan;
    WITH(desc.trace, trace, refuses(&desc, bad, "set either"));
    memo_device lame = {0};
    desc.device = &lame;
    refuses(&desc, bad, "device_alloc or device_free is NULL");
    desc.device = NULL;
    refuses(&desc, bad, "device and memory are NULL");
    desc.memory = memory;
    desc.memory_bytes = plan->peak_bytes - 1;
    refuses(&desc, bad, "memory_bytes: too small");
    desc.memory_bytes = plan->peak_bytes;
    WITH(desc.memory, memory + 8, refuses(&desc, bad, "the plan needs 256 bytes"));
    CHECK_OK(memo_arena_create(&desc, &arena, &error));
    CHECK_IS((char*)take(arena, 1000), ==, memory + plan->buffers[0].offset_bytes);
    memo_arena_destroy(arena);
    WITH(plan->proof, MEMO_PROOF_NONE, refuses(&desc, bad, "it has no offsets"));
    plan->peak_bytes++;
    refuses(&desc, bad, "peak_bytes: wrong");
    plan->peak_bytes--;
    plan->buffers[2].begin = plan->buffers[3].begin = 2;
    plan->buffers[2].offset_bytes = 8192;
    plan->peak_bytes = 8192 + 256;
    desc.memory_bytes = plan->peak_bytes;
    CHECK_OK(memo_plan_prepare(plan, &error));
    refuses(&desc, bad, "begin at the same time");
    memo_plan_destroy(plan);

    desc = MEMO_ZERO(memo_arena_desc);
    desc.trace = trace;
    desc.memory = memory;
    desc.device = fresh_device(1 << 20);
    refuses(&desc, bad, "memory: not used while recording");
    desc.device = NULL;

    /* A dry run with memory: what fits lies there, each request at an address of its own. */
    desc.memory_bytes = 4096;
    CHECK_OK(memo_arena_create(&desc, &arena, &error));
    const char* first = take(arena, 2000);
    const char* second = take(arena, 2000);
    CHECK(first >= memory && second > first && second + 2000 <= memory + 4096);
    const char* large = take(arena, 4096);
    CHECK(large < memory || large >= memory + 4096);
    memo_arena_destroy(arena);
    memo_trace_destroy(trace);
    CHECK_OK(memo_trace_create(&trace, &error));
    desc.trace = trace;
    desc.memory = NULL;
    CHECK_OK(memo_trace_malloc(trace, 1, 8, MEMO_CLASS_TRANSIENT, 0, &error));
    refuses(&desc, bad, "already has 1 requests");
}

TEST(a_full_device_reports_the_needed_bytes) {
    own_plan* plan = planned_text("malloc 1 1048576\nfree 1 1048576\n", 0);
    const memo_status full = MEMO_STATUS_OUT_OF_DEVICE_MEMORY;
    memo_arena_desc desc = {.plan = plan, .device = fresh_device(2048)};
    refuses(&desc, full, "1.0 MiB (1048576 bytes) in one block, 2.0 KiB (2048 bytes) are free");
    desc.is_checked = 1;
    refuses(&desc, full, "a checked arena needs 4.0 MiB (4194304 bytes) in one block");
    desc.is_checked = 0;
    the_device.table.memory_info = NULL;
    refuses(&desc, full, "the plan needs 1.0 MiB (1048576 bytes) in one block: device memory");
}

TEST(large_alignments_are_kept) {
    memo_plan* plan = planned_text(small_trace, 4096);
    plan->buffers[1].alignment_bytes = 1 << 16;
    CHECK_OK(memo_plan_prepare(plan, &error));
    first_fit(plan);
    memo_arena* arena = replay(fresh_device(1 << 20), plan);
    CHECK_IS((uintptr_t)take(arena, 1000) % 4096, ==, 0);
    CHECK_IS((uintptr_t)take(arena, 500) % (1 << 16), ==, 0);
    close_replay(arena, plan);
}

TEST(running_out_of_memory_is_reported) {
    memo_status status = MEMO_STATUS_OK;
    refusal r = {.can_do_without = 1};
    own_plan* plan = planned_text(small_trace, 256);
    memo_arena_desc desc = {.device = fresh_device(1 << 20), .is_checked = 1};
    void* address;
    CHECK_OK(memo_device_alloc(desc.device, 1, &address, &error)); /* its books are made */
    CHECK_OK(memo_device_free(desc.device, address, &error));
    memob_probe books[2];
    for (int i = 0; i < 2; i++)
        CHECK_OK(memob_probe_create(&books[i], desc.device, "", NULL, 0, &error));
    for (int i = 0; i < 2; i++) memob_probe_destroy(&books[i]);
    while (next_refusal(&r, status)) {
        memo_trace* trace = NULL;
        memo_arena* arena = NULL;
        memo_arena* other = NULL;
        status = memo_trace_create(&trace, &error);
        desc.trace = trace;
        desc.plan = NULL;
        if (!status) status = memo_arena_create(&desc, &arena, &error);
        if (!status) status = memo_arena_alloc(arena, 10, 0, &address, &error);
        if (!status) status = memo_arena_begin(arena, &error);
        if (!status) status = memo_arena_alloc(arena, 10, 0, &address, &error);
        if (!status) status = memo_arena_free(arena, address, &error);
        if (!status) status = memo_arena_end(arena, &error);
        desc.trace = NULL;
        desc.plan = plan;
        if (!status) status = memo_arena_create(&desc, &other, &error);
        if (!status) status = memo_arena_alloc(other, 1000, 0, &address, &error);
        memo_arena_destroy(arena);
        memo_arena_destroy(other);
        memo_trace_destroy(trace);
        CHECK_IS(the_device.n_live, ==, 0);
    }
    CHECK_IS(r.n_failed, >=, 10);
}
