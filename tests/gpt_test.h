/* gpt_test.h - shared by the tests of the trainer's model: a model in a device of exactly its size, and text to train
 * on. */
#ifndef GPT_TEST_H
#define GPT_TEST_H

#include "gpt/gpt_generate.h"
#include "gpt/gpt_kernels_host.h"
#include "memo_plan.h"
#include "memo_test.h"

typedef struct gpt_test_run {
    memo_device* host;
    gpt_host_kernels host_kernels;
    gpt_kernels kernels;
    memo_session* session; /* the dry run; it owns */
    const memo_trace* trace;
    const memo_plan* plan;
    gpt_model* model;
} gpt_test_run;

/* Kernels without a device, to plan. */
static inline const gpt_kernels* gpt_test_kernels(void) {
    static gpt_host_kernels host;
    static gpt_kernels kernels;
    kernels = gpt_kernels_host(&host, NULL);
    return &kernels;
}

enum { GPT_TEST_TABLES = 64, GPT_TEST_LAYERS = 8 };

/* Room for a table of rows: the next 63 calls leave it alone. */
static inline int64_t* gpt_test_table(void) {
    static int64_t tables[GPT_TEST_TABLES][GPT_TEST_LAYERS * GPT_N_TENSORS];
    static int next;
    next = (next + 1) % GPT_TEST_TABLES;
    return tables[next];
}

/* GPT_POLICY_KEEP: without a table. */
static inline gpt_desc gpt_test_desc(gpt_config config, gpt_policy policy, double alpha) {
    int64_t* rows = gpt_test_table();
    gpt_desc desc;
    memo_error error;
    memset(&desc, 0, sizeof desc);
    desc.config = config;
    desc.kernels = gpt_test_kernels();
    if (policy == GPT_POLICY_KEEP) return desc;
    CHECK_IS(config.n_layers, <=, GPT_TEST_LAYERS);
    CHECK_OK(gpt_fill_rows(&config, policy, alpha, rows, &error));
    desc.rows = rows;
    return desc;
}

static inline gpt_config gpt_test_config(int32_t n_layers, int32_t hidden, int32_t n_heads,
                                         int32_t n_kv_heads, int64_t sequence, int64_t batch,
                                         int64_t tile_rows, double dropout) {
    gpt_config config;
    memset(&config, 0, sizeof config);
    config.n_layers = n_layers;
    config.hidden = hidden;
    config.n_heads = n_heads;
    config.n_kv_heads = n_kv_heads;
    config.sequence = sequence;
    config.batch = batch;
    config.tile_rows = tile_rows;
    config.dropout = dropout;
    config.seed = 42;
    config.type = GPT_REAL_TYPE;
    return config;
}

static inline void gpt_test_close(gpt_test_run* run) {
    gpt_destroy(run->model);
    if (run->host) memo_host_device_destroy(run->host);
    memo_session_destroy(run->session);
    memset(run, 0, sizeof *run);
}

/* The device of the run, and its kernels. */
static inline void gpt_test_attach(gpt_test_run* run, gpt_desc* desc) {
    run->kernels = gpt_kernels_host(&run->host_kernels, run->host);
    desc->kernels = &run->kernels;
    desc->device = run->host;
}

/* Dry run, then a plan. */
static inline memo_status gpt_test_plan(const gpt_desc* desc, gpt_test_run* run,
                                        memo_error* error) {
    memo_session_info info;
    memo_status status = gpt_plan(desc, &run->session, error);
    if (status) return status;
    memo_session_get_info(run->session, &info);
    run->trace = info.trace;
    run->plan = info.plan;
    return status;
}

/* A model in a device that has the bytes it was promised and not one more.  On failure nothing is
 * left. */
static inline memo_status gpt_test_open(const gpt_desc* desc, gpt_test_run* run,
                                        memo_error* error) {
    memo_host_device_desc host = memo_host_device_desc_default();
    gpt_desc real = *desc;
    memo_swap_sizes sizes;
    memo_status status;
    memset(run, 0, sizeof *run);
    memset(&sizes, 0, sizeof sizes);
    if ((status = gpt_test_plan(desc, run, error)) ||
        (status = gpt_swap_sizes(desc, &sizes, error))) {
        gpt_test_close(run);
        return status;
    }
    host.device_memory_bytes = run->plan->peak_bytes;
    host.host_memory_bytes =
        sizes.host_bytes + gpt_staging_bytes(&desc->config, desc->n_micro_batches);
    status = memo_host_device_create(&host, &run->host, error);
    gpt_test_attach(run, &real);
    if (!status) status = gpt_create(&real, &run->model, error);
    if (status) gpt_test_close(run);
    return status;
}

/* Text with some order in it, so that a loss can fall: each byte is near the one before. */
static inline void gpt_test_text(uint8_t* text, int64_t n) {
    int64_t i;
    int byte = 'a';
    for (i = 0; i < n; i++) {
        byte = 'a' + (byte - 'a' + (int)memo_test_int(0, 3)) % 26;
        text[i] = (uint8_t)byte;
    }
}

#endif
