/* arena.c - measures the cost of a request: replay against malloc and free of the C library.
 *
 *   cc -O2 -I. bench/arena.c -lpthread -lm && ./a.out [million requests]
 *
 * The program records, plans and repeats one micro-batch of a synthetic trainer: 12 layers, 24 requests each
 * way in a layer, sizes from 256 bytes to 8 MiB.  A request is one malloc or one free.  No memory is touched,
 * so that only the allocators are measured.  The C library requests large blocks from the kernel.  A second
 * row therefore repeats the sequence with sizes 1024 times smaller, which it serves from its own lists.  Rounds
 * alternate between the three; the table shows the median. */
#define MEMO_IMPLEMENTATION
#include "memo.h"
#include <time.h>

enum { n_layers = 12, layer_requests = 24, n_rounds = 9, max_events = 4096 };

/* The sequence: event k takes (size_bytes >= 0) or gives back (size_bytes < 0) block. */
static struct {
    int64_t size_bytes;
    int block;
} events[max_events];
static int n_events, n_blocks;
static void* addresses[max_events];

static uint64_t random_state = 1;
static int64_t random_below(int64_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((random_state >> 33) % (uint64_t)n);
}

static int take(void) {
    events[n_events].size_bytes = (int64_t)256 << random_below(16);
    events[n_events++].block = n_blocks;
    return n_blocks++;
}
static void drop(int block) {
    events[n_events].size_bytes = -1;
    events[n_events++].block = block;
}

/* Each layer keeps a third of its blocks for the backward and gives the others back soon. */
static void make_events(void) {
    int kept[n_layers][layer_requests], n_kept[n_layers], layer, k, way;
    for (way = 0; way < 2; way++) {
        for (k = 0; k < n_layers; k++) {
            int held = -1, r;
            layer = way ? n_layers - 1 - k : k;
            random_state = (uint64_t)way + 7; /* layers are alike */
            if (way == 0) n_kept[layer] = 0;
            for (r = 0; r < layer_requests; r++) {
                int block = take();
                if (way == 0 && r % 3 == 0) {
                    kept[layer][n_kept[layer]++] = block;
                    continue;
                }
                if (held >= 0) drop(held);
                held = block;
                if (way == 1 && n_kept[layer] > 0) drop(kept[layer][--n_kept[layer]]);
            }
            drop(held);
        }
    }
}

static void fail_if(memo_status status, const memo_error* error) {
    if (!status) return;
    fprintf(stderr, "bench/arena: %s\n", error->message);
    exit(1);
}

/* One micro-batch through the arena. */
static void run_arena(memo_arena* arena) {
    memo_error error;
    int k;
    fail_if(memo_arena_begin(arena, &error), &error);
    for (k = 0; k < n_events; k++) {
        memo_status status = events[k].size_bytes >= 0
                                 ? memo_arena_alloc(arena, events[k].size_bytes, 0,
                                                    &addresses[events[k].block], &error)
                                 : memo_arena_free(arena, addresses[events[k].block], &error);
        if (status) fail_if(status, &error);
    }
    fail_if(memo_arena_end(arena, &error), &error);
}

/* The same through the C library.  The pointer is stored through volatile, so that no pair is removed. */
static void run_malloc(int64_t divisor) {
    int k;
    for (k = 0; k < n_events; k++) {
        void* volatile* address = &addresses[events[k].block];
        if (events[k].size_bytes >= 0)
            *address = malloc((size_t)(events[k].size_bytes / divisor));
        else
            free(*address);
    }
}

static void print_machine(void) {
    FILE* file = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (file && fgets(line, sizeof line, file)) {
        char* name = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !name) continue;
        printf("machine:%s", name + 1);
        break;
    }
    if (file) fclose(file);
}

/* Stacks all buffers: where they lie makes no difference to the time of a request. */
static void stack_offsets(memo_plan* plan) {
    int64_t i;
    for (i = 0; i < plan->n_buffers; i++) {
        plan->buffers[i].offset_bytes = plan->peak_bytes;
        plan->peak_bytes += memob_align_up(plan->buffers[i].size_bytes, plan->alignment_bytes);
    }
    plan->proof = MEMO_PROOF_FEASIBLE;
}

int main(int argc, char** argv) {
    memo_arena_desc desc = memo_arena_desc_default();
    memo_trace* trace;
    memo_plan* plan;
    memo_arena* arena;
    memo_error error;
    double ns[3][n_rounds], million = argc > 1 ? atof(argv[1]) : 10;
    static const char* const names[] = {"memo arena, replay", "malloc, free",
                                        "malloc, free, 1/1024"};
    int way;
    int round, i, n_batches;

    /* Record the requests once and plan them. */
    make_events();
    n_batches = (int)(million * 1e6 / n_rounds / n_events) + 1;
    fail_if(memo_trace_create(&trace, &error), &error);
    desc.trace = trace;
    fail_if(memo_arena_create(&desc, &arena, &error), &error);
    run_arena(arena);
    memo_arena_destroy(arena);
    fail_if(memo_plan_from_trace(trace, 0, &plan, &error), &error);
    stack_offsets(plan);

    /* The replayed arena gets addresses without memory: nobody writes to them. */
    desc = memo_arena_desc_default();
    desc.plan = plan;
    desc.memory = (void*)(uintptr_t)((uint64_t)1 << 40); /* addresses only */
    desc.memory_bytes = plan->peak_bytes;
    fail_if(memo_arena_create(&desc, &arena, &error), &error);

    /* Ways alternate within a round, so that a change of clock rate hits all of them. */
    for (round = -1; round < n_rounds; round++) { /* round -1 warms up */
        for (way = 0; way < 3; way++) {
            int n = round < 0 ? 1 : n_batches;
            double start = memob_now_s();
            for (i = 0; i < n; i++) {
                if (way == 0)
                    run_arena(arena);
                else
                    run_malloc(way == 1 ? 1 : 1024);
            }
            if (round >= 0) ns[way][round] = (memob_now_s() - start) * 1e9 / n / n_events;
        }
    }

    /* Ratios are to the arena, the first row. */
    print_machine();
    printf("%d requests a micro-batch, %.1f million in all, median of %d rounds\n\n", n_events,
           1e-6 * n_rounds * n_batches * n_events, n_rounds);
    printf("%-22s %12s %10s %10s %10s\n", "", "ns/request", "best", "worst", "ratio");
    for (way = 0; way < 3; way++) {
        qsort(ns[way], n_rounds, sizeof(double), memob_compare_doubles);
        printf("%-22s %12.1f %10.1f %10.1f %10.1f\n", names[way], ns[way][n_rounds / 2], ns[way][0],
               ns[way][n_rounds - 1], ns[way][n_rounds / 2] / ns[0][n_rounds / 2]);
    }

    memo_arena_destroy(arena);
    memo_plan_destroy(plan);
    memo_trace_destroy(trace);
    return 0;
}
