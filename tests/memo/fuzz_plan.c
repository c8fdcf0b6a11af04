/* fuzz_plan.c - gives any bytes to the parser of plans: they are refused with a message, or are a
 * valid plan.
 *
 * make -f .ci/checks.mk fuzz runs it with clang's libFuzzer; tests/memo/test_corpus.c replays the inputs that were
 * found. */
#ifndef FUZZ_REPLAY
#define FUZZ_WORDS
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#endif
#include "extras/memo_look.h"
#include "fuzz.h"

static void same_plan(const memo_plan* a, const memo_plan* b) {
    FUZZ_CHECK(a->n_buffers == b->n_buffers && a->n_gaps == b->n_gaps && a->n_holds == b->n_holds);
    FUZZ_CHECK(a->alignment_bytes == b->alignment_bytes && a->n_times == b->n_times);
    FUZZ_CHECK(a->body_begin == b->body_begin && a->peak_bytes == b->peak_bytes);
    FUZZ_CHECK(a->lower_bound_bytes == b->lower_bound_bytes && a->proof == b->proof);
    FUZZ_CHECK(strcmp(a->engine, b->engine) == 0);
    for (int64_t i = 0; i < a->n_buffers; i++) {
        const memo_buffer *x = &a->buffers[i], *y = &b->buffers[i];
        FUZZ_CHECK(x->id == y->id && x->size_bytes == y->size_bytes);
        FUZZ_CHECK(x->begin == y->begin && x->end == y->end && x->offset_bytes == y->offset_bytes);
        FUZZ_CHECK(x->alignment_bytes == y->alignment_bytes && x->is_fixed == y->is_fixed);
        FUZZ_CHECK(x->stream == y->stream && x->lane == y->lane);
        FUZZ_CHECK(x->memory_class == y->memory_class);
    }
    for (int64_t i = 0; i < a->n_gaps; i++)
        FUZZ_CHECK(a->gaps[i].buffer == b->gaps[i].buffer && a->gaps[i].begin == b->gaps[i].begin &&
                   a->gaps[i].end == b->gaps[i].end);
    for (int64_t i = 0; i < a->n_holds; i++)
        FUZZ_CHECK(a->holds[i].buffer == b->holds[i].buffer &&
                   a->holds[i].lane == b->holds[i].lane && a->holds[i].until == b->holds[i].until);
    FUZZ_CHECK(a->n_waits == b->n_waits);
    for (int64_t i = 0; i < a->n_waits; i++) {
        const memo_wait *x = &a->waits[i], *y = &b->waits[i];
        FUZZ_CHECK(x->freed == y->freed && x->requested == y->requested && x->from == y->from &&
                   x->to == y->to && fabs(x->cost_s - y->cost_s) <= 1e-15 * (1 + x->cost_s));
    }
}

static void fuzz_plan_text(const char* text, int64_t n_bytes) {
    memo_plan *plan = NULL, *other = NULL;
    memob_reader reader;
    memo_status status = memob_reader_init(&reader, text, n_bytes, "input", &fuzz_error);
    if (!status) status = memoi_plan_parse(&reader, &plan, &fuzz_error);
    if (status) {
        fuzz_refused(status);
        return;
    }
    fuzz_n_accepted++;
    FUZZ_CHECK(memo_plan_validate(plan, &fuzz_error) == MEMO_STATUS_OK);
    FUZZ_CHECK(memo_plan_write(plan, fuzz_path(), &fuzz_error) == MEMO_STATUS_OK);
    FUZZ_CHECK(memo_plan_read(fuzz_path(), &other, &fuzz_error) == MEMO_STATUS_OK);
    same_plan(plan, other);
    FUZZ_CHECK(memo_plan_write_svg(plan, NULL, "input", fuzz_path(), &fuzz_error) ==
               MEMO_STATUS_OK);
    unlink(fuzz_path());
    memo_plan_destroy(other);
    memo_plan_destroy(plan);
}

static void fuzz_plan(const uint8_t* data, size_t size) {
    fuzz_text("memo plan 1\n", 1, fuzz_plan_text, data, size);
}

FUZZ_TARGET(fuzz_plan)
