/* fuzz_trace.c - gives any bytes to memo_trace_parse: they are refused with a message, or are a
 * usable trace.
 *
 * make -f .ci/checks.mk fuzz runs it with clang's libFuzzer; tests/memo/test_corpus.c replays the inputs that were
 * found. */
#ifndef FUZZ_REPLAY
#define FUZZ_WORDS
#define MEMO_IMPLEMENTATION
#endif
#include "memo.h"
#include "fuzz.h"
#include "tools/trace_layers.h"

static void same_trace(const memo_trace* a, const memo_trace* b) {
    FUZZ_CHECK(a->n_requests == b->n_requests && a->n_buffers == b->n_buffers &&
               a->n_live == b->n_live);
    for (int64_t i = 0; i < a->n_requests; i++) {
        const memo_request *x = &a->requests[i], *y = &b->requests[i];
        FUZZ_CHECK(x->kind == y->kind);
        if (x->kind == MEMO_REQUEST_MARK) {
            FUZZ_CHECK(strcmp(a->text + x->id, b->text + y->id) == 0);
            continue;
        }
        FUZZ_CHECK(x->id == y->id && x->stream == y->stream);
        FUZZ_CHECK(x->size_bytes == y->size_bytes && x->memory_class == y->memory_class);
        FUZZ_CHECK(x->kind != MEMO_REQUEST_MALLOC || memob_request_origin(a, i) == i);
    }
}

static void use_trace(memo_trace* trace) {
    memo_trace* other = NULL;
    memo_plan* plan = NULL;

    FUZZ_CHECK(memo_trace_write(trace, fuzz_path(), &fuzz_error) == MEMO_STATUS_OK);
    FUZZ_CHECK(memo_trace_read(fuzz_path(), &other, &fuzz_error) == MEMO_STATUS_OK);
    unlink(fuzz_path());
    same_trace(trace, other);
    memo_trace_destroy(other);

    /* May be refused, but must not break. */
    if (trace_apply_layers(trace, 5, &other, &fuzz_error) == MEMO_STATUS_OK)
        memo_trace_destroy(other);
    if (memo_plan_from_trace(trace, 0, &plan, &fuzz_error) == MEMO_STATUS_OK) {
        FUZZ_CHECK(memo_plan_prepare(plan, &fuzz_error) == MEMO_STATUS_OK);
        memo_plan_destroy(plan);
    }
}

static void fuzz_trace_text(const char* text, int64_t n_bytes) {
    memo_trace* trace = NULL;
    memo_status status = memo_trace_parse(text, n_bytes, "input", &trace, &fuzz_error);
    if (status) {
        fuzz_refused(status);
        return;
    }
    fuzz_n_accepted++;
    use_trace(trace);
    memo_trace_destroy(trace);
}

static void fuzz_trace(const uint8_t* data, size_t size) {
    fuzz_text("memo trace 1\n", 0, fuzz_trace_text, data, size);
}

FUZZ_TARGET(fuzz_trace)
