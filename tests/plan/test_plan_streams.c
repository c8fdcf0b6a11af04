/* test_plan_streams.c - plans and streams: memo_plan_check against reachability by brute force, and
 * the lifetimes that memo_plan_from_trace derives. */
#include "scarce.h"
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "extras/memo_pack.h"
#include "extras/memo_look.h"
#include "stream_patterns.h"
#include "owned.h"
#include "random_trace.h"
#include "slow_plan.h"

/* ---- a slow, obvious reference ------------------------------------------------------------------
 *
 * The prologue and two micro-batches, the second after all of the first, as a graph.  Each request
 * on a stream is a node.  An edge leads to the stream's next node, and from a record to each wait
 * for it.  A buffer has *points*: nodes at which a stream may use it.  Two buffers may share bytes
 * if all points of one reach all points of the other.  A persistent buffer that the body requests
 * lives from the first node on, as replay requests it before the body. */

enum { MAX_NODES = 800, MAX_BUFFERS = 400, MAX_POINTS = 64 };

typedef struct graph {
    int n_nodes;
    int stream[MAX_NODES]; /* -1: all streams, between micro-batches and at the end */
    int wait_of[MAX_NODES];
    unsigned char reaches[MAX_NODES][MAX_NODES];
} graph;

typedef struct usage {
    int buffer; /* in order of mallocs of the trace */
    int n_points, points[MAX_POINTS];
} usage;

static graph g;
static usage usages[MAX_BUFFERS];
static int n_usages;

/* Nodes are in the order of the host, so edges lead forward: the nodes that reach i are known
 * before i + 1. */
static void find_reaches(void) {
    memset(g.reaches, 0, sizeof g.reaches);
    for (int from = 0; from < g.n_nodes; from++) {
        g.reaches[from][from] = 1;
        for (int i = from + 1; i < g.n_nodes; i++) {
            int hit = g.wait_of[i] >= 0 && g.reaches[from][g.wait_of[i]];
            for (int k = i - 1; k >= from && !hit; k--)
                if (g.stream[i] < 0 || g.stream[k] < 0 || g.stream[k] == g.stream[i])
                    hit = g.reaches[from][k];
            g.reaches[from][i] = (unsigned char)hit;
        }
    }
}

static int add_node(int stream) {
    g.stream[g.n_nodes] = stream;
    g.wait_of[g.n_nodes] = -1;
    return g.n_nodes++;
}

static void add_point(usage* u, int node) { u->points[u->n_points++] = node; }

/* Lays the trace out; early[i]: of use i, whether its stream may have used the buffer right after
 * its malloc. */
static void lay_out(const memo_trace* trace, const unsigned char* early) {
    int body = 0, copy, i, k, node_of[200], usage_of[200], record_node[8], last;
    g.n_nodes = n_usages = 0;
    for (i = 0; i < trace->n_requests; i++)
        if (trace->requests[i].kind == MEMO_REQUEST_MARK) body = i;
    for (copy = 0; copy < 2; copy++) {
        for (k = 0; k < 8; k++) record_node[k] = -1;
        add_node(-1);
        for (i = copy ? body : 0; i < trace->n_requests; i++) {
            const memo_request* r = &trace->requests[i];
            int origin = (int)memob_request_origin(trace, i);
            int is_again =
                copy && origin >= 0 &&
                (origin < body || trace->requests[origin].memory_class == MEMO_CLASS_PERSISTENT);
            if (r->kind == MEMO_REQUEST_MARK) continue;
            node_of[i] =
                add_node(r->kind == MEMO_REQUEST_FREE ? trace->requests[origin].stream : r->stream);
            if (r->kind == MEMO_REQUEST_RECORD) record_node[r->id] = node_of[i];
            if (r->kind == MEMO_REQUEST_WAIT) g.wait_of[node_of[i]] = record_node[r->id];
            if (is_again) continue;
            if (r->kind == MEMO_REQUEST_MALLOC) {
                usage_of[i] = n_usages;
                usages[n_usages].n_points = 0;
                usages[n_usages].buffer = 0;
                for (k = 0; k < i; k++)
                    usages[n_usages].buffer += trace->requests[k].kind == MEMO_REQUEST_MALLOC;
                add_point(&usages[n_usages++], node_of[i]);
                for (k = i + 1; k < trace->n_requests; k++)
                    if (trace->requests[k].kind == MEMO_REQUEST_USE &&
                        memob_request_origin(trace, k) == i && early && early[k])
                        add_point(&usages[usage_of[i]], add_node(trace->requests[k].stream));
            } else if (origin >= 0) {
                add_point(&usages[usage_of[origin]], node_of[i]);
            }
        }
        last = add_node(-1);
        for (i = copy ? body : 0; i < trace->n_requests; i++) { /* live to the end of this one */
            int is_freed = 0;
            if (trace->requests[i].kind != MEMO_REQUEST_MALLOC) continue;
            for (k = i; k < trace->n_requests; k++)
                is_freed |= trace->requests[k].kind == MEMO_REQUEST_FREE &&
                            memob_request_origin(trace, k) == i;
            if (!is_freed) add_point(&usages[usage_of[i]], last);
        }
    }
    for (i = 0; i < trace->n_requests; i++) {
        if (trace->requests[i].kind != MEMO_REQUEST_MALLOC ||
            trace->requests[i].memory_class != MEMO_CLASS_PERSISTENT)
            continue;
        add_point(&usages[usage_of[i]], g.n_nodes - 1); /* never freed */
        if (i >= body) add_point(&usages[usage_of[i]], 0);
    }
    find_reaches();
}

static void reference_prepare(const memo_trace* trace) {
    unsigned char early[200];
    lay_out(trace, NULL);
    memset(early, 0, sizeof early);
    for (int i = 0; i < trace->n_requests; i++) {
        int origin = (int)memob_request_origin(trace, i);
        int stream = trace->requests[i].stream;
        if (trace->requests[i].kind != MEMO_REQUEST_USE || stream == trace->requests[origin].stream)
            continue;
        /* the first usage of this malloc has its points in order: the malloc, then uses */
        for (int u = 0; u < n_usages; u++) {
            int buffer = 0, nth = 0;
            for (int j = 0; j < origin; j++)
                buffer += trace->requests[j].kind == MEMO_REQUEST_MALLOC;
            if (usages[u].buffer != buffer) continue;
            for (int j = origin + 1; j <= i; j++)
                nth += trace->requests[j].kind == MEMO_REQUEST_USE &&
                       memob_request_origin(trace, j) == origin;
            early[i] = !g.reaches[usages[u].points[0]][usages[u].points[nth]];
            break;
        }
    }
    lay_out(trace, early);
}

static int all_reach(const usage* a, const usage* b) {
    for (int i = 0; i < a->n_points; i++)
        for (int k = 0; k < b->n_points; k++)
            if (a->points[i] == b->points[k] || !g.reaches[a->points[i]][b->points[k]]) return 0;
    return 1;
}

/* Is the plan safe?  place[k]: index in the plan of the k-th malloc. */
static int reference_check(const memo_plan* plan, const int* place) {
    for (int i = 0; i < n_usages; i++) {
        for (int k = 0; k < i; k++) {
            const memo_buffer* a = &plan->buffers[place[usages[i].buffer]];
            const memo_buffer* b = &plan->buffers[place[usages[k].buffer]];
            if (usages[i].buffer == usages[k].buffer || a->size_bytes == 0 || b->size_bytes == 0)
                continue;
            if (a->offset_bytes >= b->offset_bytes + b->size_bytes ||
                b->offset_bytes >= a->offset_bytes + a->size_bytes)
                continue;
            if (!all_reach(&usages[i], &usages[k]) && !all_reach(&usages[k], &usages[i])) return 0;
        }
    }
    return 1;
}

/* place[k]: the k-th malloc's index in the plan, by ids, which never return in these traces. */
static void find_places(const memo_trace* trace, const memo_plan* plan, int* place) {
    int64_t k;
    int n = 0;
    for (int64_t i = 0; i < trace->n_requests; i++) {
        if (trace->requests[i].kind != MEMO_REQUEST_MALLOC) continue;
        for (k = 0; plan->buffers[k].id != trace->requests[i].id; k++) continue;
        place[n++] = (int)k;
    }
}

/* clash[i * n + k]: may buffers i and k of the plan not share bytes, by the reference? */
static void find_clashes(const memo_trace* trace, const memo_plan* plan, unsigned char* clash) {
    const int64_t n = plan->n_buffers;
    int place[200];
    reference_prepare(trace);
    find_places(trace, plan, place);
    memset(clash, 0, (size_t)(n * n));
    for (int i = 0; i < n_usages; i++)
        for (int k = 0; k < i; k++)
            if (!all_reach(&usages[i], &usages[k]) && !all_reach(&usages[k], &usages[i]))
                clash[place[usages[i].buffer] * n + place[usages[k].buffer]] =
                    clash[place[usages[k].buffer] * n + place[usages[i].buffer]] = 1;
}

/* Whether the reference, prepared for full, accepts the plan; the check must do the same.  full:
 * the trace with the waits that the plan buys. */
static int check_agrees(const memo_plan* plan, const memo_trace* trace, const memo_trace* full,
                        int round) {
    const memo_status status = memo_plan_check(plan, trace, &error);
    int place[200];
    find_places(full, plan, place);
    int is_safe = reference_check(plan, place);
    IN_CASE("round %d: %s", round, status ? error.message : "accepted");
    CHECK_IS(status, ==, (is_safe ? MEMO_STATUS_OK : MEMO_STATUS_INVALID_ARGUMENT));
    return is_safe;
}

/* Solved, and valid. */
static void solve_and_validate(memo_plan* plan, const memo_plan_desc* desc) {
    CHECK_OK(memo_plan_solve(plan, desc, &error));
    CHECK_OK(memo_plan_validate(plan, &error));
}

/* Solved, by the default, valid and safe. */
static void solve_safely(memo_plan* plan, const memo_trace* trace, int round) {
    IN_CASE("round %d", round);
    solve_and_validate(plan, NULL);
    CHECK_OK(memo_plan_check(plan, trace, &error));
}

static void copy_request(const memo_trace* trace, int64_t i, memo_trace* to) {
    const memo_request* r = &trace->requests[i];
    switch (r->kind) {
    case MEMO_REQUEST_MALLOC:
        CHECK_OK(memo_trace_malloc(to, r->id, r->size_bytes, r->memory_class, r->stream, &error));
        break;
    case MEMO_REQUEST_FREE: CHECK_OK(memo_trace_free(to, r->id, &error)); break;
    case MEMO_REQUEST_USE: CHECK_OK(memo_trace_use(to, r->id, r->stream, &error)); break;
    case MEMO_REQUEST_RECORD: CHECK_OK(memo_trace_record(to, r->id, r->stream, &error)); break;
    case MEMO_REQUEST_WAIT: CHECK_OK(memo_trace_wait(to, r->id, r->stream, &error)); break;
    case MEMO_REQUEST_MARK: CHECK_OK(memo_trace_mark(to, trace->text + r->id, &error)); break;
    case MEMO_N_REQUEST_KINDS: break;
    }
}

/* Without request `gone`. */
static memo_trace* trace_without(const memo_trace* trace, int64_t gone) {
    memo_trace* made = new_trace();
    for (int64_t i = 0; i < trace->n_requests; i++)
        if (i != gone) copy_request(trace, i, made);
    return made;
}

/* With requests for the waits that a plan buys, of events from 4 on. */
static memo_trace* trace_with_waits(const memo_trace* trace, const memo_plan* plan) {
    int64_t time = 0;
    memo_trace* made = new_trace();
    for (int64_t i = 0; i < trace->n_requests; i++) {
        memo_request_kind kind = trace->requests[i].kind;
        for (int64_t k = 0; k < plan->n_waits && kind == MEMO_REQUEST_MALLOC; k++)
            if (plan->buffers[plan->waits[k].requested].begin == time)
                CHECK_OK(memo_trace_wait(made, 4 + k, plan->waits[k].to, &error));
        copy_request(trace, i, made);
        for (int64_t k = 0; k < plan->n_waits && kind == MEMO_REQUEST_FREE; k++)
            if (plan->buffers[plan->waits[k].freed].end == time)
                CHECK_OK(memo_trace_record(made, 4 + k, plan->waits[k].from, &error));
        time += kind == MEMO_REQUEST_MALLOC || kind == MEMO_REQUEST_FREE;
    }
    return made;
}

/* A transient buffer that is freed at once. */
static void add_short(memo_trace* trace, int64_t id, int32_t stream) {
    CHECK_OK(memo_trace_malloc(trace, id, 8, MEMO_CLASS_TRANSIENT, stream, &error));
    CHECK_OK(memo_trace_free(trace, id, &error));
}

/* Stream `to` waits for all of `from` until now. */
static void add_wait(memo_trace* trace, int64_t event, int32_t from, int32_t to) {
    CHECK_OK(memo_trace_record(trace, event, from, &error));
    CHECK_OK(memo_trace_wait(trace, event, to, &error));
}

/* Up to n waits that the plan may buy. */
static int64_t random_waits(const memo_plan* plan, int64_t n, memo_wait* waits) {
    int64_t n_waits = 0;
    memset(waits, 0, (size_t)n * sizeof *waits);
    for (int64_t k = 0; k < 20 * n && n_waits < n && plan->n_buffers > 1; k++) {
        memo_wait* wait = &waits[n_waits];
        wait->freed = memo_test_int(0, plan->n_buffers - 1);
        wait->requested = memo_test_int(0, plan->n_buffers - 1);
        wait->from = plan->buffers[memo_test_int(0, plan->n_buffers - 1)].stream;
        wait->to = plan->buffers[memo_test_int(0, plan->n_buffers - 1)].stream;
        wait->cost_s = (double)memo_test_int(1, 9);
        const memo_buffer* freed = &plan->buffers[wait->freed];
        const memo_buffer* requested = &plan->buffers[wait->requested];
        n_waits += wait->from != wait->to && freed->end < requested->begin &&
                   freed->end >= plan->body_begin && requested->begin >= plan->body_begin &&
                   freed->memory_class != MEMO_CLASS_PERSISTENT &&
                   requested->memory_class != MEMO_CLASS_PERSISTENT &&
                   (n_waits == 0 || memoi_plan_compare_waits(wait - 1, wait) < 0);
    }
    return n_waits;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* A plan from the trace keeps its promises, and the check agrees with the reference for any
 * offsets. */
TEST(check_is_reachability) {
    int n_refused = 0, n_accepted = 0;
    for (int round = 0; round < 700; round++) {
        own_trace* trace = random_trace(memo_test_int(1, 45), (int)memo_test_int(1, 4), 0,
                                        (int)memo_test_int(0, 1), (int)memo_test_int(0, 1));
        own_plan* plan = plan_of_trace(trace, 1);
        solve_safely(plan, trace, round);
        reference_prepare(trace);
        CHECK(check_agrees(plan, trace, trace, round));
        for (int k = 0; k < 20 && plan->n_buffers > 0;
             k++) { /* other offsets: few, so that many meet */
            int64_t moved = memo_test_int(0, plan->n_buffers - 1);
            plan->buffers[moved].offset_bytes = memo_test_int(0, 40);
            const int is_safe = check_agrees(plan, trace, trace, round);
            CHECK(is_safe ||
                  (strstr(error.message, "share bytes") && strstr(error.message, "id ")));
            n_refused += !is_safe;
            n_accepted += is_safe;
        }
    }
    CHECK_CASE(n_refused > 1000 && n_accepted > 1000, "%d refused, %d accepted", n_refused,
               n_accepted);
}

/* A wait taken out of the trace: the plan of the whole trace stands or falls as the reference
 * says. */
TEST(check_misses_removed_waits) {
    int n_refused = 0;
    for (int round = 0; round < 1500; round++) {
        own_trace* trace = random_trace(memo_test_int(10, 45), (int)memo_test_int(2, 3), 0, 0, 1);
        int64_t gone = memo_test_int(0, trace->n_requests - 1);
        while (gone < trace->n_requests && trace->requests[gone].kind != MEMO_REQUEST_WAIT) gone++;
        if (gone < trace->n_requests) {
            own_trace* cut = trace_without(trace, gone);
            own_plan* plan = plan_of_trace(trace, 1);
            CHECK_OK(memo_plan_solve(plan, NULL, &error));
            reference_prepare(cut);
            n_refused += !check_agrees(plan, cut, cut, round);
        }
    }
    CHECK_CASE(n_refused > 100, "%d refused", n_refused);
}

/* Bought waits count exactly as the same waits in the trace: for holds, for the check, and if one
 * is removed. */
TEST(bought_waits_match_waits_of_the_trace) {
    int n_refused = 0, n_smaller = 0;
    for (int round = 0; round < 1500; round++) {
        own_trace* trace = random_trace(memo_test_int(10, 45), (int)memo_test_int(2, 4), 0,
                                        (int)memo_test_int(0, 1), 0);
        own_plan *plan = plan_of_trace(trace, 1), *reference = NULL;
        memo_wait waits[4];
        CHECK_OK(memo_plan_solve(plan, NULL, &error));
        int64_t bare_peak = plan->peak_bytes;
        int64_t n_waits = random_waits(plan, 4, waits);
        CHECK_OK(memoi_market_set_waits(plan, trace, waits, n_waits, &error));
        CHECK_IS(plan->n_waits, ==, n_waits);
        own_trace* full = trace_with_waits(trace, plan);
        reference = plan_of_trace(full, 1);
        IN_CASE("round %d", round);
        CHECK_IS(plan->n_holds, ==, reference->n_holds);
        for (int k = 0; k < plan->n_holds && k < reference->n_holds; k++)
            CHECK(!memcmp(&plan->holds[k], &reference->holds[k], sizeof(memo_hold)));
        for (int k = 0; k < plan->n_buffers; k++)
            CHECK_IS(plan->buffers[k].lane, ==, reference->buffers[k].lane);

        /* The plan is valid, and so it is without a wait or not, as the reference says. */
        solve_safely(plan, trace, round);
        n_smaller += plan->peak_bytes < bare_peak;
        for (int k = 0; k < 2 && plan->n_buffers > 0; k++) {
            int64_t gone = plan->n_waits > 0 ? memo_test_int(0, plan->n_waits - 1) : 0;
            memo_trace_destroy(full);
            if (plan->n_waits > 0) plan->waits[gone] = plan->waits[--plan->n_waits];
            qsort(plan->waits, (size_t)plan->n_waits, sizeof(memo_wait), memoi_plan_compare_waits);
            full = trace_with_waits(trace, plan);
            reference_prepare(full);
            n_refused += !check_agrees(plan, trace, full, round);
        }
    }
    CHECK_CASE(n_refused > 50 && n_smaller > 50, "%d refused, %d smaller", n_refused, n_smaller);
}

/* Runs the requests of a trace without marks and classes, as a trainer on four streams.  A buffer
 * is written when it is requested, and read when it is used and freed. */
static memo_status replay(const memo_trace* trace, memo_arena* arena, const memo_device* device,
                          const memo_stream* streams, memo_event* events) {
    void* address[200];
    memo_status status = memo_arena_begin(arena, &error);
    for (int64_t i = 0; i < trace->n_requests && !status; i++) {
        const memo_request* r = &trace->requests[i];
        int64_t origin = memob_request_origin(trace, i);
        const memo_request* buffer = origin < 0 ? NULL : &trace->requests[origin];
        int32_t stream = r->kind == MEMO_REQUEST_FREE ? buffer->stream : r->stream;
        if (r->kind == MEMO_REQUEST_MALLOC)
            status = memo_arena_alloc(arena, r->size_bytes, stream, &address[i], &error);
        if (r->kind == MEMO_REQUEST_RECORD)
            status = memo_event_record(device, events[r->id], streams[stream], &error);
        if (r->kind == MEMO_REQUEST_WAIT)
            status = memo_event_wait(device, events[r->id], streams[stream], &error);
        if (buffer && buffer->size_bytes > 0 && !status)
            status =
                MEMO_ANNOTATE(device, streams[stream], "work", &error,
                              memoi_access_of(address[origin], buffer->size_bytes, origin == i));
        if (r->kind == MEMO_REQUEST_FREE && !status)
            status = memo_arena_free(arena, address[origin], &error);
    }
    memob_arena_abandon(arena);
    return status;
}

/* Two micro-batches on a recorder over `inner`; the arena's waits are in the recording. */
static memo_status record_replay(const memo_plan* plan, const memo_trace* trace,
                                 const memo_device* inner, int64_t* n_races) {
    memo_recorder* recorder = NULL;
    memo_arena* arena = NULL;
    memo_stream streams[64] = {NULL};
    memo_event events[4] = {NULL};
    memo_schedule* schedule;
    own_check* check = NULL;
    memo_recorder_desc recorder_desc = {.device = inner};
    memo_status status = memo_recorder_create(&recorder_desc, &recorder, &error);
    if (status) return status;
    memo_arena_desc desc = {.device = memo_recorder_get_device(recorder)};
    for (int i = 0; i < 64 && !status; i += 21)
        status = memo_stream_create(desc.device, "stream", 0, &streams[i], &error);
    for (int i = 0; i < 4 && !status; i++)
        status = memo_event_create(desc.device, &events[i], &error);
    desc.plan = plan;
    desc.streams = streams;
    desc.n_streams = 64;
    if (!status) status = memo_arena_create(&desc, &arena, &error);
    for (int k = 0; k < 2 && !status; k++) {
        status = replay(trace, arena, desc.device, streams, events);
        for (int i = 0; i < 64 && !status; i += 21)
            status = memo_stream_synchronize(desc.device, streams[i], &error);
    }
    if (!status) status = memo_recorder_get_schedule(recorder, &schedule, &error);
    if (!status) status = memo_schedule_check(schedule, &check, &error);
    if (!status) *n_races = check->n_races;
    memo_arena_destroy(arena);
    for (int i = 0; i < 4; i++)
        if (events[i]) memo_event_destroy(desc.device, events[i], NULL);
    for (int i = 0; i < 64; i++)
        if (streams[i]) memo_stream_destroy(desc.device, streams[i], NULL);
    memo_recorder_destroy(recorder);
    return status;
}

/* What the arena enqueues for a plan with bought waits has no race.  Without a wait a race shows
 * only where the check refuses the plan. */
TEST(the_arena_makes_bought_waits) {
    own_device* host = new_device(MEMO_ZERO(memo_host_device_desc));
    int n_raced = 0, n_faults = 0;
    for (int round = 0; round < 150; round++) {
        own_trace* trace = random_trace(45, 3, 0, 0, 0);
        memo_wait waits[4];
        int64_t n_races = -1, n_waits;
        own_trace* bare = new_trace();
        for (int64_t i = 0; i < trace->n_requests;
             i++) { /* a stream that reads has waited for the owner */
            if (trace->requests[i].kind == MEMO_REQUEST_USE) {
                const memo_request* r = &trace->requests[memob_request_origin(trace, i)];
                add_wait(bare, 3, r->stream, trace->requests[i].stream);
            }
            if (trace->requests[i].kind != MEMO_REQUEST_MARK) copy_request(trace, i, bare);
        }
        own_plan* plan = plan_of_trace(bare, 1);
        n_waits = random_waits(plan, 4, waits);
        CHECK_OK(memoi_market_set_waits(plan, bare, waits, n_waits, &error));
        CHECK_OK(memo_plan_solve(plan, NULL, &error));
        CHECK_OK(memo_plan_check(plan, bare, &error));
        CHECK_OK(record_replay(plan, bare, host, &n_races));
        CHECK_IS(n_races, ==, 0);

        /* The arena needs the streams. */
        if (n_waits > 0) {
            memo_arena* arena = NULL;
            memo_arena_desc desc = {.plan = plan, .device = host};
            CHECK_IS(memo_arena_create(&desc, &arena, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
            CHECK(!arena && strstr(error.message, "memo_arena_desc.streams: ") != NULL);
        }

        /* Each call of the device fails once. */
        if (round < 3) {
            memo_faults faults;
            memo_faults_init(&faults, host);
            CHECK_OK(record_replay(plan, bare, &faults.device, &n_races));
            int64_t n_calls = faults.n_calls;
            for (int64_t call = 1; call <= n_calls; call++) {
                faults.n_calls = 0;
                faults.failing_call = call;
                n_faults +=
                    record_replay(plan, bare, &faults.device, &n_races) == MEMO_STATUS_DEVICE;
            }
        }

        plan->n_waits = 0;
        CHECK_OK(record_replay(plan, bare, host, &n_races));
        if (n_races > 0) {
            CHECK_IS(memo_plan_check(plan, bare, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
            n_raced++;
        }
    }
    CHECK_CASE(n_raced > 10 && n_faults > 50, "%d raced, %d faults", n_raced, n_faults);
}

TEST(waits_of_other_plans_are_refused) {
    own_trace *trace = random_trace(40, 2, 0, 0, 0), *other = random_trace(40, 2, 0, 0, 0);
    own_plan* plan = plan_of_trace(trace, 1);
    memo_wait wait = {0, 0, 0, 21, 0};
    const int64_t n_holds = plan->n_holds;
    CHECK_ERROR(memoi_market_set_waits(plan, trace, &wait, 1, &error), INVALID_ARGUMENT,
                "plan.waits[0]: ");
    CHECK_ERROR(memoi_market_set_waits(plan, other, NULL, 0, &error), INVALID_ARGUMENT,
                "not those of the trace");
    CHECK(plan->n_holds == n_holds && plan->n_waits == 0);
    memo_plan_desc desc = {.trace = trace, .n_offers = 1};
    CHECK_ERROR(memo_plan_solve(plan, &desc, &error), INVALID_ARGUMENT,
                "memo_plan_desc.n_offers: out of range (1)");
    desc.offers = &wait;
    CHECK_ERROR(memo_plan_solve(plan, &desc, &error), INVALID_ARGUMENT,
                "memo_plan_desc.offers[0]: ");
    WITH(desc.trace, NULL,
         CHECK_ERROR(memo_plan_solve(plan, &desc, &error), INVALID_ARGUMENT,
                     "memo_plan_desc.trace: NULL; offers need the trace of the plan"));
    wait.freed = plan->n_buffers;
    plan->waits = &wait;
    plan->n_waits = 1;
    CHECK_ERROR(memo_plan_check(plan, trace, &error), INVALID_ARGUMENT,
                "plan.waits[0]: a buffer or stream is out of range");
    plan->waits = NULL;
    plan->n_waits = 0;
}

static double cost_of(const memo_wait* waits, int64_t n) {
    double cost = 0;
    for (int64_t i = 0; i < n; i++) cost += waits[i].cost_s;
    return cost;
}

/* The least cost of offers with which a plan of `capacity` exists, by trying all sets; -1: there
 * are none. */
static double least_cost(memo_plan* plan, const memo_trace* trace, const memo_wait* offers,
                         int n_offers, int64_t capacity) {
    double least = -1;
    for (int set = 0; set < 1 << n_offers; set++) {
        memo_wait chosen[8];
        int64_t n = 0;
        for (int i = 0; i < n_offers; i++)
            if (set >> i & 1) chosen[n++] = offers[i];
        if (least >= 0 && cost_of(chosen, n) >= least) continue;
        CHECK_OK(memoi_market_set_waits(plan, trace, chosen, n, &error));
        CHECK_OK(memo_plan_solve(plan, NULL, &error));
        if (plan->peak_bytes <= capacity) least = cost_of(chosen, n);
        CHECK(plan->peak_bytes <= capacity || plan->proof == MEMO_PROOF_OPTIMAL);
    }
    return least;
}

/* Offers are bought only if they help; the cost is that of brute force in all but a few cases. */
TEST(the_cheapest_waits_are_bought) {
    int n_bought = 0, n_dear = 0;
    for (int round = 0; round < 400; round++) {
        own_trace* trace = random_trace(memo_test_int(20, 60), 3, 0, 0, 0);
        memo_plan_desc desc = {0};
        own_plan *plan = plan_of_trace(trace, 1), *other = plan_of_trace(trace, 1);
        memo_wait offers[8];
        int64_t bare, full, n;
        n = random_waits(plan, 8, offers);
        for (int64_t i = 0; i < n && round % 5 == 0; i++) offers[i].cost_s = 0; /* as few, too */
        CHECK_OK(memo_plan_solve(plan, NULL, &error));
        bare = plan->peak_bytes;
        CHECK_OK(memoi_market_set_waits(plan, trace, offers, n, &error));
        CHECK_OK(memo_plan_solve(plan, NULL, &error));
        full = plan->peak_bytes;

        /* The smallest plan, and every third time one of some capacity. */
        if (round % 3 == 0) desc.capacity_bytes = full + (bare - full) / 2;
        desc.offers = offers;
        desc.n_offers = n;
        desc.trace = trace;
        desc.time_limit_s = 2;
        IN_CASE("round %d", round);
        solve_and_validate(plan, &desc);
        CHECK_OK(memo_plan_check(plan, trace, &error));
        CHECK(desc.capacity_bytes ? plan->peak_bytes <= desc.capacity_bytes
                                  : plan->peak_bytes == full && plan->proof == MEMO_PROOF_OPTIMAL);
        double least = least_cost(other, trace, offers, (int)n,
                                  desc.capacity_bytes ? desc.capacity_bytes : full);
        CHECK_IS(cost_of(plan->waits, plan->n_waits), >=, least);
        if (plan->proof == MEMO_PROOF_OPTIMAL) { /* with these waits none is smaller */
            CHECK_OK(memoi_market_set_waits(other, trace, plan->waits, plan->n_waits, &error));
            CHECK_OK(memo_plan_solve(other, NULL, &error));
            CHECK_IS(other->peak_bytes, ==, plan->peak_bytes);
        }
        n_bought += plan->n_waits > 0;
        n_dear += cost_of(plan->waits, plan->n_waits) > least;

        /* None can be removed. */
        for (int64_t i = 0; i < plan->n_waits; i++) {
            memo_wait removed = plan->waits[i];
            memmove(&plan->waits[i], &plan->waits[i + 1],
                    (size_t)(plan->n_waits - i - 1) * sizeof removed);
            plan->n_waits--;
            CHECK_IS(memo_plan_check(plan, trace, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
            memmove(&plan->waits[i + 1], &plan->waits[i],
                    (size_t)(plan->n_waits - i) * sizeof removed);
            plan->waits[i] = removed;
            plan->n_waits++;
        }
    }
    CHECK_CASE(n_bought > 50 && n_dear == 0, "%d bought, %d of them not the cheapest", n_bought,
               n_dear);
}

/* Two streams fill each other's buffers in turn and never wait.  All requests for host memory are
 * refused in turn. */
TEST(buying_without_memory_is_reported) {
    memo_wait offers[3];
    memo_status status = MEMO_STATUS_OK;
    refusal r = {.can_do_without = 1};
    own_trace* trace = new_trace();
    for (int k = 0; k < 4; k++) {
        memo_wait wait = {k, k + 1, (int32_t)(k % 2), (int32_t)(1 - k % 2), 1};
        add_short(trace, k, (int32_t)(k % 2));
        if (k < 3) offers[k] = wait;
    }
    memo_plan_desc desc = {.trace = trace, .offers = offers, .n_offers = 3};
    while (next_refusal(&r, status)) {
        own_plan* plan = NULL;
        memset(&error, 0, sizeof error);
        status = memo_plan_from_trace(trace, 1, &plan, &error);
        if (!status) status = memo_plan_solve(plan, &desc, &error);
        if (!status) status = memo_plan_check(plan, trace, &error);
        if (!status)
            status = memo_plan_validate(plan, &error);
        else
            CHECK(!plan || plan->proof == MEMO_PROOF_NONE || !memo_plan_validate(plan, NULL));
        CHECK(!status || error.message[0]);
        CHECK(status != MEMO_STATUS_OK || (plan->peak_bytes == 8 && plan->n_waits == 3));
    }
    CHECK_IS(r.n_failed, >, 40);

    /* Two buffers fit in 16 bytes, one of each stream. */
    own_plan* plan = plan_of_trace(trace, 1);
    desc.capacity_bytes = 16;
    CHECK_OK(memo_plan_solve(plan, &desc, &error));
    CHECK(plan->peak_bytes == 16 && plan->n_waits == 0);
}

/* Two buffers conflict by lifetimes and holds exactly if the check refuses bytes that both have, and
 * if they clash by the reference. */
TEST(conflicts_match_unsafe_pairs) {
    int n_held = 0;
    for (int round = 0; round < 300; round++) {
        own_trace* trace = random_trace(memo_test_int(5, 60), (int)memo_test_int(1, 4), 0,
                                        round % 3 == 0, (int)memo_test_int(0, 1));
        own_plan* plan = plan_of_trace(trace, 1);
        unsigned char clash[60 * 60];
        find_clashes(trace, plan, clash);
        for (int64_t i = 0; i < plan->n_buffers; i++) plan->buffers[i].offset_bytes = 1000 * i;
        for (int64_t i = 0; i < plan->n_buffers; i++) {
            for (int64_t k = i + 1; k < plan->n_buffers; k++) {
                int expected = slow_conflict(plan, i, k);
                if (!plan->buffers[i].size_bytes || !plan->buffers[k].size_bytes) continue;
                plan->buffers[k].offset_bytes = plan->buffers[i].offset_bytes;
                CHECK_CASE((memo_plan_check(plan, trace, &error) != MEMO_STATUS_OK) == expected &&
                               clash[i * plan->n_buffers + k] == expected,
                           "round %d: buffers %lld and %lld", round, (long long)i, (long long)k);
                plan->buffers[k].offset_bytes = 1000 * k;
                n_held += expected && plan->buffers[i].end <= plan->buffers[k].begin;
            }
        }
    }
    CHECK_CASE(n_held > 500, "%d held", n_held);
}

/* The least peak of first fit over all orders of the buffers that are left, by the reference's
 * pairs; one of the orders gives the least peak of all. */
static int64_t least_peak(const memo_plan* plan, const unsigned char* clash, int64_t* order,
                          int64_t n_placed, int64_t* offsets, int64_t peak, int64_t best) {
    int64_t n = plan->n_buffers;
    if (peak >= best) return best;
    if (n_placed == n) return peak;
    for (int64_t i = n_placed; i < n; i++) {
        int64_t chosen = order[i], size = plan->buffers[chosen].size_bytes, at = 0;
        order[i] = order[n_placed];
        order[n_placed] = chosen;
        for (int64_t k = 0; k < n_placed; k++) {
            int64_t other = order[k], end = offsets[other] + plan->buffers[other].size_bytes;
            if (!clash[chosen * n + other] || end <= at || offsets[other] >= at + size) continue;
            at = end;
            k = -1; /* again from the start */
        }
        offsets[chosen] = at;
        best =
            least_peak(plan, clash, order, n_placed + 1, offsets, memob_max(peak, at + size), best);
        order[n_placed] = order[i];
        order[i] = chosen;
    }
    return best;
}

/* The verdict of cores on a capacity. */
static memoi_verdict core_verdict(memo_plan* plan, int64_t capacity) {
    own_problem problem;
    memoi_cores cores;
    memoi_solution best;
    memoi_verdict verdict = MEMOI_STOPPED;
    int64_t n_nodes = 1000000, offsets[8];
    const memoi_deadline clock = {.deadline = HUGE_VAL};
    CHECK_OK(memoi_solve_pose(plan, 0, &problem, &error));
    CHECK(memoi_neighbors_list(&problem) == 1);
    memoi_solution_begin(&best, &problem, offsets);
    CHECK(memoi_cores_create(&cores, &problem, 0, &clock));
    CHECK(memoi_cores_attempt(&cores, capacity / problem.unit_bytes, &n_nodes, &verdict, &best));
    memob_arrays_free(&cores.arrays);
    return verdict;
}

/* Every engine that proves its plan optimal has the least peak that the reference's pairs allow. */
TEST(plans_by_pairs_are_the_smallest) {
    static const memo_plan_engine engines[] = {MEMO_PLAN_ENGINE_AUTO, MEMO_PLAN_ENGINE_BILEVEL,
                                               MEMO_PLAN_ENGINE_MIP};
    int n_above = 0;
    for (int round = 0; round < 1500; round++) {
        own_trace* trace = random_trace(memo_test_int(8, 28), (int)memo_test_int(2, 4), 0, 0,
                                        (int)memo_test_int(0, 1));
        own_plan* plan = plan_of_trace(trace, 1);
        int64_t order[8], offsets[8], n = plan->n_buffers, i, expected;
        unsigned char clash[64];
        if (n < 3 || n > 7) continue;
        find_clashes(trace, plan, clash);
        for (i = 0; i < n; i++) order[i] = i;
        expected = least_peak(plan, clash, order, 0, offsets, 0, INT64_MAX);
        for (int e = 0; e < 3; e++) {
            memo_plan_desc desc = {.engine = engines[e]};
            memo_status status = memo_plan_solve(plan, &desc, &error);
            if (status == MEMO_STATUS_UNSUPPORTED) continue;
            CHECK_OK(status);
            CHECK_OK(memo_plan_validate(plan, &error));
            CHECK_OK(memo_plan_check(plan, trace, &error));
            IN_CASE("round %d, engine %d", round, (int)engines[e]);
            expect_optimal(plan, expected);
        }

        CHECK_IS((int)core_verdict(plan, expected), ==, (int)MEMOI_FOUND);
        if (expected > 0) CHECK_IS((int)core_verdict(plan, expected - 1), ==, (int)MEMOI_FAILED);

        /* Buffers fixed at this plan's offsets leave the peak possible. */
        for (i = 0; i < n; i++) plan->buffers[i].is_fixed = memo_test_int(0, 1) != 0;
        CHECK_OK(memo_plan_solve(plan, NULL, &error));
        CHECK_OK(memo_plan_check(plan, trace, &error));
        expect_optimal(plan, expected);
        n_above += expected > plan->lower_bound_bytes;
    }
    CHECK_CASE(n_above > 100, "%d above the bound", n_above);
}

/* The largest sum of sizes of buffers that all conflict with each other. */
static int64_t largest_set(const memo_plan* plan) {
    int64_t largest = 0, n = plan->n_buffers;
    for (uint32_t set = 0; set < (uint32_t)1 << n; set++) {
        int64_t sum = 0;
        for (int64_t i = 0; i < n && sum >= 0; i++) {
            if (!(set >> i & 1)) continue;
            sum += plan->buffers[i].size_bytes;
            for (int64_t k = 0; k < i && sum >= 0; k++)
                if ((set >> k & 1) && !slow_conflict(plan, k, i)) sum = -1;
        }
        largest = memob_max(largest, sum);
    }
    return largest;
}

/* Holds at random, which need not make an order. */
static memo_plan* random_holds(int64_t n) {
    memo_plan* plan = new_plan(n, 0, 1);
    plan->holds = (memo_hold*)memob_calloc(3 * n, sizeof(memo_hold));
    for (int64_t i = 0; i < n; i++) {
        memo_buffer* buffer = &plan->buffers[i];
        buffer->id = i;
        buffer->size_bytes = n > 2 ? memo_test_int(1, 20) : 0;
        buffer->begin = 2 * i;
        buffer->end = buffer->begin + memo_test_int(1, 8);
        buffer->lane = (int32_t)memo_test_int(64, 66);
        for (int64_t k = 64; k < 67; k++) {
            if (memo_test_int(0, 2)) continue;
            plan->holds[plan->n_holds].buffer = i;
            plan->holds[plan->n_holds].lane = (int32_t)k;
            plan->holds[plan->n_holds++].until = buffer->end + memo_test_int(1, 12);
        }
    }
    return plan;
}

/* The bound is the largest set of buffers in conflict, or lies below it if holds make no order.
 * Sections bring together all pairs in conflict, and no others. */
TEST(bounds_and_sections_follow_conflicts) {
    int n_above = 0;
    for (int round = 0; round < 1500; round++) {
        own_trace* trace = NULL;
        own_plan* plan = NULL;
        if (round % 2) {
            trace = random_trace(memo_test_int(8, 45), (int)memo_test_int(2, 4), 0, 0,
                                 (int)memo_test_int(0, 1));
            plan = plan_of_trace(trace, 1);
        } else {
            plan = random_holds(memo_test_int(2, 14));
        }
        if (plan->n_buffers > 14 || plan->n_holds == 0) continue;
        CHECK_OK(memo_plan_prepare(plan, &error));
        int64_t largest = largest_set(plan);
        own_problem problem;
        CHECK_OK(memoi_solve_pose(plan, 0, &problem, &error));
        IN_CASE("round %d", round);
        CHECK_IS(problem.lower_bound * problem.unit_bytes, <=, largest);
        if (trace) CHECK_IS(problem.lower_bound * problem.unit_bytes, ==, largest);
        CHECK(!problem.held && problem.is_cover <= problem.n_items);
        for (int64_t i = 0; i < problem.n_items; i++)
            for (int64_t k = 0; k < i; k++)
                CHECK_IS(memoi_problem_items_overlap(&problem, k, i), ==,
                         slow_conflict(plan, problem.items[k].origin, problem.items[i].origin));
        n_above += largest > plan->lower_bound_bytes;
    }
    CHECK_CASE(n_above > 300, "%d above the largest sum of live sizes", n_above);
}

/* Fixed buffers that a hold keeps apart may not share bytes; no order of others helps that. */
TEST(fixed_buffers_that_a_hold_keeps_apart_are_refused) {
    memo_hold hold = {0, 2, 64};
    own_plan* plan = new_plan(3, 0, 1);
    plan->holds = (memo_hold*)memob_calloc(1, sizeof hold);
    plan->holds[plan->n_holds++] = hold;
    for (int k = 0; k < 3; k++) {
        memo_buffer* buffer = put_buffer(plan, k, k, k + 1, 8);
        buffer->lane = 64;
        buffer->is_fixed = k < 2;
    }
    CHECK_ERROR(memo_plan_solve(plan, NULL, &error), INVALID_ARGUMENT,
                "buffers 0 (id 0) and 1 (id 1)");
    plan->buffers[1].offset_bytes = 8;
    CHECK_OK(memo_plan_solve(plan, NULL, &error));
    CHECK(plan->peak_bytes == 16 && plan->buffers[2].offset_bytes == 0);
}

/* Blocks cut into buffers of several streams, and streams that wait in patterns. */
TEST(tilings_and_patterns_are_proven) {
    memo_plan_desc desc = {.time_limit_s = 60};
    for (int n_streams = 2; n_streams <= CLOCKS_MAX; n_streams *= 2) {
        own_plan* plan = tiling_of_streams(n_streams, 128, 1 << 20, (uint64_t)n_streams);
        solve_and_validate(plan, &desc);
        IN_CASE("%d streams", n_streams);
        expect_optimal(plan, 1 << 20);
    }
    for (int which = 0; which < N_PATTERNS; which++)
        for (int k = 0; k < 2; k++) {
            own_plan* plan = pattern_of_streams((pattern)which, 2 + 2 * k, 64, (uint64_t)k);
            solve_and_validate(plan, &desc);
            IN_CASE("pattern %d of %d streams", which, 2 + 2 * k);
            CHECK_IS(plan->proof, ==, MEMO_PROOF_OPTIMAL);
        }
}

/* Runs of a cover begin short and differ in their order: few of them are enough. */
TEST(runs_of_a_large_cover_differ) {
    own_plan* plan = pattern_of_streams(BARRIER, 4, 512, 7);
    const memo_plan_desc desc = {.memoi_node_limit = 100000, .time_limit_s = 1000, .seed = 3};
    solve_and_validate(plan, &desc);
    CHECK_IS(plan->proof, ==, MEMO_PROOF_OPTIMAL);
}

/* Runs of a cover begin short: with runs of twice the length seed 6 needs more nodes. */
TEST(pipelines_need_few_nodes) {
    static const uint64_t seeds[] = {5, 6, 11};
    const memo_plan_desc desc = {.memoi_node_limit = 20000, .time_limit_s = 1000};
    for (int k = 0; k < 3; k++) {
        own_plan* plan = pattern_of_streams(PIPELINE, 4, 512, seeds[k]);
        solve_and_validate(plan, &desc);
        IN_CASE("seed %d", (int)seeds[k]);
        CHECK_IS(plan->proof, ==, MEMO_PROOF_OPTIMAL);
    }
}

/* Too many buffers for sections instead of pairs.  Two streams with a wait now and then. */
TEST(large_problems_keep_their_pairs) {
    enum { N = 9000, LIVE = 8 };
    memoi_problem problem;
    own_trace* trace = new_trace();
    for (int64_t i = 0; i < N + LIVE; i++) {
        if (i < N)
            CHECK_OK(memo_trace_malloc(trace, i, memo_test_int(1, 64), MEMO_CLASS_TRANSIENT,
                                       (int32_t)(i % 2), &error));
        if (i >= LIVE) CHECK_OK(memo_trace_free(trace, i - LIVE, &error));
        if (i % 16 == 0) add_wait(trace, 0, (int32_t)(i / 16 % 2), (int32_t)(1 - i / 16 % 2));
    }
    own_plan* plan = plan_of_trace(trace, 1);
    CHECK_OK(memoi_solve_pose(plan, 0, &problem, &error));
    CHECK(problem.held && problem.lower_bound > plan->lower_bound_bytes);
    memoi_problem_free(&problem);
    memo_plan_desc desc = {.time_limit_s = 1};
    solve_and_validate(plan, &desc);
    CHECK_OK(memo_plan_check(plan, trace, &error));
}

/* Stream 1 never waits, so all buffers that stream 0 has freed are held against requests of stream
 * 1.  So many pairs are not listed. */
TEST(too_many_pairs_are_planned_as_lifetimes) {
    enum { N = 6000 };
    own_trace* trace = new_trace();
    for (int64_t i = 0; i < 2 * N; i++) add_short(trace, i, i >= N);
    CHECK_IS((int64_t)N * N, >, MEMOI_HELD_PAIRS);
    own_plan* plan = plan_of_trace(trace, 8);
    memo_plan_desc desc = {.engine = MEMO_PLAN_ENGINE_GREEDY};
    solve_and_validate(plan, &desc);
    CHECK(plan->lower_bound_bytes == 8 && plan->peak_bytes >= 16);
    memo_plan_destroy(plan);

    /* A buffer for which all streams have met is another part.  Lifetimes prove nothing of it. */
    add_wait(trace, 0, 1, 0);
    add_short(trace, 2 * N, 0);
    plan = plan_of_trace(trace, 8);
    solve_and_validate(plan, &desc);
    CHECK_IS(plan->proof, ==, MEMO_PROOF_FEASIBLE);
    CHECK_IS(plan->peak_bytes, >, 16);
}

/* Each buffer has a lane of its own, and its hold ends late: the bound may not take the time of
 * planning. */
TEST(thousands_of_lanes_are_planned_in_time) {
    enum { N = 4000, AHEAD = 5 };
    own_plan* plan = new_plan(N, 0, 512);
    plan->holds = (memo_hold*)memob_calloc(N, sizeof(memo_hold));
    plan->n_holds = N - AHEAD;
    for (int64_t i = 0; i < N; i++) {
        put_buffer(plan, i, 2 * i, 2 * i + 3, 512 * (1 + i % 13))->lane = (int32_t)(64 + i);
        if (i >= plan->n_holds) continue;
        plan->holds[i].buffer = i;
        plan->holds[i].lane = (int32_t)(64 + i + AHEAD);
        plan->holds[i].until = 2 * i + 6 * AHEAD;
    }
    memo_plan_desc desc = {.time_limit_s = 2};
    clock_t start = clock();
    CHECK_OK(memo_plan_solve(plan, &desc, &error));
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    CHECK_IS(seconds, <, 12); /* some 0.3 without a sanitizer, 24 without a limit */
    CHECK_OK(memo_plan_validate(plan, &error));
}

/* Stream 1 fills b without having waited for stream 0, which owns it and a. */
TEST(early_users_are_seen) {
    for (int is_waited = 0; is_waited < 2; is_waited++) {
        own_trace* trace = new_trace();
        add_short(trace, 1, 0);
        CHECK_OK(memo_trace_malloc(trace, 2, 8, MEMO_CLASS_TRANSIENT, 0, &error));
        if (is_waited) add_wait(trace, 5, 0, 1);
        CHECK_OK(memo_trace_use(trace, 2, 1, &error));
        CHECK_OK(memo_trace_free(trace, 2, &error));
        own_plan* plan = plan_of_trace(trace, 1);
        solve_safely(plan, trace, is_waited);
        CHECK_IS(plan->peak_bytes, ==, (is_waited ? 8 : 16));
        plan->buffers[0].offset_bytes = plan->buffers[1].offset_bytes = 0;
        CHECK_IS((memo_plan_check(plan, trace, &error) == MEMO_STATUS_OK), ==, is_waited);
        CHECK(is_waited || strstr(error.message, "stream 1") != NULL);
    }
}

TEST(plans_of_other_traces_are_refused) {
    own_trace* trace = random_trace(40, 2, 0, 0, 1);
    own_plan* plan = plan_of_trace(trace, 1);
    CHECK_OK(memo_plan_solve(plan, NULL, &error));
    plan->buffers[plan->n_buffers - 1].id++;
    CHECK_ERROR(memo_plan_check(plan, trace, &error), INVALID_ARGUMENT,
                "does not match the trace's");
    plan->n_buffers--;
    CHECK_ERROR(memo_plan_check(plan, trace, &error), INVALID_ARGUMENT, "do not match the");
    plan->n_buffers++;
}

/* Peaks that pairs allow, as first fit found them; all are proven. */
TEST(shared_streams_are_planned_by_pairs) {
    static const char* const names[] = {"fsdp-limit2-ckpt", "offload-reload-unsynced",
                                        "prefetch-mid-bwd"};
    static const int64_t peaks[] = {4877975552, 12899581952, 12901154816};
    for (int k = 0; k < 3; k++) {
        char path[128];
        own_trace* trace = NULL;
        snprintf(path, sizeof path, "../shared/instances/stream_%s.trace", names[k]);
        if (memo_trace_read(path, &trace, &error))
            SKIP("../shared/instances is not there; the test reads public instances from it");
        own_plan* plan = plan_of_trace(trace, 512);
        solve_safely(plan, trace, k);
        IN_CASE("%s", names[k]);
        expect_optimal(plan, peaks[k]);
    }
}
