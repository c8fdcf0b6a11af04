/* memo_pack.h - offsets for puzzles: engines that memo_plan_solve takes if this header is included
 * before the implementation of memo_plan.h.
 *
 * The planner of memo_plan.h alone proves the plans of most programs.  This header adds what helps
 * where no byte may stay free, and the purchase of waits between streams.
 *
 * EXAMPLE.  The program of memo_plan.h, with another include.
 *
 *     #define MEMO_IMPLEMENTATION             // in exactly one translation unit
 *     #define MEMO_PLAN_IMPLEMENTATION        // in the same unit
 *     #include "extras/memo_pack.h"           // includes memo_plan.h; link with -lpthread -lm
 *
 *     int main(void) {
 *         memo_plan* plan = NULL;
 *         memo_error error;
 *         memo_status status = memo_plan_read("puzzle.plan", &plan, &error);
 *         if (!status) status = memo_plan_solve(plan, NULL, &error);
 *         if (!status) printf("%lld bytes\n", (long long)plan->peak_bytes);
 *         if (status) fprintf(stderr, "%s\n", error.message);
 *         memo_plan_destroy(plan);
 *         return status != MEMO_STATUS_OK;
 *     }
 *
 * CHAPTERS: the rooms below, each an engine or a way to run the exact search.
 *
 * A part of memo_plan.h's implementation, of the same release, without public functions.
 *
 * License: MIT.  Language: C99 that is also C++11. */
#ifndef MEMO_PACK_H
#define MEMO_PACK_H

#if defined(MEMO_PLAN_IMPLEMENTATION_DONE)
#error "memo_pack.h: include it before the implementation of memo_plan.h, which takes its engines"
#endif

#define MEMO_PACK
#include "memo_plan.h"

#if MEMO_VERSION_MAJOR != 0 || MEMO_VERSION_MINOR != 5
#error "memo_pack.h: memo.h is of another release; use the memo.h of the same release"
#endif

/* ==== implementation ======================================================================== */

/* ROOMS, each with the words to search for.
 *     >>sweep                a plan at once, in order of time, for very many buffers
 *     >>side by side         several searches on threads (memo_plan_desc.n_threads)
 *     >>cores                a few items that decide whether a capacity is too small
 *     >>windows              a large plan is improved where it is highest
 *     >>bricks               items that fill a rectangle become one: for tilings
 *     >>bought waits         which of the waits on offer a plan buys (memo_plan_desc.offers) */
#ifdef MEMO_PLAN_IMPLEMENTATION_DONE

/* --- >>sweep ---
 * Knows: what lives now, and when it ends.  Knows nothing of what comes later.
 *
 * A plan at once, exact where memory is scarcest.  The items of the fullest section form a stack,
 * the first to end at the bottom.  From there a pass goes forward in time, and another pass
 * backward, as if time were mirrored.  Each item goes into a hole between live items, beside the
 * item whose end is closest to its own: items that end together leave a single hole.  The smaller
 * the rest of the hole, the better.  Every item stays above all fixed items.
 *
 * Holes of similar size are in one bin, and a step looks at a bounded number of holes.
 *
 * 1. Live items are linked both ways, and none reaches into the next. */

enum { MEMOI_SWEEP_BINS = 512, MEMOI_SWEEP_LOOKS = 128 };

/* A live item, by address.  The hole below it, if there is one, is in a bin. */
typedef struct memoi_tenant {
    int32_t below, above;
    int32_t previous, next; /* in the bin; -1: none */
    int32_t end;            /* a section, in the direction of the pass */
} memoi_tenant;

typedef struct memoi_sweep {
    const memoi_problem* problem;
    int64_t* offsets;
    memob_keyed *stack, *begins, *ends;
    int64_t n_stack;
    double near; /* share of a life within which ends are near; the cost of others is quadratic */
    memoi_tenant* blocks; /* of an item; the last one is below the lowest and above the highest */
    int32_t bins[MEMOI_SWEEP_BINS]; /* the first of each, or -1 */
} memoi_sweep;

/* Eight bins for each power of two. */
MEMOI int memoi_sweep_bin(int64_t size) {
    int shift = 0;
    while (size >> shift >= 16) shift++;
    return 8 * shift + (int)(size >> shift);
}

/* The hole below an item; the last block has one below the bound. */
MEMOI memoi_range memoi_sweep_hole(const memoi_sweep* sweep, int32_t i) {
    const memoi_problem* problem = sweep->problem;
    const int32_t below = sweep->blocks[i].below, n = (int32_t)problem->n_items;
    memoi_range hole;
    hole.begin = below == n ? problem->ground : sweep->offsets[below] + problem->items[below].size;
    hole.end = i < n ? sweep->offsets[i] : memob_align_up(problem->lower_bound, problem->step);
    return hole;
}

/* Puts the hole below an item into its bin, or takes it out. */
MEMOI void memoi_sweep_list(memoi_sweep* sweep, int32_t i, int is_new) {
    memoi_tenant* block = &sweep->blocks[i];
    const memoi_range hole = memoi_sweep_hole(sweep, i);
    int32_t* first;
    if (hole.end <= hole.begin) return;
    first = &sweep->bins[memoi_sweep_bin(hole.end - hole.begin)];
    if (is_new) {
        block->previous = -1;
        block->next = *first;
        *first = i;
        if (block->next >= 0) sweep->blocks[block->next].previous = i;
    } else {
        if (block->next >= 0) sweep->blocks[block->next].previous = block->previous;
        *(block->previous >= 0 ? &sweep->blocks[block->previous].next : first) = block->next;
    }
}

MEMOI void memoi_sweep_put(memoi_sweep* sweep, int32_t i, int32_t above, int64_t offset) {
    const int32_t below = sweep->blocks[above].below;
    MEMO_ASSERT(sweep->blocks[below].above == above);            /* 1 */
    MEMO_ASSERT(offset >= memoi_sweep_hole(sweep, above).begin); /* 1 */
    memoi_sweep_list(sweep, above, 0);
    sweep->offsets[i] = offset;
    sweep->blocks[i].below = below;
    sweep->blocks[i].above = above;
    sweep->blocks[below].above = sweep->blocks[above].below = i;
    memoi_sweep_list(sweep, i, 1);
    memoi_sweep_list(sweep, above, 1);
}

MEMOI void memoi_sweep_free(memoi_sweep* sweep, int32_t i) {
    const int32_t below = sweep->blocks[i].below, above = sweep->blocks[i].above;
    memoi_sweep_list(sweep, i, 0);
    memoi_sweep_list(sweep, above, 0);
    sweep->blocks[below].above = above;
    sweep->blocks[above].below = below;
    memoi_sweep_list(sweep, above, 1);
}

/* Places an item into the best of the smallest holes.  An item that fits no hole, or is stacked,
 * goes on top of all live items. */
MEMOI void memoi_sweep_place(memoi_sweep* sweep, int32_t i, int is_stacked) {
    const memoi_item* item = &sweep->problem->items[i];
    int32_t above = (int32_t)sweep->problem->n_items, k, looks = 0;
    int64_t offset = memob_align_up(memoi_sweep_hole(sweep, above).begin, item->alignment);
    int bin = is_stacked ? MEMOI_SWEEP_BINS : memoi_sweep_bin(item->size), side;
    const double near = sweep->near * (double)(item->until - item->begin);
    double least = HUGE_VAL;

    /* The hole and the side with the least cost: an end near the neighbor's, little left over. */
    for (; bin < MEMOI_SWEEP_BINS && looks < MEMOI_SWEEP_LOOKS; bin++) {
        for (k = sweep->bins[bin]; k >= 0 && looks < MEMOI_SWEEP_LOOKS; k = sweep->blocks[k].next) {
            const memoi_range hole = memoi_sweep_hole(sweep, k);
            const int64_t low = memob_align_up(hole.begin, item->alignment);
            const int64_t high = (hole.end - item->size) / item->alignment * item->alignment;
            if (low + item->size > hole.end) continue;
            for (side = 0; side < 2; side++, looks++) {
                const int32_t neighbor = side ? k : sweep->blocks[k].below;
                double apart =
                    fabs((double)sweep->blocks[neighbor].end - (double)sweep->blocks[i].end);
                double rest = (double)(hole.end - hole.begin - item->size + item->size / 64 + 1);
                double cost = (apart * (apart > near ? apart : near) + 1) * rest;
                if (cost >= least) continue;
                least = cost;
                above = k;
                offset = side ? high : low;
            }
        }
    }
    memoi_sweep_put(sweep, i, above, offset);
}

/* Stacks the items of a section, and places all that begin behind it, in their order. */
MEMOI void memoi_sweep_pass(memoi_sweep* sweep, int64_t section, int is_backward) {
    const memoi_problem* problem = sweep->problem;
    const int64_t n = problem->n_items, n_sections = problem->n_sections;
    const int64_t from = is_backward ? n_sections - 1 - section : section;
    memob_keyed *begins = sweep->begins, *ends = sweep->ends;
    memoi_tenant* last = &sweep->blocks[n];
    int64_t n_free = 0, over = 0;
    for (int64_t i = 0; i < n; i++) {
        const memoi_item* item = &problem->items[i];
        if (item->fixed >= 0) continue;
        begins[n_free] = memob_keyed_of(is_backward ? n_sections - item->until : item->begin, i);
        ends[n_free] = memob_keyed_of(is_backward ? n_sections - item->begin : item->until, i);
        sweep->blocks[i].end = (int32_t)ends[n_free++].key;
    }
    memob_keyed_sort(begins, n_free);
    memob_keyed_sort(ends, n_free);
    memset(sweep->bins, -1, sizeof sweep->bins);
    last->below = last->above = (int32_t)n;
    last->end = INT32_MAX;
    memoi_sweep_list(sweep, (int32_t)n, 1);
    for (int64_t k = 0; k < sweep->n_stack; k++)
        memoi_sweep_place(sweep, (int32_t)sweep->stack[k].index, 1);

    /* Items that end at a section are over before others begin there. */
    while (over < n_free && ends[over].key <= from) over++;
    for (int64_t k = 0; k < n_free; k++) {
        if (begins[k].key <= from) continue;
        for (; ends[over].key <= begins[k].key; over++)
            memoi_sweep_free(sweep, (int32_t)ends[over].index);
        memoi_sweep_place(sweep, (int32_t)begins[k].index, 0);
    }
}

/* Sets all offsets.  near: 0, or a share of an item's life (memoi_sweep).  0: no memory. */
MEMOI int memoi_sweep_run(const memoi_problem* problem, double near, int64_t* offsets) {
    const int64_t n = problem->n_items;
    int64_t fullest = 0;
    int ok;
    memob_arrays a = MEMO_ZERO(memob_arrays);
    memoi_sweep sweep;
    memset(&sweep, 0, sizeof sweep);
    sweep.problem = problem;
    sweep.near = near;
    sweep.offsets = offsets;

    sweep.stack = MEMOB_ARRAY(&a, memob_keyed, n);
    sweep.begins = MEMOB_ARRAY(&a, memob_keyed, n);
    sweep.ends = MEMOB_ARRAY(&a, memob_keyed, n);
    sweep.blocks = MEMOB_ARRAY(&a, memoi_tenant, n + 1);
    ok = !a.failed;
    if (ok) {
        for (int64_t i = 1; i < problem->n_sections; i++)
            if (problem->section_bounds[i] > problem->section_bounds[fullest]) fullest = i;
        for (int64_t i = 0; i < n; i++) {
            const memoi_item* item = &problem->items[i];
            offsets[i] = item->fixed;
            if (item->fixed >= 0 || item->begin > fullest || item->until <= fullest) continue;
            sweep.stack[sweep.n_stack++] = memob_keyed_of(item->until, i);
        }

        memob_keyed_sort(sweep.stack, sweep.n_stack);
        memoi_sweep_pass(&sweep, fullest, 0);
        memoi_sweep_pass(&sweep, fullest, 1);
    }
    memob_arrays_free(&a);
    return ok;
}

/* Two sweeps; only the first if its plan meets the target, or time is up. */
MEMOI memo_status memoi_pack_sweep(const memoi_problem* problem, int64_t target,
                                   const memoi_deadline* clock, memoi_solution* best,
                                   memo_error* error) {
    static const double near[] = {0, 0.125}; /* queues; lives of any length */
    int64_t* offsets = (int64_t*)memob_calloc(problem->n_items, sizeof(int64_t));
    int ok = offsets != NULL;
    for (int k = 0; ok && k < 2 && !MEMOI_WITHOUT(sweep); k++) {
        if (k > 0 && (best->peak <= target || memoi_deadline_is_over(clock))) break;
        ok = memoi_sweep_run(problem, near[k], offsets);
        if (ok) memoi_solution_offer(problem, offsets, best);
    }
    MEMO_FREE(offsets);
    return ok ? MEMO_STATUS_OK : memob_no_memory(error, "sweeps");
}

/* --- >>side by side ---
 * Knows: threads.  Knows nothing of how one search decides.
 *
 * Several searches within a capacity, one per thread, with random numbers of its own.  The
 * first run is alone, because most attempts end with the first run, sooner than a thread starts.
 *
 * The answer comes from the search that needed the fewest nodes.  Every other search stops at that
 * number of nodes, takes over the weights of sections of that search, and keeps its random numbers.
 * So the answer depends only on seed, budget and number of threads.
 *
 * 1. The earliest answer is that of one search. */

enum { MEMOI_THREAD_STACK_BYTES = 1 << 26 };

typedef struct memoi_team {
    memoi_search* searches[MEMOI_THREADS]; /* the first is the caller's */
    int64_t n;
} memoi_team;

MEMOI void memoi_team_free(memoi_team* team) {
    for (int64_t k = 1; k < team->n; k++) {
        memoi_search_free(team->searches[k]);
        MEMO_FREE(team->searches[k]);
    }
}

/* Adds searches to the first, up to n.  0: no memory. */
MEMOI int memoi_team_create(memoi_team* team, memoi_search* first, int64_t n) {
    team->searches[0] = first;
    for (team->n = 1; team->n < n;) {
        memoi_search* made = (memoi_search*)memob_calloc(1, sizeof(memoi_search));
        team->searches[team->n] = made;
        if (!made) return 0;
        if (memoi_search_create(made, first->problem, first->random + (uint64_t)team->n,
                                first->clock) != MEMOI_MADE) {
            team->n++;
            return 0;
        }
        made->place = team->n++;
    }
    return 1;
}

/* Runs until there is an answer or the budget is spent, and says when the answer came. */
MEMOI void* memoi_team_work(void* of) {
    memoi_search* search = (memoi_search*)of;
    int64_t now, answered;
    while (memoi_search_run(search)) continue;
    if (search->verdict == MEMOI_STOPPED) return NULL;
    now = memoi_search_moment(search);
    answered = __atomic_load_n(search->answered, __ATOMIC_RELAXED);
    while (now < answered && !__atomic_compare_exchange_n(search->answered, &answered, now, 0,
                                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        continue;
    return NULL;
}

/* Runs all searches to their end.  A search without a thread of its own runs last, on the calling
 * thread. */
MEMOI void memoi_team_runs(memoi_team* team) {
#ifndef MEMO_NO_HOST_DEVICE
    pthread_t threads[MEMOI_THREADS];
    char is_started[MEMOI_THREADS] = {0};
    for (int64_t k = 1; k < team->n; k++)
        is_started[k] = !memob_thread_create(&threads[k], MEMOI_THREAD_STACK_BYTES, memoi_team_work,
                                             team->searches[k]);
    memoi_team_work(team->searches[0]);
    for (int64_t k = 1; k < team->n; k++) {
        if (is_started[k])
            pthread_join(threads[k], NULL);
        else
            memoi_team_work(team->searches[k]);
    }
#else
    for (int64_t k = 0; k < team->n; k++) memoi_team_work(team->searches[k]);
#endif
}

/* Attempts a capacity.  Returns the search that answered, or NULL; *n_nodes: spent, by the thread
 * that spent most. */
MEMOI const memoi_search* memoi_team_attempt(memoi_team* team, int64_t capacity, int64_t budget,
                                             int64_t* n_nodes) {
    const memoi_search* first = NULL;
    uint64_t random[MEMOI_THREADS];
    int64_t answered = INT64_MAX, k;
    for (k = 0; k < team->n; k++) {
        memoi_search_begin(team->searches[k], capacity, budget);
        team->searches[k]->answered = &answered;
        random[k] = team->searches[k]->random;
    }

    if (memoi_search_run(team->searches[0]))
        memoi_team_runs(team);
    else if (team->searches[0]->verdict != MEMOI_STOPPED)
        answered = memoi_search_moment(team->searches[0]);
    for (k = 0, *n_nodes = 0; k < team->n && !first; k++) {
        const memoi_search* search = team->searches[k];
        const int64_t n_own = search->n_nodes - search->node_begin;
        *n_nodes = memob_max(*n_nodes, n_own);
        if (search->verdict == MEMOI_STOPPED || memoi_search_moment(search) != answered) continue;
        first = search;
        *n_nodes = n_own;
    }
    MEMO_ASSERT(first || answered == INT64_MAX); /* 1 */

    /* So the result does not depend on timing. */
    for (k = 0; k < team->n; k++) {
        memoi_search* search = team->searches[k];
        search->answered = NULL;
        if (!first || search == first) continue;
        search->random = random[k];
        memcpy(search->weight, first->weight, (size_t)search->problem->n_sections * sizeof(double));
    }
    return first;
}

/* --- >>cores ---
 * Knows: the exact search and first fit.  Knows nothing of lower bounds.
 *
 * A few items often decide that a capacity is too small, and a search of these items alone is
 * faster.  A *core* is such a set, and begins with the fixed items.  If the core has a plan within
 * the capacity, all other items go around the core by first fit.  An item that does not fit joins
 * the core, and the core is searched again.  If the core has no plan, neither has the whole.
 *
 * 1. An item joins the core once. */

typedef struct memoi_cores {
    const memoi_problem* problem;
    const memoi_deadline* clock;
    memob_arrays arrays;
    char* is_in;          /* the core, of an item */
    int64_t* offsets;     /* of items, -1: not placed */
    memoi_range* places;  /* scratch, two an item */
    memoi_ranked* ranked; /* items by size */
    int32_t* covered;     /* scratch of windows: sections */
    uint64_t seed;
} memoi_cores;

/* The caller frees the arrays, whether it succeeds or not. */
MEMOI int memoi_cores_create(memoi_cores* cores, const memoi_problem* problem, uint64_t seed,
                             const memoi_deadline* clock) {
    int64_t n = problem->n_items;
    memob_arrays* a = &cores->arrays;
    memset(cores, 0, sizeof *cores);
    cores->problem = problem;
    cores->clock = clock;
    cores->seed = seed;
    cores->is_in = (char*)memob_arrays_add(a, n, 1);
    cores->offsets = MEMOB_ARRAY(a, int64_t, n);
    cores->places = MEMOB_ARRAY(a, memoi_range, 2 * n);
    cores->ranked = MEMOB_ARRAY(a, memoi_ranked, n);
    cores->covered = MEMOB_ARRAY(a, int32_t, problem->n_sections + 1);
    if (a->failed) return 0;
    memoi_greedy_order_items(problem, MEMOI_ORDER_SIZE, NULL, cores->ranked);
    return 1;
}

/* Looks for a plan of the core, and sets the verdict and the offsets.  *n_nodes, the budget, loses
 * the nodes spent.  0: no memory. */
MEMOI int memoi_core_search(memoi_cores* cores, int64_t capacity, int64_t* n_nodes,
                            memoi_verdict* verdict) {
    memoi_problem part;
    memoi_search search;
    memoi_made made = MEMOI_NO_MEMORY;
    if (!memoi_problem_pick(cores->problem, cores->is_in, &part)) return 0;

    /* What has an offset is fixed there, and loses what lies above the capacity. */
    for (int64_t i = 0; i < part.n_items; i++) {
        memoi_item* item = &part.items[i];
        const int64_t offset = cores->offsets[item->origin];
        if (offset < 0) continue;
        part.n_fixed += item->fixed < 0;
        item->fixed = offset;
        if (item->size > capacity - offset) item->spare = 0;
        item->size = memob_min(item->size, capacity - offset);
    }
    part.ground = part.lower_bound = 0;
    *verdict = MEMOI_STOPPED;
    memset(&search, 0, sizeof search);
    if (memoi_sections_bounds(&part))
        made = memoi_search_create(&search, &part, cores->seed++, cores->clock);
    if (made == MEMOI_MADE) {
        *n_nodes -= memoi_search_attempt(&search, capacity, *n_nodes) + 1;
        *verdict = search.verdict;
        for (int64_t i = 0; *verdict == MEMOI_FOUND && i < part.n_items; i++)
            cores->offsets[part.items[i].origin] = search.minimum[i];
        if (search.is_out_of_memory) made = MEMOI_NO_MEMORY;
    }
    memoi_search_free(&search);
    memoi_problem_free(&part);
    return made != MEMOI_NO_MEMORY;
}

/* Is there a plan within the capacity?  *n_nodes, the budget, becomes what is spent.  0: no
 * memory. */
MEMOI int memoi_cores_attempt(memoi_cores* cores, int64_t capacity, int64_t* n_nodes,
                              memoi_verdict* verdict, memoi_solution* best) {
    int64_t left = *n_nodes, missing = 0;

    /* The core of another capacity is no guide: a small core is best. */
    for (int64_t i = 0; i < cores->problem->n_items; i++)
        cores->is_in[i] = cores->problem->items[i].fixed >= 0;
    for (*verdict = MEMOI_FOUND; *verdict == MEMOI_FOUND && missing >= 0 && left > 0;) {
        for (int64_t i = 0; i < cores->problem->n_items; i++) cores->offsets[i] = -1;
        if (!memoi_core_search(cores, capacity, &left, verdict)) return 0;
        if (*verdict == MEMOI_FOUND)
            missing = memoi_fit_run(cores->problem, cores->ranked, capacity, NULL, cores->places,
                                    cores->offsets);
        if (*verdict != MEMOI_FOUND || missing < 0) continue;
        MEMO_ASSERT(!cores->is_in[missing]); /* 1 */
        cores->is_in[missing] = 1;
    }
    if (*verdict == MEMOI_FOUND && missing >= 0) *verdict = MEMOI_STOPPED;
    if (*verdict == MEMOI_FOUND) memoi_solution_offer(cores->problem, cores->offsets, best);
    *n_nodes -= left;
    return 1;
}

typedef struct memoi_searches { /* what attempts have made */
    memoi_team team;
    memoi_cores cores; /* without a problem: none */
} memoi_searches;

MEMOI void memoi_pack_forget(struct memoi_exact* exact) {
    memoi_searches* s = (memoi_searches*)exact->pack;
    if (!s) return;
    memoi_team_free(&s->team);
    memob_arrays_free(&s->cores.arrays);
    MEMO_FREE(s);
}

/* Cores serve small problems that are not plain. */
MEMOI memoi_searches* memoi_searches_create(memoi_exact* exact) {
    const memoi_problem* problem = exact->search.problem;
    memoi_searches* s = (memoi_searches*)memob_calloc(1, sizeof *s);
    exact->pack = s;
    if (!s || !memoi_team_create(&s->team, &exact->search, exact->effort->n_threads)) return NULL;
    if (problem->n_items <= MEMOI_SMALL_ITEMS && !memoi_problem_is_plain(problem) &&
        !MEMOI_WITHOUT(cores) &&
        !memoi_cores_create(&s->cores, problem, exact->effort->seed, &exact->effort->clock))
        return NULL;
    return s;
}

/* With cores, a quarter of the nodes goes to the search of all items. */
MEMOI int memoi_pack_attempt(struct memoi_exact* exact, int64_t capacity, int64_t n_nodes) {
    memoi_searches* s = (memoi_searches*)exact->pack;
    const memoi_search* answer;
    memoi_verdict verdict = MEMOI_STOPPED;
    int64_t n_spent;
    if (!s) s = memoi_searches_create(exact);
    exact->search.is_out_of_memory |= !s;
    if (!s || (s->team.n == 1 && !s->cores.problem)) return -1;

    answer = memoi_team_attempt(&s->team, capacity, s->cores.problem ? (n_nodes + 3) / 4 : n_nodes,
                                &n_spent);
    memoi_effort_spend(exact->effort, n_spent);
    for (int64_t k = 0; k < s->team.n; k++)
        exact->search.is_out_of_memory |= s->team.searches[k]->is_out_of_memory;
    if (answer) verdict = answer->verdict;
    if (verdict == MEMOI_FOUND)
        memoi_solution_offer(exact->search.problem, answer->minimum, exact->best);

    /* If nothing is known, a core may tell. */
    if (!answer && s->cores.problem && !memoi_effort_is_over(exact->effort)) {
        n_spent = memob_min(n_nodes, exact->effort->nodes_left);
        if (!memoi_cores_attempt(&s->cores, capacity, &n_spent, &verdict, exact->best))
            exact->search.is_out_of_memory = 1;
        memoi_effort_spend(exact->effort, n_spent);
    }
    return (int)verdict;
}

/* --- >>windows ---
 * Knows: a plan of many items, and the exact search.  Knows nothing of how the plan was made.
 *
 * In a plan of many items few items lie above a capacity that is a little smaller.  A *window* is
 * the items that live only near such an item, and all items above the capacity at that time.  The
 * exact search places the items of a window again; all other items keep their offsets.
 *
 * 1. A window contains the highest item. */

enum { MEMOI_WINDOW_LISTED = 4096 }; /* items looked at for a window in the time of a node */

/* Lists the items of a window around a section, with offset -1, and all items that overlap the
 * window; returns how many.  On each side of the section the window has `lives` times as many
 * begins as items live at the section.  *n_least: nodes that placing all of them takes. */
MEMOI int64_t memoi_window_list(memoi_cores* cores, int64_t section, double lives, int64_t capacity,
                                const memoi_solution* best, double* n_least) {
    const memoi_problem* problem = cores->problem;
    int64_t n = problem->n_items, n_live = 0, n_open = 0, n_covered = 0, n_in = 0;
    int64_t begin, end, i, k;
    for (i = 0; i < n && problem->items[i].begin <= section; i++)
        n_live += problem->items[i].end > section;
    k = (int64_t)(lives * (double)n_live) + 1;
    begin = problem->items[memob_max(0, i - k)].begin;
    end = i + k < n ? problem->items[i + k].begin : problem->n_sections;

    /* The items, and the sections in which they live. */
    memset(cores->covered, 0, (size_t)(problem->n_sections + 1) * sizeof(int32_t));
    for (i = 0; i < n; i++) {
        const memoi_item* item = &problem->items[i];
        int is_over = memoi_item_top(item, best->offsets[i]) > capacity;
        cores->offsets[i] = best->offsets[i];
        if (item->fixed >= 0 || item->begin >= end || item->end <= begin ||
            (!is_over && (item->begin < begin || item->end > end)))
            continue;
        cores->offsets[i] = -1;
        for (k = item->first_range; k < item->first_range + item->n_ranges; k++) {
            cores->covered[problem->ranges[k].begin]++;
            cores->covered[problem->ranges[k].end]--;
        }
    }
    for (k = 0; k <= problem->n_sections; k++) { /* from changes to sections covered before */
        n_open += cores->covered[k];
        cores->covered[k] = (int32_t)n_covered;
        n_covered += n_open > 0;
    }

    /* The items of the window, and what overlaps these items within the capacity. */
    for (i = 0; i < n; i++) {
        const memoi_range* range = &problem->ranges[problem->items[i].first_range];
        for (k = 0; k < problem->items[i].n_ranges &&
                    cores->covered[range[k].begin] == cores->covered[range[k].end];)
            k++;
        cores->is_in[i] = k < problem->items[i].n_ranges && cores->offsets[i] < capacity;
        n_in += cores->is_in[i];
    }
    *n_least = (double)n_in + (double)n_covered * (double)n_live * (double)n_live /
                                  (2 * (double)MEMOI_SEARCH_LOOKS);
    return n_in;
}

/* Lowers the best plan to the capacity, window by window, the highest item first.  It gives up
 * after a few windows that fail, each twice the window before: items outside of a window may be the
 * reason.  Each window may spend the budget.  A window too large for the budget waits for a larger
 * budget.  0: no memory. */
MEMOI int memoi_windows_attempt(memoi_cores* cores, int64_t capacity, int64_t budget,
                                memoi_effort* effort, memoi_solution* best) {
    const double smallest = 2, largest = 8; /* reach of a window, in lives at its section */
    const memoi_problem* problem = cores->problem;
    int64_t left, k;
    double reach = smallest, lives, n_least;
    for (;;) {
        const memoi_item* item =
            &problem->items[memoi_solution_highest(problem, best->offsets, &best->peak)];
        memoi_verdict verdict;
        left = budget = memob_min(budget, effort->nodes_left);
        if (best->peak <= capacity || reach > largest || memoi_effort_is_over(effort)) return 1;

        /* A section of the item's life, at random.  A window of too many items is halved. */
        k = item->begin +
            (int64_t)(memob_random(&cores->seed) % (uint64_t)(item->end - item->begin));
        lives = reach;
        while (memoi_window_list(cores, k, lives, capacity, best, &n_least) > MEMOI_SEARCH_ITEMS &&
               lives >= 0.25)
            lives /= 2;
        if (1.5 * n_least > (double)budget) return 1;
        MEMO_ASSERT(cores->offsets[item - problem->items] < 0); /* 1 */
        if (!memoi_core_search(cores, capacity, &left, &verdict)) return 0;
        memoi_effort_spend(effort, budget - left + problem->n_items / MEMOI_WINDOW_LISTED);
        for (k = 0; verdict == MEMOI_FOUND && k < problem->n_items; k++)
            if (cores->is_in[k]) best->offsets[k] = cores->offsets[k];
        reach = verdict == MEMOI_FOUND ? smallest : 2 * reach;
    }
}

/* Lowers the best plan of a large problem a quarter of the way to the goal, and so on, with so many
 * nodes.  0: no memory. */
MEMOI int memoi_windows_solve(const memoi_problem* problem, uint64_t seed, int64_t goal,
                              int64_t n_nodes, memoi_effort* effort, memoi_solution* best) {
    memoi_cores cores;
    memoi_effort own = memoi_effort_take(effort, n_nodes);
    int64_t peak = INT64_MAX;
    int ok = memoi_cores_create(&cores, problem, seed, &effort->clock);
    while (ok && best->peak < peak && best->peak > goal && !memoi_effort_is_over(&own)) {
        peak = best->peak;
        ok = memoi_windows_attempt(&cores, goal + (peak - goal) / MEMOI_SHARE,
                                   n_nodes / MEMOI_SHARE, &own, best);
    }
    memoi_effort_spend(effort, own.n_nodes);
    memob_arrays_free(&cores.arrays);
    return ok;
}

/* --- >>bricks ---
 * Knows: lifetimes and sizes.  Knows nothing of offsets, or of what else lives at a time.
 *
 * Items become one *brick*, whose plan is theirs, if together they fill a rectangle:
 *   row      two of one size, the second from the end of the first on
 *   stack    some that live at the same time: the sizes add up
 *   pinwheel four around a fifth.  These are edges between four times: left and top from b, low and
 *            right to e, the fifth from the end of left, where low begins, to the end of top, where
 *            right begins; left = fifth + low, right = fifth + top
 * A plan that leaves no byte free often is such bricks of bricks, down to a single brick.
 *
 * If a single brick ends at a time, a brick of its size that begins there continues its row.  Two
 * rows may meet at one time by chance, and then sizes or lives that agree may mislead.  So a brick
 * that is as large as all that begins or ends at its time comes first.  Without such a brick a few
 * likely bricks are joined, in another order in each attempt: first the rows with the largest share
 * of what ends at their time, and the longest stacks.
 *
 * 1. A brick that is joined to another is no brick any more. */

enum {
    MEMOI_BRICKS_LISTED = 128, /* bricks listed in the time of a node */
    MEMOI_BRICKS_LEVEL = 33    /* per cent: bricks are for problems with so many level borders */
};

typedef struct memoi_join {
    int32_t kept, gone;
    int64_t above; /* offset of gone - that of kept */
} memoi_join;

typedef struct memoi_bricks {
    memoi_problem whole; /* with bricks in place of the first items of each */
    memob_arrays arrays;
    memob_map found; /* the last brick of a key */
    char* is_brick;
    int32_t* same;          /* the brick listed before that lives at the same time, or -1 */
    int64_t* sum;           /* total size of a brick and of the bricks chained by `same` */
    int64_t *begins, *ends; /* of a section: the sizes of all that begin or end there */
    memoi_join* joins;
    int64_t n_joins;
    uint64_t random;
} memoi_bricks;

typedef enum memoi_brick_key {
    MEMOI_BRICK_LIFE, /* of begin and end */
    MEMOI_BRICK_FROM, /* of begin and size */
    MEMOI_BRICK_TO    /* of end and size */
} memoi_brick_key;

MEMOI int64_t memoi_brick_hash(memoi_brick_key kind, int64_t time, int64_t other) {
    uint64_t hash = ((uint64_t)other * 0xc2b2ae3d27d4eb4fu + (uint64_t)time) * 3 + (uint64_t)kind;
    return (int64_t)(hash * 0xff51afd7ed558ccdu);
}

/* The last brick of a key, unless it was joined since; -1: none. */
MEMOI int64_t memoi_brick_find(const memoi_bricks* b, memoi_brick_key kind, int64_t time,
                               int64_t other) {
    const int64_t i = memob_map_get(&b->found, memoi_brick_hash(kind, time, other));
    const memoi_item* item = i < 0 || !b->is_brick[i] ? NULL : &b->whole.items[i];
    if (!item || (kind == MEMOI_BRICK_TO ? item->end : item->begin) != time) return -1;
    return (kind == MEMOI_BRICK_LIFE ? item->end : item->size) == other ? i : -1;
}

/* Is a brick with this key the one to find?  Of several with one key any may be. */
MEMOI int memoi_brick_is_found(memoi_bricks* b, memoi_brick_key kind, int64_t time, int64_t size) {
    return memoi_brick_find(b, kind, time, size) < 0 || memob_random(&b->random) % 2;
}

/* Lists all bricks.  0: no memory. */
MEMOI int memoi_bricks_list(memoi_bricks* b) {
    const int64_t n = b->whole.n_items, n_sections = b->whole.n_sections;
    memob_map* map = &b->found;
    int ok = 1;
    memob_map_free(map);
    memset(b->begins, 0, (size_t)(n_sections + 1) * sizeof(int64_t));
    memset(b->ends, 0, (size_t)(n_sections + 1) * sizeof(int64_t));
    for (int64_t i = 0; ok && i < n; i++) {
        const memoi_item* item = &b->whole.items[i];
        const int64_t life = memoi_brick_hash(MEMOI_BRICK_LIFE, item->begin, item->end);
        if (!b->is_brick[i]) continue;
        b->begins[item->begin] += item->size;
        b->ends[item->end] += item->size;
        b->same[i] = (int32_t)memoi_brick_find(b, MEMOI_BRICK_LIFE, item->begin, item->end);
        b->sum[i] = item->size + (b->same[i] < 0 ? 0 : b->sum[b->same[i]]);
        ok = memob_map_put(map, life, i);
        if (ok && memoi_brick_is_found(b, MEMOI_BRICK_FROM, item->begin, item->size))
            ok = memob_map_put(map, memoi_brick_hash(MEMOI_BRICK_FROM, item->begin, item->size), i);
        if (ok && memoi_brick_is_found(b, MEMOI_BRICK_TO, item->end, item->size))
            ok = memob_map_put(map, memoi_brick_hash(MEMOI_BRICK_TO, item->end, item->size), i);
    }
    return ok;
}

MEMOI void memoi_brick_join(memoi_bricks* b, int64_t kept, int64_t gone, int64_t above) {
    memoi_join* join = &b->joins[b->n_joins++];
    MEMO_ASSERT(kept != gone && b->is_brick[kept] && b->is_brick[gone]); /* 1 */
    join->kept = (int32_t)kept;
    join->gone = (int32_t)gone;
    join->above = above;
    b->is_brick[gone] = 0;
}

/* Joins i with all bricks that live at the same time, if i is the last of these. */
MEMOI void memoi_brick_stack(memoi_bricks* b, int64_t i, int is_sure) {
    memoi_item* item = &b->whole.items[i];
    int64_t k = b->same[i];
    if (k < 0 || memoi_brick_find(b, MEMOI_BRICK_LIFE, item->begin, item->end) != i) return;
    if (is_sure && memoi_brick_find(b, MEMOI_BRICK_TO, item->begin, b->sum[i]) < 0 &&
        memoi_brick_find(b, MEMOI_BRICK_FROM, item->end, b->sum[i]) < 0)
        return;
    for (; k >= 0; k = b->same[k]) {
        memoi_brick_join(b, i, k, item->size);
        item->size += b->whole.items[k].size;
    }
}

/* Is a brick that begins at the end of i with the same size surely the next in its row?  Large
 * sizes agree by chance so rarely that any brick will do. */
MEMOI int memoi_brick_is_sure(const memoi_bricks* b, int64_t i) {
    enum { LARGE = 1 << 20 };
    const memoi_item* item = &b->whole.items[i];
    return item->size >= LARGE || item->size == b->ends[item->end];
}

/* Joins i with the next brick of its row. */
MEMOI void memoi_brick_row(memoi_bricks* b, int64_t i, int is_sure) {
    memoi_item* item = &b->whole.items[i];
    const int64_t next = memoi_brick_find(b, MEMOI_BRICK_FROM, item->end, item->size);
    if (next < 0 || (is_sure && !memoi_brick_is_sure(b, i))) return;
    memoi_brick_join(b, i, next, 0);
    item->end = b->whole.items[next].end;
    item->lifetime += b->whole.items[next].lifetime;
}

/* Joins i, the fifth of a pinwheel, with the four around it. */
MEMOI void memoi_brick_pinwheel(memoi_bricks* b, int64_t i, int is_sure) {
    memoi_item* items = b->whole.items;
    const memoi_item* item = &items[i];
    int64_t left, top, right, low = b->whole.first_item[item->begin];
    for (; low < b->whole.first_item[item->begin + 1]; low++) {
        if (low == i || !b->is_brick[low]) continue;
        left = memoi_brick_find(b, MEMOI_BRICK_TO, item->begin, item->size + items[low].size);
        if (left < 0 || (is_sure && !memoi_brick_is_sure(b, left))) continue;
        top = memoi_brick_find(b, MEMOI_BRICK_LIFE, items[left].begin, item->end);
        if (top < 0) continue;
        right = memoi_brick_find(b, MEMOI_BRICK_FROM, item->end, item->size + items[top].size);
        if (right < 0 || items[right].end != items[low].end) continue;
        memoi_brick_join(b, left, top, items[left].size);
        memoi_brick_join(b, left, low, 0);
        memoi_brick_join(b, left, i, items[low].size);
        memoi_brick_join(b, left, right, items[low].size);
        items[left].size += items[top].size;
        items[left].end = items[right].end;
        items[left].lifetime += items[right].lifetime;
        return;
    }
}

/* Joins a few likely bricks, or none: rows and pinwheels if there are such, else stacks.  level:
 * how small a share of what ends at a time, or how short a stack, still is likely. */
MEMOI void memoi_bricks_guess(memoi_bricks* b, int64_t level, int64_t some) {
    const int64_t n = b->whole.n_items, before = b->n_joins,
                  most = before + (n - before) / some + 1;
    const memoi_item* items = b->whole.items;
    for (int64_t i = 0; i < n && b->n_joins < most; i++) {
        if (!b->is_brick[i] || memob_random(&b->random) % 2 == 0) continue;
        if (items[i].size >= b->ends[items[i].end] >> level) memoi_brick_row(b, i, 0);
        if (b->n_joins == before) memoi_brick_pinwheel(b, i, 0);
    }
    if (b->n_joins > before) return;
    for (int64_t i = 0; i < n && b->n_joins < most; i++)
        if (b->is_brick[i] && memob_random(&b->random) % 2 == 0 &&
            items[i].end - items[i].begin >= b->whole.n_sections >> level)
            memoi_brick_stack(b, i, 0);
}

/* Joins bricks until none is left to join.  Returns how many bricks remain; 0: no memory, or the
 * effort is over. */
MEMOI int64_t memoi_bricks_join(memoi_bricks* b, memoi_effort* effort) {
    enum { LEVELS = 63, SOME = 64 };
    const int64_t n = b->whole.n_items;
    int64_t level = 0, before = -1;
    while (level < LEVELS) {
        if (memoi_effort_is_over(effort) || (b->n_joins > before && !memoi_bricks_list(b)))
            return 0;
        memoi_effort_spend(effort, (n - b->n_joins) / MEMOI_BRICKS_LISTED + 1);
        before = b->n_joins;
        for (int64_t i = 0; i < n; i++)
            if (b->is_brick[i]) memoi_brick_row(b, i, 1);
        for (int64_t i = 0; i < n; i++)
            if (b->is_brick[i]) memoi_brick_pinwheel(b, i, 1);
        if (b->n_joins > before) continue;
        for (int64_t i = 0; i < n; i++)
            if (b->is_brick[i]) memoi_brick_stack(b, i, 1);

        /* If no brick is surely the next, some likely bricks.  No tiling has so few sure bricks. */
        if (b->n_joins > before) continue;
        if (b->n_joins < n / SOME) break;
        memoi_bricks_guess(b, level, SOME);
        level += b->n_joins == before;
    }
    return n - b->n_joins;
}

/* Is the problem plain, with enough level borders between sections?
 * At such a border as much begins as ends. */
MEMOI int memoi_bricks_may_help(const memoi_problem* problem) {
    const int64_t* sums = problem->section_bounds; /* of a plain problem */
    int64_t n = 0;
    if (!memoi_problem_is_plain(problem) || problem->spare || MEMOI_WITHOUT(bricks)) return 0;
    for (int64_t s = 1; s < problem->n_sections; s++) n += sums[s] == sums[s - 1];
    return 100 * n >= MEMOI_BRICKS_LEVEL * (problem->n_sections - 1);
}

/* Plans the bricks that are left, and takes the plan of the items if it is lower.  is_goal_alone:
 * all nodes go to the goal, none to what lies between the goal and the best plan. */
MEMOI memo_status memoi_bricks_plan(memoi_bricks* b, const memoi_problem* problem, int64_t target,
                                    int is_goal_alone, int64_t n_nodes, memoi_effort* effort,
                                    int64_t* offsets, memoi_solution* best, memo_error* error) {
    memoi_effort own = memoi_effort_take(effort, n_nodes);
    memoi_inner inner;
    const memoi_problem* part = &inner.part;
    memo_status status;
    int64_t n_first;
    for (int64_t i = 0; i < problem->n_items; i++) {
        b->whole.items[i].first_range = i;
        b->whole.ranges[i].begin = b->whole.items[i].begin;
        b->whole.ranges[i].end = b->whole.items[i].end;
    }
    status = memoi_inner_begin(&inner, &b->whole, b->is_brick, NULL, error);
    if (status) return status;
    status =
        memoi_greedy_solve(part, 0, MEMOI_GREEDY_RUNS, target, &effort->clock, &inner.best, error);
    n_first = is_goal_alone ? own.nodes_left : memoi_exact_first(part, own.nodes_left);
    if (!status) status = memoi_exact_solve(part, target, n_first, &own, &inner.best, error);
    memoi_effort_spend(effort, own.n_nodes);

    /* From bricks to items: those that are gone lie above those that were kept. */
    memoi_inner_end(&inner, offsets);
    for (int64_t i = b->n_joins - 1; i >= 0; i--)
        offsets[b->joins[i].gone] = offsets[b->joins[i].kept] + b->joins[i].above;
    if (!status) memoi_solution_offer(problem, offsets, best);
    return status;
}

/* Lowers the best plan of a plain problem by bricks: joins them in several orders, and plans what
 * is left, each time with so many nodes.  Errors: no memory. */
MEMOI memo_status memoi_bricks_solve(const memoi_problem* problem, int64_t target, int round,
                                     int64_t n_nodes, memoi_effort* effort, memoi_solution* best,
                                     memo_error* error) {
    const int64_t n = problem->n_items;
    memo_status status = MEMO_STATUS_OK;
    memoi_effort own;
    int64_t* offsets;
    memoi_bricks b;
    memset(&b, 0, sizeof b);
    own = memoi_effort_take(effort, MEMOI_TRIES * n_nodes);
    b.whole = *problem;
    b.whole.items = MEMOB_ARRAY(&b.arrays, memoi_item, n);
    b.whole.ranges = MEMOB_ARRAY(&b.arrays, memoi_range, n);
    b.whole.n_ranges = n;
    b.is_brick = (char*)memob_arrays_add(&b.arrays, n, 1);
    b.same = MEMOB_ARRAY(&b.arrays, int32_t, n);
    b.sum = MEMOB_ARRAY(&b.arrays, int64_t, n);
    b.begins = MEMOB_ARRAY(&b.arrays, int64_t, problem->n_sections + 1);
    b.ends = MEMOB_ARRAY(&b.arrays, int64_t, problem->n_sections + 1);
    b.joins = MEMOB_ARRAY(&b.arrays, memoi_join, n);
    offsets = MEMOB_ARRAY(&b.arrays, int64_t, n);
    if (b.arrays.failed) status = memob_no_memory(error, "the bricks of the plan");

    for (int64_t attempt = 0; !status && attempt < MEMOI_SHARE && best->peak > target; attempt++) {
        int64_t n_left;
        memcpy(b.whole.items, problem->items, (size_t)n * sizeof(memoi_item));
        memset(b.is_brick, 1, (size_t)n);
        b.n_joins = 0;
        b.random = (uint64_t)(attempt + round * MEMOI_SHARE);
        n_left = memoi_bricks_join(&b, &own);
        if (n_left == 0 || n_left > n / 2) break; /* far from one brick in any order */
        status = memoi_bricks_plan(&b, problem, target, attempt % 2 == 0, n_nodes, &own, offsets,
                                   best, error);
    }

    memoi_effort_spend(effort, own.n_nodes);
    memob_map_free(&b.found);
    memob_arrays_free(&b.arrays);
    return status;
}

/* What a round of memo_plan_solve's loop adds. */
MEMOI memo_status memoi_pack_round(struct memoi_loop* loop, int64_t n_nodes, memo_error* error) {
    const memoi_problem* problem = loop->problem;
    memoi_effort* effort = loop->effort;
    memoi_solution* best = loop->best;
    const int64_t goal = memob_max(loop->target, best->bound);
    const int64_t n_share = memoi_loop_share(loop, n_nodes);
    memo_status status = MEMO_STATUS_OK;
    if (memoi_bricks_may_help(problem))
        status = memoi_bricks_solve(problem, goal, loop->round, n_share, effort, best, error);
    if (status || !memoi_loop_goes_on(loop) || !memoi_problem_is_large(problem) || problem->held ||
        MEMOI_WITHOUT(windows))
        return status;
    return memoi_windows_solve(problem, effort->seed + (uint64_t)loop->round, goal, n_share, effort,
                               best)
               ? MEMO_STATUS_OK
               : memob_no_memory(error, "windows");
}

/* ---- >>bought waits -----------------------------------------------------------------------------
 * Knows: waits on offer, and whether a plan is valid without some.  Knows nothing of engines.
 *
 * The first plan may use all offers, and buys the offers that its offsets need.  To find these,
 * offers are given up from the most expensive on, and among equal costs in order of time, because a
 * later wait orders what an earlier wait does.  Of a few offers all cheaper sets are tried. */

enum {
    MEMOI_MARKET_TRIED = 12,  /* offers of which all sets are tried */
    MEMOI_MARKET_NODES = 5000 /* for each of these sets */
};

typedef struct memoi_market {
    memo_plan* plan;
    memo_plan_desc desc; /* of the next attempt */
    memo_wait* offers;   /* in order of time */
    memob_keyed* order;  /* the most expensive offer first, then by time */
    memo_wait* chosen;
    int64_t n;
    memo_plan best;   /* so far: its numbers; the offsets are below */
    int64_t* offsets; /* of the best */
    /* Sets of offers: bought by the best plan; of the next attempt; scratch. */
    char *bought, *trial, *part;
    double deadline;
    memob_arrays arrays;
} memoi_market;

/* Replaces the waits that the plan of a trace buys, and the holds, which follow from both.  Offsets
 * stay: memo_plan_validate tells whether these are still valid.  On failure the plan is unchanged.
 * Errors: INVALID_ARGUMENT (a wait; another plan's trace), OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_market_set_waits(memo_plan* plan, const memo_trace* trace,
                                         const memo_wait* waits, int64_t n_waits,
                                         memo_error* error) {
    memo_plan bought = *plan, *made = NULL;
    memo_status status;
    bought.waits = (memo_wait*)memob_calloc(n_waits, sizeof(memo_wait));
    bought.n_waits = n_waits;
    if (!bought.waits) return memob_no_memory(error, "the waits of a plan");
    if (n_waits > 0) memcpy(bought.waits, waits, (size_t)n_waits * sizeof(memo_wait));

    status = memo_plan_prepare(&bought, error);
    if (!status) status = memob_plan_make(trace, plan->alignment_bytes, &bought, &made, error);
    for (int64_t i = 0; made && !status && i < plan->n_buffers; i++)
        if (plan->buffers[i].id != made->buffers[i].id ||
            plan->buffers[i].begin != made->buffers[i].begin ||
            plan->buffers[i].end != made->buffers[i].end)
            status = memob_plan_of_other_trace(error);

    /* Nothing changes unless all waits are valid. */
    if (status) {
        memo_plan_destroy(made);
        MEMO_FREE(bought.waits);
        return status;
    }
    MEMO_FREE(plan->waits);
    plan->waits = bought.waits;
    plan->n_waits = n_waits;
    for (int64_t i = 0; i < plan->n_buffers; i++) plan->buffers[i].lane = made->buffers[i].lane;
    MEMO_FREE(plan->holds);
    plan->holds = made->holds;
    plan->n_holds = made->n_holds;
    made->holds = NULL;
    memo_plan_destroy(made);
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_market_set(memoi_market* m, const char* set, memo_error* error) {
    int64_t n = 0;
    for (int64_t i = 0; i < m->n; i++)
        if (set[i]) m->chosen[n++] = m->offers[i];
    return memoi_market_set_waits(m->plan, m->desc.trace, m->chosen, n, error);
}

MEMOI double memoi_market_cost(const memoi_market* m, const char* set) {
    double cost = 0;
    for (int64_t i = 0; i < m->n; i++) cost += set[i] ? m->offers[i].cost_s : 0;
    return cost;
}

/* Plans with the offers on trial.  Errors of memo_plan_solve. */
MEMOI memo_status memoi_market_plan(memoi_market* m, double limit_s, memo_error* error) {
    memo_status status = memoi_market_set(m, m->trial, error);
    m->desc.time_limit_s = fmax(fmin(limit_s, m->deadline - memob_now_s()), 1e-3);
    return status ? status : memo_plan_solve(m->plan, &m->desc, error);
}

/* Takes the offers on trial back that the plan's offsets do not need.  The plan is the best if the
 * rest costs at most `most_cost`. */
MEMOI memo_status memoi_market_fit(memoi_market* m, double most_cost, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int64_t group = m->n, next, n;
    for (int64_t first = 0; first < m->n;) {
        memcpy(m->part, m->trial, (size_t)m->n);
        for (n = 0, next = first; next < m->n && n < group; next++) {
            n += m->part[m->order[next].index];
            m->part[m->order[next].index] = 0;
        }
        status = n > 0 ? memoi_market_set(m, m->part, error) : MEMO_STATUS_OK;
        if (!status) status = memo_plan_validate(m->plan, error);
        if (status && status != MEMO_STATUS_INVALID_ARGUMENT) return status;
        if (!status) memcpy(m->trial, m->part, (size_t)m->n);
        if (!status || group == 1) first = next;
        group = status ? memob_max(group / 2, 1) : 2 * group;
    }
    if (memoi_market_cost(m, m->trial) > most_cost) return MEMO_STATUS_OK;
    memcpy(m->bought, m->trial, (size_t)m->n);
    if (m->best.proof == MEMO_PROOF_OPTIMAL && m->best.peak_bytes == m->plan->peak_bytes)
        m->plan->proof = MEMO_PROOF_OPTIMAL; /* more waits gave no smaller plan */
    m->best = *m->plan;
    for (int64_t i = 0; i < m->plan->n_buffers; i++)
        m->offsets[i] = m->plan->buffers[i].offset_bytes;
    return MEMO_STATUS_OK;
}

/* Gives the plan all offers.  An error names the offer. */
MEMOI memo_status memoi_market_check(memoi_market* m, const memo_plan_desc* desc,
                                     memo_error* error) {
    static const char waits[] = "plan.waits";
    memo_error reason;
    memo_status status;
    if (!desc->trace)
        return MEMOB_INVALID(error,
                             "memo_plan_desc.trace: NULL; offers need the trace of the plan");
    status = memoi_market_set_waits(m->plan, desc->trace, desc->offers, m->n, &reason);
    if (!status) return status;
    if (strncmp(reason.message, waits, sizeof waits - 1))
        return memo_error_set(error, status, "%s", reason.message);
    return memo_error_set(error, status, "memo_plan_desc.offers%s",
                          reason.message + sizeof waits - 1);
}

/* With few offers, tries the sets that cost less than the bought set, the cheapest first: the first
 * set with a plan within the capacity is the best.  A set that is not refuted soon is passed. */
MEMOI memo_status memoi_market_try(memoi_market* m, memo_error* error) {
    const int64_t node_limit = m->desc.memoi_node_limit, n_sets = (int64_t)1 << m->n;
    const double cost = memoi_market_cost(m, m->bought);
    memo_status status = MEMO_STATUS_INFEASIBLE;
    memob_keyed* sets = (memob_keyed*)memob_calloc(n_sets, sizeof *sets);
    if (!sets) return memob_no_memory(error, "the waits of a plan");
    for (int64_t k = 0; k < n_sets; k++) {
        for (int64_t i = 0; i < m->n; i++) m->trial[i] = (char)(k >> i & 1);
        sets[k] = memob_keyed_of((int64_t)(1e15 * memoi_market_cost(m, m->trial)), k);
    }
    qsort(sets, (size_t)n_sets, sizeof *sets, memob_keyed_compare);

    m->desc.memoi_node_limit = MEMOI_MARKET_NODES;
    if (node_limit) m->desc.memoi_node_limit = memob_min(node_limit, MEMOI_MARKET_NODES);
    for (int64_t k = 0; k < n_sets && status == MEMO_STATUS_INFEASIBLE; k++) {
        for (int64_t i = 0; i < m->n; i++) m->trial[i] = (char)(sets[k].index >> i & 1);
        if (memoi_market_cost(m, m->trial) >= cost || memob_now_s() > m->deadline) break;
        status = memoi_market_plan(m, m->deadline - memob_now_s(), error);
    }
    if (!status) status = memoi_market_fit(m, cost, error);
    m->desc.memoi_node_limit = node_limit;
    MEMO_FREE(sets);
    return status == MEMO_STATUS_INFEASIBLE ? MEMO_STATUS_OK : status;
}

/* The caller frees the arrays, whether it succeeds or not. */
MEMOI int memoi_market_create(memoi_market* m, memo_plan* plan, const memo_plan_desc* desc) {
    const int64_t n = desc->n_offers;
    memob_arrays* a = &m->arrays;
    memset(m, 0, sizeof *m);
    m->plan = plan;
    m->n = n;
    m->desc = *desc;
    m->desc.n_offers = 0;
    m->deadline = memob_now_s() + desc->time_limit_s;
    m->best.peak_bytes = INT64_MAX;

    m->offers = MEMOB_ARRAY(a, memo_wait, n);
    m->order = MEMOB_ARRAY(a, memob_keyed, n);
    m->chosen = MEMOB_ARRAY(a, memo_wait, n);
    m->offsets = MEMOB_ARRAY(a, int64_t, plan->n_buffers);
    m->bought = MEMOB_ARRAY(a, char, n);
    m->trial = MEMOB_ARRAY(a, char, n);
    m->part = MEMOB_ARRAY(a, char, n);
    return !a->failed;
}

/* Plans with all offers, then with fewer.  *result: of the best plan, with its reason in error. */
MEMOI memo_status memoi_market_spend(memoi_market* m, const memo_plan_desc* desc,
                                     memo_status* result, memo_error* error) {
    memo_plan* plan = m->plan;
    memo_error reason;
    memo_status status;
    memset(m->trial, 1, (size_t)m->n);
    status = memoi_market_plan(m, desc->time_limit_s / 2, &reason);
    if ((!status || status == MEMO_STATUS_INFEASIBLE) && plan->peak_bytes < m->best.peak_bytes) {
        *result = status;
        if (status && error) *error = reason;
        m->desc.capacity_bytes =
            memob_min(MEMOB_BYTES_MAX, memob_max(desc->capacity_bytes, plan->peak_bytes));
        status = memoi_market_fit(m, HUGE_VAL, &reason);
        if (!status && m->n <= MEMOI_MARKET_TRIED) status = memoi_market_try(m, &reason);
    }
    if (status && status != MEMO_STATUS_INFEASIBLE && status != *result && error) *error = reason;
    return status == MEMO_STATUS_INFEASIBLE ? MEMO_STATUS_OK : status;
}

/* Makes the best plan the plan; none after a failure. */
MEMOI void memoi_market_store(const memoi_market* m, memo_status status) {
    memo_plan* plan = m->plan;
    for (int64_t i = 0; i < plan->n_buffers && !status; i++)
        plan->buffers[i].offset_bytes = m->offsets[i];
    plan->peak_bytes = m->best.peak_bytes;
    plan->proof = status ? MEMO_PROOF_NONE : m->best.proof;
    memcpy(plan->engine, m->best.engine, sizeof plan->engine);
}

MEMOI memo_status memoi_pack_buy(memo_plan* plan, const memo_plan_desc* desc, memo_error* error) {
    memoi_market m;
    memo_error reason;
    memo_status result = MEMO_STATUS_INFEASIBLE;
    memo_status status = memoi_market_create(&m, plan, desc)
                             ? memoi_market_check(&m, desc, error)
                             : memob_no_memory(error, "the waits of a plan");
    if (status) {
        memob_arrays_free(&m.arrays);
        return status;
    }
    for (int64_t i = 0; i < m.n; i++) { /* as the plan has sorted them */
        m.offers[i] = plan->waits[i];
        m.order[i] = memob_keyed_of(-(int64_t)(1e15 * m.offers[i].cost_s), i);
    }
    qsort(m.order, (size_t)m.n, sizeof(memob_keyed), memob_keyed_compare);

    /* Without waits.  The bound of live buffers holds for any waits. */
    result = status = memoi_market_plan(&m, desc->time_limit_s / 8, error);
    if (!status || status == MEMO_STATUS_INFEASIBLE)
        status = memoi_market_fit(&m, HUGE_VAL, &reason);
    if (status && status != result && error) *error = reason;
    if (!status &&
        (result || (desc->capacity_bytes == 0 && m.best.peak_bytes > plan->lower_bound_bytes)))
        status = memoi_market_spend(&m, desc, &result, error);

    /* The best plan; none without memory. */
    if (!status) {
        status = memoi_market_set(&m, m.bought, &reason);
        if (status && error) *error = reason;
    }
    memoi_market_store(&m, status);
    memob_arrays_free(&m.arrays);
    return status ? status : result;
}

#endif /* MEMO_PLAN_IMPLEMENTATION_DONE */

#endif /* MEMO_PACK_H */
