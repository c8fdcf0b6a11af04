/* measure_collective.h - the time of a collective alone, for memo_block_times and for the
 * degrees-profile of examples/tools/degrees_plan.c.
 *
 *     int64_t counts[2] = {1 << 16, 1 << 20};
 *     double measured_s[2];
 *     status = measure_collective(comm, device, stream, MEMO_COLLECTIVE_ALL_REDUCE, MEMO_TYPE_BF16, counts, 2,
 *                                 measured_s, &error);
 *
 * Single translation unit: everything is static. */
#ifndef MEASURE_COLLECTIVE_H
#define MEASURE_COLLECTIVE_H

#include "memo_sp.h"

#define MEASURE_COLLECTIVE_RUNS 5

/* One run, between two events. */
static memo_status measure_collective_once(memo_comm* comm, const memo_device* device,
                                           memo_stream stream, memo_event events[2], void* x,
                                           const memo_collective_call* call, double* elapsed_s,
                                           memo_error* error) {
    memo_collective_call c = *call;
    memo_status status = memo_barrier(comm, stream, error);
    char* share = (char*)x + comm->rank * c.count * memo_type_bytes(c.type);
    c.from = c.kind == MEMO_COLLECTIVE_ALL_GATHER ? share : x;
    c.to = c.kind == MEMO_COLLECTIVE_REDUCE_SCATTER ? share : x;
    if (!status) status = memo_event_record(device, events[0], stream, error);
    if (!status) status = memo_comm_collective(comm, stream, &c, error);
    if (!status) status = memo_event_record(device, events[1], stream, error);
    if (!status) status = memo_stream_synchronize(device, stream, error);
    return status ? status : memo_event_elapsed(device, events[0], events[1], elapsed_s, error);
}

/* Replaces *time_s by the maximum over all ranks; x holds a double. */
static memo_status measure_collective_slowest(memo_comm* comm, const memo_device* device,
                                              memo_stream stream, void* x, double* time_s,
                                              memo_error* error) {
    memo_status status =
        memo_copy(device, stream, MEMO_COPY_TO_DEVICE, x, time_s, sizeof *time_s, error);
    if (!status)
        status = memo_all_reduce(comm, stream, x, x, 1, MEMO_TYPE_F64, MEMO_REDUCTION_MAX, error);
    if (!status)
        status = memo_copy(device, stream, MEMO_COPY_TO_HOST, time_s, x, sizeof *time_s, error);
    return status ? status : memo_stream_synchronize(device, stream, error);
}

/* measured_s[k] is the time for counts[k] elements (of a share, for an all-gather or
 * reduce-scatter): the median of 5 runs after one warm-up, on the slowest rank.  So all ranks get
 * the same numbers and decide alike.  All ranks must call it with equal arguments.  It waits on the
 * host, and allocates and frees buffers. */
static memo_status measure_collective(memo_comm* comm, const memo_device* device,
                                      memo_stream stream, memo_collective kind, memo_type type,
                                      const int64_t* counts, int32_t n, double* measured_s,
                                      memo_error* error) {
    memo_collective_call call;
    memo_event events[2] = {NULL, NULL};
    void* x = NULL;
    int64_t n_bytes = 8;
    int32_t j;
    memo_status status = MEMO_STATUS_OK, ended;
    memset(&call, 0, sizeof call);
    call.kind = kind;
    call.type = type;
    for (int32_t k = 0; k < n; k++) {
        int64_t bytes = counts[k] * memo_type_bytes(type) * comm->size;
        n_bytes = bytes > n_bytes ? bytes : n_bytes;
    }
    for (int32_t k = 0; k < 2 && !status; k++)
        status = memo_event_create(device, &events[k], error);
    if (!status) status = memo_device_alloc(device, n_bytes, &x, error);
    if (!status) status = memo_fill(device, stream, x, 0, n_bytes, error);

    for (int32_t k = 0; k < n && !status; k++) {
        double runs[MEASURE_COLLECTIVE_RUNS], elapsed_s = 0;
        call.count = counts[k];
        for (int32_t run = -1; run < MEASURE_COLLECTIVE_RUNS && !status; run++) {
            status =
                measure_collective_once(comm, device, stream, events, x, &call, &elapsed_s, error);
            for (j = run; j > 0 && runs[j - 1] > elapsed_s; j--) runs[j] = runs[j - 1];
            if (run >= 0) runs[j] = elapsed_s;
        }
        measured_s[k] = runs[MEASURE_COLLECTIVE_RUNS / 2];
        if (!status)
            status = measure_collective_slowest(comm, device, stream, x, &measured_s[k], error);
    }

    ended = memo_stream_synchronize(device, stream, status ? NULL : error);
    if (!status) status = ended;
    for (int32_t k = 0; k < 2; k++)
        if (events[k]) (void)memo_event_destroy(device, events[k], NULL);
    if (x) (void)memo_device_free(device, x, NULL);
    return status;
}

#endif
