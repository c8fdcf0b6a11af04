/* nccl_attention.cu - attention over ring x ulysses ranks on NCCL (nccl_test.h), against the dense
 * fp64 reference.  bench/device.sh runs it:
 *
 *   nvcc -arch=native -I. -Itests/support tests/cuda/nccl_attention.cu -lnccl -o nccl_attention
 *   ./nccl_attention 4 [NAME] [--seed N] */
#include "nccl_test.h"

#include "../sp/sp_attention_cases.h"

/* The rank of this process, with the only device and communicator of its world. */
static int world_run(world* all) {
    int32_t rank = nccl_world->rank;
    memo_stream stream;
    memo_comm* comm;
    memo_error error;
    CHECK_OK(memo_stream_create(cuda_device, "compute", 0, &stream, &error));
    CHECK_OK(memo_comm_split(nccl_world, 0, rank, "case", &comm, &error));
    if (!comm) return 0;
    all->is_alone = 1;
    (void)rank_run(all, rank, cuda_device, stream, comm, &error);
    memo_comm_destroy(comm);
    (void)memo_stream_destroy(cuda_device, stream, NULL);
    return !all->results[rank].status;
}

/* Few cases, since each creates the communicators of a mesh. */
TEST(every_way_to_split_the_ranks_is_exact) {
    int32_t ring, n;
    int k = 0;
    NEED_WORLD();
    n = nccl_world->size;
    for (ring = 1; ring <= n; ring *= 2, k++) {
        attention_case c = case_of(ring, n / ring, 77, 8, k % 2 ? 2 : 8, 32);
        c.n_batch = 1 + k % 2;
        c.sends_again = k % 2;
        c.ulysses_groups = k % 3;
        settle_groups(&c);
        expect_exact(&c);
    }
    ranks_agree();
    report_worst();
}

TEST(packed_documents_and_bf16_are_right) {
    static const int64_t begins[] = {0, 5, 5, 60, 77};
    NEED_WORLD();
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        attention_case c = case_of(nccl_world->size, 1, 77, 6, 3, 32);
        c.sharding = MEMO_SHARDING_DOCUMENTS;
        c.type = is_bf16 ? MEMO_TYPE_BF16 : MEMO_TYPE_F32;
        memcpy(c.document_begins, begins, sizeof begins);
        c.n_documents = 4;
        expect_close(&c, 2e-3, 3e-3, NULL);
    }
    ranks_agree();
    report_worst();
}

TEST(the_ranks_leave) { ranks_leave(); }
