/* bench/sp.c - sequence-parallel attention: measures bytes, time and efficiency of each sharding
 * against the ideal.
 *
 *   cc -O2 -I. bench/sp.c -lpthread -lm && ./a.out [REPETITIONS | MODE]   # MODE: host, windows, makespan, nodes
 *
 * host prints the host's time alone: of a sharding, of a plan of the exchange, and of a call of a
 * layer; the causal scores of the busiest rank; and rows of keys that all ranks send.  windows
 * prints simulated times beside the ideal ones.  makespan runs passes over rings of 8, 16 and 32
 * ranks with free links, and prints their times over the ideal: what a layout loses because ranks
 * wait for each other.  Beside them are those of a simulation with the same waits; the difference
 * is the machine's (timers, threads that wait for a processor).  nodes prints simulated times over
 * the ideal on 128 ranks in 16 nodes, of a ring whose rows all come straight from their owners, and
 * of one whose rows cross to a node once.
 *
 * Ranks are threads.  Their attention sleeps S_PER_SCORE for each score of a kernel with tiles of
 * TILE queries.  Such a kernel computes each tile against every key that one of its queries sees.
 * The links are throttled, so that overlap can be measured on any machine with two cores.  All
 * other work is real.
 *
 *   ideal        visible pairs (query, key) / ranks * S_PER_SCORE: perfect balance, no
 *                communication
 *   hop          time of one exchange of keys and values / time of one zigzag step
 *   measured     the fastest of the repetitions, because other programs only add time, and of up to
 *                12 times as many if it is more than 5 % above the simulated one; from a common
 *                start to the end of the last rank
 *   simulated    makespan of ring_schedule.h with the same rates
 *   efficiency   ideal / measured
 *   work         scores of the rank with most / scores of the rank with fewest
 *
 * Exit status: 1 if a measured time differs from the simulated one by more than 10 %. */
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include "extras/memo_look.h"
#include "examples/host_attention.h"
#include "median.h"
#include "ring_schedule.h"

#include <stdio.h>
#include <stdlib.h>

#define N_TOKENS        2048
#define HEAD_SIZE       16
#define N_HEADS         4
#define MAX_RANKS       32 /* of makespan; 8 of the others */
#define REPETITIONS_MAX 51
#define STEP_S          0.02 /* forward, of a zigzag step on 4 ranks with all heads */
#define S_PER_SCORE     (STEP_S / (512.0 * 512.0 / 2 * N_HEADS))
#define BACKWARD        2.0 /* times as long */
#define TILE            16

static const char* const sharding_names[] = {"zigzag", "plain", "documents"};

static void fail(const memo_error* error) {
    fprintf(stderr, "bench/sp: %s\n", error->message);
    exit(1);
}

static double fastest(const double* values, int n) {
    double best = values[0];
    while (n-- > 1) best = fmin(best, values[n]);
    return best;
}

/* ---- an attention that takes its time and computes nothing ---- */

typedef struct sleeper {
    memo_device* device;
    double s_per_score;
    int64_t n_scores; /* asked for so far, of a head */
    int is_exact;     /* no tiles: visible pairs alone */
} sleeper;

static memo_status sleeping(sleeper* s, memo_stream stream, const memo_attention_block* block,
                            double times, memo_error* error) {
    int64_t n = 0, low, high, unused;
    if (s->is_exact) n = (int64_t)count_pairs_of(block->segments.host, block->segments.n);
    for (int32_t k = 0; k < block->segments.n && !s->is_exact; k++) {
        const memo_segment* segment = &block->segments.host[k];
        for (int64_t q = segment->q_begin; q < segment->q_end; q += TILE) {
            const int64_t end = q + TILE < segment->q_end ? q + TILE : segment->q_end;
            memo_segment_keys(segment, q, &low, &unused);
            memo_segment_keys(segment, end - 1, &unused, &high);
            n += (end - q) * (high - low);
        }
    }
    s->n_scores += n;
    return memo_host_device_sleep(
        s->device, stream, (double)(n * block->n_batch * block->n_q_heads) * times * s->s_per_score,
        error);
}
static memo_status sleeping_forward(void* user, memo_stream stream,
                                    const memo_attention_block* block, memo_error* error) {
    return sleeping((sleeper*)user, stream, block, 1, error);
}
static memo_status sleeping_backward(void* user, memo_stream stream,
                                     const memo_attention_block* block, memo_error* error) {
    return sleeping((sleeper*)user, stream, block, BACKWARD, error);
}

/* ---- ranks ---- */

typedef struct run {
    memo_sharding_kind sharding;
    int32_t ring, ulysses, n_heads, groups;
    int64_t n_tokens;
    int64_t* begins; /* of documents; NULL: none */
    int64_t n_documents;
    double s_per_score, bytes_per_s;
    int repetitions;
    memo_device* devices[MAX_RANKS];
    memo_comm* comms[MAX_RANKS];
    pthread_barrier_t barrier;
    double times_s[2][REPETITIONS_MAX];
    int64_t sent_bytes[2]; /* by rank 0, in one call */
    sleeper sleepers[MAX_RANKS];
} run;

typedef struct rank_args {
    run* r;
    int32_t rank;
} rank_args;

static memo_sp_attention_desc desc_of(const run* r) {
    memo_sp_attention_desc desc = {0};
    memo_sharding_desc sharding_desc = {0};
    memo_error error;
    sharding_desc.kind = r->sharding;
    sharding_desc.ring = r->ring;
    sharding_desc.ulysses = r->ulysses;
    sharding_desc.n_tokens = r->n_tokens;
    if (r->sharding == MEMO_SHARDING_DOCUMENTS) {
        sharding_desc.document_begins = r->begins;
        sharding_desc.n_documents = r->n_documents;
    }
    if (memo_sharding_make(&sharding_desc, &desc.sharding, &error)) fail(&error);
    desc.n_q_heads = desc.n_kv_heads = r->n_heads;
    desc.head_size = HEAD_SIZE;
    desc.ulysses_groups = r->groups;
    return desc;
}

static memo_mask mask_of_run(const run* r) {
    memo_mask_desc desc = {0};
    desc.n_tokens = r->n_tokens;
    desc.document_begins = r->begins;
    desc.n_documents = r->n_documents;
    return made_mask(&desc);
}

static void* rank_main(void* argument) {
    const rank_args* args = (const rank_args*)argument;
    run* r = args->r;
    memo_device* device = r->devices[args->rank];
    memo_mesh_desc mesh_desc = {0};
    memo_sp_attention_desc desc = desc_of(r);
    memo_sp_attention_sizes sizes;
    memo_sp_attention* attention = NULL;
    memo_exchange_desc causal = {0};
    memo_mask mask;
    memo_exchange* exchange = NULL;
    memo_sp_attention_tensors t;
    memo_mesh* mesh = NULL;
    memo_error error;
    void* memory = NULL;
    char* next;
    int64_t share_bytes =
        desc.sharding.local_tokens * r->n_heads * HEAD_SIZE * (int64_t)sizeof(float);

    /* The mesh, and attention whose kernels sleep. */
    mesh_desc.ring = r->ring;
    mesh_desc.ulysses = r->ulysses;
    if (memo_mesh_create(r->comms[args->rank], &mesh_desc, &mesh, &error) ||
        memo_stream_create(device, "compute", 0, &desc.stream, &error))
        fail(&error);
    desc.device = device;
    desc.ring = mesh->ring;
    desc.ulysses = mesh->ulysses;
    desc.attention.forward = sleeping_forward;
    desc.attention.backward = sleeping_backward;
    r->sleepers[args->rank].device = device;
    r->sleepers[args->rank].s_per_score = r->s_per_score;
    r->sleepers[args->rank].is_exact = r->begins != NULL;
    mask = mask_of_run(r);
    causal.masks = &mask;
    desc.attention.user = &r->sleepers[args->rank];
    if (memo_sp_attention_desc_get_sizes(&desc, &sizes, &error) ||
        memo_sp_attention_create(&desc, &attention, &error) ||
        memo_exchange_create(attention, &causal, &exchange, &error) ||
        memo_device_alloc(device, 8 * share_bytes + sizes.lse_bytes + sizes.saved_bytes, &memory,
                          &error) ||
        memo_fill(device, desc.stream, memory, 0,
                  8 * share_bytes + sizes.lse_bytes + sizes.saved_bytes, &error))
        fail(&error);

    /* All tensors lie in one allocation. */
    next = (char*)memory;
    memset(&t, 0, sizeof t);
    t.q = next;
    t.k = next + share_bytes;
    t.v = next + 2 * share_bytes;
    t.out = next + 3 * share_bytes;
    t.d_out = next + 4 * share_bytes;
    t.d_q = next + 5 * share_bytes;
    t.d_k = next + 6 * share_bytes;
    t.d_v = next + 7 * share_bytes;
    t.saved = next + 8 * share_bytes;
    t.lse = (float*)(void*)(next + 8 * share_bytes + sizes.saved_bytes);
    if (memo_stream_synchronize(device, desc.stream, &error)) fail(&error);

    /* Forward and backward alternate; barriers begin and end them on all ranks together. */
    for (int k = 0; k < 2 * r->repetitions; k++) {
        int is_backward = k % 2;
        int64_t before = mesh->ring->sent_bytes + mesh->ulysses->sent_bytes;
        double begin_s;
        pthread_barrier_wait(&r->barrier);
        begin_s = memob_now_s();
        if ((is_backward ? memo_sp_attention_backward
                         : memo_sp_attention_forward)(attention, exchange, &t, &error) ||
            memo_stream_synchronize(device, desc.stream, &error))
            fail(&error);
        pthread_barrier_wait(&r->barrier);
        if (args->rank == 0) {
            r->times_s[is_backward][k / 2] = memob_now_s() - begin_s;
            r->sent_bytes[is_backward] =
                mesh->ring->sent_bytes + mesh->ulysses->sent_bytes - before;
        }
    }

    memo_exchange_destroy(exchange);
    memo_sp_attention_destroy(attention);
    made_mask_free(&mask);
    memo_mesh_destroy(mesh);
    memo_comm_destroy(r->comms[args->rank]);
    memo_sharding_free(&desc.sharding);
    return NULL;
}

static void run_ranks(run* r) {
    memo_comm_threads_desc desc = {0};
    memo_host_device_desc device_desc = {0};
    int32_t n = r->ring * r->ulysses;
    pthread_t threads[MAX_RANKS];
    rank_args args[MAX_RANKS];
    memo_error error;
    for (int32_t rank = 0; rank < n; rank++)
        if (memo_host_device_create(&device_desc, &r->devices[rank], &error)) fail(&error);
    desc.n_ranks = n;
    desc.devices = r->devices;
    desc.bytes_per_s = r->bytes_per_s; /* of the ring and of Ulysses, each */
    if (memo_comm_create_threads(&desc, r->comms, &error)) fail(&error);
    pthread_barrier_init(&r->barrier, NULL, (unsigned)n);
    for (int32_t rank = 0; rank < n; rank++) {
        args[rank].r = r;
        args[rank].rank = rank;
        pthread_create(&threads[rank], NULL, rank_main, &args[rank]);
    }
    for (int32_t rank = 0; rank < n; rank++) pthread_join(threads[rank], NULL);
    pthread_barrier_destroy(&r->barrier);
    for (int32_t rank = 0; rank < n; rank++) memo_host_device_destroy(r->devices[rank]);
}

/* ---- what it should take ---- */

static double simulated_s(const run* r, int is_backward) {
    memo_sp_attention_desc desc = desc_of(r);
    ring_costs costs;
    memo_mask mask = mask_of_run(r);
    memo_schedule* schedule = NULL;
    memo_simulation* simulation = NULL;
    memo_error error;
    double makespan_s;
    memset(&costs, 0, sizeof costs);
    costs.forward_s_per_score = r->s_per_score;
    costs.backward_s_per_score = BACKWARD * r->s_per_score;
    costs.ring_bytes_per_s = costs.ulysses_bytes_per_s = r->bytes_per_s;
    if (memo_schedule_create(&schedule, &error) ||
        ring_schedule(&desc, &mask, is_backward, &costs, schedule, &error) ||
        memo_schedule_simulate(schedule, &simulation, &error))
        fail(&error);
    makespan_s = simulation->makespan_s;
    made_mask_free(&mask);
    memo_simulation_destroy(simulation);
    memo_schedule_destroy(schedule);
    memo_sharding_free(&desc.sharding);
    return makespan_s;
}

/* The fastest of the repetitions.  While that is more than 5 % above the simulation, they are
 * repeated, up to 12 times: the difference is other programs' time, or there for good. */
static void measure(run* r, double measured_s[2]) {
    static run again;
    double expected_s[2];
    run_ranks(r);
    for (int k = 0; k < 2; k++) {
        measured_s[k] = fastest(r->times_s[k], r->repetitions);
        expected_s[k] = simulated_s(r, k);
    }
    for (int tries = 1; tries < 12 && (measured_s[0] > 1.05 * expected_s[0] ||
                                       measured_s[1] > 1.05 * expected_s[1]);
         tries++) {
        again = *r;
        run_ranks(&again);
        for (int k = 0; k < 2; k++)
            measured_s[k] = fmin(measured_s[k], fastest(again.times_s[k], r->repetitions));
    }
}

static double report(memo_sharding_kind sharding, int32_t ring, int32_t ulysses, double hop,
                     int repetitions) {
    static run r;
    int32_t n = ring * ulysses;
    double ideal_s, all_s[2], most = 0, fewest = HUGE_VAL, worst = 0;
    int64_t hop_bytes = 2 * N_TOKENS / 4 * N_HEADS * HEAD_SIZE * (int64_t)sizeof(float);

    memset(&r, 0, sizeof r);
    r.sharding = sharding;
    r.ring = ring;
    r.ulysses = ulysses;
    r.n_tokens = N_TOKENS;
    r.n_heads = N_HEADS;
    r.s_per_score = S_PER_SCORE;
    r.repetitions = repetitions;
    r.bytes_per_s = (double)hop_bytes / (hop * STEP_S);
    measure(&r, all_s);

    /* Work of the busiest rank over the least busy one. */
    for (int32_t rank = 0; rank < n; rank++) {
        double work = (double)r.sleepers[rank].n_scores;
        most = work > most ? work : most;
        fewest = work < fewest ? work : fewest;
    }

    /* Ideal: equal work on all ranks, and free communication. */
    ideal_s = (double)N_TOKENS * (N_TOKENS + 1) / 2 / n * N_HEADS * S_PER_SCORE;
    for (int is_backward = 0; is_backward < 2; is_backward++) {
        double measured_s = all_s[is_backward];
        double expected_s = simulated_s(&r, is_backward);
        double ideal = ideal_s * (is_backward ? BACKWARD : 1), off = measured_s / expected_s - 1;
        printf("%-8s %d x %d  %4.2f  %-8s %8.0f %8.1f %9.1f %9.1f  %+5.1f %%  %5.1f %%  %6.2f\n",
               sharding_names[sharding], (int)ring, (int)ulysses, hop,
               is_backward ? "backward" : "forward", (double)r.sent_bytes[is_backward] / 1024,
               1e3 * ideal, 1e3 * expected_s, 1e3 * measured_s, 100 * off, 100 * ideal / measured_s,
               most / fewest);
        if (fabs(off) > fabs(worst)) worst = off;
    }

    fflush(stdout);
    return worst;
}

/* 4 ranks, 4 heads each.  ratio: time of all Ulysses exchanges of forward / time of its
 * attention. */
static double report_groups(int32_t ring, int32_t groups, double ratio, int repetitions) {
    static run r;
    memo_sp_attention_desc desc;
    memo_sp_attention_sizes sizes;
    memo_error error;
    double ideal_s, forward_bytes, all_s[2], worst = 0;

    memset(&r, 0, sizeof r);
    r.ring = ring;
    r.ulysses = 4 / ring;
    r.n_tokens = N_TOKENS;
    r.n_heads = 4 * r.ulysses;
    r.groups = groups;
    r.s_per_score = S_PER_SCORE * N_HEADS / r.n_heads;
    r.repetitions = repetitions;

    /* The rate of the links follows from the ratio and the bytes of a forward: q, k, v and output,
     * to and from other ranks. */
    forward_bytes = 4.0 * N_TOKENS / 4 * r.n_heads * HEAD_SIZE * 4 * (r.ulysses - 1) / r.ulysses;
    desc = desc_of(&r);
    if (memo_sp_attention_desc_get_sizes(&desc, &sizes, &error)) fail(&error);
    ideal_s = (double)N_TOKENS * (N_TOKENS + 1) / 2 / ring * 4 * r.s_per_score;
    r.bytes_per_s = forward_bytes / (ratio * ideal_s);
    measure(&r, all_s);

    for (int is_backward = 0; is_backward < 2; is_backward++) {
        double measured_s = all_s[is_backward];
        double expected_s = simulated_s(&r, is_backward);
        double ideal = ideal_s * (is_backward ? BACKWARD : 1), off = measured_s / expected_s - 1;
        printf("%d x %d  %6d  %5.2f  %-8s %8.0f %11.0f %8.1f %9.1f %9.1f  %+5.1f %%  %5.1f %%\n",
               (int)r.ring, (int)r.ulysses, (int)groups, ratio,
               is_backward ? "backward" : "forward", (double)r.sent_bytes[is_backward] / 1024,
               (double)sizes.device_bytes / 1024, 1e3 * ideal, 1e3 * expected_s, 1e3 * measured_s,
               100 * off, 100 * ideal / measured_s);
        if (fabs(off) > fabs(worst)) worst = off;
    }

    fflush(stdout);
    return worst;
}

/* ---- real makespans over long rings ---- */

/* Documents of log-normal lengths, 4 a rank on average. */
static void log_normal_documents(run* r, double sigma, uint64_t seed) {
    const int64_t most = r->n_tokens;
    double length = 0;
    r->begins = (int64_t*)calloc((size_t)most + 1, sizeof *r->begins);
    if (!r->begins) exit(1);
    for (r->n_documents = 0; r->begins[r->n_documents] < most; r->n_documents++) {
        double normal = -6;
        for (int k = 0; k < 12; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            normal += (double)(seed >> 40) / (1 << 24);
        }
        length = (double)most / (4 * r->ring) * exp(sigma * normal - sigma * sigma / 2);
        r->begins[r->n_documents + 1] =
            r->begins[r->n_documents] + (int64_t)fmin(fmax(length, 1), (double)most);
        if (r->begins[r->n_documents + 1] > most) r->begins[r->n_documents + 1] = most;
    }
}

/* sigma 0: one causal sequence. */
static void report_makespan(memo_sharding_kind sharding, int32_t ring, double sigma, uint64_t seed,
                            int repetitions) {
    static run r;
    memo_mask mask;
    double ideal_s = 0.25, pairs, most = 0, measured_s[2];
    memset(&r, 0, sizeof r);
    r.sharding = sharding;
    r.ring = ring;
    r.ulysses = 1;
    r.n_tokens = 1024 * ring;
    r.n_heads = 1;
    r.repetitions = repetitions;
    if (sigma > 0) log_normal_documents(&r, sigma, seed);
    mask = mask_of_run(&r);
    pairs = count_pairs_of(mask.segments, mask.n_segments);
    r.s_per_score = ideal_s / (pairs / ring);
    made_mask_free(&mask);
    run_ranks(&r);
    for (int32_t rank = 0; rank < ring; rank++)
        most = fmax(most, (double)r.sleepers[rank].n_scores / (2 * repetitions));
    for (int k = 0; k < 2; k++) measured_s[k] = fastest(r.times_s[k], repetitions);
    printf("%-9s %4d  %5.1f  %9lld  %8.3f  %8.3f  %8.3f  %9.3f  %8.3f\n", sharding_names[sharding],
           (int)ring, sigma, (long long)r.n_documents, most / (pairs / ring),
           measured_s[0] / ideal_s, measured_s[1] / (BACKWARD * ideal_s),
           simulated_s(&r, 0) / ideal_s, simulated_s(&r, 1) / (BACKWARD * ideal_s));
    fflush(stdout);
    free(r.begins);
}

/* ---- the host's attention, and memory ---- */

static void report_host_attention(void) {
    memo_host_device_desc device_desc = {0};
    memo_sp_attention_desc desc = {0};
    memo_sharding_desc sharding_desc = {0};
    memo_sp_attention_tensors t;
    memo_sp_attention* attention = NULL;
    memo_exchange_desc causal = {0};
    memo_exchange* exchange = NULL;
    host_attention state;
    memo_device* device = NULL;
    memo_error error;
    int64_t n = 1024 * 64;
    float* data = (float*)calloc((size_t)(8 * n + 1024), sizeof(float));

    /* Values of an obvious pattern; their size does not change the time. */
    if (!data) exit(1);
    for (int64_t i = 0; i < 8 * n; i++) data[i] = (float)(i * 7919 % 1000) / 1000 - 0.5f;
    memset(&t, 0, sizeof t);
    t.q = data;
    t.k = data + n;
    t.v = data + 2 * n;
    t.d_out = data + 3 * n;
    t.out = data + 4 * n;
    t.d_q = data + 5 * n;
    t.d_k = data + 6 * n;
    t.d_v = data + 7 * n;
    t.lse = data + 8 * n;
    t.saved = NULL;

    /* One rank, one head, on the host device. */
    sharding_desc.n_tokens = 1024;
    if (memo_host_device_create(&device_desc, &device, &error) ||
        memo_sharding_make(&sharding_desc, &desc.sharding, &error) ||
        memo_stream_create(device, "compute", 0, &desc.stream, &error))
        fail(&error);
    state.device = device;
    state.n_scores = 0;
    desc.device = device;
    desc.n_q_heads = desc.n_kv_heads = 1;
    desc.head_size = 64;
    desc.attention = host_attention_functions(&state);
    if (memo_sp_attention_create(&desc, &attention, &error) ||
        memo_exchange_create(attention, &causal, &exchange, &error))
        fail(&error);

    /* A score takes 4 operations per element forward and 10 backward. */
    for (int k = 0; k < 2; k++) {
        double begin_s = memob_now_s(), elapsed_s, flops;
        if ((k ? memo_sp_attention_backward : memo_sp_attention_forward)(attention, exchange, &t,
                                                                         &error) ||
            memo_stream_synchronize(device, desc.stream, &error))
            fail(&error);
        elapsed_s = memob_now_s() - begin_s;
        flops = 1024.0 * 1025 / 2 * 64 * (k ? 10 : 4); /* of the pairs that the mask lets through */
        printf("host attention %s, 1024 tokens, head of 64: %.2f ms, %.2f GFLOP/s\n",
               k ? "backward" : "forward", 1e3 * elapsed_s, 1e-9 * flops / elapsed_s);
    }

    memo_exchange_destroy(exchange);
    memo_sp_attention_destroy(attention);
    memo_host_device_destroy(device);
    free(data);
}

/* ---- the host's time ---- */

static memo_status attend_nothing(void* user, memo_stream stream, const memo_attention_block* block,
                                  memo_error* error) {
    (void)user, (void)stream, (void)block, (void)error;
    return MEMO_STATUS_OK;
}

/* Causal scores of the busiest rank over the mean of all, within the documents of the mask. */
static double most_scores(const memo_sharding* sharding, const memo_mask* mask) {
    memo_run* runs = NULL;
    double most = 0, all = 0, scores;
    int64_t begin, end, at;
    for (int32_t r = 0; r < sharding->ring; r++) {
        int32_t k, n = memo_sharding_runs(sharding, r, NULL);
        runs = (memo_run*)realloc(runs, (size_t)n * sizeof *runs);
        if (!runs) exit(1);
        memo_sharding_runs(sharding, r, runs);
        for (k = 0, scores = 0, at = 0; k < n; k++)
            for (int64_t q = runs[k].start; q < runs[k].start + runs[k].count; q++) {
                while (at < mask->n_segments && mask->segments[at].q_end <= q) at++;
                if (at == mask->n_segments) continue;
                memo_segment_keys(&mask->segments[at], q, &begin, &end);
                scores += (double)(end - begin);
            }
        all += scores;
        most = fmax(most, scores);
    }
    free(runs);
    return most / (all / sharding->ring);
}

static memo_status keep_latent(void* user, memo_stream stream, const memo_latent_block* block,
                               memo_error* error) {
    (void)user, (void)stream, (void)block, (void)error;
    return MEMO_STATUS_OK;
}

/* A ring of 64 on paper: nothing is computed or sent, so all time is the engine's.  Prints medians
 * of one rank. */
static void report_host(memo_sharding_kind kind, int64_t n_documents) {
    enum { RING = 64, N_TOKENS_HOST = 1 << 20, N_PLANS = 9, N_CALLS = 51, ROW_BYTES = 8 * 128 * 2 };
    char* somewhere = (char*)(uintptr_t)((uint64_t)1 << 40); /* never accessed */
    int64_t* begins = (int64_t*)calloc((size_t)n_documents + 1, sizeof *begins);
    memo_sharding_desc sharding_desc = {0};
    memo_exchange_desc exchange_desc = {0};
    memo_mask_desc mask_desc = {0};
    memo_mask mask;
    memo_sharding sharding;
    memo_sp_attention_tensors t;
    memo_error error;
    double times_s[4][N_CALLS], begin_s;
    int64_t sent = 0;

    /* Documents of half the mean length to 1.5 times. */
    if (!begins) exit(1);
    for (int64_t i = 1; i <= n_documents; i++)
        begins[i] = N_TOKENS_HOST * i / n_documents +
                    (i < n_documents ? i * 7919 % (N_TOKENS_HOST / n_documents) / 2 : 0);
    sharding_desc.kind = kind;
    sharding_desc.ring = RING;
    sharding_desc.n_tokens = mask_desc.n_tokens = N_TOKENS_HOST;
    sharding_desc.document_begins = mask_desc.document_begins = begins;
    sharding_desc.n_documents = mask_desc.n_documents = n_documents;
    mask = made_mask(&mask_desc);
    if (kind != MEMO_SHARDING_DOCUMENTS) sharding_desc.document_begins = NULL;
    for (int k = 0; k < N_PLANS; k++) {
        if (k) memo_sharding_free(&sharding);
        begin_s = memob_now_s();
        if (memo_sharding_make(&sharding_desc, &sharding, &error)) fail(&error);
        times_s[0][k] = memob_now_s() - begin_s;
    }
    memset(&t, 0, sizeof t);
    t.q = t.k = t.v = t.d_out = t.out = t.saved = t.d_q = t.d_k = t.d_v = somewhere;
    t.lse = (float*)(void*)somewhere;
    exchange_desc.masks = &mask;

    for (int32_t rank = 0; rank < RING; rank++) {
        memo_recorder_desc recorder_desc = {0};
        memo_sp_attention_desc desc = {0};
        memo_recorder* recorder = NULL;
        memo_sp_attention* attention = NULL;
        memo_exchange* exchange = NULL;
        ring_paper paper;
        memo_comm ring = ring_paper_comm(&paper, rank, RING);
        const int is_timed = rank == RING / 2;
        recorder_desc.on_paper = 1;
        if (memo_recorder_create(&recorder_desc, &recorder, &error)) fail(&error);
        memo_recorder_pause(recorder);
        desc.device = memo_recorder_get_device(recorder);
        desc.ring = &ring;
        desc.sharding = sharding;
        desc.n_q_heads = desc.n_kv_heads = 8;
        desc.head_size = 128;
        desc.type = MEMO_TYPE_BF16;
        desc.attention.forward = desc.attention.backward = attend_nothing;
        desc.device_memory = somewhere + ((int64_t)1 << 40);
        if (memo_stream_create(desc.device, "compute", 0, &desc.stream, &error) ||
            memo_sp_attention_create(&desc, &attention, &error))
            fail(&error);

        for (int k = 0; k < (is_timed ? N_PLANS : 1); k++) {
            memo_exchange_destroy(exchange);
            begin_s = memob_now_s();
            if (memo_exchange_create(attention, &exchange_desc, &exchange, &error)) fail(&error);
            times_s[1][k] = is_timed ? memob_now_s() - begin_s : times_s[1][k];
        }
        if (memo_sp_attention_forward(attention, exchange, &t, &error)) fail(&error);
        sent += ring.sent_bytes / (2 * ROW_BYTES); /* a row is of k and of v */
        for (int k = 0; k < 2 * N_CALLS && is_timed; k++) {
            begin_s = memob_now_s();
            if ((k % 2 ? memo_sp_attention_backward
                       : memo_sp_attention_forward)(attention, exchange, &t, &error))
                fail(&error);
            times_s[2 + k % 2][k / 2] = memob_now_s() - begin_s;
        }
        memo_exchange_destroy(exchange);
        memo_sp_attention_destroy(attention);
        memo_recorder_destroy(recorder);
    }
    printf("%-9s  %9lld  %11.3f  %8.3f  %10.1f  %11.1f  %11.3f  %9lld\n", sharding_names[kind],
           (long long)n_documents, 1e3 * median(times_s[0], N_PLANS),
           1e3 * median(times_s[1], N_PLANS), 1e6 * median(times_s[2], N_CALLS),
           1e6 * median(times_s[3], N_CALLS), most_scores(&sharding, &mask), (long long)sent);
    memo_sharding_free(&sharding);
    free(begins);
    made_mask_free(&mask);
}

static void report_memory(void) {
    printf("scratch of a rank with 8192 tokens, 32 heads, 8 key heads of 128, bf16:");
    for (int32_t ring = 1; ring <= 64; ring *= 4) {
        memo_sp_attention_desc desc = {0};
        memo_sharding_desc sharding_desc = {0};
        memo_sp_attention_sizes sizes;
        memo_error error;
        sharding_desc.ring = ring;
        sharding_desc.n_tokens = 8192 * ring;
        desc.n_q_heads = 32;
        desc.n_kv_heads = 8;
        desc.head_size = 128;
        desc.type = MEMO_TYPE_BF16;
        if (memo_sharding_make(&sharding_desc, &desc.sharding, &error) ||
            memo_sp_attention_desc_get_sizes(&desc, &sizes, &error))
            fail(&error);
        printf("%s ring %d %.0f MiB", ring > 1 ? "," : "", (int)ring,
               (double)sizes.device_bytes / (1 << 20));
    }
    printf("\n");
}

/* ---- windows ---- */

/* Causal attention of 131,072 tokens on a zigzag ring of 16, 32 heads, 8 key heads of 128, bf16:
 * 600 TFLOP/s, links of 50 GB/s and 10 us.  window 0: none. */
static void report_window(int64_t window, int32_t rounds_gradients) {
    memo_sp_attention_desc desc = {0};
    memo_sharding_desc sharding_desc = {0};
    memo_mask_desc mask_desc = {0};
    memo_mask mask;
    memo_error error;
    ring_costs costs;
    int64_t n_pairs = 0;
    sharding_desc.ring = 16;
    sharding_desc.n_tokens = 131072;
    desc.n_q_heads = 32;
    desc.n_kv_heads = 8;
    desc.head_size = 128;
    desc.type = MEMO_TYPE_BF16;
    desc.rounds_gradients = rounds_gradients;
    mask_desc.n_tokens = sharding_desc.n_tokens;
    mask_desc.window_before = window;
    mask = made_mask(&mask_desc);
    if (memo_sharding_make(&sharding_desc, &desc.sharding, &error)) fail(&error);
    for (int64_t q = 0; q < 131072; q++) n_pairs += window && q >= window ? window : q + 1;
    memset(&costs, 0, sizeof costs);
    costs.forward_s_per_score = 4 * 128 / 600e12;
    costs.backward_s_per_score = 2.5 * costs.forward_s_per_score;
    costs.ring_bytes_per_s = 50e9;
    costs.ring_latency_s = 1e-5;
    for (int is_backward = 0; is_backward < 2; is_backward++) {
        memo_schedule* schedule = NULL;
        memo_simulation* simulation = NULL;
        double ideal_s = (double)n_pairs / 16 * 32 *
                         (is_backward ? costs.backward_s_per_score : costs.forward_s_per_score);
        if (memo_schedule_create(&schedule, &error) ||
            ring_schedule(&desc, &mask, is_backward, &costs, schedule, &error) ||
            memo_schedule_simulate(schedule, &simulation, &error))
            fail(&error);
        printf("%6lld  %-9s  %-8s  %8.2f  %9.2f  %5.2f\n", (long long)window,
               rounds_gradients ? "bf16" : "fp32", is_backward ? "backward" : "forward",
               1e3 * ideal_s, 1e3 * simulation->makespan_s, simulation->makespan_s / ideal_s);
        memo_simulation_destroy(simulation);
        memo_schedule_destroy(schedule);
    }
    made_mask_free(&mask);
}

/* ---- nodes ---- */

/* Causal attention of 131,072 tokens on 128 ranks, 8 in a node: 32 heads, n_kv_heads of 128, bf16,
 * 600 TFLOP/s, links of 450 GB/s and 3 us in a node, of 50 GB/s and 10 us between nodes.
 * latent: not 0: elements of a latent row. */
static void report_nodes(int32_t ring, int32_t n_nodes, int32_t n_kv_heads, int32_t latent) {
    memo_sp_attention_desc desc = {0};
    memo_sharding_desc sharding_desc = {0};
    memo_error error;
    ring_costs costs;
    double ratios[2];
    const double n_pairs = 131072.0 * 131073 / 2;
    sharding_desc.ring = ring;
    sharding_desc.ulysses = 128 / ring;
    sharding_desc.n_tokens = 131072;
    desc.n_nodes = n_nodes;
    desc.n_q_heads = 32;
    desc.n_kv_heads = n_kv_heads;
    desc.head_size = 128;
    desc.latent.size = latent;
    desc.latent.expand = desc.latent.reduce = keep_latent;
    desc.type = MEMO_TYPE_BF16;
    desc.rounds_gradients = 1;
    if (memo_sharding_make(&sharding_desc, &desc.sharding, &error)) fail(&error);
    memset(&costs, 0, sizeof costs);
    costs.forward_s_per_score = 4 * 128 / 600e12;
    costs.backward_s_per_score = 2.5 * costs.forward_s_per_score;
    costs.nodes_bytes_per_s = 50e9;
    costs.nodes_latency_s = 1e-5;
    costs.ulysses_bytes_per_s = 450e9;
    costs.ulysses_latency_s = 3e-6;
    costs.ring_bytes_per_s = n_nodes ? 450e9 : 50e9;
    costs.ring_latency_s = n_nodes ? 3e-6 : 1e-5;
    for (int is_backward = 0; is_backward < 2; is_backward++) {
        memo_schedule* schedule = NULL;
        memo_simulation* simulation = NULL;
        double ideal_s = n_pairs / 128 * 32 *
                         (is_backward ? costs.backward_s_per_score : costs.forward_s_per_score);
        if (memo_schedule_create(&schedule, &error) ||
            ring_schedule(&desc, NULL, is_backward, &costs, schedule, &error) ||
            memo_schedule_simulate(schedule, &simulation, &error))
            fail(&error);
        ratios[is_backward] = simulation->makespan_s / ideal_s;
        memo_simulation_destroy(simulation);
        memo_schedule_destroy(schedule);
    }
    printf("%4d  %5d  %7d  %9d  %6d  %7.2f  %8.2f\n", (int)ring, (int)n_nodes,
           (int)sharding_desc.ulysses, (int)n_kv_heads, (int)latent, ratios[0], ratios[1]);
    fflush(stdout);
}

int main(int argc, char** argv) {
    bench_help(argc, argv, "[REPETITIONS | host | windows | makespan | nodes]");
    if (argc == 2 && !strcmp(argv[1], "makespan")) {
        static const double sigmas[] = {0, 0.5, 1, 1.5, 2};
        printf(
            "attention sleeps for each visible pair, links are free; the fastest pass over the "
            "ideal, equal pairs on all ranks\n\n"
            "sharding  ring  sigma  documents  busiest   forward  backward  simulated  backward\n");
        for (int32_t ring = 8; ring <= 32; ring *= 2)
            for (int k = 0; k < 5; k++) {
                /* 32 ranks are 64 threads and more, which a busy machine holds up. */
                const int n_passes = ring == 32 ? 6 : 3;
                report_makespan(k ? MEMO_SHARDING_DOCUMENTS : MEMO_SHARDING_ZIGZAG, ring, sigmas[k],
                                (uint64_t)k, n_passes);
                if (k == 2)
                    report_makespan(MEMO_SHARDING_ZIGZAG, ring, sigmas[k], (uint64_t)k, n_passes);
            }
        return 0;
    }
    if (argc == 2 && !strcmp(argv[1], "nodes")) {
        printf("131,072 tokens, 128 ranks in 16 nodes; simulated time over the ideal\n\n"
               "ring  nodes  ulysses  key heads  latent  forward  backward\n");
        for (int k = 0; k < 3; k++) {
            const int32_t n_kv_heads = k == 1 ? 2 : 8, latent = k == 2 ? 576 : 0;
            if (k < 2) report_nodes(128, 0, n_kv_heads, latent);
            report_nodes(128, 16, n_kv_heads, latent);
            report_nodes(16, 0, n_kv_heads, latent);
        }
        return 0;
    }
    if (argc == 2 && !strcmp(argv[1], "host")) {
        printf("2^20 tokens, ring 64\n\n"
               "sharding   documents  sharding ms   plan ms  forward us  backward us  busiest rank"
               "  rows sent\n");
        for (int64_t n = 10; n <= 10000; n *= 10) report_host(MEMO_SHARDING_DOCUMENTS, n);
        for (int64_t n = 10; n <= 10000; n *= 10) report_host(MEMO_SHARDING_ZIGZAG, n);
        return 0;
    }
    if (argc == 2 && !strcmp(argv[1], "windows")) {
        printf("window  gradients  pass      ideal ms  simulated  ratio\n");
        report_window(4096, 0);
        report_window(4096, 1);
        report_window(0, 0);
        return 0;
    }
    const int repetitions = (int)bench_number(argc, argv, 1, 5, 1, REPETITIONS_MAX);
    double worst = 0, off;

    printf("%d tokens, %d heads of %d, causal; attention sleeps, links are throttled; best of "
           "%d\n\n",
           N_TOKENS, N_HEADS, HEAD_SIZE, repetitions);
    printf("sharding   r x u   hop  pass      KiB/rank ideal ms simulated  measured     off  "
           "efficiency  work\n");

    /* Plain rings, whose hop takes 0.25, 1 or 2 steps. */
    for (int sharding = 0; sharding < 2; sharding++)
        for (int hop = 0; hop < 3; hop++) {
            static const double hops[] = {0.25, 1, 2};
            off = report((memo_sharding_kind)sharding, 4, 1, hops[hop], repetitions);
            if (fabs(off) > fabs(worst)) worst = off;
        }

    /* Hybrid, then Ulysses alone. */
    for (int hop = 0; hop < 2; hop++) {
        static const double hops[] = {0.25, 1};
        off = report(MEMO_SHARDING_ZIGZAG, 2, 2, hops[hop], repetitions);
        if (fabs(off) > fabs(worst)) worst = off;
        off = report(MEMO_SHARDING_ZIGZAG, 1, 4, hops[hop], repetitions);
        if (fabs(off) > fabs(worst)) worst = off;
    }

    printf(
        "\n4 heads on each rank: the exchanges of one group run behind the attention of another\n\n"
        "r x u  groups  ratio  pass      KiB/rank scratch KiB ideal ms simulated  measured     off "
        " "
        "efficiency\n");
    for (int hop = 0; hop < 6; hop++) {
        static const double ratios[] = {0.25, 0.5, 1};
        for (int32_t groups = 1; groups <= 4; groups *= 2) {
            off = report_groups(1 + hop / 3, groups, ratios[hop % 3], repetitions);
            if (fabs(off) > fabs(worst)) worst = off;
        }
    }
    printf("\nmeasured and simulated times differ by at most %.1f %%\n", 100 * fabs(worst));
    report_memory();
    report_host_attention();
    if (fabs(worst) <= 0.1) return 0;
    fprintf(stderr,
            "bench/sp: a measured time differs from the simulated one by more than 10 %%\n");
    return 1;
}
