#pragma once
#include "memo/states.h"
/* ---- >>states snapshot --------------------------------------------------------------------------
 * Knows: which bytes of states a snapshot has, and where they lie.  Knows nothing of who changes
 * them meanwhile. */

#define MEMOI_SNAPSHOT_PIECE ((int64_t)1 << 22) /* of a file; a multiple of a page */

/* Bytes before what is kept: a piece, with room to align it; 0: there is no file. */
MEMOI int64_t memoi_snapshot_room(const memob_states* states) {
    return states->sizes.spill_bytes ? MEMOI_SNAPSHOT_PIECE + MEMOB_SPILL_ALIGNMENT : 0;
}

/* Writes a state: what was kept of a resident one, or its home. */
MEMOI memo_status memoi_states_write(void* of, int32_t item, memo_error* error) {
    const memob_states* states = (const memob_states*)of;
    const memob_memory* memory = &states->sink.engine.memory;
    const int32_t layer = item / states->n_states, s = item % states->n_states;
    const memob_states_layer* l = &states->layers[layer];
    const memob_state_bytes* bytes = &states->bytes[item];
    const int is_streamed = (int)(l->streamed >> s & 1), is_spilled = (int)(l->spilled >> s & 1);
    const char* home =
        is_streamed ? memory->host + bytes->at[1]
                    : states->kept_bytes + memoi_snapshot_room(states) + states->kept_at[item];
    const int64_t most_bytes = is_spilled ? MEMOI_SNAPSHOT_PIECE : memob_max(bytes->n_bytes, 1);
    memo_status status = MEMO_STATUS_OK;

    for (int64_t at = 0; at < bytes->n_bytes && !status; at += most_bytes) {
        const int64_t n_bytes = memob_min(bytes->n_bytes - at, most_bytes);
        const char* from = home + at;
        if (is_spilled) {
            const uintptr_t begin = (uintptr_t)states->kept_bytes;
            char* piece =
                states->kept_bytes + (MEMOB_SPILL_ALIGNMENT - begin % MEMOB_SPILL_ALIGNMENT);
            memob_spill_op op;
            memob_spill_op_init(&op, &memory->file, 0, piece, bytes->at[2] + at,
                                memob_align_up(n_bytes, MEMOB_SPILL_ALIGNMENT));
            status = memoi_spill_run(&op, error);
            from = piece;
        }
        if (!status)
            status =
                states->snapshot_write(states->trainer.user, layer, s, at, from, n_bytes, error);
    }
    return status;
}

/* Copies of resident states, and room for a piece of the file. */
MEMOI memo_status memoi_states_keep_snapshot(memob_states* states, memo_error* error) {
    const uint32_t left_out = states->fetched | states->gradients;
    const memo_stream stream = states->sink.engine.streams[MEMOB_STREAM_TO_HOST];
    const int64_t room_bytes = memoi_snapshot_room(states);
    int64_t n_bytes = 0;
    memo_status status =
        memob_states_keep(states, stream, NULL, 0, left_out, states->kept_at, &n_bytes, error);
    if (status) return status;
    states->kept_bytes = (char*)MEMO_MALLOC((size_t)memob_max(room_bytes + n_bytes, 1));
    if (!states->kept_bytes)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                              "memo_session_snapshot: no host memory for %lld bytes of states that "
                              "stay on the device",
                              (long long)n_bytes);
    return memob_states_keep(states, stream, states->kept_bytes + room_bytes, 0, left_out,
                             states->kept_at, &n_bytes, error);
}

/* Between rounds, while no update is pending: begins to write all states but gradients and FETCHED
 * ones, those first that the next step changes first.  Errors: OUT_OF_HOST_MEMORY, the device's. */
MEMOI memo_status memob_states_take_snapshot(memob_states* states, memob_write_function write,
                                             memo_error* error) {
    const int32_t n_items = states->n_layers * states->n_states;
    const int is_fused = memob_update_is_fused(states->update_at);
    memob_snapshot* snapshot = &states->snapshot;
    memo_status status;
    MEMO_ASSERT(!states->is_running && !states->n_pending);
    status = memob_states_leave(states, error);
    if (!status) status = memoi_snapshot_make(snapshot, n_items, error);
    if (!status && !states->kept_at) {
        states->kept_at = MEMOB_ARRAY(&snapshot->arrays, int64_t, n_items);
        if (!states->kept_at) status = memob_no_memory(error, "a snapshot");
    }
    if (!status) status = memoi_states_keep_snapshot(states, error);
    if (status) {
        MEMOB_IGNORE(memob_states_finish_snapshot(states, NULL));
        return status;
    }

    snapshot->write = memoi_states_write;
    snapshot->user = states;
    states->snapshot_write = write;
    snapshot->n_order = 0;
    for (int32_t k = 0; k < n_items; k++) {
        const int32_t item = is_fused ? n_items - 1 - k : k;
        const memob_states_layer* of = &states->layers[item / states->n_states];
        const uint32_t written = of->has & ~(of->lent | states->fetched | states->gradients);
        if (written >> item % states->n_states & 1) snapshot->order[snapshot->n_order++] = item;
    }
    memoi_snapshot_begin(snapshot);
    return status;
}
