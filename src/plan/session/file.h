#pragma once
#include "plan/session/plan.h"
/* --- >>session file ---
 * Knows: the text of a plan.  Its rows and addresses are given back; the rest follows from them. */

static const memob_value memoi_step_plan_buffer_values[] = {
    MEMOB_VALUE("size", MEMOB_VALUE_INT64, memo_buffer, size_bytes, 0, MEMOB_BYTES_MAX),
    MEMOB_VALUE("offset", MEMOB_VALUE_INT64, memo_buffer, offset_bytes, 0, MEMOB_BYTES_MAX - 1)};
static const memob_record memoi_step_plan_buffer = {"buffer", memoi_step_plan_buffer_values, 2, 0};

memo_status memo_step_plan_write(const memo_step_plan* plan, const char* path, memo_error* error) {
    memoi_step_plan_line line;
    memo_text text = {NULL, 0, 0, 0};
    memob_lines lines = {&text, NULL, 0, error};
    memo_status status = MEMO_STATUS_OK;
    memo_text_put(&text, "memo step-plan 2\n");
    for (; plan && !status; plan = plan->next) {
        for (int64_t i = 0; !status && memoi_step_plan_get_line(plan, i, &line); i++)
            status = memob_line(&lines, &line.record, line.cells);
        for (int64_t i = 0; !status && i < plan->addresses->n_buffers; i++)
            status = memob_line(&lines, &memoi_step_plan_buffer, &plan->addresses->buffers[i]);
    }
    return memob_write_lines(&text, lines.n, path, status, error);
}

/* Reads a line of a plan, whose first values must be the session's. */
MEMOI memo_status memoi_session_read_line(memob_lines* lines, const memoi_step_plan_line* own,
                                          int64_t* cells) {
    char text[200] = "";
    memo_status status = memob_line(lines, &own->record, cells);
    if (!status) memoi_step_plan_differs(own, cells, text, sizeof text);
    if (*text)
        status = memob_line_error(lines->reader, lines->error, MEMO_STATUS_INVALID_ARGUMENT,
                                  "wrong plan: %s; plan again", text);
    return status;
}

/* The current shape of the file as the stage: its rows, a dry run, and the file's addresses. */
MEMOI memo_status memoi_session_read_shape(memo_session* s, memob_lines* lines) {
    memo_step_plan* plan = s->part->plan;
    memoi_step_plan_line own;
    const int64_t n_tensors = plan->swap.n_tensors;
    int64_t* rows = (int64_t*)(uintptr_t)plan->swap.rows; /* the plan's own */
    int64_t cells[sizeof own.cells / sizeof own.cells[0]], i, n_buffers = 0;
    memo_status status = MEMO_STATUS_OK;
    for (i = 0; !status && memoi_step_plan_get_line(plan, i, &own); i++) {
        memset(cells, 0, sizeof cells);
        status = memoi_session_read_line(lines, &own, cells);
        if (own.of == MEMOI_LINE_SHAPE) {
            plan->policy = (memo_policy)cells[MEMOI_LINE_POLICY];
            plan->swap.n_host_layers = (int32_t)cells[MEMOI_LINE_HOST_LAYERS];
            plan->n_streamed = cells[MEMOI_LINE_STREAMED];
            plan->n_spilled = cells[MEMOI_LINE_SPILLED];
            plan->update_is_on_host = (int32_t)cells[MEMOI_LINE_UPDATE];
            plan->update_at = (int32_t)cells[MEMOI_LINE_UPDATE_AT];
            n_buffers = cells[MEMOI_LINE_BUFFERS];
            memoi_session_stream(s);
        } else if (own.of == MEMOI_LINE_ALTERNATIVES) {
            for (int32_t b = 0; b < plan->n_buffers; b++) plan->alternatives[b] = (int32_t)cells[b];
            if (!status && !memoi_session_has_alternatives(s, plan))
                status = memob_line_error(lines->reader, lines->error, MEMO_STATUS_INVALID_ARGUMENT,
                                          "wrong plan: it has other alternatives; plan again");
        } else if (own.of == MEMOI_LINE_STEP) {
            memcpy(rows, cells + 1, (size_t)n_tensors * sizeof *cells);
            rows += n_tensors;
        }
    }
    if (!status) memoi_session_dry_run(s);
    if (status || s->failure.status) return status;

    if (n_buffers != plan->addresses->n_buffers)
        return memob_line_error(lines->reader, lines->error, MEMO_STATUS_INVALID_ARGUMENT,
                                "wrong plan: it has %lld requests of a micro-batch, the session "
                                "%lld; plan again",
                                (long long)n_buffers, (long long)plan->addresses->n_buffers);
    for (i = 0; i < n_buffers; i++) {
        memo_buffer* buffer = &plan->addresses->buffers[i];
        const int64_t size_bytes = buffer->size_bytes;
        status = memob_line(lines, &memoi_step_plan_buffer, buffer);
        if (status) return status;
        if (buffer->size_bytes != size_bytes)
            return memob_line_error(lines->reader, lines->error, MEMO_STATUS_INVALID_ARGUMENT,
                                    "wrong plan: request %lld of a micro-batch has %lld bytes, not "
                                    "%lld; plan again",
                                    (long long)i, (long long)buffer->size_bytes,
                                    (long long)size_bytes);
    }
    memoi_plan_measure(plan->addresses);
    return memo_plan_validate(plan->addresses, lines->error);
}

memo_status memo_step_plan_read(const memo_session_desc* desc, const char* path,
                                memo_step_plan** plan, memo_error* error) {
    memo_session_desc own;
    memo_session* s;
    memob_reader reader, ahead;
    memob_lines lines = {NULL, &reader, 0, error};
    memo_status status = memob_check_given("memo_step_plan_read", "desc", desc, error);
    memoi_step_plan_line line;
    memo_step_plan none;
    *plan = NULL;
    if (status) return status;
    own = *desc;
    own.policy = MEMO_POLICY_KEEP; /* the file states the policy and the rows */
    status = memob_reader_open(&reader, path, error);
    memset(&none, 0, sizeof none);
    (void)memoi_step_plan_get_line(&none, 0, &line);
    if (!status) status = memob_read_frame(&reader, "step-plan", 2, 0, error);
    ahead = reader;
    if (!status && !memob_expect_record(&ahead, &line.record, line.cells, NULL)) {
        if (!desc->slice_rows) own.slice_rows = line.cells[MEMOI_LINE_SLICE_ROWS];
        if (desc->n_group == MEMO_GROUP_PLANNED)
            own.n_group = (int32_t)line.cells[MEMOI_LINE_N_GROUP];
    }
    if (status) {
        memob_reader_close(&reader);
        return memoi_session_verdict(&own, status, error);
    }

    s = memoi_session_make(&own, NULL, 0, error);
    if (!s) {
        memob_reader_close(&reader);
        return MEMO_STATUS_OUT_OF_HOST_MEMORY;
    }
    lines.error = &s->call_error;
    for (int32_t k = 0; !s->failure.status && k < s->desc.n_shapes; k++) {
        memoi_session_use_shape(s, k);
        memoi_keep(s, memoi_session_read_shape(s, &lines));
        if (!s->failure.status && k == s->desc.n_shapes - 1)
            memoi_keep(s, memob_check_count(&reader, lines.n, &s->call_error));
        memoi_session_judge(s, "the plan of the file", "the plan of the file");
    }
    memob_reader_close(&reader);
    return memoi_session_give_plan(s, plan, error);
}
