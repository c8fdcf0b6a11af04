/* ---- tensor-parallel degrees ------------------------------------------------------------------------
 *
 * A degree for every block (attention, MLP, ...) that costs the least time within a device's memory (Oases paper,
 * section 4; the overlapped schedule with fine-grained recomputation).  A small degree communicates less, a large
 * one holds less.  With F, X forward and recomputation + backward, C, CB the collectives behind them, of one of
 * two sub-batches:
 *
 *   block i at degree p     max(F_i, C_i) + max(X_i, CB_i); the first also F + CB, the last also C + X
 *   from i at p to i+1 at q (a larger degree gathers in the forward, a smaller one in the backward pass)
 *     forward    q <= p ? max(F_{i+1}[q], C_i[p])  : C_i[p] + AllGather[p][q] + F_{i+1}[q]
 *     backward   q >= p ? max(X_i[p], CB_{i+1}[q]) : CB_{i+1}[q] + AllGather[q][p] + X_i[p]
 *   memory                  sum over blocks of state + saved, + the largest runtime <= the device's
 *
 * Embedding and head stay at boundary_degree; a first or last block of another degree pays one AllGather. */

/* One block at one degree, of one sub-batch. */
typedef struct memo_degree_cost {
    double forward_s;             /* F */
    double forward_collective_s;  /* C */
    double backward_s;            /* X = R + B */
    double backward_collective_s; /* CB */
    double
        gradient_s; /* all-reduce of its gradients over the data-parallel ranks; not in the paper */
    int64_t state_bytes;   /* parameters, gradients, optimizer */
    int64_t saved_bytes;   /* inputs kept for the backward pass, of both sub-batches */
    int64_t runtime_bytes; /* while it runs */
} memo_degree_cost;

#define MEMO_DEGREES_MAX 16

typedef struct memo_degrees_problem {
    int32_t n_blocks, n_degrees;
    int32_t degrees[MEMO_DEGREES_MAX]; /* powers of two, ascending */
    memo_degree_cost* costs;           /* (n_blocks, n_degrees) */
    /* [p][q], p < q: seconds of the all-gather of one sub-batch's rows from groups of degrees[p] ranks to groups of
     * degrees[q]. */
    double gather_s[MEMO_DEGREES_MAX][MEMO_DEGREES_MAX];
    int64_t memory_bytes;    /* of a device; 0: no limit */
    int32_t boundary_degree; /* of embedding and head, one of degrees; 0: as their neighbours */
    int32_t has_gradients;   /* gradient_s counts */
} memo_degrees_problem;

/* Costs are zero.  Errors: INVALID_ARGUMENT, OUT_OF_HOST_MEMORY. */
MEMO_API memo_status memo_degrees_problem_create(int32_t n_blocks, const int32_t* degrees,
                                                 int32_t n_degrees, memo_degrees_problem** problem,
                                                 memo_error* error);
MEMO_API void memo_degrees_problem_destroy(memo_degrees_problem* problem);

/* A GPT of identical layers from constants, bf16; blocks 0, 2, ... are attention.  With t_d = batch * d * sequence
 * / (2 n_gpus) tokens of a sub-batch in a group of d:
 *   F            attention 8 t h^2 + 2 t s h, MLP 16 t h^2 floating-point operations, / (d * flops_per_s); half the
 *                pairs of a causal mask
 *   R, B         F without its last product (attention 2 t h^2, MLP 8 t h^2), 2 F
 *   C = CB       2 (d - 1) / d * 2 t h / bandwidth[d] + 2 (d - 1) * latency
 *   AllGather    (1 - p / q) * 2 t_q h / bandwidth[q] + (q / p - 1) * latency
 *   gradients    2 (D - 1) / D * 2 P / d / data_bandwidth, D = n_gpus / d, P = 4 h^2 and 8 h^2
 *   state        16 P / d          saved  2 * 2 t h
 *   runtime      attention 2 t (4 h + 4 * 3 h / d), MLP 2 t (4 h + 4 * 4 h / d) */
typedef struct memo_degrees_model {
    int32_t n_layers, hidden;
    int64_t sequence, batch; /* tokens of a sequence, sequences of the global batch */
    int32_t n_gpus;
    int32_t n_degrees;
    int32_t degrees[MEMO_DEGREES_MAX];
    double bandwidth_bytes_per_s[MEMO_DEGREES_MAX]; /* of a collective over degrees[k] ranks */
    double data_bandwidth_bytes_per_s;              /* of the gradients; 0: they do not count */
    double latency_s;                               /* of a step of a collective */
    double flops_per_s;                             /* that a block reaches */
    int64_t memory_bytes;
    int32_t boundary_degree;
} memo_degrees_model;
MEMO_API memo_degrees_model memo_degrees_model_default(void);
/* Errors: INVALID_ARGUMENT naming the field, OUT_OF_HOST_MEMORY. */
MEMO_API memo_status memo_degrees_problem_from_model(const memo_degrees_model* model,
                                                     memo_degrees_problem** problem,
                                                     memo_error* error);

/* A profile as text, measured or not; whole nanoseconds and bytes:
 *
 *   memo degrees-profile 1
 *   blocks N                            the frame (first and last line) may be left out, as for traces
 *   degrees 2 4 8
 *   memory BYTES                        these three may be left out
 *   boundary DEGREE
 *   gradients 1
 *   gather FROM TO NS                   each pair, FROM < TO
 *   block I DEGREE F C X CB GRADIENTS STATE SAVED RUNTIME     each block from 0, each degree
 *   end LINES CHECKSUM
 *
 * Errors: IO; FORMAT, VERSION with error->line. */
MEMO_API memo_status memo_degrees_problem_read(const char* path, memo_degrees_problem** problem,
                                               memo_error* error);
MEMO_API memo_status memo_degrees_problem_parse(const char* text, int64_t n_bytes, const char* name,
                                                memo_degrees_problem** problem, memo_error* error);
MEMO_API memo_status memo_degrees_problem_write(const memo_degrees_problem* problem,
                                                const char* path, memo_error* error);

/* Time and memory of a plan; block_degrees (n_blocks) are degrees, not indices.  Errors: INVALID_ARGUMENT naming
 * the block. */
MEMO_API memo_status memo_degrees_evaluate(const memo_degrees_problem* problem,
                                           const int32_t* block_degrees, double* step_s,
                                           int64_t* memory_bytes, memo_error* error);

typedef enum memo_degrees_engine {
    MEMO_DEGREES_ENGINE_AUTO = 0, /* the integer program where lp_solve is there, else labels */
    MEMO_DEGREES_ENGINE_MIP,      /* the paper's integer program, by lp_solve */
    MEMO_DEGREES_ENGINE_LABELS /* dynamic program: partial plans that no other beats in time and memory */
} memo_degrees_engine;

typedef struct memo_degrees_plan {
    int32_t n_blocks;
    int32_t* degrees;
    double step_s; /* as memo_degrees_evaluate has it: what overlaps counts once */
    int64_t memory_bytes;
    memo_proof proof; /* OPTIMAL, or FEASIBLE where time or labels ran out */
    double solve_s;
    char engine[16];
} memo_degrees_plan;

/* time_limit_s 0: 10.  Of equal plans any.  Errors: INVALID_ARGUMENT (a negative cost; the boundary's degree is
 * none of degrees), INFEASIBLE (how much memory the smallest plan needs), UNSUPPORTED (the integer program without
 * lp_solve), OUT_OF_HOST_MEMORY. */
MEMO_API memo_status memo_degrees_solve(const memo_degrees_problem* problem,
                                        memo_degrees_engine engine, double time_limit_s,
                                        memo_degrees_plan** plan, memo_error* error);
MEMO_API void memo_degrees_plan_destroy(memo_degrees_plan* plan);

/* The trainer's --degrees file: "memo degrees 1", a line "block I DEGREE" each in order, "end" with a checksum;
 * the frame may be left out.  *block_degrees is freed with memo_degrees_free.  Errors: as above. */
MEMO_API memo_status memo_degrees_write(const int32_t* block_degrees, int32_t n_blocks,
                                        const char* path, memo_error* error);
MEMO_API memo_status memo_degrees_read(const char* path, int32_t** block_degrees, int32_t* n_blocks,
                                       memo_error* error);
MEMO_API memo_status memo_degrees_parse(const char* text, int64_t n_bytes, const char* name,
                                        int32_t** block_degrees, int32_t* n_blocks,
                                        memo_error* error);
MEMO_API void memo_degrees_free(int32_t* block_degrees);
