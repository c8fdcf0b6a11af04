#pragma once
#include "memo/engine.h"
/* ---- >>snapshot ---------------------------------------------------------------------------------
 * Knows: a thread that writes items one after the other, and which items it has not written yet.
 * Knows nothing of what items are, where they lie, and what changes them.
 *
 * While an item is left, its bytes at home stay as they are: a stream that would change them is
 * held by a function of the host, a thread waits.
 *
 * 1. Nobody frees a snapshot whose thread runs. */

typedef struct memob_hold {
    memo_host_call call;
    struct memob_snapshot* of;
    int32_t item;
} memob_hold;

typedef struct memob_snapshot {
    memo_status (*write)(void* user, int32_t item, memo_error* error); /* an item */
    void* user;
    memob_hold* holds; /* (n_items) */
    char* is_left;     /* (n_items): the item is not written yet */
    int32_t* order;    /* (n_order): items to write */
    int32_t n_items, n_order;
    int32_t n_left;  /* of the order */
    int32_t is_open; /* begun, and not finished */
    memo_error error;
#ifndef MEMO_NO_HOST_DEVICE
    pthread_t thread;
    int32_t has_thread;
    pthread_mutex_t mutex; /* of is_left */
    pthread_cond_t is_written;
#endif
    memob_arrays arrays;
} memob_snapshot;

MEMOI int32_t memob_snapshot_n_left(const memob_snapshot* snapshot) {
    return __atomic_load_n(&snapshot->n_left, __ATOMIC_ACQUIRE);
}

/* Waits until the item is written. */
MEMOI void memob_snapshot_wait(memob_snapshot* snapshot, int32_t item) {
    if (!memob_snapshot_n_left(snapshot)) return;
#ifndef MEMO_NO_HOST_DEVICE
    pthread_mutex_lock(&snapshot->mutex);
    while (snapshot->is_left[item]) pthread_cond_wait(&snapshot->is_written, &snapshot->mutex);
    pthread_mutex_unlock(&snapshot->mutex);
#else
    (void)item;
#endif
}

MEMOI memo_status memoi_hold_run(void* argument, memo_error* error) {
    const memob_hold* hold = (const memob_hold*)argument;
    (void)error;
    memob_snapshot_wait(hold->of, hold->item);
    return MEMO_STATUS_OK;
}

/* What is enqueued on the stream from now on waits until the item is written. */
MEMOI void memoi_snapshot_hold(memob_snapshot* snapshot, memob_engine* e, int32_t stream,
                               int32_t item) {
    int is_left = 0;
    if (!snapshot || !memob_snapshot_n_left(snapshot) || e->status) return;
#ifndef MEMO_NO_HOST_DEVICE
    pthread_mutex_lock(&snapshot->mutex);
    is_left = snapshot->is_left[item];
    pthread_mutex_unlock(&snapshot->mutex);
#endif
    if (!is_left) return;
    if (e->device.launch_host)
        e->status =
            memo_launch_host(&e->device, e->streams[stream], &snapshot->holds[item].call, e->error);
    else
        memob_snapshot_wait(snapshot, item);
}

/* Writes the items in order.  After an error the others are given up. */
MEMOI void* memoi_snapshot_run(void* argument) {
    memob_snapshot* snapshot = (memob_snapshot*)argument;
    for (int32_t k = 0; k < snapshot->n_order; k++) {
        const int32_t item = snapshot->order[k];
        memo_error* error = &snapshot->error;
        if (!error->status) error->status = snapshot->write(snapshot->user, item, error);
#ifndef MEMO_NO_HOST_DEVICE
        pthread_mutex_lock(&snapshot->mutex);
#endif
        snapshot->is_left[item] = 0;
        __atomic_fetch_sub(&snapshot->n_left, 1, __ATOMIC_RELEASE);
#ifndef MEMO_NO_HOST_DEVICE
        pthread_cond_broadcast(&snapshot->is_written);
        pthread_mutex_unlock(&snapshot->mutex);
#endif
    }
    return NULL;
}

/* Memory for a snapshot of up to n_items, once.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_snapshot_make(memob_snapshot* snapshot, int32_t n_items,
                                      memo_error* error) {
    if (snapshot->n_items) return MEMO_STATUS_OK;
    snapshot->holds = MEMOB_ARRAY(&snapshot->arrays, memob_hold, n_items);
    snapshot->is_left = MEMOB_ARRAY(&snapshot->arrays, char, n_items);
    snapshot->order = MEMOB_ARRAY(&snapshot->arrays, int32_t, n_items);
    if (snapshot->arrays.failed) {
        memob_arrays_free(&snapshot->arrays);
        return memob_no_memory(error, "a snapshot");
    }
    for (int32_t i = 0; i < n_items; i++) {
        const memob_hold hold = {{memoi_hold_run, &snapshot->holds[i], NULL}, snapshot, i};
        snapshot->holds[i] = hold;
    }
    snapshot->n_items = n_items;
#ifndef MEMO_NO_HOST_DEVICE
    pthread_mutex_init(&snapshot->mutex, NULL);
    pthread_cond_init(&snapshot->is_written, NULL);
#endif
    return MEMO_STATUS_OK;
}

/* Writes the items of the order, by a thread; without one, now. */
MEMOI void memoi_snapshot_begin(memob_snapshot* snapshot) {
    MEMO_ASSERT(!snapshot->is_open); /* 1 */
    memset(&snapshot->error, 0, sizeof snapshot->error);
    for (int32_t k = 0; k < snapshot->n_order; k++) snapshot->is_left[snapshot->order[k]] = 1;
    snapshot->n_left = snapshot->n_order;
    snapshot->is_open = 1;
#ifndef MEMO_NO_HOST_DEVICE
    snapshot->has_thread = !memob_thread_create(&snapshot->thread, 0, memoi_snapshot_run, snapshot);
    if (snapshot->has_thread) return;
#endif
    (void)memoi_snapshot_run(snapshot);
}

/* Waits for the thread.  Errors: of `write`. */
MEMOI memo_status memoi_snapshot_finish(memob_snapshot* snapshot, memo_error* error) {
    if (!snapshot->is_open) return MEMO_STATUS_OK;
#ifndef MEMO_NO_HOST_DEVICE
    if (snapshot->has_thread) pthread_join(snapshot->thread, NULL);
    snapshot->has_thread = 0;
#endif
    snapshot->is_open = 0;
    if (snapshot->error.status && error) *error = snapshot->error;
    return snapshot->error.status;
}

MEMOI void memoi_snapshot_free(memob_snapshot* snapshot) {
    MEMO_ASSERT(!snapshot->is_open); /* 1 */
#ifndef MEMO_NO_HOST_DEVICE
    if (snapshot->n_items) {
        pthread_mutex_destroy(&snapshot->mutex);
        pthread_cond_destroy(&snapshot->is_written);
    }
#endif
    memob_arrays_free(&snapshot->arrays);
}
