#pragma once
#include "sp/target.h"
/* ---- >>experts ----------------------------------------------------------------------------------
 * Knows: who has which experts, and how many rows each rank sends to each.  Knows nothing of what
 * the rows are.
 *
 * 1. A pass moves each row that this rank sends, and each that it receives, once. */

struct memo_experts {
    memo_experts_desc desc;
    memoi_target target; /* its memories: (n_ranks, n_experts), counts on their way */
    memo_label agreed;
    int32_t n_ranks, rank;
};

static const char* const memoi_experts_fields[MEMO_LABEL_FIELDS] = {
    "memo_experts_desc: n_experts or max_received",
    "row_elements or type of a dispatch or combine"};

MEMOI memo_status memoi_experts_prepare(memo_experts* x, const memo_experts_desc* desc,
                                        memo_error* error) {
    static const char name[] = "memo_experts_desc";
    const int64_t n = desc->n_experts;
    int64_t n_bytes;
    memo_status status;
    x->desc = *desc;
    x->n_ranks = desc->comm ? desc->comm->size : 1;
    x->rank = desc->comm ? desc->comm->rank : 0;
    if (MEMOI_GIVEN(name, desc, device) || MEMOI_GIVEN(name, desc, stream) ||
        MEMOI_INTEGER(name, desc, n_experts, 1, 1 << 20) ||
        MEMOI_INTEGER(name, desc, max_received, 0, MEMOB_BYTES_MAX))
        return MEMO_STATUS_INVALID_ARGUMENT;

    x->target.device = desc->device;
    x->target.streams[MEMOI_TARGET_COMPUTE] = desc->stream;
    n_bytes = x->n_ranks * n * 8;
    status = memo_device_alloc(desc->device, n_bytes, &x->target.memory, error);
    if (!status) status = memo_host_alloc(desc->device, n_bytes, &x->target.host_memory, error);
    if (status) return status;

    x->agreed.fields = memoi_experts_fields;
    memoi_label_add_number(&x->agreed, 0, n);
    memoi_label_add_number(&x->agreed, 0, desc->max_received);
    return memoi_comm_meet(desc->comm, desc->stream, &x->agreed, "experts", error);
}

MEMOI_TARGET_OBJECT(experts, "experts")

/* --- counts --- */

memo_status memo_experts_route(memo_experts* x, const int64_t* counts, memo_routing* routing,
                               memo_error* error) {
    MEMOB_REFUSE_NULL(error, "experts", x);
    MEMOB_REFUSE_NULL(error, "counts", counts);
    MEMOB_REFUSE_NULL(error, "routing", routing);
    const int64_t n = x->desc.n_experts, n_bytes = x->n_ranks * n * 8;
    const int64_t most = MEMOB_BYTES_MAX / (n * x->n_ranks);
    const int64_t limit = x->desc.max_received ? x->desc.max_received : MEMOB_BYTES_MAX;
    const memo_device* device = x->desc.device;
    const memo_stream stream = x->desc.stream;
    const void* all = counts;
    memo_status status = MEMO_STATUS_OK;
    if (!counts || !routing->counts)
        return MEMOI_REFUSE(
            "memo_experts_route: counts or memo_routing.counts is NULL; both are required");
    if (x->n_ranks > 1) {
        memoi_comm_label(x->desc.comm, &x->agreed, 0, "routing", 0);
        status = memo_all_gather(x->desc.comm, stream, counts, x->target.memory, n, MEMO_TYPE_I64,
                                 error);
        all = x->target.memory;
    }

    if (!status)
        status = memo_copy(device, stream, MEMO_COPY_TO_HOST, x->target.host_memory, all, n_bytes,
                           error);
    if (!status) status = memo_stream_synchronize(device, stream, error);
    if (!status && x->n_ranks > 1) status = memo_comm_status(x->desc.comm, error);
    if (status) return status;
    memcpy(routing->counts, x->target.host_memory, (size_t)n_bytes);

    /* All ranks see all counts alike. */
    routing->n_sent = routing->n_received = 0;
    for (int64_t i = 0; i < x->n_ranks * n; i++)
        if (routing->counts[i] < 0 || routing->counts[i] > most)
            return MEMOI_REFUSE("memo_routing.counts: rank %d sends %lld rows to expert %d; 0 to "
                                "%lld are valid",
                                (int)(i / n), (long long)routing->counts[i], (int)(i % n),
                                (long long)most);

    /* What this rank sends, and what each rank would receive. */
    for (int64_t e = 0; e < n; e++) routing->n_sent += routing->counts[x->rank * n + e];
    for (int32_t r = 0; r < x->n_ranks; r++) {
        const memo_share share = memo_share_of(n, x->n_ranks, r);
        int64_t n_received = 0;
        for (int64_t i = 0; i < x->n_ranks * share.count; i++)
            n_received += routing->counts[i / share.count * n + share.begin + i % share.count];
        if (n_received > limit)
            return MEMOI_FAIL(INFEASIBLE,
                              "memo_experts_desc.max_received: rank %d would receive %lld rows "
                              "(%lld); raise it, or send fewer rows",
                              (int)r, (long long)n_received, (long long)limit);
        if (r == x->rank) routing->n_received = n_received;
    }
    return MEMO_STATUS_OK;
}

/* --- rows --- */

/* A block of rows that one rank sends to one expert: sorted is in the sender's order, placed in the
 * expert's. */
typedef struct memoi_experts_move {
    memo_experts* x;
    memoi_target target;
    int is_back;
    char *sorted, *placed;
    int64_t row_elements, row_bytes;
    memo_type type;
} memoi_experts_move;

/* --- groups of messages ---
 *
 * NCCL is known to hang with larger groups.  At a distance each rank sends to one rank and receives
 * from one.  A group has distances, or some experts of a distance, the same on all ranks, so no
 * rank waits for a message of a later group. */

enum { MEMOI_EXPERTS_MESSAGES = 256 };

/* The group of a rank's local expert, at a distance from 1 on. */
MEMOI int32_t memoi_experts_group(const memo_experts* x, int32_t distance, int64_t local) {
    const int64_t most =
        memob_max(memob_min(x->desc.comm->max_waiting, MEMOI_EXPERTS_MESSAGES) / 2, 1);
    const int64_t n = memo_share_of(x->desc.n_experts, x->n_ranks, 0).count; /* at most */
    const int64_t n_groups = (n + most - 1) / most, n_distances = memob_max(most / n, 1);
    return (int32_t)((distance - 1) / n_distances * n_groups + local / most);
}

/* The rows of this rank's messages, in the order of experts and then of ranks, so that both sides
 * of a pair agree.  Sends and receives those of a group; -1: copies the rows that stay.  Returns
 * the bytes that leave; counts: does nothing else. */
MEMOI int64_t memoi_experts_run(memoi_experts_move* move, const memo_routing* routing,
                                int32_t group, int counts) {
    const memo_experts* x = move->x;
    const int64_t n = x->desc.n_experts;
    char *sorted_at = move->sorted, *placed_at = move->placed;
    int64_t n_left = 0;
    for (int32_t owner = 0; owner < x->n_ranks; owner++) {
        const memo_share share = memo_share_of(n, x->n_ranks, owner);
        const int is_owner = owner == x->rank; /* it gets rows of all senders */
        const int32_t end = is_owner ? x->n_ranks : x->rank + 1;
        for (int64_t e = share.begin; e < share.begin + share.count; e++)
            for (int32_t sender = is_owner ? 0 : x->rank; sender < end; sender++) {
                const int64_t n_rows = routing->counts[sender * n + e];
                const int64_t n_bytes = n_rows * move->row_bytes;
                const int is_sender = sender == x->rank, sends = is_sender != move->is_back;
                const int32_t distance = (owner - sender + x->n_ranks) % x->n_ranks;
                char *sorted = sorted_at, *placed = placed_at;
                if (is_sender) sorted_at += n_bytes;
                if (is_owner) placed_at += n_bytes;

                /* Rows that stay are copied; other rows go to a rank, or come from it. */
                if (!distance && group < 0)
                    memoi_target_copy_rows(&move->target, MEMOI_TARGET_COMPUTE,
                                           move->is_back ? sorted : placed, n_bytes,
                                           move->is_back ? placed : sorted, n_bytes, n_bytes, 1);
                if (!distance || group != memoi_experts_group(x, distance, e - share.begin))
                    continue;
                if (sends) n_left += n_bytes;
                if (!counts)
                    memoi_target_message(&move->target, MEMOI_TARGET_COMPUTE, x->desc.comm, sends,
                                         is_sender ? sorted : placed, n_rows * move->row_elements,
                                         move->type, is_sender ? owner : sender);
            }
    }
    MEMO_ASSERT(sorted_at == move->sorted + routing->n_sent * move->row_bytes);     /* 1 */
    MEMO_ASSERT(placed_at == move->placed + routing->n_received * move->row_bytes); /* 1 */
    return n_left;
}

MEMOI memo_status memoi_experts_pass(memo_experts* x, const memo_routing* routing, void* sorted,
                                     void* placed, int64_t row_elements, memo_type type,
                                     int is_back, memo_error* error) {
    const char* name = is_back ? "combine" : "dispatch";
    const int64_t row_bytes = row_elements * memo_type_bytes(type);
    const int64_t most = memob_max(memob_max(routing->n_sent, routing->n_received), 1);
    const memo_range at_sender = memob_range_at(sorted, routing->n_sent * row_bytes);
    const memo_range at_expert = memob_range_at(placed, routing->n_received * row_bytes);
    memoi_experts_move move = {
        x, x->target, is_back, (char*)sorted, (char*)placed, row_elements, row_bytes, type};
    memo_label agreed = x->agreed;
    int32_t n_groups = 0;
    if (memob_check_integer(name, "type", (int)type, 0, MEMO_N_TYPES - 1, error) ||
        memob_check_integer(name, "row_elements", row_elements, 1, MEMOB_BYTES_MAX / 8 / most,
                            error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (!routing->counts || (!sorted && routing->n_sent) || (!placed && routing->n_received))
        return MEMOI_REFUSE("%s: memo_routing.counts, rows or received is NULL; all are required",
                            name);

    /* Ranks must agree on a row, whatever the counts. */
    memoi_label_add_number(&agreed, 1, row_elements);
    memoi_label_add_number(&agreed, 1, type);
    move.target.agreed = &agreed;
    move.target.error = error;
    memoi_experts_run(&move, routing, -1, 0);
    if (x->n_ranks > 1)
        n_groups =
            1 + memoi_experts_group(x, x->n_ranks - 1,
                                    memo_share_of(x->desc.n_experts, x->n_ranks, 0).count - 1);
    for (int32_t g = 0; g < n_groups; g++) {
        const int64_t n_left = memoi_experts_run(&move, routing, g, 1);
        memoi_target_group_begin(&move.target, MEMOI_TARGET_COMPUTE, x->desc.comm, name,
                                 n_groups > 1 ? g : -1, is_back ? &at_expert : &at_sender, 1,
                                 is_back ? &at_sender : &at_expert, 1, n_left);
        memoi_experts_run(&move, routing, g, 0);
        memoi_target_group_end(&move.target, MEMOI_TARGET_COMPUTE, x->desc.comm);
    }
    return move.target.status;
}

memo_status memo_dispatch(memo_experts* experts, const memo_routing* routing, const void* rows,
                          void* received, int64_t row_elements, memo_type type, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "experts", experts);
    MEMOB_REFUSE_NULL(error, "routing", routing);
    return memoi_experts_pass(experts, routing, (void*)(uintptr_t)rows, received, row_elements,
                              type, 0, error);
}
memo_status memo_combine(memo_experts* experts, const memo_routing* routing, const void* received,
                         void* rows, int64_t row_elements, memo_type type, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "experts", experts);
    MEMOB_REFUSE_NULL(error, "routing", routing);
    return memoi_experts_pass(experts, routing, rows, (void*)(uintptr_t)received, row_elements,
                              type, 1, error);
}
