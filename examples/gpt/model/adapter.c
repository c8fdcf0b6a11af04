#include "gpt/model/adapter.h"

#include <stdio.h>
#include <string.h>

#include "gpt/model/lora.h"

#ifndef GPT_JSON
static memo_status gpt_adapter_lacks_json(const char* folder, memo_error* error) {
    return gpt_unsupported(error,
                           "%.300s: this program is built without cJSON, which reads and writes "
                           "adapter_config.json; apt-get install libcjson-dev, then make setup, "
                           "would build it with",
                           folder);
}
memo_status gpt_read_adapter(const char* folder, gpt_lora* lora, memo_error* error) {
    (void)lora;
    return gpt_adapter_lacks_json(folder, error);
}
char* gpt_adapter_text(const gpt_lora* lora, const char* model, memo_error* error) {
    (void)lora;
    (void)gpt_adapter_lacks_json(model, error);
    return NULL;
}
#else
#include "gpt/model/json.h"
#include "gpt/model/safetensors.h"

/* Fields that peft has for other adapters, and what they are in those that are supported: null,
 * false, empty or 0, or the text. */
static const struct {
    const char *field, *text;
} gpt_adapter_plain[] = {{"peft_type", "LORA"},       {"bias", "none"},
                         {"lora_dropout", NULL},      {"modules_to_save", NULL},
                         {"use_rslora", NULL},        {"use_dora", NULL},
                         {"use_qalora", NULL},        {"lora_bias", NULL},
                         {"fan_in_fan_out", NULL},    {"rank_pattern", NULL},
                         {"alpha_pattern", NULL},     {"layers_to_transform", NULL},
                         {"layers_pattern", NULL},    {"exclude_modules", NULL},
                         {"layer_replication", NULL}, {"megatron_config", NULL},
                         {"target_parameters", NULL}, {"trainable_token_indices", NULL}};

static int gpt_adapter_is_plain(const cJSON* item, const char* text) {
    if (text) return cJSON_IsString(item) && !strcmp(item->valuestring, text);
    return !item || cJSON_IsNull(item) || cJSON_IsFalse(item) ||
           (cJSON_IsNumber(item) && !(item->valuedouble > 0) && !(item->valuedouble < 0)) ||
           ((cJSON_IsArray(item) || cJSON_IsObject(item)) && !item->child);
}

/* Refuses a field of the file. */
static memo_status gpt_adapter_refuse(const char* path, const cJSON* json, const char* field,
                                      const char* would_work, memo_error* error) {
    const cJSON* item = gpt_json_find(json, field);
    char* text = item ? cJSON_PrintUnformatted(item) : NULL;
    const memo_status status =
        gpt_unsupported(error, "%.300s: %s: %.60s is not supported; %s would work", path, field,
                        text ? gpt_show(text).text : "nothing", would_work);
    cJSON_free(text);
    return status;
}

static memo_status gpt_adapter_take_targets(const char* path, const cJSON* json, gpt_lora* lora,
                                            memo_error* error) {
    const cJSON *list = gpt_json_find(json, "target_modules"), *item;
    int is_known = cJSON_IsArray(list) && list->child;
    lora->targets = 0;
    cJSON_ArrayForEach(item, list) {
        int i = 0;
        while (i < GPT_N_ADAPTED &&
               !(cJSON_IsString(item) && !strcmp(item->valuestring, gpt_lora_names[i])))
            i++;
        is_known &= i < GPT_N_ADAPTED;
        if (i < GPT_N_ADAPTED) lora->targets |= 1u << i;
    }
    return is_known ? MEMO_STATUS_OK
                    : gpt_adapter_refuse(path, json, "target_modules",
                                         "a list of q_proj, k_proj, v_proj, o_proj, gate_proj, "
                                         "up_proj and down_proj",
                                         error);
}

static memo_status gpt_adapter_take(const char* path, const cJSON* json, gpt_lora* lora,
                                    memo_error* error) {
    const cJSON *rank = gpt_json_find(json, "r"), *alpha = gpt_json_find(json, "lora_alpha");
    int64_t number = 0;
    for (size_t i = 0; i < sizeof gpt_adapter_plain / sizeof *gpt_adapter_plain; i++) {
        const char *field = gpt_adapter_plain[i].field, *text = gpt_adapter_plain[i].text;
        if (!gpt_adapter_is_plain(gpt_json_find(json, field), text))
            return gpt_adapter_refuse(path, json, field, text ? text : "an adapter without it",
                                      error);
    }
    if (!gpt_json_whole(rank, &number) || number < 1 || number > 65536)
        return memo_error_set(error, MEMO_STATUS_FORMAT,
                              "%.300s: r: %s; a whole number from 1 to 65536 is required", path,
                              rank ? "not such a number" : "missing");
    if (!cJSON_IsNumber(alpha) || !(alpha->valuedouble > 0 && alpha->valuedouble < 1e6))
        return memo_error_set(error, MEMO_STATUS_FORMAT,
                              "%.300s: lora_alpha: %s; a number above 0 is required", path,
                              alpha ? "not such a number" : "missing");
    lora->rank = (int32_t)number;
    lora->alpha = alpha->valuedouble;
    return gpt_adapter_take_targets(path, json, lora, error);
}

memo_status gpt_read_adapter(const char* folder, gpt_lora* lora, memo_error* error) {
    char path[GPT_PATH_BYTES];
    memo_error unused;
    if (!error) error = &unused;
    if (snprintf(path, sizeof path, "%s/adapter_config.json", folder) >= GPT_PATH_BYTES)
        return gpt_invalid(error, "%.300s: a shorter name works", folder);
    cJSON* json = gpt_json_read(path, error);
    if (!json) return error->status;
    const memo_status status = gpt_adapter_take(path, json, lora, error);
    cJSON_Delete(json);
    return status;
}

char* gpt_adapter_text(const gpt_lora* lora, const char* model, memo_error* error) {
    cJSON *json = cJSON_CreateObject(), *targets = cJSON_CreateArray();
    char* text = NULL;
    cJSON_AddStringToObject(json, "peft_type", "LORA");
    cJSON_AddStringToObject(json, "task_type", "CAUSAL_LM");
    cJSON_AddStringToObject(json, "base_model_name_or_path", model);
    cJSON_AddNumberToObject(json, "r", lora->rank);
    cJSON_AddNumberToObject(json, "lora_alpha", lora->alpha);
    cJSON_AddNumberToObject(json, "lora_dropout", 0);
    for (int i = 0; i < GPT_N_ADAPTED; i++)
        if (gpt_lora_targets(lora) >> i & 1)
            cJSON_AddItemToArray(targets, cJSON_CreateString(gpt_lora_names[i]));
    cJSON_AddItemToObject(json, "target_modules", targets);
    cJSON_AddStringToObject(json, "bias", "none");
    cJSON_AddFalseToObject(json, "fan_in_fan_out");
    cJSON_AddTrueToObject(json, "inference_mode");
    cJSON_AddTrueToObject(json, "init_lora_weights");
    cJSON_AddNullToObject(json, "modules_to_save");
    cJSON_AddFalseToObject(json, "use_rslora");
    cJSON_AddFalseToObject(json, "use_dora");
    if (json) text = cJSON_Print(json);
    cJSON_Delete(json);
    if (!text) (void)gpt_no_memory("adapter_config.json", error);
    return text;
}
#endif
