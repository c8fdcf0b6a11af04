/* spill.c - measures the file tier: rates of the swap engine's writes and reads, beside pwrite and
 * pread of the same sizes in the same folder.
 *
 *   cc -O2 -I. bench/spill.c -lpthread -lm && ./a.out [FOLDER [MIB [SECONDS]]]
 *   nvcc -O3 -std=c++17 -I. -x cu bench/spill.c -o spill          with pinned memory, on a GPU
 *
 * Each way has an unnamed file of MIB (128), in FOLDER (TMPDIR, or /tmp).  A round writes and reads
 * all of it in operations of one size, for every way, in rotating order; the first round does not
 * count.  The program stops after SECONDS (20) for all sizes, but each size has at least one round
 * that counts; at most 9.  The table shows medians, in GB/s of 10^9 bytes.
 *
 *   engine     an operation on a stream, as the engine enqueues it: up to four threads write parts
 *              of at least 16 MiB.  It bypasses the page cache if file system and memory allow it;
 *              the heading says whether they do
 *   direct     one pwrite or pread with O_DIRECT; the ratio is to this way
 *   buffered   one pwrite through the page cache and fsync; pread after the pages were dropped */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* O_DIRECT */
#endif
#ifdef __CUDACC__
#define MEMO_CUDA_IMPLEMENTATION
#endif
#define MEMO_IMPLEMENTATION /* for its functions of files */
#ifdef __CUDACC__
#include "memo_cuda.cuh"
#else
#include "memo.h"
#endif

#include "cuda_bench.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#ifndef O_DIRECT
#define O_DIRECT 0 /* not every system has it */
#endif

enum { ENGINE, DIRECT, BUFFERED, N_WAYS, ROUNDS_MAX = 9 };
static const char* const names[N_WAYS] = {"engine", "direct", "buffered"};

static struct {
    memo_device* device;
    memo_stream stream;
    char* memory; /* of one operation, pinned */
    const char* folder;
    int64_t file_bytes;
    memob_spill_file files[N_WAYS];
} bench;

/* --- one pass over a file --- */

static void fail(const char* what) {
    fprintf(stderr, "bench/spill: %s in %s: %s\n", what, bench.folder, strerror(errno));
    exit(1);
}

static void by_engine(int is_write, int64_t size_bytes) {
    for (int64_t at = 0; at < bench.file_bytes; at += size_bytes) {
        memob_spill_op op;
        memob_spill_op_init(&op, &bench.files[ENGINE], is_write, bench.memory, at, size_bytes);
        check(memob_spill_launch(bench.device, bench.stream, &op, &error));
        check(memo_stream_synchronize(bench.device, bench.stream, &error));
    }
}

static void by_calls(int way, int is_write, int64_t size_bytes) {
    const int fd = bench.files[way].fd;
#ifdef POSIX_FADV_DONTNEED
    if (way == BUFFERED && !is_write) (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
#endif
    for (int64_t at = 0; at < bench.file_bytes; at += size_bytes) {
        const ssize_t n = is_write ? pwrite(fd, bench.memory, (size_t)size_bytes, (off_t)at)
                                   : pread(fd, bench.memory, (size_t)size_bytes, (off_t)at);
        if (n != (ssize_t)size_bytes) fail(is_write ? "pwrite" : "pread");
        if (way == BUFFERED && is_write && fsync(fd)) fail("fsync");
    }
}

static double run_pass(int way, int is_write, int64_t size_bytes) {
    const double begin_s = now_s();
    if (way == ENGINE)
        by_engine(is_write, size_bytes);
    else
        by_calls(way, is_write, size_bytes);
    return (double)bench.file_bytes / (now_s() - begin_s) * 1e-9;
}

/* --- the table --- */

static int is_direct(int way) {
    const int flags = fcntl(bench.files[way].fd, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) != 0;
}

static void measure(int64_t size_bytes, double limit_s) {
    double rates[N_WAYS][2][ROUNDS_MAX], base[2] = {0, 0};
    const double begin_s = now_s();
    int n_rounds = 0, way;
    for (int round = -1; round < 1 || (round < ROUNDS_MAX && now_s() - begin_s < limit_s);
         round++) {
        for (int turn = 0; turn < N_WAYS; turn++) {
            way = (turn + round + 1) % N_WAYS; /* a disk with a cache favors the first one */
            for (int is_write = 1; is_write >= 0; is_write--) {
                const double rate = run_pass(way, is_write, size_bytes);
                if (round >= 0) rates[way][is_write][round] = rate;
            }
        }
        n_rounds = round + 1;
    }

    for (int is_write = 0; is_write < 2; is_write++)
        base[is_write] = median(rates[DIRECT][is_write], n_rounds);
    for (way = 0; way < N_WAYS; way++) {
        const double write = median(rates[way][1], n_rounds),
                     read = median(rates[way][0], n_rounds);
        printf("| %.0f MiB | %s | %.3f | %.3f | %.2f | %.2f |\n", (double)size_bytes / 1048576,
               names[way], write, read, write / base[1], read / base[0]);
    }
    fflush(stdout);
}

int main(int argc, char** argv) {
    static const int64_t mib[] = {1, 16, 64, 256};
    const char* folder = getenv("TMPDIR");
    bench_help(argc, argv, "[FOLDER [MIB [SECONDS]]]");
    const double seconds = bench_number(argc, argv, 3, 20, 0, 1e6);
    const int64_t file_mib = (int64_t)bench_number(argc, argv, 2, 128, 1, 1 << 20);
    int n = 0;
    while (n < 4 && file_mib % mib[n] == 0) n++;
    bench.folder = argc > 1 ? argv[1] : folder && *folder ? folder : "/tmp";
    bench.file_bytes = file_mib << 20;
    bench.device = new_device();
    bench.stream = new_stream(bench.device, "file", 0);
    bench.memory = (char*)host_memory(bench.device, mib[n - 1] << 20);
    memset(bench.memory, 1, (size_t)mib[n - 1] << 20);

    /* All files as the engine creates its own; the buffered one is opened to the page cache
     * again. */
    for (int way = 0; way < N_WAYS; way++)
        check(memob_spill_create(&bench.files[way], bench.folder, bench.file_bytes, 0, bench.memory,
                                 &error));
    if (fcntl(bench.files[BUFFERED].fd, F_SETFL,
              fcntl(bench.files[BUFFERED].fd, F_GETFL) & ~O_DIRECT))
        fail("fcntl");

    printf("### File tier: %lld MiB in %s, the engine %s the page cache\n\n", (long long)file_mib,
           bench.folder, is_direct(ENGINE) ? "bypasses" : "cannot bypass");
    printf("| operation | way | write GB/s | read GB/s | write, to direct | read, to direct |\n"
           "|---|---|---|---|---|---|\n");
    for (int k = 0; k < n; k++) measure(mib[k] << 20, seconds / n);
    printf("\n");
    if (!is_direct(DIRECT))
        printf("O_DIRECT does not work here: direct goes through the page cache too.\n\n");

    for (int way = 0; way < N_WAYS; way++) memob_spill_destroy(&bench.files[way]);
    check(memo_host_free(bench.device, bench.memory, &error));
    check(memo_stream_destroy(bench.device, bench.stream, &error));
    destroy_device(bench.device);
    return 0;
}
