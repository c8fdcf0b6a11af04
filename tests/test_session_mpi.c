/* test_session_mpi.c - sessions of several processes agree by MPI_Allreduce, as the header of memo_plan.h shows.
 * make test-mpi runs it:
 *
 *   mpicc -std=c99 -I. -Itests tests/test_session_mpi.c -o test_session_mpi -lpthread -lm
 *   mpirun --allow-run-as-root --oversubscribe -n 4 ./test_session_mpi [NAME] [--seed N]
 *
 * Compiled without MPI it skips. */
#if defined(__has_include)
#if !__has_include(<mpi.h>)
#define WITHOUT_MPI
#endif
#endif

#ifdef WITHOUT_MPI
#define MEMO_IMPLEMENTATION
#include "memo.h"
#include "memo_test.h"
static void sessions_agree_over_mpi(void) {
    SKIP("mpi.h was not found: make test-mpi builds it with mpicc");
}
int main(int argc, char** argv) {
    memo_test_begin(argc, argv);
    TEST(sessions_agree_over_mpi);
    return memo_test_end();
}
#else
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_FAULTS_IMPLEMENTATION
#include "memo_plan.h"
#include "extras/memo_faults.h"
#include "memo_test.h"
#include "session_ranks.h"

#include <mpi.h>

static memo_status agree(void* user, int64_t* values, int64_t n, memo_error* error) {
    (void)user;
    return MPI_Allreduce(MPI_IN_PLACE, values, (int)n, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD)
               ? memo_error_set(error, MEMO_STATUS_COMM, "MPI_Allreduce failed")
               : MEMO_STATUS_OK;
}

static void sessions_agree_over_mpi(void) {
    session_rank rank;
    int failures = 0;
    memset(&rank, 0, sizeof rank);
    rank.agree = agree;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &rank.n_ranks);
    session_ranks_agree(&rank);
    failures = memo_test.failures;
    MPI_Allreduce(MPI_IN_PLACE, &failures, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    memo_test.failures = failures;
}

int main(int argc, char** argv) {
    int my_rank, result;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
    if (my_rank && !getenv("MEMO_TEST_ALL_RANKS") && !freopen("/dev/null", "w", stdout))
        MPI_Abort(MPI_COMM_WORLD, 1);
    memo_test_begin(argc, argv);
    TEST(sessions_agree_over_mpi);
    result = memo_test_end();
    fflush(stdout);
    MPI_Finalize();
    return result;
}
#endif
