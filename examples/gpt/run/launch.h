/* launch.h - the place of this process among the ranks that torchrun, mpirun or Slurm's srun
 * started: its rank, the number of ranks, its number on this host, and where rank 0 is.
 *
 * All of it is in the environment. */
#ifndef TRAIN_LAUNCH_H
#define TRAIN_LAUNCH_H

#include <stdint.h>
#include "memo.h"

/* A launcher: the variables that it sets, and the words that start n processes. */
typedef struct train_launcher {
    const char *name, *start;
    const char *rank, *size, *local_rank, *local_size;
    const char* mark; /* another variable that a rank has; NULL: none */
} train_launcher;

/* In this order: inside a Slurm job a process of mpirun has Slurm's variables too, those of another
 * process, and with srun --mpi=pmi2 it has PMI's, without a local rank.  A batch script has
 * SLURM_PROCID, but is no rank of a step. */
extern const train_launcher train_launchers[];

/* The place of this process among those that were started together. */
typedef struct train_launch {
    const train_launcher* launcher;
    int64_t rank, size, local_rank; /* size 0: started alone, and its ranks are threads */
} train_launch;
extern train_launch train_place;

/* Fills in train_place.  Sets MASTER_ADDR and MASTER_PORT, where the ranks meet, unless they are
 * set.  Errors: INVALID_ARGUMENT. */
memo_status train_launch_read(memo_error* error);

#endif
