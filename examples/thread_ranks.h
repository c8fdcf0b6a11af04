/* thread_ranks.h - one function on n ranks, each a thread of this process with a host device and a
 * stream. */
#ifndef THREAD_RANKS_H
#define THREAD_RANKS_H

#include <pthread.h>
#include <string.h>

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

typedef struct thread_ranks {
    int32_t n;
    memo_device* devices[THREAD_RANKS_MAX];
    memo_comm* comms[THREAD_RANKS_MAX];
    thread_rank ranks[THREAD_RANKS_MAX];
} thread_ranks;

static void* thread_rank_main(void* argument) {
    thread_rank* r = (thread_rank*)argument;
    r->status = r->function(r, &r->error);
    if (r->status) memo_comm_abort(r->comm); /* so that nobody waits for this rank */
    return NULL;
}

/* The stack is that of a host device's streams, also with musl and under `ulimit -s`. */
static int thread_rank_start(pthread_t* thread, thread_rank* rank) {
    pthread_attr_t attributes;
    int code = pthread_attr_init(&attributes);
    if (code) return code;
    pthread_attr_setstacksize(&attributes, 8 << 20);
    code = pthread_create(thread, &attributes, thread_rank_main, rank);
    pthread_attr_destroy(&attributes);
    return code;
}

/* Devices and communicators are set.  Rank 0 is the calling thread. */
static memo_status thread_ranks_prepare(thread_ranks* team, int32_t n, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    team->n = n;
    for (int32_t i = 0; i < n && !status; i++) {
        thread_rank* rank = &team->ranks[i];
        rank->comm = team->comms[i];
        rank->device = team->devices[i];
        status = memo_stream_create(rank->device, "compute", 0, &rank->stream, error);
    }
    return status;
}

/* Whether the error is the failure of another rank: of a message, or of what ranks agree on. */
static inline int thread_rank_echoes(const memo_error* error) {
    return error->status == MEMO_STATUS_COMM || strstr(error->message, "another rank failed");
}

/* Calls function on all ranks, and returns when all have returned.  The error is the first one that
 * is not the failure of another rank.  After an error the team can only be closed. */
static memo_status thread_ranks_call(thread_ranks* team,
                                     memo_status (*function)(thread_rank* rank, memo_error* error),
                                     void* user, memo_error* error) {
    pthread_t threads[THREAD_RANKS_MAX];
    thread_rank* ranks = team->ranks;
    memo_status status = MEMO_STATUS_OK;
    int32_t n_started = 1;
    for (int32_t i = 0; i < team->n; i++) {
        ranks[i].function = function;
        ranks[i].user = user;
    }

    while (n_started < team->n && !thread_rank_start(&threads[n_started], &ranks[n_started]))
        n_started++;
    if (n_started < team->n) { /* started ranks would wait for the missing one */
        memo_comm_abort(team->comms[n_started]);
        status = memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no thread for rank %d",
                                (int)n_started);
    }
    thread_rank_main(&ranks[0]);

    for (int32_t i = 0; i < n_started; i++) {
        if (i) pthread_join(threads[i], NULL);
        if (ranks[i].status && (!status || thread_rank_echoes(error))) {
            *error = ranks[i].error;
            status = error->status;
        }
    }
    return status;
}

static void thread_ranks_close(thread_ranks* team) {
    for (int32_t i = 0; i < THREAD_RANKS_MAX; i++) memo_comm_destroy(team->comms[i]);
    for (int32_t i = 0; i < THREAD_RANKS_MAX; i++) memo_host_device_destroy(team->devices[i]);
    memset(team, 0, sizeof *team);
}

/* Each rank has a device of this desc; links and time-out of the communicator are those of its desc
 * (NULL: the defaults). */
static memo_status thread_ranks_open(thread_ranks* team, const memo_host_device_desc* device_desc,
                                     const memo_comm_threads_desc* comm_base, int32_t n,
                                     memo_error* error) {
    memo_comm_threads_desc comm_desc = MEMO_ZERO(memo_comm_threads_desc);
    memo_status status = MEMO_STATUS_OK;
    memset(team, 0, sizeof *team);
    if (n < 1 || n > THREAD_RANKS_MAX)
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT, "%d ranks", (int)n);
    for (int32_t i = 0; i < n && !status; i++)
        status = memo_host_device_create(device_desc, &team->devices[i], error);

    if (comm_base) comm_desc = *comm_base;
    comm_desc.n_ranks = n;
    comm_desc.devices = team->devices;
    if (!status) status = memo_comm_create_threads(&comm_desc, team->comms, error);
    if (!status) status = thread_ranks_prepare(team, n, error);
    if (status) thread_ranks_close(team);
    return status;
}

/* The function must destroy what it creates before it returns. */
static memo_status thread_ranks_run_on(
    const memo_host_device_desc* device_desc, const memo_comm_threads_desc* comm_base, int32_t n,
    memo_status (*function)(thread_rank* rank, memo_error* error), void* user, memo_error* error) {
    thread_ranks team;
    memo_status status = thread_ranks_open(&team, device_desc, comm_base, n, error);
    if (status) return status;
    status = thread_ranks_call(&team, function, user, error);
    thread_ranks_close(&team);
    return status;
}

static inline memo_status
thread_ranks_run(int32_t n, memo_status (*function)(thread_rank* rank, memo_error* error),
                 void* user, memo_error* error) {
    memo_host_device_desc desc = MEMO_ZERO(memo_host_device_desc);
    return thread_ranks_run_on(&desc, NULL, n, function, user, error);
}

#endif
