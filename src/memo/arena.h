#pragma once
#include "memo/text.h"
/* ---- >>arena ------------------------------------------------------------------------------------
 * Knows: traces, plans, and how a device gives and takes memory.  Knows nothing of how a plan
 * was found; streams are only written down. */

/* A block taken from the device while recording, or pretended to be. */
typedef struct memoi_block {
    void* address; /* NULL: freed */
    int64_t size_bytes;
    int64_t id; /* in the trace; -1: not in it */
} memoi_block;

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

    /* Replay. */
    void* own_memory; /* what the device gave for the block; NULL: the user's */
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
        return MEMO_STATUS_OK;
    }
    if (arena->dry_address > (uint64_t)UINTPTR_MAX - bytes)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_DEVICE_MEMORY,
                              "dry run: no addresses are left for %lld bytes",
                              (long long)size_bytes);
    *address = (void*)(uintptr_t)arena->dry_address;
    arena->dry_address += bytes;
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_arena_block_free(memo_arena* arena, int64_t i, memo_error* error) {
    memoi_blocks* blocks = &arena->blocks;
    memoi_block* block = &blocks->list[i];
    void* address = block->address;
    memob_map_remove(&blocks->index, memoi_arena_address_key(address));
    blocks->live_bytes -= block->size_bytes;
    block->address = NULL;
    return arena->device ? memo_device_free(arena->device, address, error) : MEMO_STATUS_OK;
}

/* Frees all blocks but the first n.  Errors of the device cannot be reported here. */
MEMOI void memoi_arena_blocks_drop(memo_arena* arena, int64_t n) {
    while (arena->blocks.n > n)
        if (arena->blocks.list[--arena->blocks.n].address)
            memoi_arena_block_free(arena, arena->blocks.n, NULL);
}
