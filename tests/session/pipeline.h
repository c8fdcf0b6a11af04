/* pipeline.h - stages of a pipeline, each a session with its own order: 1F1B, interleaved chunks,
 * GPipe, or any legal order.  Numbers are whole, so that sums have one value in any order; a plain
 * loop over all layers computes what each gradient must be.
 *
 * Include after extras/memo_check.h and owned.h. */
#ifndef PIPELINE_H
#define PIPELINE_H

#include "uses.h"
#include "item_choices.h"

enum {
    P_WORDS = 3, /* of a row */
    P_ROWS_MAX = 24,
    P_MICRO_BATCHES_MAX = 8,
    P_CHUNKS_MAX = 3,
    P_LAYERS_MAX = 48, /* of all stages */
    P_INPUT = 0,
    P_HIDDEN,
    P_GATE, /* of layers of kind 1 */
    P_MASK, /* kept: a word of each row */
    P_N_TENSORS,
    P_X = 0, /* buffers of chunk c: 2 c + P_X and so on */
    P_DX,
    P_SCRATCH = 2 * P_CHUNKS_MAX,
    P_N_BUFFERS
};
typedef uint64_t p_rows[P_ROWS_MAX * P_WORDS];

/* Of all stages.  Global chunk c * n_stages + stage; boundary g lies before it. */
typedef struct pipeline {
    int32_t n_stages, n_chunks, n_of_chunk, n_micro_batches, n_rows;
    int32_t kinds[P_LAYERS_MAX];
    uint64_t weights[P_LAYERS_MAX], expected[P_LAYERS_MAX];
    p_rows wires[2][P_MICRO_BATCHES_MAX][P_LAYERS_MAX + 1]; /* forward; backward */
} pipeline;

typedef struct stage {
    pipeline* p;
    int32_t number;
    memo_session_desc desc;
    memo_item tensors[P_N_TENSORS];
    int32_t layer_kinds[P_LAYERS_MAX];
    memo_session_buffer buffers[P_N_BUFFERS];
    memo_turn order[2 * P_MICRO_BATCHES_MAX * P_CHUNKS_MAX];
    uint64_t gradients[P_LAYERS_MAX]; /* of its layers */
    memo_verify_output outputs[1];
    memo_verify_desc check; /* of these */
    memo_device* host;      /* runs functions; NULL: the calling thread computes */
    const memo_device* device;
    memo_stream stream;
    /* Moves a wire between stages; NULL: all are in p. */
    void (*send)(struct stage* s, int32_t is_backward, int32_t micro_batch, int32_t boundary);
    void (*receive)(struct stage* s, int32_t is_backward, int32_t micro_batch, int32_t boundary);
    void* link;
    int32_t is_verifying, mistake;
    uint64_t* seen; /* the mask of the latest backward */
} stage;

static int32_t p_global_layer(const stage* s, int32_t layer) {
    const pipeline* p = s->p;
    return (layer / p->n_of_chunk * p->n_stages + s->number) * p->n_of_chunk +
           layer % p->n_of_chunk;
}

/* --- what a layer computes --- */

enum { P_FORWARD, P_BACKWARD, P_RECOMPUTE, P_LOSS, P_COPY, P_MASKS };
typedef struct p_job {
    int32_t what, begin, end, t;
    uint64_t weight, seed;
    const uint64_t* from;
    uint64_t *to, *x, *dx, *mask, *tensors[P_N_TENSORS], *gradient, *scratch;
} p_job;

static uint64_t p_mask(uint64_t seed, int32_t row) {
    return ((seed ^ (uint64_t)(row + 1)) * 0x9e3779b97f4a7c15u) >> 20;
}
static uint64_t p_hidden(uint64_t weight, uint64_t input) { return input * (2 * weight + 1) + 7; }
static uint64_t p_gate(uint64_t input, uint64_t hidden) { return hidden * hidden + input; }

static memo_status p_run_job(void* arguments, MEMO_UNUSED memo_error* e) {
    const p_job* j = (const p_job*)arguments;
    for (int32_t i = j->begin * P_WORDS; i < j->end * P_WORDS; i++) {
        uint64_t* const* t = j->tensors;
        const uint64_t mask = j->mask ? j->mask[i / P_WORDS] : 0;
        uint64_t gate, d;
        switch (j->what) {
        case P_COPY: j->to[i] = j->from[i]; break;
        case P_MASKS: j->mask[i / P_WORDS] = p_mask(j->seed, i / P_WORDS); break;
        case P_LOSS: j->dx[i] = j->x[i] * 3 + j->seed; break;
        case P_RECOMPUTE:
            if (j->t == P_HIDDEN) t[P_HIDDEN][i] = p_hidden(j->weight, t[P_INPUT][i]);
            if (j->t == P_GATE) t[P_GATE][i] = p_gate(t[P_INPUT][i], t[P_HIDDEN][i]);
            break;
        case P_FORWARD:
            t[P_INPUT][i] = j->x[i];
            t[P_HIDDEN][i] = p_hidden(j->weight, j->x[i]);
            gate = p_gate(t[P_INPUT][i], t[P_HIDDEN][i]);
            if (t[P_GATE]) t[P_GATE][i] = gate;
            j->x[i] += gate * mask;
            break;
        default:
            gate = t[P_GATE] ? t[P_GATE][i] : p_gate(t[P_INPUT][i], t[P_HIDDEN][i]);
            d = j->dx[i] * mask;
            if (j->scratch) j->scratch[i] = d;
            *j->gradient += d * gate + t[P_INPUT][i] * d + t[P_HIDDEN][i];
            j->dx[i] += d * (2 * t[P_HIDDEN][i] * (2 * j->weight + 1) + 1);
        }
    }
    return MEMO_STATUS_OK;
}

/* By plain loops, one micro-batch after the other. */
static void p_expect(pipeline* p) {
    static p_rows tensors[P_LAYERS_MAX][P_N_TENSORS];
    const int32_t n = p->n_stages * p->n_chunks * p->n_of_chunk;
    uint64_t mask[P_ROWS_MAX];
    p_rows x, dx;
    memset(p->expected, 0, sizeof p->expected);
    for (int32_t m = 0; m < p->n_micro_batches; m++) {
        memcpy(x, p->wires[0][m][0], sizeof x);
        for (int32_t k = 0; k < 2 * n; k++) {
            const int32_t l = k < n ? k : 2 * n - 1 - k;
            p_job j = {.what = k < n ? P_FORWARD : P_BACKWARD, .end = p->n_rows};
            for (int32_t r = 0; r < p->n_rows; r++)
                mask[r] = p_mask((uint64_t)(m * 100 + l / p->n_of_chunk), r);
            j.weight = p->weights[l];
            j.x = x, j.dx = dx, j.mask = mask, j.gradient = &p->expected[l];
            for (int32_t t = 0; t < P_N_TENSORS; t++) j.tensors[t] = tensors[l][t];
            if (k == n) {
                p_job loss = {.what = P_LOSS, .end = p->n_rows, .x = x, .dx = dx};
                loss.seed = (uint64_t)m;
                p_run_job(&loss, NULL);
            }
            p_run_job(&j, NULL);
        }
    }
}

/* --- the functions of a stage --- */

/* Runs the job, or enqueues it, and writes down what it reads and writes. */
static void p_launch(stage* s, memo_session* session, const p_job* j) {
    const int64_t n = 8 * (int64_t)(j->end - j->begin) * P_WORDS, at = (int64_t)j->begin * P_WORDS;
    op_uses u = {.n = {0, 0}};
    if (!s->host) {
        p_run_job((void*)(uintptr_t)j, NULL);
        return;
    }
    for (int32_t t = 0; t < P_N_TENSORS && (j->what != P_RECOMPUTE || t <= j->t); t++)
        if (j->tensors[t])
            add_use(&u, j->what == P_FORWARD || (j->what == P_RECOMPUTE && t == j->t),
                    j->tensors[t] + at, n);
    add_use(&u, 0, j->from, n);
    add_use(&u, 1, j->to, n);
    add_use(&u, j->what != P_LOSS, j->x, n);
    add_use(&u, 1, j->dx, n);
    add_use(&u, 1, j->scratch, n);
    add_use(&u, j->what == P_MASKS, j->mask, 8 * j->end);
    memo_status status = announce(s->device, s->stream, "job", &u);
    if (!status)
        status =
            memo_host_device_launch(s->host, s->stream, p_run_job, j, (int64_t)sizeof *j, &error);
    memo_session_fail(session, status, error.message);
}

static p_job p_job_of(stage* s, memo_session* session, int32_t what, int32_t layer) {
    const int32_t c = memo_session_get_batch(session).turn.chunk;
    p_job j = {.what = what, .end = (int32_t)memo_session_get_batch(session).n_rows};
    j.weight = s->p->weights[p_global_layer(s, layer)];
    for (int32_t t = 0; t < P_MASK; t++)
        if (!s->tensors[t].kinds || s->tensors[t].kinds >> s->layer_kinds[layer] & 1)
            j.tensors[t] = (uint64_t*)memo_session_get_address(session, layer, t);
    if (what == P_RECOMPUTE) return j;
    j.mask = (uint64_t*)memo_session_get_address(session, layer, P_MASK);
    if (what == P_FORWARD) j.x = (uint64_t*)memo_session_get_buffer(session, 2 * c + P_X);
    if (what == P_BACKWARD) j.dx = (uint64_t*)memo_session_get_buffer(session, 2 * c + P_DX);
    j.gradient = &s->gradients[layer];
    return j;
}

/* Copies a wire from another stage, or to it. */
static void p_hand(stage* s, memo_session* session, int32_t is_backward, int32_t boundary,
                   int is_send, uint64_t* rows) {
    const int32_t m = memo_session_get_batch(session).turn.micro_batch;
    uint64_t* wire = s->p->wires[is_backward][m][boundary];
    p_job copy = {.what = P_COPY, .end = (int32_t)memo_session_get_batch(session).n_rows};
    if (s->is_verifying && s->receive) return; /* without the other stages */
    if (!is_send && s->receive) s->receive(s, is_backward, m, boundary);
    copy.from = is_send ? rows : wire;
    copy.to = is_send ? wire : rows;
    p_launch(s, session, &copy);
    if (is_send && s->send) s->send(s, is_backward, m, boundary);
}

static void p_forward(void* user, memo_session* session, int32_t layer) {
    stage* s = (stage*)user;
    const pipeline* p = s->p;
    const memo_turn turn = memo_session_get_batch(session).turn;
    const int32_t g = turn.chunk * p->n_stages + s->number, l = layer % p->n_of_chunk;
    p_job j = p_job_of(s, session, P_FORWARD, layer);
    p_job masks = {.what = P_MASKS, .end = j.end, .mask = j.mask};
    masks.seed = (uint64_t)(turn.micro_batch * 100 + g);
    p_launch(s, session, &masks);
    if (l == 0) p_hand(s, session, 0, g, 0, j.x);
    if (s->mistake == 1) j.mask = (uint64_t*)memo_session_get_buffer(session, P_DX);
    p_launch(s, session, &j);
    if (l == p->n_of_chunk - 1) p_hand(s, session, 0, g + 1, 1, j.x);
}

/* The loss of the last stage goes the way of a gradient from the next stage. */
static void p_between(void* user, memo_session* session) {
    stage* s = (stage*)user;
    const memo_batch batch = memo_session_get_batch(session);
    p_job j = {.what = P_LOSS, .end = (int32_t)batch.n_rows};
    if (s->number < s->p->n_stages - 1) return;
    j.seed = (uint64_t)batch.turn.micro_batch;
    j.x = s->p->wires[0][batch.turn.micro_batch][s->p->n_stages * s->p->n_chunks];
    j.dx = s->p->wires[1][batch.turn.micro_batch][s->p->n_stages * s->p->n_chunks];
    p_launch(s, session, &j);
}

static void p_backward(void* user, memo_session* session, int32_t layer) {
    stage* s = (stage*)user;
    const pipeline* p = s->p;
    const int32_t g = memo_session_get_batch(session).turn.chunk * p->n_stages + s->number;
    p_job j = p_job_of(s, session, P_BACKWARD, layer);
    j.scratch = (uint64_t*)memo_session_get_buffer(session, P_SCRATCH);
    s->seen = j.mask;
    if (layer % p->n_of_chunk == p->n_of_chunk - 1) p_hand(s, session, 1, g + 1, 0, j.dx);
    p_launch(s, session, &j);
    if (layer % p->n_of_chunk == 0) p_hand(s, session, 1, g, 1, j.dx);
}

static void p_recompute(void* user, memo_session* session, int32_t layer, int32_t tensor,
                        int64_t begin, int64_t end) {
    p_job j = p_job_of((stage*)user, session, P_RECOMPUTE, layer);
    j.t = tensor;
    j.begin = (int32_t)begin;
    j.end = (int32_t)end;
    p_launch((stage*)user, session, &j);
}

static void p_verifying(void* user, MEMO_UNUSED memo_session* session, int32_t begins) {
    ((stage*)user)->is_verifying = begins;
}

/* --- orders --- */

static void p_turn(stage* s, int32_t micro_batch, int32_t chunk, memo_pass pass) {
    const memo_turn turn = {micro_batch, chunk, pass};
    s->order[s->desc.n_order++] = turn;
}

/* So many forwards before the first backward, then one of each; forwards in groups of n_stages
 * micro-batches, chunk after chunk.  With all forwards ahead: GPipe. */
static void p_interleaved(stage* s, int32_t ahead) {
    const pipeline* p = s->p;
    const int32_t n = p->n_micro_batches * p->n_chunks, group = p->n_stages * p->n_chunks;
    if (ahead >= n) ahead = n - 1;
    s->desc.n_order = 0;
    for (int32_t i = 0; i < n + ahead; i++) {
        const int32_t b = i - ahead;
        if (i < n)
            p_turn(s, i / group * p->n_stages + i % p->n_stages, i % group / p->n_stages,
                   MEMO_PASS_FORWARD);
        if (b >= 0)
            p_turn(s, b / group * p->n_stages + b % p->n_stages,
                   p->n_chunks - 1 - b % group / p->n_stages, MEMO_PASS_BACKWARD);
    }
}

/* Forwards before the first backward: 1F1B; with chunks, as interleaved stages have them. */
static int32_t p_ahead(const pipeline* p, int32_t number) {
    const int32_t later = p->n_stages - number - 1;
    return p->n_chunks == 1 ? later : 2 * later + (p->n_chunks - 1) * p->n_stages;
}

/* Any legal order of a single stage: each turn is one that may come next. */
static inline void p_random_order(stage* s) {
    const pipeline* p = s->p;
    const int32_t n = p->n_micro_batches, most = (int32_t)memo_test_int(1, n);
    int32_t forwards[P_MICRO_BATCHES_MAX] = {0}, backwards[P_MICRO_BATCHES_MAX] = {0};
    s->desc.n_order = 0;
    while (s->desc.n_order < 2 * n * p->n_chunks) {
        const int32_t m = (int32_t)memo_test_int(0, n - 1), is_backward = memo_test_int(0, 1) != 0;
        int32_t n_open = 0;
        for (int32_t i = 0; i < n; i++) n_open += forwards[i] && backwards[i] < p->n_chunks;
        if (is_backward && forwards[m] == p->n_chunks && backwards[m] < p->n_chunks)
            p_turn(s, m, p->n_chunks - 1 - backwards[m]++, MEMO_PASS_BACKWARD);
        else if (!is_backward && forwards[m] < p->n_chunks && (forwards[m] || n_open < most))
            p_turn(s, m, forwards[m]++, MEMO_PASS_FORWARD);
    }
}

/* --- models --- */

static void p_random(pipeline* p, int32_t n_stages, int32_t n_chunks) {
    memset(p, 0, sizeof *p);
    p->n_stages = n_stages;
    p->n_chunks = n_chunks;
    p->n_of_chunk = (int32_t)memo_test_int(1, 4);
    p->n_micro_batches = n_stages * (int32_t)memo_test_int(1, P_MICRO_BATCHES_MAX / n_stages);
    p->n_rows = (int32_t)memo_test_int(1, P_ROWS_MAX);
    const int has_like = memo_test_int(0, 2) != 0; /* chunks of the same kinds */
    for (int32_t i = 0; i < P_LAYERS_MAX; i++) {
        p->weights[i] = (uint64_t)memo_test_int(0, INT32_MAX);
        p->kinds[i] = has_like && i >= p->n_of_chunk ? p->kinds[i - p->n_of_chunk]
                                                     : (int32_t)memo_test_int(0, 1);
    }
    for (int32_t m = 0; m < p->n_micro_batches; m++)
        for (int32_t i = 0; i < P_ROWS_MAX * P_WORDS; i++)
            p->wires[0][m][0][i] = (uint64_t)memo_test_int(0, INT32_MAX);
    p_expect(p);
}

static void p_open_stage(stage* s, pipeline* p, int32_t number) {
    static const char* const names[P_N_TENSORS] = {"input", "hidden", "gate", "mask"};
    static const int32_t away[P_N_TENSORS] = {MEMO_MOVE, MEMO_ROWS, MEMO_WHOLE, MEMO_KEEP};
    const int32_t n = p->n_of_chunk;
    memset(s, 0, sizeof *s);
    s->p = p;
    s->number = number;
    s->desc = MEMO_ZERO(memo_session_desc);
    s->desc.alpha = -1; /* planned */
    for (int32_t t = 0; t < P_N_TENSORS; t++) {
        s->tensors[t].name = names[t];
        s->tensors[t].row_bytes = t == P_MASK ? 8 : 8 * P_WORDS;
        s->tensors[t].away = away[t];
    }
    s->tensors[P_GATE].kinds = 2;
    s->desc.n_layers = n * p->n_chunks;
    for (int32_t l = 0; l < s->desc.n_layers; l++)
        s->layer_kinds[l] = p->kinds[p_global_layer(s, l)];
    for (int32_t c = 0; c < P_CHUNKS_MAX; c++) {
        const int32_t of = c < p->n_chunks ? c : 0, first = of * n, last = of * n + n - 1;
        const int64_t bytes = c < p->n_chunks ? 8 : 0; /* chunks that are not there: empty */
        const memo_session_buffer b[2] = {
            {"x", 0, bytes * P_WORDS, MEMO_PASS_FORWARD, first, MEMO_PASS_FORWARD, last, 0},
            {"dx", 0, bytes * P_WORDS, MEMO_PASS_BACKWARD, last, MEMO_PASS_BACKWARD, first, 0}};
        memcpy(s->buffers + 2 * c, b, sizeof b);
    }
    const memo_session_buffer scratch = {
        "scratch", 0, 8 * P_WORDS, MEMO_PASS_BACKWARD, MEMO_EACH_LAYER, MEMO_PASS_BACKWARD, 0, 0};
    s->buffers[P_SCRATCH] = scratch;
    s->outputs[0].name = "gradients";
    s->outputs[0].address = s->gradients;
    s->outputs[0].size_bytes = sizeof s->gradients;
    s->outputs[0].type = MEMO_TYPE_I64;
    s->desc.tensors = s->tensors;
    s->desc.n_tensors = P_N_TENSORS;
    s->desc.layer_kinds = s->layer_kinds;
    s->desc.n_rows = p->n_rows;
    s->desc.tile_rows = memo_test_int(1, 5);
    s->desc.buffers = s->buffers;
    s->desc.n_buffers = P_N_BUFFERS;
    s->check.outputs = s->outputs;
    s->check.n_outputs = 1;
    s->check.verifying = p_verifying;
    s->desc.order = s->order;
    s->desc.user = s;
    s->desc.forward = p_forward;
    s->desc.between = p_between;
    s->desc.backward = p_backward;
    s->desc.recompute = p_recompute;
    p_interleaved(s, p_ahead(p, number));
}

/* All turns, once. */
static MEMO_UNUSED memo_status p_step(stage* s, memo_session* session) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t k = 0; k < s->desc.n_order && !status; k++) {
        memo_batch batch = {.turn = s->order[k]};
        status = memo_session_run(session, &batch, &error);
    }
    return status;
}

static MEMO_UNUSED int64_t p_n_wrong(const stage* s, uint64_t n_steps) {
    int64_t n = 0;
    for (int32_t l = 0; l < s->desc.n_layers; l++)
        n += s->gradients[l] != n_steps * s->p->expected[p_global_layer(s, l)];
    return n;
}

#endif
