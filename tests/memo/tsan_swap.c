/* tsan_swap.c - runs a few micro-batches of swapping without the k-th wait.  test_tsan.sh builds it
 * with a race detector and checks its reports.
 *
 *   tsan_swap            no wait dropped; prints "waits N"
 *   tsan_swap K RATE     the K-th (from 0; -1: none) is dropped; copies at RATE bytes/s, 0:
 *                        unthrottled
 *   tsan_swap K RATE H   places for H layers in host memory, the others in a file; 0: places for
 *                        all
 *
 * Slow copies matter: a late wait sees a later record of its event too, and is then ordered after
 * more operations than required.
 *
 * Every stream begins with a gate. It opens when everything is enqueued, so that no queue orders
 * the streams by accident.
 */
#define MEMO_IMPLEMENTATION
#include "memo.h"
#define MEMO_TEST_OWN_MAIN
#include "swap_chain.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static memo_device* inner;
static long n_waits, dropped = -1;

static memo_status dropping_event_wait(void* context, memo_event event, memo_stream stream,
                                       memo_error* e) {
    if (n_waits++ == dropped) return MEMO_STATUS_OK;
    return inner->event_wait(context, event, stream, e);
}

static int32_t gate;

static memo_status pass_gate(MEMO_UNUSED void* args, MEMO_UNUSED memo_error* e) {
    struct timespec nap = {0, 50000};
    while (!__atomic_load_n(&gate, __ATOMIC_ACQUIRE)) nanosleep(&nap, NULL);
    return MEMO_STATUS_OK;
}

static memo_status gated_stream_create(void* context, const char* name, int32_t priority,
                                       memo_stream* stream, memo_error* e) {
    memo_status status = inner->stream_create(context, name, priority, stream, e);
    if (status) return status;
    return memo_host_device_launch(inner, *stream, pass_gate, NULL, 0, e);
}

int main(int argc, char** argv) {
    static const int32_t away[] = {MEMO_MOVE, MEMO_ROWS, MEMO_ROWS};
    memo_host_device_desc host_desc = {0};
    memo_device* host = NULL;
    chain c;
    chain_init(&c, 3);
    if (argc > 1) dropped = strtol(argv[1], NULL, 10);
    if (argc > 2)
        host_desc.to_host_bytes_per_s = host_desc.to_device_bytes_per_s = strtod(argv[2], NULL);
    if (memo_host_device_create(&host_desc, &host, &error)) goto failed;
    inner = host;
    memo_device table = *host;
    table.stream_create = gated_stream_create;
    table.event_wait = dropping_event_wait;
    c.host = host;
    c.device = &table;
    c.desc.n_layers = 5;
    c.desc.n_rows = 6;
    c.desc.tile_rows = 2;
    c.desc.alpha = 0.5;
    c.desc.spill_directory = chain_folder();
    if (argc > 3) c.desc.n_host_layers = (int32_t)strtol(argv[3], NULL, 10);
    for (int t = 0; t < 3; t++) {
        c.tensors[t].row_bytes = 8;
        c.tensors[t].away = away[t];
    }
    if (chain_open(&c)) goto failed;
    for (int micro_batch = 0; micro_batch < 2; micro_batch++)
        if (chain_micro_batch(&c, micro_batch, 1000)) goto failed;
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    if (memo_stream_synchronize(host, c.compute, &error)) goto failed;
    chain_close(&c);
    memo_host_device_destroy(host);
    printf("waits %ld\n", n_waits);
    return 0;
failed:
    fprintf(stderr, "tsan_swap: %s\n", error.message);
    return 2;
}
