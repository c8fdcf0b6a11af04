/* test_blocks_schedule.c - the schedules of chapter 8 of memo_sp.h: the published test vector;
 * closed forms, bounds and recurrences against the simulation of random cases; the order of the
 * schedules; races. */
#include "scarce.h"
#include "memo_sp.h"
#include "extras/memo_look.h"
#include "bench/block_parts.h"
#include "owned.h"

#ifdef MEMO_TEST_VALGRIND
#define CASES(n) ((n) / 50)
#else
#define CASES(n) (memo_test_all() ? (n) : (n) / 5)
#endif

#define MAX_BLOCKS 12
#define MAX_PARTS  5
#define BOTH       (MEMO_BLOCKS_FORWARD | MEMO_BLOCKS_BACKWARD)

typedef struct problem {
    memo_blocks_schedule_desc desc;
    int32_t weights; /* MEMO_BLOCKS_WEIGHTS or 0 */
    memo_block_times times[MAX_BLOCKS * MAX_PARTS];
} problem;

static const memo_block_times* time_of(const problem* p, int block, int part) {
    return &p->times[block * p->desc.n_parts + part];
}

static memo_schedule* make(const problem* p, int is_backward) {
    memo_schedule* schedule;
    CHECK_OK(memo_blocks_generate(
        &p->desc, p->times, p->weights | (is_backward ? MEMO_BLOCKS_BACKWARD : MEMO_BLOCKS_FORWARD),
        &schedule, &error));
    return schedule;
}

/* The makespan, and how long the comm stream works. */
static double makespan_and_busy(problem* p, memo_blocks_order order, int is_backward,
                                double* busy_s) {
    p->desc.order = order;
    own_schedule* schedule = make(p, is_backward);
    own_times* simulation = times_of(schedule);
    double makespan_s = simulation->makespan_s;
    *busy_s = simulation->busy_s[1];
    return makespan_s;
}
static double makespan(problem* p, memo_blocks_order order, int is_backward) {
    double busy_s;
    return makespan_and_busy(p, order, is_backward, &busy_s);
}

static double larger(double a, double b) { return a > b ? a : b; }

/* Like x, but not bitwise: sums in another order. */
static int is_close(double a, double b) {
    return fabs(a - b) <= 1e-9 * larger(1, larger(fabs(a), fabs(b)));
}

static void set_problem(problem* p, int n_blocks, int n_parts) {
    memset(p, 0, sizeof *p);
    p->desc = MEMO_ZERO(memo_blocks_schedule_desc);
    p->desc.n_blocks = n_blocks;
    p->desc.n_parts = n_parts;
}

/* The same times for all parts. */
static void set_block(problem* p, int block, double f, double r, double b, double c) {
    for (int s = 0; s < p->desc.n_parts; s++) {
        memo_block_times* t = &p->times[block * p->desc.n_parts + s];
        t->forward_s = f;
        t->recompute_s = r;
        t->backward_s = b;
        t->reduce_s = c;
    }
}

/* Zero, a whole number (ties) or any. */
static double random_time(void) {
    int64_t kind = memo_test_int(0, 9);
    return kind == 0 ? 0 : kind < 6 ? (double)memo_test_int(0, 8) : 10 * memo_test_real();
}

static void set_random(problem* p, int n_blocks, int n_parts) {
    set_problem(p, n_blocks, n_parts);
    for (int i = 0; i < n_blocks; i++)
        set_block(p, i, random_time(), random_time(), random_time(), random_time());
}

/* ---- the reference page's figures ---- */

TEST(test_vector) {
    static const struct {
        memo_blocks_order order;
        int is_backward;
        double makespan_s[2], busy_s[2]; /* collectives of 2 and of 5 */
    } rows[] = {{MEMO_BLOCKS_DEFAULT, 0, {36, 60}, {16, 40}},
                {MEMO_BLOCKS_PIPELINED, 0, {22, 42}, {16, 40}},
                {MEMO_BLOCKS_CROSS, 0, {22, 42}, {16, 40}},
                {MEMO_BLOCKS_DEFAULT, 1, {92, 140}, {32, 80}},
                {MEMO_BLOCKS_PIPELINED, 1, {68, 98}, {32, 80}},
                {MEMO_BLOCKS_CROSS, 1, {62, 78}, {24, 60}},
                {MEMO_BLOCKS_FINE, 1, {62, 65}, {16, 40}}};
    for (int k = 0; k < 2; k++) {
        problem p;
        set_problem(&p, 4, 2);
        for (int i = 0; i < 4; i++)
            set_block(&p, i, i % 2 ? 3 : 2, i % 2 ? 3 : 2, i % 2 ? 6 : 4, k ? 5 : 2);
        for (int i = 0; i < (int)(sizeof rows / sizeof rows[0]); i++) {
            double busy_s;
            CHECK_IS(makespan_and_busy(&p, rows[i].order, rows[i].is_backward, &busy_s), ==,
                     rows[i].makespan_s[k]);
            CHECK_IS(busy_s, ==, rows[i].busy_s[k]);
        }
    }
}

/* R4a[0,3] B4a[3,9] R4b[9,12] B4b[12,18] R3a[18,20] B3a[20,24] ...; cB4a[9,11] cB4b[18,20]; comm
 * busy 16, not 24.
 */
TEST(fine_order) {
    static const struct {
        const char* name;
        double start, end;
    } expected[] = {{"R4a", 0, 3},   {"B4a", 3, 9},    {"cB4a", 9, 11}, {"R4b", 9, 12},
                    {"B4b", 12, 18}, {"cB4b", 18, 20}, {"R3a", 18, 20}, {"B3a", 20, 24}};
    problem p;
    int k = 0;
    set_problem(&p, 4, 2);
    for (int64_t i = 0; i < 4; i++)
        set_block(&p, (int)i, i % 2 ? 3 : 2, i % 2 ? 3 : 2, i % 2 ? 6 : 4, 2);
    p.desc.order = MEMO_BLOCKS_FINE;
    own_schedule* schedule = make(&p, 1);
    own_times* simulation = times_of(schedule);
    for (int64_t i = 0; i < schedule->n_ops && k < 8; i++) {
        if (schedule->ops[i].kind != MEMO_OP_RUN) continue;
        CHECK_CASE(!strcmp(memo_schedule_op_name(schedule, i), expected[k].name), "%s is not %s",
                   memo_schedule_op_name(schedule, i), expected[k].name);
        CHECK_IS(simulation->start_s[i], ==, expected[k].start);
        CHECK_IS(simulation->end_s[i], ==, expected[k].end);
        k++;
    }
    CHECK_IS(simulation->busy_s[1], ==, 16);
    memo_simulation_destroy(simulation);
    memo_schedule_destroy(schedule);
    p.desc.order = MEMO_BLOCKS_CROSS;
    schedule = make(&p, 1);
    CHECK_OK(memo_schedule_simulate(schedule, &simulation, &error));
    CHECK_IS(simulation->busy_s[1], ==, 24);
}

/* ---- two parts: closed forms and bounds of the reference page ---- */

TEST(closed_forms) {
    for (int n = 0; n < CASES(20000) && memo_test.failures == 0; n++) {
        problem p;
        int K = 2 * (int)memo_test_int(1, 6), i, s;
        double fd = 0, fp, bd = 0, bp = 0, f_sum = 0, rb_sum = 0, c_sum = 0, x = 0, y = 0;
        double returned[2] = {0, 0}, forward[4], backward[4];
        const memo_block_times *t, *m;
        set_random(&p, K, 2);
        fp = time_of(&p, 0, 0)->forward_s + time_of(&p, K - 1, 0)->reduce_s;
        for (i = 0; i < K; i++) {
            t = time_of(&p, i, 0);
            fd += 2 * (t->forward_s + t->reduce_s);
            bd += 2 * (t->recompute_s + t->backward_s + 2 * t->reduce_s);
            fp += larger(t->forward_s, t->reduce_s);
            if (i > 0) fp += larger(t->forward_s, time_of(&p, i - 1, 0)->reduce_s);
            f_sum += t->forward_s;
            rb_sum += t->recompute_s + t->backward_s;
            c_sum += t->reduce_s;
        }
        for (i = 0; i < K; i += 2) {
            t = time_of(&p, i, 0);
            m = time_of(&p, i + 1, 0);
            bp += t->recompute_s + larger(t->recompute_s, t->reduce_s) +
                  larger(m->recompute_s, t->reduce_s) + larger(m->recompute_s, m->reduce_s) +
                  m->reduce_s;
            bp += m->backward_s + larger(m->backward_s, m->reduce_s) +
                  larger(t->backward_s, m->reduce_s) + larger(t->backward_s, t->reduce_s) +
                  t->reduce_s;
        }
        for (i = K - 1; i >= 0; i--)
            for (s = 0; s < 2; s++) {
                t = time_of(&p, i, s);
                x = larger(x + t->recompute_s, returned[s]) + t->backward_s;
                y = returned[s] = larger(x, y) + t->reduce_s;
            }
        for (i = 0; i < 4; i++) {
            forward[i] = makespan(&p, (memo_blocks_order)i, 0);
            backward[i] = makespan(&p, (memo_blocks_order)i, 1);
        }
        CHECK_CASE(is_close(forward[0], fd), "forward default %g, not %g", forward[0], fd);
        CHECK_CASE(is_close(forward[1], fp), "forward pipelined %g, not %g", forward[1], fp);
        CHECK(forward[2] == forward[1] && forward[3] == forward[1]);
        CHECK_CASE(is_close(backward[0], bd), "backward default %g, not %g", backward[0], bd);
        CHECK_CASE(is_close(backward[1], bp), "backward pipelined %g, not %g", backward[1], bp);
        CHECK_CASE(is_close(backward[3], y), "backward fine %g, not %g", backward[3], y);
        t = time_of(&p, 0, 0);
        m = time_of(&p, K - 1, 0);
        CHECK_IS(forward[1], >=,
                 (1 - 1e-12) * larger(2 * f_sum + m->reduce_s, t->forward_s + 2 * c_sum));
        CHECK_IS(backward[3], >=,
                 (1 - 1e-12) *
                     larger(2 * rb_sum + t->reduce_s, m->recompute_s + m->backward_s + 2 * c_sum));
        CHECK_IS(forward[1], <=, forward[0] * (1 + 1e-12));
        CHECK_CASE(backward[2] <= backward[1] * (1 + 1e-12), "cross %g > pipelined %g", backward[2],
                   backward[1]);
        CHECK_IS(backward[1], <=, backward[0] * (1 + 1e-12));
    }
}

/* ---- any number of parts, layers of any number of blocks: slow, obvious recurrences ---- */

typedef struct streams {
    double compute, comm;
    double reduced[MAX_PARTS], returned[MAX_PARTS];
} streams;

static void run(streams* t, double after, double duration) {
    t->compute = larger(t->compute, after) + duration;
}
static double collective(streams* t, double duration) {
    t->comm = larger(t->comm, t->compute) + duration;
    return t->comm;
}
static void barrier(streams* t) { t->compute = t->comm = larger(t->compute, t->comm); }

static double forward_reference(const problem* p) {
    int is_serial = p->desc.order == MEMO_BLOCKS_DEFAULT;
    streams t = {0};
    for (int i = 0; i < p->desc.n_blocks; i++)
        for (int s = 0; s < p->desc.n_parts; s++) {
            run(&t, t.reduced[s], time_of(p, i, s)->forward_s);
            t.reduced[s] = collective(&t, time_of(p, i, s)->reduce_s);
            if (is_serial) barrier(&t);
        }
    return larger(t.compute, t.comm);
}

static void backward_of(const problem* p, streams* t, int i, int s) {
    const memo_block_times* times = time_of(p, i, s);
    run(t, t->returned[s], times->backward_s);
    t->returned[s] = collective(t, times->reduce_s);
    if (p->desc.order == MEMO_BLOCKS_DEFAULT) barrier(t);
    if (p->weights) run(t, 0, times->weights_s);
}

static double backward_reference(const problem* p) {
    const memo_blocks_order order = p->desc.order;
    int n = p->desc.n_parts, m = p->desc.blocks_per_layer, s;
    streams t = {0};
    for (int last = p->desc.n_blocks - 1; last > 0 || (last == 0 && m == 1); last -= m) {
        int first = last - m + 1;
        int top = order == MEMO_BLOCKS_FINE ? first : last; /* blocks below: recomputed as a pass */
        if (order != MEMO_BLOCKS_FINE)
            for (int i = first; i <= (order == MEMO_BLOCKS_CROSS ? last - 1 : last); i++)
                for (s = 0; s < n; s++) {
                    run(&t, i > first ? t.reduced[s] : 0, time_of(p, i, s)->recompute_s);
                    t.reduced[s] = collective(&t, time_of(p, i, s)->reduce_s);
                    if (order == MEMO_BLOCKS_DEFAULT) barrier(&t);
                }
        if (order < MEMO_BLOCKS_CROSS) barrier(&t);
        for (int i = last; i >= first; i--) {
            int is_segment = order == MEMO_BLOCKS_FINE || (order == MEMO_BLOCKS_CROSS && i == top);
            int is_coupled = p->desc.splits_sequence && i == first;
            double there = 0;
            if (is_segment && is_coupled)
                for (s = 0; s < n; s++) run(&t, 0, time_of(p, i, s)->recompute_s);
            for (int k = 0; k < n; k++) {
                s = p->desc.splits_sequence ? n - 1 - k : k;
                if (order == MEMO_BLOCKS_CROSS && i > first) there = t.reduced[s];
                if (is_segment && !is_coupled) run(&t, there, time_of(p, i, s)->recompute_s);
                backward_of(p, &t, i, s);
            }
        }
        if (order == MEMO_BLOCKS_PIPELINED) barrier(&t);
        if (last - m < 0) break;
    }
    return larger(t.compute, t.comm);
}

static void set_any(problem* p) {
    int m = (int)memo_test_int(1, 3), i, s;
    set_random(p, m * (int)memo_test_int(1, 4), (int)memo_test_int(1, MAX_PARTS));
    p->desc.blocks_per_layer = m;
    p->desc.splits_sequence = memo_test_int(0, 1) == 0;
    p->weights = memo_test_int(0, 1) ? 0 : MEMO_BLOCKS_WEIGHTS;
    if (memo_test_int(0, 1))
        for (i = 0; i < p->desc.n_blocks; i++)
            for (s = 0; s < p->desc.n_parts; s++) {
                memo_block_times* t = &p->times[i * p->desc.n_parts + s];
                t->forward_s = random_time();
                t->recompute_s = random_time();
                t->backward_s = random_time();
                t->weights_s = random_time();
                t->reduce_s = random_time();
            }
}

TEST(recurrences) {
    for (int n = 0; n < CASES(6000) && memo_test.failures == 0; n++) {
        problem p;
        set_any(&p);
        for (int i = 0; i < 4; i++) {
            double found = makespan(&p, (memo_blocks_order)i, 0), expected = forward_reference(&p);
            CHECK_CASE(is_close(found, expected), "forward %s: %g, not %g",
                       memo_blocks_order_name((memo_blocks_order)i), found, expected);
            found = makespan(&p, (memo_blocks_order)i, 1);
            expected = backward_reference(&p);
            CHECK_CASE(is_close(found, expected),
                       "backward %s, %d blocks of %d, %d parts%s: %g, not %g",
                       memo_blocks_order_name((memo_blocks_order)i), (int)p.desc.n_blocks,
                       (int)p.desc.blocks_per_layer, (int)p.desc.n_parts,
                       p.desc.splits_sequence ? " of a sequence" : "", found, expected);
        }
    }
}

/* The order of the schedules with equal parts, however many, in layers of two blocks. */
TEST(never_slower) {
    for (int n = 0; n < CASES(6000) && memo_test.failures == 0; n++) {
        problem p;
        double backward[4];
        set_random(&p, 2 * (int)memo_test_int(1, 5), (int)memo_test_int(1, MAX_PARTS));
        for (int i = 0; i < 4; i++) backward[i] = makespan(&p, (memo_blocks_order)i, 1);
        CHECK_IS(backward[1], <=, backward[0] * (1 + 1e-12));
        CHECK_CASE(backward[2] <= backward[1] * (1 + 1e-12), "%d parts, cross %g > pipelined %g",
                   (int)p.desc.n_parts, backward[2], backward[1]);
    }
}

/* One part cannot overlap with anything but weight gradients. */
TEST(one_part) {
    problem p;
    set_problem(&p, 4, 1);
    for (int i = 0; i < 4; i++) set_block(&p, i, 2, 2, 4, 3);
    CHECK_IS(makespan(&p, MEMO_BLOCKS_DEFAULT, 0), ==, 20);
    CHECK_IS(makespan(&p, MEMO_BLOCKS_PIPELINED, 0), ==, 20);
    CHECK_IS(makespan(&p, MEMO_BLOCKS_DEFAULT, 1), ==, 48);
    CHECK_IS(makespan(&p, MEMO_BLOCKS_PIPELINED, 1), ==, 48);
    /* No all-reduce follows the last recomputation of each layer; the first one of a layer hides
     * one of the layer above. */
    CHECK_IS(makespan(&p, MEMO_BLOCKS_CROSS, 1), ==, 48 - 2 * 3 - 2);
    CHECK_IS(makespan(&p, MEMO_BLOCKS_FINE, 1), ==, 4 * (4 + 3) + 2);
    for (int i = 0; i < 4; i++) {
        p.times[i].backward_s = 3;
        p.times[i].weights_s = 1;
    }
    p.weights = MEMO_BLOCKS_WEIGHTS;
    CHECK_IS(makespan(&p, MEMO_BLOCKS_FINE, 1), ==, 4 * (3 + 3) + 2);
}

/* Halves of one sequence: the second half of attention costs three times the first. */
TEST(one_sequence) {
    problem p;
    memo_schedule* schedule;
    set_problem(&p, 4, 2);
    for (int i = 0; i < 4; i++) {
        set_block(&p, i, 2, 2, 4, 2);
        if (i % 2 == 0) p.times[2 * i + 1].forward_s = p.times[2 * i + 1].recompute_s = 6;
        if (i % 2 == 0) p.times[2 * i + 1].backward_s = 12;
    }
    p.desc.splits_sequence = 1;
    for (int order = 0; order < 4; order++) {
        int64_t r1a = -1, b1a = -1, b1b = -1;
        double whole = makespan(&p, MEMO_BLOCKS_DEFAULT, 1);
        CHECK_IS(makespan(&p, (memo_blocks_order)order, 1), <=, whole);
        p.desc.order = (memo_blocks_order)order;
        schedule = make(&p, 1);
        for (int64_t k = 0; k < schedule->n_ops; k++) {
            const char* name = memo_schedule_op_name(schedule, k);
            if (schedule->ops[k].kind != MEMO_OP_RUN) continue;
            if (!strcmp(name, "R1a")) r1a = k;
            if (!strcmp(name, "B1a")) b1a = k;
            if (!strcmp(name, "B1b")) b1b = k;
        }
        /* Keys of the first half before the second's backward; that before the first's. */
        CHECK(r1a >= 0 && r1a < b1b && b1b < b1a);
        memo_schedule_destroy(schedule);
    }
}

/* ---- proven without running ---- */

/* Does an operation write y or g?  The end and weights do not, nor recomputation without output. */
static int writes(const char* name, memo_blocks_order order) {
    if (name[0] == 'R' && order == MEMO_BLOCKS_FINE) return 0;
    if (name[0] == 'R' && order == MEMO_BLOCKS_CROSS) return name[1] % 2; /* block 1, 3 */
    return name[0] != 'W' && name[0] != 'e';
}

TEST(only_outputs_are_written) {
    for (int k = 0; k < 2 * MEMO_N_BLOCKS_ORDERS; k++) {
        const memo_blocks_order order = (memo_blocks_order)(k / 2);
        int n_ends = 0;
        problem p;
        set_problem(&p, 4, 2); /* two layers of two blocks */
        p.desc.order = order;
        p.weights = MEMO_BLOCKS_WEIGHTS;
        own_schedule* schedule = make(&p, k % 2);
        for (int64_t i = 0; i < schedule->n_ops; i++) {
            const char* name = memo_schedule_op_name(schedule, i);
            if (schedule->ops[i].kind != MEMO_OP_RUN) continue;
            CHECK_CASE(schedule->ops[i].n_writes == writes(name, order), "%s: %s writes %lld",
                       memo_blocks_order_name(order), name, (long long)schedule->ops[i].n_writes);
            n_ends += name[0] == 'e';
        }
        CHECK_IS(n_ends, ==, 2);
    }
}

TEST(no_races) {
    for (int n = 0; n < CASES(1500) && memo_test.failures == 0; n++) {
        problem p;
        set_any(&p);
        p.desc.order = (memo_blocks_order)memo_test_int(0, 3);
        for (int is_backward = 0; is_backward < 2; is_backward++) {
            own_schedule* schedule = make(&p, is_backward);
            own_check* check = check_of(schedule);
            CHECK_CASE(
                check->n_races == 0 && check->n_unrecorded_waits == 0,
                "%s %s: %lld races, the first of %s and %s", memo_blocks_order_name(p.desc.order),
                is_backward ? "backward" : "forward", (long long)check->n_races,
                check->n_races ? memo_schedule_op_name(schedule, check->races[0].first) : "",
                check->n_races ? memo_schedule_op_name(schedule, check->races[0].second) : "");
            /* In the two orders without barriers each wait prevents a race.  The exception: parts
             * that return in another order. */
            if (p.desc.order >= MEMO_BLOCKS_CROSS && !p.desc.splits_sequence)
                CHECK_CASE(check->n_redundant_waits == 0, "%s %s, %d parts, %lld of %lld waits: %s",
                           memo_blocks_order_name(p.desc.order),
                           is_backward ? "backward" : "forward", (int)p.desc.n_parts,
                           (long long)check->n_redundant_waits, (long long)check->n_waits,
                           memo_schedule_op_name(schedule, check->redundant_waits[0] + 1));
        }
    }
}

/* A schedule with one wait less has a race, so the checker's silence is meaningful. */
TEST(each_wait_counts) {
    for (int order = MEMO_BLOCKS_CROSS; order < MEMO_N_BLOCKS_ORDERS; order++)
        for (int is_backward = 0; is_backward < 2; is_backward++) {
            problem p;
            int64_t n_waits = 0;
            int32_t nobodys = 0;
            set_problem(&p, 4, 2);
            p.desc.order = (memo_blocks_order)order;
            own_schedule* schedule = make(&p, is_backward);
            CHECK_OK(memo_schedule_add_event(schedule, &nobodys, &error));
            for (int64_t i = 0; i < schedule->n_ops; i++) {
                memo_op op = schedule->ops[i];
                if (op.kind != MEMO_OP_WAIT) continue;
                n_waits++;
                schedule->ops[i].kind = MEMO_OP_RECORD;
                schedule->ops[i].event = nobodys;
                own_check* check = check_of(schedule);
                CHECK_CASE(check->n_races > 0, "without the wait before %s",
                           memo_schedule_op_name(schedule, i + 1));
                schedule->ops[i] = op;
            }
            CHECK_IS(n_waits, >, 0);
        }
}

/* ---- the number of parts ---- */

TEST(best_parts) {
    problem p;
    block_overhead overhead = {0, 0};
    memo_block_times times[4];
    int32_t n_parts = 0;
    double makespan_s = 0, split_s;
    set_problem(&p, 4, 1);
    for (int i = 0; i < 4; i++) set_block(&p, i, 2, 2, 4, 2);
    memcpy(times, p.times, sizeof times);
    memo_blocks_schedule_desc desc = p.desc;
    desc.order = MEMO_BLOCKS_FINE;
    /* Without overhead most parts are best; with overhead fewer; if latency dominates, one. */
    CHECK_OK(block_best_parts(&desc, times, BOTH, &overhead, 8, &n_parts, &split_s, &error));
    CHECK_IS(n_parts, ==, 8);
    overhead.collective_s = 0.2;
    overhead.operation_s = 0.2;
    CHECK_OK(block_best_parts(&desc, times, BOTH, &overhead, 8, &n_parts, &makespan_s, &error));
    CHECK_CASE(n_parts > 1 && n_parts < 8, "%d", (int)n_parts);
    CHECK_IS(makespan_s, >, split_s);
    overhead.collective_s = 2;
    overhead.operation_s = 1;
    CHECK_OK(block_best_parts(&desc, times, BOTH, &overhead, 8, &n_parts, NULL, &error));
    CHECK_IS(n_parts, ==, 1);
    overhead.collective_s = -1;
    CHECK_FAILS(block_best_parts(&desc, times, BOTH, &overhead, 8, &n_parts, NULL, &error),
                INVALID_ARGUMENT);
}

TEST(latency) {
    static const int64_t bytes[] = {0, 1000, 2000, 4000}, same[] = {1000, 1000};
    static const double measured[] = {1e-3, 2e-3, 3e-3, 5e-3}, steep[] = {0, 1, 4, 16};
    CHECK(is_close(block_latency(bytes, measured, 4), 1e-3));
    CHECK(is_close(block_latency(bytes + 1, measured + 1, 2), 1e-3));
    CHECK_IS(block_latency(bytes, steep, 4), ==, 0);
    CHECK_IS(block_latency(same, measured, 2), ==, 0);
    CHECK_IS(block_latency(bytes, measured, 1), ==, 0);
}

/* Refused with this text. */
static void is_refused(const memo_blocks_schedule_desc* desc, const memo_block_times* times,
                       const char* text) {
    memo_schedule* schedule;
    CHECK_FAILS(memo_blocks_generate(desc, times, BOTH, &schedule, &error), INVALID_ARGUMENT);
    CHECK(!schedule);
    CHECK_TEXT(error.message, text);
}

TEST(refusals) {
    problem p;
    int none = 7;
    set_problem(&p, 3, 2);
    memo_blocks_schedule_desc desc = p.desc;
    is_refused(&desc, NULL, "not whole layers (3 blocks, 2 per layer)");
    desc.n_blocks = 0;
    is_refused(&desc, NULL, "not whole layers");
    desc.n_blocks = INT32_MAX - 1; /* their names alone would not fit into memory */
    is_refused(&desc, NULL, "2147483646");
    desc.n_blocks = 4;
    WITH(desc.n_parts, -1, is_refused(&desc, NULL, "n_parts"));
    WITH(desc.n_parts, INT32_MAX, is_refused(&desc, NULL, "n_parts"));
    desc.order = (memo_blocks_order)none;
    is_refused(&desc, NULL, "order");
    desc.order = MEMO_BLOCKS_FINE;
    p.times[3].reduce_s = -1;
    is_refused(&desc, p.times, "block 2, part 2");
    p.times[3].reduce_s = NAN;
    is_refused(&desc, p.times, "block 2, part 2");
    CHECK(!strcmp(memo_blocks_order_name(MEMO_BLOCKS_FINE), "fine"));
    CHECK(!strcmp(memo_blocks_order_name((memo_blocks_order)none), "no order"));
}

TEST(without_memory) {
    block_overhead overhead = {0.1, 0.1};
    problem p;
    memo_status status = MEMO_STATUS_OK;
    refusal r = {0};
    set_problem(&p, 4, 2);
    while (next_refusal(&r, status)) {
        int32_t n_parts;
        memo_blocks_schedule_desc desc = p.desc;
        desc.order = (memo_blocks_order)(r.request % 4);
        status = block_best_parts(&desc, p.times, BOTH, &overhead, 4, &n_parts, NULL, &error);
    }
    CHECK_IS(r.n_failed, >=, 10);
    CHECK_IS(mallocs_live, ==, 0);
}
