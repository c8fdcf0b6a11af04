/* gpt_kernels_host.h - the operations of gpt_kernels.h on a stream of the host device, with helper
 * threads: each kind is a function that runs with its arguments.
 *
 * Single translation unit: everything is static. */
#ifndef GPT_KERNELS_HOST_H
#define GPT_KERNELS_HOST_H

#include "gpt_math.h"
#include "gpt_threads.h"

#define GPT_REAL_TYPE (sizeof(gpt_real) == sizeof(float) ? MEMO_TYPE_F32 : MEMO_TYPE_F64)

/* Pieces of an operation that threads share: rows, if the operation treats each row alone; outputs,
 * for the gradient of a weight; elements. */
enum { GPT_PIECE_ROWS = 64, GPT_PIECE_OUTPUTS = 48, GPT_PIECE_ELEMENTS = 8192 };

/* The real at an index; these state what an argument points to. */
static const gpt_real* gpt_in(const void* x, int64_t i) { return (const gpt_real*)x + i; }
static gpt_real* gpt_out(void* x, int64_t i) { return (gpt_real*)x + i; }

/* ---- linear ---- */

static void gpt_linear_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_linear_args* a = (const gpt_linear_args*)pointer;
    const int64_t at = begin - a->rows.begin;
    gpt_linear_forward(gpt_out(a->y, at * a->n_outputs), gpt_in(a->x, at * a->n_inputs),
                       gpt_in(a->weight, 0), end - begin, a->n_outputs, a->n_inputs);
}
static void gpt_linear_run(const void* pointer) {
    const gpt_linear_args* a = (const gpt_linear_args*)pointer;
    gpt_over(gpt_linear_rows, a, a->rows.begin, a->rows.end, a->tile_rows);
}

static void gpt_linear_backward_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_linear_args* a = (const gpt_linear_args*)pointer;
    const int64_t at = begin - a->rows.begin;
    gpt_linear_backward(gpt_out(a->dx, at * a->n_inputs), gpt_in(a->y, at * a->n_outputs),
                        gpt_in(a->weight, 0), a->is_first, end - begin, a->n_outputs, a->n_inputs);
}
/* Outputs [begin, end), of all rows. */
static void gpt_linear_weights_outputs(const void* pointer, int64_t begin, int64_t end) {
    const gpt_linear_args* a = (const gpt_linear_args*)pointer;
    gpt_linear_weights(gpt_out(a->dweight, begin * a->n_inputs), gpt_in(a->y, begin), a->n_outputs,
                       gpt_in(a->x, 0), gpt_count(a->rows), end - begin, a->n_inputs);
}
static void gpt_linear_backward_run(const void* pointer) {
    const gpt_linear_args* a = (const gpt_linear_args*)pointer;
    if (a->pass != GPT_PASS_WEIGHTS)
        gpt_over(gpt_linear_backward_rows, a, a->rows.begin, a->rows.end, a->tile_rows);
    if (a->pass != GPT_PASS_INPUTS)
        gpt_over(gpt_linear_weights_outputs, a, 0, a->n_outputs, GPT_PIECE_OUTPUTS);
}

/* ---- norm ---- */

static void gpt_norm_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_norm_args* a = (const gpt_norm_args*)pointer;
    const int64_t at = begin - a->rows.begin;
    gpt_norm_forward(gpt_out(a->y, at * a->hidden), gpt_out(a->rstd, at),
                     gpt_in(a->x, at * a->hidden), gpt_in(a->weight, 0), end - begin, a->hidden);
}

static void gpt_norm_backward_run(const void* pointer) {
    const gpt_norm_args* a = (const gpt_norm_args*)pointer;
    gpt_norm_backward(gpt_out(a->dx, 0), gpt_out(a->dweight, 0), gpt_in(a->y, 0), gpt_in(a->x, 0),
                      gpt_in(a->rstd, 0), gpt_in(a->weight, 0), gpt_count(a->rows), a->hidden);
}

/* ---- element by element: dropout, residual, GELU, SwiGLU, RoPE ---- */

/* Returns how many rows from `row` to `end` hold consecutive tokens, or padding. */
static int64_t gpt_run_of_rows(const int64_t* numbers, int64_t row, int64_t end) {
    const int64_t first = numbers[row];
    int64_t n = 1;
    while (row + n < end && numbers[row + n] == (first < 0 ? first : first + n)) n++;
    return n;
}

static void gpt_dropout_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_elements_args* a = (const gpt_elements_args*)pointer;
    const int64_t stop = end - a->rows.begin, first_token = a->values->first_token;
    const gpt_dropout dropout = gpt_dropout_of(a);
    int64_t row, n;
    for (row = begin - a->rows.begin; row < stop; row += n) {
        const int64_t at = row * a->n_columns, token = first_token + a->token_numbers[row];
        n = gpt_run_of_rows(a->token_numbers, row, stop);
        if (a->z)
            gpt_residual_forward(gpt_out(a->y, at), gpt_in(a->x, at), gpt_in(a->z, at), &dropout,
                                 token, n, a->n_columns);
        else
            gpt_dropout_apply(gpt_out(a->y, at), gpt_in(a->x, at), &dropout, token, n,
                              a->n_columns);
    }
}

static void gpt_gelu_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_elements_args* a = (const gpt_elements_args*)pointer;
    const int64_t at = (begin - a->rows.begin) * a->n_columns;
    gpt_gelu_forward(gpt_out(a->y, at), gpt_in(a->x, at), end - begin, a->n_columns);
}

static void gpt_gelu_backward_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_elements_args* a = (const gpt_elements_args*)pointer;
    const int64_t at = (begin - a->rows.begin) * a->n_columns;
    gpt_gelu_backward(gpt_out(a->y, at), gpt_in(a->x, at), gpt_in(a->z, at), end - begin,
                      a->n_columns);
}

static void gpt_swiglu_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_elements_args* a = (const gpt_elements_args*)pointer;
    const int64_t at = (begin - a->rows.begin) * a->n_columns;
    gpt_swiglu_forward(gpt_out(a->y, at), gpt_in(a->x, 2 * at), end - begin, a->n_columns);
}

static void gpt_swiglu_backward_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_elements_args* a = (const gpt_elements_args*)pointer;
    const int64_t at = (begin - a->rows.begin) * a->n_columns;
    gpt_swiglu_backward(gpt_out(a->y, 2 * at), gpt_in(a->x, at), gpt_in(a->z, 2 * at), end - begin,
                        a->n_columns);
}

static void gpt_rope_run(const void* pointer) {
    const gpt_rope_args* a = (const gpt_rope_args*)pointer;
    gpt_rope(gpt_out(a->x, 0), gpt_in(a->table, 0), a->direction, a->rows.begin, gpt_count(a->rows),
             a->sequence, a->n_heads, a->head_size);
}

/* ---- attention ---- */

/* Key-value head `piece % n_kv_heads` of sequence `piece / n_kv_heads`, with its query heads. */
static void gpt_attention_piece(const void* pointer, int64_t piece, int64_t end) {
    const gpt_attention_args* a = (const gpt_attention_args*)pointer;
    const int64_t q_columns = a->shape.n_heads * a->shape.head_size;
    const int64_t kv_columns = a->shape.n_kv_heads * a->shape.head_size;
    for (; piece < end; piece++) {
        const int64_t row = piece / a->shape.n_kv_heads * a->shape.sequence;
        const int64_t q = row * q_columns, kv = row * kv_columns;
        gpt_attention_forward(gpt_out(a->out, q), gpt_out(a->lse, row * a->shape.n_heads),
                              gpt_in(a->q, q), gpt_in(a->k, kv), gpt_in(a->v, kv), &a->shape,
                              gpt_begins_at(a, piece / a->shape.n_kv_heads),
                              piece % a->shape.n_kv_heads);
    }
}
static void gpt_attention_run(const void* pointer) {
    const gpt_attention_args* a = (const gpt_attention_args*)pointer;
    gpt_over(gpt_attention_piece, a, 0, a->batch * a->shape.n_kv_heads, 1);
}

static void gpt_attention_backward_piece(const void* pointer, int64_t piece, int64_t end) {
    const gpt_attention_args* a = (const gpt_attention_args*)pointer;
    const int64_t q_columns = a->shape.n_heads * a->shape.head_size;
    const int64_t kv_columns = a->shape.n_kv_heads * a->shape.head_size;
    for (; piece < end; piece++) {
        const int64_t row = piece / a->shape.n_kv_heads * a->shape.sequence;
        const int64_t q = row * q_columns, kv = row * kv_columns, head = row * a->shape.n_heads;
        gpt_attention_backward(
            gpt_out(a->dq, q), gpt_out(a->dk, kv), gpt_out(a->dv, kv), gpt_out(a->delta, head),
            gpt_in(a->dout, q), gpt_in(a->out, q), gpt_in(a->lse, head), gpt_in(a->q, q),
            gpt_in(a->k, kv), gpt_in(a->v, kv), &a->shape,
            gpt_begins_at(a, piece / a->shape.n_kv_heads), piece % a->shape.n_kv_heads);
    }
}
static void gpt_attention_backward_run(const void* pointer) {
    const gpt_attention_args* a = (const gpt_attention_args*)pointer;
    gpt_over(gpt_attention_backward_piece, a, 0, a->batch * a->shape.n_kv_heads, 1);
}

/* ---- tokens: embedding, loss ---- */

static void gpt_embedding_run(const void* pointer) {
    const gpt_tokens_args* a = (const gpt_tokens_args*)pointer;
    gpt_embedding_forward(gpt_out(a->x, 0), gpt_in(a->table, 0), a->tokens, gpt_count(a->rows),
                          a->n_columns);
}

static void gpt_embedding_backward_run(const void* pointer) {
    const gpt_tokens_args* a = (const gpt_tokens_args*)pointer;
    gpt_embedding_backward(gpt_out(a->dtable, 0), gpt_in(a->x, 0), a->tokens, gpt_count(a->rows),
                           a->n_columns);
}

static void gpt_cross_entropy_run(const void* pointer) {
    const gpt_tokens_args* a = (const gpt_tokens_args*)pointer;
    int64_t row;
    for (row = 0; row < gpt_count(a->rows); row++) {
        gpt_real* logits = gpt_out(a->x, row * a->n_columns);
        if (a->token_numbers[row] < 0) { /* padding has no loss and therefore no gradient */
            memset(logits, 0, (size_t)a->n_columns * sizeof(gpt_real));
            a->losses[row] = 0;
        } else {
            a->losses[row] =
                gpt_cross_entropy(logits, a->tokens[row], a->values->loss_scale, a->n_columns);
        }
    }
}

static void gpt_loss_run(const void* pointer) {
    const gpt_loss_args* a = (const gpt_loss_args*)pointer;
    double sum = 0;
    int64_t i;
    for (i = 0; i < a->n; i++) sum += a->losses[i];
    *a->loss += sum;
}

/* ---- sums, the optimizer, digests ---- */

static void gpt_add_run(const void* pointer) {
    const gpt_add_args* a = (const gpt_add_args*)pointer;
    gpt_real* to = gpt_out(a->to, 0);
    const gpt_real* from = gpt_in(a->from, 0);
    int64_t i;
    for (i = 0; i < a->n; i++) to[i] += from[i];
}

static void gpt_squares_run(const void* pointer) {
    const gpt_squares_args* a = (const gpt_squares_args*)pointer;
    gpt_add_squares(a->lanes, gpt_in(a->x, 0), a->n);
}

static void gpt_norm_total_run(const void* pointer) {
    const gpt_total_args* a = (const gpt_total_args*)pointer;
    *a->total += gpt_sum_squares(a->lanes);
    *a->vote = a->values->vote;
    memset(a->lanes, 0, GPT_LANES * sizeof(double));
}

static void gpt_adamw_elements(const void* pointer, int64_t begin, int64_t end) {
    const gpt_adamw_args* a = (const gpt_adamw_args*)pointer;
    const gpt_adamw_desc adamw = gpt_adamw_of(a);
    gpt_adamw(gpt_out(a->parameters, 0), a->moments1, a->moments2, a->states,
              gpt_in(a->gradients, 0), gpt_clip_scale(*a->squares, a->values->clip), &adamw,
              &a->rounding, begin, end);
    if (a->weights)
        memcpy(gpt_out(a->weights, begin), gpt_in(a->parameters, begin),
               (size_t)(end - begin) * sizeof(gpt_real));
}
static void gpt_adamw_run(const void* pointer) {
    const gpt_adamw_args* a = (const gpt_adamw_args*)pointer;
    gpt_over(gpt_adamw_elements, a, 0, a->n, GPT_PIECE_ELEMENTS);
}

static void gpt_digest_run(const void* pointer) {
    const gpt_digest_args* a = (const gpt_digest_args*)pointer;
    const uint32_t* words = (const uint32_t*)a->x;
    uint64_t sum = 0;
    int64_t i;
    for (i = 0; i < a->n_bytes / 4; i++) sum += gpt_digest_word(words[i], a->first + i);
    *a->digest += sum;
}

/* ---- initial values ---- */

static void gpt_initial_elements(const void* pointer, int64_t begin, int64_t end) {
    const gpt_initial_args* a = (const gpt_initial_args*)pointer;
    int64_t i;
    for (i = begin; i < end; i++)
        *gpt_out(a->to, i) = (gpt_real)gpt_initial_value(
            a->key, a->std, a->offset + i / a->n_columns * a->stride + i % a->n_columns);
}
static void gpt_initial_run(const void* pointer) {
    const gpt_initial_args* a = (const gpt_initial_args*)pointer;
    gpt_over(gpt_initial_elements, a, 0, a->n, GPT_PIECE_ELEMENTS);
}

static void gpt_rope_table_run(const void* pointer) {
    const gpt_rope_table_args* a = (const gpt_rope_table_args*)pointer;
    int64_t i;
    for (i = 0; i < a->n_positions; i++) {
        const int64_t token = a->token_numbers[i];
        gpt_rope_row(gpt_out(a->table, i * a->head_size), token < 0 ? 0 : token % a->sequence,
                     a->head_size);
    }
}

/* ---- storage in bf16 ---------------------------------------------------------------------------
 *
 * With type BF16 an operation widens its operands into scratch, computes in float as above, and
 * rounds what it wrote: an operation is rounded once, whatever it sums. */

enum { GPT_READ = 1, GPT_WRITTEN = 2, GPT_OPERANDS_MAX = 8 };

typedef struct gpt_operand {
    float* wide;
    uint16_t* stored;
    int64_t n;
    int what;
} gpt_operand;

typedef struct gpt_storage {
    gpt_operand operands[GPT_OPERANDS_MAX];
    int32_t n_operands;
    float* scratch;
    int64_t used; /* floats */
} gpt_storage;

/* Returns the address of n floats that stand for the stored elements. */
static void* gpt_widen(gpt_storage* s, const void* stored, int64_t n, int what) {
    gpt_operand* o = &s->operands[s->n_operands++];
    int64_t i;
    o->wide = s->scratch + s->used;
    o->stored = (uint16_t*)(uintptr_t)stored;
    o->n = n;
    o->what = what;
    s->used += (n + 15) / 16 * 16;
    for (i = 0; i < n && (what & GPT_READ); i++) o->wide[i] = memo_f32_from_bf16(o->stored[i]);
    return o->wide;
}

static void gpt_widen_linear(gpt_storage* s, void* pointer) {
    gpt_linear_args* a = (gpt_linear_args*)pointer;
    const int64_t n = gpt_count(a->rows);
    a->y = gpt_widen(s, a->y, n * a->n_outputs, GPT_WRITTEN);
    a->x = gpt_widen(s, a->x, n * a->n_inputs, GPT_READ);
    a->weight = gpt_widen(s, a->weight, a->n_outputs * a->n_inputs, GPT_READ);
}
static void gpt_widen_linear_backward(gpt_storage* s, void* pointer) {
    gpt_linear_args* a = (gpt_linear_args*)pointer;
    const int64_t n = gpt_count(a->rows);
    a->y = gpt_widen(s, a->y, n * a->n_outputs, GPT_READ);
    if (a->pass != GPT_PASS_INPUTS) a->x = gpt_widen(s, a->x, n * a->n_inputs, GPT_READ);
    if (a->pass == GPT_PASS_WEIGHTS) return;
    a->dx =
        gpt_widen(s, a->dx, n * a->n_inputs, a->is_first ? GPT_WRITTEN : GPT_READ | GPT_WRITTEN);
    a->weight = gpt_widen(s, a->weight, a->n_outputs * a->n_inputs, GPT_READ);
}
static void gpt_widen_norm(gpt_storage* s, void* pointer) {
    gpt_norm_args* a = (gpt_norm_args*)pointer;
    const int64_t n = gpt_count(a->rows) * a->hidden;
    a->y = gpt_widen(s, a->y, n, a->dx ? GPT_READ : GPT_WRITTEN);
    a->x = gpt_widen(s, a->x, n, GPT_READ);
    if (a->dx) a->dx = gpt_widen(s, a->dx, n, GPT_READ | GPT_WRITTEN);
    a->weight = gpt_widen(s, a->weight, a->hidden, GPT_READ);
}
static void gpt_widen_elements(gpt_storage* s, void* pointer) {
    gpt_elements_args* a = (gpt_elements_args*)pointer;
    const int64_t n = gpt_count(a->rows) * a->n_columns;
    a->y = gpt_widen(s, a->y, n, GPT_WRITTEN);
    a->x = gpt_widen(s, a->x, n, GPT_READ);
    if (a->z) a->z = gpt_widen(s, a->z, n, GPT_READ);
}
static void gpt_widen_swiglu(gpt_storage* s, void* pointer) {
    gpt_elements_args* a = (gpt_elements_args*)pointer;
    const int64_t n = gpt_count(a->rows) * a->n_columns, is_backward = a->z != NULL;
    a->y = gpt_widen(s, a->y, is_backward ? 2 * n : n, GPT_WRITTEN);
    a->x = gpt_widen(s, a->x, is_backward ? n : 2 * n, GPT_READ);
    if (is_backward) a->z = gpt_widen(s, a->z, 2 * n, GPT_READ);
}
static void gpt_widen_rope(gpt_storage* s, void* pointer) {
    gpt_rope_args* a = (gpt_rope_args*)pointer;
    a->x =
        gpt_widen(s, a->x, gpt_count(a->rows) * a->n_heads * a->head_size, GPT_READ | GPT_WRITTEN);
}
static void gpt_widen_attention(gpt_storage* s, void* pointer) {
    gpt_attention_args* a = (gpt_attention_args*)pointer;
    const gpt_attention_shape* shape = &a->shape;
    const int64_t n_q =
        a->batch * (shape->sequence - shape->first) * shape->n_heads * shape->head_size;
    const int64_t n_k = a->batch * shape->sequence * shape->n_kv_heads * shape->head_size;
    a->q = gpt_widen(s, a->q, n_q, GPT_READ);
    a->k = gpt_widen(s, a->k, n_k, GPT_READ);
    a->v = gpt_widen(s, a->v, n_k, GPT_READ);
    a->out = gpt_widen(s, a->out, n_q, a->dout ? GPT_READ : GPT_WRITTEN);
    if (!a->dout) return;
    a->dout = gpt_widen(s, a->dout, n_q, GPT_READ);
    a->dq = gpt_widen(s, a->dq, n_q, GPT_WRITTEN);
    if (shape->sums) return;
    a->dk = gpt_widen(s, a->dk, n_k, GPT_WRITTEN);
    a->dv = gpt_widen(s, a->dv, n_k, GPT_WRITTEN);
}
static void gpt_widen_tokens(gpt_storage* s, void* pointer) {
    gpt_tokens_args* a = (gpt_tokens_args*)pointer;
    const int64_t n = gpt_count(a->rows) * a->n_columns;
    if (a->table) a->table = gpt_widen(s, a->table, a->vocabulary * a->n_columns, GPT_READ);
    a->x = gpt_widen(s, a->x, n,
                     a->table    ? GPT_WRITTEN
                     : a->dtable ? GPT_READ
                                 : GPT_READ | GPT_WRITTEN);
}
static void gpt_widen_add(gpt_storage* s, void* pointer) {
    gpt_add_args* a = (gpt_add_args*)pointer;
    if (a->type != MEMO_TYPE_BF16) return;
    a->to = gpt_widen(s, a->to, a->n, GPT_READ | GPT_WRITTEN);
    a->from = gpt_widen(s, a->from, a->n, GPT_READ);
}
static void gpt_widen_adamw(gpt_storage* s, void* pointer) {
    gpt_adamw_args* a = (gpt_adamw_args*)pointer;
    a->weights = gpt_widen(s, a->weights, a->n, GPT_WRITTEN);
}
static void gpt_widen_initial(gpt_storage* s, void* pointer) {
    gpt_initial_args* a = (gpt_initial_args*)pointer;
    a->to = gpt_widen(s, a->to, a->n, GPT_WRITTEN);
}

/* Floats that the operations of a model widen at once: all operands of the largest one. */
static int64_t gpt_widened_most(const gpt_shapes* shapes) {
    const int64_t attention = 4 * (shapes->n_rows * shapes->hidden + shapes->n_keys);
    /* The activation's backward: two operands as wide as up. */
    const int64_t mlp = shapes->mlp_rows * (2 * shapes->up + shapes->wide);
    const int64_t loss = shapes->loss_rows * (shapes->vocabulary + 2 * shapes->hidden);
    int64_t most = attention > mlp ? attention : mlp, weight = 0;
    int32_t i;
    if (most < loss) most = loss;
    for (i = 0; i < shapes->n_weights; i++)
        if (weight < shapes->weights[i][0] * shapes->weights[i][1])
            weight = shapes->weights[i][0] * shapes->weights[i][1];
    return most + weight + 16 * GPT_OPERANDS_MAX;
}
/* On the stream that adds and drops beside compute. */
static int64_t gpt_widened_beside(const gpt_shapes* shapes) {
    return 3 * shapes->n_rows * shapes->hidden + 16 * GPT_OPERANDS_MAX;
}

/* ---- the table ------------------------------------------------------------------------------- */

typedef struct gpt_host_kind {
    void (*run)(const void* args);
    /* Instead of run: threads share the rows, each of which is treated alone; the place of
     * args.rows. */
    void (*run_rows)(const void* args, int64_t begin, int64_t end);
    size_t rows, args_bytes;
    void (*widen)(gpt_storage* s, void* args); /* NULL: all operands are sums */
} gpt_host_kind;

/* In the order of gpt_kind. */
static const gpt_host_kind gpt_host_kinds[GPT_N_KINDS] = {
    {gpt_linear_run, NULL, 0, sizeof(gpt_linear_args), gpt_widen_linear},
    {gpt_linear_backward_run, NULL, 0, sizeof(gpt_linear_args), gpt_widen_linear_backward},
    {NULL, gpt_norm_rows, offsetof(gpt_norm_args, rows), sizeof(gpt_norm_args), gpt_widen_norm},
    {gpt_norm_backward_run, NULL, 0, sizeof(gpt_norm_args), gpt_widen_norm},
    {NULL, gpt_dropout_rows, offsetof(gpt_elements_args, rows), sizeof(gpt_elements_args),
     gpt_widen_elements},
    {NULL, gpt_gelu_rows, offsetof(gpt_elements_args, rows), sizeof(gpt_elements_args),
     gpt_widen_elements},
    {NULL, gpt_gelu_backward_rows, offsetof(gpt_elements_args, rows), sizeof(gpt_elements_args),
     gpt_widen_elements},
    {NULL, gpt_swiglu_rows, offsetof(gpt_elements_args, rows), sizeof(gpt_elements_args),
     gpt_widen_swiglu},
    {NULL, gpt_swiglu_backward_rows, offsetof(gpt_elements_args, rows), sizeof(gpt_elements_args),
     gpt_widen_swiglu},
    {gpt_rope_run, NULL, 0, sizeof(gpt_rope_args), gpt_widen_rope},
    {gpt_attention_run, NULL, 0, sizeof(gpt_attention_args), gpt_widen_attention},
    {gpt_attention_backward_run, NULL, 0, sizeof(gpt_attention_args), gpt_widen_attention},
    {gpt_embedding_run, NULL, 0, sizeof(gpt_tokens_args), gpt_widen_tokens},
    {gpt_embedding_backward_run, NULL, 0, sizeof(gpt_tokens_args), gpt_widen_tokens},
    {gpt_cross_entropy_run, NULL, 0, sizeof(gpt_tokens_args), gpt_widen_tokens},
    {gpt_loss_run, NULL, 0, sizeof(gpt_loss_args), NULL},
    {gpt_add_run, NULL, 0, sizeof(gpt_add_args), gpt_widen_add},
    {gpt_squares_run, NULL, 0, sizeof(gpt_squares_args), NULL},
    {gpt_norm_total_run, NULL, 0, sizeof(gpt_total_args), NULL},
    {gpt_adamw_run, NULL, 0, sizeof(gpt_adamw_args), gpt_widen_adamw},
    {gpt_digest_run, NULL, 0, sizeof(gpt_digest_args), NULL},
    {gpt_initial_run, NULL, 0, sizeof(gpt_initial_args), gpt_widen_initial},
    {gpt_rope_table_run, NULL, 0, sizeof(gpt_rope_table_args), NULL},
};

enum { GPT_HOST_ARGS_BYTES = 192 };
/* An operation; it is copied at launch, and its size is limited. */
typedef struct gpt_host_call {
    double args[GPT_HOST_ARGS_BYTES / sizeof(double)]; /* aligned */
    gpt_kind kind;
    int32_t is_stored; /* operands are in bf16 */
    float* scratch;
} gpt_host_call;

typedef char gpt_host_args_fit[sizeof(gpt_attention_args) <= GPT_HOST_ARGS_BYTES &&
                                       sizeof(gpt_elements_args) <= GPT_HOST_ARGS_BYTES &&
                                       sizeof(gpt_adamw_args) <= GPT_HOST_ARGS_BYTES &&
                                       sizeof(gpt_host_call) <= MEMO_HOST_ARGS_BYTES
                                   ? 1
                                   : -1];

static memo_status gpt_host_run(void* pointer, memo_error* error) {
    gpt_host_call* call = (gpt_host_call*)pointer;
    const gpt_host_kind* kind = &gpt_host_kinds[call->kind];
    const gpt_rows* rows;
    gpt_storage s;
    int64_t i;
    int32_t o;
    (void)error;
    memset(&s, 0, sizeof s);
    s.scratch = call->scratch;
    if (call->is_stored) kind->widen(&s, call->args);
    rows = (const gpt_rows*)(const void*)((char*)call->args + kind->rows);
    if (kind->run)
        kind->run(call->args);
    else
        gpt_over(kind->run_rows, call->args, rows->begin, rows->end, GPT_PIECE_ROWS);
    for (o = 0; o < s.n_operands; o++)
        for (i = 0; i < s.operands[o].n && (s.operands[o].what & GPT_WRITTEN); i++)
            s.operands[o].stored[i] = memo_bf16_from_f32(s.operands[o].wide[i]);
    return MEMO_STATUS_OK;
}

/* Lives as long as the models that use it; one model at a time. */
typedef struct gpt_host_kernels {
    memo_device* device;
    memo_host_attention attention;
    memo_type type;
    memo_stream compute;
    float *scratch, *scratch_beside; /* of compute; of another stream */
} gpt_host_kernels;

static memo_status gpt_host_enqueue(void* context, memo_stream stream, gpt_kind kind,
                                    const void* args, memo_error* error) {
    const gpt_host_kernels* host = (const gpt_host_kernels*)context;
    gpt_host_call call;
    memset(&call, 0, sizeof call);
    memcpy(call.args, args, gpt_host_kinds[kind].args_bytes);
    call.kind = kind;
    call.is_stored = host->type == MEMO_TYPE_BF16 && gpt_host_kinds[kind].widen;
    call.scratch = stream == host->compute ? host->scratch : host->scratch_beside;
    return memo_host_device_launch(host->device, stream, gpt_host_run, &call, (int64_t)sizeof call,
                                   error);
}

static int64_t gpt_host_scratch_bytes(void* context, const gpt_shapes* shapes) {
    (void)context;
    return shapes->type == MEMO_TYPE_BF16
               ? (gpt_widened_most(shapes) + gpt_widened_beside(shapes)) * (int64_t)sizeof(float)
               : 0;
}

static memo_status gpt_host_prepare(void* context, const gpt_shapes* shapes, memo_stream compute,
                                    void* scratch, memo_error* error) {
    gpt_host_kernels* host = (gpt_host_kernels*)context;
    if (gpt_sum_type(shapes->type) != GPT_REAL_TYPE)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "gpt_shapes.type: the host kernels are compiled for %s",
                              GPT_REAL_TYPE == MEMO_TYPE_F64 ? "f64" : "f32 and bf16");
    if (shapes->head_size > GPT_ATTENTION_KEYS)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "gpt_shapes.head_size: %lld; at most %d would work",
                              (long long)shapes->head_size, (int)GPT_ATTENTION_KEYS);
    host->type = shapes->type;
    host->compute = compute;
    host->scratch = (float*)scratch;
    if (scratch) host->scratch_beside = host->scratch + gpt_widened_most(shapes);
    return MEMO_STATUS_OK;
}

/* device: a host device; NULL: to plan only. */
GPT_FUNCTION gpt_kernels gpt_kernels_host(gpt_host_kernels* host, memo_device* device) {
    gpt_kernels kernels;
    memset(host, 0, sizeof *host);
    memset(&kernels, 0, sizeof kernels);
    host->device = host->attention.device = device;
    kernels.context = host;
    kernels.enqueue = gpt_host_enqueue;
    kernels.scratch_bytes = gpt_host_scratch_bytes;
    kernels.prepare = gpt_host_prepare;
    kernels.attention = memo_host_attention_functions(&host->attention);
    return kernels;
}

#endif
