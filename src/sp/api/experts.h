#pragma once
/* ---- 12 experts: rows go to the ranks of their experts ------------------------------------------
 *
 * Rank r of R has memo_share_of(E, R, r) of E experts.  Dispatch sends each row to the rank of its
 * expert, and combine brings the row back.  Each is the backward of the other.  Rows are in device
 * memory, contiguous, in two orders:
 *
 *   of the sender   (n_sent, row): by expert; of an expert in any order that the sender chooses
 *   of the expert   (n_received, row): by expert of this rank, then by sender, then as sent
 *
 * If the sender keeps the order of tokens, and rank r has the tokens before those of rank r + 1, an
 * expert gets its rows in the order of tokens, whatever the number of ranks.  Sums over these rows
 * then have the bits of one rank.  A token's results return to the rows that the token sent; their
 * sum is the sender's, in an order that the sender fixes.
 *
 * A dispatch is messages straight from place to place: one for each expert and sender, none for 0
 * rows, in groups of at most 256 (of the communicator's max_waiting).  Rows that stay on their rank
 * are copied. */

typedef struct memo_experts_desc {
    const memo_device* device;
    memo_stream stream; /* runs everything */
    memo_comm* comm;    /* the ranks that share the experts; NULL: one */
    int32_t n_experts;  /* of all ranks */
    /* The most rows that a rank may receive; 0: no limit. */
    int64_t max_received;
} memo_experts_desc;

typedef struct memo_experts memo_experts;

/* A layer's, kept from forward to backward. */
typedef struct memo_routing {
    /* (size, n_experts): the rows that each rank sends to each expert; the caller's memory on the
     * host, unchanged until the last dispatch or combine. */
    int64_t* counts;
    int64_t n_sent, n_received; /* set with counts */
} memo_routing;

/* All ranks must call this, each from its thread.  Allocates the memory of memo_experts_route, and
 * enqueues a barrier that compares the descs; COMM may come from a later call. */
MEMO_TRY memo_status memo_experts_create(const memo_experts_desc* desc, memo_experts** experts,
                                         memo_error* error);
MEMO_API void memo_experts_destroy(memo_experts* experts);

/* A pass that waits for the stream, and in which the numbers of all ranks travel.  counts
 * (n_experts), in device memory: the rows that this rank sends to each expert.  Errors, the same on
 * all ranks, which can then route again: INVALID_ARGUMENT (a rank has a negative count); INFEASIBLE
 * (a rank would receive more than max_received). */
MEMO_TRY memo_status memo_experts_route(memo_experts* experts, const int64_t* counts,
                                        memo_routing* routing, memo_error* error);
/* Passes, with equal row_elements and type on all ranks. */
MEMO_TRY memo_status memo_dispatch(memo_experts* experts, const memo_routing* routing,
                                   const void* rows, void* received, int64_t row_elements,
                                   memo_type type, memo_error* error);
MEMO_TRY memo_status memo_combine(memo_experts* experts, const memo_routing* routing,
                                  const void* received, void* rows, int64_t row_elements,
                                  memo_type type, memo_error* error);
