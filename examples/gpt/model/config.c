#include "gpt/model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gpt/model/layout.h"

#ifndef GPT_JSON
static memo_status gpt_config_lacks_json(const char* folder, memo_error* error) {
    return gpt_unsupported(error,
                           "%.300s: this program is built without cJSON, which reads and writes "
                           "config.json; apt-get install libcjson-dev, then make setup, would "
                           "build it with",
                           folder ? folder : "config.json");
}
memo_status gpt_read_config(const char* folder, gpt_config* config, gpt_model_file* file,
                            memo_error* error) {
    (void)config;
    (void)file;
    return gpt_config_lacks_json(folder, error);
}
char* gpt_config_text(const char* folder, const gpt_config* config, memo_error* error) {
    (void)config;
    (void)gpt_config_lacks_json(folder, error);
    return NULL;
}
#else
#include "gpt/model/json.h"
#include "gpt/model/safetensors.h"

typedef struct gpt_config_reader {
    char path[GPT_PATH_BYTES];
    cJSON* json;
    memo_status status; /* of the first fault */
    memo_error* error;
} gpt_config_reader;

/* The first fault stays. */
static void gpt_config_bad(gpt_config_reader* r, memo_status status, const char* field,
                           const char* fault) {
    if (!r->status)
        r->status = memo_error_set(r->error, status, "%.300s: %s: %s", r->path, field, fault);
}

static const cJSON* gpt_config_find(const gpt_config_reader* r, const char* field) {
    const cJSON* item = gpt_json_find(r->json, field);
    return item && !cJSON_IsNull(item) ? item : NULL; /* null: the default */
}

/* A whole number from 1 to most.  otherwise: if the field is absent; 0: it is required. */
static int32_t gpt_config_count(gpt_config_reader* r, const char* field, int64_t most,
                                int32_t otherwise) {
    const cJSON* item = gpt_config_find(r, field);
    int64_t number = 0;
    char fault[96];
    if (!item && otherwise) return otherwise;
    if (item && gpt_json_whole(item, &number) && number >= 1 && number <= most)
        return (int32_t)number;
    snprintf(fault, sizeof fault, "%s; a whole number from 1 to %lld is required",
             item ? "not such a number" : "missing", (long long)most);
    gpt_config_bad(r, MEMO_STATUS_FORMAT, field, fault);
    return 1;
}

/* A number above 0 of an object. */
static double gpt_config_real(gpt_config_reader* r, const cJSON* object, const char* field,
                              double otherwise) {
    const cJSON* item = gpt_json_find(object, field);
    if ((!item || cJSON_IsNull(item)) && otherwise > 0) return otherwise;
    if (cJSON_IsNumber(item) && item->valuedouble > 0 && item->valuedouble < 1e30)
        return item->valuedouble;
    gpt_config_bad(r, MEMO_STATUS_FORMAT, field, "not a number above 0");
    return 1;
}

static int gpt_config_flag(gpt_config_reader* r, const char* field, int otherwise) {
    const cJSON* item = gpt_config_find(r, field);
    if (!item) return otherwise;
    if (!cJSON_IsBool(item)) gpt_config_bad(r, MEMO_STATUS_FORMAT, field, "not true or false");
    return cJSON_IsTrue(item);
}

/* Refuses a field with another value than the one that the trainer computes. */
static void gpt_config_expect(gpt_config_reader* r, const char* field, int is_computed,
                              const char* what) {
    char fault[160], *text;
    if (is_computed || r->status) return;
    text = cJSON_PrintUnformatted(gpt_json_find(r->json, field));
    snprintf(fault, sizeof fault, "%.60s is not supported; %s would work",
             gpt_show(text ? text : "").text, what);
    cJSON_free(text);
    gpt_config_bad(r, MEMO_STATUS_UNSUPPORTED, field, fault);
}
static void gpt_config_expect_false(gpt_config_reader* r, const char* field) {
    gpt_config_expect(r, field, !gpt_config_flag(r, field, 0), "false");
}

static const char* const gpt_families[] = {"llama", "qwen2", "qwen3", "qwen3_moe"};
MEMOB_TABLE_OF(GPT_N_FAMILIES, gpt_families);

static gpt_family gpt_config_family(gpt_config_reader* r) {
    const cJSON* item = gpt_config_find(r, "model_type");
    for (int i = 0; i < GPT_N_FAMILIES && cJSON_IsString(item); i++)
        if (!strcmp(item->valuestring, gpt_families[i])) return (gpt_family)i;
    gpt_config_expect(r, "model_type", 0, "llama, qwen2, qwen3 or qwen3_moe");
    return GPT_FAMILY_LLAMA;
}

/* rope_theta and rope_scaling or, since transformers 5, rope_parameters with both. */
static gpt_rope_law gpt_config_rope(gpt_config_reader* r) {
    const cJSON* both = gpt_config_find(r, "rope_parameters");
    const cJSON *scaling = both ? both : gpt_config_find(r, "rope_scaling"), *kind;
    const char *field = both ? "rope_parameters" : "rope_scaling", *name = "default";
    gpt_rope_law law = MEMO_ZERO(gpt_rope_law);
    law.theta =
        gpt_config_real(r, gpt_json_find(both, "rope_theta") ? both : r->json, "rope_theta", 10000);
    if (!scaling) return law;
    if (!cJSON_IsObject(scaling)) gpt_config_bad(r, MEMO_STATUS_FORMAT, field, "not an object");
    kind = gpt_json_find(scaling, "rope_type");
    if (!kind) kind = gpt_json_find(scaling, "type");
    if (cJSON_IsString(kind)) name = kind->valuestring;

    if (!strcmp(name, "linear")) {
        law.kind = GPT_ROPE_LINEAR;
        law.factor = gpt_config_real(r, scaling, "factor", 0);
    } else if (!strcmp(name, "llama3")) {
        law.kind = GPT_ROPE_LLAMA3;
        law.factor = gpt_config_real(r, scaling, "factor", 0);
        law.low_factor = gpt_config_real(r, scaling, "low_freq_factor", 0);
        law.high_factor = gpt_config_real(r, scaling, "high_freq_factor", 0);
        law.original = gpt_config_real(r, scaling, "original_max_position_embeddings", 0);
        if (law.high_factor <= law.low_factor)
            gpt_config_bad(r, MEMO_STATUS_FORMAT, "high_freq_factor", "not above low_freq_factor");
    } else if (strcmp(name, "default") != 0) {
        gpt_config_expect(r, field, 0, "rope_type linear or llama3");
    }
    return law;
}

/* What would change the model, and is not computed. */
static void gpt_config_refuse(gpt_config_reader* r, gpt_family family) {
    const cJSON *act = gpt_config_find(r, "hidden_act"), *types = gpt_config_find(r, "layer_types");
    const cJSON *drop = gpt_config_find(r, "attention_dropout"), *item;
    const cJSON* partial = gpt_config_find(r, "partial_rotary_factor");
    gpt_config_expect(r, "hidden_act",
                      !act || (cJSON_IsString(act) && !strcmp(act->valuestring, "silu")),
                      "\"silu\"");
    gpt_config_expect(r, "attention_dropout",
                      !drop || (cJSON_IsNumber(drop) && !(fabs(drop->valuedouble) > 0)), "0");
    gpt_config_expect(
        r, "partial_rotary_factor",
        !partial || (cJSON_IsNumber(partial) && !(fabs(partial->valuedouble - 1) > 0)), "1");
    if (family != GPT_FAMILY_QWEN2) gpt_config_expect_false(r, "attention_bias");
    gpt_config_expect_false(r, "mlp_bias");
    gpt_config_expect_false(r, "use_sliding_window");
    cJSON_ArrayForEach(item, types) {
        gpt_config_expect(r, "layer_types",
                          cJSON_IsString(item) && !strcmp(item->valuestring, "full_attention"),
                          "\"full_attention\" in all layers");
    }
    gpt_config_expect(r, "quantization_config", !gpt_config_find(r, "quantization_config"),
                      "weights that are not quantized, without this field,");
    if (family != GPT_FAMILY_QWEN3_MOE)
        gpt_config_expect(r, "num_experts", !gpt_config_find(r, "num_experts"),
                          "a model without experts");
}

/* All layers have experts, and the loss is that of tokens alone. */
static void gpt_config_take_experts(gpt_config_reader* r, gpt_config* config) {
    const cJSON *step = gpt_config_find(r, "decoder_sparse_step"),
                *dense = gpt_config_find(r, "mlp_only_layers");
    int64_t number = 1;
    gpt_config_expect(r, "decoder_sparse_step",
                      !step || (gpt_json_whole(step, &number) && number == 1), "1");
    gpt_config_expect(r, "mlp_only_layers", !dense || !cJSON_GetArraySize(dense), "[]");
    gpt_config_expect_false(r, "output_router_logits"); /* adds router_aux_loss_coef times a loss */
    /* Versions of transformers from 5 on write num_local_experts. */
    config->experts.n = gpt_config_count(
        r, gpt_config_find(r, "num_experts") ? "num_experts" : "num_local_experts", 4096, 128);
    config->experts.n_chosen = gpt_config_count(r, "num_experts_per_tok", 4096, 8);
    config->experts.is_normed = gpt_config_flag(r, "norm_topk_prob", 0);
    config->mlp_columns = gpt_config_count(r, "moe_intermediate_size", 1048576, 768);
    if (!r->status && config->experts.n_chosen > config->experts.n)
        gpt_config_bad(r, MEMO_STATUS_FORMAT, "num_experts_per_tok", "above num_experts");
}

/* Takes the fields of r->json. */
static void gpt_config_take(gpt_config_reader* r, gpt_config* config, gpt_model_file* file) {
    const cJSON* end;
    int64_t token;

    /* Numbers, with the defaults of transformers where a field may be absent. */
    file->family = gpt_config_family(r);
    const int has_experts = file->family == GPT_FAMILY_QWEN3_MOE,
              is_qwen3 = file->family == GPT_FAMILY_QWEN3 || has_experts;
    gpt_config_refuse(r, file->family);
    config->n_layers = gpt_config_count(r, "num_hidden_layers", 4096, 0);
    config->hidden = gpt_config_count(r, "hidden_size", 65536, 0);
    config->n_heads = gpt_config_count(r, "num_attention_heads", 4096, 0);
    config->n_kv_heads = gpt_config_count(r, "num_key_value_heads", 4096, config->n_heads);
    config->head_size = 0; /* absent of Qwen3 MoE: hidden over heads, as transformers takes it */
    if (file->family == GPT_FAMILY_QWEN3 || gpt_config_find(r, "head_dim"))
        config->head_size =
            gpt_config_count(r, "head_dim", 8192, file->family == GPT_FAMILY_QWEN3 ? 128 : 0);
    config->vocabulary = gpt_config_count(r, "vocab_size", 16777216, 0);
    config->mlp = GPT_MLP_SWIGLU;
    memset(&config->experts, 0, sizeof config->experts);
    if (has_experts)
        gpt_config_take_experts(r, config);
    else
        config->mlp_columns = gpt_config_count(r, "intermediate_size", 1048576, 0);
    config->norm_epsilon = gpt_config_real(r, r->json, "rms_norm_eps", 1e-6);
    config->rope = gpt_config_rope(r);
    config->has_biases = file->family == GPT_FAMILY_QWEN2;
    config->has_head_norms = is_qwen3;
    config->is_tied = gpt_config_flag(r, "tie_word_embeddings", 0);

    end = gpt_config_find(r, "eos_token_id");
    if (cJSON_IsArray(end)) end = cJSON_GetArrayItem(end, 0);
    file->end_token =
        gpt_json_whole(end, &token) && token < config->vocabulary ? (int32_t)token : -1;

    /* Numbers that do not fit together. */
    if (!r->status && config->norm_epsilon >= 1)
        gpt_config_bad(r, MEMO_STATUS_FORMAT, "rms_norm_eps", "not below 1");
    if (!r->status && config->n_heads % config->n_kv_heads)
        gpt_config_bad(r, MEMO_STATUS_FORMAT, "num_key_value_heads",
                       "does not divide num_attention_heads");
    if (!r->status && !config->head_size && config->hidden % config->n_heads)
        gpt_config_bad(r, MEMO_STATUS_FORMAT, "hidden_size",
                       "no multiple of num_attention_heads, and head_dim is missing");
    if (!r->status && gpt_head_size(config) % 2)
        gpt_config_bad(r, MEMO_STATUS_UNSUPPORTED, "head_dim", "odd; an even one would work");
}

memo_status gpt_read_config(const char* folder, gpt_config* config, gpt_model_file* file,
                            memo_error* error) {
    gpt_config_reader r;
    memo_error unused;
    memset(&r, 0, sizeof r);
    r.error = error ? error : &unused;
    if (snprintf(r.path, sizeof r.path, "%s/config.json", folder) >= GPT_PATH_BYTES)
        return gpt_invalid(error, "%.300s: a shorter name works", folder);
    r.json = gpt_json_read(r.path, r.error);
    if (!r.json) return r.error->status;
    gpt_config_take(&r, config, file);
    cJSON_Delete(r.json);
    return r.status;
}

/* ---- writing -------------------------------------------------------------------------------- */

static void gpt_config_set(cJSON* json, const char* field, cJSON* value) {
    cJSON_DeleteItemFromObjectCaseSensitive(json, field);
    if (value) cJSON_AddItemToObject(json, field, value);
}

/* The shape of a model that was not read from a folder: norms, RoPE and heads are the defaults. */
static void gpt_config_put_shape(cJSON* json, const gpt_config* c) {
    cJSON* architectures = cJSON_CreateArray();
    cJSON_AddItemToArray(architectures, cJSON_CreateString("LlamaForCausalLM"));
    gpt_config_set(json, "architectures", architectures);
    gpt_config_set(json, "model_type", cJSON_CreateString("llama"));
    gpt_config_set(json, "num_hidden_layers", cJSON_CreateNumber(c->n_layers));
    gpt_config_set(json, "hidden_size", cJSON_CreateNumber(c->hidden));
    gpt_config_set(json, "num_attention_heads", cJSON_CreateNumber(c->n_heads));
    gpt_config_set(json, "num_key_value_heads", cJSON_CreateNumber(c->n_kv_heads));
    gpt_config_set(json, "head_dim", cJSON_CreateNumber((double)gpt_head_size(c)));
    gpt_config_set(json, "intermediate_size", cJSON_CreateNumber((double)gpt_wide(c)));
    gpt_config_set(json, "vocab_size", cJSON_CreateNumber((double)gpt_vocabulary(c)));
    gpt_config_set(json, "hidden_act", cJSON_CreateString("silu"));
    gpt_config_set(json, "rms_norm_eps", cJSON_CreateNumber(gpt_norm_epsilon(c)));
    gpt_config_set(json, "rope_theta", cJSON_CreateNumber(10000));
    gpt_config_set(json, "max_position_embeddings", cJSON_CreateNumber((double)c->sequence));
    gpt_config_set(json, "tie_word_embeddings", cJSON_CreateBool(c->is_tied));
    gpt_config_set(json, "bos_token_id", cJSON_CreateNull());
    gpt_config_set(json, "eos_token_id", cJSON_CreateNull());
}

char* gpt_config_text(const char* folder, const gpt_config* config, memo_error* error) {
    const char* type = config->type == MEMO_TYPE_BF16 ? "bfloat16" : "float32";
    char path[GPT_PATH_BYTES], *text = NULL;
    memo_error unused;
    cJSON* json;
    if (!error) error = &unused;
    if (folder) {
        snprintf(path, sizeof path, "%.*s/config.json", GPT_PATH_BYTES - 20, folder);
        json = gpt_json_read(path, error);
        if (!json) return NULL;
    } else {
        json = cJSON_CreateObject();
        if (json) gpt_config_put_shape(json, config);
    }

    /* Versions of transformers from 4.56 on write dtype, earlier ones torch_dtype. */
    if (json && gpt_json_find(json, "dtype"))
        gpt_config_set(json, "dtype", cJSON_CreateString(type));
    if (json && (!gpt_json_find(json, "dtype") || gpt_json_find(json, "torch_dtype")))
        gpt_config_set(json, "torch_dtype", cJSON_CreateString(type));
    if (json) text = cJSON_Print(json);
    cJSON_Delete(json);
    if (!text) (void)gpt_no_memory("config.json", error);
    return text;
}
#endif
