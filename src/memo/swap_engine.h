#pragma once
#include "memo/sink.h"
#include "memo/swap_items.h"
/* ---- >>swap engine ------------------------------------------------------------------------------
 * Knows: places, streams and events.  Knows nothing of the order of operations, and of what the
 * trainer computes.
 *
 * A sink of the law of a micro-batch: behind each visit it enqueues the law's operations, with the
 * waits that their bytes need.  An operation without bytes in this micro-batch is left out, so
 * shorter micro-batches and rows known late need no law of their own.
 *
 * 1. Visits begin and end in the order of the placement; at most n_open_most are open at a time.
 * 2. Copies lie in the device's and the host's memory; writes and reads of the file in the file.
 * 3. A visit's operation in the law is a visit; those up to the next one move bytes. */

struct memo_swap {
    memob_sink sink; /* engine.spill_ops: (items of rows, 2); NULL: none is spilled */
    memob_swap_items items;
    memob_law law;   /* of them */
    int32_t* waited; /* (n_visits): the visit waited, and its marks are recorded */
    int32_t is_timed;
    memo_event* marks;      /* is_timed: 2 n_visits, before and after the wait of each */
    double host_stall_s[2]; /* computes_on_host: of forward and backward, this micro-batch */
    memob_swap_placement* placement; /* own_placement, or a session's, which outlives the engine */
    memob_swap_placement own_placement;
    int64_t n_rows;           /* of this micro-batch */
    int64_t n_rows_most;      /* of any */
    int32_t is_forward_only;  /* only EDGE rows are moved, and no backward follows */
    int32_t n_begun, n_ended; /* visits of this micro-batch, or of all that are in flight */
    int32_t n_open_most;
    int32_t is_measured; /* all visits were completed */
};

/* --- what does not change --- */

void* memo_swap_get_address(const memo_swap* swap, int32_t layer, int32_t tensor) {
    const memob_swap_place* place;
    if (!swap) return NULL;
    place = memob_swap_place_of(swap->placement, layer, tensor);
    return place->row_bytes && (!place->is_routed || place->n_routed)
               ? swap->sink.engine.device_memory + place->offset
               : NULL;
}

void memo_swap_get_recompute_rows(const memo_swap* swap, int32_t layer, int32_t tensor,
                                  int64_t* begin, int64_t* end) {
    const memob_swap_place* place;
    int64_t n_rows;
    if (!swap || !begin || !end) return;
    place = memob_swap_place_of(swap->placement, layer, tensor);
    n_rows = place->is_routed ? place->n_routed
                              : memob_swap_step_rows(swap->placement, layer, swap->n_rows);
    *begin = memob_min(place->recompute_begin, n_rows);
    *end = memob_min(place->recompute_end, n_rows);
    if (*begin == *end) *begin = *end = n_rows;
}

/* --- creation --- */

void memo_swap_destroy(memo_swap* swap) {
    if (!swap) return;
    for (int32_t i = 0; swap->marks && i < 2 * swap->placement->n_visits; i++)
        if (swap->marks[i]) memo_event_destroy(&swap->sink.engine.device, swap->marks[i], NULL);
    memoi_sink_free(&swap->sink);
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
    return memob_engine_check_launch(&swap->sink.engine, memoi_swap_desc_name(desc),
                                     "the spill file", error);
}

/* Allocates all that the engine needs; memo_swap_destroy frees any part of it. */
MEMOI memo_status memoi_swap_acquire(memo_swap* swap, const memo_swap_desc* desc, memob_sink* base,
                                     memo_error* error) {
    const memo_swap_sizes* sizes = &swap->placement->sizes;
    const int64_t n_spilled = sizes->n_spilled_layers, n_visits = swap->placement->n_visits;
    const int has_marks = swap->is_timed && !desc->computes_on_host;
    memob_engine* e = &swap->sink.engine;
    memo_status status;
    int64_t windows_bytes;
    int32_t n_streams = 0;
    if (sizes->host_bytes) n_streams = n_spilled ? MEMOB_N_STREAMS : MEMOB_N_STREAMS - 1;
    status = memoi_law_join_cells(&swap->law, error);
    if (!status) status = memoi_sink_prepare(&swap->sink, base, n_streams, error);
    if (status) return status;
    swap->sink.law = &swap->law;
    swap->sink.cells = MEMOB_ARRAY(&e->arrays, memob_cell, swap->law.n_cells);
    e->spill_ops =
        MEMOB_ARRAY(&e->arrays, memob_spill_op,
                    n_spilled ? 2 * (int64_t)swap->items.n_classes * swap->items.n_steps : 0);
    swap->waited = MEMOB_ARRAY(&e->arrays, int32_t, n_visits);
    if (has_marks) swap->marks = MEMOB_ARRAY(&e->arrays, memo_event, 2 * n_visits);
    if (e->arrays.failed) return memob_no_memory(error, "the visits of a swap engine");

    status =
        memob_engine_acquire(e, memoi_swap_desc_name(desc), sizes->device_bytes, sizes->host_bytes,
                             base ? base->engine.streams + MEMOB_STREAM_TO_HOST : NULL,
                             n_streams ? n_streams - 1 : 0, error);
    for (int32_t s = MEMOB_STREAM_TO_HOST; s < MEMOB_N_STREAMS && base; s++) {
        if (!base->engine.streams[s])
            base->engine.streams[s] = e->streams[s]; /* which others use */
        e->borrowed |= 1 << s;
    }
    for (int64_t i = 0; has_marks && i < 2 * n_visits && !status; i++)
        status = memo_event_create(&e->device, &swap->marks[i], error);
    if (!status && n_spilled && desc->spill_directory)
        status = memob_spill_create(&e->file, desc->spill_directory, sizes->spill_bytes,
                                    desc->spill_bytes_per_s, e->host_memory, error);

    /* Bytes that no copy fills are written too, so initialize them. */
    windows_bytes = swap->placement->n_windows * swap->placement->window_bytes;
    if (!status && e->file.fd >= 0)
        memset(e->host_memory + sizes->host_bytes - windows_bytes, 0, (size_t)windows_bytes);
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

    memob_engine_begin(&swap->sink.engine, &device, desc->compute_stream, desc->computes_on_host,
                       desc->device_memory, desc->host_memory);
    swap->n_rows = swap->n_rows_most = memob_swap_layer_rows(desc);
    swap->is_timed = desc->is_timed;
    swap->n_open_most = memob_swap_open_most(desc);
    swap->placement = placement ? placement : &swap->own_placement;

    /* Sizes and conditions first, then memory, streams and events. */
    if (!placement) status = memob_swap_placement_make(desc, 0, swap->placement, error);
    if (!status) status = memob_swap_items_make(desc, swap->placement, &swap->items, error);
    if (!status)
        status = memob_swap_items_law(&swap->items, swap->placement, NULL, &swap->law, error);
    if (!status) status = memoi_swap_find_pieces(desc, swap->placement, &swap->items, error);
    if (!status && !is_dry) status = memoi_swap_check_spill(swap, desc, error);
    if (!status) status = memoi_swap_acquire(swap, desc, base, error);
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

/* Visits until the micro-batch ends. */
MEMOI int32_t memoi_swap_n_visits(const memo_swap* swap) {
    return swap->is_forward_only ? swap->placement->n_forwards : swap->placement->n_visits;
}

/* The visit that begins or ends next. */
MEMOI const memob_row_visit* memob_swap_next(const memo_swap* swap, int is_end) {
    return &swap->placement->visits[is_end ? swap->n_ended : swap->n_begun];
}

/* Is this call of a trainer legal now?  A layer may begin while the one before it is still open. */
MEMOI memo_status memoi_swap_expect(const memo_swap* swap, int is_backward, int is_end,
                                    int32_t layer, memo_error* error) {
    static const char* const names[2][2] = {{"forward_begin", "forward_end"},
                                            {"backward_begin", "backward_end"}};
    const int32_t n_open = swap->n_begun - swap->n_ended;
    const memob_row_visit *next = memob_swap_next(swap, is_end), *older = memob_swap_next(swap, 1);
    const int is_legal = is_end ? n_open > 0
                                : n_open < swap->n_open_most &&
                                      swap->n_begun < memoi_swap_n_visits(swap) &&
                                      next->pass == older->pass;
    if (is_legal && next->pass == is_backward && next->layer == layer) return MEMO_STATUS_OK;
    return memo_error_set(
        error, MEMO_STATUS_INVALID_STATE,
        "memo_swap_%s(%d) is out of order; memo_swap_%s(%d) comes next, or memo_swap_abandon to "
        "start again",
        names[is_backward][is_end], (int)layer, names[older->pass][n_open > 0], (int)older->layer);
}

/* Enqueues a write or read of an item, all of its rows. */
MEMOI void memoi_swap_use_file(memo_swap* swap, const memob_op* op, const memob_part* part) {
    const memob_swap_items* it = &swap->items;
    const int64_t n_bytes = it->file_bytes[part->item];
    if (!n_bytes) return;
    MEMO_ASSERT(it->file_at[part->item] + n_bytes <= swap->placement->sizes.spill_bytes); /* 2 */
    memob_engine_use_file(&swap->sink.engine, 2 * (int64_t)part->item + (op->kind == MEMOB_OP_READ),
                          op->kind == MEMOB_OP_WRITE, it->host_at[part->at],
                          it->file_at[part->item], n_bytes);
}

/* Copies the rows of an item that this micro-batch has.  *n_before: see memoi_sink_begin; -1: the
 * operation has not begun. */
MEMOI void memoi_swap_copy(memo_swap* swap, const memob_op* op, const memob_part* part,
                           int64_t* n_before) {
    memob_swap_items* it = &swap->items;
    const memo_swap_sizes* sizes MEMO_UNUSED = &swap->placement->sizes;
    if (memoi_swap_item_kind_of(it, part->item) == MEMOB_SWAP_ITEM_LATE)
        memoi_swap_items_cut(swap->placement, it, part->item);
    for (int32_t k = it->first_piece[part->item]; k < it->first_piece[part->item + 1]; k++) {
        const memob_swap_piece* piece = &it->pieces[k];
        const int64_t device = it->device_at[part->at] + piece->device;
        const int64_t host = it->host_at[part->away] + piece->host;
        const int64_t n_bytes = memoi_swap_piece_bytes(piece, swap->n_rows);
        if (n_bytes <= 0) continue;
        MEMO_ASSERT(device >= 0 && device + n_bytes <= sizes->device_bytes); /* 2 */
        MEMO_ASSERT(host >= 0 && host + n_bytes <= sizes->host_bytes);       /* 2 */
        if (*n_before < 0) *n_before = memoi_sink_begin(&swap->sink, op);
        memob_engine_copy(&swap->sink.engine, op->kind == MEMOB_OP_LOAD, device, host, n_bytes);
    }
}

/* Enqueues a transfer, or a write or read of the file. */
MEMOI void memoi_swap_enqueue(memo_swap* swap, int32_t k) {
    const memob_op* op = &swap->law.ops[k];
    const memob_part *part = &swap->law.parts[op->first_part], *end = part + op->n_parts;
    int64_t n_before = -1;
    for (; part < end && !swap->sink.engine.status; part++) {
        if (op->kind == MEMOB_OP_WRITE || op->kind == MEMOB_OP_READ) {
            if (n_before < 0) n_before = memoi_sink_begin(&swap->sink, op);
            memoi_swap_use_file(swap, op, part);
        } else {
            memoi_swap_copy(swap, op, part, &n_before);
        }
    }
    if (n_before >= 0) memoi_sink_end(&swap->sink, op, n_before);
}

memo_status memo_swap_set_rows(memo_swap* swap, int64_t n_rows, int is_forward_only,
                               memo_error* error) {
    MEMOB_REFUSE_NULL(error, "swap", swap);
    if (memob_check_integer("memo_swap_set_rows", "n_rows", n_rows, 1, swap->n_rows_most, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (swap->n_begun)
        return memo_error_set(
            error, MEMO_STATUS_INVALID_STATE,
            "memo_swap_set_rows: a micro-batch is open; end it, or call memo_swap_abandon first");
    swap->n_rows = n_rows;
    swap->is_forward_only = is_forward_only;
    return MEMO_STATUS_OK;
}

/* The operation of a visit of this micro-batch. */
MEMOI int32_t memoi_swap_visit_op(const memo_swap* swap, int32_t visit) {
    const int32_t table = swap->is_forward_only ? MEMOB_SWAP_FORWARD_ONLY : MEMOB_SWAP_BOTH;
    const memob_law* law = &swap->law;
    const int32_t k = law->visit_ops[(int64_t)table * law->n_visits + visit];
    MEMO_ASSERT(law->ops[k].kind == MEMOB_OP_VISIT); /* 3 */
    return k;
}

MEMOI memo_status memob_swap_begin(memo_swap* swap, memo_error* error) {
    memob_sink* sink = &swap->sink;
    memob_engine* e = &sink->engine;
    const memob_op* op = &swap->law.ops[memoi_swap_visit_op(swap, swap->n_begun)];
    const memo_stream compute = e->streams[MEMOB_STREAM_COMPUTE];
    const memo_event* marks = swap->marks ? swap->marks + 2 * swap->n_begun : NULL;
    memob_numbers wait = MEMO_ZERO(memob_numbers);
    if (!swap->n_begun) swap->host_stall_s[0] = swap->host_stall_s[1] = 0;
    memoi_sink_call(sink, error);
    swap->waited[swap->n_begun] = !e->status && e->n_events && memoi_sink_need(sink, op, &wait);

    /* With is_timed, two marks measure how long it waits. */
    if (swap->waited[swap->n_begun]) {
        const int64_t begin_ns = swap->is_timed ? memob_now_ns() : 0;
        if (marks) e->status = memo_event_record(&e->device, marks[0], compute, error);
        memoi_sink_wait(sink, MEMOB_STREAM_COMPUTE, &wait);
        if (marks && !e->status)
            e->status = memo_event_record(&e->device, marks[1], compute, error);
        if (swap->is_timed && e->computes_on_host)
            swap->host_stall_s[memob_swap_next(swap, 0)->pass] +=
                1e-9 * (double)(memob_now_ns() - begin_ns);
    }
    sink->has_failed = e->status != MEMO_STATUS_OK;
    swap->n_begun += !e->status;
    MEMO_ASSERT(swap->n_begun - swap->n_ended <= swap->n_open_most); /* 1 */
    return e->status;
}

/* The older open visit ends, and the operations behind it begin. */
MEMOI memo_status memob_swap_end(memo_swap* swap, memo_error* error) {
    memob_sink* sink = &swap->sink;
    const memob_law* law = &swap->law;
    const memob_engine* e = &sink->engine;
    int32_t k = memoi_swap_visit_op(swap, swap->n_ended);
    const int32_t end = law->begin[law->ops[k].list + 1];
    memoi_sink_call(sink, error);
    if (!e->status && e->n_events) {
        memoi_sink_end(sink, &law->ops[k], sink->waits->now[0].of[MEMOB_STREAM_COMPUTE]);
        for (k++; k < end && law->ops[k].kind != MEMOB_OP_VISIT; k++) memoi_swap_enqueue(swap, k);
    }
    sink->has_failed = e->status != MEMO_STATUS_OK;
    if (e->status) return e->status;
    swap->n_ended++;
    MEMO_ASSERT(swap->n_ended <= swap->n_begun); /* 1 */
    swap->is_measured |= swap->n_ended == swap->placement->n_visits;
    if (swap->n_ended == memoi_swap_n_visits(swap)) swap->n_begun = swap->n_ended = 0;
    return MEMO_STATUS_OK;
}

/* A trainer without a session begins or ends a layer. */
MEMOI memo_status memob_swap_visit(memo_swap* swap, int is_backward, int is_end, int32_t layer,
                                   memo_error* error) {
    const memo_status status = memoi_swap_expect(swap, is_backward, is_end, layer, error);
    if (status) return status;
    if (is_end) return memob_swap_end(swap, error);
    if (!is_backward) memob_swap_route_none(swap->placement, layer, swap->is_forward_only);
    return memob_swap_begin(swap, error);
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
    swap->sink.has_failed = 1;
    memoi_sink_call(&swap->sink, error);
    if (swap->sink.engine.status) return swap->sink.engine.status;
    swap->n_begun = swap->n_ended = 0;
    swap->is_measured = 0;
    return MEMO_STATUS_OK;
}

memo_status memo_swap_get_stats(memo_swap* swap, memo_swap_stats* stats, memo_error* error) {
    const memob_engine* e;
    double stall_s[2];
    MEMOB_REFUSE_NULL(error, "swap", swap);
    MEMOB_REFUSE_NULL(error, "stats", stats);
    e = &swap->sink.engine;
    for (int32_t k = 0; k < 2; k++) stall_s[k] = swap->is_measured ? swap->host_stall_s[k] : 0;
    for (int32_t k = 0; swap->marks && swap->is_measured && k < swap->placement->n_visits; k++) {
        double waited_s = 0;
        memo_status status;
        if (!swap->waited[k]) continue;
        status = memo_event_elapsed(&e->device, swap->marks[2 * k], swap->marks[2 * k + 1],
                                    &waited_s, error);
        if (status) return status;
        stall_s[swap->placement->visits[k].pass] += waited_s;
    }
    stats->to_host_bytes = e->copied_bytes[0];
    stats->to_device_bytes = e->copied_bytes[1];
    stats->to_file_bytes = e->file_bytes[0];
    stats->from_file_bytes = e->file_bytes[1];
    stats->forward_stall_s = stall_s[0];
    stats->backward_stall_s = stall_s[1];
    return MEMO_STATUS_OK;
}
