#pragma once
#include "plan/offsets/neighbors.h"
/* --- >>reuse ---
 * The bound of items with holds.  Door: memoi_problem_reuse.  Knows nothing of offsets.
 *
 * An item *follows* an earlier item if the two do not conflict: the later item can reuse bytes of
 * the earlier item.  Each item, in order of time, borrows bytes of items that it follows.  If these
 * lenders have lent all, a borrower of theirs borrows elsewhere, and so on: a flow.  Bytes that no
 * such exchange provides must be new.  The sum of new bytes is the largest sum of items that all
 * conflict with each other (Dilworth's theorem with weights, as holds of a trace make an order).
 * The sum is a bound for any holds, and for the first items alone.
 *
 * An exchange that fails has reached lenders from which nothing will ever come: these lenders leave
 * the list for good.  The borrowers of that exchange, less these lenders, are the largest set.
 *
 * 1. A lender lends at most its size, and a borrower gives up at most what it has borrowed. */

enum { MEMOI_REUSE_LOOKS = 1 << 27 }; /* at items; then the bound is that of the first items */

typedef struct memoi_loan {
    int64_t bytes;
    int32_t lender, borrower;
    int32_t next; /* of the lender, -1: none */
} memoi_loan;

typedef struct memoi_reuse {
    const memoi_problem* problem;
    memob_arrays arrays;
    uint64_t* unspent; /* lenders with bytes left, one bit for each item */
    uint64_t* unseen;  /* lenders that the present exchange has not reached */
    uint64_t* asker;   /* scratch: neighbors of an item */
    uint64_t* taker;   /* scratch: neighbors of another item */
    int32_t* seen;     /* lenders that the exchange has reached */
    int32_t* queue;    /* borrowers that the exchange has reached */
    int64_t n_seen, n_queued, n_looks;
    int64_t* left;       /* bytes of an item that are not lent */
    int32_t* first_loan; /* of a lender */
    int32_t* asked_by;   /* the borrower by which the exchange reached a lender */
    int32_t* gives_up;   /* the loan by which the exchange reached a borrower */
    int32_t* reached_in; /* a borrower: the number of the exchange; INT32_MAX: of one that failed */
    memoi_loan* loans;
    int64_t n_loans, loan_capacity;
} memoi_reuse;

MEMOI int memoi_reuse_create(memoi_reuse* reuse, const memoi_problem* problem) {
    int64_t n = problem->n_items, n_words = n / 64 + 1;
    memob_arrays* a = &reuse->arrays;
    memset(reuse, 0, sizeof *reuse);
    reuse->problem = problem;
    reuse->left = MEMOB_ARRAY(a, int64_t, n);
    reuse->unspent = MEMOB_ARRAY(a, uint64_t, n_words);
    reuse->unseen = MEMOB_ARRAY(a, uint64_t, n_words);
    reuse->asker = MEMOB_ARRAY(a, uint64_t, n_words);
    reuse->taker = MEMOB_ARRAY(a, uint64_t, n_words);
    reuse->seen = MEMOB_ARRAY(a, int32_t, n);
    reuse->queue = MEMOB_ARRAY(a, int32_t, n);
    reuse->first_loan = MEMOB_ARRAY(a, int32_t, n);
    reuse->asked_by = MEMOB_ARRAY(a, int32_t, n);
    reuse->gives_up = MEMOB_ARRAY(a, int32_t, n);
    reuse->reached_in = MEMOB_ARRAY(a, int32_t, n);
    if (a->failed) return 0;
    for (int64_t k = 0; k < n; k++) reuse->first_loan[k] = -1;
    return 1;
}

MEMOI void memoi_reuse_set(uint64_t* set, int32_t i, int is_in) {
    set[i / 64] = (set[i / 64] & ~((uint64_t)1 << i % 64)) | (uint64_t)is_in << i % 64;
}

/* Marks the neighbors of item j that come before it. */
MEMOI void memoi_reuse_mark(memoi_reuse* reuse, uint64_t* mark, int32_t j) {
    const memoi_neighbors* neighbors = reuse->problem->neighbors;
    memset(mark, 0, (size_t)(j / 64 + 1) * sizeof *mark);
    for (int64_t k = neighbors->first[j]; k < neighbors->first[j + 1]; k++)
        if (neighbors->list[k] < j) memoi_reuse_set(mark, neighbors->list[k], 1);
    reuse->n_looks += neighbors->first[j + 1] - neighbors->first[j];
}

/* The latest item before i that is in a set and has no mark; n: none.  The latest lender is the
 * best choice, because the fewest items follow a late item. */
MEMOI int32_t memoi_reuse_latest(memoi_reuse* reuse, const uint64_t* set, const uint64_t* mark,
                                 int32_t i) {
    int32_t word = i / 64;
    uint64_t found = set[word] & ~mark[word] & (((uint64_t)1 << i % 64) - 1);
    for (; found == 0 && word > 0; found = set[word] & ~mark[word]) {
        word--;
        reuse->n_looks++;
    }
    return found ? 64 * word + 63 - __builtin_clzll(found) : (int32_t)reuse->problem->n_items;
}

/* Looks for a lender with bytes left, at the end of a chain of exchanges that begins with item j.
 * *borrower: the item that follows this lender.  Returns n if there is no such lender. */
MEMOI int32_t memoi_reuse_find(memoi_reuse* reuse, int32_t j, int32_t exchange, int32_t* borrower) {
    int32_t n = (int32_t)reuse->problem->n_items, i, k, lender;

    *borrower = j;
    memoi_reuse_mark(reuse, reuse->asker, j);
    lender = memoi_reuse_latest(reuse, reuse->unspent, reuse->asker, j);
    if (lender < n) return lender;

    /* By exchanges: whoever borrows from a lender that the last one follows is the next. */
    reuse->n_seen = reuse->n_queued = 0;
    reuse->queue[reuse->n_queued++] = j;
    reuse->reached_in[j] = exchange;
    for (int64_t at = 0; at < reuse->n_queued; at++) {
        int32_t b = reuse->queue[at];
        memoi_reuse_mark(reuse, reuse->asker, b);
        for (i = b; (i = memoi_reuse_latest(reuse, reuse->unseen, reuse->asker, i)) < n;) {
            memoi_reuse_set(reuse->unseen, i, 0);
            reuse->seen[reuse->n_seen++] = i;
            reuse->asked_by[i] = b;
            for (k = reuse->first_loan[i]; k >= 0; k = reuse->loans[k].next) {
                int32_t other = reuse->loans[k].borrower;
                reuse->n_looks++;
                if (reuse->loans[k].bytes == 0 || reuse->reached_in[other] >= exchange) continue;
                reuse->reached_in[other] = exchange;
                reuse->gives_up[other] = k;
                *borrower = reuse->queue[reuse->n_queued++] = other;
                memoi_reuse_mark(reuse, reuse->taker, other);
                lender = memoi_reuse_latest(reuse, reuse->unspent, reuse->taker, other);
                if (lender < n) return lender;
            }
        }
    }
    return n;
}

/* Item j borrows up to `need` bytes along a chain that ends at a lender.  Returns how many; -1: no
 * memory. */
MEMOI int64_t memoi_reuse_exchange(memoi_reuse* reuse, int32_t j, int64_t need, int32_t lender,
                                   int32_t borrower) {
    int64_t bytes = memob_min(need, reuse->left[lender]);
    for (int32_t b = borrower; b != j; b = reuse->asked_by[reuse->loans[reuse->gives_up[b]].lender])
        bytes = memob_min(bytes, reuse->loans[reuse->gives_up[b]].bytes);
    MEMO_ASSERT(bytes > 0 && bytes <= reuse->left[lender]); /* 1 */
    reuse->left[lender] -= bytes;
    if (reuse->left[lender] == 0) memoi_reuse_set(reuse->unspent, lender, 0);
    for (;; borrower = reuse->asked_by[lender]) {
        const memoi_loan loan = {bytes, lender, borrower, reuse->first_loan[lender]};
        if (reuse->n_loans == INT32_MAX ||
            !memob_reserve(&reuse->loans, &reuse->loan_capacity, reuse->n_loans + 1, sizeof loan))
            return -1;
        reuse->loans[reuse->n_loans] = loan;
        reuse->first_loan[lender] = (int32_t)reuse->n_loans++;
        if (borrower == j) return bytes;
        reuse->loans[reuse->gives_up[borrower]].bytes -= bytes;
        MEMO_ASSERT(reuse->loans[reuse->gives_up[borrower]].bytes >= 0); /* 1 */
        lender = reuse->loans[reuse->gives_up[borrower]].lender;
    }
}

/* Raises the bound of a problem with holds, which has lists of neighbors.  is_in_set, of an item: 1
 * in the largest set found.  0: no memory. */
MEMOI int memoi_problem_reuse(memoi_problem* problem, char* is_in_set) {
    enum { BEGUN = 1, OVER = 2 };
    int64_t bound = 0, bytes = 0;
    int32_t n = (int32_t)problem->n_items, j, exchange = 1, borrower = 0, lender = 0;
    memoi_reuse reuse;
    int ok;
    if (MEMOI_WITHOUT(reuse)) return 1;
    ok = memoi_reuse_create(&reuse, problem);

    /* Each item takes over bytes of earlier items.  The bytes that the item still lacks raise the
     * bound. */
    for (j = 0; ok && j < n && reuse.n_looks < MEMOI_REUSE_LOOKS; j++) {
        int64_t need = problem->items[j].size;
        for (; ok && need > 0; need -= bytes, exchange++) {
            lender = memoi_reuse_find(&reuse, j, exchange, &borrower);
            if (lender == n) break;
            while (reuse.n_seen > 0) memoi_reuse_set(reuse.unseen, reuse.seen[--reuse.n_seen], 1);
            bytes = memoi_reuse_exchange(&reuse, j, need, lender, borrower);
            ok = bytes > 0 && exchange < INT32_MAX - 1;
        }

        bound += need;
        for (; need > 0 && reuse.n_seen > 0; reuse.n_seen--)
            is_in_set[reuse.seen[reuse.n_seen - 1]] |= OVER;
        for (; need > 0 && reuse.n_queued > 0; reuse.n_queued--) {
            is_in_set[reuse.queue[reuse.n_queued - 1]] |= BEGUN;
            reuse.reached_in[reuse.queue[reuse.n_queued - 1]] = INT32_MAX;
        }
        reuse.left[j] = problem->items[j].size;
        memoi_reuse_set(reuse.unspent, j, 1);
        memoi_reuse_set(reuse.unseen, j, 1);
    }

    for (j = 0; j < n; j++) is_in_set[j] = is_in_set[j] == BEGUN;
    memob_arrays_free(&reuse.arrays);
    MEMO_FREE(reuse.loans);
    problem->lower_bound = memob_max(problem->lower_bound, bound - problem->spare);
    return ok;
}
