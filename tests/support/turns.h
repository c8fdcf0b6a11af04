/* turns_state.h - deterministic threads: the workers of host devices and the thread that enqueues run one
 * at a time, in an order drawn from a seed.  Include it before memo.h and its implementation.
 *
 * A thread may lose its turn where it waits or would sleep, when it has enqueued an operation, and
 * before it runs one: the points that MEMOB_TURN marks in memo.h.  Then any living thread comes
 * next.  The seed also draws which threads come seldom, as a race may need one that is far behind.
 * Nobody sleeps, so that waiting takes turns, not time.  The same seed gives the same order of all
 * operations.  turns_state.tick_ns gives these threads a clock that counts turns: a sleep then takes
 * the turns of its time, and the same seed measures the same times. */
#ifndef TURNS_H
#define TURNS_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MEMOB_TURN(event) turn_##event

/* Functions and variables are the program's own, as memo's implementation is; or they are in the
 * library of the tests, for programs that take private functions from it (tests/build.mk). */
#if !defined(MEMOI)
#define TURNS static
#elif defined(TURNS_IN_LIBRARY)
#define TURNS
#else
#define TURNS MEMOI
#endif

enum { TURNS_MAX = 64 };
struct turns_state {
    pthread_mutex_t lock;
    pthread_cond_t changed[TURNS_MAX], created;
    pthread_t threads[TURNS_MAX];
    int is_alive[TURNS_MAX], shift[TURNS_MAX], n, n_known, now;
    int64_t n_turns; /* since turns_begin */
    int64_t tick_ns; /* of a turn; 0: the real clock, and a sleep takes one turn */
    uint64_t seed, random;
    int is_on;
};
#if !defined(MEMOI) || defined(TURNS_IN_LIBRARY)
TURNS struct turns_state turns_state = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                        .created = PTHREAD_COND_INITIALIZER};
TURNS __thread int turn_me = -1; /* of other threads, which the turns leave alone */
#else
extern struct turns_state turns_state;
extern __thread int turn_me;
#endif

TURNS uint64_t turns_random(void) {
    turns_state.random = turns_state.random * 6364136223846793005u + 1442695040888963407u;
    return turns_state.random >> 24;
}
/* A thread of shift k is chosen 2^k times as seldom. */
TURNS void turns_add(int k) {
    turns_state.is_alive[k] = 1;
    turns_state.shift[k] = (int)(turns_random() % 4 * 2);
    pthread_cond_init(&turns_state.changed[k], NULL);
}
TURNS void turns_pass(int me) {
    uint64_t random;
    if (++turns_state.n_turns > 2000000) {
        printf("# turns: no thread goes on, seed %llu\n", (unsigned long long)turns_state.seed);
        fflush(stdout);
        abort();
    }
    do {
        random = turns_random();
        turns_state.now = (int)(random % (uint64_t)turns_state.n);
    } while (!turns_state.is_alive[turns_state.now] ||
             random >> 20 & ((1u << turns_state.shift[turns_state.now]) - 1));
    if (turns_state.now == me) return;
    pthread_cond_signal(&turns_state.changed[turns_state.now]);
}
TURNS void turns_await(int me) {
    while (turns_state.now != me) pthread_cond_wait(&turns_state.changed[me], &turns_state.lock);
}
TURNS int turn_waits(void) {
    if (!turns_state.is_on || turn_me < 0) return 0;
    pthread_mutex_lock(&turns_state.lock);
    turns_pass(turn_me);
    turns_await(turn_me);
    pthread_mutex_unlock(&turns_state.lock);
    return 1;
}

/* The clock of the calling thread. */
TURNS int turns_clock(clockid_t clock, struct timespec* time) {
    const int64_t now_ns = 1000000000 + turns_state.n_turns * turns_state.tick_ns;
    if (!turns_state.is_on || turn_me < 0 || !turns_state.tick_ns)
        return clock_gettime(clock, time);
    time->tv_sec = (time_t)(now_ns / 1000000000);
    time->tv_nsec = (long)(now_ns % 1000000000);
    return 0;
}
#define clock_gettime turns_clock
TURNS int turn_sleeps(int64_t until_ns) {
    int takes_turns = turn_waits();
    while (takes_turns && turns_state.tick_ns &&
           1000000000 + turns_state.n_turns * turns_state.tick_ns < until_ns)
        (void)turn_waits();
    return takes_turns;
}

/* In a new thread, which waits for its turn; its creator waits until it is there. */
TURNS int turn_begins(void) {
    if (!turns_state.is_on) return 0;
    pthread_mutex_lock(&turns_state.lock);
    if (turns_state.n == TURNS_MAX) abort();
    turn_me = turns_state.n;
    turns_state.threads[turn_me] = pthread_self();
    turns_add(turn_me);
    turns_state.n++;
    pthread_cond_signal(&turns_state.created);
    turns_await(turn_me);
    pthread_mutex_unlock(&turns_state.lock);
    return 1;
}
TURNS int turn_creates(void) {
    if (!turns_state.is_on || turn_me < 0) return 0;
    pthread_mutex_lock(&turns_state.lock);
    while (turns_state.n == turns_state.n_known)
        pthread_cond_wait(&turns_state.created, &turns_state.lock);
    turns_state.n_known++;
    pthread_mutex_unlock(&turns_state.lock);
    return 1;
}
TURNS int turn_ends(void) {
    if (!turns_state.is_on || turn_me < 0) return 0;
    pthread_mutex_lock(&turns_state.lock);
    turns_state.is_alive[turn_me] = 0;
    turns_pass(turn_me);
    pthread_mutex_unlock(&turns_state.lock);
    turn_me = -1;
    return 1;
}
/* Until the thread has ended: a join would keep the turn. */
TURNS int turn_joins(pthread_t thread) {
    int k = turns_state.n - 1;
    if (!turns_state.is_on || turn_me < 0) return 0;
    while (k > 0 && !(turns_state.is_alive[k] && pthread_equal(turns_state.threads[k], thread)))
        k--;
    while (k > 0 && turns_state.is_alive[k]) (void)turn_waits();
    return 1;
}

/* From here on threads that begin take turns with the calling thread, until turns_end; devices are
 * made and destroyed between the two. */
TURNS void turns_begin(uint64_t seed) {
    turns_state.seed = turns_state.random = seed;
    turns_state.n = turns_state.n_known = 1;
    turns_state.now = turn_me = 0;
    turns_state.n_turns = 0;
    turns_add(0);
    turns_state.is_on = 1;
}
TURNS void turns_end(void) {
    turns_state.is_on = 0;
    turn_me = -1;
}

#endif
