#pragma once
#include "sp/target.h"
/* ---- >>loss -------------------------------------------------------------------------------------
 * Knows: shares, row kernels, one all-gather.  Knows nothing of attention or of matrix products.
 *
 * 1. A tile has rows, and its buffers hold them. */

#define MEMOI_LOSS_TILE_BYTES ((int64_t)64 << 20)

struct memo_loss {
    memo_loss_desc desc;
    memo_loss_sizes sizes;
    memoi_target target;
    char* logits;
    float *parts, *losses;
};

/* Buffers of one tile.  Returns their bytes. */
MEMOI int64_t memoi_loss_carve(memo_loss* loss, char* base) {
    const int64_t n_ranks = loss->desc.tensor ? loss->desc.tensor->size : 1;
    const int64_t rows = loss->sizes.tile_rows, n_parts = rows * n_ranks * MEMO_LOSS_NUMBERS;
    memoi_carver carver = {base, 0};
    loss->logits =
        memoi_carve(&carver, rows * loss->sizes.n_columns * memo_type_bytes(loss->desc.type));
    loss->parts = (float*)memoi_carve(&carver, n_parts * 4);
    loss->losses = (float*)memoi_carve(&carver, rows * 4);
    return carver.n_bytes;
}

memo_status memo_loss_desc_get_sizes(const memo_loss_desc* desc, memo_loss_sizes* sizes,
                                     memo_error* error) {
    MEMOB_REFUSE_NULL(error, "desc", desc);
    MEMOB_REFUSE_NULL(error, "sizes", sizes);
    static const char name[] = "memo_loss_desc";
    int32_t n_ranks = desc->tensor ? desc->tensor->size : 1;
    int32_t rank = desc->tensor ? desc->tensor->rank : 0;
    int64_t row_bytes;
    memo_share share;
    memo_loss loss;
    memset(sizes, 0, sizeof *sizes);
    if (MEMOI_INTEGER(name, desc, vocabulary, 1, INT32_MAX) ||
        MEMOI_INTEGER(name, desc, tile_rows, 0, 1 << 28) ||
        MEMOI_REAL(name, desc, softcap, 0, 3e38) ||
        memoi_check_row_type(name, "type", desc->type, error))
        return MEMO_STATUS_INVALID_ARGUMENT;

    /* Rank 0 has the largest share, so all ranks find the same tile. */
    row_bytes = memo_share_of(desc->vocabulary, n_ranks, 0).count * memo_type_bytes(desc->type);
    row_bytes = memob_max(row_bytes, (int64_t)n_ranks * MEMO_LOSS_NUMBERS * 4);
    sizes->tile_rows = desc->tile_rows;
    if (!sizes->tile_rows) sizes->tile_rows = memob_max(MEMOI_LOSS_TILE_BYTES / row_bytes, 1);
    share = memo_share_of(desc->vocabulary, n_ranks, rank);
    sizes->first_column = share.begin;
    sizes->n_columns = share.count;
    sizes->sent_bytes_per_row = MEMO_LOSS_NUMBERS * 4 * ((int64_t)n_ranks - 1);
    loss.desc = *desc;
    loss.sizes = *sizes;
    sizes->device_bytes = memoi_loss_carve(&loss, NULL);
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_loss_prepare(memo_loss* loss, const memo_loss_desc* desc,
                                     memo_error* error) {
    static const char name[] = "memo_loss_desc";
    memo_status status = memo_loss_desc_get_sizes(desc, &loss->sizes, error);
    if (status || MEMOI_GIVEN(name, desc, device) || MEMOI_GIVEN(name, desc, stream) ||
        MEMOI_GIVEN(name, desc, functions.logits) ||
        memoi_check_memory(name, desc->device_memory, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    status = memoi_check_row_kernels(desc->device, error);
    if (status) return status;
    loss->desc = *desc;
    loss->target.device = desc->device;
    loss->target.streams[MEMOI_TARGET_COMPUTE] = desc->stream;
    if (!desc->device_memory)
        status =
            memo_device_alloc(desc->device, loss->sizes.device_bytes, &loss->target.memory, error);
    memoi_loss_carve(loss,
                     (char*)(loss->target.memory ? loss->target.memory : desc->device_memory));
    return status;
}

MEMOI_TARGET_OBJECT(loss, "a loss in tiles")

/* What tensor ranks must agree on. */
static const char* const memoi_loss_fields[MEMO_LABEL_FIELDS] = {
    "memo_loss_run on one rank, another pass on another",
    "memo_loss_desc: vocabulary, type, tile_rows or softcap", "memo_loss_tensors: n_rows or scale"};

MEMOI memo_status memoi_loss_tile_run(memo_loss* loss, const memo_loss_tensors* tensors,
                                      const memo_loss_tile* tile, const memo_label* agreed,
                                      memo_error* error) {
    const memo_loss_functions* functions = &loss->desc.functions;
    const memo_device* device = loss->desc.device;
    memo_comm* tensor = loss->desc.tensor;
    memo_cross_entropy_desc entropy = MEMO_ZERO(memo_cross_entropy_desc);
    memo_status status = functions->logits(functions->context, tile, error);
    entropy.logits = tile->logits;
    entropy.d_logits = tensors->scale != 0 ? tile->logits : NULL;
    entropy.labels = tensors->labels + tile->first_row;
    entropy.parts = loss->parts;
    entropy.losses = tensors->losses ? tensors->losses + tile->first_row : loss->losses;
    entropy.sums = tensors->sums;
    entropy.type = loss->desc.type;
    entropy.n_parts = tensor ? tensor->size : 1;
    entropy.part = tensor ? tensor->rank : 0;
    entropy.scale = tensors->scale;
    entropy.softcap = loss->desc.softcap;
    entropy.vocabulary = loss->desc.vocabulary;
    entropy.n_rows = tile->n_rows;
    entropy.n_columns = tile->n_columns;
    entropy.first_column = tile->first_column;
    if (!status) status = memo_row_softmax_parts(device, tile->stream, &entropy, error);

    /* In place: this rank's part is where the gather puts it. */
    if (!status && entropy.n_parts > 1) {
        int64_t count = tile->n_rows * MEMO_LOSS_NUMBERS;
        memoi_comm_label(tensor, agreed, !tile->first_row, "loss", tile->first_row);
        status = memo_all_gather(tensor, tile->stream, loss->parts + entropy.part * count,
                                 loss->parts, count, MEMO_TYPE_F32, error);
    }
    if (!status) status = memo_row_cross_entropy(device, tile->stream, &entropy, error);
    if (!status && tensors->sums)
        status = memo_row_loss_sums(device, tile->stream, &entropy, error);
    if (!status && tensors->scale != 0)
        status = functions->gradients(functions->context, tile, error);
    return status;
}

memo_status memo_loss_run(memo_loss* loss, const memo_loss_tensors* tensors, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "loss", loss);
    MEMOB_REFUSE_NULL(error, "tensors", tensors);
    const memo_loss_desc* d = &loss->desc;
    const int64_t sizes[] = {d->vocabulary, d->type, loss->sizes.tile_rows};
    memo_label agreed = MEMO_ZERO(memo_label);
    memo_status status = MEMO_STATUS_OK;
    memo_loss_tile tile;
    if (MEMOI_INTEGER("memo_loss_tensors", tensors, n_rows, 0, MEMOB_BYTES_MAX) ||
        (tensors->n_rows && MEMOI_GIVEN("memo_loss_tensors", tensors, labels)) ||
        (tensors->scale != 0 && MEMOI_GIVEN("memo_loss_desc", d, functions.gradients)))
        return MEMO_STATUS_INVALID_ARGUMENT;
    agreed.fields = memoi_loss_fields;
    memoi_label_add(&agreed, 0, "loss", 4);
    memoi_label_add(&agreed, 1, sizes, sizeof sizes);
    memoi_label_add(&agreed, 1, &d->softcap, sizeof d->softcap);
    memoi_label_add_number(&agreed, 2, tensors->n_rows);
    memoi_label_add(&agreed, 2, &tensors->scale, sizeof tensors->scale);

    tile.stream = d->stream;
    tile.first_column = loss->sizes.first_column;
    tile.n_columns = loss->sizes.n_columns;
    tile.logits = loss->logits;
    for (tile.first_row = 0; tile.first_row < tensors->n_rows && !status;
         tile.first_row += tile.n_rows) {
        tile.n_rows = memob_min(tensors->n_rows - tile.first_row, loss->sizes.tile_rows);
        MEMO_ASSERT(tile.n_rows > 0 && tile.n_rows <= loss->sizes.tile_rows); /* 1 */
        status = memoi_loss_tile_run(loss, tensors, &tile, &agreed, error);
    }
    return status;
}

memo_status memo_loss_read(const memo_loss* loss, const double* sums, double* mean,
                           memo_error* error) {
    MEMOB_REFUSE_NULL(error, "loss", loss);
    MEMOB_REFUSE_NULL(error, "sums", sums);
    MEMOB_REFUSE_NULL(error, "mean", mean);
    const memo_device* device = loss->desc.device;
    double numbers[3] = {0, 0, 0};
    memo_status status = memo_copy(device, loss->desc.stream, MEMO_COPY_TO_HOST, numbers, sums,
                                   sizeof numbers, error);
    if (!status) status = memo_stream_synchronize(device, loss->desc.stream, error);
    *mean = numbers[1] > 0 ? numbers[0] / numbers[1] : 0;
    if (status || numbers[2] == 0) return status;
    return MEMOI_REFUSE("memo_loss_tensors.labels: %.0f at or beyond the vocabulary; 0 to %lld are "
                        "valid, and below 0 for no loss",
                        numbers[2], (long long)loss->desc.vocabulary - 1);
}
