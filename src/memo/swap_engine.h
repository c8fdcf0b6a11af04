#pragma once
#include "memo/swap_items.h"
/* ---- >>swap engine ------------------------------------------------------------------------------
 * Knows: memory, streams and events of rows, and which call of a trainer is legal now.  Knows
 * nothing of the order of operations, and of what the trainer computes.
 *
 * An engine goes through the cursor of a step of rows alone.  A session with streamed states gives
 * its rows to the cursor of the states, and the engine uses streams, waits and events of these. */

struct memo_swap {
    memob_sink own_sink; /* memory.spill_ops: (items of rows, 2); NULL: none is spilled */
    memob_sink* sink;    /* own_sink, or the one whose streams it uses */
    memob_swap_items items;
    memob_law law; /* of them */
    memob_step_rows rows;
    memob_step step; /* of rows alone */
    memob_stalls stalls;
    memob_swap_placement* placement; /* own_placement, or a session's, which outlives the engine */
    memob_swap_placement own_placement;
    int64_t n_rows_most;
    int32_t is_forward_only; /* only EDGE rows are moved, and no backward follows */
    int32_t n_open_most;
};

/* --- what does not change --- */

void* memo_swap_get_address(const memo_swap* swap, int32_t layer, int32_t tensor) {
    const memob_swap_place* place;
    if (!swap) return NULL;
    place = memob_swap_place_of(swap->placement, layer, tensor);
    return place->row_bytes && (!place->is_routed || place->n_routed)
               ? swap->own_sink.engine.memory.device + place->offset
               : NULL;
}

void memo_swap_get_recompute_rows(const memo_swap* swap, int32_t layer, int32_t tensor,
                                  int64_t* begin, int64_t* end) {
    const memob_swap_place* place;
    int64_t n_rows;
    if (!swap || !begin || !end) return;
    place = memob_swap_place_of(swap->placement, layer, tensor);
    n_rows = place->is_routed
                 ? place->n_routed
                 : memob_swap_step_rows(swap->placement, layer, swap->rows.moves.n_rows);
    *begin = memob_min(place->recompute_begin, n_rows);
    *end = memob_min(place->recompute_end, n_rows);
    if (*begin == *end) *begin = *end = n_rows;
}

/* --- creation --- */

void memo_swap_destroy(memo_swap* swap) {
    if (!swap) return;
    for (int32_t i = 0; swap->stalls.marks && i < 2 * swap->placement->n_visits; i++)
        if (swap->stalls.marks[i])
            memo_event_destroy(&swap->own_sink.engine.device, swap->stalls.marks[i], NULL);
    if (swap->placement) swap->placement->items = NULL;
    memob_step_free(&swap->step);
    memob_sink_free(&swap->own_sink);
    memob_law_free(&swap->law);
    memob_swap_items_free(&swap->items);
    memob_swap_placement_free(&swap->own_placement);
    MEMO_FREE(swap);
}

MEMOI memo_status memoi_swap_check_spill(const memo_swap* swap, const memo_swap_desc* desc,
                                         memo_error* error) {
    const memo_swap_sizes* sizes = &swap->placement->sizes;
    if (!sizes->n_spilled_layers) return MEMO_STATUS_OK;
    if (!desc->spill_directory)
        return MEMOI_INVALID(desc,
                             "spill_directory: NULL, but with n_host_layers %d, %d of %d swapped "
                             "layers go to a file; set it",
                             (int)desc->n_host_layers, (int)sizes->n_spilled_layers,
                             (int)sizes->n_swapped_layers);
    return memob_engine_check_launch(&swap->own_sink.engine, memoi_swap_desc_name(desc),
                                     "the spill file", error);
}

/* What the law of the rows needs to run. */
MEMOI void memoi_swap_take_rows(memo_swap* swap, const memo_swap_desc* desc) {
    memob_moves* moves = &swap->rows.moves;
    const memo_swap_sizes* sizes = &swap->placement->sizes;
    swap->rows.of.law = &swap->law;
    *moves = memob_swap_moves(&swap->items);
    moves->memory = &swap->own_sink.engine.memory;
    moves->sizes[MEMO_TIER_DEVICE] = sizes->device_bytes;
    moves->sizes[MEMO_TIER_HOST] = sizes->host_bytes;
    moves->sizes[MEMO_TIER_FILE] = sizes->spill_bytes;
    moves->pieces = swap->items.pieces;
    moves->first_piece = swap->items.first_piece;
    moves->device_at = swap->items.device_at;
    moves->host_at = swap->items.host_at;
    moves->file_at = swap->items.file_at;
    moves->n_rows = swap->n_rows_most = memob_swap_layer_rows(desc);
    swap->placement->items = &swap->items;
    if (desc->is_timed) swap->rows.stalls = &swap->stalls;
}

/* Allocates all that the engine needs; memo_swap_destroy frees any part of it. */
MEMOI memo_status memoi_swap_acquire(memo_swap* swap, const memo_swap_desc* desc,
                                     memo_error* error) {
    const memo_swap_sizes* sizes = &swap->placement->sizes;
    const int64_t n_spilled = sizes->n_spilled_layers, n_visits = swap->placement->n_visits;
    const int has_marks = desc->is_timed && !desc->computes_on_host;
    memob_engine* e = &swap->own_sink.engine;
    memo_status status;
    int64_t windows_bytes;
    int32_t n_streams = 0;
    if (sizes->host_bytes) n_streams = n_spilled ? MEMOB_STREAM_FILE : MEMOB_STREAM_TO_DEVICE;
    status = memoi_law_join_cells(&swap->law, 0, swap->law.n_ops, error);
    if (status) return status;
    swap->rows.of.cells = MEMOB_ARRAY(&e->arrays, memob_cell, swap->law.n_cells);
    e->memory.spill_ops =
        MEMOB_ARRAY(&e->arrays, memob_spill_op,
                    n_spilled ? 2 * (int64_t)swap->items.n_classes * swap->items.n_steps : 0);
    swap->stalls.waited = MEMOB_ARRAY(&e->arrays, int32_t, n_visits);
    if (has_marks) swap->stalls.marks = MEMOB_ARRAY(&e->arrays, memo_event, 2 * n_visits);
    if (e->arrays.failed) return memob_no_memory(error, "the visits of a swap engine");

    status = memob_engine_acquire(e, memoi_swap_desc_name(desc), sizes->device_bytes,
                                  sizes->host_bytes, error);
    if (!status) status = memoi_sink_take_streams(swap->sink, n_streams, error);
    for (int32_t s = MEMOB_STREAM_TO_HOST; s < MEMOB_N_STREAMS && swap->sink != &swap->own_sink;
         s++) {
        e->streams[s] = swap->sink->engine.streams[s]; /* whose copies use the memory */
        e->borrowed |= 1 << s;
    }
    for (int64_t i = 0; has_marks && i < 2 * n_visits && !status; i++)
        status = memo_event_create(&e->device, &swap->stalls.marks[i], error);
    if (!status && n_spilled && desc->spill_directory)
        status = memob_spill_create(&e->memory.file, desc->spill_directory, sizes->spill_bytes,
                                    desc->spill_bytes_per_s, e->memory.host, error);

    /* Bytes that no copy fills are written too, so initialize them. */
    windows_bytes = swap->placement->n_windows * swap->placement->window_bytes;
    if (!status && e->memory.file.fd >= 0)
        memset(e->memory.host + sizes->host_bytes - windows_bytes, 0, (size_t)windows_bytes);
    return status;
}

/* As memo_swap_create.  is_dry: for a device that runs nothing.  Memory is not touched, and without
 * spill_directory there is no file.  placement: NULL, or that of desc.  base: NULL, or the sink
 * whose streams the engine uses.  Both outlive the engine. */
MEMOI memo_status memob_swap_create(const memo_swap_desc* desc, int is_dry,
                                    memob_swap_placement* placement, memob_sink* base,
                                    memo_swap** result, memo_error* error) {
    memo_device device;
    memo_swap* swap;
    memo_status status = memob_device_take(&device, desc->device, "memo_swap_desc.device", error);
    *result = NULL;
    if (status) return status;
    swap = (memo_swap*)memob_calloc(1, sizeof *swap);
    if (!swap) return memob_no_memory(error, "a swap engine");

    memob_engine_begin(&swap->own_sink.engine, &device, desc->compute_stream,
                       desc->computes_on_host, desc->device_memory, desc->host_memory);
    swap->sink = base ? base : &swap->own_sink;
    swap->n_open_most = memob_swap_open_most(desc);
    swap->placement = placement ? placement : &swap->own_placement;

    /* Sizes and conditions first, then memory, streams and events. */
    if (!placement) status = memob_swap_placement_make(desc, 0, swap->placement, error);
    if (!status) status = memob_swap_items_make(desc, swap->placement, &swap->items, error);
    if (!status)
        status = memob_swap_items_law(&swap->items, swap->placement, NULL, &swap->law, error);
    if (!status) status = memoi_swap_find_pieces(desc, swap->placement, &swap->items, error);
    if (!status) memoi_swap_take_rows(swap, desc);
    if (!status)
        status = memob_swap_make_step(desc, swap->placement, swap->sink, &swap->step, error);
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
    MEMOB_REFUSE_NULL(error, "swap", swap);
    *swap = NULL;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    return memob_swap_create(desc, 0, NULL, NULL, swap, error);
}

/* --- a step --- */

/* Is this call of a trainer legal now?  A layer may begin while the one before it is still open. */
MEMOI memo_status memoi_swap_expect(const memo_swap* swap, int is_backward, int is_end,
                                    int32_t layer, memo_error* error) {
    static const char* const names[2][2] = {{"forward_begin", "forward_end"},
                                            {"backward_begin", "backward_end"}};
    const memob_step* step = &swap->step;
    const memob_row_visit* older = &swap->placement->visits[step->n_ended];
    const memob_row_visit* due = memob_swap_due(
        swap->placement, step, is_end, memoi_swap_n_visits(swap->placement, swap->is_forward_only),
        swap->n_open_most);
    if (due && due->pass == is_backward && due->layer == layer) return MEMO_STATUS_OK;
    return memo_error_set(
        error, MEMO_STATUS_INVALID_STATE,
        "memo_swap_%s(%d) is out of order; memo_swap_%s(%d) comes next, or memo_swap_abandon to "
        "start again",
        names[is_backward][is_end], (int)layer, names[older->pass][step->n_open > 0],
        (int)older->layer);
}

memo_status memo_swap_set_rows(memo_swap* swap, int64_t n_rows, int is_forward_only,
                               memo_error* error) {
    MEMOB_REFUSE_NULL(error, "swap", swap);
    if (memob_check_integer("memo_swap_set_rows", "n_rows", n_rows, 1, swap->n_rows_most, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (swap->step.is_entered)
        return memo_error_set(
            error, MEMO_STATUS_INVALID_STATE,
            "memo_swap_set_rows: a micro-batch is open; end it, or call memo_swap_abandon first");
    swap->rows.moves.n_rows = n_rows;
    swap->is_forward_only = is_forward_only;
    return MEMO_STATUS_OK;
}

/* A trainer without a session begins or ends a layer. */
MEMOI memo_status memob_swap_visit(memo_swap* swap, int is_backward, int is_end, int32_t layer,
                                   memo_error* error) {
    memob_step* step = &swap->step;
    memo_status status;
    if (!step->is_entered) step->n_begun = step->n_ended = 0; /* a new one begins */
    status = memoi_swap_expect(swap, is_backward, is_end, layer, error);
    if (status) return status;
    if (is_end) return memob_step_end(step, error);
    if (!is_backward) memob_swap_route_none(swap->placement, layer, swap->is_forward_only);
    if (!step->is_entered)
        status = memob_step_go(step, swap->is_forward_only ? MEMOB_EVALUATION : MEMOB_ONLY,
                               &swap->rows, error);
    return status ? status : memob_step_begin(step, error);
}

memo_status memo_swap_forward_begin(memo_swap* swap, int32_t layer, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "swap", swap);
    return memob_swap_visit(swap, 0, 0, layer, error);
}
memo_status memo_swap_forward_end(memo_swap* swap, int32_t layer, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "swap", swap);
    return memob_swap_visit(swap, 0, 1, layer, error);
}
memo_status memo_swap_backward_begin(memo_swap* swap, int32_t layer, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "swap", swap);
    return memob_swap_visit(swap, 1, 0, layer, error);
}
memo_status memo_swap_backward_end(memo_swap* swap, int32_t layer, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "swap", swap);
    return memob_swap_visit(swap, 1, 1, layer, error);
}

memo_status memo_swap_abandon(memo_swap* swap, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "swap", swap);
    memob_step_abandon(&swap->step);
    return memob_step_settle(&swap->step, error);
}

memo_status memo_swap_get_stats(memo_swap* swap, memo_swap_stats* stats, memo_error* error) {
    const memob_engine* e;
    const memob_stalls* stalls;
    double stall_s[2];
    MEMOB_REFUSE_NULL(error, "swap", swap);
    MEMOB_REFUSE_NULL(error, "stats", stats);
    e = &swap->own_sink.engine;
    stalls = &swap->stalls;
    for (int32_t k = 0; k < 2; k++) stall_s[k] = stalls->is_known ? stalls->host_s[k] : 0;
    for (int32_t k = 0; stalls->marks && stalls->is_known && k < swap->placement->n_visits; k++) {
        double waited_s = 0;
        memo_status status;
        if (!stalls->waited[k]) continue;
        status = memo_event_elapsed(&e->device, stalls->marks[2 * k], stalls->marks[2 * k + 1],
                                    &waited_s, error);
        if (status) return status;
        stall_s[swap->placement->visits[k].pass] += waited_s;
    }
    stats->to_host_bytes = e->memory.copied_bytes[0];
    stats->to_device_bytes = e->memory.copied_bytes[1];
    stats->to_file_bytes = e->memory.file_bytes[0];
    stats->from_file_bytes = e->memory.file_bytes[1];
    stats->forward_stall_s = stall_s[0];
    stats->backward_stall_s = stall_s[1];
    return MEMO_STATUS_OK;
}
