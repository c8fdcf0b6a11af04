/* memo_plan.h: made from src/ by scripts/amalgamate; edit there. */
/* memo_plan.h - the planners: where every tensor goes, how many rows travel; and the session, which
 * runs a trainer's step by their plans.
 *
 * NOT FOR: changing a model's results to save memory.  Plans choose places and times; what they
 * cannot place within the budgets they refuse, with what would work.  Nothing is compiled, traced
 * from Python or rewritten: the trainer describes its tensors and keeps its loops.
 *
 * STEP BY STEP, a session in the order of calls (examples/05_three_edits.c):
 *
 *     1  a memo_session_desc: tensors, layers, rows, budgets, and the trainer's functions
 *     2  memo_session_verify of extras/memo_check.h, once in a new trainer: do several plans give
 *        the same bits?  Also run a few steps with MEMO_CHECK=1 in the environment, which names
 *        mistakes.  Without a check a wrong table gives wrong numbers, silently
 *     3  memo_session_create: memo_session_plan and memo_session_open in one; the session then
 *        times its first training steps and plans again
 *     4  memo_session_run for each micro-batch, or memo_session_begin, the trainer's own loops
 *        between memo_session_forward_begin and its like, memo_session_end
 *     5  memo_session_update, if states (weights, gradients, moments) are in the budgets
 *     6  memo_session_destroy
 *
 * EXAMPLE: two tensors of a layer, of which one is computed again (a whole trainer:
 * examples/05_three_edits.c; a plan of offsets alone: examples/02_plan_trace_file.c).
 *
 *     #define MEMO_IMPLEMENTATION             // in exactly one translation unit
 *     #define MEMO_PLAN_IMPLEMENTATION        // in the same unit
 *     #include "memo_plan.h"                  // cc -std=c99 train.c -lpthread -lm
 *
 *     enum { L = 8, T = 512, C = 32 };
 *     // Name, bytes of a row, and how rows may leave the device: all are moved to the host and
 *     // back (MOVE), or some are moved and the others recomputed (ROWS).
 *     static const memo_item tensors[] = {MEMO_ITEM("inp", sizeof(float) * C, MEMO_MOVE),
 *                                         MEMO_ITEM("out", sizeof(float) * C, MEMO_ROWS)};
 *     static float x[T * C], dx[T * C];       // between layers: the input, and the gradient
 *     static void recompute(void* user, memo_session* s, int32_t layer, int32_t tensor,
 *                           int64_t begin, int64_t end) {
 *         const float* inp = (const float*)memo_session_get_address(s, layer, tensor - 1);
 *         float* out = (float*)memo_session_get_address(s, layer, tensor);
 *         for (int64_t i = begin * C; i < end * C; i++) out[i] = tanhf(inp[i]);
 *         (void)user;
 *     }
 *     static void forward(void* user, memo_session* s, int32_t layer) {
 *         memcpy(memo_session_get_address(s, layer, 0), x, sizeof x);
 *         recompute(user, s, layer, 1, 0, T);
 *         memcpy(x, memo_session_get_address(s, layer, 1), sizeof x);
 *     }
 *     static void between(void* user, memo_session* s) {  // the loss is the sum of squares / 2
 *         memcpy(dx, x, sizeof x);
 *         (void)user, (void)s;
 *     }
 *     static void backward(void* user, memo_session* s, int32_t layer) {
 *         const float* out = (const float*)memo_session_get_address(s, layer, 1);
 *         for (int i = 0; i < T * C; i++) dx[i] *= 1 - out[i] * out[i];
 *         (void)user;
 *     }
 *     int main(void) {
 *         memo_session_desc desc = {0};
 *         memo_session* session = NULL;
 *         memo_error error;
 *         desc.tensors = tensors;  desc.n_tensors = 2;
 *         desc.n_layers = L;  desc.n_rows = T;  desc.tile_rows = 64;
 *         desc.forward = forward;  desc.between = between;  desc.backward = backward;
 *         desc.recompute = recompute;
 *         desc.device_bytes = 384 << 10;      // of 1 MiB that all tensors take
 *         memo_status status = memo_session_create(&desc, &session, &error);
 *         for (int i = 0; i < 6 && !status; i++)
 *             status = memo_session_run(session, NULL, &error);   // one micro-batch
 *         if (status) fprintf(stderr, "%s\n", error.message);
 *         memo_session_destroy(session);
 *         return status != MEMO_STATUS_OK;
 *     }
 *
 * CHAPTERS
 *   1 offsets  memo_plan_solve     offsets of a memo_plan: proven optimal, or with a gap
 *   2 profile  memo_profile        times of a trainer's kernels and copies, in a file
 *   3 rows     memo_plan_swap      which rows of each tensor and layer to keep, swap, recompute
 *   4 session  memo_session_*      from tensors and a budget to a running step
 * The implementation follows the chapters, in parts called rooms.  It begins with a table of them:
 * search for the word beside a room's name.
 *
 * lp_solve 5.5 is optional: compile with -DMEMO_LP_SOLVE and link -llpsolve55.  Without lp_solve
 * the built-in planners are used, and the engine MIP returns UNSUPPORTED unless greedy meets the
 * bound or the capacity.
 *
 * License: MIT.  lp_solve is LGPL and is linked, never copied in.  Language: C99 that is also
 * C++11. */
#ifndef MEMO_PLAN_H
#define MEMO_PLAN_H

#include "memo.h"

#if MEMO_VERSION_MAJOR != 0 || MEMO_VERSION_MINOR != 5
#error "memo_plan.h: memo.h is of another release; use the memo.h of the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1 offsets: where every buffer goes ------------------------------------------------------ */

typedef enum memo_plan_engine {
    MEMO_PLAN_ENGINE_AUTO = 0, /* greedy, then branch and bound, of all or of parts */
    MEMO_PLAN_ENGINE_GREEDY,   /* the best of a few orders, in milliseconds */
    MEMO_PLAN_ENGINE_MIP,      /* greedy, then the paper's program by lp_solve; small cases */
    MEMO_PLAN_ENGINE_BILEVEL,  /* marked layers of a trace without holds, then what AUTO does */
    MEMO_N_PLAN_ENGINES
} memo_plan_engine;

typedef struct memo_plan_desc {
    memo_plan_engine engine;
    int64_t capacity_bytes; /* stops at a plan this small; 0: looks for the smallest */
    double time_limit_s;    /* then the best plan found is kept; 0: 10, beyond 8,000 buffers 3 */
    uint64_t seed;          /* of random choices */
    int32_t n_threads;      /* of the search; 0: 1.  Always 1 with MEMO_NO_HOST_DEVICE */
    memo_log log;           /* receives a line for every attempt of the search */
    const int32_t* stop;    /* optional; once it is not 0, planning ends as if time were up */
    /* Optional: the trace of the plan.  BILEVEL needs the marks of the trace, which say where
     * layers begin and end. */
    const memo_trace* trace;
    /* Optional: waits that the plan of this trace may buy, instead of the waits that the plan has.
     * The plan buys waits that make the peak smaller; with a capacity, a set with which the plan
     * fits: the cheapest of up to 12 offers, or a cheap one.  Every bought wait is necessary. */
    const memo_wait* offers;
    int64_t n_offers;
    int64_t memoi_node_limit; /* private: 0 */
} memo_plan_desc;

/* Chooses an offset for every buffer of a plan, with the smallest peak found (MEMO paper, section
 * 4.2).  Sets offsets, peak, bound, proof and engine of plan; desc may be NULL.
 *
 * Proof is OPTIMAL if no plan with the same waits is smaller; holds count as conflicts.  The plan
 * is valid even if the capacity is not met: then the call returns INFEASIBLE, and the message
 * states the proven bound.  The same seed, node limit and number of threads give the same plan,
 * unless time runs out first.
 *
 * The exact search takes buffers that overlap in time without a break: at most 8,000 buffers, 300
 * bytes of stack and a megabyte of memory each thread.  In larger problems the search places the
 * buffers around the highest buffers again.  If these are too many, or if there are holds, greedy
 * runs that learn from the last run improve the plan.
 * Errors: INVALID_ARGUMENT (as memo_plan_prepare; fixed buffers that share bytes in spite of a
 * hold; another plan's trace; a negative limit; n_threads outside [0, 64]), INFEASIBLE,
 * OUT_OF_HOST_MEMORY, UNSUPPORTED (if greedy does not meet bound or capacity: the MIP without
 * lp_solve, with unlike alignments, or with too many pairs of buffers). */
MEMO_TRY memo_status memo_plan_solve(memo_plan* plan, const memo_plan_desc* desc,
                                     memo_error* error);

/* ---- 2 profile: times of a trainer's kernels and copies -----------------------------------------
 *
 * The planner needs a few times of a trainer on a device.  A session times its first training
 * steps, and memo_session_get_profile returns the times; keep the profile in a file. */

#define MEMO_PROFILE_TENSORS_MAX 64
#define MEMO_PROFILE_KINDS_MAX   32 /* of layers */

typedef struct memo_profile_tensor {
    char name[32]; /* no blanks */
    /* For each kind, of ROWS and WHOLE tensors.  A tensor is recomputed from tensors before it in
     * the table, whose rows are recomputed first.  So each time covers one tensor: a GELU's few
     * operations, or the product that makes its input.  Negative: cannot be recomputed, or not
     * measured. */
    double recompute_s_per_row[MEMO_PROFILE_KINDS_MAX];
    double recompute_growth_s_per_row[MEMO_PROFILE_KINDS_MAX]; /* see forward_growth_s */
} memo_profile_tensor;

/* Seconds that bytes take to the host and back to the device, alone: the copies of a step go one
 * way at a time, except those of MEMO_EDGE.  For the file: seconds of a write and of a read,
 * while copies go the same way; a disk with a cache may seem faster than its sustained rate. */
typedef struct memo_profile_transfer {
    int64_t size_bytes; /* 0: not measured */
    double out_s, back_s;
} memo_profile_transfer;

typedef struct memo_profile {
    int64_t n_rows;  /* of the micro-batch that the times below are for */
    int32_t n_kinds; /* of layers */
    int32_t n_tensors;
    /* Of a sequence, in tokens, at which attention was timed: rows of two lengths take unlike
     * times.  The trainer sets and compares it; 0: it is not named. */
    int64_t length;
    /* A layer of each kind; the backward without recomputation. */
    double forward_s[MEMO_PROFILE_KINDS_MAX], backward_s[MEMO_PROFILE_KINDS_MAX];
    /* With slices the times are those of a slice in the middle of the layer.  They grow in a line,
     * because attention does: the first rows take so much less, the last so much more. */
    double forward_growth_s[MEMO_PROFILE_KINDS_MAX], backward_growth_s[MEMO_PROFILE_KINDS_MAX];
    double between_s;              /* between the last forward and the first backward */
    double update_s_per_byte;      /* of states that the update uses; 0: not measured */
    double update_host_s_per_byte; /* likewise on the host, one layer after the other; if it is not
                                      measured, the host updates only if nothing else fits */
    double fetch_s_per_byte; /* that memo_session_desc.fetch copies, while copies go to the device;
                                0: not measured */
    double recompute_call_s; /* of each tensor with recomputed rows, in addition to the rows */
    /* Copies slow computation.  A step takes so much longer for each byte that is copied to the
     * host [0] and to the device [1] while the step computes.  0: it takes no longer, or this was
     * not measured: timed steps need room for a copy beside their plan, on the device and on the
     * host, a stream that computes, and no order. */
    double slowdown_s_per_byte[2];
    memo_profile_tensor tensors[MEMO_PROFILE_TENSORS_MAX];
    /* A small and a large copy.  All zero: copies take no time.  If only the large copy was
     * measured, it gives the rate. */
    memo_profile_transfer copies[2];
    memo_profile_transfer file;
} memo_profile;

/* A profile as text: "memo profile 1", a line for each figure, "end" with a checksum, as for
 * traces.  Times are whole femtoseconds, at most 9000 s.  Reading returns the written value within
 * one femtosecond.
 *
 *   rows ROWS KINDS TENSORS BETWEEN [UPDATE_OF_A_BYTE RECOMPUTE_CALL SLOWDOWN_OF_A_BYTE OF_BACK
 *        UPDATE_OF_A_BYTE_ON_HOST FETCH_OF_A_BYTE LENGTH]
 *   layer FORWARD BACKWARD [GROWTH_FORWARD GROWTH_BACKWARD]    of each kind
 *   tensor NAME                                                each tensor, and after it
 *   row TIME|- [GROWTH]                                        recomputation, in each kind
 *   copy BYTES TO_HOST TO_DEVICE                               small, then large
 *   file BYTES WRITE READ */
MEMO_TRY memo_status memo_profile_read(const char* path, memo_profile* profile, memo_error* error);
MEMO_TRY memo_status memo_profile_write(const memo_profile* profile, const char* path,
                                        memo_error* error);

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

/* ---- 4 session: from tensors and a budget to a running step -------------------------------------
 *
 * A trainer describes its tensors, names its functions and states a budget.  memo_session_create
 * plans, and opens an arena and a swap engine that fit.
 * The head of this header has an example.
 *
 * Self-timing.  The fastest plan depends on times, which nobody knows at first.  Every plan has the
 * same bits, so the first training steps run by a plan that fits (everything recomputed, if that
 * fits), and are timed; then the session plans by their times, between two steps, and goes on.  No
 * function of the trainer runs only to be timed.  What is timed:
 *
 *     desc.timed_steps   steps before the plan, 4 by default, of which the first does not count.
 *                        Micro-batches with fewer than half of their shape's rows, forwards alone,
 *                        and what fails do not count; if too few count, the session waits as long
 *                        again.  In these steps recompute is called for all rows of each tensor.
 *     before the steps   copies of the session's own bytes to the host and back, and a file
 *     beside layers      the same copies beside two of three layers, to find how much they slow
 *                        computation, if the budgets have room for one beside the first plan.  A
 *                        timed layer waits for all other copies, so that these steps take longer
 *     not timed          an update at another place than the first plan's; shapes that have not
 *                        trained get the times of others, by rows
 *
 * When the session plans again, the device memory stays the same block, of all device_bytes.
 * Buffers of pass SESSION keep address and bytes.
 * Other addresses are new: desc.planned says when (graphs, registered memory).  Slices and
 * the place of the update stay.  States keep their bytes, and move if host_bytes and disk_bytes
 * have room for both plans' states at once and host_bytes beside them for those on the device, if
 * so much can be pinned, and if host_memory is NULL; otherwise they stay where they are, and rows
 * alone are planned.  Pending updates run first.
 * If the plan cannot be opened, for instance because no memory can be pinned, the first plan stays,
 * with a line in the log.  All ranks plan before the same step, by the same times.
 * desc.profile_path keeps the times for the next run, which then begins by the second plan.
 *
 * With times that are known, from memo_session_get_profile or a file of another run:
 *
 *     memo_session_plan(&desc, &profile, &plan, &error);      // data; needs no device
 *     memo_session_open(&desc, plan, &session, &error);       // arena and swap engine
 *
 * A plan fits or says what is missing.  So a table of all policies is a loop:
 *
 *     desc.alpha = -1;                                        // planned
 *     for (policy = 0; policy < MEMO_POLICY_ROWS; policy++) {
 *         desc.policy = (memo_policy)policy;
 *         if (memo_session_plan(&desc, &profile, &plan, &error)) return error.status;
 *         printf("%s %lld %s\n", memo_policy_name(plan->policy), plan->device_bytes,
 *                plan->shortage);
 *         memo_step_plan_destroy(plan);
 *     }
 *
 * Bits.  A run keeps the bits if recompute gives each row the bits of the first computation, for
 * any run of whole tiles.  Products of libraries choose an algorithm by shape: compute products
 * tile by tile in the forward too, or make the tensor WHOLE.  memo_session_verify compares the
 * gradients of several plans before training.  A checked session (is_checked, or MEMO_CHECK=1 in
 * the environment) tests this, and finds wrong sizes, orders and recomputations.
 *
 * Functions.  A trainer with a loop gives `step` instead of forward, between and backward.  `step`
 * computes everything between begin and end of a micro-batch.
 *
 *     static void step(void* user, memo_session* s) {
 *         for (l = 0; l < L; l++) {
 *             if (memo_session_forward_begin(s, l)) ... compute ...
 *             memo_session_forward_end(s, l);
 *         }
 *         for (l = L - 1; l >= 0; l--) {
 *             if (memo_session_backward_begin(s, l)) {
 *                 void* scratch = memo_session_get_buffer(s, SCRATCH);   // declared: no malloc
 *                 ... compute ...
 *             }
 *             memo_session_backward_end(s, l);
 *         }
 *     }
 *
 * A plan needs the desc alone: no function of the trainer is called before the first micro-batch.
 * Begin calls return 0 after an error and for an empty slice; then the layer does not compute.  Two
 * layers may be open at a time, for fused kernels (memo.h, chapter 7).
 *
 * Errors.  A session keeps the first error of a micro-batch, and later calls do nothing, so a step
 * need not check calls.  memo_session_end and memo_session_run return the error.  An error between
 * micro-batches is returned by the next call that has a status; that call does nothing else, but
 * with `agree` the step ends.
 *
 * One thread at a time.  Between begin and end no call allocates or locks, and none waits unless
 * the calling thread computes or the session is checked. */

typedef struct memo_session memo_session;

/* Slices.  With slice_rows a layer is computed in slices of its rows, each with rounding buffers of
 * a slice (memo.h, chapter 7): device memory then depends on the slice, and on the tensors of scope
 * LAYER, but not on n_rows.  A trainer calls begin and end of each layer once for each
 * slice, memo_slice.n_slices times in a row: first to last in the forward, last to first in the
 * backward.  memo_session_get_slice gives that number, and the rows of the open slice.
 *
 *     for (l = 0; l < L; l++)
 *         for (i = 0; i < memo_session_get_slice(s).n_slices; i++) {
 *             if (memo_session_forward_begin(s, l)) ... compute rows of memo_session_get_slice ...
 *             memo_session_forward_end(s, l);
 *         }
 *
 * Without `step`, forward and backward are called for each slice.  recompute gets rows of the
 * slice.  Each slice of the last layer finds its output in the EDGE when the backward
 * begins; there `loss` is called.  The state of a recurrence lies in a buffer of pass FORWARD with
 * MEMO_EACH_LAYER, the gradient in a buffer of pass BACKWARD: slices pass both on, and the trainer
 * clears both at borders of documents.  A CARRIED tensor keeps the first state of a slice.  If a
 * micro-batch has few rows, the last slices are empty: begin returns 0.  One layer is open at a
 * time.  Forwards and gradients of each slice size are the same bits under every policy.
 *
 * LAYER tensors: a slice writes its rows, counted from the layer's row 0, and reads earlier rows.
 * The EDGE: the trainer writes the rows in the first layer.  In the backward the last layer finds
 * the output there, other layers the gradient.  With T rows of a layer and R of a slice, memory is
 * what R rows without slices take, and, times row_bytes,
 *
 *     on the device   T for each layer that keeps a LAYER tensor; 2 T if some layers do not (T if
 *                     these are all even or all odd); 2 R for the EDGE
 *     on the host     the sum over slices; T for each layer but the last two of a LAYER tensor; T
 *                     for the EDGE.  In an order: of each place, of all its layers, but T alone for
 *                     the EDGE without `loss`
 *
 * Late rows.  How many rows the experts of a layer get is known only when its forward has routed
 * them: then the trainer calls memo_session_set_routed.  Items with LATE_ROWS have that many rows
 * in that layer, at most routed_rows_layer, in all layers together at most A = routed_rows_all.  Of
 * n such layers, each with A / n rows, a plan keeps the rows of k, and the device has a scratch of
 * routed_rows_layer rows, unless k is n.  Rows that do not fit into k A / n rows are the surplus:
 * that of a MOVE item moves to the host and comes back, that of a ROWS item is recomputed.  So
 * layers with more rows than A / n take more time, but no more memory, and the bits are the same.
 * The surplus never spills.  A slice or a shorter shape has at most its share of both numbers. */

/* Groups.  Micro-batches of a step may go through the layers together: each layer computes all of a
 * group, as it computes slices, before the next layer begins.  The states of a layer then travel
 * once a group, and not once a micro-batch; the rows of all wait on the host at once.  A group of
 * n_group micro-batches is one call of memo_session_run, with the tokens of all:
 *
 *     for (i = 0; i < N; i += plan->n_group) {        // N: desc.micro_batches, a step
 *         batch.more_follow = i + plan->n_group < N;
 *         if (memo_session_run(s, &batch, &error)) ...;
 *     }
 *
 * memo_slice.micro_batch says which of the group the open layer computes; rows of memo_slice and
 * memo_batch.n_rows count in that micro-batch, and all have as many.  memo_slice.n_slices counts
 * the slices of the whole group.  Forwards begin with the last micro-batch, backwards with the
 * first: gradients add up in the order of the micro-batches, so that a sum has the same bits under
 * every n_group.  LAYER tensors, CARRIED ones and buffers of MEMO_EACH_LAYER begin anew in each
 * micro-batch of a layer.  A buffer that lives across layers has a part for each micro-batch,
 * n_group parts of its bytes rounded up to 512 in a row;
 * memo_session_get_buffer gives the open one's, and outside of layers the first.  A group needs a
 * MEMO_EDGE, and `loss` instead of `between`.  Shapes that are is_forward_only have no groups.
 * With MEMO_GROUP_PLANNED memo_session_plan compares groups by the predicted step; without a
 * profile micro-batches then follow one another.  A session that times itself begins so, and plans
 * in memo_session_update: read n_group from memo_session_info.plan after each update. */

/* States.  A trainer may also give weights, gradients and optimizer states to the session (memo.h,
 * chapter 8).  The budgets then include the states: a state that does not fit on the device lies on
 * the host, or in a file, and comes to the device for each layer that uses the state.
 *
 *     static const memo_state states[] = {{"weights", 2 * P, MEMO_STATE_WEIGHTS, 0},
 *                                         {"gradients", 4 * P, MEMO_STATE_GRADIENT, 0},
 *                                         {"moments", 8 * P, MEMO_STATE_UPDATE, 0}};
 *
 *     memo_session_run(session, &batch, &error);       // batch.more_follow = 1: gradients add up
 *     memo_session_update(session, &error);            // calls desc.update for each layer
 *
 * Layers.  A state whose kinds have the bit MEMO_STATE_FIRST is of the part before layer 0, such as
 * an embedding: layer MEMO_LAYER_FIRST.  A state with the bit MEMO_STATE_LAST is of the part after
 * the last layer, such as a classifier: layer n_layers.  kinds 0 means all layers between these
 * two.  A state that both use is SHARED, see below; others have at most one of both bits.  The
 * states of a layer are on the device between begin and end of the layer.  States of
 * FIRST are there until layer 0 ends the forward, and after layer 0 begins the backward.  States of
 * LAST are there from the end of the last forward to the end of the first backward.  One layer is
 * open at a time.
 *
 * Passes.  A step is any number of micro-batches, each a forward and a backward, and then an
 * update: memo_session_update ends each step.  States are zero bytes at first, unless FETCHED.  The
 * session
 * fills gradients with zero bytes when the first backward of a step begins their layer.  After the
 * update the bytes of gradients have no meaning.
 *
 * When the update runs.  By default memo_session_update updates all layers, in a pass of its own,
 * in which all that the update uses travels and little is computed.  With desc.update_may a plan
 * may choose another moment, if the predicted step is shorter; the bits are the same:
 *
 *     MEMO_MAY_DEFER   right before the layer's next forward.  States travel while other layers
 *                      compute.  `update` is then called in a forward of the next step; what it
 *                      reads beside states must still be that of its own step.  Small values of a
 *                      step (a rate, a step number) may come with the micro-batch,
 *                      memo_batch.values, or behind it, such as a norm of all gradients:
 *                      memo_session_set_update_values.
 *     MEMO_MAY_FUSE    in the last backward of the step, when the layer ends.  Nothing travels for
 *                      the update alone.  Sums over ranks fit into `update` of a layer; a norm of
 *                      all gradients does not.
 *
 * Deferred updates that are pending run in a pass of their own before states are read, written or
 * filled, before a forward alone, and in memo_session_flush.  What they would change is not there
 * before, so a trainer that reads results of `update` in memory of its own calls
 * memo_session_flush.  A session that is destroyed drops them.  An update on the host is never
 * deferred, because it runs beside the next forward anyway.
 *
 * What is legal between two micro-batches, and where it leads, is the same under every plan:
 *
 *                                 idle    part    over    again   lost
 *     run, more_follow is 1       part    part    U       S       W
 *     run, more_follow is 0       over    over    U       S       W
 *     run, is_forward_only        idle    part    U       again   W
 *     memo_session_update         N       M       idle    S       W
 *     _set_update_values      F   N       M       over    S       W
 *     _skip_update                idle    idle    idle F  idle    W
 *     _flush; _sleep, _wake       idle    part    over    again   W
 *     _read_state, _snapshot      idle    part    over F  again   W
 *     _read_state, a gradient     G       part    over F  G       W
 *     _write_state                idle    part    over F  again   lost, or idle: all are set
 *     _fill_states                idle    idle    idle F  idle    idle
 *
 *     idle   no step is open             part   micro-batches have run, more follow
 *     over   the last one has run        again  a micro-batch has failed, behind others of the step
 *     lost   an update has failed between two layers
 *     F      INVALID_STATE if update_may has MEMO_MAY_FUSE: a plan may have updated
 *     other letters: INVALID_STATE, and nothing changes.  U: update or skip.  N: no step is over.
 *     M: more_follow was 1.  S: skip, then run the whole step again.  W: set all states again.
 *     G: a gradient has no bytes before the first backward
 *
 * While turns of an order are in flight only the turns that are left are legal; in a session that
 * sleeps only memo_session_wake.  A micro-batch that fails leads back to idle, or to again.
 *
 * Memory.  A resident state stays on the device, at one address.  A streamed state lies in pinned
 * host memory, or in a file if it is spilled.  Layers with streamed states use two places on the
 * device in turn, so the states of one layer travel while another layer computes.  Both places
 * together take the most bytes of two layers that follow each other.  On the device states take all
 * resident states and both places.  On the host they take the streamed states that are not spilled,
 * and two places for spilled ones.
 * Changed states go back when their layer ends; a state that no pass changes never goes back.
 * Losses and states are the same bits, whatever is streamed.
 *
 * Masks.  Layers that train by turns, adapters of many tenants over one base, a reference model: a
 * step may leave states out.  memo_batch.states has a mask for each layer:
 *
 *     uint32_t masks[N_LAYERS + 2];                        // of FIRST, each layer, and LAST
 *     for (l = 0; l < N_LAYERS + 2; l++)
 *         masks[l] = trains(l - 1) ? ~0u : 1u << WEIGHTS;  // its gradients and moments stay away
 *     batch.states = masks;                                // equal in all micro-batches of a step
 *
 * A state that is left out neither travels nor is cleared, and memo_session_get_state gives NULL
 * for it, without an error.  A layer is updated if the step uses a gradient of it, or if the layer
 * never has one; update_host then gets all its states.  A forward alone has masks of its own.  The
 * masks of a step are those of its update, too, whenever that runs; where the next step has other
 * masks, updates that are deferred run in a pass before it.  Where masks change, the device waits
 * for what is newer to leave.  Plans and predictions are those of a step that uses all states.
 *
 * Shared states.  A state with the bit MEMO_STATE_SHARED has one copy, in the budget, for all
 * layers that have it, FIRST and LAST included: a tied table, a table that several heads use.
 *
 *     {"table", 4 * V * C, MEMO_STATE_WEIGHTS | MEMO_STATE_SHARED,
 *      MEMO_STATE_FIRST | MEMO_STATE_LAST}
 *
 * Its address may be another in each of these layers, but one in layers that are open at once.  It
 * is the last to leave the device, and its bytes travel where the next of these layers is far away.
 * What the update alone uses belongs to the lowest of these layers.  A gradient is cleared before
 * the first backward that uses it, of the highest layer.  The update of the lowest layer gets the
 * state; it runs when all of them have added their parts, at every moment.  In `update` of a layer
 * above memo_session_get_state gives NULL, without an error.
 * memo_session_read_state and memo_session_write_state take any of the layers.  The bits in masks
 * are equal in all of them.  Not with update_host, and not across sessions: stages of a pipeline
 * have two states.
 *
 * Alone.  A state with the bit MEMO_STATE_ALONE is also read by a forward alone
 * (memo_batch.is_forward_only), such as averaged weights, which the update writes: ALONE | UPDATE.
 * No other pass brings it for that.  MEMO_STATE_FORWARD includes forwards alone.
 *
 * Fetched states.  Frozen weights, which no pass writes, may stay in a file of the caller's, of any
 * layout.  A state with the bit MEMO_STATE_FETCHED has no copy in memo's host memory or file:
 * desc.fetch copies bytes of it, or decodes them, from a mapped file, which ranks may share.
 *
 *     static memo_status fetch(void* user, int32_t layer, int32_t state, int64_t at, void* to,
 *                              int64_t n_bytes, memo_error* error) {
 *         memcpy(to, mapped + offset_of(layer, state) + at, n_bytes);
 *         return MEMO_STATUS_OK;
 *     }
 *
 *     bytes    [at, at + n_bytes) of the state, at a multiple of 4,096; a state may come in pieces.
 *              They must be the same each time.  A checked session compares them, and names layer
 *              and state if they are not
 *     when     resident states: when the session opens, and when it plans again and states move.
 *              Streamed states: before each load, through two places in pinned host memory, which
 *              is all that they take of host_bytes.  A session that times itself also times fetch
 *     threads  of streamed states a thread of the device, which needs launch_host, and three more
 *              for pieces of a large state, at once.  When the session opens, and in
 *              memo_session_read_state, the thread that calls
 *     may      wait, try again and allocate.  It must not call memo, but memo_error_set
 *     fails    with any status but OK: the session's error has the layer, the state and *error.  In
 *              a step the device has then failed, as if the file of a spill_directory fails
 *
 * memo_session_write_state refuses such a state, memo_session_fill_states leaves it as it is, and
 * update_host gets NULL for it.
 *
 * Update on the host.  With desc.update_host a layer may be updated on the host, by a thread of the
 * device, while the device computes.  Then all states are streamed and none is spilled.  States
 * that only the update uses never travel, a layer's gradients go to the host, and the next forward
 * fetches what the update has changed.  desc.update_on says where; MEMO_UPDATE_PLANNED is the
 * shorter step.
 *
 * A session that times itself keeps the place of the first update: on the device, if that fits.
 * Predicted times are of a step of desc.micro_batches, with its update and all copies of states. */
#define MEMO_LAYER_FIRST (-1)
#define MEMO_STATE_FIRST (1u << 30)
#define MEMO_STATE_LAST  (1u << 31)

typedef enum memo_pass {
    MEMO_PASS_SESSION = 0, /* as long as the session */
    MEMO_PASS_FORWARD,
    MEMO_PASS_BETWEEN,
    MEMO_PASS_BACKWARD,
    MEMO_PASS_AFTER, /* until the next micro-batch, or turn, begins: an output */
    MEMO_N_PASSES
} memo_pass;

/* In flight.  A stage of a pipeline runs forwards of later micro-batches before the backward of an
 * earlier micro-batch.  The trainer lists the turns of a step in `order`: the forward or the
 * backward of a micro-batch in a chunk of layers.  Each call of memo_session_run, or of begin and
 * end, is the next turn; after the last turn the order begins again.  1F1B of M micro-batches:
 *
 *     int32_t ahead = n_stages - 1 - stage, n = 0;      // forwards before the first backward
 *     if (ahead >= M) ahead = M - 1;
 *     for (i = 0; i < M + ahead; i++) {
 *         memo_turn forward = {i, 0, MEMO_PASS_FORWARD};
 *         memo_turn backward = {i - ahead, 0, MEMO_PASS_BACKWARD};
 *         if (i < M) order[n++] = forward;
 *         if (i >= ahead) order[n++] = backward;
 *     }
 *     desc.order = order;  desc.n_order = n;
 *     ...
 *     for (k = 0; k < n; k++) {                         // a step
 *         memo_batch batch = MEMO_ZERO(memo_batch);
 *         batch.turn = order[k];                        // another turn than the next is an error
 *         if (memo_session_run(session, &batch, &error)) ...;
 *     }
 *
 *     static void forward(void* user, memo_session* s, int32_t layer) {
 *         int32_t i = memo_session_get_batch(s).turn.micro_batch;
 *         if (layer == 0) receive(stage - 1, i, memo_session_get_address(s, layer, INPUT));
 *         ... compute; the last layer sends its output ...
 *     }
 *
 * An interleaved stage has C chunks of n_layers / C layers each: chunk c has the layers from
 * c * n_layers / C on.  A forward turn computes the layers of its chunk, a backward turn their
 * backwards.  `between` begins the backward turns of the last chunk.  A *place* is what a chunk of
 * a micro-batch takes from its forward to its backward: tensors.  Chunks whose layers have the same
 * kinds share places; each forward takes the first place that is free.  Buffers live in one turn,
 * or as long as the session: what lives from a forward to its backward is a MEMO_KEEP tensor.  Both
 * layers of a buffer are of the same chunk; BETWEEN is of the last chunk.  Device memory:
 *
 *     n_places         the most that are in flight at once, summed over chunks of unlike kinds;
 *                      1F1B: ahead + 1
 *     activations      rows of n_places * n_layers / C layers, or of so many layers' slices
 *     + a turn         the most that buffers take in a turn
 *     + SESSION        buffers that live as long as the session
 *
 * All turns have the same shape and rows.  After an error the micro-batches in flight are lost, and
 * the order begins again; a turn that is not the next is refused and loses nothing.  Measured and
 * predicted times are of the whole order, without what the stage waits for others.  Shapes that are
 * is_forward_only have no order; run them while no micro-batch is in flight, and without chunks.
 * With spill_directory the file has each layer of a place at most once.  LATE_ROWS do not work with
 * an order.  One layer is open at a time.
 *
 * The EDGE in an order.  In the forward the first layer of a chunk writes the rows, which are the
 * batch's or come from the stage before, and the last layer leaves the output there, to be sent.
 * The last layer of a backward turn writes the gradient that it has received, before it reads the
 * EDGE; the first layer leaves the gradient to be sent.  With `loss`, which the last stage has, the
 * last layer of the last chunk finds its output instead, where `loss` puts the gradient: outputs of
 * all micro-batches in flight wait on the host.  In slices all of this is done slice by slice.
 *
 * States.  An order is a step, or with more_follow, which all its turns share, a part of a step;
 * then comes memo_session_update.  A chunk's turn brings the states of its layers.  States of FIRST
 * are there in turns of chunk 0, as in other passes.  States of LAST are there in backward turns of
 * the last chunk, from `between` to the end of the first layer.  Deferred updates run before a
 * layer's first turn in the next order, fused ones in its last turn.  While micro-batches are in
 * flight, states are neither read, written nor updated. */
typedef struct memo_turn {
    int32_t micro_batch; /* 0 to n_order - 1, in any order; one turn of each pass a chunk */
    int32_t chunk;       /* forwards of a micro-batch from chunk 0 on, backwards to chunk 0 */
    memo_pass pass;      /* MEMO_PASS_FORWARD or _BACKWARD */
} memo_turn;
#define MEMO_TURNS_MAX         4096
#define MEMO_MICRO_BATCHES_MAX 1000000
#define MEMO_GROUP_MAX         256
#define MEMO_GROUP_PLANNED     (-1)

/* Where states are updated. */
typedef enum memo_update {
    MEMO_UPDATE_PLANNED = 0, /* on the host if states leave the device, and the predicted step is
                                shorter by measured times, or only that fits */
    MEMO_UPDATE_DEVICE,      /* by memo_session_desc.update */
    MEMO_UPDATE_HOST,        /* by update_host, even if all states would fit on the device */
    MEMO_N_UPDATES
} memo_update;

/* When a trainer lets memo update them, see memo_update_at. */
enum {
    MEMO_MAY_DEFER = 1,
    MEMO_MAY_FUSE = 2,
    MEMO_MAY_NOT_PASS = 4 /* one of these two, even if a pass is faster; for comparisons */
};

/* What happens to activations between forward and backward. */
typedef enum memo_policy {
    MEMO_POLICY_MEMO = 0,  /* the fastest rows that fit; everything is kept if that fits */
    MEMO_POLICY_KEEP,      /* every tensor stays on the device */
    MEMO_POLICY_RECOMPUTE, /* what can be recomputed is; the rest stays on the device */
    MEMO_POLICY_SWAP,      /* every tensor is swapped, except MEMO_KEEP */
    MEMO_POLICY_ALPHA,     /* one alpha: the desc's, or the fastest that fits (MEMO paper) */
    MEMO_POLICY_ROWS,      /* memo_session_desc.rows */
    MEMO_N_POLICIES
} memo_policy;
MEMO_API const char* memo_policy_name(memo_policy policy); /* "keep"; never NULL */

/* A buffer of device memory, requested and freed by the session, lives from the begin of layer
 * first_layer of pass `first` to the end of layer last_layer of pass `last`.  The backward begins
 * with layer n_layers - 1 and ends with layer 0; BETWEEN and AFTER have no layer.  first_layer
 * MEMO_EACH_LAYER: lives in each layer of that pass alone: scratch, of recomputation too.  Then one
 * layer of that pass may be open at a time.  With slices a layer lasts from the begin of the first
 * slice to the end of the last: gradients of LAYER tensors, which every slice adds to, are such a
 * buffer of pass BACKWARD.  MEMO_EACH_SLICE: lives in each slice of each layer of that pass alone,
 * and row_bytes counts for the rows of a slice.  `last` and last_layer are then not read.  kinds:
 * of both, lives in layers of these kinds alone, so that scratch of several kinds takes as much as
 * the largest.  The size is size_bytes + row_bytes for each row of the micro-batch, or of the
 * longest shape if the buffer lives as long as the session. */
typedef struct memo_session_buffer {
    const char* name; /* shown in plans; borrowed */
    int64_t size_bytes, row_bytes;
    memo_pass first;
    int32_t first_layer;
    memo_pass last;
    int32_t last_layer;
    uint32_t kinds; /* MEMO_EACH_LAYER, MEMO_EACH_SLICE: bit k for kind k; 0: all layers */
} memo_session_buffer;
#define MEMO_EACH_LAYER          (-1)
#define MEMO_EACH_SLICE          (-2)
#define MEMO_SESSION_BUFFERS_MAX 64

/* Shapes exclude each other: training at several lengths, validation, generation.  Each shape has a
 * plan of rows and addresses.  All shapes share one block of device memory and one block of pinned
 * memory, as large as the largest needs.  The longest shape is planned first; the other shapes take
 * no more device memory if possible.  A buffer of the whole session has one address under all. */
typedef struct memo_shape {
    int64_t n_rows;          /* most rows of a micro-batch; 1 to the desc's */
    int32_t is_forward_only; /* 1: no backward follows; layers share memory, and with slices EDGE
                                rows alone are moved */
} memo_shape;
#define MEMO_SHAPES_MAX 16

typedef struct memo_step_plan memo_step_plan;

typedef struct memo_session_desc {
    /* --- where it computes --- */
    /* NULL: the session creates a host device, and the calling thread computes. */
    const memo_device* device;
    memo_stream compute_stream;
    int32_t computes_on_host; /* as in memo_swap_desc; 1 if device is NULL */

    /* --- the model --- */
    const memo_item* tensors; /* copied; at most MEMO_PROFILE_TENSORS_MAX */
    int32_t n_tensors, n_layers;
    /* Layers may differ: local and global attention, dense layers before experts.  Each kind is
     * timed, and memo_item.kinds says which kinds have a tensor. */
    const int32_t* layer_kinds; /* (n_layers), copied: 0 to 31; NULL: all layers are of kind 0 */
    int64_t n_rows;             /* tokens of a micro-batch, at most */
    int64_t tile_rows;          /* 0: 1 */
    /* Rows of a slice, a multiple of tile_rows: only tensors of scope LAYER then take more device
     * memory for more n_rows, see Slices above.  n_rows: a layer is computed at once.  0: if there
     * is an EDGE, the planner chooses, at least 1,024 rows: the largest that fits, or a
     * smaller, faster slice. */
    int64_t slice_rows;
    /* The most late rows in a layer, and in all layers of a micro-batch together, see Late rows. */
    int64_t routed_rows_layer, routed_rows_all;
    const memo_session_buffer* buffers; /* copied; memo_session_get_buffer gives their addresses */
    int32_t n_buffers;

    /* --- a step --- */
    /* In a step; 0: 1, or those of the order.  Plans are made for so many.  If two steps in a row
     * have another number, streamed states travel by that from then on, and the log says so. */
    int32_t micro_batches;
    /* Micro-batches of a call, see Groups: a divisor of micro_batches, at most MEMO_GROUP_MAX.
     * 0: 1.  MEMO_GROUP_PLANNED: the plan's choice, see memo_step_plan. */
    int32_t n_group;
    const memo_turn* order;   /* micro-batches in flight, copied; NULL: one after the other */
    int32_t n_order;          /* 0 to MEMO_TURNS_MAX */
    const memo_shape* shapes; /* copied; memo_batch.shape is an index */
    int32_t n_shapes;         /* 0: one shape of n_rows, forward and backward */

    /* --- what the trainer computes --- */
    void* user; /* first argument of every function */
    /* One micro-batch; NULL: forward of all layers, between, backward of all layers. */
    void (*step)(void* user, memo_session* session);
    void (*forward)(void* user, memo_session* session, int32_t layer);
    /* The loss and, unless the batch is_forward_only, its gradient; NULL: nothing. */
    void (*between)(void* user, memo_session* session);
    void (*backward)(void* user, memo_session* session, int32_t layer);
    /* The loss of the open slice of the last layer, whose output is in the EDGE, and its
     * gradient, which takes the output's place.  Called before each backward of the last layer; if
     * the batch is_forward_only, after each forward of it, for the loss alone.  A layer in one
     * slice behaves the same.  NULL: nothing. */
    void (*loss)(void* user, memo_session* session);
    /* Recomputes rows [begin, end) of tensor, and of the MEMO_WITH tensors behind it, from tensors
     * that come earlier in the table.  The function must change nothing else, such as a
     * generator.  memo_session_backward_begin calls the function in table order; see also
     * MEMO_BY_BACKWARD.  NULL is valid if no tensor is ROWS or WHOLE.  Scratch: declare a buffer of
     * pass BACKWARD. */
    void (*recompute)(void* user, memo_session* session, int32_t layer, int32_t tensor,
                      int64_t begin, int64_t end);

    /* --- weights, gradients, optimizer states --- */
    const memo_state* states; /* copied; in the same budgets: see States above */
    int32_t n_states;
    /* Updates the states of a layer from its gradients; MEMO_LAYER_FIRST, then 0 to n_layers.  NULL
     * without states, or if update_on is HOST. */
    void (*update)(void* user, memo_session* session, int32_t layer);
    /* The same on the host; NULL: only on the device.  states[i] is the address of state i of the
     * layer on the host, NULL if the layer lacks the state; the array is valid during the call.
     * Runs on a thread of the device, one layer at a time in the order of `update`, as late as the
     * next forward of the layer.  So what changes from step to step, such as a step number, belongs
     * in a state.  Needs device->launch_host. */
    void (*update_host)(void* user, int32_t layer, void* const* states);
    /* Copies bytes [at, at + n_bytes) of a FETCHED state to `to`, see Fetched states.  layer is as
     * in `update`.  NULL without such states. */
    memo_status (*fetch)(void* user, int32_t layer, int32_t state, int64_t at, void* to,
                         int64_t n_bytes, memo_error* error);
    memo_update update_on; /* 0: planned, if update_host is set */
    int32_t update_may;    /* sum of MEMO_MAY_DEFER, ...: see States; 0: a pass of its own */
    int32_t states_stay;   /* 1: on the device, whatever the budgets */

    /* --- budgets --- */
    /* What the session may take.  What the trainer itself allocates does not count. */
    int64_t device_bytes; /* 0: the free memory less reserve_bytes, without a device no limit */
    /* Without device_bytes: what is left to libraries, which take memory later.  0: 1 GiB or 3 % of
     * the device, the larger, but at most half of the free memory; none on a host device, or on a
     * device of less than 4 GiB. */
    int64_t reserve_bytes;
    /* Pinned; 1: nothing leaves the device.  0: what the device can pin.  memo_session_create plans
     * without a limit, and again with what can be pinned, found by trying, if the plan's bytes
     * cannot; with ranks that is an error. */
    int64_t host_bytes;
    /* For a file of what exceeds host memory; NULL: none.  The file is unnamed, and removed on
     * every exit path.  All its bytes are reserved at first, so a full disk is an error before the
     * first step.  Reads and writes bypass the page cache if the file system allows it.  In a
     * directory of a tmpfs, such as /dev/shm, it is host memory that is not pinned.  If one
     * fails, the device has failed (memo.h, chapter 4): the next call returns IO.  On CUDA, discard
     * what was computed from the missing rows; other devices skip that work. */
    const char* spill_directory;
    int64_t disk_bytes;       /* 0: no limit */
    double spill_bytes_per_s; /* limit of reads and writes; 0: none */
    /* The caller's memory, which the session uses instead of the device's: device_bytes bytes on
     * the device, and host_bytes bytes, pinned; both 512-aligned.  (A file of spilled bytes avoids
     * a copy if host_memory is 4096-aligned.)  A checked session and memo_session_verify take
     * memory of the device besides.  Sessions may share the memory: see Memory of the caller in
     * docs/memory.md.  NULL: allocated from the device. */
    void *device_memory, *host_memory;

    /* --- ranks --- */
    /* Replaces each of n values by its maximum over the ranks; NULL: one rank.  With
     * MPI: MPI_Allreduce(MPI_IN_PLACE, values, n, MPI_INT64_T, MPI_MAX, comm).  All ranks make the
     * same calls of plan, open and create.  Each calls agree equally often, even after an
     * error, and all fail if one does.  They use the least budget of all ranks and the longest
     * times, and choose the same rows.  Fields that must match are compared.
     *
     * Ranks meet where a step ends, and nowhere else: behind each step all ranks call
     * memo_session_update, with states or not, or all call memo_session_skip_update.  There a
     * session plans again; a checked one, and one that plans, compares how many updates were
     * skipped (INVALID_STATE).  So ranks may have unlike numbers of micro-batches, and a rank may
     * run forwards alone.  Without states the calls do nothing else. */
    memo_status (*agree)(void* user, int64_t* values, int64_t n, memo_error* error);

    /* --- the plan, and times --- */
    memo_policy policy; /* 0: MEMO */
    /* The table of policy ROWS, (shapes, n_layers, n_tensors) as in memo_swap_desc; with slices
     * (shapes, n_layers, n_slices, n_tensors), in a group those of all its micro-batches; with an
     * order (shapes, n_places, layers of a chunk, n_slices, n_tensors). */
    const int64_t* rows;
    double alpha; /* of policy ALPHA, 0 to 1; below 0: it is planned */
    /* Self-timing, of memo_session_create: so many training steps run by the first plan.  0: 4 if
     * the plan depends on times; negative: none, the session plans by estimates. */
    int32_t timed_steps;
    /* Times of the first shape with a backward; of shape k behind it: with ".k" appended.  Read if
     * the files are there (on every rank), and written once times are known.  NULL: none. */
    const char* profile_path;
    /* The timed steps are over, and addresses may be new.  A checked session that times nothing
     * moves layers and buffers, too, after its first backward.  plan: which is open now, perhaps
     * the first.  Called once, when a micro-batch begins, before its memory is used, or with states
     * in memo_session_update; and in memo_session_wake.  NULL: never. */
    void (*planned)(void* user, memo_session* session, const memo_step_plan* plan);
    int32_t is_timed; /* 1: measures stalls, see memo_swap_get_stats */

    /* --- checks and words --- */
    /* 1, or MEMO_CHECK=1 in the environment: a checked session.  Tensors are computed between
     * guards, and hashed when their layer ends; then they are NaN.  Every row must have its bytes
     * again when its backward begins.  Buffers lie between guards, too, and are NaN before their
     * life and after it, as is an EDGE in slices before the trainer writes it.  States lie between
     * guards in each visit, elsewhere than in the visit before; they change only in passes that may
     * write to them, and those that an update makes are NaN before, as are values behind
     * values_bytes.  The first difference is an error that names layer, tensor, row, buffer or
     * state, and the likely cause.  One layer of each kind recomputes every tensor once, whatever
     * the plan, and logs the least tile_rows that gives the bits.  With extras/memo_check.h before
     * the implementation an update runs both ways in each step, and memo_session_watch adds bytes
     * of the trainer.  Beside the budgets a checked session takes
     * three layers of device memory, two of host memory, four times the bytes of
     * MEMO_OWNER_MICRO_BATCH, three times the states of a layer, of FIRST and of LAST, and 8 bytes
     * for each row of each tensor of each layer; on a GPU, which hashes rows itself, 24 bytes more
     * for each row of a layer.  It waits in every layer. */
    int32_t is_checked;
    /* 1: the shortage of a plan has what this plan lacks; no budgets are tried.  Sooner by ten to a
     * hundred plans, for those who ask whether one of many sizes fits. */
    int32_t is_unadvised;
    memo_log log; /* a line for each phase; NULL, but with MEMO_CHECK=1: to stderr */
} memo_session_desc;

/* A plan of a shape's micro-batch: data, without a device.  swap, trace, addresses, times and the
 * plans of the other shapes are owned by the plan. */
struct memo_step_plan {
    memo_step_plan* next; /* of the next shape; NULL: the last */
    memo_shape shape;
    memo_policy policy;
    int64_t slice_rows;     /* the desc's, or chosen; 0: no slices */
    int32_t n_group;        /* likewise, of shapes with a backward; 1: no group */
    memo_swap_desc swap;    /* tensors, rows and places in host memory: for memo_swap_generate */
    const memo_turn* order; /* the desc's; swap.order has its places.  NULL: none */
    int32_t n_order, n_chunks;
    memo_swap_sizes sizes;                        /* of the swap engine */
    int64_t bytes[MEMO_N_TIERS][MEMO_N_OWNERS];   /* by memo_tier and memo_owner */
    int64_t device_bytes, host_bytes, disk_bytes; /* their sums; of the host: pinned */
    /* Number of streamed states, counted per layer.  States that the update alone uses are streamed
     * first, then gradients, FETCHED states, other weights.  If a state is streamed in some layers
     * only, these are evenly spread.  n_spilled of the streamed states lie in a file. */
    int64_t n_streamed, n_spilled;
    int32_t update_is_on_host; /* 1: by desc.update_host; then all states are streamed */
    int32_t update_at;         /* memo_update_at; PASS without states */
    int64_t device_budget_bytes, host_budget_bytes; /* 0: no limit */
    memo_trace* trace;                              /* the requests of a micro-batch */
    memo_plan* addresses;                           /* memo_plan_write_svg draws them */
    memo_swap_plan* times; /* predicted times, and the limit in words; NULL: without a profile */
    /* What memo_session_sleep takes: host bytes at most, and, with a profile, predicted seconds, as
     * if that memory were pinned. */
    int64_t sleep_bytes;
    double sleep_s;
    int32_t fits;
    /* Which budget lacks how much, and budgets that would do: they were tried, for all shapes; with
     * 512 bytes less nothing was found.  With is_unadvised untried.  Empty if the plan fits. */
    char shortage[400];
};

/* Plans a micro-batch of each shape by desc->policy.  profile: one for each shape.  Without a
 * profile (NULL) MEMO and ALPHA plan from estimated times.  A plan that exceeds the budgets is no
 * error: see fits.  Functions that compute may be NULL.  Errors: INVALID_ARGUMENT; errors of step;
 * OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_session_plan(const memo_session_desc* desc, const memo_profile* profile,
                                       memo_step_plan** plan, memo_error* error);
/* The smallest device_bytes with which a plan of desc->policy fits beside desc's other budgets:
 * with 512 bytes less nothing was found.  desc's own device_bytes is not used.  Ranks: the most of
 * all.  Errors: of memo_session_plan; INFEASIBLE (host_bytes or disk_bytes lack). */
MEMO_TRY memo_status memo_session_get_least(const memo_session_desc* desc, int64_t* device_bytes,
                                            memo_error* error);
/* Creates arena and swap engine.  The session borrows the plan.  Errors: INFEASIBLE (the plan does
 * not fit, with its shortage); INVALID_ARGUMENT (also a plan for other tensors); the device's. */
MEMO_TRY memo_status memo_session_open(const memo_session_desc* desc, const memo_step_plan* plan,
                                       memo_session** session, memo_error* error);
/* Plans and opens; the session then times its first steps, if the plan depends on times: see
 * Self-timing.  It does not if policy MEMO can keep everything on the device, states too, nor for
 * policies that need no times.  The session owns the plan.  Errors: of both, and of profile files;
 * UNSUPPORTED (a link or a file so slow that timing copies would take minutes). */
MEMO_TRY memo_status memo_session_create(const memo_session_desc* desc, memo_session** session,
                                         memo_error* error);
/* Waits for the compute stream. */
MEMO_API void memo_session_destroy(memo_session* session);

MEMO_API void memo_step_plan_destroy(memo_step_plan* plan);
/* Appends rows, limit, predicted times, and the bytes of each tier beside their budgets, for each
 * shape; then the sum and the maximum over shapes. */
MEMO_API void memo_step_plan_put(const memo_step_plan* plan, memo_text* text);
/* A micro-batch.  All zero: all rows, forward and backward. */
typedef struct memo_batch {
    int64_t n_rows;          /* 0: the shape's */
    int32_t is_forward_only; /* 1: no backward follows, and only EDGE rows are moved */
    int32_t shape;           /* index in the desc's shapes */
    int32_t more_follow; /* 1: gradients add up, and no update follows; of sessions with states */
    memo_turn turn;      /* of sessions with an order: the next turn */
    /* Bytes that are copied when the micro-batch begins, for memo_session_get_batch; NULL: those of
     * the micro-batch before. */
    const void* values;
    int32_t values_bytes; /* at most MEMO_BATCH_VALUES_MAX */
    /* (n_layers + 2), copied, of FIRST, each layer and LAST.  Bit i: the step uses state i of the
     * layer.  NULL: all.  See Masks. */
    const uint32_t* states;
} memo_batch;
#define MEMO_BATCH_VALUES_MAX 256

/* What the open layer computes. */
typedef struct memo_slice {
    int64_t begin, end;  /* rows of the micro-batch: the layer's open slice, or all rows */
    int32_t n_slices;    /* of each layer; of a group: of all its micro-batches; 1: no slices */
    int32_t micro_batch; /* of the group, 0 to n_group - 1; 0 if no layer is open */
    int64_t n_routed;    /* of memo_session_set_routed for the open layer; 0 before that */
} memo_slice;

/* One micro-batch, a group, or one turn of an order: begin, step, end.  batch NULL: all zero.
 * Inside an open micro-batch it returns INVALID_STATE, and changes nothing. */
MEMO_TRY memo_status memo_session_run(memo_session* session, const memo_batch* batch,
                                      memo_error* error);

/* The same in pieces.  memo_session_begin abandons an open micro-batch.  After the steps that are
 * timed it plans, waits for the device, and takes as long as that.  Begin calls return 1 if
 * the trainer must compute; 0 after an error, and for a slice without rows. */
MEMO_API int memo_session_begin(memo_session* session, const memo_batch* batch);
MEMO_TRY memo_status memo_session_end(memo_session* session, memo_error* error);
/* Bracket a layer, as memo_swap_forward_begin and the others do; backward_begin also recomputes. */
MEMO_API int memo_session_forward_begin(memo_session* session, int32_t layer);
MEMO_API void memo_session_forward_end(memo_session* session, int32_t layer);
MEMO_API int memo_session_backward_begin(memo_session* session, int32_t layer);
MEMO_API void memo_session_backward_end(memo_session* session, int32_t layer);
/* Returns this micro-batch, with n_rows, is_forward_only and states filled in (NULL without
 * states).  values
 * are the session's copy, MEMO_BATCH_VALUES_MAX bytes, aligned for every type; in `update` the copy
 * is of the last micro-batch of the step that the update ends, or what
 * memo_session_set_update_values has given. */
MEMO_API memo_batch memo_session_get_batch(const memo_session* session);
/* Between layers, rows are those of a layer's first slice. */
MEMO_API memo_slice memo_session_get_slice(const memo_session* session);

/* Sets the rows of LATE_ROWS in the open forward, once its rows are routed and before their
 * addresses are used; without this call there are none, and memo_session_get_address of such a
 * tensor is an error.  The number is also valid in recompute and in the backward.  More rows than
 * declared are an error of the session. */
MEMO_API void memo_session_set_routed(memo_session* session, int32_t layer, int64_t n_rows);

/* Leaves the layer out of the micro-batch (LayerDrop, stochastic depth): its open forward writes no
 * rows, and its backward recomputes none.  Rows that the plan moves still move.  Begin and end of
 * the layer are called in both passes, with slices for each slice.  A checked session needs this
 * call: a forward that writes nothing is an error otherwise. */
MEMO_API void memo_session_skip_layer(memo_session* session, int32_t layer);

/* Where a tensor of a layer lies.  NULL if the layer's kind lacks the tensor; a checked session
 * makes that an error, and returns memory that harms nothing.  Fixed for each shape until
 * desc.planned is due.  With slices: row 0 of the open slice (no slice is open: of the first);
 * LAYER tensors: of the layer. */
MEMO_API void* memo_session_get_address(const memo_session* session, int32_t layer, int32_t tensor);
/* Fills first[0 .. n_tensors) with the addresses of a row in a layer's tensors: a struct of
 * pointers in the order of the table; NULL for tensors that the layer's kind lacks.  With slices,
 * row counts from the first of the slice, and is less than its rows.  LAYER tensors always begin
 * with row 0 of the layer, unless the layer is one slice and they are ROWS or WHOLE.  CARRIED and
 * LATE_ROWS tensors have one address for all rows. */
MEMO_API void memo_session_get_addresses(const memo_session* session, int32_t layer, int64_t row,
                                         void** first);
/* A declared buffer.  NULL outside of its life; a checked session makes that an error, and returns
 * memory that harms nothing.  Call this inside the layer that uses the buffer. */
MEMO_API void* memo_session_get_buffer(const memo_session* session, int32_t buffer);
/* Where a state of a layer lies, MEMO_LAYER_FIRST to n_layers; NULL: the layer lacks it, or
 * memo_batch.states leaves it out.  Between begin and end of a pass of the layer that uses the
 * state; FIRST also before and beside layer 0, LAST from the end of the last layer's forward to the
 * end of its backward.  Elsewhere the state may have no bytes on the device: NULL, and an error of
 * the session, whatever the plan streams.
 * The address of a state that stays on the device (memo_step_plan.n_streamed is 0) does not change
 * unless the session plans again, so a trainer may keep it. */
MEMO_API void* memo_session_get_state(const memo_session* session, int32_t layer, int32_t state);
/* Ends a step: updates all layers, or defers that, or does nothing if the last backward has updated
 * them, as the plan says.  After the last micro-batch of a step either this call comes next, or
 * memo_session_skip_update, whatever the plan is.  After an error in a micro-batch run it again; if
 * the error says that the whole step must run again, call memo_session_skip_update first.  States
 * keep their bytes, unless the error says that the update has changed some layers: then all calls
 * but destroy are refused until memo_session_fill_states, or memo_session_write_state, has set all
 * states but gradients and FETCHED ones.  Pieces of a state add up if they adjoin.  Errors:
 * INVALID_STATE (also if more_follow was 1); the device's. */
MEMO_TRY memo_status memo_session_update(memo_session* session, memo_error* error);
/* What `update` of this step finds in memo_session_get_batch().values, in place of what came with
 * the micro-batch: at most MEMO_BATCH_VALUES_MAX bytes, copied, such as a norm of all gradients, of
 * which each backward of the last micro-batch has left its layer's part.  Call this behind the last
 * micro-batch of a step, before memo_session_update, wherever its updates run then.
 * memo_session_skip_update drops the values.  update_host gets none: what it needs of a step is a
 * state.  Errors: INVALID_ARGUMENT,
 * INVALID_STATE (also if update_may has MEMO_MAY_FUSE: the last backward may have updated). */
MEMO_TRY memo_status memo_session_set_update_values(memo_session* session, const void* values,
                                                    int64_t n_bytes, memo_error* error);
/* Runs deferred updates that are pending, between micro-batches.  Errors: as
 * memo_session_update. */
MEMO_TRY memo_status memo_session_flush(memo_session* session, memo_error* error);
/* Ends a step without an update, for instance if a norm is not finite: drops the gradients, and the
 * next micro-batch begins a new step.  A deferred update of the step before stays pending.  Between
 * micro-batches.  Errors: INVALID_STATE (also after the last micro-batch of a step, if update_may
 * has MEMO_MAY_FUSE: the last backward may have updated). */
MEMO_TRY memo_status memo_session_skip_update(memo_session* session, memo_error* error);
/* Calls fill for each layer, as update is called, to set states on the device: first values.  If
 * the update is on the host, memo_session_get_state gives addresses in pinned host memory there.
 * States that the update does not use keep their bytes.  Drops the gradients.  Between
 * micro-batches; if update_may has MEMO_MAY_FUSE, not between the last micro-batch of a step and
 * memo_session_update, where a plan may have updated.  Errors: as memo_session_update. */
MEMO_TRY memo_status memo_session_fill_states(memo_session* session,
                                              void (*fill)(void* user, memo_session* session,
                                                           int32_t layer),
                                              memo_error* error);
/* Copies bytes [offset_bytes, offset_bytes + n_bytes) of a state of a layer to the caller's host
 * memory, or sets them, unless it is a gradient or FETCHED; to write, bytes NULL is zero.
 * They are read and written where they lie, without room on the device.  Waits for the compute
 * stream and for all copies of states, even for 0 bytes.  Nothing happens if the layer lacks the
 * state.  When: as memo_session_fill_states.  Errors: INVALID_STATE; INVALID_ARGUMENT (a layer,
 * state or bytes out of range); the device's. */
MEMO_TRY memo_status memo_session_read_state(memo_session* session, int32_t layer, int32_t state,
                                             int64_t offset_bytes, void* bytes, int64_t n_bytes,
                                             memo_error* error);
MEMO_TRY memo_status memo_session_write_state(memo_session* session, int32_t layer, int32_t state,
                                              int64_t offset_bytes, const void* bytes,
                                              int64_t n_bytes, memo_error* error);
/* Gives the device's memory away, for instance to the inference of an RL step, to a validation by
 * another library, or to another session in the same memory of the caller.  What is newer on the
 * device goes to its home; resident states and buffers of pass SESSION are copied to host memory of
 * malloc, at most memo_step_plan.sleep_bytes.  FETCHED states are not kept, and gradients only in
 * the middle of a step or for updates that are pending: memo_session_flush before takes less.
 * Then memory of the device is freed; with desc.device_memory the block is the caller's until
 * memo_session_wake.  Pinned host memory, the file and a checked session's own memory stay.
 * Until then all calls but memo_session_wake and memo_session_destroy are refused.  Waits for the
 * compute stream.  Between micro-batches, while none is in flight; ranks need not sleep alike.
 * After an error the session is awake, and nothing has changed.
 * Errors: INVALID_STATE; OUT_OF_HOST_MEMORY; the device's. */
MEMO_TRY memo_status memo_session_sleep(memo_session* session, memo_error* error);
/* Takes memory of the device again, as much as before, and brings back what was there; the session
 * goes on with the same bits.  desc.planned is called if the memory has another address.  After an
 * error the session sleeps on.  Errors: INVALID_STATE (it does not sleep); OUT_OF_DEVICE_MEMORY;
 * OUT_OF_HOST_MEMORY; the device's; those of desc.fetch. */
MEMO_TRY memo_status memo_session_wake(memo_session* session, memo_error* error);
/* Writes all states but gradients and FETCHED ones, as memo_session_read_state would give them now,
 * while training goes on: a checkpoint.
 *
 * `write` takes bytes [at, at + n_bytes) of a state of a layer, MEMO_LAYER_FIRST to n_layers; of
 * SHARED states in their lowest layer.  It runs on a thread of the session's, one call after the
 * other; a state in a file comes in pieces.  It may wait, and must not call memo, but
 * memo_error_set.  After an error it is not called again; memo_session_finish_snapshot returns the
 * error with layer and state, and training goes on.  With MEMO_NO_HOST_DEVICE all is written in
 * this call. */
typedef struct memo_snapshot_desc {
    memo_status (*write)(void* user, int32_t layer, int32_t state, int64_t at, const void* bytes,
                         int64_t n_bytes, memo_error* error);
    void* user;
} memo_snapshot_desc;
/* Begins a snapshot, between micro-batches.  Runs updates that are pending, waits until what is
 * newer has left the device, and copies resident states to host memory of malloc, at most
 * memo_step_plan.sleep_bytes; streamed states are written from where they lie.  Then it returns.
 * Until a state is written, the copy that would change it waits: on its stream, so steps go on
 * until their next update.  On CUDA updates on the host, and reads and writes of the file, wait
 * behind it.  memo_session_write_state and _fill_states wait, too.
 * Errors: INVALID_STATE (also while a snapshot is under way, and where memo_session_read_state is
 * not legal); OUT_OF_HOST_MEMORY; as memo_session_flush. */
MEMO_TRY memo_status memo_session_snapshot(memo_session* session, const memo_snapshot_desc* desc,
                                           memo_error* error);
/* Waits for the snapshot, and returns the error of `write`; OK if there is none under way.  Legal
 * at any time; memo_session_info.n_unwritten says how long it will wait.  memo_session_destroy
 * waits, too, and a session that moves its states when it plans again. */
MEMO_TRY memo_status memo_session_finish_snapshot(memo_session* session, memo_error* error);
/* Makes an error of the trainer the session's error, unless there is one.  OK does nothing.
 * message NULL: the name of the status. */
MEMO_API void memo_session_fail(memo_session* session, memo_status status, const char* message);

typedef struct memo_session_info {
    /* The current shape's, at first that of shape 0. */
    const memo_step_plan* plan;
    memo_arena* arena; /* NULL: the session sleeps */
    memo_swap* swap;   /* NULL if the shape has neither a backward nor slices */
    /* Copies of states, enqueued so far; those of rows: memo_swap_get_stats. */
    int64_t states_to_host_bytes, states_to_device_bytes;
    int32_t n_unwritten; /* states of a snapshot, in all layers, that are not written yet */
} memo_session_info;
/* The times of a shape with a backward that the session plans by: of its first training steps, or
 * from files.  Errors: INVALID_ARGUMENT; INVALID_STATE (they are not known). */
MEMO_TRY memo_status memo_session_get_profile(const memo_session* session, int32_t shape,
                                              memo_profile* profile, memo_error* error);
MEMO_API memo_session_info memo_session_get_info(const memo_session* session);

#ifdef __cplusplus
}
#endif

#endif /* MEMO_PLAN_H */

/* ==== implementation ======================================================================== */

/* ROOMS, each with the words to search for.  A room uses public functions, memob_ ones of
 * memo.h, and the rooms above it.
 *
 *   1 offsets: problem, bounds, engines, a loop; extras/memo_pack.h adds engines for puzzles
 *     >>problem                a plan in units of size and sections of time; the planner in a page
 *     >>sections               the largest sets of items that live together, and bounds
 *     >>items                  buffers as items, and pairs that streams keep apart
 *     >>solution               the best plan so far, and the effort that is left
 *     >>neighbors              lists of what conflicts with an item
 *     >>reuse                  the bound of items of which none can follow another
 *     >>cover                  holds and gaps as sections, which the exact search takes
 *     >>pack doors             where extras/memo_pack.h adds
 *     >>greedy                 engine: the item that can lie lowest comes next
 *     >>first fit              engine: each item goes into the lowest hole; heeds gaps and holds
 *     >>search                 a node of the exact search, placed and undone
 *     >>stacks                 holes that alignments leave among few items
 *     >>exact search           engine: is there a plan within a capacity?
 *     >>full sections          engine: the items that live there come first, others around them
 *     >>ejections              engine: items above a capacity take the places of others
 *     >>mixed-integer program  engine: the paper's, by lp_solve
 *     >>bi-level               engine: layers once, then what joins them
 *     >>loop                   which engine comes next: rounds of work that doubles
 *     >>plan solve             memo_plan_solve
 *   2 profile
 *     >>profile                measures kernels, copies and a file
 *     >>profile file           its text
 *   3 rows of every tensor
 *     >>row words              tables of rows, and predicted times, in words
 *     >>row times              a clock for the operations of a step
 *     >>row planner            bundles of tensors, and kinds of layers
 *     >>row bytes              what a table of rows takes and moves
 *     >>row score              the step of a table
 *     >>row search             random changes of tables
 *     >>row limits             memo_plan_swap: which limit keeps the step from being shorter
 *   4 session
 *     >>session state          errors, spans, the current shape
 *     >>session desc           a desc, checked and copied
 *     >>session slowing        how much copies beside layers slow them
 *     >>session agreement      what ranks decide together; the session of a desc
 *     >>session states         weights, gradients, optimizer states
 *     >>session checked        hashes of tensors between forward and backward
 *     >>session running        a micro-batch
 *     >>session sleep          the device's memory is given away between micro-batches
 *     >>session snapshot       when states may be written out while steps go on
 *     >>session stage          rows and addresses of one policy, and whether they fit
 *     >>session plan           stages by streamed states and shapes, until one fits
 *     >>session words          a plan on the terminal
 *     >>session open           arena and engine of a plan
 *     >>session slices         which size of slices
 *     >>session advice         budgets that would do
 *     >>session times          a profile from the spans of micro-batches
 *     >>session timing         the first training steps give the times of the plan behind them */
#if defined(MEMO_PLAN_IMPLEMENTATION) && !defined(MEMO_PLAN_IMPLEMENTATION_DONE)
#define MEMO_PLAN_IMPLEMENTATION_DONE

#ifndef MEMO_IMPLEMENTATION_DONE
#error                                                                                             \
    "memo_plan.h: define MEMO_IMPLEMENTATION too; both implementations live in one translation unit"
#endif

#ifdef MEMO_LP_SOLVE
#if defined(__has_include)
#if __has_include(<lpsolve/lp_lib.h>)
#include <lpsolve/lp_lib.h>
#else
#include <lp_lib.h>
#endif
#else
#include <lpsolve/lp_lib.h>
#endif
#endif

#ifndef MEMOI_WITHOUT /* bench/plan.c switches stages off, to see what each of them earns */
#define MEMOI_WITHOUT(stage) 0
#endif

/* ---- >>problem ----------------------------------------------------------------------------------
 * THE PLANNER OF OFFSETS IN A PAGE: a problem, its bounds, engines, and a loop.  This room has the
 * types of a problem, and knows nothing of engines.
 *
 *   problem   >>items makes it of a plan's buffers and of what streams keep apart; >>neighbors
 *             lists what conflicts with an item; >>cover makes sections of what streams keep apart
 *   bounds    >>sections: no plan is lower than the items that live together, rounded up; >>reuse:
 *             than items that streams keep apart
 *   engines   each lowers the best plan so far (>>solution), and has a file of its own
 *   loop      >>loop: memoi_loop_run gives the engines work that doubles from round to round, until
 *             the plan is proven, nothing gains, or nodes or time are spent.  >>plan solve calls
 *             it, and >>pack doors takes engines for puzzles from extras/memo_pack.h.
 *
 * docs/architecture.md has recipes for a new engine, and for a new rule of the exact search.
 *
 * Engines as they run; AUTO and BILEVEL have rounds, GREEDY and MIP one.
 *   >>bi-level                rounds of BILEVEL      marks of layers; no holds      a plan
 *   >>greedy                  first; large: rounds   any problem                    a plan
 *   >>first fit               first round: all       any problem                    a plan
 *                             orders; easy, not
 *                             large: one a round
 *   >>mixed-integer program   MIP, behind greedy     no alignments, few conflicts   a plan, a proof
 *   >>full sections           rounds                 easy, not small                a plan, a bound
 *   >>ejections               rounds; GREEDY if not  any; before the search unless  a plan
 *                             easy                   small and plain, or a cover
 *   >>exact search            rounds                 not large; holds as a cover    a plan, a proof
 * MEMOI_WITHOUT switches off orders (but the first), first_fit, reuse, cover, full_sections,
 * ejections, or search.
 * memo_plan_solve makes a pass or two; a pass has rounds; a round of the search tries capacities;
 * an attempt at one has runs, each with an order of its own; a run visits nodes.
 *
 * TERMS.  Sizes are counted in units, time in *sections*: a section is a set of items that live
 * together, to which no other item can be added.  Two items overlap exactly where they share a
 * section, so a packing of every section is a plan.
 *   step    the largest number that divides sizes, rounded up, and fixed offsets; its largest power
 *           of two, if an alignment neither divides it nor is a multiple of it
 *   unit    the largest number that divides the step and all spare room
 *   spare   bytes by which a size is rounded up to the least alignment, as offsets are multiples of
 *           it; the spare room of the topmost item does not count in the peak
 *   large   above MEMOI_SEARCH_ITEMS items; *small*: at most MEMOI_SMALL_ITEMS, often proven
 *   plain   without alignments, gaps, holds and fixed items; *easy*: with alignments at most
 *   gap     a time in an item's life in which other items may take its bytes
 *   wait    one stream waits for another: what lives on the two is in order
 *   hold    without that wait, an item is *held* against items of the other stream: *pairs*
 *   cover   sections made from conflicts, not from time: these replace gaps and pairs
 */

enum {
    MEMOI_SMALL_ITEMS = 500,
    MEMOI_SEARCH_ITEMS = 8000, /* at most in the exact search, which is as deep as the items */
    MEMOI_CLOCK = 64,          /* steps of greedy or ejections between two looks at the clock */
    MEMOI_TRIES = 16,          /* of what costs little; and a share that does */
    MEMOI_SHARE = 4,           /* an engine gets this part of the nodes that it may spend in vain */
    MEMOI_PLACED_NODE = 8      /* items that a greedy run places in the time of a node */
};

/* What makers of lists and engines return.  UNFIT: not for this problem, so callers do without. */
typedef enum memoi_made { MEMOI_UNFIT = -1, MEMOI_NO_MEMORY, MEMOI_MADE } memoi_made;

typedef struct memoi_range {
    int64_t begin, end; /* [begin, end): times at first, then sections */
} memoi_range;

typedef struct memoi_item {
    int64_t size;       /* rounded up to the least alignment; in units, as four of those below */
    int64_t spare;      /* part of the size that the rounding added */
    int64_t alignment;  /* 1 if the step guarantees it */
    int64_t fixed;      /* offset, or -1 */
    int64_t begin, end; /* [begin, end): its sections, those in gaps too; see >>sections */
    int64_t until;      /* end, or later: where the last item held against it begins */
    int64_t first_range, n_ranges;
    int64_t load;     /* the bound of the fullest section that it meets, gaps included */
    int64_t lifetime; /* in the plan's time */
    int64_t origin;   /* index of the plan's buffer or, of a picked item, in the whole */
} memoi_item;

typedef struct memoi_problem {
    memob_arrays arrays; /* all but held, which grows */
    memoi_item* items;   /* ordered by begin */
    memoi_range* ranges; /* one an item, more with gaps; in the order of items */
    int64_t n_items, n_ranges, n_sections, n_fixed;
    int32_t* first_item;     /* of a section, and of the end: that begins there or later */
    int64_t* section_bounds; /* the least peak of a section's items, without other sections */
    int64_t lower_bound;
    int64_t ground; /* the top of the highest fixed item, with spare room */
    int64_t spare;  /* the largest of an item */
    int64_t step, unit_bytes;
    int32_t has_alignment, has_gaps;
    int32_t is_rounded;   /* spare room counts in the peak: proofs are of that peak */
    int32_t is_cover;     /* sections replace pairs, and are not in order of time */
    int32_t is_stretched; /* items live to the end of their last hold: nothing is proven */
    int32_t* held;        /* pairs, the earlier item first; NULL: there are none */
    int64_t n_held;
    struct memoi_neighbors* neighbors;
} memoi_problem;

/* The items that conflict with item i are list[first[i]] to list[first[i + 1] - 1]: fixed items
 * first, the lowest first.  The lists are made on first use. */
typedef struct memoi_neighbors {
    memob_arrays arrays;
    int64_t* first;
    int32_t* list;
    int32_t are_too_many;
} memoi_neighbors;

MEMOI void memoi_problem_free(memoi_problem* problem) {
    if (problem->neighbors) memob_arrays_free(&problem->neighbors->arrays);
    memob_arrays_free(&problem->arrays);
    MEMO_FREE(problem->held);
    memset(problem, 0, sizeof *problem);
}

/* The highest byte of an item that counts in the peak, for an item at this offset. */
MEMOI int64_t memoi_item_top(const memoi_item* item, int64_t offset) {
    return offset + item->size - item->spare;
}

/* Is nothing fixed, and does every item live in one piece, with conflicts only at its time? */
MEMOI int memoi_problem_is_easy(const memoi_problem* problem) {
    return !problem->n_fixed && !problem->has_gaps && !problem->held;
}

MEMOI int memoi_problem_is_plain(const memoi_problem* problem) {
    return memoi_problem_is_easy(problem) && !problem->has_alignment;
}

MEMOI int memoi_problem_is_large(const memoi_problem* problem) {
    return problem->n_items > MEMOI_SEARCH_ITEMS;
}

MEMOI int64_t memoi_problem_gcd(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

MEMOI int memoi_problem_items_overlap(const memoi_problem* problem, int64_t i, int64_t j) {
    const memoi_item* a = &problem->items[i];
    const memoi_item* b = &problem->items[j];
    const memoi_range *x = problem->ranges + a->first_range, *y = problem->ranges + b->first_range;
    if (a->begin >= b->end || b->begin >= a->end) return 0;
    for (int64_t k = 0; k < a->n_ranges; k++)
        for (int64_t l = 0; l < b->n_ranges; l++)
            if (x[k].begin < y[l].end && y[l].begin < x[k].end) return 1;
    return 0;
}

/* --- >>sections ---
 * Finds the maximal sets of items that live together, and the bytes that no plan of such a set can
 * do without: the bounds.  Door: memoi_sections_find.  Knows nothing of offsets but those that
 * are fixed.
 *
 * 1. Each range, a piece of a life without gaps, spans a section or more.  The sections of an item
 *    follow from its ranges, but that it begins no later than the items behind it.
 * 2. What begins ends: behind the last section nothing lives. */

/* Raises the bounds of sections by the items whose alignment is at least this one: each starts at a
 * multiple of it, so each but the highest takes its size rounded up; at most the largest rounding
 * is saved.  Scratch: rounding, two a section; sums, one more than sections. */
MEMOI void memoi_sections_bounds_at(memoi_problem* problem, int64_t alignment, int64_t* rounding,
                                    int64_t* sums) {
    const int64_t n = problem->n_sections;
    int64_t sum = 0, left, right;
    memset(sums, 0, (size_t)(n + 1) * sizeof *sums);
    memset(rounding, 0, (size_t)(2 * n) * sizeof *rounding);
    for (int64_t i = 0; i < problem->n_items; i++) {
        const memoi_item* item = &problem->items[i];
        const int64_t size = memob_align_up(item->size, alignment);
        const int64_t rounded = size - item->size + item->spare;
        if (item->alignment < alignment) continue;
        for (int64_t k = item->first_range; k < item->first_range + item->n_ranges; k++) {
            sums[problem->ranges[k].begin] += size; /* as differences, summed below */
            sums[problem->ranges[k].end] -= size;

            /* The nodes of a tree over sections that cover the range. */
            left = rounded > 0 ? n + problem->ranges[k].begin : 0;
            right = rounded > 0 ? n + problem->ranges[k].end : 0;
            for (; left < right; left /= 2, right /= 2) {
                if (left & 1) rounding[left] = memob_max(rounding[left], rounded), left++;
                if (right & 1) right--, rounding[right] = memob_max(rounding[right], rounded);
            }
        }
    }
    for (int64_t k = 2; k < 2 * n; k++) rounding[k] = memob_max(rounding[k], rounding[k / 2]);
    for (int64_t s = 0; s < n; s++) {
        sum += sums[s];
        problem->section_bounds[s] = memob_max(problem->section_bounds[s], sum - rounding[n + s]);
        problem->lower_bound = memob_max(problem->lower_bound, problem->section_bounds[s]);
    }
    MEMO_ASSERT(sum + sums[n] == 0); /* 2 */
}

/* Sets what follows from ranges in sections: limits and loads of items, the first items, and the
 * bounds, by the items of each section and by fixed items.  0: no memory. */
MEMOI int memoi_sections_bounds(memoi_problem* problem) {
    const int64_t n = problem->n_sections;
    int64_t alignments = 1 /* powers of two, one bit each */, begin = INT64_MAX;
    memob_arrays* a = &problem->arrays;
    int32_t* first = problem->first_item = MEMOB_ARRAY(a, int32_t, n + 1);
    const int64_t* bounds = problem->section_bounds = MEMOB_ARRAY(a, int64_t, n + 1);
    int64_t* scratch = a->failed ? NULL : (int64_t*)memob_calloc(3 * n + 1, sizeof(int64_t));
    if (!scratch) return 0;

    /* No item begins later than an item behind it, although a gap may come first and a cover may
     * have sections in another order. */
    for (int64_t i = problem->n_items - 1; i >= 0; i--) {
        memoi_item* item = &problem->items[i];
        const memoi_range* range = &problem->ranges[item->first_range];
        item->begin = begin = memob_min(begin, range->begin);
        item->end = item->until = range[item->n_ranges - 1].end;
        alignments |= item->alignment;
        if (item->fixed < 0) continue;
        problem->ground = memob_max(problem->ground, item->fixed + item->size);
        problem->lower_bound = memob_max(problem->lower_bound, memoi_item_top(item, item->fixed));
    }
    for (int64_t s = 0, i = 0; s <= n; first[s++] = (int32_t)i)
        while (i < problem->n_items && problem->items[i].begin < s) i++;
    for (; alignments > 0; alignments &= alignments - 1)
        memoi_sections_bounds_at(problem, alignments & -alignments, scratch, scratch + 2 * n);

    /* Loads, by a tree of the largest bounds. */
    memcpy(scratch + n, bounds, (size_t)n * sizeof *bounds);
    for (int64_t k = n - 1; k > 0; k--) scratch[k] = memob_max(scratch[2 * k], scratch[2 * k + 1]);
    for (int64_t i = 0; i < problem->n_items; i++) {
        memoi_item* item = &problem->items[i];
        int64_t left = n + item->begin, right = n + item->end;
        for (item->load = 0; left < right; left /= 2, right /= 2) {
            if (left & 1) item->load = memob_max(item->load, scratch[left++]);
            if (right & 1) item->load = memob_max(item->load, scratch[--right]);
        }
    }
    MEMO_FREE(scratch);
    return 1;
}

/* Turns ranges from times into sections, and sets what follows from these.  A live set is a largest
 * one only if a range ends and another has begun since the section before.  0: no memory. */
MEMOI int memoi_sections_find(memoi_problem* problem) {
    int64_t n = problem->n_ranges, born = 0, died = 0, closed = 0;
    int has_birth = 0;
    memob_keyed* begins = (memob_keyed*)memob_calloc(2 * n, sizeof(memob_keyed));
    memob_keyed* ends = begins ? begins + n : NULL;
    if (!begins) return 0;

    /* Begins and ends in order of time. */
    for (int64_t i = 0; i < n; i++) {
        begins[i] = memob_keyed_of(problem->ranges[i].begin, i);
        ends[i] = memob_keyed_of(problem->ranges[i].end, i);
    }
    memob_keyed_sort(begins, n);
    memob_keyed_sort(ends, n);

    /* At equal times ends come first: a range that ends and one that begins then do not overlap. */
    while (died < n) {
        if (born < n && begins[born].key < ends[died].key) {
            problem->ranges[begins[born++].index].begin = closed;
            has_birth = 1;
        } else {
            closed += has_birth;
            has_birth = 0;
            problem->ranges[ends[died].index].end = closed;
            MEMO_ASSERT(problem->ranges[ends[died].index].begin < closed); /* 1 */
            died++;
        }
    }
    problem->n_sections = closed;
    MEMO_FREE(begins);
    return memoi_sections_bounds(problem);
}

/* --- >>items ---
 * Makes the problem of a plan: an item of each buffer, in units, with its sections and bounds, and
 * the pairs that may not share bytes although they live at different times.  Doors:
 * memoi_items_create, then memoi_items_add_holds.  Knows nothing of how items are planned.
 *
 * 1. A size is a multiple of the step, and more than its spare room.
 * 2. An alignment that the step does not guarantee is a multiple of the step.
 * 3. The earlier item of a pair comes first. */

/* How a problem may be made simpler, in bits. */
enum {
    MEMOI_STRETCHED = 1, /* each buffer lives to the end of its last hold */
    MEMOI_ROUNDED = 2    /* spare room counts in the peak */
};

/* Adds a range to the item that is being made, unless the range is empty. */
MEMOI void memoi_items_add_range(memoi_problem* problem, int64_t begin, int64_t end) {
    if (end <= begin) return;
    problem->ranges[problem->n_ranges].begin = begin;
    problem->ranges[problem->n_ranges++].end = end;
}

/* Adds the item of buffer i, with a range before, between and behind its gaps; none of an empty
 * buffer, which needs no place.  *gap, *hold: those of the buffer come next, and are passed. */
MEMOI void memoi_items_add(memoi_problem* problem, const memo_plan* plan, int64_t i, int64_t* gap,
                           int64_t* hold) {
    const memo_buffer* buffer = &plan->buffers[i];
    memoi_item* item = &problem->items[problem->n_items];
    int64_t time = buffer->begin, end = buffer->end;
    memset(item, 0, sizeof *item);
    item->first_range = problem->n_ranges;
    for (; *hold < plan->n_holds && plan->holds[*hold].buffer == i; (*hold)++)
        if (problem->is_stretched) end = memob_max(end, plan->holds[*hold].until);
    for (; *gap < plan->n_gaps && plan->gaps[*gap].buffer == i; (*gap)++) {
        memoi_items_add_range(problem, time, plan->gaps[*gap].begin);
        time = plan->gaps[*gap].end;
    }
    memoi_items_add_range(problem, time, end);
    item->n_ranges = problem->n_ranges - item->first_range;
    item->size = memob_buffer_bytes(plan, i);
    if (item->size == 0 || item->n_ranges == 0) {
        problem->n_ranges = item->first_range;
        return;
    }

    item->alignment = memob_buffer_alignment(plan, i);
    item->fixed = buffer->is_fixed ? buffer->offset_bytes : -1;
    item->lifetime = end - buffer->begin;
    item->origin = i;
    problem->n_fixed += item->fixed >= 0;
    problem->has_gaps |=
        item->n_ranges > 1 || problem->ranges[item->first_range].begin > buffer->begin;
    problem->n_items++;
}

/* Rounds sizes up to the least alignment, and returns the step in bytes. */
MEMOI int64_t memoi_items_step(memoi_problem* problem, int simpler) {
    int64_t step = 0, least = INT64_MAX;
    for (int64_t i = 0; i < problem->n_items; i++)
        least = memob_min(least, problem->items[i].alignment);
    for (int64_t i = 0; i < problem->n_items; i++) {
        memoi_item* item = &problem->items[i];
        item->spare = memob_align_up(item->size, least) - item->size;
        item->size += item->spare;
        if (simpler & MEMOI_ROUNDED) {
            problem->is_rounded |= item->spare > 0;
            item->spare = 0;
        }
        step = memoi_problem_gcd(step, item->size);
        if (item->fixed > 0) step = memoi_problem_gcd(step, item->fixed);
    }

    /* Offsets are sums of sizes, rounded up to alignments: an alignment divides the step, or is a
     * multiple of it.  If one is neither, the step becomes a power of two, as alignments are. */
    for (int64_t i = 0; i < problem->n_items; i++) {
        const int64_t alignment = problem->items[i].alignment;
        if (step % alignment && alignment % step) step &= -step;
    }
    return problem->n_items > 0 ? step : 1;
}

/* Refuses what could overflow.  Finds out whether the step guarantees all alignments. */
MEMOI memo_status memoi_items_check(memoi_problem* problem, int64_t step, memo_error* error) {
    int64_t highest = 0, fixed_top = 0, padding = 0;
    for (int64_t i = 0; i < problem->n_items; i++) {
        const memoi_item* item = &problem->items[i];
        if (item->fixed >= 0) fixed_top = memob_max(fixed_top, item->fixed + item->size);
        highest = memob_min(highest + item->size, MEMOB_BYTES_MAX + 1);
        if (step % item->alignment == 0) continue;
        problem->has_alignment = 1;
        padding = memob_max(padding, item->alignment);
    }
    if (highest > MEMOB_BYTES_MAX - fixed_top ||
        padding > (MEMOB_BYTES_MAX - fixed_top - highest) / (problem->n_items + 1))
        return MEMOB_INVALID(error, "sizes, alignments and fixed offsets together may pass 2^62");
    if (problem->n_ranges >= INT32_MAX)
        return MEMOB_INVALID(error,
                             "plan.n_buffers: with gaps %lld is too many; at most 2^31 are planned",
                             (long long)problem->n_ranges);
    return MEMO_STATUS_OK;
}

/* Turns bytes into units: the step, or less if sizes have spare room. */
MEMOI void memoi_items_scale(memoi_problem* problem, int64_t step) {
    int64_t unit = step;
    for (int64_t i = 0; i < problem->n_items; i++)
        unit = memoi_problem_gcd(unit, problem->items[i].spare);
    problem->unit_bytes = unit;
    problem->step = step / unit;
    for (int64_t i = 0; i < problem->n_items; i++) {
        memoi_item* item = &problem->items[i];
        item->size /= unit;
        item->spare /= unit;
        item->alignment = step % item->alignment ? item->alignment / unit : 1;
        if (item->fixed > 0) item->fixed /= unit;
        problem->spare = memob_max(problem->spare, item->spare);
        MEMO_ASSERT(item->spare < item->size && item->size % problem->step == 0);  /* 1 */
        MEMO_ASSERT(item->alignment == 1 || item->alignment % problem->step == 0); /* 2 */
    }
}

/* Makes the problem without pairs.  Errors: no memory; sizes or counts that are too large. */
MEMOI memo_status memoi_items_create(const memo_plan* plan, int simpler, memoi_problem* problem,
                                     memo_error* error) {
    int64_t gap = 0, hold = 0, step;
    memob_arrays* a = &problem->arrays;
    memo_status status;
    memset(problem, 0, sizeof *problem);
    problem->is_stretched = simpler & MEMOI_STRETCHED;
    problem->items = MEMOB_ARRAY(a, memoi_item, plan->n_buffers);
    problem->ranges = MEMOB_ARRAY(a, memoi_range, plan->n_buffers + plan->n_gaps);
    problem->neighbors = MEMOB_ARRAY(a, memoi_neighbors, 1);
    status = a->failed ? memob_no_memory(error, "the planning problem") : MEMO_STATUS_OK;

    /* In bytes and times first. */
    for (int64_t i = 0; i < plan->n_buffers && !status; i++)
        memoi_items_add(problem, plan, i, &gap, &hold);
    step = memoi_items_step(problem, simpler);
    if (!status) status = memoi_items_check(problem, step, error);

    /* Sections replace times, because the search goes through live sets, not through requests. */
    if (!status) memoi_items_scale(problem, step);
    if (!status && !memoi_sections_find(problem))
        status = memob_no_memory(error, "the planning problem");
    if (status) memoi_problem_free(problem);
    return status;
}

/* --- pairs that holds keep apart, because one stream has not waited for another --- */

enum { MEMOI_HELD_PAIRS = 1 << 25 }; /* beyond, lifetimes are stretched instead */

/* Adds the pair of items i and j, if both are items.  UNFIT: there are too many. */
MEMOI memoi_made memoi_items_add_pair(memoi_problem* problem, int64_t i, int64_t j,
                                      int64_t* capacity) {
    const int64_t k = 2 * problem->n_held;
    if (i < 0 || j < 0) return MEMOI_MADE;
    if (problem->n_held == MEMOI_HELD_PAIRS) return MEMOI_UNFIT;
    if (!memob_reserve(&problem->held, capacity, k + 2, sizeof(int32_t))) return MEMOI_NO_MEMORY;
    MEMO_ASSERT(i < j); /* 3 */
    problem->held[k] = (int32_t)i;
    problem->held[k + 1] = (int32_t)j;
    problem->n_held++;
    problem->items[i].until = memob_max(problem->items[i].until, problem->items[j].begin + 1);
    return MEMOI_MADE;
}

/* Adds the pairs that holds keep apart.  UNFIT: there are too many. */
MEMOI memoi_made memoi_items_add_holds(memoi_problem* problem, const memo_plan* plan) {
    int64_t capacity = 0;
    int64_t* item_of = (int64_t*)memob_calloc(plan->n_buffers, sizeof(int64_t)); /* + 1 */
    memoi_made made = item_of ? MEMOI_MADE : MEMOI_NO_MEMORY;
    for (int64_t i = 0; made && i < problem->n_items; i++)
        item_of[problem->items[i].origin] = i + 1;
    for (int64_t h = 0; made == MEMOI_MADE && h < plan->n_holds; h++) {
        const memo_hold* hold = &plan->holds[h];
        for (int64_t j = hold->buffer + 1; made == MEMOI_MADE && j < plan->n_buffers; j++) {
            const memo_buffer* other = &plan->buffers[j];
            if (other->begin >= hold->until) break;
            if (other->lane == hold->lane && other->begin >= plan->buffers[hold->buffer].end)
                made = memoi_items_add_pair(problem, item_of[hold->buffer] - 1, item_of[j] - 1,
                                            &capacity);
        }
    }
    MEMO_FREE(item_of);
    return made;
}

/* --- >>solution ---
 * What all engines share: the best plan so far, the nodes and the time that are left, and problems
 * made of some items of a problem.  Knows nothing of engines.
 *
 * 1. No plan is lower than the bound.
 * 2. No more nodes count as spent than are left. */

/* Orders of the items.  Greedy has all but the last, and those that help most come first. */
typedef enum memoi_item_order {
    MEMOI_ORDER_LOAD = 0, /* fullest section first, then longest: others have room on top */
    MEMOI_ORDER_START,    /* as requested */
    MEMOI_ORDER_AREA,     /* size times lifetime */
    MEMOI_ORDER_SIZE,     /* largest, then longest */
    MEMOI_ORDER_LIFETIME, /* longest, then largest area */
    MEMOI_GREEDY_RUNS,
    MEMOI_ORDER_SECTIONS = MEMOI_GREEDY_RUNS, /* number of sections, then size */
    MEMOI_N_ORDERS
} memoi_item_order;

/* The best offsets so far, in units, one an item. */
typedef struct memoi_solution {
    int64_t* offsets;
    int64_t peak;
    int64_t bound; /* no plan is lower: at the bound, the plan is proven */
} memoi_solution;

/* Nothing yet, in the caller's array of offsets. */
MEMOI void memoi_solution_begin(memoi_solution* best, const memoi_problem* problem,
                                int64_t* offsets) {
    best->offsets = offsets;
    best->peak = INT64_MAX;
    best->bound = problem->lower_bound;
}

/* Sets the peak of offsets; returns the item that ends there. */
MEMOI int64_t memoi_solution_highest(const memoi_problem* problem, const int64_t* offsets,
                                     int64_t* peak) {
    int64_t highest = 0;
    *peak = 0;
    for (int64_t i = 0; i < problem->n_items; i++) {
        const int64_t top = memoi_item_top(&problem->items[i], offsets[i]);
        if (top > *peak) highest = i;
        *peak = memob_max(*peak, top);
    }
    return highest;
}

/* Takes offsets if their peak is lower.  They must be a valid plan, by overlaps, holds, alignments
 * and fixed offsets: nothing checks that again but memo_plan_validate. */
MEMOI void memoi_solution_offer(const memoi_problem* problem, const int64_t* offsets,
                                memoi_solution* best) {
    int64_t peak;
    memoi_solution_highest(problem, offsets, &peak);
    MEMO_ASSERT(peak >= best->bound); /* 1 */
    if (peak >= best->peak) return;
    best->peak = peak;
    memcpy(best->offsets, offsets, (size_t)problem->n_items * sizeof(int64_t));
}

/* When planning ends. */
typedef struct memoi_deadline {
    double deadline;
    const int32_t* stop; /* of the caller; NULL: none */
} memoi_deadline;

MEMOI int memoi_deadline_is_over(const memoi_deadline* clock) {
    return memob_now_s() > clock->deadline ||
           (clock->stop && __atomic_load_n(clock->stop, __ATOMIC_RELAXED));
}

/* What may be spent.  A node is about 30 us: a node of the exact search, or as much work of another
 * engine.  Orders of the loop's greedy and first fit look at the clock alone. */
typedef struct memoi_effort {
    memoi_deadline clock;
    int64_t nodes_left; /* of each thread */
    int64_t n_nodes;    /* spent */
    int64_t n_before;   /* spent before, by those who gave this share */
    uint64_t seed;
    int64_t n_threads;
    const memo_log* log;
} memoi_effort;

MEMOI void memoi_effort_spend(memoi_effort* effort, int64_t n_nodes) {
    n_nodes = memob_min(n_nodes, effort->nodes_left);
    effort->n_nodes += n_nodes;
    effort->nodes_left -= n_nodes;
    MEMO_ASSERT(n_nodes >= 0 && effort->nodes_left >= 0); /* 2 */
}

MEMOI int memoi_effort_is_over(const memoi_effort* effort) {
    return effort->nodes_left <= 0 || memoi_deadline_is_over(&effort->clock);
}

/* May more effort lower the plan, which is above the target? */
MEMOI int memoi_effort_goes_on(const memoi_effort* effort, const memoi_solution* best,
                               int64_t target) {
    return best->peak > memob_max(target, best->bound) && !memoi_effort_is_over(effort);
}

/* So many nodes of the effort; the caller spends those that are used. */
MEMOI memoi_effort memoi_effort_take(const memoi_effort* effort, int64_t n_nodes) {
    memoi_effort own = *effort;
    own.nodes_left = memob_min(n_nodes, effort->nodes_left);
    own.n_nodes = 0;
    own.n_before = effort->n_before + effort->n_nodes;
    return own;
}

MEMOI void memoi_effort_report(const memoi_effort* effort, const memoi_problem* problem,
                               const memoi_solution* best) {
    char message[160];
    if (!effort->log->write) return;
    snprintf(message, sizeof message, "search: peak %lld, bound %lld, %lld nodes",
             (long long)(best->peak * problem->unit_bytes),
             (long long)(best->bound * problem->unit_bytes),
             (long long)(effort->n_before + effort->n_nodes));
    effort->log->write(effort->log->user, message);
}

/* Makes a problem of items of the whole, without pairs; origins are their indices.  0: no memory */
MEMOI int memoi_problem_pick(const memoi_problem* whole, const char* is_in_set,
                             memoi_problem* part) {
    memob_arrays* a = &part->arrays;
    *part = *whole;
    memset(a, 0, sizeof *a);
    part->n_items = part->n_ranges = part->n_fixed = part->n_held = 0;
    part->lower_bound = part->ground = 0;
    part->held = NULL;
    part->items = MEMOB_ARRAY(a, memoi_item, whole->n_items);
    part->ranges = MEMOB_ARRAY(a, memoi_range, whole->n_ranges);
    part->neighbors = MEMOB_ARRAY(a, memoi_neighbors, 1);

    for (int64_t i = 0; !a->failed && i < whole->n_items; i++) {
        memoi_item* item = &part->items[part->n_items];
        if (!is_in_set[i]) continue;
        *item = whole->items[i];
        memcpy(part->ranges + part->n_ranges, whole->ranges + item->first_range,
               (size_t)item->n_ranges * sizeof(memoi_range));
        item->origin = i;
        item->first_range = part->n_ranges;
        part->n_ranges += item->n_ranges;
        part->n_fixed += item->fixed >= 0;
        part->n_items++;
    }

    if (!a->failed && memoi_sections_find(part)) return 1;
    memoi_problem_free(part);
    return 0;
}

/* Items of a problem that are planned alone. */
typedef struct memoi_inner {
    memoi_problem part;
    memoi_solution best;
} memoi_inner;

/* Picks the items in the set, and begins with their offsets; NULL: with no plan. */
MEMOI memo_status memoi_inner_begin(memoi_inner* inner, const memoi_problem* whole,
                                    const char* is_in_set, const int64_t* offsets,
                                    memo_error* error) {
    int64_t* own = NULL;
    if (memoi_problem_pick(whole, is_in_set, &inner->part))
        own = MEMOB_ARRAY(&inner->part.arrays, int64_t, inner->part.n_items);
    if (!own) {
        memoi_problem_free(&inner->part);
        return memob_no_memory(error, "a part of the plan");
    }
    memoi_solution_begin(&inner->best, &inner->part, own);
    if (!offsets) return MEMO_STATUS_OK;
    for (int64_t i = 0; i < inner->part.n_items; i++) own[i] = offsets[inner->part.items[i].origin];
    memoi_solution_highest(&inner->part, own, &inner->best.peak);
    return MEMO_STATUS_OK;
}

/* Sets the offsets of the whole, and frees the part. */
MEMOI void memoi_inner_end(memoi_inner* inner, int64_t* offsets) {
    for (int64_t i = 0; i < inner->part.n_items; i++)
        offsets[inner->part.items[i].origin] = inner->best.offsets[i];
    memoi_problem_free(&inner->part);
}

/* --- >>neighbors ---
 * Lists for each item the items that conflict with it (door: memoi_neighbors_list), and finds room
 * beside those that are fixed, which lead the list.  Knows nothing of orders.
 *
 * 1. Each list has as many items as were counted for it.
 * 2. The fixed items of a list come first. */

enum { MEMOI_NEIGHBORS = 1 << 26 }; /* longer lists are not made */

/* How many entries the lists have, or with gaps an upper bound.  Items are ordered by begin, so the
 * later items that i overlaps come before the first one that begins after i has ended. */
MEMOI int64_t memoi_neighbors_count(const memoi_problem* problem) {
    int64_t n_entries = 2 * problem->n_held;
    for (int64_t i = 0; i < problem->n_items; i++)
        n_entries += 2 * (problem->first_item[problem->items[i].end] - i - 1);
    return n_entries;
}

/* Counts two neighbors, or lists them.  fill: of an item, their number or the next one's place. */
MEMOI void memoi_neighbors_add(memoi_neighbors* neighbors, int64_t* fill, int64_t i, int64_t j,
                               int is_listed) {
    if (is_listed) {
        neighbors->list[fill[i]] = (int32_t)j;
        neighbors->list[fill[j]] = (int32_t)i;
    }
    fill[i]++;
    fill[j]++;
}

/* Lists all pairs in two passes, counts and then lists, so that all lists share one array. */
MEMOI void memoi_neighbors_fill(const memoi_problem* problem, int64_t* fill) {
    memoi_neighbors* neighbors = problem->neighbors;
    const int64_t n = problem->n_items;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < n; i++) {
            const int64_t last = problem->first_item[problem->items[i].end];
            for (int64_t j = i + 1; j < last; j++)
                if (!problem->has_gaps || memoi_problem_items_overlap(problem, i, j))
                    memoi_neighbors_add(neighbors, fill, i, j, pass);
        }
        for (int64_t k = 0; k < problem->n_held; k++)
            memoi_neighbors_add(neighbors, fill, problem->held[2 * k], problem->held[2 * k + 1],
                                pass);
        for (int64_t i = 0; i < n && pass == 0; i++) {
            neighbors->first[i + 1] = neighbors->first[i] + fill[i];
            fill[i] = neighbors->first[i];
        }
    }
    for (int64_t i = 0; i < n; i++) MEMO_ASSERT(fill[i] == neighbors->first[i + 1]); /* 1 */
}

/* Sorts each list: fixed items first, the lowest first.  Scratch: fill and order, an entry for each
 * item, and sorted, an entry for each neighbor. */
MEMOI void memoi_neighbors_sort(const memoi_problem* problem, int64_t* fill, memob_keyed* order,
                                int32_t* sorted) {
    const memoi_neighbors* neighbors = problem->neighbors;
    const int64_t *first = neighbors->first, n = problem->n_items;
    for (int64_t i = 0; i < n; i++) {
        const int64_t fixed = problem->items[i].fixed;
        order[i] = memob_keyed_of(fixed < 0 ? INT64_MAX : fixed, i);
        fill[i] = first[i];
    }
    qsort(order, (size_t)n, sizeof(memob_keyed), memob_keyed_compare);

    /* Each item, in this order, goes to the end of its neighbors' lists: sorting each list alone is
     * slower by far, as most items around a window of memo_pack.h are fixed. */
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = order[i].index, k = first[j]; k < first[j + 1]; k++) {
            const int32_t to = neighbors->list[k];
            MEMO_ASSERT(fill[to] == first[to] || problem->items[j].fixed < 0 || /* 2 */
                        problem->items[sorted[fill[to] - 1]].fixed >= 0);
            sorted[fill[to]++] = (int32_t)j;
        }
    memcpy(neighbors->list, sorted, (size_t)first[n] * sizeof(int32_t));
}

/* Makes the lists.  UNFIT: these are too long. */
MEMOI memoi_made memoi_neighbors_list(const memoi_problem* problem) {
    memoi_neighbors* neighbors = problem->neighbors;
    const int64_t n = problem->n_items;
    const int64_t n_entries = memoi_neighbors_count(problem);
    memob_arrays scratch = MEMO_ZERO(memob_arrays);
    memob_keyed* order;
    int64_t* fill;
    int32_t* sorted;
    if (neighbors->list) return MEMOI_MADE;
    neighbors->are_too_many |= n_entries > MEMOI_NEIGHBORS;
    if (neighbors->are_too_many) return MEMOI_UNFIT;

    /* The lists stay until the problem is freed, because several searches read them. */
    fill = MEMOB_ARRAY(&scratch, int64_t, n);
    order = MEMOB_ARRAY(&scratch, memob_keyed, problem->n_fixed > 0 ? n : 0);
    sorted = MEMOB_ARRAY(&scratch, int32_t, problem->n_fixed > 0 ? n_entries : 0);
    neighbors->first = MEMOB_ARRAY(&neighbors->arrays, int64_t, n + 1);
    neighbors->list = MEMOB_ARRAY(&neighbors->arrays, int32_t, n_entries);
    if (scratch.failed || neighbors->arrays.failed) {
        memob_arrays_free(&scratch);
        memob_arrays_free(&neighbors->arrays);
        memset(neighbors, 0, sizeof *neighbors);
        return MEMOI_NO_MEMORY;
    }
    memoi_neighbors_fill(problem, fill);
    if (problem->n_fixed > 0) memoi_neighbors_sort(problem, fill, order, sorted);
    memob_arrays_free(&scratch);
    return MEMOI_MADE;
}

/* The lowest aligned offset, from `offset` on, that is clear of a free item's fixed neighbors. */
MEMOI int64_t memoi_neighbors_clear(const memoi_problem* problem, int64_t i, int64_t offset) {
    const memoi_item* item = &problem->items[i];
    int64_t k = problem->neighbors->first[i], last = problem->neighbors->first[i + 1];
    if (item->alignment > 1) offset = memob_align_up(offset, item->alignment);
    for (; k < last && problem->n_fixed > 0; k++) {
        const memoi_item* other = &problem->items[problem->neighbors->list[k]];
        if (other->fixed < 0 || other->fixed >= offset + item->size) break;
        if (other->fixed + other->size > offset)
            offset = memob_align_up(other->fixed + other->size, item->alignment);
    }
    return offset;
}

/* --- >>reuse ---
 * The bound of items with holds.  Door: memoi_problem_reuse.  Knows nothing of offsets.
 *
 * An item *follows* an earlier item if the two do not conflict: the later item can reuse bytes of
 * the earlier item.  Each item, in order of time, borrows bytes of items that it follows.  If these
 * lenders have lent all, a borrower of theirs borrows elsewhere, and so on: a flow.  Bytes that no
 * such exchange provides must be new.  The sum of new bytes is the largest sum of items that all
 * conflict with each other (Dilworth's theorem with weights, as holds of a trace make an order).
 * The sum is a bound for any holds, and for the first items alone.
 *
 * An exchange that fails has reached lenders from which nothing will ever come: these lenders leave
 * the list for good.  The borrowers of that exchange, less these lenders, are the largest set.
 *
 * 1. A lender lends at most its size, and a borrower gives up at most what it has borrowed. */

enum { MEMOI_REUSE_LOOKS = 1 << 27 }; /* at items; then the bound is that of the first items */

typedef struct memoi_loan {
    int64_t bytes;
    int32_t lender, borrower;
    int32_t next; /* of the lender, -1: none */
} memoi_loan;

typedef struct memoi_reuse {
    const memoi_problem* problem;
    memob_arrays arrays;
    uint64_t* unspent; /* lenders with bytes left, one bit for each item */
    uint64_t* unseen;  /* lenders that the present exchange has not reached */
    uint64_t* asker;   /* scratch: neighbors of an item */
    uint64_t* taker;   /* scratch: neighbors of another item */
    int32_t* seen;     /* lenders that the exchange has reached */
    int32_t* queue;    /* borrowers that the exchange has reached */
    int64_t n_seen, n_queued, n_looks;
    int64_t* left;       /* bytes of an item that are not lent */
    int32_t* first_loan; /* of a lender */
    int32_t* asked_by;   /* the borrower by which the exchange reached a lender */
    int32_t* gives_up;   /* the loan by which the exchange reached a borrower */
    int32_t* reached_in; /* a borrower: the number of the exchange; INT32_MAX: of one that failed */
    memoi_loan* loans;
    int64_t n_loans, loan_capacity;
} memoi_reuse;

MEMOI int memoi_reuse_create(memoi_reuse* reuse, const memoi_problem* problem) {
    int64_t n = problem->n_items, n_words = n / 64 + 1;
    memob_arrays* a = &reuse->arrays;
    memset(reuse, 0, sizeof *reuse);
    reuse->problem = problem;
    reuse->left = MEMOB_ARRAY(a, int64_t, n);
    reuse->unspent = MEMOB_ARRAY(a, uint64_t, n_words);
    reuse->unseen = MEMOB_ARRAY(a, uint64_t, n_words);
    reuse->asker = MEMOB_ARRAY(a, uint64_t, n_words);
    reuse->taker = MEMOB_ARRAY(a, uint64_t, n_words);
    reuse->seen = MEMOB_ARRAY(a, int32_t, n);
    reuse->queue = MEMOB_ARRAY(a, int32_t, n);
    reuse->first_loan = MEMOB_ARRAY(a, int32_t, n);
    reuse->asked_by = MEMOB_ARRAY(a, int32_t, n);
    reuse->gives_up = MEMOB_ARRAY(a, int32_t, n);
    reuse->reached_in = MEMOB_ARRAY(a, int32_t, n);
    if (a->failed) return 0;
    for (int64_t k = 0; k < n; k++) reuse->first_loan[k] = -1;
    return 1;
}

MEMOI void memoi_reuse_set(uint64_t* set, int32_t i, int is_in) {
    set[i / 64] = (set[i / 64] & ~((uint64_t)1 << i % 64)) | (uint64_t)is_in << i % 64;
}

/* Marks the neighbors of item j that come before it. */
MEMOI void memoi_reuse_mark(memoi_reuse* reuse, uint64_t* mark, int32_t j) {
    const memoi_neighbors* neighbors = reuse->problem->neighbors;
    memset(mark, 0, (size_t)(j / 64 + 1) * sizeof *mark);
    for (int64_t k = neighbors->first[j]; k < neighbors->first[j + 1]; k++)
        if (neighbors->list[k] < j) memoi_reuse_set(mark, neighbors->list[k], 1);
    reuse->n_looks += neighbors->first[j + 1] - neighbors->first[j];
}

/* The latest item before i that is in a set and has no mark; n: none.  The latest lender is the
 * best choice, because the fewest items follow a late item. */
MEMOI int32_t memoi_reuse_latest(memoi_reuse* reuse, const uint64_t* set, const uint64_t* mark,
                                 int32_t i) {
    int32_t word = i / 64;
    uint64_t found = set[word] & ~mark[word] & (((uint64_t)1 << i % 64) - 1);
    for (; found == 0 && word > 0; found = set[word] & ~mark[word]) {
        word--;
        reuse->n_looks++;
    }
    return found ? 64 * word + 63 - __builtin_clzll(found) : (int32_t)reuse->problem->n_items;
}

/* Looks for a lender with bytes left, at the end of a chain of exchanges that begins with item j.
 * *borrower: the item that follows this lender.  Returns n if there is no such lender. */
MEMOI int32_t memoi_reuse_find(memoi_reuse* reuse, int32_t j, int32_t exchange, int32_t* borrower) {
    int32_t n = (int32_t)reuse->problem->n_items, i, k, lender;

    *borrower = j;
    memoi_reuse_mark(reuse, reuse->asker, j);
    lender = memoi_reuse_latest(reuse, reuse->unspent, reuse->asker, j);
    if (lender < n) return lender;

    /* By exchanges: whoever borrows from a lender that the last one follows is the next. */
    reuse->n_seen = reuse->n_queued = 0;
    reuse->queue[reuse->n_queued++] = j;
    reuse->reached_in[j] = exchange;
    for (int64_t at = 0; at < reuse->n_queued; at++) {
        int32_t b = reuse->queue[at];
        memoi_reuse_mark(reuse, reuse->asker, b);
        for (i = b; (i = memoi_reuse_latest(reuse, reuse->unseen, reuse->asker, i)) < n;) {
            memoi_reuse_set(reuse->unseen, i, 0);
            reuse->seen[reuse->n_seen++] = i;
            reuse->asked_by[i] = b;
            for (k = reuse->first_loan[i]; k >= 0; k = reuse->loans[k].next) {
                int32_t other = reuse->loans[k].borrower;
                reuse->n_looks++;
                if (reuse->loans[k].bytes == 0 || reuse->reached_in[other] >= exchange) continue;
                reuse->reached_in[other] = exchange;
                reuse->gives_up[other] = k;
                *borrower = reuse->queue[reuse->n_queued++] = other;
                memoi_reuse_mark(reuse, reuse->taker, other);
                lender = memoi_reuse_latest(reuse, reuse->unspent, reuse->taker, other);
                if (lender < n) return lender;
            }
        }
    }
    return n;
}

/* Item j borrows up to `need` bytes along a chain that ends at a lender.  Returns how many; -1: no
 * memory. */
MEMOI int64_t memoi_reuse_exchange(memoi_reuse* reuse, int32_t j, int64_t need, int32_t lender,
                                   int32_t borrower) {
    int64_t bytes = memob_min(need, reuse->left[lender]);
    for (int32_t b = borrower; b != j; b = reuse->asked_by[reuse->loans[reuse->gives_up[b]].lender])
        bytes = memob_min(bytes, reuse->loans[reuse->gives_up[b]].bytes);
    MEMO_ASSERT(bytes > 0 && bytes <= reuse->left[lender]); /* 1 */
    reuse->left[lender] -= bytes;
    if (reuse->left[lender] == 0) memoi_reuse_set(reuse->unspent, lender, 0);
    for (;; borrower = reuse->asked_by[lender]) {
        const memoi_loan loan = {bytes, lender, borrower, reuse->first_loan[lender]};
        if (reuse->n_loans == INT32_MAX ||
            !memob_reserve(&reuse->loans, &reuse->loan_capacity, reuse->n_loans + 1, sizeof loan))
            return -1;
        reuse->loans[reuse->n_loans] = loan;
        reuse->first_loan[lender] = (int32_t)reuse->n_loans++;
        if (borrower == j) return bytes;
        reuse->loans[reuse->gives_up[borrower]].bytes -= bytes;
        MEMO_ASSERT(reuse->loans[reuse->gives_up[borrower]].bytes >= 0); /* 1 */
        lender = reuse->loans[reuse->gives_up[borrower]].lender;
    }
}

/* Raises the bound of a problem with holds, which has lists of neighbors.  is_in_set, of an item: 1
 * in the largest set found.  0: no memory. */
MEMOI int memoi_problem_reuse(memoi_problem* problem, char* is_in_set) {
    enum { BEGUN = 1, OVER = 2 };
    int64_t bound = 0, bytes = 0;
    int32_t n = (int32_t)problem->n_items, j, exchange = 1, borrower = 0, lender = 0;
    memoi_reuse reuse;
    int ok;
    if (MEMOI_WITHOUT(reuse)) return 1;
    ok = memoi_reuse_create(&reuse, problem);

    /* Each item takes over bytes of earlier items.  The bytes that the item still lacks raise the
     * bound. */
    for (j = 0; ok && j < n && reuse.n_looks < MEMOI_REUSE_LOOKS; j++) {
        int64_t need = problem->items[j].size;
        for (; ok && need > 0; need -= bytes, exchange++) {
            lender = memoi_reuse_find(&reuse, j, exchange, &borrower);
            if (lender == n) break;
            while (reuse.n_seen > 0) memoi_reuse_set(reuse.unseen, reuse.seen[--reuse.n_seen], 1);
            bytes = memoi_reuse_exchange(&reuse, j, need, lender, borrower);
            ok = bytes > 0 && exchange < INT32_MAX - 1;
        }

        bound += need;
        for (; need > 0 && reuse.n_seen > 0; reuse.n_seen--)
            is_in_set[reuse.seen[reuse.n_seen - 1]] |= OVER;
        for (; need > 0 && reuse.n_queued > 0; reuse.n_queued--) {
            is_in_set[reuse.queue[reuse.n_queued - 1]] |= BEGUN;
            reuse.reached_in[reuse.queue[reuse.n_queued - 1]] = INT32_MAX;
        }
        reuse.left[j] = problem->items[j].size;
        memoi_reuse_set(reuse.unspent, j, 1);
        memoi_reuse_set(reuse.unseen, j, 1);
    }

    for (j = 0; j < n; j++) is_in_set[j] = is_in_set[j] == BEGUN;
    memob_arrays_free(&reuse.arrays);
    MEMO_FREE(reuse.loans);
    problem->lower_bound = memob_max(problem->lower_bound, bound - problem->spare);
    return ok;
}

/* --- >>cover ---
 * Sections instead of pairs, which makes the exact search the engine for holds.  Door:
 * memoi_problem_hold.  Knows which items conflict, and nothing of why.
 *
 * Sections are largest sets of items that conflict with each other, until each pair of items in
 * conflict is in a section.  Then nothing needs the pairs, and all bounds of sections count held
 * items.  Gaps make such sets too: items of which each two overlap may never live all at once.  A
 * set grows item by item.  The next item brings the most pairs that no section has yet, times its
 * size.  An item without such pairs comes last, however large: else a set might end without the
 * pair that the set was made for.
 *
 * 1. A section grows by items in conflict with all its members. */

enum { MEMOI_COVER_WORK = 1 << 28 }; /* items looked at; then the pairs stay */

typedef struct memoi_cover {
    const memoi_problem* problem;
    memob_arrays arrays;
    int64_t n_words;
    uint64_t* conflicts; /* (items, words): a bit for each neighbor */
    uint64_t* open;      /* (items, words): neighbors with which the item shares no section yet */
    int32_t* members;    /* of the section */
    int32_t* candidates; /* items in conflict with all members */
    int64_t* gain;       /* of a candidate: new pairs with the members */
    int64_t n_members, n_candidates, n_sections, n_work;
    memob_keyed* stays; /* an item in a section */
    memob_keyed* order; /* sections by time: that of the latest member, then of the earliest */
    int64_t n_stays, stay_capacity, order_capacity;
} memoi_cover;

MEMOI int memoi_cover_create(memoi_cover* cover, const memoi_problem* problem) {
    const memoi_neighbors* neighbors = problem->neighbors;
    int64_t n = problem->n_items;
    memob_arrays* a = &cover->arrays;
    memset(cover, 0, sizeof *cover);
    cover->problem = problem;
    cover->n_words = (n + 63) / 64;
    cover->conflicts = MEMOB_ARRAY(a, uint64_t, n * cover->n_words);
    cover->open = MEMOB_ARRAY(a, uint64_t, n * cover->n_words);
    cover->members = MEMOB_ARRAY(a, int32_t, n);
    cover->candidates = MEMOB_ARRAY(a, int32_t, n);
    cover->gain = MEMOB_ARRAY(a, int64_t, n);
    if (a->failed) return 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = neighbors->first[i]; k < neighbors->first[i + 1]; k++) {
            int32_t j = neighbors->list[k];
            cover->conflicts[i * cover->n_words + j / 64] |= (uint64_t)1 << j % 64;
        }
    memcpy(cover->open, cover->conflicts, (size_t)(n * cover->n_words) * sizeof(uint64_t));
    return 1;
}

/* Item i joins the section.  0: no memory. */
MEMOI int memoi_cover_join(memoi_cover* cover, int32_t i) {
    const uint64_t* conflicts = cover->conflicts + i * cover->n_words;
    uint64_t* open = cover->open + i * cover->n_words;
    int64_t n = 0;
    for (int64_t k = 0; k < cover->n_members; k++) { /* its pairs have a section now */
        int32_t j = cover->members[k];
        MEMO_ASSERT(conflicts[j / 64] >> j % 64 & 1); /* 1 */
        cover->open[j * cover->n_words + i / 64] &= ~((uint64_t)1 << i % 64);
        open[j / 64] &= ~((uint64_t)1 << j % 64);
    }
    cover->members[cover->n_members++] = i;
    for (int64_t k = 0; k < cover->n_candidates; k++) {
        int32_t j = cover->candidates[k];
        cover->candidates[n] = j;
        n += (int64_t)(conflicts[j / 64] >> j % 64 & 1);
        cover->gain[j] += (int64_t)(open[j / 64] >> j % 64 & 1);
    }
    cover->n_work += cover->n_members + cover->n_candidates;
    cover->n_candidates = n;
    if (!memob_reserve(&cover->stays, &cover->stay_capacity, cover->n_stays + 1,
                       sizeof(memob_keyed)))
        return 0;
    cover->stays[cover->n_stays++] = memob_keyed_of(i, cover->n_sections);
    return 1;
}

/* Makes a section that contains item i and the items of the set.  0: no memory. */
MEMOI int memoi_cover_grow(memoi_cover* cover, int32_t i, const char* is_in_set) {
    const memoi_neighbors* neighbors = cover->problem->neighbors;
    int64_t earliest = i, latest = i;
    int ok;
    cover->n_members = cover->n_candidates = 0;
    for (int64_t k = neighbors->first[i]; k < neighbors->first[i + 1]; k++) {
        cover->candidates[cover->n_candidates++] = neighbors->list[k];
        cover->gain[neighbors->list[k]] = 0;
    }

    /* The candidate with the largest gain joins, until there is none. */
    ok = memoi_cover_join(cover, i);
    while (ok && cover->n_candidates > 0) {
        double most = -1, size;
        for (int64_t k = 0; k < cover->n_candidates; k++) {
            int32_t j = cover->candidates[k];
            size = (double)cover->problem->items[j].size;
            size *= is_in_set && is_in_set[j] ? 1e18 : (double)cover->gain[j] + 1e-30;
            if (size <= most) continue;
            most = size;
            i = j;
        }
        ok = memoi_cover_join(cover, i);
    }

    for (int64_t k = 0; k < cover->n_members; k++) {
        earliest = memob_min(earliest, cover->members[k]);
        latest = memob_max(latest, cover->members[k]);
    }
    if (!ok || !memob_reserve(&cover->order, &cover->order_capacity, cover->n_sections + 1,
                              sizeof(memob_keyed)))
        return 0;
    cover->order[cover->n_sections] =
        memob_keyed_of(latest * cover->problem->n_items + earliest, cover->n_sections);
    cover->n_sections++;
    return 1;
}

/* Replaces the pairs by the sections, in order of time.  An item has a range for each run of
 * sections that contain it.  0: no memory. */
MEMOI int memoi_cover_use(memoi_cover* cover, memoi_problem* problem) {
    int64_t* number = MEMOB_ARRAY(&cover->arrays, int64_t, cover->n_sections);
    memoi_range* range = MEMOB_ARRAY(&problem->arrays, memoi_range, cover->n_stays);
    if (!number || !range) return 0;
    qsort(cover->order, (size_t)cover->n_sections, sizeof(memob_keyed), memob_keyed_compare);
    for (int64_t k = 0; k < cover->n_sections; k++) number[cover->order[k].index] = k;
    for (int64_t k = 0; k < cover->n_stays; k++)
        cover->stays[k].index = number[cover->stays[k].index];
    qsort(cover->stays, (size_t)cover->n_stays, sizeof(memob_keyed), memob_keyed_compare);

    MEMO_FREE(problem->held);
    problem->held = NULL;
    problem->n_held = 0;
    problem->ranges = range;
    problem->n_sections = cover->n_sections;
    problem->n_ranges = 0;
    problem->has_gaps = problem->is_cover = 1;

    for (int64_t k = 0; k < cover->n_stays; k++) {
        memoi_item* item = &problem->items[cover->stays[k].key];
        const int64_t section = cover->stays[k].index;
        const int is_first = k == 0 || cover->stays[k - 1].key != cover->stays[k].key;
        if (is_first) item->first_range = problem->n_ranges;
        if (is_first || range[problem->n_ranges - 1].end != section)
            range[problem->n_ranges++].begin = section;
        range[problem->n_ranges - 1].end = section + 1;
        item->n_ranges = problem->n_ranges - item->first_range;
    }
    return memoi_sections_bounds(problem);
}

/* Replaces the pairs of a problem, which has lists of neighbors, by sections.  It does nothing if
 * that takes too long.  is_in_set: the first section; if that is empty, any.  0: no memory. */
MEMOI int memoi_problem_cover(memoi_problem* problem, const char* is_in_set) {
    const int64_t n = problem->n_items, *first = problem->neighbors->first;
    int32_t i = 0;
    memoi_cover cover;
    int ok;
    if (memoi_problem_is_large(problem) || MEMOI_WITHOUT(cover)) return 1;
    ok = memoi_cover_create(&cover, problem);
    while (i < n && !is_in_set[i]) i++;
    if (ok && i < n) ok = memoi_cover_grow(&cover, i, is_in_set);

    /* Sections for all pairs of an item, or one of the item alone if it has none. */
    for (i = 0; ok && i < n && cover.n_work < MEMOI_COVER_WORK; i++) {
        const uint64_t* open = cover.open + i * cover.n_words;
        ok = first[i] < first[i + 1] || memoi_cover_grow(&cover, i, NULL);
        for (int64_t k = 0; k < cover.n_words; k++)
            while (ok && open[k] && cover.n_work < MEMOI_COVER_WORK)
                ok = memoi_cover_grow(&cover, i, NULL);
    }

    /* After too much work the pairs stay. */
    if (ok && cover.n_work < MEMOI_COVER_WORK) ok = memoi_cover_use(&cover, problem);
    memob_arrays_free(&cover.arrays);
    MEMO_FREE(cover.stays);
    MEMO_FREE(cover.order);
    return ok;
}

/* Turns the pairs of a problem into sections in reasonable time, and raises its bound; gaps of a
 * small problem, too.  It does nothing if the lists of neighbors are too long.  0: no memory. */
MEMOI int memoi_problem_hold(memoi_problem* problem) {
    const int has_pairs = problem->n_held > 0;
    char* is_in_set;
    memoi_made listed;
    int ok;
    if (!has_pairs && (!problem->has_gaps || problem->n_items > MEMOI_SMALL_ITEMS)) return 1;
    listed = memoi_neighbors_list(problem);
    if (listed != MEMOI_MADE) return listed == MEMOI_UNFIT;
    is_in_set = (char*)memob_calloc(problem->n_items, 1);
    ok = is_in_set && (!has_pairs || memoi_problem_reuse(problem, is_in_set)) &&
         memoi_problem_cover(problem, is_in_set);
    MEMO_FREE(is_in_set);
    return ok;
}

/* --- >>pack doors ---
 * The calls by which the planner takes engines for puzzles from extras/memo_pack.h, if that header
 * is included first.  Without it one search runs at a time, and waits cannot be bought. */

struct memoi_exact;
struct memoi_loop;

#ifdef MEMO_PACK

/* Several searches, or one of the items that decide.  The verdict; -1: one search is enough. */
MEMOI int memoi_pack_attempt(struct memoi_exact* exact, int64_t capacity, int64_t n_nodes);
MEMOI void memoi_pack_forget(struct memoi_exact* exact); /* frees what attempts have made */
/* Before all orders of greedy, or behind the first of a large problem. */
MEMOI memo_status memoi_pack_sweep(const memoi_problem* problem, int64_t target,
                                   const memoi_deadline* clock, memoi_solution* best,
                                   memo_error* error);
/* In each round, behind first fit. */
MEMOI memo_status memoi_pack_round(struct memoi_loop* loop, int64_t n_nodes, memo_error* error);
/* Buys waits. */
MEMOI memo_status memoi_pack_buy(memo_plan* plan, const memo_plan_desc* desc, memo_error* error);

#else

#define memoi_pack_attempt(exact, capacity, n_nodes)          (-1)
#define memoi_pack_forget(exact)                              ((void)(exact))
#define memoi_pack_sweep(problem, target, clock, best, error) MEMO_STATUS_OK
#define memoi_pack_round(loop, n_nodes, error)                MEMO_STATUS_OK
#define memoi_pack_buy(plan, desc, error)                                                          \
    memo_error_set(error, MEMO_STATUS_UNSUPPORTED,                                                 \
                   "memo_plan_desc.offers: needs extras/memo_pack.h; include it before the "       \
                   "implementation of memo_plan.h")

#endif

/* ---- >>greedy -----------------------------------------------------------------------------------
 * The first engine: makes a plan in milliseconds, for most training steps one at the bound.  Door:
 * memoi_greedy_solve.  Begins anew each time, so the second pass leaves it out.
 *
 * Lowest offset: take the unplaced item that can lie lowest, ties by an order; put it there.  Runs
 * differ in the order.  A *plateau* is a longest run of sections with one top.  The item that can
 * lie lowest lives within the lowest plateau.  If no item does, nothing can fill that plateau, so
 * the plateau rises to its lower neighbor.  An aligned item leaves a hole below itself; for the
 * choice of an item alignments do not count.
 *
 * Gaps count as life, an item lives `until` the last one held against it begins, and all lie above
 * the fixed items.  So every item lives in one piece, and a run is fast for any number of items.
 *
 * Ahead.  >>full sections places some items *ahead* of a run.  A plateau that reaches such an item
 * takes it; another item goes below only if it fits there.  After a few items that do not, the
 * plateau rises, at most to the lowest item ahead.
 *
 * 1. The plateaus cover all sections, each of which belongs to one of them.
 * 2. An item is placed once, on the top of a plateau in which it lives.
 * 3. The tree of unplaced items gives each its place in the order.
 * 4. A plateau that rises to an item placed before lies under the whole item. */

/* --- orders --- */

typedef struct memoi_ranked {
    double first, second;
    int64_t index;
} memoi_ranked;

MEMOI int memoi_greedy_compare_ranked(const void* left, const void* right) { /* largest first */
    const memoi_ranked* a = (const memoi_ranked*)left;
    const memoi_ranked* b = (const memoi_ranked*)right;
    if (a->first < b->first || a->first > b->first) return a->first > b->first ? -1 : 1;
    if (a->second < b->second || a->second > b->second) return a->second > b->second ? -1 : 1;
    return (a->index > b->index) - (a->index < b->index);
}

/* With random numbers ranks are blurred by a few per cent, so that orders of the search differ. */
MEMOI void memoi_greedy_order_items(const memoi_problem* problem, memoi_item_order order,
                                    uint64_t* random, memoi_ranked* ranked) {
    for (int64_t i = 0; i < problem->n_items; i++) {
        const memoi_item* item = &problem->items[i];
        const double size = (double)item->size, lifetime = (double)item->lifetime;
        const double ranks[][2] = {{(double)item->load, lifetime},             /* LOAD */
                                   {0, -(double)item->begin},                  /* START */
                                   {size * lifetime, size * lifetime},         /* AREA */
                                   {size, lifetime},                           /* SIZE */
                                   {lifetime, size * lifetime},                /* LIFETIME */
                                   {(double)(item->end - item->begin), size}}; /* SECTIONS */
        MEMOB_TABLE_OF(MEMOI_N_ORDERS, ranks);
        ranked[i].index = i;
        ranked[i].first = ranks[order][0];
        ranked[i].second = ranks[order][1];
        if (random) ranked[i].first *= 0.95 + 0.1 * memob_random_real(random);
    }
    qsort(ranked, (size_t)problem->n_items, sizeof *ranked, memoi_greedy_compare_ranked);
}

/* --- unplaced items ---
 * Which unplaced item comes first in the order, among the items that live within an interval of
 * sections?  Items are ordered by begin, so those that begin in the interval follow each other.  A
 * tree over items finds the least turn of those that end there, too. */

typedef struct memoi_unplaced {
    int64_t n_leaves;          /* a power of 2; item i is node n_leaves + i */
    int32_t *turn, *least_end; /* of a node's items that wait: the least; INT32_MAX: none does */
    int32_t* largest_end;      /* of all its items */
} memoi_unplaced;

/* The arrays belong to a.  0: no memory. */
MEMOI int memoi_unplaced_create(memoi_unplaced* unplaced, const memoi_problem* problem,
                                memob_arrays* a) {
    const int64_t n = problem->n_items;
    int64_t n_leaves = 1;
    while (n_leaves < n) n_leaves *= 2;
    unplaced->n_leaves = n_leaves;
    unplaced->turn = MEMOB_ARRAY(a, int32_t, 2 * n_leaves);
    unplaced->least_end = MEMOB_ARRAY(a, int32_t, 2 * n_leaves);
    unplaced->largest_end = MEMOB_ARRAY(a, int32_t, 2 * n_leaves);
    if (a->failed) return 0;
    for (int64_t i = 0; i < n_leaves; i++) {
        unplaced->turn[n_leaves + i] = INT32_MAX;
        unplaced->largest_end[n_leaves + i] = i < n ? (int32_t)problem->items[i].until : 0;
    }
    for (int64_t i = n_leaves - 1; i > 0; i--)
        unplaced->largest_end[i] =
            (int32_t)memob_max(unplaced->largest_end[2 * i], unplaced->largest_end[2 * i + 1]);
    return 1;
}

/* Sets a node's least turn and end from its children; returns 1 if they change. */
MEMOI int memoi_unplaced_join(memoi_unplaced* unplaced, int64_t node) {
    int32_t *turn = &unplaced->turn[node], *end = &unplaced->least_end[node];
    const int32_t before[] = {*turn, *end};
    *turn = (int32_t)memob_min(unplaced->turn[2 * node], unplaced->turn[2 * node + 1]);
    *end = (int32_t)memob_min(unplaced->least_end[2 * node], unplaced->least_end[2 * node + 1]);
    return *turn != before[0] || *end != before[1];
}

/* Sets the turn of an item, but not those above it; INT32_MAX: it no longer waits. */
MEMOI int64_t memoi_unplaced_leaf(memoi_unplaced* unplaced, int64_t i, int32_t turn) {
    const int64_t node = unplaced->n_leaves + i;
    unplaced->turn[node] = turn;
    unplaced->least_end[node] = turn < INT32_MAX ? unplaced->largest_end[node] : INT32_MAX;
    return node;
}

MEMOI void memoi_unplaced_set(memoi_unplaced* unplaced, int64_t i, int32_t turn) {
    int64_t node = memoi_unplaced_leaf(unplaced, i, turn) / 2;
    while (node > 0 && memoi_unplaced_join(unplaced, node)) node /= 2;
}

/* The least turn, if below best, of a node's items that end by `end`. */
MEMOI int32_t memoi_unplaced_below(const memoi_unplaced* unplaced, int64_t node, int32_t end,
                                   int32_t best) {
    const int32_t turn = unplaced->turn[node];
    int64_t child;
    if (turn >= best || unplaced->least_end[node] > end) return best;
    if (unplaced->largest_end[node] <= end) return turn;   /* as for a leaf */
    child = 2 * node + (unplaced->turn[2 * node] != turn); /* the least turn first */
    best = memoi_unplaced_below(unplaced, child, end, best);
    return memoi_unplaced_below(unplaced, child ^ 1, end, best);
}

/* The least turn of items first to last - 1 that end by `end`, or INT32_MAX. */
MEMOI int32_t memoi_unplaced_find(const memoi_unplaced* unplaced, int64_t first, int64_t last,
                                  int32_t end) {
    int64_t left = unplaced->n_leaves + first, right = unplaced->n_leaves + last;
    int32_t best = INT32_MAX;
    for (; left < right; left /= 2, right /= 2) {
        if (left & 1) best = memoi_unplaced_below(unplaced, left++, end, best);
        if (right & 1) best = memoi_unplaced_below(unplaced, --right, end, best);
    }
    return best;
}

/* --- lowest offset --- */

/* Plateaus are a ring: the one behind the last section has no sections and no top. */
typedef struct memoi_plateau {
    int32_t end, previous; /* sections: where the next plateau begins, and the one before */
} memoi_plateau;

/* Scratch of greedy runs. */
typedef struct memoi_greedy {
    const memoi_problem* problem;
    const memoi_deadline* clock; /* NULL: there is no plan yet, so the run goes on to its end */
    memob_arrays arrays;
    memoi_ranked* ranked;
    int64_t* offsets;
    memoi_unplaced unplaced;
    memoi_plateau* plateau; /* of a first section */
    /* By first section, the leaves of a tree of the lowest; INT64_MAX: no plateau begins here. */
    int64_t* tops;
    int64_t n_leaves; /* a power of 2, more than sections */

    /* Items that are placed before the run, by offset: none, or those of full sections. */
    memob_keyed* ahead;
    char* is_ahead; /* of an item: no plateau has reached it */
    int64_t n_ahead, first_ahead;
} memoi_greedy;

/* The caller frees the arrays, whether it succeeds or not. */
MEMOI int memoi_greedy_create(memoi_greedy* greedy, const memoi_problem* problem,
                              const memoi_deadline* clock) {
    int64_t n = problem->n_items;
    memob_arrays* a = &greedy->arrays;
    memset(greedy, 0, sizeof *greedy);
    greedy->problem = problem;
    greedy->clock = clock;
    greedy->ranked = MEMOB_ARRAY(a, memoi_ranked, n);
    greedy->offsets = MEMOB_ARRAY(a, int64_t, n);
    greedy->plateau = MEMOB_ARRAY(a, memoi_plateau, problem->n_sections + 1);
    for (greedy->n_leaves = 1; greedy->n_leaves <= problem->n_sections;) greedy->n_leaves *= 2;
    greedy->tops = MEMOB_ARRAY(a, int64_t, 2 * greedy->n_leaves);
    greedy->ahead = MEMOB_ARRAY(a, memob_keyed, n);
    greedy->is_ahead = (char*)memob_arrays_add(a, n, 1);
    return memoi_unplaced_create(&greedy->unplaced, problem, a);
}

/* Sets the top of the plateau that begins at a section; INT64_MAX: none does. */
MEMOI void memoi_plateau_set(memoi_greedy* greedy, int64_t begin, int64_t top) {
    int64_t node = greedy->n_leaves + begin;
    for (; node > 0 && greedy->tops[node] != top; node /= 2) { /* as far as something changes */
        greedy->tops[node] = top;
        top = memob_min(top, greedy->tops[node ^ 1]);
    }
}

MEMOI int64_t memoi_plateau_top(const memoi_greedy* greedy, int64_t begin) {
    return greedy->tops[greedy->n_leaves + begin];
}

/* The first of the lowest plateaus. */
MEMOI int64_t memoi_plateau_lowest(const memoi_greedy* greedy) {
    int64_t node = 1;
    while (node < greedy->n_leaves)
        node = 2 * node + (greedy->tops[2 * node] > greedy->tops[2 * node + 1]);
    return node - greedy->n_leaves;
}

/* Sections [begin, end) become a plateau, which joins neighbors of the same top. */
MEMOI void memoi_plateau_add(memoi_greedy* greedy, int64_t begin, int64_t end, int64_t top,
                             int64_t previous) {
    memoi_plateau* plateau = greedy->plateau;
    if (memoi_plateau_top(greedy, end) == top) {
        memoi_plateau_set(greedy, end, INT64_MAX);
        end = plateau[end].end;
    }
    if (memoi_plateau_top(greedy, previous) == top) {
        memoi_plateau_set(greedy, begin, INT64_MAX);
        begin = previous;
        previous = plateau[begin].previous;
    }
    MEMO_ASSERT(begin < end && end <= greedy->problem->n_sections && /* 1 */
                (previous < begin || previous == greedy->problem->n_sections));
    plateau[begin].end = (int32_t)end;
    plateau[begin].previous = (int32_t)previous;
    plateau[end].previous = plateau[previous].end = (int32_t)begin;
    memoi_plateau_set(greedy, begin, top);
}

/* Sections [begin, end) get a top; the first of them belongs to the plateau at `at`. */
MEMOI void memoi_plateau_cover(memoi_greedy* greedy, int64_t at, int64_t begin, int64_t end,
                               int64_t top) {
    memoi_plateau old = greedy->plateau[at];
    int64_t old_top = memoi_plateau_top(greedy, at);
    memoi_plateau_set(greedy, at, INT64_MAX);
    if (at < begin) {
        memoi_plateau_add(greedy, at, begin, old_top, old.previous);
        old.previous = (int32_t)at;
    }
    while (old.end < end) {
        int64_t swallowed = old.end;
        old_top = memoi_plateau_top(greedy, swallowed);
        old.end = greedy->plateau[swallowed].end;
        memoi_plateau_set(greedy, swallowed, INT64_MAX);
    }
    if (end < old.end) memoi_plateau_add(greedy, end, old.end, old_top, begin);
    memoi_plateau_add(greedy, begin, end, top, old.previous);
}

/* Nothing is placed: all free items that are not ahead are on the tree. */
MEMOI void memoi_plateau_begin(memoi_greedy* greedy) {
    const memoi_problem* problem = greedy->problem;
    int64_t n = problem->n_items, i;
    for (int64_t rank = 0; rank < n; rank++) {
        const memoi_item* item = &problem->items[i = greedy->ranked[rank].index];
        memoi_unplaced_leaf(&greedy->unplaced, i, item->fixed < 0 ? (int32_t)rank : INT32_MAX);
        greedy->offsets[i] = item->fixed;
    }
    for (int64_t k = greedy->first_ahead = 0; k < greedy->n_ahead; k++) {
        greedy->offsets[i = greedy->ahead[k].index] = greedy->ahead[k].key;
        memoi_unplaced_leaf(&greedy->unplaced, i, INT32_MAX);
        greedy->is_ahead[i] = 1;
    }
    if (n == 0) return;

    /* Build the tree from its leaves, then one plateau over all sections. */
    for (i = greedy->unplaced.n_leaves - 1; i > 0; i--) memoi_unplaced_join(&greedy->unplaced, i);
    for (i = 0; i < 2 * greedy->n_leaves; i++) greedy->tops[i] = INT64_MAX;
    memoi_plateau_add(greedy, 0, problem->n_sections, problem->ground, problem->n_sections);
}

/* The place of the lowest item ahead that lives in [begin, end) and lies below top; -1: none. */
MEMOI int64_t memoi_plateau_ahead(const memoi_greedy* greedy, int64_t begin, int64_t end,
                                  int64_t top) {
    for (int64_t k = greedy->first_ahead; k < greedy->n_ahead && greedy->ahead[k].key < top; k++) {
        const memoi_item* item = &greedy->problem->items[greedy->ahead[k].index];
        if (greedy->is_ahead[greedy->ahead[k].index] && item->begin < end && item->end > begin)
            return k;
    }
    return -1;
}

/* Takes the first item that fits the lowest plateau, at `at`, below all that is ahead, off the
 * tree; a few are tried.  Returns its rank, or INT32_MAX. */
MEMOI int32_t memoi_plateau_find(memoi_greedy* greedy, int64_t at) {
    memoi_unplaced* unplaced = &greedy->unplaced;
    const int32_t *first = greedy->problem->first_item, end = greedy->plateau[at].end;
    int32_t passed[MEMOI_TRIES], n_passed = 0, rank = INT32_MAX;
    for (; n_passed < MEMOI_TRIES; passed[n_passed++] = rank) {
        const memoi_item* item;
        int64_t top, i;
        rank = memoi_unplaced_find(unplaced, first[at], first[end], end);
        if (rank == INT32_MAX) break;
        i = greedy->ranked[rank].index;
        item = &greedy->problem->items[i];
        MEMO_ASSERT(unplaced->turn[unplaced->n_leaves + i] == rank);                    /* 3 */
        MEMO_ASSERT(greedy->offsets[i] < 0 && item->begin >= at && item->until <= end); /* 2 */
        memoi_unplaced_set(unplaced, i, INT32_MAX);
        top = memob_align_up(memoi_plateau_top(greedy, at), item->alignment) + item->size;
        if (memoi_plateau_ahead(greedy, item->begin, item->end, top) < 0) break;
    }
    if (n_passed == MEMOI_TRIES) rank = INT32_MAX;
    while (n_passed-- > 0) /* too large here, but perhaps not elsewhere */
        memoi_unplaced_set(unplaced, greedy->ranked[passed[n_passed]].index, passed[n_passed]);
    return rank;
}

/* Places an item on the lowest plateau, one that is reached or the first that fits, and returns 1.
 * If there is none, that plateau rises, but not into what is ahead. */
MEMOI int memoi_plateau_step(memoi_greedy* greedy) {
    const int64_t at = memoi_plateau_lowest(greedy), top = memoi_plateau_top(greedy, at);
    const int64_t previous = greedy->plateau[at].previous, end = greedy->plateau[at].end;
    const int64_t reached = memoi_plateau_ahead(greedy, at, end, top + 1);
    const memoi_item* item;
    int64_t i, next, k;
    int32_t rank;
    if (reached >= 0) {
        item = &greedy->problem->items[i = greedy->ahead[reached].index];
        MEMO_ASSERT(greedy->offsets[i] == top && item->begin >= at && item->end <= end); /* 4 */
        greedy->is_ahead[i] = 0;
        for (k = reached; k == greedy->first_ahead && k < greedy->n_ahead; k++)
            greedy->first_ahead += !greedy->is_ahead[greedy->ahead[k].index];
        memoi_plateau_cover(greedy, at, item->begin, item->until, top + item->size);
        return 1;
    }

    rank = memoi_plateau_find(greedy, at);
    if (rank < INT32_MAX) {
        item = &greedy->problem->items[i = greedy->ranked[rank].index];
        greedy->offsets[i] = memob_align_up(top, item->alignment);
        memoi_plateau_cover(greedy, at, item->begin, item->until, greedy->offsets[i] + item->size);
        return 1;
    }
    next = memob_min(memoi_plateau_top(greedy, previous), memoi_plateau_top(greedy, end));
    k = memoi_plateau_ahead(greedy, at, end, next);
    memoi_plateau_add(greedy, at, end, k < 0 ? next : greedy->ahead[k].key, previous);
    return 0;
}

/* Places the item that can lie lowest, in a tie the first ranked, and so on.  0: time is up. */
MEMOI int memoi_plateau_run(memoi_greedy* greedy) {
    int64_t n = greedy->problem->n_items, n_placed = greedy->problem->n_fixed;
    memoi_plateau_begin(greedy);
    for (int64_t step = 1; n_placed < n; step++) {
        if (step % MEMOI_CLOCK == 0 && greedy->clock && memoi_deadline_is_over(greedy->clock))
            return 0;
        n_placed += memoi_plateau_step(greedy);
    }
    return 1;
}

/* Runs number first to last - 1, until a plan meets the target, or time is up and there is one.  A
 * call for all runs begins with sweeps of memo_pack.h, unless the problem is small. */
MEMOI memo_status memoi_greedy_solve(const memoi_problem* problem, int first, int last,
                                     int64_t target, const memoi_deadline* clock,
                                     memoi_solution* best, memo_error* error) {
    memoi_greedy greedy;
    int ok;
    if (first == last || best->peak <= target) return MEMO_STATUS_OK;
    if (problem->n_items > MEMOI_SMALL_ITEMS && last - first == MEMOI_GREEDY_RUNS) {
        const memo_status status = memoi_pack_sweep(problem, target, clock, best, error);
        if (status) return status;
    }
    ok = memoi_greedy_create(&greedy, problem, clock);
    for (int run = first; ok && run < last && best->peak > target; run++) {
        greedy.clock = best->peak < INT64_MAX ? clock : NULL;
        if (greedy.clock && (MEMOI_WITHOUT(orders) || memoi_deadline_is_over(clock))) break;
        memoi_greedy_order_items(problem, (memoi_item_order)run, NULL, greedy.ranked);
        if (memoi_plateau_run(&greedy)) memoi_solution_offer(problem, greedy.offsets, best);
    }
    memob_arrays_free(&greedy.arrays);
    return ok ? MEMO_STATUS_OK : memob_no_memory(error, "the greedy planner");
}

/* --- >>first fit ---
 * Each item, in its turn, goes into the lowest hole that the items before it have left.  So gaps,
 * fixed items and holds cost no room, unlike in >>greedy, and a run is slower.  Doors:
 * memoi_fit_solve, memoi_fit_run.  Knows nothing of sections.
 *
 * 1. An item that is placed is clear of the items placed before. */

MEMOI int memoi_fit_compare_ranges(const void* a, const void* b) {
    return memob_compare(((const memoi_range*)a)->begin, ((const memoi_range*)b)->begin);
}

/* The lowest offset at which an item is clear of n ranges.  Each round jumps on top of ranges in
 * the way, and drops ranges that end below.  After many rounds the ranges are sorted; then a single
 * further round is enough. */
MEMOI int64_t memoi_fit_lowest(memoi_range* taken, int64_t n, const memoi_item* item) {
    int64_t offset, next = 0, round = 0, n_above;
    do {
        if (++round == MEMOI_TRIES)
            qsort(taken, (size_t)n, sizeof *taken, memoi_fit_compare_ranges);
        offset = next;
        n_above = 0;
        for (int64_t k = 0; k < n; k++) {
            memoi_range here = taken[k];
            next = ((here.begin < next + item->size) & (here.end > next)) ? here.end : next;
            taken[n_above] = here;
            n_above += here.end > next;
        }
        n = n_above;
        if (item->alignment > 1) next = memob_align_up(next, item->alignment);
    } while (next > offset);
    return offset;
}

/* Places the items whose offset is -1, in the order of ranked.  Returns -1; the first item that
 * does not fit within the capacity; or the number of items if time is up.  places: scratch, two an
 * item. */
MEMOI int64_t memoi_fit_run(const memoi_problem* problem, const memoi_ranked* ranked,
                            int64_t capacity, const memoi_deadline* clock, memoi_range* places,
                            int64_t* offsets) {
    const memoi_neighbors* neighbors = problem->neighbors;
    int64_t n = problem->n_items, i;
    memoi_range* taken = places + n;
    for (i = 0; i < n; i++) { /* what is not placed is in no way */
        places[i].begin = memob_max(offsets[i], 0);
        places[i].end = offsets[i] < 0 ? 0 : offsets[i] + problem->items[i].size;
    }
    for (int64_t k = 0; k < n; k++) {
        int64_t n_taken = 0;
        const memoi_item* item = &problem->items[i = ranked[k].index];
        if (k % MEMOI_CLOCK == 0 && clock && memoi_deadline_is_over(clock)) return n;
        if (offsets[i] >= 0) continue;
        for (int64_t l = neighbors->first[i]; l < neighbors->first[i + 1]; l++) {
            taken[n_taken] = places[neighbors->list[l]];
            n_taken += taken[n_taken].end > 0;
        }
        places[i].begin = offsets[i] = memoi_fit_lowest(taken, n_taken, item);
        places[i].end = offsets[i] + item->size;
        for (int64_t l = 0; l < n_taken; l++) /* 1 */
            MEMO_ASSERT(taken[l].begin >= places[i].end || taken[l].end <= places[i].begin);
        if (places[i].end - item->spare > capacity) return i;
    }
    return -1;
}

/* First fit in the orders of greedy: one in each round if the problem is easy and not large, all at
 * once in round -1, and in round 0 if the problem is not easy.  Takes plans that are lower.  Does
 * nothing if the lists of neighbors are too long. */
MEMOI memo_status memoi_fit_solve(const memoi_problem* problem, int round, int64_t target,
                                  memoi_effort* effort, memoi_solution* best, memo_error* error) {
    const int is_easy = memoi_problem_is_easy(problem);
    const int is_one = is_easy && round >= 0;
    const int first = (int)memob_max(round, 0), last = is_one ? round + 1 : MEMOI_GREEDY_RUNS;
    int ok;
    memoi_made listed;
    memoi_greedy greedy;
    memoi_range* places;

    /* In rounds, and in problems that are not easy, once. */
    if (MEMOI_WITHOUT(first_fit) || last > MEMOI_GREEDY_RUNS || (!is_easy && round > 0) ||
        (is_one && memoi_problem_is_large(problem)))
        return MEMO_STATUS_OK;
    listed = memoi_neighbors_list(problem);
    if (listed == MEMOI_UNFIT) return MEMO_STATUS_OK;
    ok = memoi_greedy_create(&greedy, problem, &effort->clock);
    places = MEMOB_ARRAY(&greedy.arrays, memoi_range, 2 * problem->n_items);
    ok = ok && listed && !greedy.arrays.failed;
    for (int run = first; ok && run < last && best->peak > target; run++) {
        memoi_greedy_order_items(problem, (memoi_item_order)run, NULL, greedy.ranked);
        for (int64_t i = 0; i < problem->n_items; i++) greedy.offsets[i] = problem->items[i].fixed;
        if (memoi_fit_run(problem, greedy.ranked, INT64_MAX, greedy.clock, places,
                          greedy.offsets) >= 0)
            break; /* time is up */
        memoi_solution_offer(problem, greedy.offsets, best);
    }
    memob_arrays_free(&greedy.arrays);
    return ok ? MEMO_STATUS_OK : memob_no_memory(error, "first fit");
}

/* --- >>search ---
 * What a node of the exact search knows, how it places an item, and how it undoes that.  Doors:
 * memoi_search_create, memoi_search_place, memoi_search_raise, memoi_search_undo.  Knows nothing of
 * which item comes next, nor why a node fails: >>exact search has both, of the same names.
 *
 * 1. The bound of an unplaced item is its minimum or more; a placed item lies at its minimum.
 * 2. The sums and counts of a section are those of its unplaced items, and never negative. */

typedef enum memoi_verdict {
    MEMOI_FAILED = 0, /* exhausted: there is no such plan */
    MEMOI_FOUND,
    MEMOI_STOPPED /* by the limit of nodes or time */
} memoi_verdict;

/* What a section's unplaced items say together. */
typedef struct memoi_look {
    int64_t slack;      /* latest offset - lowest bound */
    int64_t least_end;  /* bound + size, least of the choices */
    int64_t second_end; /* the next */
    int32_t least_item;
    int32_t n_choices;
} memoi_look;

/* What changed: of an item, from LOOK on of a section. */
typedef enum memoi_change_kind {
    MEMOI_CHANGE_MINIMUM,
    MEMOI_CHANGE_BOUND,
    MEMOI_CHANGE_BLOCKED,
    MEMOI_CHANGE_PLACED,
    MEMOI_CHANGE_LOOK,
    MEMOI_CHANGE_STALE
} memoi_change_kind;

typedef struct memoi_change {
    int32_t index; /* item or section */
    int32_t kind;
    union {
        int64_t value;
        memoi_look look;
    } before;
} memoi_change;

/* A state of a part that has failed: its unplaced items with all that is known of these. */
typedef struct memoi_failure {
    uint64_t low, high;
} memoi_failure;

/* What unplaced items say together: kept for a block of items until an item there changes. */
typedef struct memoi_tally {
    memoi_failure state; /* sum of hashes: of everything that decides the result */
    int64_t floor;       /* the least minimum of those that can be first; INT64_MAX: none can */
    int64_t hole, bound; /* least top above the minimum; least bound.  INT64_MAX: none */
    int32_t is_kept;     /* no item of the block has changed since */
} memoi_tally;

enum {
    MEMOI_FAILURES = 1 << 16,       /* remembered; a later one replaces an earlier one */
    MEMOI_TALLY_ITEMS = 64,         /* of a block */
    MEMOI_BASE_ITEMS = 62,          /* a set has one bit for each, and a sign */
    MEMOI_SEARCH_MEMBERS = 1 << 26, /* of all sections */
    MEMOI_SEARCH_LOOKS = 1 << 14,   /* that take the time of a node */
    MEMOI_THREADS = 64              /* in extras/memo_pack.h */
};

typedef struct memoi_search {
    const memoi_problem* problem;
    memob_arrays arrays; /* all but the log */

    /* fixed for the problem */
    int64_t* size;       /* of item i */
    int64_t least_nodes; /* of a run that comes to a plan at once */
    int32_t* members;    /* of section s at [first_member[s], first_member[s + 1]), in any order */
    int64_t* first_member;

    /* the node */
    int64_t *minimum, *bound;
    char *is_placed, *is_blocked;
    int64_t* unplaced_sum; /* sizes, of a section */
    int32_t* n_unplaced;   /* of a section */
    int32_t* crossing;     /* unplaced items that begin before section s and reach into s */
    memoi_tally* tallies;  /* of a block of items */
    memoi_look* looks;     /* at a section, when last taken */
    char* is_stale;        /* section: an item there has changed since the last look */

    memoi_change* changes; /* to undo */
    int64_t n_changes, change_capacity;
    memoi_failure* failures;

    /* the run */
    int64_t capacity;
    int32_t* rank;                   /* of an item, the last tie break */
    int32_t *sorted, *lifted;        /* scratch */
    memoi_ranked* ranked;            /* scratch */
    int64_t n_branches, branch_stop; /* of all runs so far; where this run stops */
    int64_t n_looks;                 /* at neighbors and members, until they make a node */
    int64_t n_nodes; /* spent: a branch is a node, and so are MEMOI_SEARCH_LOOKS looks */
    const memoi_deadline* clock;
    int32_t is_out_of_time, is_out_of_memory;
    uint64_t random;

    /* within one capacity */
    int64_t n_runs, node_begin, node_end; /* of its budget; 0: another search has answered */
    double run_length;
    memoi_verdict verdict;

    /* of few items with alignments: see >>stacks */
    uint64_t* sets;    /* the free members of a section, one bit each; NULL: not so */
    uint64_t aligned;  /* items with an alignment */
    uint64_t unplaced; /* items, where there are sets */
    memob_map bases; /* of a set of items: 1 + the highest offset on which the set can be stacked */
    double* weight;  /* of a section: 1 + how often the section failed lately */
    int64_t place;   /* among the searches */
    int64_t* answered; /* the earliest answer so far; a search beyond it stops; NULL: no others */
} memoi_search;

MEMOI void memoi_search_free(memoi_search* search) {
    memob_arrays_free(&search->arrays);
    memob_map_free(&search->bases);
    MEMO_FREE(search->changes);
}

/* Lists the members of all sections, by counting, and sets the nodes that placing all takes. */
MEMOI void memoi_search_list_members(memoi_search* search) {
    const memoi_problem* problem = search->problem;
    int64_t* first = search->first_member;
    double looks = 0;
    for (int64_t i = 0; i < problem->n_ranges; i++)
        for (int64_t s = problem->ranges[i].begin; s < problem->ranges[i].end; s++) first[s + 1]++;
    for (int64_t s = 0; s < problem->n_sections; s++) {
        looks += (double)first[s + 1] * (double)first[s + 1]; /* each member looks at all others */
        search->unplaced_sum[s] = first[s];
        first[s + 1] += first[s];
    }

    for (int64_t i = 0; i < problem->n_items; i++) {
        const memoi_item* here = &problem->items[i];
        search->size[i] = here->size;
        if (here->alignment > 1 && search->sets) search->aligned |= (uint64_t)1 << i;
        for (int64_t k = here->first_range; k < here->first_range + here->n_ranges; k++)
            for (int64_t s = problem->ranges[k].begin; s < problem->ranges[k].end; s++) {
                search->members[search->unplaced_sum[s]++] = (int32_t)i; /* as scratch */
                if (search->sets) search->sets[s] |= (uint64_t)1 << i;
            }
    }
    search->least_nodes = problem->n_items + (int64_t)(looks / 2 / (double)MEMOI_SEARCH_LOOKS);
}

/* UNFIT: too large, or has pairs.  The caller frees the search in any case. */
MEMOI memoi_made memoi_search_create(memoi_search* search, const memoi_problem* problem,
                                     uint64_t seed, const memoi_deadline* clock) {
    int64_t n = problem->n_items, n_sections = problem->n_sections, n_members = 0;
    memob_arrays* a = &search->arrays;
    memoi_made listed;
    memset(search, 0, sizeof *search);
    search->problem = problem;
    search->clock = clock;
    search->random = seed;
    if (n > MEMOI_SEARCH_ITEMS || problem->held) return MEMOI_UNFIT;
    listed = memoi_neighbors_list(problem);
    if (listed != MEMOI_MADE) return listed;
    for (int64_t i = 0; i < problem->n_ranges; i++)
        n_members += problem->ranges[i].end - problem->ranges[i].begin;
    if (n_members > MEMOI_SEARCH_MEMBERS) return MEMOI_UNFIT;

    search->size = MEMOB_ARRAY(a, int64_t, n);
    search->members = MEMOB_ARRAY(a, int32_t, n_members);
    search->first_member = MEMOB_ARRAY(a, int64_t, n_sections + 1);
    search->minimum = MEMOB_ARRAY(a, int64_t, n);
    search->bound = MEMOB_ARRAY(a, int64_t, n);
    search->is_placed = (char*)memob_arrays_add(a, n, 1);
    search->is_blocked = (char*)memob_arrays_add(a, n, 1);
    search->unplaced_sum = MEMOB_ARRAY(a, int64_t, n_sections);
    search->n_unplaced = MEMOB_ARRAY(a, int32_t, n_sections);
    search->crossing = MEMOB_ARRAY(a, int32_t, n_sections);
    search->tallies = MEMOB_ARRAY(a, memoi_tally, n / MEMOI_TALLY_ITEMS + 1);
    search->looks = MEMOB_ARRAY(a, memoi_look, n_sections);
    search->is_stale = (char*)memob_arrays_add(a, n_sections, 1);
    if (problem->has_alignment && n <= MEMOI_BASE_ITEMS && !problem->n_fixed)
        search->sets = MEMOB_ARRAY(a, uint64_t, n_sections);
    search->rank = MEMOB_ARRAY(a, int32_t, n);
    search->weight = MEMOB_ARRAY(a, double, n_sections);
    search->sorted = MEMOB_ARRAY(a, int32_t, n);
    search->lifted = MEMOB_ARRAY(a, int32_t, n);
    search->ranked = MEMOB_ARRAY(a, memoi_ranked, n);
    search->failures = MEMOB_ARRAY(a, memoi_failure, MEMOI_FAILURES);
    if (a->failed) return MEMOI_NO_MEMORY;

    for (int64_t k = 0; k < n_sections; k++) search->weight[k] = 1;
    memoi_search_list_members(search);
    return MEMOI_MADE;
}

/* Remembers what an item had before a change, or the look at a section. */
MEMOI void memoi_search_log(memoi_search* search, memoi_change_kind kind, int64_t index,
                            int64_t before) {
    memoi_change* change;
    if (search->n_changes == search->change_capacity &&
        !memob_reserve(&search->changes, &search->change_capacity, search->n_changes + 1,
                       sizeof(memoi_change))) {
        search->is_out_of_memory = 1; /* the run ends, and its state is not used again */
        return;
    }
    change = &search->changes[search->n_changes++];
    change->kind = (int32_t)kind;
    change->index = (int32_t)index;
    change->before.value = before;
    if (kind == MEMOI_CHANGE_LOOK) change->before.look = search->looks[index];
    if (kind < MEMOI_CHANGE_LOOK) search->tallies[index / MEMOI_TALLY_ITEMS].is_kept = 0;
}

/* A tool may write down the steps by which a node fails: examples/tools/plan_proof.h defines this
 * before.  It is 1, or of step m, a state that failed before, 0 if that failure is not there. */
#ifndef MEMOI_PROVE
#define MEMOI_PROVE(search, step, a, b) 1
#endif

/* Counts item i as unplaced (sign 1) or no longer (-1). */
MEMOI void memoi_search_count(memoi_search* search, int64_t i, int sign) {
    const memoi_item* item = &search->problem->items[i];
    const int64_t change = sign * item->size;
    const memoi_range *range = search->problem->ranges + item->first_range, *last;
    for (last = range + item->n_ranges; range < last; range++) {
        for (int64_t s = range->begin; s < range->end; s++) search->unplaced_sum[s] += change;
        for (int64_t s = range->begin; s < range->end; s++) {
            search->n_unplaced[s] += sign;
            MEMO_ASSERT(search->n_unplaced[s] >= 0 && search->unplaced_sum[s] >= 0); /* 2 */
        }
    }
    for (int64_t s = item->begin + 1; s < item->end; s++) search->crossing[s] += sign;
    if (search->sets) search->unplaced ^= (uint64_t)1 << i;
}

/* Undoes all but so many changes. */
MEMOI void memoi_search_undo(memoi_search* search, int64_t n_changes) {
    while (search->n_changes > n_changes) {
        const memoi_change* change = &search->changes[--search->n_changes];
        const int32_t k = change->index;
        if (change->kind < (int32_t)MEMOI_CHANGE_LOOK)
            search->tallies[k / MEMOI_TALLY_ITEMS].is_kept = 0;
        switch (change->kind) {
        case MEMOI_CHANGE_MINIMUM: search->minimum[k] = change->before.value; break;
        case MEMOI_CHANGE_BOUND: search->bound[k] = change->before.value; break;
        case MEMOI_CHANGE_BLOCKED: search->is_blocked[k] = (char)change->before.value; break;
        case MEMOI_CHANGE_LOOK: search->looks[k] = change->before.look; break;
        case MEMOI_CHANGE_STALE: search->is_stale[k] = 1; break;
        default: search->is_placed[k] = 0; memoi_search_count(search, k, 1);
        }
    }
}

MEMOI void memoi_search_touch(memoi_search* search, int64_t i) {
    const memoi_item* item = &search->problem->items[i];
    const memoi_range *range = search->problem->ranges + item->first_range, *last;
    for (last = range + item->n_ranges; range < last; range++)
        memset(search->is_stale + range->begin, 1, (size_t)(range->end - range->begin));
}

/* Returns 0 if the item then no longer fits. */
MEMOI int memoi_search_raise(memoi_search* search, int64_t i, int64_t bound) {
    const memoi_item* item = &search->problem->items[i];
    if (bound <= search->bound[i]) return 1;
    if (item->fixed >= 0) return 0;
    bound = memoi_neighbors_clear(search->problem, i, bound);
    if (memoi_item_top(item, bound) > search->capacity) return 0;
    MEMO_ASSERT(bound >= search->minimum[i] && !search->is_placed[i]); /* 1 */
    memoi_search_log(search, MEMOI_CHANGE_BOUND, i, search->bound[i]);
    search->bound[i] = bound;
    memoi_search_touch(search, i);
    return 1;
}

/* Puts i at its minimum; returns 0 if a neighbor then no longer fits. */
MEMOI int memoi_search_place(memoi_search* search, int64_t i) {
    const memoi_problem* problem = search->problem;
    const memoi_neighbors* neighbors = problem->neighbors;
    const int64_t* first = neighbors->first;
    int64_t top = search->minimum[i] + search->size[i], k;
    MEMO_ASSERT(search->bound[i] == search->minimum[i]); /* 1 */
    memoi_search_log(search, MEMOI_CHANGE_PLACED, i, 0);
    search->is_placed[i] = 1;
    memoi_search_count(search, i, -1);
    memoi_search_touch(search, i);
    search->n_looks += first[i + 1] - first[i];
    for (k = first[i]; k < first[i + 1]; k++) {
        int64_t j = neighbors->list[k], offset = top;
        if (search->is_placed[j]) continue;
        if (search->is_blocked[j]) {
            memoi_search_log(search, MEMOI_CHANGE_BLOCKED, j, 1);
            search->is_blocked[j] = 0;
        }
        if (top <= search->minimum[j]) continue;
        if (problem->has_alignment) offset = memob_align_up(top, problem->items[j].alignment);
        memoi_search_log(search, MEMOI_CHANGE_MINIMUM, j, search->minimum[j]);
        search->minimum[j] = offset;
        if (!memoi_search_raise(search, j, offset)) return 0;
    }
    return 1;
}

/* --- >>stacks ---
 * The holes that alignments leave in the best stack of a set of items that live together, in a
 * problem of few items.  Doors: memoi_stack_base, memoi_stack_has_room.  What is known of a set
 * serves all nodes within the capacity.  Knows nothing of other sections.
 *
 * 1. Holes only lower a stack. */

enum {
    MEMOI_BASES_FIRST = 1 << 12,
    MEMOI_BASES_NODE = 8, /* sets for each node within a capacity */
    MEMOI_BASES_MOST = 1 << 19
};

/* The largest spare room of a set of items. */
MEMOI int64_t memoi_stack_spare(const memoi_search* search, uint64_t set) {
    int64_t most = 0;
    for (; set && search->problem->spare > 0; set &= set - 1)
        most = memob_max(most, search->problem->items[__builtin_ctzll(set)].spare);
    return most;
}

/* The highest offset, `most` without alignments, on which a set of items can be stacked within the
 * capacity, or a higher one; -1: none.  Sets are learned as the run goes on, so that learning never
 * takes much longer than the search itself. */
MEMOI int64_t memoi_stack_base(memoi_search* search, uint64_t set, int64_t most) {
    const memoi_item* items = search->problem->items;
    int64_t best = -1;
    int64_t learned = MEMOI_BASES_FIRST + MEMOI_BASES_NODE * (search->n_nodes - search->node_begin);
    if (most < 0 || !(set & search->aligned)) return memob_max(most, -1);
    best = memob_map_get(&search->bases, (int64_t)set) - 1;
    MEMO_ASSERT(best <= most); /* 1 */
    if (best > -2) return best;
    learned = memob_min(learned, MEMOI_BASES_MOST);
    if (search->bases.n_filled >= learned) return most;

    /* The lowest item lies below a stack of all other items. */
    best = -1;
    for (uint64_t rest = set; rest && best < most; rest &= rest - 1) {
        const int64_t i = __builtin_ctzll(rest), size = items[i].size;
        const uint64_t others = set & ~((uint64_t)1 << i);
        int64_t base = most;
        if (others) {
            base += size + memoi_stack_spare(search, others) - memoi_stack_spare(search, set);
            base = memoi_stack_base(search, others, base) - size;
        }
        if (base >= 0) best = memob_max(best, base - base % items[i].alignment);
    }
    if (search->bases.n_filled < learned && !memob_map_put(&search->bases, (int64_t)set, best + 1))
        search->is_out_of_memory = 1;
    return best;
}

/* Can the others of a set lie above item i, which ends there? */
MEMOI int memoi_stack_has_room(memoi_search* search, uint64_t set, int64_t i, int64_t end,
                               int64_t most) {
    uint64_t others;
    if (!(set & search->aligned)) return 1; /* always, of more than 64 items */
    others = set & ~((uint64_t)1 << i);
    most += search->size[i] + memoi_stack_spare(search, others);
    return !others || end <= memoi_stack_base(search, others, most);
}

/* ---- >>exact search -----------------------------------------------------------------------------
 * The engine that proves: is there a plan within a capacity?  Doors: memoi_exact_solve, all rounds
 * of a problem; or memoi_exact_begin and memoi_exact_step, an attempt after the other: at the bound
 * or a target first, then halfway between the last capacity given up and the best peak.  Knows
 * nothing of bytes.
 *
 * Among all plans take one whose offsets have the least sum.  In that plan every item lies at 0,
 * at the next aligned offset above an item below, or where the item is fixed.  So the plan is
 * reached by placing items upwards, each at its *minimum*, the top of its placed neighbors.
 * (Neighbors: items that overlap in time.)
 *
 * Branching.  An unplaced item c is *first* among its unplaced neighbors, and then lies at its
 * minimum; or c is not first, and then is *blocked* until a neighbor is placed.  The two cases
 * exclude each other and leave nothing out.  c is an item that can be first and would lie lowest,
 * at the *floor*: the lowest unplaced item of the plan is first among its neighbors, so every
 * unplaced item lies at the floor or higher.
 *
 * Pruning, in a page.  Each unplaced item has a *bound*: the plan cannot have it lower.  A rule
 * raises a bound, or fails the node.  An item whose bound is above its minimum cannot be first.  An
 * item whose bound leaves no room for it below the capacity fails the node.
 *
 * The unplaced items of a section lie above each other, in an order that is not known yet.  Four
 * items and a capacity of 20:
 *
 *         size  bound  end    The sizes are 16 in all, so the lowest of the four begins at 4 or
 *     a      6      0    6    lower, or the highest would pass 20.  4 is the section's *latest*
 *     b      4      3    7    offset.  a and b are *choices*: their bounds are 4 or lower, so each
 *     c      3      5    8    can be the lowest.  If there were no choice, the node would fail.
 *     d      3     12   15
 *
 *   head    what lies at 12 or higher must fit from there to 20, and so for each bound above 4: for
 *           5, c and d, whose sizes are 6.  Else the node fails.
 *   lift    c cannot be the lowest, so it lies above a or b.  a can end at 6, earlier than b: the
 *           bound of c becomes 6.
 *   block   a blocked item is not the lowest in one of its sections.  If that is a in this section,
 *           b is the lowest, and a lies at 7 or higher.  The bound of a becomes the least such
 *           offset of all its sections.
 *   floor   the bounds of all items become the floor or more.
 *   hole    an item that fits between its minimum and the floor could lie there, so this is not the
 *           plan of the least sum: the node fails.
 *   stack   of few items, latest offset and head count the holes that alignments leave in the
 *           best stack of the items; what is known of a set serves all nodes within the capacity.
 *
 * In a node memoi_search_prune applies floor, then head and lift to each section that is *stale*,
 * because one of its items has changed, then block.  A raise makes the sections of its item stale:
 * later sections follow in the same node, earlier ones in the next.
 *
 * A new rule uses only what memoi_search_tally hashes: else failures that are remembered are false.
 *
 * Parts.  Where no unplaced item reaches from a section into the next, the two sides are searched
 * alone; one that fails fails the node, without trying the other again.
 *
 * Failures.  A part's result depends on the capacity and its unplaced items: their minimums, bounds
 * and blocks.  Orders of decisions that lead to the same state are searched once: a failed state is
 * remembered as 128 bits of hash, beyond restarts, so that these prove something too.
 *
 * Runs.  A run succeeds soon or takes very long, so runs are short and grow slowly.  They differ in
 * the order of the items, and in how tight sections are that failed before.
 *
 * 1. Members of a section can be its lowest, or are lifted.
 * 2. The item to branch on lies on the floor, and is neither placed nor blocked.
 * 3. A node that fails leaves the search as it was. */

/* --- pruning: the rules of the page above, and failures that are remembered --- */

/* Sorts a section's unplaced items by bound into search->sorted; returns how many there are.  The
 * order, with placed items behind, is kept: from node to node it hardly changes. */
MEMOI int64_t memoi_search_sort(memoi_search* search, int64_t s) {
    int32_t* members = search->members + search->first_member[s];
    int32_t* sorted = search->sorted;
    const int64_t* bound = search->bound;
    int64_t n_unplaced = search->n_unplaced[s], n = 0, m, k;
    for (m = 0; n < n_unplaced; m++) {
        int32_t i = members[m];
        if (search->is_placed[i]) continue;
        for (k = n++; k > 0 && bound[sorted[k - 1]] > bound[i]; k--) sorted[k] = sorted[k - 1];
        sorted[k] = i;
        search->n_looks += n - k;
    }
    for (k = --m; k >= 0; k--)
        if (search->is_placed[members[k]]) members[m--] = members[k];
    memcpy(members, sorted, (size_t)n * sizeof *members);
    return n;
}

/* The latest offset of the lowest unplaced item of a section.  At best the spare room of one item
 * lies above the capacity. */
MEMOI int64_t memoi_search_latest(memoi_search* search, int64_t s, uint64_t set) {
    const int32_t* members = search->members + search->first_member[s];
    int64_t spare = 0;
    for (int64_t m = 0, k = 0; search->problem->spare > 0 && k < search->n_unplaced[s]; m++) {
        if (search->is_placed[members[m]]) continue;
        spare = memob_max(spare, search->problem->items[members[m]].spare);
        k++;
    }
    return memoi_stack_base(search, set, search->capacity - search->unplaced_sum[s] + spare);
}

/* Counts the choices of a section: how many unplaced members can be the lowest, and where these
 * would end.  Lists the others in search->lifted; returns how many. */
MEMOI int64_t memoi_search_look(memoi_search* search, int64_t s, uint64_t set, int64_t latest,
                                memoi_look* look, int64_t* highest) {
    const int32_t* members = search->members + search->first_member[s];
    const int64_t* bound = search->bound;
    const int64_t most = search->capacity - search->unplaced_sum[s], n = search->n_unplaced[s];
    int64_t lowest = INT64_MAX, n_lifted = 0, m, k;
    look->least_end = look->second_end = INT64_MAX;
    look->least_item = -1;
    look->n_choices = 0;

    /* Placed members lie between the others. */
    for (m = 0, k = 0; k < n; m++) {
        const int32_t i = members[m];
        const int64_t end = bound[i] + search->size[i];
        if (search->is_placed[i]) continue;
        k++;
        *highest = memob_max(*highest, bound[i]);
        lowest = memob_min(lowest, bound[i]);
        if (bound[i] > latest || !memoi_stack_has_room(search, set, i, end, most)) {
            search->lifted[n_lifted++] = i;
            continue;
        }
        look->n_choices++;
        if (end < look->least_end) {
            look->second_end = look->least_end;
            look->least_end = end;
            look->least_item = i;
        } else if (end < look->second_end) {
            look->second_end = end;
        }
    }

    MEMO_ASSERT(n_lifted + look->n_choices == n); /* 1 */
    look->slack = n ? latest - lowest : INT64_MAX;
    search->n_looks += m;
    return n_lifted;
}

/* The rule head: from each bound above `latest` on, items must fit.  0: they do not.  A choice has
 * a bound that is not above, so the loop ends. */
MEMOI int memoi_search_head(memoi_search* search, int64_t s, uint64_t set, int64_t latest) {
    uint64_t above = 0;
    int64_t most = search->capacity, spare = 0;
    for (int64_t k = memoi_search_sort(search, s) - 1; search->bound[search->sorted[k]] > latest;
         k--) {
        const int32_t i = search->sorted[k];
        if (set) above |= (uint64_t)1 << i;
        most -= search->size[i];
        spare = memob_max(spare, search->problem->items[i].spare);
        if (search->bound[i] > memoi_stack_base(search, above, most + spare)) return 0;
    }
    return 1;
}

/* Applies the rules head and lift; returns 0 if the section cannot be filled. */
MEMOI int memoi_search_section(memoi_search* search, int64_t s) {
    const uint64_t set = search->sets ? search->sets[s] & search->unplaced : 0;
    const int64_t latest = memoi_search_latest(search, s, set);
    int64_t highest = 0, n_lifted;
    memoi_look* look = &search->looks[s];
    memoi_search_log(search, MEMOI_CHANGE_LOOK, s, 0); /* branching reads looks later */
    n_lifted = memoi_search_look(search, s, set, latest, look, &highest);

    /* The rules need an item that cannot be the lowest, and an item that can. */
    if (n_lifted == 0) return 1;
    if (look->n_choices == 0 || (highest > latest && !memoi_search_head(search, s, set, latest))) {
        (void)MEMOI_PROVE(search, 's', s, 0);
        return 0;
    }
    for (int64_t k = 0; k < n_lifted; k++) { /* lift */
        (void)MEMOI_PROVE(search, 'l', s, search->lifted[k]);
        if (!memoi_search_raise(search, search->lifted[k], look->least_end)) return 0;
    }
    return 1;
}

/* The rule block: a blocked item lies above another item in one of its sections. */
MEMOI int memoi_search_block(memoi_search* search, int64_t i) {
    const memoi_item* item = &search->problem->items[i];
    int64_t least = INT64_MAX;
    const memoi_range *range = search->problem->ranges + item->first_range, *last;
    for (last = range + item->n_ranges; range < last; range++)
        for (int64_t s = range->begin; s < range->end; s++) {
            const memoi_look* look = &search->looks[s];
            least = memob_min(least, look->least_item == i ? look->second_end : look->least_end);
        }
    return least < INT64_MAX && memoi_search_raise(search, i, least);
}

/* Adds the unplaced items of [first, last) to a tally.  The order of items does not matter. */
MEMOI void memoi_search_tally(const memoi_search* search, int64_t first, int64_t last,
                              memoi_tally* tally) {
    for (int64_t i = first; i < last; i++) {
        const int64_t minimum = search->minimum[i], bound = search->bound[i];
        const int is_blocked = search->is_blocked[i];
        uint64_t x, y, low, high;
        if (search->is_placed[i]) continue;

        /* Two hashes that share no constant: both agree by chance once in 2^128. */
        x = (uint64_t)minimum * 0x9e3779b97f4a7c15u + (uint64_t)(2 * i + is_blocked);
        y = (uint64_t)bound * 0xc2b2ae3d27d4eb4fu + (uint64_t)i;
        low = (x ^ (y << 32 | y >> 32)) * 0xbf58476d1ce4e5b9u;
        high = (y ^ (x << 32 | x >> 32)) * 0x94d049bb133111ebu;
        low = (low ^ low >> 29) * 0xff51afd7ed558ccdu;
        high = (high ^ high >> 33) * 0xc4ceb9fe1a85ec53u;
        tally->state.low += low ^ low >> 32;
        tally->state.high += high ^ high >> 29;
        tally->bound = memob_min(tally->bound, bound);
        if (bound == minimum && !is_blocked) tally->floor = memob_min(tally->floor, minimum);
        if (search->problem->items[i].fixed < 0)
            tally->hole = memob_min(tally->hole, minimum + search->size[i]);
    }
}

/* The tally of the items from i to the end of i's block or to last, which *next becomes.  NULL if
 * this is not the whole block: then no tally is kept. */
MEMOI const memoi_tally* memoi_search_block_tally(memoi_search* search, int64_t i, int64_t last,
                                                  int64_t* next) {
    static const memoi_tally empty = {{0, 0}, INT64_MAX, INT64_MAX, INT64_MAX, 1};
    int64_t block = i / MEMOI_TALLY_ITEMS, first = block * MEMOI_TALLY_ITEMS;
    int64_t end = memob_min(first + MEMOI_TALLY_ITEMS, search->problem->n_items);
    *next = memob_min(end, last);
    if (i != first || *next != end) return NULL;
    if (!search->tallies[block].is_kept) {
        search->tallies[block] = empty;
        memoi_search_tally(search, first, end, &search->tallies[block]);
    }
    return &search->tallies[block];
}

/* The tally of sections [begin, end) within the capacity. */
MEMOI memoi_tally memoi_search_part(memoi_search* search, int64_t begin, int64_t end) {
    const int64_t last = search->problem->first_item[end];
    const uint64_t capacity = (uint64_t)search->capacity;
    memoi_tally part = {{capacity, -capacity}, INT64_MAX, INT64_MAX, INT64_MAX, 0};
    for (int64_t i = search->problem->first_item[begin], next; i < last; i = next) {
        const memoi_tally* block = memoi_search_block_tally(search, i, last, &next);
        if (!block) {
            memoi_search_tally(search, i, next, &part);
            continue;
        }
        part.state.low += block->state.low;
        part.state.high += block->state.high;
        part.floor = memob_min(part.floor, block->floor);
        part.hole = memob_min(part.hole, block->hole);
        part.bound = memob_min(part.bound, block->bound);
    }
    return part;
}

/* The first of [begin, end) that has a mark, or end. */
MEMOI int64_t memoi_search_marked(const char* marks, int64_t begin, int64_t end) {
    const void* found = begin < end ? memchr(marks + begin, 1, (size_t)(end - begin)) : NULL;
    return found ? (int64_t)((const char*)found - marks) : end;
}

/* Applies all rules but hole; returns 0 if the part cannot be filled. */
MEMOI int memoi_search_prune(memoi_search* search, int64_t begin, int64_t end, int64_t floor) {
    const int64_t first = search->problem->first_item[begin];
    const int64_t last = search->problem->first_item[end];
    int64_t i, next, s;
    for (i = first; i < last; i = next) {
        const memoi_tally* block = memoi_search_block_tally(search, i, last, &next);
        if (block && block->bound >= floor) continue;
        for (; i < next; i++) {
            if (search->is_placed[i]) continue;
            (void)MEMOI_PROVE(search, 'f', i, floor);
            if (!memoi_search_raise(search, i, floor)) return 0;
        }
    }
    for (s = begin; (s = memoi_search_marked(search->is_stale, s, end)) < end; s++) {
        search->is_stale[s] = 0;
        if (memoi_search_section(search, s)) continue;
        search->weight[s] += 1;
        return 0;
    }
    for (i = first; (i = memoi_search_marked(search->is_blocked, i, last)) < last; i++) {
        (void)MEMOI_PROVE(search, 'k', i, 0); /* no placed item is blocked */
        if (!memoi_search_block(search, i)) return 0;
    }
    return 1;
}

/* --- branching: the item of a node, both of its cases, and parts one by one --- */

/* How tight an item's tightest section is: little room, few choices, and failures.  The least is
 * the tightest. */
MEMOI double memoi_search_tightness(const memoi_search* search, int64_t i) {
    const memoi_item* item = &search->problem->items[i];
    double least = HUGE_VAL;
    const memoi_range *range = search->problem->ranges + item->first_range, *last;
    for (last = range + item->n_ranges; range < last; range++)
        for (int64_t s = range->begin; s < range->end; s++) {
            const memoi_look* look = &search->looks[s];
            const double room = (double)look->slack + 1;
            least = fmin(least, room * (double)look->n_choices / search->weight[s]);
        }
    return least;
}

/* The item that can lie on the floor and has the tightest sections. */
MEMOI int64_t memoi_search_choose(memoi_search* search, int64_t begin, int64_t end, int64_t floor) {
    const int64_t last = search->problem->first_item[end];
    int64_t next, best = -1, i;
    double least = HUGE_VAL; /* tightness, of the best */
    for (i = search->problem->first_item[begin]; i < last; i = next) {
        const memoi_tally* block = memoi_search_block_tally(search, i, last, &next);
        if (block && block->floor != floor) continue;
        for (; i < next; i++) {
            double tightness;
            if (search->bound[i] != floor || search->minimum[i] != floor || search->is_placed[i] ||
                search->is_blocked[i])
                continue;
            tightness = memoi_search_tightness(search, i);
            if (best >= 0 && (tightness > least ||
                              (tightness >= least && search->rank[i] >= search->rank[best])))
                continue;
            best = i;
            least = tightness;
        }
    }
    return best;
}

/* The first section after begin that no unplaced item reaches from one before; at most end. */
MEMOI int64_t memoi_search_cut(const memoi_search* search, int64_t begin, int64_t end) {
    int64_t s = begin + 1;
    while (s < end && search->crossing[s]) s++;
    return s;
}

/* A moment among searches side by side.  It counts nodes, which do not depend on a clock; the place
 * of the search breaks ties. */
MEMOI int64_t memoi_search_moment(const memoi_search* search) {
    return (search->n_nodes - search->node_begin) * MEMOI_THREADS + search->place;
}

/* Counts a branch.  Must the run stop? */
MEMOI int memoi_search_is_stopped(memoi_search* search) {
    const int64_t before = search->n_nodes;
    search->n_branches++;
    search->n_nodes += 1 + search->n_looks / MEMOI_SEARCH_LOOKS;
    search->n_looks %= MEMOI_SEARCH_LOOKS;
    if (search->n_nodes / 16 > before / 16) {
        search->is_out_of_time |= memoi_deadline_is_over(search->clock);
        if (search->answered &&
            __atomic_load_n(search->answered, __ATOMIC_RELAXED) < memoi_search_moment(search))
            search->node_end = 0;
    }
    return search->is_out_of_time || search->is_out_of_memory ||
           search->n_branches >= search->branch_stop || search->n_nodes >= search->node_end;
}

MEMOI memoi_verdict memoi_search_node(memoi_search* search, int64_t begin, int64_t end);

/* Parts that share no item are independent: solves one after the other. */
MEMOI memoi_verdict memoi_search_parts(memoi_search* search, int64_t begin, int64_t end) {
    memoi_verdict verdict = MEMOI_FOUND;
    for (int64_t s = begin, cut; s < end && verdict == MEMOI_FOUND; s = cut) {
        cut = memoi_search_cut(search, s, end);
        (void)MEMOI_PROVE(search, 'w', s, cut);
        verdict = memoi_search_node(search, s, cut);
        (void)MEMOI_PROVE(search, 'v', verdict, 0);
    }
    return verdict;
}

/* Places the item to branch on, and all others.  If that fails, forbids its place. */
MEMOI memoi_verdict memoi_search_branch(memoi_search* search, int64_t i, int64_t begin,
                                        int64_t end) {
    const int64_t n_changes = search->n_changes;
    memoi_verdict verdict = MEMOI_FAILED;
    for (int64_t s = begin; (s = memoi_search_marked(search->is_stale, s, end)) < end; s++)
        memoi_search_log(search, MEMOI_CHANGE_STALE, s, 0);
    (void)MEMOI_PROVE(search, 'p', i, 0);
    if (memoi_search_place(search, i)) verdict = memoi_search_node(search, begin, end);
    if (verdict != MEMOI_FAILED) return verdict;
    (void)MEMOI_PROVE(search, 'b', i, 0);
    memset(search->is_stale + begin, 0, (size_t)(end - begin));
    memoi_search_undo(search, n_changes); /* sections are stale as before the place */
    memoi_search_log(search, MEMOI_CHANGE_BLOCKED, i, 0);
    search->is_blocked[i] = 1;
    return verdict;
}

/* Places all unplaced items of [begin, end), which none crosses.  A failure changes nothing. */
MEMOI memoi_verdict memoi_search_node(memoi_search* search, int64_t begin, int64_t end) {
    const int64_t n_changes = search->n_changes;
    memoi_verdict verdict = MEMOI_FAILED;
    memoi_tally part = memoi_search_part(search, begin, end);
    const memoi_failure state = part.state;
    (void)MEMOI_PROVE(search, '(', 0, 0);
    for (;; part = memoi_search_part(search, begin, end)) {
        const memoi_failure* known = &search->failures[part.state.low % MEMOI_FAILURES];
        int64_t chosen;
        if (part.bound == INT64_MAX)
            verdict = MEMOI_FOUND; /* nothing is unplaced */
        else if (memoi_search_is_stopped(search))
            verdict = MEMOI_STOPPED;
        if (verdict != MEMOI_FAILED) break;

        /* The node fails if this state failed before, by the rule hole, or by a bound.  If nothing
         * can be first, the floor is infinite, so there is a hole. */
        if (known->low == part.state.low && known->high == part.state.high &&
            MEMOI_PROVE(search, 'm', (int64_t)known->low, 0))
            break;
        if (part.hole <= part.floor && MEMOI_PROVE(search, 'd', 0, 0)) break;
        if (!memoi_search_prune(search, begin, end, part.floor)) break;
        if (memoi_search_cut(search, begin, end) < end) {
            verdict = memoi_search_parts(search, begin, end);
            break;
        }
        part = memoi_search_part(search, begin, end); /* a lift may have raised the floor */
        if (part.hole <= part.floor && MEMOI_PROVE(search, 'd', 0, 0)) break;

        /* Branch: the chosen item is first, or is blocked from then on. */
        chosen = memoi_search_choose(search, begin, end, part.floor);
        MEMO_ASSERT(chosen >= 0 && search->bound[chosen] == part.floor); /* 2 */
        verdict = memoi_search_branch(search, chosen, begin, end);
        if (verdict != MEMOI_FAILED) break;
    }

    /* Only a complete failure is remembered: a stopped search proves nothing. */
    (void)MEMOI_PROVE(search, ')', verdict, (int64_t)state.low);
    if (verdict != MEMOI_FOUND) memoi_search_undo(search, n_changes);
    if (verdict == MEMOI_FAILED) search->failures[state.low % MEMOI_FAILURES] = state;
    MEMO_ASSERT(verdict != MEMOI_FAILED || search->is_out_of_memory || /* 3 */
                memoi_search_part(search, begin, end).state.high == state.high);
    return verdict;
}

/* --- runs and capacities --- */

MEMOI void memoi_search_reset(memoi_search* search) {
    const memoi_problem* problem = search->problem;
    const int64_t n = problem->n_items, n_sections = problem->n_sections;
    search->n_changes = 0;
    search->unplaced = 0;
    memset(search->is_stale, 1, (size_t)n_sections);
    memset(search->tallies, 0, (size_t)(n / MEMOI_TALLY_ITEMS + 1) * sizeof(memoi_tally));
    memset(search->crossing, 0, (size_t)n_sections * sizeof(int32_t));
    memset(search->n_unplaced, 0, (size_t)n_sections * sizeof(int32_t));
    memset(search->unplaced_sum, 0, (size_t)n_sections * sizeof(int64_t));
    for (int64_t i = 0; i < n; i++) {
        search->minimum[i] = memob_max(problem->items[i].fixed, 0);
        search->bound[i] = search->minimum[i];
        if (problem->items[i].fixed < 0) search->bound[i] = memoi_neighbors_clear(problem, i, 0);
        search->is_placed[i] = search->is_blocked[i] = 0;
        memoi_search_count(search, i, 1);
    }
}

/* A run within search->capacity.  Returns 1 if another run may follow.  Sections count, but less in
 * a cover or in a small problem: there every second run has another order. */
MEMOI int memoi_search_run(memoi_search* search) {
    static const memoi_item_order orders[] = {MEMOI_ORDER_SECTIONS, MEMOI_ORDER_AREA,
                                              MEMOI_ORDER_SECTIONS, MEMOI_ORDER_LIFETIME};
    const memoi_problem* problem = search->problem;
    const int is_one = problem->n_items > MEMOI_SMALL_ITEMS && !problem->is_cover;
    const int64_t run = is_one ? 0 : (search->place + search->n_runs++) % 4;
    memoi_search_reset(search);
    memoi_greedy_order_items(search->problem, orders[run], &search->random, search->ranked);
    for (int64_t i = 0; i < search->problem->n_items; i++)
        search->rank[search->ranked[i].index] = (int32_t)i;

    search->branch_stop = search->n_branches + (int64_t)search->run_length;
    search->verdict = memoi_search_node(search, 0, search->problem->n_sections);
    if (search->verdict != MEMOI_STOPPED || search->is_out_of_time || search->is_out_of_memory)
        return 0;

    /* The next run is longer and forgets a part of the weights. */
    for (int64_t s = 0; s < search->problem->n_sections; s++)
        search->weight[s] = 1 + 0.9 * (search->weight[s] - 1);
    search->run_length *= search->problem->is_cover ? 1.12 : 1.05;
    return search->n_nodes < search->node_end;
}

/* Begins an attempt at a capacity: again with the first order and the shortest run, which
 * needs a branch for each item; in a cover many short runs find more plans than a few long ones. */
MEMOI void memoi_search_begin(memoi_search* search, int64_t capacity, int64_t budget) {
    search->capacity = capacity;
    memob_map_free(&search->bases);
    search->verdict = MEMOI_STOPPED;
    search->n_runs = 0;
    search->run_length =
        (double)memob_max(500, (search->problem->is_cover ? 3 : 6) * search->problem->n_items / 2);
    search->node_begin = search->n_nodes;
    search->node_end = search->n_nodes + budget;
}

/* Attempts a capacity, and sets the verdict.  Returns the nodes spent, of so many. */
MEMOI int64_t memoi_search_attempt(memoi_search* search, int64_t capacity, int64_t n_nodes) {
    memoi_search_begin(search, capacity, n_nodes);
    while (memoi_search_run(search)) continue;
    return search->n_nodes - search->node_begin;
}

/* The exact search of a problem, from attempt to attempt. */
typedef struct memoi_exact {
    memoi_search search;
    memoi_effort* effort;
    memoi_solution* best;
    int64_t given_up, n_attempts; /* of the round */
    void* pack;                   /* of extras/memo_pack.h */
} memoi_exact;

/* As memoi_search_create. */
MEMOI memoi_made memoi_exact_create(memoi_exact* exact, const memoi_problem* problem,
                                    memoi_effort* effort, memoi_solution* best) {
    memset(exact, 0, sizeof *exact);
    exact->effort = effort;
    exact->best = best;
    if (MEMOI_WITHOUT(search)) return MEMOI_UNFIT;
    return memoi_search_create(&exact->search, problem, effort->seed, &effort->clock);
}

MEMOI void memoi_exact_free(memoi_exact* exact) {
    memoi_pack_forget(exact);
    memoi_search_free(&exact->search);
}

/* Begins a round of attempts. */
MEMOI void memoi_exact_begin(memoi_exact* exact, int64_t target) {
    exact->given_up = memob_max(target, exact->best->bound);
    exact->n_attempts = 0;
}

/* Attempts a capacity with so many nodes, which lowers the best plan or raises its bound: the goal
 * first, then halfway from the capacity given up to the best peak.  0: none is left between, a run
 * needs a later round, or no memory. */
MEMOI int memoi_exact_step(memoi_exact* exact, int64_t n_nodes) {
    memoi_search* search = &exact->search;
    memoi_solution* best = exact->best;
    int64_t capacity = exact->given_up;
    int verdict;
    if (n_nodes < search->least_nodes) return 0;
    if (exact->n_attempts++ > 0) capacity += (best->peak - capacity) / 2;
    capacity = memob_max(capacity, best->bound);
    n_nodes = memob_min(n_nodes, exact->effort->nodes_left);
    verdict = memoi_pack_attempt(exact, capacity, n_nodes);
    if (verdict < 0) {
        memoi_effort_spend(exact->effort, memoi_search_attempt(search, capacity, n_nodes));
        verdict = (int)search->verdict;
        if (verdict == MEMOI_FOUND) memoi_solution_offer(search->problem, search->minimum, best);
    }
    if (search->is_out_of_memory) return 0;
    if (verdict == MEMOI_FAILED) best->bound = memob_max(best->bound, capacity + 1);
    if (verdict != MEMOI_FOUND) exact->given_up = capacity;
    memoi_effort_report(exact->effort, search->problem, best);
    return exact->given_up < best->peak - 1;
}

/* The nodes of a first attempt: for eight of the shortest runs (in a cover sixteen), at most half
 * of what is left. */
MEMOI int64_t memoi_exact_first(const memoi_problem* problem, int64_t nodes_left) {
    return memob_min(memob_max(5000, 24 * problem->n_items), nodes_left / 2 + 1);
}

/* Lowers the best plan in rounds, the first with so many nodes an attempt and each with twice as
 * many, until the effort is over; does nothing if the problem is too large.  n_nodes is above 0. */
MEMOI memo_status memoi_exact_solve(const memoi_problem* problem, int64_t target, int64_t n_nodes,
                                    memoi_effort* effort, memoi_solution* best, memo_error* error) {
    memoi_exact exact;
    memoi_made made;
    if (best->peak <= target) return MEMO_STATUS_OK;
    made = memoi_exact_create(&exact, problem, effort, best);
    for (; made == MEMOI_MADE && memoi_effort_goes_on(effort, best, target); n_nodes *= 2) {
        memoi_exact_begin(&exact, target);
        while (memoi_effort_goes_on(effort, best, target) && memoi_exact_step(&exact, n_nodes))
            continue;
        if (exact.search.is_out_of_memory) made = MEMOI_NO_MEMORY;
    }
    memoi_exact_free(&exact);
    return made == MEMOI_NO_MEMORY ? memob_no_memory(error, "the search") : MEMO_STATUS_OK;
}

/* ---- >>full sections ----------------------------------------------------------------------------
 * The engine for many items of easy problems.  Door: memoi_full_solve, with a percent, of which the
 * loop tries several.  Knows nothing of gaps, holds and fixed items.
 *
 * Often few sections are nearly as full as the bound.  The items that live there are planned alone,
 * by greedy and the exact search; a bound of these items bounds the whole.  All other items go
 * around these by lowest offset. */

/* Plans the items in the set alone, from their offsets on; raises the bound of the whole. */
MEMOI memo_status memoi_full_inner(const memoi_problem* problem, const char* is_in_set,
                                   int64_t target, memoi_effort* own, int64_t* offsets,
                                   int64_t* bound, memo_error* error) {
    memoi_inner inner;
    const memoi_problem* part = &inner.part;
    int n_runs;
    memo_status status = memoi_inner_begin(&inner, problem, is_in_set, offsets, error);
    if (status) return status;
    n_runs = memoi_problem_is_large(part) ? 1 : MEMOI_GREEDY_RUNS;
    status = memoi_greedy_solve(part, 0, n_runs, target, &own->clock, &inner.best, error);
    memoi_effort_spend(own, n_runs * part->n_items / MEMOI_PLACED_NODE);
    if (!status)
        status = memoi_exact_solve(part, target, memoi_exact_first(part, own->nodes_left), own,
                                   &inner.best, error);
    *bound = memob_max(*bound, inner.best.bound);
    memoi_inner_end(&inner, offsets);
    return status;
}

/* Lowers the best plan of an easy problem.  The items of sections that are full up to some percent
 * of the bound come first, with so many nodes.  Does nothing if nearly all items live there. */
MEMOI memo_status memoi_full_solve(const memoi_problem* problem, int percent, int64_t target,
                                   int64_t n_nodes, memoi_effort* effort, memoi_solution* best,
                                   memo_error* error) {
    const int64_t n = problem->n_items, n_run = n / MEMOI_PLACED_NODE; /* nodes of an order */
    const int64_t n_orders = memob_min(2 + n_nodes / (2 * n_run + 1), 4);
    const int64_t bound = problem->lower_bound;
    const int64_t level = bound / 100 * percent + bound % 100 * percent / 100; /* no overflow */
    memo_status status = MEMO_STATUS_OK;
    int64_t peak = 0, n_full = 0;
    memoi_greedy greedy;
    memoi_effort own = memoi_effort_take(effort, n_nodes);
    const int ok = memoi_greedy_create(&greedy, problem, &effort->clock);
    memob_arrays* a = &greedy.arrays;
    int64_t* offsets = greedy.offsets; /* as scratch */
    char* is_in_set = (char*)memob_arrays_add(a, n, 1);
    if (!ok || a->failed) status = memob_no_memory(error, "full sections");
    for (int64_t i = 0; !status && i < n; i++)
        n_full += is_in_set[i] = problem->items[i].load > level;
    if (status || n_full > n / 4 * 3) goto done;
    memcpy(offsets, best->offsets, (size_t)n * sizeof(int64_t));
    status = memoi_full_inner(problem, is_in_set, target, &own, offsets, &best->bound, error);
    memoi_effort_spend(effort, own.n_nodes);

    /* All other items around it. */
    for (int64_t i = 0; !status && i < n; i++) {
        if (!is_in_set[i]) continue;
        greedy.ahead[greedy.n_ahead++] = memob_keyed_of(offsets[i], i);
        peak = memob_max(peak, memoi_item_top(&problem->items[i], offsets[i]));
    }
    qsort(greedy.ahead, (size_t)greedy.n_ahead, sizeof(memob_keyed), memob_keyed_compare);
    for (int k = 0; !status && k < n_orders && peak < best->peak; k++) { /* AREA to SECTIONS */
        memoi_greedy_order_items(problem, (memoi_item_order)((int)MEMOI_ORDER_AREA + k), NULL,
                                 greedy.ranked);
        if (memoi_deadline_is_over(&effort->clock) || !memoi_plateau_run(&greedy)) break;
        memoi_effort_spend(effort, n_run);
        memoi_solution_offer(problem, greedy.offsets, best);
    }
done: /* after a failure as well */
    memob_arrays_free(a);
    return status;
}

/* ---- >>ejections --------------------------------------------------------------------------------
 * The engine for problems of any size, and for what is not plain: it lowers a plan, and never
 * proves one that is above the bound.  Door: memoi_ejections_solve.  Knows nothing of how the plan
 * was made.
 *
 * The highest item waits for a place within a capacity.  A waiting item takes the place where the
 * items in its way weigh least, and then these items wait.  An item that ejected others weighs
 * more from then on, so that items do not chase each other.  (A pool, Nagata and Braysy 2009.)
 *
 * 1. An item waits once, or has a place.
 * 2. In order of offset, a neighbor begins to be in the way before it ends. */

enum { MEMOI_EJECTIONS_BLOCK = 64 }; /* items */

typedef struct memoi_ejections {
    const memoi_problem* problem;
    memob_arrays arrays;
    int64_t* offsets; /* of items; -1: the item waits */
    double* weight;
    int32_t* waiting;           /* the last one is placed first */
    memob_keyed *begins, *ends; /* offsets between which a neighbor is in the way */
    memob_keyed* sorted;        /* scratch, and of a digit: where the next key goes */
    int32_t* place;
    int32_t* largest_end; /* of blocks of items: without lists, a block that is over is skipped */
    int64_t n_waiting;
    int64_t capacity, highest;   /* the highest item waits for a place within the capacity */
    int64_t step;                /* from the peak to the next capacity */
    int64_t places, places_left; /* that waiting items may try for a capacity, and have left */
    int64_t peak;                /* of the best plan after the last call */
    int64_t n_looks;             /* at neighbors */
    uint64_t random;
} memoi_ejections;

/* Lists where the placed neighbors of item i are in its way, in order of offset; returns how many
 * there are.  Without lists, all items that begin before i ends are looked at. */
MEMOI int64_t memoi_ejections_look(memoi_ejections* e, int64_t i) {
    const memoi_problem* problem = e->problem;
    const memoi_neighbors* lists = problem->neighbors;
    const memoi_item* items = problem->items;
    const int has_lists = lists->list != NULL;
    const int64_t first = has_lists ? lists->first[i] : 0;
    const int64_t last = has_lists ? lists->first[i + 1] : problem->first_item[items[i].end];
    int64_t n = 0, top = 0;

    /* Where item i may not begin: between its own size below a neighbor, and the neighbor's top. */
    for (int64_t k = first; k < last; k++) {
        const int64_t j = has_lists ? lists->list[k] : k;
        if (!has_lists && k % MEMOI_EJECTIONS_BLOCK == 0 &&
            e->largest_end[k / MEMOI_EJECTIONS_BLOCK] <= items[i].begin) {
            k += MEMOI_EJECTIONS_BLOCK - 1;
            continue;
        }
        if (e->offsets[j] < 0) continue;
        if (!has_lists && (items[j].end <= items[i].begin ||
                           (problem->has_gaps && !memoi_problem_items_overlap(problem, i, j))))
            continue;
        e->begins[n] = memob_keyed_of(e->offsets[j] - items[i].size, j);
        e->ends[n] = memob_keyed_of(e->offsets[j] + items[j].size, j);
        top = memob_max(top, e->ends[n++].key);
    }

    e->n_looks += n + (has_lists ? 0 : (last - first) / MEMOI_EJECTIONS_BLOCK);
    memob_digits_sort(e->begins, n, -items[i].size, top, e->sorted, e->place);
    memob_digits_sort(e->ends, n, 0, top, e->sorted, e->place);
    return n;
}

/* The offset within the capacity at which the n neighbors in the way of item i weigh least: 0,
 * or the top of a neighbor.  -1: fixed items leave no room.  *least: that weight. */
MEMOI int64_t memoi_ejections_find(const memoi_ejections* e, int64_t i, int64_t n, double* least) {
    const memoi_item* items = e->problem->items;
    int64_t n_begun = 0, n_ended = 0, n_fixed = 0, found = -1;
    double weight = 0;
    *least = HUGE_VAL;
    for (int64_t k = -1; *least > 0 && k < n; k++) {
        const int64_t offset = k < 0 ? 0 : memob_align_up(e->ends[k].key, items[i].alignment);
        if (memoi_item_top(&items[i], offset) > e->capacity) break;
        for (; n_begun < n && e->begins[n_begun].key < offset; n_begun++) {
            weight += e->weight[e->begins[n_begun].index];
            n_fixed += items[e->begins[n_begun].index].fixed >= 0;
        }
        for (; n_ended < n && e->ends[n_ended].key <= offset; n_ended++) {
            weight -= e->weight[e->ends[n_ended].index];
            n_fixed -= items[e->ends[n_ended].index].fixed >= 0;
        }
        MEMO_ASSERT(n_ended <= n_begun && n_fixed >= 0);   /* 2 */
        weight = n_begun == n_ended ? 0 : fmax(weight, 1); /* whatever rounding left */
        if (n_fixed > 0 || weight >= *least) continue;
        *least = weight;
        found = offset;
    }
    return found;
}

/* Places an item within the capacity.  0: fixed items leave no room. */
MEMOI int memoi_ejections_place(memoi_ejections* e, int64_t i) {
    const memoi_item* item = &e->problem->items[i];
    const int64_t n = memoi_ejections_look(e, i);
    double least;
    const int64_t place = memoi_ejections_find(e, i, n, &least);
    MEMO_ASSERT(e->offsets[i] < 0); /* 1 */
    if (place < 0) return 0;
    for (int64_t k = 0; k < n && least > 0; k++) {
        const int64_t j = e->ends[k].index;
        if (e->ends[k].key <= place || e->offsets[j] >= place + item->size) continue;
        e->offsets[j] = -1;
        e->waiting[e->n_waiting++] = (int32_t)j;
    }
    e->offsets[i] = place;
    if (least > 0)
        e->weight[i] += 2 * memob_random_real(&e->random) * (double)item->size *
                        (double)(item->end - item->begin);
    return 1;
}

/* The caller frees the arrays.  UNFIT: pairs are too many for lists. */
MEMOI memoi_made memoi_ejections_create(memoi_ejections* e, const memoi_problem* problem,
                                        uint64_t seed) {
    const int64_t n = problem->n_items;
    const memoi_made listed = memoi_neighbors_list(problem);
    memob_arrays* a = &e->arrays;
    memset(e, 0, sizeof *e);
    e->problem = problem;
    e->random = seed;
    e->places = MEMOI_TRIES;
    if (listed == MEMOI_UNFIT && problem->held) return MEMOI_UNFIT;

    e->offsets = MEMOB_ARRAY(a, int64_t, n);
    e->weight = MEMOB_ARRAY(a, double, n);
    e->waiting = MEMOB_ARRAY(a, int32_t, n);
    e->begins = MEMOB_ARRAY(a, memob_keyed, n);
    e->ends = MEMOB_ARRAY(a, memob_keyed, n);
    e->sorted = MEMOB_ARRAY(a, memob_keyed, n);
    e->place = MEMOB_ARRAY(a, int32_t, n + 2);
    e->largest_end = MEMOB_ARRAY(a, int32_t, n / MEMOI_EJECTIONS_BLOCK + 1);
    if (a->failed || listed == MEMOI_NO_MEMORY) return MEMOI_NO_MEMORY;

    for (int64_t i = 0; i < n; i++) {
        int32_t* largest = &e->largest_end[i / MEMOI_EJECTIONS_BLOCK];
        const memoi_item* item = &problem->items[i];
        e->weight[i] = (double)item->size * (double)(item->end - item->begin);
        *largest = (int32_t)memob_max(*largest, item->end);
    }
    return MEMOI_MADE;
}

/* Places waiting items until none waits, or the places of this capacity, n_nodes or the time are
 * spent.  Fixed items that leave no room take all places. */
MEMOI void memoi_ejections_settle(memoi_ejections* e, int64_t n_nodes, memoi_effort* effort) {
    enum { PLACES = 4, LOOKS = 256 }; /* of a node */
    int64_t n_places = 0, n_spent = 0;
    e->n_looks = 0;
    for (; e->n_waiting > 0 && e->places_left > 0 && n_spent < n_nodes; n_places++) {
        if (n_places % MEMOI_CLOCK == 0 && memoi_deadline_is_over(&effort->clock)) break;
        e->places_left--;
        if (!memoi_ejections_place(e, e->waiting[--e->n_waiting])) {
            e->n_waiting++;
            e->places_left = 0;
        }
        n_spent = memob_max(n_places / PLACES, e->n_looks / LOOKS) + 1;
    }
    memoi_effort_spend(effort, memob_max(n_spent, 1));
}

/* Begins again at the best plan, with another capacity. */
MEMOI void memoi_ejections_restore(memoi_ejections* e, memoi_solution* best) {
    memcpy(e->offsets, best->offsets, (size_t)e->problem->n_items * sizeof(int64_t));
    e->highest = memoi_solution_highest(e->problem, best->offsets, &best->peak);
    e->n_waiting = 0;
    e->capacity = INT64_MAX;
}

/* Lowers the best plan until the goal is met or n_nodes are spent; the next call goes on from
 * there.  Weights stay: an item that was often in the way stays heavy.  Each capacity that is met
 * doubles the step to the next; failures shorten the step, and the shortest step gets more
 * places. */
MEMOI void memoi_ejections_solve(memoi_ejections* e, int64_t goal, int64_t n_nodes,
                                 memoi_effort* effort, memoi_solution* best) {
    enum { STEPS = 160 }; /* from a plan to the goal, at most */
    const int64_t last = effort->n_nodes + memob_min(n_nodes, effort->nodes_left);
    if (MEMOI_WITHOUT(ejections)) return;
    if (best->peak != e->peak) memoi_ejections_restore(e, best);
    while (best->peak > goal && effort->n_nodes < last && !memoi_effort_is_over(effort)) {
        if (e->capacity >= best->peak) {
            e->step = memob_max(2 * e->step, (best->peak - goal) / STEPS + 1);
            e->capacity = memob_max(goal, best->peak - e->step);
        }
        if (e->n_waiting == 0) { /* the highest item waits */
            e->offsets[e->highest] = -1;
            e->waiting[e->n_waiting++] = (int32_t)e->highest;
            e->places_left = e->places;
        }
        memoi_ejections_settle(e, last - effort->n_nodes, effort);

        /* Nothing waits, so this is a plan, perhaps above the capacity; or no place is left. */
        if (e->n_waiting == 0) { /* an equal peak is taken too */
            memcpy(best->offsets, e->offsets, (size_t)e->problem->n_items * sizeof(int64_t));
            e->highest = memoi_solution_highest(e->problem, best->offsets, &best->peak);
        } else if (e->places_left == 0) {
            memoi_ejections_restore(e, best);
            e->step /= MEMOI_SHARE; /* and twice that comes next */
            if (e->step <= (best->peak - goal) / STEPS)
                e->places = memob_min(2 * e->places, (int64_t)1 << 40);
            memoi_effort_report(effort, e->problem, best);
        }
    }
    e->peak = best->peak;
}

/* ---- >>mixed-integer program --------------------------------------------------------------------
 * The engine of the paper, by lp_solve.  Door: memoi_mip_solve.  Knows nothing of the search.  Only
 * the order of the items is taken from lp_solve's answer; the offsets are rebuilt from it in whole
 * units.
 *
 * MEMO paper, section 4.2.1: offsets o_i, peak M, for pairs i < j a binary z_ij, "i is below j":
 *     minimize M,   o_i + s_i <= M,   o_i + s_i <= o_j + U (1 - z_ij),   o_j + s_j <= o_i + U z_ij
 * where U is the best peak known, with the largest spare room.  Items end at the peak but for their
 * spare room.  Added: bounds on M.
 *
 * 1. Each pair has a column of its own. */

#ifdef MEMO_LP_SOLVE

enum { MEMOI_MIP_PAIRS = 20000 }; /* more, with items, are too many for lp_solve to factorize */

typedef struct memoi_mip {
    const memoi_problem* problem;
    int64_t n_pairs;
    lprec* lp;
    double scale; /* from units to what lp_solve sees */
    const memoi_deadline* clock;
} memoi_mip;

static int __WINAPI memoi_mip_abort(lprec* lp, void* user) {
    (void)lp;
    return memoi_deadline_is_over(((const memoi_mip*)user)->clock);
}

/* Adds the row x[a] - x[b] + factor z <= limit; without z if its column is 0. */
MEMOI int memoi_mip_row(const memoi_mip* mip, int a, int b, int z, double factor, double limit) {
    double value[3] = {1, -1, factor};
    int column[3] = {a, b, z};
    return add_constraintex(mip->lp, z ? 3 : 2, value, column, LE, limit);
}

/* Columns: o_i at 1 + i, M at 1 + n, the pairs after it. */
MEMOI int memoi_mip_build(memoi_mip* mip, const memoi_solution* best) {
    const memoi_problem* problem = mip->problem;
    const memoi_neighbors* neighbors = problem->neighbors;
    int64_t n = problem->n_items, j;
    int peak_column = (int)n + 1, z = peak_column, ok = 1;
    double slack = 0.25 * mip->scale, limit = (double)(best->peak + problem->spare) * mip->scale;
    lprec* lp = mip->lp;

    /* The peak lies between the bound and the best plan; slack allows for lp_solve's tolerances. */
    set_verbose(lp, 0);
    set_minim(lp);
    ok &= set_mat(lp, 0, peak_column, 1.0);
    ok &= set_bounds(lp, peak_column, (double)problem->lower_bound * mip->scale - slack,
                     (double)best->peak * mip->scale + slack);

    /* Offsets, and which of a pair lies below the other. */
    for (int64_t i = 0; i < n; i++) {
        const memoi_item* item = &problem->items[i];
        const double highest = limit - (double)item->size * mip->scale + slack;
        const double fixed = (double)item->fixed * mip->scale;
        ok &= set_bounds(lp, 1 + (int)i, fmax(fixed, 0), item->fixed < 0 ? highest : fixed);
    }
    for (int64_t k = 1; k <= mip->n_pairs; k++) ok &= set_binary(lp, peak_column + (int)k, TRUE);

    /* Each item ends at the peak or below.  Row mode makes adding rows faster. */
    ok &= set_add_rowmode(lp, TRUE);
    for (int64_t i = 0; i < n; i++)
        ok &= memoi_mip_row(mip, 1 + (int)i, peak_column, 0, 0,
                            -(double)memoi_item_top(&problem->items[i], 0) * mip->scale);

    /* One of each conflicting pair lies below the other. */
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = neighbors->first[i]; k < neighbors->first[i + 1]; k++) {
            if ((j = neighbors->list[k]) < i) continue;
            z++;
            ok &= memoi_mip_row(mip, 1 + (int)i, 1 + (int)j, z, limit,
                                limit - (double)problem->items[i].size * mip->scale);
            ok &= memoi_mip_row(mip, 1 + (int)j, 1 + (int)i, z, -limit,
                                -(double)problem->items[j].size * mip->scale);
        }
    MEMO_ASSERT(z == peak_column + mip->n_pairs); /* 1 */

    /* Only an exact optimum is a proof. */
    ok &= set_add_rowmode(lp, FALSE);
    set_bb_floorfirst(lp, BRANCH_CEILING);
    set_mip_gap(lp, TRUE, 0);
    set_mip_gap(lp, FALSE, 0);

    /* Peaks are whole units, so a peak within half a unit of the bound is at the bound. */
    set_break_at_value(lp, ((double)problem->lower_bound + 0.5) * mip->scale);
    put_abortfunc(lp, memoi_mip_abort, mip);
    return ok;
}

/* Places items in an order, each on top of the items before it.  0: fixed items leave no room. */
MEMOI int memoi_mip_stack(const memoi_problem* problem, const memob_keyed* order,
                          int64_t* offsets) {
    const memoi_neighbors* neighbors = problem->neighbors;
    for (int64_t i = 0; i < problem->n_items; i++) offsets[i] = -1;
    for (int64_t k = 0; k < problem->n_items; k++) {
        const int64_t i = order[k].index;
        int64_t top = memob_max(problem->items[i].fixed, 0);
        for (int64_t l = neighbors->first[i]; l < neighbors->first[i + 1]; l++) {
            const int64_t j = neighbors->list[l];
            if (offsets[j] >= 0) top = memob_max(top, offsets[j] + problem->items[j].size);
        }
        if (problem->items[i].fixed >= 0 && top > problem->items[i].fixed) return 0;
        offsets[i] = top;
    }
    return 1;
}

MEMOI memo_status memoi_mip_solve(const memoi_problem* problem, const memoi_deadline* clock,
                                  memoi_solution* best, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int64_t n = problem->n_items, *offsets = NULL;
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    memob_keyed* order = NULL;
    double* columns = NULL;
    memoi_mip mip = MEMO_ZERO(memoi_mip);
    memoi_made made;
    mip.problem = problem;
    mip.clock = clock;

    /* What the program cannot express, or lp_solve cannot handle. */
    if (problem->has_alignment)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "the MIP counts in one unit, which these alignments do not allow; "
                              "use the search");
    made = memoi_neighbors_list(problem);
    mip.n_pairs =
        (made == MEMOI_MADE ? problem->neighbors->first[n] : memoi_neighbors_count(problem)) / 2;
    if (made != MEMOI_NO_MEMORY && n + mip.n_pairs > MEMOI_MIP_PAIRS)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "%lld buffers and %lld overlapping pairs are too many for the MIP "
                              "(limit %d); use the search",
                              (long long)n, (long long)mip.n_pairs, (int)MEMOI_MIP_PAIRS);
    columns = MEMOB_ARRAY(&arrays, double, n + 1 + mip.n_pairs);
    offsets = MEMOB_ARRAY(&arrays, int64_t, n);
    order = MEMOB_ARRAY(&arrays, memob_keyed, n);
    if (made == MEMOI_NO_MEMORY || arrays.failed) status = memob_no_memory(error, "the MIP");

    /* lp_solve's tolerances are absolute: scale the peak to at most 100000. */
    mip.scale = best->peak > 100000 ? 100000.0 / (double)best->peak : 1.0;

    if (!status) mip.lp = make_lp(0, (int)(n + 1 + mip.n_pairs));
    if (!status && (!mip.lp || !memoi_mip_build(&mip, best)))
        status = memob_no_memory(error, "lp_solve");
    if (!status) {
        int result = solve(mip.lp);
        double peak = get_objective(mip.lp) / mip.scale;
        if ((result == OPTIMAL || result == SUBOPTIMAL) && get_variables(mip.lp, columns)) {
            for (int64_t i = 0; i < n; i++)
                order[i] = memob_keyed_of((int64_t)(columns[i] / mip.scale + 0.5), i);
            qsort(order, (size_t)n, sizeof *order, memob_keyed_compare);
            if (memoi_mip_stack(problem, order, offsets))
                memoi_solution_offer(problem, offsets, best);

            /* The search was complete, and the plan is within half a unit of its peak. */
            if (result == OPTIMAL && (double)best->peak < peak + 0.5) best->bound = best->peak;
        }
    }
    if (mip.lp) delete_lp(mip.lp);
    memob_arrays_free(&arrays);
    return status;
}

#else

#define memoi_mip_solve(problem, clock, best, error)                                               \
    memo_error_set(error, MEMO_STATUS_UNSUPPORTED,                                                 \
                   "built without lp_solve: define MEMO_LP_SOLVE and link -llpsolve55, or use "    \
                   "the search")

#endif /* MEMO_LP_SOLVE */

/* ---- >>bi-level ---------------------------------------------------------------------------------
 * The engine for steps of alike layers.  Door: memoi_bilevel_solve.  Plans each level by the solver
 * that it is given, the whole memo_plan_solve, and composes the offsets in the caller's plan.
 *
 * MEMO paper, section 4.2 and Figure 8: the layers of a step are alike, so the buffers inside a
 * layer are placed once.  Marks cut time into *windows*, one per phase of a layer.  The buffers
 * that live inside a window are its locals.  They form *groups*; a group ends if none of them is
 * live.  Groups with the same buffers at the same times are of one *kind*.
 *
 * A kind is solved once.  A group becomes a single block of the outer plan, beside the buffers that
 * live longer.  A layer that differs is a kind of its own.  (The paper makes one block of all
 * groups of a window; several blocks leave room between blocks.)  Each further trial leaves the
 * longest-lived locals to the outer plan.
 *
 * 1. Windows are disjoint, and ascend.
 * 2. A block holds its members. */

enum { MEMOI_BILEVEL_ROUNDS = 4 };

/* memo_plan_solve, for a level. */
typedef memo_status (*memoi_solver)(memo_plan* plan, const memo_plan_desc* desc, memo_error* error);

typedef struct memoi_group {
    int64_t first, n; /* members */
    int64_t begin, end;
    int64_t alignment_bytes;
    int64_t kind;         /* the first group like this one */
    int64_t height_bytes; /* of a kind */
} memoi_group;

typedef struct memoi_bilevel {
    memo_plan* plan;
    memoi_solver solve;
    memoi_effort* effort;
    int32_t is_open; /* a level is not proven */
    memob_arrays arrays;
    memoi_range* windows; /* times; disjoint, ascending */
    memoi_group* groups;
    int64_t* members; /* buffers, by group */
    int64_t* inside;  /* of the members of a kind: bytes from the begin of the block */
    memo_buffer* outer;
    int64_t* offsets; /* of items */
    int64_t n_windows, n_members, n_groups, n_kinds;
} memoi_bilevel;

/* The caller frees the arrays, whether it succeeds or not. */
MEMOI int memoi_bilevel_create(memoi_bilevel* bilevel, memo_plan* plan) {
    int64_t n = plan->n_buffers;
    memob_arrays* a = &bilevel->arrays;
    memset(bilevel, 0, sizeof *bilevel);
    bilevel->plan = plan;
    bilevel->windows = MEMOB_ARRAY(a, memoi_range, 2 * n);
    bilevel->groups = MEMOB_ARRAY(a, memoi_group, n + 1);
    bilevel->members = MEMOB_ARRAY(a, int64_t, n);
    bilevel->inside = MEMOB_ARRAY(a, int64_t, n);
    bilevel->outer = MEMOB_ARRAY(a, memo_buffer, n);
    bilevel->offsets = MEMOB_ARRAY(a, int64_t, n);
    return !a->failed;
}

/* --- windows: one for each phase of a layer, between the marks of the trace --- */

/* A mark inside a phase belongs to the phase, and a recomputation right before a backward to the
 * backward.  A phase is ignored if another layer interrupts it.  Each window has a request. */
MEMOI void memoi_bilevel_windows(memoi_bilevel* bilevel, const memo_trace* trace) {
    memo_mark open = MEMO_ZERO(memo_mark);
    int64_t time = 0, begin = 0;
    for (int64_t i = 0; i < trace->n_requests; i++) {
        memo_request_kind kind = trace->requests[i].kind;
        memo_mark mark;
        time += kind == MEMO_REQUEST_MALLOC || kind == MEMO_REQUEST_FREE;
        if (kind != MEMO_REQUEST_MARK) continue;
        mark = memob_request_mark(trace, i);
        if (mark.layer < 0) continue;
        if (!mark.is_end && (open.phase == MEMO_PHASE_NONE || open.layer != mark.layer)) {
            open = mark;
            begin = time;
        } else if (!mark.is_end && open.phase == MEMO_PHASE_RECOMPUTE) {
            open.phase = mark.phase;
        } else if (mark.is_end && open.phase == mark.phase && open.layer == mark.layer) {
            open.phase = MEMO_PHASE_NONE;
            if (time == begin) continue;
            MEMO_ASSERT(bilevel->n_windows == 0 || /* 1 */
                        bilevel->windows[bilevel->n_windows - 1].end <= begin);
            bilevel->windows[bilevel->n_windows].begin = begin;
            bilevel->windows[bilevel->n_windows++].end = time;
        }
    }
}

/* --- groups of the buffers inside a window, and the kinds of groups that are alike --- */

/* Ends the group that is being made, and begins another; a group of one is no group. */
MEMOI memoi_group* memoi_group_next(memoi_bilevel* bilevel, int64_t begin) {
    memoi_group* group = &bilevel->groups[bilevel->n_groups];
    group->n = bilevel->n_members - group->first;
    if (group->n == 1) bilevel->n_members--;
    if (group->n > 1) group = &bilevel->groups[++bilevel->n_groups];
    memset(group, 0, sizeof *group);
    group->first = bilevel->n_members;
    group->begin = group->end = begin;
    return group;
}

/* Forms groups.  Buffers that live longer than life_limit stay in the outer plan.  Returns the
 * longest life of the others. */
MEMOI int64_t memoi_bilevel_group(memoi_bilevel* bilevel, int64_t life_limit) {
    const memo_plan* plan = bilevel->plan;
    int64_t window = 0, gap = 0, longest = 0;
    memoi_group* group = bilevel->groups;
    bilevel->n_groups = bilevel->n_members = 0;
    memset(group, 0, sizeof *group);

    /* A group is a chain of buffers that overlap within one window. */
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        const memo_buffer* buffer = &plan->buffers[i];
        int64_t life = buffer->end - buffer->begin;
        const int64_t first_gap = gap;
        while (gap < plan->n_gaps && plan->gaps[gap].buffer == i) gap++;
        while (window < bilevel->n_windows && bilevel->windows[window].end <= buffer->begin)
            window++;
        if (window == bilevel->n_windows || buffer->begin < bilevel->windows[window].begin ||
            buffer->end > bilevel->windows[window].end || gap > first_gap || buffer->is_fixed ||
            buffer->size_bytes == 0 || life > life_limit)
            continue;
        longest = memob_max(longest, life);
        if (buffer->begin >= group->end) group = memoi_group_next(bilevel, buffer->begin);
        group->end = memob_max(group->end, buffer->end);
        group->alignment_bytes = memob_max(group->alignment_bytes, memob_buffer_alignment(plan, i));
        bilevel->members[bilevel->n_members++] = i;
    }
    memoi_group_next(bilevel, 0);
    return longest;
}

MEMOI int memoi_groups_alike(const memoi_bilevel* bilevel, const memoi_group* a,
                             const memoi_group* b) {
    if (a->n != b->n) return 0;
    for (int64_t k = 0; k < a->n; k++) {
        const memo_buffer* x = &bilevel->plan->buffers[bilevel->members[a->first + k]];
        const memo_buffer* y = &bilevel->plan->buffers[bilevel->members[b->first + k]];
        if (x->begin - a->begin != y->begin - b->begin || x->end - a->begin != y->end - b->begin ||
            x->size_bytes != y->size_bytes || x->alignment_bytes != y->alignment_bytes)
            return 0;
    }
    return 1;
}

/* Finds the kind of each group: that of the latest group like it, among as many as is fast. */
MEMOI void memoi_bilevel_find_kinds(memoi_bilevel* bilevel) {
    enum { COMPARED = 1000 };
    memoi_group* groups = bilevel->groups;
    bilevel->n_kinds = 0;
    for (int64_t g = 0; g < bilevel->n_groups; g++) {
        const int64_t least = memob_max(g - COMPARED, 0);
        int64_t k = g - 1;
        while (k >= least && !memoi_groups_alike(bilevel, &groups[g], &groups[k])) k--;
        groups[g].kind = k < least ? g : groups[k].kind;
        bilevel->n_kinds += k < least;
    }
}

/* --- two levels: each kind once, then blocks beside the long-lived buffers --- */

/* Plans a level with so many nodes, which are spent unless the level is proven. */
MEMOI memo_status memoi_level_solve(memoi_bilevel* bilevel, memo_plan* level, int64_t n_nodes,
                                    memo_error* error) {
    memoi_effort* effort = bilevel->effort;
    memo_plan_desc desc = MEMO_ZERO(memo_plan_desc);
    memo_status status;
    desc.time_limit_s = fmax(effort->clock.deadline - memob_now_s(), 1e-6);
    desc.stop = effort->clock.stop;
    desc.memoi_node_limit = memob_max(memob_min(n_nodes, effort->nodes_left), 1);
    desc.seed = effort->seed;
    desc.n_threads = (int32_t)effort->n_threads;
    status = bilevel->solve(level, &desc, error);
    if (level->proof == MEMO_PROOF_OPTIMAL) return status;
    bilevel->is_open = 1;
    memoi_effort_spend(effort, desc.memoi_node_limit);
    return status;
}

MEMOI memo_status memoi_kind_solve(memoi_bilevel* bilevel, memoi_group* kind, int64_t n_nodes,
                                   memo_error* error) {
    const int64_t* members = bilevel->members + kind->first;
    memo_plan* inner;
    memo_status status =
        memo_plan_create(kind->n, 0, bilevel->plan->alignment_bytes, &inner, error);
    if (status) return status;
    for (int64_t k = 0; k < kind->n; k++) inner->buffers[k] = bilevel->plan->buffers[members[k]];
    status = memoi_level_solve(bilevel, inner, n_nodes, error);
    kind->height_bytes = inner->peak_bytes;
    for (int64_t k = 0; k < kind->n; k++) /* in the same order, as members begin in it */
        bilevel->inside[kind->first + k] = inner->buffers[k].offset_bytes;
    memo_plan_destroy(inner);
    return status;
}

/* The outer plan: the first member of a group becomes the group's block, and other members have no
 * bytes.  So buffers stay in order of their begin. */
MEMOI memo_plan memoi_bilevel_outer(memoi_bilevel* bilevel) {
    memo_plan outer = *bilevel->plan;
    outer.n_waits = 0; /* they name buffers of the plan */
    outer.buffers = bilevel->outer;
    memcpy(outer.buffers, bilevel->plan->buffers, (size_t)outer.n_buffers * sizeof(memo_buffer));
    for (int64_t g = 0; g < bilevel->n_groups; g++) {
        const memoi_group* group = &bilevel->groups[g];
        const int64_t* members = bilevel->members + group->first;
        memo_buffer* block = &outer.buffers[members[0]];
        for (int64_t k = 1; k < group->n; k++) outer.buffers[members[k]].size_bytes = 0;
        block->size_bytes = bilevel->groups[group->kind].height_bytes;
        block->end = group->end;
        block->alignment_bytes = group->alignment_bytes;
    }
    return outer;
}

/* Offers the plan: its offsets come from those of the outer plan and those within the blocks. */
MEMOI void memoi_bilevel_compose(memoi_bilevel* bilevel, const memoi_problem* problem,
                                 memoi_solution* best) {
    memo_buffer* buffers = bilevel->plan->buffers;
    for (int64_t i = 0; i < bilevel->plan->n_buffers; i++)
        buffers[i].offset_bytes = bilevel->outer[i].offset_bytes;
    for (int64_t g = 0; g < bilevel->n_groups; g++) {
        const memoi_group* group = &bilevel->groups[g];
        const int64_t* members = bilevel->members + group->first;
        const int64_t* inside = bilevel->inside + bilevel->groups[group->kind].first;
        for (int64_t k = 0; k < group->n; k++) {
            MEMO_ASSERT(inside[k] + buffers[members[k]].size_bytes <= /* 2 */
                        bilevel->groups[group->kind].height_bytes);
            buffers[members[k]].offset_bytes = bilevel->outer[members[0]].offset_bytes + inside[k];
        }
    }
    for (int64_t i = 0; i < problem->n_items; i++)
        bilevel->offsets[i] = buffers[problem->items[i].origin].offset_bytes / problem->unit_bytes;
    memoi_solution_offer(problem, bilevel->offsets, best);
}

/* Solves both levels and combines their plans. */
MEMOI memo_status memoi_bilevel_round(memoi_bilevel* bilevel, const memoi_problem* problem,
                                      int64_t n_nodes, memoi_solution* best, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    memo_plan outer;

    /* Inner plans: one of each kind serves all its groups. */
    for (int64_t g = 0; g < bilevel->n_groups && !status; g++)
        if (bilevel->groups[g].kind == g)
            status =
                memoi_kind_solve(bilevel, &bilevel->groups[g], n_nodes / bilevel->n_kinds, error);

    /* Outer plan: each group is one block.  Inner and outer plans together are a plan. */
    outer = memoi_bilevel_outer(bilevel);
    if (!status) status = memoi_level_solve(bilevel, &outer, n_nodes, error);
    if (!status) memoi_bilevel_compose(bilevel, problem, best);
    return status;
}

/* Offers the plan of the two levels to best, with so many nodes a level.  *is_open: more nodes may
 * make another plan.  A plan without windows is no error. */
MEMOI memo_status memoi_bilevel_solve(memo_plan* plan, const memo_trace* trace,
                                      const memoi_problem* problem, int64_t target, int64_t n_nodes,
                                      memoi_effort* effort, memoi_solver solve,
                                      memoi_solution* best, int32_t* is_open, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    memoi_bilevel bilevel;
    int64_t life_limit = INT64_MAX;
    int ok = memoi_bilevel_create(&bilevel, plan), round;
    bilevel.effort = effort;
    bilevel.solve = solve;
    if (ok) memoi_bilevel_windows(&bilevel, trace);

    /* Blocks can waste room: each round leaves the longest-lived buffers to the outer plan. */
    for (round = 0; ok && round < MEMOI_BILEVEL_ROUNDS && !status; round++) {
        life_limit = memoi_bilevel_group(&bilevel, life_limit) / 2;
        memoi_bilevel_find_kinds(&bilevel);
        if (bilevel.n_groups == 0 || best->peak <= target || memoi_effort_is_over(effort)) break;
        status = memoi_bilevel_round(&bilevel, problem, n_nodes, best, error);
    }
    *is_open = bilevel.is_open;
    if (!ok) status = memob_no_memory(error, "the layers of the plan");

    /* Blocks can pass 2^62 bytes although the plan does not, so that is no error. */
    if (status == MEMO_STATUS_INVALID_ARGUMENT) status = MEMO_STATUS_OK;
    memob_arrays_free(&bilevel.arrays);
    return status;
}

/* ---- >>loop -------------------------------------------------------------------------------------
 * Runs the engines that suit the problem, as the table at >>problem says.  Door: memoi_loop_run.
 * Knows nothing of how they plan.
 *
 * A round begins with layers, and with orders of greedy that are left.  Then engines lower the best
 * plan: most with a share of the round's nodes, the exact search with all of them a capacity.  The
 * next round has twice as many.  So what cannot help costs at most a few times what can.
 *
 * What gains goes on.  Two things rest once they have spent a sixteenth of all nodes in vain: in a
 * large problem memo_pack.h with full sections (n_vain, memoi_loop_improve), and ejections between
 * two attempts of the search (n_idle, memoi_loop_search).  memoi_loop_is_done ends the loop: what
 * cannot be proven ends once nothing gains.
 * Nothing but the end depends on a clock.
 *
 * 1. No engine makes the plan worse, or forgets a bound. */

typedef struct memoi_loop {
    const memoi_problem* problem;
    int64_t target;
    memoi_effort* effort;
    memoi_solution* best;
    memo_plan* plan; /* its layers */
    const memo_plan_desc* desc;
    memoi_solver solve; /* for levels */
    const char* name;   /* of the engine that made the best plan; NULL: the plan has it */
    memoi_solution before;
    memoi_ejections ejections;
    memoi_exact exact;
    int64_t n_idle; /* nodes of ejections since they gained, beside the exact search */
    int64_t n_vain; /* nodes of memo_pack.h and of full sections since one of them gained */
    int64_t n_begin, n_gained; /* nodes spent before the pass; after its last round that gained */
    int32_t round, n_orders, end_orders; /* of greedy: tried, and behind the last to be tried */
    memoi_made ejections_made, exact_made;
    int32_t is_second;  /* the second pass, for which layers and greedy have no more to do */
    int32_t is_stuck;   /* the last round gained nothing */
    int32_t has_layers; /* whose plans may become better */
} memoi_loop;

MEMOI int memoi_loop_goes_on(const memoi_loop* loop) {
    return memoi_effort_goes_on(loop->effort, loop->best, loop->target);
}

/* Names the engine if the plan has become better since the call before. */
MEMOI void memoi_loop_credit(memoi_loop* loop, const char* engine) {
    const memoi_solution *best = loop->best, *before = &loop->before;
    MEMO_ASSERT(best->peak <= before->peak && best->bound >= before->bound); /* 1 */
    if (best->peak < before->peak || (best->peak <= best->bound && before->peak > before->bound))
        loop->name = engine;
    loop->before = *best;
}

/* Nodes for an engine that may gain nothing: at most a quarter of what is left. */
MEMOI int64_t memoi_loop_share(const memoi_loop* loop, int64_t n_nodes) {
    return memob_min(n_nodes, loop->effort->nodes_left / MEMOI_SHARE + 1);
}

/* Runs `first` to last - 1 of greedy. */
MEMOI memo_status memoi_loop_greedy(memoi_loop* loop, int first, int last, memo_error* error) {
    return memoi_greedy_solve(loop->problem, first, last, loop->target, &loop->effort->clock,
                              loop->best, error);
}

/* Behind the first order of a large problem: the order of lives at once if the plan is near the
 * bound, because it mostly gets there; sweeps; the order of requests if the plan is far. */
MEMOI memo_status memoi_loop_second(memoi_loop* loop, memo_error* error) {
    const memoi_solution* best = loop->best;
    const int is_near = best->peak - best->bound <= best->bound / 128;
    memo_status status = MEMO_STATUS_OK;
    if (is_near) { /* the last order, which then is not tried again */
        loop->end_orders = MEMOI_ORDER_LIFETIME;
        status = memoi_loop_greedy(loop, MEMOI_ORDER_LIFETIME, MEMOI_ORDER_LIFETIME + 1, error);
    }
    if (!status && memoi_loop_goes_on(loop))
        status =
            memoi_pack_sweep(loop->problem, loop->target, &loop->effort->clock, loop->best, error);
    if (is_near || status) return status;
    loop->n_orders = MEMOI_ORDER_START + 1;
    return memoi_loop_greedy(loop, MEMOI_ORDER_START, loop->n_orders, error);
}

/* Layers, and greedy: all orders in the first round.  A large problem gets two then, with sweeps
 * between them, and another one behind a round that gained nothing. */
MEMOI memo_status memoi_loop_begin(memoi_loop* loop, int64_t n_nodes, memo_error* error) {
    const int is_slow =
        memoi_problem_is_large(loop->problem) && loop->desc->engine != MEMO_PLAN_ENGINE_GREEDY;
    const int first = loop->n_orders, n = is_slow ? 1 : MEMOI_GREEDY_RUNS;
    memo_status status = MEMO_STATUS_OK;
    if (loop->has_layers)
        status =
            memoi_bilevel_solve(loop->plan, loop->desc->trace, loop->problem, loop->target, n_nodes,
                                loop->effort, loop->solve, loop->best, &loop->has_layers, error);
    memoi_loop_credit(loop, "bilevel");
    loop->n_orders =
        (int)memob_min(first + (loop->round > 0 ? loop->is_stuck : n), loop->end_orders);
    if (!status) status = memoi_loop_greedy(loop, first, loop->n_orders, error);
    if (is_slow && loop->round == 0 && !status) status = memoi_loop_second(loop, error);
    memoi_loop_credit(loop, "greedy");
    return status;
}

/* Full sections, at several percents: all at once, or one in each round of a large problem. */
MEMOI memo_status memoi_loop_full(memoi_loop* loop, int64_t goal, int64_t n_nodes,
                                  memo_error* error) {
    enum { N = 5 };
    static const int percents[N] = {81, 93, 85, 97, 89};
    const memoi_problem* problem = loop->problem;
    const int n = memoi_problem_is_large(problem) ? 1 : N;
    memo_status status = MEMO_STATUS_OK;
    if (problem->n_items <= MEMOI_SMALL_ITEMS || !memoi_problem_is_easy(problem) ||
        MEMOI_WITHOUT(full_sections))
        return status;
    for (int k = 0; k < n && !status && memoi_loop_goes_on(loop); k++)
        status =
            memoi_full_solve(problem, percents[(loop->round + k) % N], goal,
                             memoi_loop_share(loop, n_nodes / N), loop->effort, loop->best, error);
    return status;
}

/* Nodes for ejections: few if the problem is small, as the exact search is likely to end. */
MEMOI int64_t memoi_loop_ejections(const memoi_loop* loop, int64_t n_nodes) {
    n_nodes = memoi_loop_share(loop, n_nodes);
    return loop->problem->n_items <= MEMOI_SMALL_ITEMS ? n_nodes / MEMOI_TRIES : n_nodes;
}

/* Ejections until the goal or the nodes are reached.  Their lists take the time of a greedy run, so
 * these are made on first use. */
MEMOI memo_status memoi_loop_eject(memoi_loop* loop, int64_t goal, int64_t n_nodes,
                                   memo_error* error) {
    if (!loop->ejections.problem)
        loop->ejections_made =
            memoi_ejections_create(&loop->ejections, loop->problem, loop->desc->seed);
    if (loop->ejections_made == MEMOI_MADE)
        memoi_ejections_solve(&loop->ejections, goal, n_nodes, loop->effort, loop->best);
    return loop->ejections_made == MEMOI_NO_MEMORY ? memob_no_memory(error, "ejections")
                                                   : MEMO_STATUS_OK;
}

/* Does the round end here?  An engine that lowered a large plan goes on with the next round. */
MEMOI int memoi_loop_round_is_over(const memoi_loop* loop, int64_t peak) {
    return !memoi_loop_goes_on(loop) ||
           (memoi_problem_is_large(loop->problem) && loop->best->peak < peak);
}

/* A round of the exact search.  Between attempts ejections that do not rest lower the plan. */
MEMOI memo_status memoi_loop_search(memoi_loop* loop, int has_ejections, int64_t peak,
                                    int64_t n_nodes, memo_error* error) {
    const memoi_effort* effort = loop->effort;
    memo_status status = MEMO_STATUS_OK;
    memoi_exact_begin(&loop->exact, loop->target);
    while (!status && !memoi_loop_round_is_over(loop, peak) &&
           memoi_exact_step(&loop->exact, n_nodes)) {
        int has_gained = has_ejections && loop->n_idle <= effort->n_nodes / MEMOI_TRIES;
        while (has_gained && !status && !memoi_loop_round_is_over(loop, peak)) {
            const int64_t before = loop->best->peak, n_before = effort->n_nodes;
            status = memoi_loop_eject(loop, memob_max(loop->target, loop->best->bound),
                                      memoi_loop_ejections(loop, n_nodes / MEMOI_TRIES + 1), error);
            has_gained = loop->best->peak < before;
            loop->n_idle = has_gained ? 0 : loop->n_idle + effort->n_nodes - n_before;
        }
    }
    return loop->exact.search.is_out_of_memory ? memob_no_memory(error, "the search") : status;
}

/* The engines that improve a plan; only in a large problem memo_pack.h and full sections rest. */
MEMOI memo_status memoi_loop_improve(memoi_loop* loop, int64_t n_nodes, memo_error* error) {
    const memoi_problem* problem = loop->problem;
    const int has_exact = loop->exact_made == MEMOI_MADE;
    const int is_small = problem->n_items <= MEMOI_SMALL_ITEMS;
    const int is_searched =
        has_exact && (problem->is_cover || (is_small && memoi_problem_is_plain(problem)));
    const int64_t goal = memob_max(loop->target, loop->best->bound);
    const int64_t peak = loop->best->peak, n_before = loop->effort->n_nodes;
    memo_status status = MEMO_STATUS_OK;
    if (!memoi_problem_is_large(problem) || loop->n_vain <= n_before / MEMOI_TRIES) {
        loop->effort->seed++; /* other orders than in the round before; the same while these rest */
        status = memoi_fit_solve(problem, loop->round, goal, loop->effort, loop->best, error);
        if (!status && memoi_loop_goes_on(loop)) status = memoi_pack_round(loop, n_nodes, error);
        if (!status && !memoi_loop_round_is_over(loop, peak))
            status = memoi_loop_full(loop, goal, n_nodes, error);
        loop->n_vain += loop->effort->n_nodes - n_before;
        if (loop->best->peak < peak) loop->n_vain = 0;
    }

    /* A small plain problem, or a cover, is searched first; anything else needs ejections first. */
    if (!is_searched && !status && !memoi_loop_round_is_over(loop, peak))
        status = memoi_loop_eject(loop, goal,
                                  has_exact ? memoi_loop_ejections(loop, n_nodes) : n_nodes, error);
    if (has_exact && !status) status = memoi_loop_search(loop, is_searched, peak, n_nodes, error);
    memoi_loop_credit(loop, "search"); /* so is a gain of any engine of a round called */
    memoi_effort_report(loop->effort, problem, loop->best);
    return status;
}

/* The engines beside AUTO, once: GREEDY ends with ejections if the problem is not easy. */
MEMOI memo_status memoi_loop_once(memoi_loop* loop, memo_error* error) {
    const int is_mip = loop->desc->engine == MEMO_PLAN_ENGINE_MIP;
    memo_status status =
        memoi_fit_solve(loop->problem, -1, memob_max(loop->target, loop->best->bound), loop->effort,
                        loop->best, error);
    if (!is_mip && !memoi_problem_is_easy(loop->problem) && !status && memoi_loop_goes_on(loop))
        status = memoi_loop_eject(loop, loop->target, 2 * loop->problem->n_items, error);
    memoi_loop_credit(loop, "greedy");
    if (is_mip && !status && memoi_loop_goes_on(loop))
        status = memoi_mip_solve(loop->problem, &loop->effort->clock, loop->best, error);
    memoi_loop_credit(loop, "mip");
    return status;
}

/* Is nothing left to try?  Every order had its turn and no engine spent a node since `n_spent`.  Or
 * no engine can prove the plan, and none has gained for many times the nodes of the gains, and for
 * so many by the number of items that 30 take all of the default time. */
MEMOI int memoi_loop_is_done(const memoi_loop* loop, int64_t n_spent) {
    const double n_items = (double)loop->problem->n_items, cubed = 64 * n_items * n_items * n_items;
    const int64_t n_nodes = loop->effort->n_nodes;
    if (loop->round >= MEMOI_GREEDY_RUNS && n_nodes == n_spent) return 1;
    return loop->exact_made != MEMOI_MADE &&
           (double)(n_nodes - loop->n_gained - MEMOI_TRIES * (loop->n_gained - loop->n_begin)) >
               cubed;
}

/* Lowers the best plan to the target, or as far as the effort goes. */
MEMOI memo_status memoi_loop_run(memoi_loop* loop, memo_error* error) {
    const memoi_problem* problem = loop->problem;
    memoi_effort* effort = loop->effort;
    const memo_plan_engine engine = loop->desc->engine;
    const int is_once = engine == MEMO_PLAN_ENGINE_GREEDY || engine == MEMO_PLAN_ENGINE_MIP;
    int64_t n_nodes = memoi_problem_is_large(problem) ? problem->n_items / MEMOI_PLACED_NODE
                                                      : memoi_exact_first(problem, INT64_MAX);
    memo_status status = MEMO_STATUS_OK;
    loop->before = *loop->best;
    loop->n_begin = loop->n_gained = effort->n_nodes;
    loop->end_orders = MEMOI_GREEDY_RUNS;
    loop->has_layers =
        engine == MEMO_PLAN_ENGINE_BILEVEL && loop->desc->trace && loop->plan->n_holds == 0;
    loop->ejections_made = loop->exact_made = MEMOI_UNFIT;

    for (loop->round = 0; !status; loop->round++) {
        const int64_t n_spent = effort->n_nodes, peak = loop->best->peak;
        if (!loop->is_second) status = memoi_loop_begin(loop, n_nodes, error);
        if (status || !memoi_loop_goes_on(loop)) break;
        if (loop->round == 0 && !is_once)
            loop->exact_made = memoi_exact_create(&loop->exact, problem, effort, loop->best);
        if (loop->exact_made == MEMOI_NO_MEMORY) status = memob_no_memory(error, "the search");
        if (!status)
            status =
                is_once ? memoi_loop_once(loop, error) : memoi_loop_improve(loop, n_nodes, error);
        loop->is_stuck = loop->best->peak == peak;
        if (!loop->is_stuck) loop->n_gained = effort->n_nodes;
        if (is_once || memoi_loop_is_done(loop, n_spent)) break;
        n_nodes = memob_min(2 * n_nodes, (int64_t)1 << 40);
    }
    memob_arrays_free(&loop->ejections.arrays);
    memoi_exact_free(&loop->exact);
    return status;
}

/* ---- >>plan solve -------------------------------------------------------------------------------
 * memo_plan_solve: checks the desc, poses the problem, lets the loop plan it, and stores offsets,
 * peak and proof.  Rounded sizes come first, exact sizes second.  Knows nothing of engines.
 *
 * 1. No plan is lower than what is proven. */

/* Sets offsets, the peak, and the proof by the plan's lower bound.  Fixed buffers of no size count
 * in both. */
MEMOI void memoi_plan_store(memo_plan* plan, const memoi_problem* problem,
                            const memoi_solution* best, const char* engine) {
    for (int64_t i = 0; i < plan->n_buffers; i++)
        if (!plan->buffers[i].is_fixed) plan->buffers[i].offset_bytes = 0;
    for (int64_t i = 0; i < problem->n_items; i++)
        plan->buffers[problem->items[i].origin].offset_bytes =
            best->offsets[i] * problem->unit_bytes;
    plan->peak_bytes = 0;
    for (int64_t i = 0; i < plan->n_buffers; i++)
        plan->peak_bytes = memob_max(plan->peak_bytes,
                                     plan->buffers[i].offset_bytes + memob_buffer_bytes(plan, i));
    plan->proof =
        plan->peak_bytes <= plan->lower_bound_bytes ? MEMO_PROOF_OPTIMAL : MEMO_PROOF_FEASIBLE;
    if (engine) snprintf(plan->engine, sizeof plan->engine, "%s", engine);
}

/* The bytes of the largest buffer, which counts although its gaps may cover its whole life: then it
 * is no item, and no section has it. */
MEMOI int64_t memoi_solve_floor(const memo_plan* plan) {
    int64_t most = 0;
    for (int64_t i = 0; i < plan->n_buffers; i++)
        most = memob_max(most, memob_buffer_bytes(plan, i));
    return most;
}

/* The problem of a plan with its holds. */
MEMOI memo_status memoi_solve_pose(const memo_plan* plan, int simpler, memoi_problem* problem,
                                   memo_error* error) {
    memo_status status = memoi_items_create(plan, simpler, problem, error);
    memoi_made made = MEMOI_MADE;
    if (status) return status;
    if (plan->n_holds > 0) made = memoi_items_add_holds(problem, plan);
    if (made == MEMOI_MADE && memoi_problem_hold(problem)) return MEMO_STATUS_OK;
    memoi_problem_free(problem);
    if (made != MEMOI_UNFIT) return memob_no_memory(error, "the holds of the plan");
    return memoi_items_create(plan, simpler | MEMOI_STRETCHED, problem, error);
}

/* Returns 0 if trace belongs to another plan. */
MEMOI int memoi_solve_trace_fits(const memo_trace* trace, const memo_plan* plan) {
    int64_t n_times = 0;
    for (int64_t i = 0; i < trace->n_requests; i++)
        n_times += trace->requests[i].kind == MEMO_REQUEST_MALLOC ||
                   trace->requests[i].kind == MEMO_REQUEST_FREE;
    return trace->n_buffers == plan->n_buffers && n_times == plan->n_times;
}

/* Plans a prepared plan; *bound_bytes rises to what is proven.  In the first pass spare room counts
 * in the peak, because a plan of round sizes is found sooner, at most a rounding too high.  Unless
 * the plan is proven or within the capacity, *is_open is 1: a second pass improves it. */
MEMOI memo_status memoi_plan_pass(memo_plan* plan, const memo_plan_desc* desc, int is_second,
                                  memoi_effort* effort, int64_t* bound_bytes, int32_t* is_open,
                                  memo_error* error) {
    const int64_t floor_bytes = memoi_solve_floor(plan);
    int64_t culprit;
    memoi_problem problem = MEMO_ZERO(memoi_problem);
    memoi_solution best;
    memoi_loop loop = MEMO_ZERO(memoi_loop);
    memo_status status;

    /* The problem, and room for the best plan.  No order can help fixed buffers that conflict. */
    status = memoi_solve_pose(plan, is_second ? 0 : MEMOI_ROUNDED, &problem, error);
    if (!status && problem.n_fixed > 0 && plan->n_holds > 0)
        status = memob_plan_check_holds(plan, 0, &culprit, error);
    memoi_solution_begin(&best, &problem, MEMOB_ARRAY(&problem.arrays, int64_t, problem.n_items));
    if (!status && !best.offsets) status = memob_no_memory(error, "the plan");
    if (status) goto done;
    if (is_second) { /* starts from plan and bound of the first; a plan from elsewhere would, too */
        const int64_t bound = memob_align_up(*bound_bytes, problem.unit_bytes) / problem.unit_bytes;
        best.bound = memob_max(best.bound, bound);
        for (int64_t i = 0; i < problem.n_items; i++)
            best.offsets[i] =
                plan->buffers[problem.items[i].origin].offset_bytes / problem.unit_bytes;
        memoi_solution_highest(&problem, best.offsets, &best.peak);
    }
    plan->proof = MEMO_PROOF_NONE; /* until there is a plan again */

    /* No plan is below the bound, so a smaller capacity is no useful target. */
    loop.problem = &problem;
    loop.target = memob_min(desc->capacity_bytes, MEMOB_BYTES_MAX) / problem.unit_bytes;
    if (problem.is_rounded && desc->capacity_bytes % problem.unit_bytes)
        loop.target++; /* the topmost item's rounding may lie above the capacity */
    loop.target = memob_max(loop.target, memob_max(best.bound, floor_bytes / problem.unit_bytes));
    loop.effort = effort;
    loop.best = &best;
    loop.plan = plan;
    loop.desc = desc;
    loop.solve = memo_plan_solve;
    loop.is_second = is_second;
    status = memoi_loop_run(&loop, error);

    /* A proof with stretched lives proves nothing.  A rounded peak is less than a unit too high. */
    if (!status && !problem.is_stretched)
        *bound_bytes =
            memob_max(*bound_bytes,
                      (best.bound - problem.is_rounded) * problem.unit_bytes + problem.is_rounded);
    if (!status) memoi_plan_store(plan, &problem, &best, loop.name);
    MEMO_ASSERT(status || plan->peak_bytes >= *bound_bytes); /* 1 */
    if (!status && plan->peak_bytes <= memob_max(*bound_bytes, floor_bytes))
        plan->proof = MEMO_PROOF_OPTIMAL;
    *is_open = problem.is_rounded && plan->proof != MEMO_PROOF_OPTIMAL &&
               plan->peak_bytes > desc->capacity_bytes;

done: /* after a failure as well */
    memoi_problem_free(&problem);
    return status;
}

MEMOI memo_status memoi_plan_check_desc(const memo_plan_desc* desc, memo_error* error) {
    const memob_bounds fields[] = {{"engine", (int64_t)desc->engine, 0, MEMO_N_PLAN_ENGINES - 1},
                                   {"capacity_bytes", desc->capacity_bytes, 0, INT64_MAX},
                                   {"n_offers", desc->n_offers, 0, desc->offers ? INT64_MAX : 0},
                                   {"n_threads", desc->n_threads, 0, MEMOI_THREADS}};
    const memo_status status = MEMOB_CHECK_FIELDS("memo_plan_desc", fields, error);
    if (status || desc->time_limit_s >= 0) return status;
    return MEMOB_INVALID(error,
                         "memo_plan_desc.time_limit_s: out of range (%g); 0 for the default, "
                         "or more",
                         desc->time_limit_s);
}

memo_status memo_plan_solve(memo_plan* plan, const memo_plan_desc* desc, memo_error* error) {
    memo_plan_desc settings = desc ? *desc : MEMO_ZERO(memo_plan_desc);
    memoi_effort effort = MEMO_ZERO(memoi_effort);
    memo_status status;
    int64_t bound_bytes;
    int32_t is_open = 1;
    double reserved_s;
    const double begin = memob_now_s();
    MEMOB_REFUSE_NULL(error, "plan", plan);
    status = memoi_plan_check_desc(&settings, error);
    if (status) return status;

    /* Large plans get less time by default, because the search of a large plan rarely ends. */
    if (!(settings.time_limit_s > 0))
        settings.time_limit_s = plan->n_buffers > MEMOI_SEARCH_ITEMS ? 3 : 10;
    if (settings.n_offers != 0) return memoi_pack_buy(plan, &settings, error);

    /* A trace of another plan would put its marks on the wrong buffers. */
    status = memo_plan_prepare(plan, error);
    if (status) return status;
    if (settings.trace && !memoi_solve_trace_fits(settings.trace, plan))
        return MEMOB_INVALID(error, "memo_plan_desc.trace: not the trace of this plan: its numbers "
                                    "of mallocs or frees differ; pass the trace that the plan was "
                                    "made from");

    /* Engines look at the clock now and then, and a second pass makes the problem again. */
    reserved_s = fmax(6 * (memob_now_s() - begin), 1e-6 * (double)plan->n_buffers);
    reserved_s = fmin(reserved_s, 0.4 * settings.time_limit_s);
    effort.clock.deadline = begin + settings.time_limit_s - reserved_s;
    effort.clock.stop = settings.stop;
    effort.nodes_left = settings.memoi_node_limit ? settings.memoi_node_limit : INT64_MAX / 4;
    effort.seed = settings.seed;
    effort.n_threads = settings.n_threads ? settings.n_threads : 1;
    effort.log = &settings.log;

    bound_bytes = plan->lower_bound_bytes;
    for (int pass = 0; !status && is_open && pass < 2; pass++)
        status = memoi_plan_pass(plan, &settings, pass, &effort, &bound_bytes, &is_open, error);

    /* A plan that misses the capacity is stored too, so that the caller can look at it. */
    if (!status && settings.capacity_bytes > 0 && plan->peak_bytes > settings.capacity_bytes)
        status = memo_error_set(
            error, MEMO_STATUS_INFEASIBLE,
            "the capacity of %lld bytes is not met: the best plan found needs %lld, and none "
            "needs less than %lld",
            (long long)settings.capacity_bytes, (long long)plan->peak_bytes,
            (long long)memob_max(bound_bytes, memoi_solve_floor(plan)));
    return status;
}

/* ---- >>profile ----------------------------------------------------------------------------------
 * Knows: how long copies take, and reads and writes of a file.  Knows nothing of plans. */

#define MEMOI_PROFILE_REPETITIONS 5
#define MEMOI_PROFILE_SMALL_BYTES 32768
#define MEMOI_PROFILE_COPY_S      0.1  /* the longest that a copy of more bytes should take */
#define MEMOI_PROFILE_SHORT_S     1.25 /* the longest of a short copy */

typedef struct memoi_profiler {
    memob_engine engine;  /* each memory holds two of the largest copies; one operation of a file */
    memo_event events[2]; /* the engine's, which time a transfer */
    int64_t copy_bytes;   /* of the copy being measured */
    int64_t half_bytes;   /* the second half of host memory begins there */
    memob_spill_op file_ops[2]; /* its write and its read */
    int64_t file_bytes;         /* of each */
    int32_t is_read;            /* the one being measured is */
    int64_t n_beside;           /* copies beside it */
} memoi_profiler;

/* Sorts times; clocks of finite resolution may give one below 0. */
MEMOI double memoi_profile_median(double* times_s, int64_t n) {
    qsort(times_s, (size_t)n, sizeof *times_s, memob_compare_doubles);
    return times_s[n / 2] > 0 ? times_s[n / 2] : 0;
}

/* Returns the median time of n transfers on one of the streams: of a copy; or, on the file's, of a
 * read or write, and copies that keep their link busy meanwhile: these use the other half of the
 * buffer.  The engine keeps the first failure. */
MEMOI double memoi_profile_time(memoi_profiler* p, int32_t stream, int n) {
    const int is_file = stream == MEMOB_STREAM_FILE;
    const int32_t link = is_file ? MEMOB_STREAM_TO_HOST + p->is_read : stream;
    const int is_back = link == MEMOB_STREAM_TO_DEVICE;
    memob_engine* e = &p->engine;
    double times[MEMOI_PROFILE_REPETITIONS] = {0};
    for (int i = -1; i < n; i++) { /* the first warms up */
        memob_engine_record(e, stream, 0);
        for (int64_t k = 0; k < (is_file ? p->n_beside : 1); k++)
            memob_engine_copy(e, &e->memory, is_back, is_back ? p->copy_bytes : 0,
                              is_back ? p->half_bytes : 0, p->copy_bytes);
        if (is_file)
            memob_engine_use_file(e, &e->memory, p->is_read, !p->is_read,
                                  p->is_read ? 0 : p->half_bytes, 0, p->file_bytes);
        memob_engine_record(e, stream, 1);
        if (!e->status)
            e->status = memo_stream_synchronize(&e->device, e->streams[stream], e->error);
        if (!e->status)
            e->status = memo_event_elapsed(&e->device, e->events[0], e->events[1],
                                           &times[memob_max(i, 0)], e->error);
    }
    return memoi_profile_median(times, n);
}

/* A short copy is timed once.  A busy machine may delay it, so a slow one is timed again. */
MEMOI double memoi_profile_time_copy(memoi_profiler* p, int32_t stream, int is_short) {
    enum { N_TRIES = 3 };
    double time_s = memoi_profile_time(p, stream, is_short ? 1 : MEMOI_PROFILE_REPETITIONS);
    for (int i = 1; i < N_TRIES && is_short && time_s > MEMOI_PROFILE_SHORT_S; i++)
        time_s = memoi_profile_time(p, stream, 1);
    return time_s;
}

/* Copies of rising size.  Short ones refuse a link on which measuring would take hours.  Smaller
 * copies than the largest show the rate of a slow link, too. */
MEMOI void memoi_profile_copies(memoi_profiler* p, int64_t largest_bytes, memo_profile* profile) {
    memob_engine* e = &p->engine;
    for (p->copy_bytes = memob_min(8, largest_bytes);;
         p->copy_bytes = memob_min(8 * p->copy_bytes, largest_bytes)) {
        const int is_short = p->copy_bytes < memob_min(MEMOI_PROFILE_SMALL_BYTES, largest_bytes);
        memo_profile_transfer* copy = &profile->copies[1];
        double slower_s;
        copy->out_s = memoi_profile_time_copy(p, MEMOB_STREAM_TO_HOST, is_short);
        copy->back_s = memoi_profile_time_copy(p, MEMOB_STREAM_TO_DEVICE, is_short);
        if (e->status) return;
        copy->size_bytes = p->copy_bytes;
        if (p->copy_bytes <= MEMOI_PROFILE_SMALL_BYTES) profile->copies[0] = *copy;

        slower_s = fmax(copy->out_s, copy->back_s);
        if (is_short && slower_s > MEMOI_PROFILE_SHORT_S)
            e->status =
                memo_error_set(e->error, MEMO_STATUS_UNSUPPORTED,
                               "memo_session_desc.device: a copy of %lld bytes takes %.3g s; "
                               "measuring such a link would take hours, so give a profile",
                               (long long)p->copy_bytes, slower_s);
        if (e->status || p->copy_bytes == largest_bytes ||
            (!is_short && 8 * slower_s > MEMOI_PROFILE_COPY_S))
            return;
    }
}

/* Returns the time of a write or a read of the third tier, beside as many copies as fit into its
 * time alone.  Both use the bandwidth of host memory. */
MEMOI double memoi_profile_beside(memoi_profiler* p, int is_read,
                                  const memo_profile_transfer* copy) {
    const double copy_s = is_read ? copy->back_s : copy->out_s;
    memob_engine* e = &p->engine;
    double time_s;
    p->copy_bytes = copy->size_bytes;
    p->is_read = is_read;
    p->n_beside = 0;
    time_s = memoi_profile_time(p, MEMOB_STREAM_FILE, MEMOI_PROFILE_REPETITIONS);
    p->n_beside = copy_s > 0 ? (int64_t)fmin(1 + time_s / copy_s, 64) : 64;
    time_s = memoi_profile_time(p, MEMOB_STREAM_FILE, MEMOI_PROFILE_REPETITIONS);
    if (!e->status)
        e->status = memo_stream_synchronize(&e->device, e->streams[MEMOB_STREAM_TO_HOST + is_read],
                                            e->error);
    return time_s;
}

MEMOI void memoi_profile_spill(memoi_profiler* p, const char* directory, double bytes_per_s,
                               memo_profile* profile) {
    memob_engine* e = &p->engine;
    const double bytes = MEMOI_PROFILE_COPY_S * bytes_per_s;
    if (!e->status)
        e->status = memob_engine_check_launch(e, "memo_session_desc", "a file", e->error);
    if (e->status) return;

    /* A file like the swap engine's, with its own stream, so that copies run beside it. */
    p->file_bytes = p->half_bytes;
    if (bytes > 0 && bytes < (double)p->file_bytes)
        p->file_bytes = memob_align_up((int64_t)bytes, MEMOB_SPILL_ALIGNMENT);
    e->status = memob_spill_create(&e->memory.file, directory, p->file_bytes, bytes_per_s,
                                   e->memory.host, e->error);
    memset(e->memory.host, 0, (size_t)(2 * p->half_bytes)); /* no hole in the file, and defined */
    profile->file.out_s = memoi_profile_beside(p, 0, &profile->copies[1]);
    profile->file.back_s = memoi_profile_beside(p, 1, &profile->copies[1]);
    profile->file.size_bytes = p->file_bytes;
}

/* The first bytes of a state that the caller gives. */
MEMOI void memoi_profile_fetch(memoi_profiler* p, const memob_fetch* fetch, memo_profile* profile) {
    memob_engine* e = &p->engine;
    memob_spill_op* op = &p->file_ops[1];
    const int64_t n_bytes = memob_min(fetch->size_bytes, p->half_bytes);
    if (!e->status)
        e->status =
            memob_engine_check_launch(e, "memo_session_desc", "MEMO_STATE_FETCHED", e->error);
    if (e->status) return;
    p->file_bytes = memob_align_up(n_bytes, MEMOB_SPILL_ALIGNMENT);
    memob_spill_op_init(op, &e->memory.file, 0, e->memory.host, 0, p->file_bytes);
    op->fetch = *fetch;
    profile->fetch_s_per_byte = memoi_profile_beside(p, 1, &profile->copies[1]) / (double)n_bytes;
}

/* Measures copies up to a size, or to less if there is less memory, and a file of that size in the
 * directory, and bytes of a state that the caller gives; NULL: none.  on_device, on_host: memory
 * for two copies; NULL: the device's.  Each time is the median of five after one warm-up.  profile
 * is zero. */
MEMOI memo_status memoi_profile_measure(const memo_device* device, int64_t largest_bytes,
                                        const char* directory, double bytes_per_s,
                                        const memob_fetch* fetch, void* on_device, void* on_host,
                                        memo_profile* profile, memo_error* error) {
    const int has_file = directory || (fetch && fetch->size_bytes);
    memoi_profiler p;
    memob_engine* e = &p.engine;
    memo_status status;
    memset(&p, 0, sizeof p);
    if (directory && bytes_per_s > 0 && bytes_per_s < MEMOB_SPILL_ALIGNMENT)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "memo_session_desc.spill_bytes_per_s: %g, so that measuring a file "
                              "would take minutes; at least %d would work, or give a profile",
                              bytes_per_s, MEMOB_SPILL_ALIGNMENT);

    /* Memory for two copies at a time, on the device and on the host, where the file needs whole
     * pages; of 64 KiB if there is not enough for larger copies.  Streams, and events with
     * times. */
    p.half_bytes = has_file ? memob_align_up(largest_bytes, MEMOB_SPILL_ALIGNMENT) : largest_bytes;
    for (int64_t least_bytes = 1 << 16;; p.half_bytes = least_bytes) {
        memob_engine_begin(e, device, NULL, 0, on_device, on_host);
        memob_engine_call(e, error);
        largest_bytes = memob_min(largest_bytes, p.half_bytes);
        status = memob_engine_acquire(e, "memo_session_desc", 2 * largest_bytes, 2 * p.half_bytes,
                                      error);
        if (!status) status = memob_engine_take_streams(e, has_file ? 3 : 2, error);
        if (p.half_bytes <= least_bytes || (status != MEMO_STATUS_OUT_OF_DEVICE_MEMORY &&
                                            status != MEMO_STATUS_OUT_OF_HOST_MEMORY))
            break;
        memob_engine_release(e);
    }
    e->events = p.events;
    e->n_events = 2;
    e->memory.spill_ops = p.file_ops;
    for (int i = 0; i < 2 && !status; i++)
        status = memo_event_create(&e->device, &p.events[i], error);
    e->status = status;

    /* The copies come before the file, which is timed beside the largest of them. */
    memoi_profile_copies(&p, largest_bytes, profile);
    if (directory) memoi_profile_spill(&p, directory, bytes_per_s, profile);
    if (fetch && fetch->size_bytes) memoi_profile_fetch(&p, fetch, profile);
    memob_engine_release(e);
    return e->status;
}

/* --- >>profile file ---
 * Knows: the text of a profile.  Knows nothing of how its times were measured. */

#define MEMOI_PROFILE_TIME(what, of, field, least)                                                 \
    MEMOB_VALUE(what, MEMOB_VALUE_FEMTOSECONDS, of, field, least, MEMOB_SECONDS_MOST)
static const memob_value memoi_profile_rows_values[] = {
    MEMOB_VALUE("number of rows", MEMOB_VALUE_INT64, memo_profile, n_rows, 1, INT64_MAX),
    MEMOB_VALUE("number of kinds", MEMOB_VALUE_INT32, memo_profile, n_kinds, 1,
                MEMO_PROFILE_KINDS_MAX),
    MEMOB_VALUE("number of tensors", MEMOB_VALUE_INT32, memo_profile, n_tensors, 0,
                MEMO_PROFILE_TENSORS_MAX),
    MEMOI_PROFILE_TIME("time between", memo_profile, between_s, 0),
    MEMOI_PROFILE_TIME("time of an updated byte", memo_profile, update_s_per_byte, 0),
    MEMOI_PROFILE_TIME("time of a recomputation's call", memo_profile, recompute_call_s, 0),
    MEMOI_PROFILE_TIME("slowdown by a byte", memo_profile, slowdown_s_per_byte[0], 0),
    MEMOI_PROFILE_TIME("slowdown by a byte back", memo_profile, slowdown_s_per_byte[1], 0),
    MEMOI_PROFILE_TIME("time of a byte updated on the host", memo_profile, update_host_s_per_byte,
                       0),
    MEMOI_PROFILE_TIME("time of a fetched byte", memo_profile, fetch_s_per_byte, 0),
    MEMOB_VALUE("length", MEMOB_VALUE_INT64, memo_profile, length, 0, INT64_MAX)};
/* A line of kind 0; that of kind k is k numbers farther, also the times of a row. */
static const memob_value memoi_profile_layer_values[] = {
    MEMOI_PROFILE_TIME("forward time", memo_profile, forward_s, 0),
    MEMOI_PROFILE_TIME("backward time", memo_profile, backward_s, 0),
    MEMOI_PROFILE_TIME("growth of the forward", memo_profile, forward_growth_s, 0),
    MEMOI_PROFILE_TIME("growth of the backward", memo_profile, backward_growth_s, 0)};
static const memob_value memoi_profile_tensor_values[] = {
    MEMOB_VALUE("name", MEMOB_VALUE_NAME, memo_profile_tensor, name, 1, 32)};
static const memob_value memoi_profile_row_values[] = {
    MEMOI_PROFILE_TIME("time of a row", memo_profile_tensor, recompute_s_per_row, -1),
    MEMOI_PROFILE_TIME("growth of a row", memo_profile_tensor, recompute_growth_s_per_row, 0)};
static const memob_value memoi_profile_transfer_values[] = {
    MEMOB_VALUE("size", MEMOB_VALUE_INT64, memo_profile_transfer, size_bytes, 0, INT64_MAX),
    MEMOI_PROFILE_TIME("time out", memo_profile_transfer, out_s, 0),
    MEMOI_PROFILE_TIME("time back", memo_profile_transfer, back_s, 0)};
static const memob_record memoi_profile_rows = {"rows", memoi_profile_rows_values, 11, 7};
static const memob_record memoi_profile_layer = {"layer", memoi_profile_layer_values, 4, 2};
static const memob_record memoi_profile_tensor = {"tensor", memoi_profile_tensor_values, 1, 0};
static const memob_record memoi_profile_row = {"row", memoi_profile_row_values, 2, 1};
static const memob_record memoi_profile_copy = {"copy", memoi_profile_transfer_values, 3, 0};
static const memob_record memoi_profile_file = {"file", memoi_profile_transfer_values, 3, 0};

/* The lines between the first and the last, which check every value.  Counts come first. */
MEMOI memo_status memoi_profile_lines(memob_lines* lines, memo_profile* profile) {
    memo_status status = memob_line(lines, &memoi_profile_rows, profile);
    for (int32_t k = 0; !status && k < profile->n_kinds; k++)
        status =
            memob_line(lines, &memoi_profile_layer, (char*)profile + sizeof(double) * (size_t)k);
    for (int32_t i = 0; !status && i < profile->n_tensors; i++) {
        status = memob_line(lines, &memoi_profile_tensor, &profile->tensors[i]);
        for (int32_t k = 0; !status && k < profile->n_kinds; k++)
            status = memob_line(lines, &memoi_profile_row,
                                (char*)&profile->tensors[i] + sizeof(double) * (size_t)k);
    }
    for (int32_t i = 0; !status && i < 2; i++)
        status = memob_line(lines, &memoi_profile_copy, &profile->copies[i]);
    return status ? status : memob_line(lines, &memoi_profile_file, &profile->file);
}

/* A profile may come from the caller, with times in any unit. */
MEMOI memo_status memoi_profile_check(const memo_profile* profile, memo_error* error) {
    memob_lines lines = {NULL, NULL, 0, error};
    return memoi_profile_lines(&lines, (memo_profile*)(uintptr_t)profile); /* only looked at */
}

/* The profile's tensor of the plan's tensor t, by name: it may have others, or another order.
 * NULL: none. */
MEMOI const memo_profile_tensor* memoi_profile_find(const memo_profile* profile,
                                                    const memo_item* tensors, int32_t t) {
    for (int32_t i = 0; tensors[t].name && i < profile->n_tensors; i++) {
        const memo_profile_tensor* tensor = &profile->tensors[(t + i) % profile->n_tensors];
        if (!strncmp(tensor->name, tensors[t].name, sizeof tensor->name)) return tensor;
    }
    return NULL;
}

memo_status memo_profile_write(const memo_profile* profile, const char* path, memo_error* error) {
    memo_text text = {NULL, 0, 0, 0};
    memob_lines lines = {&text, NULL, 0, error};
    memo_status status;
    MEMOB_REFUSE_NULL(error, "profile", profile);
    MEMOB_REFUSE_NULL(error, "path", path);
    memo_text_put(&text, "memo profile 1\n");
    status = memoi_profile_lines(&lines, (memo_profile*)(uintptr_t)profile); /* written from */
    return memob_write_lines(&text, lines.n, path, status, error);
}

memo_status memo_profile_read(const char* path, memo_profile* profile, memo_error* error) {
    memob_reader reader;
    memob_lines lines = {NULL, &reader, 0, error};
    memo_status status;
    MEMOB_REFUSE_NULL(error, "profile", profile);
    memset(profile, 0, sizeof *profile);
    MEMOB_REFUSE_NULL(error, "path", path);
    status = memob_reader_open(&reader, path, error);
    if (!status) status = memob_read_frame(&reader, "profile", 1, 0, error);
    if (!status) status = memoi_profile_lines(&lines, profile);
    if (!status) status = memob_check_count(&reader, lines.n, error);
    if (status) memset(profile, 0, sizeof *profile);
    memob_reader_close(&reader);
    return status;
}

/* ---- 3 rows of every tensor ---------------------------------------------------------------------
 * Knows: the swap engine's sizes and places, how long operations take.  Knows nothing of devices.
 *
 * Tensors that are recomputed together are one *bundle*.  A *table* has a cell for each bundle of
 * each layer: kept, or how many tiles are swapped. */

void memo_swap_plan_destroy(memo_swap_plan* plan) {
    if (!plan) return;
    MEMO_FREE(plan->rows);
    MEMO_FREE(plan);
}

MEMOI double memoi_rows_later(double a_s, double b_s) { return b_s > a_s ? b_s : a_s; }
MEMOI double memoi_rows_sooner(double a_s, double b_s) { return b_s < a_s ? b_s : a_s; }

/* --- >>row words ---
 * Knows: tables of rows, and predicted times, in words.  Knows nothing of planning, and not of the
 * reason of a plan (>>row limits). */

/* Swapped; -1: kept, -2: the layer lacks the tensor. */
MEMOI int64_t memoi_rows_tiles(const memo_swap_desc* desc, int32_t layer, int32_t t) {
    return memob_layer_has(desc, layer, t) ? memob_swap_tiles(desc, layer, t) : -2;
}

/* 1: every layer keeps every tensor. */
MEMOI int memoi_rows_are_kept(const memo_swap_desc* desc) {
    for (int32_t layer = 0; layer < desc->n_layers; layer++)
        for (int32_t t = 0; t < desc->n_tensors; t++)
            if (memoi_rows_tiles(desc, layer, t) >= 0) return 0;
    return 1;
}

/* An EDGE leaves nothing to choose; late rows have their own lines. */
MEMOI int memoi_rows_are_shown(const memo_swap_desc* desc, int32_t t) {
    return desc->tensors[t].row_bytes && desc->tensors[t].scope != MEMO_EDGE &&
           !memob_tensor_is_routed(desc, t);
}

/* 1 if a is shown, with the tiles of tensor b in every layer.  A short last tile counts as one. */
MEMOI int memoi_rows_are_alike(const memo_swap_desc* desc, int32_t a, int32_t b) {
    if (!memoi_rows_are_shown(desc, a)) return 0;
    for (int32_t layer = 0; layer < desc->n_layers; layer++)
        if (memoi_rows_tiles(desc, layer, a) != memoi_rows_tiles(desc, layer, b)) return 0;
    return 1;
}

/* What a plan holds of a tensor with late rows, whatever the routing. */
MEMOI void memoi_rows_put_routed(const memo_swap_desc* desc, int32_t t, memo_text* text) {
    const int moves = memob_item_away(desc, t) == MEMO_MOVE;
    const char* others = moves ? ", the others move" : ", the others are recomputed";
    int64_t n_kept = 0, n = 0;
    for (int32_t layer = 0; layer < desc->n_layers; layer++) {
        n += memob_layer_has(desc, layer, t);
        n_kept += memoi_rows_tiles(desc, layer, t) == MEMO_ROWS_KEPT;
    }
    memo_text_put(
        text, "late      %s: %lld of %lld rows are kept%s; at most %lld in a step\n",
        desc->tensors[t].name,
        (long long)(n_kept == n ? desc->routed_rows_all : n_kept * memob_swap_routed_rows(desc, t)),
        (long long)desc->routed_rows_all, n_kept == n ? "" : others,
        (long long)desc->routed_rows_layer);
}

/* Appends a table of rows: one line for neighboring layers and tensors that are alike. */
MEMOI void memoi_rows_put(const memo_swap_desc* desc, memo_text* text) {
    int32_t other, layer;
    memo_text_put(text,
                  "rows      %s    kept  swapped  recomputed   of %lld in tiles of %lld; the last "
                  "swapped and recomputed rows stay on the device\n",
                  desc->n_slices > 1 ? "steps " : "layers", (long long)desc->n_rows,
                  (long long)memob_swap_tile_rows(desc));

    /* Tensors with equal rows share their lines, so that the table stays short. */
    for (int32_t t = 0; t < desc->n_tensors; t++) {
        for (other = 0; other < t && !memoi_rows_are_alike(desc, other, t); other++) {
        }
        if (other < t || !memoi_rows_are_shown(desc, t)) continue;

        /* A line for each run of layers with the same tiles, beside layers that lack the tensor. */
        for (int32_t first = 0; first < desc->n_layers; first = layer) {
            int64_t rows = desc->rows[(int64_t)first * desc->n_tensors + t];
            int64_t kept = rows < 0 ? desc->n_rows : 0, swapped = memob_max(rows, 0);
            int64_t tiles = memoi_rows_tiles(desc, first, t), next = tiles;
            int32_t last = first;
            char layers[48];
            for (layer = first + 1; layer < desc->n_layers; layer++) {
                next = memoi_rows_tiles(desc, layer, t);
                if (next >= -1 && next != tiles) break;
                if (next == tiles) last = layer;
            }
            if (tiles < -1) continue;
            snprintf(layers, sizeof layers, last > first ? "%d-%d" : "%d", (int)first, (int)last);
            memo_text_put(text, "          %-6s %7lld %8lld %11lld   ", layers, (long long)kept,
                          (long long)swapped, (long long)(desc->n_rows - kept - swapped));
            for (other = t; other < desc->n_tensors; other++)
                if (memoi_rows_are_alike(desc, other, t))
                    memo_text_put(text, "%s%s%s", other == t ? "" : ", ", desc->tensors[other].name,
                                  memob_tensor_rows(desc, other) < desc->n_rows ? " (state)" : "");
            memo_text_put(text, "\n");
        }
    }
    for (int32_t t = 0; t < desc->n_tensors; t++)
        if (memob_tensor_is_routed(desc, t)) memoi_rows_put_routed(desc, t, text);
}

/* Appends the limit, and the predicted times of a step. */
MEMOI void memoi_rows_put_times(const memo_swap_plan* plan, memo_text* text) {
    memo_text_put(text, "limit     %s\n", plan->reason);
    memo_text_put(text,
                  "predicted %.1f ms a step, of which %.1f ms stalled and %.1f ms recomputing",
                  1e3 * plan->step_s, 1e3 * plan->stall_s, 1e3 * plan->recompute_s);
    if (plan->update_s > 0) memo_text_put(text, ", %.1f ms in the update", 1e3 * plan->update_s);
    if (plan->step_s - plan->update_s > 1.5 * plan->micro_batch_s)
        memo_text_put(text, "; %.1f ms a micro-batch", 1e3 * plan->micro_batch_s);
    if (plan->rows && plan->alpha >= 0)
        memo_text_put(text, "; %.1f ms with the best single alpha, %.4g", 1e3 * plan->alpha_step_s,
                      plan->alpha);
    memo_text_put(text, "\n");
}

/* --- >>row times ---
 * Knows: how long a step takes whose bytes and law are given, and the laws of the latest tables.
 * Knows nothing of budgets and addresses, and of why operations come in their order.
 *
 * A clock on which the operations of a step pass, as the law of memo.h's >>swap items
 * lists them.  Every cost of an operation is here: a new one is a field of memo_profile, a term
 * here, and a duration in memo_swap_generate (memo_look.h).
 * test_swap_plan compares both for random problems.
 *
 * 1. The law of a table has the visits of the table's steps.
 * 2. The clock has a cell for each of the law's. */

/* Bytes by a time, or by a rate; 0: there is none. */
MEMOI double memoi_rows_over(double n_bytes, double by) { return by > 0 ? n_bytes / by : 0; }
MEMOI double memoi_rows_rate(double n_bytes, double time_s) {
    return fmin(memoi_rows_over(n_bytes, time_s), MEMOB_TIME_MAX);
}

/* Two copies give a line: its slope is the rate, and its value at 0 bytes is copy_s. */
MEMOI memob_rates memob_rows_find_rates(const memo_profile* profile) {
    const memo_profile_transfer *small = &profile->copies[0], *large = &profile->copies[1];
    const memo_profile_transfer* file = &profile->file;
    const double small_bytes = (double)small->size_bytes;
    double bytes = (double)large->size_bytes - small_bytes;
    double out_s = large->out_s - small->out_s, back_s = large->back_s - small->back_s;
    memob_rates rates;
    if (bytes <= 0 || out_s <= 0 || back_s <= 0) { /* noise, or one size only */
        bytes = (double)large->size_bytes;
        out_s = large->out_s;
        back_s = large->back_s;
    }
    rates.copy_s = fmax(0, (small->out_s - memoi_rows_over(small_bytes * out_s, bytes) +
                            small->back_s - memoi_rows_over(small_bytes * back_s, bytes)) /
                               2);
    rates.bytes_per_s[0][0] = memoi_rows_rate(bytes, out_s);
    rates.bytes_per_s[0][1] = memoi_rows_rate(bytes, back_s);
    rates.bytes_per_s[1][0] = memoi_rows_rate((double)file->size_bytes, file->out_s);
    rates.bytes_per_s[1][1] = memoi_rows_rate((double)file->size_bytes, file->back_s);
    rates.update_host_s_per_byte = profile->update_host_s_per_byte;
    rates.fetch_s_per_byte = profile->fetch_s_per_byte;
    memcpy(rates.slowdown_s_per_byte, profile->slowdown_s_per_byte,
           sizeof rates.slowdown_s_per_byte);
    return rates;
}

/* Time of a slice: middle_s - growth_s for the first, middle_s + growth_s for the last, linear
 * between; at least 0. */
MEMOI double memoi_rows_slice_s(const memo_swap_desc* desc, int32_t step, double middle_s,
                                double growth_s) {
    const double rows = (double)desc->n_rows, all = (double)memob_swap_layer_rows(desc);
    double begin, n;
    if (memob_swap_batch_slices(desc) <= 1) return middle_s;
    begin = (double)(step % memob_swap_batch_slices(desc)) * rows;
    n = begin + rows > all ? all - begin : rows;
    middle_s += growth_s * ((2 * begin + n) / all - 1);
    return middle_s > 0 ? middle_s * (n / rows) : 0;
}

/* A pass of a step, without recomputed rows. */
MEMOI double memob_rows_pass_s(const memo_swap_plan_desc* desc, int32_t step, int is_backward) {
    const memo_swap_desc* swap = desc->swap;
    const memo_profile* p = desc->profile;
    const int32_t kind = memob_layer_kind(swap, step);
    const double share = (double)swap->n_rows / (double)memob_max(p->n_rows, 1); /* other slices */
    return memoi_rows_slice_s(
        swap, step, share * (is_backward ? p->backward_s : p->forward_s)[kind],
        share * (is_backward ? p->backward_growth_s : p->forward_growth_s)[kind]);
}

/* To recompute all rows of a slice; late rows: late_rows of them.  The tensor that a tensor is
 * recomputed with has the time of both. */
MEMOI double memob_rows_recompute_s(const memo_swap_plan_desc* desc, int32_t step, int32_t t,
                                    int64_t late_rows) {
    const memo_swap_desc* swap = desc->swap;
    const memo_profile_tensor* tensor = memoi_profile_find(desc->profile, swap->tensors, t);
    const int32_t kind = memob_layer_kind(swap, step);
    if (!tensor || swap->tensors[t].away == MEMO_WITH) return 0;
    if (memob_tensor_is_routed(swap, t))
        return tensor->recompute_s_per_row[kind] * (double)late_rows;
    return memoi_rows_slice_s(swap, step, tensor->recompute_s_per_row[kind] * (double)swap->n_rows,
                              tensor->recompute_growth_s_per_row[kind] * (double)swap->n_rows);
}

/* Seconds of a step's computation, forward and backward, without recomputed rows. */
typedef struct memoi_rows_layer {
    double compute_s[2];
} memoi_rows_layer;

/* A law, and what it depends on: tables that differ in bytes and in times alone have the same.
 * Each has one place, as tables that are known; the fewer places, the more cells have tables. */
#define MEMOI_ROWS_LAWS_MAX   256 /* powers of 2 */
#define MEMOI_ROWS_LAWS_LEAST 8
#define MEMOI_ROWS_LAWS_CELLS (1 << 15) /* of all */
typedef struct memoi_rows_law {
    memob_law law;
    int32_t n_items, input; /* of its items; n_items 0: there is no law */
    char* uses_of;
    int64_t n_most;
} memoi_rows_law;

/* A step while its times are found. */
typedef struct memoi_rows_clock {
    const memo_swap_plan_desc* desc;
    memob_rates rates;
    memob_swap_placement order; /* of each table: sums, turns, sizes; no places */
    memoi_rows_layer* layers;
    double least_s;         /* computation of a step, without what rows recompute */
    memob_swap_items items; /* of the table, */
    memob_step_rows rows;   /* and their law, which is one of */
    memoi_rows_law* laws;   /* these */
    int32_t n_laws;
    memob_arrays work; /* for a law */
    int64_t n_cells_most;

    memob_clock now;      /* on which rows and states pass */
    memob_states* states; /* own_states; NULL: none are streamed */
    memob_states own_states;
    memob_sink sink;            /* without states */
    memob_step *step, own_step; /* of the states; without: own_step */
    double update_s;            /* of the update after the micro-batches */
    double *stalls_s, before_s; /* before each row visit of the micro-batch; before the latest */

    /* A walk ends where its step takes longer than enough_s, whatever comes behind: less is left
     * for waits, updates and slower computation. */
    double enough_s, recompute_s; /* of a step; infinite: none ends */
    double begin_s, computed_s, left_s;
    int is_long; /* it has ended so */
} memoi_rows_clock;

/* The trainer's part: an update takes its time. */
MEMOI memo_status memoi_rows_update(void* clock, int32_t layer) {
    memoi_rows_clock* c = (memoi_rows_clock*)clock;
    memob_clock_compute(&c->now, c->desc->profile->update_s_per_byte *
                                     memob_states_update_bytes(c->states, layer));
    return MEMO_STATUS_OK;
}

/* --- the law of the rows --- */

MEMOI void memoi_rows_free_law(memoi_rows_clock* c) {
    memob_swap_items_free(&c->items);
    for (int32_t k = 0; k < c->n_laws && c->laws; k++) {
        memob_law_free(&c->laws[k].law);
        MEMO_FREE(c->laws[k].uses_of);
    }
    memob_arrays_free(&c->work);
    MEMO_FREE(c->rows.of.clock_cells);
}

MEMOI int memoi_rows_has_law(const memoi_rows_law* known, const memob_swap_items* it) {
    return known->n_items == it->n_items && known->input == it->input &&
           !memcmp(known->uses_of, it->uses_of, (size_t)it->n_items);
}

/* Makes the law of the items in its place. */
MEMOI memo_status memoi_rows_make_law(memoi_rows_clock* c, memoi_rows_law* made,
                                      memo_error* error) {
    memob_sink_law* of = &c->rows.of;
    memo_status status;
    made->n_items = 0; /* if it fails, none */
    if (!memob_reserve(&made->uses_of, &made->n_most, c->items.n_items, 1))
        return memob_no_memory(error, "the times of a step");
    status = memob_swap_items_law(&c->items, &c->order, &c->work, &made->law, error);
    if (status) return status;
    of->law = &made->law;
    if (!memob_reserve(&of->clock_cells, &c->n_cells_most, of->law->n_cells,
                       sizeof *of->clock_cells))
        return memob_no_memory(error, "the times of a step");

    /* Known from now on: all that its step needs is there. */
    made->n_items = c->items.n_items;
    made->input = c->items.input;
    memcpy(made->uses_of, c->items.uses_of, (size_t)c->items.n_items);
    return MEMO_STATUS_OK;
}

/* Finds the law of the table whose sums were added up. */
MEMOI memo_status memoi_rows_find_law(memoi_rows_clock* c, memo_error* error) {
    const memo_status status = memob_swap_items_make(c->desc->swap, &c->order, &c->items, error);
    memoi_rows_law* known;
    if (status) return status;
    known = &c->laws[memob_digest(c->items.uses_of, c->items.n_items) & (uint64_t)(c->n_laws - 1)];
    c->rows.moves = memob_swap_moves(&c->items);
    c->rows.of.law = &known->law;
    return memoi_rows_has_law(known, &c->items) ? status : memoi_rows_make_law(c, known, error);
}

MEMOI void memoi_rows_between(memoi_rows_clock* c) {
    memob_clock_compute(&c->now, c->desc->profile->between_s);
    c->computed_s += c->desc->profile->between_s;
}

/* What the trainer computes in a visit. */
MEMOI memo_status memoi_rows_compute(void* clock, const memob_visit* visit, int is_begun) {
    memoi_rows_clock* c = (memoi_rows_clock*)clock;
    const int is_backward = visit->pass == MEMOB_BACKWARD;
    if (memob_swap_computes_between(&c->order, visit, c->states != NULL, is_begun))
        memoi_rows_between(c);
    if (is_begun && visit->row >= 0) {
        const int32_t layer = c->order.visits[visit->row].layer;
        const double span_s = (is_backward ? c->order.sums[layer].recompute_s : 0) +
                              c->layers[layer].compute_s[is_backward];
        c->stalls_s[visit->row] = c->now.stall_s - c->before_s;
        c->before_s = c->now.stall_s;
        memob_clock_compute(&c->now, span_s);
        c->computed_s += span_s;
    }
    c->is_long = c->now.time_s[0] - c->begin_s - c->computed_s > c->left_s;
    return c->is_long ? MEMO_STATUS_INFEASIBLE : MEMO_STATUS_OK;
}

/* The most micro-batches of a step that are walked. */
#define MEMOI_ROWS_WALKED 16

/* What a micro-batch took, and how late its copies began, summed. */
typedef struct memoi_rows_pace {
    double compute_s, stall_s, late_s, copied_bytes[2];
} memoi_rows_pace;

MEMOI int memoi_rows_are_near(double a, double b) {
    return fabs(a - b) <= 1e-9 * (fabs(a) + fabs(b));
}

/* Walks a micro-batch.  Returns 1 if it took as long as the one before, with copies as late. */
MEMOI int memoi_rows_walk_batch(memoi_rows_clock* c, int is_last, memoi_rows_pace* pace) {
    const memoi_rows_pace before = *pace;
    const double begin_s = c->now.time_s[0], stalled_s = c->now.stall_s;
    const double copied[2] = {c->now.copied_bytes[0], c->now.copied_bytes[1]};
    c->now.late_s = 0;
    c->before_s = stalled_s;
    (void)memob_states_walk(c->states, c->step, &c->rows, is_last, memoi_rows_compute, c, NULL);
    pace->compute_s = c->now.time_s[0] - begin_s;
    pace->stall_s = c->now.stall_s - stalled_s;
    pace->late_s = c->now.late_s;
    for (int way = 0; way < 2; way++)
        pace->copied_bytes[way] = c->now.copied_bytes[way] - copied[way];
    return memoi_rows_are_near(pace->compute_s, before.compute_s) &&
           memoi_rows_are_near(pace->late_s, before.late_s);
}

MEMOI int32_t memob_rows_n_batches(const memo_swap_plan_desc* desc) {
    return desc->micro_batches > 0 ? desc->micro_batches : 1;
}

/* From now on a walk of n micro-batches ends where it takes longer than enough_s. */
MEMOI void memoi_rows_set_left(memoi_rows_clock* c, double enough_s, int32_t n) {
    const double span_s = (c->least_s / memob_rows_n_batches(c->desc) + c->recompute_s) * n;
    c->left_s = (1 + 1e-9) * enough_s - span_s + 1e-9 * span_s;
}

/* Micro-batches and the update of a step.  Sets stall_s and update_s.  Of those in the middle,
 * which do the same, walks as many as it takes until they are steady; the others take as long as
 * the steady one.  Infinite: the walk has ended early. */
MEMOI double memoi_rows_batches(memoi_rows_clock* c, int32_t n) {
    const double begin_s = c->now.time_s[0];
    memoi_rows_pace pace;
    double more_s = 0, end_s;
    memset(&pace, 0, sizeof pace);
    c->now.stall_s = c->now.copied_bytes[0] = c->now.copied_bytes[1] = 0;
    c->begin_s = begin_s;
    c->computed_s = 0;
    for (int32_t k = 0; k < n - 1 && !c->is_long; k++) {
        const int is_steady = memoi_rows_walk_batch(c, 0, &pace);
        const int32_t n_alike = n - 3 - k; /* rounds 2 to n - 3 are */
        if (n_alike <= 0 || k < 3 || (!is_steady && k < MEMOI_ROWS_WALKED)) continue;
        c->now.stall_s += n_alike * pace.stall_s;
        more_s += n_alike * pace.compute_s;
        for (int way = 0; way < 2; way++)
            c->now.copied_bytes[way] += n_alike * pace.copied_bytes[way];
        k += n_alike;
        c->states->round += n_alike;
    }
    if (!c->is_long) (void)memoi_rows_walk_batch(c, 1, &pace);
    if (c->is_long) return HUGE_VAL;

    /* Waits of the update are its own. */
    end_s = c->now.time_s[0];
    pace.stall_s = c->now.stall_s;
    if (c->states) (void)memob_states_end_step(c->states, NULL);
    c->update_s = c->now.time_s[0] - end_s;
    c->now.stall_s = pace.stall_s;
    return c->now.time_s[0] - begin_s + more_s;
}

/* The computation of a step, but for recomputed rows and the update: on a clock where nothing
 * else happens. */
MEMOI double memoi_rows_least(memoi_rows_clock* c) {
    const memob_swap_placement* order = &c->order;
    memset(&c->now, 0, sizeof c->now);
    for (int32_t k = 0; k < order->n_visits; k++) {
        const memob_row_visit* visit = &order->visits[k];
        if (memob_swap_is_between(order, k) || memob_swap_has_loss(order, k)) memoi_rows_between(c);
        memob_clock_add(&c->now, MEMOB_STREAM_COMPUTE,
                        c->layers[visit->layer].compute_s[visit->pass]);
    }
    return c->now.time_s[0] * memob_rows_n_batches(c->desc);
}

/* A step of streamed states is behind others, until copies and updates on the host are as late at
 * its end as at its begin, but for a thousandth of it. */
#define MEMOI_ROWS_STEPS   16
#define MEMOI_ROWS_AS_LATE 1e-3

/* How long each stream is still busy when computation ends. */
MEMOI void memoi_rows_left(const memob_clock* now, double left_s[MEMOB_N_STREAMS]) {
    for (int32_t s = 0; s < MEMOB_N_STREAMS; s++)
        left_s[s] = fmax(0, now->time_s[s] - now->time_s[MEMOB_STREAM_COMPUTE]);
}

/* Steps with streamed states, until one is like the next.  Deferred updates begin with the second.
 * If that takes too long, those behind it do, too: of 214,369 tables 95 had a second step that was
 * longer, by at most .7 %.  The first, before which no state is in its place, says nothing. */
MEMOI double memoi_rows_steady(memoi_rows_clock* c, int32_t n) {
    const int is_deferred = c->states->update_at == MEMO_UPDATE_DEFERRED;
    const int32_t least = is_deferred ? 2 : c->states->sizes.host_bytes > 0;
    double before_s[MEMOB_N_STREAMS], left_s[MEMOB_N_STREAMS], step_s = 0;
    int is_steady = 0;
    memob_states_reset(c->states);
    memoi_rows_left(&c->now, left_s);
    for (int32_t k = 0; k < MEMOI_ROWS_STEPS && !is_steady; k++) {
        memcpy(before_s, left_s, sizeof before_s);
        memoi_rows_set_left(c, k || !least ? c->enough_s : HUGE_VAL, n);
        step_s = memoi_rows_batches(c, n);
        if (c->is_long) break;
        memoi_rows_left(&c->now, left_s);
        is_steady = k >= least;
        for (int32_t s = 0; s < MEMOB_N_STREAMS; s++)
            is_steady &= fabs(left_s[s] - before_s[s]) <= MEMOI_ROWS_AS_LATE * step_s;
    }
    return step_s;
}

/* Seconds of a step: n micro-batches and the update, as everything that plans and predicts counts
 * them; infinite if it takes longer than enough_s.  Without states every micro-batch takes the same
 * time. */
MEMOI double memoi_rows_step(memoi_rows_clock* c) {
    const memob_sink_law* of = &c->rows.of;
    const int32_t n = memob_rows_n_batches(c->desc);
    double batch_s;

    /* Nothing is under way. */
    MEMO_ASSERT(of->law->n_cells <= c->n_cells_most); /* 2 */
    memset(&c->now, 0, sizeof c->now);
    c->now.rates = &c->rates;
    c->now.computes_on_host = c->desc->swap->computes_on_host;
    memob_sink_forget(of);

    if (!c->states) {
        memoi_rows_set_left(c, c->enough_s / n, 1);
        batch_s = memoi_rows_batches(c, 1);
        if (c->is_long) {
            memob_step_abandon(c->step);
            memob_step_reset(c->step);
        }
        c->now.stall_s *= n;
        for (int way = 0; way < 2; way++) c->now.copied_bytes[way] *= n;
        return n * batch_s;
    }
    return memoi_rows_steady(c, n);
}

/* --- >>row planner ---
 * Knows: the desc of a search, its memory, bundles of tensors, and what each layer may do with a
 * bundle.  Knows nothing of which table is good. */

/* Tensors that are recomputed together, and so have the same rows. */
typedef struct memoi_rows_bundle {
    int64_t row_bytes;
    int32_t leader; /* the tensor whose time counts */
    double worth;   /* the most time, in a layer, that a byte saves if it is not recomputed */
} memoi_rows_bundle;

/* A refusal looks for budgets by searches that end with the first table that fits: of a part of the
 * trials, then of all, which find one where the plan does. */
typedef enum memoi_rows_effort {
    MEMOI_ROWS_EFFORT_WHOLE,
    MEMOI_ROWS_EFFORT_FIRST,
    MEMOI_ROWS_EFFORT_SHORT
} memoi_rows_effort;

/* What a plan is made for; all zero: memo_plan_swap, without the limit's name. */
typedef struct memoi_rows_aim {
    memoi_rows_effort effort;
    int is_alpha;         /* only the best single alpha */
    int is_named;         /* the limit is; as much work as the search */
    const int64_t* start; /* rows to begin with, (n_layers, n_tensors); NULL: none */
    double other_s;       /* of a rank: a step to be better than; 0: none */
} memoi_rows_aim;

#define MEMOI_ROWS_SEED 0x9e3779b97f4a7c15u

/* Bytes are doubles, because tables that keep all may exceed every integer. */
typedef struct memoi_rows_score {
    double device_bytes, swapped_bytes;
    memo_swap_sizes sizes; /* of host memory and the file */
    int32_t n_host_layers; /* places there; 0: for each layer that is moved */
    double step_s, stall_s, recompute_s, update_s;
    double copied_bytes[2]; /* in a step: to the host, to the device */
    double excess_bytes;    /* beyond the capacities; 0: fits; MEMOI_ROWS_IMPOSSIBLE: never would */
    double lifted_bytes;    /* of the memory whose limit is lifted */
} memoi_rows_score;

#define MEMOI_ROWS_IMPOSSIBLE 1e300
#define MEMOI_ROWS_WORST      (2 * MEMOI_ROWS_IMPOSSIBLE) /* any table is better */

/* What a layer may do with the rows of a bundle, beside keeping them. */
typedef enum memoi_rows_rule {
    MEMOI_RULE_KEEP = 0, /* nothing */
    MEMOI_RULE_MOVE,     /* swap all: they cannot be recomputed, or not in this layer */
    MEMOI_RULE_ROWS,     /* swap any, and recompute the others */
    MEMOI_RULE_WHOLE,    /* swap all, or recompute all */
    MEMOI_RULE_LATE,     /* recompute all: late rows */
    MEMOI_RULE_ABSENT    /* nothing: the layer lacks the bundle */
} memoi_rows_rule;

/* By `away` of the bundle's leader, which is never WITH. */
static const memoi_rows_rule memoi_rule_of_away[] = {
    MEMOI_RULE_KEEP, MEMOI_RULE_MOVE, MEMOI_RULE_ROWS, MEMOI_RULE_WHOLE, MEMOI_RULE_ABSENT};
MEMOB_TABLE_OF(MEMO_N_AWAYS, memoi_rule_of_away);

typedef struct memoi_rows_table {
    memoi_rows_score score;
    int64_t* cells;    /* (n_bundles, n_layers): swapped tiles, or MEMO_ROWS_KEPT */
    int64_t* versions; /* (n_bundles): equal numbers, equal cells */
} memoi_rows_table;

/* The score of a table that was tried lately, under any budgets. */
typedef struct memoi_rows_known {
    memoi_rows_score score;
    int64_t times_version; /* 0: nothing is known */
    int is_timed;          /* otherwise only its bytes are known, */
    double over_s;         /* and that its step takes longer than this */
} memoi_rows_known;

typedef struct memoi_rows_planner {
    const memo_swap_plan_desc* desc; /* the caller's, or one with a wider limit */
    memo_swap_limit lifted; /* breaks ties: the plan that uses least of this resource wins */
    memob_arrays arrays;
    int32_t n_layers, n_moved; /* those before the last two, which never move */
    int64_t n_tiles, n_cells;
    memoi_rows_bundle* bundles; /* those with bytes */
    /* The planner's kinds: with slices each kind of the desc is several, by the slice's position,
     * because late slices take longer than early ones. */
    int32_t n_bundles;
    int32_t* kinds;         /* of each layer */
    memoi_rows_rule* rules; /* (n_bundles, n_layers) */
    double* all_s;          /* likewise: to recompute all rows; infinite: impossible */
    int32_t* bundle_of;     /* each tensor's; -1: no bytes */
    int32_t* by_worth;      /* bundles, of most worth first */
    memoi_rows_clock clock;
    memoi_rows_known* known; /* each table has one place among n_known, a power of 2 */
    int64_t* known_cells;    /* (n_known, n_cells) */
    int64_t n_known;
    int64_t times_version; /* raised where times change: scores known before are void */
    int32_t* picked;       /* the layers that a change may concern, in order */
    int32_t* changed;      /* those that the last change concerned, in order */
    int32_t n_changed;
    double *stalls_s, stalled_s; /* before each visit of the latest table taken; their sum */
    int is_timed;                /* a trial of the latest change was */
    int lacks_memory;            /* for the law of a trial: the search has failed */
    int meets_host;              /* the host's limit has mattered to a search */
    memoi_rows_table trial, here, best, plan; /* plan: whose limit is named */
    memoi_rows_table first;                   /* the best before tables are searched */
    int is_uniform;                           /* searches change all layers of a kind */
    memoi_rows_aim aim;                       /* set behind memoi_rows_create */

    /* The table that was added up last, its sums, which are the clock's unless packs change these,
     * the bytes of each tensor on the device and always on the host, and a time of a layer that is
     * none. */
    memoi_rows_table summed;
    memob_swap_sum* sums;
    double *held_bytes, hair_s; /* (n_tensors, 2) */
    int is_summed;
    int64_t n_versions;
    uint64_t random;
} memoi_rows_planner;

MEMOI const char* memoi_rows_desc_name(const memo_swap_plan_desc* desc) {
    return desc->swap && desc->swap->desc_name ? desc->swap->desc_name : "memo_swap_plan_desc";
}

MEMOI memo_status memoi_rows_check(const memo_swap_plan_desc* desc, memo_error* error) {
    const char* const name = memoi_rows_desc_name(desc);
    /* 0 is no limit, so only negative budgets are invalid. */
    const memob_bounds budgets[] = {{"device_bytes", desc->device_bytes, 0, INT64_MAX},
                                    {"micro_batches", desc->micro_batches, 0, INT32_MAX},
                                    {"host_bytes", desc->host_bytes, 0, INT64_MAX},
                                    {"spill_bytes", desc->spill_bytes, 0, INT64_MAX}};

    /* Required pointers first: the other checks read them. */
    if (!desc->swap || !desc->profile)
        return MEMOB_INVALID(error, "%s.%s: NULL; set it", name, desc->swap ? "profile" : "swap");
    return MEMOB_CHECK_FIELDS(name, budgets, error);
}

/* The states that the engine gets, whose turns are those of the order.  The swap desc is valid. */
MEMOI memo_status memoi_rows_check_states(const memo_swap_plan_desc* desc, memo_error* error) {
    const char* const name = memoi_rows_desc_name(desc);
    const struct memob_states_desc* states = desc->states;
    const memo_swap_desc* swap = desc->swap;
    const int64_t n_chunks = states && swap->order ? memob_max(states->n_chunks, 1) : 1;
    const int64_t n_turns = swap->order ? swap->n_order : 0;
    const int64_t n_steps = memob_swap_place_steps(swap) * n_chunks;
    const int64_t n_layers = n_steps / memob_max(swap->n_slices, 1) + 2;
    if (!states) return MEMO_STATUS_OK;
    const memob_bounds fields[] = {{"states->n_states", states->n_states, 1, MEMO_STATES_MAX},
                                   {"states->n_layers", states->n_layers, n_layers, n_layers},
                                   {"states->n_turns", states->n_turns, n_turns, n_turns},
                                   {"states->n_chunks", states->n_chunks, n_chunks, n_chunks}};
    if (!states->states)
        return MEMOB_INVALID(error, "%s.states: without a table; NULL means no states", name);
    return MEMOB_CHECK_FIELDS(name, fields, error);
}

/* Layers in slices hand rows on; only they may be planned in slices of another size. */
MEMOI int memoi_rows_are_handed(const memo_item* tensors, int32_t n) {
    int32_t t = 0;
    while (t < n && tensors[t].scope != MEMO_EDGE) t++;
    return t < n;
}

/* The profile has times of this plan's rows, kinds and tensors.  The swap desc is valid. */
MEMOI memo_status memoi_rows_check_profile(const memo_swap_plan_desc* desc, memo_error* error) {
    const memo_profile* profile = desc->profile;
    const memo_swap_desc* swap = desc->swap;
    memo_status status = memoi_profile_check(profile, error);
    if (status) return status;
    for (int32_t layer = 0; layer < swap->n_layers; layer++)
        if (memob_layer_kind(swap, layer) >= profile->n_kinds)
            return MEMOB_INVALID(
                error, "profile.n_kinds: %d, but layer %d is of kind %d; measure this model",
                (int)profile->n_kinds, (int)layer, (int)memob_layer_kind(swap, layer));

    for (int32_t t = 0; t < swap->n_tensors; t++)
        if (!memoi_profile_find(profile, swap->tensors, t))
            return MEMOB_INVALID(error, "profile.tensors: tensor `%s` is missing; measure it too",
                                 memob_tensor_name(&swap->tensors[t]));

    if (profile->n_rows == swap->n_rows || memoi_rows_are_handed(swap->tensors, swap->n_tensors))
        return MEMO_STATUS_OK;
    return MEMOB_INVALID(
        error, "profile.n_rows: %lld do not match the %lld of the plan; measure with the same rows",
        (long long)profile->n_rows, (long long)swap->n_rows);
}

/* A tensor recomputed with another must have the same rows, so both are one bundle. */
MEMOI void memoi_rows_find_bundles(memoi_rows_planner* p) {
    const memo_swap_desc* swap = p->desc->swap;
    for (int32_t t = 0; t < swap->n_tensors; t++) {
        p->bundle_of[t] = -1;
        if (swap->tensors[t].row_bytes == 0 || swap->tensors[t].away == MEMO_WITH) continue;
        if (swap->tensors[t].scope == MEMO_EDGE) continue; /* nothing to choose */
        p->bundle_of[t] = p->n_bundles;
        p->bundles[p->n_bundles++].leader = t;
    }

    /* Every tensor adds its bytes; the leader alone has the time. */
    for (int32_t t = 0; t < swap->n_tensors; t++) {
        p->bundle_of[t] = p->bundle_of[memob_item_leader(swap->tensors, t)];
        if (p->bundle_of[t] >= 0)
            p->bundles[p->bundle_of[t]].row_bytes += swap->tensors[t].row_bytes;
    }
}

/* 1: the trainer's recompute can compute it. */
MEMOI int memoi_rule_recomputes(memoi_rows_rule rule) {
    return rule == MEMOI_RULE_ROWS || rule == MEMOI_RULE_WHOLE || rule == MEMOI_RULE_LATE;
}

/* What each layer may do with each bundle, and the time to recompute all rows. */
MEMOI void memoi_rows_find_rules(memoi_rows_planner* p) {
    const memo_swap_desc* swap = p->desc->swap;
    int32_t i;
    for (int32_t b = 0; b < p->n_bundles; b++) {
        const int32_t t = p->bundles[b].leader;
        const memo_profile_tensor* tensor = memoi_profile_find(p->desc->profile, swap->tensors, t);
        const int is_late = memob_tensor_is_routed(swap, t);
        const int64_t late_rows = is_late ? memob_swap_routed_rows(swap, t) : 0;
        for (int32_t layer = 0; layer < p->n_layers; layer++) {
            const int64_t at = (int64_t)b * p->n_layers + layer;
            const int cannot = tensor->recompute_s_per_row[memob_layer_kind(swap, layer)] < 0;
            memoi_rows_rule rule = memoi_rule_of_away[memob_item_away(swap, t)];

            if (memoi_rule_recomputes(rule)) {
                if (is_late) rule = MEMOI_RULE_LATE;
                if (cannot) rule = is_late ? MEMOI_RULE_KEEP : MEMOI_RULE_MOVE;
            }
            p->rules[at] = memob_layer_has(swap, layer, t) ? rule : MEMOI_RULE_ABSENT;
            p->all_s[at] = rule == MEMOI_RULE_MOVE
                               ? HUGE_VAL
                               : memob_rows_recompute_s(p->desc, layer, t, late_rows);
            if (!memoi_rule_recomputes(p->rules[at])) continue;
            p->hair_s =
                fmax(p->hair_s, 1e-12 * (p->all_s[at] + p->desc->profile->recompute_call_s));
            p->bundles[b].worth =
                fmax(p->bundles[b].worth, p->all_s[at] / (double)p->bundles[b].row_bytes);
        }

        for (i = b; i > 0 && p->bundles[p->by_worth[i - 1]].worth < p->bundles[b].worth; i--)
            p->by_worth[i] = p->by_worth[i - 1];
        p->by_worth[i] = b;
    }
}

/* Tables that are known at most, and cells of all of them. */
#define MEMOI_ROWS_KNOWN_MAX       4096
#define MEMOI_ROWS_KNOWN_CELLS_MAX (1 << 18)

/* Computation that does not depend on the rows.  Scores of other times are not known any more. */
MEMOI void memoi_rows_time_kinds(memoi_rows_planner* p) {
    p->clock.desc = p->desc;
    for (int32_t i = 0; i < p->n_layers; i++)
        for (int pass = 0; pass < 2; pass++)
            p->clock.layers[i].compute_s[pass] = memob_rows_pass_s(p->desc, i, pass);
    p->clock.least_s = memoi_rows_least(&p->clock);
    p->times_version++;
}

MEMOI void memoi_rows_destroy(memoi_rows_planner* p) {
    memob_states_free(&p->clock.own_states);
    memob_step_free(&p->clock.own_step);
    memoi_rows_free_law(&p->clock);
    memob_swap_placement_free(&p->clock.order);
    memob_arrays_free(&p->arrays);
}

/* The step that the clock walks: of states, or of rows alone.  Errors: as memob_states_init. */
MEMOI memo_status memoi_rows_take_step(memoi_rows_clock* c, const memo_swap_plan_desc* desc,
                                       memo_error* error) {
    memo_status status;
    c->sink.clock = &c->now;
    c->step = &c->own_step;
    if (!desc->states) return memob_swap_make_step(desc->swap, &c->order, &c->sink, c->step, error);
    c->states = &c->own_states;
    status = memob_states_init(c->states, desc->states, error);
    c->states->sink.clock = &c->now;
    c->states->trainer.update = memoi_rows_update;
    c->states->trainer.look = NULL;
    c->states->trainer.user = c;
    if (!status) status = memob_states_make_items(c->states, error);
    if (!status)
        status = memob_states_get_step(c->states, c->order.n_slices, memob_rows_n_batches(desc),
                                       &c->step, error);
    return status;
}

/* What the desc gives a zeroed planner; memoi_rows_destroy frees any part of it. */
MEMOI memo_status memoi_rows_prepare(memoi_rows_planner* p, const memo_swap_plan_desc* desc,
                                     memo_error* error) {
    const memo_swap_desc* swap = desc->swap;
    memoi_rows_table* const tables[] = {&p->trial, &p->here, &p->best,
                                        &p->first, &p->plan, &p->summed};
    memob_arrays* a = &p->arrays;
    int64_t n_cells, n_slices, n_classes;
    memo_status status = memoi_rows_check(desc, error);
    if (!status) /* no sum of sizes overflows */
        status = memob_swap_placement_make(swap, 0, &p->clock.order, error);
    if (!status) status = memoi_rows_check_states(desc, error);
    if (!status) status = memoi_rows_check_profile(desc, error);
    if (status) return status;

    /* Only the first layers move: the backward uses the last layers at once, so these stay in the
     * buffers. */
    p->desc = desc;
    p->n_layers = swap->n_layers;
    p->n_moved = swap->n_places > 1 ? swap->n_layers : (int32_t)memob_max(swap->n_layers - 2, 0);
    p->n_tiles = memob_swap_n_tiles(swap);
    p->random = MEMOI_ROWS_SEED;
    p->clock.enough_s = HUGE_VAL;

    n_cells = (int64_t)p->n_layers * swap->n_tensors;
    p->bundles = MEMOB_ARRAY(a, memoi_rows_bundle, swap->n_tensors);
    p->bundle_of = MEMOB_ARRAY(a, int32_t, swap->n_tensors);
    p->by_worth = MEMOB_ARRAY(a, int32_t, swap->n_tensors);
    p->kinds = MEMOB_ARRAY(a, int32_t, p->n_layers);
    p->rules = MEMOB_ARRAY(a, memoi_rows_rule, n_cells);
    p->all_s = MEMOB_ARRAY(a, double, n_cells);
    p->clock.layers = MEMOB_ARRAY(a, memoi_rows_layer, p->n_layers);
    p->clock.n_laws = MEMOI_ROWS_LAWS_MAX;
    while (p->clock.n_laws > MEMOI_ROWS_LAWS_LEAST &&
           p->clock.n_laws * n_cells > MEMOI_ROWS_LAWS_CELLS)
        p->clock.n_laws /= 2;
    p->clock.laws = MEMOB_ARRAY(a, memoi_rows_law, p->clock.n_laws);
    status = memoi_rows_take_step(&p->clock, desc, error);
    if (status) return status;
    p->n_known = MEMOI_ROWS_KNOWN_MAX;
    while (p->n_known > 1 && p->n_known * n_cells > MEMOI_ROWS_KNOWN_CELLS_MAX) p->n_known /= 2;
    p->known = MEMOB_ARRAY(a, memoi_rows_known, p->n_known);
    p->known_cells = MEMOB_ARRAY_OF_ANY(a, int64_t, p->n_known * n_cells);
    p->picked = MEMOB_ARRAY(a, int32_t, p->n_layers);
    p->changed = MEMOB_ARRAY(a, int32_t, p->n_layers);
    p->stalls_s = MEMOB_ARRAY(a, double, p->clock.order.n_visits);
    p->clock.stalls_s = MEMOB_ARRAY(a, double, p->clock.order.n_visits);
    for (size_t k = 0; k < sizeof tables / sizeof tables[0]; k++) {
        tables[k]->cells = MEMOB_ARRAY(a, int64_t, n_cells);
        tables[k]->versions = MEMOB_ARRAY(a, int64_t, swap->n_tensors);
    }
    p->sums = p->clock.order.sums;
    if (memob_swap_has_kinds(swap)) p->sums = MEMOB_ARRAY(a, memob_swap_sum, p->n_layers);
    p->held_bytes = MEMOB_ARRAY(a, double, 2 * (int64_t)swap->n_tensors);
    if (a->failed) return memob_no_memory(error, "the planning of rows");

    n_slices = memob_max(memob_swap_batch_slices(swap), 1);
    n_classes = memob_min(n_slices, 4);
    for (int32_t layer = 0; layer < p->n_layers; layer++)
        p->kinds[layer] = (int32_t)(memob_layer_kind(swap, layer) * n_classes +
                                    layer % n_slices * n_classes / n_slices);
    memoi_rows_find_bundles(p);
    memoi_rows_find_rules(p);
    p->clock.rates = memob_rows_find_rates(desc->profile);
    memoi_rows_time_kinds(p);
    p->n_cells = (int64_t)p->n_layers * p->n_bundles;
    return status;
}

MEMOI memo_status memoi_rows_create(const memo_swap_plan_desc* desc, memoi_rows_planner* p,
                                    memo_error* error) {
    memo_status status;
    memset(p, 0, sizeof *p);
    status = memoi_rows_prepare(p, desc, error);
    if (status) memoi_rows_destroy(p);
    return status;
}

/* --- >>row bytes ---
 * Knows: what a table of rows takes, moves and recomputes.  Knows nothing of how long a step takes.
 *
 * The same bytes as memo.h's placement of the table, whose sums it shares (>>swap places), without
 * the offsets.  test_swap_plan compares both.
 *
 * 1. Tables with the same version of a bundle have the same cells of it. */

/* A table as memo_swap_desc.rows.  Slices share the cell of a LAYER tensor: the first slice's. */
MEMOI void memoi_rows_fill(const memoi_rows_planner* p, const int64_t* cells, int64_t* rows) {
    const memo_swap_desc* swap = p->desc->swap;
    for (int32_t layer = 0; layer < p->n_layers; layer++)
        for (int32_t t = 0; t < swap->n_tensors; t++) {
            const int32_t slice =
                memob_swap_is_layer(swap, t) ? layer % memob_swap_batch_slices(swap) : 0;
            const int64_t b = p->bundle_of[t];
            const int64_t cell = b < 0 ? MEMO_ROWS_KEPT : cells[b * p->n_layers + layer - slice];
            *rows++ = cell == MEMO_ROWS_KEPT ? MEMO_ROWS_KEPT
                                             : memob_swap_rows_of_tiles(swap, layer, cell);
        }
}

/* Copies the bundles that differ. */
MEMOI void memoi_rows_copy(const memoi_rows_planner* p, const memoi_rows_table* from,
                           memoi_rows_table* to) {
    to->score = from->score;
    for (int32_t b = 0; b < p->n_bundles; b++) {
        const int64_t first = (int64_t)b * p->n_layers;
        const size_t n_bytes = (size_t)p->n_layers * sizeof(int64_t);
        MEMO_ASSERT(to->versions[b] != from->versions[b] || /* 1 */
                    !memcmp(to->cells + first, from->cells + first, n_bytes));
        if (to->versions[b] == from->versions[b]) continue;
        to->versions[b] = from->versions[b];
        memcpy(to->cells + first, from->cells + first, n_bytes);
    }
}

/* The trial becomes the table of desc->swap->rows. */
MEMOI void memoi_rows_take(memoi_rows_planner* p, const memo_swap_desc* swap) {
    p->is_summed = 0; /* cheaper than differences of all bundles */
    for (int32_t b = 0; b < p->n_bundles; b++) {
        p->trial.versions[b] = ++p->n_versions;
        for (int32_t layer = 0; layer < p->n_layers; layer++)
            p->trial.cells[(int64_t)b * p->n_layers + layer] =
                memob_swap_tiles(swap, layer, p->bundles[b].leader);
    }
}

/* The sums of the trial's rows.  Only bundles whose cells differ from the table added up last are
 * added anew, unless some tensors are only of some kinds (their bytes have a maximum). */
MEMOI void memoi_rows_add_bundles(memoi_rows_planner* p) {
    const memo_swap_desc* swap = p->desc->swap;
    const int is_new = !p->is_summed || memob_swap_has_kinds(swap);
    const double call_s = p->desc->profile->recompute_call_s;
    if (is_new) memset(p->sums, 0, (size_t)p->n_layers * sizeof *p->sums);
    for (int32_t t = 0; t < swap->n_tensors; t++) {
        const int32_t b = p->bundle_of[t]; /* -1: EDGE, which has no cells */
        const int64_t first = (int64_t)memob_max(b, 0) * p->n_layers;
        const double* all_s = b >= 0 && p->bundles[b].leader == t ? p->all_s + first : NULL;
        memob_swap_region region;
        if (!swap->tensors[t].row_bytes) continue;
        if (!is_new && (b < 0 || p->trial.versions[b] == p->summed.versions[b])) continue;
        region = memob_swap_sum_tensor(swap, t, p->trial.cells + first,
                                       is_new ? NULL : p->summed.cells + first, all_s, call_s,
                                       &p->clock.order, p->sums, NULL);
        p->held_bytes[2 * t] = (double)region.n_kept * (double)region.whole_bytes +
                               (double)region.even_bytes + (double)region.scratch_bytes +
                               (double)region.odd_bytes;
        p->held_bytes[2 * t + 1] = (double)region.n_fixed * (double)region.whole_bytes;
    }
    memoi_rows_copy(p, &p->trial, &p->summed);
    p->is_summed = 1;
}

/* What all cells of the trial amount to: the sums, and the memory.  With a file, host memory has as
 * many places as fit. */
MEMOI void memoi_rows_add_up(memoi_rows_planner* p) {
    const memo_swap_desc* swap = p->desc->swap;
    memoi_rows_score* score = &p->trial.score;
    memob_swap_placement* order = &p->clock.order;
    memob_swap_sum* sums = order->sums;
    double fixed_bytes = 0;
    memset(score, 0, sizeof *score);
    memoi_rows_add_bundles(p);
    if (sums != p->sums) memcpy(sums, p->sums, (size_t)p->n_layers * sizeof *sums);
    for (int32_t t = 0; t < swap->n_tensors; t++) {
        score->device_bytes += p->held_bytes[2 * t];
        fixed_bytes += p->held_bytes[2 * t + 1];
    }

    score->device_bytes += (double)memob_swap_end_sums(swap, order);
    for (int32_t layer = p->n_layers - 1; layer >= 0; layer--) {
        if (sums[layer].recompute_s < p->hair_s) sums[layer].recompute_s = 0; /* rounding */
        score->swapped_bytes += (double)(sums[layer].moved_bytes + sums[layer].layer_bytes) +
                                (double)sums[layer].routed_bytes;
    }
    for (int32_t k = 0; k < order->n_visits; k++)
        if (order->visits[k].pass == MEMOB_BACKWARD)
            score->recompute_s += sums[order->visits[k].layer].recompute_s;
    if (!(score->recompute_s < MEMOI_ROWS_IMPOSSIBLE)) p->is_summed = 0; /* infinite: stays so */

    /* Host memory and the file take whole layers. */
    fixed_bytes = memoi_rows_sooner(fixed_bytes, (double)MEMOB_BYTES_MAX);
    order->fixed_host_bytes = memob_align_up((int64_t)fixed_bytes, MEMOB_SPILL_ALIGNMENT);
    memob_swap_find_places(swap, p->desc->spill_bytes ? p->desc->host_bytes : 0, 0, order);
    score->sizes = order->sizes;
    score->n_host_layers = order->n_windows ? order->n_host_layers : 0;
}

/* --- >>row score ---
 * Knows: the step of a table, and which of two tables is better.  Knows nothing of how tables are
 * found.
 *
 * 1. A table that fits has a time.
 * 2. A cell that a table may get is MEMO_ROWS_KEPT, or tiles from 0 to n_tiles. */

/* Bytes beyond a capacity; 0: no limit. */
MEMOI double memoi_rows_excess(int64_t capacity_bytes, double n_bytes) {
    return capacity_bytes ? memoi_rows_later(0, n_bytes - (double)capacity_bytes) : 0;
}

MEMOI double memoi_rows_held(const memoi_rows_score* score) {
    return score->device_bytes + (double)score->sizes.host_bytes + (double)score->sizes.spill_bytes;
}

/* Sets what the trial's bytes exceed, which guides the search toward tables that fit; without a
 * file none is used.  Returns 1 if nobody asks for its time: it does not fit, or takes too long
 * even if nothing stalls. */
MEMOI int memoi_rows_weigh(memoi_rows_planner* p) {
    const memo_swap_plan_desc* desc = p->desc;
    memoi_rows_score* score = &p->trial.score;
    const double recompute_s = score->recompute_s * memob_rows_n_batches(desc);
    const double least_s = (1 - 1e-9) * (p->clock.least_s + recompute_s);
    const double host_bytes = memoi_rows_excess(desc->host_bytes, (double)score->sizes.host_bytes);
    score->excess_bytes = memoi_rows_excess(desc->device_bytes, score->device_bytes) + host_bytes +
                          memoi_rows_excess(desc->spill_bytes, (double)score->sizes.spill_bytes);
    p->meets_host |= host_bytes > 0 || score->n_host_layers;
    score->lifted_bytes = 0;
    if (p->lifted == MEMO_SWAP_LIMIT_HOST_MEMORY)
        score->lifted_bytes = (double)score->sizes.host_bytes;
    if (p->lifted == MEMO_SWAP_LIMIT_DEVICE_MEMORY) score->lifted_bytes = score->device_bytes;
    if (score->recompute_s >= MEMOI_ROWS_IMPOSSIBLE ||
        memoi_rows_held(score) > (double)MEMOB_BYTES_MAX)
        score->excess_bytes = MEMOI_ROWS_IMPOSSIBLE;
    if (score->excess_bytes >= MEMOI_ROWS_IMPOSSIBLE) return 1;
    if (score->excess_bytes > 0 && !desc->swap->rows) return 1;
    if (least_s > p->clock.enough_s) score->step_s = HUGE_VAL;
    return least_s > p->clock.enough_s;
}

/* Finds the trial's bytes, and its step with as many layers in host memory as fit: the makespan,
 * and the stall, the part in which nothing is computed.  Returns 1 if there is a step; 0: it
 * takes longer than enough, or none fits. */
MEMOI int memoi_rows_time_trial(memoi_rows_planner* p) {
    memoi_rows_score* score = &p->trial.score;
    memoi_rows_add_up(p);
    if (memoi_rows_weigh(p)) return 0;
    if (memoi_rows_find_law(&p->clock, NULL)) {
        p->lacks_memory = 1;
        score->excess_bytes = MEMOI_ROWS_IMPOSSIBLE;
        return 0;
    }
    p->clock.recompute_s = score->recompute_s;
    score->step_s = memoi_rows_step(&p->clock);
    score->stall_s = p->clock.now.stall_s;
    score->update_s = p->clock.update_s;
    memcpy(score->copied_bytes, p->clock.now.copied_bytes, sizeof score->copied_bytes);
    return p->is_timed = !p->clock.is_long;
}

/* Scores the trial.  A search comes to the same tables again and again, above all if they have few
 * cells; what is known of a table depends on the times alone, and on the host's budget if that is
 * the number of places of a file. */
MEMOI void memoi_rows_score_trial(memoi_rows_planner* p) {
    const size_t n_bytes = (size_t)p->n_cells * sizeof *p->trial.cells;
    const uint64_t digest = memob_digest((const char*)p->trial.cells, (int64_t)n_bytes);
    const int64_t place = (int64_t)(digest & (uint64_t)(p->n_known - 1));
    memoi_rows_known* known = &p->known[place];
    int64_t* cells = p->known_cells + place * p->n_cells;
    if (known->times_version == p->times_version && !memcmp(cells, p->trial.cells, n_bytes)) {
        p->trial.score = known->score;
        if (memoi_rows_weigh(p) || known->is_timed) return;
        p->trial.score.step_s = HUGE_VAL;
        if (known->over_s >= p->clock.enough_s) return;
    }
    p->clock.is_long = 0;
    known->is_timed = memoi_rows_time_trial(p);
    known->over_s = p->clock.is_long ? p->clock.enough_s : 0;
    known->score = p->trial.score;
    known->times_version = p->times_version;
    memcpy(cells, p->trial.cells, n_bytes);
}

/* Less beyond the capacities; if both fit a shorter step; then less of a lifted memory, less
 * recomputed, moved, held. */
MEMOI int memoi_rows_is_better(const memoi_rows_score* a, const memoi_rows_score* b) {
    const double hair = 1e-12 * b->step_s;
    if (a->excess_bytes < b->excess_bytes || a->excess_bytes > b->excess_bytes)
        return a->excess_bytes < b->excess_bytes;
    if (a->excess_bytes > 0) return 0;
    if (a->step_s < b->step_s - hair) return 1;
    if (a->step_s > b->step_s + hair) return 0;
    if (a->lifted_bytes < b->lifted_bytes || a->lifted_bytes > b->lifted_bytes)
        return a->lifted_bytes < b->lifted_bytes;
    if (a->recompute_s < b->recompute_s - hair) return 1;
    if (a->recompute_s > b->recompute_s + hair) return 0;
    if (a->swapped_bytes < b->swapped_bytes || a->swapped_bytes > b->swapped_bytes)
        return a->swapped_bytes < b->swapped_bytes;
    return memoi_rows_held(a) < memoi_rows_held(b);
}

/* From now on trials are only compared with p->best, and with steps of other_s. */
MEMOI void memoi_rows_set_enough(memoi_rows_planner* p, const memoi_rows_score* other,
                                 double other_s) {
    const int is_open = p->best.score.excess_bytes > 0 || other->excess_bytes > 0;
    p->clock.enough_s =
        is_open ? HUGE_VAL : (1 + 1e-9) * memoi_rows_later(p->best.score.step_s, other_s);
}

/* All trials are timed, however long they take. */
MEMOI void memoi_rows_time_all(memoi_rows_planner* p) { p->clock.enough_s = HUGE_VAL; }

/* Scores p->trial.  A better trial becomes p->best, and the result is 1. */
MEMOI int memoi_rows_try(memoi_rows_planner* p) {
    memoi_rows_score_trial(p);
    MEMO_ASSERT(p->trial.score.step_s >= 0 || p->trial.score.excess_bytes > 0); /* 1 */
    if (!memoi_rows_is_better(&p->trial.score, &p->best.score)) return 0;
    memoi_rows_copy(p, &p->trial, &p->best);
    return 1;
}

/* 1 if a bundle may have this cell in a layer. */
MEMOI int memoi_rows_is_valid(const memoi_rows_planner* p, int32_t layer, int32_t b, int64_t cell) {
    const memoi_rows_rule rule = p->rules[(int64_t)b * p->n_layers + layer];
    MEMO_ASSERT(memob_is_within(cell, MEMO_ROWS_KEPT, p->n_tiles)); /* 2 */
    if (cell == MEMO_ROWS_KEPT || rule == MEMOI_RULE_ROWS) return 1;
    if (rule == MEMOI_RULE_KEEP || rule == MEMOI_RULE_ABSENT) return 0;
    if (rule == MEMOI_RULE_LATE) return cell == 0;
    return cell == p->n_tiles || (cell == 0 && rule == MEMOI_RULE_WHOLE);
}

/* --- >>row search ---
 * Knows: tables, their scores and budgets.  Knows nothing of what limits the step of a plan.
 *
 * Random changes, kept if the table is better or hardly worse (simulated annealing).  A change
 * (memoi_rows_change, to which new ones belong) gives a bundle another cell in layers of a kind or
 * in neighboring layers, or exchanges the cells of two layers.  It gives each bundle a new version,
 * by which bytes are added up later, lists the layers, and returns 0 if it left all as it was.
 * Some changes are of cells near visits before which the step waits for copies, and some rounds
 * change pairs of cells instead (memoi_rows_change_cell).  Memory joins the
 * bundles: after a change another bundle takes the free bytes, or gives up the missing bytes, in as
 * many layers or tiles as necessary; often in the same layers, because other layers may have no
 * time to copy the bytes.
 *
 * 1. The layers that a change picks ascend. */

/* The number of trials, and of cells and states that all trials may visit. */
#define MEMOI_ROWS_TRIALS_MAX   150000
#define MEMOI_ROWS_TRIALS_WHOLE 37500 /* of a whole search, which begins with what others found */
#define MEMOI_ROWS_TRIALS_LEAST 1000
#define MEMOI_ROWS_LOOKS_MAX    48000000
#define MEMOI_ROWS_ROUNDS       32 /* of all trials */
#define MEMOI_ROWS_QUIET        8  /* a search ends with so many rounds that gain nothing, */
#define MEMOI_ROWS_QUIET_SHORT  16 /* or with so many that are shorter because tables are large */
#define MEMOI_ROWS_CYCLE        4  /* rounds, of which one tries pairs, and one less host memory */
#define MEMOI_ROWS_RELIEVED     4  /* a copy in the way of a visit is of one of so many visits */
#define MEMOI_ROWS_GAIN         1e-5 /* the least share of a step that counts */
/* How much longer a step is accepted at first: a change of one of few layers makes more. */
#define MEMOI_ROWS_HEAT       0.0001
#define MEMOI_ROWS_HEAT_LAYER 0.04 /* over the number of layers */

/* In [0, n) */
MEMOI int64_t memoi_rows_random(memoi_rows_planner* p, int64_t n) {
    p->random ^= p->random << 13;
    p->random ^= p->random >> 7;
    p->random ^= p->random << 17;
    if (n < (int64_t)1 << 31) return (int64_t)((p->random >> 32) * (uint64_t)n >> 32); /* fast */
    return (int64_t)((p->random >> 1) % (uint64_t)n);
}

/* Layers that p->picked lists, and a bundle with this cell there if they have the same. */
typedef struct memoi_rows_pick {
    int32_t b, n_layers;
    int64_t cell;
    int64_t next, more; /* the new cell; or, if more is not 0, the number of tiles to add */
} memoi_rows_pick;

/* Picks a bundle, a set of layers at a fixed distance from layers of one kind, and their next cell:
 * kept, swapped or recomputed.  is_any: layers of any cell.  is_same: layers of the last change. */
MEMOI void memoi_rows_choose(memoi_rows_planner* p, int is_any, int is_same,
                             memoi_rows_pick* pick) {
    const int64_t states[] = {MEMO_ROWS_KEPT, p->n_tiles, 0};
    const int32_t layer = (int32_t)memoi_rows_random(p, p->n_layers);
    const int64_t* cells;
    int32_t of = layer, n, before;
    int is_all;
    if (!memoi_rows_random(p, 4)) of += (int32_t)memoi_rows_random(p, 5) - 2;
    before = of - layer;
    is_all = of < 0 || of >= p->n_layers || !memoi_rows_random(p, 4) || is_same;
    if (p->is_uniform) {
        of = layer;
        before = is_all = is_same = 0;
        is_any = 1;
    }
    pick->b = (int32_t)memoi_rows_random(p, p->n_bundles);
    cells = &p->trial.cells[(int64_t)pick->b * p->n_layers];
    pick->cell = is_any || memoi_rows_random(p, 2) ? cells[layer] : states[memoi_rows_random(p, 3)];
    pick->next = states[memoi_rows_random(p, 3)];
    pick->more = pick->n_layers = 0;
    n = is_same ? p->n_changed : p->n_layers;
    for (int32_t i = 0; i < n; i++) {
        const int32_t from = is_same ? p->changed[i] : i, at = from + before;
        if (!is_any && cells[from] != pick->cell) continue;
        if (is_all || (at >= 0 && at < p->n_layers && p->kinds[at] == p->kinds[of]))
            p->picked[pick->n_layers++] = from;
    }
}

/* Gives so many of the picked layers their next cell; 0: nothing is different.  They are spread
 * evenly: each apart, in pairs (one of even and one of odd layers), or all side by side.  The last
 * two layers have places that kept rows would mostly add to. */
MEMOI int memoi_rows_convert(memoi_rows_planner* p, const memoi_rows_pick* pick, int64_t count) {
    int64_t* cells = &p->trial.cells[(int64_t)pick->b * p->n_layers];
    const int64_t n = pick->n_layers;
    const int adds = pick->next == MEMO_ROWS_KEPT && !pick->more && memoi_rows_random(p, 4);
    const int32_t end = adds ? p->n_moved : p->n_layers;
    int64_t width, n_groups, i, of_group, rest;
    int32_t n_changed = 0;
    count = memob_min(count, n);
    if (count <= 0 || (p->is_uniform && count < n)) return 0;
    i = memoi_rows_random(p, n);
    width = !p->is_uniform && memoi_rows_random(p, 4) ? 1 + !memoi_rows_random(p, 3) : count;
    width = memob_min(width, count);
    count /= width;
    n_groups = (n + width - 1) / width;

    /* Group g is taken if g * count and (g + 1) * count have different quotients by n_groups.
     * Their rest is followed, because divisions for every layer are slow. */
    of_group = i % width + 1;
    rest = i / width * count % n_groups;
    for (int64_t k = 0; k < n && p->picked[k] < end; k++) {
        const int32_t layer = p->picked[k];
        int64_t next = pick->next;
        MEMO_ASSERT(!k || p->picked[k - 1] < layer); /* 1 */
        if (++i == n) i = of_group = rest = 0;
        if (of_group == width) {
            of_group = 0;
            rest += count - (rest + count >= n_groups ? n_groups : 0);
        }
        of_group++;
        if (rest + count < n_groups) continue;
        if (pick->more && cells[layer] == MEMO_ROWS_KEPT) continue;
        if (pick->more) next = memob_min(memob_max(cells[layer] + pick->more, 0), p->n_tiles);
        if (cells[layer] == next || !memoi_rows_is_valid(p, layer, pick->b, next)) continue;
        cells[layer] = next;
        p->changed[n_changed++] = layer;
    }
    if (!n_changed) return 0;
    p->n_changed = n_changed;
    p->trial.versions[pick->b] = ++p->n_versions;
    return 1;
}

/* Two layers of a bundle exchange cells, which takes about the same memory; 0: these layers may
 * not. */
MEMOI int memoi_rows_exchange(memoi_rows_planner* p, int32_t b) {
    const int32_t i = (int32_t)memoi_rows_random(p, p->n_layers);
    const int32_t k = (int32_t)memoi_rows_random(p, p->n_layers);
    int64_t* cells = &p->trial.cells[(int64_t)b * p->n_layers];
    const int64_t cell = cells[i];
    if (cell == cells[k] || !memoi_rows_is_valid(p, i, b, cells[k]) ||
        !memoi_rows_is_valid(p, k, b, cell))
        return 0;
    cells[i] = cells[k];
    cells[k] = cell;
    p->n_changed = 2;
    p->changed[0] = (int32_t)memob_min(i, k);
    p->changed[1] = (int32_t)memob_max(i, k);
    p->trial.versions[b] = ++p->n_versions;
    return 1;
}

/* Gives a cell of the trial another value; 0: the layer may not have it. */
MEMOI int memoi_rows_set_cell(memoi_rows_planner* p, int64_t at, int64_t next) {
    const int32_t b = (int32_t)(at / p->n_layers);
    if (!memoi_rows_is_valid(p, (int32_t)(at % p->n_layers), b, next)) return 0;
    p->trial.cells[at] = next;
    p->trial.versions[b] = ++p->n_versions;
    return 1;
}

/* Keeps the stalls of the latest trial that was timed, if one was in this change: of the table that
 * is taken, or, if that was known, of the same before its refit. */
MEMOI void memoi_rows_note_stalls(memoi_rows_planner* p) {
    const int32_t n_visits = p->clock.order.n_visits;
    if (!p->is_timed) return;
    p->stalled_s = 0;
    for (int32_t v = 0; v < n_visits; v++) p->stalled_s += p->stalls_s[v] = p->clock.stalls_s[v];
}

/* Moves less near a visit before which the step waits, the longer the more often: a cell there or a
 * few visits before, whose copies are in the way, is kept, recomputed, or a tile less; 0: nothing
 * is different. */
MEMOI int memoi_rows_relieve(memoi_rows_planner* p) {
    const memob_swap_placement* order = &p->clock.order;
    const int32_t before = (int32_t)memoi_rows_random(p, MEMOI_ROWS_RELIEVED);
    const int64_t which = memoi_rows_random(p, 3);
    int32_t b = (int32_t)memoi_rows_random(p, p->n_bundles), layer, n = p->n_bundles;
    double left_s = p->stalled_s * (double)memoi_rows_random(p, 1 << 20) / (1 << 20);
    const int64_t* cells = p->trial.cells;
    int64_t at, next;
    int32_t v = 0;
    while (v < order->n_visits - 1 && (left_s -= p->stalls_s[v]) >= 0) v++;
    layer = order->visits[(v + order->n_visits - before) % order->n_visits].layer;

    /* The next bundle that moves there. */
    while (n > 0 && cells[(int64_t)b * p->n_layers + layer] <= 0) b = (b + 1) % p->n_bundles, n--;
    if (!n) return 0;
    at = (int64_t)b * p->n_layers + layer;
    next = which ? MEMO_ROWS_KEPT : 0;
    if (which == 2) next = cells[at] - 1;
    if (!memoi_rows_set_cell(p, at, next)) return 0;
    p->n_changed = 1;
    p->changed[0] = layer;
    return 1;
}

/* Changes one bundle of the trial in one, some or all of the layers picked; 0: nothing is
 * different. */
MEMOI int memoi_rows_change(memoi_rows_planner* p) {
    const int is_any = !memoi_rows_random(p, 4);
    const int32_t other = (int32_t)memoi_rows_random(p, p->n_layers);
    memoi_rows_pick pick;
    if (p->stalled_s > 0 && !p->is_uniform && !memoi_rows_random(p, 3))
        return memoi_rows_relieve(p);
    memoi_rows_choose(p, is_any, 0, &pick);
    if (!p->is_uniform && !memoi_rows_random(p, 8)) return memoi_rows_exchange(p, pick.b);
    switch (memoi_rows_random(p, 4)) {
    case 0: pick.next = memoi_rows_random(p, p->n_tiles + 1); break;
    case 1: pick.next = p->trial.cells[(int64_t)pick.b * p->n_layers + other]; break;
    default: break;
    }
    switch (is_any || p->is_uniform || !pick.n_layers ? 2 : memoi_rows_random(p, 3)) {
    case 0: return memoi_rows_convert(p, &pick, 1);
    case 1: return memoi_rows_convert(p, &pick, 1 + memoi_rows_random(p, pick.n_layers));
    default: return memoi_rows_convert(p, &pick, pick.n_layers);
    }
}

/* Changes as many layers, or swaps as many more or fewer tiles in some layers, as the scored trial
 * has room for or lacks memory; 0: nothing is different. */
MEMOI int memoi_rows_refit(memoi_rows_planner* p) {
    const memo_swap_plan_desc* desc = p->desc;
    const memoi_rows_score* score = &p->trial.score;
    const int of_tiles = (int)memoi_rows_random(p, 2);
    const int is_same = p->n_changed && memoi_rows_random(p, 2);
    memoi_rows_pick pick;
    double least, most;
    memoi_rows_choose(p, of_tiles, is_same, &pick);
    most = (double)(of_tiles ? p->n_tiles : pick.n_layers);
    least = of_tiles ? -most : 0;

    /* A tile more in every layer takes two more of a region and one less to recompute.  With a file
     * more layers would spill. */
    for (int is_host = 0; is_host < (desc->spill_bytes ? 1 : 2); is_host++) {
        int64_t tiles = ((pick.next < 0) - (pick.cell < 0)) * p->n_tiles;
        const double capacity = (double)(is_host ? desc->host_bytes : desc->device_bytes);
        const double left =
            capacity - (is_host ? (double)score->sizes.host_bytes : score->device_bytes);
        double each;
        if (is_host) tiles = memob_max(pick.next, 0) - memob_max(pick.cell, 0);
        if (of_tiles) tiles = is_host ? pick.n_layers : 1;
        each = (double)(p->bundles[pick.b].row_bytes * memob_swap_tile_rows(desc->swap)) *
               (double)tiles;
        if (!(capacity > 0)) continue;
        p->meets_host |= is_host && ((each > 0 && floor(left / each) < most) ||
                                     (each < 0 && ceil(left / each) > least));
        if (each > 0) most = fmin(most, floor(left / each));
        if (each < 0) least = fmax(least, ceil(left / each));
    }
    if (!of_tiles) return memoi_rows_convert(p, &pick, (int64_t)(least > 0 ? least : most));
    pick.more = (int64_t)fmax(least, most);
    return pick.more && memoi_rows_convert(p, &pick, pick.n_layers);
}

/* Tries a change of p->here, and takes it if it is better, or longer by at most a share.
 * Otherwise nothing is undone: the next call copies p->here again.  memoi_rows_try takes the best
 * table. */
MEMOI void memoi_rows_try_change(memoi_rows_planner* p, double heat) {
    const memoi_rows_score *here = &p->here.score, *trial = &p->trial.score;
    int is_changed = 0;
    int64_t k;
    p->is_timed = 0;
    memoi_rows_set_enough(p, here, here->step_s * (1 + heat));
    memoi_rows_copy(p, &p->here, &p->trial);
    p->n_changed = 0;
    for (k = 1 + memoi_rows_random(p, 3); k > 0; k--) is_changed |= memoi_rows_change(p);
    if (is_changed) (void)memoi_rows_try(p);

    /* Another bundle takes the room that is left, or makes the room that lacks. */
    k = memoi_rows_random(p, 4) && trial->excess_bytes < MEMOI_ROWS_IMPOSSIBLE ? 4 : 0;
    while (k > 0 && !memoi_rows_refit(p)) k--;
    if (k > 0) (void)memoi_rows_try(p);
    if (memoi_rows_is_better(trial, here) ||
        (trial->excess_bytes <= 0 && trial->step_s <= here->step_s * (1 + heat))) {
        memoi_rows_copy(p, &p->trial, &p->here);
        memoi_rows_note_stalls(p);
    }
}

/* What a cell of the best table may become: kept, swapped, recomputed, a tile less or more. */
#define MEMOI_ROWS_NEXTS 5

/* Gives a cell of the trial another one of these; 0: the layer may not have it. */
MEMOI int memoi_rows_change_cell(memoi_rows_planner* p, int64_t change) {
    const int64_t at = change / MEMOI_ROWS_NEXTS, which = change % MEMOI_ROWS_NEXTS;
    const int64_t cell = p->trial.cells[at];
    const int64_t nexts[MEMOI_ROWS_NEXTS] = {MEMO_ROWS_KEPT, p->n_tiles, 0, cell - 1, cell + 1};
    const int64_t next = nexts[which];
    if (next == cell || (which > 2 && (next <= 0 || next >= p->n_tiles))) return 0;
    return memoi_rows_set_cell(p, at, next);
}

/* Tries the next change of one or two cells of p->best: first all alone, then all pairs, those of
 * near cells first.  *n_seen counts them from the last on that was better.  Returns 0 after all:
 * then the table is the best of those around it, of which a random walk may miss some.  Only small
 * tables come so far. */
MEMOI int memoi_rows_try_pair(memoi_rows_planner* p, int64_t* n_seen) {
    const int64_t n = MEMOI_ROWS_NEXTS * p->n_cells;
    memoi_rows_set_enough(p, &p->best.score, 0);
    for (int k = 0; k < 64 && *n_seen / n <= n / 2; k++) { /* those that may not be take time too */
        const int64_t one = *n_seen % n, apart = *n_seen / n, other = (one + apart) % n;
        ++*n_seen;
        if (apart && one / MEMOI_ROWS_NEXTS == other / MEMOI_ROWS_NEXTS) continue;
        memoi_rows_copy(p, &p->best, &p->trial);
        if (!memoi_rows_change_cell(p, one)) continue;
        if (apart && !memoi_rows_change_cell(p, other)) continue;
        if (memoi_rows_try(p)) *n_seen = 0;
        return 1;
    }
    return *n_seen / n <= n / 2;
}

/* Changes what tables may take.  What is known of them counts on, unless host memory is the number
 * of places in front of a file. */
MEMOI void memoi_rows_set_desc(memoi_rows_planner* p, const memo_swap_plan_desc* desc) {
    const int64_t places_bytes = p->desc->spill_bytes ? p->desc->host_bytes : 0;
    if (places_bytes != (desc->spill_bytes ? desc->host_bytes : 0)) p->times_version++;
    p->desc = p->clock.desc = desc;
}

/* A round of pairs, or of random changes.  It ends early if p->best is good enough, or the best of
 * all. */
MEMOI void memoi_rows_walk(memoi_rows_planner* p, int64_t* n_seen, double heat, int64_t n_trials) {
    const memoi_rows_score* best = &p->best.score;
    for (int64_t i = 0; i < n_trials; i++) {
        const double left = 1 - (double)i / (double)n_trials;
        if (p->aim.effort && best->excess_bytes <= 0) return;
        if (best->excess_bytes + best->stall_s + best->recompute_s + best->swapped_bytes +
                best->lifted_bytes <=
            0)
            return;
        if (!n_seen)
            memoi_rows_try_change(p, heat * left * left);
        else if (!memoi_rows_try_pair(p, n_seen))
            return;
    }
}

/* 1: a round has made p->best nearer to what fits, or shorter. */
MEMOI int memoi_rows_gains(const memoi_rows_planner* p, double excess_bytes, double step_s) {
    const memoi_rows_score* best = &p->best.score;
    if (best->excess_bytes > 0) return best->excess_bytes < excess_bytes;
    return excess_bytes > 0 || best->step_s < step_s * (1 - MEMOI_ROWS_GAIN);
}

/* Betters p->best in rounds, which begin with it, until several in turn gain nothing.
 *
 * Longer steps are accepted too, less and less in a round, and much longer ones in some rounds: a
 * table of few layers is far from others that are as good.  Tables that do not fit are accepted
 * only on the way from one that fits less.  Some rounds try pairs in turn.  In some rounds of a
 * whole search tables may take 1/16 or 1/8 less host memory than the best: a limit that is near
 * leads elsewhere.  n_parts: makes so small a part of the trials. */
MEMOI void memoi_rows_search(memoi_rows_planner* p, int n_parts) {
    static const double hotter[] = {0.03, 0.3, 3}; /* in rounds by turns */
    const memo_swap_plan_desc* wide = p->desc;
    const memob_states* states = p->clock.states;
    memo_swap_plan_desc narrow = *wide;
    const int64_t n_states = states ? (int64_t)states->n_layers * states->n_states : 0;
    const int64_t n_cells = (int64_t)p->clock.order.n_visits / 2 * p->desc->swap->n_tensors +
                            6 * n_states; /* three passes of two steps */
    const int64_t n_looks = memob_max(MEMOI_ROWS_LOOKS_MAX / n_cells, MEMOI_ROWS_TRIALS_LEAST);
    const int64_t n_most = memob_min(MEMOI_ROWS_TRIALS_MAX / n_parts, MEMOI_ROWS_TRIALS_WHOLE);
    const int64_t n_trials = memob_min(n_looks / n_parts, n_most) / MEMOI_ROWS_ROUNDS + 2;
    const int is_whole = n_parts == 1 && p->aim.effort == MEMOI_ROWS_EFFORT_WHOLE;
    const int most_quiet =
        n_looks < MEMOI_ROWS_TRIALS_WHOLE ? MEMOI_ROWS_QUIET_SHORT : MEMOI_ROWS_QUIET;
    int64_t n_seen = 0;

    for (int round = 0, n_quiet = 0;
         round < MEMOI_ROWS_ROUNDS && n_quiet < most_quiet && p->n_bundles; round++) {
        const double excess_bytes = p->best.score.excess_bytes, step_s = p->best.score.step_s;
        const double heat = memoi_rows_later(
            MEMOI_ROWS_HEAT, hotter[round % 3] * MEMOI_ROWS_HEAT_LAYER / p->n_layers);
        const int is_of_pairs = !p->is_uniform && round % MEMOI_ROWS_CYCLE == MEMOI_ROWS_CYCLE - 1;
        memoi_rows_copy(p, &p->best, &p->trial);
        narrow.host_bytes =
            p->best.score.sizes.host_bytes / 16 * (15 - round / MEMOI_ROWS_CYCLE % 2);
        if (is_whole && round % MEMOI_ROWS_CYCLE == 1 && excess_bytes <= 0 && narrow.host_bytes) {
            memoi_rows_set_desc(p, &narrow);
            memoi_rows_time_all(p);
            memoi_rows_score_trial(p);
        }
        memoi_rows_copy(p, &p->trial, &p->here);
        memoi_rows_walk(p, is_of_pairs ? &n_seen : NULL, heat, n_trials);
        if (p->desc != wide) memoi_rows_set_desc(p, wide);
        n_quiet = memoi_rows_gains(p, excess_bytes, step_s) ? 0 : n_quiet + 1;
    }
    memoi_rows_time_all(p);
}

/* The trial becomes the table of an alpha. */
MEMOI void memoi_rows_set_alpha(memoi_rows_planner* p, int64_t tiles) {
    memo_swap_desc swap = *p->desc->swap;
    swap.rows = NULL;
    swap.alpha = (double)tiles / (double)p->n_tiles;
    memoi_rows_take(p, &swap);
}

/* Tries all alphas of whole tiles if they are few; otherwise about 64, then some near the best.
 * Returns the tiles of the best, which p->best becomes. */
MEMOI int64_t memoi_rows_try_alphas(memoi_rows_planner* p) {
    int64_t low = 0, high = p->n_tiles, step = p->n_tiles / 64 + 1, best = 0;
    p->best.score.excess_bytes = MEMOI_ROWS_WORST;
    for (;; step = memob_max(step / 16, 1)) {
        for (int64_t k = low; k < high + step; k += step) {
            memoi_rows_set_alpha(p, memob_min(k, high));
            memoi_rows_set_enough(p, &p->best.score, 0);
            if (memoi_rows_try(p)) best = memob_min(k, high);
            memoi_rows_time_all(p);
        }
        if (step == 1) return best;
        low = memob_max(best - step, 0);
        high = memob_min(best + step, p->n_tiles);
    }
}

/* The trial becomes p->here with so many layers more of which the bundle has the next cell; 0:
 * nothing is different. */
MEMOI int memoi_rows_take_more(memoi_rows_planner* p, memoi_rows_pick* pick, int64_t count) {
    const int64_t* cells = &p->trial.cells[(int64_t)pick->b * p->n_layers];
    memoi_rows_copy(p, &p->here, &p->trial);
    pick->n_layers = 0;
    for (int32_t layer = 0; layer < p->n_layers; layer++)
        if (cells[layer] >= 0 && cells[layer] < p->n_tiles) p->picked[pick->n_layers++] = layer;
    return memoi_rows_convert(p, pick, count);
}

/* 1: one layer more exceeds the capacities.  Then so do several, but for all, whose buffer goes. */
MEMOI int memoi_rows_lacks_room(memoi_rows_planner* p, memoi_rows_pick* pick) {
    const uint64_t random = p->random;
    const int is_taken = memoi_rows_take_more(p, pick, 1);
    p->random = random;
    if (is_taken) (void)memoi_rows_try(p);
    return is_taken && p->trial.score.excess_bytes > 0;
}

/* p->here: from the trial on, bundles are swapped or kept instead of recomputed, those of most
 * worth first: in all layers; if that is not better, in half as many, and so on. */
MEMOI void memoi_rows_fill_by_worth(memoi_rows_planner* p) {
    memoi_rows_pick pick;
    memset(&pick, 0, sizeof pick);
    memoi_rows_copy(p, &p->trial, &p->here);
    for (int32_t i = 0; i < 2 * p->n_bundles; i++) {
        int is_full = 0, is_known = p->here.score.excess_bytes > 0; /* that it is full */
        pick.next = i % 2 ? MEMO_ROWS_KEPT : p->n_tiles;
        pick.b = p->by_worth[i / 2];
        for (int64_t count = p->n_layers; count > 0;) {
            memoi_rows_set_enough(p, &p->here.score, p->here.score.step_s);
            if (memoi_rows_take_more(p, &pick, count) && !is_full) (void)memoi_rows_try(p);
            if (!is_full && memoi_rows_is_better(&p->trial.score, &p->here.score)) {
                memoi_rows_copy(p, &p->trial, &p->here);
            } else {
                count /= 2;
                if (!is_known && p->trial.score.excess_bytes > 0)
                    is_known = 1, is_full = memoi_rows_lacks_room(p, &pick);
            }
            memoi_rows_time_all(p);
        }
    }
}

/* 1 if no table fits: the rows that cannot be recomputed exceed all budgets together. */
MEMOI int memoi_rows_is_hopeless(const memoi_rows_planner* p) {
    const memo_swap_plan_desc* desc = p->desc;
    double n_bytes = 0;
    if (!desc->device_bytes || !desc->host_bytes) return 0;
    for (int32_t b = 0; b < p->n_bundles; b++) {
        if (desc->swap->tensors[p->bundles[b].leader].scope == MEMO_CARRIED) continue;
        for (int32_t layer = 0; layer < p->n_layers; layer++) {
            const memoi_rows_rule rule = p->rules[(int64_t)b * p->n_layers + layer];
            if (rule == MEMOI_RULE_MOVE || rule == MEMOI_RULE_KEEP)
                n_bytes += (double)p->bundles[b].row_bytes *
                           (double)memob_swap_rows_of_tiles(desc->swap, layer, p->n_tiles);
        }
    }
    return n_bytes >
           (double)desc->device_bytes + (double)desc->host_bytes + (double)desc->spill_bytes;
}

/* p->best: the best table found, from the best so far, or from a table that needs little memory:
 * all is recomputed; what cannot be is kept or swapped. */
MEMOI void memoi_rows_find_table(memoi_rows_planner* p, int n_parts) {
    for (int way = 1; way >= 0; way--) {
        for (int64_t i = 0; i < p->n_bundles; i++) p->trial.versions[i] = ++p->n_versions;
        for (int64_t i = 0; i < p->n_cells; i++) {
            int64_t cell = MEMO_ROWS_KEPT;
            if (p->rules[i] == MEMOI_RULE_MOVE && !way) cell = p->n_tiles;
            if (memoi_rule_recomputes(p->rules[i])) cell = 0;
            p->trial.cells[i] = cell;
        }
        (void)memoi_rows_try(p);
    }
    if (memoi_rows_is_hopeless(p)) p->meets_host = 1;
    if (memoi_rows_is_hopeless(p) || (p->aim.effort && p->best.score.excess_bytes <= 0)) return;
    memoi_rows_fill_by_worth(p);
    memoi_rows_search(p, n_parts);
}

/* --- >>row limits ---
 * memo_plan_swap.  Knows: which searches make a plan, the name of what limits its step, and what a
 * refused plan lacks.  Knows nothing of how a search changes a table, or holds it to the budgets:
 * see memoi_rows_weigh, memoi_rows_refit and memoi_rows_is_hopeless.
 *
 * A new limit is a value of memo_swap_limit, a case of memoi_rows_widen, and a place in both lists
 * of limits and in the names below. */

/* A search makes so small a part of the trials if choices are ranked, if all layers of a kind
 * have the same rows, if limits are ranked, or if the gain is stated. */
#define MEMOI_ROWS_PARTS_RANKED  32
#define MEMOI_ROWS_PARTS_UNIFORM 16
#define MEMOI_ROWS_PARTS_LIMITS  128
#define MEMOI_ROWS_PARTS_STATED  16

/* Makes one limit a tenth wider, or (is_all) as wide as may be: a link twice as fast.  0: it is no
 * limit. */
MEMOI int memoi_rows_widen(memo_swap_plan_desc* desc, memob_rates* rates, memo_swap_limit limit,
                           int is_all) {
    const double factor = is_all ? 2 : 1.1;
    int64_t* capacity =
        limit == MEMO_SWAP_LIMIT_HOST_MEMORY ? &desc->host_bytes : &desc->device_bytes;

    switch (limit) {
    case MEMO_SWAP_LIMIT_BANDWIDTH:
        rates->copy_s /= factor;
        rates->bytes_per_s[0][0] *= factor;
        rates->bytes_per_s[0][1] *= factor;
        return rates->bytes_per_s[0][0] > 0 || rates->bytes_per_s[0][1] > 0;
    case MEMO_SWAP_LIMIT_DISK:
        rates->bytes_per_s[1][0] *= factor;
        rates->bytes_per_s[1][1] *= factor;
        rates->fetch_s_per_byte /= factor;
        return desc->spill_bytes > 0 ||
               (desc->states && desc->states->trainer.fetch && rates->fetch_s_per_byte > 0);
    case MEMO_SWAP_LIMIT_UPDATE:
        rates->update_host_s_per_byte /= factor;
        return desc->states && desc->states->trainer.update_host &&
               rates->update_host_s_per_byte > 0;

    case MEMO_SWAP_LIMIT_HOST_MEMORY:
    case MEMO_SWAP_LIMIT_DEVICE_MEMORY:
        if (!*capacity) return 0;
        *capacity = is_all || *capacity > MEMOB_BYTES_MAX / 2 ? 0 : *capacity + *capacity / 10 + 1;
        return 1;
    default: return 0;
    }
}

/* The share of the step that a wider limit saves, as far as so many passes from the plan find it.
 * p->best becomes that table. */
MEMOI double memoi_rows_lift(memoi_rows_planner* p, memo_swap_limit limit, int is_all,
                             int n_parts) {
    const memo_swap_plan_desc* desc = p->desc;
    const memoi_rows_score* best = &p->best.score;
    const memob_rates rates = p->clock.rates;
    memo_swap_plan_desc wider = *desc;
    memob_rates faster = rates;
    if (!memoi_rows_widen(&wider, &faster, limit, is_all)) return 0;
    p->desc = &wider;
    p->clock.rates = faster;
    p->lifted = limit;
    memoi_rows_time_kinds(p);
    if (p->aim.is_alpha)
        (void)memoi_rows_try_alphas(p);
    else {
        p->best.score.excess_bytes = MEMOI_ROWS_WORST;
        memoi_rows_copy(p, &p->plan, &p->trial);
        (void)memoi_rows_try(p);
        if (n_parts == MEMOI_ROWS_PARTS_STATED) memoi_rows_fill_by_worth(p);
        memoi_rows_search(p, n_parts);
    }
    p->desc = desc;
    p->clock.rates = rates;
    p->lifted = MEMO_SWAP_LIMIT_NONE;
    memoi_rows_time_kinds(p);
    return best->excess_bytes > 0 ? 0 : 1 - best->step_s / p->plan.score.step_s;
}

/* The reason if no limit is found.  other: if the step stalls or recomputes. */
MEMOI void memoi_rows_name_none(memo_swap_plan* plan, const char* other) {
    const double least_s = 1e-3 * plan->step_s;
    snprintf(plan->reason, sizeof plan->reason, "%s",
             plan->stall_s < least_s && plan->recompute_s < least_s
                 ? "nothing limits the step: every copy is hidden behind the computation, and "
                   "nothing is recomputed"
                 : other);
}

/* A limit that is a rate.  saved: by twice as much, as a share of the step. */
MEMOI void memoi_rows_name_rate(memo_swap_plan* plan, memo_swap_limit limit, double saved) {
    static const char* const names[] = {
        "", "bandwidth is the limit; a link", "",
        "", "the disk is the limit; one",     "the update on the host is the limit; one"};
    MEMOB_TABLE_OF(MEMO_N_SWAP_LIMITS, names);
    plan->limit = limit;
    snprintf(plan->reason, sizeof plan->reason, "%s twice as fast would save %.2g%% of the step",
             names[limit], 100 * saved);
}

/* Names the rate that limits the step of given rows, if one does. */
MEMOI void memoi_rows_name_given(memoi_rows_planner* p, memo_swap_plan* plan) {
    static const memo_swap_limit limits[] = {MEMO_SWAP_LIMIT_BANDWIDTH, MEMO_SWAP_LIMIT_DISK,
                                             MEMO_SWAP_LIMIT_UPDATE};
    const memo_swap_plan_desc* desc = p->desc;
    const memob_rates rates = p->clock.rates;
    double most = MEMOI_ROWS_GAIN;
    memoi_rows_name_none(plan, "no rate: a faster link alone would save nothing with these rows");
    for (size_t i = 0; i < sizeof limits / sizeof *limits && plan->step_s > 0; i++) {
        memo_swap_plan_desc wider = *desc;
        double saved = 0;
        p->clock.rates = rates;
        if (!memoi_rows_widen(&wider, &p->clock.rates, limits[i], 1)) continue;
        p->desc = &wider;
        memoi_rows_time_kinds(p);
        memoi_rows_score_trial(p);
        saved = 1 - p->trial.score.step_s / plan->step_s;
        if (saved > most) memoi_rows_name_rate(plan, limits[i], most = saved);
    }
    p->desc = desc;
    p->clock.rates = rates;
    memoi_rows_time_kinds(p);
}

/* Names the limit of which a tenth more saves most, and what the plan would gain without that
 * limit.  If a tenth saves nothing (whole tensors), names the limit that costs most altogether. */
MEMOI void memoi_rows_name_limit(memoi_rows_planner* p, memo_swap_plan* plan) {
    static const memo_swap_limit limits[] = {
        MEMO_SWAP_LIMIT_HOST_MEMORY, MEMO_SWAP_LIMIT_DEVICE_MEMORY, MEMO_SWAP_LIMIT_BANDWIDTH,
        MEMO_SWAP_LIMIT_DISK, MEMO_SWAP_LIMIT_UPDATE};
    MEMOB_TABLE_OF(MEMO_N_SWAP_LIMITS - 1, limits); /* all but NONE */
    memo_swap_limit limit = MEMO_SWAP_LIMIT_NONE;
    double saved, most = 5e-5;
    char bytes[32];

    memoi_rows_name_none(plan, "no single limit: more of one memory alone, or a faster link alone, "
                               "would save nothing");
    if (!p->n_bundles || plan->step_s <= 0) return;
    memoi_rows_copy(p, &p->best, &p->plan);

    /* A tenth more of each limit first; then the limit lifted altogether. */
    for (int is_all = 0; is_all < 2 && limit == MEMO_SWAP_LIMIT_NONE; is_all++, most = 5e-4) {
        for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
            saved = memoi_rows_lift(p, limits[i], is_all, MEMOI_ROWS_PARTS_LIMITS);
            if (saved <= most) continue;
            most = saved;
            limit = limits[i];
        }
    }
    if (limit == MEMO_SWAP_LIMIT_NONE) return;

    /* State the gain of the whole plan, which the estimate above only ranks. */
    saved = memoi_rows_lift(p, limit, 1, MEMOI_ROWS_PARTS_STATED);
    if (saved < MEMOI_ROWS_GAIN) return;
    plan->limit = limit;
    if (limit != MEMO_SWAP_LIMIT_HOST_MEMORY && limit != MEMO_SWAP_LIMIT_DEVICE_MEMORY)
        memoi_rows_name_rate(plan, limit, saved);
    else
        snprintf(plan->reason, sizeof plan->reason,
                 "%s is the limit; %s more would save %.2g%% of the step",
                 limit == MEMO_SWAP_LIMIT_HOST_MEMORY ? "host memory" : "device memory",
                 memob_bytes_text(bytes, memoi_rows_excess(limit == MEMO_SWAP_LIMIT_HOST_MEMORY
                                                               ? p->desc->host_bytes
                                                               : p->desc->device_bytes,
                                                           p->best.score.lifted_bytes)),
                 100 * saved);
}

/* Fails with the memory that the nearest plan lacks. */
MEMOI memo_status memoi_rows_refuse(memoi_rows_planner* p, memo_error* error) {
    static const char* const names[] = {"device memory", "host memory", "the disk"};
    MEMOB_TABLE_OF(MEMO_N_TIERS, names);
    const int64_t there_bytes[] = {p->desc->device_bytes, p->desc->host_bytes,
                                   p->desc->spill_bytes};
    MEMOB_TABLE_OF(MEMO_N_TIERS, there_bytes);
    const memoi_rows_score* score = &p->best.score;
    double needed_bytes[MEMO_N_TIERS];
    char needed[32], there[32];
    int which = 0;

    /* Without a usable table, score alpha 0, which recomputes most. */
    if (p->aim.is_alpha || score->excess_bytes >= MEMOI_ROWS_IMPOSSIBLE) {
        memoi_rows_set_alpha(p, 0);
        memoi_rows_score_trial(p);
        score = &p->trial.score;
    }

    /* Name the first budget that is exceeded; host memory if none is. */
    needed_bytes[MEMO_TIER_DEVICE] = score->device_bytes;
    needed_bytes[MEMO_TIER_HOST] = (double)score->sizes.host_bytes;
    needed_bytes[MEMO_TIER_FILE] = (double)score->sizes.spill_bytes;
    while (which < MEMO_N_TIERS && memoi_rows_excess(there_bytes[which], needed_bytes[which]) <= 0)
        which++;
    if (which == MEMO_N_TIERS) which = MEMO_TIER_HOST;
    return memo_error_set(error, MEMO_STATUS_INFEASIBLE,
                          "%s: %s needs %s of %s; raise the budget, or lower n_rows", names[which],
                          p->aim.is_alpha ? "the plan with alpha 0" : "the smallest plan found",
                          memob_bytes_text(needed, needed_bytes[which]),
                          memob_bytes_text(there, (double)there_bytes[which]));
}

/* The predicted times and bytes. */
MEMOI void memoi_rows_tell(const memo_swap_plan_desc* desc, const memoi_rows_score* score,
                           memo_swap_plan* plan) {
    const int32_t n = memob_rows_n_batches(desc);
    plan->step_s = score->step_s;
    plan->micro_batch_s =
        (score->step_s - score->update_s) / n / (double)memob_max(desc->swap->n_group, 1);
    plan->update_s = score->update_s;
    plan->stall_s = score->stall_s;
    plan->recompute_s = score->recompute_s * n;
    plan->device_bytes = (int64_t)score->device_bytes;
    plan->host_bytes = score->sizes.host_bytes;
    plan->swapped_bytes = (int64_t)score->swapped_bytes;
    plan->spill_bytes = score->sizes.spill_bytes;
    plan->to_host_bytes = (int64_t)score->copied_bytes[0];
    plan->to_device_bytes = (int64_t)score->copied_bytes[1];
    plan->n_spilled_layers = score->sizes.n_spilled_layers;
    plan->n_host_layers = score->n_host_layers;
}

/* Tries these rows, (n_layers, n_tensors), which may become the best; NULL: none. */
MEMOI void memoi_rows_try_given(memoi_rows_planner* p, const int64_t* rows) {
    memo_swap_desc swap = *p->desc->swap;
    swap.rows = rows;
    if (!rows) return;
    memoi_rows_take(p, &swap);
    (void)memoi_rows_try(p);
}

/* Searches of so many parts, from p->best on, which becomes the best of their tables.  A whole
 * search begins with tables of equal rows in all layers of a kind, of which there are fewer. */
MEMOI void memoi_rows_find_tables(memoi_rows_planner* p, int n_parts) {
    p->is_uniform = n_parts == 1;
    if (p->is_uniform) memoi_rows_find_table(p, MEMOI_ROWS_PARTS_UNIFORM);
    p->is_uniform = 0;
    memoi_rows_try_given(p, p->aim.start);
    memoi_rows_find_table(p, n_parts);
}

/* The same without the host's limit, from p->first on.  Returns 0 if the table exceeds it. */
MEMOI int memoi_rows_find_wide(memoi_rows_planner* p, int n_parts) {
    const memo_swap_plan_desc* desc = p->desc;
    const memoi_rows_score* best = &p->best.score;
    memo_swap_plan_desc wider = *desc;
    wider.host_bytes = wider.spill_bytes = 0;
    memoi_rows_copy(p, &p->first, &p->best);
    p->random = MEMOI_ROWS_SEED;
    memoi_rows_set_desc(p, &wider);
    memoi_rows_find_tables(p, n_parts);
    memoi_rows_set_desc(p, desc);
    return best->excess_bytes <= 0 && best->sizes.host_bytes <= desc->host_bytes;
}

/* 1: a table fits, and leaves enough of the host's limit that it may be found without. */
#define MEMOI_ROWS_NEAR 0.9375
MEMOI int memoi_rows_has_room(const memoi_rows_planner* p, const memoi_rows_score* score) {
    return score->excess_bytes <= 0 &&
           (double)score->sizes.host_bytes <= MEMOI_ROWS_NEAR * (double)p->desc->host_bytes;
}

/* The best table from p->best on.  A search goes elsewhere near the host's limit, even if its table
 * leaves host memory free; so plans of two budgets would differ by chance, and the table that is
 * found without the limit counts, if it takes no more.  A short search without tells whether a
 * whole one is worth its time.  A short one itself is not, if the limit has not mattered, or if the
 * table with it takes nearly all. */
MEMOI void memoi_rows_find_best(memoi_rows_planner* p, int n_parts) {
    const int has_room = p->desc->host_bytes && !p->aim.effort;
    memoi_rows_copy(p, &p->best, &p->first);
    if (has_room && n_parts == 1 && memoi_rows_find_wide(p, MEMOI_ROWS_PARTS_RANKED) &&
        memoi_rows_find_wide(p, 1))
        return;
    memoi_rows_copy(p, &p->first, &p->best);
    p->random = MEMOI_ROWS_SEED;
    p->meets_host = 0;
    memoi_rows_find_tables(p, n_parts);
    if (n_parts == 1 || !p->meets_host || !has_room || !memoi_rows_has_room(p, &p->best.score))
        return;
    memoi_rows_copy(p, &p->best, &p->plan);
    if (!memoi_rows_find_wide(p, n_parts)) memoi_rows_copy(p, &p->plan, &p->best);
}

MEMOI memo_status memoi_rows_plan(memoi_rows_planner* p, memo_swap_plan* plan, memo_error* error) {
    const memo_swap_desc* swap = p->desc->swap;
    const int64_t tiles = memoi_rows_try_alphas(p);
    const memoi_rows_score alpha = p->best.score;
    plan->alpha = -1;
    if (alpha.excess_bytes <= 0) {
        plan->alpha = (double)tiles / (double)p->n_tiles; /* whatever the last tile has */
        plan->alpha_step_s = alpha.step_s;
    }

    /* A table is used only if it is better than the best alpha, which is simpler. */
    if (!p->aim.is_alpha)
        memoi_rows_find_best(p, p->aim.effort == MEMOI_ROWS_EFFORT_SHORT ? MEMOI_ROWS_PARTS_RANKED
                                                                         : 1);
    if (p->best.score.excess_bytes > 0) return memoi_rows_refuse(p, error);
    if (memoi_rows_is_better(&p->best.score, &alpha)) {
        plan->rows =
            (int64_t*)memob_calloc((int64_t)p->n_layers * swap->n_tensors, sizeof(int64_t));
        if (!plan->rows) return memob_no_memory(error, "the rows of a plan");
        memoi_rows_fill(p, p->best.cells, plan->rows);
    }
    memoi_rows_tell(p->desc, &p->best.score, plan);
    return MEMO_STATUS_OK;
}

/* Destroys a planner.  A search that lacked memory has failed: other ranks may have found other
 * tables. */
MEMOI memo_status memoi_rows_end(memoi_rows_planner* p, memo_status status, memo_error* error) {
    if (p->lacks_memory) status = memob_no_memory(error, "the times of a step");
    memoi_rows_destroy(p);
    return status;
}

/* A step in which all rows stay on the device, whatever that takes.  No other is shorter, but for
 * the thousandth by which a steady step may be off. */
MEMOI double memoi_rows_bound(memoi_rows_planner* p) {
    const memo_swap_plan_desc* desc = p->desc;
    memo_swap_plan_desc without = *desc;
    without.device_bytes = without.host_bytes = without.spill_bytes = 0;
    memoi_rows_set_desc(p, &without);
    for (int32_t b = 0; b < p->n_bundles; b++) p->trial.versions[b] = ++p->n_versions;
    for (int64_t i = 0; i < p->n_cells; i++) p->trial.cells[i] = MEMO_ROWS_KEPT;
    memoi_rows_score_trial(p);
    memoi_rows_set_desc(p, desc);
    return p->trial.score.excess_bytes > 0 ? 0 : (1 - MEMOI_ROWS_AS_LATE) * p->trial.score.step_s;
}

/* Sets the seconds of a step, as far as a short search finds them, or with rows, of these; infinite
 * if nothing fits; a bound of them, without a search, if that is longer than aim->other_s.  The
 * whole search saves a few percent more, and has an effort.  Two searches that begin with the same
 * rows differ less by chance.  found: the rows of such a search; NULL: they are not wanted. */
MEMOI memo_status memoi_rows_rank(const memo_swap_plan_desc* desc, const memoi_rows_aim* aim,
                                  int64_t* found, double* step_s, memo_error* error) {
    memoi_rows_planner p;
    const memo_status status = memoi_rows_create(desc, &p, error);
    const memoi_rows_score* score = &p.best.score;
    double least_s = 0;
    *step_s = HUGE_VAL;
    if (status) return status;
    p.best.score.excess_bytes = MEMOI_ROWS_WORST;
    if (aim->other_s > 0) least_s = memoi_rows_bound(&p);
    if (least_s > aim->other_s) {
        *step_s = least_s;
        return memoi_rows_end(&p, status, error);
    }
    if (desc->swap->rows)
        memoi_rows_try_given(&p, desc->swap->rows);
    else if (aim->is_alpha)
        (void)memoi_rows_try_alphas(&p);
    else {
        p.aim.start = aim->start;
        memoi_rows_find_best(&p, MEMOI_ROWS_PARTS_RANKED);
        if (found) memoi_rows_fill(&p, p.best.cells, found);
    }
    if (score->excess_bytes <= 0) *step_s = score->step_s;
    return memoi_rows_end(&p, status, error);
}

/* Names the limit of a plan that this planner has found, or another: the text is the same. */
MEMOI void memoi_rows_name_found(memoi_rows_planner* p, memo_swap_plan* plan) {
    memo_swap_desc swap = *p->desc->swap;
    swap.rows = plan->rows;
    swap.alpha = plan->rows ? 0 : plan->alpha;
    p->random = MEMOI_ROWS_SEED;
    memoi_rows_time_kinds(p); /* scores are not known any more */
    memoi_rows_take(p, &swap);
    memoi_rows_score_trial(p);
    memoi_rows_copy(p, &p->trial, &p->best);
    memoi_rows_name_limit(p, plan);
}

/* The same alone, for a caller who compares plans, and names the limit of one. */
MEMOI memo_status memoi_rows_name(const memo_swap_plan_desc* desc, const memoi_rows_aim* aim,
                                  memo_swap_plan* plan, memo_error* error) {
    memoi_rows_planner p;
    const memo_status status = memoi_rows_create(desc, &p, error);
    if (status) return status;
    p.aim = *aim;
    p.aim.effort = MEMOI_ROWS_EFFORT_WHOLE;
    memoi_rows_name_found(&p, plan);
    return memoi_rows_end(&p, status, error);
}

/* A plan for rows that are given always has its limit's name. */
MEMOI memo_status memoi_rows_make_plan(const memo_swap_plan_desc* desc, const memoi_rows_aim* aim,
                                       memo_swap_plan** plan, memo_error* error) {
    memoi_rows_planner p;
    memo_status status;
    *plan = NULL;
    status = memoi_rows_create(desc, &p, error);
    if (status) return status;
    p.aim = *aim;
    *plan = (memo_swap_plan*)memob_calloc(1, sizeof(memo_swap_plan));
    if (!*plan)
        status = memob_no_memory(error, "a plan of rows");
    else if (desc->swap->rows) { /* only the times of these rows */
        memoi_rows_take(&p, desc->swap);
        memoi_rows_score_trial(&p);
        (*plan)->alpha = -1;
        memoi_rows_tell(desc, &p.trial.score, *plan);
        memoi_rows_name_given(&p, *plan);
    } else {
        status = memoi_rows_plan(&p, *plan, error);
        if (!status && aim->is_named) memoi_rows_name_found(&p, *plan);
    }
    status = memoi_rows_end(&p, status, error);
    if (status) {
        memo_swap_plan_destroy(*plan);
        *plan = NULL;
    }
    return status;
}

memo_status memo_plan_swap(const memo_swap_plan_desc* desc, memo_swap_plan** plan,
                           memo_error* error) {
    const memoi_rows_aim aim = {MEMOI_ROWS_EFFORT_WHOLE, 0, 1, NULL, 0};
    MEMOB_REFUSE_NULL(error, "plan", plan);
    *plan = NULL;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    return memoi_rows_make_plan(desc, &aim, plan, error);
}

/* ---- 4 session ----------------------------------------------------------------------------------
 * Knows: budgets, the chapters above, memo.h's arena and swap engine.  Knows nothing of how rows or
 * offsets are found.
 *
 * A session object is made of a desc, whether it is opened or a planner needs it for a call. */

/* What is timed of a step. */
enum {
    MEMOI_SPAN_UPDATE = 0, /* of a layer, at its first step */
    MEMOI_SPAN_FORWARD,
    MEMOI_SPAN_BETWEEN, /* of the last step alone */
    MEMOI_SPAN_BACKWARD,
    MEMOI_SPAN_TENSOR, /* recomputation of tensor 0; tensor t has MEMOI_SPAN_TENSOR + t */
    MEMOI_SPAN_UPDATE_FIRST = MEMOI_SPAN_TENSOR + MEMO_PROFILE_TENSORS_MAX, /* at step 0 */
    MEMOI_SPAN_UPDATE_LAST,                                                 /* likewise */
    /* No time: bytes that were copied beside the layer's forward, and beside its backward;
     * negative: to the device.  See >>session slowing. */
    MEMOI_SPAN_BESIDE,
    MEMOI_SPANS_MAX = MEMOI_SPAN_BESIDE + 2
};
static const int32_t memoi_span_of_pass[] = {-1, MEMOI_SPAN_FORWARD, MEMOI_SPAN_BETWEEN,
                                             MEMOI_SPAN_BACKWARD, -1}; /* -1: none */
MEMOB_TABLE_OF(MEMO_N_PASSES, memoi_span_of_pass);

/* 1: of the computation of a layer. */
MEMOI int memoi_span_is_of_layer(int64_t span) {
    return span == MEMOI_SPAN_FORWARD || span == MEMOI_SPAN_BACKWARD;
}

#define MEMOI_SESSION_REPETITIONS 11 /* micro-batches that are timed */

/* Measures a span, or a part of one. */
typedef struct memoi_timer {
    memo_event events[2]; /* of begin and end */
    double* span_s;       /* to be added to, once the device is so far; NULL: none */
    double scale;         /* of what is added */
} memoi_timer;
#define MEMOI_TIMERS_MAX 4096

/* Copies that are only there to find how much copies slow computation: >>session slowing. */
typedef struct memoi_slowing {
    memob_engine engine; /* its streams, and memory for a copy on the host */
    memo_event event;
    int64_t n_bytes; /* of a copy; 0: it is not measured */
    int64_t at;      /* of a copy in the session's device memory */
    int32_t is_open; /* 1, 2: the open layer has copies to the host, to the device */
} memoi_slowing;

/* A plan with the memory that its desc points to. */
typedef struct memoi_step_plan {
    memo_step_plan plan; /* first */
    memo_item tensors[MEMO_PROFILE_TENSORS_MAX];
    char names[MEMO_PROFILE_TENSORS_MAX][sizeof((memo_profile_tensor*)NULL)->name];
    memob_arrays arrays; /* order, and what swap points to */
} memoi_step_plan;

/* A buffer of a checked session, see >>session checked. */
typedef struct memoi_checked_buffer {
    void* address;       /* the arena's; NULL: it has ended */
    const char* name;    /* NULL: requested by the trainer */
    int64_t at, n_bytes; /* in the memory of buffers */
} memoi_checked_buffer;

typedef struct memoi_checked {
    memob_engine engine; /* copies on the compute stream, or on its own if the thread computes */
    memo_stream stream;  /* the engine's */
    char* slots;         /* on the device; two, and room behind them for what overflows; NULL: the
                            session is not checked */
    char* image;         /* of a slot, pinned; behind it is room for a copy */
    memo_row_content* found; /* of rows: what memoi_checked_view has seen last */
    memo_row_content* seen;  /* the same on the device; NULL: the device has no `inspect` */
    int64_t slot_bytes;
    int64_t* offsets; /* (n_tensors + 1), of rows in a slot; the last: the end of the slot */
    uint64_t* hashes; /* (n_steps, n_tensors, most_rows) */
    int64_t most_rows;
    uint32_t kinds;    /* bit k: recomputation of a layer of kind k is tested */
    int32_t n_trained; /* micro-batches with a backward, without an error */
    int32_t is_moved;  /* 1: slots and halves have changed places */
    uint64_t* states;  /* (engine's layers, n_states): hashes, MEMOI_HASH_ZERO, or 0: not known */
    /* Of the states of open visits, with guards, on the device: two halves, which take turns. */
    char* states_memory;
    int64_t states_bytes; /* of a half */
    int64_t guard_bytes;  /* behind each state */
    int64_t* states_at;   /* (n_states): where a state lies, in either half by turns */
    uint64_t* guards;     /* (n_states): hashes of the guards */
    int32_t* lies_of;     /* (n_states): 1 + the engine's layer whose state lies there; 0: none */
    int32_t* n_open;      /* (n_states): layers that are open, and use what lies there */
    int is_swept;         /* all else there is poison */
    int32_t n_updated;    /* layers that this update has changed */
    int32_t n_missed; /* 1 + the engine's layer that it has not, though its gradients are not 0 */
    char* memory;     /* of buffers, on the device */
    int64_t memory_bytes, n_buffers;
    memoi_checked_buffer* buffers; /* of this micro-batch, in the order of their requests */
    memob_arrays arrays;           /* offsets, hashes, buffers */
} memoi_checked;

/* What a watcher of a checked session is told of, when it begins and when it ends. */
typedef enum memob_watched {
    MEMOB_WATCH_RECOMPUTATION, /* of every tensor of a step, whatever the plan */
    MEMOB_WATCH_FORWARD_ALONE, /* a micro-batch without a backward */
    MEMOB_WATCH_FORWARD,       /* of a step, which is still open; its end alone */
    MEMOB_WATCH_BACKWARD,      /* likewise; its rows are there */
    MEMOB_WATCH_UPDATE,        /* on the device, of an engine's layer, whose states are there */
    MEMOB_WATCH_STEP           /* of states: it is over, and its update is due; its begin alone */
} memob_watched;

/* Calls between two micro-batches. */
typedef enum memoi_states_call {
    MEMOI_CALL_UPDATE,
    MEMOI_CALL_SKIP_UPDATE,
    MEMOI_CALL_FLUSH,
    MEMOI_CALL_FILL_STATES,
    MEMOI_CALL_SET_UPDATE_VALUES,
    MEMOI_CALL_SLEEP,
    MEMOI_CALL_SNAPSHOT,
    MEMOI_N_CALLS
} memoi_states_call;

/* A session that times its first steps: >>session timing. */
typedef struct memoi_timing {
    void (*plan)(memo_session* s); /* by the spans of the steps so far; NULL: nothing is timed */
    memo_policy policy;            /* with n_group: the caller's, for another plan */
    int32_t n_group;
    int32_t due;               /* the step, from 0 on, before which to plan */
    int32_t n_ended;           /* training steps, while some are timed */
    int32_t n_skipped;         /* of all training steps */
    int64_t n_batches;         /* micro-batches with a backward that have begun */
    int is_open;               /* a micro-batch that is timed has begun and not ended */
    double host_s, host_bytes; /* of updates on the host */
    memoi_slowing slowing;
    void* kept;             /* states of the device, while they move; NULL: none */
    memo_profile* profiles; /* (n_shapes); until times are known: of copies, in the first */
    int is_known;           /* profiles has times */
    int is_lost;            /* neither plan could be opened */
    char why[200];          /* the first plan stays; "": it does not */
} memoi_timing;

/* What a shape has of its own. */
typedef struct memoi_session_part {
    memo_step_plan* plan; /* the stage, or the plan that is open, which is never written to */
    memob_swap_placement placement;
    memo_arena* arena;
    memo_swap* swap;
    memob_step* step; /* of the states, of the engine, or own_step: where the trainer is */
    memob_step own_step;
    memob_sink own_sink;
    char* base;       /* of the engine's device memory */
    uint8_t* skipped; /* (n_steps): 1: memo_session_skip_layer was called in the latest forward */
    double* spans_s;  /* of a session that times its steps */
    int32_t n_timed;  /* repetitions of them */
} memoi_session_part;

struct memo_session {
    memo_session_desc desc; /* the caller's, with all ranks' budgets; slice_rows: 1 to n_rows */
    void* buffer_addresses[MEMO_SESSION_BUFFERS_MAX];
    const memo_device* device;
    memo_device* own_device;
    memo_step_plan* own_plan; /* which it destroys; NULL: the caller's */

    /* Shapes, which share memory, and the current one.  A slice of a layer is a *step*; without
     * slices a layer is one.  Public functions and callbacks get layers. */
    memoi_session_part parts[MEMO_SHAPES_MAX], *part;
    const memo_swap_desc* steps;           /* of the current plan */
    int32_t n_steps, n_slices, n_of_batch; /* of a layer: slices, and those of a micro-batch */
    int64_t most_steps;                    /* of the shape with the most */
    /* With an order, layer l begins with step place * n + l * n_slices % n.  This turn computes
     * n_turn_steps steps from first_step on, layers from first_layer on.  Without an order: every
     * step. */
    int32_t n_turn_steps, first_step, first_layer;
    int32_t next_turn; /* 0: no micro-batch is in flight */

    /* Running. */
    int is_open;                       /* arenas have memory; 0: a plan is being made */
    void *device_memory, *host_memory; /* of all shapes */
    int64_t memory_bytes;              /* of device_memory */
    char* kept_bytes;         /* of the device, while the session sleeps; NULL: it is awake */
    memo_stream sleep_stream; /* of the first sleep on: copies these bytes */
    uintptr_t slept_at;       /* the device memory before that */
    memoi_timing timing;

    /* States.  The engine's layer 0 is FIRST, then come the session's, then LAST. */
    memob_states_desc states_desc; /* of the stage or the plan that is open */
    memob_states_sizes states_sizes;
    uint32_t *streamed, *spilled; /* (n_layers + 2); NULL: the session has no states */
    memob_states* states;
    memo_snapshot_desc snapshot; /* the latest */
    int is_filling;              /* memo_session_fill_states is under way */
    int is_fused;                /* the latest micro-batch has updated all layers */
    int is_part;                 /* the micro-batch adds to gradients of earlier ones */
    int is_again;                /* these are lost, and the step has not been dropped */
    int32_t n_rounds_taken;      /* how often steps of another number of micro-batches were taken */
    char lost[96];               /* why layers are of different steps; "": they are not */
    int64_t* whole;              /* (n_layers + 2, n_states, 2): bytes that were set since then */
    uint32_t* masks;       /* (n_layers + 2): states that the step's first micro-batch has named */
    int is_deferred;       /* the update that runs finds values[1] */
    int has_update_values; /* values[1] are of the update that comes next */
    union {
        double align;
        char bytes[MEMO_BATCH_VALUES_MAX];
    } values[2];       /* of this micro-batch; of pending updates */
    memob_arrays kept; /* as long as the session: copies of the desc, kinds, profiles */

    memo_error failure;    /* the first of the call that plans or opens */
    int all_failed;        /* it is every rank's, and no rank waits for another */
    memo_error error;      /* the first of this micro-batch */
    int is_reported;       /* a call has returned this error; the next error takes its place */
    memo_error call_error; /* of the latest call, for either */
    memo_batch batch;      /* n_rows is not 0 */
    int is_routed;         /* memo_session_set_routed was called in the open forward */
    int is_in_run;         /* memo_session_run calls the trainer's functions */
    int is_running;        /* between begin and end */

    memoi_checked checked;
    /* Of extras/memo_check.h, which keeps what `watcher` points to in `kept`; NULL: none. */
    void (*watch)(memo_session* s, memob_watched what, int32_t step, int is_end);
    void* watcher;

    /* Times: (n_steps of the longest shape, MEMOI_SPANS_MAX, repetitions), then the median in the
     * first.  NULL: nothing is timed. */
    double* spans_s;
    /* One after the other, around: those of a micro-batch, if they are not too many.  They are read
     * when the next timed micro-batch begins, so the host waits for the device there alone. */
    memoi_timer* timers;
    int32_t n_timers, next_timer;
    int32_t open_timers[MEMOI_SPANS_MAX]; /* of the open part of a span */
    int32_t repetition;
    double* layers_s;    /* (n_steps of the longest shape), for a median */
    memob_arrays arrays; /* of all three */
};

const char* memo_policy_name(memo_policy policy) {
    static const char* const names[] = {"memo", "keep", "recompute", "swap", "alpha", "rows"};
    MEMOB_TABLE_OF(MEMO_N_POLICIES, names);
    return (int)policy >= 0 && (int)policy < MEMO_N_POLICIES ? names[policy] : "unknown";
}

#define MEMOB_ASLEEP                                                                               \
    "the session sleeps and has no memory of the device; memo_session_wake comes next"

/* 1: more bytes than a budget has; 0: it has no limit. */
MEMOI int memoi_is_over(int64_t n_bytes, int64_t budget_bytes) {
    return budget_bytes && n_bytes > budget_bytes;
}

/* What a trainer has named, in messages. */
MEMOI const char* memob_session_name(const char* name) { return name ? name : "NULL"; }

MEMOI void memob_session_log(const memo_session* s, const char* format, ...) MEMO_PRINTF(2, 3);
MEMOI void memob_session_log(const memo_session* s, const char* format, ...) {
    char line[256];
    va_list arguments;
    if (!s->desc.log.write) return;
    va_start(arguments, format);
    (void)vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    s->desc.log.write(s->desc.log.user, line);
}

/* --- >>session state ---
 * Knows: the first error of a micro-batch, or of a call that plans or opens; the current shape and
 * its steps; spans, which events of the device time.  Knows nothing of arenas, of what moves when,
 * and of the trainer's functions.
 *
 * 1. A span is of a step and of a kind of span that there are.
 * 2. A micro-batch is timed only while there is room for its spans.
 * 3. The current shape is one of the desc's.
 * 4. A turn has whole layers, and the steps of a plan are those of whole turns. */

/* status: of a call that got s->call_error.  The first error stays. */
MEMOI MEMOB_NOINLINE int memoi_session_is_ok(memo_session* s, memo_status status) {
    if (status && (!s->error.status || s->is_reported)) {
        s->is_reported = 0;
        s->error = s->call_error;
        s->error.status = status;
    }
    return !status;
}

void memo_session_fail(memo_session* s, memo_status status, const char* message) {
    if (!s) return;
    if (message && message[0])
        (void)memo_error_set(&s->call_error, status, "%s", message);
    else
        (void)memo_error_set(&s->call_error, status, "memo_session_fail: %s, without a message",
                             memo_status_name(status));
    (void)memoi_session_is_ok(s, status);
}

/* Forgets the errors that a call has returned.  An error between two micro-batches stays, so that
 * the next one fails with it. */
MEMOI void memoi_session_forget(memo_session* s) {
    if (s->is_reported) memset(&s->error, 0, sizeof s->error);
    s->is_reported = 0;
}

/* Ends a call that returns the session's error. */
MEMOI memo_status memoi_session_report(memo_session* s, memo_error* error) {
    s->is_reported = 1;
    if (s->error.status && error) *error = s->error;
    return s->error.status;
}

/* Makes an error of the session's own. */
#define MEMOI_SESSION_FAIL(s, status, ...)                                                         \
    ((void)memoi_session_is_ok(s, memo_error_set(&(s)->call_error, status, __VA_ARGS__)))

/* status: of a call that got s->call_error, while the session plans or opens.  The first failure
 * stays; what would do harm behind it returns at once. */
MEMOI MEMOB_NOINLINE void memoi_keep(memo_session* s, memo_status status) {
    if (!status || s->failure.status) return;
    s->failure = s->call_error;
    s->failure.status = status;
}

/* Begins a call that plans for an open session. */
MEMOI void memoi_session_begin_call(memo_session* s) {
    s->failure.status = MEMO_STATUS_OK;
    s->all_failed = 0;
}
/* Ends a call that plans or opens a session, with its failure. */
MEMOI memo_status memoi_session_end_call(const memo_session* s, memo_error* error) {
    if (s->failure.status && error) *error = s->failure;
    return s->failure.status;
}

/* Is an argument of memo_session_get_... in 0 to most?  If not, that is the session's error. */
MEMOI MEMOB_NOINLINE int memoi_session_is_in(const memo_session* s, const char* argument,
                                             int64_t value, int64_t most) {
    if (value >= 0 && value <= most && !s->kept_bytes) return 1;
    if (s->kept_bytes)
        MEMOI_SESSION_FAIL((memo_session*)(uintptr_t)s, MEMO_STATUS_INVALID_STATE,
                           "memo_session_get_%s: %s", argument, MEMOB_ASLEEP);
    else
        MEMOI_SESSION_FAIL((memo_session*)(uintptr_t)s, MEMO_STATUS_INVALID_ARGUMENT,
                           "memo_session_get_%s: out of range (%lld); 0 to %lld are valid",
                           argument, (long long)value, (long long)most);
    return 0;
}

/* The caller's values may be gone: a batch has the session's copy of them. */
memo_batch memo_session_get_batch(const memo_session* s) {
    memo_batch batch = MEMO_ZERO(memo_batch);
    if (!s) return batch;
    batch = s->batch;
    batch.values = s->values[s->is_deferred].bytes;
    batch.values_bytes = MEMO_BATCH_VALUES_MAX;
    batch.states = s->states ? s->states->masks : NULL;
    return batch;
}

/* Values of the micro-batch (0), or of updates (1): maybe copies of memo_session_get_batch. */
MEMOI void memoi_session_put_values(memo_session* s, int of, const void* values, int64_t n_bytes) {
    char* bytes = s->values[of].bytes;
    if (n_bytes) memmove(bytes, values, (size_t)n_bytes);
    memset(bytes + n_bytes, 0, sizeof s->values[of].bytes - (size_t)n_bytes);
    if (s->desc.is_checked) memob_poison(bytes + n_bytes, MEMO_BATCH_VALUES_MAX - n_bytes);
}

/* Makes a shape the current one. */
MEMOI void memoi_session_use_shape(memo_session* s, int32_t shape) {
    MEMO_ASSERT(shape >= 0 && shape < s->desc.n_shapes); /* 3 */
    s->part = &s->parts[shape];
    s->batch.shape = shape;
    s->steps = &s->part->plan->swap;
    s->n_steps = s->steps->n_layers;
    s->n_slices = s->steps->n_slices;
    s->n_of_batch = memob_swap_batch_slices(s->steps);
    s->n_turn_steps = s->n_steps / (s->steps->order ? s->steps->n_places : 1);
    s->first_step = s->first_layer = 0;
    MEMO_ASSERT(s->n_steps % s->n_turn_steps == 0 && s->n_turn_steps % s->n_slices == 0); /* 4 */
}

/* 1: a turn of an order that is of this pass. */
MEMOI int memoi_session_is_turn(const memo_session* s, memo_pass pass) {
    return s->steps->order && s->batch.turn.pass == pass;
}
MEMOI int32_t memoi_session_turn_layers(const memo_session* s) {
    return s->n_turn_steps / s->n_slices;
}
/* Steps of the turn that have ended; without an order, of both passes. */
MEMOI int32_t memoi_session_n_ended(const memo_session* s) {
    return s->part->step->n_ended - s->next_turn * s->n_turn_steps;
}
/* Steps of the turn, or of the micro-batch. */
MEMOI int32_t memoi_session_n_visits(const memo_session* s) {
    return s->n_turn_steps * (s->steps->order || s->batch.is_forward_only ? 1 : 2);
}
/* The open step, of two the older; -1: none. */
MEMOI int32_t memoi_session_open(const memo_session* s) {
    const memob_step* step = s->part->step;
    return s->is_running && step->n_ended < step->n_begun
               ? s->part->placement.visits[step->n_ended].layer
               : -1;
}
/* 1: the forward is not over. */
MEMOI int memoi_session_is_forward(const memo_session* s) {
    return memoi_session_is_turn(s, MEMO_PASS_FORWARD) ||
           (!s->steps->order && memoi_session_n_ended(s) < s->n_turn_steps);
}

/* Rows of a step in this micro-batch. */
MEMOI int64_t memoi_session_rows(const memo_session* s, int32_t step) {
    return memob_swap_step_rows(&s->part->placement, step, s->batch.n_rows);
}

/* Where the rows of a tensor of a step lie in the engine's memory. */
MEMOI const memob_swap_place* memoi_session_place(const memo_session* s, int32_t step, int32_t t) {
    return memob_swap_place_of(&s->part->placement, step, t);
}

/* The layer of a step of this turn, or of a step with its number in another place. */
MEMOI int32_t memob_session_layer(const memo_session* s, int32_t step) {
    return s->first_layer + step % s->n_turn_steps / s->n_slices;
}
/* The first step of a layer of this turn. */
MEMOI int32_t memoi_session_step(const memo_session* s, int32_t layer) {
    return s->first_step + (layer - s->first_layer) * s->n_slices;
}
/* 1: this turn computes the layer. */
MEMOI int memoi_session_has_layer(const memo_session* s, int32_t layer) {
    return layer >= s->first_layer && layer - s->first_layer < memoi_session_turn_layers(s);
}

/* Micro-batches of a call; forwards begin with the last of them, backwards with the first. */
MEMOI int32_t memoi_session_n_group(const memo_session* s) { return s->n_slices / s->n_of_batch; }

/* The micro-batch of the group that the open layer computes; the first if no layer is open. */
MEMOI int32_t memoi_session_micro_batch(const memo_session* s) {
    const int32_t open = memoi_session_open(s);
    const int32_t n_before = open >= 0 ? open % s->n_slices : s->n_slices - 1;
    return memoi_session_n_group(s) - 1 - n_before / s->n_of_batch;
}

/* All tensors with late rows have as many rows in a step. */
MEMOI int64_t memoi_session_n_routed(const memo_session* s, int32_t step) {
    for (int32_t t = 0; t < s->desc.n_tensors && s->steps->routed_rows_layer; t++)
        if (memob_tensor_is_routed(s->steps, t)) return memoi_session_place(s, step, t)->n_routed;
    return 0;
}

MEMOI memo_slice memoi_session_slice(const memo_session* s) {
    const int32_t open = memoi_session_open(s);
    const int32_t of_batch = open >= 0 ? open % s->n_of_batch : 0;
    memo_slice slice;
    slice.begin = memob_min(of_batch * s->steps->n_rows, s->batch.n_rows);
    slice.end = slice.begin + memoi_session_rows(s, of_batch);
    slice.n_slices = s->n_slices;
    slice.micro_batch = memoi_session_micro_batch(s);
    slice.n_routed = open >= 0 ? memoi_session_n_routed(s, open) : 0;
    return slice;
}
memo_slice memo_session_get_slice(const memo_session* s) {
    return s ? memoi_session_slice(s) : MEMO_ZERO(memo_slice);
}

/* Does the tensor need its own call of recompute? */
MEMOI int memoi_session_recomputes(const memo_session* s, int32_t step, int32_t t) {
    return s->steps->tensors[t].away != MEMO_WITH &&
           memob_is_recomputed(memob_item_away(s->steps, t)) && memob_layer_has(s->steps, step, t);
}

/* 1: the backward recomputes the tensor itself, and `recompute` does so only to be timed. */
MEMOI int memoi_session_is_by_backward(const memo_session* s, int32_t t) {
    const memo_item* tensors = s->steps->tensors;
    return tensors[memob_item_leader(tensors, t)].is & MEMO_BY_BACKWARD;
}

/* The times of a span; NULL: it is not timed. */
MEMOI MEMOB_NOINLINE double* memoi_session_span(const memo_session* s, int32_t step, int32_t what) {
    const int32_t t = what - MEMOI_SPAN_TENSOR;
    if (!s->spans_s || (what == MEMOI_SPAN_BETWEEN && step != s->n_steps - 1)) return NULL;
    if (t >= 0 && t < MEMO_PROFILE_TENSORS_MAX && !memoi_session_recomputes(s, step, t))
        return NULL;
    MEMO_ASSERT(step >= 0 && step < s->n_steps && what < MEMOI_SPANS_MAX); /* 1 */
    return s->spans_s + ((int64_t)step * MEMOI_SPANS_MAX + what) * MEMOI_SESSION_REPETITIONS;
}

/* The span of the update of an engine's layer, and its step. */
MEMOI int32_t memoi_session_update_span(const memo_session* s, int32_t layer, int32_t* step) {
    *step = 0;
    if (layer == 0) return MEMOI_SPAN_UPDATE_FIRST;
    if (layer > s->desc.n_layers) return MEMOI_SPAN_UPDATE_LAST;
    *step = (layer - 1) * s->n_slices;
    return MEMOI_SPAN_UPDATE;
}

/* A micro-batch of fewer rows than its shape counts in proportion; updates take the same time. */
MEMOI double memoi_session_scale(const memo_session* s, int32_t step, int32_t what) {
    const double rows = (double)memoi_session_rows(s, step);
    if (what == MEMOI_SPAN_UPDATE || what >= MEMOI_SPAN_UPDATE_FIRST) return 1;
    if (what == MEMOI_SPAN_BETWEEN) return (double)s->steps->layer_rows / (double)s->batch.n_rows;
    return (double)memob_swap_step_rows(&s->part->placement, step, s->steps->layer_rows) / rows;
}

/* Waits for the span that a timer measured last, and adds it. */
MEMOI memo_status memoi_session_read_timer(memo_session* s, memoi_timer* timer, memo_error* error) {
    memo_status status;
    double took_s = 0;
    if (!timer->span_s) return MEMO_STATUS_OK;
    status = memo_event_synchronize(s->device, timer->events[1], error);
    if (!status)
        status = memo_event_elapsed(s->device, timer->events[0], timer->events[1], &took_s, error);
    *timer->span_s += took_s * timer->scale;
    timer->span_s = NULL;
    return status;
}

/* Waits for all spans that were measured. */
MEMOI memo_status memoi_session_read_timers(memo_session* s, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t k = 0; k < s->n_timers && !status; k++)
        status = memoi_session_read_timer(s, &s->timers[k], error);
    return status;
}

/* Begins or ends a span, or a part of one: parts add up.  The host waits if there are more spans
 * than timers. */
MEMOI void memoi_session_mark(memo_session* s, int32_t step, int32_t what, int is_end) {
    double* span_s = memoi_session_span(s, step, what);
    memoi_timer* timer;
    memo_status status = MEMO_STATUS_OK;
    if (!span_s || s->error.status) return;
    MEMO_ASSERT(s->repetition < MEMOI_SESSION_REPETITIONS); /* 2 */
    span_s += s->repetition;
    if (s->desc.computes_on_host) {
        *span_s += (is_end ? memob_now_s() : -memob_now_s()) * memoi_session_scale(s, step, what);
        return;
    }
    if (!is_end) {
        s->open_timers[what] = s->next_timer;
        s->next_timer = (s->next_timer + 1) % s->n_timers;
    }
    timer = &s->timers[s->open_timers[what]];
    if (!is_end) status = memoi_session_read_timer(s, timer, &s->call_error);
    if (!status)
        status = memo_event_record(s->device, timer->events[is_end], s->desc.compute_stream,
                                   &s->call_error);
    if (is_end) {
        timer->span_s = span_s;
        timer->scale = memoi_session_scale(s, step, what);
    }
    (void)memoi_session_is_ok(s, status);
}

/* --- the first training steps are timed --- */

/* Micro-batches of a planned step, or groups of them, or all of an order. */
MEMOI int32_t memob_session_n_rounds(const memo_session* s) {
    return (int32_t)memob_max(s->desc.micro_batches / memoi_session_n_group(s), 1);
}

/* 1: calls of the trainer end steps: memo_session_update or memo_session_skip_update, so that ranks
 * meet there, however many micro-batches each has.  0: the session counts micro-batches. */
MEMOI int memoi_session_is_told(const memo_session* s) {
    return s->states || s->desc.agree != NULL;
}

/* 1: the session plans again behind the step that ends. */
MEMOI int memoi_session_is_due(const memo_session* s) {
    return s->timing.plan && s->timing.n_ended + 1 >= s->timing.due;
}

/* A step has ended, also if it has failed: ranks count alike. */
MEMOI void memoi_session_end_step(memo_session* s, int may_plan) {
    const int is_due = memoi_session_is_due(s);
    s->timing.n_ended++;
    if (is_due && may_plan) s->timing.plan(s);
}

/* A micro-batch is about to begin.  0: the session is lost. */
MEMOI int memoi_session_time_begin(memo_session* s) {
    memoi_timing* t = &s->timing;
    if (t->plan && !s->batch.is_forward_only && !s->next_turn) {
        const int begins = t->n_batches && t->n_batches % memob_session_n_rounds(s) == 0;
        if (begins && !memoi_session_is_told(s)) memoi_session_end_step(s, 1);
        if (++t->n_batches == 64 && !t->n_ended && memoi_session_is_told(s))
            memob_session_log(s, "session: it plans by the times of steps when it knows their end: "
                                 "call memo_session_update behind each step, on all ranks");
    }
    if (t->is_lost)
        MEMOI_SESSION_FAIL(s, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                           "memo_session_begin: memory was lost while the session planned again");
    return !t->is_lost;
}

/* The events of timers, before the first span that is timed. */
MEMOI memo_status memoi_session_create_timers(memo_session* s) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t k = 0; k < 2 * s->n_timers && !status; k++) {
        memo_event* event = &s->timers[k / 2].events[k % 2];
        if (!*event) status = memo_event_create(s->device, event, NULL);
    }
    return status;
}
MEMOI void memoi_session_destroy_timers(memo_session* s) {
    for (int32_t k = 0; k < 2 * s->n_timers; k++)
        if (s->timers[k / 2].events[k % 2])
            memo_event_destroy(s->device, s->timers[k / 2].events[k % 2], NULL);
    s->timers = NULL; /* of s->arrays */
    s->n_timers = s->next_timer = 0;
}

/* Times this micro-batch, behind the first step, if it has half of its shape's rows or more, and
 * all slices. */
MEMOI void memoi_session_time_batch_begin(memo_session* s) {
    memoi_timing* t = &s->timing;
    memoi_session_part* part = s->part;
    const int is_whole = !s->batch.is_forward_only && 2 * s->batch.n_rows >= s->steps->layer_rows &&
                         s->batch.n_rows > (s->n_of_batch - 1) * s->steps->n_rows;
    if (!t->plan || s->next_turn) return;
    for (int32_t k = 0; k < s->n_timers && t->is_open; k++) /* it was abandoned */
        s->timers[k].span_s = NULL;
    (void)memoi_session_is_ok(s, memoi_session_read_timers(s, &s->call_error));
    s->spans_s = NULL;
    t->is_open = is_whole && t->n_ended && part->n_timed < MEMOI_SESSION_REPETITIONS &&
                 !memoi_session_create_timers(s);
    if (!t->is_open) return;
    s->spans_s = part->spans_s;
    s->repetition = part->n_timed;
    for (int64_t k = 0; k < (int64_t)s->n_steps * MEMOI_SPANS_MAX; k++)
        part->spans_s[k * MEMOI_SESSION_REPETITIONS + s->repetition] = 0;
}

/* It counts if it has ended without an error.  The update behind it is timed with it. */
MEMOI void memoi_session_time_batch_end(memo_session* s) {
    const int is_over = s->part->step->n_ended == s->part->placement.n_visits;
    if (!s->timing.is_open || s->error.status || !is_over) return;
    s->timing.is_open = 0;
    s->part->n_timed++;
}

/* --- >>session slowing ---
 * Knows: how much copies slow computation, found in the timed steps.  Knows nothing of plans.
 *
 * Each layer is timed alone: it begins when no copy is under way.  From the second micro-batch on
 * two of three layers run beside copies of known bytes, one way, whose memory no one else uses.
 * What a layer takes longer than alone, over the bytes, is the slowdown; the median of the layers
 * counts, if all but an eighth are slower, for else it is noise.  Then spans beside copies lose
 * what the copies cost, so that all are times alone.
 *
 * 1. Copies are over when their layer ends, for all that the compute stream does then. */

/* At most, beside a pass of a layer: more would fill a stream's queue before the layer is in its
 * own. */
#define MEMOI_SLOWING_COPIES 256
#define MEMOI_SLOWING_BYTES  ((int64_t)128 << 20) /* of a copy, at most */
#define MEMOI_SLOWING_SHARE  0.8                  /* of a pass, that copies take */
#define MEMOI_SLOWING_MOST   0.5                  /* of the speed of computation, that they cost */

/* An event, two streams and memory for a copy: of the budgets, beside the first plan.  Without room
 * nothing is measured.  host_bytes: of rows. */
MEMOI void memoi_slowing_create(memo_session* s, int64_t device_bytes, int64_t host_bytes) {
    memoi_slowing* slowing = &s->timing.slowing;
    memob_engine* e = &slowing->engine;
    const int64_t rows_bytes = memob_align_up(host_bytes, MEMOB_DEVICE_ALIGNMENT);
    const int64_t room_bytes = s->desc.host_bytes - rows_bytes - s->states_sizes.host_bytes;
    int64_t n_bytes;
    slowing->at = memob_align_up(device_bytes, MEMOB_DEVICE_ALIGNMENT);
    n_bytes = memob_min(MEMOI_SLOWING_BYTES, s->memory_bytes - slowing->at);
    if (s->desc.host_bytes || s->desc.host_memory) n_bytes = memob_min(n_bytes, room_bytes);
    n_bytes = n_bytes / MEMOB_DEVICE_ALIGNMENT * MEMOB_DEVICE_ALIGNMENT;
    if (n_bytes <= 0 || s->desc.computes_on_host) return;

    memob_engine_begin(e, s->device, s->desc.compute_stream, 0, (char*)s->device_memory,
                       s->desc.host_memory ? (char*)s->host_memory + rows_bytes : NULL);
    e->events = &slowing->event;
    e->n_events = 1;
    if (memob_engine_acquire(e, "memo_session_desc", 0, n_bytes, NULL) ||
        memob_engine_take_streams(e, MEMOB_STREAM_TO_DEVICE, NULL) ||
        memo_event_create_untimed(s->device, &slowing->event, NULL))
        return;
    slowing->n_bytes = n_bytes;
}

MEMOI void memoi_slowing_destroy(memo_session* s) {
    memob_engine_release(&s->timing.slowing.engine);
    memset(&s->timing.slowing, 0, sizeof s->timing.slowing);
}

/* One stream waits for what another was given. */
MEMOI void memoi_slowing_follow(memo_session* s, memo_stream stream, memo_stream other) {
    const memo_event event = s->timing.slowing.event;
    if (!memoi_session_is_ok(s, memo_event_record(s->device, event, other, &s->call_error))) return;
    (void)memoi_session_is_ok(s, memo_event_wait(s->device, event, stream, &s->call_error));
}

/* 1: this micro-batch is timed, and there is memory for copies. */
MEMOI int memoi_slowing_is_on(const memo_session* s) {
    return s->spans_s && s->timing.slowing.n_bytes && !s->error.status;
}

/* What is computed next runs beside no copy. */
MEMOI void memoi_slowing_separate(memo_session* s) {
    const memob_engine* e;
    if (!memoi_slowing_is_on(s)) return;
    e = &s->part->step->desc.sink->engine;
    for (int32_t k = MEMOB_STREAM_TO_HOST; k <= MEMOB_STREAM_TO_DEVICE && !s->error.status; k++)
        if (e->streams[k]) memoi_slowing_follow(s, s->desc.compute_stream, e->streams[k]);
}

/* A pass of a layer is about to be computed.  Beside copies, if it is a turn of such; they end
 * before it, if it takes as long as the first time.  A place of an order has several visits, of
 * which each would need its time. */
MEMOI void memoi_slowing_begin(memo_session* s, int32_t step, int is_backward) {
    const int32_t turn = (step + s->repetition) % 3, way = turn - 1; /* turn 0: no copies */
    const int32_t what = is_backward ? MEMOI_SPAN_BACKWARD : MEMOI_SPAN_FORWARD;
    memoi_slowing* slowing = &s->timing.slowing;
    const memo_profile_transfer* copy;
    const double* span_s;
    memob_engine* e = &slowing->engine;
    double copy_s, n_bytes, scale;
    if (!memoi_slowing_is_on(s) || !s->repetition || way < 0 || s->steps->order) return;

    /* So many bytes. */
    copy = &s->timing.profiles->copies[1];
    span_s = memoi_session_span(s, step, what);
    scale = memoi_session_scale(s, step, what);
    copy_s = way ? copy->back_s : copy->out_s;
    if (copy_s <= 0) return;
    n_bytes = MEMOI_SLOWING_SHARE * span_s[0] / scale * ((double)copy->size_bytes / copy_s);
    n_bytes = fmin(n_bytes, MEMOI_SLOWING_COPIES * (double)slowing->n_bytes);
    if (n_bytes > (double)slowing->n_bytes)
        n_bytes = floor(n_bytes / (double)slowing->n_bytes) * (double)slowing->n_bytes;
    if (!(n_bytes >= MEMOB_DEVICE_ALIGNMENT)) return;

    /* They begin with the layer. */
    memoi_slowing_follow(s, e->streams[MEMOB_STREAM_TO_HOST + way], s->desc.compute_stream);
    memob_engine_call(e, &s->call_error);
    e->memory.device = (char*)s->device_memory; /* which may have slept */
    for (double left = n_bytes; left >= 1 && !s->error.status; left -= (double)slowing->n_bytes)
        memob_engine_copy(e, &e->memory, way, slowing->at, 0,
                          (int64_t)fmin(left, (double)slowing->n_bytes));
    (void)memoi_session_is_ok(s, e->status);
    slowing->is_open = 1 + way;
    memoi_session_span(s, step, MEMOI_SPAN_BESIDE + is_backward)[s->repetition] =
        (way ? -1 : 1) * floor(n_bytes) * scale;
}

/* The pass has been computed, or has failed. */
MEMOI void memoi_slowing_end(memo_session* s) {
    memoi_slowing* slowing = &s->timing.slowing;
    if (!slowing->is_open) return;
    memoi_slowing_follow(s, s->desc.compute_stream,
                         slowing->engine.streams[MEMOB_STREAM_TO_HOST + slowing->is_open - 1]);
    slowing->is_open = 0; /* 1 */
}

/* Seconds of a byte alone. */
MEMOI double memoi_slowing_byte_s(const memo_session* s, int32_t way) {
    const memo_profile_transfer* copy = &s->timing.profiles->copies[1];
    return (way ? copy->back_s : copy->out_s) / (double)memob_max(copy->size_bytes, 1);
}

/* Seconds by which bytes one way made a step longer, summed, and the bytes.  A pass that took less
 * than half as long as its copies does not count: its layer was skipped, or had few rows.  To leave
 * out any that took less would leave those that noise made long. */
MEMOI double memoi_slowing_of_step(const memo_session* s, int32_t step, int32_t way, int32_t n,
                                   double* n_bytes) {
    const double byte_s = memoi_slowing_byte_s(s, way);
    double slower_s = 0;
    *n_bytes = 0;
    for (int pass = 0; pass < 2; pass++) {
        const double* beside = memoi_session_span(s, step, MEMOI_SPAN_BESIDE + pass);
        const double* span_s =
            memoi_session_span(s, step, pass ? MEMOI_SPAN_BACKWARD : MEMOI_SPAN_FORWARD);
        double alone_s[MEMOI_SESSION_REPETITIONS], median_s;
        int32_t n_alone = 0;
        for (int32_t i = 0; i < n; i++)
            if (beside[i] == 0) alone_s[n_alone++] = span_s[i];
        median_s = memoi_profile_median(alone_s, n_alone);
        for (int32_t i = 0; i < n; i++) {
            const double most = span_s[i] / byte_s; /* that may have been copied */
            if ((way ? -beside[i] : beside[i]) <= 0 || fabs(beside[i]) > 2 * most) continue;
            slower_s += span_s[i] - median_s;
            *n_bytes += fmin(fabs(beside[i]), most);
        }
    }
    return slower_s;
}

/* The slowdown of the current shape, from its spans of n micro-batches, which become those of
 * layers alone.  A way that was not measured is as the other. */
MEMOI void memoi_slowing_read(const memo_session* s, int32_t n, memo_profile* profile) {
    double* slowdown = profile->slowdown_s_per_byte;
    int32_t n_steps[2] = {0, 0};
    slowdown[0] = slowdown[1] = 0;
    if (!s->timing.slowing.n_bytes) return;
    for (int32_t way = 0; way < 2; way++) {
        for (int32_t step = 0; step < s->n_steps; step++) {
            double n_bytes;
            const double slower_s = memoi_slowing_of_step(s, step, way, n, &n_bytes);
            if (n_bytes > 0) s->layers_s[n_steps[way]++] = slower_s / n_bytes;
        }
        if (!n_steps[way]) continue;
        slowdown[way] = fmin(memoi_profile_median(s->layers_s, n_steps[way]), /* sorts them */
                             MEMOI_SLOWING_MOST * memoi_slowing_byte_s(s, way));
        if (s->layers_s[n_steps[way] / 8] <= 0) slowdown[way] = 0;
    }
    for (int32_t way = 0; way < 2; way++)
        if (!n_steps[way]) slowdown[way] = slowdown[!way];

    for (int32_t step = 0; step < s->n_steps; step++)
        for (int pass = 0; pass < 2; pass++) {
            const double* beside = memoi_session_span(s, step, MEMOI_SPAN_BESIDE + pass);
            double* span_s =
                memoi_session_span(s, step, pass ? MEMOI_SPAN_BACKWARD : MEMOI_SPAN_FORWARD);
            for (int32_t i = 0; i < n; i++)
                span_s[i] = fmax(0, span_s[i] - slowdown[beside[i] < 0] * fabs(beside[i]));
        }
}

/* --- >>session desc ---
 * Knows: the fields of a desc, what is wrong with them, and what follows from them alone: a plan
 * without rows, line by line, the device and its budget.  Knows nothing of how a plan is found.
 *
 * 1. A line of a plan has room for its values.
 * 2. What ends in a place has begun there. */

/* Numbers of a desc: a rank's own, and those that ranks must have alike. */
#define MEMOI_NUMBER(type, field, least, most)                                                     \
    MEMOB_VALUE(#field, MEMOB_VALUE_##type, memo_session_desc, field, least, most)
static const memob_value memoi_session_own[] = {
    MEMOI_NUMBER(INT64, device_bytes, 0, MEMOB_BYTES_MAX),
    MEMOI_NUMBER(INT64, host_bytes, 0, MEMOB_BYTES_MAX),
    MEMOI_NUMBER(INT64, disk_bytes, 0, MEMOB_BYTES_MAX),
    MEMOI_NUMBER(INT64, reserve_bytes, 0, MEMOB_BYTES_MAX),
    MEMOI_NUMBER(INT32, update_on, 0, MEMO_N_UPDATES - 1)};
static const memob_value memoi_session_alike[] = {
    MEMOI_NUMBER(INT32, n_tensors, 1, MEMO_PROFILE_TENSORS_MAX),
    MEMOI_NUMBER(INT32, n_layers, 1, INT32_MAX / 8),
    MEMOI_NUMBER(INT64, n_rows, 1, MEMOB_BYTES_MAX),
    MEMOI_NUMBER(INT32, n_shapes, 0, MEMO_SHAPES_MAX),
    MEMOI_NUMBER(INT32, micro_batches, 0, MEMO_MICRO_BATCHES_MAX),
    MEMOI_NUMBER(INT32, n_group, MEMO_GROUP_PLANNED, MEMO_GROUP_MAX),
    MEMOI_NUMBER(INT32, n_order, 0, MEMO_TURNS_MAX),
    MEMOI_NUMBER(INT32, n_buffers, 0, MEMO_SESSION_BUFFERS_MAX),
    MEMOI_NUMBER(INT32, n_states, 0, MEMO_STATES_MAX),
    MEMOI_NUMBER(INT32, update_may, 0, MEMO_MAY_DEFER | MEMO_MAY_FUSE | MEMO_MAY_NOT_PASS),
    MEMOI_NUMBER(INT64, slice_rows, 0, MEMOB_BYTES_MAX),
    MEMOI_NUMBER(INT64, tile_rows, INT64_MIN, INT64_MAX), /* checked with the rows */
    MEMOI_NUMBER(INT64, routed_rows_layer, 0, MEMOB_BYTES_MAX),
    MEMOI_NUMBER(INT64, routed_rows_all, 0, MEMOB_BYTES_MAX),
    MEMOI_NUMBER(INT32, policy, 0, MEMO_N_POLICIES - 1),
    MEMOI_NUMBER(INT32, timed_steps, INT32_MIN, INT32_MAX),
    MEMOI_NUMBER(INT32, is_unadvised, INT32_MIN, INT32_MAX)};
enum {
    MEMOI_N_OWN = sizeof memoi_session_own / sizeof memoi_session_own[0],
    MEMOI_N_ALIKE = sizeof memoi_session_alike / sizeof memoi_session_alike[0]
};

/* Tables of a desc with their lengths. */
#define MEMOI_SESSION_TABLES(DO)                                                                   \
    DO(tensors, n_tensors, memo_item)                                                              \
    DO(order, n_order, memo_turn)                                                                  \
    DO(shapes, n_shapes, memo_shape)                                                               \
    DO(buffers, n_buffers, memo_session_buffer)                                                    \
    DO(states, n_states, memo_state)

/* 1: the policy is the best alpha, to be found. */
MEMOI int memoi_session_is_alpha(const memo_session_desc* desc) {
    return desc->policy == MEMO_POLICY_ALPHA && desc->alpha < 0;
}
/* 1: rows are to be found. */
MEMOI int memoi_session_plans_rows(const memo_session_desc* desc) {
    return desc->policy == MEMO_POLICY_MEMO || memoi_session_is_alpha(desc);
}

/* Most late rows of n_rows tokens: their share, rounded up. */
MEMOI int64_t memoi_session_share(const memo_session_desc* desc, int64_t routed_rows,
                                  int64_t n_rows) {
    const double share = (double)n_rows / (double)desc->n_rows;
    if (n_rows >= desc->n_rows) return routed_rows;
    return memob_min(routed_rows, (int64_t)ceil((double)routed_rows * share));
}

/* 1: a pass goes through layers. */
MEMOI int memoi_pass_has_layers(memo_pass pass) {
    return pass == MEMO_PASS_FORWARD || pass == MEMO_PASS_BACKWARD;
}

/* When a layer of a pass comes in a micro-batch of n layers; -1: never. */
MEMOI int64_t memoi_session_moment(memo_pass pass, int32_t layer, int64_t n) {
    const int64_t moments[] = {-1, layer, n, 2 * n - layer, 2 * n + 1}; /* by pass */
    MEMOB_TABLE_OF(MEMO_N_PASSES, moments);
    if (!memob_is_within(pass, 0, MEMO_N_PASSES - 1)) return -1;
    if (memoi_pass_has_layers(pass) && !memob_is_within(layer, 0, n - 1)) return -1;
    return moments[pass];
}

/* Chunks of layers that an order names. */
MEMOI int32_t memoi_session_n_chunks(const memo_session_desc* desc) {
    int32_t n = 1;
    for (int32_t k = 0; k < desc->n_order; k++) /* which need not be valid */
        n = (int32_t)memob_max(n, memob_min(desc->order[k].chunk, INT32_MAX - 1) + 1);
    return n;
}

/* Names of memo_pass in messages. */
static const char* const memoi_pass_names[] = {"the session", "forward", "`between`", "backward",
                                               "the end of the micro-batch"};
MEMOB_TABLE_OF(MEMO_N_PASSES, memoi_pass_names);

/* Index of the turn of a micro-batch in a chunk; n_order: there is none. */
MEMOI int32_t memoi_session_find_turn(const memo_session_desc* desc, int32_t micro_batch,
                                      int32_t chunk, memo_pass pass) {
    int32_t k = 0;
    for (; k < desc->n_order; k++) {
        const memo_turn* turn = &desc->order[k];
        if (turn->micro_batch == micro_batch && turn->chunk == chunk && turn->pass == pass) break;
    }
    return k;
}

/* Can turn k of an order be? */
MEMOI memo_status memoi_session_check_turn_of(const memo_session_desc* desc, int32_t k,
                                              int32_t n_chunks, memo_error* error) {
    const int32_t m = desc->order[k].micro_batch, c = desc->order[k].chunk;
    const memo_pass pass = desc->order[k].pass;
    const int32_t before = pass == MEMO_PASS_BACKWARD ? c + 1 : c - 1;
    const int32_t first = memoi_session_find_turn(desc, m, c, pass);
    char fault[160] = "";

    if (first < k)
        snprintf(fault, 160, "repeats order[%d]; give each micro-batch a number of its own",
                 (int)first);
    else if (memoi_session_find_turn(desc, m, c, MEMO_PASS_FORWARD) > k)
        snprintf(fault, 160, "comes before its forward; list that first");
    else if (before >= 0 && before < n_chunks && memoi_session_find_turn(desc, m, before, pass) > k)
        snprintf(fault, 160, "comes before the %s of chunk %d; list that first",
                 memoi_pass_names[pass], (int)before);
    else if (memoi_session_find_turn(desc, m, c, MEMO_PASS_BACKWARD) == desc->n_order)
        snprintf(fault, 160, "never gets its backward; append {%d, %d, MEMO_PASS_BACKWARD}", (int)m,
                 (int)c);
    return *fault
               ? MEMOB_INVALID(
                     error, "memo_session_desc.order[%d]: the %s of micro-batch %d, chunk %d, %s",
                     (int)k, memoi_pass_names[pass], (int)m, (int)c, fault)
               : MEMO_STATUS_OK;
}

/* Each chunk of each micro-batch has a forward and a backward, in the order of the layers. */
MEMOI memo_status memoi_session_check_order(const memo_session_desc* desc, memo_error* error) {
    const int32_t n_chunks = memoi_session_n_chunks(desc);
    int has_forwards = 0;
    const char* fault;
    memo_status status = MEMO_STATUS_OK;
    for (int32_t k = 0; k < desc->n_shapes; k++) has_forwards |= desc->shapes[k].is_forward_only;
    const memob_rule rules[] = {
        {desc->micro_batches, "lists the micro-batches of a step, so micro_batches must be 0"},
        {desc->n_group, "does not work with groups of micro-batches; set n_group to 0"},
        {has_forwards && n_chunks > 1,
         "does not work with chunks and shapes that are is_forward_only; give them a session of "
         "their own, without an order, for each chunk"}};
    if (!desc->n_order) return status;
    fault = MEMOB_FIRST_FAULT(rules);
    if (fault) return MEMOB_INVALID(error, "memo_session_desc.order: %s", fault);

    for (int32_t k = 0; k < desc->n_order; k++) {
        const memo_turn* turn = &desc->order[k];
        if (turn->micro_batch < 0 || turn->micro_batch >= desc->n_order || turn->chunk < 0 ||
            turn->chunk >= desc->n_layers || !memoi_pass_has_layers(turn->pass))
            return MEMOB_INVALID(error,
                                 "memo_session_desc.order[%d]: micro-batch %d, chunk %d, pass %d "
                                 "is out of range; micro-batches below n_order, chunks below "
                                 "n_layers, FORWARD and BACKWARD are valid",
                                 (int)k, (int)turn->micro_batch, (int)turn->chunk, (int)turn->pass);
    }
    if (desc->n_layers % n_chunks)
        return MEMOB_INVALID(error,
                             "memo_session_desc.order: it names %d chunks, but n_layers is %d; "
                             "chunks have equally many layers, so a divisor of n_layers works",
                             (int)n_chunks, (int)desc->n_layers);

    for (int32_t k = 0; k < desc->n_order && !status; k++)
        status = memoi_session_check_turn_of(desc, k, n_chunks, error);
    return status;
}

/* The chunk, one of n_chunks, in which a buffer's life begins or ends. */
MEMOI int32_t memoi_session_chunk(const memo_session_desc* desc, int32_t n_chunks, memo_pass pass,
                                  int32_t layer) {
    return pass == MEMO_PASS_BETWEEN ? n_chunks - 1 : layer / (desc->n_layers / n_chunks);
}

/* 1: a buffer lives in each layer, or in each slice of a layer. */
MEMOI int memoi_buffer_is_each(const memo_session_buffer* b) {
    return b->first_layer == MEMO_EACH_LAYER || b->first_layer == MEMO_EACH_SLICE;
}
/* 1: a buffer lives in layers of the kind. */
MEMOI int memoi_buffer_is_of(const memo_session_buffer* b, int32_t kind) {
    return !b->kinds || b->kinds >> kind & 1;
}

/* Returns what is wrong with a buffer, which lives in layers, in the session, or from one moment to
 * another; NULL: nothing. */
MEMOI const char* memoi_session_buffer_fault(const memo_session_desc* desc,
                                             const memo_session_buffer* b) {
    const int is_each = memoi_buffer_is_each(b);
    const int is_span = !is_each && b->first != MEMO_PASS_SESSION;
    const int32_t n_chunks = memoi_session_n_chunks(desc);
    const int64_t first = memoi_session_moment(b->first, b->first_layer, desc->n_layers);
    const int64_t last = memoi_session_moment(b->last, b->last_layer, desc->n_layers);
    const memob_rule rules[] = {
        {!memob_is_within(b->size_bytes, 0, MEMOB_BYTES_MAX) ||
             !memob_is_within(b->row_bytes, 0, (MEMOB_BYTES_MAX - b->size_bytes) / desc->n_rows),
         "size_bytes or row_bytes below 0, or too many bytes for n_rows"},
        {is_each && !memoi_pass_has_layers(b->first),
         "MEMO_EACH_LAYER in a pass without layers; use FORWARD or BACKWARD"},
        {is_span && (first < 0 || last < 0 || b->first == MEMO_PASS_AFTER),
         "an unknown pass or a layer out of range; give its first and last use"},
        {is_span && last < first, "a last use before the first; swap them"},
        {b->kinds && (!is_each || (!desc->layer_kinds && !(b->kinds & 1))),
         "kinds, but no MEMO_EACH_LAYER or _SLICE, or no layer_kinds; set both, or 0"},
        {desc->n_order && is_span && b->last != MEMO_PASS_AFTER &&
             memoi_session_chunk(desc, n_chunks, b->first, b->first_layer) !=
                 memoi_session_chunk(desc, n_chunks, b->last, b->last_layer),
         "a life in two chunks of the order; declare a buffer of each, or of SESSION"},
        {desc->n_order && is_span && b->first == MEMO_PASS_FORWARD &&
             (b->last == MEMO_PASS_BETWEEN || b->last == MEMO_PASS_BACKWARD),
         "a life in two turns of the order; declare a MEMO_KEEP tensor, or a buffer of SESSION"}};
    return MEMOB_FIRST_FAULT(rules);
}

MEMOI memo_status memoi_session_check_buffers(const memo_session_desc* desc, memo_error* error) {
    for (int32_t i = 0; i < desc->n_buffers; i++) {
        const memo_session_buffer* b = &desc->buffers[i];
        const char* fault = memoi_session_buffer_fault(desc, b);
        if (fault)
            return MEMOB_INVALID(error, "memo_session_desc.buffers[%d]: `%.40s` has %s", (int)i,
                                 memob_session_name(b->name), fault);
    }
    return MEMO_STATUS_OK;
}

/* Errors: INVALID_ARGUMENT. */
MEMOI memo_status memoi_session_check_group(const memo_session_desc* desc, memo_error* error) {
    const int32_t n_batches = (int32_t)memob_max(desc->micro_batches, 1);
    const int64_t n_rows = memob_max(desc->n_rows, 1);
    const int64_t slice_rows = desc->slice_rows > 0 ? memob_min(desc->slice_rows, n_rows) : n_rows;
    const char* why;
    if (desc->n_group == 0 || desc->n_group == 1) return MEMO_STATUS_OK;
    if (desc->n_group > 1 && n_batches % desc->n_group)
        return MEMOB_INVALID(error,
                             "memo_session_desc.n_group: %d, which does not divide micro_batches "
                             "(%d); a divisor works",
                             (int)desc->n_group, (int)n_batches);
    const memob_rule rules[] = {
        {!memoi_rows_are_handed(desc->tensors, desc->n_tensors),
         "no item is MEMO_EDGE; groups need one for the hidden state, as slices do"},
        {desc->between != NULL,
         "set, but `between` would find the hidden state of one micro-batch alone; use `loss`"},
        {(n_rows - 1) / slice_rows >= INT32_MAX / 8 / desc->n_layers / MEMO_GROUP_MAX,
         "too many layers and slices for groups; set it to 1"}};
    why = MEMOB_FIRST_FAULT(rules);
    return why ? MEMOB_INVALID(error, "memo_session_desc.n_group: %s", why) : MEMO_STATUS_OK;
}

MEMOI memo_status memoi_session_check_numbers(const memo_session_desc* desc, memo_error* error) {
    static const char name[] = "memo_session_desc";
    memo_status status = MEMO_STATUS_OK;
    for (int32_t k = 0; k < MEMOI_N_OWN + MEMOI_N_ALIKE && !status; k++) {
        const memob_value* v =
            k < MEMOI_N_OWN ? &memoi_session_own[k] : &memoi_session_alike[k - MEMOI_N_OWN];
        const int64_t number = memob_record_number(v, (const char*)desc + v->offset);
        status = memob_check_integer(name, v->what, number, v->least, v->most, error);
    }
    if (!status && !(desc->alpha <= 1))
        return MEMOB_INVALID(
            error,
            "memo_session_desc.alpha: out of range (%g); 0 to 1 are valid, and -1, "
            "which plans it",
            desc->alpha);
    if (!status)
        status = memob_check_rate(name, "spill_bytes_per_s", desc->spill_bytes_per_s, error);
    if (status || !desc->slice_rows || desc->slice_rows >= desc->n_rows) return status;
    if ((desc->tile_rows && desc->slice_rows % desc->tile_rows) ||
        (desc->n_rows - 1) / desc->slice_rows >= INT32_MAX / 8 / desc->n_layers)
        return MEMOB_INVALID(
            error,
            "memo_session_desc.slice_rows: %lld rows split a tile of %lld, or make "
            "too many slices; a larger multiple of tile_rows would work",
            (long long)desc->slice_rows, (long long)desc->tile_rows);
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_session_check_tables(const memo_session_desc* desc, memo_error* error) {
    const char* missing = NULL;
    char shape[40];
#define MEMOI_FIND_TABLE(field, n, type)                                                           \
    if (desc->n && !desc->field) missing = #field;
    MEMOI_SESSION_TABLES(MEMOI_FIND_TABLE)
    if (missing)
        return MEMOB_INVALID(error, "memo_session_desc.%s: NULL; set the table, or its length to 0",
                             missing);
    for (int32_t t = 0; t < desc->n_shapes; t++) {
        snprintf(shape, sizeof shape, "memo_session_desc.shapes[%d]", (int)t);
        if (memob_check_integer(shape, "n_rows", desc->shapes[t].n_rows, 1, desc->n_rows, error))
            return MEMO_STATUS_INVALID_ARGUMENT;
    }
    return MEMO_STATUS_OK;
}

/* Functions and memory of the caller. */
MEMOI memo_status memoi_session_check_pointers(const memo_session_desc* desc, int computes,
                                               memo_error* error) {
    const int has_no_step = computes && !desc->step;
    int recomputes = 0, fetches = 0;
    for (int32_t t = 0; t < desc->n_tensors; t++)
        recomputes |= memob_is_recomputed(desc->tensors[t].away);
    for (int32_t i = 0; i < desc->n_states; i++)
        fetches |= (desc->states[i].uses & MEMO_STATE_FETCHED) != 0;
    const memob_rule rules[] = {
        {desc->device_memory && !desc->device_bytes,
         "device_memory: set, but device_bytes is 0; device_bytes must be its size"},
        {desc->host_memory && !desc->host_bytes,
         "host_memory: set, but host_bytes is 0; host_bytes must be its size"},
        {(uintptr_t)desc->device_memory % MEMOB_DEVICE_ALIGNMENT != 0,
         "device_memory: not a multiple of 512 bytes"},
        {(uintptr_t)desc->host_memory % MEMOB_DEVICE_ALIGNMENT != 0,
         "host_memory: not a multiple of 512 bytes"},
        {has_no_step && !desc->forward, "forward: NULL; set it, or `step`"},
        {has_no_step && !desc->backward, "backward: NULL; set it, or `step`"},
        {computes && recomputes && !desc->recompute,
         "recompute: NULL, but a tensor is MEMO_ROWS or MEMO_WHOLE; set recompute"},
        {computes && fetches && !desc->fetch,
         "fetch: NULL, but a state is MEMO_STATE_FETCHED; set fetch"},
        {desc->policy == MEMO_POLICY_ROWS && !desc->rows,
         "rows: NULL, but policy is ROWS; set the table of rows"}};
    const char* field = MEMOB_FIRST_FAULT(rules);
    return field ? MEMOB_INVALID(error, "memo_session_desc.%s", field) : MEMO_STATUS_OK;
}

/* Names go into files, so a name must be a single word; names match profiles. */
MEMOI memo_status memoi_session_check_tensors(const memo_session_desc* desc, memo_error* error) {
    const char* field = NULL;
    if (desc->slice_rows && desc->slice_rows < desc->n_rows &&
        !memoi_rows_are_handed(desc->tensors, desc->n_tensors))
        field = "slice_rows: set, but no tensor is a MEMO_EDGE; slices need one for the hidden "
                "state, see Slices, or set slice_rows to 0";

    for (int32_t t = 0; t < desc->n_tensors && !field; t++) {
        const char* word = desc->tensors[t].name;
        if (!word || !memob_value_is_name(memoi_profile_tensor_values, word, (int64_t)strlen(word)))
            return MEMOB_INVALID(error,
                                 "memo_session_desc.tensors[%d].name: `%s` is invalid; 1 to 31 "
                                 "characters without blanks are valid",
                                 (int)t, memob_session_name(word));
        for (int32_t other = 0; other < t; other++)
            if (!strcmp(desc->tensors[other].name, word))
                return MEMOB_INVALID(
                    error,
                    "memo_session_desc.tensors[%d].name: `%s` is also the name of tensors[%d]; "
                    "give each tensor its own",
                    (int)t, word, (int)other);
        if (!desc->layer_kinds && desc->tensors[t].kinds && !(desc->tensors[t].kinds & 1))
            field = "layer_kinds: NULL, so all layers are of kind 0, which lacks a tensor; set it";
    }
    return field ? MEMOB_INVALID(error, "memo_session_desc.%s", field) : MEMO_STATUS_OK;
}

MEMOI memo_status memoi_session_check_desc(const memo_session_desc* desc, int computes,
                                           memo_error* error) {
    static memo_status (*const checks[])(const memo_session_desc*, memo_error*) = {
        memoi_session_check_tensors, memoi_session_check_order, memoi_session_check_group,
        memoi_session_check_buffers};
    memo_status status = memoi_session_check_numbers(desc, error);
    if (!status) status = memoi_session_check_tables(desc, error);
    if (!status) status = memoi_session_check_pointers(desc, computes, error);
    for (int32_t k = 0; k < 4 && !status; k++) status = checks[k](desc, error);
    return status;
}

/* A copy of n bytes that lives as long as the session; NULL stays NULL. */
MEMOI void* memoi_session_take_copy(memo_session* s, const void* bytes, size_t n) {
    void* copy = bytes ? memob_arrays_add(&s->kept, (int64_t)n + 1, 1) : NULL;
    if (copy) memcpy(copy, bytes, n);
    return copy;
}
MEMOI const char* memoi_session_take_text(memo_session* s, const char* text) {
    return (const char*)memoi_session_take_copy(s, text, text ? strlen(text) + 1 : 0);
}

/* Copies what a desc points to, because the caller's may end before the session does. */
MEMOI memo_status memoi_session_copy_desc(memo_session* s, int opens, memo_error* error) {
    memo_session_desc* own = &s->desc;
    memo_item* tensors;
#define MEMOI_COPY_TABLE(field, n, type)                                                           \
    own->field = (type*)memoi_session_take_copy(s, own->field, (size_t)own->n * sizeof(type));
    MEMOI_SESSION_TABLES(MEMOI_COPY_TABLE)
    if (!own->n_shapes) own->shapes = NULL; /* it plans again with as many */
    tensors = (memo_item*)(uintptr_t)own->tensors;
    for (int32_t t = 0; t < own->n_tensors && tensors; t++)
        tensors[t].name = memoi_session_take_text(s, tensors[t].name);
    if (opens) { /* a plan has the caller's text, and lives longer than the session that makes it */
        own->spill_directory = memoi_session_take_text(s, own->spill_directory);
        own->profile_path = memoi_session_take_text(s, own->profile_path);
    }
    return s->kept.failed ? memob_no_memory(error, "the desc of a session") : MEMO_STATUS_OK;
}

void memo_step_plan_destroy(memo_step_plan* plan) {
    while (plan) {
        memo_step_plan* next = plan->next;
        memo_swap_plan_destroy(plan->times);
        memo_plan_destroy(plan->addresses);
        memo_trace_destroy(plan->trace);
        memob_arrays_free(&((memoi_step_plan*)plan)->arrays);
        MEMO_FREE(plan);
        plan = next;
    }
}

/* Gives each turn its place in order, as in memo_swap_desc.  A forward takes the first free place
 * whose chunks have the same kinds; its backward frees the place.  Returns the number of places.
 * Arrays by place: chunks, the first chunk with its kinds; busy, 0 before and after. */
MEMOI int32_t memoi_session_place_turns(const memo_session_desc* desc, int32_t* order,
                                        int32_t* chunks, int32_t* busy) {
    const int32_t n = desc->n_layers / memoi_session_n_chunks(desc), *kinds = desc->layer_kinds;
    int32_t n_places = 0, p, like;
    for (int32_t k = 0; k < desc->n_order; k++) {
        const int32_t m = desc->order[k].micro_batch, c = desc->order[k].chunk;
        if (desc->order[k].pass == MEMO_PASS_BACKWARD) {
            p = order[memoi_session_find_turn(desc, m, c, MEMO_PASS_FORWARD)];
            MEMO_ASSERT(busy[p]); /* 2 */
            busy[p] = 0;
            order[k] = -1 - p;
            continue;
        }
        for (like = 0; memcmp(kinds + like * n, kinds + c * n, (size_t)n * sizeof *kinds);) like++;
        for (p = 0; p < n_places && (busy[p] || chunks[p] != like);) p++;
        if (p == n_places) chunks[n_places++] = like;
        busy[order[k] = p] = 1;
    }
    return n_places;
}

/* A plan with the given rows, or none.  Tensors are copied, so that the plan outlives its desc. */
MEMOI memo_status memoi_step_plan_create(const memo_session_desc* desc, memo_shape shape,
                                         const int64_t* rows, memo_step_plan** result,
                                         memo_error* error) {
    memoi_step_plan* own = (memoi_step_plan*)memob_calloc(1, sizeof *own);
    const int64_t slice_rows = desc->slice_rows;
    const int32_t n_group = shape.is_forward_only ? 1 : (int32_t)memob_max(desc->n_group, 1);
    const int32_t n_of_batch = (int32_t)((shape.n_rows - 1) / slice_rows + 1);
    const int32_t n = desc->n_tensors, n_slices = n_group * n_of_batch;
    const int32_t n_turns = shape.is_forward_only ? 0 : desc->n_order;
    int32_t n_steps = desc->n_layers * n_slices, n_places = 0, n_of_place = n_steps;
    memo_swap_desc* swap;
    memo_turn* turns;
    int32_t *layer_kinds, *order = NULL, *ends = NULL, *chunks = NULL;
    int64_t* own_rows;
    *result = (memo_step_plan*)own;
    if (!own) return memob_no_memory(error, "a plan");

    /* The places of an order. */
    own->plan.n_chunks = memoi_session_n_chunks(desc);
    if (n_turns) {
        turns = MEMOB_ARRAY(&own->arrays, memo_turn, n_turns);
        order = (int32_t*)memob_arrays_add(&own->arrays, n_turns, 4 * sizeof *order);
        if (own->arrays.failed) return memob_no_memory(error, "the order of a plan");
        memcpy(turns, desc->order, (size_t)n_turns * sizeof *turns);
        ends = order + n_turns;
        for (int32_t k = 0; k < n_turns; k++) ends[k] = turns[k].chunk == own->plan.n_chunks - 1;
        chunks = ends + n_turns;
        n_places = memoi_session_place_turns(desc, order, chunks, chunks + n_turns);
        n_of_place = n_steps / own->plan.n_chunks;
        if (n_places > INT32_MAX / 8 / n_of_place)
            return MEMOB_INVALID(error,
                                 "memo_session_desc.n_layers: %d in %d places of the order "
                                 "are too many; fewer work",
                                 (int)n_of_place, (int)n_places);
        n_steps = n_places * n_of_place;
        own->plan.order = turns;
        own->plan.n_order = n_turns;
    }
    own_rows = MEMOB_ARRAY(&own->arrays, int64_t, (int64_t)n_steps * n);
    layer_kinds = MEMOB_ARRAY(&own->arrays, int32_t, n_steps);
    if (own->arrays.failed) return memob_no_memory(error, "the rows of a plan");
    if (rows) memcpy(own_rows, rows, (size_t)n_steps * (size_t)n * sizeof *rows);

    /* The caller's tables may end before the plan does. */
    for (int32_t i = 0; i < n; i++) {
        own->tensors[i] = desc->tensors[i];
        own->tensors[i].name = strcpy(own->names[i], desc->tensors[i].name);
    }
    for (int32_t i = 0; i < n_steps; i++) {
        const int32_t first = n_turns ? chunks[i / n_of_place] * n_of_place : 0;
        layer_kinds[i] = desc->layer_kinds[(first + i % n_of_place) / n_slices];
    }

    swap = &own->plan.swap;
    swap->desc_name = "memo_session_desc";
    swap->n_places = n_places;
    swap->n_order = n_turns;
    swap->order = order;
    swap->ends = ends;
    swap->tensors = own->tensors;
    swap->layer_kinds = layer_kinds;
    swap->rows = own_rows;
    swap->n_tensors = n;
    swap->n_layers = n_steps;
    swap->n_rows = memob_min(slice_rows, shape.n_rows);
    swap->n_slices = n_slices;
    swap->n_group = n_group;
    swap->layer_rows = shape.n_rows;
    swap->has_loss = desc->loss && (!desc->between || n_turns);
    swap->routed_rows_layer = memoi_session_share(desc, desc->routed_rows_layer, swap->n_rows);
    swap->routed_rows_all = memob_max(
        memoi_session_share(desc, desc->routed_rows_all, shape.n_rows), swap->routed_rows_layer);
    swap->routed_rows_all = n_group * memob_min(swap->routed_rows_all, MEMOB_BYTES_MAX / n_group);
    swap->tile_rows = desc->tile_rows;
    swap->spill_directory = desc->spill_directory;
    swap->spill_bytes_per_s = desc->spill_bytes_per_s;
    own->plan.policy = desc->policy;
    own->plan.slice_rows = slice_rows < desc->n_rows ? slice_rows : 0;
    own->plan.n_group = (int32_t)memob_max(desc->n_group, 1);
    own->plan.shape = shape;
    own->plan.shape.is_forward_only = shape.is_forward_only != 0;
    return memob_swap_check_desc(swap, error);
}

/* Kinds of lines of a plan, in their order. */
enum { MEMOI_LINE_SHAPE, MEMOI_LINE_TENSOR, MEMOI_LINE_TURN, MEMOI_LINE_STEP, MEMOI_LINE_KINDS };

/* A plan as lines of numbers.  A plan must have the first values of each line in common with its
 * session, or rows would go into the wrong tensors; ranks must have the same first values, too.
 * The other values are the plan's choice. */
typedef struct memoi_step_plan_line {
    int32_t of;        /* its kind */
    int32_t n, n_same; /* values; the first of them must be the session's */
    const char* name;  /* of a tensor, which must be the session's too */
    char what[64];     /* for messages */
    const char* words[1 + MEMO_PROFILE_TENSORS_MAX];
    int64_t values[1 + MEMO_PROFILE_TENSORS_MAX];
} memoi_step_plan_line;

MEMOI MEMOB_NOINLINE void memoi_step_plan_add(memoi_step_plan_line* line, const char* word,
                                              int64_t value) {
    MEMO_ASSERT(line->n <= MEMO_PROFILE_TENSORS_MAX); /* 1 */
    line->words[line->n] = word;
    line->values[line->n++] = value;
}

/* Lines of each kind; i: which of its kind, where there are several. */
MEMOI void memoi_step_plan_shape(const memo_step_plan* plan, int32_t i,
                                 memoi_step_plan_line* line) {
    const memo_swap_desc* swap = &plan->swap;
    (void)i;
    const int32_t n_layers = swap->n_layers / (int32_t)memob_max(swap->n_slices, 1);
    memoi_step_plan_add(line, "n_layers",
                        n_layers / (plan->n_order ? swap->n_places : 1) * plan->n_chunks);
    memoi_step_plan_add(line, "n_tensors", swap->n_tensors);
    memoi_step_plan_add(line, "n_rows", plan->shape.n_rows);
    memoi_step_plan_add(line, "slice_rows", plan->slice_rows);
    memoi_step_plan_add(line, "n_group", plan->n_group);
    memoi_step_plan_add(line, "tile_rows", swap->tile_rows);
    memoi_step_plan_add(line, "is_forward_only", plan->shape.is_forward_only);
    memoi_step_plan_add(line, "n_order", plan->n_order);
    line->n_same = line->n;
    memoi_step_plan_add(line, "number of host layers", swap->n_host_layers);
    memoi_step_plan_add(line, "number of streamed states", plan->n_streamed);
    memoi_step_plan_add(line, "number of spilled states", plan->n_spilled);
    memoi_step_plan_add(line, "update on the host", plan->update_is_on_host);
    memoi_step_plan_add(line, "moment of the update", plan->update_at);
}

MEMOI void memoi_step_plan_tensor(const memo_step_plan* plan, int32_t i,
                                  memoi_step_plan_line* line) {
    const memo_item* tensor = &plan->swap.tensors[i];
    snprintf(line->what, sizeof line->what, "tensor `%s`: ", tensor->name);
    line->name = tensor->name;
    memoi_step_plan_add(line, "row_bytes", tensor->row_bytes);
    memoi_step_plan_add(line, "away", tensor->away);
    memoi_step_plan_add(line, "scope", tensor->scope);
    memoi_step_plan_add(line, "is", tensor->is);
    memoi_step_plan_add(line, "kinds", tensor->kinds);
    line->n_same = line->n;
}

MEMOI void memoi_step_plan_turn(const memo_step_plan* plan, int32_t i, memoi_step_plan_line* line) {
    snprintf(line->what, sizeof line->what, "order[%d]: ", (int)i);
    memoi_step_plan_add(line, "micro_batch", plan->order[i].micro_batch);
    memoi_step_plan_add(line, "chunk", plan->order[i].chunk);
    memoi_step_plan_add(line, "pass", (int64_t)plan->order[i].pass);
    line->n_same = line->n;
}

MEMOI void memoi_step_plan_step(const memo_step_plan* plan, int32_t i, memoi_step_plan_line* line) {
    const memo_swap_desc* swap = &plan->swap;
    const int64_t* rows = swap->rows + (int64_t)i * swap->n_tensors;
    snprintf(line->what, sizeof line->what, "layer %d: ", (int)(i / swap->n_slices));
    memoi_step_plan_add(line, "layer_kinds", memob_layer_kind(swap, i));
    line->n_same = 1;
    for (int32_t t = 0; t < swap->n_tensors; t++)
        memoi_step_plan_add(line, "number of rows", rows[t]);
}

/* 0: the plan has no line i. */
MEMOI int memoi_step_plan_get_line(const memo_step_plan* plan, int64_t i,
                                   memoi_step_plan_line* line) {
    const int32_t n_lines[] = {1, plan->swap.n_tensors, plan->n_order, plan->swap.n_layers};
    static void (*const fill[])(const memo_step_plan*, int32_t, memoi_step_plan_line*) = {
        memoi_step_plan_shape, memoi_step_plan_tensor, memoi_step_plan_turn, memoi_step_plan_step};
    MEMOB_TABLE_OF(MEMOI_LINE_KINDS, n_lines);
    MEMOB_TABLE_OF(MEMOI_LINE_KINDS, fill);
    memset(line, 0, sizeof *line);
    while (line->of < MEMOI_LINE_KINDS && i >= n_lines[line->of]) i -= n_lines[line->of++];
    if (line->of == MEMOI_LINE_KINDS) return 0;
    fill[line->of](plan, (int32_t)i, line);
    return 1;
}

/* Says which value of a plan's line is not the session's. */
MEMOI void memoi_step_plan_differs(const memoi_step_plan_line* own,
                                   const memoi_step_plan_line* found, char* text, size_t n_text) {
    for (int32_t k = 0; k < own->n_same && !*text; k++)
        if (found->values[k] != own->values[k])
            snprintf(text, n_text, "%sit has %lld as %s, the session has %lld", own->what,
                     (long long)found->values[k], own->words[k], (long long)own->values[k]);
    if (own->name && strcmp(own->name, found->name))
        snprintf(text, n_text, "%sit has `%.32s` instead", own->what, found->name);
}

/* The device, or a host device of the session's own. */
MEMOI memo_status memoi_session_take_device(memo_session* s, int computes, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    memo_device taken;
    s->device = s->desc.device;
    if (s->device) return memob_device_take(&taken, s->device, "memo_session_desc.device", error);
    if (!computes) return status;
    s->desc.computes_on_host = 1;
#ifndef MEMO_NO_HOST_DEVICE
    memo_host_device_desc host = MEMO_ZERO(memo_host_device_desc);
    status = memo_host_device_create(&host, &s->own_device, error);
    s->device = s->own_device;
#else
    status = memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                            "memo_session_desc.device: NULL, and MEMO_NO_HOST_DEVICE removes the "
                            "host device; pass a device");
#endif
    return status;
}

/* Without a budget the device has what is free now, but for the reserve. */
MEMOI memo_status memoi_session_take_budget(memo_session* s, int computes, memo_error* error) {
    int64_t total_bytes = 0, reserve_bytes = s->desc.reserve_bytes;
    int is_host_device = 0;
    memo_status status;
    if (!s->device) return MEMO_STATUS_OK;
#ifndef MEMO_NO_HOST_DEVICE
    is_host_device = !memob_check_host_device(s->device, NULL);
#endif
    if (computes && is_host_device && !s->desc.computes_on_host && !s->desc.compute_stream)
        return MEMOB_INVALID(error, "memo_session_desc.compute_stream: NULL; pass a stream of the "
                                    "device, or set computes_on_host");
    if (s->desc.device_bytes || !MEMO_DEVICE_HAS(s->device, memory_info)) return MEMO_STATUS_OK;
    status = memo_memory_info(s->device, &s->desc.device_bytes, &total_bytes, error);
    if (status || total_bytes == MEMOB_BYTES_MAX) { /* a device without a limit */
        s->desc.device_bytes = 0;
        return status;
    }
    if (!reserve_bytes && !is_host_device && total_bytes >= (int64_t)4 << 30)
        reserve_bytes =
            memob_min(memob_max((int64_t)1 << 30, total_bytes / 100 * 3), s->desc.device_bytes / 2);
    memob_session_log(s, "session: of %lld free bytes %lld are left to libraries",
                      (long long)s->desc.device_bytes, (long long)reserve_bytes);
    s->desc.device_bytes = memob_max(s->desc.device_bytes - reserve_bytes, 1);
    return MEMO_STATUS_OK;
}

/* --- >>session agreement ---
 * Knows: what ranks must agree on, and the session that is made of a desc: its shapes, which states
 * its plan streams, and whether a plan that is opened is of the desc.  Knows nothing of how a plan
 * is found.
 *
 * Ranks must make the same calls of agree, or ranks would wait for each other for ever.  So each
 * phase that can fail ends with a call of agree, which carries the status.  Whatever a decision
 * depends on is agreed first; decisions are then the same without a word.
 *
 * A session that plans or opens keeps its first failure, and goes on to the end of the phase, where
 * memoi_session_settle makes it every rank's failure.  From then on nothing is exchanged, and no
 * stage fits, so that all loops end. */

/* values[0] is the status; every other value becomes its maximum.  Fails on every rank if a rank
 * has failed. */
MEMOI MEMOB_NOINLINE memo_status memoi_session_agree(const memo_session_desc* desc,
                                                     memo_status status, int64_t* values, int64_t n,
                                                     memo_error* error) {
    memo_status agreed;
    memo_error own;
    if (!desc->agree) return status;
    values[0] = (int64_t)status;
    agreed = desc->agree(desc->user, values, n, &own);
    if (status) return status;
    if (agreed) {
        if (error) *error = own;
        return agreed;
    }
    if (!values[0]) return MEMO_STATUS_OK;
    return memo_error_set(error, (memo_status)values[0],
                          "memo_session: another rank failed (%s); its message gives the reason",
                          memo_status_name((memo_status)values[0]));
}

MEMOI MEMOB_NOINLINE memo_status memob_session_verdict(const memo_session_desc* desc,
                                                       memo_status status, memo_error* error) {
    int64_t value;
    return memoi_session_agree(desc, status, &value, 1, error);
}

/* Ends a phase of a session that plans or opens, with values as above. */
MEMOI MEMOB_NOINLINE void memoi_session_settle_values(memo_session* s, int64_t* values, int64_t n) {
    memo_status status;
    if (s->all_failed) return;
    status = memoi_session_agree(&s->desc, s->failure.status, values, n, &s->call_error);
    s->all_failed = status != MEMO_STATUS_OK;
    memoi_keep(s, status);
}
MEMOI void memoi_session_settle(memo_session* s) {
    int64_t value;
    memoi_session_settle_values(s, &value, 1);
}

/* Hashes the values that must match on all ranks, of lines of a kind; MEMOI_LINE_KINDS: all other
 * values.  The hash is not negative: agree needs -hash. */
MEMOI int64_t memoi_session_digest(const memo_session* s, int32_t of) {
    memoi_step_plan_line line;
    uint64_t digest = 0;
    for (int32_t k = 0; k < s->desc.n_shapes; k++)
        for (int64_t i = 0; memoi_step_plan_get_line(s->parts[k].plan, i, &line); i++)
            for (int32_t v = 0; v < line.n; v++) {
                if ((v < line.n_same ? line.of : (int32_t)MEMOI_LINE_KINDS) != of) continue;
                digest = 31 * digest + memob_hash((const char*)&line.values[v], 8);
                if (v == 0 && line.name)
                    digest = 31 * digest + memob_hash(line.name, (int64_t)strlen(line.name));
            }
    return (int64_t)(digest >> 2);
}

/* Hashes n and bytes [begin, end) of each struct; the name before begin is left out. */
MEMOI int64_t memoi_session_digest_table(const void* table, int64_t n, size_t stride, size_t begin,
                                         size_t end) {
    uint64_t digest = (uint64_t)n;
    for (const char* at = (const char*)table; n > 0; n--, at += stride)
        digest = 31 * digest + memob_hash(at + begin, (int64_t)(end - begin));
    return (int64_t)(digest >> 2);
}
#define MEMOI_DIGEST_TABLE(table, n, type, first, last)                                            \
    memoi_session_digest_table(table, n, sizeof(type), offsetof(type, first),                      \
                               offsetof(type, last) + sizeof((table)->last))

/* Descs must match, and budgets become the least.  has_profile: of the call. */
MEMOI void memoi_session_meet(memo_session* s, int has_profile) {
    enum { N_NUMBERS = MEMOI_N_ALIKE, N = N_NUMBERS + 11 };
    memo_session_desc* own = &s->desc;
    int64_t* const budgets[] = {&own->device_bytes, &own->host_bytes, &own->disk_bytes};
    MEMOB_TABLE_OF(MEMO_N_TIERS, budgets);
    const memob_value* numbers = memoi_session_alike;
    const struct {
        const char* field;
        int64_t value;
    } others[N - N_NUMBERS] = {
        {"shapes", memoi_session_digest(s, MEMOI_LINE_SHAPE)},
        {"tensors", memoi_session_digest(s, MEMOI_LINE_TENSOR)},
        {"layer_kinds", memoi_session_digest(s, MEMOI_LINE_STEP)},
        {"order", memoi_session_digest(s, MEMOI_LINE_TURN)},
        {s->own_plan ? "rows" : NULL, memoi_session_digest(s, MEMOI_LINE_KINDS)},
        {"buffers",
         MEMOI_DIGEST_TABLE(own->buffers, own->n_buffers, memo_session_buffer, size_bytes, kinds)},
        {"states", MEMOI_DIGEST_TABLE(own->states, own->n_states, memo_state, size_bytes, kinds)},
        {"update_on", own->update_host ? 1 + (int64_t)own->update_on : 0},
        {"spill_directory", own->spill_directory != NULL},
        {"alpha", (int64_t)(memob_hash((const char*)&own->alpha, sizeof own->alpha) >> 2)},
        {"profile", has_profile}};
    int64_t values[1 + 2 * N + MEMO_N_TIERS], *highest = values + 1, *lowest = highest + N;
    for (int32_t k = 0; k < N_NUMBERS; k++)
        highest[k] = memob_record_number(&numbers[k], (const char*)own + numbers[k].offset);
    for (int32_t k = N_NUMBERS; k < N; k++) highest[k] = others[k - N_NUMBERS].value;

    /* A value and its negative: the two maxima show whether the value is the same everywhere. */
    for (int32_t k = 0; k < N; k++) lowest[k] = -highest[k];
    for (int32_t k = 0; k < MEMO_N_TIERS; k++)
        lowest[N + k] = *budgets[k] ? -*budgets[k] : -INT64_MAX;
    memoi_session_settle_values(s, values, 1 + 2 * N + MEMO_N_TIERS);
    for (int32_t k = 0; k < N; k++)
        if (highest[k] != -lowest[k]) {
            const char* field = k < N_NUMBERS ? numbers[k].what : others[k - N_NUMBERS].field;
            memoi_keep(s, MEMOB_INVALID(&s->call_error,
                                        "%s%s: not the same on all ranks; give all ranks the same",
                                        field ? "memo_session_desc." : "memo_session_open: plan",
                                        field ? field : ""));
        }
    for (int32_t k = 0; k < MEMO_N_TIERS; k++)
        *budgets[k] = lowest[N + k] == -INT64_MAX ? 0 : -lowest[N + k];
}

/* The longest times.  Times are not negative, or -1 on every rank, so that the order of bits is the
 * order of times.  Names and sizes are the same everywhere.  Not inlined: the copy would stay on
 * the stack of callers, who go on to plan. */
MEMOI MEMOB_NOINLINE void memoi_session_settle_profile(memo_session* s, memo_profile* profile) {
    int64_t values[1 + sizeof(memo_profile) / sizeof(int64_t)]; /* the first carries the status */
    memcpy(values + 1, profile, sizeof *profile);
    memoi_session_settle_values(s, values, (int64_t)(sizeof values / sizeof *values));
    memcpy(profile, values + 1, sizeof *profile);
}

/* A plan must be of the session's shapes and tensors, because kernels rely on it, and fit.  What
 * lives as long as the session lies at one address. */
MEMOI memo_status memoi_session_match(const memo_session* s, const memo_step_plan* first,
                                      memo_error* error) {
    const memo_step_plan *plan = first, *lacking = NULL;
    memoi_step_plan_line own, found;
    char text[200] = "";
    for (int32_t k = 0; k < s->desc.n_shapes; k++, plan = plan->next) {
        if (!plan || (plan->next != NULL) != (k + 1 < s->desc.n_shapes))
            snprintf(text, sizeof text, "the session has %d shapes", (int)s->desc.n_shapes);
        for (int64_t i = 0; !*text && memoi_step_plan_get_line(s->parts[k].plan, i, &own); i++) {
            (void)memoi_step_plan_get_line(plan, i, &found);
            memoi_step_plan_differs(&own, &found, text, sizeof text);
        }
        if (*text)
            return MEMOB_INVALID(error, "memo_session_open: shape %d of the plan: %s; plan again",
                                 (int)k, text);
        if (!plan->fits && (!lacking || plan->device_bytes > lacking->device_bytes)) lacking = plan;

        /* Buffers that live as long as the session. */
        for (int64_t i = memob_min(plan->addresses->n_buffers, first->addresses->n_buffers) - 1;
             i > 0; i--) {
            const memo_buffer *a = &first->addresses->buffers[i], *b = &plan->addresses->buffers[i];
            const int lasts = a->memory_class == MEMO_CLASS_PERSISTENT;
            if (lasts == (b->memory_class == MEMO_CLASS_PERSISTENT) &&
                (!lasts || (a->offset_bytes == b->offset_bytes && a->size_bytes == b->size_bytes)))
                continue;
            return MEMOB_INVALID(error,
                                 "memo_session_open: shape %d of the plan: buffers of the session "
                                 "lie at other addresses than in shape 0; plan again",
                                 (int)k);
        }
    }

    return lacking ? memo_error_set(error, MEMO_STATUS_INFEASIBLE, "%s", lacking->shortage)
                   : MEMO_STATUS_OK;
}

/* 1: the trainer updates states there. */
MEMOI int memoi_session_updates(const memo_session_desc* desc, int on_host) {
    return on_host ? desc->update_host != NULL : desc->update != NULL;
}

/* Copies the kinds of layers, with those of FIRST and LAST.  Checks the table of states, and
 * prepares the engine's desc, in which nothing is streamed yet. */
MEMOI memo_status memoi_session_take_states(memo_session* s, memo_error* error) {
    memo_session_desc* desc = &s->desc;
    memob_states_desc* states = &s->states_desc;
    memo_state* table = (memo_state*)(uintptr_t)desc->states; /* the session's copy */
    const uint32_t ends = MEMO_STATE_FIRST | MEMO_STATE_LAST;
    const int on_host = desc->update_on == MEMO_UPDATE_HOST;
    const int32_t n_layers = desc->n_layers + 2; /* with FIRST and LAST */
    int32_t *kinds = MEMOB_ARRAY(&s->kept, int32_t, n_layers), *turns;
    if (!kinds) return memob_no_memory(error, "the kinds of layers");
    if (desc->layer_kinds)
        memcpy(kinds + 1, desc->layer_kinds, (size_t)desc->n_layers * sizeof *kinds);
    desc->layer_kinds = kinds + 1; /* all 0 without the caller's */
    if (!desc->n_states) return MEMO_STATUS_OK;

    if (!memoi_session_updates(desc, on_host))
        return MEMOB_INVALID(error, "memo_session_desc.%s: NULL, but n_states is %d; set it",
                             on_host ? "update_host" : "update", (int)desc->n_states);
    if (on_host && (desc->states_stay || desc->n_layers < 2))
        return MEMOB_INVALID(error,
                             "memo_session_desc.update_on: HOST, but %s; choose PLANNED or "
                             "DEVICE",
                             desc->states_stay ? "states_stay is 1" : "one layer");

    for (int32_t i = 0; i < desc->n_states; i++) {
        const int is_shared = (desc->states[i].uses & MEMO_STATE_SHARED) != 0;
        if ((desc->states[i].kinds & ends) == ends && !is_shared)
            return MEMOB_INVALID(error,
                                 "memo_session_desc.states[%d].kinds: FIRST and LAST, which would "
                                 "be two states; add MEMO_STATE_SHARED to its uses, or declare "
                                 "one of each",
                                 (int)i);
        if (is_shared && desc->update_host)
            return MEMOB_INVALID(error,
                                 "memo_session_desc.states[%d].uses: SHARED, but update_host is "
                                 "set; leave one of them out",
                                 (int)i);
        if (!desc->states[i].kinds) table[i].kinds = ~ends;
    }

    s->streamed = MEMOB_ARRAY(&s->kept, uint32_t, n_layers);
    s->spilled = MEMOB_ARRAY(&s->kept, uint32_t, n_layers);
    s->whole = MEMOB_ARRAY(&s->kept, int64_t, 2 * (int64_t)n_layers * desc->n_states);
    s->masks = MEMOB_ARRAY(&s->kept, uint32_t, n_layers);
    turns = MEMOB_ARRAY(&s->kept, int32_t, desc->n_order);
    if (s->kept.failed) return memob_no_memory(error, "the states of layers");

    for (int32_t i = 0; i < desc->n_layers; i++)
        if (kinds[1 + i] < 0 || kinds[1 + i] >= 30)
            return MEMOB_INVALID(
                error,
                "memo_session_desc.layer_kinds[%d]: out of range (%d); with states "
                "0 to 29 are valid",
                (int)i, (int)kinds[1 + i]);

    /* Kinds of the states before the first layer and behind the last. */
    kinds[0] = 30;
    kinds[n_layers - 1] = 31;

    /* The turns of an order, by their chunks. */
    states->n_chunks = memoi_session_n_chunks(desc);
    for (int32_t k = 0; k < desc->n_order; k++) {
        const int32_t chunk = desc->order[k].chunk;
        turns[k] = desc->order[k].pass == MEMO_PASS_BACKWARD ? -1 - chunk : chunk;
    }
    states->turns = desc->n_order ? turns : NULL;
    states->n_turns = desc->n_order;

    states->states = s->desc.states;
    states->n_states = desc->n_states;
    states->n_layers = n_layers;
    states->layer_kinds = kinds;
    states->streamed = s->streamed;
    states->spilled = s->spilled;
    return memob_states_get_sizes(states, &s->states_sizes, error);
}

/* When the states of a table leave the device, by what streaming costs: first those that the update
 * alone uses, or forwards alone, then gradients, FETCHED ones, which take no host memory, and
 * others. */
MEMOI int32_t memoi_session_leaves(uint32_t uses) {
    uses &= ~(uint32_t)(MEMO_STATE_MADE | MEMO_STATE_ALONE | MEMO_STATE_SHARED);
    if (!uses || uses == MEMO_STATE_UPDATE) return 0;
    if (uses == MEMO_STATE_GRADIENT) return 1;
    return uses & MEMO_STATE_FETCHED ? 2 : 3;
}

/* Bytes of a state in all layers. */
MEMOI double memoi_session_state_bytes(const memo_session* s, int32_t state) {
    const memob_states_desc* desc = &s->states_desc;
    const memo_state* of = &desc->states[state];
    int64_t n = 0;
    for (int32_t layer = 0; layer < desc->n_layers; layer++)
        n += !of->kinds || of->kinds >> desc->layer_kinds[layer] & 1;
    if (of->uses & MEMO_STATE_SHARED) n = n > 0;
    return (double)n * (double)of->size_bytes;
}

/* The turn of each state.  Small ones, beside the largest, leave behind others: they free little
 * memory, but a layer with a streamed state has a place, for which those of other layers wait.
 * SHARED ones leave last, each with all its layers. */
enum { MEMOI_TURN_SMALL = 4, MEMOI_TURN_SHARED, MEMOI_N_TURNS };
#define MEMOI_SMALL 0.03125
MEMOI void memoi_session_take_turns(const memo_session* s, int32_t* turns) {
    double state_bytes[MEMO_STATES_MAX], largest_bytes = 0;
    for (int32_t i = 0; i < s->states_desc.n_states; i++) {
        state_bytes[i] = memoi_session_state_bytes(s, i);
        largest_bytes = fmax(largest_bytes, state_bytes[i]);
    }
    for (int32_t i = 0; i < s->states_desc.n_states; i++) {
        const uint32_t uses = s->desc.states[i].uses;
        turns[i] = memoi_session_leaves(uses);
        if (state_bytes[i] < MEMOI_SMALL * largest_bytes) turns[i] = MEMOI_TURN_SMALL;
        if (uses & MEMO_STATE_SHARED && memoi_session_leaves(uses)) turns[i] = MEMOI_TURN_SHARED;
    }
}

/* Sets the bits of the first n states of layers that leave the device, or (to_file) the host, for
 * whose file no SHARED state leaves. */
MEMOI void memoi_session_take_first(const memo_session* s, int64_t n, int to_file, uint32_t* bits) {
    const int64_t n_layers = s->states_desc.n_layers;
    const int32_t n_states = s->states_desc.n_states;
    int32_t turns[MEMO_STATES_MAX];
    memset(bits, 0, (size_t)n_layers * sizeof *bits);
    memoi_session_take_turns(s, turns);
    for (int32_t k = 0; k < MEMOI_N_TURNS * n_states; k++) {
        const int32_t i = k % n_states;
        const uint32_t uses = s->desc.states[i].uses;
        const int is_shared = turns[i] == MEMOI_TURN_SHARED;
        const int64_t count = is_shared && n > 0 ? n_layers : memob_min(n, n_layers);
        if (turns[i] != k / n_states || (to_file && (is_shared || uses & MEMO_STATE_FETCHED)))
            continue;
        for (int64_t layer = 0; layer < n_layers; layer++)
            if ((layer + 1) * count / n_layers > layer * count / n_layers) bits[layer] |= 1u << i;
        n -= is_shared ? n > 0 : count;
    }
    if (n_layers <= 3) bits[0] = 0; /* FIRST, one layer and LAST are open at once */
}

/* How many of the first states of layers have a share of the bytes of all. */
MEMOI int64_t memoi_session_first_of(const memo_session* s, double share) {
    const int32_t n_states = s->states_desc.n_states;
    int32_t turns[MEMO_STATES_MAX];
    double left_bytes = 0;
    int64_t n = 0;
    memoi_session_take_turns(s, turns);
    for (int32_t i = 0; i < n_states; i++) left_bytes += share * memoi_session_state_bytes(s, i);

    for (int32_t k = 0; k < MEMOI_N_TURNS * n_states; k++) {
        const int32_t i = k % n_states;
        const int64_t count = turns[i] == MEMOI_TURN_SHARED ? 1 : s->states_desc.n_layers;
        if (turns[i] != k / n_states) continue;
        const double state_bytes = memoi_session_state_bytes(s, i);
        if (left_bytes <= state_bytes && state_bytes > 0)
            return n + (int64_t)ceil(left_bytes / state_bytes * (double)count);
        left_bytes -= state_bytes;
        n += count;
    }
    return n;
}

MEMOI memo_status memoi_session_update_host(void* session, int32_t layer, memo_error* error) {
    memo_session* s = (memo_session*)session;
    void* states[MEMO_STATES_MAX];
    const double begin_s = memob_now_s();
    for (int32_t i = 0; i < s->desc.n_states; i++)
        states[i] = memob_states_get_host_address(s->states, layer, i);
    s->desc.update_host(s->desc.user, layer - 1, states);
    (void)error;
    s->timing.host_s += memob_now_s() - begin_s;
    s->timing.host_bytes += memob_states_update_bytes(s->states, layer);
    return MEMO_STATUS_OK;
}

/* The status of a function of the trainer that takes or gives bytes of a state.  Its error names
 * the state, which other threads do not know as the trainer does. */
MEMOI memo_status memoi_session_name_bytes(const memo_session* s, const char* function,
                                           int32_t layer, int32_t state, int64_t at,
                                           int64_t n_bytes, memo_status status,
                                           const memo_error* why, memo_error* error) {
    if (!status) return status;
    return memo_error_set(error, status, "%s: layer %d, state `%.32s`, bytes %lld to %lld: %.300s",
                          function, (int)layer - 1, memob_session_name(s->desc.states[state].name),
                          (long long)at, (long long)(at + n_bytes),
                          *why->message ? why->message : memo_status_name(status));
}

MEMOI memo_status memoi_session_fetch(void* session, int32_t layer, int32_t state, int64_t at,
                                      void* to, int64_t n_bytes, memo_error* error) {
    const memo_session* s = (const memo_session*)session;
    memo_error why = MEMO_ZERO(memo_error);
    const memo_status status = s->desc.fetch(s->desc.user, layer - 1, state, at, to, n_bytes, &why);
    return memoi_session_name_bytes(s, "memo_session_desc.fetch", layer, state, at, n_bytes, status,
                                    &why, error);
}

/* Streams, spills and updates states as the current plan says. */
MEMOI void memoi_session_stream(memo_session* s) {
    const memo_step_plan* plan = s->part->plan;
    if (!s->streamed) return;
    s->states_desc.device = s->device;
    s->states_desc.compute_stream = s->desc.compute_stream;
    s->states_desc.computes_on_host = s->desc.computes_on_host;
    s->states_desc.spill_directory = s->desc.spill_directory;
    s->states_desc.spill_bytes_per_s = s->desc.spill_bytes_per_s;
    s->states_desc.update_at = plan->update_at;
    s->states_desc.trainer.update_host = plan->update_is_on_host ? memoi_session_update_host : NULL;
    s->states_desc.trainer.fetch = s->desc.fetch ? memoi_session_fetch : NULL;
    s->states_desc.trainer.user = s;
    memoi_session_take_first(s, plan->n_streamed, 0, s->streamed);
    memoi_session_take_first(s, plan->n_spilled, 1, s->spilled);
    memoi_keep(s, memob_states_get_sizes(&s->states_desc, &s->states_sizes, &s->call_error));
}

/* Makes a plan of each shape, without rows but those of the desc. */
MEMOI memo_status memoi_session_fill(memo_session* s, memo_error* error) {
    memo_session_desc* desc = &s->desc;
    memo_step_plan** next = &s->own_plan;
    const int64_t* rows = desc->policy == MEMO_POLICY_ROWS ? desc->rows : NULL;
    const memo_shape all = {desc->n_rows, 0};
    const int32_t n = (int32_t)memob_max(desc->n_shapes, 1);
    if (!desc->slice_rows || desc->slice_rows > desc->n_rows) desc->slice_rows = desc->n_rows;
    for (int32_t k = 0; k < n; k++, next = &(*next)->next) {
        const memo_status status =
            memoi_step_plan_create(desc, desc->n_shapes ? desc->shapes[k] : all, rows, next, error);
        s->parts[k].plan = *next;
        if (status) return status;
        s->most_steps = memob_max(s->most_steps, (*next)->swap.n_layers);
        if (rows) rows += (int64_t)(*next)->swap.n_layers * desc->n_tensors;
    }
    desc->n_shapes = n;
    memoi_session_use_shape(s, 0);
    memoi_session_stream(s);
    return MEMO_STATUS_OK;
}

/* The plan that is opened takes the place of the session's own. */
MEMOI memo_status memoi_session_take_plan(memo_session* s, const memo_step_plan* plan,
                                          memo_error* error) {
    const int on_host = plan->update_is_on_host;
    const memo_status status = memoi_session_match(s, plan, error);
    if (status) return status;
    if (s->streamed && !memoi_session_updates(&s->desc, on_host))
        return MEMOB_INVALID(error, "memo_session_desc.%s: NULL, but the plan needs it; set it",
                             on_host ? "update_host" : "update");
    memo_step_plan_destroy(s->own_plan);
    s->own_plan = NULL;
    for (int32_t k = 0; plan; plan = plan->next) /* never written to, nor destroyed */
        s->parts[k++].plan = (memo_step_plan*)(uintptr_t)plan;
    memoi_session_use_shape(s, 0);
    memoi_session_stream(s);
    return memcmp(s->part->plan->bytes[0], s->states_sizes.bytes[0],
                  sizeof s->states_sizes.bytes[0])
               ? MEMOB_INVALID(error, "memo_session_desc.states: the plan was made for other "
                                      "states; plan again")
               : MEMO_STATUS_OK;
}

/* The log that MEMO_CHECK gives a program without one. */
MEMOI void memoi_session_write_line(MEMO_UNUSED void* user, const char* line) {
    (void)fprintf(stderr, "%s\n", line);
}

/* The caller's desc, checked, with copies of what it points to, and what follows from it; as in
 * memoi_session_make. */
MEMOI memo_status memoi_session_take_desc(memo_session* s, const memo_session_desc* desc,
                                          const memo_step_plan* plan, memo_error* error) {
    const char* check = getenv("MEMO_CHECK");
    memo_status status;
    s->desc = *desc;
    s->timing.policy = desc->policy;
    s->timing.n_group = desc->n_group;
    if (check && *check && strcmp(check, "0")) {
        s->desc.is_checked = 1;
        if (!s->desc.log.write) s->desc.log.write = memoi_session_write_line;
    }
    if (desc->alpha < 0) s->desc.alpha = -1; /* the same on all ranks */
    if (plan) {
        s->desc.policy = MEMO_POLICY_KEEP; /* the plan decides */
        if (!desc->slice_rows) s->desc.slice_rows = plan->slice_rows;
    }
    if (desc->n_group == MEMO_GROUP_PLANNED) s->desc.n_group = plan ? plan->n_group : 1;
    status = memoi_session_check_desc(&s->desc, plan != NULL, error);
    if (!status) status = memoi_session_copy_desc(s, plan != NULL, error);
    if (!status) status = memoi_session_take_states(s, error);
    if (!status) status = memoi_session_take_device(s, plan != NULL, error);
    if (!status) status = memoi_session_take_budget(s, plan != NULL, error);
    if (!status) status = memoi_session_fill(s, error);
    return status || !plan ? status : memoi_session_take_plan(s, plan, error);
}

/* A session for one of the public calls, which may have failed; plan not NULL: the session will run
 * this plan.  Checks, then agrees, so that no rank is left waiting.  NULL: OUT_OF_HOST_MEMORY. */
MEMOI memo_session* memoi_session_make(const memo_session_desc* desc, const memo_step_plan* plan,
                                       int has_profile, memo_error* error) {
    memo_session* s = (memo_session*)memob_calloc(1, sizeof *s);
    if (!s) {
        (void)memob_session_verdict(desc, memob_no_memory(error, "a session"), error);
        return NULL;
    }
    memoi_keep(s, memoi_session_take_desc(s, desc, plan, &s->call_error));
    memoi_session_settle(s);
    if (!s->failure.status && desc->agree) memoi_session_meet(s, has_profile);
    return s;
}

/* --- >>session states ---
 * Knows: the states of a session that runs: who uses them when, which calls are legal, what a
 * failure has damaged, and what a checked session sees.  Knows nothing of what rows are, and of how
 * many states are streamed. */

/* In a checked session no pass writes to a state that the pass only reads, nobody writes to the
 * states of a closed layer, the gradients of a step begin at zero, and an update changes all layers
 * or none. */
#define MEMOI_HASH_ZERO 1 /* all bytes are 0 */

#define MEMOI_GUARD       512
#define MEMOI_SWEPT_BYTES 4096 /* that one thread of a device looks at */

MEMOI void memoi_checked_watch(memo_session* s, memob_watched what, int32_t step, int is_end) {
    if (s->watch && s->checked.slots && !s->error.status) s->watch(s, what, step, is_end);
}

/* 0: the session has failed; so say the other functions of a checked session. */
MEMOI int memob_checked_copy(memo_session* s, char* on_device, char* on_host, int64_t n_bytes,
                             int is_back) {
    return memoi_session_is_ok(s, memob_copy_now(s->device, s->checked.stream, on_device, on_host,
                                                 n_bytes, is_back, &s->call_error));
}

/* Leaves in c->found what rows of the session's device memory hold, and waits. */
MEMOI int memoi_checked_view(memo_session* s, char* bytes, int64_t row_bytes, int64_t n_rows) {
    memoi_checked* c = &s->checked;
    char* image = c->image + (uintptr_t)bytes % 8;
    memo_status status;
    MEMO_ASSERT(n_rows * row_bytes <= c->slot_bytes); /* 3 */
    if (n_rows <= 0) return 1;
    if (c->seen) {
        status = s->device->inspect(s->device->context, c->stream, bytes, row_bytes, n_rows,
                                    c->seen, &s->call_error);
        if (!memoi_session_is_ok(s, status)) return 0;
        return memob_checked_copy(s, (char*)c->seen, (char*)c->found,
                                  n_rows * (int64_t)sizeof *c->found, 0);
    }
    if (!memob_checked_copy(s, bytes, image, n_rows * row_bytes, 0)) return 0;
    for (int64_t row = 0; row < n_rows; row++)
        c->found[row] = memob_row_content(image + row * row_bytes, row_bytes);
    return 1;
}

/* Fills bytes of the session's memory with poison.  A part comes from the host, and doubles. */
MEMOI void memoi_checked_fill(memo_session* s, char* bytes, int64_t n_bytes) {
    const memoi_checked* c = &s->checked;
    int64_t at = memob_min(n_bytes, memob_min(c->slot_bytes, 1 << 20) / 8 * 8), n;
    char* image;
    if (!c->slots || n_bytes <= 0 || s->error.status) return;
    image = c->image + (uintptr_t)bytes % 8;
    memob_poison(image, at);
    if (!memob_checked_copy(s, bytes, image, at, 1)) return;
    for (; at < n_bytes && !s->error.status; at += n) {
        n = memob_min(at, n_bytes - at);
        (void)memoi_session_is_ok(s, memo_copy(s->device, c->stream, MEMO_COPY_ON_DEVICE,
                                               bytes + at, bytes, n, &s->call_error));
    }
    if (!s->error.status)
        (void)memoi_session_is_ok(s, memo_stream_synchronize(s->device, c->stream, &s->call_error));
}

/* Returns how many of the first bytes of the session's memory are poison. */
MEMOI int64_t memoi_checked_sweep(memo_session* s, char* bytes, int64_t n_bytes) {
    const memoi_checked* c = &s->checked;
    int64_t at = 0, n, n_rows, row_bytes;
    for (; c->slots && at < n_bytes && !s->error.status; at += n) {
        n = memob_min(n_bytes - at, c->slot_bytes);
        row_bytes = memob_min(n, MEMOI_SWEPT_BYTES);
        n_rows = n / row_bytes;
        n = n_rows * row_bytes;
        if (!memoi_checked_view(s, bytes + at, row_bytes, n_rows)) break;
        for (int64_t row = 0; row < n_rows; row++)
            if (c->found[row].n_poisoned < row_bytes)
                return at + row * row_bytes + c->found[row].n_poisoned;
    }
    return n_bytes;
}

MEMOI uint64_t memob_checked_hash(memo_session* s, char* address, int64_t size_bytes, int on_host) {
    const memoi_checked* c = &s->checked;
    uint64_t hash = 0;
    int64_t n;
    int is_zero = 1;
    for (int64_t at = 0; at < size_bytes && !s->error.status; at += n) {
        const char* image = on_host ? address + at : c->image;
        n = memob_min(size_bytes - at, c->slot_bytes);
        if (!on_host && !memob_checked_copy(s, address + at, c->image, n, 0)) break;
        for (int64_t k = 0; k < n && is_zero; k++) is_zero = !image[k];
        hash = 31 * hash + memob_digest(image, n);
    }
    return is_zero ? MEMOI_HASH_ZERO : hash | 2;
}
/* 1: a layer is open that finds the state in memory of the checked session. */
MEMOI int memoi_checked_has(const memo_session* s, int32_t layer, int32_t i) {
    return s->checked.lies_of[i] == memob_states_home(s->states, layer, i) + 1;
}

/* Where a state lies: during a visit in memory of the checked session. */
MEMOI void* memob_checked_state_address(const memo_session* s, int32_t layer, int32_t i) {
    const memoi_checked* c = &s->checked;
    return c->slots && memoi_checked_has(s, layer, i)
               ? c->states_memory + c->states_at[i]
               : memob_states_get_address(s->states, layer, i);
}

MEMOI uint64_t memoi_checked_hash_state(memo_session* s, int32_t layer, int32_t i, int on_host) {
    char* address = (char*)(on_host ? memob_states_get_host_address(s->states, layer, i)
                                    : memob_checked_state_address(s, layer, i));
    if (on_host) (void)memoi_session_is_ok(s, memob_states_synchronize(s->states, &s->call_error));
    return memob_checked_hash(s, address, s->desc.states[i].size_bytes, on_host);
}

/* The number of a state among those of all layers; SHARED ones are of their lowest layer. */
MEMOI int64_t memoi_session_item(const memo_session* s, int32_t layer, int32_t state) {
    return (int64_t)memob_states_home(s->states, layer, state) * s->desc.n_states + state;
}

/* What a checked session sees of a layer's states when a pass begins, or is about to end. */
typedef struct memoi_checked_glance {
    int32_t pass, layer, is_end;
    int is_fresh;            /* gradients begin at zero */
    int on_host;             /* an update there */
    int32_t blamed;          /* the latest state */
    int is_due;              /* gradients are not zero */
    int is_changed, has_old; /* updated states did change; there are any */
} memoi_checked_glance;

/* The states that the pass uses, and those that nobody may write meanwhile. */
MEMOI uint32_t memoi_checked_visited(const memo_session* s, const memoi_checked_glance* view) {
    const memob_states* states = s->states;
    const memob_states_layer* of = &states->layers[view->layer];
    const int is_begin_of_update = view->pass == MEMOB_UPDATE && !view->is_end;
    const uint32_t used = memob_states_used(states, view->pass, view->layer) & ~states->hosted;
    uint32_t visited = ~of->streamed | used;
    if (view->on_host) visited = states->updated | (view->is_end ? states->gradients : 0);
    if (is_begin_of_update && !view->on_host) visited &= ~states->made;
    if (view->pass == MEMOB_UPDATE) visited &= ~of->lent;
    if (s->is_filling || (view->is_fresh && view->pass == MEMOB_FORWARD))
        visited &= ~states->gradients;
    return of->has & visited &
           ~(states->gradients & (~states->masks[view->layer] | states->shared));
}

/* The states of a layer that its update changes. */
MEMOI uint32_t memoi_checked_updated(const memo_session* s, int32_t layer) {
    const memob_states_layer* of = &s->states->layers[layer];
    return of->has & ~of->lent & s->states->updated;
}

/* Looks at a state.  Returns what is wrong; NULL: nothing, or the session has failed. */
MEMOI const char* memoi_checked_state(memo_session* s, memoi_checked_glance* view, int32_t i) {
    const uint32_t uses = s->desc.states[i].uses;
    const int is_gradient = (uses & MEMO_STATE_GRADIENT) != 0;
    const int is_update = view->pass == MEMOB_UPDATE;
    const int is_written =
        is_gradient ? view->pass != MEMOB_FORWARD : is_update && (uses & MEMO_STATE_UPDATE);
    const int is_zero_due = is_gradient && view->is_fresh;
    /* What an update makes anew does not show whether it ran: its place had any bytes. */
    const int is_old = !is_gradient && is_written && !(uses & MEMO_STATE_MADE) &&
                       s->states->masks[view->layer] >> i & 1;
    uint64_t* known = &s->checked.states[memoi_session_item(s, view->layer, i)];
    const uint64_t before = *known;
    const uint64_t hash = memoi_checked_hash_state(s, view->layer, i, view->on_host);
    if (s->error.status) return NULL;
    view->blamed = i;
    view->is_due |= is_gradient && before != MEMOI_HASH_ZERO &&
                    (memoi_checked_updated(s, view->layer) & s->states->masks[view->layer]);
    view->is_changed |= is_old && hash != before;
    view->has_old |= is_old;
    *known = is_gradient && is_update && view->is_end ? 0 : hash;

    if (is_zero_due && hash != MEMOI_HASH_ZERO)
        return "not zero when the first backward of a step begins; the device's fill failed, or "
               "something writes to it";
    if (!view->is_end && before && !is_zero_due && hash != before)
        return uses & MEMO_STATE_FETCHED
                   ? "its bytes are not those of before; desc.fetch must give the same bytes each "
                     "time, and nothing may write to them"
                   : "it changed while its layer was closed; write only in passes that may, or "
                     "with memo_session_write_state";
    if (view->is_end && !is_written && hash != before)
        return "the pass wrote to it, but may only read it; add the pass to its uses, or write "
               "to another state";
    return NULL;
}

/* An update changes all layers or none: a learning rate of 0 changes none.  If not, view is of the
 * layer and the state that were missed. */
MEMOI const char* memoi_checked_missed(memo_session* s, memoi_checked_glance* view) {
    memoi_checked* c = &s->checked;
    if (!view->is_end || view->pass != MEMOB_UPDATE || !view->is_due || !view->has_old) return NULL;
    c->n_updated += view->is_changed;
    if (!view->is_changed) c->n_missed = view->layer + 1;
    if (!c->n_updated || !c->n_missed) return NULL;
    view->layer = c->n_missed - 1;
    view->blamed = __builtin_ctz(memoi_checked_updated(s, view->layer));
    return "not changed, although gradients of the layer are not zero, and other layers "
           "change; update each layer";
}

#define MEMOI_GUARD_BYTE 0x3f /* a number in every type: a NaN would hide what is added to it */

MEMOI int64_t memoi_checked_guard_bytes(const memo_session* s, int32_t i) {
    const int64_t size_bytes = s->desc.states[i].size_bytes;
    return memob_align_up(size_bytes, MEMOI_GUARD) - size_bytes + s->checked.guard_bytes;
}

MEMOI uint64_t memoi_checked_hash_guard(memo_session* s, int32_t i) {
    const memoi_checked* c = &s->checked;
    return memob_checked_hash(s, c->states_memory + c->states_at[i] + s->desc.states[i].size_bytes,
                              memoi_checked_guard_bytes(s, i), 0);
}

/* 1: eight bytes of a state are poison, or numbers are made of poison. */
MEMOI int memoi_checked_is_poisoned(memo_session* s, char* bytes, int64_t n_bytes) {
    const memoi_checked* c = &s->checked;
    int64_t n;
    for (int64_t at = 0; at < n_bytes; at += n) {
        n = memob_min(n_bytes - at, c->slot_bytes / 8 * 8);
        if (!memob_checked_copy(s, bytes + at, c->image, n, 0)) return 0;
        if (memob_row_content(c->image, n).is_of_poison) return 1;
        for (int64_t k = 0; k + 8 <= n; k += 8)
            if (memob_row_content(c->image + k, 8).n_poisoned == 8) return 1;
    }
    return 0;
}

/* A state gets another place than in the visit before, with a guard behind it.  from: its bytes;
 * NULL: they are poison.  Returns what is wrong; NULL: nothing, or the session has failed. */
MEMOI const char* memob_checked_place(memo_session* s, int32_t layer, int32_t i, const void* from,
                                      memo_copy_kind kind) {
    memoi_checked* c = &s->checked;
    const int64_t size_bytes = s->desc.states[i].size_bytes;
    const int64_t guard_bytes = memoi_checked_guard_bytes(s, i);
    char* at;
    memo_status status;
    if (!c->is_swept) memoi_checked_fill(s, c->states_memory, 2 * c->states_bytes);
    c->is_swept = 1;
    c->states_at[i] = (c->states_at[i] + c->states_bytes) % (2 * c->states_bytes);
    at = c->states_memory + c->states_at[i];
    if (memoi_checked_sweep(s, at, size_bytes + guard_bytes) < size_bytes + guard_bytes)
        return "something has written to where it lay in an earlier visit; take its address anew "
               "in each visit";

    status = memo_fill(s->device, c->stream, at + size_bytes, MEMOI_GUARD_BYTE, guard_bytes,
                       &s->call_error);
    if (!status && from)
        status = memo_copy(s->device, c->stream, kind, at, from, size_bytes, &s->call_error);
    if (!status) status = memo_stream_synchronize(s->device, c->stream, &s->call_error);
    (void)memoi_session_is_ok(s, status);
    c->guards[i] = memoi_checked_hash_guard(s, i);
    c->lies_of[i] = memob_states_home(s->states, layer, i) + 1;
    return NULL;
}

/* A state leaves its place.  Who kept an address finds poison. */
MEMOI void memob_checked_leave(memo_session* s, int32_t i) {
    memoi_checked* c = &s->checked;
    c->lies_of[i] = 0;
    memoi_checked_fill(s, c->states_memory + c->states_at[i],
                       s->desc.states[i].size_bytes + memoi_checked_guard_bytes(s, i));
}

/* A visit finds its states between guards, SHARED ones where another layer has them, which is open.
 * What an update makes anew is poison before.  Returns what is wrong; NULL: nothing, or the session
 * has failed. */
MEMOI const char* memoi_checked_take_states(memo_session* s, memoi_checked_glance* view) {
    const int is_update = view->pass == MEMOB_UPDATE && !s->is_filling;
    uint32_t used = memob_states_used(s->states, view->pass, view->layer);
    const char* why = NULL;
    for (; used && !why && !s->error.status; used &= used - 1) {
        const int32_t i = view->blamed = __builtin_ctz(used);
        const int is_made = is_update && s->states->made >> i & 1;
        if (memoi_checked_has(s, view->layer, i) && s->checked.n_open[i]++) continue;
        s->checked.n_open[i] = 1;
        why = memob_checked_place(
            s, view->layer, i, is_made ? NULL : memob_states_get_address(s->states, view->layer, i),
            MEMO_COPY_ON_DEVICE);
    }
    return why;
}

/* What a visit has written goes back. */
MEMOI void memoi_checked_return_states(memo_session* s, const memoi_checked_glance* view) {
    const memoi_checked* c = &s->checked;
    const uint32_t written[] = {0, s->states->gradients, s->states->updated}; /* by pass */
    uint32_t used = memob_states_used(s->states, view->pass, view->layer);
    for (; used && !s->error.status; used &= used - 1) {
        const int32_t i = __builtin_ctz(used);
        memo_status status = MEMO_STATUS_OK;
        if (--c->n_open[i]) continue;
        if (written[view->pass] >> i & 1)
            status = memo_copy(s->device, c->stream, MEMO_COPY_ON_DEVICE,
                               memob_states_get_address(s->states, view->layer, i),
                               c->states_memory + c->states_at[i], s->desc.states[i].size_bytes,
                               &s->call_error);
        if (memoi_session_is_ok(s, status)) memob_checked_leave(s, i);
    }
}

/* Where a visit ends: has a state been written behind, or made of what has no value?  NULL: no. */
MEMOI const char* memoi_checked_harm(memo_session* s, memoi_checked_glance* view) {
    const memoi_checked* c = &s->checked;
    const int is_update = view->pass == MEMOB_UPDATE && !s->is_filling;
    uint32_t used = memob_states_used(s->states, view->pass, view->layer);
    for (; used && !s->error.status; used &= used - 1) {
        const int32_t i = view->blamed = __builtin_ctz(used);
        if (memoi_checked_hash_guard(s, i) != c->guards[i])
            return "something writes behind it; its size_bytes is too small";
        if (is_update && s->states->updated >> i & 1 &&
            memoi_checked_is_poisoned(s, c->states_memory + c->states_at[i],
                                      s->desc.states[i].size_bytes))
            return "the update computes it from bytes without a value: of a MEMO_STATE_MADE state, "
                   "which it must write and not read, of an address kept from another visit, of a "
                   "tensor or buffer that has ended, or behind memo_batch.values_bytes; or it "
                   "leaves bytes of a MADE state out";
    }
    return NULL;
}

/* A layer has begun a pass, or is about to end it. */
MEMOI void memoi_checked_visit(memo_session* s, int32_t pass, int32_t layer, int is_end) {
    static const char* const names[] = {"forward", "backward", "update"};
    MEMOB_TABLE_OF(MEMOB_N_PASSES, names);
    const int is_fresh =
        !s->states->layers[layer].has_gradients && (pass == MEMOB_FORWARD || !is_end);
    memoi_checked_glance view = {
        pass, layer, is_end, is_fresh, pass == MEMOB_UPDATE && s->states->updates, 0, 0, 0, 0};
    const char* why = NULL;
    uint32_t visited;
    if (!s->checked.slots) return;
    visited = memoi_checked_visited(s, &view);
    if (is_end) why = memoi_checked_harm(s, &view);
    for (; visited && !why; visited &= visited - 1)
        why = memoi_checked_state(s, &view, __builtin_ctz(visited));
    if (!why) why = memoi_checked_missed(s, &view);
    if (!why && !is_end) why = memoi_checked_take_states(s, &view);
    if (!why && pass == MEMOB_UPDATE) memoi_checked_watch(s, MEMOB_WATCH_UPDATE, layer, is_end);
    if (!why && is_end) memoi_checked_return_states(s, &view);
    if (why)
        MEMOI_SESSION_FAIL(s, MEMO_STATUS_INVALID_ARGUMENT,
                           "checked session: layer %d, state `%.32s`, %s: %s", (int)view.layer - 1,
                           memob_session_name(s->desc.states[view.blamed].name), names[pass], why);
}

/* The open visit does not bring the state, or the layer is closed: an error under every plan. */
MEMOI MEMOB_NOINLINE void memoi_session_lacks_state(memo_session* s, int32_t layer, int32_t state) {
    static const char* const passes[] = {"forward", "backward", "update"};
    static const char* const uses[] = {"FORWARD", "BACKWARD", "UPDATE"};
    const int32_t pass = s->states->layers[layer + 1].open_pass - 1;
    char why[128];
    MEMOB_TABLE_OF(MEMOB_N_PASSES, passes);
    MEMOB_TABLE_OF(MEMOB_N_PASSES, uses);
    snprintf(why, sizeof why,
             "the layer is not open; take addresses between its begin and its end");
    if (pass >= 0 && (pass != MEMOB_UPDATE || !s->states->updates))
        snprintf(why, sizeof why, "the %s does not use it; add MEMO_STATE_%s to its uses",
                 passes[pass], uses[pass]);
    MEMOI_SESSION_FAIL(s, MEMO_STATUS_INVALID_STATE,
                       "memo_session_get_state: layer %d, state `%.32s`: %s, or copy its bytes by "
                       "memo_session_read_state",
                       (int)layer, memob_session_name(s->desc.states[state].name), why);
    memob_session_log(s, "session: %s", s->call_error.message);
}

void* memo_session_get_state(const memo_session* s, int32_t layer, int32_t state) {
    const memob_states_layer* of;
    uint32_t there;
    if (!s || !memoi_session_is_in(s, "state: layer", (int64_t)layer + 1, s->desc.n_layers + 1) ||
        !memoi_session_is_in(s, "state: state", state, s->desc.n_states - 1) || !s->states)
        return NULL;
    of = &s->states->layers[layer + 1];
    if (s->is_filling && s->states->updates &&
        ((s->states->updated | s->states->gradients) >> state & 1))
        return memob_states_get_host_address(s->states, layer + 1, state);
    there = of->open_pass ? memob_states_used(s->states, of->open_pass - 1, layer + 1) : 0;
    if (there >> state & 1) return memob_checked_state_address(s, layer + 1, state);
    if (of->open_pass == 1 + MEMOB_UPDATE && of->lent >> state & 1) return NULL;
    if (of->has & s->states->masks[layer + 1] & 1u << state)
        memoi_session_lacks_state((memo_session*)(uintptr_t)s, layer, state);
    return NULL;
}

/* The trainer updates a layer on the device. */
MEMOI memo_status memoi_session_update_layer(void* session, int32_t layer) {
    memo_session* s = (memo_session*)session;
    const int was_deferred = s->is_deferred;
    int32_t step;
    const int32_t span = memoi_session_update_span(s, layer, &step);
    s->is_deferred |= s->is_running && s->states->update_at == MEMO_UPDATE_DEFERRED;
    memoi_slowing_separate(s);
    memoi_session_mark(s, step, span, 0);
    s->desc.update(s->desc.user, s, layer - 1);
    memoi_session_mark(s, step, span, 1);
    s->is_deferred = was_deferred;
    return s->error.status;
}

/* The last layer's backward is looked at when LAST ends: before either is updated. */
MEMOI memo_status memoi_session_look(void* session, int32_t pass, int32_t layer, int is_end) {
    memo_session* s = (memo_session*)session;
    const int ends_backward = is_end && pass == MEMOB_BACKWARD;
    if (!ends_backward || layer != s->desc.n_layers) memoi_checked_visit(s, pass, layer, is_end);
    if (ends_backward && layer > s->desc.n_layers) memoi_checked_visit(s, pass, layer - 1, is_end);
    return s->error.status;
}

/* The rows that move in the micro-batch; NULL: none.  A forward alone moves what slices hand on,
 * and nothing without slices. */
MEMOI memob_step_rows* memoi_session_moved(const memo_session* s) {
    return s->part->swap && (!s->batch.is_forward_only || s->n_slices > 1) ? &s->part->swap->rows
                                                                           : NULL;
}

/* States and rows of a step come, or may leave. */
MEMOI void memoi_session_visit(memo_session* s, int is_backward, int32_t step, int is_end) {
    const int32_t pass = is_backward ? MEMOB_BACKWARD : MEMOB_FORWARD;
    const int32_t of_layers = step - s->first_step + s->first_layer * s->n_slices;
    memo_status status;
    if (s->error.status) return;
    if (s->states)
        status = memob_states_visit(s->states, pass, of_layers, is_end, &s->call_error);
    else
        status = (is_end ? memob_step_end : memob_step_begin)(s->part->step, &s->call_error);
    (void)memoi_session_is_ok(s, status);
}

/* Updates all layers, in a pass. */
MEMOI void memoi_session_pass_updates(memo_session* s) {
    s->checked.n_updated = s->checked.n_missed = 0;
    s->is_deferred = s->states->n_pending > 0 || s->has_update_values;
    (void)memoi_session_is_ok(s, memob_states_update_all(s->states, &s->call_error));
    s->is_deferred = 0;
}

/* The turn of states that is open; 0 without an order. */
MEMOI int32_t memoi_session_states_turn(const memo_session* s) {
    return s->steps->order ? s->states->turns[s->next_turn] : 0;
}

/* All states but gradients must be set again.  lost: why, and that. */
MEMOI void memoi_session_lose_states(memo_session* s, const memo_error* lost) {
    const int64_t n_states = (int64_t)s->states_desc.n_layers * s->desc.n_states;
    snprintf(s->lost, sizeof s->lost, "%.95s", lost->message);
    memset(s->whole, 0, 2 * (size_t)n_states * sizeof *s->whole);
}

/* Gradients are lost.  If states are, too, the error has the causes, each once, and ends with what
 * to do.  Returns whether they are. */
MEMOI int memoi_session_abandon_states(memo_session* s) {
    memo_error lost;
    const memo_status status = memob_states_abandon(s->states, &lost);
    const memo_status of_device =
        status ? memo_device_status(s->device, &s->call_error) : MEMO_STATUS_OK;
    const int64_t n_states = (int64_t)s->states_desc.n_layers * s->desc.n_states;
    if (s->is_reported) memoi_session_forget(s);
    if (status && !of_device) memoi_session_lose_states(s, &lost);
    if (status && !strstr(s->error.message, lost.message)) { /* it may be abandoned again */
        if (!memoi_session_is_ok(s, of_device)) memob_error_add(&s->error, s->call_error.message);
        if (s->error.status) memob_error_add(&s->error, lost.message);
        s->call_error = lost;
        (void)memoi_session_is_ok(s, status);
    }
    if (s->checked.states) {
        memset(s->checked.states, 0, (size_t)n_states * sizeof *s->checked.states);
        memset(s->checked.lies_of, 0, (size_t)s->desc.n_states * sizeof *s->checked.lies_of);
        memset(s->checked.n_open, 0, (size_t)s->desc.n_states * sizeof *s->checked.n_open);
        s->checked.is_swept = 0;
    }
    return status != MEMO_STATUS_OK;
}

/* A micro-batch has failed, or has no backward. */
MEMOI void memoi_session_lose_gradients(memo_session* s) {
    if (memoi_session_abandon_states(s) || !s->is_part) return;
    if (s->error.status) memob_error_add(&s->error, "run the whole step again");
    s->is_again = 1;
    s->is_part = 0;
}

/* 1: backwards since the last update have left gradients. */
MEMOI int memoi_session_has_part(const memo_session* s) { return s->states->round > 0; }

#define MEMOI_GRADIENTS_LOST                                                                       \
    "a micro-batch of the step has failed, so its gradients are lost; call "                       \
    "memo_session_skip_update, then run the whole step again"

#define MEMOI_MAY_BE_UPDATED                                                                       \
    "update_may has MEMO_MAY_FUSE, so a plan may have updated in the last backward; call "         \
    "memo_session_update"

/* 1: the last micro-batch of a step is, and its update comes next. */
MEMOI int memoi_session_is_over(const memo_session* s) { return s->is_fused || s->states->is_due; }

/* What else comes before a micro-batch; NULL: nothing. */
MEMOI const char* memoi_session_owes(const memo_session* s) {
    const memob_rule rules[] = {{*s->lost != 0, s->lost},
                                {s->is_again && !s->batch.is_forward_only, MEMOI_GRADIENTS_LOST},
                                {memoi_session_is_over(s),
                                 "the last micro-batch of a step is over; memo_session_update "
                                 "comes next, or memo_session_skip_update"}};
    return MEMOB_FIRST_FAULT(rules);
}

/* What is wrong with the masks of the batch; NULL: nothing.  All micro-batches of a step use the
 * same states. */
MEMOI const char* memoi_session_check_masks(const memo_session* s) {
    const uint32_t* masks = s->batch.states;
    if (!s->states) return masks ? "the session has no states" : NULL;
    for (int32_t k = 0; k < s->states->n_layers * s->desc.n_states && masks; k++) {
        const int32_t l = k / s->desc.n_states, i = k % s->desc.n_states;
        if (s->states->layers[l].lent >> i & 1 && (masks[l] ^ masks[s->states->home[i]]) >> i & 1)
            return "a SHARED state is used in some layers, and left out in others; all that have "
                   "it use it, or none";
    }
    if (s->batch.is_forward_only || (!s->next_turn && !memoi_session_has_part(s)) ||
        memob_states_are_same(s->states, s->masks, masks))
        return NULL;
    return "not those of the first micro-batch of this step; all of a step use the same states";
}

/* A micro-batch begins, or the first turn of an order, for all.  Updates that are pending run by
 * the masks of their own step. */
MEMOI void memoi_session_begin_list(memo_session* s) {
    const int is_forward_only = s->batch.is_forward_only;
    const uint32_t* masks = s->batch.states;
    if (s->states->n_pending &&
        (is_forward_only || !memob_states_are_same(s->states, s->states->masks, masks))) {
        memoi_session_pass_updates(s);
        if (s->error.status) memoi_session_abandon_states(s);
    }
    if (s->error.status) return;
    memob_states_take_masks(s->states, masks);
    if (!is_forward_only && !memoi_session_has_part(s))
        memob_states_pass_updates(s->states, s->states->update_at == MEMO_UPDATE_DEFERRED &&
                                                 !s->states->updates && !s->states->n_pending);
    if (!is_forward_only)
        memcpy(s->masks, s->states->masks, (size_t)s->states->n_layers * sizeof *s->masks);
    s->is_fused = 0;
    s->checked.n_updated = s->checked.n_missed = 0;
    (void)memoi_session_is_ok(
        s, memob_states_begin_round(s->states, s->part->step, memoi_session_moved(s),
                                    !s->batch.more_follow, is_forward_only, &s->call_error));
}

/* A micro-batch begins, or a turn. */
MEMOI void memoi_session_begin_round(memo_session* s) {
    const int32_t phase = s->batch.is_forward_only ? MEMOB_EVALUATION : MEMOB_ONLY;
    if (s->error.status) return;
    if (!s->next_turn && s->states)
        memoi_session_begin_list(s);
    else if (!s->next_turn)
        (void)memoi_session_is_ok(
            s, memob_step_go(s->part->step, phase, memoi_session_moved(s), &s->call_error));
    if (!s->states || s->error.status) return;
    (void)memoi_session_is_ok(
        s, memob_states_begin_turn(s->states, memoi_session_states_turn(s), &s->call_error));
}

/* The same ends, if all its layers have computed. */
MEMOI void memoi_session_end_states(memo_session* s) {
    if (!s->states || s->error.status || memoi_session_n_ended(s) != memoi_session_n_visits(s))
        return;
    s->is_fused =
        memoi_session_is_ok(
            s, memob_states_end_turn(s->states, memoi_session_states_turn(s), &s->call_error)) &&
        memob_update_is_fused(s->states->update_at) && !s->states->is_running &&
        !s->batch.is_forward_only && !s->batch.more_follow;
}

/* Why a call of states is not legal now; NULL: it is.  A plan may fuse the update, or not: what is
 * legal does not depend on that. */
MEMOI const char* memoi_session_refuses(const memo_session* s, memoi_states_call call) {
    const int sets_values = call == MEMOI_CALL_SET_UPDATE_VALUES;
    const int is_update = call == MEMOI_CALL_UPDATE || sets_values;
    const int may_fuse = (s->desc.update_may & MEMO_MAY_FUSE) != 0;
    const int is_over = s->states && memoi_session_is_over(s);
    const int is_early = is_update && s->states && !is_over;

    const memob_rule rules[] = {
        {s->kept_bytes != NULL, MEMOB_ASLEEP},
        {s->is_running, "a micro-batch is open; end it first"},
        {s->next_turn != 0, "micro-batches are in flight; run the turns that are left"},
        {sets_values && may_fuse,
         "update_may has MEMO_MAY_FUSE, so a plan may update in the last backward, before these "
         "values are known; leave it out, or give values of the step before in memo_batch.values"},
        {!s->states &&
             (sets_values || call == MEMOI_CALL_SNAPSHOT || (is_update && !s->desc.agree)),
         "the session has no states"},
        {*s->lost && call != MEMOI_CALL_FILL_STATES, s->lost},
        {is_over && call == MEMOI_CALL_SKIP_UPDATE && may_fuse,
         MEMOI_MAY_BE_UPDATED ", and leave out MEMO_MAY_FUSE to skip updates"},
        {is_over && (call == MEMOI_CALL_FILL_STATES || call == MEMOI_CALL_SNAPSHOT) && may_fuse,
         MEMOI_MAY_BE_UPDATED " first"},
        {s->states && call == MEMOI_CALL_SNAPSHOT && s->states->snapshot.is_open,
         "a snapshot is under way; memo_session_finish_snapshot comes next"},
        {is_early && s->is_again, MEMOI_GRADIENTS_LOST},
        {is_early && memoi_session_has_part(s),
         "more_follow was 1 in the latest micro-batch; run the last one with 0, or call "
         "memo_session_skip_update"},
        {is_early, "no step of states is over; run its last micro-batch first"}};
    return MEMOB_FIRST_FAULT(rules);
}

MEMOI memo_status memoi_session_check_call(memo_session* s, memoi_states_call call,
                                           memo_error* error) {
    static const char* const names[] = {
        "update", "skip_update", "flush", "fill_states", "set_update_values", "sleep", "snapshot"};
    MEMOB_TABLE_OF(MEMOI_N_CALLS, names);
    const char* const why = memoi_session_refuses(s, call);
    if (why)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE, "memo_session_%s: %s", names[call],
                              why);
    /* An error of a call between micro-batches is returned, and nothing changes, whatever the plan;
     * but ranks meet in this call. */
    memoi_session_forget(s);
    return s->error.status && !s->desc.agree ? memoi_session_report(s, error) : MEMO_STATUS_OK;
}

MEMOI memo_status memoi_session_update_all(memo_session* s, memo_error* error) {
    memoi_session_forget(s);
    if (!s->error.status) memoi_session_pass_updates(s);
    if (s->error.status) memoi_session_abandon_states(s);
    return memoi_session_report(s, error);
}

#define MEMOI_SESSION_ROUNDS 8 /* numbers of micro-batches that get a step of their own */

/* Two steps had another number of micro-batches than planned: streamed states travel by steps of
 * that number from now on, with the same bits.  Without memory for such a step all goes on. */
MEMOI void memoi_session_take_rounds(memo_session* s) {
    const int32_t n = s->states->n_rounds;
    if (!s->states->sizes.host_bytes || n != s->states->n_rounds_before ||
        n == s->parts->step->list.desc.n_rounds || s->n_rounds_taken == MEMOI_SESSION_ROUNDS)
        return;
    s->n_rounds_taken++;
    for (int32_t k = 0; k < s->desc.n_shapes; k++) {
        memob_step* step = NULL;
        const int32_t n_slices = s->parts[k].step->list.desc.n_slices;
        if (!memob_states_get_step(s->states, n_slices, n, &step, &s->call_error))
            s->parts[k].step = step;
    }
    if (!s->steps->order)
        memob_session_log(
            s,
            "session: steps have %d micro-batches, and micro_batches is %d, for which "
            "the plan is made",
            (int)(n * memoi_session_n_group(s)), (int)s->desc.micro_batches);
}

/* The trainer ends a step.  In a checked session, and before ranks plan again, they compare how
 * many of their steps were skipped, because gradients are sums over ranks. */
MEMOI memo_status memoi_session_take_end(memo_session* s, int is_skipped, memo_error* error) {
    memoi_timing* t = &s->timing;
    memo_status status = MEMO_STATUS_OK;
    int64_t values[3] = {0};
    t->n_skipped += is_skipped;
    values[1] = t->n_skipped;
    values[2] = -values[1];
    if (s->desc.agree && (memoi_session_is_due(s) || s->desc.is_checked))
        status = memoi_session_agree(&s->desc, s->error.status, values, 3, &s->call_error);
    if (!s->error.status) (void)memoi_session_is_ok(s, status); /* the step's own error stays */
    if (!s->error.status && values[1] != -values[2])
        MEMOI_SESSION_FAIL(s, MEMO_STATUS_INVALID_STATE,
                           "of %d steps this rank has skipped %d, ranks %lld to %lld: weights "
                           "differ; let all ranks call memo_session_skip_update, or none",
                           (int)t->n_ended + 1, (int)t->n_skipped, (long long)-values[2],
                           (long long)values[1]);
    memoi_session_end_step(s, !s->error.status);
    return memoi_session_report(s, error);
}

memo_status memo_session_update(memo_session* s, memo_error* error) {
    memo_status status;
    MEMOB_REFUSE_NULL(error, "session", s);
    status = memoi_session_check_call(s, MEMOI_CALL_UPDATE, error);
    if (status) return status;
    if (!s->states) return memoi_session_take_end(s, 0, error);
    memoi_checked_watch(s, MEMOB_WATCH_STEP, 0, 0);
    if (!s->is_fused && s->states->update_at != MEMO_UPDATE_DEFERRED)
        status = memoi_session_update_all(s, error);
    else if (!s->is_fused) {
        memob_states_defer(s->states);
        if (!s->has_update_values) s->values[1] = s->values[0];
    }
    s->is_fused = s->has_update_values = 0;

    if (!status) memoi_session_take_rounds(s);
    return memoi_session_take_end(s, 0, error);
}

memo_status memo_session_set_update_values(memo_session* s, const void* values, int64_t n_bytes,
                                           memo_error* error) {
    memo_status status;
    MEMOB_REFUSE_NULL(error, "session", s);
    if (n_bytes) MEMOB_REFUSE_NULL(error, "values", values);
    if (memob_check_integer("memo_session_set_update_values", "n_bytes", n_bytes, 0,
                            MEMO_BATCH_VALUES_MAX, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    status = memoi_session_check_call(s, MEMOI_CALL_SET_UPDATE_VALUES, error);
    if (status) return status;
    memoi_session_put_values(s, 1, values, n_bytes);
    s->has_update_values = 1;
    return status;
}

memo_status memo_session_flush(memo_session* s, memo_error* error) {
    memo_status status;
    MEMOB_REFUSE_NULL(error, "session", s);
    status = memoi_session_check_call(s, MEMOI_CALL_FLUSH, error);
    if (status || !s->states || !s->states->n_pending) return status;
    return memoi_session_update_all(s, error);
}

/* Updates that are pending are of the step before, whose gradients are not dropped. */
memo_status memo_session_skip_update(memo_session* s, memo_error* error) {
    memo_status status;
    MEMOB_REFUSE_NULL(error, "session", s);
    status = memoi_session_check_call(s, MEMOI_CALL_SKIP_UPDATE, error);
    if (status || !memoi_session_is_told(s)) return status;
    if (s->states && !s->states->n_pending) memoi_session_abandon_states(s);
    s->is_again = s->has_update_values = 0;
    return memoi_session_take_end(s, 1, error);
}

memo_status memo_session_fill_states(memo_session* s,
                                     void (*fill)(void* user, memo_session* session, int32_t layer),
                                     memo_error* error) {
    void (*update)(void*, memo_session*, int32_t);
    memo_error lost;
    int32_t n_filled = 0;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "session", s);
    MEMOB_REFUSE_NULL(error, "fill", fill);
    status = memoi_session_check_call(s, MEMOI_CALL_FILL_STATES, error);
    if (!status && s->states && !*s->lost) status = memo_session_flush(s, error);
    if (status || !s->states) return status;
    update = s->desc.update;
    memoi_session_abandon_states(s);
    s->is_again = s->is_fused = s->has_update_values = 0;
    *s->lost = 0;
    memob_states_take_masks(s->states, NULL);
    s->is_filling = 1;
    if (!s->states->updates) {
        s->states->is_filling = 1;
        s->desc.update = fill;
        status = memoi_session_update_all(s, error);
        s->desc.update = update;
        s->states->is_filling = 0;
        s->is_filling = 0;
        return status;
    }

    /* Fill what lies on the host, when nobody uses it or writes it out.  What lies on the device is
     * then older. */
    memoi_session_forget(s);
    (void)memoi_session_is_ok(s, memob_states_synchronize(s->states, &s->call_error));
    for (int32_t i = 0; i < s->states->snapshot.n_items; i++)
        memob_snapshot_wait(&s->states->snapshot, i);
    if (!s->error.status) memob_states_reset(s->states);
    for (; n_filled < s->states_desc.n_layers && !s->error.status; n_filled++)
        fill(s->desc.user, s, n_filled - 1);
    s->is_filling = 0;
    (void)memoi_session_is_ok(s, memob_states_synchronize(s->states, &s->call_error));
    if (s->error.status && n_filled) {
        (void)memo_error_set(
            &lost, MEMO_STATUS_INVALID_STATE,
            "fill has set up to %d of %d layers; set the states of all layers again", (int)n_filled,
            (int)s->states_desc.n_layers);
        memoi_session_lose_states(s, &lost);
        memob_error_add(&s->error, lost.message);
    }
    return memoi_session_report(s, error);
}

/* Layers are of different steps until all states but gradients have been set.  Pieces of a state
 * add up if each adjoins those before. */
MEMOI void memoi_session_find_whole(memo_session* s, int32_t layer, int32_t state, int64_t begin,
                                    int64_t end) {
    const int32_t n_states = s->desc.n_states;
    int64_t* set = &s->whole[2 * memoi_session_item(s, layer, state)];
    const int adjoins = begin <= set[1] && end >= set[0];
    int32_t n_left = 0;
    set[0] = adjoins ? memob_min(begin, set[0]) : begin;
    set[1] = adjoins ? memob_max(end, set[1]) : end;
    for (int64_t k = 0; k < (int64_t)s->states_desc.n_layers * n_states; k++) {
        const memob_states_layer* of = &s->states->layers[k / n_states];
        const int64_t n_bytes = s->whole[2 * k + 1] - s->whole[2 * k];
        const uint32_t left = of->has & ~(of->lent | s->states->gradients | s->states->fetched);
        n_left += (left >> k % n_states & 1) && n_bytes < s->desc.states[k % n_states].size_bytes;
    }
    if (!n_left) *s->lost = 0;
}

/* Reads bytes of a state, or writes them. */
MEMOI memo_status memoi_session_transfer(memo_session* s, int32_t layer, int32_t state, int reads,
                                         int64_t offset_bytes, void* bytes, int64_t n_bytes,
                                         memo_error* error) {
    const memob_rule rules[] = {
        {s->kept_bytes != NULL, MEMOB_ASLEEP},
        {!s->states, "the session has no states"},
        {s->is_running || s->next_turn,
         "states are read and written between micro-batches, while none is in flight"}};
    const char* const why = MEMOB_FIRST_FAULT(rules);
    memo_status status;
    if (why) return memo_error_set(error, MEMO_STATUS_INVALID_STATE, "memo_session: %s", why);

    if (memoi_session_is_over(s) && s->desc.update_may & MEMO_MAY_FUSE)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE, "memo_session_%s_state: %s first",
                              reads ? "read" : "write", MEMOI_MAY_BE_UPDATED);
    if (memob_check_integer("memo_session", "layer", layer, -1, s->desc.n_layers, error) ||
        memob_check_integer("memo_session", "state", state, 0, s->desc.n_states - 1, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (!reads && s->desc.states[state].uses & MEMO_STATE_GRADIENT)
        return MEMOB_INVALID(error,
                             "memo_session_write_state: state %d is a gradient, which a backward "
                             "sets to zero; write it between begin and end of a backward",
                             (int)state);

    if (reads && s->desc.states[state].uses & MEMO_STATE_GRADIENT && !*s->lost &&
        !memoi_session_is_over(s) && !memoi_session_has_part(s))
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "memo_session_read_state: state `%.32s` is a gradient, which has no "
                              "bytes before the first backward of a step; read it between a "
                              "micro-batch and the update",
                              memob_session_name(s->desc.states[state].name));

    if (!reads && s->desc.states[state].uses & MEMO_STATE_FETCHED)
        return MEMOB_INVALID(error,
                             "memo_session_write_state: state %d is FETCHED: its bytes are what "
                             "desc.fetch gives, each time the same; change them in a new session",
                             (int)state);

    /* Pending updates end before, which know what they leave. */
    if (reads && *s->lost)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE, "memo_session_read_state: %s",
                              s->lost);
    status = *s->lost ? MEMO_STATUS_OK : memo_session_flush(s, error);
    if (!reads && s->checked.states) s->checked.states[memoi_session_item(s, layer + 1, state)] = 0;
    if (!status)
        status = memob_states_transfer(s->states, layer + 1, state, reads, offset_bytes, bytes,
                                       n_bytes, error);
    if (!status && *s->lost)
        memoi_session_find_whole(s, layer + 1, state, offset_bytes, offset_bytes + n_bytes);
    return status;
}

memo_status memo_session_read_state(memo_session* s, int32_t layer, int32_t state,
                                    int64_t offset_bytes, void* bytes, int64_t n_bytes,
                                    memo_error* error) {
    MEMOB_REFUSE_NULL(error, "session", s);
    if (n_bytes) MEMOB_REFUSE_NULL(error, "bytes", bytes);
    return memoi_session_transfer(s, layer, state, 1, offset_bytes, bytes, n_bytes, error);
}
memo_status memo_session_write_state(memo_session* s, int32_t layer, int32_t state,
                                     int64_t offset_bytes, const void* bytes, int64_t n_bytes,
                                     memo_error* error) {
    MEMOB_REFUSE_NULL(error, "session", s);
    return memoi_session_transfer(s, layer, state, 0, offset_bytes, (void*)(uintptr_t)bytes,
                                  n_bytes, error);
}

/* --- >>session checked ---
 * Knows: tensors and buffers of a checked session, where the engine has their rows, and
 * which rows are recomputed.  Knows nothing of when rows move, and of how a plan is found.
 *
 * Two layers are open at most, so a checked session computes in two *slots* beside the engine's
 * memory.  In a slot each tensor lies between guards.  All bytes are poison unless a layer is
 * open there: readers of a layer that has ended get NaN, and the next layer finds what was written.
 * The end of a forward copies the slot to the engine; the begin of a backward takes back what the
 * engine has, and recomputes the rest.
 *
 * Buffers of a micro-batch lie in memory of their own, too, at twice their planned offset, so that
 * behind each buffer lie as many bytes that nobody may write.  What belongs to no buffer is poison.
 * There are two such halves.  A buffer lies in the half where the last buffer with these bytes did
 * not lie, so that the old address stays poison for a while.
 *
 * Slots and halves change places once, after the first backward, or with a plan by measured times:
 * an address that was kept from before is then of no layer that is open.
 *
 * 1. The rows of a tensor lie between the guards of the tensor.
 * 2. Only rows that have a hash are compared.
 * 3. The image of a slot has room for the bytes that are looked at.
 * 4. A buffer and as many bytes behind it lie in a half; the list has room for each. */

#define MEMOI_STATE_GUARD (1 << 20) /* at most */
#define MEMOI_HANDS_ON                                                                             \
    "a layer hands rows on in a buffer of the trainer, which the next layer copies into its own "  \
    "tensor"

/* Where the step is computed: after the move, where its neighbors were. */
MEMOI char* memoi_checked_slot(const memo_session* s, int32_t step) {
    return s->checked.slots + ((step & 1) ^ s->checked.is_moved) * s->checked.slot_bytes;
}

/* 0: the layer lacks the tensor, or the tensor is an EDGE and need not stay. */
MEMOI int64_t memoi_checked_row_bytes(const memo_session* s, int32_t step, int32_t t) {
    if (s->steps->tensors[t].scope == MEMO_EDGE) return 0;
    return memoi_session_place(s, step, t)->row_bytes;
}

/* Most rows of a tensor in a slice of n rows. */
MEMOI int64_t memoi_session_most_rows(const memo_session* s, int32_t t, int64_t n) {
    if (memob_tensor_is_routed(s->steps, t))
        return memoi_session_share(&s->desc, s->desc.routed_rows_layer, n);
    return memob_item_scope(s->steps, t) == MEMO_CARRIED ? memob_min(n, 1) : n;
}
/* Rows of the tensor in this step of this micro-batch. */
MEMOI int64_t memoi_session_tensor_rows(const memo_session* s, int32_t step, int32_t t) {
    return memob_tensor_is_routed(s->steps, t)
               ? memoi_session_place(s, step, t)->n_routed
               : memoi_session_most_rows(s, t, memoi_session_rows(s, step));
}

/* Logs what this plan has passed, because silence may mean that nothing was checked. */
MEMOI void memoi_checked_destroy(memo_session* s) {
    memoi_checked* c = &s->checked;
    if (c->slots && c->n_trained)
        memob_session_log(s, "session: %d micro-batches passed all checks", (int)c->n_trained);
    memob_engine_release(&c->engine);
    memob_arrays_free(&c->arrays);
    memset(c, 0, sizeof *c);
}

/* States of open visits lie beside each other, with guards.  Returns how many bytes they take, with
 * room for what is written behind the last guard. */
MEMOI int64_t memoi_checked_place_states(memo_session* s) {
    memoi_checked* c = &s->checked;
    int64_t at = 0, most = 0;
    for (int32_t i = 0; i < s->desc.n_states; i++)
        most = memob_max(most, s->desc.states[i].size_bytes);
    most = memob_align_up(most, MEMOI_GUARD);
    c->guard_bytes = memob_min(most, MEMOI_STATE_GUARD);
    for (int32_t i = 0; i < s->desc.n_states; i++) {
        c->states_at[i] = at;
        at += memob_align_up(s->desc.states[i].size_bytes, MEMOI_GUARD) + c->guard_bytes;
    }
    c->states_bytes = at;
    return 2 * at + most;
}

/* Takes three layers and four times the buffers on the device, and two layers pinned, beside the
 * budgets.  If times are known, another plan was open, whose addresses the trainer may
 * have kept. */
MEMOI memo_status memoi_checked_create(memo_session* s, memo_error* error) {
    memoi_checked* c = &s->checked;
    const int32_t n = s->desc.n_tensors;
    memob_engine* e = &c->engine;
    memo_status status;
    int64_t at = MEMOI_GUARD, n_requests = 0, n_found, found_bytes, states_bytes, device_bytes;
    for (int32_t k = 0; k < s->desc.n_shapes; k++) {
        const memo_step_plan* plan = s->parts[k].plan;
        n_requests = memob_max(n_requests, plan->addresses->n_buffers);
        c->memory_bytes = memob_max(c->memory_bytes, 4 * plan->bytes[0][MEMO_OWNER_MICRO_BATCH]);
    }

    c->most_rows =
        memob_max(s->desc.slice_rows,
                  memoi_session_share(&s->desc, s->desc.routed_rows_layer, s->desc.slice_rows));
    c->buffers = MEMOB_ARRAY(&c->arrays, memoi_checked_buffer, n_requests);
    c->offsets = MEMOB_ARRAY(&c->arrays, int64_t, n + 1);
    c->hashes = MEMOB_ARRAY(&c->arrays, uint64_t, s->most_steps * c->most_rows * n);
    c->states =
        MEMOB_ARRAY(&c->arrays, uint64_t, (int64_t)s->states_desc.n_layers * s->desc.n_states);
    c->states_at = MEMOB_ARRAY(&c->arrays, int64_t, s->desc.n_states);
    c->guards = MEMOB_ARRAY(&c->arrays, uint64_t, s->desc.n_states);
    c->lies_of = MEMOB_ARRAY(&c->arrays, int32_t, s->desc.n_states);
    c->n_open = MEMOB_ARRAY(&c->arrays, int32_t, s->desc.n_states);
    if (c->arrays.failed) return memob_no_memory(error, "the hashes of a checked session");

    for (int32_t t = 0; t < n; t++) {
        c->offsets[t] = at;
        at = memob_align_up(at + memoi_session_most_rows(s, t, s->desc.slice_rows) *
                                     s->steps->tensors[t].row_bytes,
                            MEMOI_GUARD) +
             MEMOI_GUARD;
    }
    c->offsets[n] = c->slot_bytes = at;

    /* The device may look at rows itself. */
    n_found = memob_max(c->most_rows, at / MEMOI_SWEPT_BYTES + 1);
    found_bytes = MEMO_DEVICE_HAS(s->device, inspect)
                      ? memob_align_up(n_found * (int64_t)sizeof *c->found, MEMOI_GUARD)
                      : 0;
    if (!found_bytes) c->found = MEMOB_ARRAY(&c->arrays, memo_row_content, n_found);
    if (c->arrays.failed) return memob_no_memory(error, "the rows of a checked session");

    states_bytes = memoi_checked_place_states(s);
    device_bytes = 3 * at + c->memory_bytes + found_bytes + states_bytes;
    memob_engine_begin(e, s->device, NULL, 0, NULL, NULL);
    status = memob_engine_acquire(e, "", device_bytes, at + MEMOI_GUARD + found_bytes, error);
    c->stream = s->desc.compute_stream;
    if (!status && s->desc.computes_on_host) {
        status = memob_engine_take_streams(e, MEMOB_STREAM_TO_HOST, error);
        c->stream = e->streams[MEMOB_STREAM_TO_HOST];
    }
    c->image = e->memory.host;
    c->is_moved = s->timing.is_known;
    if (status == MEMO_STATUS_OUT_OF_DEVICE_MEMORY)
        memo_error_set(
            error, status,
            "a checked session takes %lld bytes of the device beside device_bytes; lower "
            "device_bytes, or set is_checked and MEMO_CHECK to 0",
            (long long)device_bytes);
    if (status) return status;
    c->slots = e->memory.device;
    c->memory = c->slots + (c->memory_bytes ? 3 : 2) * at;
    c->states_memory = c->slots + device_bytes - states_bytes;
    if (!found_bytes) return status;
    c->found = (memo_row_content*)(void*)(c->image + at + MEMOI_GUARD);
    c->seen = (memo_row_content*)(void*)(e->memory.device + 3 * at + c->memory_bytes);
    return status;
}

/* Copies all rows but the recomputed between a slot and the engine's memory.  LAYER tensors are
 * computed in the engine's memory, so that their rows always go to the slot. */
MEMOI int memoi_checked_exchange(memo_session* s, int32_t step, int is_back) {
    const memoi_checked* c = &s->checked;
    memo_status status = MEMO_STATUS_OK;
    for (int32_t t = 0; t < s->desc.n_tensors; t++) {
        const int64_t n = memoi_session_tensor_rows(s, step, t);
        const memob_swap_place* place = memoi_session_place(s, step, t);
        const int64_t row_bytes = memoi_checked_row_bytes(s, step, t);
        const int64_t bounds[4] = {0, memob_min(place->recompute_begin, n),
                                   memob_min(place->recompute_end, n), n};
        char* slot = memoi_checked_slot(s, step) + c->offsets[t];
        char* engine = s->part->base + place->offset;
        MEMO_ASSERT(n * row_bytes <= c->offsets[t + 1] - MEMOI_GUARD - c->offsets[t]); /* 1 */
        if (place->is_layer) engine += step % s->n_of_batch * s->steps->n_rows * row_bytes;
        for (int32_t part = 0; part < 4 && !status; part += 2) {
            const int64_t at = bounds[part] * row_bytes, end = bounds[part + 1] * row_bytes;
            const int is_to_slot = is_back || place->is_layer;
            if (at < end)
                status = memo_copy(s->device, c->stream, MEMO_COPY_ON_DEVICE,
                                   (is_to_slot ? slot : engine) + at,
                                   (is_to_slot ? engine : slot) + at, end - at, &s->call_error);
        }
    }
    if (!status) status = memo_stream_synchronize(s->device, c->stream, &s->call_error);
    return memoi_session_is_ok(s, status);
}

/* Hashes of the rows of tensor t in a step; 0: nothing was written. */
MEMOI uint64_t* memoi_checked_hashes(const memo_session* s, int32_t step, int32_t t) {
    return s->checked.hashes + ((int64_t)step * s->desc.n_tensors + t) * s->checked.most_rows;
}

/* The first row in [begin, end) of the slot that differs from the forward's, which is c->found[0]
 * then; end: none.  is_forward: these are the forward's; the first row that is computed from
 * poison. */
MEMOI int64_t memoi_checked_first(memo_session* s, int32_t step, int32_t t, int64_t begin,
                                  int64_t end, int is_forward) {
    memoi_checked* c = &s->checked;
    uint64_t* hashes = memoi_checked_hashes(s, step, t);
    const int64_t row_bytes = memoi_checked_row_bytes(s, step, t);
    char* rows = memoi_checked_slot(s, step) + c->offsets[t] + begin * row_bytes;
    MEMO_ASSERT(begin >= 0 && end <= c->most_rows && step < s->most_steps); /* 2 */
    if (!memoi_checked_view(s, rows, row_bytes, end - begin)) return end;
    for (int64_t i = 0; begin < end; begin++, i++) {
        const memo_row_content* row = &c->found[i];
        const uint64_t hash = row->n_poisoned < row_bytes ? row->digest : 0;
        if (is_forward) hashes[begin] = hash;
        if (hash == hashes[begin] && !(is_forward && row->is_of_poison)) continue;
        c->found[0] = *row;
        break;
    }
    return begin;
}

/* A row of a slot differs from the forward's.  why NULL: it was recomputed, and is c->found[0]. */
MEMOI memo_status memoi_checked_blame(memo_session* s, int32_t step, int32_t t, int64_t row,
                                      const char* why) {
    static const char* const guesses[] = {
        "recompute gives it other bytes than the forward; it must compute the same rows by "
        "the same operations, or tile_rows is too small, or the table has another order, or "
        "weights or tensors before it changed since; if no tensor before it gives it, "
        "declare it MEMO_MOVE",
        "recompute did not write it; recompute it, declare it MEMO_WITH behind the tensor "
        "that it is computed with, or declare it MEMO_MOVE",
        "recompute writes it, but the forward had not when the layer ended; give layers that "
        "lack it another kind, compute on compute_stream, or set memo_batch.n_rows"};
    const int is_new = !memoi_checked_hashes(s, step, t)[row];
    const int is_poison = s->checked.found[0].n_poisoned == memoi_checked_row_bytes(s, step, t);
    if (!why) why = guesses[is_new ? 2 : is_poison];
    return memo_error_set(&s->call_error, MEMO_STATUS_INVALID_ARGUMENT,
                          "checked session: layer %d, tensor `%s`, row %lld: %s",
                          (int)memob_session_layer(s, step), s->steps->tensors[t].name,
                          (long long)(step % s->n_of_batch * s->steps->n_rows + row), why);
}

/* No row of n has been written. */
MEMOI int memoi_checked_is_unwritten(const memo_session* s, int32_t step, int32_t t, int64_t n) {
    const uint64_t* hashes = memoi_checked_hashes(s, step, t);
    int64_t row = 0;
    while (row < n && !hashes[row]) row++;
    return n > 0 && row == n && memoi_checked_row_bytes(s, step, t) > 0;
}

/* Is all of a slot poison behind the n_rows rows of a tensor? */
MEMOI int memoi_checked_ends(memo_session* s, int32_t step, int32_t t, int64_t* n_rows) {
    const memoi_checked* c = &s->checked;
    int64_t behind, n_bytes;
    *n_rows = memob_tensor_is_routed(s->steps, t) ? memoi_session_tensor_rows(s, step, t)
                                                  : memoi_session_most_rows(s, t, s->steps->n_rows);
    behind = c->offsets[t] + *n_rows * s->steps->tensors[t].row_bytes;
    n_bytes = c->offsets[t + 1] - behind;
    return memoi_checked_sweep(s, memoi_checked_slot(s, step) + behind, n_bytes) == n_bytes;
}

/* After which computation of a layer its slot is looked at. */
typedef enum memoi_checked_after {
    MEMOI_CHECKED_FORWARD,
    MEMOI_CHECKED_RECOMPUTATION,
    MEMOI_CHECKED_BACKWARD,
    MEMOI_N_CHECKED
} memoi_checked_after;

/* Looks at a slot.  Nobody wrote behind the rows of a tensor.  The forward's rows are hashed, and
 * the rows that the backward gets must have the same bytes. */
MEMOI int memoi_checked_look(memo_session* s, int32_t step, memoi_checked_after after) {
    static const char* const names[] = {"forward", "recomputation", "backward"};
    MEMOB_TABLE_OF(MEMOI_N_CHECKED, names);
    const memoi_checked* c = &s->checked;
    const int is_forward = after == MEMOI_CHECKED_FORWARD;

    for (int32_t t = 0; t < s->desc.n_tensors; t++) {
        const memo_item* tensor = &s->steps->tensors[t];
        int64_t n_rows;
        if (memoi_checked_ends(s, step, t, &n_rows)) continue;
        MEMOI_SESSION_FAIL(
            s, MEMO_STATUS_INVALID_ARGUMENT,
            "checked session: layer %d, tensor `%s`, row %lld: the %s wrote behind "
            "its %lld rows of %lld bytes; %s",
            (int)memob_session_layer(s, step), tensor->name, (long long)n_rows, names[after],
            (long long)n_rows, (long long)tensor->row_bytes,
            memob_tensor_is_routed(s->steps, t)
                ? "call memo_session_set_routed with all rows before they are written"
                : "row_bytes or n_rows is too small, or the table has another order than "
                  "the kernels");
        return 0;
    }

    if (s->error.status || after == MEMOI_CHECKED_BACKWARD) return !s->error.status;
    for (int32_t t = 0; t < s->desc.n_tensors; t++) {
        const int is_by_rows = memob_is_recomputed(memob_item_away(s->steps, t)) &&
                               !memob_tensor_is_routed(s->steps, t);
        const int64_t n = memoi_session_tensor_rows(s, step, t);
        const int64_t row = memoi_checked_first(s, step, t, 0, n, is_forward);
        const char* why = NULL;
        int64_t begin = 0, end = n;
        if (row == n && is_forward && !s->batch.is_forward_only && !s->part->skipped[step] &&
            memoi_checked_is_unwritten(s, step, t, n)) {
            MEMOI_SESSION_FAIL(
                s, MEMO_STATUS_INVALID_ARGUMENT,
                "checked session: the forward of layer %d wrote nothing into `%s`: a forgotten or "
                "cached address, bytes of a tensor that has ended, or a layer that lacks the "
                "tensor; call memo_session_get_address each time, give such layers another kind, "
                "and call memo_session_skip_layer if one is left out on purpose; " MEMOI_HANDS_ON,
                (int)memob_session_layer(s, step), s->steps->tensors[t].name);
            return 0;
        }
        if (row == n) continue;
        if (!is_forward && (!s->spans_s || !is_by_rows))
            memo_swap_get_recompute_rows(s->part->swap, step, t, &begin, &end);
        if (is_forward)
            why = c->n_trained
                      ? "its weights or its input are NaN since the micro-batch before: the "
                        "backward read bytes never written, or of a tensor or buffer that has ended"
                      : "it is computed from bytes never written, or of a tensor or buffer that "
                        "has ended";
        else if (row < begin || row >= end)
            why = "it came back with other bytes; something writes to memory of the session";
        if (why || s->spans_s || !memoi_session_is_by_backward(s, t))
            return memoi_session_is_ok(s, memoi_checked_blame(s, step, t, row, why));
    }
    return !s->error.status;
}

/* Nobody wrote to the slot since another layer, or the forward of this layer, ended there.  In the
 * backward the slot gets what the engine has; all other rows are poison until they are
 * recomputed. */
MEMOI void memoi_checked_open(memo_session* s, int32_t step, int is_backward) {
    const memoi_checked* c = &s->checked;
    const int32_t other = is_backward ? step + 2 : step - 2;
    const int32_t closed = other >= 0 && other < s->n_steps ? other : step;
    int64_t i = memoi_checked_sweep(s, memoi_checked_slot(s, step), c->slot_bytes);
    int32_t t = 0;
    if (s->error.status) return;
    if (i < c->slot_bytes) {
        while (i >= c->offsets[t + 1]) t++;
        i = memob_max(i - c->offsets[t], 0) / memob_max(s->steps->tensors[t].row_bytes, 1);
        (void)memoi_session_is_ok(
            s, memoi_checked_blame(
                   s, closed, t, i,
                   "its bytes changed after the layer had ended; a kernel of "
                   "another layer, or on another stream, writes there; " MEMOI_HANDS_ON));
    } else if (is_backward) {
        (void)memoi_checked_exchange(s, step, 1);
    }
}

/* EDGE rows that a turn begins with are poison until the trainer writes them. */
MEMOI void memoi_checked_open_edge(memo_session* s, const memob_row_visit* visit) {
    const memob_swap_placement* p = &s->part->placement;
    const memob_swap_place* place;
    if (p->handed < 0 || !memob_swap_is_edge_new(p, visit)) return;
    place = memoi_session_place(s, visit->layer, p->handed);
    memoi_checked_fill(s, s->part->base + place->offset,
                       memoi_session_rows(s, visit->layer) * place->row_bytes);
}

/* After a forward the rows go to the engine.  Nobody uses a layer that has ended: it is poison. */
MEMOI void memoi_checked_layer_end(memo_session* s, int32_t step, memo_pass pass) {
    const int is_forward = pass == MEMO_PASS_FORWARD, leaves = is_forward && s->part->swap;
    memoi_checked_watch(s, is_forward ? MEMOB_WATCH_FORWARD : MEMOB_WATCH_BACKWARD, step, 1);
    if ((!leaves || memoi_checked_exchange(s, step, 0)) &&
        memoi_checked_look(s, step, is_forward ? MEMOI_CHECKED_FORWARD : MEMOI_CHECKED_BACKWARD))
        memoi_checked_fill(s, memoi_checked_slot(s, step), s->checked.slot_bytes);
}

/* Which tensor's call recomputes u?  -1: none; LAYER tensors do not lie in the slot. */
MEMOI int32_t memoi_checked_caller(const memo_session* s, int32_t step, int32_t u) {
    const int32_t t = memob_item_leader(s->steps->tensors, u);
    return memob_swap_is_layer(s->steps, u) || !memoi_session_recomputes(s, step, t) ? -1 : t;
}

/* Copies a slot to the third, or back. */
MEMOI int memoi_checked_save(memo_session* s, int32_t step, int is_back) {
    const memoi_checked* c = &s->checked;
    char *slot = memoi_checked_slot(s, step), *saved = c->slots + 2 * c->slot_bytes;
    memo_status status =
        memo_copy(s->device, c->stream, MEMO_COPY_ON_DEVICE, is_back ? slot : saved,
                  is_back ? saved : slot, c->slot_bytes, &s->call_error);
    if (!status) status = memo_stream_synchronize(s->device, c->stream, &s->call_error);
    return memoi_session_is_ok(s, status);
}

#define MEMOI_CHECKED_RUNS 4

/* Rows of run i, of at most MEMOI_CHECKED_RUNS tiles among n rows: the first tile, the last, and
 * some between.  0: there are not so many. */
MEMOI int memob_checked_run(int64_t n, int64_t tile_rows, int32_t i, int64_t* begin, int64_t* end) {
    const int64_t last = (n - 1) / tile_rows, n_runs = memob_min(MEMOI_CHECKED_RUNS, last + 1);
    *begin = i * last / memob_max(n_runs - 1, 1) * tile_rows;
    *end = memob_min(*begin + tile_rows, n);
    return i >= 0 && i < n_runs;
}

/* Does recomputation by runs of so many rows give the forward's bits to tensor t and to tensors
 * recomputed with t, and leave the bytes behind their rows alone?  Else s->call_error names a row.
 * A few runs are tried; the slot is as before afterwards, although kernels that compute whole
 * tiles write behind a shorter run. */
MEMOI int memoi_checked_keeps_bits(memo_session* s, int32_t step, int32_t t, int64_t tile_rows) {
    const memoi_checked* c = &s->checked;
    const int64_t n = memoi_session_tensor_rows(s, step, t);
    int64_t begin, end;
    char* slot = memoi_checked_slot(s, step);
    int keeps = 1;

    /* Before, these and later tensors are poison, so no run finds bytes that it must not read.  The
     * last run is first, so no run finds the rows before its own. */
    if (!memoi_checked_save(s, step, 0)) return 0;
    for (int32_t u = 0; u < s->desc.n_tensors; u++)
        if (memoi_checked_caller(s, step, u) >= t)
            memoi_checked_fill(s, slot + c->offsets[u],
                               memoi_session_tensor_rows(s, step, u) *
                                   memoi_checked_row_bytes(s, step, u));
    if (s->error.status) return 0;
    for (int32_t i = MEMOI_CHECKED_RUNS - 1; i >= 0; i--)
        if (memob_checked_run(n, tile_rows, i, &begin, &end))
            s->desc.recompute(s->desc.user, s, memob_session_layer(s, step), t, begin, end);

    for (int32_t u = 0; u < s->desc.n_tensors && keeps; u++) {
        if (memoi_checked_caller(s, step, u) != t) continue;
        for (int32_t i = 0; keeps && memob_checked_run(n, tile_rows, i, &begin, &end); i++) {
            const int64_t row = memoi_checked_first(s, step, u, begin, end, 0);
            keeps = row == end;
            if (!keeps) (void)memoi_checked_blame(s, step, u, row, NULL);
        }
    }
    for (int32_t u = 0; u < s->desc.n_tensors && keeps; u++) {
        int64_t n_rows;
        keeps = memoi_checked_caller(s, step, u) != t || memoi_checked_ends(s, step, u, &n_rows);
        if (!keeps)
            (void)memoi_checked_blame(s, step, u, n_rows,
                                      "recompute writes behind the rows that it is given; compute "
                                      "only these, or set tile_rows to what a kernel computes");
    }
    return memoi_checked_save(s, step, 1) && keeps;
}

/* Does recompute give each tensor of each kind its bits?  Also the least tile_rows that does. */
MEMOI void memoi_checked_test_tiles(memo_session* s, int32_t step) {
    const int64_t given = memob_swap_tile_rows(s->steps);
    for (int32_t t = 0; t < s->desc.n_tensors && !s->error.status; t++) {
        const memo_item* tensor = &s->steps->tensors[t];
        const int64_t n = memoi_session_tensor_rows(s, step, t);
        int64_t least = tensor->away == MEMO_WHOLE ? n : 1;
        int keeps;
        if (!n || !memoi_session_recomputes(s, step, t) || memoi_session_is_by_backward(s, t))
            continue;
        while (!(keeps = memoi_checked_keeps_bits(s, step, t, least)) && least < n)
            least = memob_min(2 * least, n);
        if (s->error.status) return;

        if (!keeps) {
            (void)memoi_session_is_ok(s, MEMO_STATUS_INVALID_ARGUMENT); /* s->call_error */
            return;
        }
        if (tensor->away == MEMO_WHOLE) continue;
        memob_session_log(s, "session: tensor `%s` keeps its bits in tiles of %lld rows",
                          tensor->name, (long long)least);

        if (memoi_checked_keeps_bits(s, step, t, given) || s->error.status) continue;
        MEMOI_SESSION_FAIL(
            s, MEMO_STATUS_INVALID_ARGUMENT,
            least < n
                ? "checked session: tensor `%s` has other bits if it is recomputed "
                  "in tiles of %lld rows, or they write behind these; check row_bytes (larger "
                  "than what the kernel writes?); if it is right, tile_rows of %lld would "
                  "work"
                : "checked session: tensor `%s` has other bits if it is recomputed "
                  "in tiles of %lld rows, but not if all %lld are; compute rows from "
                  "`begin`, check row_bytes, or make it WHOLE",
            tensor->name, (long long)given, (long long)least);
    }
}

/* Before a backward: every row has the bytes that the forward gave it. */
MEMOI void memoi_checked_backward_begin(memo_session* s, int32_t step) {
    memoi_checked* c = &s->checked;
    const uint32_t kind = 1u << memob_layer_kind(s->steps, step);
    if (s->error.status || !memoi_checked_look(s, step, MEMOI_CHECKED_RECOMPUTATION)) return;
    memoi_checked_watch(s, MEMOB_WATCH_BACKWARD, step, 0);
    if (s->error.status || (c->kinds & kind) || step % s->n_slices || s->part->skipped[step])
        return;
    c->kinds |= kind;
    memoi_checked_watch(s, MEMOB_WATCH_RECOMPUTATION, step, 0);
    memoi_checked_test_tiles(s, step);
    memoi_checked_watch(s, MEMOB_WATCH_RECOMPUTATION, step, 1);
}

/* Bytes [begin, end) must be poison; those of a buffer that lives may have any value. */
MEMOI void memoi_checked_verify(memo_session* s, int64_t begin, int64_t end) {
    const memoi_checked* c = &s->checked;
    if (!c->slots) return;
    while ((begin += memoi_checked_sweep(s, c->memory + begin, end - begin)) < end) {
        const memoi_checked_buffer *b = NULL, *moved = NULL; /* the last in this half; in any */
        int64_t in = 0;
        for (int64_t i = 0; i < c->n_buffers; i++) {
            const memoi_checked_buffer* of = &c->buffers[i];
            if ((begin - of->at + c->memory_bytes) % (c->memory_bytes / 2) >= 2 * of->n_bytes)
                continue;
            moved = of;
            if (of->at <= begin && begin < of->at + 2 * of->n_bytes) b = of;
        }

        if (b) in = begin - b->at;
        if (b && b->address && in < b->n_bytes) {
            begin = b->at + b->n_bytes;
            continue;
        }

        if (!b) b = moved;
        MEMOI_SESSION_FAIL(
            s, MEMO_STATUS_INVALID_ARGUMENT,
            "checked session: buffer `%s` of %lld bytes: something writes %s",
            b && b->name ? b->name : "memo_session_alloc", (long long)(b ? b->n_bytes : 0),
            b && in >= b->n_bytes
                ? "behind it; its size is too small"
                : "to it after it has ended; its last pass or layer comes too early (the backward "
                  "ends with layer 0), or its address was kept");
        return;
    }
}

/* Where a buffer lies that the arena has at an address. */
MEMOI void* memoi_checked_request(memo_session* s, void* address, int64_t n_bytes,
                                  const char* name) {
    memoi_checked* c = &s->checked;
    const memo_step_plan* plan = s->part->plan;
    const int64_t half = c->memory_bytes / 2;
    int is_behind = c->is_moved;
    memoi_checked_buffer* b;
    if (!c->slots || !s->is_running || s->error.status || n_bytes <= 0) return address;
    MEMO_ASSERT(c->n_buffers < plan->addresses->n_buffers); /* 4 */
    b = &c->buffers[c->n_buffers];
    b->address = address;
    b->name = name;
    b->n_bytes = n_bytes;
    b->at = 2 * ((char*)address - (char*)s->device_memory - plan->device_bytes +
                 plan->bytes[0][MEMO_OWNER_MICRO_BATCH]);
    MEMO_ASSERT(b->at >= 0 && b->at + 2 * n_bytes <= half); /* 4 */
    for (int64_t i = c->n_buffers - 1; i >= 0; i--) {
        const int64_t before = c->buffers[i].at % half;
        if (before >= b->at + 2 * n_bytes || b->at >= before + 2 * c->buffers[i].n_bytes) continue;
        is_behind = c->buffers[i].at < half;
        break;
    }
    if (is_behind) b->at += half;
    memoi_checked_verify(s, b->at, b->at + 2 * n_bytes);
    c->n_buffers++;
    return c->memory + b->at;
}

/* The arena's address of a buffer that ends. */
MEMOI void* memoi_checked_release(memo_session* s, void* address) {
    memoi_checked* c = &s->checked;
    for (int64_t i = c->n_buffers - 1; i >= 0; i--) {
        memoi_checked_buffer* b = &c->buffers[i];
        void* own = b->address;
        if (!own || c->memory + b->at != (char*)address) continue;
        memoi_checked_verify(s, b->at + b->n_bytes, b->at + 2 * b->n_bytes);
        memoi_checked_fill(s, (char*)address, 2 * b->n_bytes);
        b->address = NULL;
        return own;
    }
    return address;
}

/* --- >>session running ---
 * Knows: the plan that runs, arena, engines, the trainer's functions.  Knows nothing of how a plan
 * is found.
 *
 * 1. Two steps are open at most, the older first.
 * 2. The engine's visit is of the session's step. */

/* The first step of a layer of this turn, unless another step of the layer is open. */
MEMOI int32_t memoi_session_open_step(const memo_session* s, int32_t layer) {
    const int32_t step = memoi_session_step(s, layer), open = memoi_session_open(s);
    return open > step && open < step + s->n_slices ? open : step;
}

/* Where a tensor of a layer lies; NULL if it is absent, or after an error.  is_needed: then that is
 * an error of a checked session. */
MEMOI void* memoi_session_find(const memo_session* constant, int32_t layer, int32_t tensor,
                               int is_needed) {
    memo_session* s = (memo_session*)(uintptr_t)constant; /* which gets the error */
    const memob_swap_place* place;
    const memo_item* of;
    int32_t step;
    if (!memoi_session_is_in(s, "address: layer", layer, s->desc.n_layers - 1) ||
        !memoi_session_is_in(s, "address: tensor", tensor, s->desc.n_tensors - 1))
        return NULL;
    if (!memoi_session_has_layer(s, layer)) {
        MEMOI_SESSION_FAIL(s, MEMO_STATUS_INVALID_ARGUMENT,
                           "memo_session_get_address: layer %d is not of chunk %d, which this turn "
                           "computes; take its addresses in a turn of its chunk",
                           (int)layer, (int)s->batch.turn.chunk);
        return NULL;
    }

    of = &s->steps->tensors[tensor];
    step = memoi_session_open_step(s, layer);
    place = memoi_session_place(s, step, tensor);
    if (is_needed && memob_tensor_is_routed(s->steps, tensor) && memoi_session_is_forward(s) &&
        !s->is_routed)
        MEMOI_SESSION_FAIL(s, MEMO_STATUS_INVALID_STATE,
                           "memo_session_get_address: layer %d, tensor `%s`: its rows are not "
                           "known; call memo_session_set_routed first",
                           (int)layer, of->name);
    if (s->checked.slots && memoi_checked_row_bytes(s, step, tensor) && !place->is_layer)
        return memoi_checked_slot(s, step) + s->checked.offsets[tensor];
    if (place->row_bytes && s->part->base) return s->part->base + place->offset;
    if (!is_needed || !s->checked.slots) return NULL;
    MEMOI_SESSION_FAIL(
        s, MEMO_STATUS_INVALID_ARGUMENT,
        "checked session: memo_session_get_address: layer %d is of kind %d, which lacks tensor "
        "`%s` of %lld bytes a row; do not use it there, or change layer_kinds or its kinds",
        (int)layer, (int)memob_layer_kind(s->steps, step), of->name, (long long)of->row_bytes);
    return s->checked.slots + 2 * s->checked.slot_bytes; /* kernels harm nothing there */
}

void* memo_session_get_address(const memo_session* s, int32_t layer, int32_t tensor) {
    return s ? memoi_session_find(s, layer, tensor, 1) : NULL;
}

void memo_session_get_addresses(const memo_session* constant, int32_t layer, int64_t row,
                                void** first) {
    memo_session* s = (memo_session*)(uintptr_t)constant;
    memo_slice slice;
    int64_t n_rows;
    if (!s || !first) return;
    slice = memoi_session_slice(s);
    n_rows = slice.end - slice.begin;
    if (row < 0 || row >= n_rows) {
        MEMOI_SESSION_FAIL(s, MEMO_STATUS_INVALID_ARGUMENT,
                           "memo_session_get_addresses: row: out of range (%lld); 0 to %lld are "
                           "valid%s",
                           (long long)row, (long long)(n_rows - 1),
                           s->n_slices > 1 ? ", counted from the first row of the open slice; rows "
                                             "of the micro-batch are valid in LAYER tensors alone"
                                           : "");
        row = 0;
    }
    for (int32_t t = 0; t < s->desc.n_tensors; t++) {
        const int32_t scope = memob_item_scope(s->steps, t), away = memob_item_away(s->steps, t);
        first[t] = memoi_session_find(s, layer, t, 0);
        if (first[t] && scope != MEMO_CARRIED && !memob_tensor_is_routed(s->steps, t) &&
            (scope != MEMO_LAYER || memob_is_recomputed(away)))
            first[t] = (char*)first[t] + row * s->steps->tensors[t].row_bytes;
    }
}

/* Bytes of a buffer of so many rows. */
MEMOI int64_t memoi_session_buffer_bytes(const memo_session* s, int32_t buffer, int64_t n_rows) {
    return s->desc.buffers[buffer].size_bytes + s->desc.buffers[buffer].row_bytes * n_rows;
}

/* In a group a buffer that lives across layers has a part of so many bytes for each micro-batch. */
MEMOI int64_t memoi_session_part_bytes(const memo_session* s, int32_t buffer) {
    const memo_session_buffer* b = &s->desc.buffers[buffer];
    if (memoi_buffer_is_each(b) || b->first == MEMO_PASS_SESSION || memoi_session_n_group(s) == 1)
        return 0;
    return memob_min(memob_align_up(memoi_session_buffer_bytes(s, buffer, s->batch.n_rows),
                                    MEMOB_DEVICE_ALIGNMENT),
                     MEMOB_BYTES_MAX / memoi_session_n_group(s)); /* no sum overflows */
}

/* The time of a micro-batch, or a buffer's life, in words. */
MEMOI const char* memoi_session_when(char text[48], memo_pass pass, int32_t layer) {
    const char* name = memoi_pass_names[pass];
    if (!memoi_pass_has_layers(pass)) return name;
    if (layer < 0)
        snprintf(text, 48, "a layer's %s", name);
    else
        snprintf(text, 48, "the %s of layer %d", name, (int)layer);
    return text;
}

/* The arena frees what is left at the end of a micro-batch; outputs may be read until the next. */
void* memo_session_get_buffer(const memo_session* constant, int32_t buffer) {
    memo_session* s = (memo_session*)(uintptr_t)constant;
    const memo_session_buffer* b;
    void* address = NULL;
    char text[3][48];
    memo_pass now;
    int32_t open;
    if (!s || !memoi_session_is_in(s, "buffer: buffer", buffer, s->desc.n_buffers - 1)) return NULL;

    b = s->desc.buffers + buffer;
    if (s->is_running || b->first == MEMO_PASS_SESSION ||
        (b->last == MEMO_PASS_AFTER && !s->error.status))
        address = s->buffer_addresses[buffer];
    if (address)
        return memob_at(address,
                        memoi_session_micro_batch(s) * memoi_session_part_bytes(s, buffer));
    if (!s->checked.slots || !memoi_session_buffer_bytes(s, buffer, 1)) return NULL;

    open = memoi_session_open(s);
    if (!s->is_running)
        now = MEMO_PASS_AFTER;
    else if (memoi_session_is_forward(s))
        now = MEMO_PASS_FORWARD;
    else
        now = memoi_session_n_ended(s) > (s->steps->order ? 0 : s->n_turn_steps) || open >= 0
                  ? MEMO_PASS_BACKWARD
                  : MEMO_PASS_BETWEEN;
    MEMOI_SESSION_FAIL(
        s, MEMO_STATUS_INVALID_STATE,
        "checked session: memo_session_get_buffer: `%.40s` does not live in %s; it is declared "
        "from the begin of %s to the end of %s%s, so change its life or take it there",
        memob_session_name(b->name),
        memoi_session_when(text[0], now, open < 0 ? -1 : memob_session_layer(s, open)),
        memoi_session_when(text[1], b->first, b->first_layer),
        b->first_layer < 0 ? "that layer" : memoi_session_when(text[2], b->last, b->last_layer),
        b->kinds ? ", in some kinds of layers" : "");
    return s->checked.memory; /* a kernel goes on, and the micro-batch has failed */
}

/* Requests bytes at their planned address.  A plan that is being made gets the request. */
MEMOI void* memoi_session_request(memo_session* s, int64_t size_bytes, const char* name) {
    void* address = NULL;
    memo_status status;
    if (s->error.status) return NULL;
    if (!s->is_open && name && !strchr(name, '\n')) /* names in pictures of a plan */
        (void)memoi_session_is_ok(s, memo_arena_mark(s->part->arena, name, &s->call_error));
    status = memo_arena_alloc(s->part->arena, size_bytes, 0, &address, &s->call_error);
    if (status == MEMO_STATUS_DIVERGED)
        MEMOI_SESSION_FAIL(s, status,
                           "memo_session_desc.buffers: `%.40s` of %lld bytes begins where the plan "
                           "has another buffer; end a layer before the next begins",
                           memob_session_name(name), (long long)size_bytes);
    if (!memoi_session_is_ok(s, status)) return address;
    return memoi_checked_request(s, address, size_bytes, name);
}

MEMOI void memoi_session_free(memo_session* s, void* address) {
    if (s->error.status || !address) return;
    address = memoi_checked_release(s, address);
    (void)memoi_session_is_ok(s, memo_arena_free(s->part->arena, address, &s->call_error));
}

/* Requests a declared buffer whose life begins. */
MEMOI void memoi_session_begin_life(memo_session* s, int32_t i) {
    const memo_session_buffer* b = &s->desc.buffers[i];
    const int is_slice = b->first_layer == MEMO_EACH_SLICE;
    int64_t n_rows, n_bytes;

    if (memoi_buffer_is_each(b) && s->buffer_addresses[i]) {
        MEMOI_SESSION_FAIL(s, MEMO_STATUS_INVALID_STATE,
                           "memo_session_desc.buffers[%d]: `%.40s` lives in each layer, but two "
                           "layers are open; end one first",
                           (int)i, memob_session_name(b->name));
        return;
    }
    n_rows = is_slice ? memob_min(s->desc.slice_rows, s->batch.n_rows) : s->batch.n_rows;
    n_bytes = memoi_session_buffer_bytes(s, i, n_rows);
    n_bytes = memob_min(n_bytes + (memoi_session_n_group(s) - 1) * memoi_session_part_bytes(s, i),
                        MEMOB_BYTES_MAX);
    s->buffer_addresses[i] = memoi_session_request(s, n_bytes, b->name);
}

/* Requests or frees the declared buffers whose life begins or ends here. */
MEMOI void memoi_session_bound_lives(memo_session* s, memo_pass pass, int32_t step, int is_end) {
    const int32_t layer = memob_session_layer(s, step);
    const int is_last_slice = (pass == MEMO_PASS_FORWARD) == is_end;
    const int64_t now = memoi_session_moment(pass, layer, s->desc.n_layers);
    for (int32_t i = 0; i < s->desc.n_buffers; i++) {
        const memo_session_buffer* b = &s->desc.buffers[i];
        const int is_each = memoi_buffer_is_each(b), is_slice = b->first_layer == MEMO_EACH_SLICE;
        const memo_pass of = is_end && !is_each ? b->last : b->first;
        const int32_t n_slices = is_each ? s->n_of_batch : s->n_slices;
        int32_t at = is_end ? b->last_layer : b->first_layer;
        if (is_each) at = layer;
        if (memoi_session_moment(of, at, s->desc.n_layers) != now) continue;
        if (!memoi_buffer_is_of(b, memob_layer_kind(s->steps, step))) continue;
        if (is_end && b->first == MEMO_PASS_SESSION) continue;
        if (memoi_pass_has_layers(pass) && !is_slice &&
            step % n_slices != (is_last_slice ? n_slices - 1 : 0))
            continue; /* the layer goes on */

        if (is_end) {
            memoi_session_free(s, s->buffer_addresses[i]);
            s->buffer_addresses[i] = NULL;
        } else
            memoi_session_begin_life(s, i);
    }
}

/* Is the forward of the layer open?  If not, that is an error of the call. */
MEMOI int memoi_session_is_in_forward(memo_session* s, const char* call, int32_t layer) {
    const int32_t step = memoi_session_open(s);
    if (s->error.status) return 0;
    if (step >= 0 && memob_session_layer(s, step) == layer && memoi_session_is_forward(s)) return 1;
    MEMOI_SESSION_FAIL(s, MEMO_STATUS_INVALID_STATE,
                       "memo_session_%s: layer %d: its forward is not open; call it between begin "
                       "and end of the forward",
                       call, (int)layer);
    return 0;
}

void memo_session_set_routed(memo_session* s, int32_t layer, int64_t n_rows) {
    if (s && memoi_session_is_in_forward(s, "set_routed", layer))
        s->is_routed = memoi_session_is_ok(
            s, memob_swap_set_routed(&s->part->placement, memoi_session_open(s), n_rows,
                                     s->batch.is_forward_only, &s->call_error));
}

void memo_session_skip_layer(memo_session* s, int32_t layer) {
    if (s && memoi_session_is_in_forward(s, "skip_layer", layer))
        s->part->skipped[memoi_session_open(s)] = 1;
}

/* After an error, and if a micro-batch ends without a backward. */
MEMOI void memoi_session_give_up(memo_session* s, int is_failed) {
    memoi_slowing_end(s);
    if (is_failed) {
        memob_arena_abandon(s->part->arena);
        s->next_turn = 0;
    }
    if (!s->states && s->part->step->is_entered && !s->next_turn) {
        memob_step_abandon(s->part->step);
        (void)memoi_session_is_ok(s, memob_step_settle(s->part->step, &s->call_error));
    }
    if (s->states && !s->states->is_due && (is_failed || (s->states->is_running && !s->next_turn)))
        memoi_session_lose_gradients(s);
    s->is_running = 0;
}

/* After all forwards of a micro-batch.  In an order: before its first backward. */
MEMOI void memoi_session_begin_between(memo_session* s) {
    memoi_session_mark(s, s->n_steps - 1, MEMOI_SPAN_BETWEEN, 0);
    memoi_session_bound_lives(s, MEMO_PASS_BETWEEN, s->first_step, 0);
}

/* Is s->batch the next turn? Other shapes have none, but must leave micro-batches in flight.
 * before: the turn before. */
MEMOI memo_status memoi_session_check_turn(memo_session* s, const memo_batch* before,
                                           memo_error* error) {
    const int32_t shape = s->next_turn ? before->shape : s->batch.shape;
    const int is_other =
        s->next_turn && (s->batch.shape != shape || s->batch.n_rows != before->n_rows);
    const memo_turn* next;
    const char* why;
    if (!is_other && !s->parts[s->batch.shape].plan->n_order) return MEMO_STATUS_OK;
    next = &s->parts[shape].plan->order[s->next_turn];
    const memob_rule rules[] = {
        {is_other, "shape and n_rows must be those of the micro-batches in flight"},
        {s->batch.is_forward_only, "is_forward_only is 1; use a shape that is_forward_only"},
        {s->next_turn && s->batch.more_follow != before->more_follow,
         "more_follow must be that of the first turn"},
        {memcmp(&s->batch.turn, next, sizeof *next) != 0, "it is another turn"}};
    why = MEMOB_FIRST_FAULT(rules);
    if (!why) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                          "memo_batch: %s; the next turn is order[%d], the %s of micro-batch %d, "
                          "chunk %d, in shape %d",
                          why, (int)s->next_turn, memoi_pass_names[next->pass],
                          (int)next->micro_batch, (int)next->chunk, (int)shape);
}

/* A checked session that times nothing moves its layers once, so that it sees addresses that were
 * kept from the first training step. */
MEMOI void memoi_session_move(memo_session* s) {
    memoi_checked* c = &s->checked;
    if (!c->slots || c->is_moved || !c->n_trained || s->next_turn || s->timing.plan) return;
    c->is_moved = 1;
    if (s->desc.planned) s->desc.planned(s->desc.user, s, s->parts[0].plan);
}

/* Checks the batch that begins, and fills in its rows.  before: the batch of the turn before. */
MEMOI memo_status memoi_session_check_batch(memo_session* s, const memo_batch* before) {
    memo_batch* batch = &s->batch;
    memo_error* error = &s->call_error;
    const char* why;
    memo_status status = MEMO_STATUS_OK;
    if (s->kept_bytes)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE, "memo_session_begin: %s",
                              MEMOB_ASLEEP);

    status =
        memob_check_integer("memo_batch", "shape", batch->shape, 0, s->desc.n_shapes - 1, error);
    if (!status) {
        const memo_step_plan* plan = s->parts[batch->shape].plan;
        batch->is_forward_only |= plan->shape.is_forward_only;
        if (!batch->n_rows) batch->n_rows = plan->swap.layer_rows;
        status = memob_check_integer("memo_batch", "n_rows", batch->n_rows, 1,
                                     plan->swap.layer_rows, error);
    }
    if (!status && batch->values)
        status = memob_check_integer("memo_batch", "values_bytes", batch->values_bytes, 0,
                                     MEMO_BATCH_VALUES_MAX, error);
    if (!status && s->desc.n_order) status = memoi_session_check_turn(s, before, error);
    why = status ? NULL : memoi_session_check_masks(s);
    if (why)
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT, "memo_batch.states: %s", why);
    why = !status && s->states && !s->next_turn ? memoi_session_owes(s) : NULL;
    return why ? memo_error_set(error, MEMO_STATUS_INVALID_STATE, "memo_session_begin: %s", why)
               : status;
}

/* What the turn before has left in the arena ends. */
MEMOI void memoi_session_end_lives(memo_session* s) {
    for (int32_t i = 0; i < s->desc.n_buffers; i++) {
        if (s->desc.buffers[i].first == MEMO_PASS_SESSION) continue;
        if (s->next_turn) memoi_session_free(s, s->buffer_addresses[i]);
        s->buffer_addresses[i] = NULL;
    }
}

/* The layers and steps of the batch's turn. */
MEMOI void memoi_session_take_turn(memo_session* s) {
    if (!s->steps->order) return;
    s->first_layer = s->batch.turn.chunk * memoi_session_turn_layers(s);
    s->first_step = memob_turn_of(s->steps->order[s->next_turn]) * s->n_turn_steps;
}

/* 1: `between` begins the turn. */
MEMOI int memoi_session_begins_between(const memo_session* s) {
    return memoi_session_is_turn(s, MEMO_PASS_BACKWARD) &&
           s->batch.turn.chunk == s->part->plan->n_chunks - 1;
}

int memo_session_begin(memo_session* s, const memo_batch* batch) {
    memo_batch before;
    memo_status status;
    if (!s) return 0;
    before = s->batch;
    if (s->is_in_run) {
        memo_session_fail(s, MEMO_STATUS_INVALID_STATE,
                          "memo_session_begin: called inside memo_session_run, which begins and "
                          "ends a micro-batch itself");
        return 0;
    }

    if (s->is_running) {
        memoi_session_give_up(s, 1);
        s->is_reported = 1; /* nobody asks any more */
    }
    memoi_session_forget(s);
    if (s->error.status) { /* of a call between micro-batches: this one does not begin */
        if (s->next_turn) memoi_session_give_up(s, 1);
        return 0;
    }
    memset(&s->batch, 0, sizeof s->batch);
    if (batch) s->batch = *batch;
    if (!s->desc.n_order) memset(&s->batch.turn, 0, sizeof s->batch.turn);

    status = memoi_session_check_batch(s, &before);
    if (status) { /* what is refused changes nothing */
        (void)memoi_session_is_ok(s, status);
        s->batch = before;
        return 0;
    }
    if (!memoi_session_time_begin(s)) return 0;
    if (s->states && !s->next_turn) s->is_part = memoi_session_has_part(s);
    memoi_session_move(s);
    memoi_session_use_shape(s, s->batch.shape);
    memoi_session_time_batch_begin(s);
    if (s->batch.values) memoi_session_put_values(s, 0, s->batch.values, s->batch.values_bytes);
    memoi_session_take_turn(s);
    memoi_session_end_lives(s);
    memoi_checked_fill(s, s->checked.slots, 2 * s->checked.slot_bytes);

    /* The first turn begins for all. */
    if (!s->next_turn) {
        if (s->part->swap)
            status = memo_swap_set_rows(s->part->swap, s->batch.n_rows, s->batch.is_forward_only,
                                        &s->call_error);
        s->checked.n_buffers = 0;
        memoi_checked_fill(s, s->checked.memory, s->checked.memory_bytes);
        if (!status) status = memo_arena_begin(s->part->arena, &s->call_error); /* fails last */
    }
    s->is_running = memoi_session_is_ok(s, status);
    if (s->batch.is_forward_only) memoi_checked_watch(s, MEMOB_WATCH_FORWARD_ALONE, 0, 0);
    if (s->is_running) memoi_session_begin_round(s);
    if (s->is_running && memoi_session_begins_between(s)) memoi_session_begin_between(s);
    return !s->error.status;
}

/* 1: an order has turns left.  A turn must have computed its layers. */
MEMOI int memoi_session_pass_turn(memo_session* s) {
    const int32_t n = s->n_turn_steps, n_passed = memoi_session_n_ended(s);
    if (!s->steps->order || s->error.status) return 0;
    if (n_passed < n)
        MEMOI_SESSION_FAIL(s, MEMO_STATUS_INVALID_STATE,
                           "memo_session_end: the %s of micro-batch %d, chunk %d, has computed %d "
                           "of its %d layers; compute all of them in a turn",
                           memoi_pass_names[s->batch.turn.pass], (int)s->batch.turn.micro_batch,
                           (int)s->batch.turn.chunk, (int)(n_passed / s->n_slices),
                           (int)memoi_session_turn_layers(s));
    else if (++s->next_turn == s->part->plan->n_order)
        s->next_turn = 0;
    return s->next_turn > 0 && !s->error.status;
}

memo_status memo_session_end(memo_session* s, memo_error* error) {
    int32_t open;
    int is_trained;
    MEMOB_REFUSE_NULL(error, "session", s);
    s->is_in_run = 0; /* also after a longjmp out of memo_session_run */
    if (!s->is_running) {
        if (!s->error.status)
            memo_session_fail(s, MEMO_STATUS_INVALID_STATE,
                              "memo_session_end: no micro-batch is under way; call "
                              "memo_session_begin first");
        return memoi_session_report(s, error);
    }

    open = memoi_session_open(s);
    if (open >= 0)
        MEMOI_SESSION_FAIL(s, MEMO_STATUS_INVALID_STATE,
                           "memo_session_end: layer %d is still open; end each layer that begins",
                           (int)memob_session_layer(s, open));
    memoi_checked_verify(s, 0, s->checked.memory_bytes);
    if (s->batch.is_forward_only) memoi_checked_watch(s, MEMOB_WATCH_FORWARD_ALONE, 0, 1);
    memoi_session_end_states(s);

    is_trained = memoi_session_n_ended(s) == memoi_session_n_visits(s) &&
                 !s->batch.is_forward_only && !memoi_session_is_turn(s, MEMO_PASS_FORWARD);
    if (!memoi_session_pass_turn(s) && !s->error.status)
        (void)memoi_session_is_ok(s, memo_arena_end(s->part->arena, &s->call_error));
    s->checked.n_trained += is_trained && !s->error.status;
    memoi_session_time_batch_end(s);
    memoi_session_give_up(s, s->error.status != MEMO_STATUS_OK);
    return memoi_session_report(s, error);
}

/* Checks every layer call.  Returns the step that it is of, or -1 after an error. */
MEMOI int32_t memoi_session_enter(memo_session* s, int32_t layer, memo_pass pass, int is_end) {
    static const char* const points[] = {"begin", "end"};
    static const memo_pass passes[] = {MEMO_PASS_FORWARD, MEMO_PASS_BACKWARD};
    const memob_swap_placement* p = &s->part->placement;
    const memob_step* at = s->part->step;
    const int32_t end = s->next_turn * s->n_turn_steps + memoi_session_n_visits(s);
    const int32_t n_open_most = s->states ? 1 : memob_swap_open_most(s->steps);
    const memob_row_visit* due;
    const char* why = NULL;
    memo_status status = MEMO_STATUS_INVALID_STATE;
    char text[96];
    if (s->error.status) return -1;

    due = s->is_running ? memob_swap_due(p, at, is_end, end, n_open_most) : NULL;
    if (layer < 0 || layer >= s->desc.n_layers) {
        why = "out of range; n_layers is too small, or the loop too long";
        status = MEMO_STATUS_INVALID_ARGUMENT;
    } else if (!s->is_running) {
        why = "outside begin and end";
    } else if (s->batch.is_forward_only && pass == MEMO_PASS_BACKWARD) {
        why = "memo_batch.is_forward_only is 1, or the shape's; see memo_session_get_batch";
    } else if (at->n_ended == end) {
        why = "all layers of the pass are over; call memo_session_end";
    } else if (!due || pass != passes[due->pass] || layer != memob_session_layer(s, due->layer)) {
        const memob_row_visit* older = &p->visits[at->n_ended];
        snprintf(text, sizeof text, "out of order; %s %s of layer %d comes next%s",
                 memoi_pass_names[passes[older->pass]], points[at->n_begun > at->n_ended],
                 (int)memob_session_layer(s, older->layer),
                 s->n_slices > 1 ? ", once for each slice" : "");
        why = text;
    }

    if (why)
        MEMOI_SESSION_FAIL(s, status, "memo_session: %s %s of layer %d of %d: %s",
                           memoi_pass_names[pass], points[is_end], (int)layer,
                           (int)s->desc.n_layers, why);
    return s->error.status ? -1 : due->layer;
}

/* About half of the rows of a tensor; all if they are one tile, or if the tensor is whole. */
MEMOI int64_t memoi_session_first_rows(const memo_session* s, int32_t t, int64_t n_rows) {
    const int64_t half = memob_align_up((n_rows + 1) / 2, memob_swap_tile_rows(s->steps));
    return s->steps->tensors[t].away == MEMO_ROWS && !memob_tensor_is_routed(s->steps, t)
               ? memob_min(half, n_rows)
               : n_rows;
}

/* Recomputes the rows that the engine did not bring back.  If they are timed: all, in odd
 * repetitions in two parts, of which the first is timed. */
MEMOI void memoi_session_recompute(memo_session* s, int32_t step) {
    if (s->part->skipped[step]) return;
    for (int32_t t = 0; t < s->desc.n_tensors && !s->error.status; t++) {
        const int64_t n = memoi_session_tensor_rows(s, step, t);
        int64_t begin = 0, end = n;
        if (!memoi_session_recomputes(s, step, t)) continue;
        if (!s->spans_s && memoi_session_is_by_backward(s, t)) continue;
        if (!s->spans_s) memo_swap_get_recompute_rows(s->part->swap, step, t, &begin, &end);
        if (begin == end) continue;
        if (s->spans_s && s->repetition % 2) end = memoi_session_first_rows(s, t, end);
        memoi_session_mark(s, step, MEMOI_SPAN_TENSOR + t, 0);
        s->desc.recompute(s->desc.user, s, memob_session_layer(s, step), t, begin, end);
        memoi_session_mark(s, step, MEMOI_SPAN_TENSOR + t, 1);
        if (s->spans_s && end < n)
            s->desc.recompute(s->desc.user, s, memob_session_layer(s, step), t, end, n);
    }
}

/* 1: it is the last of a forward of all layers. */
MEMOI int memoi_session_is_last(const memo_session* s, int32_t step) {
    return step % s->n_slices == s->n_slices - 1 &&
           memob_session_layer(s, step) == s->desc.n_layers - 1;
}

/* Gets the rows of a step into place, in the backward. */
MEMOI int memoi_session_layer_begin(memo_session* s, int32_t layer, memo_pass pass) {
    const int32_t step = memoi_session_enter(s, layer, pass, 0);
    const int is_backward = pass == MEMO_PASS_BACKWARD;
    const memob_row_visit* visit;
    int32_t older;
    if (step < 0) return 0;

    /* Buffers, states and rows. */
    if (is_backward && memoi_session_is_last(s, step)) {
        memoi_session_bound_lives(s, MEMO_PASS_BETWEEN, step, 1);
        memoi_session_mark(s, s->n_steps - 1, MEMOI_SPAN_BETWEEN, 1);
    }
    memoi_session_bound_lives(s, pass, step, 0);
    older = memoi_session_open(s);
    if (older >= 0) /* it has its own times */
        memoi_session_mark(s, older, memoi_span_of_pass[pass], 1);
    if (!is_backward) memob_swap_route_none(&s->part->placement, step, s->batch.is_forward_only);
    s->is_routed = 0;
    if (!is_backward) s->part->skipped[step] = 0;
    memoi_session_visit(s, is_backward, step, 0);
    if (s->error.status) return 0;
    visit = &s->part->placement.visits[s->part->step->n_begun - 1];
    MEMO_ASSERT(visit->layer == step); /* 2 */
    if (memoi_session_moved(s) && s->checked.slots) memoi_checked_open_edge(s, visit);

    /* What runs before the layer. */
    memoi_slowing_separate(s);
    if (s->checked.slots) memoi_checked_open(s, step, is_backward);
    if (is_backward) {
        memoi_session_recompute(s, step);
        if (s->checked.slots) memoi_checked_backward_begin(s, step);
    }
    if (older < 0) memoi_slowing_begin(s, step, is_backward);
    memoi_session_mark(s, older < 0 ? step : older, memoi_span_of_pass[pass], 0); /* it goes on */
    return !s->error.status && memoi_session_rows(s, step) > 0;
}

/* The rows leave, in the forward. */
MEMOI void memoi_session_layer_end(memo_session* s, int32_t layer, memo_pass pass) {
    const int32_t step = memoi_session_enter(s, layer, pass, 1);
    const int is_backward = pass == MEMO_PASS_BACKWARD;
    int32_t open;
    if (step < 0) return;
    memoi_session_mark(s, step, memoi_span_of_pass[pass], 1);
    memoi_slowing_end(s);
    if (s->checked.slots) memoi_checked_layer_end(s, step, pass);
    memoi_session_visit(s, is_backward, step, 1);
    if (s->error.status) return; /* the layer stays open, so that the engine abandons it */
    memoi_session_bound_lives(s, pass, step, 1);
    if (!is_backward && !s->steps->order && memoi_session_is_last(s, step))
        memoi_session_begin_between(s);
    open = memoi_session_open(s);
    if (open >= 0) memoi_session_mark(s, open, memoi_span_of_pass[pass], 0);
}

int memo_session_forward_begin(memo_session* s, int32_t layer) {
    return s && memoi_session_layer_begin(s, layer, MEMO_PASS_FORWARD);
}
void memo_session_forward_end(memo_session* s, int32_t layer) {
    if (s) memoi_session_layer_end(s, layer, MEMO_PASS_FORWARD);
}
int memo_session_backward_begin(memo_session* s, int32_t layer) {
    return s && memoi_session_layer_begin(s, layer, MEMO_PASS_BACKWARD);
}
void memo_session_backward_end(memo_session* s, int32_t layer) {
    if (s) memoi_session_layer_end(s, layer, MEMO_PASS_BACKWARD);
}

/* The loss of the open step.  In an order its time is no layer's, whose median it would change. */
MEMOI void memoi_session_run_loss(memo_session* s) {
    const int32_t open = memoi_session_open(s);
    if (!s->steps->order) {
        s->desc.loss(s->desc.user, s);
        return;
    }
    memoi_session_mark(s, open, MEMOI_SPAN_BACKWARD, 1);
    memoi_session_mark(s, s->n_steps - 1, MEMOI_SPAN_BETWEEN, 0);
    s->desc.loss(s->desc.user, s);
    memoi_session_mark(s, s->n_steps - 1, MEMOI_SPAN_BETWEEN, 1);
    memoi_session_mark(s, open, MEMOI_SPAN_BACKWARD, 0);
}

/* A pass of all layers of a micro-batch, or of a turn. */
MEMOI void memoi_session_run_pass(memo_session* s, memo_pass pass) {
    const memo_session_desc* desc = &s->desc;
    const int is_forward = pass == MEMO_PASS_FORWARD;
    const int32_t n = s->n_turn_steps;
    for (int32_t k = 0; k < n; k++) {
        const int32_t step = s->first_step + (is_forward ? k : n - 1 - k);
        const int32_t layer = memob_session_layer(s, step);
        const int has_loss = desc->loss && layer == desc->n_layers - 1;
        if (memoi_session_layer_begin(s, layer, pass)) {
            if (has_loss && !is_forward) memoi_session_run_loss(s);
            if (is_forward)
                desc->forward(desc->user, s, layer);
            else
                desc->backward(desc->user, s, layer);
            if (has_loss && s->batch.is_forward_only) desc->loss(desc->user, s);
        }
        memoi_session_layer_end(s, layer, pass);
    }
}

/* The step if the trainer gives none. */
MEMOI void memoi_session_run_layers(void* user, memo_session* s) {
    if (!memoi_session_is_turn(s, MEMO_PASS_BACKWARD)) memoi_session_run_pass(s, MEMO_PASS_FORWARD);
    if (memoi_session_is_turn(s, MEMO_PASS_FORWARD)) return;
    if (s->desc.between && !s->error.status && memoi_session_has_layer(s, s->desc.n_layers - 1))
        s->desc.between(user, s);
    if (!s->batch.is_forward_only) memoi_session_run_pass(s, MEMO_PASS_BACKWARD);
}

memo_status memo_session_run(memo_session* s, const memo_batch* batch, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "session", s);
    if (s->is_running) /* which goes on */
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "memo_session_run: called inside a micro-batch; call it after "
                              "memo_session_run or memo_session_end of the other has returned");
    (void)memo_session_begin(s, batch);
    s->is_in_run = !s->error.status;
    if (s->is_in_run) (s->desc.step ? s->desc.step : memoi_session_run_layers)(s->desc.user, s);
    return memo_session_end(s, error);
}

/* The arena of the current shape.  The engine's memory and buffers of SESSION live as long as the
 * arena. */
MEMOI void memoi_session_start_arena(memo_session* s, const memo_arena_desc* desc) {
    memoi_session_part* part = s->part;
    s->is_reported = 1;
    memoi_session_forget(s);
    s->batch.n_rows = s->desc.n_rows;
    if (s->failure.status) return;
    memoi_keep(s, memo_arena_create(desc, &part->arena, &s->call_error));
    if (s->failure.status) return;
    part->base = (char*)memoi_session_request(s, memob_max(part->placement.sizes.device_bytes, 1),
                                              "activations between forward and backward");
    if (s->states_sizes.device_bytes)
        s->states_desc.device_memory =
            memoi_session_request(s, s->states_sizes.device_bytes, "states");
    memoi_session_bound_lives(s, MEMO_PASS_SESSION, 0, 0);
    memoi_keep(s, memoi_session_report(s, &s->call_error));
}

/* The same in the session's memory. */
MEMOI void memoi_session_open_arena(memo_session* s) {
    memo_arena_desc desc = MEMO_ZERO(memo_arena_desc);
    desc.device = s->device;
    desc.plan = s->part->plan->addresses;
    desc.memory = s->device_memory;
    desc.memory_bytes = s->memory_bytes;
    memoi_session_start_arena(s, &desc);
}

/* --- the requests of a plan --- */

/* Names a moment, for plans and pictures. */
MEMOI void memoi_session_name_moment(memo_session* s, memo_pass pass, int32_t step, int is_end) {
    char text[96];
    snprintf(text, sizeof text, "layer %d %s %s", (int)step, memoi_pass_names[pass],
             is_end ? "end" : "begin");
    (void)memoi_session_is_ok(s, memo_arena_mark(s->part->arena, text, &s->call_error));
}

/* The lives of buffers in a pass of all layers, or of a turn. */
MEMOI void memoi_session_list_pass(memo_session* s, memo_pass pass) {
    const int is_backward = pass == MEMO_PASS_BACKWARD;
    const int32_t n = s->n_turn_steps;
    for (int32_t k = 0; k < n; k++) {
        const int32_t step = s->first_step + (is_backward ? n - 1 - k : k);
        memoi_session_name_moment(s, pass, step, 0);
        if (is_backward && memoi_session_is_last(s, step))
            memoi_session_bound_lives(s, MEMO_PASS_BETWEEN, step, 1);
        memoi_session_bound_lives(s, pass, step, 0);
        memoi_session_name_moment(s, pass, step, 1);
        memoi_session_bound_lives(s, pass, step, 1);
        if (!is_backward && !s->steps->order && memoi_session_is_last(s, step))
            memoi_session_begin_between(s);
    }
}

/* The lives of buffers in a micro-batch, or in all turns of an order, as running has them. */
MEMOI void memoi_session_list_lives(memo_session* s) {
    const memo_step_plan* plan = s->part->plan;
    s->batch.n_rows = plan->swap.layer_rows;
    (void)memoi_session_is_ok(s, memo_arena_begin(s->part->arena, &s->call_error));
    for (int32_t k = 0; k < memob_max(plan->n_order, 1); k++) {
        s->next_turn = k;
        if (plan->n_order) s->batch.turn = plan->order[k];
        memoi_session_take_turn(s);
        memoi_session_end_lives(s);
        if (memoi_session_begins_between(s)) memoi_session_begin_between(s);
        if (!memoi_session_is_turn(s, MEMO_PASS_BACKWARD))
            memoi_session_list_pass(s, MEMO_PASS_FORWARD);
        if (!memoi_session_is_turn(s, MEMO_PASS_FORWARD) && !plan->shape.is_forward_only)
            memoi_session_list_pass(s, MEMO_PASS_BACKWARD);
    }
    s->next_turn = 0;
    if (!s->error.status)
        (void)memoi_session_is_ok(s, memo_arena_end(s->part->arena, &s->call_error));
    memoi_keep(s, memoi_session_report(s, &s->call_error));
}

/* Ends what belongs to the open plan, but for states and the device's memory. */
MEMOI void memoi_session_stop(memo_session* s) {
    memoi_checked_destroy(s);
    for (int32_t k = MEMO_SHAPES_MAX - 1; k >= 0; k--) { /* later ones use the first's streams */
        memoi_session_part* part = &s->parts[k];
        memo_swap_destroy(part->swap);
        memob_step_free(&part->own_step);
        memob_sink_free(&part->own_sink);
        part->step = NULL;
        memo_arena_destroy(part->arena);
        memob_swap_placement_free(&part->placement);
        MEMO_FREE(part->skipped);
        part->swap = NULL;
        part->arena = NULL;
        part->skipped = NULL;
    }
    if (s->host_memory && !s->desc.host_memory)
        MEMOB_IGNORE(memo_host_free(s->device, s->host_memory, NULL));
    s->host_memory = NULL;
}

void memo_session_destroy(memo_session* s) {
    if (!s) return;
    if (s->is_open && !s->desc.computes_on_host) /* steps may still run */
        MEMOB_IGNORE(memo_stream_synchronize(s->device, s->desc.compute_stream, NULL));
    memoi_slowing_destroy(s);
    memoi_session_destroy_timers(s);
    memob_arrays_free(&s->arrays);
    memoi_session_stop(s);
    memob_states_destroy(s->states); /* whose streams the engines above use */
    memob_arrays_free(&s->kept);
    MEMO_FREE(s->kept_bytes);
    if (s->sleep_stream) memo_stream_destroy(s->device, s->sleep_stream, NULL);
    if (s->device_memory && !s->desc.device_memory)
        memo_device_free(s->device, s->device_memory, NULL);
    memo_step_plan_destroy(s->own_plan);
    MEMO_FREE(s->timing.profiles);
#ifndef MEMO_NO_HOST_DEVICE
    memo_host_device_destroy(s->own_device);
#endif
    MEMO_FREE(s);
}

memo_session_info memo_session_get_info(const memo_session* s) {
    memo_session_info info = MEMO_ZERO(memo_session_info);
    if (!s) return info;
    info.plan = s->part->plan;
    info.arena = s->part->arena;
    info.swap = s->part->swap;
    info.n_unwritten = s->states ? memob_snapshot_n_left(&s->states->snapshot) : 0;
    info.states_to_host_bytes = s->states ? s->states->sink.engine.memory.copied_bytes[0] : 0;
    info.states_to_device_bytes = s->states ? s->states->sink.engine.memory.copied_bytes[1] : 0;
    return info;
}

/* --- >>session sleep ---
 * Knows: what lies on the device between two micro-batches, and how a session gives the device's
 * memory away and takes it again.  Knows nothing of what rows and states are for.
 *
 * 1. A session that sleeps has no address on the device.
 * 2. What is kept comes back to where the plan has it.
 * 3. No more is kept than the plan says. */

/* Ends what has an address on the device: all that lay there is kept, or has no value. */
MEMOI void memoi_session_drop_device(memo_session* s) {
    for (int32_t k = 0; k < s->desc.n_shapes; k++) {
        memoi_session_part* part = &s->parts[k];
        memo_arena_destroy(part->arena);
        part->arena = NULL;
        part->base = NULL;
        if (part->swap) part->swap->own_sink.engine.memory.device = NULL;
    }
    if (s->states) s->states->sink.engine.memory.device = NULL;
    memset(s->buffer_addresses, 0, sizeof s->buffer_addresses);
    s->device_memory = NULL;
}

/* All streams are idle, and streamed states are at home. */
MEMOI memo_status memoi_session_leave_device(memo_session* s, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    if (!s->desc.computes_on_host)
        status = memo_stream_synchronize(s->device, s->desc.compute_stream, error);
    for (int32_t k = 0; k < s->desc.n_shapes && !status; k++)
        if (s->parts[k].swap)
            status = memob_engine_synchronize(&s->parts[k].swap->own_sink.engine, error);
    if (s->states && !status) status = memob_states_leave(s->states, error);
    return status;
}

/* Do these bytes lie in the session's memory? */
MEMOI int memoi_session_is_on_device(const memo_session* s, const char* address, int64_t n_bytes) {
    const char* const begin = (const char*)s->device_memory;
    return address >= begin && address + n_bytes <= begin + s->memory_bytes;
}

/* Copies buffers of pass SESSION to `kept`, or from there; kept NULL: only counts.  Then the same
 * of resident states.  *n_bytes: all of them. */
MEMOI memo_status memoi_session_keep(memo_session* s, char* kept, int is_back, int64_t* n_bytes,
                                     memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int64_t states_bytes = 0, n = 0;
    for (int32_t i = 0; i < s->desc.n_buffers && !status; i++) {
        const int64_t size_bytes = memoi_session_buffer_bytes(s, i, s->desc.n_rows);
        char* const address = (char*)s->buffer_addresses[i];
        if (s->desc.buffers[i].first != MEMO_PASS_SESSION) continue;
        MEMO_ASSERT(!size_bytes || memoi_session_is_on_device(s, address, size_bytes)); /* 2 */
        if (kept && size_bytes)
            status = memob_copy_now(s->device, s->sleep_stream, address, kept + n, size_bytes,
                                    is_back, error);
        n += size_bytes;
    }
    if (s->states && !status)
        status = memob_states_keep(s->states, s->sleep_stream, kept ? kept + n : NULL, is_back,
                                   memob_states_worthless(s->states), NULL, &states_bytes, error);
    *n_bytes = n + states_bytes;
    return status;
}

memo_status memo_session_sleep(memo_session* s, memo_error* error) {
    int64_t n_bytes = 0;
    char* kept = NULL;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "session", s);
    status = memoi_session_check_call(s, MEMOI_CALL_SLEEP, error);
    if (!status) status = memoi_session_leave_device(s, error);
    if (!status && !s->sleep_stream)
        status = memo_stream_create(s->device, "sleep", 0, &s->sleep_stream, error);
    if (!status) status = memoi_session_keep(s, NULL, 0, &n_bytes, error);
    MEMO_ASSERT(n_bytes <= s->part->plan->sleep_bytes); /* 3 */
    if (!status) kept = (char*)MEMO_MALLOC((size_t)memob_max(n_bytes, 1));
    if (!status && !kept)
        status = memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                                "memo_session_sleep: no host memory for %lld bytes that stay on "
                                "the device; see memo_step_plan.sleep_bytes",
                                (long long)n_bytes);

    if (!status) status = memoi_session_keep(s, kept, 0, &n_bytes, error);
    if (!status && !s->desc.device_memory)
        status = memo_device_free(s->device, s->device_memory, error);
    if (status) { /* it is awake */
        MEMO_FREE(kept);
        return status;
    }
    s->slept_at = (uintptr_t)s->device_memory;
    s->kept_bytes = kept;
    memoi_session_drop_device(s);
    memob_session_log(s, "session: sleeps; %lld bytes are kept in host memory", (long long)n_bytes);
    return status;
}

/* Opens all shapes in the device memory, and brings back what was kept. */
MEMOI memo_status memoi_session_return(memo_session* s, memo_error* error) {
    const memo_batch batch = s->batch;
    int64_t n_bytes = 0;
    memoi_session_begin_call(s);
    for (int32_t k = 0; k < s->desc.n_shapes && !s->failure.status; k++) {
        memoi_session_use_shape(s, k);
        memoi_session_open_arena(s);
        if (s->part->swap) s->part->swap->own_sink.engine.memory.device = s->part->base;
    }
    memoi_session_use_shape(s, batch.shape);
    s->batch = batch;
    if (s->states) s->states->sink.engine.memory.device = (char*)s->states_desc.device_memory;

    if (!s->failure.status)
        memoi_keep(s, memoi_session_keep(s, s->kept_bytes, 1, &n_bytes, &s->call_error));
    if (s->states && !s->failure.status)
        memoi_keep(s, memob_states_fetch(s->states, &s->call_error));
    return memoi_session_end_call(s, error);
}

memo_status memo_session_wake(memo_session* s, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    MEMOB_REFUSE_NULL(error, "session", s);
    if (!s->kept_bytes)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "memo_session_wake: the session does not sleep; memo_session_sleep "
                              "comes before");
    memoi_session_forget(s);
    if (s->error.status) return memoi_session_report(s, error);
    MEMO_ASSERT(!s->device_memory && !s->part->arena && !s->part->base); /* 1 */
    s->device_memory = s->desc.device_memory;
    if (!s->device_memory)
        status = memo_device_alloc(s->device, s->memory_bytes, &s->device_memory, error);
    if (status) return status;
    status = memoi_session_return(s, error);
    if (status) {
        if (!s->desc.device_memory)
            MEMOB_IGNORE(memo_device_free(s->device, s->device_memory, NULL));
        memoi_session_drop_device(s);
        return status;
    }
    MEMO_FREE(s->kept_bytes);
    s->kept_bytes = NULL;
    if (s->desc.planned && s->slept_at != (uintptr_t)s->device_memory)
        s->desc.planned(s->desc.user, s, s->parts[0].plan);
    return status;
}

/* --- >>session snapshot ---
 * Knows: when states may be written out while steps go on.  Knows nothing of where they lie.
 *
 * 1. A piece that is written lies in its state. */

/* A piece goes to the caller, on the snapshot's thread. */
MEMOI memo_status memoi_session_write(void* session, int32_t layer, int32_t state, int64_t at,
                                      const void* bytes, int64_t n_bytes, memo_error* error) {
    const memo_session* s = (const memo_session*)session;
    memo_error why = MEMO_ZERO(memo_error);
    memo_status status;
    MEMO_ASSERT(at >= 0 && n_bytes > 0 && at + n_bytes <= s->desc.states[state].size_bytes); /* 1 */
    status = s->snapshot.write(s->snapshot.user, layer - 1, state, at, bytes, n_bytes, &why);
    return memoi_session_name_bytes(s, "memo_session_snapshot", layer, state, at, n_bytes, status,
                                    &why, error);
}

memo_status memo_session_snapshot(memo_session* s, const memo_snapshot_desc* desc,
                                  memo_error* error) {
    memo_status status;
    MEMOB_REFUSE_NULL(error, "session", s);
    MEMOB_REFUSE_NULL(error, "desc", desc);
    MEMOB_REFUSE_NULL(error, "desc->write", desc->write);
    status = memoi_session_check_call(s, MEMOI_CALL_SNAPSHOT, error);
    if (!status) status = memo_session_flush(s, error);
    if (status) return status;
    s->snapshot = *desc;
    return memob_states_take_snapshot(s->states, memoi_session_write, error);
}

memo_status memo_session_finish_snapshot(memo_session* s, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "session", s);
    return s->states ? memob_states_finish_snapshot(s->states, error) : MEMO_STATUS_OK;
}

/* --- >>session stage ---
 * Knows: the rows of a policy or of a search, their addresses, the budgets, and the costs that a
 * search gets.  Knows nothing of streams and copies: no device is called.
 *
 * A *stage* is a plan under way: rows, and what follows from them. */

/* What makes plans; it lives in a call.  The first part is the caller's. */
typedef struct memoi_planner {
    const memo_profile* profile; /* of each shape; NULL: times are guesses */
    memoi_rows_effort effort;    /* less than the whole: the plan must fit, no more */
    const memo_step_plan* open;  /* whose states stay where they are; NULL: none do */
    double best_s;               /* a step of the best plan of other slices and groups; 0: none */

    /* What follows from the desc that is planned. */
    memo_session* session;     /* not open: what ranks agree on, the shapes, and their stages */
    int64_t limit_bytes;       /* of the device for a stage: the budget, or less; 0: none */
    int64_t peak_bytes;        /* of the stage, the most of all ranks */
    const memo_profile* times; /* of the stage's shape */
    int is_measured;           /* 0: times are guesses */
    int64_t least_streamed;    /* states of layers */
    const int64_t* start;      /* rows with which whole searches begin; NULL: none */
} memoi_planner;

MEMOI int memob_step_plan_fits(const memo_step_plan* plan) {
    while (plan && plan->fits) plan = plan->next;
    return !plan;
}

/* Predicted seconds of a step; 0: there are no times. */
MEMOI double memoi_step_plan_s(const memo_step_plan* plan) {
    return plan->times ? plan->times->step_s : 0;
}

/* Lists the requests of a micro-batch with the stage's rows, which may exceed the budgets. */
MEMOI void memoi_session_list_requests(memo_session* s) {
    memo_arena_desc desc = MEMO_ZERO(memo_arena_desc);
    memo_step_plan* plan = s->part->plan;
    memob_swap_placement* placement = &s->part->placement;
    if (s->failure.status) return;

    memob_swap_placement_free(placement); /* of the stage before */
    memo_plan_destroy(plan->addresses);
    memo_trace_destroy(plan->trace);
    plan->addresses = NULL;
    plan->trace = NULL;
    memoi_keep(s, memob_swap_placement_make(s->steps, 0, placement, &s->call_error));
    memoi_keep(s, memo_trace_create(&plan->trace, &s->call_error));
    desc.trace = plan->trace; /* it records */
    memoi_session_start_arena(s, &desc);
    if (!s->failure.status) memoi_session_list_lives(s);

    memo_arena_destroy(s->part->arena);
    s->part->arena = NULL;
    s->part->base = NULL;
    plan->sizes = placement->sizes;
    if (plan->shape.is_forward_only && s->n_slices == 1) { /* nothing leaves the device */
        memset(&plan->sizes, 0, sizeof plan->sizes);
        plan->sizes.device_bytes = placement->sizes.device_bytes;
    }
    if (!s->failure.status)
        memoi_keep(s, memo_plan_from_trace(plan->trace, 0, &plan->addresses, &s->call_error));
}

/* Fixes what lives as long as the session at the bottom, at the same place in all shapes and plans:
 * buffers from the last request on, then states, then the engine's memory, which is the first
 * request.  No plan becomes larger, because nothing else ever uses these bytes.  Returns the number
 * of bytes. */
MEMOI int64_t memoi_session_fix(memo_plan* plan, int is_fixed) {
    int64_t end_bytes = 0;
    for (int64_t i = plan->n_buffers - 1; i >= 0; i--) {
        memo_buffer* buffer = &plan->buffers[i];
        if (buffer->memory_class != MEMO_CLASS_PERSISTENT) continue;
        if (is_fixed) buffer->offset_bytes = end_bytes;
        buffer->is_fixed = is_fixed;
        end_bytes += memob_buffer_bytes(plan, i);
    }
    return end_bytes;
}

/* Searches for addresses within the budget: greedy first, then as long as the limit allows. */
MEMOI void memoi_stage_solve(const memoi_planner* p) {
    memo_session* s = p->session;
    memo_plan_desc desc = MEMO_ZERO(memo_plan_desc);
    memo_plan* plan = s->part->plan->addresses;
    memo_status status;
    if (s->failure.status) return;
    desc.trace = s->part->plan->trace;
    desc.capacity_bytes = p->limit_bytes ? p->limit_bytes : MEMOB_BYTES_MAX;
    desc.engine = MEMO_PLAN_ENGINE_GREEDY;
    (void)memoi_session_fix(plan, 1);
    status = memo_plan_solve(plan, &desc, &s->call_error);

    /* No search helps if the budget is below the bound. */
    if (status == MEMO_STATUS_INFEASIBLE && plan->lower_bound_bytes <= desc.capacity_bytes) {
        memob_session_log(s, "session: searching for addresses of %lld buffers, at most 10 s",
                          (long long)plan->n_buffers);
        desc.engine = MEMO_PLAN_ENGINE_BILEVEL;
        status = memo_plan_solve(plan, &desc, &s->call_error);
    }
    (void)memoi_session_fix(plan, 0);
    if (status != MEMO_STATUS_INFEASIBLE) memoi_keep(s, status);
}

static const char* const memoi_session_tiers[] = {"device_bytes", "host_bytes", "disk_bytes"};
MEMOB_TABLE_OF(MEMO_N_TIERS, memoi_session_tiers);

/* Says which budget of a plan that does not fit would do, and device_bytes beside another one; 0:
 * none. */
MEMOI void memoi_session_put_shortage(const memo_session_desc* desc, memo_step_plan* plan,
                                      int32_t shape, int32_t tier, int64_t budget_bytes,
                                      int64_t needed_bytes, int64_t device_bytes) {
    const int64_t other_bytes = plan->device_bytes - plan->sizes.device_bytes;
    const int is_sliced = plan->slice_rows && plan->slice_rows < plan->shape.n_rows;
    const char* spilling = desc->spill_directory ? "lower n_rows" : "set spill_directory";
    const char* smaller = is_sliced ? "lower n_rows or slice_rows" : "lower n_rows";
    char policy[64], bytes[4][32], rest[128] = "", device[48] = "";
    snprintf(policy, sizeof policy, "policy %s", memo_policy_name(plan->policy));
    if (plan->policy == MEMO_POLICY_MEMO) strcpy(policy, "the smallest plan");
    if (plan->shape.is_forward_only) strcpy(policy, "a forward alone");
    if (desc->n_shapes > 1) snprintf(policy + strlen(policy), 24, " of shape %d", (int)shape);

    memob_bytes_text(bytes[0], (double)(needed_bytes - budget_bytes));
    memob_bytes_text(bytes[1], (double)needed_bytes);
    memob_bytes_text(bytes[2], (double)(needed_bytes - other_bytes));
    memob_bytes_text(bytes[3], (double)other_bytes);
    if (tier == 0)
        snprintf(rest, sizeof rest, " (%s of activations, %s of %sother buffers)", bytes[2],
                 bytes[3], desc->n_states ? "states and " : "");
    else if (device_bytes)
        snprintf(device, sizeof device, "device_bytes to %lld, or ", (long long)device_bytes);
    snprintf(plan->shortage, sizeof plan->shortage,
             "memo_session_desc.%s: %s needs %s, %s more than the budget%s; raise %s to %lld, or "
             "%s%s",
             memoi_session_tiers[tier], policy, bytes[1], bytes[0], rest, memoi_session_tiers[tier],
             (long long)needed_bytes, device, tier ? spilling : smaller);
}

/* The bytes of each owner on each tier, and their sums. */
MEMOI void memoi_session_add_up(const memo_session* s, memo_step_plan* plan, int64_t* needed) {
    const int64_t fixed_bytes = memoi_session_fix(plan->addresses, 0);
    int64_t(*of)[MEMO_N_OWNERS] = plan->bytes;
    for (int32_t tier = 0; tier < MEMO_N_TIERS; tier++)
        memcpy(of[tier], s->states_sizes.bytes[tier], sizeof s->states_sizes.bytes[tier]);
    of[MEMO_TIER_DEVICE][MEMO_OWNER_ACTIVATIONS] = plan->sizes.device_bytes;
    of[MEMO_TIER_HOST][MEMO_OWNER_ACTIVATIONS] =
        memob_align_up(plan->sizes.host_bytes, MEMOB_DEVICE_ALIGNMENT);
    of[MEMO_TIER_FILE][MEMO_OWNER_ACTIVATIONS] = plan->sizes.spill_bytes;
    of[MEMO_TIER_DEVICE][MEMO_OWNER_SESSION] =
        fixed_bytes - plan->sizes.device_bytes - s->states_sizes.device_bytes;
    of[MEMO_TIER_DEVICE][MEMO_OWNER_MICRO_BATCH] = plan->addresses->peak_bytes - fixed_bytes;
    for (int32_t tier = 0; tier < MEMO_N_TIERS; tier++)
        for (int32_t owner = 0; owner < MEMO_N_OWNERS; owner++) needed[tier] += of[tier][owner];
    plan->device_bytes = needed[MEMO_TIER_DEVICE];
    plan->sleep_bytes = s->states_sizes.resident_bytes - s->states_sizes.fetched_bytes +
                        of[MEMO_TIER_DEVICE][MEMO_OWNER_SESSION];
    plan->host_bytes = needed[MEMO_TIER_HOST];
    plan->disk_bytes = needed[MEMO_TIER_FILE];
    plan->device_budget_bytes = s->desc.device_bytes;
    plan->host_budget_bytes = s->desc.host_bytes;
}

/* Ends a stage: says which budget lacks how much.  The most of all ranks decides.  rows: what the
 * stage does, for the log. */
MEMOI void memoi_stage_judge(memoi_planner* p, const char* rows) {
    memo_session* s = p->session;
    memo_step_plan* plan = s->part->plan;
    const int64_t budgets[] = {p->limit_bytes, s->desc.host_bytes, s->desc.disk_bytes};
    MEMOB_TABLE_OF(MEMO_N_TIERS, budgets);
    int64_t values[1 + MEMO_N_TIERS] = {0}, *needed = values + 1; /* of each tier */
    char bytes[32];
    int lacking = 0;
    plan->fits = 0;
    if (!s->failure.status) memoi_session_add_up(s, plan, needed);
    memoi_session_settle_values(s, values, 1 + MEMO_N_TIERS);
    if (s->failure.status) return;
    p->peak_bytes = needed[MEMO_TIER_DEVICE];
    while (lacking < MEMO_N_TIERS && !memoi_is_over(needed[lacking], budgets[lacking])) lacking++;
    plan->fits = lacking == MEMO_N_TIERS;
    *plan->shortage = 0;
    memob_bytes_text(bytes, (double)p->peak_bytes);
    if (plan->fits) {
        memob_session_log(s, "session: %s takes %s of device memory", rows, bytes);
        return;
    }
    memob_session_log(s, "session: %s takes %s of device memory (exceeds %s)", rows, bytes,
                      memoi_session_tiers[lacking]);
    memoi_session_put_shortage(&s->desc, plan, (int32_t)(s->part - s->parts), lacking,
                               budgets[lacking], needed[lacking], 0);
}

/* Numbers of a table of the stage's rows. */
MEMOI int64_t memoi_session_n_cells(const memo_session* s) {
    return (int64_t)s->part->plan->swap.n_layers * s->part->plan->swap.n_tensors;
}

/* What a stage of a policy does with rows; MEMO recomputes what can be, and swaps the rest. */
static const struct {
    const char* does;
    int recomputes, swaps;
} memoi_session_policies[] = {{"moving or recomputing everything", 1, 1},
                              {"keeping everything", 0, 0},
                              {"recomputing what can be", 1, 0},
                              {"moving everything", 0, 1},
                              {"alpha", 0, 0},
                              {"the desc's table of rows", 0, 0}};
MEMOB_TABLE_OF(MEMO_N_POLICIES, memoi_session_policies);

/* The rows of tensor t by a policy. */
MEMOI int64_t memoi_session_policy_rows(const memo_swap_desc* swap, memo_policy policy, int32_t t) {
    const int32_t away = memob_item_away(swap, t);
    if (memoi_session_policies[policy].recomputes && memob_is_recomputed(away)) return 0;
    if (!memoi_session_policies[policy].swaps || away == MEMO_KEEP) return MEMO_ROWS_KEPT;
    return away == MEMO_ROWS && memob_tensor_is_routed(swap, t) ? 0 : swap->n_rows;
}

/* Makes a stage of the plan's rows, with as many layers in host memory as fit, unless their number
 * is given.  does: for the log. */
MEMOI void memoi_stage_place(memoi_planner* p, const char* does) {
    memo_session* s = p->session;
    memo_swap_desc* swap = &s->part->plan->swap;
    const int64_t rows_bytes = s->desc.host_bytes - s->states_sizes.host_bytes;
    if (s->desc.spill_directory && s->desc.host_bytes && !swap->n_host_layers) {
        memob_swap_placement placement; /* it may need more than there is: see judge */
        memoi_keep(s, memob_swap_placement_fit(swap, memob_max(rows_bytes, 1), &placement,
                                               &s->call_error));
        memob_swap_placement_free(&placement);
    }
    memoi_session_list_requests(s);
    memoi_stage_solve(p);
    memoi_stage_judge(p, does);
}

/* Makes a stage with the rows of a policy. */
MEMOI void memoi_stage_make(memoi_planner* p, memo_policy policy) {
    memo_session* s = p->session;
    memo_swap_desc* swap = &s->part->plan->swap;
    const int64_t n = policy == MEMO_POLICY_ROWS ? 0 : memoi_session_n_cells(s);
    int64_t* rows = (int64_t*)(uintptr_t)swap->rows; /* the plan's own */
    swap->n_host_layers = 0;
    if (policy == MEMO_POLICY_ALPHA) {
        swap->alpha = fmax(s->desc.alpha, 0);
        memoi_keep(s, memob_swap_fill_rows(swap, rows, &s->call_error));
    } else
        for (int64_t i = 0; i < n; i++)
            rows[i] = memoi_session_policy_rows(swap, policy, (int32_t)(i % swap->n_tensors));
    memoi_stage_place(p, memoi_session_policies[policy].does);
}

/* A profile of the current shape with guesses instead of times: such a plan must fit, but need not
 * be fast.  Copies are not changed. */
MEMOI void memoi_session_guess(const memo_session* s, memo_profile* profile) {
    int32_t k;
    profile->n_rows = s->steps->n_rows;
    profile->n_tensors = s->desc.n_tensors;
    for (int32_t i = 0; i < s->n_steps; i++) {
        k = memob_layer_kind(s->steps, i);
        profile->n_kinds = (int32_t)memob_max(profile->n_kinds, k + 1);
        profile->forward_s[k] = 1;
        profile->backward_s[k] = 2;
    }
    for (int32_t i = 0; i < s->desc.n_tensors; i++) {
        memo_profile_tensor* tensor = &profile->tensors[i];
        snprintf(tensor->name, sizeof tensor->name, "%s", s->steps->tensors[i].name);
        for (k = 0; k < profile->n_kinds; k++)
            tensor->recompute_s_per_row[k] =
                memob_is_recomputed(memob_item_away(s->steps, i))
                    ? 0.5 / (double)s->steps->n_rows / (double)s->desc.n_tensors
                    : -1;
    }
}

/* The planner's desc, with what it points to. */
typedef struct memoi_session_costs {
    memo_swap_plan_desc desc;
    memoi_rows_aim aim;
    memo_swap_desc swap;
    memo_profile profile;
} memoi_session_costs;

/* The costs of the stage's tensors, and the budgets. */
MEMOI void memoi_stage_cost(const memoi_planner* p, memoi_session_costs* costs) {
    const memo_session* s = p->session;
    const memo_step_plan* plan = s->part->plan;
    memo_swap_plan_desc* desc = &costs->desc;
    memset(costs, 0, sizeof *costs);
    costs->swap = plan->swap;
    costs->swap.computes_on_host = s->desc.computes_on_host;
    costs->profile = *p->times;
    desc->swap = &costs->swap;
    desc->profile = &costs->profile;
    desc->micro_batches = s->desc.micro_batches / memoi_session_n_group(s);
    costs->aim.effort = p->effort;
    costs->aim.start = p->start;
    costs->aim.is_alpha = s->desc.policy == MEMO_POLICY_ALPHA;
    if (s->desc.host_bytes)
        desc->host_bytes = memob_max((s->desc.host_bytes - s->states_sizes.host_bytes) /
                                         MEMOB_DEVICE_ALIGNMENT * MEMOB_DEVICE_ALIGNMENT,
                                     1);
    if (s->desc.spill_directory && s->desc.host_bytes)
        desc->spill_bytes = s->desc.disk_bytes
                                ? memob_max(s->desc.disk_bytes - s->states_sizes.spill_bytes, 1)
                                : MEMOB_BYTES_MAX;

    if (s->streamed) desc->states = &s->states_desc;
}

/* The same for a search of rows, with what other buffers leave of the device; 0 or less: none. */
MEMOI void memoi_stage_cost_rows(const memoi_planner* p, memoi_session_costs* costs) {
    const int64_t other_bytes = p->peak_bytes - p->session->part->plan->sizes.device_bytes;
    memoi_stage_cost(p, costs);
    costs->swap.rows = NULL;
    if (p->limit_bytes) costs->desc.device_bytes = p->limit_bytes - other_bytes;
}

/* Makes a stage of the least memory, which may lack some.  Tensors that cannot be recomputed
 * are kept.  If they do not fit they are swapped, unless swapping takes more device memory. */
MEMOI void memoi_stage_take_least(memoi_planner* p) {
    const memo_step_plan* plan = p->session->part->plan;
    int64_t kept_bytes;
    memoi_stage_make(p, MEMO_POLICY_RECOMPUTE);
    kept_bytes = p->peak_bytes;
    if (!plan->fits) memoi_stage_make(p, MEMO_POLICY_MEMO);
    if (!plan->fits && p->peak_bytes > kept_bytes) memoi_stage_make(p, MEMO_POLICY_RECOMPUTE);
}

/* What the stage takes of the device beside states and activations; the same, whatever is
 * streamed and kept. */
MEMOI int64_t memoi_stage_other_bytes(const memoi_planner* p) {
    const memo_session* s = p->session;
    return p->peak_bytes - s->part->plan->sizes.device_bytes - s->states_sizes.device_bytes;
}

MEMOI void memoi_stage_forget_times(memo_step_plan* plan) {
    memo_swap_plan_destroy(plan->times);
    plan->times = NULL;
}

/* Makes the stage of rows that were found. */
MEMOI void memoi_stage_take(memoi_planner* p, const memo_swap_plan* found) {
    memo_session* s = p->session;
    memo_swap_desc* swap = &s->part->plan->swap;
    int64_t* rows = (int64_t*)(uintptr_t)swap->rows; /* the plan's own */
    swap->n_host_layers = found->n_host_layers;
    if (found->rows)
        memcpy(rows, found->rows, (size_t)memoi_session_n_cells(s) * sizeof *rows);
    else {
        swap->alpha = found->alpha;
        memoi_keep(s, memob_swap_fill_rows(swap, rows, &s->call_error));
    }
    memoi_stage_place(p, "a plan of rows");
}

/* Searches the rows that take least time, beside the other buffers, which do not depend on the
 * rows. */
MEMOI void memoi_stage_search(memoi_planner* p) {
    memo_session* s = p->session;
    memo_step_plan* plan = s->part->plan;
    memoi_session_costs costs;
    memo_status status;
    memob_session_log(s, "session: planning rows by %s times",
                      p->is_measured ? "measured" : "estimated");
    memoi_stage_cost_rows(p, &costs);
    plan->fits = 0;
    if (s->failure.status || (p->limit_bytes && costs.desc.device_bytes <= 0)) return;
    status = memoi_rows_make_plan(&costs.desc, &costs.aim, &plan->times, &s->call_error);
    if (status == MEMO_STATUS_INFEASIBLE) return; /* no rows fit */
    memoi_keep(s, status);
    if (status) return;
    memoi_stage_take(p, plan->times);
    if (!p->is_measured || !plan->fits) memoi_stage_forget_times(plan); /* of no meaning */
}

/* The times of the stage's rows, if times are measured. */
MEMOI void memoi_stage_time(memoi_planner* p) {
    memo_session* s = p->session;
    memo_step_plan* plan = s->part->plan;
    memoi_session_costs costs;
    if (!p->is_measured || plan->times) return;
    memoi_stage_cost(p, &costs);
    memoi_keep(s, memoi_rows_make_plan(&costs.desc, &costs.aim, &plan->times, &s->call_error));
    memoi_session_settle(s);
}

/* Makes the stage that needs no search: of the policy, or, if rows are planned, of all rows kept,
 * which is fastest. */
MEMOI void memoi_stage_begin(memoi_planner* p) {
    const memo_session_desc* desc = &p->session->desc;
    memo_step_plan* plan = p->session->part->plan;
    memo_policy policy = desc->policy;
    if (memoi_session_plans_rows(desc)) policy = MEMO_POLICY_KEEP;
    if (plan->shape.is_forward_only) policy = MEMO_POLICY_MEMO; /* layers share what they use */
    memoi_stage_forget_times(plan);
    memoi_stage_make(p, policy);
}

/* Makes the stage of the policy of one that was begun, with measured times if there are any.  All
 * ranks plan with the same numbers. */
MEMOI void memoi_stage_end(memoi_planner* p) {
    memo_session* s = p->session;
    memo_step_plan* plan = s->part->plan;
    const int is_alpha = memoi_session_is_alpha(&s->desc);
    if (s->failure.status || plan->shape.is_forward_only) return;
    if (is_alpha || (memoi_session_plans_rows(&s->desc) && !plan->fits)) {
        memoi_stage_search(p);
        if (!plan->fits && is_alpha)
            memoi_stage_make(p, s->desc.policy);
        else if (!plan->fits)
            memoi_stage_take_least(p);
    }
    memoi_stage_time(p);
}
MEMOI void memoi_stage_choose(memoi_planner* p) {
    memoi_stage_begin(p);
    memoi_stage_end(p);
}

/* --- >>session plan ---
 * Knows: stages, the seconds of their steps, and what is chosen by these: the states that leave the
 * device, for the host or a file, and when and where the update runs; a plan of each shape.  Knows
 * nothing of addresses, and of how a search for rows goes.
 *
 * One search ranks *choices*, by a short search for rows that begins with the best rows so far; a
 * choice again only near the best.  A whole search plans the best choice, which its rank bounds
 * from above.  There is none for slices or groups whose best rank is far behind the plan of others.
 *
 * 1. Without times the first plan that fits is the last. */

/* States of all layers. */
MEMOI int64_t memoi_session_n_states(const memo_session* s) {
    return (int64_t)s->states_desc.n_states * s->states_desc.n_layers;
}

#define MEMOI_CHOICE_GAIN   1e-4  /* the least share of a step that another choice saves */
#define MEMOI_CHOICE_BEHIND 0.125 /* more than a whole search shortens a rank */
#define MEMOI_CHOICE_NEAR   0.016 /* the share of a step that a search for another choice saves */
#define MEMOI_CHOICE_SHARES 12    /* of the bytes of states, that are tried */

/* What leaves the device, and when and where the update runs. */
typedef struct memoi_choice {
    int64_t n_streamed, n_spilled; /* states of layers */
    int32_t update_at, is_on_host;
} memoi_choice;

/* A choice, its rank, and the most streamed states of those that have the same step. */
typedef struct memoi_leader {
    memoi_choice choice;
    double step_s; /* infinite: does not fit */
    int64_t most;
} memoi_leader;

/* A rank, and how many choices had been the best by then. */
typedef struct memoi_rank {
    double step_s; /* negative: none yet; infinite: does not fit */
    int32_t n_bests;
} memoi_rank;

/* A choice that was ranked, with the fewest spilled states that fit. */
typedef struct memoi_known {
    memoi_choice choice;
    memoi_rank rank;
} memoi_known;

/* What a choice does.  Choices count states that layers lack, so many do the same. */
typedef struct memoi_deed {
    uint64_t digest; /* of the states that leave the device, and the host */
    int32_t update_at, is_on_host;
    memoi_rank rank;
} memoi_deed;

enum { MEMOI_CHOICES_KNOWN = 128 };
typedef struct memoi_choices {
    int64_t other_bytes;                     /* of the device, beside states and activations */
    int64_t n_all;                           /* states of layers */
    int64_t shares[MEMOI_CHOICE_SHARES + 1]; /* streamed states with so many parts of the bytes */

    /* What ranks have found. */
    memoi_leader best;
    int32_t n_bests;       /* so far */
    int64_t *rows, *found; /* the best's, and those of the latest rank */
    int32_t n_known, n_deeds;
    memoi_known known[MEMOI_CHOICES_KNOWN];
    memoi_deed deeds[MEMOI_CHOICES_KNOWN]; /* that a search of rows has ranked */

    /* What whole searches have found. */
    memoi_choice planned;  /* the best */
    double planned_s;      /* of its step; infinite: none fits */
    memo_swap_plan* times; /* its */
    int is_current;        /* the session's stage is it */
} memoi_choices;

/* Streams, spills and updates as chosen.  If nothing travels, only MEMO_MAY_NOT_PASS gives the
 * update another moment than its own pass. */
MEMOI void memoi_planner_take(const memoi_planner* p, const memoi_choice* c) {
    memo_session* s = p->session;
    memo_step_plan* plan = s->part->plan;
    const int is_free = c->n_streamed || c->is_on_host || s->desc.update_may & MEMO_MAY_NOT_PASS;
    plan->update_at = is_free && !(c->is_on_host && c->update_at == MEMO_UPDATE_DEFERRED)
                          ? c->update_at
                          : (int32_t)MEMO_UPDATE_PASS;
    plan->update_is_on_host = c->is_on_host;
    plan->n_streamed = c->n_streamed;
    plan->n_spilled = c->n_spilled;
    memoi_session_stream(s);
    memoi_session_settle(s);
}

/* All states are streamed, and the host updates them. */
MEMOI memoi_choice memoi_choices_on_host(const memoi_choices* f, int32_t update_at) {
    const memoi_choice choice = {f->n_all, 0, update_at, 1};
    return choice;
}

/* The most states that a choice can spill. */
MEMOI int64_t memoi_planner_most_spilled(const memoi_planner* p, const memoi_choice* c) {
    return p->session->desc.spill_directory && !c->is_on_host ? c->n_streamed : 0;
}

/* --- ranks --- */

/* What the choice that was taken does: a deed that is known, or a new one without a rank. */
MEMOI memoi_deed* memoi_planner_deed(const memoi_planner* p, memoi_choices* f) {
    const memo_session* s = p->session;
    const memo_step_plan* plan = s->part->plan;
    const memoi_deed deed = {
        s->states_sizes.digest, plan->update_at, plan->update_is_on_host, {-1, 0}};
    int32_t k = 0;
    while (k < f->n_deeds &&
           !(f->deeds[k].digest == deed.digest && f->deeds[k].update_at == deed.update_at &&
             f->deeds[k].is_on_host == deed.is_on_host))
        k++;
    if (k == f->n_deeds) {
        f->n_deeds = k + (k < MEMOI_CHOICES_KNOWN);
        k = f->n_deeds - 1;
        f->deeds[k] = deed;
    }
    return &f->deeds[k];
}

/* 1: a rank is near the best step, and older.  One that begins with the best rows of now may be
 * shorter. */
MEMOI int memoi_rank_may_gain(const memoi_rank* rank, const memoi_choices* f) {
    return rank->n_bests != f->n_bests && rank->step_s > f->best.step_s &&
           rank->step_s <= f->best.step_s * (1 + MEMOI_CHOICE_NEAR);
}

/* Returns the seconds of a step, by a short search for rows, or with the stage's rows if the policy
 * gives them; infinite if it does not fit. */
MEMOI double memoi_planner_rank(const memoi_planner* p, memoi_choices* f, const memoi_choice* c) {
    memo_session* s = p->session;
    const memob_states_sizes* sizes = &s->states_sizes;
    memoi_deed* deed;
    const int plans_rows = memoi_session_plans_rows(&s->desc);
    memoi_session_costs costs;
    int64_t left_bytes;
    double step_s;
    memoi_planner_take(p, c);
    left_bytes = p->limit_bytes - f->other_bytes - sizes->device_bytes;
    if (s->failure.status || (p->limit_bytes && left_bytes <= 0) ||
        memoi_is_over(sizes->host_bytes, s->desc.host_bytes) ||
        memoi_is_over(sizes->spill_bytes, s->desc.disk_bytes))
        return HUGE_VAL;
    deed = memoi_planner_deed(p, f);
    if (deed->rank.step_s >= 0 && !memoi_rank_may_gain(&deed->rank, f)) return deed->rank.step_s;
    memoi_stage_cost(p, &costs);
    costs.aim.start = f->rows;
    costs.aim.other_s = f->best.step_s < HUGE_VAL ? f->best.step_s : 0;
    if (p->limit_bytes) costs.desc.device_bytes = left_bytes;
    if (plans_rows) costs.swap.rows = NULL;
    memoi_keep(s, memoi_rows_rank(&costs.desc, &costs.aim, f->found, &step_s, &s->call_error));
    memoi_session_settle(s);
    deed->rank.step_s = deed->rank.step_s < 0 ? step_s : fmin(step_s, deed->rank.step_s);
    deed->rank.n_bests = f->n_bests;
    return step_s;
}

/* Ranks a choice with the fewest spilled states, of at least its own, with which a step fits.
 * Tries a 16th of the streamed states more at a time. */
MEMOI double memoi_planner_spill(const memoi_planner* p, memoi_choices* f, memoi_choice* c) {
    const int64_t most = memoi_planner_most_spilled(p, c), more = c->n_streamed / 16 + 1;
    double step_s;
    for (c->n_spilled = memob_min(c->n_spilled, most);;
         c->n_spilled = memob_min(c->n_spilled + more, most)) {
        step_s = memoi_planner_rank(p, f, c);
        if (step_s < HUGE_VAL || c->n_spilled == most) return step_s;
    }
}

/* Makes a choice the best if its step is shorter, or the same with fewer streamed states.  Returns
 * 1 if it is shorter. */
MEMOI int memoi_leader_take(memoi_leader* best, const memoi_choice* c, double step_s) {
    const int is_shorter = step_s < best->step_s * (1 - MEMOI_CHOICE_GAIN);
    const int is_same =
        step_s <= best->step_s && c->update_at == best->choice.update_at && !c->n_spilled;
    if (is_shorter) {
        best->step_s = step_s;
        best->most = c->n_streamed;
    }
    if (is_same) best->most = memob_max(best->most, c->n_streamed);
    if (is_shorter || (is_same && c->n_streamed < best->choice.n_streamed)) best->choice = *c;
    return is_shorter;
}

/* Ranks a choice, unless its rank is known and cannot gain, and takes it for the best if it is.
 * Returns the seconds of its step. */
MEMOI double memoi_planner_try(const memoi_planner* p, memoi_choices* f, memoi_choice c) {
    const int64_t n_cells = memoi_session_n_cells(p->session);
    memoi_known* known = f->known;
    memoi_known* const end = f->known + f->n_known;
    double step_s;
    if (!memob_is_within(c.n_streamed, p->least_streamed, f->n_all)) return HUGE_VAL;
    while (known < end && memcmp(&known->choice, &c, sizeof c)) known++;
    if (known < end && !memoi_rank_may_gain(&known->rank, f)) return known->rank.step_s;
    f->n_known += known == end && f->n_known < MEMOI_CHOICES_KNOWN - 1;
    known->choice = c;
    step_s = memoi_planner_spill(p, f, &c);
    if (memoi_leader_take(&f->best, &c, step_s) && memoi_session_plans_rows(&p->session->desc)) {
        memcpy(f->rows, f->found, (size_t)n_cells * sizeof *f->rows);
        f->n_bests++;
    }
    known->rank.step_s = step_s;
    known->rank.n_bests = f->n_bests;
    return step_s;
}

/* The same, to try others around it. */
MEMOI memoi_leader memoi_planner_lead(const memoi_planner* p, memoi_choices* f, memoi_choice c) {
    const memoi_leader leader = {c, memoi_planner_try(p, f, c), c.n_streamed};
    return leader;
}

/* Tries fewer and more streamed states than those of a choice, or of better ones that this finds,
 * by up to what is between two of MEMOI_CHOICE_SHARES, times scale, then finer and finer. */
MEMOI void memoi_planner_try_around(const memoi_planner* p, memoi_choices* f, memoi_leader from,
                                    int64_t scale) {
    int64_t stride = 1, gap = 1, last = 0;
    for (int32_t k = 1; k <= MEMOI_CHOICE_SHARES && last <= from.choice.n_streamed; k++) {
        if (f->shares[k] >= from.choice.n_streamed) gap = memob_max(gap, f->shares[k] - last);
        last = f->shares[k];
    }
    while (stride * 2 <= gap * scale) stride *= 2;
    for (; stride; stride /= 2) {
        memoi_choice fewer = from.choice, more = from.choice;
        fewer.n_spilled = more.n_spilled = 0;
        fewer.n_streamed -= stride;
        more.n_streamed = from.most + stride;
        (void)memoi_leader_take(&from, &fewer, memoi_planner_try(p, f, fewer));
        (void)memoi_leader_take(&from, &more, memoi_planner_try(p, f, more));
    }
}

/* May the update run then? */
MEMOI int memoi_planner_may_update(const memo_session_desc* desc, int32_t at) {
    const int may = desc->update_may;
    if (at == MEMO_UPDATE_DEFERRED) return may & MEMO_MAY_DEFER;
    if (memob_update_is_fused(at)) return may & MEMO_MAY_FUSE;
    return !(may & MEMO_MAY_NOT_PASS && may > MEMO_MAY_NOT_PASS);
}

/* The first of equal steps is chosen: a fused update copies least. */
static const int32_t memoi_moments[] = {MEMO_UPDATE_FUSED, MEMO_UPDATE_DEFERRED, MEMO_UPDATE_PASS};
MEMOB_TABLE_OF(MEMO_N_UPDATE_MOMENTS - 1, memoi_moments); /* all but 0 */
enum { MEMOI_N_MOMENTS = sizeof memoi_moments / sizeof *memoi_moments };

/* 1: the update may run on the host or on the device, as is better. */
MEMOI int memoi_planner_may_host(const memoi_planner* p) {
    const memo_session_desc* desc = &p->session->desc;
    return desc->update_host && desc->update_on == MEMO_UPDATE_PLANNED && desc->n_layers >= 2;
}
/* 1: it has a rank there. */
MEMOI int memoi_planner_ranks_host(const memoi_planner* p) {
    return p->is_measured && p->times->update_host_s_per_byte > 0 && memoi_planner_may_host(p);
}

/* Tries all moments that the trainer allows. */
MEMOI void memoi_planner_try_moments(const memoi_planner* p, memoi_choices* f, memoi_choice c) {
    for (int32_t k = 0; k < MEMOI_N_MOMENTS; k++) {
        c.update_at = memoi_moments[k];
        if (memoi_planner_may_update(&p->session->desc, c.update_at))
            (void)memoi_planner_try(p, f, c);
    }
}

/* 1: a plan of other slices or groups takes less, by more than a whole search shortens a rank. */
MEMOI int memoi_planner_is_behind(const memoi_planner* p, const memoi_choices* f) {
    return p->best_s > 0 && f->best.step_s > p->best_s * (1 + MEMOI_CHOICE_BEHIND) &&
           p->session->desc.policy == MEMO_POLICY_MEMO;
}

/* Tries shares of the bytes of states, then between the fewest that fit and what does not, then
 * around the best, and around each that is near the best and no longer than its neighbors.  Shares
 * near the best are ranked again, beginning with its rows. */
MEMOI void memoi_planner_try_shares(const memoi_planner* p, memoi_choices* f, memoi_choice c) {
    enum { N = MEMOI_CHOICE_SHARES + 1 };
    memoi_leader shares[N];
    int32_t first = N;
    for (int32_t k = 0; k < N; k++) {
        if (k) c.n_streamed = f->shares[k];
        shares[k] = memoi_planner_lead(p, f, c);
        if (shares[k].step_s < HUGE_VAL && first == N) first = k;
    }
    if (first == N) return;

    /* The fewest that fit take the place of a share that does not. */
    if (first) {
        memoi_leader* fewest = &shares[first - 1];
        int64_t lacks = fewest->choice.n_streamed;
        *fewest = shares[first];
        while (fewest->choice.n_streamed - lacks > 1) {
            memoi_leader middle;
            c.n_streamed = lacks + (fewest->choice.n_streamed - lacks) / 2;
            middle = memoi_planner_lead(p, f, c);
            if (middle.step_s < HUGE_VAL)
                *fewest = middle;
            else
                lacks = c.n_streamed;
        }
    }

    if (memoi_planner_is_behind(p, f)) return;
    memoi_planner_try_around(p, f, f->best, 1);
    for (int32_t k = 0; k < N; k++) {
        const int is_low = (k == 0 || shares[k].step_s <= shares[k - 1].step_s) &&
                           (k == N - 1 || shares[k].step_s <= shares[k + 1].step_s);
        if (is_low && shares[k].step_s <= f->best.step_s * (1 + MEMOI_CHOICE_NEAR))
            memoi_planner_try_around(p, f, shares[k], 1);
    }
    for (int32_t k = 0; k < N; k++) (void)memoi_planner_try(p, f, shares[k].choice);
}

/* Ranks choices of the update on the device.  Streams more states than fit, if their copies cost
 * less than the memory saves.  Then come other moments, and more states in a file, which leave host
 * memory to rows. */
MEMOI void memoi_planner_try_device(const memoi_planner* p, memoi_choices* f, memoi_choice c) {
    const int32_t first = c.update_at;
    memoi_planner_try_shares(p, f, c);
    if (f->best.step_s >= HUGE_VAL) return;

    c = f->best.choice;
    c.n_spilled = 0;
    memoi_planner_try_moments(p, f, c);
    if (f->best.choice.update_at != first) memoi_planner_try_around(p, f, f->best, 2);

    for (int k = 0; k < 2 && p->session->desc.host_bytes; k++) {
        const int64_t most = memoi_planner_most_spilled(p, &f->best.choice);
        c = f->best.choice;
        if (c.n_spilled == most) return;
        c.n_spilled = k ? most : (c.n_spilled + most) / 2;
        (void)memoi_planner_try(p, f, c);
    }
}

/* --- whole searches --- */

/* A stage becomes the best if it fits and its step is shorter; without times the first that fits is
 * the best. */
MEMOI void memoi_planner_judge(memoi_planner* p, memoi_choices* f, memoi_choice c) {
    memo_step_plan* plan = p->session->part->plan;
    const double step_s = memoi_step_plan_s(plan);
    f->is_current = plan->fits && step_s < f->planned_s * (1 - MEMOI_CHOICE_GAIN);
    if (!f->is_current) return;
    memo_swap_plan_destroy(f->times);
    f->times = plan->times;
    plan->times = NULL;
    f->planned = c;
    f->planned_s = step_s;
}

/* Ends the stage of a choice by a whole search, with more states in a file if another memory lacks
 * bytes. */
MEMOI void memoi_planner_end(memoi_planner* p, memoi_choices* f, memoi_choice c) {
    memo_step_plan* plan = p->session->part->plan;
    const int64_t most = memoi_planner_most_spilled(p, &c);
    memoi_stage_end(p);
    if (!plan->fits && c.n_spilled < most && !memoi_is_over(p->peak_bytes, p->limit_bytes)) {
        c.n_spilled++;
        f->other_bytes = memoi_stage_other_bytes(p);
        f->n_deeds = 0; /* ranked beside other bytes */
        (void)memoi_planner_spill(p, f, &c);
        memoi_stage_choose(p);
    }
    memoi_planner_judge(p, f, c);
}
MEMOI void memoi_planner_plan(memoi_planner* p, memoi_choices* f, memoi_choice c) {
    memoi_planner_take(p, &c);
    memoi_stage_begin(p);
    memoi_planner_end(p, f, c);
}

/* Plans the best choice with the rows of its rank. */
MEMOI void memoi_planner_plan_rank(memoi_planner* p, memoi_choices* f) {
    memo_step_plan* plan = p->session->part->plan;
    memo_swap_plan found = MEMO_ZERO(memo_swap_plan);
    found.rows = f->rows;
    memoi_planner_take(p, &f->best.choice);
    memoi_stage_forget_times(plan);
    memoi_stage_take(p, &found);
    if (plan->fits) memoi_stage_time(p);
    memoi_planner_judge(p, f, f->best.choice);
}

/* Plans a choice if its states leave more room on the device than *least_bytes do, which they then
 * become. */
MEMOI void memoi_planner_plan_roomier(memoi_planner* p, memoi_choices* f, memoi_choice c,
                                      int64_t* least_bytes) {
    const int64_t* n_bytes = &p->session->states_sizes.device_bytes;
    memoi_planner_take(p, &c);
    f->is_current = 0;
    if (*n_bytes >= *least_bytes) return;
    *least_bytes = *n_bytes;
    memoi_stage_begin(p);
    memoi_planner_end(p, f, c);
}

/* Plans the best choice from its rows, and the most states with the same step, which leave room for
 * other rows.  Where neither is as short as ranked, a few states more may. */
MEMOI void memoi_planner_plan_best(memoi_planner* p, memoi_choices* f) {
    memoi_choice c = f->best.choice;
    int64_t least_bytes = INT64_MAX;
    p->start = f->rows;
    memoi_planner_plan_roomier(p, f, c, &least_bytes);
    c.n_streamed = f->best.most;
    memoi_planner_plan_roomier(p, f, c, &least_bytes);
    for (int64_t more = 1; more <= 4 && f->best.most + more <= f->n_all && !c.is_on_host &&
                           f->planned_s > f->best.step_s * (1 + MEMOI_CHOICE_GAIN);
         more *= 2) {
        c.n_streamed = f->best.most + more;
        memoi_planner_plan_roomier(p, f, c, &least_bytes);
    }
    p->start = NULL;
}

/* Plans the fewest streamed states that fit, of at least those of c, whose stage there is.  Other
 * memory takes the same bytes, whatever is streamed. */
MEMOI void memoi_planner_plan_fewest(memoi_planner* p, memoi_choices* f, memoi_choice c) {
    const memo_session* s = p->session;
    const memo_step_plan* plan = s->part->plan;
    const int64_t stride = f->n_all / 64 + 1;
    const int64_t rest_bytes = p->peak_bytes - s->states_sizes.device_bytes;
    while (!plan->fits && c.n_streamed < f->n_all &&
           (!c.n_streamed || p->peak_bytes > p->limit_bytes)) {
        c.n_streamed = memob_min(c.n_streamed + stride, f->n_all);
        memoi_planner_take(p, &c);
        if (s->states_sizes.device_bytes + rest_bytes <= p->limit_bytes || c.n_streamed == f->n_all)
            memoi_planner_plan(p, f, c);
    }
}

/* Nothing fits with the update on the device.  If neither place fits, the stage is that of the host
 * if it takes fewer bytes of the device. */
MEMOI void memoi_planner_plan_host(memoi_planner* p, memoi_choices* f, memoi_choice c) {
    const memo_step_plan* plan = p->session->part->plan;
    const memoi_choice on_host = memoi_choices_on_host(f, c.update_at);
    const int64_t device_bytes = p->peak_bytes;
    c.n_streamed = plan->n_streamed;
    c.n_spilled = plan->n_spilled;
    if (!memoi_planner_may_host(p)) return;
    memoi_planner_plan(p, f, on_host);
    if (plan->fits || (p->peak_bytes < device_bytes && memoi_is_over(device_bytes, p->limit_bytes)))
        return;
    memoi_planner_take(p, &c);
    memoi_stage_choose(p);
}

/* Ranks choices beside the stage that there is, which is of c, and plans the best. */
MEMOI void memoi_planner_choose_ranked(memoi_planner* p, memoi_choices* f, memoi_choice c) {
    memo_session* s = p->session;
    const memoi_choice on_host = memoi_choices_on_host(f, c.update_at);
    memob_session_log(s, "session: planning which of %lld states of layers leave the device",
                      (long long)f->n_all);
    f->other_bytes = memoi_stage_other_bytes(p);
    f->best.choice = c;
    memcpy(f->rows, s->part->plan->swap.rows, (size_t)memoi_session_n_cells(s) * sizeof *f->rows);
    for (int32_t k = 0; k <= MEMOI_CHOICE_SHARES; k++)
        f->shares[k] = memoi_session_first_of(s, (double)k / MEMOI_CHOICE_SHARES);

    if (!c.is_on_host) memoi_planner_try_device(p, f, c);
    if (c.is_on_host || memoi_planner_ranks_host(p)) memoi_planner_try_moments(p, f, on_host);
    if (f->best.step_s >= HUGE_VAL) return;
    if (memoi_planner_is_behind(p, f))
        memoi_planner_plan_rank(p, f);
    else
        memoi_planner_plan_best(p, f);
}

/* Chooses, and makes the stage. */
MEMOI void memoi_planner_search(memoi_planner* p, memoi_choices* f, memoi_choice c) {
    memo_session* s = p->session;
    memo_step_plan* plan = s->part->plan;
    if (f->n_all && s->desc.update_on == MEMO_UPDATE_HOST)
        c = memoi_choices_on_host(f, c.update_at);
    memoi_planner_take(p, &c);
    memoi_stage_begin(p);

    /* Nothing to choose: no states, or all are on the device and nothing stalls. */
    if (plan->fits || !f->n_all || s->desc.states_stay || !p->is_measured)
        memoi_planner_end(p, f, c);
    if (!f->n_all || s->desc.states_stay) return;
    if (plan->fits && (!f->times || (f->times->stall_s + f->times->recompute_s <= 0 &&
                                     !memoi_planner_ranks_host(p))))
        return;

    if (p->is_measured) memoi_planner_choose_ranked(p, f, c);
    if (f->planned_s >= HUGE_VAL && p->is_measured) memoi_planner_plan(p, f, c);
    if (f->planned_s >= HUGE_VAL && !c.is_on_host) memoi_planner_plan_fewest(p, f, c);
    if (f->planned_s >= HUGE_VAL) memoi_planner_plan_host(p, f, c);
}

/* Chooses, and makes the stage of, the states that are streamed, and the update's moment and place:
 * nothing travels if all states fit beside all activations. */
MEMOI void memoi_planner_choose(memoi_planner* p) {
    memo_session* s = p->session;
    memo_step_plan* plan = s->part->plan;
    const int64_t n_cells = memoi_session_n_cells(s);
    memoi_choice c = {p->least_streamed, 0, 0, 0};
    memoi_choices f;
    memset(&f, 0, sizeof f);
    f.best.step_s = f.planned_s = HUGE_VAL;
    f.n_all = memoi_session_n_states(s);
    for (int32_t k = MEMOI_N_MOMENTS - 1; k >= 0; k--)
        if (memoi_planner_may_update(&s->desc, memoi_moments[k])) c.update_at = memoi_moments[k];
    f.rows = (int64_t*)memob_calloc(2 * n_cells, sizeof *f.rows);
    if (!f.rows) memoi_keep(s, memob_no_memory(&s->call_error, "the rows of plans"));
    memoi_session_settle(s);
    if (!s->failure.status) {
        f.found = f.rows + n_cells;
        memoi_planner_search(p, &f, c);
    }
    MEMO_FREE(f.rows);
    if (f.planned_s >= HUGE_VAL) return;

    /* The best stage again, from its rows. */
    MEMO_ASSERT(f.is_current || f.times); /* 1 */
    if (!f.is_current) {
        memoi_planner_take(p, &f.planned);
        memoi_stage_begin(p);
        if (f.times->rows || f.times->alpha >= 0) memoi_stage_take(p, f.times);
    }
    memoi_stage_forget_times(plan);
    plan->times = f.times;
}

/* Names the limit of the chosen stage, if its rows were searched for, and no plan of other slices
 * or groups is as good. */
MEMOI void memoi_planner_name_limit(const memoi_planner* p) {
    memo_session* s = p->session;
    const memo_step_plan* plan = s->part->plan;
    memoi_session_costs costs;
    if (s->failure.status || !plan->times || *plan->times->reason) return;
    if (p->best_s > 0 && plan->times->step_s >= p->best_s) return;
    memoi_stage_cost_rows(p, &costs);
    memoi_keep(s, memoi_rows_name(&costs.desc, &costs.aim, plan->times, &s->call_error));
    memoi_session_settle(s);
}

/* Plans every shape, `first` first, whose peak limits the others.  Sets peaks_bytes of each shape,
 * the most of all ranks. */
MEMOI void memoi_planner_plan_each(memoi_planner* p, int32_t first, int64_t* peaks_bytes) {
    memo_session* s = p->session;
    const int32_t n = s->desc.n_shapes;
    const memo_step_plan* chosen = p->open ? p->open : s->parts[first].plan;
    int64_t limit_bytes = s->desc.device_bytes;
    memo_profile times;
    for (int32_t i = 0, k = first; i < n; i++, k = (k + 1) % n) {
        memo_step_plan* plan = s->parts[k].plan;
        memoi_session_use_shape(s, k);
        memset(&times, 0, sizeof times);
        memoi_session_guess(s, &times);
        if (p->profile && !plan->shape.is_forward_only) {
            times = p->profile[k];
            memoi_session_settle_profile(s, &times);
        }
        p->limit_bytes = limit_bytes;
        p->times = &times;
        p->is_measured = p->profile && !p->effort;

        /* All shapes stream what the first streams, or the open plan. */
        if (i || p->open) {
            const memoi_choice c = {chosen->n_streamed, chosen->n_spilled, chosen->update_at,
                                    chosen->update_is_on_host};
            memoi_planner_take(p, &c);
            memoi_stage_choose(p);
        } else
            memoi_planner_choose(p);
        if (limit_bytes != s->desc.device_bytes && !plan->fits) {
            p->limit_bytes = s->desc.device_bytes;
            memoi_stage_choose(p);
        }
        memoi_planner_name_limit(p);
        plan->sleep_s = memoi_rows_over(
            (double)(plan->sleep_bytes + plan->bytes[MEMO_TIER_DEVICE][MEMO_OWNER_PLACES]),
            memob_rows_find_rates(&times).bytes_per_s[0][0]);
        p->limit_bytes = s->desc.device_bytes;
        if (i == 0 && plan->fits) limit_bytes = p->peak_bytes;
        peaks_bytes[k] = p->peak_bytes;
    }
}

/* Sets least_streamed: the fewest streamed states of layers, at least as many as now, with which no
 * shape lacks device memory.  Other memory does not depend on how many states are
 * streamed. */
MEMOI void memoi_planner_stream_enough(memoi_planner* p, const int64_t* peaks_bytes) {
    memo_session* s = p->session;
    const int64_t n_all = memoi_session_n_states(s);
    const int64_t state_bytes = s->states_sizes.device_bytes;
    const int may_stream = s->desc.device_bytes && !s->desc.states_stay;
    int64_t most_bytes = 0, n = s->part->plan->n_streamed;
    for (int32_t k = 0; k < s->desc.n_shapes; k++)
        most_bytes = memob_max(most_bytes, peaks_bytes[k]);
    while (may_stream && n < n_all &&
           most_bytes - state_bytes + s->states_sizes.device_bytes > s->desc.device_bytes) {
        s->part->plan->n_streamed = n = memob_min(n + n_all / 64 + 1, n_all);
        memoi_session_stream(s);
    }
    p->least_streamed = n;
    memoi_session_settle(s);
}

/* The plan of every shape of a desc.  The longest shape with a backward comes first.  Every other
 * shape gets the device memory that the longest takes, so that the shapes together need no more; a
 * shape that does not fit there gets all of the budget.  If a shape lacks device memory, all stream
 * more states. */
MEMOI memo_status memoi_planner_plan_shapes(memoi_planner* p, const memo_session_desc* desc,
                                            memo_step_plan** plan, memo_error* error) {
    memo_session* s = memoi_session_make(desc, NULL, p->profile != NULL, error);
    int64_t most_rows = 0, peaks_bytes[MEMO_SHAPES_MAX], n_streamed;
    int32_t first = 0;
    memo_status status;
    *plan = NULL;
    if (!s) return MEMO_STATUS_OUT_OF_HOST_MEMORY;
    p->session = s;
    p->least_streamed = 0;

    /* The shape with the most rows is planned first. */
    for (int32_t k = 0; k < s->desc.n_shapes && !s->failure.status; k++) {
        const memo_shape* shape = &s->parts[k].plan->shape;
        if (shape->is_forward_only || shape->n_rows <= most_rows) continue;
        most_rows = shape->n_rows;
        first = k;
    }

    while (!s->failure.status) {
        memoi_planner_plan_each(p, first, peaks_bytes);
        n_streamed = s->part->plan->n_streamed;
        memoi_planner_stream_enough(p, peaks_bytes);
        if (p->least_streamed <= n_streamed) break;
    }
    status = memoi_session_end_call(s, error);
    if (!status) {
        *plan = s->own_plan;
        s->own_plan = NULL;
    }
    memo_session_destroy(s);
    p->session = NULL;
    return status;
}

/* --- >>session words ---
 * Knows: a plan in words.  Knows nothing of how it was made. */

/* Appends words and a number of bytes, unless it is 0. */
MEMOI MEMOB_NOINLINE void memoi_put_bytes(memo_text* text, const char* before, int64_t n_bytes) {
    char bytes[32];
    if (n_bytes) memo_text_put(text, "%s%s", before, memob_bytes_text(bytes, (double)n_bytes));
}

/* Who needs each tier. */
MEMOI void memoi_step_plan_put_owners(const memo_step_plan* plan, memo_text* text) {
    static const char* const tiers[] = {"device", "host", "file"};
    static const char* const owners[] = {"weights ",
                                         "gradients ",
                                         "optimizer ",
                                         "places of states ",
                                         "activations ",
                                         "the whole session ",
                                         "parts of a micro-batch "};
    MEMOB_TABLE_OF(MEMO_N_TIERS, tiers);
    MEMOB_TABLE_OF(MEMO_N_OWNERS, owners);
    for (int32_t tier = 0; tier < MEMO_N_TIERS; tier++) {
        const char* before = tiers[tier];
        char words[48];
        for (int32_t owner = 0; owner < MEMO_N_OWNERS; owner++) {
            if (!plan->bytes[tier][owner]) continue;
            snprintf(words, sizeof words, before == tiers[tier] ? "%-9s %s" : "%s%s", before,
                     owners[owner]);
            memoi_put_bytes(text, words, plan->bytes[tier][owner]);
            before = ", ";
        }
        if (before != tiers[tier]) memo_text_put(text, "\n");
    }
}

MEMOI void memoi_step_plan_put_one(const memo_step_plan* plan, memo_text* text) {
    const memo_plan* addresses = plan->addresses;
    const int is_optimal = addresses->proof == MEMO_PROOF_OPTIMAL;
    char bytes[32];
    const int is_forward_only = plan->shape.is_forward_only;
    const int has_rows = plan->times || plan->sizes.n_swapped_layers ||
                         (!is_forward_only && !memoi_rows_are_kept(&plan->swap));
    if (has_rows)
        memoi_rows_put(&plan->swap, text);
    else
        memo_text_put(text, "%-9s %s\n", memo_policy_name(plan->policy),
                      is_forward_only ? "a forward alone: layers share memory"
                                      : "every tensor stays on the device");
    if (plan->times) memoi_rows_put_times(plan->times, text);

    /* Planned bytes beside their budgets. */
    memoi_put_bytes(text, "plan      device ", plan->device_bytes);
    memoi_put_bytes(text, " of ", plan->device_budget_bytes);
    memo_text_put(text, " (%lld buffer%s, %s", (long long)addresses->n_buffers,
                  addresses->n_buffers == 1 ? "" : "s", is_optimal ? "optimal" : "lower bound");
    if (!is_optimal) memoi_put_bytes(text, " ", addresses->lower_bound_bytes);
    memo_text_put(text, "), host %s", memob_bytes_text(bytes, (double)plan->host_bytes));
    memoi_put_bytes(text, " of ", plan->host_budget_bytes);
    if (plan->times) {
        memo_text_put(text, ", %s to the host",
                      memob_bytes_text(bytes, (double)plan->times->to_host_bytes));
        memo_text_put(text, " and %s back in a step",
                      memob_bytes_text(bytes, (double)plan->times->to_device_bytes));
    } else
        memo_text_put(text, ", %s of rows moved each way",
                      memob_bytes_text(bytes, (double)plan->sizes.swapped_bytes));
    if (plan->sizes.n_spilled_layers)
        memo_text_put(text, ", %d %s through a file of %s", (int)plan->sizes.n_spilled_layers,
                      plan->swap.n_slices > 1 ? "slices of layers" : "layers",
                      memob_bytes_text(bytes, (double)plan->sizes.spill_bytes));
    memo_text_put(text, "\n");
    memoi_step_plan_put_owners(plan, text);
    if (plan->n_order)
        memo_text_put(text, "order     %d turns, %d places of %d layers\n", (int)plan->n_order,
                      (int)plan->swap.n_places, (int)(plan->swap.n_layers / plan->swap.n_places));
    if (plan->update_is_on_host) memo_text_put(text, "update    on the host\n");
    if (plan->update_at == MEMO_UPDATE_DEFERRED)
        memo_text_put(text, "update    of each layer before its next forward\n");
    if (!plan->fits) memo_text_put(text, "short     %s\n", plan->shortage);
}

void memo_step_plan_put(const memo_step_plan* plan, memo_text* text) {
    int64_t sums[2] = {0, 0}, most[2] = {0, 0};
    int has_shapes;
    int32_t n;
    if (!plan || !text) return;
    has_shapes = plan->next != NULL;
    for (n = 0; plan; plan = plan->next, n++) {
        if (has_shapes)
            memo_text_put(text, "shape     %d, %lld rows\n", (int)n, (long long)plan->shape.n_rows);
        memoi_step_plan_put_one(plan, text);
        sums[0] += plan->device_bytes;
        sums[1] += plan->host_bytes;
        most[0] = memob_max(most[0], plan->device_bytes);
        most[1] = memob_max(most[1], plan->host_bytes);
    }
    if (!has_shapes) return;
    memo_text_put(text, "shapes    %d share", (int)n);
    memoi_put_bytes(text, " device memory of ", most[0]);
    memoi_put_bytes(text, " instead of ", sums[0]);
    memoi_put_bytes(text, ", host memory of ", most[1]);
    memoi_put_bytes(text, " instead of ", sums[1] > most[1] ? sums[1] : 0);
    memo_text_put(text, "\n");
}

/* --- >>session open ---
 * Knows: memory, arena and engines of a plan.  Knows nothing of how the plan was made.
 *
 * 1. The block of the device has the bytes of every plan.
 * 2. What has a file begins with a whole page of the host's memory. */

/* Takes the caller's memory or the device's, unless it has been taken; host_bytes of rows.  A
 * session that plans again takes its whole budget, if it gets so much.  Without memory of the
 * caller states take their own.  On the host, what has a file comes first: it has whole pages, as a
 * file needs. */
MEMOI memo_status memoi_session_take_memory(memo_session* s, int64_t device_bytes,
                                            int64_t host_bytes, memo_error* error) {
    const int64_t states_bytes = s->states_sizes.host_bytes;
    const int64_t both_bytes = memob_align_up(host_bytes, MEMOB_DEVICE_ALIGNMENT) + states_bytes;
    const int states_are_first = s->states_sizes.spill_bytes > 0;
    const int64_t rows_at = states_are_first ? states_bytes : 0;
    memo_status status = MEMO_STATUS_OK;
    const char* field = NULL;

    /* A plan for other budgets may need more. */
    if (s->desc.device_memory && device_bytes > s->desc.device_bytes) field = "device";
    if (s->desc.host_memory && both_bytes > s->desc.host_bytes) field = "host";
    if (field)
        return memo_error_set(error, MEMO_STATUS_INFEASIBLE,
                              "memo_session_desc.%s_memory: the plan takes %lld bytes, more than "
                              "%s_bytes; plan with these budgets, or give more memory",
                              field, (long long)(*field == 'd' ? device_bytes : both_bytes), field);

    if (!s->device_memory) {
        s->device_memory = s->desc.device_memory;
        s->memory_bytes = device_bytes;
        if (s->timing.plan)
            s->memory_bytes =
                memob_max(device_bytes,
                          s->desc.device_bytes / MEMOB_DEVICE_ALIGNMENT * MEMOB_DEVICE_ALIGNMENT);
        if (!s->device_memory && s->memory_bytes > device_bytes &&
            memo_device_alloc(s->device, s->memory_bytes, &s->device_memory, NULL))
            s->memory_bytes = device_bytes;
        if (!s->device_memory)
            status = memo_device_alloc(s->device, device_bytes, &s->device_memory, error);
    }
    MEMO_ASSERT(device_bytes <= s->memory_bytes); /* 1 */
    if (s->desc.host_memory) {
        char* base = (char*)s->desc.host_memory;
        s->host_memory = base + rows_at;
        if (!states_are_first) /* the same place under every plan */
            base += (s->desc.host_bytes - states_bytes) / MEMOB_DEVICE_ALIGNMENT *
                    MEMOB_DEVICE_ALIGNMENT;
        s->states_desc.host_memory = base;
        MEMO_ASSERT(rows_at % MEMOB_SPILL_ALIGNMENT == 0); /* 2 */
    } else if (!status && host_bytes) {
        status = memo_host_alloc(s->device, host_bytes, &s->host_memory, error);
    }
    return status;
}

/* The step of a shape in which nothing moves. */
MEMOI void memoi_session_start_step(memo_session* s) {
    memoi_session_part* part = s->part;
    if (s->states || s->failure.status) return;
    memob_engine_begin(&part->own_sink.engine, s->device, s->desc.compute_stream,
                       s->desc.computes_on_host, NULL, NULL);
    part->step = &part->own_step;
    memoi_keep(s, memob_swap_make_step(s->steps, &part->placement, &part->own_sink, part->step,
                                       &s->call_error));
}

#ifdef MEMO_CHECK_COMES /* extras/memo_check.h includes this header, and runs updates both ways */
MEMOI memo_status memo_check_updates(memo_session* s, memo_error* error);
#endif

/* Memory for the largest shape; arena and engine of each; a checked session's memory.  All ranks
 * call this, also those that have failed. */
MEMOI void memoi_session_start(memo_session* s) {
    int64_t device_bytes = 1, host_bytes = 0;
    memob_sink* base = NULL; /* whose streams all shapes use */

    for (int32_t k = 0; k < s->desc.n_shapes; k++) {
        const memo_step_plan* plan = s->parts[k].plan;
        host_bytes = memob_max(host_bytes, plan->sizes.host_bytes);
        device_bytes = memob_max(device_bytes, plan->addresses->peak_bytes);
    }
    memob_session_log(s, "session: taking %lld bytes of device memory, %lld of host memory",
                      (long long)device_bytes, (long long)host_bytes);
    s->is_open = 1;

    if (!s->failure.status)
        memoi_keep(s, memoi_session_take_memory(s, device_bytes, host_bytes, &s->call_error));
    for (int32_t k = 0; k < s->desc.n_shapes; k++) {
        memo_swap_desc swap = s->parts[k].plan->swap;
        memoi_session_use_shape(s, k);
        if (!s->failure.status)
            memoi_keep(s,
                       memob_swap_placement_make(s->steps, 0, &s->part->placement, &s->call_error));
        s->part->skipped = (uint8_t*)memob_calloc(s->n_steps, 1);
        if (!s->part->skipped) memoi_keep(s, memob_no_memory(&s->call_error, "a session"));
        memoi_session_open_arena(s);
        if (s->failure.status) break;
        if (s->streamed && !s->states) {
            s->states_desc.trainer.update = memoi_session_update_layer;
            s->states_desc.trainer.look = s->desc.is_checked ? memoi_session_look : NULL;
            memoi_keep(s, memob_states_create(&s->states_desc, 0, &s->states, &s->call_error));
        }
        if (s->states && !s->failure.status)
            memoi_keep(s, memob_states_get_step(s->states, s->n_slices, memob_session_n_rounds(s),
                                                &s->part->step, &s->call_error));
        if (s->states) base = &s->states->sink;
        if (s->part->plan->shape.is_forward_only && s->n_slices == 1) { /* no row moves */
            memoi_session_start_step(s);
            continue;
        }
        swap.device = s->device;
        swap.compute_stream = s->desc.compute_stream;
        swap.computes_on_host = s->desc.computes_on_host;
        swap.spill_directory = s->desc.spill_directory; /* another rank's may have made the plan */
        swap.spill_bytes_per_s = s->desc.spill_bytes_per_s;
        swap.is_timed = s->desc.is_timed;
        swap.device_memory = s->part->base;
        swap.host_memory = s->host_memory;
        memoi_keep(s, memob_swap_create(&swap, 0, &s->part->placement, base, &s->part->swap,
                                        &s->call_error));
        if (!base && s->part->swap) base = s->part->swap->sink;
        if (!s->states && s->part->swap) s->part->step = &s->part->swap->step;
    }
    memoi_session_use_shape(s, 0);
    if (!s->failure.status && s->desc.is_checked)
        memoi_keep(s, memoi_checked_create(s, &s->call_error));
#ifdef MEMO_CHECK_COMES
    if (!s->failure.status) memoi_keep(s, memo_check_updates(s, &s->call_error));
#endif
}

/* --- >>session slices ---
 * Knows: plans of several sizes of slices, and of groups.  Knows nothing of how one is made. */

#define MEMOI_SESSION_LEAST_SLICE 1024 /* rows: smaller slices leave kernels little to do */

/* Is the size of a slice the planner's choice? */
MEMOI int memoi_session_chooses(const memo_session_desc* desc) {
    return desc->slice_rows == 0 && desc->n_rows > MEMOI_SESSION_LEAST_SLICE &&
           desc->n_rows <= MEMOB_BYTES_MAX && desc->tile_rows <= MEMOB_BYTES_MAX && desc->tensors &&
           memoi_rows_are_handed(desc->tensors, desc->n_tensors);
}

/* Predicted seconds of all shapes.  If a shape does not fit: bytes beyond all seconds, of the host
 * if they fit the device, or of the device beyond all bytes of hosts. */
MEMOI double memoi_step_plan_cost(const memo_step_plan* plan) {
    const int64_t limit_bytes = plan->device_budget_bytes;
    const int fits = memob_step_plan_fits(plan);
    int64_t device_bytes = 0, host_bytes = 0;
    double step_s = 0;
    for (; plan; plan = plan->next) {
        step_s += memoi_step_plan_s(plan);
        device_bytes = memob_max(device_bytes, plan->device_bytes);
        host_bytes = memob_max(host_bytes, plan->host_bytes);
    }
    if (fits) return step_s;
    return memoi_is_over(device_bytes, limit_bytes) ? 1e50 * (double)device_bytes
                                                    : 1e20 * (double)host_bytes;
}

/* Takes a trial that is better than the plan by a thousandth, or the first; destroys the other.
 * Returns whether the trial is better. */
MEMOI int memoi_planner_take_better(memoi_planner* p, memo_step_plan** plan,
                                    memo_step_plan* trial) {
    const double step_s = memoi_step_plan_cost(trial);
    const int is_better = !*plan || step_s < 0.999 * memoi_step_plan_cost(*plan);
    if (memob_step_plan_fits(trial) && (p->best_s <= 0 || step_s < p->best_s)) p->best_s = step_s;
    memo_step_plan_destroy(is_better ? *plan : trial);
    if (is_better) *plan = trial;
    return is_better;
}

/* 1, 2, 4, ... slices, until the step fits and two more sizes are no better than the best.  Sizes
 * end where the trainer's functions cannot work with so many slices.  All ranks choose the same,
 * because sizes, times and this end are agreed. */
MEMOI memo_status memoi_planner_plan_sizes(memoi_planner* p, const memo_session_desc* desc,
                                           memo_step_plan** plan, memo_error* error) {
    memo_session_desc own;
    int64_t tile_rows;
    int n_fit = 0;
    *plan = NULL;
    if (!memoi_session_chooses(desc)) return memoi_planner_plan_shapes(p, desc, plan, error);
    own = *desc;
    tile_rows = memob_max(desc->tile_rows, 1);

    for (int64_t n_slices = 1; n_fit < (p->profile && !p->effort ? 3 : 1); n_slices *= 2) {
        const int64_t larger = own.slice_rows;
        memo_step_plan* trial = NULL;
        memo_error failed;
        memo_status status;
        int fits;
        own.slice_rows = memob_align_up((desc->n_rows - 1) / n_slices + 1, tile_rows);
        if (own.slice_rows == larger) break; /* a tile */
        if (n_slices > 1 && own.slice_rows < memob_max(tile_rows, MEMOI_SESSION_LEAST_SLICE)) break;

        status = memoi_planner_plan_shapes(p, &own, &trial, &failed);
        if (status && *plan) { /* all ranks have failed: are slices too small for a function? */
            if (status == MEMO_STATUS_UNSUPPORTED || status == MEMO_STATUS_INVALID_ARGUMENT ||
                status == MEMO_STATUS_INFEASIBLE)
                status = MEMO_STATUS_OK;
            status = memob_session_verdict(desc, status, &failed);
            if (!status) break;
        }
        if (status) {
            if (error) *error = failed;
            memo_step_plan_destroy(*plan);
            *plan = NULL;
            return status;
        }
        fits = memob_step_plan_fits(trial);
        n_fit = memoi_planner_take_better(p, plan, trial) ? fits : n_fit + fits;
    }
    return MEMO_STATUS_OK;
}

/* Micro-batches one after the other; if states travel then, also groups of them, which fetch the
 * states of a layer less often, and hold more rows on the host: of every number that divides them
 * and fits, because a larger group may be faster where a smaller one is not, until nothing stalls
 * and nothing is recomputed.  All ranks choose the same. */
MEMOI memo_status memoi_planner_plan_groups(memoi_planner* p, const memo_session_desc* desc,
                                            memo_step_plan** plan, memo_error* error) {
    memo_session_desc own = *desc;
    memo_status status = MEMO_STATUS_OK;
    int64_t most = memob_min(desc->micro_batches, MEMO_GROUP_MAX);
    *plan = NULL;
    p->best_s = 0;
    if (desc->n_group != MEMO_GROUP_PLANNED) return memoi_planner_plan_sizes(p, desc, plan, error);
    if (!p->profile || p->effort || desc->rows) most = 1; /* a table is of one micro-batch */

    for (own.n_group = 1; !status && own.n_group <= memob_max(most, 1); own.n_group++) {
        const memo_swap_plan* times = *plan ? (*plan)->times : NULL;
        memo_step_plan* trial = NULL;
        if (*plan && !((*plan)->fits && (*plan)->n_streamed)) break;
        if (times && times->stall_s + times->recompute_s <= 0.001 * times->step_s) break;
        if (desc->micro_batches % own.n_group) continue;
        status = memoi_planner_plan_sizes(p, &own, &trial, error);
        if (status) break;
        if (!memob_step_plan_fits(trial)) most = 0; /* nor do larger groups */
        (void)memoi_planner_take_better(p, plan, trial);
    }
    return status;
}

/* --- >>session advice ---
 * Knows: which budgets would do, and the least.  Knows nothing of how a plan is made.
 *
 * A refusal names budgets that were tried: with these the same call makes a plan that fits, for all
 * shapes at once; with 512 bytes less it makes none. */

typedef struct memoi_advice {
    const memo_session_desc* desc;
    int64_t budgets[MEMO_N_TIERS]; /* of all ranks; 0: no limit */
    int64_t needed[MEMO_N_TIERS];  /* by the latest plan: the most of all shapes and ranks */
    int64_t device_bytes;          /* with which alone a plan fits; 0: none does */
    memoi_planner planner;         /* of the caller's plan; its effort grows */
    int fits;                      /* the latest plan does; 0 after a failure */
    memo_status status; /* the first failure of a plan, of all ranks, which is in error */
    memo_error* error;
} memoi_advice;

enum { MEMOI_ADVICE_PLANS_MAX = 64 };

/* Takes the figures of a plan: all ranks have the same then. */
MEMOI void memoi_advice_take(memoi_advice* a, const memo_step_plan* plan) {
    int64_t values[1 + MEMO_N_TIERS] = {0}, *needed = values + 1;
    const int fits = memob_step_plan_fits(plan);
    for (; plan; plan = plan->next) {
        needed[MEMO_TIER_DEVICE] = memob_max(needed[MEMO_TIER_DEVICE], plan->device_bytes);
        needed[MEMO_TIER_HOST] = memob_max(needed[MEMO_TIER_HOST], plan->host_bytes);
        needed[MEMO_TIER_FILE] = memob_max(needed[MEMO_TIER_FILE], plan->disk_bytes);
    }
    a->status = memoi_session_agree(a->desc, a->status, values, 1 + MEMO_N_TIERS, a->error);
    a->fits = fits && !a->status;
    memcpy(a->needed, needed, sizeof a->needed);
}

/* Plans within budgets, and says nothing. */
MEMOI void memoi_advice_try(memoi_advice* a, const int64_t* budgets) {
    memo_session_desc own = *a->desc;
    memo_step_plan* plan = NULL;
    a->fits = 0;
    if (a->status) return;
    own.device_bytes = budgets[MEMO_TIER_DEVICE];
    own.host_bytes = budgets[MEMO_TIER_HOST];
    own.disk_bytes = budgets[MEMO_TIER_FILE];
    own.log.write = NULL;
    own.device_memory = own.host_memory = NULL; /* of one size */
    a->status = memoi_planner_plan_sizes(&a->planner, &own, &plan, a->error);
    memoi_advice_take(a, plan);
    memo_step_plan_destroy(plan);
}

/* The bytes that the latest plan lacks of these budgets, all together. */
MEMOI int64_t memoi_advice_lacking(const memoi_advice* a, const int64_t* budgets) {
    int64_t n_bytes = 0;
    for (int32_t t = 0; t < MEMO_N_TIERS && !a->fits; t++)
        if (memoi_is_over(a->needed[t], budgets[t]))
            n_bytes = memob_min(n_bytes + a->needed[t] - budgets[t], MEMOB_BYTES_MAX);
    return n_bytes;
}

/* Sets budgets[tier], without which a plan fits, to the least that was found, in whole granules: it
 * fits, and a granule less does not; 0: none was found.  first: a budget to begin with. */
MEMOI void memoi_advice_find_least(memoi_advice* a, int32_t tier, int64_t first, int64_t* budgets) {
    const int64_t granule = MEMOB_DEVICE_ALIGNMENT, most = MEMOB_BYTES_MAX;
    int64_t low = a->budgets[tier], high = most + granule, step = granule;
    int64_t need = 0, before = 0, next = memob_max(first, low + 1);
    for (int32_t k = 0; k < MEMOI_ADVICE_PLANS_MAX && high - low > granule; k++) {
        budgets[tier] = next = memob_min(memob_align_up(next, granule), high - granule);
        memoi_advice_try(a, budgets);
        *(a->fits ? &high : &low) = next;

        /* The budget grows by what a plan lacks, or by twice the latest step. */
        if (high > most) {
            step = memob_max(2 * step, memoi_advice_lacking(a, budgets));
            step = memob_min(step, most / 2);
            next = low + step;
            continue;
        }

        /* It falls below what the plan needs, by a granule, or by twice as much as the need fell;
         * after a fall too deep it is the need.  If the search finds no plan within that need, it
         * is a granule less than what fits, and then halves what is left. */
        if (a->fits) {
            need = memob_min(high, a->needed[tier]);
            step = memob_max(granule, 2 * (before - need));
            next = memob_max(need - step, low + (need - low + 1) / 2);
            before = need;
        } else {
            next = need;
            before = 0;
        }
        if (need <= low) next = need == low && !a->fits ? high - granule : low + (high - low) / 2;
    }
    a->fits = high <= most;
    budgets[tier] = a->fits ? high : 0;
}

/* Sets the budgets to such with which the desc has a plan, and those that change to 1 in is_other:
 * one alone if that is enough, first one that the plan lacks; otherwise all. */
MEMOI void memoi_advice_find(memoi_advice* a, int64_t* budgets, int* is_other) {
    int64_t needed[MEMO_N_TIERS];
    int is_lacking[MEMO_N_TIERS];
    memcpy(needed, a->needed, sizeof needed);
    for (int32_t t = 0; t < MEMO_N_TIERS; t++)
        is_lacking[t] = memoi_is_over(needed[t], a->budgets[t]);
    for (int32_t k = 0; k < 2 * MEMO_N_TIERS; k++) {
        const int32_t t = k % MEMO_N_TIERS;
        if (!a->budgets[t] || is_lacking[t] != (k < MEMO_N_TIERS)) continue;
        memcpy(budgets, a->budgets, sizeof a->budgets);
        budgets[t] = 0;
        memoi_advice_try(a, budgets);
        if (!a->fits) continue;
        is_other[t] = 1;
        memoi_advice_find_least(a, t, needed[t], budgets);
        return;
    }

    memset(budgets, 0, sizeof a->budgets);
    memoi_advice_try(a, budgets);
    for (int32_t t = 0; t < MEMO_N_TIERS && a->fits; t++) {
        if (!a->budgets[t]) continue;
        budgets[t] = a->budgets[t];
        memoi_advice_try(a, budgets);
        if (a->fits) continue;
        is_other[t] = 1;
        budgets[t] = 0;
        memoi_advice_try(a, budgets);
        memoi_advice_find_least(a, t, needed[t], budgets);
    }
}

/* Searches for less again, longer each time.  The whole search mostly finds no less than the one
 * before; its plan is the caller's. */
MEMOI void memoi_advice_refine(memoi_advice* a, int32_t tier, int64_t* budgets) {
    memoi_rows_effort* effort = &a->planner.effort;
    while (*effort && a->fits) {
        *effort =
            *effort == MEMOI_ROWS_EFFORT_SHORT ? MEMOI_ROWS_EFFORT_FIRST : MEMOI_ROWS_EFFORT_WHOLE;
        memoi_advice_find_least(a, tier, budgets[tier], budgets);
    }
}

/* Sets device_bytes, if another budget alone is enough, too. */
MEMOI void memoi_advice_find_device(memoi_advice* a) {
    const int64_t first = a->needed[MEMO_TIER_DEVICE];
    int64_t budgets[MEMO_N_TIERS];
    memcpy(budgets, a->budgets, sizeof budgets);
    budgets[MEMO_TIER_DEVICE] = 0;
    a->planner.effort = MEMOI_ROWS_EFFORT_SHORT;
    memoi_advice_try(a, budgets);
    if (!a->fits) return;
    memoi_advice_find_least(a, MEMO_TIER_DEVICE, first, budgets);
    memoi_advice_refine(a, MEMO_TIER_DEVICE, budgets);
    a->device_bytes = budgets[MEMO_TIER_DEVICE];
}

/* What the shape's plan lacks.  The first budget that changes is its subject. */
MEMOI void memoi_advice_put(const memoi_advice* a, const int64_t* budgets, const int* is_other,
                            int32_t shape, memo_step_plan* plan) {
    int32_t lacking = 0;
    while (!is_other[lacking]) lacking++;
    memoi_session_put_shortage(a->desc, plan, shape, lacking, a->budgets[lacking], budgets[lacking],
                               a->device_bytes);
    for (int32_t other = lacking + 1; other < MEMO_N_TIERS; other++) {
        const size_t n = strlen(plan->shortage);
        if (is_other[other])
            snprintf(plan->shortage + n, sizeof plan->shortage - n, "; also raise %s to %lld",
                     memoi_session_tiers[other], (long long)budgets[other]);
    }
}

/* Replaces what the plan's shapes lack by budgets that were tried.  *device_bytes: with it alone a
 * plan fits; 0: none does. */
MEMOI memo_status memoi_session_advise(const memo_session_desc* desc, const memo_profile* profile,
                                       memo_step_plan* plan, int64_t* device_bytes,
                                       memo_error* error) {
    memoi_advice a;
    int64_t budgets[MEMO_N_TIERS], least[1 + MEMO_N_TIERS];
    int is_other[MEMO_N_TIERS] = {0};
    int32_t shape = 0, other = MEMO_N_TIERS - 1, n_others = 0;
    int fits;
    memset(&a, 0, sizeof a);
    a.desc = desc;
    a.planner.profile = profile;
    a.planner.effort = MEMOI_ROWS_EFFORT_SHORT;
    a.error = error;
    memoi_advice_take(&a, plan);

    /* The least of all ranks. */
    a.budgets[MEMO_TIER_DEVICE] = desc->device_bytes;
    a.budgets[MEMO_TIER_HOST] = desc->host_bytes;
    a.budgets[MEMO_TIER_FILE] = desc->disk_bytes;
    for (int32_t t = 0; t < MEMO_N_TIERS; t++)
        least[1 + t] = a.budgets[t] ? -a.budgets[t] : -INT64_MAX;
    a.status = memoi_session_agree(desc, a.status, least, 1 + MEMO_N_TIERS, error);
    for (int32_t t = 0; t < MEMO_N_TIERS; t++)
        a.budgets[t] = least[1 + t] == -INT64_MAX ? 0 : -least[1 + t];

    if (!a.status && desc->log.write)
        desc->log.write(desc->log.user, "session: looking for the least budgets that fit");
    memoi_advice_find(&a, budgets, is_other);

    while (other >= 0 && !is_other[other]) other--;
    if (other >= 0) memoi_advice_refine(&a, other, budgets);
    fits = a.fits;

    for (int32_t t = 0; t < MEMO_N_TIERS; t++) n_others += is_other[t];
    if (n_others == 1 && fits) {
        if (other != MEMO_TIER_DEVICE)
            memoi_advice_find_device(&a);
        else
            a.device_bytes = budgets[MEMO_TIER_DEVICE];
    }
    *device_bytes = a.device_bytes;
    for (; plan && !a.status && fits; plan = plan->next, shape++)
        if (!plan->fits) memoi_advice_put(&a, budgets, is_other, shape, plan);
    return a.status;
}

/* memo_session_plan, and with *device_bytes alone a plan fits; 0: none does, or *plan fits. */
MEMOI memo_status memoi_session_plan_or_advise(const memo_session_desc* desc,
                                               const memo_profile* profile, memo_step_plan** plan,
                                               int64_t* device_bytes, memo_error* error) {
    memoi_planner planner = MEMO_ZERO(memoi_planner);
    memo_status status;
    planner.profile = profile;
    status = memoi_planner_plan_groups(&planner, desc, plan, error);
    *device_bytes = 0;
    if (!status && !desc->is_unadvised && !memob_step_plan_fits(*plan))
        status = memoi_session_advise(desc, profile, *plan, device_bytes, error);
    if (!status) return status;
    memo_step_plan_destroy(*plan);
    *plan = NULL;
    return status;
}

memo_status memo_session_plan(const memo_session_desc* desc, const memo_profile* profile,
                              memo_step_plan** plan, memo_error* error) {
    int64_t device_bytes;
    MEMOB_REFUSE_NULL(error, "plan", plan);
    *plan = NULL;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    return memoi_session_plan_or_advise(desc, profile, plan, &device_bytes, error);
}

memo_status memo_session_get_least(const memo_session_desc* desc, int64_t* device_bytes,
                                   memo_error* error) {
    memo_session_desc least;
    memoi_planner planner = MEMO_ZERO(memoi_planner);
    memo_step_plan *plan = NULL, *p;
    int64_t more_bytes;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "device_bytes", device_bytes);
    *device_bytes = 0;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    least = *desc;

    /* The bytes of the smallest plan. */
    least.device_bytes = 1;
    planner.effort = MEMOI_ROWS_EFFORT_FIRST;
    status = memoi_planner_plan_sizes(&planner, &least, &plan, error);
    for (p = plan; p; p = p->next) *device_bytes = memob_max(*device_bytes, p->device_bytes);
    memo_step_plan_destroy(plan);
    if (status) return status;

    /* It may lack host or disk; a plan that uses less of them takes more of the device. */
    least.device_bytes = memob_max(*device_bytes, 1);
    least.is_unadvised = 0;
    status = memoi_session_plan_or_advise(&least, NULL, &plan, &more_bytes, error);
    *device_bytes = memob_max(*device_bytes, more_bytes);
    for (p = plan; p && !status && !more_bytes; p = p->next)
        if (!p->fits) status = memo_error_set(error, MEMO_STATUS_INFEASIBLE, "%s", p->shortage);
    memo_step_plan_destroy(plan);
    return status;
}

/* --- >>session times ---
 * Knows: the spans of micro-batches that have run, how copies are measured, and the profile that
 * follows from both.  Knows nothing of when micro-batches run.
 *
 * 1. A span has as many times as micro-batches were timed, for which there is room. */

/* Rows of a tensor that a step had; the mean if they are late. */
MEMOI double memoi_session_mean_rows(const memo_session* s, int32_t t) {
    double n_rows = 0, n = 0;
    if (!memob_tensor_is_routed(s->steps, t)) return (double)s->steps->n_rows;
    for (int32_t step = 0; step < s->n_steps; step++) {
        n += memob_layer_has(s->steps, step, t);
        n_rows += (double)memoi_session_place(s, step, t)->n_routed;
    }
    return fmax(n_rows / fmax(n, 1), 1);
}

/* The line through the times of slices by least squares: the time of a slice in the middle, and the
 * growth towards the end.  The median of each slice over layers of a kind counts, so that a single
 * slow layer does not.  The last layer's backward, in each place, may hold the loss of the
 * slice. */
MEMOI void memoi_session_fit(const memo_session* s, int32_t kind, int32_t what, double* middle_s,
                             double* growth_s) {
    const int32_t n_slices = s->n_slices, n_of_place = memoi_session_turn_layers(s);
    const int has_loss = what == MEMOI_SPAN_BACKWARD && n_slices > 1 && n_of_place > 1;
    double n = 0, sum_x = 0, sum_y = 0, sum_xx = 0, sum_xy = 0, spread, slope_s = 0;

    /* Least squares, a line through the medians of the slices. */
    for (int32_t slice = 0; slice < n_slices; slice++) {
        const double rows = (double)memoi_session_rows(s, slice); /* the last may be short */
        const double x = (2.0 * (slice % s->n_of_batch) * (double)s->steps->n_rows + rows) /
                             (double)s->steps->layer_rows -
                         1;
        double y;
        int32_t n_times = 0;
        for (int32_t layer = 0; layer < s->n_steps / n_slices; layer++) {
            const int32_t step = layer * n_slices + slice;
            const double* span_s = memoi_session_span(s, step, what);
            if (has_loss && (layer + 1) % n_of_place == 0) continue;
            if (span_s && memob_layer_kind(s->steps, step) == kind)
                s->layers_s[n_times++] = *span_s;
        }
        if (!n_times) continue;
        y = memoi_profile_median(s->layers_s, n_times) * ((double)s->steps->n_rows / rows);
        n += 1;
        sum_x += x;
        sum_y += y;
        sum_xx += x * x;
        sum_xy += x * y;
    }

    spread = n * sum_xx - sum_x * sum_x;
    if (spread > 0) slope_s = fmax((n * sum_xy - sum_x * sum_y) / spread, 0);
    *middle_s = n > 0 ? (sum_y - slope_s * sum_x) / n : 0;
    *growth_s = fmin(slope_s, *middle_s);
}

/* The times of the current shape, from its spans. */
MEMOI void memoi_session_read_times(const memo_session* s, memo_profile* times) {
    static const memo_pass passes[] = {MEMO_PASS_FORWARD, MEMO_PASS_BACKWARD};
    double* const of_pass_s[] = {times->forward_s, times->backward_s};
    double* const growths_s[] = {times->forward_growth_s, times->backward_growth_s};
    double rest_s = *memoi_session_span(s, s->n_steps - 1, MEMOI_SPAN_BETWEEN);
    const int waits = s->steps->order != NULL; /* for other stages, in some layers */
    for (int32_t k = 0; k < times->n_kinds; k++) {
        for (int32_t t = 0; t < s->desc.n_tensors; t++) { /* with another one: nothing; never: -1 */
            double *row_s = &times->tensors[t].recompute_s_per_row[k],
                   *growth_s = &times->tensors[t].recompute_growth_s_per_row[k];
            if (!memob_is_recomputed(memob_item_away(s->steps, t))) continue;
            memoi_session_fit(s, k, MEMOI_SPAN_TENSOR + t, row_s, growth_s);
            *row_s /= memoi_session_mean_rows(s, t);
            *growth_s /= memoi_session_mean_rows(s, t);
        }
    }

    /* What layers take beyond the times of their kinds: embeddings of the first layer, losses in
     * the last one's backward.  The times of a profile then add up to the micro-batch. */
    for (int i = 0; i < 2; i++) {
        for (int32_t k = 0; k < times->n_kinds; k++)
            memoi_session_fit(s, k, memoi_span_of_pass[passes[i]], &of_pass_s[i][k],
                              &growths_s[i][k]);
        for (int32_t step = 0; step < s->n_steps && !waits; step++) {
            const int32_t k = memob_layer_kind(s->steps, step);
            rest_s += *memoi_session_span(s, step, memoi_span_of_pass[passes[i]]) -
                      memoi_rows_slice_s(s->steps, step, of_pass_s[i][k], growths_s[i][k]);
        }
    }
    times->between_s = fmax(rest_s, 0) / memoi_session_n_group(s);
}

/* The largest state that desc.fetch gives, of the first layer that has it, if states may stream. */
MEMOI memob_fetch memoi_session_find_fetch(const memo_session* s) {
    const memob_states_desc* d = &s->states_desc;
    memob_fetch most = {d->trainer.fetch, d->trainer.user, 0, 0, 0};
    for (int32_t k = 0; k < d->n_layers * d->n_states && !s->desc.states_stay; k++) {
        const memo_state* state = &d->states[k % d->n_states];
        const uint32_t kind = state->kinds >> d->layer_kinds[k / d->n_states] & 1;
        if (!(state->uses & MEMO_STATE_FETCHED && kind) || state->size_bytes <= most.size_bytes)
            continue;
        most.layer = k / d->n_states;
        most.state = k % d->n_states;
        most.size_bytes = state->size_bytes;
    }
    return most;
}

/* Measures copies and the third tier within the budgets.  Large copies measure the rate better, but
 * their buffers must fit beside the trainer's. */
MEMOI void memoi_session_measure_copies(memo_session* s, memo_profile* profile) {
    const memo_session_desc* desc = &s->desc;
    const int has_file = /* and room to time it */
        desc->spill_directory && desc->host_bytes >= 2 * MEMOB_SPILL_ALIGNMENT;
    const memob_fetch fetch = memoi_session_find_fetch(s);
    int64_t n_bytes = (int64_t)32 << 20, on_host_bytes;
    if (desc->device_bytes) n_bytes = memob_min(n_bytes, desc->device_bytes / 4);
    if (desc->host_bytes) n_bytes = memob_min(n_bytes, desc->host_bytes / 4);
    n_bytes = memob_max(n_bytes, 64);
    memob_session_log(s, "session: measuring copies up to %lld bytes", (long long)n_bytes);
    on_host_bytes =
        2 * memob_align_up(n_bytes, has_file || fetch.size_bytes ? MEMOB_SPILL_ALIGNMENT : 1);
    memoi_keep(s,
               memoi_profile_measure(s->device, n_bytes, has_file ? desc->spill_directory : NULL,
                                     desc->spill_bytes_per_s, &fetch,
                                     2 * n_bytes <= desc->device_bytes ? desc->device_memory : NULL,
                                     on_host_bytes <= desc->host_bytes ? desc->host_memory : NULL,
                                     profile, &s->call_error));
    memoi_session_settle(s);
}

/* The median of every times_s[first], times_s[first + stride], up to n times. */
MEMOI double memoi_session_median(const double* times_s, int32_t first, int32_t stride, int32_t n) {
    double chosen_s[MEMOI_SESSION_REPETITIONS];
    int32_t n_chosen = 0;
    for (int32_t i = first; i < n; i += stride) chosen_s[n_chosen++] = times_s[i];
    return memoi_profile_median(chosen_s, n_chosen);
}

/* Gives each span of a layer the median of its times in n micro-batches, and each other span two:
 * of the even micro-batches, and of the odd ones, which time recomputation of half of the rows.
 * Layers that are late now and then make the median micro-batch longer than the sum of the layers'
 * medians.  The medians grow in this ratio. */
MEMOI void memoi_session_take_medians(const memo_session* s, int32_t n) {
    const int64_t n_spans = (int64_t)s->n_steps * MEMOI_SPANS_MAX;
    double sums_s[MEMOI_SESSION_REPETITIONS] = {0}, sum_s = 0, ratio;
    MEMO_ASSERT(n > 0 && n <= MEMOI_SESSION_REPETITIONS); /* 1 */
    for (int64_t k = 0; k < n_spans; k++) {
        double *span_s = s->spans_s + k * MEMOI_SESSION_REPETITIONS, odd_s;
        const int is_layer = memoi_span_is_of_layer(k % MEMOI_SPANS_MAX);
        for (int32_t i = 0; i < n && is_layer; i++) sums_s[i] += span_s[i];
        odd_s = is_layer ? 0 : memoi_session_median(span_s, 1, 2, n);
        span_s[0] = memoi_session_median(span_s, 0, is_layer ? 1 : 2, n);
        span_s[1] = odd_s;
        if (is_layer) sum_s += span_s[0];
    }

    ratio = sum_s > 0 ? memoi_session_median(sums_s, 0, 1, n) / sum_s : 1;
    for (int64_t k = 0; k < n_spans; k++)
        if (memoi_span_is_of_layer(k % MEMOI_SPANS_MAX))
            s->spans_s[k * MEMOI_SESSION_REPETITIONS] *= ratio;
}

/* Leaves out of the backward what it has recomputed itself, which is also timed alone. */
MEMOI void memoi_session_leave_out(const memo_session* s) {
    for (int32_t step = 0; step < s->n_steps; step++) {
        double* backward_s = memoi_session_span(s, step, MEMOI_SPAN_BACKWARD);
        for (int32_t t = 0; t < s->desc.n_tensors; t++) {
            const double* span_s = memoi_session_span(s, step, MEMOI_SPAN_TENSOR + t);
            const int64_t n_rows = memoi_session_tensor_rows(s, step, t);
            int64_t begin = 0, end = 0;
            if (!span_s || !n_rows || !memoi_session_is_by_backward(s, t)) continue;
            memo_swap_get_recompute_rows(s->part->swap, step, t, &begin, &end);
            *backward_s = fmax(0, *backward_s - span_s[0] * (double)(end - begin) / (double)n_rows);
        }
    }
}

/* The fixed cost of a call: where the lines through half of the rows and all rows meet 0 rows, the
 * median of all.  The times of rows are without it. */
MEMOI void memoi_session_read_calls(const memo_session* s, memo_profile* profile) {
    double calls_s[MEMO_PROFILE_TENSORS_MAX];
    int32_t n_calls = 0;
    for (int32_t t = 0; t < s->desc.n_tensors; t++) {
        double all_s = 0, first_s = 0, n_rows = 0, n_first = 0, n = 0;
        for (int32_t step = 0; step < s->n_steps; step++) {
            const int64_t rows = memoi_session_rows(s, step);
            const double* span_s = memoi_session_span(s, step, MEMOI_SPAN_TENSOR + t);
            if (!span_s) continue;
            n += 1;
            n_rows += (double)rows;
            n_first += (double)memoi_session_first_rows(s, t, rows);
            all_s += span_s[0];
            first_s += span_s[1];
        }
        if (n_first >= n_rows) continue;
        all_s -= (all_s - first_s) * n_rows / (n_rows - n_first); /* at 0 rows */
        calls_s[n_calls++] = fmax(0, all_s / n);
    }

    if (!n_calls) return;
    profile->recompute_call_s = memoi_profile_median(calls_s, n_calls);
    for (int32_t t = 0; t < profile->n_tensors; t++)
        for (int32_t k = 0; k < profile->n_kinds; k++) {
            double* row_s = &profile->tensors[t].recompute_s_per_row[k];
            if (*row_s > 0)
                *row_s = fmax(0, *row_s - profile->recompute_call_s / (double)profile->n_rows);
        }
}

/* --- >>session timing ---
 * Knows: how a session is created and opened, the spans of its first training steps, and plans that
 * take turns.  Knows nothing of how a plan is made.
 *
 * 1  Every plan has the same bits, so steps are timed that train; no function of the trainer runs
 *    only to be timed.
 * 2  All plans have one block of device memory, in which buffers of the session lie first, at the
 *    same places.
 * 3  A plan is replaced between two steps, when no update is pending; states keep their bytes.
 * 4  Ranks plan at the same step, by the same times, or not at all.
 * 5  What fails leaves the first plan as it was.
 * 6  Times are read when no update is under way, which may write them on another thread. */

/* The file of a shape's profile. */
MEMOI void memoi_timing_path(const memo_session_desc* desc, int32_t shape, char path[4096]) {
    char number[16] = "";
    if (shape) snprintf(number, sizeof number, ".%d", (int)shape);
    snprintf(path, 4096, "%.4000s%s", desc->profile_path, number);
}

/* 1: a shape has a backward, whose times are wanted. */
MEMOI int memoi_timing_is_trained(const memo_session_desc* desc, int32_t shape) {
    return !desc->n_shapes || !desc->shapes[shape].is_forward_only;
}

/* Reads the profiles of a desc, if all files are there, on all ranks; *profiles NULL: they are
 * not.  The caller frees them. */
MEMOI memo_status memoi_timing_read_files(const memo_session_desc* desc, memo_profile** profiles,
                                          memo_error* error) {
    const int32_t n = (int32_t)memob_min(memob_max(desc->n_shapes, 1), MEMO_SHAPES_MAX);
    const int can = desc->n_shapes <= 0 || desc->shapes;
    int64_t values[2] = {0, !can};
    memo_profile* read;
    memo_status status = MEMO_STATUS_OK;
    char path[4096];
    *profiles = NULL;
    if (!desc->profile_path) return status;
    read = (memo_profile*)memob_calloc(MEMO_SHAPES_MAX, sizeof *read);
    if (!read) status = memob_no_memory(error, "a profile");
    for (int32_t k = 0; k < n && can; k++) {
        FILE* file;
        if (!memoi_timing_is_trained(desc, k)) continue;
        memoi_timing_path(desc, k, path);
        file = fopen(path, "rb");
        values[1] |= !file;
        if (file) fclose(file);
    }
    status = memoi_session_agree(desc, status, values, 2, error);

    /* All are there. */
    if (!status && !values[1]) {
        *profiles = read;
        for (int32_t k = 0; k < n && !status; k++) {
            memoi_timing_path(desc, k, path);
            if (memoi_timing_is_trained(desc, k)) status = memo_profile_read(path, &read[k], error);
        }
        status = memob_session_verdict(desc, status, error);
    } else
        MEMO_FREE(read);
    return status;
}

/* Memory for the spans of all shapes, and the times of copies. */
MEMOI void memoi_timing_prepare(memo_session* s) {
    const int32_t n = s->desc.n_shapes;
    int64_t n_spans = 4; /* of a step: its passes, its update, a part more */
    for (int32_t t = 0; t < s->desc.n_tensors; t++)
        n_spans += memob_is_recomputed(memob_item_away(&s->parts[0].plan->swap, t));
    n_spans = memob_min(s->most_steps * n_spans + 8, MEMOI_TIMERS_MAX);
    s->timing.profiles = (memo_profile*)memob_calloc(n, sizeof(memo_profile));
    s->layers_s = MEMOB_ARRAY(&s->arrays, double, s->most_steps);
    s->timers = MEMOB_ARRAY(&s->arrays, memoi_timer, n_spans);
    if (s->timers && !s->desc.computes_on_host) s->n_timers = (int32_t)n_spans;
    for (int32_t k = 0; k < n; k++)
        s->parts[k].spans_s =
            (double*)memob_arrays_add(&s->arrays, s->parts[k].plan->swap.n_layers,
                                      MEMOI_SPANS_MAX * MEMOI_SESSION_REPETITIONS * sizeof(double));
    if (s->arrays.failed || !s->timing.profiles)
        memoi_keep(s, memob_no_memory(&s->call_error, "the times of a session"));
    memoi_session_settle(s);
    if (!s->failure.status) memoi_session_measure_copies(s, s->timing.profiles);
}

/* What is beside the plan that is open. */
MEMOI void memoi_timing_prepare_slowing(memo_session* s) {
    int64_t device_bytes = 0, host_bytes = 0;
    for (int32_t k = 0; k < s->desc.n_shapes; k++) {
        const memo_step_plan* plan = s->parts[k].plan;
        device_bytes = memob_max(device_bytes, plan->addresses->peak_bytes);
        host_bytes = memob_max(host_bytes, plan->sizes.host_bytes);
    }
    memoi_slowing_create(s, device_bytes, host_bytes);
}

/* --- times --- */

/* Each place of an order is visited by several turns, whose spans have been added. */
MEMOI void memoi_timing_divide(const memo_session* s) {
    const memo_step_plan* plan = s->part->plan;
    for (int32_t step = 0; step < s->n_steps && s->steps->order; step++) {
        int32_t n_visits = 0, n_last = 0;
        for (int32_t k = 0; k < plan->n_order; k++) {
            n_visits += s->steps->order[k] == step / s->n_turn_steps; /* its forwards */
            n_last += s->steps->order[k] < 0 && plan->order[k].chunk == plan->n_chunks - 1;
        }
        for (int32_t what = 0; what < MEMOI_SPANS_MAX; what++) {
            double* span_s = memoi_session_span(s, step, what);
            for (int32_t i = 0; i < MEMOI_SESSION_REPETITIONS && span_s; i++)
                span_s[i] /= (double)memob_max(what == MEMOI_SPAN_BETWEEN ? n_last : n_visits, 1);
        }
    }
}

/* Seconds of a byte that the update uses; the median of the micro-batches that had one.  A step may
 * leave layers out. */
MEMOI double memoi_timing_update(const memo_session* s, int32_t n) {
    double rates[MEMOI_SESSION_REPETITIONS];
    int32_t n_rates = 0;
    if (!s->states) return 0;
    for (int32_t i = 0; i < n; i++) {
        double sum_s = 0, n_bytes = 0;
        for (int32_t k = 0; k < s->states_desc.n_layers; k++) {
            int32_t step;
            const int32_t what = memoi_session_update_span(s, k, &step);
            const double span_s = memoi_session_span(s, step, what)[i];
            sum_s += span_s;
            if (span_s > 0) n_bytes += memob_states_update_bytes(s->states, k);
        }
        if (n_bytes > 0) rates[n_rates++] = sum_s / n_bytes;
    }
    return n_rates ? memoi_profile_median(rates, n_rates) : 0;
}

/* The profile of a shape, from its spans. */
MEMOI void memoi_timing_read_shape(memo_session* s, int32_t k, memo_profile* profile) {
    memoi_session_use_shape(s, k);
    s->batch.n_rows = s->steps->layer_rows;
    s->spans_s = s->part->spans_s;
    memoi_session_guess(s, profile);
    profile->update_s_per_byte = memoi_timing_update(s, s->part->n_timed);
    if (s->timing.host_bytes > 0)
        profile->update_host_s_per_byte = s->timing.host_s / s->timing.host_bytes;
    memoi_slowing_read(s, s->part->n_timed, profile);
    memoi_timing_divide(s);
    memoi_session_take_medians(s, s->part->n_timed);
    if (s->part->swap) memoi_session_leave_out(s);
    memoi_session_read_times(s, profile);
    memoi_session_read_calls(s, profile);
    s->spans_s = NULL;
}

/* The profile of a shape that has not trained: another one's times, by rows. */
MEMOI void memoi_timing_derive(const memo_session* s, int32_t k, int32_t from,
                               memo_profile* profiles) {
    const memo_swap_desc *swap = &s->parts[k].plan->swap, *other = &s->parts[from].plan->swap;
    const double ratio = (double)swap->n_rows / (double)other->n_rows;
    memo_profile* profile = &profiles[k];
    double* const times_s[] = {profile->forward_s, profile->backward_s, profile->forward_growth_s,
                               profile->backward_growth_s};
    *profile = profiles[from];
    profile->n_rows = swap->n_rows;
    for (int i = 0; i < 4; i++)
        for (int32_t kind = 0; kind < profile->n_kinds; kind++) times_s[i][kind] *= ratio;
    profile->between_s *= (double)swap->layer_rows / (double)other->layer_rows;
}

/* The profiles of all shapes with a backward, the same on all ranks.  untimed: by shape. */
MEMOI void memoi_timing_read(memo_session* s, const int64_t* untimed) {
    memo_profile* profiles = s->timing.profiles;
    const int32_t n = s->desc.n_shapes;
    int32_t from = 0;
    if (s->states) /* updates on the host write the times that are read */
        memoi_keep(s, memob_states_synchronize(s->states, &s->call_error));
    MEMO_ASSERT(s->failure.status || !s->states || !s->states->n_unseen); /* 6 */
    while (untimed[from]) from++;
    for (int32_t k = 1; k < n; k++) profiles[k] = profiles[0]; /* the times of copies */
    for (int32_t k = from; k < from + n; k++)
        if (!untimed[k % n]) {
            memoi_timing_read_shape(s, k % n, &profiles[k % n]);
            memoi_session_settle_profile(s, &profiles[k % n]);
        } else if (!s->parts[k % n].plan->shape.is_forward_only)
            memoi_timing_derive(s, k % n, from, profiles);
    s->timing.is_known = !s->failure.status;
}

/* A file that cannot be written is no reason to stop. */
MEMOI void memoi_timing_write(const memo_session* s, const int64_t* untimed) {
    char path[4096];
    memo_error why;
    for (int32_t k = 0; k < s->desc.n_shapes && s->desc.profile_path; k++) {
        if (s->parts[k].plan->shape.is_forward_only) continue;
        memoi_timing_path(&s->desc, k, path);
        if (memo_profile_write(&s->timing.profiles[k], path, &why))
            memob_session_log(s, "session: the profile is not written: %s", why.message);
        else
            memob_session_log(s, "session: %s times are in %.200s",
                              untimed[k] ? "estimated" : "measured", path);
    }
}

/* --- plans take turns --- */

/* 1: two plans stream, spill and update the same. */
MEMOI int memoi_timing_streams_alike(const memo_step_plan* a, const memo_step_plan* b) {
    return a->n_streamed == b->n_streamed && a->n_spilled == b->n_spilled &&
           a->update_is_on_host == b->update_is_on_host && a->update_at == b->update_at;
}

/* 1: the plan is the one that is open, but perhaps for its policy. */
MEMOI int memoi_timing_is_open(const memo_session* s, const memo_step_plan* plan) {
    memoi_step_plan_line own, found;
    for (int32_t k = 0; k < s->desc.n_shapes; k++, plan = plan->next) {
        const memo_plan *a = s->parts[k].plan->addresses, *b = plan->addresses;
        for (int64_t i = 0; memoi_step_plan_get_line(s->parts[k].plan, i, &own); i++) {
            (void)memoi_step_plan_get_line(plan, i, &found);
            if (memcmp(own.values, found.values, sizeof own.values) != 0) return 0;
        }
        for (int64_t i = 0; i < a->n_buffers; i++)
            if (a->buffers[i].offset_bytes != b->buffers[i].offset_bytes) return 0;
    }
    return 1;
}

#define MEMOI_TIMING_PIECE ((int64_t)4 << 20)

/* What neither plan needs of the other: gradients, which have no meaning between steps, and FETCHED
 * states, which an engine fetches when it is created. */
MEMOI uint32_t memoi_timing_left_out(const memob_states* of) { return of->gradients | of->fetched; }

/* Bytes of states that lie on the device, for which host memory is needed while they move. */
MEMOI int64_t memoi_timing_kept_bytes(const memo_session* s) {
    const memob_states* of = s->states;
    int64_t n_bytes = 0;
    MEMOB_IGNORE(memob_states_keep(of, NULL, NULL, 0, memoi_timing_left_out(of), NULL, &n_bytes,
                                   NULL)); /* it only counts */
    return n_bytes;
}

/* A state that is in the file under one of two plans goes through a piece of memory. */
MEMOI void memoi_timing_pass(memo_session* s, memob_states* from, memob_states* to, int32_t layer,
                             int32_t state, const char* kept) {
    const int64_t size_bytes = s->desc.states[state].size_bytes;
    char* piece = kept ? NULL : (char*)MEMO_MALLOC((size_t)MEMOI_TIMING_PIECE);
    if (!kept && !piece) memoi_keep(s, memob_no_memory(&s->call_error, "a piece of a state"));
    for (int64_t at = 0; at < size_bytes && !s->failure.status; at += MEMOI_TIMING_PIECE) {
        const int64_t n = memob_min(size_bytes - at, MEMOI_TIMING_PIECE);
        char* bytes = kept ? (char*)memob_at(kept, at) : piece;
        if (!kept)
            memoi_keep(s,
                       memob_states_transfer(from, layer, state, 1, at, bytes, n, &s->call_error));
        if (!s->failure.status)
            memoi_keep(s, memob_states_transfer(to, layer, state, 0, at, bytes, n, &s->call_error));
    }
    MEMO_FREE(piece);
}

/* Takes states to the places that an engine has for them, from kept bytes of the device and from
 * their places on the host, all at once: copies to the device wait for nothing, and threads copy
 * from host to host.  to == from: what was kept goes back. */
MEMOI void memoi_timing_put(memo_session* s, memob_states* from, memob_states* to,
                            const char* kept) {
    memob_engine* e = &to->sink.engine;
    const memo_stream stream = e->streams[MEMOB_STREAM_TO_DEVICE];
    for (int32_t k = 0; k < from->n_layers * from->n_states && !s->failure.status; k++) {
        const int32_t layer = k / from->n_states, i = k % from->n_states;
        const memob_states_layer *of = &from->layers[layer], *l = &to->layers[layer];
        const int is_kept = !(of->streamed >> i & 1), is_resident = !(l->streamed >> i & 1);
        const int64_t n_bytes = from->bytes[k].n_bytes;
        const char* bytes = is_kept ? kept : (char*)memob_states_get_host_address(from, layer, i);
        char* on_host = (char*)memob_states_get_host_address(to, layer, i);
        if (!((of->has & ~(of->lent | memoi_timing_left_out(from))) >> i & 1)) continue;
        if (is_kept) kept += n_bytes;
        if (!n_bytes || (from == to && !is_kept)) continue;
        if (bytes && is_resident)
            memoi_keep(s, memo_copy(s->device, stream, MEMO_COPY_TO_DEVICE,
                                    e->memory.device + to->bytes[k].at[0], bytes, n_bytes,
                                    &s->call_error));
        else if (bytes && on_host)
            memob_bulk_copy(on_host, bytes, n_bytes);
        else
            memoi_timing_pass(s, from, to, layer, i, is_kept ? bytes : NULL);
    }
    if (!s->failure.status)
        memoi_keep(s, memo_stream_synchronize(s->device, stream, &s->call_error));
}

/* Opens a plan in the session's memory. */
MEMOI void memoi_timing_open(memo_session* s, memo_step_plan* plan) {
    for (int32_t k = 0; k < s->desc.n_shapes; k++, plan = plan->next) {
        s->parts[k].plan = plan;
        s->most_steps = memob_max(s->most_steps, plan->swap.n_layers);
    }
    memoi_session_use_shape(s, 0);
    memoi_session_stream(s);
    memoi_session_start(s);
}

/* Copies the states on the device to host memory, and streamed ones to their places there. */
MEMOI void memoi_timing_save(memo_session* s, char* kept) {
    memob_states* of = s->states;
    const memo_stream stream = of->sink.engine.streams[MEMOB_STREAM_TO_HOST];
    int64_t n_bytes;
    memoi_keep(s, memob_states_leave(of, &s->call_error));
    if (!s->failure.status && kept)
        memoi_keep(s, memob_states_keep(of, stream, kept, 0, memoi_timing_left_out(of), NULL,
                                        &n_bytes, &s->call_error));
}

/* Opens a plan in place of the open one, which is opened again if that fails.  moved: the states,
 * which get other places, and those of the device in kept; NULL: they keep their places. */
MEMOI void memoi_timing_swap(memo_session* s, memo_step_plan* plan, memob_states* moved,
                             const char* kept) {
    memo_step_plan* const before MEMO_UNUSED = s->own_plan;
    const void* const memory MEMO_UNUSED = s->device_memory;
    memo_error why;
    memoi_session_stop(s);
    if (moved) s->states = NULL;
    memoi_timing_open(s, plan);
    MEMO_ASSERT(s->failure.status || s->device_memory == memory); /* 2 */
    if (moved && !s->failure.status) memoi_timing_put(s, moved, s->states, kept);
    memoi_session_settle(s);
    if (!s->failure.status) {
        for (int32_t i = 0; i < 2 && moved; i++)
            s->states->sink.engine.memory.copied_bytes[i] +=
                moved->sink.engine.memory.copied_bytes[i];
        memob_states_destroy(moved);
        s->own_plan = plan;
        return;
    }

    /* The plan before. */
    why = s->failure;
    memoi_session_begin_call(s);
    memoi_session_stop(s);
    if (moved) {
        memob_states_destroy(s->states);
        s->states = moved;
    }
    memoi_timing_open(s, before);
    MEMO_ASSERT(s->own_plan == before && s->part->plan == before); /* 5 */
    if (moved) memoi_timing_put(s, moved, moved, kept);
    if (moved && !s->failure.status) memoi_keep(s, memob_states_fetch(moved, &s->call_error));
    memoi_session_settle(s);
    s->timing.is_lost = s->all_failed;
    s->failure = why;
}

/* Replaces the open plan, on all ranks or on none, and destroys the other plan.  If states move,
 * those on the device go through host memory, as both plans have the same bytes there; the others
 * go from one engine to the other. */
MEMOI void memoi_timing_replace(memo_session* s, memo_step_plan* plan) {
    memo_step_plan* const before = s->own_plan;
    memob_states* const states = s->states;
    const int moves = states && !memoi_timing_streams_alike(before, plan);
    void* kept = s->timing.kept;

    MEMO_ASSERT(plan->slice_rows == before->slice_rows);           /* 1 */
    MEMO_ASSERT(!s->is_running && !(states && states->n_pending)); /* 3 */
    if (!s->desc.computes_on_host)
        memoi_keep(s, memo_stream_synchronize(s->device, s->desc.compute_stream, &s->call_error));
    if (states) memoi_keep(s, memob_states_synchronize(states, &s->call_error));
    if (moves && !s->failure.status) memoi_timing_save(s, (char*)kept);
    memoi_session_settle(s);
    if (!s->failure.status) memoi_timing_swap(s, plan, moves ? states : NULL, (const char*)kept);
    memo_step_plan_destroy(s->failure.status ? plan : before);
}

MEMOI void memoi_timing_forget_kept(memo_session* s) {
    if (s->timing.kept) MEMOB_IGNORE(memo_host_free(s->device, s->timing.kept, NULL));
    s->timing.kept = NULL;
}

/* 1: the budgets have room for the states of both plans at once, and beside them for those of the
 * device while they move; s->timing.kept is memory for these.  The same on all ranks. */
MEMOI int memoi_timing_may_move(memo_session* s, const memo_step_plan* plan) {
    int64_t host_bytes = s->own_plan->host_bytes, disk_bytes = 0; /* of the most rows, and states */
    int64_t kept_bytes, values[2] = {0, 0};
    if (!s->states || memoi_timing_streams_alike(s->own_plan, plan)) return 1;
    kept_bytes = memoi_timing_kept_bytes(s);
    for (; plan; plan = plan->next) { /* all shapes have the same states */
        host_bytes = memob_max(host_bytes, plan->host_bytes + s->states_sizes.host_bytes);
        disk_bytes = memob_max(disk_bytes, plan->disk_bytes + s->states_sizes.spill_bytes);
    }
    values[1] = s->desc.host_memory != NULL ||
                memoi_is_over(host_bytes + kept_bytes, s->desc.host_bytes) ||
                memoi_is_over(disk_bytes, s->desc.disk_bytes);
    if (!values[1] && kept_bytes)
        values[1] = memo_host_alloc(s->device, kept_bytes, &s->timing.kept, NULL) != MEMO_STATUS_OK;
    memoi_session_settle_values(s, values, 2);
    if (values[1]) memoi_timing_forget_kept(s);
    return !values[1];
}

/* Makes a plan by the times, in the memory that the session has; NULL: there is none.  Slices and
 * the place of the update stay, since both may change bits. */
MEMOI memo_step_plan* memoi_timing_make(memo_session* s) {
    memo_session_desc own = s->desc;
    memoi_planner planner = MEMO_ZERO(memoi_planner);
    memo_step_plan* plan = NULL;
    planner.profile = s->timing.profiles;
    own.policy = s->timing.policy;
    own.n_group = s->timing.n_group;
    own.device_bytes = s->memory_bytes;
    if (!own.shapes) own.n_shapes = 0;
    if (own.n_states)
        own.update_on = s->own_plan->update_is_on_host ? MEMO_UPDATE_HOST : MEMO_UPDATE_DEVICE;
    for (int keeps = 0; keeps < 2; keeps++) {
        planner.open = keeps ? s->own_plan : NULL;
        if (keeps && memoi_timing_may_move(s, plan)) break;
        memo_step_plan_destroy(plan);
        memoi_keep(s, memoi_planner_plan_groups(&planner, &own, &plan, &s->call_error));
        if (s->failure.status) return NULL;
        if (memob_step_plan_fits(plan)) continue;
        memoi_keep(s, memo_error_set(&s->call_error, MEMO_STATUS_INFEASIBLE, "%s", plan->shortage));
        memo_step_plan_destroy(plan);
        return NULL;
    }
    return plan;
}

/* Updates that are pending belong to the step before. */
MEMOI void memoi_timing_end_updates(memo_session* s) {
    const memo_status status = memo_session_flush(s, &s->call_error);
    memoi_keep(s, status);
    if (status) s->is_reported = 0; /* the micro-batch fails */
    memoi_session_settle(s);
}

/* The open plan takes the predicted times of the same plan. */
MEMOI void memoi_timing_take_times(memo_step_plan* own, memo_step_plan* plan) {
    for (; plan; plan = plan->next, own = own->next) {
        memo_swap_plan* times = own->times;
        own->times = plan->times;
        plan->times = times;
        own->policy = plan->policy;
    }
}

/* Puts a plan by the times of the shapes that are not untimed in place of the first plan, or gives
 * the first plan these times, if it is the same.  Returns what happened, for the log. */
MEMOI const char* memoi_timing_plan_by(memo_session* s, const int64_t* untimed) {
    memo_step_plan* plan;
    memoi_timing_read(s, untimed);
    memoi_slowing_destroy(s); /* another plan takes its memory */
    if (s->failure.status) return "";
    memoi_timing_write(s, untimed);
    memoi_session_settle(s);
    if (s->failure.status) return "";
    memoi_timing_end_updates(s);
    if (s->failure.status) return "";
    plan = memoi_timing_make(s);
    if (!plan) return "";
    if (memoi_timing_is_open(s, plan)) {
        memoi_timing_forget_kept(s);
        memoi_timing_take_times(s->own_plan, plan);
        memo_step_plan_destroy(plan);
        return "the first plan is the fastest that fits";
    }
    memoi_timing_replace(s, plan);
    memoi_timing_forget_kept(s);
    return "planned by the times of training steps";
}

/* Ends the timed steps: a plan by their times takes the place of the first plan.  If there is none,
 * or if it cannot be opened, the first plan stays. */
MEMOI void memoi_timing_plan(memo_session* s) {
    const memo_batch batch = s->batch;
    memoi_timing* t = &s->timing;
    int64_t values[1 + MEMO_SHAPES_MAX] = {0}, n_untimed = 0;
    const char* result = "";

    /* Has some shape times on all ranks? */
    memoi_session_begin_call(s);
    memoi_keep(s, memoi_session_read_timers(s, &s->call_error));
    for (int32_t k = 0; k < s->desc.n_shapes; k++) values[1 + k] = s->parts[k].n_timed < 2;
    memoi_session_settle_values(s, values, 1 + s->desc.n_shapes);
    for (int32_t k = 0; k < s->desc.n_shapes; k++) n_untimed += values[1 + k];
    if (!s->failure.status && n_untimed == s->desc.n_shapes) {
        t->due = (int32_t)memob_min(2 * (int64_t)t->due, INT32_MAX);
        return;
    }
    if (!s->failure.status) result = memoi_timing_plan_by(s, values + 1);
    if (s->failure.status) {
        snprintf(t->why, sizeof t->why, "%.180s", s->failure.message);
        memob_session_log(s, "session: the first plan stays: %s", t->why);
    } else
        memob_session_log(s, "session: %s", result);

    /* Times are known. */
    t->plan = NULL;
    t->is_open = 0;
    s->spans_s = NULL;
    memoi_session_destroy_timers(s);
    memoi_slowing_destroy(s);
    memob_arrays_free(&s->arrays);
    s->layers_s = NULL;
    s->batch = batch;
    s->checked.is_moved = 1;
    if (s->desc.planned && !t->is_lost) s->desc.planned(s->desc.user, s, s->own_plan);
}

memo_status memo_session_get_profile(const memo_session* s, int32_t shape, memo_profile* profile,
                                     memo_error* error) {
    MEMOB_REFUSE_NULL(error, "session", s);
    MEMOB_REFUSE_NULL(error, "profile", profile);
    if (memob_check_integer("memo_session_get_profile", "shape", shape, 0, s->desc.n_shapes - 1,
                            error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    memset(profile, 0, sizeof *profile);
    if (s->timing.is_known) {
        *profile = s->timing.profiles[shape];
        return MEMO_STATUS_OK;
    }
    if (*s->timing.why)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "memo_session_get_profile: planning by the times has failed: %s",
                              s->timing.why);
    return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                          "memo_session_get_profile: times are not known; %s",
                          s->timing.plan ? "run more training steps"
                                         : "set memo_session_desc.timed_steps, or read a file");
}

/* --- the session opens --- */

/* Opens a plan; n_timed: steps that are timed before another plan takes its place, 0: none. */
MEMOI memo_status memoi_timing_open_first(const memo_session_desc* desc, const memo_step_plan* plan,
                                          int32_t n_timed, memo_session** session,
                                          memo_error* error) {
    memo_session* s = memoi_session_make(desc, plan, 0, error);
    memo_status status;
    *session = s; /* functions of the trainer may use it */
    if (!s) return MEMO_STATUS_OUT_OF_HOST_MEMORY;
    if (!s->failure.status && n_timed) {
        s->timing.plan = memoi_timing_plan;
        s->timing.due = n_timed;
        memoi_timing_prepare(s);
    }
    if (!s->failure.status) memoi_session_start(s);
    if (!s->failure.status && n_timed) memoi_timing_prepare_slowing(s);
    memoi_session_settle(s);
    status = memoi_session_end_call(s, error);
    if (!status) return status;
    memo_session_destroy(s);
    *session = NULL;
    return status;
}

memo_status memo_session_open(const memo_session_desc* desc, const memo_step_plan* plan,
                              memo_session** session, memo_error* error) {
    memo_status status;
    MEMOB_REFUSE_NULL(error, "session", session);
    *session = NULL;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    status = memob_check_given(__func__, "plan", plan, error);
    return status ? memob_session_verdict(desc, status, error)
                  : memoi_timing_open_first(desc, plan, 0, session, error);
}

/* A plan that fits, without times: with everything recomputed, or by estimated times. */
MEMOI memo_status memoi_timing_plan_first(const memo_session_desc* desc, memo_step_plan** plan,
                                          memo_error* error) {
    memo_session_desc own = *desc;
    memoi_planner planner = MEMO_ZERO(memoi_planner);
    memo_status status;
    if (memoi_session_chooses(desc)) { /* slices of the largest size that fits */
        status = memo_session_plan(desc, NULL, plan, error);
        if (status) return status;
        own.slice_rows = (*plan)->slice_rows ? (*plan)->slice_rows : desc->n_rows;
        memo_step_plan_destroy(*plan);
    }
    if (desc->policy == MEMO_POLICY_MEMO) own.policy = MEMO_POLICY_RECOMPUTE;
    own.alpha = 0;
    status = memoi_planner_plan_shapes(&planner, &own, plan, error);
    if (status || memob_step_plan_fits(*plan)) return status;
    memo_step_plan_destroy(*plan);
    return memo_session_plan(desc, NULL, plan, error);
}

/* The plan to open without known times.  *n_timed: if not everything can be kept, steps are timed,
 * unless times are estimated. */
MEMOI memo_status memoi_timing_plan_untimed(const memo_session_desc* desc, int32_t* n_timed,
                                            memo_step_plan** plan, memo_error* error) {
    memo_session_desc kept = *desc;
    memoi_planner planner = MEMO_ZERO(memoi_planner);
    memo_status status;
    if (desc->policy == MEMO_POLICY_MEMO) {
        kept.policy = MEMO_POLICY_KEEP;
        if (memoi_session_chooses(desc)) kept.slice_rows = desc->n_rows;
        planner.effort = MEMOI_ROWS_EFFORT_FIRST;
        status = memoi_planner_plan_sizes(&planner, &kept, plan, error);
        if (status || (memob_step_plan_fits(*plan) && !(*plan)->n_streamed)) return status;
        memo_step_plan_destroy(*plan);
    } else if (!memoi_session_is_alpha(desc))
        return memo_session_plan(desc, NULL, plan, error);
    *n_timed = 4;
    return desc->timed_steps < 0 ? memo_session_plan(desc, NULL, plan, error)
                                 : memoi_timing_plan_first(desc, plan, error);
}

/* host_bytes is 0, and a plan's bytes cannot be pinned: about as many as can, by trying.  0:
 * another memory was lacking, or nothing can. */
MEMOI int64_t memoi_timing_find_pinned(const memo_session_desc* desc, int64_t planned_bytes) {
    int64_t most_bytes = 0;
    for (int64_t more = planned_bytes; more >= memob_max(most_bytes / 8, 512); more /= 2) {
        void* memory = NULL;
        if (!memo_host_alloc(desc->device, most_bytes + more, &memory, NULL)) most_bytes += more;
        MEMOB_IGNORE(memo_host_free(desc->device, memory, NULL));
        if (most_bytes >= planned_bytes) return 0;
    }
    return most_bytes;
}

/* Plans and opens.  *plan: what was planned, also if it cannot be opened. */
MEMOI memo_status memoi_timing_create(const memo_session_desc* desc, const memo_profile* profiles,
                                      memo_step_plan** plan, memo_session** session,
                                      memo_error* error) {
    int32_t n_timed = 0;
    const memo_status status = profiles ? memo_session_plan(desc, profiles, plan, error)
                                        : memoi_timing_plan_untimed(desc, &n_timed, plan, error);
    if (desc->timed_steps && !profiles) n_timed = (int32_t)memob_max(desc->timed_steps, 0);
    return status ? status : memoi_timing_open_first(desc, *plan, n_timed, session, error);
}

/* The same with what can be pinned, if host_bytes is 0 and the plan's bytes cannot.  With ranks the
 * error stays: not all may have failed to pin.  why: the failure. */
MEMOI memo_status memoi_timing_create_pinned(const memo_session_desc* desc,
                                             const memo_profile* profiles, memo_step_plan** plan,
                                             memo_session** session, memo_error* why) {
    const int64_t planned_bytes = *plan ? (*plan)->host_bytes : 0;
    memo_session_desc own = *desc;
    memo_error error;
    memo_status status;
    char text[2][32];
    if (why->status != MEMO_STATUS_OUT_OF_HOST_MEMORY || !planned_bytes || !desc->device ||
        desc->host_bytes || desc->agree)
        return why->status;
    own.host_bytes = memoi_timing_find_pinned(desc, planned_bytes);
    if (!own.host_bytes) return why->status;

    memo_step_plan_destroy(*plan);
    *plan = NULL;
    status = memoi_timing_create(&own, profiles, plan, session, &error);
    memob_bytes_text(text[0], (double)planned_bytes);
    memob_bytes_text(text[1], (double)own.host_bytes);
    if (status)
        return memo_error_set(why, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                              "memo_session_desc.host_bytes: 0, and the plan pins %s, but the "
                              "device no more than about %s; with %lld, %s",
                              text[0], text[1], (long long)own.host_bytes, error.message);
    memob_session_log(*session, "session: host_bytes is 0; a plan would pin %s, this one %s of %s",
                      text[0], memob_bytes_text(text[0], (double)(*plan)->host_bytes), text[1]);
    return status;
}

/* Every rank takes the same way: plans fit on all ranks or on none. */
memo_status memo_session_create(const memo_session_desc* desc, memo_session** session,
                                memo_error* error) {
    memo_error why = MEMO_ZERO(memo_error);
    memo_profile* profiles = NULL;
    memo_step_plan* plan = NULL;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "session", session);
    *session = NULL;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    status = memoi_timing_read_files(desc, &profiles, &why);
    if (!status) status = memoi_timing_create(desc, profiles, &plan, session, &why);
    why.status = status;
    if (status) status = memoi_timing_create_pinned(desc, profiles, &plan, session, &why);
    if (status) {
        MEMO_FREE(profiles);
        memo_step_plan_destroy(plan);
        *session = NULL;
        if (error) *error = why;
        return status;
    }

    (*session)->own_plan = plan;
    if (profiles) { /* what a file says is known at once */
        (*session)->timing.profiles = profiles;
        (*session)->timing.is_known = 1;
    }
    return status;
}

#endif /* MEMO_PLAN_IMPLEMENTATION */
