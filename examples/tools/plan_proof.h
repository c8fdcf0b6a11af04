/* plan_proof.h - writes why no plan is smaller, for check_proof.py, which trusts nothing here.
 *
 * Most proofs are one line: a moment, and an alignment.  The buffers that live at that moment and
 * have at least that alignment need their sizes rounded up to it, one after the other; only the
 * highest needs no rounding.  Or the line names a fixed buffer, which ends at the peak, or a buffer
 * that has as many bytes, as one whose gaps cover its life may.
 *
 * Otherwise the proof is a search that fails: the exact search runs once more, one byte below the
 * peak, and each of its steps becomes a line.  The head of check_proof.py lists the lines.
 *
 * Include this header in place of extras/memo_pack.h, before the implementation. */
#ifndef PLAN_PROOF_H
#define PLAN_PROOF_H

struct memoi_search;
static int proof_step(struct memoi_search* search, char step, long long a, long long b);
#define MEMOI_PROVE(search, step, a, b) proof_step(search, step, (long long)(a), (long long)(b))
#include "extras/memo_pack.h"
#include "memo_plan.h"

/* ---- one line -------------------------------------------------------------------------------- */

typedef struct proof_change {
    int64_t time, bytes;
} proof_change;

static int proof_by_time(const void* left, const void* right) {
    const int64_t a = ((const proof_change*)left)->time, b = ((const proof_change*)right)->time;
    return (a > b) - (a < b);
}

static int64_t proof_alignment(const memo_plan* plan, int64_t i) {
    const int64_t own = plan->buffers[i].alignment_bytes;
    return own > plan->alignment_bytes ? own : plan->alignment_bytes;
}

/* The largest rounding of a piece that lives at a time. */
static int64_t proof_rounding(const memo_plan* plan, const memob_piece* pieces, int64_t n,
                              int64_t alignment, int64_t time) {
    int64_t most = 0;
    for (int64_t k = 0; k < n; k++) {
        const int64_t bytes = memob_buffer_bytes(plan, pieces[k].buffer);
        if (pieces[k].begin > time || pieces[k].end <= time ||
            proof_alignment(plan, pieces[k].buffer) < alignment)
            continue;
        most = memob_max(most, memob_align_up(bytes, alignment) - bytes);
    }
    return most;
}

/* The first time at which buffers of this alignment need the peak, or -1.  changes: scratch, two a
 * piece. */
static int64_t proof_time(const memo_plan* plan, const memob_piece* pieces, int64_t n,
                          int64_t alignment, proof_change* changes) {
    int64_t n_changes = 0, sum = 0;
    for (int64_t k = 0; k < n; k++) {
        const int64_t bytes = memob_align_up(memob_buffer_bytes(plan, pieces[k].buffer), alignment);
        if (proof_alignment(plan, pieces[k].buffer) < alignment) continue;
        changes[n_changes].time = pieces[k].begin;
        changes[n_changes++].bytes = bytes;
        changes[n_changes].time = pieces[k].end;
        changes[n_changes++].bytes = -bytes;
    }
    qsort(changes, (size_t)n_changes, sizeof *changes, proof_by_time);

    for (int64_t k = 0; k < n_changes; k++) {
        const int64_t time = changes[k].time;
        sum += changes[k].bytes;
        if ((k + 1 < n_changes && changes[k + 1].time == time) || sum < plan->peak_bytes) continue;
        if (sum - proof_rounding(plan, pieces, n, alignment, time) >= plan->peak_bytes) return time;
    }
    return -1;
}

/* ---- the failed branches of a search -------------------------------------------------------- */

enum {
    PROOF_NODES = 1 << 20, /* of the search; a longer proof is not written */
    PROOF_STACKED = 16     /* buffers of which the checker tries all orders in a stack */
};

/* A failed node, by the hash of its state.  A node that was cut from the text is no longer there. */
typedef struct proof_node {
    int64_t number; /* in the text */
    int64_t serial; /* among all nodes */
} proof_node;

typedef struct proof_run {
    const memoi_problem* problem; /* of some buffers */
    int64_t* rows;                /* of items */
    int64_t capacity;
    memo_text text;
    memob_map failed; /* a hash of a state to an entry of nodes */
    proof_node* nodes;
    int64_t* serials;     /* of a node in the text */
    int64_t *open, *cuts; /* nodes that are open; two for each part: bytes and nodes before it */
    int64_t n_nodes, n_serials, n_text_nodes, n_open, n_cuts;
    int64_t node_capacity, serial_capacity, open_capacity, cut_capacity;
    int64_t item, section, bound; /* of the last lift or block, which is not written yet */
    char last;                    /* kind of the last step */
    int has_failed;               /* memory */
} proof_run;

static proof_run* proof_now; /* the run that is written down, if there is one */

/* Writes the last lift or block: with the bound that it gave, or alone if the item fits nowhere. */
static void proof_put_raise(proof_run* run, const memoi_search* search, int is_end) {
    const int64_t bound = search->bound[run->item];
    if (run->last != 'l' && run->last != 'k') return;
    if (bound == run->bound && !is_end) return;
    if (run->last == 'l') memo_text_put(&run->text, "l %lld", (long long)run->section);
    if (run->last == 'k') memo_text_put(&run->text, "k");
    memo_text_put(&run->text, " %lld", (long long)run->rows[run->item]);
    if (bound > run->bound)
        memo_text_put(&run->text, " %lld", (long long)(bound * run->problem->unit_bytes));
    memo_text_put(&run->text, "\n");
}

/* A node of the text begins. */
static void proof_begin_node(proof_run* run) {
    if (!memob_reserve(&run->serials, &run->serial_capacity, run->n_text_nodes + 1,
                       sizeof(int64_t)))
        run->has_failed = 1;
    else
        run->serials[run->n_text_nodes++] = run->n_serials++;
}

/* Remembers or forgets what is open. */
static void proof_push(proof_run* run, int64_t** list, int64_t* n, int64_t* capacity,
                       int64_t value) {
    if (!memob_reserve(list, capacity, *n + 1, sizeof(int64_t)))
        run->has_failed = 1;
    else
        (*list)[(*n)++] = value;
}

/* A state that has failed is the innermost open node's. */
static void proof_remember(proof_run* run, int64_t hash) {
    const int64_t number = run->open[run->n_open - 1];
    proof_node* node;
    if (!memob_reserve(&run->nodes, &run->node_capacity, run->n_nodes + 1, sizeof *run->nodes) ||
        !memob_map_put(&run->failed, hash, run->n_nodes)) {
        run->has_failed = 1;
        return;
    }
    node = &run->nodes[run->n_nodes++];
    node->number = number;
    node->serial = run->serials[number];
}

/* The number of the node in the text that has failed in this state; -1: none. */
static int64_t proof_known(const proof_run* run, int64_t hash) {
    const int64_t at = memob_map_get(&run->failed, hash);
    const proof_node* node = at < 0 ? NULL : &run->nodes[at];
    if (!node || node->number >= run->n_text_nodes || run->serials[node->number] != node->serial)
        return -1;
    return node->number;
}

/* Writes a step of the search.  0: the search may not take a state as known. */
static int proof_step(struct memoi_search* search, char step, long long a, long long b) {
    proof_run* run = proof_now;
    memo_text* text = run ? &run->text : NULL;
    int64_t known = 0;
    if (!run || run->has_failed) return 1;
    if (step == 'm') known = proof_known(run, a);
    proof_put_raise(run, search, step == 'b' || step == ')');
    if (run->last == 'l' || run->last == 'k') run->last = 0;
    switch (step) {
    case '(':
        proof_push(run, &run->open, &run->n_open, &run->open_capacity, run->n_text_nodes - 1);
        break;
    case ')':
        if (a == (long long)MEMOI_FAILED) proof_remember(run, b);
        run->n_open--;
        break;
    case 'p':
        memo_text_put(text, "p %lld\n", (long long)run->rows[a]);
        proof_begin_node(run);
        break;
    case 'b': memo_text_put(text, ")\n"); break;
    case 'w': /* a part that has a plan is cut from the text */
        proof_push(run, &run->cuts, &run->n_cuts, &run->cut_capacity, text->n_bytes);
        proof_push(run, &run->cuts, &run->n_cuts, &run->cut_capacity, run->n_text_nodes);
        memo_text_put(text, "w %lld %lld\n", a, b);
        proof_begin_node(run);
        break;
    case 'v':
        run->n_cuts -= 2;
        if (a != (long long)MEMOI_FOUND || run->has_failed) break;
        text->n_bytes = run->cuts[run->n_cuts];
        run->n_text_nodes = run->cuts[run->n_cuts + 1];
        break;
    case 'm':
        if (known >= 0) memo_text_put(text, "m %lld\n", (long long)known);
        break;
    case 'd': memo_text_put(text, "d\n"); break;
    case 's': memo_text_put(text, "s %lld\n", a); break;
    case 'f':
        if (run->last != 'f' && search->bound[a] < b)
            memo_text_put(text, "f %lld\n", (long long)(b * run->problem->unit_bytes));
        else if (run->last != 'f')
            return 1; /* no bound below the floor yet */
        break;
    default: /* a lift or a block, written when its bound is known */
        run->section = step == 'l' ? a : 0;
        run->item = step == 'l' ? b : a;
        run->bound = search->bound[run->item];
    }
    run->last = step;
    return known >= 0;
}

/* Runs the search, with limits that double, each from the start.  Returns 1 if it failed, so that
 * the text is a proof; 0 if it did not end; -1 without memory. */
static int proof_search(proof_run* run, const memoi_deadline* clock) {
    memoi_search search;
    const memoi_made made = memoi_search_create(&search, run->problem, 0, clock);
    int result = made == MEMOI_NO_MEMORY ? -1 : 0;
    if (made == MEMOI_MADE) {
        for (int64_t s = 0; search.sets && s < run->problem->n_sections; s++)
            if (search.first_member[s + 1] - search.first_member[s] > PROOF_STACKED)
                search.sets[s] = 0; /* no stacks there */
        memoi_search_begin(&search, run->capacity, PROOF_NODES);
        proof_now = run;
        for (double length = 1000; length < 2 * PROOF_NODES; length *= 2) {
            memset(search.failures, 0, MEMOI_FAILURES * sizeof *search.failures);
            memob_map_free(&run->failed);
            memset(&run->failed, 0, sizeof run->failed);
            run->text.n_bytes = 0;
            run->n_open = run->n_cuts = run->n_nodes = run->n_text_nodes = 0;
            run->last = 0;
            proof_begin_node(run);
            search.run_length = length;
            if (!memoi_search_run(&search) || run->has_failed) break;
        }
        proof_now = NULL;
        result = search.verdict == MEMOI_FAILED;
        if (search.is_out_of_memory || run->has_failed || run->text.failed) result = -1;
    }
    memoi_search_free(&search);
    return result;
}

/* Writes the sets of buffers that live together, and the search.  Returns as proof_search. */
static int proof_of_items(const memo_plan* plan, const memoi_problem* whole, const char* is_in,
                          int64_t capacity, const memoi_deadline* clock, memo_text* text) {
    memoi_problem part;
    proof_run run;
    int result = -1;
    memset(&run, 0, sizeof run);
    if (!memoi_problem_pick(whole, is_in, &part)) return -1;
    run.problem = &part;
    run.capacity = capacity;
    run.rows = (int64_t*)memob_calloc(part.n_items, sizeof(int64_t));
    for (int64_t i = 0; run.rows && i < part.n_items; i++)
        run.rows[i] = plan->buffers[whole->items[part.items[i].origin].origin].id;
    if (run.rows) result = proof_search(&run, clock);

    for (int64_t s = 0; result > 0 && s < part.n_sections; s++) {
        memo_text_put(text, "set");
        for (int64_t k = 0, i = 0; k < part.n_ranges; k++) {
            while (k >= part.items[i].first_range + part.items[i].n_ranges) i++;
            if (part.ranges[k].begin <= s && s < part.ranges[k].end)
                memo_text_put(text, " %lld", (long long)run.rows[i]);
        }
        memo_text_put(text, "\n");
    }
    if (result > 0) memo_text_put(text, "search\n%s", run.text.data);
    memob_map_free(&run.failed);
    memo_text_free(&run.text);
    free(run.rows);
    free(run.nodes);
    free(run.serials);
    free(run.open);
    free(run.cuts);
    memoi_problem_free(&part);
    return result;
}

/* Sets the text to the lines of a search that fails below the peak, of a few buffers if these are
 * enough.  *is_found: 0 if the search did not end, or the plan has several streams. */
static memo_status proof_of_search(const memo_plan* plan, const int32_t* stop, memo_text* text,
                                   int* is_found, memo_error* error) {
    const memoi_deadline clock = {HUGE_VAL, stop};
    memoi_problem problem;
    memoi_cores cores;
    memoi_solution none;
    memoi_verdict verdict = MEMOI_STOPPED;
    int64_t capacity, n_nodes = PROOF_NODES;
    int result = -1;
    memo_status status;
    if (plan->n_holds > 0) return MEMO_STATUS_OK;
    status = memoi_solve_pose(plan, 0, &problem, error);
    if (status) return status;
    capacity = plan->peak_bytes / problem.unit_bytes - 1;

    /* Without offsets, no plan can be offered; none is found anyway. */
    memset(&none, 0, sizeof none);
    if (memoi_cores_create(&cores, &problem, 0, &clock) &&
        memoi_neighbors_list(&problem) == MEMOI_MADE) {
        if (!memoi_cores_attempt(&cores, capacity, &n_nodes, &verdict, &none))
            verdict = MEMOI_STOPPED;
        if (verdict != MEMOI_FAILED) memset(cores.is_in, 1, (size_t)problem.n_items);
        result = proof_of_items(plan, &problem, cores.is_in, capacity, &clock, text);
    }
    memob_arrays_free(&cores.arrays);
    memoi_problem_free(&problem);
    *is_found = result > 0;
    return result < 0 ? memob_no_memory(error, "the proof") : MEMO_STATUS_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Writes the proof of a plan whose buffers have their rows as ids; *is_found: 0 if there is no such
 * proof, and no file then.  *stop, which a signal may set, ends a search. */
static memo_status write_proof(const memo_plan* plan, const int32_t* stop, const char* path,
                               int* is_found, memo_error* error) {
    const int64_t n_most = plan->n_buffers + plan->n_gaps;
    memob_piece* pieces = (memob_piece*)memob_calloc(n_most, sizeof(memob_piece));
    proof_change* changes = (proof_change*)memob_calloc(2 * n_most, sizeof(proof_change));
    int64_t n, alignments = 0, time = -1, fixed = -1, largest = -1, alignment = 1;
    memo_status status = MEMO_STATUS_OK;
    memo_text text;
    memset(&text, 0, sizeof text);
    *is_found = 0;
    if (!pieces || !changes) {
        free(pieces);
        free(changes);
        return memob_no_memory(error, "the proof");
    }

    /* A fixed buffer, or a moment by each alignment that a buffer has. */
    n = memob_plan_pieces(plan, pieces);
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        const memo_buffer* buffer = &plan->buffers[i];
        alignments |= proof_alignment(plan, i);
        if (buffer->is_fixed &&
            buffer->offset_bytes + memob_buffer_bytes(plan, i) >= plan->peak_bytes)
            fixed = buffer->id;
        if (memob_buffer_bytes(plan, i) >= plan->peak_bytes) largest = buffer->id;
    }
    for (; alignments && time < 0 && fixed < 0; alignments &= alignments - 1) {
        alignment = alignments & -alignments;
        time = proof_time(plan, pieces, n, alignment, changes);
    }
    free(changes);
    *is_found = time >= 0 || fixed >= 0 || largest >= 0 || plan->peak_bytes == 0;
    memo_text_put(&text, "memo proof 1\nalign %lld\npeak %lld\n", (long long)plan->alignment_bytes,
                  (long long)plan->peak_bytes);
    if (fixed >= 0)
        memo_text_put(&text, "fixed %lld\n", (long long)fixed);
    else if (time >= 0)
        memo_text_put(&text, "moment %lld alignment %lld\n", (long long)time, (long long)alignment);
    else if (largest >= 0)
        memo_text_put(&text, "size %lld\n", (long long)largest);
    else if (!*is_found)
        status = proof_of_search(plan, stop, &text, is_found, error);
    free(pieces);
    memo_text_put(&text, "end\n");
    if (!status && *is_found) return memo_text_write(&text, path, error);
    memo_text_free(&text);
    return status;
}

#endif
