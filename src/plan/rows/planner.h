#pragma once
#include "plan/rows/times.h"
/* --- >>row planner ---
 * Knows: the desc of a search, its memory, bundles of tensors, and what each layer may do with a
 * bundle.  Knows nothing of which table is good. */

/* Tensors that are recomputed together, and so have the same rows. */
typedef struct memoi_rows_bundle {
    int64_t row_bytes;
    int32_t leader; /* the tensor whose time counts */
    double worth;   /* the most time, in a layer, that a byte saves if it is not recomputed */
} memoi_rows_bundle;

/* A refusal looks for budgets by searches that end with the first table that fits: of a part of the
 * trials, then of all, which find one where the plan does. */
typedef enum memoi_rows_effort {
    MEMOI_ROWS_EFFORT_WHOLE,
    MEMOI_ROWS_EFFORT_FIRST,
    MEMOI_ROWS_EFFORT_SHORT
} memoi_rows_effort;

/* What a plan is made for; all zero: memo_plan_swap, without the limit's name. */
typedef struct memoi_rows_aim {
    memoi_rows_effort effort;
    int is_alpha;         /* only the best single alpha */
    int is_named;         /* the limit is; as much work as the search */
    const int64_t* start; /* rows to begin with, (n_layers, n_tensors); NULL: none */
    double other_s;       /* of a rank: a step to be better than; 0: none */
} memoi_rows_aim;

#define MEMOI_ROWS_SEED 0x9e3779b97f4a7c15u

/* Bytes are doubles, because tables that keep all may exceed every integer. */
typedef struct memoi_rows_score {
    double device_bytes, swapped_bytes;
    memo_swap_sizes sizes; /* of host memory and the file */
    int32_t n_host_layers; /* places there; 0: for each layer that is moved */
    double step_s, stall_s, recompute_s, update_s;
    double copied_bytes[2]; /* in a step: to the host, to the device */
    double excess_bytes;    /* beyond the capacities; 0: fits; MEMOI_ROWS_IMPOSSIBLE: never would */
    double lifted_bytes;    /* of the memory whose limit is lifted */
} memoi_rows_score;

#define MEMOI_ROWS_IMPOSSIBLE 1e300
#define MEMOI_ROWS_WORST      (2 * MEMOI_ROWS_IMPOSSIBLE) /* any table is better */

/* What a layer may do with the rows of a bundle, beside keeping them. */
typedef enum memoi_rows_rule {
    MEMOI_RULE_KEEP = 0, /* nothing */
    MEMOI_RULE_MOVE,     /* swap all: they cannot be recomputed, or not in this layer */
    MEMOI_RULE_ROWS,     /* swap any, and recompute the others */
    MEMOI_RULE_WHOLE,    /* swap all, or recompute all */
    MEMOI_RULE_LATE,     /* recompute all: late rows */
    MEMOI_RULE_ABSENT    /* nothing: the layer lacks the bundle */
} memoi_rows_rule;

/* By `away` of the bundle's leader, which is never WITH. */
static const memoi_rows_rule memoi_rule_of_away[] = {
    MEMOI_RULE_KEEP, MEMOI_RULE_MOVE, MEMOI_RULE_ROWS, MEMOI_RULE_WHOLE, MEMOI_RULE_ABSENT};
MEMOB_TABLE_OF(MEMO_N_AWAYS, memoi_rule_of_away);

typedef struct memoi_rows_table {
    memoi_rows_score score;
    int64_t* cells;    /* (n_bundles, n_layers): swapped tiles, or MEMO_ROWS_KEPT */
    int64_t* versions; /* (n_bundles): equal numbers, equal cells */
} memoi_rows_table;

/* The score of a table that was tried lately, under any budgets. */
typedef struct memoi_rows_known {
    memoi_rows_score score;
    int64_t times_version; /* 0: nothing is known */
    int is_timed;          /* otherwise only its bytes are known, */
    double over_s;         /* and that its step takes longer than this */
} memoi_rows_known;

typedef struct memoi_rows_planner {
    const memo_swap_plan_desc* desc; /* the caller's, or one with a wider limit */
    memo_swap_limit lifted; /* breaks ties: the plan that uses least of this resource wins */
    memob_arrays arrays;
    int32_t n_layers, n_moved; /* those before the last two, which never move */
    int64_t n_tiles, n_cells;
    memoi_rows_bundle* bundles; /* those with bytes */
    /* The planner's kinds: with slices each kind of the desc is several, by the slice's position,
     * because late slices take longer than early ones. */
    int32_t n_bundles;
    int32_t* kinds;         /* of each layer */
    memoi_rows_rule* rules; /* (n_bundles, n_layers) */
    double* all_s;          /* likewise: to recompute all rows; infinite: impossible */
    int32_t* bundle_of;     /* each tensor's; -1: no bytes */
    int32_t* by_worth;      /* bundles, of most worth first */
    memoi_rows_clock clock;
    memoi_rows_known* known; /* each table has one place among n_known, a power of 2 */
    int64_t* known_cells;    /* (n_known, n_cells) */
    int64_t n_known;
    int64_t times_version; /* raised where times change: scores known before are void */
    int32_t* picked;       /* the layers that a change may concern, in order */
    int32_t* changed;      /* those that the last change concerned, in order */
    int32_t n_changed;
    double *stalls_s, stalled_s; /* before each visit of the latest table taken; their sum */
    int is_timed;                /* a trial of the latest change was */
    int lacks_memory;            /* for the law of a trial: the search has failed */
    int meets_host;              /* the host's limit has mattered to a search */
    memoi_rows_table trial, here, best, plan; /* plan: whose limit is named */
    memoi_rows_table first;                   /* the best before tables are searched */
    int is_uniform;                           /* searches change all layers of a kind */
    memoi_rows_aim aim;                       /* set behind memoi_rows_create */

    /* The table that was added up last, its sums, which are the clock's unless packs change these,
     * the bytes of each tensor on the device and always on the host, and a time of a layer that is
     * none. */
    memoi_rows_table summed;
    memob_swap_sum* sums;
    double *held_bytes, hair_s; /* (n_tensors, 2) */
    int is_summed;
    int64_t n_versions;
    uint64_t random;
} memoi_rows_planner;

MEMOI const char* memoi_rows_desc_name(const memo_swap_plan_desc* desc) {
    return desc->swap && desc->swap->desc_name ? desc->swap->desc_name : "memo_swap_plan_desc";
}

MEMOI memo_status memoi_rows_check(const memo_swap_plan_desc* desc, memo_error* error) {
    const char* const name = memoi_rows_desc_name(desc);
    /* 0 is no limit, so only negative budgets are invalid. */
    const memob_bounds budgets[] = {{"device_bytes", desc->device_bytes, 0, INT64_MAX},
                                    {"micro_batches", desc->micro_batches, 0, INT32_MAX},
                                    {"host_bytes", desc->host_bytes, 0, INT64_MAX},
                                    {"spill_bytes", desc->spill_bytes, 0, INT64_MAX}};

    /* Required pointers first: the other checks read them. */
    if (!desc->swap || !desc->profile)
        return MEMOB_INVALID(error, "%s.%s: NULL; set it", name, desc->swap ? "profile" : "swap");
    return MEMOB_CHECK_FIELDS(name, budgets, error);
}

/* The states that the engine gets, whose turns are those of the order.  The swap desc is valid. */
MEMOI memo_status memoi_rows_check_states(const memo_swap_plan_desc* desc, memo_error* error) {
    const char* const name = memoi_rows_desc_name(desc);
    const struct memob_states_desc* states = desc->states;
    const memo_swap_desc* swap = desc->swap;
    const int64_t n_chunks = states && swap->order ? memob_max(states->n_chunks, 1) : 1;
    const int64_t n_turns = swap->order ? swap->n_order : 0;
    const int64_t n_steps = memob_swap_place_steps(swap) * n_chunks;
    const int64_t n_layers = n_steps / memob_max(swap->n_slices, 1) + 2;
    if (!states) return MEMO_STATUS_OK;
    const memob_bounds fields[] = {{"states->n_states", states->n_states, 1, MEMO_STATES_MAX},
                                   {"states->n_layers", states->n_layers, n_layers, n_layers},
                                   {"states->n_turns", states->n_turns, n_turns, n_turns},
                                   {"states->n_chunks", states->n_chunks, n_chunks, n_chunks}};
    if (!states->states)
        return MEMOB_INVALID(error, "%s.states: without a table; NULL means no states", name);
    return MEMOB_CHECK_FIELDS(name, fields, error);
}

/* Layers in slices hand rows on; only they may be planned in slices of another size. */
MEMOI int memoi_rows_are_handed(const memo_item* tensors, int32_t n) {
    int32_t t = 0;
    while (t < n && tensors[t].scope != MEMO_EDGE) t++;
    return t < n;
}

/* The profile has times of this plan's rows, kinds and tensors.  The swap desc is valid. */
MEMOI memo_status memoi_rows_check_profile(const memo_swap_plan_desc* desc, memo_error* error) {
    const memo_profile* profile = desc->profile;
    const memo_swap_desc* swap = desc->swap;
    memo_status status = memoi_profile_check(profile, error);
    if (status) return status;
    for (int32_t layer = 0; layer < swap->n_layers; layer++)
        if (memob_layer_kind(swap, layer) >= profile->n_kinds)
            return MEMOB_INVALID(
                error, "profile.n_kinds: %d, but layer %d is of kind %d; measure this model",
                (int)profile->n_kinds, (int)layer, (int)memob_layer_kind(swap, layer));

    for (int32_t t = 0; t < swap->n_tensors; t++)
        if (!memoi_profile_find(profile, swap->tensors, t))
            return MEMOB_INVALID(error, "profile.tensors: tensor `%s` is missing; measure it too",
                                 memob_tensor_name(&swap->tensors[t]));

    if (profile->n_rows == swap->n_rows || memoi_rows_are_handed(swap->tensors, swap->n_tensors))
        return MEMO_STATUS_OK;
    return MEMOB_INVALID(
        error, "profile.n_rows: %lld do not match the %lld of the plan; measure with the same rows",
        (long long)profile->n_rows, (long long)swap->n_rows);
}

/* A tensor recomputed with another must have the same rows, so both are one bundle. */
MEMOI void memoi_rows_find_bundles(memoi_rows_planner* p) {
    const memo_swap_desc* swap = p->desc->swap;
    for (int32_t t = 0; t < swap->n_tensors; t++) {
        p->bundle_of[t] = -1;
        if (swap->tensors[t].row_bytes == 0 || swap->tensors[t].away == MEMO_WITH) continue;
        if (swap->tensors[t].scope == MEMO_EDGE) continue; /* nothing to choose */
        p->bundle_of[t] = p->n_bundles;
        p->bundles[p->n_bundles++].leader = t;
    }

    /* Every tensor adds its bytes; the leader alone has the time. */
    for (int32_t t = 0; t < swap->n_tensors; t++) {
        p->bundle_of[t] = p->bundle_of[memob_item_leader(swap->tensors, t)];
        if (p->bundle_of[t] >= 0)
            p->bundles[p->bundle_of[t]].row_bytes += swap->tensors[t].row_bytes;
    }
}

/* 1: the trainer's recompute can compute it. */
MEMOI int memoi_rule_recomputes(memoi_rows_rule rule) {
    return rule == MEMOI_RULE_ROWS || rule == MEMOI_RULE_WHOLE || rule == MEMOI_RULE_LATE;
}

/* What each layer may do with each bundle, and the time to recompute all rows. */
MEMOI void memoi_rows_find_rules(memoi_rows_planner* p) {
    const memo_swap_desc* swap = p->desc->swap;
    int32_t i;
    for (int32_t b = 0; b < p->n_bundles; b++) {
        const int32_t t = p->bundles[b].leader;
        const memo_profile_tensor* tensor = memoi_profile_find(p->desc->profile, swap->tensors, t);
        const int is_late = memob_tensor_is_routed(swap, t);
        const int64_t late_rows = is_late ? memob_swap_routed_rows(swap, t) : 0;
        for (int32_t layer = 0; layer < p->n_layers; layer++) {
            const int64_t at = (int64_t)b * p->n_layers + layer;
            const int cannot = tensor->recompute_s_per_row[memob_layer_kind(swap, layer)] < 0;
            memoi_rows_rule rule = memoi_rule_of_away[memob_item_away(swap, t)];

            if (memoi_rule_recomputes(rule)) {
                if (is_late) rule = MEMOI_RULE_LATE;
                if (cannot) rule = is_late ? MEMOI_RULE_KEEP : MEMOI_RULE_MOVE;
            }
            p->rules[at] = memob_layer_has(swap, layer, t) ? rule : MEMOI_RULE_ABSENT;
            p->all_s[at] = rule == MEMOI_RULE_MOVE
                               ? HUGE_VAL
                               : memob_rows_recompute_s(p->desc, layer, t, late_rows);
            if (!memoi_rule_recomputes(p->rules[at])) continue;
            p->hair_s =
                fmax(p->hair_s, 1e-12 * (p->all_s[at] + p->desc->profile->recompute_call_s));
            p->bundles[b].worth =
                fmax(p->bundles[b].worth, p->all_s[at] / (double)p->bundles[b].row_bytes);
        }

        for (i = b; i > 0 && p->bundles[p->by_worth[i - 1]].worth < p->bundles[b].worth; i--)
            p->by_worth[i] = p->by_worth[i - 1];
        p->by_worth[i] = b;
    }
}

/* Tables that are known at most, and cells of all of them. */
#define MEMOI_ROWS_KNOWN_MAX       4096
#define MEMOI_ROWS_KNOWN_CELLS_MAX (1 << 18)

/* Computation that does not depend on the rows.  Scores of other times are not known any more. */
MEMOI void memoi_rows_time_kinds(memoi_rows_planner* p) {
    p->clock.desc = p->desc;
    for (int32_t i = 0; i < p->n_layers; i++)
        for (int pass = 0; pass < 2; pass++)
            p->clock.layers[i].compute_s[pass] = memob_rows_pass_s(p->desc, i, pass);
    p->clock.least_s = memoi_rows_least(&p->clock);
    p->times_version++;
}

MEMOI void memoi_rows_destroy(memoi_rows_planner* p) {
    memob_states_free(&p->clock.own_states);
    memob_step_free(&p->clock.own_step);
    memoi_rows_free_law(&p->clock);
    memob_swap_placement_free(&p->clock.order);
    memob_arrays_free(&p->arrays);
}

/* The step that the clock walks: of states, or of rows alone.  Errors: as memob_states_init. */
MEMOI memo_status memoi_rows_take_step(memoi_rows_clock* c, const memo_swap_plan_desc* desc,
                                       memo_error* error) {
    memo_status status;
    c->sink.clock = &c->now;
    c->step = &c->own_step;
    if (!desc->states) return memob_swap_make_step(desc->swap, &c->order, &c->sink, c->step, error);
    c->states = &c->own_states;
    status = memob_states_init(c->states, desc->states, error);
    c->states->sink.clock = &c->now;
    c->states->trainer.update = memoi_rows_update;
    c->states->trainer.look = NULL;
    c->states->trainer.user = c;
    if (!status) status = memob_states_make_items(c->states, error);
    if (!status)
        status = memob_states_get_step(c->states, c->order.n_slices, memob_rows_n_batches(desc),
                                       &c->step, error);
    return status;
}

/* What the desc gives a zeroed planner; memoi_rows_destroy frees any part of it. */
MEMOI memo_status memoi_rows_prepare(memoi_rows_planner* p, const memo_swap_plan_desc* desc,
                                     memo_error* error) {
    const memo_swap_desc* swap = desc->swap;
    memoi_rows_table* const tables[] = {&p->trial, &p->here, &p->best,
                                        &p->first, &p->plan, &p->summed};
    memob_arrays* a = &p->arrays;
    int64_t n_cells, n_slices, n_classes;
    memo_status status = memoi_rows_check(desc, error);
    if (!status) /* no sum of sizes overflows */
        status = memob_swap_placement_make(swap, 0, &p->clock.order, error);
    if (!status) status = memoi_rows_check_states(desc, error);
    if (!status) status = memoi_rows_check_profile(desc, error);
    if (status) return status;

    /* Only the first layers move: the backward uses the last layers at once, so these stay in the
     * buffers. */
    p->desc = desc;
    p->n_layers = swap->n_layers;
    p->n_moved = swap->n_places > 1 ? swap->n_layers : (int32_t)memob_max(swap->n_layers - 2, 0);
    p->n_tiles = memob_swap_n_tiles(swap);
    p->random = MEMOI_ROWS_SEED;
    p->clock.enough_s = HUGE_VAL;

    n_cells = (int64_t)p->n_layers * swap->n_tensors;
    p->bundles = MEMOB_ARRAY(a, memoi_rows_bundle, swap->n_tensors);
    p->bundle_of = MEMOB_ARRAY(a, int32_t, swap->n_tensors);
    p->by_worth = MEMOB_ARRAY(a, int32_t, swap->n_tensors);
    p->kinds = MEMOB_ARRAY(a, int32_t, p->n_layers);
    p->rules = MEMOB_ARRAY(a, memoi_rows_rule, n_cells);
    p->all_s = MEMOB_ARRAY(a, double, n_cells);
    p->clock.layers = MEMOB_ARRAY(a, memoi_rows_layer, p->n_layers);
    p->clock.n_laws = MEMOI_ROWS_LAWS_MAX;
    while (p->clock.n_laws > MEMOI_ROWS_LAWS_LEAST &&
           p->clock.n_laws * n_cells > MEMOI_ROWS_LAWS_CELLS)
        p->clock.n_laws /= 2;
    p->clock.laws = MEMOB_ARRAY(a, memoi_rows_law, p->clock.n_laws);
    status = memoi_rows_take_step(&p->clock, desc, error);
    if (status) return status;
    p->n_known = MEMOI_ROWS_KNOWN_MAX;
    while (p->n_known > 1 && p->n_known * n_cells > MEMOI_ROWS_KNOWN_CELLS_MAX) p->n_known /= 2;
    p->known = MEMOB_ARRAY(a, memoi_rows_known, p->n_known);
    p->known_cells = MEMOB_ARRAY_OF_ANY(a, int64_t, p->n_known * n_cells);
    p->picked = MEMOB_ARRAY(a, int32_t, p->n_layers);
    p->changed = MEMOB_ARRAY(a, int32_t, p->n_layers);
    p->stalls_s = MEMOB_ARRAY(a, double, p->clock.order.n_visits);
    p->clock.stalls_s = MEMOB_ARRAY(a, double, p->clock.order.n_visits);
    for (size_t k = 0; k < sizeof tables / sizeof tables[0]; k++) {
        tables[k]->cells = MEMOB_ARRAY(a, int64_t, n_cells);
        tables[k]->versions = MEMOB_ARRAY(a, int64_t, swap->n_tensors);
    }
    p->sums = p->clock.order.sums;
    if (memob_swap_has_kinds(swap)) p->sums = MEMOB_ARRAY(a, memob_swap_sum, p->n_layers);
    p->held_bytes = MEMOB_ARRAY(a, double, 2 * (int64_t)swap->n_tensors);
    if (a->failed) return memob_no_memory(error, "the planning of rows");

    n_slices = memob_max(memob_swap_batch_slices(swap), 1);
    n_classes = memob_min(n_slices, 4);
    for (int32_t layer = 0; layer < p->n_layers; layer++)
        p->kinds[layer] = (int32_t)(memob_layer_kind(swap, layer) * n_classes +
                                    layer % n_slices * n_classes / n_slices);
    memoi_rows_find_bundles(p);
    memoi_rows_find_rules(p);
    p->clock.rates = memob_rows_find_rates(desc->profile);
    memoi_rows_time_kinds(p);
    p->n_cells = (int64_t)p->n_layers * p->n_bundles;
    return status;
}

MEMOI memo_status memoi_rows_create(const memo_swap_plan_desc* desc, memoi_rows_planner* p,
                                    memo_error* error) {
    memo_status status;
    memset(p, 0, sizeof *p);
    status = memoi_rows_prepare(p, desc, error);
    if (status) memoi_rows_destroy(p);
    return status;
}
