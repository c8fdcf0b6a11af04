#include "gpt/kernels/threads.h"

#include <pthread.h>
#include <stdint.h>

enum {
    GPT_THREADS_MAX = 16,
    GPT_SPINS = 300 /* tries before a thread sleeps: it mostly waits for microseconds */
};

typedef struct gpt_job {
    gpt_work work;
    const void* args;
    int64_t begin, end, unit; /* pieces end at multiples of unit, and at end */
    int64_t next;             /* the next piece to take */
} gpt_job;

typedef struct gpt_pool {
    pthread_mutex_t owner; /* held by the stream that uses the helpers */
    pthread_mutex_t mutex; /* protects all fields below but job.next */
    pthread_cond_t begins, ends;
    pthread_t threads[GPT_THREADS_MAX];
    int n_threads, n_busy, is_over;
    uint64_t generation; /* counts operations */
    gpt_job job;
} gpt_pool;

static gpt_pool gpt_helpers = {PTHREAD_MUTEX_INITIALIZER,
                               PTHREAD_MUTEX_INITIALIZER,
                               PTHREAD_COND_INITIALIZER,
                               PTHREAD_COND_INITIALIZER,
                               {0},
                               0,
                               0,
                               0,
                               0,
                               {NULL, NULL, 0, 0, 0, 0}};

static inline void gpt_pause(void) {
#if defined(__i386__) || defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Takes pieces until none remains. */
static void gpt_take_pieces(gpt_job* job) {
    const int64_t first = job->begin / job->unit, n = (job->end - 1) / job->unit - first + 1;
    int64_t i;
    while ((i = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED)) < n) {
        const int64_t from = (first + i) * job->unit, to = from + job->unit;
        job->work(job->args, from > job->begin ? from : job->begin, to < job->end ? to : job->end);
    }
}

static void* gpt_help(void* argument) {
    gpt_pool* pool = (gpt_pool*)argument;
    uint64_t seen = 0;
    for (;;) {
        for (int i = 0;
             i < GPT_SPINS && __atomic_load_n(&pool->generation, __ATOMIC_RELAXED) == seen; i++)
            gpt_pause();
        pthread_mutex_lock(&pool->mutex);
        while (pool->generation == seen && !pool->is_over)
            pthread_cond_wait(&pool->begins, &pool->mutex);
        if (pool->is_over) break;
        seen = pool->generation;
        pthread_mutex_unlock(&pool->mutex);
        gpt_take_pieces(&pool->job);
        pthread_mutex_lock(&pool->mutex);
        if (__atomic_sub_fetch(&pool->n_busy, 1, __ATOMIC_RELAXED) == 0)
            pthread_cond_signal(&pool->ends);
        pthread_mutex_unlock(&pool->mutex);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

void gpt_helpers_end(void) {
    gpt_pool* pool = &gpt_helpers;
    pthread_mutex_lock(&pool->mutex);
    pool->is_over = 1;
    pthread_cond_broadcast(&pool->begins);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < pool->n_threads; i++) pthread_join(pool->threads[i], NULL);
    pool->n_threads = pool->is_over = 0;
    pool->generation = 0;
}

void gpt_helpers_begin(int n_threads) {
    gpt_pool* pool = &gpt_helpers;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes)) return;
    pthread_attr_setstacksize(&attributes, 8 << 20); /* as streams have, also under `ulimit -s` */
    while (pool->n_threads < n_threads - 1 && pool->n_threads < GPT_THREADS_MAX &&
           pthread_create(&pool->threads[pool->n_threads], &attributes, gpt_help, pool) == 0)
        pool->n_threads++;
    pthread_attr_destroy(&attributes);
}

void gpt_over(gpt_work work, const void* args, int64_t begin, int64_t end, int64_t unit) {
    gpt_job job = {work, args, begin, end, unit, 0};
    gpt_pool* pool = &gpt_helpers;
    if (begin >= end) return;

    /* Works alone if there is nothing to share, if there are no helpers, or while another stream
     * uses them. */
    if ((end - 1) / unit == begin / unit || !pool->n_threads ||
        pthread_mutex_trylock(&pool->owner)) {
        gpt_take_pieces(&job);
        return;
    }

    pthread_mutex_lock(&pool->mutex);
    pool->job = job;
    __atomic_store_n(&pool->n_busy, pool->n_threads, __ATOMIC_RELAXED);
    __atomic_add_fetch(&pool->generation, 1, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&pool->begins);
    pthread_mutex_unlock(&pool->mutex);

    gpt_take_pieces(&pool->job);

    /* All helpers have left: the next operation may write the pool. */
    for (int i = 0; i < GPT_SPINS && __atomic_load_n(&pool->n_busy, __ATOMIC_RELAXED); i++)
        gpt_pause();
    pthread_mutex_lock(&pool->mutex);
    while (pool->n_busy) pthread_cond_wait(&pool->ends, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
    pthread_mutex_unlock(&pool->owner);
}
