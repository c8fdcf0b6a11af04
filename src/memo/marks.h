#pragma once
#include "memo/trace.h"
/* ---- >>marks ------------------------------------------------------------------------------------
 * Knows: what a mark says.  Knows nothing of files.
 *
 * 1. A mark of a forward, recompute or backward has a layer; no other has one. */

static const char* const memob_phase_names[] MEMO_UNUSED = {"", "", "forward", "recompute",
                                                            "backward"};
MEMOB_TABLE_OF(MEMO_N_PHASES, memob_phase_names);

memo_mark memo_mark_parse(const char* text) {
    memob_reader reader;
    const memo_mark none = {MEMO_PHASE_NONE, -1, 0};
    memo_mark mark = none;
    if (!text) return none;
    (void)memob_reader_init(&reader, text, (int64_t)strlen(text), "mark", NULL);
    if (!memoi_reader_next_line(&reader) || !memoi_next_word(&reader)) return none;

    /* "iteration" or "layer N PHASE", then "begin" or "end". */
    if (memob_word_is(&reader, "iteration"))
        mark.phase = MEMO_PHASE_ITERATION;
    else if (memob_word_is(&reader, "layer") && memoi_next_word(&reader) &&
             memoi_word_number(reader.word, reader.length, &mark.layer) && mark.layer >= 0 &&
             memoi_next_word(&reader))
        for (int i = MEMO_PHASE_FORWARD; i < MEMO_N_PHASES; i++)
            if (memob_word_is(&reader, memob_phase_names[i])) mark.phase = (memo_phase)i;
    if (mark.phase == MEMO_PHASE_NONE || !memoi_next_word(&reader)) return none;
    mark.is_end = memob_word_is(&reader, "end");
    if (!mark.is_end && !memob_word_is(&reader, "begin")) return none;
    MEMO_ASSERT((mark.layer >= 0) == (mark.phase >= MEMO_PHASE_FORWARD)); /* 1 */
    return memoi_next_word(&reader) ? none : mark;
}

/* The parsed mark of request i; of no phase if it is not a mark. */
MEMOI memo_mark memob_request_mark(const memo_trace* trace, int64_t i) {
    return memo_mark_parse(
        trace->requests[i].kind == MEMO_REQUEST_MARK ? trace->text + trace->requests[i].id : NULL);
}
