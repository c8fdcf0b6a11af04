/* test_sp_attention.c - attention over ring x ulysses ranks against a dense fp64 reference that shares no code. */
#include <stddef.h>

static void* counted_malloc(size_t n_bytes); /* memo's own bookkeeping */
#define MEMO_MALLOC(n_bytes) counted_malloc(n_bytes)
#define MEMO_FREE(address)   free(address)
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include "memo_test.h"

static long long malloc_count;
static void* counted_malloc(size_t n_bytes) {
    __atomic_fetch_add(&malloc_count, 1, __ATOMIC_RELAXED);
    return malloc(n_bytes);
}

/* Where every instruction costs much, fewer random cases. */
#if defined(MEMO_TEST_VALGRIND)
#define IS_SLOW 2
#elif defined(__SANITIZE_THREAD__)
#define IS_SLOW 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define IS_SLOW 1
#endif
#endif
#ifndef IS_SLOW
#define IS_SLOW 0
#endif

#define MAX_DOCUMENTS 16

typedef struct attention_case {
    int32_t ring, ulysses, ring_is_inner;
    memo_layout_kind layout;
    memo_mask_kind mask;
    int64_t window;
    int64_t document_begins[MAX_DOCUMENTS + 1];
    int64_t n_documents; /* 0: one, without a list */
    int64_t n_tokens;
    int32_t n_batch, n_q_heads, n_kv_heads, head_size;
    memo_type type;
    int32_t sends_again;
    double spread;                   /* of q and k; 0: 1 */
    double bytes_per_s, s_per_score; /* not 0: links are throttled, attention sleeps */
    double step; /* not 0: the first element of q is 1, that of k step * (position / 24) */
} attention_case;

static attention_case case_of(int32_t ring, int32_t ulysses, int64_t n_tokens, int32_t n_q_heads,
                              int32_t n_kv_heads, int32_t head_size) {
    attention_case c;
    memset(&c, 0, sizeof c);
    c.ring = ring;
    c.ulysses = ulysses;
    c.n_tokens = n_tokens;
    c.n_batch = 1;
    c.n_q_heads = n_q_heads;
    c.n_kv_heads = n_kv_heads;
    c.head_size = head_size;
    return c;
}

static const char* case_text(const attention_case* c) {
    static char text[256];
    snprintf(text, sizeof text,
             "ring %d ulysses %d%s %s %s window %d documents %d, batch %d tokens %d heads %d/%d of "
             "%d, %s%s",
             c->ring, c->ulysses, c->ring_is_inner ? " (ring inside)" : "",
             memo_layout_name(c->layout), c->mask == MEMO_MASK_CAUSAL ? "causal" : "full",
             (int)c->window, (int)c->n_documents, c->n_batch, (int)c->n_tokens, c->n_q_heads,
             c->n_kv_heads, c->head_size, memo_type_name(c->type),
             c->sends_again ? ", sends again" : "");
    return text;
}

/* ---- whole tensors: (batch, tokens, heads, head_size), as floats and in the case's type ---- */

enum { Q, K, V, OUT, D_OUT, D_Q, D_K, D_V, N_TENSORS };

typedef struct whole {
    int64_t n[N_TENSORS]; /* elements */
    int32_t n_heads[N_TENSORS];
    char* typed[N_TENSORS];
    double* reference[N_TENSORS];
} whole;

static uint16_t test_bf16(float x) { /* to the nearest, ties to even */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
static uint16_t test_f16(double x) { /* of numbers below 65504, subnormal ones to 0 */
    int exponent;
    double m = frexp(fabs(x), &exponent); /* in [0.5, 1) */
    long bits = lrint(m * 2048);          /* 1024 .. 2048, ties to even */
    if (x == 0 || exponent < -13) return 0;
    bits += (exponent + 13L) * 1024; /* the leading one counts as 1 of the exponent */
    return (uint16_t)(bits | (x < 0 ? 0x8000 : 0));
}
static double f16_value(uint16_t half) {
    double m = half & 0x3ff;
    int exponent = (half >> 10) & 31;
    double x = exponent ? ldexp(1024 + m, exponent - 25) : ldexp(m, -24);
    return half & 0x8000 ? -x : x;
}
static double typed_at(const char* typed, int64_t i, memo_type type) {
    float value;
    uint32_t bits;
    if (type == MEMO_TYPE_F32) {
        memcpy(&value, typed + 4 * i, 4);
        return value;
    }
    if (type == MEMO_TYPE_F16) return f16_value(((const uint16_t*)(const void*)typed)[i]);
    bits = (uint32_t)((const uint16_t*)(const void*)typed)[i] << 16;
    memcpy(&value, &bits, 4);
    return value;
}
static void typed_set(char* typed, int64_t i, memo_type type, double x) {
    float value = (float)x;
    if (type == MEMO_TYPE_F32)
        memcpy(typed + 4 * i, &value, 4);
    else if (type == MEMO_TYPE_F16)
        ((uint16_t*)(void*)typed)[i] = test_f16(x);
    else
        ((uint16_t*)(void*)typed)[i] = test_bf16(value);
}

static double test_normal(void) { /* nearly */
    double sum = -6;
    int i;
    for (i = 0; i < 12; i++) sum += memo_test_real();
    return sum;
}

static void whole_create(whole* w, const attention_case* c) {
    int t;
    int64_t i;
    for (t = 0; t < N_TENSORS; t++) {
        int is_kv = t == K || t == V || t == D_K || t == D_V;
        double spread = (t == Q || t == K) && c->spread > 0 ? c->spread : 1;
        w->n_heads[t] = is_kv ? c->n_kv_heads : c->n_q_heads;
        w->n[t] = c->n_batch * c->n_tokens * w->n_heads[t] * c->head_size;
        w->typed[t] = (char*)calloc((size_t)w->n[t], (size_t)memo_type_bytes(c->type));
        w->reference[t] = (double*)calloc((size_t)w->n[t], sizeof(double));
        if (t != Q && t != K && t != V && t != D_OUT) continue;
        for (i = 0; i < w->n[t]; i++) {
            double x = spread * test_normal();
            int64_t position = i / (w->n_heads[t] * c->head_size) % c->n_tokens;
            if (c->step > 0 && i % c->head_size == 0 && t != V && t != D_OUT)
                x = t == Q ? 1 : c->step * (double)(position / 24);
            typed_set(w->typed[t], i, c->type, x);
            w->reference[t][i] = typed_at(w->typed[t], i, c->type);
        }
    }
}
static void whole_destroy(whole* w) {
    int t;
    for (t = 0; t < N_TENSORS; t++) {
        free(w->typed[t]);
        free(w->reference[t]);
    }
}

/* ---- the reference ---- */

static int is_visible(const attention_case* c, int64_t query, int64_t key) {
    int64_t distance = query > key ? query - key : key - query, i;
    if (c->mask == MEMO_MASK_CAUSAL && key > query) return 0;
    if (c->window && distance >= c->window) return 0;
    for (i = 1; i < c->n_documents; i++) /* a border between the two */
        if ((query < c->document_begins[i]) != (key < c->document_begins[i])) return 0;
    return 1;
}

static void reference_run(const attention_case* c, whole* w) {
    int64_t n = c->n_tokens, d = c->head_size, i, j, e, b, h;
    int64_t group = c->n_q_heads / c->n_kv_heads;
    double scale = 1 / sqrt((double)d);
    double* p = (double*)malloc((size_t)n * sizeof(double));
#define ROW(t, row, head) (w->reference[t] + (((b * n + (row)) * w->n_heads[t] + (head)) * d))
    for (b = 0; b < c->n_batch; b++)
        for (h = 0; h < c->n_q_heads; h++)
            for (i = 0; i < n; i++) {
                const double *q = ROW(Q, i, h), *d_out = ROW(D_OUT, i, h);
                double *out = ROW(OUT, i, h), *d_q = ROW(D_Q, i, h);
                double largest = -HUGE_VAL, sum = 0, dot = 0;
                for (j = 0; j < n; j++) {
                    const double* k = ROW(K, j, h / group);
                    p[j] = -HUGE_VAL;
                    if (!is_visible(c, i, j)) continue;
                    p[j] = 0;
                    for (e = 0; e < d; e++) p[j] += q[e] * k[e];
                    p[j] *= scale;
                    if (p[j] > largest) largest = p[j];
                }
                for (j = 0; j < n; j++) {
                    p[j] = p[j] > -HUGE_VAL ? exp(p[j] - largest) : 0;
                    sum += p[j];
                }
                for (j = 0; j < n; j++) {
                    const double* v = ROW(V, j, h / group);
                    p[j] /= sum;
                    for (e = 0; e < d; e++) out[e] += p[j] * v[e];
                }
                for (e = 0; e < d; e++) dot += out[e] * d_out[e];
                for (j = 0; j < n; j++) {
                    const double *k = ROW(K, j, h / group), *v = ROW(V, j, h / group);
                    double *d_k = ROW(D_K, j, h / group), *d_v = ROW(D_V, j, h / group);
                    double d_p = 0, d_s;
                    if (p[j] == 0) continue;
                    for (e = 0; e < d; e++) d_p += d_out[e] * v[e];
                    d_s = scale * p[j] * (d_p - dot);
                    for (e = 0; e < d; e++) {
                        d_q[e] += d_s * k[e];
                        d_k[e] += d_s * q[e];
                        d_v[e] += p[j] * d_out[e];
                    }
                }
            }
#undef ROW
    free(p);
}

/* Relative RMS error of a tensor; huge where a value is not finite. */
static double error_of(const attention_case* c, const whole* w, int t) {
    double sum = 0, norm = 0;
    int64_t i;
    for (i = 0; i < w->n[t]; i++) {
        double x = typed_at(w->typed[t], i, c->type), r = w->reference[t][i];
        if (!(x > -1e30 && x < 1e30)) return HUGE_VAL;
        sum += (x - r) * (x - r);
        norm += r * r;
    }
    return norm > 0 ? sqrt(sum / norm) : sqrt(sum / (double)w->n[t]);
}

/* ---- the ranks ---- */

typedef struct run_result {
    int64_t n_scores; /* of this rank, forward and backward together */
    int64_t ring_forward_bytes, ring_backward_bytes, ulysses_forward_bytes, ulysses_backward_bytes;
    memo_sp_attention_sizes sizes;
    double elapsed_s;    /* of all calls */
    long long n_mallocs; /* by anybody, from the first forward to the end of the last backward */
    memo_status status;
} run_result;

typedef struct world {
    const attention_case* c;
    whole* w;
    memo_comm* comms[16];
    memo_device* devices[16];
    run_result results[16];
    int32_t n_repeats;
    int32_t has_two_layers; /* another layer comes in between */
    int32_t failing_rank;   /* whose local attention fails; -1: none */
    int32_t recorded_rank;  /* whose schedule is checked; -1: none */
    pthread_barrier_t barrier;
} world;

typedef struct rank_args {
    world* all;
    int32_t rank;
} rank_args;

static memo_status failing_attention(void* user, memo_stream stream,
                                     const memo_attention_block* block, memo_error* error) {
    (void)user;
    (void)stream;
    (void)block;
    return memo_error_set(error, MEMO_STATUS_DEVICE, "no attention on this rank");
}

static double test_now_s(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

typedef struct sleeper {
    memo_device* device;
    double s_per_score;
} sleeper;

static memo_status sleeping_attention(void* user, memo_stream stream,
                                      const memo_attention_block* block, memo_error* error) {
    const sleeper* s = (const sleeper*)user;
    int64_t n = memo_mask_count(&block->mask, block->q_runs, block->n_q_runs, block->k_runs,
                                block->n_k_runs);
    return memo_host_device_sleep(s->device, stream,
                                  (double)(n * block->n_q_heads) * s->s_per_score, error);
}

/* What a trainer does on the compute stream around attention: it makes tensors before, and uses them after. */
static memo_status copy_tensor(memo_device* device, memo_stream stream, memo_schedule* schedule,
                               void* to, const void* from, int64_t n_bytes, memo_error* error) {
    memo_op_desc op = memo_op_desc_default();
    memo_range read, written;
    if (!schedule)
        return device->copy(device->context, stream, MEMO_COPY_ON_DEVICE, to, from, n_bytes, error);
    read.begin = (uint64_t)(uintptr_t)from;
    written.begin = (uint64_t)(uintptr_t)to;
    read.end = read.begin + (uint64_t)n_bytes;
    written.end = written.begin + (uint64_t)n_bytes;
    op.name = "on device"; /* as a recorder calls it; stream 0 is compute */
    op.reads = &read;
    op.writes = &written;
    op.n_reads = op.n_writes = 1;
    return memo_schedule_run(schedule, &op, error);
}

typedef struct step_buffers {
    char *made, *used; /* as large as any tensor */
    int64_t q_bytes, kv_bytes;
} step_buffers;

/* A step on the device, or, where schedule is given, what it would be. */
static memo_status attention_step(memo_device* device, memo_stream stream, memo_schedule* schedule,
                                  memo_sp_attention* attention, const memo_sp_attention_tensors* t,
                                  const memo_mask* mask, const step_buffers* b, int is_backward,
                                  memo_error* error) {
    memo_status status;
    if (!is_backward) {
        /* The tensors' contents are there already: what is copied onto them is themselves, by a detour. */
        if (copy_tensor(device, stream, schedule, b->made, t->k, b->kv_bytes, error) ||
            copy_tensor(device, stream, schedule, (void*)(uintptr_t)t->k, b->made, b->kv_bytes,
                        error) ||
            copy_tensor(device, stream, schedule, b->made, t->v, b->kv_bytes, error) ||
            copy_tensor(device, stream, schedule, (void*)(uintptr_t)t->v, b->made, b->kv_bytes,
                        error))
            return error->status;
    }
    if (schedule)
        status = memo_sp_attention_schedule(attention, t, mask, is_backward, NULL, schedule, error);
    else
        status = (is_backward ? memo_sp_attention_backward
                              : memo_sp_attention_forward)(attention, t, mask, error);
    if (status) return status;
    if (!is_backward)
        return copy_tensor(device, stream, schedule, b->used, t->out, b->q_bytes, error);
    status = copy_tensor(device, stream, schedule, b->used, t->d_k, b->kv_bytes, error);
    return status ? status
                  : copy_tensor(device, stream, schedule, b->used, t->d_v, b->kv_bytes, error);
}

/* What one rank recorded, against what it was to do. */
static void check_schedule(memo_recorder* recorder, memo_sp_attention* attention,
                           const memo_sp_attention_tensors* tensors, const memo_mask* mask,
                           const step_buffers* buffers, const attention_case* c,
                           int32_t n_repeats) {
    memo_schedule *promised = NULL, *recorded = NULL;
    memo_check* check = NULL;
    memo_error error;
    int32_t stream, k;
    CHECK_OK(memo_schedule_create(&promised, &error));
    CHECK_OK(memo_schedule_add_stream(promised, "compute", &stream, &error));
    CHECK_OK(memo_schedule_sync(promised, stream, &error)); /* a recorder resumes with these */
    if (c->ring > 1) {
        CHECK_OK(memo_schedule_add_stream(promised, "ring", &stream, &error));
        CHECK_OK(memo_schedule_sync(promised, stream, &error));
    }
    for (k = 0; k < 2 * n_repeats; k++)
        CHECK_OK(
            attention_step(NULL, NULL, promised, attention, tensors, mask, buffers, k % 2, &error));
    CHECK_OK(memo_recorder_schedule(recorder, &recorded, &error));
    CHECK_CASE(!memo_schedule_compare(promised, recorded, &error), "%s: %s", case_text(c),
               error.message);
    CHECK_OK(memo_schedule_check(recorded, &check, &error));
    CHECK_CASE(check->n_races == 0, "%s: %d races, the first between ops %d (%s) and %d (%s)",
               case_text(c), (int)check->n_races, (int)check->races[0].first,
               memo_schedule_op_name(recorded, check->races[0].first), (int)check->races[0].second,
               memo_schedule_op_name(recorded, check->races[0].second));
    CHECK(check->n_unrecorded_waits == 0);
    /* A rank that skips steps may wait at the start and the end of a pass for what it has not used. */
    CHECK_CASE(check->n_redundant_waits <=
                   (c->window || c->layout == MEMO_LAYOUT_PLAIN ? 4 * n_repeats : 0),
               "%s: %d of %d waits, the first is op %d", case_text(c),
               (int)check->n_redundant_waits, (int)check->n_waits, (int)check->redundant_waits[0]);
    memo_check_destroy(check);
    memo_schedule_destroy(promised);
}

static memo_status rank_steps(world* all, int32_t rank, memo_device* device, memo_stream stream,
                              memo_recorder* recorder, memo_mesh* mesh, memo_error* error) {
    const attention_case* c = all->c;
    run_result* result = &all->results[rank];
    int64_t row_bytes[N_TENSORS], element_bytes = memo_type_bytes(c->type), share_bytes;
    memo_host_attention state;
    memo_layout_desc layout_desc = memo_layout_desc_default();
    memo_sp_attention_desc desc = memo_sp_attention_desc_default();
    memo_sp_attention_tensors tensors, other;
    memo_sp_attention* attention = NULL;
    memo_mask mask = memo_mask_default();
    memo_layout layout;
    memo_status status;
    sleeper sleeping;
    char *share[N_TENSORS], *other_share[N_TENSORS];
    void *lse = NULL, *saved = NULL, *other_lse = NULL, *other_saved = NULL;
    step_buffers buffers;
    int32_t k;
    int t;
    state.device = all->devices[rank];
    state.n_scores = 0;
    layout_desc.kind = c->layout;
    layout_desc.ring = c->ring;
    layout_desc.ulysses = c->ulysses;
    layout_desc.n_tokens = c->n_tokens;
    status = memo_layout_make(&layout_desc, &layout, error);
    if (status) return status;
    desc.device = device;
    desc.stream = stream;
    desc.ring = mesh->ring;
    desc.ulysses = mesh->ulysses;
    desc.layout = layout;
    desc.n_batch = c->n_batch;
    desc.n_q_heads = c->n_q_heads;
    desc.n_kv_heads = c->n_kv_heads;
    desc.head_size = c->head_size;
    desc.type = c->type;
    desc.sends_again = c->sends_again;
    desc.attention = memo_host_attention_functions(&state);
    if (rank == all->failing_rank) desc.attention.forward = failing_attention;
    if (c->s_per_score > 0) {
        sleeping.device = all->devices[rank];
        sleeping.s_per_score = c->s_per_score;
        desc.attention.forward = desc.attention.backward = sleeping_attention;
        desc.attention.user = &sleeping;
    }
    status = memo_sp_attention_get_sizes(&desc, &result->sizes, error);
    if (!status) status = memo_sp_attention_create(&desc, &attention, error);
    if (status) return status;
    for (t = 0; t < N_TENSORS; t++) {
        row_bytes[t] = all->w->n_heads[t] * c->head_size * element_bytes;
        share_bytes = c->n_batch * layout.local_tokens * row_bytes[t];
        share[t] = (char*)malloc((size_t)share_bytes);
        other_share[t] = (char*)malloc((size_t)share_bytes);
        memset(share[t], 0x7f, (size_t)share_bytes);
        if (t == Q || t == K || t == V || t == D_OUT)
            memo_layout_scatter(&layout, mesh->sequence_rank, c->n_batch, row_bytes[t],
                                all->w->typed[t], share[t]);
    }
    buffers.q_bytes = c->n_batch * layout.local_tokens * row_bytes[Q];
    buffers.kv_bytes = c->n_batch * layout.local_tokens * row_bytes[K];
    buffers.made = (char*)malloc((size_t)buffers.q_bytes);
    buffers.used = (char*)malloc((size_t)buffers.q_bytes);
    lse = malloc((size_t)result->sizes.lse_bytes + 1);
    saved = malloc((size_t)result->sizes.saved_bytes + 1);
    other_lse = malloc((size_t)result->sizes.lse_bytes + 1);
    other_saved = malloc((size_t)result->sizes.saved_bytes + 1);
    memset(&tensors, 0, sizeof tensors);
    tensors.q = share[Q];
    tensors.k = share[K];
    tensors.v = share[V];
    tensors.out = share[OUT];
    tensors.lse = (float*)lse;
    tensors.saved = saved;
    tensors.d_out = share[D_OUT];
    tensors.d_q = share[D_Q];
    tensors.d_k = share[D_K];
    tensors.d_v = share[D_V];
    /* The other layer has the same numbers in other roles. */
    other.q = share[D_OUT];
    other.k = share[V];
    other.v = share[K];
    other.out = other_share[OUT];
    other.lse = (float*)other_lse;
    other.saved = other_saved;
    other.d_out = share[Q];
    other.d_q = other_share[D_Q];
    other.d_k = other_share[D_K];
    other.d_v = other_share[D_V];
    mask.kind = c->mask;
    mask.window = c->window;
    if (c->n_documents) {
        mask.document_begins = c->document_begins;
        mask.n_documents = c->n_documents;
    }
    if (recorder) memo_recorder_resume(recorder);
    pthread_barrier_wait(&all->barrier); /* nobody creates any more */
    result->n_mallocs = __atomic_load_n(&malloc_count, __ATOMIC_RELAXED);
    result->elapsed_s = -test_now_s();
    for (k = 0; k < all->n_repeats && !status; k++) {
        int64_t ring_bytes = mesh->ring->sent_bytes, ulysses_bytes = mesh->ulysses->sent_bytes;
        status =
            attention_step(device, stream, NULL, attention, &tensors, &mask, &buffers, 0, error);
        result->ring_forward_bytes = mesh->ring->sent_bytes - ring_bytes;
        result->ulysses_forward_bytes = mesh->ulysses->sent_bytes - ulysses_bytes;
        if (all->has_two_layers && !status)
            status = memo_sp_attention_forward(attention, &other, &mask, error);
        if (all->has_two_layers && !status)
            status = memo_sp_attention_backward(attention, &other, &mask, error);
        ring_bytes = mesh->ring->sent_bytes;
        ulysses_bytes = mesh->ulysses->sent_bytes;
        if (!status)
            status = attention_step(device, stream, NULL, attention, &tensors, &mask, &buffers, 1,
                                    error);
        result->ring_backward_bytes = mesh->ring->sent_bytes - ring_bytes;
        result->ulysses_backward_bytes = mesh->ulysses->sent_bytes - ulysses_bytes;
    }
    if (recorder) memo_recorder_pause(recorder);
    if (status && rank == all->failing_rank) mesh->world->abort(mesh->world);
    if (status)
        (void)device->stream_synchronize(device->context, stream, NULL);
    else
        status = device->stream_synchronize(device->context, stream, error);
    result->elapsed_s += test_now_s();
    pthread_barrier_wait(&all->barrier);
    result->n_mallocs = __atomic_load_n(&malloc_count, __ATOMIC_RELAXED) - result->n_mallocs;
    result->n_scores = state.n_scores;
    if (!status && recorder)
        check_schedule(recorder, attention, &tensors, &mask, &buffers, c, all->n_repeats);
    for (t = 0; t < N_TENSORS; t++) {
        if (!status && (t == OUT || t == D_Q || t == D_K || t == D_V))
            memo_layout_gather(&layout, mesh->sequence_rank, c->n_batch, row_bytes[t], share[t],
                               all->w->typed[t]);
        if (!status && (t == OUT || t == D_Q || t == D_K || t == D_V)) {
            /* Padding has output and gradient 0. */
            int64_t b, row, i, n_wrong = 0;
            for (b = 0; b < c->n_batch; b++)
                for (row = 0; row < layout.local_tokens; row++)
                    if (memo_layout_position(&layout, mesh->sequence_rank, row) >= c->n_tokens)
                        for (i = 0; i < row_bytes[t]; i++)
                            n_wrong +=
                                share[t][(b * layout.local_tokens + row) * row_bytes[t] + i] != 0;
            if (n_wrong)
                status =
                    memo_error_set(error, MEMO_STATUS_DEVICE, "padding is not 0 in tensor %d", t);
        }
        free(share[t]);
        free(other_share[t]);
    }
    memo_sp_attention_destroy(attention);
    free(lse);
    free(saved);
    free(other_lse);
    free(other_saved);
    free(buffers.made);
    free(buffers.used);
    return status;
}

static void* rank_main(void* argument) {
    const rank_args* args = (const rank_args*)argument;
    world* all = args->all;
    int32_t rank = args->rank;
    memo_mesh_desc mesh_desc = memo_mesh_desc_default();
    memo_recorder_desc recorder_desc = memo_recorder_desc_default();
    memo_recorder* recorder = NULL;
    memo_device* device = all->devices[rank];
    memo_mesh* mesh = NULL;
    memo_stream stream;
    memo_error error;
    memo_status status = MEMO_STATUS_OK;
    mesh_desc.ring = all->c->ring;
    mesh_desc.ulysses = all->c->ulysses;
    mesh_desc.ring_is_inner = all->c->ring_is_inner;
    if (rank == all->recorded_rank) {
        recorder_desc.device = device;
        status = memo_recorder_create(&recorder_desc, &recorder, &error);
        if (recorder) {
            device = memo_recorder_device(recorder);
            memo_recorder_pause(recorder);
        }
    }
    if (!status) status = device->stream_create(device->context, "compute", 0, &stream, &error);
    if (!status) status = memo_mesh_create(all->comms[rank], &mesh_desc, &mesh, &error);
    if (!status) status = rank_steps(all, rank, device, stream, recorder, mesh, &error);
    if (status && all->failing_rank < 0) printf("# rank %d: %s\n", (int)rank, error.message);
    all->results[rank].status = status;
    memo_mesh_destroy(mesh);
    memo_recorder_destroy(recorder);
    all->comms[rank]->destroy(all->comms[rank]);
    return NULL;
}

/* Runs all ranks; returns 1 where all succeeded. */
static int world_run(world* all) {
    int32_t n_ranks = all->c->ring * all->c->ulysses, rank;
    memo_comm_threads_desc desc = memo_comm_threads_desc_default();
    memo_host_device_desc device_desc = memo_host_device_desc_default();
    rank_args args[16];
    pthread_t threads[16];
    memo_error error;
    int is_good = 1;
    for (rank = 0; rank < n_ranks; rank++)
        CHECK_OK(memo_host_device_create(&device_desc, &all->devices[rank], &error));
    desc.n_ranks = n_ranks;
    desc.devices = all->devices;
    desc.bytes_per_s = all->c->bytes_per_s;
    CHECK_OK(memo_comm_create_threads(&desc, all->comms, &error));
    pthread_barrier_init(&all->barrier, NULL, (unsigned)n_ranks);
    for (rank = 0; rank < n_ranks; rank++) {
        args[rank].all = all;
        args[rank].rank = rank;
        pthread_create(&threads[rank], NULL, rank_main, &args[rank]);
    }
    for (rank = 0; rank < n_ranks; rank++) {
        pthread_join(threads[rank], NULL);
        is_good &= !all->results[rank].status;
    }
    pthread_barrier_destroy(&all->barrier);
    for (rank = 0; rank < n_ranks; rank++) memo_host_device_destroy(all->devices[rank]);
    return is_good;
}

static void world_init(world* all, const attention_case* c, whole* w) {
    memset(all, 0, sizeof *all);
    all->c = c;
    all->w = w;
    all->n_repeats = 1;
    all->failing_rank = all->recorded_rank = -1;
}

static const char* const tensor_names[N_TENSORS] = {"q",     "k",   "v",   "out",
                                                    "d_out", "d_q", "d_k", "d_v"};

/* The worst errors seen by a test. */
static double worst_forward, worst_gradient;

static void expect_right(const attention_case* c, double forward_bound, double gradient_bound,
                         world* all) {
    static world scratch;
    whole w;
    int t;
    whole_create(&w, c);
    reference_run(c, &w);
    if (!all) all = &scratch;
    if (all == &scratch) world_init(all, c, &w);
    all->c = c;
    all->w = &w;
    CHECK_CASE(world_run(all), "%s", case_text(c));
    if (c->step > 0) /* a sum of d_s that is 0, times 1e5: fp32 knows nothing of it */
        for (t = 0; t < w.n[D_Q]; t += c->head_size) {
            typed_set(w.typed[D_Q], t, c->type, 0);
            w.reference[D_Q][t] = 0;
        }
    for (t = OUT; t < N_TENSORS; t++) {
        double error = t == D_OUT ? 0 : error_of(c, &w, t);
        double bound = t == OUT ? forward_bound : gradient_bound;
        double* worst = t == OUT ? &worst_forward : &worst_gradient;
        CHECK_CASE(error <= bound, "%s: %s is off by %.3g", case_text(c), tensor_names[t], error);
        if (error > *worst) *worst = error;
    }
    whole_destroy(&w);
}

static void expect_exact(const attention_case* c) { expect_right(c, 2e-6, 5e-6, NULL); }

static void report_worst(void) {
    printf("# worst relative RMS error: output %.2g, gradients %.2g\n", worst_forward,
           worst_gradient);
    worst_forward = worst_gradient = 0;
}

/* ---- tests ---- */

static void one_rank_is_exact(void) {
    attention_case c = case_of(1, 1, 150, 4, 2, 32);
    expect_exact(&c);
    c.mask = MEMO_MASK_FULL;
    expect_exact(&c);
    c.window = 7;
    expect_exact(&c);
    c.mask = MEMO_MASK_CAUSAL;
    c.n_batch = 2;
    expect_exact(&c);
    report_worst();
}

static void every_pair_of_degrees_is_exact(void) {
    static const int32_t degrees[] = {1, 2, 3, 4, 8};
    int r, u, k = 0;
    for (r = 0; r < 5; r++)
        for (u = 0; u < 5; u++) {
            attention_case c = case_of(degrees[r], degrees[u], 97 + k, 8, 4, 32);
            if (degrees[r] * degrees[u] > 16) continue;
            c.layout = (memo_layout_kind)(k % 3);
            c.ring_is_inner = k % 2;
            c.window = k % 4 == 3 ? 19 : 0;
            k++;
            expect_exact(&c);
            c.layout = MEMO_LAYOUT_ZIGZAG;
            c.mask = k % 5 == 0 ? MEMO_MASK_FULL : MEMO_MASK_CAUSAL;
            c.sends_again = k % 2;
            expect_exact(&c);
        }
    report_worst();
}

static void every_mask_in_every_layout_is_exact(void) {
    int layout, mask, window, documents;
    for (layout = 0; layout < 3; layout++)
        for (mask = 0; mask < 2; mask++)
            for (window = 0; window < 2; window++)
                for (documents = 0; documents < 2; documents++) {
                    attention_case c = case_of(3, 2, 101, 4, 2, 32);
                    c.layout = (memo_layout_kind)layout;
                    c.mask = (memo_mask_kind)mask;
                    c.window = window ? 13 : 0;
                    if (documents) { /* of 1, 0, 40, 2 and 58 tokens */
                        static const int64_t begins[] = {0, 1, 1, 41, 43, 101};
                        memcpy(c.document_begins, begins, sizeof begins);
                        c.n_documents = 5;
                    }
                    expect_exact(&c);
                }
    report_worst();
}

static void every_number_of_heads_is_exact(void) {
    /* Hq, Hkv, ulysses: fewer key heads than ranks, not dividing, fewer query heads than ranks */
    static const int32_t heads[][3] = {{4, 4, 2},  {4, 2, 4},  {8, 2, 8}, {8, 1, 4}, {32, 1, 8},
                                       {32, 4, 8}, {6, 3, 4},  {6, 2, 4}, {6, 6, 4}, {12, 3, 8},
                                       {12, 4, 3}, {2, 1, 8},  {3, 3, 8}, {5, 1, 3}, {9, 3, 2},
                                       {16, 2, 3}, {32, 8, 3}, {14, 7, 4}};
    size_t i;
    for (i = 0; i < sizeof heads / sizeof *heads; i++) {
        attention_case c = case_of(heads[i][2] <= 4 && i % 2 ? 2 : 1, heads[i][2], 45, heads[i][0],
                                   heads[i][1], 32);
        c.n_batch = 1 + (int32_t)(i % 2);
        c.sends_again = i % 3 == 0;
        expect_exact(&c);
    }
    report_worst();
}

static void every_head_size_is_exact(void) {
    static const int32_t sizes[] = {32, 64, 80, 128, 1, 3, 256};
    size_t i;
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        attention_case c = case_of(2, 2, 70, 4, 2, sizes[i]);
        c.n_batch = 2;
        expect_exact(&c);
    }
    report_worst();
}

static void random_cases_are_exact(void) {
    int n = IS_SLOW == 2 ? 6 : IS_SLOW ? 20 : 150, i;
    int64_t k;
    for (i = 0; i < n; i++) {
        static const int32_t degrees[] = {1, 2, 3, 4, 5, 6, 8};
        int32_t ring = degrees[memo_test_int(0, 6)], ulysses = degrees[memo_test_int(0, 6)];
        int32_t n_kv_heads = (int32_t)memo_test_int(1, 5);
        attention_case c;
        if (ring * ulysses > 16) {
            ring = 1 + ring % 4;
            ulysses = 1 + ulysses % 4;
        }
        c = case_of(ring, ulysses, memo_test_int(1, 120), n_kv_heads * (int32_t)memo_test_int(1, 4),
                    n_kv_heads, (int32_t)memo_test_int(2, 40));
        c.layout = (memo_layout_kind)memo_test_int(0, 2);
        c.mask = (memo_mask_kind)memo_test_int(0, 1);
        c.window = memo_test_int(0, 2) ? 0 : memo_test_int(1, 40);
        c.n_batch = (int32_t)memo_test_int(1, 2);
        c.sends_again = (int32_t)memo_test_int(0, 1);
        c.ring_is_inner = (int32_t)memo_test_int(0, 1);
        if (memo_test_int(0, 1)) {
            c.n_documents = memo_test_int(1, MAX_DOCUMENTS);
            for (k = 1; k < c.n_documents; k++)
                c.document_begins[k] = memo_test_int(
                    c.document_begins[k - 1],
                    c.document_begins[k - 1] + (c.n_tokens - c.document_begins[k - 1]) / 2);
            c.document_begins[c.n_documents] = c.n_tokens;
        }
        expect_exact(&c);
    }
    report_worst();
}

static void errors_stay_small_at_1024(void) {
    attention_case c = case_of(4, 2, IS_SLOW ? 256 : 1024, 2, 2, 64);
    expect_exact(&c);
    c.ring = 1;
    c.ulysses = 1;
    c.n_q_heads = c.n_kv_heads = 1;
    c.head_size = 128;
    expect_exact(&c);
    report_worst();
}

/* With 16-bit inputs what is carried is fp32: sixteen hops add nothing. */
static void the_ring_adds_no_error_to_bf16(void) {
    static const int rings[] = {1, 4, 16};
    double errors[3][N_TENSORS];
    attention_case c = case_of(1, 1, IS_SLOW ? 256 : 1024, 1, 1, 64);
    whole w;
    world all;
    int i, t;
    c.type = MEMO_TYPE_BF16;
    whole_create(&w, &c);
    reference_run(&c, &w);
    for (i = 0; i < 3; i++) {
        c.ring = rings[i];
        world_init(&all, &c, &w);
        CHECK(world_run(&all));
        for (t = OUT; t < N_TENSORS; t++) errors[i][t] = error_of(&c, &w, t);
        printf("# bf16, ring %2d: out %.4g, d_q %.4g, d_k %.4g, d_v %.4g\n", rings[i],
               errors[i][OUT], errors[i][D_Q], errors[i][D_K], errors[i][D_V]);
    }
    for (i = 1; i < 3; i++)
        for (t = OUT; t < N_TENSORS; t++)
            if (t != D_OUT)
                CHECK_CASE(errors[i][t] <= 1.02 * errors[0][t], "%s at ring %d", tensor_names[t],
                           rings[i]);
    whole_destroy(&w);
}

static void the_16_bit_types_work_in_every_way(void) {
    int i, type;
    for (type = 0; type < 2; type++) {
        for (i = 0; i < 6; i++) {
            attention_case c = case_of(1 + i % 3, 1 + i / 2, 61, 6, i % 2 ? 2 : 3, 32);
            c.type = type ? MEMO_TYPE_F16 : MEMO_TYPE_BF16;
            c.n_batch = 1 + i % 2;
            c.sends_again = i % 2;
            expect_right(&c, type ? 3e-4 : 2e-3, type ? 4e-4 : 3e-3, NULL);
        }
        printf("# %s\n", type ? "f16" : "bf16");
        report_worst();
    }
}

/* The host's attention alone, on one block. */
static void a_row_that_sees_nothing_is_0(void) {
    memo_host_device_desc device_desc = memo_host_device_desc_default();
    memo_attention_block block;
    memo_attention attention;
    memo_host_attention state;
    memo_device* device = NULL;
    memo_stream stream;
    memo_error error;
    memo_run q_run = {5, 2, 4}, k_run = {8, 1, 3}; /* queries 5, 7, 9, 11, keys 8, 9, 10 */
    float q[4 * 2], k[3 * 2], v[3 * 2], out[4 * 2], lse[4], dots[4], d_q[4 * 2], d_k[6], d_v[6];
    int i;
    for (i = 0; i < 8; i++) q[i] = (float)i;
    for (i = 0; i < 6; i++) k[i] = v[i] = (float)(i + 1);
    for (i = 0; i < 8; i++) out[i] = 99;
    for (i = 0; i < 4; i++) lse[i] = 99;
    memset(&block, 0, sizeof block);
    block.scale = 1;
    block.n_batch = block.n_q_heads = block.n_kv_heads = 1;
    block.head_size = 2;
    block.n_q_runs = block.n_k_runs = 1;
    block.q_runs = &q_run;
    block.k_runs = &k_run;
    block.mask = memo_mask_default();
    block.mask.n_tokens = 11; /* query 11 is padding */
    block.q_row_stride = block.k_row_stride = 2;
    block.lse_row_stride = 1;
    block.q = q;
    block.k = k;
    block.v = v;
    block.out = out;
    block.lse = lse;
    CHECK_OK(memo_host_device_create(&device_desc, &device, &error));
    CHECK_OK(device->stream_create(device->context, "compute", 0, &stream, &error));
    state.device = device;
    state.n_scores = 0;
    attention = memo_host_attention_functions(&state);
    CHECK_OK(attention.forward(attention.user, stream, &block, &error));
    CHECK_OK(device->stream_synchronize(device->context, stream, &error));
    for (i = 0; i < 4; i++) /* only query 9 sees keys, 8 and 9 */
        if (i != 2) CHECK(out[2 * i] == 0 && out[2 * i + 1] == 0 && lse[i] == -(float)HUGE_VAL);
    CHECK(out[4] > 2 && out[4] <= 3 && lse[2] > 0 && lse[2] < 99);
    CHECK(state.n_scores == 2);
    memset(dots, 0, sizeof dots);
    memset(d_q, 0, sizeof d_q);
    memset(d_k, 0, sizeof d_k);
    memset(d_v, 0, sizeof d_v);
    block.d_out = q;
    block.row_dots = dots;
    block.d_q = d_q;
    block.d_k = d_k;
    block.d_v = d_v;
    CHECK_OK(attention.backward(attention.user, stream, &block, &error));
    CHECK_OK(device->stream_synchronize(device->context, stream, &error));
    CHECK(d_q[0] == 0 && d_q[3] == 0 && d_q[6] == 0 && d_q[4] > 0);
    CHECK(d_k[4] == 0 && d_v[5] == 0 && d_v[2] > 0);
    block.head_size = MEMO_HOST_ATTENTION_HEAD_SIZE + 1;
    CHECK(attention.forward(attention.user, stream, &block, &error) == MEMO_STATUS_UNSUPPORTED);
    block.head_size = 2;
    block.type = MEMO_TYPE_I64;
    CHECK(attention.forward(attention.user, stream, &block, &error) == MEMO_STATUS_UNSUPPORTED);
    memo_host_device_destroy(device);
}

/* Blocks whose LSEs are over 1e4 apart; within a block there is a choice.  An fp32 score of 5e4 is known to 4e-3,
 * hence the bounds. */
static void extreme_scores_are_right(void) {
    static const int32_t degrees[][2] = {{4, 2}, {8, 1}, {1, 4}, {1, 1}};
    int i, layout;
    for (i = 0; i < 4; i++)
        for (layout = 0; layout < 3; layout++) {
            attention_case c = case_of(degrees[i][0], degrees[i][1], 96, 4, 2, 64);
            c.layout = (memo_layout_kind)layout;
            c.step = 131072;           /* of the scores: 16384, every 24 keys */
            c.window = i == 1 ? 3 : 0; /* most blocks see nothing of each other */
            c.mask = i == 3 ? MEMO_MASK_FULL : MEMO_MASK_CAUSAL;
            expect_right(&c, 2e-2, 2e-2, NULL);
        }
    report_worst();
}

/* Every row sees one key only, by far: gradients of q and k are 0 but for rounding of numbers of size spread. */
static void saturated_scores_are_finite(void) {
    attention_case c = case_of(4, 2, 96, 2, 2, 32);
    int layout, t;
    for (layout = 0; layout < 3; layout++) {
        world all;
        whole w;
        c.layout = (memo_layout_kind)layout;
        c.spread = 100;
        whole_create(&w, &c);
        reference_run(&c, &w);
        world_init(&all, &c, &w);
        CHECK(world_run(&all));
        CHECK(error_of(&c, &w, OUT) < 2e-3 && error_of(&c, &w, D_V) < 2e-3);
        for (t = D_Q; t <= D_K; t++) {
            double sum = 0;
            int64_t i;
            for (i = 0; i < w.n[t]; i++) {
                double off = typed_at(w.typed[t], i, c.type) - w.reference[t][i];
                sum += off * off;
            }
            CHECK(sqrt(sum / (double)w.n[t]) < 1e-5 * c.spread);
        }
        whole_destroy(&w);
    }
}

/* out and lse become those of both parts, as memo_row_merge does it for rows of 2 numbers. */
static void merge_2(float* out, float* lse, const float* part, float part_lse) {
    memo_merge_desc merge;
    memo_error error;
    memset(&merge, 0, sizeof merge);
    merge.out = out;
    merge.lse = lse;
    merge.part_out = part;
    merge.part_lse = &part_lse;
    merge.n_rows = 1;
    merge.n_columns = 2;
    CHECK_OK(memo_row_merge(&merge, &error));
}

static void merging_is_exact_and_never_overflows(void) {
    static const float lses[] = {0, 1, -1, 50, -50, 88, 89, 1e4f, -1e4f, 3e4f, 1e30f, -1e30f};
    const float part[2] = {-2, 5}, inf = (float)HUGE_VAL;
    float out[2] = {3, -1}, lse;
    size_t i, j;
    for (i = 0; i < sizeof lses / sizeof *lses; i++)
        for (j = 0; j < sizeof lses / sizeof *lses; j++) {
            double a = lses[i], b = lses[j], high = a > b ? a : b;
            double wa = exp(a - high), wb = exp(b - high), sum = high + log(wa + wb);
            out[0] = 3;
            out[1] = -1;
            lse = lses[i];
            merge_2(out, &lse, part, lses[j]);
            CHECK(fabs(out[0] - (3 * wa - 2 * wb) / (wa + wb)) <= 1e-6 * 4);
            CHECK(fabs(out[1] - (-1 * wa + 5 * wb) / (wa + wb)) <= 1e-6 * 6);
            CHECK(fabs(lse - sum) <= 1e-6 * (1 + fabs(sum)));
        }
    out[0] = 3;
    out[1] = -1;
    lse = 7;
    merge_2(out, &lse, part, -inf); /* sees nothing: no change */
    CHECK(out[0] == 3 && out[1] == -1 && lse == 7);
    lse = -inf;
    merge_2(out, &lse, part, -inf);
    CHECK(out[0] == 3 && lse == -inf);
    merge_2(out, &lse, part, 4);
    CHECK(out[0] == -2 && out[1] == 5 && lse == 4);
}

static void masks_are_intervals(void) {
    int i;
    for (i = 0; i < 200; i++) {
        attention_case c = case_of(1, 1, memo_test_int(1, 40), 1, 1, 1);
        memo_mask mask = memo_mask_default();
        int64_t q, k, begin, end, n = 0;
        memo_run run;
        c.mask = mask.kind = (memo_mask_kind)memo_test_int(0, 1);
        c.window = mask.window = memo_test_int(0, 9);
        mask.n_tokens = c.n_tokens;
        if (memo_test_int(0, 1)) {
            c.n_documents = mask.n_documents = memo_test_int(1, 5);
            for (k = 1; k < c.n_documents; k++)
                c.document_begins[k] = memo_test_int(c.document_begins[k - 1], c.n_tokens);
            c.document_begins[c.n_documents] = c.n_tokens;
            mask.document_begins = c.document_begins;
        }
        for (q = 0; q < c.n_tokens; q++) {
            memo_mask_interval(&mask, q, &begin, &end);
            for (k = 0; k < c.n_tokens; k++) {
                CHECK((k >= begin && k < end) == is_visible(&c, q, k));
                n += is_visible(&c, q, k);
            }
        }
        memo_mask_interval(&mask, c.n_tokens + 3, &begin, &end);
        CHECK(begin == end);
        run.start = 0;
        run.stride = 1;
        run.count = c.n_tokens + 2; /* padding counts nothing */
        CHECK(memo_mask_count(&mask, &run, 1, &run, 1) == n);
    }
}

/* Scores computed by each rank, forward and backward. */
static void count_scores(memo_layout_kind layout, int32_t ring, int64_t n_tokens,
                         int64_t n_scores[16]) {
    attention_case c = case_of(ring, 1, n_tokens, 1, 1, 4);
    whole w;
    world all;
    int32_t r;
    c.layout = layout;
    whole_create(&w, &c);
    world_init(&all, &c, &w);
    CHECK(world_run(&all));
    for (r = 0; r < ring; r++) n_scores[r] = all.results[r].n_scores;
    whole_destroy(&w);
}

static void zigzag_is_balanced_and_plain_is_not(void) {
    int64_t n[16], total, r;
    int64_t s = 256;
    count_scores(MEMO_LAYOUT_ZIGZAG, 4, s, n);
    for (r = 0, total = 0; r < 4; r++) total += n[r];
    CHECK(total == 2 * (s * (s + 1) / 2)); /* nothing outside of the mask, nothing twice */
    for (r = 0; r < 4; r++) CHECK(n[r] == total / 4);
    count_scores(MEMO_LAYOUT_ZIGZAG, 4, 250, n); /* padded: all of it is with rank 0 */
    for (r = 1; r < 4; r++) CHECK(n[r] == n[1]);
    CHECK(n[0] < n[1] && n[0] > n[1] - 2 * 6 * 256);
    count_scores(MEMO_LAYOUT_PLAIN, 4, s, n);
    printf("# plain layout, last rank over first: %.2f to 1\n", (double)n[3] / (double)n[0]);
    CHECK(fabs((double)n[3] / (double)n[0] - 7) < 0.15); /* 7 to 1, and the diagonal */
    count_scores(MEMO_LAYOUT_STRIPED, 4, s, n);
    for (r = 1; r < 4; r++) CHECK(n[r] - n[r - 1] == 2 * s / 4); /* a diagonal more each */
}

static void bytes_are_those_of_the_formulas(void) {
    static const int32_t degrees[][2] = {{1, 1}, {1, 4}, {4, 1}, {2, 2}, {3, 2}, {2, 4}};
    size_t i;
    int type, again;
    for (i = 0; i < sizeof degrees / sizeof *degrees; i++)
        for (type = 0; type < 2; type++)
            for (again = 0; again < 2; again++) {
                int32_t rd = degrees[i][0], ud = degrees[i][1], r;
                int64_t element = type ? 2 : 4;
                attention_case c = case_of(rd, ud, 48, 8, 4, 16);
                int64_t n = 2 * 48 / (rd * ud) * 16; /* batch * local tokens * head size */
                int64_t forward = (2 * 8 + 2 * 4) * n * (ud - 1) / ud * element;
                int64_t dots = 8 * n / 16 * (ud - 1) / ud * 4;
                int64_t resent = again ? (8 + 2 * 4) * n * (ud - 1) / ud * element : 0;
                int64_t ring = 2 * 4 * n * (rd - 1) * element;
                int64_t carried = rd > 1 ? 2 * 4 * n * rd * 4 : 0;
                world all;
                whole w;
                c.n_batch = 2;
                c.type = type ? MEMO_TYPE_BF16 : MEMO_TYPE_F32;
                c.sends_again = again;
                whole_create(&w, &c);
                world_init(&all, &c, &w);
                CHECK(world_run(&all));
                for (r = 0; r < rd * ud; r++) {
                    const run_result* x = &all.results[r];
                    CHECK_CASE(x->ulysses_forward_bytes == forward, "%s", case_text(&c));
                    CHECK_CASE(x->ulysses_backward_bytes == forward + dots + resent, "%s",
                               case_text(&c));
                    CHECK_CASE(x->ring_forward_bytes == ring, "%s", case_text(&c));
                    CHECK_CASE(x->ring_backward_bytes == ring + carried, "%s", case_text(&c));
                    CHECK(x->sizes.ulysses_forward_bytes == forward);
                    CHECK(x->sizes.ulysses_backward_bytes == forward + dots + resent);
                    CHECK(x->sizes.ring_forward_bytes == ring);
                    CHECK(x->sizes.ring_backward_bytes == ring + carried);
                }
                whole_destroy(&w);
            }
}

/* Fewer key heads than ranks: each is sent to those who need it, and no further. */
static void replicas_are_sent_where_needed(void) {
    attention_case c = case_of(1, 4, 32, 8, 2, 16);
    int64_t row = 32 / 4 * 16 * 4; /* bytes of a head of a rank's rows */
    world all;
    whole w;
    int32_t r;
    whole_create(&w, &c);
    world_init(&all, &c, &w);
    CHECK(world_run(&all));
    for (r = 0; r < 4; r++) {
        /* q and out: 2 heads to each of 3 ranks.  k and v: 1 head to each of 3; their gradients likewise. */
        CHECK(all.results[r].ulysses_forward_bytes == (2 * 2 * 3 + 2 * 3) * row);
        CHECK(all.results[r].ulysses_backward_bytes ==
              (2 * 2 * 3 + 2 * 3) * row + 8 / 4 * 3 * (32 / 4) * 4);
    }
    whole_destroy(&w);
}

/* Activations sent by Ulysses over parameters sent by ZeRO, 12 h^2 of a block (unified SP paper, Table 2). */
static void the_paper_s_table_2(void) {
    static const int64_t lengths[] = {8192, 32768, 65536};
    static const double ratios[] = {1.33, 5.33, 10.67};
    int i;
    for (i = 0; i < 3; i++) {
        memo_layout_desc layout_desc = memo_layout_desc_default();
        memo_sp_attention_desc desc = memo_sp_attention_desc_default();
        memo_sp_attention_sizes sizes;
        memo_error error;
        double sent, ratio;
        layout_desc.ulysses = 8;
        layout_desc.n_tokens = lengths[i];
        CHECK_OK(memo_layout_make(&layout_desc, &desc.layout, &error));
        desc.n_q_heads = desc.n_kv_heads = 32;
        desc.head_size = 128;
        desc.type = MEMO_TYPE_BF16;
        CHECK_OK(memo_sp_attention_get_sizes(&desc, &sizes, &error));
        /* All ranks; the paper takes (n - 1) / n for 1. */
        sent = (double)(sizes.ulysses_forward_bytes + sizes.ulysses_backward_bytes) * 8 * 8 / 7;
        ratio = sent / (12.0 * 4096 * 4096 * 2);
        CHECK_CASE(fabs(ratio / ratios[i] - 1) < 0.005, "%g instead of %g", ratio, ratios[i]);
    }
}

static void what_runs_is_what_was_promised(void) {
    static const int32_t degrees[][2] = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {1, 2}, {2, 2}, {5, 1}};
    size_t i;
    int layout;
    for (i = 0; i < sizeof degrees / sizeof *degrees; i++)
        for (layout = 0; layout < 3; layout++) {
            attention_case c = case_of(degrees[i][0], degrees[i][1], 30, 4, i % 2 ? 2 : 4, 4);
            world all;
            c.layout = (memo_layout_kind)layout;
            c.n_batch = 1 + (int32_t)(i % 2);
            c.type = layout == 1 ? MEMO_TYPE_BF16 : MEMO_TYPE_F32;
            c.mask = i % 3 == 2 ? MEMO_MASK_FULL : MEMO_MASK_CAUSAL;
            world_init(&all, &c, NULL);
            all.recorded_rank = layout % (c.ring * c.ulysses);
            all.n_repeats = 2; /* so that steps of different calls can race, too */
            expect_right(&c, 4e-3, 6e-3, &all);
            c.window = 4;
            expect_right(&c, 4e-3, 6e-3, &all);
        }
}

/* Repeated calls give the same, and ask nobody for memory. */
static void nothing_is_allocated_once_created(void) {
    attention_case c = case_of(3, 2, 41, 4, 1, 16);
    world all;
    int32_t r;
    world_init(&all, &c, NULL);
    all.n_repeats = 5;
    expect_right(&c, 2e-6, 5e-6, &all);
    for (r = 0; r < 6; r++) CHECK(all.results[r].n_mallocs == 0);
}

static void memory_does_not_grow_with_the_ring(void) {
    int64_t n_bytes[3];
    int i;
    for (i = 0; i < 3; i++) {
        int32_t ring = 2 << i;
        memo_layout_desc layout_desc = memo_layout_desc_default();
        memo_sp_attention_desc desc = memo_sp_attention_desc_default();
        memo_sp_attention_sizes sizes;
        memo_error error;
        layout_desc.ring = ring;
        layout_desc.ulysses = 2;
        layout_desc.n_tokens = 1024 * ring;
        CHECK_OK(memo_layout_make(&layout_desc, &desc.layout, &error));
        desc.n_q_heads = 8;
        desc.n_kv_heads = 2;
        desc.head_size = 64;
        desc.type = MEMO_TYPE_BF16;
        CHECK_OK(memo_sp_attention_get_sizes(&desc, &sizes, &error));
        n_bytes[i] = sizes.device_bytes;
    }
    CHECK(n_bytes[0] > 0 && n_bytes[0] == n_bytes[1] && n_bytes[1] == n_bytes[2]);
}

/* On one rank, in fp32: the local attention and nothing else; 16-bit types need a cast of the output. */
static void degree_1_costs_nothing(void) {
    int type, is_backward;
    for (type = 0; type < 2; type++)
        for (is_backward = 0; is_backward < 2; is_backward++) {
            memo_layout_desc layout_desc = memo_layout_desc_default();
            memo_sp_attention_desc desc = memo_sp_attention_desc_default();
            memo_sp_attention_sizes sizes;
            memo_mask mask = memo_mask_default();
            memo_schedule* schedule = NULL;
            memo_error error;
            layout_desc.n_tokens = 1024;
            CHECK_OK(memo_layout_make(&layout_desc, &desc.layout, &error));
            desc.n_q_heads = desc.n_kv_heads = 8;
            desc.head_size = 64;
            desc.type = type ? MEMO_TYPE_BF16 : MEMO_TYPE_F32;
            CHECK_OK(memo_sp_attention_get_sizes(&desc, &sizes, &error));
            CHECK(sizes.saved_bytes == 0);
            CHECK(sizes.ring_forward_bytes + sizes.ring_backward_bytes == 0);
            CHECK(sizes.ulysses_forward_bytes + sizes.ulysses_backward_bytes == 0);
            if (!type) CHECK(sizes.device_bytes == 1024 * 8 * 4); /* row dots */
            CHECK_OK(memo_schedule_create(&schedule, &error));
            CHECK_OK(
                memo_sp_attention_ring_schedule(&desc, &mask, is_backward, NULL, schedule, &error));
            /* Backward: row dots, three fills, attention. */
            CHECK_CASE(schedule->n_ops == (is_backward ? 5 + 3 * type : 1 + type), "%d",
                       (int)schedule->n_ops);
            CHECK(schedule->n_streams == 1);
            memo_schedule_destroy(schedule);
        }
}

static void a_narrow_window_needs_few_hops(void) {
    attention_case c = case_of(8, 1, 64, 1, 1, 4);
    world all;
    int32_t r;
    c.layout = MEMO_LAYOUT_PLAIN;
    c.window = 4; /* less than the 8 tokens of a rank: one neighbour's keys are enough */
    world_init(&all, &c, NULL);
    expect_right(&c, 2e-6, 5e-6, &all);
    for (r = 0; r < 8; r++) {
        CHECK(all.results[r].ring_forward_bytes == 2 * 8 * 4 * 4);
        CHECK(all.results[r].ring_backward_bytes == 2 * 8 * 4 * 4 * (1 + 2));
    }
}

static void the_ring_s_schedule_overlaps(void) {
    memo_layout_desc layout_desc = memo_layout_desc_default();
    memo_sp_attention_desc desc = memo_sp_attention_desc_default();
    memo_sp_attention_costs costs;
    memo_mask mask = memo_mask_default();
    memo_schedule* schedule = NULL;
    memo_simulation* simulation = NULL;
    memo_error error;
    double step_s, hop_s;
    int is_slow;
    layout_desc.ring = 4;
    layout_desc.n_tokens = 4096;
    CHECK_OK(memo_layout_make(&layout_desc, &desc.layout, &error));
    desc.n_q_heads = desc.n_kv_heads = 1;
    desc.head_size = 64;
    memset(&costs, 0, sizeof costs);
    costs.forward_s_per_score = 1e-9;
    step_s = 512.0 * 1024 * 1e-9;
    for (is_slow = 0; is_slow < 2; is_slow++) {
        hop_s = is_slow ? 3e-3 : 1e-4;
        costs.ring_bytes_per_s = 2 * 1024 * 64 * 4 / hop_s;
        CHECK_OK(memo_schedule_create(&schedule, &error));
        CHECK_OK(memo_sp_attention_ring_schedule(&desc, &mask, 0, &costs, schedule, &error));
        CHECK_OK(memo_schedule_simulate(schedule, &simulation, &error));
        /* Each step takes the longer of the two. */
        CHECK_CASE(
            fabs(simulation->makespan_s / (is_slow ? 3 * hop_s + step_s : 4 * step_s + 512e-9) -
                 1) < 1e-3,
            "%g s", simulation->makespan_s);
        memo_simulation_destroy(simulation);
        memo_schedule_destroy(schedule);
    }
}

/* Sleeping attention and throttled links: what runs takes as long as what was simulated. */
static void the_ring_really_overlaps(void) {
    int is_slow, k;
    if (IS_SLOW) SKIP("times mean nothing here");
    for (is_slow = 0; is_slow < 2; is_slow++) {
        attention_case c = case_of(4, 1, 512, 2, 2, 8);
        memo_layout_desc layout_desc = memo_layout_desc_default();
        memo_sp_attention_desc desc = memo_sp_attention_desc_default();
        memo_sp_attention_costs costs;
        memo_mask mask = memo_mask_default();
        memo_schedule* schedule = NULL;
        memo_simulation* simulation = NULL;
        double step_s = 0.012, best_s = HUGE_VAL, hop_bytes = 2 * 128 * 2 * 8 * 4;
        memo_error error;
        world all;
        whole w;
        int32_t r;
        c.s_per_score = step_s / (128.0 * 128 / 2 * 2);
        c.bytes_per_s = hop_bytes / (is_slow ? 2 * step_s : step_s / 4);
        layout_desc.ring = 4;
        layout_desc.n_tokens = 512;
        CHECK_OK(memo_layout_make(&layout_desc, &desc.layout, &error));
        desc.n_q_heads = desc.n_kv_heads = 2;
        desc.head_size = 8;
        memset(&costs, 0, sizeof costs);
        costs.forward_s_per_score = costs.backward_s_per_score = c.s_per_score;
        costs.ring_bytes_per_s = c.bytes_per_s;
        CHECK_OK(memo_schedule_create(&schedule, &error));
        for (k = 0; k < 2; k++)
            CHECK_OK(memo_sp_attention_ring_schedule(&desc, &mask, k, &costs, schedule, &error));
        CHECK_OK(memo_schedule_simulate(schedule, &simulation, &error));
        whole_create(&w, &c);
        for (k = 0; k < 8 && best_s > 1.1 * simulation->makespan_s; k++) {
            double longest_s = 0; /* others may disturb: the best of some */
            world_init(&all, &c, &w);
            CHECK(world_run(&all));
            for (r = 0; r < 4; r++)
                if (all.results[r].elapsed_s > longest_s) longest_s = all.results[r].elapsed_s;
            if (longest_s < best_s) best_s = longest_s;
        }
        printf("# %s links: %.1f ms, simulated %.1f\n", is_slow ? "slow" : "fast", 1e3 * best_s,
               1e3 * simulation->makespan_s);
        CHECK(fabs(best_s / simulation->makespan_s - 1) <= 0.1);
        memo_simulation_destroy(simulation);
        memo_schedule_destroy(schedule);
        whole_destroy(&w);
    }
}

static void layers_share_the_scratch(void) {
    int i;
    for (i = 0; i < 4; i++) {
        attention_case c = case_of(i == 1 ? 1 : 3, i == 2 ? 1 : 2, 50, 4, 1 + i % 2, 16);
        world all;
        c.sends_again = i == 3;
        world_init(&all, &c, NULL);
        all.has_two_layers = 1;
        expect_right(&c, 2e-6, 5e-6, &all);
    }
}

/* A rank that cannot go on makes all others fail, in bounded time. */
static void a_failing_rank_is_seen_by_all(void) {
    attention_case c = case_of(2, 2, 40, 4, 4, 8);
    world all;
    whole w;
    int32_t r;
    whole_create(&w, &c);
    world_init(&all, &c, &w);
    all.failing_rank = 2;
    CHECK(!world_run(&all));
    for (r = 0; r < 4; r++)
        CHECK(all.results[r].status == (r == 2 ? MEMO_STATUS_DEVICE : MEMO_STATUS_COMM));
    whole_destroy(&w);
}

static void what_cannot_be_meant_is_refused(void) {
    memo_layout_desc layout_desc = memo_layout_desc_default();
    memo_sp_attention_desc good = memo_sp_attention_desc_default(), desc;
    memo_host_device_desc device_desc = memo_host_device_desc_default();
    static const int64_t wrong_end[] = {0, 5, 9}, falling[] = {0, 7, 5, 8}, right[] = {0, 3, 8};
    memo_sp_attention_tensors tensors;
    memo_sp_attention_sizes sizes;
    memo_sp_attention* attention = NULL;
    memo_mask mask = memo_mask_default();
    memo_host_attention state;
    memo_device* device = NULL;
    float data[9][8 * 2 * 4];
    float lse[16];
    memo_error error;
    memset(data, 0, sizeof data);
    layout_desc.n_tokens = 8;
    CHECK_OK(memo_layout_make(&layout_desc, &good.layout, &error));
    good.n_q_heads = good.n_kv_heads = 2;
    good.head_size = 4;
    CHECK_OK(memo_sp_attention_get_sizes(&good, &sizes, &error));
    desc = good;
    desc.n_kv_heads = 3;
    CHECK(memo_sp_attention_get_sizes(&desc, &sizes, &error) == MEMO_STATUS_INVALID_ARGUMENT);
    desc = good;
    desc.type = MEMO_TYPE_I32;
    CHECK(memo_sp_attention_get_sizes(&desc, &sizes, &error) == MEMO_STATUS_INVALID_ARGUMENT);
    desc = good;
    memset(&desc.layout, 0, sizeof desc.layout);
    CHECK(memo_sp_attention_get_sizes(&desc, &sizes, &error) == MEMO_STATUS_INVALID_ARGUMENT);
    desc = good;
    desc.ring_rank = 1;
    CHECK(memo_sp_attention_get_sizes(&desc, &sizes, &error) == MEMO_STATUS_INVALID_ARGUMENT);
    CHECK(memo_sp_attention_create(&good, &attention, &error) == MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_OK(memo_host_device_create(&device_desc, &device, &error));
    state.device = device;
    state.n_scores = 0;
    good.device = device;
    CHECK_OK(device->stream_create(device->context, "compute", 0, &good.stream, &error));
    good.attention = memo_host_attention_functions(&state);
    desc = good;
    layout_desc.ring = 2;
    CHECK_OK(memo_layout_make(&layout_desc, &desc.layout, &error));
    CHECK(memo_sp_attention_create(&desc, &attention, &error) == MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_OK(memo_sp_attention_create(&good, &attention, &error));
    memset(&tensors, 0, sizeof tensors);
    CHECK(memo_sp_attention_forward(attention, &tensors, &mask, &error) ==
          MEMO_STATUS_INVALID_ARGUMENT);
    tensors.q = data[0];
    tensors.k = data[1];
    tensors.v = data[2];
    tensors.out = data[3];
    tensors.lse = lse;
    CHECK_OK(memo_sp_attention_forward(attention, &tensors, &mask, &error));
    CHECK(memo_sp_attention_backward(attention, &tensors, &mask, &error) ==
          MEMO_STATUS_INVALID_ARGUMENT);
    mask.n_documents = 2;
    mask.document_begins = wrong_end;
    CHECK(memo_sp_attention_forward(attention, &tensors, &mask, &error) ==
          MEMO_STATUS_INVALID_ARGUMENT);
    mask.n_documents = 3;
    mask.document_begins = falling;
    CHECK(memo_sp_attention_forward(attention, &tensors, &mask, &error) ==
          MEMO_STATUS_INVALID_ARGUMENT);
    mask.n_documents = 2;
    mask.document_begins = right;
    CHECK_OK(memo_sp_attention_forward(attention, &tensors, &mask, &error));
    mask.window = -1;
    CHECK(memo_sp_attention_forward(attention, &tensors, &mask, &error) ==
          MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_OK(device->stream_synchronize(device->context, good.stream, &error));
    memo_sp_attention_destroy(attention);
    memo_host_device_destroy(device);
}

int main(int argc, char** argv) {
    memo_test_begin(argc, argv);
    TEST(merging_is_exact_and_never_overflows);
    TEST(masks_are_intervals);
    TEST(one_rank_is_exact);
    TEST(every_pair_of_degrees_is_exact);
    TEST(every_mask_in_every_layout_is_exact);
    TEST(every_number_of_heads_is_exact);
    TEST(every_head_size_is_exact);
    TEST(random_cases_are_exact);
    TEST(errors_stay_small_at_1024);
    TEST(the_ring_adds_no_error_to_bf16);
    TEST(the_16_bit_types_work_in_every_way);
    TEST(a_row_that_sees_nothing_is_0);
    TEST(extreme_scores_are_right);
    TEST(saturated_scores_are_finite);
    TEST(zigzag_is_balanced_and_plain_is_not);
    TEST(bytes_are_those_of_the_formulas);
    TEST(replicas_are_sent_where_needed);
    TEST(the_paper_s_table_2);
    TEST(what_runs_is_what_was_promised);
    TEST(nothing_is_allocated_once_created);
    TEST(memory_does_not_grow_with_the_ring);
    TEST(degree_1_costs_nothing);
    TEST(a_narrow_window_needs_few_hops);
    TEST(the_ring_s_schedule_overlaps);
    TEST(the_ring_really_overlaps);
    TEST(layers_share_the_scratch);
    TEST(a_failing_rank_is_seen_by_all);
    TEST(what_cannot_be_meant_is_refused);
    return memo_test_end();
}
