/* ranks.h - the trainer on several ranks: the number of each kind, their start, and the
 * share of each rank.
 *
 * A rank is a thread of this process with its own host device.  Compiled with -DTRAIN_MPI, it is a
 * process that mpirun started (comm_mpi.h).  On GPUs (-DTRAIN_CUDA) it is a process that torchrun,
 * mpirun or srun started, with messages over NCCL if compiled with -DMEMO_CUDA_NCCL.  Only the
 * creation of the communicator differs. */
#ifndef TRAIN_RANKS_H
#define TRAIN_RANKS_H

#include "gpt/model/gpt.h"
#include "gpt/run/device.h"

/* A launcher: the variables that it sets, and the words that start n processes. */
typedef struct train_launcher {
    const char *name, *start;
    const char *rank, *size, *local_rank, *local_size;
    const char* mark; /* another variable that a rank has; NULL: none */
} train_launcher;

/* The place of this process among those that were started together. */
typedef struct train_launch {
    const train_launcher* launcher;
    int64_t rank, size, local_rank; /* size 0: started alone, and its ranks are threads */
} train_launch;
extern train_launch train_place;

extern double train_timeout_s; /* --timeout: longer than one rank may lag behind another */

#if defined(TRAIN_CUDA) && defined(MEMO_CUDA_NCCL)
#define TRAIN_NCCL
#endif

/* NCCL's, of all runs: joining takes about a second.  NULL: messages do not pass through NCCL. */
extern memo_comm* train_world;

/* Returns whether this process writes the files. */
int train_is_first(void);

/* Returns whether this rank prints for its process. */
int train_rank_reports(const thread_rank* rank);

/* Takes the place of this process.  Only the first process prints, except in an emergency. */
memo_status train_ranks_begin(int* argc, char*** argv, memo_error* error);

/* With MPI the process that detects the cause ends all processes, before those that only receive
 * the error.  If all detect it, the first process does. */
int train_ranks_end(int code, memo_status status, const char* message);

#ifdef TRAIN_NCCL
void train_watch_graphs(memo_device* device);
#endif

/* NCCL's communicator serves all runs; the device of messages is the run's. */
void train_ranks_close(thread_ranks* team);

/* Opens devices and communicators for the ranks of this process. */
memo_status train_ranks_open(thread_ranks* team, const memo_host_device_desc* desc, int32_t n_ranks,
                             memo_error* error);

/* Checks that the model can be split in this way. */
memo_status train_check_ranks(train_options* o, memo_error* error);

/* Takes the largest value of all ranks, n values in host memory, and waits.  Off the training path:
 * NCCL takes memory of the device only, so the values are copied there and back.  Also for
 * memo_session_desc.agree, whose user is the rank. */
memo_status train_agree(void* user, int64_t* values, int64_t n, memo_error* error);
void print_ranks(const train_options* o);

#endif
