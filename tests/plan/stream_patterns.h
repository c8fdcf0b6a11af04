/* stream_patterns.h - plans of several streams, made at random: tilings whose optimum is known, and
 * streams that wait for each other in a pattern.  Include it after memo_plan.h with its
 * implementation. */
#ifndef STREAM_PATTERNS_H
#define STREAM_PATTERNS_H

static uint64_t pattern_state;
static int64_t pattern_int(int64_t low, int64_t high) {
    return low + (int64_t)(memob_random(&pattern_state) % (uint64_t)(high - low + 1));
}

enum { CLOCKS_MAX = 8 };

/* Alive from one clock of every stream to another: it is free before a buffer whose start is not
 * before its end in any stream. */
typedef struct clocked {
    int64_t size, start[CLOCKS_MAX], end[CLOCKS_MAX];
} clocked;

static int n_clocks; /* streams */

static int is_over(const clocked* a, const clocked* b) {
    for (int k = 0; k < n_clocks; k++)
        if (a->end[k] > b->start[k]) return 0;
    return 1;
}

static int64_t clock_sum(const int64_t* clock) {
    int64_t sum = 0;
    for (int k = 0; k < n_clocks; k++) sum += clock[k];
    return sum;
}

static int compare_clocked(const void* a, const void* b) {
    return memob_compare(clock_sum(((const clocked*)a)->start),
                         clock_sum(((const clocked*)b)->start));
}

/* A plan in which each buffer has a lane of its own.  The sum of clocks is a time that respects
 * their order. */
static memo_plan* plan_of_clocks(clocked* buffers, int64_t n) {
    memo_plan* plan;
    memo_error error;
    int64_t k;
    for (int64_t i = n - 1; i > 0; i--) { /* the order of the generator makes first fit optimal */
        clocked moved = buffers[i];
        k = pattern_int(0, i);
        buffers[i] = buffers[k];
        buffers[k] = moved;
    }
    qsort(buffers, (size_t)n, sizeof *buffers, compare_clocked);
    if (memo_plan_create(n, 0, 1, &plan, &error)) exit(1);
    for (int64_t i = 0; i < n; i++) {
        memo_buffer* buffer = &plan->buffers[i];
        buffer->id = i;
        buffer->size_bytes = buffers[i].size;
        buffer->lane = 64 + (int32_t)i;
        buffer->begin = clock_sum(buffers[i].start);
        buffer->end = clock_sum(buffers[i].end);
    }
    for (int pass = 0; pass < 2; pass++) { /* counts, then lists */
        if (pass) plan->holds = (memo_hold*)calloc((size_t)plan->n_holds + 1, sizeof(memo_hold));
        if (pass && !plan->holds) exit(1);
        plan->n_holds = 0;
        for (int64_t i = 0; i < n; i++)
            for (k = i + 1; k < n; k++) {
                if (plan->buffers[i].end > plan->buffers[k].begin ||
                    is_over(&buffers[i], &buffers[k]))
                    continue;
                if (pass) {
                    plan->holds[plan->n_holds].buffer = i;
                    plan->holds[plan->n_holds].lane = plan->buffers[k].lane;
                    plan->holds[plan->n_holds].until = plan->buffers[k].begin + 1;
                }
                plan->n_holds++;
            }
    }
    return plan;
}

/* Cuts a block of bytes and clocks into n buffers: by bytes; by time; or into streams that go on
 * alone.  However it is cut, the buffers that live at once fill the block: its size is the
 * optimum. */
static clocked* cut_block(clocked block, int first_stream, int last_stream, int64_t n,
                          clocked* made) {
    clocked other = block;
    int64_t n_first = n / 2;
    int kind = (int)pattern_int(0, 9), k, middle = (first_stream + last_stream) / 2;
    int64_t total = clock_sum(block.end) - clock_sum(block.start);
    if (n == 1) {
        *made = block;
        return made + 1;
    }
    if (kind < 4 && total >= 2 * n * n_clocks) { /* by time */
        for (k = first_stream; k < last_stream; k++) {
            int64_t length = block.end[k] - block.start[k];
            block.end[k] = other.start[k] = block.start[k] + length * pattern_int(30, 70) / 100;
        }
    } else {
        block.size = block.size * pattern_int(30, 70) / 100;
        if (block.size < n_first) block.size = n_first;
        if (other.size - block.size < n - n_first) block.size = other.size - (n - n_first);
        other.size -= block.size;
        if (kind < 7 && last_stream - first_stream > 1) { /* two groups of streams */
            for (k = middle; k < last_stream; k++) block.end[k] = block.start[k];
            for (k = first_stream; k < middle; k++) other.end[k] = other.start[k];
            made = cut_block(block, first_stream, middle, n_first, made);
            return cut_block(other, middle, last_stream, n - n_first, made);
        }
    }
    made = cut_block(block, first_stream, last_stream, n_first, made);
    return cut_block(other, first_stream, last_stream, n - n_first, made);
}

static memo_plan* tiling_of_streams(int n_streams, int64_t n, int64_t size, uint64_t seed) {
    clocked block, *buffers = (clocked*)calloc((size_t)n, sizeof(clocked));
    if (!buffers) exit(1);
    pattern_state = seed;
    n_clocks = n_streams;
    memset(&block, 0, sizeof block);
    block.size = size;
    for (int k = 0; k < n_streams; k++) block.end[k] = (int64_t)1 << 20;
    cut_block(block, 0, n_streams, n, buffers);
    memo_plan* plan = plan_of_clocks(buffers, n);
    free(buffers);
    return plan;
}

/* How streams wait for each other, after each round of a step on every stream. */
typedef enum pattern { RING, PIPELINE, BARRIER, STAR, PAIRS, NEVER, N_PATTERNS } pattern;

static void meet(int64_t clocks[][CLOCKS_MAX], int to, int from) { /* `to` waits for `from` */
    for (int k = 0; k < n_clocks; k++) clocks[to][k] = memob_max(clocks[to][k], clocks[from][k]);
}

static memo_plan* pattern_of_streams(pattern which, int n_streams, int64_t n, uint64_t seed) {
    int64_t clocks[CLOCKS_MAX][CLOCKS_MAX], n_live = 0, live[64], made = 0;
    clocked* buffers = (clocked*)calloc((size_t)n + 64, sizeof(clocked));
    if (!buffers) exit(1);
    pattern_state = seed;
    n_clocks = n_streams;
    memset(clocks, 0, sizeof clocks);
    for (int64_t round = 0; made < n || n_live > 0; round++) {
        for (int s = 0; s < n_streams; s++) {
            clocks[s][s]++;
            for (int64_t i = n_live - 1; i >= 0;
                 i--) { /* frees of this stream; all of them at the end */
                if (live[i] % n_streams != s) continue;
                if (made < n && pattern_int(0, 3) > 0) continue;
                memcpy(buffers[live[i] / n_streams].end, clocks[s], sizeof clocks[s]);
                live[i] = live[--n_live];
            }
            for (int64_t i = pattern_int(0, 2); i > 0 && made < n && n_live < 64; i--) {
                memcpy(buffers[made].start, clocks[s], sizeof clocks[s]);
                buffers[made].size = pattern_int(1, 64) * pattern_int(1, 64);
                live[n_live++] = made++ * n_streams + s;
            }
            clocks[s][s]++;
        }
        for (int s = 0; s < n_streams; s++) {
            int other = (int)pattern_int(0, n_streams - 1);
            if (which == RING) meet(clocks, s, (s + n_streams - 1) % n_streams);
            if (which == PIPELINE && s > 0) meet(clocks, s, s - 1);
            if (which == BARRIER && round % 8 == 7)
                for (int64_t i = 0; i < n_streams; i++) meet(clocks, s, (int)i);
            if (which == STAR && round % 2 == 0 && s > 0) meet(clocks, 0, s);
            if (which == STAR && round % 2 == 1 && s > 0) meet(clocks, s, 0);
            if (which == PAIRS) meet(clocks, s, other);
        }
    }
    memo_plan* plan = plan_of_clocks(buffers, n);
    free(buffers);
    return plan;
}

#endif
