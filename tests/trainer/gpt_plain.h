/* gpt_plain.h - the trainer's model, plainly, and the comparison of a model with it.  gpt_test.h says
 * which precision: float, or double with GPT_DOUBLE.
 *
 * Include after gpt_test.h and owned.h. */
#ifndef GPT_PLAIN_H
#define GPT_PLAIN_H

#include <complex.h>

#ifdef GPT_DOUBLE
static const double rounding = 1e-12;
#else
static const double rounding = 1e-4;
#endif

static void* allocate(int64_t n, size_t size) {
    void* result = calloc((size_t)(n > 0 ? n : 1), size);
    if (!result) abort();
    return result;
}
static double largest_difference(const gpt_real* a, const double* b, int64_t n) {
    double largest = 0;
    for (int64_t i = 0; i < n; i++) largest = memo_test_worst(largest, fabs((double)a[i] - b[i]));
    return largest;
}

/* ---- the model ----
 *
 * In double, one number after another, with the whole score matrix; nothing in common with
 * gpt/kernels/math.h but the function that draws a dropout mask.  Every number knows what it was made from,
 * so that gradients need no formulas: they go back from each number to its factors. */

typedef struct origin { /* f of the sum of n products, whose factors lie so far apart */
    double slope;       /* of f, at the sum */
    int64_t left, left_step, right, right_step, n;
} origin;

enum { MOST_NUMBERS = 1 << 21, ONE = 0 /* the number 1 */ };
static struct {
    double *values, *gradients;
    origin* origins;
    int64_t n;
} numbers;

static int64_t plain_number(double value) {
    if (numbers.n == MOST_NUMBERS) abort();
    numbers.values[numbers.n] = value;
    return numbers.n++;
}
static int64_t plain_sum(int64_t left, int64_t left_step, int64_t right, int64_t right_step,
                         int64_t n) {
    const origin from = {1, left, left_step, right, right_step, n};
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += numbers.values[left + i * left_step] * numbers.values[right + i * right_step];
    numbers.origins[numbers.n] = from;
    return plain_number(sum);
}
static int64_t plain_product(int64_t a, int64_t b) { return plain_sum(a, 0, b, 0, 1); }

/* The imaginary part of f, beside the real axis, is its slope. */
static int64_t plain_apply(double complex (*f)(double complex), int64_t x) {
    const double complex y = f(numbers.values[x] + 1e-200 * I);
    const int64_t result = plain_product(x, ONE);
    numbers.values[result] = creal(y);
    numbers.origins[result].slope = cimag(y) / 1e-200;
    return result;
}
static double complex one_over_root(double complex x) { return 1 / csqrt(x); }
static double complex one_over(double complex x) { return 1 / x; }
static double complex silu(double complex x) { return x / (1 + cexp(-x)); }
static double complex gelu(double complex x) {
    return 0.5 * x * (1 + ctanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

static void plain_go_back(void) {
    for (int64_t y = numbers.n - 1; y >= 0; y--) {
        const origin o = numbers.origins[y];
        const double gradient = numbers.gradients[y] * o.slope;
        for (int64_t i = 0; i < o.n; i++) {
            const int64_t left = o.left + i * o.left_step, right = o.right + i * o.right_step;
            numbers.gradients[left] += gradient * numbers.values[right];
            numbers.gradients[right] += gradient * numbers.values[left];
        }
    }
}

/* Each of these returns the first number of its result, a matrix by rows. */

static int64_t plain_linear(int64_t x, int64_t w, int64_t rows, int64_t outputs, int64_t inputs) {
    const int64_t y = numbers.n;
    for (int64_t i = 0; i < rows * outputs; i++)
        plain_sum(x + i / outputs * inputs, 1, w + i % outputs * inputs, 1, inputs);
    return y;
}

static int64_t plain_norm(const gpt_config* config, int64_t x, int64_t w, int64_t rows,
                          int64_t columns) {
    const double epsilon = config->norm_epsilon > 0 ? config->norm_epsilon : 1e-5;
    const int64_t weights = plain_number(1.0 / (double)columns), y = plain_number(epsilon) + 1;
    for (int64_t r = 0; r < rows; r++) plain_sum(x + r * columns, 1, x + r * columns, 1, columns);
    for (int64_t r = y; r < y + rows; r++) plain_sum(r, ONE - r, weights, 1, 2);
    for (int64_t r = y + rows; r < y + 2 * rows; r++) plain_apply(one_over_root, r);
    for (int64_t i = 0; i < rows * columns; i++) plain_product(x + i, y + 2 * rows + i / columns);
    for (int64_t i = 0; i < rows * columns; i++) plain_product(y + 3 * rows + i, w + i % columns);
    return y + 3 * rows + rows * columns;
}

/* As transformers' modeling_rope_utils.py computes it, by wavelengths. */
static double plain_frequency(const gpt_rope_law* law, double j, double size) {
    const double frequency = pow(law->theta > 0 ? law->theta : 10000, -2 * j / size);
    const double wavelength = 2 * 3.14159265358979323846 / frequency;
    if (law->kind == GPT_ROPE_PLAIN) return frequency;
    if (law->kind == GPT_ROPE_LINEAR || wavelength > law->original / law->low_factor)
        return frequency / law->factor;
    if (wavelength < law->original / law->high_factor) return frequency;
    const double smooth =
        (law->original / wavelength - law->low_factor) / (law->high_factor - law->low_factor);
    return (1 - smooth) * frequency / law->factor + smooth * frequency;
}

/* Turns every head's pairs (j, j + size / 2) by position * frequency. */
static int64_t plain_rope(const gpt_config* config, int64_t x, int64_t rows, int64_t heads,
                          int64_t size) {
    const int64_t half = size / 2, turns = numbers.n;
    for (int64_t i = 0; i < rows * half; i++) {
        const double angle =
            (double)(i / half) * plain_frequency(&config->rope, (double)(i % half), (double)size);
        plain_number(-sin(angle));
        plain_number(cos(angle));
        plain_number(sin(angle));
    }
    int64_t y = numbers.n;
    for (int64_t i = 0; i < rows * heads * size; i++) {
        const int64_t j = i % size % half, turn = i / (heads * size) * half + j;
        plain_sum(x + i - i % size + j + half, -half, turns + 3 * turn + (i % size >= half), 1, 2);
    }
    return y;
}

/* The MLP's activation of n results; SwiGLU takes pairs. */
static int64_t plain_activate(const gpt_config* config, int64_t up, int64_t n) {
    const int64_t y = numbers.n;
    const int is_swiglu = config->mlp == GPT_MLP_SWIGLU;
    for (int64_t i = 0; i < n; i++)
        plain_apply(is_swiglu ? silu : gelu, is_swiglu ? up + 2 * i + 1 : up + i);
    for (int64_t i = 0; i < n && is_swiglu; i++) plain_product(up + 2 * i, y + i);
    return is_swiglu ? y + n : y;
}

static int64_t plain_mask(int64_t x, const gpt_config* config, int64_t step, int64_t layer,
                          int site, int64_t first_token) {
    const gpt_dropout dropout = gpt_dropout_make(config->dropout, config->seed, step, layer, site);
    const int64_t masks = numbers.n, C = config->hidden, n = config->sequence * C;
    if (config->dropout <= 0) return x;
    for (int64_t i = 0; i < n; i++)
        plain_number(
            (double)gpt_mask(&dropout, gpt_token_key(&dropout, first_token + i / C), i % C));
    for (int64_t i = 0; i < n; i++) plain_product(x + i, masks + i);
    return masks + n;
}

static int64_t plain_add(int64_t a, int64_t b, int64_t n) {
    const int64_t y = numbers.n;
    for (int64_t i = 0; i < n; i++) plain_sum(a + i, b - a, ONE, 0, 2);
    return y;
}

/* The first key that query i sees. */
static int64_t plain_first(const gpt_config* config, const uint8_t* tokens, int64_t i) {
    int64_t first = 0;
    for (int64_t j = 1; j <= i && config->documents; j++)
        if (tokens[j - 1] == config->separator) first = j;
    return config->window && first < i - config->window + 1 ? i - config->window + 1 : first;
}

static int64_t plain_head_size(const gpt_config* config) {
    return config->head_size ? config->head_size : config->hidden / config->n_heads;
}

static int64_t plain_attention(const gpt_config* config, const uint8_t* tokens, int64_t q,
                               int64_t k, int64_t v) {
    const int64_t T = config->sequence, H = config->n_heads, D = plain_head_size(config);
    const int64_t K = config->n_kv_heads, CK = K * D, C = H * D;
    const int64_t scale = plain_number(1 / sqrt((double)D));
    own_memory int64_t* probabilities = (int64_t*)allocate(T * H, sizeof *probabilities);
    int64_t n;
    for (int64_t i = 0; i < T * H; i++) { /* of query i / H, head i % H */
        const int64_t first = plain_first(config, tokens, i / H), at = numbers.n;
        n = i / H + 1 - first;
        for (int64_t j = first; j < first + n; j++)
            plain_sum(q + i * D, 1, k + j * CK + i % H / (H / K) * D, 1, D);
        for (int64_t j = 0; j < n; j++) plain_product(at + j, scale);
        for (int64_t j = 0; j < n; j++) plain_apply(cexp, at + n + j);
        plain_apply(one_over, plain_sum(at + 2 * n, 1, ONE, 0, n));
        probabilities[i] = numbers.n;
        for (int64_t j = 0; j < n; j++) plain_product(at + 2 * n + j, probabilities[i] - 1);
    }
    int64_t y = numbers.n;
    for (int64_t i = 0; i < T * C; i++) {
        const int64_t h = i % C / D, first = plain_first(config, tokens, i / C);
        plain_sum(probabilities[i / D], 1, v + first * CK + h / (H / K) * D + i % D, CK,
                  i / C + 1 - first);
    }
    return y;
}

/* q, k or v (GPT_W_QUERY + i): its bias, and the norm of its heads. */
static int64_t plain_heads(const gpt_config* config, int64_t x, int64_t lw, int i, int64_t rows,
                           int64_t heads) {
    const gpt_layout at = gpt_layout_make(config);
    const int64_t size = plain_head_size(config), columns = heads * size, y = numbers.n;
    const int64_t bias = lw + at.at[GPT_W_QUERY_BIAS + i];
    for (int64_t k = 0; k < rows * columns && config->has_biases; k++)
        plain_sum(x + k, bias + k % columns - x - k, ONE, 0, 2);
    if (config->has_biases) x = y;
    if (!config->has_head_norms || i == 2) return x;
    return plain_norm(config, x, lw + at.at[GPT_W_QUERY_NORM + i], rows * heads, size);
}

/* The experts of a row with these logits, the largest first; of equal ones the first. */
static void plain_choose(const gpt_experts* experts, int64_t logits, int64_t chosen[]) {
    for (int32_t j = 0; j < experts->n_chosen; j++) {
        chosen[j] = -1;
        for (int64_t e = 0; e < experts->n; e++) {
            int is_taken = 0;
            for (int32_t i = 0; i < j; i++) is_taken |= chosen[i] == e;
            if (!is_taken &&
                (chosen[j] < 0 || numbers.values[logits + e] > numbers.values[logits + chosen[j]]))
                chosen[j] = e;
        }
    }
}

/* The MLP of rows, or their experts; M: columns of one. */
static int64_t plain_mlp(const gpt_config* config, int64_t x, int64_t lw, int64_t rows, int64_t M) {
    enum { MOST_ROWS = 1024, MOST_EXPERTS = 64 };
    const gpt_layout at = gpt_layout_make(config);
    const int64_t C = config->hidden, E = config->experts.n, K = config->experts.n_chosen;
    const int64_t up = lw + at.at[GPT_W_UP], down = lw + at.at[GPT_W_DOWN];
    int64_t shares[MOST_ROWS], outputs[MOST_ROWS], apart = 0, chosen[MOST_EXPERTS], y;
    if (!E) {
        y = plain_linear(x, up, rows, config->mlp == GPT_MLP_SWIGLU ? 2 * M : M, C);
        return plain_linear(plain_activate(config, y, rows * M), down, rows, C, M);
    }
    const int64_t logits = plain_linear(x, lw + at.at[GPT_W_ROUTER], rows, E, C);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t begin = numbers.n;
        plain_choose(&config->experts, logits + r * E, chosen);
        for (int64_t e = 0; e < E; e++) plain_apply(cexp, logits + r * E + e);
        for (int64_t j = 0; j < K; j++) plain_product(begin + chosen[j], ONE);
        const int64_t sum = config->experts.is_normed ? plain_sum(begin + E, 1, ONE, 0, K)
                                                      : plain_sum(begin, 1, ONE, 0, E);
        const int64_t part = plain_apply(one_over, sum);
        shares[r] = numbers.n;
        for (int64_t j = 0; j < K; j++) plain_product(begin + E + j, part);
        for (int64_t j = 0; j < K; j++) { /* as many numbers for each */
            const int64_t first = numbers.n;
            y = plain_linear(x + r * C, up + chosen[j] * 2 * M * C, 1, 2 * M, C);
            y = plain_activate(config, y, M);
            y = plain_linear(y, down + chosen[j] * C * M, 1, C, M);
            if (!j) outputs[r] = y;
            apart = numbers.n - first;
        }
    }
    y = numbers.n;
    for (int64_t i = 0; i < rows * C; i++)
        plain_sum(shares[i / C], 1, outputs[i / C] + i % C, apart, K);
    return y;
}

/* Loss of one sequence, times loss_scale; gradients are added to.  logits (vocabulary) of the last
 * row. */
static double plain_sequence(const gpt_config* config, const double* w, double* dw,
                             const uint8_t* tokens, const uint8_t* targets, int64_t step,
                             int64_t first_token, double loss_scale, double* last_logits) {
    const gpt_layout at = gpt_layout_make(config);
    const int64_t T = config->sequence, C = config->hidden, H = config->n_heads;
    const int64_t D = plain_head_size(config), Q = H * D;
    const int64_t K = config->n_kv_heads, CK = K * D, V = 256, n = gpt_n_parameters(config);
    const int64_t M = config->mlp_columns ? config->mlp_columns : 4 * C;
    double loss = 0;
    int64_t y;
    numbers.values = (double*)allocate(MOST_NUMBERS, sizeof(double));
    numbers.gradients = (double*)allocate(MOST_NUMBERS, sizeof(double));
    numbers.origins = (origin*)allocate(MOST_NUMBERS, sizeof(origin));
    numbers.n = 0;
    plain_number(1);
    int64_t weights = numbers.n;
    for (int64_t i = 0; i < n; i++) plain_number(w[i]);
    int64_t x = numbers.n;
    for (int64_t i = 0; i < T * C; i++)
        plain_product(weights + at.at[GPT_W_EMBEDDING] + tokens[i / C] * C + i % C, ONE);
    x = plain_mask(x, config, step, 0, GPT_SITE_EMBEDDING, first_token);
    for (int64_t l = 0; l < config->n_layers; l++) {
        const int64_t lw = weights + l * at.layer_stride;
        y = plain_norm(config, x, lw + at.at[GPT_W_NORM1], T, C);
        int64_t q = plain_linear(y, lw + at.at[GPT_W_QUERY], T, Q, C);
        int64_t k = plain_linear(y, lw + at.at[GPT_W_KEY], T, CK, C);
        q = plain_rope(config, plain_heads(config, q, lw, 0, T, H), T, H, D);
        k = plain_rope(config, plain_heads(config, k, lw, 1, T, K), T, K, D);
        int64_t v = plain_linear(y, lw + at.at[GPT_W_VALUE], T, CK, C);
        v = plain_heads(config, v, lw, 2, T, K);
        y = plain_attention(config, tokens, q, k, v);
        y = plain_linear(y, lw + at.at[GPT_W_PROJECTION], T, C, Q);
        y = plain_mask(y, config, step, l, GPT_SITE_PROJECTION, first_token);
        x = plain_add(x, y, T * C);
        y = plain_norm(config, x, lw + at.at[GPT_W_NORM2], T, C);
        y = plain_mlp(config, y, lw, T, M);
        y = plain_mask(y, config, step, l, GPT_SITE_MLP, first_token);
        x = plain_add(x, y, T * C);
    }
    y = plain_norm(config, x, weights + at.at[GPT_W_FINAL_NORM], T, C);
    int64_t logits = plain_linear(y, weights + at.at[GPT_W_CLASSIFIER], T, V, C);
    if (last_logits)
        memcpy(last_logits, numbers.values + logits + (T - 1) * V, (size_t)V * sizeof(double));
    for (int64_t r = 0; r < T; r++) { /* log of the sum of exp, less the target's logit */
        const int64_t target = logits + r * V + targets[r], exps = numbers.n;
        for (int64_t i = 0; i < V; i++) plain_apply(cexp, logits + r * V + i);
        y = plain_apply(clog, plain_sum(exps, 1, ONE, 0, V));
        loss += loss_scale * (numbers.values[y] - numbers.values[target]);
        numbers.gradients[y] += loss_scale;
        numbers.gradients[target] -= loss_scale;
    }
    plain_go_back();
    for (int64_t i = 0; i < n; i++) dw[i] += numbers.gradients[weights + i];
    free(numbers.values);
    free(numbers.gradients);
    free(numbers.origins);
    return loss;
}

/* Loss and gradients of two micro-batches. */
static MEMO_UNUSED void check_against_plain(gpt_config config, memo_policy policy, double alpha) {
    enum { N_MICRO_BATCHES = 2, STEP = 5 };
    const gpt_desc desc = gpt_test_desc(config, policy, alpha);
    const int64_t n = gpt_n_parameters(&config), n_rows = config.batch * config.sequence;
    const double scale = 1.0 / (double)(N_MICRO_BATCHES * n_rows);
    gpt_real* parameters = (gpt_real*)allocate(n, sizeof(gpt_real));
    gpt_real* gradients = (gpt_real*)allocate(n, sizeof(gpt_real));
    double* w = (double*)allocate(n, sizeof(double));
    double* dw = (double*)allocate(n, sizeof(double));
    const uint8_t* text = gpt_test_text();
    double loss = 0, expected = 0;
    gpt_test_run run;
    for (int64_t t = 0; t < gpt_n_parameter_tensors(&config); t++) {
        const gpt_parameter p = gpt_parameter_at(&config, t);
        for (int64_t i = 0; i < p.n; i++)
            parameters[p.offset + i] =
                (gpt_real)(p.initial_mean + 0.1 * gpt_normal((uint64_t)t, (uint64_t)i));
    }
    for (int64_t i = 0; i < n; i++) w[i] = (double)parameters[i];
    CHECK_OK(gpt_test_open(&desc, &run, &error));
    if (run.model) {
        CHECK_OK(gpt_set_parameters(run.model, parameters, &error));
        for (int64_t i = 0; i < N_MICRO_BATCHES; i++)
            CHECK_OK(gpt_micro_batch(run.model, text + i * n_rows, text + i * n_rows + 1, STEP, i,
                                     scale, &error));
        CHECK_OK(gpt_get_gradients(run.model, gradients, &error));
        CHECK_OK(gpt_test_discard(run.model, &loss, &error));
        for (int64_t b = 0; b < N_MICRO_BATCHES * config.batch; b++)
            expected += plain_sequence(&config, w, dw, text + b * config.sequence,
                                       text + b * config.sequence + 1, STEP, b * config.sequence,
                                       scale, NULL);
        CHECK_CASE(fabs(loss - expected) < rounding * expected, "loss %.9g instead of %.9g", loss,
                   expected);
        for (int64_t t = 0; t < gpt_n_parameter_tensors(&config); t++) {
            const gpt_parameter p = gpt_parameter_at(&config, t);
            double largest = 0, difference;
            for (int64_t i = 0; i < p.n; i++)
                if (fabs(dw[p.offset + i]) > largest) largest = fabs(dw[p.offset + i]);
            difference = largest_difference(gradients + p.offset, dw + p.offset, p.n);
            /* A query that sees one key has no gradient. */
            CHECK_CASE(config.sequence == 1 || config.window == 1
                           ? difference < rounding
                           : largest > 0 && difference < rounding * largest,
                       "%s (tensor %d): off by %g, largest gradient %g", p.name, (int)t, difference,
                       largest);
        }
    }
    gpt_test_close(&run);
    free(parameters), free(gradients), free(w), free(dw);
}

#endif
