#include "gpt/run/launch.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gpt/model/check.h"

const train_launcher train_launchers[] = {
    {"torchrun", "torchrun --nproc-per-node", "RANK", "WORLD_SIZE", "LOCAL_RANK",
     "LOCAL_WORLD_SIZE", NULL},
    {"mpirun", "mpirun -n", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL},
    {"mpirun", "mpirun -n", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
     "MPI_LOCALRANKID"},
    {"srun", "srun -n", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
     "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_ID"},
    {"mpirun", "mpirun -n", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", NULL}};

train_launch train_place;

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

memo_status train_launch_read(memo_error* error) {
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
