/* memo_check.h - has memo changed no gradient of a trainer? To be asked before it trains.
 *
 * EXAMPLE.  desc: of the session that the trainer is about to create.
 *
 *     #define MEMO_IMPLEMENTATION             // in exactly one translation unit
 *     #define MEMO_PLAN_IMPLEMENTATION        // in the same unit
 *     #define MEMO_CHECK_IMPLEMENTATION       // in the same unit
 *     #include "extras/memo_check.h"          // includes memo_plan.h; link with -lpthread -lm
 *
 *     if (memo_session_verify(&desc, &error)) fprintf(stderr, "%s\n", error.message);
 *
 * License: MIT.  Language: C99 that is also C++11. */
#ifndef MEMO_CHECK_H
#define MEMO_CHECK_H

#include "memo_plan.h"

#if MEMO_VERSION_MAJOR != 0 || MEMO_VERSION_MINOR != 4
#error "memo_check.h: memo.h is of another release; use the memo.h of the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Has memo changed no gradient? Runs a micro-batch of the first shape with a backward in separate
 * sessions: twice in a checked session, then with every tensor kept, with half of the rows swapped
 * and half recomputed, and by the desc's policy and budgets, planned by estimated times.  The run
 * with half of the rows is left out if it does not fit host memory.  The desc's outputs and the
 * gradients of states must have the same bits each time.  In slices, kept outputs are also compared
 * with outputs of a layer at once, whose sums have another order: both may differ by a hundredth of
 * the norm, in 16 bits by a tenth.  Each run begins with the same outputs, which have their bytes
 * again afterwards; states begin with small numbers.  Call once, before memo_session_create, with
 * inputs and rows of which a kept step fits in a checked session.  All ranks must call this.  Finds
 * what a checked session cannot see: a backward that reads a layer that has ended, and gradients
 * that are zeroed in the wrong slice.  Errors: INVALID_ARGUMENT (the output, layer and number that
 * differ first, and in which run; or nothing to compare); INFEASIBLE (a kept step does not fit);
 * errors of the calls above. */
MEMO_TRY memo_status memo_session_verify(const memo_session_desc* desc, memo_error* error);

#ifdef __cplusplus
}
#endif

#endif /* MEMO_CHECK_H */

/* ==== implementation ======================================================================== */

#if defined(MEMO_CHECK_IMPLEMENTATION) && !defined(MEMO_CHECK_IMPLEMENTATION_DONE)
#define MEMO_CHECK_IMPLEMENTATION_DONE

#ifndef MEMO_PLAN_IMPLEMENTATION_DONE
#error "memo_check.h: define MEMO_IMPLEMENTATION and MEMO_PLAN_IMPLEMENTATION in the same unit"
#endif

/* ---- >>verify -----------------------------------------------------------------------------------
 * Knows: runs of one desc by several plans, and the bytes that they leave.  Knows nothing of how a
 * plan is made. */

/* Copies the outputs to bytes, or back, in the order of the compute stream, and waits.  Copies of a
 * device take pinned memory, a piece at a time; if there is none left they take bytes itself. */
MEMOI memo_status memoi_verified_copy_outputs(const memo_session* s, char* bytes, int is_back,
                                              memo_error* error) {
    const int on_host = s->desc.computes_on_host;
    int64_t most = (int64_t)1 << 20, n_bytes;
    memo_status status = MEMO_STATUS_OK, freed = MEMO_STATUS_OK;
    void* pinned = NULL;
    if (on_host || memo_host_alloc(s->device, most, &pinned, NULL)) {
        pinned = NULL;
        most = MEMOB_BYTES_MAX;
    }
    for (int32_t i = 0; i < s->desc.n_outputs; i++) {
        const int64_t size_bytes = s->desc.outputs[i].size_bytes;
        for (int64_t at = 0; at < size_bytes && !status; at += n_bytes, bytes += n_bytes) {
            char* output = (char*)s->desc.outputs[i].address + at;
            void* piece = on_host ? output : bytes;
            if (pinned) piece = pinned;
            n_bytes = memob_min(size_bytes - at, most);
            if (is_back) memmove(piece, bytes, (size_t)n_bytes);
            if (!on_host)
                status = memob_copy_now(s->device, s->desc.compute_stream, output, piece, n_bytes,
                                        is_back, error);
            if (!is_back) memmove(bytes, piece, (size_t)n_bytes);
        }
    }

    if (pinned) freed = memo_host_free(s->device, pinned, status ? NULL : error);
    return status ? status : freed;
}

/* Bytes of outputs, then of gradients among states, layer by layer. */
typedef struct memoi_verified {
    const memo_session_desc* desc;
    int32_t shape;
    int64_t output_bytes, n_bytes;
    char *expected, *found; /* of a micro-batch before, and of the last one */
    char* saved;            /* the outputs before a micro-batch */
    memob_arrays arrays;    /* of these */
} memoi_verified;

/* A number of an output. */
MEMOI double memoi_verified_number(const char* bytes, memo_type type) {
    uint16_t half;
    uint32_t word;
    float single;
    double number;
    if (type == MEMO_TYPE_F64) return memcpy(&number, bytes, sizeof number), number;
    memcpy(&half, bytes, sizeof half);
    if (type == MEMO_TYPE_F16) {
        const int exponent = half >> 10 & 31;
        number = ldexp((half & 1023) + (exponent ? 1024 : 0), exponent + !exponent - 25);
        if (exponent == 31) return (double)NAN;
        return half >> 15 ? -number : number;
    }
    word = (uint32_t)half << 16;
    if (type == MEMO_TYPE_F32) memcpy(&word, bytes, sizeof word);
    memcpy(&single, &word, sizeof single);
    return (double)single;
}

/* Compares an output, or a layer's part of an output; layer: -2 if the output is of no layer.  why:
 * of a difference of bits; NULL: only a large difference is an error, by the norm of the expected
 * numbers. */
MEMOI memo_status memoi_verified_compare(const memoi_verified* v, const char* name, int32_t layer,
                                         memo_type type, int64_t at, int64_t n_bytes,
                                         const char* why, memo_error* error) {
    static const int64_t sizes[] = {4, 8, 2, 2, 4, 8, 1};
    MEMOB_TABLE_OF(MEMO_N_TYPES, sizes);
    static const double bounds[] = {0.01, 0.01, 0.1, 0.1, 0, 0, 0}; /* 0: no distance is taken */
    MEMOB_TABLE_OF(MEMO_N_TYPES, bounds);
    const double bound = bounds[type];
    const char *expected = v->expected + at, *found = v->found + at;
    double norm = 0, distance = 0; /* sums of squares at first */
    char of_layer[32] = "";
    int64_t i = 0;
    if (layer >= MEMO_LAYER_FIRST) snprintf(of_layer, sizeof of_layer, ", layer %d", (int)layer);

    for (; !why && bound > 0 && i + sizes[type] <= n_bytes; i += sizes[type]) {
        const double a = memoi_verified_number(expected + i, type);
        const double b = memoi_verified_number(found + i, type);
        norm += a * a;
        distance += (a - b) * (a - b);
    }
    if (distance > 0) distance = sqrt(distance / norm);
    if (!why && !(distance <= bound))
        return MEMOB_INVALID(
            error,
            "memo_session_verify: output `%.40s`%s: in slices it differs by %.3g %% from that of "
            "a layer at once; gradients of LAYER tensors begin at zero in the first slice of a "
            "backward, which has the last rows, and each slice adds its rows alone",
            name, of_layer, 100 * distance);
    while (why && i < n_bytes && expected[i] == found[i]) i++;
    if (!why || i == n_bytes) return MEMO_STATUS_OK;
    return MEMOB_INVALID(
        error, "memo_session_verify: output `%.40s`%s, number %lld (byte %lld of %lld): %s", name,
        of_layer, (long long)(i / sizes[type]), (long long)i, (long long)n_bytes, why);
}

MEMOI memo_status memoi_verified_compare_all(const memoi_verified* v, const char* why,
                                             memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int64_t at = 0;
    for (int32_t i = 0; i < v->desc->n_outputs; i++) {
        const memo_session_output* output = &v->desc->outputs[i];
        const int32_t n = output->n_layers > 0 ? output->n_layers : 1;
        for (int32_t layer = 0; layer < n && !status; layer++, at += output->size_bytes / n)
            status = memoi_verified_compare(v, memob_session_name(output->name),
                                            output->n_layers > 0 ? layer : -2, output->type, at,
                                            output->size_bytes / n, why, error);
    }
    for (int32_t layer = MEMO_LAYER_FIRST; layer <= v->desc->n_layers && why; layer++)
        for (int32_t i = 0; i < v->desc->n_states && !status; i++) {
            if (v->desc->states[i].uses != MEMO_STATE_GRADIENT) continue;
            status = memoi_verified_compare(v, v->desc->states[i].name, layer, MEMO_TYPE_F32, at,
                                            v->desc->states[i].size_bytes, why, error);
            at += v->desc->states[i].size_bytes;
        }
    return status;
}

/* Fills the states of all layers with numbers from 0.008 to 0.12 of either sign, in f32 as well as
 * in bf16, or reads gradients. */
MEMOI memo_status memoi_verified_visit_states(memoi_verified* v, memo_session* s, int reads,
                                              memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    char* bytes = v->found + v->output_bytes;
    uint64_t random = 1;
    for (int32_t layer = MEMO_LAYER_FIRST; layer <= v->desc->n_layers; layer++)
        for (int32_t i = 0; i < v->desc->n_states && !status; i++) {
            const memo_state* state = &v->desc->states[i];
            if ((state->uses == MEMO_STATE_GRADIENT) != reads) continue;
            if (!reads) memset(bytes, 0, (size_t)state->size_bytes); /* also an odd last byte */
            for (int64_t k = 0; k < state->size_bytes / 2 && !reads; k++) {
                const uint64_t r = memob_random(&random);
                const uint16_t half = (uint16_t)(0x3c00 | (r & 0x1ff) | (r >> 9 & 0x8000));
                memcpy(bytes + 2 * k, &half, sizeof half);
            }
            status =
                reads ? memo_session_read_state(s, layer, i, 0, bytes, state->size_bytes, error)
                      : memo_session_write_state(s, layer, i, 0, bytes, state->size_bytes, error);
            if (reads) bytes += state->size_bytes;
        }
    return status;
}

MEMOI void memoi_verified_swap(memoi_verified* v) {
    char* found = v->found;
    v->found = v->expected;
    v->expected = found;
}

/* A micro-batch of a shape, or all turns of an order, of a step that goes on. */
MEMOI memo_status memoi_verified_run_turns(memo_session* s, int32_t shape, memo_error* error) {
    const memo_step_plan* plan = s->parts[shape].plan;
    memo_batch batch;
    memo_status status = MEMO_STATUS_OK;
    memset(&batch, 0, sizeof batch);
    batch.shape = shape;
    batch.more_follow = 1;
    for (int32_t k = 0; k < memob_max(plan->n_order, 1) && !status; k++) {
        if (plan->n_order) batch.turn = plan->order[k];
        status = memo_session_run(s, &batch, error);
    }
    return status;
}

/* Runs a micro-batch by the plan into `found`, from the same outputs and states each time.  The
 * trainer's norm must have its value again afterwards. */
MEMOI memo_status memoi_verified_run_once(memoi_verified* v, memo_session* s, memo_error* error) {
    const memo_session_desc* desc = v->desc;
    const double before = desc->norm ? desc->norm(desc->user) : 0;
    memo_status status, saved;
    if (desc->verifying) desc->verifying(desc->user, s, 1);
    status = saved = memoi_verified_copy_outputs(s, v->saved, 0, error);
    if (!status) status = memoi_verified_visit_states(v, s, 0, error);
    if (!status) status = memoi_verified_run_turns(s, v->shape, error);
    if (!status) status = memoi_verified_copy_outputs(s, v->found, 0, error);
    if (!status) status = memoi_verified_visit_states(v, s, 1, error);
    if (!saved) saved = memoi_verified_copy_outputs(s, v->saved, 1, status ? NULL : error);
    if (!status) status = saved;
    if (desc->verifying) desc->verifying(desc->user, s, 0);

    if (!status && desc->norm) {
        const double now = desc->norm(desc->user);
        if (memcmp(&before, &now, sizeof now) != 0)
            status = MEMOB_INVALID(
                error,
                "memo_session_desc.outputs: norm was %.9g and is %.9g, now that the outputs have "
                "the bytes again that they had before; list all bytes that a micro-batch changes "
                "and the update reads, or let norm be the same for the same bytes",
                before, now);
    }
    return status;
}

/* A session of the desc and the plan, which runs once or twice. */
MEMOI memo_status memoi_verified_run(memoi_verified* v, const memo_session_desc* desc,
                                     const memo_step_plan* plan, int is_twice, memo_error* error) {
    memo_session* s = NULL;
    memo_status status = memo_session_open(desc, plan, &s, error);
    if (status) return status;
    if (is_twice && !desc->norm)
        memob_session_log(s, "session: norm is NULL: verify does not see what outputs lack");
    status = memoi_verified_run_once(v, s, error);
    if (!status && is_twice) {
        memoi_verified_swap(v);
        if (desc->n_states) status = memo_session_skip_update(s, error); /* gradients begin anew */
        if (!status) status = memoi_verified_run_once(v, s, error);
    }
    memo_session_destroy(s);
    return status;
}

/* Near half of the tiles, with no divisor in common with all: kernels that compute several tiles at
 * a time then begin or end elsewhere than in the forward. */
MEMOI double memoi_verified_alpha(const memo_session_desc* desc) {
    const int64_t tile = desc->tile_rows > 0 ? desc->tile_rows : 1;
    const int64_t n = desc->slice_rows > 0 ? (desc->slice_rows + tile - 1) / tile : 1;
    int64_t k = n / 2 > 0 ? n / 2 : 1, a, b, rest;
    for (;; k++) {
        for (a = n, b = k; b; a = b, b = rest) rest = a % b;
        if (a == 1) return (double)k / (double)n;
    }
}

/* Memory for the outputs and the gradients of states. */
MEMOI memo_status memoi_verified_create(memoi_verified* v, const memo_session_desc* desc,
                                        memo_error* error) {
    int64_t most_bytes = 0;
    memset(v, 0, sizeof *v);
    v->desc = desc;
    while (v->shape + 1 < desc->n_shapes && desc->shapes[v->shape].is_forward_only) v->shape++;
    for (int32_t i = 0; i < desc->n_outputs; i++) v->output_bytes += desc->outputs[i].size_bytes;
    v->n_bytes = v->output_bytes;
    for (int32_t i = 0; i < desc->n_states; i++) {
        most_bytes = memob_max(most_bytes, desc->states[i].size_bytes);
        if (desc->states[i].uses == MEMO_STATE_GRADIENT)
            v->n_bytes += desc->states[i].size_bytes * (desc->n_layers + 2);
    }
    if (!v->n_bytes)
        return MEMOB_INVALID(error, "memo_session_verify: nothing to compare; list gradients in "
                                    "memo_session_desc.outputs, or among states");

    v->expected = MEMOB_ARRAY(&v->arrays, char, v->n_bytes + most_bytes);
    v->found = MEMOB_ARRAY(&v->arrays, char, v->n_bytes + most_bytes);
    v->saved = MEMOB_ARRAY(&v->arrays, char, v->output_bytes);
    return v->arrays.failed ? memob_no_memory(error, "the outputs of a micro-batch")
                            : MEMO_STATUS_OK;
}

/* The checked run comes first: it sees writes that would overwrite memory of others. */
memo_status memo_session_verify(const memo_session_desc* desc, memo_error* error) {
    static const struct {
        memo_policy policy;
        const char* why;
    } runs[] = {
        {MEMO_POLICY_KEEP, "two micro-batches differ; a kernel is not deterministic, or reads "
                           "what a micro-batch changes and outputs lack, or an address kept from "
                           "the micro-batch before, or recompute writes what the backward reads, "
                           "such as scratch or statistics"},
        {MEMO_POLICY_KEEP, "a checked session changes it; the backward reads bytes that no kernel "
                           "has written, or of a tensor or buffer that has ended, which are NaN"},
        {MEMO_POLICY_KEEP, NULL}, /* at once */
        {MEMO_POLICY_ALPHA,
         "half of the rows swapped and half recomputed change it; a kernel reads "
         "or writes a tensor of a layer that has ended, or the backward "
         "recomputes other bits"},
        {MEMO_POLICY_MEMO, "the desc's plan changes it; a kernel reads or writes a tensor of a "
                           "layer that has ended, or runs on another stream"}};
    enum { CHECKED = 0, KEPT = 1, AT_ONCE = 2, HALF = 3, PLANNED = 4 };
    memo_step_plan *planned = NULL, *plan;
    memoi_verified v;
    memo_status status;
    memo_error found; /* what differs */
    int is_sliced = 0;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    status = memo_session_plan(desc, NULL, &planned, error);
    memset(&v, 0, sizeof v);
    if (!status) {
        is_sliced = planned->slice_rows != 0;
        status = memob_session_verdict(desc, memoi_verified_create(&v, desc, error), error);
    }

    for (int32_t k = CHECKED; k <= PLANNED && !status; k++) {
        memo_session_desc own = *desc;
        own.device_memory = own.host_memory = NULL; /* more memory */
        own.planned = NULL;                         /* the trainer may keep its plan */
        own.slice_rows = k == AT_ONCE || !is_sliced ? desc->n_rows : planned->slice_rows;
        own.is_checked |= k == CHECKED;
        found.status = MEMO_STATUS_OK;
        plan = planned;
        if (k == AT_ONCE && !is_sliced) continue;
        if (k < PLANNED) {
            own.policy = runs[k].policy;
            own.alpha = memoi_verified_alpha(&own);
            own.device_bytes = 0;
            plan = NULL;
            status = memo_session_plan(&own, NULL, &plan, error);
        }

        /* The kept run is what later ones are compared with.  No run of the trainer takes more host
         * memory than the desc's. */
        if (!status && (k != HALF || memob_step_plan_fits(plan))) {
            status = memoi_verified_run(&v, &own, plan, k == CHECKED, error);
            if (k == AT_ONCE) memoi_verified_swap(&v);
            if (!status) (void)memoi_verified_compare_all(&v, runs[k].why, &found);
            if (k == KEPT || k == AT_ONCE) memoi_verified_swap(&v);
        }
        if (plan != planned) memo_step_plan_destroy(plan);
        if (!status && found.status && error) *error = found;
        status = memob_session_verdict(desc, status ? status : found.status, error);
    }
    memo_step_plan_destroy(planned);
    memob_arrays_free(&v.arrays);
    return status;
}

#endif /* MEMO_CHECK_IMPLEMENTATION */
