/* at_once.h - a device without threads, on which each operation is over when its call returns: for tests
 * of so many sessions that threads would take most of the time.  Behind each block lie bytes that
 * harm nobody if a mistake writes there.
 *
 * Include after memo.h. */
#ifndef AT_ONCE_H
#define AT_ONCE_H

#include <stdlib.h>
#include <string.h>

enum { AT_ONCE_BEHIND = 1 << 16 };

static memo_status at_once_alloc(void* context, int64_t n_bytes, void** address, memo_error* e) {
    const size_t n = ((size_t)n_bytes + AT_ONCE_BEHIND + 511) / 512 * 512;
    (void)context;
    if (!posix_memalign(address, 512, n)) return MEMO_STATUS_OK;
    return memo_error_set(e, MEMO_STATUS_OUT_OF_DEVICE_MEMORY, "no memory");
}
static memo_status at_once_free(void* context, void* address, memo_error* e) {
    (void)context, (void)e;
    free(address);
    return MEMO_STATUS_OK;
}
static memo_status at_once_info(void* context, int64_t* n_free, int64_t* n_total, memo_error* e) {
    (void)context, (void)e;
    *n_free = *n_total = (int64_t)1 << 30;
    return MEMO_STATUS_OK;
}
static memo_status at_once_stream(void* context, const char* name, int32_t priority,
                                  memo_stream* stream, memo_error* e) {
    (void)name, (void)priority, (void)e;
    *stream = (memo_stream)context; /* all are alike */
    return MEMO_STATUS_OK;
}
static memo_status at_once_of_stream(void* context, memo_stream stream, memo_error* e) {
    (void)context, (void)stream, (void)e;
    return MEMO_STATUS_OK;
}
static memo_status at_once_event(void* context, memo_event* event, memo_error* e) {
    (void)e;
    *event = (memo_event)context;
    return MEMO_STATUS_OK;
}
static memo_status at_once_of_event(void* context, memo_event event, memo_error* e) {
    (void)context, (void)event, (void)e;
    return MEMO_STATUS_OK;
}
static memo_status at_once_of_both(void* context, memo_event event, memo_stream stream,
                                   memo_error* e) {
    (void)context, (void)event, (void)stream, (void)e;
    return MEMO_STATUS_OK;
}
static memo_status at_once_query(void* context, memo_event event, int32_t* is_done, memo_error* e) {
    (void)context, (void)event, (void)e;
    *is_done = 1;
    return MEMO_STATUS_OK;
}
static memo_status at_once_elapsed(void* context, memo_event begin, memo_event end, double* s,
                                   memo_error* e) {
    (void)context, (void)begin, (void)end, (void)e;
    *s = 1e-6;
    return MEMO_STATUS_OK;
}
static memo_status at_once_copy_rows(void* context, memo_stream stream, memo_copy_kind kind,
                                     void* to, int64_t to_stride, const void* from,
                                     int64_t from_stride, int64_t row_bytes, int64_t n_rows,
                                     memo_error* e) {
    (void)context, (void)stream, (void)kind, (void)e;
    for (int64_t i = 0; i < n_rows; i++)
        memmove((char*)to + i * to_stride, (const char*)from + i * from_stride, (size_t)row_bytes);
    return MEMO_STATUS_OK;
}
static memo_status at_once_copy(void* context, memo_stream stream, memo_copy_kind kind, void* to,
                                const void* from, int64_t n_bytes, memo_error* e) {
    return at_once_copy_rows(context, stream, kind, to, 0, from, 0, n_bytes, 1, e);
}
static memo_status at_once_fill(void* context, memo_stream stream, void* address, int32_t value,
                                int64_t n_bytes, memo_error* e) {
    (void)context, (void)stream, (void)e;
    memset(address, value, (size_t)n_bytes);
    return MEMO_STATUS_OK;
}
static memo_status at_once_status(void* context, memo_error* e) {
    (void)context, (void)e;
    return MEMO_STATUS_OK;
}

static memo_device at_once_device(void) {
    static char context;
    memo_device device = MEMO_ZERO(memo_device);
    device.struct_bytes = sizeof device;
    device.name = "at once";
    device.context = &context;
    device.device_alloc = device.host_alloc = at_once_alloc;
    device.device_free = device.host_free = at_once_free;
    device.memory_info = at_once_info;
    device.stream_create = at_once_stream;
    device.stream_destroy = device.stream_synchronize = at_once_of_stream;
    device.event_create = at_once_event;
    device.event_destroy = device.event_synchronize = at_once_of_event;
    device.event_record = device.event_wait = at_once_of_both;
    device.event_query = at_once_query;
    device.event_elapsed = at_once_elapsed;
    device.copy = at_once_copy;
    device.copy_rows = at_once_copy_rows;
    device.fill = at_once_fill;
    device.status = at_once_status;
    return device;
}

#endif
