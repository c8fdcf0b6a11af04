/* test_sp_attention_mpi.c - attention over ring x ulysses ranks on MPI (examples/comm_mpi.h), with
 * a process per rank.  make -f .ci/checks.mk test-mpi runs it:
 *
 *   mpicc -std=c99 -I. -Iexamples -Itests/support tests/sp/test_sp_attention_mpi.c \
 *         -o test_sp_attention_mpi -lpthread -lm
 *   mpirun --allow-run-as-root --oversubscribe -n 4 ./test_sp_attention_mpi [NAME] [--seed N]
 *
 * Every rank has the same inputs. */
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include "mpi_test.h"

#include "comm_mpi.h"
#include "sp_attention_cases.h"

static int world_run(world* all) {
    memo_host_device_desc desc = {0};
    memo_device* device;
    memo_stream stream;
    memo_comm* comm;
    memo_error error;
    if (mpi_size > 16) MPI_Abort(MPI_COMM_WORLD, 1);
    CHECK_OK(memo_host_device_create(&desc, &device, &error));
    CHECK_OK(memo_stream_create(device, "compute", 0, &stream, &error));
    /* Some cases in debug mode. */
    CHECK_OK(comm_mpi_create(MPI_COMM_WORLD, device, 60, all->c->sends_again, &comm, &error));
    all->is_alone = 1;
    all->own_rank = mpi_rank;
    (void)rank_run(all, mpi_rank, device, stream, comm, &error);
    memo_comm_destroy(comm);
    memo_host_device_destroy(device);
    return !all->results[mpi_rank].status;
}

/* A failure anywhere is one of the test. */
static void count_failures(void) {
    mpi_test_count_failures();
    report_worst();
}

TEST(every_way_to_split_the_ranks_is_exact) {
    int sharding, k = 0;
    for (int32_t ring = 1; ring <= mpi_size; ring++) {
        if (mpi_size % ring) continue;
        for (sharding = 0; sharding < 2; sharding++, k++) {
            attention_case c = case_of(ring, mpi_size / ring, 77, 8, k % 2 ? 2 : 8, 32);
            c.sharding = (memo_sharding_kind)sharding;
            c.mask = k % 3 == 1 ? MEMO_MASK_FULL : MEMO_MASK_CAUSAL;
            c.window = k % 4 == 2 ? 9 : 0;
            c.n_batch = 1 + k % 2;
            c.sends_again = k % 2;
            c.ulysses_groups = k % 3;
            settle_groups(&c);
            expect_exact(&c);
        }
    }
    count_failures();
}

TEST(packed_documents_and_16_bit_types_are_right) {
    static const int64_t begins[] = {0, 5, 5, 60, 77};
    for (int type = 0; type < 2; type++) {
        attention_case c =
            case_of(mpi_size % 2 ? mpi_size : mpi_size / 2, mpi_size % 2 ? 1 : 2, 77, 6, 3, 32);
        c.type = type ? MEMO_TYPE_BF16 : MEMO_TYPE_F32;
        memcpy(c.document_begins, begins, sizeof begins);
        c.n_documents = 4;
        c.has_sinks = 1;
        expect_close(&c, 2e-3, 3e-3, NULL);
    }
    count_failures();
}

/* Answers that share prompts, and a ring over two nodes, whose rows travel by a communicator of
 * their own beside the ring's. */
TEST(trees_and_rings_over_nodes_are_right) {
    static const int64_t begins[] = {0, 30, 41, 55, 77}, parents[] = {-1, 0, 0, 2};
    for (int k = 0; k < 8; k++) {
        attention_case c = case_of(mpi_size, 1, 77, 6, 3, 32);
        c.nodes = mpi_size % 2 || k % 4 == 0 ? 0 : 2;
        c.sharding = k % 2 ? MEMO_SHARDING_DOCUMENTS : MEMO_SHARDING_ZIGZAG;
        c.n_batch = 1 + k / 4;
        c.rounds_gradients = k % 3 == 0;
        memcpy(c.document_begins, begins, sizeof begins);
        memcpy(c.parents, parents, sizeof parents);
        c.n_documents = 4;
        c.has_tree = k % 4 != 2;
        expect_exact(&c);
    }
    count_failures();
}

/* Not in debug mode: the labels at the begin of a pass tell. */
TEST(ranks_that_disagree_are_refused) {
    static const char* const fields[] = {"scale", "masks", "rounds_gradients", "ulysses_groups"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        for (int is_ring = 0; is_ring < 2; is_ring++) {
            disagreement one = {fields[i],
                                is_ring ? mpi_size : 1,
                                is_ring ? 1 : mpi_size,
                                MEMO_SHARDING_ZIGZAG,
                                mpi_size > 1 ? mpi_size - 1 : -1,
                                0};
            memo_host_device_desc desc = {0};
            memo_device* device;
            memo_comm* comm;
            memo_stream stream;
            memo_error error;
            if (!disagreement_is_possible(&one)) continue;
            CHECK_OK(memo_host_device_create(&desc, &device, &error));
            CHECK_OK(memo_stream_create(device, "compute", 0, &stream, &error));
            CHECK_OK(comm_mpi_create(MPI_COMM_WORLD, device, 60, 0, &comm, &error));
            disagreement_run(&one, device, stream, comm);
            memo_comm_destroy(comm);
            memo_host_device_destroy(device);
        }
    count_failures();
}
