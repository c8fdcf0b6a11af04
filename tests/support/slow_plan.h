/* slow_plan.h - a plan's lifetimes, conflicts, bound and validity, the slow and obvious way: pair
 * by pair, moment by moment.  Shares no code with memo.h.
 *
 * Include after memo.h and owned.h. */
#ifndef SLOW_PLAN_H
#define SLOW_PLAN_H

/* Buffer i of the plan, with id i. */
static MEMO_UNUSED memo_buffer* put_buffer(memo_plan* plan, int64_t i, int64_t begin, int64_t end,
                                           int64_t size_bytes) {
    plan->buffers[i].id = i;
    plan->buffers[i].begin = begin;
    plan->buffers[i].end = end;
    plan->buffers[i].size_bytes = size_bytes;
    return &plan->buffers[i];
}

/* A full rectangle cut into n buffers; the next to be cut is the largest of `of` random ones. */
static MEMO_UNUSED void cut_rectangle(memo_buffer* buffers, int64_t n, int64_t height, int of) {
    int64_t made = 1;
    buffers[0].end = 4 * n;
    buffers[0].size_bytes = height;
    while (made < n) {
        memo_buffer *piece = NULL, *rest = &buffers[made];
        for (int k = 0; k < of; k++) {
            memo_buffer* other = &buffers[memo_test_int(0, made - 1)];
            if (!piece || (double)(other->end - other->begin) * (double)other->size_bytes >
                              (double)(piece->end - piece->begin) * (double)piece->size_bytes)
                piece = other;
        }
        *rest = *piece;
        if (memo_test_int(0, 1) && piece->end - piece->begin > 1) {
            piece->end = rest->begin = memo_test_int(piece->begin + 1, piece->end - 1);
            made++;
        } else if (piece->size_bytes > 1) {
            piece->size_bytes = memo_test_int(1, piece->size_bytes - 1);
            rest->size_bytes -= piece->size_bytes;
            made++;
        }
    }
}

/* Sizes are valid: at most 2^62. */
static int64_t slow_size(const memo_plan* plan, int64_t i) {
    return (plan->buffers[i].size_bytes + plan->alignment_bytes - 1) / plan->alignment_bytes *
           plan->alignment_bytes;
}

static int64_t slow_alignment(const memo_plan* plan, int64_t i) {
    return plan->buffers[i].alignment_bytes ? plan->buffers[i].alignment_bytes
                                            : plan->alignment_bytes;
}

/* The bytes of a buffer that are live; -1: it does not live. */
static int64_t slow_live_bytes(const memo_plan* plan, int64_t i, int64_t time) {
    if (time < plan->buffers[i].begin || time >= plan->buffers[i].end) return -1;
    for (int64_t g = 0; g < plan->n_gaps; g++)
        if (plan->gaps[g].buffer == i && time >= plan->gaps[g].begin && time < plan->gaps[g].end)
            return -1;
    return slow_size(plan, i);
}

/* Bytes begin to live together only when a lifetime begins or a gap ends: the times of these. */
static int64_t slow_n_moments(const memo_plan* plan) { return plan->n_buffers + plan->n_gaps; }
static int64_t slow_moment(const memo_plan* plan, int64_t m) {
    return m < plan->n_buffers ? plan->buffers[m].begin : plan->gaps[m - plan->n_buffers].end;
}

/* The most bytes of k that are live while i lives; -1: they never live together. */
static int64_t slow_meet_bytes(const memo_plan* plan, int64_t i, int64_t k) {
    int64_t bytes = -1;
    for (int64_t m = 0; m < slow_n_moments(plan); m++)
        if (slow_live_bytes(plan, i, slow_moment(plan, m)) >= 0 &&
            slow_live_bytes(plan, k, slow_moment(plan, m)) > bytes)
            bytes = slow_live_bytes(plan, k, slow_moment(plan, m));
    return bytes;
}

/* i ends before k begins, which must not have its bytes yet. */
static int slow_holds(const memo_plan* plan, int64_t i, int64_t k) {
    if (plan->buffers[i].end > plan->buffers[k].begin) return 0;
    for (int64_t h = 0; h < plan->n_holds; h++)
        if (plan->holds[h].buffer == i && plan->holds[h].lane == plan->buffers[k].lane &&
            plan->buffers[k].begin < plan->holds[h].until)
            return 1;
    return 0;
}

static MEMO_UNUSED int slow_conflict(const memo_plan* plan, int64_t i, int64_t k) {
    return slow_holds(plan, i, k) || slow_holds(plan, k, i) || slow_meet_bytes(plan, i, k) >= 0;
}

static int slow_overlap(const memo_plan* plan, int64_t i, int64_t i_bytes, int64_t k,
                        int64_t k_bytes) {
    const memo_buffer *a = &plan->buffers[i], *b = &plan->buffers[k];
    return i_bytes > 0 && k_bytes > 0 && a->offset_bytes < b->offset_bytes + k_bytes &&
           b->offset_bytes < a->offset_bytes + i_bytes;
}

static MEMO_UNUSED int slow_share_bytes(const memo_plan* plan, int64_t i, int64_t k) {
    return slow_overlap(plan, i, slow_size(plan, i), k, slow_size(plan, k));
}

/* They share a byte that they may not. */
static MEMO_UNUSED int slow_collide(const memo_plan* plan, int64_t i, int64_t k) {
    if (slow_share_bytes(plan, i, k) && (slow_holds(plan, i, k) || slow_holds(plan, k, i)))
        return 1;
    for (int64_t m = 0; m < slow_n_moments(plan); m++)
        if (slow_overlap(plan, i, slow_live_bytes(plan, i, slow_moment(plan, m)), k,
                         slow_live_bytes(plan, k, slow_moment(plan, m))))
            return 1;
    return 0;
}

static MEMO_UNUSED int64_t slow_peak(const memo_plan* plan) {
    int64_t peak = 0;
    for (int64_t i = 0; i < plan->n_buffers; i++)
        if (plan->buffers[i].offset_bytes + slow_size(plan, i) > peak)
            peak = plan->buffers[i].offset_bytes + slow_size(plan, i);
    return peak;
}

/* The largest sum of live sizes, or the top of a fixed buffer. */
static MEMO_UNUSED int64_t slow_bound(const memo_plan* plan) {
    int64_t bound = 0;
    for (int64_t m = 0; m < slow_n_moments(plan); m++) {
        int64_t sum = 0;
        for (int64_t i = 0; i < plan->n_buffers; i++)
            if (slow_live_bytes(plan, i, slow_moment(plan, m)) > 0)
                sum += slow_live_bytes(plan, i, slow_moment(plan, m));
        if (sum > bound) bound = sum;
    }
    for (int64_t i = 0; i < plan->n_buffers; i++)
        if (plan->buffers[i].is_fixed && plan->buffers[i].offset_bytes + slow_size(plan, i) > bound)
            bound = plan->buffers[i].offset_bytes + slow_size(plan, i);
    return bound;
}

/* Its peak is this, and proven. */
static MEMO_UNUSED void expect_optimal(const memo_plan* plan, int64_t peak_bytes) {
    CHECK_IS(plan->peak_bytes, ==, peak_bytes);
    CHECK_IS(plan->proof, ==, MEMO_PROOF_OPTIMAL);
}

/* What is wrong with a plan whose problem is valid, or NULL. */
static MEMO_UNUSED const char* slow_fault(const memo_plan* plan) {
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        const int64_t offset = plan->buffers[i].offset_bytes;
        if (offset < 0 || offset % slow_alignment(plan, i)) return "an offset";
        for (int64_t k = 0; k < i; k++)
            if (slow_collide(plan, i, k)) return "two buffers share bytes";
    }
    if (slow_peak(plan) != plan->peak_bytes) return "the peak";
    if (slow_bound(plan) != plan->lower_bound_bytes) return "the bound";
    return NULL;
}

#endif
