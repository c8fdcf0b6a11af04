/* schedules.h - schedules for tests: empty, from text, random.
 *
 * Include it after memo_look.h. */
#ifndef SCHEDULES_H
#define SCHEDULES_H

#include "owned.h"

static const char* const schedule_names[] = {"to host", "compute", "a \"b\" \\ c", "writes"};

/* At most four streams. */
static memo_schedule* new_schedule(int n_streams, int n_events) {
    memo_schedule* schedule;
    int32_t index;
    CHECK_OK(memo_schedule_create(&schedule, &error));
    for (int i = 0; i < n_streams; i++) {
        CHECK_OK(memo_schedule_add_stream(schedule, schedule_names[i], &index, &error));
        CHECK_IS(index, ==, i);
    }
    for (int i = 0; i < n_events; i++) {
        CHECK_OK(memo_schedule_add_event(schedule, &index, &error));
        CHECK_IS(index, ==, i);
    }
    return schedule;
}

static memo_range range_of(uint64_t begin, uint64_t end) {
    return (memo_range){.begin = begin, .end = end};
}

/* Reads text from a file. */
static memo_status read_text(const char* text, memo_schedule** schedule) {
    char path[250];
    memo_test_path(path, "text.schedule");
    FILE* file = fopen(path, "w");
    CHECK(file && fputs(text, file) >= 0);
    if (file) fclose(file);
    memo_status status = memo_schedule_read(path, schedule, &error);
    remove(path);
    return status;
}

static memo_schedule* parsed(const char* text) {
    memo_schedule* schedule = NULL;
    CHECK_OK(read_text(text, &schedule));
    return schedule;
}

static memo_schedule* random_schedule(int n_ops, int n_streams, int64_t n_bytes) {
    int n_events = (int)memo_test_int(1, 4), i, k;
    memo_schedule* schedule = new_schedule(n_streams, n_events);
    int64_t kinds = memo_test_int(8, 13); /* some without host synchronization */
    /* Some tidy: one range an op, waits before and a record after, so that single waits matter. */
    int is_tidy = memo_test_int(0, 2) > 0, next = 0; /* kinds of the next ops, last digit first */
    int32_t stream = 0;
    for (i = 0; i < n_ops; i++) {
        int64_t kind = memo_test_int(0, kinds);
        int32_t event = (int32_t)memo_test_int(0, n_events - 1);
        if (!next) stream = (int32_t)memo_test_int(0, n_streams - 1);
        if (is_tidy && !next && kind <= 9) next = memo_test_int(0, 1) ? 507 : 50;
        if (next) {
            kind = next % 10;
            next /= 10;
        }
        if (kind <= 4) {
            memo_range ranges[6];
            memo_op_desc desc = {.stream = stream,
                                 .name = memo_test_int(0, 3) ? "op"
                                                             : schedule_names[memo_test_int(0, 3)]};
            for (k = 0; k < 6; k++) {
                int64_t begin = memo_test_int(0, n_bytes);
                ranges[k] =
                    range_of((uint64_t)begin,
                             (uint64_t)(begin + memo_test_int(is_tidy, memo_test_int(1, 6))));
            }
            desc.reads = ranges;
            desc.n_reads = memo_test_int(0, is_tidy ? 1 : 3);
            desc.writes = ranges + 3;
            desc.n_writes =
                is_tidy ? memo_test_int(0, 2) > 0 : memo_test_int(0, memo_test_int(0, 3));
            desc.duration_s = (double)memo_test_int(0, 5);
            desc.link_bytes = memo_test_int(0, 8);
            CHECK_OK(memo_schedule_add_op(schedule, &desc, &error));
        } else if (kind <= 6) {
            CHECK_OK(memo_schedule_add_order(schedule, MEMO_OP_RECORD, event, stream, &error));
        } else if (kind <= 9) {
            CHECK_OK(memo_schedule_add_order(schedule, MEMO_OP_WAIT, event, stream, &error));
        } else if (kind == 10 && memo_test_int(0, 2) == 0) {
            CHECK_OK(memo_schedule_add_order(schedule, MEMO_OP_SYNC, -1, stream, &error));
        } else if (kind == 11 && memo_test_int(0, 2) == 0) {
            CHECK_OK(memo_schedule_add_order(schedule, MEMO_OP_SYNC, event, -1, &error));
        }
    }
    return schedule;
}

#endif
