/* trainer.h - a small model for tests of sessions.  A layer has attention, a recurrence and an
 * expert, as far as its table has them, and is computed at once or in slices.  Its weights, and
 * those of a part before the first layer and behind the last, are states.
 *
 * Numbers are whole: a row is a hash of the rows that it is computed from, and gradients are sums
 * of hashes.  So they have the same bits in slices of any size, and plain arrays compute them too.
 *
 * Include after memo_plan.h and owned.h. */
#ifndef TRAINER_H
#define TRAINER_H

#include "uses.h"
#include "item_choices.h"
#include "trainer_words.h"

enum { T_WORDS = 6, T_ROW_BYTES = 8 * T_WORDS, T_ROWS_MAX = 96, T_LAYERS_MAX = 12 };
enum { T_STATE_WORDS_MAX = 600, T_DOCUMENT_ROWS = 11 /* no multiple of a slice */ };
enum { T_IN_FLIGHT_MAX = 3 }; /* micro-batches of an order */

enum { /* tensors; n_tensors = T_N_SHORT: a layer that only computes `hidden` */
       T_X,
       T_INPUT,
       T_HIDDEN,
       T_N_SHORT,
       T_K = T_N_SHORT,
       T_V,
       T_ATTENTION,
       T_MIDDLE,
       T_OUT,
       T_CARRIED,
       T_EXPERT,
       T_UP,
       T_N_TENSORS
};
static const struct {
    const char* name;
    int32_t away, scope, is;
    uint32_t sources; /* bit t: a row is computed from the same row of tensor t */
} t_table[T_N_TENSORS] = {{"x", MEMO_MOVE, MEMO_EDGE, 0, 0},
                          {"input", MEMO_MOVE, MEMO_INPUT, 0, 0},
                          {"hidden", MEMO_ROWS, 0, 0, 1u << T_INPUT},
                          {"k", MEMO_MOVE, MEMO_LAYER, 0, 1u << T_INPUT},
                          {"v", MEMO_MOVE, MEMO_LAYER, 0, 1u << T_INPUT},
                          {"attention", MEMO_WHOLE, 0, 0, 1u << T_HIDDEN},
                          {"middle", MEMO_ROWS, 0, 0, 1u << T_ATTENTION},
                          {"out", MEMO_ROWS, 0, 0, 1u << T_MIDDLE},
                          {"state", MEMO_MOVE, MEMO_CARRIED, 0, 0},
                          {"expert", MEMO_MOVE, 0, MEMO_LATE_ROWS, 0},
                          {"up", MEMO_ROWS, 0, MEMO_LATE_ROWS, 1u << T_EXPERT}};

enum { B_KEYS /* gradients of keys and values */, B_CARRIED, B_CARRIED_GRADIENT, T_N_BUFFERS };

enum { /* states; those of FIRST are used with layer 0, those of LAST in the last backward */
       S_WEIGHTS,
       S_GRADIENTS,
       S_MOMENTS,
       S_FROZEN,
       S_FIRST,
       S_FIRST_GRADIENTS,
       S_LAST,
       S_LAST_GRADIENTS,
       T_N_STATES
};

enum t_mistake {
    T_RIGHT,
    T_FORWARD_WRITES,   /* to weights */
    T_BACKWARD_WRITES,  /* to a frozen state */
    T_UPDATE_MISSES,    /* a layer */
    T_FORGETS_INPUT,    /* of layers behind the first */
    T_ZEROES_LAST,      /* gradients of keys, in the slice that the backward comes to last */
    T_ZEROES_EACH,      /* them in each slice */
    T_ROUTES_TOO_FEW,   /* says that the expert has a row less */
    T_FORGETS_TO_ROUTE, /* does not say how many */
    T_ROUNDS,           /* no mistake: sums of all rows at once are rounded elsewhere */
};

/* Sums over micro-batches. */
typedef struct t_sums {
    double layers[T_LAYERS_MAX][T_WORDS], input[T_WORDS]; /* gradients */
    double output;
} t_sums;

typedef struct trainer {
    memo_session_desc desc;
    memo_item tensors[T_N_TENSORS];
    memo_session_buffer buffers[T_N_BUFFERS];
    memo_state states[T_N_STATES];
    int32_t kinds[T_LAYERS_MAX];
    memo_shape shapes[2];
    memo_device* host; /* runs functions; NULL: the calling thread computes */
    uint64_t x[T_IN_FLIGHT_MAX][T_ROWS_MAX * T_WORDS]; /* between layers, without the tensor */
    memo_turn order[T_IN_FLIGHT_MAX * 2 * T_LAYERS_MAX];
    t_sums sums, plain_sums;
    int32_t n_recomputed, n_updates;
    int32_t waits;         /* 1: in each pass, so that late rows are the same in every run */
    int64_t number;        /* of the call's first micro-batch: each has other rows */
    uint64_t rate;         /* of this step; on the host: not used */
    const uint32_t* masks; /* (n_layers + 2): states of the plain trainer's step; NULL: all */
    int plain_is_alone;    /* it runs a forward of no backward */
    enum t_mistake mistake;
} trainer;

/* All of it in plain arrays. */
typedef struct t_plain {
    uint64_t rows[T_LAYERS_MAX][T_N_TENSORS][T_ROWS_MAX * T_WORDS];
    uint64_t buffers[T_N_BUFFERS][2 * T_ROWS_MAX * T_WORDS];
    uint64_t states[T_LAYERS_MAX + 2][T_N_STATES][T_STATE_WORDS_MAX];
} t_plain;

/* --- what a layer computes, on any arrays --- */

enum { T_FORWARD, T_EXPERTS, T_BACKWARD, T_RECOMPUTE, T_UPDATE, T_UPDATE_HOST };
typedef struct t_job {
    t_sums* sums;
    int32_t what, layer, n_layers, has_experts, mistake;
    int32_t is_alone;               /* a forward of no backward */
    int32_t shares;                 /* layers use the table of FIRST */
    int64_t begin, end, n_rows;     /* a slice of the rows of the micro-batch */
    int64_t number;                 /* of the micro-batch */
    int32_t tensor;                 /* to recompute */
    int64_t first, last;            /* rows of it */
    uint64_t rate;                  /* of an update */
    uint64_t* tensors[T_N_TENSORS]; /* NULL: absent, likewise */
    uint64_t* buffers[T_N_BUFFERS];
    uint64_t* states[T_N_STATES];
    int64_t n_words[T_N_STATES];
    uint32_t made; /* bit s: an update does not read state s */
} t_job;

static uint64_t t_mix_state(const t_job* j, int32_t state, uint64_t h) {
    return t_mix_words(h, j->states[state], j->n_words[state]);
}
static uint64_t t_mix_weights(const t_job* j, uint64_t h) {
    h = t_mix_state(j, S_FROZEN, t_mix_state(j, S_WEIGHTS, h + (uint64_t)j->layer));
    if (j->shares) h = t_mix_state(j, S_FIRST, h);
    return j->is_alone ? t_mix_state(j, S_MOMENTS, h) : h;
}

static void t_add_gradient(const t_job* j, int32_t state, uint64_t h) {
    t_add_words(j->states[state], j->n_words[state], h);
}

/* Row r of the slice; of the sequence, if later slices read it. */
static uint64_t* t_row(const t_job* j, int32_t t, int64_t r) {
    return j->tensors[t] + (t_table[t].scope == MEMO_LAYER ? j->begin + r : r) * T_WORDS;
}
static int t_is_routed(const uint64_t* input) { return (int)(input[0] >> 63); }

/* Of the last layer. */
static void t_add_output(const t_job* j) {
    for (int64_t i = 0; j->layer == j->n_layers - 1 && i < (j->end - j->begin) * T_WORDS; i++)
        j->sums->output += (double)(j->tensors[T_X][i] >> 48);
}

static uint64_t t_mix_key(const t_job* j, uint64_t h, int64_t row) {
    return t_mix_words(t_mix_words(h, j->tensors[T_K] + row * T_WORDS, T_WORDS),
                       j->tensors[T_V] + row * T_WORDS, T_WORDS);
}

static void t_compute_row(const t_job* j, int32_t t, int64_t r, uint64_t weights) {
    uint64_t h = t_mix(weights, (uint64_t)t), sum = 0;
    for (int32_t s = 0; s < t; s++)
        if (t_table[t].sources >> s & 1) h = t_mix_words(h, t_row(j, s, r), T_WORDS);
    for (int64_t i = 0; t == T_ATTENTION && i <= j->begin + r; i++) sum += t_mix_key(j, h, i);
    for (uint64_t c = 0; c < T_WORDS; c++) t_row(j, t, r)[c] = t_mix(h + sum, c);
}

/* The state of the recurrence after a row of the sequence. */
static void t_carry(uint64_t* state, const uint64_t* input, int64_t row) {
    for (int c = 0; c < T_WORDS; c++)
        state[c] = t_mix(row % T_DOCUMENT_ROWS ? state[c] : 0, input[c]);
}

static void t_run_forward(const t_job* j) {
    const uint64_t weights = t_mix_weights(j, 5), first = t_mix_state(j, S_FIRST, 3);
    uint64_t* state = j->buffers[B_CARRIED];
    if (j->mistake == T_FORWARD_WRITES && j->layer == 0) t_add_gradient(j, S_WEIGHTS, 1);
    if (state && j->begin == 0) memset(state, 0, T_ROW_BYTES);
    if (state) memcpy(j->tensors[T_CARRIED], state, T_ROW_BYTES);
    for (int64_t r = 0; r < j->end - j->begin; r++) {
        uint64_t *x = t_row(j, T_X, r), *input = t_row(j, T_INPUT, r);
        for (int64_t c = 0; c < T_WORDS && j->layer == 0; c++)
            x[c] = t_mix(first, (uint64_t)((j->number * T_ROWS_MAX + j->begin + r) * T_WORDS + c));
        memcpy(input, x, T_ROW_BYTES);
        if (j->mistake == T_FORGETS_INPUT && j->layer) input[0] = 7;
        for (int32_t t = T_HIDDEN; t < T_CARRIED; t++)
            if (j->tensors[t]) t_compute_row(j, t, r, weights);
        if (state) t_carry(state, input, j->begin + r);
        for (int c = 0; c < T_WORDS; c++)
            x[c] = t_mix(x[c], t_row(j, j->tensors[T_OUT] ? T_OUT : T_HIDDEN, r)[c] +
                                   (state ? state[c] : 0));
    }
    if (!j->has_experts) t_add_output(j);
}

/* Rows of the expert, one behind the other. */
static void t_run_experts(const t_job* j) {
    int64_t k = 0;
    for (int64_t r = 0; r < j->end - j->begin; r++) {
        if (!t_is_routed(t_row(j, T_INPUT, r))) continue;
        memcpy(t_row(j, T_EXPERT, k), t_row(j, T_INPUT, r), T_ROW_BYTES);
        t_compute_row(j, T_UP, k, t_mix_weights(j, 5));
        for (int c = 0; c < T_WORDS; c++) t_row(j, T_X, r)[c] += t_row(j, T_UP, k)[c];
        k++;
    }
    t_add_output(j);
}

/* From the last row to the first; x holds the gradient of the layer's output, then of its input. */
static void t_run_backward(const t_job* j) {
    const uint64_t weights = t_mix_state(j, S_LAST, t_mix_weights(j, 9));
    const int64_t n = j->end - j->begin;
    uint64_t *keys = j->buffers[B_KEYS], *carried = j->buffers[B_CARRIED_GRADIENT], sum = 0;
    uint64_t states[T_ROWS_MAX + 1][T_WORDS]; /* of the recurrence, before each row */
    int64_t k = 0;
    const int is_first = j->mistake == T_ZEROES_LAST ? j->begin == 0 : j->end == j->n_rows;
    if (is_first || j->mistake == T_ZEROES_EACH) {
        if (keys) memset(keys, 0, (size_t)(2 * j->n_rows) * T_ROW_BYTES);
        if (carried) memset(carried, 0, T_ROW_BYTES);
    }
    if (carried) memcpy(states[0], j->tensors[T_CARRIED], sizeof states[0]);
    for (int64_t r = 0; r < n && carried; r++) {
        memcpy(states[r + 1], states[r], sizeof states[0]);
        t_carry(states[r + 1], t_row(j, T_INPUT, r), j->begin + r);
        k += t_is_routed(t_row(j, T_INPUT, r));
    }

    for (int64_t r = n - 1; r >= 0; r--) {
        const int64_t row = j->begin + r;
        uint64_t *x = t_row(j, T_X, r), h = t_mix_words(weights, x, T_WORDS);
        for (int32_t t = T_INPUT; t < T_CARRIED; t++)
            if (j->tensors[t]) h = t_mix_words(h, t_row(j, t, r), T_WORDS);
        if (carried) h = t_mix_words(h, states[r], T_WORDS);
        if (j->tensors[T_EXPERT] && t_is_routed(t_row(j, T_INPUT, r))) {
            h = t_mix_words(h, t_row(j, T_EXPERT, --k), T_WORDS);
            h = t_mix_words(h, t_row(j, T_UP, k), T_WORDS);
        }
        sum += h;
        for (uint64_t c = 0; c < T_WORDS; c++)
            j->sums->layers[j->layer][c] += (double)(t_mix(h, c) >> 48);

        /* What later rows have added for this one's key and state. */
        for (int64_t i = 0; keys && i <= row; i++) {
            const uint64_t of_key = t_mix_key(j, h, i);
            for (uint64_t c = 0; c < 2 * T_WORDS; c++)
                keys[2 * i * T_WORDS + (int64_t)c] += t_mix(of_key, c);
        }
        if (keys) h = t_mix_words(h, keys + 2 * row * T_WORDS, 2 * T_WORDS);
        for (uint64_t c = 0; c < T_WORDS; c++) {
            if (carried) carried[c] = t_mix(carried[c], h + c);
            x[c] = t_mix(h + (carried ? carried[c] : 0), c);
            if (carried && row % T_DOCUMENT_ROWS == 0) carried[c] = 0;
            if (j->layer == 0) j->sums->input[c] += (double)(x[c] >> 48);
        }
    }
    for (int c = 0; c < T_WORDS && j->mistake == T_ROUNDS && n == j->n_rows; c++)
        j->sums->layers[j->layer][c] *= 1 + 1e-14;
    t_add_gradient(j, S_GRADIENTS, sum);
    t_add_gradient(j, S_FIRST_GRADIENTS, sum);
    t_add_gradient(j, S_LAST_GRADIENTS, sum);
    if (j->mistake == T_BACKWARD_WRITES) t_add_gradient(j, S_FROZEN, sum);
}

static void t_run_update(const t_job* j) {
    static const int32_t pairs[][2] = {{S_WEIGHTS, S_GRADIENTS},
                                       {S_MOMENTS, S_GRADIENTS},
                                       {S_FIRST, S_FIRST_GRADIENTS},
                                       {S_LAST, S_LAST_GRADIENTS}};
    if (j->mistake == T_UPDATE_MISSES && j->layer == 1) return;
    for (int p = 0; p < 4; p++) {
        const uint64_t h = t_mix_state(j, pairs[p][1], 3 + j->rate);
        uint64_t* words = j->states[pairs[p][0]];
        for (int64_t i = 0; words && i < j->n_words[pairs[p][0]]; i++)
            words[i] = t_mix(j->made >> pairs[p][0] & 1 ? (uint64_t)i : words[i], h);
    }
}

static memo_status t_run_job(void* arguments, MEMO_UNUSED memo_error* e) {
    const t_job* j = (const t_job*)arguments;
    for (int64_t r = j->first; r < j->last; r++)
        t_compute_row(j, j->tensor, r, t_mix_weights(j, 5));
    if (j->what == T_FORWARD) t_run_forward(j);
    if (j->what == T_EXPERTS) t_run_experts(j);
    if (j->what == T_BACKWARD) t_run_backward(j);
    if (j->what >= T_UPDATE) t_run_update(j);
    return MEMO_STATUS_OK;
}

static int t_has(const trainer* t, int32_t layer, int32_t state) {
    const uint32_t kinds = t->states[state].kinds;
    if (!t->states[state].size_bytes) return 0;
    if (t->states[state].uses & MEMO_STATE_SHARED) {
        if (layer == MEMO_LAYER_FIRST) return (kinds & MEMO_STATE_FIRST) != 0;
        if (layer == t->desc.n_layers) return (kinds & MEMO_STATE_LAST) != 0;
        return kinds >> t->kinds[layer] & 1;
    }
    if (kinds & (MEMO_STATE_FIRST | MEMO_STATE_LAST))
        return layer == (kinds & MEMO_STATE_FIRST ? MEMO_LAYER_FIRST : t->desc.n_layers);
    return layer >= 0 && layer < t->desc.n_layers && (!kinds || kinds >> t->kinds[layer] & 1);
}

/* SHARED states are of FIRST. */
static int32_t t_home(const trainer* t, int32_t layer, int32_t state) {
    return t->states[state].uses & MEMO_STATE_SHARED ? MEMO_LAYER_FIRST : layer;
}

/* The layer that a job of a layer takes a SHARED state of; -2: none. */
static int32_t t_shared_by(const trainer* t, int32_t what, int32_t layer, int32_t state) {
    if (what >= T_UPDATE) return layer == MEMO_LAYER_FIRST ? layer : -2;
    if (t_has(t, layer, state)) return layer;
    if (layer == 0) return MEMO_LAYER_FIRST;
    return what == T_BACKWARD && layer == t->desc.n_layers - 1 ? t->desc.n_layers : -2;
}

/* The step of the plain trainer uses the state. */
static int t_is_used(const trainer* t, int32_t layer, int32_t state) {
    return t_has(t, layer, state) && (!t->masks || t->masks[layer + 1] >> state & 1);
}

/* A job without rows, with the states that it uses: of a session, on the host, or of plain arrays. */
static t_job t_job_of_states(trainer* t, int32_t what, int32_t layer, const memo_session* s,
                             t_plain* plain, void* const* on_host) {
    static const uint32_t used[] = {MEMO_STATE_FORWARD,
                                    MEMO_STATE_FORWARD,
                                    MEMO_STATE_BACKWARD | MEMO_STATE_GRADIENT,
                                    MEMO_STATE_FORWARD,
                                    MEMO_STATE_UPDATE | MEMO_STATE_GRADIENT,
                                    MEMO_STATE_UPDATE | MEMO_STATE_GRADIENT};
    const int32_t n = t->desc.n_layers;
    t_job j = {.sums = plain ? &t->plain_sums : &t->sums, .what = what, .layer = layer};
    j.n_layers = n;
    j.is_alone = what <= T_EXPERTS &&
                 (plain ? t->plain_is_alone : s && memo_session_get_batch(s).is_forward_only);
    j.has_experts = t->desc.n_tensors > T_EXPERT;
    j.mistake = plain ? T_RIGHT : (int32_t)t->mistake;
    for (int32_t i = 0; i < t->desc.n_states; i++) {
        const int is_first = t->states[i].kinds == MEMO_STATE_FIRST && what < T_UPDATE;
        const int is_last = t->states[i].kinds == MEMO_STATE_LAST && what < T_UPDATE;
        const int is_shared = (t->states[i].uses & MEMO_STATE_SHARED) != 0;
        const int32_t of = is_shared  ? t_shared_by(t, what, layer, i)
                           : is_first ? MEMO_LAYER_FIRST
                           : is_last  ? n
                                      : layer;
        j.n_words[i] = t->states[i].size_bytes / 8;
        if (t->states[i].uses & MEMO_STATE_MADE) j.made |= 1u << i;
        if (!(t->states[i].uses & (used[what] | (j.is_alone ? MEMO_STATE_ALONE : 0u))) ||
            (is_first && layer) || (is_last && (what != T_BACKWARD || layer < n - 1)) ||
            of < MEMO_LAYER_FIRST)
            continue;
        j.shares |= is_shared;
        if (plain)
            j.states[i] = (what == T_UPDATE_HOST ? t_has : t_is_used)(t, of, i)
                              ? plain->states[t_home(t, of, i) + 1][i]
                              : NULL;
        else if (on_host)
            j.states[i] = (uint64_t*)on_host[i];
        else
            j.states[i] = (uint64_t*)memo_session_get_state(s, of, i);
    }
    return j;
}

/* --- the functions of a session --- */

static t_job t_job_of(trainer* t, memo_session* s, int32_t what, int32_t layer, int32_t n_tensors) {
    t_job j = t_job_of_states(t, what, layer, s, NULL, NULL);
    j.n_rows = memo_session_get_batch(s).n_rows;
    const memo_slice slice = memo_session_get_slice(s);
    j.begin = slice.begin, j.end = slice.end;
    const int32_t in_flight = memo_session_get_batch(s).turn.micro_batch;
    j.number = t->number + slice.micro_batch + in_flight;
    for (int32_t i = 0; i < n_tensors; i++)
        if (t->tensors[i].row_bytes)
            j.tensors[i] = (uint64_t*)memo_session_get_address(s, layer, i);
    if (!j.tensors[T_X]) j.tensors[T_X] = t->x[in_flight] + j.begin * T_WORDS;
    for (int32_t i = 0; i < T_N_BUFFERS && t->desc.n_buffers && what != T_RECOMPUTE; i++)
        if ((i == B_CARRIED) == (what != T_BACKWARD))
            j.buffers[i] = (uint64_t*)memo_session_get_buffer(s, i);
    return j;
}

/* Runs the job, or writes down what it reads and writes, and enqueues it. */
static void t_launch(trainer* t, memo_session* s, t_job* j) {
    op_uses u = {.n = {0, 0}};
    if (!t->host) {
        t_run_job(j, NULL);
        return;
    }
    for (int32_t i = 0; i < T_N_TENSORS; i++) {
        const int is_layer = t_table[i].scope == MEMO_LAYER;
        const int is_written =
            j->what == T_FORWARD || i == (j->what == T_RECOMPUTE ? j->tensor : T_X);
        int64_t first = is_layer ? j->begin : 0, last = first + j->end - j->begin;
        if (j->what == T_RECOMPUTE && !is_layer) first = j->first, last = j->last;
        if (t_table[i].scope == MEMO_CARRIED && last > first) last = first + 1;
        if (!j->tensors[i]) continue;
        if (is_layer) add_use(&u, 0, j->tensors[i], first * T_ROW_BYTES);
        add_use(&u, is_written, j->tensors[i] + first * T_WORDS, (last - first) * T_ROW_BYTES);
    }
    for (int32_t i = 0; i < T_N_STATES; i++) {
        const int is_gradient = i < t->desc.n_states && (t->states[i].uses & MEMO_STATE_GRADIENT);
        add_use(&u, j->what == (is_gradient ? T_BACKWARD : T_UPDATE), j->states[i],
                8 * j->n_words[i]);
    }
    for (int32_t i = 0; i < T_N_BUFFERS; i++)
        add_use(&u, 1, j->buffers[i], (i == B_KEYS ? 2 * j->n_rows : 1) * T_ROW_BYTES);
    memo_status status = announce(t->desc.device, t->desc.compute_stream, "compute", &u);
    if (!status)
        status = memo_host_device_launch(t->host, t->desc.compute_stream, t_run_job, j,
                                         (int64_t)sizeof *j, &error);
    memo_session_fail(s, status, error.message);
}

static void t_forward(void* user, memo_session* s, int32_t layer) {
    trainer* t = (trainer*)user;
    const int has_expert = t->desc.n_tensors > T_EXPERT;
    int64_t n = 0;
    t_job j = t_job_of(t, s, T_FORWARD, layer, has_expert ? T_EXPERT : t->desc.n_tensors);
    t_launch(t, s, &j);
    if (!has_expert) return;
    if (t->waits) CHECK_OK(memo_stream_synchronize(t->host, t->desc.compute_stream, &error));
    CHECK_IS(memo_session_get_slice(s).n_routed, ==, 0); /* not yet known */
    for (int64_t r = 0; r < j.end - j.begin; r++) n += t_is_routed(t_row(&j, T_INPUT, r));
    if (t->mistake != T_FORGETS_TO_ROUTE)
        memo_session_set_routed(s, layer, n - (t->mistake == T_ROUTES_TOO_FEW));
    j = t_job_of(t, s, T_EXPERTS, layer, T_N_TENSORS);
    if (j.tensors[T_UP]) t_launch(t, s, &j);
}

static void t_backward(void* user, memo_session* s, int32_t layer) {
    trainer* t = (trainer*)user;
    t_job j = t_job_of(t, s, T_BACKWARD, layer, t->desc.n_tensors);
    const int has_expert = t->desc.n_tensors > T_EXPERT;
    int64_t n = 0;
    if (t->waits && has_expert)
        CHECK_OK(memo_stream_synchronize(t->host, t->desc.compute_stream, &error));
    for (int64_t r = 0; has_expert && r < j.end - j.begin; r++)
        n += t_is_routed(t_row(&j, T_INPUT, r));
    if (has_expert) CHECK_IS(n, ==, memo_session_get_slice(s).n_routed);
    t_launch(t, s, &j);
}

static void t_recompute(void* user, memo_session* s, int32_t layer, int32_t tensor, int64_t first,
                        int64_t last) {
    trainer* t = (trainer*)user;
    t_job j = t_job_of(t, s, T_RECOMPUTE, layer, tensor + 1);
    j.tensor = tensor, j.first = first, j.last = last;
    t->n_recomputed += (int32_t)(last - first);
    t_launch(t, s, &j);
}

static MEMO_UNUSED void t_update(void* user, memo_session* s, int32_t layer) {
    trainer* t = (trainer*)user;
    t_job j = t_job_of_states(t, T_UPDATE, layer, s, NULL, NULL);
    memcpy(&j.rate, memo_session_get_batch(s).values, sizeof j.rate);
    t->n_updates++;
    t_launch(t, s, &j);
}

static MEMO_UNUSED void t_update_host(void* user, int32_t layer, void* const* states) {
    trainer* t = (trainer*)user;
    t_job j = t_job_of_states(t, T_UPDATE_HOST, layer, NULL, NULL, states);
    for (int32_t i = 0; i < t->desc.n_states; i++)
        CHECK_CASE(!states[i] == (!t_has(t, layer, i) || (t->states[i].uses & MEMO_STATE_FETCHED)),
                   "layer %d, state %d", (int)layer, (int)i);
    t_run_job(&j, NULL);
}

/* --- descs --- */

/* Layers of all tensors without states, in slices of so many rows; 0: at once. */
static void t_init(trainer* t, int32_t n_layers, int64_t n_rows, int64_t slice_rows) {
    memo_session_desc* d = &t->desc;
    memset(t, 0, sizeof *t);
    *d = MEMO_ZERO(memo_session_desc);
    d->alpha = -1; /* planned */
    for (int i = 0; i < T_N_TENSORS; i++) {
        t->tensors[i].name = t_table[i].name;
        t->tensors[i].row_bytes = T_ROW_BYTES;
        item_choose(&t->tensors[i], t_table[i].away, t_table[i].scope, t_table[i].is);
    }
    t->buffers[B_KEYS] = (memo_session_buffer){.name = "gradients of keys and values",
                                               .row_bytes = 2 * T_ROW_BYTES,
                                               .first = MEMO_PASS_BACKWARD,
                                               .first_layer = MEMO_EACH_LAYER};
    t->buffers[B_CARRIED] = (memo_session_buffer){.name = "state",
                                                  .size_bytes = T_ROW_BYTES,
                                                  .first = MEMO_PASS_FORWARD,
                                                  .first_layer = MEMO_EACH_LAYER};
    t->buffers[B_CARRIED_GRADIENT] = t->buffers[B_CARRIED];
    t->buffers[B_CARRIED_GRADIENT].first = MEMO_PASS_BACKWARD;
    d->tensors = t->tensors;
    d->n_tensors = T_N_TENSORS;
    d->n_layers = n_layers;
    d->n_rows = n_rows;
    d->tile_rows = 2;
    d->slice_rows = slice_rows ? slice_rows : n_rows;
    d->routed_rows_layer = n_rows;
    d->routed_rows_all = n_layers * n_rows;
    d->buffers = t->buffers;
    d->n_buffers = T_N_BUFFERS;
    d->user = t;
    d->forward = t_forward;
    d->backward = t_backward;
    d->recompute = t_recompute;
    d->computes_on_host = 1;
}

/* Layers of the short table, in slices, groups or at once, with states that every part uses
 * differently, two kinds of layers and two shapes, of at most n_rows rows. */
static MEMO_UNUSED void t_init_random(trainer* t, int64_t n_rows) {
    const uint32_t first = MEMO_STATE_FIRST, last = MEMO_STATE_LAST;
    const int is_sliced = memo_test_int(0, 1) == 0;
    const int32_t n_group = memo_test_int(0, 1) ? 0 : (int32_t)memo_test_int(1, 4);
    const uint32_t one_kind = memo_test_int(0, 1) ? 1u : 0u;
    t_init(t, (int32_t)memo_test_int(1, 6), n_rows, 0);
    const memo_state states[T_N_STATES] = {
        {"weights", 8 * memo_test_int(1, 300), MEMO_STATE_WEIGHTS, 0},
        {"gradients", 8 * memo_test_int(1, 300), MEMO_STATE_GRADIENT, 0},
        {"moments", 8 * memo_test_int(0, 600), MEMO_STATE_UPDATE, one_kind},
        {"frozen", 8 * memo_test_int(0, 200), MEMO_STATE_FORWARD | MEMO_STATE_BACKWARD, one_kind},
        {"first", 8 * memo_test_int(0, 300), MEMO_STATE_WEIGHTS, first},
        {"first_gradients", 8 * memo_test_int(0, 300), MEMO_STATE_GRADIENT, first},
        {"last", 8 * memo_test_int(0, 300), MEMO_STATE_WEIGHTS, last},
        {"last_gradients", 8 * memo_test_int(0, 300), MEMO_STATE_GRADIENT, last}};
    memcpy(t->states, states, sizeof states);
    for (int s = 0; s < T_N_STATES; s++)
        if (states[s].uses & MEMO_STATE_UPDATE && memo_test_int(0, 3) == 0)
            t->states[s].uses |= MEMO_STATE_MADE;
    for (int32_t layer = 0; layer < T_LAYERS_MAX; layer++)
        t->kinds[layer] = (int32_t)memo_test_int(0, 1);
    memo_session_desc* d = &t->desc;
    d->n_tensors = T_N_SHORT;
    d->n_buffers = 0;
    d->routed_rows_layer = d->routed_rows_all = 0;
    d->layer_kinds = t->kinds;
    d->tile_rows = 4;
    d->slice_rows = is_sliced ? 4 * memo_test_int(2, 5) : 0;
    d->n_group = d->micro_batches = n_group;
    if (!is_sliced && !n_group) {
        t->tensors[T_X].row_bytes = 0;
        t->tensors[T_INPUT].scope = MEMO_SLICE;
    }
    t->shapes[0].n_rows = n_rows;
    t->shapes[1].n_rows = memo_test_int(1, n_rows);
    t->shapes[1].is_forward_only = (int32_t)memo_test_int(0, 1);
    d->shapes = t->shapes;
    d->n_shapes = (int32_t)memo_test_int(1, 2);
    d->states = t->states;
    d->n_states = T_N_STATES;
    d->update = t_update;
    d->update_host = t_update_host;
    d->update_on =
        d->n_layers > 1 && memo_test_int(0, 2) == 0 ? MEMO_UPDATE_HOST : MEMO_UPDATE_DEVICE;
    d->update_may = (int32_t)memo_test_int(0, 2) | MEMO_MAY_NOT_PASS;
}

/* The gradient of the output is the output. */
static MEMO_UNUSED void t_loss(MEMO_UNUSED void* user, MEMO_UNUSED memo_session* s) {}

/* Without groups, with the turns of up to three micro-batches in any legal order; in chunks of
 * layers, or in slices. */
static MEMO_UNUSED void t_take_order(trainer* t) {
    memo_session_desc* d = &t->desc;
    const int32_t n_batches = (int32_t)memo_test_int(1, T_IN_FLIGHT_MAX);
    int32_t n_chunks = (int32_t)memo_test_int(1, 3), n_done[T_IN_FLIGHT_MAX] = {0};
    while (d->n_layers % n_chunks) n_chunks--;
    d->n_group = d->micro_batches = 0;
    if (d->slice_rows && d->slice_rows < d->n_rows && memo_test_int(0, 1)) {
        n_chunks = 1;
        d->loss = t_loss; /* the last layer's backward reads its output */
    } else {
        d->slice_rows = d->n_rows;
        t->tensors[T_X].row_bytes = 0;
        t->tensors[T_INPUT].scope = MEMO_SLICE;
    }
    for (int k = 0; k < 2; k++) t->shapes[k].is_forward_only &= n_chunks == 1;
    d->order = t->order;
    d->n_order = 0;
    while (d->n_order < 2 * n_batches * n_chunks) {
        const int32_t i = (int32_t)memo_test_int(0, n_batches - 1), done = n_done[i];
        const int is_backward = done >= n_chunks;
        const memo_turn turn = {i, is_backward ? 2 * n_chunks - 1 - done : done,
                                is_backward ? MEMO_PASS_BACKWARD : MEMO_PASS_FORWARD};
        if (done == 2 * n_chunks) continue;
        t->order[d->n_order++] = turn;
        n_done[i]++;
    }
}

/* A micro-batch, a group, or all turns of the order. */
static MEMO_UNUSED memo_status t_run_call(const trainer* t, memo_session* s, memo_batch batch) {
    const int32_t n = batch.is_forward_only ? 0 : t->desc.n_order;
    memo_status status = MEMO_STATUS_OK;
    for (int32_t k = 0; (k == 0 || k < n) && !status; k++) {
        if (n) batch.turn = t->order[k];
        status = memo_session_run(s, &batch, &error);
    }
    return status;
}

/* Micro-batches of the latest call. */
static MEMO_UNUSED int32_t t_n_in_call(const trainer* t, const memo_session* s) {
    int32_t n = memo_session_get_info(s).plan->n_group;
    for (int32_t k = 0; k < t->desc.n_order; k++)
        if (t->order[k].micro_batch >= n) n = t->order[k].micro_batch + 1;
    return n;
}

/* --- the same in plain arrays --- */

/* A micro-batch, t->number. */
static MEMO_UNUSED void t_run_plain(trainer* t, t_plain* plain, int64_t n_rows,
                                    int is_forward_only) {
    const int32_t n = t->desc.n_layers;
    t->plain_is_alone = is_forward_only;
    for (int32_t k = 0; k < (is_forward_only ? n : 2 * n); k++) {
        const int32_t layer = k < n ? k : 2 * n - 1 - k;
        t_job j = t_job_of_states(t, k < n ? T_FORWARD : T_BACKWARD, layer, NULL, plain, NULL);
        j.end = j.n_rows = n_rows;
        j.number = t->number;
        for (int32_t i = 0; i < t->desc.n_tensors; i++) j.tensors[i] = plain->rows[layer][i];
        j.tensors[T_X] = plain->rows[0][T_X];
        for (int32_t i = 0; i < T_N_BUFFERS && t->desc.n_buffers; i++)
            j.buffers[i] = plain->buffers[i]; /* a test's own follow them */
        t_run_job(&j, NULL);
        if (k < n && j.has_experts) t_run_experts(&j);
    }
}

/* A call of n_group micro-batches.  The next one has other rows. */
static MEMO_UNUSED void t_run_plain_call(trainer* t, t_plain* plain, int32_t n_group,
                                         int64_t n_rows, int is_forward_only) {
    for (int32_t k = 0; k < n_group; k++, t->number++)
        t_run_plain(t, plain, n_rows, is_forward_only);
}

/* Gradients begin at zero again. */
static MEMO_UNUSED void t_drop_gradients(trainer* t, t_plain* plain) {
    for (int32_t layer = 0; layer < t->desc.n_layers + 2; layer++)
        for (int32_t i = 0; i < t->desc.n_states; i++)
            if (t->states[i].uses & MEMO_STATE_GRADIENT)
                memset(plain->states[layer][i], 0, sizeof plain->states[layer][i]);
}

/* The step has a gradient of the layer, or the layer never has one. */
static int t_is_updated(const trainer* t, int32_t layer) {
    int has = 0;
    for (int32_t i = 0; i < t->desc.n_states; i++) {
        if (!(t->states[i].uses & MEMO_STATE_GRADIENT)) continue;
        if (t_is_used(t, layer, i)) return 1;
        has |= t_has(t, layer, i);
    }
    return !has;
}

/* An update on the host finds all states of a layer. */
static MEMO_UNUSED void t_update_plain(trainer* t, t_plain* plain) {
    const int on_host = t->desc.update_on == MEMO_UPDATE_HOST;
    for (int32_t layer = MEMO_LAYER_FIRST; layer <= t->desc.n_layers; layer++) {
        t_job j = t_job_of_states(t, on_host ? T_UPDATE_HOST : T_UPDATE, layer, NULL, plain, NULL);
        j.rate = t->rate;
        if (!t_is_updated(t, layer)) continue;
        t_run_job(&j, NULL);
    }
    t_drop_gradients(t, plain);
}

#endif
