#pragma once
#include "plan/rows/score.h"
/* --- >>row search ---
 * Knows: tables, their scores and budgets.  Knows nothing of what limits the step of a plan.
 *
 * Random changes, kept if the table is better or hardly worse (simulated annealing).  A change
 * (memoi_rows_change, to which new ones belong) gives a bundle another cell in layers of a kind or
 * in neighboring layers, or exchanges the cells of two layers.  It gives each bundle a new version,
 * by which bytes are added up later, lists the layers, and returns 0 if it left all as it was.
 * Some changes are of cells near visits before which the step waits for copies, and some rounds
 * change pairs of cells instead (memoi_rows_change_cell).  Memory joins the
 * bundles: after a change another bundle takes the free bytes, or gives up the missing bytes, in as
 * many layers or tiles as necessary; often in the same layers, because other layers may have no
 * time to copy the bytes.
 *
 * 1. The layers that a change picks ascend. */

/* The number of trials, and of cells and states that all trials may visit. */
#define MEMOI_ROWS_TRIALS_MAX   150000
#define MEMOI_ROWS_TRIALS_WHOLE 37500 /* of a whole search, which begins with what others found */
#define MEMOI_ROWS_TRIALS_LEAST 1000
#define MEMOI_ROWS_LOOKS_MAX    48000000
#define MEMOI_ROWS_ROUNDS       32 /* of all trials */
#define MEMOI_ROWS_QUIET        8  /* a search ends with so many rounds that gain nothing, */
#define MEMOI_ROWS_QUIET_SHORT  16 /* or with so many that are shorter because tables are large */
#define MEMOI_ROWS_CYCLE        4  /* rounds, of which one tries pairs, and one less host memory */
#define MEMOI_ROWS_RELIEVED     4  /* a copy in the way of a visit is of one of so many visits */
#define MEMOI_ROWS_GAIN         1e-5 /* the least share of a step that counts */
/* How much longer a step is accepted at first: a change of one of few layers makes more. */
#define MEMOI_ROWS_HEAT       0.0001
#define MEMOI_ROWS_HEAT_LAYER 0.04 /* over the number of layers */

/* In [0, n) */
MEMOI int64_t memoi_rows_random(memoi_rows_planner* p, int64_t n) {
    p->random ^= p->random << 13;
    p->random ^= p->random >> 7;
    p->random ^= p->random << 17;
    if (n < (int64_t)1 << 31) return (int64_t)((p->random >> 32) * (uint64_t)n >> 32); /* fast */
    return (int64_t)((p->random >> 1) % (uint64_t)n);
}

/* Layers that p->picked lists, and a bundle with this cell there if they have the same. */
typedef struct memoi_rows_pick {
    int32_t b, n_layers;
    int64_t cell;
    int64_t next, more; /* the new cell; or, if more is not 0, the number of tiles to add */
} memoi_rows_pick;

/* Picks a bundle, a set of layers at a fixed distance from layers of one kind, and their next cell:
 * kept, swapped or recomputed.  is_any: layers of any cell.  is_same: layers of the last change. */
MEMOI void memoi_rows_choose(memoi_rows_planner* p, int is_any, int is_same,
                             memoi_rows_pick* pick) {
    const int64_t states[] = {MEMO_ROWS_KEPT, p->n_tiles, 0};
    const int32_t layer = (int32_t)memoi_rows_random(p, p->n_layers);
    const int64_t* cells;
    int32_t of = layer, n, before;
    int is_all;
    if (!memoi_rows_random(p, 4)) of += (int32_t)memoi_rows_random(p, 5) - 2;
    before = of - layer;
    is_all = of < 0 || of >= p->n_layers || !memoi_rows_random(p, 4) || is_same;
    if (p->is_uniform) {
        of = layer;
        before = is_all = is_same = 0;
        is_any = 1;
    }
    pick->b = (int32_t)memoi_rows_random(p, p->n_bundles);
    cells = &p->trial.cells[(int64_t)pick->b * p->n_layers];
    pick->cell = is_any || memoi_rows_random(p, 2) ? cells[layer] : states[memoi_rows_random(p, 3)];
    pick->next = states[memoi_rows_random(p, 3)];
    pick->more = pick->n_layers = 0;
    n = is_same ? p->n_changed : p->n_layers;
    for (int32_t i = 0; i < n; i++) {
        const int32_t from = is_same ? p->changed[i] : i, at = from + before;
        if (!is_any && cells[from] != pick->cell) continue;
        if (is_all || (at >= 0 && at < p->n_layers && p->kinds[at] == p->kinds[of]))
            p->picked[pick->n_layers++] = from;
    }
}

/* Gives so many of the picked layers their next cell; 0: nothing is different.  They are spread
 * evenly: each apart, in pairs (one of even and one of odd layers), or all side by side.  The last
 * two layers have places that kept rows would mostly add to. */
MEMOI int memoi_rows_convert(memoi_rows_planner* p, const memoi_rows_pick* pick, int64_t count) {
    int64_t* cells = &p->trial.cells[(int64_t)pick->b * p->n_layers];
    const int64_t n = pick->n_layers;
    const int adds = pick->next == MEMO_ROWS_KEPT && !pick->more && memoi_rows_random(p, 4);
    const int32_t end = adds ? p->n_moved : p->n_layers;
    int64_t width, n_groups, i, of_group, rest;
    int32_t n_changed = 0;
    count = memob_min(count, n);
    if (count <= 0 || (p->is_uniform && count < n)) return 0;
    i = memoi_rows_random(p, n);
    width = !p->is_uniform && memoi_rows_random(p, 4) ? 1 + !memoi_rows_random(p, 3) : count;
    width = memob_min(width, count);
    count /= width;
    n_groups = (n + width - 1) / width;

    /* Group g is taken if g * count and (g + 1) * count have different quotients by n_groups.
     * Their rest is followed, because divisions for every layer are slow. */
    of_group = i % width + 1;
    rest = i / width * count % n_groups;
    for (int64_t k = 0; k < n && p->picked[k] < end; k++) {
        const int32_t layer = p->picked[k];
        int64_t next = pick->next;
        MEMO_ASSERT(!k || p->picked[k - 1] < layer); /* 1 */
        if (++i == n) i = of_group = rest = 0;
        if (of_group == width) {
            of_group = 0;
            rest += count - (rest + count >= n_groups ? n_groups : 0);
        }
        of_group++;
        if (rest + count < n_groups) continue;
        if (pick->more && cells[layer] == MEMO_ROWS_KEPT) continue;
        if (pick->more) next = memob_min(memob_max(cells[layer] + pick->more, 0), p->n_tiles);
        if (cells[layer] == next || !memoi_rows_is_valid(p, layer, pick->b, next)) continue;
        cells[layer] = next;
        p->changed[n_changed++] = layer;
    }
    if (!n_changed) return 0;
    p->n_changed = n_changed;
    p->trial.versions[pick->b] = ++p->n_versions;
    return 1;
}

/* Two layers of a bundle exchange cells, which takes about the same memory; 0: these layers may
 * not. */
MEMOI int memoi_rows_exchange(memoi_rows_planner* p, int32_t b) {
    const int32_t i = (int32_t)memoi_rows_random(p, p->n_layers);
    const int32_t k = (int32_t)memoi_rows_random(p, p->n_layers);
    int64_t* cells = &p->trial.cells[(int64_t)b * p->n_layers];
    const int64_t cell = cells[i];
    if (cell == cells[k] || !memoi_rows_is_valid(p, i, b, cells[k]) ||
        !memoi_rows_is_valid(p, k, b, cell))
        return 0;
    cells[i] = cells[k];
    cells[k] = cell;
    p->n_changed = 2;
    p->changed[0] = (int32_t)memob_min(i, k);
    p->changed[1] = (int32_t)memob_max(i, k);
    p->trial.versions[b] = ++p->n_versions;
    return 1;
}

/* Gives a cell of the trial another value; 0: the layer may not have it. */
MEMOI int memoi_rows_set_cell(memoi_rows_planner* p, int64_t at, int64_t next) {
    const int32_t b = (int32_t)(at / p->n_layers);
    if (!memoi_rows_is_valid(p, (int32_t)(at % p->n_layers), b, next)) return 0;
    p->trial.cells[at] = next;
    p->trial.versions[b] = ++p->n_versions;
    return 1;
}

/* Keeps the stalls of the latest trial that was timed, if one was in this change: of the table that
 * is taken, or, if that was known, of the same before its refit. */
MEMOI void memoi_rows_note_stalls(memoi_rows_planner* p) {
    const int32_t n_visits = p->clock.order.n_visits;
    if (!p->is_timed) return;
    p->stalled_s = 0;
    for (int32_t v = 0; v < n_visits; v++) p->stalled_s += p->stalls_s[v] = p->clock.stalls_s[v];
}

/* Moves less near a visit before which the step waits, the longer the more often: a cell there or a
 * few visits before, whose copies are in the way, is kept, recomputed, or a tile less; 0: nothing
 * is different. */
MEMOI int memoi_rows_relieve(memoi_rows_planner* p) {
    const memob_swap_placement* order = &p->clock.order;
    const int32_t before = (int32_t)memoi_rows_random(p, MEMOI_ROWS_RELIEVED);
    const int64_t which = memoi_rows_random(p, 3);
    int32_t b = (int32_t)memoi_rows_random(p, p->n_bundles), layer, n = p->n_bundles;
    double left_s = p->stalled_s * (double)memoi_rows_random(p, 1 << 20) / (1 << 20);
    const int64_t* cells = p->trial.cells;
    int64_t at, next;
    int32_t v = 0;
    while (v < order->n_visits - 1 && (left_s -= p->stalls_s[v]) >= 0) v++;
    layer = order->visits[(v + order->n_visits - before) % order->n_visits].layer;

    /* The next bundle that moves there. */
    while (n > 0 && cells[(int64_t)b * p->n_layers + layer] <= 0) b = (b + 1) % p->n_bundles, n--;
    if (!n) return 0;
    at = (int64_t)b * p->n_layers + layer;
    next = which ? MEMO_ROWS_KEPT : 0;
    if (which == 2) next = cells[at] - 1;
    if (!memoi_rows_set_cell(p, at, next)) return 0;
    p->n_changed = 1;
    p->changed[0] = layer;
    return 1;
}

/* Changes one bundle of the trial in one, some or all of the layers picked; 0: nothing is
 * different. */
MEMOI int memoi_rows_change(memoi_rows_planner* p) {
    const int is_any = !memoi_rows_random(p, 4);
    const int32_t other = (int32_t)memoi_rows_random(p, p->n_layers);
    memoi_rows_pick pick;
    if (p->stalled_s > 0 && !p->is_uniform && !memoi_rows_random(p, 3))
        return memoi_rows_relieve(p);
    memoi_rows_choose(p, is_any, 0, &pick);
    if (!p->is_uniform && !memoi_rows_random(p, 8)) return memoi_rows_exchange(p, pick.b);
    switch (memoi_rows_random(p, 4)) {
    case 0: pick.next = memoi_rows_random(p, p->n_tiles + 1); break;
    case 1: pick.next = p->trial.cells[(int64_t)pick.b * p->n_layers + other]; break;
    default: break;
    }
    switch (is_any || p->is_uniform || !pick.n_layers ? 2 : memoi_rows_random(p, 3)) {
    case 0: return memoi_rows_convert(p, &pick, 1);
    case 1: return memoi_rows_convert(p, &pick, 1 + memoi_rows_random(p, pick.n_layers));
    default: return memoi_rows_convert(p, &pick, pick.n_layers);
    }
}

/* Changes as many layers, or swaps as many more or fewer tiles in some layers, as the scored trial
 * has room for or lacks memory; 0: nothing is different. */
MEMOI int memoi_rows_refit(memoi_rows_planner* p) {
    const memo_swap_plan_desc* desc = p->desc;
    const memoi_rows_score* score = &p->trial.score;
    const int of_tiles = (int)memoi_rows_random(p, 2);
    const int is_same = p->n_changed && memoi_rows_random(p, 2);
    memoi_rows_pick pick;
    double least, most;
    memoi_rows_choose(p, of_tiles, is_same, &pick);
    most = (double)(of_tiles ? p->n_tiles : pick.n_layers);
    least = of_tiles ? -most : 0;

    /* A tile more in every layer takes two more of a region and one less to recompute.  With a file
     * more layers would spill. */
    for (int is_host = 0; is_host < (desc->spill_bytes ? 1 : 2); is_host++) {
        int64_t tiles = ((pick.next < 0) - (pick.cell < 0)) * p->n_tiles;
        const double capacity = (double)(is_host ? desc->host_bytes : desc->device_bytes);
        const double left =
            capacity - (is_host ? (double)score->sizes.host_bytes : score->device_bytes);
        double each;
        if (is_host) tiles = memob_max(pick.next, 0) - memob_max(pick.cell, 0);
        if (of_tiles) tiles = is_host ? pick.n_layers : 1;
        each = (double)(p->bundles[pick.b].row_bytes * memob_swap_tile_rows(desc->swap)) *
               (double)tiles;
        if (!(capacity > 0)) continue;
        p->meets_host |= is_host && ((each > 0 && floor(left / each) < most) ||
                                     (each < 0 && ceil(left / each) > least));
        if (each > 0) most = fmin(most, floor(left / each));
        if (each < 0) least = fmax(least, ceil(left / each));
    }
    if (!of_tiles) return memoi_rows_convert(p, &pick, (int64_t)(least > 0 ? least : most));
    pick.more = (int64_t)fmax(least, most);
    return pick.more && memoi_rows_convert(p, &pick, pick.n_layers);
}

/* Tries a change of p->here, and takes it if it is better, or longer by at most a share.
 * Otherwise nothing is undone: the next call copies p->here again.  memoi_rows_try takes the best
 * table. */
MEMOI void memoi_rows_try_change(memoi_rows_planner* p, double heat) {
    const memoi_rows_score *here = &p->here.score, *trial = &p->trial.score;
    int is_changed = 0;
    int64_t k;
    p->is_timed = 0;
    memoi_rows_set_enough(p, here, here->step_s * (1 + heat));
    memoi_rows_copy(p, &p->here, &p->trial);
    p->n_changed = 0;
    for (k = 1 + memoi_rows_random(p, 3); k > 0; k--) is_changed |= memoi_rows_change(p);
    if (is_changed) (void)memoi_rows_try(p);

    /* Another bundle takes the room that is left, or makes the room that lacks. */
    k = memoi_rows_random(p, 4) && trial->excess_bytes < MEMOI_ROWS_IMPOSSIBLE ? 4 : 0;
    while (k > 0 && !memoi_rows_refit(p)) k--;
    if (k > 0) (void)memoi_rows_try(p);
    if (memoi_rows_is_better(trial, here) ||
        (trial->excess_bytes <= 0 && trial->step_s <= here->step_s * (1 + heat))) {
        memoi_rows_copy(p, &p->trial, &p->here);
        memoi_rows_note_stalls(p);
    }
}

/* What a cell of the best table may become: kept, swapped, recomputed, a tile less or more. */
#define MEMOI_ROWS_NEXTS 5

/* Gives a cell of the trial another one of these; 0: the layer may not have it. */
MEMOI int memoi_rows_change_cell(memoi_rows_planner* p, int64_t change) {
    const int64_t at = change / MEMOI_ROWS_NEXTS, which = change % MEMOI_ROWS_NEXTS;
    const int64_t cell = p->trial.cells[at];
    const int64_t nexts[MEMOI_ROWS_NEXTS] = {MEMO_ROWS_KEPT, p->n_tiles, 0, cell - 1, cell + 1};
    const int64_t next = nexts[which];
    if (next == cell || (which > 2 && (next <= 0 || next >= p->n_tiles))) return 0;
    return memoi_rows_set_cell(p, at, next);
}

/* Tries the next change of one or two cells of p->best: first all alone, then all pairs, those of
 * near cells first.  *n_seen counts them from the last on that was better.  Returns 0 after all:
 * then the table is the best of those around it, of which a random walk may miss some.  Only small
 * tables come so far. */
MEMOI int memoi_rows_try_pair(memoi_rows_planner* p, int64_t* n_seen) {
    const int64_t n = MEMOI_ROWS_NEXTS * p->n_cells;
    memoi_rows_set_enough(p, &p->best.score, 0);
    for (int k = 0; k < 64 && *n_seen / n <= n / 2; k++) { /* those that may not be take time too */
        const int64_t one = *n_seen % n, apart = *n_seen / n, other = (one + apart) % n;
        ++*n_seen;
        if (apart && one / MEMOI_ROWS_NEXTS == other / MEMOI_ROWS_NEXTS) continue;
        memoi_rows_copy(p, &p->best, &p->trial);
        if (!memoi_rows_change_cell(p, one)) continue;
        if (apart && !memoi_rows_change_cell(p, other)) continue;
        if (memoi_rows_try(p)) *n_seen = 0;
        return 1;
    }
    return *n_seen / n <= n / 2;
}

/* Changes what tables may take.  What is known of them counts on, unless host memory is the number
 * of places in front of a file. */
MEMOI void memoi_rows_set_desc(memoi_rows_planner* p, const memo_swap_plan_desc* desc) {
    const int64_t places_bytes = p->desc->spill_bytes ? p->desc->host_bytes : 0;
    if (places_bytes != (desc->spill_bytes ? desc->host_bytes : 0)) p->times_version++;
    p->desc = p->clock.desc = desc;
}

/* A round of pairs, or of random changes.  It ends early if p->best is good enough, or the best of
 * all. */
MEMOI void memoi_rows_walk(memoi_rows_planner* p, int64_t* n_seen, double heat, int64_t n_trials) {
    const memoi_rows_score* best = &p->best.score;
    for (int64_t i = 0; i < n_trials; i++) {
        const double left = 1 - (double)i / (double)n_trials;
        if (p->aim.effort && best->excess_bytes <= 0) return;
        if (best->excess_bytes + best->stall_s + best->recompute_s + best->swapped_bytes +
                best->lifted_bytes <=
            0)
            return;
        if (!n_seen)
            memoi_rows_try_change(p, heat * left * left);
        else if (!memoi_rows_try_pair(p, n_seen))
            return;
    }
}

/* 1: a round has made p->best nearer to what fits, or shorter. */
MEMOI int memoi_rows_gains(const memoi_rows_planner* p, double excess_bytes, double step_s) {
    const memoi_rows_score* best = &p->best.score;
    if (best->excess_bytes > 0) return best->excess_bytes < excess_bytes;
    return excess_bytes > 0 || best->step_s < step_s * (1 - MEMOI_ROWS_GAIN);
}

/* Betters p->best in rounds, which begin with it, until several in turn gain nothing.
 *
 * Longer steps are accepted too, less and less in a round, and much longer ones in some rounds: a
 * table of few layers is far from others that are as good.  Tables that do not fit are accepted
 * only on the way from one that fits less.  Some rounds try pairs in turn.  In some rounds of a
 * whole search tables may take 1/16 or 1/8 less host memory than the best: a limit that is near
 * leads elsewhere.  n_parts: makes so small a part of the trials. */
MEMOI void memoi_rows_search(memoi_rows_planner* p, int n_parts) {
    static const double hotter[] = {0.03, 0.3, 3}; /* in rounds by turns */
    const memo_swap_plan_desc* wide = p->desc;
    const memob_states* states = p->clock.states;
    memo_swap_plan_desc narrow = *wide;
    const int64_t n_states = states ? (int64_t)states->n_layers * states->n_states : 0;
    const int64_t n_cells = (int64_t)p->clock.order.n_visits / 2 * p->desc->swap->n_tensors +
                            6 * n_states; /* three passes of two steps */
    const int64_t n_looks = memob_max(MEMOI_ROWS_LOOKS_MAX / n_cells, MEMOI_ROWS_TRIALS_LEAST);
    const int64_t n_most = memob_min(MEMOI_ROWS_TRIALS_MAX / n_parts, MEMOI_ROWS_TRIALS_WHOLE);
    const int64_t n_trials = memob_min(n_looks / n_parts, n_most) / MEMOI_ROWS_ROUNDS + 2;
    const int is_whole = n_parts == 1 && p->aim.effort == MEMOI_ROWS_EFFORT_WHOLE;
    const int most_quiet =
        n_looks < MEMOI_ROWS_TRIALS_WHOLE ? MEMOI_ROWS_QUIET_SHORT : MEMOI_ROWS_QUIET;
    int64_t n_seen = 0;

    for (int round = 0, n_quiet = 0;
         round < MEMOI_ROWS_ROUNDS && n_quiet < most_quiet && p->n_bundles; round++) {
        const double excess_bytes = p->best.score.excess_bytes, step_s = p->best.score.step_s;
        const double heat = memoi_rows_later(
            MEMOI_ROWS_HEAT, hotter[round % 3] * MEMOI_ROWS_HEAT_LAYER / p->n_layers);
        const int is_of_pairs = !p->is_uniform && round % MEMOI_ROWS_CYCLE == MEMOI_ROWS_CYCLE - 1;
        memoi_rows_copy(p, &p->best, &p->trial);
        narrow.host_bytes =
            p->best.score.sizes.host_bytes / 16 * (15 - round / MEMOI_ROWS_CYCLE % 2);
        if (is_whole && round % MEMOI_ROWS_CYCLE == 1 && excess_bytes <= 0 && narrow.host_bytes) {
            memoi_rows_set_desc(p, &narrow);
            memoi_rows_time_all(p);
            memoi_rows_score_trial(p);
        }
        memoi_rows_copy(p, &p->trial, &p->here);
        memoi_rows_walk(p, is_of_pairs ? &n_seen : NULL, heat, n_trials);
        if (p->desc != wide) memoi_rows_set_desc(p, wide);
        n_quiet = memoi_rows_gains(p, excess_bytes, step_s) ? 0 : n_quiet + 1;
    }
    memoi_rows_time_all(p);
}

/* The trial becomes the table of an alpha. */
MEMOI void memoi_rows_set_alpha(memoi_rows_planner* p, int64_t tiles) {
    memo_swap_desc swap = *p->desc->swap;
    swap.rows = NULL;
    swap.alpha = (double)tiles / (double)p->n_tiles;
    memoi_rows_take(p, &swap);
}

/* Tries all alphas of whole tiles if they are few; otherwise about 64, then some near the best.
 * Returns the tiles of the best, which p->best becomes. */
MEMOI int64_t memoi_rows_try_alphas(memoi_rows_planner* p) {
    int64_t low = 0, high = p->n_tiles, step = p->n_tiles / 64 + 1, best = 0;
    p->best.score.excess_bytes = MEMOI_ROWS_WORST;
    for (;; step = memob_max(step / 16, 1)) {
        for (int64_t k = low; k < high + step; k += step) {
            memoi_rows_set_alpha(p, memob_min(k, high));
            memoi_rows_set_enough(p, &p->best.score, 0);
            if (memoi_rows_try(p)) best = memob_min(k, high);
            memoi_rows_time_all(p);
        }
        if (step == 1) return best;
        low = memob_max(best - step, 0);
        high = memob_min(best + step, p->n_tiles);
    }
}

/* The trial becomes p->here with so many layers more of which the bundle has the next cell; 0:
 * nothing is different. */
MEMOI int memoi_rows_take_more(memoi_rows_planner* p, memoi_rows_pick* pick, int64_t count) {
    const int64_t* cells = &p->trial.cells[(int64_t)pick->b * p->n_layers];
    memoi_rows_copy(p, &p->here, &p->trial);
    pick->n_layers = 0;
    for (int32_t layer = 0; layer < p->n_layers; layer++)
        if (cells[layer] >= 0 && cells[layer] < p->n_tiles) p->picked[pick->n_layers++] = layer;
    return memoi_rows_convert(p, pick, count);
}

/* 1: one layer more exceeds the capacities.  Then so do several, but for all, whose buffer goes. */
MEMOI int memoi_rows_lacks_room(memoi_rows_planner* p, memoi_rows_pick* pick) {
    const uint64_t random = p->random;
    const int is_taken = memoi_rows_take_more(p, pick, 1);
    p->random = random;
    if (is_taken) (void)memoi_rows_try(p);
    return is_taken && p->trial.score.excess_bytes > 0;
}

/* p->here: from the trial on, bundles are swapped or kept instead of recomputed, those of most
 * worth first: in all layers; if that is not better, in half as many, and so on. */
MEMOI void memoi_rows_fill_by_worth(memoi_rows_planner* p) {
    memoi_rows_pick pick;
    memset(&pick, 0, sizeof pick);
    memoi_rows_copy(p, &p->trial, &p->here);
    for (int32_t i = 0; i < 2 * p->n_bundles; i++) {
        int is_full = 0, is_known = p->here.score.excess_bytes > 0; /* that it is full */
        pick.next = i % 2 ? MEMO_ROWS_KEPT : p->n_tiles;
        pick.b = p->by_worth[i / 2];
        for (int64_t count = p->n_layers; count > 0;) {
            memoi_rows_set_enough(p, &p->here.score, p->here.score.step_s);
            if (memoi_rows_take_more(p, &pick, count) && !is_full) (void)memoi_rows_try(p);
            if (!is_full && memoi_rows_is_better(&p->trial.score, &p->here.score)) {
                memoi_rows_copy(p, &p->trial, &p->here);
            } else {
                count /= 2;
                if (!is_known && p->trial.score.excess_bytes > 0)
                    is_known = 1, is_full = memoi_rows_lacks_room(p, &pick);
            }
            memoi_rows_time_all(p);
        }
    }
}

/* 1 if no table fits: the rows that cannot be recomputed exceed all budgets together. */
MEMOI int memoi_rows_is_hopeless(const memoi_rows_planner* p) {
    const memo_swap_plan_desc* desc = p->desc;
    double n_bytes = 0;
    if (!desc->device_bytes || !desc->host_bytes) return 0;
    for (int32_t b = 0; b < p->n_bundles; b++) {
        if (desc->swap->tensors[p->bundles[b].leader].scope == MEMO_CARRIED) continue;
        for (int32_t layer = 0; layer < p->n_layers; layer++) {
            const memoi_rows_rule rule = p->rules[(int64_t)b * p->n_layers + layer];
            if (rule == MEMOI_RULE_MOVE || rule == MEMOI_RULE_KEEP)
                n_bytes += (double)p->bundles[b].row_bytes *
                           (double)memob_swap_rows_of_tiles(desc->swap, layer, p->n_tiles);
        }
    }
    return n_bytes >
           (double)desc->device_bytes + (double)desc->host_bytes + (double)desc->spill_bytes;
}

/* p->best: the best table found, from the best so far, or from a table that needs little memory:
 * all is recomputed; what cannot be is kept or swapped. */
MEMOI void memoi_rows_find_table(memoi_rows_planner* p, int n_parts) {
    for (int way = 1; way >= 0; way--) {
        for (int64_t i = 0; i < p->n_bundles; i++) p->trial.versions[i] = ++p->n_versions;
        for (int64_t i = 0; i < p->n_cells; i++) {
            int64_t cell = MEMO_ROWS_KEPT;
            if (p->rules[i] == MEMOI_RULE_MOVE && !way) cell = p->n_tiles;
            if (memoi_rule_recomputes(p->rules[i])) cell = 0;
            p->trial.cells[i] = cell;
        }
        (void)memoi_rows_try(p);
    }
    if (memoi_rows_is_hopeless(p)) p->meets_host = 1;
    if (memoi_rows_is_hopeless(p) || (p->aim.effort && p->best.score.excess_bytes <= 0)) return;
    memoi_rows_fill_by_worth(p);
    memoi_rows_search(p, n_parts);
}
