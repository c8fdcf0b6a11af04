/* fuzz_schedule.c - gives any bytes to the parser of schedules: they are refused with a message, or
 * are a schedule that can be written, read back, checked, explained, simulated and drawn.
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

static void same_schedule(const memo_schedule* a, const memo_schedule* b) {
    FUZZ_CHECK(memo_schedule_compare(a, b, &fuzz_error) == MEMO_STATUS_OK);
    for (int64_t i = 0; i < a->n_ops; i++) {
        const memo_op *x = &a->ops[i], *y = &b->ops[i];
        FUZZ_CHECK(x->stream == y->stream && x->event == y->event);
        FUZZ_CHECK(fabs(x->duration_s - y->duration_s) <= 1e-9 * x->duration_s ||
                   x->duration_s >= 1e9);
        for (int64_t k = 0; k < x->n_reads + x->n_writes; k++)
            FUZZ_CHECK(!memcmp(&a->ranges[x->first_range + k], &b->ranges[y->first_range + k],
                               sizeof(memo_range)));
    }
}

static void use_schedule(const memo_schedule* schedule) {
    memo_check* check;
    memo_simulation* times;
    char text[300];
    FUZZ_CHECK(memo_schedule_check(schedule, &check, &fuzz_error) == MEMO_STATUS_OK);
    for (int64_t i = 0; i < check->n_races && i < 50; i++)
        FUZZ_CHECK(*memo_race_explain(schedule, &check->races[i], text, sizeof text) == '"' &&
                   strlen(text) < sizeof text);
    for (int64_t i = 0; i < schedule->n_ops && i < 50; i++)
        FUZZ_CHECK(strlen(memo_schedule_describe(schedule, i, text, sizeof text)) > 0);
    FUZZ_CHECK(memo_schedule_simulate(schedule, &times, &fuzz_error) == MEMO_STATUS_OK);
    FUZZ_CHECK(memo_schedule_write_svg(schedule, times, "input", fuzz_path(), &fuzz_error) ==
               MEMO_STATUS_OK);
    memo_simulation_destroy(times);
    memo_check_destroy(check);
}

static void fuzz_schedule(const uint8_t* data, size_t size) {
    memo_schedule *schedule = NULL, *other = NULL;
    memob_reader reader;
    memo_status status = memob_reader_init(&reader, size ? (const char*)data : "", (int64_t)size,
                                           "input", &fuzz_error);
    if (!status) status = memoi_schedule_parse(&reader, &schedule, &fuzz_error);
    if (status) {
        fuzz_refused(status);
        return;
    }
    fuzz_n_accepted++;
    FUZZ_CHECK(memo_schedule_write(schedule, fuzz_path(), &fuzz_error) == MEMO_STATUS_OK);
    FUZZ_CHECK(memo_schedule_read(fuzz_path(), &other, &fuzz_error) == MEMO_STATUS_OK);
    same_schedule(schedule, other);
    use_schedule(other);
    unlink(fuzz_path());
    memo_schedule_destroy(other);
    memo_schedule_destroy(schedule);
}

FUZZ_TARGET(fuzz_schedule)
