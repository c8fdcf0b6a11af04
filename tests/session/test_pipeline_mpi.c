/* test_pipeline_mpi.c - a pipeline whose stages are processes: each is a session with its own
 * order, and activations and gradients are messages of MPI.  make -f .ci/checks.mk test-mpi runs it, as
 * test_session_mpi.
 */
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_CHECK_IMPLEMENTATION
#include "extras/memo_check.h"
#include "mpi_test.h"

#include "owned.h"
#include "pipeline.h"

enum { N_WIRES = 2 * P_MICRO_BATCHES_MAX * (P_LAYERS_MAX + 1) };
static MPI_Request requests[N_WIRES];

static int32_t wire_tag(int32_t is_backward, int32_t m, int32_t boundary) {
    return (is_backward * P_MICRO_BATCHES_MAX + m) * (P_LAYERS_MAX + 1) + boundary;
}

/* A send does not wait for its receiver; all are over when the step ends. */
static void send_wire(stage* s, int32_t is_backward, int32_t m, int32_t boundary) {
    const int32_t n = s->p->n_stages, to = (boundary + n - is_backward) % n;
    if (boundary == (is_backward ? 0 : n * s->p->n_chunks)) return; /* the ends */
    MPI_Isend(s->p->wires[is_backward][m][boundary], sizeof(p_rows), MPI_BYTE, to,
              wire_tag(is_backward, m, boundary), MPI_COMM_WORLD,
              &requests[wire_tag(is_backward, m, boundary)]);
}

static void receive_wire(stage* s, int32_t is_backward, int32_t m, int32_t boundary) {
    const int32_t n = s->p->n_stages, from = (boundary + n - !is_backward) % n;
    if (boundary == (is_backward ? n * s->p->n_chunks : 0)) return;
    MPI_Recv(s->p->wires[is_backward][m][boundary], sizeof(p_rows), MPI_BYTE, from,
             wire_tag(is_backward, m, boundary), MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

TEST(stages_over_mpi_give_the_gradients_of_one_rank) {
    static pipeline p;
    static stage s;
    if (mpi_size < 2 || mpi_size > P_MICRO_BATCHES_MAX / 2) {
        SKIP("a pipeline of 2 to 4 processes");
    }
    for (int32_t i = 0; i < N_WIRES; i++) requests[i] = MPI_REQUEST_NULL;
    for (int i = 0; i < 6; i++) {
        memo_session* session = NULL;
        p_random(&p, mpi_size, (int32_t)memo_test_int(1, P_CHUNKS_MAX)); /* the same everywhere */
        p_open_stage(&s, &p, mpi_rank);
        if (i % 3 == 2) p_interleaved(&s, 1000);
        s.send = send_wire;
        s.receive = receive_wire;
        s.desc.policy = i % 2 ? MEMO_POLICY_SWAP : MEMO_POLICY_RECOMPUTE;
        CHECK_OK(memo_session_create(&s.desc, &session, &error));
        for (int step = 0; step < 2 && session; step++) {
            CHECK_OK(p_step(&s, session));
            MPI_Waitall(N_WIRES, requests, MPI_STATUSES_IGNORE);
        }
        CHECK_IS(p_n_wrong(&s, 2), ==, 0);
        memo_session_destroy(session);
    }
    mpi_test_count_failures();
}
