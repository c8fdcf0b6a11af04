#pragma once
#include "memo/device.h"
/* ---- >>poison -----------------------------------------------------------------------------------
 * Knows: bytes that nobody may read or write, and how the host reaches bytes of a device.  Knows
 * nothing of whose bytes they are. */

/* NaN in every number of f64, f32 and f16, and in every second one of bf16, whose others are
 * 2.7e37.  At least every second number is a signaling NaN or none: arithmetic gives it other
 * bytes, so that a tensor that is updated in place changes.  Depends on the address. */
MEMOI unsigned char memob_poison_at(const char* address) {
    static const unsigned char poison[8] = {0xa0, 0x7d, 0xa0, 0x7f, 0xa0, 0x7d, 0xf1, 0x7f};
    return poison[(uintptr_t)address % 8];
}

MEMOI void memob_poison(char* bytes, int64_t n_bytes) {
    for (; n_bytes > 0; n_bytes--, bytes++) *bytes = (char)memob_poison_at(bytes);
}

/* How many of the first bytes are poison. */
MEMOI int64_t memob_poisoned(const char* bytes, int64_t n_bytes) {
    int64_t i = 0;
    while (i < n_bytes && (unsigned char)bytes[i] == memob_poison_at(bytes + i)) i++;
    return i;
}

/* Poisons bytes of a device, and looks at them, part by part through pinned memory.  Each call
 * first waits for the streams that compute. */
typedef struct memob_probe {
    memo_device device;           /* all zero: the bytes are on the host */
    const memo_stream* computing; /* the caller's */
    int32_t n_computing;
    memo_stream stream;
    void* image;
} memob_probe;
enum { MEMOI_PROBE_BYTES = 1 << 20 };

/* device NULL: none.  memob_probe_destroy frees whatever was taken. */
MEMOI memo_status memob_probe_create(memob_probe* p, const memo_device* device, const char* what,
                                     const memo_stream* computing, int32_t n_computing,
                                     memo_error* error) {
    memo_status status;
    memset(p, 0, sizeof *p);
    if (!device) return MEMO_STATUS_OK;
    status = memob_device_take(&p->device, device, what, error);
    if (status) {
        memset(p, 0, sizeof *p);
        return status;
    }
    p->computing = computing;
    p->n_computing = n_computing;
    status = memo_stream_create(&p->device, "check", 0, &p->stream, error);
    return status ? status : memo_host_alloc(&p->device, MEMOI_PROBE_BYTES + 8, &p->image, error);
}

MEMOI void memob_probe_destroy(memob_probe* p) {
    if (p->image) memo_host_free(&p->device, p->image, NULL);
    if (p->stream) memo_stream_destroy(&p->device, p->stream, NULL);
    memset(p, 0, sizeof *p);
}

/* is_fill: poisons the bytes.  Otherwise *n_poisoned is how many of the first are poison. */
MEMOI memo_status memob_probe_sweep(memob_probe* p, char* bytes, int64_t n_bytes, int is_fill,
                                    int64_t* n_poisoned, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int64_t at = 0, n, found;
    for (int32_t i = 0; i < p->n_computing && !status; i++)
        status = memo_stream_synchronize(&p->device, p->computing[i], error);

    for (; at < n_bytes && !status; at += n) {
        char* image = p->image ? (char*)p->image + (uintptr_t)(bytes + at) % 8 : bytes + at;
        n = p->image ? memob_min(n_bytes - at, MEMOI_PROBE_BYTES) : n_bytes - at;
        if (is_fill) memob_poison(image, n);
        if (p->image)
            status =
                memo_copy(&p->device, p->stream, is_fill ? MEMO_COPY_TO_DEVICE : MEMO_COPY_TO_HOST,
                          is_fill ? bytes + at : image, is_fill ? image : bytes + at, n, error);
        if (p->image && !status) status = memo_stream_synchronize(&p->device, p->stream, error);
        if (status || is_fill) continue;
        found = memob_poisoned(image, n);
        *n_poisoned = at + found;
        if (found < n) return status;
    }
    return status;
}

