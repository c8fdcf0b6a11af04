#pragma once
#include "memo/trace.h"
#include "memo/plan_validation.h"
/* ---- >>plan file --------------------------------------------------------------------------------
 * Knows: the text of a plan.  Knows nothing of requests.
 *
 * 1. A plan has a line for each value of its head and each buffer, gap, hold and wait alone. */

static const char* const memoi_proof_names[] = {"none", "feasible", "optimal"};
MEMOB_TABLE_OF(MEMO_N_PROOFS, memoi_proof_names);

static const memob_value memoi_plan_head_values[] = {
    MEMOB_NUMBER("alignment", memo_plan, alignment_bytes),
    MEMOB_NUMBER("times", memo_plan, n_times),
    MEMOB_NUMBER("body", memo_plan, body_begin),
    MEMOB_NUMBER("peak", memo_plan, peak_bytes),
    MEMOB_NUMBER("bound", memo_plan, lower_bound_bytes),
    MEMOB_WORD("proof", memo_plan, proof, memoi_proof_names),
    MEMOB_VALUE("engine", MEMOB_VALUE_NAME, memo_plan, engine, 0, 16),
    MEMOB_VALUE("buffers", MEMOB_VALUE_INT64, memo_plan, n_buffers, 0, MEMOB_BYTES_MAX / 4),
    MEMOB_VALUE("gaps", MEMOB_VALUE_INT64, memo_plan, n_gaps, 0, MEMOB_BYTES_MAX / 4),
    MEMOB_VALUE("holds", MEMOB_VALUE_INT64, memo_plan, n_holds, 0, MEMOB_BYTES_MAX / 4),
    MEMOB_VALUE("waits", MEMOB_VALUE_INT64, memo_plan, n_waits, 0, MEMOB_BYTES_MAX / 4)};
static const memob_value memoi_plan_buffer_values[] = {
    MEMOB_NUMBER("id", memo_buffer, id),
    MEMOB_NUMBER("begin", memo_buffer, begin),
    MEMOB_NUMBER("end", memo_buffer, end),
    MEMOB_NUMBER("size", memo_buffer, size_bytes),
    MEMOB_NUMBER("offset", memo_buffer, offset_bytes),
    MEMOB_NUMBER("alignment", memo_buffer, alignment_bytes),
    MEMOB_VALUE("fixed", MEMOB_VALUE_INT32, memo_buffer, is_fixed, 0, 1),
    MEMOB_VALUE("stream", MEMOB_VALUE_INT32, memo_buffer, stream, 0, MEMOB_STREAMS - 1),
    MEMOB_VALUE("lane", MEMOB_VALUE_INT32, memo_buffer, lane, 0, INT32_MAX),
    MEMOB_WORD("class", memo_buffer, memory_class, memob_class_names)};
static const memob_value memoi_plan_gap_values[] = {MEMOB_NUMBER("buffer", memo_gap, buffer),
                                                    MEMOB_NUMBER("begin", memo_gap, begin),
                                                    MEMOB_NUMBER("end", memo_gap, end)};
static const memob_value memoi_plan_hold_values[] = {
    MEMOB_NUMBER("buffer", memo_hold, buffer),
    MEMOB_VALUE("lane", MEMOB_VALUE_INT32, memo_hold, lane, 0, INT32_MAX),
    MEMOB_NUMBER("until", memo_hold, until)};
static const memob_value memoi_plan_wait_values[] = {
    MEMOB_NUMBER("freed", memo_wait, freed), MEMOB_NUMBER("requested", memo_wait, requested),
    MEMOB_VALUE("from", MEMOB_VALUE_INT32, memo_wait, from, 0, MEMOB_STREAMS - 1),
    MEMOB_VALUE("to", MEMOB_VALUE_INT32, memo_wait, to, 0, MEMOB_STREAMS - 1),
    MEMOB_VALUE("cost", MEMOB_VALUE_FEMTOSECONDS, memo_wait, cost_s, 0, MEMOB_SECONDS_MOST)};
static const memob_record memoi_plan_buffer_record = {"buffer", memoi_plan_buffer_values, 10, 0};
static const memob_record memoi_plan_gap_record = {"gap", memoi_plan_gap_values, 3, 0};
static const memob_record memoi_plan_hold_record = {"hold", memoi_plan_hold_values, 3, 0};
static const memob_record memoi_plan_wait_record = {"wait", memoi_plan_wait_values, 5, 0};

/* The head, in fixed order: a line has one value, whose name is its word. */
MEMOI memo_status memoi_plan_head(memob_lines* lines, memo_plan* plan) {
    memo_status status = MEMO_STATUS_OK;
    for (size_t k = 0; k < sizeof memoi_plan_head_values / sizeof(memob_value) && !status; k++) {
        memob_record record = {memoi_plan_head_values[k].what, &memoi_plan_head_values[k], 1, 0};
        status = memob_line(lines, &record, plan);
    }
    return status;
}

MEMOI memo_status memoi_plan_body(memob_lines* lines, const memo_plan* plan) {
    memo_status status = MEMO_STATUS_OK;
    for (int64_t i = 0; i < plan->n_buffers && !status; i++)
        status = memob_line(lines, &memoi_plan_buffer_record, &plan->buffers[i]);
    for (int64_t i = 0; i < plan->n_gaps && !status; i++)
        status = memob_line(lines, &memoi_plan_gap_record, &plan->gaps[i]);
    for (int64_t i = 0; i < plan->n_holds && !status; i++)
        status = memob_line(lines, &memoi_plan_hold_record, &plan->holds[i]);
    for (int64_t i = 0; i < plan->n_waits && !status; i++)
        status = memob_line(lines, &memoi_plan_wait_record, &plan->waits[i]);
    MEMO_ASSERT(status || /* 1 */
                lines->n == 1 + (int64_t)(sizeof memoi_plan_head_values / sizeof(memob_value)) +
                                plan->n_buffers + plan->n_gaps + plan->n_holds + plan->n_waits);
    return status;
}

memo_status memo_plan_write(const memo_plan* plan, const char* path, memo_error* error) {
    memo_text text = MEMO_ZERO(memo_text);
    memob_lines lines = {&text, NULL, 1, error};
    memo_plan head;
    memo_status status;
    int64_t culprit;
    MEMOB_REFUSE_NULL(error, "plan", plan);
    MEMOB_REFUSE_NULL(error, "path", path);
    head = *plan;
    /* A plan that is not solved yet is written too, as a problem. */
    status = plan->proof == MEMO_PROOF_NONE ? memoi_plan_verify(plan, 0, &culprit, error)
                                            : memo_plan_validate(plan, error);
    memo_text_put(&text, "memo plan 1\n");
    if (!status) status = memoi_plan_head(&lines, &head);
    if (!status) status = memoi_plan_body(&lines, plan);
    return memob_write_lines(&text, lines.n, path, status, error);
}

/* Reads buffers, gaps, holds and waits, then checks the plan; an error has the line of its
 * buffer. */
MEMOI memo_status memoi_plan_parse_body(memob_lines* lines, const memo_plan* plan) {
    memob_reader *reader = lines->reader, begin = *reader;
    memo_status status = memoi_plan_body(lines, plan);
    int64_t culprit = -1;
    memo_error reason;
    if (status) return status;
    if (memob_next_entry(reader))
        return MEMOB_BAD_LINE(reader, lines->error,
                              "there are more lines than `buffers`, `gaps`, `holds` and `waits` "
                              "state");
    status = memoi_plan_verify(plan, plan->proof != MEMO_PROOF_NONE, &culprit, &reason);
    if (!status) return MEMO_STATUS_OK;
    for (int64_t i = 0; i <= culprit; i++) (void)memob_next_entry(&begin);
    return memoi_line_error(culprit < 0 ? reader : &begin, lines->error,
                            status == MEMO_STATUS_INVALID_ARGUMENT ? MEMO_STATUS_FORMAT : status,
                            "not a valid plan: %s", reason.message);
}

MEMOI memo_status memoi_plan_parse(memob_reader* reader, memo_plan** plan, memo_error* error) {
    int64_t n_lines;
    memob_lines lines = {NULL, reader, 1, error};
    memo_error reason;
    memo_plan head = MEMO_ZERO(memo_plan), *made;
    memo_status status = memob_read_frame(reader, "plan", 1, 0, error);
    if (!status) status = memoi_plan_head(&lines, &head);
    if (status) return status;

    /* Counts are bounded by the file, so that a false count cannot exhaust memory. */
    n_lines = head.n_buffers + head.n_gaps + head.n_holds + head.n_waits;
    if (n_lines > reader->end - reader->next)
        return MEMOB_BAD_LINE(
            reader, error,
            "%lld buffers, %lld gaps, %lld holds and %lld waits do not fit in the rest of the file",
            (long long)head.n_buffers, (long long)head.n_gaps, (long long)head.n_holds,
            (long long)head.n_waits);
    status = memob_check_count(reader, lines.n + n_lines, error);
    if (status) return status;
    status = memoi_plan_check_alignment(head.alignment_bytes, &reason);
    if (status) return memob_reader_result(reader, status, &reason, error);

    status = memo_plan_create(head.n_buffers, head.n_gaps, head.alignment_bytes, &made, error);
    if (status) return status;
    head.buffers = made->buffers;
    head.gaps = made->gaps;
    *made = head;
    made->holds = (memo_hold*)memob_calloc(made->n_holds, sizeof(memo_hold));
    made->waits = (memo_wait*)memob_calloc(made->n_waits, sizeof(memo_wait));
    status = made->holds && made->waits ? memoi_plan_parse_body(&lines, made)
                                        : memob_no_memory(error, "a plan");
    if (status)
        memo_plan_destroy(made);
    else
        *plan = made;
    return status;
}

memo_status memo_plan_read(const char* path, memo_plan** plan, memo_error* error) {
    memob_reader reader;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "plan", plan);
    *plan = NULL;
    MEMOB_REFUSE_NULL(error, "path", path);
    status = memob_reader_open(&reader, path, error);
    if (!status) status = memoi_plan_parse(&reader, plan, error);
    memob_reader_close(&reader);
    return status;
}
