/* plan_parts/swap.h - public part of the swap planner; included by memo_plan.h. */

#ifdef __cplusplus
extern "C" {
#endif

/* ---- swap: profile --------------------------------------------------------------------------------
 *
 * What the planner needs to know of a device and of a trainer on it: measured once, kept in a file. */

#define MEMO_PROFILE_TENSORS_MAX 64
#define MEMO_PROFILE_COPIES_MAX  24

typedef struct memo_profile_tensor {
    char name[32];              /* no blanks */
    double recompute_s_per_row; /* negative: cannot be recomputed, or not measured */
} memo_profile_tensor;

/* How long copies of a size take, in seconds. */
typedef struct memo_profile_copy {
    int64_t size_bytes;
    double to_host_s, to_device_s; /* alone */
    double both_ways_s;            /* one each way at the same time, until both are done */
} memo_profile_copy;

typedef struct memo_profile {
    int64_t n_rows;               /* of a micro-batch: what the times below are for */
    double forward_s, backward_s; /* of a layer */
    double between_s;             /* between the last forward and the first backward */
    int32_t n_tensors, n_copies;
    memo_profile_tensor tensors[MEMO_PROFILE_TENSORS_MAX];
    memo_profile_copy copies[MEMO_PROFILE_COPIES_MAX]; /* by size, rising */
} memo_profile;

/* The trainer's part: each function enqueues its work on compute_stream; NULL: takes no time. */
typedef struct memo_profile_desc {
    const memo_device* device;
    memo_stream compute_stream;
    memo_status (*forward)(void* user, memo_error* error);
    memo_status (*backward)(void* user, memo_error* error); /* without recomputation */
    memo_status (*between)(void* user, memo_error* error);
    /* All rows of one tensor; NULL: no tensor can be recomputed.  UNSUPPORTED: this one cannot. */
    memo_status (*recompute)(void* user, int32_t tensor, memo_error* error);
    void* user;
    const memo_swap_tensor* tensors;
    int32_t n_tensors; /* at most MEMO_PROFILE_TENSORS_MAX */
    int64_t n_rows;
    int64_t largest_copy_bytes; /* from 64 KiB on in steps of 8; device and host memory for two are
                                   taken meanwhile; 0: 32 MiB */
    int32_t n_repetitions;      /* each figure is the median of these, after one more to warm up;
                                   0: 5 */
} memo_profile_desc;

MEMO_API memo_profile_desc memo_profile_desc_default(void);
/* Waits for the device again and again: not for the training path.  Errors: INVALID_ARGUMENT, the
 * device's, those of the functions. */
MEMO_API memo_status memo_profile_measure(const memo_profile_desc* desc, memo_profile* profile,
                                          memo_error* error);

/* Text: "memo profile 1", a line a figure, "end" with a checksum, as for traces.  Times are whole
 * femtoseconds, so that reading gives back what was written to within one; below 9000 s.
 *
 *   rows ROWS
 *   layer FORWARD BACKWARD BETWEEN
 *   tensor NAME FEMTOSECONDS_PER_ROW|-
 *   copy BYTES TO_HOST TO_DEVICE BOTH_WAYS */
MEMO_API memo_status memo_profile_read(const char* path, memo_profile* profile, memo_error* error);
MEMO_API memo_status memo_profile_write(const memo_profile* profile, const char* path,
                                        memo_error* error);
MEMO_API memo_status memo_profile_parse(const char* text, int64_t n_bytes, const char* name,
                                        memo_profile* profile, memo_error* error);

/* ---- swap: rows of every tensor -------------------------------------------------------------------
 *
 * For each skeletal tensor: how many of its rows are kept on the device, swapped and recomputed, so
 * that a step takes least.  A linear program over the three shares of each tensor and the start time
 * of every operation of the step; its value is the makespan that memo_schedule_simulate finds for
 * memo_swap_generate's schedule, before shares are rounded to tiles.  Rounded plans are compared by
 * that makespan, with the best single alpha (MEMO paper) among them.
 *
 * Layers have the same times, so their shares are the same; where device memory is left over, layers
 * keep rows that others recompute, from the last on.  (Keeping rows of all layers or of some is the
 * same to the program: both shorten the step by the same time for each byte.) */

/* What recomputing a tensor takes.  It is recomputed from tensors before it in the table; whether
 * these were kept, swapped or recomputed themselves, their rows are there by then, so each pays for
 * itself alone (a GELU for its few operations, its input for the product before). */
typedef struct memo_swap_cost {
    double recompute_s_per_row; /* negative: cannot be recomputed */
    int32_t is_whole;           /* all rows or none (attention) */
    int32_t
        with; /* 1 + index of the tensor whose recomputation gives this one too (a norm its rstd,
                     attention its LSE): both are split alike, and that one's time counts; 0: none */
} memo_swap_cost;

typedef struct memo_swap_plan_desc {
    /* tensors, n_layers, n_rows and tile_rows count; modes say what alpha means (WHOLE and SPLIT) and
     * which tensors are kept in any case (KEEP). */
    const memo_swap_desc* swap;
    const memo_swap_cost* costs;  /* n_tensors */
    double forward_s, backward_s; /* of a layer */
    double between_s;             /* after the last forward */
    double copy_s;                /* of each copy, beside its bytes */
    double to_host_bytes_per_s;   /* 0: no time, as the next */
    double to_device_bytes_per_s; /* copies of a step never go both ways at once */
    int64_t device_bytes;         /* capacity for memo_swap_sizes.device_bytes; 0: none */
    int64_t host_bytes;           /* capacity for memo_swap_sizes.host_bytes; 0: none */
    int32_t is_alpha_only;        /* the best single alpha, nothing else */
} memo_swap_plan_desc;

typedef struct memo_swap_plan {
    /* What to set in memo_swap_desc: memo_swap_plan_apply does. */
    memo_swap_rows* rows;      /* (n_layers, n_tensors); NULL: by alpha */
    double alpha;              /* the best single one; -1: none fits */
    int32_t n_resident_layers; /* that goes with alpha */

    double step_s;       /* predicted makespan of a micro-batch's layers and what is between */
    double stall_s;      /* of it, the compute stream waits */
    double recompute_s;  /* of it, recomputation */
    double alpha_step_s; /* the same for the best single alpha */
    double program_s; /* the program's value: no plan that gives every layer the same shares takes
                             less, rounded to tiles or not; 0: not known */
    int64_t device_bytes, host_bytes, swapped_bytes; /* as in memo_swap_sizes */
    memo_alpha_limit limit;                          /* what binds */
    char reason[160]; /* "host memory is the limit; 24 GiB more would save 6% of the step" */
} memo_swap_plan;

MEMO_API memo_swap_plan_desc memo_swap_plan_desc_default(void);
/* Fills in times and rates.  Copies: copy_s and the rates of the line through the smallest and the
 * largest copy of the profile.  costs (n_tensors of desc->swap, may be NULL) get
 * recompute_s_per_row by the names of the tensors.  Errors: INVALID_ARGUMENT (another number of
 * rows; a tensor the profile does not have). */
MEMO_API memo_status memo_swap_plan_use_profile(memo_swap_plan_desc* desc, memo_swap_cost* costs,
                                                const memo_profile* profile, memo_error* error);
/* Without lp_solve: the best single alpha, improved tile by tile; program_s is 0.
 * Errors: INVALID_ARGUMENT; INFEASIBLE (which memory, and how much the least demanding plan needs);
 * OUT_OF_HOST_MEMORY. */
MEMO_API memo_status memo_plan_swap(const memo_swap_plan_desc* desc, memo_swap_plan** plan,
                                    memo_error* error);
MEMO_API void memo_swap_plan_destroy(memo_swap_plan* plan);
/* Sets rows, alpha and n_resident_layers of a desc with the same tensors, layers and rows; plan
 * lives as long as desc is used. */
MEMO_API void memo_swap_plan_apply(const memo_swap_plan* plan, memo_swap_desc* desc);

#ifdef __cplusplus
}
#endif
