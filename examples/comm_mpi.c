/* comm_mpi.c - uses a memo_comm over MPI (comm_mpi.h).
 *
 * Every rank sends its number to the next rank, and sums the numbers of all ranks and of its half
 * of a mesh.
 *
 * Build:
 *     mpicc -std=c99 -O2 -I. examples/comm_mpi.c -o comm_mpi -lpthread -lm
 * Run:
 *     mpirun -n 4 ./comm_mpi
 * Expected output, in any order:
 *     rank 0 of 4: the one before is 3, the sum is 6, of my half 2
 *     rank 1 of 4: the one before is 0, the sum is 6, of my half 4
 *     rank 2 of 4: the one before is 1, the sum is 6, of my half 2
 *     rank 3 of 4: the one before is 2, the sum is 6, of my half 4
 */
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"

#if defined(__has_include)
#if !__has_include(<mpi.h>)
#define WITHOUT_MPI
#endif
#endif

#ifdef WITHOUT_MPI
int main(void) {
    printf("mpi.h was not found: build with mpicc (Debian: libopenmpi-dev)\n");
    return 0;
}
#else
#include "comm_mpi.h"
#include <stdio.h>

static memo_status work(memo_comm* comm, memo_device* device, memo_stream stream,
                        memo_error* error) {
    int32_t next = (comm->rank + 1) % comm->size;
    int32_t previous = (comm->rank + comm->size - 1) % comm->size;
    int64_t mine = comm->rank, before = -1, sum = -1, half_sum = -1;
    memo_mesh_desc desc = {0};
    memo_mesh* mesh;
    memo_status status;
    desc.ulysses = comm->size % 2 ? 1 : 2;
    desc.ring = comm->size / desc.ulysses;

    status = memo_mesh_create(comm, &desc, &mesh, error);
    if (status) return status;
    /* All of this is enqueued at once; the stream runs it in order. */
    if (memo_group_begin(comm, error) ||
        memo_send(comm, stream, &mine, 1, MEMO_TYPE_I64, next, error) ||
        memo_receive(comm, stream, &before, 1, MEMO_TYPE_I64, previous, error) ||
        memo_group_end(comm, stream, error) ||
        memo_all_reduce(comm, stream, &mine, &sum, 1, MEMO_TYPE_I64, MEMO_REDUCTION_SUM, error) ||
        memo_all_reduce(mesh->ring, stream, &mine, &half_sum, 1, MEMO_TYPE_I64, MEMO_REDUCTION_SUM,
                        error) ||
        memo_stream_synchronize(device, stream, error))
        return error->status; /* MPI may still use the mesh, so it is not destroyed */

    memo_mesh_destroy(mesh);
    printf("rank %d of %d: the one before is %lld, the sum is %lld, of my half %lld\n",
           (int)comm->rank, (int)comm->size, (long long)before, (long long)sum,
           (long long)half_sum);
    return MEMO_STATUS_OK;
}

int main(int argc, char** argv) {
    memo_host_device_desc desc = {0};
    memo_device* device = NULL;
    memo_stream stream;
    memo_comm* comm;
    memo_error error;
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    if (memo_host_device_create(&desc, &device, &error) ||
        memo_stream_create(device, "comm", 0, &stream, &error) ||
        comm_mpi_create(MPI_COMM_WORLD, device, 30, 1, &comm, &error) ||
        work(comm, device, stream, &error)) {
        fprintf(stderr, "comm_mpi: %s\n", error.message);
        MPI_Abort(MPI_COMM_WORLD, 1);
        return 1;
    }
    memo_comm_destroy(comm);
    memo_host_device_destroy(device);
    MPI_Finalize();
    return 0;
}
#endif
