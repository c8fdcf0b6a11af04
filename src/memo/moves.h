#pragma once
#include "memo/sink.h"
#include "memo/snapshot.h"
/* ---- >>moves ------------------------------------------------------------------------------------
 * Knows: where the bytes of a law's items lie, and how its operations copy them.  Knows nothing of
 * the order of operations, and of what items are.
 *
 * 1. Copies lie in the device's and the host's memory; writes and reads of the file in the file. */

/* What a step leaves out of an item: nothing; its update, so what the update alone uses does not
 * come, and nothing goes; all uses. */
enum { MEMOB_LEAVES_NOTHING = 0, MEMOB_LEAVES_UPDATE, MEMOB_LEAVES_ALL };

/* Bytes that one copy moves. */
typedef struct memob_move {
    int64_t device, host; /* offsets, from the begin of the item's slots */
    int64_t n_bytes;
    int64_t first_row, row_bytes; /* of the micro-batch, which may have fewer rows; row_bytes 0:
                                     always all bytes */
} memob_move;

typedef struct memob_moves {
    const int64_t* n_bytes;    /* (n_items): that move of the whole item */
    const int64_t* file_bytes; /* (n_items): of the item in the file */
    const int32_t* n_copies;   /* (n_items): in which they move; NULL: one each */

    /* What a device needs, and a clock does not. */
    memob_memory* memory;
    int64_t sizes[MEMO_N_TIERS];        /* of the memory */
    const memob_move* pieces;           /* of each item, one behind the other */
    const int32_t* first_piece;         /* (n_items + 1) */
    const int64_t *device_at, *host_at; /* of each slot: its begin; NULL: pieces have it */
    const int64_t* file_at;             /* (n_items); -1: a function of the caller gives the item */
    int64_t n_rows;                     /* of this micro-batch */
    const uint8_t* leaves;              /* (n_items): MEMOB_LEAVES_, of this step; NULL: nothing */
    memob_snapshot* snapshot;           /* whose bytes stores and writes wait for; NULL: none */
} memob_moves;

/* What a micro-batch of n_rows moves. */
MEMOI int64_t memoi_piece_bytes(const memob_move* piece, int64_t n_rows) {
    const int64_t n_bytes = (n_rows - piece->first_row) * piece->row_bytes;
    return piece->row_bytes ? memob_min(piece->n_bytes, n_bytes) : piece->n_bytes;
}

/* 1: a function of the caller gives the item, in place of the file. */
MEMOI int memoi_moves_fetch(const memob_moves* moves, int32_t item) {
    return moves->file_at && moves->file_at[item] < 0;
}

/* What the step leaves out of an item. */
MEMOI int memoi_moves_leaves(const uint8_t* leaves, int32_t item) {
    return leaves ? leaves[item] : (int)MEMOB_LEAVES_NOTHING;
}

/* 1: the step leaves this copy out. */
MEMOI int memoi_moves_leave(const uint8_t* leaves, int32_t kind, const memob_part* part) {
    const int of = memoi_moves_leaves(leaves, part->item);
    const int brings = kind == MEMOB_OP_LOAD || kind == MEMOB_OP_READ;
    return of == MEMOB_LEAVES_ALL || (of && (!brings || part->is_idle));
}

/* Enqueues a write or a read of an item, all of its rows. */
MEMOI void memoi_moves_use_file(memob_engine* e, const memob_moves* moves, int32_t kind,
                                const memob_part* part) {
    const int64_t n_bytes = moves->file_bytes[part->item];
    const int64_t begin = memob_max(moves->file_at[part->item], 0);
    const int64_t host = moves->host_at ? moves->host_at[part->at]
                                        : moves->pieces[moves->first_piece[part->item]].host;
    if (!n_bytes) return;
    MEMO_ASSERT(memoi_moves_fetch(moves, part->item) ||
                begin + n_bytes <= moves->sizes[MEMO_TIER_FILE]); /* 1 */
    memob_engine_use_file(e, moves->memory, 2 * (int64_t)part->item + (kind == MEMOB_OP_READ),
                          kind == MEMOB_OP_WRITE, host, begin, n_bytes);
}

/* Copies the rows of an item that this micro-batch has.  Inlined: a layer has many. */
MEMOI inline void memoi_moves_copy(memob_engine* e, const memob_moves* moves, int32_t kind,
                                   const memob_part* part) {
    const int64_t device_at = moves->device_at ? moves->device_at[part->at] : 0;
    const int64_t host_at = moves->host_at ? moves->host_at[part->away] : 0;
    const memob_move* piece = &moves->pieces[moves->first_piece[part->item]];
    const memob_move* end = &moves->pieces[moves->first_piece[part->item + 1]];
    for (; piece < end; piece++) {
        const int64_t device = device_at + piece->device, host = host_at + piece->host;
        const int64_t n_bytes = memoi_piece_bytes(piece, moves->n_rows);
        if (n_bytes <= 0) continue;
        MEMO_ASSERT(device >= 0 && device + n_bytes <= moves->sizes[MEMO_TIER_DEVICE]); /* 1 */
        MEMO_ASSERT(host >= 0 && host + n_bytes <= moves->sizes[MEMO_TIER_HOST]);       /* 1 */
        memob_engine_copy(e, moves->memory, kind == MEMOB_OP_LOAD, device, host, n_bytes);
    }
}

/* What changes an item's home waits until a snapshot has written it. */
MEMOI void memoi_moves_hold(memob_sink* sink, const memob_moves* moves, int32_t kind,
                            int32_t item) {
    const int has_file = moves->file_at && moves->file_at[item] >= 0;
    if (kind == MEMOB_OP_WRITE)
        memoi_snapshot_hold(moves->snapshot, &sink->engine, MEMOB_STREAM_FILE, item);
    else if (kind == MEMOB_OP_STORE && !has_file)
        memoi_snapshot_hold(moves->snapshot, &sink->engine, MEMOB_STREAM_TO_HOST, item);
}

/* Copies an item, or uses the file, on a stream or on a clock. */
MEMOI void memoi_moves_item(memob_sink* sink, const memob_moves* moves, int32_t kind,
                            const memob_part* part) {
    const int is_file = kind == MEMOB_OP_WRITE || kind == MEMOB_OP_READ;
    if (moves->snapshot && moves->snapshot->is_open)
        memoi_moves_hold(sink, moves, kind, part->item);
    if (sink->clock && is_file && memoi_moves_fetch(moves, part->item))
        memoi_clock_fetch(sink->clock, moves->file_bytes[part->item]);
    else if (sink->clock)
        memoi_clock_copy(sink->clock, kind, moves->n_copies ? moves->n_copies[part->item] : 1,
                         (is_file ? moves->file_bytes : moves->n_bytes)[part->item]);
    else if (is_file)
        memoi_moves_use_file(&sink->engine, moves, kind, part);
    else
        memoi_moves_copy(&sink->engine, moves, kind, part);
}

/* 1: this micro-batch has bytes of the item, and moves them. */
MEMOI int memoi_moves_have(const memob_sink* sink, const memob_moves* moves, int32_t kind,
                           const memob_part* part) {
    const int32_t item = part->item;
    if (memoi_moves_leave(moves->leaves, kind, part)) return 0;
    if (kind == MEMOB_OP_WRITE || kind == MEMOB_OP_READ) return moves->file_bytes[item] > 0;
    if (sink->clock) return moves->n_bytes[item] > 0;
    for (int32_t k = moves->first_piece[item]; k < moves->first_piece[item + 1]; k++)
        if (memoi_piece_bytes(&moves->pieces[k], moves->n_rows) > 0) return 1;
    return 0;
}

/* Enqueues an operation that copies.  One without bytes in this micro-batch is left out, so that
 * shorter micro-batches, and rows known late, need no law of their own. */
MEMOI void memoi_moves_enqueue(memob_sink* sink, const memob_sink_law* of, const memob_moves* moves,
                               const memob_op* op) {
    const memob_part *part = &of->law->parts[op->first_part], *end = part + op->n_parts;
    memob_sink_op as = MEMO_ZERO(memob_sink_op);
    while (part < end && !memoi_moves_have(sink, moves, op->kind, part)) part++;
    if (part == end) return;
    memoi_sink_add(sink, &as, of, op);
    memoi_sink_begin(sink, &as);
    for (; part < end; part++)
        if (!memoi_moves_leave(moves->leaves, op->kind, part))
            memoi_moves_item(sink, moves, op->kind, part);
    memoi_sink_end(sink, &as);
}
