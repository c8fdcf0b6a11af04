#pragma once
#include "sp/shardings.h"
#include "sp/target.h"
/* ---- >>scan -------------------------------------------------------------------------------------
 * Knows: who has which rows, where documents begin, which summaries travel.  Knows nothing of what
 * a state means.
 *
 * Places: the ranks that have rows, in the order of the scan: ascending in forward, descending in
 * backward.  The state before the rows of a place depends on rows of earlier places; the reach of a
 * place is the number of these.  All ranks know all reaches, so each rank knows what its peers send
 * and need.
 *
 * 1. A place reaches back to earlier places at most.
 * 2. Gradients of halo rows that arrive fit their buffer. */

typedef struct memoi_scan_summary {
    float *m, *b;
} memoi_scan_summary;
typedef struct memoi_scan_summaries {
    memoi_scan_summary own, before, in, spare; /* before: of the places before this one */
} memoi_scan_summaries;

struct memo_scan {
    memo_scan_desc desc;
    memoi_target target;
    int32_t n_ranks, rank;
    memoi_scan_summaries summaries;
    char* halo; /* gradients of halo rows, from the ranks that read them */
    /* The rows of a batch. */
    int64_t *row_begins, *borders; /* (n_ranks + 1); the last border at or before each begin */
    int32_t* reach[2];             /* (n_places), of forward and backward */
    int32_t* has_border;           /* (n_ranks): after the first row */
    int32_t n_places, place;       /* of this rank in forward; -1: it has no rows */
    int32_t is_joined[2];          /* no document begins before the first place, of each pass */
    memo_label agreed;
    int32_t has_rows;
};

static const char* const memoi_scan_fields[MEMO_LABEL_FIELDS] = {
    "memo_scan: a pass on one rank, another pass on another",
    "memo_scan_desc: m_count, b_count, halo_rows, halo_columns or halo_type",
    "memo_scan_set_rows: row_begins", "memo_scan_set_rows: document_begins or n_documents"};

/* --- creation --- */

/* Row p is read by the ranks whose first row is one of the next halo_rows, so by as many at most;
 * the k-th of them reads k - 1 rows less. */
MEMOI int64_t memoi_scan_halo_bytes(const memo_scan_desc* desc) {
    const int64_t w = desc->halo_rows, n_ranks = desc->comm ? desc->comm->size : 1;
    return memob_min(w * (w + 1) / 2, w * (n_ranks - 1)) * desc->halo_columns *
           memo_type_bytes(desc->halo_type);
}

/* Returns the device bytes. */
MEMOI int64_t memoi_scan_carve(memo_scan* scan, char* base) {
    const memo_scan_desc* desc = &scan->desc;
    memoi_carver carver = {base, 0};
    memoi_scan_summary* const all[] = {&scan->summaries.own, &scan->summaries.before,
                                       &scan->summaries.in, &scan->summaries.spare};
    for (int i = 0; i < 4; i++) {
        all[i]->m = (float*)memoi_carve(&carver, desc->m_count * 4);
        all[i]->b = (float*)memoi_carve(&carver, desc->b_count * 4);
    }
    scan->halo = memoi_carve(&carver, memoi_scan_halo_bytes(desc));
    return carver.n_bytes;
}

MEMOI memo_status memoi_scan_prepare(memo_scan* scan, const memo_scan_desc* desc,
                                     memo_error* error) {
    const int64_t sizes[] = {desc->m_count, desc->b_count, desc->halo_rows, desc->halo_columns,
                             desc->halo_type};
    const int32_t n = desc->comm ? desc->comm->size : 1;
    static const char name[] = "memo_scan_desc";
    const int64_t most = (int64_t)1 << 48;
    memo_status status;
    if (MEMOI_INTEGER(name, desc, m_count, 0, most) ||
        MEMOI_INTEGER(name, desc, b_count, 1, most) ||
        MEMOI_INTEGER(name, desc, halo_rows, 0, 1 << 15) ||
        MEMOI_INTEGER(name, desc, halo_columns, desc->halo_rows != 0, 1 << 30) ||
        MEMOI_GIVEN(name, desc, device) || MEMOI_GIVEN(name, desc, stream) ||
        MEMOI_GIVEN(name, desc, functions.summarize) ||
        MEMOI_GIVEN(name, desc, functions.compose) || MEMOI_GIVEN(name, desc, functions.run) ||
        (desc->halo_rows && memoi_check_row_type(name, "halo_type", desc->halo_type, error)))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (desc->halo_rows && memoi_check_row_kernels(desc->device, error))
        return MEMO_STATUS_UNSUPPORTED;

    /* What each rank keeps of the others. */
    scan->desc = *desc;
    scan->n_ranks = n;
    scan->rank = desc->comm ? desc->comm->rank : 0;
    scan->row_begins = MEMOB_ARRAY(&scan->target.arrays, int64_t, (int64_t)n + 1);
    scan->borders = MEMOB_ARRAY(&scan->target.arrays, int64_t, (int64_t)n + 1);
    scan->has_border = MEMOB_ARRAY(&scan->target.arrays, int32_t, n);
    scan->reach[0] = MEMOB_ARRAY(&scan->target.arrays, int32_t, n);
    scan->reach[1] = MEMOB_ARRAY(&scan->target.arrays, int32_t, n);
    if (scan->target.arrays.failed) return memob_no_memory(error, "a scan");

    scan->target.device = desc->device;
    scan->target.streams[MEMOI_TARGET_COMPUTE] = desc->stream;
    scan->agreed.fields = memoi_scan_fields;
    memoi_label_add(&scan->agreed, 1, sizes, sizeof sizes);
    status =
        memo_device_alloc(desc->device, memoi_scan_carve(scan, NULL), &scan->target.memory, error);
    if (!status) memoi_scan_carve(scan, (char*)scan->target.memory);
    return status;
}

MEMOI_TARGET_OBJECT(scan, "a scan")

/* --- the rows of a batch --- */

/* The reaches of all places.  A rank without rows is no place. */
MEMOI void memoi_scan_find_reaches(memo_scan* scan, int is_backward) {
    const int64_t* begins = scan->row_begins;
    int32_t *reach = scan->reach[is_backward], n = 0, before = 0;
    for (int32_t k = 0; k < scan->n_ranks; k++) {
        const int32_t r = is_backward ? scan->n_ranks - 1 - k : k;
        const int32_t border = is_backward ? r + 1 : r; /* between this place and the one before */
        const int is_joined = scan->borders[border] < begins[border];
        if (begins[r] == begins[r + 1]) continue;
        if (!n) scan->is_joined[is_backward] = is_joined;
        if (r == scan->rank && !is_backward) scan->place = n;
        reach[n] = n && is_joined ? before + 1 : 0;
        MEMO_ASSERT(reach[n] <= n); /* 1 */
        before = scan->has_border[r] ? 0 : reach[n];
        n++;
    }
    scan->n_places = n;
}

memo_status memo_scan_set_rows(memo_scan* scan, const int64_t* row_begins,
                               const int64_t* document_begins, int64_t n_documents,
                               memo_error* error) {
    MEMOB_REFUSE_NULL(error, "scan", scan);
    MEMOB_REFUSE_NULL(error, "row_begins", row_begins);
    static const char name[] = "memo_scan_set_rows";
    int64_t n_borders; /* positions where a document begins, or where the last one ends */
    scan->has_rows = 0;
    for (int32_t r = 0; r < scan->n_ranks; r++)
        if (row_begins[0] < 0 || row_begins[r] > row_begins[r + 1] ||
            row_begins[r + 1] > MEMOB_BYTES_MAX / 2)
            return MEMOI_REFUSE("%s.row_begins[%d]: %lld and then %lld; begins that do not "
                                "descend, from 0 on, are valid",
                                name, (int)r, (long long)row_begins[r],
                                (long long)row_begins[r + 1]);
    if (document_begins && memoi_sharding_check_documents("memo_scan_set_rows.document_begins",
                                                          document_begins, n_documents, -1, error))
        return MEMO_STATUS_INVALID_ARGUMENT;

    /* The last position where a document begins, at or before each rank's first row.  Documents
     * without tokens at the end begin none; others begin where the next one does. */
    memcpy(scan->row_begins, row_begins, ((size_t)scan->n_ranks + 1) * sizeof *row_begins);
    n_borders = n_documents;
    while (document_begins && n_borders &&
           document_begins[n_borders - 1] == document_begins[n_documents])
        n_borders--;
    n_borders += document_begins && document_begins[n_documents] < row_begins[scan->n_ranks];
    for (int32_t r = 0; r <= scan->n_ranks; r++)
        scan->borders[r] =
            document_begins ? *memoi_sharding_document_of(document_begins, n_borders, row_begins[r])
                            : -1;
    for (int32_t r = 0; r < scan->n_ranks; r++) {
        const int64_t last = row_begins[r + 1] - 1;
        scan->has_border[r] =
            document_begins && last > row_begins[r] &&
            *memoi_sharding_document_of(document_begins, n_borders, last) > row_begins[r];
    }
    scan->place = -1;
    memoi_scan_find_reaches(scan, 0);
    memoi_scan_find_reaches(scan, 1);
    scan->has_rows = 1;

    /* Ranks that differ might not meet later. */
    scan->agreed.digests[2] = scan->agreed.digests[3] = 0;
    memoi_label_add_array(&scan->agreed, 2, row_begins, (int64_t)scan->n_ranks + 1);
    memoi_label_add_array(&scan->agreed, 3, document_begins, n_documents + 1);
    return memoi_comm_meet(scan->desc.comm, scan->desc.stream, &scan->agreed, "scan", error);
}

/* --- a pass --- */

typedef struct memoi_scan_walk {
    memo_scan* scan;
    memoi_target target;
    memo_label agreed;
    int32_t is_backward, place;
    const int32_t* reach;
    memoi_scan_summaries s;
    memo_scan_call call;
} memoi_scan_walk;

MEMOI memo_status memoi_scan_begin(memoi_scan_walk* walk, memo_scan* scan, int pass,
                                   memo_error* error) {
    memset(walk, 0, sizeof *walk);
    walk->scan = scan;
    walk->target = scan->target;
    walk->target.error = error;
    walk->target.agreed = &walk->agreed;
    walk->agreed = scan->agreed;
    memoi_label_add_number(&walk->agreed, 0, pass);
    if (scan->has_rows) return MEMO_STATUS_OK;
    return MEMOI_FAIL(INVALID_STATE, "memo_scan: no rows are set; call memo_scan_set_rows first");
}

MEMOI void memoi_scan_call_function(memoi_scan_walk* walk, memo_scan_function function,
                                    const memo_scan_call* call) {
    if (!walk->target.status)
        walk->target.status =
            function(walk->scan->desc.functions.context, call, walk->target.error);
}

/* *then = *then after first. */
MEMOI void memoi_scan_compose(memoi_scan_walk* walk, memoi_scan_summary* then, const float* first_m,
                              const float* first_b, int needs_m) {
    const memoi_scan_summary made = walk->s.spare;
    memo_scan_call call = walk->call;
    call.m = needs_m ? made.m : NULL;
    call.b = made.b;
    call.first_m = needs_m ? first_m : NULL;
    call.first_b = first_b;
    call.then_m = then->m;
    call.then_b = then->b;
    memoi_scan_call_function(walk, walk->scan->desc.functions.compose, &call);
    walk->s.spare = *then;
    *then = made;
}

/* A summary goes to a rank, or comes from it. */
MEMOI void memoi_scan_move(memoi_scan_walk* walk, const memoi_scan_summary* s, int has_m,
                           int is_send, int32_t peer) {
    const memo_scan_desc* desc = &walk->scan->desc;
    const int stream = MEMOI_TARGET_COMPUTE;
    memoi_target* target = &walk->target;
    memoi_target_message(target, stream, desc->comm, is_send, s->b, desc->b_count, MEMO_TYPE_F32,
                         peer);
    if (has_m)
        memoi_target_message(target, stream, desc->comm, is_send, s->m, desc->m_count,
                             MEMO_TYPE_F32, peer);
}

/* The rank of a place in the order of the pass. */
MEMOI int32_t memoi_scan_rank_at(const memoi_scan_walk* walk, int32_t place) {
    const int64_t* begins = walk->scan->row_begins;
    int32_t r = walk->is_backward ? walk->scan->n_ranks - 1 : 0;
    for (;; r += walk->is_backward ? -1 : 1)
        if (begins[r] != begins[r + 1] && !place--) return r;
}

/* The exchange with places at a distance of d, a power of two: a summary goes d places on.  own
 * then covers the last 2 d places, and before the 2 d - 1 places before this one. */
MEMOI void memoi_scan_exchange(memoi_scan_walk* walk, int32_t d) {
    const memo_scan* scan = walk->scan;
    const memo_scan_desc* desc = &scan->desc;
    const int32_t p = walk->place, n = scan->n_places, *reach = walk->reach;
    const int sends = p >= 0 && p + d < n && reach[p + d] >= d, receives = p >= d && reach[p] >= d;
    const int sends_m = sends && reach[p + d] >= 2 * d, receives_m = receives && reach[p] >= 2 * d;
    const int64_t with_m = desc->m_count * 4, b_bytes = desc->b_count * 4;
    memoi_target* target = &walk->target;
    const memo_range reads[] = {memob_range_at(walk->s.own.b, b_bytes),
                                memob_range_at(walk->s.own.m, with_m)};
    const memo_range writes[] = {memob_range_at(walk->s.in.b, b_bytes),
                                 memob_range_at(walk->s.in.m, with_m)};
    memoi_target_group_begin(target, MEMOI_TARGET_COMPUTE, desc->comm, "scan exchange", d, reads,
                             sends + sends_m, writes, receives + receives_m,
                             sends * b_bytes + sends_m * with_m);
    if (sends) memoi_scan_move(walk, &walk->s.own, sends_m, 1, memoi_scan_rank_at(walk, p + d));
    if (receives)
        memoi_scan_move(walk, &walk->s.in, receives_m, 0, memoi_scan_rank_at(walk, p - d));
    memoi_target_group_end(target, MEMOI_TARGET_COMPUTE, desc->comm);
    if (!receives) return;

    /* own must cover more only for a place that reads beyond what it covers. */
    if (p + 2 * d < n && reach[p + 2 * d] > 2 * d)
        memoi_scan_compose(walk, &walk->s.own, walk->s.in.m, walk->s.in.b,
                           reach[p + 2 * d] >= 4 * d);
    if (d > 1) {
        memoi_scan_compose(walk, &walk->s.before, walk->s.in.m, walk->s.in.b, receives_m);
    } else {
        const memoi_scan_summary in = walk->s.in;
        walk->s.in = walk->s.before;
        walk->s.before = in;
    }
}

MEMOI memo_status memoi_scan_pass(memo_scan* scan, const memo_scan_tensors* tensors,
                                  int is_backward, memo_error* error) {
    const int64_t n_bytes = scan->desc.b_count * 4;
    const float* initial = tensors->initial;
    int32_t next = 0, begins; /* what the next place reaches; with a state of the caller's */
    memoi_scan_walk walk;
    memoi_target* target = &walk.target;
    memo_status status = memoi_scan_begin(&walk, scan, is_backward, error);
    if (status) return status;
    if (MEMOI_GIVEN("memo_scan_tensors", tensors, state)) return MEMO_STATUS_INVALID_ARGUMENT;
    walk.is_backward = is_backward;
    walk.reach = scan->reach[is_backward];
    walk.place = scan->place >= 0 && is_backward ? scan->n_places - 1 - scan->place : scan->place;
    walk.s = scan->summaries;
    walk.call.stream = scan->desc.stream;
    walk.call.is_backward = is_backward;
    walk.call.user = tensors->user;
    if (walk.place || !scan->is_joined[is_backward]) initial = NULL;

    /* What the rows do, if anybody needs it; of the first place, which may begin with a state, the
     * state after its rows. */
    if (walk.place >= 0 && walk.place + 1 < scan->n_places) next = walk.reach[walk.place + 1];
    begins = initial && next && !scan->has_border[scan->rank];
    walk.call.m = next > 1 || begins ? walk.s.own.m : NULL;
    walk.call.b = walk.s.own.b;
    if (next) memoi_scan_call_function(&walk, scan->desc.functions.summarize, &walk.call);
    walk.call.m = walk.call.b = NULL;
    if (begins) memoi_scan_compose(&walk, &walk.s.own, NULL, initial, 0);

    /* The state before them, and the rows from there. */
    for (int32_t d = 1; d < scan->n_places; d *= 2) memoi_scan_exchange(&walk, d);
    if (walk.place < 0) return walk.target.status;
    if (walk.reach[walk.place]) initial = walk.s.before.b;
    if (!initial)
        memoi_target_fill(target, MEMOI_TARGET_COMPUTE, tensors->state, n_bytes);
    else if (!target->status)
        target->status = memo_copy(target->device, scan->desc.stream, MEMO_COPY_ON_DEVICE,
                                   tensors->state, initial, n_bytes, error);
    walk.call.state = tensors->state;
    memoi_scan_call_function(&walk, scan->desc.functions.run, &walk.call);
    return walk.target.status;
}

memo_status memo_scan_forward(memo_scan* scan, const memo_scan_tensors* tensors,
                              memo_error* error) {
    MEMOB_REFUSE_NULL(error, "scan", scan);
    MEMOB_REFUSE_NULL(error, "tensors", tensors);
    return memoi_scan_pass(scan, tensors, 0, error);
}
memo_status memo_scan_backward(memo_scan* scan, const memo_scan_tensors* tensors,
                               memo_error* error) {
    MEMOB_REFUSE_NULL(error, "scan", scan);
    MEMOB_REFUSE_NULL(error, "tensors", tensors);
    return memoi_scan_pass(scan, tensors, 1, error);
}

/* --- the halo --- */

/* The rows [*begin, *end) of rank `owner` that rank `reader` has in its halo. */
MEMOI int memoi_scan_halo_rows(const memo_scan* scan, int32_t owner, int32_t reader, int64_t* begin,
                               int64_t* end) {
    const int64_t* begins = scan->row_begins;
    const int64_t first = begins[reader];
    *begin =
        memob_max(memob_max(first - scan->desc.halo_rows, scan->borders[reader]), begins[owner]);
    *end = begins[owner + 1];
    return owner < reader && first < begins[reader + 1] && *begin < *end;
}

/* Rows in forward, gradients in backward, which go the other way. */
MEMOI memo_status memoi_scan_halo(memo_scan* scan, char* rows, char* halo, int is_backward,
                                  memo_error* error) {
    const memo_scan_desc* desc = &scan->desc;
    const int64_t columns = desc->halo_columns, *begins = scan->row_begins;
    const int64_t row_bytes = columns * memo_type_bytes(desc->halo_type);
    const int64_t first = begins[scan->rank], halo_first = first - desc->halo_rows;
    const int stream = MEMOI_TARGET_COMPUTE;
    memoi_scan_walk walk;
    memoi_target* target = &walk.target;
    memo_range own = memob_range_at(rows, (begins[scan->rank + 1] - first) * row_bytes);
    memo_range others = memob_range_at(halo, halo ? desc->halo_rows * row_bytes : 0);
    memo_status status = memoi_scan_begin(&walk, scan, 2 + is_backward, error);
    int64_t begin, end, received = 0;
    int32_t r;
    if (status) return status;
    if (!desc->halo_rows)
        return MEMOI_FAIL(INVALID_STATE, "memo_scan_desc.halo_rows: 0; set it for a halo");
    if (first < begins[scan->rank + 1] && (!rows || !halo))
        return MEMOI_REFUSE("memo_scan: rows or halo is NULL; both are required");
    if (!is_backward) memoi_target_fill(target, stream, halo, (int64_t)(others.end - others.begin));
    if (scan->n_places < 2) return target->status;
    if (is_backward) {
        own = others;
        others = memob_range_at(scan->halo, memoi_scan_halo_bytes(desc));
    }

    memoi_target_group_begin(target, stream, desc->comm, "scan halo", -1, &own, 1, &others, 1, 0);
    for (r = 0; r < scan->n_ranks; r++) {
        if (memoi_scan_halo_rows(scan, r, scan->rank, &begin, &end))
            memoi_target_message(target, stream, desc->comm, is_backward,
                                 halo + (begin - halo_first) * row_bytes, (end - begin) * columns,
                                 desc->halo_type, r);
        if (!memoi_scan_halo_rows(scan, scan->rank, r, &begin, &end)) continue;
        memoi_target_message(target, stream, desc->comm, !is_backward,
                             is_backward ? scan->halo + received
                                         : rows + (begin - first) * row_bytes,
                             (end - begin) * columns, desc->halo_type, r);
        received += (end - begin) * row_bytes;
        MEMO_ASSERT(received <= memoi_scan_halo_bytes(desc)); /* 2 */
    }
    memoi_target_group_end(target, stream, desc->comm);

    /* In the order of ranks. */
    for (r = 0, received = 0; r < scan->n_ranks && is_backward; r++)
        if (memoi_scan_halo_rows(scan, scan->rank, r, &begin, &end)) {
            memoi_target_add(target, stream, desc->halo_type, rows + (begin - first) * row_bytes, 0,
                             scan->halo + received, 0, columns, end - begin);
            received += (end - begin) * row_bytes;
        }
    return target->status;
}

memo_status memo_scan_halo_forward(memo_scan* scan, const void* rows, void* halo,
                                   memo_error* error) {
    MEMOB_REFUSE_NULL(error, "scan", scan);
    return memoi_scan_halo(scan, (char*)(uintptr_t)rows, (char*)halo, 0, error);
}
memo_status memo_scan_halo_backward(memo_scan* scan, const void* d_halo, void* d_rows,
                                    memo_error* error) {
    MEMOB_REFUSE_NULL(error, "scan", scan);
    return memoi_scan_halo(scan, (char*)d_rows, (char*)(uintptr_t)d_halo, 1, error);
}
