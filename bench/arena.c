/* arena.c - measures the cost of a request: replay against other allocators.
 *
 *   cc -O2 -I. bench/arena.c -lpthread -lm && ./a.out [million requests [TRACE]]
 *
 * The program records, plans and repeats one micro-batch.  A request is one allocation or one free.
 * No memory is touched, so that only the allocators are measured.  TRACE is a file of requests,
 * such as those of tests/data.  Without one the micro-batch is a synthetic trainer's: 12 layers, 24
 * requests each way in a layer, sizes from 256 bytes to 8 MiB.
 *
 * The baseline is malloc and free.  The C library requests large blocks from the kernel.  Another
 * row therefore repeats the sequence with sizes 1024 times smaller, which it serves from its own
 * lists.
 *
 * By nvcc, on a GPU, cudaMallocAsync (whose pool keeps its memory) and cudaMalloc are measured too;
 * with -DARENA_TORCH also the caching allocator of PyTorch, without Python:
 *   nvcc -O3 -std=c++17 -I. -x cu bench/arena.c -o arena
 *   nvcc ... -DARENA_TORCH -I$TORCH/include -L$TORCH/lib -Xlinker -rpath=$TORCH/lib -lc10_cuda -lc10
 * where TORCH is the folder that python3 -c 'import torch; print(torch.__path__[0])' prints.
 * Without a GPU, `make -f .ci/checks.mk build/bench/arena_pytorch` lets a stand-in answer what PyTorch's allocator
 * calls; once its cache is warm it calls little.
 *
 * Rounds alternate between the ways; the table shows the median.  Reserved: what the plan, or the
 * allocator at its peak, takes from the device. */
#ifdef __CUDACC__
#define ARENA_CUDA
#define MEMO_CUDA_IMPLEMENTATION
#endif
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#ifdef ARENA_CUDA
#include "memo_cuda.cuh"
#endif
#include "memo_plan.h"

#include "cuda_bench.h"
#ifdef ARENA_TORCH
#include <c10/cuda/CUDACachingAllocator.h>
#endif

enum { n_layers = 12, layer_requests = 24, n_rounds = 9 };

/* The micro-batch: event k takes (size_bytes > 0) or gives back (size_bytes < 0) block. */
typedef struct event {
    int64_t size_bytes, block;
} event;
static event* events;
static int64_t n_events, n_blocks;
static void** addresses; /* (n_blocks) */

/* --- the micro-batch --- */

static void add_event(int64_t size_bytes, int64_t block) {
    static int64_t capacity;
    void* grown = events;
    if (!memob_reserve(&grown, &capacity, n_events + 1, sizeof *events)) {
        fprintf(stderr, "bench/arena: no memory\n");
        exit(1);
    }
    events = (event*)grown;
    events[n_events].size_bytes = size_bytes;
    events[n_events++].block = block;
}

static uint64_t random_state = 1;
static int64_t random_below(int64_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((random_state >> 33) % (uint64_t)n);
}

static int64_t take(void) {
    add_event((int64_t)256 << random_below(16), n_blocks);
    return n_blocks++;
}

/* Each layer keeps a third of its blocks for the backward and gives the others back soon. */
static void make_events(void) {
    int64_t kept[n_layers][layer_requests];
    int n_kept[n_layers], layer, k, way;
    for (way = 0; way < 2; way++) {
        for (k = 0; k < n_layers; k++) {
            int64_t held = -1;
            layer = way ? n_layers - 1 - k : k;
            random_state = (uint64_t)way + 7; /* layers are alike */
            if (way == 0) n_kept[layer] = 0;
            for (int r = 0; r < layer_requests; r++) {
                int64_t block = take();
                if (way == 0 && r % 3 == 0) {
                    kept[layer][n_kept[layer]++] = block;
                    continue;
                }
                if (held >= 0) add_event(-1, held);
                held = block;
                if (way == 1 && n_kept[layer] > 0) add_event(-1, kept[layer][--n_kept[layer]]);
            }
            add_event(-1, held);
        }
    }
}

static void read_events(const char* path) {
    memo_trace* trace;
    int64_t* blocks; /* of each malloc; -1: none, or freed */
    check(memo_trace_read(path, &trace, &error));
    blocks = (int64_t*)memob_calloc(trace->n_requests, 8);
    for (int64_t i = 0; i < trace->n_requests && blocks; i++) {
        const memo_request* request = &trace->requests[i];
        int64_t origin = memob_request_origin(trace, i);
        blocks[i] = -1;
        if (request->kind == MEMO_REQUEST_MALLOC && request->size_bytes > 0) {
            add_event(request->size_bytes, n_blocks);
            blocks[i] = n_blocks++;
        } else if (request->kind == MEMO_REQUEST_FREE && blocks[origin] >= 0) {
            add_event(-1, blocks[origin]);
            blocks[origin] = -1;
        } else if (request->kind != MEMO_REQUEST_MARK && request->kind != MEMO_REQUEST_MALLOC &&
                   request->kind != MEMO_REQUEST_FREE) {
            fprintf(stderr, "bench/arena: %s uses several streams; one would work\n", path);
            exit(2);
        }
    }

    /* A micro-batch frees all of its buffers. */
    for (int64_t i = 0; i < trace->n_requests && blocks; i++)
        if (trace->requests[i].kind == MEMO_REQUEST_MALLOC && blocks[i] >= 0)
            add_event(-1, blocks[i]);
    MEMO_FREE(blocks);
    memo_trace_destroy(trace);
}

/* --- ways to serve it --- */

/* One micro-batch.  Pointers are stored through volatile, so that the compiler removes no pair. */
#define RUN_EVENTS(alloc, give_back)                                                               \
    do {                                                                                           \
        int64_t k;                                                                                 \
        for (k = 0; k < n_events; k++) {                                                           \
            void* volatile* address = &addresses[events[k].block];                                 \
            const int64_t size_bytes = events[k].size_bytes;                                       \
            if (size_bytes >= 0)                                                                   \
                alloc;                                                                             \
            else                                                                                   \
                give_back;                                                                         \
        }                                                                                          \
    } while (0)

static memo_arena* arena;

static void run_arena(void) {
    check(memo_arena_begin(arena, &error));
    RUN_EVENTS(check(memo_arena_alloc(arena, size_bytes, 0, (void**)(uintptr_t)address, &error)),
               check(memo_arena_free(arena, *address, &error)));
    check(memo_arena_end(arena, &error));
}
static void run_malloc(void) { RUN_EVENTS(*address = malloc((size_t)size_bytes), free(*address)); }
static void run_small_malloc(void) {
    RUN_EVENTS(*address = malloc((size_t)(size_bytes / 1024)), free(*address));
}

#ifdef ARENA_CUDA
static cudaStream_t stream;
static cudaMemPool_t pool;

static void run_pool(void) {
    RUN_EVENTS(CHECK_CUDA(cudaMallocAsync((void**)(uintptr_t)address, (size_t)size_bytes, stream)),
               CHECK_CUDA(cudaFreeAsync(*address, stream)));
    CHECK_CUDA(cudaStreamSynchronize(stream));
}
static int64_t reserved_by_pool(void) {
    uint64_t n_bytes = 0;
    CHECK_CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &n_bytes));
    return (int64_t)n_bytes;
}
static void trim_pool(void) { CHECK_CUDA(cudaMemPoolTrimTo(pool, 0)); }

static void run_cuda(void) {
    RUN_EVENTS(CHECK_CUDA(cudaMalloc((void**)(uintptr_t)address, (size_t)size_bytes)),
               CHECK_CUDA(cudaFree(*address)));
}

static void create_pool(void) {
    uint64_t all = UINT64_MAX; /* kept at synchronization, as a trainer would set it */
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK_CUDA(cudaDeviceGetDefaultMemPool(&pool, 0));
    CHECK_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
}
#endif

#ifdef ARENA_TORCH
static void run_torch(void) {
    RUN_EVENTS(*address = c10::cuda::CUDACachingAllocator::raw_alloc((size_t)size_bytes),
               c10::cuda::CUDACachingAllocator::raw_delete(*address));
}
static int64_t reserved_by_torch(void) {
    return c10::cuda::CUDACachingAllocator::getDeviceStats(0).reserved_bytes[0].peak;
}
static void empty_torch(void) { c10::cuda::CUDACachingAllocator::emptyCache(); }
#endif

typedef struct way {
    const char* name;
    void (*run)(void);
    int share;                     /* runs a share'th of the micro-batches */
    int64_t (*get_reserved)(void); /* NULL: not known */
    void (*release)(void);         /* after each round: gives cached memory back; NULL: none */
} way;

static int64_t planned_bytes;
static int64_t reserved_by_plan(void) { return planned_bytes; }

static const way ways[] = {
    {"memo arena, replay", run_arena, 1, reserved_by_plan, NULL},
    {"malloc, free", run_malloc, 1, NULL, NULL},
    {"malloc, free, 1/1024", run_small_malloc, 1, NULL, NULL},
#ifdef ARENA_TORCH
    {"PyTorch, cached", run_torch, 1, reserved_by_torch, empty_torch},
#endif
#ifdef ARENA_CUDA
    {"cudaMallocAsync", run_pool, 4, reserved_by_pool, trim_pool},
    {"cudaMalloc, cudaFree", run_cuda, 400, NULL, NULL},
#endif
};
enum { n_ways = sizeof ways / sizeof ways[0] };

/* --- the table --- */

static void print_machine(void) {
    FILE* file = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (file && fgets(line, sizeof line, file)) {
        char* name = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !name) continue;
        printf("machine:%s", name + 1);
        break;
    }
    if (file) fclose(file);
}

/* Records the requests once, plans them, and creates the arena that replays. */
static memo_plan* plan_events(void) {
    memo_arena_desc desc = MEMO_ZERO(memo_arena_desc);
    memo_trace* trace;
    memo_plan* plan;
    check(memo_trace_create(&trace, &error));
    desc.trace = trace;
    check(memo_arena_create(&desc, &arena, &error));
    run_arena();
    memo_arena_destroy(arena);
    check(memo_plan_from_trace(trace, 0, &plan, &error));
    check(memo_plan_solve(plan, NULL, &error));
    memo_trace_destroy(trace);
    planned_bytes = plan->peak_bytes;

    /* Addresses without memory: nobody writes to them. */
    desc = MEMO_ZERO(memo_arena_desc);
    desc.plan = plan;
    desc.memory = (void*)(uintptr_t)((uint64_t)1 << 40); /* addresses only */
    desc.memory_bytes = plan->peak_bytes;
    check(memo_arena_create(&desc, &arena, &error));
    return plan;
}

int main(int argc, char** argv) {
    bench_help(argc, argv, "[MILLION_REQUESTS [TRACE]]");
    const double million = bench_number(argc, argv, 1, 10, 0, 1e6);
    double ns[n_ways][n_rounds];
    int64_t reserved[n_ways] = {0}, n_batches, i;
    memo_plan* plan;

    if (argc > 2)
        read_events(argv[2]);
    else
        make_events();
    addresses = (void**)memob_calloc(n_blocks, sizeof *addresses);
    plan = plan_events();
    n_batches = (int64_t)(million * 1e6 / n_rounds / (double)n_events) + 1;
#ifdef ARENA_CUDA
    create_pool();
#endif
#ifdef ARENA_TORCH
    c10::cuda::CUDACachingAllocator::init(1);
#endif

    /* Ways alternate within a round, so that a change of clock rate hits all of them. */
    for (int round = -1; round < n_rounds; round++) { /* round -1 warms up */
        for (int w = 0; w < n_ways; w++) {
            const int64_t n = round < 0 ? 1 : n_batches / ways[w].share + 1;
            double begin_s;
            if (ways[w].release) ways[w].run(); /* fills the cache again */
            begin_s = now_s();
            for (i = 0; i < n; i++) ways[w].run();
            if (round >= 0) ns[w][round] = (now_s() - begin_s) * 1e9 / (double)(n * n_events);
            if (ways[w].get_reserved) reserved[w] = ways[w].get_reserved();
            if (ways[w].release) ways[w].release();
        }
    }

    /* Ratios are to the arena, the first row. */
    print_machine();
    printf("%lld requests a micro-batch, at most %.1f MiB of buffers at once, %.1f million in all, "
           "median of %d rounds\n\n",
           (long long)n_events, (double)plan->lower_bound_bytes / 1048576,
           1e-6 * n_rounds * (double)(n_batches * n_events), n_rounds);
    printf("%-22s %12s %10s %10s %10s %14s\n", "", "ns/request", "best", "worst", "ratio",
           "reserved MiB");
    for (int w = 0; w < n_ways; w++) {
        const double middle = median(ns[w], n_rounds); /* sorts */
        printf("%-22s %12.1f %10.1f %10.1f %10.1f", ways[w].name, middle, ns[w][0],
               ns[w][n_rounds - 1], middle / median(ns[0], n_rounds));
        if (ways[w].get_reserved)
            printf(" %14.1f\n", (double)reserved[w] / 1048576);
        else
            printf(" %14s\n", "-");
    }

    memo_arena_destroy(arena);
    memo_plan_destroy(plan);
    MEMO_FREE(addresses);
    MEMO_FREE(events);
    return 0;
}
