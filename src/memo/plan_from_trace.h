#pragma once
#include "memo/marks.h"
#include "memo/plan.h"
/* ---- >>plan from trace --------------------------------------------------------------------------
 * Knows: requests, streams, and who may use a buffer when.  Knows nothing of offsets.
 *
 * 1. A clock points to an earlier request, and each advance raises it, in the order of requests.
 * 2. A lane has a stream; its mallocs are adjacent.
 * 3. A hold lasts beyond the lifetime of its buffer, up to a malloc that it forbids.
 * 4. Each malloc and each free takes one moment; a buffer ends once.
 * 5. All bought waits are made, each before its request.
 *
 * Vector clocks: all that stream s enqueues from now on comes after some request of stream u, the
 * clock of s for u.  Only waits advance it.  The advances are kept, to find out later from which
 * request on stream s is behind a given use on stream u. */

typedef struct memoi_advances {
    memob_keyed* list; /* from request `index` on, the clock is `key` */
    int64_t n;
} memoi_advances;

/* Buffers that the same streams may use as soon as they are requested. */
typedef struct memoi_lane {
    uint64_t streams;
    int32_t name;
    int64_t first, n; /* among memoi_clocks.mallocs */
} memoi_lane;

typedef struct memoi_clocks {
    int64_t n;                /* streams are 0 to n - 1 */
    memoi_advances* advances; /* (n, n): the clock of each stream for each */
    /* A malloc's latest use; the use before a use, or -1; the latest record of an event, at its
     * first record. */
    int64_t* latest;
    uint64_t* starts; /* of each request that is a malloc: its own stream, and those that use the
                         buffer without having waited for the malloc */
    const memo_plan* buyer; /* its waits come on top of the trace's; NULL: there are none */
    int64_t* request_at;    /* of each time */
    int64_t next_wait;
    memoi_lane* lanes;
    int64_t n_lanes;
    memob_keyed* mallocs; /* requests, by lane */
    memob_arrays arrays;  /* all that do not grow */
} memoi_clocks;

/* The clock of stream s for stream u at request i, without what i itself advances; -1: none. */
MEMOI int64_t memoi_clocks_at(const memoi_clocks* clocks, int64_t s, int64_t u, int64_t i) {
    const memoi_advances* advances = &clocks->advances[s * clocks->n + u];
    int64_t k = advances->n;
    if (s == u) return i;
    while (k > 0 && advances->list[k - 1].index >= i) k--; /* seldom far back */
    return k > 0 ? advances->list[k - 1].key : -1;
}

/* From request i on, stream `to` comes after all that stream `from` enqueued before request
 * `record`. */
MEMOI memo_status memoi_clocks_wait(memoi_clocks* clocks, int64_t i, int64_t to, int64_t from,
                                    int64_t record, memo_error* error) {
    for (int64_t u = 0; u < clocks->n; u++) {
        memoi_advances* advances = &clocks->advances[to * clocks->n + u];
        const int64_t clock = memoi_clocks_at(clocks, from, u, record);
        if (u == to || clock <= memoi_clocks_at(clocks, to, u, INT64_MAX)) continue;
        if (!memob_grow(&advances->list, advances->n, 1, sizeof(memob_keyed)))
            return memob_no_memory(error, "the order of streams");
        MEMO_ASSERT(clock <= i);                                                   /* 1 */
        MEMO_ASSERT(!advances->n || (advances->list[advances->n - 1].index <= i && /* 1 */
                                     advances->list[advances->n - 1].key < clock));
        advances->list[advances->n++] = memob_keyed_of(clock, i);
    }
    return MEMO_STATUS_OK;
}

/* Makes the bought waits right before request i, at `time`: it advances clocks from i - 1 on. */
MEMOI memo_status memoi_clocks_buy(memoi_clocks* clocks, int64_t i, int64_t time,
                                   memo_error* error) {
    const memo_plan* buyer = clocks->buyer;
    memo_status status = MEMO_STATUS_OK;
    for (; buyer && clocks->next_wait < buyer->n_waits && !status; clocks->next_wait++) {
        const memo_wait* wait = &buyer->waits[clocks->next_wait];
        if (buyer->buffers[wait->requested].begin > time) break;
        status = memoi_clocks_wait(clocks, i - 1, wait->to, wait->from,
                                   clocks->request_at[buyer->buffers[wait->freed].end], error);
    }
    return status;
}

MEMOI memo_status memoi_clocks_run(memoi_clocks* clocks, const memo_trace* trace,
                                   memo_error* error) {
    const memob_map* events = &memoi_trace_book_of(trace)->events;
    int64_t time = 0;
    memob_arrays* arrays = &clocks->arrays;
    clocks->advances = MEMOB_ARRAY(arrays, memoi_advances, clocks->n * clocks->n);
    clocks->latest = MEMOB_ARRAY(arrays, int64_t, trace->n_requests);
    clocks->starts = MEMOB_ARRAY(arrays, uint64_t, trace->n_requests);
    clocks->mallocs = MEMOB_ARRAY(arrays, memob_keyed, trace->n_buffers);
    clocks->request_at = MEMOB_ARRAY(arrays, int64_t, trace->n_requests);
    if (arrays->failed) return memob_no_memory(error, "the order of streams");

    /* In the order of enqueueing: a wait takes over the clock that the event's stream had at the
     * latest record. */
    for (int64_t i = 0; i < trace->n_requests; i++) {
        const memo_request* request = &trace->requests[i];
        int64_t s = request->stream, origin = memob_request_origin(trace, i);
        memo_status status = MEMO_STATUS_OK;
        if (request->kind == MEMO_REQUEST_MALLOC || request->kind == MEMO_REQUEST_FREE) {
            status = memoi_clocks_buy(clocks, i, time, error);
            clocks->request_at[time++] = i;
        }
        if (request->kind == MEMO_REQUEST_MALLOC) {
            clocks->starts[i] = (uint64_t)1 << s;
            clocks->latest[i] = -1;
        } else if (request->kind == MEMO_REQUEST_USE) {
            /* A stream that uses the buffer before a wait for the owner's request may use the
             * buffer directly after the request. */
            int64_t owner = trace->requests[origin].stream;
            clocks->latest[i] = clocks->latest[origin];
            clocks->latest[origin] = i;
            if (s != owner && memoi_clocks_at(clocks, s, owner, i) < origin)
                clocks->starts[origin] |= (uint64_t)1 << s;
        } else if (request->kind == MEMO_REQUEST_RECORD) {
            clocks->latest[memob_map_get(events, request->id)] = i;
        } else if (request->kind == MEMO_REQUEST_WAIT) {
            const int64_t record = clocks->latest[memob_map_get(events, request->id)];
            status = memoi_clocks_wait(clocks, i, s, trace->requests[record].stream, record, error);
        }
        if (status) return status;
    }
    MEMO_ASSERT(!clocks->buyer || clocks->next_wait == clocks->buyer->n_waits); /* 5 */
    return MEMO_STATUS_OK;
}

/* The lane of a set of streams, created if necessary; -1: no memory. */
MEMOI int64_t memoi_clocks_lane_find(memoi_clocks* clocks, uint64_t streams) {
    const int64_t n = clocks->n_lanes, first = __builtin_ctzll(streams);
    MEMO_ASSERT(streams); /* 2 */
    for (int64_t lane = 0; lane < n; lane++)
        if (clocks->lanes[lane].streams == streams) return lane;
    if (!memob_grow(&clocks->lanes, n, 1, sizeof(memoi_lane))) return -1;
    clocks->lanes[n].streams = streams;
    clocks->lanes[n].name = (int32_t)(streams >> first == 1 ? first : MEMOB_STREAMS + n);
    return clocks->n_lanes++;
}

/* Gives each buffer a lane, and each lane its mallocs in order.  Buffers without bytes, and buffers
 * that live from 0 on, are not listed. */
MEMOI memo_status memoi_clocks_lanes(memoi_clocks* clocks, const memo_trace* trace,
                                     const int64_t* number, memo_plan* plan, memo_error* error) {
    int64_t lane, n = 0;

    /* Equal sets of streams share a lane. */
    for (int64_t i = 0; i < trace->n_requests; i++) {
        memo_buffer* buffer = &plan->buffers[number[i]];
        if (trace->requests[i].kind != MEMO_REQUEST_MALLOC) continue;
        lane = memoi_clocks_lane_find(clocks, clocks->starts[i]);
        if (lane < 0) return memob_no_memory(error, "the order of streams");
        buffer->lane = clocks->lanes[lane].name;
        if (buffer->size_bytes == 0 ||
            (buffer->memory_class == MEMO_CLASS_PERSISTENT && buffer->begin >= plan->body_begin))
            continue;
        clocks->mallocs[n++] = memob_keyed_of(lane, i);
    }

    memob_keyed_sort(clocks->mallocs, n);
    while (n-- > 0) {
        lane = clocks->mallocs[n].key;
        MEMO_ASSERT(!clocks->lanes[lane].n || clocks->lanes[lane].first == n + 1); /* 2 */
        clocks->lanes[lane].first = n;
        clocks->lanes[lane].n++;
        clocks->mallocs[n].key = clocks->mallocs[n].index;
    }
    return MEMO_STATUS_OK;
}

/* How many of n entries, in the order of keys, have a key up to this one. */
MEMOI int64_t memoi_clocks_count_up_to(const memob_keyed* list, int64_t n, int64_t key) {
    int64_t low = 0, high = n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (list[middle].key > key)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The request from which on stream s comes after request `use` on stream used_by; INT64_MAX:
 * never. */
MEMOI int64_t memoi_clocks_behind(const memoi_clocks* clocks, int64_t s, int64_t used_by,
                                  int64_t use) {
    const memoi_advances* advances = &clocks->advances[s * clocks->n + used_by];
    int64_t k;
    if (s == used_by) return use;
    k = memoi_clocks_count_up_to(advances->list, advances->n, use - 1);
    return k < advances->n ? advances->list[k].index : INT64_MAX;
}

/* Adds the holds of the buffer that request i frees. */
MEMOI memo_status memoi_plan_hold(memo_plan* plan, const memoi_clocks* clocks,
                                  const memo_trace* trace, const int64_t* number, int64_t i,
                                  memo_error* error) {
    const int64_t origin = memob_request_origin(trace, i), buffer = number[origin];
    int64_t behind[MEMOB_STREAMS], s, k, use;

    /* The request from which on each stream comes after all uses. */
    for (s = 0; s < clocks->n; s++)
        behind[s] = memoi_clocks_behind(clocks, s, plan->buffers[buffer].stream, i);
    for (use = clocks->latest[origin]; use >= 0; use = clocks->latest[use]) {
        int64_t used_by = trace->requests[use].stream;
        for (s = 0; s < clocks->n; s++)
            behind[s] = memob_max(behind[s], memoi_clocks_behind(clocks, s, used_by, use));
    }

    /* A lane comes after them when its last stream does.  Mallocs between the free and then, up to
     * the last, are held; a lane seldom has one. */
    for (k = 0; k < clocks->n_lanes; k++) {
        const memoi_lane* lane = &clocks->lanes[k];
        const memob_keyed *mallocs = clocks->mallocs + lane->first, *last;
        const int64_t next = memoi_clocks_count_up_to(mallocs, lane->n, i);
        uint64_t streams = lane->streams;
        int64_t at = 0;
        for (; streams; streams &= streams - 1)
            at = memob_max(at, behind[__builtin_ctzll(streams)]);
        if (next == lane->n || at < mallocs[next].index) continue;
        if (!memob_grow(&plan->holds, plan->n_holds, 1, sizeof(memo_hold)))
            return memob_no_memory(error, "the order of streams");
        last = mallocs + memoi_clocks_count_up_to(mallocs, lane->n, at) - 1;
        MEMO_ASSERT(last >= mallocs + next && last->index <= at);                           /* 3 */
        MEMO_ASSERT(plan->buffers[number[last->index]].begin >= plan->buffers[buffer].end); /* 3 */
        plan->holds[plan->n_holds].buffer = buffer;
        plan->holds[plan->n_holds].lane = lane->name;
        plan->holds[plan->n_holds++].until = plan->buffers[number[last->index]].begin + 1;
    }
    return MEMO_STATUS_OK;
}

/* Sets lanes and holds.  number: of each request that is a malloc, its buffer. */
MEMOI memo_status memoi_plan_streams(memo_plan* plan, const memo_trace* trace,
                                     const int64_t* number, const memo_plan* buyer,
                                     memo_error* error) {
    memoi_clocks clocks = MEMO_ZERO(memoi_clocks);
    memo_status status;
    clocks.buyer = buyer;
    for (int64_t i = 0; i < trace->n_requests; i++)
        clocks.n = memob_max(clocks.n, trace->requests[i].stream + 1);
    for (int64_t i = 0; buyer && i < buyer->n_waits; i++)
        clocks.n = memob_max(clocks.n, memob_max(buyer->waits[i].from, buyer->waits[i].to) + 1);
    if (clocks.n <= 1) return MEMO_STATUS_OK;
    status = memoi_clocks_run(&clocks, trace, error);
    if (!status) status = memoi_clocks_lanes(&clocks, trace, number, plan, error);
    for (int64_t i = 0; i < trace->n_requests && !status; i++) {
        int64_t buffer = number[memob_max(memob_request_origin(trace, i), 0)];
        if (trace->requests[i].kind == MEMO_REQUEST_FREE && plan->buffers[buffer].size_bytes > 0 &&
            plan->buffers[buffer].memory_class != MEMO_CLASS_PERSISTENT)
            status = memoi_plan_hold(plan, &clocks, trace, number, i, error);
    }

    for (int64_t i = 0; clocks.advances && i < clocks.n * clocks.n; i++)
        MEMO_FREE(clocks.advances[i].list);
    MEMO_FREE(clocks.lanes);
    memob_arrays_free(&clocks.arrays);
    return status;
}

/* Sets lifetimes by the order of requests alone. */
MEMOI void memoi_plan_fill(memo_plan* plan, const memo_trace* trace, int64_t* number) {
    int64_t time = 0, n = 0, has_body = 0;

    /* Each malloc and each free takes a moment. */
    for (int64_t i = 0; i < trace->n_requests; i++) {
        const memo_request* request = &trace->requests[i];
        if (request->kind == MEMO_REQUEST_MALLOC) {
            memo_buffer* buffer = &plan->buffers[n];
            number[i] = n++;
            buffer->id = request->id;
            buffer->size_bytes = request->size_bytes;
            buffer->begin = time++;
            buffer->end = -1;
            buffer->stream = buffer->lane = request->stream;
            buffer->memory_class = request->memory_class;
        } else if (request->kind == MEMO_REQUEST_FREE) {
            MEMO_ASSERT(plan->buffers[number[memob_request_origin(trace, i)]].end == -1); /* 4 */
            plan->buffers[number[memob_request_origin(trace, i)]].end = time++;
        } else if (request->kind == MEMO_REQUEST_MARK && !has_body) {
            memo_mark mark = memob_request_mark(trace, i);
            if (mark.phase == MEMO_PHASE_ITERATION && !mark.is_end) {
                plan->body_begin = time;
                has_body = 1;
            }
        }
    }
    MEMO_ASSERT(n == plan->n_buffers); /* 4 */
    plan->n_times = time;
}

/* Finds skeletal buffers by the marks of layers, from the last request to the first. */
MEMOI void memoi_plan_classify(memo_plan* plan, const memo_trace* trace, const int64_t* number) {
    int64_t time = plan->n_times, next_backward = INT64_MAX; /* a time */
    int is_forward = 0;
    for (int64_t i = trace->n_requests - 1; i >= 0; i--) {
        const memo_request_kind kind = trace->requests[i].kind;
        const memo_mark mark = memob_request_mark(trace, i);
        memo_buffer* buffer = &plan->buffers[number[i]]; /* of a malloc */
        if (mark.phase == MEMO_PHASE_FORWARD) is_forward = mark.is_end;
        if (mark.phase > MEMO_PHASE_FORWARD) next_backward = time;
        time -= kind == MEMO_REQUEST_MALLOC || kind == MEMO_REQUEST_FREE;
        if (kind == MEMO_REQUEST_MALLOC && buffer->memory_class == MEMO_CLASS_TRANSIENT &&
            is_forward && buffer->end >= next_backward)
            buffer->memory_class = MEMO_CLASS_SKELETAL;
    }
    MEMO_ASSERT(time == 0); /* 4 */
}

MEMOI memo_status memob_plan_of_other_trace(memo_error* error) {
    return MEMOB_INVALID(error, "plan: its buffers are not those of the trace; pass the trace that "
                                "the plan was made from");
}

/* The plan of a trace.  With a buyer, a plan of the same trace, its waits shorten holds. */
MEMOI memo_status memob_plan_make(const memo_trace* trace, int64_t alignment_bytes,
                                  const memo_plan* buyer, memo_plan** plan, memo_error* error) {
    int64_t* number; /* of each request that is a malloc: its buffer */
    memo_status status =
        memo_plan_create(trace->n_buffers, 0, alignment_bytes ? alignment_bytes : 512, plan, error);
    if (status) return status;

    /* Lifetimes and holds by the order of requests. */
    number = (int64_t*)memob_calloc(trace->n_requests, 8);
    if (number) {
        memoi_plan_fill(*plan, trace, number);
        memoi_plan_classify(*plan, trace, number);
        if (buyer && (buyer->n_buffers != trace->n_buffers || buyer->n_times != (*plan)->n_times))
            status = memob_plan_of_other_trace(error);
        if (!status) status = memoi_plan_streams(*plan, trace, number, buyer, error);
        MEMO_FREE(number);
    } else {
        status = memob_no_memory(error, "a plan");
    }

    /* Persistent buffers outlive their frees, because the body repeats. */
    for (int64_t i = 0; i < (*plan)->n_buffers && !status; i++) {
        memo_buffer* buffer = &(*plan)->buffers[i];
        int is_before = buffer->begin < (*plan)->body_begin;
        if (is_before && buffer->end < 0) buffer->memory_class = MEMO_CLASS_PERSISTENT;
        if (buffer->end < 0 || buffer->memory_class == MEMO_CLASS_PERSISTENT)
            buffer->end = (*plan)->n_times;
        if (buffer->memory_class == MEMO_CLASS_PERSISTENT && !is_before) buffer->begin = 0;
    }
    if (!status) status = memo_plan_prepare(*plan, error);
    if (status) {
        memo_plan_destroy(*plan);
        *plan = NULL;
    }
    return status;
}

memo_status memo_plan_from_trace(const memo_trace* trace, int64_t alignment_bytes, memo_plan** plan,
                                 memo_error* error) {
    MEMOB_REFUSE_NULL(error, "plan", plan);
    *plan = NULL;
    MEMOB_REFUSE_NULL(error, "trace", trace);
    return memob_plan_make(trace, alignment_bytes, NULL, plan, error);
}
