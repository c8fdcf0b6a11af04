#pragma once
#include "memo/swap_places.h"
#include "memo/swap_order.h"
/* ---- >>swap engine ------------------------------------------------------------------------------
 * Knows: places, streams and events.  Knows nothing of the order of operations, and of what the
 * trainer computes. */

struct memo_swap {
    memob_engine engine; /* events: MEMOB_SWAP_COMPUTED to _FILE_DONE; spill_ops: (layers, 2) */
    int32_t is_timed;
    memo_event* marks;      /* is_timed: 2 n_visits, before and after the wait of each */
    double host_stall_s[2]; /* computes_on_host: of forward and backward, this micro-batch */
    memob_swap_placement placement;
    int64_t n_rows;           /* of this micro-batch */
    int64_t n_rows_most;      /* of any */
    int32_t is_forward_only;  /* only HANDED rows are moved, and no backward follows */
    int32_t n_begun, n_ended; /* visits of this micro-batch, or of all that are in flight */
    int32_t n_open_most;
    int32_t is_measured;                                  /* all visits were completed */
    int64_t routed_rows_layer, routed_rows_all, n_routed; /* of this micro-batch so far */
};

/* --- what does not change --- */

MEMOI const memob_swap_place* memoi_swap_place_of(const memo_swap* swap, int32_t layer,
                                                  int32_t tensor) {
    MEMO_ASSERT(layer >= 0 && layer < swap->placement.n_layers && tensor >= 0 &&
                tensor < swap->placement.n_tensors);
    return &swap->placement.places[(int64_t)layer * swap->placement.n_tensors + tensor];
}

void* memo_swap_get_address(const memo_swap* swap, int32_t layer, int32_t tensor) {
    const memob_swap_place* place = memoi_swap_place_of(swap, layer, tensor);
    return place->row_bytes && (!place->is_routed || place->n_routed)
               ? swap->engine.device_memory + place->offset
               : NULL;
}

void memo_swap_get_recompute_rows(const memo_swap* swap, int32_t layer, int32_t tensor,
                                  int64_t* begin, int64_t* end) {
    const memob_swap_place* place = memoi_swap_place_of(swap, layer, tensor);
    const int64_t n_rows = place->is_routed
                               ? place->n_routed
                               : memob_swap_step_rows(&swap->placement, layer, swap->n_rows);
    *begin = memob_min(place->recompute_begin, n_rows);
    *end = memob_min(place->recompute_end, n_rows);
    if (*begin == *end) *begin = *end = n_rows;
}

void memo_swap_get_sizes(const memo_swap* swap, memo_swap_sizes* sizes) {
    *sizes = swap->placement.sizes;
}

/* --- creation --- */

void memo_swap_destroy(memo_swap* swap) {
    if (!swap) return;
    for (int32_t i = 0; swap->marks && i < 2 * swap->placement.n_visits; i++)
        if (swap->marks[i]) memo_event_destroy(&swap->engine.device, swap->marks[i], NULL);
    memob_engine_release(&swap->engine);
    memob_arrays_free(&swap->engine.arrays);
    memob_swap_placement_free(&swap->placement);
    MEMO_FREE(swap);
}

/* Fills in the writes and reads of the spilled layers. */
MEMOI void memoi_swap_describe_spill(memo_swap* swap) {
    memob_engine* e = &swap->engine;
    for (int32_t layer = 0; layer < swap->placement.n_layers; layer++) {
        const memob_swap_turn* turn = &swap->placement.turns[layer];
        const int64_t n_bytes = swap->placement.sums[layer].host_bytes;
        if (!n_bytes || turn->ordinal >= swap->placement.sizes.n_spilled_layers) continue;
        for (int32_t is_read = 0; is_read < 2; is_read++)
            memob_spill_op_init(&e->spill_ops[2 * turn->ordinal + is_read], &e->file, !is_read,
                                e->host_memory + turn->host_begin, turn->file_begin, n_bytes);
        /* Bytes that no copy fills are written too, so initialize them. */
        if (e->file.fd >= 0) memset(e->host_memory + turn->host_begin, 0, (size_t)n_bytes);
    }
}

MEMOI memo_status memoi_swap_check_spill(const memo_swap* swap, const memo_swap_desc* desc,
                                         memo_error* error) {
    const memo_swap_sizes* sizes = &swap->placement.sizes;
    if (!sizes->n_spilled_layers) return MEMO_STATUS_OK;
    if (!desc->spill_directory)
        return MEMOI_INVALID(desc,
                             "spill_directory: NULL, but with n_host_layers %d, %d of %d swapped "
                             "layers go to a file; set it",
                             (int)desc->n_host_layers, (int)sizes->n_spilled_layers,
                             (int)sizes->n_swapped_layers);
    return memob_engine_check_launch(&swap->engine, memoi_swap_desc_name(desc), "the spill file",
                                     error);
}

/* Allocates all that the engine needs; memo_swap_destroy frees any part of it. */
MEMOI memo_status memoi_swap_acquire(memo_swap* swap, const memo_swap_desc* desc,
                                     memo_error* error) {
    const memo_swap_sizes* sizes = &swap->placement.sizes;
    const int64_t n_spilled = sizes->n_spilled_layers, n_visits = swap->placement.n_visits;
    const int has_marks = swap->is_timed && !desc->computes_on_host;
    memob_engine* e = &swap->engine;
    memo_status status;
    if (sizes->host_bytes)
        e->n_events = MEMOB_SWAP_FILE_DONE + (n_spilled ? swap->placement.n_host_layers : 0);
    e->events = MEMOB_ARRAY(&e->arrays, memo_event, e->n_events);
    e->spill_ops = MEMOB_ARRAY(&e->arrays, memob_spill_op, 2 * n_spilled);
    if (has_marks) swap->marks = MEMOB_ARRAY(&e->arrays, memo_event, 2 * n_visits);
    if (e->arrays.failed) return memob_no_memory(error, "the events of a swap engine");

    status = memob_engine_acquire(e, memoi_swap_desc_name(desc), sizes->device_bytes,
                                  sizes->host_bytes, desc->copy_streams,
                                  !sizes->host_bytes ? 0
                                  : n_spilled        ? 3
                                                     : 2,
                                  error);
    for (int64_t i = 0; has_marks && i < 2 * n_visits && !status; i++)
        status = memo_event_create(&e->device, &swap->marks[i], error);
    if (!status && n_spilled && desc->spill_directory)
        status = memob_spill_create(&e->file, desc->spill_directory, sizes->spill_bytes,
                                    desc->spill_bytes_per_s, e->host_memory, error);
    if (!status) memoi_swap_describe_spill(swap);
    return status;
}

/* As memo_swap_create.  is_dry: for a device that runs nothing.  Memory is not touched, and without
 * spill_directory there is no file. */
MEMOI memo_status memob_swap_create(const memo_swap_desc* desc, int is_dry, memo_swap** result,
                                    memo_error* error) {
    memo_device device;
    memo_swap* swap;
    memo_status status = memob_device_take(&device, desc->device, "memo_swap_desc.device", error);
    *result = NULL;
    if (status) return status;
    swap = (memo_swap*)memob_calloc(1, sizeof *swap);
    if (!swap) return memob_no_memory(error, "a swap engine");

    memob_engine_begin(&swap->engine, &device, desc->compute_stream, desc->computes_on_host);
    swap->engine.device_memory = (char*)desc->device_memory;
    swap->engine.host_memory = (char*)desc->host_memory;
    swap->n_rows = swap->n_rows_most = memob_swap_layer_rows(desc);
    swap->is_timed = desc->is_timed;
    swap->routed_rows_layer = desc->routed_rows_layer;
    swap->routed_rows_all = desc->routed_rows_all;
    swap->n_open_most = desc->n_slices > 1 || desc->routed_rows_layer || desc->order ? 1 : 2;

    /* Sizes and conditions first, then memory, streams and events. */
    status = memob_swap_placement_make(desc, 0, &swap->placement, error);
    if (!status && !is_dry) status = memoi_swap_check_spill(swap, desc, error);
    if (!status) status = memoi_swap_acquire(swap, desc, error);
    if (status) {
        memo_swap_destroy(swap);
        return status;
    }
    *result = swap;
    return MEMO_STATUS_OK;
}

memo_status memo_swap_create(const memo_swap_desc* desc, memo_swap** swap, memo_error* error) {
    return memob_swap_create(desc, 0, swap, error);
}

/* --- a step --- */

/* Visits until the micro-batch ends. */
MEMOI int32_t memoi_swap_n_visits(const memo_swap* swap) {
    return swap->is_forward_only ? swap->placement.n_forwards : swap->placement.n_visits;
}

/* Is this call legal now?  A layer may begin while the one before it is still open. */
MEMOI memo_status memoi_swap_expect(memo_swap* swap, int is_backward, int is_end, int32_t layer,
                                    memo_error* error) {
    static const char* const names[2][2] = {{"forward_begin", "forward_end"},
                                            {"backward_begin", "backward_end"}};
    const int32_t n_open = swap->n_begun - swap->n_ended;
    const memob_swap_visit *next, *visits = swap->placement.visits;

    if (swap->n_ended == memoi_swap_n_visits(swap)) swap->n_begun = swap->n_ended = 0;
    next = &visits[is_end ? swap->n_ended : swap->n_begun];
    if (is_end ? n_open > 0
               : n_open < swap->n_open_most && swap->n_begun < memoi_swap_n_visits(swap) &&
                     next->is_backward == visits[swap->n_ended].is_backward)
        if (next->is_backward == is_backward && next->step == layer) return MEMO_STATUS_OK;
    next = &visits[swap->n_ended];
    return memo_error_set(
        error, MEMO_STATUS_INVALID_STATE,
        "memo_swap_%s(%d) is out of order; memo_swap_%s(%d) comes next, or memo_swap_abandon to "
        "start again",
        names[is_backward][is_end], (int)layer, names[next->is_backward][n_open > 0],
        (int)next->step);
}

/* The rows of this micro-batch of a step's tensors: of LAYER tensors, the surplus of ROUTED
 * tensors, or the rows of all other tensors. */
MEMOI void memoi_swap_copy_rows(memo_swap* swap, const memob_swap_op* op) {
    const memob_swap_placement* p = &swap->placement;
    const int is_layer = op->kind == MEMOB_SWAP_COPY_LAYER;
    const int is_routed = op->kind == MEMOB_SWAP_COPY_ROUTED;
    const int is_shared = op->stream == MEMOB_SWAP_TO_HOST && memob_swap_shares_input(p, op->of);
    const int64_t host_begin = is_layer || is_routed ? 0 : p->turns[op->of].host_begin;
    const int64_t n_rows = is_layer    ? swap->n_rows
                           : is_routed ? INT64_MAX
                                       : memob_swap_step_rows(p, op->of, swap->n_rows);
    for (int32_t t = 0; t < p->n_tensors; t++) {
        const memob_swap_place* place = memoi_swap_place_of(swap, op->of, t);
        const int64_t n_moved = memob_min(n_rows, place->moved_end) - place->moved_begin;
        if (place->is_layer == is_layer && place->is_routed == is_routed &&
            !(is_shared && t == p->input))
            memob_engine_copy(&swap->engine, op->stream,
                              place->offset + place->moved_begin * place->row_bytes,
                              host_begin + place->host_offset, n_moved * place->row_bytes);
    }
}

/* The HANDED rows of a step, between the device and the place where the rows wait. */
MEMOI void memoi_swap_copy_handed(memo_swap* swap, const memob_swap_op* op) {
    const memob_swap_placement* p = &swap->placement;
    const memob_swap_place* place = memoi_swap_place_of(swap, op->of, p->handed);
    const memob_swap_turn* turn = &p->turns[op->of];
    const int64_t* waits = op->stream == MEMOB_SWAP_TO_HOST ? turn->hand_out : turn->hand_in;
    memob_engine_copy(&swap->engine, op->stream, place->offset,
                      waits[p->visits[swap->n_ended].is_backward],
                      memob_swap_step_rows(p, op->of, swap->n_rows) * place->row_bytes);
}

/* Enqueues the operations. */
MEMOI memo_status memoi_swap_enqueue(memo_swap* swap, const memob_swap_ops* ops,
                                     memo_error* error) {
    memob_engine* e = &swap->engine;
    memob_engine_call(e, error);
    for (int32_t i = 0; i < ops->n && !e->status; i++) {
        const memob_swap_op* op = &ops->list[i];
        switch (op->kind) {
        case MEMOB_SWAP_WAIT: memob_engine_wait(e, op->stream, op->of); break;
        case MEMOB_SWAP_RECORD: memob_engine_record(e, op->stream, op->of); break;
        case MEMOB_SWAP_COPY_HANDED: memoi_swap_copy_handed(swap, op); break;
        case MEMOB_SWAP_USE_FILE: memob_engine_use_file(e, op->of); break;
        default: memoi_swap_copy_rows(swap, op);
        }
    }
    return e->status;
}

memo_status memo_swap_set_rows(memo_swap* swap, int64_t n_rows, int is_forward_only,
                               memo_error* error) {
    if (memob_check_integer("memo_swap_set_rows", "n_rows", n_rows, 1, swap->n_rows_most, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (swap->n_begun && swap->n_ended < memoi_swap_n_visits(swap))
        return memo_error_set(
            error, MEMO_STATUS_INVALID_STATE,
            "memo_swap_set_rows: a micro-batch is open; end it, or call memo_swap_abandon first");
    swap->n_begun = swap->n_ended = 0;
    swap->n_rows = n_rows;
    swap->is_forward_only = is_forward_only;
    return MEMO_STATUS_OK;
}

MEMOI memo_status memob_swap_begin(memo_swap* swap, int is_backward, int32_t layer,
                                   memo_error* error) {
    memo_status status = memoi_swap_expect(swap, is_backward, 0, layer, error);
    const memob_engine* e = &swap->engine;
    const memo_stream compute = e->streams[MEMOB_SWAP_COMPUTE];
    memo_event* marks = NULL;
    memob_swap_ops ops;
    int64_t begin_ns = 0;
    if (status) return status;
    if (!swap->n_begun) swap->host_stall_s[0] = swap->host_stall_s[1] = 0;
    if (!is_backward) memob_swap_route(&swap->placement, layer, 0, swap->is_forward_only);
    if (!swap->n_begun) swap->n_routed = 0;
    memob_swap_begin_ops(&swap->placement, swap->is_forward_only, swap->n_begun, &ops);

    /* With is_timed, two marks measure how long it waits. */
    if (ops.n && swap->marks) marks = swap->marks + 2 * swap->n_begun;
    if (ops.n && e->computes_on_host && swap->is_timed) begin_ns = memob_now_ns();
    if (marks) status = memo_event_record(&e->device, marks[0], compute, error);
    if (!status) status = memoi_swap_enqueue(swap, &ops, error);
    if (!status && marks) status = memo_event_record(&e->device, marks[1], compute, error);
    if (begin_ns) swap->host_stall_s[is_backward] += 1e-9 * (double)(memob_now_ns() - begin_ns);
    if (!status) swap->n_begun++;
    return status;
}

/* name: of the public function, for messages. */
MEMOI memo_status memob_swap_set_routed(memo_swap* swap, const char* name, int32_t layer,
                                        int64_t n_rows, memo_error* error) {
    memo_status status;
    if (swap->n_begun != swap->n_ended + 1 || layer != swap->n_ended)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "%s: layer %d: its forward is not open alone; call it between begin "
                              "and end of the forward",
                              name, (int)layer);
    if ((status = memob_check_integer(name, "n_rows", n_rows, 0, swap->routed_rows_layer, error)) ||
        (status = memob_check_integer(name, "n_rows so far", swap->n_routed + n_rows, 0,
                                      swap->routed_rows_all, error)))
        return status;
    swap->n_routed += n_rows;
    memob_swap_route(&swap->placement, layer, n_rows, swap->is_forward_only);
    return MEMO_STATUS_OK;
}

memo_status memo_swap_set_routed(memo_swap* swap, int32_t layer, int64_t n_rows,
                                 memo_error* error) {
    return memob_swap_set_routed(swap, "memo_swap_set_routed", layer, n_rows, error);
}
memo_status memo_swap_forward_begin(memo_swap* swap, int32_t layer, memo_error* error) {
    return memob_swap_begin(swap, 0, layer, error);
}
memo_status memo_swap_backward_begin(memo_swap* swap, int32_t layer, memo_error* error) {
    return memob_swap_begin(swap, 1, layer, error);
}

MEMOI memo_status memob_swap_end(memo_swap* swap, int is_backward, int32_t layer,
                                 memo_error* error) {
    memo_status status = memoi_swap_expect(swap, is_backward, 1, layer, error);
    memob_swap_ops ops;
    if (status) return status;
    memob_swap_end_ops(&swap->placement, swap->is_forward_only, swap->n_ended, &ops);
    status = memoi_swap_enqueue(swap, &ops, error);
    if (status) return status;
    swap->n_ended++;
    swap->is_measured |= swap->n_ended == swap->placement.n_visits;
    return MEMO_STATUS_OK;
}

memo_status memo_swap_forward_end(memo_swap* swap, int32_t layer, memo_error* error) {
    return memob_swap_end(swap, 0, layer, error);
}
memo_status memo_swap_backward_end(memo_swap* swap, int32_t layer, memo_error* error) {
    return memob_swap_end(swap, 1, layer, error);
}

memo_status memo_swap_abandon(memo_swap* swap, memo_error* error) {
    static const int32_t events[] = {0, MEMOB_SWAP_STORED, MEMOB_SWAP_LOADED, MEMOB_SWAP_FILE_DONE};
    memob_engine* e = &swap->engine;

    /* Record the events again: a failed call may have left copies after the last record. */
    memob_engine_call(e, error);
    for (int i = MEMOB_SWAP_TO_HOST; i <= MEMOB_SWAP_FILE; i++) {
        if (!e->streams[i]) continue;
        memob_engine_record(e, i, events[i]);
        memob_engine_wait(e, MEMOB_SWAP_COMPUTE, events[i]);
    }
    if (e->status) return e->status;
    swap->n_begun = swap->n_ended = 0;
    swap->is_measured = 0;
    return MEMO_STATUS_OK;
}

memo_status memo_swap_get_stats(memo_swap* swap, memo_swap_stats* stats, memo_error* error) {
    const memob_engine* e = &swap->engine;
    double stall_s[2];
    for (int32_t k = 0; k < 2; k++) stall_s[k] = swap->is_measured ? swap->host_stall_s[k] : 0;
    for (int32_t k = 0; swap->marks && swap->is_measured && k < swap->placement.n_visits; k++) {
        double waited_s = 0;
        memob_swap_ops ops;
        memo_status status;
        memob_swap_begin_ops(&swap->placement, swap->is_forward_only, k, &ops);
        if (!ops.n) continue;
        status = memo_event_elapsed(&e->device, swap->marks[2 * k], swap->marks[2 * k + 1],
                                    &waited_s, error);
        if (status) return status;
        stall_s[swap->placement.visits[k].is_backward] += waited_s;
    }
    stats->to_host_bytes = e->copied_bytes[0];
    stats->to_device_bytes = e->copied_bytes[1];
    stats->to_file_bytes = e->file_bytes[0];
    stats->from_file_bytes = e->file_bytes[1];
    stats->forward_stall_s = stall_s[0];
    stats->backward_stall_s = stall_s[1];
    return MEMO_STATUS_OK;
}
