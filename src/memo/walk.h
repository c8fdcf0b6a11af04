#pragma once
#include "memo/states.h"
#include "memo/swap_places.h"
/* ---- >>walk -------------------------------------------------------------------------------------
 * Knows: the order in which a step goes through rows, states and the trainer's functions.  Knows
 * nothing of what any of them does.
 *
 * The planner's clock and memo_swap_generate go through a step as a session does. */

/* A step as the engines and the trainer go through it. */
typedef struct memob_walk {
    const memob_swap_placement* order;
    memob_states* states;                            /* NULL: none */
    memob_step* step;                                /* of the states */
    void (*rows)(void* user, int32_t k, int is_end); /* visit k of the order begins, or ends */
    void (*compute)(void* user, int32_t k);          /* visit k */
    /* Before a turn of backwards; if losses are in layers, there for each micro-batch. */
    void (*between)(void* user);
    void* user;
} memob_walk;

/* The step of visit k, counted in layers of all chunks. */
MEMOI int32_t memoi_walk_step(const memob_walk* w, int32_t k) {
    const int32_t n = w->order->n_forwards, step = w->order->visits[k].layer;
    const memob_states* states = w->states;
    return states->n_turns ? memob_turn_of(states->turns[k / n]) * n + step % n : step;
}

/* A micro-batch, or all that are in flight. */
MEMOI memo_status memob_walk_batch(const memob_walk* w, int is_last, memo_error* error) {
    const memob_swap_placement* order = w->order;
    memob_states* states = w->states;
    const int32_t n = states && states->n_turns ? order->n_forwards : order->n_visits;
    memo_status status = MEMO_STATUS_OK;
    if (states) status = memob_states_begin_round(states, w->step, is_last, 0, error);
    for (int32_t k = 0; k < order->n_visits && !status; k++) {
        const memob_row_visit* visit = &order->visits[k];
        const int32_t turn = states && states->n_turns ? states->turns[k / n] : 0;
        if (states && k % n == 0) status = memob_states_begin_turn(states, turn, error);
        if (!status && memob_swap_is_between(order, k)) w->between(w->user);
        if (states && !status)
            status = memob_states_visit(states, visit->pass, memoi_walk_step(w, k), 0, error);
        if (status) return status;
        w->rows(w->user, k, 0);
        if (memob_swap_has_loss(order, k)) w->between(w->user);
        w->compute(w->user, k);
        w->rows(w->user, k, 1);
        if (states)
            status = memob_states_visit(states, visit->pass, memoi_walk_step(w, k), 1, error);
        if (states && k % n == n - 1 && !status)
            status = memob_states_end_turn(states, turn, error);
    }
    return status;
}

/* The update after the last micro-batch of a step. */
MEMOI memo_status memob_walk_update(const memob_walk* w, memo_error* error) {
    memob_states* states = w->states;
    if (!states) return MEMO_STATUS_OK;
    if (states->update_at == MEMO_UPDATE_DEFERRED) memob_states_defer(states);
    return states->is_due ? memob_states_update_all(states, error) : MEMO_STATUS_OK;
}
