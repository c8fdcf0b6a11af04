/* test_spill.c - the spill file: it has no name and is removed on every path, its sizes are exact,
 * and every fault of a disk is a status. */
#include "signals.h"

#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include "extras/memo_look.h"
#define MEMO_TEST_OWN_MAIN
#include "stats.h"
#include "swap_chain.h"
#include "owned.h"

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>

static char folder[256]; /* of this run; empty except for files that the engine leaves */

static int n_entries(const char* path) {
    DIR* directory = opendir(path);
    int n = 0;
    if (!directory) return -1;
    while (readdir(directory)) n++;
    closedir(directory);
    return n - 2; /* itself and the one above */
}

/* The number of open files of this process; 0 if unknown. */
static int n_open_files(void) {
    int n = n_entries("/proc/self/fd");
    return n < 0 ? 0 : n;
}

/* Layers of three tensors, of which two layers at the end stay on the device. */
static void small_chain(chain* c, int32_t n_layers, int32_t n_host_layers) {
    chain_init(c, 3);
    c->desc.n_layers = n_layers;
    c->desc.n_rows = 100;
    c->desc.tile_rows = 10;
    c->desc.alpha = 0.5;
    c->desc.n_host_layers = n_host_layers;
    c->desc.spill_directory = folder;
    for (int32_t t = 0; t < 3; t++) {
        c->tensors[t].row_bytes = 10 + 30 * t;
        c->tensors[t].away = t ? MEMO_ROWS : MEMO_WHOLE;
    }
}

/* A host device for the chain. */
static int n_files_before;
static void open_host(chain* c) {
    n_files_before = n_open_files();
    c->device = c->host = new_device(MEMO_ZERO(memo_host_device_desc));
}

/* Everything given back, nothing in the folder. */
static void close_host(chain* c) {
    drop_device(&c->host);
    CHECK_CASE(n_entries(folder) == 0, "%d files left", n_entries(folder));
    CHECK_CASE(n_open_files() == n_files_before, "%d files open, %d before", n_open_files(),
               n_files_before);
}
#define own_chain OWNED(close_host) chain

static int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* With fewer places than layers move, the last two are windows of all layers that have no place. */
static int32_t windows_of(int32_t n_places) { return n_places < 2 ? n_places : 2; }
static int32_t layers_in_file(int32_t n_moved, int32_t n_places) {
    return n_places && n_places < n_moved ? n_moved - n_places + windows_of(n_places) : 0;
}
/* Bytes written and read in a micro-batch: the last layer of each window comes back first. */
static int64_t bytes_through(const memo_swap_sizes* sizes, int32_t n_places) {
    const int32_t n = sizes->n_spilled_layers;
    return n ? sizes->spill_bytes / n * (n - windows_of(n_places)) : 0;
}

TEST(sizes_are_exact) {
    for (int32_t n_layers = 1; n_layers < 9; n_layers++) {
        for (int32_t n_host_layers = 0; n_host_layers < 9; n_host_layers++) {
            int32_t n_moved = n_layers > 2 ? n_layers - 2 : 0;
            int32_t n_spilled = layers_in_file(n_moved, n_host_layers);
            int32_t n_windows = windows_of(n_host_layers);
            int64_t layer = up(1000, 512) + up(2000, 512) + up(3500, 512);
            int64_t pages = up(layer, 4096);
            chain c;
            small_chain(&c, n_layers, n_host_layers);
            memo_swap_sizes sizes = sizes_of_desc(&c.desc);
            CHECK(sizes.n_swapped_layers == n_moved && sizes.n_spilled_layers == n_spilled);
            CHECK_IS(sizes.swapped_bytes, ==, n_moved * (1000 + 2000 + 3500));
            CHECK_IS(sizes.spill_bytes, ==, n_spilled * pages);
            CHECK_IS(sizes.host_bytes, ==,
                     n_spilled ? up((n_host_layers - n_windows) * layer, 4096) + n_windows * pages
                               : n_moved * layer);
        }
    }
}

/* The most places that fit, found by trying all. */
TEST(places_fit_host_memory) {
    for (int64_t host_bytes = 1000; host_bytes < 60000; host_bytes += 997) {
        chain c;
        small_chain(&c, 8, 0);
        memo_swap_sizes sizes = sizes_of_desc(&c.desc);
        int32_t most = sizes.host_bytes <= host_bytes ? 0 : -1;
        for (int32_t n = 5; n > 0 && most < 0; n--) {
            c.desc.n_host_layers = n;
            CHECK_OK(memo_swap_desc_get_sizes(&c.desc, &sizes, &error));
            if (sizes.host_bytes <= host_bytes) most = n;
        }
        const int fits = chain_fits(&c.desc, host_bytes);
        CHECK_CASE(fits == (most >= 0) && c.desc.n_host_layers == (most < 0 ? 1 : most),
                   "%lld bytes: %d places, not %d", (long long)host_bytes,
                   (int)c.desc.n_host_layers, (int)most);
        CHECK(chain_fits(&c.desc, 0));
        CHECK_IS(c.desc.n_host_layers, ==, 0);
    }
}

/* Every count of layers and of places; the file has no name meanwhile either. */
TEST(rows_come_back_from_the_file) {
    for (int32_t n_layers = 1; n_layers < 9; n_layers++) {
        for (int32_t n_host_layers = 0; n_host_layers < n_layers; n_host_layers++) {
            own_chain c;
            small_chain(&c, n_layers, n_host_layers);
            c.desc.alpha = n_host_layers % 3 / 2.0;
            open_host(&c);
            CHECK_OK(chain_open(&c));
            memo_swap_sizes sizes = sizes_of_desc(&c.desc);
            CHECK_IS(n_entries(folder), ==, 0);
            CHECK(n_files_before == 0 ||
                  n_open_files() == n_files_before + (sizes.n_spilled_layers > 0));
            for (int64_t micro_batch = 0; micro_batch < 3; micro_batch++)
                CHECK_OK(chain_micro_batch(&c, micro_batch, 1000));
            CHECK_OK(memo_stream_synchronize(c.host, c.compute, &error));
            memo_swap_stats stats = stats_of_swap(c.swap);
            CHECK_CASE(c.n_wrong == 0, "%d layers, %d on the host: %lld bytes", (int)n_layers,
                       (int)n_host_layers, (long long)c.n_wrong);
            CHECK_IS(stats.to_file_bytes, ==, 3 * bytes_through(&sizes, n_host_layers));
            CHECK_IS(stats.from_file_bytes, ==, stats.to_file_bytes);
            CHECK_IS(host_device_stats(c.host).host_bytes, ==, up(sizes.host_bytes, 512));
            chain_close(&c);
        }
    }
}

/* Micro-batches of an order that follow each other spill as micro-batches without one, each into
 * the same file. */
TEST(orders_spill_what_is_in_flight) {
    static const int32_t order[] = {0, -1, 0, -1, 0, -1}, places[] = {0, -1, 1, -2};
    for (int32_t n_host_layers = 1; n_host_layers < 7; n_host_layers++) {
        own_chain c;
        small_chain(&c, 7, n_host_layers);
        memo_swap_sizes alone = sizes_of_desc(&c.desc), sizes;
        memcpy(c.order, order, sizeof order);
        c.desc.order = c.order;
        c.desc.n_order = 6;
        c.desc.n_places = 1;
        sizes = sizes_of_desc(&c.desc);
        CHECK_IS(sizes.n_spilled_layers, ==, alone.n_spilled_layers);
        CHECK(sizes.spill_bytes == alone.spill_bytes && sizes.host_bytes == alone.host_bytes);
        open_host(&c);
        CHECK_OK(chain_open(&c));
        for (int64_t step = 0; step < 2; step++) CHECK_OK(chain_micro_batch(&c, step, 1000));
        CHECK_OK(memo_stream_synchronize(c.host, c.compute, &error));
        CHECK_IS(c.n_wrong, ==, 0);
        CHECK_IS(stats_of_swap(c.swap).to_file_bytes, ==,
                 2 * 3 * bytes_through(&alone, n_host_layers));
        CHECK_IS(stats_of_swap(c.swap).from_file_bytes, ==,
                 2 * 3 * bytes_through(&alone, n_host_layers));
        chain_close(&c);
    }
    for (int32_t n_host_layers = 1; n_host_layers < 9; n_host_layers++) {
        own_chain c;
        small_chain(&c, 8, n_host_layers);
        memcpy(c.order, places, sizeof places);
        c.desc.n_order = 4;
        c.desc.n_places = 2;
        c.desc.order = c.order;
        memo_swap_sizes sizes = sizes_of_desc(&c.desc);
        CHECK_IS(sizes.n_swapped_layers, ==, 4); /* of each place the last two stay */
        CHECK_IS(sizes.n_spilled_layers, ==, layers_in_file(4, n_host_layers));
        open_host(&c);
        c.desc.spill_directory = n_host_layers < 4 ? folder : NULL;
        CHECK_OK(chain_open(&c));
        for (int64_t step = 0; step < 2; step++) CHECK_OK(chain_micro_batch(&c, step, 1000));
        CHECK_OK(memo_stream_synchronize(c.host, c.compute, &error));
        CHECK_IS(c.n_wrong, ==, 0);
        chain_close(&c);
    }
}

/* Not even a program that is killed leaves the file. */
TEST(a_killed_program_leaves_nothing) {
    int how = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        chain c;
        memo_status status = MEMO_STATUS_OK;
        small_chain(&c, 6, 1);
        open_host(&c);
        status = chain_open(&c);
        for (int32_t layer = 0; layer < 6 && !status; layer++) status = chain_forward(&c, layer, 0);
        if (!status) kill(getpid(), SIGKILL);
        _exit(1);
    }
    CHECK(child > 0 && waitpid(child, &how, 0) == child);
    CHECK(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    CHECK_IS(n_entries(folder), ==, 0);
}

/* On a file system in memory, on which reads and writes may use the page cache. */
TEST(a_folder_in_memory_will_do) {
    if (access("/dev/shm", W_OK | X_OK))
        SKIP("/dev/shm cannot be written; it would need a writable tmpfs there");
    own_chain c;
    small_chain(&c, 7, 2);
    c.desc.spill_directory = "/dev/shm";
    open_host(&c);
    CHECK_OK(chain_open(&c));
    CHECK_OK(chain_micro_batch(&c, 0, 1000));
    CHECK_OK(memo_stream_synchronize(c.host, c.compute, &error));
    CHECK_IS(c.n_wrong, ==, 0);
    chain_close(&c);
}

/* A limit of the system stands for a full disk: refused before anything is written, with what would
 * work. */
TEST(a_full_disk_is_named) {
    for (int32_t n_layers = 6; n_layers <= 8; n_layers += 2) {
        struct rlimit before, small;
        char needed[32];
        own_chain c;
        small_chain(&c, n_layers, 1);
        open_host(&c);
        CHECK_IS(getrlimit(RLIMIT_FSIZE, &before), ==, 0);
        small = before;
        small.rlim_cur = n_layers == 6 ? 4096 : 10000;
        CHECK_IS(setrlimit(RLIMIT_FSIZE, &small), ==, 0);
        CHECK_IS(chain_open(&c), ==, MEMO_STATUS_IO);
        CHECK_IS(setrlimit(RLIMIT_FSIZE, &before), ==, 0);
        snprintf(needed, sizeof needed, "%d.0 KiB", 8 * (n_layers - 2));
        CHECK_CASE(strstr(error.message, "spill_directory") &&
                       strstr(error.message, "disk_bytes") && strstr(error.message, folder) &&
                       strstr(error.message, needed),
                   "%s, not: %s", error.message, needed);
    }
}

/* Through the page cache: the way for lesser file systems. */
TEST(plain_files_will_do) {
    static char memory[8192], expected[8192];
    memob_spill_op op;
    int k, n_files = n_open_files();
    memob_spill_file file = {.fd = memoi_spill_open(folder)};
    CHECK(file.fd >= 0 && n_entries(folder) == 0);
    CHECK_IS(memoi_spill_reserve(file.fd, 3 * 8192), ==, 0);
    for (k = 0; k < 6; k++) {
        int number = k % 3;
        memob_spill_op_init(&op, &file, k < 3, memory, number * 8192, 8192);
        memset(expected, 'a' + number, sizeof expected);
        memset(memory, op.is_write ? 'a' + number : 0, sizeof memory);
        CHECK_OK(memoi_spill_run(&op, &error));
        CHECK_IS(memcmp(memory, expected, sizeof memory), ==, 0);
    }
    memob_spill_destroy(&file);
    CHECK_IS(n_open_files(), ==, n_files);
}

TEST(invalid_arguments_are_refused) {
    own_chain c;
    small_chain(&c, 6, 1);
    open_host(&c);
    c.desc.spill_directory = NULL;
    CHECK_IS(chain_open(&c), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.message, "4 of 4 swapped layers") &&
          strstr(error.message, "spill_directory"));
    c.desc.spill_directory = "/no such folder";
    CHECK_ERROR(chain_open(&c), IO, "/no such folder");
    c.desc.spill_directory = folder;
    WITH(c.desc.n_host_layers, -1, CHECK_IS(chain_open(&c), ==, MEMO_STATUS_INVALID_ARGUMENT));
    WITH(c.desc.spill_bytes_per_s, -1, CHECK_IS(chain_open(&c), ==, MEMO_STATUS_INVALID_ARGUMENT));
    WITH(c.desc.spill_bytes_per_s, 1e-300,
         CHECK_ERROR(chain_open(&c), INVALID_ARGUMENT, "0 (no limit) and 1 to 1e18 are valid"));
    memo_device table = *c.host; /* one made before there was such an entry */
    table.struct_bytes = (int64_t)offsetof(memo_device, launch_host);
    c.device = &table;
    CHECK_ERROR(chain_open(&c), UNSUPPORTED, "launch_host");
    c.desc.n_host_layers = 0; /* nothing needs a file */
    c.desc.spill_directory = "/no such folder";
    CHECK_OK(chain_open(&c));
    chain_close(&c);
}

/* Layers that come back in another order than that in which they left: a table whose swapped
 * layers do not alternate. */
TEST(a_table_out_of_order_comes_back) {
    chain c;
    small_chain(&c, 8, 1);
    c.desc.rows = c.rows;
    for (int32_t layer = 0; layer < 8; layer++)
        for (int32_t t = 0; t < 3; t++) c.rows[layer * 3 + t] = 100;
    memo_swap_sizes sizes = sizes_of_desc(&c.desc);
    CHECK_IS(sizes.n_spilled_layers, ==, 6);
    for (int32_t layer = 3; layer < 7; layer += 2)
        for (int32_t t = 0; t < 3; t++) c.rows[layer * 3 + t] = 0;
    sizes = sizes_of_desc(&c.desc);
    CHECK_IS(sizes.n_spilled_layers, >, 0);
    open_host(&c);
    c.desc.spill_directory = folder;
    CHECK_OK(chain_open(&c));
    for (int64_t micro_batch = 0; micro_batch < 3; micro_batch++)
        CHECK_OK(chain_micro_batch(&c, micro_batch, 1000));
    CHECK_OK(memo_stream_synchronize(c.host, c.compute, &error));
    CHECK_IS(c.n_wrong, ==, 0);
    chain_close(&c);
    close_host(&c);
}

/* Changes of the file outside the engine. */
typedef enum mishap { CUT_SHORT, READ_ONLY, LIMITED, N_MISHAPS } mishap;

static void do_mishap(mishap what, int fd) {
    struct rlimit small;
    int other;
    switch (what) {
    case CUT_SHORT: CHECK_IS(ftruncate(fd, 4096), ==, 0); break;
    case READ_ONLY:
        other = open("/dev/null", O_RDONLY);
        CHECK(other >= 0 && dup2(other, fd) == fd);
        close(other);
        break;
    default: /* the next write comes to 4 KiB, the one after it to none */
        CHECK_IS(getrlimit(RLIMIT_FSIZE, &small), ==, 0);
        small.rlim_cur = 4096;
        CHECK_IS(setrlimit(RLIMIT_FSIZE, &small), ==, 0);
    }
}

/* A read or write that fails is returned by synchronization and by the next call; nothing hangs. */
TEST(a_failing_disk_is_a_status) {
    static const char* const words[] = {"the file ends there", "writing", "writing"};
    struct rlimit before;
    CHECK_IS(getrlimit(RLIMIT_FSIZE, &before), ==, 0);
    signal(SIGXFSZ, SIG_IGN);
    for (int what = 0; what < N_MISHAPS; what++) {
        own_chain c;
        small_chain(&c, 8, 2);
        open_host(&c);
        CHECK_OK(chain_open(&c));
        CHECK_OK(chain_micro_batch(&c, 0, 1000));
        CHECK_OK(memo_stream_synchronize(c.host, c.compute, &error));
        /* Cut short between the passes, or else writes would make it whole again. */
        for (int32_t layer = 0; layer < 8 && what == CUT_SHORT; layer++)
            CHECK_OK(chain_forward(&c, layer, 1));
        CHECK_OK(memo_stream_synchronize(c.host, c.compute, &error));
        do_mishap((mishap)what, c.swap->own_sink.engine.memory.file.fd);
        memo_status status = MEMO_STATUS_OK;
        for (int32_t layer = 0; layer < 8 && what != CUT_SHORT && !status; layer++)
            status = chain_forward(&c, layer, 1);
        for (int32_t layer = 7; layer >= 0 && !status; layer--)
            status = chain_backward(&c, layer, 1);
        if (!status) status = memo_stream_synchronize(c.host, c.compute, &error);
        CHECK_IS(setrlimit(RLIMIT_FSIZE, &before), ==, 0);
        CHECK_CASE(status == MEMO_STATUS_IO && strstr(error.message, words[what]) &&
                       strstr(error.message, folder),
                   "%s", error.message);
        CHECK_IS(memo_swap_abandon(c.swap, &error), ==, MEMO_STATUS_IO);
        CHECK_IS(memo_stream_synchronize(c.host, c.compute, &error), ==, MEMO_STATUS_IO);
        CHECK_IS(c.n_wrong, ==, 0); /* later operations were skipped */
        chain_close(&c);
    }
    signal(SIGXFSZ, SIG_DFL);
}

/* The k-th read or write fails, whichever it is. */
static memo_device* failing_host;
static int64_t n_launches, failing_launch;

static memo_status fail_io(MEMO_UNUSED void* argument, memo_error* e) {
    return memo_error_set(e, MEMO_STATUS_IO, "injected");
}
static memo_status failing_launch_host(void* context, memo_stream stream, memo_host_call* call,
                                       memo_error* e) {
    static memo_host_call failing = {fail_io, NULL, NULL};
    if (n_launches++ == failing_launch) call = &failing;
    return failing_host->launch_host(context, stream, call, e);
}

TEST(every_operation_may_fail) {
    memo_status status = MEMO_STATUS_IO;
    for (failing_launch = 0; status && failing_launch < 50; failing_launch++) {
        own_chain c;
        small_chain(&c, 6, 1);
        open_host(&c);
        failing_host = c.host;
        memo_device table = *failing_host;
        table.launch_host = failing_launch_host;
        c.device = &table;
        n_launches = 0;
        CHECK_OK(chain_open(&c));
        status = chain_micro_batch(&c, 0, 1000);
        if (!status) status = chain_micro_batch(&c, 1, 1000);
        if (!status) status = memo_stream_synchronize(&table, c.compute, &error);
        CHECK_CASE(!status || (status == MEMO_STATUS_IO && strstr(error.message, "injected")), "%s",
                   error.message);
        CHECK_IS(c.n_wrong, ==, 0);
        chain_close(&c);
    }
    CHECK_CASE(failing_launch == 2 * 2 * 3 + 1, "%lld", (long long)failing_launch);
}

/* A slow file shows as stall, in the time that the schedule says. */
TEST(a_slow_file_takes_its_time) {
    memo_profile times = {0};
    own_chain c;
    small_chain(&c, 6, 1);
    c.desc.is_timed = 1;
    c.desc.spill_bytes_per_s = 8192 / 0.01; /* three layers, 10 ms each, both ways */
    open_host(&c);
    times.file = (memo_profile_transfer){8192, 0.01, 0.01};
    const memo_swap_plan_desc step = {.swap = &c.desc, .profile = &times};
    own_schedule* schedule = schedule_of_swap(&step, 1);
    own_times* simulation = times_of(schedule);
    double simulated_s = simulation->makespan_s;
    CHECK_IS(fabs(simulated_s - 0.06), <, 1e-9);
    CHECK_OK(chain_open(&c));
    CHECK_OK(chain_micro_batch(&c, 0, 1000));
    CHECK_OK(memo_stream_synchronize(c.host, c.compute, &error));
    memo_swap_stats stats = stats_of_swap(c.swap);
    double stall_s = stats.forward_stall_s + stats.backward_stall_s;
    CHECK_CASE(stall_s > 0.02, "%g s",
               stall_s); /* less than 0.06 if the computation is delayed too */
    chain_close(&c);
}

/* Sizes from one part to four, and one that no part divides. */
TEST(large_operations_go_in_parts) {
    static const int64_t sizes[] = {4096, (int64_t)16 << 20, ((int64_t)16 << 20) + 4096,
                                    ((int64_t)64 << 20) + 4096, (int64_t)70 << 20};
    const int64_t most = (int64_t)72 << 20;
    own_device* host = new_device(MEMO_ZERO(memo_host_device_desc));
    memob_spill_file file;
    memob_spill_op op[2];
    void* memory;
    memo_stream stream = new_stream(host, "file");
    CHECK_OK(memo_host_alloc(host, 2 * most, &memory, &error));
    CHECK_OK(memob_spill_create(&file, folder, most, 0, (char*)memory, &error));
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        char *from = (char*)memory, *to = from + most;
        for (int64_t i = 0; i < sizes[k]; i += 64) from[i] = (char)memo_test_random();
        memset(to, 0, (size_t)sizes[k]);
        memob_spill_op_init(&op[0], &file, 1, from, most - sizes[k], sizes[k]);
        memob_spill_op_init(&op[1], &file, 0, to, most - sizes[k], sizes[k]);
        CHECK_OK(memob_spill_launch(host, stream, &op[0], &error));
        CHECK_OK(memob_spill_launch(host, stream, &op[1], &error));
        CHECK_OK(memo_stream_synchronize(host, stream, &error));
        CHECK_CASE(memcmp(from, to, (size_t)sizes[k]) == 0, "%lld bytes", (long long)sizes[k]);
    }
    CHECK_SIGNALS(3, CHECK_OK(memoi_spill_run(&op[1], &error)));
    memob_spill_destroy(&file);
    /* A part that fails is the operation's failure. */
    file.fd = open("/dev/null", O_RDONLY);
    CHECK_OK(memob_spill_launch(host, stream, &op[0], &error));
    CHECK_IS(memo_stream_synchronize(host, stream, &error), ==, MEMO_STATUS_IO);
    close(file.fd);
    CHECK_OK(memo_host_free(host, memory, &error));
}

int main(int argc, char** argv) {
    memo_test_begin(argc, argv);
    memo_test_path(folder, "spill");
    if (mkdir(folder, 0700)) return 2;
    int result = memo_test_run_all();
    rmdir(folder);
    return result;
}
