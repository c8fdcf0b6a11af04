#pragma once
#include "memo/text.h"
/* ---- >>reader -----------------------------------------------------------------------------------
 * Knows: lines, words and numbers of a text.  Knows nothing of what they say.
 *
 * 1. A line lies in the text, in front of the next one: line <= stop <= next <= end.
 * 2. A word lies in its line: line <= word, word + length <= stop. */

/* Position in a text.  A word is bytes between blanks; the next word is searched behind it. */
typedef struct memob_reader {
    const char* name; /* of the file, for messages */
    const char* text;
    const char* next; /* start of the next line */
    const char* end;  /* of the text */
    const char* line; /* start of the current line */
    const char* stop; /* its end, without newline and carriage return */
    const char* word; /* the current word */
    int64_t length;   /* of the word; 0: there is none */
    int64_t n_line;   /* number of the line, from 1 */
    /* What the last line of memo's files states, and the number of that line; -1: there is none. */
    int64_t count, n_count_line;
} memob_reader;

#define MEMOB_BAD_LINE(reader, error, ...)                                                         \
    memoi_line_error(reader, error, MEMO_STATUS_FORMAT, __VA_ARGS__)

/* Reads a text of the caller, which it borrows.  name NULL: "text".  Errors: INVALID_ARGUMENT. */
MEMOI memo_status memob_reader_init(memob_reader* reader, const char* text, int64_t n_bytes,
                                    const char* name, memo_error* error) {
    memset(reader, 0, sizeof *reader);
    if (!text || n_bytes < 0)
        return MEMOB_INVALID(error, "text: NULL, or n_bytes is negative; pass a text");
    reader->name = name ? name : "text";
    reader->count = -1;
    reader->text = reader->next = text;
    reader->end = text + n_bytes;
    return MEMO_STATUS_OK;
}

/* Reads a whole file ("-": standard input), whose text memob_reader_close frees.  Errors: IO,
 * OUT_OF_HOST_MEMORY; then there is nothing to close, and closing does no harm. */
MEMOI memo_status memob_reader_open(memob_reader* reader, const char* path, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    FILE* file = strcmp(path, "-") ? fopen(path, "rb") : stdin;
    char *bytes = NULL, limit[32];
    int64_t capacity = 0, used = 0;
    size_t n = 1;
    memset(reader, 0, sizeof *reader);

    /* Sizes of pipes and devices are unknown, so read until the end, up to a limit. */
    while (file && !status && n > 0) {
        if (!memob_reserve(&bytes, &capacity, used + 65536, 1)) {
            status = memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                                    "%s: no host memory for its text", path);
            break;
        }
        n = fread(bytes + used, 1, (size_t)(capacity - used), file);
        used += (int64_t)n;
        if (n > 0 && used > MEMO_FILE_BYTES_MAX)
            status = memo_error_set(error, MEMO_STATUS_IO,
                                    "%s: larger than %s; define a larger MEMO_FILE_BYTES_MAX", path,
                                    memob_bytes_text(limit, (double)MEMO_FILE_BYTES_MAX));
    }
    if (!status && (!file || ferror(file)))
        status =
            memo_error_set(error, MEMO_STATUS_IO, "%s: cannot be read: %s", path, strerror(errno));
    if (file && file != stdin) fclose(file);
    if (status) {
        MEMO_FREE(bytes);
        return status;
    }
    return memob_reader_init(reader, bytes, used, file == stdin ? "standard input" : path, error);
}

MEMOI void memob_reader_close(memob_reader* reader) { MEMO_FREE((char*)reader->text); }

/* Moves to the next line; 0 at the end of the text. */
MEMOI int memoi_reader_next_line(memob_reader* reader) {
    const char* newline;
    if (reader->next >= reader->end) return 0;
    newline = (const char*)memchr(reader->next, '\n', (size_t)(reader->end - reader->next));
    reader->line = reader->word = reader->next;
    reader->length = 0;
    reader->stop = newline ? newline : reader->end;
    reader->next = newline ? newline + 1 : reader->end;
    if (reader->stop > reader->line && reader->stop[-1] == '\r') reader->stop--;
    reader->n_line++;
    MEMO_ASSERT(reader->line <= reader->stop && reader->stop <= reader->next); /* 1 */
    MEMO_ASSERT(reader->next <= reader->end);                                  /* 1 */
    return 1;
}

/* Moves to the next word of the current line; 0: there is none. */
MEMOI MEMOB_NOINLINE int memoi_next_word(memob_reader* reader) {
    const char* p = reader->word + reader->length;
    while (p < reader->stop && (*p == ' ' || *p == '\t')) p++;
    reader->word = p;
    while (p < reader->stop && *p != ' ' && *p != '\t') p++;
    reader->length = (int64_t)(p - reader->word);
    MEMO_ASSERT(reader->line <= reader->word); /* 2 */
    MEMO_ASSERT(p <= reader->stop);            /* 2 */
    return reader->length > 0;
}

/* Does the current word equal `expected`? */
MEMOI MEMOB_NOINLINE int memob_word_is(const memob_reader* reader, const char* expected) {
    return (int64_t)strlen(expected) == reader->length &&
           memcmp(reader->word, expected, (size_t)reader->length) == 0;
}

/* The word as a decimal int64; 0: it is not one. */
MEMOI int memoi_word_number(const char* word, int64_t length, int64_t* value) {
    int64_t i = 0, result = 0;
    int negative = length > 0 && word[0] == '-';
    if (negative) i = 1;
    if (i == length) return 0;
    for (; i < length; i++) {
        int digit = word[i] - '0';
        if (!memob_is_within(digit, 0, 9) || result < (INT64_MIN + digit) / 10) return 0;
        result = result * 10 - digit; /* negative: INT64_MIN has no positive twin */
    }
    if (!negative && result == INT64_MIN) return 0;
    *value = negative ? result : -result;
    return 1;
}

/* Sets error to "NAME:LINE: MESSAGE" of the current line, and returns status. */
MEMO_PRINTF(4, 5)
MEMOI memo_status memoi_line_error(const memob_reader* reader, memo_error* error,
                                   memo_status status, const char* format, ...) {
    if (error) {
        va_list arguments;
        char message[320], number[32] = ""; /* the text may have no line */
        va_start(arguments, format);
        vsnprintf(message, sizeof message, format, arguments);
        va_end(arguments);
        if (reader->n_line > 0) snprintf(number, sizeof number, ":%lld", (long long)reader->n_line);
        memo_error_set(error, status, "%.150s%s: %s", reader->name, number, message);
        error->line = reader->n_line;
    }
    return status;
}

/* Returns the status of a function whose arguments come from this line; the message names it. */
MEMOI memo_status memob_reader_result(const memob_reader* reader, memo_status status,
                                      const memo_error* reason, memo_error* error) {
    if (!status) return MEMO_STATUS_OK;
    if (status == MEMO_STATUS_INVALID_ARGUMENT) status = MEMO_STATUS_FORMAT;
    return memoi_line_error(reader, error, status, "%s", reason->message);
}

/* --- what a line must hold --- */

/* The current word for a message: shortened, other than printable bytes as '?'.  Returns out. */
MEMOI const char* memob_word_text(char out[40], const memob_reader* reader) {
    const char* word = reader->word;
    int64_t i;
    for (i = 0; i < reader->length && i < 36; i++)
        out[i] = word[i] >= 33 && word[i] < 127 ? word[i] : '?';
    if (i < reader->length) memcpy(out + i - 3, "...", 3);
    out[i] = 0;
    return out;
}

/* Nothing may follow.  Errors: FORMAT. */
MEMOI memo_status memob_expect_line_end(memob_reader* reader, memo_error* error) {
    char shown[40];
    if (!memoi_next_word(reader)) return MEMO_STATUS_OK;
    return MEMOB_BAD_LINE(reader, error, "unexpected `%s`; the line ends before it",
                          memob_word_text(shown, reader));
}

/* Moves to the next line that is neither blank nor a comment, and reads its first word.  0: end of
 * the text. */
MEMOI int memob_next_entry(memob_reader* reader) {
    while (memoi_reader_next_line(reader))
        if (memoi_next_word(reader) && reader->word[0] != '#') return 1;
    return 0;
}
