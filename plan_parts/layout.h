/* ---- layouts: data x pipeline x tensor x ulysses x ring --------------------------------------------
 *
 * How should these GPUs share this model?  Every legal layout with its memory, what it sends and its step time, and
 * in words why the others are not legal:
 *
 *     memo_parallel_desc desc = memo_parallel_desc_default();
 *     memo_parallel_list* list;
 *     desc.model.n_layers = 32;  ...  desc.cluster.n_gpus = 16;  ...  desc.sequence = 65536;
 *     memo_plan_layouts(&desc, &list, &error);
 *     if (list->n_fitting > 0) use(&list->entries[0]);       // the fastest that fits
 *     memo_parallel_list_destroy(list);
 *
 * A cost model, not a measurement: products and attention at a stated rate, collectives at a stated bandwidth.  With
 * S tokens of a sequence, h hidden size, G query heads of a key/value head, P parameters (P_local of a rank), T, U, R
 * the tensor, ulysses and ring degrees, and each term over the ranks that share it:
 *
 *   products           6 P S flops of a step, P without the embedding, / (peak * gemm_efficiency)
 *   attention          2 S^2 h a layer forward, 5 S^2 h backward: the causal half, two products and five
 *   ring               every step max(block, hop); a start and a merge a block; dK and dV hop once more, home
 *   ulysses, tensor    bytes / bandwidth + a start for each of 4 collectives a layer and way
 *   ZeRO               bytes / bandwidth; a group with only some of a node's GPUs has one NIC for them
 *   bubble             (pipeline - 1) micro-batches of all the above but ZeRO
 *
 * Sources: "A Unified Sequence Parallelism Approach for Long Context Generative AI" (section 4, Table 2; "tip" below is
 * one of its seven), fitted to its Tables 3 to 6 by bench/paper_tables; what a rank sends, as memo_sp.h sends it;
 * swapping, as memo_plan_alpha has it.  Not counted: padding of lengths that do not divide, a layer's transients. */

/* A decoder of identical layers: attention, MLP. */
typedef struct memo_parallel_model {
    int32_t n_layers, hidden;
    int32_t ffn; /* columns of the MLP; 0: no MLP */
    int32_t n_q_heads, n_kv_heads;
    int32_t head_size;      /* 0: hidden / n_q_heads */
    int32_t n_ffn_matrices; /* 3: gate, up, down (also 0); 2: up, down */
    int32_t is_tied;        /* embedding and classifier are one */
    int64_t vocabulary;     /* 0: neither */
    int64_t n_parameters;   /* 0: from the shape; decides states and gradients, not the work */
} memo_parallel_model;

typedef struct memo_parallel_cluster {
    int32_t n_gpus, gpus_per_node;
    int32_t is_shared_bus; /* PCIe: the n - 1 flows of an all-to-all share one link */
    int64_t device_bytes;  /* of a GPU, that the step may use */
    double peak_flops_per_s;
    /* Of the peak, reached by the matrix products and by attention; 0: 0.75, 0.6, 0.55 */
    double gemm_efficiency, attention_forward_efficiency, attention_backward_efficiency;
    double link_bytes_per_s;          /* of one GPU inside a node, each way */
    double nic_bytes_per_s;           /* of one GPU between nodes, each way */
    double device_memory_bytes_per_s; /* 0: merges of ring blocks cost no time */
    double collective_s;              /* start of a collective or hop */
    double block_s;                   /* start of a block of ring attention */
    double merge_bytes;      /* moved by its merge into the running output, an element; 0: 30 */
    int64_t host_bytes;      /* pinned, of a node; 0: no swapping */
    double host_bytes_per_s; /* of one GPU, each way; 0: no swapping */
} memo_parallel_cluster;

typedef enum memo_parallel_activations {
    MEMO_PARALLEL_KEEP = 0,  /* all of them, on the device */
    MEMO_PARALLEL_RECOMPUTE, /* the layers' inputs; each layer's forward runs again */
    MEMO_PARALLEL_SWAP, /* MEMO: alpha of the rows to the host; the rest, but for attention, again */
    MEMO_PARALLEL_N_ACTIVATIONS
} memo_parallel_activations;

typedef struct memo_parallel_layout {
    int32_t data, pipeline, tensor, ulysses, ring; /* their product is the number of GPUs */
    int32_t zero_stage; /* 0; 1 shards the optimizer, 2 gradients too, 3 parameters too */
    memo_parallel_activations activations;
} memo_parallel_layout;

typedef struct memo_parallel_desc {
    memo_parallel_model model;
    memo_parallel_cluster cluster;
    int64_t sequence;       /* tokens of a sequence, S */
    int64_t global_batch;   /* sequences of a step; 0: 1 */
    int64_t micro_batch;    /* of them at a time on each replica; 0: 1 */
    double element_bytes;   /* of activations and working parameters; 0: 2, bf16 */
    double gradient_bytes;  /* of a parameter's gradient; 0: 4 */
    double optimizer_bytes; /* of a parameter; 0: 12, fp32 parameters and two moments */
    double logit_bytes;     /* of a logit with its gradient; 0: 6 */
    /* Of the gradients of keys and values that ring attention carries; 0: 4 */
    double kv_gradient_bytes;
    /* tensor x ulysses must divide the key/value heads, as in the paper; memo_sp.h deals any to any. */
    int32_t kv_heads_must_divide;
    /* The ring's pieces are contiguous, not zigzag: all blocks of its last rank are full. */
    int32_t is_contiguous;
    /* What memo_plan_layouts lists; 0: all. */
    uint32_t zero_stages; /* bit z: stage z */
    uint32_t activations; /* bit a: memo_parallel_activations a */
    int32_t max_pipeline;
} memo_parallel_desc;

MEMO_API memo_parallel_desc memo_parallel_desc_default(void);

/* Elements of one layer's matrices, and of the model: q, k, v, output and MLP; embedding, classifier. */
MEMO_API double memo_parallel_layer_parameters(const memo_parallel_model* model);
MEMO_API double memo_parallel_parameters(const memo_parallel_model* model);

/* Rank of a GPU by its place in each group, the innermost first (tip 7):
 * t + T (u + U (r + R (d + D p))). */
MEMO_API int64_t memo_parallel_rank(const memo_parallel_layout* layout, int32_t t, int32_t u,
                                    int32_t r, int32_t d, int32_t p);

/* ZeRO shards over the ulysses x ring x data ranks that hold the same parameters. */
MEMO_API int64_t memo_parallel_zero_group(const memo_parallel_layout* layout);
/* 1 where sequence parallelism makes replicas, else 0 (tip 3). */
MEMO_API int32_t memo_parallel_zero_default(const memo_parallel_layout* layout);

/* May it be?  Degrees multiply to the GPUs; tensor divides the key/value heads and the MLP's columns; every rank has a
 * query head and two pieces of the sequence; data and micro-batch divide the batch, pipeline the layers; a ZeRO stage
 * has something to shard; swapping has a host, and layers before the last two.  Whether it fits is another question.
 * Errors: INFEASIBLE with the reason in words; INVALID_ARGUMENT naming the field of desc. */
MEMO_API memo_status memo_parallel_check(const memo_parallel_desc* desc,
                                         const memo_parallel_layout* layout, memo_error* error);

/* What a rank sends.  Collectives count (n - 1) / n of what they move. */
typedef enum memo_parallel_kind {
    /* All-gathers and reduce-scatters, 4 each way: 8 S h a layer, whatever G (tip 4). */
    MEMO_PARALLEL_TENSOR = 0,
    /* All-to-alls of q, k, v, the output and their gradients: (4 + 4 / G) S h a layer (tip 4).  Heads that several
     * ranks read are sent to each, and their gradients travel in fp32. */
    MEMO_PARALLEL_ULYSSES,
    /* Keys and values, R - 1 hops each way, and their gradients, R hops. */
    MEMO_PARALLEL_RING,
    /* Reduce-scatter once a step, from stage 2 on for each micro-batch; stage 0 all-reduce. */
    MEMO_PARALLEL_GRADIENTS,
    /* All-gather once a step; stage 3 for each micro-batch, forward and backward; stage 0 none. */
    MEMO_PARALLEL_PARAMETERS,
    /* Activations between stages and their gradients, of a stage in the middle. */
    MEMO_PARALLEL_PIPELINE,
    /* Swapped rows, one way. */
    MEMO_PARALLEL_HOST,
    MEMO_PARALLEL_N_KINDS
} memo_parallel_kind;
MEMO_API const char* memo_parallel_kind_name(memo_parallel_kind kind); /* "ulysses"; never NULL */
/* "keep"; never NULL */
MEMO_API const char* memo_parallel_activations_name(memo_parallel_activations activations);

/* Bytes of the GPU that holds most.  With a pipeline every stage counts 1 / pipeline of the layers and of the
 * vocabulary, and as many micro-batches as the first. */
typedef struct memo_parallel_memory {
    double parameters_bytes;  /* 2 P_local, over the group at stage 3 */
    double gathered_bytes;    /* stage 3: the layer in use and the next */
    double gradients_bytes;   /* 4 P_local, over the group from stage 2 on */
    double optimizer_bytes;   /* 12 P_local, over the group from stage 1 on */
    double activations_bytes; /* of all layers; swap: two rounding buffers and a scratch */
    double logits_bytes;
    double device_bytes; /* their sum */
    double host_bytes;   /* of this GPU's rows */
} memo_parallel_memory;

/* Seconds of a step.  What hides behind computation is not counted, except that ZeRO's collectives never hide. */
typedef struct memo_parallel_time {
    double gemm_s, attention_s;
    double recompute_s;                 /* computed again, with its collectives */
    double tensor_s, ulysses_s, ring_s; /* ring: exposed hops, starts and merges of blocks */
    double pipeline_s, host_s, zero_s;  /* host: stalls of swapping */
    double bubble_s;                    /* (pipeline - 1) micro-batches */
    double step_s;                      /* their sum */
} memo_parallel_time;

typedef struct memo_parallel_prediction {
    memo_parallel_memory memory;
    memo_parallel_time time;
    double sent_bytes[MEMO_PARALLEL_N_KINDS];   /* by a rank in a step, recomputation included */
    int32_t leaves_node[MEMO_PARALLEL_N_KINDS]; /* some group of the kind spans nodes */
    double alpha; /* of the rows that are swapped; 0 without swapping */
    double flops; /* of the model in a step: 6 P S, and 6 S^2 h a layer, as the MEMO paper counts */
    double mfu;   /* flops / (n_gpus * peak * step_s) */
    int32_t fits; /* device and host */
} memo_parallel_prediction;

/* Errors: as memo_parallel_check.  A layout that does not fit is no error. */
MEMO_API memo_status memo_parallel_predict(const memo_parallel_desc* desc,
                                           const memo_parallel_layout* layout,
                                           memo_parallel_prediction* prediction, memo_error* error);

/* Attention of one layer and micro-batch, on the rank that is busiest. */
typedef struct memo_parallel_attention {
    double compute_s, all_to_all_s;
    double hops_s;   /* of the ring, exposed */
    double blocks_s; /* starts and merges */
} memo_parallel_attention;
/* Errors: as memo_parallel_check. */
MEMO_API memo_status memo_parallel_predict_attention(const memo_parallel_desc* desc,
                                                     const memo_parallel_layout* layout,
                                                     int32_t is_backward,
                                                     memo_parallel_attention* attention,
                                                     memo_error* error);

/* The longest sequence that fits, a multiple of step_tokens; 0 where none does.  desc->sequence is not looked at.
 * Errors: as memo_parallel_check; INVALID_ARGUMENT for step_tokens. */
MEMO_API memo_status memo_parallel_longest(const memo_parallel_desc* desc,
                                           const memo_parallel_layout* layout, int64_t step_tokens,
                                           int64_t* sequence, memo_error* error);

typedef struct memo_parallel_entry {
    memo_parallel_layout layout;
    memo_parallel_prediction prediction; /* zero where it is not legal */
    char reason[240];                    /* why it is not legal; "" where it is */
} memo_parallel_entry;

/* First the n_fitting that fit, then what is legal and does not fit, both by step time and then by memory; last what
 * is not legal. */
typedef struct memo_parallel_list {
    int64_t n_fitting, n_legal, n_entries;
    memo_parallel_entry* entries;
} memo_parallel_list;

/* Every layout whose degrees multiply to n_gpus.  That none fits is no error.
 * Errors: INVALID_ARGUMENT naming the field; OUT_OF_HOST_MEMORY. */
MEMO_API memo_status memo_plan_layouts(const memo_parallel_desc* desc, memo_parallel_list** list,
                                       memo_error* error);
MEMO_API void memo_parallel_list_destroy(memo_parallel_list* list);
