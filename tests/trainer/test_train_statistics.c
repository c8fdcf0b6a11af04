/* test_train_statistics.c - what the trainer's comparison says: medians, spread, differences of
 * policies, and the order of their steps. */
#include "gpt/show/statistics.c"

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

/* Quartiles three tenths of the median apart still tell; further apart they do not. */
TEST(scattered_times_do_not_tell) {
    spread quiet = {10, 9, 12}, busy = {10, 8, 11.5};
    CHECK(are_narrow(&quiet) && !are_narrow(&busy));
}

/* Returns the probability that the interval between n sorted values, without k at each end, misses
 * the median: a fair coin shows at most k heads, or at most k tails. */
static double misses(int n, int k) {
    double ways = 1, sum = 0;
    for (int heads = 0; heads <= k; heads++) {
        sum += ways;
        ways = ways * (n - heads) / (heads + 1);
    }
    return 2 * sum / pow(2, n);
}

/* The table of the sign test in textbooks, and its definition. */
TEST(interval_of_the_sign_test) {
    CHECK(n_beyond(6) == 0 && n_beyond(8) == 0 && n_beyond(9) == 1 && n_beyond(12) == 2);
    CHECK(n_beyond(15) == 3 && n_beyond(20) == 5 && n_beyond(30) == 9 && n_beyond(100) == 39);
    CHECK(misses(ROUNDS_TO_DIFFER, 0) <= 0.05 && misses(ROUNDS_TO_DIFFER - 1, 0) > 0.05);
    for (int n = ROUNDS_TO_DIFFER; n <= 1000; n++) {
        const int k = (int)n_beyond(n);
        CHECK(k >= 0 && misses(n, k) <= 0.05 + 1e-9 && misses(n, k + 1) > 0.05 - 1e-9);
    }
    CHECK(n_beyond(1001) - n_beyond(1000) >= 0 && n_beyond(1001) - n_beyond(1000) <= 1);
}

/* Drift hides a difference in the medians of all steps, but not in that of rounds. */
TEST(differences_are_taken_round_by_round) {
    double a[12], b[12], scratch[12];
    for (int i = 0; i < 12; i++) {
        a[i] = 0.2 + 0.01 * i;
        b[i] = a[i] - 0.005;
    }
    b[3] = 0.9; /* something else ran */
    spread s = difference_of(b, a, 12, scratch);
    CHECK(fabs(s.median + 0.005) < 1e-12 && s.high < -0.0049 && is_different(&s));
    s = difference_of(a, a, 12, scratch);
    CHECK(s.median == 0 && s.low == 0 && s.high == 0 && !is_different(&s));

    for (int i = 0; i < 12; i++) b[i] = 1.25 * a[i];
    CHECK(fabs(ratio_of(b, a, 12, scratch) - 1.25) < 1e-12);
}

/* Of equal policies at most about one in 20 differs; a real difference is nearly always found. */
TEST(false_differences_are_rare) {
    enum { N = 20, N_RUNS = 4000 };
    double a[N], b[N], c[N], scratch[N];
    int n_false = 0, n_found = 0;
    for (int run = 0; run < N_RUNS; run++) {
        double speed = 1;
        for (int i = 0; i < N; i++) {
            speed *= 1 + 0.1 * (memo_test_real() - 0.5); /* drifts */
            a[i] = speed * (1 + 0.05 * memo_test_real());
            b[i] = speed * (1 + 0.05 * memo_test_real());
            c[i] = speed * (1 + 0.05 * memo_test_real() - 0.04);
        }
        spread s = difference_of(b, a, N, scratch);
        n_false += is_different(&s);
        s = difference_of(c, a, N, scratch);
        n_found += s.high < 0;
    }
    CHECK(n_false < N_RUNS / 15 && n_found > N_RUNS * 95 / 100);
}

TEST(sentences_about_two_policies) {
    const spread less = {-0.0104, -0.0193, -0.0088}, more = {0.02, 0.01, 0.03},
                 none = {-0.0031, -0.0132, 0.0078};
    char text[256];
    CHECK(!strcmp(difference_words("alpha", "memo", &less, 0.26, text, sizeof text),
                  "memo      takes 10.4 ms (4.0%) less than alpha a step, in the median of rounds; "
                  "with a confidence of 95% 8.8 to 19.3 ms"));
    CHECK(!strcmp(difference_words("keep", "recompute", &more, 0.1, text, sizeof text),
                  "recompute takes 20.0 ms (20.0%) more than keep a step, in the median of rounds; "
                  "with a confidence of 95% 10.0 to 30.0 ms"));
    CHECK(!strcmp(difference_words("alpha", "memo", &none, 0.26, text, sizeof text),
                  "memo      and alpha do not differ beyond their spread: -3.1 ms in the median of "
                  "rounds, with a confidence of 95% -13.2 to 7.8 ms"));
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
