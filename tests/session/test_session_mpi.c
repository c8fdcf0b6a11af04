/* test_session_mpi.c - sessions of several processes agree by MPI_Allreduce, as the header of
 * memo_plan.h shows.  make -f .ci/checks.mk test-mpi runs it:
 *
 *   mpicc -std=c99 -I. -Itests/support tests/session/test_session_mpi.c -o test_session_mpi -lpthread -lm
 *   mpirun --allow-run-as-root --oversubscribe -n 4 ./test_session_mpi [NAME] [--seed N]
 */
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#include "memo_plan.h"
#include "extras/memo_look.h"
#include "mpi_test.h"

#include "session_ranks.h"

static memo_status agree(MEMO_UNUSED void* user, int64_t* values, int64_t n, memo_error* error) {
    return MPI_Allreduce(MPI_IN_PLACE, values, (int)n, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD)
               ? memo_error_set(error, MEMO_STATUS_COMM, "MPI_Allreduce failed")
               : MEMO_STATUS_OK;
}

TEST(sessions_agree_over_mpi) {
    session_rank rank = {.agree = agree, .rank = mpi_rank, .n_ranks = mpi_size};
    session_ranks_agree(&rank);
    mpi_test_count_failures();
}
