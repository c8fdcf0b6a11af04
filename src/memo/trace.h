#pragma once
#include "memo/records.h"
/* ---- >>trace ------------------------------------------------------------------------------------
 * Knows: requests, marks and ids, and the words of a request.  Knows nothing of offsets and
 * devices.
 *
 * 1. A request's origin is a malloc at or before it, of the same id; other requests have none.
 * 2. The live ids are those whose malloc has no free yet; n_live of the n_buffers.
 * 3. An event that is waited for was recorded before.
 * 4. A mark's text begins behind the 0 byte of the mark before. */

/* Words of files and pictures. */
static const char* const memob_class_names[] MEMO_UNUSED = {"transient", "skeletal", "persistent"};
MEMOB_TABLE_OF(MEMO_N_CLASSES, memob_class_names);

/* memo_trace.reserved points to it. */
typedef struct memoi_trace_book {
    int64_t* origin;  /* of each request: index of the malloc that it refers to; -1: none */
    memob_map live;   /* id -> index of its malloc */
    memob_map events; /* event -> index of its first record */
} memoi_trace_book;

MEMOI memoi_trace_book* memoi_trace_book_of(const memo_trace* trace) {
    return (memoi_trace_book*)trace->reserved;
}

/* Index of the malloc that request i refers to; a malloc refers to itself.  -1: none. */
MEMOI int64_t memob_request_origin(const memo_trace* trace, int64_t i) {
    MEMO_ASSERT(i >= 0 && i < trace->n_requests);
    return memoi_trace_book_of(trace)->origin[i];
}

memo_status memo_trace_create(memo_trace** trace, memo_error* error) {
    memo_trace* made;
    MEMOB_REFUSE_NULL(error, "trace", trace);
    *trace = NULL;
    made = (memo_trace*)memob_calloc(1, sizeof(memo_trace));
    if (made) made->reserved = memob_calloc(1, sizeof(memoi_trace_book));
    if (!made || !made->reserved) {
        MEMO_FREE(made);
        return memob_no_memory(error, "a trace");
    }
    *trace = made;
    return MEMO_STATUS_OK;
}

void memo_trace_destroy(memo_trace* trace) {
    if (!trace) return;
    MEMO_FREE(memoi_trace_book_of(trace)->origin);
    memob_map_free(&memoi_trace_book_of(trace)->live);
    memob_map_free(&memoi_trace_book_of(trace)->events);
    MEMO_FREE(trace->reserved);
    MEMO_FREE(trace->requests);
    MEMO_FREE(trace->text);
    MEMO_FREE(trace);
}

/* --- appending --- */

/* By kind of request.  MARK is parsed apart. */
static const memob_value memoi_trace_buffer_values[] = {
    MEMOB_NUMBER("id", memo_request, id), MEMOB_NUMBER("size", memo_request, size_bytes),
    MEMOB_WORD("class", memo_request, memory_class, memob_class_names),
    MEMOB_VALUE("stream", MEMOB_VALUE_INT32, memo_request, stream, 0, MEMOB_STREAMS - 1)};
static const memob_value memoi_trace_use_values[] = {
    MEMOB_NUMBER("id", memo_request, id),
    MEMOB_VALUE("stream", MEMOB_VALUE_INT32, memo_request, stream, 0, MEMOB_STREAMS - 1)};
static const memob_value memoi_trace_event_values[] = {
    MEMOB_NUMBER("event", memo_request, id),
    MEMOB_VALUE("stream", MEMOB_VALUE_INT32, memo_request, stream, 0, MEMOB_STREAMS - 1)};
static const memob_record memoi_trace_records[] = {
    {"malloc", memoi_trace_buffer_values, 4, 2}, {"free", memoi_trace_buffer_values, 2, 0},
    {"use", memoi_trace_use_values, 2, 0},       {"record", memoi_trace_event_values, 2, 0},
    {"wait", memoi_trace_event_values, 2, 0},    {"mark", NULL, 0, 0}};
MEMOB_TABLE_OF(MEMO_N_REQUEST_KINDS, memoi_trace_records);

/* Finds the malloc of a live id; the error states whether the id was freed or never requested. */
MEMOI memo_status memoi_trace_find(const memo_trace* trace, int64_t id, const char* what,
                                   int64_t* origin, memo_error* error) {
    *origin = memob_map_get(&memoi_trace_book_of(trace)->live, id);
    MEMO_ASSERT(*origin < trace->n_requests);
    MEMO_ASSERT(*origin < 0 || trace->requests[*origin].kind == MEMO_REQUEST_MALLOC); /* 1 */
    MEMO_ASSERT(*origin < 0 || trace->requests[*origin].id == id);                    /* 1 */
    if (*origin >= 0) return MEMO_STATUS_OK;
    for (int64_t i = 0; i < trace->n_requests; i++) {
        if (trace->requests[i].kind == MEMO_REQUEST_MALLOC && trace->requests[i].id == id)
            return MEMOB_INVALID(error,
                                 "%s of id %lld: it was freed before; request it again first", what,
                                 (long long)id);
    }
    return MEMOB_INVALID(error, "%s of id %lld: it was never requested; request it first", what,
                         (long long)id);
}

/* *origin: of a free or a use, the malloc. */
MEMOI memo_status memoi_trace_check(const memo_trace* trace, const memo_request* request,
                                    int64_t* origin, memo_error* error) {
    const memo_request_kind kind = request->kind;
    const int is_malloc = kind == MEMO_REQUEST_MALLOC;
    const memoi_trace_book* book = memoi_trace_book_of(trace);
    const int64_t id = request->id;

    /* Numbers in their ranges. */
    memo_status status =
        memob_check_integer("trace", "stream", request->stream, 0, MEMOB_STREAMS - 1, error);
    if (!status && is_malloc)
        status = memob_check_integer("trace", "size_bytes", request->size_bytes, 0, MEMOB_BYTES_MAX,
                                     error);
    if (!status)
        status = memob_check_integer("trace", "memory_class", (int64_t)request->memory_class, 0,
                                     MEMO_CLASS_PERSISTENT, error);
    if (status) return status;

    /* What a request refers to exists. */
    if (is_malloc && memob_map_get(&book->live, id) >= 0)
        return MEMOB_INVALID(error, "id %lld is already live; free it first or use another id",
                             (long long)id);
    if (kind == MEMO_REQUEST_FREE || kind == MEMO_REQUEST_USE)
        return memoi_trace_find(trace, id, memoi_trace_records[kind].word, origin, error);
    if (kind == MEMO_REQUEST_WAIT && memob_map_get(&book->events, id) < 0)
        return MEMOB_INVALID(error, "wait for event %lld: it was never recorded; record it first",
                             (long long)id);
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_trace_add(memo_trace* trace, memo_request_kind kind,
                                  memo_class memory_class, int32_t stream, int64_t id,
                                  int64_t size_bytes, memo_error* error) {
    memo_request request = {kind, memory_class, stream, id, size_bytes};
    const int is_malloc = kind == MEMO_REQUEST_MALLOC, is_free = kind == MEMO_REQUEST_FREE;
    memoi_trace_book* book = memoi_trace_book_of(trace);
    const int64_t at = trace->n_requests;
    int64_t origin = -1;
    int fits;
    memo_status status = memoi_trace_check(trace, &request, &origin, error);
    if (status) return status;
    MEMO_ASSERT(kind != MEMO_REQUEST_WAIT || /* 3 */
                trace->requests[memob_map_get(&book->events, id)].kind == MEMO_REQUEST_RECORD);

    /* All that can fail, before the trace changes. */
    fits = memob_grow(&trace->requests, at, 1, sizeof(memo_request)) &&
           memob_grow(&book->origin, at, 1, 8);
    if (is_malloc) fits = fits && memob_map_put(&book->live, id, at);
    if (kind == MEMO_REQUEST_RECORD && memob_map_get(&book->events, id) < 0)
        fits = fits && memob_map_put(&book->events, id, at);
    if (!fits) return memob_no_memory(error, "a trace");

    if (is_free) memob_map_remove(&book->live, id);
    if (is_free) request.size_bytes = trace->requests[origin].size_bytes;
    trace->n_buffers += is_malloc;
    trace->n_live += is_malloc - is_free;
    MEMO_ASSERT(trace->n_live >= 0 && trace->n_live <= trace->n_buffers); /* 2 */
    MEMO_ASSERT(kind > MEMO_REQUEST_USE ||
                (memob_map_get(&book->live, id) >= 0) == !is_free); /* 2 */
    trace->requests[at] = request;
    book->origin[at] = is_malloc ? at : origin;
    trace->n_requests++;
    return MEMO_STATUS_OK;
}

memo_status memo_trace_malloc(memo_trace* trace, int64_t id, int64_t size_bytes,
                              memo_class memory_class, int32_t stream, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "trace", trace);
    return memoi_trace_add(trace, MEMO_REQUEST_MALLOC, memory_class, stream, id, size_bytes, error);
}

memo_status memo_trace_free(memo_trace* trace, int64_t id, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "trace", trace);
    return memoi_trace_add(trace, MEMO_REQUEST_FREE, MEMO_CLASS_TRANSIENT, 0, id, 0, error);
}

memo_status memo_trace_use(memo_trace* trace, int64_t id, int32_t stream, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "trace", trace);
    return memoi_trace_add(trace, MEMO_REQUEST_USE, MEMO_CLASS_TRANSIENT, stream, id, 0, error);
}

memo_status memo_trace_record(memo_trace* trace, int64_t event, int32_t stream, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "trace", trace);
    return memoi_trace_add(trace, MEMO_REQUEST_RECORD, MEMO_CLASS_TRANSIENT, stream, event, 0,
                           error);
}

memo_status memo_trace_wait(memo_trace* trace, int64_t event, int32_t stream, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "trace", trace);
    return memoi_trace_add(trace, MEMO_REQUEST_WAIT, MEMO_CLASS_TRANSIENT, stream, event, 0, error);
}

MEMOI memo_status memoi_trace_mark(memo_trace* trace, const char* text, int64_t length,
                                   memo_error* error) {
    const int64_t begin = trace->text_bytes;
    memo_status status;
    MEMO_ASSERT(begin == 0 || !trace->text[begin - 1]); /* 4 */
    if (length == 0) return MEMOB_INVALID(error, "mark: the text is empty; pass one line");
    for (int64_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] < 32)
            return MEMOB_INVALID(
                error, "mark: the text has a control character (%d); pass one line of text",
                (int)(unsigned char)text[i]);
    }
    if (!memob_grow(&trace->text, begin, length + 1, 1)) return memob_no_memory(error, "a trace");
    memcpy(trace->text + begin, text, (size_t)length);
    trace->text[begin + length] = 0;
    status = memoi_trace_add(trace, MEMO_REQUEST_MARK, MEMO_CLASS_TRANSIENT, 0, begin, 0, error);
    if (!status) trace->text_bytes += length + 1;
    return status;
}

memo_status memo_trace_mark(memo_trace* trace, const char* text, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "trace", trace);
    return memoi_trace_mark(trace, text, text ? (int64_t)strlen(text) : 0, error);
}
