#pragma once
#include "memo/trace.h"
#include "memo/plan.h"
#include "memo/host_device.h"
#include "plan/rows/words.h"
#include "plan/session/state.h"
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
