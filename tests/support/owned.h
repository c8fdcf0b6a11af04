/* owned.h - own_plan, own_trace and so on: a pointer whose object is destroyed when the variable
 * goes out of scope.  Several are destroyed in the opposite order of their declarations.
 *
 *   own_trace* trace = random_trace(40, 2, 0, 0, 1);
 *   own_memory char* text = memo_test_file(path, NULL);     as free
 *
 * new_trace, check_of and so on make them; a failure is a failed CHECK, and so are bytes that are
 * left in the memory of an own_device.  It defines `error`.
 *
 * Include after the headers of memo, instead of memo_test.h. */
#ifndef OWNED_H
#define OWNED_H

#include "memo_test.h"
#include <stdlib.h>

static MEMO_UNUSED __thread memo_error error; /* of the latest call that failed */

#define OWNED(drop) __attribute__((cleanup(drop), unused))
#define OWNED_TYPE(type, name, destroy)                                                            \
    static MEMO_UNUSED void drop_##name(type** object) { destroy(*object); }

OWNED_TYPE(memo_trace, trace, memo_trace_destroy)
OWNED_TYPE(memo_plan, plan, memo_plan_destroy)
OWNED_TYPE(memo_arena, arena, memo_arena_destroy)
#ifndef MEMO_NO_HOST_DEVICE
/* Nothing may be left in its memory. */
static MEMO_UNUSED void drop_device(memo_device** device) {
    memo_host_device_stats left = {0};
    if (*device) left = memo_host_device_get_stats(*device);
    CHECK_CASE(left.device_bytes == 0 && left.host_bytes == 0, "%lld and %lld bytes are left",
               (long long)left.device_bytes, (long long)left.host_bytes);
    memo_host_device_destroy(*device);
    *device = NULL;
}
#endif
#ifdef MEMO_PLAN_H
OWNED_TYPE(memo_swap_plan, swap_plan, memo_swap_plan_destroy)
OWNED_TYPE(memo_step_plan, step_plan, memo_step_plan_destroy)
OWNED_TYPE(memo_session, session, memo_session_destroy)
#endif
#ifdef MEMO_LOOK_H
OWNED_TYPE(memo_schedule, schedule, memo_schedule_destroy)
OWNED_TYPE(memo_check, check, memo_check_destroy)
OWNED_TYPE(memo_simulation, simulation, memo_simulation_destroy)
OWNED_TYPE(memo_recorder, recorder, memo_recorder_destroy)
#endif
#ifdef MEMO_LAYOUT_H
OWNED_TYPE(memo_parallel_list, list, memo_parallel_list_destroy)
#endif
#ifdef MEMO_SP_H
OWNED_TYPE(memo_blocks, blocks, memo_blocks_destroy)
OWNED_TYPE(memo_sp_attention, attention, memo_sp_attention_destroy)
OWNED_TYPE(memo_exchange, exchange, memo_exchange_destroy)
OWNED_TYPE(memo_loss, loss, memo_loss_destroy)
OWNED_TYPE(memo_comm, comm, memo_comm_destroy)
#endif
#ifdef SCARCE_H
/* Repeats a statement: with its first request for host memory refused, then its second, until no
 * request is.  The statement sets `status` and frees all that it takes.
 *
 *   refusal r = {0};
 *   while (next_refusal(&r, status)) status = memo_plan_solve(plan, &desc, &error); */
typedef struct refusal {
    int64_t request, n_live;
    int64_t n_failed;       /* statements that lacked memory */
    int32_t can_do_without; /* some requests are not necessary */
    int32_t is_begun;
} refusal;

static MEMO_UNUSED int next_refusal(refusal* r, memo_status status) {
    const int is_met = mallocs_left >= 0; /* every request */
    mallocs_left = -1;
    if (r->is_begun++) {
        const int fails = status == MEMO_STATUS_OUT_OF_HOST_MEMORY;
        CHECK_CASE(fails ? !is_met : !status && (is_met || r->can_do_without), "request %lld: %s",
                   (long long)r->request, memo_status_name(status));
        CHECK_CASE(mallocs_live == r->n_live, "request %lld: %lld blocks leak",
                   (long long)r->request, mallocs_live - r->n_live);
        r->n_failed += fails;
        if (is_met) return 0;
        r->request++;
    }
    r->n_live = mallocs_live;
    mallocs_left = r->request;
    return 1;
}
#endif
/* Every beginning of a sealed text is refused, and the text with any bit changed. */
static MEMO_UNUSED void check_damage(char* text, int (*accepts)(const char* text, int64_t n)) {
    const int64_t n = (int64_t)strlen(text) - 1; /* whole without the last newline */
    for (int64_t i = 0; i < n; i++) CHECK_CASE(!accepts(text, i), "%d bytes", (int)i);
    for (int64_t i = 0; i < n * 8; i++) {
        char* at = &text[i / 8];
        const int upper = *at >= 'a' && *at <= 'f' && i % 8 == 5; /* as good in a checksum */
        *at = (char)(*at ^ (1 << i % 8));
        CHECK_CASE(upper || !accepts(text, n + 1), "bit %d", (int)i);
        *at = (char)(*at ^ (1 << i % 8));
    }
}

static MEMO_UNUSED void drop_memory(void* memory) { free(*(void**)memory); }

#define MADE(type, name, parameters, call)                                                         \
    static MEMO_UNUSED type* name parameters {                                                     \
        type* made = NULL;                                                                         \
        CHECK_OK(call);                                                                            \
        return made;                                                                               \
    }
#define VALUE(type, name, parameters, call)                                                        \
    static MEMO_UNUSED type name parameters {                                                      \
        type value = {0};                                                                          \
        CHECK_OK(call);                                                                            \
        return value;                                                                              \
    }
VALUE(memo_stream, new_stream, (const memo_device* device, const char* name),
      memo_stream_create(device, name, 0, &value, &error))
VALUE(memo_event, new_event, (const memo_device* device), memo_event_create(device, &value, &error))
VALUE(memo_swap_sizes, sizes_of_desc, (const memo_swap_desc* desc),
      memo_swap_desc_get_sizes(desc, &value, &error))
VALUE(memo_swap_stats, stats_of_swap, (memo_swap * swap), memo_swap_get_stats(swap, &value, &error))
MADE(memo_trace, new_trace, (void), memo_trace_create(&made, &error))
MADE(memo_plan, new_plan, (int64_t n_buffers, int64_t n_gaps, int64_t alignment),
     memo_plan_create(n_buffers, n_gaps, alignment, &made, &error))
MADE(memo_plan, plan_of_trace, (const memo_trace* trace, int64_t alignment),
     memo_plan_from_trace(trace, alignment, &made, &error))
MADE(memo_trace, trace_of_text, (const char* text),
     memo_trace_parse(text, (int64_t)strlen(text), "t", &made, &error))
MADE(memo_trace, trace_of_file, (const char* path), memo_trace_read(path, &made, &error))
#ifndef MEMO_NO_HOST_DEVICE
MADE(memo_device, new_device, (memo_host_device_desc desc),
     memo_host_device_create(&desc, &made, &error))
/* Its copies have this rate each way; 0: no limit. */
static MEMO_UNUSED memo_device* new_host(double bytes_per_s) {
    return new_device((memo_host_device_desc){.to_host_bytes_per_s = bytes_per_s,
                                              .to_device_bytes_per_s = bytes_per_s});
}
#endif
#ifdef MEMO_PLAN_H
MADE(memo_swap_plan, swap_plan_of, (const memo_swap_plan_desc* desc),
     memo_plan_swap(desc, &made, &error))
MADE(memo_step_plan, step_plan_of, (const memo_session_desc* desc, const memo_profile* profile),
     memo_session_plan(desc, profile, &made, &error))
MADE(memo_session, session_of_plan, (const memo_session_desc* desc, const memo_step_plan* plan),
     memo_session_open(desc, plan, &made, &error))
VALUE(int64_t, least_of_session, (const memo_session_desc* desc),
      memo_session_get_least(desc, &value, &error))
MADE(memo_session, new_session, (const memo_session_desc* desc),
     memo_session_create(desc, &made, &error))
#endif
#ifdef MEMO_PLAN_H
/* The plan in words has this text. */
static MEMO_UNUSED void expect_words(const memo_step_plan* plan, const char* text) {
    memo_text report = {0};
    memo_step_plan_put(plan, &report);
    CHECK_CASE(strstr(report.data, text), "no `%s` in:\n%s", text, report.data);
    memo_text_free(&report);
}
#endif
#ifdef MEMO_SP_H
MADE(memo_sp_attention, attention_of, (const memo_sp_attention_desc* desc),
     memo_sp_attention_create(desc, &made, &error))
MADE(memo_exchange, exchange_of, (memo_sp_attention * attention, const memo_exchange_desc* desc),
     memo_exchange_create(attention, desc, &made, &error))
#endif
#ifdef MEMO_LOOK_H
/* Copies of this name move so many bytes a second, each after start_s. */
static MEMO_UNUSED void time_copies(memo_schedule* schedule, const char* name, double bytes_per_s,
                                    double start_s) {
    for (int64_t i = 0; i < schedule->n_ops; i++) {
        memo_op* op = &schedule->ops[i];
        if (op->kind == MEMO_OP_RUN && op->link_bytes &&
            !strcmp(memo_schedule_op_name(schedule, i), name))
            op->duration_s = start_s + (double)op->link_bytes / bytes_per_s;
    }
}

#ifdef MEMO_PLAN_H
MADE(memo_schedule, schedule_of_swap, (const memo_swap_plan_desc* desc, int32_t n_steps),
     memo_swap_generate(desc, n_steps, &made, &error))
#endif
MADE(memo_schedule, new_empty_schedule, (void), memo_schedule_create(&made, &error))
MADE(memo_check, check_of, (const memo_schedule* schedule),
     memo_schedule_check(schedule, &made, &error))
MADE(memo_simulation, times_of, (const memo_schedule* schedule),
     memo_schedule_simulate(schedule, &made, &error))
MADE(memo_recorder, new_recorder, (memo_recorder_desc desc),
     memo_recorder_create(&desc, &made, &error))
MADE(memo_schedule, recorded, (memo_recorder * recorder),
     memo_recorder_get_schedule(recorder, &made, &error))
#endif

#define own_trace     OWNED(drop_trace) memo_trace
#define own_plan      OWNED(drop_plan) memo_plan
#define own_arena     OWNED(drop_arena) memo_arena
#define own_schedule  OWNED(drop_schedule) memo_schedule
#define own_device    OWNED(drop_device) memo_device
#define own_swap_plan OWNED(drop_swap_plan) memo_swap_plan
#define own_step_plan OWNED(drop_step_plan) memo_step_plan
#define own_session   OWNED(drop_session) memo_session
#define own_check     OWNED(drop_check) memo_check
#define own_times     OWNED(drop_simulation) memo_simulation
#define own_recorder  OWNED(drop_recorder) memo_recorder
#define own_attention OWNED(drop_attention) memo_sp_attention
#define own_exchange  OWNED(drop_exchange) memo_exchange
#define own_loss      OWNED(drop_loss) memo_loss
#define own_comm      OWNED(drop_comm) memo_comm
#define own_blocks    OWNED(drop_blocks) memo_blocks
#define own_list      OWNED(drop_list) memo_parallel_list
#define own_problem   OWNED(memoi_problem_free) memoi_problem /* if it is compiled */
#define own_memory    OWNED(drop_memory)

#endif
