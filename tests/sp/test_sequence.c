/* test_sequence.c - attention of all layers in one object: any number of batches in flight, made
 * beside passes, against the fp64 reference of sp_attention_cases.h. */
#include "scarce.h"

static void* counted_malloc(size_t n_bytes); /* memo's own bookkeeping */
#undef MEMO_MALLOC
#define MEMO_MALLOC(n_bytes) counted_malloc(n_bytes)
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include "extras/memo_look.h"
#include "memo_test.h"
#include "thread_ranks.h"
#pragma GCC diagnostic ignored "-Wunused-function"
#include "sp_attention_cases.h"
#include "owned.h"
#include <pthread.h>

static __thread long long n_mallocs, failing_malloc; /* of this thread; 0: none fails */
static void* counted_malloc(size_t n_bytes) {
    return ++n_mallocs == failing_malloc ? NULL : scarce_malloc(n_bytes);
}

#if defined(MEMO_TEST_VALGRIND) || defined(MEMO_TEST_TSAN)
#define N_CASES 8
#else
#define N_CASES (memo_test_all() ? 60 : 20)
#endif

/* ---- batches in an order ---- */

enum { MAX_BATCHES = 10, MAX_LAYERS = 3, MAX_TURNS = 200 };

/* A pass of a layer of a batch.  The batch's first one creates it, its last one destroys it. */
typedef struct turn {
    int32_t batch, layer, is_backward;
} turn;

typedef struct sequence_run {
    const attention_case* c; /* of each batch, all of the same shape but n_tokens and documents */
    whole* w;
    int64_t capacity;
    int32_t n_batches, n_layers, n_in_flight, n_turns;
    turn turns[MAX_TURNS];
} sequence_run;

/* A batch of one rank: every layer has the same tensors, and its own results. */
typedef struct flying {
    memo_sequence_batch* batch;
    memo_sharding sharding; /* a copy, for results of a batch that was destroyed */
    char* share[MAX_LAYERS][N_TENSORS];
    memo_sp_attention_tensors tensors[MAX_LAYERS];
    void *lse[MAX_LAYERS], *saved[MAX_LAYERS];
} flying;

static memo_sequence_desc desc_of_run(const sequence_run* run, thread_rank* r,
                                      host_attention* state) {
    const attention_case* c = run->c;
    memo_sequence_desc desc = {.device = r->device, .stream = r->stream, .comm = r->comm};
    desc.ulysses = c->ulysses;
    desc.nodes = c->nodes;
    desc.n_tokens = run->capacity;
    desc.n_batch = c->n_batch;
    desc.n_layers = run->n_layers;
    desc.n_q_heads = c->n_q_heads;
    desc.n_kv_heads = c->n_kv_heads;
    desc.head_size = c->head_size;
    desc.v_head_size = c->v_head_size;
    desc.window = c->window;
    desc.sends_again = c->sends_again;
    desc.ulysses_groups = c->ulysses_groups;
    desc.n_in_flight = run->n_in_flight;
    for (int32_t k = 0; k < run->n_batches; k++) desc.has_trees |= run->c[k].has_tree;
    desc.attention = host_attention_functions(state);
    if (c->launches) {
        desc.attention.forward = launched_forward;
        desc.attention.backward = launched_backward;
        desc.attention.launches = c->launches;
    }
    return desc;
}

static memo_sequence_batch_desc desc_of_batch(const attention_case* c) {
    const memo_sequence_batch_desc desc = {c->n_tokens, c->n_documents ? c->document_begins : NULL,
                                           c->n_documents, c->has_tree ? c->parents : NULL};
    return desc;
}

/* Positions count from the begin of each document, behind its ancestors. */
static memo_status check_positions(const flying* f, const attention_case* c, int32_t rank,
                                   memo_error* e) {
    const memo_sharding* sharding = memo_sequence_batch_get_sharding(f->batch);
    int64_t* positions = (int64_t*)calloc((size_t)sharding->local_tokens, sizeof *positions);
    memo_status status = MEMO_STATUS_OK;
    memo_sequence_batch_get_positions(f->batch, positions);
    for (int64_t row = 0; row < sharding->local_tokens && !status; row++) {
        const int64_t at = memo_sharding_position(sharding, rank, row);
        int64_t begin = 0, own = 0;
        for (int64_t i = 0; i < c->n_documents && at < c->n_tokens; i++)
            if (c->document_begins[i] <= at) begin = c->document_begins[own = i];
        while (c->has_tree && at < c->n_tokens && (own = c->parents[own]) >= 0)
            begin -= c->document_begins[own + 1] - c->document_begins[own];
        if (positions[row] != at - begin)
            status = memo_error_set(e, MEMO_STATUS_DEVICE, "row %d has another position", (int)row);
    }
    free(positions);
    return status;
}

static memo_status fly(flying* f, const sequence_run* run, int32_t k, memo_sequence* sequence,
                       int32_t rank, memo_error* e) {
    const attention_case* c = &run->c[k];
    const memo_sequence_batch_desc desc = desc_of_batch(c);
    const whole* w = &run->w[k];
    memo_item items[2];
    memo_sequence_get_items(sequence, items);
    if (memo_sequence_batch_create(sequence, &desc, &f->batch, e)) return e->status;
    memo_sharding* sharding = &f->sharding;
    *sharding = *memo_sequence_batch_get_sharding(f->batch);
    const size_t n_bytes = (size_t)(sharding->n_pieces + 1) * sizeof *sharding->pieces;
    sharding->pieces = (memo_sharding_piece*)memcpy(malloc(n_bytes), sharding->pieces, n_bytes);
    for (int32_t layer = 0; layer < run->n_layers; layer++) {
        for (int t = 0; t < N_TENSORS; t++) {
            const int64_t row_bytes = w->n_heads[t] * w->head_size[t] * (int64_t)sizeof(float);
            const size_t n = (size_t)(c->n_batch * sharding->local_tokens);
            f->share[layer][t] = (char*)malloc(n * (size_t)row_bytes);
            memset(f->share[layer][t], 0xff, n * (size_t)row_bytes); /* NaN, in padding too */
            if (!is_result(t))
                scatter_rows(sharding, rank, c->n_batch, row_bytes, w->typed[t],
                             f->share[layer][t]);
        }
        if (run->n_in_flight < 0) { /* as a session has them */
            const int64_t n_rows = c->n_batch * sharding->local_tokens;
            f->lse[layer] = malloc((size_t)(n_rows * items[0].row_bytes));
            f->saved[layer] = malloc((size_t)(n_rows * items[1].row_bytes) + 1);
        }
        f->tensors[layer] = tensors_of(f->share[layer], f->lse[layer], f->saved[layer]);
    }
    return check_positions(f, c, rank, e);
}

/* The results of a layer go to the whole tensors; those of the others have the same bits. */
static memo_status land(flying* f, const sequence_run* run, int32_t k, int32_t rank,
                        memo_error* e) {
    const attention_case* c = &run->c[k];
    memo_status status = MEMO_STATUS_OK;
    for (int t = 0; t < N_TENSORS; t++) {
        const whole* w = &run->w[k];
        const int64_t row_bytes = w->n_heads[t] * w->head_size[t] * (int64_t)sizeof(float);
        const size_t n = (size_t)(c->n_batch * f->sharding.local_tokens * row_bytes);
        for (int32_t layer = 1; layer < run->n_layers && is_result(t) && !status; layer++)
            if (memcmp(f->share[layer][t], f->share[0][t], n))
                status = memo_error_set(e, MEMO_STATUS_DEVICE, "layer %d has other bits", layer);
        if (is_result(t))
            gather_rows(&f->sharding, rank, c->n_batch, row_bytes, f->share[0][t], w->typed[t]);
    }
    return status;
}

/* Frees what a batch has, also after a run that ended early. */
static void drop(flying* f, const sequence_run* run) {
    memo_sequence_batch_destroy(f->batch);
    for (int32_t layer = 0; layer < run->n_layers; layer++) {
        for (int t = 0; t < N_TENSORS; t++) free(f->share[layer][t]);
        free(f->lse[layer]);
        free(f->saved[layer]);
    }
    memo_sharding_free(&f->sharding);
}

static int32_t turns_of(const sequence_run* run, int32_t begin, int32_t end, int32_t batch) {
    int32_t n = 0;
    for (int32_t i = begin; i < end; i++) n += run->turns[i].batch == batch;
    return n;
}

/* A batch ends while the stream still runs. */
static memo_status run_rank(thread_rank* r, memo_error* e) {
    const sequence_run* run = (const sequence_run*)r->user;
    host_attention state = {r->device, 0};
    const memo_sequence_desc desc = desc_of_run(run, r, &state);
    flying all[MAX_BATCHES];
    memo_sequence* sequence = NULL;
    memo_status status = memo_sequence_create(&desc, &sequence, e), ended;
    memset(all, 0, sizeof all);
    for (int32_t i = 0; i < run->n_turns && !status; i++) {
        const turn* now = &run->turns[i];
        flying* f = &all[now->batch];
        if (!turns_of(run, 0, i, now->batch))
            status = fly(f, run, now->batch, sequence, r->comm->rank, e);
        if (!status)
            status = (now->is_backward ? memo_sequence_batch_attend_backward
                                       : memo_sequence_batch_attend)(f->batch, now->layer,
                                                                     &f->tensors[now->layer], e);
        if (!status && !turns_of(run, i + 1, run->n_turns, now->batch)) {
            memo_sequence_batch_destroy(f->batch);
            f->batch = NULL;
        }
    }
    ended = memo_stream_synchronize(r->device, r->stream, status ? NULL : e);
    if (!status) status = ended;
    for (int32_t k = 0; k < run->n_batches && !status; k++)
        status = land(&all[k], run, k, r->comm->rank, e);
    for (int32_t k = 0; k < run->n_batches; k++) drop(&all[k], run);
    memo_sequence_destroy(sequence);
    return status;
}

/* All results against the reference. */
static void expect_run(sequence_run* run) {
    const attention_case* c = run->c;
    const memo_status status = thread_ranks_run(c->ring * c->ulysses, run_rank, run, &error);
    CHECK_CASE(!status, "%s", status ? error.message : "");
    for (int32_t k = 0; k < run->n_batches && !status; k++)
        for (int t = OUT; t < N_TENSORS; t++)
            if (t != D_OUT)
                CHECK_IS(error_of(&run->c[k], &run->w[k], t), <=, (t == OUT ? 2e-6 : 5e-6));
}

/* Batches of `least` to `most` tokens. */
static void make_batches(attention_case* c, whole* w, int32_t n, int64_t least, int64_t most,
                         int has_trees) {
    for (int32_t k = 0; k < n; k++) {
        if (k) c[k] = c[0];
        c[k].has_tree = 0;
        c[k].n_tokens = memo_test_int(0, 1) ? most : memo_test_int(least, most);
        c[k].n_documents = 0;
        if (memo_test_int(0, 3)) random_documents(&c[k], 6);
        if (c[k].n_documents && has_trees) random_tree(&c[k]);
        whole_create(&w[k], &c[k]);
        reference_run(&c[k], &w[k]);
    }
}

static void add_turn(sequence_run* run, int32_t batch, int32_t layer, int32_t is_backward) {
    const turn next = {batch, layer, is_backward};
    run->turns[run->n_turns++] = next;
}

/* Any batch's next pass; now and then a forward again. */
static void random_turns(sequence_run* run) {
    int32_t done[MAX_BATCHES] = {0}, n = 2 * run->n_layers, left = run->n_batches * n;
    run->n_turns = 0;
    while (left) {
        const int32_t k = (int32_t)memo_test_int(0, run->n_batches - 1), at = done[k];
        if (at && at <= run->n_layers && memo_test_int(0, 5) == 0 && run->n_turns < MAX_TURNS / 2)
            add_turn(run, k, (int32_t)memo_test_int(0, at - 1), 0);
        if (at == n) continue;
        add_turn(run, k, at < run->n_layers ? at : n - 1 - at, at >= run->n_layers);
        done[k]++;
        left--;
    }
}

/* Any degrees, documents and numbers of tokens, all batches in flight, and the memory the
 * sequence's or the caller's. */
TEST(batches_in_flight_are_right_in_any_order) {
    for (int i = 0; i < N_CASES; i++) {
        attention_case c[3];
        whole w[3];
        sequence_run run = {
            c, w,    memo_test_int(6, 90), 3, (int32_t)memo_test_int(1, MAX_LAYERS), i % 2 ? -1 : 3,
            0, {{0}}};
        const int has_trees = i % 3 == 1;
        c[0] = case_of((int32_t)memo_test_int(1, 4), (int32_t)memo_test_int(1, 2), 1, 4,
                       (int32_t)(1 << memo_test_int(0, 2)), (int32_t)memo_test_int(2, 16));
        c->n_batch = (int32_t)memo_test_int(1, 2);
        if (c->ring == 4) c->nodes = 2;
        c->window = memo_test_int(0, 2) || has_trees ? 0 : memo_test_int(1, 20);
        c->window_after = has_trees ? 0 : -1;
        c->v_head_size = memo_test_int(0, 1) ? 0 : (int32_t)memo_test_int(1, 16);
        c->sends_again = (int32_t)memo_test_int(0, 1);
        c->ulysses_groups = (int32_t)memo_test_int(0, 2);
        c->launches = (memo_launch_kind)(i % MEMO_N_LAUNCH_KINDS);
        IN_CASE("%s", case_text(c));
        make_batches(c, w, 3, 1, run.capacity, has_trees);
        random_turns(&run);
        expect_run(&run);
        for (int k = 0; k < 3; k++) whole_destroy(&w[k]);
    }
}

/* Two batches of two layers: all 70 orders of their passes, which include those of every stage of
 * every pipeline. */
TEST(two_batches_are_right_in_every_order) {
    static const int32_t degrees[][2] = {{1, 1}, {2, 1}, {1, 2}};
    for (int i = 0; i < 3; i++) {
        attention_case c[2];
        whole w[2];
        sequence_run run = {c, w, 24, 2, 2, 2, 0, {{0}}};
        int n_orders = 0;
        c[0] = case_of(degrees[i][0], degrees[i][1], 24, 2, 1, 4);
        c->window_after = -1;
        make_batches(c, w, 2, 1, 24, 0);
        for (int order = 0; order < 256; order++) {
            int32_t done[2] = {0, 0};
            run.n_turns = 0;
            for (int bit = 0; bit < 8; bit++) {
                const int32_t k = order >> bit & 1, at = done[k]++;
                add_turn(&run, k, at < 2 ? at : 3 - at, at >= 2);
            }
            if (done[0] != 4) continue;
            IN_CASE("ring %d, ulysses %d, order %d", c->ring, c->ulysses, order);
            expect_run(&run);
            n_orders++;
        }
        CHECK_IS(n_orders, ==, 70);
        for (int k = 0; k < 2; k++) whole_destroy(&w[k]);
    }
}

/* The stages of a pipeline of 4, one forward and one backward by turns, have 4 to 1 batches in
 * flight, and memory for no more. */
TEST(a_stage_of_a_pipeline_has_its_batches_in_flight) {
    for (int32_t in_flight = 4; in_flight >= 1; in_flight--) {
        attention_case c[8];
        whole w[8];
        sequence_run run = {c, w, 40, 8, 2, in_flight, 0, {{0}}};
        c[0] = case_of(2, in_flight % 2 + 1, 40, 2, 2, 8);
        c->window_after = -1;
        c->launches = MEMO_LAUNCHES_VARLEN;
        IN_CASE("%d in flight", in_flight);
        make_batches(c, w, 8, 1, 40, 0);
        for (int32_t k = 0; k < 8 + in_flight - 1; k++) {
            for (int32_t layer = 0; layer < 2 && k < 8; layer++) add_turn(&run, k, layer, 0);
            for (int32_t layer = 1; layer >= 0 && k >= in_flight - 1; layer--)
                add_turn(&run, k - in_flight + 1, layer, 1);
        }
        expect_run(&run);
        for (int k = 0; k < 8; k++) whole_destroy(&w[k]);
    }
}

/* ---- one rank ---- */

enum { TOKENS = 40, ROW = 8 };

typedef struct one_rank {
    memo_device* device;
    memo_sequence_desc desc;
    host_attention state;
    memo_sp_attention_tensors tensors;
    float rows[8][TOKENS * ROW], lse[2][TOKENS * 2];
} one_rank;

static void open_rank(one_rank* r) {
    memset(r, 0, sizeof *r);
    r->device = new_device(MEMO_ZERO(memo_host_device_desc));
    r->state.device = r->device;
    r->desc.device = r->device;
    CHECK_OK(memo_stream_create(r->device, "compute", 0, &r->desc.stream, &error));
    r->desc.n_tokens = TOKENS;
    r->desc.n_q_heads = r->desc.n_kv_heads = 2;
    r->desc.head_size = 4;
    r->desc.n_layers = 2;
    r->desc.attention = host_attention_functions(&r->state);
    const memo_sp_attention_tensors tensors = {r->rows[0], r->rows[1], r->rows[2], r->rows[3],
                                               NULL,       NULL,       NULL,       NULL,
                                               r->rows[4], r->rows[5], r->rows[6], r->rows[7]};
    r->tensors = tensors;
}

static memo_sequence_batch* new_batch(memo_sequence* sequence, const attention_case* c) {
    const memo_sequence_batch_desc desc =
        c ? desc_of_batch(c) : MEMO_ZERO(memo_sequence_batch_desc);
    memo_sequence_batch* batch = NULL;
    CHECK_OK(memo_sequence_batch_create(sequence, &desc, &batch, &error));
    return batch;
}

#define ATTEND(batch, layer, t) memo_sequence_batch_attend(batch, layer, t, &error)
#define BACK(batch, layer, t)   memo_sequence_batch_attend_backward(batch, layer, t, &error)

TEST(misuse_of_a_batch_is_an_error) {
    one_rank r;
    memo_sequence* sequence = NULL;
    open_rank(&r);
    CHECK_OK(memo_sequence_create(&r.desc, &sequence, &error));
    memo_sequence_batch *a = new_batch(sequence, NULL), *b = new_batch(sequence, NULL);
    const memo_sp_attention_tensors* t = &r.tensors;
    memo_sp_attention_tensors own[2] = {*t, *t};
    own[0].lse = r.lse[0], own[1].lse = r.lse[1];
    CHECK_ERROR(BACK(a, 0, t), INVALID_STATE, "layer 0 of this batch has had no forward");
    CHECK_OK(ATTEND(a, 0, t));
    CHECK_ERROR(BACK(a, 1, t), INVALID_STATE, "layer 1 of this batch has had no forward");
    CHECK_ERROR(BACK(b, 0, t), INVALID_STATE, "layer 0 of this batch has had no forward");
    CHECK_ERROR(ATTEND(b, 0, t), INVALID_STATE, "1 batches are in flight");
    CHECK_OK(BACK(a, 0, t));
    CHECK_ERROR(BACK(a, 0, t), INVALID_STATE, "layer 0 of this batch has had its backward");
    CHECK_OK(ATTEND(a, 0, t)); /* begins again */
    CHECK_OK(ATTEND(a, 0, t)); /* recomputes */
    CHECK_OK(BACK(a, 0, t));
    CHECK_ERROR(ATTEND(a, 2, t), INVALID_ARGUMENT, "layer");
    CHECK_ERROR(ATTEND(a, -1, t), INVALID_ARGUMENT, "layer");
    CHECK_ERROR(ATTEND(a, 0, NULL), INVALID_ARGUMENT, "tensors");

    /* Rows of the caller, of two batches. */
    CHECK_OK(ATTEND(b, 0, &own[1]));
    CHECK_OK(ATTEND(a, 0, &own[0]));
    CHECK_ERROR(BACK(a, 0, &own[1]), INVALID_STATE, "tensors.lse");
    CHECK_ERROR(BACK(a, 0, t), INVALID_STATE, "tensors.lse");
    CHECK_OK(BACK(a, 0, &own[0]));
    CHECK_OK(BACK(b, 0, &own[1]));
    WITH(own[0].q, NULL, CHECK_ERROR(ATTEND(a, 0, &own[0]), INVALID_ARGUMENT, "q"));
    CHECK_ERROR(BACK(a, 0, &own[0]), INVALID_STATE, "no forward"); /* which was refused */

    memo_sequence_batch_destroy(a);
    CHECK_ERROR(ATTEND(a, 0, t), INVALID_STATE, "destroyed");
    CHECK_ERROR(BACK(a, 0, t), INVALID_STATE, "destroyed");
    memo_sequence_batch_destroy(a);
    memo_sequence_batch_destroy(NULL);
    CHECK_OK(ATTEND(b, 1, t)); /* takes the place */
    CHECK_OK(BACK(b, 1, t));
    memo_sequence_batch_destroy(b);
    memo_sequence_destroy(sequence);

    r.desc.n_in_flight = -1;
    CHECK_OK(memo_sequence_create(&r.desc, &sequence, &error));
    a = new_batch(sequence, NULL);
    CHECK_ERROR(ATTEND(a, 0, t), INVALID_ARGUMENT, "memo_sp_attention_tensors.lse: NULL");
    CHECK_OK(ATTEND(a, 0, &own[0]));
    memo_sequence_batch_destroy(a);
    memo_sequence_destroy(sequence);
    CHECK_IS(memo_host_device_get_stats(r.device).device_bytes, ==, 0);
    memo_host_device_destroy(r.device);
}

static memo_status refused_batch(memo_sequence* sequence, int64_t n_tokens, const int64_t* begins,
                                 int64_t n, const int64_t* parents) {
    const memo_sequence_batch_desc desc = {n_tokens, begins, n, parents};
    memo_sequence_batch* batch = (memo_sequence_batch*)sequence;
    const memo_status status = memo_sequence_batch_create(sequence, &desc, &batch, &error);
    CHECK(!batch);
    return status;
}

/* A device without memory, whose message looks like one of memo's own. */
static memo_status no_alloc(MEMO_UNUSED void* context, MEMO_UNUSED int64_t n_bytes, void** address,
                            memo_error* e) {
    *address = NULL;
    return memo_error_set(e, MEMO_STATUS_INVALID_ARGUMENT, "memo_mask of a device");
}

TEST(a_sequence_refuses_by_its_own_names) {
    static const int64_t wrong[] = {0, 30, 20, 40}, two[] = {0, 30, 40}, no_tree[] = {-1, 1};
    static const int64_t tree[] = {-1, 0};
    one_rank r;
    memo_sequence* sequence = NULL;
    open_rank(&r);
    memo_sequence_desc* desc = &r.desc;
    memo_device poor = *r.device;
#define REFUSED(field, value, text)                                                                \
    WITH(desc->field, value,                                                                       \
         CHECK_ERROR(memo_sequence_create(desc, &sequence, &error), INVALID_ARGUMENT,              \
                     "memo_sequence_desc" text))
    REFUSED(device, NULL, ".device");
    REFUSED(n_q_heads, 3, ".n_q_heads");
    REFUSED(ulysses, 2, ".ulysses");
    REFUSED(nodes, 2, ".nodes");
    REFUSED(type, MEMO_TYPE_I64, ".type");
    REFUSED(n_tokens, (int64_t)1 << 55, ": too large");
    REFUSED(attention.forward, NULL, ".attention.forward");
    REFUSED(n_in_flight, -2, ".n_in_flight");
#undef REFUSED
    poor.device_alloc = no_alloc;
    WITH(desc->device, &poor, /* errors of others stay as they are */
         CHECK_ERROR(memo_sequence_create(desc, &sequence, &error), INVALID_ARGUMENT,
                     "memo_mask of a device"));
    CHECK(!sequence);
    for (int k = 0; k < 3; k++) { /* plain; with trees; these and a window */
        desc->has_trees = k > 0;
        desc->window = k > 1 ? 9 : 0;
        CHECK_OK(memo_sequence_create(desc, &sequence, &error));
        CHECK_ERROR(refused_batch(sequence, 0, wrong, 3, NULL), INVALID_ARGUMENT,
                    "memo_sequence_batch_desc.document_begins");
        CHECK_ERROR(refused_batch(sequence, 39, two, 2, NULL), INVALID_ARGUMENT,
                    "memo_sequence_batch_desc.document_begins");
        CHECK_ERROR(refused_batch(sequence, 41, NULL, 0, NULL), INVALID_ARGUMENT,
                    "memo_sequence_batch_desc.n_tokens");
        CHECK_ERROR(refused_batch(sequence, 0, two, 2, no_tree), INVALID_ARGUMENT,
                    "memo_sequence_batch_desc.document_parents[1]");
        CHECK_ERROR(refused_batch(sequence, 0, NULL, 0, tree), INVALID_ARGUMENT,
                    "document_parents: not NULL without document_begins");
        if (k != 1)
            CHECK_ERROR(refused_batch(sequence, 0, two, 2, tree), INVALID_ARGUMENT,
                        k ? "beside memo_sequence_desc.window" : "has_trees is 0");
        memo_sequence_destroy(sequence);
    }
    memo_host_device_destroy(r.device);
}

/* Each request of host memory of a batch fails once. */
TEST(memory_that_ends_is_reported) {
    static const int64_t begins[] = {0, 20, 30, 40}, parents[] = {-1, 0, 0};
    const memo_sequence_batch_desc desc = {TOKENS, begins, 3, parents};
    memo_sequence_batch* batch = NULL;
    memo_sequence* sequence = NULL;
    memo_status status;
    one_rank r;
    int k = 0;
    open_rank(&r);
    r.desc.has_trees = 1;
    CHECK_OK(memo_sequence_create(&r.desc, &sequence, &error));
    do {
        failing_malloc = n_mallocs + ++k;
        status = memo_sequence_batch_create(sequence, &desc, &batch, &error);
        CHECK(status ? status == MEMO_STATUS_OUT_OF_HOST_MEMORY && !batch : batch != NULL);
    } while (status && k < 200);
    failing_malloc = 0;
    CHECK_CASE(k > 5 && k < 200, "%d requests", k);
    memo_sequence_batch_destroy(batch);
    memo_sequence_destroy(sequence);
    memo_host_device_destroy(r.device);
}

/* ---- a loader's thread, and what passes call ---- */

/* Calls of the device by the trainer's thread: of each function. */
#define CALLS(K)                                                                                   \
    K(stream_synchronize)                                                                          \
    K(event_synchronize)                                                                           \
    K(device_alloc)                                                                                \
    K(device_free)                                                                                 \
    K(host_alloc) K(host_free) K(event_create_untimed) K(copy) K(event_record) K(event_query)
#define CALL_ENUM(name) CALL_##name,
#define CALL_NAME(name) #name,
enum { CALLS(CALL_ENUM) N_CALLS };
static const char* const call_names[] = {CALLS(CALL_NAME)};
static int64_t calls[N_CALLS], n_loader_calls;
static __thread int is_loader;
static const memo_device* watched_device;

static void count_call(int call) {
    if (is_loader)
        n_loader_calls++;
    else
        calls[call]++;
}
#define WATCH(name, parameters, arguments)                                                         \
    static memo_status watch_##name parameters {                                                   \
        count_call(CALL_##name);                                                                   \
        return watched_device->name arguments;                                                     \
    }
WATCH(stream_synchronize, (void* x, memo_stream s, memo_error* e), (x, s, e))
WATCH(event_synchronize, (void* x, memo_event s, memo_error* e), (x, s, e))
WATCH(device_alloc, (void* x, int64_t n, void** a, memo_error* e), (x, n, a, e))
WATCH(device_free, (void* x, void* a, memo_error* e), (x, a, e))
WATCH(host_alloc, (void* x, int64_t n, void** a, memo_error* e), (x, n, a, e))
WATCH(host_free, (void* x, void* a, memo_error* e), (x, a, e))
WATCH(event_record, (void* x, memo_event v, memo_stream s, memo_error* e), (x, v, s, e))
WATCH(event_query, (void* x, memo_event v, int32_t* is_done, memo_error* e), (x, v, is_done, e))
static memo_status watch_event_create_untimed(void* x, memo_event* event, memo_error* e) {
    count_call(CALL_event_create_untimed);
    return watched_device->event_create(x, event, e);
}
static memo_status watch_copy(void* x, memo_stream s, memo_copy_kind kind, void* to,
                              const void* from, int64_t n, memo_error* e) {
    count_call(CALL_copy);
    return watched_device->copy(x, s, kind, to, from, n, e);
}

static memo_device watched_table(const memo_device* device) {
    memo_device table = *device;
#define WATCHED(name) table.name = watch_##name;
    CALLS(WATCHED)
    watched_device = device;
    return table;
}

/* Batches that a loader makes while those before run. */
typedef struct loader {
    memo_sequence* sequence;
    const attention_case* c;
    memo_sequence_batch* batches[MAX_BATCHES];
    int32_t n, n_made; /* n_made: atomic */
    int32_t has_failed;
} loader;

static void* load(void* argument) {
    loader* l = (loader*)argument;
    memo_error e;
    is_loader = 1;
    for (int32_t k = 0; k < l->n; k++) {
        const memo_sequence_batch_desc desc = desc_of_batch(&l->c[k]);
        if (memo_sequence_batch_create(l->sequence, &desc, &l->batches[k], &e)) l->has_failed = 1;
        __atomic_store_n(&l->n_made, k + 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* Two batches in flight at a time, all before the stream begins: nothing waits, and nothing takes what
 * the stream has not passed. */
TEST(nothing_waits_on_the_training_path) {
    enum { N = 9 };
    one_rank r;
    attention_case c[N];
    whole w[N];
    memo_sequence* sequence = NULL;
    long long before;
    pthread_t thread;
    held_stream held = {0, 0}, *args = &held;
    open_rank(&r);
    memo_device table = watched_table(r.device);
    r.desc.device = &table;
    r.desc.n_in_flight = 2;
    r.desc.attention.forward = launched_forward;
    r.desc.attention.backward = launched_backward;
    r.desc.attention.launches = MEMO_LAUNCHES_VARLEN;
    c[0] = case_of(1, 1, TOKENS, 2, 2, 4);
    c->window_after = -1;
    make_batches(c, w, N, TOKENS, TOKENS, 0);
    for (int64_t k = 0; k < 8; k++) c->document_begins[k] = 5 * k; /* the most segments */
    c->document_begins[c->n_documents = 8] = TOKENS;
    whole_destroy(&w[0]);
    whole_create(&w[0], &c[0]);
    reference_run(&c[0], &w[0]);
    memset(calls, 0, sizeof calls);
    CHECK_OK(memo_sequence_create(&r.desc, &sequence, &error));
    CHECK_IS(calls[CALL_event_create_untimed], >, 2);
    loader l = {sequence, c, {NULL}, N, 0, 0};
    CHECK(!pthread_create(&thread, NULL, load, &l));
    CHECK_OK(
        memo_host_device_launch(r.device, r.desc.stream, hold_stream, &args, sizeof args, &error));
    for (int32_t k = 0; k <= N; k++) {
        const struct timespec ms = {0, 1000000};
        memset(calls, 0, sizeof calls);
        before = n_mallocs;
        while (k < N && __atomic_load_n(&l.n_made, __ATOMIC_ACQUIRE) <= k) nanosleep(&ms, NULL);
        for (int32_t layer = 0; layer < 2 && k < N; layer++) {
            memo_sp_attention_tensors t = tensors_of(w[k].typed, NULL, NULL);
            CHECK_OK(ATTEND(l.batches[k], layer, &t));
        }
        for (int32_t layer = 1; layer >= 0 && k; layer--) {
            memo_sp_attention_tensors t = tensors_of(w[k - 1].typed, NULL, NULL);
            CHECK_OK(BACK(l.batches[k - 1], layer, &t));
        }
        if (k) memo_sequence_batch_destroy(l.batches[k - 1]);
        if (k < 3 || k == N) {
            printf("# batch %d:", (int)k);
            for (int i = 0; i < N_CALLS; i++)
                if (calls[i]) printf(" %d %s", (int)calls[i], call_names[i]);
            printf(", %d mallocs\n", (int)(n_mallocs - before));
        }
        CHECK_IS(calls[CALL_stream_synchronize] + calls[CALL_event_synchronize], ==, 0);
        CHECK_IS(calls[CALL_device_free] + calls[CALL_host_free], ==, 0);
        CHECK_IS(calls[CALL_event_create_untimed], ==, 0);
    }
    pthread_join(thread, NULL);
    CHECK_IS(n_loader_calls, ==, 0);
    CHECK(!l.has_failed);
    __atomic_store_n(&held.is_released, 1, __ATOMIC_RELEASE);
    CHECK_OK(memo_stream_synchronize(r.device, r.desc.stream, &error));
    for (int k = 0; k < N; k++) {
        for (int t = OUT; t < N_TENSORS; t++)
            if (t != D_OUT) CHECK_IS(error_of(&c[k], &w[k], t), <=, 5e-6);
        whole_destroy(&w[k]);
    }

    CHECK(!held.is_late);

    /* The stream has passed all: what they had serves the next ones, with as many segments. */
    for (int32_t k = 0; k < 4; k++) {
        memo_sequence_batch* batch = new_batch(sequence, &c[0]);
        memset(calls, 0, sizeof calls);
        before = n_mallocs;
        CHECK_OK(ATTEND(batch, 0, &r.tensors));
        CHECK_OK(BACK(batch, 0, &r.tensors));
        memo_sequence_batch_destroy(batch);
        CHECK_IS(calls[CALL_device_alloc] + calls[CALL_host_alloc], ==, 0);
        CHECK_IS(n_mallocs, ==, before);
        CHECK_OK(memo_stream_synchronize(r.device, r.desc.stream, &error));
    }
    memo_sequence_destroy(sequence);
    CHECK_IS(memo_host_device_get_stats(r.device).device_bytes, ==, 0);
    memo_host_device_destroy(r.device);
}

/* ---- fewer tokens than the sequence's ---- */

typedef struct pairs_run {
    const int64_t* begins;
    int64_t n_documents, n_tokens, capacity;
    int64_t n_pairs[8]; /* of each rank */
} pairs_run;

static memo_status count_pairs(void* user, MEMO_UNUSED memo_stream stream,
                               const memo_attention_block* block, MEMO_UNUSED memo_error* e) {
    for (int32_t i = 0; i < block->segments.n; i++) {
        const memo_segment* s = &block->segments.host[i];
        for (int64_t q = s->q_begin; q < s->q_end; q++) {
            int64_t begin, end;
            memo_segment_keys(s, q, &begin, &end);
            *(int64_t*)user += end - begin;
        }
    }
    return MEMO_STATUS_OK;
}

static memo_status pairs_rank(thread_rank* r, memo_error* e) {
    pairs_run* run = (pairs_run*)r->user;
    const memo_sequence_batch_desc documents = {run->n_tokens, run->begins, run->n_documents, NULL};
    const memo_attention attention = {count_pairs, count_pairs, &run->n_pairs[r->comm->rank],
                                      MEMO_LAUNCHES_NONE};
    memo_sequence_desc desc = {.device = r->device, .stream = r->stream, .comm = r->comm};
    memo_sequence* sequence = NULL;
    memo_sequence_batch* batch = NULL;
    memo_sp_attention_tensors t = {0};
    desc.n_tokens = run->capacity;
    desc.n_q_heads = desc.n_kv_heads = desc.head_size = 1;
    desc.attention = attention;
    float* rows = (float*)calloc((size_t)run->capacity, sizeof *rows);
    float* out = (float*)calloc((size_t)run->capacity, sizeof *rows);
    t.q = t.k = t.v = rows;
    t.out = out;
    memo_status status = memo_sequence_create(&desc, &sequence, e);
    if (!status) status = memo_sequence_batch_create(sequence, &documents, &batch, e);
    if (!status) status = memo_sequence_batch_attend(batch, 0, &t, e);
    if (!status) status = memo_stream_synchronize(r->device, r->stream, e);
    memo_sequence_batch_destroy(batch);
    memo_sequence_destroy(sequence);
    free(rows);
    free(out);
    return status;
}

/* 20 documents in half of the rows: the pairs are theirs alone, and all ranks have as many. */
TEST(fewer_tokens_cost_their_pairs_alone) {
    enum { N = 20, RANKS = 8 };
    int64_t begins[N + 2] = {0}, theirs = 0;
    for (int k = 0; k < N; k++) {
        const int64_t n = memo_test_int(50, 150);
        begins[k + 1] = begins[k] + n;
        theirs += n * (n + 1) / 2;
    }
    pairs_run run = {begins, N, begins[N], 2 * begins[N], {0}};
    for (int is_filled = 0; is_filled < 2; is_filled++) { /* then the filler is a document */
        int64_t all = 0, most = 0;
        if (is_filled) begins[N + 1] = run.n_tokens = run.capacity, run.n_documents = N + 1;
        memset(run.n_pairs, 0, sizeof run.n_pairs);
        CHECK_OK(thread_ranks_run(RANKS, pairs_rank, &run, &error));
        for (int r = 0; r < RANKS; r++) {
            all += run.n_pairs[r];
            if (run.n_pairs[r] > most) most = run.n_pairs[r];
        }
        printf("# %s: %.2f times the pairs of documents, the busiest rank %.2f\n",
               is_filled ? "a filler document" : "fewer tokens", (double)all / (double)theirs,
               (double)most * RANKS / (double)theirs);
        if (is_filled) continue;
        CHECK_IS(all, ==, theirs);
        CHECK_IS((double)most * RANKS, <=, 1.2 * (double)theirs);
    }
}

/* Are both cut into the same pieces? */
static int has_same_pieces(const memo_sharding* a, const memo_sharding* b) {
    return a->n_pieces == b->n_pieces &&
           !memcmp(a->pieces, b->pieces, (size_t)a->n_pieces * sizeof *a->pieces);
}

static memo_status window_rank(thread_rank* r, memo_error* e) {
    static const int64_t begins[] = {0, 500, 800, 830, 860, 880, 900, 1000};
    static memo_segment segments[2][100]; /* of each rank */
    const memo_sequence_batch_desc documents = {1000, begins, 7, NULL};
    const memo_mask_desc mask = {
        .n_tokens = 1000, .document_begins = begins, .n_documents = 7, .window_before = 20};
    memo_sharding_desc made = {.kind = MEMO_SHARDING_DOCUMENTS, .ring = 2, .n_tokens = 1000};
    int64_t n_pairs = 0;
    const memo_attention attention = {count_pairs, count_pairs, &n_pairs, MEMO_LAUNCHES_NONE};
    memo_sequence_desc desc = {.device = r->device, .stream = r->stream, .comm = r->comm};
    memo_sequence* sequence = NULL;
    memo_sequence_batch* batch = NULL;
    memo_sharding by_window, causal;
    desc.n_tokens = 1000;
    desc.n_q_heads = desc.n_kv_heads = desc.head_size = 1;
    desc.window = 20;
    desc.attention = attention;
    made.document_begins = begins;
    made.n_documents = 7;
    CHECK_OK(memo_sharding_make(&made, &causal, e));
    made.segments = segments[r->comm->rank];
    CHECK_OK(memo_mask_documents(&mask, segments[r->comm->rank], &made.n_segments, e));
    CHECK_OK(memo_sharding_make(&made, &by_window, e));
    CHECK_OK(memo_sequence_create(&desc, &sequence, e));
    CHECK_OK(memo_sequence_batch_create(sequence, &documents, &batch, e));
    CHECK(has_same_pieces(memo_sequence_batch_get_sharding(batch), &by_window));
    CHECK(!has_same_pieces(&causal, &by_window));
    memo_sequence_batch_destroy(batch);
    memo_sequence_destroy(sequence);
    memo_sharding_free(&by_window);
    memo_sharding_free(&causal);
    return MEMO_STATUS_OK;
}

/* Ranks have as many of the pairs that a window leaves. */
TEST(a_window_is_shared_out) { CHECK_OK(thread_ranks_run(2, window_rank, NULL, &error)); }

/* ---- ranks in another order ---- */

typedef struct order_run {
    const char* text; /* of the error of all ranks */
    int32_t kind;     /* 0: another batch; 1: another layer; 2: other documents */
} order_run;

static memo_status order_rank(thread_rank* r, memo_error* e) {
    static const int64_t begins[2][3] = {{0, 16, 16}, {0, 6, 16}};
    const order_run* run = (const order_run*)r->user;
    const int is_odd = r->comm->rank == 1;
    host_attention state = {r->device, 0};
    memo_sequence_desc desc = {.device = r->device, .stream = r->stream, .comm = r->comm};
    memo_sequence* sequence = NULL;
    memo_sequence_batch* batches[2] = {NULL, NULL};
    float rows[5][16] = {{0}};
    memo_sp_attention_tensors t = {.q = rows[0], .k = rows[1], .v = rows[2], .out = rows[3]};
    t.lse = rows[4];
    desc.n_tokens = 16;
    desc.n_layers = 2;
    desc.n_q_heads = desc.n_kv_heads = desc.head_size = 1;
    desc.n_in_flight = -1;
    desc.attention = host_attention_functions(&state);
    memo_status status = memo_sequence_create(&desc, &sequence, e);
    for (int k = 0; k < 2 && !status; k++) {
        const memo_sequence_batch_desc documents = {16, begins[run->kind == 2 && is_odd], 2, NULL};
        status = memo_sequence_batch_create(sequence, &documents, &batches[k], e);
    }
    for (int k = 0; k < 2 && !status; k++)
        status = memo_sequence_batch_attend(batches[k], 0, &t, e);
    if (!status)
        status = memo_sequence_batch_attend(batches[run->kind == 0 && is_odd],
                                            run->kind == 1 && is_odd, &t, e);
    const memo_status ended = memo_stream_synchronize(r->device, r->stream, status ? NULL : e);
    if (!status) status = ended;
    CHECK_CASE(status == MEMO_STATUS_COMM && strstr(e->message, run->text), "%s: %s",
               memo_status_name(status), status ? e->message : "");
    for (int k = 0; k < 2; k++) memo_sequence_batch_destroy(batches[k]);
    memo_sequence_destroy(sequence);
    return MEMO_STATUS_OK;
}

TEST(ranks_in_another_order_are_refused) {
    static const order_run runs[] = {
        {"batches and layers", 0}, {"batches and layers", 1}, {"exchange_desc.sharding", 2}};
    for (int i = 0; i < 3; i++)
        CHECK_OK(thread_ranks_run(2, order_rank, (void*)(uintptr_t)&runs[i], &error));
}
