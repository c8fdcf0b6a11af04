#pragma once
/* ---- 2 pinned memory ----------------------------------------------------------------------------
 *
 * host_alloc is meant for an arena at start.  From 2 MiB on the call reserves addresses, takes huge
 * pages if possible (from the system's pool, then by advice), touches them by several threads near
 * the GPU, and registers them with CUDA.  It logs its progress once a second.  If registering
 * fails, the memory is freed, the reason is logged and cudaHostAlloc is used instead.
 * cudaHostAlloc is also used if kernels cannot reach registered memory by the host's addresses.
 *
 * A process's share of host memory, which host_limit guards:
 *   all it holds  must not exceed the host's memory / local_ranks
 *   a request     must not exceed the memory available now, for which processes race
 * Both numbers are the least of /proc/meminfo and of each control group (v1 or v2) from the
 * process's own up to the root.  A group's cached files count as available.  If local_ranks is 0,
 * the first of LOCAL_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_SIZE, MPI_LOCALNRANKS and
 * SLURM_NTASKS_PER_NODE that is set counts. */
