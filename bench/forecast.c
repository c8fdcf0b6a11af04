/* bench/forecast.c - what memo's planner forecasts for a step that another system has published.
 *
 *   cc -O2 -I. bench/forecast.c -lpthread -lm && ./a.out [LINK]    GB/s each way; 48
 *
 * ShadowSpill (github.com/als244/shadowspill, October 2026) trains Llama 3 8B with AdamW, weights,
 * gradients and moments in bf16 without master weights, at 65,536 tokens a step: 8 micro-batches of
 * 8 sequences of 1,024 tokens, in 16 GiB of an RTX 5090 and 112 GiB of pinned memory.  It reports
 * 18.4 s a step and 3,556 tokens/s, 330 GiB fetched and 133 GiB evicted; with LoRA 4,859 tokens/s.
 *
 * A forecast beside these measurements: the computation takes the times of its tasks, which it
 * publishes for the same GPU (evidence/performance-gate-scale there).  Assumed are the rate of the
 * link, that an update moves states at 0.75 of the memory's 1,792 GB/s, and how the time of a
 * recomputed block divides among its tensors: by 0.75 of 209.5 TFLOP/s for products, 0.6 of it for
 * attention, and the memory's rate for the rest.  Nothing ran here. */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include "check.h"

#define LAYERS 32
#define WIDTH  4096.0
#define KEYS   1024.0  /* width of the key heads, and of the values */
#define WIDE   14336.0 /* of the MLP */
#define TOKENS 128256.0
#define ROWS   8192 /* of a micro-batch */
#define LENGTH 1024.0
#define PEAK   209.5e12
#define MEMORY (0.75 * 1792e9)
static double link_bytes_per_s = 48e9;

/* Seconds of tasks of 8,192 tokens: a block forward, backward with all of it saved, and what its
 * backward takes longer with nothing saved; head with loss, and embedding, both ways. */
typedef struct task_times {
    double forward_s, backward_s, again_s, ends_s;
} task_times;
static const task_times whole = {17.0527e-3, 35.8109e-3, (47.7897 - 35.8109) * 1e-3,
                                 (119.1018 + 1.8342 + 0.0992 + 0.8099) * 1e-3};
static const task_times adapters = {18.8737e-3, 22.538e-3, 13.8377e-3, (82.0201 + 0.4506) * 1e-3};

enum { N_ACTS = 14 };
/* bytes of a row in bf16; multiplications of its product; numbers that its kernels move */
static const struct {
    const char* name;
    double numbers;
    int32_t away;
    double products, moved;
} acts[N_ACTS] = {{"residual", WIDTH, MEMO_MOVE, 0, 0}, /* and its gradient */
                  {"input", WIDTH, MEMO_MOVE, 0, 0},
                  {"norm1", WIDTH, MEMO_ROWS, 0, 2 * WIDTH},
                  {"q", WIDTH, MEMO_ROWS, WIDTH* WIDTH, 2 * WIDTH},
                  {"k", KEYS, MEMO_ROWS, WIDTH* KEYS, 2 * KEYS},
                  {"v", KEYS, MEMO_ROWS, WIDTH* KEYS, 0},
                  {"attention", WIDTH, MEMO_WHOLE, 0, 0},
                  {"lse", 64, MEMO_WITH, 0, 0}, /* 32 heads, fp32; with attention */
                  {"middle", WIDTH, MEMO_ROWS, WIDTH* WIDTH, 3 * WIDTH},
                  {"norm2", WIDTH, MEMO_ROWS, 0, 2 * WIDTH},
                  {"gate", WIDE, MEMO_ROWS, WIDTH* WIDE, 0},
                  {"up", WIDE, MEMO_ROWS, WIDTH* WIDE, 0},
                  {"act", WIDE, MEMO_ROWS, 0, 3 * WIDE},
                  {"rstd", 4, MEMO_KEEP, 0, 0}};

/* A layer's parameters, and those of an embedding or a classifier. */
static const double layer_size = WIDTH * (2 * WIDTH + 2 * KEYS + 3 * WIDE + 2);
static const double end_size = WIDTH * TOKENS;

/* How long a kernel would take to compute a row of a tensor again: what the times of tasks do not
 * say of its parts. */
static double share_s(int tensor) {
    const double attention = tensor == 6 ? 4 * WIDTH * (LENGTH + 1) / 2 : 0; /* causal */
    return 2 * acts[tensor].products / (0.75 * PEAK) + acts[tensor].moved * 2 / MEMORY +
           attention / (0.6 * PEAK);
}

/* Times of a layer. */
static memo_profile estimate(const task_times* tasks) {
    memo_profile p = MEMO_ZERO(memo_profile);
    double sum_s = 0;
    p.n_rows = ROWS, p.n_kinds = 2, p.n_tensors = N_ACTS;
    for (int t = 0; t < N_ACTS; t++) sum_s += share_s(t);
    for (int t = 0; t < N_ACTS; t++) {
        const int is_fixed = acts[t].away == MEMO_MOVE || acts[t].away == MEMO_KEEP;
        snprintf(p.tensors[t].name, sizeof p.tensors[t].name, "%s", acts[t].name);
        p.tensors[t].recompute_s_per_row[0] =
            is_fixed ? -1 : share_s(t) / sum_s * tasks->again_s / ROWS;
        p.tensors[t].recompute_s_per_row[1] = p.tensors[t].recompute_s_per_row[0];
    }
    p.forward_s[0] = p.forward_s[1] = tasks->forward_s;
    p.backward_s[0] = p.backward_s[1] = tasks->backward_s;
    p.between_s = tasks->ends_s;
    p.copies[1].size_bytes = (int64_t)1 << 30;
    p.copies[1].out_s = p.copies[1].back_s = (double)p.copies[1].size_bytes / link_bytes_per_s;
    return p;
}

/* Planning calls none of these. */
static void no_layer(void* user, memo_session* session, int32_t layer) {
    (void)user, (void)session, (void)layer;
}

/* Frozen weights; factors of rank 32 in fp32, their gradients and moments; frozen tables. */
static int32_t add_adapters(memo_state* states) {
    const uint32_t both = MEMO_STATE_FORWARD | MEMO_STATE_BACKWARD;
    const memo_state all[] = {
        {"weights", (int64_t)(2 * layer_size), both, 3u},
        {"factors", 5 << 20, MEMO_STATE_WEIGHTS, 3u},
        {"gradients", 5 << 20, MEMO_STATE_GRADIENT, 3u},
        {"moments", 10 << 20, MEMO_STATE_UPDATE, 3u},
        {"embedding", (int64_t)(2 * end_size), MEMO_STATE_FORWARD, MEMO_STATE_FIRST},
        {"classifier", (int64_t)(2 * end_size), MEMO_STATE_BACKWARD, MEMO_STATE_LAST}};
    memcpy(states, all, sizeof all);
    return sizeof all / sizeof *all;
}

/* has_workspaces: a device of 15 GiB also holds the workspaces that ShadowSpill's tasks take: 1,473
 * MiB in the backward of a block, 2,633 MiB with the loss. */
static void forecast(const char* name, const task_times* tasks, int has_masters, int has_workspaces,
                     int32_t update_may, int32_t n_group) {
    const memo_profile times = estimate(tasks);
    const double state_bytes[4] = {2, has_masters ? 4 : 2, 4, 4};
    const char* const names[4] = {"weights", "gradients", "moments", "masters"};
    const uint32_t uses[4] = {MEMO_STATE_WEIGHTS | (has_masters ? MEMO_STATE_MADE : 0u),
                              MEMO_STATE_GRADIENT, MEMO_STATE_UPDATE, MEMO_STATE_UPDATE};
    const int n_uses = has_masters ? 4 : 3;
    memo_profile profile = times;
    memo_item tensors[N_ACTS];
    memo_state states[12];
    /* Gradients of rows and of the MLP; the loss in chunks of 1,024 rows. */
    const memo_session_buffer buffers[] = {
        {"scratch", has_workspaces ? (int64_t)1473 << 20 : 0,
         has_workspaces ? 0 : (int64_t)(2 * (WIDE + 2 * WIDTH)), MEMO_PASS_BACKWARD,
         MEMO_EACH_LAYER, MEMO_PASS_BACKWARD, 0, 0},
        {"logits", has_workspaces ? (int64_t)2633 << 20 : (int64_t)(2 * 1024 * TOKENS), 0,
         MEMO_PASS_BACKWARD, MEMO_EACH_SLICE, MEMO_PASS_BACKWARD, 0, 2u}};
    int32_t layer_kinds[LAYERS] = {0};
    memo_session_desc desc = MEMO_ZERO(memo_session_desc);
    memo_step_plan* plan = NULL;
    double least_s;
    for (int t = 0; t < N_ACTS; t++) {
        tensors[t] = MEMO_ZERO(memo_item);
        tensors[t].name = acts[t].name;
        tensors[t].row_bytes = (int64_t)(2 * acts[t].numbers);
        tensors[t].away = acts[t].away;
    }
    tensors[0].scope = MEMO_EDGE;
    tensors[1].scope = MEMO_INPUT;
    for (int i = 0; i < 3 * n_uses; i++) {
        const int k = i % n_uses;
        states[i].name = names[k];
        states[i].size_bytes = (int64_t)(state_bytes[k] * (i < n_uses ? layer_size : end_size));
        states[i].uses = uses[k];
        states[i].kinds = i < n_uses ? 3u : i < 2 * n_uses ? MEMO_STATE_FIRST : MEMO_STATE_LAST;
    }
    layer_kinds[LAYERS - 1] = 1; /* with the loss */
    desc.layer_kinds = layer_kinds;
    profile.update_s_per_byte = 2 / MEMORY; /* read and written */
    desc.tensors = tensors, desc.n_tensors = N_ACTS, desc.n_layers = LAYERS;
    desc.n_rows = desc.slice_rows = ROWS, desc.tile_rows = 1024;
    desc.micro_batches = 8, desc.n_group = n_group;
    desc.buffers = buffers, desc.n_buffers = sizeof buffers / sizeof *buffers;
    desc.states = states, desc.update_may = update_may;
    desc.n_states = tasks == &adapters ? add_adapters(states) : 3 * n_uses;
    desc.update = no_layer;
    desc.device_bytes = (int64_t)(has_workspaces ? 15 : 16) << 30;
    desc.host_bytes = (int64_t)112 << 30;
    check(memo_session_plan(&desc, &profile, &plan, &error));
    least_s = 8 * (LAYERS * (times.forward_s[0] + times.backward_s[0]) + times.between_s);
    if (!plan->fits) {
        printf("%-34s does not fit: %s\n", name, plan->shortage);
    } else {
        printf("%-34s %7.2f %9.0f %8.2f %8.2f %8.2f %8.2f %9.0f %8.0f %8.1f %8.1f\n", name,
               plan->times->step_s, 8 * ROWS / plan->times->step_s, plan->times->step_s / least_s,
               plan->times->recompute_s, plan->times->stall_s, plan->times->update_s,
               (double)plan->times->to_device_bytes / (1 << 30),
               (double)plan->times->to_host_bytes / (1 << 30),
               (double)plan->device_bytes / (1 << 30), (double)plan->host_bytes / (1 << 30));
        printf("    groups of %d; rows are %.0f GiB of it each way; %s\n", (int)plan->n_group,
               (double)(8 / plan->n_group) * (double)plan->sizes.swapped_bytes / (1 << 30),
               plan->times->reason);
    }
    memo_step_plan_destroy(plan);
}

static void print_head(const char* name, const task_times* tasks) {
    const memo_profile p = estimate(tasks);
    printf("%s: computation alone %.2f s\n\n", name,
           8 * (LAYERS * (p.forward_s[0] + p.backward_s[0]) + p.between_s));
    printf("%-34s %7s %9s %8s %8s %8s %8s %9s %8s %8s %8s\n", "", "step s", "tokens/s", "of alone",
           "again s", "stall s", "update s", "GiB in", "GiB out", "device", "host");
}

int main(int argc, char** argv) {
    if (argc > 1) link_bytes_per_s = 1e9 * atof(argv[1]);
    if (!(link_bytes_per_s >= 1e9 && link_bytes_per_s <= 1e12)) {
        fprintf(stderr, "usage: %s [LINK]    GB/s each way, 1 to 1000; 48\n", argv[0]);
        return 2;
    }
    print_head("By the task times that ShadowSpill publishes", &whole);
    printf("%-34s %7.2f %9.0f %8s %8s %8s %8s %9d %8d %8d %8d\n", "ShadowSpill, measured", 18.43,
           3556.0, "", "", "", "", 330, 133, 16, 112);
    forecast("memo, the same states", &whole, 0, 0, MEMO_MAY_DEFER, MEMO_GROUP_PLANNED);
    forecast("memo, 15 GiB with its workspaces", &whole, 0, 1, MEMO_MAY_DEFER, MEMO_GROUP_PLANNED);
    forecast("memo, one micro-batch at a time", &whole, 0, 0, MEMO_MAY_DEFER, 1);
    forecast("memo, update as a pass", &whole, 0, 0, 0, MEMO_GROUP_PLANNED);
    forecast("memo, fp32 masters and gradients", &whole, 1, 0, MEMO_MAY_DEFER, MEMO_GROUP_PLANNED);
    printf("\n");
    print_head("The same with LoRA of rank 32", &adapters);
    printf("%-34s %7.2f %9.0f\n", "ShadowSpill, measured", 13.49, 4859.0);
    forecast("memo, the same states", &adapters, 0, 0, MEMO_MAY_DEFER, MEMO_GROUP_PLANNED);
    return 0;
}
