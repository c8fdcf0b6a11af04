#pragma once
#include "memo/text.h"
/* ---- >>comm calls -------------------------------------------------------------------------------
 * Knows: the table of communication functions; which calls are valid, and what a group is.  Knows
 * nothing of back ends, devices or attention.
 *
 * 1. The messages of an open group fit the back end's memory; without a group none waits.
 * 2. sent_bytes never descends. */

/* The name of an enum's value. */
#define MEMOI_NAME(names, value, unknown)                                                          \
    ((size_t)(value) < sizeof(names) / sizeof *(names) ? (names)[(size_t)(value)] : (unknown))

/* Sets error, and returns its status. */
#define MEMOI_FAIL(status, ...) memo_error_set(error, MEMO_STATUS_##status, __VA_ARGS__)
#define MEMOI_REFUSE(...)       MEMOI_FAIL(INVALID_ARGUMENT, __VA_ARGS__)

/* Check a field of a desc; desc: its type in errors. */
#define MEMOI_INTEGER(desc, x, field, least, most)                                                 \
    memob_check_integer(desc, #field, (x)->field, least, most, error)
#define MEMOI_REAL(desc, x, field, least, most)                                                    \
    memob_check_real(desc, #field, (double)(x)->field, least, most, error)
/* A pointer that is required. */
#define MEMOI_GIVEN(desc, x, field) ((x)->field ? 0 : memoi_is_missing(desc, #field, error))
MEMOI memo_status memoi_is_missing(const char* desc, const char* field, memo_error* error) {
    return MEMOI_REFUSE("%s.%s: NULL; it is required", desc, field);
}
typedef struct memoi_type {
    int64_t n_bytes;
    const char* name;
} memoi_type;
static const memoi_type memoi_types[] = {{4, "f32"}, {8, "f64"}, {2, "bf16"}, {2, "f16"},
                                         {4, "i32"}, {8, "i64"}, {1, "u8"}};
MEMOB_TABLE_OF(MEMO_N_TYPES, memoi_types);

int64_t memo_type_bytes(memo_type type) {
    return (size_t)type < MEMO_N_TYPES ? memoi_types[type].n_bytes : 0;
}
const char* memo_type_name(memo_type type) {
    return (size_t)type < MEMO_N_TYPES ? memoi_types[type].name : "no type";
}

/* What memo_comm.sent_bytes counts. */
MEMOI int64_t memoi_comm_bytes(const memo_comm* comm, const memo_collective_call* call) {
    const int64_t size = comm->size;
    int64_t n_bytes = call->count * memo_type_bytes(call->type);
    switch (call->kind) {
    /* Divided first, so that no product overflows. */
    case MEMO_COLLECTIVE_ALL_REDUCE:
        return n_bytes / size * 2 * (size - 1) + n_bytes % size * 2 * (size - 1) / size;
    case MEMO_COLLECTIVE_ALL_GATHER:
    case MEMO_COLLECTIVE_REDUCE_SCATTER: return n_bytes * (size - 1);
    case MEMO_COLLECTIVE_BROADCAST:
        return comm->rank == (call->root + size - 1) % size ? 0 : n_bytes;
    case MEMO_COLLECTIVE_BARRIER:
    case MEMO_N_COLLECTIVES: break;
    }
    return 0;
}

/* desc: "memo_loss_desc". */
MEMOI memo_status memoi_check_memory(const char* desc, const void* address, memo_error* error) {
    if ((uintptr_t)address % MEMOB_DEVICE_ALIGNMENT == 0) return MEMO_STATUS_OK;
    return MEMOI_REFUSE("%s.device_memory: not aligned (%p); align it to %d bytes", desc, address,
                        MEMOB_DEVICE_ALIGNMENT);
}

MEMOI const char* memoi_comm_collective_name(memo_collective kind) {
    static const char* const names[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                        "barrier"};
    MEMOB_TABLE_OF(MEMO_N_COLLECTIVES, names);
    return MEMOI_NAME(names, kind, "operation");
}

memo_share memo_share_of(int64_t n, int32_t size, int32_t rank) {
    const int64_t each = n / size, rest = n % size;
    const memo_share share = {each * rank + (rank < rest ? rank : rest), each + (rank < rest)};
    return share;
}

/* n_parts: how many times count elements the buffer holds. */
MEMOI memo_status memoi_comm_check_buffer(const memo_comm* comm, const char* what,
                                          const void* address, int64_t count, int64_t n_parts,
                                          memo_type type, memo_error* error) {
    int64_t element_bytes = memo_type_bytes(type), most;
    if (!element_bytes)
        return MEMOI_REFUSE("%s.type on '%s': not a memo_type (%d); 0 to %d are valid", what,
                            comm->name, (int)type, MEMO_N_TYPES - 1);
    most = MEMOB_BYTES_MAX / element_bytes / (2 * n_parts);
    if (count < 0 || count > most)
        return MEMOI_REFUSE("%s.count on '%s': out of range (%lld); 0 to %lld elements are valid",
                            what, comm->name, (long long)count, (long long)most);
    if (!address && count)
        return MEMOI_REFUSE("%s on '%s': a buffer of %lld elements is NULL; pass its address", what,
                            comm->name, (long long)count);
    return MEMO_STATUS_OK;
}

/* Ends a call or the open group, which a refused call cancels, and its label. */
MEMOI memo_status memoi_comm_end(memo_comm* comm, memo_status status) {
    comm->group_depth = comm->n_waiting = 0;
    memset(&comm->label, 0, sizeof comm->label);
    return status;
}

MEMOI memo_status memoi_comm_enqueue(memo_comm* comm, memo_stream stream,
                                     const memo_message_call* calls, int32_t n, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    if (n || comm->label.is_first) status = comm->messages(comm, stream, calls, n, error);
    for (int32_t i = 0; i < n && !status; i++)
        if (calls[i].is_send && calls[i].peer != comm->rank)
            comm->sent_bytes += calls[i].count * memo_type_bytes(calls[i].type);
    return status;
}

memo_status memo_group_begin(memo_comm* comm, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "comm", comm);
    memo_status status = memo_comm_status(comm, error);
    if (!status) comm->group_depth++;
    return status;
}

MEMOI memo_status memoi_comm_check_stream(const memo_comm* comm, const char* what,
                                          memo_stream stream, memo_error* error) {
    if (!comm->n_waiting || comm->group_stream == stream) return MEMO_STATUS_OK;
    return MEMOI_REFUSE("%s.stream on '%s': not the stream of the group's sends and receives; use "
                        "one stream for a group",
                        what, comm->name);
}

memo_status memo_group_end(memo_comm* comm, memo_stream stream, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "comm", comm);
    memo_status status = memo_comm_status(comm, error);
    if (!status && comm->group_depth > 1) {
        comm->group_depth--;
        return MEMO_STATUS_OK;
    }
    if (!status && !comm->group_depth)
        status = MEMOI_FAIL(INVALID_STATE,
                            "group_end on '%s': no group is open, or a refused call canceled it; "
                            "call group_begin first",
                            comm->name);
    if (!status) status = memoi_comm_check_stream(comm, "group_end", stream, error);
    if (!status) status = memoi_comm_enqueue(comm, stream, comm->waiting, comm->n_waiting, error);
    return memoi_comm_end(comm, status);
}

MEMOI memo_status memoi_comm_check_message(memo_comm* comm, memo_stream stream,
                                           const memo_message_call* call, memo_error* error) {
    const char* what = call->is_send ? "send" : "receive";
    memo_status status = comm->group_depth ? MEMO_STATUS_OK : memo_comm_status(comm, error);
    if (!status)
        status =
            memoi_comm_check_buffer(comm, what, call->address, call->count, 1, call->type, error);
    if (!status) status = memob_check_integer(what, "rank", call->peer, 0, comm->size - 1, error);
    if (status) return status;
    if (!comm->group_depth && call->peer == comm->rank)
        return MEMOI_REFUSE("%s on '%s': rank %d would wait for itself forever; put send and "
                            "receive into one group",
                            what, comm->name, (int)call->peer);
    if (comm->n_waiting && comm->n_waiting == comm->max_waiting)
        return MEMOI_REFUSE("group on '%s': more than %d sends and receives; use several groups",
                            comm->name, (int)comm->max_waiting);
    return memoi_comm_check_stream(comm, what, stream, error);
}

MEMOI memo_status memoi_comm_message(memo_comm* comm, memo_stream stream, int32_t is_send,
                                     const void* address, int64_t count, memo_type type,
                                     int32_t peer, memo_error* error) {
    const memo_message_call call = {is_send, peer, type, count, (void*)(uintptr_t)address};
    memo_status status = memoi_comm_check_message(comm, stream, &call, error);
    if (!status && !comm->group_depth) status = memoi_comm_enqueue(comm, stream, &call, 1, error);
    if (status || !comm->group_depth) return memoi_comm_end(comm, status);
    MEMO_ASSERT(comm->group_depth > 0 && comm->n_waiting < comm->max_waiting); /* 1 */
    comm->waiting[comm->n_waiting++] = call;
    comm->group_stream = stream;
    return MEMO_STATUS_OK;
}

memo_status memo_send(memo_comm* comm, memo_stream stream, const void* from, int64_t count,
                      memo_type type, int32_t to_rank, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "comm", comm);
    return memoi_comm_message(comm, stream, 1, from, count, type, to_rank, error);
}
memo_status memo_receive(memo_comm* comm, memo_stream stream, void* to, int64_t count,
                         memo_type type, int32_t from_rank, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "comm", comm);
    return memoi_comm_message(comm, stream, 0, to, count, type, from_rank, error);
}

MEMOI memo_status memoi_comm_check_collective(memo_comm* comm, const memo_collective_call* call,
                                              memo_error* error) {
    const char* what = memoi_comm_collective_name(call->kind);
    memo_status status;
    if (comm->group_depth)
        return MEMOI_FAIL(
            INVALID_STATE,
            "%s on '%s': called inside a group; only sends and receives can be grouped", what,
            comm->name);
    if (memob_check_integer("collective", "kind", (int)call->kind, 0, MEMO_N_COLLECTIVES - 1,
                            error) ||
        memob_check_integer(what, "reduction", (int)call->reduction, 0, MEMO_N_REDUCTIONS - 1,
                            error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    status =
        memoi_comm_check_buffer(comm, what, call->from, call->count, comm->size, call->type, error);
    if (!status)
        status = memoi_comm_check_buffer(comm, what, call->to, call->count, 1, call->type, error);
    return status ? status
                  : memob_check_integer(what, "root", call->root, 0, comm->size - 1, error);
}

memo_status memo_comm_collective(memo_comm* comm, memo_stream stream,
                                 const memo_collective_call* call, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "comm", comm);
    MEMOB_REFUSE_NULL(error, "call", call);
    memo_status status = memoi_comm_check_collective(comm, call, error);
    if (!status) {
        status = comm->collective(comm, stream, call, error);
        MEMO_ASSERT(memoi_comm_bytes(comm, call) >= 0); /* 2 */
        if (!status) comm->sent_bytes += memoi_comm_bytes(comm, call);
    }
    return memoi_comm_end(comm, status);
}

/* --- labels --- */

/* Labels the next group or collective; agreed: digests that go with it.  is_first: of a pass. */
MEMOI void memoi_comm_label(memo_comm* comm, const memo_label* agreed, int is_first,
                            const char* text, int64_t number) {
    comm->label = *agreed;
    comm->label.is_first = is_first;
    comm->label.text = text;
    comm->label.number = number;
}

/* Ranks whose descs differ may call different operations, which never meet.  So all ranks begin
 * with a barrier, which compares their digests.  comm NULL: a single rank. */
MEMOI memo_status memoi_comm_meet(memo_comm* comm, memo_stream stream, const memo_label* agreed,
                                  const char* text, memo_error* error) {
    if (!comm || comm->size == 1) return MEMO_STATUS_OK;
    memoi_comm_label(comm, agreed, 1, text, 0);
    return memo_barrier(comm, stream, error);
}

/* Adds bytes to a digest (FNV-1a). */
MEMOI MEMOB_NOINLINE void memoi_label_add(memo_label* label, int field, const void* bytes,
                                          int64_t n_bytes) {
    const unsigned char* at = (const unsigned char*)bytes;
    uint32_t digest = label->digests[field];
    for (int64_t i = 0; i < n_bytes; i++) digest = (digest ^ at[i]) * 16777619u;
    label->digests[field] = digest;
}
MEMOI MEMOB_NOINLINE void memoi_label_add_number(memo_label* label, int field, int64_t number) {
    memoi_label_add(label, field, &number, sizeof number);
}
MEMOI MEMOB_NOINLINE void memoi_label_add_array(memo_label* label, int field,
                                                const int64_t* numbers, int64_t n) {
    memoi_label_add_number(label, field, numbers ? n : -1);
    if (numbers) memoi_label_add(label, field, numbers, n * 8);
}

/* NULL matches every label.  Equal texts of two ranks may have different addresses. */
MEMOI int memoi_comm_labels_match(const memo_label* a, const memo_label* b) {
    if (!a->text || !b->text) return 1;
    if (a->fields && b->fields && memcmp(a->digests, b->digests, sizeof a->digests)) return 0;
    return a->number == b->number && (a->text == b->text || !strcmp(a->text, b->text));
}
MEMOI int memoi_comm_calls_match(const memo_collective_call* a, const memo_label* a_label,
                                 const memo_collective_call* b, const memo_label* b_label) {
    return a->kind == b->kind && a->type == b->type && a->count == b->count &&
           a->reduction == b->reduction && a->root == b->root &&
           memoi_comm_labels_match(a_label, b_label);
}

const char* memo_comm_rank_text(char text[MEMO_RANK_TEXT], int32_t rank, int32_t world_rank,
                                const char* host) {
    const int has_host = host && host[0];
    const int n = snprintf(text, MEMO_RANK_TEXT, "%d", (int)rank);
    if (world_rank >= 0)
        snprintf(text + n, (size_t)(MEMO_RANK_TEXT - n), " (world rank %d%s%.100s)",
                 (int)world_rank, has_host ? " on " : "", has_host ? host : "");
    else if (has_host)
        snprintf(text + n, (size_t)(MEMO_RANK_TEXT - n), " (on %.100s)", host);
    return text;
}

/* Writes "all_reduce(1024 f32 sum) for blocks forward 3", or "8 f32" of a message, and returns
 * text. */
MEMOI const char* memoi_comm_op_text(char text[160], const memo_comm_op* op, int is_message) {
    const memo_collective_call* call = &op->call;
    char root[24] = "", detail[80] = "", label[64] = "";
    const char* reduction = "";
    if (call->kind == MEMO_COLLECTIVE_BROADCAST)
        snprintf(root, sizeof root, " from rank %d", (int)call->root);
    if (!is_message &&
        (call->kind == MEMO_COLLECTIVE_ALL_REDUCE || call->kind == MEMO_COLLECTIVE_REDUCE_SCATTER))
        reduction = call->reduction == MEMO_REDUCTION_SUM ? " sum" : " max";
    if (call->kind != MEMO_COLLECTIVE_BARRIER)
        snprintf(detail, sizeof detail, is_message ? "%lld %s" : "(%lld %s%s%s)",
                 (long long)call->count, memo_type_name(call->type), root, reduction);
    if (op->label.text)
        snprintf(label, sizeof label, " for %.32s %lld", op->label.text,
                 (long long)op->label.number);
    snprintf(text, 160, "%s%s%s", is_message ? "" : memoi_comm_collective_name(call->kind), detail,
             label);
    return text;
}

const char* memo_comm_mismatch(char text[MEMO_MISMATCH_TEXT], const char* name, int64_t number,
                               int32_t is_message, const memo_comm_op* a, const memo_comm_op* b) {
    const memo_label *x = &a->label, *y = &b->label;
    char a_text[160], b_text[160];
    int field = MEMO_LABEL_FIELDS;
    if (memoi_comm_calls_match(&a->call, x, &b->call, y)) return NULL;

    /* Digests say what differs, unless the ranks are in different steps. */
    if (x->fields && y->fields && x->number == y->number)
        for (field = 0; field < MEMO_LABEL_FIELDS && x->digests[field] == y->digests[field];)
            field++;
    if (field < MEMO_LABEL_FIELDS) {
        snprintf(text, MEMO_MISMATCH_TEXT,
                 "%s: rank %s and rank %s of '%s' disagree; all ranks must pass the same",
                 x->fields[field], a->rank, b->rank, name);
        return text;
    }
    memoi_comm_op_text(a_text, a, is_message);
    memoi_comm_op_text(b_text, b, is_message);
    if (is_message)
        snprintf(text, MEMO_MISMATCH_TEXT,
                 "rank %s sends %.120s to rank %s, which receives %.120s (message %lld of '%s')",
                 a->rank, a_text, b->rank, b_text, (long long)number, name);
    else
        snprintf(text, MEMO_MISMATCH_TEXT,
                 "rank %s calls %.120s as collective %lld of '%s', rank %s calls %.120s", a->rank,
                 a_text, (long long)number, name, b->rank, b_text);
    return text;
}
