#pragma once
#include "memo/reader.h"
/* ---- >>records ----------------------------------------------------------------------------------
 * Knows: values of a line and of a struct; first and last line of memo's files.  Knows nothing of
 * what they mean.
 *
 * 1. A number that the table of a record admits fits the type of its field.
 * 2. Lines go one way: they have a text, to write, or a reader, or neither, to check values.
 * 3. The `end` line lies behind the line that the reader is at, and ends what it reads.
 * 4. A message has room for all words of a value. */

/* A line between the frame's is a record: a word, then values, which lie in a struct.  One table
 * serves both directions. */
typedef enum memob_value_type {
    MEMOB_VALUE_INT64 = 0, /* in [least, most] */
    MEMOB_VALUE_INT32,
    MEMOB_VALUE_WORD,         /* an enum in [least, most] by its words */
    MEMOB_VALUE_NAME,         /* char[most]: a word; least 0: it may be empty, "-" */
    MEMOB_VALUE_FEMTOSECONDS, /* a double in seconds, 0 to 9000; least -1: "-" if it is below 0 */
    MEMOB_VALUE_NANOSECONDS   /* a double in seconds; least and most in nanoseconds */
} memob_value_type;

typedef struct memob_value {
    const char* what; /* for messages */
    memob_value_type type;
    size_t offset; /* in the struct */
    int64_t least, most;
    const char* const* words; /* WORD: of 0 and the following numbers */
} memob_value;
#define MEMOB_VALUE(what, type, of, field, least, most)                                            \
    { what, type, offsetof(of, field), least, most, NULL }
#define MEMOB_WORD(what, of, field, words)                                                         \
    { what, MEMOB_VALUE_WORD, offsetof(of, field), 0, sizeof words / sizeof *words - 1, words }
#define MEMOB_NUMBER(what, of, field)                                                              \
    MEMOB_VALUE(what, MEMOB_VALUE_INT64, of, field, INT64_MIN, INT64_MAX)
#define MEMOB_SECONDS_MOST 9000000000000000000 /* of FEMTOSECONDS and NANOSECONDS */
#define MEMOB_TIME_MAX     1e250 /* in memory: sums over 2^31 layers of 2^58 rows do not overflow */

typedef struct memob_record {
    const char* word;
    const memob_value* values;
    /* The last n_optional values are 0 if the line ends before, and are not written if all values
     * from there on are 0. */
    int32_t n_values, n_optional;
} memob_record;

/* Lines in either direction, so that one walk over them writes, reads or checks. */
typedef struct memob_lines {
    memo_text* text;      /* written to; NULL: read, */
    memob_reader* reader; /* or with neither check */
    int64_t n;            /* so far */
    memo_error* error;
} memob_lines;

/* The number that a line has for a value; names have none. */
MEMOI int64_t memob_record_number(const memob_value* value, const char* at) {
    int64_t number;
    int32_t narrow;
    double time_s, limit;
    switch (value->type) {
    case MEMOB_VALUE_INT64: memcpy(&number, at, sizeof number); return number;
    case MEMOB_VALUE_INT32:
    case MEMOB_VALUE_WORD: memcpy(&narrow, at, sizeof narrow); return narrow;
    default: break;
    }
    /* Times round to the nearest number.  What a number cannot hold is out of range. */
    memcpy(&time_s, at, sizeof time_s);
    time_s *= value->type == MEMOB_VALUE_FEMTOSECONDS ? 1e15 : 1e9;
    limit = (double)MEMOB_SECONDS_MOST;
    if (time_s < 0 && time_s >= -limit) return -1;
    return memob_is_in(time_s, 0, limit) ? (int64_t)floor(time_s + 0.5) : INT64_MAX;
}

MEMOI void memoi_record_set(const memob_value* value, char* at, int64_t number) {
    int32_t narrow = (int32_t)number;
    double time_s = (double)number;
    MEMO_ASSERT(number == narrow || /* 1 */
                (value->type != MEMOB_VALUE_INT32 && value->type != MEMOB_VALUE_WORD));
    if (value->type == MEMOB_VALUE_FEMTOSECONDS) time_s = number < 0 ? -1 : time_s * 1e-15;
    if (value->type == MEMOB_VALUE_NANOSECONDS) time_s *= 1e-9;
    if (value->type == MEMOB_VALUE_INT64)
        memcpy(at, &number, sizeof number);
    else if (value->type == MEMOB_VALUE_INT32 || value->type == MEMOB_VALUE_WORD)
        memcpy(at, &narrow, sizeof narrow);
    else
        memcpy(at, &time_s, sizeof time_s);
}

MEMOI int memob_value_is_name(const memob_value* value, const char* word, int64_t length) {
    int64_t i;
    for (i = 0; i < length && (unsigned char)word[i] > 32 && word[i] != 127; i++) {
    }
    return i == length && length > 0 && length < value->most;
}

/* Reads the current word as the value. */
MEMOI memo_status memoi_record_read(const memob_reader* reader, const memob_value* value, char* to,
                                    memo_error* error) {
    const int is_time = value->type == MEMOB_VALUE_FEMTOSECONDS;
    const int64_t least = is_time ? 0 : value->least, most = value->most;
    int64_t number = least;
    char valid[160] = "", shown[40];
    if (value->type == MEMOB_VALUE_NAME) {
        memset(to, 0, (size_t)most);
        if (least == 0 && memob_word_is(reader, "-")) return MEMO_STATUS_OK;
        if (!memob_value_is_name(value, reader->word, reader->length))
            return MEMOB_BAD_LINE(reader, error, "the %s must be 1 to %lld bytes without blanks",
                                  value->what, (long long)most - 1);
        memcpy(to, reader->word, (size_t)reader->length);
        return MEMO_STATUS_OK;
    }

    /* The number of a word, of "-", or of digits. */
    if (value->type == MEMOB_VALUE_WORD) {
        while (number <= most && !memob_word_is(reader, value->words[number])) number++;
        for (int64_t k = least; k <= most && number > most; k++) {
            const char* between = k == most ? " or " : ", ";
            snprintf(valid + strlen(valid), sizeof valid - strlen(valid), "%s%s",
                     k == least ? "" : between, value->words[k]);
        }
        MEMO_ASSERT(strlen(valid) < sizeof valid - 1); /* 4 */
        if (number > most)
            return MEMOB_BAD_LINE(reader, error, "the %s `%s` is not %s", value->what,
                                  memob_word_text(shown, reader), valid);
    } else if (is_time && value->least < 0 && memob_word_is(reader, "-")) {
        number = -1;
    } else if (!memoi_word_number(reader->word, reader->length, &number)) {
        return MEMOB_BAD_LINE(reader, error, "the %s `%s` is not a whole number of 64 bits",
                              value->what, memob_word_text(shown, reader));
    } else if (number < least || number > most) {
        return MEMOB_BAD_LINE(reader, error, "%s: out of range (%lld); %lld to %lld are valid",
                              value->what, (long long)number, (long long)least, (long long)most);
    }
    memoi_record_set(value, to, number);
    return MEMO_STATUS_OK;
}

/* Reads the values of the current line into a struct; nothing may follow.  Errors: FORMAT. */
MEMOI memo_status memoi_read_record(memob_reader* reader, const memob_record* record, void* to,
                                    memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t k = 0; k < record->n_values && !status; k++) {
        const memob_value* value = &record->values[k];
        char* at = (char*)to + value->offset;
        if (memoi_next_word(reader))
            status = memoi_record_read(reader, value, at, error);
        else if (k >= record->n_values - record->n_optional)
            memoi_record_set(value, at, 0);
        else
            status = MEMOB_BAD_LINE(reader, error, "the %s is missing", value->what);
    }
    return status ? status : memob_expect_line_end(reader, error);
}

/* The same, of the next line, which must begin with the record's word. */
MEMOI memo_status memob_expect_record(memob_reader* reader, const memob_record* record, void* to,
                                      memo_error* error) {
    char shown[40];
    if (!memob_next_entry(reader))
        return MEMOB_BAD_LINE(reader, error, "a line `%s` is missing", record->word);
    if (memob_word_is(reader, record->word)) return memoi_read_record(reader, record, to, error);
    return MEMOB_BAD_LINE(reader, error, "unexpected `%s`; `%s` is expected here",
                          memob_word_text(shown, reader), record->word);
}

/* Appends a line.  Errors: INVALID_ARGUMENT (a value that the reader would refuse). */
MEMOI memo_status memob_put_record(memo_text* text, const memob_record* record, const void* from,
                                   memo_error* error) {
    int32_t n = record->n_values;
    while (n > record->n_values - record->n_optional &&
           memob_record_number(&record->values[n - 1],
                               (const char*)from + record->values[n - 1].offset) == 0)
        n--;

    memo_text_put(text, "%s", record->word);
    for (int32_t k = 0; k < n; k++) {
        const memob_value* value = &record->values[k];
        const char* at = (const char*)from + value->offset;
        int64_t number;
        if (value->type == MEMOB_VALUE_NAME) {
            int64_t length = 0;
            while (length < value->most && at[length]) length++;
            if (!memob_value_is_name(value, at, length) && (length || value->least))
                return MEMOB_INVALID(error,
                                     "%s.%s: not a name; 1 to %lld bytes without blanks are valid",
                                     record->word, value->what, (long long)value->most - 1);
            memo_text_put(text, " %.*s", length ? (int)length : 1, length ? at : "-");
            continue;
        }
        number = memob_record_number(value, at);
        if (memob_check_integer(record->word, value->what, number, value->least, value->most,
                                error))
            return MEMO_STATUS_INVALID_ARGUMENT;
        if (value->type == MEMOB_VALUE_WORD)
            memo_text_put(text, " %s", value->words[number]);
        else if (value->type == MEMOB_VALUE_FEMTOSECONDS && number < 0)
            memo_text_put(text, " -");
        else
            memo_text_put(text, " %lld", (long long)number);
    }
    memo_text_put(text, "\n");
    return MEMO_STATUS_OK;
}

/* Checks the numbers of a struct that stays in memory, where a time may be longer than a line can
 * say, if no sum of times overflows. */
MEMOI memo_status memoi_check_record(const memob_record* record, const char* from,
                                     memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t k = 0; k < record->n_values && !status; k++) {
        const memob_value* value = &record->values[k];
        const char* at = from + value->offset;
        double time_s;
        if (value->type == MEMOB_VALUE_FEMTOSECONDS) {
            memcpy(&time_s, at, sizeof time_s);
            status = memob_check_real(record->word, value->what, time_s,
                                      (double)value->least * MEMOB_TIME_MAX, MEMOB_TIME_MAX, error);
        } else if (value->type != MEMOB_VALUE_NAME)
            status = memob_check_integer(record->word, value->what, memob_record_number(value, at),
                                         value->least, value->most, error);
    }
    return status;
}

/* The next line, from or to a struct.  Errors: those of memob_put_record or memob_expect_record;
 * of a check INVALID_ARGUMENT. */
MEMOI MEMOB_NOINLINE memo_status memob_line(memob_lines* lines, const memob_record* record,
                                            void* values) {
    MEMO_ASSERT(!lines->text || !lines->reader); /* 2 */
    lines->n++;
    if (lines->text) return memob_put_record(lines->text, record, values, lines->error);
    if (lines->reader) return memob_expect_record(lines->reader, record, values, lines->error);
    return memoi_check_record(record, (const char*)values, lines->error);
}

/* --- the frame of a file: "memo KIND 1" first, "end COUNT CHECKSUM" last --- */

typedef struct memoi_frame_end {
    int64_t count;
    char checksum[17]; /* of all bytes before the line, in 16 hexadecimal digits */
} memoi_frame_end;
static const memob_value memoi_frame_end_values[] = {
    MEMOB_VALUE("count", MEMOB_VALUE_INT64, memoi_frame_end, count, 0, INT64_MAX),
    MEMOB_VALUE("checksum", MEMOB_VALUE_NAME, memoi_frame_end, checksum, 1, 17)};
static const memob_record memoi_frame_end_record = {"end", memoi_frame_end_values, 2, 0};

MEMOI memo_status memoi_reader_check_end(memob_reader* reader, memo_error* error) {
    memob_reader ahead = *reader;
    memoi_frame_end end;
    char found[17];
    memo_status status = memob_expect_line_end(reader, error);
    int is_end = 0;
    if (status) return status;

    /* Before any other line is parsed, so that a damaged file is reported as damaged, not by the
     * fault of a line. */
    while (!is_end && memob_next_entry(&ahead)) is_end = memob_word_is(&ahead, "end");
    if (!is_end) return MEMOB_BAD_LINE(&ahead, error, "truncated: no `end` line");
    status = memoi_read_record(&ahead, &memoi_frame_end_record, &end, error);
    if (status) return status;
    reader->count = end.count;
    reader->n_count_line = ahead.n_line;
    snprintf(found, sizeof found, "%016llx",
             (unsigned long long)memob_hash(reader->text, (int64_t)(ahead.line - reader->text)));
    if (strcmp(found, end.checksum))
        return MEMOB_BAD_LINE(
            &ahead, error,
            "wrong checksum: the lines above have %s; the file was changed or damaged", found);

    /* Whatever follows is covered by no checksum. */
    reader->end = ahead.line;
    MEMO_ASSERT(reader->next <= reader->end); /* 3 */
    while (memoi_reader_next_line(&ahead))
        if (memoi_next_word(&ahead))
            return MEMOB_BAD_LINE(&ahead, error, "nothing may follow the `end` line");
    return MEMO_STATUS_OK;
}

/* Checks both lines of a file's frame, and sets reader->count.  The reader is then between them.
 * An optional frame may be absent.  Errors: FORMAT, VERSION. */
MEMOI memo_status memob_read_frame(memob_reader* reader, const char* kind, int version,
                                   int is_optional, memo_error* error) {
    memob_reader first = *reader;
    int is_empty = !memob_next_entry(&first);
    int has_frame = !is_empty && memob_word_is(&first, "memo");
    int64_t found = 0;
    const char* why;
    char shown[40];
    if (is_optional && !is_empty && !has_frame) return MEMO_STATUS_OK;
    *reader = first;
    if (!has_frame)
        return MEMOB_BAD_LINE(reader, error, "%sthe first line must be `memo %s %d`",
                              is_empty ? "the file is empty; " : "", kind, version);

    /* The rest of the first line. */
    if (!memoi_next_word(reader) || !memob_word_is(reader, kind))
        return MEMOB_BAD_LINE(reader, error, "the file is a memo `%s`; a `memo %s` was expected",
                              memob_word_text(shown, reader), kind);
    if (!memoi_next_word(reader) || !memoi_word_number(reader->word, reader->length, &found))
        return MEMOB_BAD_LINE(reader, error, "the version is missing, or not a whole number");
    if (found == version) return memoi_reader_check_end(reader, error);
    why = found > version ? "newer" : "older";
    return memoi_line_error(reader, error, MEMO_STATUS_VERSION, "%s version %lld; %d is supported",
                            found < 1 ? "invalid" : why, (long long)found, version);
}

/* Compares the count of the last line with the number of lines found.  Errors: FORMAT. */
MEMOI memo_status memob_check_count(const memob_reader* reader, int64_t n_found,
                                    memo_error* error) {
    memob_reader last_line = *reader;
    if (reader->count < 0 || reader->count == n_found) return MEMO_STATUS_OK;
    last_line.n_line = reader->n_count_line;
    return MEMOB_BAD_LINE(&last_line, error, "wrong count: %lld stated, %lld lines above",
                          (long long)reader->count, (long long)n_found);
}

/* Appends the last line. */
MEMOI void memob_put_last_line(memo_text* text, int64_t count) {
    uint64_t checksum = text->failed ? 0 : memob_hash(text->data, text->n_bytes);
    memo_text_put(text, "end %lld %016llx\n", (long long)count, (unsigned long long)checksum);
}

/* The same, and writes text to path; if status is a failure, only frees text and returns status. */
MEMOI MEMOB_NOINLINE memo_status memob_write_lines(memo_text* text, int64_t count, const char* path,
                                                   memo_status status, memo_error* error) {
    memob_put_last_line(text, count);
    if (!status) return memo_text_write(text, path, error);
    memo_text_free(text);
    return status;
}
