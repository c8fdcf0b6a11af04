/* orders.h - runs a test whose threads take turns (turns.h) in orders drawn from seeds.
 *
 * Nobody sleeps, and no result depends on the machine's speed.  Include turns.h before memo.h and
 * its implementation, and this header after memo_test.h. */
#ifndef ORDERS_H
#define ORDERS_H

/* A turn takes tick_ns of the clock of these threads; 0: they have the real clock. */
static MEMO_UNUSED void in_timed_orders(void (*test)(int argument), int argument, int64_t tick_ns) {
    const int n = memo_test_cases(5, 100);
    for (int k = 0; k < n && !memo_test.failures; k++) {
        const uint64_t seed = memo_test_random() >> 32;
        IN_CASE("argument %d, order %llu", argument, (unsigned long long)seed);
        turns_begin(seed);
        turns_state.tick_ns = tick_ns;
        test(argument);
        turns_state.tick_ns = 0;
        turns_end();
    }
    IN_CASE("%s", "");
}
static MEMO_UNUSED void in_orders(void (*test)(int argument), int argument) {
    in_timed_orders(test, argument, 0);
}

#endif
