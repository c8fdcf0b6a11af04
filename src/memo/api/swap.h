#pragma once
/* ---- 7 swap engine: two rounding buffers --------------------------------------------------------
 *
 * A skeletal tensor is a table with one row per token.  The trainer describes its tensors once, and
 * calls the engine before and after each layer.  The engine gives each tensor of each layer one
 * address, moves rows to pinned host memory while the device computes, and brings them back in time
 * (MEMO paper, section 4.1).  The trainer recomputes the other rows before the backward.
 *
 *     memo_item tensors[] = {MEMO_ITEM("input", 2 * h, MEMO_MOVE),
 *                            MEMO_ITEM("gelu", 8 * h, MEMO_ROWS)};
 *     memo_swap_desc desc = {0};
 *     desc.device = device;  desc.compute_stream = stream;
 *     desc.tensors = tensors;  desc.n_tensors = 2;
 *     desc.n_layers = 32;  desc.n_rows = 65536;  desc.tile_rows = 256;  desc.alpha = 0.5;
 *     memo_swap_create(&desc, &swap, &error);
 *
 *     memo_swap_forward_begin(swap, layer, &error);
 *     ... enqueue kernels on memo_swap_get_address(swap, layer, tensor) ...
 *     memo_swap_forward_end(swap, layer, &error);
 *
 * Addresses.  A tensor has one region on the device, whose rows lie in this order:
 *
 *     rows that even layers swap | rows that are recomputed | rows that odd layers swap
 *
 * Even layers swap their first rows and odd layers their last, so the rows of each layer are
 * contiguous and a kernel takes one pointer.  All layers share the middle part.  Even layers use
 * the first part in turn, odd layers the last part: the paper's two rounding buffers.  A tensor
 * that a layer keeps has its own place.  Addresses are multiples of 512.
 *
 * Device memory: for each tensor, the rows of the three parts (of each, the most that any layer
 * needs), and n_rows for each layer that keeps the tensor.  Each of the three parts, and each layer
 * that keeps the tensor, is rounded up to 512 bytes.  For a GPT layer of 16 b s h elements, of
 * which alpha splits 14, this is (18 + 14 alpha) b s h; the paper's buffers take 32 b s h.
 *
 * The engine makes four waits per layer.  "Layer i-2" is the latest layer before i that swaps rows
 * in the same part.  The last layer in each part is not moved.
 *
 *   forward_begin(i)   compute    waits for  rows of i-2 on the host
 *                                            (else: overwritten before they left)
 *   forward_end(i)     to host    waits for  forward of i
 *                                            (else: copied before they were computed)
 *   backward_begin(i)  compute    waits for  rows of i on the device
 *                                            (else: read before they arrived)
 *   backward_end(i)    to device  waits for  backward of i
 *                                            (else: overwritten while in use)
 *
 * So rows come back only after they have left: the compute stream orders both.  If a wait is left
 * out, memo_schedule_check finds a race.  A table of rows may make a wait redundant.
 *
 * Between begin and end.  The forward writes the layer's rows; the backward may overwrite all rows.
 * A kernel may work on two layers: the next layer may begin before this layer ends (in the
 * backward: layer i-1 before layer i ends).  At most two layers are open; layers end in the order
 * of their begins.  Recomputed rows of all layers share bytes, so writing a tensor of the next
 * layer overwrites the recomputed rows of the same tensor in this layer.
 *
 * A session (memo_plan.h, chapter 4) computes layers in slices, several micro-batches at a time or
 * in flight, layers of several kinds, and rows whose number is known late; and it spills to a
 * file. */

/* How the rows of an item may leave the device, and come back.  A planner may also keep the rows in
 * any layer. */
enum {
    MEMO_KEEP = 0, /* they stay on the device in every layer */
    MEMO_MOVE,     /* all rows are swapped: they cannot be recomputed */
    MEMO_ROWS,     /* a fraction alpha of the rows is swapped, the others are recomputed */
    MEMO_WHOLE,    /* all rows are swapped, or all are recomputed; alpha swaps them.  For items that
                      are expensive to recompute (attention), or whose rows are not tokens */
    MEMO_WITH,     /* as the last item before it that is not WITH, whose recomputation also makes
                      this item (a norm its rstd, attention its LSE): both have the same rows */
    MEMO_N_AWAYS
};

/* Whose the rows are; all but SLICE are of sessions: memo_plan.h, chapter 4, Slices. */
enum {
    MEMO_SLICE = 0, /* of a layer's slice; without slices of the layer */
    MEMO_LAYER,     /* later slices of the layer read them: keys and values.  ROWS and WHOLE are
                       recomputed only if there is one slice */
    MEMO_EDGE,      /* handed on: each layer updates the rows in place.  The hidden state; in the
                       backward, its gradient.  MOVE, and at most one.  Without slices it lies at
                       one address in all layers and does not move, unless `loss` needs it in an
                       order: memo_plan.h, chapter 4, In flight */
    MEMO_INPUT,     /* the bytes of EDGE when the layer's forward begins, which the trainer copies.
                       MOVE or KEEP, and at most one */
    MEMO_CARRIED,   /* the state of a recurrence when the slice begins, which the trainer copies.
                       MOVE or KEEP.  row_bytes counts the bytes of a slice */
    MEMO_N_SCOPES
};

/* Bits of memo_item.is. */
enum {
    MEMO_LATE_ROWS = 1,  /* as many rows as the trainer says: memo_plan.h, chapter 4, Late rows */
    MEMO_BY_BACKWARD = 2 /* of sessions: the backward itself recomputes rows of the item, those of
                            memo_swap_get_recompute_rows, in an order of its own.  `recompute` is
                            called for the item only in steps that are timed, for all rows.  Items
                            that `recompute` makes from the item have the bit, too */
};

/* Bytes that the forward of a layer leaves for its backward: a skeletal tensor.  If its rows are
 * not tokens, as in (3, B, NH, T, HS), it must be WHOLE, MOVE or KEEP, and n_rows * row_bytes must
 * be its size. */
typedef struct memo_item {
    const char* name;  /* no blanks */
    int64_t row_bytes; /* 0: the item is absent; CARRIED: of all rows together */
    int32_t away;      /* KEEP, MOVE, ROWS, WHOLE or WITH */
    int32_t scope;     /* SLICE, LAYER, EDGE, INPUT or CARRIED; of WITH: 0 */
    /* Sum of bits; of WITH: 0.  LATE_ROWS for rows that an expert gets: MOVE or ROWS, SLICE; all
     * such items have the same kinds.  BY_BACKWARD: ROWS or WHOLE. */
    int32_t is;
    uint32_t kinds; /* bit k: layers of kind k have the item; 0: all layers; of WITH: as the item
                       before */
} memo_item;

/* An item of its first two to six fields.  No compiler warns of the missing fields. */
#define MEMO_ITEM(...) MEMOI_ITEM(__VA_ARGS__, 0, 0, 0, 0, 0)
#define MEMOI_ITEM(name, row_bytes, away, scope, is, kinds, ...)                                   \
    { name, row_bytes, away, scope, is, kinds }

#define MEMO_ROWS_KEPT (-1) /* in a table of rows: the layer keeps the tensor */

typedef struct memo_swap_desc {
    const memo_device* device; /* may be NULL unless an engine is created */
    memo_stream compute_stream;
    /* 1: the calling thread computes, and compute_stream is not used.  Begin calls then return when
     * the layer's rows are on the device; end calls mean that the layer is computed. */
    int32_t computes_on_host;
    const memo_item* tensors; /* copied */
    int32_t n_tensors;
    int32_t n_layers;
    int64_t n_rows;    /* most tokens of a micro-batch */
    int64_t tile_rows; /* the last tile may be short; 0: 1 */
    double alpha;      /* in [0, 1]; rounded to tiles */
    /* (n_layers, n_tensors), copied: how many rows are swapped, the first ones in even layers, the
     * last ones in odd layers; the others are recomputed.  MEMO_ROWS_KEPT: neither.  The border
     * between swapped and recomputed rows must be a multiple of tile_rows.  Cells of tensors that a
     * layer lacks have no meaning.  NULL: use alpha. */
    const int64_t* rows;
    int32_t is_timed;    /* measure stalls with events */
    void* device_memory; /* memo_swap_sizes.device_bytes, 512-aligned; NULL: from the device */
    void* host_memory;   /* memo_swap_sizes.host_bytes, pinned; NULL: from the device */

    /* Fields of sessions, 0 in a caller's own desc.  With them n_layers counts steps, and n_rows
     * the rows of a slice: see >>swap places. */
    int32_t n_slices;   /* of a layer; 0: 1 */
    int32_t n_group;    /* micro-batches that these slices are of; 0: 1 */
    int64_t layer_rows; /* most tokens of all slices of a micro-batch; 0: of n_rows */
    int64_t routed_rows_layer, routed_rows_all; /* most late rows in a step, in all */
    int32_t n_places;     /* of micro-batches in flight; without an order 0: 1 */
    const int32_t* order; /* (n_order), copied: p: forwards of place p, -1 - p: its backwards */
    int32_t n_order;
    int32_t has_loss;           /* the last layer's backward begins with the loss, as in a group */
    const int32_t* layer_kinds; /* (n_layers), copied: 0 to 31; NULL: all layers are of kind 0 */
    /* Places for layers in host memory; 0: one for each moved layer.  If there are fewer, the last
     * two (or the only one) are windows: layers without a place go through these to the file. */
    int32_t n_host_layers;
    const char* spill_directory; /* of the file; may be NULL if no layer is spilled */
    double spill_bytes_per_s;    /* limit of reads and writes; 0: none */
    const char* desc_name;       /* of the fields' owner, in messages; NULL: "memo_swap_desc" */
    /* (n_order), copied.  1: a turn of the last chunk, whose backward begins with the loss; 0, or
     * without has_loss: its backward begins with a gradient that the trainer writes into the EDGE.
     * NULL: all are 1. */
    const int32_t* ends;
} memo_swap_desc;

/* Exact sizes, before anything is allocated. */
typedef struct memo_swap_sizes {
    double alpha; /* rounded to tiles; 0 with a table of rows */
    int64_t device_bytes;
    int64_t host_bytes;          /* pinned */
    int64_t layer_swapped_bytes; /* moved each way by the layer that moves most */
    int64_t layer_bytes;         /* skeletal bytes of the largest layer */
    int32_t n_swapped_layers;    /* layers whose rows are moved */
    int64_t swapped_bytes;       /* moved each way by all layers of a micro-batch */
    /* In sessions: swapped layers with a home in the file; bytes of the file.  A layer is written
     * once a micro-batch, and read at least once, unless it comes back from its window before
     * another layer uses the window. */
    int32_t n_spilled_layers;
    int64_t spill_bytes;
} memo_swap_sizes;

typedef struct memo_swap_stats {
    int64_t to_host_bytes, to_device_bytes; /* enqueued so far */
    int64_t to_file_bytes, from_file_bytes; /* likewise; of sessions */
    /* The compute stream waited so long in the last micro-batch; is_timed only.  In a session for
     * rows and states of the layers. */
    double forward_stall_s, backward_stall_s;
} memo_swap_stats;

typedef struct memo_swap memo_swap;

/* Errors: INVALID_ARGUMENT, also if the rows of all layers exceed 2^58 bytes;
 * OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_swap_desc_get_sizes(const memo_swap_desc* desc, memo_swap_sizes* sizes,
                                              memo_error* error);
/* Errors: INVALID_ARGUMENT, OUT_OF_DEVICE_MEMORY, OUT_OF_HOST_MEMORY, the device's. */
MEMO_TRY memo_status memo_swap_create(const memo_swap_desc* desc, memo_swap** swap,
                                      memo_error* error);
/* Waits for the streams of copies.  Synchronize the compute stream first. */
MEMO_API void memo_swap_destroy(memo_swap* swap);

/* Sets the rows of the next micro-batches, at most desc->n_rows: only these are moved and
 * recomputed.  is_forward_only: no backward follows, and nothing is moved.
 * Errors: INVALID_ARGUMENT; INVALID_STATE (a micro-batch is open). */
MEMO_TRY memo_status memo_swap_set_rows(memo_swap* swap, int64_t n_rows, int is_forward_only,
                                        memo_error* error);

/* Call begin and end around each layer, and enqueue its work on the compute stream in between:
 * forwards in order 0, 1, ..., n-1, then backwards in reverse, then the next micro-batch.
 * Errors: INVALID_STATE (wrong order), the device's. */
MEMO_TRY memo_status memo_swap_forward_begin(memo_swap* swap, int32_t layer, memo_error* error);
MEMO_TRY memo_status memo_swap_forward_end(memo_swap* swap, int32_t layer, memo_error* error);
MEMO_TRY memo_status memo_swap_backward_begin(memo_swap* swap, int32_t layer, memo_error* error);
MEMO_TRY memo_status memo_swap_backward_end(memo_swap* swap, int32_t layer, memo_error* error);
/* Ends a forward without a backward, or abandons a step: forward_begin(0) comes next.  The compute
 * stream waits for all copies in flight.  These waits may be redundant, but after a failed call no
 * other wait may cover its copies.  Errors: the device's. */
MEMO_TRY memo_status memo_swap_abandon(memo_swap* swap, memo_error* error);

/* Address of the tensor's row 0 in this layer; rows are contiguous.  It never changes.  layer and
 * tensor are asserted. */
MEMO_API void* memo_swap_get_address(const memo_swap* swap, int32_t layer, int32_t tensor);
/* Rows [begin, end) of tensor that the trainer must recompute before the backward of layer.  If no
 * rows are recomputed, begin and end are the number of rows of the layer.  Rows that no later layer
 * overwrites are not recomputed, so the last layer recomputes nothing. */
MEMO_API void memo_swap_get_recompute_rows(const memo_swap* swap, int32_t layer, int32_t tensor,
                                           int64_t* begin, int64_t* end);
/* Synchronize first to read stall times.  Errors: the device's. */
MEMO_TRY memo_status memo_swap_get_stats(memo_swap* swap, memo_swap_stats* stats,
                                         memo_error* error);
