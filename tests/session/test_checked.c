/* test_checked.c - checked sessions and memo_session_verify find mistakes of a trainer. */
#include "extras/memo_check.h"
#include "session_model.h"

/* --- checked sessions: a trainer that computes, with planted mistakes --- */

enum { C_ROWS = 48, C_WIDTH = 5, C_LAYERS = 6 };
enum { C_INPUT, C_HIDDEN, C_OUT };
typedef struct computer {
    memo_session_desc desc;
    memo_item tensors[3];
    double x[C_ROWS * C_WIDTH], d[C_ROWS * C_WIDTH], sum;
    int64_t block; /* rows that one product takes: its rounding depends on them */
    int places[3]; /* where the kernels think that the tensors are */
    int forgets, clobbers, misplaces, counts, reads, lacks, continues, copies, early, n_runs;
    int n_planned;        /* calls of desc.planned */
    int drifts;           /* gradients depend on the run */
    int whole;            /* c_hidden computes this many rows at once, if it is given fewer, too */
    int keeps, elsewhere; /* addresses are kept from the first call, 2: d_x's alone; of this tensor
                             - 1: own */
    double* addresses[C_LAYERS][3];
    double own[2 * C_ROWS * C_WIDTH];
    double weight, *sums;           /* of layers */
    memo_session_buffer buffers[2]; /* the gradient of x, whose address is kept; scratch */
    double* kept;
    memo_verify_desc check;
    char log[2000];
} computer;

static double* c_at(computer* c, memo_session* s, int32_t layer, int t) {
    double** kept = &c->addresses[layer][t];
    if (t == c->elsewhere - 1) return c->own;
    if (c->keeps != 1 || !*kept) *kept = (double*)memo_session_get_address(s, layer, c->places[t]);
    return *kept;
}

static void c_hidden(computer* c, memo_session* s, int32_t layer, int64_t begin, int64_t end) {
    const double* in = c_at(c, s, layer, C_INPUT);
    double* hidden = c_at(c, s, layer, C_HIDDEN);
    if (c->counts) c->n_runs++;
    if (c->whole) end = begin + (end - begin + c->whole - 1) / c->whole * c->whole;
    for (int64_t i = begin; i < end; i++)
        for (int64_t k = 0; k < 2 * C_WIDTH; k++)
            hidden[i * 2 * C_WIDTH + k] = /* as if a library took another algorithm for few rows */
                sin(in[i * C_WIDTH + k % C_WIDTH] + (double)k) + c->weight +
                (end - begin < c->block ? 1e-16 * (double)(i + 1) : 0) + layer + c->n_runs +
                (c->continues && i > 0 ? hidden[(i - 1) * 2 * C_WIDTH + k] : 0);
}
static void c_out(computer* c, memo_session* s, int32_t layer, int64_t begin, int64_t end) {
    const double* hidden = c_at(c, s, layer, C_HIDDEN);
    double* out = c_at(c, s, layer, C_OUT);
    for (int64_t i = begin; i < end; i++)
        for (int64_t k = 0; k < C_WIDTH; k++)
            out[i * C_WIDTH + k] = cos(hidden[i * 2 * C_WIDTH + k] * hidden[i * 2 * C_WIDTH + 5]);
}
static void c_forward(void* user, memo_session* s, int32_t layer) {
    computer* c = (computer*)user;
    for (int64_t i = 0; i < C_ROWS * C_WIDTH && layer == 0; i++) c->x[i] = sin((double)i);
    memcpy(c_at(c, s, layer, C_INPUT), c->x, sizeof c->x);
    c_hidden(c, s, layer, 0, C_ROWS);
    if (c->lacks == 1 && layer == 2) return;
    if (c->early && layer == 1) *(double*)memo_session_get_buffer(s, c->early - 1) = 1;
    c_out(c, s, layer, 0, C_ROWS);
    memcpy(c->x, c_at(c, s, layer - (layer == 3 && c->reads == 2), C_OUT), sizeof c->x);
    if (c->clobbers == 1 && layer == 5) c_at(c, s, 4, C_INPUT)[7 * C_WIDTH] = 1;
    if (c->clobbers == 2 && layer == 5) c_at(c, s, 4, C_INPUT)[7 * C_WIDTH] *= 2;
}
static void c_recompute(void* user, memo_session* s, int32_t layer, int32_t tensor, int64_t begin,
                        int64_t end) {
    computer* c = (computer*)user;
    if (c->misplaces) end -= begin, begin = 0;
    for (int64_t i = begin * C_WIDTH; i < end * C_WIDTH && c->copies && tensor == C_INPUT; i++)
        c_at(c, s, layer, C_INPUT)[i] = c->x[i]; /* what the last layer gave */
    if (tensor == c->places[C_HIDDEN]) c_hidden(c, s, layer, begin, end);
    if (tensor == c->places[C_HIDDEN] && c->forgets == 3) c_out(c, s, layer, begin, end);
    if (tensor == c->places[C_OUT] && (!c->forgets || (c->forgets == 2 && layer != 2)))
        c_out(c, s, layer, begin, end);
}
static void c_between(void* user, memo_session* s) {
    computer* c = (computer*)user;
    if (c->keeps != 2 || !c->kept) c->kept = (double*)memo_session_get_buffer(s, 0);
    for (int64_t i = 0; i < C_ROWS * C_WIDTH; i++) c->kept[i] = 1;
}
static void c_backward(void* user, memo_session* s, int32_t layer) {
    computer* c = (computer*)user;
    double* scratch = (double*)memo_session_get_buffer(s, 1);
    if (c->drifts) c->n_runs++;
    const int32_t read = layer + (c->reads == 1 && layer + 1 < C_LAYERS); /* that one has ended */
    const double *hidden = c_at(c, s, layer, C_HIDDEN), *out = c_at(c, s, read, C_OUT);
    if (c->clobbers == 3) c_at(c, s, layer, C_OUT)[C_ROWS * C_WIDTH] = 1;
    for (int64_t i = 0; i < C_ROWS * C_WIDTH; i++) {
        scratch[i] = c->kept[i] += 1;
        c->sum += hidden[2 * i] * out[i] * (double)(layer + 1);
        if (c->sums) c->sums[layer] += hidden[2 * i] * out[i] + c->n_runs;
    }
}
static void c_log(void* user, const char* line) {
    computer* c = (computer*)user;
    size_t n = strlen(c->log);
    snprintf(c->log + n, sizeof c->log - n, "%s\n", line);
}

static void c_make(computer* c, int is_checked) {
    static const memo_item tensors[] = {MEMO_ITEM("input", 8 * C_WIDTH, MEMO_MOVE),
                                        MEMO_ITEM("hidden", 16 * C_WIDTH, MEMO_ROWS),
                                        MEMO_ITEM("out", 8 * C_WIDTH, MEMO_ROWS)};
    memset(c, 0, sizeof *c);
    static const memo_session_buffer declared[2] = {
        {"d_x", 0, 8 * C_WIDTH, MEMO_PASS_BETWEEN, 0, MEMO_PASS_BACKWARD, 0, 0},
        {"scratch", 0, 8 * C_WIDTH, MEMO_PASS_BACKWARD, MEMO_EACH_LAYER, MEMO_PASS_BACKWARD, 0, 0}};
    memcpy(c->tensors, tensors, sizeof tensors);
    memcpy(c->buffers, declared, sizeof declared);
    for (int t = 0; t < 3; t++) c->places[t] = t;
    c->desc = MEMO_ZERO(memo_session_desc);
    c->desc.alpha = -1; /* planned */
    c->desc.user = c;
    c->desc.tensors = c->tensors;
    c->desc.n_tensors = 3;
    c->desc.n_layers = C_LAYERS;
    c->desc.n_rows = C_ROWS;
    c->desc.tile_rows = 8;
    c->desc.buffers = c->buffers;
    c->desc.n_buffers = 2;
    c->desc.forward = c_forward;
    c->desc.between = c_between;
    c->desc.backward = c_backward;
    c->desc.recompute = c_recompute;
    c->desc.policy = MEMO_POLICY_RECOMPUTE;
    c->desc.is_checked = is_checked;
    c->desc.log.write = c_log;
    c->desc.log.user = c;
}

/* Two micro-batches, or as many as a session times and two; the last must be as the one before. */
static memo_status c_run(computer* c) {
    own_session* s = NULL;
    memo_status status = memo_session_create(&c->desc, &s, &error);
    if (!status && c->check.n_outputs) status = memo_session_watch(s, &c->check, &error);
    for (int k = 0; k < (c->keeps ? 4 : 0) && !status; k++)
        status = memo_session_run(s, NULL, &error);
    c->sum = 0;
    if (!status) status = memo_session_run(s, NULL, &error);
    double sum = c->sum;
    c->weight += 0 * c->sum;
    c->sum = 0;
    if (!status) status = memo_session_run(s, NULL, &error);
    CHECK(status || (sum >= c->sum && sum <= c->sum));
    return status;
}

static void c_planned(void* user, MEMO_UNUSED memo_session* s,
                      MEMO_UNUSED const memo_step_plan* plan) {
    ((computer*)user)->n_planned++;
}

/* The first training step has addresses that no later step has; those stay. */
TEST(a_checked_session_moves_its_layers_once) {
    computer c;
    c_make(&c, 1);
    c.desc.planned = c_planned;
    own_session* s = NULL;
    CHECK_OK(memo_session_create(&c.desc, &s, &error));
    if (!s) return;
    CHECK_OK(memo_session_run(s, NULL, &error));
    CHECK_IS(c.n_planned, ==, 0);
    for (int k = 0; k < 8; k++) CHECK_OK(memo_session_run(s, NULL, &error));
    CHECK_IS(c.n_planned, ==, 1);
}

/* A device that looks at rows itself, byte by byte. */
typedef struct inspection {
    const unsigned char* bytes;
    int64_t row_bytes, n_rows;
    memo_row_content* found;
} inspection;
static int64_t n_inspected;
static memo_status inspect_rows(void* args, MEMO_UNUSED memo_error* e) {
    static const uint32_t poisoned[2] = {0x7fa07da0u, 0x7ff17da0u};
    const inspection* in = (const inspection*)args;
    for (int64_t row = 0; row < in->n_rows; row++) {
        const unsigned char* bytes = in->bytes + row * in->row_bytes;
        memo_row_content* f = &in->found[row];
        int64_t n_of_poison = 0;
        memset(f, 0, sizeof *f);
        while (f->n_poisoned < in->row_bytes) {
            const uintptr_t at = (uintptr_t)(bytes + f->n_poisoned) % 8;
            if (bytes[f->n_poisoned] != (poisoned[at / 4] >> 8 * (at % 4) & 255)) break;
            f->n_poisoned++;
        }
        for (int64_t i = 0; i < in->row_bytes; i++)
            f->digest = (f->digest ^ bytes[i]) * 1099511628211u;
        for (int64_t i = 0; i + 4 <= in->row_bytes; i += 4) {
            uint32_t word;
            memcpy(&word, bytes + i, sizeof word);
            word &= 0x7fffffff;
            n_of_poison += word == 0x7fe07da0 || word == 0x7ff97da0 ||
                           (word == 0x7ff17da0 && (uintptr_t)(bytes + i) % 8 == 0);
        }
        f->is_of_poison = n_of_poison > 1;
    }
    n_inspected += in->n_rows;
    return MEMO_STATUS_OK;
}
static memo_device* inspected;
static memo_status inspect(MEMO_UNUSED void* context, memo_stream stream, const void* bytes,
                           int64_t row_bytes, int64_t n_rows, memo_row_content* found,
                           memo_error* e) {
    const inspection in = {(const unsigned char*)bytes, row_bytes, n_rows, found};
    return memo_host_device_launch(inspected, stream, inspect_rows, &in, (int64_t)sizeof in, e);
}

/* On the calling thread, under three policies; and on a device that inspects. */
TEST(mistakes_are_found) {
    static const int32_t kinds[C_LAYERS] = {0, 0, 1, 0, 0, 0};
    static const memo_shape forward_only = {C_ROWS / 2, 1};
    static const memo_shape whole_and_half[2] = {{C_ROWS, 0}, {C_ROWS / 2, 0}};
    static const struct {
        const char* what;
        const char* message;
    } mistakes[] = {
        {"none", ""},
        {"row_bytes too small", "tensor `hidden`, row 48: the forward wrote behind"},
        {"another order", "tensor `out`, row 48: the forward wrote behind"},
        {"n_rows halved", "tensor `input`, row 24: the forward wrote behind"},
        {"an input declared ROWS", "tensor `input`, row 0: recompute did not write it"},
        {"a tensor forgotten", "tensor `out`, row 0: recompute did not write it"},
        {"tiles too small",
         "(larger than what the kernel writes?); if it is right, tile_rows of 16 would work"},
        {"not by rows", "but not if all 48 are; compute rows from `begin`, check"},
        {"another layer's bytes", "layer 4, tensor `input`, row 7: its bytes changed"},
        {"rows at another place", "but not if all 48 are; compute rows from `begin`, check"},
        {"another run each time", "recompute gives it other bytes than the forward"},
        {"an update in place, later", "layer 4, tensor `input`, row 7: its bytes changed"},
        {"a backward", "layer 5, tensor `out`, row 48: the backward wrote behind"},
        {"one kind", "layer 2, tensor `out`, row 0: recompute did not write it"},
        {"a forward alone", "layer 0, tensor `input`, row 24: the forward wrote behind"},
        {"a layer without it",
         "the forward of layer 2 wrote nothing into `out`: a forgotten or cached address, bytes of "
         "a tensor that has ended, or a layer that lacks the tensor"},
        {"a recurrence by rows",
         "but not if all 48 are; compute rows from `begin`, check row_bytes"},
        {"a buffer that ends too early",
         "buffer `d_x` of 1920 bytes: something writes to it after"},
        {"a buffer too small", "buffer `scratch` of 1912 bytes: something writes behind it"},
        {"a tensor that has ended", "the forward of layer 4 wrote nothing into `input`"},
        {"an input copied again", "other bytes than the forward; it must compute the same rows by "
                                  "the same operations, or tile_rows is too small, or the table "
                                  "has another order, or weights or tensors before it changed "
                                  "since; if no tensor before it gives it, declare it MEMO_MOVE"},
        {"a backward that reads a layer that has ended",
         "layer 0, tensor `hidden`, row 0: its weights or its input are NaN since the micro-batch "
         "before: the backward read bytes"},
        {"an absent tensor", "memo_session_get_address: layer 2 is of kind 1, which lacks tensor "
                             "`out` of 40 bytes a row; do not use it there"},
        {"a buffer before its life",
         "memo_session_get_buffer: `d_x` does not live in the forward of layer 1; it is declared "
         "from the begin of `between` to the end of the backward of layer 0"},
        {"a buffer of the other pass",
         "`scratch` does not live in the forward of layer 1; it is declared from the begin of a "
         "layer's backward to the end of that layer"},
        {"row_bytes too large",
         "in tiles of 8 rows, or they write behind these; check row_bytes (larger than what the "
         "kernel writes?)"},
        {"MEMO_WITH forgotten",
         "layer 5, tensor `out`, row 0: recompute did not write it; recompute "
         "it, declare it MEMO_WITH"}};
    const memo_host_device_desc host = {0};
    memo_device table;
    computer c;
    int i;
    CHECK_OK(memo_host_device_create(&host, &inspected, &error));
    table = *inspected;
    table.inspect = inspect;
    c_make(&c, 0);
    CHECK_OK(c_run(&c));
    double right = c.sum;
    for (int k = 0; k < 4 * (int)(sizeof mistakes / sizeof mistakes[0]); k++) {
        i = k / 4;
        c_make(&c, 1);
        if (k % 4 == 3) c.desc.device = &table, c.desc.computes_on_host = 1;
        if (k % 4 == 1) c.desc.policy = MEMO_POLICY_KEEP;
        if (k % 4 == 2) { /* measures */
            c.desc.policy = MEMO_POLICY_MEMO;
            c.desc.device_bytes = i == 3 ? 14000 : 28000;
        }
        if (i == 1) c.tensors[C_HIDDEN].row_bytes -= 8;
        if (i == 2) { /* the table's order is not the kernels' */
            memo_item swap = c.tensors[C_HIDDEN];
            c.tensors[C_HIDDEN] = c.tensors[C_OUT];
            c.tensors[C_OUT] = swap;
            c.tensors[C_HIDDEN].name = "out";
        }
        if (i == 3) c.desc.n_rows /= 2;
        if (i == 4) c.tensors[C_INPUT].away = MEMO_ROWS;
        if (i == 5) c.forgets = 1;
        if (i == 6) c.block = 13;
        if (i == 7) c.block = C_ROWS;
        if (i == 8) c.clobbers = 1;
        if (i == 8 && k % 4 % 3 == 0) c.desc.policy = MEMO_POLICY_SWAP;
        if (i == 9) c.misplaces = 1;
        if (i == 10) c.counts = 1;
        if (i == 11) c.clobbers = 2;
        if (i == 12) c.clobbers = 3;
        if (i == 13) c.desc.layer_kinds = kinds, c.forgets = 2; /* in layer 2 alone */
        if (i == 15) c.desc.layer_kinds = kinds, c.lacks = 1;   /* and no kinds of tensors */
        if (i == 16) c.continues = 1;
        if (i == 19) c.reads = 2; /* layer 3 hands on another's tensor */
        if (i == 17) c.buffers[0].last_layer = C_LAYERS - 1;
        if (i == 18) c.buffers[1].size_bytes = 1912, c.buffers[1].row_bytes = 0;
        if (i == 14) c.desc.shapes = &forward_only, c.desc.n_shapes = 1;
        if (i == 20) c.tensors[C_INPUT].away = MEMO_ROWS, c.copies = 1;
        if (i == 21) c.reads = 1;
        if (i == 22) c.desc.layer_kinds = kinds, c.tensors[C_OUT].kinds = 1, c.lacks = 2;
        if (i == 23 || i == 24) c.early = i - 22;
        if (i == 25) c.tensors[C_HIDDEN].row_bytes += 8;
        if (i == 26) c.forgets = 3;
        memo_status status = c_run(&c);
        if (i == 0) {
            CHECK_OK(status);
            CHECK(c.sum >= right && c.sum <= right);
            CHECK(strstr(c.log, "tensor `hidden` keeps its bits in tiles of 1 rows") != NULL);
            CHECK_CASE(strstr(c.log, " micro-batches passed all checks\n") != NULL, "%s", c.log);
            continue;
        }
        CHECK_CASE(status == (i == 23 || i == 24 ? MEMO_STATUS_INVALID_STATE
                                                 : MEMO_STATUS_INVALID_ARGUMENT) &&
                       strstr(error.message, mistakes[i].message),
                   "%s: %s: %s", mistakes[i].what, memo_policy_name(c.desc.policy),
                   status ? error.message : "not found");
    }
    CHECK_IS(n_inspected, >, 0);

    /* Kernels of whole tiles write behind the rows that trials of fewer rows give them: the layer
     * gets its bytes back, and a tile_rows that is too small is refused. */
    for (int k = 0; k < 4; k++) {
        c_make(&c, 1);
        c.whole = 8;
        if (k % 2) c.desc.device = &table, c.desc.computes_on_host = 1;
        if (k > 1) c.desc.tile_rows = 2;
        memo_status status = c_run(&c);
        CHECK_CASE(k > 1 ? status == MEMO_STATUS_INVALID_ARGUMENT &&
                               strstr(error.message, "tile_rows of 8 would work")
                         : !status && c.sum >= right && c.sum <= right &&
                               strstr(c.log, "`hidden` keeps its bits in tiles of 8 rows"),
                   "case %d: %s", k, status ? error.message : c.log);
    }
    memo_host_device_destroy(inspected);

    /* Every shape is checked: the second is too short for the kernels. */
    {
        own_memory memo_profile* profiles = (memo_profile*)malloc(2 * sizeof *profiles);
        c_make(&c, 1);
        c.desc.shapes = whole_and_half, c.desc.n_shapes = 2;
        CHECK_ERROR(session_times(&c.desc, profiles, &error), INVALID_ARGUMENT,
                    "tensor `input`, row 24: the forward wrote behind");
    }

    /* Who reads a layer that has ended gets NaN. */
    c_make(&c, 1);
    c.desc.policy = MEMO_POLICY_KEEP, c.reads = 1;
    own_session* reader = new_session(&c.desc);
    CHECK_OK(memo_session_run(reader, NULL, &error));
    CHECK(c.sum != c.sum);

    /* A mistake between micro-batches is the error of the next one. */
    c.reads = 0;
    (void)memo_session_get_buffer(reader, 1);
    CHECK_ERROR(memo_session_run(reader, NULL, &error), INVALID_STATE,
                "`scratch` does not live in the end of the micro-batch");
    CHECK_OK(memo_session_run(reader, NULL, &error));

    /* Under every policy, on the calling thread or a stream, with layers of several kinds. */
    for (i = 0; i < 40; i++) {
        model m;
        random_model(&m);
        m.desc.is_checked = 1;
        m.desc.policy = (memo_policy)memo_test_int(0, MEMO_POLICY_ALPHA);
        if (m.desc.policy == MEMO_POLICY_MEMO) m.desc.policy = MEMO_POLICY_RECOMPUTE;
        open_device(&m, 0, 0);
        memo_session* s = new_session(&m.desc);
        for (int k = 0; k < 3 && s; k++) {
            m.micro_batch = k;
            memo_batch batch = {.shape = m.desc.n_shapes ? k % m.desc.n_shapes : 0};
            batch.n_rows = m.desc.n_shapes ? m.shapes[batch.shape].n_rows : m.desc.n_rows;
            batch.n_rows = memo_test_int(1, batch.n_rows);
            CHECK_OK(memo_session_run(s, &batch, &error));
        }
        finish(&m, s);
    }

    /* The environment does the same for a program that is built. */
    setenv("MEMO_CHECK", "1", 1);
    c_make(&c, 0);
    c.forgets = 1;
    CHECK_IS(c_run(&c), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_CASE(strstr(c.log, "passed all checks") == NULL, "%s", c.log);

    /* It logs to stderr, unless the program has a log. */
    for (int has_log = 0; has_log < 2; has_log++) {
        char log[4096] = "";
        FILE* file = tmpfile();
        const int own = dup(STDERR_FILENO);
        fflush(stderr);
        CHECK(file && own >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
        c_make(&c, 0);
        if (!has_log) c.desc.log.write = NULL;
        CHECK_OK(c_run(&c));
        fflush(stderr);
        dup2(own, STDERR_FILENO);
        close(own);
        rewind(file);
        log[fread(log, 1, sizeof log - 1, file)] = 0;
        fclose(file);
        CHECK(strstr(has_log ? c.log : log, "session: 2 micro-batches passed all checks\n") !=
              NULL);
        CHECK_CASE(has_log == !*log && has_log == !!*c.log, "%s", log);
    }
    setenv("MEMO_CHECK", "0", 1);
    c_make(&c, 0);
    CHECK_OK(c_run(&c));
    unsetenv("MEMO_CHECK");
}

/* --- misuse --- */

static int misuse;
/* Forgets the end of a layer. */
static void forgetful_step(void* user, memo_session* s) {
    model* m = (model*)user;
    for (int32_t l = 0; l < m->desc.n_layers; l++) {
        if (memo_session_forward_begin(s, l)) forward(user, s, l);
        if (l != misuse - 10) memo_session_forward_end(s, l);
    }
    if (misuse == 9) memo_session_backward_end(s, 7);
}

TEST(misuse_is_an_error) {
    static const struct {
        int misuse;
        const char* message;
    } orders[] = {
        {11, "memo_session: forward end of layer 2 of 8: out of order; forward end of layer 1 "
             "comes next"},
        {17, "memo_session_end: layer 7 is still open; end each layer that begins"},
        {9, "memo_session: backward end of layer 7 of 8: out of order; backward begin of layer 7 "
            "comes next"}};
    static const memo_session_buffer each = {
        "scratch", 8, 0, MEMO_PASS_FORWARD, MEMO_EACH_LAYER, MEMO_PASS_FORWARD, 0, 0};
    memo_session* s = NULL;
    own_model m;
    tight_model(&m);
    open_device(&m, m.desc.device_bytes, 0);
    m.desc.step = forgetful_step;
    for (int k = 0; k < 3; k++) {
        misuse = orders[k].misuse;
        CHECK_OK(memo_session_create(&m.desc, &s, &error));
        CHECK_ERROR(memo_session_run(s, NULL, &error), INVALID_STATE, orders[k].message);
        memo_session_destroy(s);
    }
    m.desc.buffers = &each;
    m.desc.n_buffers = 1;
    misuse = 11; /* layers 1 and 2 are open */
    CHECK_OK(memo_session_create(&m.desc, &s, &error));
    CHECK_ERROR(memo_session_run(s, NULL, &error), INVALID_STATE,
                "`scratch` lives in each layer, but two layers are open");
    memo_session_destroy(s);
}

/* Each step changes a gradient and a generator, on the compute stream. */
static struct {
    uint64_t gradient[8], generator;
    int n_steps, fails; /* which no output names */
} changed;
static memo_status change(MEMO_UNUSED void* arguments, MEMO_UNUSED memo_error* e) {
    changed.gradient[3]++, changed.generator *= 3;
    return MEMO_STATUS_OK;
}
static void changing_step(void* user, memo_session* s) {
    model* m = (model*)user;
    step(user, s);
    changed.n_steps++;
    CHECK_OK(memo_host_device_launch(m->host, m->compute, change, &m, sizeof m, &error));
    if (changed.fails) memo_session_fail(s, MEMO_STATUS_DEVICE, "the trainer's own");
}

TEST(verifying_gives_outputs_back) {
    const memo_verify_output outputs[] = {
        {"gradient", changed.gradient, sizeof changed.gradient, MEMO_TYPE_I64, 0},
        {"generator", &changed.generator, sizeof changed.generator, MEMO_TYPE_I64, 0}};
    memo_session* s = NULL;
    model m;
    computer c;
    tight_model(&m);
    shorten(&m);
    open_device(&m, 0, 0);
    m.desc.step = changing_step;
    memset(&changed, 0, sizeof changed);
    changed.gradient[3] = 5, changed.generator = 7;

    memo_verify_desc check = {.n_outputs = 2};
    CHECK_ERROR(memo_session_verify(&m.desc, &check, &error), INVALID_ARGUMENT, "outputs: NULL");
    check.outputs = outputs;
    changed.fails = 1; /* after it has changed them */
    CHECK_ERROR(memo_session_verify(&m.desc, &check, &error), DEVICE, "the trainer's own");
    CHECK(changed.n_steps == 1 && changed.gradient[3] == 5 && changed.generator == 7);
    changed.fails = 0;
    CHECK_OK(memo_session_verify(&m.desc, &check, &error));
    CHECK(changed.n_steps > 3 && changed.gradient[3] == 5 && changed.generator == 7);

    /* A session that times its steps changes them once in each. */
    m.desc.timed_steps = 3;
    CHECK_OK(memo_session_create(&m.desc, &s, &error));
    for (int i = 0; i < 5; i++) CHECK_OK(memo_session_run(s, NULL, &error));
    CHECK_OK(memo_stream_synchronize(m.host, m.compute, &error));
    CHECK(changed.gradient[3] == 10 && changed.generator == 7 * 243);
    finish(&m, s);

    /* The calling thread computes; the sum adds up. */
    c_make(&c, 0);
    const memo_verify_output sum = {"sum", &c.sum, sizeof c.sum, MEMO_TYPE_F64, 0};
    check.outputs = &sum, check.n_outputs = 1;
    c.desc.policy = MEMO_POLICY_ALPHA;
    c.sum = 5;
    CHECK_OK(memo_session_verify(&c.desc, &check, &error));
    CHECK(c.sum <= 5 && c.sum >= 5);
    CHECK_OK(memo_session_create(&c.desc, &s, &error));
    CHECK_OK(memo_session_run(s, NULL, &error));
    CHECK(c.sum < 5 || c.sum > 5);
    memo_session_destroy(s);
}

/* Of what the update would read: two arrays of gradients, of which one is forgotten in outputs. */
typedef struct gradients {
    computer c; /* first, because memo passes it as user */
    double listed[C_LAYERS], other[C_LAYERS];
} gradients;
static void g_backward(void* user, memo_session* s, int32_t layer) {
    gradients* g = (gradients*)user;
    c_backward(user, s, layer);
    g->other[layer] += g->listed[layer];
}
static double g_norm(void* user) {
    const gradients* g = (const gradients*)user;
    double sum = 0;
    for (int l = 0; l < C_LAYERS; l++)
        sum += g->listed[l] * g->listed[l] + g->other[l] * g->other[l];
    return sqrt(sum);
}

TEST(a_missing_output_is_named) {
    gradients g;
    const memo_verify_output outputs[] = {
        {"listed", g.listed, sizeof g.listed, MEMO_TYPE_F64, C_LAYERS},
        {"other", g.other, sizeof g.other, MEMO_TYPE_F64, C_LAYERS},
        {"half of listed", g.listed, sizeof g.listed / 2, MEMO_TYPE_F64, C_LAYERS / 2}};
    for (int k = 0; k < 10; k++) {
        const int which = k % 5, begins_at_0 = k < 5;
        const int n_listed = which == 3 ? 1 : which == 4 ? 2 : which, is_right = which == 2;
        if (!n_listed) continue; /* nothing to compare */
        memset(&g, 0, sizeof g);
        c_make(&g.c, 0);
        g.c.sums = g.listed;
        if (!begins_at_0) g.listed[1] = 0.5, g.other[2] = 5;
        g.c.desc.backward = g_backward;
        const memo_verify_desc check = {.outputs = outputs + (which == 4),
                                        .n_outputs = n_listed,
                                        .norm =
                                            which == 3 ? NULL : g_norm}; /* only the log tells */
        g.c.desc.policy = MEMO_POLICY_ALPHA;
        const memo_status status = memo_session_verify(&g.c.desc, &check, &error);
        IN_CASE("case %d: %s", k, status ? error.message : "ok");
        CHECK((strstr(g.c.log, "norm is NULL: ") != NULL) == (which == 3));
        CHECK_IS(status, ==,
                 is_right || which == 3 ? MEMO_STATUS_OK : MEMO_STATUS_INVALID_ARGUMENT);
        if (status)
            CHECK(strstr(error.message, "memo_verify_desc.outputs: norm was ") &&
                  strstr(error.message, begins_at_0 ? "was 0 and is " : "was 5.02493781 and is ") &&
                  strstr(error.message, "list all bytes that a micro-batch changes"));
        CHECK((g.other[2] <= 5 && g.other[2] >= 5) == (n_listed == 2 && !begins_at_0));
    }
}

/* A statistic that forward and recompute advance, and a gradient of a validation: each listed or
 * not, and right ones. */
static double statistic;
static void advancing_recompute(void* user, memo_session* s, int32_t layer, int32_t tensor,
                                int64_t begin, int64_t end) {
    c_recompute(user, s, layer, tensor, begin, end);
    statistic += 1;
}
static int validates; /* 1: `between` asks whether this is a validation */
static void adding_between(void* user, memo_session* s) {
    if (!validates || !memo_session_get_batch(s).is_forward_only) ((gradients*)user)->other[0] += 1;
    c_between(user, s);
}

TEST(changes_outside_of_a_backward_are_named) {
    const memo_verify_output outputs[] = {
        {"statistic", &statistic, sizeof statistic, MEMO_TYPE_F64, 0}};
    gradients g;
    for (int is_listed = 0; is_listed < 2; is_listed++) {
        memset(&g, 0, sizeof g);
        c_make(&g.c, 1);
        g.c.desc.recompute = advancing_recompute;
        g.c.check.outputs = outputs, g.c.check.n_outputs = is_listed;
        const memo_status status = c_run(&g.c);
        CHECK_IS(status, ==, is_listed ? MEMO_STATUS_INVALID_ARGUMENT : MEMO_STATUS_OK);
        if (is_listed)
            CHECK_TEXT(error.message,
                       "checked session: layer 5: recompute changes output `statistic`; it may "
                       "write tensors of its layer alone: let the forward count, and use no buffer "
                       "that the backward reads as scratch");
    }

    for (validates = 0; validates < 2; validates++) {
        const memo_batch alone = {.is_forward_only = 1};
        own_session* s = NULL;
        memset(&g, 0, sizeof g);
        c_make(&g.c, 1);
        g.c.desc.between = adding_between, g.c.check.norm = g_norm;
        CHECK_OK(memo_session_create(&g.c.desc, &s, &error));
        CHECK_OK(memo_session_watch(s, &g.c.check, &error));
        for (int k = 0; k < 3; k++) {
            CHECK_OK(memo_session_run(s, NULL, &error));
            if (validates)
                CHECK_OK(memo_session_run(s, &alone, &error));
            else
                CHECK_ERROR(memo_session_run(s, &alone, &error), INVALID_ARGUMENT,
                            "after a forward alone; add gradients only if "
                            "memo_session_get_batch gives is_forward_only 0");
        }
    }
}

/* Mistakes that a checked session finds as well, and some that it cannot, change gradients. */
static memo_status keep_memory(MEMO_UNUSED void* context, MEMO_UNUSED void* address,
                               MEMO_UNUSED memo_error* e) {
    return MEMO_STATUS_OK;
}

/* Addresses kept from the plan before, or from a session before: under each budget.  The
 * device frees nothing before its end, because the mistake writes to memory of a closed session. */
TEST(tensors_that_no_forward_writes_are_named) {
    static double sums[C_LAYERS];
    const memo_verify_output outputs[] = {{"sums", sums, sizeof sums, MEMO_TYPE_F64, C_LAYERS}};
    const memo_host_device_desc plain = MEMO_ZERO(memo_host_device_desc);
    computer c;
    memo_device* host = NULL;
    CHECK_OK(memo_host_device_create(&plain, &host, &error));
    memo_device keeping = *host;
    keeping.device_free = keep_memory;
    for (int k = 0; k < 8; k++) {
        c_make(&c, 1);
        c.desc.device = &keeping, c.desc.computes_on_host = 1;
        c.keeps = k < 4;
        c.elsewhere = k < 4 ? 0 : 2 + k % 2;
        c.desc.policy = MEMO_POLICY_MEMO;
        c.desc.device_bytes = 24000 + 2000 * (k % 4);
        CHECK_CASE(c_run(&c) == MEMO_STATUS_INVALID_ARGUMENT &&
                       strstr(error.message, "the forward of layer 0 wrote nothing into `") &&
                       strstr(error.message, "a forgotten or cached address"),
                   "case %d: %s", k, error.message);
    }
    /* No steps are timed, and everything is kept or recomputed. */
    for (int k = 0; k < 4; k++) {
        c_make(&c, 1);
        c.desc.device = &keeping, c.desc.computes_on_host = 1;
        c.keeps = 1 + k % 2;
        if (k < 2) c.desc.policy = MEMO_POLICY_KEEP;
        const char* named =
            k % 2 ? "buffer `d_x` of 1920 bytes: something writes to it after it has ended"
                  : "the forward of layer 0 wrote nothing into `";
        CHECK_CASE(c_run(&c) == MEMO_STATUS_INVALID_ARGUMENT && strstr(error.message, named),
                   "case %d: %s", k, error.message);
    }
    for (int k = 0; k < 2; k++) {
        c_make(&c, 0);
        c.desc.device = &keeping, c.desc.computes_on_host = 1;
        c.keeps = k;
        c.elsewhere = 2 * !k;
        c.sums = sums;
        const memo_verify_desc check = {.outputs = outputs, .n_outputs = 1};
        CHECK_ERROR(memo_session_verify(&c.desc, &check, &error), INVALID_ARGUMENT,
                    "wrote nothing into");
    }
    memo_host_device_destroy(host);
}

TEST(verify_finds_other_gradients) {
    static const struct {
        int reads, block, drifts;
        memo_policy policy;
        const char* message;
    } cases[] = {
        {0, 0, 0, MEMO_POLICY_MEMO, NULL},
        {0, 0, 0, MEMO_POLICY_SWAP, NULL},
        {1, 0, 0, MEMO_POLICY_MEMO,
         "output `sums`, layer 0, number 0 (byte 0 of 8): a checked session changes it; the "
         "backward reads bytes that no kernel has written"},
        {0, C_ROWS, 0, MEMO_POLICY_KEEP, "in tiles of 8 rows, but not if all 48 are"},
        {0, 13, 0, MEMO_POLICY_KEEP,
         "(larger than what the kernel writes?); if it is right, tile_rows of 16 would work"},
        {0, 0, 1, MEMO_POLICY_MEMO, "two micro-batches differ; a kernel is not deterministic"}};
    double sums[C_LAYERS + 1], before[C_LAYERS + 1];
    const memo_verify_output outputs[] = {
        {"sums", sums, C_LAYERS * sizeof *sums, MEMO_TYPE_F64, C_LAYERS}};
    computer c;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        c_make(&c, 0);
        c.sums = sums;
        c.reads = cases[k].reads, c.block = cases[k].block, c.drifts = cases[k].drifts;
        c.desc.policy = cases[k].policy;
        const memo_verify_desc check = {.outputs = outputs, .n_outputs = 1};
        for (int l = 0; l <= C_LAYERS; l++) before[l] = sums[l] = 3.5 * l;
        memo_status status = memo_session_verify(&c.desc, &check, &error);
        CHECK_CASE(cases[k].message ? status == MEMO_STATUS_INVALID_ARGUMENT &&
                                          strstr(error.message, cases[k].message)
                                    : status == MEMO_STATUS_OK,
                   "case %d: %s", (int)k, status ? error.message : "ok");
        CHECK(!memcmp(sums, before, sizeof sums));
    }
    CHECK_ERROR(memo_session_verify(&c.desc, NULL, &error), INVALID_ARGUMENT, "nothing to compare");
}

/* A kernel that ends only when somebody waits for its stream, and the frees of device memory before
 * it ends. */
static const memo_device* watched;
static int is_running, is_awaited, n_early_frees;
static memo_status run_until_awaited(void* arguments, memo_error* e) {
    const struct timespec nap = {0, 50000};
    (void)arguments, (void)e;
    while (!__atomic_load_n(&is_awaited, __ATOMIC_ACQUIRE)) nanosleep(&nap, NULL);
    __atomic_store_n(&is_running, 0, __ATOMIC_RELEASE);
    return MEMO_STATUS_OK;
}
static memo_status watched_synchronize(void* context, memo_stream stream, memo_error* e) {
    if (__atomic_load_n(&is_running, __ATOMIC_ACQUIRE))
        __atomic_store_n(&is_awaited, 1, __ATOMIC_RELEASE);
    return watched->stream_synchronize(context, stream, e);
}
static memo_status watched_free(void* context, void* address, memo_error* e) {
    if (__atomic_load_n(&is_running, __ATOMIC_ACQUIRE)) {
        n_early_frees++;
        __atomic_store_n(&is_awaited, 1, __ATOMIC_RELEASE);
    }
    return watched->device_free(context, address, e);
}
static void failing_forward(void* user, memo_session* s, int32_t layer) {
    model* m = (model*)user;
    forward(user, s, layer);
    __atomic_store_n(&is_running, 1, __ATOMIC_RELAXED);
    CHECK_OK(memo_host_device_launch(m->host, m->compute, run_until_awaited, NULL, 0, &error));
    memo_session_fail(s, MEMO_STATUS_DEVICE, "the trainer's own");
}

/* A checked micro-batch computes in memory that is freed after it. */
TEST(an_error_of_a_checked_step_waits_for_kernels) {
    memo_profile profile;
    own_model m;
    tight_model(&m);
    by_layers(&m, failing_forward, backward);
    m.desc.is_checked = 1;
    open_device(&m, 0, 0);
    watched = m.host;
    memo_device table = *m.host;
    table.device_free = watched_free;
    table.stream_synchronize = watched_synchronize;
    m.desc.device = &table;
    CHECK_ERROR(session_times(&m.desc, &profile, &error), DEVICE, "the trainer's own");
    CHECK_IS(n_early_frees, ==, 0);
}
