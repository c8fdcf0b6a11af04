/* comm_cases.h - cases that every back end of memo_comm must pass.  test_comm.c runs them over
 * threads, test_comm_mpi.c over MPI, test_comm_nccl.c over NCCL.
 *
 * A case is a function that every rank runs.  All ranks share the seed of the random numbers, so
 * that each can compute what the others send.  Values are small integers, so that sums are exact in
 * every type and order; of integer types their multiples, whose sums wrap. */
#ifndef COMM_CASES_H
#define COMM_CASES_H

#include "memo_sp.h"
#include "owned.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CASE_STREAMS 2

typedef struct rank_case {
    memo_comm* comm;
    memo_device* device;
    memo_stream streams[CASE_STREAMS];
    uint64_t state;    /* of the random numbers that all ranks share */
    uint64_t my_state; /* of this rank's own random numbers */
    void (*function)(struct rank_case*);
} rank_case;

/* seed: the same on all ranks. */
static void case_begin(rank_case* c, uint64_t seed) {
    c->state = seed;
    c->my_state = seed + (uint64_t)c->comm->rank + 1;
}

static int64_t case_int(rank_case* c, int64_t low, int64_t high) {
    return low + (int64_t)(memo_test_next(&c->state) % (uint64_t)(high - low + 1));
}

static void case_synchronize(rank_case* c) {
    for (int i = 0; i < CASE_STREAMS; i++)
        CHECK_OK(memo_stream_synchronize(c->device, c->streams[i], &error));
}

/* --- elements --- */

/* Halves are written by hand: a small integer's exponent and fraction. */
static uint16_t case_half(int value, int exponent_bits, int fraction_bits) {
    unsigned magnitude = (unsigned)(value < 0 ? -value : value), exponent = 0, bits;
    if (!magnitude) return 0;
    while (magnitude >> (exponent + 1)) exponent++;
    bits = (exponent + (1u << (exponent_bits - 1)) - 1) << fraction_bits;
    bits |= (magnitude - (1u << exponent)) << ((unsigned)fraction_bits - exponent);
    return (uint16_t)(bits | (value < 0 ? 0x8000u : 0));
}

static void element_set(void* array, int64_t i, memo_type type, int value) {
    switch (type) {
    case MEMO_TYPE_F32: ((float*)array)[i] = (float)value; break;
    case MEMO_TYPE_F64: ((double*)array)[i] = value; break;
    case MEMO_TYPE_BF16: ((uint16_t*)array)[i] = case_half(value, 8, 7); break;
    case MEMO_TYPE_F16: ((uint16_t*)array)[i] = case_half(value, 5, 10); break;
    case MEMO_TYPE_I32: ((int32_t*)array)[i] = (int32_t)((uint32_t)value << 28); break;
    case MEMO_TYPE_I64: ((int64_t*)array)[i] = (int64_t)((uint64_t)value << 60); break;
    case MEMO_TYPE_U8: ((uint8_t*)array)[i] = (uint8_t)(value << 5); break;
    case MEMO_N_TYPES: break;
    }
}

static int element_is(const void* array, int64_t i, memo_type type, int value) {
    char expected[8];
    int64_t n = memo_type_bytes(type);
    memset(expected, 0, sizeof expected);
    element_set(expected, 0, type, value);
    return memcmp((const char*)array + i * n, expected, (size_t)n) == 0;
}

/* Element i of a rank's buffer in this operation. */
static int case_value(uint64_t salt, int32_t rank, int64_t i) {
    uint64_t state = salt * 1000003u + (uint64_t)rank * 7919u + (uint64_t)i;
    return (int)(memo_test_next(&state) % 7);
}

/* Buffers that both the host and the back end can use. */
#ifndef CASE_MALLOC
#define CASE_MALLOC(size_bytes) malloc(size_bytes)
#define CASE_FREE(address)      free(address)
#endif

static void* case_array(int64_t count, memo_type type) {
    size_t n_bytes = (size_t)(count * memo_type_bytes(type));
    void* array = CASE_MALLOC(n_bytes ? n_bytes : 1);
    if (!array) abort();
    memset(array, 0x5a, n_bytes);
    return array;
}

static int is_filled(const void* array, int64_t begin, int64_t end, memo_type type, uint64_t salt,
                     int32_t rank, int64_t first) {
    for (int64_t i = begin; i < end; i++)
        if (!element_is(array, i, type, case_value(salt, rank, first + i - begin))) return 0;
    return 1;
}
static void fill(void* array, int64_t begin, int64_t end, memo_type type, uint64_t salt,
                 int32_t rank, int64_t first) {
    for (int64_t i = begin; i < end; i++)
        element_set(array, i, type, case_value(salt, rank, first + i - begin));
}

static int case_reduced(uint64_t salt, int32_t n_ranks, int64_t i, memo_reduction reduction) {
    int result = case_value(salt, 0, i);
    for (int32_t r = 1; r < n_ranks; r++) {
        int value = case_value(salt, r, i);
        if (reduction == MEMO_REDUCTION_SUM)
            result += value;
        else if (value > result)
            result = value;
    }
    return result;
}

static int is_reduced(const void* array, int64_t count, memo_type type, uint64_t salt,
                      int32_t n_ranks, int64_t first, memo_reduction reduction) {
    for (int64_t i = 0; i < count; i++)
        if (!element_is(array, i, type, case_reduced(salt, n_ranks, first + i, reduction)))
            return 0;
    return 1;
}

/* --- collectives --- */

static int64_t case_count(rank_case* c) {
    static const int64_t most[] = {3, 40, 700, 5000};
    return case_int(c, 0, most[case_int(c, 0, 3)]);
}

/* A random collective.  One of its buffers, large, may hold the parts of all ranks; in place the
 * other is this rank's part of it. */
static void one_collective(rank_case* c, memo_comm* comm, memo_stream stream) {
    const memo_collective kind = (memo_collective)case_int(c, 0, MEMO_N_COLLECTIVES - 1);
    const memo_type type = (memo_type)case_int(c, 0, MEMO_N_TYPES - 1);
    const memo_reduction reduction = (memo_reduction)case_int(c, 0, 1);
    const int is_gather = kind == MEMO_COLLECTIVE_ALL_GATHER, in_place = (int)case_int(c, 0, 1);
    const int is_scatter = kind == MEMO_COLLECTIVE_REDUCE_SCATTER;
    const int32_t rank = comm->rank, n = comm->size, root = (int32_t)case_int(c, 0, n - 1);
    const int64_t count = case_count(c), n_bytes = count * memo_type_bytes(type);
    const int64_t n_large = is_gather || is_scatter ? n * count : count;
    const uint64_t salt = memo_test_next(&c->state);
    int64_t sent = comm->sent_bytes, expected = 0;
    char* large = (char*)case_array(n_large, type);
    char* small =
        in_place ? large + (n_large > count ? rank * n_bytes : 0) : (char*)case_array(count, type);
    char *from = is_gather ? small : large, *to = is_gather ? large : small;
    int is_right = 1;
    fill(from, 0, is_scatter ? n_large : count, type, salt, rank, 0);
    switch (kind) {
    case MEMO_COLLECTIVE_ALL_REDUCE:
        CHECK_OK(memo_all_reduce(comm, stream, from, to, count, type, reduction, &error));
        expected = 2 * (n - 1) * n_bytes / n;
        break;
    case MEMO_COLLECTIVE_ALL_GATHER:
        CHECK_OK(memo_all_gather(comm, stream, from, to, count, type, &error));
        expected = (n - 1) * n_bytes;
        break;
    case MEMO_COLLECTIVE_REDUCE_SCATTER:
        CHECK_OK(memo_reduce_scatter(comm, stream, from, to, count, type, reduction, &error));
        expected = (n - 1) * n_bytes;
        break;
    case MEMO_COLLECTIVE_BROADCAST:
        CHECK_OK(memo_broadcast(comm, stream, from, count, type, root, &error));
        expected = (rank + 1) % n == root ? 0 : n_bytes;
        break;
    case MEMO_COLLECTIVE_BARRIER: CHECK_OK(memo_barrier(comm, stream, &error)); break;
    case MEMO_N_COLLECTIVES: break;
    }
    CHECK_OK(memo_stream_synchronize(c->device, stream, &error));

    if (kind == MEMO_COLLECTIVE_BROADCAST)
        is_right = is_filled(from, 0, count, type, salt, root, 0);
    else if (!in_place)
        is_right = is_filled(from, 0, is_scatter ? n_large : count, type, salt, rank, 0);
    for (int32_t r = 0; r < n && is_gather; r++)
        is_right &= is_filled(to, r * count, (r + 1) * count, type, salt, r, 0);
    if (kind == MEMO_COLLECTIVE_ALL_REDUCE || is_scatter)
        is_right &= is_reduced(to, count, type, salt, n, is_scatter * rank * count, reduction);
    CHECK_CASE(is_right, "collective %d of %lld %s, in place %d, root %d", (int)kind,
               (long long)count, memo_type_name(type), in_place, (int)root);
    CHECK_CASE(comm->sent_bytes - sent == expected, "collective %d: %lld bytes", (int)kind,
               (long long)(comm->sent_bytes - sent));
    if (!in_place) CASE_FREE(small);
    CASE_FREE(large);
}

static void case_collectives(rank_case* c) {
    for (int i = 0; i < 40; i++) one_collective(c, c->comm, c->streams[0]);
}

/* Many operations are enqueued before the first result is read; each reads the previous result. */
static void case_collectives_in_a_row(rank_case* c) {
    enum { N = 60, COUNT = 16 };
    float* x = (float*)case_array((N + 1) * COUNT, MEMO_TYPE_F32);
    float expected = (float)(c->comm->size / 2 + 2 * ((c->comm->size + 1) / 2));
    for (int k = 0; k < COUNT; k++) x[k] = (float)(c->comm->rank % 2 ? 1 : 2);
    for (int i = 0; i < N; i++) /* the largest of equal numbers is no news: few sums, many maxima */
        CHECK_OK(memo_all_reduce(c->comm, c->streams[0], x + i * COUNT, x + (i + 1) * COUNT, COUNT,
                                 MEMO_TYPE_F32, i % 20 ? MEMO_REDUCTION_MAX : MEMO_REDUCTION_SUM,
                                 &error));
    case_synchronize(c);
    for (int i = 20; i < N; i += 20) expected *= (float)c->comm->size;
    for (int k = N * COUNT; k < (N + 1) * COUNT; k++)
        CHECK_CASE(x[k] == expected, "%g is not %g", (double)x[k], (double)expected);
    CASE_FREE(x);
}

/* --- sends and receives --- */

#define CASE_MESSAGES 24

/* Random messages among random ranks, also to the sender, in one group.  Each rank enqueues them in
 * another order; only messages between the same two ranks keep their order. */
static void one_group(rank_case* c, memo_comm* comm, memo_stream stream) {
    struct {
        int32_t from, to;
        int64_t count;
        memo_type type;
        uint64_t salt;
        void *sent, *received;
    } m[CASE_MESSAGES];
    int n = (int)case_int(c, 1, CASE_MESSAGES), i, k, order[2 * CASE_MESSAGES];
    int64_t sent = 0, sent_before = comm->sent_bytes;

    /* All ranks draw the same messages. */
    for (i = 0; i < n; i++) {
        m[i].from = (int32_t)(memo_test_next(&c->state) % (uint64_t)comm->size);
        m[i].to = (int32_t)(memo_test_next(&c->state) % (uint64_t)comm->size);
        m[i].count = case_count(c);
        m[i].type = (memo_type)case_int(c, 0, MEMO_N_TYPES - 1);
        m[i].salt = memo_test_next(&c->state);
        m[i].sent = m[i].received = NULL;
        if (m[i].from == comm->rank) {
            m[i].sent = case_array(m[i].count, m[i].type);
            fill(m[i].sent, 0, m[i].count, m[i].type, m[i].salt, m[i].from, 0);
            if (m[i].to != comm->rank) sent += m[i].count * memo_type_bytes(m[i].type);
        }
        if (m[i].to == comm->rank) m[i].received = case_array(m[i].count, m[i].type);
    }
    /* Shuffle, then restore the order of messages between the same two ranks. */
    for (i = 0; i < 2 * n; i++) order[i] = i;
    for (i = 2 * n - 1; i > 0; i--) {
        int other = (int)(memo_test_next(&c->my_state) % (uint64_t)(i + 1)), swap = order[i];
        order[i] = order[other];
        order[other] = swap;
    }
    for (i = 0; i < 2 * n; i++)
        for (k = i + 1; k < 2 * n; k++) {
            int a = order[i] % n, b = order[k] % n;
            if (order[i] / n == order[k] / n && m[a].from == m[b].from && m[a].to == m[b].to &&
                a > b) {
                int swap = order[i];
                order[i] = order[k];
                order[k] = swap;
            }
        }

    CHECK_OK(memo_group_begin(comm, &error));
    for (i = 0; i < 2 * n; i++) {
        int j = order[i] % n;
        if (order[i] < n && m[j].sent)
            CHECK_OK(memo_send(comm, stream, m[j].sent, m[j].count, m[j].type, m[j].to, &error));
        if (order[i] >= n && m[j].received)
            CHECK_OK(memo_receive(comm, stream, m[j].received, m[j].count, m[j].type, m[j].from,
                                  &error));
    }
    CHECK_OK(memo_group_end(comm, stream, &error));
    CHECK_OK(memo_stream_synchronize(c->device, stream, &error));

    for (i = 0; i < n; i++)
        if (m[i].received)
            CHECK_CASE(is_filled(m[i].received, 0, m[i].count, m[i].type, m[i].salt, m[i].from, 0),
                       "message %d of %d, %lld %s from %d", i, n, (long long)m[i].count,
                       memo_type_name(m[i].type), (int)m[i].from);
    CHECK_CASE(comm->sent_bytes - sent_before == sent, "%lld is not %lld",
               (long long)(comm->sent_bytes - sent_before), (long long)sent);
    for (i = 0; i < n; i++) {
        CASE_FREE(m[i].sent);
        CASE_FREE(m[i].received);
    }
}

static void case_groups(rank_case* c) {
    for (int i = 0; i < 15; i++) one_group(c, c->comm, c->streams[0]);
}

/* All ranks send to all, sends first: without a group all ranks would wait for each other. */
static void case_exchange(rank_case* c) {
    memo_comm* comm = c->comm;
    int64_t* sent = (int64_t*)case_array(comm->size, MEMO_TYPE_I64);
    int64_t* received = (int64_t*)case_array(comm->size, MEMO_TYPE_I64);
    CHECK_OK(memo_group_begin(comm, &error));
    for (int32_t r = 0; r < comm->size; r++) {
        sent[r] = comm->rank * 100 + r;
        CHECK_OK(memo_send(comm, c->streams[0], &sent[r], 1, MEMO_TYPE_I64, r, &error));
    }
    CHECK_OK(memo_group_begin(comm, &error)); /* groups nest */
    for (int32_t r = comm->size - 1; r >= 0; r--)
        CHECK_OK(memo_receive(comm, c->streams[0], &received[r], 1, MEMO_TYPE_I64, r, &error));
    CHECK_OK(memo_group_end(comm, c->streams[0], &error));
    CHECK_OK(memo_group_end(comm, c->streams[0], &error));
    case_synchronize(c);
    for (int32_t r = 0; r < comm->size; r++)
        CHECK_CASE(received[r] == r * 100 + comm->rank, "%lld from %d", (long long)received[r],
                   (int)r);
    CASE_FREE(sent);
    CASE_FREE(received);
}

/* A ring of messages: odd ranks receive first with single calls, even ranks send and receive in a
 * group.  Single calls take turns, because NCCL works on a group's messages to one rank one after
 * the other, each beside one that arrives. */
static void case_single_messages(rank_case* c) {
    memo_comm* comm = c->comm;
    memo_stream stream = c->streams[0];
    int32_t next = (comm->rank + 1) % comm->size,
            previous = (comm->rank + comm->size - 1) % comm->size;
    if (comm->size % 2) return;

    int32_t* mine = (int32_t*)case_array(4, MEMO_TYPE_I32);
    int32_t* got = mine + 2;
    mine[0] = comm->rank;
    mine[1] = comm->rank + 100;
    for (int i = 0; i < 5; i++) {
        got[0] = got[1] = -1;
        if (comm->rank % 2) {
            CHECK_OK(memo_receive(comm, stream, &got[0], 1, MEMO_TYPE_I32, previous, &error));
            CHECK_OK(memo_send(comm, stream, &mine[0], 1, MEMO_TYPE_I32, next, &error));
            CHECK_OK(memo_receive(comm, stream, &got[1], 1, MEMO_TYPE_I32, previous, &error));
            CHECK_OK(memo_send(comm, stream, &mine[1], 1, MEMO_TYPE_I32, next, &error));
        } else {
            CHECK_OK(memo_group_begin(comm, &error));
            CHECK_OK(memo_send(comm, stream, &mine[0], 1, MEMO_TYPE_I32, next, &error));
            CHECK_OK(memo_send(comm, stream, &mine[1], 1, MEMO_TYPE_I32, next, &error));
            CHECK_OK(memo_receive(comm, stream, &got[0], 1, MEMO_TYPE_I32, previous, &error));
            CHECK_OK(memo_receive(comm, stream, &got[1], 1, MEMO_TYPE_I32, previous, &error));
            CHECK_OK(memo_group_end(comm, stream, &error));
        }

        case_synchronize(c);
        CHECK_CASE(got[0] == previous && got[1] == previous + 100, "%d, %d", (int)got[0],
                   (int)got[1]);
    }
    CASE_FREE(mine);
}

/* --- splits and meshes --- */

/* Random colors and keys.  Two splits and the whole work at the same time, on different streams. */
static void case_splits(rank_case* c) {
    memo_comm *comm = c->comm, *part[2];
    int32_t n = comm->size;
    int64_t* color[2];
    int64_t* key[2];

    for (int32_t k = 0; k < 2; k++) {
        int32_t rank = 0, size = 0, mine = comm->rank;
        color[k] = (int64_t*)case_array(n, MEMO_TYPE_I64);
        key[k] = (int64_t*)case_array(n, MEMO_TYPE_I64);
        for (int32_t r = 0; r < n; r++) {
            color[k][r] = case_int(c, -1, 2);
            key[k][r] = case_int(c, -2, 2);
        }
        for (int32_t r = 0; r < n; r++) {
            if (color[k][r] != color[k][mine]) continue;
            size++;
            rank += key[k][r] < key[k][mine] || (key[k][r] == key[k][mine] && r < mine);
        }
        CHECK_OK(memo_comm_split(comm, (int32_t)color[k][mine], (int32_t)key[k][mine], "half",
                                 &part[k], &error));
        if (color[k][mine] < 0)
            CHECK_CASE(!part[k], "a part for color -1");
        else
            CHECK_CASE(part[k] && part[k]->rank == rank && part[k]->size == size &&
                           strstr(part[k]->name, "half") && part[k]->sent_bytes == 0,
                       "split %d", (int)k);
        CASE_FREE(color[k]);
        CASE_FREE(key[k]);
    }
    for (int32_t r = 0; r < 4; r++) {
        /* Parts have random sizes: their random numbers must not disturb the common ones. */
        uint64_t state = c->state;
        for (int32_t k = 0; k < 2; k++) {
            if (!part[k]) continue;
            one_collective(c, part[k], c->streams[k]);
            one_group(c, part[k], c->streams[k]);
            c->state = state;
        }
        one_collective(c, comm, c->streams[0]);
    }
    memo_comm_destroy(part[0]);
    one_collective(c, comm, c->streams[0]);
    memo_comm_destroy(part[1]);
}

/* Axes of a mesh. */
enum { AXIS_DATA = 1, AXIS_PIPELINE = 2, AXIS_TENSOR = 4, AXIS_RING = 8, AXIS_ULYSSES = 16 };

/* Number of ranks, and sum of the squares of world ranks, that agree with mine in all but the axes
 * given. */
static void mesh_expected(const memo_mesh_desc* desc, int32_t size, const memo_mesh* mine, int axes,
                          int32_t* n, int64_t* sum) {
    int32_t t_degree = desc->tensor, u_degree = desc->ulysses, r_degree = desc->ring;
    *n = 0;
    *sum = 0;
    for (int32_t rank = 0; rank < size; rank++) {
        int32_t t = rank % t_degree, s = rank / t_degree % (u_degree * r_degree);
        int32_t u = s % u_degree, r = s / u_degree;
        int32_t d = rank / (t_degree * u_degree * r_degree) % desc->data;
        int32_t p = rank / (t_degree * u_degree * r_degree * desc->data);
        int others = (d != mine->data_rank) * AXIS_DATA |
                     (p != mine->pipeline_rank) * AXIS_PIPELINE |
                     (t != mine->tensor_rank) * AXIS_TENSOR | (r != mine->ring_rank) * AXIS_RING |
                     (u != mine->ulysses_rank) * AXIS_ULYSSES;
        if (others & ~axes) continue;
        ++*n;
        *sum += (int64_t)rank * rank + 1;
    }
}

static void mesh_group(rank_case* c, const memo_mesh_desc* desc, const memo_mesh* m, int axes,
                       memo_comm* part, int32_t rank) {
    int64_t *word = (int64_t*)case_array(2, MEMO_TYPE_I64), sum;
    int32_t n;
    mesh_expected(desc, c->comm->size, m, axes, &n, &sum);
    word[0] = (int64_t)c->comm->rank * c->comm->rank + 1;
    CHECK_CASE(part->rank == rank && part->size == n, "%s: rank %d of %d, not %d of %d", part->name,
               (int)part->rank, (int)part->size, (int)rank, (int)n);
    CHECK_OK(memo_all_reduce(part, c->streams[0], &word[0], &word[1], 1, MEMO_TYPE_I64,
                             MEMO_REDUCTION_SUM, &error));
    CHECK_OK(memo_stream_synchronize(c->device, c->streams[0], &error));
    CHECK_CASE(word[1] == sum, "%s: %lld, not %lld", part->name, (long long)word[1],
               (long long)sum);
    CASE_FREE(word);
}

static void one_mesh(rank_case* c, const memo_mesh_desc* desc) {
    memo_mesh* m = NULL;
    CHECK_OK(memo_mesh_create(c->comm, desc, &m, &error));
    if (!m) return;
    /* The sequence group has ring rank r and ulysses rank u at r * ulysses + u. */
    int32_t rank = c->comm->rank / desc->tensor % (desc->ring * desc->ulysses);
    CHECK_CASE(m->ring_rank == rank / desc->ulysses, "ring rank %d", (int)m->ring_rank);
    CHECK_CASE(m->sequence_rank == m->ring_rank * desc->ulysses + m->ulysses_rank, "sequence rank");
    mesh_group(c, desc, m, AXIS_DATA, m->data, m->data_rank);
    mesh_group(c, desc, m, AXIS_PIPELINE, m->pipeline, m->pipeline_rank);
    mesh_group(c, desc, m, AXIS_TENSOR, m->tensor, m->tensor_rank);
    mesh_group(c, desc, m, AXIS_RING, m->ring, m->ring_rank);
    mesh_group(c, desc, m, AXIS_ULYSSES, m->ulysses, m->ulysses_rank);
    mesh_group(c, desc, m, AXIS_RING | AXIS_ULYSSES, m->sequence, m->sequence_rank);
    mesh_group(c, desc, m, AXIS_DATA | AXIS_RING | AXIS_ULYSSES, m->gradient,
               m->data_rank * desc->ring * desc->ulysses + m->sequence_rank);
    memo_mesh_destroy(m);
}

/* Random degrees whose product is the size. */
static void case_meshes(rank_case* c) {
    for (int i = 0; i < 4; i++) {
        memo_mesh_desc desc = MEMO_ZERO(memo_mesh_desc);
        int32_t* const degrees[] = {&desc.data, &desc.pipeline, &desc.tensor, &desc.ring,
                                    &desc.ulysses};
        int32_t rest = c->comm->size;
        desc.data = desc.pipeline = desc.tensor = desc.ring = desc.ulysses = 1;
        for (int32_t factor = 2; rest > 1; factor++)
            for (; rest % factor == 0; rest /= factor) *degrees[case_int(c, 0, 4)] *= factor;
        one_mesh(c, &desc);
    }
}

/* --- calls that are refused on one rank, without effect on the others --- */

static void case_refused_calls(rank_case* c) {
    memo_comm* comm = c->comm;
    memo_stream stream = c->streams[0];
    float x[4] = {1, 2, 3, 4};
    memo_collective_call unknown = {
        (memo_collective)7, MEMO_TYPE_F32, MEMO_REDUCTION_SUM, 0, 1, x, x};
    memo_mesh_desc desc = MEMO_ZERO(memo_mesh_desc);
    memo_mesh* mesh;
#define REFUSED(call, expected_status)                                                             \
    do {                                                                                           \
        error.message[0] = 0;                                                                      \
        CHECK_FAILS(call, expected_status);                                                        \
        CHECK(error.message[0]);                                                                   \
    } while (0)
    REFUSED(memo_send(comm, stream, x, 1, MEMO_TYPE_F32, comm->size, &error), INVALID_ARGUMENT);
    REFUSED(memo_receive(comm, stream, x, 1, MEMO_TYPE_F32, -1, &error), INVALID_ARGUMENT);
    REFUSED(memo_send(comm, stream, x, -1, MEMO_TYPE_F32, 0, &error), INVALID_ARGUMENT);
    REFUSED(memo_send(comm, stream, x, 1, (memo_type)99, 0, &error), INVALID_ARGUMENT);
    REFUSED(memo_send(comm, stream, x, 1, MEMO_TYPE_F32, comm->rank, &error), INVALID_ARGUMENT);
    REFUSED(memo_all_reduce(comm, stream, NULL, x, 1, MEMO_TYPE_F32, MEMO_REDUCTION_SUM, &error),
            INVALID_ARGUMENT);
    REFUSED(memo_all_reduce(comm, stream, x, x, (int64_t)1 << 62, MEMO_TYPE_F32, MEMO_REDUCTION_SUM,
                            &error),
            INVALID_ARGUMENT);
    REFUSED(memo_all_reduce(comm, stream, x, x, 1, MEMO_TYPE_F32, (memo_reduction)7, &error),
            INVALID_ARGUMENT);
    REFUSED(memo_broadcast(comm, stream, x, 1, MEMO_TYPE_F32, comm->size, &error),
            INVALID_ARGUMENT);
    REFUSED(memo_comm_collective(comm, stream, &unknown, &error), INVALID_ARGUMENT);
    REFUSED(memo_group_end(comm, stream, &error), INVALID_STATE);
    CHECK_OK(memo_group_begin(comm, &error));
    REFUSED(memo_barrier(comm, stream, &error), INVALID_STATE);
    REFUSED(memo_group_end(comm, stream, &error), INVALID_STATE); /* given up */
    CHECK_OK(memo_group_begin(comm, &error));
    CHECK_OK(memo_send(comm, stream, x, 1, MEMO_TYPE_F32, comm->rank, &error));
    REFUSED(memo_receive(comm, c->streams[1], x, 1, MEMO_TYPE_F32, comm->rank, &error),
            INVALID_ARGUMENT);
    CHECK_OK(memo_group_begin(comm, &error)); /* an empty group is nothing */
    CHECK_OK(memo_group_end(comm, stream, &error));
    desc.ring = comm->size + 1;
    REFUSED(memo_mesh_create(comm, &desc, &mesh, &error), INVALID_ARGUMENT);
    CHECK_OK(memo_comm_status(comm, &error));
    one_collective(c, comm, stream);
#undef REFUSED
}

/* The tests of every back end.  A file with COMM_TESTS has run_case, which runs one of them. */
typedef void (*case_function)(rank_case*);
#define COMM_TESTS                                                                                 \
    TEST(collectives_give_what_they_should) { run_case(case_collectives); }                        \
    TEST(collectives_can_be_enqueued_in_a_row) { run_case(case_collectives_in_a_row); }            \
    TEST(groups_of_random_messages_arrive) { run_case(case_groups); }                              \
    TEST(exchange_of_all_with_all_does_not_deadlock) { run_case(case_exchange); }                  \
    TEST(single_messages_meet_grouped_ones) { run_case(case_single_messages); }                    \
    TEST(splits_make_the_right_groups_which_work_at_once) { run_case(case_splits); }               \
    TEST(meshes_make_the_right_groups) { run_case(case_meshes); }                                  \
    TEST(refused_calls_harm_nobody) { run_case(case_refused_calls); }

#endif
