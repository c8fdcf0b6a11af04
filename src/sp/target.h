#pragma once
#include "sp/row_kernels.h"
/* ---- >>target -----------------------------------------------------------------------------------
 * Knows: a device, a recorder around it, the row kernels, groups of messages.  Knows nothing of
 * attention.
 *
 * Streams, events and memory of an engine.  The target keeps the first failure; after it nothing is
 * enqueued.
 *
 * 1. An event of an operation is one that the target has.
 * 2. A stream waits for what the compute stream was given before. */

enum {
    MEMOI_TARGET_COMPUTE = 0,
    MEMOI_TARGET_COMM, /* of blocks */
    MEMOI_TARGET_RING = MEMOI_TARGET_COMM,
    MEMOI_TARGET_ULYSSES,
    MEMOI_TARGET_NODES,
    MEMOI_TARGET_N_STREAMS
};
/* Events of attention. */
enum {
    /* A point of the compute stream that another one waits for: an event for each of those. */
    MEMOI_TARGET_COMPUTED = 0,
    MEMOI_TARGET_HEADS = MEMOI_TARGET_COMPUTED + MEMOI_TARGET_N_STREAMS, /* arrived by heads */
    MEMOI_TARGET_ROWS,    /* a group has left by rows */
    MEMOI_TARGET_CROSSED, /* rows of other nodes have arrived; of even and of odd rings */
    MEMOI_TARGET_EXCHANGED = MEMOI_TARGET_CROSSED + 2, /* the first, which exchanges use in turn */
    MEMOI_TARGET_EXCHANGES = 64,
    MEMOI_TARGET_N_EVENTS = MEMOI_TARGET_EXCHANGED + MEMOI_TARGET_EXCHANGES
};

typedef struct memoi_target {
    const memo_device* device;
    memo_stream streams[MEMOI_TARGET_N_STREAMS];
    memo_event* events;
    int32_t n_events;
    void *memory, *host_memory; /* owned; NULL: none, or the user's */
    memob_arrays arrays;
    const memo_label* agreed; /* its fields and digests go with each message */
    /* Points of the compute stream, counted in a pass; each is behind all that came before it. */
    int32_t n_points;
    int32_t seen[MEMOI_TARGET_N_STREAMS]; /* that a stream is behind */
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
    memo_status memo_##name##_create(const memo_##name##_desc* desc, memo_##name** result,         \
                                     memo_error* error) {                                          \
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

/* Makes a stream wait for a point of the compute stream, unless it has. */
MEMOI void memoi_target_pass(memoi_target* target, int stream, int32_t point) {
    MEMO_ASSERT(point <= target->n_points); /* 2 */
    if (point <= target->seen[stream]) return;
    memoi_target_record(target, MEMOI_TARGET_COMPUTED + stream, MEMOI_TARGET_COMPUTE);
    memoi_target_wait(target, MEMOI_TARGET_COMPUTED + stream, stream);
    target->seen[stream] = target->n_points;
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
