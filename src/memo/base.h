#pragma once
#include "memo/error.h"
/* ---- >>base -------------------------------------------------------------------------------------
 * Knows: numbers, arrays, a hash map, sorting, the clock, signals, how threads begin and fail.
 * Knows nothing of traces and plans.  memo_cuda.cuh needs this room even if the others are compiled
 * in another file.
 *
 * 1. An array without memory has no elements.
 * 2. A map is at most half full of keys, removed ones included, so that each search ends.
 * 3. A value of a map is 0 or above; -1 and -2 say that a slot has none.
 * 4. What memob_keyed_sort sorts has keys from 0 on, and is in the order of index.
 * 5. A failure that is kept has a status other than OK. */

/* Internal functions are static, and cause no warning if a build does not use them.  Programs that
 * test them share those of one object (Makefile). */
#ifndef MEMOI
#define MEMOI static MEMO_UNUSED
#endif

/* For functions that many others call, if the time of a call does not matter. */
#define MEMOB_NOINLINE __attribute__((noinline))

/* Eight bytes that nobody may read or write, see >>poison. */
#define MEMOB_POISON 0x7ff17da07fa07da0u

/* No sum of sizes exceeds this, so that the sum of two never overflows. */
#define MEMOB_BYTES_MAX ((int64_t)1 << 62)

/* Bytes.  Every address that device_alloc returns is a multiple of it. */
#define MEMOB_DEVICE_ALIGNMENT 512

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define MEMOB_IS_BIG_ENDIAN 1
#else
#define MEMOB_IS_BIG_ENDIAN 0
#endif

/* Streams of a trace are 0 to MEMOB_STREAMS - 1. */
#define MEMOB_STREAMS 64

/* The functions of a device: that every engine calls, that every device of memo has, and others. */
#define MEMOB_DEVICE_MEMORY(X)  X(device_alloc) X(device_free) X(host_alloc) X(host_free)
#define MEMOB_DEVICE_STREAMS(X) X(stream_create) X(stream_destroy) X(stream_synchronize) X(copy)
#define MEMOB_DEVICE_EVENTS(X)                                                                     \
    X(event_create)                                                                                \
    X(event_destroy) X(event_record) X(event_wait) X(event_synchronize) X(event_elapsed)
#define MEMOB_DEVICE_NEEDS(X) MEMOB_DEVICE_MEMORY(X) MEMOB_DEVICE_STREAMS(X) MEMOB_DEVICE_EVENTS(X)
#define MEMOB_DEVICE_FUNCTIONS(X)                                                                  \
    MEMOB_DEVICE_NEEDS(X) X(memory_info) X(event_query) X(copy_rows) X(fill) X(status)
#define MEMOB_DEVICE_OPTIONS(X) X(annotate) X(row_kernel) X(launch_host) X(event_create_untimed)

/* Sets error like memo_error_set, and is the status. */
#define MEMOB_INVALID(error, ...) memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT, __VA_ARGS__)

/* Sets error to OUT_OF_HOST_MEMORY, "no host memory for WHAT", and returns that status. */
MEMOI MEMOB_NOINLINE memo_status memob_no_memory(memo_error* error, const char* what) {
    return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no host memory for %s", what);
}

/* Appends what to do, or another cause, unless the message has it.  These words stay whole: a
 * message that would be too long loses its own end. */
MEMOI void memob_error_add(memo_error* error, const char* words) {
    const size_t most = sizeof error->message - 1, n_words = strlen(words) + 2;
    size_t n = strlen(error->message);
    if (strstr(error->message, words)) return;
    if (n + n_words > most && n_words + 3 < most) {
        n = most - n_words;
        memcpy(error->message + n - 3, "...", 3);
    }
    snprintf(error->message + n, sizeof error->message - n, "; %s", words);
}

#define MEMOB_DOUBLE_MAX 1.7976931348623157e308

/* Never true for NaN and infinity, by their bits: -ffast-math lets a compiler assume that no value
 * is NaN. */
MEMOI int memob_is_in(double value, double least, double most) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits >> 52 & 0x7ff) != 0x7ff && value >= least && value <= most;
}

MEMOI int memob_is_within(int64_t value, int64_t least, int64_t most) {
    return value >= least && value <= most;
}

/* A rule for what a caller gives, and what is wrong if the rule is broken. */
typedef struct memob_rule {
    int is_broken;
    const char* fault;
} memob_rule;

MEMOI MEMOB_NOINLINE const char* memoi_first_fault(const memob_rule* rules, size_t n) {
    size_t k = 0;
    while (k < n && !rules[k].is_broken) k++;
    return k < n ? rules[k].fault : NULL;
}
/* The fault of the first broken rule of an array; NULL: none is broken. */
#define MEMOB_FIRST_FAULT(rules) memoi_first_fault(rules, sizeof rules / sizeof *rules)

/* Check the field of a desc.  Errors: INVALID_ARGUMENT, "DESC.FIELD: out of range (VALUE); LEAST to
 * MOST are valid". */
MEMOI MEMOB_NOINLINE memo_status memob_check_integer(const char* desc, const char* field,
                                                     int64_t value, int64_t least, int64_t most,
                                                     memo_error* error) {
    if (memob_is_within(value, least, most)) return MEMO_STATUS_OK;
    if (most == INT32_MAX || most == INT64_MAX)
        return MEMOB_INVALID(error, "%s.%s: out of range (%lld); %lld or more is valid", desc,
                             field, (long long)value, (long long)least);
    return MEMOB_INVALID(error, "%s.%s: out of range (%lld); %lld to %lld are valid", desc, field,
                         (long long)value, (long long)least, (long long)most);
}

/* Fields of a desc with the numbers that they may have, checked in order. */
typedef struct memob_bounds {
    const char* field;
    int64_t value, least, most;
} memob_bounds;

MEMOI MEMOB_NOINLINE memo_status memoi_check_fields(const char* desc, const memob_bounds* fields,
                                                    size_t n, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    for (size_t k = 0; k < n && !status; k++)
        status = memob_check_integer(desc, fields[k].field, fields[k].value, fields[k].least,
                                     fields[k].most, error);
    return status;
}
#define MEMOB_CHECK_FIELDS(desc, fields, error)                                                    \
    memoi_check_fields(desc, fields, sizeof fields / sizeof *fields, error)

MEMOI MEMOB_NOINLINE memo_status memob_check_real(const char* desc, const char* field, double value,
                                                  double least, double most, memo_error* error) {
    if (memob_is_in(value, least, most)) return MEMO_STATUS_OK;
    return MEMOB_INVALID(error, "%s.%s: out of range (%g); %g to %g are valid", desc, field, value,
                         least, most);
}

/* Errors: INVALID_ARGUMENT, "CALL: ARGUMENT: NULL; pass one". */
MEMOI MEMOB_NOINLINE memo_status memob_check_given(const char* call, const char* argument,
                                                   const void* pointer, memo_error* error) {
    if (pointer) return MEMO_STATUS_OK;
    return MEMOB_INVALID(error, "%s: %s: NULL; pass one", call, argument);
}

/* Ends the public function with this error if the pointer is NULL. */
#define MEMOB_REFUSE_NULL(error, argument, pointer)                                                \
    do {                                                                                           \
        if (!(pointer)) return memob_check_given(__func__, argument, NULL, error);                 \
    } while (0)

/* A rate is 0 (no limit), or 1 to 1e18 bytes/s; beyond, times of copies overflow. */
MEMOI MEMOB_NOINLINE memo_status memob_check_rate(const char* desc, const char* field,
                                                  double bytes_per_s, memo_error* error) {
    if (memob_is_in(bytes_per_s, 1, 1e18) || memob_is_in(bytes_per_s, 0, 0)) return MEMO_STATUS_OK;
    return MEMOB_INVALID(error, "%s.%s: out of range (%g); 0 (no limit) and 1 to 1e18 are valid",
                         desc, field, bytes_per_s);
}

/* Checks the arguments of a device's copy_rows. */
MEMOI memo_status memob_check_copy(memo_copy_kind kind, const void* to, int64_t to_stride_bytes,
                                   const void* from, int64_t from_stride_bytes, int64_t row_bytes,
                                   int64_t n_rows, memo_error* error) {
    if (memob_check_integer("copy", "kind", (int)kind, 0, MEMO_N_COPY_KINDS - 1, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (row_bytes < 0 || n_rows < 0 || (n_rows && row_bytes > MEMOB_BYTES_MAX / n_rows))
        return MEMOB_INVALID(error,
                             "copy: %lld rows of %lld bytes are invalid; 0 to 2^62 bytes are valid",
                             (long long)n_rows, (long long)row_bytes);
    if (n_rows > 1 && (to_stride_bytes < row_bytes || from_stride_bytes < row_bytes ||
                       to_stride_bytes > MEMOB_BYTES_MAX / n_rows ||
                       from_stride_bytes > MEMOB_BYTES_MAX / n_rows))
        return MEMOB_INVALID(
            error,
            "copy: strides %lld and %lld are too short or too long for %lld rows of %lld bytes",
            (long long)to_stride_bytes, (long long)from_stride_bytes, (long long)n_rows,
            (long long)row_bytes);
    if ((!to || !from) && row_bytes > 0 && n_rows > 0)
        return MEMOB_INVALID(error, "copy.%s: NULL; pass an address", to ? "from" : "to");
    return MEMO_STATUS_OK;
}

/* -1, 0 or 1: a is below, equal to or above b. */
MEMOI int memob_compare(int64_t a, int64_t b) { return (a > b) - (a < b); }

/* For qsort: the smallest first. */
MEMOI int memob_compare_doubles(const void* left, const void* right) {
    double a = *(const double*)left, b = *(const double*)right;
    return (a > b) - (a < b);
}
MEMOI int64_t memob_max(int64_t a, int64_t b) { return a > b ? a : b; }
MEMOI int64_t memob_min(int64_t a, int64_t b) { return a < b ? a : b; }

/* The next multiple of alignment, which may be any positive number. */
MEMOI int64_t memob_align_up(int64_t value, int64_t alignment) {
    int64_t remainder = value % alignment;
    MEMO_ASSERT(value >= 0 && alignment > 0);
    return remainder ? value + (alignment - remainder) : value;
}

/* --- arrays --- */

/* Zeroed array of count elements, or NULL.  A count of 0 allocates one element, so NULL always
 * means failure.  The caller frees it with MEMO_FREE. */
MEMOI MEMOB_NOINLINE void* memob_calloc(int64_t count, size_t element_bytes) {
    void* result;
    if (!memob_is_within(count, 0, MEMOB_BYTES_MAX / (int64_t)element_bytes)) return NULL;
    if (count == 0) count = 1;
    result = MEMO_MALLOC((size_t)count * element_bytes);
    if (result) memset(result, 0, (size_t)count * element_bytes);
    return result;
}

/* Grows an array to at least `needed` elements by doubling.  `array` is the address of the pointer
 * to it; capacity counts elements.  New elements are zero.  On failure the array is unchanged. */
MEMOI int memob_reserve(void* array, int64_t* capacity, int64_t needed, size_t element_bytes) {
    int64_t larger;
    void *old, *moved;
    if (needed <= *capacity) return 1;
    larger = *capacity < 16 ? 16 : *capacity;
    while (larger < needed) larger *= 2;
    moved = memob_calloc(larger, element_bytes);
    if (!moved) return 0;
    memcpy(&old, array, sizeof old); /* a pointer of any type */
    MEMO_ASSERT(old || !*capacity);  /* 1 */
    if (old) memcpy(moved, old, (size_t)*capacity * element_bytes);
    MEMO_FREE(old);
    memcpy(array, &moved, sizeof moved);
    *capacity = larger;
    return 1;
}

/* Room for n_more elements behind the first n of an array that only this function allocates: its
 * capacity is the power of two from n on, at least 16.  New elements are zero.  On failure the
 * array is unchanged. */
MEMOI int memob_grow(void* array, int64_t n, int64_t n_more, size_t element_bytes) {
    int64_t capacity = 16;
    void* first;
    memcpy(&first, array, sizeof first); /* a pointer of any type */
    if (!first) return memob_reserve(array, &n, n + n_more, element_bytes);
    if (n > capacity) capacity = (int64_t)1 << (64 - __builtin_clzll((uint64_t)n - 1));
    return n_more <= capacity - n || memob_reserve(array, &capacity, n + n_more, element_bytes);
}

/* Arrays that are freed together; all zero is none. */
typedef struct memob_arrays {
    void* latest;   /* each array begins after the address of the one before it */
    int32_t failed; /* there was no memory for one of them */
    int32_t keeps;  /* memoi_arrays_rewind was called: arrays lie in the block if there is room */
    char* block;
    int64_t block_bytes, used_bytes; /* used_bytes: as if it had room for all */
} memob_arrays;

#define MEMOI_ARRAYS_HEAD 16 /* bytes before an array, which stays aligned for every type */

/* Adds an array like memob_calloc, but its elements may be anything.  Check `failed` once, after
 * the last one.  A block ends with its array, so that a sanitizer sees what reads behind it. */
MEMOI MEMOB_NOINLINE void* memoi_arrays_take(memob_arrays* arrays, int64_t count,
                                             size_t element_bytes) {
    const int64_t n_most = (MEMOB_BYTES_MAX - MEMOI_ARRAYS_HEAD) / (int64_t)element_bytes;
    char* block;
    if (arrays->keeps &&
        memob_is_within(count, 0, MEMOB_BYTES_MAX / (int64_t)element_bytes / 2 - 1)) {
        const int64_t begin = arrays->used_bytes, n_bytes = count * (int64_t)element_bytes;
        arrays->used_bytes += memob_align_up(n_bytes, MEMOI_ARRAYS_HEAD);
        if (arrays->block && arrays->used_bytes <= arrays->block_bytes)
            return arrays->block + begin;
    }
    block = memob_is_within(count, 0, n_most)
                ? (char*)memob_calloc(MEMOI_ARRAYS_HEAD + count * (int64_t)element_bytes, 1)
                : NULL;
    if (!block) {
        arrays->failed = 1;
        return NULL;
    }
    memcpy(block, &arrays->latest, sizeof arrays->latest);
    arrays->latest = block;
    return block + MEMOI_ARRAYS_HEAD;
}

MEMOI MEMOB_NOINLINE void* memob_arrays_add(memob_arrays* arrays, int64_t count,
                                            size_t element_bytes) {
    void* array = memoi_arrays_take(arrays, count, element_bytes);
    if (array && arrays->keeps) memset(array, 0, (size_t)count * element_bytes);
    return array;
}

/* The same, of a type. */
#define MEMOB_ARRAY(arrays, type, count) ((type*)memob_arrays_add(arrays, count, sizeof(type)))
#define MEMOB_ARRAY_OF_ANY(arrays, type, count)                                                    \
    ((type*)memoi_arrays_take(arrays, count, sizeof(type)))

MEMOI MEMOB_NOINLINE void memob_arrays_free(memob_arrays* arrays) {
    while (arrays->latest) {
        void* block = arrays->latest;
        memcpy(&arrays->latest, block, sizeof arrays->latest);
        MEMO_FREE(block);
    }
    MEMO_FREE(arrays->block);
    memset(arrays, 0, sizeof *arrays);
}

/* Drops all arrays like memob_arrays_free, but keeps memory for the next ones: arrays of the same
 * sizes then allocate nothing. */
MEMOI void memoi_arrays_rewind(memob_arrays* arrays) {
    memob_arrays kept = *arrays;
    arrays->block = NULL;
    memob_arrays_free(arrays);
    if (kept.used_bytes > kept.block_bytes) {
        MEMO_FREE(kept.block);
        kept.block = (char*)memob_calloc(2 * kept.used_bytes, 1);
        kept.block_bytes = kept.block ? 2 * kept.used_bytes : 0;
    }
    arrays->keeps = 1;
    arrays->block = kept.block;
    arrays->block_bytes = kept.block_bytes;
}

/* The next random number of a state (splitmix64), and one in [0, 1). */
MEMOI uint64_t memob_random(uint64_t* state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
MEMOI double memob_random_real(uint64_t* state) {
    return (double)(memob_random(state) >> 11) * (1.0 / 9007199254740992.0);
}

/* FNV-1a. */
MEMOI uint64_t memob_hash(const char* bytes, int64_t n_bytes) {
    uint64_t hash = 14695981039346656037u;
    for (int64_t i = 0; i < n_bytes; i++) hash = (hash ^ (unsigned char)bytes[i]) * 1099511628211u;
    return hash;
}

/* --- hash map, open addressing --- */

/* Hash map from int64 to int64; all zero is an empty map.  Values are 0 or above. */
typedef struct memob_map {
    int64_t* keys;
    int64_t* values; /* -1: never used, -2: removed */
    int64_t capacity, n_filled;
} memob_map;

MEMOI MEMOB_NOINLINE void memob_map_free(memob_map* map) {
    MEMO_FREE(map->keys);
    MEMO_FREE(map->values);
    memset(map, 0, sizeof *map);
}

MEMOI int64_t memoi_map_slot(const memob_map* map, int64_t key) {
    uint64_t hash = (uint64_t)key * 0x9e3779b97f4a7c15u;
    int64_t slot = (int64_t)((hash ^ (hash >> 32)) & (uint64_t)(map->capacity - 1)), removed = -1;
    MEMO_ASSERT(map->n_filled * 2 <= map->capacity); /* 2 */
    while (map->values[slot] != -1 && (map->values[slot] == -2 || map->keys[slot] != key)) {
        if (map->values[slot] == -2 && removed < 0) removed = slot;
        slot = (slot + 1) & (map->capacity - 1);
    }
    return map->values[slot] == -1 && removed >= 0 ? removed : slot;
}

/* The value of key, or -1. */
MEMOI int64_t memob_map_get(const memob_map* map, int64_t key) {
    int64_t value = map->capacity ? map->values[memoi_map_slot(map, key)] : -1;
    return value < 0 ? -1 : value;
}

MEMOI void memob_map_remove(memob_map* map, int64_t key) {
    int64_t slot;
    if (!map->capacity) return;
    slot = memoi_map_slot(map, key);
    if (map->values[slot] >= 0) map->values[slot] = -2;
}

/* Adds a key or replaces its value.  Without memory it returns 0 and the map is unchanged. */
MEMOI int memob_map_put(memob_map* map, int64_t key, int64_t value) {
    int64_t slot;
    MEMO_ASSERT(value >= 0); /* 3 */

    /* At most half full, or probing gets long.  Removed entries are dropped on the way. */
    if (map->n_filled * 2 >= map->capacity) {
        memob_map grown = MEMO_ZERO(memob_map);
        int64_t n_kept = 0;
        for (int64_t i = 0; i < map->capacity; i++) n_kept += map->values[i] >= 0;
        grown.capacity = 32;
        while (grown.capacity < 4 * (n_kept + 1)) grown.capacity *= 2;
        grown.keys = (int64_t*)memob_calloc(grown.capacity, sizeof(int64_t));
        grown.values = (int64_t*)memob_calloc(grown.capacity, sizeof(int64_t));
        if (!grown.keys || !grown.values) {
            memob_map_free(&grown);
            return 0;
        }
        for (int64_t i = 0; i < grown.capacity; i++) grown.values[i] = -1;
        for (int64_t i = 0; i < map->capacity; i++) /* the new table has room */
            if (map->values[i] >= 0) (void)memob_map_put(&grown, map->keys[i], map->values[i]);
        memob_map_free(map);
        *map = grown;
    }

    slot = memoi_map_slot(map, key);
    if (map->values[slot] == -1) map->n_filled++;
    map->keys[slot] = key;
    map->values[slot] = value;
    return 1;
}

/* --- sorting by key --- */

/* A key and the index of its owner. */
typedef struct memob_keyed {
    int64_t key, index;
} memob_keyed;

MEMOI memob_keyed memob_keyed_of(int64_t key, int64_t index) {
    const memob_keyed keyed = {key, index};
    return keyed;
}

/* For qsort: by key, then by index. */
MEMOI int memob_keyed_compare(const void* left, const void* right) {
    const memob_keyed* a = (const memob_keyed*)left;
    const memob_keyed* b = (const memob_keyed*)right;
    return a->key != b->key ? memob_compare(a->key, b->key) : memob_compare(a->index, b->index);
}

/* Sorts keys from least to largest, digit by digit, equal keys as they came; a digit has no more
 * values than n keys.  Scratch: sorted, and place, of n + 2. */
MEMOI void memob_digits_sort(memob_keyed* list, int64_t n, int64_t least, int64_t largest,
                             memob_keyed* sorted, int32_t* place) {
    int bits = 1;
    int64_t mask, sum;
    while (n >> (bits + 2) > 0) bits++;
    mask = ((int64_t)1 << bits) - 1;
    for (int shift = 0; shift < 63 && (largest - least) >> shift > 0; shift += bits) {
        memset(place, 0, (size_t)(mask + 1) * sizeof(int32_t));
        for (int64_t k = 0; k < n; k++) place[(list[k].key - least) >> shift & mask]++;
        for (int64_t k = sum = 0; k <= mask; k++) {
            sum += place[k];
            place[k] = (int32_t)(sum - place[k]);
        }
        for (int64_t k = 0; k < n; k++)
            sorted[place[(list[k].key - least) >> shift & mask]++] = list[k];
        memcpy(list, sorted, (size_t)n * sizeof *list);
    }
}

/* Sorts a list that is in the order of index; linear. */
MEMOI void memob_keyed_sort(memob_keyed* list, int64_t n) {
    int64_t largest = 0;
    memob_keyed* sorted;
    int32_t* place;
    int is_sorted = 1;

    for (int64_t i = 0; i < n; i++) {
        MEMO_ASSERT(list[i].key >= 0 && (i == 0 || list[i - 1].index < list[i].index)); /* 4 */
        largest = memob_max(largest, list[i].key);
        if (i > 0 && list[i - 1].key > list[i].key) is_sorted = 0;
    }
    if (is_sorted) return;

    sorted = (memob_keyed*)memob_calloc(n, sizeof(memob_keyed));
    place = (int32_t*)memob_calloc(n + 2, sizeof(int32_t));
    if (sorted && place)
        memob_digits_sort(list, n, 0, largest, sorted, place);
    else /* without memory, by comparing */
        qsort(list, (size_t)n, sizeof *list, memob_keyed_compare);
    MEMO_FREE(sorted);
    MEMO_FREE(place);
}

/* --- clock --- */

/* The monotonic clock, in nanoseconds and in seconds. */
MEMOI MEMOB_NOINLINE int64_t memob_now_ns(void) {
#if defined(_WIN32)
    LARGE_INTEGER ticks, per_s;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&per_s);
    return ticks.QuadPart / per_s.QuadPart * 1000000000 +
           ticks.QuadPart % per_s.QuadPart * 1000000000 / per_s.QuadPart;
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + (int64_t)now.tv_nsec;
#endif
}

MEMOI double memob_now_s(void) { return 1e-9 * (double)memob_now_ns(); }

#if !defined(_WIN32)
/* time_ns, 0 or above, as a timespec. */
MEMOI struct timespec memoi_timespec(int64_t time_ns) {
    struct timespec time;
    MEMO_ASSERT(time_ns >= 0);
    time.tv_sec = (time_t)(time_ns / 1000000000);
    time.tv_nsec = (long)(time_ns % 1000000000);
    return time;
}
#endif

/* Where a thread may lose its turn.  A test defines the macro (turns.h) and runs one thread at a
 * time, in an order drawn from a seed; MEMOB_TURN(waits()) is then 1, and nobody sleeps. */
#ifndef MEMOB_TURN
#define MEMOB_TURN(event) 0
#endif

/* Sleeps until the monotonic clock shows time_ns; signals do not shorten it. */
MEMOI void memob_sleep_until(int64_t time_ns) {
    if (MEMOB_TURN(sleeps(time_ns))) return;
    while (memob_now_ns() < time_ns) {
#if defined(_WIN32)
        const int64_t left_ns = memob_max(time_ns - memob_now_ns(), 0);
        Sleep((DWORD)(memob_min(left_ns, 1000000000) / 1000000 + 1));
#elif defined(__APPLE__) /* no clock_nanosleep */
        struct timespec left = memoi_timespec(memob_max(time_ns - memob_now_ns(), 0));
        nanosleep(&left, NULL);
#else
        struct timespec time = memoi_timespec(time_ns);
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
#endif
    }
}

/* Writes "12.3 MiB" into a buffer of 32 bytes or more and returns it. */
MEMOI MEMOB_NOINLINE const char* memob_bytes_text(char* buffer, double size_bytes) {
    static const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int unit = 0;
    while (size_bytes >= 1024 && unit < 5) {
        size_bytes /= 1024;
        unit++;
    }
    snprintf(buffer, 32, unit && size_bytes < 100 ? "%.1f %s" : "%.0f %s", size_bytes, units[unit]);
    return buffer;
}

/* --- signals and threads --- */

#if !defined(_WIN32)
/* POSIX leaves sigprocmask unspecified in programs with threads.  pthread_sigmask needs -lpthread
 * with old C libraries. */
#if !defined(MEMO_NO_HOST_DEVICE) || defined(MEMO_CUDA_IMPLEMENTATION)
#define MEMOI_SIGNALS_MASK pthread_sigmask
#else
#define MEMOI_SIGNALS_MASK sigprocmask
#endif

/* Blocks the signals of the calling thread until memoi_signals_restore, but not the signals that a
 * fault of a thread itself raises: POSIX leaves a blocked one undefined, and handlers of the
 * program, such as a sanitizer's, report it. */
MEMOI void memoi_signals_block(sigset_t* before) {
    static const int faults[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    sigset_t set;
    sigfillset(&set);
    for (size_t k = 0; k < sizeof faults / sizeof *faults; k++) sigdelset(&set, faults[k]);
    MEMOI_SIGNALS_MASK(SIG_BLOCK, &set, before);
}
MEMOI void memoi_signals_restore(const sigset_t* before) {
    MEMOI_SIGNALS_MASK(SIG_SETMASK, before, NULL);
}
#endif

#if !defined(MEMO_NO_HOST_DEVICE) || defined(MEMO_CUDA_IMPLEMENTATION)
/* Starts a thread that takes no signals of the program; 0 on success, else a number for strerror.
 * Every thread of memo begins here.  stack_bytes 0: 8 MiB, because the default of musl, 128 KiB,
 * and that of `ulimit -s` may be too small for a user's function. */
MEMOI int memob_thread_create(pthread_t* thread, int64_t stack_bytes, void* (*function)(void*),
                              void* argument) {
    const int64_t unit_bytes = 1 << 16; /* at least PTHREAD_STACK_MIN, and whole pages */
    pthread_attr_t attributes;
    sigset_t before;
    int code = pthread_attr_init(&attributes);
    if (code) return code;
    stack_bytes = memob_align_up(stack_bytes ? stack_bytes : 8 << 20, unit_bytes);
    code = pthread_attr_setstacksize(&attributes, (size_t)stack_bytes);
    memoi_signals_block(&before); /* a thread begins with the mask of its creator */
    if (!code) code = pthread_create(thread, &attributes, function, argument);
    memoi_signals_restore(&before);
    pthread_attr_destroy(&attributes);
    return code;
}
#endif

/* Tries before a waiting thread sleeps, with memob_spin_pause between them. */
#define MEMOB_SPINS 64

MEMOI void memob_spin_pause(void) {
    if (MEMOB_TURN(waits())) return;
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* The first failure of several threads; all zero is none.  memob_failure_keep keeps the one that
 * comes first; a failure can be read when it returns, also by a thread that came later. */
typedef struct memob_failure {
    int32_t is_claimed, is_kept;
    memo_error error; /* valid if memob_failure_is_kept */
} memob_failure;

MEMOI int memob_failure_is_kept(const memob_failure* failure) {
    return __atomic_load_n(&failure->is_kept, __ATOMIC_SEQ_CST);
}

/* The failure that is kept; OK: none. */
MEMOI MEMOB_NOINLINE memo_status memob_failure_status(const memob_failure* failure,
                                                      memo_error* error) {
    if (!memob_failure_is_kept(failure)) return MEMO_STATUS_OK;
    return memo_error_set(error, failure->error.status, "%s", failure->error.message);
}

MEMO_PRINTF(3, 4)
MEMOI void memob_failure_keep(memob_failure* failure, memo_status status, const char* format, ...) {
    MEMO_ASSERT(status != MEMO_STATUS_OK); /* 5 */
    /* Claimed, written, then published. */
    if (!__atomic_exchange_n(&failure->is_claimed, 1, __ATOMIC_RELAXED)) {
        va_list arguments;
        failure->error.status = status;
        va_start(arguments, format);
        vsnprintf(failure->error.message, sizeof failure->error.message, format, arguments);
        va_end(arguments);
        __atomic_store_n(&failure->is_kept, 1, __ATOMIC_SEQ_CST);
    }
    while (!memob_failure_is_kept(failure)) memob_spin_pause();
}
