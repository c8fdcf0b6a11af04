#pragma once
#include "memo/records.h"
/* --- >>profile file ---
 * Knows: the text of a profile.  Knows nothing of how its times were measured. */

#define MEMOI_PROFILE_TIME(what, of, field, least)                                                 \
    MEMOB_VALUE(what, MEMOB_VALUE_FEMTOSECONDS, of, field, least, MEMOB_SECONDS_MOST)
static const memob_value memoi_profile_rows_values[] = {
    MEMOB_VALUE("number of rows", MEMOB_VALUE_INT64, memo_profile, n_rows, 1, INT64_MAX),
    MEMOB_VALUE("number of kinds", MEMOB_VALUE_INT32, memo_profile, n_kinds, 1,
                MEMO_PROFILE_KINDS_MAX),
    MEMOB_VALUE("number of tensors", MEMOB_VALUE_INT32, memo_profile, n_tensors, 0,
                MEMO_PROFILE_TENSORS_MAX),
    MEMOI_PROFILE_TIME("time between", memo_profile, between_s, 0),
    MEMOI_PROFILE_TIME("time of an updated byte", memo_profile, update_s_per_byte, 0),
    MEMOI_PROFILE_TIME("time of a recomputation's call", memo_profile, recompute_call_s, 0),
    MEMOI_PROFILE_TIME("slowdown by a byte", memo_profile, slowdown_s_per_byte[0], 0),
    MEMOI_PROFILE_TIME("slowdown by a byte back", memo_profile, slowdown_s_per_byte[1], 0),
    MEMOI_PROFILE_TIME("time of a byte updated on the host", memo_profile, update_host_s_per_byte,
                       0),
    MEMOI_PROFILE_TIME("time of a fetched byte", memo_profile, fetch_s_per_byte, 0),
    MEMOB_VALUE("length", MEMOB_VALUE_INT64, memo_profile, length, 0, INT64_MAX)};
/* A line of kind 0; that of kind k is k numbers farther, also the times of a row. */
static const memob_value memoi_profile_layer_values[] = {
    MEMOI_PROFILE_TIME("forward time", memo_profile, forward_s, 0),
    MEMOI_PROFILE_TIME("backward time", memo_profile, backward_s, 0),
    MEMOI_PROFILE_TIME("growth of the forward", memo_profile, forward_growth_s, 0),
    MEMOI_PROFILE_TIME("growth of the backward", memo_profile, backward_growth_s, 0)};
static const memob_value memoi_profile_tensor_values[] = {
    MEMOB_VALUE("name", MEMOB_VALUE_NAME, memo_profile_tensor, name, 1, 32)};
static const memob_value memoi_profile_row_values[] = {
    MEMOI_PROFILE_TIME("time of a row", memo_profile_tensor, recompute_s_per_row, -1),
    MEMOI_PROFILE_TIME("growth of a row", memo_profile_tensor, recompute_growth_s_per_row, 0)};
static const memob_value memoi_profile_transfer_values[] = {
    MEMOB_VALUE("size", MEMOB_VALUE_INT64, memo_profile_transfer, size_bytes, 0, INT64_MAX),
    MEMOI_PROFILE_TIME("time out", memo_profile_transfer, out_s, 0),
    MEMOI_PROFILE_TIME("time back", memo_profile_transfer, back_s, 0)};
static const memob_record memoi_profile_rows = {"rows", memoi_profile_rows_values, 11, 7};
static const memob_record memoi_profile_layer = {"layer", memoi_profile_layer_values, 4, 2};
static const memob_record memoi_profile_tensor = {"tensor", memoi_profile_tensor_values, 1, 0};
static const memob_record memoi_profile_row = {"row", memoi_profile_row_values, 2, 1};
static const memob_record memoi_profile_copy = {"copy", memoi_profile_transfer_values, 3, 0};
static const memob_record memoi_profile_file = {"file", memoi_profile_transfer_values, 3, 0};

/* The lines between the first and the last, which check every value.  Counts come first. */
MEMOI memo_status memoi_profile_lines(memob_lines* lines, memo_profile* profile) {
    memo_status status = memob_line(lines, &memoi_profile_rows, profile);
    for (int32_t k = 0; !status && k < profile->n_kinds; k++)
        status =
            memob_line(lines, &memoi_profile_layer, (char*)profile + sizeof(double) * (size_t)k);
    for (int32_t i = 0; !status && i < profile->n_tensors; i++) {
        status = memob_line(lines, &memoi_profile_tensor, &profile->tensors[i]);
        for (int32_t k = 0; !status && k < profile->n_kinds; k++)
            status = memob_line(lines, &memoi_profile_row,
                                (char*)&profile->tensors[i] + sizeof(double) * (size_t)k);
    }
    for (int32_t i = 0; !status && i < 2; i++)
        status = memob_line(lines, &memoi_profile_copy, &profile->copies[i]);
    return status ? status : memob_line(lines, &memoi_profile_file, &profile->file);
}

/* A profile may come from the caller, with times in any unit. */
MEMOI memo_status memoi_profile_check(const memo_profile* profile, memo_error* error) {
    memob_lines lines = {NULL, NULL, 0, error};
    return memoi_profile_lines(&lines, (memo_profile*)(uintptr_t)profile); /* only looked at */
}

/* The profile's tensor of the plan's tensor t, by name: it may have others, or another order.
 * NULL: none. */
MEMOI const memo_profile_tensor* memoi_profile_find(const memo_profile* profile,
                                                    const memo_item* tensors, int32_t t) {
    for (int32_t i = 0; tensors[t].name && i < profile->n_tensors; i++) {
        const memo_profile_tensor* tensor = &profile->tensors[(t + i) % profile->n_tensors];
        if (!strncmp(tensor->name, tensors[t].name, sizeof tensor->name)) return tensor;
    }
    return NULL;
}

memo_status memo_profile_write(const memo_profile* profile, const char* path, memo_error* error) {
    memo_text text = {NULL, 0, 0, 0};
    memob_lines lines = {&text, NULL, 0, error};
    memo_status status;
    MEMOB_REFUSE_NULL(error, "profile", profile);
    MEMOB_REFUSE_NULL(error, "path", path);
    memo_text_put(&text, "memo profile 1\n");
    status = memoi_profile_lines(&lines, (memo_profile*)(uintptr_t)profile); /* written from */
    return memob_write_lines(&text, lines.n, path, status, error);
}

memo_status memo_profile_read(const char* path, memo_profile* profile, memo_error* error) {
    memob_reader reader;
    memob_lines lines = {NULL, &reader, 0, error};
    memo_status status;
    MEMOB_REFUSE_NULL(error, "profile", profile);
    memset(profile, 0, sizeof *profile);
    MEMOB_REFUSE_NULL(error, "path", path);
    status = memob_reader_open(&reader, path, error);
    if (!status) status = memob_read_frame(&reader, "profile", 1, 0, error);
    if (!status) status = memoi_profile_lines(&lines, profile);
    if (!status) status = memob_check_count(&reader, lines.n, error);
    if (status) memset(profile, 0, sizeof *profile);
    memob_reader_close(&reader);
    return status;
}
