#pragma once
#include "memo/plan_from_trace.h"
#include "plan/offsets/plan_solve.h"
/* --- >>bought waits ---
 * Knows: waits on offer, and whether a plan is valid without some.  Knows nothing of engines.
 *
 * The first plan may use all offers, and buys the offers that its offsets need.  To find these,
 * offers are given up from the most expensive on, and among equal costs in order of time, because a
 * later wait orders what an earlier wait does.  Then the waits of a window of time are given back.
 * From then on two buffers pay if they share bytes and only offers that are not bought would order
 * the two.  Buffers that pay exchange places with other buffers, and the plan stays if it costs
 * less.  Without a trace, an offer orders its two buffers alone. */

enum {
    MEMOI_MARKET_STEPS = 10,   /* of an exchange, for each buffer */
    MEMOI_MARKET_ROUNDS = 24,  /* exchanges without gain */
    MEMOI_MARKET_MOVED = 12,   /* buffers that exchange places in a step, at most */
    MEMOI_MARKET_PRICED = 4000 /* buffers; pairs of a larger plan have no prices */
};
#define MEMOI_MARKET_NEVER   6.9e10             /* beyond all that a buffer can pay */
#define MEMOI_MARKET_NOWHERE (-MEMOB_BYTES_MAX) /* the offset of a buffer that looks for a place */

typedef struct memoi_market {
    memo_plan* plan;
    memo_plan_desc desc; /* of the next attempt */
    memo_wait* offers;   /* in order of time */
    memob_keyed* order;  /* the most expensive offer first, then by time */
    memo_wait* chosen;
    int64_t n;
    memo_plan best;   /* numbers of the row */
    int64_t* offsets; /* of the best */
    /* Sets of offers: bought by the best plan; of the next attempt; scratch. */
    char *bought, *trial, *part;
    double deadline;
    double* price; /* (n_buffers, n_buffers), symmetric, whole, to 1e6: of shared bytes */
    memob_keyed *edges, *sorted; /* where a buffer begins to be in the way, and ends; scratch */
    int32_t* place;              /* scratch of a digit */
    uint64_t random;
} memoi_market;

MEMOI int64_t memoi_market_random(memoi_market* m, int64_t n) {
    return (int64_t)(memoi_search_random(&m->random) % (uint64_t)n);
}

MEMOI memo_status memoi_market_set(memoi_market* m, const char* set, memo_error* error) {
    int64_t n = 0;
    for (int64_t i = 0; i < m->n; i++)
        if (set[i]) m->chosen[n++] = m->offers[i];
    return memob_plan_set_waits(m->plan, m->desc.trace, m->chosen, n, error);
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

/* Do two buffers share bytes? */
MEMOI int memoi_market_shares(const memoi_market* m, int64_t i, int64_t j) {
    const int64_t bytes[2] = {memob_buffer_bytes(m->plan, i), memob_buffer_bytes(m->plan, j)};
    return bytes[0] > 0 && bytes[1] > 0 && memob_plan_overlap(m->plan, i, bytes[0], j, bytes[1]);
}

/* Takes the offers on trial back that the plan's offsets do not need.  The plan is the best if the
 * rest costs at most `most_cost`. */
MEMOI memo_status memoi_market_fit(memoi_market* m, double most_cost, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int64_t group = m->n, next, n;
    for (int64_t i = 0; i < m->n && !m->desc.trace; i++)
        m->trial[i] = (char)memoi_market_shares(m, m->offers[i].freed, m->offers[i].requested);
    for (int64_t first = 0; first < m->n && m->desc.trace;) {
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

/* Sets the price of shared bytes. */
MEMOI void memoi_market_ask(memoi_market* m, int64_t i, int64_t j, double price) {
    const int64_t n = m->plan->n_buffers;
    if (m->plan->buffers[i].size_bytes > 0 && m->plan->buffers[j].size_bytes > 0)
        m->price[i * n + j] = m->price[j * n + i] = price;
}

/* Sets the prices of all pairs beside the waits on trial.  With a trace, a pair that these waits do
 * not order costs 1, otherwise what is on offer.  A pair that no offers order is forbidden. */
MEMOI memo_status memoi_market_price(memoi_market* m, memo_error* error) {
    const memo_plan* plan = m->plan;
    const double unit = 1e6 / m->offers[m->order[0].index].cost_s;
    memo_status status = MEMO_STATUS_OK;
    memset(m->price, 0, (size_t)(plan->n_buffers * plan->n_buffers) * sizeof(double));
    memset(m->part, 1, (size_t)m->n);
    for (int64_t k = 0; k < m->n && !m->desc.trace; k++)
        memoi_market_ask(m, m->offers[k].freed, m->offers[k].requested,
                         floor(unit * m->offers[k].cost_s));
    for (int all = 0; all < 2 && !status; all++) {
        status = memoi_market_set(m, all ? m->part : m->trial, error);
        for (int64_t h = 0, j = -1; memoi_holds_next(plan, &h, &j);)
            memoi_market_ask(m, plan->holds[h].buffer, j, all ? MEMOI_MARKET_NEVER : 1);
    }
    for (int64_t i = 0; i < plan->n_buffers; i++)
        for (int64_t j = i + 1;
             j < plan->n_buffers && plan->buffers[j].begin < plan->buffers[i].end; j++)
            memoi_market_ask(m, i, j, MEMOI_MARKET_NEVER);
    return status;
}

/* What buffer i pays at its present offset.  Bytes shared in a gap are free. */
MEMOI double memoi_market_pay(const memoi_market* m, int64_t i) {
    const double* price = m->price + i * m->plan->n_buffers;
    double sum = 0;
    for (int64_t j = 0; j < m->plan->n_buffers; j++)
        if (price[j] > 0 && price[j] < MEMOI_MARKET_NEVER && memoi_market_shares(m, i, j))
            sum += price[j];
    return sum;
}

/* Gives buffer i one of the cheapest offsets.  Returns what the buffer pays there; HUGE_VAL: no
 * room. */
MEMOI double memoi_market_place(memoi_market* m, int64_t i) {
    memo_buffer* buffers = m->plan->buffers;
    const double* price = m->price + i * m->plan->n_buffers;
    const int64_t size = memob_buffer_bytes(m->plan, i), capacity = m->desc.capacity_bytes;
    const int64_t alignment = memob_max(buffers[i].alignment_bytes, m->plan->alignment_bytes);
    int64_t n = 0, n_least = 0, last;
    double sum = 0, least = HUGE_VAL;
    for (int64_t j = 0; j < m->plan->n_buffers; j++) {
        if (!(price[j] > 0) || buffers[j].offset_bytes == MEMOI_MARKET_NOWHERE) continue;
        m->edges[n].key = buffers[j].offset_bytes - size + 1;
        m->edges[n++].index = j;
        m->edges[n].key = buffers[j].offset_bytes + memob_buffer_bytes(m->plan, j);
        m->edges[n++].index = -1 - j;
    }
    memoi_digits_sort(m->edges, n, -size, capacity, m->sorted, m->place);
    m->edges[n].key = capacity;

    /* From the ground or an edge on.  The first or the last offset leaves the larger hole.  Above
     * all other buffers, the first one makes the lower plan. */
    for (int64_t k = 0, offset = 0; offset <= capacity - size;
         offset = memob_align_up(m->edges[k].key, alignment)) {
        for (; m->edges[k].key <= offset; k++) {
            const int64_t j = m->edges[k].index;
            sum += j < 0 ? -price[-1 - j] : price[j];
        }
        if (sum >= MEMOI_MARKET_NEVER || sum > least) continue;
        n_least = sum < least ? 1 : n_least + 1;
        least = sum;
        if (memoi_market_random(m, n_least) > 0) continue;
        last = k < n && memoi_market_random(m, 2) ? m->edges[k].key - 1 : 0;
        last = memob_min(last, capacity - size);
        buffers[i].offset_bytes = memob_max(offset, last - last % alignment);
    }
    return least;
}

/* Buffers that pay, and buffers in their way, give up their offsets and take cheaper offsets.  An
 * offset of the same cost is taken, too, because cheaper offsets lie near.  Returns what all
 * buffers pay in the end. */
MEMOI double memoi_market_exchange(memoi_market* m) {
    const int64_t n = m->plan->n_buffers;
    memo_buffer* buffers = m->plan->buffers;
    int64_t moved[MEMOI_MARKET_MOVED], offsets[MEMOI_MARKET_MOVED], k;
    double total = 0;
    for (k = 0; k < n; k++) total += memoi_market_pay(m, k) / 2;
    for (int64_t step = 0; total > 0 && step < MEMOI_MARKET_STEPS * n; step++) {
        const int64_t most = 1 + memoi_market_random(m, MEMOI_MARKET_MOVED);
        int64_t n_moved = 0;
        double before = 0, after = 0;
        if (memob_now_s() > m->deadline) break;

        for (int64_t tries = 0; tries < 60 && n_moved < most; tries++) {
            const int64_t j = memoi_market_random(m, n);
            if (buffers[j].is_fixed || buffers[j].offset_bytes == MEMOI_MARKET_NOWHERE ||
                !(n_moved ? m->price[moved[memoi_market_random(m, n_moved)] * n + j] > 0
                          : memoi_market_pay(m, j) > 0))
                continue;
            before += memoi_market_pay(m, j);
            offsets[n_moved] = buffers[j].offset_bytes;
            buffers[j].offset_bytes = MEMOI_MARKET_NOWHERE;
            moved[n_moved++] = j;
        }

        for (k = 0; k < n_moved && after <= before; k++) after += memoi_market_place(m, moved[k]);
        for (k = 0; k < n_moved && after > before; k++) buffers[moved[k]].offset_bytes = offsets[k];
        total -= fmax(before - after, 0);
    }
    memoi_plan_measure(m->plan);
    return total;
}

/* Gives back the waits of a window, exchanges buffers, and buys the waits that the new offsets
 * need.  A plan of the same cost is taken, too. */
MEMOI memo_status memoi_market_improve(memoi_market* m, memo_error* error) {
    double cost = memoi_market_cost(m, m->bought), before;
    memo_status status = MEMO_STATUS_OK;
    for (int64_t round = 0, last = 0; round - last < MEMOI_MARKET_ROUNDS && !status; round++) {
        int64_t first = memoi_market_random(m, m->n);
        if (!(cost > 0) || memob_now_s() > m->deadline) break;
        while (!m->bought[first]) first = memoi_market_random(m, m->n);
        memcpy(m->trial, m->bought, (size_t)m->n);
        for (int64_t k = first; k < m->n && k <= first + (m->n >> round % 8); k++) m->trial[k] = 0;
        status = memoi_market_price(m, error);
        if (!status && memoi_market_exchange(m) > 0) memset(m->trial, 1, (size_t)m->n);
        if (!status) status = memoi_market_fit(m, cost, error);
        for (int64_t i = 0; i < m->plan->n_buffers; i++)
            m->plan->buffers[i].offset_bytes = m->offsets[i];
        before = cost;
        cost = memoi_market_cost(m, m->bought);
        if (cost < before) last = round;
    }
    return status;
}

MEMOI memo_status memoi_market_solve(memo_plan* plan, const memo_plan_desc* desc,
                                     memo_error* error) {
    const int64_t n = desc->n_offers;
    const int64_t n_priced = plan->n_buffers > MEMOI_MARKET_PRICED ? 0 : plan->n_buffers;
    memob_arrays arrays = {NULL, 0};
    memoi_market m;
    memo_error reason;
    memo_status status, result = MEMO_STATUS_INFEASIBLE;
    double limit_s = desc->time_limit_s;
    memset(&m, 0, sizeof m);
    m.plan = plan;
    m.n = n;
    m.desc = *desc;
    m.desc.n_offers = 0;
    m.random = desc->seed;
    m.deadline = memob_now_s() + limit_s;
    m.best.peak_bytes = INT64_MAX;
    m.offers = MEMOB_ARRAY(&arrays, memo_wait, n);
    m.order = MEMOB_ARRAY(&arrays, memob_keyed, n);
    m.chosen = MEMOB_ARRAY(&arrays, memo_wait, n);
    m.offsets = MEMOB_ARRAY(&arrays, int64_t, plan->n_buffers);
    m.price = MEMOB_ARRAY(&arrays, double, n_priced* n_priced);
    m.edges = MEMOB_ARRAY(&arrays, memob_keyed, 2 * n_priced + 1);
    m.sorted = MEMOB_ARRAY(&arrays, memob_keyed, 2 * n_priced);
    m.place = MEMOB_ARRAY(&arrays, int32_t, 2 * n_priced + 2);
    m.bought = MEMOB_ARRAY(&arrays, char, n);
    m.trial = MEMOB_ARRAY(&arrays, char, n);
    m.part = MEMOB_ARRAY(&arrays, char, n);
    status = arrays.failed ? memob_no_memory(error, "the waits of a plan")
                           : memob_plan_set_waits(plan, desc->trace, desc->offers, n, error);
    if (status) { /* a wrong offer */
        memob_arrays_free(&arrays);
        return status;
    }
    for (int64_t i = 0; i < n; i++) { /* as the plan has sorted them */
        m.offers[i] = plan->waits[i];
        m.order[i].key = -(int64_t)(1e15 * m.offers[i].cost_s);
        m.order[i].index = i;
    }
    qsort(m.order, (size_t)n, sizeof(memob_keyed), memob_keyed_compare);

    /* Without waits.  The bound of live buffers holds for any waits. */
    if (desc->trace) {
        result = status = memoi_market_plan(&m, limit_s / 8, error);
        if (!status || status == MEMO_STATUS_INFEASIBLE)
            status = memoi_market_fit(&m, HUGE_VAL, &reason);
    }

    /* With all offers, then with fewer. */
    if (!status &&
        (result || (desc->capacity_bytes == 0 && m.best.peak_bytes > plan->lower_bound_bytes))) {
        memset(m.trial, 1, (size_t)n);
        status = memoi_market_plan(&m, limit_s / 2, &reason);
        if ((!status || status == MEMO_STATUS_INFEASIBLE) && plan->peak_bytes < m.best.peak_bytes) {
            result = status;
            if (result && error) *error = reason;
            m.desc.capacity_bytes =
                memob_min(MEMOB_BYTES_MAX, memob_max(desc->capacity_bytes, plan->peak_bytes));
            status = memoi_market_fit(&m, HUGE_VAL, &reason);
            if (!status && n_priced > 0) status = memoi_market_improve(&m, &reason);
        }
        if (status == MEMO_STATUS_INFEASIBLE) status = MEMO_STATUS_OK;
    }

    /* The best plan; none without memory. */
    if (!status) status = memoi_market_set(&m, m.bought, &reason);
    if (status && status != result && error) *error = reason;
    for (int64_t i = 0; i < plan->n_buffers && !status; i++)
        plan->buffers[i].offset_bytes = m.offsets[i];
    plan->peak_bytes = m.best.peak_bytes;
    plan->proof = status ? MEMO_PROOF_NONE : m.best.proof;
    memcpy(plan->engine, m.best.engine, sizeof plan->engine);
    memob_arrays_free(&arrays);
    return status ? status : result;
}
