#pragma once
#include "memo/device.h"
/* ---- >>poison -----------------------------------------------------------------------------------
 * Knows: bytes that nobody may read or write, and how the host reaches bytes of a device.  Knows
 * nothing of whose bytes they are.
 *
 * 1. An image is as far from a multiple of 8 as its bytes, so that poison looks the same there.
 * 2. A part fits in the image, and a sweep ends with its last byte. */

/* NaN in every number of f64, f32 and f16, and in every second one of bf16, whose others are
 * 2.7e37.  At least every second number is a signaling NaN or none: arithmetic gives it other
 * bytes, so that a tensor that is updated in place changes.  It is repeated from each multiple of 8
 * on; `poison` has eight bytes from the address on. */
MEMOI void memoi_poison_word(const char* address, unsigned char poison[8]) {
    const uint64_t word = MEMOB_POISON;
    unsigned char bytes[8];
    memcpy(bytes, &word, sizeof bytes);
    for (int i = 0; i < 8; i++) poison[i] = bytes[((uintptr_t)address + (uintptr_t)i) % 8];
}

MEMOI void memob_poison(char* bytes, int64_t n_bytes) {
    unsigned char poison[8];
    int64_t i = 0;
    memoi_poison_word(bytes, poison);
    for (; i + 8 <= n_bytes; i += 8) memcpy(bytes + i, poison, 8);
    if (i < n_bytes) memcpy(bytes + i, poison, (size_t)(n_bytes - i));
}

/* How many of the first bytes are poison. */
MEMOI int64_t memoi_poisoned(const char* bytes, int64_t n_bytes) {
    unsigned char poison[8];
    int64_t i = 0;
    memoi_poison_word(bytes, poison);
    while (i + 8 <= n_bytes && !memcmp(bytes + i, poison, 8)) i += 8;
    while (i < n_bytes && (unsigned char)bytes[i] == poison[i % 8]) i++;
    return i;
}

/* A hash of bytes for comparisons in this process, a word at a time.  Turning the word spreads
 * differences of high bits, such as signs. */
MEMOI uint64_t memob_digest(const char* bytes, int64_t n_bytes) {
    uint64_t hash = 14695981039346656037u ^ (uint64_t)n_bytes, word;
    for (; n_bytes > 0; n_bytes -= 8, bytes += 8) {
        word = 0;
        memcpy(&word, bytes, (size_t)memob_min(n_bytes, 8));
        hash ^= word;
        hash = (hash << 29 | hash >> 35) * 0x9e3779b97f4a7c15u;
    }
    return hash ^ hash >> 32;
}

/* Are two numbers, f32 or f64, made of poison by arithmetic: a signaling NaN that became quiet, or
 * a quiet one elsewhere?  One could be chance in a tensor of integers. */
MEMOI int memoi_is_of_poison(const char* bytes, int64_t n_bytes) {
    const char* end = bytes + n_bytes;
    int n = 0;
    for (; end - bytes >= 4; bytes += 4) {
        uint32_t word;
        memcpy(&word, bytes, sizeof word);
        word &= 0x7fffffff; /* without its sign */
        n += word == 0x7fe07da0 || word == 0x7ff97da0 ||
             (word == 0x7ff17da0 && (uintptr_t)bytes % 8 == (MEMOB_IS_BIG_ENDIAN ? 4 : 0));
    }
    return n > 1;
}

MEMOI memo_row_content memob_row_content(const char* row, int64_t row_bytes) {
    memo_row_content found;
    found.digest = memob_digest(row, row_bytes);
    found.n_poisoned = memoi_poisoned(row, row_bytes);
    found.is_of_poison = memoi_is_of_poison(row, row_bytes);
    return found;
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

MEMOI memo_status memoi_probe_wait(memob_probe* p, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t i = 0; i < p->n_computing && !status; i++)
        status = memo_stream_synchronize(&p->device, p->computing[i], error);
    return status;
}

/* Where the host finds the first *n of n_bytes, with the same distance to a multiple of 8. */
MEMOI char* memoi_probe_part(const memob_probe* p, char* bytes, int64_t n_bytes, int64_t* n) {
    *n = p->image ? memob_min(n_bytes, MEMOI_PROBE_BYTES) : n_bytes;
    return p->image ? (char*)p->image + (uintptr_t)bytes % 8 : bytes;
}

/* Copies a part from the device, or to it, and waits. */
MEMOI memo_status memoi_probe_copy(memob_probe* p, char* bytes, int64_t n, int is_back,
                                   memo_error* error) {
    int64_t n_part;
    char* image = memoi_probe_part(p, bytes, n, &n_part);
    if (!p->image) return MEMO_STATUS_OK;
    MEMO_ASSERT(n_part == n);                                  /* 2 */
    MEMO_ASSERT((uintptr_t)image % 8 == (uintptr_t)bytes % 8); /* 1 */
    return memob_copy_now(&p->device, p->stream, bytes, image, n, is_back, error);
}

/* is_fill: poisons the bytes.  Otherwise *n_poisoned is how many of the first are poison. */
MEMOI memo_status memob_probe_sweep(memob_probe* p, char* bytes, int64_t n_bytes, int is_fill,
                                    int64_t* n_poisoned, memo_error* error) {
    memo_status status = n_bytes ? memoi_probe_wait(p, error) : MEMO_STATUS_OK;
    int64_t at = 0, n, found;
    for (; at < n_bytes && !status; at += n) {
        char* image = memoi_probe_part(p, bytes + at, n_bytes - at, &n);
        if (is_fill) memob_poison(image, n);
        status = memoi_probe_copy(p, bytes + at, n, is_fill, error);
        if (status || is_fill) continue;
        MEMO_ASSERT(n_poisoned && at + n <= n_bytes); /* 2 */
        found = memoi_poisoned(image, n);
        *n_poisoned = at + found;
        if (found < n) return status;
    }
    return status;
}

/* Hashes the bytes.  *is_of_poison: poison, or numbers made of poison by arithmetic, are among
 * them. */
MEMOI memo_status memob_probe_hash(memob_probe* p, char* bytes, int64_t n_bytes, uint64_t* hash,
                                   int* is_of_poison, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int64_t at = 0, n;
    *hash = 0;
    *is_of_poison = 0;
    if (n_bytes) status = memoi_probe_wait(p, error);
    for (; at < n_bytes && !status; at += n) {
        const char* image = memoi_probe_part(p, bytes + at, n_bytes - at, &n);
        status = memoi_probe_copy(p, bytes + at, n, 0, error);
        if (status) break;
        *hash = 31 * *hash + memob_digest(image, n);
        *is_of_poison |= memoi_poisoned(image, n) >= 8 || memoi_is_of_poison(image, n);
    }
    MEMO_ASSERT(status || at == n_bytes); /* 2 */
    return status;
}
