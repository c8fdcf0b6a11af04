#pragma once
#include "memo/text.h"
/* ---- >>comm calls -------------------------------------------------------------------------------
 * Knows: the table of communication functions; which calls are valid, and what a group is.  Knows
 * nothing of back ends, devices or attention. */

/* The name of an enum's value. */
#define MEMOI_NAME(names, value, unknown)                                                          \
    ((size_t)(value) < sizeof(names) / sizeof *(names) ? (names)[(size_t)(value)] : (unknown))

/* Check a field of a desc; desc: its type in errors. */
#define MEMOI_INTEGER(desc, x, field, least, most)                                                 \
    memob_check_integer(desc, #field, (x)->field, least, most, error)
#define MEMOI_REAL(desc, x, field, least, most)                                                    \
    memob_check_real(desc, #field, (double)(x)->field, least, most, error)
/* A pointer that is required. */
#define MEMOI_GIVEN(desc, x, field) ((x)->field ? 0 : memoi_is_missing(desc, #field, error))
MEMOI memo_status memoi_is_missing(const char* desc, const char* field, memo_error* error) {
    return MEMOB_INVALID(error, "%s.%s: NULL; it is required", desc, field);
}
typedef struct memoi_type {
    int64_t n_bytes;
    const char* name;
} memoi_type;
static const memoi_type memoi_types[] = {{4, "f32"}, {8, "f64"}, {2, "bf16"}, {2, "f16"},
                                         {4, "i32"}, {8, "i64"}, {1, "u8"}};

int64_t memo_type_bytes(memo_type type) {
    return (size_t)type <= MEMO_TYPE_U8 ? memoi_types[type].n_bytes : 0;
}
const char* memo_type_name(memo_type type) {
    return (size_t)type <= MEMO_TYPE_U8 ? memoi_types[type].name : "no type";
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
    case MEMO_COLLECTIVE_BARRIER: break;
    }
    return 0;
}

/* Is it a type of rows?  what: "memo_loss_desc.type". */
MEMOI memo_status memoi_check_row_type(const char* what, memo_type type, memo_status status,
                                       memo_error* error) {
    if (memo_row_type_bytes(type)) return MEMO_STATUS_OK;
    return memo_error_set(error, status, "%s: not supported (%s); f32, bf16 and f16 are", what,
                          memo_type_name(type));
}

/* desc: "memo_loss_desc". */
MEMOI memo_status memoi_check_memory(const char* desc, const void* address, memo_error* error) {
    if ((uintptr_t)address % MEMOB_DEVICE_ALIGNMENT == 0) return MEMO_STATUS_OK;
    return MEMOB_INVALID(error, "%s.device_memory: not aligned (%p); align it to %d bytes", desc,
                         address, MEMOB_DEVICE_ALIGNMENT);
}

MEMOI const char* memoi_comm_collective_name(memo_collective kind) {
    static const char* const names[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                        "barrier"};
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
        return MEMOB_INVALID(error, "%s.type on '%s': not a memo_type (%d); 0 to %d are valid",
                             what, comm->name, (int)type, (int)MEMO_TYPE_U8);
    most = MEMOB_BYTES_MAX / element_bytes / (2 * n_parts);
    if (count < 0 || count > most)
        return MEMOB_INVALID(error,
                             "%s.count on '%s': out of range (%lld); 0 to %lld elements are valid",
                             what, comm->name, (long long)count, (long long)most);
    if (!address && count)
        return MEMOB_INVALID(error,
                             "%s on '%s': a buffer of %lld elements is NULL; pass its address",
                             what, comm->name, (long long)count);
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_comm_check_rank(const memo_comm* comm, const char* what, int32_t rank,
                                        memo_error* error) {
    if (rank >= 0 && rank < comm->size) return MEMO_STATUS_OK;
    return MEMOB_INVALID(error, "%s on '%s': rank out of range (%d); 0 to %d are valid", what,
                         comm->name, (int)rank, (int)comm->size - 1);
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
    memo_status status = memo_comm_status(comm, error);
    if (!status) comm->group_depth++;
    return status;
}

MEMOI memo_status memoi_comm_check_stream(const memo_comm* comm, const char* what,
                                          memo_stream stream, memo_error* error) {
    if (!comm->n_waiting || comm->group_stream == stream) return MEMO_STATUS_OK;
    return MEMOB_INVALID(error,
                         "%s.stream on '%s': not the stream of the group's sends and receives; "
                         "use one stream for a group",
                         what, comm->name);
}

memo_status memo_group_end(memo_comm* comm, memo_stream stream, memo_error* error) {
    memo_status status = memo_comm_status(comm, error);
    if (!status && comm->group_depth > 1) {
        comm->group_depth--;
        return MEMO_STATUS_OK;
    }
    if (!status && !comm->group_depth)
        status = memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                                "group_end on '%s': no group is open, or a refused call canceled "
                                "it; call group_begin first",
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
    if (!status) status = memoi_comm_check_rank(comm, what, call->peer, error);
    if (status) return status;
    if (!comm->group_depth && call->peer == comm->rank)
        return MEMOB_INVALID(error,
                             "%s on '%s': rank %d would wait for itself forever; put send and "
                             "receive into one group",
                             what, comm->name, (int)call->peer);
    if (comm->n_waiting && comm->n_waiting == comm->max_waiting)
        return MEMOB_INVALID(error,
                             "group on '%s': more than %d sends and receives; use several groups",
                             comm->name, (int)comm->max_waiting);
    return memoi_comm_check_stream(comm, what, stream, error);
}

memo_status memo_comm_message(memo_comm* comm, memo_stream stream, int32_t is_send,
                              const void* address, int64_t count, memo_type type, int32_t peer,
                              memo_error* error) {
    const memo_message_call call = {is_send != 0, peer, type, count, (void*)(uintptr_t)address};
    memo_status status = memoi_comm_check_message(comm, stream, &call, error);
    if (!status && !comm->group_depth) status = memoi_comm_enqueue(comm, stream, &call, 1, error);
    if (status || !comm->group_depth) return memoi_comm_end(comm, status);
    comm->waiting[comm->n_waiting++] = call;
    comm->group_stream = stream;
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_comm_check_collective(memo_comm* comm, const memo_collective_call* call,
                                              memo_error* error) {
    const char* what = memoi_comm_collective_name(call->kind);
    memo_status status;
    if (comm->group_depth)
        return memo_error_set(
            error, MEMO_STATUS_INVALID_STATE,
            "%s on '%s': called inside a group; only sends and receives can be grouped", what,
            comm->name);
    if (memob_check_integer("collective", "kind", (int)call->kind, 0, MEMO_COLLECTIVE_BARRIER,
                            error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (call->reduction != MEMO_REDUCTION_SUM && call->reduction != MEMO_REDUCTION_MAX)
        return MEMOB_INVALID(
            error, "%s.reduction on '%s': not a memo_reduction (%d); SUM and MAX are valid", what,
            comm->name, (int)call->reduction);
    status =
        memoi_comm_check_buffer(comm, what, call->from, call->count, comm->size, call->type, error);
    if (!status)
        status = memoi_comm_check_buffer(comm, what, call->to, call->count, 1, call->type, error);
    return status ? status : memoi_comm_check_rank(comm, what, call->root, error);
}

memo_status memo_comm_collective(memo_comm* comm, memo_stream stream,
                                 const memo_collective_call* call, memo_error* error) {
    memo_status status = memoi_comm_check_collective(comm, call, error);
    if (!status) {
        status = comm->collective(comm, stream, call, error);
        if (!status) comm->sent_bytes += memoi_comm_bytes(comm, call);
    }
    return memoi_comm_end(comm, status);
}

/* --- labels --- */

/* Of the next group or collective; agreed: digests that go with it.  is_first: of a pass. */
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
/* The first field on which two labels disagree, for an error. */
MEMOI const char* memoi_comm_label_field(const memo_label* a, const memo_label* b) {
    for (int k = 0; k < MEMO_LABEL_FIELDS && a->fields && b->fields; k++)
        if (a->digests[k] != b->digests[k]) return a->fields[k];
    return NULL;
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

/* Writes " for ring backward 3", or nothing, and returns text. */
MEMOI const char* memoi_comm_label_text(char text[64], const memo_label* label) {
    text[0] = 0;
    if (label->text) snprintf(text, 64, " for %.32s %lld", label->text, (long long)label->number);
    return text;
}
