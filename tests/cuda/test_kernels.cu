/* test_kernels.cu - the row kernels on a GPU against their host twins: bitwise, except for exp and
 * log1p in the merge; then each with 2^31 + 8 elements. */
#ifndef __CUDACC__
#include "emulated_grid.h" /* with a C++ compiler: on the CPU */
#endif

#ifndef LINKED /* with the implementations of the other tests */
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#endif
#define MEMO_CUDA_IMPLEMENTATION
#include "memo_sp.h"
#include "memo_cuda.cuh"

#include "cuda_test.h"

#include <sys/mman.h>
#include <thread>
#include <vector>

static const memo_type types[] = {MEMO_TYPE_F32, MEMO_TYPE_BF16, MEMO_TYPE_F16};

static memo_type random_type(void) { return types[memo_test_int(0, 2)]; }

/* --- the same bytes on both sides --- */

#define SIDE_BYTES (1 << 20)

struct sides : cuda_rig {
    char *host, *copy; /* host's bytes; what came from the GPU */
    char* gpu;

    sides() : cuda_rig(open_device()), host(NULL), copy(NULL), gpu(NULL) {
        if (!device) return;
        CHECK_OK(memo_device_alloc(device, SIDE_BYTES, (void**)&gpu, &error));
        CHECK_OK(memo_host_alloc(device, SIDE_BYTES, (void**)&host, &error));
        CHECK_OK(memo_host_alloc(device, SIDE_BYTES, (void**)&copy, &error));
    }
};

#define FOR_CASES(n)                                                                               \
    sides s;                                                                                       \
    if (!s.device) SKIP(NO_GPU);                                                                   \
    for (int c = 0; c < (n); c++)

/* Numbers in [-2, 2] of a type, n_bytes of them from begin on. */
static void fill_numbers(char* begin, memo_type type, int64_t n_bytes) {
    int64_t i, n = n_bytes / memo_row_type_bytes(type);
    for (i = 0; i < n; i++) {
        float value = (float)(memo_test_real() * 4 - 2);
        if (type == MEMO_TYPE_F32)
            ((float*)begin)[i] = value;
        else if (type == MEMO_TYPE_BF16)
            ((uint16_t*)begin)[i] = memo_bf16_from_f32(value);
        else
            ((uint16_t*)begin)[i] = memo_f16_from_f32(value);
    }
}

static void copy_sides(sides* s, memo_copy_kind kind, char* to, const char* from) {
    CHECK_OK(memo_copy(s->device, s->stream, kind, to, from, SIDE_BYTES, &error));
    CHECK_OK(memo_stream_synchronize(s->device, s->stream, &error));
}

/* The same kernels on both sides.  The GPU's desc points to the same places in its own bytes, which
 * are in copy afterwards. */
static void run_kinds(sides* s, const void* desc, size_t desc_bytes, const memo_row_kind* kinds,
                      int n) {
    std::vector<uintptr_t> on_gpu(desc_bytes / sizeof(uintptr_t));
    const uintptr_t host = (uintptr_t)s->host;
    memcpy(on_gpu.data(), desc, on_gpu.size() * sizeof(uintptr_t));
    for (uintptr_t& word : on_gpu)
        if (word - host < SIDE_BYTES) word = (uintptr_t)s->gpu + (word - host);
    copy_sides(s, MEMO_COPY_TO_DEVICE, s->gpu, s->host);
    for (int k = 0; k < n; k++) {
        CHECK_OK(memo_row_run(kinds[k], desc, &error));
        CHECK_OK(memo_row_kernel(s->device, s->stream, kinds[k], on_gpu.data(), &error));
    }
    copy_sides(s, MEMO_COPY_TO_HOST, s->copy, s->gpu);
}
#define RUN(desc, ...)                                                                             \
    do {                                                                                           \
        const memo_row_kind kinds_[] = {__VA_ARGS__};                                              \
        run_kinds(&s, &desc, sizeof desc, kinds_, (int)(sizeof kinds_ / sizeof kinds_[0]));        \
    } while (0)

/* Floats from byte `begin` to `end` that differ by more than this. */
static int64_t n_far_off(const sides* s, int64_t begin, int64_t end, float relative,
                         float absolute) {
    int64_t n = 0, i;
    for (i = begin / 4; i < end / 4; i++) {
        const float x = ((float*)(void*)s->host)[i], y = ((float*)(void*)s->copy)[i];
        n += !(x == y || fabsf(x - y) <= relative * fabsf(x) + absolute);
    }
    return n;
}
static int is_same(const sides* s) { return memcmp(s->host, s->copy, SIDE_BYTES) == 0; }

/* What a GPU computes instead of expf, with a 2^t that is nearly exact: a GPU's adds 2 units. */
TEST(an_exp_by_a_power_of_two_has_its_digits) {
    double worst = 0; /* of the bound, 1 + |x| / 40 units */
    for (int k = 0; k < 200000; k++) {
        const float x = (float)(-87 * memo_test_real() * (k % 2 ? 1 : 0.05));
        const double expected = exp((double)x), unit = 1.0 / (1 << 23);
        const double off = fabs((double)memoi_exp_by_two(x) - expected) / expected / unit;
        worst = fmax(worst, off / (1 - (double)x / 40));
    }
    CHECK_IS(worst, <=, 1);
    CHECK_IS(memoi_exp_by_two(0), ==, 1);
    CHECK_IS(memoi_exp_by_two(-INFINITY), <=, 1e-44f);
    const float nan = memoi_exp_by_two((float)memo_test_nan());
    CHECK(nan != nan);
}

#define QUARTER (SIDE_BYTES / 4)
#define UNITS   (4 * 1.2e-7f) /* in the last place */

TEST(casts_as_on_the_host) {
    FOR_CASES(60) {
        memo_add_desc cast = {};
        cast.to_type = random_type();
        cast.a_type = random_type();
        cast.n_columns = memo_test_int(0, 120000);
        cast.a = s.host + memo_test_int(0, 5) * memo_row_type_bytes(cast.a_type);
        cast.to = s.host + 2 * QUARTER + memo_test_int(0, 5) * memo_row_type_bytes(cast.to_type);
        fill_numbers(s.host, cast.a_type, 2 * QUARTER);
        if (cast.a_type == MEMO_TYPE_F32) { /* any finite bits, infinities */
            for (int64_t i = 0; i < 2 * QUARTER / 4; i++) {
                uint32_t bits = (uint32_t)memo_test_random();
                if ((bits & 0x7f800000u) == 0x7f800000u) bits &= 0xff800000u;
                ((uint32_t*)s.host)[i] = bits;
            }
        }
        RUN(cast, MEMO_ROW_CAST);
        CHECK_CASE(is_same(&s), "case %d", c);
    }
}

TEST(every_sixteen_bits_widen_alike) {
    FOR_CASES(2) {
        memo_add_desc cast = {};
        cast.to_type = MEMO_TYPE_F32;
        cast.a_type = types[1 + c];
        cast.n_columns = 65536;
        cast.a = s.host;
        cast.to = s.host + 2 * QUARTER;
        memset(s.host, 0, SIDE_BYTES);
        for (int i = 0; i < 65536; i++) ((uint16_t*)s.host)[i] = (uint16_t)i;
        RUN(cast, MEMO_ROW_CAST);
        for (int i = 0; i < 65536; i++) {
            float x = ((float*)cast.to)[i], y = ((float*)(s.copy + 2 * QUARTER))[i];
            CHECK_CASE((x != x && y != y) || memcmp(&x, &y, 4) == 0, "%04x", i);
        }
    }
}

TEST(adds_packed_rows_as_on_the_host) {
    FOR_CASES(80) {
        memo_pack_desc pack = {};
        int64_t at = 0, n = 0;
        pack.rows_type = random_type();
        pack.packed_type = random_type();
        pack.n_columns[0] = memo_test_int(0, 80);
        pack.n_columns[1] = memo_test_int(0, 80);
        for (int32_t k = (int32_t)memo_test_int(0, MEMO_PACK_MAX); k > 0; k--) {
            pack.begins[pack.n_ranges] = at;
            at += memo_test_int(0, 8);
            n += at - pack.begins[pack.n_ranges];
            pack.ends[pack.n_ranges++] = n;
            at += memo_test_int(0, 3);
        }
        for (int t = 0; t < 2; t++) {
            char* quarter = s.host + 2 * t * QUARTER;
            pack.rows[t] = quarter + memo_test_int(0, 3) * 4;
            pack.packed[t] = quarter + QUARTER + memo_test_int(0, 3) * 4;
            fill_numbers(quarter, pack.rows_type, QUARTER);
            fill_numbers(quarter + QUARTER, pack.packed_type, QUARTER);
        }
        RUN(pack, MEMO_ROW_ADD_PACKED);
        CHECK_CASE(is_same(&s), "case %d", c);
    }
}

TEST(adds_as_on_the_host) {
    FOR_CASES(80) {
        memo_add_desc add = {};
        add.a_type = random_type();
        add.b_type = random_type();
        add.to_type = random_type();
        add.n_rows = memo_test_int(1, 100);
        add.n_columns = memo_test_int(0, 500);
        add.a_stride = memo_test_int(0, 1) * (add.n_columns + 8);
        add.b_stride = memo_test_int(0, 1) * (add.n_columns + 3);
        add.to_stride = memo_test_int(0, 1) * (add.n_columns + 16);
        if (memo_test_int(0, 3) == 0) { /* short rows, more of them */
            add.n_rows = memo_test_int(1, 15000);
            add.n_columns = memo_test_int(1, 2);
            add.a_stride = add.n_columns + memo_test_int(0, 2);
            add.b_stride = add.to_stride = 4;
        }
        add.a = s.host + memo_test_int(0, 3) * 4;
        add.b = s.host + QUARTER + memo_test_int(0, 3) * 4;
        add.to = s.host + 2 * QUARTER + memo_test_int(0, 3) * 4;
        fill_numbers(s.host, add.a_type, QUARTER);
        fill_numbers(s.host + QUARTER, add.b_type, QUARTER);
        memset(s.host + 2 * QUARTER, 0x55, 2 * QUARTER);
        if (memo_test_int(0, 2) == 0) { /* in place */
            add.a = add.to;
            add.a_type = add.to_type;
            add.a_stride = add.to_stride;
        }
        RUN(add, MEMO_ROW_ADD);
        CHECK_CASE(is_same(&s), "case %d", c);
    }
}

/* Sums and maxima of every type, also in place. */
TEST(reduces_as_on_the_host) {
    FOR_CASES(80) {
        memo_reduce_desc reduce = {};
        reduce.type = (memo_type)(c % 7);
        reduce.reduction = (memo_reduction)(c / 7 % 2);
        reduce.n_from = (int32_t)memo_test_int(1, MEMO_REDUCE_MAX);
        reduce.count = memo_test_int(0, 1500);
        for (int i = 0; i < SIDE_BYTES / 8 && reduce.type == MEMO_TYPE_F64; i++)
            ((double*)(void*)s.host)[i] = memo_test_real() * 4 - 2;
        for (int i = 0; i < SIDE_BYTES / 8 && reduce.type >= MEMO_TYPE_I32; i++)
            ((uint64_t*)(void*)s.host)[i] = memo_test_random();
        if (memo_row_type_bytes(reduce.type)) fill_numbers(s.host, reduce.type, SIDE_BYTES);
        for (int r = 0; r < reduce.n_from; r++) reduce.from[r] = s.host + r * 16384;
        reduce.to = s.host + memo_test_int(0, MEMO_REDUCE_MAX) * 16384;
        RUN(reduce, MEMO_ROW_REDUCE);
        CHECK_CASE(is_same(&s), "case %d", c);
    }
}

/* --- GPUs as peers --- */

enum { PEERS = 3, PEER_COUNT = 3001, PEER_BYTES = 4 * PEER_COUNT };

static void peer_fill(char* to, int round, int rank, memo_type type) {
    for (int i = 0; i < PEER_COUNT; i++) {
        const float value = (float)((round * 7 + rank * 13 + i * 31) % 101) / 3 - 16;
        if (type == MEMO_TYPE_F32)
            ((float*)(void*)to)[i] = value;
        else
            ((uint16_t*)(void*)to)[i] = memo_bf16_from_f32(value);
    }
}

struct peer {
    memo_device* device = NULL;
    memo_comm* comm = NULL;
    memo_stream stream = NULL;
    char *gpu = NULL, *host = NULL; /* two arrays each */
    memo_error error;
    int n_rounds = 0, n_wrong = 0;
};

/* A sum in place, then its elements but the first to the next rank, at another offset. */
static memo_status peer_round(peer* p, int round, std::vector<char>& expected) {
    const memo_type type = round % 2 ? MEMO_TYPE_BF16 : MEMO_TYPE_F32;
    const int64_t bytes = memo_type_bytes(type), n = PEER_COUNT - 1;
    const int next = (p->comm->rank + 1) % PEERS, before = (p->comm->rank + PEERS - 1) % PEERS;
    const void* from[PEERS];
    memo_error* e = &p->error;
    for (int r = 0; r < PEERS; r++) {
        peer_fill(expected.data() + r * PEER_BYTES, round, r, type);
        from[r] = expected.data() + r * PEER_BYTES;
    }
    memcpy(p->host, from[p->comm->rank], PEER_BYTES);
    memo_comm_reduce(expected.data(), from, PEERS, 0, PEER_COUNT, type, MEMO_REDUCTION_SUM);
    memo_status status =
        memo_copy(p->device, p->stream, MEMO_COPY_TO_DEVICE, p->gpu, p->host, PEER_BYTES, e);
    if (!status)
        status = memo_all_reduce(p->comm, p->stream, p->gpu, p->gpu, PEER_COUNT, type,
                                 MEMO_REDUCTION_SUM, e);
    if (!status) status = memo_group_begin(p->comm, e);
    if (!status) status = memo_send(p->comm, p->stream, p->gpu + bytes, n, type, next, e);
    if (!status) status = memo_receive(p->comm, p->stream, p->gpu + PEER_BYTES, n, type, before, e);
    if (!status) status = memo_group_end(p->comm, p->stream, e);
    if (!status)
        status =
            memo_copy(p->device, p->stream, MEMO_COPY_TO_HOST, p->host, p->gpu, 2 * PEER_BYTES, e);
    if (!status) status = memo_stream_synchronize(p->device, p->stream, e);
    if (status) return status;
    p->n_wrong += memcmp(p->host, expected.data(), (size_t)(PEER_COUNT * bytes)) != 0;
    p->n_wrong += memcmp(p->host + PEER_BYTES, expected.data() + bytes, (size_t)(n * bytes)) != 0;
    return MEMO_STATUS_OK;
}

/* GPUs 0, 1, 2 if there are as many; else GPU 0 is several peers. */
static int peer_gpu(const peer* p) { return ((const memoi_cuda*)p->device->context)->desc.ordinal; }

/* Each GPU reaches the others. */
static memo_status peers_reach(const peer* peers) {
    memo_status status = MEMO_STATUS_OK;
    for (int k = 0; k < PEERS * PEERS && !status; k++) {
        const int own = peer_gpu(&peers[k / PEERS]), other = peer_gpu(&peers[k % PEERS]);
        int can = 0;
        if (own == other) continue;
        status = memo_cuda_check(cudaSetDevice(own), "cudaSetDevice", &error);
        if (cudaDeviceCanAccessPeer(&can, own, other) != cudaSuccess || !can)
            return MEMO_STATUS_UNSUPPORTED;
        const cudaError_t code = cudaDeviceEnablePeerAccess(other, 0);
        if (!status && code != cudaErrorPeerAccessAlreadyEnabled)
            status = memo_cuda_check(code, "cudaDeviceEnablePeerAccess", &error);
    }
    (void)cudaGetLastError();
    return status;
}

static memo_status peers_open(peer* peers) {
    memo_comm_threads_desc desc = {};
    memo_device* devices[PEERS] = {};
    memo_comm* comms[PEERS] = {};
    memo_status status = MEMO_STATUS_OK;
    for (int r = 0; r < PEERS && !status; r++) {
        memo_cuda_device_desc device_desc = {};
        peer* p = &peers[r];
        device_desc.ordinal = r;
        if (memo_cuda_device_create(&device_desc, &p->device, &error)) device_desc.ordinal = 0;
        if (!p->device) status = memo_cuda_device_create(&device_desc, &p->device, &error);
        devices[r] = p->device;
        if (!status) status = memo_stream_create(p->device, "peer", 0, &p->stream, &error);
        if (!status) status = memo_device_alloc(p->device, 2 * PEER_BYTES, (void**)&p->gpu, &error);
        if (!status) status = memo_host_alloc(p->device, 2 * PEER_BYTES, (void**)&p->host, &error);
    }
    if (!status) status = peers_reach(peers);
    desc.n_ranks = PEERS;
    desc.devices = devices;
    desc.timeout_s = 60;
    if (!status) status = memo_comm_create_threads(&desc, comms, &error);
    for (int r = 0; r < PEERS; r++) peers[r].comm = comms[r];
    return status;
}

static void peers_run(peer* peers, int n_rounds) {
    std::vector<std::thread> threads;
    for (int r = 0; r < PEERS; r++)
        threads.emplace_back([=] {
            peer* p = &peers[r];
            std::vector<char> expected(PEERS * PEER_BYTES);
            memo_status status = MEMO_STATUS_OK;
            memset(&p->error, 0, sizeof p->error);
            while (!status && p->n_rounds < n_rounds) {
                status = peer_round(p, p->n_rounds, expected);
                p->n_rounds += !status;
            }
            if (status) memo_comm_abort(p->comm);
            IGNORE(memo_stream_synchronize(p->device, p->stream, NULL));
        });
    for (std::thread& thread : threads) thread.join();
}

static void peers_close(peer* peers) {
    for (int r = 0; r < PEERS; r++) memo_comm_destroy(peers[r].comm);
    for (int r = 0; r < PEERS; r++) {
        if (peers[r].stream)
            CHECK_OK(memo_stream_destroy(peers[r].device, peers[r].stream, &error));
        if (peers[r].device) memo_cuda_device_destroy(peers[r].device);
    }
}

TEST(peers_copy_and_add_up) {
    peer peers[PEERS];
    memo_status status = peers_open(peers);
    if (status == MEMO_STATUS_UNSUPPORTED) {
        peers_close(peers);
        SKIP("no GPUs that reach each other");
    }
    CHECK_CASE(!status, "%s", error.message);
    if (!status) peers_run(peers, 12);
    for (peer& p : peers)
        CHECK_CASE(p.n_rounds == 12 && !p.n_wrong, "%d rounds, %d wrong: %s", p.n_rounds, p.n_wrong,
                   p.error.message);
    peers_close(peers);
}

#ifndef __CUDACC__
/* A call of CUDA that fails on any rank ends all of them, long before the time-out. */
TEST(a_failing_call_of_cuda_ends_all_peers) {
    static const char* const calls[] = {"cudaEventRecord", "cudaStreamWaitEvent", "cudaMemcpyAsync",
                                        "kernel"};
    for (int c = 0; c < 24; c++) {
        peer peers[PEERS];
        CHECK_OK(peers_open(peers));
        fake_fail(calls[c % 4], 1 + c, cudaErrorLaunchFailure);
        peers_run(peers, 50);
        for (peer& p : peers)
            CHECK_CASE(p.n_rounds < 50 && p.error.message[0], "%s, call %d: %d rounds",
                       calls[c % 4], c, p.n_rounds);
        fake_forget_failures();
        peers_close(peers);
    }
}
#endif

TEST(sums_rows_as_on_the_host) {
    FOR_CASES(80) {
        memo_add_desc sums = {};
        sums.a_type = random_type();
        sums.b_type = random_type();
        sums.n_columns = memo_test_int(0, 3) ? 64 * memo_test_int(1, 4) : memo_test_int(0, 300);
        if (memo_test_int(0, 3) == 0) sums.n_columns = memo_test_int(0, 8); /* then more rows */
        sums.b_stride = memo_test_int(0, 1) * (sums.n_columns + 16);
        sums.n_rows = memo_test_int(0, QUARTER / 4 / (sums.n_columns + 16));
        sums.a = s.host;
        sums.b = s.host + QUARTER;
        sums.to = (float*)(void*)(s.host + 2 * QUARTER);
        fill_numbers(s.host, sums.a_type, QUARTER);
        fill_numbers(s.host + QUARTER, sums.b_type, QUARTER);
        memset(s.host + 2 * QUARTER, 0x55, 2 * QUARTER);
        RUN(sums, MEMO_ROW_SUMS);
        CHECK_CASE(is_same(&s), "case %d", c);
    }
}

/* As for merges; a sum over rows differs by as much for each of them. */
TEST(adds_sinks_as_on_the_host) {
    FOR_CASES(80) {
        const int64_t rows_bytes = 16384;
        memo_sinks_desc sinks = {};
        int64_t i, n_wrong;
        sinks.n_heads = memo_test_int(1, 40);
        sinks.n_rows = memo_test_int(0, 100);
        sinks.n_columns = memo_test_int(0, 1) * memo_test_int(0, 64);
        sinks.sinks = (const float*)(void*)s.host;
        sinks.d_sinks = (float*)(void*)(s.host + 1024);
        sinks.lse = (float*)(void*)(s.host + 2048);
        sinks.row_dots = (const float*)(void*)(s.host + 2048 + rows_bytes);
        sinks.out = (float*)(void*)(s.host + QUARTER);
        fill_numbers(s.host, MEMO_TYPE_F32, 2048 + 2 * rows_bytes);
        fill_numbers(s.host + QUARTER, MEMO_TYPE_F32, 2 * QUARTER);
        for (i = 0; i < rows_bytes / 4; i++)
            if (memo_test_int(0, 5) == 0) sinks.lse[i] = -INFINITY;
        for (i = 0; i < sinks.n_heads; i++)
            if (memo_test_int(0, 5) == 0) ((float*)(uintptr_t)sinks.sinks)[i] = -INFINITY;
        RUN(sinks, MEMO_ROW_SINKS, MEMO_ROW_SINK_SUMS);
        float terms = (float)(sinks.n_rows + 1) * 8;
        n_wrong = n_far_off(&s, 0, 1024, UNITS, UNITS * 0.6932f) +
                  n_far_off(&s, 1024, 2048, UNITS * terms, UNITS * terms * 0.6932f) +
                  n_far_off(&s, 2048, 2048 + 2 * rows_bytes, UNITS, UNITS * 0.6932f) +
                  n_far_off(&s, QUARTER, 3 * QUARTER, 0, UNITS * 4);
        CHECK_CASE(n_wrong == 0, "case %d: %d numbers", c, (int)n_wrong);
    }
}

/* The stated difference: 4 units in the last place of the weight, times |O_b - O|; and of the LSE's
 * larger term. */
TEST(merges_as_on_the_host) {
    FOR_CASES(80) {
        const int64_t rows_bytes = 16384;
        memo_merge_desc merge = {};
        int64_t i, n_wrong;
        merge.part_type = random_type();
        merge.n_batches = memo_test_int(0, 3);
        merge.n_rows = memo_test_int(0, 60);
        merge.n_columns = memo_test_int(0, 2) ? 64 * memo_test_int(1, 4) : memo_test_int(0, 200);
        if (memo_test_int(0, 3) == 0) { /* more rows of fewer columns */
            merge.n_rows = memo_test_int(500, 1300);
            merge.n_columns = memo_test_int(0, 8);
        }
        merge.batch_stride_rows = memo_test_int(0, 1) * (merge.n_rows + 5);
        merge.lse = (float*)(void*)s.host;
        merge.part_lse = (float*)(void*)(s.host + rows_bytes);
        merge.out = (float*)(void*)(s.host + QUARTER);
        merge.part_out = s.host + 3 * QUARTER;
        fill_numbers(s.host, MEMO_TYPE_F32, 2 * rows_bytes);
        fill_numbers(s.host + QUARTER, MEMO_TYPE_F32, 2 * QUARTER);
        fill_numbers(s.host + 3 * QUARTER, merge.part_type, QUARTER);
        for (i = 0; i < rows_bytes / 4; i++) {
            if (memo_test_int(0, 5) == 0) merge.lse[i] = -INFINITY;
            if (memo_test_int(0, 5) == 0) ((float*)(uintptr_t)merge.part_lse)[i] = -INFINITY;
            if (memo_test_int(0, 5) == 0) merge.lse[i] *= 200;
        }
        RUN(merge, MEMO_ROW_MERGE);
        /* An LSE's larger term is at most |LSE| + log 2. */
        n_wrong = n_far_off(&s, 0, 2 * rows_bytes, UNITS, UNITS * 0.6932f) +
                  n_far_off(&s, QUARTER, 3 * QUARTER, 0, UNITS * 4);
        CHECK_CASE(n_wrong == 0, "case %d: %d numbers", c, (int)n_wrong);
        CHECK(memcmp(s.host + 3 * QUARTER, s.copy + 3 * QUARTER, QUARTER) == 0);
    }
}

/* The stated difference: each exp(x) by 3 + |x| / 40 units, the LSE by 4 units of 1 or of itself.  On the
 * emulated grid the bits are the same. */
TEST(finds_losses_as_on_the_host) {
    FOR_CASES(40) {
        const int64_t n_most = 20000;
        memo_cross_entropy_desc entropy = {};
        int64_t i, n_wrong, n_others = 0;
        int32_t* labels = (int32_t*)(void*)s.host;
        entropy.type = random_type();
        entropy.n_columns = memo_test_int(0, 3) ? memo_test_int(1, 60) : memo_test_int(60, 3000);
        entropy.stride = entropy.n_columns + memo_test_int(0, 8);
        entropy.n_rows =
            memo_test_int(1, n_most / entropy.stride > 300 ? 300 : n_most / entropy.stride);
        entropy.n_parts = (int32_t)memo_test_int(1, 3);
        entropy.part = (int32_t)memo_test_int(0, entropy.n_parts - 1);
        entropy.first_column = entropy.part * entropy.n_columns;
        entropy.vocabulary = entropy.n_parts * entropy.n_columns;
        entropy.softcap = memo_test_int(0, 1) ? (float)memo_test_int(1, 30) : 0;
        entropy.scale = (float)memo_test_real();
        entropy.labels = labels;
        entropy.sums = (double*)(void*)(s.host + 2048);
        entropy.losses = (float*)(void*)(s.host + 4096);
        entropy.parts = (float*)(void*)(s.host + 8192);
        entropy.logits = s.host + QUARTER + memo_test_int(0, 3) * 4;
        entropy.d_logits = memo_test_int(0, 1)
                               ? s.host + QUARTER + memo_test_int(0, 3) * 4 + 2 * QUARTER
                               : (char*)(uintptr_t)entropy.logits;
        memset(s.host, 0, QUARTER);
        fill_numbers(s.host + 8192, MEMO_TYPE_F32,
                     3 * 300 * MEMO_LOSS_NUMBERS * 4);                       /* the other parts */
        for (i = 1; i < 3 * 300 * MEMO_LOSS_NUMBERS; i += MEMO_LOSS_NUMBERS) /* of a sum */
            entropy.parts[i] = fabsf(entropy.parts[i]);
        fill_numbers(s.host + QUARTER, entropy.type, 3 * QUARTER);
        for (i = 0; i < entropy.n_rows; i++)
            labels[i] = (int32_t)memo_test_int(-1, entropy.vocabulary - 1);
        RUN(entropy, MEMO_ROW_SOFTMAX_PARTS, MEMO_ROW_CROSS_ENTROPY, MEMO_ROW_LOSS_SUMS);
        n_wrong = n_far_off(&s, 4096, QUARTER, 2 * UNITS, 2 * UNITS);
        for (i = 0; i < 3; i++) {
            double x = ((double*)(void*)(s.host + 2048))[i],
                   y = ((double*)(void*)(s.copy + 2048))[i];
            n_wrong += !(fabs(x - y) <= 1e-6 * (i == 0) * (1 + fabs(x)) * (double)entropy.n_rows);
        }

        /* Gradients are at most 1; a 16-bit one may round the other way. */
        int64_t n_logits = (entropy.n_rows - 1) * entropy.stride + entropy.n_columns;
        for (i = 0; i < n_logits; i++) {
            float x[2];
            for (int side = 0; side < 2; side++) {
                memo_add_desc cast = {};
                cast.to = &x[side];
                cast.a_type = entropy.type;
                cast.n_columns = 1;
                cast.a = (side ? s.copy : s.host) + ((char*)entropy.d_logits - s.host) +
                         i * memo_row_type_bytes(entropy.type);
                CHECK_OK(memo_row_run(MEMO_ROW_CAST, &cast, &error));
            }
            if (i % entropy.stride >= entropy.n_columns)
                n_others += memcmp(&x[0], &x[1], 4) != 0;
            else
                n_wrong +=
                    !(fabsf(x[0] - x[1]) <=
                      (entropy.type == MEMO_TYPE_F32 ? 2e-6f : 0.008f) * fabsf(x[0]) + 2e-6f);
        }
        CHECK_CASE(n_wrong == 0 && n_others == 0, "case %d: %d numbers, %d others", c, (int)n_wrong,
                   (int)n_others);
    }
}

/* --- beyond 32 bits --- */

#define HUGE_ELEMENTS (((int64_t)1 << 31) + 8)

/* Of 8 bits, so exact in every type; neighbors and elements 2^32 bytes apart differ. */
__device__ static float huge_value(int64_t i) { return (float)(i % 251); }

__global__ static void huge_fill(float* to, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < n; i += (int64_t)gridDim.x * blockDim.x) to[i] = huge_value(i);
}

/* Counts the elements of x that are not scale times the original value. */
__global__ static void huge_compare(const float* x, int64_t n, float scale,
                                    unsigned long long* n_wrong) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < n; i += (int64_t)gridDim.x * blockDim.x)
        if (x[i] != scale * huge_value(i)) atomicAdd(n_wrong, 1ull);
}

__global__ static void huge_compare_sums(const float* sums, int64_t n,
                                         unsigned long long* n_wrong) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        float expected = 0;
        for (int k = 0; k < 8; k++) expected += huge_value(i * 8 + k) * huge_value(i * 8 + k);
        if (sums[i] != expected) atomicAdd(n_wrong, 1ull); /* integers below 2^24: exact */
    }
}

template <typename... Parameters, typename... Arguments>
static void launch(void (*kernel)(Parameters...), memo_stream stream, Arguments... arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(2048, 1, 1);
    config.blockDim = dim3(256, 1, 1);
    config.stream = memo_cuda_stream(stream);
    CHECK_OK(memo_cuda_check(cudaLaunchKernelEx(&config, kernel, arguments...),
                             "a kernel of the test", &error));
}

struct huge : cuda_rig {
    float *a = NULL, *b = NULL; /* HUGE_ELEMENTS */
    void* small = NULL;         /* 4 bytes an element of a row of 8, and 8 for an index */
    unsigned long long* n_wrong = NULL;
    const char* lack = NULL; /* why the test must be skipped */

    huge() : cuda_rig(open_device()) {
        int64_t free_bytes = 0, total_bytes = 0;
        if (!device) {
            lack = NO_GPU;
            return;
        }
        CHECK_OK(memo_memory_info(device, &free_bytes, &total_bytes, &error));
        if (free_bytes < 3 * HUGE_ELEMENTS * 4) {
            lack = "26 GB of device memory are not free";
            return;
        }
        CHECK_OK(memo_device_alloc(device, HUGE_ELEMENTS * 4, (void**)&a, &error));
        CHECK_OK(memo_device_alloc(device, HUGE_ELEMENTS * 4, (void**)&b, &error));
        CHECK_OK(memo_device_alloc(device, HUGE_ELEMENTS / 8 * 8, &small, &error));
        CHECK_OK(memo_device_alloc(device, 8, (void**)&n_wrong, &error));
        launch(huge_fill, stream, a, HUGE_ELEMENTS);
        CHECK_OK(memo_fill(device, stream, b, 0xff, HUGE_ELEMENTS * 4, &error));
        CHECK_OK(memo_fill(device, stream, n_wrong, 0, 8, &error));
    }
    ~huge() {
        unsigned long long n = 1;
        if (lack) return;
        CHECK_OK(memo_copy(device, stream, MEMO_COPY_TO_HOST, &n, n_wrong, 8, &error));
        CHECK_OK(memo_stream_synchronize(device, stream, &error));
        CHECK_OK(memo_device_status(device, &error));
        CHECK_CASE(n == 0, "%llu elements", n);
    }
};

static void compare_huge(huge* h, const float* x, float scale) {
    launch(huge_compare, h->stream, x, HUGE_ELEMENTS, scale, h->n_wrong);
}

#define OPEN_HUGE(h)                                                                               \
    huge h;                                                                                        \
    if (h.lack) SKIP(h.lack)

TEST(casts_huge_arrays) {
    OPEN_HUGE(h);
    for (int t = 1; t < 3; t++) {
        memo_add_desc cast = {};
        cast.n_columns = HUGE_ELEMENTS;
        cast.a = h.a;
        cast.to = h.b;
        cast.to_type = types[t];
        CHECK_OK(memo_row_cast(h.device, h.stream, &cast, &error));
        CHECK_OK(memo_fill(h.device, h.stream, h.a, 0xff, HUGE_ELEMENTS * 4, &error));
        cast.a = h.b;
        cast.to = h.a;
        cast.a_type = types[t];
        cast.to_type = MEMO_TYPE_F32;
        CHECK_OK(memo_row_cast(h.device, h.stream, &cast, &error));
        compare_huge(&h, h.a, 1);
    }
}

TEST(adds_huge_arrays) {
    OPEN_HUGE(h);
    memo_add_desc add = {};
    add.to = h.b;
    add.a = add.b = h.a;
    add.n_columns = HUGE_ELEMENTS;
    CHECK_OK(memo_row_add(h.device, h.stream, &add, &error));
    compare_huge(&h, h.b, 2);
}

TEST(merges_huge_arrays) {
    OPEN_HUGE(h);
    memo_merge_desc merge = {};
    merge.out = h.b;
    merge.part_out = h.a;
    merge.lse = (float*)h.small;
    merge.part_lse = (float*)h.small + HUGE_ELEMENTS / 8;
    merge.n_rows = HUGE_ELEMENTS / 8;
    merge.n_columns = 8;
    /* Equal LSEs: halfway between 0 and the part. */
    CHECK_OK(memo_fill(h.device, h.stream, h.b, 0, HUGE_ELEMENTS * 4, &error));
    CHECK_OK(memo_fill(h.device, h.stream, h.small, 0, HUGE_ELEMENTS, &error));
    CHECK_OK(memo_row_merge(h.device, h.stream, &merge, &error));
    compare_huge(&h, h.b, 0.5f);
}

TEST(sums_huge_arrays) {
    OPEN_HUGE(h);
    memo_add_desc sums = {};
    sums.a = sums.b = h.a;
    sums.to = (float*)h.small;
    sums.n_rows = HUGE_ELEMENTS / 8;
    sums.n_columns = 8;
    CHECK_OK(memo_row_sums(h.device, h.stream, &sums, &error));
    launch(huge_compare_sums, h.stream, (const float*)h.small, sums.n_rows, h.n_wrong);
}

/* --- rows of bytes, for checked sessions --- */

/* Poison up to a random byte, numbers made of poison, or any bytes. */
static void fill_row(unsigned char* row, int64_t n) {
    static const uint32_t poisoned[2] = {0x7fa07da0u, 0x7ff17da0u};
    const int64_t n_poisoned = memo_test_int(0, 2) ? memo_test_int(0, n) : n;
    for (int64_t i = 0; i < n; i++) {
        const uintptr_t at = (uintptr_t)(row + i) % 8;
        row[i] = (unsigned char)(i < n_poisoned ? poisoned[at / 4] >> 8 * (at % 4)
                                                : (uint32_t)memo_test_int(0, 255));
    }
    for (int64_t i = 0; i + 4 <= n && !memo_test_int(0, 2); i += 4) {
        const uint32_t quiet = memo_test_int(0, 1) ? 0x7fe07da0u : 0xfff97da0u;
        if (!memo_test_int(0, 5)) memcpy(row + i, &quiet, sizeof quiet);
    }
}

static void check_row(const unsigned char* row, int64_t n, const memo_row_content* found) {
    static const uint32_t poisoned[2] = {0x7fa07da0u, 0x7ff17da0u};
    int64_t n_poisoned = 0, n_of_poison = 0;
    for (; n_poisoned < n; n_poisoned++) {
        const uintptr_t at = (uintptr_t)(row + n_poisoned) % 8;
        if (row[n_poisoned] != (poisoned[at / 4] >> 8 * (at % 4) & 255)) break;
    }
    for (int64_t i = 0; i + 4 <= n; i += 4) {
        uint32_t word;
        memcpy(&word, row + i, sizeof word);
        word &= 0x7fffffff;
        n_of_poison += word == 0x7fe07da0 || word == 0x7ff97da0 ||
                       (word == 0x7ff17da0 && (uintptr_t)(row + i) % 8 == 0);
    }
    CHECK_IS(found->n_poisoned, ==, n_poisoned);
    CHECK_IS(found->is_of_poison, ==, n_of_poison > 1);
}

TEST(rows_of_bytes_are_inspected) {
    const int64_t results = SIDE_BYTES / 2, again = SIDE_BYTES / 4;
    FOR_CASES(60) {
        const int64_t phase = memo_test_int(0, 1) * memo_test_int(0, 7);
        const int64_t row_bytes = phase ? memo_test_int(1, 99) : memo_test_int(1, 40) * 8;
        const int64_t n_rows = memo_test_int(1, 300), changed = memo_test_int(0, n_rows - 1);
        unsigned char* rows = (unsigned char*)s.host + phase;
        const memo_row_content* found = (const memo_row_content*)(s.copy + results);
        for (int64_t r = 0; r < n_rows; r++) fill_row(rows + r * row_bytes, row_bytes);
        /* The same bytes elsewhere, but for one. */
        memcpy(rows + again, rows, (size_t)(n_rows * row_bytes));
        rows[again + changed * row_bytes + memo_test_int(0, row_bytes - 1)] ^=
            (unsigned char)(1 << memo_test_int(0, 7));
        copy_sides(&s, MEMO_COPY_TO_DEVICE, s.gpu, s.host);
        for (int k = 0; k < 2; k++)
            CHECK_OK(s.device->inspect(s.device->context, s.stream, s.gpu + phase + k * again,
                                       row_bytes, n_rows,
                                       (memo_row_content*)(s.gpu + results) + k * n_rows, &error));
        copy_sides(&s, MEMO_COPY_TO_HOST, s.copy, s.gpu);
        for (int64_t r = 0; r < n_rows; r++) {
            check_row(rows + r * row_bytes, row_bytes, &found[r]);
            check_row(rows + again + r * row_bytes, row_bytes, &found[n_rows + r]);
            CHECK((found[r].digest == found[n_rows + r].digest) == (r != changed));
        }
    }
}

#ifndef __CUDACC__
/* A small grid, whose threads take several strides. */
__attribute__((constructor)) static void limit_grid(void) { fake_set_n_processors(1); }
#endif

/* --- indices beyond 32 bits: what a thread does of the last items, in memory that is mostly not
 * there --- */

#define HUGE_ELEMENTS (((int64_t)1 << 31) + 8)

static char* reserve(int64_t n_bytes) {
    void* address = mmap(NULL, (size_t)n_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return address == MAP_FAILED ? NULL : (char*)address;
}

/* A device's row kernel: keeps the desc in its context. */
static memo_status keep_add(void* context, memo_stream, const memo_row_call* call, memo_error*) {
    memcpy(context, call->desc, sizeof(memo_add_desc));
    return MEMO_STATUS_OK;
}

TEST(indices_pass_32_bits) {
    char* a = reserve(4 * HUGE_ELEMENTS);
    char* b = reserve(4 * HUGE_ELEMENTS);
    const int64_t last = HUGE_ELEMENTS - 1, n_columns = 128, n_rows = HUGE_ELEMENTS / 128;
    if (a && b) {
        memo_add_desc cast = {}, add = {}, sums = {};
        memo_device keeps = {};
        memo_merge_desc merge = {};
        float sum = 0;
        cast.to = b;
        cast.a = a;
        cast.to_type = MEMO_TYPE_BF16;
        cast.n_columns = HUGE_ELEMENTS;
        cast.n_rows = 1;
        ((float*)a)[last] = 3.0f;
        memo_cast_item(&cast, memo_cast_items(&cast) - 2); /* its second group is the last one */
        CHECK_IS(memo_f32_from_bf16(((uint16_t*)b)[last]), ==, 3.0f);

        add.to = b;
        add.a = add.b = a;
        add.n_columns = 4;
        add.n_rows = HUGE_ELEMENTS / 4;
        keeps.struct_bytes = sizeof keeps;
        keeps.context = &add;
        keeps.row_kernel = keep_add;
        CHECK_OK(memo_row_add(&keeps, NULL, &add, &error));
        memo_add_item(&add, memo_add_items(&add) - 1);
        CHECK_IS(((float*)b)[last], ==, 6.0f);
        add.n_rows = HUGE_ELEMENTS / 4; /* the same as rows that do not touch */
        add.n_columns = 3;
        add.to_stride = add.a_stride = add.b_stride = 4;
        ((float*)a)[last - 1] = 5.0f;
        memo_add_item(&add, memo_add_items(&add) - 1);
        CHECK(((float*)b)[last - 1] == 10.0f && ((float*)b)[last] == 6.0f);

        sums.a = sums.b = a;
        sums.to = &sum;
        sums.n_rows = n_rows;
        sums.n_columns = sums.a_stride = sums.b_stride = n_columns;
        ((float*)a)[n_rows * n_columns - 128] = 7.0f;
        CHECK_IS(memo_row_sum_lane(&sums, n_rows - 1, 0), ==, 49.0f);

        merge.out = (float*)(void*)b;
        merge.part_out = a;
        merge.n_batches = 1;
        merge.n_rows = n_rows;
        merge.n_columns = n_columns;
        merge.lse = (float*)(void*)a; /* of no keys; a part's are 0 */
        merge.part_lse = merge.lse + n_rows;
        merge.lse[n_rows - 1] = -INFINITY;
        memo_merge_lane(&merge, n_rows - 1, 0);
        CHECK_IS(merge.out[n_rows * n_columns - 128], ==, 7.0f);
    }
    if (a) munmap(a, (size_t)(4 * HUGE_ELEMENTS));
    if (b) munmap(b, (size_t)(4 * HUGE_ELEMENTS));
    if (!a || !b) SKIP("no room for two arrays of 8 GiB addresses; raise ulimit -v");

    int64_t rest;
    const int64_t big = ((int64_t)1 << 40) + 5;
    CHECK(memoi_row_of(big, 7, &rest) == big / 7 && rest == big % 7);
    CHECK(memoi_row_of(41, (int64_t)1 << 33, &rest) == 0 && rest == 41);
    CHECK(memoi_row_of(0xffffffff, 3, &rest) == 0xffffffff / 3 && rest == 0);
}
