/* test_text.c - writing text to a file: which file is replaced and which one stays, under limits,
 * signals and missing descriptors. */
#define _DEFAULT_SOURCE 1
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The lowest descriptor that memo writes to, under a limit on file sizes. */
static int lowest;
#define lseek(descriptor, offset, whence)                                                          \
    (lowest = descriptor < lowest ? descriptor : lowest, lseek(descriptor, offset, whence))
#define umask(mask)                    umask_is_of_the_whole_process(mask)
#define sigprocmask(how, mask, before) sigprocmask_is_of_programs_without_threads(how, mask, before)
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#include "memo.h"
#undef umask
#undef sigprocmask
#undef lseek
#include "memo_test.h"

static memo_error error;
static char folder[250], path[600];

/* In the folder. */
static const char* name_of(const char* name) {
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int count_files(void) {
    DIR* directory = opendir(folder);
    int n = -2; /* . and .. */
    while (directory && readdir(directory)) n++;
    if (directory) closedir(directory);
    return n;
}

/* n bytes of `letter`. */
static memo_status write_letters(const char* to, char letter, int n) {
    memo_text text = {0};
    for (int i = 0; i < n; i += 100) memo_text_put(&text, "%0*d", n - i < 100 ? n - i : 100, 0);
    for (int64_t i = 0; i < text.n_bytes; i++) text.data[i] = letter;
    return memo_text_write(&text, to, &error);
}

/* Does the file hold n bytes of letter, and nothing else? */
static int holds(const char* from, char letter, int n) {
    const char letters[2] = {letter, 0};
    int64_t n_read;
    char* text = memo_test_file(from, &n_read);
    const int is_good = text && n_read == n && strspn(text, letters) == (size_t)n;
    free(text);
    return is_good;
}

static int mode_of(const char* of) {
    struct stat info;
    return stat(of, &info) ? -1 : (int)(info.st_mode & 07777);
}

static void begin(void) {
    memo_test_path(folder, "text");
    CHECK_IS(mkdir(folder, 0700), ==, 0);
}

static void end(void) {
    DIR* directory = opendir(folder);
    struct dirent* entry;
    while (directory && (entry = readdir(directory)))
        if (entry->d_name[0] != '.' || strlen(entry->d_name) > 2) remove(name_of(entry->d_name));
    if (directory) closedir(directory);
    CHECK_IS(rmdir(folder), ==, 0);
}

TEST(new_files_have_the_mode_of_the_umask) {
    mode_t before = umask((mode_t)027);
    begin();
    CHECK_OK(write_letters(name_of("new"), 'a', 1000));
    CHECK(mode_of(path) == 0640 && holds(path, 'a', 1000) && count_files() == 1);
    umask(before);
    end();
}

TEST(old_files_keep_their_mode) {
    static const mode_t modes[] = {0600, 0644, 0660, 0755};
    begin();
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        CHECK_OK(write_letters(name_of("old"), 'a', 10));
        CHECK_IS(chmod(path, modes[i]), ==, 0);
        CHECK_OK(write_letters(path, 'b', 20));
        CHECK_CASE(mode_of(path) == (int)modes[i], "%o became %o", (unsigned)modes[i],
                   (unsigned)mode_of(path));
        CHECK(holds(path, 'b', 20) && count_files() == 1);
    }
    end();
}

/* Runs function in a child process, so that it may change limits and users. */
static void in_a_child(int (*function)(void)) {
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(function());
    CHECK_IS(waitpid(child, &status, 0), ==, child);
    CHECK_CASE(status == 0, "the child's status is %d", status);
}

/* Nobody may write it: it stays.  Root may write anything, so this is another user. */
static int write_read_only(void) {
    if (geteuid() == 0 && (chmod(folder, 0777) || setuid(65534))) return 2;
    memo_status status = write_letters(name_of("old"), 'b', 20);
    return !(status == MEMO_STATUS_IO && strstr(error.message, "Permission denied") &&
             holds(path, 'a', 10) && count_files() == 1);
}
TEST(read_only_files_stay) {
    begin();
    CHECK_OK(write_letters(name_of("old"), 'a', 10));
    CHECK_IS(chmod(path, 0444), ==, 0);
    in_a_child(write_read_only);
    CHECK_IS(mode_of(path), ==, 0444);
    end();
}

TEST(the_longest_names_work) {
    char name[256];
    begin();
    for (int n = 240; n <= 255; n += 5) {
        memset(name, 'n', sizeof name);
        name[n] = 0;
        CHECK_OK(write_letters(name_of(name), 'a', 10));
        CHECK_OK(write_letters(path, 'b', 20));
        CHECK(holds(path, 'b', 20));
    }
    CHECK_IS(count_files(), ==, 4);
    end();
}

TEST(links_stay) {
    struct stat info;
    char linked[300];
    begin();
    CHECK_OK(write_letters(name_of("file"), 'a', 10));
    CHECK_IS(chmod(path, 0600), ==, 0);
    CHECK_IS(symlink("file", name_of("link")), ==, 0);
    CHECK_OK(write_letters(name_of("link"), 'b', 20));
    CHECK(lstat(path, &info) == 0 && S_ISLNK(info.st_mode));
    CHECK(holds(name_of("file"), 'b', 20) && mode_of(path) == 0600);
    /* To nothing yet. */
    CHECK_IS(symlink("later", name_of("promise")), ==, 0);
    snprintf(linked, sizeof linked, "%s", name_of("promise"));
    CHECK_OK(write_letters(linked, 'c', 30));
    CHECK(lstat(linked, &info) == 0 && S_ISLNK(info.st_mode) && holds(name_of("later"), 'c', 30));
    CHECK_IS(count_files(), ==, 4);
    end();
}

/* ---- limits ---- */

static int write_beyond_the_limit(void) {
    struct rlimit limit = {.rlim_cur = 100, .rlim_max = 100};
    if (setrlimit(RLIMIT_FSIZE, &limit)) return 2;
    memo_status old = write_letters(name_of("old"), 'b', 101);
    if (old != MEMO_STATUS_IO || !strstr(error.message, "File too large")) return 3;
    if (!holds(path, 'a', 10)) return 4;
    memo_status fresh = write_letters(name_of("new"), 'b', 5000);
    if (fresh != MEMO_STATUS_IO || count_files() != 1) return 5;
    /* Standard output is written from its current position. */
    if (!freopen(name_of("out"), "wb", stdout)) return 6;
    printf("%060d", 0);
    if (write_letters("-", 'b', 41) != MEMO_STATUS_IO) return 7;
    if (write_letters("-", '0', 40) || !holds(path, '0', 100)) return 8;
    remove(path);
    if (!freopen(name_of("err"), "wb", stderr)) return 10; /* as standard error is */
    fputs("00", stderr);
    if (write_letters(path, '0', 40) || !holds(path, '0', 42)) return 11;
    remove(path);
    if (write_letters(name_of("old"), 'b', 100) || !holds(path, 'b', 100)) return 9;
    return count_files() != 1;
}
TEST(a_limit_on_file_sizes_is_an_error) {
    begin();
    CHECK_OK(write_letters(name_of("old"), 'a', 10));
    in_a_child(write_beyond_the_limit);
    end();
}

TEST(no_folder_and_no_room_are_errors) {
    begin();
    CHECK_ERROR(write_letters(name_of("none/file"), 'a', 10), IO, "none/file: cannot be written: ");
    CHECK_IS(write_letters(folder, 'a', 10), ==, MEMO_STATUS_IO);
    if (access("/dev/full", W_OK) == 0)
        CHECK_IS(write_letters("/dev/full", 'a', 10), ==, MEMO_STATUS_IO);
    CHECK_IS(count_files(), ==, 0);
    end();
}

TEST(lack_of_memory_names_the_file) {
    memo_text text = {.failed = 1};
    CHECK_ERROR(memo_text_write(&text, "a/name", &error), OUT_OF_HOST_MEMORY,
                "a/name: no host memory");
}

/* ---- signals and descriptors ---- */

#ifdef MEMO_TEST_VALGRIND
#define N_KILLED 10
#else
#define N_KILLED 300
#endif

/* A process that replaces a file over and over ends by a signal: the file is whole, and alone. */
TEST(signals_leave_one_whole_file) {
    int status;
    begin();
    CHECK_OK(write_letters(name_of("file"), 'a', 100000));
    for (int n = 0; n < N_KILLED; n++) {
        static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
        struct timespec pause = {0, 0};
        pid_t child = fork();
        if (child == 0)
            for (;;) write_letters(path, n % 2 ? 'a' : 'b', 100000);
        pause.tv_nsec = (long)memo_test_int(500000, 3000000);
        nanosleep(&pause, NULL);
        kill(child, signals[n % 3]);
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        CHECK(holds(path, 'a', 100000) || holds(path, 'b', 100000));
        CHECK_CASE(count_files() == 1, "%d files", count_files());
    }
    end();
}

static int write_without_standard_descriptors(void) {
    int pipes[2], k;
    struct rlimit limit = {.rlim_cur = 1000, .rlim_max = 1000};
    if (setrlimit(RLIMIT_FSIZE, &limit)) return 1;
    for (k = 0; k < 3; k++) close(k);
    lowest = INT_MAX;
    if (write_letters(name_of("new"), 'a', 10) || lowest < 3 || lowest == INT_MAX) return 2;
    if (write_letters(name_of("new"), 'b', 10) || lowest < 3 || lowest == INT_MAX) return 3;
    if (symlink("later", name_of("promise"))) return 4;
    if (write_letters(name_of("promise"), 'c', 10) || lowest < 3 || lowest == INT_MAX) return 5;
    if (write_letters("-", 'a', 10) != MEMO_STATUS_IO) return 6;
    if (memoi_spill_open(folder) < 3) return 8;
    if (pipe(pipes) || pipes[0] != 0) return 7; /* they are all closed again */
    return 0;
}
TEST(standard_descriptors_are_left_alone) {
    begin();
    in_a_child(write_without_standard_descriptors);
    end();
}
