#pragma once
#include "memo/engine.h"
#include "memo/swap_rows.h"
/* ---- >>swap order -------------------------------------------------------------------------------
 * Knows: the operations of a step, in the order in which the engine enqueues them.  Knows nothing
 * of addresses, devices and times.
 *
 * This room is the law of a step.  >>swap engine runs its operations on a device, the planner
 * (memo_plan.h, >>row times) on a clock. */

/* The events of a step: two each, of even and odd steps; and one of each place in host memory. */
enum {
    MEMOB_SWAP_COMPUTED = 0,  /* all work of a step before its end */
    MEMOB_SWAP_HANDED = 2,    /* HANDED rows are on the host */
    MEMOB_SWAP_STORED = 4,    /* and so are the other rows */
    MEMOB_SWAP_LOADED = 6,    /* rows are on the device */
    MEMOB_SWAP_ROUTED = 8,    /* the surplus is on the host; + 1: on the device */
    MEMOB_SWAP_FILE_DONE = 10 /* the rows of a place are written, or read back */
};
/* The operations.  `of` is an event; the step whose rows are copied; or 2 * the ordinal of the
 * moved layer that the file takes, + 1 if it gives the layer back. */
enum {
    MEMOB_SWAP_WAIT,
    MEMOB_SWAP_RECORD,
    MEMOB_SWAP_COPY_HANDED,
    MEMOB_SWAP_COPY_ROWS,   /* but for HANDED and LAYER tensors */
    MEMOB_SWAP_COPY_LAYER,  /* rows of LAYER tensors */
    MEMOB_SWAP_COPY_ROUTED, /* the surplus of ROUTED tensors */
    MEMOB_SWAP_USE_FILE
};
typedef struct memob_swap_op {
    int32_t kind, stream, of;
} memob_swap_op;

typedef struct memob_swap_ops {
    int32_t n;
    memob_swap_op list[20];
} memob_swap_ops;

MEMOI void memoi_swap_add_op(memob_swap_ops* ops, int32_t kind, int32_t stream, int32_t of) {
    const memob_swap_op op = {kind, stream, of};
    ops->list[ops->n++] = op;
}

/* Before visit k computes. */
MEMOI void memob_swap_begin_ops(const memob_swap_placement* p, int is_forward_only, int32_t k,
                                memob_swap_ops* ops) {
    const memob_swap_visit* visit = &p->visits[k];
    const memob_swap_turn* turn = &p->turns[visit->step];
    const int32_t event = visit->waits < 0 ? -1 : p->visits[visit->waits].odd;
    ops->n = 0;
    if (visit->is_backward) {
        if (event >= 0)
            memoi_swap_add_op(ops, MEMOB_SWAP_WAIT, MEMOB_SWAP_COMPUTE,
                              (visit->way ? MEMOB_SWAP_LOADED : MEMOB_SWAP_STORED) + event);
        if (turn->routed_bytes)
            memoi_swap_add_op(ops, MEMOB_SWAP_WAIT, MEMOB_SWAP_COMPUTE, MEMOB_SWAP_ROUTED + 1);
        return;
    }
    if (turn->routed_before >= 0 && p->turns[turn->routed_before].routed_bytes)
        memoi_swap_add_op(ops, MEMOB_SWAP_WAIT, MEMOB_SWAP_COMPUTE, MEMOB_SWAP_ROUTED);
    if (event >= 0 && (!is_forward_only || p->handed >= 0))
        memoi_swap_add_op(ops, MEMOB_SWAP_WAIT, MEMOB_SWAP_COMPUTE, MEMOB_SWAP_STORED + event);
    if (turn->hand_in[0] >= 0)
        memoi_swap_add_op(ops, MEMOB_SWAP_WAIT, MEMOB_SWAP_COMPUTE, MEMOB_SWAP_LOADED + visit->odd);
}

/* The rows of a step leave: first the rows that the step hands on, then (forward) its own rows. */
MEMOI void memoi_swap_store_ops(const memob_swap_placement* p, const memob_swap_visit* visit,
                                int is_forward_only, memob_swap_ops* ops) {
    const int32_t step = visit->step, odd = visit->odd;
    const memob_swap_turn* turn = &p->turns[step];
    const int is_moved = p->sums[step].moved_bytes && !is_forward_only;
    const int32_t file_done =
        is_moved ? MEMOB_SWAP_FILE_DONE + turn->ordinal % p->n_host_layers : 0;
    if (turn->hand_out[visit->is_backward] >= 0) {
        memoi_swap_add_op(ops, MEMOB_SWAP_COPY_HANDED, MEMOB_SWAP_TO_HOST, step);
        memoi_swap_add_op(ops, MEMOB_SWAP_RECORD, MEMOB_SWAP_TO_HOST, MEMOB_SWAP_HANDED + odd);
    }
    if (visit->is_backward) return;

    if (is_moved && turn->ordinal >= p->n_host_layers) /* another layer had its place before */
        memoi_swap_add_op(ops, MEMOB_SWAP_WAIT, MEMOB_SWAP_TO_HOST, file_done);
    if (!is_forward_only) {
        memoi_swap_add_op(ops, MEMOB_SWAP_COPY_ROWS, MEMOB_SWAP_TO_HOST, step);
        memoi_swap_add_op(ops, MEMOB_SWAP_COPY_LAYER, MEMOB_SWAP_TO_HOST, step);
    }
    memoi_swap_add_op(ops, MEMOB_SWAP_RECORD, MEMOB_SWAP_TO_HOST, MEMOB_SWAP_STORED + odd);
    if (!is_moved || turn->ordinal >= p->sizes.n_spilled_layers) return;
    memoi_swap_add_op(ops, MEMOB_SWAP_WAIT, MEMOB_SWAP_FILE, MEMOB_SWAP_STORED + odd);
    memoi_swap_add_op(ops, MEMOB_SWAP_USE_FILE, MEMOB_SWAP_FILE, 2 * turn->ordinal);
    memoi_swap_add_op(ops, MEMOB_SWAP_RECORD, MEMOB_SWAP_FILE, file_done);
}

/* After visit k computed: its rows leave, because rows that come take their place. */
MEMOI void memob_swap_end_ops(const memob_swap_placement* p, int is_forward_only, int32_t k,
                              memob_swap_ops* ops) {
    const memob_swap_visit* visit = &p->visits[k];
    const int32_t step = visit->step, odd = visit->odd, is_backward = visit->is_backward;
    const memob_swap_turn* turn = &p->turns[step];
    const int32_t next = step + (is_backward ? -2 : 2);
    const int32_t back = is_forward_only ? -1 : visit->back;
    const int32_t back_layer = is_backward ? turn->layer_source : -1;
    const int32_t ordinal = back < 0 ? -1 : p->turns[back].ordinal;
    const int32_t file_done =
        back < 0 ? 0 : MEMOB_SWAP_FILE_DONE + ordinal % p->n_host_layers; /* of its place */
    const int hands_out = turn->hand_out[is_backward] >= 0, loads = back >= 0 || back_layer >= 0;
    const int hands_in =
        next >= 0 && next < p->n_layers && p->turns[next].hand_in[is_backward] >= 0;
    const int stores =
        is_backward ? hands_out : visit->stores && (!is_forward_only || p->handed >= 0);
    const int routes_out = !is_backward && turn->routed_bytes;
    const int32_t routed = is_backward ? turn->routed_before : -1;
    const int routes_in = routed >= 0 && p->turns[routed].routed_bytes;
    ops->n = 0;
    if (!stores && !loads && !hands_in && !routes_out && !routes_in) return;
    memoi_swap_add_op(ops, MEMOB_SWAP_RECORD, MEMOB_SWAP_COMPUTE, MEMOB_SWAP_COMPUTED + odd);
    if (stores || routes_out)
        memoi_swap_add_op(ops, MEMOB_SWAP_WAIT, MEMOB_SWAP_TO_HOST, MEMOB_SWAP_COMPUTED + odd);
    if (routes_out) {
        memoi_swap_add_op(ops, MEMOB_SWAP_COPY_ROUTED, MEMOB_SWAP_TO_HOST, step);
        memoi_swap_add_op(ops, MEMOB_SWAP_RECORD, MEMOB_SWAP_TO_HOST, MEMOB_SWAP_ROUTED);
    }
    if (stores) memoi_swap_store_ops(p, visit, is_forward_only, ops);
    if (!loads && !hands_in && !routes_in) return;

    /* What comes: first the surplus, which the next backward needs, then the rows that use the
     * place of this step's. */
    if (stores && !is_backward && loads) /* of another micro-batch, over the rows that leave */
        memoi_swap_add_op(ops, MEMOB_SWAP_WAIT, MEMOB_SWAP_TO_DEVICE, MEMOB_SWAP_STORED + odd);
    else if (loads || !hands_out || routes_in)
        memoi_swap_add_op(ops, MEMOB_SWAP_WAIT, MEMOB_SWAP_TO_DEVICE, MEMOB_SWAP_COMPUTED + odd);
    if (routes_in) {
        memoi_swap_add_op(ops, MEMOB_SWAP_COPY_ROUTED, MEMOB_SWAP_TO_DEVICE, routed);
        memoi_swap_add_op(ops, MEMOB_SWAP_RECORD, MEMOB_SWAP_TO_DEVICE, MEMOB_SWAP_ROUTED + 1);
    }
    if (!loads && !hands_in) return;
    if (back >= 0 && ordinal < p->sizes.n_spilled_layers) /* the file has filled their place */
        memoi_swap_add_op(ops, MEMOB_SWAP_WAIT, MEMOB_SWAP_TO_DEVICE, file_done);
    if (back >= 0) memoi_swap_add_op(ops, MEMOB_SWAP_COPY_ROWS, MEMOB_SWAP_TO_DEVICE, back);
    if (back_layer >= 0)
        memoi_swap_add_op(ops, MEMOB_SWAP_COPY_LAYER, MEMOB_SWAP_TO_DEVICE, back_layer);
    if (hands_in && hands_out)
        memoi_swap_add_op(ops, MEMOB_SWAP_WAIT, MEMOB_SWAP_TO_DEVICE, MEMOB_SWAP_HANDED + odd);
    if (hands_in) memoi_swap_add_op(ops, MEMOB_SWAP_COPY_HANDED, MEMOB_SWAP_TO_DEVICE, next);
    memoi_swap_add_op(ops, MEMOB_SWAP_RECORD, MEMOB_SWAP_TO_DEVICE, MEMOB_SWAP_LOADED + odd);

    /* The file fills the place in host memory that is free now. */
    if (ordinal < p->n_host_layers) return;
    memoi_swap_add_op(ops, MEMOB_SWAP_WAIT, MEMOB_SWAP_FILE, MEMOB_SWAP_LOADED + odd);
    memoi_swap_add_op(ops, MEMOB_SWAP_USE_FILE, MEMOB_SWAP_FILE,
                      2 * (ordinal - p->n_host_layers) + 1);
    memoi_swap_add_op(ops, MEMOB_SWAP_RECORD, MEMOB_SWAP_FILE, file_done);
}
