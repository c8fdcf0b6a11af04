/* left_out.c - measures what the budgets of a session leave out, on a host device.
 *
 *   make build/bench/left_out && build/bench/left_out
 *
 * A session of 32 layers of 1024 in bf16, with 4,096 tokens, states of a million parameters a layer
 * and 512 MiB of device_bytes; then objects of memo_sp.h, which allocate memory of their own.  Layers
 * compute nothing.  Device and pinned bytes are the device's peak, less the session's budget and
 * plan; the heap is what MEMO_MALLOC gives. */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include <stdint.h>
#include <stdlib.h>

static int64_t heap_bytes, heap_peak_bytes;

static void* heap_alloc(size_t size_bytes) {
    int64_t* memory = (int64_t*)malloc(size_bytes + 16);
    int64_t now;
    if (!memory) return NULL;
    memory[0] = (int64_t)size_bytes;
    now = __atomic_add_fetch(&heap_bytes, memory[0], __ATOMIC_SEQ_CST);
    if (now > heap_peak_bytes) heap_peak_bytes = now; /* only printed */
    return memory + 2;
}

static void heap_free(void* memory) {
    if (!memory) return;
    __atomic_sub_fetch(&heap_bytes, ((int64_t*)memory)[-2], __ATOMIC_SEQ_CST);
    free((int64_t*)memory - 2);
}

#define MEMO_MALLOC(size)  heap_alloc(size)
#define MEMO_FREE(address) heap_free(address)
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_plan.h"
#include "memo_sp.h"
#include "host_attention.h"
#include "thread_ranks.h"
#include "check.h"

enum { N_LAYERS = 32, HIDDEN = 1024, FFN = 3584, N_ROWS = 4096, N_TOKENS = 16384 };
enum { Q_HEADS = 32, KV_HEADS = 8, HEAD_SIZE = 128 };
static const int64_t layer_parameters = 1 << 20;

static void pass_layer(void* user, memo_session* session, int32_t layer) {
    (void)user, (void)session, (void)layer;
}
static void pass_rows(void* user, memo_session* session, int32_t layer, int32_t tensor,
                      int64_t begin, int64_t end) {
    (void)user, (void)session, (void)layer, (void)tensor, (void)begin, (void)end;
}
static void pass_loss(void* user, memo_session* session) { (void)user, (void)session; }

/* What a session takes beside its budgets; with is_checked what checking takes. */
static void measure_session(int is_checked) {
    static const memo_item tensors[] = {
        MEMO_ITEM("input", 2 * HIDDEN, MEMO_MOVE), MEMO_ITEM("qkv", 3 * HIDDEN, MEMO_ROWS),
        MEMO_ITEM("attention", 2 * HIDDEN, MEMO_WHOLE), MEMO_ITEM("lse", 4 * Q_HEADS, MEMO_WITH),
        MEMO_ITEM("gate_up", 4 * FFN, MEMO_ROWS)};
    memo_state states[] = {{"weights", 0, MEMO_STATE_WEIGHTS, 0},
                           {"gradients", 0, MEMO_STATE_GRADIENT, 0},
                           {"moments", 0, MEMO_STATE_UPDATE, 0}};
    memo_host_device_desc host = MEMO_ZERO(memo_host_device_desc);
    memo_session_desc desc = MEMO_ZERO(memo_session_desc);
    memo_device* device = NULL;
    memo_session* session = NULL;
    memo_host_device_stats stats;
    memo_session_info info;
    states[0].size_bytes = 2 * layer_parameters, states[1].size_bytes = 4 * layer_parameters;
    states[2].size_bytes = 8 * layer_parameters;
    check(memo_host_device_create(&host, &device, &error));
    desc.device = device,
    check(memo_stream_create(device, "compute", 0, &desc.compute_stream, &error));
    desc.tensors = tensors, desc.n_tensors = 5, desc.states = states, desc.n_states = 3;
    desc.n_layers = N_LAYERS, desc.n_rows = N_ROWS, desc.tile_rows = 1024;
    desc.forward = desc.backward = desc.update = pass_layer, desc.between = pass_loss;
    desc.recompute = pass_rows;
    desc.device_bytes = (int64_t)1 << 29, desc.is_checked = is_checked;
    heap_peak_bytes = heap_bytes;

    check(memo_session_create(&desc, &session, &error));
    info = memo_session_get_info(session);
    stats = memo_host_device_get_stats(device);
    printf("%-34s %12.3f %12.3f %12.3f\n", is_checked ? "session, checked" : "session",
           (double)(stats.device_peak_bytes - desc.device_bytes) / (1 << 20),
           (double)(stats.host_peak_bytes - info.plan->host_bytes) / (1 << 20),
           (double)heap_peak_bytes / (1 << 20));
    memo_session_destroy(session);
    memo_host_device_destroy(device);
}

static memo_host_device_stats of_sequence[4];
static memo_status make_sequence(thread_rank* rank, memo_error* e) {
    memo_sequence_desc desc = MEMO_ZERO(memo_sequence_desc);
    host_attention state = {rank->device, 0};
    memo_sequence_batch_desc documents = MEMO_ZERO(memo_sequence_batch_desc);
    memo_sequence* sequence = NULL;
    memo_sequence_batch* batch = NULL;
    memo_status status;
    desc.device = rank->device, desc.stream = rank->stream, desc.comm = rank->comm;
    desc.n_tokens = N_TOKENS, desc.n_layers = N_LAYERS, desc.type = MEMO_TYPE_BF16;
    desc.n_q_heads = Q_HEADS, desc.n_kv_heads = KV_HEADS, desc.head_size = HEAD_SIZE;
    desc.attention = host_attention_functions(&state);
    status = memo_sequence_create(&desc, &sequence, e);
    if (!status) status = memo_sequence_batch_create(sequence, &documents, &batch, e);
    of_sequence[rank->comm->rank] = memo_host_device_get_stats(rank->device);
    memo_sequence_batch_destroy(batch);
    memo_sequence_destroy(sequence);
    return status;
}

static void measure_sequence(int32_t n_ranks, const char* name) {
    heap_peak_bytes = heap_bytes;
    check(thread_ranks_run(n_ranks, make_sequence, NULL, &error));
    printf("%-34s %12.3f %12.3f %12.3f\n", name,
           (double)of_sequence[0].device_peak_bytes / (1 << 20),
           (double)of_sequence[0].host_peak_bytes / (1 << 20),
           (double)heap_peak_bytes / n_ranks / (1 << 20));
}

int main(void) {
    memo_loss_desc loss = MEMO_ZERO(memo_loss_desc);
    memo_loss_sizes sizes;
    printf("MiB left out of a budget                 device       pinned         heap\n");
    measure_session(0);
    measure_session(1);
    measure_sequence(1, "memo_sequence, 16K tokens, 1 rank");
    measure_sequence(4, "memo_sequence, 16K tokens, ring 4");
    loss.vocabulary = 128256, loss.type = MEMO_TYPE_BF16;
    check(memo_loss_desc_get_sizes(&loss, &sizes, &error));
    printf("%-34s %12.3f %12.3f %12.3f\n", "memo_loss, 128,256 columns",
           (double)sizes.device_bytes / (1 << 20), 0.0, 0.0);
    return 0;
}
