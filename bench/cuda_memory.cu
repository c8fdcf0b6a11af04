/* bench/cuda_memory.cu - pinning, copies over the link, phantom memory.
 *
 *   nvcc -O3 -arch=native -I. bench/cuda_memory.cu -o cuda_memory && ./cuda_memory [PINNED_GIB]
 *
 * GB/s are 10^9 bytes per second, medians of 5.  Each direction is measured alone and while the
 * other one is as busy ("both"): on coherent memory (Grace Hopper) the two directions are known to
 * differ by a factor above 2. */
#ifndef LINKED /* with an implementation compiled before */
#define MEMO_IMPLEMENTATION
#endif
#define MEMO_CUDA_IMPLEMENTATION
#include "memo_cuda.cuh"

#include "cuda_bench.h"

#define GIB ((int64_t)1 << 30)
#define MIB ((int64_t)1 << 20)

enum { REPETITIONS = 5 };

/* --- pinning --- */

static const char* const host_kind_names[] = {"none", "huge pages of the pool, registered",
                                              "transparent huge pages, registered",
                                              "usual pages, registered", "cudaHostAlloc"};

static void pin(const char* name, memo_cuda_device_desc desc, int64_t size_bytes) {
    memo_device* device;
    double begin_s;
    void* address;
    check(memo_cuda_device_create(&desc, &device, &error));
    address = host_memory(device, size_bytes);
    const memo_cuda_device_stats stats = memo_cuda_device_get_stats(device);
    begin_s = now_s();
    check(memo_host_free(device, address, &error));
    printf("| %s: %s | %.3f s/GiB (release %.3f) |\n", name, host_kind_names[stats.host_kind],
           stats.host_alloc_s / ((double)size_bytes / GIB),
           (now_s() - begin_s) / ((double)size_bytes / GIB));
    fflush(stdout);
    memo_cuda_device_destroy(device);
}

static void pin_by_cuda(const char* name, int64_t size_bytes) {
    double begin_s = now_s();
    void* address = NULL;
    CHECK_CUDA(cudaHostAlloc(&address, (size_t)size_bytes, cudaHostAllocPortable));
    double end_s = now_s();
    CHECK_CUDA(cudaFreeHost(address));
    printf("| %s | %.3f s/GiB (release %.3f) |\n", name,
           (end_s - begin_s) / ((double)size_bytes / GIB),
           (now_s() - end_s) / ((double)size_bytes / GIB));
    fflush(stdout);
}

static void pinning(int64_t size_bytes) {
    memo_cuda_device_desc desc = {};
    desc.host_limit = MEMO_CUDA_HOST_WARN; /* the free memory of some machines grows with use */
    printf("### Pinned memory, %.0f GiB\n\n| how | time |\n|---|---|\n", (double)size_bytes / GIB);
    CHECK_CUDA(cudaFree(NULL));
    pin_by_cuda("cudaHostAlloc, first", size_bytes);
    pin("memo, default", desc, size_bytes);
    desc.host_threads = 1;
    pin("memo, one thread", desc, size_bytes);
    desc.host_threads = 0;
    desc.without_huge_pages = 1;
    pin("memo, without huge pages", desc, size_bytes);
    pin_by_cuda("cudaHostAlloc, last", size_bytes);
    printf("\nOnce each, in this order: what a virtual machine is given when it first touches "
           "memory falls "
           "to the first.\n\n");
}

/* --- copies --- */

typedef struct link_ends {
    const memo_device* device;
    memo_stream streams[2]; /* by memo_copy_kind */
    memo_event begin[2], end[2];
    char *on_device[2], *on_host[2];
    int64_t size_bytes;
} link_ends;

/* Copies all bytes in pieces; sets the rate of each direction in `ways`. */
static void copy_once(const link_ends* ends, int ways, int64_t piece_bytes, double* bytes_per_s) {
    const memo_device* device = ends->device;
    for (int way = 0; way < 2; way++)
        if (ways >> way & 1) record(device, ends->begin[way], ends->streams[way]);
    for (int64_t at = 0; at < ends->size_bytes; at += piece_bytes) {
        for (int way = 0; way < 2; way++) {
            char* on_device = ends->on_device[way] + at;
            char* on_host = ends->on_host[way] + at;
            if (!(ways >> way & 1)) continue;
            check(memo_copy(device, ends->streams[way], (memo_copy_kind)way,
                            way ? on_device : on_host, way ? on_host : on_device, piece_bytes,
                            &error));
        }
    }
    for (int way = 0; way < 2; way++)
        if (ways >> way & 1) record(device, ends->end[way], ends->streams[way]);
    for (int way = 0; way < 2; way++)
        if (ways >> way & 1)
            bytes_per_s[way] =
                (double)ends->size_bytes / elapsed_s(device, ends->begin[way], ends->end[way]);
}

static void copy_median(const link_ends* ends, int ways, int64_t piece_bytes, double* bytes_per_s) {
    double rates[2][REPETITIONS], once[2] = {0, 0};
    copy_once(ends, ways, piece_bytes, once); /* warms up */
    for (int k = 0; k < REPETITIONS; k++) {
        copy_once(ends, ways, piece_bytes, once);
        rates[0][k] = once[0];
        rates[1][k] = once[1];
    }
    bytes_per_s[0] = median(rates[0], REPETITIONS);
    bytes_per_s[1] = median(rates[1], REPETITIONS);
}

static void copies(const memo_device* device) {
    static const int64_t pieces[] = {64 << 10, 512 << 10, 4 * MIB, 32 * MIB, GIB};
    link_ends ends;
    double rates[2], both[2];
    ends.device = device;
    ends.size_bytes = GIB;

    /* Each direction has its own stream, events and memory. */
    for (int way = 0; way < 2; way++) {
        ends.streams[way] = new_stream(device, way ? "to device" : "to host", 0);
        ends.begin[way] = new_event(device);
        ends.end[way] = new_event(device);
        ends.on_device[way] = (char*)device_memory(device, ends.size_bytes);
        ends.on_host[way] = (char*)host_memory(device, ends.size_bytes);
    }

    printf("### Copies of pinned memory, 1 GiB in pieces\n\n| piece | to host alone | to device "
           "alone | "
           "to host, both | to device, both |\n|---|---|---|---|---|\n");

    /* Directions: bit 0 to the host, bit 1 to the device. */
    for (int64_t piece : pieces) {
        copy_median(&ends, 1, piece, rates);
        rates[1] = rates[0];
        copy_median(&ends, 2, piece, both);
        rates[1] = both[1];
        copy_median(&ends, 3, piece, both);
        printf("| %lld KiB | %.1f GB/s | %.1f GB/s | %.1f GB/s | %.1f GB/s |\n",
               (long long)(piece >> 10), rates[0] * 1e-9, rates[1] * 1e-9, both[0] * 1e-9,
               both[1] * 1e-9);
        fflush(stdout);
    }

    printf("\n");
    for (int way = 0; way < 2; way++) {
        check(memo_stream_destroy(device, ends.streams[way], &error));
        check(memo_event_destroy(device, ends.begin[way], &error));
        check(memo_event_destroy(device, ends.end[way], &error));
        check(memo_device_free(device, ends.on_device[way], &error));
        check(memo_host_free(device, ends.on_host[way], &error));
    }
}

/* --- phantom memory --- */

static void phantoms(void) {
    static const int64_t chunks[] = {64 * MIB, 256 * MIB, GIB};
    printf(
        "### Phantom memory, 2 TiB of addresses\n\n| chunk | made | given back |\n|---|---|---|\n");
    for (int64_t chunk : chunks) {
        memo_cuda_device_desc desc = {};
        memo_device* device;
        double begin_s = now_s(), made_s;
        desc.phantom_bytes = 2048 * GIB;
        desc.phantom_chunk_bytes = chunk;
        check(memo_cuda_device_create(&desc, &device, &error));
        made_s = now_s();
        /* The last bytes are mapped. */
        char* address = (char*)device_memory(device, desc.phantom_bytes);
        CHECK_CUDA(cudaMemset(address + desc.phantom_bytes - 4096, 0, 4096));
        CHECK_CUDA(cudaDeviceSynchronize());
        double done_s = now_s();
        memo_cuda_device_destroy(device);
        printf("| %lld MiB | %.3f s | %.3f s |\n", (long long)(chunk / MIB), made_s - begin_s,
               now_s() - done_s);
        fflush(stdout);
    }
    printf("\n");
}

int main(int argc, char** argv) {
    int64_t pinned_gib = argc > 1 ? atoll(argv[1]) : 16;
    memo_cuda_device_desc desc = {};
    memo_device* device;
    if (pinned_gib < 1) {
        fprintf(stderr, "cuda_memory: PINNED_GIB must be 1 or more\n");
        return 2;
    }
    desc.host_limit = MEMO_CUDA_HOST_WARN;
    desc.log.write = write_line;
    desc.log.user = stderr;
    check(memo_cuda_device_create(&desc, &device, &error));
    copies(device); /* pinning comes last, because it takes the longest */
    phantoms();
    pinning(pinned_gib * GIB);
    memo_cuda_device_destroy(device);
    return 0;
}
