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
 * Kinds.  Layers may differ: local and global attention, dense layers before experts.  layer_kinds
 * gives each layer a kind, tensor_kinds tells which kinds have a tensor.  The tensors that only
 * some kinds have share an area instead of a region each: an even layer's tensors lie at the
 * bottom, swapped rows first, an odd layer's tensors at the top, swapped rows last.  B is the bytes
 * of a layer's tensors there, R the part beyond the swapped rows.  The area takes the largest B +
 * B' - min(R, R') of an even and an odd layer that follow each other there.
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
 * So rows come back only after they have left: the compute stream orders both.  Rows of an EDGE,
 * late rows and the file wait by the same rule: an operation waits for the latest operation of each
 * other stream that touches its rows, if either writes them, unless other waits imply that.  If a
 * wait is left out, memo_schedule_check finds a race.  A table of rows, kinds of layers, an order
 * or a short last slice may make a wait redundant: the engine compares rows, not bytes.
 *
 * Between begin and end.  The forward writes the layer's rows; the backward may overwrite all rows.
 * A kernel may work on two layers: the next layer may begin before this layer ends (in the
 * backward: layer i-1 before layer i ends).  At most two layers are open; layers end in the order
 * of their begins.  Recomputed rows of all layers share bytes, so writing a tensor of the next
 * layer overwrites the recomputed rows of the same tensor in this layer, and the recomputed rows of
 * all tensors that only some kinds have.
 *
 * Slices.  A layer may be computed in n_slices slices of its rows, one after the other, so that
 * only LAYER items take more device memory for more rows.  A *step* is a slice of a layer: step i
 * computes slice s = i % n_slices, the rows from s * n_rows on, of layer i / n_slices.  "Layer"
 * then means step in this chapter and in every call; n_layers counts steps.  Backwards go from the
 * last step to the first, and one step is open at a time.  Items are of a slice, except with these
 * scopes:
 *
 *   LAYER   rows of all slices at one address, in a region of even and a region of odd layers.
 *           Slice s writes its rows, counted from the layer's row 0, and reads earlier rows.  Rows
 *           leave with their slice, and stay on the device until the layer two later needs the
 *           region.  In the backward slice s no longer needs the rows of later slices; the rows of
 *           slice s make room for the layer two before.  These rows never spill.
 *   EDGE    two places of a slice, of even and odd steps.  A step finds there what the layer before
 *           left for the slice, and updates the rows.  In the first layer the trainer writes them.
 *           In the backward the last layer finds the output there, for the loss; other layers find
 *           the gradient.  Between two layers the rows wait on the host, as do the last outputs.
 *   INPUT   The host stores the rows once: the rows that EDGE leaves come back as INPUT.  If
 *           layers spill, INPUT is stored like other rows.
 *   CARRIED row_bytes of each step, however few rows the step computes.  The forward copies the
 *           state there with which the slice begins; the backward finds this copy.  The state, and
 *           in the backward the gradient, pass from slice to slice in a buffer of the trainer.
 *           Without slices a layer is a single slice.
 *
 * With T = layer_rows and R = n_rows, device memory is what R rows without slices take, + T for
 * each layer that keeps a LAYER item + 2 T if some layers do not (T if these are all even or all
 * odd) + 2 R for an EDGE, times row_bytes.  Host memory is the sum over steps + T for each layer
 * but the last two of a LAYER item + T for an EDGE.
 *
 * Groups.  With n_group above 1 the slices of a layer are those of n_group micro-batches, one
 * behind the other, each of layer_rows tokens: LAYER items, and the rows of a step, count in a
 * micro-batch.  So what moves with a layer moves once a group.
 *
 * In flight.  A stage of a pipeline runs forwards of later micro-batches before the backward of an
 * earlier micro-batch: 1F1B, or any other order.  n_places is the most that are in flight at once.
 * A *step* is a layer of a place: step = place * n + layer, with n layers; "layer" then means step
 * in this chapter and in every call, and n_layers counts steps.  `order` lists turns: p for the
 * forwards of the layers of place p, first to last, and -1 - p for the backwards, last to first.
 * Calls follow the order, which begins again after its last turn.
 *
 *     int32_t order[] = {0, 1, -1, 0, -2, 1, -1, -2};   // 1F1B of four micro-batches, two places
 *     desc.n_places = 2;  desc.order = order;  desc.n_order = 8;
 *     desc.n_layers = 2 * n;
 *
 * Even and odd steps are those whose place + layer is even or odd, and "i-2" is the visit before,
 * forward or backward, of another step in the same part.  A step whose backward is the next visit
 * of its part is not moved.  Memory is as above, summed over the steps of all places.  One step is
 * open at a time.  Slices, LATE_ROWS and a file do not work with an order.
 *
 * Rows known late.  How many rows the experts of a layer get is known only when its forward has
 * routed them: then the trainer calls memo_swap_set_routed.  Items with LATE_ROWS have that many
 * rows in that step, at most W = routed_rows_layer, in all steps together at most
 * A = routed_rows_all.  Of n such steps, each with A / n rows, a plan keeps the rows of k.  On the
 * device the item has a stack for these k A / n rows, and behind the stack a scratch of W rows.
 *
 * Rows of a step begin where rows of the step before end, at most at the end of the stack.  Rows in
 * the scratch are the surplus, except in the last step.  The surplus of a MOVE item moves to the
 * host and comes back; the surplus of a ROWS item is recomputed.  So steps with more rows than
 * A / n take more time, but no more memory, and the bits are the same.  With k = n there is no
 * scratch, and never a surplus.  A table of rows gives k: the number of steps that keep the item,
 * whichever they are.  The surplus never spills, and one layer is open at a time.
 *
 * Third tier: a file.  If host memory has room for only h of the moved layers, the last h stay
 * there; the others spill to a file and come back, during the computation, on the engine's file
 * stream.  The file is unnamed, and removed on every exit path.  All its bytes are reserved at
 * creation, so a full disk is an error before the first step.  Reads and writes bypass the page
 * cache if the file system allows it; otherwise their pages are dropped, so that they take no other
 * host memory.  Each read or write is one operation, by device->launch_host.  If it fails, the
 * device has failed (chapter 4): the next call and synchronization return IO.  On CUDA, discard
 * what was computed from the missing rows; other devices skip that work. */

/* How the rows of an item may leave the device, and come back.  A planner may also keep the rows in
 * any layer. */
enum {
    MEMO_KEEP = 0, /* they stay on the device in every layer */
    MEMO_MOVE,     /* all rows are swapped: they cannot be recomputed */
    MEMO_ROWS,     /* a fraction alpha of the rows is swapped, the others are recomputed */
    MEMO_WHOLE,    /* all rows are swapped, or all are recomputed; alpha swaps them.  For items that
                      are expensive to recompute (attention), or whose rows are not tokens */
    MEMO_WITH      /* as the last item before it that is not WITH, whose recomputation also makes
                      this item (a norm its rstd, attention its LSE): both have the same rows */
};

/* Whose the rows are, see Slices. */
enum {
    MEMO_SLICE = 0, /* of a layer's slice; without slices of the layer */
    MEMO_LAYER,     /* later slices of the layer read them: keys and values.  ROWS and WHOLE are
                       recomputed only if there is one slice */
    MEMO_EDGE,      /* handed on: each layer updates the rows in place.  The hidden state; in the
                       backward, its gradient.  MOVE, and at most one.  Without slices it lies at
                       one address in all layers and does not move */
    MEMO_INPUT,     /* the bytes of EDGE when the layer's forward begins, which the trainer copies.
                       MOVE or KEEP, and at most one */
    MEMO_CARRIED    /* the state of a recurrence when the slice begins, which the trainer copies.
                       MOVE or KEEP.  row_bytes counts the bytes of a slice */
};

/* Bits of memo_item.is. */
enum {
    MEMO_LATE_ROWS = 1 /* as many rows as the trainer says, see Rows known late */
};

/* Bytes that the forward of a layer leaves for its backward: a skeletal tensor.  If its rows are
 * not tokens, as in (3, B, NH, T, HS), it must be WHOLE, MOVE or KEEP, and n_rows * row_bytes must
 * be its size. */
typedef struct memo_item {
    const char* name;  /* no blanks */
    int64_t row_bytes; /* 0: the item is absent; CARRIED: of all rows together */
    int32_t away;      /* KEEP, MOVE, ROWS, WHOLE or WITH */
    int32_t scope;     /* SLICE, LAYER, EDGE, INPUT or CARRIED; of WITH: 0 */
    /* 0, or LATE_ROWS for rows that an expert gets: MOVE or ROWS, SLICE; all such items have the
     * same kinds. */
    int32_t is;
} memo_item;

/* An item of its first two to five fields.  No compiler warns of the missing fields. */
#define MEMO_ITEM(...) MEMOI_ITEM(__VA_ARGS__, 0, 0, 0, 0)
#define MEMOI_ITEM(name, row_bytes, away, scope, is, ...)                                          \
    { name, row_bytes, away, scope, is }

#define MEMO_ROWS_KEPT (-1) /* in a table of rows: the layer keeps the tensor */

typedef struct memo_swap_desc {
    const memo_device* device; /* may be NULL unless an engine is created */
    memo_stream compute_stream;
    /* 1: the calling thread computes, and compute_stream is not used.  Begin calls then return when
     * the layer's rows are on the device; end calls mean that the layer is computed. */
    int32_t computes_on_host;
    const memo_item* tensors; /* copied */
    int32_t n_tensors;
    int32_t n_layers;   /* with slices: steps, n_slices for each layer */
    int32_t n_slices;   /* of a layer; 0: 1 */
    int32_t n_group;    /* micro-batches that these slices are of, see Groups; 0: 1 */
    int64_t layer_rows; /* most tokens of all slices of a micro-batch in a layer; 0: of n_rows */
    int64_t routed_rows_layer, routed_rows_all; /* most late rows in a step, in all */
    int32_t n_places; /* of micro-batches in flight, see In flight; without an order 0: 1 */
    /* (n_order), copied: p: forwards of place p, -1 - p: its backwards.  NULL: {0, -1}. */
    const int32_t* order;
    int32_t n_order;
    const int32_t* layer_kinds; /* (n_layers), copied: 0 to 31; NULL: all layers are of kind 0 */
    /* (n_tensors), copied.  Bit k: layers of kind k have the tensor; 0, or NULL: all layers. */
    const uint32_t* tensor_kinds;
    int64_t n_rows;    /* most tokens of a micro-batch; with slices: of a slice */
    int64_t tile_rows; /* the last tile may be short, but not of a slice; 0: 1 */
    double alpha;      /* in [0, 1]; rounded to tiles */
    /* (n_layers, n_tensors), copied: how many rows are swapped, the first ones in even layers, the
     * last ones in odd layers; the others are recomputed.  MEMO_ROWS_KEPT: neither.  The border
     * between swapped and recomputed rows must be a multiple of tile_rows.  Cells of tensors that
     * a layer lacks have no meaning.  NULL: use alpha. */
    const int64_t* rows;
    int32_t is_timed;    /* measure stalls with events */
    void* device_memory; /* memo_swap_sizes.device_bytes, 512-aligned; NULL: from the device */
    void* host_memory;   /* memo_swap_sizes.host_bytes, pinned; NULL: from the device */
    /* The third tier.  Places for layers in host memory; 0: one for each moved layer. */
    int32_t n_host_layers;
    const char* spill_directory; /* of the file; may be NULL if no layer is spilled */
    double spill_bytes_per_s;    /* limit of reads and writes; 0: none */
    const char* desc_name;       /* of the fields' owner, in messages; NULL: "memo_swap_desc" */
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
    int32_t n_spilled_layers;    /* swapped layers that spill to the file */
    int64_t spill_bytes;         /* of the file; written once a micro-batch, read at least once */
} memo_swap_sizes;

typedef struct memo_swap_stats {
    int64_t to_host_bytes, to_device_bytes; /* enqueued so far */
    int64_t to_file_bytes, from_file_bytes; /* likewise */
    /* The compute stream waited so long in the last micro-batch; is_timed only.  In a session
     * without the waits for states, which come first and may end those for rows. */
    double forward_stall_s, backward_stall_s;
} memo_swap_stats;

typedef struct memo_swap memo_swap;

/* Fills a table of rows (n_layers, n_tensors) from desc->alpha.  Errors: INVALID_ARGUMENT. */
MEMO_TRY memo_status memo_swap_desc_fill_rows(const memo_swap_desc* desc, int64_t* rows,
                                              memo_error* error);
/* Errors: INVALID_ARGUMENT, also if the rows of all layers exceed 2^58 bytes;
 * OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_swap_desc_get_sizes(const memo_swap_desc* desc, memo_swap_sizes* sizes,
                                              memo_error* error);
/* Sets desc->n_host_layers to the number of places that fit into host_bytes; 0: all layers fit.
 * Errors: INVALID_ARGUMENT, OUT_OF_HOST_MEMORY (not one fits). */
MEMO_TRY memo_status memo_swap_desc_fit_host(memo_swap_desc* desc, int64_t host_bytes,
                                             memo_error* error);
/* Errors: INVALID_ARGUMENT, OUT_OF_DEVICE_MEMORY, OUT_OF_HOST_MEMORY, the device's; IO (no file in
 * spill_directory, no room for it, or its trial failed); UNSUPPORTED (layers spill, but the device
 * has no launch_host). */
MEMO_TRY memo_status memo_swap_create(const memo_swap_desc* desc, memo_swap** swap,
                                      memo_error* error);
/* Waits for the streams of copies.  Synchronize the compute stream first. */
MEMO_API void memo_swap_destroy(memo_swap* swap);

/* Sets the rows of the next micro-batches, at most desc->n_rows (with slices: layer_rows): only
 * these are moved and recomputed; files still move whole layers.  Slices may be empty; call begin
 * and end for them too.  is_forward_only: no backward follows, and only EDGE rows are moved.
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
/* Sets the rows of LATE_ROWS in the step whose forward is open, at most once
 * and before their addresses are used; without this call there are none.  One layer may be open.
 * Errors: INVALID_ARGUMENT (above routed_rows_layer, or so far above routed_rows_all),
 * INVALID_STATE. */
MEMO_TRY memo_status memo_swap_set_routed(memo_swap* swap, int32_t layer, int64_t n_rows,
                                          memo_error* error);
/* Ends a forward without a backward, or abandons a step: forward_begin(0) comes next.  The compute
 * stream waits for all copies, reads and writes in flight.  These waits may be redundant, but after
 * a failed call no other wait may cover its copies.  Errors: the device's. */
MEMO_TRY memo_status memo_swap_abandon(memo_swap* swap, memo_error* error);

/* Address of the tensor's row 0 in this layer; rows are contiguous.  It never changes, but for
 * LATE_ROWS in each micro-batch.  NULL: the layer lacks the tensor, or has no routed rows.
 * layer and tensor are asserted. */
MEMO_API void* memo_swap_get_address(const memo_swap* swap, int32_t layer, int32_t tensor);
/* Rows [begin, end) of tensor that the trainer must recompute before the backward of layer.  If no
 * rows are recomputed, begin and end are the number of rows of the layer, or of the slice.  Rows
 * that no later layer overwrites are not recomputed, so the last layer recomputes nothing. */
MEMO_API void memo_swap_get_recompute_rows(const memo_swap* swap, int32_t layer, int32_t tensor,
                                           int64_t* begin, int64_t* end);
MEMO_API void memo_swap_get_sizes(const memo_swap* swap, memo_swap_sizes* sizes);
/* Synchronize first to read stall times.  Errors: the device's. */
MEMO_TRY memo_status memo_swap_get_stats(memo_swap* swap, memo_swap_stats* stats,
                                         memo_error* error);
