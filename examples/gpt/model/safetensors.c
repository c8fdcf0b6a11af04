#include "gpt/model/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef GPT_JSON
#include "gpt/model/json.h"
#endif

gpt_shown gpt_show(const char* text) {
    gpt_shown shown;
    size_t n = 0;
    for (; text[n] && n < 100; n++)
        shown.text[n] = (unsigned char)text[n] < ' ' || text[n] == 127 ? '?' : text[n];
    shown.text[n] = 0;
    return shown;
}

const gpt_stored_tensor* gpt_stored_find(const gpt_stored* stored, const char* name) {
    int64_t low = 0, high = stored->n_tensors;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        const int order = strcmp(stored->tensors[middle].name, name);
        if (order == 0) return &stored->tensors[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

void gpt_stored_close(gpt_stored* stored) {
    for (int32_t i = 0; i < stored->n_files; i++) {
        gpt_unmap(&stored->files[i].mapped);
        free(stored->files[i].path);
    }
    for (int64_t i = 0; i < stored->n_tensors; i++) free(stored->tensors[i].name);
    free(stored->files);
    free(stored->tensors);
    memset(stored, 0, sizeof *stored);
}

/* ---- elements ------------------------------------------------------------------------------- */

static uint32_t gpt_stored_bits(const unsigned char* bytes, int n_bytes) {
    uint32_t bits = 0;
    for (int i = 0; i < n_bytes; i++) bits |= (uint32_t)bytes[i] << 8 * i;
    return bits;
}

/* IEEE half: 5 bits of exponent, 10 of fraction.  Subnormal numbers are fraction * 2^-24. */
static float gpt_f32_from_f16(uint32_t bits) {
    const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31,
                   fraction = bits & 1023;
    uint32_t wide = sign | (exponent + 112) << 23 | fraction << 13;
    float value;
    if (exponent == 0) {
        value = (float)fraction / 16777216.0f;
        return sign ? -value : value;
    }
    if (exponent == 31) wide = sign | 0x7f800000u | fraction << 13;
    memcpy(&value, &wide, sizeof value);
    return value;
}

memo_status gpt_stored_read(const gpt_stored_tensor* tensor, int64_t begin, int64_t n, float* to,
                            memo_error* error) {
    const int is_f32 = !strcmp(tensor->type, "F32"), is_f16 = !strcmp(tensor->type, "F16");
    const int n_bytes = is_f32 ? 4 : 2;
    const unsigned char* from = tensor->bytes + begin * n_bytes;
    if (!is_f32 && !is_f16 && strcmp(tensor->type, "BF16"))
        return memo_error_set(
            error, MEMO_STATUS_FORMAT, "%.300s: tensor `%s`: type %s; F32, BF16 or F16 would work",
            tensor->path, gpt_show(tensor->name).text, gpt_show(tensor->type).text);

    for (int64_t i = 0; i < n; i++, from += n_bytes) {
        const uint32_t bits = gpt_stored_bits(from, n_bytes);
        const uint32_t wide = is_f32 ? bits : bits << 16;
        if (is_f16)
            to[i] = gpt_f32_from_f16(bits);
        else
            memcpy(&to[i], &wide, sizeof wide);
        if (to[i] - to[i] == 0) continue;
        return memo_error_set(error, MEMO_STATUS_FORMAT,
                              "%.300s: tensor `%s`: element %lld is not finite (%g)", tensor->path,
                              gpt_show(tensor->name).text, (long long)(begin + i), (double)to[i]);
    }
    return MEMO_STATUS_OK;
}

/* Numbers of 16 bits of the file are those of the caller.  A number is not finite if all bits of its
 * exponent are set. */
static int gpt_stored_copy_bf16(const unsigned char* from, int64_t n, uint16_t* to) {
    uint16_t worst = 0;
    memcpy(to, from, (size_t)n * sizeof *to);
    for (int64_t i = 0; i < n; i++) worst |= (uint16_t)((to[i] & 0x7f80u) == 0x7f80u);
    return !worst;
}

memo_status gpt_stored_read_as(const gpt_stored_tensor* tensor, int64_t begin, int64_t n,
                               memo_type type, void* to, memo_error* error) {
    enum { N_PIECE = 1024 };
    const uint16_t one = 1;
    unsigned char first;
    float piece[N_PIECE];
    memo_status status = MEMO_STATUS_OK;
    memcpy(&first, &one, 1);
    if (type == MEMO_TYPE_F32) return gpt_stored_read(tensor, begin, n, (float*)to, error);
    if (type == MEMO_TYPE_BF16 && first && !strcmp(tensor->type, "BF16") &&
        gpt_stored_copy_bf16(tensor->bytes + 2 * begin, n, (uint16_t*)to))
        return MEMO_STATUS_OK;
    for (int64_t i = 0, k; i < n && !status; i += k) {
        k = gpt_min(n - i, N_PIECE);
        status = gpt_stored_read(tensor, begin + i, k, piece, error);
        for (int64_t j = 0; j < k && type == MEMO_TYPE_BF16; j++)
            ((uint16_t*)to)[i + j] = memo_bf16_from_f32(piece[j]);
        for (int64_t j = 0; j < k && type == MEMO_TYPE_F64; j++)
            ((double*)to)[i + j] = (double)piece[j];
    }
    return status;
}

/* ---- writing -------------------------------------------------------------------------------- */

char* gpt_stored_header(const gpt_stored_tensor* tensors, int64_t n_tensors, int64_t* n_bytes) {
    memo_text text = MEMO_ZERO(memo_text);
    int64_t at = 0;
    memo_text_put(&text, "        {\"__metadata__\":{\"format\":\"pt\"}");
    for (int64_t i = 0; i < n_tensors; i++) {
        memo_text_put(&text, ",\n\"%s\":{\"dtype\":\"%s\",\"shape\":[", tensors[i].name,
                      tensors[i].type);
        for (int32_t d = 0; d < tensors[i].n_dims; d++)
            memo_text_put(&text, "%s%lld", d ? "," : "", (long long)tensors[i].dims[d]);
        memo_text_put(&text, "],\"data_offsets\":[%lld,%lld]}", (long long)at,
                      (long long)(at + tensors[i].n_bytes));
        at += tensors[i].n_bytes;
    }
    memo_text_put(&text, "}");
    while (text.n_bytes % 8 && !text.failed) memo_text_put(&text, " ");
    if (text.failed) {
        memo_text_free(&text);
        return NULL;
    }
    *n_bytes = text.n_bytes;
    for (int i = 0; i < 8; i++) text.data[i] = (char)((uint64_t)(text.n_bytes - 8) >> 8 * i & 255);
    return text.data;
}

/* ---- reading headers ------------------------------------------------------------------------- */

#ifndef GPT_JSON
memo_status gpt_stored_open(const char* folder, gpt_stored* stored, memo_error* error) {
    return gpt_stored_open_file(folder, NULL, stored, error);
}
memo_status gpt_stored_open_file(const char* folder, const char* name, gpt_stored* stored,
                                 memo_error* error) {
    (void)name;
    memset(stored, 0, sizeof *stored);
    return gpt_unsupported(error,
                           "%.300s: this program is built without cJSON, which reads it; apt-get "
                           "install libcjson-dev, then make setup, would build it with",
                           folder);
}
#else

enum { GPT_STORED_HEADER_MAX = 100000000 }; /* bytes, as in the format's own reader */

/* About a tensor of a file. */
static memo_status gpt_stored_bad(const char* path, const char* name, const char* fault,
                                  memo_error* error) {
    if (!name) return memo_error_set(error, MEMO_STATUS_FORMAT, "%.300s: %s", path, fault);
    return memo_error_set(error, MEMO_STATUS_FORMAT, "%.300s: tensor `%s`: %s", path,
                          gpt_show(name).text, fault);
}

/* Bytes of an element; 0: the type is unknown. */
static int64_t gpt_stored_type_bytes(const char* type) {
    static const struct {
        const char* name;
        int64_t n_bytes;
    } types[] = {{"F32", 4},     {"BF16", 2},    {"F16", 2}, {"F64", 8}, {"I64", 8},
                 {"U64", 8},     {"I32", 4},     {"U32", 4}, {"I16", 2}, {"U16", 2},
                 {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I8", 1},  {"U8", 1},  {"BOOL", 1}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(type, types[i].name)) return types[i].n_bytes;
    return 0;
}

/* Fills in type, shape and bytes of a tensor of a file whose elements begin at `data`. */
static memo_status gpt_stored_parse_tensor(const gpt_stored_file* file, int64_t data,
                                           const cJSON* json, gpt_stored_tensor* tensor,
                                           memo_error* error) {
    const cJSON *type = gpt_json_find(json, "dtype"), *shape = gpt_json_find(json, "shape");
    const cJSON *offsets = gpt_json_find(json, "data_offsets"), *item;
    int64_t begin, end, element;

    /* The type and the shape. */
    if (!cJSON_IsString(type) || strlen(type->valuestring) >= sizeof tensor->type)
        return gpt_stored_bad(file->path, json->string, "dtype: not the name of a type", error);
    snprintf(tensor->type, sizeof tensor->type, "%s", type->valuestring);
    element = gpt_stored_type_bytes(tensor->type);
    if (!element) return gpt_stored_bad(file->path, json->string, "dtype: an unknown type", error);
    if (!cJSON_IsArray(shape) || cJSON_GetArraySize(shape) > GPT_STORED_DIMS)
        return gpt_stored_bad(file->path, json->string, "shape: not up to 8 numbers", error);
    tensor->n = 1;
    cJSON_ArrayForEach(item, shape) {
        int64_t* dim = &tensor->dims[tensor->n_dims++];
        if (!gpt_json_whole(item, dim))
            return gpt_stored_bad(file->path, json->string, "shape: not whole numbers", error);
        if (*dim && tensor->n > file->mapped.n_bytes / *dim)
            return gpt_stored_bad(file->path, json->string, "shape: more elements than the file",
                                  error);
        tensor->n *= *dim;
    }

    /* The bytes. */
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
        !gpt_json_whole(cJSON_GetArrayItem(offsets, 0), &begin) ||
        !gpt_json_whole(cJSON_GetArrayItem(offsets, 1), &end))
        return gpt_stored_bad(file->path, json->string, "data_offsets: not two whole numbers",
                              error);
    if (begin > end || end > file->mapped.n_bytes - data)
        return gpt_stored_bad(file->path, json->string,
                              "data_offsets: outside of the file, which may be cut short", error);
    tensor->n_bytes = end - begin;
    if (tensor->n_bytes != tensor->n * element)
        return gpt_stored_bad(file->path, json->string,
                              "data_offsets: not the bytes of its dtype and shape", error);
    tensor->bytes = file->mapped.bytes + data + begin;
    tensor->path = file->path;
    tensor->name = strdup(json->string);
    return tensor->name ? MEMO_STATUS_OK : gpt_no_memory("the names of tensors", error);
}

static int gpt_stored_by_bytes(const void* a, const void* b) {
    const gpt_stored_tensor *x = (const gpt_stored_tensor*)a, *y = (const gpt_stored_tensor*)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return x->n_bytes < y->n_bytes ? -1 : x->n_bytes > y->n_bytes;
}
static int gpt_stored_by_name(const void* a, const void* b) {
    return strcmp(((const gpt_stored_tensor*)a)->name, ((const gpt_stored_tensor*)b)->name);
}

/* The tensors of a file follow each other from the first byte behind the header to the last. */
static memo_status gpt_stored_check_bytes(const gpt_stored_file* file, int64_t data,
                                          gpt_stored_tensor* tensors, int64_t n,
                                          memo_error* error) {
    const unsigned char* at = file->mapped.bytes + data;
    qsort(tensors, (size_t)n, sizeof *tensors, gpt_stored_by_bytes);
    for (int64_t i = 0; i < n; i++) {
        if (tensors[i].bytes != at)
            return gpt_stored_bad(file->path, tensors[i].name,
                                  tensors[i].bytes < at
                                      ? "data_offsets: overlap those of another tensor"
                                      : "data_offsets: leave a gap before them",
                                  error);
        at += tensors[i].n_bytes;
    }
    if (at != file->mapped.bytes + file->mapped.n_bytes)
        return gpt_stored_bad(file->path, NULL, "has bytes behind its last tensor", error);
    return MEMO_STATUS_OK;
}

/* Appends the tensors of a file. */
static memo_status gpt_stored_parse(gpt_stored* stored, const gpt_stored_file* file,
                                    memo_error* error) {
    const int64_t n_before = stored->n_tensors;
    int64_t n_header = 0;
    cJSON *json, *item;
    memo_status status = MEMO_STATUS_OK;
    for (int i = 7; i >= 0 && file->mapped.n_bytes >= 8; i--)
        n_header =
            n_header > GPT_STORED_HEADER_MAX ? n_header : n_header * 256 + file->mapped.bytes[i];
    if (file->mapped.n_bytes < 8 || n_header > GPT_STORED_HEADER_MAX ||
        n_header > file->mapped.n_bytes - 8)
        return gpt_stored_bad(file->path, NULL,
                              "no safetensors: its header is longer than the file or 100 MB",
                              error);
    json = gpt_json_parse(file->path, (const char*)file->mapped.bytes + 8, n_header, error);
    if (!json) return error->status;

    gpt_stored_tensor* larger = (gpt_stored_tensor*)realloc(
        stored->tensors,
        (size_t)(n_before + cJSON_GetArraySize(json) + 1) * sizeof *stored->tensors);
    if (!larger) status = gpt_no_memory("the tensors of a model", error);
    if (larger) stored->tensors = larger;
    cJSON_ArrayForEach(item, json) {
        gpt_stored_tensor* tensor;
        if (status) break;
        if (!strcmp(item->string, "__metadata__")) continue;
        tensor = &stored->tensors[stored->n_tensors];
        memset(tensor, 0, sizeof *tensor);
        if (!cJSON_IsObject(item))
            status = gpt_stored_bad(file->path, item->string, "not an object", error);
        else
            status = gpt_stored_parse_tensor(file, 8 + n_header, item, tensor, error);
        if (!status) stored->n_tensors++;
    }
    cJSON_Delete(json);
    return status ? status
                  : gpt_stored_check_bytes(file, 8 + n_header, stored->tensors + n_before,
                                           stored->n_tensors - n_before, error);
}

/* Maps FOLDER/NAME and appends its tensors, unless it is open. */
static memo_status gpt_stored_add(gpt_stored* stored, const char* folder, const char* name,
                                  memo_error* error) {
    const size_t n = strlen(folder) + strlen(name) + 2;
    char* path = (char*)malloc(n);
    gpt_stored_file* larger;
    const char* why;
    if (!path) return gpt_no_memory("the name of a file", error);
    snprintf(path, n, "%s/%s", folder, name);
    for (int32_t i = 0; i < stored->n_files; i++)
        if (!strcmp(stored->files[i].path, path)) {
            free(path);
            return MEMO_STATUS_OK;
        }

    larger = (gpt_stored_file*)realloc(stored->files,
                                       (size_t)(stored->n_files + 1) * sizeof *stored->files);
    if (!larger) {
        free(path);
        return gpt_no_memory("the files of a model", error);
    }
    stored->files = larger;
    gpt_stored_file* file = &stored->files[stored->n_files++];
    memset(file, 0, sizeof *file);
    file->path = path;
    why = gpt_map(path, &file->mapped);
    if (!why) return gpt_stored_parse(stored, file, error);
    if (why == gpt_not_regular) return gpt_stored_bad(path, NULL, why, error);
    return memo_error_set(error, MEMO_STATUS_IO, "%.300s: cannot be read: %s", path, why);
}

/* The files of an index.  A file lies beside it. */
static memo_status gpt_stored_add_indexed(gpt_stored* stored, const char* folder, const char* path,
                                          const cJSON* index, memo_error* error) {
    const cJSON *map = gpt_json_find(index, "weight_map"), *item;
    memo_status status = MEMO_STATUS_OK;
    if (!cJSON_IsObject(map)) return gpt_stored_bad(path, NULL, "weight_map: not an object", error);
    cJSON_ArrayForEach(item, map) {
        const char* name = cJSON_IsString(item) ? item->valuestring : "";
        if (!*name || strchr(name, '/') || strlen(name) > 255)
            return gpt_stored_bad(path, item->string, "weight_map: not the name of a file beside",
                                  error);
        status = gpt_stored_add(stored, folder, name, error);
        if (status) return status;
    }
    return status;
}

/* No name is there twice, and each tensor of the index in the file that it states. */
static memo_status gpt_stored_check_names(gpt_stored* stored, const char* path, const cJSON* index,
                                          memo_error* error) {
    const cJSON* item;
    if (stored->n_tensors)
        qsort(stored->tensors, (size_t)stored->n_tensors, sizeof *stored->tensors,
              gpt_stored_by_name);
    for (int64_t i = 1; i < stored->n_tensors; i++)
        if (!strcmp(stored->tensors[i - 1].name, stored->tensors[i].name))
            return gpt_stored_bad(stored->tensors[i].path, stored->tensors[i].name,
                                  "another tensor has this name", error);
    if (!index) return MEMO_STATUS_OK;
    cJSON_ArrayForEach(item, gpt_json_find(index, "weight_map")) {
        const gpt_stored_tensor* tensor = gpt_stored_find(stored, item->string);
        const char* slash = tensor ? strrchr(tensor->path, '/') : NULL;
        if (!slash || strcmp(slash + 1, item->valuestring))
            return gpt_stored_bad(path, item->string, "weight_map: not in the file that it names",
                                  error);
    }
    return MEMO_STATUS_OK;
}

memo_status gpt_stored_open(const char* folder, gpt_stored* stored, memo_error* error) {
    static const char index_name[] = "model.safetensors.index.json";
    char path[GPT_PATH_BYTES];
    cJSON* index = NULL;
    memo_error unused;
    memo_status status = MEMO_STATUS_OK;
    if (!error) error = &unused;
    memset(stored, 0, sizeof *stored);
    if (strlen(folder) + sizeof index_name + 1 > sizeof path)
        return gpt_invalid(error, "%.300s: a shorter name works", folder);
    snprintf(path, sizeof path, "%s/%s", folder, index_name);

    if (access(path, F_OK) == 0) {
        index = gpt_json_read(path, error);
        status = index ? gpt_stored_add_indexed(stored, folder, path, index, error) : error->status;
    } else {
        status = gpt_stored_add(stored, folder, "model.safetensors", error);
    }
    if (!status) status = gpt_stored_check_names(stored, path, index, error);
    cJSON_Delete(index);
    if (status) gpt_stored_close(stored);
    return status;
}

memo_status gpt_stored_open_file(const char* folder, const char* name, gpt_stored* stored,
                                 memo_error* error) {
    memo_error unused;
    memo_status status;
    if (!error) error = &unused;
    memset(stored, 0, sizeof *stored);
    if (strlen(folder) + strlen(name) + 2 > GPT_PATH_BYTES)
        return gpt_invalid(error, "%.300s: a shorter name works", folder);
    status = gpt_stored_add(stored, folder, name, error);
    if (!status) status = gpt_stored_check_names(stored, "", NULL, error);
    if (status) gpt_stored_close(stored);
    return status;
}
#endif
