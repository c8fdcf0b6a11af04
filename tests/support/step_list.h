/* step_list.h - lists of visits for tests of the law: micro-batches one after the other, layer by
 * layer, or in turns; with the update as a pass, fused or deferred.
 *
 * 1. A layer's FORWARD of a slice comes before its BACKWARD.
 * 2. A layer has at most one UPDATE: behind its last BACKWARD (a pass, fused), or, if deferred,
 *    before its first FORWARD.  A deferred UPDATE uses the gradients of the list before.
 * 3. FIRST and LAST have one visit of each pass and micro-batch, with slice 0.
 * 4. Visits name layers, slices and micro-batches of the desc; there is room for all. */
#ifndef STEP_LIST_H
#define STEP_LIST_H

/* Layer numbers of a list: 0 to n_layers - 1, and these two. */
#define LIST_LAYER_FIRST          (-1)
#define LIST_LAYER_LAST(n_layers) (n_layers)

/* A forward or backward turn of a micro-batch in a chunk of layers. */
typedef struct list_turn {
    int32_t pass, micro_batch, chunk;
} list_turn;

typedef enum list_order {
    LIST_BATCHES = 0, /* micro-batches one after the other */
    LIST_LAYERS,      /* all micro-batches of a layer, then the next layer */
    LIST_TURNS        /* as listed in turns */
} list_order;

/* Zero means the default. */
typedef struct list_desc {
    int32_t n_layers;                  /* at least 1 */
    int32_t n_slices, n_micro_batches; /* 0: 1 */
    int32_t has_ends;                  /* FIRST and LAST are visited */
    int32_t is_forward_only;
    int32_t order;  /* list_order */
    int32_t update; /* memo_update_at; 0: none */
    const list_turn* turns;
    int32_t n_turns, n_chunks; /* 0 chunks: 1; a divisor of n_layers */
} list_desc;

typedef struct list_visit {
    int32_t pass, layer;
    int32_t slice, micro_batch; /* UPDATE: 0 */
    int32_t is_deferred;        /* UPDATE: before the layer's first FORWARD */
} list_visit;

/* Which visits of the list a step makes. */
typedef enum list_kind {
    LIST_EVERY = 0,  /* all: a step behind another step */
    LIST_FIRST,      /* no deferred updates: there are no gradients yet */
    LIST_PENDING,    /* deferred updates alone */
    LIST_EVALUATION, /* forwards of micro-batch 0 alone */
    LIST_BATCH,      /* no updates at all: a micro-batch that is not the last */
    LIST_UPDATE,     /* updates that are not deferred, alone */
    LIST_N_KINDS
} list_kind;

MEMO_UNUSED static int list_has(const list_visit* visit, int32_t kind) {
    switch (kind) {
    case LIST_FIRST: return !visit->is_deferred;
    case LIST_PENDING: return visit->is_deferred;
    case LIST_EVALUATION: return visit->pass == MEMOB_FORWARD && !visit->micro_batch;
    case LIST_BATCH: return visit->pass != MEMOB_UPDATE;
    case LIST_UPDATE: return visit->pass == MEMOB_UPDATE && !visit->is_deferred;
    default: return 1;
    }
}

typedef struct step_list {
    list_desc desc; /* turns NULL */
    int32_t n_visits;
    list_visit* visits;
    memob_arrays arrays;
} step_list;

/* Appends a visit; without an array, counts it. */
MEMO_UNUSED static void list_add(step_list* list, int32_t pass, int32_t layer, int32_t slice,
                                 int32_t micro_batch, int32_t is_deferred) {
    const list_visit visit = {pass, layer, slice, micro_batch, is_deferred};
    MEMO_ASSERT(layer >= LIST_LAYER_FIRST && layer <= LIST_LAYER_LAST(list->desc.n_layers)); /* 4 */
    MEMO_ASSERT(slice >= 0 && slice < list->desc.n_slices);                                  /* 4 */
    MEMO_ASSERT(micro_batch >= 0 && micro_batch < list->desc.n_micro_batches);               /* 4 */
    MEMO_ASSERT(!slice || (layer >= 0 && layer < list->desc.n_layers));                      /* 3 */
    if (list->visits) list->visits[list->n_visits] = visit;
    list->n_visits++;
}

/* Slices of a layer in a pass; FIRST and LAST have one. */
MEMO_UNUSED static void list_add_layer(step_list* list, int32_t pass, int32_t layer,
                                       int32_t micro_batch) {
    const int32_t is_end = layer < 0 || layer >= list->desc.n_layers;
    const int32_t n = is_end ? 1 : list->desc.n_slices;
    for (int32_t i = 0; i < n; i++)
        list_add(list, pass, layer, pass == MEMOB_FORWARD ? i : n - 1 - i, micro_batch, 0);
}

/* A turn: a pass of one micro-batch through layers [begin, end).  The chunk with the last layer
 * computes LAST forward and backward in its backward turn. */
MEMO_UNUSED static void list_add_turn(step_list* list, int32_t pass, int32_t micro_batch,
                                      int32_t begin, int32_t end) {
    const int32_t n = list->desc.n_layers, has_ends = list->desc.has_ends;
    const int32_t has_first = has_ends && begin == 0, has_last = has_ends && end == n;
    const int32_t last = LIST_LAYER_LAST(n);
    if (pass == MEMOB_FORWARD) {
        if (has_first) list_add_layer(list, pass, LIST_LAYER_FIRST, micro_batch);
        for (int32_t l = begin; l < end; l++) list_add_layer(list, pass, l, micro_batch);
        if (has_last && list->desc.is_forward_only) list_add_layer(list, pass, last, micro_batch);
        return;
    }
    if (has_last) list_add_layer(list, MEMOB_FORWARD, last, micro_batch);
    if (has_last) list_add_layer(list, pass, last, micro_batch);
    for (int32_t l = end - 1; l >= begin; l--) list_add_layer(list, pass, l, micro_batch);
    if (has_first) list_add_layer(list, pass, LIST_LAYER_FIRST, micro_batch);
}

/* Generator: micro-batches one after the other. */
MEMO_UNUSED static void list_batches(step_list* list) {
    const int32_t n = list->desc.n_layers;
    for (int32_t m = 0; m < list->desc.n_micro_batches; m++) {
        list_add_turn(list, MEMOB_FORWARD, m, 0, n);
        if (!list->desc.is_forward_only) list_add_turn(list, MEMOB_BACKWARD, m, 0, n);
    }
}

/* Generator: layer by layer.  The states of a layer travel once a pass, not once a micro-batch. */
MEMO_UNUSED static void list_layers(step_list* list) {
    const int32_t n = list->desc.n_layers, n_batches = list->desc.n_micro_batches;
    const int32_t first = list->desc.has_ends ? LIST_LAYER_FIRST : 0;
    for (int32_t l = first; l < n; l++)
        for (int32_t m = 0; m < n_batches; m++) list_add_layer(list, MEMOB_FORWARD, l, m);
    for (int32_t m = n_batches - 1; m >= 0 && list->desc.has_ends; m--) {
        list_add_layer(list, MEMOB_FORWARD, LIST_LAYER_LAST(n), m);
        if (!list->desc.is_forward_only)
            list_add_layer(list, MEMOB_BACKWARD, LIST_LAYER_LAST(n), m);
    }
    for (int32_t l = n - 1; l >= first && !list->desc.is_forward_only; l--)
        for (int32_t m = n_batches - 1; m >= 0; m--) list_add_layer(list, MEMOB_BACKWARD, l, m);
}

/* Generator: the given turns. */
MEMO_UNUSED static void list_turns(step_list* list, const list_turn* turns) {
    const int32_t n = list->desc.n_layers / list->desc.n_chunks;
    for (int32_t k = 0; k < list->desc.n_turns; k++)
        list_add_turn(list, turns[k].pass, turns[k].micro_batch, turns[k].chunk * n,
                      turns[k].chunk * n + n);
}

/* Puts the updates between the n visits without updates.  n_left: (n_layers + 2) zeros. */
MEMO_UNUSED static void list_place_updates(step_list* list, const list_visit* visits, int32_t n,
                                           int32_t* n_left) {
    const int32_t at = list->desc.update, n_layers = list->desc.n_layers;
    for (int32_t k = 0; k < n; k++)
        n_left[visits[k].layer + 1] +=
            (visits[k].pass == MEMOB_FORWARD) == (at == MEMO_UPDATE_DEFERRED);
    for (int32_t k = 0; k < n; k++) {
        const list_visit* v = &visits[k];
        int32_t* left = &n_left[v->layer + 1];
        const int is_forward = v->pass == MEMOB_FORWARD;
        if (at == MEMO_UPDATE_DEFERRED && is_forward && *left) {
            list_add(list, MEMOB_UPDATE, v->layer, 0, 0, 1);
            *left = 0;
        }
        list_add(list, v->pass, v->layer, v->slice, v->micro_batch, 0);
        MEMO_ASSERT(at != MEMO_UPDATE_FUSED || is_forward || *left > 0); /* 2 */
        if (at == MEMO_UPDATE_FUSED && !is_forward && --*left == 0)
            list_add(list, MEMOB_UPDATE, v->layer, 0, 0, 0);
    }
    for (int32_t l = -1; l <= n_layers && at == MEMO_UPDATE_PASS; l++)
        if (n_left[l + 1]) list_add(list, MEMOB_UPDATE, l, 0, 0, 0);
    MEMO_ASSERT(list->n_visits <= n + n_layers + 2); /* 4 */
}

MEMO_UNUSED static void list_free(step_list* list) {
    memob_arrays_free(&list->arrays);
    memset(list, 0, sizeof *list);
}

/* Makes the list of a step.  Errors: OUT_OF_HOST_MEMORY. */
MEMO_UNUSED static memo_status list_make(const list_desc* desc, step_list* list,
                                         memo_error* error) {
    step_list plain;
    memset(list, 0, sizeof *list);
    list->desc = *desc;
    list->desc.n_slices = (int32_t)memob_max(desc->n_slices, 1);
    list->desc.n_micro_batches = (int32_t)memob_max(desc->n_micro_batches, 1);
    list->desc.n_chunks = (int32_t)memob_max(desc->n_chunks, 1);
    list->desc.turns = NULL;
    MEMO_ASSERT(desc->n_layers > 0 && desc->n_layers % list->desc.n_chunks == 0);

    /* Count, then fill: visits without updates. */
    plain = *list;
    for (int32_t pass = 0; pass < 2; pass++) {
        plain.n_visits = 0;
        if (desc->order == LIST_BATCHES) list_batches(&plain);
        if (desc->order == LIST_LAYERS) list_layers(&plain);
        if (desc->order == LIST_TURNS) list_turns(&plain, desc->turns);
        if (!pass) plain.visits = MEMOB_ARRAY(&plain.arrays, list_visit, plain.n_visits);
        if (plain.arrays.failed) break;
    }

    /* And with updates. */
    if (!plain.arrays.failed) {
        int32_t* n_left = MEMOB_ARRAY(&plain.arrays, int32_t, desc->n_layers + 2);
        list->visits =
            MEMOB_ARRAY(&list->arrays, list_visit, (int64_t)plain.n_visits + desc->n_layers + 2);
        if (n_left && list->visits)
            list_place_updates(list, plain.visits, plain.n_visits, n_left);
        else
            plain.arrays.failed = 1;
    }
    if (plain.arrays.failed) {
        memob_arrays_free(&plain.arrays);
        list_free(list);
        return memob_no_memory(error, "the list of a step");
    }
    memob_arrays_free(&plain.arrays);
    return MEMO_STATUS_OK;
}

#endif
