/* plan_proof.h - writes why no plan is smaller, for check_proof.py, which trusts nothing here.
 *
 * A proof is one line: a moment, and an alignment.  The buffers that live at that moment and have at
 * least that alignment need their sizes rounded up to it, one after the other; only the highest
 * needs no rounding.  Or it names a fixed buffer, which ends at the peak.  A plan that only an
 * exhausted search proves has no such line.
 *
 * Include after the implementation of memo.h. */
#ifndef PLAN_PROOF_H
#define PLAN_PROOF_H

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

/* Writes the proof of a plan whose buffers have their rows as ids; *is_found: 0 if there is no such
 * proof, and no file then. */
static memo_status write_proof(const memo_plan* plan, const char* path, int* is_found,
                               memo_error* error) {
    const int64_t n_most = plan->n_buffers + plan->n_gaps;
    memob_piece* pieces = (memob_piece*)memob_calloc(n_most, sizeof(memob_piece));
    proof_change* changes = (proof_change*)memob_calloc(2 * n_most, sizeof(proof_change));
    int64_t n, alignments = 0, time = -1, fixed = -1, alignment = 1;
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
    }
    for (; alignments && time < 0 && fixed < 0; alignments &= alignments - 1) {
        alignment = alignments & -alignments;
        time = proof_time(plan, pieces, n, alignment, changes);
    }
    free(pieces);
    free(changes);
    if (time < 0 && fixed < 0 && plan->peak_bytes > 0) return MEMO_STATUS_OK;

    *is_found = 1;
    memo_text_put(&text, "memo proof 1\nalign %lld\npeak %lld\n", (long long)plan->alignment_bytes,
                  (long long)plan->peak_bytes);
    if (fixed >= 0)
        memo_text_put(&text, "fixed %lld\n", (long long)fixed);
    else if (time >= 0)
        memo_text_put(&text, "moment %lld alignment %lld\n", (long long)time, (long long)alignment);
    memo_text_put(&text, "end\n");
    return memo_text_write(&text, path, error);
}

#endif
