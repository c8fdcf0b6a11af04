#include "gpt/model/experts.h"
#include "gpt/model/lora.h"
#include "host_attention.h"

static int gpt_is_rope(const gpt_rope_law* law) {
    if (!(law->theta >= 0) || (int)law->kind < 0 || (int)law->kind >= GPT_N_ROPES) return 0;
    if (law->kind != GPT_ROPE_PLAIN && !(law->factor > 0)) return 0;
    return law->kind != GPT_ROPE_LLAMA3 ||
           (law->low_factor > 0 && law->high_factor > law->low_factor && law->original > 0);
}

/* Each number alone.  The trainer's options have limits, narrower ones. */
static memo_status gpt_check_numbers(const gpt_config* c, memo_error* error) {
    if (c->n_layers < 1 || c->hidden < 1 || c->n_heads < 1 || c->n_kv_heads < 1 || c->batch < 1 ||
        c->sequence < 1 || c->tile_rows < 1 || c->mlp_rows < 0 || c->mlp_columns < 0 ||
        c->slice_rows < 0 || c->window < 0 || c->documents < 0 || c->vocabulary < 0 ||
        c->data < 0 || c->ring < 0 || c->ulysses < 0 || c->tensor < 0 || c->sub_batches < 0 ||
        c->zero < 0 || c->zero > 2 || c->head_size < 0)
        return gpt_invalid(error, "gpt_config: a number is out of range; see gpt.h");
    if (!(c->dropout >= 0 && c->dropout < 1))
        return gpt_invalid(error, "--dropout %g: not a number from 0 to below 1", c->dropout);
    if (!(c->norm_epsilon >= 0 && c->norm_epsilon < 1))
        return gpt_invalid(error, "gpt_config.norm_epsilon %g: not a number from 0 to below 1",
                           c->norm_epsilon);
    if (!gpt_is_rope(&c->rope))
        return gpt_invalid(error, "gpt_config.rope: a number is out of range; see kernels.h");
    if (c->states != MEMO_TYPE_F32 && c->states != MEMO_TYPE_BF16 && c->states != MEMO_TYPE_U8)
        return gpt_invalid(error, "--states: not F32, BF16 or U8 (%d)", (int)c->states);
    if (c->states == MEMO_TYPE_U8 && !c->is_pure)
        return gpt_invalid(error, "gpt_config.states: U8 needs is_pure");
    if ((int)c->clip_by < 0 || (int)c->clip_by >= GPT_N_CLIPS)
        return gpt_invalid(error, "gpt_config.clip_by: %d is not a gpt_clip", (int)c->clip_by);
    return MEMO_STATUS_OK;
}

static memo_status gpt_check_model(const gpt_config* c, memo_error* error) {
    const int32_t hidden = c->hidden, heads = c->n_heads;
    if (!c->head_size && hidden % heads)
        return gpt_invalid(error,
                           "--hidden %d is not a multiple of --heads %d; --hidden %d would be",
                           hidden, heads, (hidden / (2 * heads) + 1) * 2 * heads);
    if (c->head_size % 2)
        return gpt_invalid(error, "head_dim %d: rotary positions need an even size", c->head_size);
    if (!c->head_size && hidden / heads % 2)
        return gpt_invalid(error,
                           "--hidden %d over --heads %d makes heads of %d, and rotary positions "
                           "need an even size; --hidden %d would do",
                           hidden, heads, hidden / heads, hidden + heads);
    if (heads % c->n_kv_heads)
        return gpt_invalid(error,
                           "--heads %d is not a multiple of --kv-heads %d; each key-value head "
                           "serves equally many heads",
                           heads, c->n_kv_heads);

    /* Then no product of sizes exceeds 64 bits, and no dimension of a GEMM an int. */
    if (16.0 * 16 * c->n_layers * hidden *
                ((double)c->sequence * (double)c->batch + 12.0 * hidden) >
            1e18 ||
        (double)heads * (double)gpt_head_size(c) > 1 << 20)
        return gpt_invalid(error, "this model needs more than 10^18 bytes; try fewer --layers, a "
                                  "smaller --hidden, --batch or --seq");
    return MEMO_STATUS_OK;
}

/* What weights and moments may lie in. */
static memo_status gpt_check_states(const gpt_config* c, memo_error* error) {
    const int is_8bit = c->states == MEMO_TYPE_U8;
    const char* name = is_8bit ? "8bit" : "pure-bf16";
    if (!c->is_pure) return MEMO_STATUS_OK;
    if (gpt_sum_type(c->type) != MEMO_TYPE_F32)
        return gpt_invalid(error, "gpt_config.is_pure: type F64; F32 or BF16 would work");
    if (c->lora.rank)
        return gpt_invalid(error,
                           "--states %s does not work with adapters, which are few; --states "
                           "bf16 would work",
                           name);
    if (is_8bit && gpt_degree(c->tensor) > 1)
        return gpt_invalid(error,
                           "--states 8bit does not work with --tensor %d, which splits its "
                           "blocks of %d; --states pure-bf16 would work",
                           c->tensor, GPT_BLOCK);
    return MEMO_STATUS_OK;
}

/* Returns the largest number up to n that divides both. */
static int64_t gpt_common_divisor(int64_t n, int64_t a, int64_t b) {
    while (a % n || b % n) n--;
    return n;
}

/* Data ranks, and the ranks of a sequence.  Each of these needs a token, in zigzag two. */
static memo_status gpt_check_ranks(const gpt_config* c, memo_error* error) {
    const int32_t data = gpt_degree(c->data), ring = gpt_degree(c->ring);
    const int32_t ulysses = gpt_degree(c->ulysses), head_size = (int32_t)gpt_head_size(c);
    const int64_t least = (int64_t)ring * ulysses * (ring > 1 ? 2 : 1);

    if ((double)data * ring * ulysses > 1 << 16)
        return gpt_invalid(error, "--data %d x --ring %d x --ulysses %d: at most 2^16 would work",
                           data, ring, ulysses);
    if (c->batch % data)
        return gpt_invalid(error, "--batch %lld cannot be divided by --data %d; --batch %lld can",
                           (long long)c->batch, data, (long long)((c->batch / data + 1) * data));

    if (ulysses > c->n_heads) {
        const int32_t n = (int32_t)gpt_common_divisor(c->n_heads, ulysses, 0);
        return gpt_invalid(error,
                           "--ulysses %d splits --heads %d, and leaves ranks without any; "
                           "--ulysses %d --ring %d would do",
                           ulysses, c->n_heads, n, ring * (ulysses / n));
    }
    if (c->sequence < least)
        return gpt_invalid(error,
                           "--seq %lld leaves ranks of --ring %d x --ulysses %d without tokens; "
                           "--seq %lld would do",
                           (long long)c->sequence, ring, ulysses, (long long)least);

    if (ring * ulysses > 1 && c->type == MEMO_TYPE_F64)
        return gpt_unsupported(error, "attention over ranks does not take f64");
    if (ring * ulysses > 1 && head_size > HOST_ATTENTION_HEAD_SIZE)
        return gpt_invalid(
            error, "heads of %d: attention over ranks takes %d at most; --heads %d would do",
            head_size, HOST_ATTENTION_HEAD_SIZE, c->hidden / 2);
    return MEMO_STATUS_OK;
}

/* Tensor ranks of one degree, and parts of a micro-batch.  Key and value heads are not copied to
 * more ranks: a rank without its own head would have to sum another rank's gradient. */
static memo_status gpt_check_tensor(const gpt_config* c, memo_error* error) {
    const int32_t tensor = gpt_degree(c->tensor), subs = gpt_degree(c->sub_batches);
    const int32_t n = gpt_degree(c->ring) * gpt_degree(c->ulysses);
    const int64_t n_sequences = c->batch / gpt_degree(c->data);

    if (c->n_heads % tensor || c->n_kv_heads % tensor)
        return gpt_invalid(error,
                           "--tensor %d cannot share %d heads with %d key-value heads evenly; "
                           "--tensor %lld can",
                           tensor, c->n_heads, c->n_kv_heads,
                           (long long)gpt_common_divisor(tensor, c->n_heads, c->n_kv_heads));
    if (gpt_wide(c) % tensor)
        return gpt_invalid(error, "--mlp-columns %lld: a multiple of --tensor %d would work",
                           (long long)gpt_wide(c), tensor);

    if (gpt_degree(c->ulysses) > c->n_heads / tensor)
        return gpt_invalid(error,
                           "--ulysses %d splits the %d heads of a rank of --tensor %d, and "
                           "leaves ranks without any; --ulysses %d would do",
                           gpt_degree(c->ulysses), c->n_heads / tensor, tensor,
                           c->n_heads / tensor);

    if (n_sequences % subs && (n_sequences > 1 || n > 1 || subs > c->sequence))
        return gpt_invalid(
            error,
            "--sub-batches %d does not divide the %lld sequence%s of a rank%s; --sub-batches "
            "%lld does",
            subs, (long long)n_sequences, n_sequences == 1 ? "" : "s",
            n_sequences > 1 ? ""
            : n > 1         ? ", and a sequence that ranks share is not split again"
                            : ", nor are there as many tokens",
            (long long)gpt_common_divisor(gpt_min(subs, n_sequences), n_sequences, 0));
    return MEMO_STATUS_OK;
}

/* Degrees that differ. */
static memo_status gpt_check_degrees(const gpt_config* c, memo_error* error) {
    const int32_t tensor = gpt_degree(c->tensor);
    for (int32_t block = 0; block < 2 * c->n_layers && c->degrees; block++) {
        const int32_t degree = c->degrees[block];
        if (degree < 1 || degree > tensor || (degree & (degree - 1)) || (tensor & (tensor - 1)) ||
            tensor > 128)
            return gpt_invalid(error,
                               "--degrees: %d of block %d; powers of two up to --tensor %d, itself "
                               "one and at most 128, would work",
                               degree, block, tensor);
    }
    if (!gpt_is_mixed(c)) return MEMO_STATUS_OK;
    int64_t unit =
        (int64_t)gpt_degree(c->data) * gpt_degree(c->sub_batches) * (tensor / gpt_least_degree(c));
    if (gpt_degree(c->ring) * gpt_degree(c->ulysses) > 1)
        return gpt_invalid(error, "--degrees that differ spread whole sequences over ranks, but "
                                  "--ring and --ulysses split them; --data works");
    if (c->batch % unit)
        return gpt_invalid(error,
                           "--degrees spreads --batch %lld over groups of %d of --tensor %d ranks; "
                           "--batch %lld could be",
                           (long long)c->batch, gpt_least_degree(c), tensor,
                           (long long)((c->batch / unit + 1) * unit));
    return MEMO_STATUS_OK;
}

int64_t gpt_cut_slices(const gpt_config* config, int64_t largest, int64_t n) {
    enum { LEAST_ROWS = 1024 };
    gpt_config cut = *config;
    cut.slice_rows = gpt_round_up((largest - 1) / n + 1, config->tile_rows);
    if (n > 1 && cut.slice_rows < LEAST_ROWS) return 0;
    return gpt_check_slices(&cut, NULL) ? 0 : cut.slice_rows;
}

memo_status gpt_check_slices(const gpt_config* c, memo_error* error) {
    const int64_t n_parts = gpt_n_slices(c) * gpt_degree(c->sub_batches);
    const int32_t n = gpt_degree(c->ring) * gpt_degree(c->ulysses);
    if (c->slice_rows > 0 && c->slice_rows % c->tile_rows)
        return gpt_invalid(error, "--slice-rows %lld: 0, or a multiple of --tile %lld, would work",
                           (long long)c->slice_rows, (long long)c->tile_rows);
    if (gpt_n_slices(c) == 1) return MEMO_STATUS_OK;
    if (gpt_is_mixed(c))
        return gpt_unsupported(error,
                               "--slice-rows %lld: with mixed degrees; ranks of one degree would "
                               "work, or --slice-rows 0",
                               (long long)c->slice_rows);
    if (n > 1 && (c->batch > gpt_degree(c->data) || c->documents ||
                  !gpt_share_make(c, NULL).layout.slice_tokens))
        return gpt_unsupported(error,
                               "--slice-rows %lld: with --ring %d, --ulysses %d, --batch %lld, "
                               "--documents %lld; one sequence for each --data rank, without "
                               "documents, in slices of an even number of rows would work, or "
                               "--slice-rows 0",
                               (long long)c->slice_rows, gpt_degree(c->ring),
                               gpt_degree(c->ulysses), (long long)c->batch,
                               (long long)c->documents);
    if (n_parts > GPT_RUNS_MAX)
        return gpt_invalid(error, "--slice-rows %lld: %lld slices and parts; at most %d would work",
                           (long long)c->slice_rows, (long long)n_parts, GPT_RUNS_MAX);
    return MEMO_STATUS_OK;
}

memo_status gpt_check_config(const gpt_config* config, memo_error* error) {
    memo_status status = gpt_check_numbers(config, error);
    if (!status) status = gpt_check_model(config, error);
    if (!status) status = gpt_check_ranks(config, error);
    if (!status) status = gpt_check_tensor(config, error);
    if (!status) status = gpt_check_degrees(config, error);
    if (!status) status = gpt_experts_check(config, error);
    if (!status) status = gpt_lora_check(config, error);
    if (!status) status = gpt_check_states(config, error);
    return status ? status : gpt_check_slices(config, error);
}
