/* thread_ranks.h - one function on n ranks, each a thread of this process with a host device and a
 * stream. */
#ifndef THREAD_RANKS_H
#define THREAD_RANKS_H

#include <pthread.h>

enum { THREAD_RANKS_MAX = 64 };

typedef struct thread_rank {
    memo_comm* comm;
    memo_device* device;
    memo_stream stream; /* "compute" */
    void* user;
    memo_status (*function)(struct thread_rank* rank, memo_error* error);
    memo_status status;
    memo_error error;
} thread_rank;

static void* thread_rank_main(void* argument) {
    thread_rank* r = (thread_rank*)argument;
    r->status = memo_stream_create(r->device, "compute", 0, &r->stream, &r->error);
    if (!r->status) r->status = r->function(r, &r->error);
    if (r->status) memo_comm_abort(r->comm); /* so that nobody waits for this rank */
    return NULL;
}

/* Returns when all ranks have returned.  The error is the first one that is not the failure of
 * another rank. */
static inline memo_status thread_ranks_start(thread_rank* ranks, memo_comm** comms, int32_t n,
                                             memo_error* error) {
    pthread_t threads[THREAD_RANKS_MAX];
    memo_status status = MEMO_STATUS_OK;
    int32_t i, n_started = 0;
    for (i = 0; i < n; i++) ranks[i].comm = comms[i];
    while (n_started < n &&
           !pthread_create(&threads[n_started], NULL, thread_rank_main, &ranks[n_started]))
        n_started++;
    if (n_started < n) { /* started ranks would wait for the missing one */
        memo_comm_abort(comms[n_started]);
        status = memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no thread for rank %d",
                                (int)n_started);
    }
    for (i = 0; i < n_started; i++) {
        pthread_join(threads[i], NULL);
        if (ranks[i].status && (!status || status == MEMO_STATUS_COMM)) {
            *error = ranks[i].error;
            status = error->status;
        }
    }
    return status;
}

/* Each rank has a device of this desc; links and time-out of the communicator are those of its desc
 * (NULL: the defaults).  The function must destroy what it creates before it returns. */
static memo_status thread_ranks_run_on(
    const memo_host_device_desc* device_desc, const memo_comm_threads_desc* comm_base, int32_t n,
    memo_status (*function)(thread_rank* rank, memo_error* error), void* user, memo_error* error) {
    memo_comm_threads_desc comm_desc = memo_comm_threads_desc_default();
    memo_device* devices[THREAD_RANKS_MAX];
    memo_comm* comms[THREAD_RANKS_MAX];
    thread_rank ranks[THREAD_RANKS_MAX];
    memo_status status = MEMO_STATUS_OK;
    int32_t i, n_devices = 0;
    if (n < 1 || n > THREAD_RANKS_MAX)
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT, "%d ranks", (int)n);
    memset(ranks, 0, sizeof ranks);
    memset(comms, 0, sizeof comms);

    while (n_devices < n && !status) {
        status = memo_host_device_create(device_desc, &devices[n_devices], error);
        if (status) break;
        ranks[n_devices].device = devices[n_devices];
        ranks[n_devices].function = function;
        ranks[n_devices++].user = user;
    }

    if (comm_base) comm_desc = *comm_base;
    comm_desc.n_ranks = n;
    comm_desc.devices = devices;
    if (!status) status = memo_comm_create_threads(&comm_desc, comms, error);
    if (!status) status = thread_ranks_start(ranks, comms, n, error);

    for (i = 0; i < n; i++) memo_comm_destroy(comms[i]);
    for (i = 0; i < n_devices; i++) memo_host_device_destroy(devices[i]);
    return status;
}

static inline memo_status
thread_ranks_run(int32_t n, memo_status (*function)(thread_rank* rank, memo_error* error),
                 void* user, memo_error* error) {
    memo_host_device_desc desc = memo_host_device_desc_default();
    return thread_ranks_run_on(&desc, NULL, n, function, user, error);
}

#endif
