#pragma once
/* ---- 2 mesh: the groups of each rank ------------------------------------------------------------
 *
 * The ranks of a world form a box of pipeline x data x ring x ulysses x tensor ranks; tensor varies
 * fastest.  Tensor parallelism needs the fastest links, then ulysses, ring, data and pipeline
 * (unified SP paper, tip 7). */

typedef struct memo_mesh_desc {
    /* Degrees; 0: 1.  Their product must be the world's size. */
    int32_t data, pipeline, tensor, ring, ulysses;
    /* Nodes that a ring spans, each with as many consecutive ring ranks; 0: 1.  Divides ring. */
    int32_t nodes;
} memo_mesh_desc;

/* Every group exists; a group of degree 1 has a single rank, so no caller needs a branch. */
typedef struct memo_mesh {
    memo_mesh_desc degrees;                        /* none is 0 */
    int32_t rank, size;                            /* in the world */
    int32_t data_rank, pipeline_rank, tensor_rank; /* = rank in that group */
    int32_t ring_rank, ulysses_rank;
    int32_t sequence_rank; /* ring_rank * ulysses + ulysses_rank */
    int32_t gradient_rank; /* data_rank * ring * ulysses + sequence_rank */
    memo_comm* world;      /* borrowed */
    memo_comm *data, *pipeline, *tensor, *ring, *ulysses;
    memo_comm* nodes;    /* ring ranks at the same place of their nodes; NULL: one node */
    memo_comm* sequence; /* ring x ulysses: the ranks that share a sequence */
    memo_comm* gradient; /* data x sequence: sums gradients, and ZeRO shards over it (tip 3) */
} memo_mesh;

/* All ranks of world must call this with equal descs, each from its thread.  Errors:
 * INVALID_ARGUMENT, whose message lists degrees that fit; OUT_OF_HOST_MEMORY; those of split. */
MEMO_TRY memo_status memo_mesh_create(memo_comm* world, const memo_mesh_desc* desc,
                                      memo_mesh** mesh, memo_error* error);
MEMO_API void memo_mesh_destroy(memo_mesh* mesh);
