/* test_trace.c - chapter 2 of memo.h: requests, their text, marks, classes, layers. */
#include "scarce.h"
#define MEMO_FILE_BYTES_MAX ((int64_t)2 << 20)
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#include "memo.h"
#include "tools/trace_layers.h"
#include "owned.h"
#include "random_trace.h"

/* --- helpers --- */

/* "memo trace 1", the lines, and a right last line; to be freed. */
static char* framed(const char* lines, int64_t count) {
    size_t n = strlen(lines) + 80;
    char* text = (char*)malloc(n);
    int length = snprintf(text, n, "memo trace 1\n%s", lines);
    snprintf(text + length, n - (size_t)length, "end %lld %016llx\n", (long long)count,
             (unsigned long long)memob_hash(text, length));
    return text;
}

static const char* temporary_path(void) {
    static char path[250];
    return memo_test_path(path, "trace");
}

/* The same requests, apart from the numbering of ids. */
static int64_t first_difference(const memo_trace* a, const memo_trace* b) {
    int64_t i;
    for (i = 0; i < a->n_requests && i < b->n_requests; i++) {
        const memo_request* x = &a->requests[i];
        const memo_request* y = &b->requests[i];
        if (x->kind != y->kind || x->memory_class != y->memory_class || x->stream != y->stream ||
            x->size_bytes != y->size_bytes ||
            memob_request_origin(a, i) != memob_request_origin(b, i))
            return i;
        if (x->kind == MEMO_REQUEST_MARK && strcmp(a->text + x->id, b->text + y->id)) return i;
        if ((x->kind == MEMO_REQUEST_RECORD || x->kind == MEMO_REQUEST_WAIT) && x->id != y->id)
            return i;
    }
    return a->n_requests == b->n_requests ? -1 : i;
}

static const char* const shared_traces[] = {
    "tests/data/gpt-h4096-n8-s32k-store.trace", "tests/data/gpt-h4096-n8-s64k-recompute.trace",
    "tests/data/gpt2-124m-b8-s1k-store.trace", "tests/data/llama-1b-s8k-recompute.trace",
    "tests/data/llama-1b-s8k-store.trace"};
static const int shared_layers[] = {8, 8, 12, 16, 16};
static const int shared_buffers[] = {514, 714, 917, 2505, 1865};
#define N_SHARED 5

/* --- requests --- */

TEST(requests_are_kept) {
    own_trace* trace = new_trace();
    CHECK_OK(memo_trace_mark(trace, "iteration begin", &error));
    CHECK_OK(memo_trace_malloc(trace, -5, 100, MEMO_CLASS_SKELETAL, 3, &error));
    CHECK_OK(memo_trace_malloc(trace, 7, 0, MEMO_CLASS_TRANSIENT, 0, &error));
    CHECK_OK(memo_trace_use(trace, -5, 63, &error));
    CHECK_OK(memo_trace_record(trace, 1, 63, &error));
    CHECK_OK(memo_trace_wait(trace, 1, 3, &error));
    CHECK_OK(memo_trace_free(trace, -5, &error));
    CHECK_OK(memo_trace_malloc(trace, -5, 8, MEMO_CLASS_TRANSIENT, 0, &error)); /* id reused */
    CHECK(trace->n_requests == 8 && trace->n_buffers == 3 && trace->n_live == 2);
    CHECK(trace->requests[1].size_bytes == 100 && trace->requests[1].stream == 3);
    CHECK(memob_request_origin(trace, 3) == 1 && memob_request_origin(trace, 6) == 1);
    CHECK_IS(trace->requests[6].size_bytes, ==, 100);
    CHECK_IS(strcmp(trace->text + trace->requests[0].id, "iteration begin"), ==, 0);
    memo_trace_destroy(NULL);
}

TEST(bad_requests_leave_the_trace) {
    const memo_status bad = MEMO_STATUS_INVALID_ARGUMENT;
    own_trace* trace = new_trace();
    CHECK_OK(memo_trace_malloc(trace, 1, 8, MEMO_CLASS_TRANSIENT, 0, &error));
    CHECK_OK(memo_trace_malloc(trace, 2, 8, MEMO_CLASS_TRANSIENT, 0, &error));
    CHECK_OK(memo_trace_free(trace, 2, &error));
    CHECK_IS(memo_trace_malloc(trace, 1, 8, MEMO_CLASS_TRANSIENT, 0, &error), ==, bad);
    CHECK_IS(memo_trace_malloc(trace, 3, -1, MEMO_CLASS_TRANSIENT, 0, &error), ==, bad);
    CHECK_IS(memo_trace_malloc(trace, 3, INT64_MAX, MEMO_CLASS_TRANSIENT, 0, &error), ==, bad);
    CHECK_IS(memo_trace_malloc(trace, 3, 8, MEMO_CLASS_TRANSIENT, 64, &error), ==, bad);
    CHECK_IS(memo_trace_malloc(trace, 3, 8, MEMO_CLASS_TRANSIENT, -1, &error), ==, bad);
    CHECK(memo_trace_free(trace, 2, &error) == bad && strstr(error.message, "freed before"));
    CHECK(memo_trace_free(trace, 9, &error) == bad && strstr(error.message, "never requested"));
    CHECK_IS(memo_trace_use(trace, 2, 0, &error), ==, bad);
    CHECK_IS(memo_trace_use(trace, 1, 64, &error), ==, bad);
    CHECK(memo_trace_wait(trace, 5, 0, &error) == bad && strstr(error.message, "never recorded"));
    CHECK_IS(memo_trace_record(trace, 5, -1, &error), ==, bad);
    CHECK_IS(memo_trace_mark(trace, "", &error), ==, bad);
    CHECK_IS(memo_trace_mark(trace, "two\nlines", &error), ==, bad);
    CHECK_IS(memo_trace_mark(trace, "return\r", NULL), ==, bad);
    CHECK(trace->n_requests == 3 && trace->n_buffers == 2 && trace->n_live == 1);
}

/* --- text --- */

TEST(version_0_and_1_are_read) {
    own_memory char* text =
        framed("# a comment\n\nmalloc 1 10\r\n  malloc 2 20 skeletal\nmalloc 3 0 "
               "persistent 4\nuse 1 2\nrecord 8 2\nwait 8 0\nmark  two  words \nfree 1 10\n",
               8);
    own_trace* trace = trace_of_text(text);
    free(text);
    CHECK(trace->n_requests == 8 && trace->n_buffers == 3 && trace->n_live == 2);
    CHECK_IS(trace->requests[1].memory_class, ==, MEMO_CLASS_SKELETAL);
    CHECK(trace->requests[2].memory_class == MEMO_CLASS_PERSISTENT &&
          trace->requests[2].stream == 4);
    CHECK_IS(strcmp(trace->text + trace->requests[6].id, " two  words "), ==, 0);
    memo_trace_destroy(trace);
    trace = trace_of_text("# before\nmalloc 1 10\nmark here\nfree 1 10\nmalloc 1 5");
    CHECK(trace->n_requests == 4 && trace->n_live == 1);
    memo_trace_destroy(trace);
    text = framed("", 0);
    trace = trace_of_text(text);
    CHECK_IS(trace->n_requests, ==, 0);
}

/* What is wrong with a text is said, with its line. */
static void refuses(const char* text, memo_status status, int64_t line, const char* reason) {
    memo_trace* trace = (memo_trace*)&trace;
    memo_status found = memo_trace_parse(text, (int64_t)strlen(text), "file", &trace, &error);
    CHECK_CASE(found == status && trace == NULL, "%s: status %d", reason, (int)found);
    CHECK_CASE(error.line == line, "%s: line %lld", reason, (long long)error.line);
    CHECK_CASE(strstr(error.message, reason) != NULL, "%s: \"%s\"", reason, error.message);
    if (found != status) memo_trace_destroy(trace);
}
static void refuses_lines(const char* lines, int64_t count, int64_t line, const char* reason) {
    own_memory char* text = framed(lines, count);
    refuses(text, MEMO_STATUS_FORMAT, line, reason);
}

TEST(bad_lines_are_named) {
    const memo_status format = MEMO_STATUS_FORMAT;
    refuses("", format, 0, "empty");
    refuses("# nothing\n\n", format, 2, "empty");
    refuses("memo plan 1\n", format, 1, "`memo trace` was expected");
    refuses("memo trace\n", format, 1, "version is missing");
    refuses("memo trace 1 x\nend 0 0\n", format, 1, "unexpected `x`");
    refuses("memo trace 2\n", MEMO_STATUS_VERSION, 1, "newer version 2; 1 is supported");
    refuses("memo trace 0\n", MEMO_STATUS_VERSION, 1, "invalid version 0");
    refuses("memo trace 1\nmalloc 1 2\n", format, 2, "truncated: no `end` line");
    refuses("memo trace 1\nend\n", format, 2, "count is missing");
    refuses("memo trace 1\nend 0 12\n", format, 2, "wrong checksum");
    refuses("memo trace 1\nend 0 00000000000000zz\n", format, 2, "wrong checksum");
    refuses("memo trace 1\nbad\nend 0 0000000000000000\n", format, 3, "wrong checksum");
    refuses("malloc 1 2\nuse 1 0\n", format, 2, "begins with `memo trace 1`");
    refuses("malloc 1 2\nend 1 0000000000000000\n", format, 2, "malloc, free and mark are valid");
    refuses("malloc 1 2 transient\n", format, 1, "unexpected `transient`");
    refuses("alloc 1 2\n", format, 1, "unknown request `alloc`");
    refuses("malloc 1 2\nfree 1 3\n", format, 2, "wrong size (3); its malloc has 2 bytes");
    refuses("malloc 1 2\nfree 1\n", format, 2, "size is missing");
    refuses_lines("malloc 1 2\n", 2, 3, "wrong count: 2 stated, 1 lines above");
    refuses_lines("frob 1\n", 1, 2, "unknown request `frob`; malloc, free, use");
    refuses_lines("\x01\xff\n", 1, 2,
                  "`?"
                  "?`; malloc");
    refuses_lines("malloc\n", 1, 2, "id is missing");
    refuses_lines("malloc 1\n", 1, 2, "size is missing");
    refuses_lines("malloc x 2\n", 1, 2, "id `x` is not a whole number");
    refuses_lines("malloc 1 2.5\n", 1, 2, "size `2.5` is not");
    refuses_lines("malloc 1 99999999999999999999\n", 1, 2, "is not a whole number of 64 bits");
    refuses_lines("malloc 1 -2\n", 1, 2, "trace.size_bytes: out of range (-2)");
    refuses_lines("malloc 1 4611686018427387905\n", 1, 2, "0 to 4611686018427387904 are valid");
    refuses_lines("malloc 1 2 big\n", 1, 2, "class `big` is not");
    refuses_lines("malloc 1 2 transient 64\n", 1, 2, "stream: out of range (64)");
    refuses_lines("malloc 1 2 transient 4294967296\n", 1, 2, "stream: out of range (4294967296)");
    refuses_lines("malloc 1 2 transient 1 1\n", 1, 2, "unexpected `1`");
    refuses_lines("malloc 1 2\nmalloc 1 2\n", 2, 3, "already live");
    refuses_lines("malloc 1 2\nfree 1 2\nfree 1 2\n", 3, 4, "freed before");
    refuses_lines("free 1 2\n", 1, 2, "never requested");
    refuses_lines("malloc 1 2\nfree 1 2 3\n", 2, 3, "unexpected `3`");
    refuses_lines("use 1 0\n", 1, 2, "never requested");
    refuses_lines("malloc 1 2\nuse 1\n", 2, 3, "stream is missing");
    refuses_lines("wait 1 0\n", 1, 2, "never recorded");
    refuses_lines("record 1 -1\n", 1, 2, "stream: out of range (-1)");
    refuses_lines("mark\n", 1, 2, "the text is empty");
    refuses_lines("mark a\tb\n", 1, 2, "mark: the text has a");
    {
        own_memory char* text = framed("", 0);
        char longer[128];
        snprintf(longer, sizeof longer, "%s\nmalloc 1 2\n", text);
        refuses(longer, format, 4, "nothing may follow");
    }
    {
        memo_trace* trace;
        CHECK_IS(memo_trace_parse(NULL, 0, "t", &trace, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
        CHECK_IS(memo_trace_parse("x", -1, "t", &trace, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    }
}

/* With marks and sizes that are odd in a file. */
static memo_trace* odd_trace(int64_t n) {
    static const char* const marks[] = {"layer 3 forward end", " odd  text ", "\xc3\xa9t\xc3\xa9"};
    memo_trace* trace = random_trace(n, 4, 0, 1, 0);
    for (int i = 0; i < 3 && n; i++) {
        CHECK_OK(memo_trace_mark(trace, marks[i], &error));
        CHECK_OK(memo_trace_malloc(trace, -3 * i - 1, MEMOB_BYTES_MAX, (memo_class)i,
                                   (int32_t)memo_test_int(0, 63), &error));
    }
    return trace;
}

TEST(files_make_the_round_trip) {
    for (int i = 0; i < 60; i++) {
        own_trace* trace = odd_trace(i * 3);
        own_memory char *first = NULL, *second = NULL;
        CHECK_OK(memo_trace_write(trace, temporary_path(), &error));
        first = memo_test_file(temporary_path(), NULL);
        own_trace* again = trace_of_file(temporary_path());
        CHECK_IS(first_difference(trace, again), ==, -1);
        CHECK_OK(memo_trace_write(again, temporary_path(), &error));
        second = memo_test_file(temporary_path(), NULL);
        CHECK_IS(strcmp(first, second), ==, 0);
    }
    unlink(temporary_path());
}

TEST(unreadable_files_are_named) {
    own_trace* trace = (memo_trace*)&trace;
    CHECK_IS(memo_trace_read("/nowhere/x.trace", &trace, &error), ==, MEMO_STATUS_IO);
    CHECK(trace == NULL && strstr(error.message, "/nowhere/x.trace"));
    CHECK_OK(memo_trace_create(&trace, &error));
    CHECK_IS(memo_trace_write(trace, "/nowhere/x.trace", &error), ==, MEMO_STATUS_IO);
}

TEST(files_that_never_end_are_refused) {
    memo_trace* trace;
    FILE* file = fopen(temporary_path(), "wb");
    CHECK(file && ftruncate(fileno(file), MEMO_FILE_BYTES_MAX) == 0 && fclose(file) == 0);
    CHECK_IS(memo_trace_read(temporary_path(), &trace, &error), ==, MEMO_STATUS_FORMAT);
    CHECK_IS(truncate(temporary_path(), MEMO_FILE_BYTES_MAX + 1), ==, 0);
    CHECK_ERROR(memo_trace_read(temporary_path(), &trace, &error), IO, ": larger than 2.0 MiB; ");
    unlink(temporary_path());
    CHECK_IS(memo_trace_read("/dev/zero", &trace, &error), ==, MEMO_STATUS_IO);
    CHECK_CASE(!strncmp(error.message, "/dev/zero: larger than ", 23), "%s", error.message);
}

static int accepts(const char* text, int64_t n_bytes) {
    own_trace* trace = NULL;
    return !memo_trace_parse(text, n_bytes, "t", &trace, &error);
}

/* No damage passes, and none is a crash. */
TEST(damaged_files_are_refused) {
    own_trace* trace = odd_trace(40);
    CHECK_OK(memo_trace_write(trace, temporary_path(), &error));
    own_memory char* text = memo_test_file(temporary_path(), NULL);
    unlink(temporary_path());
    check_damage(text, accepts);
}

TEST(random_text_is_no_crash) {
    static const char* const words[] = {"malloc", "free", "mark",  "use", "record",   "wait", "1",
                                        "2",      "3",    "-1",    "0",   "\n",       "\n",   "\n",
                                        "memo",   "end",  "trace", "#",   "skeletal", "\r\n"};
    char text[512];
    int length;
    for (int i = 0; i < 3000; i++) {
        int frame = i % 3 == 0, n_words = (int)memo_test_int(0, 40);
        length = 0;
        text[0] = 0;
        for (int k = 0; k < n_words; k++)
            length += snprintf(text + length, sizeof text - (size_t)length, "%s%s",
                               words[memo_test_int(0, 19)], memo_test_int(0, 9) ? " " : "\t");
        if (frame) {
            own_memory char* whole = framed(text, memo_test_int(0, 5));
            (void)accepts(whole, (int64_t)strlen(whole));
        } else {
            (void)accepts(text, length);
        }
    }
}

/* --- marks and classes --- */

TEST(marks_are_understood) {
    static const char* const others[] = {"",
                                         "layer",
                                         "layer 1",
                                         "layer 1 forward",
                                         "layer -1 forward end",
                                         "layer x forward end",
                                         "layer 1 sideways end",
                                         "layer 1 forward ends",
                                         "layer 1 forward end x",
                                         "iteration",
                                         "iteration middle",
                                         "Layer 1 forward end"};
    memo_mark mark = memo_mark_parse("layer 12 recompute end");
    CHECK(mark.phase == MEMO_PHASE_RECOMPUTE && mark.layer == 12 && mark.is_end);
    mark = memo_mark_parse("layer 0 backward begin");
    CHECK(mark.phase == MEMO_PHASE_BACKWARD && mark.layer == 0 && !mark.is_end);
    mark = memo_mark_parse("layer 3 forward begin");
    CHECK(mark.phase == MEMO_PHASE_FORWARD && mark.layer == 3 && !mark.is_end);
    mark = memo_mark_parse("iteration end");
    CHECK(mark.phase == MEMO_PHASE_ITERATION && mark.layer == -1 && mark.is_end);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        mark = memo_mark_parse(others[i]);
        CHECK_CASE(mark.phase == MEMO_PHASE_NONE && mark.layer == -1, "%s", others[i]);
    }
    CHECK_IS(memo_mark_parse(NULL).phase, ==, MEMO_PHASE_NONE);
}

/* --- layers: a synthetic trainer, recorded with any number of layers --- */

typedef struct trainer {
    uint64_t seed;
    int n_chain, n_skeletal;
    int64_t chain_bytes[3];
    int input_dies_in_forward[3];
    int last_output_dies_late; /* after the backward instead of before it */
    int recomputes;            /* 1: with marks inside the backward, 2: before it */
    /* requested in a backward, freed after all backwards; needs three layers */
    int n_weight_gradients;
    int weight_order;          /* 0: first layer first, 1: last first, 2: gradient by gradient */
    int gradient_dies_between; /* after the end of the backward; needs three layers */
    int has_streams;
} trainer;

static trainer random_trainer(int needs_three) {
    trainer t = {.seed = memo_test_random()};
    t.n_chain = (int)memo_test_int(1, 3);
    t.n_skeletal = (int)memo_test_int(0, 6);
    for (int k = 0; k < t.n_chain; k++) {
        t.chain_bytes[k] = memo_test_int(1, 1000);
        t.input_dies_in_forward[k] = (int)memo_test_int(0, 1);
    }
    t.last_output_dies_late = (int)memo_test_int(0, 1);
    t.recomputes = (int)memo_test_int(0, 2);
    t.has_streams = (int)memo_test_int(0, 1);
    if (needs_three) {
        t.n_weight_gradients = (int)memo_test_int(0, 3);
        t.weight_order = (int)memo_test_int(0, 2);
        t.gradient_dies_between = (int)memo_test_int(0, 1);
    }
    return t;
}

typedef struct recording {
    memo_trace* trace;
    int64_t next;
    uint64_t random; /* the layers' own: each layer starts from the same seed */
} recording;

static int64_t layer_random(recording* r, int64_t n) {
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((r->random >> 33) % (uint64_t)n);
}
static int64_t take(recording* r, int64_t size_bytes) {
    int64_t id = r->next;
    r->next += 7;
    CHECK_OK(memo_trace_malloc(r->trace, id, size_bytes, MEMO_CLASS_TRANSIENT, 0, &error));
    return id;
}
static void drop(recording* r, int64_t id) { CHECK_OK(memo_trace_free(r->trace, id, &error)); }
static void mark(recording* r, int layer, const char* what) {
    char text[64];
    snprintf(text, sizeof text, "layer %d %s", layer, what);
    CHECK_OK(memo_trace_mark(r->trace, text, &error));
}
static void work(recording* r, int64_t n) { /* transient requests that overlap a little */
    int64_t held = -1;
    for (; n > 0; n--) {
        int64_t id = take(r, layer_random(r, 500));
        if (held >= 0) drop(r, held);
        held = id;
    }
    if (held >= 0) drop(r, held);
}

static memo_trace* record_trainer(const trainer* t, int n_layers) {
    int64_t chain[10][3], gradient[10][3], skeletal[9][6], weight[9][3];
    recording r;
    CHECK_OK(memo_trace_create(&r.trace, &error));
    r.next = 3;
    r.random = t->seed;
    int64_t constant = take(&r, 4096);
    CHECK_OK(memo_trace_mark(r.trace, "iteration begin", &error));
    for (int k = 0; k < t->n_chain; k++) chain[0][k] = take(&r, t->chain_bytes[k]);
    work(&r, 3);
    for (int i = 0; i < n_layers; i++) {
        r.random = t->seed + 1;
        mark(&r, i, "forward begin");
        work(&r, layer_random(&r, 4));
        for (int k = 0; k < t->n_skeletal; k++) {
            skeletal[i][k] = take(&r, layer_random(&r, 900));
            work(&r, layer_random(&r, 3));
        }
        if (t->has_streams) CHECK_OK(memo_trace_use(r.trace, constant, 1, &error));
        for (int k = 0; k < t->n_chain; k++) chain[i + 1][k] = take(&r, t->chain_bytes[k]);
        for (int k = 0; k < t->n_chain; k++) {
            if (t->has_streams) CHECK_OK(memo_trace_use(r.trace, chain[i][k], 2, &error));
            if (t->input_dies_in_forward[k]) drop(&r, chain[i][k]);
        }
        if (t->has_streams) CHECK_OK(memo_trace_record(r.trace, 5, 2, &error));
        mark(&r, i, "forward end");
    }
    r.random = t->seed + 2;
    int64_t logits = take(&r, 700);
    for (int k = 0; k < t->n_chain; k++)
        if (!t->last_output_dies_late) drop(&r, chain[n_layers][k]);
    CHECK_OK(memo_trace_mark(r.trace, "loss", &error));
    work(&r, 4);
    for (int k = 0; k < t->n_chain; k++) gradient[n_layers][k] = take(&r, t->chain_bytes[k] * 2);
    for (int i = n_layers - 1; i >= 0; i--) {
        r.random = t->seed + 3;
        if (t->recomputes == 2)
            mark(&r, i, "recompute begin");
        else
            mark(&r, i, "backward begin");
        if (t->recomputes == 1) mark(&r, i, "recompute begin");
        work(&r, t->recomputes ? 3 : 1);
        if (t->recomputes) mark(&r, i, "recompute end");
        if (t->recomputes == 2) mark(&r, i, "backward begin");
        if (t->has_streams) CHECK_OK(memo_trace_wait(r.trace, 5, 0, &error));
        for (int j = 0; j < t->n_weight_gradients; j++) weight[i][j] = take(&r, 33 + j);
        for (int k = t->n_skeletal - 1; k >= 0; k--) {
            work(&r, layer_random(&r, 3));
            drop(&r, skeletal[i][k]);
        }
        for (int k = 0; k < t->n_chain; k++) {
            gradient[i][k] = take(&r, t->chain_bytes[k] * 2);
            if (!t->input_dies_in_forward[k]) drop(&r, chain[i][k]);
            if (!t->gradient_dies_between) drop(&r, gradient[i + 1][k]);
        }
        mark(&r, i, "backward end");
        for (int k = 0; k < t->n_chain; k++)
            if (t->gradient_dies_between) drop(&r, gradient[i + 1][k]);
    }
    r.random = t->seed + 4;
    work(&r, 2);
    for (int k = 0; k < t->n_chain; k++) {
        drop(&r, gradient[0][k]);
        if (t->last_output_dies_late) drop(&r, chain[n_layers][k]);
    }
    if (t->weight_order < 2) {
        for (int i = 0; i < n_layers; i++)
            for (int j = 0; j < t->n_weight_gradients; j++)
                drop(&r, weight[t->weight_order ? n_layers - 1 - i : i][j]);
    } else {
        for (int j = 0; j < t->n_weight_gradients; j++)
            for (int i = 0; i < n_layers; i++) drop(&r, weight[i][j]);
    }
    drop(&r, logits);
    CHECK_OK(memo_trace_mark(r.trace, "iteration end", &error));
    return r.trace;
}

static void check_layers(const trainer* t, int recorded, int n) {
    own_trace* from = record_trainer(t, recorded);
    own_trace* expected = record_trainer(t, n);
    own_trace* result = NULL;
    CHECK_OK(trace_apply_layers(from, n, &result, &error));
    if (result) {
        int64_t i = first_difference(result, expected);
        CHECK_CASE(i == -1, "%d layers from %d: request %lld", n, recorded, (long long)i);
        CHECK_IS(result->n_live, ==, expected->n_live);
    }
}

TEST(one_layer_becomes_n) {
    for (int i = 0; i < 40; i++) {
        trainer t = random_trainer(0);
        for (int n = 1; n <= 8; n++) check_layers(&t, 1, n);
    }
}

TEST(three_layers_become_n) {
    for (int i = 0; i < 40; i++) {
        trainer t = random_trainer(1);
        for (int n = 2; n <= 8; n++) check_layers(&t, (int)memo_test_int(3, 6), n);
    }
}

TEST(marks_of_no_layer_are_kept) {
    own_trace* trace = trace_of_text(
        "mark layer 0 forward begin\nmark layer 9223372036854775807 recompute begin\n"
        "mark layer 0 forward end\nmark layer 0 backward begin\nmark layer 0 backward end\n");
    own_trace* result = NULL;
    CHECK_OK(trace_apply_layers(trace, 2, &result, &error));
    CHECK_IS(result->n_requests, ==, 10);
    CHECK_IS(
        strcmp(result->text + result->requests[4].id, "layer 9223372036854775807 recompute begin"),
        ==, 0);
    CHECK_IS(strcmp(result->text + result->requests[5].id, "layer 1 forward end"), ==, 0);
}

TEST(unsuitable_layers_are_refused) {
    static const char* const cases[][2] = {
        {"malloc 1 8\n", "0 forwards and 0 backwards"},
        {"mark layer 0 forward begin\nmark layer 0 forward end\n", "1 forwards and 0 backwards"},
        {"mark layer 1 forward begin\n", "out of order"},
        {"mark layer 0 forward begin\nmark layer 0 backward begin\n", "out of order"},
        {"mark layer 0 forward end\n", "out of order"},
        {"mark layer 0 forward begin\nmark layer 0 forward end\nmark layer 0 backward begin\n",
         "1 forwards and 0 backwards"},
        /* the input stays for the backward, the output has another size */
        {"malloc 1 8\nmark layer 0 forward begin\nmalloc 2 9\nmark layer 0 forward end\n"
         "mark layer 0 backward begin\nfree 1 8\nmark layer 0 backward end\nfree 2 9\n",
         "record three layers"},
        /* a gradient comes in and none goes out */
        {"mark layer 0 forward begin\nmark layer 0 forward end\nmalloc 1 8\n"
         "mark layer 0 backward begin\nfree 1 8\nmark layer 0 backward end\n",
         "record three layers"}};
    memo_trace* result = (memo_trace*)&result;
    own_trace* trace = NULL;
    trainer t = random_trainer(0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        trace = trace_of_text(cases[i][0]);
        result = (memo_trace*)&result;
        CHECK_IS(trace_apply_layers(trace, 4, &result, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
        CHECK_CASE(strstr(error.message, cases[i][1]) && !result, "%s", error.message);
        memo_trace_destroy(trace);
    }
    trace = record_trainer(&t, 2);
    CHECK_IS(trace_apply_layers(trace, 4, &result, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    memo_trace_destroy(trace);
    trace = record_trainer(&t, 3);
    CHECK_IS(trace_apply_layers(trace, 1, &result, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(trace_apply_layers(trace, 0, &result, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_FAILS(trace_apply_layers(trace, INT64_MAX, &result, &error), INVALID_ARGUMENT);
    memo_trace_destroy(trace);
    /* An inner layer that differs in one size. */
    t.n_skeletal = 2;
    trace = record_trainer(&t, 5);
    {
        int64_t k, n_begun = 0;
        for (k = 0; k < trace->n_requests; k++) {
            memo_mark m = memob_request_mark(trace, k);
            n_begun += m.phase == MEMO_PHASE_FORWARD && !m.is_end;
            if (n_begun == 3 && trace->requests[k].kind == MEMO_REQUEST_MALLOC) break;
        }
        trace->requests[k].size_bytes++;
    }
    CHECK_ERROR(trace_apply_layers(trace, 5, &result, &error), INVALID_ARGUMENT,
                "the middle layers differ");
}

/* --- recorded traces of real trainers: their inner layers repeat exactly --- */

TEST(shared_traces_are_their_three_layers) {
    for (int i = 0; i < N_SHARED; i++) {
        own_trace* trace = trace_of_file(shared_traces[i]);
        own_trace* three = NULL;
        own_trace* again = NULL;
        CHECK(trace->n_buffers == shared_buffers[i] && trace->n_live == 0);
        CHECK_OK(trace_apply_layers(trace, 3, &three, &error));
        CHECK_OK(trace_apply_layers(three, shared_layers[i], &again, &error));
        if (again) CHECK_CASE(first_difference(trace, again) == -1, "%s", shared_traces[i]);
    }
}

/* --- no memory: every allocation fails once, nothing is lost (run under a leak checker) --- */

TEST(running_out_of_memory_is_reported) {
    trainer t = random_trainer(1);
    own_trace* source = record_trainer(&t, 3);
    memo_status status = MEMO_STATUS_OK;
    refusal r = {0};
    CHECK_OK(memo_trace_write(source, temporary_path(), &error));
    own_memory char* text = memo_test_file(temporary_path(), NULL);
    while (next_refusal(&r, status)) {
        own_trace* trace = NULL;
        own_trace* result = NULL;
        status = memo_trace_parse(text, (int64_t)strlen(text), "t", &trace, &error);
        if (!status) status = trace_apply_layers(trace, 5, &result, &error);
        if (!status) status = memo_trace_write(result, temporary_path(), &error);
    }
    CHECK_IS(r.n_failed, >=, 20);
    unlink(temporary_path());
}
