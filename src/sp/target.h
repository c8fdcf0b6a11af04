#pragma once
#include "memo/waits.h"
#include "sp/row_kernels.h"
/* ---- >>target -----------------------------------------------------------------------------------
 * Knows: a device, a recorder around it, the row kernels, groups of messages, and the law of waits.
 * Knows nothing of attention.
 *
 * Streams, events and memory of an engine.  The target keeps the first failure; after it nothing is
 * enqueued.
 *
 * 1. An event of an operation is one that the target has.
 * 2. An event that is waited for was recorded behind the operation that is meant.
 * 3. An operation touches cells that the target has. */

enum {
    MEMOI_TARGET_COMPUTE = 0,
    MEMOI_TARGET_COMM, /* of blocks */
    MEMOI_TARGET_RING = MEMOI_TARGET_COMM,
    MEMOI_TARGET_ULYSSES,
    MEMOI_TARGET_NODES,
    MEMOI_TARGET_N_STREAMS
};
typedef char memoi_target_streams_fit[(int)MEMOI_TARGET_N_STREAMS == (int)MEMOB_N_STREAMS ? 1 : -1];

/* What the streams of an engine were given, and the records of each stream's events. */
typedef struct memoi_target_order {
    memob_waits waits;
    memob_records records[MEMOI_TARGET_N_STREAMS];
} memoi_target_order;

typedef struct memoi_target {
    const memo_device* device;
    memo_stream streams[MEMOI_TARGET_N_STREAMS];
    memo_event* events;
    int32_t n_events;
    void *memory, *host_memory; /* owned; NULL: none, or the user's */
    memob_arrays arrays;
    const memo_label* agreed; /* its fields and digests go with each message */
    /* NULL: the engine has one stream, or makes its waits itself.  Otherwise waits follow from what
     * operations touch, and each stream has MEMOB_RECORDS events. */
    memoi_target_order* order;
    memob_cell* cells;
    int32_t n_cells;
    memo_status status;
    memo_error* error;
} memoi_target;

/* Memory that is taken piece by piece.  base NULL: pieces are only counted, and are NULL.  So run
 * the calls twice, to measure and to take. */
typedef struct memoi_carver {
    char* base;
    int64_t n_bytes; /* taken so far */
} memoi_carver;

MEMOI MEMOB_NOINLINE char* memoi_carve(memoi_carver* carver, int64_t n_bytes) {
    const int64_t at = carver->n_bytes;
    carver->n_bytes = memob_align_up(at + n_bytes, MEMOB_DEVICE_ALIGNMENT);
    return carver->base ? carver->base + at : NULL;
}

/* Waits for the streams, and frees all, except the first stream, which is the caller's. */
MEMOI void memoi_target_close(memoi_target* target) {
    const memo_device* device = target->device;
    for (int32_t i = 0; i < MEMOI_TARGET_N_STREAMS && device; i++)
        if (target->streams[i])
            MEMOB_IGNORE(memo_stream_synchronize(device, target->streams[i], NULL));
    for (int32_t i = 0; i < target->n_events && device; i++)
        if (target->events[i]) (void)memo_event_destroy(device, target->events[i], NULL);
    for (int32_t i = 1; i < MEMOI_TARGET_N_STREAMS && device; i++)
        if (target->streams[i]) (void)memo_stream_destroy(device, target->streams[i], NULL);
    if (target->memory) memo_device_free(device, target->memory, NULL);
    if (target->host_memory) memo_host_free(device, target->host_memory, NULL);
    memob_arrays_free(&target->arrays);
}

/* Create and destroy an object that has a target; what: in errors.  memoi_NAME_prepare fills the
 * object; after its failure the object is destroyed. */
#define MEMOI_TARGET_OBJECT(name, what)                                                            \
    void memo_##name##_destroy(memo_##name* object) {                                              \
        if (object) memoi_target_close(&object->target);                                           \
        MEMO_FREE(object);                                                                         \
    }                                                                                              \
    MEMOI_TARGET_CREATE(name, what)
#define MEMOI_TARGET_CREATE(name, what)                                                            \
    memo_status memo_##name##_create(const memo_##name##_desc* desc, memo_##name** result,         \
                                     memo_error* error) {                                          \
        MEMOB_REFUSE_NULL(error, #name, result);                                                   \
        *result = NULL;                                                                            \
        MEMOB_REFUSE_NULL(error, "desc", desc);                                                    \
        memo_##name* object = (memo_##name*)memob_calloc(1, sizeof *object);                       \
        const memo_status status =                                                                 \
            object ? memoi_##name##_prepare(object, desc, error) : memob_no_memory(error, what);   \
        if (status) memo_##name##_destroy(object);                                                 \
        *result = status ? NULL : object;                                                          \
        return status;                                                                             \
    }

/* Does a recorder listen? */
MEMOI int memoi_target_is_heard(const memoi_target* target) {
    return !target->status && MEMO_DEVICE_HAS(target->device, annotate);
}

/* Announces an operation that the table has no function for, which the caller enqueues next;
 * sent_bytes: to other ranks. */
MEMOI void memoi_target_announce(memoi_target* target, int stream, const char* name,
                                 const memo_range* reads, int64_t n_reads, const memo_range* writes,
                                 int64_t n_writes, int64_t sent_bytes) {
    const memo_op_desc op = {name, 0, 0, sent_bytes, reads, n_reads, writes, n_writes};
    if (memoi_target_is_heard(target))
        target->status = memo_annotate(target->device, target->streams[stream], &op, target->error);
}

MEMOI MEMOB_NOINLINE void memoi_target_record(memoi_target* target, int32_t event, int stream) {
    MEMO_ASSERT(event >= 0 && event < target->n_events && target->events[event]); /* 1 */
    if (!target->status)
        target->status = memo_event_record(target->device, target->events[event],
                                           target->streams[stream], target->error);
}

MEMOI MEMOB_NOINLINE void memoi_target_wait(memoi_target* target, int32_t event, int stream) {
    MEMO_ASSERT(event >= 0 && event < target->n_events && target->streams[stream]); /* 1 */
    if (!target->status)
        target->status = memo_event_wait(target->device, target->events[event],
                                         target->streams[stream], target->error);
}

/* --- operations that wait by what they touch --- */

/* The streams that are used exist. */
MEMOI memo_status memoi_target_order_make(memoi_target* target, int32_t n_cells,
                                          memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    target->order = MEMOB_ARRAY(&target->arrays, memoi_target_order, 1);
    target->cells = MEMOB_ARRAY(&target->arrays, memob_cell, n_cells);
    target->events =
        MEMOB_ARRAY(&target->arrays, memo_event, MEMOI_TARGET_N_STREAMS * MEMOB_RECORDS);
    if (target->arrays.failed) return memob_no_memory(error, "the waits of an engine");
    target->n_cells = n_cells;
    target->n_events = MEMOI_TARGET_N_STREAMS * MEMOB_RECORDS;
    for (int32_t i = 0; i < target->n_events && !status; i++)
        if (target->streams[i / MEMOB_RECORDS])
            status = memo_event_create_untimed(target->device, &target->events[i], error);
    return status;
}

/* What a stream is given between begin and end.  Its touches are listed before begin. */
typedef struct memoi_target_op {
    int32_t stream, n_touches;
    int32_t touches[8]; /* as in memob_cells_need */
    memob_numbers need;
} memoi_target_op;

MEMOI memoi_target_op memoi_target_op_on(int32_t stream) {
    memoi_target_op op = MEMO_ZERO(memoi_target_op);
    op.stream = stream;
    return op;
}

MEMOI void memoi_target_touch(const memoi_target* target, memoi_target_op* op, int32_t cell,
                              int is_written) {
    const int32_t touch = 2 * cell + (is_written != 0);
    if (!target->order) return;
    MEMO_ASSERT(cell >= 0 && cell < target->n_cells); /* 3 */
    memob_cells_need(target->cells, &touch, 1, &op->need);
    op->touches[op->n_touches++] = touch;
}

/* Bytes of a cell lie where the operation writes another. */
MEMOI void memoi_target_follow(const memoi_target* target, memoi_target_op* op, int32_t cell) {
    if (target->order) memob_numbers_raise(&op->need, &target->cells[cell].used);
}

/* Behind operation `number`, the stream's latest. */
MEMOI int32_t memoi_target_record_behind(memoi_target* target, int32_t stream, int64_t number) {
    memob_records* records = &target->order->records[stream];
    const int32_t event = memob_records_add(records, number);
    memoi_target_record(target, stream * MEMOB_RECORDS + event, stream);
    if (target->status) records->numbers[event] = 0;
    return event;
}

/* The compute stream has many operations, and others wait for few, so it is recorded when one of
 * them does.  The record is an operation itself: it is behind what the stream has waited for since
 * its latest one. */
MEMOI void memoi_target_begin(memoi_target* target, memoi_target_op* op) {
    memoi_target_order* order = target->order;
    if (!order || target->status || !memob_waits_reduce(&order->waits, op->stream, &op->need))
        return;
    for (int32_t s = 0; s < MEMOI_TARGET_N_STREAMS && !target->status; s++) {
        int32_t event;
        if (op->need.of[s] <= order->waits.now[op->stream].of[s]) continue;
        event = memob_records_find(&order->records[s], op->need.of[s]);
        if (event < 0)
            event = memoi_target_record_behind(target, s, memob_waits_end(&order->waits, s));
        MEMO_ASSERT(target->status || order->records[s].numbers[event] >= op->need.of[s]); /* 2 */
        memoi_target_wait(target, s * MEMOB_RECORDS + event, op->stream);
        if (!target->status)
            memob_waits_raise(&order->waits, op->stream, s, order->records[s].numbers[event]);
    }
}

MEMOI void memoi_target_end(memoi_target* target, const memoi_target_op* op) {
    int64_t number;
    if (!target->order) return;
    number = memob_waits_end(&target->order->waits, op->stream);
    memob_cells_mark(target->cells, op->touches, op->n_touches, op->stream, number);
    if (op->stream && !target->status) (void)memoi_target_record_behind(target, op->stream, number);
}

/* The caller's work, before a pass or after it, may touch everything: of cells the first n. */
MEMOI void memoi_target_fence(memoi_target* target, int32_t n_cells) {
    memoi_target_op op = memoi_target_op_on(MEMOI_TARGET_COMPUTE);
    memob_cell all = MEMO_ZERO(memob_cell);
    if (!target->order) return;
    for (int32_t s = 0; s < MEMOI_TARGET_N_STREAMS; s++)
        op.need.of[s] = target->order->waits.now[s].of[s];
    memoi_target_begin(target, &op);
    if (target->status) return; /* what was not waited for stays known */
    all.used.of[MEMOI_TARGET_COMPUTE] = all.wrote.of[MEMOI_TARGET_COMPUTE] =
        memob_waits_end(&target->order->waits, MEMOI_TARGET_COMPUTE);
    for (int32_t i = 0; i < n_cells; i++) target->cells[i] = all;
}

MEMOI void memoi_target_fill(memoi_target* target, int stream, void* address, int64_t n_bytes) {
    if (n_bytes && !target->status)
        target->status =
            memo_fill(target->device, target->streams[stream], address, 0, n_bytes, target->error);
}

MEMOI void memoi_target_copy_rows(memoi_target* target, int stream, void* to,
                                  int64_t to_stride_bytes, const void* from,
                                  int64_t from_stride_bytes, int64_t row_bytes, int64_t n_rows) {
    if (n_rows && row_bytes && !target->status)
        target->status = memo_copy_rows(target->device, target->streams[stream],
                                        MEMO_COPY_ON_DEVICE, to, to_stride_bytes, from,
                                        from_stride_bytes, row_bytes, n_rows, target->error);
}

/* --- messages --- */

/* Announces and opens a group of messages, "label number" or with number -1 "label".  The label
 * holds until the group ends. */
MEMOI void memoi_target_group_begin(memoi_target* target, int stream, memo_comm* comm,
                                    const char* label, int32_t number, const memo_range* reads,
                                    int64_t n_reads, const memo_range* writes, int64_t n_writes,
                                    int64_t sent_bytes) {
    char name[48];
    if (memoi_target_is_heard(target))
        snprintf(name, sizeof name, number < 0 ? "%.32s" : "%.32s %d", label, (int)number);
    memoi_target_announce(target, stream, name, reads, n_reads, writes, n_writes, sent_bytes);
    if (target->status) return; /* nothing would end the label */
    memoi_comm_label(comm, target->agreed, 0, label, memob_max(number, 0));
    target->status = memo_group_begin(comm, target->error);
}

MEMOI void memoi_target_message(memoi_target* target, int stream, memo_comm* comm, int is_send,
                                const void* address, int64_t count, memo_type type, int32_t peer) {
    if (count && !target->status)
        target->status = memoi_comm_message(comm, target->streams[stream], is_send, address, count,
                                            type, peer, target->error);
}

MEMOI void memoi_target_group_end(memoi_target* target, int stream, memo_comm* comm) {
    if (!target->status)
        target->status = memo_group_end(comm, target->streams[stream], target->error);
}

/* --- row kernels --- */

MEMOI void memoi_target_kernel(memoi_target* target, int stream, memo_row_kind kind,
                               const void* desc) {
    if (!target->status)
        target->status =
            memo_row_kernel(target->device, target->streams[stream], kind, desc, target->error);
}

/* to += from, in rows of n elements. */
MEMOI void memoi_target_add(memoi_target* target, int stream, memo_type type, void* to,
                            int64_t to_stride, const void* from, int64_t from_stride, int64_t n,
                            int64_t n_rows) {
    const memo_add_desc add = {to,     to, from,      type,      type,       type,
                               n_rows, n,  to_stride, to_stride, from_stride};
    if (n && n_rows) memoi_target_kernel(target, stream, MEMO_ROW_ADD, &add);
}

/* to (type) = from, n elements. */
MEMOI void memoi_target_cast(memoi_target* target, int stream, void* to, memo_type type,
                             const float* from, int64_t n) {
    const memo_add_desc cast = {to, from, NULL, type, MEMO_TYPE_F32, type, 1, n, 0, 0, 0};
    if (n) memoi_target_kernel(target, stream, MEMO_ROW_CAST, &cast);
}
