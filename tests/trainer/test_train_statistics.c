/* test_train_statistics.c - what the trainer's comparison says: medians, spread, ratios round by
 * round, and the order of steps. */
#include "gpt/show/statistics.c"

#include <math.h>

#include "memo_test.h"

TEST(median_and_quartiles) {
    double one[] = {7}, four[] = {4, 1, 3, 2}, five[] = {50, 10, 40, 20, 30};
    spread s = spread_of(one, 1);
    CHECK(s.median == 7 && s.low == 7 && s.high == 7);
    s = spread_of(four, 4);
    CHECK(s.median == 2.5 && s.low == 1.75 && s.high == 3.25);
    s = spread_of(five, 5);
    CHECK(s.median == 30 && s.low == 20 && s.high == 40);
}

TEST(one_delayed_round_is_no_noise) {
    double steady[] = {100, 149, 120, 110, 105}, delayed[] = {100, 900, 120, 110, 105, 20};
    double busy[] = {100, 150, 110, 200, 90};
    CHECK(fabs(spread_factor(steady, 5) - 120.0 / 105) < 1e-12);
    CHECK(spread_factor(delayed, 6) < FACTOR_OF_NOISE);
    CHECK(spread_factor(busy, 5) >= FACTOR_OF_NOISE);
}

/* Drift hides a ratio in the medians of all steps, but not in that of rounds. */
TEST(ratios_are_taken_round_by_round) {
    double a[12], b[12], scratch[12];
    for (int i = 0; i < 12; i++) {
        a[i] = 0.2 + 0.01 * i;
        b[i] = 1.25 * a[i];
    }
    b[3] = 0.9; /* something else ran */
    CHECK(fabs(ratio_of(b, a, 12, scratch) - 1.25) < 1e-12);
}

/* In 2 n rounds each is at each place twice, and follows each neighbor of the circle alike. */
TEST(turns_are_fair) {
    for (int n = 1; n <= 8; n++) {
        int places[8][8] = {{0}}, follows[8][8] = {{0}};
        for (int round = 0; round < 2 * n; round++) {
            unsigned seen = 0;
            for (int i = 0; i < n; i++) {
                const int who = turn(round, i, n);
                CHECK(who >= 0 && who < n);
                seen |= 1u << who;
                places[who][i]++;
                if (i) follows[who][turn(round, i - 1, n)]++;
            }
            CHECK(seen == (1u << n) - 1);
        }
        for (int who = 0; who < n; who++)
            for (int i = 0; i < n; i++) {
                CHECK(places[who][i] == 2);
                CHECK(follows[who][i] == follows[i][who]);
            }
    }
}
