#include "gpt/model/known.h"

#include <string.h>

/* From the config.json that each model's authors publish. */
static const struct gpt_known {
    const char* name;
    gpt_family family;
    int32_t n_layers, hidden, n_heads, n_kv_heads, head_size, mlp_columns, vocabulary, is_tied;
    gpt_experts experts;
} gpt_known[] = {
    {"llama2-7b", GPT_FAMILY_LLAMA, 32, 4096, 32, 32, 128, 11008, 32000, 0, {0, 0, 0}},
    {"llama3-8b", GPT_FAMILY_LLAMA, 32, 4096, 32, 8, 128, 14336, 128256, 0, {0, 0, 0}},
    {"llama3-70b", GPT_FAMILY_LLAMA, 80, 8192, 64, 8, 128, 28672, 128256, 0, {0, 0, 0}},
    {"llama3.2-1b", GPT_FAMILY_LLAMA, 16, 2048, 32, 8, 64, 8192, 128256, 1, {0, 0, 0}},
    {"llama3.2-3b", GPT_FAMILY_LLAMA, 28, 3072, 24, 8, 128, 8192, 128256, 1, {0, 0, 0}},
    {"qwen2.5-7b", GPT_FAMILY_QWEN2, 28, 3584, 28, 4, 128, 18944, 152064, 0, {0, 0, 0}},
    {"qwen2.5-32b", GPT_FAMILY_QWEN2, 64, 5120, 40, 8, 128, 27648, 152064, 0, {0, 0, 0}},
    {"qwen3-0.6b", GPT_FAMILY_QWEN3, 28, 1024, 16, 8, 128, 3072, 151936, 1, {0, 0, 0}},
    {"qwen3-1.7b", GPT_FAMILY_QWEN3, 28, 2048, 16, 8, 128, 6144, 151936, 1, {0, 0, 0}},
    {"qwen3-4b", GPT_FAMILY_QWEN3, 36, 2560, 32, 8, 128, 9728, 151936, 1, {0, 0, 0}},
    {"qwen3-8b", GPT_FAMILY_QWEN3, 36, 4096, 32, 8, 128, 12288, 151936, 0, {0, 0, 0}},
    {"qwen3-14b", GPT_FAMILY_QWEN3, 40, 5120, 40, 8, 128, 17408, 151936, 0, {0, 0, 0}},
    {"qwen3-32b", GPT_FAMILY_QWEN3, 64, 5120, 64, 8, 128, 25600, 151936, 0, {0, 0, 0}},
    {"qwen3-30b-a3b", GPT_FAMILY_QWEN3_MOE, 48, 2048, 32, 4, 128, 768, 151936, 0, {128, 8, 1}}};
enum { GPT_N_KNOWN = sizeof gpt_known / sizeof *gpt_known };

int gpt_known_config(const char* name, gpt_config* config) {
    const struct gpt_known* k = gpt_known;
    while (k < gpt_known + GPT_N_KNOWN && strcmp(k->name, name)) k++;
    if (k == gpt_known + GPT_N_KNOWN) return 0;
    config->n_layers = k->n_layers;
    config->hidden = k->hidden;
    config->n_heads = k->n_heads;
    config->n_kv_heads = k->n_kv_heads;
    config->head_size = k->head_size;
    config->vocabulary = k->vocabulary;
    config->mlp = GPT_MLP_SWIGLU;
    config->mlp_columns = k->mlp_columns;
    config->has_biases = k->family == GPT_FAMILY_QWEN2;
    config->experts = k->experts;
    config->has_head_norms = k->family == GPT_FAMILY_QWEN3 || k->family == GPT_FAMILY_QWEN3_MOE;
    config->is_tied = k->is_tied;
    return 1;
}
