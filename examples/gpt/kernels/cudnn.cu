/* cudnn.cu - cuDNN's fused attention for the trainer: see cudnn.h.  Compile it with the
 * headers of cudnn-frontend, and link with -lcudnn -lnvrtc. */
#include "memo_sp.h" /* the row kernels, before memo_cuda.cuh */

#include "memo_cuda.cuh"

#include "gpt/kernels/cudnn.h"

#include "cudnn_attention.h"

#include <algorithm>
#include <new>

struct gpt_cudnn {
    gpt_cudnn_desc desc;
    attention_plans plans;
    attention_blocks blocks; /* over ranks */
};

/* ---- shapes ---------------------------------------------------------------------------------- */

static attention_shape gpt_cudnn_shape(const gpt_cudnn* c, const gpt_attention_shape& of,
                                       int64_t batch, bool is_backward) {
    const int64_t q_row = of.n_heads * of.head_size, k_row = of.n_kv_heads * of.head_size;
    attention_shape s = {};
    s.b = of.documents ? 1 : batch; /* documents are packed in one sequence: a call each */
    s.n_q = of.sequence - of.first;
    s.n_k = of.sequence;
    s.h_q = of.n_heads;
    s.h_k = of.n_kv_heads;
    s.d = of.head_size;
    s.q = s.q_result = {q_row, s.n_q * q_row};
    s.k = s.k_result = {k_row, s.n_k * k_row};
    if (is_backward) s.d_out = s.q;
    if (is_backward) s.k_result = {0, 0}; /* alone: their rows may be those of k and v */
    s.scale = 1 / sqrtf((float)of.head_size);
    s.is_causal = true;
    s.is_backward = is_backward;
    s.is_deterministic = is_backward && c->desc.is_deterministic;
    s.window = of.window;
    s.documents = of.documents;
    return s;
}

/* Every shape of a step. */
static memo_status gpt_cudnn_shapes(const gpt_cudnn* c, const gpt_shapes* of,
                                    std::vector<attention_shape>* shapes, memo_error* error) {
    if (of->over_ranks.sharding.ring * of->over_ranks.sharding.ulysses > 1)
        return attention_shapes_over_ranks(of->over_ranks, c->desc.is_deterministic != 0,
                                           of->window, of->documents, shapes, error);
    for (int32_t i = 0; i < of->n_attention; i++) {
        const gpt_attention_shape& s = of->attention[i].shape;
        if (s.documents && s.first)
            return gpt_unsupported(
                error,
                "cuDNN's attention: documents (%lld at most) and parts of a sequence; slices and "
                "sub-batches of whole sequences, or a program built without CUDNN=, would work",
                (long long)s.documents);
        for (int is_backward = 0; is_backward < 2; is_backward++)
            shapes->push_back(gpt_cudnn_shape(c, s, of->attention[i].batch, is_backward != 0));
    }
    return MEMO_STATUS_OK;
}

static int64_t gpt_cudnn_scratch_bytes(void* context, const gpt_shapes* of) {
    return gpt_cudnn_desc_scratch_bytes(&((const gpt_cudnn*)context)->desc, of);
}

/* ---- the hook of cuda.h ---------------------------------------------------------- */

static memo_status gpt_cudnn_prepare(void* context, const gpt_shapes* of, memo_stream,
                                     void* scratch, memo_error* error) {
    gpt_cudnn* c = (gpt_cudnn*)context;
    const int64_t n_bytes = gpt_cudnn_scratch_bytes(context, of);
    std::vector<attention_shape> shapes;
    if (of->type != MEMO_TYPE_BF16)
        return gpt_unsupported(error, "gpt_shapes.type: cuDNN's attention takes bf16 only (%s)",
                               memo_type_name(of->type));

    if (!c->plans.handle) {
        const cudnnStatus_t code = cudnnCreate(&c->plans.handle);
        if (code != CUDNN_STATUS_SUCCESS)
            return attention_failed(error,
                                    std::string("cudnnCreate: ") + cudnnGetErrorString(code));
    }
    if (!c->plans.samples &&
        memo_cuda_check(cudaHostAlloc((void**)&c->plans.samples,
                                      ATTENTION_SAMPLES * sizeof(attention_sample),
                                      cudaHostAllocMapped),
                        "cudaHostAlloc", error))
        return error->status;

    if (gpt_cudnn_shapes(c, of, &shapes, error)) return error->status;
    c->plans.prepared.clear(); /* another model may have set aside less */
    c->blocks.scratch = (char*)scratch;

    for (const attention_shape& s : shapes) {
        memo_error why;
        const memo_status status = attention_prepare(&c->plans, s, n_bytes, &why);
        if (status)
            return memo_error_set(error, status, "%s%s", why.message,
                                  status == MEMO_STATUS_OUT_OF_DEVICE_MEMORY
                                      ? "; gpt_cudnn_desc.scratch_bytes (--attention-memory) sets "
                                        "another amount aside"
                                      : "");
    }
    return MEMO_STATUS_OK;
}

/* Group by group of heads, of whole sequences or of one. */
static memo_status gpt_cudnn_attend(gpt_cudnn* c, cudaStream_t stream, const gpt_attention_args* a,
                                    const attention_call* call, char* scratch, memo_error* error) {
    const attention_shape& s = call->shape;
    const attention_scratch m = attention_carve(s, scratch);
    const int64_t n_heads = a->shape.n_heads;
    const attention_rows lse_rows = {n_heads, s.n_q * n_heads}, k_rows = {s.k.row, s.k.batch};
    const memo_type type = a->shape.sums ? MEMO_TYPE_F32 : MEMO_TYPE_BF16;

    for (int64_t i = 0; i < call->n_calls; i++) {
        const int64_t q_at = i * s.h_q * s.d, k_at = i * s.h_k * s.d;
        float* lse = (float*)a->lse + i * s.h_q;
        std::unordered_map<int64_t, void*> addresses = {
            {ATTENTION_Q, (uint16_t*)(uintptr_t)a->q + q_at},
            {ATTENTION_K, (uint16_t*)(uintptr_t)a->k + k_at},
            {ATTENTION_V, (uint16_t*)(uintptr_t)a->v + k_at},
            {ATTENTION_OUT, (uint16_t*)a->out + q_at},
            {ATTENTION_STATS, m.stats}};
        if (attention_set_packed(stream, s, a->begins, nullptr, m, &addresses, error))
            return error->status;
        if (!s.is_backward) {
            if (attention_run_call(&c->plans, call, i, addresses, m.workspace, stream, error) ||
                attention_turn_lse(stream, lse, s, m, lse_rows, true, error))
                return error->status;
            continue;
        }

        addresses[ATTENTION_D_OUT] = (uint16_t*)(uintptr_t)a->dout + q_at;
        addresses[ATTENTION_D_Q] = (uint16_t*)a->dq + q_at;
        addresses[ATTENTION_D_K] = m.d_k;
        addresses[ATTENTION_D_V] = m.d_v;
        if (attention_turn_lse(stream, lse, s, m, lse_rows, false, error) ||
            attention_run_call(&c->plans, call, i, addresses, m.workspace, stream, error) ||
            attention_put(stream, (char*)a->dk + k_at * memo_type_bytes(type), type, m.d_k, s, m,
                          true, k_rows, a->shape.adds != 0, error) ||
            attention_put(stream, (char*)a->dv + k_at * memo_type_bytes(type), type, m.d_v, s, m,
                          true, k_rows, a->shape.adds != 0, error))
            return error->status;
    }
    return MEMO_STATUS_OK;
}

static memo_status gpt_cudnn_enqueue(void* context, memo_stream stream, gpt_kind kind,
                                     const gpt_attention_args* a, void* scratch,
                                     memo_error* error) {
    gpt_cudnn* c = (gpt_cudnn*)context;
    const bool is_backward = kind == GPT_KIND_ATTENTION_BACKWARD;
    const attention_call* call = nullptr;
    if (attention_get(&c->plans, gpt_cudnn_shape(c, a->shape, a->batch, is_backward), &call, error))
        return error->status;
    /* Documents: one sequence at a time. */
    const gpt_attention_shape& s = a->shape;
    const int64_t n = s.documents ? a->batch : 1, bytes = memo_type_bytes(MEMO_TYPE_BF16);
    const int64_t lse = (s.sequence - s.first) * s.n_heads, q = lse * s.head_size * bytes,
                  k = s.sequence * s.n_kv_heads * s.head_size;
    for (int64_t i = 0; i < n; i++) {
        gpt_attention_args one = *a;
        auto move = [&](auto* x, int64_t n_bytes) {
            if (*x) *x = (char*)(uintptr_t)*x + i * n_bytes;
        };
        for (const void** x : {&one.q, &one.dout}) move(x, q);
        for (void** x : {&one.out, &one.dq}) move(x, q);
        for (const void** x : {&one.k, &one.v}) move(x, k * bytes);
        for (void** x : {&one.dk, &one.dv}) move(x, k * (s.sums ? 4 : bytes));
        move(&one.lse, lse * 4);
        one.begins = gpt_begins_at(a, i);
        if (gpt_cudnn_attend(c, memo_cuda_stream(stream), &one, call, (char*)scratch, error))
            return error->status;
    }
    return MEMO_STATUS_OK;
}

memo_status gpt_cudnn_create(const gpt_cudnn_desc* desc, gpt_cudnn** cudnn, memo_error* error) {
    *cudnn = new (std::nothrow) gpt_cudnn();
    if (!*cudnn) return gpt_no_memory("cuDNN", error);
    (*cudnn)->desc = *desc;
    (*cudnn)->blocks.plans = &(*cudnn)->plans;
    (*cudnn)->blocks.is_deterministic = desc->is_deterministic != 0;
    return MEMO_STATUS_OK;
}

void gpt_cudnn_destroy(gpt_cudnn* cudnn) {
    if (!cudnn) return;
    if (cudnn->plans.handle) cudnnDestroy(cudnn->plans.handle);
    if (cudnn->plans.samples) cudaFreeHost(cudnn->plans.samples);
    delete cudnn;
}

gpt_cuda_attention gpt_cudnn_attention(gpt_cudnn* cudnn) {
    gpt_cuda_attention attention;
    attention.context = cudnn;
    attention.scratch_bytes = gpt_cudnn_scratch_bytes;
    attention.prepare = gpt_cudnn_prepare;
    attention.enqueue = gpt_cudnn_enqueue;
    attention.over_ranks = attention_over_ranks(&cudnn->blocks);
    return attention;
}
