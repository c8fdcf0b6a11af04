#pragma once
#include "memo/base.h"
/* ---- >>list -------------------------------------------------------------------------------------
 * Knows: in which order a step computes.  Knows nothing of bytes.
 *
 * A step is everything between two updates, one update included.  A visit is computed between a
 * begin and its end: a pass of a layer, or of one slice of it.  Layers are 0: FIRST, 1 to n, and
 * n + 1: LAST, which computes its forward in the visit of its backward, but for evaluations.
 *
 * A round is all turns once: a micro-batch, a group, or all micro-batches of an order.  Five rounds
 * stand for any number: first, second, middle, which repeats, last but one, last.  These are the
 * phases of a step, with the pass of updates.  Fewer rounds leave phases out.  What a step may do
 * beside its plan, other rounds and an evaluation, are phases as well: they lie behind the step.
 *
 * 1. A layer has at most one update in a phase: before its first forward (deferred), or behind its
 *    last backward (fused).
 * 2. Gradients of a layer begin in its first backward of the step. */

typedef enum memob_pass {
    MEMOB_FORWARD = 0,
    MEMOB_BACKWARD,
    MEMOB_UPDATE,
    MEMOB_N_PASSES
} memob_pass;

typedef enum memob_phase {
    MEMOB_ONLY = 0, /* the only round of a step */
    MEMOB_FIRST,
    MEMOB_SECOND,
    MEMOB_MIDDLE,
    MEMOB_LAST_BUT_ONE,
    MEMOB_LAST,
    MEMOB_UPDATES, /* of all layers, without a round */
    MEMOB_EVALUATION,
    MEMOB_N_PHASES
} memob_phase;

typedef struct memob_visit {
    int32_t pass, layer, slice;
    int32_t row;     /* its number among visits of layers in the round; -1: it is none */
    uint8_t begins;  /* gradients of the layer begin */
    uint8_t on_host; /* an update there */
} memob_visit;

typedef struct memob_list_desc {
    const int32_t* turns; /* c: forwards of chunk c, -1 - c: its backwards; NULL: a micro-batch */
    int32_t n_turns, n_chunks;
    int32_t n_layers; /* n, a multiple of n_chunks */
    int32_t n_slices, n_rounds;
    int32_t update_at; /* memo_update_at */
    int32_t updates_on_host;
    int32_t has_states; /* 0: visits of layers alone, of one round, and of an evaluation */
} memob_list_desc;

typedef struct memob_list {
    memob_list_desc desc;
    memob_visit* visits;
    int32_t begin[MEMOB_N_PHASES], end[MEMOB_N_PHASES]; /* of visits; the same: there is none */
    int32_t n_visits, n_of_step;
    int32_t n_rows; /* visits of layers of the latest round */
    memob_arrays arrays;
} memob_list;

/* Do updates come inside the last backward of a step? */
MEMOI int memob_update_is_fused(int32_t update_at) { return update_at == MEMO_UPDATE_FUSED; }

/* A forward or a backward of a place, or a chunk. */
MEMOI int32_t memob_turn_of(int32_t turn) { return turn < 0 ? -1 - turn : turn; }

/* Without an array, counts. */
MEMOI void memoi_list_add(memob_list* list, int32_t pass, int32_t layer, int32_t slice,
                          int begins) {
    const int is_update = pass == MEMOB_UPDATE, on_host = is_update && list->desc.updates_on_host;
    const int has_rows = !is_update && memob_is_within(layer, 1, list->desc.n_layers);
    const int32_t row = has_rows ? list->n_rows : -1;
    const memob_visit visit = {pass, layer, slice, row, (uint8_t)begins, (uint8_t)on_host};
    if (!has_rows && !list->desc.has_states) return;
    if (list->visits) list->visits[list->n_visits] = visit;
    list->n_visits++;
    list->n_rows += has_rows;
}

/* Is none of turns [k, end) the same? */
MEMOI int memoi_list_is_only(const memob_list_desc* d, int32_t turn, int32_t k, int32_t end) {
    while (k < end && d->turns[k] != turn) k++;
    return k == end;
}

/* Forwards of a chunk.  defers: each layer's update comes before. */
MEMOI void memoi_list_forwards(memob_list* list, int32_t chunk, int defers) {
    const memob_list_desc* d = &list->desc;
    const int32_t each = d->n_layers / d->n_chunks, begin = 1 + chunk * each;
    for (int32_t l = chunk ? begin : 0; l < begin + each; l++) {
        if (defers) memoi_list_add(list, MEMOB_UPDATE, l, 0, 0);
        for (int32_t s = 0; s < (l ? d->n_slices : 1); s++)
            memoi_list_add(list, MEMOB_FORWARD, l, s, 0);
    }
}

/* Backwards of a chunk.  begins: the first of the step; fuses: each layer's update comes behind. */
MEMOI void memoi_list_backwards(memob_list* list, int32_t chunk, int begins, int defers,
                                int fuses) {
    const memob_list_desc* d = &list->desc;
    const int32_t each = d->n_layers / d->n_chunks, begin = 1 + chunk * each, n = d->n_layers;
    if (chunk == d->n_chunks - 1 && defers) memoi_list_add(list, MEMOB_UPDATE, n + 1, 0, 0);
    if (chunk == d->n_chunks - 1) memoi_list_add(list, MEMOB_BACKWARD, n + 1, 0, begins);
    for (int32_t l = begin + each - 1; l >= begin; l--) {
        for (int32_t s = d->n_slices - 1; s >= 0; s--)
            memoi_list_add(list, MEMOB_BACKWARD, l, s, begins && s == d->n_slices - 1);
        if (fuses && l == n) memoi_list_add(list, MEMOB_UPDATE, n + 1, 0, 0); /* in use till now */
        if (fuses) memoi_list_add(list, MEMOB_UPDATE, l, 0, 0);
    }
    if (!chunk) memoi_list_add(list, MEMOB_BACKWARD, 0, 0, 0); /* begun beside layer 1 */
    if (!chunk && fuses) memoi_list_add(list, MEMOB_UPDATE, 0, 0, 0);
}

MEMOI void memoi_list_round(memob_list* list, int32_t phase) {
    static const int32_t one[] = {0, -1};
    memob_list_desc* d = &list->desc;
    const int is_first = phase == MEMOB_ONLY || phase == MEMOB_FIRST;
    const int is_last = phase == MEMOB_ONLY || phase == MEMOB_LAST;
    if (!d->turns) d->turns = one, d->n_turns = 2;
    for (int32_t k = 0; k < d->n_turns; k++) {
        const int32_t turn = d->turns[k];
        const int begins = is_first && memoi_list_is_only(d, turn, 0, k);
        const int ends = is_last && memoi_list_is_only(d, turn, k + 1, d->n_turns);
        const int defers = begins && d->update_at == MEMO_UPDATE_DEFERRED;
        if (turn >= 0)
            memoi_list_forwards(list, turn, defers);
        else
            memoi_list_backwards(list, memob_turn_of(turn), begins, defers,
                                 ends && memob_update_is_fused(d->update_at));
    }
}

/* The visits of a phase, behind those before. */
MEMOI void memoi_list_phase(memob_list* list, int32_t phase) {
    const memob_list_desc* d = &list->desc;
    const int32_t n_chunks = d->has_states ? d->n_chunks : 1; /* rows: of one place */
    list->begin[phase] = list->n_visits;
    list->n_rows = 0;
    if (phase == MEMOB_EVALUATION) {
        for (int32_t chunk = 0; chunk < n_chunks; chunk++) memoi_list_forwards(list, chunk, 0);
        memoi_list_add(list, MEMOB_FORWARD, d->n_layers + 1, 0, 0);
    } else if (phase == MEMOB_UPDATES) {
        for (int32_t l = 0; l < d->n_layers + 2; l++) memoi_list_add(list, MEMOB_UPDATE, l, 0, 0);
    } else {
        memoi_list_round(list, phase);
    }
    list->end[phase] = list->n_visits;
}

/* Is the phase in the planned step? */
MEMOI int memoi_list_has(const memob_list_desc* d, int32_t phase) {
    static const char rounds[][MEMOB_N_PHASES] = {{1, 0, 0, 0, 0, 0, 0, 0}, /* one */
                                                  {0, 1, 0, 0, 0, 1, 0, 0}, /* two */
                                                  {0, 1, 0, 1, 0, 1, 0, 0},
                                                  {0, 1, 1, 0, 1, 1, 0, 0},
                                                  {0, 1, 1, 1, 1, 1, 0, 0}}; /* five and more */
    MEMO_ASSERT(d->n_rounds > 0);
    if (phase == MEMOB_UPDATES) return d->update_at == MEMO_UPDATE_PASS;
    return rounds[memob_min(d->n_rounds, 5) - 1][phase];
}

/* Has the list visits of the phase beside its step? */
MEMOI int memoi_list_has_beside(const memob_list_desc* d, int32_t phase) {
    if (memoi_list_has(d, phase) || phase == MEMOB_SECOND || phase == MEMOB_LAST_BUT_ONE) return 0;
    return d->has_states || phase == MEMOB_EVALUATION;
}

/* Which phase round k is, of a step that may have more or fewer than are planned. */
MEMOI int32_t memoi_list_phase_of(const memob_list_desc* d, int32_t k, int more_follow) {
    if (!k) return more_follow ? MEMOB_FIRST : MEMOB_ONLY;
    if (!more_follow) return MEMOB_LAST;
    if (d->n_rounds > 3 && k == 1) return MEMOB_SECOND;
    return d->n_rounds > 3 && k == d->n_rounds - 2 ? MEMOB_LAST_BUT_ONE : MEMOB_MIDDLE;
}

/* How many visits of [v + 1, end) copies behind visit v may wait for: the slices of a layer, with
 * an update before. */
MEMOI int32_t memoi_list_n_spread(const memob_list* list, int32_t v, int32_t end) {
    const memob_visit* visits = list->visits;
    int32_t k = v + 1, first;
    if (k < end && visits[k].pass == MEMOB_UPDATE) k++;
    first = k;
    while (k < end && visits[k].pass == visits[first].pass &&
           visits[k].layer == visits[first].layer)
        k++;
    return k > first + 1 ? k - v - 1 : 0;
}

MEMOI void memoi_list_free(memob_list* list) {
    memob_arrays_free(&list->arrays);
    memset(list, 0, sizeof *list);
}

/* turns are not copied.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_list_make(const memob_list_desc* desc, memob_list* list,
                                  memo_error* error) {
    memset(list, 0, sizeof *list);
    list->desc = *desc;
    for (int is_counted = 0; is_counted < 2; is_counted++) {
        if (is_counted) {
            list->visits = MEMOB_ARRAY(&list->arrays, memob_visit, list->n_visits);
            if (list->arrays.failed) return memob_no_memory(error, "the visits of a step");
        }
        list->n_visits = 0;
        for (int is_beside = 0; is_beside < 2; is_beside++) {
            for (int32_t phase = 0; phase < MEMOB_N_PHASES; phase++)
                if (is_beside ? memoi_list_has_beside(desc, phase) : memoi_list_has(desc, phase))
                    memoi_list_phase(list, phase);
            if (!is_beside) list->n_of_step = list->n_visits;
        }
    }
    return MEMO_STATUS_OK;
}
