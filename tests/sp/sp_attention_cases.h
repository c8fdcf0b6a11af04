/* sp_attention_cases.h - cases of attention over ring x ulysses ranks, a dense fp64 reference that
 * shares no code but the conversions of typed.h, and the work of one rank in a case, over any
 * memo_comm.  A file that includes it after thread_ranks.h has ranks on threads; others define
 * world_run, which runs ranks.
 *
 * Include after memo_sp.h and memo_test.h. */
#ifndef SP_ATTENTION_CASES_H
#define SP_ATTENTION_CASES_H

#include "examples/host_attention.h"
#include "kept_sharding.h"
#include "made_mask.h"
#include "extras/memo_look.h"
#include "typed.h"

#include <time.h>

/* Memory that the host and the device can use. */
#ifndef CASE_CALLOC
#define CASE_CALLOC(n, size_bytes) calloc(n, size_bytes)
#define CASE_FREE(address)         free(address)
#endif
/* CASE_ATTENTION(desc, device), if defined, is the local attention instead of the host's. */

static long long malloc_count; /* memo's requests, if the including file counts them */

#define MAX_DOCUMENTS 16
#define MAX_BATCH     64
#define MAX_HEADS     64
#define MAX_LATENT    8192 /* numbers of the weights of latent keys */

typedef struct attention_case {
    int32_t ring, ulysses;
    int32_t nodes;     /* that the ring spans; 0: one */
    int32_t are_peers; /* the threads' devices copy themselves */
    memo_sharding_kind sharding;
    memo_mask_kind mask;
    int64_t window;       /* before a query, and after it unless there is another window after it */
    int64_t window_after; /* 0: as window; -1: no limit */
    int64_t first_keys;   /* beside a window of a causal mask, of each document */
    int64_t prefixes[MAX_DOCUMENTS];
    int32_t has_prefixes;
    int32_t has_intervals; /* the mask has key_first and key_end, whatever the fields above */
    const int64_t *key_first, *key_end; /* given; not NULL: without the fields above */
    int64_t first_query;                /* -1: 0, and documents are of keys, too */
    double softcap;
    memo_launch_kind launches; /* not 0: what the host's attention computes from */
    int32_t has_slopes;        /* a bias of the test's local attention: ALiBi's */
    int32_t has_sinks;
    int64_t document_begins[MAX_DOCUMENTS + 1];
    int64_t n_documents; /* 0: one, without a list */
    int32_t has_tree;    /* document i also sees parents[i], and so on */
    int64_t parents[MAX_DOCUMENTS];
    /* Not 0: cross-attention, with n_documents documents of keys. */
    int64_t n_keys, key_begins[MAX_DOCUMENTS + 1];
    memo_sharding_kind key_sharding;
    /* Not NULL: n_batch - 1 cases with the masks of the other sequences of the batch. */
    const struct attention_case* others;
    int64_t n_tokens, slice_tokens; /* slice_tokens: of zigzag and plain shardings */
    int32_t n_batch, n_q_heads, n_kv_heads, head_size;
    int32_t v_head_size; /* 0: head_size */
    int32_t latent_size; /* not 0: k is latent rows */
    int32_t latent_heads;
    memo_type type;
    int32_t sends_again, rounds_gradients, ulysses_groups;
    int32_t overwrites;  /* d_k is k, and d_v is v; takes several ranks and one repeat */
    int32_t is_poisoned; /* scratch memory begins as NaN; the local attention refuses NaN */
    double spread;       /* of q and k; 0: 1 */
    double step;         /* not 0: the first element of q is 1, that of k step * (position / 24) */
    /* Not 0: the first element of q is huge, that of k 0, or at many positions -huge: a score of
     * -inf. */
    double huge;
    double attracts; /* not 0: about the score of each document's first key, whose value is 0 */
    double sink;     /* not 0: the sink of every head */
} attention_case;

static attention_case case_of(int32_t ring, int32_t ulysses, int64_t n_tokens, int32_t n_q_heads,
                              int32_t n_kv_heads, int32_t head_size) {
    attention_case c = MEMO_ZERO(attention_case);
    c.ring = ring;
    c.ulysses = ulysses;
    c.n_tokens = n_tokens;
    c.n_batch = 1;
    c.n_q_heads = n_q_heads;
    c.n_kv_heads = n_kv_heads;
    c.head_size = head_size;
    return c;
}

static MEMO_UNUSED void random_documents(attention_case* c, int64_t most) {
    c->n_documents = memo_test_int(1, most);
    for (int64_t k = 1; k < c->n_documents; k++)
        c->document_begins[k] = memo_test_int(c->document_begins[k - 1], c->n_tokens);
    c->document_begins[c->n_documents] = c->n_tokens;
}

/* Document i goes below the one before, or beside it or one of its ancestors. */
static MEMO_UNUSED void random_tree(attention_case* c) {
    c->has_tree = 1;
    for (int64_t k = 0; k < c->n_documents; k++) {
        c->parents[k] = k - 1;
        while (c->parents[k] >= 0 && memo_test_int(0, 1)) c->parents[k] = c->parents[c->parents[k]];
    }
}

/* The stream waits for the host until it is released; for ever is a minute. */
typedef struct held_stream {
    int32_t is_released, is_late;
} held_stream;

static MEMO_UNUSED memo_status hold_stream(void* args, MEMO_UNUSED memo_error* e) {
    const struct timespec ms = {0, 1000000};
    held_stream* held = *(held_stream**)args;
    for (int i = 0; i < 60000 && !__atomic_load_n(&held->is_released, __ATOMIC_ACQUIRE); i++)
        nanosleep(&ms, NULL);
    held->is_late = !__atomic_load_n(&held->is_released, __ATOMIC_ACQUIRE);
    return MEMO_STATUS_OK;
}

static int64_t keys_of(const attention_case* c) { return c->n_keys ? c->n_keys : c->n_tokens; }

/* The case with the mask of sequence b of the batch. */
static const attention_case* case_of_row(const attention_case* c, int64_t b) {
    return b && c->others ? &c->others[b - 1] : c;
}

static const char* const sharding_names[] = {"zigzag", "plain", "documents"};

static const char* case_text(const attention_case* c) {
    static char text[400];
    snprintf(text, sizeof text,
             "ring %d over %d nodes ulysses %d %s %s window %d,%d%s%s first query %d documents "
             "%d%s%s, batch "
             "%d tokens %d keys "
             "%d heads "
             "%d/%d of %d/%d latent %d slices of %d in %d groups, attracts %g, %s%s%s%s%s",
             c->ring, c->nodes, c->ulysses, sharding_names[c->sharding],
             c->mask == MEMO_MASK_CAUSAL ? "causal" : "full", (int)c->window, (int)c->window_after,
             c->has_tree       ? " a tree,"
             : c->has_prefixes ? ", prefixes,"
                               : "",
             c->has_intervals ? ", intervals," : "", (int)c->first_query, (int)c->n_documents,
             c->softcap > 0 ? " (softcap)" : "", c->others ? " (a mask for each)" : "", c->n_batch,
             (int)c->n_tokens, (int)c->n_keys, c->n_q_heads, c->n_kv_heads, c->head_size,
             c->v_head_size, c->latent_size, (int)c->slice_tokens, c->ulysses_groups, c->attracts,
             memo_type_name(c->type), c->sends_again ? ", sends again" : "",
             c->rounds_gradients ? ", rounds gradients" : "",
             c->overwrites ? ", overwrites keys" : "",
             c->has_sinks    ? c->has_slopes ? ", sinks, biases" : ", sinks"
             : c->has_slopes ? ", biases"
                             : "");
    return text;
}

/* ---- whole tensors: (batch, tokens, heads, head size), as floats and in the case's type ---- */

enum { Q, K, V, OUT, D_OUT, D_Q, D_K, D_V, N_TENSORS };

typedef struct whole {
    int64_t n[N_TENSORS], n_tokens[N_TENSORS]; /* elements */
    int32_t n_heads[N_TENSORS], head_size[N_TENSORS];
    char* typed[N_TENSORS];
    double* reference[N_TENSORS];
    float sinks[MAX_HEADS];
    double d_sinks[MAX_HEADS];
    double d_sinks_norm;     /* of the reference; root of the sum of squares of all terms */
    double terms[N_TENSORS]; /* sums of squares of what cancels in d_q and d_k */
    /* Latent rows times these are keys and values: (latent size, key heads, both head sizes). */
    float* latent_weights;
    double* d_latent_weights; /* of the reference */
} whole;

static double test_normal(void) { /* nearly */
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += memo_test_real();
    return sum;
}

/* The first element of q is 1, that of k is large at the first key of each document and else 0. */
static double attracting(const attention_case* c, int64_t b, int t, int64_t i, int64_t position,
                         double x) {
    const attention_case* row = case_of_row(c, b);
    const int64_t* begins = c->n_keys ? row->key_begins : row->document_begins;
    int is_first = position == 0;
    for (int k = 0; k < row->n_documents; k++) is_first |= position == begins[k];
    if (t == V) return is_first ? 0 : x;
    if (t == D_OUT || i % c->head_size) return x;
    return t == Q ? 1 : is_first ? c->attracts * sqrt((double)c->head_size) : 0;
}

static int is_of_keys(int t) { return t == K || t == V || t == D_K || t == D_V; }
static int is_result(int t) { return t == OUT || t == D_Q || t == D_K || t == D_V; }

/* The elements of a key head and its value. */
static int32_t both_sizes(const attention_case* c) {
    return c->head_size + (c->v_head_size ? c->v_head_size : c->head_size);
}

/* As in DeepSeek-V2: an eighth of the latent is the end of every key as it is, for positions; keys
 * and values are products of the rest. */
static void whole_create_latent(whole* w, const attention_case* c) {
    const int64_t n_each = both_sizes(c), n = c->latent_size * c->n_kv_heads * n_each;
    const int64_t rotated = c->latent_size / 8 < c->head_size ? c->latent_size / 8 : c->head_size;
    w->latent_weights = (float*)calloc((size_t)n + 1, sizeof(float));
    w->d_latent_weights = (double*)calloc((size_t)n + 1, sizeof(double));
    for (int64_t i = 0; i < n; i++) {
        const int64_t l = i / n_each / c->n_kv_heads, e = i % n_each;
        const int64_t from = l - (c->latent_size - rotated), to = e - (c->head_size - rotated);
        const int is_copied = to >= 0 && to < rotated;
        if (is_copied || from >= 0)
            w->latent_weights[i] = is_copied && from == to;
        else
            w->latent_weights[i] = (float)(test_normal() / sqrt((double)c->latent_size));
    }
}

static void whole_create(whole* w, const attention_case* c) {
    for (int64_t i = 0; i < MAX_HEADS;
         i++) /* one that outweighs most keys; one that is none; ordinary ones */
        w->sinks[i] = c->sink > 0  ? (float)c->sink
                      : i % 5 == 1 ? 12
                      : i % 5 == 3 ? -(float)HUGE_VAL
                                   : (float)(i % 7) - 3;
    memset(w->d_sinks, 0, sizeof w->d_sinks);
    memset(w->terms, 0, sizeof w->terms);
    w->d_sinks_norm = 0;
    whole_create_latent(w, c);
    for (int t = 0; t < N_TENSORS; t++) {
        double spread = (t == Q || t == K) && c->spread > 0 ? c->spread : 1;
        int is_v = t == V || t == OUT || t == D_OUT || t == D_V;
        w->n_heads[t] = is_of_keys(t) ? c->n_kv_heads : c->n_q_heads;
        w->head_size[t] = is_v && c->v_head_size ? c->v_head_size : c->head_size;
        if (c->latent_size && is_of_keys(t)) {
            w->n_heads[t] = 1;
            w->head_size[t] = is_v ? 0 : c->latent_size;
        }
        w->n_tokens[t] = is_of_keys(t) ? keys_of(c) : c->n_tokens;
        w->n[t] = c->n_batch * w->n_tokens[t] * w->n_heads[t] * w->head_size[t];
        w->typed[t] = (char*)CASE_CALLOC((size_t)w->n[t], (size_t)memo_type_bytes(c->type));
        w->reference[t] = (double*)calloc((size_t)w->n[t], sizeof(double));
        if (is_result(t)) continue;
        for (int64_t i = 0; i < w->n[t]; i++) {
            double x = spread * test_normal();
            int64_t position = i / (w->n_heads[t] * w->head_size[t]) % w->n_tokens[t];
            if (c->step > 0 && i % c->head_size == 0 && t != V && t != D_OUT)
                x = t == Q ? 1 : c->step * (double)(position / 24);
            if (c->attracts > 0) x = attracting(c, i / (w->n[t] / c->n_batch), t, i, position, x);
            if (c->huge > 0 && i % c->head_size == 0 && (t == Q || t == K))
                x = t == Q ? c->huge : position < 20 || position % 7 == 3 ? -c->huge : 0;
            typed_set(w->typed[t], i, c->type, x);
            w->reference[t][i] = typed_at(w->typed[t], i, c->type);
        }
    }
}
static void whole_destroy(whole* w) {
    free(w->latent_weights);
    free(w->d_latent_weights);
    for (int t = 0; t < N_TENSORS; t++) {
        CASE_FREE(w->typed[t]);
        free(w->reference[t]);
    }
}

/* ---- the reference ---- */

static int is_visible(const attention_case* c, int64_t query, int64_t key) {
    int64_t after = c->window_after ? c->window_after : c->window, i;
    const int64_t* keys = c->n_keys && !c->first_query ? c->key_begins : c->document_begins;
    if (c->key_first) return key >= c->key_first[query] && key < c->key_end[query];
    if (c->first_query > 0) query += c->first_query;
    if (c->has_tree) { /* a key of an ancestor */
        int64_t of_query = c->n_documents - 1, of_key = of_query;
        while (query < c->document_begins[of_query]) of_query--;
        while (key < c->document_begins[of_key]) of_key--;
        for (i = c->parents[of_query]; i >= 0; i = c->parents[i])
            if (i == of_key) return 1;
    }
    for (i = 1; i < c->n_documents; i++) /* a border between the two */
        if ((query < c->document_begins[i]) != (key < keys[i])) return 0;
    for (i = 0; i + 1 < c->n_documents; i++) /* from here on positions in the document */
        if (query >= c->document_begins[i] && query < c->document_begins[i + 1]) break;
    if (c->n_documents) query -= c->document_begins[i];
    if (c->n_documents) key -= keys[i];
    if (key < c->first_keys && key <= query) return 1;
    if (c->window && query - key >= c->window) return 0;
    if (c->has_prefixes && key < c->prefixes[i]) return 1;
    if (c->mask == MEMO_MASK_CAUSAL && key > query) return 0;
    return after <= 0 || key - query < after;
}

static double slope_of_head(int64_t head) { return ldexp(0.5, -(int)(head % 5)); }

static void reference_run(const attention_case* c, whole* w);

/* The case with the keys and values of its latent rows. */
static void whole_expand(const attention_case* c, const whole* w, attention_case* expanded,
                         whole* x) {
    const int64_t n_l = c->latent_size, n_h = c->n_kv_heads;
    *expanded = *c;
    expanded->latent_size = 0;
    whole_create(x, expanded);
    for (int t = Q; t <= D_OUT; t++) {
        const int64_t size = x->head_size[t];
        if (t == OUT) continue;
        for (int64_t i = 0; i < x->n[t]; i++) {
            double sum = is_of_keys(t) ? 0 : w->reference[t][i];
            const int64_t row = i / size / n_h, e = (t == V ? c->head_size : 0) + i % size;
            for (int64_t l = 0; l < n_l && is_of_keys(t); l++)
                sum += w->reference[K][row * n_l + l] *
                       w->latent_weights[(l * n_h + i / size % n_h) * both_sizes(c) + e];
            typed_set(x->typed[t], i, c->type, sum);
            x->reference[t][i] = c->type == MEMO_TYPE_F32 ? sum : typed_at(x->typed[t], i, c->type);
        }
    }
}

static void reference_run_latent(const attention_case* c, whole* w) {
    const int64_t n_l = c->latent_size, n_h = c->n_kv_heads;
    attention_case expanded;
    whole x;
    whole_expand(c, w, &expanded, &x);
    reference_run(&expanded, &x);
    memcpy(w->reference[OUT], x.reference[OUT], (size_t)w->n[OUT] * sizeof(double));
    memcpy(w->reference[D_Q], x.reference[D_Q], (size_t)w->n[D_Q] * sizeof(double));
    memcpy(w->d_sinks, x.d_sinks, sizeof w->d_sinks);
    w->d_sinks_norm = x.d_sinks_norm;
    w->terms[D_Q] = x.terms[D_Q];
    for (int t = D_K; t <= D_V; t++)
        for (int64_t i = 0; i < x.n[t]; i++) {
            const int64_t size = x.head_size[t], row = i / size / n_h;
            const int64_t e = (t == D_V ? c->head_size : 0) + i % size;
            for (int64_t l = 0; l < n_l; l++) {
                const int64_t at = (l * n_h + i / size % n_h) * both_sizes(c) + e;
                w->reference[D_K][row * n_l + l] += x.reference[t][i] * w->latent_weights[at];
                w->d_latent_weights[at] += x.reference[t][i] * w->reference[K][row * n_l + l];
            }
        }
    whole_destroy(&x);
}

static void reference_run(const attention_case* c, whole* w) {
    if (c->latent_size) {
        reference_run_latent(c, w);
        return;
    }
    int64_t n = keys_of(c), d = w->head_size[Q], d_of_v = w->head_size[V], i, j, e, b, h;
    int64_t group = c->n_q_heads / c->n_kv_heads;
    double scale = 1 / sqrt((double)d);
    double* p = (double*)malloc((size_t)(2 * n) * sizeof(double));
    double* slopes = p + n; /* of the softcap */
#define ROW(t, row, head)                                                                          \
    (w->reference[t] + (((b * w->n_tokens[t] + (row)) * w->n_heads[t] + (head)) * w->head_size[t]))
    for (b = 0; b < c->n_batch; b++)
        for (h = 0; h < c->n_q_heads; h++)
            for (i = 0; i < c->n_tokens; i++) {
                const double *q = ROW(Q, i, h), *d_out = ROW(D_OUT, i, h);
                double *out = ROW(OUT, i, h), *d_q = ROW(D_Q, i, h);
                double largest = -HUGE_VAL, sum = 0, dot = 0;
                double slope = c->has_slopes ? slope_of_head(h) : 0;
                double sink = c->has_sinks ? (double)w->sinks[h] : -HUGE_VAL;
                for (j = 0; j < n; j++) {
                    const double* k = ROW(K, j, h / group);
                    p[j] = -HUGE_VAL;
                    if (!is_visible(case_of_row(c, b), i, j)) continue;
                    p[j] = 0;
                    for (e = 0; e < d; e++) p[j] += q[e] * k[e];
                    p[j] *= scale;
                    if (c->softcap > 0) p[j] = c->softcap * tanh(p[j] / c->softcap);
                    slopes[j] = 1 - p[j] / (c->softcap > 0 ? c->softcap : HUGE_VAL) *
                                        (p[j] / (c->softcap > 0 ? c->softcap : HUGE_VAL));
                    p[j] -=
                        slope * fabs((double)(i + (c->first_query > 0 ? c->first_query : 0) - j));
                    if (p[j] < -3.4e38) p[j] = -HUGE_VAL; /* as fp32 has it: not seen */
                    if (p[j] > largest) largest = p[j];
                }
                if (sink > largest) largest = sink;
                sink = sink > -HUGE_VAL ? exp(sink - largest) : 0;
                sum = sink;
                for (j = 0; j < n; j++) {
                    p[j] = p[j] > -HUGE_VAL ? exp(p[j] - largest) : 0;
                    sum += p[j];
                }
                for (j = 0; j < n; j++) {
                    const double* v = ROW(V, j, h / group);
                    p[j] = sum > 0 ? p[j] / sum : 0;
                    for (e = 0; e < d_of_v; e++) out[e] += p[j] * v[e];
                }
                for (e = 0; e < d_of_v; e++) dot += out[e] * d_out[e];
                if (sink > 0) {
                    w->d_sinks[h] -= sink / sum * dot;
                    w->d_sinks_norm = hypot(w->d_sinks_norm, sink / sum * dot);
                }
                for (j = 0; j < n; j++) {
                    const double *k = ROW(K, j, h / group), *v = ROW(V, j, h / group);
                    double *d_k = ROW(D_K, j, h / group), *d_v = ROW(D_V, j, h / group);
                    double d_p = 0, d_s, term;
                    if (p[j] == 0) continue;
                    for (e = 0; e < d_of_v; e++) d_p += d_out[e] * v[e];
                    d_s = scale * p[j] * (d_p - dot);
                    if (c->softcap > 0) d_s *= slopes[j];
                    term = scale * p[j] * (fabs(d_p) + fabs(dot));
                    for (e = 0; e < d; e++) {
                        w->terms[D_Q] += term * k[e] * term * k[e];
                        w->terms[D_K] += term * q[e] * term * q[e];
                        d_q[e] += d_s * k[e];
                        d_k[e] += d_s * q[e];
                    }
                    for (e = 0; e < d_of_v; e++) d_v[e] += p[j] * d_out[e];
                }
            }
#undef ROW
    free(p);
}

/* Relative RMS error of a tensor; huge if a value is not finite.  If most queries see one key, d_p
 * and the row's sum cancel to a rest that fp32 does not know: d_q and d_k count as at least a
 * sixteenth of these terms. */
static double error_of(const attention_case* c, const whole* w, int t) {
    double sum = 0, norm = 0;
    if (!w->n[t]) return 0;
    for (int64_t i = 0; i < w->n[t]; i++) {
        double x = typed_at(w->typed[t], i, c->type), r = w->reference[t][i];
        if (!(x > -1e30 && x < 1e30)) return HUGE_VAL;
        sum += (x - r) * (x - r);
        norm += r * r;
    }
    norm = fmax(norm, w->terms[t] / 256);
    return norm > 0 ? sqrt(sum / norm) : sqrt(sum / (double)w->n[t]);
}

/* ---- the ranks ---- */

/* What a call of the local attention was asked to compute. */
typedef struct asked_call {
    int64_t q_start, k_start; /* first positions */
    int64_t q_rows, k_rows, n_q_heads;
} asked_call;

#define MAX_ASKED 64

typedef struct run_result {
    int64_t n_scores; /* computed by this rank, forward and backward together */
    int32_t ring_rank, ulysses_rank;
    int32_t n_asked[2]; /* calls in forward, in backward */
    asked_call asked[2][MAX_ASKED];
    int64_t ring_forward_bytes, ring_backward_bytes, ulysses_forward_bytes, ulysses_backward_bytes;
    memo_sp_attention_sizes sizes;
    int64_t device_bytes;                /* more on the device, once created */
    float d_sinks[MAX_HEADS];            /* of this rank */
    double d_latent_weights[MAX_LATENT]; /* of this rank */
    int32_t most_latent_heads;           /* in a call */
    long long n_mallocs; /* by anybody, from the first forward to the end of the last backward */
    memo_status status;
} run_result;

typedef struct world {
    const attention_case* c;
    whole* w;
    run_result results[16];
    int32_t n_repeats;
    int32_t has_two_layers; /* another layer comes in between */
    int32_t failing_rank;   /* whose local attention fails; -1: none */
    int32_t fails_latent;   /* 1: instead, its expand; 2: its reduce */
    int32_t recorded_rank;  /* whose schedule is checked; -1: none; ALL_RANKS */
    /* On host devices, of each rank of the ring rank, or of all (ALL_RANKS): a message in
     * late_one_in starts late, at most n_late. */
    int32_t late_ring_rank, late_one_in, n_late;
    uint64_t late_seed;
    int32_t is_alone; /* in this process: the other ranks are in others */
    int32_t own_rank; /* if so */
    pthread_barrier_t barrier;
} world;

enum { ALL_RANKS = -2 };

/* Links of a rank, on which some messages start up to 20 ms late, as on a busy network. */
typedef struct late_links {
    memo_device* device;
    memo_status (*messages)(memo_comm*, memo_stream, const memo_message_call*, int32_t,
                            memo_error*);
    uint64_t state;
    int32_t one_in, n_left;
} late_links;
static __thread late_links late;

static inline memo_status late_sleep(void* args, memo_error* error) {
    const struct timespec time = {0, *(const int32_t*)args};
    (void)error;
    nanosleep(&time, NULL);
    return MEMO_STATUS_OK;
}
static inline memo_status late_messages(memo_comm* comm, memo_stream stream,
                                        const memo_message_call* calls, int32_t n,
                                        memo_error* error) {
    const uint64_t random = memo_test_next(&late.state);
    const int32_t ns = (int32_t)(random >> 8) % 20000000;
    memo_status status = MEMO_STATUS_OK;
    if (late.n_left && random % 256 % (uint64_t)late.one_in == 0) {
        late.n_left--;
        status = memo_host_device_launch(late.device, stream, late_sleep, &ns, sizeof ns, error);
    }
    return status ? status : late.messages(comm, stream, calls, n, error);
}
static inline void make_late(const world* all, memo_comm* comm, memo_device* device) {
    if (!comm || comm->messages == late_messages) return;
    late.device = device;
    late.messages = comm->messages;
    late.state = all->late_seed + 97 * (uint64_t)comm->rank;
    late.one_in = all->late_one_in;
    late.n_left = all->n_late;
    comm->messages = late_messages;
}

static memo_status failing_attention(MEMO_UNUSED void* user, MEMO_UNUSED memo_stream stream,
                                     MEMO_UNUSED const memo_attention_block* block,
                                     memo_error* error) {
    return memo_error_set(error, MEMO_STATUS_DEVICE, "no attention on this rank");
}

/* A rank's functions of latent keys: one number after another. */
typedef struct latent_args {
    const world* all;
    run_result* result;
    memo_device* device;
    memo_latent_block rows;
    int32_t reduces, fails; /* fails: 1: expand; 2: reduce */
} latent_args;

static memo_status latent_work(void* args, MEMO_UNUSED memo_error* error) {
    const latent_args* a = (const latent_args*)args;
    const attention_case* c = a->all->c;
    const memo_latent_block* r = &a->rows;
    const int64_t n_l = c->latent_size, n_each = both_sizes(c), d = c->head_size;
    const int64_t n = r->n_rows * r->n_kv_heads * n_each;
    for (int64_t i = 0; i < n; i++) {
        const int64_t row_head = i / n_each, row = row_head / r->n_kv_heads;
        const int64_t h = r->first_kv_head + row_head % r->n_kv_heads, e = i % n_each;
        const int64_t at = e < d ? row_head * d + e : row_head * (n_each - d) + e - d;
        const double gradient = !a->reduces ? 0 : (double)(e < d ? r->d_k : r->d_v)[at];
        double sum = 0;
        for (int64_t l = 0; l < n_l; l++) {
            const int64_t w = (l * c->n_kv_heads + h) * n_each + e;
            const double weight = a->all->w->latent_weights[w];
            const double x = typed_at(r->latent, row * n_l + l, r->type);
            sum += x * weight;
            if (gradient == 0) continue; /* of padding, which may be NaN */
            r->d_latent[row * n_l + l] += (float)(gradient * weight);
            a->result->d_latent_weights[w] += gradient * x;
        }
        if (!a->reduces) typed_set(e < d ? r->k : r->v, at, r->type, sum);
    }
    return MEMO_STATUS_OK;
}

static memo_status latent_call(void* user, memo_stream stream, const memo_latent_block* rows,
                               int32_t reduces, memo_error* error) {
    latent_args args = *(const latent_args*)user;
    if (args.fails == 1 + reduces)
        return memo_error_set(error, MEMO_STATUS_DEVICE, "no latent keys on this rank");
    args.rows = *rows;
    args.reduces = reduces;
    if (rows->n_kv_heads > args.result->most_latent_heads)
        args.result->most_latent_heads = rows->n_kv_heads;
    return memo_host_device_launch(args.device, stream, latent_work, &args, sizeof args, error);
}
static memo_status latent_expand(void* user, memo_stream stream, const memo_latent_block* rows,
                                 memo_error* error) {
    return latent_call(user, stream, rows, 0, error);
}
static memo_status latent_reduce(void* user, memo_stream stream, const memo_latent_block* rows,
                                 memo_error* error) {
    return latent_call(user, stream, rows, 1, error);
}

/* Passes calls on to the user's attention, and writes them down. */
typedef struct watched_attention {
    memo_attention inner;
    run_result* result;
    memo_device* checked; /* not NULL: rows of keys must be finite */
} watched_attention;

/* Fails if a number in rows of k or v is not finite. */
static memo_status check_rows(void* args, memo_error* error) {
    const memo_attention_block* a = (const memo_attention_block*)args;
    int64_t n_rows = 0;
    for (int32_t run = 0; run < a->n_k_runs; run++) n_rows += a->k_runs[run].count;
    for (int32_t is_v = 0; is_v < 2; is_v++) {
        int64_t stride = is_v ? a->v_row_stride : a->k_row_stride;
        int64_t n = a->n_kv_heads * (is_v ? a->v_head_size : a->head_size);
        for (int64_t b = 0; b < a->n_batch * n_rows; b++)
            for (int64_t i = 0; i < n; i++) {
                int64_t at = b / n_rows * (is_v ? a->v_batch_stride : a->k_batch_stride) +
                             b % n_rows * stride + i;
                double x = typed_at((const char*)(is_v ? a->v : a->k), at, a->type);
                if (!(x > -1e30 && x < 1e30))
                    return memo_error_set(error, MEMO_STATUS_DEVICE, "row %d of keys is not finite",
                                          (int)(b % n_rows));
            }
    }
    return MEMO_STATUS_OK;
}

static memo_status watched(const watched_attention* w, memo_stream stream,
                           const memo_attention_block* block, int is_backward, memo_error* error) {
    asked_call call = MEMO_ZERO(asked_call);
    call.q_start = block->q_runs[0].start;
    call.k_start = block->k_runs[0].start;
    for (int32_t run = 0; run < block->n_q_runs; run++) call.q_rows += block->q_runs[run].count;
    for (int32_t run = 0; run < block->n_k_runs; run++) call.k_rows += block->k_runs[run].count;
    call.n_q_heads = block->n_q_heads;
    if (w->result->n_asked[is_backward] < MAX_ASKED)
        w->result->asked[is_backward][w->result->n_asked[is_backward]] = call;
    w->result->n_asked[is_backward]++;
    if (w->checked && memo_host_device_launch(w->checked, stream, check_rows,
                                              (void*)(uintptr_t)block, sizeof *block, error))
        return error->status;
    return (is_backward ? w->inner.backward : w->inner.forward)(w->inner.user, stream, block,
                                                                error);
}
static memo_status watched_forward(void* user, memo_stream stream,
                                   const memo_attention_block* block, memo_error* error) {
    return watched((const watched_attention*)user, stream, block, 0, error);
}
static memo_status watched_backward(void* user, memo_stream stream,
                                    const memo_attention_block* block, memo_error* error) {
    return watched((const watched_attention*)user, stream, block, 1, error);
}

/* The host's attention from device arrays alone: those of a fused kernel, read where it would run.
 * A query is a segment of its own. */
static void launched_row(memo_segments* to, memo_segment* rows, int64_t q, int64_t begin,
                         int64_t end) {
    const memo_segment row = {q, q + 1, begin, end, MEMO_SEGMENT_FULL, 0};
    rows[to->n++] = row;
}

static void launched_rows(const memo_segments* from, memo_segments* to, memo_segment* rows) {
    for (int32_t k = 0; k < from->n_launches; k++) {
        const memo_launch* l = &from->launches[k];
        for (int32_t s = 0; s < l->n; s++)
            for (int64_t i = 0; i < l->q_counts[s]; i++) {
                const int64_t n_k = l->k_counts[s], at = i + n_k - l->q_counts[s];
                int64_t begin = 0, end = n_k;
                if (l->left >= 0) begin = (l->from_top ? i : at) - l->left;
                if (l->right >= 0 && at + l->right + 1 < end) end = at + l->right + 1;
                launched_row(to, rows, l->q_begins[s] + i, l->k_begins[s] + (begin > 0 ? begin : 0),
                             l->k_begins[s] + end);
            }
    }
    for (int32_t s = 0; s < from->n && !from->n_launches; s++)
        for (int64_t q = from->q_ranges[2 * s]; q < from->q_ranges[2 * s + 1]; q++) {
            const int64_t i = q - from->q_ranges[2 * s], after = from->q_ranges[2 * s + 1] - 1 - q;
            launched_row(to, rows, q, from->k_ranges[2 * s] + (from->types[s] & 2 ? i : 0),
                         from->k_ranges[2 * s + 1] - (from->types[s] & 1 ? after : 0));
        }
}

static memo_status launched_run(void* args, memo_error* error) {
    const host_attention_args* a = (const host_attention_args*)args;
    host_attention_args by_rows = *a;
    memo_status status;
    int64_t n = 0;
    for (int32_t r = 0; r < a->block.n_q_runs; r++) n += a->block.q_runs[r].count;
    memo_segment* rows = (memo_segment*)calloc((size_t)n, sizeof *rows);
    by_rows.block.segments = MEMO_ZERO(memo_segments);
    by_rows.block.segments.host = rows;
    launched_rows(&a->block.segments, &by_rows.block.segments, rows);
    status = host_attention_run(&by_rows, error);
    free(rows);
    return status;
}

static memo_status launched(host_attention* state, memo_stream stream,
                            const memo_attention_block* block, int is_backward, memo_error* error) {
    host_attention_args args = {*block, state, is_backward};
    args.block.segments.host = NULL;
    return memo_host_device_launch(state->device, stream, launched_run, &args, sizeof args, error);
}
static memo_status launched_forward(void* user, memo_stream stream,
                                    const memo_attention_block* block, memo_error* error) {
    return launched((host_attention*)user, stream, block, 0, error);
}
static memo_status launched_backward(void* user, memo_stream stream,
                                     const memo_attention_block* block, memo_error* error) {
    return launched((host_attention*)user, stream, block, 1, error);
}

/* A local attention of the user's: ALiBi, a bias by the model's head and the distance.  One query
 * after another. */
typedef struct biased_attention {
    memo_device* device;
    int64_t first_query; /* of the keys */
} biased_attention;

typedef struct biased_args {
    memo_attention_block block;
    int64_t first_query;
    int is_backward;
} biased_args;

static int64_t block_position(const memo_run* runs, int64_t row) {
    for (; row >= runs->count; runs++) row -= runs->count;
    return runs->start + row;
}
static void biased_query(const biased_args* args, const memo_segment* segment, int64_t b, int64_t i,
                         int64_t h) {
    const memo_attention_block* a = &args->block;
    int64_t j, e, low, high;
    int64_t kv = h / (a->n_q_heads / a->n_kv_heads), query = block_position(a->q_runs, i);
    int64_t q_at = b * a->q_batch_stride + i * a->q_row_stride + h * a->head_size;
    int64_t out_at = b * a->out_batch_stride + i * a->out_row_stride + h * a->v_head_size;
    int64_t lse_at = b * a->lse_batch_stride + i * a->lse_row_stride + h;
    double out[64] = {0}, sum = 0, slope = slope_of_head(a->first_q_head + h);
    memo_segment_keys(segment, i, &low, &high);
    for (j = low; j < high; j++) {
        int64_t key = block_position(a->k_runs, j);
        int64_t k_at = b * a->k_batch_stride + j * a->k_row_stride + kv * a->head_size;
        int64_t v_at = b * a->v_batch_stride + j * a->v_row_stride + kv * a->v_head_size;
        double score = 0, p, d_p = 0, d_s, bend = 1; /* of the softcap */
        for (e = 0; e < a->head_size; e++)
            score += (double)((const float*)a->q)[q_at + e] * ((const float*)a->k)[k_at + e];
        score *= a->scale;
        if (a->softcap > 0) {
            double capped = tanh(score / a->softcap);
            score = a->softcap * capped;
            bend = 1 - capped * capped;
        }
        score -= slope * fabs((double)(query + args->first_query - key));
        p = exp(args->is_backward ? score - a->lse[lse_at]
                                  : score); /* small numbers: no overflow */
        sum += p;
        for (e = 0; e < a->v_head_size; e++) out[e] += p * ((const float*)a->v)[v_at + e];
        if (!args->is_backward) continue;
        for (e = 0; e < a->v_head_size; e++) {
            double d_out = ((const float*)a->d_out)[out_at + e];
            d_p += d_out * ((const float*)a->v)[v_at + e];
            a->d_v[v_at + e] += (float)(p * d_out);
        }
        d_s = a->scale * bend * p * (d_p - a->row_dots[lse_at]);
        for (e = 0; e < a->head_size; e++) {
            a->d_q[q_at + e] += (float)(d_s * ((const float*)a->k)[k_at + e]);
            a->d_k[k_at + e] += (float)(d_s * ((const float*)a->q)[q_at + e]);
        }
    }
    if (args->is_backward) return;
    for (e = 0; e < a->v_head_size; e++) a->out[out_at + e] = sum > 0 ? (float)(out[e] / sum) : 0;
    a->lse[lse_at] = sum > 0 ? (float)log(sum) : -(float)HUGE_VAL;
}

static memo_status biased_run(void* args, memo_error* error) {
    const biased_args* a = (const biased_args*)args;
    (void)error;
    for (int32_t k = 0; k < a->block.segments.n; k++) {
        const memo_segment* segment = &a->block.segments.host[k];
        for (int64_t b = 0; b < a->block.n_batch; b++)
            for (int64_t i = segment->q_begin; i < segment->q_end; i++)
                for (int64_t h = 0; h < a->block.n_q_heads; h++) biased_query(a, segment, b, i, h);
    }
    return MEMO_STATUS_OK;
}
static memo_status biased(const biased_attention* attention, memo_stream stream,
                          const memo_attention_block* block, int is_backward, memo_error* error) {
    biased_args args = {*block, attention->first_query, is_backward};
    return memo_host_device_launch(attention->device, stream, biased_run, &args, sizeof args,
                                   error);
}
static memo_status biased_forward(void* user, memo_stream stream, const memo_attention_block* block,
                                  memo_error* error) {
    return biased((const biased_attention*)user, stream, block, 0, error);
}
static memo_status biased_backward(void* user, memo_stream stream,
                                   const memo_attention_block* block, memo_error* error) {
    return biased((const biased_attention*)user, stream, block, 1, error);
}

typedef struct step_buffers {
    char *made, *used; /* as large as any tensor */
    int64_t k_bytes, v_bytes, out_bytes, saved_bytes;
} step_buffers;

/* A step, and what a trainer does on the compute stream around it: it makes tensors before, and
 * uses them after. */
static memo_status attention_step(memo_device* device, memo_stream stream,
                                  memo_sp_attention* attention, const memo_exchange* exchange,
                                  const memo_sp_attention_tensors* t, const step_buffers* b,
                                  int is_backward, memo_error* error) {
    const memo_copy_kind ON_DEVICE = MEMO_COPY_ON_DEVICE;
    /* Stands for writing the inputs of forward, and for swapping them back for backward.  The
     * contents are there already, so the tensors are copied away and back. */
    const void* const tensors[] = {t->k, t->v, t->saved};
    const int64_t n_bytes[] = {b->k_bytes, b->v_bytes, is_backward ? b->saved_bytes : 0};
    for (int i = 0; i < 3; i++) {
        if (!n_bytes[i]) continue;
        if (memo_copy(device, stream, ON_DEVICE, b->made, tensors[i], n_bytes[i], error) ||
            memo_copy(device, stream, ON_DEVICE, (void*)(uintptr_t)tensors[i], b->made, n_bytes[i],
                      error))
            return error->status;
    }
    memo_status status = (is_backward ? memo_sp_attention_backward
                                      : memo_sp_attention_forward)(attention, exchange, t, error);
    if (status) return status;
    if (!is_backward)
        return memo_copy(device, stream, ON_DEVICE, b->used, t->out, b->out_bytes, error);
    status = memo_copy(device, stream, ON_DEVICE, b->used, t->d_k, b->k_bytes, error);
    return status ? status
                  : memo_copy(device, stream, ON_DEVICE, b->used, t->d_v, b->v_bytes, error);
}

/* Query heads of a rank's group g of n, as of rank u n + g of ud n. */
static int64_t group_q_heads(const attention_case* c, int32_t ulysses_rank, int32_t n, int32_t g) {
    const int64_t owner = (int64_t)ulysses_rank * n + g, all = (int64_t)c->ulysses * n;
    int64_t n_heads = 0;
    for (int64_t h = 0; h < c->n_q_heads; h++)
        n_heads += owner * c->n_q_heads / all <= h && h < (owner + 1) * c->n_q_heads / all;
    return n_heads;
}

static int32_t groups_of(const attention_case* c) {
    return c->ulysses > 1 && c->ulysses_groups > 1 ? c->ulysses_groups : 1;
}
/* As many groups as divide the heads of each rank. */
static inline void settle_groups(attention_case* c) {
    while (c->ulysses_groups > 1 && c->n_q_heads % (c->ulysses * c->ulysses_groups))
        c->ulysses_groups--;
}
/* The keys that each query sees, pair by pair.  A query that sees none is between others. */
static void intervals_of_case(const attention_case* c, int64_t* first, int64_t* end) {
    for (int64_t q = 0, k; q < c->n_tokens; q++) {
        for (k = 0; k < keys_of(c) && !is_visible(c, q, k);) k++;
        first[q] = k < keys_of(c) ? k : q ? end[q - 1] : 0;
        while (k < keys_of(c) && is_visible(c, q, k)) k++;
        end[q] = k < keys_of(c) || is_visible(c, q, k - 1) ? k : first[q];
        for (; k < keys_of(c); k++)
            CHECK_CASE(!is_visible(c, q, k), "query %d sees key %d", (int)q, (int)k);
    }
}

/* The mask of a sequence of a case; made_mask_free frees it. */
static memo_mask mask_of_case(const attention_case* c) {
    memo_mask_desc desc = MEMO_ZERO(memo_mask_desc);
    if (c->key_first) return made_intervals(c->key_first, c->key_end, c->n_tokens, keys_of(c));
    if (c->has_intervals || c->has_prefixes || (c->n_keys && c->n_documents && !c->first_query)) {
        int64_t* ends = (int64_t*)calloc((size_t)(2 * c->n_tokens), 8);
        memo_mask mask;
        intervals_of_case(c, ends, ends + c->n_tokens);
        mask = made_intervals(ends, ends + c->n_tokens, c->n_tokens, keys_of(c));
        free(ends);
        return mask;
    }
    desc.kind = c->mask;
    desc.n_tokens = c->n_tokens;
    desc.n_keys = keys_of(c);
    if (c->first_query > 0) desc.first_query = c->first_query;
    desc.window_before = c->window;
    desc.n_first_keys = c->first_keys;
    desc.window_after = c->window_after < 0 ? 0 : c->window_after ? c->window_after : c->window;
    if (c->n_documents) {
        desc.document_begins = c->document_begins;
        desc.n_documents = c->n_documents;
        if (c->has_tree) desc.document_parents = c->parents;
    }
    return made_mask(&desc);
}

/* Of the queries, or of keys of their own. */
static memo_status sharding_of_rows(const attention_case* c, int is_of_own_keys,
                                    memo_sharding* sharding, memo_error* error) {
    memo_sharding_desc desc = MEMO_ZERO(memo_sharding_desc);
    desc.kind = is_of_own_keys ? c->key_sharding : c->sharding;
    desc.ring = c->ring;
    desc.ulysses = c->ulysses;
    desc.n_tokens = is_of_own_keys ? c->n_keys : c->n_tokens;
    desc.slice_tokens = desc.kind <= MEMO_SHARDING_PLAIN ? c->slice_tokens : 0;
    if (desc.kind == MEMO_SHARDING_DOCUMENTS) { /* of the case, which stays */
        desc.document_begins = is_of_own_keys ? c->key_begins : c->document_begins;
        desc.n_documents = c->n_documents;
        desc.document_parents = c->has_tree ? c->parents : NULL;
    }
    return keep_sharding(&desc, sharding, error);
}
static memo_status sharding_of_case(const attention_case* c, memo_sharding* sharding,
                                    memo_error* error) {
    return sharding_of_rows(c, 0, sharding, error);
}
static memo_status key_sharding_of_case(const attention_case* c, memo_sharding* sharding,
                                        memo_error* error) {
    return sharding_of_rows(c, c->n_keys != 0, sharding, error);
}

/* An exchange of the ring sends no bytes that it has not announced to read. */
static void check_announced(const memo_schedule* recorded) {
    for (int64_t i = 0; i < recorded->n_ops; i++) {
        const memo_op* op = &recorded->ops[i];
        const memo_range* reads = recorded->ranges + op->first_range;
        const char* name = memo_schedule_op_name(recorded, i);
        uint64_t n_bytes = 0;
        if (!strstr(name, " exchange") && strcmp(name, "scatter gradients")) continue;
        for (int64_t k = 0; k < op->n_reads; k++) n_bytes += reads[k].end - reads[k].begin;
        CHECK_CASE((uint64_t)op->link_bytes <= n_bytes, "%s sends %lld bytes, reads %lld", name,
                   (long long)op->link_bytes, (long long)n_bytes);
    }
}

/* Two waits order what the schedule does not show: the end of a pass that only returns gradients
 * waits so that the caller may free the scratch memory, and an exchange that begins a pass on its
 * stream and only receives waits for whatever used the buffers before. */
static int is_border_wait(const memo_schedule* recorded, int64_t wait) {
    const int is_end = recorded->ops[wait].stream == 0;
    int64_t i = wait;
    while (i >= 0 && i < recorded->n_ops) {
        i += is_end ? 1 : -1;
        if (i < 0 || i == recorded->n_ops) break;
        if (!strcmp(memo_schedule_op_name(recorded, i), "on device")) break;
        if (is_end ? strstr(memo_schedule_op_name(recorded, i), "ring exchange") != NULL
                   : recorded->ops[i].kind == MEMO_OP_RUN &&
                         recorded->ops[i].stream == recorded->ops[wait].stream)
            return 0;
    }
    return is_end || recorded->ops[wait + 1].n_reads == 0;
}

/* What returns is added behind the first part of own keys, which may be of another sequence. */
static int is_wait_of_sums(const memo_schedule* recorded, int64_t wait) {
    return wait + 2 < recorded->n_ops && recorded->ops[wait + 1].n_reads == 0 &&
           !strcmp(memo_schedule_op_name(recorded, wait + 2), "add packed");
}

/* What one rank has recorded has no race, and no wait too many. */
static void check_schedule(memo_recorder* recorder, const attention_case* c) {
    memo_schedule* recorded = NULL;
    memo_check* check = NULL;
    memo_error error;
    CHECK_OK(memo_recorder_get_schedule(recorder, &recorded, &error));
    CHECK_IS(recorded->n_streams, ==, 1 + (c->ring > 1) + (groups_of(c) > 1) + (c->nodes > 1));
    check_announced(recorded);
    CHECK_OK(memo_schedule_check(recorded, &check, &error));
    CHECK_CASE(check->n_races == 0, "%d races, the first between ops %d (%s) and %d (%s)",
               (int)check->n_races, (int)check->races[0].first,
               memo_schedule_op_name(recorded, check->races[0].first), (int)check->races[0].second,
               memo_schedule_op_name(recorded, check->races[0].second));
    CHECK_IS(check->n_unrecorded_waits, ==, 0);
    for (int64_t k = 0; k < check->n_redundant_waits; k++)
        CHECK_CASE(is_border_wait(recorded, check->redundant_waits[k]) ||
                       (c->others && is_wait_of_sums(recorded, check->redundant_waits[k])),
                   "wait %d of %d is op %d", (int)k, (int)check->n_redundant_waits,
                   (int)check->redundant_waits[k]);
    memo_check_destroy(check);
}

/* The tensors of a layer, in the order of the enum. */
static memo_sp_attention_tensors tensors_of(char* const at[N_TENSORS], void* lse, void* saved) {
    memo_sp_attention_tensors t = MEMO_ZERO(memo_sp_attention_tensors);
    t.q = at[Q];
    t.k = at[K];
    t.v = at[V];
    t.out = at[OUT];
    t.lse = (float*)lse;
    t.saved = saved;
    t.d_out = at[D_OUT];
    t.d_q = at[D_Q];
    t.d_k = at[D_K];
    t.d_v = at[D_V];
    return t;
}

static void wait_for_all(world* all) {
    if (!all->is_alone) pthread_barrier_wait(&all->barrier);
}

/* Group by group of heads; those of slices and beside sinks are not. */
static int lses_of_padding_are_none(const attention_case* c, const run_result* result,
                                    const memo_sharding* sharding, const float* lses) {
    const int64_t n_rows = c->n_batch * sharding->ring_tokens;
    const int32_t n_groups = groups_of(c);
    int64_t n_wrong = 0;
    for (int32_t g = 0; g < n_groups && !c->has_sinks && !sharding->slice_tokens; g++) {
        const int64_t n_heads = group_q_heads(c, result->ulysses_rank, n_groups, g);
        for (int64_t i = 0; i < n_rows; i++) {
            const int64_t row = i % sharding->ring_tokens;
            const int32_t holder =
                result->ring_rank * c->ulysses + (int32_t)(row / sharding->local_tokens);
            if (memo_sharding_position(sharding, holder, row % sharding->local_tokens) <
                c->n_tokens)
                continue;
            for (int64_t h = 0; h < n_heads; h++) n_wrong += lses[i * n_heads + h] != -INFINITY;
        }
        lses += n_rows * n_heads;
    }
    return n_wrong == 0;
}

/* Without device, stream, shardings and attention. */
static memo_sp_attention_desc desc_of_case(const attention_case* c, const memo_mesh* mesh,
                                           latent_args* latent) {
    memo_sp_attention_desc desc = MEMO_ZERO(memo_sp_attention_desc);
    desc.ring = mesh->ring;
    desc.ulysses = mesh->ulysses;
    desc.nodes = mesh->nodes;
    desc.n_batch = c->n_batch;
    desc.n_masks = c->others ? c->n_batch : 0;
    for (int32_t b = 0; b < c->n_batch; b++)
        desc.has_levels |= case_of_row(c, b)->has_tree || case_of_row(c, b)->first_keys;
    desc.n_q_heads = c->n_q_heads;
    desc.n_kv_heads = c->n_kv_heads;
    desc.head_size = c->head_size;
    desc.v_head_size = c->v_head_size;
    desc.softcap = (float)c->softcap;
    desc.type = c->type;
    desc.sends_again = c->sends_again;
    desc.rounds_gradients = c->rounds_gradients;
    desc.ulysses_groups = c->ulysses_groups;
    desc.latent.size = c->latent_size;
    desc.latent.n_heads = c->latent_heads;
    desc.latent.expand = latent_expand;
    desc.latent.reduce = latent_reduce;
    desc.latent.user = latent;
    return desc;
}

/* Copies a rank's rows from whole tensors to its share, or back; padding of a share is 0. */
static void move_rows(const memo_sharding* sharding, int32_t rank, int64_t n_batch,
                      int64_t row_bytes, char* all, char* share, int is_back) {
    for (int64_t i = 0; i < n_batch * sharding->local_tokens; i++, share += row_bytes) {
        const int64_t at = memo_sharding_position(sharding, rank, i % sharding->local_tokens);
        char* there = all + (i / sharding->local_tokens * sharding->n_tokens + at) * row_bytes;
        if (at < sharding->n_tokens)
            memcpy(is_back ? there : share, is_back ? share : there, (size_t)row_bytes);
        else if (!is_back)
            memset(share, 0, (size_t)row_bytes);
    }
}
static void scatter_rows(const memo_sharding* sharding, int32_t rank, int64_t n_batch,
                         int64_t row_bytes, const void* all, void* share) {
    move_rows(sharding, rank, n_batch, row_bytes, (char*)(uintptr_t)all, (char*)share, 0);
}
static void gather_rows(const memo_sharding* sharding, int32_t rank, int64_t n_batch,
                        int64_t row_bytes, const void* share, void* all) {
    move_rows(sharding, rank, n_batch, row_bytes, (char*)all, (char*)(uintptr_t)share, 1);
}

/* host: of the local attention; device: the same, or a recorder on it. */
static memo_status rank_steps(world* all, int32_t rank, memo_device* host, memo_device* device,
                              memo_stream stream, memo_recorder* recorder, memo_mesh* mesh,
                              memo_error* error) {
    const attention_case* c = all->c;
    run_result* result = &all->results[rank];
    int64_t n_local[N_TENSORS], row_bytes[N_TENSORS], element_bytes = memo_type_bytes(c->type),
                                                      share_bytes;
    host_attention state = {host, 0};
    biased_attention biased = {host, c->first_query > 0 ? c->first_query : 0};
    memo_sp_attention_tensors tensors, other;
    memo_sp_attention* attention = NULL;
    memo_exchange_desc exchange_desc = MEMO_ZERO(memo_exchange_desc);
    memo_exchange* exchange = NULL;
    memo_mask masks[MAX_BATCH];
    memo_sharding sharding, key_sharding;
    memo_status status = MEMO_STATUS_OK;
    latent_args latent = {all, result, host, MEMO_ZERO(memo_latent_block), 0, 0};
    char *share[N_TENSORS], *other_share[N_TENSORS];
    void *lse = NULL, *saved = NULL, *other_lse = NULL, *other_saved = NULL;
    float* sinks = NULL;  /* and their gradients */
    char* scratch = NULL; /* the caller's, if the host cannot access memory of the device */
    step_buffers buffers;
    int64_t largest_bytes = 0;

    /* Masks, shardings, and the desc. */
    for (int32_t b = 0; b < c->n_batch; b++) masks[b] = mask_of_case(case_of_row(c, b));
    if (sharding_of_case(c, &sharding, error) || key_sharding_of_case(c, &key_sharding, error))
        return error->status;
    memo_sp_attention_desc desc = desc_of_case(c, mesh, &latent);
    desc.device = device;
    desc.stream = stream;
    desc.sharding = sharding;
    if (c->n_keys) desc.key_sharding = key_sharding;
    latent.fails = rank == all->failing_rank ? all->fails_latent : 0;
#ifdef CASE_ATTENTION
    desc.attention = CASE_ATTENTION(&desc, host);
#else
    desc.attention = host_attention_functions(&state);
    if (c->launches) {
        desc.attention.forward = launched_forward;
        desc.attention.backward = launched_backward;
        desc.attention.launches = c->launches;
    }
#endif
    if (rank == all->failing_rank && !all->fails_latent) desc.attention.forward = failing_attention;
    if (c->has_slopes) {
        desc.attention.forward = biased_forward;
        desc.attention.backward = biased_backward;
        desc.attention.user = &biased;
    }
    watched_attention watched = {desc.attention, result, c->is_poisoned ? host : NULL};
    desc.attention.forward = watched_forward;
    desc.attention.backward = watched_backward;
    desc.attention.user = &watched;
    memset(result->d_latent_weights, 0, sizeof result->d_latent_weights);
    result->most_latent_heads = 0;
    result->ring_rank = mesh->ring->rank;
    result->ulysses_rank = mesh->ulysses->rank;
    status = memo_sp_attention_desc_get_sizes(&desc, &result->sizes, error);
    if (!status && (all->is_alone || c->is_poisoned)) {
        scratch = (char*)CASE_CALLOC((size_t)result->sizes.device_bytes + 512, 1);
        desc.device_memory = (void*)(((uintptr_t)scratch + 511) / 512 * 512);
        if (c->is_poisoned)
            memset(desc.device_memory, 0xff, (size_t)result->sizes.device_bytes); /* NaN */
    }
    result->device_bytes = -memo_host_device_get_stats(device).device_bytes;
    if (!status) status = memo_sp_attention_create(&desc, &attention, error);
    if (status) return status;
    result->device_bytes += memo_host_device_get_stats(device).device_bytes;

    /* The rank's shares of the tensors. */
    for (int t = 0; t < N_TENSORS; t++) {
        row_bytes[t] = all->w->n_heads[t] * all->w->head_size[t] * element_bytes;
        n_local[t] = (is_of_keys(t) ? &key_sharding : &sharding)->local_tokens;
        share_bytes = c->n_batch * n_local[t] * row_bytes[t];
        if (share_bytes > largest_bytes) largest_bytes = share_bytes;
        share[t] = (char*)CASE_CALLOC((size_t)share_bytes, 1);
        if (is_result(t)) other_share[t] = (char*)CASE_CALLOC((size_t)share_bytes, 1);
        memset(share[t], 0x7f, (size_t)share_bytes);
        for (int32_t b = 0; b < c->n_batch && !is_result(t); b++) {
            const memo_sharding* own = is_of_keys(t) ? &key_sharding : &sharding;
            char* to = share[t] + b * n_local[t] * row_bytes[t];
            scatter_rows(own, mesh->sequence_rank, 1, row_bytes[t],
                         all->w->typed[t] + b * all->w->n_tokens[t] * row_bytes[t], to);
            for (int64_t row = 0; row < n_local[t]; row++) /* nobody writes padding */
                if (memo_sharding_position(own, mesh->sequence_rank, row) >= all->w->n_tokens[t])
                    memset(to + row * row_bytes[t], 0xff, (size_t)row_bytes[t]); /* NaN */
        }
    }
    buffers.k_bytes = c->n_batch * n_local[K] * row_bytes[K];
    buffers.v_bytes = c->n_batch * n_local[V] * row_bytes[V];
    buffers.out_bytes = c->n_batch * sharding.local_tokens * row_bytes[OUT];
    buffers.saved_bytes = result->sizes.saved_bytes;
    buffers.made = (char*)CASE_CALLOC((size_t)(largest_bytes + buffers.saved_bytes), 1);
    buffers.used = (char*)CASE_CALLOC((size_t)largest_bytes, 1);
    lse = CASE_CALLOC((size_t)result->sizes.lse_bytes + 1, 1);
    saved = CASE_CALLOC((size_t)result->sizes.saved_bytes + 1, 1);
    other_lse = CASE_CALLOC((size_t)result->sizes.lse_bytes + 1, 1);
    other_saved = CASE_CALLOC((size_t)result->sizes.saved_bytes + 1, 1);
    tensors = tensors_of(share, lse, saved);
    if (c->latent_size) tensors.v = tensors.d_v = NULL;
    if (c->overwrites) {
        tensors.d_k = share[K];
        tensors.d_v = share[V];
    }
    if (c->has_sinks) {
        sinks = (float*)(void*)CASE_CALLOC(2 * MAX_HEADS, sizeof(float));
        memcpy(sinks, all->w->sinks, sizeof all->w->sinks);
        tensors.sinks = sinks;
        tensors.d_sinks = sinks + MAX_HEADS;
        for (int32_t k = 0; k < MAX_HEADS; k++) tensors.d_sinks[k] = 99; /* backward sets them */
    }
    /* The other layer has the same numbers in other roles, which takes one head size. */
    other_share[Q] = share[D_OUT];
    other_share[K] = share[V];
    other_share[V] = share[K];
    other_share[D_OUT] = share[Q];
    other = tensors_of(other_share, other_lse, other_saved);

    /* The steps. */
    exchange_desc.masks = masks;
    if (c->launches && c->launches != MEMO_LAUNCHES_VARLEN) { /* the caller's memory is enough */
        int64_t n_segments = 0;
        for (int32_t b = 0; b < (c->others ? c->n_batch : 1); b++)
            n_segments += masks[b].n_segments;
        exchange_desc.device_bytes = memo_exchange_device_bytes(&desc, n_segments);
        exchange_desc.device_memory = CASE_CALLOC((size_t)exchange_desc.device_bytes, 1);
    }
    exchange_desc.has_sinks = c->has_sinks;
    status = memo_exchange_create(attention, &exchange_desc, &exchange, error);
    if (recorder) memo_recorder_resume(recorder);
    wait_for_all(all); /* nobody creates any more */
    result->n_mallocs = __atomic_load_n(&malloc_count, __ATOMIC_RELAXED);
    for (int32_t k = 0; k < all->n_repeats && !status; k++) {
        int64_t ring_bytes = mesh->ring->sent_bytes, ulysses_bytes = mesh->ulysses->sent_bytes;
        status = attention_step(device, stream, attention, exchange, &tensors, &buffers, 0, error);
        result->ring_forward_bytes = mesh->ring->sent_bytes - ring_bytes;
        result->ulysses_forward_bytes = mesh->ulysses->sent_bytes - ulysses_bytes;
        if (all->has_two_layers && !status)
            status = memo_sp_attention_forward(attention, exchange, &other, error);
        if (all->has_two_layers && !status)
            status = memo_sp_attention_backward(attention, exchange, &other, error);
        ring_bytes = mesh->ring->sent_bytes;
        ulysses_bytes = mesh->ulysses->sent_bytes;
        if (!status)
            status =
                attention_step(device, stream, attention, exchange, &tensors, &buffers, 1, error);
        result->ring_backward_bytes = mesh->ring->sent_bytes - ring_bytes;
        result->ulysses_backward_bytes = mesh->ulysses->sent_bytes - ulysses_bytes;
    }
    if (recorder) memo_recorder_pause(recorder);
    if (status && rank == all->failing_rank) memo_comm_abort(mesh->world);
    if (status)
        IGNORE(memo_stream_synchronize(device, stream, NULL));
    else
        status = memo_stream_synchronize(device, stream, error);
    wait_for_all(all);
    result->n_mallocs = __atomic_load_n(&malloc_count, __ATOMIC_RELAXED) - result->n_mallocs;
    result->n_scores = state.n_scores;
    if (!status && recorder) check_schedule(recorder, c);
    if (!status && !lses_of_padding_are_none(c, result, &sharding, (const float*)lse))
        status = memo_error_set(error, MEMO_STATUS_DEVICE, "the LSE of padding is not -inf");

    /* Results go to the whole tensors. */
    if (c->overwrites) {
        memcpy(share[D_K], share[K], (size_t)buffers.k_bytes);
        memcpy(share[D_V], share[V], (size_t)buffers.v_bytes);
    }
    for (int t = 0; t < N_TENSORS; t++) {
        int64_t n_wrong = 0;
        for (int32_t b = 0; b < c->n_batch && !status && is_result(t); b++) {
            const memo_sharding* own = is_of_keys(t) ? &key_sharding : &sharding;
            const char* rows = share[t] + b * n_local[t] * row_bytes[t];
            gather_rows(own, mesh->sequence_rank, 1, row_bytes[t], rows,
                        all->w->typed[t] + b * all->w->n_tokens[t] * row_bytes[t]);
            for (int64_t row = 0; row < n_local[t]; row++) /* padding has output and gradient 0 */
                if (memo_sharding_position(own, mesh->sequence_rank, row) >= all->w->n_tokens[t])
                    for (int64_t i = 0; i < row_bytes[t]; i++)
                        n_wrong += rows[row * row_bytes[t] + i] != 0;
        }
        if (n_wrong)
            status = memo_error_set(error, MEMO_STATUS_DEVICE, "padding is not 0 in tensor %d", t);
        /* Rows of ranks in other processes are 0 here. */
        if (!status && all->is_alone && is_result(t))
            status = memo_all_reduce(mesh->world, stream, all->w->typed[t], all->w->typed[t],
                                     all->w->n[t], c->type, MEMO_REDUCTION_SUM, error);
        if (!status && all->is_alone) status = memo_stream_synchronize(device, stream, error);
        CASE_FREE(share[t]);
        if (is_result(t)) CASE_FREE(other_share[t]);
    }
    if (!status && sinks && all->is_alone) {
        status = memo_all_reduce(mesh->world, stream, tensors.d_sinks, tensors.d_sinks, MAX_HEADS,
                                 MEMO_TYPE_F32, MEMO_REDUCTION_SUM, error);
        if (!status) status = memo_stream_synchronize(device, stream, error);
    }
    if (sinks) memcpy(result->d_sinks, tensors.d_sinks, sizeof result->d_sinks);
    memo_exchange_destroy(exchange);
    memo_sp_attention_destroy(attention);
    if (exchange_desc.device_memory) CASE_FREE(exchange_desc.device_memory);
    CASE_FREE(sinks);
    CASE_FREE(scratch);
    CASE_FREE(lse);
    CASE_FREE(saved);
    CASE_FREE(other_lse);
    CASE_FREE(other_saved);
    CASE_FREE(buffers.made);
    CASE_FREE(buffers.used);
    for (int32_t b = 0; b < c->n_batch; b++) made_mask_free(&masks[b]);
    return status;
}

/* A rank of the case, with its device, a stream on it, and its communicator of all ranks. */
static memo_status rank_run(world* all, int32_t rank, memo_device* host, memo_stream stream,
                            memo_comm* comm, memo_error* error) {
    memo_mesh_desc mesh_desc = MEMO_ZERO(memo_mesh_desc);
    memo_recorder_desc recorder_desc = MEMO_ZERO(memo_recorder_desc);
    memo_recorder* recorder = NULL;
    memo_device* device = host;
    memo_mesh* mesh = NULL;
    memo_status status = MEMO_STATUS_OK;
    mesh_desc.ring = all->c->ring;
    mesh_desc.ulysses = all->c->ulysses;
    mesh_desc.nodes = all->c->nodes;
    if (rank == all->recorded_rank || all->recorded_rank == ALL_RANKS) {
        recorder_desc.device = host;
        status = memo_recorder_create(&recorder_desc, &recorder, error);
        if (recorder) {
            device = memo_recorder_get_device(recorder);
            status = memo_recorder_name_stream(recorder, stream, "compute", error);
            memo_recorder_pause(recorder);
        }
    }
    if (!status) status = memo_mesh_create(comm, &mesh_desc, &mesh, error);
    if (!status && all->n_late &&
        (all->late_ring_rank == ALL_RANKS || all->late_ring_rank == mesh->ring_rank)) {
        make_late(all, mesh->ring, host);
        make_late(all, mesh->ulysses, host);
        make_late(all, mesh->nodes, host);
    }
    if (!status) status = rank_steps(all, rank, host, device, stream, recorder, mesh, error);
    if (status && all->failing_rank < 0) printf("# rank %d: %s\n", (int)rank, error->message);
    all->results[rank].status = status;
    memo_mesh_destroy(mesh);
    memo_recorder_destroy(recorder);
    return status;
}

/* Runs rank_run for the ranks of this process; returns 1 if all succeeded. */
static int world_run(world* all);

#ifdef THREAD_RANKS_H
static memo_status thread_rank_run(thread_rank* r, memo_error* error) {
    return rank_run((world*)r->user, r->comm->rank, r->device, r->stream, r->comm, error);
}
static int world_run(world* all) {
    const int32_t n_ranks = all->c->ring * all->c->ulysses;
    memo_error error;
    pthread_barrier_init(&all->barrier, NULL, (unsigned)n_ranks);
    memo_host_device_desc device_desc = MEMO_ZERO(memo_host_device_desc);
    memo_comm_threads_desc comm_desc = MEMO_ZERO(memo_comm_threads_desc);
    comm_desc.are_peers = all->c->are_peers;
    memo_status status =
        thread_ranks_run_on(&device_desc, &comm_desc, n_ranks, thread_rank_run, all, &error);
    pthread_barrier_destroy(&all->barrier);
    return !status;
}
#endif

static void world_init(world* all, const attention_case* c, whole* w) {
    IN_CASE("%s", case_text(c));
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

/* The gradients of all ranks together are those of the reference; a rank without a head's rows has
 * 0. */
static void expect_sinks(const attention_case* c, const whole* w, const world* all, double bound) {
    double off = 0;
    int32_t u;
    for (int32_t h = 0; h < c->n_q_heads; h++) {
        double sum = 0;
        for (int32_t r = 0; r < c->ring * c->ulysses; r++) {
            const memo_ulysses_heads* own = &all->results[r].sizes.heads;
            if (all->is_alone && r != all->own_rank) continue;
            sum += all->results[r].d_sinks[h];
            u = h >= own->first_q && h < own->first_q + own->n_q;
            if (!u && !all->is_alone) CHECK_IS(all->results[r].d_sinks[h], ==, 0);
        }
        off = hypot(off, sum - w->d_sinks[h]);
    }
    off /= w->d_sinks_norm > 0 ? w->d_sinks_norm : 1;
    CHECK_IS(off, <=, bound);
    if (off > worst_gradient) worst_gradient = off;
}

/* Those of all ranks together. */
static void expect_latent_weights(const attention_case* c, const whole* w, const world* all,
                                  double bound) {
    const int64_t n = c->latent_size * c->n_kv_heads * both_sizes(c);
    double off = 0, norm = 0;
    CHECK_IS(n, <=, MAX_LATENT);
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int32_t r = 0; r < c->ring * c->ulysses; r++)
            sum += all->results[r].d_latent_weights[i] / all->n_repeats;
        off = hypot(off, sum - w->d_latent_weights[i]);
        norm = hypot(norm, w->d_latent_weights[i]);
    }
    CHECK_IS(off, <=, bound * norm);
}

static void expect_right(const attention_case* c, double forward_bound, double gradient_bound,
                         world* all) {
    static world scratch;
    whole w;
    whole_create(&w, c);
    reference_run(c, &w);
    if (!all) all = &scratch;
    if (all == &scratch) world_init(all, c, &w);
    all->c = c;
    all->w = &w;
    CHECK(world_run(all));
    if (c->step > 0) /* a sum of d_s that is 0, times 1e5: fp32 knows nothing of it */
        for (int t = 0; t < w.n[D_Q]; t += c->head_size) {
            typed_set(w.typed[D_Q], t, c->type, 0);
            w.reference[D_Q][t] = 0;
        }
    if (c->huge > 0) /* finite, but nothing else would show beside it */
        for (int t = 0; t < w.n[D_K]; t += c->head_size) {
            CHECK_IS(fabs(typed_at(w.typed[D_K], t, c->type)), <=, 1e3 * c->huge);
            typed_set(w.typed[D_K], t, c->type, 0);
            w.reference[D_K][t] = 0;
        }
    for (int t = OUT; t < N_TENSORS; t++) {
        double error = t == D_OUT ? 0 : error_of(c, &w, t);
        double bound = t == OUT ? forward_bound : gradient_bound;
        double* worst = t == OUT ? &worst_forward : &worst_gradient;
        CHECK_CASE(error <= bound, "%s is off by %.3g", tensor_names[t], error);
        if (error > *worst) *worst = error;
    }
    /* A row dot of an output rounded to 16 bits may be small beside what it sums. */
    if (c->has_sinks) expect_sinks(c, &w, all, (c->type == MEMO_TYPE_F32 ? 1 : 2) * gradient_bound);
    if (c->latent_size) expect_latent_weights(c, &w, all, gradient_bound);
    whole_destroy(&w);
}

static void expect_exact(const attention_case* c) { expect_right(c, 2e-6, 5e-6, NULL); }
/* fp32 is exact; these bounds are of 16 bits. */
static void expect_close(const attention_case* c, double forward_bound, double gradient_bound,
                         world* all) {
    const int is_16 = c->type != MEMO_TYPE_F32;
    expect_right(c, is_16 ? forward_bound : 2e-6, is_16 ? gradient_bound : 5e-6, all);
}

static void report_worst(void) {
    printf("# worst relative RMS error: output %.2g, gradients %.2g\n", worst_forward,
           worst_gradient);
    worst_forward = worst_gradient = 0;
}

/* ---- a rank whose desc, sharding, mask or pass differs ---- */

typedef struct disagreement {
    const char* field; /* what the error must name */
    int32_t ring, ulysses;
    memo_sharding_kind sharding;
    int32_t odd_rank; /* -1: none */
    int32_t is_later; /* after a pass of an exchange that all ranks made alike */
} disagreement;

/* Some ways to exchange do not use the field. */
static inline int disagreement_is_possible(const disagreement* p) {
    return strstr(p->field, "rounds_gradients") ? p->ring > 1
           : strstr(p->field, "ulysses_groups") ? p->ulysses > 1
                                                : 1;
}

static inline memo_status no_latent(void* user, memo_stream stream, const memo_latent_block* rows,
                                    memo_error* error) {
    (void)user, (void)stream, (void)rows, (void)error;
    return MEMO_STATUS_OK;
}

/* The work of a rank: two passes, which fail on every rank if there is an odd one. */
static inline void disagreement_run(const disagreement* p, memo_device* device, memo_stream stream,
                                    memo_comm* comm) {
    enum { N_TOKENS = 24, N_HEADS = 8, SIZE = 4, N = 4 * N_TOKENS * N_HEADS * SIZE };
    static const int64_t documents[][4] = {
        {0, 7, 12, N_TOKENS}, {0, 6, 12, N_TOKENS}, {0, 7, 12, N_TOKENS - 1}};
    float* memory = (float*)CASE_CALLOC(12 * N + 2 * N_HEADS, sizeof(float));
    const int is_odd = comm->rank == p->odd_rank;
#define IS_ODD(text) (is_odd && strstr(p->field, text) != NULL)
    memo_sharding_desc sharding = MEMO_ZERO(memo_sharding_desc);
    memo_sharding rows[2];
    memo_sp_attention_desc desc = MEMO_ZERO(memo_sp_attention_desc);
    char* at[N_TENSORS];
    memo_sp_attention* attention = NULL;
    memo_exchange_desc exchange_desc = MEMO_ZERO(memo_exchange_desc);
    memo_exchange* exchange = NULL;
    memo_mask_desc mask_desc = MEMO_ZERO(memo_mask_desc);
    memo_mask mask;
    host_attention state = {device, 0};
    memo_error error;
    sharding.kind = p->sharding;
    sharding.ring = p->ring;
    sharding.ulysses = p->ulysses;
    sharding.n_tokens = N_TOKENS;
    mask_desc.n_tokens = N_TOKENS;
    mask_desc.window_before = IS_ODD("masks") ? 9 : 10;
    mask_desc.document_begins = documents[0];
    mask_desc.n_documents = 3;
    if (p->sharding == MEMO_SHARDING_DOCUMENTS) {
        sharding.document_begins = documents[0];
        sharding.n_documents = 3;
    }
    memo_status status = keep_sharding(&sharding, &rows[0], &error);
    desc.sharding = rows[0];
    if (IS_ODD("exchange_desc.sharding")) sharding.document_begins = documents[1];
    if (IS_ODD("key_sharding")) sharding.n_tokens--;
    if (!status) status = keep_sharding(&sharding, &rows[1], &error);
    if (p->sharding == MEMO_SHARDING_DOCUMENTS) exchange_desc.sharding = &rows[1];
    if (strstr(p->field, "key_sharding")) {
        desc.key_sharding = rows[1];
        mask_desc.document_begins = NULL;
        mask_desc.n_keys = rows[1].n_tokens;
    }
    mask = made_mask(&mask_desc);
    desc.device = device;
    desc.stream = stream;
    desc.ring = p->ring > 1 ? comm : NULL;
    desc.ulysses = p->ulysses > 1 ? comm : NULL;
    desc.type = strstr(p->field, "rounds_gradients") ? MEMO_TYPE_BF16 : MEMO_TYPE_F32;
    desc.n_q_heads = N_HEADS;
    desc.n_kv_heads = IS_ODD("n_kv_heads") ? 2 : N_HEADS;
    desc.head_size = SIZE;
    if (IS_ODD("n_batch")) desc.n_batch = 2;
    desc.scale = IS_ODD("scale") ? 0.5f : 0.25f;
    desc.softcap = IS_ODD("softcap") ? 30 : 0;
    desc.rounds_gradients = IS_ODD("rounds_gradients");
    desc.sends_again = IS_ODD("sends_again");
    desc.ulysses_groups = IS_ODD("ulysses_groups") ? 2 : 1;
    desc.latent.size = IS_ODD("latent") ? SIZE : 0;
    desc.latent.expand = desc.latent.reduce = no_latent;
    desc.attention = host_attention_functions(&state);
    for (int t = 0; t < N_TENSORS; t++) at[t] = (char*)(memory + t * N);
    memo_sp_attention_tensors own = tensors_of(at, memory + 8 * N, memory + 9 * N);
    exchange_desc.masks = &mask;
    exchange_desc.has_sinks = IS_ODD("sinks");
    if (!status && p->is_later) {
        memo_mask first;
        memo_exchange_desc alike = exchange_desc;
        memo_exchange* before = NULL;
        mask_desc.window_before = 10;
        first = made_mask(&mask_desc);
        alike.masks = &first;
        alike.has_sinks = 0;
        status = memo_sp_attention_create(&desc, &attention, &error);
        if (!status) status = memo_exchange_create(attention, &alike, &before, &error);
        if (!status) status = memo_sp_attention_forward(attention, before, &own, &error);
        if (!status) status = memo_stream_synchronize(device, stream, &error);
        CHECK_CASE(!status, "%s: %s", p->field, status ? error.message : "");
        memo_exchange_destroy(before);
        made_mask_free(&first);
    }
    own.sinks = exchange_desc.has_sinks ? memory + 12 * N : NULL;
    if (!status && !attention) status = memo_sp_attention_create(&desc, &attention, &error);
    if (!status) status = memo_exchange_create(attention, &exchange_desc, &exchange, &error);
    /* A slow rank may receive the error of the second pass while it waits for the first. */
    for (int k = 0; k < 2 && !status; k++)
        status = (k && IS_ODD("_backward")
                      ? memo_sp_attention_backward
                      : memo_sp_attention_forward)(attention, exchange, &own, &error);
    memo_status ended = memo_stream_synchronize(device, stream, status ? NULL : &error);
    if (!status) status = ended;
    /* A back end may find it after the operation. */
    for (int k = 0; k < 500 && !status && p->odd_rank >= 0; k++) {
        const struct timespec ten_ms = {0, 10000000};
        nanosleep(&ten_ms, NULL);
        status = memo_comm_status(comm, &error);
    }
    if (p->odd_rank < 0)
        CHECK_CASE(!status, "%s: %s", p->field, status ? error.message : "");
    else
        CHECK_CASE(status == MEMO_STATUS_COMM && strstr(error.message, p->field),
                   "%s, ring %d, ulysses %d, rank %d: status %d, %s", p->field, (int)p->ring,
                   (int)p->ulysses, (int)comm->rank, (int)status, status ? error.message : "");
    memo_exchange_destroy(exchange);
    memo_sp_attention_destroy(attention);
    made_mask_free(&mask);
    CASE_FREE(memory);
#undef IS_ODD
}

#endif
