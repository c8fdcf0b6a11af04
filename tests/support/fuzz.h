/* fuzz.h - shared by the fuzz targets: a temporary file, and sealing.
 *
 * Random text almost never has a valid checksum, so a fuzzer would test nothing else.  Each target
 * therefore reads its input twice: unchanged, and with a valid first and last line.  Include after
 * memo.h.  With FUZZ_WORDS, inputs are texts: most new ones differ from one before in one to three
 * words, since lines that random bytes change are all refused by the parser. */
#ifndef FUZZ_H
#define FUZZ_H

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static memo_error fuzz_error;
static const char* fuzz_input = "input";                /* name of the input, for messages */
__attribute__((unused)) static int64_t fuzz_n_accepted; /* inputs that were not refused */

#if defined(MEMO_TEST_FAULTS) && defined(MEMO_H)
#include "faults.h"
#define FUZZ_END() faulty_end()
#else
#define FUZZ_END() ((void)0)
#endif

/* Unlike assert it stays in every build. */
#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            FUZZ_END();                                                                            \
            fprintf(stderr, "%s:%d: %s is false for %s\n", __FILE__, __LINE__, #condition,         \
                    fuzz_input);                                                                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* A refusal has a status and a message that names the text. */
static inline void fuzz_refused(memo_status status) {
    FUZZ_CHECK(fuzz_error.status == status);
    FUZZ_CHECK(strncmp(fuzz_error.message, "input", 5) == 0);
    FUZZ_CHECK(strlen(fuzz_error.message) < sizeof fuzz_error.message);
    FUZZ_CHECK(fuzz_error.line >= 0);
}

static inline const char* fuzz_path(void) {
    static char path[256];
    const char* folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/memo-fuzz-%ld", folder ? folder : "/tmp", (long)getpid());
    return path;
}

/* first_line + body + "end COUNT CHECKSUM", where COUNT is the body's lines of content, and
 * extra_lines. To be freed. */
static inline char* fuzz_seal(const char* first_line, const uint8_t* body, size_t body_bytes,
                              long extra_lines, int64_t* n_bytes) {
    size_t head_bytes = strlen(first_line), used = head_bytes + body_bytes, i, line = 0;
    char* text = (char*)malloc(used + 64);
    uint64_t hash = 14695981039346656037u;
    long n_lines = extra_lines;
    FUZZ_CHECK(text);
    memcpy(text, first_line, head_bytes);
    if (body_bytes) memcpy(text + head_bytes, body, body_bytes);
    if (body_bytes && text[used - 1] != '\n') text[used++] = '\n';
    for (i = head_bytes, line = i; i < used; i++) {
        if (text[i] != '\n') continue;
        while (line < i && strchr(" \t\r", text[line])) line++;
        n_lines += line < i && text[line] != '#';
        line = i + 1;
    }
    for (i = 0; i < used; i++) hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
    used +=
        (size_t)snprintf(text + used, 64, "end %ld %016llx\n", n_lines, (unsigned long long)hash);
    *n_bytes = (int64_t)used;
    return text;
}

/* What libFuzzer calls.  A test that replays inputs calls the function itself. */
#ifdef FUZZ_REPLAY
#define FUZZ_TARGET(function)
#else
/* Seconds of -max_total_time are of processor time: on a busy machine as many inputs are tried.
 * libFuzzer, which counts by the clock, gets a limit far behind. */
static inline void fuzz_is_over(int number) {
    (void)number;
    raise(SIGINT); /* it shows its figures, and ends with the status 72 */
}
int LLVMFuzzerInitialize(int* argc, char*** argv);
int LLVMFuzzerInitialize(int* argc, char*** argv) {
    static char by_the_clock[64];
    for (int i = 1; i < *argc; i++) {
        struct itimerval limit = {{0, 0}, {0, 0}};
        if (strncmp((*argv)[i], "-max_total_time=", 16)) continue;
        limit.it_value.tv_sec = atol((*argv)[i] + 16);
        snprintf(by_the_clock, sizeof by_the_clock, "-max_total_time=%ld",
                 20 * (long)limit.it_value.tv_sec + 60);
        (*argv)[i] = by_the_clock;
        signal(SIGPROF, fuzz_is_over);
        setitimer(ITIMER_PROF, &limit, NULL);
    }
    return 0;
}
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
#define FUZZ_TARGET(function)                                                                      \
    int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {                                 \
        function(data, size);                                                                      \
        return 0;                                                                                  \
    }
#endif

#if defined(FUZZ_WORDS) && !defined(FUZZ_REPLAY)
/* Names and numbers, of JSON too. */
static inline int fuzz_is_of_word(uint8_t c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c && strchr("-+._", c));
}
/* The word at a place, or the next one behind it: data[*begin], to data[*end]. */
static inline void fuzz_find_word(const uint8_t* data, size_t size, size_t* begin, size_t* end) {
    while (*begin < size && !fuzz_is_of_word(data[*begin])) ++*begin;
    while (*begin && fuzz_is_of_word(data[*begin - 1])) --*begin;
    for (*end = *begin; *end < size && fuzz_is_of_word(data[*end]);) ++*end;
}

/* Writes another word in place of one: a number close by or at the end of its range, or another
 * word of the text.  Returns the new size. */
static inline size_t fuzz_change_word(uint8_t* data, size_t size, size_t most, uint64_t random) {
    static const char* const numbers[] = {"0", "1",    "-1", "2147483648", "9223372036854775807",
                                          "x", "1e308"};
    char word[64];
    size_t begin = (size_t)(random % size), end, n = 0;
    uint64_t how = random >> 32;
    fuzz_find_word(data, size, &begin, &end);
    for (size_t i = begin; i < end && n < 40; i++) word[n++] = (char)data[i];
    word[n] = 0;
    if (how % 3 == 0) {
        n = (size_t)snprintf(word, sizeof word, "%s", numbers[how / 3 % 7]);
    } else if (how % 3 == 1) {
        n = (size_t)snprintf(word, sizeof word, "%lld",
                             (long long)((uint64_t)atoll(word) + (how & 4 ? 1u : ~(uint64_t)0)));
    } else {
        size_t from = (size_t)(how / 3 % size), to;
        fuzz_find_word(data, size, &from, &to);
        for (n = 0; from + n < to && n < 40; n++) word[n] = (char)data[from + n];
    }

    if (size - (end - begin) + n > most) return size;
    memmove(data + begin + n, data + end, size - end);
    memcpy(data + begin, word, n);
    return size - (end - begin) + n;
}

size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed);
size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
    uint64_t state = seed;
    int n = 1 + (int)(seed / 4 % 3);
    if (!size || seed % 4 == 0) return LLVMFuzzerMutate(data, size, most);
    for (; n && size; n--) {
        state = (state + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
        size = fuzz_change_word(data, size, most, state ^ state >> 29);
    }
    return size;
}
#endif

/* With FUZZ_BYTES each byte is a decision: most new inputs differ from one before in one to three, and
 * half of them in the first, which may decide what is tried: inputs of all kinds are then as many,
 * however few of them reach new code. */
#if defined(FUZZ_BYTES) && !defined(FUZZ_REPLAY)
size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed);
size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
    uint64_t state = seed;
    int n = 1 + (int)(seed / 4 % 3);
    if (!size || seed % 4 == 0) return LLVMFuzzerMutate(data, size, most);
    for (; n; n--) {
        state = (state + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
        data[(state >> 40) % size] = (uint8_t)(state >> 32);
    }
    if (state >> 63) data[0] = (uint8_t)(state >> 24);
    return size;
}
#endif

/* As it is, and sealed. */
static inline void fuzz_text(const char* first_line, long extra_lines,
                             void (*function)(const char* text, int64_t n_bytes),
                             const uint8_t* data, size_t size) {
    int64_t n_bytes;
    char* sealed = fuzz_seal(first_line, data, size, extra_lines, &n_bytes);
    function(size ? (const char*)data : "", (int64_t)size);
    function(sealed, n_bytes);
    free(sealed);
}

#endif
