/* test_bulk.c - host memory that several threads copy and clear, in small parts. */
#define MEMOB_BULK_PART_BYTES 4096
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#include "memo.h"
#include "memo_test.h"
#include <stdlib.h>

/* Any size, from one part to more than all threads take at once: the bytes, and none beside them. */
TEST(bytes_are_copied_and_cleared) {
    enum { MOST = 40 * 4096, EDGE = 64 };
    static char from[MOST], to[EDGE + MOST + EDGE];
    for (int i = 0; i < MOST; i++) from[i] = (char)memo_test_random();
    for (int round = 0; round < 60; round++) {
        const int64_t n = round < 4 ? round : memo_test_int(0, MOST);
        memset(to, 7, sizeof to);
        memob_bulk_copy(to + EDGE, from, n);
        CHECK_CASE(!memcmp(to + EDGE, from, (size_t)n), "%lld bytes", (long long)n);
        for (int64_t i = 0; i < EDGE; i++) CHECK(to[i] == 7 && to[EDGE + n + i] == 7);
        memob_bulk_copy(to + EDGE, NULL, n);
        int64_t n_zero = 0;
        for (int64_t i = 0; i < n; i++) n_zero += to[EDGE + i] == 0;
        CHECK_IS(n_zero, ==, n);
        CHECK(to[EDGE - 1] == 7 && to[EDGE + n] == 7);
    }
}
