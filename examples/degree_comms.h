/* degree_comms.h - the groups of ranks if degrees of tensor parallelism differ from block to block.
 *
 * Of a world's ranks, each `degree` consecutive ranks share the blocks of that degree and some rows
 * of the batch.  A larger degree has fewer groups with more rows each.  Blocks of a degree form a
 * memo_blocks.  If a larger degree follows, forward gathers each part's rows (all_gather on
 * across), and backward slices their gradients.  If a smaller degree follows, forward slices and
 * backward gathers.  A slice: the rows of this rank begin at across->rank * n_rows /
 * across->size. */
#ifndef DEGREE_COMMS_H
#define DEGREE_COMMS_H

#include "memo_sp.h"

typedef struct degree_comms {
    int32_t degree;
    memo_comm* tensor; /* the ranks that share a block */
    memo_comm* data;   /* the ranks with the same share; weight gradients are summed over data */
    /* The ranks that exchange rows with the next degree; NULL if there is none, or the same
     * degree. */
    memo_comm* across;
} degree_comms;

static MEMO_UNUSED void degree_comms_destroy(degree_comms* comms) {
    memo_comm_destroy(comms->tensor);
    memo_comm_destroy(comms->data);
    memo_comm_destroy(comms->across);
    memset(comms, 0, sizeof *comms);
}

/* next_degree 0: none.  All ranks of world must call this, and wait for each other.  Errors:
 * INVALID_ARGUMENT (degrees that do not divide the world or each other), and errors of split. */
static MEMO_UNUSED memo_status degree_comms_create(memo_comm* world, int32_t degree,
                                                   int32_t next_degree, degree_comms* comms,
                                                   memo_error* error) {
    int32_t rank = world->rank, low = degree < next_degree ? degree : next_degree;
    int32_t high = degree < next_degree ? next_degree : degree;
    memo_status status;
    memset(comms, 0, sizeof *comms);
    if (degree < 1 || world->size % degree || next_degree < 0 ||
        (next_degree && (world->size % next_degree || high % low)))
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                              "degrees %d and %d do not fit a world of %d; each must divide the "
                              "world, and one the other",
                              (int)degree, (int)next_degree, (int)world->size);

    comms->degree = degree;
    status = memo_comm_split(world, rank / degree, rank, "tensor", &comms->tensor, error);
    if (!status) status = memo_comm_split(world, rank % degree, rank, "data", &comms->data, error);
    if (!status && next_degree && next_degree != degree)
        status = memo_comm_split(world, rank / high * low + rank % low, rank, "across",
                                 &comms->across, error);
    if (status) degree_comms_destroy(comms);
    return status;
}

#endif /* DEGREE_COMMS_H */
