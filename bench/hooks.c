/* bench/hooks.c - how long memo_hooks_end plans, by the number of saved tensors.
 *
 *   make build/bench/hooks && build/bench/hooks [TENSORS_A_LAYER]
 *
 * A trainer of 300 layers saves 126 tensors in each (37,800), or so many, of which half of the bytes
 * fit.  The first micro-batch is recorded; its end makes the plan.  Half as many tensors come first:
 * the last column is the ratio, 2 if time grows with the number, 4 if with its square. */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_HOOKS_IMPLEMENTATION
#include "memo_plan.h"
#include "extras/memo_hooks.h"
#include <stdio.h>

enum { LAYERS = 300, MOST = 400, BYTES = 64 };
static int64_t tokens[LAYERS][MOST];
static char bytes[LAYERS][MOST][BYTES];

/* Seconds of the end of the recorded micro-batch; negative: an error. */
static double plan_s(const memo_device* device, int n, memo_error* error) {
    memo_hooks_desc desc = {0};
    memo_hooks* hooks = NULL;
    void* addresses[MOST];
    double begin_s = 0;
    desc.device = device, desc.computes_on_host = 1;
    desc.device_bytes = (int64_t)LAYERS * n * BYTES / 2;
    memo_status status = memo_hooks_create(&desc, &hooks, error);
    if (!status) status = memo_hooks_begin(hooks, error);

    for (int l = 0; l < LAYERS && !status; l++) {
        status = memo_hooks_set_layer(hooks, l, error);
        for (int i = 0; i < n && !status; i++)
            status = memo_hooks_pack(hooks, bytes[l][i], BYTES, &tokens[l][i], error);
    }
    if (!status) status = memo_hooks_set_layer(hooks, -1, error);
    for (int l = LAYERS - 1; l >= 0 && !status; l--)
        status = memo_hooks_unpack(hooks, tokens[l], n, addresses, error);

    begin_s = memob_now_s();
    if (!status) status = memo_hooks_end(hooks, error);
    begin_s = memob_now_s() - begin_s;
    memo_hooks_destroy(hooks);
    return status ? -1 : begin_s;
}

int main(int argc, char** argv) {
    const memo_host_device_desc host = {0};
    const int most = argc > 1 ? atoi(argv[1]) : 126;
    memo_device* device = NULL;
    memo_error error;
    double before_s = 0;
    if (most < 2 || most > MOST) return fprintf(stderr, "hooks: 2 to %d tensors\n", MOST), 2;
    if (memo_host_device_create(&host, &device, &error))
        return fprintf(stderr, "hooks: %s\n", error.message), 1;
    for (int n = most / 2; n <= most; n += most - most / 2) {
        const double s = plan_s(device, n, &error);
        if (s < 0) return fprintf(stderr, "hooks: %s\n", error.message), 1;
        printf("%6d tensors planned in %.3f s", LAYERS * n, s);
        if (before_s > 0) printf(", %.1f times", s / before_s);
        printf("\n");
        before_s = s;
    }
    memo_host_device_destroy(device);
    return 0;
}
