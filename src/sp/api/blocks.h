#pragma once
/* ---- 8 overlapped tensor-parallel blocks --------------------------------------------------------
 *
 * A model split by tensor parallelism is a sequence of blocks (attention, MLP, attention, ...).
 * Each block ends with a collective.  The collective sums the ranks' partial outputs in forward,
 * and the partial input gradients in backward.  If a batch is cut into parts (sub-batches), the
 * collective of a part overlaps the computation of another (Oases paper, section 3).
 *
 * --- the schedules ---
 *
 *   default    every operation waits for the previous operation (Megatron)
 *   pipelined  parts overlap within each pass; a whole layer is recomputed before its backward
 *              (Merak)
 *   cross      recomputation and backward overlap too (cross-pass)
 *   fine       recomputation starts after each collective of forward, and so needs none itself
 *              (cross-pass with fine-grained recomputation); the input of every block is saved,
 *              not only that of every layer
 *
 * The last three share the pipelined forward.  A collective starts right after the input gradient;
 * the weight gradient overlaps it.
 *
 * With splits_sequence the parts are consecutive ranges of a sequence, and the first block of each
 * layer is attention.  Its forward of a part reads the keys and values of earlier parts; its
 * backward of a part adds to their gradients.  So backward processes the last part first, and
 * attention is recomputed for all parts before the first backward. */

typedef enum memo_blocks_order {
    MEMO_BLOCKS_DEFAULT = 0,
    MEMO_BLOCKS_PIPELINED,
    MEMO_BLOCKS_CROSS,
    MEMO_BLOCKS_FINE,
    MEMO_N_BLOCKS_ORDERS
} memo_blocks_order;
MEMO_API const char* memo_blocks_order_name(memo_blocks_order order); /* "fine"; never NULL */

typedef struct memo_blocks_schedule_desc {
    memo_blocks_order order;
    int32_t n_blocks;         /* K: whole layers; n_blocks * n_parts is at most 2^20 */
    int32_t blocks_per_layer; /* 0: 2 */
    int32_t n_parts;          /* 0: 2 */
    int32_t splits_sequence;
} memo_blocks_schedule_desc;

/* --- running the blocks ---
 *
 * The trainer supplies a function for each piece of a block.  Once per pass the trainer calls
 * forward and backward, for all layers or layer by layer.  memo_blocks calls the functions in the
 * order of the schedule, and enqueues collectives and event waits between them.  Nothing waits on
 * the host.
 *
 * The functions compute, for part s, with the part's output buffer y and gradient buffer g:
 *
 *   forward      y = this rank's partial sum of the block's output.  The input h_i is given (i = 0)
 *                or h_{i-1} + y, with y the reduced output of the previous block.  Keeps h_i if
 *                call.keeps_input.
 *   recompute    what backward needs and forward did not keep, from h_i (call.is_input_saved) or
 *                from h_{i-1} and y.  If call.has_output, computes y again; otherwise may skip
 *                the last product.
 *   backward     g = this rank's partial sum of the gradient of the block's input.  The gradient
 *                d_i of the block's output stream is given (last block) or d_{i+1} + g (g reduced,
 *                and carried through the norm).
 *   weights      adds the gradients of this rank's weights.  Overlaps the collective of g, and
 *                must read neither y nor g.
 *   forward_end  the output of the last block, h_{K-1} + y.
 *   backward_end the gradient of the first block's input, d_0 + g.
 *
 * Parts run in the same sequence in every order of the schedule, so sums over parts have the same
 * bits.  The collective of a part reads and writes the trainer's buffers. */

typedef struct memo_block_call {
    int32_t block, part;
    memo_stream stream;     /* enqueue here */
    int32_t is_input_saved; /* 1: the input is saved; 0: previous block's input plus y */
    int32_t keeps_input;    /* forward: recompute reads the saved input */
    int32_t has_output;     /* 1: compute y, which is summed over the ranks */
} memo_block_call;

typedef memo_status (*memo_block_function)(void* context, const memo_block_call* call,
                                           memo_error* error);

typedef struct memo_block_functions {
    void* context;
    memo_block_function forward, recompute, backward;
    memo_block_function weights; /* NULL: backward computes these */
    /* Optional; call.block is the last block (forward_end) or the first (backward_end). */
    memo_block_function forward_end, backward_end;
} memo_block_functions;

/* The buffers of a part, in device memory, count elements each. */
typedef struct memo_block_buffers {
    void *output, *gradient; /* y and g */
    int64_t count;
} memo_block_buffers;

typedef struct memo_blocks_desc {
    const memo_device* device;
    memo_stream compute_stream;
    memo_comm* comm; /* memo_mesh.tensor; the passes use comm on a stream of high priority */
    memo_type type;
    memo_blocks_schedule_desc schedule;
    const memo_block_buffers* buffers; /* (n_parts), copied */
    memo_block_functions functions;
} memo_blocks_desc;

typedef struct memo_blocks memo_blocks;

/* Each rank calls this independently. */
MEMO_TRY memo_status memo_blocks_create(const memo_blocks_desc* desc, memo_blocks** blocks,
                                        memo_error* error);
MEMO_API void memo_blocks_destroy(memo_blocks* blocks);

/* Enqueue a layer, so that the trainer can act between layers (memo_swap_forward_begin and others),
 * or with MEMO_ALL_LAYERS a pass over all.  Call forward for layers 0, 1, ..., then backward for
 * ..., 1, 0.  After a pass the compute stream waits for all of it.  A forward of layer 0 always
 * starts a new pass.  Several passes of forward may come before as many of backward, for slices of
 * a micro-batch.  INVALID_STATE: out of order. */
#define MEMO_ALL_LAYERS (-1)
MEMO_TRY memo_status memo_blocks_forward(memo_blocks* blocks, int32_t layer, memo_error* error);
MEMO_TRY memo_status memo_blocks_backward(memo_blocks* blocks, int32_t layer, memo_error* error);

/* Elements [begin, begin + count) of n on a rank.  Counts of two ranks differ by at most 1. */
typedef struct memo_share {
    int64_t begin, count;
} memo_share;
MEMO_API memo_share memo_share_of(int64_t n, int32_t size, int32_t rank);
