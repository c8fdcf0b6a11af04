#pragma once
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
