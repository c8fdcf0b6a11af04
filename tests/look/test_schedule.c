/* test_schedule.c - chapters 1 to 5 of memo_look.h: building, checking against brute force,
 * simulating against a slow reference, timelines. */
#include "scarce.h"
#include "extras/memo_look.h"
#include "schedules.h"

static void run_time(memo_schedule* schedule, int32_t stream, const char* name, double duration_s,
                     int64_t link_bytes) {
    memo_op_desc desc = {
        .name = name, .stream = stream, .duration_s = duration_s, .link_bytes = link_bytes};
    CHECK_OK(memo_schedule_add_op(schedule, &desc, &error));
}

/* --- building --- */

TEST(builder_refuses_and_leaves_no_trace) {
    memo_schedule* schedule = new_schedule(2, 1);
    memo_op_desc desc;
    memo_range backwards = range_of(5, 4);
    double zero = 0;
    memo_op_desc good = {.name = "work"};
#define REFUSED(change)                                                                            \
    do {                                                                                           \
        desc = good;                                                                               \
        change;                                                                                    \
        error.message[0] = 0;                                                                      \
        CHECK_IS(memo_schedule_add_op(schedule, &desc, &error), ==, MEMO_STATUS_INVALID_ARGUMENT); \
        CHECK(error.message[0] && schedule->n_ops == 0);                                           \
    } while (0)
    REFUSED(desc.stream = 2);
    REFUSED(desc.stream = -1);
    REFUSED(desc.duration_s = -1);
    REFUSED(desc.duration_s = 1 / zero);
    REFUSED(desc.duration_s = memo_test_nan());
    REFUSED(desc.link_bytes = -1);
    REFUSED((desc.reads = &backwards, desc.n_reads = 1));
    REFUSED((desc.writes = &backwards, desc.n_writes = 1));
    REFUSED(desc.n_reads = -1);
    REFUSED(desc.n_writes = 1);
    CHECK_IS(memo_schedule_add_order(schedule, MEMO_OP_RECORD, 1, 0, &error), ==,
             MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_schedule_add_order(schedule, MEMO_OP_RECORD, 0, 2, &error), ==,
             MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_schedule_add_order(schedule, MEMO_OP_WAIT, -1, 0, &error), ==,
             MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_schedule_add_order(schedule, MEMO_OP_WAIT, 0, -1, NULL), ==,
             MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_schedule_add_order(schedule, MEMO_OP_SYNC, -1, 2, &error), ==,
             MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_schedule_add_order(schedule, MEMO_OP_SYNC, 1, -1, &error), ==,
             MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_FAILS(memo_schedule_add_order(schedule, MEMO_OP_RUN, 0, 0, &error), INVALID_ARGUMENT);
    CHECK(schedule->n_ops == 0);
    CHECK_OK(memo_schedule_add_op(schedule, &good, &error));
    good.name = NULL;
    CHECK_OK(memo_schedule_add_op(schedule, &good, &error));
    CHECK_IS(strcmp(memo_schedule_op_name(schedule, 0), "work"), ==, 0);
    CHECK_IS(strcmp(memo_schedule_op_name(schedule, 1), "run"), ==, 0);
    memo_schedule_destroy(schedule);
    memo_schedule_destroy(NULL);
}

/* --- check --- */

/* Two waits for the same thing: each alone could go, both together could not. */
TEST(check_finds_the_textbook_cases) {
    static const char* const cases[][2] = {
        {"# nothing\n", "0 waits, 0 conflicts"},
        {"run w a writes 0..100\nrun r b reads 40..160\n",
         "0 waits, 1 conflicts, race 0-1 in 40..100"},
        /* Needed, never recorded, the same again. */
        {"run w a writes 0..100\nrecord e a\nwait e b\nwait f b\nrun r b reads 40..160\n"
         "wait e b\nrun r b reads 0..10\n",
         "3 waits, 2 conflicts, unrecorded 3, redundant 3, redundant 5"},
        {"run w a writes 0..100\nrecord e a\nrecord f a\nwait e b\nwait f b\n"
         "run r b reads 40..160\n",
         "2 waits, 1 conflicts, redundant 3, redundant 4"},
        /* The host stands between; the event does not cover the second write. */
        {"run w a writes 0..100\nrecord e a\nrun w a writes 200..300\nsync event e\n"
         "run r b reads 0..100\nrun r b reads 200..300\nsync a\nrun r c reads 200..300\n",
         "0 waits, 3 conflicts, race 2-5 in 200..300"}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char text[400], found[200];
        snprintf(text, sizeof text, "stream a\nstream b\nstream c\n%s", cases[c][0]);
        own_schedule* schedule = parsed(text);
        own_check* check = check_of(schedule);
        int n = snprintf(found, sizeof found, "%d waits, %d conflicts", (int)check->n_waits,
                         (int)check->n_conflicts);
        for (int64_t i = 0; i < check->n_races; i++)
            n += snprintf(found + n, sizeof found - (size_t)n, ", race %d-%d in %d..%d",
                          (int)check->races[i].first, (int)check->races[i].second,
                          (int)check->races[i].range.begin, (int)check->races[i].range.end);
        for (int64_t i = 0; i < check->n_unrecorded_waits; i++)
            n += snprintf(found + n, sizeof found - (size_t)n, ", unrecorded %d",
                          (int)check->unrecorded_waits[i]);
        for (int64_t i = 0; i < check->n_redundant_waits; i++)
            n += snprintf(found + n, sizeof found - (size_t)n, ", redundant %d",
                          (int)check->redundant_waits[i]);
        CHECK_CASE(!strcmp(found, cases[c][1]), "%s: %s", cases[c][0], found);
    }
    memo_check_destroy(NULL);
}

#define SMALL 40

static int is_on(const memo_schedule* schedule, int64_t i, int32_t stream) {
    const memo_op* op = &schedule->ops[i];
    return op->kind != MEMO_OP_SYNC && op->stream == stream;
}

static int64_t latest_record(const memo_schedule* schedule, int64_t i) {
    for (int64_t k = i - 1; k >= 0; k--)
        if (schedule->ops[k].kind == MEMO_OP_RECORD &&
            schedule->ops[k].event == schedule->ops[i].event)
            return k;
    return -1;
}

/* path[a][b]: a happens before b; all edges written out, then closed. */
static void brute_order(const memo_schedule* schedule, int64_t without, char path[SMALL][SMALL]) {
    int64_t n = schedule->n_ops;
    memset(path, 0, SMALL * SMALL);
    for (int64_t a = 0; a < n; a++)
        for (int64_t b = a + 1; b < n; b++)
            for (int32_t s = 0; s < schedule->n_streams; s++)
                if (is_on(schedule, a, s) && is_on(schedule, b, s)) path[a][b] = 1;
    for (int64_t b = 0; b < n; b++) {
        const memo_op* op = &schedule->ops[b];
        if (op->kind == MEMO_OP_WAIT && b != without && latest_record(schedule, b) >= 0)
            path[latest_record(schedule, b)][b] = 1;
        if (op->kind != MEMO_OP_SYNC) continue;
        for (int64_t a = 0; a < b; a++)
            if (op->event < 0 ? is_on(schedule, a, op->stream) : a == latest_record(schedule, b))
                for (int64_t c = b + 1; c < n; c++) path[a][c] = 1;
    }
    for (int64_t c = 0; c < n; c++)
        for (int64_t a = 0; a < n; a++)
            for (int64_t b = 0; b < n; b++)
                if (path[a][c] && path[c][b]) path[a][b] = 1;
}

static int brute_conflict(const memo_schedule* schedule, int64_t a, int64_t b, uint64_t byte) {
    const memo_op* ops[2];
    int touches[2] = {0, 0}, writes[2] = {0, 0}, k;
    ops[0] = &schedule->ops[a];
    ops[1] = &schedule->ops[b];
    for (k = 0; k < 2; k++) {
        for (int64_t i = 0; i < ops[k]->n_reads + ops[k]->n_writes; i++) {
            const memo_range* range = &schedule->ranges[ops[k]->first_range + i];
            if (byte < range->begin || byte >= range->end) continue;
            touches[k] = 1;
            if (i >= ops[k]->n_reads) writes[k] = 1;
        }
    }
    return touches[0] && touches[1] && (writes[0] || writes[1]);
}

TEST(check_agrees_with_brute_force) {
    static char path[SMALL][SMALL], less[SMALL][SMALL], conflict[SMALL][SMALL];
    int n_racy = 0, n_clean = 0, n_redundant = 0, n_needed = 0;
    for (int round = 0; round < 3000; round++) {
        int64_t n_bytes = memo_test_int(0, 60);
        own_schedule* schedule =
            random_schedule((int)memo_test_int(1, 30), (int)memo_test_int(1, 4), n_bytes);
        int64_t n = schedule->n_ops, n_races = 0, next_redundant = 0, next_unrecorded = 0;
        brute_order(schedule, -1, path);
        memset(conflict, 0, sizeof conflict);
        for (int64_t a = 0; a < n; a++)
            for (int64_t b = a + 1; b < n; b++)
                for (uint64_t byte = 0; byte < 70 && !conflict[a][b]; byte++)
                    conflict[a][b] = (char)brute_conflict(schedule, a, b, byte);
        own_check* check = check_of(schedule);
        for (int64_t i = 0; i < check->n_races; i++) {
            const memo_race* race = &check->races[i];
            CHECK_CASE(race->first < race->second && conflict[race->first][race->second] &&
                           !path[race->first][race->second],
                       "round %d", round);
            CHECK_IS(race->range.begin, <, race->range.end);
            for (uint64_t byte = race->range.begin; byte < race->range.end; byte++)
                CHECK(brute_conflict(schedule, race->first, race->second, byte));
            for (uint64_t byte = 0; byte < race->range.begin; byte++)
                CHECK(!brute_conflict(schedule, race->first, race->second, byte));
        }
        for (int64_t a = 0; a < n; a++)
            for (int64_t b = a + 1; b < n; b++) {
                int is_told = 0;
                if (!conflict[a][b] || path[a][b]) continue;
                n_races++;
                for (int64_t i = 0; i < check->n_races;
                     i++) /* itself, or a later operation of its stream */
                    is_told |=
                        check->races[i].second == b && check->races[i].first >= a &&
                        schedule->ops[check->races[i].first].stream == schedule->ops[a].stream;
                CHECK_CASE(is_told, "round %d: %d and %d", round, (int)a, (int)b);
            }
        CHECK_CASE((n_races > 0) == (check->n_races > 0), "round %d", round);
        *(n_races ? &n_racy : &n_clean) += 1;
        for (int64_t i = 0; i < n; i++) {
            const memo_op* op = &schedule->ops[i];
            int is_redundant = 1, is_told;
            if ((op->kind == MEMO_OP_WAIT || (op->kind == MEMO_OP_SYNC && op->event >= 0)) &&
                latest_record(schedule, i) < 0) {
                CHECK(next_unrecorded < check->n_unrecorded_waits &&
                      check->unrecorded_waits[next_unrecorded] == i);
                next_unrecorded++;
            }
            if (op->kind != MEMO_OP_WAIT) continue;
            brute_order(schedule, i, less);
            for (int64_t a = 0; a < n; a++)
                for (int64_t b = a + 1; b < n; b++)
                    if (conflict[a][b] && path[a][b] && !less[a][b]) is_redundant = 0;
            is_told = next_redundant < check->n_redundant_waits &&
                      check->redundant_waits[next_redundant] == i;
            next_redundant += is_told;
            *(is_redundant ? &n_redundant : &n_needed) += 1;
            CHECK_CASE(is_told == is_redundant, "round %d: wait %d", round, (int)i);
        }
        CHECK_IS(next_redundant, ==, check->n_redundant_waits);
        CHECK_IS(next_unrecorded, ==, check->n_unrecorded_waits);
    }
    CHECK(n_racy > 100 && n_clean > 100 && n_redundant > 100 && n_needed > 100);
}

/* --- simulate --- */

/* A slow simulation: every op waits, runs or is done; time passes until the next op is done. */
static void slow_simulate(const memo_schedule* schedule, double* start, double* end) {
    int64_t n = schedule->n_ops, n_done = 0;
    own_memory int* state = (int*)calloc((size_t)n + 1, sizeof(int)); /* 0 waits, 1 runs, 2 done */
    own_memory double* left = (double*)calloc((size_t)n + 1, sizeof(double));
    double now = 0;
    while (n_done < n) {
        double step = 1e300;
        int is_changed = 1;
        while (is_changed) {
            is_changed = 0;
            for (int64_t b = 0; b < n; b++) {
                const memo_op* op = &schedule->ops[b];
                int is_free = 1;
                for (int64_t a = 0; a < b && is_free; a++) {
                    const memo_op* before = &schedule->ops[a];
                    if (state[a] == 2) continue;
                    if (before->kind == MEMO_OP_SYNC) is_free = 0;
                    if (op->kind == MEMO_OP_SYNC && op->event < 0 && is_on(schedule, a, op->stream))
                        is_free = 0;
                    for (int32_t s = 0; s < schedule->n_streams; s++)
                        if (is_on(schedule, a, s) && is_on(schedule, b, s)) is_free = 0;
                    if (op->event >= 0 && op->kind != MEMO_OP_RECORD &&
                        a == latest_record(schedule, b))
                        is_free = 0;
                }
                if (state[b] == 0 && is_free) {
                    start[b] = now;
                    state[b] = 1;
                    left[b] = op->duration_s;
                    is_changed = 1;
                }
                if (state[b] == 1 && left[b] <= 1e-12) {
                    state[b] = 2;
                    end[b] = now;
                    n_done++;
                    is_changed = 1;
                }
            }
        }
        for (int64_t b = 0; b < n; b++)
            if (state[b] == 1 && left[b] < step) step = left[b];
        for (int64_t b = 0; b < n; b++)
            if (state[b] == 1) left[b] -= step;
        now += n_done < n ? step : 0;
    }
}

TEST(simulation_agrees_with_slow_one) {
    for (int round = 0; round < 2000; round++) {
        own_schedule* schedule =
            random_schedule((int)memo_test_int(1, 30), (int)memo_test_int(1, 4), 10);
        double start[SMALL], end[SMALL], makespan = 0;
        slow_simulate(schedule, start, end);
        own_times* simulation = times_of(schedule);
        for (int64_t i = 0; i < schedule->n_ops; i++) {
            int is_run = schedule->ops[i].kind == MEMO_OP_RUN;
            if (end[i] > makespan) makespan = end[i];
            CHECK_CASE(fabs(simulation->end_s[i] - end[i]) < 1e-9, "round %d op %d: %g, not %g",
                       round, (int)i, simulation->end_s[i], end[i]);
            if (is_run)
                CHECK_IS(fabs(simulation->start_s[i] - start[i]), <, 1e-9);
            else
                CHECK_IS(simulation->start_s[i], <=, simulation->end_s[i]);
        }
        CHECK_IS(fabs(simulation->makespan_s - makespan), <, 1e-9);
        for (int32_t s = 0; s < schedule->n_streams; s++) {
            double first = -1, last = 0, busy = 0;
            for (int64_t i = 0; i < schedule->n_ops; i++) {
                if (schedule->ops[i].kind != MEMO_OP_RUN || !is_on(schedule, i, s)) continue;
                if (first < 0) first = start[i];
                last = end[i];
                busy += end[i] - start[i];
            }
            CHECK_IS(fabs(simulation->busy_s[s] - busy), <, 1e-9);
            CHECK_IS(fabs(simulation->stall_s[s] - (first < 0 ? 0 : last - first - busy)), <, 1e-9);
        }
    }
}

/* Times that overflow are an error, and so are times that the caller has made invalid. */
TEST(times_stay_finite) {
    own_schedule* schedule = new_schedule(1, 0);
    memo_simulation* simulation = NULL;
    run_time(schedule, 0, "a", 1e308, 0);
    run_time(schedule, 0, "b", 1e308, 0);
    CHECK_FAILS(memo_schedule_simulate(schedule, &simulation, &error), INVALID_ARGUMENT);
    CHECK(simulation == NULL);
    schedule->ops[0].duration_s = -1;
    CHECK_FAILS(memo_schedule_simulate(schedule, &simulation, &error), INVALID_ARGUMENT);
}

TEST(waits_show_how_long_they_hold) {
    own_schedule* schedule =
        parsed("stream a\nstream b\nrun long a takes 10000000000\nrecord e a\n"
               "run short b takes 4000000000\nwait e b\nrun after b takes 1000000000\nsync b\n"
               "run last a takes 2000000000\n");
    own_times* simulation = times_of(schedule);
    CHECK(simulation->start_s[3] == 4 && simulation->end_s[3] == 10);
    CHECK(simulation->start_s[4] == 10 && simulation->start_s[6] == 11);
    CHECK_IS(simulation->makespan_s, ==, 13);
    CHECK(simulation->stall_s[1] == 6 && simulation->stall_s[0] == 1);
}

/* --- measured, compare --- */

TEST(measured_starts_at_zero) {
    own_schedule* schedule =
        parsed("stream a\nstream b\nrun long a takes 10000000000\nrecord e a\nwait e b\n"
               "run after b takes 1000000000\nsync b\n");
    own_times* times = NULL;
    CHECK_IS(memo_schedule_measured(schedule, &times, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK(times == NULL);
    for (int64_t i = 0; i < 4; i++) { /* as if the base were 100 s later */
        static const double start[4] = {-100, 0, -99, -90}, end[4] = {-90, 0, -90, -89};
        schedule->ops[i].start_s = start[i];
        schedule->ops[i].end_s = end[i];
    }
    CHECK_OK(memo_schedule_measured(schedule, &times, &error));
    CHECK(times->start_s[0] == 0 && times->end_s[0] == 10);
    CHECK(times->start_s[1] == 10 && times->end_s[1] == 10);
    CHECK(times->start_s[2] == 1 && times->end_s[2] == 10);
    CHECK(times->start_s[3] == 10 && times->end_s[3] == 11);
    CHECK(times->start_s[4] == 0 && times->end_s[4] == 11);
    CHECK(times->makespan_s == 11 && times->busy_s[0] == 10 && times->busy_s[1] == 1);
}

TEST(compare_names_the_first_difference) {
    static const char* const cases[][2] = {
        {"run x a writes 0..100\nrecord e a\nrecord f a\nwait e b\n", NULL},
        /* Other names of events, other addresses. */
        {"run x a writes 1000..1100\nrecord f a\nrecord e a\nwait f b\n", NULL},
        {"run x b writes 0..100\nrecord e a\nrecord f a\nwait e b\n", "stream"},
        {"run y a writes 0..100\nrecord e a\nrecord f a\nwait e b\n", "name"},
        {"run x a writes 0..101\nrecord e a\nrecord f a\nwait e b\n", "size"},
        {"run x a writes 0..100\nrecord e a\nrecord f a\nwait f b\n", "record"},
        {"run x a writes 0..100\nrecord e a\nrecord f a\nwait e b\nrun more b\n",
         "only in the recorded"}};
    own_schedule* promised = NULL;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char text[200];
        snprintf(text, sizeof text, "stream a\nstream b\n%s", cases[c][0]);
        own_schedule* recorded = parsed(text);
        if (!promised) promised = parsed(text);
        if (cases[c][1])
            CHECK_ERROR(memo_schedule_compare(promised, recorded, &error), INVALID_ARGUMENT,
                        cases[c][1]);
        else
            CHECK_OK(memo_schedule_compare(promised, recorded, &error));
    }
}

/* --- files --- */

/* Strict JSON (RFC 8259): the end of the value, or NULL if it is invalid. */
static const char* json_blank(const char* p) {
    while (p && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r')) p++;
    return p;
}
static const char* json_text(const char* p) {
    if (*p++ != '"') return NULL;
    for (; *p != '"'; p++) {
        if ((unsigned char)*p < 32) return NULL;
        if (*p == '\\' && !strchr("\"\\/bfnrt", *++p)) return NULL;
        if (!*p) return NULL;
    }
    return p + 1;
}
static const char* json_digits(const char* p) {
    const char* begin = p;
    while (*p >= '0' && *p <= '9') p++;
    return p > begin ? p : NULL;
}
static const char* json_value(const char* p) {
    p = json_blank(p);
    if (*p == '{' || *p == '[') {
        char close = *p == '{' ? '}' : ']';
        p = json_blank(p + 1);
        if (*p == close) return p + 1;
        for (;;) {
            if (close == '}') {
                p = json_blank(json_text(json_blank(p)));
                if (!p || *p++ != ':') return NULL;
            }
            p = json_blank(json_value(p));
            if (!p) return NULL;
            if (*p == close) return p + 1;
            if (*p++ != ',') return NULL;
        }
    }
    if (*p == '"') return json_text(p);
    if (*p == '-') p++;
    if (*p == '0' && p[1] >= '0' && p[1] <= '9') return NULL;
    p = json_digits(p);
    if (p && *p == '.') p = json_digits(p + 1);
    return p;
}

/* Tags that match, one root, attributes in quotes, no bare ampersand. */
static int is_xml(const char* p) {
    char stack[32][16];
    int depth = 0, n_roots = 0;
    for (; *p; p++) {
        int n = 0, is_end = 0;
        if (*p == '&' && strncmp(p, "&amp;", 5) && strncmp(p, "&lt;", 4) && strncmp(p, "&gt;", 4) &&
            strncmp(p, "&quot;", 6))
            return 0;
        if (*p != '<') continue;
        if (*++p == '/') {
            is_end = 1;
            p++;
        }
        if (depth == 31) return 0;
        while (((*p >= 'a' && *p <= 'z') || *p == 'A') && n < 15) stack[depth + is_end][n++] = *p++;
        stack[depth + is_end][n] = 0;
        if (!n) return 0;
        if (is_end) {
            if (depth == 0 || strcmp(stack[depth - 1], stack[depth + 1]) || *p != '>') return 0;
            depth--;
            continue;
        }
        if (depth == 0) n_roots++;
        while (*p && *p != '>' && *p != '/') {
            if (*p == '<') return 0;
            if (*p++ != '"') continue;
            while (*p && *p != '"' && *p != '<') p++;
            if (*p++ != '"') return 0;
        }
        if (*p == '/') {
            if (*++p != '>') return 0;
        } else {
            depth++;
        }
        if (!*p) return 0;
    }
    return depth == 0 && n_roots == 1;
}

/* UTF-8 without controls and surrogates, by the table of well-formed bytes (Unicode, table 3-7). */
static int is_utf8(const char* text) {
    static const unsigned char rows[][5] = {
        /* first byte, length, second byte */
        {0x20, 0x7f, 1, 0, 0},       {0xc2, 0xdf, 2, 0x80, 0xbf}, {0xe0, 0xe0, 3, 0xa0, 0xbf},
        {0xe1, 0xec, 3, 0x80, 0xbf}, {0xed, 0xed, 3, 0x80, 0x9f}, {0xee, 0xef, 3, 0x80, 0xbf},
        {0xf0, 0xf0, 4, 0x90, 0xbf}, {0xf1, 0xf3, 4, 0x80, 0xbf}, {0xf4, 0xf4, 4, 0x80, 0x8f},
        {'\n', '\n', 1, 0, 0}};
    const unsigned char* p = (const unsigned char*)text;
    while (*p) {
        int k = 0;
        while (k < 10 && (*p < rows[k][0] || *p > rows[k][1])) k++;
        if (k == 10 || (p[0] == 0xef && p[1] == 0xbf && p[2] >= 0xbe)) return 0;
        if (rows[k][2] > 1 && (p[1] < rows[k][3] || p[1] > rows[k][4])) return 0;
        for (int n = 2; n < rows[k][2]; n++)
            if (p[n] < 0x80 || p[n] > 0xbf) return 0;
        p += rows[k][2];
    }
    return 1;
}

static int count_of(const char* text, const char* word) {
    int n = 0;
    for (text = strstr(text, word); text; text = strstr(text + 1, word)) n++;
    return n;
}

static char* written(memo_schedule* schedule, const memo_simulation* times, const char* title,
                     int is_svg) {
    char path[250];
    char* data = NULL;
    memo_test_path(path, "schedule");
    if (is_svg)
        CHECK_OK(memo_schedule_write_svg(schedule, times, title, path, &error));
    else
        CHECK_OK(memo_schedule_write_chrome(schedule, times, path, &error));
    data = memo_test_file(path, NULL);
    unlink(path);
    return data;
}

/* Lines at 0, 10, ... 90: round times, at most a dozen. */
TEST(lines_of_a_timeline_are_at_round_times) {
    static const double makespans_s[] = {95, 0.095, 95e-6};
    for (int k = 0; k < 3; k++) {
        own_schedule* schedule = new_schedule(1, 0);
        run_time(schedule, 0, "forward", makespans_s[k], 0);
        own_times* times = times_of(schedule);
        own_memory char* svg = written(schedule, times, NULL, 1);
        CHECK_IS(count_of(svg, "stroke=\"#d9dce1\""), ==, 10);
        CHECK(strstr(svg, ">90</text>") != NULL);
    }
}

TEST(files_are_well_formed) {
    for (int round = 0; round < 60; round++) {
        own_schedule* schedule = random_schedule(30, (int)memo_test_int(1, 4), 10);
        own_memory char *chrome = NULL, *svg = NULL;
        static const char letters[] =
            "a\x80\x9f\xa0\xbf\xc0\xc3\xe0\xed\xef\xf0\xf4\xf5\xff\xbe\x7f\x01";
        char name[13] = "";
        int n_drawn = 0, n_waits = 0;
        int32_t stream;
        CHECK_OK(memo_schedule_add_stream(schedule, "a \"quoted\" <name> & \\ more\n\x01", &stream,
                                          &error));
        for (int64_t i = 0; i < 12; i++) name[i] = letters[memo_test_int(0, sizeof letters - 2)];
        CHECK_OK(memo_schedule_add_stream(schedule, name, &stream, &error));
        run_time(schedule, stream, name, 1, 0);
        int32_t idle;
        CHECK_OK(memo_schedule_add_stream(schedule, "idle", &idle, &error));
        run_time(schedule, stream, "x < y && \"z\" \\ 3", round ? 1e-7 : 0, 7);
        if (round % 7 == 0)
            for (int64_t i = 0; i < schedule->n_ops; i++) schedule->ops[i].duration_s *= 1e-6;
        own_times* times = times_of(schedule);
        for (int64_t i = 0; i < schedule->n_ops; i++) {
            const memo_op* op = &schedule->ops[i];
            n_drawn += op->kind == MEMO_OP_RUN;
            if (op->kind == MEMO_OP_WAIT) n_waits += times->end_s[i] > times->start_s[i];
        }
        chrome = written(schedule, times, NULL, 0);
        const char* end = json_blank(json_value(chrome));
        CHECK_CASE(end && !*end && is_utf8(chrome), "%.2000s", chrome);
        CHECK_IS(count_of(chrome, "\"cat\":\"run\",\"ph\":\"X\""), ==, n_drawn);
        CHECK_IS(count_of(chrome, "\"cat\":\"wait\",\"ph\":\"X\""), ==, n_waits);
        CHECK_IS(count_of(chrome, "\"thread_name\""), ==, schedule->n_streams);
        svg = written(schedule, times, "Losses & <gains>", 1);
        CHECK_CASE(is_xml(svg) && is_utf8(svg), "%.2000s", svg);
        CHECK(strstr(svg, "\xef\xbf\xbd") != NULL);
        CHECK(!strstr(svg, "idle")); /* nothing runs there */
        CHECK_IS(count_of(svg, "<title>"), ==, n_drawn + n_waits);
        CHECK(!strstr(svg, "nan") && !strstr(svg, "inf"));
    }
    {
        own_schedule* schedule = new_schedule(0, 0);
        own_times* times = times_of(schedule);
        char* svg = written(schedule, times, NULL, 1);
        CHECK(is_xml(svg));
        free(svg);
        CHECK_FAILS(memo_schedule_write_svg(schedule, times, "", "/nowhere/at/all", &error), IO);
        CHECK_FAILS(memo_schedule_write_chrome(schedule, times, "/nowhere/at/all", &error), IO);
    }
}

/* Ticks are whole numbers, also from 10,000 on. */
TEST(ticks_have_no_exponent) {
    static const char* const ticks[] = {">0 s<", ">8000<", ">10000<", ">14000<"};
    own_schedule* schedule = new_schedule(1, 0);
    run_time(schedule, 0, "long", 15000, 0);
    own_times* times = times_of(schedule);
    own_memory char* svg = written(schedule, times, NULL, 1);
    for (int i = 0; i < 4; i++) CHECK_CASE(strstr(svg, ticks[i]), "%s", ticks[i]);
    CHECK(!strstr(svg, "e+"));
}

/* --- without memory: an error, nothing lost, nothing leaked --- */

/* file: of a schedule. */
static memo_status everything(const char* file) {
    memo_schedule* schedule = NULL;
    memo_check* check = NULL;
    memo_simulation* times = NULL;
    memo_range range = range_of(0, 10);
    int32_t a, b, event = -1;
    memo_status status = memo_schedule_create(&schedule, &error);
    if (!status) status = memo_schedule_add_stream(schedule, "a", &a, &error);
    if (!status) status = memo_schedule_add_stream(schedule, "b", &b, &error);
    if (!status) status = memo_schedule_add_event(schedule, &event, &error);
    memo_op_desc desc = {.name = "a name that is long enough to make the text grow at some point",
                         .writes = &range,
                         .n_writes = 1,
                         .link_bytes = 5};
    if (!status) status = memo_schedule_add_op(schedule, &desc, &error);
    if (!status) status = memo_schedule_add_op(schedule, &desc, &error);
    desc.stream = 1;
    if (!status) status = memo_schedule_add_op(schedule, &desc, &error);
    desc.stream = 0;
    if (!status) status = memo_schedule_add_op(schedule, &desc, &error);
    if (!status) status = memo_schedule_add_order(schedule, MEMO_OP_RECORD, event, 0, &error);
    if (!status) status = memo_schedule_add_order(schedule, MEMO_OP_WAIT, event, 1, &error);
    if (!status) status = memo_schedule_check(schedule, &check, &error);
    if (!status) status = memo_schedule_simulate(schedule, &times, &error);
    if (!status) status = memo_schedule_compare(schedule, schedule, &error);
    if (!status) status = memo_schedule_write_chrome(schedule, times, "/dev/null", &error);
    if (!status) status = memo_schedule_write_svg(schedule, times, "t", "/dev/null", &error);
    memo_simulation_destroy(times);
    times = NULL;
    if (!status) schedule->ops[0].end_s = 1;
    if (!status) status = memo_schedule_measured(schedule, &times, &error);
    memo_simulation_destroy(times);
    memo_check_destroy(check);
    if (!status) status = memo_schedule_name_op(schedule, 0, "another long name", &error);
    if (!status) status = memo_schedule_name_bytes(schedule, range, "bytes of the test", &error);
    if (!status) status = memo_schedule_write(schedule, "/dev/null", &error);
    memo_schedule_destroy(schedule);
    if (!status) status = memo_schedule_read(file, &schedule, &error);
    if (!status) memo_schedule_destroy(schedule);
    return status;
}

TEST(no_memory_is_an_error) {
    char path[250];
    memo_test_path(path, "memory.schedule");
    FILE* file = fopen(path, "w");
    CHECK(file && fputs("stream a\nstream \"b c\"\nbuffer d 100\n"
                        "run e \"b c\" reads d d+5..7 writes 0x5..9\nrecord f a\n"
                        "wait f \"b c\"\nsync event g\n",
                        file) >= 0);
    if (file) fclose(file);
    memo_status status = MEMO_STATUS_OK;
    refusal r = {0};
    while (next_refusal(&r, status)) status = everything(path);
    CHECK_IS(r.n_failed, >, 40);
    remove(path);
}

/* Many ops with many ranges, as a long run leaves them: this must not take minutes. */
TEST(large_schedules_are_handled) {
    memo_schedule* schedule = new_schedule(4, 8);
    for (int i = 0; i < 4000; i++) {
        memo_range ranges[10];
        for (int k = 0; k < 10; k++) {
            uint64_t begin = memo_test_random() % 1000000;
            ranges[k] = range_of(begin, begin + memo_test_random() % 100000);
        }
        memo_op_desc desc = {.stream = i % 4,
                             .reads = ranges,
                             .n_reads = 7,
                             .writes = ranges + 7,
                             .n_writes = 3,
                             .duration_s = memo_test_real()};
        CHECK_OK(memo_schedule_add_order(schedule, MEMO_OP_WAIT, (i + 7) % 8, i % 4, &error));
        CHECK_OK(memo_schedule_add_op(schedule, &desc, &error));
        CHECK_OK(memo_schedule_add_order(schedule, MEMO_OP_RECORD, i % 8, i % 4, &error));
    }
    memo_check* check = check_of(schedule);
    CHECK(check->n_races == 0 && check->n_waits == 4000);
    memo_check_destroy(check);
    memo_simulation* times = times_of(schedule);
    CHECK_IS(times->makespan_s, >, 0);
    memo_simulation_destroy(times);
    memo_schedule_destroy(schedule);

    schedule = new_schedule(2, 0); /* rows of a table: even columns against odd ones, then all */
    for (int i = 0; i < 4; i++) {
        static memo_range rows[100000];
        for (int k = 0; k < 100000; k++) {
            uint64_t begin = (uint64_t)(99999 - k) * 64 + (i == 1 ? 32 : 0);
            rows[k] = range_of(begin, begin + (i == 3 ? 64 : 32));
        }
        memo_op_desc desc = {.stream = i == 2 ? 0 : i % 2, .writes = rows, .n_writes = 100000};
        CHECK_OK(memo_schedule_add_op(schedule, &desc, &error));
    }
    CHECK_OK(memo_schedule_check(schedule, &check, &error));
    CHECK(check->n_races == 1 && check->races[0].first == 2 && check->races[0].second == 3);
    CHECK(check->races[0].range.begin == 0 && check->races[0].range.end == 32);
    memo_check_destroy(check);
    memo_schedule_destroy(schedule);
}

/* The last test. */
TEST(nothing_leaks) { CHECK_IS(mallocs_live, ==, 0); }
