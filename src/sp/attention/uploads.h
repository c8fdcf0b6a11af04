#pragma once
#include "sp/attention/exchange.h"
#include "sp/attention/desc.h"
/* ---- >>uploads ----------------------------------------------------------------------------------
 * Knows: the segments of a plan's steps, and a device.  Knows nothing of what is computed.
 *
 * 1. Every array that is announced on the device is written.
 * 2. A flight has as many bytes on the host as on the device, or more. */

/* The number of steps, each of a mask. */
MEMOI int64_t memoi_exchange_count_steps(const memo_exchange* plan) {
    return (plan->last_step + 1 + 2 * plan->splits_own) * (int64_t)plan->shape.n_parts *
           plan->n_levels;
}

/* A block has a segment for each piece of a mask's segment that a run of queries cuts out, and one
 * more for each begin or end of a run of keys that an end of what queries see passes. */
int64_t memo_exchange_device_bytes(const memo_sp_attention_desc* desc, int64_t n_segments) {
    const int64_t most_levels = desc->has_levels ? MEMO_LEVELS_MAX : 1;
    const int64_t n_masks = memob_max(desc->n_masks, 1) * most_levels;
    int64_t n_runs = 2;
    for (int i = 0; i < 2; i++) {
        const memo_sharding* s = i ? &desc->key_sharding : &desc->sharding;
        if (s->slice_tokens) n_runs = memob_max(n_runs, 2 * (s->n_tokens / s->slice_tokens + 1));
        if (s->kind == MEMO_SHARDING_DOCUMENTS) n_runs = memob_max(n_runs, n_segments + 64);
    }
    n_runs += memob_min(n_segments + n_runs, MEMOI_PIECES_MAX); /* of rows that travel */
    return ((int64_t)desc->sharding.ring + 2) * (n_segments + n_masks * (5 * n_runs + 8)) *
           MEMOI_SEGMENT_BYTES;
}

/* Counts the numbers of the device arrays. */
MEMOI memo_status memoi_exchange_measure(memo_exchange* plan, const memo_exchange_desc* desc,
                                         memo_error* error) {
    for (int64_t i = 0; plan->launches && i < memoi_exchange_count_steps(plan); i++)
        plan->n_words += memoi_block_segments_count(&plan->steps[i].seen);
    plan->given_memory = desc->device_memory;
    if (desc->device_memory && desc->device_bytes < plan->n_words * 4)
        return MEMOI_REFUSE("memo_exchange_desc.device_bytes: %lld, but the segments need %lld; "
                            "memo_exchange_device_bytes of the masks is enough",
                            (long long)desc->device_bytes, (long long)plan->n_words * 4);
    return MEMO_STATUS_OK;
}

MEMOI void memoi_exchange_free(memo_exchange* plan) {
    memob_arrays_free(&plan->arrays);
    MEMO_FREE(plan);
}

/* --- flights --- */

/* What an exchange has from its begin until the stream has passed its end. */
typedef struct memoi_flight {
    struct memoi_flight* next;
    memo_exchange* exchange; /* NULL: free */
    memo_event end;
    int32_t has_end; /* recorded behind all passes of the exchange */
    int64_t device_bytes, host_bytes;
    void *on_device, *on_host; /* arrays of segments; on the host pinned */
} memoi_flight;

/* Flights and their streams are of the thread that calls passes. */
typedef struct memoi_flights {
    memoi_flight* first;
    memo_exchange* passed; /* no stream uses them any more; any thread frees them (atomic) */
} memoi_flights;

MEMOI void memoi_flights_pass(memoi_flights* flights, memo_exchange* plan) {
    plan->next = __atomic_load_n(&flights->passed, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&flights->passed, &plan->next, plan, 0, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED)) {
    }
}

MEMOI void memoi_flights_free_passed(memoi_flights* flights) {
    memo_exchange* plan = __atomic_exchange_n(&flights->passed, NULL, __ATOMIC_ACQUIRE);
    while (plan) {
        memo_exchange* next = plan->next;
        memoi_exchange_free(plan);
        plan = next;
    }
}

MEMOI memo_status memoi_flights_add(memoi_flights* flights, const memo_device* device,
                                    memoi_flight** result, memo_error* error) {
    memoi_flight* flight = (memoi_flight*)memob_calloc(1, sizeof *flight);
    memo_status status = flight ? memo_event_create_untimed(device, &flight->end, error)
                                : memob_no_memory(error, "an exchange in flight");
    if (status) {
        MEMO_FREE(flight);
        return status;
    }
    flight->next = flights->first;
    flights->first = flight;
    if (result) *result = flight;
    return MEMO_STATUS_OK;
}

/* A free flight with room for arrays, or one without arrays; NULL: there is none. */
MEMOI memoi_flight* memoi_flights_find(memoi_flights* flights, int64_t device_bytes,
                                       int64_t host_bytes) {
    memoi_flight *flight = flights->first, *empty = NULL;
    for (; flight; flight = flight->next) {
        if (flight->exchange) continue;
        if (flight->device_bytes >= device_bytes && flight->host_bytes >= host_bytes) return flight;
        if (!flight->host_bytes) empty = flight;
    }
    return empty;
}

/* Gives an exchange its flight.  What is allocated is a quarter larger, for batches to come. */
MEMOI memo_status memoi_flights_take(memoi_flights* flights, const memo_device* device,
                                     memo_exchange* plan, memo_error* error) {
    const int64_t host_bytes = plan->n_words * 4, more = host_bytes / 4;
    const int64_t device_bytes = plan->given_memory ? 0 : host_bytes;
    memo_status status = MEMO_STATUS_OK;
    memoi_flight* flight;

    /* The streams may have passed others. */
    for (flight = flights->first; flight; flight = flight->next) {
        int32_t is_done = 0;
        if (!flight->has_end || memo_event_query(device, flight->end, &is_done, NULL) || !is_done)
            continue;
        memoi_flights_pass(flights, flight->exchange);
        flight->exchange = NULL;
        flight->has_end = 0;
    }

    flight = memoi_flights_find(flights, device_bytes, host_bytes);
    if (!flight) status = memoi_flights_add(flights, device, &flight, error);
    if (!status && flight->host_bytes < host_bytes) {
        status = memo_host_alloc(device, host_bytes + more, &flight->on_host, error);
        if (!status) flight->host_bytes = host_bytes + more;
    }
    if (!status && flight->device_bytes < device_bytes) {
        status = memo_device_alloc(device, device_bytes + more, &flight->on_device, error);
        if (!status) flight->device_bytes = device_bytes + more;
    }
    if (status) return status;
    MEMO_ASSERT(flight->device_bytes <= flight->host_bytes); /* 2 */
    flight->exchange = plan;
    plan->flight = flight;
    return MEMO_STATUS_OK;
}

/* After the streams. */
MEMOI void memoi_flights_close(memoi_flights* flights, const memo_device* device) {
    memoi_flights_free_passed(flights);
    while (flights->first) {
        memoi_flight* flight = flights->first;
        flights->first = flight->next;
        if (flight->exchange && flight->exchange->has_ended) memoi_exchange_free(flight->exchange);
        if (flight->on_device) memo_device_free(device, flight->on_device, NULL);
        if (flight->on_host) memo_host_free(device, flight->on_host, NULL);
        (void)memo_event_destroy(device, flight->end, NULL);
        MEMO_FREE(flight);
    }
}

/* Enqueues one copy of the arrays of all steps, from the flight. */
MEMOI memo_status memoi_exchange_upload(memo_exchange* plan, const memo_device* device,
                                        memo_stream stream, memo_error* error) {
    int32_t *words = (int32_t*)plan->flight->on_host, *at = words;
    void* to = plan->given_memory ? plan->given_memory : plan->flight->on_device;
    if (!plan->n_words) return MEMO_STATUS_OK;
    for (int64_t i = 0; i < memoi_exchange_count_steps(plan); i++)
        at =
            memoi_block_segments_write(&plan->steps[i].seen, at, (const int32_t*)to + (at - words));
    MEMO_ASSERT(at == words + plan->n_words); /* 1 */
    return memo_copy(device, stream, MEMO_COPY_TO_DEVICE, to, words, plan->n_words * 4, error);
}
