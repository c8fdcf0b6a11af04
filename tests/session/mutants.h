/* mutants.h - random trainers with a session, and mistakes in them.  A trainer is made of accesses: in a
 * pass it takes the address of an item, a state or a buffer.  A mutant differs from a right trainer
 * by one field of the desc or of a batch, by one access, or by one call.
 *
 * Kernels have the sizes and the order of the tables of the right trainer; the desc may have others.
 *
 * Include after memo_plan.h and owned.h. */
#ifndef MUTANTS_H
#define MUTANTS_H

#include <math.h>

enum { L_MAX = 5, T_MAX = 40, C = 4, FLOATS_MAX = 400, ROUNDS_MAX = 4, STEPS = 4 };
enum { AN_ITEM, A_STATE, A_BUFFER, N_KINDS };
enum { EDGE, IN, A, STAT, KEY, ATT, LSE, CARRY, OUT, KEPT, N_ITEMS };
enum { W, G, M, MASTER, AVERAGE, FROZEN, TABLE, TABLE_G, TABLE_M, N_STATES };
enum { DX, D_KEY, SCRATCH, SUM, OUTPUT, LONG, N_BUFFERS };
enum { FORWARD, RECOMPUTE, LOSS, BACKWARD, UPDATE, N_PASSES };
enum { ROLES_MAX = N_ITEMS };
static const char* const pass_names[] = {"forward", "recompute", "loss", "backward", "update"};
static const char* const role_names[N_KINDS][ROLES_MAX] = {
    {"edge", "in", "a", "stat", "key", "att", "lse", "carry", "out", "kept"},
    {"w", "g", "m", "master", "average", "frozen", "table", "table_g", "table_m", ""},
    {"dx", "d_key", "scratch", "sum", "output", "long", "", "", "", ""}};

/* What a mutant changes.  PROMISE: under all plans alike, so it is compared with the right trainer.
 */
#define MUTATIONS(X)                                                                               \
    X(RIGHT, 0)                                                                                    \
    X(ITEM_BYTES, 0)                                                                               \
    X(ITEM_AWAY, 0)                                                                                \
    X(ITEM_SCOPE, 0)                                                                               \
    X(ITEM_ORDER, 0)                                                                               \
    X(ITEM_BY_BACKWARD, 0)                                                                         \
    X(ITEM_KINDS, 0)                                                                               \
    X(STATE_BYTES, 0)                                                                              \
    X(STATE_USES_LESS, 0)                                                                          \
    X(STATE_USES_OTHER, 0)                                                                         \
    X(STATE_KINDS, 0)                                                                              \
    X(STATE_ORDER, 0)                                                                              \
    X(BUFFER_BYTES, 0)                                                                             \
    X(BUFFER_FIRST, 0)                                                                             \
    X(BUFFER_LAST, 0)                                                                              \
    X(DESC_LAYERS, 0)                                                                              \
    X(DESC_LAYER_KINDS, 0)                                                                         \
    X(DESC_ROWS, 0)                                                                                \
    X(DESC_TILE, 0)                                                                                \
    X(DESC_SLICE, 0)                                                                               \
    X(DESC_MICRO_BATCHES, 0)                                                                       \
    X(DESC_GROUP, 0)                                                                               \
    X(DESC_ORDER, 0)                                                                               \
    X(DESC_SHAPE, 0)                                                                               \
    X(DESC_MAY, 0)                                                                                 \
    X(BATCH_ROWS, 0)                                                                               \
    X(BATCH_VALUES, 1)                                                                             \
    X(BATCH_MORE_FOLLOW, 1)                                                                        \
    X(BATCH_STATES, 0)                                                                             \
    X(OTHER_LAYER, 0)                                                                              \
    X(OTHER_ROLE, 0)                                                                               \
    X(KEPT_ADDRESS, 0)                                                                             \
    X(READS_MORE, 0)                                                                               \
    X(WRITES_MORE, 0)                                                                              \
    X(READS_OUTSIDE, 0)                                                                            \
    X(GRADIENT_CLEARED, 1)                                                                         \
    X(GRADIENT_ASSIGNED, 1)                                                                        \
    X(BUFFER_NOT_CLEARED, 0)                                                                       \
    X(BEGIN_IGNORED, 0)                                                                            \
    X(NOT_RECOMPUTED, 0)                                                                           \
    X(GENERATOR_ADVANCED, 0)                                                                       \
    X(WRITES_NO_ROWS, 0)                                                                           \
    X(OWN_STEP, 0)                                                                                 \
    X(NORM_OF_THIS_STEP, 0)                                                                        \
    X(COUNTS_UPDATES, 0)                                                                           \
    X(LAYER_NOT_UPDATED, 1)                                                                        \
    X(UPDATE_FORGOTTEN, 1)
#define NAME_OF(name, is_promise) name,
typedef enum mutation { MUTATIONS(NAME_OF) N_MUTATIONS } mutation;
#undef NAME_OF
#define NAME_OF(name, is_promise) {#name, is_promise},
static const struct {
    const char* name;
    int is_promise;
} mutations[] = {MUTATIONS(NAME_OF)};

typedef struct values {
    int32_t step;
    float rate, clip;
} values;

typedef struct trainer {
    memo_session_desc desc;
    memo_item items[N_ITEMS];
    memo_state states[N_STATES];
    memo_session_buffer buffers[N_BUFFERS];
    memo_shape shapes[2];
    memo_turn order[2 * ROUNDS_MAX];
    int32_t layer_kinds[L_MAX];
    int index[N_KINDS][ROLES_MAX];  /* in the tables of the right trainer; -1: not there */
    int of_odd[N_KINDS][ROLES_MAX]; /* layers of kind 1 alone have it */
    int n[N_KINDS][ROLES_MAX];      /* floats: of a row, or of all */
    int n_calls, n_of_call, n_rows, block;
    int masks, validates, clips, skips, shares, of_first, of_last;
    uint32_t step_masks[L_MAX + 2];

    mutation m;
    int pass, kind, role, by; /* where, and how */
    void* kept;
    int n_drawn;

    /* What it computes. */
    float x[ROUNDS_MAX][T_MAX * C], dx[T_MAX * C];
    float squares[L_MAX];
    double loss, validated;
    int32_t step, number, n_updates;
} trainer;

static int has(const trainer* r, int kind, int layer, int role) {
    return r->index[kind][role] >= 0 &&
           (!r->of_odd[kind][role] || (layer >= 0 && r->layer_kinds[layer % r->desc.n_layers]));
}

/* --- accesses --- */

static void* address_of(const trainer* r, memo_session* s, int kind, int layer, int role) {
    const int i = r->index[kind][role];
    if (i < 0) return NULL;
    if (kind == AN_ITEM) return memo_session_get_address(s, layer, i);
    return kind == A_STATE ? memo_session_get_state(s, layer, i) : memo_session_get_buffer(s, i);
}

/* NULL: a kernel leaves it out; on a GPU it would fail. */
static float* at(trainer* r, memo_session* s, int pass, int kind, int layer, int role) {
    const int is_it = r->pass == pass && r->kind == kind && r->role == role;
    void* found;
    if (is_it && r->m == OTHER_LAYER && layer + r->by >= 0 && layer + r->by < r->desc.n_layers)
        layer += r->by;
    if (is_it && r->m == OTHER_ROLE) role = r->by;
    found = address_of(r, s, kind, layer, role);
    if (!is_it || r->m != KEPT_ADDRESS) return (float*)found;
    if (!r->kept) r->kept = found;
    return (float*)r->kept;
}

/* One access more in a pass, whose number has an effect. */
static float more(trainer* r, memo_session* s, int pass, int32_t layer) {
    float* p;
    if (r->pass != pass || (r->m != READS_MORE && r->m != WRITES_MORE)) return 0;
    if (r->kind == AN_ITEM && (layer < 0 || layer >= r->desc.n_layers)) return 0;
    p = (float*)address_of(r, s, r->kind, layer, r->role);
    if (p && r->m == WRITES_MORE) p[r->by % 3] += .01f * (float)(1 + layer);
    return p && r->m == READS_MORE ? .1f * p[r->by % 3] : 0;
}

static float look(const float* p, int n, int i) { return p ? .1f * p[i % n] : 0; }

/* --- kernels --- */

static int micro_batch_of(const trainer* r, const memo_session* s) {
    if (r->desc.n_order) return memo_session_get_batch(s).turn.micro_batch % ROUNDS_MAX;
    return memo_session_get_slice(s).micro_batch % ROUNDS_MAX;
}

/* The rows between layers. */
static float* hidden(trainer* r, memo_session* s, int pass, int layer) {
    if (r->index[AN_ITEM][EDGE] >= 0) return at(r, s, pass, AN_ITEM, layer, EDGE);
    return r->x[micro_batch_of(r, s)];
}
static float* hidden_gradient(trainer* r, memo_session* s, int pass, int layer) {
    if (r->index[AN_ITEM][EDGE] >= 0) return at(r, s, pass, AN_ITEM, layer, EDGE);
    return r->index[A_BUFFER][DX] >= 0 ? at(r, s, pass, A_BUFFER, layer, DX) : r->dx;
}

static void normalize(trainer* r, memo_session* s, int pass, int32_t layer, int64_t begin,
                      int64_t end) {
    const int n = r->n[AN_ITEM][A], n_w = r->n[A_STATE][W];
    const float *in = at(r, s, pass, AN_ITEM, layer, IN), *w;
    float *a = at(r, s, pass, AN_ITEM, layer, A), *stat = NULL;
    int which = W;
    if (memo_session_get_batch(s).is_forward_only && r->index[A_STATE][AVERAGE] >= 0)
        which = AVERAGE;
    w = at(r, s, pass == FORWARD ? FORWARD : RECOMPUTE, A_STATE, layer, which);
    if (has(r, AN_ITEM, layer, STAT)) stat = at(r, s, pass, AN_ITEM, layer, STAT);
    for (int64_t i = begin; i < end && in && a; i++) {
        float sum = 1e-5f, scale;
        for (int c = 0; c < C; c++) sum += in[i * C + c] * in[i * C + c];
        scale = 1 / sqrtf(sum);
        if (stat) stat[i] = scale;
        for (int c = 0; c < n; c++)
            a[i * n + c] = tanhf(in[i * C + c % C] * (.5f + scale + look(w, n_w, 7 * c)));
    }
}

/* Each row is a mean of the rows up to its own: of all, or of the layer's keys and its own. */
static void attend(trainer* r, memo_session* s, int pass, int32_t layer, int64_t begin,
                   int64_t end) {
    const int n = r->n[AN_ITEM][ATT], n_a = r->n[AN_ITEM][A], n_key = r->n[AN_ITEM][KEY];
    const int64_t first = memo_session_get_slice(s).begin;
    const float *a = at(r, s, pass, AN_ITEM, layer, A), *key = NULL;
    float *att = at(r, s, pass, AN_ITEM, layer, ATT), *lse = NULL, sums[8] = {0}, weights = 0;
    if (has(r, AN_ITEM, layer, LSE)) lse = at(r, s, pass, AN_ITEM, layer, LSE);
    if (has(r, AN_ITEM, layer, KEY)) key = at(r, s, pass, AN_ITEM, layer, KEY);
    for (int64_t k = 0; k < first + begin && key; k++)
        for (int c = 0; c < n; c++) sums[c] += .1f * key[k * n_key + c % n_key];
    for (int64_t i = begin; i < end && a && att; i++) {
        const float weight = expf(a[i * n_a]);
        if (r->desc.loss) weights = 0; /* rows of other slices are not there */
        weights += weight;
        if (lse) lse[i] = logf(weights);
        for (int c = 0; c < n; c++) {
            const float own = weight * a[i * n_a + c % n_a];
            if (!r->desc.loss) sums[c] += own;
            if (key) sums[c] += .1f * key[(first + i) * n_key + c % n_key];
            att[i * n + c] = (sums[c] + (r->desc.loss ? own : 0)) / weights;
        }
    }
}

/* A whole block of rows is computed by other operations than a part of one, as in libraries. */
static void project(trainer* r, memo_session* s, int pass, int32_t layer, int64_t begin,
                    int64_t end) {
    const int from = has(r, AN_ITEM, layer, ATT) ? ATT : A;
    const int n = r->n[AN_ITEM][OUT], n_a = r->n[AN_ITEM][from], n_f = r->n[A_STATE][FROZEN];
    const float *a = at(r, s, pass, AN_ITEM, layer, from), *f = NULL;
    float* out = at(r, s, pass, AN_ITEM, layer, OUT);
    if (has(r, A_STATE, layer, FROZEN)) f = at(r, s, pass, A_STATE, layer, FROZEN);
    for (int64_t i = begin; i < end && a && out; i++) {
        const int is_whole = (i - begin) / r->block * r->block + r->block <= end - begin;
        const float noise = r->m == GENERATOR_ADVANCED ? .01f * (float)(r->n_drawn++ % 7) : 0;
        for (int c = 0; c < n; c++) {
            const float y = a[i * n_a + c % n_a] + noise + look(f, n_f, 5 * c);
            out[i * n + c] = is_whole ? tanhf(y) : 1 - 2 / (expf(2 * y) + 1);
        }
    }
}

static void recompute(void* user, memo_session* s, int32_t layer, int32_t tensor, int64_t begin,
                      int64_t end) {
    trainer* r = (trainer*)user;
    int role = 0;
    while (role < N_ITEMS && r->index[AN_ITEM][role] != tensor) role++;
    if (r->m == BEGIN_IGNORED) end -= begin, begin = 0;
    if (r->m == NOT_RECOMPUTED && r->role == role) return;
    if (role == A) normalize(r, s, RECOMPUTE, layer, begin, end);
    if (role == ATT) attend(r, s, RECOMPUTE, layer, begin, end);
    if (role == OUT) project(r, s, RECOMPUTE, layer, begin, end);
}

static void forward(void* user, memo_session* s, int32_t layer) {
    trainer* r = (trainer*)user;
    const memo_slice slice = memo_session_get_slice(s);
    const int64_t n = r->m == DESC_ROWS || r->m == BATCH_ROWS ? r->n_rows : slice.end - slice.begin;
    const int number = r->number + micro_batch_of(r, s), n_out = r->n[AN_ITEM][OUT];
    float *x = hidden(r, s, FORWARD, layer), *in, *out, *key, *kept, *carry;
    if (!x) return;
    if (r->m == WRITES_NO_ROWS && layer == r->by % r->desc.n_layers) return;
    if (r->index[A_BUFFER][SUM] >= 0 && layer == 0) {
        float* sum = at(r, s, FORWARD, A_BUFFER, layer, SUM);
        for (int i = 0; i < r->n[A_BUFFER][SUM] && sum; i++) sum[i] = .3f * (float)i;
    }
    if (layer == 0) {
        const float* table = r->of_first ? at(r, s, FORWARD, A_STATE, -1, TABLE) : NULL;
        for (int64_t i = 0; i < n * C; i++)
            x[i] = sinf(.3f * (float)(i + C * slice.begin) + (float)number) +
                   look(table, r->n[A_STATE][TABLE], (int)(i + C * slice.begin));
    }

    in = at(r, s, FORWARD, AN_ITEM, layer, IN);
    if (in) memcpy(in, x, (size_t)(n * C) * sizeof *x);
    normalize(r, s, FORWARD, layer, 0, n);
    if (has(r, AN_ITEM, layer, KEY) && (key = at(r, s, FORWARD, AN_ITEM, layer, KEY)))
        for (int64_t i = 0; i < n; i++)
            for (int c = 0; c < r->n[AN_ITEM][KEY]; c++)
                key[(slice.begin + i) * r->n[AN_ITEM][KEY] + c] = .7f * x[i * C + c % C];
    if (has(r, AN_ITEM, layer, ATT)) attend(r, s, FORWARD, layer, 0, n);
    project(r, s, FORWARD, layer, 0, n);
    if (has(r, AN_ITEM, layer, KEPT) && (kept = at(r, s, FORWARD, AN_ITEM, layer, KEPT)))
        for (int64_t i = 0; i < n; i++)
            for (int c = 0; c < r->n[AN_ITEM][KEPT]; c++)
                kept[i * r->n[AN_ITEM][KEPT] + c] = .9f * x[i * C + c % C];
    if (has(r, AN_ITEM, layer, CARRY) && (carry = at(r, s, FORWARD, AN_ITEM, layer, CARRY)))
        for (int c = 0; c < r->n[AN_ITEM][CARRY]; c++) carry[c] = .1f * (float)c;
    out = at(r, s, FORWARD, AN_ITEM, layer, OUT);
    for (int64_t i = 0; i < n * C && out; i++) {
        float v = .5f * out[i / C * n_out + i % C % n_out];
        if (r->index[A_BUFFER][LONG] >= 0) {
            float* p = at(r, s, FORWARD, A_BUFFER, layer, LONG);
            if (!layer && p) p[i % r->n[A_BUFFER][LONG]] = .2f;
            if (p) v += .1f * p[i % r->n[A_BUFFER][LONG]];
        }
        x[i] += v;
    }
    x[0] += more(r, s, FORWARD, layer);
}

/* Behind the forward of the last layer, of all rows or of the open slice: the loss, whose gradient
 * takes the place of the output if that is an EDGE. */
static void loss(void* user, memo_session* s) {
    trainer* r = (trainer*)user;
    const memo_batch batch = memo_session_get_batch(s);
    const int32_t last = r->desc.n_layers - 1;
    const memo_slice slice = memo_session_get_slice(s);
    const int64_t n = r->desc.loss ? slice.end - slice.begin : batch.n_rows;
    const int first = r->desc.loss ? C * (int)slice.begin : 0;
    const float* table = NULL;
    float *x = hidden(r, s, LOSS, last), *dx = hidden_gradient(r, s, LOSS, last), *g = NULL, *p;
    const int n_table = r->n[A_STATE][TABLE];
    if (r->of_last && !(batch.is_forward_only && r->desc.loss)) /* LAST begins behind that */
        table = at(r, s, LOSS, A_STATE, r->desc.n_layers, TABLE);
    if (!batch.is_forward_only && r->of_last)
        g = at(r, s, LOSS, A_STATE, r->desc.n_layers, TABLE_G);
    if (!batch.is_forward_only && r->index[A_BUFFER][OUTPUT] >= 0 && !r->desc.loss &&
        (p = at(r, s, LOSS, A_BUFFER, last, OUTPUT)))
        for (int i = 0; i < r->n[A_BUFFER][OUTPUT]; i++) p[i] = x ? x[i % (n * C)] : 0;
    for (int64_t i = 0; i < n * C && x && (batch.is_forward_only || dx); i++) {
        const int k = first + (int)i;
        const float y = x[i] * (1 + look(table, n_table, k)), d = (y - .3f) / (float)T_MAX;
        *(batch.is_forward_only ? &r->validated : &r->loss) += (double)(y * y);
        if (g) g[k % n_table] += d * x[i];
        if (!batch.is_forward_only) dx[i] = d;
    }
    if (dx && !batch.is_forward_only) dx[1] += more(r, s, LOSS, last);
}

static void backward(void* user, memo_session* s, int32_t layer) {
    trainer* r = (trainer*)user;
    const memo_slice slice = memo_session_get_slice(s);
    const int64_t n = r->m == DESC_ROWS || r->m == BATCH_ROWS ? r->n_rows : slice.end - slice.begin;
    const int n_g = r->n[A_STATE][G], n_w = r->n[A_STATE][W];
    const float* w = at(r, s, BACKWARD, A_STATE, layer, W);
    const float* rows[N_ITEMS] = {NULL};
    float *g = at(r, s, BACKWARD, A_STATE, layer, G), *d_key = NULL, *scratch = NULL, *table_g;
    float *dx = hidden_gradient(r, s, BACKWARD, layer), sum = 0;
    if (!dx) return;
    if (g && r->m == GRADIENT_CLEARED && slice.end == memo_session_get_batch(s).n_rows)
        memset(g, 0, sizeof *g * (size_t)n_g);
    for (int t = IN; t < N_ITEMS; t++)
        if (has(r, AN_ITEM, layer, t)) rows[t] = at(r, s, BACKWARD, AN_ITEM, layer, t);
    if (rows[KEY] && r->index[A_BUFFER][D_KEY] >= 0)
        d_key = at(r, s, BACKWARD, A_BUFFER, layer, D_KEY);
    if (d_key && r->m != BUFFER_NOT_CLEARED && slice.end == memo_session_get_batch(s).n_rows)
        memset(d_key, 0, sizeof *d_key * (size_t)slice.end);
    if (r->index[A_BUFFER][SCRATCH] >= 0) scratch = at(r, s, BACKWARD, A_BUFFER, layer, SCRATCH);
    if (r->index[A_BUFFER][SUM] >= 0) {
        const float* p = at(r, s, BACKWARD, A_BUFFER, layer, SUM);
        for (int i = 0; i < r->n[A_BUFFER][SUM] && p; i++) sum += .01f * p[i];
    }

    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k <= slice.begin + i && d_key; k++) d_key[k] += .01f * dx[i * C];
    for (int64_t i = 0; i < n; i++) {
        float v = sum;
        for (int t = IN; t < N_ITEMS; t++)
            for (int c = 0; c < r->n[AN_ITEM][t] && rows[t]; c++)
                v += .1f *
                     rows[t]
                         [(t == CARRY ? 0 : (i + (t == KEY ? slice.begin : 0)) * r->n[AN_ITEM][t]) +
                          c];
        if (scratch) scratch[i] = v, v = 1.5f * scratch[i];
        if (d_key) v += d_key[slice.begin + i];
        for (int j = 0; j < n_g && g; j++) {
            const float add = dx[i * C + j % C] * (v + .01f * (float)j);
            g[j] = r->m == GRADIENT_ASSIGNED && !i ? add : g[j] + add;
        }
        for (int c = 0; c < C; c++) dx[i * C + c] *= .9f + look(w, n_w, 3 * c);
    }

    if (g) g[2] += more(r, s, BACKWARD, layer);
    if (layer == 0 && r->of_first && (table_g = at(r, s, BACKWARD, A_STATE, -1, TABLE_G)))
        for (int64_t i = 0; i < n * C; i++)
            table_g[(i + C * slice.begin) % r->n[A_STATE][TABLE_G]] += dx[i];
    if (memo_session_get_batch(s).more_follow) return;
    r->squares[layer] = 0;
    for (int i = 0; i < n_g && g; i++) r->squares[layer] += g[i] * g[i];
}

static float norm_of(const trainer* r) {
    float sum = 0;
    for (int32_t l = 0; l < r->desc.n_layers; l++) sum += r->squares[l];
    return sqrtf(sum);
}

/* Momentum, with a rate of the step. */
static void update(void* user, memo_session* s, int32_t layer) {
    trainer* r = (trainer*)user;
    const int is_layer = layer >= 0 && layer < r->desc.n_layers;
    const values* now = (const values*)memo_session_get_batch(s).values;
    float rate = now->rate / (float)(1 + now->step), *w, *g, *m, *master, *average;
    if (!is_layer && !(layer < 0 ? r->of_first : r->of_last)) return;
    if (r->m == LAYER_NOT_UPDATED && layer == r->by % r->desc.n_layers) return;
    if (r->clips) rate *= now->clip;
    if (r->m == OWN_STEP) rate = .01f / (float)(1 + r->step);
    if (r->m == NORM_OF_THIS_STEP) rate /= 1 + norm_of(r);
    if (r->m == COUNTS_UPDATES) rate *= (float)++r->n_updates;
    w = at(r, s, UPDATE, A_STATE, layer, is_layer ? W : TABLE);
    g = at(r, s, UPDATE, A_STATE, layer, is_layer ? G : TABLE_G);
    m = at(r, s, UPDATE, A_STATE, layer, is_layer ? M : TABLE_M);
    master =
        is_layer && r->index[A_STATE][MASTER] >= 0 ? at(r, s, UPDATE, A_STATE, layer, MASTER) : w;
    average = is_layer && r->index[A_STATE][AVERAGE] >= 0
                  ? at(r, s, UPDATE, A_STATE, layer, AVERAGE)
                  : NULL;
    if (!w || !g || !m || !master) return; /* of a layer above a SHARED state's */
    m[0] += more(r, s, UPDATE, layer);
    for (int i = 0; i < r->n[A_STATE][is_layer ? W : TABLE]; i++) {
        m[i] = .9f * m[i] + g[i];
        master[i] -= rate * m[i];
        if (master != w) w[i] = .5f * master[i];
        if (average) average[i] = .75f * average[i] + .25f * w[i];
    }
}

/* --- steps --- */

/* A call of the session: a micro-batch, a group, or all turns of an order. */
static memo_status run_call(trainer* r, memo_session* s, memo_batch* batch, memo_error* e) {
    memo_status status = MEMO_STATUS_OK;
    for (int k = 0; k < (r->desc.n_order ? r->desc.n_order : 1) && !status; k++) {
        if (r->desc.n_order) batch->turn = r->order[k];
        status = memo_session_run(s, batch, e);
    }
    return status;
}

/* Which layers train in this step, by turns. */
static void choose_masks(trainer* r) {
    for (int32_t l = 0; l < r->desc.n_layers + 2; l++) {
        const int is_layer = l > 0 && l <= r->desc.n_layers;
        uint32_t used = 1u << r->index[A_STATE][W];
        if (r->index[A_STATE][FROZEN] >= 0) used |= 1u << r->index[A_STATE][FROZEN];
        r->step_masks[l] = is_layer && (l + r->step) % 2 ? used : ~0u;
        if (r->m == BATCH_STATES && l == r->by % (r->desc.n_layers + 2))
            r->step_masks[l] &= ~(1u << r->role);
    }
}

static memo_status train_step(void* user, memo_session* s, memo_error* e) {
    trainer* r = (trainer*)user;
    values now = {r->step, .01f, .5f};
    memo_batch batch = MEMO_ZERO(memo_batch);
    memo_status status = MEMO_STATUS_OK;
    const int is_skipped = r->skips && r->step == 2;
    choose_masks(r);
    batch.values = &now, batch.values_bytes = sizeof now;
    if (r->masks || r->m == BATCH_STATES) batch.states = r->step_masks;
    if (r->m == BATCH_VALUES) batch.values_bytes = 4 * (r->by % 3);
    if (r->m == BATCH_ROWS) batch.n_rows = r->n_rows / 2;
    for (int k = 0; k < r->n_calls && !status; k++) {
        batch.more_follow = k < r->n_calls - 1;
        if (r->m == BATCH_MORE_FOLLOW) batch.more_follow = r->by % 2;
        if (r->m == BATCH_STATES && r->pass == 0) batch.states = k ? NULL : r->step_masks;
        status = run_call(r, s, &batch, e);
        r->number += r->n_of_call;
        if (r->index[A_BUFFER][OUTPUT] >= 0 && !r->desc.loss && !status) {
            const float* p = (const float*)address_of(r, s, A_BUFFER, 0, OUTPUT);
            if (p) r->loss += (double)p[1];
        }
    }

    if (r->clips && !status && !is_skipped) {
        now.clip = 1 / (1 + norm_of(r));
        status = memo_session_set_update_values(s, &now, sizeof now, e);
    }
    if (!status && r->m == READS_OUTSIDE) {
        const float* p = (const float*)address_of(r, s, r->kind, r->by % r->desc.n_layers, r->role);
        if (p) r->loss += (double)p[2];
    }
    if (!status && !(r->m == UPDATE_FORGOTTEN && r->step == r->by % (STEPS - 1)))
        status = is_skipped ? memo_session_skip_update(s, e) : memo_session_update(s, e);
    if (!status && r->validates && r->step % 2) {
        memo_batch alone = MEMO_ZERO(memo_batch);
        alone.is_forward_only = 1;
        alone.shape = r->desc.n_shapes > 1;
        status = memo_session_run(s, &alone, e);
    }
    r->step++;
    return status;
}

/* --- right trainers --- */

static int chance(int percent) { return memo_test_int(0, 99) < percent; }

static void declare_item(trainer* r, int role, int n, int32_t away, int32_t scope) {
    memo_item* item = &r->items[r->desc.n_tensors];
    *item = MEMO_ZERO(memo_item);
    item->name = role_names[AN_ITEM][role];
    item->row_bytes = 4 * n, item->away = away, item->scope = scope;
    if (r->of_odd[AN_ITEM][role]) item->kinds = 2;
    r->n[AN_ITEM][role] = n;
    r->index[AN_ITEM][role] = r->desc.n_tensors++;
}

/* Rows that recompute gives, in one of the ways that are legal for them. */
static int32_t choose_away(int32_t recomputed) {
    return chance(80) ? recomputed : chance(50) ? MEMO_MOVE : MEMO_KEEP;
}

static void declare_items(trainer* r, int is_sliced) {
    const int n = (int)memo_test_int(1, 6);
    const int32_t away_of_a = choose_away(chance(20) ? MEMO_WHOLE : MEMO_ROWS);
    const int has_key = chance(40);
    if (is_sliced) declare_item(r, EDGE, C, MEMO_MOVE, MEMO_EDGE);
    declare_item(r, IN, C, chance(80) ? MEMO_MOVE : MEMO_KEEP,
                 is_sliced && chance(60) ? MEMO_INPUT : MEMO_SLICE);
    declare_item(r, A, n, away_of_a, MEMO_SLICE);
    if (chance(60)) declare_item(r, STAT, 1, MEMO_WITH, 0);
    if (has_key) declare_item(r, KEY, (int)memo_test_int(1, 3), MEMO_MOVE, MEMO_LAYER);
    r->of_odd[AN_ITEM][ATT] = r->of_odd[AN_ITEM][LSE] = r->desc.layer_kinds && chance(40);
    if (chance(70)) {
        declare_item(r, ATT, (int)memo_test_int(1, 6), choose_away(MEMO_WHOLE), MEMO_SLICE);
        if (chance(60)) declare_item(r, LSE, 1, MEMO_WITH, 0);
    }
    if (r->index[AN_ITEM][LSE] >= 0) r->items[r->index[AN_ITEM][LSE]].kinds = 0;
    if (is_sliced && chance(30))
        declare_item(r, CARRY, (int)memo_test_int(1, 9), MEMO_MOVE, MEMO_CARRIED);
    declare_item(r, OUT, (int)memo_test_int(1, C), choose_away(MEMO_ROWS), MEMO_SLICE);
    r->of_odd[AN_ITEM][KEPT] = r->desc.layer_kinds && chance(50);
    if (chance(30)) declare_item(r, KEPT, (int)memo_test_int(1, C), MEMO_KEEP, MEMO_SLICE);
    for (int32_t t = 1; t < r->desc.n_tensors; t++)
        if (r->items[t].away == MEMO_WITH) r->items[t].kinds = r->items[t - 1].kinds;
}

static void declare_state(trainer* r, int role, int n, uint32_t uses, uint32_t kinds) {
    memo_state* state = &r->states[r->desc.n_states];
    state->name = role_names[A_STATE][role];
    state->size_bytes = 4 * n, state->uses = uses, state->kinds = kinds;
    if (r->of_odd[A_STATE][role]) state->kinds = 2;
    r->n[A_STATE][role] = n;
    r->index[A_STATE][role] = r->desc.n_states++;
}

static void declare_states(trainer* r) {
    const int n = (int)memo_test_int(20, FLOATS_MAX), n_table = (int)memo_test_int(20, FLOATS_MAX);
    const int is_made = chance(40), table = (int)memo_test_int(0, 3);
    const uint32_t first = table & 1 ? MEMO_STATE_FIRST : 0;
    const uint32_t kinds = first | (table & 2 ? MEMO_STATE_LAST : 0);
    const uint32_t shared = table == 3 ? MEMO_STATE_SHARED : 0;
    declare_state(r, W, n, MEMO_STATE_WEIGHTS | (is_made ? MEMO_STATE_MADE : 0), 0);
    declare_state(r, G, n, MEMO_STATE_GRADIENT, 0);
    if (is_made) declare_state(r, MASTER, n, MEMO_STATE_UPDATE, 0);
    declare_state(r, M, n, MEMO_STATE_UPDATE, 0);
    if (r->validates && chance(50))
        declare_state(r, AVERAGE, n, MEMO_STATE_UPDATE | MEMO_STATE_ALONE, 0);
    r->of_odd[A_STATE][FROZEN] = r->desc.layer_kinds && chance(50);
    if (chance(40))
        declare_state(r, FROZEN, (int)memo_test_int(5, FLOATS_MAX),
                      MEMO_STATE_FORWARD | MEMO_STATE_BACKWARD, 0);
    r->of_first = table & 1, r->of_last = table >> 1;
    if (!table) return;
    declare_state(r, TABLE, n_table, MEMO_STATE_WEIGHTS | shared, kinds);
    declare_state(r, TABLE_G, n_table, MEMO_STATE_GRADIENT | shared, kinds);
    declare_state(r, TABLE_M, n_table, MEMO_STATE_UPDATE | shared, kinds);
}

static void declare_buffer(trainer* r, int role, int n, int is_rows, memo_pass first,
                           int32_t first_layer, memo_pass last, int32_t last_layer) {
    memo_session_buffer* b = &r->buffers[r->desc.n_buffers];
    b->name = role_names[A_BUFFER][role];
    b->size_bytes = is_rows ? 0 : 4 * n, b->row_bytes = is_rows ? 4 * n : 0;
    b->first = first, b->first_layer = first_layer, b->last = last, b->last_layer = last_layer;
    r->n[A_BUFFER][role] = n;
    r->index[A_BUFFER][role] = r->desc.n_buffers++;
}

static void declare_buffers(trainer* r, int is_sliced) {
    const int32_t last = r->desc.n_layers - 1;
    if (!is_sliced && chance(70))
        declare_buffer(r, DX, C, 1, MEMO_PASS_BETWEEN, 0, MEMO_PASS_BACKWARD, 0);
    if (r->index[AN_ITEM][KEY] >= 0 && chance(70))
        declare_buffer(r, D_KEY, 1, 1, MEMO_PASS_BACKWARD, MEMO_EACH_LAYER, MEMO_PASS_BACKWARD, 0);
    if (chance(60))
        declare_buffer(r, SCRATCH, 1, 1, MEMO_PASS_BACKWARD,
                       is_sliced && chance(50) ? MEMO_EACH_SLICE : MEMO_EACH_LAYER,
                       MEMO_PASS_BACKWARD, 0);
    if (chance(40))
        declare_buffer(r, SUM, (int)memo_test_int(1, 400), 0, MEMO_PASS_SESSION, 0,
                       MEMO_PASS_SESSION, 0);
    if (!is_sliced && chance(30))
        declare_buffer(r, OUTPUT, (int)memo_test_int(2, 400), 0, MEMO_PASS_BETWEEN, 0,
                       MEMO_PASS_AFTER, 0);
    if (r->desc.n_group < 2 && chance(30))
        declare_buffer(r, LONG, (int)memo_test_int(1, 300), 0, MEMO_PASS_FORWARD, 0,
                       MEMO_PASS_FORWARD, last);
}

/* A right trainer. */
static void make_trainer(trainer* r) {
    const int is_sliced = chance(40), has_order = !is_sliced && chance(25);
    memset(r, 0, sizeof *r);
    memset(r->index, -1, sizeof r->index);
    r->desc.user = r;
    r->desc.n_layers = (int32_t)memo_test_int(1, L_MAX);
    r->desc.n_rows = r->n_rows = (int)memo_test_int(4, T_MAX);
    r->desc.tile_rows = memo_test_int(1, 4);
    r->block = (int)(chance(50) ? r->desc.tile_rows : 1);
    r->n_calls = (int)memo_test_int(1, 3), r->n_of_call = 1;
    for (int32_t l = 0; l < L_MAX; l++) r->layer_kinds[l] = l % 2;
    if (chance(40))
        r->desc.layer_kinds = r->layer_kinds;
    else
        memset(r->layer_kinds, 0, sizeof r->layer_kinds);

    /* Rounds of a step. */
    r->desc.slice_rows = r->desc.n_rows;
    if (is_sliced && chance(70)) {
        r->desc.slice_rows = r->desc.tile_rows * memo_test_int(1, 4);
        if (r->desc.slice_rows > r->desc.n_rows) r->desc.slice_rows = r->desc.n_rows;
    }
    r->desc.micro_batches = r->n_calls;
    if (is_sliced && chance(30)) r->n_of_call = r->desc.n_group = 2, r->desc.micro_batches *= 2;
    if (has_order) {
        const memo_turn turns[] = {{0, 0, MEMO_PASS_FORWARD},
                                   {1, 0, MEMO_PASS_FORWARD},
                                   {0, 0, MEMO_PASS_BACKWARD},
                                   {1, 0, MEMO_PASS_BACKWARD}};
        memcpy(r->order, turns, sizeof turns);
        r->desc.order = r->order, r->desc.n_order = 4, r->desc.micro_batches = 0;
        r->n_of_call = 2;
    }
    r->validates = chance(50);
    if (r->validates && (r->desc.n_order || r->desc.n_group || chance(30))) {
        r->shapes[0].n_rows = r->shapes[1].n_rows = r->desc.n_rows;
        r->shapes[1].is_forward_only = 1;
        r->desc.shapes = r->shapes, r->desc.n_shapes = 2;
    }
    r->desc.update_may = (int32_t)memo_test_int(0, 3);
    r->clips = !(r->desc.update_may & MEMO_MAY_FUSE) && chance(30);
    r->skips = !(r->desc.update_may & MEMO_MAY_FUSE) && chance(20);
    r->masks = chance(25);

    declare_items(r, is_sliced);
    declare_states(r);
    declare_buffers(r, is_sliced);
    r->desc.tensors = r->items, r->desc.states = r->states, r->desc.buffers = r->buffers;
    r->desc.forward = forward, r->desc.backward = backward, r->desc.recompute = recompute;
    r->desc.update = update;
    if (is_sliced)
        r->desc.loss = loss;
    else
        r->desc.between = loss;
    r->desc.timed_steps = -1, r->desc.is_unadvised = 1;
    r->desc.alpha = .5;
}

/* --- mutants --- */

/* A role that the trainer has; -1: none. */
static int choose_role(const trainer* r, int kind) {
    int roles[ROLES_MAX], n = 0;
    for (int i = 0; i < ROLES_MAX; i++)
        if (r->index[kind][i] >= 0) roles[n++] = i;
    return n ? roles[memo_test_int(0, n - 1)] : -1;
}

/* Chooses an access of a right trainer. */
static void choose_access(trainer* r) {
    static const uint32_t roles[N_PASSES][N_KINDS] = {
        {~0u, 1u << W | 1u << AVERAGE | 1u << FROZEN | 1u << TABLE, 1u << SUM | 1u << LONG},
        {~(1u << EDGE | 1u << CARRY | 1u << KEPT), 1u << W | 1u << FROZEN, 0},
        {1u << EDGE, 1u << TABLE | 1u << TABLE_G, 1u << DX | 1u << OUTPUT},
        {~0u, 1u << W | 1u << G | 1u << TABLE_G, ~(1u << OUTPUT | 1u << LONG)},
        {0, ~(1u << FROZEN), 0}};
    do {
        r->pass = (int)memo_test_int(0, N_PASSES - 1);
        r->kind = (int)memo_test_int(0, N_KINDS - 1);
        r->role = choose_role(r, r->kind);
    } while (r->role < 0 || !(roles[r->pass][r->kind] >> r->role & 1));
}

static void mutate_item(trainer* r) {
    memo_item* item = &r->items[r->index[AN_ITEM][r->role]];
    const memo_item of = *item;
    const int32_t other = (int32_t)memo_test_int(0, r->desc.n_tensors - 1);
    switch ((int)r->m) {
    case ITEM_BYTES: item->row_bytes += chance(40) ? -of.row_bytes / 2 : chance(50) ? -4 : 4; break;
    case ITEM_AWAY: item->away = (int32_t)memo_test_int(0, MEMO_N_AWAYS - 1); break;
    case ITEM_SCOPE: item->scope = (int32_t)memo_test_int(0, MEMO_N_SCOPES - 1); break;
    case ITEM_BY_BACKWARD: item->is ^= MEMO_BY_BACKWARD; break;
    case ITEM_KINDS: item->kinds = (uint32_t)memo_test_int(1, 2); break;
    default: *item = r->items[other], r->items[other] = of; break;
    }
}

static void mutate_state(trainer* r) {
    memo_state* state = &r->states[r->index[A_STATE][r->role]];
    const memo_state of = *state;
    const int32_t other = (int32_t)memo_test_int(0, r->desc.n_states - 1);
    const uint32_t bit = 1u << memo_test_int(0, 6);
    switch ((int)r->m) {
    case STATE_BYTES: state->size_bytes = chance(50) ? of.size_bytes / 2 : of.size_bytes - 4; break;
    case STATE_USES_LESS: state->uses &= ~bit; break;
    case STATE_USES_OTHER: state->uses |= bit; break;
    case STATE_KINDS:
        state->kinds = chance(50) ? 1u << memo_test_int(0, 1) : MEMO_STATE_FIRST << (bit & 1);
        break;
    default: *state = r->states[other], r->states[other] = of; break;
    }
}

static void mutate_buffer(trainer* r) {
    memo_session_buffer* b = &r->buffers[r->index[A_BUFFER][r->role]];
    const memo_pass pass = (memo_pass)memo_test_int(0, MEMO_N_PASSES - 1);
    const int32_t layer = (int32_t)memo_test_int(-2, r->desc.n_layers - 1);
    if (r->m == BUFFER_BYTES && b->row_bytes)
        b->row_bytes -= chance(50) ? 4 : b->row_bytes / 2;
    else if (r->m == BUFFER_BYTES)
        b->size_bytes /= 2;
    if (r->m == BUFFER_FIRST && chance(50))
        b->first = pass;
    else if (r->m == BUFFER_FIRST)
        b->first_layer = layer;
    if (r->m == BUFFER_LAST && chance(50))
        b->last = pass;
    else if (r->m == BUFFER_LAST)
        b->last_layer = layer;
}

static void mutate_desc(trainer* r) {
    const int32_t n = (int32_t)memo_test_int(1, 4);
    switch ((int)r->m) {
    case DESC_LAYERS: r->desc.n_layers += n > 2 ? 1 : r->desc.n_layers > 1 ? -1 : 0; break;
    case DESC_LAYER_KINDS: r->layer_kinds[n % r->desc.n_layers] ^= 1; break;
    case DESC_ROWS: r->desc.n_rows = r->n_rows / 2; break;
    case DESC_TILE: r->desc.tile_rows = n; break;
    case DESC_SLICE: r->desc.slice_rows = n * r->desc.tile_rows; break;
    case DESC_MICRO_BATCHES: r->desc.micro_batches = n; break;
    case DESC_GROUP: r->desc.n_group = n; break;
    case DESC_ORDER: r->order[n % 4].micro_batch ^= 1; break;
    case DESC_SHAPE: r->shapes[n % 2].n_rows -= n; break;
    default: r->desc.update_may = n - 1; break;
    }
}

/* 0: this trainer has nothing of that kind, or nothing has changed. */
static int mutate(trainer* r, mutation m) {
    const trainer right = *r;
    r->m = m;
    r->pass = (int)memo_test_int(0, N_PASSES - 1);
    r->by = (int)memo_test_int(0, 1000);
    r->kind = (int)memo_test_int(0, N_KINDS - 1);
    if (m >= ITEM_BYTES && m <= ITEM_KINDS) r->kind = AN_ITEM;
    if (m >= STATE_BYTES && m <= STATE_ORDER) r->kind = A_STATE;
    if (m >= BUFFER_BYTES && m <= BUFFER_LAST) r->kind = A_BUFFER;
    if (m == NOT_RECOMPUTED) r->kind = AN_ITEM;
    if (m == BATCH_STATES) r->kind = A_STATE;
    r->role = choose_role(r, r->kind);
    if (m && r->role < 0) return 0;
    if (m == LAYER_NOT_UPDATED && (r->desc.n_layers < 2 || r->masks))
        return 0; /* the others show it */
    if (m >= ITEM_BYTES && m <= ITEM_KINDS) mutate_item(r);
    if (m >= STATE_BYTES && m <= STATE_ORDER) mutate_state(r);
    if (m >= BUFFER_BYTES && m <= BUFFER_LAST) mutate_buffer(r);
    if (m >= DESC_LAYERS && m <= DESC_MAY) mutate_desc(r);
    if (m >= ITEM_BYTES && m <= DESC_MAY && !memcmp(&r->desc, &right.desc, sizeof r->desc) &&
        !memcmp(r->items, right.items, sizeof r->items) &&
        !memcmp(r->states, right.states, sizeof r->states) &&
        !memcmp(r->buffers, right.buffers, sizeof r->buffers) &&
        (!r->desc.order || !memcmp(r->order, right.order, sizeof r->order)) &&
        (!r->desc.shapes || !memcmp(r->shapes, right.shapes, sizeof r->shapes)) &&
        (!r->desc.layer_kinds || !memcmp(r->layer_kinds, right.layer_kinds, sizeof r->layer_kinds)))
        return 0;
    if (m == OTHER_LAYER || m == OTHER_ROLE || m == KEPT_ADDRESS) choose_access(r);
    if (m == OTHER_LAYER) r->by = r->by % 2 ? 1 : -1;
    if (m == OTHER_ROLE) r->by = choose_role(r, r->kind);
    if (m == OTHER_ROLE && r->by == r->role) return 0;
    if (m == BATCH_STATES) r->role = r->index[A_STATE][r->role];
    return 1;
}

#endif
