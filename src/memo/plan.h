#pragma once
#include "memo/base.h"
/* ---- >>plan -------------------------------------------------------------------------------------
 * Knows: buffers, lifetimes, alignments, gaps, holds and waits.  Knows nothing of how offsets are
 * found.
 *
 * 1. Pieces of a buffer are its lifetime without its gaps, each of which is used up.
 * 2. A sweep begins and ends each piece once: the sum of live sizes returns to 0.
 * 3. A leaf of the tree is the rank of a live piece, and changes whenever it is set.
 * 4. Only buffers that have bytes can overlap.
 * 5. Sorting a plan keeps all buffers, in the order of their begins. */

#define MEMOI_ALIGNMENT_MAX ((int64_t)1 << 40)

/* What no plan is below: if the plan is proven, its peak. */
MEMOI int64_t memob_plan_bound(const memo_plan* plan) {
    return plan->proof == MEMO_PROOF_OPTIMAL ? plan->peak_bytes : plan->lower_bound_bytes;
}

/* Size of a buffer, rounded up to the plan's alignment. */
MEMOI int64_t memob_buffer_bytes(const memo_plan* plan, int64_t buffer) {
    return memob_align_up(plan->buffers[buffer].size_bytes, plan->alignment_bytes);
}

MEMOI int memoi_plan_is_alignment(int64_t alignment) {
    return alignment >= 1 && alignment <= MEMOI_ALIGNMENT_MAX && (alignment & (alignment - 1)) == 0;
}

MEMOI memo_status memoi_plan_check_alignment(int64_t alignment, memo_error* error) {
    if (memoi_plan_is_alignment(alignment)) return MEMO_STATUS_OK;
    return MEMOB_INVALID(
        error, "alignment_bytes: not a power of two up to 2^40 (%lld); 0 means the default",
        (long long)alignment);
}

memo_status memo_plan_create(int64_t n_buffers, int64_t n_gaps, int64_t alignment_bytes,
                             memo_plan** plan, memo_error* error) {
    memo_plan* made;
    MEMOB_REFUSE_NULL(error, "plan", plan);
    *plan = NULL;
    if (alignment_bytes == 0) alignment_bytes = 1;
    if (n_buffers < 0 || n_gaps < 0)
        return MEMOB_INVALID(error,
                             "plan: n_buffers %lld or n_gaps %lld is negative; 0 or more are valid",
                             (long long)n_buffers, (long long)n_gaps);
    if (memoi_plan_check_alignment(alignment_bytes, error)) return MEMO_STATUS_INVALID_ARGUMENT;

    /* One owner for all arrays, so that a failure destroys what exists. */
    made = (memo_plan*)memob_calloc(1, sizeof(memo_plan));
    if (!made) return memob_no_memory(error, "a plan");
    made->buffers = (memo_buffer*)memob_calloc(n_buffers, sizeof(memo_buffer));
    made->gaps = (memo_gap*)memob_calloc(n_gaps, sizeof(memo_gap));
    if (!made->buffers || !made->gaps) {
        memo_plan_destroy(made);
        return memob_no_memory(error, "a plan");
    }

    made->n_buffers = n_buffers;
    made->n_gaps = n_gaps;
    made->alignment_bytes = alignment_bytes;
    *plan = made;
    return MEMO_STATUS_OK;
}

void memo_plan_destroy(memo_plan* plan) {
    if (!plan) return;
    MEMO_FREE(plan->buffers);
    MEMO_FREE(plan->gaps);
    MEMO_FREE(plan->holds);
    MEMO_FREE(plan->waits);
    MEMO_FREE(plan);
}

/* --- preparing --- */

MEMOI int memoi_plan_compare_gaps(const void* a, const void* b) {
    const memo_gap* x = (const memo_gap*)a;
    const memo_gap* y = (const memo_gap*)b;
    return x->buffer != y->buffer ? memob_compare(x->buffer, y->buffer)
                                  : memob_compare(x->begin, y->begin);
}

MEMOI int memoi_plan_compare_holds(const void* a, const void* b) {
    const memo_hold* x = (const memo_hold*)a;
    const memo_hold* y = (const memo_hold*)b;
    return x->buffer != y->buffer ? memob_compare(x->buffer, y->buffer)
                                  : memob_compare(x->lane, y->lane);
}

MEMOI int memoi_plan_compare_waits(const void* a, const void* b) {
    const memo_wait* x = (const memo_wait*)a;
    const memo_wait* y = (const memo_wait*)b;
    if (x->requested != y->requested) return memob_compare(x->requested, y->requested);
    if (x->to != y->to) return memob_compare(x->to, y->to);
    return x->from != y->from ? memob_compare(x->from, y->from) : memob_compare(x->freed, y->freed);
}

/* What is wrong with a wait alone; NULL: nothing. */
MEMOI const char* memoi_plan_wait_fault(const memo_plan* plan, const memo_wait* wait) {
    const int has_streams = memob_is_within(wait->from, 0, MEMOB_STREAMS - 1) &&
                            memob_is_within(wait->to, 0, MEMOB_STREAMS - 1);
    if (!memob_is_within(wait->freed, 0, plan->n_buffers - 1) ||
        !memob_is_within(wait->requested, 0, plan->n_buffers - 1))
        return "a buffer is out of range; indices into plan.buffers are valid";
    const memo_buffer* freed = &plan->buffers[wait->freed];
    const memo_buffer* requested = &plan->buffers[wait->requested];
    const memob_rule rules[] = {
        {freed->memory_class == MEMO_CLASS_PERSISTENT ||
             requested->memory_class == MEMO_CLASS_PERSISTENT || freed->end < plan->body_begin,
         "a buffer is persistent, or is freed before the body; name two of the body"},
        {freed->end > requested->begin, "the request comes before the free"},
        {!has_streams || wait->from == wait->to,
         "streams are equal or out of range; two of 0 to 63 are valid"},
        {!memob_is_in(wait->cost_s, 0, 9000), "its cost is not 0 to 9000 s"}};
    return MEMOB_FIRST_FAULT(rules);
}

/* The alignment of a buffer's offset: its own, or the plan's. */
MEMOI int64_t memob_buffer_alignment(const memo_plan* plan, int64_t i) {
    const int64_t own_bytes = plan->buffers[i].alignment_bytes;
    return own_bytes ? own_bytes : plan->alignment_bytes;
}

/* What is wrong with buffer i alone; NULL: nothing. */
MEMOI const char* memoi_plan_buffer_fault(const memo_plan* plan, int64_t i) {
    const memo_buffer* buffer = &plan->buffers[i];
    const int64_t alignment = memob_buffer_alignment(plan, i);
    const int is_aligned =
        memoi_plan_is_alignment(alignment) && buffer->offset_bytes % alignment == 0;
    const memob_rule rules[] = {
        {!memob_is_within(buffer->size_bytes, 0, MEMOB_BYTES_MAX),
         "its size is out of range; 0 to 2^62 bytes are valid"},
        {buffer->begin < 0 || buffer->end > MEMOB_BYTES_MAX,
         "its lifetime is out of range; 0 to 2^62 are valid"},
        {buffer->begin >= buffer->end, "its lifetime is empty; end must be after begin"},
        {!memoi_plan_is_alignment(alignment) || alignment < plan->alignment_bytes,
         "its alignment is invalid; powers of two from the plan's up to 2^40 are valid"},
        {!memob_is_within(buffer->stream, 0, MEMOB_STREAMS - 1),
         "its stream is out of range; 0 to 63 are valid"},
        {buffer->lane < 0, "its lane is negative; 0 or more are valid"},
        {!memob_is_within((int)buffer->memory_class, 0, MEMO_N_CLASSES - 1),
         "its class is not a memo_class"},
        {buffer->is_fixed &&
             (!is_aligned || !memob_is_within(buffer->offset_bytes, 0, MEMOB_BYTES_MAX)),
         "its fixed offset is negative, not aligned, or beyond 2^62"}};
    return MEMOB_FIRST_FAULT(rules);
}

/* *culprit: the buffer with the error, or -1, here and in the next rooms. */
MEMOI MEMOB_NOINLINE memo_status memoi_plan_buffer_error(const memo_plan* plan, int64_t i,
                                                         int64_t* culprit, memo_error* error,
                                                         const char* fault) {
    MEMO_ASSERT(i >= 0 && i < plan->n_buffers);
    *culprit = i;
    return MEMOB_INVALID(error, "buffer %lld (id %lld): %s", (long long)i,
                         (long long)plan->buffers[i].id, fault);
}

MEMOI memo_status memoi_plan_check_index(const memo_plan* plan, const char* list, int64_t i,
                                         int64_t buffer, memo_error* error) {
    if (buffer >= 0 && buffer < plan->n_buffers) return MEMO_STATUS_OK;
    return MEMOB_INVALID(error,
                         "plan.%s[%lld].buffer: out of range (%lld); the plan has %lld buffers",
                         list, (long long)i, (long long)buffer, (long long)plan->n_buffers);
}

/* All conditions of a problem except the order. */
MEMOI memo_status memoi_plan_check(const memo_plan* plan, int64_t* culprit, memo_error* error) {
    int64_t bytes, total = 0;
    *culprit = -1;
    if (memoi_plan_check_alignment(plan->alignment_bytes, error))
        return MEMO_STATUS_INVALID_ARGUMENT;

    /* Buffers: each alone, and the sum of sizes so far. */
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        const char* fault = memoi_plan_buffer_fault(plan, i);
        if (fault) return memoi_plan_buffer_error(plan, i, culprit, error, fault);
        bytes = memob_buffer_bytes(plan, i);
        if (bytes > MEMOB_BYTES_MAX - total ||
            (plan->buffers[i].is_fixed && plan->buffers[i].offset_bytes > MEMOB_BYTES_MAX - bytes))
            return memoi_plan_buffer_error(plan, i, culprit, error,
                                           "sizes up to this buffer sum to more than 2^62");
        total += bytes;
    }

    /* Gaps: inside the lifetime of a buffer that exists. */
    for (int64_t i = 0; i < plan->n_gaps; i++) {
        const memo_gap* gap = &plan->gaps[i];
        if (memoi_plan_check_index(plan, "gaps", i, gap->buffer, error))
            return MEMO_STATUS_INVALID_ARGUMENT;
        if (gap->begin >= gap->end || gap->begin < plan->buffers[gap->buffer].begin ||
            gap->end > plan->buffers[gap->buffer].end)
            return memoi_plan_buffer_error(plan, gap->buffer, culprit, error,
                                           "a gap is empty or outside the lifetime");
    }

    /* Holds: after the lifetime; never together with gaps. */
    if (plan->n_holds > 0 && plan->n_gaps > 0)
        return MEMOB_INVALID(error, "plan.holds: the plan has gaps and %lld holds; remove one kind",
                             (long long)plan->n_holds);
    for (int64_t i = 0; i < plan->n_holds; i++) {
        const memo_hold* hold = &plan->holds[i];
        if (memoi_plan_check_index(plan, "holds", i, hold->buffer, error))
            return MEMO_STATUS_INVALID_ARGUMENT;
        if (hold->lane < 0 || hold->until > MEMOB_BYTES_MAX ||
            hold->until <= plan->buffers[hold->buffer].end)
            return memoi_plan_buffer_error(
                plan, hold->buffer, culprit, error,
                "a hold must end after the lifetime and not above 2^62, and its "
                "lane must be 0 or more");
    }
    for (int64_t i = 0; i < plan->n_waits; i++) {
        const char* fault = memoi_plan_wait_fault(plan, &plan->waits[i]);
        if (fault) return MEMOB_INVALID(error, "plan.waits[%lld]: %s", (long long)i, fault);
    }
    return MEMO_STATUS_OK;
}

/* Gaps, holds and waits must be in order. */
MEMOI memo_status memoi_plan_check_order(const memo_plan* plan, int64_t* culprit,
                                         memo_error* error) {
    for (int64_t i = 1; i < plan->n_holds; i++)
        if (memoi_plan_compare_holds(&plan->holds[i - 1], &plan->holds[i]) >= 0)
            return memoi_plan_buffer_error(plan, plan->holds[i].buffer, culprit, error,
                                           "its holds are not in order, or two have the same lane; "
                                           "memo_plan_prepare sorts them");
    for (int64_t i = 1; i < plan->n_gaps; i++) {
        const memo_gap* gap = &plan->gaps[i];
        if (memoi_plan_compare_gaps(gap - 1, gap) > 0)
            return memoi_plan_buffer_error(
                plan, gap->buffer, culprit, error,
                "its gaps are not in order; memo_plan_prepare sorts them");
        if (gap[-1].buffer == gap->buffer && gap[-1].end > gap->begin)
            return memoi_plan_buffer_error(plan, gap->buffer, culprit, error, "two gaps overlap");
    }
    for (int64_t i = 1; i < plan->n_waits; i++)
        if (memoi_plan_compare_waits(&plan->waits[i - 1], &plan->waits[i]) >= 0)
            return MEMOB_INVALID(error,
                                 "plan.waits[%lld]: not in order, or equal to the one before; "
                                 "memo_plan_prepare sorts them",
                                 (long long)i);
    return MEMO_STATUS_OK;
}

/* --- a sweep over time ---
 *
 * Live pieces are kept by address, as a set of ranks: a complete binary tree of flags, each the
 * "or" of its two children.  A piece that starts to live overlaps a live piece only if it overlaps
 * its neighbor above or below. */

MEMOI void memoi_plan_ranks_set(unsigned char* tree, int64_t n_leaves, int64_t rank, int is_live) {
    int64_t node = n_leaves + rank;
    MEMO_ASSERT(rank >= 0 && rank < n_leaves);
    MEMO_ASSERT(tree[node] == !is_live); /* 3 */
    tree[node] = (unsigned char)is_live;
    for (node /= 2; node >= 1; node /= 2)
        tree[node] = (unsigned char)(tree[2 * node] | tree[2 * node + 1]);
}

/* The nearest rank in the set, above (direction 1) or below (0); -1: there is none. */
MEMOI int64_t memoi_plan_ranks_next(const unsigned char* tree, int64_t n_leaves, int64_t rank,
                                    int64_t direction) {
    int64_t node = n_leaves + rank;
    while (node > 1 && (node % 2 == direction || !tree[node ^ 1])) node /= 2;
    if (node <= 1) return -1;
    node ^= 1;
    while (node < n_leaves)
        node = 2 * node + (tree[2 * node + 1 - direction] ? 1 - direction : direction);
    MEMO_ASSERT(tree[node]); /* 3 */
    MEMO_ASSERT(direction ? node > n_leaves + rank
                          : node < n_leaves + rank); /* nearest on its side */
    return node - n_leaves;
}

/* A part of a buffer's lifetime in which it occupies the same bytes. */
typedef struct memob_piece {
    int64_t buffer, begin, end, bytes;
    int64_t rank; /* by offset; -1: it is not checked */
} memob_piece;

/* Lists the pieces of all buffers that have bytes, at most n_buffers + n_gaps, in the order of
 * buffers; returns how many. */
MEMOI int64_t memob_plan_pieces(const memo_plan* plan, memob_piece* pieces) {
    int64_t gap = 0, n = 0;
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        const memo_buffer* buffer = &plan->buffers[i];
        memob_piece piece = {i, 0, buffer->begin, 0, 0};
        while (piece.end < buffer->end) {
            const memo_gap* next = &plan->gaps[gap];
            const int has_gap = gap < plan->n_gaps && next->buffer == i;
            const int is_gap = has_gap && next->begin <= piece.end;
            piece.begin = piece.end;
            piece.end = buffer->end;
            if (has_gap) piece.end = is_gap ? next->end : next->begin;
            piece.bytes = is_gap ? 0 : memob_buffer_bytes(plan, i);
            gap += is_gap;
            MEMO_ASSERT(piece.begin < piece.end); /* 1 */
            if (piece.bytes > 0) pieces[n++] = piece;
        }
    }
    MEMO_ASSERT(gap == plan->n_gaps && n <= plan->n_buffers + plan->n_gaps); /* 1 */
    return n;
}

/* Do the first bytes of two buffers, neither of them 0, share one? */
MEMOI int memoi_plan_overlap(const memo_plan* plan, int64_t a, int64_t a_bytes, int64_t b,
                             int64_t b_bytes) {
    int64_t a_begin = plan->buffers[a].offset_bytes, b_begin = plan->buffers[b].offset_bytes;
    MEMO_ASSERT(a_bytes > 0 && b_bytes > 0); /* 4 */
    return a_begin < b_begin + b_bytes && b_begin < a_begin + a_bytes;
}

/* Finds overlaps in time and address; with check_offsets 0, only of fixed buffers.  *bound: the
 * largest sum of live sizes, and at least the end of each fixed buffer. */
MEMOI memo_status memoi_plan_sweep(const memo_plan* plan, int check_offsets, int64_t* bound,
                                   int64_t* culprit, memo_error* error) {
    int64_t n_most = plan->n_buffers + plan->n_gaps, n, n_leaves = 1, n_placed = 0, live = 0, i;
    memo_status status = MEMO_STATUS_OK;
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    memob_piece* pieces = MEMOB_ARRAY(&arrays, memob_piece, n_most);
    memob_keyed* order = MEMOB_ARRAY(&arrays, memob_keyed, n_most);
    memob_keyed* events = MEMOB_ARRAY(&arrays, memob_keyed, 2 * n_most);
    unsigned char* tree;
    while (n_leaves < n_most) n_leaves *= 2;
    tree = MEMOB_ARRAY(&arrays, unsigned char, 2 * n_leaves);
    if (arrays.failed) {
        memob_arrays_free(&arrays);
        return memob_no_memory(error, "a sweep over a plan");
    }

    /* Events by time.  Ends come first at equal times, because lifetimes are half-open. */
    n = memob_plan_pieces(plan, pieces);
    for (i = 0; i < n; i++) {
        events[i] = memob_keyed_of(pieces[i].end, i);
        events[n + i] = memob_keyed_of(pieces[i].begin, n + i);
    }
    memob_keyed_sort(events, 2 * n);

    /* Ranks by address. */
    for (i = 0; i < n; i++) {
        pieces[i].rank = -1;
        if (!check_offsets && !plan->buffers[pieces[i].buffer].is_fixed) continue;
        order[n_placed++] = memob_keyed_of(plan->buffers[pieces[i].buffer].offset_bytes, i);
    }
    qsort(order, (size_t)n_placed, sizeof(memob_keyed), memob_keyed_compare);
    for (i = 0; i < n_placed; i++) pieces[order[i].index].rank = i;

    for (i = 0, *bound = 0; i < plan->n_buffers; i++)
        if (plan->buffers[i].is_fixed)
            *bound = memob_max(*bound, plan->buffers[i].offset_bytes + memob_buffer_bytes(plan, i));
    for (i = 0; i < 2 * n && !status; i++) {
        int begins = events[i].index >= n, direction;
        const memob_piece* piece = &pieces[events[i].index - (begins ? n : 0)];
        live += begins ? piece->bytes : -piece->bytes;
        MEMO_ASSERT(live >= 0); /* 2 */
        *bound = memob_max(*bound, live);
        if (piece->rank < 0) continue;
        memoi_plan_ranks_set(tree, n_leaves, piece->rank, begins);
        for (direction = 0; begins && direction < 2 && !status; direction++) {
            int64_t rank = memoi_plan_ranks_next(tree, n_leaves, piece->rank, direction);
            const memob_piece* other = rank < 0 ? NULL : &pieces[order[rank].index];
            if (!other ||
                !memoi_plan_overlap(plan, piece->buffer, piece->bytes, other->buffer, other->bytes))
                continue;
            *culprit = piece->buffer;
            status = MEMOB_INVALID(
                error,
                "buffers %lld (id %lld) and %lld (id %lld) both live at time %lld and share bytes: "
                "offsets %lld and %lld",
                (long long)other->buffer, (long long)plan->buffers[other->buffer].id,
                (long long)piece->buffer, (long long)plan->buffers[piece->buffer].id,
                (long long)piece->begin, (long long)plan->buffers[other->buffer].offset_bytes,
                (long long)plan->buffers[piece->buffer].offset_bytes);
        }
    }
    MEMO_ASSERT(status || live == 0); /* 2 */
    memob_arrays_free(&arrays);
    return status;
}

/* --- order --- */

/* Sorts buffers by begin, stably; gaps, holds and waits follow. */
MEMOI memo_status memoi_plan_order(memo_plan* plan, memo_error* error) {
    int64_t n = plan->n_buffers;
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    memob_keyed* order = MEMOB_ARRAY(&arrays, memob_keyed, n);
    memo_buffer* sorted = MEMOB_ARRAY(&arrays, memo_buffer, n);
    int64_t* place = MEMOB_ARRAY(&arrays, int64_t, n);
    if (arrays.failed) {
        memob_arrays_free(&arrays);
        return memob_no_memory(error, "sorting a plan");
    }

    for (int64_t i = 0; i < n; i++) order[i] = memob_keyed_of(plan->buffers[i].begin, i);
    memob_keyed_sort(order, n);
    for (int64_t i = 0; i < n; i++) {
        sorted[i] = plan->buffers[order[i].index];
        MEMO_ASSERT(i == 0 || sorted[i - 1].begin <= sorted[i].begin); /* 5 */
        place[order[i].index] = i;
    }
    for (int64_t i = 0; i < plan->n_gaps; i++) plan->gaps[i].buffer = place[plan->gaps[i].buffer];
    for (int64_t i = 0; i < plan->n_holds; i++)
        plan->holds[i].buffer = place[plan->holds[i].buffer];
    for (int64_t i = 0; i < plan->n_waits; i++) {
        plan->waits[i].freed = place[plan->waits[i].freed];
        plan->waits[i].requested = place[plan->waits[i].requested];
    }

    /* The array stays the caller's, so copy back. */
    memcpy(plan->buffers, sorted, (size_t)n * sizeof(memo_buffer));
    memob_arrays_free(&arrays);
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_plan_sort(memo_plan* plan, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int64_t i = 1;
    while (i < plan->n_buffers && plan->buffers[i - 1].begin <= plan->buffers[i].begin) i++;
    if (i < plan->n_buffers) status = memoi_plan_order(plan, error);
    qsort(plan->gaps, (size_t)plan->n_gaps, sizeof(memo_gap), memoi_plan_compare_gaps);
    if (plan->n_holds > 0)
        qsort(plan->holds, (size_t)plan->n_holds, sizeof(memo_hold), memoi_plan_compare_holds);
    if (plan->n_waits > 0)
        qsort(plan->waits, (size_t)plan->n_waits, sizeof(memo_wait), memoi_plan_compare_waits);
    return status;
}

memo_status memo_plan_prepare(memo_plan* plan, memo_error* error) {
    int64_t culprit;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "plan", plan);
    status = memoi_plan_check(plan, &culprit, error);
    if (!status) status = memoi_plan_sort(plan, error);
    if (!status) status = memoi_plan_check_order(plan, &culprit, error);
    if (!status) status = memoi_plan_sweep(plan, 0, &plan->lower_bound_bytes, &culprit, error);
    if (status) return status;
    for (int64_t i = 0; i < plan->n_buffers; i++)
        plan->n_times = memob_max(plan->n_times, plan->buffers[i].end);
    return memob_check_integer("plan", "body_begin", plan->body_begin, 0, plan->n_times, error);
}
