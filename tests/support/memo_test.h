/* memo_test.h - the frame of a test program: checks, a filter of names, and a seed that is printed
 * and can be set.
 *
 *   TEST(adds_up) { CHECK(1 + 1 == 2); }
 *
 * A file that does more than run its tests defines MEMO_TEST_OWN_MAIN before, and its own main.
 *
 * Usage of a test program: [NAME] [--seed N]   NAME: only the tests whose name contains it.
 * Output: TAP.  Tests run in the order of the file.  A test's random cases come from
 * memo_test_random(), seeded anew for each test. */
#ifndef MEMO_TEST_H
#define MEMO_TEST_H

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct memo_test_entry {
    const char* name;
    void (*function)(void);
    struct memo_test_entry* next;
} memo_test_entry;

static struct {
    memo_test_entry *first, *last;
    const char* filter;
    uint64_t seed, state;
    const uint8_t* bytes; /* of a fuzzer: decide before the seed does */
    size_t n_bytes;
    int n_tests, n_failed, failures; /* failures: of the test that runs */
    const char* skip_reason;
    char case_name[600]; /* of the checks; empty: unnamed */
    int is_inside;       /* a test runs, and `leave` ends it */
    jmp_buf leave;
} memo_test;

static inline uint64_t memo_test_next(uint64_t* state) { /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static inline uint64_t memo_test_random(void) {
    if (!memo_test.n_bytes) return memo_test_next(&memo_test.state);
    memo_test.n_bytes--;
    return *memo_test.bytes++ * UINT64_C(0x0101010101010101);
}
/* Uniform in [low, high]. */
static inline int64_t memo_test_int(int64_t low, int64_t high) {
    return low + (int64_t)(memo_test_random() % ((uint64_t)high - (uint64_t)low + 1));
}
/* Uniform in [0, 1). */
static inline double memo_test_real(void) {
    return (double)(memo_test_random() >> 11) * (1.0 / 9007199254740992.0);
}

/* Whether this is `make test-all`: random campaigns may be long. */
static inline int memo_test_all(void) {
    const char* all = getenv("MEMO_TEST_ALL");
    return all && *all;
}

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MEMO_TEST_TSAN
#endif
#elif defined(__SANITIZE_THREAD__)
#define MEMO_TEST_TSAN
#endif
/* Returns how many cases of a campaign run: `all` under `make test-all`, a tenth under `make test-all
 * MEMO_TEST_ALL=1/10` but at least n, and half of n with each push.  Under ThreadSanitizer, which plans
 * ten times as long, a quarter of n. */
static inline int memo_test_cases(int n, int all) {
    const char* part = memo_test_all() ? strchr(getenv("MEMO_TEST_ALL"), '/') : NULL;
    const int n_parts = part && atoi(part + 1) > 0 ? atoi(part + 1) : 1;
    if (memo_test_all() && all / n_parts > n) n = all / n_parts;
#ifdef MEMO_TEST_TSAN
    return n < 4 ? 1 : n / 4;
#endif
    return memo_test_all() ? n : (n + 1) / 2;
}

/* A NaN, also with -ffast-math. */
static inline double memo_test_nan(void) {
    const uint64_t bits = (uint64_t)0x7ff8 << 48;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The larger one; NaN if one of them is. */
static inline double memo_test_worst(double a, double b) { return b <= a || a != a ? a : b; }

#if defined(MEMO_TEST_FAULTS) && defined(MEMO_H)
#include "faults.h"
#endif

/* VARIANT=strict, in a program with its own implementation: what the linker cannot wrap
 * (tests/cuda/instead.cpp). */
#if defined(MEMO_TEST_STRICT) && defined(MEMO_STATIC)
#define INSTEAD(function) __wrap_memo_host_device_##function
memo_status INSTEAD(create)(const memo_host_device_desc*, memo_device**, memo_error*);
void INSTEAD(destroy)(memo_device*);
memo_status INSTEAD(launch)(memo_device*, memo_stream, memo_host_function, const void*, int64_t,
                            memo_error*);
memo_status INSTEAD(sleep)(memo_device*, memo_stream, double, memo_error*);
memo_host_device_stats INSTEAD(get_stats)(const memo_device*);
#define memo_host_device_create    INSTEAD(create)
#define memo_host_device_destroy   INSTEAD(destroy)
#define memo_host_device_launch    INSTEAD(launch)
#define memo_host_device_sleep     INSTEAD(sleep)
#define memo_host_device_get_stats INSTEAD(get_stats)
#endif

/* Counts a failure.  Is it one of the first 10, of which more is printed? */
static inline int memo_test_fails(const char* file, int line, const char* condition) {
#if defined(MEMO_TEST_FAULTS) && defined(MEMO_H)
    faulty_end();
#endif
    if (++memo_test.failures > 10) return 0;
    printf("# %s:%d: CHECK(%s) is false", file, line, condition);
    if (memo_test.case_name[0]) printf(", %s", memo_test.case_name);
    if (getenv("MEMO_TEST_FIRST")) { /* tests/mutation.py needs no more */
        printf("\n");
        fflush(stdout);
        _exit(1);
    }
    return 1;
}

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition) && memo_test_fails(__FILE__, __LINE__, #condition)) printf("\n");         \
    } while (0)

/* Calls a function whose status the test does not need. */
#define IGNORE(call)                                                                               \
    do {                                                                                           \
        if (call) continue;                                                                        \
    } while (0)

/* Names the case of the following checks, until another or the end of the test. */
#define IN_CASE(...) ((void)snprintf(memo_test.case_name, sizeof memo_test.case_name, __VA_ARGS__))

/* CHECK with a printf message that says which case it was. */
#define CHECK_CASE(condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition) && memo_test_fails(__FILE__, __LINE__, #condition)) {                     \
            printf(": ");                                                                          \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
        }                                                                                          \
    } while (0)

/* The text must contain the part; prints the text otherwise. */
#define CHECK_TEXT(text, part) CHECK_CASE(strstr(text, part), "%s", text)

/* CHECK(left op right) that prints both values when it fails; each is evaluated once. */
#ifdef __cplusplus
#define CHECK_IS(left, op, right) CHECK((left)op(right))
#else
static inline void memo_test_put_real(double x) { printf("%.17g", x); }
static inline void memo_test_put_signed(long long x) { printf("%lld", x); }
static inline void memo_test_put_unsigned(unsigned long long x) { printf("%llu", x); }
static inline void memo_test_put_pointer(const volatile void* x) {
    printf("0x%llx", (unsigned long long)(uintptr_t)x);
}
#define MEMO_TEST_PUT(x)                                                                           \
    __extension__ _Generic((x), float                                                              \
                           : memo_test_put_real, double                                            \
                           : memo_test_put_real, char                                              \
                           : memo_test_put_signed, signed char                                     \
                           : memo_test_put_signed, short                                           \
                           : memo_test_put_signed, int                                             \
                           : memo_test_put_signed, long                                            \
                           : memo_test_put_signed, long long                                       \
                           : memo_test_put_signed, unsigned char                                   \
                           : memo_test_put_unsigned, unsigned short                                \
                           : memo_test_put_unsigned, unsigned                                      \
                           : memo_test_put_unsigned, unsigned long                                 \
                           : memo_test_put_unsigned, unsigned long long                            \
                           : memo_test_put_unsigned, default                                       \
                           : memo_test_put_pointer)(x)
#define CHECK_IS(left, op, right)                                                                  \
    do {                                                                                           \
        _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wsign-compare\"")        \
            _Pragma("GCC diagnostic ignored \"-Wconversion\"") __typeof__(left) check_left =       \
                (left);                                                                            \
        __typeof__(right) check_right = (right);                                                   \
        if (!(check_left op check_right) &&                                                        \
            memo_test_fails(__FILE__, __LINE__, #left " " #op " " #right)) {                       \
            printf(": ");                                                                          \
            MEMO_TEST_PUT(check_left);                                                             \
            printf(" and ");                                                                       \
            MEMO_TEST_PUT(check_right);                                                            \
            printf("\n");                                                                          \
        }                                                                                          \
        _Pragma("GCC diagnostic pop")                                                              \
    } while (0)
#endif

/* The call must return MEMO_STATUS_OK; prints error.message otherwise.  Needs `memo_error error`.
 */
#define CHECK_OK(call) CHECK_CASE((call) == MEMO_STATUS_OK, "%s", error.message)

/* The call must return MEMO_STATUS_<status>; with CHECK_ERROR error.message must contain the text
 * too. */
#define CHECK_ERROR(call, status, text)                                                            \
    do {                                                                                           \
        const int check_status = (int)(call);                                                      \
        CHECK_CASE(check_status == MEMO_STATUS_##status && strstr(error.message, text),            \
                   "status %d, %s", check_status, check_status ? error.message : "no error");      \
    } while (0)
#define CHECK_FAILS(call, status) CHECK_ERROR(call, status, "")

/* A check with another value at a place, which then gets its own value again:
 *   WITH(desc.n_rows, 0, CHECK_FAILS(memo_x_create(&desc, &x, &error), INVALID_ARGUMENT)); */
#define WITH(place, value, check)                                                                  \
    do {                                                                                           \
        __typeof__(place) kept_value = (place);                                                    \
        (place) = (value);                                                                         \
        check;                                                                                     \
        (place) = kept_value;                                                                      \
    } while (0)

/* Leaves the test; it counts as skipped. */
#define SKIP(reason)                                                                               \
    do {                                                                                           \
        memo_test.skip_reason = (reason);                                                          \
        return;                                                                                    \
    } while (0)

/* Defines a test; it is added to the list before main. */
#define TEST(test_name)                                                                            \
    static void test_name(void);                                                                   \
    __attribute__((constructor)) static void add_##test_name(void) {                               \
        static memo_test_entry entry;                                                              \
        entry.name = #test_name;                                                                   \
        entry.function = test_name;                                                                \
        *(memo_test.first ? &memo_test.last->next : &memo_test.first) = &entry;                    \
        memo_test.last = &entry;                                                                   \
    }                                                                                              \
    static void test_name(void)

/* Where temporary files go: TMPDIR, or /tmp.  If that is no folder to write to, the test counts as
 * skipped; outside of a test the program ends. */
static inline const char* memo_test_folder(void) {
    const char* folder = getenv("TMPDIR");
    if (!folder || !*folder) folder = "/tmp";
    if (access(folder, W_OK | X_OK) == 0 && strlen(folder) <= 160) return folder;
    if (memo_test.is_inside) {
        memo_test.skip_reason = "TMPDIR cannot be written; set it to another folder";
        longjmp(memo_test.leave, 1);
    }
    printf("1..0 # SKIP no file can be made in %s; set TMPDIR to another folder\n", folder);
    exit(0);
}

/* A name there that no other process has; path has room for 250 bytes. */
static inline const char* memo_test_path(char* path, const char* name) {
    snprintf(path, 250, "%s/memo_test_%ld_%s", memo_test_folder(), (long)getpid(), name);
    return path;
}

/* The bytes of a file, followed by a 0; the caller frees them.  NULL if it cannot be read. */
static inline char* memo_test_file(const char* path, int64_t* n_bytes) {
    FILE* file = fopen(path, "rb");
    long size = -1;
    char* text = NULL;
    if (n_bytes) *n_bytes = 0;
    if (file && fseek(file, 0, SEEK_END) == 0) size = ftell(file);
    if (size >= 0) text = (char*)malloc((size_t)size + 1);
    if (text) {
        rewind(file);
        size = (long)fread(text, 1, (size_t)size, file);
        text[size] = 0;
        if (n_bytes) *n_bytes = size;
    }
    if (file) fclose(file);
    return text;
}

static inline void memo_test_begin(int argc, char** argv) {
    memo_test.seed = 20240607;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            memo_test.seed = strtoull(argv[++i], NULL, 10);
        else
            memo_test.filter = argv[i];
    }
    printf("# %s --seed %llu\n", argv[0], (unsigned long long)memo_test.seed);
}

static inline void memo_test_run(const memo_test_entry* test) {
    clock_t begin;
    double used_s;
    if (memo_test.filter && !strstr(test->name, memo_test.filter)) return;
    memo_test.failures = 0;
    memo_test.skip_reason = NULL;
    memo_test.case_name[0] = 0;
    memo_test.state = memo_test.seed;
    memo_test.n_tests++;
    begin = clock();
    memo_test.is_inside = 1;
    if (!setjmp(memo_test.leave)) test->function();
    memo_test.is_inside = 0;
    used_s = (double)(clock() - begin) / CLOCKS_PER_SEC;
    if (used_s >= 3) printf("# %s: %.1f s of processor time\n", test->name, used_s);
    if (memo_test.failures) {
        memo_test.n_failed++;
        printf("not ok %d - %s\n", memo_test.n_tests, test->name);
    } else if (memo_test.skip_reason) {
        printf("ok %d - %s # SKIP %s\n", memo_test.n_tests, test->name, memo_test.skip_reason);
    } else {
        printf("ok %d - %s\n", memo_test.n_tests, test->name);
    }
    fflush(stdout);
}

/* Runs all tests after memo_test_begin; returns the exit status. */
static inline int memo_test_run_all(void) {
    const memo_test_entry* test;
    for (test = memo_test.first; test; test = test->next) memo_test_run(test);
    printf("1..%d\n", memo_test.n_tests);
    return memo_test.n_failed ? 1 : 0;
}

#ifndef MEMO_TEST_OWN_MAIN
int main(int argc, char** argv) {
    memo_test_begin(argc, argv);
    return memo_test_run_all();
}
#endif

#endif
