#pragma once
#include "sp/comm.h"
/* ---- >>mesh -------------------------------------------------------------------------------------
 * Knows: split of memo_comm.  Knows nothing of back ends, streams or data.
 *
 * 1. The coordinates of a rank number it: ranks differ in one of them. */

/* The axes in the order in which messages list them, and the groups of more than one axis. */
enum {
    MEMOI_MESH_DATA = 0,
    MEMOI_MESH_PIPELINE,
    MEMOI_MESH_TENSOR,
    MEMOI_MESH_RING,
    MEMOI_MESH_ULYSSES,
    MEMOI_MESH_AXES,
    MEMOI_MESH_SEQUENCE = MEMOI_MESH_AXES,
    MEMOI_MESH_GRADIENT,
    MEMOI_MESH_GROUPS
};
static const char* const memoi_mesh_names[] = {"data",    "pipeline", "tensor",  "ring",
                                               "ulysses", "sequence", "gradient"};
MEMOB_TABLE_OF(MEMOI_MESH_GROUPS, memoi_mesh_names);

MEMOI int32_t* memoi_mesh_degree(memo_mesh_desc* d, int axis) {
    int32_t* const degrees[] = {&d->data, &d->pipeline, &d->tensor, &d->ring, &d->ulysses};
    MEMOB_TABLE_OF(MEMOI_MESH_AXES, degrees);
    return degrees[axis];
}
MEMOI int32_t* memoi_mesh_rank(memo_mesh* m, int group) {
    int32_t* const ranks[] = {&m->data_rank,    &m->pipeline_rank, &m->tensor_rank,  &m->ring_rank,
                              &m->ulysses_rank, &m->sequence_rank, &m->gradient_rank};
    MEMOB_TABLE_OF(MEMOI_MESH_GROUPS, ranks);
    return ranks[group];
}
MEMOI memo_comm** memoi_mesh_comm(memo_mesh* m, int group) {
    memo_comm** const comms[] = {&m->data,    &m->pipeline, &m->tensor,  &m->ring,
                                 &m->ulysses, &m->sequence, &m->gradient};
    MEMOB_TABLE_OF(MEMOI_MESH_GROUPS, comms);
    return comms[group];
}

/* Fills in the defaults. */
MEMOI memo_status memoi_mesh_check(memo_mesh_desc* degrees, int32_t size, memo_error* error) {
    const int32_t n_nodes = degrees->nodes > 0 ? degrees->nodes : 1;
    char text[160], hint[200];
    int text_length = 0, hint_length = 0;
    int64_t product = 1;
    for (int i = 0; i < MEMOI_MESH_AXES; i++) {
        int32_t* degree = memoi_mesh_degree(degrees, i);
        if (memob_check_integer("memo_mesh_desc", memoi_mesh_names[i], *degree, 0, INT32_MAX,
                                error))
            return MEMO_STATUS_INVALID_ARGUMENT;
        if (!*degree) *degree = 1;
        if (i == MEMOI_MESH_RING && (degrees->nodes < 0 || *degree % n_nodes))
            return MEMOI_REFUSE("memo_mesh_desc.nodes: %d, which does not divide ring (%d)",
                                (int)degrees->nodes, (int)*degree);
        /* A product above size is wrong anyway; stop there, so that it cannot overflow. */
        product = product > size ? product : product * *degree;
    }
    if (product == size) return MEMO_STATUS_OK;

    /* The single degrees that could change so that the product is size: "data 4, or ring 6". */
    for (int i = 0; i < MEMOI_MESH_AXES; i++) {
        const char* name = memoi_mesh_names[i];
        int64_t others = 1;
        for (int k = 0; k < MEMOI_MESH_AXES; k++)
            if (k != i && others <= size) others *= *memoi_mesh_degree(degrees, k);
        text_length += snprintf(text + text_length, sizeof text - (size_t)text_length, "%s%s %d",
                                i ? " x " : "", name, (int)*memoi_mesh_degree(degrees, i));
        if (size % others == 0)
            hint_length +=
                snprintf(hint + hint_length, sizeof hint - (size_t)hint_length, "%s%s %lld",
                         hint_length ? ", or " : "what fits: ", name, (long long)(size / others));
    }
    return MEMOI_REFUSE("memo_mesh_desc: %s is not the world's size (%d); %s", text, (int)size,
                        hint_length ? hint : "no change of one degree fits");
}

/* Sets the coordinates of a rank. */
MEMOI memo_status memoi_mesh_place(const memo_mesh_desc* desc, int32_t size, int32_t rank,
                                   memo_mesh* mesh, memo_error* error) {
    static const int from_the_fastest[] = {MEMOI_MESH_TENSOR, MEMOI_MESH_ULYSSES, MEMOI_MESH_RING,
                                           MEMOI_MESH_DATA, MEMOI_MESH_PIPELINE};
    MEMOB_TABLE_OF(MEMOI_MESH_AXES, from_the_fastest);
    memo_mesh_desc degrees = *desc;
    int32_t rest = rank;
    const memo_status status = memoi_mesh_check(&degrees, size, error);
    if (status) return status;
    mesh->degrees = degrees;
    mesh->rank = rank;
    mesh->size = size;
    for (int32_t i = 0; i < MEMOI_MESH_AXES; i++) {
        const int32_t degree = *memoi_mesh_degree(&degrees, from_the_fastest[i]);
        *memoi_mesh_rank(mesh, from_the_fastest[i]) = rest % degree;
        rest /= degree;
    }
    MEMO_ASSERT(rest == 0); /* 1 */
    mesh->sequence_rank = mesh->ring_rank * degrees.ulysses + mesh->ulysses_rank;
    mesh->gradient_rank = mesh->data_rank * degrees.ring * degrees.ulysses + mesh->sequence_rank;
    return MEMO_STATUS_OK;
}

/* A number that is equal for the ranks of a group, which differ only along its axes. */
MEMOI int32_t memoi_mesh_color(memo_mesh* mesh, int group) {
    const int sequence = 1 << MEMOI_MESH_RING | 1 << MEMOI_MESH_ULYSSES;
    int axes = group < MEMOI_MESH_AXES ? 1 << group : sequence;
    int32_t color = 0;
    if (group == MEMOI_MESH_GRADIENT) axes |= 1 << MEMOI_MESH_DATA;
    for (int i = 0; i < MEMOI_MESH_AXES; i++)
        if (!(axes >> i & 1))
            color = color * *memoi_mesh_degree(&mesh->degrees, i) + *memoi_mesh_rank(mesh, i);
    return color;
}

memo_status memo_mesh_create(memo_comm* world, const memo_mesh_desc* desc, memo_mesh** result,
                             memo_error* error) {
    MEMOB_REFUSE_NULL(error, "mesh", result);
    *result = NULL;
    MEMOB_REFUSE_NULL(error, "world", world);
    MEMOB_REFUSE_NULL(error, "desc", desc);
    memo_mesh* mesh = (memo_mesh*)memob_calloc(1, sizeof *mesh);
    memo_status status = mesh ? memoi_mesh_place(desc, world->size, world->rank, mesh, error)
                              : memob_no_memory(error, "a mesh");
    for (int i = 0; i < MEMOI_MESH_GROUPS && !status; i++)
        status = memo_comm_split(world, memoi_mesh_color(mesh, i), *memoi_mesh_rank(mesh, i),
                                 memoi_mesh_names[i], memoi_mesh_comm(mesh, i), error);
    if (!status && mesh->degrees.nodes > 1) {
        const int32_t n = mesh->degrees.ring / mesh->degrees.nodes; /* ring ranks of a node */
        status = memo_comm_split(mesh->ring, mesh->ring_rank % n, mesh->ring_rank / n, "nodes",
                                 &mesh->nodes, error);
    }
    if (!status)
        mesh->world = world;
    else
        memo_mesh_destroy(mesh);
    *result = status ? NULL : mesh;
    return status;
}

void memo_mesh_destroy(memo_mesh* mesh) {
    if (!mesh) return;
    memo_comm_destroy(mesh->nodes);
    for (int i = 0; i < MEMOI_MESH_GROUPS; i++) memo_comm_destroy(*memoi_mesh_comm(mesh, i));
    MEMO_FREE(mesh);
}
