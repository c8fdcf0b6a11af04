#include "gpt/model/weights.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpt/model/checkpoint.h"
#include "gpt/model/enqueue.h"
#include "gpt/model/lora.h"
#include "gpt/model/parallel.h"

/* ---- the tensors of a file ------------------------------------------------------------------- */

/* Names of the trainer's tensors; in a layer behind "model.layers.N.". */
static const char* const gpt_weight_names[] = {
    "model.embed_tokens.weight", "input_layernorm.weight",  "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",   "self_attn.v_proj.weight", "self_attn.q_proj.bias",
    "self_attn.k_proj.bias",     "self_attn.v_proj.bias",   "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",   "self_attn.o_proj.weight", "post_attention_layernorm.weight",
    "mlp.gate.weight",           "mlp.up_proj.weight",      "mlp.down_proj.weight",
    "model.norm.weight",         "lm_head.weight"};
MEMOB_TABLE_OF(GPT_N_W, gpt_weight_names);

typedef struct gpt_weight_name {
    char text[80];
} gpt_weight_name;

/* Tensors of the file whose rows take turns in one matrix of the trainer's; all tensors of a
 * parameter. */
static int gpt_weight_turns(const gpt_parameter* p) { return p->w == GPT_W_UP ? 2 : 1; }
static int gpt_weight_parts(const gpt_parameter* p) { return gpt_weight_turns(p) * p->n_matrices; }

static gpt_weight_name gpt_weight_name_of(const gpt_parameter* p, int part) {
    const int is_of_layer = p->w >= GPT_W_NORM1 && p->w <= GPT_W_DOWN;
    const int n_turns = gpt_weight_turns(p);
    const char* of_w = part % n_turns ? "mlp.gate_proj.weight" : gpt_weight_names[p->w % GPT_N_W];
    gpt_weight_name name;
    if (p->w >= GPT_N_W)
        gpt_lora_put_name(p, name.text, sizeof name.text);
    else if (p->n_matrices > 1)
        snprintf(name.text, sizeof name.text, "model.layers.%d.mlp.experts.%d.%s", (int)p->layer,
                 part / n_turns, of_w + strlen("mlp."));
    else if (is_of_layer)
        snprintf(name.text, sizeof name.text, "model.layers.%d.%s", (int)p->layer, of_w);
    else
        snprintf(name.text, sizeof name.text, "%s", of_w);
    return name;
}

/* The shape of a part; p: of the unsplit model. */
static void gpt_weight_shape(const gpt_parameter* p, gpt_stored_tensor* tensor) {
    const int is_vector = !p->decays;
    tensor->n = p->n / gpt_weight_parts(p);
    tensor->n_dims = is_vector ? 1 : 2;
    tensor->dims[0] = is_vector ? p->n : tensor->n / p->n_columns;
    if (!is_vector) tensor->dims[1] = p->n_columns;
}

/* Elements from i on, to `end` at most, that lie side by side in a tensor of the file: which part,
 * and where in it. */
static int64_t gpt_weight_run(const gpt_parameter* p, int32_t tensor_rank, int64_t i, int64_t end,
                              int* part, int64_t* at) {
    const int64_t whole = gpt_element_of_whole(p, tensor_rank, i), n_turns = gpt_weight_turns(p);
    const int64_t of_matrix = p->n / p->n_matrices; /* elements; tensor ranks have no experts */
    const int64_t matrix = p->n_matrices > 1 ? whole / of_matrix : 0,
                  in = whole - matrix * of_matrix;
    const int64_t row = in / p->stride, column = in % p->stride;
    *part = (int)(matrix * n_turns + row % n_turns);
    *at = row / n_turns * p->stride + column;
    if (n_turns > 1 || p->n_columns != p->stride)
        return gpt_min(end - i, p->n_columns - i % p->n_columns);
    return p->n_matrices > 1 ? gpt_min(end - i, of_matrix - in) : end - i;
}

/* ---- reading -------------------------------------------------------------------------------- */

static memo_status gpt_weight_bad(const gpt_stored* stored, const gpt_stored_tensor* tensor,
                                  const char* name, const char* fault, memo_error* error) {
    const char* path = stored->n_files ? stored->files[0].path : "";
    if (tensor) path = tensor->path;
    return memo_error_set(error, MEMO_STATUS_FORMAT, "%.300s: tensor `%s`: %s", path,
                          gpt_show(name).text, fault);
}

static memo_status gpt_check_weight(const gpt_stored* stored, const gpt_parameter* p, int part,
                                    memo_error* error) {
    const gpt_weight_name name = gpt_weight_name_of(p, part);
    const gpt_stored_tensor* found = gpt_stored_find(stored, name.text);
    gpt_stored_tensor expected;
    char fault[160];
    float first;
    memset(&expected, 0, sizeof expected);
    gpt_weight_shape(p, &expected);
    if (!found) return gpt_weight_bad(stored, NULL, name.text, "missing", error);
    if (found->n_dims == expected.n_dims && found->n == expected.n &&
        !memcmp(found->dims, expected.dims, sizeof found->dims))
        return gpt_stored_read(found, 0, gpt_min(1, found->n), &first, error); /* its type */

    snprintf(fault, sizeof fault, "shape %lld x %lld; %s says %lld x %lld",
             (long long)found->dims[0], (long long)(found->n_dims > 1 ? found->dims[1] : 1),
             p->w < GPT_N_W ? "config.json" : "adapter_config.json", (long long)expected.dims[0],
             (long long)(expected.n_dims > 1 ? expected.dims[1] : 1));
    return gpt_weight_bad(stored, found, name.text, fault, error);
}

/* Files have frequencies of RoPE from earlier versions, and a copy of a tied table. */
static int gpt_is_ignored(const gpt_config* config, const char* name) {
    static const char frequencies[] = ".rotary_emb.inv_freq";
    const size_t n = strlen(name), n_end = sizeof frequencies - 1;
    return (n > n_end && !strcmp(name + n - n_end, frequencies)) ||
           (config->is_tied && !strcmp(name, gpt_weight_names[GPT_W_CLASSIFIER]));
}

/* Tensors of the file. */
static int64_t gpt_n_weights(const gpt_config* whole) {
    const int64_t n = gpt_n_parameter_tensors(whole);
    int64_t n_parts = 0;
    for (int64_t t = 0; t < n; t++) {
        const gpt_parameter p = gpt_parameter_at(whole, t);
        n_parts += gpt_weight_parts(&p);
    }
    return n_parts;
}

static int gpt_by_name(const void* a, const void* b) {
    return strcmp(((const gpt_weight_name*)a)->text, ((const gpt_weight_name*)b)->text);
}

memo_status gpt_check_weights(const gpt_config* config, const gpt_stored* stored,
                              memo_error* error) {
    const gpt_config whole = gpt_whole_config(config);
    const int64_t n = gpt_n_parameter_tensors(&whole);
    gpt_weight_name* names =
        (gpt_weight_name*)malloc((size_t)gpt_n_weights(&whole) * sizeof *names);
    int64_t n_names = 0;
    memo_status status = names ? MEMO_STATUS_OK : gpt_no_memory("the names of tensors", error);
    for (int64_t t = 0; t < n && !status; t++) {
        const gpt_parameter p = gpt_parameter_at(&whole, t);
        for (int part = 0; part < gpt_weight_parts(&p) && !status; part++) {
            status = gpt_check_weight(stored, &p, part, error);
            names[n_names++] = gpt_weight_name_of(&p, part);
        }
    }

    /* No others. */
    if (!status) qsort(names, (size_t)n_names, sizeof *names, gpt_by_name);
    for (int64_t i = 0; i < stored->n_tensors && !status; i++) {
        const gpt_stored_tensor* tensor = &stored->tensors[i];
        gpt_weight_name name;
        if (gpt_is_ignored(config, tensor->name)) continue;
        snprintf(name.text, sizeof name.text, "%s", tensor->name);
        if (strlen(tensor->name) >= sizeof name.text ||
            !bsearch(&name, names, (size_t)n_names, sizeof *names, gpt_by_name))
            status = gpt_weight_bad(stored, tensor, tensor->name,
                                    config->lora.rank
                                        ? "not one of the adapters that adapter_config.json states"
                                        : "not one of the model that config.json states",
                                    error);
    }
    free(names);
    return status;
}

/* Elements `rows` of the parameters, or of frozen weights, of a tensor, as numbers of a type. */
static memo_status gpt_read_weight(const gpt_model* model, const gpt_stored* stored,
                                   const gpt_parameter* p, gpt_rows rows, memo_type type, char* to,
                                   memo_error* error) {
    const gpt_stored_tensor* tensors[2] = {NULL, NULL}; /* of a matrix */
    const int n_turns = gpt_weight_turns(p);
    memo_status status = MEMO_STATUS_OK;
    int part, found = -1;
    int64_t at, n;
    for (int64_t i = rows.begin; i < rows.end && !status; i += n, to += n * memo_type_bytes(type)) {
        n = gpt_weight_run(p, model->share.tensor_rank, i - p->offset, rows.end - p->offset, &part,
                           &at);
        for (int turn = 0; turn < n_turns && found != part / n_turns; turn++)
            tensors[turn] = gpt_stored_find(
                stored, gpt_weight_name_of(p, part / n_turns * n_turns + turn).text);
        found = part / n_turns;
        status = gpt_stored_read_as(tensors[part % n_turns], at, n, type, to, error);
    }
    return status;
}

static memo_status gpt_load_weight(gpt_model* model, const gpt_stored* stored,
                                   const gpt_parameter* p, float* floats, uint16_t* rounded,
                                   memo_error* error) {
    const gpt_rows all = gpt_rows_make(p->offset, p->offset + p->n);
    const gpt_rows updated = gpt_updated_part(model, gpt_bucket_of(model, p->offset));
    const int has_masters = gpt_has_masters(&model->config),
              is_rounded = gpt_is_rounded(&model->config);
    GPT_EACH_PIECE(piece, all, GPT_FILE_PIECE / (int64_t)sizeof *floats) {
        const memo_status status =
            gpt_read_weight(model, stored, p, piece, MEMO_TYPE_F32, (char*)floats, error);
        if (status) return status;
        for (int64_t k = 0; k < gpt_count(piece) && is_rounded; k++)
            rounded[k] = memo_bf16_from_f32(floats[k]);
        gpt_copy_array(model, 1, GPT_WEIGHTS, piece, is_rounded ? (void*)rounded : (void*)floats);
        const gpt_rows kept = gpt_rows_in(piece, updated);
        if (has_masters && gpt_count(kept))
            gpt_copy_array(model, 1, GPT_MASTERS, kept, floats + (kept.begin - piece.begin));
        if (model->status) return gpt_finish(model, error);
    }
    return MEMO_STATUS_OK;
}

memo_status gpt_load_weights(gpt_model* model, const gpt_stored* stored, memo_error* error) {
    char* host = (char*)malloc(2 * GPT_FILE_PIECE);
    memo_status status = host ? MEMO_STATUS_OK : gpt_no_memory("weights of a file", error);
    model->status = MEMO_STATUS_OK;
    if (!status && gpt_sum_type(model->config.type) != MEMO_TYPE_F32)
        status = gpt_unsupported(error, "weights of a file are for models in f32 or bf16");
    for (int64_t t = 0; t < gpt_n_parameter_tensors(&model->config) && !status; t++) {
        const gpt_parameter p = gpt_parameter_at(&model->config, t);
        status = gpt_load_weight(model, stored, &p, (float*)(void*)host,
                                 (uint16_t*)(void*)(host + GPT_FILE_PIECE), error);
    }
    free(host);
    return status;
}

/* ---- frozen weights --------------------------------------------------------------------------- */

/* The first tensor of a bucket of a model without adapters. */
static int64_t gpt_base_tensor(const gpt_config* base, int64_t bucket) {
    return bucket == 0 ? 0
                       : gpt_min(gpt_n_layer_tensors(base) * (bucket - 1) + 1,
                                 gpt_n_parameter_tensors(base));
}

/* Tensors of a bucket follow each other, and zeros fill the gaps. */
static memo_status gpt_read_frozen(const gpt_model* model, int64_t bucket, gpt_rows rows, char* to,
                                   memo_error* error) {
    const gpt_config base = gpt_base_config(&model->config);
    const int64_t size = memo_type_bytes(base.type), end = gpt_base_tensor(&base, bucket + 1);
    int64_t at = rows.begin;
    memo_status status = MEMO_STATUS_OK;
    for (int64_t t = gpt_base_tensor(&base, bucket); t < end && !status; t++) {
        const gpt_parameter p = gpt_parameter_at(&base, t);
        const gpt_rows part = gpt_part_rows_of(rows, &p);
        if (!gpt_count(part)) continue;
        memset(to + (at - rows.begin) * size, 0, (size_t)((part.begin - at) * size));
        status = gpt_read_weight(model, model->frozen, &p, part, base.type,
                                 to + (part.begin - rows.begin) * size, error);
        at = part.end;
    }
    memset(to + (at - rows.begin) * size, 0, (size_t)((rows.end - at) * size));
    return status;
}

memo_status gpt_fetch_weights(void* user, int32_t layer, int32_t state, int64_t at, void* to,
                              int64_t n_bytes, memo_error* error) {
    const gpt_model* model = (const gpt_model*)user;
    const int64_t size = memo_type_bytes(model->config.type);
    const int64_t begin = gpt_base_bucket(model, layer + 1).begin + at / size;
    (void)state; /* the only one that is frozen */
    return gpt_read_frozen(model, layer + 1, gpt_rows_make(begin, begin + n_bytes / size),
                           (char*)to, error);
}

memo_status gpt_load_table(gpt_model* model, memo_error* error) {
    char* host = (char*)malloc(GPT_FILE_PIECE);
    const gpt_rows table = gpt_base_bucket(model, 0);
    memo_status status = host ? MEMO_STATUS_OK : gpt_no_memory("a table of a file", error);
    GPT_EACH_PIECE(piece, table, GPT_FILE_PIECE / memo_type_bytes(model->config.type)) {
        if (!status) status = gpt_read_frozen(model, 0, piece, host, error);
        if (status) break;
        gpt_copy_array(model, 1, GPT_FROZEN, piece, host);
        status = gpt_finish(model, error);
    }
    free(host);
    return status;
}

/* ---- writing -------------------------------------------------------------------------------- */

gpt_weight_files gpt_weight_files_of(const gpt_config* config) {
    static const gpt_weight_files of_model = {"model.safetensors", "config.json"},
                                  of_adapters = {"adapter_model.safetensors",
                                                 "adapter_config.json"};
    return config->lora.rank ? of_adapters : of_model;
}

/* Adapters are small, and kept with all their bits. */
static memo_type gpt_written_type(const gpt_config* config) {
    return config->lora.rank ? MEMO_TYPE_F32 : config->type;
}

/* The tensors of the file that a model makes, in the order of its own.  Freed with their names by
 * gpt_free_table.  NULL: no memory. */
static gpt_stored_tensor* gpt_weights_table(const gpt_config* config, int64_t* n_tensors) {
    const gpt_config whole = gpt_whole_config(config);
    const int64_t n = gpt_n_parameter_tensors(&whole);
    gpt_stored_tensor* table =
        (gpt_stored_tensor*)calloc((size_t)gpt_n_weights(&whole), sizeof *table);
    *n_tensors = 0;
    for (int64_t t = 0; t < n && table; t++) {
        const gpt_parameter p = gpt_parameter_at(&whole, t);
        for (int part = 0; part < gpt_weight_parts(&p); part++) {
            gpt_stored_tensor* tensor = &table[(*n_tensors)++];
            gpt_weight_shape(&p, tensor);
            tensor->name = strdup(gpt_weight_name_of(&p, part).text);
            snprintf(tensor->type, sizeof tensor->type,
                     gpt_written_type(config) == MEMO_TYPE_BF16 ? "BF16" : "F32");
            tensor->n_bytes = tensor->n * memo_type_bytes(gpt_written_type(config));
        }
    }
    return table;
}
static void gpt_free_table(gpt_stored_tensor* table, int64_t n) {
    for (int64_t i = 0; i < n && table; i++) free(table[i].name);
    free(table);
}

/* NULL: no memory. */
static char* gpt_weights_header(const gpt_config* config, int64_t* n_header, int64_t* n_bytes) {
    int64_t n;
    gpt_stored_tensor* table = gpt_weights_table(config, &n);
    int is_named = table != NULL;
    *n_bytes = *n_header = 0;
    for (int64_t i = 0; i < n && is_named; i++) {
        is_named = table[i].name != NULL;
        *n_bytes += table[i].n_bytes;
    }
    char* header = is_named ? gpt_stored_header(table, n, n_header) : NULL;
    *n_bytes += *n_header;
    gpt_free_table(table, n);
    return header;
}

int64_t gpt_weights_bytes(const gpt_config* config) {
    int64_t n_header, n_bytes;
    free(gpt_weights_header(config, &n_header, &n_bytes));
    return n_bytes;
}

/* Numbers of the file are little-endian. */
static void gpt_weights_order(char* bytes, int64_t n, int64_t element_bytes) {
    const uint16_t one = 1;
    char first;
    memcpy(&first, &one, 1);
    if (first) return;
    for (; n > 0; n--, bytes += element_bytes)
        for (int64_t i = 0; i < element_bytes / 2; i++) {
            const char kept = bytes[i];
            bytes[i] = bytes[element_bytes - 1 - i];
            bytes[element_bytes - 1 - i] = kept;
        }
}

/* This rank's part of a parameter, whose tensors, of n_bytes each, begin there in the file. */
static void gpt_save_weight(gpt_file* f, const gpt_parameter* p, int64_t begin, int64_t n_bytes) {
    gpt_model* model = f->model;
    const int64_t size = memo_type_bytes(gpt_written_type(&model->config));
    const int array = model->config.lora.rank ? gpt_full_weights(model) : GPT_WEIGHTS;
    const gpt_rows part_of_rank =
        gpt_part_at(model, gpt_bucket_of(model, p->offset), model->share.rank);
    const gpt_rows rows = gpt_part_rows_of(part_of_rank, p);
    int part;
    int64_t at, n;
    GPT_EACH_PIECE(piece, rows, GPT_FILE_PIECE / size) {
        char* host = f->host;
        gpt_copy_array(model, 0, array, piece, host);
        if (model->status && !f->status) f->status = gpt_finish(model, f->error);
        gpt_weights_order(host, gpt_count(piece), size);
        for (int64_t i = piece.begin; i < piece.end && !f->status; i += n, host += n * size) {
            n = gpt_weight_run(p, model->share.tensor_rank, i - p->offset, piece.end - p->offset,
                               &part, &at);
            gpt_file_transfer(f, 1, host, begin + part * n_bytes + at * size, n * size);
        }
    }
}

static void gpt_save_elements(gpt_file* f, int64_t n_header) {
    const gpt_config whole = gpt_whole_config(&f->model->config);
    int64_t at = n_header;
    for (int64_t t = 0; t < gpt_n_parameter_tensors(&whole) && !f->status; t++) {
        const gpt_parameter p = gpt_parameter_at(&f->model->config, t);
        const int64_t n_parts = gpt_weight_parts(&p);
        const int64_t n_bytes =
            gpt_parameter_at(&whole, t).n / n_parts * memo_type_bytes(gpt_written_type(&whole));
        /* Ranks with copies of the tensor leave it to the first of them. */
        if (f->model->share.tensor_rank < p.degree) gpt_save_weight(f, &p, at, n_bytes);
        at += n_parts * n_bytes;
    }
}

memo_status gpt_save_weights(gpt_model* model, const char* folder, const char* config_text,
                             int64_t aside, memo_error* error) {
    char paths[2][GPT_PATH_BYTES], asides[2][GPT_PATH_BYTES] = {"", ""};
    const int64_t n_text = (int64_t)strlen(config_text);
    int64_t n_header, n_bytes;
    char* header = gpt_weights_header(&model->config, &n_header, &n_bytes);
    gpt_file f, config;
    const gpt_weight_files names = gpt_weight_files_of(&model->config);
    snprintf(paths[0], sizeof paths[0], "%.*s/%s", GPT_PATH_BYTES - 100, folder, names.weights);
    snprintf(paths[1], sizeof paths[1], "%.*s/%s", GPT_PATH_BYTES - 100, folder, names.config);
    gpt_file_open(&f, model, paths[0], error);
    gpt_file_open(&config, model, paths[1], error);
    if (!header)
        gpt_file_refuse(&f, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no host memory for its header");

    /* Both aside. */
    if (!gpt_file_begin_aside(&f, aside, header, n_header, n_bytes, asides[0]))
        gpt_save_elements(&f, n_header);
    gpt_file_end_aside(&f);
    if (!f.status && !gpt_file_begin_aside(&config, aside, config_text, n_text, n_text, asides[1]))
        gpt_file_end_aside(&config);

    /* Both or none: a fault of one is a fault of the other. */
    if (config.status && !f.status) f.status = config.status;
    if (f.status && !config.status) config.status = f.status;
    gpt_file_rename(&config, asides[1]);
    if (config.status && !f.status) f.status = config.status;
    gpt_file_rename(&f, asides[0]);
    gpt_file_meet(&f);
    free(header);
    const memo_status of_config = gpt_file_close(&config);
    const memo_status of_weights = gpt_file_close(&f);
    return of_weights ? of_weights : of_config;
}
