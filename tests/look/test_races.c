/* test_races.c - schedules as text, and explanations of their races: bugs that other projects
 * wrote or shipped (tests/races, each faulty and fixed), and random schedules whose races disappear if the
 * explanation is followed.  Run from the project's root. */
#include "extras/memo_look.h"
#include "schedules.h"

#include <dirent.h>

/* Writes a file and reads it.  text: what the file held, to be freed; may be NULL. */
static memo_schedule* reread(const memo_schedule* schedule, char** text) {
    char path[250];
    memo_schedule* result = NULL;
    memo_test_path(path, "races.schedule");
    CHECK_OK(memo_schedule_write(schedule, path, &error));
    CHECK_OK(memo_schedule_read(path, &result, &error));
    if (text) *text = memo_test_file(path, NULL);
    remove(path);
    return result;
}

/* --- races that others shipped --- */

static int n_runs(const memo_schedule* schedule) {
    int n = 0;
    for (int64_t i = 0; i < schedule->n_ops; i++) n += schedule->ops[i].kind == MEMO_OP_RUN;
    return n;
}

/* Each line that begins with "#! " is a race, in the words of memo_race_explain; the fixed file has
 * neither.  Returns the number of operations. */
static int check_file(const char* path, int is_faulty) {
    own_schedule* schedule = NULL;
    char why[2048], *text = memo_test_file(path, NULL), *line = text;
    CHECK_OK(memo_schedule_read(path, &schedule, &error));
    if (!schedule) return 0;
    own_check* check = check_of(schedule);
    CHECK_CASE((check->n_races > 0) == is_faulty && check->n_unrecorded_waits == 0, "%s", path);
    for (int64_t i = 0; i < check->n_races; i++) {
        line = strstr(line, "\n#! ");
        CHECK_CASE(line != NULL, "%s: %lld races, and fewer lines", path,
                   (long long)check->n_races);
        if (!line) break;
        line += 4;
        memo_race_explain(schedule, &check->races[i], why, sizeof why);
        CHECK_CASE(strncmp(line, why, strlen(why)) == 0 && line[strlen(why)] == '\n', "%s: %s",
                   path, why);
    }
    CHECK_CASE(!line || !strstr(line, "\n#! "), "%s: more lines than races", path);
    int n = n_runs(schedule);
    free(text);
    return n;
}

TEST(races_that_others_shipped) {
    static const char faulty[] = ".faulty.schedule";
    struct dirent* entry;
    int n_pairs = 0, n_files = 0;
    DIR* folder = opendir("tests/races");
    CHECK_CASE(folder != NULL, "tests/races is not there; run from the project's root");
    if (!folder) return;
    while ((entry = readdir(folder)) != NULL) {
        size_t length = strlen(entry->d_name);
        char path[600];
        if (entry->d_name[0] == '.') continue;
        n_files++;
        if (length < strlen(faulty) || strcmp(entry->d_name + length - strlen(faulty), faulty))
            continue;
        n_pairs++;
        snprintf(path, sizeof path, "tests/races/%s", entry->d_name);
        int n = check_file(path, 1);
        snprintf(path, sizeof path, "tests/races/%.*s.fixed.schedule",
                 (int)(length - strlen(faulty)), entry->d_name);
        CHECK_CASE(check_file(path, 0) == n, "%s: as many operations as the faulty one", path);
    }
    closedir(folder);
    CHECK_CASE(n_pairs >= 16 && n_files == 2 * n_pairs, "%d files, %d of them faulty", n_files,
               n_pairs);
}

/* --- other explanations --- */

static void check_why(const char* text, const char* expected) {
    own_schedule* schedule = parsed(text);
    char why[1024], cut[16];
    own_check* check = check_of(schedule);
    CHECK_IS(check->n_races, ==, 1);
    if (check->n_races) {
        memo_race_explain(schedule, &check->races[0], why, sizeof why);
        CHECK_TEXT(why, expected);
        memo_race_explain(schedule, &check->races[0], cut, sizeof cut);
        CHECK(strlen(cut) == sizeof cut - 1 && !strncmp(cut, why, sizeof cut - 1));
    }
}

TEST(diagnoses_name_the_missing_wait) {
    check_why("stream compute\nstream h2d\n"
              "record 17 h2d\nwait 17 compute\nrun \"to device 3\" h2d writes 0x10..0x20\n"
              "record 17 h2d\nrun \"backward 3\" compute reads 0x18..0x40\n",
              "\"backward 3\" (operation 4, on compute) reads bytes 0x18..0x20 that "
              "\"to device 3\" (operation 2, on h2d) writes; no path: compute never waits for "
              "event 17 after its second record (operation 3, on h2d); fix: let compute wait for "
              "it between operations 3 and 4");
    check_why("stream a\nstream b\nwait e b\nrun x a writes 0..4\n"
              "run y b reads 0..4\n",
              "the last wait of b is for event e, never recorded before; fix: record an event "
              "after operation 1 and let b wait for it between operations 1 and 2");
    check_why("stream a\nstream \"b c\"\nrun x a writes 0..4\n"
              "record f a\nrecord e a\nrun y \"b c\" writes 0..4\nwait e \"b c\"\n",
              "writes bytes 0x0..0x4 that \"x\" (operation 0, on a) writes; no path: \"b c\" never "
              "waits for event f after its first record (operation 1, on a); fix: let \"b c\"");
    /* The event that b waits for elsewhere is likelier than the first one. */
    check_why("stream a\nstream b\nbuffer big 100\nbuffer part big+8..24\n"
              "record e a\nwait e b\nrun x a writes 8..12\nrecord f a\nrecord e a\n"
              "run y b reads 8..12\n",
              "reads bytes 0..4 of part that \"x\" (operation 2, on a) writes; no path: b never "
              "waits for event e after its second record (operation 4, on a)");
}

TEST(operations_are_described) {
    static const char* const expected[] = {
        "record of event e (operation 0, on a b)", "wait for event e (operation 1, on c)",
        "\"x\" (operation 2, on c)", "sync (operation 3, on c)", "sync for event e (operation 4)"};
    own_schedule* schedule = parsed("stream \"a b\"\nstream c\nrecord e \"a b\"\n"
                                    "wait e c\nrun x c\nsync c\nsync event e\n");
    char text[80];
    memo_schedule_describe(schedule, 0, text, sizeof text);
    CHECK_CASE(!strcmp(text, "record of event e (operation 0, on \"a b\")"), "%s", text);
    for (int i = 1; i < 5; i++) {
        memo_schedule_describe(schedule, i, text, sizeof text);
        CHECK_CASE(!strcmp(text, expected[i]), "%s", text);
    }
    CHECK_OK(memo_schedule_name_op(schedule, 2, "another", &error));
    memo_schedule_describe(schedule, 2, text, sizeof text);
    CHECK_CASE(!strcmp(text, "\"another\" (operation 2, on c)"), "%s", text);
    CHECK_IS(memo_schedule_name_op(schedule, 1, "wait", &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_schedule_name_op(schedule, 5, "x", &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_schedule_name_op(schedule, 2, NULL, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
}

/* --- random schedules: the diagnosis, followed, fixes the race --- */

/* Is b the schedule a, written and read, apart from fields that the file omits? */
static void check_same(const memo_schedule* a, const memo_schedule* b) {
    CHECK_OK(memo_schedule_compare(a, b, &error));
    CHECK_IS(a->n_streams, ==, b->n_streams);
    for (int64_t i = 0; i < a->n_ops && i < b->n_ops; i++) {
        const memo_op *x = &a->ops[i], *y = &b->ops[i];
        CHECK_IS(fabs(x->duration_s - y->duration_s), <, 1e-12);
        for (int64_t k = 0; k < x->n_reads + x->n_writes; k++)
            CHECK(!memcmp(&a->ranges[x->first_range + k], &b->ranges[y->first_range + k],
                          sizeof(memo_range)));
    }
}

/* Puts a wait or record into a schedule, before op `at`. */
static void put_op(memo_schedule* schedule, int64_t at, memo_op_kind kind, int32_t event,
                   int32_t stream) {
    CHECK_OK(memo_schedule_add_order(schedule, kind, event, stream, &error));
    memo_op* ops = schedule->ops + at;
    memo_op last = schedule->ops[schedule->n_ops - 1];
    memmove(ops + 1, ops, (size_t)(schedule->n_ops - 1 - at) * sizeof *ops);
    *ops = last;
}

static void take_op(memo_schedule* schedule, int64_t at) {
    memmove(schedule->ops + at, schedule->ops + at + 1,
            (size_t)(--schedule->n_ops - at) * sizeof *schedule->ops);
}

static int has_race(const memo_schedule* schedule, int64_t first, int64_t second) {
    int has = 0;
    own_check* check = check_of(schedule);
    for (int64_t i = 0; i < check->n_races; i++)
        has |= check->races[i].first == first && check->races[i].second == second;
    return has;
}

/* Follows the advice at the end of the explanation, anywhere between the two named operations. */
static void check_fix(memo_schedule* schedule, const memo_race* race, const char* why, int round) {
    const char* fix = strstr(why, "; fix: ");
    int32_t stream = schedule->ops[race->second].stream, event = 0;
    int is_recorded = fix && strstr(fix, "record an event after");
    long long from, to;
    int64_t second = race->second;
    const int is_advised = fix && sscanf(strstr(fix, "between operations "),
                                         "between operations %lld and %lld", &from, &to) == 2;
    CHECK_CASE(is_advised, "round %d: %s", round, why);
    if (!is_advised) return;
    CHECK_CASE(has_race(schedule, race->first, second), "round %d", round);
    if (is_recorded) { /* then operation `from` is this record, one place later */
        CHECK_CASE(from == race->first && to == second, "round %d: %s", round, why);
        CHECK_OK(memo_schedule_add_event(schedule, &event, &error));
        put_op(schedule, ++from, MEMO_OP_RECORD, event, schedule->ops[race->first].stream);
        to++;
        second++;
        CHECK_CASE(has_race(schedule, race->first, second), "round %d", round);
    } else {
        event = schedule->ops[from].event;
        CHECK_CASE(schedule->ops[from].kind == MEMO_OP_RECORD && from > race->first, "round %d: %s",
                   round, why);
    }
    int64_t at = memo_test_int(from + 1, to);
    put_op(schedule, at, MEMO_OP_WAIT, event, stream);
    CHECK_CASE(!has_race(schedule, race->first, second + 1), "round %d: %s", round, why);
    take_op(schedule, at);
    if (is_recorded) take_op(schedule, from);
}

TEST(following_a_diagnosis_fixes_the_race) {
    int n_recorded = 0, n_never = 0, n_late = 0;
    for (int round = 0; round < 3000; round++) {
        own_schedule* schedule =
            random_schedule((int)memo_test_int(2, 30), (int)memo_test_int(2, 4), 30);
        own_schedule* again = reread(schedule, NULL);
        if (!again) return;
        check_same(schedule, again);
        own_check* check = check_of(again);
        for (int64_t i = 0; i < check->n_races; i++) {
            char why[2048];
            memo_race_explain(again, &check->races[i], why, sizeof why);
            n_recorded += strstr(why, "no event is recorded") != NULL;
            n_never += strstr(why, "never waits") != NULL;
            n_late += strstr(why, "too late") != NULL;
            check_fix(again, &check->races[i], why, round);
        }
    }
    CHECK_CASE(n_recorded > 100 && n_never > 100 && n_late > 20, "%d, %d and %d", n_recorded,
               n_never, n_late);
}

/* --- text --- */

TEST(every_line_of_the_format) {
    own_schedule* s = parsed("# a comment\n\n\r\n"
                             "stream compute\n\tstream \"to \\\"host\\\" \\\\\"\nstream reads\n"
                             "buffer a 100\nbuffer \"b c\" 10\nbuffer part a+10..30\n"
                             "buffer far 0x1000..0xFFFFFFFFFFFFFFFF\nbuffer a 5..6\n"
                             "run \"reads it\" \"reads\" reads part \"b c\" \"b c\"+2..4 "
                             "writes a 7..0x9 reads part+1..1 takes 1500\n"
                             "record done \"to \\\"host\\\" \\\\\"\nwait done compute\n"
                             "record done compute\nwait never compute\n"
                             "sync compute\nsync event done");
    static const uint64_t ranges[][2] = {{10, 30}, {100, 110}, {102, 104},
                                         {11, 11}, {5, 6},     {7, 9}};
    if (!s) return;
    CHECK(s->n_ops == 7 && s->n_streams == 3 && s->n_events == 2);
    CHECK(!strcmp(s->text + s->streams[1], "to \"host\" \\"));
    CHECK(!strcmp(memo_schedule_op_name(s, 0), "reads it"));
    CHECK(s->ops[0].stream == 2);
    CHECK(s->ops[0].n_reads == 4 && s->ops[0].n_writes == 2);
    CHECK_IS(fabs(s->ops[0].duration_s - 1.5e-6), <, 1e-15);
    for (int64_t i = 0; i < 6; i++)
        CHECK(s->ranges[i].begin == ranges[i][0] && s->ranges[i].end == ranges[i][1]);
    CHECK(s->ops[1].kind == MEMO_OP_RECORD && s->ops[1].stream == 1 && s->ops[1].event == 0);
    CHECK(s->ops[2].kind == MEMO_OP_WAIT && s->ops[2].stream == 0 && s->ops[2].event == 0);
    CHECK(s->ops[4].kind == MEMO_OP_WAIT && s->ops[4].event == 1);
    CHECK(s->ops[5].kind == MEMO_OP_SYNC && s->ops[5].stream == 0 && s->ops[5].event == -1);
    CHECK(s->ops[6].kind == MEMO_OP_SYNC && s->ops[6].stream == -1 && s->ops[6].event == 0);
}

TEST(faults_have_a_file_a_line_and_a_reason) {
    static const struct {
        const char *text, *words;
        int64_t line;
    } cases[] = {{"", "the file is empty", 0},
                 {"stream a\nmemo schedule 1\n", "unknown line `memo`", 2},
                 {"memo trace 1\n", "a `memo schedule` was expected", 1},
                 {"memo schedule\n", "version", 1},
                 {"memo schedule 1 2\n", "unexpected `2`", 1},
                 {"memo schedule 1\nstream a\nrun x a\n", "truncated: no `end` line", 3},
                 {"stream\n", "the line is too short", 1},
                 {"stream a b\n", "unexpected `b`", 1},
                 {"stream a\nstream \"a\"\n", "declared twice", 2},
                 {"stream \"a\n", "a quote is not closed", 1},
                 {"stream \"a\"b\n", "a stream has a name", 1},
                 {"stream a\x01\n", "control character", 1},
                 {"leap a\n", "unknown line `leap`", 1},
                 {"buffer a\n", "size or a range", 1},
                 {"buffer a b\n", "no such buffer", 1},
                 {"buffer a 18446744073709551616\n", "range", 1},
                 {"buffer a 18446744073709551615\nbuffer b 1\n", "too large", 2},
                 {"buffer a 10\nbuffer b a+5..11\n", "a range must be", 2},
                 {"buffer a 10\nbuffer b \"a\"x5..6\n", "a range must be", 2},
                 {"run\n", "the line is too short", 1},
                 {"run x\n", "a stream is expected", 1},
                 {"run x a\n", "no such stream", 1},
                 {"stream a\nrun x a a\n", "reads, writes or takes is expected", 2},
                 {"stream a\nrun x a reads 5..4\n", "a range must be", 2},
                 {"stream a\nrun x a reads 5..\n", "a range must be", 2},
                 {"stream a\nrun x a reads 0x..5\n", "a range must be", 2},
                 {"stream a\nrun x a reads y\n", "no such buffer", 2},
                 {"stream a\nrun x a takes\n", "nanoseconds", 2},
                 {"stream a\nrun x a takes 1.5\n", "nanoseconds", 2},
                 {"stream a\nrecord\n", "an event is expected", 2},
                 {"stream a\nrecord e\n", "a stream is expected", 2},
                 {"stream a\nwait e b\n", "no such stream", 2},
                 {"stream a\nsync event\n", "an event is expected", 2},
                 {"stream a\nsync \"event\"\n", "no such stream", 2}};
    memo_schedule* schedule;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memo_status status = read_text(cases[i].text, &schedule);
        CHECK_CASE(status == MEMO_STATUS_FORMAT && !schedule, "%s", cases[i].text);
        CHECK_CASE(error.line == cases[i].line && strstr(error.message, "text.schedule:") &&
                       strstr(error.message, cases[i].words),
                   "%s: %s", cases[i].text, error.message);
    }
    CHECK_IS(read_text("memo schedule 2\n", &schedule), ==, MEMO_STATUS_VERSION);
    CHECK(memo_schedule_read("/nowhere/at/all", &schedule, &error) == MEMO_STATUS_IO && !schedule);
}

/* A file that is cut anywhere is refused: without its last ranges a race would be missed. */
TEST(cut_files_are_refused) {
    for (int n = 0; n < 3; n++) {
        memo_schedule *schedule = random_schedule(30, 3, 30), *cut = NULL;
        own_memory char* text = NULL;
        memo_schedule_destroy(reread(schedule, &text));
        size_t n_bytes = strlen(text);
        for (size_t k = n_bytes - 1; k-- > 0;) {
            text[k] = 0;
            CHECK_CASE(read_text(text, &cut) && !cut, "%zu of %zu bytes", k, n_bytes);
            memo_schedule_destroy(cut);
        }
        memo_schedule_destroy(schedule);
    }
}

/* Two streams of one name must not become one, which would have no race with itself. */
TEST(streams_of_one_name_stay_two) {
    own_schedule *schedule = NULL, *again = NULL;
    memo_range bytes = {3, 9};
    CHECK_OK(memo_schedule_create(&schedule, &error));
    memo_op_desc op = {.writes = &bytes, .n_writes = 1};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(memo_schedule_add_stream(schedule, "ring \"", &op.stream, &error));
        CHECK_OK(memo_schedule_add_op(schedule, &op, &error));
    }
    again = reread(schedule, NULL);
    CHECK(again && again->n_streams == 2);
    CHECK(again && !strcmp(again->text + again->streams[1], "ring \" #1"));
    own_check* check = check_of(again);
    CHECK_IS(check->n_races, ==, 1);
}

/* The reader tells streams apart, and events, whatever their names: equal ones, ones that look like
 * a number that was appended, numbers of events without a name, names with control characters. */
TEST(names_that_look_alike_stay_apart) {
    static const char* const names[] = {"a", "a #1", "a #2", "a #1 #1", "a\n",
                                        "",  " #1",  "1",    "\xff"};
    static const char* const events[] = {"0", "1", "2", "1 #1", "2 #2"};
    int n_renamed = 0;
    for (int round = 0; round < 300; round++) {
        const int n = (int)memo_test_int(1, 6), n_named = (int)memo_test_int(0, 2);
        own_schedule *schedule = NULL, *again = NULL;
        char text[200] = "stream x\n";
        for (int i = 0; i < n_named; i++) /* read names twice: then there is one event */
            snprintf(text + strlen(text), sizeof text - strlen(text), "record \"%s\" x\n",
                     events[memo_test_int(0, 4)]);
        schedule = parsed(text);
        for (int i = 0; i < n; i++) {
            int32_t stream, event;
            CHECK_OK(
                memo_schedule_add_stream(schedule, names[memo_test_int(0, 8)], &stream, &error));
            CHECK_OK(memo_schedule_add_event(schedule, &event, &error));
            CHECK_OK(memo_schedule_add_order(schedule, MEMO_OP_RECORD, event, stream, &error));
        }
        again = reread(schedule, NULL);
        CHECK_CASE(again, "round %d", round);
        if (again) {
            CHECK_IS(again->n_streams, ==, schedule->n_streams);
            CHECK_IS(again->n_events, ==, schedule->n_events);
            CHECK_IS(again->n_ops, ==, schedule->n_ops);
            for (int i = 0; i < again->n_ops && i < schedule->n_ops; i++) {
                CHECK_IS(again->ops[i].stream, ==, schedule->ops[i].stream);
                CHECK_IS(again->ops[i].event, ==, schedule->ops[i].event);
            }
            for (int i = 0; i < again->n_streams; i++)
                n_renamed += strcmp(again->text + again->streams[i],
                                    schedule->text + schedule->streams[i]) != 0;
        }
    }
    CHECK_CASE(n_renamed > 100, "%d", n_renamed);
}

TEST(names_are_checked) {
    memo_range bytes = {3, 2};
    own_schedule* schedule = new_empty_schedule();
    CHECK_FAILS(memo_schedule_name_bytes(schedule, bytes, "x", &error), INVALID_ARGUMENT);
    bytes.end = 9;
    CHECK_FAILS(memo_schedule_name_bytes(schedule, bytes, NULL, &error), INVALID_ARGUMENT);
    CHECK_OK(memo_schedule_name_bytes(schedule, bytes, "x", &error));
}

TEST(bytes_with_a_name_and_times_are_written) {
    char* text;
    own_schedule *schedule = NULL, *again = NULL;
    memo_range bytes = {4, 8};
    int32_t stream;
    CHECK_OK(memo_schedule_create(&schedule, &error));
    CHECK_OK(memo_schedule_add_stream(schedule, "s", &stream, &error));
    CHECK_OK(memo_schedule_name_bytes(schedule, bytes, "weights", &error));
    memo_op_desc op = {.duration_s = 5e-6, .link_bytes = 3};
    CHECK_OK(memo_schedule_add_op(schedule, &op, &error));
    again = reread(schedule, &text);
    CHECK_CASE(text && strstr(text, "takes 5000\n") &&
                   strstr(text, "buffer \"weights\" 0x4..0x8\n"),
               "%s", text ? text : "no file");
    free(text);
    CHECK(again && fabs(again->ops[0].duration_s - 5e-6) < 1e-15);
}
