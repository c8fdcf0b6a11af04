/* memo_layout.h - which parallel layout of a model on which cluster; a degree for every block.
 *
 * memo_plan.h plans how a rank runs a step.  This header stands beside a trainer: it predicts
 * memory and time of every layout of a model on a cluster, and chooses a tensor-parallel degree for
 * every block.  No other header of memo includes this header, and a trainer need not link it.
 *
 * In exactly one translation unit, which contains memo.h's implementation:
 *
 *     #define MEMO_IMPLEMENTATION
 *     #define MEMO_SP_IMPLEMENTATION
 *     #define MEMO_LAYOUT_IMPLEMENTATION
 *     #include "extras/memo_layout.h"            // cc -std=c99 -I. ... -lpthread -lm
 *
 * EXAMPLE: the fastest layout of a model on two nodes of eight GPUs.
 *
 *     int main(void) {
 *         memo_parallel_desc desc = {0};
 *         memo_parallel_list* list;
 *         memo_error error;
 *         memo_status status;
 *         desc.model.n_layers = 32;                        // Llama 3 8B
 *         desc.model.hidden = 4096;
 *         desc.model.ffn = 14336;
 *         desc.model.n_q_heads = 32;
 *         desc.model.n_kv_heads = 8;
 *         desc.model.vocabulary = 128256;
 *         desc.sequence = 65536;
 *         desc.cluster.n_gpus = 16;
 *         desc.cluster.gpus_per_node = 8;
 *         desc.cluster.device_bytes = (int64_t)80 << 30;
 *         desc.cluster.peak_flops_per_s = 989e12;
 *         desc.cluster.link_bytes_per_s = 337e9;
 *         desc.cluster.nic_bytes_per_s = 40e9;
 *         status = memo_plan_layouts(&desc, &list, &error);
 *         if (status) fprintf(stderr, "%s\n", error.message);
 *         if (!status && list->n_fitting > 0) {
 *             const memo_parallel_entry* best = &list->entries[0];
 *             const memo_parallel_layout* l = &best->layout;
 *             printf("data %d, pipeline %d, tensor %d, ring %d, ulysses %d: %.3f s\n", l->data,
 *                    l->pipeline, l->tensor, l->ring, l->ulysses, best->prediction.time.step_s);
 *         }
 *         memo_parallel_list_destroy(list);
 *         return status != MEMO_STATUS_OK;
 *     }
 *
 * The tools examples/tools/layout_plan.c and degrees_plan.c print both.
 *
 * CHAPTERS
 *   1 layouts  memo_plan_layouts   data x pipeline x tensor x ring x ulysses: memory and time
 *   2 degrees  memo_degrees_solve  a tensor-parallel degree for every block; files of degrees
 * The implementation begins with a table of its rooms and the words to search for.
 *
 * License: MIT.  Language: C99 that is also C++11. */
#ifndef MEMO_LAYOUT_H
#define MEMO_LAYOUT_H

#include "memo_sp.h"

#if MEMO_VERSION_MAJOR != 0 || MEMO_VERSION_MINOR != 5
#error "memo_layout.h: memo.h is of another release; use the memo.h of the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1 layouts: data x pipeline x tensor x ring x ulysses ---------------------------------------
 *
 * Predicts memory, sent bytes and step time of every parallel layout of a model on a cluster.  A
 * layout that is not legal is listed with the reason.
 *
 * This is a cost model, not a measurement: products and attention run at a stated rate, collectives
 * at a stated bandwidth.  S: tokens of a sequence.  h: hidden size.  G: query heads of a key/value
 * head.  P: parameters without the embedding (P_local: all of a rank).  T, U, R: tensor, ulysses
 * and ring degrees.  "bytes" are those that a rank sends in one collective or hop, without its
 * start.
 *
 *   term             time                                                   counted per
 *   products         6 P S flops / (peak * gemm_efficiency), in whole       sequence
 *                    waves of tiles, or their bytes / memory bandwidth
 *   row kernels      bytes of norms, residuals, rotations and activations   layer, forward; twice
 *                    / memory bandwidth                                     backward
 *   attention        2 S^2 h flops / (peak * its efficiency), half of the   layer, forward
 *                    scores because the mask is causal; 5 S^2 h             layer, backward
 *   ring             max(block, hop), block_s and one merge; dK and dV of   ring step
 *                    a step go to their owner behind the next step, those
 *                    of the last step after it
 *   ulysses, tensor  4 (bytes / bandwidth + collective_s); with groups of   layer and pass
 *                    heads, what the attention of other groups does not
 *                    hide; with tensor_copies also these, read and written
 *   ZeRO             bytes / bandwidth; a group with only some GPUs of a    memo_parallel_kind
 *                    node has one NIC
 *   bubble           each other stage once, as much longer or shorter as    step
 *                    its layers and classifier, / chunks
 *
 * Work is divided by the number of ranks that share it.  If values have a head size of their own,
 * the size applies to a forward product of attention of two, and to two of five backward products.
 *
 * Sources: "A Unified Sequence Parallelism Approach for Long Context Generative AI" (section 4,
 * Table 2; "tip" below is one of its seven), fitted to its Tables 3 to 6 by `make papers`.  A rank
 * sends the same bytes as in memo_sp.h with saved q, k and v (sends_again 0), if the heads and the
 * sequence divide.  Swapping follows the MEMO paper's alpha.  `layout_plan --published` compares
 * runs that no constant was fitted to.  Not counted: padding of lengths that do not divide, except
 * in the buffers of attention, and a layer's transients. */

/* A decoder of identical layers: attention, MLP. */
typedef struct memo_parallel_model {
    int32_t n_layers, hidden;
    int32_t ffn; /* columns of the MLP; 0: no MLP */
    int32_t n_q_heads, n_kv_heads;
    int32_t head_size;      /* of queries and keys; 0: hidden / n_q_heads */
    int32_t v_head_size;    /* of values and output; 0: head_size */
    int32_t n_ffn_matrices; /* 3: gate, up, down (also 0); 2: up, down */
    int32_t is_tied;        /* embedding and classifier share a matrix */
    int64_t vocabulary;     /* 0: no embedding and no classifier */
    /* The MLP is one of so many experts, of which a token takes n_active_experts (0: 1); 0: one
     * MLP.  Tokens are spread evenly. */
    int32_t n_experts, n_active_experts;
    /* Elements of a latent row from which keys and values are expanded where they are read, and
     * which travels instead of them; 0: keys and values travel. */
    int32_t latent_size;
} memo_parallel_model;

typedef struct memo_parallel_cluster {
    int32_t n_gpus, gpus_per_node;
    int32_t is_shared_bus; /* PCIe: the n - 1 flows of an all-to-all share one link */
    int64_t device_bytes;  /* of a GPU, available to the step */
    double peak_flops_per_s;
    /* Fractions of the peak that matrix products and attention reach; 0: 0.75, 0.6, 0.55 */
    double gemm_efficiency, attention_forward_efficiency, attention_backward_efficiency;
    double link_bytes_per_s; /* of a GPU inside a node, each way */
    double nic_bytes_per_s;  /* of a GPU between nodes, each way */
    /* Multiprocessors of a GPU.  0: products of every shape reach gemm_efficiency, and row kernels
     * and the optimizer take no time on the device. */
    int32_t n_processors;
    double device_memory_bytes_per_s; /* 0: merges of ring blocks and row kernels cost no time */
    double collective_s;              /* start of a collective or hop */
    double block_s;                   /* start of a block of ring attention */
    double merge_bytes;               /* moved for each element by a block's merge; 0: 30 */
    /* Bytes that row kernels move, of those that fused kernels move; 0: 1.  A framework that runs
     * each operation by itself moves about 1.8 times as many. */
    double row_traffic;
    /* Copies of the whole tensor beside each collective of tensor parallelism; 0: none.  Torch's
     * functional collectives along the sequence of (batch, sequence, hidden) make one. */
    double tensor_copies;
    /* Standard deviation of the GPUs' speed, of its mean: ranks wait for each other, so a step
     * takes as long as the slowest of n_gpus needs; 0: all are equally fast. */
    double speed_deviation;
    int64_t host_bytes;      /* pinned, of a node; 0: no swapping */
    double host_bytes_per_s; /* of a GPU, each way; 0: no swapping */
} memo_parallel_cluster;

typedef enum memo_parallel_activations {
    MEMO_PARALLEL_KEEP = 0,  /* all activations stay on the device */
    MEMO_PARALLEL_RECOMPUTE, /* only layer inputs stay; each layer's forward runs again */
    /* The layer's input, the output of attention and half of the other rows stay; row kernels and
     * every second product run again. */
    MEMO_PARALLEL_SELECTIVE,
    /* MEMO: alpha of the rows go to the host; other rows are recomputed, except for attention. */
    MEMO_PARALLEL_SWAP,
    MEMO_PARALLEL_OFFLOAD, /* as RECOMPUTE, and the layer inputs go to the host */
    MEMO_PARALLEL_N_ACTIVATIONS
} memo_parallel_activations;

typedef struct memo_parallel_layout {
    int32_t data, pipeline, tensor, ring, ulysses; /* their product is the number of GPUs */
    int32_t zero_stage; /* 0; 1 shards the optimizer, 2 gradients too, 3 parameters too */
    memo_parallel_activations activations;
    /* Interleaved pipeline (Narayanan et al. 2021, section 2.2.2): each stage has as many chunks of
     * the layers, in turn with the other stages, and the bubble is as many times shorter; 0: 1. */
    int32_t chunks;
    /* Ranks of data x ring x ulysses that share the experts, each with whole experts; 0: 1. */
    int32_t experts;
} memo_parallel_layout;

typedef struct memo_parallel_desc {
    memo_parallel_model model;
    memo_parallel_cluster cluster;
    int64_t sequence;       /* tokens of a sequence, S */
    int64_t global_batch;   /* sequences of a step; 0: 1 */
    int64_t micro_batch;    /* sequences at a time on each replica; 0: 1 */
    double element_bytes;   /* of activations and working parameters; 0: 2, bf16 */
    double gradient_bytes;  /* of a parameter's gradient; 0: 4 */
    double optimizer_bytes; /* of a parameter; 0: 12, fp32 parameters and two moments */
    double logit_bytes;     /* of a logit with its gradient; 0: 6 */
    /* Bytes of the logits of a tile of rows, if the loss is computed in tiles, as memo_loss in
     * memo_sp.h does; at least one row's are counted.  0: logits of all rows exist at once. */
    double loss_tile_bytes;
    /* Bytes of the MLP's columns of a tile of rows, if recomputed layers compute the MLP in tiles.
     * 0: columns of all rows exist at once. */
    double mlp_tile_bytes;
    /* Keys that a query sees at most; 0: all before it.  Tokens of a document on average; 0: of a
     * sequence.  Attention costs less, and the ring sends the rows that are read. */
    int64_t window, document;
    /* 1: optimizer_bytes are on the host, which updates the parameters: gradients and parameters
     * travel once a step.  The host's own time is not counted. */
    int32_t optimizer_on_host;
    /* Bytes of an element of the key and value gradients that ring attention sends; 0: 4 */
    double kv_gradient_bytes;
    /* 1: tensor x ulysses must divide the key/value heads, as in the paper.  memo_sp.h needs no
     * such rule. */
    int32_t kv_heads_must_divide;
    /* 1: the ring's pieces are contiguous, not zigzag; its last rank then has full blocks only. */
    int32_t is_contiguous;
    /* The most groups of heads, so that the all-to-all of a group overlaps the attention of another
     * (memo_sp_attention_desc.ulysses_groups); 0: as many as help.  The prediction takes the
     * fastest number that fits and divides the key heads of a rank or, without a ring, the query
     * heads.  Each group counts as an equal part of all bytes. */
    int32_t max_ulysses_groups;
    /* 1: memory.attention_bytes is not counted, as in the papers. */
    int32_t excludes_attention_memory;
    /* Filters for memo_plan_layouts; 0: all. */
    uint32_t zero_stages; /* bit z: stage z */
    uint32_t activations; /* bit a: memo_parallel_activations a */
    int32_t max_pipeline;
    int32_t max_chunks; /* of a stage, powers of two; 0: 1, no interleaving */
} memo_parallel_desc;

/* Elements of a layer's matrices, and of the model: q, k, v, output and MLP; embedding,
 * classifier. */
MEMO_API double memo_parallel_layer_parameters(const memo_parallel_model* model);
MEMO_API double memo_parallel_parameters(const memo_parallel_model* model);

/* Rank of a GPU by its place in each group, the innermost first (tip 7):
 * t + T (u + U (r + R (d + D p))). */
MEMO_API int64_t memo_parallel_rank(const memo_parallel_layout* layout, int32_t t, int32_t u,
                                    int32_t r, int32_t d, int32_t p);

/* ZeRO shards over the ulysses x ring x data ranks that hold the same parameters. */
MEMO_API int64_t memo_parallel_zero_group(const memo_parallel_layout* layout);
/* 1 if sequence parallelism makes replicas, otherwise 0 (tip 3). */
MEMO_API int32_t memo_parallel_zero_default(const memo_parallel_layout* layout);

/* What a rank sends.  Collectives count (n - 1) / n of what they move. */
typedef enum memo_parallel_kind {
    /* All-gathers and reduce-scatters, 4 each way: 8 S h a layer, whatever G (tip 4). */
    MEMO_PARALLEL_TENSOR = 0,
    /* All-to-alls of q, k, v, the output and their gradients: (4 + 4 / G) S h a layer (tip 4), and
     * for the backward an fp32 number a row and query head (row dots).  Heads that several ranks
     * read are sent to each, and their gradients travel in fp32. */
    MEMO_PARALLEL_ULYSSES,
    /* Keys and values, R - 1 hops each way, and their gradients, R - 1 hops. */
    MEMO_PARALLEL_RING,
    /* Reduce-scatter once a step; stage 0 all-reduce.  From stage 2 on for each micro-batch; with
     * chunks for each `pipeline` micro-batches, which a chunk runs in a row. */
    MEMO_PARALLEL_GRADIENTS,
    /* All-gather once a step; stage 3 for each micro-batch, forward and backward; stage 0 none. */
    MEMO_PARALLEL_PARAMETERS,
    /* Activations between chunks and their gradients, of a stage in the middle. */
    MEMO_PARALLEL_PIPELINE,
    /* All-to-alls of rows to their experts and back, 2 each way. */
    MEMO_PARALLEL_EXPERTS,
    /* Swapped rows, one way. */
    MEMO_PARALLEL_HOST,
    MEMO_PARALLEL_N_KINDS
} memo_parallel_kind;
MEMO_API const char* memo_parallel_kind_name(memo_parallel_kind kind); /* "ulysses"; never NULL */
/* "keep"; never NULL */
MEMO_API const char* memo_parallel_activations_name(memo_parallel_activations activations);

/* Bytes of the GPU that holds most.  The first stage of a pipeline has the embedding and holds most
 * micro-batches, the last stage has the classifier and logits.  Stages differ by one layer in each
 * chunk: the first chunk gives up a layer, then the last chunk, then others (as in Llama 3, section
 * 3.3.2). */
typedef struct memo_parallel_memory {
    double parameters_bytes;  /* 2 P_local, over the group at stage 3 */
    double gathered_bytes;    /* stage 3: the layer in use and the next; gradients of a chunk */
    double gradients_bytes;   /* 4 P_local, over the group from stage 2 on */
    double optimizer_bytes;   /* 12 P_local, over the group from stage 1 on */
    double activations_bytes; /* of all layers; swap: two rounding buffers and a scratch */
    double logits_bytes;
    /* Buffers of attention over ulysses x ring ranks, shared by all layers: device_bytes of
     * memo_sp_attention_sizes for the prediction's groups, in fp32 if element_bytes is 4 or more,
     * otherwise in bf16.  0 for one rank. */
    double attention_bytes;
    double device_bytes; /* their sum */
    double host_bytes;   /* of this GPU's rows */
} memo_parallel_memory;

/* Seconds of a step, of the busiest stage.  Communication that computation hides is not counted.
 * ZeRO's collectives are never hidden. */
typedef struct memo_parallel_time {
    double gemm_s, attention_s;
    double rows_s;                      /* row kernels */
    double experts_s;                   /* rows to their experts and back */
    double update_s;                    /* of the optimizer, or its copies */
    double recompute_s;                 /* computed again, with its collectives */
    double tensor_s, ulysses_s, ring_s; /* ring: exposed hops, starts and merges of blocks */
    double pipeline_s, host_s, zero_s;  /* host: stalls of swapping */
    double bubble_s;                    /* the busiest stage waits for the others */
    double straggler_s;                 /* the slowest GPU, in all terms but ZeRO's and update_s */
    double step_s;                      /* their sum */
} memo_parallel_time;

/* Attention of a layer and micro-batch, on the rank that is busiest. */
typedef struct memo_parallel_attention {
    double compute_s, all_to_all_s;
    double hops_s;   /* of the ring, exposed */
    double blocks_s; /* starts and merges */
} memo_parallel_attention;

typedef struct memo_parallel_prediction {
    memo_parallel_memory memory;
    memo_parallel_time time;
    memo_parallel_attention forward, backward;
    double sent_bytes[MEMO_PARALLEL_N_KINDS];   /* by a rank in a step, recomputation included */
    int32_t leaves_node[MEMO_PARALLEL_N_KINDS]; /* a group of the kind spans nodes */
    double alpha;           /* of the rows that are swapped; 0 without swapping */
    int32_t ulysses_groups; /* 1: the all-to-all is not hidden */
    /* The model's in a step: 6 P S, and 6 S^2 h a layer, as the MEMO paper counts, for the keys
     * that are seen and the active experts. */
    double flops;
    double mfu;   /* flops / (n_gpus * peak * step_s) */
    int32_t fits; /* on the device and on the host */
} memo_parallel_prediction;

/* Is this layout valid?  It is if
 *   the degrees multiply to the number of GPUs;
 *   tensor divides the key/value heads and the MLP's columns;
 *   every rank has a query head and two pieces of the sequence;
 *   data and micro-batch divide the batch;
 *   experts divides data x ring x ulysses and the number of experts;
 *   every chunk has a layer, except the first, of the embedding, and the last, of the classifier;
 *   the ZeRO stage has something to shard;
 *   swapping has host memory, and layers before the last two;
 *   offloading and an optimizer on the host have host memory;
 *   chunks above 1 have a pipeline;
 *   key/value heads divide, if kv_heads_must_divide is set.
 * Errors: INFEASIBLE with the reason in words; INVALID_ARGUMENT naming the field of desc.  A layout
 * that does not fit in memory is not an error. */
MEMO_TRY memo_status memo_parallel_predict(const memo_parallel_desc* desc,
                                           const memo_parallel_layout* layout,
                                           memo_parallel_prediction* prediction, memo_error* error);

typedef struct memo_parallel_entry {
    memo_parallel_layout layout;
    memo_parallel_prediction prediction; /* zero if the layout is not legal */
    char reason[240];                    /* why it is not legal; "" if it is */
} memo_parallel_entry;

/* First the n_fitting layouts that fit, then the legal ones that do not, both by step time and then
 * by memory.  Those that are not legal come last. */
typedef struct memo_parallel_list {
    int64_t n_fitting, n_legal, n_entries;
    memo_parallel_entry* entries;
} memo_parallel_list;

/* Lists every layout whose degrees multiply to n_gpus; chunks and experts are powers of two.  The
 * list may have none that fits.
 * Errors: INVALID_ARGUMENT naming the field, and for more than 1,000,000 layouts;
 * OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_plan_layouts(const memo_parallel_desc* desc, memo_parallel_list** list,
                                       memo_error* error);
MEMO_API void memo_parallel_list_destroy(memo_parallel_list* list);

/* ---- 2 degrees: a tensor-parallel degree for every block ----------------------------------------
 *
 * memo_degrees_solve chooses a degree for every block, so that a step by the fine schedule takes
 * least time within a device's memory (Oases paper, section 4).  A small degree communicates less;
 * a large degree holds less.  With F, X forward and recomputation + backward, C, CB the collectives
 * after them, of a sub-batch of two:
 *
 *   block i at degree p     max(F_i, C_i) + max(X_i, CB_i); the first also F + CB, the last also
 *                           C + X
 *   from i at p to i+1 at q
 *     forward    q <= p ? max(F_{i+1}[q], C_i[p])  : C_i[p] + AllGather[p][q] + F_{i+1}[q]
 *     backward   q >= p ? max(X_i[p], CB_{i+1}[q]) : CB_{i+1}[q] + AllGather[q][p] + X_i[p]
 *   memory                  sum over blocks of state + saved, + the largest runtime <= the device's
 *
 * So a larger degree gathers in the forward pass, a smaller degree in the backward pass.  Embedding
 * and head stay at boundary_degree.  A first or last block of another degree costs an AllGather. */

/* A block at a degree, of a sub-batch. */
typedef struct memo_degree_cost {
    double forward_s;             /* F */
    double forward_collective_s;  /* C */
    double backward_s;            /* X = R + B */
    double backward_collective_s; /* CB */
    /* All-reduce of the gradients over the data-parallel ranks; not in the paper. */
    double gradient_s;
    int64_t state_bytes;   /* parameters, gradients, optimizer */
    int64_t saved_bytes;   /* inputs kept for the backward pass, of both sub-batches */
    int64_t runtime_bytes; /* while it runs */
} memo_degree_cost;

#define MEMO_DEGREES_MAX        16
#define MEMO_DEGREES_BLOCKS_MAX 100000

typedef struct memo_degrees_problem {
    int32_t n_blocks, n_degrees;
    int32_t degrees[MEMO_DEGREES_MAX]; /* powers of two, ascending */
    memo_degree_cost* costs;           /* (n_blocks, n_degrees) */
    /* [p][q], p < q: seconds of the all-gather of a sub-batch's rows from groups of degrees[p]
     * ranks to groups of degrees[q]. */
    double gather_s[MEMO_DEGREES_MAX][MEMO_DEGREES_MAX];
    int64_t memory_bytes;    /* of a device; 0: no limit */
    int32_t boundary_degree; /* of embedding and head, in degrees; 0: as their neighbors */
    int32_t has_gradients;   /* gradient_s counts */
} memo_degrees_problem;

/* Checks what memo_degrees_solve checks first: every time is 0 to 1e9 s, sums of bytes stay below
 * 2^62, boundary_degree is in degrees.  Errors: INVALID_ARGUMENT. */
MEMO_TRY memo_status memo_degrees_problem_check(const memo_degrees_problem* problem,
                                                memo_error* error);

/* Computes time and memory of a plan; block_degrees (n_blocks) are degrees, not indices.
 * Errors: INVALID_ARGUMENT naming the block. */
MEMO_TRY memo_status memo_degrees_evaluate(const memo_degrees_problem* problem,
                                           const int32_t* block_degrees, double* step_s,
                                           int64_t* memory_bytes, memo_error* error);

typedef struct memo_degrees_plan {
    double step_s;        /* from memo_degrees_evaluate */
    double lower_bound_s; /* no plan that fits takes less; step_s if proof is OPTIMAL */
    int64_t memory_bytes;
    memo_proof proof; /* OPTIMAL up to 1e-10 of step_s; FEASIBLE if time or labels ran out */
    double solve_s;
} memo_degrees_plan;

/* Fills in block_degrees (n_blocks) and plan: the fastest plan that fits; ties are broken
 * arbitrarily.  time_limit_s 0: 10.  If time or labels (2^24, 384 MiB) run out, the plan is the
 * best plan found, and step_s / lower_bound_s - 1 bounds the loss.  Errors: INVALID_ARGUMENT (a
 * negative cost; boundary_degree not among degrees), INFEASIBLE (the message states how much memory
 * the smallest plan needs), OUT_OF_HOST_MEMORY; then both are undefined. */
MEMO_TRY memo_status memo_degrees_solve(const memo_degrees_problem* problem, double time_limit_s,
                                        int32_t* block_degrees, memo_degrees_plan* plan,
                                        memo_error* error);

/* --- files of degrees --- */

/* The trainer's --degrees file: "memo degrees 1", a line "block I DEGREE" each in order, "end" with
 * a checksum; the first and last line are optional.  Free *block_degrees with memo_degrees_free.
 * Errors: INVALID_ARGUMENT; IO; FORMAT, VERSION with error->line. */
MEMO_TRY memo_status memo_degrees_write(const int32_t* block_degrees, int32_t n_blocks,
                                        const char* path, memo_error* error);
MEMO_TRY memo_status memo_degrees_read(const char* path, int32_t** block_degrees, int32_t* n_blocks,
                                       memo_error* error);
MEMO_API void memo_degrees_free(int32_t* block_degrees);

#ifdef __cplusplus
}
#endif

#endif /* MEMO_LAYOUT_H */

/* ==== implementation ======================================================================== */

/* ROOMS, each with the words to search for.  A room uses public functions, memob_ ones of
 * memo.h, and the rooms above it.
 *
 *     >>layout rules           which layouts are legal, or why not
 *     >>layout costs           bytes and seconds of one layout
 *     >>layout links           NVLink or NIC for a group of ranks
 *     >>layout attention       time of attention over ring and Ulysses ranks
 *     >>layout memory          parameters, gradients, optimizer, logits
 *     >>layout swapping        the alpha that fits
 *     >>layout step            memory, time and sent bytes of a step
 *     >>layout list            all layouts in order
 *     >>degree problem         costs of blocks
 *     >>degree costs           time and memory of a plan of degrees
 *     >>memory price           a plan and a bound from one price on memory
 *     >>degree labels          partial plans, from the first block to the last
 *     >>degree solve           memo_degrees_solve: which range of runtimes comes next
 *     >>degree text            files of degrees */
#if defined(MEMO_LAYOUT_IMPLEMENTATION) && !defined(MEMO_LAYOUT_IMPLEMENTATION_DONE)
#define MEMO_LAYOUT_IMPLEMENTATION_DONE

#ifndef MEMO_SP_IMPLEMENTATION_DONE
#error "memo_layout.h: define MEMO_IMPLEMENTATION and MEMO_SP_IMPLEMENTATION too"
#endif

/* ---- >>layout rules -----------------------------------------------------------------------------
 * Knows: a model's shape, a cluster, degrees.  Knows nothing of bytes or seconds. */

const char* memo_parallel_kind_name(memo_parallel_kind kind) {
    static const char* const names[] = {"tensor",     "ulysses",  "ring",    "gradients",
                                        "parameters", "pipeline", "experts", "host"};
    MEMOB_TABLE_OF(MEMO_PARALLEL_N_KINDS, names);
    return (size_t)kind < MEMO_PARALLEL_N_KINDS ? names[kind] : "unknown";
}

const char* memo_parallel_activations_name(memo_parallel_activations activations) {
    static const char* const names[] = {"keep", "recompute", "selective", "swap", "offload"};
    MEMOB_TABLE_OF(MEMO_PARALLEL_N_ACTIVATIONS, names);
    return (size_t)activations < MEMO_PARALLEL_N_ACTIVATIONS ? names[activations] : "unknown";
}

MEMOI double memoi_parallel_head_size(const memo_parallel_model* model) {
    return model->head_size > 0 ? model->head_size : (double)model->hidden / model->n_q_heads;
}

/* Columns of the MLP's matrices. */
MEMOI double memoi_parallel_ffn_columns(const memo_parallel_model* model) {
    return (model->n_ffn_matrices == 2 ? 2.0 : 3.0) * model->ffn;
}

/* Elements of a layer's matrices without the MLP.  A latent row is made from the input, and keys
 * and values from a latent row. */
MEMOI double memoi_parallel_attention_parameters(const memo_parallel_model* model) {
    const double h = model->hidden, latent = model->latent_size;
    const double head = memoi_parallel_head_size(model);
    const double both = head + (model->v_head_size > 0 ? model->v_head_size : head);
    return h * both * model->n_q_heads +
           (latent > 0 ? latent * (h + both * model->n_kv_heads) : h * both * model->n_kv_heads) +
           h * model->n_experts; /* their router */
}

MEMOI double memoi_parallel_mlps(const memo_parallel_model* model, double n_mlps) {
    return n_mlps * model->hidden * memoi_parallel_ffn_columns(model);
}

/* MLPs of a layer. */
MEMOI double memoi_parallel_experts(const memo_parallel_model* model) {
    return model->n_experts > 0 ? model->n_experts : 1;
}

double memo_parallel_layer_parameters(const memo_parallel_model* model) {
    return memoi_parallel_attention_parameters(model) +
           memoi_parallel_mlps(model, memoi_parallel_experts(model));
}

double memo_parallel_parameters(const memo_parallel_model* model) {
    double vocabulary = (double)model->vocabulary * model->hidden;
    return model->n_layers * memo_parallel_layer_parameters(model) +
           (model->is_tied ? vocabulary : 2 * vocabulary);
}

int64_t memo_parallel_rank(const memo_parallel_layout* l, int32_t t, int32_t u, int32_t r,
                           int32_t d, int32_t p) {
    int64_t outer = r + l->ring * (d + (int64_t)l->data * p);
    return t + l->tensor * (u + l->ulysses * outer);
}

int64_t memo_parallel_zero_group(const memo_parallel_layout* l) {
    return (int64_t)l->ulysses * l->ring * l->data;
}

int32_t memo_parallel_zero_default(const memo_parallel_layout* l) {
    return (int64_t)l->ulysses * l->ring > 1;
}

#define MEMOI_PARALLEL_GPUS (1 << 20)

/* Fields of memo_parallel_desc: F(field, least, most, default).  0 is the default, or refused. */
#define MEMOI_PARALLEL_FIELDS(F)                                                                   \
    F(model.n_layers, 1, 1e6, 1)                                                                   \
    F(model.hidden, 1, 1e8, 1)                                                                     \
    F(model.ffn, 0, 1e9, 0)                                                                        \
    F(model.n_q_heads, 1, 1e6, 1)                                                                  \
    F(model.n_kv_heads, 1, 1e6, 1)                                                                 \
    F(model.head_size, 0, 1e6, (int32_t)memoi_parallel_head_size(&desc->model))                    \
    F(model.v_head_size, 0, 1e6, desc->model.head_size)                                            \
    F(model.vocabulary, 0, 1e12, 0)                                                                \
    F(model.n_experts, 0, 1e6, 0)                                                                  \
    F(model.n_active_experts, 0, fmax(1, desc->model.n_experts), 1)                                \
    F(model.latent_size, 0, 1 << 24, 0)                                                            \
    F(cluster.n_gpus, 1, MEMOI_PARALLEL_GPUS, 1)                                                   \
    F(cluster.gpus_per_node, 1, MEMOI_PARALLEL_GPUS, 1)                                            \
    F(cluster.device_bytes, 1, 1e18, 1)                                                            \
    F(cluster.peak_flops_per_s, 1, 1e24, 1)                                                        \
    F(cluster.gemm_efficiency, 0, 1, 0.75)                                                         \
    F(cluster.attention_forward_efficiency, 0, 1, 0.6)                                             \
    F(cluster.attention_backward_efficiency, 0, 1, 0.55)                                           \
    F(cluster.link_bytes_per_s, 1, 1e18, 1)                                                        \
    F(cluster.nic_bytes_per_s, desc->cluster.n_gpus > desc->cluster.gpus_per_node, 1e18, 0)        \
    F(cluster.n_processors, 0, 1e6, 0)                                                             \
    F(cluster.device_memory_bytes_per_s, 0, 1e18, 0)                                               \
    F(cluster.collective_s, 0, 1e6, 0)                                                             \
    F(cluster.block_s, 0, 1e6, 0)                                                                  \
    F(cluster.merge_bytes, 0, 1e6, 30)                                                             \
    F(cluster.row_traffic, 0, 1e3, 1)                                                              \
    F(cluster.tensor_copies, 0, 1e3, 0)                                                            \
    F(cluster.speed_deviation, 0, 1, 0)                                                            \
    F(cluster.host_bytes, 0, 1e18, 0)                                                              \
    F(cluster.host_bytes_per_s, 0, 1e18, 0)                                                        \
    F(sequence, 1, ((int64_t)1 << 40), 1)                                                          \
    F(global_batch, 0, 1e12, 1)                                                                    \
    F(micro_batch, 0, 1e12, 1)                                                                     \
    F(element_bytes, 0, 1e3, 2)                                                                    \
    F(gradient_bytes, 0, 1e3, 4)                                                                   \
    F(optimizer_bytes, 0, 1e3, 12)                                                                 \
    F(logit_bytes, 0, 1e3, 6)                                                                      \
    F(loss_tile_bytes, 0, 1e18, 0)                                                                 \
    F(mlp_tile_bytes, 0, 1e18, 0)                                                                  \
    F(window, 0, 1e18, 0)                                                                          \
    F(document, 0, 1e18, 0)                                                                        \
    F(kv_gradient_bytes, 0, 1e3, 4)                                                                \
    F(max_ulysses_groups, 0, 1e6, 0)                                                               \
    F(max_pipeline, 0, MEMOI_PARALLEL_GPUS, 0)                                                     \
    F(max_chunks, 0, 1 << 20, 1)

MEMOI memo_status memoi_parallel_check_desc(const memo_parallel_desc* desc, memo_error* error) {
    const memo_parallel_model* m = &desc->model;
#define MEMOI_PARALLEL_RANGE(field, least, most, usual)                                            \
    {#field, (double)desc->field, (double)(least), (double)(most)},
    const struct {
        const char* name;
        double value, low, high;
    } fields[] = {MEMOI_PARALLEL_FIELDS(MEMOI_PARALLEL_RANGE)};

    /* So that no product or quotient overflows. */
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const double value = fields[i].value, low = fields[i].low, high = fields[i].high;
        if (value >= low && value <= high && (value >= 1e-9 || value <= 0)) continue;
        return MEMOB_INVALID(error, "%s: out of range (%.15g); %.15g to %.15g%s are valid",
                             fields[i].name, value, low > 0 ? low : 1e-9, high,
                             low > 0 ? "" : " or 0");
    }

    /* The cost formulas assume whole groups of query heads and whole head sizes. */
    if (m->n_q_heads % m->n_kv_heads)
        return MEMOB_INVALID(
            error, "model.n_kv_heads: %d does not divide the %d query heads; use a divisor",
            (int)m->n_kv_heads, (int)m->n_q_heads);
    if (!m->head_size && m->hidden % m->n_q_heads)
        return MEMOB_INVALID(
            error,
            "model.head_size: not set, and %d query heads do not divide hidden %d; set head_size",
            (int)m->n_q_heads, (int)m->hidden);
    if (m->n_ffn_matrices != 0 && m->n_ffn_matrices != 2 && m->n_ffn_matrices != 3)
        return MEMOB_INVALID(error,
                             "model.n_ffn_matrices: invalid (%d); 2, 3 and 0 (default 3) are valid",
                             (int)m->n_ffn_matrices);
    return MEMO_STATUS_OK;
}

/* The desc with its defaults filled in. */
MEMOI memo_parallel_desc memoi_parallel_settle(const memo_parallel_desc* given) {
    memo_parallel_desc settled = *given, *desc = &settled;
#define MEMOI_PARALLEL_DEFAULT(field, least, most, usual)                                          \
    if (!(desc->field > 0)) desc->field = usual;
    MEMOI_PARALLEL_FIELDS(MEMOI_PARALLEL_DEFAULT)
    if (desc->zero_stages == 0) desc->zero_stages = UINT32_MAX;
    if (desc->activations == 0) desc->activations = UINT32_MAX;
    return settled;
}

/* The prediction times one tensor rank, replica and micro-batch, so all must be equal. */
MEMOI memo_status memoi_parallel_divide(const memo_parallel_desc* desc,
                                        const memo_parallel_layout* l, memo_error* error) {
    const struct {
        const char *name, *what;
        int64_t divisor, whole;
    } rules[] = {
        {"tensor", "key/value heads", l->tensor, desc->model.n_kv_heads},
        {"tensor", "columns of the MLP", l->tensor, desc->model.ffn},
        {"data", "sequences of the batch", l->data, desc->global_batch},
        {"micro_batch", "sequences of a replica", desc->micro_batch, desc->global_batch / l->data}};
    for (int i = 0; i < 4; i++)
        if (rules[i].whole % rules[i].divisor)
            return memo_error_set(error, MEMO_STATUS_INFEASIBLE,
                                  "%s: %lld does not divide the %lld %s; use a divisor",
                                  rules[i].name, (long long)rules[i].divisor,
                                  (long long)rules[i].whole, rules[i].what);
    return MEMO_STATUS_OK;
}

/* One stage of a pipeline. */
typedef struct memoi_parallel_stage {
    double n_layers;
    double n_held;       /* micro-batches whose activations it holds, in all its chunks */
    double n_vocabulary; /* matrices of the embedding and the classifier */
    int has_classifier;
} memoi_parallel_stage;

/* Every chunk has as many layers, rounded up.  Stages give up what is too much in turn: the first,
 * the last, the second, the third, ... */
MEMOI memoi_parallel_stage memoi_parallel_stage_of(const memo_parallel_desc* desc,
                                                   const memo_parallel_layout* l, int32_t at) {
    const double chunks = l->chunks, pipeline = l->pipeline;
    const double n_micro = (double)(desc->global_batch / (l->data * desc->micro_batch));
    const double whole = ceil(desc->model.n_layers / (pipeline * chunks));
    const double lacking = whole * pipeline * chunks - desc->model.n_layers;
    const int is_last = at == l->pipeline - 1;
    const double rank = at == 0 || is_last ? at > 0 : at + 1.0; /* in the order of giving up */
    memoi_parallel_stage stage;
    double n_warm = pipeline - at; /* forwards of a chunk before the first backward ends */
    if (chunks > 1) n_warm = (chunks - 1) * pipeline + 2 * (pipeline - at) - 1;
    stage.n_layers = whole * chunks - floor(lacking / pipeline) -
                     (rank < lacking - pipeline * floor(lacking / pipeline));
    stage.n_held = fmin(n_micro, n_warm / chunks);
    stage.n_vocabulary = l->pipeline == 1 && desc->model.is_tied ? 1 : (at == 0) + is_last;
    stage.has_classifier = is_last;
    return stage;
}

/* Stages of which one has most of anything: first, last, and the first and the last with most
 * layers between them.  Returns stage k, or the first again. */
#define MEMOI_PARALLEL_STAGES 4
MEMOI memoi_parallel_stage memoi_parallel_stage_among(const memo_parallel_desc* desc,
                                                      const memo_parallel_layout* l, int32_t k) {
    const int32_t last = l->pipeline - 1;
    const double n_all = (double)l->pipeline * l->chunks;
    const double n_lacking = ceil(desc->model.n_layers / n_all) * n_all - desc->model.n_layers;
    const int32_t fuller = (int32_t)fmod(n_lacking, l->pipeline) - 1; /* gives up no more */
    const int32_t at[MEMOI_PARALLEL_STAGES] = {0, last, fuller > 1 ? fuller : 1, last - 1};
    return memoi_parallel_stage_of(desc, l, at[k] > 0 && at[k] <= last ? at[k] : 0);
}

/* Chunks without a layer have the embedding or the classifier. */
MEMOI memo_status memoi_parallel_refuse_chunks(const memo_parallel_desc* desc,
                                               const memo_parallel_layout* l, memo_error* error) {
    const double n_chunks = (double)l->pipeline * l->chunks;
    const double most = desc->model.n_layers + (desc->model.vocabulary > 0 ? 2.0 : 0);
    if (l->chunks < 0 || (l->chunks > 1 && l->pipeline == 1))
        return memo_error_set(error, MEMO_STATUS_INFEASIBLE,
                              "chunks: %d of a stage, of %d stages; 1 or more are valid, and 1 "
                              "without a pipeline",
                              (int)l->chunks, (int)l->pipeline);
    if (l->pipeline > 1 && n_chunks > most)
        return memo_error_set(error, MEMO_STATUS_INFEASIBLE,
                              "pipeline x chunks: %.0f is above the %d layers%s; use fewer",
                              n_chunks, (int)desc->model.n_layers,
                              desc->model.vocabulary > 0 ? ", embedding and classifier" : "");
    return MEMO_STATUS_OK;
}

/* Returns why the states' shards or the activations are illegal. */
MEMOI memo_status memoi_parallel_refuse_memory(const memo_parallel_desc* desc,
                                               const memo_parallel_layout* l, memo_error* error) {
    static const char* const moves[] = {NULL, NULL, NULL, "activations: swap",
                                        "activations: offload"};
    MEMOB_TABLE_OF(MEMO_PARALLEL_N_ACTIVATIONS, moves);
    const memo_parallel_cluster* c = &desc->cluster;
    const memo_status no = MEMO_STATUS_INFEASIBLE;
    const char* moved;
    double least;

    /* A ZeRO stage above 0 needs several ranks to shard over. */
    if (l->zero_stage < 0 || l->zero_stage > 3)
        return memo_error_set(error, no, "zero_stage: out of range (%d); 0 to 3 are valid",
                              (int)l->zero_stage);
    if (l->zero_stage > 0 && memo_parallel_zero_group(l) == 1)
        return memo_error_set(
            error, no,
            "zero_stage: %d has nothing to shard, because data x ulysses x ring is 1; use 0",
            (int)l->zero_stage);

    /* Swapping needs a layer besides the last two, which stay on the device. */
    if (l->activations < MEMO_PARALLEL_KEEP || l->activations >= MEMO_PARALLEL_N_ACTIVATIONS)
        return memo_error_set(error, no,
                              "activations: not a memo_parallel_activations (%d); keep, recompute, "
                              "selective, swap and offload are valid",
                              (int)l->activations);
    moved = moves[l->activations];
    if (!moved && desc->optimizer_on_host) moved = "optimizer_on_host:";
    if (moved && (!(c->host_bytes > 0) || !(c->host_bytes_per_s > 0)))
        return memo_error_set(
            error, no, "%s needs host memory; set cluster.host_bytes and host_bytes_per_s", moved);
    least = memoi_parallel_stage_of(desc, l, 0).n_layers;
    if (l->activations == MEMO_PARALLEL_SWAP && least <= 2)
        return memo_error_set(error, no,
                              "activations: swap needs 3 layers a pipeline stage (%.0f), because "
                              "the last two stay; use a smaller pipeline",
                              least);
    return MEMO_STATUS_OK;
}

/* Returns the first reason why the layout is illegal.  desc is checked, and both are settled. */
MEMOI memo_status memoi_parallel_refuse(const memo_parallel_desc* desc,
                                        const memo_parallel_layout* l, memo_error* error) {
    static const char* const names[] = {"data", "pipeline", "tensor", "ulysses", "ring"};
    const memo_parallel_model* m = &desc->model;
    const memo_parallel_cluster* c = &desc->cluster;
    const memo_status no = MEMO_STATUS_INFEASIBLE;
    memo_status status;
    const int32_t degrees[] = {l->data, l->pipeline, l->tensor, l->ulysses, l->ring};
    double product = 1, pieces;

    /* The degrees must use every GPU once.  The product is a double because five degrees of 32 bits
     * overflow an integer. */
    for (int i = 0; i < 5; i++) {
        if (degrees[i] < 1)
            return memo_error_set(error, no, "%s: out of range (%d); 1 or more are valid", names[i],
                                  (int)degrees[i]);
        product *= degrees[i];
    }
    if (product < c->n_gpus || product > c->n_gpus)
        return memo_error_set(error, no,
                              "data %d x pipeline %d x tensor %d x ulysses %d x ring %d is %.0f; "
                              "the product must be the number of GPUs, %d",
                              (int)l->data, (int)l->pipeline, (int)l->tensor, (int)l->ulysses,
                              (int)l->ring, product, (int)c->n_gpus);

    if (l->tensor > m->n_kv_heads)
        return memo_error_set(error, no,
                              "tensor: %d is above the %d key/value heads, which it splits; use "
                              "ulysses and ring for the rest",
                              (int)l->tensor, (int)m->n_kv_heads);
    if (l->experts < 0 || m->n_experts % l->experts || (l->experts > 1 && !m->n_experts) ||
        memo_parallel_zero_group(l) % l->experts)
        return memo_error_set(
            error, no,
            "experts: %d does not divide the %d experts and the %lld ranks of data "
            "x ulysses x ring; use a divisor",
            (int)l->experts, (int)m->n_experts, (long long)memo_parallel_zero_group(l));
    status = memoi_parallel_divide(desc, l, error);
    if (!status) status = memoi_parallel_refuse_chunks(desc, l, error);
    if (status) return status;

    /* Ulysses may deal heads unevenly, but every rank needs a query head.  Several ranks may copy a
     * key/value head unless the desc forbids it. */
    if (l->ulysses > m->n_q_heads / l->tensor)
        return memo_error_set(error, no,
                              "ulysses: %d is above the %d query heads of a tensor rank, so %d "
                              "ranks have none; use ring for the rest",
                              (int)l->ulysses, (int)(m->n_q_heads / l->tensor),
                              (int)(l->ulysses - m->n_q_heads / l->tensor));
    if (desc->kv_heads_must_divide && (m->n_kv_heads / l->tensor) % l->ulysses)
        return memo_error_set(error, no,
                              "tensor x ulysses: %d does not divide the %d key/value heads, and "
                              "kv_heads_must_divide forbids %s; use a divisor",
                              (int)(l->tensor * l->ulysses), (int)m->n_kv_heads,
                              l->ulysses > m->n_kv_heads / l->tensor ? "heads on several ranks"
                                                                     : "uneven heads");

    /* Zigzag gives every rank two pieces of the sequence.  A shorter sequence would leave ranks
     * without tokens. */
    pieces = 2.0 * l->tensor * l->ulysses * l->ring;
    if ((double)desc->sequence < pieces)
        return memo_error_set(error, no,
                              "sequence: too short (%lld tokens) for 2 x tensor x ulysses x ring = "
                              "%.0f pieces; use smaller degrees or as many tokens",
                              (long long)desc->sequence, pieces);

    return memoi_parallel_refuse_memory(desc, l, error);
}

/* ---- >>layout costs -----------------------------------------------------------------------------
 * Knows: one legal layout.  Knows nothing of the others. */

/* One rank's share; bytes of one layer and micro-batch. */
typedef struct memoi_parallel_share {
    const memo_parallel_desc* desc; /* settled */
    const memo_parallel_layout* l;  /* legal */
    double rows;                    /* tokens of a micro-batch over tensor x ulysses x ring */
    double attention_rows; /* over the ring: those whose attention a rank computes, for its heads */
    memoi_parallel_stage stages[MEMOI_PARALLEL_STAGES], stage; /* stage: the one looked at */
    double n_micro;                                            /* micro-batches of a step */
    double alpha;                                              /* of the rows that are swapped */
    double group;                                              /* ZeRO's */
    double parameters, experts; /* P_local of the stage that has most, without and of experts */
    int32_t n_q, n_kv;          /* heads of the ulysses rank that has most */
    double tensor_bytes;        /* sent for one all-gather or reduce-scatter */
    double to_heads_bytes, forward_bytes, backward_bytes; /* sent by ulysses; to_heads: q, k, v */
    double d_out_bytes;                                   /* of backward, before attention */
    double kv_bytes, d_kv_bytes;                          /* a hop of the ring */
    /* Saved, of a row of `rows`.  attention: the output of attention. */
    double input_elements, attention_elements, layer_elements;
    double work_bytes; /* of a layer that is recomputed */
    double seen;       /* part of the causal half that the masks leave */
    double read;       /* part of the other ranks' keys that is read */
} memoi_parallel_share;

/* What memo_sp.h states of the attention of a tensor rank's heads on ulysses rank u, without
 * sends_again.  It counts bytes with 63 bits, so a larger case is `scale` times the one of fewer
 * tokens.  0: no number of tokens is small enough. */
MEMOI int memoi_parallel_sp_sizes(const memoi_parallel_share* s, int32_t n_groups, int32_t u,
                                  memo_sp_attention_sizes* sizes, double* scale) {
    const memo_parallel_model* m = &s->desc->model;
    const double size = fmax(m->head_size, m->v_head_size);
    const double tokens = (double)s->desc->sequence * (double)s->desc->micro_batch;
    memo_sharding_desc sharding = MEMO_ZERO(memo_sharding_desc);
    memo_sp_attention_desc attention = MEMO_ZERO(memo_sp_attention_desc);
    sharding.kind = s->desc->is_contiguous ? MEMO_SHARDING_PLAIN : MEMO_SHARDING_ZIGZAG;
    sharding.ring = s->l->ring;
    sharding.ulysses = s->l->ulysses;
    sharding.n_tokens = s->desc->sequence;
    attention.n_batch = (int32_t)fmin((double)s->desc->micro_batch, INT32_MAX);

    /* Fewer tokens if all would overflow 64 bits; sizes are linear in tokens. */
    *scale = fmax(1, tokens * size * m->n_q_heads / s->l->tensor * s->l->ulysses /
                         (double)((int64_t)1 << 50));
    if (*scale > 1 || s->desc->micro_batch > INT32_MAX) {
        sharding.n_tokens = (int64_t)ceil(tokens / *scale);
        attention.n_batch = 1;
    }

    attention.ulysses_rank = u;
    attention.n_q_heads = m->n_q_heads / s->l->tensor;
    attention.n_kv_heads = m->n_kv_heads / s->l->tensor;
    attention.head_size = m->head_size;
    attention.v_head_size = m->v_head_size;
    attention.latent.size = m->latent_size;
    attention.type = s->desc->element_bytes < 4 ? MEMO_TYPE_BF16 : MEMO_TYPE_F32;
    attention.rounds_gradients = s->desc->kv_gradient_bytes < 4;
    attention.ulysses_groups = n_groups;
    return !memo_sharding_make(&sharding, &attention.sharding, NULL) &&
           !memo_sp_attention_desc_get_sizes(&attention, sizes, NULL);
}

/* Ranks that are so far apart have as many heads. */
MEMOI int32_t memoi_parallel_period(const memoi_parallel_share* s) {
    const int64_t n_heads = s->desc->model.n_kv_heads / s->l->tensor;
    int32_t period = 1;
    while (period * n_heads % s->l->ulysses) period++;
    return period;
}

/* Groups that do not divide the key heads of a rank share them, as ranks do. */
MEMOI void memoi_parallel_share_ulysses(memoi_parallel_share* s, int32_t n_groups) {
    int32_t n_q_heads = s->desc->model.n_q_heads / s->l->tensor;
    const int32_t latent = s->desc->model.latent_size;
    int32_t n_kv_heads = latent ? 1 : s->desc->model.n_kv_heads / s->l->tensor;
    /* A head of the rows that this rank has before the all-to-all, of q or k, and of v or out. */
    double row_bytes = s->desc->element_bytes * s->attention_rows / s->l->ulysses;
    double head_bytes = row_bytes * s->desc->model.head_size;
    double v_bytes = row_bytes * s->desc->model.v_head_size;
    double d_out_bytes = v_bytes + 4 * s->attention_rows / s->l->ulysses; /* with a row dot */
    const int32_t period = memoi_parallel_period(s);
    const double kv_bytes = latent ? row_bytes * latent : head_bytes + v_bytes;
    double n_kv_all = 0, d_kv_scale = 1, n_sharing = 1, scale;
    memo_sp_attention_sizes sizes;

    /* Uneven heads: the rank with most heads sets memory and compute time. */
    for (int32_t u = 0; u < period; u++) {
        (void)memoi_parallel_sp_sizes(s, 1, u, &sizes, &scale);
        n_kv_all += (latent ? 1 : (double)sizes.heads.n_kv) * (s->l->ulysses / period);
        if (sizes.heads.n_q > s->n_q) s->n_q = sizes.heads.n_q;
        if (sizes.heads.n_kv > s->n_kv) s->n_kv = sizes.heads.n_kv;
    }

    /* Several ranks add their gradients of a shared key/value head, so these travel in fp32. */
    if (latent || s->n_kv % n_groups) n_sharing = (double)n_groups / (latent ? 1 : s->n_kv);
    if (n_kv_all * n_sharing > n_kv_heads && s->desc->element_bytes < 4)
        d_kv_scale = 4 / s->desc->element_bytes;

    /* The rank that sends most sets the time of an all-to-all. */
    s->forward_bytes = s->backward_bytes = s->to_heads_bytes = s->d_out_bytes = 0;
    for (int32_t u = 0; u < period; u++) {
        double to_heads, others, own; /* heads that others need, and own heads of their rows */
        double n_kv;
        (void)memoi_parallel_sp_sizes(s, 1, u, &sizes, &scale);
        others = n_q_heads - sizes.heads.n_q;
        own = (double)sizes.heads.n_q * (s->l->ulysses - 1);
        n_kv = latent ? 1 : sizes.heads.n_kv;
        s->backward_bytes = fmax(s->backward_bytes, d_out_bytes * others + head_bytes * own +
                                                        kv_bytes * d_kv_scale * n_kv * n_sharing *
                                                            (s->l->ulysses - 1));
        to_heads = head_bytes * others + kv_bytes * (n_kv_all - n_kv) * n_sharing;
        s->forward_bytes = fmax(s->forward_bytes, to_heads + v_bytes * own);
        s->to_heads_bytes = fmax(s->to_heads_bytes, to_heads);
        s->d_out_bytes = fmax(s->d_out_bytes, d_out_bytes * others);
    }
}

/* Parameters of a rank: those of its experts, and all others. */
MEMOI double memoi_parallel_stage_experts(const memoi_parallel_share* s,
                                          const memoi_parallel_stage* stage) {
    const memo_parallel_model* m = &s->desc->model;
    return stage->n_layers * memoi_parallel_mlps(m, m->n_experts) / s->l->tensor / s->l->experts;
}
MEMOI double memoi_parallel_stage_parameters(const memoi_parallel_share* s,
                                             const memoi_parallel_stage* stage) {
    const memo_parallel_model* m = &s->desc->model;
    const double layer = memo_parallel_layer_parameters(m) - memoi_parallel_mlps(m, m->n_experts);
    return (stage->n_layers * layer + stage->n_vocabulary * (double)m->vocabulary * m->hidden) /
           s->l->tensor;
}

/* Experts are sharded over the ranks that have the same. */
MEMOI double memoi_parallel_sharded(const memoi_parallel_share* s, double parameters,
                                    double experts) {
    return (parameters + experts * s->l->experts) / s->group;
}

MEMOI memoi_parallel_share memoi_parallel_share_of(const memo_parallel_desc* desc,
                                                   const memo_parallel_layout* l) {
    const memo_parallel_model* m = &desc->model;
    double sequence = (double)desc->sequence, tokens = sequence * (double)desc->micro_batch;
    double sequence_degree = (double)l->ulysses * l->ring, both = m->head_size + m->v_head_size;
    double document, window, kv_row, columns = memoi_parallel_ffn_columns(m);
    memoi_parallel_share share = MEMO_ZERO(memoi_parallel_share);
    share.desc = desc;
    share.l = l;

    /* The rank's part of the tokens, layers, micro-batches and parameters. */
    share.rows = tokens / (l->tensor * sequence_degree);
    share.attention_rows = tokens / l->ring;
    share.n_micro = (double)(desc->global_batch / (l->data * desc->micro_batch));
    share.group = (double)memo_parallel_zero_group(l);
    for (int32_t k = 0; k < MEMOI_PARALLEL_STAGES; k++) {
        share.stages[k] = memoi_parallel_stage_among(desc, l, k);
        share.parameters =
            fmax(share.parameters, memoi_parallel_stage_parameters(&share, &share.stages[k]));
        share.experts = fmax(share.experts, memoi_parallel_stage_experts(&share, &share.stages[k]));
    }

    /* Bytes sent by tensor parallelism, Ulysses and the ring. */
    share.tensor_bytes =
        desc->element_bytes * tokens / sequence_degree * m->hidden * (l->tensor - 1) / l->tensor;
    memoi_parallel_share_ulysses(&share, 1);
    kv_row = m->latent_size ? m->latent_size : both * share.n_kv;
    share.kv_bytes = desc->element_bytes * share.attention_rows * kv_row;
    share.d_kv_bytes = share.kv_bytes * desc->kv_gradient_bytes / desc->element_bytes;

    /* Saved elements of a row.  Input, two norms and residual have 4 * hidden.  Query and attention
     * output, key and value depend on the rank's heads.  The MLP has 3 * ffn with a gate, otherwise
     * 2 * ffn; each of several experts has its input, too. */
    share.input_elements = m->hidden;
    share.attention_elements = (double)m->v_head_size * share.n_q * l->ulysses * l->tensor;
    share.layer_elements = 4.0 * m->hidden + both * share.n_q * l->ulysses * l->tensor +
                           kv_row * l->ulysses * l->tensor +
                           m->n_active_experts * (columns + (m->n_experts > 0) * m->hidden);
    share.work_bytes = desc->element_bytes * share.rows * share.layer_elements;
    if (desc->mlp_tile_bytes > 0)
        share.work_bytes -=
            fmax(0, desc->element_bytes * share.rows * m->n_active_experts * columns -
                        desc->mlp_tile_bytes);

    /* The mean number of keys in sight, in a document of average length.  Each of a rank's two
     * pieces of the sequence reads no more keys before it than that. */
    document = desc->document > 0 ? fmin((double)desc->document, sequence) : sequence;
    window = desc->window > 0 ? fmin((double)desc->window, document) : document;
    share.seen = window * (2 - window / document) / sequence;
    share.read = l->ring == 1 ? 1 : fmin(1, 2 * window * l->ring / (sequence * (l->ring - 1.0)));
    return share;
}

/* --- >>layout links ---
 * Knows: which link a group of ranks uses.  Knows nothing of what is sent. */

/* Groups are blocks of `extent` ranks in the order of memo_parallel_rank. */
MEMOI int memoi_parallel_leaves(const memo_parallel_cluster* c, double extent) {
    int32_t here = (int32_t)fmax(1, extent);
    return c->n_gpus > c->gpus_per_node && (here > c->gpus_per_node || c->gpus_per_node % here);
}

MEMOI double memoi_parallel_link(const memo_parallel_cluster* c, double extent) {
    return memoi_parallel_leaves(c, extent) ? c->nic_bytes_per_s : c->link_bytes_per_s;
}

/* A collective over a group with members `stride` ranks apart.  If the group has all GPUs of a
 * node, each uses its own NIC; otherwise the group uses one NIC (fitted to the paper's Table 6). */
MEMOI double memoi_parallel_group_link(const memo_parallel_cluster* c, double n, double stride) {
    if (!memoi_parallel_leaves(c, n * stride)) return c->link_bytes_per_s;
    if (stride > 1) return c->nic_bytes_per_s;
    return fmin(c->link_bytes_per_s, c->gpus_per_node * c->nic_bytes_per_s);
}

/* --- >>layout attention ---
 * Knows: one layer's attention over ring and Ulysses ranks.  Knows nothing of memory. */

/* The time that exchanges take beside the attention of n groups.  While group g is computed, group
 * g + 1 arrives and group g - 1 leaves, on one stream that takes turns. */
MEMOI double memoi_parallel_exposed(int32_t n_groups, double arrive_s, double compute_s,
                                    double leave_s) {
    double arrived_s = arrive_s, exchange_s = arrive_s, computed_s = 0;
    for (int32_t g = 0; g < n_groups; g++) {
        computed_s = fmax(computed_s, arrived_s) + compute_s;
        if (g + 1 < n_groups) arrived_s = exchange_s = exchange_s + arrive_s;
        exchange_s = fmax(exchange_s, computed_s) + leave_s;
    }
    return exchange_s - n_groups * compute_s;
}

MEMOI memo_parallel_attention memoi_parallel_attend(const memoi_parallel_share* s, int32_t n_groups,
                                                    int is_backward) {
    const memo_parallel_cluster* c = &s->desc->cluster;
    const int32_t ring = s->l->ring, ulysses = s->l->ulysses;
    double head = s->desc->model.head_size, v_head = s->desc->model.v_head_size;
    double flops = c->peak_flops_per_s * (is_backward ? c->attention_backward_efficiency
                                                      : c->attention_forward_efficiency);
    /* One group: two products forward, five backward; the causal half of S x S scores. */
    double n_q = (double)s->n_q / n_groups;
    double step = (is_backward ? 3 * head + 2 * v_head : head + v_head) * s->seen *
                  (double)s->desc->sequence * s->attention_rows * n_q / flops / ring;
    double link = memoi_parallel_link(c, (double)s->l->tensor * ulysses * ring);
    double kv_s = s->read * s->kv_bytes / n_groups / link + c->collective_s;
    double d_kv_s = is_backward ? s->read * s->d_kv_bytes / n_groups / link : 0;
    memo_parallel_attention a = MEMO_ZERO(memo_parallel_attention);

    /* A balanced step and each rank's own step cost half a block of scores.  With contiguous pieces
     * the last rank computes whole blocks after its own.  The next K and V travel meanwhile. */
    a.compute_s = step;
    if (ring > 1) {
        double later = s->desc->is_contiguous ? 2 * step : step;
        double moved = ring * c->merge_bytes * (s->attention_rows * n_q * v_head);
        a.compute_s += (ring - 1) * later;

        /* Behind each step travel keys of the next step and gradients of the one before.  The first
         * two steps send no gradients, the last step sends no keys, and the gradients of the last
         * step travel alone. */
        a.hops_s = fmax(0, kv_s - step);
        if (ring > 2)
            a.hops_s += fmax(0, kv_s - later) + (ring - 3) * fmax(0, kv_s + d_kv_s - later);
        if (is_backward && ring > 2) a.hops_s += fmax(0, d_kv_s + c->collective_s - later);
        if (is_backward) a.hops_s += d_kv_s + c->collective_s;
        a.blocks_s = ring * c->block_s;
        if (c->device_memory_bytes_per_s > 0) a.blocks_s += moved / c->device_memory_bytes_per_s;
    }

    /* Ulysses exchanges q, k, v, output, or their gradients, before and after attention. */
    if (ulysses > 1) {
        double all_bytes = is_backward ? s->backward_bytes : s->forward_bytes;
        double first_bytes = is_backward ? s->d_out_bytes : s->to_heads_bytes;
        int n_first = is_backward ? 1 : 3;
        if (n_groups > 1 && ring == 1) a.blocks_s += c->block_s; /* a start for each group */
        link = memoi_parallel_link(c, (double)s->l->tensor * ulysses);
        if (c->is_shared_bus) link /= ulysses - 1;
        a.all_to_all_s = memoi_parallel_exposed(
            n_groups, first_bytes / n_groups / link + n_first * c->collective_s,
            a.compute_s + a.hops_s + a.blocks_s,
            (all_bytes - first_bytes) / n_groups / link + (4 - n_first) * c->collective_s);
    }
    a.compute_s *= n_groups;
    a.hops_s *= n_groups;
    a.blocks_s *= n_groups;
    return a;
}

/* Buffers of attention, of the rank that needs most. */
MEMOI double memoi_parallel_buffers(const memoi_parallel_share* s, int32_t n_groups) {
    const int32_t period = memoi_parallel_period(s);
    memo_sp_attention_sizes sizes;
    double most = 0, scale;
    if (s->desc->excludes_attention_memory || (s->l->ulysses == 1 && s->l->ring == 1)) return 0;
    for (int32_t u = 0; u < period; u++) {
        if (!memoi_parallel_sp_sizes(s, n_groups, u, &sizes, &scale)) return INFINITY;
        most = fmax(most, scale * (double)sizes.device_bytes);
    }
    return most;
}

/* --- >>layout memory ---
 * Knows: bytes of parameters, gradients, optimizer and logits.  Knows nothing of activations. */

MEMOI memo_parallel_memory memoi_parallel_states(const memoi_parallel_share* s) {
    const memo_parallel_desc* d = s->desc;
    const memo_parallel_model* m = &d->model;
    const int32_t stage = s->l->zero_stage;
    const double others = memoi_parallel_stage_parameters(s, &s->stage);
    const double experts = memoi_parallel_stage_experts(s, &s->stage), all = others + experts;
    const double sharded = memoi_parallel_sharded(s, others, experts);
    memo_parallel_memory memory = MEMO_ZERO(memo_parallel_memory);

    /* ZeRO stages 1, 2 and 3 shard the optimizer, then the gradients, then the parameters. */
    memory.parameters_bytes = d->element_bytes * (stage >= 3 ? sharded : all);
    memory.gradients_bytes = d->gradient_bytes * (stage >= 2 ? sharded : all);
    memory.optimizer_bytes = d->optimizer_bytes * (stage >= 1 ? sharded : all);

    /* Sharded parameters need two gathered layers: the current one and the next. */
    if (stage >= 3)
        memory.gathered_bytes =
            2 * d->element_bytes *
            (memoi_parallel_attention_parameters(m) +
             memoi_parallel_mlps(m, memoi_parallel_experts(m)) / s->l->experts) /
            s->l->tensor;
    if (stage >= 2 && s->l->chunks > 1)
        memory.gathered_bytes += d->gradient_bytes * all / s->l->chunks;
    if (d->optimizer_on_host) {
        memory.host_bytes = memory.optimizer_bytes;
        memory.optimizer_bytes = 0;
    }
    memory.logits_bytes =
        s->stage.has_classifier * d->logit_bytes * s->rows * (double)m->vocabulary;
    if (d->loss_tile_bytes > 0) {
        double row_bytes = d->element_bytes * (double)m->vocabulary / s->l->tensor;
        memory.logits_bytes = fmin(memory.logits_bytes, fmax(row_bytes, d->loss_tile_bytes));
    }
    memory.device_bytes = memory.parameters_bytes + memory.gathered_bytes + memory.gradients_bytes +
                          memory.optimizer_bytes + memory.logits_bytes;
    return memory;
}

/* --- >>layout swapping ---
 * Knows: bytes and bandwidth of swapped rows.  Knows nothing of other layers' work. */

/* More than the bytes by at most one, so that rounding never exceeds a budget. */
MEMOI double memoi_parallel_above(double bytes) { return floor(bytes) + 1; }

/* The largest alpha in [0, 1] with whole + alpha * others <= bound; 0 if there is none. */
MEMOI double memoi_parallel_alpha_within(double whole, double others, double bound) {
    return fmax(0, fmin(1, (bound - whole) / others));
}

/* Pinned memory of a GPU. */
MEMOI double memoi_parallel_host_share(const memo_parallel_cluster* c) {
    return (double)c->host_bytes / (c->n_gpus < c->gpus_per_node ? c->n_gpus : c->gpus_per_node);
}

/* Bytes of a layer's rows that go to the host whole, and of its other rows. */
MEMOI double memoi_parallel_whole(const memoi_parallel_share* s, double* others) {
    const int is_swap = s->l->activations == MEMO_PARALLEL_SWAP;
    const double row_bytes = s->desc->element_bytes * s->rows;
    const double whole = row_bytes * (s->input_elements + is_swap * s->attention_elements);
    *others = (is_swap ? row_bytes * s->layer_elements : s->work_bytes) - whole;
    return whole;
}

/* The linear program of the MEMO paper in one variable, equations (1) to (3), and the device's
 * memory: the largest alpha whose copies hide behind a layer's forward and fit both memories in
 * every stage. */
MEMOI double memoi_parallel_choose_alpha(memoi_parallel_share* s, double buffers_bytes,
                                         double layer_forward_s) {
    const memo_parallel_cluster* c = &s->desc->cluster;
    const double n_rows = ceil(fmin(s->rows, 1e15));
    double others, whole = memoi_parallel_whole(s, &others), by_memory = 1, rows;
    const double kept = 2 * whole + others;
    whole = memoi_parallel_above(whole);
    others = memoi_parallel_above(others);

    /* A stage holds several micro-batches, and each keeps its last two layers. */
    for (int32_t k = 0; k < MEMOI_PARALLEL_STAGES && k < s->l->pipeline; k++) {
        const double n_swapped = s->stages[k].n_held * (s->stages[k].n_layers - 2);
        memo_parallel_memory states;
        double base, host_bytes;
        s->stage = s->stages[k];
        states = memoi_parallel_states(s);
        base = memoi_parallel_above(states.device_bytes + buffers_bytes + kept);
        host_bytes = memoi_parallel_host_share(c) - states.host_bytes;
        by_memory =
            fmin(by_memory, memoi_parallel_alpha_within(base, others, (double)c->device_bytes));
        if (n_swapped > 0 && host_bytes > 0)
            by_memory =
                fmin(by_memory, memoi_parallel_alpha_within(n_swapped * whole, n_swapped * others,
                                                            floor(host_bytes)));
    }

    /* Whole rows.  The 1e-6 corrects rounding: 2 rows may come out as 1.999. */
    rows = memoi_parallel_alpha_within(whole, others, c->host_bytes_per_s * layer_forward_s);
    rows = fmin(by_memory, rows);
    rows = floor(rows * n_rows + 1e-6);
    if (rows > by_memory * n_rows) rows -= 1;
    return rows > 0 ? rows / n_rows : 0;
}

/* --- >>layout step ---
 * Knows: all of the above, for a whole step.  Knows nothing of other layouts. */

/* What a pass of one layer and micro-batch takes of each term, and what a rank sends in it. */
typedef struct memoi_parallel_pass {
    memo_parallel_time time;
    double sent_bytes[MEMO_PARALLEL_N_KINDS];
} memoi_parallel_pass;

typedef struct memoi_parallel_layer {
    memo_parallel_attention attention[2]; /* forward, backward */
    memoi_parallel_pass passes[2];
    double head_s; /* of the classifier, forward and backward */
} memoi_parallel_layer;

/* All terms but their sum; the fields of memo_parallel_time are doubles in this order. */
#define MEMOI_PARALLEL_TERMS ((int)(sizeof(memo_parallel_time) / sizeof(double)) - 1)

MEMOI double memoi_parallel_sum(const memo_parallel_time* time) {
    const double* terms = (const double*)time;
    double sum_s = 0;
    for (int k = 0; k < MEMOI_PARALLEL_TERMS; k++) sum_s += terms[k];
    return sum_s;
}

MEMOI void memoi_parallel_add(double* to, const double* from, int n, double times) {
    for (int k = 0; k < n; k++) to[k] += times * from[k];
}

/* A product of (rows, inner) and (inner, columns).  Each processor makes tiles of 128 x 256 or 128
 * x 128 elements of the result, so the last wave of tiles leaves processors idle.  If all tiles are
 * fewer than the processors, several share the inner length of a tile.  result_bytes: moved for an
 * element of the result. */
MEMOI double memoi_parallel_product_s(const memo_parallel_desc* desc, double rows, double columns,
                                      double inner, double result_bytes) {
    const memo_parallel_cluster* c = &desc->cluster;
    const double flops = c->peak_flops_per_s * c->gemm_efficiency, n = c->n_processors;
    double product_s = INFINITY, width;
    if (n <= 0) return 2 * rows * columns * inner / flops;
    for (width = 128; width <= 256; width *= 2) {
        const double n_tiles = ceil(rows / 128) * ceil(columns / width);
        const double parts = fmax(1, fmin(floor(n / n_tiles), floor(inner / 512)));
        const double n_waves = ceil(n_tiles * parts / n);
        product_s = fmin(product_s, n_waves * n * 2 * 128 * width * inner / parts / flops);
    }
    if (c->device_memory_bytes_per_s > 0)
        product_s = fmax(product_s, (desc->element_bytes * inner * (rows + columns) +
                                     result_bytes * rows * columns) /
                                        c->device_memory_bytes_per_s);
    return product_s;
}

/* A matrix of (inner, columns) in the forward, and the gradients of its input and of itself, which
 * are added up. */
MEMOI void memoi_parallel_add_product(const memoi_parallel_share* s, double rows, double columns,
                                      double inner, double n_times, double* forward_s,
                                      double* backward_s) {
    const double bytes = s->desc->element_bytes;
    if (columns <= 0 || inner <= 0) return;
    *forward_s += n_times * memoi_parallel_product_s(s->desc, rows, columns, inner, bytes);
    *backward_s += n_times * (memoi_parallel_product_s(s->desc, rows, inner, columns, bytes) +
                              memoi_parallel_product_s(s->desc, inner, columns, rows,
                                                       2 * s->desc->gradient_bytes));
}

/* Products and row kernels of a layer and of the classifier. */
MEMOI void memoi_parallel_add_products(const memoi_parallel_share* s, memoi_parallel_layer* layer) {
    const memo_parallel_model* m = &s->desc->model;
    const memo_parallel_cluster* c = &s->desc->cluster;
    memo_parallel_time *forward = &layer->passes[0].time, *backward = &layer->passes[1].time;
    const double h = m->hidden, tensor = s->l->tensor, both = m->head_size + m->v_head_size;
    const double wide = m->ffn / tensor, up = memoi_parallel_ffn_columns(m) / tensor - wide;
    const double rotated = (double)m->head_size * (m->n_q_heads + m->n_kv_heads);
    const double rows = s->rows * tensor, latent = m->latent_size;
    const double kv = both * m->n_kv_heads / tensor;
    const double n_experts = memoi_parallel_experts(m) / s->l->experts;
    const double expert_rows = rows * m->n_active_experts / n_experts;
    const double matrices[][4] = {
        {rows, m->head_size * (double)m->n_q_heads / tensor + (latent > 0 ? latent : kv), h, 1},
        {rows, latent > 0 ? kv : 0, latent, 1},
        {rows, h, m->v_head_size * (double)m->n_q_heads / tensor, 1},
        {expert_rows, up, h, n_experts},
        {expert_rows, h, wide, n_experts},
        {rows, (double)m->n_experts, h, 1}};
    for (int i = 0; i < 6; i++)
        memoi_parallel_add_product(s, matrices[i][0], matrices[i][1], matrices[i][2],
                                   matrices[i][3], &forward->gemm_s, &backward->gemm_s);
    memoi_parallel_add_product(s, rows, (double)m->vocabulary / tensor, h, 1, &layer->head_s,
                               &layer->head_s);

    /* Two norms read and write a row, two residuals read two and write one, and the rotation of q
     * and k and the activation read and write theirs. */
    if (c->n_processors > 0 && c->device_memory_bytes_per_s > 0)
        forward->rows_s =
            c->row_traffic * s->desc->element_bytes * s->rows *
            (10 * h + 2 * rotated + m->n_active_experts * memoi_parallel_ffn_columns(m)) /
            c->device_memory_bytes_per_s;
    backward->rows_s = 2 * forward->rows_s;
}

/* Weights that a token meets in a layer. */
MEMOI double memoi_parallel_weights(const memo_parallel_model* m) {
    return memoi_parallel_attention_parameters(m) + memoi_parallel_mlps(m, m->n_active_experts);
}

MEMOI memoi_parallel_layer memoi_parallel_layer_of(const memoi_parallel_share* s,
                                                   int32_t n_groups) {
    const memo_parallel_model* m = &s->desc->model;
    const memo_parallel_cluster* c = &s->desc->cluster;
    const memo_parallel_layout* l = s->l;
    const double tensor_link = memoi_parallel_link(c, l->tensor);
    const double copied_bytes =
        2 * c->tensor_copies * s->tensor_bytes * l->tensor / fmax(l->tensor - 1, 1);
    const double copies_s =
        c->device_memory_bytes_per_s > 0 ? copied_bytes / c->device_memory_bytes_per_s : 0;
    const double experts_link = memoi_parallel_link(c, (double)l->tensor * l->experts);
    const double experts_bytes = s->desc->element_bytes * s->rows * m->n_active_experts *
                                 m->hidden * (l->experts - 1) / l->experts;
    memoi_parallel_layer layer = MEMO_ZERO(memoi_parallel_layer);
    memoi_parallel_add_products(s, &layer);

    /* Tensor parallelism has four collectives in a pass, experts have two. */
    for (int k = 0; k < 2; k++) {
        memo_parallel_attention* a = &layer.attention[k];
        memo_parallel_time* time = &layer.passes[k].time;
        double* sent_bytes = layer.passes[k].sent_bytes;
        *a = memoi_parallel_attend(s, n_groups, k);
        time->attention_s = a->compute_s;
        time->ring_s = a->hops_s + a->blocks_s;
        time->ulysses_s = a->all_to_all_s;

        if (l->tensor > 1)
            time->tensor_s = 4 * (s->tensor_bytes / tensor_link + c->collective_s + copies_s);
        if (l->experts > 1) time->experts_s = 2 * (experts_bytes / experts_link + c->collective_s);
        sent_bytes[MEMO_PARALLEL_TENSOR] = 4 * s->tensor_bytes;
        sent_bytes[MEMO_PARALLEL_EXPERTS] = 2 * experts_bytes;
        sent_bytes[MEMO_PARALLEL_ULYSSES] = k ? s->backward_bytes : s->forward_bytes;
        sent_bytes[MEMO_PARALLEL_RING] =
            (l->ring - 1) * s->read * (s->kv_bytes + (k ? s->d_kv_bytes : 0));
    }
    return layer;
}

/* Scales everything but row kernels; attention and what it exchanges is not computed again. */
MEMOI void memoi_parallel_leave_out(memoi_parallel_pass* again, double products,
                                    double collectives) {
    again->time.gemm_s *= products;
    again->time.attention_s = again->time.ring_s = again->time.ulysses_s = 0;
    again->time.tensor_s *= collectives;
    again->time.experts_s *= collectives;
    again->sent_bytes[MEMO_PARALLEL_TENSOR] *= collectives;
    again->sent_bytes[MEMO_PARALLEL_EXPERTS] *= collectives;
    again->sent_bytes[MEMO_PARALLEL_ULYSSES] = again->sent_bytes[MEMO_PARALLEL_RING] = 0;
}

/* What the backward computes again of a forward.  With swapped rows it is everything except
 * attention and the MLP's last matrix, with three of the four collectives. */
MEMOI memoi_parallel_pass memoi_parallel_again(const memoi_parallel_share* s,
                                               const memoi_parallel_layer* layer) {
    const memo_parallel_model* m = &s->desc->model;
    memoi_parallel_pass again = layer->passes[0];
    if (s->l->activations == MEMO_PARALLEL_SELECTIVE) memoi_parallel_leave_out(&again, 0.5, 0.5);
    if (s->l->activations != MEMO_PARALLEL_SWAP) return again;
    memoi_parallel_leave_out(
        &again, 1 - (double)m->n_active_experts * m->hidden * m->ffn / memoi_parallel_weights(m),
        0.75);
    again.sent_bytes[MEMO_PARALLEL_ULYSSES] = s->to_heads_bytes;
    if (s->forward_bytes > 0) /* attention does not hide it: it is not computed again */
        again.time.ulysses_s =
            memoi_parallel_attend(s, 1, 0).all_to_all_s * s->to_heads_bytes / s->forward_bytes;
    return again;
}

/* Groups that cross nodes use a NIC, which is the slower link. */
MEMOI void memoi_parallel_leave(const memoi_parallel_share* s, int32_t* leaves) {
    const memo_parallel_cluster* c = &s->desc->cluster;
    const double tensor = s->l->tensor, ulysses = tensor * s->l->ulysses,
                 ring = ulysses * s->l->ring;
    leaves[MEMO_PARALLEL_TENSOR] = s->l->tensor > 1 && memoi_parallel_leaves(c, tensor);
    leaves[MEMO_PARALLEL_ULYSSES] = s->l->ulysses > 1 && memoi_parallel_leaves(c, ulysses);
    leaves[MEMO_PARALLEL_RING] = s->l->ring > 1 && memoi_parallel_leaves(c, ring);
    leaves[MEMO_PARALLEL_EXPERTS] =
        s->l->experts > 1 && memoi_parallel_leaves(c, tensor * s->l->experts);
    leaves[MEMO_PARALLEL_GRADIENTS] = s->group > 1 && memoi_parallel_leaves(c, tensor * s->group);
    leaves[MEMO_PARALLEL_PARAMETERS] = s->l->zero_stage > 0 && leaves[MEMO_PARALLEL_GRADIENTS];
    leaves[MEMO_PARALLEL_PIPELINE] = s->l->pipeline > 1 && memoi_parallel_leaves(c, c->n_gpus);
}

/* From a chunk to the next one. */
MEMOI double memoi_parallel_hop_bytes(const memoi_parallel_share* s) {
    return s->desc->element_bytes * s->rows * s->desc->model.hidden;
}
MEMOI double memoi_parallel_hop_s(const memoi_parallel_share* s) {
    const memo_parallel_cluster* c = &s->desc->cluster;
    return memoi_parallel_hop_bytes(s) / memoi_parallel_link(c, c->n_gpus) + c->collective_s;
}

/* Two buffers of the swapped rows, and a scratch buffer for the recomputed rows. */
MEMOI void memoi_parallel_swap(const memoi_parallel_share* s, const memoi_parallel_layer* layer,
                               memo_parallel_prediction* prediction) {
    const double n_swapped = fmax(0, s->stage.n_layers - 2);
    memo_parallel_memory* memory = &prediction->memory;
    double swapped, copy_s, others, whole = memoi_parallel_whole(s, &others);
    prediction->alpha = s->alpha;
    memory->activations_bytes = 2 * whole + (1 + prediction->alpha) * others;
    swapped = whole + prediction->alpha * others;
    memory->host_bytes += s->stage.n_held * n_swapped * swapped;
    prediction->sent_bytes[MEMO_PARALLEL_HOST] = s->n_micro * n_swapped * swapped;

    /* A copy stalls the step as far as a layer does not hide it. */
    copy_s = swapped / s->desc->cluster.host_bytes_per_s;
    prediction->time.host_s = s->n_micro * n_swapped *
                              (fmax(0, copy_s - memoi_parallel_sum(&layer->passes[0].time)) +
                               fmax(0, copy_s - memoi_parallel_sum(&layer->passes[1].time)));
}

/* A stage above 1 keeps no whole copy of the gradients, so it reduces them once per micro-batch;
 * with chunks, once for the micro-batches that a chunk runs in a row.  Then the optimizer reads and
 * writes its states, or gradients and parameters travel to the host and back. */
MEMOI void memoi_parallel_zero(const memoi_parallel_share* s,
                               memo_parallel_prediction* prediction) {
    const double parameters = s->parameters + s->experts;
    const double sharded = memoi_parallel_sharded(s, s->parameters, s->experts);
    const double stay_bytes = parameters - sharded;
    const double n_runs = s->l->chunks > 1 ? ceil(s->n_micro / s->l->pipeline) : s->n_micro;
    const double gradients[] = {2, 1, n_runs, n_runs}; /* by stage: how often they are sent */
    const double gathers[] = {0, 1, 1, 2 * s->n_micro};
    const double moved_bytes = s->desc->gradient_bytes + s->desc->element_bytes;
    const double mine = s->l->zero_stage > 0 ? sharded : parameters;
    const memo_parallel_cluster* c = &s->desc->cluster;
    double* sent = prediction->sent_bytes;
    const double n_gradients = gradients[s->l->zero_stage];
    const double n_parameters = gathers[s->l->zero_stage];
    sent[MEMO_PARALLEL_GRADIENTS] = n_gradients * (s->desc->gradient_bytes * stay_bytes);
    sent[MEMO_PARALLEL_PARAMETERS] = n_parameters * (s->desc->element_bytes * stay_bytes);
    prediction->time.zero_s = (sent[MEMO_PARALLEL_GRADIENTS] + sent[MEMO_PARALLEL_PARAMETERS]) /
                              memoi_parallel_group_link(c, s->group, s->l->tensor);
    if (s->desc->optimizer_on_host)
        prediction->time.update_s = mine * moved_bytes / c->host_bytes_per_s;
    else if (c->n_processors > 0 && c->device_memory_bytes_per_s > 0)
        prediction->time.update_s =
            mine * (2 * s->desc->optimizer_bytes + moved_bytes) / c->device_memory_bytes_per_s;
}

/* Memory, time and sent bytes of s->stage, without ZeRO and the bubble. */
MEMOI void memoi_parallel_predict_stage(const memoi_parallel_share* s,
                                        const memoi_parallel_layer* layer, double buffers_bytes,
                                        memo_parallel_prediction* prediction) {
    const memo_parallel_activations activations = s->l->activations;
    const double row_bytes = s->desc->element_bytes * s->rows;
    const double n_held = s->stage.n_layers * s->stage.n_held;
    const double n = s->n_micro * s->stage.n_layers, n_hops = s->n_micro * s->l->chunks * 2;
    const memoi_parallel_pass again = memoi_parallel_again(s, layer);
    memo_parallel_memory* memory = &prediction->memory;
    memo_parallel_time* time = &prediction->time;
    double n_again = activations == MEMO_PARALLEL_KEEP ? 0 : n, layers_s = 0;
    memset(prediction, 0, sizeof *prediction);

    /* Memory.  The rows of the last layer that swaps are still on the device. */
    *memory = memoi_parallel_states(s);
    memory->attention_bytes = buffers_bytes;
    if (activations == MEMO_PARALLEL_KEEP)
        memory->activations_bytes = row_bytes * s->layer_elements * n_held;
    else if (activations == MEMO_PARALLEL_RECOMPUTE)
        memory->activations_bytes = row_bytes * s->input_elements * n_held + s->work_bytes;
    else if (activations == MEMO_PARALLEL_SELECTIVE)
        memory->activations_bytes =
            row_bytes * n_held / 2 *
                (s->layer_elements + s->input_elements + s->attention_elements) +
            s->work_bytes;
    else
        memoi_parallel_swap(s, layer, prediction);
    if (activations == MEMO_PARALLEL_SWAP)
        n_again = s->n_micro * (1 - s->alpha) * (s->stage.n_layers - 1);
    memory->device_bytes += memory->attention_bytes + memory->activations_bytes;

    /* Both passes of every layer and micro-batch, and what is computed again. */
    for (int k = 0; k < 2; k++) {
        const memoi_parallel_pass* pass = &layer->passes[k];
        memoi_parallel_add((double*)time, (const double*)&pass->time, MEMOI_PARALLEL_TERMS, n);
        memoi_parallel_add(prediction->sent_bytes, pass->sent_bytes, MEMO_PARALLEL_N_KINDS, n);
        layers_s += n * memoi_parallel_sum(&pass->time);
    }
    time->gemm_s += s->n_micro * s->stage.has_classifier * layer->head_s;
    time->recompute_s = n_again * memoi_parallel_sum(&again.time);
    memoi_parallel_add(prediction->sent_bytes, again.sent_bytes, MEMO_PARALLEL_N_KINDS, n_again);
    if (s->l->pipeline == 1) return;

    /* With chunks, what arrives for a chunk travels while another chunk is computed. */
    prediction->sent_bytes[MEMO_PARALLEL_PIPELINE] = n_hops * memoi_parallel_hop_bytes(s);
    time->pipeline_s = n_hops * memoi_parallel_hop_s(s);
    if (s->l->chunks > 1) time->pipeline_s = fmax(0, time->pipeline_s - layers_s);
}

/* The expected largest of n normal variables of deviation 1, to the second term (Cramer, 1946,
 * section 28.6). */
MEMOI double memoi_parallel_expected_most(double n) {
    const double first = sqrt(2 * log(n));
    return n > 1 ? fmax(0, first - (log(log(n)) + log(4 * 3.14159265358979)) / (2 * first)) : 0;
}

/* The stages, ZeRO, the bubble and MFU, which counts the model's flops only: recomputation is no
 * useful work. */
MEMOI void memoi_parallel_predict_groups(memoi_parallel_share* s, int32_t n_groups,
                                         memo_parallel_prediction* prediction) {
    const memoi_parallel_layer layer = memoi_parallel_layer_of(s, n_groups);
    const memo_parallel_model* m = &s->desc->model;
    const memo_parallel_cluster* c = &s->desc->cluster;
    const double tokens = (double)s->desc->sequence * (double)s->desc->global_batch;
    const double vocabulary = (double)m->vocabulary * m->hidden;
    const double buffers_bytes = memoi_parallel_buffers(s, n_groups);
    memo_parallel_time* time = &prediction->time;
    double busy_s = -1, n_layers = 0, head_s = 0;
    memset(prediction, 0, sizeof *prediction);
    if (s->l->activations == MEMO_PARALLEL_SWAP)
        s->alpha = memoi_parallel_choose_alpha(s, buffers_bytes,
                                               memoi_parallel_sum(&layer.passes[0].time));

    /* The busiest stage sets the time; the fullest stage must fit, on the device and on the
     * host. */
    for (int32_t k = 0; k < MEMOI_PARALLEL_STAGES && k < s->l->pipeline; k++) {
        const memo_parallel_memory most = prediction->memory;
        memo_parallel_prediction trial;
        s->stage = s->stages[k];
        memoi_parallel_predict_stage(s, &layer, buffers_bytes, &trial);
        if (memoi_parallel_sum(&trial.time) > busy_s) {
            *prediction = trial;
            busy_s = memoi_parallel_sum(time);
            n_layers = s->stage.n_layers;
            head_s = s->stage.has_classifier * s->n_micro * layer.head_s;
        }
        if (k == 0) continue;
        prediction->memory = trial.memory.device_bytes > most.device_bytes ? trial.memory : most;
        prediction->memory.host_bytes = fmax(trial.memory.host_bytes, most.host_bytes);
    }
    prediction->ulysses_groups = n_groups;
    prediction->forward = layer.attention[0];
    prediction->backward = layer.attention[1];
    memoi_parallel_leave(s, prediction->leaves_node);
    memoi_parallel_zero(s, prediction);

    /* The first micro-batch passes all other stages, forward and backward, a chunk at a time.
     * Nothing hides what it sends. */
    if (s->l->pipeline > 1) {
        const double chunks = s->l->chunks;
        const double layers_s = n_layers > 0 ? (busy_s - head_s) / n_layers * m->n_layers : busy_s;
        time->bubble_s =
            fmax(0, layers_s + s->n_micro * layer.head_s - busy_s) / s->n_micro / chunks;
        if (chunks > 1) time->bubble_s += 2 * (s->l->pipeline - 1) * memoi_parallel_hop_s(s);
    }
    time->straggler_s =
        (busy_s + time->bubble_s) * c->speed_deviation * memoi_parallel_expected_most(c->n_gpus);
    time->step_s = busy_s + time->zero_s + time->update_s + time->bubble_s + time->straggler_s;
    prediction->flops = tokens * (6 * (m->n_layers * memoi_parallel_weights(m) + vocabulary) +
                                  3.0 * m->n_layers * s->seen * (double)s->desc->sequence *
                                      m->n_q_heads * (m->head_size + m->v_head_size));
    prediction->mfu = prediction->flops / (c->n_gpus * c->peak_flops_per_s * time->step_s);
    prediction->fits = prediction->memory.device_bytes <= (double)c->device_bytes &&
                       prediction->memory.host_bytes <= memoi_parallel_host_share(c);
}

/* Takes the number of groups that is fastest and fits.  The fastest if none fits. */
MEMOI void memoi_parallel_predict_legal(const memo_parallel_desc* desc,
                                        const memo_parallel_layout* l,
                                        memo_parallel_prediction* prediction) {
    memoi_parallel_share share = memoi_parallel_share_of(desc, l);
    const int32_t n_most = l->ring > 1 ? share.n_kv : share.n_q; /* of memo_sp.h */
    const int32_t limit = desc->max_ulysses_groups ? desc->max_ulysses_groups : n_most;
    const int32_t most_groups = l->ulysses == 1 ? 1 : (int32_t)memob_min(limit, n_most);
    memo_parallel_prediction trial;
    for (int32_t n = 1; n == 1 || n <= most_groups; n++) {
        /* Equal groups on all ranks: of key heads, or of the query heads of one. */
        if (share.n_kv % n && (n % share.n_kv || share.n_q % n)) continue;
        if (n > 1 && desc->model.n_q_heads / l->tensor % ((int64_t)l->ulysses * n)) continue;
        if (n > 1) memoi_parallel_share_ulysses(&share, n);
        memoi_parallel_predict_groups(&share, n, &trial);
        if (n == 1 || trial.fits > prediction->fits ||
            (trial.fits == prediction->fits &&
             trial.time.step_s < prediction->time.step_s * (1 - 1e-9)))
            *prediction = trial;
    }
}

memo_status memo_parallel_predict(const memo_parallel_desc* desc,
                                  const memo_parallel_layout* layout,
                                  memo_parallel_prediction* prediction, memo_error* error) {
    memo_parallel_desc settled;
    memo_parallel_layout l = *layout;
    memo_status status = memoi_parallel_check_desc(desc, error);
    memset(prediction, 0, sizeof *prediction);
    if (status) return status;
    settled = memoi_parallel_settle(desc);
    if (!l.chunks) l.chunks = 1;
    if (!l.experts) l.experts = 1;
    status = memoi_parallel_refuse(&settled, &l, error);
    if (!status) memoi_parallel_predict_legal(&settled, &l, prediction);
    return status;
}

/* ---- >>layout list ------------------------------------------------------------------------------
 * Knows: the list and its order.  Knows nothing of what a layout costs. */

#define MEMOI_PARALLEL_ENTRIES 1000000

/* What entries are sorted by: fitting layouts first, then legal ones, then illegal ones; of each
 * the fastest, then the smallest.  Degrees break ties, so the order never depends on qsort. */
#define MEMOI_PARALLEL_KEYS 12
MEMOI void memoi_parallel_keys(const memo_parallel_entry* entry, double* keys) {
    const memo_parallel_layout* l = &entry->layout;
    const int32_t last[] = {l->pipeline, l->tensor,  l->ring,       l->ulysses,         l->data,
                            l->chunks,   l->experts, l->zero_stage, (int)l->activations};
    keys[0] = entry->reason[0] ? 2 : !entry->prediction.fits;
    keys[1] = entry->prediction.time.step_s;
    keys[2] = entry->prediction.memory.device_bytes;
    for (int i = 3; i < MEMOI_PARALLEL_KEYS; i++) keys[i] = last[i - 3];
}

MEMOI int memoi_parallel_compare(const void* left, const void* right) {
    double a[MEMOI_PARALLEL_KEYS], b[MEMOI_PARALLEL_KEYS];
    memoi_parallel_keys((const memo_parallel_entry*)left, a);
    memoi_parallel_keys((const memo_parallel_entry*)right, b);
    for (int i = 0; i < MEMOI_PARALLEL_KEYS; i++)
        if (a[i] < b[i] || a[i] > b[i]) return a[i] < b[i] ? -1 : 1;
    return 0;
}

/* Lists the layouts that the desc allows: l's degrees from number `degree` on split n GPUs, and
 * ring takes the rest.  Returns their number; entries NULL: only counts. */
MEMOI int64_t memoi_parallel_enumerate(const memo_parallel_desc* desc, memo_parallel_layout* l,
                                       int degree, int32_t n, memo_parallel_entry* entries) {
    int32_t* const degrees[] = {&l->pipeline, &l->data, &l->tensor, &l->ulysses};
    int64_t count = 0;
    if (degree < 4) {
        for (int32_t k = 1; k <= n; k++) {
            if (n % k || (degree == 0 && desc->max_pipeline && k > desc->max_pipeline)) continue;
            *degrees[degree] = k;
            count += memoi_parallel_enumerate(desc, l, degree + 1, n / k,
                                              entries ? entries + count : NULL);
        }
        return count;
    }

    l->ring = n;
    for (int32_t chunks = 1; chunks <= (l->pipeline > 1 ? desc->max_chunks : 1); chunks *= 2)
        for (int32_t experts = 1;
             experts <= (desc->model.n_experts > 0 ? desc->model.n_experts : 1); experts *= 2)
            for (int32_t k = 0; k < 4 * MEMO_PARALLEL_N_ACTIVATIONS; k++) {
                l->chunks = chunks;
                l->experts = experts;
                l->zero_stage = k / MEMO_PARALLEL_N_ACTIVATIONS;
                l->activations = (memo_parallel_activations)(k % MEMO_PARALLEL_N_ACTIVATIONS);
                if (!(desc->zero_stages >> l->zero_stage & desc->activations >> l->activations & 1))
                    continue;
                if (memo_parallel_zero_group(l) % experts || desc->model.n_experts % experts)
                    continue;
                if (entries) entries[count].layout = *l;
                count++;
            }
    return count;
}

memo_status memo_plan_layouts(const memo_parallel_desc* desc, memo_parallel_list** list,
                              memo_error* error) {
    memo_status status = memoi_parallel_check_desc(desc, error);
    memo_parallel_desc settled;
    memo_parallel_layout layout;
    memo_parallel_list* made;
    int64_t n;
    *list = NULL;
    if (status) return status;
    settled = memoi_parallel_settle(desc);

    /* Count first: a large cluster could exhaust host memory. */
    n = memoi_parallel_enumerate(&settled, &layout, 0, settled.cluster.n_gpus, NULL);
    if (n > MEMOI_PARALLEL_ENTRIES)
        return MEMOB_INVALID(error,
                             "cluster.n_gpus: %d GPUs have %lld layouts, more than %d; ask for "
                             "fewer ZeRO stages, activations or pipeline degrees",
                             (int)desc->cluster.n_gpus, (long long)n, MEMOI_PARALLEL_ENTRIES);

    /* Room for every layout, legal or not. */
    made = (memo_parallel_list*)memob_calloc(1, sizeof *made);
    if (made)
        made->entries = (memo_parallel_entry*)memob_calloc(n > 0 ? n : 1, sizeof *made->entries);
    if (!made || !made->entries) {
        MEMO_FREE(made);
        return memob_no_memory(error, "the list of layouts");
    }

    /* Illegal layouts stay in the list with their reason, so that users see why they are
     * missing. */
    made->n_entries =
        memoi_parallel_enumerate(&settled, &layout, 0, settled.cluster.n_gpus, made->entries);
    for (int64_t i = 0; i < n; i++) {
        memo_parallel_entry* entry = &made->entries[i];
        memo_error why;
        if (memoi_parallel_refuse(&settled, &entry->layout, &why)) {
            (void)snprintf(entry->reason, sizeof entry->reason, "%.*s",
                           (int)sizeof entry->reason - 1, why.message);
            continue;
        }
        memoi_parallel_predict_legal(&settled, &entry->layout, &entry->prediction);
        made->n_legal++;
        made->n_fitting += entry->prediction.fits;
    }

    /* The user reads the best layouts first. */
    qsort(made->entries, (size_t)n, sizeof *made->entries, memoi_parallel_compare);
    *list = made;
    return MEMO_STATUS_OK;
}

void memo_parallel_list_destroy(memo_parallel_list* list) {
    if (list) MEMO_FREE(list->entries);
    MEMO_FREE(list);
}

/* ---- >>degree problem ---------------------------------------------------------------------------
 * Knows: costs of blocks, and which are valid.  Knows nothing of how a plan is found. */

MEMOI memo_degree_cost* memoi_degrees_cost(const memo_degrees_problem* problem, int32_t block,
                                           int32_t degree) {
    return &problem->costs[(int64_t)block * problem->n_degrees + degree];
}

/* Index of a degree, or -1. */
MEMOI int32_t memoi_degrees_index(const memo_degrees_problem* problem, int64_t degree) {
    int32_t k = problem->n_degrees - 1;
    while (k >= 0 && problem->degrees[k] != degree) k--;
    return k;
}

#define MEMOI_DEGREES_SECONDS 1e9 /* no cost is larger, so that sums keep their digits */

memo_status memo_degrees_problem_check(const memo_degrees_problem* problem, memo_error* error) {
    const int32_t* degrees = problem->degrees;
    int64_t bytes_max;
    if (memob_check_integer("degrees", "n_blocks", problem->n_blocks, 1, MEMO_DEGREES_BLOCKS_MAX,
                            error) ||
        memob_check_integer("degrees", "n_degrees", problem->n_degrees, 1, MEMO_DEGREES_MAX, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (!problem->costs)
        return MEMOB_INVALID(error, "degrees.costs: NULL; pass n_blocks times n_degrees costs");

    /* Degrees must ascend because the costs compare them by index. */
    for (int32_t p = 0; p < problem->n_degrees; p++)
        if (degrees[p] < 1 || degrees[p] > 1 << 20 || (degrees[p] & (degrees[p] - 1)) ||
            (p > 0 && degrees[p] <= degrees[p - 1]))
            return MEMOB_INVALID(error,
                                 "degree %d: not a power of two, or not above the previous degree",
                                 (int)degrees[p]);

    /* With these limits sums of times keep their digits, and sums of bytes over all blocks stay
     * below 2^62.  The sum of times is NaN if one of them is. */
    bytes_max = MEMOB_BYTES_MAX / (2 * (int64_t)problem->n_blocks + 1);
    for (int32_t i = 0; i < problem->n_blocks; i++)
        for (int32_t p = 0; p < problem->n_degrees; p++) {
            const memo_degree_cost* c = memoi_degrees_cost(problem, i, p);
            const double least_s =
                fmin(fmin(c->forward_s, c->forward_collective_s),
                     fmin(fmin(c->backward_s, c->backward_collective_s), c->gradient_s));
            const double sum_s = c->forward_s + c->forward_collective_s + c->backward_s +
                                 c->backward_collective_s + c->gradient_s;
            if (!(least_s >= 0) || !memob_is_in(sum_s, 0, MEMOI_DEGREES_SECONDS))
                return MEMOB_INVALID(
                    error, "block %d at degree %d: a time is out of range; 0 to 1e9 s are valid",
                    (int)i, (int)problem->degrees[p]);
            if (memob_min(c->state_bytes, memob_min(c->saved_bytes, c->runtime_bytes)) < 0 ||
                memob_max(c->state_bytes, memob_max(c->saved_bytes, c->runtime_bytes)) > bytes_max)
                return MEMOB_INVALID(error,
                                     "block %d at degree %d: bytes are negative, or their sum over "
                                     "all blocks exceeds 2^62",
                                     (int)i, (int)problem->degrees[p]);
        }

    /* Only gathers from a smaller degree to a larger one exist; a scatter costs the same. */
    for (int32_t p = 0; p < problem->n_degrees; p++)
        for (int32_t q = p + 1; q < problem->n_degrees; q++)
            if (!memob_is_in(problem->gather_s[p][q], 0, MEMOI_DEGREES_SECONDS))
                return MEMOB_INVALID(
                    error, "gather from degree %d to %d: out of range; 0 to 1e9 s are valid",
                    (int)problem->degrees[p], (int)problem->degrees[q]);

    /* The boundary needs gather times, which only listed degrees have. */
    if (problem->boundary_degree && memoi_degrees_index(problem, problem->boundary_degree) < 0)
        return MEMOB_INVALID(error, "boundary_degree: not one of the degrees (%d)",
                             (int)problem->boundary_degree);
    return memob_check_integer("degrees", "memory_bytes", problem->memory_bytes, 0, INT64_MAX,
                               error);
}

MEMOI memo_status memoi_degrees_check(const memo_degrees_problem* problem,
                                      const int32_t* block_degrees, memo_error* error) {
    memo_status status = memo_degrees_problem_check(problem, error);
    if (status || block_degrees) return status;
    return MEMOB_INVALID(error, "block_degrees: NULL; pass an array of n_blocks degrees");
}

/* ---- >>degree costs -----------------------------------------------------------------------------
 * Knows: costs of blocks and of their borders.  Knows nothing of where they come from. */

/* Between a block at degree p and the next one at q. */
MEMOI double memoi_degrees_border_s(const memo_degrees_problem* problem,
                                    const memo_degree_cost* from, int32_t p,
                                    const memo_degree_cost* to, int32_t q) {
    const double gather_s = problem->gather_s[p < q ? p : q][p < q ? q : p];
    return (q <= p ? fmax(to->forward_s, from->forward_collective_s)
                   : from->forward_collective_s + gather_s + to->forward_s) +
           (q >= p ? fmax(from->backward_s, to->backward_collective_s)
                   : to->backward_collective_s + gather_s + from->backward_s);
}

/* What a block at degree q adds to the step if the block before it has degree p.  Embedding and
 * head are blocks without costs at boundary_degree, or at their neighbor's degree. */
MEMOI double memoi_degrees_add_s(const memo_degrees_problem* problem, int32_t block, int32_t p,
                                 int32_t q) {
    static const memo_degree_cost none = {0, 0, 0, 0, 0, 0, 0, 0};
    const memo_degree_cost* c = memoi_degrees_cost(problem, block, q);
    int32_t boundary = memoi_degrees_index(problem, problem->boundary_degree);
    double add_s =
        fmax(c->forward_s, c->forward_collective_s) + fmax(c->backward_s, c->backward_collective_s);
    if (problem->has_gradients) add_s += c->gradient_s;
    if (boundary < 0) boundary = q;
    if (block == problem->n_blocks - 1)
        add_s += memoi_degrees_border_s(problem, c, q, &none, boundary);
    return add_s + (block == 0 ? memoi_degrees_border_s(problem, &none, boundary, c, q)
                               : memoi_degrees_border_s(
                                     problem, memoi_degrees_cost(problem, block - 1, p), p, c, q));
}

/* The time of a plan, what its blocks keep, and the largest runtime. */
MEMOI double memoi_degrees_sum(const memo_degrees_problem* problem, const int32_t* degrees,
                               int64_t* kept, int64_t* runtime) {
    double step_s = 0;
    int32_t p = 0, q;
    *kept = *runtime = 0;
    for (int32_t i = 0; i < problem->n_blocks; i++, p = q) {
        const memo_degree_cost* c;
        q = memoi_degrees_index(problem, degrees[i]);
        c = memoi_degrees_cost(problem, i, q);
        step_s += memoi_degrees_add_s(problem, i, p, q);
        *kept += c->state_bytes + c->saved_bytes;
        *runtime = memob_max(*runtime, c->runtime_bytes);
    }
    return step_s;
}

memo_status memo_degrees_evaluate(const memo_degrees_problem* problem, const int32_t* block_degrees,
                                  double* step_s, int64_t* memory_bytes, memo_error* error) {
    int64_t kept, runtime;
    memo_status status = memoi_degrees_check(problem, block_degrees, error);
    for (int32_t i = 0; i < problem->n_blocks && !status; i++)
        if (memoi_degrees_index(problem, block_degrees[i]) < 0)
            status = MEMOB_INVALID(error, "block %d: degree %d is missing in the profile", (int)i,
                                   (int)block_degrees[i]);
    if (status) return status;
    *step_s = memoi_degrees_sum(problem, block_degrees, &kept, &runtime);
    *memory_bytes = kept + runtime;
    return MEMO_STATUS_OK;
}

/* ---- >>memory price -----------------------------------------------------------------------------
 * Knows: times of blocks and of their neighbors, and what blocks hold.  Knows nothing of partial
 * plans.
 *
 * With a price, in seconds for each byte kept, one pass over the blocks finds the cheapest path
 * (Viterbi).  Its cost less the price of the room bounds the time of every plan that fits.  The
 * bound is largest at the price where a path that fits and one that does not cost the same: see
 * Handler and Zang, A dual algorithm for the constrained shortest path problem, 1980.
 *
 * The largest runtime is no sum.  A range of its values takes the room that the smallest leaves and
 * the blocks that the largest allows: its paths are these plans and more. */

typedef struct memoi_degrees_range {
    int64_t low, high; /* the largest runtime is one of limits[low .. high] */
    int64_t room;      /* for bytes beyond the least of each block */
    double price_s;    /* of a byte */
    double bound_s;    /* no plan of the range takes less; INFINITY: there is none */
    double share;      /* of its gap, for the next pass of labels; negative: it must be halved */
} memoi_degrees_range;

typedef struct memoi_label {
    double time_s;
    int64_t extra;
    int64_t trail; /* index of the label before, * MEMO_DEGREES_MAX + degree */
} memoi_label;

/* What a path takes. */
typedef struct memoi_degrees_path {
    double time_s;
    int64_t extra;
} memoi_degrees_path;

typedef struct memoi_degrees_search {
    const memo_degrees_problem* problem;
    memob_arrays arrays;
    double deadline_s;
    memo_degrees_plan* plan; /* the best that fits */
    int32_t* degrees;        /* its */

    double* add_s;   /* (n_blocks, n_degrees, n_degrees): memoi_degrees_add_s */
    int64_t* extra;  /* (n_blocks, n_degrees): bytes kept beyond the block's least */
    int64_t least;   /* the sum of these */
    int64_t* limits; /* the values of runtime_bytes that allow a degree for each block, ascending */
    int64_t n_limits;

    /* The cheapest path at the last price, from each block on, by the degree of the block before:
     * (n_blocks + 1, n_degrees), its cost and its first degree. */
    double* rest_s;
    int32_t* next;
    int32_t* at; /* the degrees of the last path */
    memoi_degrees_path path;

    memoi_degrees_range* ranges; /* that together allow every plan */
    memoi_label* labels;         /* of all blocks, by block, degree and time */
    int64_t n_labels, label_capacity;
    int64_t label_begins[2][MEMO_DEGREES_MAX + 1]; /* of each degree, in an even and an odd block */
} memoi_degrees_search;

#define MEMOI_DEGREES_EXACT  1e-10 /* plans whose times differ by less of them are equal */
#define MEMOI_DEGREES_LABELS ((int64_t)1 << 24)

MEMOI int memoi_degrees_is_late(const memoi_degrees_search* search) {
    return memob_now_s() > search->deadline_s;
}

/* Sums the path, which becomes the plan if it fits and is faster.  Returns whether it fits. */
MEMOI int memoi_degrees_take(memoi_degrees_search* search) {
    const memo_degrees_problem* problem = search->problem;
    memo_degrees_plan* plan = search->plan;
    memoi_degrees_path* path = &search->path;
    int64_t kept, runtime;
    path->time_s = memoi_degrees_sum(problem, search->at, &kept, &runtime);
    path->extra = kept - search->least;
    if (problem->memory_bytes && kept + runtime > problem->memory_bytes) return 0;
    if (path->time_s >= plan->step_s) return 1;
    plan->step_s = path->time_s;
    plan->memory_bytes = kept + runtime;
    memcpy(search->degrees, search->at, (size_t)problem->n_blocks * sizeof(int32_t));
    return 1;
}

/* Takes the cheapest path at a price, with runtimes up to limit; sets rest_s.  At the price
 * INFINITY only bytes count. */
MEMOI void memoi_degrees_walk(memoi_degrees_search* search, double price_s, int64_t limit) {
    const int is_least = price_s == INFINITY;
    const memo_degrees_problem* problem = search->problem;
    int32_t n = problem->n_blocks, d = problem->n_degrees, i, p;
    double from_s[MEMO_DEGREES_MAX]; /* cost of a block's bytes at a degree and of what follows */

    /* The last block comes first because nothing follows it. */
    for (i = n - 1; i >= 0; i--) {
        int64_t at = (int64_t)i * d;
        for (int32_t q = 0; q < d; q++) {
            const double extra = (double)search->extra[at + q];
            from_s[q] = is_least ? extra : price_s * extra + search->rest_s[at + d + q];
            if (problem->costs[at + q].runtime_bytes > limit) from_s[q] = INFINITY;
        }
        for (p = 0; p < d; p++) {
            const double* add_s = &search->add_s[(at + p) * d];
            int32_t* next = &search->next[at + p];
            double least_s = INFINITY;
            for (int32_t q = 0; q < d; q++) { /* bytes may be equal only as doubles */
                double cost_s = is_least ? from_s[q] : add_s[q] + from_s[q];
                int is_less = is_least && search->extra[at + q] < search->extra[at + *next];
                if (cost_s > least_s || (cost_s >= least_s && !is_less)) continue;
                least_s = cost_s;
                *next = q;
            }
            search->rest_s[at + p] = least_s;
        }
    }
    for (i = 0, p = 0; i < n; i++) {
        p = search->next[(int64_t)i * d + p];
        search->at[i] = problem->degrees[p];
    }
    (void)memoi_degrees_take(search);
}

/* A part of a range, with its price and bound. */
MEMOI memoi_degrees_range memoi_degrees_price(memoi_degrees_search* search,
                                              memoi_degrees_range range, int64_t low,
                                              int64_t high) {
    const memo_degrees_problem* problem = search->problem;
    const memoi_degrees_path* path = &search->path;
    memoi_degrees_path ends[2], *fit = ends, *over = ends + 1; /* at the price */
    int64_t limit = search->limits[high];
    double price_s = 0, best_s = 0;

    /* If any path fits the room, the path of least memory does. */
    range.low = low;
    range.high = high;
    range.room = problem->memory_bytes ? problem->memory_bytes - search->limits[low] - search->least
                                       : INT64_MAX;
    range.price_s = 0;
    range.share = fmin(fabs(range.share), 1);
    memoi_degrees_walk(search, INFINITY, limit);
    if (path->extra > range.room) {
        range.bound_s = INFINITY;
        return range;
    }
    *fit = *path;

    /* The first price is 0, of the fastest path.  At the price where both ends cost the same, a
     * cheaper path replaces one of them. */
    over->time_s = INFINITY;
    over->extra = 0;
    for (int k = 0; k < 100; k++) {
        double cost_s, bound_s;
        memoi_degrees_walk(search, price_s, limit);
        cost_s = path->time_s + price_s * (double)path->extra;
        bound_s = cost_s - price_s * (double)range.room;
        if (bound_s > best_s) {
            best_s = bound_s;
            range.price_s = price_s;
            range.bound_s = fmax(range.bound_s, bound_s);
        }
        if (memoi_degrees_is_late(search) || (k == 0 && path->extra <= range.room)) return range;
        if (cost_s >= (over->time_s + price_s * (double)over->extra) * (1 - 1e-12)) break;
        ends[path->extra > range.room] = *path;
        price_s = (fit->time_s - over->time_s) / (double)(over->extra - fit->extra);
    }
    return range;
}

/* ---- >>degree labels ----------------------------------------------------------------------------
 * Knows: a range and its price.  Knows nothing of other ranges.
 *
 * A label is a partial plan up to some block and degree.  It is dropped in three cases: another
 * label needs no more time and bytes, it does not fit, or its bound reaches the limit of the pass.
 * Limits begin near the bound of the range, where labels are few, and end at the best plan.  If
 * labels are too many all the same, slower ones that spare few bytes are dropped, too.  Such a pass
 * only improves the plan. */

/* Makes the labels of block i at degree q, behind all others, by merging those of the block before
 * by time.  Each has fewer bytes than the last one, by more than grain.  0: no host memory. */
MEMOI int memoi_degrees_labels_extend(memoi_degrees_search* search,
                                      const memoi_degrees_range* range, double limit_s,
                                      int64_t grain, int32_t i, int32_t q) {
    int32_t d = search->problem->n_degrees;
    int64_t at = (int64_t)i * d + q, next[MEMO_DEGREES_MAX], least = INT64_MAX;
    const int64_t* begins = search->label_begins[i % 2];
    for (int32_t p = 0; p < d; p++) next[p] = begins[p];

    /* The fastest of the next labels comes first.  Later ones are slower, so they must have fewer
     * bytes. */
    for (;;) {
        memoi_label label;
        int32_t first = 0;
        label.time_s = INFINITY;
        for (int32_t p = 0; p < d; p++) {
            double time_s;
            if (next[p] == begins[p + 1]) continue;
            time_s = search->labels[next[p]].time_s + search->add_s[(at - q + p) * d + q];
            if (time_s >= label.time_s) continue;
            label.time_s = time_s;
            first = p;
        }
        if (label.time_s == INFINITY) return 1;
        label.extra = search->labels[next[first]].extra + search->extra[at];
        label.trail = next[first]++ * MEMO_DEGREES_MAX + q;
        if (label.extra >= least - grain || label.extra > range->room ||
            label.time_s + search->rest_s[at + d] +
                    range->price_s * (double)(label.extra - range->room) >=
                limit_s)
            continue;
        least = label.extra;
        if (!memob_reserve(&search->labels, &search->label_capacity, search->n_labels + 1,
                           sizeof label))
            return 0;
        search->labels[search->n_labels++] = label;
    }
}

/* Raises the bound of a range.  Its share grows, and becomes negative if a path of the range is
 * faster than the best plan but does not fit.  0: no host memory. */
MEMOI int memoi_degrees_labels_pass(memoi_degrees_search* search, memoi_degrees_range* range) {
    const memo_degrees_problem* problem = search->problem;
    const double gap_s = search->plan->step_s - range->bound_s;
    double limit_s = fmin(range->bound_s + range->share * gap_s,
                          search->plan->step_s * (1 - MEMOI_DEGREES_EXACT));
    int32_t n = problem->n_blocks, d = problem->n_degrees, i;
    int64_t limit = search->limits[range->high], grain = 0, best, k;
    memoi_degrees_walk(search, range->price_s, limit);

    /* One label comes before the first block.  A block may have twice its part of the labels that
     * are left. */
    if (!memob_reserve(&search->labels, &search->label_capacity, 1, sizeof(memoi_label))) return 0;
    memset(search->labels, 0, sizeof(memoi_label));
    search->n_labels = 1;
    for (int32_t q = 0; q <= d; q++) search->label_begins[0][q] = q > 0;
    for (i = 0; i < n; i++) {
        int64_t* begins = search->label_begins[(i + 1) % 2];
        for (int32_t q = 0; q < d; q++) {
            begins[q] = search->n_labels;
            if (problem->costs[(int64_t)i * d + q].runtime_bytes <= limit &&
                !memoi_degrees_labels_extend(search, range, limit_s, grain, i, q))
                return 0;
            if (memoi_degrees_is_late(search)) return 1;
            if (search->n_labels - begins[0] >
                2 * (MEMOI_DEGREES_LABELS - search->n_labels) / (n - i))
                grain = memob_min(2 * grain + 1, MEMOB_BYTES_MAX / 2);
        }
        begins[d] = search->n_labels;
    }

    /* The fastest complete label is a plan.  The bound is its time, or the limit. */
    range->share *= 3;
    best = search->label_begins[n % 2][0];
    for (k = best + 1; k < search->n_labels; k++)
        if (search->labels[k].time_s < search->labels[best].time_s) best = k;
    if (best < search->n_labels) {
        limit_s = fmin(limit_s, search->labels[best].time_s);
        for (i = n - 1, k = search->labels[best].trail; i >= 0; i--) {
            search->at[i] = problem->degrees[k % MEMO_DEGREES_MAX];
            k = search->labels[k / MEMO_DEGREES_MAX].trail;
        }
        if (!memoi_degrees_take(search)) range->share *= -1;
    }
    if (grain == 0) range->bound_s = fmax(range->bound_s, limit_s);
    return 1;
}

/* ---- >>degree solve -----------------------------------------------------------------------------
 * Knows: which range of runtimes comes next.  Knows nothing of how a range is planned. */

/* Improves the plan until none is faster, or time or labels run out.  The range of least bound is
 * next.  It is halved if its width costs more than a tenth of its gap, because labels cannot close
 * that.  0: no host memory. */
MEMOI int memoi_degrees_improve(memoi_degrees_search* search) {
    memo_degrees_plan* plan = search->plan;
    memoi_degrees_range range = MEMO_ZERO(memoi_degrees_range);
    int64_t k, next = 0, n = 1, capacity = 0;
    if (!memob_reserve(&search->ranges, &capacity, 1, sizeof range)) return 0;
    range.share = 1.0 / 4096;
    search->ranges[0] = memoi_degrees_price(search, range, 0, search->n_limits - 1);
    for (;;) {
        /* The range of least bound limits the lower bound, so only it can raise that. */
        for (k = 0, next = 0; k < n; k++)
            if (search->ranges[k].bound_s < search->ranges[next].bound_s) next = k;
        range = search->ranges[next];

        /* Stop if no range can contain a faster plan, or if time or memory for labels runs out. */
        plan->lower_bound_s = plan->step_s;
        if (range.bound_s >= plan->step_s * (1 - MEMOI_DEGREES_EXACT)) return 1;
        plan->lower_bound_s = range.bound_s * (1 - MEMOI_DEGREES_EXACT);
        if (memoi_degrees_is_late(search) || range.share >= 3) return 1;

        /* Halving tightens the room of each half.  Labels tighten the bound at the same room. */
        if (range.low < range.high &&
            (range.share < 0 ||
             range.price_s * (double)(search->limits[range.high] - search->limits[range.low]) >=
                 (plan->step_s - range.bound_s) / 10)) {
            int64_t middle = range.low + (range.high - range.low) / 2;
            if (!memob_reserve(&search->ranges, &capacity, n + 1, sizeof range)) return 0;
            search->ranges[next] = memoi_degrees_price(search, range, range.low, middle);
            search->ranges[n++] = memoi_degrees_price(search, range, middle + 1, range.high);
        } else if (!memoi_degrees_labels_pass(search, &search->ranges[next]))
            return 0;
    }
}

/* Tables of the costs, and the plan of least memory, so that a plan is known at every time
 * limit. */
MEMOI memo_status memoi_degrees_begin(memoi_degrees_search* search, memo_error* error) {
    const memo_degrees_problem* problem = search->problem;
    memob_arrays* arrays = &search->arrays;
    int64_t n = problem->n_blocks, d = problem->n_degrees, n_open = n;
    int64_t smallest = INT64_MAX, runtime = 0;
    int64_t* least = MEMOB_ARRAY(arrays, int64_t, n);
    memob_keyed* cells = MEMOB_ARRAY(arrays, memob_keyed, n * d);
    search->add_s = MEMOB_ARRAY(arrays, double, (n * d) * d);
    search->extra = MEMOB_ARRAY(arrays, int64_t, n * d);
    search->limits = MEMOB_ARRAY(arrays, int64_t, n * d);
    search->rest_s = MEMOB_ARRAY(arrays, double, (n + 1) * d);
    search->next = MEMOB_ARRAY(arrays, int32_t, n * d);
    search->at = MEMOB_ARRAY(arrays, int32_t, n);
    if (arrays->failed) return memob_no_memory(error, "the plan of degrees");

    for (int64_t k = 0; k < n * d * d; k++)
        search->add_s[k] = memoi_degrees_add_s(problem, (int32_t)(k / (d * d)),
                                               (int32_t)(k / d % d), (int32_t)(k % d));

    /* Admit the choices of block and degree, the smallest runtime first.  Each block uses the
     * admitted degree that keeps least.  Once every block has one, each runtime is a limit. */
    for (int64_t k = 0; k < n * d; k++)
        cells[k] = memob_keyed_of(problem->costs[k].runtime_bytes, k);
    memob_keyed_sort(cells, n * d);
    for (int64_t k = 0; k < n; k++) least[k] = -1;
    for (int64_t k = 0; k < n * d; k++) {
        const memo_degree_cost* c = &problem->costs[cells[k].index];
        int64_t *block = &least[cells[k].index / d], kept = c->state_bytes + c->saved_bytes;
        if (*block < 0 || kept < *block) {
            n_open -= *block < 0;
            search->least += kept - memob_max(*block, 0);
            *block = kept;
        }
        if (n_open > 0 || (k + 1 < n * d && cells[k + 1].key == c->runtime_bytes)) continue;
        search->limits[search->n_limits++] = c->runtime_bytes;
        if (search->least + c->runtime_bytes >= smallest) continue;
        smallest = search->least + c->runtime_bytes;
        runtime = c->runtime_bytes;
    }
    if (problem->memory_bytes && smallest > problem->memory_bytes)
        return memo_error_set(error, MEMO_STATUS_INFEASIBLE,
                              "memory_bytes: too small (%lld); the smallest plan needs %lld",
                              (long long)problem->memory_bytes, (long long)smallest);

    /* Only the bytes beyond the least of each block depend on the choice. */
    for (int64_t k = 0; k < n * d; k++)
        search->extra[k] =
            problem->costs[k].state_bytes + problem->costs[k].saved_bytes - least[k / d];
    memoi_degrees_walk(search, INFINITY, runtime);
    return MEMO_STATUS_OK;
}

memo_status memo_degrees_solve(const memo_degrees_problem* problem, double time_limit_s,
                               int32_t* block_degrees, memo_degrees_plan* plan, memo_error* error) {
    const double begin_s = memob_now_s();
    memoi_degrees_search search = MEMO_ZERO(memoi_degrees_search);
    memo_status status = memoi_degrees_check(problem, block_degrees, error);
    if (!status) status = memob_check_real("degrees", "time_limit_s", time_limit_s, 0, 1e6, error);
    if (status) return status;

    search.problem = problem;
    search.plan = plan;
    search.degrees = block_degrees;
    search.deadline_s = begin_s + (time_limit_s > 0 ? time_limit_s : 10);
    plan->step_s = plan->lower_bound_s = INFINITY;
    status = memoi_degrees_begin(&search, error);
    if (!status && !memoi_degrees_improve(&search))
        status = memob_no_memory(error, "the plan of degrees");
    memob_arrays_free(&search.arrays);
    MEMO_FREE(search.ranges);
    MEMO_FREE(search.labels);
    plan->proof = plan->lower_bound_s < plan->step_s ? MEMO_PROOF_FEASIBLE : MEMO_PROOF_OPTIMAL;
    plan->solve_s = memob_now_s() - begin_s;
    return status;
}

/* ---- >>degree text ------------------------------------------------------------------------------
 * Knows: the text of degrees.  Knows nothing of what they mean. */

/* A line. */
typedef struct memoi_block_degree {
    int32_t block, degree;
} memoi_block_degree;

static const memob_value memoi_block_degree_values[] = {
    MEMOB_VALUE("block", MEMOB_VALUE_INT32, memoi_block_degree, block, 0, MEMO_DEGREES_BLOCKS_MAX),
    MEMOB_VALUE("degree", MEMOB_VALUE_INT32, memoi_block_degree, degree, 1, 1 << 20)};
static const memob_record memoi_block_degree_record = {"block", memoi_block_degree_values, 2, 0};

MEMOI memo_status memoi_block_degree_check(const memoi_block_degree* line, memo_error* error) {
    if (line->degree > 0 && (line->degree & (line->degree - 1)) == 0) return MEMO_STATUS_OK;
    return MEMOB_INVALID(error, "block %d: degree %d is not a power of two", (int)line->block,
                         (int)line->degree);
}

memo_status memo_degrees_write(const int32_t* block_degrees, int32_t n_blocks, const char* path,
                               memo_error* error) {
    memo_status status =
        memob_check_integer("degrees", "n_blocks", n_blocks, 1, MEMO_DEGREES_BLOCKS_MAX, error);
    memoi_block_degree line = MEMO_ZERO(memoi_block_degree);
    memo_text text = MEMO_ZERO(memo_text);
    memo_text_put(&text, "memo degrees 1\n");
    for (int32_t i = 0; i < n_blocks && !status; i++) {
        line.block = i;
        line.degree = block_degrees[i];
        status = memoi_block_degree_check(&line, error);
        if (!status) status = memob_put_record(&text, &memoi_block_degree_record, &line, error);
    }
    return memob_write_lines(&text, n_blocks, path, status, error);
}

memo_status memo_degrees_read(const char* path, int32_t** block_degrees, int32_t* n_blocks,
                              memo_error* error) {
    memob_reader reader, ahead;
    memoi_block_degree line;
    memo_error reason;
    int64_t n = 0;
    int32_t* degrees = NULL;
    memo_status status = memob_reader_open(&reader, path, error);
    if (!status) status = memob_read_frame(&reader, "degrees", 1, 1, error);

    /* Blocks must ascend by 1, so that none can be missing. */
    for (ahead = reader; !status && memob_next_entry(&ahead); ahead = reader) {
        status = memob_expect_record(&reader, &memoi_block_degree_record, &line, error);
        if (!status && line.block != n)
            status = MEMOB_BAD_LINE(&reader, error, "block %d: block %lld is expected here",
                                    (int)line.block, (long long)n);
        if (!status)
            status = memob_reader_result(&reader, memoi_block_degree_check(&line, &reason), &reason,
                                         error);
        if (!status && !memob_grow(&degrees, n, 1, sizeof(int32_t)))
            status = memob_no_memory(error, "degrees");
        if (!status) degrees[n++] = line.degree;
    }
    if (!status) status = memob_check_count(&reader, n, error);
    if (!status && n == 0) status = MEMOB_BAD_LINE(&reader, error, "there is no block");
    memob_reader_close(&reader);
    if (status) MEMO_FREE(degrees);
    *block_degrees = status ? NULL : degrees;
    *n_blocks = status ? 0 : (int32_t)n;
    return status;
}

void memo_degrees_free(int32_t* block_degrees) { MEMO_FREE(block_degrees); }

#endif /* MEMO_LAYOUT_IMPLEMENTATION */
