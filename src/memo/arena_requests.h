#pragma once
#include "memo/trace.h"
#include "memo/arena.h"
/* ---- >>arena requests ---------------------------------------------------------------------------
 * Knows: micro-batches, the next planned request, and divergence.  Knows nothing of how offsets
 * were found.
 *
 * 1. A micro-batch begins with the blocks from before the body alone; its own come behind them.
 * 2. The cursor is at an event or behind the last; inside a micro-batch at one of the body.
 * 3. A slot is free when it is served; so are all slots that share bytes with it.
 * 4. A request is served behind all steps that are due, its waits included.
 * 5. What lives in a recorded trace when a micro-batch ends was requested before the first one.
 * 6. The last of the trace's buffers is the block that was recorded last. */

/* Is this a planned free that has not happened? */
MEMOI int memoi_arena_is_due(const memo_arena* arena, int64_t event) {
    const int64_t index = arena->events[event].index;
    return index < arena->n_buffers && arena->slots[index].is_live;
}

/* Moves the cursor over planned frees that have happened. */
MEMOI void memoi_arena_skip(memo_arena* arena) {
    while (arena->cursor < arena->n_events &&
           arena->events[arena->cursor].index < arena->n_buffers &&
           !memoi_arena_is_due(arena, arena->cursor))
        arena->cursor++;
}

memo_status memo_arena_begin(memo_arena* arena, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int64_t n_early = 0;
    MEMOB_REFUSE_NULL(error, "arena", arena);
    if (arena->state == MEMOI_ARENA_INSIDE)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "memo_arena_begin: a micro-batch is open; end it first");
    for (int64_t i = 0; i < arena->body_event && arena->state == MEMOI_ARENA_BEFORE; i++)
        n_early += memoi_arena_is_due(arena, i);
    if (n_early)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "memo_arena_begin: %lld buffers are live that the plan frees before "
                              "the first micro-batch; free them, their bytes are reused",
                              (long long)n_early);
    if (arena->trace) status = memo_trace_mark(arena->trace, "iteration begin", error);
    if (status) return status;

    /* The outputs of the micro-batch before end. */
    if (arena->state == MEMOI_ARENA_BETWEEN) {
        status = memoi_arena_look_at_all(arena, 1, error);
        if (!status) status = memoi_arena_blocks_drop(arena, arena->blocks.n_before_body, error);
        if (status) return status;
    }
    MEMO_ASSERT(arena->state == MEMOI_ARENA_BEFORE || /* 1 */
                arena->blocks.n == arena->blocks.n_before_body);
    arena->dry_address_begin = arena->dry_address;
    arena->blocks.n_before_body = arena->blocks.n;
    arena->cursor = arena->body_event;
    arena->next_step = 0;
    arena->n_body_requests = 0;
    arena->state = MEMOI_ARENA_INSIDE;
    return MEMO_STATUS_OK;
}

/* Ends what is left of the micro-batch, which is no longer open.  Its bytes stay. */
MEMOI void memoi_arena_close(memo_arena* arena) {
    memoi_arena_skip(arena);
    MEMO_ASSERT(arena->cursor >= arena->body_event && arena->cursor <= arena->n_events); /* 2 */
    for (int64_t i = arena->body_event; i < arena->cursor && arena->cursor < arena->n_events; i++)
        arena->slots[arena->events[i].index % arena->n_buffers].is_live = 0;
    for (int64_t i = arena->blocks.n_before_body; i < arena->blocks.n; i++)
        memoi_arena_block_end(arena, i);
    arena->dry_address = arena->dry_address_begin;
    arena->state = MEMOI_ARENA_BETWEEN;
}

memo_status memo_arena_end(memo_arena* arena, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "arena", arena);
    if (arena->state != MEMOI_ARENA_INSIDE)
        return memo_error_set(
            error, MEMO_STATUS_INVALID_STATE,
            "memo_arena_end: no micro-batch is open; call memo_arena_begin first");
    for (int64_t i = arena->blocks.n - 1; i >= arena->blocks.n_before_body && arena->trace; i--) {
        memo_status status = MEMO_STATUS_OK;
        if (arena->blocks.list[i].address)
            status = memo_trace_free(arena->trace, arena->blocks.list[i].id, error);
        if (status) return status;
        memoi_arena_block_end(arena, i);
    }
    if (arena->trace) {
        memo_status status = memo_trace_mark(arena->trace, "iteration end", error);
        if (status) return status;
        MEMO_ASSERT(arena->trace->n_live <= arena->blocks.n_before_body); /* 5 */
        arena->trace = NULL;                                              /* recorded */
    }
    memoi_arena_close(arena);
    return memoi_arena_look_at_all(arena, 0, error);
}

/* Abandons the current micro-batch: frees the buffers.  A recording ends, and its trace is of no
 * use.  The next call is memo_arena_begin. */
MEMOI void memob_arena_abandon(memo_arena* arena) {
    if (arena->state != MEMOI_ARENA_INSIDE) return;
    memoi_arena_close(arena);
    (void)memoi_arena_blocks_drop(arena, arena->blocks.n_before_body, NULL);
    arena->trace = NULL;
}

/* --- requests, recorded --- */

/* Takes a block from the device and lists it, in the trace too. */
MEMOI memo_status memoi_arena_record_alloc(memo_arena* arena, int64_t size_bytes, int32_t stream,
                                           void** address, memo_error* error) {
    memoi_blocks* blocks = &arena->blocks;
    memoi_block block = {NULL, size_bytes, arena->trace ? arena->trace->n_buffers : -1, NULL};
    const int64_t room =
        arena->is_checked ? memoi_arena_room(size_bytes, MEMOB_DEVICE_ALIGNMENT) : 0;
    memo_status status;
    if (!memob_grow(&blocks->list, blocks->n, 1, sizeof(memoi_block)) ||
        (arena->is_checked && !memob_grow(&arena->regions, blocks->n, 1, sizeof(memoi_region))))
        return memob_no_memory(error, "the arena's list of blocks");
    if (size_bytes > MEMOB_BYTES_MAX - blocks->live_bytes)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_DEVICE_MEMORY,
                              "size: live sizes sum to more than 2^62 bytes; free some first");
    status = arena->device
                 ? memo_device_alloc(arena->device, memob_max(room, size_bytes + !size_bytes),
                                     address, error)
                 : memoi_arena_dry_alloc(arena, size_bytes, address, error);
    if (status) return status;
    if (arena->is_checked) {
        const memoi_region region = {(char*)*address, room, size_bytes};
        arena->regions[blocks->n] = region;
        status = memob_probe_sweep(&arena->probe, region.begin, room, 1, NULL, error);
    }

    if (!status && !memob_map_put(&blocks->index, memoi_arena_address_key(*address), blocks->n))
        status = memob_no_memory(error, "the arena's list of blocks");
    if (status) {
        if (arena->device) memo_device_free(arena->device, *address, NULL);
        return status;
    }
    block.address = *address;
    block.taken = arena->device ? *address : NULL;
    blocks->list[blocks->n++] = block;
    blocks->live_bytes += size_bytes;
    blocks->peak_bytes = memob_max(blocks->peak_bytes, blocks->live_bytes);
    MEMO_ASSERT(blocks->n_before_body < blocks->n); /* 1 */
    if (arena->trace) {
        status = memo_trace_malloc(arena->trace, block.id, size_bytes,
                                   arena->state == MEMOI_ARENA_BEFORE ? MEMO_CLASS_PERSISTENT
                                                                      : MEMO_CLASS_TRANSIENT,
                                   stream, error);
        MEMO_ASSERT(status || arena->trace->n_buffers == block.id + 1); /* 6 */
        if (status) memoi_arena_block_free(arena, blocks->n - 1, NULL);
    }
    arena->n_requests += !status;
    return status;
}

/* --- requests, replayed ---
 *
 * A request is served from the plan only if all planned events before it have happened or can no
 * longer happen (a planned free of a buffer that is not live).  So live buffers are at their
 * planned addresses and never overlap, whatever the trainer does. */

/* Enqueues the steps that are due before the event at the cursor: records, and waits if it is
 * requested. */
MEMOI memo_status memoi_arena_steps(memo_arena* arena, int is_requested, memo_error* error) {
    for (; arena->next_step < arena->n_steps && arena->state == MEMOI_ARENA_INSIDE;
         arena->next_step++) {
        const memoi_step* step = &arena->steps[arena->next_step];
        memo_status status;
        MEMO_ASSERT(arena->next_step == 0 || step[-1].at <= step->at); /* 4 */
        if (step->at > arena->cursor || (step->is_wait && !is_requested)) break;
        status = step->is_wait ? memo_event_wait(arena->device, step->event, step->stream, error)
                               : memo_event_record(arena->device, step->event, step->stream, error);
        if (status) return status;
    }
    return MEMO_STATUS_OK;
}

/* The error of a request other than the planned one. */
MEMOI memo_status memoi_arena_diverge(const memo_arena* arena, int64_t end, int64_t size_bytes,
                                      memo_error* error) {
    char planned[128] = "the plan has no more requests";
    if (arena->cursor < end) {
        const int64_t index = arena->events[arena->cursor].index, n = arena->n_buffers;
        const memo_buffer* buffer = &arena->plan->buffers[index % n];
        snprintf(planned, sizeof planned, "the plan %s buffer %lld of %lld bytes (id %lld)%s",
                 index < n ? "first frees" : "has", (long long)(index % n),
                 (long long)buffer->size_bytes, (long long)buffer->id, index < n ? "" : " here");
    }
    return memo_error_set(error, MEMO_STATUS_DIVERGED,
                          "request %lld %s asks for %lld bytes, but %s; record and plan again",
                          (long long)arena->n_body_requests,
                          arena->state == MEMOI_ARENA_INSIDE ? "of the micro-batch"
                                                             : "before the micro-batches",
                          (long long)size_bytes, planned);
}

/* For the assertion: of the live slots, as many as share a byte with slot i.  Large plans are not
 * looked at, since it looks at all slots. */
MEMOI int64_t memoi_arena_n_sharing(const memo_arena* arena, int64_t i) {
    const memoi_slot* slot = &arena->slots[i];
    const int64_t n = arena->n_buffers <= 1000 ? arena->n_buffers : 0;
    int64_t n_sharing = 0;
    for (int64_t k = 0; k < n; k++) {
        const memoi_slot* other = &arena->slots[k];
        n_sharing += other->is_live && other->address < slot->address + slot->size_bytes &&
                     slot->address < other->address + other->size_bytes;
    }
    return n_sharing;
}

MEMOI memo_status memoi_arena_replay_alloc(memo_arena* arena, int64_t size_bytes, void** address,
                                           memo_error* error) {
    int64_t end = arena->state == MEMOI_ARENA_BEFORE ? arena->body_event : arena->n_events;
    int64_t buffer;
    memoi_slot* slot;
    memo_status status = MEMO_STATUS_OK;
    memoi_arena_skip(arena);
    MEMO_ASSERT(arena->cursor <= arena->n_events); /* 2 */
    buffer = arena->events[arena->cursor].index - arena->n_buffers;
    if (arena->cursor >= end || buffer < 0 || size_bytes > arena->slots[buffer].size_bytes)
        return memoi_arena_diverge(arena, end, size_bytes, error);
    if (arena->n_steps > 0) status = memoi_arena_steps(arena, 1, error);
    if (status) return status;
    MEMO_ASSERT(arena->state != MEMOI_ARENA_INSIDE || arena->next_step == arena->n_steps || /* 4 */
                arena->steps[arena->next_step].at > arena->cursor);
    slot = &arena->slots[buffer];
    MEMO_ASSERT(!slot->is_live);                            /* 3 */
    MEMO_ASSERT(memoi_arena_n_sharing(arena, buffer) == 0); /* 3 */
    slot->is_live = 1;
    arena->slots[slot->first].holder = buffer;
    *address = slot->address;
    arena->cursor++;
    arena->n_body_requests++;
    arena->n_requests++;
    return arena->is_checked ? memoi_arena_look(arena, buffer, size_bytes, error) : MEMO_STATUS_OK;
}

/* The live slot at an address, or NULL: the slot of the next planned free, or another slot if the
 * free is early or late. */
MEMOI memoi_slot* memoi_arena_find_slot(const memo_arena* arena, const void* address) {
    const int64_t next = arena->events[arena->cursor].index;
    memoi_slot* slot = next < arena->n_buffers ? &arena->slots[next] : NULL;
    if (!slot || slot->address != address) {
        int64_t first = memob_map_get(&arena->addresses, memoi_arena_address_key(address));
        slot = first < 0 ? NULL : &arena->slots[arena->slots[first].holder];
    }
    return slot && slot->is_live && slot->address == address ? slot : NULL;
}

/* --- requests --- */

memo_status memo_arena_alloc(memo_arena* arena, int64_t size_bytes, int32_t stream, void** address,
                             memo_error* error) {
    MEMOB_REFUSE_NULL(error, "arena", arena);
    MEMOB_REFUSE_NULL(error, "address", address);
    if (!memob_is_within(size_bytes, 0, MEMOB_BYTES_MAX))
        return memob_check_integer("arena", "size_bytes", size_bytes, 0, MEMOB_BYTES_MAX, error);
    if (arena->state == MEMOI_ARENA_BETWEEN)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "request between micro-batches; call memo_arena_begin first");
    return arena->plan ? memoi_arena_replay_alloc(arena, size_bytes, address, error)
                       : memoi_arena_record_alloc(arena, size_bytes, stream, address, error);
}

/* A block of the device, while recording. */
MEMOI memo_status memoi_arena_find_block(const memo_arena* arena, const void* address,
                                         const char* what, int64_t* i, memo_error* error) {
    *i = memob_map_get(&arena->blocks.index, memoi_arena_address_key(address));
    if (*i >= 0 && address) return MEMO_STATUS_OK;
    return MEMOB_INVALID(error,
                         "%s of %p: not a live buffer of this arena; pass an address of "
                         "memo_arena_alloc, and free each buffer once",
                         what, address);
}

memo_status memo_arena_free(memo_arena* arena, void* address, memo_error* error) {
    memoi_slot* slot = NULL;
    int64_t i;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "arena", arena);
    if (arena->plan) {
        memoi_arena_skip(arena);
        slot = memoi_arena_find_slot(arena, address);
    }

    /* In replay the slot keeps its place. */
    if (slot) {
        slot->is_live = 0;
        status = MEMO_STATUS_OK;
        if (arena->n_steps > 0) {
            memoi_arena_skip(arena);
            status = memoi_arena_steps(arena, 0, error);
        }
        return status || !arena->is_checked
                   ? status
                   : memoi_arena_look(arena, slot - arena->slots, 0, error);
    }

    /* Checked: the device keeps the bytes, so that whoever still uses them is found. */
    status = memoi_arena_find_block(arena, address, "free", &i, error);
    if (!status && arena->trace)
        status = memo_trace_free(arena->trace, arena->blocks.list[i].id, error);
    if (status) return status;
    if (!arena->is_checked) return memoi_arena_block_free(arena, i, error);
    memoi_arena_block_end(arena, i);
    return memoi_arena_look(arena, i, 0, error);
}

memo_status memo_arena_use(memo_arena* arena, void* address, int32_t stream, memo_error* error) {
    memo_status status;
    int64_t i;
    MEMOB_REFUSE_NULL(error, "arena", arena);
    if (!arena->trace) return MEMO_STATUS_OK;
    status = memoi_arena_find_block(arena, address, "use", &i, error);
    return status ? status : memo_trace_use(arena->trace, arena->blocks.list[i].id, stream, error);
}

memo_status memo_arena_record(memo_arena* arena, int64_t event, int32_t stream, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "arena", arena);
    return arena->trace ? memo_trace_record(arena->trace, event, stream, error) : MEMO_STATUS_OK;
}

memo_status memo_arena_wait(memo_arena* arena, int64_t event, int32_t stream, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "arena", arena);
    return arena->trace ? memo_trace_wait(arena->trace, event, stream, error) : MEMO_STATUS_OK;
}

memo_status memo_arena_mark(memo_arena* arena, const char* text, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "arena", arena);
    return arena->trace ? memo_trace_mark(arena->trace, text, error) : MEMO_STATUS_OK;
}

memo_arena_stats memo_arena_get_stats(const memo_arena* arena) {
    memo_arena_stats stats = MEMO_ZERO(memo_arena_stats);
    if (!arena) return stats;
    stats.n_requests = arena->n_requests;
    stats.reserved_bytes = arena->plan ? arena->reserved_bytes : arena->blocks.peak_bytes;
    return stats;
}
