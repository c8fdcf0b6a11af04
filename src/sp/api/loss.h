#pragma once
/* ---- 9 loss in tiles: classifier and cross-entropy without the logits of all rows ---------------
 *
 * The logits of a long sequence are larger than all activations.  So the classifier runs on tiles
 * of rows: logits of a tile, the loss, the gradient in the same memory, and the products of that
 * gradient.  Logits exist for a single tile at a time.
 *
 * Tensor ranks may split the vocabulary: rank r has the columns memo_share_of(vocabulary, size, r).
 * Each rank has all rows of x.  An all-gather of 12 bytes per row and rank (parts of the softmax,
 * memo_cross_entropy_desc) gives all ranks bitwise the same losses of the whole vocabulary.
 *
 * The matrix products are the trainer's (BLAS, cuBLASLt): functions.logits sets t->logits to rows
 * of x times W^T, and functions.gradients reads the logits' gradient there: d_x rows = t->logits
 * times W, d_W += t->logits^T times x rows.  After each micro-batch, or several, add tensors.sums
 * over memo_mesh.gradient (3 numbers, F64), and call memo_loss_read.
 *
 * For multi-token prediction run the loss once for each head, with labels from
 * memo_sharding_labels.  A whole example is examples/17_loss_in_tiles.c. */

/* Rows [first_row, first_row + n_rows) and this rank's columns. */
typedef struct memo_loss_tile {
    memo_stream stream; /* enqueue here */
    int64_t first_row, n_rows;
    int64_t first_column, n_columns; /* of the vocabulary; n_columns may be 0 */
    void* logits;                    /* (n_rows, n_columns) in desc.type; later their gradient */
} memo_loss_tile;

typedef struct memo_loss_functions {
    void* context;
    memo_status (*logits)(void* context, const memo_loss_tile* tile, memo_error* error);
    /* With tensor ranks d_x is a partial sum; reduce d_x over the ranks, here or after the run.
     * Optional if every run has scale 0. */
    memo_status (*gradients)(void* context, const memo_loss_tile* tile, memo_error* error);
} memo_loss_functions;

typedef struct memo_loss_desc {
    const memo_device* device; /* optional for get_sizes */
    memo_stream stream;
    memo_comm* tensor; /* NULL: a single rank has the whole vocabulary */
    int64_t vocabulary;
    memo_type type; /* of logits: F32, BF16, F16 */
    float softcap;  /* memo_cross_entropy_desc; 0: none */
    /* 0: as many as 64 MiB hold of logits, or of the parts that ranks exchange; at least 1. */
    int64_t tile_rows;
    memo_loss_functions functions;
    /* memo_loss_sizes.device_bytes, aligned to 512; NULL: allocated from the device. */
    void* device_memory;
} memo_loss_desc;

typedef struct memo_loss_sizes {
    int64_t device_bytes; /* logits, parts and losses of a tile */
    int64_t tile_rows;    /* the same on all tensor ranks */
    int64_t first_column, n_columns;
    int64_t sent_bytes_per_row; /* to other tensor ranks: 12 (size - 1) */
} memo_loss_sizes;

/* In device memory. */
typedef struct memo_loss_tensors {
    int64_t n_rows;
    const int32_t* labels; /* (n_rows), below vocabulary; below 0: no loss and no gradient */
    float* losses;         /* (n_rows), in nats; optional */
    /* (3): adds the losses, the number of labels, and that of labels at or beyond the vocabulary,
     * which only the device sees.  The loss of such a row is NaN, its gradient 0.  Optional. */
    double* sums;
    /* The gradient of each label's loss: usually 1 / number of labels of all ranks.  0: only the
     * loss; functions.gradients is not called. */
    float scale;
} memo_loss_tensors;

typedef struct memo_loss memo_loss;

MEMO_TRY memo_status memo_loss_desc_get_sizes(const memo_loss_desc* desc, memo_loss_sizes* sizes,
                                              memo_error* error);
/* Each rank calls this independently.  UNSUPPORTED: the device has no row kernels. */
MEMO_TRY memo_status memo_loss_create(const memo_loss_desc* desc, memo_loss** loss,
                                      memo_error* error);
MEMO_API void memo_loss_destroy(memo_loss* loss);
/* A pass of all tiles, with the same n_rows, labels and scale on all tensor ranks. */
MEMO_TRY memo_status memo_loss_run(memo_loss* loss, const memo_loss_tensors* tensors,
                                   memo_error* error);
/* Reads sums, of this rank or added over ranks, and waits for the desc's stream.  mean: the loss
 * per label; 0 without labels.  INVALID_ARGUMENT: a label is at or beyond the vocabulary. */
MEMO_TRY memo_status memo_loss_read(const memo_loss* loss, const double* sums, double* mean,
                                    memo_error* error);
