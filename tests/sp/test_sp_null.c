/* test_sp_null.c - NULL for an object, a desc or a result of memo_sp.h is a status that names the
 * argument, or nothing happens.  Arguments are checked before any is used, so the others are bytes
 * of no meaning. */
#include "memo.h"
#include "memo_sp.h"
#include "owned.h"

#define REFUSED(call, argument)                                                                    \
    CHECK_ERROR(call, INVALID_ARGUMENT, ": " argument ": NULL; pass one")

static int64_t bytes[512]; /* of any object */
#define ANY(type) ((type*)(void*)bytes)

/* A create call refuses both, and gives no object. */
#define CREATE_REFUSED(name)                                                                       \
    do {                                                                                           \
        memo_##name* object = ANY(memo_##name);                                                    \
        REFUSED(memo_##name##_create(NULL, &object, &error), "desc");                              \
        CHECK(!object);                                                                            \
        REFUSED(memo_##name##_create(ANY(memo_##name##_desc), NULL, &error), #name);               \
        memo_##name##_destroy(NULL);                                                               \
    } while (0)

TEST(null_objects_and_descs_are_refused) {
    memo_comm* comm = ANY(memo_comm);
    CREATE_REFUSED(blocks);
    CREATE_REFUSED(experts);
    CREATE_REFUSED(loss);
    CREATE_REFUSED(scan);
    CREATE_REFUSED(sp_attention);
    CREATE_REFUSED(sequence);
    REFUSED(memo_blocks_forward(NULL, 0, &error), "blocks");
    REFUSED(memo_blocks_backward(NULL, 0, &error), "blocks");

    REFUSED(memo_group_begin(NULL, &error), "comm");
    REFUSED(memo_group_end(NULL, NULL, &error), "comm");
    REFUSED(memo_send(NULL, NULL, bytes, 1, MEMO_TYPE_F32, 0, &error), "comm");
    REFUSED(memo_receive(NULL, NULL, bytes, 1, MEMO_TYPE_F32, 0, &error), "comm");
    REFUSED(memo_comm_collective(NULL, NULL, ANY(memo_collective_call), &error), "comm");
    REFUSED(memo_comm_collective(comm, NULL, NULL, &error), "call");
    REFUSED(memo_comm_create_threads(NULL, &comm, &error), "desc");
    REFUSED(memo_comm_create_threads(ANY(memo_comm_threads_desc), NULL, &error), "comms");

    REFUSED(memo_experts_route(NULL, bytes, ANY(memo_routing), &error), "experts");
    REFUSED(memo_experts_route(ANY(memo_experts), NULL, ANY(memo_routing), &error), "counts");
    REFUSED(memo_experts_route(ANY(memo_experts), bytes, NULL, &error), "routing");
    REFUSED(memo_dispatch(NULL, ANY(memo_routing), bytes, bytes, 1, MEMO_TYPE_F32, &error),
            "experts");
    REFUSED(memo_dispatch(ANY(memo_experts), NULL, bytes, bytes, 1, MEMO_TYPE_F32, &error),
            "routing");
    REFUSED(memo_combine(NULL, ANY(memo_routing), bytes, bytes, 1, MEMO_TYPE_F32, &error),
            "experts");
    REFUSED(memo_combine(ANY(memo_experts), NULL, bytes, bytes, 1, MEMO_TYPE_F32, &error),
            "routing");

    REFUSED(memo_loss_desc_get_sizes(NULL, ANY(memo_loss_sizes), &error), "desc");
    REFUSED(memo_loss_desc_get_sizes(ANY(memo_loss_desc), NULL, &error), "sizes");
    REFUSED(memo_loss_run(NULL, ANY(memo_loss_tensors), &error), "loss");
    REFUSED(memo_loss_run(ANY(memo_loss), NULL, &error), "tensors");
    REFUSED(memo_loss_read(NULL, ANY(double), ANY(double), &error), "loss");
    REFUSED(memo_loss_read(ANY(memo_loss), NULL, ANY(double), &error), "sums");
    REFUSED(memo_loss_read(ANY(memo_loss), ANY(double), NULL, &error), "mean");
}

TEST(null_of_meshes_rows_and_scans_is_refused) {
    memo_mesh* mesh = ANY(memo_mesh);
    REFUSED(memo_mesh_create(NULL, ANY(memo_mesh_desc), &mesh, &error), "world");
    CHECK(!mesh);
    REFUSED(memo_mesh_create(ANY(memo_comm), NULL, &mesh, &error), "desc");
    REFUSED(memo_mesh_create(ANY(memo_comm), ANY(memo_mesh_desc), NULL, &error), "mesh");
    memo_mesh_destroy(NULL);

    REFUSED(memo_row_run(MEMO_ROW_ADD, NULL, &error), "desc");
    REFUSED(memo_row_kernel(NULL, NULL, MEMO_ROW_ADD, bytes, &error), "device");
    REFUSED(memo_row_kernel(ANY(memo_device), NULL, MEMO_ROW_ADD, NULL, &error), "desc");

    REFUSED(memo_scan_set_rows(NULL, bytes, NULL, 0, &error), "scan");
    REFUSED(memo_scan_set_rows(ANY(memo_scan), NULL, NULL, 0, &error), "row_begins");
    REFUSED(memo_scan_forward(NULL, ANY(memo_scan_tensors), &error), "scan");
    REFUSED(memo_scan_forward(ANY(memo_scan), NULL, &error), "tensors");
    REFUSED(memo_scan_backward(NULL, ANY(memo_scan_tensors), &error), "scan");
    REFUSED(memo_scan_backward(ANY(memo_scan), NULL, &error), "tensors");
    REFUSED(memo_scan_halo_forward(NULL, bytes, bytes, &error), "scan");
    REFUSED(memo_scan_halo_backward(NULL, bytes, bytes, &error), "scan");
}

TEST(null_of_attention_and_shardings_is_refused) {
    memo_exchange* exchange = ANY(memo_exchange);
    memo_sharding sharding;
    memo_sharding_desc desc = {.n_tokens = 8, .ring = 1, .ulysses = 1};
    memo_run runs[MEMO_RUNS_MAX];
    int32_t labels[8] = {0};
    REFUSED(memo_sp_attention_desc_get_sizes(NULL, ANY(memo_sp_attention_sizes), &error), "desc");
    REFUSED(memo_sp_attention_desc_get_sizes(ANY(memo_sp_attention_desc), NULL, &error), "sizes");
    REFUSED(memo_exchange_create(NULL, ANY(memo_exchange_desc), &exchange, &error), "attention");
    CHECK(!exchange);
    REFUSED(memo_exchange_create(ANY(memo_sp_attention), NULL, &exchange, &error), "desc");
    REFUSED(memo_exchange_create(ANY(memo_sp_attention), ANY(memo_exchange_desc), NULL, &error),
            "exchange");
    memo_exchange_destroy(NULL);
    REFUSED(memo_sp_attention_forward(NULL, NULL, ANY(memo_sp_attention_tensors), &error),
            "attention");
    REFUSED(memo_sp_attention_forward(ANY(memo_sp_attention), NULL, NULL, &error), "tensors");
    REFUSED(memo_sp_attention_backward(NULL, NULL, ANY(memo_sp_attention_tensors), &error),
            "attention");
    REFUSED(memo_sp_attention_backward(ANY(memo_sp_attention), NULL, NULL, &error), "tensors");

    memo_sequence_batch* batch = ANY(memo_sequence_batch);
    const memo_sequence_batch_desc one_document = {0};
    REFUSED(memo_sequence_batch_create(NULL, &one_document, &batch, &error), "sequence");
    CHECK(!batch);
    REFUSED(memo_sequence_batch_create(ANY(memo_sequence), NULL, &batch, &error), "desc");
    REFUSED(memo_sequence_batch_create(ANY(memo_sequence), &one_document, NULL, &error), "batch");
    const memo_sp_attention_tensors tensors = {0};
    REFUSED(memo_sequence_batch_attend(NULL, 0, &tensors, &error), "batch");
    REFUSED(memo_sequence_batch_attend_backward(NULL, 0, &tensors, &error), "batch");
    batch = ANY(memo_sequence_batch);
    REFUSED(memo_sequence_batch_attend(batch, 0, NULL, &error), "tensors");
    REFUSED(memo_sequence_batch_attend_backward(batch, 0, NULL, &error), "tensors");
    CHECK(!memo_sequence_get_sizes(NULL).lse_bytes && !memo_sequence_batch_get_sharding(NULL));
    memo_item items[2];
    memo_sequence_get_items(NULL, items);
    CHECK(!items[0].row_bytes && !items[1].row_bytes);
    memo_sequence_get_items(NULL, NULL);
    memo_sequence_batch_get_positions(NULL, bytes);
    memo_sequence_batch_get_positions(batch, NULL);
    memo_sequence_batch_destroy(NULL);

    REFUSED(memo_sharding_make(NULL, &sharding, &error), "desc");
    REFUSED(memo_sharding_make(&desc, NULL, &error), "sharding");
    memo_sharding_free(NULL);
    memo_sharding_slice(NULL, 0, &sharding, &sharding);
    memo_sharding_slice(&sharding, 0, NULL, &sharding);
    memo_sharding_slice(&sharding, 0, &sharding, NULL);
    CHECK_IS(memo_sharding_runs(NULL, 0, runs), ==, 0);
    CHECK_IS(memo_sharding_position(NULL, 0, 3), ==, 0);
    CHECK_IS(memo_sharding_labels(NULL, 0, 1, labels, 1, NULL, 0, -1, labels), ==, 0);
    CHECK_OK(memo_sharding_make(&desc, &sharding, &error));
    CHECK_IS(memo_sharding_labels(&sharding, 0, 1, NULL, 1, NULL, 0, -1, labels), ==, 0);
    memo_sharding_free(&sharding);
}
