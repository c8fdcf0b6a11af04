/* --- the blocks, run ---
 *
 * A trainer gives a function for each piece of a block and, once per pass, calls forward and backward, for the
 * stack or layer by layer; the helper calls them back in the schedule's order and puts collectives and event waits
 * between them.  Nothing waits on the host.
 *
 * What a block function computes, for part s, with y, g the part's output and gradient buffers and T ranks:
 *
 *   forward      input h_i: given (i = 0) or h_{i-1} + y, where y is the reduced output of the block before.
 *                Keeps h_i where call.keeps_input.  y = this rank's partial sum of the block's output.
 *   recompute    what backward needs and forward did not keep, from h_i (call.is_input_saved) or from h_{i-1} and y.
 *                y again where call.has_output; else its last product is not needed.
 *   backward     d_i, gradient of the block's output stream: given (last block) or d_{i+1} + g (g reduced, carried
 *                through the norm).  g = this rank's partial sum of the gradient of the block's input.
 *   weights      adds the gradients of this rank's weights.  Runs behind the collective of g: reads neither y nor g.
 *   forward_end  the stack's output, h_{K-1} + y; backward_end: the gradient of its input, d_0 + g.
 *
 * Parts come in a fixed order, the same in every order of the schedule: sums over parts have the same bits.  A
 * part's collective reads and writes its buffers, which are the trainer's.
 *
 * Scattered (Megatron's sequence parallelism): y and g are reduced and scattered, so that each rank has its share
 * of the rows, at y + rank * count / T; forward_rows and backward_rows carry them, on the comm stream, to the rows
 * of the next block, which are gathered. */

typedef struct memo_block_call {
    int32_t block, part;
    memo_stream stream;     /* enqueue there */
    int32_t is_input_saved; /* the input is there; 0: it is the one before plus y */
    int32_t keeps_input;    /* forward: recompute will find it saved */
    int32_t has_output;     /* somebody reads y */
} memo_block_call;

typedef memo_status (*memo_block_function)(void* context, const memo_block_call* call,
                                           memo_error* error);

typedef struct memo_block_functions {
    void* context;
    memo_block_function forward, recompute, backward;
    memo_block_function weights; /* NULL: backward does it */
    /* May be NULL; call.block is the last block, the first. */
    memo_block_function forward_end, backward_end;
    /* Scattered form only.  forward_rows: this rank's rows of the gathered input of call.block, at
     * inputs[block % blocks_per_layer] + rank * count / T, from the saved rows of its input or (not
     * is_input_saved) from those of the block before and y.  backward_rows: this rank's rows of d for call.block,
     * at gradients[block % 2] + rank * count / T, from the given gradient (last block) or from d of call.block + 1
     * and g. */
    memo_block_function forward_rows, backward_rows;
} memo_block_functions;

/* Buffers of one part, device memory, count elements each. */
typedef struct memo_block_buffers {
    void *output, *gradient; /* y and g */
    int64_t count;
    void* const* inputs; /* scattered: of each block of a layer */
    void* gradients[2];  /* scattered: of even and of odd blocks */
} memo_block_buffers;

typedef struct memo_blocks_desc {
    const memo_device* device;
    memo_stream compute_stream;
    memo_stream comm_stream; /* NULL: one of its own, of high priority */
    memo_comm* comm;         /* memo_mesh.tensor; used on the comm stream in between */
    memo_type type;
    /* Its times serve memo_blocks_get_schedule alone; weights_apart follows from the functions. */
    memo_blocks_schedule_desc schedule;
    const memo_block_buffers* buffers; /* (n_parts), copied */
    memo_block_functions functions;
} memo_blocks_desc;

typedef struct memo_blocks memo_blocks;

MEMO_API memo_blocks_desc memo_blocks_desc_default(void);
/* Every rank for itself.  Errors: INVALID_ARGUMENT (a function or buffer that is missing; scattered counts that the
 * ranks do not divide), OUT_OF_HOST_MEMORY, and the device's. */
MEMO_API memo_status memo_blocks_create(const memo_blocks_desc* desc, memo_blocks** blocks,
                                        memo_error* error);
/* Waits for both streams. */
MEMO_API void memo_blocks_destroy(memo_blocks* blocks);

/* One pass over all layers.  All ranks of comm call them, in the same order.  Behind them compute waits for all of
 * it. Errors: INVALID_STATE (a backward without forward), those of the functions, of comm and of the device. */
MEMO_API memo_status memo_blocks_forward(memo_blocks* blocks, memo_error* error);
MEMO_API memo_status memo_blocks_backward(memo_blocks* blocks, memo_error* error);
/* The same in pieces, so that the trainer can do something between layers (memo_swap_forward_begin and the like):
 * layers 0, 1, ..., then ..., 1, 0.  A forward of layer 0 always begins anew.  Errors: INVALID_STATE (order), as
 * above. */
MEMO_API memo_status memo_blocks_forward_layer(memo_blocks* blocks, int32_t layer,
                                               memo_error* error);
MEMO_API memo_status memo_blocks_backward_layer(memo_blocks* blocks, int32_t layer,
                                                memo_error* error);

/* What forward (is_backward 0) or backward enqueues; lent until destroy. */
MEMO_API const memo_schedule* memo_blocks_get_schedule(const memo_blocks* blocks,
                                                       int32_t is_backward);

/* --- degrees that differ from block to block ---
 *
 * Of a world's ranks, `degree` side by side share the blocks of that degree, and the rows of a batch: a larger
 * degree has fewer groups, with more rows each.  A run of blocks of one degree is one memo_blocks.  Where a larger
 * degree follows, each part's rows are gathered (across->all_gather, forward) and their gradients cut (backward);
 * where a smaller one follows, the other way round.  Cut: the rows of this rank begin at across->rank * n_rows /
 * across->size. */
typedef struct memo_degree_comms {
    int32_t degree;
    memo_comm* tensor; /* the ranks that share a block */
    memo_comm* data; /* those with the same share of it: gradients of weights are summed over it */
    /* Those that exchange rows with the degree that follows; NULL: none follows, or the same. */
    memo_comm* across;
} memo_degree_comms;

/* next_degree 0: none.  All ranks of world call it and wait for each other.  Errors: INVALID_ARGUMENT (degrees
 * that do not divide the world or each other), those of split. */
MEMO_API memo_status memo_degree_comms_create(memo_comm* world, int32_t degree, int32_t next_degree,
                                              memo_degree_comms* comms, memo_error* error);
MEMO_API void memo_degree_comms_destroy(memo_degree_comms* comms);

/* --- layers of a split model ---
 *
 * Column-parallel: each rank has some of the outputs; the input is whole.  Row-parallel: each has some of the
 * inputs and makes a partial sum of all outputs.  Attention and MLP are a column-parallel linear, what is local,
 * and a row-parallel one: one collective, the one that ends the block.  Only what the ranks must do together is
 * here; the products are the trainer's (or those for the host device below). */

/* Elements [begin, begin + count) of n on a rank; shares differ by one at most. */
typedef struct memo_share {
    int64_t begin, count;
} memo_share;
MEMO_API memo_share memo_share_of(int64_t n, int32_t size, int32_t rank);

/* Products of one linear layer, enqueued on stream: x (n_rows, n_in), weights (n_out, n_in), y (n_rows, n_out);
 * fp32. bias and d_bias (n_out) may be NULL.  d_weights and d_bias are added to, rows in order. */
typedef struct memo_linear_functions {
    void* context;
    memo_status (*forward)(void* context, memo_stream stream, const float* x, const float* weights,
                           const float* bias, float* y, int64_t n_rows, int64_t n_in, int64_t n_out,
                           memo_error* error);
    memo_status (*backward)(void* context, memo_stream stream, const float* d_y,
                            const float* weights, float* d_x, int64_t n_rows, int64_t n_in,
                            int64_t n_out, memo_error* error);
    memo_status (*weights)(void* context, memo_stream stream, const float* x, const float* d_y,
                           float* d_weights, float* d_bias, int64_t n_rows, int64_t n_in,
                           int64_t n_out, memo_error* error);
} memo_linear_functions;

typedef enum memo_linear_split { MEMO_LINEAR_COLUMN = 0, MEMO_LINEAR_ROW } memo_linear_split;

/* A rank's share; weights (n_out, n_in). */
typedef struct memo_linear {
    memo_linear_functions functions;
    memo_linear_split split;
    int32_t rank;        /* row-parallel: rank 0 adds the bias, so that the sum has it once */
    int64_t n_in, n_out; /* of this rank */
    const float *weights, *bias;
    float *d_weights, *d_bias; /* of a row-parallel bias all ranks have the whole gradient */
} memo_linear;

/* y, d_x: of a row-parallel (forward) or column-parallel layer (backward) a partial sum, to be reduced over the
 * ranks. */
MEMO_API memo_status memo_linear_forward(const memo_linear* linear, memo_stream stream,
                                         const float* x, float* y, int64_t n_rows,
                                         memo_error* error);
MEMO_API memo_status memo_linear_backward(const memo_linear* linear, memo_stream stream,
                                          const float* d_y, float* d_x, int64_t n_rows,
                                          memo_error* error);
MEMO_API memo_status memo_linear_weights(const memo_linear* linear, memo_stream stream,
                                         const float* x, const float* d_y, int64_t n_rows,
                                         memo_error* error);

#ifndef MEMO_NO_HOST_DEVICE
/* Plain loops on a host device. */
MEMO_API memo_linear_functions memo_host_linear_functions(memo_device* host_device);

/* A table of tokens split by rows; table (share.count, hidden), share = memo_share_of(vocabulary, ...).  forward:
 * out (n_rows, hidden) of all ranks, summed by comm on stream; backward adds to d_table, rows in order.  A token
 * outside the vocabulary gives zeros.  tokens stay until the stream has passed.  All ranks call forward; host
 * device, fp32. */
MEMO_API memo_status memo_host_embedding_forward(memo_device* host_device, memo_comm* comm,
                                                 memo_stream stream, const float* table,
                                                 memo_share share, const int32_t* tokens,
                                                 int64_t n_rows, int64_t hidden, float* out,
                                                 memo_error* error);
MEMO_API memo_status memo_host_embedding_backward(memo_device* host_device, memo_stream stream,
                                                  float* d_table, memo_share share,
                                                  const int32_t* tokens, int64_t n_rows,
                                                  int64_t hidden, const float* d_out,
                                                  memo_error* error);

/* Cross-entropy over logits split by columns: logits (n_rows, share.count) become their gradients, times scale.
 * losses (n_rows), the same on all ranks; 0 where the label is outside [0, vocabulary).  scratch (3 n_rows).  Two
 * messages, of n_rows and 2 n_rows numbers, on stream instead of the logits.  All ranks call it; host device,
 * fp32. */
MEMO_API memo_status memo_host_cross_entropy(memo_device* host_device, memo_comm* comm,
                                             memo_stream stream, float* logits, memo_share share,
                                             int64_t vocabulary, const int32_t* labels,
                                             int64_t n_rows, float scale, float* losses,
                                             float* scratch, memo_error* error);
#endif
