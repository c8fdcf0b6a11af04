/* ---- 8 overlapped tensor-parallel blocks --------------------------------------------------------------
 *
 * A model split by tensor parallelism is a row of blocks (attention, MLP, attention, ...), each of which ends with
 * a collective: in the forward pass the sum of its partial outputs, in the backward pass that of its partial input
 * gradients.  Where a batch is cut into parts, the collective of one part runs behind the computation of another
 * (Oases paper, section 3).
 *
 * --- the schedules ---
 *
 *   default    every operation waits for the one before (Megatron)
 *   pipelined  the parts overlap inside each pass; a layer is recomputed whole before its backward (Merak)
 *   cross      the passes of recomputation and backward overlap too (cross-pass)
 *   fine       recomputation begins behind each collective of the forward, so that it needs none itself (cross-pass
 *              with fine-grained recomputation); the input of every block is saved instead of that of every layer
 *
 * Forward, pipelined is that of the last three.  A collective starts right behind the input gradient, and the
 * weight gradient runs behind it.
 *
 * With splits_sequence the parts are ranges of one sequence, in its order, and the first block of each layer is
 * attention: its forward of a part reads keys and values of those before it, and its backward of a part adds to
 * their gradients.  So the backward takes the last part first, and attention is recomputed for all parts before
 * the first of them goes backward. */

typedef enum memo_blocks_order {
    MEMO_BLOCKS_DEFAULT = 0,
    MEMO_BLOCKS_PIPELINED,
    MEMO_BLOCKS_CROSS,
    MEMO_BLOCKS_FINE
} memo_blocks_order;
MEMO_API const char* memo_blocks_order_name(memo_blocks_order order); /* "fine"; never NULL */

/* Of one part of one block; the paper's F, R, B and C. */
typedef struct memo_block_times {
    double forward_s;
    double recompute_s; /* without the last product where nobody reads it */
    double backward_s;  /* of input and weights; with weights_apart, of the input */
    double weights_s;   /* with weights_apart */
    double reduce_s;    /* the all-reduce, or the reduce-scatter */
    double gather_s;    /* the all-gather, with what happens to the rows between the two */
} memo_block_times;

typedef struct memo_blocks_schedule_desc {
    memo_blocks_order order;
    int32_t n_blocks;         /* K */
    int32_t blocks_per_layer; /* 0: 2 */
    int32_t n_parts;          /* sub-batches; 0: 2 */
    int32_t splits_sequence;
    int32_t
        weights_apart; /* the weight gradient is an operation of its own, behind the collective */
    /* The reduce-scatter and all-gather form: between blocks each rank has its share of the rows.  The gather
     * before a recomputation remains. */
    int32_t is_scattered;
    const memo_block_times* times; /* (n_blocks, n_parts); NULL: all 0 */
} memo_blocks_schedule_desc;

MEMO_API memo_blocks_schedule_desc memo_blocks_schedule_desc_default(void);

/* Appended to schedule: streams "compute" and "comm" (new where it has none of that name), what runs on them in
 * the order of one pass over all blocks, and the bytes it touches, one for each tensor (block inputs, activations,
 * partial sums, gradients, of each part), so that memo_schedule_check proves the waits.  Names: F1a, R1a, B1a, W1a
 * (weights) of block 1, part a; cF1a and so on are the collectives behind them, G1a a gather; end-a is where the
 * trainer takes over.
 * Errors: INVALID_ARGUMENT (no block; n_blocks not a multiple of blocks_per_layer; a time that is negative or no
 * number; more than 1000 parts), OUT_OF_HOST_MEMORY (the schedule then holds a part of the pass). */
MEMO_API memo_status memo_blocks_forward_schedule(const memo_blocks_schedule_desc* desc,
                                                  memo_schedule* schedule, memo_error* error);
MEMO_API memo_status memo_blocks_backward_schedule(const memo_blocks_schedule_desc* desc,
                                                   memo_schedule* schedule, memo_error* error);

/* What splitting costs, from a profile. */
typedef struct memo_blocks_overhead {
    double operation_s;  /* of each computation, whatever its size: launch, idle tail */
    double collective_s; /* of each collective: see memo_blocks_latency */
} memo_blocks_overhead;

/* What a collective of no bytes would take, from n measured ones: where the least-squares line meets 0; never
 * below 0.  Fewer than two sizes: 0. */
MEMO_API double memo_blocks_latency(const int64_t* message_bytes, const double* measured_s,
                                    int32_t n);

/* In how many parts, of 1, 2, 4, ... up to max_parts, forward and backward together take the least time; 1 where
 * messages are too small to gain.  desc->times are those of the whole batch (n_blocks); a part takes the overhead
 * and its share of the rest.  Of equal times the fewest parts.  desc->n_parts is not read.  makespan_s may be
 * NULL.  Errors: as above. */
MEMO_API memo_status memo_blocks_best_parts(const memo_blocks_schedule_desc* desc,
                                            const memo_blocks_overhead* overhead, int32_t max_parts,
                                            int32_t* n_parts, double* makespan_s,
                                            memo_error* error);
