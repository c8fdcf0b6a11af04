/* bench/cuda_chain.cu - measures the time that swapping costs on a GPU, in a chain of layers with a
 * transformer's shape: h = 4096, heads of 128, MLP 4h.  Products are real, in bf16 (cuBLASLt).
 * There is no trainer around them.
 *
 *   nvcc -O3 -arch=native -I. bench/cuda_chain.cu -lcublasLt -o cuda_chain
 *   ./cuda_chain [--tokens 65536] [--layers 6] [--repetitions 5] [--seconds 120] [--alpha A] [--causal 1] [--out FOLDER]
 *
 * With the headers of cudnn-frontend in the folder $CUDNN, attention is cuDNN's (compiling then
 * takes minutes):
 *   nvcc -O3 -arch=native -std=c++17 -I. -I$CUDNN/include -DCHAIN_CUDNN bench/cuda_chain.cu -lcublasLt -lcudnn -lnvrtc \
 *       -o cuda_chain
 *
 * A layer, with a row per token:
 *   qkv = x Wqkv,  o = attention(q, k, v) for each head,  r = x + o Wo,  u = r W1,  g = gelu(u),
 *                  next x = r + g W2
 * Attention is causal (--causal 0: over all pairs).  There are two kinds; the table's heading names
 * the one in use:
 *   fused       softmax(q k^T / sqrt(128)) v by cuDNN.  The forward saves the LSE of each row.  The
 *               backward uses cuDNN's deterministic algorithm, because the bits of the ways are
 *               compared.  On Hopper it needs 2 n^2 bytes of work space per head, so a call takes
 *               as many heads as fit in 24 GiB.  It is slower than the algorithm without a fixed
 *               order of sums, and hides more copies.  This kind has not run yet.
 *   in blocks   (q k^T / sqrt(128)) v / n as two products, in blocks of rows, without softmax.  Its
 *               work grows with the length like real attention.  A block of rows sees all earlier
 *               keys, and the lower triangle of its own block.  Scores go through device memory, so
 *               it is slower than FlashAttention and hides more copies.
 * The backward follows from these formulas, and computes q k^T again.
 * Kept for the backward are x (h), qkv (3h), o (h), r (h), u (4h), g (4h): 14 h numbers per token;
 * fused, the LSE too.
 *
 * One run compares three ways, or four if alpha is below 1:
 *   keep                 everything stays on the device
 *   swap                 everything is swapped, except in the last two layers
 *   recompute            x is kept; the rest is recomputed before the backward.  Fused, o and the
 *                        LSE are kept too, so this way is not comparable with the same way in
 *                        blocks.
 *   swap and recompute   x and o are swapped whole; alpha of the others is swapped and the rest
 *                        recomputed
 *
 * Rounds: each way takes one step per round.  The order rotates, so that drifting clocks and
 * warming chips affect all ways alike.  Two events time a step; ratios are taken within a round;
 * both are printed as medians.  The first round warms up.  Each round has new data and overwrites
 * device memory first, so that no step can use results of an earlier one.  Gradients of all weights
 * and of the input, and the output, must have the same bits as keep's step of the round.  All ways
 * compute products over tokens in the same tiles of rows.
 *
 * A layer's forward takes 24 n h^2 + 2 n^2 h operations (4 n^2 h if not causal), and its copies are
 * 28 n h bytes.  At 600 TFLOP/s and 55 GB/s the copies are hidden from about 100000 tokens on
 * (50000 if not causal).  The program prints the measured times of both. */
#ifndef LINKED /* with an implementation compiled before */
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#endif
#define MEMO_CUDA_IMPLEMENTATION
#include "memo_sp.h"
#include "memo_cuda.cuh"
#include "extras/memo_look.h"

#include "cuda_gemm.h"
#ifdef CHAIN_CUDNN
#include "examples/cudnn_attention.h"

#include <algorithm>
#endif

enum { H = 4096, HEAD = 128, N_HEADS = H / HEAD, TILE = 4096, BLOCK = 1024, ROUNDS_MAX = 33 };
enum { X, QKV, O, R, U, G, STATS, N_TENSORS };

typedef uint16_t bf16;

static struct {
    int64_t n_tokens;
    int32_t n_layers;
    int n_repetitions;
    double seconds; /* no new round begins after this time, but at least one round counts */
    double alpha;
    int is_causal;
    const char* folder;
} options = {65536, 6, 5, 120, 1, 1, NULL};

/* --- small kernels --- */

__global__ static void fill_random(bf16* to, int64_t n, float size, uint64_t seed) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        uint64_t z = ((uint64_t)i + seed) * 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z ^= z >> 27;
        to[i] = memo_bf16_from_f32(size * ((float)(z & 0xffff) / 32768.0f - 1));
    }
}

/* gelu by the sigmoid: x / (1 + exp(-1.702 x)). */
__global__ static void gelu(bf16* to, const bf16* from, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        float x = memo_f32_from_bf16(from[i]);
        to[i] = memo_bf16_from_f32(x / (1 + expf(-1.702f * x)));
    }
}
__global__ static void gelu_backward(bf16* gradient, const bf16* from, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        float x = memo_f32_from_bf16(from[i]), s = 1 / (1 + expf(-1.702f * x));
        float slope = s * (1 + 1.702f * x * (1 - s));
        gradient[i] = memo_bf16_from_f32(memo_f32_from_bf16(gradient[i]) * slope);
    }
}

typedef struct digest {
    unsigned long long sum;          /* of a hash of each word and its place, in any order */
    unsigned long long n_not_finite; /* words */
} digest;

/* Words are an fp32, whose upper half has the exponent of a bf16, or two bf16. */
__global__ static void add_digest(const uint32_t* from, int64_t n, int is_bf16, digest* to) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    digest mine = {0, 0};
    for (; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        uint32_t word = from[i];
        unsigned long long z = ((unsigned long long)i << 32 | word) * 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 29)) * 0xbf58476d1ce4e5b9ull;
        mine.sum += z ^ (z >> 32);
        mine.n_not_finite +=
            (word >> 16 & 0x7f80) == 0x7f80 || (is_bf16 && (word & 0x7f80) == 0x7f80);
    }
    atomicAdd(&to->sum, mine.sum);
    atomicAdd(&to->n_not_finite, mine.n_not_finite);
}

/* --- shared by all ways --- */

typedef struct weights {
    bf16 *qkv, *o, *in, *out; /* (H, 3H), (H, H), (H, 4H), (4H, H) */
    float *d_qkv, *d_o, *d_in, *d_out;
} weights;

static struct {
    memo_device* device;
    gemm_library library;
    weights* layers;
    bf16 *value, *gradient;      /* (n_tokens, H): passed from layer to layer */
    bf16 *d_o, *d_q, *d_k, *d_v; /* (n_tokens, H) */
    bf16* d_hidden;              /* (TILE, 4H) */
    digest* result;
    int64_t common_bytes;
    void* kept; /* rows and tensors of the way that runs */
    int64_t kept_bytes;
    memo_stream compute;
} chain;

/* Products over a tile of tokens. */
static gemm to_qkv, to_r, to_u, to_value, from_value, from_u, from_r, from_qkv;
static gemm into_qkv, into_o, into_in, into_out;

static gemm shape(int64_t m, int64_t n, int64_t k, int a_transposed, int b_transposed, int64_t lda,
                  int64_t ldb, int64_t ldd, float alpha, float beta) {
    gemm g;
    memset(&g, 0, sizeof g);
    g.m = m;
    g.n = n;
    g.k = k;
    g.a_transposed = a_transposed;
    g.b_transposed = b_transposed;
    g.lda = lda;
    g.ldb = ldb;
    g.ldd = ldd;
    g.alpha = alpha;
    g.beta = beta;
    return g;
}

static void prepare_products(void) {
    gemm* all[] = {&to_qkv, &to_r,     &to_u,     &to_value, &from_value, &from_u,
                   &from_r, &from_qkv, &into_qkv, &into_o,   &into_in,    &into_out};
    to_qkv = shape(TILE, 3 * H, H, 0, 0, H, 3 * H, 3 * H, 1, 0);
    to_r = shape(TILE, H, H, 0, 0, H, H, H, 1, 1);
    to_u = shape(TILE, 4 * H, H, 0, 0, H, 4 * H, 4 * H, 1, 0);
    to_value = shape(TILE, H, 4 * H, 0, 0, 4 * H, H, H, 1, 1);
    from_value = shape(TILE, 4 * H, H, 0, 1, H, H, 4 * H, 1, 0); /* dg = dy W2^T */
    from_u = shape(TILE, H, 4 * H, 0, 1, 4 * H, 4 * H, H, 1, 1); /* dr = dy + du W1^T */
    from_r = shape(TILE, H, H, 0, 1, H, H, H, 1, 0);             /* do = dr Wo^T */
    from_qkv = shape(TILE, H, H, 0, 1, H, 3 * H, H, 1, 1);       /* dx = dr + dq Wq^T + ... */
    into_qkv = shape(H, H, TILE, 1, 0, H, H, 3 * H, 1, 1);       /* dWq += x^T dq, ... */
    into_o = shape(H, H, TILE, 1, 0, H, H, H, 1, 1);
    into_in = shape(H, 4 * H, TILE, 1, 0, H, 4 * H, 4 * H, 1, 1);
    into_out = shape(4 * H, H, TILE, 1, 0, 4 * H, H, H, 1, 1);
    into_qkv.is_fp32 = into_o.is_fp32 = into_in.is_fp32 = into_out.is_fp32 = 1;
    for (gemm* g : all) gemm_prepare(&chain.library, g);

    /* Any layer's weight and gradient of the MLP are as large as the largest matrices. */
    const weights* w = &chain.layers[0];
    printf("### Products of the chain\n\n");
    printf("| m x n x k | pinned, TFLOP/s | fastest | time of fastest / pinned | which |\n");
    printf("|---|---|---|---|---|\n");
    for (gemm* g : all) gemm_print(&chain.library, g, w->in, w->d_in);
    printf("\n");
    CHECK_CUDA(cudaMemset(w->d_in, 0, 16ll * H * H));
}

static void* take(int64_t size_bytes) {
    chain.common_bytes += size_bytes;
    return device_memory(chain.device, size_bytes);
}

typedef struct policy {
    const char* name;
    int32_t away[STATS]; /* away; statistics as o */
    double alpha;
    const memo_device* device; /* the chain's, or a recorder of it */
    memo_stream compute;
    memo_swap* swap;
    bf16* rows[N_TENSORS]; /* of the current layer */
} policy;

static const int widths[STATS] = {1, 3, 1, 1, 4, 4}; /* in H */

static cudaStream_t stream_of(const policy* w) { return memo_cuda_stream(w->compute); }

static bf16* at(const policy* w, int tensor, int64_t row) {
    return w->rows[tensor] + row * widths[tensor] * H;
}

static void look_up(policy* w, int32_t layer) {
    for (int t = 0; t < N_TENSORS; t++)
        w->rows[t] = (bf16*)memo_swap_get_address(w->swap, layer, t);
}

static void run(const policy* w, const gemm* g, const void* a, const void* b, const void* c,
                void* d) {
    gemm_run(&chain.library, g, a, b, c, d, stream_of(w));
}

static void announce(const policy* w, const char* what, int32_t layer) {
    memo_op_desc op = {};
    char name[48];
    if (!w->device->annotate) return;
    snprintf(name, sizeof name, "%s %d", what, (int)layer);
    op.name = name;
    check(memo_annotate(w->device, w->compute, &op, &error));
}

static void copy_on_device(const policy* w, void* to, const void* from, int64_t size_bytes) {
    CHECK_CUDA(
        cudaMemcpyAsync(to, from, (size_t)size_bytes, cudaMemcpyDeviceToDevice, stream_of(w)));
}
static void zero(const policy* w, void* address, int64_t size_bytes) {
    CHECK_CUDA(cudaMemsetAsync(address, 0, (size_t)size_bytes, stream_of(w)));
}

#ifdef CHAIN_CUDNN

/* --- attention of cuDNN, fused --- */

enum { DIAGONAL = 1 };
static const int64_t stats_bytes = 4 * N_HEADS; /* of a token; cuDNN stores them by head */
/* o and its statistics are never recomputed: attention over a part of the rows could give other
 * bits. */
static const int32_t o_if_swapped = MEMO_MOVE;
static const int32_t o_if_recomputed = MEMO_KEEP;

static struct {
    attention_plans plans;
    const attention_call *forward, *backward;
    void* workspace;
} fused;

static attention_shape fused_shape(bool is_backward) {
    const int64_t n = options.n_tokens;
    attention_shape s = {};
    s.b = 1;
    s.n_q = s.n_k = n;
    s.h_q = s.h_k = N_HEADS;
    s.d = HEAD;
    s.q = s.k = {3 * H, 3 * H * n};
    s.d_out = s.q_result = s.k_result = {H, H * n};
    s.scale = 1 / sqrtf((float)HEAD);
    s.is_causal = options.is_causal;
    s.is_backward = s.is_deterministic = is_backward;
    return s;
}

static void open_attention(void) {
    const int64_t n_bytes = (int64_t)24 << 30;
    const attention_call** calls[2] = {&fused.forward, &fused.backward};
    int64_t workspace_bytes = 0;
    if (cudnnCreate(&fused.plans.handle) != CUDNN_STATUS_SUCCESS)
        check(attention_failed(&error, "cudnnCreate: failed"));
    for (int i = 0; i < 2; i++) {
        check(attention_prepare(&fused.plans, fused_shape(i == 1), n_bytes, &error));
        check(attention_get(&fused.plans, fused_shape(i == 1), calls[i], &error));
        workspace_bytes = std::max(workspace_bytes, (*calls[i])->plan->workspace_bytes);
    }
    fused.workspace = take(workspace_bytes + 1);
}

static void close_attention(void) { cudnnDestroy(fused.plans.handle); }

static void name_attention(char* name, size_t size) {
    size_t version = cudnnGetVersion();
    snprintf(name, size, "of cuDNN %d.%d.%d, fused, backward deterministic and by %d heads",
             (int)(version / 10000), (int)(version / 100 % 100), (int)(version % 100),
             (int)fused.backward->shape.h_q);
}

static void attention(const policy* w) {
    bf16* qkv = at(w, QKV, 0);
    std::unordered_map<int64_t, void*> addresses = {{ATTENTION_Q, qkv},
                                                    {ATTENTION_K, qkv + H},
                                                    {ATTENTION_V, qkv + 2 * H},
                                                    {ATTENTION_OUT, at(w, O, 0)},
                                                    {ATTENTION_STATS, w->rows[STATS]}};
    check(attention_run(&fused.plans, fused.forward->plan, addresses, fused.workspace, stream_of(w),
                        &error));
}

static void backward_attention(const policy* w) {
    for (int64_t head = 0; head < N_HEADS; head += fused.backward->shape.h_q) {
        bf16* qkv = at(w, QKV, 0) + head * HEAD;
        float* stats = (float*)(void*)w->rows[STATS] + head * options.n_tokens;
        std::unordered_map<int64_t, void*> addresses = {{ATTENTION_Q, qkv},
                                                        {ATTENTION_K, qkv + H},
                                                        {ATTENTION_V, qkv + 2 * H},
                                                        {ATTENTION_OUT, at(w, O, 0) + head * HEAD},
                                                        {ATTENTION_STATS, stats},
                                                        {ATTENTION_D_OUT, chain.d_o + head * HEAD},
                                                        {ATTENTION_D_Q, chain.d_q + head * HEAD},
                                                        {ATTENTION_D_K, chain.d_k + head * HEAD},
                                                        {ATTENTION_D_V, chain.d_v + head * HEAD}};
        check(attention_run(&fused.plans, fused.backward->plan, addresses, fused.workspace,
                            stream_of(w), &error));
    }
}

#else

/* --- attention in blocks of rows, not fused --- */

typedef struct attention_products {
    gemm make_scores, make_o, make_d_scores, into_v, into_k, make_d_q;
} attention_products;

enum { DIAGONAL = BLOCK };
static const int64_t stats_bytes = 0; /* there are none */
static const int32_t o_if_swapped = MEMO_WHOLE;
static const int32_t o_if_recomputed = MEMO_ROWS;

static struct {
    attention_products* products; /* of each block of rows; not causal: of all */
    float *sum_k, *sum_v;         /* (n_tokens, H) */
    bf16 *scores, *d_scores;      /* (N_HEADS, BLOCK, n_tokens) */
} blocks;

/* Scores of a block of rows against its own tokens: 0 above the diagonal.  One thread block per row
 * and head. */
__global__ static void mask_diagonal(bf16* scores, int64_t row, int64_t n_tokens) {
    int64_t head = blockIdx.x / BLOCK, i = blockIdx.x % BLOCK;
    bf16* own = scores + (head * BLOCK + i) * n_tokens + row;
    for (int64_t k = i + 1 + threadIdx.x; k < BLOCK; k += blockDim.x) own[k] = 0;
}

static void over_heads(gemm* g, int64_t a_stride, int64_t b_stride, int64_t d_stride) {
    g->n_batches = N_HEADS;
    g->a_stride = a_stride;
    g->b_stride = b_stride;
    g->d_stride = d_stride;
}

/* A block of rows against the first n_keys tokens. */
static void prepare_attention(attention_products* p, int64_t n_keys) {
    const int64_t n = options.n_tokens, scores = BLOCK * n;
    const float scale = 1 / sqrtf((float)HEAD), mean = 1 / (float)n;
    p->make_scores = shape(BLOCK, n_keys, HEAD, 0, 1, 3 * H, 3 * H, n, scale, 0);
    over_heads(&p->make_scores, HEAD, HEAD, scores);
    p->make_o = shape(BLOCK, HEAD, n_keys, 0, 0, n, 3 * H, H, mean, 0);
    over_heads(&p->make_o, scores, HEAD, HEAD);
    p->make_d_scores = shape(BLOCK, n_keys, HEAD, 0, 1, H, 3 * H, n, mean, 0);
    over_heads(&p->make_d_scores, HEAD, HEAD, scores);
    p->into_v = shape(n_keys, HEAD, BLOCK, 1, 0, n, H, H, mean, 1);
    over_heads(&p->into_v, scores, HEAD, HEAD);
    p->into_k = shape(n_keys, HEAD, BLOCK, 1, 0, n, 3 * H, H, scale, 1);
    over_heads(&p->into_k, scores, HEAD, HEAD);
    p->make_d_q = shape(BLOCK, HEAD, n_keys, 0, 0, n, 3 * H, H, scale, 0);
    over_heads(&p->make_d_q, scores, HEAD, HEAD);
    p->into_v.is_fp32 = p->into_k.is_fp32 = 1;
    for (gemm* g :
         {&p->make_scores, &p->make_o, &p->make_d_scores, &p->into_v, &p->into_k, &p->make_d_q})
        gemm_prepare(&chain.library, g);
}

static void open_attention(void) {
    const int64_t n = options.n_tokens, n_blocks = options.is_causal ? n / BLOCK : 1;
    blocks.sum_k = (float*)take(4 * n * H);
    blocks.sum_v = (float*)take(4 * n * H);
    blocks.scores = (bf16*)take(2 * n * BLOCK * N_HEADS);
    blocks.d_scores = (bf16*)take(2 * n * BLOCK * N_HEADS);
    blocks.products = (attention_products*)calloc((size_t)n_blocks, sizeof(attention_products));
    for (int64_t i = 0; i < n_blocks; i++)
        prepare_attention(&blocks.products[i], options.is_causal ? (i + 1) * BLOCK : n);
}

static void close_attention(void) { free(blocks.products); }

static void name_attention(char* name, size_t size) {
    snprintf(name, size, "in blocks of %d rows", (int)BLOCK);
}

static const attention_products* attention_of(int64_t row) {
    return &blocks.products[options.is_causal ? row / BLOCK : 0];
}

/* scores (N_HEADS, BLOCK, n_tokens) of the rows from `row` on. */
static void mask(const policy* w, bf16* scores, int64_t row) {
    if (options.is_causal)
        mask_diagonal<<<N_HEADS * BLOCK, 128, 0, stream_of(w)>>>(scores, row, options.n_tokens);
}

static void attention(const policy* w) {
    for (int64_t row = 0; row < options.n_tokens; row += BLOCK) {
        const bf16 *q = at(w, QKV, row), *k = at(w, QKV, 0) + H, *v = at(w, QKV, 0) + 2 * H;
        const attention_products* p = attention_of(row);
        run(w, &p->make_scores, q, k, NULL, blocks.scores);
        mask(w, blocks.scores, row);
        run(w, &p->make_o, blocks.scores, v, NULL, at(w, O, row));
    }
}

static void cast_gradient(const policy* w, bf16* to, const float* from) {
    memo_add_desc cast;
    memset(&cast, 0, sizeof cast);
    cast.to = to;
    cast.to_type = MEMO_TYPE_BF16;
    cast.a = from;
    cast.n_columns = options.n_tokens * H;
    check(memo_row_cast(w->device, w->compute, &cast, &error));
}

static void backward_attention(const policy* w) {
    const int64_t n = options.n_tokens;
    zero(w, blocks.sum_k, 4 * n * H);
    zero(w, blocks.sum_v, 4 * n * H);
    for (int64_t row = 0; row < n; row += BLOCK) {
        const bf16 *q = at(w, QKV, row), *k = at(w, QKV, 0) + H, *v = at(w, QKV, 0) + 2 * H;
        const bf16* d_o = chain.d_o + row * H;
        const attention_products* p = attention_of(row);
        run(w, &p->make_scores, q, k, NULL, blocks.scores);
        mask(w, blocks.scores, row);
        run(w, &p->into_v, blocks.scores, d_o, blocks.sum_v, blocks.sum_v);
        run(w, &p->make_d_scores, d_o, v, NULL, blocks.d_scores);
        mask(w, blocks.d_scores, row);
        run(w, &p->make_d_q, blocks.d_scores, k, NULL, chain.d_q + row * H);
        run(w, &p->into_k, blocks.d_scores, q, blocks.sum_k, blocks.sum_k);
    }
    cast_gradient(w, chain.d_k, blocks.sum_k);
    cast_gradient(w, chain.d_v, blocks.sum_v);
}

#endif

static void open_chain(void) {
    const int64_t n = options.n_tokens;
    memo_cuda_device_desc desc = {};
    desc.host_limit = MEMO_CUDA_HOST_WARN; /* the free memory of some machines grows with use */
    desc.log.write = write_line;
    desc.log.user = stderr;
    check(memo_cuda_device_create(&desc, &chain.device, &error));

    CHECK_LT(cublasLtCreate(&chain.library.handle));
    chain.library.workspace_bytes = (size_t)64 << 20;
    chain.library.workspace = take((int64_t)chain.library.workspace_bytes);

    /* Weights of all layers; their size keeps values near 1 through the chain. */
    chain.layers = (weights*)calloc((size_t)options.n_layers, sizeof(weights));
    for (int32_t i = 0; i < options.n_layers; i++) {
        weights* w = &chain.layers[i];
        w->qkv = (bf16*)take(2ll * 3 * H * H);
        w->o = (bf16*)take(2ll * H * H);
        w->in = (bf16*)take(2ll * 4 * H * H);
        w->out = (bf16*)take(2ll * 4 * H * H);
        w->d_qkv = (float*)take(4ll * 3 * H * H);
        w->d_o = (float*)take(4ll * H * H);
        w->d_in = (float*)take(4ll * 4 * H * H);
        w->d_out = (float*)take(4ll * 4 * H * H);
        const float size = 1 / sqrtf((float)H);
        fill_random<<<1024, 256>>>(w->qkv, 3ll * H * H, size, 1000 + (uint64_t)i);
        fill_random<<<1024, 256>>>(w->o, 1ll * H * H, size, 2000 + (uint64_t)i);
        fill_random<<<1024, 256>>>(w->in, 4ll * H * H, size, 3000 + (uint64_t)i);
        fill_random<<<1024, 256>>>(w->out, 4ll * H * H, size / 2, 4000 + (uint64_t)i);
    }

    /* What all ways share: one layer's input, output and gradients. */
    bf16** const rows[] = {&chain.value, &chain.gradient, &chain.d_o,
                           &chain.d_q,   &chain.d_k,      &chain.d_v};
    for (bf16** each : rows) *each = (bf16*)take(2 * n * H);
    chain.d_hidden = (bf16*)take(2ll * TILE * 4 * H);
    chain.result = (digest*)take(sizeof(digest));

    chain.compute = new_stream(chain.device, "compute", 0);
    prepare_products();
    open_attention();
    CHECK_CUDA(cudaDeviceSynchronize());
}

/* --- a layer --- */

/* Rows [begins[t], ends[t]) of each tensor t, from tensors before it. */
static void compute_rows(const policy* w, const weights* p, const int64_t* begins,
                         const int64_t* ends) {
    for (int64_t row = begins[QKV]; row < ends[QKV]; row += TILE)
        run(w, &to_qkv, at(w, X, row), p->qkv, NULL, at(w, QKV, row));
    if (begins[O] < ends[O]) attention(w); /* all rows or none */
    for (int64_t row = begins[R]; row < ends[R]; row += TILE)
        run(w, &to_r, at(w, O, row), p->o, at(w, X, row), at(w, R, row));
    for (int64_t row = begins[U]; row < ends[U]; row += TILE)
        run(w, &to_u, at(w, R, row), p->in, NULL, at(w, U, row));
    if (begins[G] < ends[G])
        gelu<<<2048, 256, 0, stream_of(w)>>>(at(w, G, begins[G]), at(w, U, begins[G]),
                                             4 * (ends[G] - begins[G]) * H);
}

static void forward(policy* w, int32_t layer) {
    const int64_t n = options.n_tokens, begins[N_TENSORS] = {0},
                  ends[N_TENSORS] = {n, n, n, n, n, n, n};
    const weights* p = &chain.layers[layer];
    check(memo_swap_forward_begin(w->swap, layer, &error));
    look_up(w, layer);
    announce(w, "forward", layer);
    copy_on_device(w, at(w, X, 0), chain.value, 2 * n * H);
    compute_rows(w, p, begins, ends);
    for (int64_t row = 0; row < n; row += TILE)
        run(w, &to_value, at(w, G, row), p->out, at(w, R, row), chain.value + row * H);
    check(memo_swap_forward_end(w->swap, layer, &error));
}

static void backward(policy* w, int32_t layer) {
    const int64_t n = options.n_tokens;
    const weights* p = &chain.layers[layer];
    const bf16* d_qkv[3] = {chain.d_q, chain.d_k, chain.d_v};
    int64_t begins[N_TENSORS], ends[N_TENSORS], any = 0;

    check(memo_swap_backward_begin(w->swap, layer, &error));
    look_up(w, layer);
    for (int t = 0; t < N_TENSORS; t++) {
        memo_swap_get_recompute_rows(w->swap, layer, t, &begins[t], &ends[t]);
        any |= begins[t] < ends[t];
    }

    /* Recompute the rows that were not swapped. */
    if (any) {
        announce(w, "recompute", layer);
        compute_rows(w, p, begins, ends);
    }

    /* From the output of the layer back to attention, a tile at a time. */
    announce(w, "backward", layer);
    for (int64_t row = 0; row < n; row += TILE) {
        bf16* gradient = chain.gradient + row * H;
        run(w, &into_out, at(w, G, row), gradient, p->d_out, p->d_out);
        run(w, &from_value, gradient, p->out, NULL, chain.d_hidden);
        gelu_backward<<<2048, 256, 0, stream_of(w)>>>(chain.d_hidden, at(w, U, row),
                                                      4ll * TILE * H);
        run(w, &into_in, at(w, R, row), chain.d_hidden, p->d_in, p->d_in);
        run(w, &from_u, chain.d_hidden, p->in, gradient, gradient);
        run(w, &into_o, at(w, O, row), gradient, p->d_o, p->d_o);
        run(w, &from_r, gradient, p->o, NULL, chain.d_o + row * H);
    }

    /* Attention needs all rows; its projections come after it. */
    backward_attention(w);
    for (int64_t row = 0; row < n; row += TILE) {
        for (int64_t part = 0; part < 3; part++) {
            const bf16* d = d_qkv[part] + row * H;
            run(w, &into_qkv, at(w, X, row), d, p->d_qkv + part * H, p->d_qkv + part * H);
            run(w, &from_qkv, d, p->qkv + part * H, chain.gradient + row * H,
                chain.gradient + row * H);
        }
    }

    check(memo_swap_backward_end(w->swap, layer, &error));
}

/* Prepares a step, outside its time.  0xffff is NaN in bf16. */
static void begin_step(const policy* w, int round) {
    const int64_t n = options.n_tokens * H;
    const uint64_t seed = 2 * (uint64_t)round + 1;
    CHECK_CUDA(cudaMemsetAsync(chain.kept, 0xff, (size_t)chain.kept_bytes, stream_of(w)));
    fill_random<<<1024, 256, 0, stream_of(w)>>>(chain.value, n, 1, seed << 40);
    fill_random<<<1024, 256, 0, stream_of(w)>>>(chain.gradient, n, 1.0f / 64, (seed + 1) << 40);
    for (int32_t i = 0; i < options.n_layers; i++) {
        const weights* p = &chain.layers[i];
        zero(w, p->d_qkv, 4ll * 3 * H * H);
        zero(w, p->d_o, 4ll * H * H);
        zero(w, p->d_in, 4ll * 4 * H * H);
        zero(w, p->d_out, 4ll * 4 * H * H);
    }
}

static void step(policy* w) {
    for (int32_t i = 0; i < options.n_layers; i++) forward(w, i);
    for (int32_t i = options.n_layers - 1; i >= 0; i--) backward(w, i);
    CHECK_CUDA(cudaGetLastError());
}

/* --- measuring --- */

static void synchronize(const policy* w) {
    check(memo_stream_synchronize(w->device, w->compute, &error));
}

static memo_swap_desc swap_desc(const policy* w, memo_item* tensors) {
    static const char* const names[N_TENSORS] = {"x", "qkv", "o", "r", "u", "g", "statistics"};
    memo_swap_desc desc = {};
    memset(tensors, 0, N_TENSORS * sizeof *tensors);
    for (int t = 0; t < N_TENSORS; t++) {
        tensors[t].name = names[t];
        tensors[t].row_bytes = t == STATS ? stats_bytes : 2ll * H * widths[t];
        tensors[t].away = w->away[t == STATS ? O : t];
    }
    desc.device = w->device;
    desc.compute_stream = w->compute;
    desc.tensors = tensors;
    desc.n_tensors = N_TENSORS;
    desc.n_layers = options.n_layers;
    desc.n_rows = options.n_tokens;
    desc.tile_rows = TILE;
    desc.alpha = w->alpha;
    desc.device_memory = chain.kept;
    return desc;
}

static void open_way(policy* w, const memo_device* device) {
    memo_item tensors[N_TENSORS];
    w->device = device;
    w->compute = device == chain.device ? chain.compute : new_stream(device, "compute", 0);
    memo_swap_desc desc = swap_desc(w, tensors);
    check(memo_swap_create(&desc, &w->swap, &error));
}

static void close_way(policy* w) {
    synchronize(w);
    memo_swap_destroy(w->swap);
    if (w->compute != chain.compute) check(memo_stream_destroy(w->device, w->compute, &error));
}

static digest read_digest(const policy* w) {
    digest result;
    const int64_t n = options.n_tokens * H / 2;
    zero(w, chain.result, sizeof result);
    for (const bf16* each : {chain.value, chain.gradient})
        add_digest<<<1024, 256, 0, stream_of(w)>>>((const uint32_t*)(const void*)each, n, 1,
                                                   chain.result);
    for (int32_t i = 0; i < options.n_layers; i++) {
        const weights* p = &chain.layers[i];
        const struct {
            const float* from;
            int64_t n;
        } all[] = {{p->d_qkv, 3ll * H * H},
                   {p->d_o, 1ll * H * H},
                   {p->d_in, 4ll * H * H},
                   {p->d_out, 4ll * H * H}};
        for (const auto& each : all)
            add_digest<<<1024, 256, 0, stream_of(w)>>>((const uint32_t*)(const void*)each.from,
                                                       each.n, 0, chain.result);
    }
    CHECK_CUDA(cudaMemcpyAsync(&result, chain.result, sizeof result, cudaMemcpyDeviceToHost,
                               stream_of(w)));
    synchronize(w);
    return result;
}

/* One step, enqueued by `enqueue`: its time, the host's time to enqueue it, and its result. */
typedef struct measured_step {
    double seconds, host_s;
    digest result;
} measured_step;

template <typename Enqueue>
static measured_step measure(const policy* w, int round, const Enqueue& enqueue) {
    measured_step m;
    memo_event begin = new_event(w->device), end = new_event(w->device);
    begin_step(w, round);
    synchronize(w);
    record(w->device, begin, w->compute);
    m.host_s = now_s();
    enqueue();
    m.host_s = now_s() - m.host_s;
    record(w->device, end, w->compute);
    m.seconds = elapsed_s(w->device, begin, end);
    m.result = read_digest(w);
    check(memo_event_destroy(w->device, begin, &error));
    check(memo_event_destroy(w->device, end, &error));
    return m;
}

static const char* bits(const measured_step* steps, const measured_step* expected, int n_rounds) {
    for (int k = 0; k < n_rounds; k++)
        if (steps[k].result.n_not_finite)
            return "**NOT FINITE**";
        else if (steps[k].result.sum != expected[k].result.sum)
            return "**OTHER**";
    return "the same";
}

static int all_is_well = 1;
static const char* noted(const char* bits) {
    all_is_well &= strcmp(bits, "the same") == 0;
    return bits;
}

/* Medians of the rounds after the first. */
static double median_s(const measured_step* steps, int n_rounds) {
    double all[ROUNDS_MAX];
    for (int k = 1; k < n_rounds; k++) all[k - 1] = steps[k].seconds;
    return median(all, n_rounds - 1);
}
static double median_host_s(const measured_step* steps, int n_rounds) {
    double all[ROUNDS_MAX];
    for (int k = 1; k < n_rounds; k++) all[k - 1] = steps[k].host_s;
    return median(all, n_rounds - 1);
}
static double median_ratio(const measured_step* steps, const measured_step* of, int n_rounds) {
    double all[ROUNDS_MAX];
    for (int k = 1; k < n_rounds; k++) all[k - 1] = steps[k].seconds / of[k].seconds;
    return median(all, n_rounds - 1);
}

/* Copies of a layer's bytes without computation; the other direction is idle, as in the step. */
static void bare_copies(int64_t size_bytes, double* bytes_per_s) {
    const memo_device* d = chain.device;
    memo_stream stream = new_stream(d, "bare", 0);
    memo_event begin = new_event(d), end = new_event(d);
    void *on_host = host_memory(d, size_bytes), *on_device = device_memory(d, size_bytes);
    for (int way = 0; way < 2; way++) {
        double seconds[5];
        for (int k = -1; k < 5; k++) {
            record(d, begin, stream);
            check(memo_copy(d, stream, (memo_copy_kind)way, way ? on_device : on_host,
                            way ? on_host : on_device, size_bytes, &error));
            record(d, end, stream);
            double once = elapsed_s(d, begin, end);
            if (k >= 0) seconds[k] = once;
        }
        bytes_per_s[way] = (double)size_bytes / median(seconds, 5);
    }
    check(memo_event_destroy(d, begin, &error));
    check(memo_event_destroy(d, end, &error));
    check(memo_stream_destroy(d, stream, &error));
    check(memo_device_free(d, on_device, &error));
    check(memo_host_free(d, on_host, &error));
}

static void write_timeline(const memo_schedule* schedule, const memo_simulation* times,
                           const char* name) {
    char path[512], title[96];
    if (!options.folder) return;
    snprintf(title, sizeof title, "%s: %d layers of %lld tokens", name, (int)options.n_layers,
             (long long)options.n_tokens);
    snprintf(path, sizeof path, "%s/%s.json", options.folder, name);
    check(memo_schedule_write_chrome(schedule, times, path, &error));
    snprintf(path, sizeof path, "%s/%s.svg", options.folder, name);
    check(memo_schedule_write_svg(schedule, times, title, path, &error));
}

/* Prints the waits of the compute stream in one recorded step, measured and simulated, and the
 * rates of the copies. */
static void look_inside(policy* w, int64_t layer_bytes, const double* bare_bytes_per_s) {
    memo_recorder_desc desc = {};
    memo_recorder* recorder;
    memo_schedule* schedule;
    memo_simulation *measured, *simulated;
    double copied_s[2] = {0, 0}, copied_bytes[2] = {0, 0}, sums[2] = {0, 0}, computed_s[2] = {0, 0};
    int32_t compute = 0;

    /* Record the second step: the first warms up. */
    desc.device = chain.device;
    desc.is_timed = 1;
    check(memo_recorder_create(&desc, &recorder, &error));
    open_way(w, memo_recorder_get_device(recorder));
    memo_recorder_pause(recorder);
    begin_step(w, 0);
    step(w);
    begin_step(w, 0);
    synchronize(w);
    memo_recorder_resume(recorder);
    step(w);
    synchronize(w);

    /* The simulation has the measured durations, and the bare rates for the copies. */
    check(memo_recorder_get_schedule(recorder, &schedule, &error));
    check(memo_schedule_measured(schedule, &measured, &error));

    for (int64_t i = 0; i < schedule->n_ops; i++) {
        memo_op* op = &schedule->ops[i];
        const char* name = memo_schedule_op_name(schedule, i);
        int way = strcmp(name, "to device") == 0;
        if (op->kind != MEMO_OP_RUN) continue;
        if (strncmp(name, "forward", 7) == 0) computed_s[0] += op->end_s - op->start_s;
        if (strncmp(name, "backward", 8) == 0) computed_s[1] += op->end_s - op->start_s;
        if (!way && strcmp(name, "to host") != 0) continue;
        copied_s[way] += op->end_s - op->start_s;
        copied_bytes[way] += (double)op->link_bytes;
        op->duration_s = (double)op->link_bytes / bare_bytes_per_s[way];
    }

    check(memo_schedule_simulate(schedule, &simulated, &error));
    for (int32_t k = 0; k < schedule->n_streams; k++)
        if (strcmp(schedule->text + schedule->streams[k], "compute") == 0) compute = k;

    /* Sum the waits before each operation of the compute stream. */
    printf("Stall of the compute stream before each layer, in one recorded step:\n\n"
           "| before | measured | simulated |\n|---|---|---|\n");
    double waited[2] = {0, 0};
    for (int64_t i = 0; i < schedule->n_ops; i++) {
        const memo_op* op = &schedule->ops[i];
        if (op->stream != compute) continue;
        if (op->kind == MEMO_OP_WAIT) {
            waited[0] += measured->end_s[i] - measured->start_s[i];
            waited[1] += simulated->end_s[i] - simulated->start_s[i];
        } else if (op->kind == MEMO_OP_RUN && (waited[0] > 0 || waited[1] > 0)) {
            printf("| %s | %.2f ms | %.2f ms |\n", memo_schedule_op_name(schedule, i),
                   waited[0] * 1e3, waited[1] * 1e3);
            sums[0] += waited[0];
            sums[1] += waited[1];
            waited[0] = waited[1] = 0;
        }
    }

    printf("| in all | %.2f ms | %.2f ms |\n| makespan | %.1f ms | %.1f ms |\n\n", sums[0] * 1e3,
           sums[1] * 1e3, measured->makespan_s * 1e3, simulated->makespan_s * 1e3);
    printf("| copies | inside the step | bare, same bytes | ratio |\n|---|---|---|---|\n");
    for (int way = 0; way < 2; way++) {
        double rate = copied_s[way] > 0 ? copied_bytes[way] / copied_s[way] : 0;
        printf("| %s | %.1f GB/s | %.1f GB/s | %.3f |\n", way ? "to device" : "to host",
               rate * 1e-9, bare_bytes_per_s[way] * 1e-9, rate / bare_bytes_per_s[way]);
    }
    printf(
        "\nA layer: forward %.1f ms, backward %.1f ms; its %.1f GiB take %.1f ms to the host and "
        "%.1f ms back.\n\n",
        computed_s[0] / options.n_layers * 1e3, computed_s[1] / options.n_layers * 1e3,
        (double)layer_bytes / ((int64_t)1 << 30), (double)layer_bytes / bare_bytes_per_s[0] * 1e3,
        (double)layer_bytes / bare_bytes_per_s[1] * 1e3);
    fflush(stdout);

    write_timeline(schedule, measured, "chain_measured");
    write_timeline(schedule, simulated, "chain_simulated");
    memo_simulation_destroy(measured);
    memo_simulation_destroy(simulated);
    close_way(w);
    memo_recorder_destroy(recorder);
}

/* Captures the same step once, replays it in n_rounds rounds, and compares it with the step
 * enqueued call by call. */
static void replay(policy* w, const measured_step* eager, const measured_step* expected,
                   int n_rounds) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t n_nodes = 0;
    measured_step steps[ROUNDS_MAX];

    CHECK_CUDA(cudaStreamBeginCapture(stream_of(w), cudaStreamCaptureModeThreadLocal));
    step(w);
    CHECK_CUDA(cudaStreamEndCapture(stream_of(w), &graph));
    CHECK_CUDA(cudaGraphGetNodes(graph, NULL, &n_nodes));
    CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CHECK_CUDA(cudaGraphUpload(exec, stream_of(w)));

    for (int k = 0; k < n_rounds; k++)
        steps[k] = measure(w, k, [=] { CHECK_CUDA(cudaGraphLaunch(exec, stream_of(w))); });
    printf("| swap, enqueued | step | of call by call | the host is busy for | bits |\n"
           "|---|---|---|---|---|\n"
           "| call by call | %.1f ms | 1 | %.1f us | %s |\n"
           "| as one CUDA graph of %lld nodes | %.1f ms | %.4f | %.1f us | %s |\n\n"
           "Call by call, the host waits when the queue of launches is full.\n\n",
           median_s(eager, n_rounds) * 1e3, median_host_s(eager, n_rounds) * 1e6,
           bits(eager, expected, n_rounds), (long long)n_nodes, median_s(steps, n_rounds) * 1e3,
           median_s(steps, n_rounds) / median_s(eager, n_rounds),
           median_host_s(steps, n_rounds) * 1e6, noted(bits(steps, expected, n_rounds)));
    fflush(stdout);

    CHECK_CUDA(cudaGraphExecDestroy(exec));
    CHECK_CUDA(cudaGraphDestroy(graph));
}

static void read_options(int argc, char** argv) {
    for (int k = 1; k < argc; k += 2) {
        const char* value = k + 1 < argc ? argv[k + 1] : "";
        if (strcmp(argv[k], "--tokens") == 0)
            options.n_tokens = atoll(value);
        else if (strcmp(argv[k], "--layers") == 0)
            options.n_layers = atoi(value);
        else if (strcmp(argv[k], "--repetitions") == 0)
            options.n_repetitions = atoi(value);
        else if (strcmp(argv[k], "--seconds") == 0)
            options.seconds = atof(value);
        else if (strcmp(argv[k], "--alpha") == 0)
            options.alpha = atof(value);
        else if (strcmp(argv[k], "--causal") == 0)
            options.is_causal = atoi(value);
        else if (strcmp(argv[k], "--out") == 0)
            options.folder = value;
        else
            options.n_tokens = 0;
    }

    if (options.n_tokens >= TILE && options.n_tokens % TILE == 0 && options.n_layers >= 3 &&
        options.n_repetitions >= 1 && options.n_repetitions < ROUNDS_MAX && options.alpha >= 0 &&
        options.alpha <= 1)
        return;
    fprintf(
        stderr,
        "usage: cuda_chain [--tokens N] [--layers N] [--repetitions N] [--seconds S] [--alpha A] "
        "[--causal 0|1] [--out FOLDER]\n"
        "tokens: a multiple of %d; layers: 3 or more; repetitions: 1 to %d; seconds: no new "
        "repetition begins after this time; alpha: 0 to 1\n",
        (int)TILE, (int)ROUNDS_MAX - 1);
    exit(2);
}

enum { KEEP, SWAP, RECOMPUTE, MIXTURE, N_WAYS_MAX };

/* All share one piece of device memory, as one step is over before the next begins. */
static void open_ways(policy* ways, int n_ways, memo_swap_sizes* sizes) {
    for (int i = 0; i < n_ways; i++) {
        memo_item tensors[N_TENSORS];
        ways[i].device = chain.device;
        memo_swap_desc desc = swap_desc(&ways[i], tensors);
        check(memo_swap_desc_get_sizes(&desc, &sizes[i], &error));
        if (sizes[i].device_bytes > chain.kept_bytes) chain.kept_bytes = sizes[i].device_bytes;
    }
    chain.kept = device_memory(chain.device, chain.kept_bytes);
    for (int i = 0; i < n_ways; i++) open_way(&ways[i], chain.device);
}

/* Runs the ways in turn; returns the number of rounds, with the first. */
static int take_turns(policy* ways, int n_ways, measured_step (*steps)[ROUNDS_MAX]) {
    double begin_s = now_s();
    int round = 0;
    for (; round <= options.n_repetitions; round++) {
        if (round > 1 && now_s() - begin_s > options.seconds) break;
        for (int i = 0; i < n_ways; i++) {
            int way = (i + round) % n_ways;
            policy* w = &ways[way];
            steps[way][round] = measure(w, round, [=] { step(w); });
        }
    }
    return round;
}

static void print_ways(const policy* ways, int n_ways, const memo_swap_sizes* sizes,
                       const measured_step (*steps)[ROUNDS_MAX], int n_rounds) {
    const double gib = (double)((int64_t)1 << 30), n = (double)options.n_tokens;
    /* Attention has seven products in a step.  If causal, a block (fused: a row) sees the keys up
     * to itself. */
    const double pairs = options.is_causal ? n * (n + DIAGONAL) / 2 : n * n;
    const double operations = options.n_layers * (72 * n * H * H + 14 * pairs * H);

    size_t version = cublasLtGetVersion();
    char attention_name[96];
    name_attention(attention_name, sizeof attention_name);
    printf("### Chain of %d layers, %lld tokens, h = %d, %s attention %s\n\n",
           (int)options.n_layers, (long long)options.n_tokens, (int)H,
           options.is_causal ? "causal" : "full", attention_name);
    printf("| way | step | of keep | least to most | rows and tensors on the device | on the host "
           "| bits |\n|---|---|---|---|---|---|---|\n");

    /* Round 0 warms up and does not count. */
    for (int i = 0; i < n_ways; i++) {
        double least = steps[i][1].seconds, most = least;
        for (int k = 1; k < n_rounds; k++) {
            least = fmin(least, steps[i][k].seconds);
            most = fmax(most, steps[i][k].seconds);
        }
        printf("| %s | %.1f ms | %.4f | %.1f to %.1f ms | %.1f GiB | %.1f GiB | %s |\n",
               ways[i].name, median_s(steps[i], n_rounds) * 1e3,
               median_ratio(steps[i], steps[KEEP], n_rounds), least * 1e3, most * 1e3,
               (double)sizes[i].device_bytes / gib, (double)sizes[i].host_bytes / gib,
               noted(bits(steps[i], steps[KEEP], n_rounds)));
    }
    printf(
        "\nMedians of %d rounds.  Weights, gradients and work space, the same for all: %.1f GiB. "
        " Keep reaches %.0f TFLOP/s, cuBLASLt %d.%d.%d.\n\n",
        n_rounds - 1, (double)chain.common_bytes / gib,
        operations / median_s(steps[KEEP], n_rounds) * 1e-12, (int)(version / 10000),
        (int)(version / 100 % 100), (int)(version % 100));
    if (o_if_recomputed == MEMO_KEEP)
        printf("Recompute keeps the output of attention and its statistics.\n\n");
    fflush(stdout);
}

int main(int argc, char** argv) {
    const int32_t kept = MEMO_KEEP, rows = MEMO_ROWS;
    const int32_t swapped = MEMO_MOVE;
    /* x, qkv, o, r, u, g */
    policy ways[N_WAYS_MAX] = {
        {"keep", {kept, kept, kept, kept, kept, kept}, 0, NULL, NULL, NULL, {}},
        {"swap", {swapped, rows, o_if_swapped, rows, rows, rows}, 1, NULL, NULL, NULL, {}},
        {"recompute", {kept, rows, o_if_recomputed, rows, rows, rows}, 0, NULL, NULL, NULL, {}},
        {"swap and recompute",
         {swapped, rows, o_if_swapped, rows, rows, rows},
         1,
         NULL,
         NULL,
         NULL,
         {}}};

    char mixture[48];
    static measured_step steps[N_WAYS_MAX][ROUNDS_MAX];
    memo_swap_sizes sizes[N_WAYS_MAX];
    double bare_bytes_per_s[2];
    int n_ways, n_rounds;

    read_options(argc, argv);
    n_ways = options.alpha < 1 ? N_WAYS_MAX : MIXTURE;
    ways[MIXTURE].alpha = options.alpha;
    snprintf(mixture, sizeof mixture, "swap and recompute, alpha %g", options.alpha);
    ways[MIXTURE].name = mixture;

    /* All ways are measured in turns, then the graph against calls. */
    open_chain();
    open_ways(ways, n_ways, sizes);
    n_rounds = take_turns(ways, n_ways, steps);
    print_ways(ways, n_ways, sizes, steps, n_rounds);
    replay(&ways[SWAP], steps[SWAP], steps[KEEP], n_rounds < 4 ? n_rounds : 4);

    /* One recorded step, against copies without computation. */
    for (int i = 0; i < n_ways; i++) close_way(&ways[i]);
    bare_copies(sizes[SWAP].layer_swapped_bytes, bare_bytes_per_s);
    look_inside(&ways[SWAP], sizes[SWAP].layer_swapped_bytes, bare_bytes_per_s);

    close_attention();
    memo_cuda_device_destroy(chain.device);
    free(chain.layers);
    CHECK_LT(cublasLtDestroy(chain.library.handle));
    return all_is_well ? 0 : 1;
}
