/* test_train_faults.c - the trainer on a device that fails: in a short run that saves, on one rank
 * and on several, a call of a rank's device fails once.
 *
 * Each run is the trainer's main in a process of its own.  It ends in time, with one message and
 * status 1.  The checkpoint before is whole, or replaced by a whole one, and no other file is left.
 * `make test` takes a sample of the calls, `make test-all` all of them.  Last, what needs no run:
 * times of policies, and command lines. */
struct memo_device;
static struct memo_device* test_device_around(struct memo_device* device);
#define TRAIN_DEVICE_AROUND(device) test_device_around(device)
#include "gpt_trainer_unit.h"
#define FUZZ_REPLAY
#include "fuzz_options.c"
#include "memo_test.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/wait.h>

/* ---- in the process of a run ------------------------------------------------------------------ */

enum { MAX_DEVICES = 64, MAX_BYTES = 1 << 18 };

/* Shared with the test.  A run opens a device for each rank of each policy. */
typedef struct test_run {
    int failing_device; /* in the order in which they are opened */
    int64_t failing_call;
    int n_devices, has_failed;
    char failed[64]; /* the name of the call */
    int64_t n_calls[MAX_DEVICES];
} test_run;

static test_run* test_shared;
static memo_faults test_faults[MAX_DEVICES];

static memo_device* test_device_around(memo_device* device) {
    const int k = __atomic_fetch_add(&test_shared->n_devices, 1, __ATOMIC_RELAXED);
    if (k >= MAX_DEVICES) abort();
    memo_faults_init(&test_faults[k], device);
    if (k == test_shared->failing_device) test_faults[k].failing_call = test_shared->failing_call;
    return &test_faults[k].device;
}

static void test_run_here(const char* folder, int argc, char** argv) {
    if (chdir(folder) || !freopen("../out", "w", stdout) || !freopen("../err", "w", stderr))
        _exit(99);
    alarm(60); /* ends a run that hangs */
    int code = train_gpt_main(argc, argv);
    fflush(NULL);
    for (int k = 0; k < test_shared->n_devices; k++) {
        test_shared->n_calls[k] = test_faults[k].n_calls;
        if (!test_faults[k].failed) continue;
        test_shared->has_failed = 1;
        snprintf(test_shared->failed, sizeof test_shared->failed, "%s", test_faults[k].failed);
    }
    _exit(code);
}

/* ---- in the test ------------------------------------------------------------------------------ */

static char test_folder[300];

/* Returns the exit status; -1: a signal ended the run. */
static int test_train(const char* arguments, const char* more, int device, int64_t call) {
    char text[1000], *argv[64], folder[320];
    int argc = 0, status = 0;
    snprintf(text, sizeof text,
             "train_gpt --random-tokens --layers 3 --hidden 8 --heads 2 --seq 8 "
             "--batch 2 --steps 2 %s %s",
             arguments, more);
    for (char* word = strtok(text, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    argv[argc] = NULL;
    snprintf(folder, sizeof folder, "%s/run", test_folder);
    memset(test_shared, 0, sizeof *test_shared);
    test_shared->failing_device = device;
    test_shared->failing_call = call;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) test_run_here(folder, argc, argv);
    if (child < 0 || waitpid(child, &status, 0) != child) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Returns the bytes of a file below the folder, of which static memory has the last four; -1: there
 * is no file. */
static char test_bytes[4][MAX_BYTES];
static int64_t test_read(const char* name, char* bytes) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s", test_folder, name);
    FILE* file = fopen(path, "rb");
    if (!file) return -1;
    const size_t n = fread(bytes, 1, MAX_BYTES - 1, file);
    bytes[n] = 0;
    fclose(file);
    return (int64_t)n;
}

static void test_write_old(int64_t n_bytes) {
    char path[400];
    snprintf(path, sizeof path, "%s/run/kept", test_folder);
    FILE* file = fopen(path, "wb");
    CHECK(file && (int64_t)fwrite(test_bytes[0], 1, (size_t)n_bytes, file) == n_bytes);
    if (file) fclose(file);
}

/* Removes all files of a run; returns how many are no checkpoint nor profile. */
static int test_clear(void) {
    char path[700];
    int n_strange = 0;
    snprintf(path, sizeof path, "%s/run", test_folder);
    DIR* folder = opendir(path);
    struct dirent* entry;
    while (folder && (entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] == '.') continue;
        n_strange += strcmp(entry->d_name, "kept") != 0 && strcmp(entry->d_name, "kept.profile");
        snprintf(path, sizeof path, "%s/run/%s", test_folder, entry->d_name);
        unlink(path);
    }
    if (folder) closedir(folder);
    return n_strange;
}

/* Sessions that time themselves do without their whole budget, without events of timers, and without
 * the memory and streams of copies beside timed layers. */
static int test_is_spared(void) {
    static const char* const spared[] = {"device_alloc", "host_alloc", "stream_create",
                                         "event_create"};
    int k = 0;
    while (k < 4 && strcmp(test_shared->failed, spared[k]) != 0) k++;
    return k < 4;
}

static void test_fault(const char* arguments, const int64_t sizes[3], int device, int64_t call) {
    char *now = test_bytes[3], err[4096] = "";
    int n_lines = 0, is_whole = 0, is_last;
    test_write_old(sizes[0]);
    const int code = test_train(arguments, "--save kept --save-every 1", device, call);
    const int64_t n_now = test_read("run/kept", now);
    for (int k = 0; k < 3; k++)
        is_whole |= n_now == sizes[k] && !memcmp(now, test_bytes[k], (size_t)n_now);
    is_last = n_now == sizes[2] && !memcmp(now, test_bytes[2], (size_t)n_now);
    const int n_strange = test_clear();

    CHECK_CASE(code >= 0, "%s: device %d, call %d: a signal, or no end", arguments, device,
               (int)call);
    CHECK_CASE(is_whole, "%s: device %d, call %d: %d bytes", arguments, device, (int)call,
               (int)n_now);
    CHECK_CASE(!n_strange, "%s: device %d, call %d: a file is left", arguments, device, (int)call);
    if (test_read("err", now) > 0) snprintf(err, sizeof err, "%.4000s", now);
    for (const char* c = err; *c; c++) n_lines += *c == '\n';
    if (code >= 0 && !test_shared->has_failed)
        CHECK_CASE(code == 0 && n_lines == 0, "%s: device %d, call %d: status %d, %s", arguments,
                   device, (int)call, code, err);
    else if (code != 0 || !test_is_spared())
        CHECK_CASE(code == 1 && n_lines == 1 && strstr(err, "on purpose"),
                   "%s: device %d, call %d (%s): status %d, %s", arguments, device, (int)call,
                   test_shared->failed, code, err);
    else
        CHECK_CASE(n_lines == 0 && is_last, "%s: device %d, call %d (%s): %s", arguments, device,
                   (int)call, test_shared->failed, err);
}

static void test_campaign(const char* arguments, int n_sampled) {
    int64_t sizes[3], n_calls[MAX_DEVICES], n_all = 0;
    const char* folder = getenv("TMPDIR");
    char path[400];
    snprintf(test_folder, sizeof test_folder, "%s/memo-faults-XXXXXX", folder ? folder : "/tmp");
    if (!mkdtemp(test_folder)) SKIP("no folder can be made in TMPDIR");
    snprintf(path, sizeof path, "%s/run", test_folder);
    CHECK(mkdir(path, 0700) == 0);
    test_shared = (test_run*)mmap(NULL, sizeof *test_shared, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (test_shared == MAP_FAILED) SKIP("no shared memory");

    /* The checkpoint before, of another seed, and those after each step. */
    static const char* const runs[3] = {"--save kept --seed 9", "--save kept --stop 1",
                                        "--save kept --save-every 1"};
    for (int k = 0; k < 3; k++) {
        test_clear();
        CHECK(test_train(arguments, runs[k], -1, 0) == 0);
        sizes[k] = test_read("run/kept", test_bytes[k]);
        CHECK(sizes[k] > 0 && sizes[k] < MAX_BYTES - 1);
    }
    CHECK(memcmp(test_bytes[1], test_bytes[2], (size_t)sizes[1]) != 0);

    /* Every call, or the first ones of a rank and one of each of n_sampled equal parts. */
    const int n_devices = test_shared->n_devices;
    for (int k = 0; k < n_devices; k++) n_all += n_calls[k] = test_shared->n_calls[k];
    CHECK(n_devices > 0 && n_all > n_sampled);
    const int64_t part = memo_test_all() ? 1 : n_all / n_sampled;
    for (int64_t begin = 0; begin + part <= n_all && memo_test.failures < 3; begin += part) {
        int64_t call = begin + memo_test_int(0, part - 1);
        int device = 0;
        while (call >= n_calls[device]) call -= n_calls[device++];
        test_fault(arguments, sizes, device, call + 1);
    }
    for (int64_t call = 1; call <= 10 && !memo_test_all() && memo_test.failures < 3; call++)
        test_fault(arguments, sizes, 0, call);
    printf("# %s: %d devices, %d calls\n", arguments, n_devices, (int)n_all);

    test_clear();
    rmdir(path);
    snprintf(path, sizeof path, "%s/out", test_folder), unlink(path);
    snprintf(path, sizeof path, "%s/err", test_folder), unlink(path);
    rmdir(test_folder);
    munmap(test_shared, sizeof *test_shared);
}

TEST(one_rank) {
    test_campaign("--policy swap", 16);
    test_campaign("--policy alpha", 12);
    test_campaign("--update host --accumulate 2", 16);
}
TEST(ranks_are_threads) {
    test_campaign("--policy swap --data 2 --zero 1", 12);
    test_campaign("--policy recompute --tensor 2", 12);
}
TEST(policies_are_compared) { test_campaign("--compare 1 --alpha 0.5", 16); }

/* ---- times of policies ------------------------------------------------------------------------ */

/* Tells `compare` steps of each policy, of which every second has a time: ms[policy], and of one
 * policy those of its rounds. */
static void test_tell_times(job* j, int64_t compare, const double* ms, int one, const double* its) {
    static comparison rows[N_POLICIES];
    static memo_step_plan plans[N_POLICIES];
    static double times[N_POLICIES][4 * 12], scratch[12];
    static uint64_t digests[12];
    static int64_t swapped[32]; /* rows of a layer's tensors */
    memset(times, 0, sizeof times);
    j->options.compare = compare;
    j->compared = rows;
    CHECK(compare <= 12);
    for (int i = 0; i < N_POLICIES; i++) {
        const comparison row = {.step_s = times[i],
                                .stall_s = times[i] + 12,
                                .predicted_s = times[i] + 24,
                                .losses = times[i] + 36,
                                .digests = digests};
        rows[i] = row;
        rows[i].is_short = i == MEMO_POLICY_KEEP;
        rows[i].moved_bytes = 5;
        plans[i].swap.n_rows = 1;
        plans[i].swap.rows = swapped;
        j->plans[i] = &plans[i];
        for (int k = 0; k < compare / 2; k++) {
            times[i][k] = 1e-3 * (its && i == one ? its[k] : ms[i]);
            times[i][24 + k] = 1e-3 * ms[i];
        }
    }
    j->scratch = scratch;
    CHECK(put_comparison(j, &j->told));
}

static const double test_ms[N_POLICIES] = {100, 50, 150, 200, 120};

TEST(times_are_told) {
    static const double delayed[] = {50, 50, 900, 74, 50, 1};
    job j = {0};
    for (int64_t compare = 10; compare <= 12; compare++) {
        test_tell_times(&j, compare, test_ms, 0, NULL);
        CHECK(strstr(j.told.data, "     50.0 ms   50.0 to  50.0    0.0 ms"));
        CHECK(strstr(j.told.data, "    200.0 ms  200.0 to 200.0    0.0 ms"));
        CHECK(strstr(j.told.data, "times are medians of every second step"));
        CHECK(strstr(j.told.data, "predicted 50.0 ms a step, measured 50.0 ms"));
        CHECK(!strstr(j.told.data, "no times"));
        memo_text_free(&j.told);
    }

    /* One round that is too long, and one that is too short, hide nothing. */
    test_tell_times(&j, 12, test_ms, 1, delayed);
    CHECK(strstr(j.told.data, "     50.0 ms   50.0 to  68.0    0.0 ms"));
    CHECK(!strstr(j.told.data, "no times"));
    memo_text_free(&j.told);
}

/* The table has a row with bytes and equality for each policy, no time, and one line that says
 * why. */
static void test_no_times(job* j, const char* why) {
    const char* at = j->told.data;
    int n_rows = 0;
    for (; at && (at = strstr(at, " 5 B ")); at++) n_rows++; /* moved in a step */
    CHECK_IS(n_rows, ==, N_POLICIES);
    at = strstr(j->told.data, "\nno times  ");
    CHECK(at && !strncmp(at + 11, why, strlen(why)));
    CHECK(at && !strstr(at + 1, "\nno times  "));
    CHECK(!strstr(j->told.data, "step time") && !strstr(j->told.data, "quartiles"));
    CHECK(!strstr(j->told.data, "predicted"));
    if (at) *(char*)(uintptr_t)at = 0;
    CHECK(!strstr(j->told.data, " ms"));
    memo_text_free(&j->told);
}

TEST(times_that_tell_nothing_are_not_told) {
    static const double busy[][6] = {{100, 151, 149, 100, 90, 200}, {1, 10, 11, 12, 15, 90}};
    job j = {0};
    for (int policy = 0; policy < N_POLICIES; policy++) {
        char why[160];
        snprintf(why, sizeof why,
                 "steps of %s take 100.0 to 151.0 ms, so the machine does other work, too; without "
                 "that work the table has times\n",
                 memo_policy_name((memo_policy)policy));
        test_tell_times(&j, 12, test_ms, policy, busy[0]);
        test_no_times(&j, why);
    }
    test_tell_times(&j, 12, test_ms, MEMO_POLICY_SWAP, busy[1]);
    test_no_times(&j, "steps of swap take 10.0 to 15.0 ms");

    /* Too few. */
    test_tell_times(&j, 9, test_ms, 0, NULL);
    test_no_times(&j, "4 timed rounds cannot tell policies apart; --compare 10 has 5\n");
    test_tell_times(&j, 1, test_ms, 0, NULL);
    test_no_times(&j, "1 timed round cannot tell policies apart; --compare 10 has 5\n");
    j.options.seconds = 70;
    test_tell_times(&j, 6, test_ms, 0, NULL);
    test_no_times(&j,
                  "3 timed rounds cannot tell policies apart; --compare 10 with more --seconds");
}

/* ---- command lines ---------------------------------------------------------------------------- */

/* tests/trainer/fuzz_options.c, with random bytes. */
TEST(command_lines_are_refused_in_one_line_or_work) {
    uint8_t bytes[121];
    for (int round = 0; round < memo_test_cases(100000, 1000000); round++) {
        const size_t size = (size_t)(memo_test_int(1, 120) / memo_test_int(1, 20) + 1);
        for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)memo_test_random();
        fuzz_options(bytes, size);
    }
}
