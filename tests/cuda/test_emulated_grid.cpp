/* test_emulated_grid.cpp - the emulated grid itself; then the row kernels on it, for faults that no
 * result shows: accesses outside the arrays, which end at protected pages, and indices beyond 32
 * bits, in the last blocks of arrays whose other pages are not mapped. */
#include "emulated_grid.h"

#define MEMO_CUDA_IMPLEMENTATION
#include "memo_sp.h"
#include "memo_cuda.cuh"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static memo_error error;

static int64_t pick(int64_t a, int64_t b) { return memo_test_int(0, 1) ? a : b; }

/* --- the grid --- */

template <typename... Parameters, typename... Arguments>
static cudaError_t launch(void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
                          Arguments... arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = threads;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

__global__ static void count_threads(int* counts) {
    counts[blockIdx.x * blockDim.x + threadIdx.x] += 1 + (int)gridDim.x;
}

TEST(runs_each_thread_once) {
    int counts[8 * 1024], i;
    memset(counts, 0, sizeof counts);
    CHECK(launch(count_threads, dim3(7), dim3(96), counts) == cudaSuccess);
    for (i = 0; i < 7 * 96 + 1; i++) CHECK(counts[i] == (i < 7 * 96 ? 8 : 0));
    emulated_run_last_blocks(2);
    CHECK(launch(count_threads, dim3(7), dim3(96), counts) == cudaSuccess);
    emulated_run_last_blocks(0);
    for (i = 0; i < 7 * 96; i++) CHECK(counts[i] == (i < 5 * 96 ? 8 : 16));
}

__global__ static void add_all(float* sum, const float* x) {
    atomicAdd(sum, x[blockIdx.x * blockDim.x + threadIdx.x]);
}

/* As on a GPU: two runs of a kernel that adds atomically need not have the same bits. */
TEST(atomic_sums_differ_by_order) {
    float x[8 * 64];
    int n_others[2] = {0, 0};
    for (int i = 0; i < 8 * 64; i++) x[i] = (i % 64 ? 1.0f : 1e8f) * (i % 128 < 64 ? 1.0f : -1.0f);
    for (int is_in_order = 0; is_in_order < 2; is_in_order++) {
        float first = 0;
        for (int k = 0; k < 20; k++) {
            float sum = 0;
            (void)memo_test_int(0, 1); /* another order */
            emulated_is_in_order = is_in_order;
            CHECK(launch(add_all, dim3(8), dim3(64), &sum, (const float*)x) == cudaSuccess);
            if (k == 0) first = sum;
            n_others[is_in_order] += memcmp(&sum, &first, sizeof sum) != 0;
        }
    }
    emulated_is_in_order = false;
    CHECK_CASE(n_others[0] > 0 && n_others[1] == 0, "%d in any order, %d in order", n_others[0],
               n_others[1]);
}

TEST(refuses_grids_that_no_gpu_has) {
    int counts[1];
    const struct {
        dim3 blocks, threads;
    } wrong[] = {{dim3(0), dim3(32)},           {dim3(1), dim3(0)},
                 {dim3(1), dim3(1025)},         {dim3(1), dim3(64, 32)},
                 {dim3(0x80000000u), dim3(32)}, {dim3(1, 65536), dim3(32)}};
    for (const auto& each : wrong)
        CHECK(launch(count_threads, each.blocks, each.threads, counts) ==
              cudaErrorInvalidConfiguration);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
}

/* Each thread reads a value that the first of its group replaces, after n_safe threads have met. */
__global__ static void read_then_replace(int* cells, int* seen, int group, int n_safe) {
    int thread =
        (int)(blockIdx.x * blockDim.x * blockDim.y + threadIdx.y * blockDim.x + threadIdx.x);
    seen[thread] = cells[thread / group];
    if (n_safe == 32) __syncwarp();
    if (n_safe == 128) __syncthreads();
    if (thread % group == 0) cells[thread / group] = 1;
}

TEST(shows_that_a_barrier_is_missing) {
    for (int group : {32, 128})
        for (int n_safe : {0, 32, 128}) {
            int cells[16], seen[16 * 32], n_late = 0, k;
            memset(cells, 0, sizeof cells);
            CHECK(launch(read_then_replace, dim3(4), dim3(64, 2), cells, seen, group, n_safe) ==
                  cudaSuccess);
            for (k = 0; k < 16 * 32; k++) n_late += seen[k];
            CHECK(n_safe >= group ? n_late == 0 : n_late > 0);
        }
}

__global__ static void exchange(float* to, int apart, int width) {
    to[threadIdx.x] = __shfl_xor_sync(0xffffffffu, (float)threadIdx.x, apart, width);
}

/* Of 8 lanes, 0 to 7 read from 8 to 15, a later segment: their own value.  8 to 15 read from an
 * earlier one. */
TEST(shuffles_as_cuda_says) {
    float got[64];
    CHECK(launch(exchange, dim3(1), dim3(64), got, 5, 8) == cudaSuccess);
    for (int k = 0; k < 64; k++) CHECK(got[k] == (float)(k ^ 5));
    CHECK(launch(exchange, dim3(1), dim3(64), got, 8, 8) == cudaSuccess);
    for (int k = 0; k < 64; k++) CHECK(got[k] == (float)(k & ~8));
}

__global__ static void part_ways(int way) {
    float sum = 1;
    if (way == 0 && threadIdx.x % 32 == 5) return;
    if (way == 1 && threadIdx.x % 32 > 5)
        __syncwarp();
    else
        sum += __shfl_xor_sync(way == 2 ? 0xffffu : 0xffffffffu, sum, 1, 32);
}

/* Whether a kernel aborts, with these words. */
template <typename... Arguments>
static void check_aborts(const char* says, void (*kernel)(Arguments...), int n_threads,
                         Arguments... arguments) {
    int ends[2], status = 0;
    char text[512];
    CHECK(pipe(ends) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        launch(kernel, dim3(2), dim3((unsigned)n_threads), arguments...);
        _exit(0);
    }
    close(ends[1]);
    ssize_t n = read(ends[0], text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    close(ends[0]);
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK_CASE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strstr(text, says), "%s: %s",
               says, text);
}

TEST(lanes_that_part_ways_abort) {
    static const char* const says[] = {"lane 5 has ended", "__syncwarp", "mask 0000ffff",
                                       "has ended"};
    for (int way = 0; way < 4; way++) check_aborts(says[way], part_ways, way == 3 ? 48 : 64, way);
}

/* A processor does these accesses, and a GPU ends the kernel. */
template <typename T>
EMULATED_FIRST __global__ static void copy_vector(void* to, const void* from) {
    *(T*)to = *(const T*)from;
}

TEST(vectors_that_are_not_aligned_abort) {
    static uint4 words[4];
    char *to = (char*)&words[0], *from = (char*)&words[2];
    memset(from, 7, 32);
    CHECK(launch(copy_vector<uint4>, dim3(1), dim3(1), (void*)(to + 16), (const void*)from) ==
          cudaSuccess);
    CHECK(launch(copy_vector<uint2>, dim3(1), dim3(1), (void*)to, (const void*)(from + 8)) ==
          cudaSuccess);
    CHECK(memcmp(to, from, 8) == 0 && to[8] == 0 && memcmp(to + 16, from, 16) == 0);
    for (int apart = 4; apart < 16; apart += 4) {
        check_aborts("16 bytes at", copy_vector<uint4>, 1, (void*)(to + apart), (const void*)from);
        check_aborts("16 bytes at", copy_vector<uint4>, 1, (void*)to, (const void*)(from + apart));
    }
    check_aborts("8 bytes at", copy_vector<uint2>, 1, (void*)(to + 4), (const void*)from);
    check_aborts("8 bytes at", copy_vector<uint2>, 1, (void*)to, (const void*)(from + 12));
}

/* --- arrays between pages that may not be touched --- */

enum { AREA_BYTES = 1 << 18 };

/* n_bytes that begin or end at such a page. */
static void* guarded(int which, int64_t n_bytes) {
    static char* areas[4];
    const int64_t page = sysconf(_SC_PAGESIZE);
    char* area = areas[which];
    if (!area) {
        area = (char*)mmap(NULL, (size_t)(AREA_BYTES + 2 * page), PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (area == MAP_FAILED || mprotect(area + page, AREA_BYTES, PROT_READ | PROT_WRITE))
            abort();
        areas[which] = area;
    }
    if (n_bytes > AREA_BYTES) abort();
    return area + page + (memo_test_int(0, 1) ? 0 : AREA_BYTES - n_bytes);
}

/* A device with nothing but row kernels. */
static memo_device row_kernels_alone(void) {
    memo_device device = {};
    device.struct_bytes = sizeof device;
    device.row_kernel = memoi_cuda_row_kernel_here;
    return device;
}
static const memo_device grid = row_kernels_alone();

static memo_type random_type(void) {
    static const memo_type types[] = {MEMO_TYPE_F32, MEMO_TYPE_BF16, MEMO_TYPE_F16};
    return types[memo_test_int(0, 2)];
}

/* Of a matrix, to its last element. */
static int64_t extent(int64_t n_rows, int64_t n_columns, int64_t stride) {
    return n_rows && n_columns ? (n_rows - 1) * (stride ? stride : n_columns) + n_columns : 0;
}

static int64_t random_columns(void) { return pick(memo_test_int(1, 40), 8 * memo_test_int(1, 20)); }

TEST(stays_within_its_arrays) {
    fake_set_n_processors(1);
    for (int c = 0; c < 60; c++) {
        const int64_t n_rows = memo_test_int(1, 300), n_columns = random_columns();
        const int64_t stride = pick(0, n_columns + memo_test_int(0, 8));
        const memo_type type = random_type(), other = random_type();
        const int64_t type_bytes = memo_row_type_bytes(type),
                      other_bytes = memo_row_type_bytes(other);
        const int64_t dense = n_rows * n_columns, wide = extent(n_rows, n_columns, stride);

        memo_add_desc cast = {};
        cast.n_columns = memo_test_int(1, 40000);
        cast.to_type = type;
        cast.a_type = other;
        cast.to = guarded(0, cast.n_columns * type_bytes);
        cast.a = guarded(1, cast.n_columns * other_bytes);
        CHECK_OK(memo_row_cast(&grid, NULL, &cast, &error));

        memo_add_desc add = {};
        add.n_rows = n_rows;
        add.n_columns = n_columns;
        add.a_stride = stride;
        add.to_type = add.b_type = type;
        add.a_type = other;
        add.to = guarded(0, dense * type_bytes);
        add.a = guarded(1, wide * other_bytes);
        add.b = guarded(2, dense * type_bytes);
        CHECK_OK(memo_row_add(&grid, NULL, &add, &error));

        memo_add_desc sums = {};
        sums.n_rows = n_rows;
        sums.n_columns = n_columns;
        sums.a_stride = stride;
        sums.a_type = other;
        sums.b_type = type;
        sums.to = (float*)guarded(0, n_rows * 4);
        sums.a = guarded(1, wide * other_bytes);
        sums.b = guarded(2, dense * type_bytes);
        CHECK_OK(memo_row_sums(&grid, NULL, &sums, &error));

        memo_merge_desc merge = {};
        merge.n_rows = n_rows;
        merge.n_columns = n_columns;
        merge.part_type = type;
        merge.out = (float*)guarded(0, dense * 4);
        merge.part_out = guarded(1, dense * type_bytes);
        merge.lse = (float*)guarded(2, n_rows * 4);
        merge.part_lse = (float*)guarded(3, n_rows * 4);
        CHECK_OK(memo_row_merge(&grid, NULL, &merge, &error));

        memo_cross_entropy_desc entropy = {};
        entropy.n_rows = n_rows;
        entropy.n_columns = n_columns;
        entropy.stride = stride;
        entropy.type = type;
        entropy.logits = entropy.d_logits = guarded(0, wide * type_bytes);
        entropy.losses = (float*)guarded(1, n_rows * 4);
        entropy.parts = (float*)guarded(2, n_rows * MEMO_LOSS_NUMBERS * 4);
        entropy.softcap = 30;
        int32_t* labels = (int32_t*)guarded(3, n_rows * 4);
        entropy.labels = labels;
        for (int64_t i = 0; i < n_rows; i++) labels[i] = (int32_t)memo_test_int(-1, n_columns);
        CHECK_OK(memo_row_softmax_parts(&grid, NULL, &entropy, &error));
        CHECK_OK(memo_row_cross_entropy(&grid, NULL, &entropy, &error));
        entropy.sums = (double*)guarded(0, 24);
        entropy.logits = entropy.d_logits = guarded(0, wide * type_bytes);
        CHECK_OK(memo_row_loss_sums(&grid, NULL, &entropy, &error));
        entropy.sums = NULL; /* nobody wants them */
        CHECK_OK(memo_row_loss_sums(&grid, NULL, &entropy, &error));

        memo_sinks_desc sinks = {};
        sinks.n_heads = memo_test_int(1, 9);
        sinks.n_rows = n_rows / sinks.n_heads;
        sinks.n_columns = n_columns;
        sinks.lse = (float*)guarded(1, sinks.n_rows * sinks.n_heads * 4);
        sinks.sinks = (float*)guarded(2, sinks.n_heads * 4);
        sinks.out = (float*)guarded(0, sinks.n_rows * sinks.n_heads * n_columns * 4);
        CHECK_OK(memo_row_sinks(&grid, NULL, &sinks, &error));
        sinks.out = NULL;
        sinks.row_dots = (float*)guarded(3, sinks.n_rows * sinks.n_heads * 4);
        sinks.d_sinks = (float*)guarded(0, sinks.n_heads * 4);
        CHECK_OK(memo_row_sink_sums(&grid, NULL, &sinks, &error));

        memo_pack_desc pack = {};
        pack.n_columns[0] = n_columns;
        pack.n_columns[1] = memo_test_int(0, 20);
        for (int64_t at = 0; pack.n_ranges < MEMO_PACK_MAX && at < n_rows; pack.n_ranges++) {
            const int64_t n = memob_min(memo_test_int(0, 9), n_rows - at);
            pack.begins[pack.n_ranges] = at;
            pack.ends[pack.n_ranges] = n + (pack.n_ranges ? pack.ends[pack.n_ranges - 1] : 0);
            at += n + memo_test_int(0, 3);
        }
        const int32_t last = pack.n_ranges - 1;
        const int64_t n_packed = pack.ends[last];
        const int64_t n_last = n_packed - (last > 0 ? pack.ends[last - 1] : 0);
        for (int t = 0; t < 2; t++) {
            const int64_t row_bytes = pack.n_columns[t] * 4;
            pack.rows[t] = guarded(2 * t, (pack.begins[last] + n_last) * row_bytes);
            pack.packed[t] = guarded(2 * t + 1, n_packed * row_bytes);
        }
        CHECK_OK(memo_row_add_packed(&grid, NULL, &pack, &error));
    }
}

/* --- indices beyond 32 bits ---
 *
 * 2^33 items and more, of which the last blocks take the last ones: in one stride, so that a first
 * index passes 32 bits, or in two, so that the stride does. */

typedef struct far {
    char *to, *from, *other, *index;
    int64_t n_items;
} far;

enum {
    FAR_ROW = 5,
    FAR_TAIL = 60
}; /* elements of a row; rows or items whose results are looked at */
static const int64_t FAR_BYTES = (int64_t)280 << 30;

static void close_far(far* f) {
    munmap(f->to, 4 * (size_t)FAR_BYTES);
    emulated_run_last_blocks(0);
}

/* Items that fill the second stride except for 20. */
static int open_far(far* f, int n_strides, int64_t items_per_block) {
    int64_t n_blocks = ((int64_t)1 << 32) / items_per_block + 32;
    void* arrays = mmap(NULL, 4 * (size_t)FAR_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arrays == MAP_FAILED) return 0;
    f->to = (char*)arrays;
    f->from = f->to + FAR_BYTES;
    f->other = f->from + FAR_BYTES;
    f->index = f->other + FAR_BYTES;
    f->n_items = 2 * n_blocks * items_per_block - 20;
    fake_set_n_processors((int)(2 * n_blocks / n_strides / 32));
    emulated_run_last_blocks(3);
    return 1;
}

#define FOR_FAR(f, items_per_block)                                                                \
    for (int strides_ = 1; strides_ < 3; strides_++, close_far(&f))                                \
        if (!open_far(&f, strides_, items_per_block))                                              \
            SKIP("no room for four arrays of 280 GiB addresses; raise ulimit -v");                 \
        else

static float far_number(int64_t i) { return (float)(i % 251 + 1); }
static void fill_tail(char* array, int64_t n, int64_t n_tail) {
    for (int64_t i = n - n_tail; i < n; i++) ((float*)(void*)array)[i] = far_number(i);
}

TEST(casts_far_elements) {
    far f;
    FOR_FAR(f, MEMOI_CUDA_THREADS) {
        memo_add_desc cast = {};
        cast.n_columns = 8 * f.n_items - 1;
        cast.to = f.to;
        cast.a = f.from;
        fill_tail(f.from, cast.n_columns / 2 + 1,
                  4 * FAR_TAIL); /* of the first groups, and of the second */
        fill_tail(f.from, cast.n_columns, 4 * FAR_TAIL);
        CHECK_OK(memo_row_cast(&grid, NULL, &cast, &error));
        for (int64_t i = cast.n_columns - 4 * FAR_TAIL; i < cast.n_columns; i++)
            CHECK(((float*)(void*)f.to)[i] == far_number(i));
        for (int64_t i = cast.n_columns / 2 + 1 - 4 * FAR_TAIL; i < cast.n_columns / 2 + 1; i++)
            CHECK(((float*)(void*)f.to)[i] == far_number(i));
        CHECK(((float*)(void*)f.to)[cast.n_columns] == 0);
    }
}

TEST(adds_far_elements) {
    far f;
    FOR_FAR(f, MEMOI_CUDA_THREADS) {
        memo_add_desc add = {};
        add.to = f.to;
        add.a = f.from;
        add.b = f.from;
        add.n_rows = f.n_items;
        add.n_columns = FAR_ROW - 1; /* one item */
        add.to_stride = add.a_stride = add.b_stride = FAR_ROW;
        fill_tail(f.from, f.n_items * FAR_ROW, FAR_TAIL * FAR_ROW);
        CHECK_OK(memo_row_add(&grid, NULL, &add, &error));
        for (int64_t i = (f.n_items - FAR_TAIL) * FAR_ROW; i < f.n_items * FAR_ROW; i++)
            CHECK(((float*)(void*)f.to)[i] == (i % FAR_ROW == FAR_ROW - 1 ? 0 : 2 * far_number(i)));
    }
}

/* Equal LSEs: halfway between 0 and the part. */
TEST(merges_far_rows) {
    far f;
    FOR_FAR(f, MEMOI_CUDA_THREADS / MEMO_ROW_LANES) {
        const int64_t n = f.n_items * FAR_ROW;
        memo_merge_desc merge = {};
        merge.n_batches = 2;
        merge.n_rows = f.n_items / 2;
        merge.n_columns = FAR_ROW;
        merge.out = (float*)(void*)f.to;
        merge.part_out = f.from;
        merge.lse = (float*)(void*)f.other;
        merge.part_lse = (float*)(void*)f.index;
        fill_tail(f.from, n, FAR_TAIL * FAR_ROW);
        CHECK_OK(memo_row_merge(&grid, NULL, &merge, &error));
        for (int64_t i = n - FAR_TAIL * FAR_ROW; i < n; i++)
            CHECK(merge.out[i] == far_number(i) / 2);
        for (int64_t i = f.n_items - FAR_TAIL; i < f.n_items; i++)
            CHECK(fabsf(merge.lse[i] - 0.6931472f) < 1e-6f);
    }
}

TEST(sums_far_rows) {
    far f;
    FOR_FAR(f, MEMOI_CUDA_THREADS / MEMO_ROW_LANES) {
        memo_add_desc sums = {};
        sums.n_rows = f.n_items;
        sums.n_columns = FAR_ROW;
        sums.a = sums.b = f.from;
        sums.to = (float*)(void*)f.to;
        fill_tail(f.from, f.n_items * FAR_ROW, FAR_TAIL * FAR_ROW);
        CHECK_OK(memo_row_sums(&grid, NULL, &sums, &error));
        for (int64_t row = f.n_items - FAR_TAIL; row < f.n_items; row++) {
            float expected = 0;
            for (int64_t i = row * FAR_ROW; i < (row + 1) * FAR_ROW; i++)
                expected += far_number(i) * far_number(i); /* integers below 2^24: exact */
            CHECK(((float*)sums.to)[row] == expected);
        }
    }
}

/* Rows of one column: the loss of its label is 0, that of another label infinite. */
TEST(finds_losses_of_far_rows) {
    far f;
    FOR_FAR(f, MEMOI_CUDA_THREADS / MEMO_LOSS_LANES) {
        memo_cross_entropy_desc entropy = {};
        int32_t* labels = (int32_t*)(void*)f.index;
        entropy.n_rows = f.n_items;
        entropy.n_columns = 1;
        entropy.logits = f.from;
        entropy.labels = labels;
        entropy.parts = (float*)(void*)f.other;
        entropy.losses = (float*)(void*)f.to;
        entropy.vocabulary = 2;
        for (int64_t i = f.n_items - FAR_TAIL; i < f.n_items; i++) labels[i] = (int32_t)(i % 2);
        fill_tail(f.from, f.n_items, FAR_TAIL);
        CHECK_OK(memo_row_softmax_parts(&grid, NULL, &entropy, &error));
        CHECK_OK(memo_row_cross_entropy(&grid, NULL, &entropy, &error));
        for (int64_t i = f.n_items - 4; i < f.n_items;
             i++) { /* the last 3 blocks have 24 rows less 20 */
            CHECK(entropy.parts[MEMO_LOSS_NUMBERS * i + (i % 2 ? 0 : 2)] == far_number(i));
            CHECK(entropy.losses[i] == (i % 2 ? INFINITY : 0));
        }
    }
}

/* A stride that passes 32 bits may never end. */
__attribute__((constructor)) static void limit_time(void) { alarm(300); }
