/* emulated_grid.h - CUDA's language for kernels with a C++ compiler: kernels run on the CPU, thread
 * by thread, on streams of fake_cuda.h.  Include it before memo_cuda.cuh.
 *
 * The threads of a block are coroutines.  A lane runs until it meets the others of its warp
 * (__syncwarp, __shfl_xor_sync) or of its block (__syncthreads), or ends; then another lane runs.
 * The order of lanes is random after every meeting, and so is the order of warps and blocks, by
 * memo_test's seed.  A kernel that assumes an order therefore fails.  If lanes of a warp wait at
 * different places, or wait for a lane that has ended, the program aborts and names lanes and
 * places.  An access of a vector (uint2, uint4) at an address that is no multiple of its bytes
 * aborts.  Masks must be whole warps.  Shared memory is missing, so that kernels with it do not
 * compile. */
#ifndef EMULATED_GRID_H
#define EMULATED_GRID_H

#include "../support/memo_test.h"
#include "fake_cuda.h"

#include <algorithm>
#include <ucontext.h>
#include <vector>

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;

#define __launch_bounds__(...)
#define MEMOI_VECTORS /* the accesses of a GPU */

enum { EMULATED_LANES = 32, EMULATED_THREADS = 1024, EMULATED_STACK_BYTES = 64 << 10 };

/* swapcontext saves the signal mask by a call of the kernel, and under AddressSanitizer clears what
 * is known of the stack: together most of the time.  swapcontext enters a lane once.  The
 * compiler's own jumps leave out what the library's do for threads. */
struct emulated_context {
    ucontext_t whole;
    void* registers[5];
    bool is_entered;
    const void* stack;
    size_t stack_bytes;
};

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#define EMULATED_UNCHECKED __attribute__((no_sanitize("address")))
static inline void emulated_leaves_for(const emulated_context* to) {
    __sanitizer_start_switch_fiber(NULL, to->stack, to->stack_bytes);
}
static inline void emulated_comes_from(emulated_context* from) {
    __sanitizer_finish_switch_fiber(NULL, &from->stack, &from->stack_bytes);
}
#else
#define EMULATED_UNCHECKED
static inline void emulated_leaves_for(const emulated_context*) {}
static inline void emulated_comes_from(emulated_context*) {}
#endif

/* Lanes and the scheduler switch to each other, so it is `to` that comes back. */
EMULATED_UNCHECKED static inline void emulated_switch(emulated_context* from,
                                                      emulated_context* to) {
    if (__builtin_setjmp(from->registers)) {
        emulated_comes_from(to);
        return;
    }
    from->is_entered = true;
    emulated_leaves_for(to);
    if (to->is_entered) __builtin_longjmp(to->registers, 1);
    swapcontext(&from->whole, &to->whole);
}

struct emulated_lane {
    enum { IS_READY, WAITS, HAS_ENDED } state;
    emulated_context context;
    bool has_stack;
    const char* place; /* source line at which it waits */
    int line;
    int source; /* the lane whose value it reads */
    uint32_t value, answer, ballot;
};

static emulated_lane emulated_lanes[EMULATED_THREADS], *emulated_now;
alignas(16) static char emulated_stacks[EMULATED_THREADS][EMULATED_STACK_BYTES];
static emulated_context emulated_scheduler;
static const std::function<void()>* emulated_kernel;
static uint64_t emulated_random;
static int64_t emulated_n_last_blocks;
static int64_t emulated_n_launches;
static bool emulated_is_in_order; /* lanes, warps and blocks by their numbers */

/* Of the grids from now on only the last n blocks run; 0: all. */
static inline void emulated_run_last_blocks(int64_t n) { emulated_n_last_blocks = n; }

/* --- functions that kernels call --- */

static inline uint32_t emulated_meet(const char* place, int line, unsigned mask, int source,
                                     uint32_t value) {
    emulated_lane* lane = emulated_now;
    if (mask != 0xffffffffu) {
        printf("# emulated grid: %s, line %d: mask %08x is not the whole warp\n", place, line,
               mask);
        fflush(stdout);
        abort();
    }
    lane->state = emulated_lane::WAITS;
    lane->place = place;
    lane->line = line;
    lane->source = source;
    lane->value = value;
    emulated_switch(&lane->context, &emulated_scheduler);
    return lane->answer;
}

/* As CUDA: of a later segment of `width` lanes nobody reads, but keeps its own value. */
static inline float emulated_shuffle_xor(int line, unsigned mask, float value, int apart,
                                         int width) {
    int lane = (int)(emulated_now - emulated_lanes) % EMULATED_LANES, source = lane ^ apart;
    uint32_t bits;
    if (source > (lane | (width - 1))) source = lane;
    memcpy(&bits, &value, sizeof bits);
    bits = emulated_meet("__shfl_xor_sync", line, mask, source % EMULATED_LANES, bits);
    memcpy(&value, &bits, sizeof bits);
    return value;
}

static const char emulated_of_block[] = "__syncthreads";
#define __syncwarp()    (void)emulated_meet("__syncwarp", __LINE__, 0xffffffffu, 0, 0)
#define __syncthreads() (void)emulated_meet(emulated_of_block, __LINE__, 0xffffffffu, 0, 0)
#define __shfl_xor_sync(mask, value, apart, width)                                                 \
    emulated_shuffle_xor(__LINE__, mask, value, apart, width)

static inline uint32_t emulated_ballot(int line, unsigned mask, int is_true) {
    emulated_meet("__ballot_sync", line, mask, 0, is_true != 0);
    return emulated_now->ballot;
}
#define __ballot_sync(mask, is_true) emulated_ballot(__LINE__, mask, is_true)
#define __ffs(bits)                  __builtin_ffs(bits)

/* For functions whose addresses this grid checks: its message comes before the sanitizer's. */
#define EMULATED_FIRST __attribute__((no_sanitize("alignment")))

/* A vector of CUDA whose copies look at both addresses.  The compiler assumes that they are aligned
 * and would leave the test out, so they pass through volatile memory. */
template <typename T> struct emulated_vector : T {
    EMULATED_FIRST static const T* aligned(const T* address) {
        volatile uintptr_t at = (uintptr_t)address;
        if (at % sizeof(T) == 0) return address;
        printf("# emulated grid: block %u, thread %u: %d bytes at %p, which is not aligned\n",
               blockIdx.x, threadIdx.x, (int)sizeof(T), (const void*)address);
        fflush(stdout);
        abort();
    }
    emulated_vector() : T() {}
    emulated_vector(const T& value) : T(value) {}
    EMULATED_FIRST emulated_vector(const emulated_vector& from) : T(*aligned(&from)) {}
    EMULATED_FIRST emulated_vector& operator=(const emulated_vector& from) {
        *const_cast<T*>(aligned(this)) = *aligned(&from);
        return *this;
    }
};
#pragma GCC diagnostic ignored "-Wclass-memaccess" /* kernels fill vectors by memcpy */
typedef emulated_vector<uint2> emulated_uint2;
typedef emulated_vector<uint4> emulated_uint4;
#define uint2 emulated_uint2
#define uint4 emulated_uint4

static inline void atomicAdd(unsigned long long* to, unsigned long long value) { *to += value; }
static inline void atomicAdd(float* to, float value) { *to += value; } /* in the grid's order */
static inline void atomicMax(unsigned* to, unsigned value) { *to = std::max(*to, value); }

/* --- the grid --- */

static inline uint64_t emulated_draw(void) { return memo_test_next(&emulated_random); }

/* The numbers from first to end in any order. */
static inline const std::vector<unsigned>& emulated_order(std::vector<unsigned>& order,
                                                          unsigned first, unsigned end) {
    order.resize(end - first);
    for (unsigned i = first, n = 0; i < end; i++) {
        order[n++] = i;
        if (emulated_is_in_order) continue;
        std::swap(order[n - 1], order[(size_t)((emulated_draw() >> 32) * n >> 32)]);
    }
    return order;
}

static inline void emulated_lane_main(void) {
    emulated_comes_from(&emulated_scheduler);
    for (;;) {
        (*emulated_kernel)();
        emulated_now->state = emulated_lane::HAS_ENDED;
        emulated_switch(&emulated_now->context, &emulated_scheduler);
    }
}

static inline void emulated_start_lane(emulated_lane* lane) {
    lane->state = emulated_lane::IS_READY;
    if (lane->has_stack) return; /* at the end of its loop */
    lane->has_stack = true;
    lane->context.stack = emulated_stacks[lane - emulated_lanes];
    lane->context.stack_bytes = EMULATED_STACK_BYTES;
    getcontext(&lane->context.whole);
    lane->context.whole.uc_stack.ss_sp = emulated_stacks[lane - emulated_lanes];
    lane->context.whole.uc_stack.ss_size = EMULATED_STACK_BYTES;
    lane->context.whole.uc_link = NULL;
    makecontext(&lane->context.whole, emulated_lane_main, 0);
}

static inline void emulated_check_meeting(const emulated_lane* lanes) {
    const emulated_lane* waits = lanes;
    while (waits->state != emulated_lane::WAITS) waits++;
    for (int k = 0; k < EMULATED_LANES; k++) {
        if (lanes[k].state == emulated_lane::WAITS && lanes[k].line == waits->line &&
            (lanes[k].place == waits->place || strcmp(lanes[k].place, waits->place) == 0))
            continue;
        printf("# emulated grid: block %u, warp %u: lane %d waits at %s, line %d, but lane %d ",
               blockIdx.x, (unsigned)(lanes - emulated_lanes) / EMULATED_LANES,
               (int)(waits - lanes), waits->place, waits->line, k);
        if (lanes[k].state == emulated_lane::WAITS)
            printf("at %s, line %d\n", lanes[k].place, lanes[k].line);
        else
            printf("has ended\n");
        fflush(stdout);
        abort();
    }
}

/* Runs the lanes of a warp to their next meeting.  true: they have met as a warp and go on. */
static inline bool emulated_run_warp(unsigned first_thread, unsigned n_lanes) {
    static std::vector<unsigned> order;
    emulated_lane* lanes = emulated_lanes + first_thread;
    bool is_met = false;
    for (unsigned k : emulated_order(order, 0, n_lanes)) {
        emulated_now = &lanes[k];
        if (emulated_now->state != emulated_lane::IS_READY) continue;
        threadIdx.x = (first_thread + k) % blockDim.x;
        threadIdx.y = (first_thread + k) / blockDim.x % blockDim.y;
        threadIdx.z = (first_thread + k) / (blockDim.x * blockDim.y);
        emulated_switch(&emulated_scheduler, &emulated_now->context);
        is_met |= emulated_now->state == emulated_lane::WAITS;
    }
    if (!is_met) return false;
    emulated_check_meeting(lanes);
    if (lanes->place == emulated_of_block) return false;
    uint32_t ballot = 0;
    for (int k = 0; k < EMULATED_LANES; k++) ballot |= (lanes[k].value & 1) << k;
    for (int k = 0; k < EMULATED_LANES; k++) {
        lanes[k].ballot = ballot;
        lanes[k].answer = lanes[lanes[k].source].value;
        lanes[k].state = emulated_lane::IS_READY;
    }
    return true;
}

/* Warps take turns from meeting to meeting. */
static inline void emulated_run_block(unsigned n_threads) {
    const unsigned n_warps = (n_threads + EMULATED_LANES - 1) / EMULATED_LANES;
    static std::vector<unsigned> warps;
    bool goes_on = true;
    for (unsigned k = 0; k < n_warps * EMULATED_LANES; k++)
        emulated_lanes[k].state = emulated_lane::HAS_ENDED;
    for (unsigned k = 0; k < n_threads; k++) emulated_start_lane(&emulated_lanes[k]);
    while (goes_on) {
        emulated_order(warps, 0, n_warps);
        while (!warps.empty()) {
            const auto next =
                warps.begin() + (emulated_is_in_order ? 0 : emulated_draw() % warps.size());
            const unsigned warp = *next, first = warp * EMULATED_LANES;
            warps.erase(next);
            if (emulated_run_warp(first, std::min(n_threads - first, (unsigned)EMULATED_LANES)))
                warps.push_back(warp);
        }
        goes_on = false; /* all that have not ended wait at __syncthreads */
        for (unsigned k = 0; k < n_threads; k++) {
            if (emulated_lanes[k].state != emulated_lane::WAITS) continue;
            emulated_lanes[k].state = emulated_lane::IS_READY;
            goes_on = true;
        }
    }
}

static inline void emulated_run(dim3 blocks, dim3 threads, const std::function<void()>& kernel) {
    const unsigned n_blocks = blocks.x * blocks.y;
    std::vector<unsigned> order;
    unsigned first = 0;
    if (blocks.z != 1) abort(); /* two dimensions will do */
    if (emulated_n_last_blocks && emulated_n_last_blocks < n_blocks)
        first = n_blocks - (unsigned)emulated_n_last_blocks;
    emulated_random = memo_test.state;
    emulated_kernel = &kernel;
    gridDim = blocks;
    blockDim = threads;
    for (unsigned block : emulated_order(order, first, n_blocks)) {
        blockIdx.x = block % blocks.x;
        blockIdx.y = block / blocks.x;
        emulated_run_block(threads.x * threads.y * threads.z);
    }
}

template <typename... Parameters, typename... Arguments>
static cudaError_t emulated_launch(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                                   Arguments... arguments) {
    const dim3 blocks = config->gridDim, threads = config->blockDim;
    cudaError_t code = cudaLaunchKernelExC(config, (const void*)kernel, NULL);
    if (code != cudaSuccess) return code;
    emulated_n_launches++;
    fake_enqueue(config->stream,
                 [=] { emulated_run(blocks, threads, [=] { kernel(arguments...); }); });
    return code;
}
#define cudaLaunchKernelEx emulated_launch

#endif
