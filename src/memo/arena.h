#pragma once
#include "memo/poison.h"
#include "memo/text.h"
/* ---- >>arena ------------------------------------------------------------------------------------
 * Knows: the struct of an arena, its blocks, how a device gives and takes them, and the regions of
 * a checked arena.  Knows nothing of which request comes next, and of how a plan was found.
 *
 * 1. The index of blocks has the live ones alone, by address.
 * 2. live_bytes is the sum of the live blocks' sizes, at most peak_bytes.
 * 3. In recording, a live block has its memory from the device.
 * 4. Addresses of a dry run are multiples of MEMOB_DEVICE_ALIGNMENT, a micro-batch's behind those
 *    that live on.
 * 5. The used bytes of a region lie in its room, which is at least as large as its request. */

/* A block taken from the device while recording, or pretended to be. */
typedef struct memoi_block {
    void* address; /* NULL: freed */
    int64_t size_bytes;
    int64_t id;  /* in the trace; -1: not in it */
    void* taken; /* from the device; NULL: given back, or never taken */
} memoi_block;

/* In a checked arena: the bytes around a request.  The first used_bytes are the trainer's, the rest
 * is poison. */
typedef struct memoi_region {
    char* begin;
    int64_t room_bytes, used_bytes;
} memoi_region;

typedef struct memoi_blocks {
    memoi_block* list;        /* in the order of requests */
    int64_t n, n_before_body; /* those of the micro-batch come last */
    int64_t live_bytes, peak_bytes;
    memob_map index; /* address -> index in list */
} memoi_blocks;

/* A buffer of the plan in replay. */
typedef struct memoi_slot {
    char* address;
    int64_t size_bytes;
    int64_t first;  /* slot with this address; at most one of them is live */
    int64_t holder; /* of the first: the slot that lived here last */
    int32_t is_live;
} memoi_slot;

/* Half of a bought wait: the record, due once the event before `at` has happened, or the wait, due
 * before the event `at`, which is a malloc. */
typedef struct memoi_step {
    int64_t at; /* among memo_arena.events */
    int32_t is_wait;
    memo_stream stream;
    memo_event event;
} memoi_step;

typedef enum memoi_arena_state {
    MEMOI_ARENA_BEFORE = 0, /* no micro-batch yet: requests are persistent */
    MEMOI_ARENA_INSIDE,
    MEMOI_ARENA_BETWEEN
} memoi_arena_state;

struct memo_arena {
    const memo_device* device;
    const memo_plan* plan; /* NULL: recording */
    memo_trace* trace;     /* NULL once the first micro-batch is recorded, and in replay */
    int64_t n_requests;    /* served so far */
    memoi_arena_state state;
    memoi_blocks blocks;

    /* Recording. */
    uint64_t dry_address, dry_address_begin; /* next one of a dry run; what it was at begin */

    char* memory; /* the block of a replay, or what a dry run writes to */
    int64_t memory_bytes;

    /* Checked: a region for each block or slot, and what looks at them. */
    int32_t is_checked;
    memoi_region* regions;
    memob_probe probe;

    /* Replay. */
    void* own_memory; /* what the device gave for the block; NULL: the user's */
    int64_t reserved_bytes;
    /* Planned mallocs and frees, in order.  Index: a malloc's is that of the buffer + n_buffers, a
     * free's is that of the buffer.  A free has happened if the buffer is not live. */
    memob_keyed* events;
    int64_t n_events, body_event, n_buffers;
    int64_t cursor;
    int64_t n_body_requests;
    memoi_step* steps; /* in order; each wait has two and shares their event */
    int64_t n_steps, next_step;
    memoi_slot* slots;
    memob_map addresses; /* address -> first slot */
    memob_arrays arrays; /* events, steps, slots */
};

/* --- blocks of the device --- */

MEMOI int64_t memoi_arena_address_key(const void* address) { return (int64_t)(uintptr_t)address; }

/* Addresses of a dry run start here: no program has memory there. */
#define MEMOI_DRY_ADDRESS ((uint64_t)1 << 48)

MEMOI memo_status memoi_arena_dry_alloc(memo_arena* arena, int64_t size_bytes, void** address,
                                        memo_error* error) {
    uint64_t bytes = (uint64_t)memob_align_up(size_bytes + !size_bytes, MEMOB_DEVICE_ALIGNMENT);
    const int64_t begin = (arena->n_requests + 1) * MEMOB_DEVICE_ALIGNMENT -
                          (int64_t)((uintptr_t)arena->memory % MEMOB_DEVICE_ALIGNMENT);
    if (arena->memory && size_bytes <= arena->memory_bytes - begin) {
        *address = arena->memory + begin;
        MEMO_ASSERT((uintptr_t)*address % MEMOB_DEVICE_ALIGNMENT == 0); /* 4 */
        return MEMO_STATUS_OK;
    }
    if (arena->dry_address > (uint64_t)UINTPTR_MAX - bytes)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_DEVICE_MEMORY,
                              "dry run: no addresses are left for %lld bytes",
                              (long long)size_bytes);
    *address = (void*)(uintptr_t)arena->dry_address;
    MEMO_ASSERT(arena->dry_address % MEMOB_DEVICE_ALIGNMENT == 0); /* 4 */
    MEMO_ASSERT(arena->dry_address >= arena->dry_address_begin);   /* 4 */
    arena->dry_address += bytes;
    return MEMO_STATUS_OK;
}

/* The block is no longer live; the device has its memory still. */
MEMOI void memoi_arena_block_end(memo_arena* arena, int64_t i) {
    memoi_blocks* blocks = &arena->blocks;
    memoi_block* block = &blocks->list[i];
    if (!block->address) return;
    MEMO_ASSERT(memob_map_get(&blocks->index, memoi_arena_address_key(block->address)) ==
                i); /* 1 */
    memob_map_remove(&blocks->index, memoi_arena_address_key(block->address));
    blocks->live_bytes -= block->size_bytes;
    MEMO_ASSERT(blocks->live_bytes >= 0); /* 2 */
    block->address = NULL;
}

MEMOI memo_status memoi_arena_block_free(memo_arena* arena, int64_t i, memo_error* error) {
    memoi_block* block = &arena->blocks.list[i];
    void* taken = block->taken;
    MEMO_ASSERT(!arena->device || taken || !block->address); /* 3 */
    memoi_arena_block_end(arena, i);
    block->taken = NULL;
    if (arena->is_checked) arena->regions[i].room_bytes = 0;
    return taken ? memo_device_free(arena->device, taken, error) : MEMO_STATUS_OK;
}

/* Frees all blocks but the first n, whatever fails, and returns the first error. */
MEMOI memo_status memoi_arena_blocks_drop(memo_arena* arena, int64_t n, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    while (arena->blocks.n > n) {
        const memo_status s =
            memoi_arena_block_free(arena, --arena->blocks.n, status ? NULL : error);
        if (!status) status = s;
    }
    MEMO_ASSERT(arena->blocks.n > 0 || arena->blocks.live_bytes == 0); /* 2 */
    return status;
}

/* --- checks --- */

/* Bytes of a request and its guard: a size given in numbers of 4 bytes is found. */
MEMOI int64_t memoi_arena_room(int64_t size_bytes, int64_t alignment_bytes) {
    return size_bytes > (MEMOB_BYTES_MAX - alignment_bytes) / 4
               ? MEMOB_BYTES_MAX
               : memob_align_up(4 * size_bytes, alignment_bytes);
}

/* Nobody wrote to the region but to its used bytes, of which used_bytes stay or begin; the others
 * become poison.  i: of the block or slot. */
MEMOI memo_status memoi_arena_look(memo_arena* arena, int64_t i, int64_t used_bytes,
                                   memo_error* error) {
    memoi_region* r = &arena->regions[i];
    char* behind = r->begin + r->used_bytes;
    const int64_t n = r->room_bytes - r->used_bytes, was_used = r->used_bytes;
    const int64_t kept = memob_min(used_bytes, was_used);
    int64_t n_poisoned = n;
    memo_status status;
    if (!r->room_bytes) return MEMO_STATUS_OK;
    MEMO_ASSERT(memob_max(used_bytes, was_used) <= r->room_bytes); /* 5 */
    status = memob_probe_sweep(&arena->probe, behind, n, 0, &n_poisoned, error);
    if (!status && (n_poisoned < n || used_bytes < was_used))
        status =
            memob_probe_sweep(&arena->probe, r->begin + kept, r->room_bytes - kept, 1, NULL, error);
    if (status) return status;
    r->used_bytes = used_bytes;
    if (n_poisoned == n) return status;
    return MEMOB_INVALID(
        error,
        "checked arena: buffer %lld of %lld bytes (id %lld): something writes to byte %lld%s",
        (long long)i, (long long)(was_used ? was_used : r->room_bytes / 4),
        (long long)(arena->plan ? arena->plan->buffers[i].id : arena->blocks.list[i].id),
        (long long)(was_used + n_poisoned),
        was_used ? ", behind its end; its size is too small, or was given in numbers, not bytes"
                 : " while it is free; it was freed too early, or its address was kept");
}

/* Looks at all regions, whatever it finds, and returns the first error.  is_over: buffers of the
 * micro-batch end. */
MEMOI memo_status memoi_arena_look_at_all(memo_arena* arena, int is_over, memo_error* error) {
    const int64_t n = arena->plan ? arena->n_buffers : arena->blocks.n;
    memo_status status = MEMO_STATUS_OK;
    for (int64_t i = 0; i < n && arena->is_checked; i++) {
        const int is_body = arena->plan ? arena->plan->buffers[i].begin >= arena->plan->body_begin
                                        : i >= arena->blocks.n_before_body;
        const memo_status s = memoi_arena_look(
            arena, i, is_over && is_body ? 0 : arena->regions[i].used_bytes, status ? NULL : error);
        if (!status) status = s;
    }
    return status;
}
