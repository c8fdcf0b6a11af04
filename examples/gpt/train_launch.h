/* train_launch.h - the place of this process among the ranks that torchrun, mpirun or Slurm's srun
 * started: its rank, the number of ranks, its number on this host, and where rank 0 is.
 *
 * All of it is in the environment. */
#ifndef TRAIN_LAUNCH_H
#define TRAIN_LAUNCH_H

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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
static const train_launcher train_launchers[] = {
    {"torchrun", "torchrun --nproc-per-node", "RANK", "WORLD_SIZE", "LOCAL_RANK",
     "LOCAL_WORLD_SIZE", NULL},
    {"mpirun", "mpirun -n", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL},
    {"mpirun", "mpirun -n", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
     "MPI_LOCALRANKID"},
    {"srun", "srun -n", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
     "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_ID"},
    {"mpirun", "mpirun -n", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", NULL}};

/* The place of this process among those that were started together. */
static struct {
    const train_launcher* launcher;
    int64_t rank, size, local_rank; /* size 0: started alone, and its ranks are threads */
} train_place;

static memo_status train_launch_number(const char* name, int64_t* number, memo_error* error) {
    const char* text = getenv(name);
    char* end = NULL;
    if (!text)
        return gpt_invalid(
            error, "%s: not set in the environment, but the launcher's other variables are", name);
    errno = 0;
    *number = strtoll(text, &end, 10);
    if (errno || end == text || *end || *number < 0 || *number > INT32_MAX)
        return gpt_invalid(error, "%s: not a number of ranks in the environment ('%.100s')", name,
                           text);
    return MEMO_STATUS_OK;
}

/* Ranks on one host need no address.  Only the launcher can tell: "4(x2)" of srun is two hosts. */
static memo_status train_launch_address(const train_launcher* l, memo_error* error) {
    const char *size = getenv(l->size), *local_size = getenv(l->local_size);
    if (!getenv("MASTER_ADDR") && (!local_size || strcmp(size, local_size)))
        return gpt_invalid(error,
                           "MASTER_ADDR: not set in the environment; set it to the address of "
                           "rank 0's host");
    setenv("MASTER_ADDR", "127.0.0.1", 0);
    setenv("MASTER_PORT", "29500", 0);
    return MEMO_STATUS_OK;
}

/* Fills in train_place.  Sets MASTER_ADDR and MASTER_PORT, where the ranks meet, unless they are
 * set.  Errors: INVALID_ARGUMENT. */
static MEMO_UNUSED memo_status train_launch_read(memo_error* error) {
    const train_launcher* l = train_launchers;
    const train_launcher* end = l + sizeof train_launchers / sizeof *train_launchers;
    while (l < end && (!getenv(l->rank) || (l->mark && !getenv(l->mark)))) l++;
    if (l == end) return MEMO_STATUS_OK;

    train_place.launcher = l;
    memo_status status = train_launch_number(l->rank, &train_place.rank, error);
    if (!status) status = train_launch_number(l->size, &train_place.size, error);
    if (!status && train_place.rank >= train_place.size)
        status = gpt_invalid(error, "%s: %lld in the environment is not below %s, %lld", l->rank,
                             (long long)train_place.rank, l->size, (long long)train_place.size);
    train_place.local_rank = train_place.rank;
    if (!status && getenv(l->local_rank))
        status = train_launch_number(l->local_rank, &train_place.local_rank, error);
    return status || train_place.size == 1 ? status : train_launch_address(l, error);
}

#endif
