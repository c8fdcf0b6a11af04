/* test_sp_attention_faults.c - attention, or a scan, over two ranks, or four on two nodes, in which
 * the k-th call fails, for every k: of the device's table, of the communicators, or of a callback.
 * All ranks get a status with a message in bounded time, and nothing leaks.  The next run gives the right results,
 * on a new communicator, and on new devices because a host device cannot be used after a failed
 * operation. */
#include "memo_sp.h"
#include "extras/memo_look.h"
#include <pthread.h>
#include "memo_test.h"
#include "stats.h"
#include "examples/host_attention.h"
#include "typed.h"
#include "made_mask.h"

#define N_TOKENS 16
#define N_RANKS  4 /* at most */
#define N_HEADS  2
#define N_KV     1
#define SIZE     4
#define ELEMENTS (N_TOKENS * N_HEADS * SIZE)

static memo_error error;

/* --- the k-th call fails --- */

typedef struct faults {
    int64_t n_calls, failing; /* failing 0: none */
    const memo_device* device;
    memo_attention attention;
    memo_faults of_device;
} faults;

static int is_failing(faults* f, const char* what, memo_error* e) {
    if (++f->n_calls != f->failing) return 0;
    memo_error_set(e, MEMO_STATUS_DEVICE, "%s: call %lld fails on purpose", what,
                   (long long)f->failing);
    return 1;
}

/* A communicator whose functions may fail instead. */
typedef struct faulty {
    faults* f;
    memo_comm* comm;
} faulty;

static memo_status faulty_messages(memo_comm* comm, memo_stream s, const memo_message_call* calls,
                                   int32_t n, memo_error* e) {
    faulty* of = (faulty*)comm->context;
    if (is_failing(of->f, "messages", e)) return MEMO_STATUS_COMM;
    return of->comm->messages(of->comm, s, calls, n, e);
}
static memo_status faulty_collective(memo_comm* comm, memo_stream s,
                                     const memo_collective_call* call, memo_error* e) {
    faulty* of = (faulty*)comm->context;
    if (is_failing(of->f, "collective", e)) return MEMO_STATUS_COMM;
    return of->comm->collective(of->comm, s, call, e);
}
static memo_status faulty_status(memo_comm* comm, memo_error* e) {
    return memo_comm_status(((faulty*)comm->context)->comm, e);
}

static memo_comm faulty_comm(faulty* of) {
    memo_comm table = *of->comm;
    table.context = of;
    table.messages = faulty_messages;
    table.collective = faulty_collective;
    table.status = faulty_status;
    return table;
}

/* The local attention is refused, or, every other time, fails when the stream gets there. */
static memo_status failing_operation(MEMO_UNUSED void* args, memo_error* e) {
    return memo_error_set(e, MEMO_STATUS_DEVICE, "an operation fails on purpose");
}
static memo_status faulty_attention(faults* f, memo_attention_function function, memo_stream s,
                                    const memo_attention_block* block, memo_error* e) {
    if (is_failing(f, "attention", e)) {
        if (f->failing % 2) return MEMO_STATUS_DEVICE;
        return memo_host_device_launch((memo_device*)(uintptr_t)f->device, s, failing_operation,
                                       NULL, 0, e);
    }
    return function(f->attention.user, s, block, e);
}
static memo_status faulty_forward(void* user, memo_stream s, const memo_attention_block* block,
                                  memo_error* e) {
    faults* f = (faults*)user;
    return faulty_attention(f, f->attention.forward, s, block, e);
}
static memo_status faulty_backward(void* user, memo_stream s, const memo_attention_block* block,
                                   memo_error* e) {
    faults* f = (faults*)user;
    return faulty_attention(f, f->attention.backward, s, block, e);
}

/* --- ranks --- */

enum { FAULT_DEVICE, FAULT_COMM, FAULT_ATTENTION };
/* What runs over the ranks: a ring, of documents that are a tree, or over two nodes; or a scan. */
enum { RUNS_RING, RUNS_TREE, RUNS_NODES, RUNS_ULYSSES, RUNS_SCAN };
static const char* const run_names[] = {"ring", "ring of a tree", "ring over nodes", "ulysses",
                                        "scan"};
static int n_ranks_of(int what) { return what == RUNS_NODES ? 4 : 2; }

/* After its failure, the rank aborts, leaves, or stays until the others' time-out. */
enum { AFTERWARDS_ABORT, AFTERWARDS_LEAVE, AFTERWARDS_STAY };
enum { Q, K, V, D_OUT, OUT, D_Q, D_K, D_V, N_TENSORS };

typedef struct rank_run {
    int32_t rank;
    int what;
    memo_type type;
    int fault, afterwards;
    int64_t failing; /* 0: none here */
    int64_t n_calls;
    memo_device* device;
    memo_comm *world, *nodes; /* nodes: ranks at this place of their nodes; NULL: one node */
    pthread_barrier_t* finished;
    memo_status status;
    memo_error error;
    float tensors[N_TENSORS][ELEMENTS]; /* room for them */
    float sinks[2 * N_HEADS];           /* and their gradients */
} rank_run;

/* Before all is destroyed, which has nobody to tell of a failure. */
static void end_pass(rank_run* r, const faults* f, memo_stream stream, memo_status status) {
    r->n_calls = f->n_calls + f->of_device.n_calls;
    if (status && r->failing && r->afterwards == AFTERWARDS_ABORT) memo_comm_abort(r->world);
    IGNORE(memo_stream_synchronize(r->device, stream, NULL));
}

/* Everything that a trainer does from creation to synchronization. */
static memo_status rank_pass(rank_run* r, const memo_device* table, memo_comm* comm,
                             memo_comm* nodes, faults* f, memo_stream stream, memo_error* e) {
    static const int64_t begins[] = {0, 5, 9, N_TOKENS}, parents[] = {-1, 0, 0};
    const int32_t ring = r->what == RUNS_ULYSSES ? 1 : n_ranks_of(r->what);
    memo_sp_attention_desc desc = {0};
    memo_sp_attention_sizes sizes;
    memo_sp_attention* attention = NULL;
    memo_mask_desc mask_desc = {.n_tokens = N_TOKENS};
    memo_mask mask;
    memo_exchange_desc exchange_desc = {.masks = &mask, .has_sinks = 1};
    memo_exchange* exchange = NULL;
    void* saved = NULL;
    float* lse = NULL;
    host_attention state = {.device = r->device, .n_scores = 0};
    memo_sharding_desc sharding_desc = {
        .ring = ring, .ulysses = n_ranks_of(r->what) / ring, .n_tokens = N_TOKENS};
    memo_status status = memo_sharding_make(&sharding_desc, &desc.sharding, e);
    desc.device = table;
    desc.stream = stream;
    *(ring > 1 ? &desc.ring : &desc.ulysses) = comm;
    desc.nodes = nodes;
    if (r->what == RUNS_TREE) {
        desc.has_levels = 1;
        mask_desc.document_begins = begins;
        mask_desc.document_parents = parents;
        mask_desc.n_documents = 3;
    }
    desc.n_q_heads = N_HEADS;
    desc.n_kv_heads = N_KV; /* replicated if ulysses is 2 */
    desc.head_size = SIZE;
    desc.type = r->type;
    desc.attention = host_attention_functions(&state);
    if (r->fault == FAULT_ATTENTION) {
        f->attention = desc.attention;
        desc.attention.forward = faulty_forward;
        desc.attention.backward = faulty_backward;
        desc.attention.user = f;
    }
    if (!status) status = memo_sp_attention_desc_get_sizes(&desc, &sizes, e);
    if (status) return status;
    mask = made_mask(&mask_desc);
    lse = (float*)calloc((size_t)sizes.lse_bytes, 1);
    saved = calloc((size_t)sizes.saved_bytes + 1, 1);
    memo_sp_attention_tensors t = {.q = r->tensors[Q],
                                   .k = r->tensors[K],
                                   .v = r->tensors[V],
                                   .d_out = r->tensors[D_OUT],
                                   .out = r->tensors[OUT],
                                   .d_q = r->tensors[D_Q],
                                   .d_k = r->tensors[D_K],
                                   .d_v = r->tensors[D_V],
                                   .lse = lse,
                                   .sinks = r->sinks,
                                   .d_sinks = r->sinks + N_HEADS,
                                   .saved = saved};
    status = memo_sp_attention_create(&desc, &attention, e);
    CHECK_IS(!status, ==, (attention != NULL));
    if (!status) status = memo_exchange_create(attention, &exchange_desc, &exchange, e);
    if (!status) status = memo_sp_attention_forward(attention, exchange, &t, e);
    if (!status) status = memo_sp_attention_backward(attention, exchange, &t, e);
    if (!status) status = memo_stream_synchronize(table, stream, e);
    end_pass(r, f, stream, status);
    memo_exchange_destroy(exchange);
    memo_sp_attention_destroy(attention);
    made_mask_free(&mask);
    free(lse);
    free(saved);
    return status;
}

/* A scan with its halo, whose callbacks only copy. */
typedef struct scan_pass {
    rank_run* r;
    const memo_device* table;
    faults* f;
} scan_pass;

static memo_status scan_copy(const scan_pass* pass, memo_stream s, void* to, const void* from,
                             memo_error* e) {
    if (pass->r->fault == FAULT_ATTENTION && is_failing(pass->f, "callback", e))
        return MEMO_STATUS_DEVICE;
    return to ? memo_copy(pass->table, s, MEMO_COPY_ON_DEVICE, to, from, SIZE * 4, e)
              : MEMO_STATUS_OK;
}
static memo_status scan_summarize(void* context, const memo_scan_call* call, memo_error* e) {
    const scan_pass* pass = (const scan_pass*)context;
    memo_status status = scan_copy(pass, call->stream, call->m, pass->r->tensors[K], e);
    return status ? status : scan_copy(pass, call->stream, call->b, pass->r->tensors[Q], e);
}
static memo_status scan_compose(void* context, const memo_scan_call* call, memo_error* e) {
    return scan_copy((const scan_pass*)context, call->stream, call->b, call->then_b, e);
}
static memo_status scan_run(void* context, const memo_scan_call* call, memo_error* e) {
    const scan_pass* pass = (const scan_pass*)context;
    return scan_copy(pass, call->stream, pass->r->tensors[call->is_backward ? D_K : D_V],
                     call->state, e);
}

static memo_status rank_scan(rank_run* r, const memo_device* table, memo_comm* comm,
                             MEMO_UNUSED memo_comm* nodes, faults* f, memo_stream stream,
                             memo_error* e) {
    scan_pass pass = {r, table, f};
    const int64_t begins[] = {0, N_TOKENS, 2 * N_TOKENS};
    memo_scan_tensors t = {NULL, r->tensors[OUT], r->tensors[V]};
    memo_scan* scan = NULL;
    memo_scan_desc desc = {0};
    desc.device = table;
    desc.stream = stream;
    desc.comm = comm;
    desc.m_count = desc.b_count = SIZE;
    desc.functions = (memo_scan_functions){&pass, scan_summarize, scan_compose, scan_run};
    desc.halo_rows = 3;
    desc.halo_columns = SIZE;
    memo_status status = memo_scan_create(&desc, &scan, e);
    CHECK_IS(!status, ==, (scan != NULL));
    if (!status) status = memo_scan_set_rows(scan, begins, NULL, 0, e);
    if (!status) status = memo_scan_halo_forward(scan, r->tensors[Q], r->tensors[D_Q], e);
    if (!status) status = memo_scan_forward(scan, &t, e);
    if (!status) status = memo_scan_backward(scan, &t, e);
    if (!status) status = memo_scan_halo_backward(scan, r->tensors[D_Q], r->tensors[D_OUT], e);
    if (!status) status = memo_stream_synchronize(table, stream, e);
    end_pass(r, f, stream, status);
    memo_scan_destroy(scan);
    return status;
}

static void* rank_main(void* argument) {
    rank_run* r = (rank_run*)argument;
    memo_stream stream = NULL;
    memset(&r->error, 0, sizeof r->error);
    faults f = {.device = r->device, .failing = r->fault == FAULT_DEVICE ? 0 : r->failing};
    r->status = memo_stream_create(r->device, "compute", 0, &stream, &r->error);
    memo_faults_init(&f.of_device, r->device);
    f.of_device.failing_call = r->fault == FAULT_DEVICE ? r->failing : 0;
    if (!r->status && r->what == RUNS_NODES)
        r->status =
            memo_comm_split(r->world, r->rank % 2, r->rank / 2, "nodes", &r->nodes, &r->error);
    faulty of[2] = {{&f, r->world}, {&f, r->nodes}};
    memo_comm comms[2] = {faulty_comm(&of[0]), faulty_comm(&of[r->nodes ? 1 : 0])};
    memo_comm* const given[2] = {r->fault == FAULT_COMM ? &comms[0] : r->world,
                                 r->fault == FAULT_COMM && r->nodes ? &comms[1] : r->nodes};
    if (!r->status)
        r->status = (r->what == RUNS_SCAN ? rank_scan : rank_pass)(
            r, r->fault == FAULT_DEVICE ? &f.of_device.device : r->device, given[0], given[1], &f,
            stream, &r->error);
    if (stream) (void)memo_stream_destroy(r->device, stream, NULL);
    if (r->afterwards == AFTERWARDS_STAY) pthread_barrier_wait(r->finished);
    memo_comm_destroy(r->nodes);
    memo_comm_destroy(r->world);
    return NULL;
}

/* All ranks, on fresh devices and a fresh communicator. */
static void run_ranks(rank_run* ranks) {
    const int n = n_ranks_of(ranks->what);
    memo_host_device_desc device_desc = {0};
    memo_device* devices[N_RANKS] = {NULL};
    memo_comm* comms[N_RANKS];
    pthread_barrier_t finished;
    pthread_t threads[N_RANKS];
    for (int r = 0; r < n; r++)
        CHECK_OK(memo_host_device_create(&device_desc, &devices[r], &error));
    memo_comm_threads_desc desc = {.n_ranks = n,
                                   .devices = devices,
                                   .timeout_s = ranks->afterwards == AFTERWARDS_STAY ? 0.05 : 30};
    CHECK_OK(memo_comm_create_threads(&desc, comms, &error));
    pthread_barrier_init(&finished, NULL, (unsigned)n);
    for (int r = 0; r < n; r++) {
        ranks[r].world = comms[r];
        ranks[r].device = devices[r];
        ranks[r].finished = &finished;
        pthread_create(&threads[r], NULL, rank_main, &ranks[r]);
    }
    for (int r = 0; r < n; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < n; r++) {
        CHECK_IS(host_device_stats(devices[r]).device_bytes, ==, 0);
        memo_host_device_destroy(devices[r]);
    }
    pthread_barrier_destroy(&finished);
}

static void ranks_init(rank_run* ranks, int what, memo_type type, int fault) {
    memset(ranks, 0, N_RANKS * sizeof *ranks);
    for (int r = 0; r < n_ranks_of(what); r++) {
        ranks[r].rank = r;
        ranks[r].what = what;
        ranks[r].type = type;
        ranks[r].fault = fault;
        for (int t = Q; t <= D_OUT; t++)
            for (int i = 0; i < ELEMENTS; i++)
                typed_set(ranks[r].tensors[t], i, type, (i * 7 + t * 3 + r * 5) % 11 - 5);
    }
}

static int is_right(const rank_run* r, const rank_run* expected) {
    return !memcmp(r->tensors, expected->tensors, sizeof r->tensors);
}

/* Every call of this kind, one after another. */
static void expect_statuses(int what, memo_type type, int fault) {
    static rank_run expected[N_RANKS], ranks[N_RANKS];
    const int n = n_ranks_of(what);
    int64_t n_all = 0, n_runs = 0;
    double longest_s = 0;
    ranks_init(expected, what, type, fault);
    run_ranks(expected);
    for (int r = 0; r < n; r++) CHECK_CASE(!expected[r].status, "%s", expected[r].error.message);
    for (int r = 0; r < n; r++)
        for (int64_t k = 1; k <= expected[r].n_calls; k++) {
            const int afterwards = k % 11 == 0  ? AFTERWARDS_STAY
                                   : k % 5 == 1 ? AFTERWARDS_LEAVE
                                                : AFTERWARDS_ABORT;
            const double begin_s = now_s();
            int n_failed = 0;
            ranks_init(ranks, what, type, fault);
            ranks[r].failing = k;
            for (int i = 0; i < n; i++) ranks[i].afterwards = afterwards;
            run_ranks(ranks);
            longest_s = fmax(longest_s, now_s() - begin_s);
            IN_CASE("fault %d, %s, rank %d, call %d", fault, run_names[what], r, (int)k);
            CHECK(ranks[r].status && ranks[r].error.message[0]);
            if (afterwards != AFTERWARDS_STAY) /* before the other ranks' time-out */
                CHECK_TEXT(ranks[r].error.message, "on purpose");

            /* The others may have had all that they need. */
            for (int i = 0; i < n; i++) {
                CHECK(ranks[i].status ? ranks[i].error.message[0] != 0
                                      : is_right(&ranks[i], &expected[i]));
                if (ranks[i].status && i != r) CHECK_IS(ranks[i].status, ==, MEMO_STATUS_COMM);
                n_failed += ranks[i].status != MEMO_STATUS_OK;
            }
            n_all += n_failed == n;
            n_runs++;
        }
    CHECK_CASE(longest_s < 20, "%g s", longest_s);
    ranks_init(ranks, what, type, fault);
    run_ranks(ranks);
    for (int r = 0; r < n; r++) CHECK(!ranks[r].status && is_right(&ranks[r], &expected[r]));
    printf("# %s, %d ranks, %s: %d faults, in %d all ranks failed, at most %.2f s\n",
           run_names[what], n, memo_type_name(type), (int)n_runs, (int)n_all, longest_s);
    CHECK_IS(n_all, >, n_runs / 3);
}

TEST(every_call_of_the_device_may_fail) {
    expect_statuses(RUNS_RING, MEMO_TYPE_F32, FAULT_DEVICE);
    expect_statuses(RUNS_RING, MEMO_TYPE_BF16, FAULT_DEVICE);
    expect_statuses(RUNS_ULYSSES, MEMO_TYPE_BF16, FAULT_DEVICE);
}
TEST(every_call_of_the_communicator_may_fail) {
    expect_statuses(RUNS_RING, MEMO_TYPE_F32, FAULT_COMM);
    expect_statuses(RUNS_ULYSSES, MEMO_TYPE_BF16, FAULT_COMM);
}
TEST(every_local_attention_may_fail) {
    expect_statuses(RUNS_RING, MEMO_TYPE_F32, FAULT_ATTENTION);
    expect_statuses(RUNS_ULYSSES, MEMO_TYPE_F32, FAULT_ATTENTION);
}
TEST(every_call_of_a_tree_may_fail) {
    for (int fault = FAULT_DEVICE; fault <= FAULT_ATTENTION; fault++)
        expect_statuses(RUNS_TREE, MEMO_TYPE_F32, fault);
}
TEST(every_call_of_a_ring_over_nodes_may_fail) {
    for (int fault = FAULT_DEVICE; fault <= FAULT_ATTENTION; fault++)
        expect_statuses(RUNS_NODES, MEMO_TYPE_F32, fault);
}
TEST(every_call_of_a_scan_may_fail) {
    for (int fault = FAULT_DEVICE; fault <= FAULT_ATTENTION; fault++)
        expect_statuses(RUNS_SCAN, MEMO_TYPE_F32, fault);
}
