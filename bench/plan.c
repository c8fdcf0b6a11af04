/* plan.c - measures the memory planner on sets of problems, a row for each kind of problem.
 *
 *   plan [traces] [minimalloc] [minimize] [tilings] [growth] [dense] [plain] [features]
 *        [small] [layers] [streams] [steps] [files]   sets; default: all
 *        [peers] [ablation]                    other tables, of these sets
 *        [--seeds N]                           problems of a row, or orders of a file's buffers
 *        [--limit S] [--threads N]
 *        [--cpu 1]                             limits and times in seconds of processor time,
 *                                              for a busy machine
 *        [--without STAGE]                     leaves a stage of the planner out
 *
 * minimalloc looks for a plan of the public hard instances within their capacity, minimize for the
 * smallest peak; steps are networks, and streams have buffers of several streams.  Peers are other
 * planners; ablation leaves out one stage after the other, in processor time.
 *
 * Run it at the root of the repository.  The traces in tests/data have one training iteration each.
 * For your own trace, run examples/pytorch/snapshot_to_trace.py and then build/examples/plan_trace.
 * Environment:
 *
 *   INSTANCES    folder of the public hard instances A to K: benchmarks/challenging of google/minimalloc
 *   MORE_INSTANCES  optional: a folder of other problems, as .csv, .csv.gz, .trace, or .json with clocks
 *   MINIMALLOC   optional: the program of this public solver (github.com/google/minimalloc), which
 *                is then timed too
 *   ORTOOLS      optional: a Python with ortools, whose CP-SAT is then timed too
 *   OMNIMALLOC   optional: a Python with omnimalloc, whose SuperMalloc and Omni are then timed too
 * Exit status 1 if a set has no data. */
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo.h"

/* The planner's clock and switches. */
static int is_cpu;
static const char* left_out = "";
static double cpu_s(void) { return (double)clock() / CLOCKS_PER_SEC; } /* of all threads */
static double now_s(void) { return is_cpu ? cpu_s() : memob_now_s(); }
#define memob_now_s          now_s
#define MEMOI_WITHOUT(stage) (!strcmp(left_out, #stage))
#include "extras/memo_pack.h"
#include "memo_plan.h"
#include "extras/memo_look.h"
#include "median.h"
#include "tools/trace_layers.h"
#include "../tests/plan/stream_patterns.h"

#include <glob.h>
#include <time.h>

static int is_missing; /* a set has no problems */

static void fail(const char* what, const memo_error* error) {
    fprintf(stderr, "%s: %s\n", what, error->message);
    exit(1);
}

/* ---- problems -------------------------------------------------------------------------------- */

/* Lines "id,lower,upper,size", and with those columns ",alignment,gaps" (gaps: "3-5 8-9"); other
 * columns are for the tools.  NULL if the file is missing. */
static memo_plan* read_csv(const char* path) {
    FILE* file = fopen(path, "r");
    char line[1024];
    int64_t n = 0, n_gaps = 0;
    int alignment_column = -1, gaps_column = -1;
    memo_plan* plan;
    memo_error error;
    if (!file) return NULL;
    for (; fgets(line, sizeof line, file); n++) { /* each gap has a '-' */
        const char* dash = line;
        while ((dash = strchr(dash, '-')) != NULL) n_gaps++, dash++;
    }
    rewind(file);
    if (memo_plan_create(n, n_gaps, 1, &plan, &error)) fail(path, &error);
    plan->n_buffers = plan->n_gaps = 0;

    while (fgets(line, sizeof line, file)) {
        long long id, begin, end, size;
        memo_buffer* buffer = &plan->buffers[plan->n_buffers];
        char* field = line;
        int is_row =
            sscanf(line, "%lld,%lld,%lld,%lld", &id, &begin, &end, &size) == 4; /* or the heading */
        if (is_row) {
            buffer->id = id;
            buffer->begin = begin;
            buffer->end = end;
            buffer->size_bytes = size;
        }
        for (int column = 0; field; column++) {
            char* comma = strchr(field, ',');
            if (comma) *comma = '\0';
            if (!is_row && !strncmp(field, "alignment", 9)) alignment_column = column;
            if (!is_row && !strncmp(field, "gaps", 4)) gaps_column = column;
            if (is_row && column == alignment_column) buffer->alignment_bytes = atoll(field);
            while (is_row && column == gaps_column &&
                   sscanf(field, "%lld-%lld", &begin, &end) == 2) {
                memo_gap* gap = &plan->gaps[plan->n_gaps++];
                gap->buffer = plan->n_buffers;
                gap->begin = begin;
                gap->end = end;
                field += strcspn(field, " \n");
                field += strspn(field, " ");
            }
            field = comma ? comma + 1 : NULL;
        }
        plan->n_buffers += is_row;
    }
    fclose(file);
    return plan;
}

static const char instances[] = "ABCDEFGHIJK";

/* An instance of google/minimalloc, capacity 1048576; NULL if it is missing. */
static memo_plan* read_instance(char letter) {
    char path[512];
    const char* folder = getenv("INSTANCES");
    snprintf(path, sizeof path, "%s/%c.1048576.csv", folder ? folder : ".", letter);
    return read_csv(path);
}

static uint64_t random_state;
static int64_t random_int(int64_t low, int64_t high) {
    return low + (int64_t)(memob_random(&random_state) % (uint64_t)(high - low + 1));
}

/* A full rectangle cut into n pieces.  The optimum is its height, and leaves no byte free. */
static memo_plan* cut_rectangle(int64_t n, int64_t height, uint64_t seed) {
    memo_plan* plan;
    memo_error error;
    int64_t made = 1;
    random_state = seed;
    if (memo_plan_create(n, 0, 1, &plan, &error)) fail("cut", &error);
    plan->buffers[0].end = 4 * n;
    plan->buffers[0].size_bytes = height;

    /* Cut one piece at a time, along time or along size. */
    while (made < n) {
        memo_buffer *piece = NULL, *rest = &plan->buffers[made];
        for (int k = 0; k < 3; k++) { /* the largest of three */
            memo_buffer* other = &plan->buffers[random_int(0, made - 1)];
            if (!piece || (double)(other->end - other->begin) * (double)other->size_bytes >
                              (double)(piece->end - piece->begin) * (double)piece->size_bytes)
                piece = other;
        }

        *rest = *piece;
        if (random_int(0, 1) && piece->end - piece->begin > 1) {
            piece->end = rest->begin = random_int(piece->begin + 1, piece->end - 1);
            made++;
        } else if (piece->size_bytes > 1) {
            piece->size_bytes = random_int(1, piece->size_bytes - 1);
            rest->size_bytes -= piece->size_bytes;
            made++;
        }
    }

    for (int64_t i = 0; i < n; i++) plan->buffers[i].id = i;
    return plan;
}

/* Cuts a block into n = 4 k + 1 pieces: four around a fifth, each of which is cut again.  No cut goes
 * through the whole block. */
static void cut_pinwheel(memo_plan* plan, memo_buffer block, int64_t n) {
    memo_buffer piece[5] = {block, block, block, block, block};
    int64_t n_pieces[5] = {1, 1, 1, 1, 1}, left, right, low, high, k;
    block.id = plan->n_buffers;
    if (n == 1) plan->buffers[plan->n_buffers++] = block;
    if (n == 1) return;
    left = block.begin + (block.end - block.begin) * random_int(10, 45) / 100;
    right = block.end - (block.end - block.begin) * random_int(10, 45) / 100;
    low = block.size_bytes * random_int(10, 45) / 100;
    high = block.size_bytes * random_int(10, 45) / 100;
    piece[0].end = piece[4].end = right;
    piece[1].begin = right;
    piece[2].begin = piece[4].begin = left;
    piece[3].end = left;
    piece[0].size_bytes = low;
    piece[1].size_bytes -= high;
    piece[2].size_bytes = high;
    piece[3].size_bytes -= low;
    piece[4].size_bytes -= low + high;
    for (n -= 5; n > 0; n -= 4) n_pieces[random_int(0, 4)] += 4;
    for (k = 0; k < 5; k++) cut_pinwheel(plan, piece[k], n_pieces[k]);
}

/* A problem of n buffers of one of three shapes. */
static memo_plan* generate(const char* shape, int64_t n) {
    memo_plan* plan;
    memo_error error;
    int64_t layers = n / 20;
    random_state = (uint64_t)n;
    if (memo_plan_create(n, 0, 1, &plan, &error)) fail(shape, &error);

    for (int64_t i = 0; i < n; i++) {
        memo_buffer* buffer = &plan->buffers[i];
        buffer->id = i;
        buffer->size_bytes = 512 * random_int(1, 2000);

        if (!strcmp(shape, "nested")) { /* stacks of 100 nested lifetimes */
            buffer->begin = i / 100 * 150 + i % 100;
            buffer->end = i / 100 * 150 + 300 - i % 100;
        } else if (!strcmp(shape, "random")) {
            buffer->begin = random_int(0, 2 * n);
            buffer->end = buffer->begin + random_int(1, random_int(1, 400));
        } else { /* layered: 4 of 20 live to the layer's backward, 8 in each pass */
            int64_t layer = i / 20, k = i % 20, forward = layer * 20,
                    back = (2 * layers - layer) * 20;
            int64_t time = k < 12 ? forward + k : back + k - 12;
            buffer->begin = time;
            buffer->end = k < 4 ? back + 4 + k : time + random_int(1, 8);
            random_state = k == 19 ? (uint64_t)n : random_state; /* equal layers */
        }
    }
    return plan;
}

/* A trainer's step whose layers leave no byte free: the n_pieces locals of a phase are a full
 * rectangle.  Three buffers live from a layer's forward to its backward. */
static memo_trace* layered_trace(int64_t n_layers, int64_t n_pieces) {
    memo_trace* trace;
    memo_error error;
    memo_status status = memo_trace_create(&trace, &error);
    memo_plan* cut[2];
    cut[0] = cut_rectangle(n_pieces, 1000, 2);
    cut[1] = cut_rectangle(n_pieces, 1000, 3);

    /* Forwards in order, backwards in reverse; each lasts as long as the rectangle. */
    for (int64_t step = 0; step < 2 * n_layers && !status; step++) {
        int is_backward = step >= n_layers;
        int64_t layer = is_backward ? 2 * n_layers - 1 - step : step, base = step * n_pieces;
        const memo_buffer* pieces = cut[is_backward]->buffers;
        char mark[64];
        snprintf(mark, sizeof mark, "layer %lld %s begin", (long long)layer,
                 is_backward ? "backward" : "forward");
        status = memo_trace_mark(trace, mark, &error);

        for (int64_t time = 0; time <= 4 * n_pieces && !status; time++) {
            for (int64_t k = 0; k < n_pieces && !status; k++)
                if (pieces[k].end == time) status = memo_trace_free(trace, base + k, &error);
            for (int64_t k = 0; k < n_pieces && !status; k++)
                if (pieces[k].begin == time)
                    status = memo_trace_malloc(trace, base + k, 512 * pieces[k].size_bytes,
                                               MEMO_CLASS_TRANSIENT, 0, &error);

            /* The first three times also request or free what the backward needs. */
            if (time >= 3 || status) continue;
            if (is_backward)
                status = memo_trace_free(trace, -1 - (3 * layer + time), &error);
            else
                status = memo_trace_malloc(trace, -1 - (3 * layer + time), 512 * 100 * (time + 1),
                                           MEMO_CLASS_SKELETAL, 0, &error);
        }

        snprintf(mark, sizeof mark, "layer %lld %s end", (long long)layer,
                 is_backward ? "backward" : "forward");
        if (!status) status = memo_trace_mark(trace, mark, &error);
    }

    if (status) fail("layered trace", &error);
    memo_plan_destroy(cut[0]);
    memo_plan_destroy(cut[1]);
    return trace;
}

/* A full square cut in two again and again, or in pinwheels.  The optimum is its height. */
static memo_plan* tiling(int is_pinwheel, int64_t n, int64_t height, uint64_t seed) {
    memo_plan* plan;
    memo_buffer block;
    memo_error error;
    if (!is_pinwheel) return cut_rectangle(n, height, seed);
    if (memo_plan_create(n, 0, 1, &plan, &error)) fail("pinwheels", &error);
    block = plan->buffers[0];
    block.begin = plan->n_buffers = 0;
    block.end = (int64_t)1 << 40;
    block.size_bytes = height;
    random_state = seed;
    cut_pinwheel(plan, block, n);
    return plan;
}

/* A number from low to high whose logarithm is uniform. */
static int64_t random_log(int64_t low, int64_t high) {
    double share = (double)random_int(0, 1000000) / 1e6;
    return (int64_t)((double)low * pow((double)high / (double)low, share));
}

/* Many buffers that live side by side: queues with jitter or a few long lives, lives of uniform
 * length, lives whose logarithm is uniform, lives between any two times (whole), and at most a
 * sixteenth of 4,096 times (short). */
static memo_plan* dense(const char* shape, int64_t n, uint64_t seed) {
    memo_plan* plan;
    memo_error error;
    random_state = seed;
    if (memo_plan_create(n, 0, 1, &plan, &error)) fail("dense", &error);
    for (int64_t i = 0; i < n; i++) {
        memo_buffer* buffer = &plan->buffers[i];
        const int is_queue = shape[0] == 'q', is_log = shape[0] == 'l';
        const int has_outliers = !strcmp(shape, "queue, outliers");
        int64_t life = is_log ? random_log(1, n / 10) : random_int(1, 2000);
        if (is_queue) life = 1000 + random_int(0, 500);
        if (has_outliers) life = 100 + random_int(0, random_int(0, 19) ? 5 : 1000);
        buffer->id = i;
        buffer->size_bytes = is_queue ? random_int(1, 2000) : random_log(64, 1 << 18);
        buffer->begin = is_queue ? i : random_int(0, n);
        buffer->end = buffer->begin + life;
        if (shape[0] == 'w') {
            const int64_t times[2] = {random_int(0, 10 * n), random_int(0, 10 * n)};
            buffer->size_bytes = random_int(1, 2000);
            buffer->begin = memob_min(times[0], times[1]);
            buffer->end = memob_max(times[0], times[1]) + 1;
        } else if (shape[0] == 's') {
            buffer->size_bytes = random_int(1, 1 << 20);
            buffer->begin = random_int(0, 4095);
            buffer->end = memob_min(buffer->begin + random_int(1, 256), 4096);
        }
    }
    return plan;
}

/* Buffers with every feature.  Half have an alignment of 16 bytes to 64 KiB, as kernels and copies
 * require.  A third have a gap in their lifetime, as swapped tensors have.  Every second problem
 * has buffers fixed by an earlier plan. */
static memo_plan* with_features(int64_t n, uint64_t seed) {
    memo_plan* plan;
    memo_error error;
    int64_t n_gaps = 0;
    random_state = seed;
    if (memo_plan_create(n, n, 1, &plan, &error)) fail("features", &error);

    for (int64_t i = 0; i < n; i++) {
        memo_buffer* buffer = &plan->buffers[i];
        buffer->id = i;
        buffer->size_bytes = random_log(64, 1 << 18);
        buffer->begin = random_int(0, 2 * n - 1);
        buffer->end = buffer->begin + random_log(1, n < 100 ? n : n / 4);
        if (random_int(0, 1)) buffer->alignment_bytes = (int64_t)1 << random_int(4, 16);

        if (buffer->end - buffer->begin < 3 || random_int(0, 2) > 0) continue;
        plan->gaps[n_gaps].buffer = i;
        plan->gaps[n_gaps].begin = random_int(buffer->begin + 1, buffer->end - 2);
        plan->gaps[n_gaps].end = random_int(plan->gaps[n_gaps].begin + 1, buffer->end - 1);
        n_gaps++;
    }

    /* Every sixth or so lies at a random offset, unless an earlier one overlaps it there: no planner
     * has a part in the problem. */
    plan->n_gaps = n_gaps;
    if (memo_plan_prepare(plan, &error)) fail("features", &error);
    for (int64_t i = 0; i < n && seed % 2; i++) {
        memo_buffer* buffer = &plan->buffers[i];
        int64_t step = memob_max(buffer->alignment_bytes, 1), k;
        if (random_int(0, 5) > 0) continue;
        buffer->offset_bytes =
            random_int(0, (plan->lower_bound_bytes - buffer->size_bytes) / step) * step;
        buffer->is_fixed = 1;
        for (k = 0; k < i && buffer->is_fixed; k++) {
            const memo_buffer* other = &plan->buffers[k];
            buffer->is_fixed = !other->is_fixed || other->end <= buffer->begin ||
                               other->begin >= buffer->end ||
                               other->offset_bytes + other->size_bytes <= buffer->offset_bytes ||
                               other->offset_bytes >= buffer->offset_bytes + buffer->size_bytes;
        }
    }
    return plan;
}

/* 10 to 40 buffers in 60 steps, a fifth of them to the end.  Kind 0: sizes and alignments of bytes
 * that share no factor; 1: sizes of any magnitude, alignments of 16 bytes to 64 KiB; 2: sizes of
 * any magnitude, alignments of 256 bytes to 64 KiB for a third; 3: sizes of 1 to 100.  All but 2
 * have up to two gaps in a third of the buffers. */
static memo_plan* small_problem(int kind, uint64_t seed) {
    static const int64_t primes[] = {7, 11, 13, 17, 23, 31, 37}, few[] = {8, 16, 32},
                         many[] = {256, 4096, 65536};
    memo_plan* plan;
    memo_error error;
    int64_t n, k;
    random_state = 4 * seed + (uint64_t)kind;
    n = random_int(10, 40);
    if (memo_plan_create(n, 2 * n, 1, &plan, &error)) fail("small", &error);
    plan->n_gaps = 0;
    for (int64_t i = 0; i < n; i++) {
        memo_buffer* b = &plan->buffers[i];
        int64_t at;
        b->id = i;
        b->begin = random_int(0, 56);
        b->end = random_int(0, 4) ? memob_min(60, b->begin + random_log(3, 20)) : 60;
        b->size_bytes = kind == 0   ? primes[random_int(0, 6)]
                        : kind == 3 ? random_int(1, 100)
                                    : random_log(64, 1 << 18);
        if (kind == 0 && random_int(0, 2) == 0) b->alignment_bytes = few[random_int(0, 2)];
        if (kind == 1 && random_int(0, 1)) b->alignment_bytes = (int64_t)1 << random_int(4, 16);
        if (kind == 2 && random_int(0, 2) == 0) b->alignment_bytes = many[random_int(0, 2)];
        if (kind == 2 || random_int(0, 2) > 0) continue;
        for (k = 0, at = b->begin + 1; k < 2 && at < b->end - 1; k++) {
            memo_gap* gap = &plan->gaps[plan->n_gaps++];
            gap->buffer = i;
            gap->begin = random_int(at, b->end - 2);
            gap->end = random_int(gap->begin + 1, b->end - 1);
            at = gap->end + random_int(1, 20);
        }
    }
    return plan;
}

/* ---- shapes of training steps ---------------------------------------------------------------- */

/* Adds a buffer to a plan with room for it. */
static void add_buffer(memo_plan* plan, int64_t begin, int64_t end, int64_t bytes) {
    memo_buffer* buffer = &plan->buffers[plan->n_buffers];
    buffer->id = plan->n_buffers++;
    buffer->begin = begin;
    buffer->end = end;
    buffer->size_bytes = bytes;
}

static memo_plan* empty_plan(int64_t most) {
    memo_plan* plan;
    memo_error error;
    if (memo_plan_create(most, 0, 1, &plan, &error)) fail("shapes", &error);
    plan->n_buffers = 0;
    return plan;
}

/* The forward pass of a graph: node k reads inputs[first[k]] to inputs[first[k + 1] - 1], and its
 * output lives to its last reader. */
static memo_plan* graph_pass(int64_t n, const int64_t* first, const int64_t* inputs,
                             const int64_t* bytes) {
    memo_plan* plan = empty_plan(n);
    int64_t* reader = (int64_t*)calloc((size_t)n, sizeof(int64_t));
    if (!reader) exit(1);
    for (int64_t k = 0; k < n; k++) reader[k] = k;
    for (int64_t k = 0; k < n; k++)
        for (int64_t i = first[k]; i < first[k + 1]; i++) reader[inputs[i]] = k;
    for (int64_t k = 0; k < n; k++) add_buffer(plan, k, reader[k] + 1, bytes[k]);
    free(reader);
    return plan;
}

/* UNet++ networks in a chain: node (i, j), at depth i, reads all of (i, 0) to (i, j - 1), and (i +
 * 1, j - 1) from below; a node of column 0 reads the one above.  Outputs have similar sizes, as if
 * channels grow with depth. */
static memo_plan* unetpp(int64_t n) {
    enum { DEPTH = 24, NODES = DEPTH * (DEPTH + 1) / 2 };
    int64_t n_units = n / NODES, made = 0, n_inputs = 0;
    int64_t* first = (int64_t*)calloc((size_t)(n_units * NODES + 1), sizeof(int64_t));
    int64_t* bytes = (int64_t*)calloc((size_t)(n_units * NODES), sizeof(int64_t));
    int64_t* inputs = (int64_t*)calloc((size_t)(n_units * NODES * DEPTH), sizeof(int64_t));
    int64_t at[DEPTH][DEPTH], last = -1;
    memo_plan* plan;
    if (!first || !bytes || !inputs) exit(1);
    random_state = 4;

    for (int64_t unit = 0; unit < n_units; unit++) {
        for (int64_t j = 0; j < DEPTH; j++) { /* column by column */
            for (int64_t i = 0; i < DEPTH - j; i++) {
                at[i][j] = made;
                bytes[made] = 4 * random_int(18000, 23000);
                if (j == 0 && i == 0 && last >= 0) inputs[n_inputs++] = last;
                if (j == 0 && i > 0) inputs[n_inputs++] = at[i - 1][0];
                if (j > 0) inputs[n_inputs++] = at[i + 1][j - 1];
                for (int64_t k = 0; k < j; k++) inputs[n_inputs++] = at[i][k];
                first[++made] = n_inputs;
            }
        }
        last = at[0][DEPTH - 1];
    }

    plan = graph_pass(made, first, inputs, bytes);
    free(first);
    free(bytes);
    free(inputs);
    return plan;
}

/* NASNet: a cell joins five blocks; each adds two outputs of the two previous cells or of the
 * cell's earlier blocks. */
static memo_plan* nasnet(int64_t n) {
    enum { BLOCKS = 5, NODES = BLOCKS + 1 };
    int64_t n_cells = n / NODES, made = 0, n_inputs = 0;
    int64_t* first = (int64_t*)calloc((size_t)(n_cells * NODES + 1), sizeof(int64_t));
    int64_t* bytes = (int64_t*)calloc((size_t)(n_cells * NODES), sizeof(int64_t));
    int64_t* inputs = (int64_t*)calloc((size_t)(n_cells * NODES * BLOCKS), sizeof(int64_t));
    memo_plan* plan;
    if (!first || !bytes || !inputs) exit(1);
    random_state = 5;

    for (int64_t cell = 0; cell < n_cells; cell++) {
        int64_t begin = made, scale = cell % 6 == 5 ? 2 : 1;
        for (int64_t b = 0; b < NODES; b++) {
            for (int64_t k = 0; k < (b < BLOCKS ? 2 : BLOCKS); k++) {
                int64_t pick = random_int(-2, b - 1), node;
                node = b == BLOCKS ? begin + k
                       : pick < 0  ? begin + NODES * pick + BLOCKS
                                   : begin + pick;
                if (node >= 0) inputs[n_inputs++] = node;
            }
            bytes[made] = 512 * random_int(200, 400) * (b == BLOCKS ? BLOCKS : 1) / scale;
            first[++made] = n_inputs;
        }
    }

    plan = graph_pass(made, first, inputs, bytes);
    free(first);
    free(bytes);
    free(inputs);
    return plan;
}

/* Objects with "size", "start" and "end", which are vectors of clocks; NULL if the file is missing.
 * The caller frees *made; the id of a buffer is its place there. */
static memo_plan* read_clocks(const char* path, clocked** made) {
    FILE* file = fopen(path, "r");
    clocked* buffers = NULL;
    int64_t n = 0, capacity = 0;
    char word[64];
    memo_plan* plan;
    if (!file) return NULL;
    while (fscanf(file, "%63s", word) == 1) {
        int64_t* clock;
        char after = ',';
        long long value;
        int is_start = !strcmp(word, "\"start\":"), is_size = !strcmp(word, "\"size\":");
        if (!is_start && !is_size && strcmp(word, "\"end\":")) continue;
        if (is_size) {
            if (!memob_reserve(&buffers, &capacity, n + 1, sizeof *buffers) ||
                fscanf(file, "%lld", &value) != 1)
                break;
            memset(&buffers[n], 0, sizeof *buffers);
            buffers[n++].size = value;
            continue;
        }
        clock = is_start ? buffers[n - 1].start : buffers[n - 1].end;
        if (fscanf(file, " [") != 0) break;
        for (n_clocks = 0; after == ',' && n_clocks < CLOCKS_MAX; n_clocks++) {
            if (fscanf(file, "%lld %c", &value, &after) != 2) break;
            clock[n_clocks] = value;
        }
    }
    fclose(file);
    plan = plan_of_clocks(buffers, n);
    *made = buffers;
    return plan;
}

/* A file of MORE_INSTANCES; a pattern gives several. */
static const char* more_instances(const char* file, char path[512]) {
    const char* folder = getenv("MORE_INSTANCES");
    snprintf(path, 512, "%s/%s", folder ? folder : "/nonexistent", file);
    return path;
}
#define PROBLEMS_OF_BUFFERS "[!d]*" /* all but the problems of degrees */

/* A file of MORE_INSTANCES by the end of its name; NULL: of another kind.  The caller frees
 * *clocks. */
static memo_plan* read_any(const char* path, clocked** clocks) {
    const char* end = strrchr(path, '.');
    char unpacked[] = "/tmp/memo_bench_XXXXXX", command[512];
    int descriptor = -1;
    memo_plan* plan = NULL;
    memo_trace* trace;
    memo_error error;
    *clocks = NULL;
    pattern_state = 7; /* of the order, which a reader of clocks shuffles */
    if (!end || end < strrchr(path, '/')) return NULL;
    if (!strcmp(end, ".gz") && (descriptor = mkstemp(unpacked)) >= 0) {
        snprintf(command, sizeof command, "gzip -dc '%s' > '%s'", path, unpacked);
        if (system(command) == 0) plan = read_csv(unpacked);
        unlink(unpacked);
        close(descriptor);
    }
    if (!strcmp(end, ".csv")) plan = read_csv(path);
    if (!strcmp(end, ".json")) plan = read_clocks(path, clocks);
    if (!strcmp(end, ".trace") && !memo_trace_read(path, &trace, &error)) {
        if (memo_plan_from_trace(trace, 1, &plan, &error)) fail(path, &error);
        memo_trace_destroy(trace);
    }
    return plan;
}

/* ---- measuring ------------------------------------------------------------------------------- */

typedef struct outcome {
    double seconds, cpu_s;
    int64_t peak_bytes, bound_bytes;
    int64_t n_nodes; /* of the search */
    memo_proof proof;
    int is_met; /* the capacity, if there was one */
} outcome;

/* The share of the bound by which the peak exceeds it. */
static double gap_of(const outcome* result) {
    return result->bound_bytes ? (double)result->peak_bytes / (double)result->bound_bytes - 1 : 0;
}

static int32_t n_threads = 1;

static void keep_nodes(void* user, const char* line) {
    const char* nodes = strrchr(line, ',');
    if (nodes && strstr(line, "search: ") == line) *(int64_t*)user = atoll(nodes + 1);
}

static outcome run_traced(memo_plan* plan, const memo_trace* trace, memo_plan_engine engine,
                          int64_t capacity, double limit, uint64_t seed) {
    memo_plan_desc desc = {0};
    memo_error error;
    outcome result;
    memo_status status;
    desc.engine = engine;
    desc.capacity_bytes = capacity;
    desc.time_limit_s = limit;
    desc.seed = seed;
    desc.n_threads = n_threads;
    desc.trace = trace;
    desc.log.write = keep_nodes;
    desc.log.user = &result.n_nodes;
    result.n_nodes = 0;
    result.seconds = now_s();
    result.cpu_s = cpu_s();
    status = memo_plan_solve(plan, &desc, &error);
    result.seconds = now_s() - result.seconds;
    result.cpu_s = cpu_s() - result.cpu_s;
    if (status && status != MEMO_STATUS_INFEASIBLE) fail("solve", &error);
    if (memo_plan_validate(plan, &error)) fail("validate", &error);
    result.is_met = status == MEMO_STATUS_OK;
    result.peak_bytes = plan->peak_bytes;
    result.bound_bytes = plan->lower_bound_bytes;
    result.proof = plan->proof;
    return result;
}

/* Orders the buffers at random, because the order of the file breaks ties. */
static void shuffle_buffers(memo_plan* plan, uint64_t seed) {
    int64_t n = plan->n_buffers;
    int64_t* place = (int64_t*)calloc((size_t)n + 1, sizeof(int64_t));
    memo_buffer* before = (memo_buffer*)calloc((size_t)n + 1, sizeof(memo_buffer));
    if (!place || !before) exit(1);
    memcpy(before, plan->buffers, (size_t)n * sizeof(memo_buffer));
    random_state = seed + 1;
    for (int64_t i = 0; i < n; i++) place[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t k = random_int(0, i), other = place[i];
        place[i] = place[k];
        place[k] = other;
    }
    for (int64_t i = 0; i < n; i++) plan->buffers[place[i]] = before[i];
    for (int64_t i = 0; i < plan->n_gaps; i++) plan->gaps[i].buffer = place[plan->gaps[i].buffer];
    for (int64_t i = 0; i < plan->n_holds; i++)
        plan->holds[i].buffer = place[plan->holds[i].buffer];
    free(place);
    free(before);
}

/* Seconds of the public solver for a problem without gaps, as a process that reads a CSV.  Negative
 * if it finds nothing in time, or if MINIMALLOC is not set. */
static double run_public(const memo_plan* plan, int64_t capacity, double limit) {
    const char* program = getenv("MINIMALLOC");
    char path[] = "/tmp/memo_bench_XXXXXX", command[1024];
    double seconds = -1;
    int descriptor = program ? mkstemp(path) : -1;
    FILE* file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
    if (!file) return -1;
    fprintf(file, "id,lower,upper,size\n");
    for (int64_t i = 0; i < plan->n_buffers; i++)
        fprintf(file, "%lld,%lld,%lld,%lld\n", (long long)plan->buffers[i].id,
                (long long)plan->buffers[i].begin, (long long)plan->buffers[i].end,
                (long long)plan->buffers[i].size_bytes);
    if (fclose(file) == 0) {
        snprintf(
            command, sizeof command,
            "timeout %.0f '%s' --capacity=%lld --input='%s' --output=/dev/null >/dev/null 2>&1",
            limit, program, (long long)capacity, path);
        seconds = now_s();
        seconds = system(command) == 0 ? now_s() - seconds : -1;
    }
    unlink(path);
    return seconds;
}

/* ---- sets ------------------------------------------------------------------------------------ */

typedef struct problem {
    char name[48];
    memo_plan* plan;
    memo_trace* trace; /* its layers, or NULL */
    clocked* clocks;   /* of a file, or NULL */
    int64_t capacity;
    outcome whole; /* with all stages, for the ablation */
} problem;

static void (*use)(problem* p); /* gets the problems of a set, and owns them */

static void give(const char* name, memo_plan* plan, memo_trace* trace, clocked* clocks,
                 int64_t capacity) {
    problem p;
    if (!plan) return;
    memset(&p, 0, sizeof p);
    snprintf(p.name, sizeof p.name, "%.47s", name);
    p.plan = plan;
    p.trace = trace;
    p.clocks = clocks;
    p.capacity = capacity;
    use(&p);
}

static void drop(problem* p) {
    memo_plan_destroy(p->plan);
    memo_trace_destroy(p->trace);
    MEMO_FREE(p->clocks);
}

static const char* text(const char* format, const char* what, int64_t n) {
    static char made[64];
    snprintf(made, sizeof made, format, what, (long long)n);
    return made;
}

/* In tests/data. */
static const char* const trace_names[] = {"gpt-h4096-n8-s32k-store", "gpt-h4096-n8-s64k-recompute",
                                          "gpt2-124m-b8-s1k-store", "llama-1b-s8k-recompute",
                                          "llama-1b-s8k-store"};

static memo_trace* read_trace(const char* name) {
    char path[256];
    memo_trace* trace;
    memo_error error;
    snprintf(path, sizeof path, "tests/data/%s.trace", name);
    return memo_trace_read(path, &trace, &error) ? NULL : trace;
}

static memo_plan* plan_of_requests(const memo_trace* trace, int64_t alignment) {
    memo_plan* plan;
    memo_error error;
    if (memo_plan_from_trace(trace, alignment, &plan, &error)) fail("trace", &error);
    return plan;
}

static void give_traces(int seed) {
    (void)seed;
    for (size_t k = 0; k < sizeof trace_names / sizeof *trace_names; k++) {
        memo_trace* trace = read_trace(trace_names[k]);
        if (!trace) continue;
        give(trace_names[k], plan_of_requests(trace, 512), NULL, NULL, 0);
        memo_trace_destroy(trace);
    }
}

/* The public hard instances: the published order, then others. */
static void give_instances(int seed, int64_t capacity) {
    for (const char* letter = instances; *letter; letter++) {
        const char name[] = {*letter, 0};
        memo_plan* plan = read_instance(*letter);
        if (plan && seed) shuffle_buffers(plan, (uint64_t)seed);
        give(name, plan, NULL, NULL, capacity);
    }
}
static void give_minimalloc(int seed) { give_instances(seed, 1 << 20); }
static void give_minimize(int seed) { give_instances(seed, 0); }

static void give_tilings(int seed) {
    static const int64_t counts[] = {501, 801, 1201, 2001, 3001, 4097};
    static const char* const cuts[] = {"in two, 2^40", "in two, 20000", "pinwheels"};
    for (int cut = 0; cut < 3; cut++)
        for (int c = 0; c < 6; c++) {
            memo_plan* plan = tiling(cut == 2, counts[c], cut == 1 ? 20000 : (int64_t)1 << 40,
                                     (uint64_t)(1000 * counts[c] + seed));
            shuffle_buffers(plan, (uint64_t)seed);
            give(text("%s: %lld", cuts[cut], counts[c]), plan, NULL, NULL, 0);
        }
}

static void give_growth(int seed) {
    static const char* const shapes[] = {"nested", "random", "layered"};
    static const int64_t counts[] = {1000, 3000, 10000, 30000, 100000};
    for (int k = 0; k < 15 && seed == 0; k++)
        give(text("%s: %lld", shapes[k / 5], counts[k % 5]), generate(shapes[k / 5], counts[k % 5]),
             NULL, NULL, 0);
}

static void give_dense(int seed) {
    static const char* const shapes[] = {"queue", "queue, outliers", "uniform", "log"};
    for (int k = 0; k < 4; k++)
        give(shapes[k], dense(shapes[k], 100000, (uint64_t)seed + 1), NULL, NULL, 0);
}

static void give_plain(int seed) {
    static const char* const shapes[] = {"uniform", "log", "whole", "short"};
    for (int64_t k = 0; k < 12; k++)
        give(text("%s: %lld", shapes[k / 3], 2000 + 1250 * (k % 3)),
             dense(shapes[k / 3], 2000 + 1250 * (k % 3), (uint64_t)(2000 + 1250 * (k % 3) + seed)),
             NULL, NULL, 0);
}

static void give_features(int seed) {
    static const int64_t counts[] = {40, 200, 1000, 3000};
    for (int k = 0; k < 4; k++)
        give(text("%s: %lld", "features", counts[k]), with_features(counts[k], (uint64_t)seed),
             NULL, NULL, 0);
}

static void give_small(int seed) {
    for (int k = 100 * seed; k < 100 * seed + 100; k++)
        give(text("%s %lld", "kind", k % 4), small_problem(k % 4, (uint64_t)k), NULL, NULL, 0);
}

/* Layers of a recorded step, and layers that leave no byte free, with marks and without. */
static void give_layers(int seed) {
    memo_trace* few = seed ? NULL : read_trace("llama-1b-s8k-recompute");
    memo_error error;
    for (int shape = few ? 0 : 1; shape < 2 && seed == 0; shape++)
        for (int64_t n = 8; n <= 512; n *= 2) {
            memo_trace* trace = NULL;
            if (shape)
                trace = layered_trace(n, 40);
            else if (trace_apply_layers(few, n, &trace, &error))
                fail("layers", &error);
            give(text("%s: %lld, no marks", shape ? "tight" : "llama", n),
                 plan_of_requests(trace, 512), NULL, NULL, 0);
            give(text("%s: %lld", shape ? "tight" : "llama", n), plan_of_requests(trace, 512),
                 trace, NULL, 0);
        }
    memo_trace_destroy(few);
}

/* Streams that wait for each other now and then; of a tiling the optimum is 1 MiB. */
static void give_streams(int seed) {
    static const char* const names[] = {"ring", "pipeline", "barrier", "star", "pairs", "never"};
    for (int64_t n = 128; n <= 512; n *= 4) {
        for (int k = 2; k <= CLOCKS_MAX; k *= 2) {
            char name[32];
            snprintf(name, sizeof name, "tiling of %d", k);
            give(text("%s: %lld", name, n),
                 tiling_of_streams(k, n, 1 << 20, (uint64_t)(k + 100 * seed)), NULL, NULL, 0);
        }
        for (int which = 0; which < N_PATTERNS; which++)
            give(text("%s: %lld", names[which], n),
                 pattern_of_streams((pattern)which, 4, n, (uint64_t)(7 + seed)), NULL, NULL, 0);
    }
}

static void give_steps(int seed) {
    static const struct {
        const char* name;
        memo_plan* (*make)(int64_t n);
        int64_t n;
    } shapes[] = {{"UNet++, small", unetpp, 300},
                  {"UNet++", unetpp, 30000},
                  {"NASNet, small", nasnet, 450},
                  {"NASNet", nasnet, 31350}};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        memo_plan* plan = shapes[k].make(shapes[k].n);
        if (seed) shuffle_buffers(plan, (uint64_t)seed);
        give(shapes[k].name, plan, NULL, NULL, 0);
    }
}

static void give_files(int seed) {
    char all[512];
    glob_t found;
    if (glob(more_instances(PROBLEMS_OF_BUFFERS, all), 0, NULL, &found)) return;
    for (size_t k = 0; k < found.gl_pathc; k++) {
        const char* path = found.gl_pathv[k];
        clocked* clocks;
        memo_plan* plan = read_any(path, &clocks);
        if (plan && seed) shuffle_buffers(plan, (uint64_t)seed);
        give(strrchr(path, '/') + 1, plan, NULL, clocks, 0);
    }
    globfree(&found);
}

static const struct {
    const char* name;
    void (*give)(int seed);
    int is_whole; /* 1: too large, or too many, for the ablation */
} sets[] = {{"traces", give_traces, 0},     {"minimalloc", give_minimalloc, 0},
            {"minimize", give_minimize, 0}, {"tilings", give_tilings, 1},
            {"growth", give_growth, 1},     {"dense", give_dense, 1},
            {"plain", give_plain, 0},       {"features", give_features, 0},
            {"small", give_small, 1},       {"layers", give_layers, 1},
            {"streams", give_streams, 0},   {"steps", give_steps, 0},
            {"files", give_files, 0}};
enum { N_SETS = (int)(sizeof sets / sizeof *sets) };

/* ---- a row for each kind of problem ---------------------------------------------------------- */

static double limit_s = 10;
static outcome run_solver(const problem* p, uint64_t seed, double limit) {
    return run_traced(p->plan, p->trace,
                      p->trace ? MEMO_PLAN_ENGINE_BILEVEL : MEMO_PLAN_ENGINE_AUTO, p->capacity,
                      limit, seed);
}

static int is_done(const problem* p, const outcome* result) {
    return p->capacity ? result->is_met : result->proof == MEMO_PROOF_OPTIMAL;
}

typedef struct row {
    char name[48];
    int64_t n_buffers, n_nodes;
    double gap, most_gap, seconds[512], public_s[512];
    int n, n_done;
} row;

static row rows[64];
static int n_rows;
static void measure(problem* p) {
    const int has_public = p->capacity && getenv("MINIMALLOC");
    outcome result;
    row* r = rows;
    while (r < rows + n_rows && strcmp(r->name, p->name)) r++;
    if (r == rows + 64 || r->n == 512) exit(1);
    if (r == rows + n_rows) {
        memset(r, 0, sizeof *r);
        memcpy(r->name, p->name, sizeof r->name);
        n_rows++;
    }
    r->public_s[r->n] = has_public ? run_public(p->plan, p->capacity, 60) : -1;
    if (has_public && r->public_s[r->n] < 0) r->public_s[r->n] = 60;
    result = run_solver(p, (uint64_t)r->n, limit_s);
    r->n_buffers = p->plan->n_buffers;
    r->n_nodes += result.n_nodes;
    r->n_done += is_done(p, &result);
    r->gap += 100 * gap_of(&result);
    r->most_gap = fmax(r->most_gap, 100 * gap_of(&result));
    r->seconds[r->n++] = result.seconds;
    drop(p);
}

/* The gap is above the largest sum of live sizes.  "done": proven, or within the capacity. */
static void print_set(int k, int n_seeds) {
    double log_ratio = 0;
    use = measure;
    n_rows = 0;
    for (int seed = 0; seed < n_seeds; seed++) sets[k].give(seed);
    printf("\n## %s, limit %g s\n\n", sets[k].name, limit_s);
    printf(
        "| problem | buffers | done | mean gap %% | largest | nodes | median s | worst s | public "
        "s |\n|---|---|---|---|---|---|---|---|---|\n");
    for (row* r = rows; r < rows + n_rows; r++) {
        const double middle = median(r->seconds, r->n), other = median(r->public_s, r->n);
        printf("| %s | %lld | %d of %d | %.3f | %.3f | %lld | %.4f | %.4f |", r->name,
               (long long)r->n_buffers, r->n_done, r->n, r->gap / r->n, r->most_gap,
               (long long)r->n_nodes / r->n, middle, r->seconds[r->n - 1]);
        if (other < 0) printf(" - |\n");
        if (other >= 0) printf(" %.3f, %.0f times |\n", other, other / middle);
        log_ratio += other < 0 ? 0 : log(other / middle);
    }
    if (log_ratio > 0)
        printf("\nGeometric mean: %.1f times faster than the public solver.\n",
               exp(log_ratio / n_rows));
    if (n_rows == 0) is_missing = printf("(no problems; the head of bench/plan.c lists folders)\n");
    fflush(stdout);
}

/* ---- other planners -------------------------------------------------------------------------- */

static const struct {
    const char *name, *program, *variable;
    int64_t most; /* buffers; with more it takes gigabytes or minutes to begin */
} peers[] = {{"CP-SAT", "cp-sat", "ORTOOLS", 2000},
             {"minimalloc", "minimalloc", "MINIMALLOC", 5000},
             {"SuperMalloc", "supermalloc", "OMNIMALLOC", 50000},
             {"Omni", "omni", "OMNIMALLOC", 50000}};
enum { N_PEERS = (int)(sizeof peers / sizeof *peers), SHUFFLE_SEED = 7 };

/* Runs another planner on our problem, in an order shuffled with SHUFFLE_SEED; the plan gets its
 * offsets and proof.  clocks: of a plan from vectors of clocks, by id.  Returns its CPU seconds;
 * negative if it finds no plan in time or lacks a feature. */
static double run_peer(int peer, memo_plan* plan, const clocked* clocks, double limit) {
    const char* variable = getenv(peers[peer].variable);
    int is_python = peer != 1;
    char path[] = "/tmp/memo_bench_XXXXXX", result[64], command[1024];
    memo_error error;
    double seconds = -1;
    int64_t i;
    int is_proven, k, descriptor = variable ? mkstemp(path) : -1;
    FILE* file;
    if (descriptor < 0) return -1;
    close(descriptor);

    if (memo_plan_write(plan, path, &error)) fail(path, &error);
    file = clocks ? fopen(path, "a") : NULL;
    for (i = 0; file && i < plan->n_buffers; i++) {
        const clocked* clock = &clocks[plan->buffers[i].id];
        fprintf(file, "clock");
        for (k = 0; k < n_clocks; k++) fprintf(file, " %lld", (long long)clock->start[k]);
        for (k = 0; k < n_clocks; k++) fprintf(file, " %lld", (long long)clock->end[k]);
        fprintf(file, "\n");
    }
    if (file) fclose(file);

    snprintf(result, sizeof result, "%s.result", path);
    snprintf(command, sizeof command,
             "timeout %.0f '%s' bench/plan_peers.py %s '%s' %g %d '%s' >/dev/null 2>&1",
             3 * limit + 60, is_python ? variable : "python3", peers[peer].program, path, limit,
             (int)SHUFFLE_SEED, result);
    file = system(command) == 0 ? fopen(result, "r") : NULL;

    /* Take the offsets, and validate them here. */
    if (file && fscanf(file, "%lf %d", &seconds, &is_proven) == 2) {
        plan->proof = is_proven ? MEMO_PROOF_OPTIMAL : MEMO_PROOF_FEASIBLE;
        plan->peak_bytes = 0;
        for (i = 0; i < plan->n_buffers; i++) {
            long long offset;
            if (fscanf(file, "%lld", &offset) != 1) break;
            plan->buffers[i].offset_bytes = offset;
            plan->peak_bytes = memob_max(plan->peak_bytes, offset + memob_buffer_bytes(plan, i));
        }
        if (i < plan->n_buffers || memo_plan_validate(plan, &error)) {
            printf("(%s: its plan is wrong: %s)\n", peers[peer].name, error.message);
            seconds = -1;
        }
    }

    if (file) fclose(file);
    unlink(path);
    unlink(result);
    return seconds;
}

/* Bytes, what they are above the bound, CPU seconds; a star: proven optimal. */
static void print_cell(double seconds, const memo_plan* plan, int64_t bound) {
    if (seconds < 0)
        printf(" - | - | - |");
    else
        printf(" %lld | %.3f%s | %.2f |", (long long)plan->peak_bytes,
               100 * ((double)plan->peak_bytes / (double)bound - 1),
               plan->proof == MEMO_PROOF_OPTIMAL ? "*" : "", seconds);
    fflush(stdout);
}

/* A row of memo beside its peers; frees the plan. */
static void print_peer_row(const char* name, memo_plan* plan, const clocked* clocks, double limit) {
    memoi_problem posed;
    memo_error error;
    int64_t bound;
    double seconds;
    shuffle_buffers(plan, SHUFFLE_SEED);
    if (memo_plan_prepare(plan, &error) || memoi_solve_pose(plan, 0, &posed, &error))
        fail(name, &error);
    bound = memob_max(plan->lower_bound_bytes, posed.lower_bound * posed.unit_bytes);
    memoi_problem_free(&posed);

    seconds = run_traced(plan, NULL, MEMO_PLAN_ENGINE_AUTO, 0, limit, 0).cpu_s;
    printf("| %s | %lld | %lld |", name, (long long)plan->n_buffers, (long long)bound);
    print_cell(seconds, plan, bound);
    for (int k = 0; k < N_PEERS; k++)
        print_cell(plan->n_buffers > peers[k].most ? -1 : run_peer(k, plan, clocks, limit), plan,
                   bound);
    printf("\n");
    memo_plan_destroy(plan);
}

static void print_peer(problem* p) {
    print_peer_row(p->name, p->plan, p->clocks, limit_s);
    memo_trace_destroy(p->trace);
    MEMO_FREE(p->clocks);
}

/* Same order, limit and run, one thread each; every plan is validated here.  "-": a peer is missing,
 * found no plan within the limit, or lacks a feature of the instance. */
static void print_peers(void) {
    use = print_peer;
    printf("\n## Other planners: bytes, above the bound %%, CPU seconds; *: proven optimal; limit "
           "%g s, order of buffers shuffled with seed %d\n\n",
           limit_s, (int)SHUFFLE_SEED);
    printf("(a peer without its variable does not run; the head of bench/plan.c lists them)\n");
    printf("\n| instance | buffers | bound | memo | %% | s |");
    for (int i = 0; i < N_PEERS; i++) printf(" %s | %% | s |", peers[i].name);
    printf("\n|---|---|---|---|---|---|");
    for (int i = 0; i < N_PEERS; i++) printf("---|---|---|");
    printf("\n");
    give_minimize(0);
    give_traces(0);
    give_files(0);
    give_steps(0);
}

/* ---- ablation -------------------------------------------------------------------------------- */

static problem kept[1000];
static int n_kept;
static void keep(problem* p) {
    if (n_kept == 1000) exit(1);
    kept[n_kept++] = *p;
}

static void keep_sets(int n_seeds) {
    use = keep;
    is_cpu = 1;
    for (int seed = 0; seed < n_seeds; seed++)
        for (int k = 0; k < N_SETS; k++)
            if (!sets[k].is_whole && (seed == 0 || sets[k].give != give_traces)) sets[k].give(seed);
}

/* Runs all problems without a stage, and compares them with the run with all stages. */
static void print_ablation_row(const char* stage, int is_whole, uint64_t seed) {
    int n_worse = 0, n_better = 0, n_lost = 0, n_won = 0, n_done = 0;
    double gap = 0, seconds = 0;
    left_out = stage;
    for (int k = 0; k < n_kept; k++) {
        problem* p = &kept[k];
        const outcome result = run_solver(p, seed, limit_s);
        const int is_now = is_done(p, &result), was = is_done(p, &p->whole);
        if (is_whole) p->whole = result;
        gap += p->capacity ? 0 : gap_of(&result);
        seconds += result.seconds;
        n_done += is_now;
        if (is_whole) continue;
        n_worse += !p->capacity && result.peak_bytes > p->whole.peak_bytes;
        n_better += !p->capacity && result.peak_bytes < p->whole.peak_bytes;
        n_lost += was && !is_now;
        n_won += is_now && !was;
    }
    left_out = "";
    printf("| %s |", is_whole ? "nothing" : *stage ? stage : "nothing, another seed");
    if (is_whole) printf(" | | %d of %d done | |", n_done, n_kept);
    if (!is_whole) printf(" %d | %d | %d | %d |", n_worse, n_better, n_lost, n_won);
    printf(" %.3f | %.1f |\n", n_kept ? 100 * gap / n_kept : 0, seconds);
    fflush(stdout);
}

static const char* const stages[] = {"orders",    "sweep",  "first_fit", "full_sections",
                                     "windows",   "reuse",  "cover",     "cores",
                                     "ejections", "search", "bricks"};
enum { N_STAGES = sizeof stages / sizeof *stages };

static void print_ablation(int n_seeds) {
    const char* only = left_out;
    left_out = "";
    keep_sets(n_seeds);
    printf("\n## Without one stage: limit %.2f s of processor time\n\n", limit_s);
    printf("| without | worse | better | lost | won | mean gap %% | s |\n"
           "|---|---|---|---|---|---|---|\n");
    print_ablation_row("", 1, 0);
    print_ablation_row("", 0, 1);
    for (int k = 0; k < N_STAGES; k++)
        if (!*only || !strcmp(only, stages[k])) print_ablation_row(stages[k], 0, 0);
}

/* Is this table selected?  Without names, all sets are. */
static int is_asked(int argc, char** argv, const char* name) {
    int n_names = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], name)) return 1;
        if (argv[i][0] == '-')
            i++; /* its value */
        else
            n_names++;
    }
    return n_names == 0;
}

int main(int argc, char** argv) {
    static const char* const tables[] = {"peers", "ablation"};
    int n_seeds = 5;
    bench_help(
        argc, argv,
        "[SET...] [TABLE...] [--seeds N] [--limit S] [--threads N] [--cpu 1] [--without STAGE]");

    for (int i = 1; i < argc; i++) {
        const char* value = i + 1 < argc ? argv[i + 1] : "";
        int is_known = 0;
        for (int k = 0; k < N_SETS; k++) is_known |= !strcmp(argv[i], sets[k].name);
        for (int k = 0; k < 2; k++) is_known |= !strcmp(argv[i], tables[k]);
        if (is_known) continue;
        if (!strcmp(argv[i], "--seeds"))
            n_seeds = atoi(value);
        else if (!strcmp(argv[i], "--limit"))
            limit_s = atof(value);
        else if (!strcmp(argv[i], "--threads"))
            n_threads = atoi(value);
        else if (!strcmp(argv[i], "--cpu"))
            is_cpu = atoi(value);
        else if (!strcmp(argv[i], "--without"))
            left_out = value;
        else {
            fprintf(stderr,
                    "plan: %s: unknown set or option; the head of bench/plan.c lists them\n",
                    argv[i]);
            return 2;
        }
        i++;
    }
    for (int k = 0; *left_out && strcmp(stages[k], left_out); k++) {
        if (k + 1 < N_STAGES) continue;
        fprintf(stderr, "plan: --without %s: unknown stage; `stages` in bench/plan.c lists them\n",
                left_out);
        return 2;
    }
    if (n_seeds < 1 || n_seeds > 64 || !(limit_s > 0) || n_threads < 1 || n_threads > 64) {
        fprintf(stderr, "plan: --seeds and --threads must be 1 to 64, and --limit above 0\n");
        return 2;
    }

    for (int k = 0; k < N_SETS; k++)
        if (is_asked(argc, argv, sets[k].name)) print_set(k, n_seeds);
    if (is_asked(argc, argv, "peers")) print_peers();
    if (is_asked(argc, argv, "ablation") && !is_asked(argc, argv, "")) print_ablation(n_seeds);
    return is_missing > 0;
}
