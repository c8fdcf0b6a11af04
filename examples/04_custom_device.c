/* 04_custom_device.c - makes a device of your own: copies the table of an existing device and
 * replaces functions.
 *
 * This device wraps the host device and counts the bytes copied each way.  A check, a log or
 * another allocator is added in the same way.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/04_custom_device.c -o 04_custom_device -lpthread -lm
 * Expected output:
 *     the row that came back begins with 7
 *     to host: 1 copies, 524288 bytes
 *     to device: 2 copies, 1572864 bytes
 *     on device: 0 copies, 0 bytes
 */
#define MEMO_IMPLEMENTATION
#include "memo.h"
#include <stdio.h>

/* Functions that are not replaced need the host device's context, so the table keeps it.  The new
 * functions have their state here. */
static struct {
    memo_device inner; /* the table as it was */
    int64_t n_copies[3], n_bytes[3];
} counted;

static memo_status counted_copy_rows(void* context, memo_stream stream, memo_copy_kind kind,
                                     void* to, int64_t to_stride_bytes, const void* from,
                                     int64_t from_stride_bytes, int64_t row_bytes, int64_t n_rows,
                                     memo_error* error) {
    memo_status status = counted.inner.copy_rows(context, stream, kind, to, to_stride_bytes, from,
                                                 from_stride_bytes, row_bytes, n_rows, error);
    if (status) return status; /* not enqueued, not counted */
    counted.n_copies[kind]++;
    counted.n_bytes[kind] += row_bytes * n_rows;
    return MEMO_STATUS_OK;
}

static memo_status counted_copy(void* context, memo_stream stream, memo_copy_kind kind, void* to,
                                const void* from, int64_t size_bytes, memo_error* error) {
    return counted_copy_rows(context, stream, kind, to, size_bytes, from, size_bytes, size_bytes, 1,
                             error);
}

/* Any code that takes a memo_device: copies 1 MiB to the device, every second row of 1 KiB back,
 * and these rows to the device again. */
static memo_status use(const memo_device* d, memo_error* error) {
    const int64_t row = 1024, n_rows = 1024;
    void *on_device, *on_host;
    memo_stream stream;
    if (memo_device_alloc(d, row * n_rows, &on_device, error) ||
        memo_host_alloc(d, row * n_rows, &on_host, error) ||
        memo_stream_create(d, "work", 0, &stream, error))
        return error->status;

    memset(on_host, 7, (size_t)(row * n_rows));
    if (memo_copy(d, stream, MEMO_COPY_TO_DEVICE, on_device, on_host, row * n_rows, error) ||
        memo_copy_rows(d, stream, MEMO_COPY_TO_HOST, on_host, row, on_device, 2 * row, row,
                       n_rows / 2, error) ||
        memo_copy_rows(d, stream, MEMO_COPY_TO_DEVICE, on_device, 2 * row, on_host, row, row,
                       n_rows / 2, error) ||
        memo_stream_synchronize(d, stream, error))
        return error->status;
    printf("the row that came back begins with %d\n", *(const char*)on_host);
    return MEMO_STATUS_OK;
}

int main(void) {
    static const char* const names[] = {"to host", "to device",
                                        "on device"}; /* by memo_copy_kind */
    memo_host_device_desc desc = {0};
    memo_device *host = NULL, device;
    memo_error error;
    memo_status status = memo_host_device_create(&desc, &host, &error);
    if (!status) {
        counted.inner = device = *host;
        device.name = "host, counted";
        device.copy = counted_copy;
        device.copy_rows = counted_copy_rows;
        status = use(&device, &error);
    }
    for (int kind = 0; kind < 3 && !status; kind++)
        printf("%s: %lld copies, %lld bytes\n", names[kind], (long long)counted.n_copies[kind],
               (long long)counted.n_bytes[kind]);

    if (status) fprintf(stderr, "04_custom_device: %s\n", error.message);
    memo_host_device_destroy(host); /* frees what is still allocated, streams too */
    return status ? 1 : 0;
}
