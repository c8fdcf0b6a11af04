/* blocks_log.h - logs what overlapped blocks enqueue: the stream of each block function and
 * collective, and the events that are recorded and waited for.  A log entry of a collective has its
 * stream and buffers only, so a collective is named after the function that last wrote its buffer.
 *
 *   blocks_log_init(log, &desc)     puts the log's device, communicator and functions into desc
 *   memo_blocks_create(&desc, ...), passes
 *   blocks_log_compare(log, ...)    with a schedule
 *   blocks_log_check(log, ...)      with the order printed in the papers, written out here
 *                                   independently
 *
 * One thread, one log. */
#ifndef BLOCKS_LOG_H
#define BLOCKS_LOG_H

#include "extras/memo_look.h"

enum { LOG_PARTS = 8, LOG_NAME = 24 };

typedef struct log_entry {
    memo_op_kind kind;   /* RUN, RECORD or WAIT */
    char name[LOG_NAME]; /* RUN: "F1a", "cB2b", ..., as in the schedules */
    memo_stream stream;
    memo_event event;
    memo_block_call call; /* of a block function */
} log_entry;

typedef struct blocks_log {
    memo_device device;
    memo_comm comm;
    memo_block_functions functions;
    memo_blocks_desc inner; /* as it was given */
    memo_block_buffers buffers[LOG_PARTS];
    memo_stream comm_stream;
    int32_t priority;                                                /* of it */
    char output[LOG_PARTS][LOG_NAME], gradient[LOG_PARTS][LOG_NAME]; /* written last by */
    log_entry* entries;
    int64_t n, capacity;
    char wrong[160]; /* the first entry that no order explains */
} blocks_log;

static inline void log_wrong(blocks_log* log, const char* what, const char* name) {
    if (!log->wrong[0]) snprintf(log->wrong, sizeof log->wrong, "%.80s: %.60s", what, name);
}

static inline log_entry* log_add(blocks_log* log, memo_op_kind kind, memo_stream stream,
                                 const char* name) {
    log_entry* entry;
    if (log->n == log->capacity) {
        log->capacity = 2 * log->capacity + 64;
        log->entries =
            (log_entry*)realloc(log->entries, (size_t)log->capacity * sizeof *log->entries);
        if (!log->entries) abort();
    }
    entry = &log->entries[log->n++];
    memset(entry, 0, sizeof *entry);
    entry->kind = kind;
    entry->stream = stream;
    snprintf(entry->name, sizeof entry->name, "%.*s", LOG_NAME - 1, name);
    return entry;
}

static inline void log_name(char* name, const char* kind, int block, int part) {
    if (block < 0)
        snprintf(name, LOG_NAME, "%s%c", kind, 'a' + part);
    else
        snprintf(name, LOG_NAME, "%s%d%c", kind, block + 1, 'a' + part);
}

/* ---- block functions ---- */

static inline memo_status log_call(void* context, const memo_block_call* call, const char* kind,
                                   memo_block_function function, memo_error* e) {
    blocks_log* log = (blocks_log*)context;
    char name[LOG_NAME];
    log_name(name, kind, kind[0] == 'e' ? -1 : call->block, call->part);
    log_add(log, MEMO_OP_RUN, call->stream, name)->call = *call;
    if (kind[0] == 'F' || (kind[0] == 'R' && call->has_output))
        memcpy(log->output[call->part], name, LOG_NAME);
    if (kind[0] == 'B') memcpy(log->gradient[call->part], name, LOG_NAME);
    return function(log->inner.functions.context, call, e);
}
#define LOG_FUNCTION(FIELD, KIND)                                                                  \
    static inline memo_status log_##FIELD(void* context, const memo_block_call* call,              \
                                          memo_error* e) {                                         \
        return log_call(context, call, KIND, ((blocks_log*)context)->inner.functions.FIELD, e);    \
    }
LOG_FUNCTION(forward, "F")
LOG_FUNCTION(recompute, "R")
LOG_FUNCTION(backward, "B")
LOG_FUNCTION(weights, "W")
LOG_FUNCTION(forward_end, "end-")
LOG_FUNCTION(backward_end, "end-")

/* ---- collectives ---- */

static inline void log_reduce(blocks_log* log, memo_stream stream, const void* from,
                              int64_t count) {
    char name[LOG_NAME + 1] = "?";
    int s, n_parts = log->inner.schedule.n_parts ? log->inner.schedule.n_parts : 2;
    for (s = 0; s < n_parts; s++) {
        int is_output = from == log->buffers[s].output;
        if (!is_output && from != log->buffers[s].gradient) continue;
        snprintf(name, sizeof name, "c%s", is_output ? log->output[s] : log->gradient[s]);
        if (count != log->buffers[s].count) log_wrong(log, "the wrong count", name);
    }
    name[LOG_NAME - 1] = 0;
    log_add(log, MEMO_OP_RUN, stream, name);
}

static inline memo_status log_collective(memo_comm* comm, memo_stream stream,
                                         const memo_collective_call* call, memo_error* e) {
    blocks_log* log = (blocks_log*)comm->context;
    memo_comm* inner = log->inner.comm;
    if (call->kind != MEMO_COLLECTIVE_ALL_REDUCE) log_wrong(log, "a collective", "of its kind");
    log_reduce(log, stream, call->from, call->count);
    return memo_comm_collective(inner, stream, call, e);
}

/* ---- the device ---- */

static inline memo_status log_stream_create(void* context, const char* name, int32_t priority,
                                            memo_stream* stream, memo_error* e) {
    blocks_log* log = (blocks_log*)context;
    const memo_device* inner = log->inner.device;
    memo_status status = memo_stream_create(inner, name, priority, stream, e);
    if (!status) log->comm_stream = *stream;
    log->priority = priority;
    return status;
}
static inline memo_status log_stream_destroy(void* context, memo_stream stream, memo_error* e) {
    const memo_device* inner = ((blocks_log*)context)->inner.device;
    return memo_stream_destroy(inner, stream, e);
}
static inline memo_status log_stream_synchronize(void* context, memo_stream stream, memo_error* e) {
    const memo_device* inner = ((blocks_log*)context)->inner.device;
    return memo_stream_synchronize(inner, stream, e);
}
static inline memo_status log_event_create(void* context, memo_event* event, memo_error* e) {
    const memo_device* inner = ((blocks_log*)context)->inner.device;
    return memo_event_create(inner, event, e);
}
static inline memo_status log_event_destroy(void* context, memo_event event, memo_error* e) {
    const memo_device* inner = ((blocks_log*)context)->inner.device;
    return memo_event_destroy(inner, event, e);
}
static inline memo_status log_event_record(void* context, memo_event event, memo_stream stream,
                                           memo_error* e) {
    blocks_log* log = (blocks_log*)context;
    const memo_device* inner = log->inner.device;
    log_add(log, MEMO_OP_RECORD, stream, "record")->event = event;
    return memo_event_record(inner, event, stream, e);
}
static inline memo_status log_event_wait(void* context, memo_event event, memo_stream stream,
                                         memo_error* e) {
    blocks_log* log = (blocks_log*)context;
    const memo_device* inner = log->inner.device;
    log_add(log, MEMO_OP_WAIT, stream, "wait")->event = event;
    return memo_event_wait(inner, event, stream, e);
}
static inline memo_status log_annotate(void* context, memo_stream stream,
                                       const struct memo_op_desc* op, memo_error* e) {
    const memo_device* inner = ((blocks_log*)context)->inner.device;
    return inner->annotate ? memo_annotate(inner, stream, op, e) : MEMO_STATUS_OK;
}

/* desc needs all fields but the schedule's times and the comm stream, which the blocks make. */
static inline void blocks_log_init(blocks_log* log, memo_blocks_desc* desc) {
    int s, n_parts = desc->schedule.n_parts ? desc->schedule.n_parts : 2;
    memset(log, 0, sizeof *log);
    log->inner = *desc;
    for (s = 0; s < n_parts; s++) log->buffers[s] = desc->buffers[s];
    /* Functions that the blocks do not need are NULL, so that a call of them crashes. */
    log->device.struct_bytes = (int64_t)sizeof log->device;
    log->device.name = "log";
    log->device.context = log;
    log->device.stream_create = log_stream_create;
    log->device.stream_destroy = log_stream_destroy;
    log->device.stream_synchronize = log_stream_synchronize;
    log->device.event_create = log_event_create;
    log->device.event_destroy = log_event_destroy;
    log->device.event_record = log_event_record;
    log->device.event_wait = log_event_wait;
    log->device.annotate = log_annotate;

    log->comm.name = "log";
    log->comm.context = log;
    log->comm.rank = desc->comm->rank;
    log->comm.size = desc->comm->size;
    log->comm.collective = log_collective;

    log->functions.context = log;
    log->functions.forward = log_forward;
    log->functions.recompute = log_recompute;
    log->functions.backward = log_backward;
    if (desc->functions.weights) log->functions.weights = log_weights;
    if (desc->functions.forward_end) log->functions.forward_end = log_forward_end;
    if (desc->functions.backward_end) log->functions.backward_end = log_backward_end;

    desc->device = &log->device;
    desc->comm = &log->comm;
    desc->functions = log->functions;
}

static inline void blocks_log_free(blocks_log* log) { free(log->entries); }

/* ---- against a schedule ---- */

static inline const char* log_stream_name(const blocks_log* log, memo_stream stream) {
    return stream == log->inner.compute_stream ? "compute"
           : stream == log->comm_stream        ? "comm"
                                               : "another stream";
}

/* The record that op i of a schedule, a wait, sees; -1: none. */
static inline int64_t log_promised_record(const memo_schedule* schedule, int64_t i) {
    int64_t k = i - 1;
    while (k >= 0 && !(schedule->ops[k].kind == MEMO_OP_RECORD &&
                       schedule->ops[k].event == schedule->ops[i].event))
        k--;
    return k;
}
static inline int64_t log_seen_record(const blocks_log* log, int64_t i) {
    int64_t k = i - 1;
    while (k >= 0 && !(log->entries[k].kind == MEMO_OP_RECORD &&
                       log->entries[k].event == log->entries[i].event))
        k--;
    return k;
}

/* The same operations, in the same order, on streams of the same names; each wait sees the same
 * record. */
static inline memo_status blocks_log_compare(const blocks_log* log, const memo_schedule* promised,
                                             memo_error* e) {
    int64_t i;
    for (i = 0; i < promised->n_ops && i < log->n; i++) {
        const memo_op* op = &promised->ops[i];
        const log_entry* entry = &log->entries[i];
        const char* stream = promised->text + promised->streams[op->stream];
        const char* name = op->kind == MEMO_OP_RECORD ? "record"
                           : op->kind == MEMO_OP_WAIT ? "wait"
                                                      : memo_schedule_op_name(promised, i);

        if (op->kind != entry->kind || strcmp(name, entry->name) ||
            strcmp(stream, log_stream_name(log, entry->stream)))
            return memo_error_set(e, MEMO_STATUS_INVALID_ARGUMENT,
                                  "op %d: %s on %s was promised, %s on %s was enqueued", (int)i,
                                  name, stream, entry->name, log_stream_name(log, entry->stream));
        if (op->kind == MEMO_OP_WAIT && log_promised_record(promised, i) != log_seen_record(log, i))
            return memo_error_set(
                e, MEMO_STATUS_INVALID_ARGUMENT, "op %d: the wait sees the record %d instead of %d",
                (int)i, (int)log_seen_record(log, i), (int)log_promised_record(promised, i));
    }

    if (promised->n_ops != log->n)
        return memo_error_set(e, MEMO_STATUS_INVALID_ARGUMENT,
                              "%d ops were promised, %d were enqueued", (int)promised->n_ops,
                              (int)log->n);
    return MEMO_STATUS_OK;
}

/* ---- against the papers ---- */

typedef struct log_expected {
    char (*names)[LOG_NAME]; /* of one stream */
    int n, capacity;
} log_expected;

static inline void log_expect(log_expected* list, const char* kind, int block, int part) {
    if (list->n == list->capacity) {
        list->capacity = 2 * list->capacity + 64;
        list->names =
            (char(*)[LOG_NAME])realloc(list->names, (size_t)list->capacity * sizeof *list->names);
        if (!list->names) abort();
    }
    log_name(list->names[list->n++], kind, block, part);
}

/* Is the sum of a block's recomputation read? */
static inline int log_is_output_read(memo_blocks_order order, int block, int m) {
    return order == MEMO_BLOCKS_FINE ? 0 : order == MEMO_BLOCKS_CROSS ? block % m != m - 1 : 1;
}

/* lists: compute, comm. */
static inline void log_expect_recompute(log_expected* lists, memo_blocks_order order, int block,
                                        int m, int part) {
    log_expect(&lists[0], "R", block, part);
    if (log_is_output_read(order, block, m)) log_expect(&lists[1], "cR", block, part);
}
static inline void log_expect_backward(log_expected* lists, int has_weights, int block, int part) {
    log_expect(&lists[0], "B", block, part);
    log_expect(&lists[1], "cB", block, part);
    if (has_weights) log_expect(&lists[0], "W", block, part);
}

static inline void log_expect_pass(log_expected* lists, const memo_blocks_schedule_desc* d, int m,
                                   int n_parts, int has_weights, int is_backward) {
    int i, s, first, segment, fine = d->order == MEMO_BLOCKS_FINE;
    for (i = 0; i < d->n_blocks && !is_backward; i++)
        for (s = 0; s < n_parts; s++) {
            log_expect(&lists[0], "F", i, s);
            log_expect(&lists[1], "cF", i, s);
        }

    for (first = d->n_blocks - m; first >= 0 && is_backward; first -= m) {
        /* Recomputation of the whole layer comes first, except for the last blocks, whose backward
         * follows directly. */
        segment = fine ? first : d->order == MEMO_BLOCKS_CROSS ? first + m - 1 : first + m;
        for (i = first; i < segment; i++)
            for (s = 0; s < n_parts; s++) log_expect_recompute(lists, d->order, i, m, s);

        for (i = first + m - 1; i >= first; i--) {
            /* The keys of all parts of a sequence exist before the last part's backward. */
            int all_first = i >= segment && d->splits_sequence && i == first;
            for (s = 0; s < n_parts && all_first; s++)
                log_expect_recompute(lists, d->order, i, m, s);
            for (s = 0; s < n_parts; s++) {
                int part = d->splits_sequence ? n_parts - 1 - s : s;
                if (i >= segment && !all_first) log_expect_recompute(lists, d->order, i, m, part);
                log_expect_backward(lists, has_weights, i, part);
            }
        }
    }

    for (s = 0; s < n_parts; s++) log_expect(&lists[0], "end-", -1, s);
}

/* The arguments of a block function's call, and its stream. */
static inline const char* log_check_call(const blocks_log* log, const log_entry* entry, int m) {
    const memo_block_call* call = &entry->call;
    int fine = log->inner.schedule.order == MEMO_BLOCKS_FINE;
    int keeps = fine || call->block % m == 0;
    if (entry->stream != (entry->name[0] == 'c' ? log->comm_stream : log->inner.compute_stream))
        return "the wrong stream";
    if (entry->name[0] == 'F' &&
        (call->is_input_saved != (call->block == 0) || call->keeps_input != keeps))
        return "the wrong input";
    if (entry->name[0] == 'R' && call->is_input_saved != keeps) return "the wrong input";
    if (entry->name[0] == 'R' &&
        call->has_output != log_is_output_read(log->inner.schedule.order, call->block, m))
        return "an output that nobody reads, or none where one is read";
    return NULL;
}

/* n_steps of a forward and a backward pass. */
static inline memo_status blocks_log_check(const blocks_log* log, int n_steps, memo_error* e) {
    const memo_blocks_schedule_desc* d = &log->inner.schedule;
    int m = d->blocks_per_layer ? d->blocks_per_layer : 2, n_parts = d->n_parts ? d->n_parts : 2;
    log_expected lists[2];
    int step, list, at[2] = {0, 0};
    int64_t i, before = -1;
    const char* wrong = log->wrong[0] ? log->wrong : log->priority <= 0 ? "no priority" : NULL;
    char name[LOG_NAME] = "";
    memset(lists, 0, sizeof lists);
    for (step = 0; step < 2 * n_steps; step++)
        log_expect_pass(lists, d, m, n_parts, log->inner.functions.weights != NULL, step % 2);

    for (i = 0; i < log->n && !wrong; i++) {
        const log_entry* entry = &log->entries[i];
        if (entry->kind != MEMO_OP_RUN) continue;
        memcpy(name, entry->name, LOG_NAME);
        wrong = log_check_call(log, entry, m);
        list = entry->name[0] == 'c';
        if (!wrong &&
            (at[list] == lists[list].n || strcmp(lists[list].names[at[list]++], entry->name)))
            wrong = "out of order";
        /* The weight gradient runs after the launch of its input gradient's collective. */
        if (!wrong && entry->name[0] == 'W' &&
            (before < 0 || strncmp(log->entries[before].name, "cB", 2) ||
             strcmp(log->entries[before].name + 2, entry->name + 1)))
            wrong = "not directly after its collective";
        before = i;
    }

    for (list = 0; list < 2; list++) {
        if (!wrong && at[list] != lists[list].n) wrong = "operations are missing after it";
        free(lists[list].names);
    }
    return wrong ? memo_error_set(e, MEMO_STATUS_INVALID_ARGUMENT, "%s: %s", name, wrong)
                 : MEMO_STATUS_OK;
}

#endif
