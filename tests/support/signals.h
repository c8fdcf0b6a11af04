/* signals.h - which signals memo's threads take: none of the program's.  A thread begins with the
 * mask of the thread that creates it, so pthread_create looks at that mask.  Include this before
 * memo.h and its implementation, and memo_test.h before CHECK_SIGNALS. */
#ifndef SIGNALS_H
#define SIGNALS_H

#include <pthread.h>
#include <signal.h>

/* Threads so far; of these, threads that take a signal of the program, or block one of a fault. */
static int signals_n_threads, signals_n_wrong;

static int signals_of(const sigset_t* mask, const int* signals, int n) {
    int n_blocked = 0;
    for (int k = 0; k < n; k++) n_blocked += sigismember(mask, signals[k]) == 1;
    return n_blocked;
}

static int signals_create(pthread_t* thread, const pthread_attr_t* attributes,
                          void* (*function)(void*), void* argument) {
    static const int others[] = {SIGTERM, SIGINT,  SIGHUP,  SIGQUIT, SIGALRM, SIGUSR1,
                                 SIGUSR2, SIGCHLD, SIGPIPE, SIGPROF, SIGTSTP, SIGXFSZ};
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    __atomic_fetch_add(&signals_n_threads, 1, __ATOMIC_SEQ_CST);
    if (signals_of(&mask, others, 12) != 12 || signals_of(&mask, faults, 4) != 0)
        __atomic_fetch_add(&signals_n_wrong, 1, __ATOMIC_SEQ_CST);
    return pthread_create(thread, attributes, function, argument);
}
#define pthread_create(...) signals_create(__VA_ARGS__)

/* The statement starts n_least threads or more, all with the right mask, and leaves the calling
 * thread the mask that it had: SIGUSR2 blocked, SIGTERM open. */
#define CHECK_SIGNALS(n_least, statement)                                                          \
    do {                                                                                           \
        const int check_began = signals_n_threads, check_signals[] = {SIGUSR2, SIGTERM};           \
        sigset_t check_mask, check_before;                                                         \
        sigemptyset(&check_mask);                                                                  \
        sigaddset(&check_mask, SIGUSR2);                                                           \
        pthread_sigmask(SIG_SETMASK, &check_mask, &check_before);                                  \
        statement;                                                                                 \
        pthread_sigmask(SIG_SETMASK, &check_before, &check_mask);                                  \
        CHECK_CASE(signals_n_threads - check_began >= (n_least), "%d threads",                     \
                   signals_n_threads - check_began);                                               \
        CHECK_CASE(signals_n_wrong == 0, "%d threads take other signals", signals_n_wrong);        \
        CHECK(signals_of(&check_mask, check_signals, 1) == 1);                                     \
        CHECK(signals_of(&check_mask, check_signals + 1, 1) == 0);                                 \
    } while (0)

#endif
