/* test_turns.c - threads in an order drawn from a seed: races of the host device, the swap engine
 * and the communicator are found by search, and shown again by the seed that found them.  A wait
 * that is left out on purpose must be found; with all waits no order gives other bytes. */
#include "turns.h"

#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include "memo_test.h"
#include "swap_chain.h"

#define N_SEEDS memo_test_cases(12, 500)

/* --- two streams write their letters --- */

typedef struct letters {
    char* text;
    int32_t* n;
    char letter;
} letters;
static memo_status write_letter(void* args, MEMO_UNUSED memo_error* e) {
    const letters* l = (const letters*)args;
    l->text[(*l->n)++] = l->letter; /* one thread at a time */
    return MEMO_STATUS_OK;
}

/* Three streams of eight letters each; with_waits: b begins when a has ended. */
static void run_letters(uint64_t seed, int with_waits, char* text) {
    const memo_host_device_desc desc = MEMO_ZERO(memo_host_device_desc);
    memo_device* device = NULL;
    memo_stream streams[3];
    memo_event event;
    int32_t n = 0;
    memset(text, 0, 25);
    turns_begin(seed);
    CHECK_OK(memo_host_device_create(&desc, &device, &error));
    CHECK_OK(memo_event_create(device, &event, &error));
    for (int s = 0; s < 3; s++)
        CHECK_OK(memo_stream_create(device, "letters", 0, &streams[s], &error));
    for (int s = 0; s < 3; s++) {
        if (s == 1 && with_waits) CHECK_OK(memo_event_wait(device, event, streams[1], &error));
        for (int i = 0; i < 8; i++) {
            letters l = {text, &n, (char)('a' + s)};
            CHECK_OK(
                memo_host_device_launch(device, streams[s], write_letter, &l, sizeof l, &error));
        }
        if (s == 0) CHECK_OK(memo_event_record(device, event, streams[0], &error));
    }
    for (int s = 0; s < 3; s++) {
        CHECK_OK(memo_stream_synchronize(device, streams[s], &error));
        CHECK_OK(memo_stream_destroy(device, streams[s], &error));
    }
    CHECK_OK(memo_event_destroy(device, event, &error));
    memo_host_device_destroy(device);
    turns_end();
}

TEST(a_seed_gives_its_order_again) {
    char text[25], again[25], last[25] = "";
    int n_orders = 0, n_early = 0;
    for (uint64_t seed = 0; seed < 40; seed++) {
        run_letters(seed, 0, text);
        run_letters(seed, 0, again);
        CHECK_CASE(!strcmp(text, again), "seed %d: %s, then %s", (int)seed, text, again);
        CHECK_IS(strlen(text), ==, 24);
        n_orders += strcmp(text, last) != 0;
        n_early += strchr(text, 'b') < strrchr(text, 'a');
        strcpy(last, text);
        run_letters(seed, 1, text);
        CHECK_CASE(strchr(text, 'b') > strrchr(text, 'a'), "seed %d: %s", (int)seed, text);
    }
    CHECK_CASE(n_orders >= 30 && n_early >= 10, "%d orders, %d without the wait", n_orders,
               n_early);
}

/* --- the swap engine --- */

static memo_device* inner;
static int64_t n_waits, dropped;
static memo_status dropping_event_wait(void* context, memo_event event, memo_stream stream,
                                       memo_error* e) {
    if (n_waits++ == dropped) return MEMO_STATUS_OK;
    return inner->event_wait(context, event, stream, e);
}

/* Three micro-batches without wait number `without` (-1: none), with places for as many layers in
 * host memory, the others in a file; 0: for all.  Returns how many bytes came back wrong. */
static int64_t run_chain(uint64_t seed, int64_t without, int n_host_layers) {
    static const int32_t away[] = {MEMO_MOVE, MEMO_ROWS, MEMO_ROWS};
    const memo_host_device_desc desc = MEMO_ZERO(memo_host_device_desc);
    memo_device table;
    chain c;
    int64_t n_wrong;
    n_waits = 0, dropped = without;
    chain_init(&c, 3);
    turns_begin(seed);
    CHECK_OK(memo_host_device_create(&desc, &inner, &error));
    table = *inner;
    table.event_wait = dropping_event_wait;
    c.host = inner;
    c.device = &table;
    c.desc.n_layers = 5;
    c.desc.n_rows = 6;
    c.desc.tile_rows = 2;
    c.desc.alpha = 0.5;
    c.desc.n_host_layers = n_host_layers;
    c.desc.spill_directory = chain_folder();
    for (int t = 0; t < 3; t++) c.tensors[t].row_bytes = 8, c.tensors[t].away = away[t];
    CHECK_OK(chain_open(&c));
    for (int i = 0; i < 3; i++) CHECK_OK(chain_micro_batch(&c, i, 1000));
    CHECK_OK(memo_stream_synchronize(inner, c.compute, &error));
    n_wrong = c.n_wrong;
    chain_close(&c);
    memo_host_device_destroy(inner);
    turns_end();
    return n_wrong;
}

/* Searches an order in which the run without a wait has wrong bytes, and shows it again.  Returns the
 * tries. */
static int64_t search(int64_t (*run)(uint64_t seed, int64_t without, int way), int way,
                      int64_t without, int64_t n_all) {
    const uint64_t first = memo_test_random() >> 32;
    int64_t k = 0;
    while (k < 3000 && !run(first + (uint64_t)k, without, way)) k++;
    CHECK_CASE(k < 3000, "wait %lld of %lld is missing, and 3000 orders show nothing",
               (long long)without, (long long)n_all);
    CHECK_CASE(run(first + (uint64_t)k, without, way), "seed %lld showed that wait %lld is missing",
               (long long)(first + (uint64_t)k), (long long)without);
    if (memo_test_all() || k > 5)
        printf("# wait %lld of %lld is missing: found by seed %lld, try %lld\n", (long long)without,
               (long long)n_all, (long long)(first + (uint64_t)k), (long long)k + 1);
    return k + 1;
}
/* No wait is missing: nothing is wrong in any order.  Otherwise the search finds it. */
static void check_waits(int64_t (*run)(uint64_t seed, int64_t without, int way), int way,
                        int64_t stride) {
    int64_t n_all, n_searched = 0, n_tries = 0;
    for (int k = 0; k < N_SEEDS; k++) {
        const uint64_t seed = memo_test_random() >> 32;
        CHECK_CASE(!run(seed, -1, way), "seed %lld", (long long)seed);
    }
    n_all = n_waits;
    for (int64_t wait = way; wait < n_all && !memo_test.failures; wait += stride, n_searched++)
        n_tries += search(run, way, wait, n_all);
    printf("# %lld of %lld waits left out, one at a time: found in %lld orders\n",
           (long long)n_searched, (long long)n_all, (long long)n_tries);
    CHECK_IS(n_searched, >=, 6);
}

TEST(search_finds_each_missing_wait_of_the_engine) {
    for (int n_host_layers = 0; n_host_layers < 2; n_host_layers++)
        check_waits(run_chain, n_host_layers, memo_test_all() ? 1 : 6);
}

/* --- the communicator --- */

enum { RANKS = 3, N_BYTES = 64, N_ROUNDS = 4 };

/* Rounds of a computation that writes bytes, a ring of messages, a maximum and a sum of all ranks,
 * and a computation that compares.  Transfers have a stream, which waits for the computation, and the
 * computation waits for it. */
static int64_t run_ranks(uint64_t seed, int64_t without, MEMO_UNUSED int way) {
    const memo_host_device_desc host = MEMO_ZERO(memo_host_device_desc);
    static unsigned char from[RANKS][N_BYTES], to[RANKS][N_BYTES], most[RANKS][N_BYTES];
    static const float parts[RANKS] = {1e8f, 1.25f, -1e8f}; /* another order, another sum */
    float sums[RANKS];
    memo_device* devices[RANKS] = {NULL};
    memo_comm* comms[RANKS];
    memo_stream compute[RANKS], transfer[RANKS];
    memo_event ready[RANKS], arrived[RANKS];
    memo_comm_threads_desc desc = MEMO_ZERO(memo_comm_threads_desc);
    int64_t n_wrong[RANKS] = {0}, n_all = 0;
    n_waits = 0, dropped = without;
    turns_begin(seed);
    for (int r = 0; r < RANKS; r++) {
        CHECK_OK(memo_host_device_create(&host, &devices[r], &error));
        CHECK_OK(memo_stream_create(devices[r], "compute", 0, &compute[r], &error));
        CHECK_OK(memo_stream_create(devices[r], "transfer", 0, &transfer[r], &error));
        CHECK_OK(memo_event_create(devices[r], &ready[r], &error));
        CHECK_OK(memo_event_create(devices[r], &arrived[r], &error));
    }
    desc.n_ranks = RANKS;
    desc.devices = devices;
    CHECK_OK(memo_comm_create_threads(&desc, comms, &error));
    for (int i = 0; i < N_ROUNDS; i++)
        for (int r = 0; r < RANKS; r++) {
            const int next = (r + 1) % RANKS, last = (r + RANKS - 1) % RANKS;
            const pattern write = {from[r], 0, N_BYTES, (uint64_t)(i * RANKS + r + 1), NULL};
            const pattern compare = {to[r], 0, N_BYTES, (uint64_t)(i * RANKS + last + 1),
                                     &n_wrong[r]};
            inner = devices[r];
            CHECK_OK(memo_host_device_launch(inner, compute[r], run_pattern, &write,
                                             (int64_t)sizeof write, &error));
            CHECK_OK(memo_event_record(inner, ready[r], compute[r], &error));
            CHECK_OK(dropping_event_wait(inner->context, ready[r], transfer[r], &error));
            CHECK_OK(memo_group_begin(comms[r], &error));
            CHECK_OK(
                memo_send(comms[r], transfer[r], from[r], N_BYTES, MEMO_TYPE_U8, next, &error));
            CHECK_OK(
                memo_receive(comms[r], transfer[r], to[r], N_BYTES, MEMO_TYPE_U8, last, &error));
            CHECK_OK(memo_group_end(comms[r], transfer[r], &error));
            CHECK_OK(memo_all_reduce(comms[r], transfer[r], from[r], most[r], N_BYTES, MEMO_TYPE_U8,
                                     MEMO_REDUCTION_MAX, &error));
            CHECK_OK(memo_all_reduce(comms[r], transfer[r], &parts[r], &sums[r], 1, MEMO_TYPE_F32,
                                     MEMO_REDUCTION_SUM, &error));
            CHECK_OK(memo_event_record(inner, arrived[r], transfer[r], &error));
            CHECK_OK(dropping_event_wait(inner->context, arrived[r], compute[r], &error));
            CHECK_OK(memo_host_device_launch(inner, compute[r], run_pattern, &compare,
                                             (int64_t)sizeof compare, &error));
        }
    for (int r = 0; r < RANKS; r++) {
        CHECK_OK(memo_stream_synchronize(devices[r], transfer[r], &error));
        CHECK_OK(memo_stream_synchronize(devices[r], compute[r], &error));
        n_all += n_wrong[r];
    }
    for (int r = 0; r < RANKS; r++) {
        const float sum = (parts[0] + parts[1]) + parts[2];
        CHECK(!memcmp(&sums[r], &sum, sizeof sum));
    }
    if (without < 0)
        for (int r = 0; r < RANKS; r++)
            for (int i = 0; i < N_BYTES; i++) {
                unsigned char largest = from[0][i];
                for (int k = 1; k < RANKS; k++)
                    if (from[k][i] > largest) largest = from[k][i];
                CHECK_IS(most[r][i], ==, largest);
            }
    for (int r = 0; r < RANKS; r++) memo_comm_destroy(comms[r]);
    for (int r = 0; r < RANKS; r++) {
        CHECK_OK(memo_event_destroy(devices[r], ready[r], &error));
        CHECK_OK(memo_event_destroy(devices[r], arrived[r], &error));
        CHECK_OK(memo_stream_destroy(devices[r], transfer[r], &error));
        CHECK_OK(memo_stream_destroy(devices[r], compute[r], &error));
        memo_host_device_destroy(devices[r]);
    }
    turns_end();
    return n_all;
}

TEST(search_finds_each_missing_wait_of_ranks) {
    check_waits(run_ranks, 0, memo_test_all() ? 1 : 3);
}
