#pragma once
/* ---- 3 rows of every tensor: kept, swapped, recomputed ------------------------------------------
 *
 * Chooses, for each skeletal tensor of each layer, whether the device keeps the tensor.  If not,
 * chooses the number of swapped rows; the other rows are recomputed.  The aim is the shortest step
 * within device memory, host memory and the file: all micro-batches, and the update of states.
 *
 * The step of a table of rows is the makespan that memo_schedule_simulate finds for
 * memo_swap_generate's schedule.  The planner needs no lp_solve.  From the best single alpha (MEMO
 * paper) and from tables that need little memory the planner makes random changes: of a tensor in
 * layers of a kind, or in neighboring layers.  After a change another tensor takes the free memory,
 * or gives up the missing bytes.
 *
 * The best table of all is the plan.  Ties go to the plan that recomputes least, then to the plan
 * that moves least.  The same desc always gives the same plan.
 *
 * With a third tier (memo_swap_desc.n_host_layers), fewer places in host memory leave room for more
 * rows of each layer, but more layers go to the file.  A table gets the most places that fit; maybe
 * fewer if its layers move unlike bytes. */

typedef struct memo_swap_plan_desc {
    /* Tensors, layers, kinds, n_rows and tile_rows count.  With rows the plan only has their
     * times. */
    const memo_swap_desc* swap;
    /* Times may be in any unit, if all are in this unit.  Tensors are found by name.  With an EDGE
     * the profile may be of slices of another size: times of layers are scaled. */
    const memo_profile* profile;
    int32_t micro_batches; /* of a step, before its update; 0: 1.  Of an order: 1 */
    /* Capacities for memo_swap_sizes.device_bytes and host_bytes; 0: no limit. */
    int64_t device_bytes, host_bytes;

    /* Fields of sessions, 0 in a caller's own desc. */
    int64_t spill_bytes; /* capacity for memo_swap_sizes.spill_bytes; 0: no file */
    /* Streamed states, which use the same link; NULL: none.  Layer 0 comes before the layers, the
     * last layer behind the layers. */
    const struct memob_states_desc* states;
} memo_swap_plan_desc;

/* What keeps the step from being shorter. */
typedef enum memo_swap_limit {
    MEMO_SWAP_LIMIT_NONE = 0,
    MEMO_SWAP_LIMIT_BANDWIDTH,
    MEMO_SWAP_LIMIT_HOST_MEMORY,
    MEMO_SWAP_LIMIT_DEVICE_MEMORY,
    MEMO_SWAP_LIMIT_DISK,   /* reading and writing the file, and memo_session_desc.fetch */
    MEMO_SWAP_LIMIT_UPDATE, /* the update on the host */
    MEMO_N_SWAP_LIMITS
} memo_swap_limit;

typedef struct memo_swap_plan {
    /* What to set in memo_swap_desc. */
    int64_t* rows;         /* (n_layers, n_tensors), owned by the plan; NULL: by alpha */
    double alpha;          /* the best single alpha; -1: none fits, or the rows are given */
    int32_t n_host_layers; /* places for layers in host memory; 0: for each that is moved */

    /* Predicted seconds of a step: all its micro-batches, or an order, and the update of states.
     * With states the step comes after a step like this. */
    double step_s;
    double micro_batch_s; /* mean time of a micro-batch; an order counts as one */
    double update_s;      /* of step_s, after the last micro-batch; 0: no states, or it is fused */
    double stall_s;       /* stall of the compute stream in all micro-batches, part of step_s */
    double recompute_s;   /* recomputation in all micro-batches, part of step_s */
    double alpha_step_s;  /* step_s of the best single alpha */
    int64_t device_bytes, host_bytes, swapped_bytes, spill_bytes; /* as in memo_swap_sizes */
    int64_t to_host_bytes, to_device_bytes; /* copied in a step, with those of states */
    int32_t n_spilled_layers;               /* as in memo_swap_sizes */
    memo_swap_limit limit;
    char reason[160]; /* "host memory is the limit; 24 GiB more would save 6% of the step" */
} memo_swap_plan;

/* Errors: INVALID_ARGUMENT (naming the field; the profile is of other rows, or lacks a tensor or
 * kind); INFEASIBLE (naming the memory and the bytes that the smallest plan needs);
 * OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_plan_swap(const memo_swap_plan_desc* desc, memo_swap_plan** plan,
                                    memo_error* error);
MEMO_API void memo_swap_plan_destroy(memo_swap_plan* plan);
