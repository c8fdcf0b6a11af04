#pragma once
#include "memo/trace.h"
/* ---- >>marks ------------------------------------------------------------------------------------
 * Knows: what a mark says, and classes.  Knows nothing of files.
 *
 * 1. A mark of a forward, recompute or backward has a layer; no other has one.
 * 2. A free decides the class of a malloc before it. */

static const char* const memob_phase_names[] MEMO_UNUSED = {"", "", "forward", "recompute",
                                                            "backward"};

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
        for (int i = MEMO_PHASE_FORWARD; i <= MEMO_PHASE_BACKWARD; i++)
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

void memo_trace_classify(memo_trace* trace) {
    /* The class of buffers requested in a forward until they are freed: no value of the enum. */
    const memo_class undecided = (memo_class)3;
    int64_t i, forward_begin = -1; /* of the open forward */

    /* A free decides: inside the same forward transient, after it skeletal. */
    for (i = 0; i < trace->n_requests; i++) {
        memo_request* request = &trace->requests[i];
        memo_request* origin;
        if (request->kind == MEMO_REQUEST_MARK) {
            memo_mark mark = memob_request_mark(trace, i);
            if (mark.phase == MEMO_PHASE_FORWARD) forward_begin = mark.is_end ? -1 : i;
        } else if (request->kind == MEMO_REQUEST_MALLOC) {
            if (forward_begin >= 0 && request->memory_class == MEMO_CLASS_TRANSIENT)
                request->memory_class = undecided;
        } else if (request->kind == MEMO_REQUEST_FREE) {
            origin = &trace->requests[memob_request_origin(trace, i)];
            MEMO_ASSERT(origin->kind == MEMO_REQUEST_MALLOC && origin < request); /* 2 */
            if (origin->memory_class != undecided) continue;
            origin->memory_class =
                forward_begin >= 0 && memob_request_origin(trace, i) > forward_begin
                    ? MEMO_CLASS_TRANSIENT
                    : MEMO_CLASS_SKELETAL;
        }
    }

    for (i = 0; i < trace->n_requests; i++)
        if (trace->requests[i].kind == MEMO_REQUEST_MALLOC &&
            trace->requests[i].memory_class == undecided)
            trace->requests[i].memory_class = MEMO_CLASS_TRANSIENT; /* never freed */
}
