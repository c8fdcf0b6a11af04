/* bench/cuda_kernels.cu - the row kernels against the copy bandwidth of the device.
 *
 *   nvcc -O3 -arch=native -I. bench/cuda_kernels.cu -o cuda_kernels && ./cuda_kernels [LOG2_ELEMENTS]
 *
 * A rate is bytes read and written per second.  Its baseline is a cudaMemcpyAsync on the device
 * that reads and writes as many bytes (at most the whole array, 4 bytes per element), measured
 * right after it.  Medians of 9; each time covers several launches, so that the time to enqueue one
 * hides behind the launch before. */
#ifndef LINKED /* with an implementation compiled before */
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#endif
#define MEMO_CUDA_IMPLEMENTATION
#include "memo_sp.h"
#include "memo_cuda.cuh"

#include "cuda_bench.h"

enum { REPETITIONS = 9, ENQUEUED = 5, COLUMNS = 128 };

static memo_device* device;
static memo_stream stream;
static memo_event begin_event, end_event;
static char *a, *b; /* n_array_bytes each */
static int64_t n_array_bytes;

/* In [0, 2) as numbers of every type; zeros would need less power than a trainer's numbers. */
__global__ static void fill_numbers(uint32_t* to, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < n; i += (int64_t)gridDim.x * blockDim.x)
        to[i] = (uint32_t)i * 2654435761u & 0x3fff3fffu;
}

/* Median seconds of `statement`, which enqueues on stream; the first runs warm up and are not
 * timed. */
#define TIME(seconds, statement)                                                                   \
    do {                                                                                           \
        double times_[REPETITIONS];                                                                \
        for (int k_ = -2; k_ < REPETITIONS; k_++) {                                                \
            record(device, begin_event, stream);                                                   \
            for (int e_ = 0; e_ < ENQUEUED; e_++) statement;                                       \
            record(device, end_event, stream);                                                     \
            double time_ = elapsed_s(device, begin_event, end_event) / ENQUEUED;                   \
            if (k_ >= 0) times_[k_] = time_;                                                       \
        }                                                                                          \
        seconds = median(times_, REPETITIONS);                                                     \
    } while (0)

/* Bytes per second of a copy that reads and writes n_bytes together. */
static double copy_rate(double n_bytes) {
    int64_t n_copied = n_bytes / 2 < (double)n_array_bytes ? (int64_t)(n_bytes / 2) : n_array_bytes;
    double seconds;
    TIME(seconds, check(memo_copy(device, stream, MEMO_COPY_ON_DEVICE, b, a, n_copied, &error)));
    return 2 * (double)n_copied / seconds;
}

static void print(const char* name, double n_bytes, double seconds) {
    double rate = n_bytes / seconds;
    printf("| %s | %.0f GB/s | %.1f%% |\n", name, rate * 1e-9, 100 * rate / copy_rate(n_bytes));
    fflush(stdout);
}

int main(int argc, char** argv) {
    int log2_elements = argc > 1 ? atoi(argv[1]) : 30;
    memo_cuda_device_desc desc = {};
    int64_t n, n_rows;
    char* small;
    double seconds;
    if (log2_elements < 20 || log2_elements > 32) {
        fprintf(stderr, "cuda_kernels: LOG2_ELEMENTS must be 20 to 32\n");
        return 2;
    }
    n = (int64_t)1 << log2_elements;
    n_rows = n / COLUMNS;
    n_array_bytes = 4 * n;
    check(memo_cuda_device_create(&desc, &device, &error));
    stream = new_stream(device, "kernels", 0);
    begin_event = new_event(device);
    end_event = new_event(device);
    a = (char*)device_memory(device, 4 * n);
    b = (char*)device_memory(device, 4 * n);
    small = (char*)device_memory(device, 8 * n_rows);
    fill_numbers<<<1024, 256, 0, memo_cuda_stream(stream)>>>((uint32_t*)(void*)a, n);
    check(memo_copy(device, stream, MEMO_COPY_ON_DEVICE, b, a, 4 * n, &error));
    printf("### Row kernels, 2^%d elements, rows of %d\n\n| kernel | rate | of a copy "
           "|\n|---|---|---|\n",
           log2_elements, (int)COLUMNS);
    for (double begin_s = now_s(); now_s() - begin_s < 0.3;) /* until the clocks have risen */
        (void)copy_rate(8.0 * (double)n);
    {
        double rate = copy_rate(8.0 * (double)n);
        print("cudaMemcpyAsync, fp32", 8.0 * (double)n, 8.0 * (double)n / rate);
    }

    memo_merge_desc merge;
    memset(&merge, 0, sizeof merge);
    merge.out = (float*)(void*)b;
    merge.part_out = a;
    merge.lse = (float*)(void*)small;
    merge.part_lse = (float*)(void*)small + n_rows;
    merge.n_rows = n_rows;
    merge.n_columns = COLUMNS;
    check(memo_fill(device, stream, small, 0, 8 * n_rows, &error));
    TIME(seconds, check(memo_row_merge(device, stream, &merge, &error)));
    print("merge, part fp32", 12.0 * (double)n + 12.0 * (double)n_rows, seconds);
    merge.part_type = MEMO_TYPE_BF16;
    TIME(seconds, check(memo_row_merge(device, stream, &merge, &error)));
    print("merge, part bf16", 10.0 * (double)n + 12.0 * (double)n_rows, seconds);

    memo_add_desc add;
    memset(&add, 0, sizeof add);
    add.to = b;
    add.a = b;
    add.b = a;
    add.n_columns = n;
    TIME(seconds, check(memo_row_add(device, stream, &add, &error)));
    print("add, fp32", 12.0 * (double)n, seconds);
    add.to_type = add.a_type = add.b_type = MEMO_TYPE_BF16;
    TIME(seconds, check(memo_row_add(device, stream, &add, &error)));
    print("add, bf16", 6.0 * (double)n, seconds);
    add.n_rows = n_rows;
    add.n_columns = COLUMNS;
    add.b_stride = 2 * COLUMNS;
    TIME(seconds, check(memo_row_add(device, stream, &add, &error)));
    print("add, bf16, rows that do not touch", 6.0 * (double)n, seconds);

    memo_add_desc sums;
    memset(&sums, 0, sizeof sums);
    sums.a = a;
    sums.b = b;
    sums.to = (float*)(void*)small;
    sums.n_rows = n_rows;
    sums.n_columns = COLUMNS;
    sums.a_type = sums.b_type = MEMO_TYPE_BF16;
    TIME(seconds, check(memo_row_sums(device, stream, &sums, &error)));
    print("row sums, bf16", 4.0 * (double)n + 4.0 * (double)n_rows, seconds);
    sums.a_type = sums.b_type = MEMO_TYPE_F32;
    TIME(seconds, check(memo_row_sums(device, stream, &sums, &error)));
    print("row sums, fp32", 8.0 * (double)n + 4.0 * (double)n_rows, seconds);

    static const struct {
        const char* name;
        memo_type from, to;
    } casts[] = {{"cast fp32 to bf16", MEMO_TYPE_F32, MEMO_TYPE_BF16},
                 {"cast bf16 to fp32", MEMO_TYPE_BF16, MEMO_TYPE_F32},
                 {"cast fp32 to fp16", MEMO_TYPE_F32, MEMO_TYPE_F16},
                 {"cast fp16 to fp32", MEMO_TYPE_F16, MEMO_TYPE_F32}};
    for (const auto& each : casts) {
        memo_add_desc cast;
        memset(&cast, 0, sizeof cast);
        cast.to = b;
        cast.a = a;
        cast.a_type = each.from;
        cast.to_type = each.to;
        cast.n_columns = n;
        TIME(seconds, check(memo_row_cast(device, stream, &cast, &error)));
        print(each.name, 6.0 * (double)n, seconds);
    }

    /* bf16 logits of a vocabulary of 2^17. */
    memo_cross_entropy_desc entropy;
    memset(&entropy, 0, sizeof entropy);
    entropy.n_columns = 1 << 17;
    entropy.n_rows = n / entropy.n_columns;
    entropy.type = MEMO_TYPE_BF16;
    entropy.logits = a;
    entropy.d_logits = b;
    entropy.scale = 1;
    entropy.labels = (const int32_t*)(void*)small;
    entropy.losses = (float*)(void*)(small + 4 * entropy.n_rows);
    entropy.parts = (float*)(void*)(small + 8 * entropy.n_rows);
    check(
        memo_fill(device, stream, small, 0, (8 + 4 * MEMO_LOSS_NUMBERS) * entropy.n_rows, &error));
    TIME(seconds, check(memo_row_softmax_parts(device, stream, &entropy, &error)));
    print("softmax parts, bf16, 2^17 columns", 2.0 * (double)n, seconds);
    TIME(seconds, check(memo_row_cross_entropy(device, stream, &entropy, &error)));
    print("cross-entropy, bf16, 2^17 columns", 4.0 * (double)n, seconds);
    printf("\n");
    check(memo_event_destroy(device, begin_event, &error));
    check(memo_event_destroy(device, end_event, &error));
    check(memo_stream_destroy(device, stream, &error));
    memo_cuda_device_destroy(device);
    return 0;
}
