/* test_describe.c - memo_session_describe says of each tensor who writes it, whether the backward
 * reads it, and how `recompute` gives it; the table that it prints trains with the same bits. */
#include "extras/memo_check.h"
#include "owned.h"

enum { T = 24, C = 4, L = 5 };
enum { INP, BASE, NORM, TEMP, RSTD, MIX, NOISE, OLD, HALF, SHORT, INDEX, ALIKE, LATE, N_ITEMS };
typedef struct trainer {
    memo_session_desc desc;
    memo_verify_desc check;
    memo_verify_output outputs[2];
    memo_item items[N_ITEMS];
    int places[N_ITEMS]; /* of the trainer's tensors in items; -1: it is no more there */
    float x[T * C], dx[T * C], weights[L], gradients[L], scratch[T * C], loss;
    int32_t n_routed;
    int is_random; /* a kernel gives other bits each time */
    int spoils;    /* recompute changes an output */
    int block;     /* norm has other bits in fewer rows */
    int is_one;    /* rows that are alike have 1.0f, which poison shows, in place of an index */
    uint64_t generator;
    int is_gradient_a_state, n_agreed;
} trainer;

static float* at(trainer* m, memo_session* s, int32_t layer, int item) {
    const int place = m->places[item];
    if (place < 0) return m->scratch;
    return (float*)memo_session_get_address(s, layer, place);
}

static void norm_rows(trainer* m, memo_session* s, int32_t layer, int64_t begin, int64_t end) {
    const float *inp = at(m, s, layer, INP), *base = at(m, s, layer, BASE);
    float *norm = at(m, s, layer, NORM), *rstd = at(m, s, layer, RSTD);
    for (int64_t r = begin; r < end; r++) {
        float sum = end - begin < m->block ? 1e-3f : 0;
        for (int i = 0; i < C; i++) sum += inp[r * C + i] * inp[r * C + i];
        rstd[r] = 1 / sqrtf(sum + 1);
        for (int i = 0; i < C; i++) norm[r * C + i] = inp[r * C + i] * rstd[r] + base[r * C + i];
    }
}
static void mix_rows(trainer* m, memo_session* s, int32_t layer) {
    const float* norm = at(m, s, layer, NORM);
    float* mix = at(m, s, layer, MIX);
    for (int i = 0; i < C; i++) mix[i] = norm[i];
    for (int i = C; i < T * C; i++) mix[i] = 0.5f * mix[i - C] + norm[i];
}
static float noise_of(trainer* m) {
    m->generator = m->generator * 6364136223846793005u + 1442695040888963407u;
    return (float)(m->generator >> 40) / (float)(1 << 24);
}

static void forward(void* user, memo_session* s, int32_t layer) {
    trainer* m = (trainer*)user;
    if (layer == 0) {
        if (!m->is_random) m->generator = 7;
        for (int i = 0; i < T * C; i++) m->x[i] = sinf((float)i);
    }
    memcpy(at(m, s, layer, INP), m->x, sizeof m->x);
    for (int i = 0; i < T * C; i++) at(m, s, layer, BASE)[i] = 0.1f * noise_of(m);
    norm_rows(m, s, layer, 0, T);
    memcpy(at(m, s, layer, TEMP), at(m, s, layer, NORM), sizeof m->x);
    mix_rows(m, s, layer);
    for (int i = 0; i < T * C; i++) at(m, s, layer, NOISE)[i] = noise_of(m);
    for (int r = 0; r < T; r++) { /* half of each row */
        for (int i = 0; i < C; i++) at(m, s, layer, HALF)[2 * r * C + i] = m->x[r * C + i] + 1;
        ((int32_t*)at(m, s, layer, INDEX))[r] = (r * 7 + layer) % T;
        if (m->is_one)
            at(m, s, layer, ALIKE)[r] = 1;
        else
            ((int32_t*)at(m, s, layer, ALIKE))[r] = 1;
    }
    for (int i = 0; i < T * C / 2; i++) at(m, s, layer, SHORT)[i] = m->x[i] + 2;
    if (m->places[LATE] >= 0) {
        const int n = m->n_routed ? m->n_routed + layer : T / 2 + layer;
        if (m->n_routed) memo_session_set_routed(s, layer, n);
        for (int i = 0; i < n * C; i++) at(m, s, layer, LATE)[i] = m->x[i] + 3;
    }
    for (int i = 0; i < T * C; i++) m->x[i] += m->weights[layer] * at(m, s, layer, MIX)[i];
}
static void between(void* user, memo_session* s) {
    trainer* m = (trainer*)user;
    (void)s;
    for (int i = 0; i < T * C; i++) m->loss += m->dx[i] = m->x[i];
}
static void backward(void* user, memo_session* s, int32_t layer) {
    trainer* m = (trainer*)user;
    const float *inp = at(m, s, layer, INP), *norm = at(m, s, layer, NORM);
    const float *rstd = at(m, s, layer, RSTD), *mix = at(m, s, layer, MIX);
    const float *noise = at(m, s, layer, NOISE), *half = at(m, s, layer, HALF);
    const float *brief = at(m, s, layer, SHORT), *late = at(m, s, layer, LATE);
    const int32_t* index = (const int32_t*)(const void*)at(m, s, layer, INDEX);
    const int32_t* alike = (const int32_t*)(const void*)at(m, s, layer, ALIKE);
    float* g = &m->gradients[layer];
    if (m->is_gradient_a_state) g = (float*)memo_session_get_state(s, layer, 0);
    for (int i = 0; i < T * C; i++) {
        const int r = i / C;
        m->dx[i] += norm[i] * rstd[r] * noise[i] + inp[i] * half[2 * r * C + i % C];
        const float one = m->is_one ? at(m, s, layer, ALIKE)[r] : (float)alike[r];
        *g += m->dx[i] * mix[i] + m->dx[index[r] * C] * one;
        if (r < T / 2) *g += brief[i] * (float)i;
        if (r < T / 2 && m->places[LATE] >= 0) *g += late[i] * (float)i;
    }
}
static void recompute(void* user, memo_session* s, int32_t layer, int32_t item, int64_t begin,
                      int64_t end) {
    trainer* m = (trainer*)user;
    m->loss += (float)m->spoils;
    if (item == m->places[NORM]) norm_rows(m, s, layer, begin, end);
    if (item == m->places[MIX]) mix_rows(m, s, layer);
    for (int64_t i = begin * C; i < end * C && item == m->places[NOISE]; i++)
        at(m, s, layer, NOISE)[i] = 0.5f;
}

/* A loop of its own. */
static void own_loop(void* user, memo_session* s) {
    for (int32_t l = 0; l < L; l++) {
        if (memo_session_forward_begin(s, l)) forward(user, s, l);
        memo_session_forward_end(s, l);
    }
    between(user, s);
    for (int32_t l = L - 1; l >= 0; l--) {
        if (memo_session_backward_begin(s, l)) backward(user, s, l);
        memo_session_backward_end(s, l);
    }
}
static memo_status agree(void* user, MEMO_UNUSED int64_t* values, MEMO_UNUSED int64_t n,
                         MEMO_UNUSED memo_error* e) {
    ((trainer*)user)->n_agreed++;
    return MEMO_STATUS_OK;
}

static void make(trainer* m) {
    static const memo_item items[N_ITEMS] = {
        MEMO_ITEM("inp", 4 * C, MEMO_KEEP),   MEMO_ITEM("base", 4 * C, MEMO_KEEP),
        MEMO_ITEM("norm", 4 * C, MEMO_KEEP),  MEMO_ITEM("temp", 4 * C, MEMO_KEEP),
        MEMO_ITEM("rstd", 4, MEMO_KEEP),      MEMO_ITEM("mix", 4 * C, MEMO_KEEP),
        MEMO_ITEM("noise", 4 * C, MEMO_KEEP), MEMO_ITEM("old", 4 * C, MEMO_KEEP),
        MEMO_ITEM("half", 8 * C, MEMO_KEEP),  MEMO_ITEM("short", 4 * C, MEMO_KEEP),
        MEMO_ITEM("index", 4, MEMO_KEEP),     MEMO_ITEM("alike", 4, MEMO_KEEP),
        MEMO_ITEM("late", 4 * C, MEMO_KEEP)};
    memset(m, 0, sizeof *m);
    memcpy(m->items, items, sizeof items);
    for (int t = 0; t < N_ITEMS; t++) m->places[t] = t;
    for (int l = 0; l < L; l++) m->weights[l] = 0.3f + 0.1f * (float)l;
    m->desc.user = m;
    m->desc.tensors = m->items, m->desc.n_tensors = N_ITEMS;
    m->desc.n_layers = L, m->desc.n_rows = T, m->desc.tile_rows = 4;
    m->desc.forward = forward, m->desc.between = between, m->desc.backward = backward;
    m->desc.recompute = recompute;
    m->outputs[0] =
        (memo_verify_output){"gradients", m->gradients, sizeof m->gradients, MEMO_TYPE_F32, L};
    m->outputs[1] = (memo_verify_output){"loss", &m->loss, sizeof m->loss, MEMO_TYPE_F32, 0};
    m->check.outputs = m->outputs, m->check.n_outputs = 2;
}

/* The line of a tensor in the comment (0) or among the lines of C (1). */
static const char* line_of(const memo_text* text, const char* name, int is_code) {
    static char line[400];
    char key[40];
    const char* found = text->data;
    snprintf(key, sizeof key, is_code ? "MEMO_ITEM(\"%s\"," : " * %s ", name);
    found = found ? strstr(found, key) : NULL;
    snprintf(line, sizeof line, "%.*s", found ? (int)strcspn(found, "\n") : 0, found ? found : "");
    return line;
}

#define CHECK_LINE(name, is_code, words)                                                           \
    CHECK_CASE(strstr(line_of(&text, name, is_code), words), "%s: no \"%s\" in: %s\n%s", name,     \
               words, line_of(&text, name, is_code), text.data ? text.data : "")

/* The trainer with the lines that are printed as its table. */
static void paste(trainer* m, const memo_text* text) {
    static char names[N_ITEMS][16];
    static const char* const aways[] = {"MEMO_KEEP", "MEMO_MOVE", "MEMO_ROWS", "MEMO_WHOLE",
                                        "MEMO_WITH"};
    const char* line = strstr(text->data, "{\n");
    trainer before = *m;
    int n = 0;
    for (int t = 0; t < N_ITEMS; t++) m->places[t] = -1;
    while ((line = strchr(line, '\n')) && line[1] != '}') {
        char away[16] = "", name[16] = "";
        long long row_bytes = 0;
        line++;
        if (sscanf(line, " MEMO_ITEM(\"%15[a-z]\", %lld, %15[A-Z_]", name, &row_bytes, away) != 3)
            continue; /* it is a comment */
        strcpy(names[n], name);
        memset(&m->items[n], 0, sizeof m->items[n]);
        m->items[n].name = names[n];
        m->items[n].row_bytes = row_bytes;
        for (int k = 0; k < 5; k++)
            if (!strcmp(away, aways[k])) m->items[n].away = k;
        for (int t = 0; t < N_ITEMS; t++)
            if (!strcmp(before.items[t].name, name)) m->places[t] = n;
        n++;
    }
    m->desc.n_tensors = n;
}

TEST(a_table_of_kept_tensors_is_described) {
    static const char* const moves[] = {"inp",   "base",  "noise", "half",
                                        "short", "index", "alike", "late"};
    for (int k = 0; k < 7; k++) {
        memo_device* device = NULL;
        memo_text text = {NULL, 0, 0, 0};
        float loss;
        trainer m;
        make(&m);
        if (k == 1) m.desc.forward = m.desc.backward = NULL, m.desc.step = own_loop;
        if (k == 2 || k == 6) {
            const memo_host_device_desc host = {0};
            CHECK_OK(memo_host_device_create(&host, &device, &error));
            m.desc.device = device, m.desc.computes_on_host = k == 2;
            if (k == 6)
                CHECK_OK(memo_stream_create(device, "c", 0, &m.desc.compute_stream, &error));
        }
        if (k == 3) m.desc.agree = agree;
        if (k >= 4) m.block = k == 4 ? 3 : 8; /* norm has its bits in so many rows and more */
        m.is_one = k % 2;
        m.loss = loss = 3.25f;
        CHECK_OK(memo_session_describe(&m.desc, &m.check, &text, &error));
        CHECK(m.loss <= loss && m.loss >= loss && (k != 3 || m.n_agreed > 0));

        for (size_t i = 0; i < sizeof moves / sizeof *moves; i++) {
            CHECK_LINE(moves[i], 1, "MEMO_MOVE), // MEMO_KEEP");
            CHECK_LINE(moves[i], 0, " 0-4 ");
            CHECK_LINE(moves[i], 0, strcmp(moves[i], "base") ? "reads it no" : " no       no");
        }
        CHECK_LINE("base", 1, "MEMO_KEEP: only recompute reads it");
        CHECK_LINE("norm", 1, k > 4 ? "MEMO_ROWS), // MEMO_KEEP; tile_rows of 8" : "MEMO_ROWS), ");
        CHECK_LINE("norm", 0,
                   k < 4    ? "gives it in runs of 1"
                   : k == 4 ? "gives it in runs of 4"
                            : "gives it in runs of 8");
        CHECK_LINE("rstd", 1, "MEMO_WITH), // MEMO_KEEP; keep it right behind `norm`");
        CHECK_LINE("rstd", 0, "reads it gives it with `norm`");
        CHECK_LINE("mix", 1, "MEMO_WHOLE), // MEMO_KEEP");
        CHECK_LINE("mix", 0, "gives it in runs of 24");
        CHECK_LINE("temp", 0, " no       no");
        CHECK_LINE("temp", 1, "no backward needs it; make it a buffer of pass FORWARD");
        CHECK_LINE("old", 0, " none ");
        CHECK_LINE("old", 1, "no forward writes it; remove it");
        CHECK_LINE("half", 1, "; 16 bytes of each row are never written, the first is byte 16");
        CHECK_LINE("short", 1, "only 192 bytes of 384 are written");
        CHECK_LINE("short", 1, "a row_bytes of 8 does");
        CHECK_LINE("late", 0, " 12 to 16 ");
        CHECK_LINE("late", 1, "if the data decides how many rows, MEMO_LATE_ROWS");
        CHECK(!strstr(line_of(&text, "inp", 1), "written"));
        CHECK(strstr(text.data, "    // MEMO_ITEM(\"temp\"") &&
              strstr(text.data, "    // MEMO_ITEM(\"old\"") &&
              !strstr(text.data, "// MEMO_ITEM(\"base\""));
        memo_text_free(&text);
        if (k == 6) CHECK_OK(memo_stream_destroy(device, m.desc.compute_stream, &error));
        memo_host_device_destroy(device);
    }
}

/* The printed table under every policy: the same bits, and a checked session has nothing to say. */
TEST(what_is_printed_trains_with_the_same_bits) {
    memo_text text = {NULL, 0, 0, 0};
    trainer kept, m;
    make(&kept);
    CHECK_OK(memo_session_describe(&kept.desc, &kept.check, &text, &error));
    for (int k = -1; k < 2 * MEMO_POLICY_ROWS; k++) {
        own_session* s = NULL;
        trainer* of = k < 0 ? &kept : &m;
        if (k >= 0) {
            make(&m);
            paste(&m, &text);
            CHECK(m.desc.n_tensors == N_ITEMS - 2);
            CHECK_OK(memo_session_verify(&m.desc, &m.check, &error));
            m.desc.policy = (memo_policy)(k / 2);
            m.desc.is_checked = k % 2;
            m.desc.alpha = 0.5;
        }
        CHECK_OK(memo_session_create(&of->desc, &s, &error));
        for (int i = 0; i < 6 && s; i++) CHECK_OK(memo_session_run(s, NULL, &error));
        CHECK_CASE(!memcmp(of->gradients, kept.gradients, sizeof kept.gradients), "case %d", k);
    }
    memo_text_free(&text);
}

static void update(void* user, memo_session* s, int32_t layer) { (void)user, (void)s, (void)layer; }

/* Gradients among states show what is read; tensors keep scope, bits and kinds; layers that lack a
 * tensor do not count. */
TEST(fields_of_a_tensor_stay) {
    static const memo_state states[] = {{"d_w", 4, MEMO_STATE_GRADIENT, 0}};
    static const int32_t kinds[L] = {0, 0, 0, 1, 0};
    memo_text text = {NULL, 0, 0, 0};
    trainer m;
    make(&m);
    m.desc.states = states, m.desc.n_states = 1;
    m.desc.update = update;
    m.is_gradient_a_state = 1;
    m.desc.layer_kinds = kinds;
    m.n_routed = 12;
    m.desc.routed_rows_layer = T, m.desc.routed_rows_all = L * T;
    m.items[LATE].away = MEMO_MOVE, m.items[LATE].is = MEMO_LATE_ROWS;
    m.items[INP].scope = MEMO_INPUT;
    m.items[NOISE].kinds = 3;
    m.items[MIX].away = MEMO_WHOLE;
    m.items[NORM].away = MEMO_MOVE;
    m.check.n_outputs = 0;
    CHECK_OK(memo_session_describe(&m.desc, &m.check, &text, &error));
    CHECK_LINE("late", 1, "MEMO_MOVE, MEMO_SLICE, 1, 0u), // MEMO_MOVE");
    CHECK(!strstr(line_of(&text, "late", 1), "LATE_ROWS"));
    CHECK_LINE("late", 0, " 12 to 16 ");
    CHECK_LINE("inp", 1, "MEMO_MOVE, MEMO_INPUT, 0, 0u), // MEMO_KEEP");
    CHECK_LINE("noise", 1, "MEMO_MOVE, MEMO_SLICE, 0, 3u), // MEMO_KEEP");
    CHECK_LINE("mix", 1, "MEMO_WHOLE), // MEMO_WHOLE");
    CHECK_LINE("norm", 1, "MEMO_ROWS), // MEMO_MOVE");
    memo_text_free(&text);
}

/* Without `recompute` all that is read moves; a table in slices is described at once. */
TEST(tables_without_recompute_and_in_slices) {
    static const int32_t kinds[L] = {0, 0, 1, 0, 0};
    for (int k = 0; k < 2; k++) {
        memo_text text = {NULL, 0, 0, 0};
        trainer m;
        make(&m);
        m.desc.recompute = NULL;
        if (k == 1) {
            m.items[OLD].scope = MEMO_EDGE, m.items[OLD].away = MEMO_MOVE;
            m.items[NORM].scope = MEMO_LAYER;
            m.desc.slice_rows = 8;
            m.desc.layer_kinds = kinds;
        }
        CHECK_OK(memo_session_describe(&m.desc, &m.check, &text, &error));
        CHECK_LINE("norm", 0, "reads it no");
        CHECK_LINE("norm", 1, k ? "MEMO_MOVE, MEMO_LAYER, 0, 0u), // MEMO_KEEP" : "MEMO_MOVE), ");
        CHECK_LINE("base", 1, "// MEMO_KEEP: no backward needs it; make it a buffer");
        if (k == 1) CHECK_LINE("old", 1, "MEMO_MOVE, MEMO_EDGE, 0, 0u), // MEMO_MOVE stays");
        memo_text_free(&text);
    }
}

TEST(what_cannot_be_described_is_an_error) {
    memo_text text = {NULL, 0, 0, 0};
    trainer m;
    make(&m);
    CHECK_ERROR(memo_session_describe(&m.desc, NULL, &text, &error), INVALID_ARGUMENT,
                "nothing to compare");
    CHECK_ERROR(memo_session_describe(&m.desc, &m.check, NULL, &error), INVALID_ARGUMENT, "text");
    CHECK_ERROR(memo_session_describe(NULL, &m.check, &text, &error), INVALID_ARGUMENT, "desc");
    m.is_random = 1;
    CHECK_ERROR(memo_session_describe(&m.desc, &m.check, &text, &error), INVALID_ARGUMENT,
                "output `gradients`, layer 0, number 0 (byte 0 of 4): two micro-batches differ");
    make(&m);
    m.spoils = 1;
    CHECK_ERROR(
        memo_session_describe(&m.desc, &m.check, &text, &error), INVALID_ARGUMENT,
        "memo_session_describe: output `loss`, number 0 (byte 0 of 4): `recompute` changes it");
    make(&m);
    m.items[NORM].row_bytes /= 2;
    CHECK_ERROR(memo_session_describe(&m.desc, &m.check, &text, &error), INVALID_ARGUMENT,
                "tensor `norm`, row 24: the forward wrote behind its 24 rows");
    CHECK(!text.data);
}
