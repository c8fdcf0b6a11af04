#pragma once
#include "memo/marks.h"
#include "plan/offsets/bi_level.h"
/* --- >>marked windows ---
 * Cuts the time of a trace into windows, one for each phase of a layer, at the marks of the trace.
 * Knows nothing of sizes. */

/* A mark inside a phase belongs to the phase, and a recomputation right before a backward to the
 * backward.  A phase is ignored if another layer interrupts it.  Each window has a request, so
 * there are at most as many windows as requests of buffers. */
MEMOI void memoi_windows_from_marks(memoi_bilevel* bilevel, const memo_trace* trace) {
    memo_mark open;
    int64_t time = 0, begin = 0;
    memset(&open, 0, sizeof open);
    for (int64_t i = 0; i < trace->n_requests; i++) {
        memo_request_kind kind = trace->requests[i].kind;
        memo_mark mark;
        time += kind == MEMO_REQUEST_MALLOC || kind == MEMO_REQUEST_FREE;
        if (kind != MEMO_REQUEST_MARK) continue;
        mark = memob_request_mark(trace, i);
        if (mark.layer < 0) continue;
        if (!mark.is_end && (open.phase == MEMO_PHASE_NONE || open.layer != mark.layer)) {
            open = mark;
            begin = time;
        } else if (!mark.is_end && open.phase == MEMO_PHASE_RECOMPUTE) {
            open.phase = mark.phase;
        } else if (mark.is_end && open.phase == mark.phase && open.layer == mark.layer) {
            open.phase = MEMO_PHASE_NONE;
            if (time == begin) continue;
            bilevel->windows[bilevel->n_windows].begin = begin;
            bilevel->windows[bilevel->n_windows++].end = time;
        }
    }
}
