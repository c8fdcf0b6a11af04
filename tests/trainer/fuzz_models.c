/* fuzz_models.c - reads any bytes as a file of weights, as the header of one, and as config.json or
 * adapter_config.json: they are refused with one line that names the file, or read, and nothing outside the file.
 *
 * make -f .ci/checks.mk fuzz runs it with clang's libFuzzer; test_safetensors.c reads altered files. */
#define FUZZ_WORDS
#include "gpt/memo.c"
#include "gpt_model_unit.h"
#include "fuzz.h"

#ifndef GPT_JSON
static void fuzz_models(const uint8_t* data, size_t size) {
    (void)data;
    (void)size;
}
#else

/* One line, without what a terminal would obey. */
static void check_refusal(memo_status status, const memo_error* error) {
    FUZZ_CHECK(status == error->status && strncmp(error->message, "input: ", 7) == 0);
    for (const char* c = error->message; *c; c++) FUZZ_CHECK((unsigned char)*c >= ' ' && *c != 127);
}

static int fuzz_weights(const unsigned char* bytes, size_t n_bytes) { /* 1: they are read */
    char path[] = "input";
    const gpt_stored_file file = {path, bytes, (int64_t)n_bytes};
    gpt_stored stored;
    memo_error error = {0};
    memset(&stored, 0, sizeof stored);
    memo_status status = gpt_stored_parse(&stored, &file, &error);
    if (!status) status = gpt_stored_check_names(&stored, path, NULL, &error);
    if (status) check_refusal(status, &error);
    int64_t n_left = (int64_t)n_bytes - 8;
    for (int i = 7; i >= 0 && !status; i--) n_left -= (int64_t)bytes[i] << 8 * i;
    for (int64_t i = 0; i < stored.n_tensors && !status; i++) n_left -= stored.tensors[i].n_bytes;
    FUZZ_CHECK(status || n_left == 0); /* the tensors have all bytes behind the header */

    for (int64_t i = 0; i < stored.n_tensors && !status; i++) {
        const gpt_stored_tensor* tensor = &stored.tensors[i];
        float* to = (float*)malloc((size_t)(tensor->n + 1) * sizeof *to);
        FUZZ_CHECK(to && gpt_stored_find(&stored, tensor->name) == tensor);
        FUZZ_CHECK(tensor->n_bytes == tensor->n * gpt_stored_type_bytes(tensor->type));
        const memo_status is_read = gpt_stored_read(tensor, 0, tensor->n, to, &error);
        if (is_read) check_refusal(is_read, &error);
        free(to);
    }
    gpt_stored_close(&stored);
    return !status;
}

/* A header that says how long it is, before n_behind bytes. */
static int fuzz_header(const uint8_t* data, size_t size, uint64_t length, size_t n_behind) {
    int is_read;
    unsigned char* bytes = (unsigned char*)calloc(1, size + 8 + n_behind);
    FUZZ_CHECK(bytes);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(length >> 8 * i);
    if (size) memcpy(bytes + 8, data, size);
    is_read = fuzz_weights(bytes, size + 8 + n_behind);
    free(bytes);
    return is_read;
}

/* A header that is read, with another digit in each place: a number too much or too little is rare
 * among random changes. */
static void fuzz_digits(const uint8_t* data, size_t size) {
    uint8_t* other = (uint8_t*)malloc(size + 1);
    FUZZ_CHECK(other);
    if (size) memcpy(other, data, size);
    for (size_t i = 0; i < size; i++) {
        if (data[i] < '0' || data[i] > '9') continue;
        other[i] = data[i] == '9' ? '8' : (uint8_t)(data[i] + 1);
        (void)fuzz_header(other, size, size, 64);
        other[i] = data[i];
    }
    free(other);
}

static void fuzz_config(const uint8_t* data, size_t size) {
    gpt_config_reader r;
    gpt_config config = MEMO_ZERO(gpt_config);
    gpt_model_file file;
    memo_error error = {0};
    memset(&r, 0, sizeof r);
    r.error = &error;
    snprintf(r.path, sizeof r.path, "input");
    r.json = gpt_json_parse(r.path, size ? (const char*)data : "", (int64_t)size, &error);
    if (!r.json) {
        check_refusal(error.status, &error);
        return;
    }
    gpt_config_take(&r, &config, &file);
    cJSON_Delete(r.json);
    if (r.status) {
        check_refusal(r.status, &error);
        return;
    }

    /* The model takes what is read, unless its numbers together are too large. */
    config.sequence = config.batch = 1;
    config.tile_rows = 8;
    config.type = MEMO_TYPE_F32;
    if (gpt_check_config(&config, &error)) FUZZ_CHECK(strstr(error.message, "10^18"));
}

static void fuzz_adapter(const uint8_t* data, size_t size) {
    const char* text = size ? (const char*)data : "";
    memo_error error = {0};
    gpt_lora lora = {0};
    cJSON* json = gpt_json_parse("input", text, (int64_t)size, &error);
    const memo_status status = json ? gpt_adapter_take("input", json, &lora, &error) : error.status;
    cJSON_Delete(json);
    if (status)
        check_refusal(status, &error);
    else
        FUZZ_CHECK(lora.rank > 0 && lora.alpha > 0 && lora.targets && lora.targets < 128);
}

static void fuzz_models(const uint8_t* data, size_t size) {
    (void)fuzz_weights(data, size);
    if (fuzz_header(data, size, size, 64)) fuzz_digits(data, size);
    (void)fuzz_header(data, size, size, 65);    /* more than the tensors of the corpus have */
    (void)fuzz_header(data, size, size + 1, 0); /* longer than the file */
    fuzz_config(data, size);
    fuzz_adapter(data, size);
}
#endif

FUZZ_TARGET(fuzz_models)
