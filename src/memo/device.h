#pragma once
#include "memo/base.h"
/* ---- >>device -----------------------------------------------------------------------------------
 * Knows: the table of functions.  Knows nothing of what runs on it.
 *
 * 1. A table that is taken was long enough for all functions that every engine calls. */

/* Copies the caller's table.  Functions that a shorter, older table does not have become NULL.  It
 * refuses a table without the functions that every engine calls.  what names the table in messages,
 * such as "memo_swap_desc.device". */
MEMOI memo_status memob_device_take(memo_device* taken, const memo_device* device, const char* what,
                                    memo_error* error) {
    size_t known_bytes = sizeof *taken;
    const char* missing = NULL;
    memset(taken, 0, sizeof *taken);
    if (!device) return MEMOB_INVALID(error, "%s: NULL; pass a device", what);
    if (device->struct_bytes < (int64_t)offsetof(memo_device, annotate))
        return MEMOB_INVALID(error,
                             "%s.struct_bytes: too small (%lld); set it to sizeof(memo_device), at "
                             "least %lld, and fill the table",
                             what, (long long)device->struct_bytes,
                             (long long)offsetof(memo_device, annotate));

    if (device->struct_bytes < (int64_t)known_bytes) known_bytes = (size_t)device->struct_bytes;
    memcpy(taken, device, known_bytes);
    taken->struct_bytes = (int64_t)sizeof *taken;
    MEMO_ASSERT(known_bytes >= offsetof(memo_device, annotate)); /* 1 */

    /* The functions that every engine calls; the others may be NULL. */
#define MEMOI_DEVICE_MISSING(function)                                                             \
    if (!missing && !taken->function) missing = #function;
    MEMOB_DEVICE_NEEDS(MEMOI_DEVICE_MISSING)
    if (missing)
        return MEMOB_INVALID(error,
                             "%s.%s: NULL; set it, or start from a copy of another device's table",
                             what, missing);
    return MEMO_STATUS_OK;
}

/* Copies bytes of the device to the host, or back, and waits. */
MEMOI memo_status memob_copy_now(const memo_device* device, memo_stream stream, void* on_device,
                                 void* on_host, int64_t n_bytes, int is_back, memo_error* error) {
    const memo_copy_kind kind = is_back ? MEMO_COPY_TO_DEVICE : MEMO_COPY_TO_HOST;
    const memo_status status = memo_copy(device, stream, kind, is_back ? on_device : on_host,
                                         is_back ? on_host : on_device, n_bytes, error);
    return status ? status : memo_stream_synchronize(device, stream, error);
}

MEMOI memo_range memob_range_at(const void* address, int64_t size_bytes) {
    const uint64_t begin = (uint64_t)(uintptr_t)address;
    const memo_range range = {begin, begin + (uint64_t)(size_bytes > 0 ? size_bytes : 0)};
    return range;
}
