#include "gpt/run/ranks.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "extras/memo_layout.h"
#ifdef TRAIN_MPI
#include "comm_mpi.h"
#endif
#include "gpt/model/layout.h"
#include "gpt/run/plan.h"
#include "gpt/show/report.h"

double train_timeout_s; /* --timeout: longer than one rank may lag behind another */

/* ---- the place of this process -------------------------------------------------------------- */

train_launch train_place;

#if defined(TRAIN_MPI) || defined(TRAIN_CUDA)
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
#endif

#ifdef TRAIN_CUDA
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

/* Fills in train_place from the environment.  Sets MASTER_ADDR and MASTER_PORT, where the ranks
 * meet, unless they are set. */
static memo_status train_launch_read(memo_error* error) {
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

/* ---- start and end -------------------------------------------------------------------------- */

memo_comm* train_world;

int train_is_first(void) { return train_place.rank == 0; }
int train_rank_reports(const thread_rank* rank) {
    return train_place.size > 0 || rank->comm->rank == 0;
}

memo_status train_ranks_begin(int* argc, char*** argv, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
#ifdef TRAIN_MPI
    int provided, rank, n;
    MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    train_place.rank = rank;
    train_place.size = n;
    train_place.launcher = &train_launchers[1]; /* mpirun */
#elif defined(TRAIN_CUDA)
    int n_gpus = 0;
    status = train_launch_read(error);
    if (cudaGetDeviceCount(&n_gpus) == cudaSuccess && n_gpus > 0)
        train_gpu = (int32_t)(train_place.local_rank % n_gpus); /* ranks take them in turn */
    (void)cudaGetLastError();                                   /* without a GPU, --dry-run works */
#endif
    (void)argc;
    (void)argv;
    if (!status && !train_is_first() && !freopen("/dev/null", "w", stdout))
        status = memo_error_set(error, MEMO_STATUS_IO, "/dev/null cannot be opened");
    return status;
}

int train_ranks_end(int code, memo_status status, const char* message) {
#ifdef TRAIN_MPI
    if (status) {
        signal(SIGTERM, SIG_DFL); /* comes when it has */
        sleep((unsigned)((train_place.rank > 0) + 2 * (status == MEMO_STATUS_COMM)));
        fprintf(stderr, "train_gpt: %s\n", message);
        MPI_Abort(MPI_COMM_WORLD, code);
    }
    MPI_Finalize();
#else
    memo_comm_destroy(train_world);
    if (status && train_place.size > 1)
        fprintf(stderr, "train_gpt: rank %d: %s\n", (int)train_place.rank, message);
    else if (status)
        fprintf(stderr, "train_gpt: %s\n", message);
#endif
    return code;
}

#ifdef TRAIN_NCCL
static void train_lose_peer(void* unused, const memo_error* why) {
    (void)unused;
    pthread_mutex_lock(&train_running_mutex);
    if (train_running) memo_cuda_device_fail(train_running, why);
    pthread_mutex_unlock(&train_running_mutex);
}

/* NCCL's own meeting passes the id, at MASTER_ADDR and the port after MASTER_PORT: every launcher's
 * environment has or allows these, no file system needs to be shared, and nothing is added to what
 * NCCL listens to anyway.  Ctrl-C ends the program while it waits for the others. */
static memo_status train_join(memo_error* error) {
    memo_comm_nccl_desc desc = MEMO_ZERO(memo_comm_nccl_desc);
    struct sigaction later, now;
    char host[101] = "";
    if (train_world) return MEMO_STATUS_OK;
    desc.rank = (int32_t)train_place.rank;
    desc.size = (int32_t)train_place.size;
    desc.timeout_s = train_timeout_s;
    if (!gethostname(host, sizeof host)) desc.host = host;
    desc.failed = train_lose_peer;
    memset(&now, 0, sizeof now);
    now.sa_handler = SIG_DFL;
    sigaction(SIGINT, &now, &later);
    memo_status status = memo_comm_create_nccl(&desc, &train_world, error);
    sigaction(SIGINT, &later, NULL);
    return status;
}

/* The watchdog does not time a replayed graph, so the wait for the step has the time-out. */
static memo_status (*train_synchronize_alone)(void* context, memo_stream stream, memo_error* error);
static memo_status train_synchronize(void* context, memo_stream stream, memo_error* error) {
    const memo_status status = memo_comm_nccl_synchronize(train_world, stream, 0, error);
    return status ? status : train_synchronize_alone(context, stream, error);
}
void train_watch_graphs(memo_device* device) {
    if (!train_world) return;
    train_synchronize_alone = device->stream_synchronize;
    device->stream_synchronize = train_synchronize;
}
#endif

void train_ranks_close(thread_ranks* team) {
#ifdef TRAIN_NCCL
    if (team->comms[0] == train_world) {
        if (team->ranks[0].stream)
            memo_stream_destroy(team->devices[0], team->ranks[0].stream, NULL);
        memo_cuda_device_destroy(team->devices[0]);
        memset(team, 0, sizeof *team);
        return;
    }
#endif
    thread_ranks_close(team);
}

#if defined(TRAIN_MPI) || defined(TRAIN_NCCL)
/* The rank of this process. */
static memo_status train_open_process(thread_ranks* team, const memo_host_device_desc* desc,
                                      memo_error* error) {
    memset(team, 0, sizeof *team);
#ifdef TRAIN_MPI
    memo_status status = memo_host_device_create(desc, &team->devices[0], error);
    if (!status)
        status = comm_mpi_create(MPI_COMM_WORLD, team->devices[0], train_timeout_s, 0,
                                 &team->comms[0], error);
#else
    memo_cuda_device_desc of_messages = MEMO_ZERO(memo_cuda_device_desc);
    of_messages.ordinal = train_gpu;
    memo_status status = memo_cuda_device_create(&of_messages, &team->devices[0], error);
    (void)desc;
    if (!status) status = train_join(error);
    team->comms[0] = train_world;
#endif
    if (!status) status = thread_ranks_prepare(team, 1, error);
    if (status) train_ranks_close(team);
    return status;
}
#endif

memo_status train_ranks_open(thread_ranks* team, const memo_host_device_desc* desc, int32_t n_ranks,
                             memo_error* error) {
    memo_comm_threads_desc threads = MEMO_ZERO(memo_comm_threads_desc);
    threads.timeout_s = train_timeout_s;
#ifdef TRAIN_MPI
    return train_open_process(team, desc, error);
#elif defined(TRAIN_NCCL)
    if (n_ranks > 1) return train_open_process(team, desc, error); /* else it needs no NCCL */
#endif
    return thread_ranks_open(team, desc, &threads, n_ranks, error);
}

/* ---- number of ranks ------------------------------------------------------------------------ */

/* Any error in the file is a mistake of the caller. */
static memo_status train_read_degrees(train_options* o, memo_error* error) {
    int32_t n_blocks = 0, largest = 1;
    memo_error reason;
    if (!o->degrees) return MEMO_STATUS_OK;
    memo_status status = memo_degrees_read(o->degrees, &o->block_degrees, &n_blocks, &reason);
    if (status == MEMO_STATUS_OUT_OF_HOST_MEMORY) return gpt_no_memory("--degrees", error);
    if (status) return gpt_invalid(error, "--degrees %s", reason.message);
    if (n_blocks != 2 * o->layers)
        return gpt_invalid(error, "--degrees %.300s: has %d blocks, but --layers %lld are %lld",
                           o->degrees, (int)n_blocks, o->layers, 2 * o->layers);

    /* The largest degree is that of the ranks. */
    for (int32_t block = 0; block < n_blocks; block++)
        if (o->block_degrees[block] > largest) largest = o->block_degrees[block];
    if (!o->tensor) o->tensor = largest;
    if (o->tensor < largest || (o->tensor & (o->tensor - 1)))
        return gpt_invalid(error,
                           "--degrees %.300s: degrees up to %d do not fit --tensor %lld; --tensor "
                           "%d does",
                           o->degrees, (int)largest, o->tensor, (int)largest);
    return MEMO_STATUS_OK;
}

/* Sets the options that are not given: tensor to 1, data to the processes that the other degrees
 * leave. */
static memo_status train_check_degrees(train_options* o, memo_error* error) {
    const int64_t n_started = train_place.size;
    if (!o->tensor) o->tensor = 1;
    const int64_t n_others = o->ring * o->ulysses * o->tensor;
    if (!o->data) o->data = n_started > n_others ? n_started / n_others : 1;
    o->ranks = o->data * n_others;
    const char* names = text_of("--data %lld x --ring %lld x --ulysses %lld x --tensor %lld",
                                o->data, o->ring, o->ulysses, o->tensor);
    if (n_started && o->ranks != n_started)
        return gpt_invalid(error, "%s are %lld ranks, but %s started %d; %s %lld would do", names,
                           o->ranks, train_place.launcher->name, (int)n_started,
                           train_place.launcher->start, o->ranks);
    if (o->ranks > THREAD_RANKS_MAX)
        return gpt_invalid(error, "%s are %lld ranks; at most %d would do", names, o->ranks,
                           (int)THREAD_RANKS_MAX);
    return MEMO_STATUS_OK;
}

memo_status train_check_ranks(train_options* o, memo_error* error) {
    memo_status status = train_read_degrees(o, error);
    if (!status) status = train_check_degrees(o, error);
    if (status) return status;
    gpt_config config = train_config(o);
    status = gpt_check_config(&config, error);
    if (status || !gpt_is_mixed(&config) || !plans_rows(o->policy)) return status;
    return gpt_invalid(error,
                       "--policy %s plans rows, and with --degrees that differ a rank has other "
                       "rows of each block; --policy keep, recompute and swap work",
                       memo_policy_name((memo_policy)o->policy));
}

/* ---- agreement between ranks ---------------------------------------------------------------- */

memo_status train_agree(void* user, int64_t* values, int64_t n, memo_error* error) {
    const thread_rank* rank = (const thread_rank*)user;
    const int64_t n_bytes = n * (int64_t)sizeof *values;
    const int is_copied = rank->comm == train_world;
    const memo_device* device = rank->device;
    void *pinned = NULL, *shared = values;
    memo_status status = MEMO_STATUS_OK;
    if (is_copied) {
        status = memo_host_alloc(device, n_bytes, &pinned, error);
        if (!status) status = memo_device_alloc(device, n_bytes, &shared, error);
        if (!status) memcpy(pinned, values, (size_t)n_bytes);
        if (!status)
            status = memo_copy(device, rank->stream, MEMO_COPY_TO_DEVICE, shared, pinned, n_bytes,
                               error);
    }
    if (!status)
        status = memo_all_reduce(rank->comm, rank->stream, shared, shared, n, MEMO_TYPE_I64,
                                 MEMO_REDUCTION_MAX, error);
    if (!status && is_copied)
        status = memo_copy(device, rank->stream, MEMO_COPY_TO_HOST, pinned, shared, n_bytes, error);

    if (memo_stream_synchronize(device, rank->stream, status ? NULL : error) && !status)
        status = MEMO_STATUS_COMM;
    if (!status) status = memo_comm_status(rank->comm, error);
    if (!status && is_copied) memcpy(values, pinned, (size_t)n_bytes);
    if (pinned && shared != values) (void)memo_device_free(device, shared, NULL);
    if (pinned) (void)memo_host_free(device, pinned, NULL);
    return status;
}

/* ---- output --------------------------------------------------------------------------------- */

void print_ranks(const train_options* o) {
    const gpt_config config = train_config(o);
    if (gpt_is_split(&config))
        printf("schedule  %s: %lld sub-batch%s of %s\n",
               memo_blocks_order_name((memo_blocks_order)o->schedule), o->sub_batches,
               o->sub_batches == 1 ? "" : "es",
               o->batch / o->data % o->sub_batches ? "the tokens of a sequence"
                                                   : "whole sequences");
    if (o->ranks > 1)
        printf("ranks     %lld: data %lld x ring %lld x ulysses %lld%s, each with %lld of %lld "
               "sequences and %lld of %lld tokens of each; ZeRO %lld\n",
               o->ranks, o->data, o->ring, o->ulysses,
               o->tensor > 1 ? text_of(" x tensor %lld", o->tensor) : "", o->batch / o->data,
               o->batch, (long long)(gpt_n_rows(&config) / (o->batch / o->data)), o->sequence,
               o->zero);
}
