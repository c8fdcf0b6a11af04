#pragma once
#include "memo/trace.h"
/* ---- >>trace file -------------------------------------------------------------------------------
 * Knows: the text of a trace.  Knows nothing of plans.
 *
 * 1. A line that was read is the last request of the trace. */

/* Parses one request; the reader is at its first word. */
MEMOI memo_status memoi_trace_parse_request(memob_reader* reader, memo_trace* trace,
                                            memo_error* error) {
    const int version = reader->count >= 0;
    int32_t kind = MEMO_N_REQUEST_KINDS - 1;
    memob_record record;
    memo_request r = MEMO_ZERO(memo_request);
    int64_t freed_bytes;
    memo_error reason;
    char shown[40];
    memo_status status;
    while (kind >= 0 && !memob_word_is(reader, memoi_trace_records[kind].word)) kind--;
    if (kind < 0 || (version == 0 && kind >= MEMO_REQUEST_USE && kind <= MEMO_REQUEST_WAIT))
        return MEMOB_BAD_LINE(
            reader, error,
            version > 0
                ? "unknown request `%s`; malloc, free, use, record, wait, mark and end are valid"
                : "unknown request `%s`; malloc, free and mark are valid, and more if the file "
                  "begins with `memo trace 1`",
            memob_word_text(shown, reader));
    if (kind == MEMO_REQUEST_MARK) {
        const char* text = reader->word + reader->length; /* behind the blank, if there is one */
        text += text < reader->stop;
        status = memoi_trace_mark(trace, text, (int64_t)(reader->stop - text), &reason);
        return memob_reader_result(reader, status, &reason, error);
    }

    /* Version 0 has no classes and streams. */
    record = memoi_trace_records[kind];
    if (version == 0) record.n_values = 2;
    status = memoi_read_record(reader, &record, &r, error);
    if (status) return status;
    status = memoi_trace_add(trace, (memo_request_kind)kind, r.memory_class, r.stream, r.id,
                             r.size_bytes, &reason);
    if (status || kind != MEMO_REQUEST_FREE)
        return memob_reader_result(reader, status, &reason, error);

    MEMO_ASSERT(trace->requests[trace->n_requests - 1].id == r.id); /* 1 */
    freed_bytes = trace->requests[trace->n_requests - 1].size_bytes;
    if (r.size_bytes == freed_bytes) return MEMO_STATUS_OK;
    return MEMOB_BAD_LINE(reader, error,
                          "free of id %lld: wrong size (%lld); its malloc has %lld bytes",
                          (long long)r.id, (long long)r.size_bytes, (long long)freed_bytes);
}

MEMOI memo_status memoi_trace_parse(memob_reader* reader, memo_trace** trace, memo_error* error) {
    memo_status status = memo_trace_create(trace, error);
    if (status) return status;

    /* Only version 1 has a frame. */
    status = memob_read_frame(reader, "trace", 1, 1, error);
    while (!status && memob_next_entry(reader))
        status = memoi_trace_parse_request(reader, *trace, error);
    if (!status) status = memob_check_count(reader, (*trace)->n_requests, error);
    if (status) {
        memo_trace_destroy(*trace);
        *trace = NULL;
    }
    return status;
}

memo_status memo_trace_parse(const char* text, int64_t n_bytes, const char* name,
                             memo_trace** trace, memo_error* error) {
    memob_reader reader;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "trace", trace);
    *trace = NULL;
    status = memob_reader_init(&reader, text, n_bytes, name, error);
    return status ? status : memoi_trace_parse(&reader, trace, error);
}

memo_status memo_trace_read(const char* path, memo_trace** trace, memo_error* error) {
    memob_reader reader;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "trace", trace);
    *trace = NULL;
    MEMOB_REFUSE_NULL(error, "path", path);
    status = memob_reader_open(&reader, path, error);
    if (!status) status = memoi_trace_parse(&reader, trace, error);
    memob_reader_close(&reader);
    return status;
}

memo_status memo_trace_write(const memo_trace* trace, const char* path, memo_error* error) {
    memo_text text = MEMO_ZERO(memo_text);
    memo_status status = MEMO_STATUS_OK;
    MEMOB_REFUSE_NULL(error, "trace", trace);
    MEMOB_REFUSE_NULL(error, "path", path);
    memo_text_put(&text, "memo trace 1\n");
    for (int64_t i = 0; i < trace->n_requests && !status; i++) {
        const memo_request* r = &trace->requests[i];
        if (r->kind == MEMO_REQUEST_MARK)
            memo_text_put(&text, "mark %s\n", trace->text + r->id);
        else
            status = memob_put_record(&text, &memoi_trace_records[r->kind], r, error);
    }
    return memob_write_lines(&text, trace->n_requests, path, status, error);
}
