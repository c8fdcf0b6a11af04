/* caching_model.h - replays a trace on the host in a model of PyTorch's caching allocator.
 *
 * The model uses a memo_trace and the allocator's published rules, but no plan.  Include it after
 * the implementation of memo.h of the same release, because it calls internal functions (memob_).
 * Everything is static.
 *
 * The rules come from PyTorch's "CUDA semantics: memory management" and from the output of
 * _snapshot():
 *   - Sizes round up to 512 bytes.  Up to 1 MiB a request comes from the small pool, whose segments
 *     have 2 MiB; larger requests from the large pool.  Its segments have 20 MiB for
 *     requests below 10 MiB; otherwise the size itself, rounded up to 2 MiB.
 *   - A freed block is kept and serves only its own stream.  The allocator takes the smallest block
 *     that fits, at the lowest address among equals.  It splits the block if 512 bytes (small) or
 *     more than 1 MiB (large) remain.  Freed neighbors in a segment merge.
 *   - If other streams use a block (`use` in the trace, record_stream in PyTorch), a free has to
 *     wait.  The block returns when the work that these streams have at the free is done.
 *   - If the device has no room for a new segment, the allocator waits for all streams.  It returns
 *     every segment without a live block to the device and tries once more.  This is a *retry*; the
 *     MEMO paper calls it a reorganization.  If the retry fails too, memory has run out.
 *
 * A trace of one iteration does not show the earlier content of the cache.  A second replay of the
 * iteration changes nothing.  However, Adam allocates its states at the end of the first step, in
 * memory that activations have left, and they remain there.  With these states, the largest of five
 * recorded runs reserves exactly PyTorch's bytes (55977181184), and the two that recompute differ
 * by at most 2%.  The other two are 5 and 6% too small, or within 1.2% if the states are allocated
 * first (bench/plan.c, "caching").
 *
 * Omitted, because off by default: max_split_size, roundup_power2_divisions, garbage collection,
 * expandable segments.  The device itself never fragments here. */
#ifndef CACHING_MODEL_H
#define CACHING_MODEL_H

/* When the work of the other streams is done, in the order of the requests. */
typedef enum caching_deferral {
    CACHING_ORDERED = 0, /* once the block's own stream has waited for it */
    CACHING_LATE /* not before the allocator waits for all streams: the host runs far ahead */
} caching_deferral;

typedef struct caching_desc {
    int64_t capacity_bytes; /* of the device; 0: 2^62 */
    int64_t n_iterations;   /* of the requests between the marks "iteration begin" and "iteration
                               end"; 0: 1.  Memory that remains live is not requested again. */
    caching_deferral deferral;
} caching_desc;

typedef struct caching_stats {
    int64_t allocated_bytes; /* largest sum of live blocks, rounded sizes */
    int64_t reserved_bytes;  /* largest sum of segments */
    int64_t n_segments;      /* total taken from the device */
    int64_t n_retries;
    int64_t n_retries_first; /* n_retries up to the end of the first iteration */
    int64_t n_retries_last;  /* n_retries in the last iteration: the steady state */
    int64_t refused_request; /* request at which memory ran out and the replay ended; -1: none */
} caching_stats;

enum { CACHING_KIB = 1024, CACHING_MIB = 1024 * 1024 };

typedef enum caching_state {
    CACHING_UNUSED = 0, /* an unused struct; it has no memory */
    CACHING_IDLE,
    CACHING_LIVE,
    CACHING_PENDING /* freed, while another stream still uses it */
} caching_state;

typedef struct caching_block {
    int64_t size;
    uint64_t address; /* segments have consecutive addresses */
    int64_t previous,
        next;         /* in the segment; -1: none.  In an unused block, next is the next unused
                         block */
    int64_t freed_at; /* request number at which a pending block was freed */
    uint64_t users;   /* other streams that use it, one bit each */
    int32_t stream;
    int32_t is_small;
    caching_state state;
} caching_block;

typedef struct caching {
    caching_desc desc;
    caching_stats stats;
    caching_block* blocks;
    int64_t n_blocks, first_unused;
    int64_t* idle; /* blocks by stream, pool, size, address */
    int64_t n_idle;
    int64_t* pending;
    int64_t n_pending;
    int64_t reserved, allocated;
    uint64_t next_address;
    int64_t now; /* requests replayed so far */
    /* clock[s][u]: work given to stream u before this moment precedes all new work of s */
    int64_t clock[MEMOB_STREAMS][MEMOB_STREAMS];
    memob_map events; /* event -> row of snapshots, (MEMOB_STREAMS) each */
    int64_t* snapshots;
    int64_t n_events;
} caching;

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Returns an unused block, or -1 if there is no memory. */
static int64_t caching_new_block(caching* c) {
    int64_t at = c->first_unused;
    if (at >= 0)
        c->first_unused = c->blocks[at].next;
    else if (memob_grow(&c->blocks, c->n_blocks, 1, sizeof *c->blocks))
        at = c->n_blocks++;
    else
        return -1;
    memset(&c->blocks[at], 0, sizeof *c->blocks);
    c->blocks[at].previous = c->blocks[at].next = -1;
    return at;
}

static void caching_drop_block(caching* c, int64_t at) {
    c->blocks[at].state = CACHING_UNUSED;
    c->blocks[at].next = c->first_unused;
    c->first_unused = at;
}

static int caching_is_before(const caching_block* a, const caching_block* b) {
    if (a->stream != b->stream) return a->stream < b->stream;
    if (a->is_small != b->is_small) return a->is_small < b->is_small;
    return a->size != b->size ? a->size < b->size : a->address < b->address;
}

/* Returns the place in idle of the first block that is not before key. */
static int64_t caching_place(const caching* c, const caching_block* key) {
    int64_t low = 0, high = c->n_idle;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (caching_is_before(&c->blocks[c->idle[middle]], key))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int caching_add_idle(caching* c, int64_t at) {
    int64_t place = caching_place(c, &c->blocks[at]);
    if (!memob_grow(&c->idle, c->n_idle, 1, 8)) return 0;
    memmove(c->idle + place + 1, c->idle + place, 8 * (size_t)(c->n_idle++ - place));
    c->idle[place] = at;
    c->blocks[at].state = CACHING_IDLE;
    return 1;
}

static void caching_remove_idle(caching* c, int64_t at) {
    int64_t place = caching_place(c, &c->blocks[at]);
    memmove(c->idle + place, c->idle + place + 1, 8 * (size_t)(--c->n_idle - place));
}

/* Merges block `into` with its right neighbor. */
static void caching_merge(caching* c, int64_t into) {
    int64_t gone = c->blocks[into].next;
    c->blocks[into].size += c->blocks[gone].size;
    c->blocks[into].next = c->blocks[gone].next;
    if (c->blocks[gone].next >= 0) c->blocks[c->blocks[gone].next].previous = into;
    caching_drop_block(c, gone);
}

static int caching_return(caching* c, int64_t at) {
    int64_t next = c->blocks[at].next, previous = c->blocks[at].previous;
    if (next >= 0 && c->blocks[next].state == CACHING_IDLE) {
        caching_remove_idle(c, next);
        caching_merge(c, at);
    }
    if (previous >= 0 && c->blocks[previous].state == CACHING_IDLE) {
        caching_remove_idle(c, previous);
        caching_merge(c, at = previous);
    }
    c->blocks[at].users = 0;
    return caching_add_idle(c, at);
}

/* ---- pending blocks -------------------------------------------------------------------------- */

static int caching_is_done(const caching* c, const caching_block* b) {
    for (int u = 0; u < MEMOB_STREAMS; u++)
        if (b->users >> u & 1 && c->clock[b->stream][u] < b->freed_at) return 0;
    return 1;
}

/* Returns blocks whose work is done; after the allocator has waited for all streams, all blocks. */
static int caching_return_pending(caching* c, int is_synchronized) {
    int64_t n = c->n_pending;
    c->n_pending = 0;
    for (int64_t i = 0; i < n; i++) {
        const caching_block* b = &c->blocks[c->pending[i]];
        if (is_synchronized || (c->desc.deferral == CACHING_ORDERED && caching_is_done(c, b))) {
            if (!caching_return(c, c->pending[i])) return 0;
        } else {
            c->pending[c->n_pending++] = c->pending[i];
        }
    }
    return 1;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Returns every segment without a live block to the device. */
static void caching_release(caching* c) {
    int64_t n = c->n_idle;
    c->n_idle = 0;
    for (int64_t i = 0; i < n; i++) {
        const caching_block* b = &c->blocks[c->idle[i]];
        if (b->previous < 0 && b->next < 0) {
            c->reserved -= b->size;
            caching_drop_block(c, c->idle[i]);
        } else {
            c->idle[c->n_idle++] = c->idle[i];
        }
    }
}

/* Finds a free block for this request.  Returns 1 and its number in *at, or -1 in *at if the device
 * has no room.  Returns 0 if there is no host memory. */
static int caching_take(caching* c, const caching_block* key, int64_t* at) {
    int64_t place = caching_place(c, key), segment = 2 * CACHING_MIB;
    *at = -1;

    /* The smallest idle block that is large enough. */
    if (place < c->n_idle) {
        const caching_block* b = &c->blocks[c->idle[place]];
        if (b->stream == key->stream && b->is_small == key->is_small) {
            *at = c->idle[place];
            caching_remove_idle(c, *at);
            return 1;
        }
    }

    /* Otherwise a new segment, of PyTorch's sizes. */
    if (!key->is_small)
        segment = key->size < 10 * CACHING_MIB ? 20 * CACHING_MIB
                                               : memob_align_up(key->size, 2 * CACHING_MIB);
    if (segment > (c->desc.capacity_bytes ? c->desc.capacity_bytes : MEMOB_BYTES_MAX) - c->reserved)
        return 1;

    *at = caching_new_block(c);
    if (*at < 0) return 0;
    c->blocks[*at].size = segment;
    c->blocks[*at].address = c->next_address;
    c->blocks[*at].stream = key->stream;
    c->blocks[*at].is_small = key->is_small;
    c->next_address += (uint64_t)segment;
    c->reserved += segment;
    c->stats.reserved_bytes = memob_max(c->stats.reserved_bytes, c->reserved);
    c->stats.n_segments++;
    return 1;
}

/* As caching_take. */
static int caching_malloc(caching* c, int64_t bytes, int32_t stream, int64_t* at) {
    caching_block key;
    int64_t rest, tail;

    memset(&key, 0, sizeof key);
    key.size = memob_align_up(bytes, 512);
    key.stream = stream;
    key.is_small = key.size <= CACHING_MIB;
    if (!caching_return_pending(c, 0) || !caching_take(c, &key, at)) return 0;

    /* No room: wait for all streams, release idle segments, and retry once. */
    if (*at < 0) {
        c->stats.n_retries++;
        if (!caching_return_pending(c, 1)) return 0;
        caching_release(c);
        if (!caching_take(c, &key, at)) return 0;
        if (*at < 0) return 1;
    }

    /* Split off the rest if it is large enough. */
    rest = c->blocks[*at].size - key.size;
    if (key.is_small ? rest >= 512 : rest > CACHING_MIB) {
        tail = caching_new_block(c);
        if (tail < 0) return 0;
        c->blocks[tail] = c->blocks[*at];
        c->blocks[tail].size = rest;
        c->blocks[tail].address += (uint64_t)key.size;
        c->blocks[tail].previous = *at;
        if (c->blocks[*at].next >= 0) c->blocks[c->blocks[*at].next].previous = tail;
        c->blocks[*at].next = tail;
        c->blocks[*at].size = key.size;
        if (!caching_add_idle(c, tail)) return 0;
    }

    c->blocks[*at].state = CACHING_LIVE;
    c->allocated += c->blocks[*at].size;
    c->stats.allocated_bytes = memob_max(c->stats.allocated_bytes, c->allocated);
    return 1;
}

static int caching_free(caching* c, int64_t at) {
    c->allocated -= c->blocks[at].size;
    if (!c->blocks[at].users) return caching_return(c, at);
    if (!memob_grow(&c->pending, c->n_pending, 1, 8)) return 0;
    c->blocks[at].state = CACHING_PENDING;
    c->blocks[at].freed_at = c->now;
    c->pending[c->n_pending++] = at;
    return 1;
}

static int caching_record(caching* c, int64_t event, int32_t stream) {
    int64_t row = memob_map_get(&c->events, event);
    if (row < 0) {
        row = c->n_events;
        if (!memob_grow(&c->snapshots, row, 1, sizeof c->clock[0]) ||
            !memob_map_put(&c->events, event, row))
            return 0;
        c->n_events++;
    }
    memcpy(c->snapshots + row * MEMOB_STREAMS, c->clock[stream], sizeof c->clock[stream]);
    c->snapshots[row * MEMOB_STREAMS + stream] = c->now;
    return 1;
}

static void caching_wait(caching* c, int64_t event, int32_t stream) {
    const int64_t* snapshot = c->snapshots + memob_map_get(&c->events, event) * MEMOB_STREAMS;
    for (int u = 0; u < MEMOB_STREAMS; u++)
        c->clock[stream][u] = memob_max(c->clock[stream][u], snapshot[u]);
}

/* Replays request i.  where[i] is the block of malloc i, or -1. */
static int caching_request(caching* c, const memo_trace* trace, int64_t i, int64_t* where) {
    const memo_request* request = &trace->requests[i];
    int64_t origin = memob_request_origin(trace, i), at = origin >= 0 ? where[origin] : -1;
    c->now++;
    switch (request->kind) {
    case MEMO_REQUEST_MALLOC:
        if (at >= 0 || request->size_bytes == 0) return 1;
        if (!caching_malloc(c, request->size_bytes, request->stream, &where[i])) return 0;
        if (where[i] < 0) c->stats.refused_request = i;
        return 1;
    case MEMO_REQUEST_FREE:
        if (at < 0) return 1;
        where[origin] = -1;
        return caching_free(c, at);
    case MEMO_REQUEST_USE:
        if (at >= 0 && request->stream != c->blocks[at].stream)
            c->blocks[at].users |= (uint64_t)1 << request->stream;
        return 1;
    case MEMO_REQUEST_RECORD: return caching_record(c, request->id, request->stream);
    case MEMO_REQUEST_WAIT: caching_wait(c, request->id, request->stream); return 1;
    case MEMO_REQUEST_MARK:
    case MEMO_N_REQUEST_KINDS: break;
    }
    return 1;
}

/* Finds the requests of the iteration: [*begin, *end); without marks, all of them. */
static void caching_body(const memo_trace* trace, int64_t* begin, int64_t* end) {
    *begin = 0;
    *end = trace->n_requests;
    for (int64_t i = 0; i < trace->n_requests; i++) {
        memo_mark mark = memob_request_mark(trace, i);
        if (mark.phase != MEMO_PHASE_ITERATION) continue;
        if (!mark.is_end && *begin == 0) *begin = i;
        if (mark.is_end) *end = i + 1;
    }
    if (*end < *begin) *end = trace->n_requests;
}

/* Replays trace.  If memory runs out, stats contain the request, and count up to it. Errors:
 * OUT_OF_HOST_MEMORY. */
static memo_status caching_replay(const memo_trace* trace, const caching_desc* desc,
                                  caching_stats* stats, memo_error* error) {
    int64_t begin, end, n, before = 0;
    int64_t* where = (int64_t*)memob_calloc(trace->n_requests, 8);
    caching* c = (caching*)memob_calloc(1, sizeof(caching));
    int fits = where && c;

    memset(stats, 0, sizeof *stats);
    caching_body(trace, &begin, &end);
    for (int64_t i = 0; fits && i < trace->n_requests; i++) where[i] = -1;
    if (fits) {
        c->desc = *desc;
        c->first_unused = c->stats.refused_request = -1;
    }

    /* The requests before the iteration once, the iteration n times, the rest once. */
    n = desc->n_iterations > 0 ? desc->n_iterations : 1;
    for (int64_t part = 0; fits && part < n + 2; part++) {
        const int64_t first = part == 0 ? 0 : part <= n ? begin : end;
        const int64_t last = part == 0 ? begin : part <= n ? end : trace->n_requests;
        if (part == n) before = c->stats.n_retries;
        for (int64_t i = first; fits && i < last && c->stats.refused_request < 0; i++)
            fits = caching_request(c, trace, i, where);
        if (part == 1 && fits) c->stats.n_retries_first = c->stats.n_retries;
    }

    if (fits) {
        *stats = c->stats;
        stats->n_retries_last = stats->n_retries - before;
    }

    MEMO_FREE(where);
    if (c) {
        MEMO_FREE(c->blocks);
        MEMO_FREE(c->idle);
        MEMO_FREE(c->pending);
        MEMO_FREE(c->snapshots);
        memob_map_free(&c->events);
        MEMO_FREE(c);
    }
    return fits ? MEMO_STATUS_OK : memob_no_memory(error, "the model of the caching allocator");
}

#endif
