#include "gpt/kernels/host.h"

#include "gpt/kernels/math.h"
#include "gpt/kernels/threads.h"

#ifdef GPT_BLAS
__typeof__(cblas_sgemm)* gpt_blas_gemm;
#endif

#define GPT_REAL_TYPE (sizeof(gpt_real) == sizeof(float) ? MEMO_TYPE_F32 : MEMO_TYPE_F64)

/* Pieces of an operation that threads share: rows, if the operation treats each row alone; outputs,
 * for the gradient of a weight; elements. */
enum {
    GPT_PIECE_ROWS = 64,
    GPT_PIECE_OUTPUTS = 48,
    GPT_PIECE_ELEMENTS = 8192, /* whole blocks */
    GPT_PIECE_ROUTED = 256     /* rows for which all experts are read */
};

/* ---- linear: y = x W^T ---- */

/* Of whole rows: y from x, or in the backward dx from dy. */
static void gpt_linear_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_linear_args* a = (const gpt_linear_args*)pointer;
    const int64_t at = begin - a->rows.begin, in = a->n_inputs, out = a->n_outputs;
    const gpt_real* from = a->dx ? gpt_in(a->y, at * out) : gpt_in(a->x, at * in);
    gpt_real* to = a->dx ? gpt_out(a->dx, at * in) : gpt_out(a->y, at * out);
    const int64_t n_from = a->dx ? out : in, n_to = a->dx ? in : out;
    const gpt_real old = a->adds ? (gpt_real)1 : (gpt_real)0;
    gpt_gemm(0, !a->dx, end - begin, n_to, n_from, (gpt_real)a->scale, from, n_from,
             gpt_in(a->weight, 0), in, old, to, n_to);
}
/* Outputs [begin, end), of all rows. */
static void gpt_linear_weights(const void* pointer, int64_t begin, int64_t end) {
    const gpt_linear_args* a = (const gpt_linear_args*)pointer;
    const int64_t in = a->n_inputs;
    gpt_gemm(1, 0, end - begin, in, gpt_count(a->rows), (gpt_real)a->scale, gpt_in(a->y, begin),
             a->n_outputs, gpt_in(a->x, 0), in, 1, gpt_out(a->dweight, begin * in), in);
}
static void gpt_linear_run(const gpt_linear_args* a) {
    if (a->dweight) gpt_over(gpt_linear_weights, a, 0, a->n_outputs, GPT_PIECE_OUTPUTS);
    if (a->dweight && !a->dx) return;
    gpt_over(gpt_linear_rows, a, a->rows.begin, a->rows.end, a->tile_rows);
}

/* ---- norm ---- */

static void gpt_norm_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_norm_args* a = (const gpt_norm_args*)pointer;
    const int64_t at = begin - a->rows.begin;
    gpt_norm_forward(gpt_out(a->y, at * a->hidden), a->rstd ? gpt_out(a->rstd, at) : NULL,
                     gpt_in(a->x, at * a->hidden), gpt_in(a->weight, 0), end - begin, a->hidden,
                     a->epsilon);
}

static void gpt_norm_backward_run(const gpt_norm_args* a) {
    const gpt_real *weight = gpt_in(a->weight, 0), *rstds = gpt_in(a->rstd, 0);
    gpt_real* dweight = a->dweight ? gpt_out(a->dweight, 0) : NULL;
    int64_t c;
    for (int64_t row = 0; row < gpt_count(a->rows); row++) {
        const gpt_real* x = gpt_in(a->x, row * a->hidden);
        const gpt_real *dy = gpt_in(a->y, row * a->hidden), rstd = rstds[row];
        gpt_real *dx = gpt_out(a->dx, row * a->hidden), lanes[GPT_LANES] = {0}, shrink;
        for (c = 0; c + GPT_LANES <= a->hidden; c += GPT_LANES)
            for (int j = 0; j < GPT_LANES; j++) lanes[j] += dy[c + j] * weight[c + j] * x[c + j];
        for (int j = 0; c + j < a->hidden; j++) lanes[j] += dy[c + j] * weight[c + j] * x[c + j];
        shrink = gpt_sum_lanes(lanes) / (gpt_real)a->hidden * rstd * rstd * rstd;
        for (c = 0; c < a->hidden; c++) {
            if (dweight) dweight[c] += dy[c] * x[c] * rstd;
            dx[c] = (a->is_first ? 0 : dx[c]) + (dy[c] * weight[c] * rstd - x[c] * shrink);
        }
    }
}

/* ---- bias ---- */

static void gpt_bias_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_bias_args* a = (const gpt_bias_args*)pointer;
    for (int64_t row = begin - a->rows.begin; row < end - a->rows.begin; row++) {
        gpt_real* y = gpt_out(a->y, row * a->n_columns);
        for (int64_t c = 0; c < a->n_columns; c++) y[c] += *gpt_in(a->bias, c);
    }
}

static void gpt_bias_backward_run(const gpt_bias_args* a) {
    gpt_real* dbias = gpt_out(a->dbias, 0);
    for (int64_t row = 0; row < gpt_count(a->rows); row++)
        for (int64_t c = 0; c < a->n_columns; c++)
            dbias[c] += *gpt_in(a->y, row * a->n_columns + c);
}

/* ---- element by element: dropout, residual, GELU, SwiGLU, RoPE ---- */

static void gpt_dropout_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_elements_args* a = (const gpt_elements_args*)pointer;
    const gpt_dropout dropout = gpt_dropout_of(a);
    for (int64_t row = begin - a->rows.begin; row < end - a->rows.begin; row++) {
        const uint64_t key =
            gpt_token_key(&dropout, a->values->first_token + a->token_numbers[row]);
        const gpt_real *x = gpt_in(a->x, row * a->n_columns), *z = gpt_in(a->z, row * a->n_columns);
        gpt_real* y = gpt_out(a->y, row * a->n_columns);
        for (int64_t c = 0; c < a->n_columns; c++) {
            const gpt_real mask = dropout.threshold ? gpt_mask(&dropout, key, c) : (gpt_real)1;
            y[c] = a->z ? x[c] + mask * z[c] : x[c] * mask;
        }
    }
}

/* GELU, SwiGLU and their backward.  Row by row, so that an element's place in the loop never
 * depends on the range of rows. */
static void gpt_activation_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_elements_args* a = (const gpt_elements_args*)pointer;
    const int64_t n = a->n_columns;
    const int64_t n_x = a->kind == GPT_KIND_SWIGLU ? 2 * n : n;
    const int64_t n_y = a->kind == GPT_KIND_SWIGLU_BACKWARD ? 2 * n : n;
    for (int64_t row = begin - a->rows.begin; row < end - a->rows.begin; row++) {
        const gpt_real *x = gpt_in(a->x, row * n_x), *z = gpt_in(a->z, row * n_y);
        gpt_real* y = gpt_out(a->y, row * n_y);
        if (a->kind == GPT_KIND_GELU)
            for (int64_t i = 0; i < n; i++) y[i] = gpt_gelu(x[i]);
        else if (a->kind == GPT_KIND_GELU_BACKWARD)
            for (int64_t i = 0; i < n; i++) y[i] = x[i] * gpt_gelu_slope(z[i]);
        else if (a->kind == GPT_KIND_SWIGLU)
            for (int64_t i = 0; i < n; i++) y[i] = gpt_swiglu(x[2 * i], x[2 * i + 1]);
        else
            for (int64_t i = 0; i < n; i++) {
                gpt_real up = z[2 * i], gate = z[2 * i + 1];
                gpt_swiglu_slopes(&up, &gate, x[i]);
                y[2 * i] = up;
                y[2 * i + 1] = gate;
            }
    }
}

/* ---- attention ---- */

/* A piece is a key-value head of a sequence, with its query heads. */
static void gpt_attention_pieces(const void* pointer, int64_t piece, int64_t end) {
    const gpt_attention_args* a = (const gpt_attention_args*)pointer;
    for (; piece < end; piece++)
        (a->dout ? gpt_attention_backward : gpt_attention_forward)(a, piece / a->shape.n_kv_heads,
                                                                   piece % a->shape.n_kv_heads);
}

/* ---- tokens: embedding, loss ---- */

static void gpt_embedding_run(const gpt_tokens_args* a) {
    for (int64_t row = 0; row < gpt_count(a->rows); row++)
        memcpy(gpt_out(a->x, row * a->n_columns), gpt_in(a->table, a->tokens[row] * a->n_columns),
               (size_t)a->n_columns * sizeof(gpt_real));
}

static void gpt_embedding_backward_run(const gpt_tokens_args* a) {
    for (int64_t row = 0; row < gpt_count(a->rows); row++) {
        gpt_real* to = gpt_out(a->dtable, a->tokens[row] * a->n_columns);
        for (int64_t c = 0; c < a->n_columns; c++) to[c] += *gpt_in(a->x, row * a->n_columns + c);
    }
}

static void gpt_cross_entropy_run(const gpt_tokens_args* a) {
    for (int64_t row = 0; row < gpt_count(a->rows); row++) {
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

static void gpt_loss_run(const gpt_loss_args* a) {
    double sum = 0;
    for (int64_t i = 0; i < a->n; i++) sum += a->losses[i];
    *a->loss += sum;
}

/* ---- sums, the optimizer ---- */

static void gpt_squares_run(const gpt_squares_args* a) {
    int64_t i = 0;
    if (a->type == MEMO_TYPE_BF16) {
        for (; i < a->n; i++) a->lanes[i % GPT_LANES] += pow((double)gpt_load(a->x, a->type, i), 2);
        return;
    }
    const gpt_real* x = gpt_in(a->x, 0);
    for (; i + GPT_LANES <= a->n; i += GPT_LANES)
        for (int j = 0; j < GPT_LANES; j++) a->lanes[j] += (double)x[i + j] * (double)x[i + j];
    for (int j = 0; i + j < a->n; j++) a->lanes[j] += (double)x[i + j] * (double)x[i + j];
}

static void gpt_norm_total_run(const gpt_total_args* a) {
    double sum = 0;
    for (int j = 0; j < GPT_LANES; j++) sum += a->lanes[j];
    *a->total += sum;
    *a->vote = a->values->vote;
    memset(a->lanes, 0, GPT_LANES * sizeof(double));
}

static void gpt_adamw_elements(const void* pointer, int64_t begin, int64_t end) {
    gpt_adamw((const gpt_adamw_args*)pointer, begin, end);
}
static void gpt_adamw_run(const void* pointer) {
    gpt_over(gpt_adamw_elements, pointer, 0, ((const gpt_adamw_args*)pointer)->n,
             GPT_PIECE_ELEMENTS);
}

/* ---- initial values ---- */

static void gpt_initial_elements(const void* pointer, int64_t begin, int64_t end) {
    const gpt_initial_args* a = (const gpt_initial_args*)pointer;
    for (int64_t i = begin; i < end; i++) *gpt_out(a->to, i) = (gpt_real)gpt_initial_value(a, i);
}

static void gpt_rope_table_run(const gpt_rope_table_args* a) {
    for (int64_t i = 0; i < a->n_positions; i++) {
        const int64_t token = a->token_numbers[i];
        gpt_rope_row(gpt_out(a->table, i * a->head_size), &a->law,
                     token < 0 ? 0 : token % a->sequence, a->head_size);
    }
}

/* ---- experts ---- */

static void gpt_route_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_route_args* a = (const gpt_route_args*)pointer;
    for (int64_t row = begin - a->rows.begin; row < end - a->rows.begin; row++) {
        gpt_real* routes = gpt_out(a->routes, row * 2 * a->n_chosen);
        if (a->dlogits)
            gpt_route_backward(a->dlogits, a->logits, GPT_REAL_TYPE, row * a->n_experts, routes,
                               gpt_in(a->dshares, row * a->n_chosen), a->n_experts, a->n_chosen,
                               a->is_normed);
        else
            gpt_route(routes, a->logits, GPT_REAL_TYPE, row * a->n_experts, a->n_experts,
                      a->n_chosen, a->is_normed);
    }
}

/* Up to GPT_ROUTED_MAX rows of an expert, in order: their place in the narrow tensor, a row, and in
 * the wide one, chosen times a row; and the share. */
enum { GPT_ROUTED_MAX = 128 };
typedef char gpt_four_rows[GPT_GEMM_M == 4 ? 1 : -1]; /* as gpt_routed_weights lists them */
typedef struct gpt_routed {
    int64_t n, narrow[GPT_ROUTED_MAX], wide[GPT_ROUTED_MAX];
    gpt_real share[GPT_ROUTED_MAX];
} gpt_routed;

/* Rows from *row on, which becomes the next one; they are numbered from 0. */
static void gpt_find_routed(const gpt_experts_args* a, int64_t expert, int64_t* row, int64_t end,
                            gpt_routed* found) {
    found->n = 0;
    for (; *row < end && found->n < GPT_ROUTED_MAX; ++*row) {
        const gpt_real* routes = gpt_in(a->routes, *row * 2 * a->n_chosen);
        int64_t j = 0;
        while (j < a->n_chosen && gpt_route_expert(routes, j) != expert) j++;
        if (j == a->n_chosen) continue;
        found->narrow[found->n] = *row;
        found->wide[found->n] = *row * a->n_chosen + j;
        found->share[found->n++] = routes[a->n_chosen + j];
    }
}

/* sums = x_0 to x_(GPT_GEMM_M - 1), n numbers each, times a panel (n, GPT_GEMM_N).  Each sum has one
 * order, whatever is beside it. */
static inline void gpt_routed_sums(gpt_real sums[GPT_GEMM_M][GPT_GEMM_N],
                                   const gpt_real* const x[GPT_GEMM_M], const gpt_real* panel,
                                   int64_t n) {
    memset(sums, 0, sizeof(gpt_real[GPT_GEMM_M][GPT_GEMM_N]));
    for (int64_t p = 0; p < n; p++)
        for (int y = 0; y < GPT_GEMM_M; y++)
            for (int j = 0; j < GPT_GEMM_N; j++)
                sums[y][j] = GPT_FMA(x[y][p], panel[p * GPT_GEMM_N + j], sums[y][j]);
}

/* to_i += factor_i from_i op(W) for rows i, which lie anywhere: op(W) is W, (n_from, n_to), or the
 * transpose of (n_to, n_from). */
static void gpt_routed_product(int64_t n, gpt_real* to, const int64_t* to_rows, int64_t n_to,
                               const gpt_real* from, const int64_t* from_rows, int64_t n_from,
                               const gpt_real* factors, const gpt_real* weight, int is_transposed) {
    gpt_real panel[GPT_GEMM_K * GPT_GEMM_N] = {0}, sums[GPT_GEMM_M][GPT_GEMM_N];
    const gpt_real* x[GPT_GEMM_M];
    const int64_t row = is_transposed ? 1 : n_to, column = is_transposed ? n_from : 1;
    for (int64_t j0 = 0; j0 < n_to && n; j0 += GPT_GEMM_N)
        for (int64_t p0 = 0; p0 < n_from; p0 += GPT_GEMM_K) {
            const int64_t width = gpt_min(n_to - j0, GPT_GEMM_N),
                          depth = gpt_min(n_from - p0, GPT_GEMM_K);
            for (int64_t j = 0; j < width; j++)
                for (int64_t p = 0; p < depth; p++)
                    panel[p * GPT_GEMM_N + j] = weight[(p0 + p) * row + (j0 + j) * column];
            for (int64_t i = 0; i < n; i += GPT_GEMM_M) {
                for (int y = 0; y < GPT_GEMM_M; y++)
                    x[y] = from + from_rows[gpt_min(i + y, n - 1)] * n_from + p0;
                gpt_routed_sums(sums, x, panel, depth);
                for (int64_t k = i; k < gpt_min(i + GPT_GEMM_M, n); k++)
                    for (int64_t j = 0; j < width; j++)
                        to[to_rows[k] * n_to + j0 + j] +=
                            (factors ? factors[k] : 1) * sums[k - i][j];
            }
        }
}

/* dW (outputs, inputs) += dy_i^T x_i, in the order of rows. */
static void gpt_routed_weights(const gpt_experts_args* a, gpt_real* to, const gpt_routed* rows) {
    const int64_t in = a->n_inputs, out = a->n_outputs;
    const int64_t *of_y = a->spreads ? rows->wide : rows->narrow,
                  *of_x = a->spreads ? rows->narrow : rows->wide;
    gpt_real panel[GPT_ROUTED_MAX * GPT_GEMM_N] = {0}, sums[GPT_GEMM_M][GPT_GEMM_N];
    gpt_real dy[GPT_GEMM_M][GPT_ROUTED_MAX];
    const gpt_real* const of_dy[GPT_GEMM_M] = {dy[0], dy[1], dy[2], dy[3]};
    for (int64_t c = 0; c < in && rows->n; c += GPT_GEMM_N) {
        const int64_t width = gpt_min(in - c, GPT_GEMM_N);
        for (int64_t i = 0; i < rows->n; i++)
            memcpy(panel + i * GPT_GEMM_N, gpt_in(a->x, of_x[i] * in + c),
                   (size_t)width * sizeof *panel);
        for (int64_t o = 0; o < out; o += GPT_GEMM_M) {
            for (int64_t y = 0; y < GPT_GEMM_M; y++)
                for (int64_t i = 0; i < rows->n; i++)
                    dy[y][i] = *gpt_in(a->y, of_y[i] * out + gpt_min(o + y, out - 1)) *
                               (a->spreads ? 1 : rows->share[i]);
            gpt_routed_sums(sums, of_dy, panel, rows->n);
            for (int64_t y = 0; y < GPT_GEMM_M && o + y < out; y++)
                for (int64_t j = 0; j < width; j++) to[(o + y) * in + c + j] += sums[y][j];
        }
    }
}

/* The wide tensor has a row for each expert of a token. */
static void gpt_experts_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_experts_args* a = (const gpt_experts_args*)pointer;
    const int64_t in = a->n_inputs, out = a->n_outputs;
    const int64_t first = begin - a->rows.begin, last = end - a->rows.begin;
    const int64_t n_to = a->dx ? in : out, n_from = a->dx ? out : in;
    const int to_wide = a->dx ? !a->spreads : a->spreads;
    gpt_real* to = gpt_out(a->dx ? a->dx : a->y, 0);
    const gpt_real* from = gpt_in(a->dx ? a->y : a->x, 0);
    const int64_t n = n_to * (to_wide ? a->n_chosen : 1);
    gpt_routed found;
    memset(to + first * n, 0, (size_t)((last - first) * n) * sizeof *to);
    for (int64_t e = 0; e < a->n_experts; e++)
        for (int64_t row = first; row < last;) {
            gpt_find_routed(a, e, &row, last, &found);
            /* The share of a backward comes later: its own gradient needs the product without it. */
            gpt_routed_product(found.n, to, to_wide ? found.wide : found.narrow, n_to, from,
                               to_wide ? found.narrow : found.wide, n_from,
                               a->spreads || a->dx ? NULL : found.share,
                               gpt_in(a->weight, e * in * out), !a->dx);
        }

    for (int64_t i = first * a->n_chosen; i < last * a->n_chosen && a->dx && !a->spreads; i++) {
        const gpt_real share =
            *gpt_in(a->routes, (2 * (i / a->n_chosen) + 1) * a->n_chosen + i % a->n_chosen);
        *gpt_out(a->dshares, i) = gpt_dot(to + i * in, gpt_in(a->x, i * in), in);
        for (int64_t c = 0; c < in; c++) to[i * in + c] *= share;
    }
}

/* dW of experts [expert, end). */
static void gpt_experts_weights(const void* pointer, int64_t expert, int64_t end) {
    const gpt_experts_args* a = (const gpt_experts_args*)pointer;
    gpt_routed found;
    for (; expert < end; expert++)
        for (int64_t row = 0; row < gpt_count(a->rows);) {
            gpt_find_routed(a, expert, &row, gpt_count(a->rows), &found);
            gpt_routed_weights(a, gpt_out(a->dweight, expert * a->n_inputs * a->n_outputs), &found);
        }
}

static void gpt_experts_run(const gpt_experts_args* a) {
    if (a->dweight) gpt_over(gpt_experts_weights, a, 0, a->n_experts, 1);
    gpt_over(gpt_experts_rows, a, a->rows.begin, a->rows.end, GPT_PIECE_ROUTED);
}

/* ---- rows that take turns ---- */

static void gpt_spread_run(const gpt_spread_args* a, int is_backward) {
    for (int64_t i = 0; i < a->n; i++) {
        const int64_t from = gpt_spread_from(a, i);
        if (!is_backward)
            *gpt_out(a->wide, i) = from < 0 ? 0 : *gpt_in(a->narrow, from);
        else if (from >= 0)
            *gpt_out(a->narrow, from) += *gpt_in(a->wide, i);
    }
}

/* ---- storage in bf16 ---------------------------------------------------------------------------
 *
 * With type BF16 an operation widens its operands into scratch, computes in float as above, and
 * rounds what it wrote: an operation is rounded once, whatever it sums. */

enum { GPT_WIDENED_MAX = 8 }; /* operands of an operation, each rounded up to 16 floats */

/* Floats that the operations of a model widen at once: all operands of the largest one. */
static int64_t gpt_widened_most(const gpt_shapes* shapes) {
    const int64_t widest = shapes->hidden > shapes->q ? shapes->hidden : shapes->q;
    const int64_t attention = 4 * (shapes->n_rows * widest + shapes->n_keys);
    /* The activation's backward: two operands as wide as up. */
    const int64_t mlp = shapes->mlp_rows * (2 * shapes->up + shapes->wide);
    const int64_t loss = shapes->loss_rows * (shapes->vocabulary + 2 * shapes->hidden);
    int64_t most = attention > mlp ? attention : mlp;
    if (most < loss) most = loss;
    return most + shapes->largest_weight + 16 * GPT_WIDENED_MAX;
}
/* On the stream that drops beside compute. */
static int64_t gpt_widened_beside(const gpt_shapes* shapes) {
    return 3 * shapes->n_rows * shapes->hidden + 16 * GPT_WIDENED_MAX;
}

/* ---- an operation --------------------------------------------------------------------------- */

/* Threads share the rows, each of which is treated alone. */
static void gpt_over_rows(gpt_work work, const gpt_op* op, gpt_rows rows) {
    gpt_over(work, &op->args, rows.begin, rows.end, GPT_PIECE_ROWS);
}

/* The arguments point to reals. */
static void gpt_host_compute(const gpt_op* op) {
    const gpt_rope_args* rope = &op->args.rope;
    const gpt_attention_args* attention = &op->args.attention;

    switch (op->kind) {
    case GPT_KIND_LINEAR:
    case GPT_KIND_LINEAR_BACKWARD: gpt_linear_run(&op->args.linear); break;
    case GPT_KIND_NORM: gpt_over_rows(gpt_norm_rows, op, op->args.norm.rows); break;
    case GPT_KIND_NORM_BACKWARD: gpt_norm_backward_run(&op->args.norm); break;
    case GPT_KIND_BIAS: gpt_over_rows(gpt_bias_rows, op, op->args.bias.rows); break;
    case GPT_KIND_BIAS_BACKWARD: gpt_bias_backward_run(&op->args.bias); break;
    case GPT_KIND_DROPOUT: gpt_over_rows(gpt_dropout_rows, op, op->args.elements.rows); break;
    case GPT_KIND_GELU:
    case GPT_KIND_GELU_BACKWARD:
    case GPT_KIND_SWIGLU:
    case GPT_KIND_SWIGLU_BACKWARD:
        gpt_over_rows(gpt_activation_rows, op, op->args.elements.rows);
        break;
    case GPT_KIND_ROPE:
        gpt_rope(gpt_out(rope->x, 0), gpt_in(rope->table, 0), rope->direction, rope->rows.begin,
                 gpt_count(rope->rows), rope->sequence, rope->n_heads, rope->head_size);
        break;
    case GPT_KIND_ATTENTION:
    case GPT_KIND_ATTENTION_BACKWARD:
        gpt_over(gpt_attention_pieces, attention, 0, attention->batch * attention->shape.n_kv_heads,
                 1);
        break;
    case GPT_KIND_EMBEDDING: gpt_embedding_run(&op->args.tokens); break;
    case GPT_KIND_EMBEDDING_BACKWARD: gpt_embedding_backward_run(&op->args.tokens); break;
    case GPT_KIND_CROSS_ENTROPY: gpt_cross_entropy_run(&op->args.tokens); break;
    case GPT_KIND_LOSS: gpt_loss_run(&op->args.loss); break;
    case GPT_KIND_SQUARES: gpt_squares_run(&op->args.squares); break;
    case GPT_KIND_NORM_TOTAL: gpt_norm_total_run(&op->args.total); break;
    case GPT_KIND_ADAMW: gpt_adamw_run(&op->args.adamw); break;
    case GPT_KIND_INITIAL:
        gpt_over(gpt_initial_elements, &op->args, 0, op->args.initial.n, GPT_PIECE_ELEMENTS);
        break;
    case GPT_KIND_ROPE_TABLE: gpt_rope_table_run(&op->args.rope_table); break;
    case GPT_KIND_ROUTE:
    case GPT_KIND_ROUTE_BACKWARD: gpt_over_rows(gpt_route_rows, op, op->args.route.rows); break;
    case GPT_KIND_EXPERTS:
    case GPT_KIND_EXPERTS_BACKWARD: gpt_experts_run(&op->args.experts); break;
    case GPT_KIND_SPREAD:
    case GPT_KIND_SPREAD_BACKWARD:
        gpt_spread_run(&op->args.spread, op->kind == GPT_KIND_SPREAD_BACKWARD);
        break;
    case GPT_N_KINDS: break;
    }
}

/* An operation; it is copied at launch, and its size is limited. */
typedef struct gpt_host_call {
    gpt_op op;
    float* scratch; /* for operands in bf16 */
} gpt_host_call;

typedef char gpt_host_call_fits[sizeof(gpt_host_call) <= MEMO_HOST_ARGS_BYTES ? 1 : -1];

static memo_status gpt_host_run(void* pointer, memo_error* error) {
    gpt_host_call* call = (gpt_host_call*)pointer;
    gpt_op* op = &call->op;
    float *wide[GPT_OPERANDS_MAX], *next = call->scratch;
    (void)error;

    /* The arguments point to floats. */
    for (int32_t o = 0; o < op->n_operands; o++) {
        const gpt_operand* operand = &op->operands[o];
        const uint16_t* stored = (const uint16_t*)operand->address;
        wide[o] = next;
        if (operand->type != MEMO_TYPE_BF16) continue;
        memcpy((char*)op + operand->place, &next, sizeof next);
        next += (operand->n + 15) / 16 * 16;
        for (int64_t i = 0; i < operand->n && (operand->uses & GPT_READ); i++)
            wide[o][i] = memo_f32_from_bf16(stored[i]);
    }
    gpt_host_compute(op);

    for (int32_t o = 0; o < op->n_operands; o++) {
        const gpt_operand* operand = &op->operands[o];
        uint16_t* stored = (uint16_t*)(uintptr_t)operand->address;
        if (operand->type != MEMO_TYPE_BF16 || !(operand->uses & GPT_WRITTEN)) continue;
        for (int64_t i = 0; i < operand->n; i++) stored[i] = memo_bf16_from_f32(wide[o][i]);
    }
    return MEMO_STATUS_OK;
}

static memo_status gpt_host_enqueue(void* context, memo_stream stream, const gpt_op* op,
                                    memo_error* error) {
    const gpt_host_kernels* host = (const gpt_host_kernels*)context;
    gpt_host_call call;
    memset(&call, 0, sizeof call);
    call.op = *op;
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
        return gpt_unsupported(error, "gpt_shapes.type: the host kernels are compiled for %s",
                               GPT_REAL_TYPE == MEMO_TYPE_F64 ? "f64" : "f32 and bf16");
    if (shapes->head_size > GPT_ATTENTION_KEYS)
        return gpt_unsupported(error, "gpt_shapes.head_size: %lld; at most %d would work",
                               (long long)shapes->head_size, (int)GPT_ATTENTION_KEYS);
    host->compute = compute;
    host->scratch = (float*)scratch;
    if (scratch) host->scratch_beside = host->scratch + gpt_widened_most(shapes);
    return MEMO_STATUS_OK;
}

gpt_kernels gpt_kernels_host(gpt_host_kernels* host, memo_device* device) {
    gpt_kernels kernels = MEMO_ZERO(gpt_kernels);
    memset(host, 0, sizeof *host);
    host->device = host->attention.device = device;
    kernels.context = host;
    kernels.enqueue = gpt_host_enqueue;
    kernels.scratch_bytes = gpt_host_scratch_bytes;
    kernels.prepare = gpt_host_prepare;
    kernels.update_on_host = gpt_adamw_run;
    kernels.attention = host_attention_functions(&host->attention);
    return kernels;
}
