/* test_faults.c - memo_look.h: the whole table is wrapped, the chosen calls fail, and a missing
 * wait is seen. */
#include "extras/memo_look.h"
#include "stats.h"
#include "owned.h"

static memo_status annotate(MEMO_UNUSED void* context, MEMO_UNUSED memo_stream stream,
                            MEMO_UNUSED const struct memo_op_desc* op, MEMO_UNUSED memo_error* e) {
    return MEMO_STATUS_OK;
}

/* Word by word, so that a function that is added to the table is not forgotten. */
TEST(every_function_is_wrapped) {
    const size_t first = offsetof(memo_device, device_alloc), word = sizeof(void (*)(void));
    own_device* host = new_device(MEMO_ZERO(memo_host_device_desc));
    memo_device inner = *host;
    memo_faults f;
    size_t n_wrapped = 0, n_passed = 0;
    inner.annotate = annotate;
    memo_faults_init(&f, &inner);
    for (size_t at = first; at < offsetof(memo_device, inner); at += word) {
        static const char none[sizeof(void (*)(void))];
        int is_there = memcmp((char*)&inner + at, none, word) != 0;
        CHECK_CASE((memcmp((char*)&inner + at, (char*)&f.device + at, word) != 0) == is_there,
                   "word %d", (int)((at - first) / word));
        n_wrapped += (size_t)is_there;
    }
    CHECK_IS(n_wrapped, >, 20);

    /* What the inner device lacks, or is too old to have, the device lacks. */
    inner.struct_bytes = (int64_t)offsetof(memo_device, annotate);
    memo_faults_init(&f, &inner);
    for (size_t at = (size_t)inner.struct_bytes; at < offsetof(memo_device, inner); at += word) {
        static const char none[sizeof(void (*)(void))];
        n_passed += !memcmp(none, (char*)&f.device + at, word);
    }
    CHECK_IS(n_passed, ==, (offsetof(memo_device, inner) - offsetof(memo_device, annotate)) / word);
    CHECK(f.device.inner == &f.inner);
}

/* Ten fills; returns which calls failed, as bits. */
static int failed_calls(const memo_faults* f, memo_stream stream, char* bytes) {
    int failed = 0;
    for (int i = 0; i < 10; i++)
        failed |= (memo_fill(&f->device, stream, bytes, i + 1, 1, &error) != 0) << i;
    return failed;
}

TEST(the_chosen_calls_fail) {
    own_device* host = new_device(MEMO_ZERO(memo_host_device_desc));
    memo_faults f;
    char byte = 0;
    memo_faults_init(&f, host);
    memo_stream stream = new_stream(&f.device, "work");
    CHECK(f.n_calls == 1 && !f.failed);

    f.failing_call = 1 + 10;
    CHECK_IS(failed_calls(&f, stream, &byte), ==, 1 << 9);
    CHECK_IS(strcmp(error.message, "fill: call 11 fails on purpose"), ==, 0);
    CHECK(f.n_calls == 11 && strcmp(f.failed, "fill") == 0);
    CHECK_OK(memo_stream_synchronize(&f.device, stream, &error));
    CHECK_IS(byte, ==, 9);

    f.n_calls = 0;
    f.failing_call = 1 + 10;
    CHECK_IS(failed_calls(&f, stream, &byte), ==, 0);
    CHECK_IS(memo_stream_synchronize(&f.device, stream, &error), ==, MEMO_STATUS_DEVICE);
    CHECK_IS(byte, ==, 10); /* it waited */

    f.n_calls = 0;
    f.failing_call = 3;
    f.is_late = 1;
    byte = 0;
    CHECK_IS(failed_calls(&f, stream, &byte) & 3, ==, 0); /* call 3 or a later one may see it */
    CHECK_ERROR(memo_stream_synchronize(&f.device, stream, &error), DEVICE,
                "call 3 fails on purpose, late");
    CHECK_IS(byte, ==, 2);
    CHECK_OK(memo_stream_destroy(&f.device, stream, &error));
}

/* Two streams; the second reads what the first writes.  Returns in how many of 40 rounds it was not
 * there. */
static int stale_reads(int waits, double delay_s) {
    own_device* host = new_device(MEMO_ZERO(memo_host_device_desc));
    memo_faults f;
    char a[40], b[40];
    int n_stale = 0;
    memo_faults_init(&f, host);
    f.delay_s = delay_s;
    f.seed = memo_test_random();
    memo_stream from = new_stream(&f.device, "from");
    memo_stream to = new_stream(&f.device, "to");
    memo_event written = new_event(&f.device);
    for (int i = 0; i < 40; i++) {
        a[i] = 0;
        CHECK_OK(memo_fill(&f.device, from, a + i, 7, 1, &error));
        CHECK_OK(memo_event_record(&f.device, written, from, &error));
        if (waits) CHECK_OK(memo_event_wait(&f.device, written, to, &error));
        CHECK_OK(memo_copy(&f.device, to, MEMO_COPY_ON_DEVICE, b + i, a + i, 1, &error));
        CHECK_OK(memo_stream_synchronize(&f.device, from, &error));
        CHECK_OK(memo_stream_synchronize(&f.device, to, &error));
        n_stale += b[i] != 7;
    }
    return n_stale;
}

TEST(delays_show_a_missing_wait) {
    CHECK_IS(stale_reads(1, 1e-3), ==, 0);
#ifndef MEMO_TEST_TSAN /* which finds the missing wait, too */
    CHECK_IS(stale_reads(0, 1e-3), >, 0);
#endif
}
