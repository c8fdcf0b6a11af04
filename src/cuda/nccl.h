#pragma once
#include "cuda/errors.h"
/* ---- >>nccl back end ----------------------------------------------------------------------------
 * Knows: NCCL, the CUDA runtime.  Knows nothing of devices, attention or layouts.
 *
 * NCCL allows an abort only while no other thread is inside one of its calls, so communicators do
 * not block (NCCL 2.14): a call may still be in progress when it returns, and is polled.  One mutex
 * of the world, held for single calls, separates the caller from the watchdog.  Parts share NCCL's
 * resources with their world, which needs the same. */
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 18, 0)
#error "memo_cuda.cuh: the NCCL back end needs NCCL 2.18 (ncclCommSplit)"
#endif

#define MEMOI_NCCL_MESSAGES 2048 /* NCCL's limit for a group */
#define MEMOI_NCCL_AGREED   16   /* labels under way, of different digests */
#define MEMOI_NCCL_DIGESTS  (2 * MEMO_LABEL_FIELDS)

/* The digests of a label and their complements.  All ranks have the same digests exactly if the
 * maxima over ranks are this rank's values.  NCCL keeps the maxima of all operations with this
 * label, so that no later operation hides a difference.  Lies in memory that the host and the GPU
 * share. */
typedef struct memoi_nccl_agreed {
    const char* const* fields; /* NULL: free */
    int32_t is_captured;       /* graphs use this memory, so it stays */
    int32_t own[MEMOI_NCCL_DIGESTS], maxima[MEMOI_NCCL_DIGESTS];
} memoi_nccl_agreed;

typedef struct memoi_nccl memoi_nccl;

typedef struct memoi_nccl_world {
    pthread_mutex_t mutex; /* of everything here and of NCCL's calls */
    pthread_t watchdog;
    int32_t is_ending;
    memoi_nccl* comms;        /* the world and its parts */
    memo_error failure;       /* status OK: none */
    memo_comm_nccl_desc desc; /* with the default time-outs; no name, host or id */
    char host[101];           /* "": none */
    int gpu;
    int32_t orders_by_events; /* NCCL does not order communicators itself */
    memoi_nccl* latest;       /* the communicator of the latest operation that was not captured */
} memoi_nccl_world;

struct memoi_nccl {
    memo_comm table;
    char name[64];
    memoi_nccl* next; /* of the world */
    memoi_nccl_world* world;
    ncclComm_t comm; /* NULL once aborted */
    ncclComm_t part; /* of a split: NCCL's thread sets it, until an abort has ended the thread */
    int64_t creation_bytes; /* taken from the GPU's free memory, which it is until then */
    void* barrier_word;
    memoi_nccl_agreed* agreed; /* MEMOI_NCCL_AGREED, and a last one that agrees with any */

    /* For the watchdog and for other communicators. */
    cudaEvent_t done;      /* recorded after each operation */
    double enqueued_s;     /* when `done` was recorded; 0: never */
    double wait_ends_at_s; /* the time-out of a wait; 0: nobody waits */

    memo_message_call messages[MEMOI_NCCL_MESSAGES]; /* of the open group */
};

/* Between two looks at a call in progress: most end within 0.2 ms, a missing peer takes long. */
MEMOI void memoi_nccl_nap(double waited_s) {
    if (waited_s < 5e-4)
        sched_yield();
    else
        memob_sleep_until(memob_now_ns() + (int64_t)(waited_s < 1e-2 ? waited_s * 1e8 : 1e6));
}

/* --- the meeting: all ranks get rank 0's unique id --- */

MEMOI memo_status memoi_nccl_environment_number(const char* name, int64_t* number,
                                                memo_error* error) {
    const char* text = getenv(name);
    char* end = NULL;
    if (!text)
        return MEMOB_INVALID(error,
                             "%s: not set in the environment; start with torchrun, set RANK, "
                             "WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or fill the desc",
                             name);
    *number = strtoll(text, &end, 10); /* too large: refused by its range */
    if (end != text && !*end) return MEMO_STATUS_OK;
    return MEMOB_INVALID(error, "%s: not a number in the environment ('%.100s')", name, text);
}

/* NCCL's own meeting.  The launcher itself listens on MASTER_PORT, so the next port is used. */
MEMOI memo_status memoi_nccl_name_meeting(int* is_named, memo_error* error) {
    const char* host = getenv("MASTER_ADDR");
    char address[300];
    int64_t port = 0;
    memo_status status;
    if (getenv("NCCL_COMM_ID")) return MEMO_STATUS_OK;
    if (!host)
        return MEMOB_INVALID(error,
                             "MASTER_ADDR: not set in the environment; set it to rank 0's address");
    status = memoi_nccl_environment_number("MASTER_PORT", &port, error);
    if (!status) status = memob_check_integer("environment", "MASTER_PORT", port, 1, 65534, error);
    if (status) return status;
    snprintf(address, sizeof address, strchr(host, ':') ? "[%.200s]:%d" : "%.200s:%d", host,
             (int)port + 1);
    setenv("NCCL_COMM_ID", address, 1);
    *is_named = 1;
    return MEMO_STATUS_OK;
}

/* All ranks get the same id.  *is_named: NCCL_COMM_ID is to be removed after joining. */
MEMOI memo_status memoi_nccl_share_id(const memo_comm_nccl_desc* desc, int32_t size,
                                      ncclUniqueId* id, int* is_named, memo_error* error) {
    ncclResult_t result;
    if (desc->unique_id) {
        memcpy(id, desc->unique_id, sizeof *id);
        return MEMO_STATUS_OK;
    }
    if (size > 1 && memoi_nccl_name_meeting(is_named, error)) return MEMO_STATUS_INVALID_ARGUMENT;
    result = ncclGetUniqueId(id);
    if (result == ncclSuccess) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_COMM, "ncclGetUniqueId: %s; %.300s",
                          ncclGetErrorString(result), ncclGetLastError(NULL));
}

/* --- errors --- */

/* By memo_type; ncclBfloat16 is not in C before 2.24. */
static const ncclDataType_t memoi_nccl_types[] = {
    ncclFloat32, ncclFloat64, (ncclDataType_t)9, ncclFloat16, ncclInt32, ncclInt64, ncclUint8};
MEMOB_TABLE_OF(MEMO_N_TYPES, memoi_nccl_types);

/* The mutex is held.  After this nothing calls NCCL but the watchdog, which aborts the world. */
MEMOI memo_status memoi_nccl_fail(memoi_nccl* me, const char* what, const char* why,
                                  memo_error* error) {
    memoi_nccl_world* world = me->world;
    char rank[MEMO_RANK_TEXT];
    if (!world->failure.status) {
        memo_error_set(
            &world->failure, MEMO_STATUS_COMM, "%s on '%s', rank %s: %.340s", what, me->name,
            memo_comm_rank_text(rank, me->table.rank, world->desc.rank, world->host), why);
        /* First, so that a wait which the abort ends already finds it. */
        if (world->desc.failed) world->desc.failed(world->desc.failed_user, &world->failure);
    }
    return memo_error_set(error, world->failure.status, "%s", world->failure.message);
}

/* The mutex is held. */
MEMOI int memoi_nccl_is_usable(const memoi_nccl* me) {
    return me->comm && !me->world->failure.status;
}

/* The mutex is held.  OK with *is_done (optional) = 0: the call is still in progress. */
MEMOI memo_status memoi_nccl_look(memoi_nccl* me, const char* what, ncclResult_t result,
                                  int* is_done, memo_error* error) {
    ncclResult_t state = ncclSuccess;
    const char* detail;
    char why[400];
    if (me->world->failure.status) return memoi_nccl_fail(me, what, "", error);
    if (!me->comm) { /* not joined yet, or in no part */
        result = ncclSuccess;
    } else if (result == ncclSuccess || result == ncclInProgress) {
        result = ncclCommGetAsyncError(me->comm, &state);
        if (result == ncclSuccess) result = state;
    }
    if (is_done) *is_done = result == ncclSuccess;
    if (result == ncclSuccess || result == ncclInProgress) return MEMO_STATUS_OK;
    detail = ncclGetLastError(me->comm);
    snprintf(why, sizeof why, "%s; %.300s", ncclGetErrorString(result), detail ? detail : "");
    return memoi_nccl_fail(me, what, why, error);
}

/* Waits until a call that returned result is no longer in progress.  The mutex is not held. */
MEMOI memo_status memoi_nccl_finish(memoi_nccl* me, const char* what, ncclResult_t result,
                                    memo_error* error) {
    double start_s = memob_now_s();
    for (;;) {
        double waited_s = memob_now_s() - start_s;
        int is_done = 0;
        memo_status status;
        pthread_mutex_lock(&me->world->mutex);
        status = memoi_nccl_look(me, what, result, &is_done, error);
        if (!status && !is_done && waited_s > me->world->desc.join_timeout_s)
            status = memoi_nccl_fail(me, what, "its peers did not join within the time-out", error);
        pthread_mutex_unlock(&me->world->mutex);
        if (status || is_done) return status;
        memoi_nccl_nap(waited_s);
    }
}

MEMOI memo_status memoi_nccl_status(memo_comm* comm, memo_error* error) {
    memoi_nccl* me = (memoi_nccl*)comm->context;
    memo_status status;
    pthread_mutex_lock(&me->world->mutex);
    status = memoi_nccl_look(me, "an operation", ncclSuccess, NULL, error);
    pthread_mutex_unlock(&me->world->mutex);
    return status;
}

MEMOI void memoi_nccl_abort(memo_comm* comm) {
    memoi_nccl* me = (memoi_nccl*)comm->context;
    pthread_mutex_lock(&me->world->mutex);
    (void)memoi_nccl_fail(me, "abort", "called", NULL);
    pthread_mutex_unlock(&me->world->mutex);
}

/* --- the watchdog --- */

/* The mutex is held.  Do all ranks have the same digests?  The GPU may still write the maxima. */
MEMOI void memoi_nccl_watch_agreed(memoi_nccl* me) {
    for (int i = 0; i < MEMOI_NCCL_AGREED && !me->world->failure.status; i++) {
        const memoi_nccl_agreed* a = &me->agreed[i];
        for (int k = 0; k < MEMOI_NCCL_DIGESTS && a->fields; k++)
            if (__atomic_load_n(&a->maxima[k], __ATOMIC_RELAXED) != a->own[k]) {
                (void)memoi_nccl_fail(me, a->fields[k % MEMO_LABEL_FIELDS],
                                      "ranks disagree; all ranks must pass the same", NULL);
                break;
            }
    }
}

/* The mutex is held. */
MEMOI void memoi_nccl_watch(memoi_nccl* me) {
    double now_s = memob_now_s();
    memoi_nccl_watch_agreed(me);
    if (memoi_nccl_look(me, "an operation", ncclSuccess, NULL, NULL)) return;
    if (now_s - me->enqueued_s > me->world->desc.timeout_s &&
        cudaEventQuery(me->done) == cudaErrorNotReady) /* never recorded: success */
        (void)memoi_nccl_fail(me, "an operation", "it did not end within the time-out", NULL);
    else if (me->wait_ends_at_s > 0 && now_s > me->wait_ends_at_s)
        (void)memoi_nccl_fail(me, "synchronize", "the stream did not end within the time-out",
                              NULL);
}

/* The mutex is held, but not while NCCL aborts: it waits until the graphs with operations of the
 * communicator are destroyed, by a thread that may have to see the failure first. */
MEMOI void memoi_nccl_abort_all(memoi_nccl_world* world) {
    memoi_nccl* each;
    for (;;) {
        for (each = world->comms; each && !each->comm;) each = each->next;
        if (!each) return;
        pthread_mutex_unlock(&world->mutex);
        (void)ncclCommAbort(each->comm);
        if (each->part) (void)ncclCommAbort(each->part);
        pthread_mutex_lock(&world->mutex);
        each->comm = each->part = NULL;
    }
}

MEMOI void* memoi_nccl_watchdog(void* argument) {
    memoi_nccl_world* world = (memoi_nccl_world*)argument;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int32_t is_ending = 0;
    (void)cudaSetDevice(world->gpu);
    (void)cudaThreadExchangeStreamCaptureMode(&mode); /* queries do not invalidate captures */
    while (!is_ending) {
        memob_sleep_until(memob_now_ns() + 20000000);
        pthread_mutex_lock(&world->mutex);
        is_ending = world->is_ending;
        for (memoi_nccl* each = world->comms; each && !world->failure.status; each = each->next)
            if (each->comm) memoi_nccl_watch(each);
        if (world->failure.status) memoi_nccl_abort_all(world);
        pthread_mutex_unlock(&world->mutex);
    }
    return NULL;
}

memo_status memo_comm_nccl_synchronize(memo_comm* comm, memo_stream stream, double timeout_s,
                                       memo_error* error) {
    memoi_nccl* me = (memoi_nccl*)comm->context;
    double limit_s = timeout_s > 0 ? timeout_s : me->world->desc.timeout_s;
    cudaError_t result;
    memo_status status;
    pthread_mutex_lock(&me->world->mutex);
    me->wait_ends_at_s = memob_now_s() + limit_s;
    pthread_mutex_unlock(&me->world->mutex);

    result = cudaStreamSynchronize(memo_cuda_stream(stream));

    pthread_mutex_lock(&me->world->mutex);
    me->wait_ends_at_s = 0;
    memoi_nccl_watch_agreed(me);
    pthread_mutex_unlock(&me->world->mutex);
    status = memoi_nccl_status(comm, error);
    if (!status && result != cudaSuccess)
        status = memo_error_set(error, MEMO_STATUS_DEVICE, "cudaStreamSynchronize: %s",
                                cudaGetErrorString(result));
    if (result != cudaSuccess) memoi_cuda_forget(result);
    return status;
}

/* --- order --- */

MEMOI int memoi_nccl_is_captured(cudaStream_t stream) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
           status != cudaStreamCaptureStatusNone;
}

/* The mutex is held.  Two communicators that are busy at once could deadlock. */
MEMOI ncclResult_t memoi_nccl_order(memoi_nccl* me, cudaStream_t stream) {
    const memoi_nccl* latest = me->world->latest;
    if (!me->world->orders_by_events || !latest || latest == me || memoi_nccl_is_captured(stream))
        return ncclSuccess;
    return cudaStreamWaitEvent(stream, latest->done, 0) == cudaSuccess ? ncclSuccess
                                                                       : ncclUnhandledCudaError;
}

/* After an operation.  An event recorded in a capture cannot be queried. */
MEMOI void memoi_nccl_mark(memoi_nccl* me, cudaStream_t stream) {
    pthread_mutex_lock(&me->world->mutex);
    if (!memoi_nccl_is_captured(stream) && cudaEventRecord(me->done, stream) == cudaSuccess) {
        me->enqueued_s = memob_now_s();
        me->world->latest = me;
    }
    pthread_mutex_unlock(&me->world->mutex);
}

/* --- what ranks must agree on --- */

/* Has every operation that was not captured ended? */
MEMOI int memoi_nccl_is_done(const memoi_nccl* me) {
    const cudaError_t state = cudaEventQuery(me->done);
    if (state == cudaErrorNotReady) memoi_cuda_forget(state);
    return state == cudaSuccess;
}

/* The mutex is held.  The place of these digests.  If all are taken, those of operations that have
 * ended give way.  The last place, if there is none: these digests are not compared. */
MEMOI memoi_nccl_agreed* memoi_nccl_place_agreed(memoi_nccl* me, const int32_t* own,
                                                 int is_captured) {
    memoi_nccl_agreed *end = me->agreed + MEMOI_NCCL_AGREED, *a;
    for (a = me->agreed; a < end; a++)
        if (a->fields && !memcmp(a->own, own, sizeof a->own)) return a;
    for (a = me->agreed; a < end && a->fields;) a++;
    if (a == end && !is_captured && memoi_nccl_is_done(me)) {
        memoi_nccl_watch_agreed(me);
        for (int k = MEMOI_NCCL_AGREED - 1; k >= 0; k--) {
            if (me->agreed[k].is_captured) continue;
            a = &me->agreed[k];
            a->fields = NULL;
        }
    }
    if (a < end) {
        memcpy(a->own, own, sizeof a->own);
        memcpy(a->maxima, own, sizeof a->maxima);
    }
    return a;
}

/* The mutex is held, in an open group of NCCL.  A few bytes go with its operations. */
MEMOI ncclResult_t memoi_nccl_agree(memoi_nccl* me, cudaStream_t stream) {
    const memo_label* label = &me->table.label;
    const int is_captured = memoi_nccl_is_captured(stream);
    int32_t own[MEMOI_NCCL_DIGESTS];
    memoi_nccl_agreed* a;
    if (!label->is_first || me->table.size == 1) return ncclSuccess;
    for (int32_t k = 0; k < MEMO_LABEL_FIELDS; k++) {
        own[k] = (int32_t)label->digests[k];
        own[MEMO_LABEL_FIELDS + k] = ~own[k];
    }
    a = memoi_nccl_place_agreed(me, own, is_captured);
    a->fields = label->fields;
    a->is_captured |= is_captured;
    return ncclAllReduce(a == me->agreed + MEMOI_NCCL_AGREED ? a->own : a->maxima, a->maxima,
                         MEMOI_NCCL_DIGESTS, ncclInt32, ncclMax, me->comm, stream);
}

/* --- messages and collectives --- */

/* The mutex is held. */
MEMOI ncclResult_t memoi_nccl_issue(memoi_nccl* me, cudaStream_t stream,
                                    const memo_message_call* calls, int32_t n) {
    ncclResult_t result = ncclSuccess;
    const memo_message_call* m;
    for (m = calls; m < calls + n && (result == ncclSuccess || result == ncclInProgress); m++) {
        ncclDataType_t type = memoi_nccl_types[m->type];
        size_t count = (size_t)m->count;
        result = m->is_send ? ncclSend(m->address, count, type, m->peer, me->comm, stream)
                            : ncclRecv(m->address, count, type, m->peer, me->comm, stream);
    }
    return result;
}

/* The mutex is held. */
MEMOI ncclResult_t memoi_nccl_enqueue(memoi_nccl* me, cudaStream_t stream,
                                      const memo_collective_call* call) {
    size_t count = (size_t)call->count;
    ncclDataType_t type = memoi_nccl_types[call->type];
    ncclRedOp_t op = call->reduction == MEMO_REDUCTION_SUM ? ncclSum : ncclMax;
    switch (call->kind) {
    case MEMO_COLLECTIVE_ALL_REDUCE:
        return ncclAllReduce(call->from, call->to, count, type, op, me->comm, stream);
    case MEMO_COLLECTIVE_ALL_GATHER:
        return ncclAllGather(call->from, call->to, count, type, me->comm, stream);
    case MEMO_COLLECTIVE_REDUCE_SCATTER:
        return ncclReduceScatter(call->from, call->to, count, type, op, me->comm, stream);
    case MEMO_COLLECTIVE_BROADCAST:
        return ncclBroadcast(call->from, call->to, count, type, call->root, me->comm, stream);
    case MEMO_COLLECTIVE_BARRIER:
    case MEMO_N_COLLECTIVES: break;
    }
    /* NCCL has no barrier; the reduction of one number serves. */
    return ncclAllReduce(me->barrier_word, me->barrier_word, 1, ncclInt32, ncclMax, me->comm,
                         stream);
}

/* Enqueues a collective or, if call is NULL, messages. */
MEMOI memo_status memoi_nccl_run(memoi_nccl* me, memo_stream on, const memo_collective_call* call,
                                 const memo_message_call* messages, int32_t n, memo_error* error) {
    static const char* const names[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                        "barrier"};
    MEMOB_TABLE_OF(MEMO_N_COLLECTIVES, names);
    const cudaStream_t stream = memo_cuda_stream(on);
    ncclResult_t result = ncclSuccess, ended;
    memo_status status;
    pthread_mutex_lock(&me->world->mutex);
    if (memoi_nccl_is_usable(me)) result = memoi_nccl_order(me, stream);
    if (memoi_nccl_is_usable(me) && result == ncclSuccess) result = ncclGroupStart();
    if (memoi_nccl_is_usable(me) && result == ncclSuccess) {
        result = memoi_nccl_agree(me, stream);
        if (result == ncclSuccess || result == ncclInProgress)
            result = call ? memoi_nccl_enqueue(me, stream, call)
                          : memoi_nccl_issue(me, stream, messages, n);
        ended = ncclGroupEnd();
        if (result == ncclSuccess || result == ncclInProgress) result = ended;
    }
    pthread_mutex_unlock(&me->world->mutex);
    status = memoi_nccl_finish(me, call ? names[call->kind] : "a group", result, error);
    if (!status) memoi_nccl_mark(me, stream);
    return status;
}

MEMOI memo_status memoi_nccl_messages(memo_comm* comm, memo_stream stream,
                                      const memo_message_call* calls, int32_t n,
                                      memo_error* error) {
    return memoi_nccl_run((memoi_nccl*)comm->context, stream, NULL, calls, n, error);
}

MEMOI memo_status memoi_nccl_collective(memo_comm* comm, memo_stream stream,
                                        const memo_collective_call* call, memo_error* error) {
    return memoi_nccl_run((memoi_nccl*)comm->context, stream, call, NULL, 0, error);
}

/* --- creating, splitting and destroying --- */

MEMOI void memoi_nccl_world_destroy(memoi_nccl_world* world) {
    pthread_mutex_lock(&world->mutex);
    world->is_ending = 1;
    pthread_mutex_unlock(&world->mutex);
    pthread_join(world->watchdog, NULL);
    pthread_mutex_destroy(&world->mutex);
    MEMO_FREE(world);
}

MEMOI memo_status memoi_nccl_world_make(const memo_comm_nccl_desc* desc, memoi_nccl_world** result,
                                        memo_error* error) {
    memoi_nccl_world* world = (memoi_nccl_world*)memob_calloc(1, sizeof *world);
    int version = 0;
    const char* is_implicit;
    *result = NULL;
    if (!world) return memob_no_memory(error, "a world of communicators");
    world->desc = *desc;
    snprintf(world->host, sizeof world->host, "%s", desc->host ? desc->host : "");
    if (!(desc->join_timeout_s > 0)) world->desc.join_timeout_s = 120;
    if (!(desc->timeout_s > 0)) world->desc.timeout_s = 600;
    (void)cudaGetDevice(&world->gpu);

    /* Order of communicators: NCCL's, or by events.  NCCL reads the variable at its first use. */
    if (ncclGetVersion(&version) != ncclSuccess) version = 0;
    if (version >= NCCL_VERSION(2, 26, 0)) setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    is_implicit = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    world->orders_by_events =
        version < NCCL_VERSION(2, 26, 0) || !is_implicit || strcmp(is_implicit, "1") != 0;

    pthread_mutex_init(&world->mutex, NULL);
    if (memob_thread_create(&world->watchdog, 0, memoi_nccl_watchdog, world)) {
        pthread_mutex_destroy(&world->mutex);
        MEMO_FREE(world);
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                              "comm_nccl: no thread for the watchdog");
    }
    *result = world;
    return MEMO_STATUS_OK;
}

/* The last communicator takes the world with it. */
MEMOI void memoi_nccl_destroy(memo_comm* comm) {
    memoi_nccl *me = (memoi_nccl*)comm->context, **link;
    memoi_nccl_world* world = me->world;
    ncclResult_t result = ncclSuccess;
    int is_last;

    /* Finish what is under way with the peers. */
    pthread_mutex_lock(&world->mutex);
    if (memoi_nccl_is_usable(me)) result = ncclCommFinalize(me->comm);
    pthread_mutex_unlock(&world->mutex);
    (void)memoi_nccl_finish(me, "destroy", result, NULL);

    /* Leave the world; after a failure the watchdog aborts it first. */
    pthread_mutex_lock(&world->mutex);
    while (me->comm && world->failure.status) {
        pthread_mutex_unlock(&world->mutex);
        memoi_nccl_nap(1);
        pthread_mutex_lock(&world->mutex);
    }
    for (link = &world->comms; *link && *link != me;) link = &(*link)->next;
    if (*link) *link = me->next;
    if (world->latest == me) world->latest = NULL;
    is_last = !world->comms;
    if (me->comm) (void)ncclCommDestroy(me->comm);
    pthread_mutex_unlock(&world->mutex);

    if (is_last) memoi_nccl_world_destroy(world);
    if (me->done) (void)cudaEventDestroy(me->done);
    (void)cudaFree(me->barrier_word);
    (void)cudaFreeHost(me->agreed);
    MEMO_FREE(me);
}

MEMOI memo_status memoi_nccl_split(memo_comm* comm, int32_t color, int32_t key, const char* name,
                                   memo_comm** part, memo_error* error);

MEMOI int64_t memoi_nccl_free_bytes(void) {
    size_t free_bytes = 0, total_bytes = 0;
    return cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess ? (int64_t)free_bytes : 0;
}

/* Everything except NCCL's communicator. */
MEMOI memo_status memoi_nccl_make(const char* prefix, const char* name, memoi_nccl_world* world,
                                  memoi_nccl** result, memo_error* error) {
    memoi_nccl* me = (memoi_nccl*)memob_calloc(1, sizeof *me);
    const size_t agreed_bytes = (MEMOI_NCCL_AGREED + 1) * sizeof *me->agreed;
    const int64_t free_bytes = memoi_nccl_free_bytes();
    memo_comm* table;
    void* agreed = NULL;
    *result = NULL;
    if (!me) return memob_no_memory(error, "a communicator");
    if (cudaMalloc(&me->barrier_word, 512) != cudaSuccess ||
        cudaMemset(me->barrier_word, 0, 512) != cudaSuccess ||
        cudaHostAlloc(&agreed, agreed_bytes, cudaHostAllocDefault) != cudaSuccess ||
        cudaEventCreateWithFlags(&me->done, cudaEventDisableTiming) != cudaSuccess) {
        (void)cudaFree(me->barrier_word);
        (void)cudaFreeHost(agreed);
        MEMO_FREE(me);
        return memo_error_set(
            error, MEMO_STATUS_DEVICE,
            "comm_nccl: no 512 bytes and no event on the device, or no pinned 5 KB: %s",
            cudaGetErrorString(cudaGetLastError()));
    }

    me->creation_bytes = free_bytes;
    me->agreed = (memoi_nccl_agreed*)memset(agreed, 0, agreed_bytes);
    for (int k = 0; k < MEMOI_NCCL_DIGESTS; k++) me->agreed[MEMOI_NCCL_AGREED].own[k] = INT32_MIN;
    snprintf(me->name, sizeof me->name, "%s%s", prefix, name);
    table = &me->table;
    table->name = me->name;
    table->context = me;
    table->split = memoi_nccl_split;
    table->destroy = memoi_nccl_destroy;
    table->messages = memoi_nccl_messages;
    table->waiting = me->messages;
    table->max_waiting = MEMOI_NCCL_MESSAGES;
    table->collective = memoi_nccl_collective;
    table->abort = memoi_nccl_abort;
    table->status = memoi_nccl_status;

    /* The watchdog finds the communicator in the list of its world. */
    me->world = world;
    pthread_mutex_lock(&world->mutex);
    me->next = world->comms;
    world->comms = me;
    pthread_mutex_unlock(&world->mutex);
    *result = me;
    return MEMO_STATUS_OK;
}

/* Waits until a communicator is ready, and takes the rank and size that NCCL gives.  Destroys the
 * communicator after a failure, of status or of NCCL, and if the rank is in no part. */
MEMOI memo_status memoi_nccl_join(memoi_nccl* me, const char* what, ncclResult_t result,
                                  memo_comm** comm, memo_status status, memo_error* error) {
    if (!status) status = memoi_nccl_finish(me, what, result, error);
    if (!status) {
        pthread_mutex_lock(&me->world->mutex);
        if (memoi_nccl_is_usable(me)) {
            result = ncclCommUserRank(me->comm, &me->table.rank);
            if (result == ncclSuccess) result = ncclCommCount(me->comm, &me->table.size);
        }
        status = memoi_nccl_look(me, what, result, NULL, error);
        pthread_mutex_unlock(&me->world->mutex);
    }
    if (status || !me->comm) {
        memoi_nccl_destroy(&me->table);
        return status;
    }
    me->creation_bytes -= memoi_nccl_free_bytes();
    *comm = &me->table;
    return MEMO_STATUS_OK;
}

MEMOI ncclConfig_t memoi_nccl_config(void) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.splitShare = 1; /* parts use the buffers and connections of their world */
    return config;
}

/* First the parent is in progress, until the child's handle exists; then the child, until it is
 * ready.  The watchdog sees the child's handle only then. */
MEMOI memo_status memoi_nccl_split(memo_comm* comm, int32_t color, int32_t key, const char* name,
                                   memo_comm** part, memo_error* error) {
    memoi_nccl *me = (memoi_nccl*)comm->context, *child;
    ncclConfig_t config = memoi_nccl_config();
    ncclResult_t result = ncclSuccess;
    memo_status status = memoi_nccl_status(comm, error);
    *part = NULL;
    if (!status) status = memoi_nccl_make("nccl ", name ? name : "part", me->world, &child, error);
    if (status) return status;

    pthread_mutex_lock(&me->world->mutex);
    if (memoi_nccl_is_usable(me))
        result = ncclCommSplit(me->comm, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &me->part,
                               &config);
    pthread_mutex_unlock(&me->world->mutex);
    status = memoi_nccl_finish(me, "split", result, error);
    pthread_mutex_lock(&me->world->mutex);
    if (!status && memoi_nccl_is_usable(me)) { /* otherwise the watchdog aborts the part */
        child->comm = me->part;
        me->part = NULL;
    }
    pthread_mutex_unlock(&me->world->mutex);
    return memoi_nccl_join(child, "split", ncclSuccess, part, status, error);
}

/* Rank and size of the desc, or of the environment. */
MEMOI memo_status memoi_nccl_place(const memo_comm_nccl_desc* desc, int32_t* rank, int32_t* size,
                                   memo_error* error) {
    int64_t r = desc->rank, n = desc->size;
    memo_status status = MEMO_STATUS_OK;
    if (n == 0) {
        status = memoi_nccl_environment_number("RANK", &r, error);
        if (!status) status = memoi_nccl_environment_number("WORLD_SIZE", &n, error);
        if (status) return status;
    }
    if (n < 1 || n > INT32_MAX || r < 0 || r >= n)
        return MEMOB_INVALID(
            error, "memo_comm_nccl_desc: rank %lld of %lld is invalid; ranks are 0 to size - 1",
            (long long)r, (long long)n);
    *rank = (int32_t)r;
    *size = (int32_t)n;
    return MEMO_STATUS_OK;
}

memo_status memo_comm_create_nccl(const memo_comm_nccl_desc* desc, memo_comm** comm,
                                  memo_error* error) {
    ncclConfig_t config = memoi_nccl_config();
    ncclUniqueId id;
    ncclComm_t made = NULL;
    ncclResult_t result;
    memoi_nccl_world* world;
    memoi_nccl* me;
    int32_t rank = 0, size = 0;
    int is_named = 0;
    memo_status status;
    *comm = NULL;
    status = memoi_nccl_place(desc, &rank, &size, error);
    if (!status) status = memoi_nccl_world_make(desc, &world, error);
    if (status) return status;
    world->desc.rank = rank; /* for errors */
    status = memoi_nccl_share_id(desc, size, &id, &is_named, error);
    if (!status)
        status = memoi_nccl_make("", desc->name ? desc->name : "nccl world", world, &me, error);

    if (status) {
        memoi_nccl_world_destroy(world);
    } else {
        me->table.rank = rank;
        me->table.size = size;
        result = ncclCommInitRankConfig(&made, (int)size, id, (int)rank, &config);
        pthread_mutex_lock(&world->mutex);
        me->comm = made;
        pthread_mutex_unlock(&world->mutex);
        if (!made)
            status = memo_error_set(error, MEMO_STATUS_COMM, "ncclCommInitRankConfig: %s; %.300s",
                                    ncclGetErrorString(result), ncclGetLastError(NULL));
        status = memoi_nccl_join(me, "joining", result, comm, status, error);
    }
    if (is_named) unsetenv("NCCL_COMM_ID"); /* a later world may meet elsewhere */
    return status;
}

/* --- memory --- */

int64_t memo_comm_nccl_get_device_bytes(memo_comm* comm) {
    memoi_nccl* me = (memoi_nccl*)comm->context;
    int64_t n_bytes = me->creation_bytes > 0 ? me->creation_bytes : 0;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0)
    uint64_t reported = 0;
    pthread_mutex_lock(&me->world->mutex);
    if (memoi_nccl_is_usable(me) &&
        ncclCommMemStats(me->comm, ncclStatGpuMemTotal, &reported) == ncclSuccess)
        n_bytes = (int64_t)reported;
    pthread_mutex_unlock(&me->world->mutex);
#endif
    return n_bytes;
}
