/* mpi_test.h - what tests over MPI share: main, and a failure anywhere is one of the test.  Include
 * it instead of memo_test.h.
 *
 * Every rank runs every test; rank 0 prints, and with MEMO_TEST_ALL_RANKS in the environment the
 * others too. */
#ifndef MPI_TEST_H
#define MPI_TEST_H

#define MEMO_TEST_OWN_MAIN
#include "memo_test.h"
#include <mpi.h>

static int mpi_rank, mpi_size;

/* A failure anywhere is one of the test.  Not every test calls it: some end with a world that is
 * broken. */
static inline void mpi_test_count_failures(void) {
    MPI_Allreduce(MPI_IN_PLACE, &memo_test.failures, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
}

int main(int argc, char** argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mpi_size);
    if (mpi_rank && !getenv("MEMO_TEST_ALL_RANKS") && !freopen("/dev/null", "w", stdout))
        MPI_Abort(MPI_COMM_WORLD, 1);
    memo_test_begin(argc, argv);
    int result = memo_test_run_all();
    fflush(stdout);
    MPI_Finalize();
    return result;
}

#endif
