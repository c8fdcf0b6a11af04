/* 12_ring_nccl.cu - computes causal ring attention over NCCL, a process per rank, with your own
 * kernel for a block.
 *
 * q and k are 0, so attention is the mean of v up to the token itself; v is the token's place in
 * the sequence.  The first pass runs call by call and creates NCCL's connections.  The second pass
 * is captured in a graph and replayed.
 *
 * Build:
 *     nvcc -arch=native -I. examples/12_ring_nccl.cu -lnccl -o 12_ring_nccl
 * Run (torchrun sets the same variables; ranks that share a GPU also need NCCL_HOSTID=$r):
 *     for r in 0 1; do RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 ./12_ring_nccl &
 *     done; wait
 * Expected output:
 *     2 ranks of 2048 tokens; 0 numbers of rank 0 are wrong
 */
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#define MEMO_CUDA_IMPLEMENTATION
#define MEMO_CUDA_NCCL
#include "memo_sp.h"
#include "memo_cuda.cuh"
#include <stdio.h>

enum { N_TOKENS = 4096, HEADS = 2, HEAD_SIZE = 8, ROW = HEADS * HEAD_SIZE };

/* One causal document is cut zigzag, so a block has one segment, CAUSAL or FULL. */
typedef struct block_args {
    memo_attention_block b;
    memo_segment s;
} block_args;

/* A thread per row and head; one pass over the keys, sums relative to the largest score so far. */
__global__ static void attend(const block_args a) {
    const memo_attention_block* b = &a.b;
    int64_t i = a.s.q_begin + (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / HEADS, e;
    int64_t end = a.s.k_end - (a.s.type == MEMO_SEGMENT_CAUSAL ? a.s.q_end - 1 - i : 0);
    int head = threadIdx.x % HEADS;
    if (i >= a.s.q_end) return;
    const float* q = (const float*)b->q + i * b->q_row_stride + head * HEAD_SIZE;
    float *to = b->out + i * b->out_row_stride + head * HEAD_SIZE, out[HEAD_SIZE] = {0};
    float largest = -INFINITY, sum = 0;
    for (int64_t j = a.s.k_begin; j < end; j++) {
        const float* k = (const float*)b->k + j * b->k_row_stride + head * HEAD_SIZE;
        const float* v = (const float*)b->v + j * b->v_row_stride + head * HEAD_SIZE;
        float score = 0, before = largest;
        for (e = 0; e < HEAD_SIZE; e++) score += q[e] * k[e];
        largest = fmaxf(largest, score * b->scale);
        float shrink = expf(before - largest), p = expf(score * b->scale - largest);
        sum = sum * shrink + p;
        for (e = 0; e < HEAD_SIZE; e++) out[e] = out[e] * shrink + p * v[e];
    }
    for (e = 0; e < HEAD_SIZE; e++) to[e] = sum > 0 ? out[e] / sum : 0;
    b->lse[i * b->lse_row_stride + head] = sum > 0 ? largest + logf(sum) : -INFINITY;
}

static memo_status forward(void*, memo_stream stream, const memo_attention_block* block,
                           memo_error* error) {
    block_args a = {*block, *block->segments.host};
    int64_t n = a.s.q_end - a.s.q_begin;
    attend<<<(unsigned)((n * HEADS + 127) / 128), 128, 0, memo_cuda_stream(stream)>>>(a);
    return memo_cuda_check(cudaGetLastError(), "attend", error);
}

/* The second pass, as a graph: the same on all ranks, and destroyed before the communicator. */
static memo_status attend_by_graph(memo_comm* comm, memo_stream stream, memo_sequence_batch* batch,
                                   const memo_sp_attention_tensors* rows, memo_error* error) {
    const cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal; /* NCCL has threads */
    cudaStream_t s = memo_cuda_stream(stream);
    cudaGraphExec_t exec = NULL;
    cudaGraph_t graph = NULL;
    memo_status status =
        memo_cuda_check(cudaStreamBeginCapture(s, mode), "cudaStreamBeginCapture", error);
    if (!status) status = memo_sequence_batch_attend(batch, 0, rows, error);
    if (!status)
        status = memo_cuda_check(cudaStreamEndCapture(s, &graph), "cudaStreamEndCapture", error);
    if (!status)
        status =
            memo_cuda_check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate", error);
    if (!status) status = memo_cuda_check(cudaGraphLaunch(exec, s), "cudaGraphLaunch", error);
    if (!status) status = memo_comm_nccl_synchronize(comm, stream, 0, error);
    if (exec) cudaGraphExecDestroy(exec);
    if (graph) cudaGraphDestroy(graph);
    return status;
}

/* A rank's rows; each checks its own. */
static memo_status attend_rows(memo_comm* comm, memo_device* device, memo_error* error) {
    const int64_t n_local = (N_TOKENS + comm->size - 1) / comm->size, n = n_local * ROW;
    memo_sequence_desc desc = {};
    memo_sequence* sequence = NULL;
    memo_sequence_batch_desc one_document = {};
    memo_sequence_batch* batch = NULL;
    memo_sp_attention_tensors rows = {};
    float *qk = NULL, *v = NULL, *out = NULL; /* managed memory, so that the host can look */
    int64_t n_wrong = 0, *positions = NULL;
    desc.device = device;
    desc.comm = comm;
    desc.n_tokens = N_TOKENS;
    desc.n_q_heads = desc.n_kv_heads = HEADS;
    desc.head_size = HEAD_SIZE;
    desc.attention.forward = desc.attention.backward = forward; /* the latter is not called */
    if (memo_cuda_check(cudaMallocManaged(&qk, n * sizeof(float)), "q", error) ||
        memo_cuda_check(cudaMallocManaged(&v, n * sizeof(float)), "v", error) ||
        memo_cuda_check(cudaMallocManaged(&out, n * sizeof(float)), "out", error) ||
        memo_cuda_check(cudaMallocManaged(&positions, n_local * sizeof *positions), "places",
                        error) ||
        memo_stream_create(device, "compute", 0, &desc.stream, error) ||
        memo_sequence_create(&desc, &sequence, error) ||
        memo_sequence_batch_create(sequence, &one_document, &batch, error))
        return error->status; /* the end of the process frees everything */
    memo_sequence_batch_get_positions(batch, positions);
    rows.q = rows.k = qk;
    rows.v = v;
    rows.out = out;
    for (int64_t i = 0; i < n; i++) {
        qk[i] = 0;
        v[i] = (float)positions[i / ROW];
    }

    /* The first pass creates NCCL's connections; only the second one is checked. */
    if (memo_sequence_batch_attend(batch, 0, &rows, error) ||
        memo_comm_nccl_synchronize(comm, desc.stream, 0, error)) /* ends if a peer is lost */
        return error->status;
    for (int64_t i = 0; i < n; i++) out[i] = 0;
    if (attend_by_graph(comm, desc.stream, batch, &rows, error)) return error->status;
    for (int64_t i = 0; i < n; i++)
        n_wrong += positions[i / ROW] < N_TOKENS && fabs(out[i] - 0.5 * v[i]) > 0.01;
    if (comm->rank == 0)
        printf("%d ranks of %d tokens; %lld numbers of rank 0 are wrong\n", (int)comm->size,
               (int)n_local, (long long)n_wrong);
    memo_sequence_batch_destroy(batch);
    memo_sequence_destroy(sequence);
    return n_wrong ? memo_error_set(error, MEMO_STATUS_DEVICE, "wrong numbers") : MEMO_STATUS_OK;
}

int main() {
    memo_comm_nccl_desc desc = {}; /* from the environment */
    memo_cuda_device_desc device_desc = {};
    const char* local_rank = getenv("LOCAL_RANK");
    memo_device* device = NULL;
    memo_comm* comm = NULL;
    memo_error error;
    int n_gpus = 0;
    if (cudaGetDeviceCount(&n_gpus) == cudaSuccess && n_gpus && local_rank)
        device_desc.ordinal = atoi(local_rank) % n_gpus;
    cudaSetDevice(device_desc.ordinal); /* NCCL takes the current device */

    memo_status status = memo_cuda_device_create(&device_desc, &device, &error);
    desc.failed =
        memo_cuda_device_fail; /* a lost peer fails the device, so that any wait returns */
    desc.failed_user = device;
    if (!status) status = memo_comm_create_nccl(&desc, &comm, &error);
    if (!status) status = attend_rows(comm, device, &error);

    if (status) {
        fprintf(stderr, "12_ring_nccl: %s\n", error.message);
        if (comm) memo_comm_abort(comm); /* so that no other rank waits for this one */
    }
    memo_comm_destroy(comm);
    memo_cuda_device_destroy(device);
    return status != MEMO_STATUS_OK;
}
