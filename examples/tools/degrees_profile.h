/* degrees_profile.h - what blocks cost at each tensor-parallel degree, as text, measured or
 * estimated; degrees_plan reads and writes it.  Whole nanoseconds and bytes:
 *
 *   memo degrees-profile 1
 *   blocks N                            the first and last line are optional, as for traces
 *   degrees 2 4 8
 *   memory BYTES                        these three lines are optional, in this order
 *   boundary DEGREE
 *   gradients 1
 *   gather FROM TO NS                   each pair, FROM < TO: 2 4, 2 8, 4 8
 *   block I DEGREE F C X CB GRADIENTS STATE SAVED RUNTIME     0 2, 0 4, 0 8, 1 2 and so on
 *   end LINES CHECKSUM
 *
 * Include it in a file with MEMO_IMPLEMENTATION, after memo_sp.h. */
#ifndef DEGREES_PROFILE_H
#define DEGREES_PROFILE_H

#include "degrees_problem.h"

#define PROFILE_NS 1000000000000000000 /* 1e9 s */

/* The values of all lines.  A cost is on the line of its block and degree. */
typedef struct profile_line {
    int32_t n_blocks, boundary, has_gradients;
    int32_t key[2]; /* degrees of a gather; block and degree of a cost */
    int32_t degrees[MEMO_DEGREES_MAX];
    int64_t memory_bytes;
    double gather_s;
    memo_degree_cost cost;
} profile_line;

#define PROFILE_VALUE(what, type, field, least, most)                                              \
    MEMOB_VALUE(what, type, profile_line, field, least, most)
#define PROFILE_INT32(what, field, least, most)                                                    \
    PROFILE_VALUE(what, MEMOB_VALUE_INT32, field, least, most)
#define PROFILE_TIME(what, field)  PROFILE_VALUE(what, MEMOB_VALUE_NANOSECONDS, field, 0, PROFILE_NS)
#define PROFILE_BYTES(what, field) PROFILE_VALUE(what, MEMOB_VALUE_INT64, field, 0, MEMOB_BYTES_MAX)
#define PROFILE_DEGREE(field)      PROFILE_INT32("degree", field, 1, 1 << 20)
#define PROFILE_4_DEGREES(k)                                                                       \
    PROFILE_DEGREE(degrees[k]), PROFILE_DEGREE(degrees[k + 1]), PROFILE_DEGREE(degrees[k + 2]),    \
        PROFILE_DEGREE(degrees[k + 3])

static const memob_value profile_blocks_values[] = {
    PROFILE_INT32("number of blocks", n_blocks, 1, MEMO_DEGREES_BLOCKS_MAX)};
static const memob_value profile_degrees_values[MEMO_DEGREES_MAX] = {
    PROFILE_4_DEGREES(0), PROFILE_4_DEGREES(4), PROFILE_4_DEGREES(8), PROFILE_4_DEGREES(12)};
static const memob_value profile_memory_values[] = {PROFILE_BYTES("memory", memory_bytes)};
static const memob_value profile_boundary_values[] = {
    PROFILE_INT32("boundary", boundary, 0, 1 << 20)};
static const memob_value profile_gradients_values[] = {
    PROFILE_INT32("gradients", has_gradients, 0, 1)};
static const memob_value profile_gather_values[] = {PROFILE_DEGREE(key[0]), PROFILE_DEGREE(key[1]),
                                                    PROFILE_TIME("time", gather_s)};
static const memob_value profile_block_values[] = {
    PROFILE_INT32("block", key[0], 0, MEMO_DEGREES_BLOCKS_MAX),
    PROFILE_DEGREE(key[1]),
    PROFILE_TIME("F", cost.forward_s),
    PROFILE_TIME("C", cost.forward_collective_s),
    PROFILE_TIME("X", cost.backward_s),
    PROFILE_TIME("CB", cost.backward_collective_s),
    PROFILE_TIME("GRADIENTS", cost.gradient_s),
    PROFILE_BYTES("STATE", cost.state_bytes),
    PROFILE_BYTES("SAVED", cost.saved_bytes),
    PROFILE_BYTES("RUNTIME", cost.runtime_bytes)};

enum {
    PROFILE_BLOCKS,
    PROFILE_DEGREES,
    PROFILE_MEMORY,
    PROFILE_BOUNDARY,
    PROFILE_GRADIENTS,
    PROFILE_GATHER,
    PROFILE_BLOCK
};
static const memob_record profile_records[] = {
    {"blocks", profile_blocks_values, 1, 0},
    {"degrees", profile_degrees_values, MEMO_DEGREES_MAX, MEMO_DEGREES_MAX - 1},
    {"memory", profile_memory_values, 1, 0},
    {"boundary", profile_boundary_values, 1, 0},
    {"gradients", profile_gradients_values, 1, 0},
    {"gather", profile_gather_values, 3, 0},
    {"block", profile_block_values, 10, 0}};
/* After a failure it reads and writes nothing more. */
typedef struct profile_file {
    memob_lines lines;
    profile_line line;
    memo_status status;
} profile_file;

/* The next line; one that is read must have this key. */
static void profile_pass(profile_file* f, int kind, int32_t first, int32_t second) {
    const memob_record* record = &profile_records[kind];
    int32_t* key = f->line.key;
    key[0] = first;
    key[1] = second;
    if (!f->status) f->status = memob_line(&f->lines, record, &f->line);
    if (!f->status && (key[0] != first || key[1] != second))
        f->status = MEMOB_BAD_LINE(f->lines.reader, f->lines.error, "`%s %d %d` is expected here",
                                   record->word, (int)first, (int)second);
}

/* The costs, in their order. */
static void profile_pass_all(profile_file* f, memo_degrees_problem* problem) {
    for (int32_t p = 0; p < problem->n_degrees; p++)
        for (int32_t q = p + 1; q < problem->n_degrees; q++) {
            f->line.gather_s = problem->gather_s[p][q];
            profile_pass(f, PROFILE_GATHER, problem->degrees[p], problem->degrees[q]);
            if (f->lines.reader) problem->gather_s[p][q] = f->line.gather_s;
        }
    for (int32_t i = 0; i < problem->n_blocks; i++)
        for (int32_t p = 0; p < problem->n_degrees; p++) {
            memo_degree_cost* cost = &problem->costs[i * problem->n_degrees + p];
            f->line.cost = *cost;
            profile_pass(f, PROFILE_BLOCK, i, problem->degrees[p]);
            if (f->lines.reader) *cost = f->line.cost;
        }
}

/* Reads the lines before the costs, which make the problem; those after `degrees` are optional. */
static void profile_begin(profile_file* f, memo_degrees_problem** problem) {
    const profile_line* line = &f->line;
    int32_t n_degrees = 0;
    memo_error reason;
    for (int kind = 0; kind < PROFILE_GATHER && !f->status; kind++) {
        memob_reader ahead = *f->lines.reader;
        if (kind <= PROFILE_DEGREES ||
            (memob_next_entry(&ahead) && memob_word_is(&ahead, profile_records[kind].word)))
            profile_pass(f, kind, 0, 0);
        if (kind != PROFILE_DEGREES || f->status) continue;
        while (n_degrees < MEMO_DEGREES_MAX && line->degrees[n_degrees]) n_degrees++;
        *problem = degrees_problem_create(line->n_blocks, line->degrees, n_degrees);
        f->status = *problem ? memo_degrees_problem_check(*problem, &reason)
                             : memob_no_memory(&reason, "a problem of degrees");
        f->status = memob_reader_result(f->lines.reader, f->status, &reason, f->lines.error);
    }
    if (f->status) return;
    (*problem)->memory_bytes = line->memory_bytes;
    (*problem)->boundary_degree = line->boundary;
    (*problem)->has_gradients = line->has_gradients;
}

/* Errors: IO; FORMAT, VERSION with error->line; OUT_OF_HOST_MEMORY. */
static memo_status profile_read(const char* path, memo_degrees_problem** problem,
                                memo_error* error) {
    memo_degrees_problem* made = NULL;
    memob_reader reader;
    profile_file f;
    memo_error reason;
    char shown[40];
    memset(&f, 0, sizeof f);
    f.lines.reader = &reader;
    f.lines.error = error;
    f.status = memob_reader_open(&reader, path, error);
    if (!f.status) f.status = memob_read_frame(&reader, "degrees-profile", 1, 1, error);
    profile_begin(&f, &made);
    if (!f.status) profile_pass_all(&f, made);
    if (!f.status && memob_next_entry(&reader))
        f.status = MEMOB_BAD_LINE(&reader, error, "unexpected `%s` after the last block",
                                  memob_word_text(shown, &reader));
    if (!f.status) f.status = memob_check_count(&reader, f.lines.n, error);
    if (!f.status)
        f.status =
            memob_reader_result(&reader, memo_degrees_problem_check(made, &reason), &reason, error);
    memob_reader_close(&reader);
    if (f.status) MEMO_FREE(made);
    *problem = f.status ? NULL : made;
    return f.status;
}

/* Errors: INVALID_ARGUMENT, IO, OUT_OF_HOST_MEMORY. */
static memo_status profile_write(const memo_degrees_problem* problem, const char* path,
                                 memo_error* error) {
    memo_degrees_problem written = *problem;
    profile_file f;
    memo_text text;
    memset(&f, 0, sizeof f);
    memset(&text, 0, sizeof text);
    f.lines.text = &text;
    f.lines.error = error;
    f.status = memo_degrees_problem_check(problem, error);
    if (f.status) return f.status;
    f.line.n_blocks = problem->n_blocks;
    memcpy(f.line.degrees, problem->degrees, (size_t)problem->n_degrees * sizeof(int32_t));
    f.line.memory_bytes = problem->memory_bytes;
    f.line.boundary = problem->boundary_degree;
    f.line.has_gradients = problem->has_gradients != 0;
    memo_text_put(&text, "memo degrees-profile 1\n");
    for (int kind = 0; kind < PROFILE_GATHER; kind++) profile_pass(&f, kind, 0, 0);
    profile_pass_all(&f, &written);
    return memob_write_lines(&text, f.lines.n, path, f.status, error);
}

#endif
