/* random_trace.h - a trace of several streams that use, free, record and wait at random.  Include it
 * after owned.h. */
#ifndef RANDOM_TRACE_H
#define RANDOM_TRACE_H

/* Events are 0 to 3.  is_ordered: a stream that uses a buffer mostly waits for its own before, and
 * is mostly waited for before the free. */
static memo_trace* random_trace(int64_t n, int n_streams, int64_t least_bytes, int has_classes,
                                int is_ordered) {
    memo_trace* trace = new_trace();
    int64_t live[200], n_live = 0, i, k, body = memo_test_int(0, 1) ? memo_test_int(0, n) : -1;
    int32_t own[200];
    for (i = 0; i < n; i++) {
        int32_t stream = (int32_t)memo_test_int(0, n_streams - 1) * 21;
        if (i == body) CHECK_OK(memo_trace_mark(trace, "iteration begin", &error));
        switch (memo_test_int(0, 9)) {
        case 0:
        case 1:
        case 2:
            CHECK_OK(memo_trace_malloc(trace, i, memo_test_int(least_bytes, 9),
                                       has_classes && memo_test_int(0, 9) == 0
                                           ? MEMO_CLASS_PERSISTENT
                                           : MEMO_CLASS_TRANSIENT,
                                       stream, &error));
            own[i] = stream;
            live[n_live++] = i;
            break;
        case 3:
        case 4:
            if (!n_live) break;
            k = memo_test_int(0, n_live - 1);
            CHECK_OK(memo_trace_free(trace, live[k], &error));
            live[k] = live[--n_live];
            break;
        case 5:
        case 6:
            if (!n_live) break;
            k = live[memo_test_int(0, n_live - 1)];
            if (is_ordered && memo_test_int(0, 3)) {
                CHECK_OK(memo_trace_record(trace, 0, own[k], &error));
                CHECK_OK(memo_trace_wait(trace, 0, stream, &error));
            }
            CHECK_OK(memo_trace_use(trace, k, stream, &error));
            if (is_ordered && memo_test_int(0, 2)) {
                CHECK_OK(memo_trace_record(trace, 1, stream, &error));
                CHECK_OK(memo_trace_wait(trace, 1, own[k], &error));
            }
            break;
        case 7: CHECK_OK(memo_trace_record(trace, memo_test_int(0, 3), stream, &error)); break;
        default: IGNORE(memo_trace_wait(trace, memo_test_int(0, 3), stream, NULL));
        }
    }
    return trace;
}

#endif
