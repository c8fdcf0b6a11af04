/* test_null.c - NULL as an argument is a status that names the argument, never a signal.
 *
 * A row calls a function with one pointer NULL, and valid values for the others.  The headers of
 * memo are read: every pointer that a public function takes has a row. */
#include "memo_plan.h"
#include "extras/memo_check.h"
#include "owned.h"
#include <ctype.h>

/* --- what the headers declare, and what the rows call --- */

enum { PAIRS_MAX = 400 };
typedef struct pair {
    char function[64], argument[32];
} pair;
typedef struct pairs {
    pair list[PAIRS_MAX];
    int n;
} pairs;

static pairs called;

static int has_pair(const pairs* of, const pair* p) {
    int k = 0;
    while (k < of->n &&
           (strcmp(of->list[k].function, p->function) || strcmp(of->list[k].argument, p->argument)))
        k++;
    return k < of->n;
}

static void add_pair(pairs* to, const char* function, const char* argument) {
    pair p;
    snprintf(p.function, sizeof p.function, "%s", function);
    snprintf(p.argument, sizeof p.argument, "%s", argument);
    if (has_pair(to, &p)) return;
    CHECK(to->n < PAIRS_MAX);
    if (to->n < PAIRS_MAX) to->list[to->n++] = p;
}

/* A parameter that is a pointer. */
static void add_parameter(pairs* to, const char* function, const char* begin, const char* end) {
    static const char* const handles[] = {"memo_stream ", "memo_event ", "memo_host_function "};
    char text[200], *name;
    int is_pointer;
    while (begin < end && isspace((unsigned char)*begin)) begin++;
    snprintf(text, sizeof text, "%.*s", (int)(end - begin), begin);
    is_pointer = strchr(text, '*') != NULL;
    for (int k = 0; k < 3; k++) is_pointer |= !strncmp(text, handles[k], strlen(handles[k]));
    name = strstr(text, "(*"); /* a function */
    if (name) {
        name += 2;
        *strchr(name, ')') = 0;
    } else {
        name = text + strlen(text);
        while (name > text && (isalnum((unsigned char)name[-1]) || name[-1] == '_')) name--;
    }
    if (is_pointer && strcmp(name, "error")) add_pair(to, function, name);
}

/* list: behind the parenthesis that begins it. */
static void add_parameters(pairs* to, const char* function, const char* list) {
    const char* begin = list;
    for (int depth = 1; depth; list++) {
        depth += (*list == '(') - (*list == ')');
        if (!depth || (depth == 1 && *list == ',')) {
            add_parameter(to, function, begin, list);
            begin = list + 1;
        }
    }
}

/* The public part of a header.  A declaration begins in the first column. */
static void add_header(pairs* to, const char* path) {
    own_memory char* header = memo_test_file(path, NULL);
    char* end = header ? strstr(header, "/* ==== implementation") : NULL;
    CHECK_CASE(end, "%s", path);
    if (!end) return;
    *end = 0;
    for (char* line = header; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        const int is_table = !strncmp(line, "MEMO_DEVICE_", 12); /* a function of the device */
        const char *name = line, *list;
        char function[64];
        int n = 0;
        if (!isalpha((unsigned char)*line)) continue;
        if (is_table) {
            list = strchr(strchr(line, '(') + 1, '('); /* (..., NAME, (PARAMETERS), ... */
            name = list - 1;
            while (*name == ',' || isspace((unsigned char)*name)) name--;
            for (name++; isalnum((unsigned char)name[-1]) || name[-1] == '_'; n++) name--;
        } else {
            do {
                name = strstr(name + n, "memo_");
                n = name ? (int)strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") : 0;
            } while (name && name < line + strcspn(line, "\n") && name[n] != '(');
            if (!name || name >= line + strcspn(line, "\n")) continue;
            list = name + n;
        }
        snprintf(function, sizeof function, "%s%.*s", is_table ? "memo_" : "", n, name);
        if (is_table) add_pair(to, function, "device");
        add_parameters(to, function, list + 1);
    }
}

/* --- rows: FUNCTION, the ARGUMENT that is NULL, and what is called --- */

static void begin_row(const char* function, const char* argument) {
    IN_CASE("%s: %s", function, argument);
    add_pair(&called, function, argument);
    error.message[0] = 0;
}
#define ROW(function, argument, check)                                                             \
    do {                                                                                           \
        begin_row(#function, #argument);                                                           \
        check;                                                                                     \
    } while (0)

#define REFUSED_WITH(words, function, argument, ...)                                               \
    ROW(function, argument, CHECK_ERROR(function(__VA_ARGS__), INVALID_ARGUMENT, words))
#define REFUSED(function, argument, ...)                                                           \
    REFUSED_WITH(#function ": " #argument ": NULL; pass one", function, argument, __VA_ARGS__)
/* The call sets the result to NULL. */
#define CREATES_NONE(result, function, argument, ...)                                              \
    do {                                                                                           \
        *(void**)&result = &error;                                                                 \
        REFUSED(function, argument, __VA_ARGS__);                                                  \
        CHECK(!result);                                                                            \
    } while (0)
#define VALID(function, argument, ...)   ROW(function, argument, CHECK_OK(function(__VA_ARGS__)))
#define NOTHING(function, argument, ...) ROW(function, argument, function(__VA_ARGS__))
#define ZERO(function, argument, ...)    ROW(function, argument, CHECK(!function(__VA_ARGS__)))

static const char* volatile no_text = NULL; /* that no compiler knows */
static const char* const no_file = "build/none/none";

static void texts(void) {
    memo_text text = {0};
    ROW(memo_error_set, format,
        CHECK_ERROR(memo_error_set(&error, MEMO_STATUS_IO, no_text, 0), IO, "input/output error"));
    NOTHING(memo_text_put, text, NULL, "a");
    NOTHING(memo_text_put, format, &text, no_text, 0);
    NOTHING(memo_text_put_xml, text, NULL, "a");
    NOTHING(memo_text_put_xml, string, &text, NULL);
    NOTHING(memo_text_put_json, text, NULL, "a");
    NOTHING(memo_text_put_json, string, &text, NULL);
    CHECK(text.n_bytes == 0 && !text.failed);
    REFUSED(memo_text_write, text, NULL, no_file, &error);
    memo_text_put(&text, "a");
    REFUSED(memo_text_write, path, &text, NULL, &error);
    CHECK(!text.data && text.n_bytes == 0);
    NOTHING(memo_text_free, text, NULL);
}

static void traces(void) {
    own_trace *trace = NULL, *read = NULL;
    REFUSED(memo_trace_create, trace, NULL, &error);
    CHECK_OK(memo_trace_create(&trace, &error));
    NOTHING(memo_trace_destroy, trace, NULL);
    REFUSED(memo_trace_malloc, trace, NULL, 1, 8, MEMO_CLASS_TRANSIENT, 0, &error);
    REFUSED(memo_trace_free, trace, NULL, 1, &error);
    REFUSED(memo_trace_use, trace, NULL, 1, 0, &error);
    REFUSED(memo_trace_record, trace, NULL, 1, 0, &error);
    REFUSED(memo_trace_wait, trace, NULL, 1, 0, &error);
    REFUSED(memo_trace_mark, trace, NULL, "a", &error);
    REFUSED_WITH("the text is empty", memo_trace_mark, text, trace, NULL, &error);
    ROW(memo_mark_parse, text, CHECK(memo_mark_parse(NULL).phase == MEMO_PHASE_NONE));
    CREATES_NONE(read, memo_trace_read, path, NULL, &read, &error);
    REFUSED(memo_trace_read, trace, no_file, NULL, &error);
    REFUSED(memo_trace_write, trace, NULL, no_file, &error);
    REFUSED(memo_trace_write, path, trace, NULL, &error);
    REFUSED_WITH("text: NULL", memo_trace_parse, text, NULL, 0, "a", &read, &error);
    REFUSED(memo_trace_parse, trace, "", 0, "a", NULL, &error);
    ROW(memo_trace_parse, name,
        CHECK_ERROR(memo_trace_parse("", 0, NULL, &read, &error), FORMAT, "text: the file is"));
}

static void plans(void) {
    own_trace* trace = NULL;
    own_plan *plan = NULL, *none = NULL;
    CHECK_OK(memo_trace_create(&trace, &error));
    REFUSED(memo_plan_create, plan, 0, 0, 0, NULL, &error);
    CHECK_OK(memo_plan_create(0, 0, 0, &plan, &error));
    NOTHING(memo_plan_destroy, plan, NULL);
    CREATES_NONE(none, memo_plan_from_trace, trace, NULL, 0, &none, &error);
    REFUSED(memo_plan_from_trace, plan, trace, 0, NULL, &error);
    REFUSED(memo_plan_prepare, plan, NULL, &error);
    REFUSED(memo_plan_validate, plan, NULL, &error);
    CREATES_NONE(none, memo_plan_read, path, NULL, &none, &error);
    REFUSED(memo_plan_read, plan, no_file, NULL, &error);
    REFUSED(memo_plan_write, plan, NULL, no_file, &error);
    REFUSED(memo_plan_write, path, plan, NULL, &error);
    REFUSED(memo_plan_solve, plan, NULL, NULL, &error);
    VALID(memo_plan_solve, desc, plan, NULL, &error);
}

static memo_status no_work(void* args, memo_error* e) {
    (void)args, (void)e;
    return MEMO_STATUS_OK;
}

static void devices(void) {
    memo_host_device_desc desc = {0};
    memo_device *d = NULL, *none = NULL;
    memo_stream s = NULL;
    memo_event event = NULL, other;
    memo_host_call call = {no_work, NULL, NULL};
    memo_op_desc op = {0};
    int64_t free_bytes, total_bytes;
    void* address;
    char bytes[2] = {0};
    int32_t is_done;
    double elapsed_s;
    CREATES_NONE(none, memo_host_device_create, desc, NULL, &none, &error);
    REFUSED(memo_host_device_create, device, &desc, NULL, &error);
    CHECK_OK(memo_host_device_create(&desc, &d, &error));
    NOTHING(memo_host_device_destroy, device, NULL);
    ROW(memo_host_device_get_stats, device,
        CHECK_IS(memo_host_device_get_stats(NULL).device_bytes, ==, 0));
    CHECK_OK(memo_stream_create(d, "s", 0, &s, &error));
    CHECK_OK(memo_event_create(d, &event, &error));
    REFUSED(memo_host_device_launch, device, NULL, s, no_work, NULL, 0, &error);
    REFUSED_WITH("stream: NULL", memo_host_device_launch, stream, d, NULL, no_work, NULL, 0,
                 &error);
    REFUSED(memo_host_device_launch, function, d, s, NULL, NULL, 0, &error);
    VALID(memo_host_device_launch, args, d, s, no_work, NULL, 0, &error);
    REFUSED(memo_host_device_sleep, device, NULL, s, 0, &error);
    REFUSED_WITH("stream: NULL", memo_host_device_sleep, stream, d, NULL, 0, &error);

    /* Memory. */
    REFUSED(memo_device_alloc, device, NULL, 8, &address, &error);
    REFUSED(memo_device_alloc, address, d, 8, NULL, &error);
    REFUSED(memo_device_free, device, NULL, NULL, &error);
    VALID(memo_device_free, address, d, NULL, &error);
    REFUSED(memo_host_alloc, device, NULL, 8, &address, &error);
    REFUSED(memo_host_alloc, address, d, 8, NULL, &error);
    REFUSED(memo_host_free, device, NULL, NULL, &error);
    VALID(memo_host_free, address, d, NULL, &error);
    REFUSED(memo_memory_info, device, NULL, &free_bytes, &total_bytes, &error);
    REFUSED(memo_memory_info, free_bytes, d, NULL, &total_bytes, &error);
    REFUSED(memo_memory_info, total_bytes, d, &free_bytes, NULL, &error);

    /* Streams and events. */
    REFUSED(memo_stream_create, device, NULL, "s", 0, &s, &error);
    REFUSED(memo_stream_create, stream, d, "s", 0, NULL, &error);
    REFUSED(memo_stream_destroy, device, NULL, s, &error);
    VALID(memo_stream_destroy, stream, d, NULL, &error);
    REFUSED(memo_stream_synchronize, device, NULL, s, &error);
    REFUSED_WITH("stream: NULL", memo_stream_synchronize, stream, d, NULL, &error);
    REFUSED(memo_event_create, device, NULL, &other, &error);
    REFUSED(memo_event_create, event, d, NULL, &error);
    REFUSED(memo_event_create_untimed, device, NULL, &other, &error);
    REFUSED(memo_event_create_untimed, event, d, NULL, &error);
    REFUSED(memo_event_destroy, device, NULL, event, &error);
    VALID(memo_event_destroy, event, d, NULL, &error);
    REFUSED(memo_event_record, device, NULL, event, s, &error);
    REFUSED_WITH("event: NULL", memo_event_record, event, d, NULL, s, &error);
    REFUSED_WITH("stream: NULL", memo_event_record, stream, d, event, NULL, &error);
    REFUSED(memo_event_wait, device, NULL, event, s, &error);
    REFUSED_WITH("event: NULL", memo_event_wait, event, d, NULL, s, &error);
    REFUSED_WITH("stream: NULL", memo_event_wait, stream, d, event, NULL, &error);
    REFUSED(memo_event_query, device, NULL, event, &is_done, &error);
    REFUSED_WITH("event: NULL", memo_event_query, event, d, NULL, &is_done, &error);
    REFUSED(memo_event_query, is_done, d, event, NULL, &error);
    REFUSED(memo_event_synchronize, device, NULL, event, &error);
    REFUSED_WITH("event: NULL", memo_event_synchronize, event, d, NULL, &error);
    REFUSED(memo_event_elapsed, device, NULL, event, event, &elapsed_s, &error);
    REFUSED_WITH("event: NULL", memo_event_elapsed, begin, d, NULL, event, &elapsed_s, &error);
    REFUSED_WITH("event: NULL", memo_event_elapsed, end, d, event, NULL, &elapsed_s, &error);
    REFUSED(memo_event_elapsed, elapsed_s, d, event, event, NULL, &error);

    /* Copies and functions. */
    REFUSED(memo_copy, device, NULL, s, MEMO_COPY_TO_HOST, bytes, bytes + 1, 1, &error);
    REFUSED_WITH("stream: NULL", memo_copy, stream, d, NULL, MEMO_COPY_TO_HOST, bytes, bytes + 1, 1,
                 &error);
    REFUSED_WITH("copy.to: NULL", memo_copy, to, d, s, MEMO_COPY_TO_HOST, NULL, bytes, 1, &error);
    REFUSED_WITH("copy.from: NULL", memo_copy, from, d, s, MEMO_COPY_TO_HOST, bytes, NULL, 1,
                 &error);
    REFUSED(memo_copy_rows, device, NULL, s, MEMO_COPY_TO_HOST, bytes, 1, bytes + 1, 1, 1, 1,
            &error);
    REFUSED_WITH("stream: NULL", memo_copy_rows, stream, d, NULL, MEMO_COPY_TO_HOST, bytes, 1,
                 bytes + 1, 1, 1, 1, &error);
    REFUSED_WITH("copy.to: NULL", memo_copy_rows, to, d, s, MEMO_COPY_TO_HOST, NULL, 1, bytes, 1, 1,
                 1, &error);
    REFUSED_WITH("copy.from: NULL", memo_copy_rows, from, d, s, MEMO_COPY_TO_HOST, bytes, 1, NULL,
                 1, 1, 1, &error);
    REFUSED(memo_fill, device, NULL, s, bytes, 0, 1, &error);
    REFUSED_WITH("stream: NULL", memo_fill, stream, d, NULL, bytes, 0, 1, &error);
    REFUSED_WITH("fill: invalid range", memo_fill, address, d, s, NULL, 0, 1, &error);
    REFUSED(memo_launch_host, device, NULL, s, &call, &error);
    REFUSED_WITH("stream: NULL", memo_launch_host, stream, d, NULL, &call, &error);
    REFUSED(memo_launch_host, call, d, s, NULL, &error);
    REFUSED(memo_device_status, device, NULL, &error);
    REFUSED(memo_annotate, device, NULL, s, &op, &error);
    VALID(memo_annotate, stream, d, NULL, &op, &error); /* no recorder listens */
    REFUSED(memo_annotate, op, d, s, NULL, &error);

    CHECK_OK(memo_event_destroy(d, event, &error));
    CHECK_OK(memo_stream_destroy(d, s, &error));
    VALID(memo_stream_create, name, d, NULL, 0, &s, &error);
    CHECK_OK(memo_stream_destroy(d, s, &error));
    memo_host_device_destroy(d);
}

static void arenas(void) {
    memo_arena_desc desc = {0};
    own_trace* trace = NULL;
    own_arena *arena = NULL, *none = NULL;
    void* address;
    CHECK_OK(memo_trace_create(&trace, &error));
    desc.trace = trace;
    CREATES_NONE(none, memo_arena_create, desc, NULL, &none, &error);
    REFUSED(memo_arena_create, arena, &desc, NULL, &error);
    CHECK_OK(memo_arena_create(&desc, &arena, &error));
    NOTHING(memo_arena_destroy, arena, NULL);
    CHECK_OK(memo_arena_begin(arena, &error));
    REFUSED(memo_arena_begin, arena, NULL, &error);
    REFUSED(memo_arena_end, arena, NULL, &error);
    REFUSED(memo_arena_alloc, arena, NULL, 8, 0, &address, &error);
    REFUSED(memo_arena_alloc, address, arena, 8, 0, NULL, &error);
    REFUSED(memo_arena_free, arena, NULL, &address, &error);
    REFUSED_WITH("not a live buffer", memo_arena_free, address, arena, NULL, &error);
    REFUSED(memo_arena_use, arena, NULL, &address, 0, &error);
    REFUSED_WITH("not a live buffer", memo_arena_use, address, arena, NULL, 0, &error);
    REFUSED(memo_arena_record, arena, NULL, 1, 0, &error);
    REFUSED(memo_arena_wait, arena, NULL, 1, 0, &error);
    REFUSED(memo_arena_mark, arena, NULL, "a", &error);
    REFUSED_WITH("the text is empty", memo_arena_mark, text, arena, NULL, &error);
    ROW(memo_arena_get_stats, arena, CHECK_IS(memo_arena_get_stats(NULL).n_requests, ==, 0));
}

static const memo_item item = MEMO_ITEM("a", 8, MEMO_MOVE);

static void swaps(void) {
    own_device* device = new_device((memo_host_device_desc){0});
    memo_swap_desc desc = {.device = device,
                           .computes_on_host = 1,
                           .tensors = &item,
                           .n_tensors = 1,
                           .n_layers = 4,
                           .n_rows = 4};
    memo_profile profile = {.n_rows = 4, .n_kinds = 1, .n_tensors = 1};
    memo_swap_plan_desc plan_desc = {.swap = &desc, .profile = &profile};
    memo_swap *swap = NULL, *none = NULL;
    memo_swap_plan *plan = NULL, *no_plan = NULL;
    memo_swap_sizes sizes;
    memo_swap_stats stats;
    int64_t row = 7;
    REFUSED(memo_swap_desc_get_sizes, desc, NULL, &sizes, &error);
    REFUSED(memo_swap_desc_get_sizes, sizes, &desc, NULL, &error);
    CREATES_NONE(none, memo_swap_create, desc, NULL, &none, &error);
    REFUSED(memo_swap_create, swap, &desc, NULL, &error);
    CHECK_OK(memo_swap_create(&desc, &swap, &error));
    NOTHING(memo_swap_destroy, swap, NULL);
    REFUSED(memo_swap_set_rows, swap, NULL, 1, 0, &error);
    REFUSED(memo_swap_forward_begin, swap, NULL, 0, &error);
    REFUSED(memo_swap_forward_end, swap, NULL, 0, &error);
    REFUSED(memo_swap_backward_begin, swap, NULL, 0, &error);
    REFUSED(memo_swap_backward_end, swap, NULL, 0, &error);
    REFUSED(memo_swap_abandon, swap, NULL, &error);
    ZERO(memo_swap_get_address, swap, NULL, 0, 0);
    NOTHING(memo_swap_get_recompute_rows, swap, NULL, 0, 0, &row, &row);
    NOTHING(memo_swap_get_recompute_rows, begin, swap, 0, 0, NULL, &row);
    NOTHING(memo_swap_get_recompute_rows, end, swap, 0, 0, &row, NULL);
    CHECK_IS(row, ==, 7);
    REFUSED(memo_swap_get_stats, swap, NULL, &stats, &error);
    REFUSED(memo_swap_get_stats, stats, swap, NULL, &error);
    memo_swap_destroy(swap);

    /* Its profile and its plan. */
    CREATES_NONE(no_plan, memo_plan_swap, desc, NULL, &no_plan, &error);
    REFUSED(memo_plan_swap, plan, &plan_desc, NULL, &error);
    NOTHING(memo_swap_plan_destroy, plan, NULL);
    snprintf(profile.tensors[0].name, sizeof profile.tensors[0].name, "a");
    CHECK_OK(memo_plan_swap(&plan_desc, &plan, &error));
    memo_swap_plan_destroy(plan);
    REFUSED(memo_profile_read, path, NULL, &profile, &error);
    CHECK_IS(profile.n_rows, ==, 0);
    REFUSED(memo_profile_read, profile, no_file, NULL, &error);
    REFUSED(memo_profile_write, profile, NULL, no_file, &error);
    REFUSED(memo_profile_write, path, &profile, NULL, &error);
}

static memo_status write_nowhere(void* user, int32_t layer, int32_t state, int64_t at,
                                 const void* bytes, int64_t n_bytes, memo_error* e) {
    (void)user, (void)layer, (void)state, (void)at, (void)bytes, (void)n_bytes, (void)e;
    return MEMO_STATUS_OK;
}
static const memo_snapshot_desc nowhere = {write_nowhere, NULL};
static void no_layer(void* user, memo_session* s, int32_t layer) {
    (void)user, (void)s, (void)layer;
}

static void sessions(void) {
    static const memo_state state = {"b", 8, MEMO_STATE_WEIGHTS, 0};
    const memo_session_desc desc = {.tensors = &item,
                                    .n_tensors = 1,
                                    .n_layers = 2,
                                    .n_rows = 4,
                                    .policy = MEMO_POLICY_KEEP,
                                    .states = &state,
                                    .n_states = 1,
                                    .forward = no_layer,
                                    .backward = no_layer,
                                    .update = no_layer};
    const memo_verify_desc check = {0};
    own_step_plan *plan = NULL, *no_plan = NULL;
    own_session *s = NULL, *none = NULL;
    memo_profile profile;
    memo_text text = {0};
    void* first[1] = {&error};
    int64_t device_bytes = 7;
    char bytes[8];

    /* Plans. */
    CREATES_NONE(no_plan, memo_session_plan, desc, NULL, NULL, &no_plan, &error);
    REFUSED(memo_session_plan, plan, &desc, NULL, NULL, &error);
    VALID(memo_session_plan, profile, &desc, NULL, &plan, &error);
    REFUSED(memo_session_get_least, desc, NULL, &device_bytes, &error);
    CHECK_IS(device_bytes, ==, 0);
    REFUSED(memo_session_get_least, device_bytes, &desc, NULL, &error);
    NOTHING(memo_step_plan_destroy, plan, NULL);
    NOTHING(memo_step_plan_put, plan, NULL, &text);
    NOTHING(memo_step_plan_put, text, plan, NULL);
    CHECK(!text.data);

    /* A session begins and ends. */
    CREATES_NONE(none, memo_session_open, desc, NULL, plan, &none, &error);
    CREATES_NONE(none, memo_session_open, plan, &desc, NULL, &none, &error);
    REFUSED(memo_session_open, session, &desc, plan, NULL, &error);
    CREATES_NONE(none, memo_session_create, desc, NULL, &none, &error);
    REFUSED(memo_session_create, session, &desc, NULL, &error);
    REFUSED(memo_session_verify, desc, NULL, NULL, &error);
    ROW(memo_session_verify, check,
        CHECK_ERROR(memo_session_verify(&desc, NULL, &error), INVALID_ARGUMENT, "to compare"));
    REFUSED(memo_session_describe, desc, NULL, NULL, &text, &error);
    REFUSED(memo_session_describe, text, &desc, NULL, NULL, &error);
    ROW(memo_session_describe, check,
        CHECK_ERROR(memo_session_describe(&desc, NULL, &text, &error), INVALID_ARGUMENT,
                    "to compare"));
    NOTHING(memo_session_destroy, session, NULL);
    CHECK_OK(memo_session_open(&desc, plan, &s, &error));

    /* Between micro-batches. */
    REFUSED(memo_session_watch, session, NULL, &check, &error);
    REFUSED(memo_session_watch, check, s, NULL, &error);
    REFUSED(memo_session_run, session, NULL, NULL, &error);
    VALID(memo_session_run, batch, s, NULL, &error);
    CHECK_IS(memo_session_run(NULL, NULL, NULL), ==, MEMO_STATUS_INVALID_ARGUMENT);
    REFUSED(memo_session_update, session, NULL, &error);
    REFUSED(memo_session_flush, session, NULL, &error);
    REFUSED(memo_session_skip_update, session, NULL, &error);
    REFUSED(memo_session_set_update_values, session, NULL, bytes, 1, &error);
    REFUSED(memo_session_set_update_values, values, s, NULL, 1, &error);
    CHECK_OK(memo_session_skip_update(s, &error));
    REFUSED(memo_session_fill_states, session, NULL, no_layer, &error);
    REFUSED(memo_session_fill_states, fill, s, NULL, &error);
    REFUSED(memo_session_read_state, session, NULL, 0, 0, 0, bytes, 8, &error);
    REFUSED(memo_session_read_state, bytes, s, 0, 0, 0, NULL, 8, &error);
    CHECK_OK(memo_session_read_state(s, 0, 0, 0, NULL, 0, &error));
    REFUSED(memo_session_write_state, session, NULL, 0, 0, 0, bytes, 8, &error);
    VALID(memo_session_write_state, bytes, s, 0, 0, 0, NULL, 8, &error);
    REFUSED(memo_session_sleep, session, NULL, &error);
    REFUSED(memo_session_wake, session, NULL, &error);
    REFUSED(memo_session_snapshot, session, NULL, &nowhere, &error);
    REFUSED(memo_session_snapshot, desc, s, NULL, &error);
    CHECK_ERROR(memo_session_snapshot(s, &(memo_snapshot_desc){NULL, NULL}, &error),
                INVALID_ARGUMENT, "desc->write");
    REFUSED(memo_session_finish_snapshot, session, NULL, &error);
    REFUSED(memo_session_get_profile, session, NULL, 0, &profile, &error);
    REFUSED(memo_session_get_profile, profile, s, 0, NULL, &error);
    ROW(memo_session_get_info, session, CHECK(!memo_session_get_info(NULL).plan));

    /* In a micro-batch. */
    ZERO(memo_session_begin, session, NULL, NULL);
    ROW(memo_session_begin, batch, CHECK(memo_session_begin(s, NULL)));
    REFUSED(memo_session_end, session, NULL, &error);
    ZERO(memo_session_forward_begin, session, NULL, 0);
    NOTHING(memo_session_forward_end, session, NULL, 0);
    ZERO(memo_session_backward_begin, session, NULL, 0);
    NOTHING(memo_session_backward_end, session, NULL, 0);
    ROW(memo_session_get_batch, session, CHECK(!memo_session_get_batch(NULL).values));
    ROW(memo_session_get_slice, session, CHECK_IS(memo_session_get_slice(NULL).n_slices, ==, 0));
    NOTHING(memo_session_set_routed, session, NULL, 0, 1);
    NOTHING(memo_session_skip_layer, session, NULL, 0);
    ZERO(memo_session_get_address, session, NULL, 0, 0);
    NOTHING(memo_session_get_addresses, session, NULL, 0, 0, first);
    CHECK(first[0] == &error);
    NOTHING(memo_session_get_addresses, first, s, 0, 0, NULL);
    ZERO(memo_session_get_buffer, session, NULL, 0);
    ZERO(memo_session_get_state, session, NULL, 0, 0);
    NOTHING(memo_session_fail, session, NULL, MEMO_STATUS_IO, "a");
    NOTHING(memo_session_fail, message, s, MEMO_STATUS_IO, NULL);
    CHECK_ERROR(memo_session_end(s, &error), IO, "input/output error");
}

TEST(null_is_refused_by_name) {
    texts();
    traces();
    plans();
    devices();
    arenas();
    swaps();
    sessions();
}

TEST(every_pointer_of_the_headers_has_a_row) {
    static pairs declared;
    declared.n = called.n = 0;
    add_header(&declared, "memo.h");
    add_header(&declared, "memo_plan.h");
    add_header(&declared, "extras/memo_check.h");
    null_is_refused_by_name();
    IN_CASE("%s", "rows");
    for (int k = 0; k < declared.n; k++)
        CHECK_CASE(has_pair(&called, &declared.list[k]), "%s: `%s` is NULL in no row",
                   declared.list[k].function, declared.list[k].argument);
    for (int k = 0; k < called.n; k++)
        CHECK_CASE(has_pair(&declared, &called.list[k]), "%s: no header has a pointer `%s`",
                   called.list[k].function, called.list[k].argument);
}
