/* fuzz_descs.c - fills the public structs with extreme numbers: each is refused with a message, or
 * works.
 *
 * A byte of the input chooses the struct, and each further byte one of its words: 0, small numbers,
 * extremes of 32 and 64 bits, NaN, infinities, tiny and huge reals.  Pointers are valid, and counts
 * of what they point to are those of the arrays, or what no array can have.  Some targets begin with a
 * valid struct, of which up to three fields become others.  make -f .ci/checks.mk fuzz runs it with
 * clang's libFuzzer; tests/memo/test_corpus.c replays the inputs that were found. */
#include <stddef.h>
#ifndef FUZZ_REPLAY
#define FUZZ_BYTES
#endif
static void* fuzz_malloc(size_t n_bytes);
#define MEMO_MALLOC(n_bytes) fuzz_malloc(n_bytes)
#define MEMO_FREE(address)   free(address)
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_LAYOUT_IMPLEMENTATION
#include "memo.h"
#include "memo_plan.h"
#include "memo_sp.h"
#include "extras/memo_layout.h"
#include "extras/memo_look.h"
#include "fuzz.h"
#include "tools/degrees_model.h"

/* Large arrays are refused, as on a machine without memory for them. */
static void* fuzz_malloc(size_t n_bytes) { return n_bytes > (64 << 20) ? NULL : malloc(n_bytes); }

enum { FUZZ_N = 4 }; /* elements of every array */

typedef struct fuzz_bytes {
    const uint8_t* next;
    size_t left;
    int is_valid; /* structs are valid but for a few fields */
} fuzz_bytes;

static int fuzz_pick(fuzz_bytes* in, int n) {
    if (!in->left) return 0;
    in->left--;
    return *in->next++ % n;
}

static void fuzz_word(fuzz_bytes* in, void* word) {
    static const int64_t integers[] = {1,         2,           3,    4,         8,
                                       64,        512,         -1,   -2,        INT64_MIN,
                                       INT64_MAX, INT32_MAX,   -512, 1LL << 62, 1LL << 31,
                                       1LL << 32, 0x300000002, 1000, 4LL << 32};
    static const double reals[] = {1, 0.5, 2, -1, 1e-300, 1e300, 1e9, 100};
    const int k = fuzz_pick(in, 64);
    int64_t integer = 0;
    if (k < 19) integer = integers[k];
    if (k == 19) integer = INT64_MIN + INT32_MAX;
    memcpy(word, &integer, sizeof integer);
    if (k < 20 || k >= 31) return; /* half the words are 0, the default */
    double real = k < 28    ? reals[k - 20]
                  : k == 28 ? (double)INFINITY
                  : k == 29 ? -(double)INFINITY
                            : NAN;
    memcpy(word, &real, sizeof real);
}

/* All words of a struct. */
static void fuzz_fill(fuzz_bytes* in, void* desc, size_t n_bytes) {
    const int64_t last = 1; /* what fuzz_word writes behind the last byte */
    memset(desc, 0, n_bytes);
    for (size_t at = 0; at + 8 <= n_bytes; at += 8)
        if (in->left)
            fuzz_word(in, (char*)desc + at);
        else
            memcpy((char*)desc + at, &last, 8);
}

/* FUZZ_POINTERS(a struct, its size, addresses of all its pointers or NULL) sets the pointers to
 * NULL.  A struct of another size does not compile: a new pointer, which random words would turn
 * into a crash of the fuzzer, must be listed here first, and get values to point to. */
#define FUZZ_POINTERS(value, n_bytes, ...)                                                         \
    do {                                                                                           \
        typedef char list_the_pointers_and_the_new_size[sizeof(value) == (n_bytes) ? 1 : -1];      \
        void* const pointers[] = {__VA_ARGS__};                                                    \
        (void)sizeof(list_the_pointers_and_the_new_size);                                          \
        for (size_t pointer = 0; pointer < sizeof pointers / sizeof *pointers; pointer++)          \
            if (pointers[pointer]) memset(pointers[pointer], 0, sizeof(void*));                    \
    } while (0)
/* All words of a struct, then its pointers. */
#define FUZZ_FILL(in, value, n_bytes, ...)                                                         \
    do {                                                                                           \
        fuzz_fill(in, &(value), sizeof(value));                                                    \
        FUZZ_POINTERS(value, n_bytes, __VA_ARGS__);                                                \
    } while (0)

/* Up to three words of a valid struct, or of a table, become others. */
static void fuzz_change(fuzz_bytes* in, void* desc, size_t n_bytes) {
    for (int i = fuzz_pick(in, 4); i > 0; i--)
        fuzz_word(in, (char*)desc + 8 * fuzz_pick(in, (int)(n_bytes / 8)));
}

/* Up to three fields, of four bytes or of eight. */
static void fuzz_change_fields(fuzz_bytes* in, void* desc, size_t n_bytes) {
    static const int32_t halves[] = {0, 1, -1, 2, 3, 4, 5, 8, 64, 1000, INT32_MIN, INT32_MAX};
    for (int i = fuzz_pick(in, 4); i > 0; i--) {
        const int place = fuzz_pick(in, (int)(n_bytes / 4)), how = fuzz_pick(in, 24);
        if (how < 12)
            memcpy((char*)desc + 4 * place, &halves[how], 4);
        else if (n_bytes >= 8)
            fuzz_word(in, (char*)desc + 8 * (place / 2 % (int)(n_bytes / 8)));
    }
}
/* All words of a struct are any, or a few fields of a valid one. */
static void fuzz_fill_from(fuzz_bytes* in, void* desc, const void* valid, size_t n_bytes) {
    if (!in->is_valid) {
        fuzz_fill(in, desc, n_bytes);
        return;
    }
    memcpy(desc, valid, n_bytes);
    fuzz_change_fields(in, desc, n_bytes);
}

/* The same for one of a table, of which most are as they are. */
static void fuzz_fill_one(fuzz_bytes* in, void* desc, const void* valid, size_t n_bytes) {
    if (in->is_valid && fuzz_pick(in, 8))
        memcpy(desc, valid, n_bytes);
    else
        fuzz_fill_from(in, desc, valid, n_bytes);
}

/* A float has the type of its own bytes, so it takes the reals in another way. */
static float fuzz_float(fuzz_bytes* in) {
    static const float values[] = {0, 1, 0.5f, -1, 1e-38f, 3e38f, INFINITY, -INFINITY, NAN};
    return values[fuzz_pick(in, 9)];
}

/* A count of an array of FUZZ_N elements, or an impossible one. */
static int64_t fuzz_count(fuzz_bytes* in) {
    static const int64_t counts[] = {1, 2, FUZZ_N, 0, 3, -1, INT64_MIN, INT64_MAX, (int64_t)1e18};
    return counts[fuzz_pick(in, 9)];
}
static int32_t fuzz_count_32(fuzz_bytes* in) {
    static const int32_t counts[] = {1, 2, FUZZ_N, 0, 3, -1, INT32_MIN};
    return counts[fuzz_pick(in, 7)];
}

/* Planning takes as long as a hundred other inputs: one of n is planned in full, and each of those
 * that were found. */
static int fuzz_plans_less(fuzz_bytes* in, int n) {
#ifdef FUZZ_REPLAY
    if (!in->is_valid) return 0;
#endif
    return fuzz_pick(in, n) != 0;
}

static int fuzz_is_refused(memo_status status) {
    if (!status) return 0;
    FUZZ_CHECK(fuzz_error.status == status && fuzz_error.message[0]);
    FUZZ_CHECK(strlen(fuzz_error.message) < sizeof fuzz_error.message);
    return 1;
}

/* A table of rows: mostly rows of a layer that exist. */
static void fuzz_rows(fuzz_bytes* in, int64_t* rows) {
    for (int i = 0; i < FUZZ_N * FUZZ_N; i++)
        if (fuzz_pick(in, 4))
            rows[i] = fuzz_pick(in, 9) - 1;
        else
            fuzz_word(in, &rows[i]);
}

static void fuzz_tensors(fuzz_bytes* in, memo_item* tensors) {
    for (int t = 0; t < FUZZ_N; t++) {
        const memo_item valid = {"t", 64, t, 0, 0, 0};
        if (in->is_valid) {
            fuzz_fill_one(in, &tensors[t], &valid, sizeof valid);
            tensors[t].name = "t";
            continue;
        }
        FUZZ_POINTERS(tensors[t], 32, &tensors[t].name);
        tensors[t].name = "t";
        fuzz_word(in, &tensors[t].row_bytes);
        tensors[t].away = (int32_t)fuzz_pick(in, 7) - 1;
        tensors[t].scope = fuzz_pick(in, 4) ? 0 : (int32_t)fuzz_pick(in, 7) - 1;
        tensors[t].is = fuzz_pick(in, 8) ? 0 : (int32_t)fuzz_pick(in, 6) - 1;
        tensors[t].kinds = 0;
    }
}

/* ---- the structs ---- */

static void fuzz_swap_desc_fill(fuzz_bytes* in, memo_swap_desc* desc, memo_item* tensors,
                                int64_t* rows) {
    const memo_swap_desc valid = {
        .n_tensors = FUZZ_N, .n_layers = FUZZ_N, .n_rows = 8, .tile_rows = 1, .alpha = 0.5};
    /* tests/corpus has no word for desc_name */
    fuzz_fill_from(in, desc, &valid, offsetof(memo_swap_desc, desc_name));
    FUZZ_POINTERS(*desc, 200, &desc->device, &desc->compute_stream, &desc->tensors, &desc->order,
                  &desc->layer_kinds, &desc->rows, &desc->device_memory, &desc->host_memory,
                  &desc->spill_directory, &desc->desc_name, &desc->ends);
    fuzz_tensors(in, tensors);
    fuzz_rows(in, rows);
    desc->tensors = tensors;
    if (!in->is_valid) {
        desc->n_tensors = fuzz_count_32(in);
        desc->n_layers = fuzz_count_32(in);
    }
    if (desc->n_tensors > FUZZ_N) desc->n_tensors = FUZZ_N;
    if (desc->n_layers > FUZZ_N) desc->n_layers = FUZZ_N;
    desc->rows = fuzz_pick(in, 2) ? rows : NULL;
}

enum { FUZZ_SWAP_TURNS = 3 * FUZZ_N };
/* Micro-batches in flight: each place has up to FUZZ_N forwards, each followed later by its
 * backward.  At times a turn is another, also of a place that no desc has. */
static void fuzz_swap_order(fuzz_bytes* in, memo_swap_desc* desc, int32_t* order) {
    int32_t n = 0, n_turns[FUZZ_N] = {0};
    memset(order, 0, FUZZ_SWAP_TURNS * sizeof *order);
    desc->n_places = 1 + (int32_t)fuzz_pick(in, FUZZ_N);
    if (fuzz_pick(in, 4)) desc->n_layers = desc->n_places; /* a layer of each place, or a fault */
    for (int32_t k = 0; k < 2 * FUZZ_N; k++) {
        const int32_t place = (int32_t)fuzz_pick(in, desc->n_places);
        order[n++] = n_turns[place]++ % 2 ? -1 - place : place;
    }
    for (int32_t place = 0; place < desc->n_places; place++)
        if (n_turns[place] % 2) order[n++] = -1 - place;
    if (!fuzz_pick(in, 4)) order[fuzz_pick(in, n)] = (int32_t)fuzz_pick(in, 12) - 6;
    desc->order = order;
    desc->n_order = fuzz_pick(in, 8) ? n : fuzz_count_32(in);
}
static void fuzz_swap(fuzz_bytes* in) {
    memo_swap_desc desc;
    memo_item tensors[FUZZ_N];
    int64_t rows[FUZZ_N * FUZZ_N], by_alpha[FUZZ_N * FUZZ_N];
    int32_t order[FUZZ_SWAP_TURNS];
    memo_swap_sizes sizes = {0};
    fuzz_swap_desc_fill(in, &desc, tensors, rows);
    for (int has_order = 0; has_order < 2; has_order++) {
        if (has_order) fuzz_swap_order(in, &desc, order);
        (void)fuzz_is_refused(memob_swap_fill_rows(&desc, by_alpha, &fuzz_error));
        if (!fuzz_is_refused(memo_swap_desc_get_sizes(&desc, &sizes, &fuzz_error)))
            FUZZ_CHECK(sizes.device_bytes >= 0 && sizes.host_bytes >= 0 &&
                       sizes.swapped_bytes >= 0 && desc.n_slices >= 0 &&
                       desc.n_slices <= desc.n_layers);
    }
}

static void fuzz_row_plan(fuzz_bytes* in) {
    memo_swap_plan_desc desc;
    memo_swap_desc swap;
    memo_item tensors[FUZZ_N];
    int64_t rows[FUZZ_N * FUZZ_N];
    memo_profile profile;
    memob_states_desc states;
    memo_state table[FUZZ_N];
    int32_t order[FUZZ_SWAP_TURNS], ends[FUZZ_SWAP_TURNS], states_turns[FUZZ_SWAP_TURNS], i;
    memo_swap_plan* plan = NULL;
    fuzz_swap_desc_fill(in, &swap, tensors, rows);
    swap.rows = NULL;
    fuzz_fill_from(in, &desc, &(memo_swap_plan_desc){.micro_batches = 1}, sizeof desc);
    FUZZ_POINTERS(desc, 56, &desc.swap, &desc.profile, &desc.states);
    fuzz_fill_from(in, &profile, &(memo_profile){.forward_s = {1e-3}, .backward_s = {2e-3}},
                   sizeof profile);
    FUZZ_POINTERS(profile, 35992, NULL);
    if (fuzz_pick(in, 8)) {
        profile.n_rows = swap.n_rows;
        profile.n_kinds = MEMO_PROFILE_KINDS_MAX;
        profile.n_tensors = FUZZ_N;
        for (i = 0; i < FUZZ_N; i++) strcpy(profile.tensors[i].name, "t");
    }
    desc.swap = &swap;
    desc.profile = &profile;
    FUZZ_FILL(in, states, 160, &states.device, &states.compute_stream, &states.states,
              &states.layer_kinds, &states.streamed, &states.spilled, &states.turns,
              &states.spill_directory, &states.device_memory, &states.host_memory,
              &states.trainer.update, &states.trainer.look, &states.trainer.update_host,
              &states.trainer.fetch, &states.trainer.user);
    for (i = 0; i < FUZZ_N; i++) FUZZ_FILL(in, table[i], 24, &table[i].name);
    for (i = 0; i < FUZZ_N; i++) table[i].name = "s";
    states.states = table;
    states.n_states = 1 + (int32_t)fuzz_pick(in, FUZZ_N);
    states.n_layers = fuzz_pick(in, 8) ? swap.n_layers + 2 : fuzz_count_32(in);
    states.n_chunks = fuzz_pick(in, 8) ? 1 : fuzz_count_32(in);
    states.n_turns = 0;
    desc.states = fuzz_pick(in, 2) ? &states : NULL;
    memset(ends, 0, sizeof ends);
    fuzz_fill(in, ends, 6 * sizeof *ends);
    swap.ends = fuzz_pick(in, 2) ? ends : NULL;
    if (fuzz_pick(in, 2)) {
        fuzz_swap_order(in, &swap, order);
        for (i = 0; i < FUZZ_SWAP_TURNS; i++) states_turns[i] = order[i] < 0 ? -1 : 0;
        states.turns = states_turns;
        states.n_turns = fuzz_pick(in, 8) ? swap.n_order : fuzz_count_32(in);
        states.n_layers = swap.n_layers / (swap.n_places > 1 ? swap.n_places : 1) + 2;
    }
    if (in->is_valid && fuzz_plans_less(in, 8)) swap.rows = rows; /* only their times */
    if (!fuzz_is_refused(memo_plan_swap(&desc, &plan, &fuzz_error))) FUZZ_CHECK(plan);
    memo_swap_plan_destroy(plan);
}

static memo_status fuzz_row_kernel(MEMO_UNUSED void* context, MEMO_UNUSED memo_stream stream,
                                   MEMO_UNUSED const memo_row_call* call,
                                   MEMO_UNUSED memo_error* error) {
    return MEMO_STATUS_OK;
}

/* The check looks at no array. */
static void fuzz_row_kernels(fuzz_bytes* in) {
    const memo_device device = {.struct_bytes = sizeof device, .row_kernel = fuzz_row_kernel};
    memo_row_desc desc;
    fuzz_fill(in, &desc, sizeof desc); /* with any pointers */
    (void)fuzz_is_refused(
        memo_row_kernel(&device, NULL, (memo_row_kind)(fuzz_pick(in, 13) - 1), &desc, &fuzz_error));
}

static void fuzz_host_device(fuzz_bytes* in) {
    memo_host_device_desc desc;
    memo_device* device = NULL;
    void* address;
    int64_t n_bytes;
    FUZZ_FILL(in, desc, 48, NULL);
    if (fuzz_is_refused(memo_host_device_create(&desc, &device, &fuzz_error))) return;
    fuzz_word(in, &n_bytes);
    if (n_bytes <= 4096)
        (void)fuzz_is_refused(memo_device_alloc(device, n_bytes, &address, &fuzz_error));
    memo_host_device_destroy(device);
}

static void fuzz_plan_desc(fuzz_bytes* in) {
    static const int32_t stop = 1;
    memo_plan* plan = NULL;
    memo_plan_desc desc;
    FUZZ_CHECK(memo_plan_create(FUZZ_N, 0, 512, &plan, &fuzz_error) == MEMO_STATUS_OK);
    plan->n_times = 8;
    for (int i = 0; i < FUZZ_N; i++) {
        FUZZ_FILL(in, plan->buffers[i], 64, NULL);
        if (fuzz_pick(in, 2)) { /* a valid one, of any size */
            int64_t size = plan->buffers[i].size_bytes;
            memset(&plan->buffers[i], 0, sizeof plan->buffers[i]);
            plan->buffers[i].id = i;
            plan->buffers[i].begin = i;
            plan->buffers[i].end = i + 3;
            plan->buffers[i].size_bytes = size;
        }
    }
    fuzz_fill_from(in, &desc, &(memo_plan_desc){0}, sizeof desc);
    FUZZ_POINTERS(desc, 96, &desc.log.write, &desc.log.user, &desc.stop, &desc.trace, &desc.offers);
    if (desc.n_offers > 0) desc.n_offers = 0;
    if (desc.n_threads > 2) desc.n_threads = 65;
    if (fuzz_pick(in, 4) == 3) desc.stop = &stop; /* whoever stops gets a valid plan, too */
    if (!fuzz_is_refused(memo_plan_prepare(plan, &fuzz_error)) &&
        !fuzz_is_refused(memo_plan_solve(plan, &desc, &fuzz_error)))
        FUZZ_CHECK(memo_plan_validate(plan, &fuzz_error) == MEMO_STATUS_OK);
    memo_plan_destroy(plan);
}

static void fuzz_operation(fuzz_bytes* in) {
    memo_schedule* schedule = NULL;
    memo_simulation* simulation = NULL;
    memo_check* check = NULL;
    memo_op_desc op;
    memo_range ranges[FUZZ_N];
    int32_t stream;
    FUZZ_CHECK(memo_schedule_create(&schedule, &fuzz_error) == MEMO_STATUS_OK);
    FUZZ_CHECK(memo_schedule_add_stream(schedule, "a", &stream, &fuzz_error) == MEMO_STATUS_OK);
    FUZZ_CHECK(memo_schedule_add_stream(schedule, "b", &stream, &fuzz_error) == MEMO_STATUS_OK);
    for (int i = 0; i < FUZZ_N; i++) FUZZ_FILL(in, ranges[i], 16, NULL);
    for (int i = 0; i < 2; i++) {
        FUZZ_FILL(in, op, 64, &op.name, &op.reads, &op.writes);
        op.name = "op";
        op.reads = op.writes = ranges;
        op.n_reads = fuzz_count(in);
        op.n_writes = fuzz_count(in);
        if (op.n_reads > FUZZ_N) op.n_reads = 0;
        if (op.n_writes > FUZZ_N) op.n_writes = 0;
        (void)fuzz_is_refused(memo_schedule_add_op(schedule, &op, &fuzz_error));
    }
    (void)fuzz_is_refused(memo_schedule_check(schedule, &check, &fuzz_error));
    (void)fuzz_is_refused(memo_schedule_simulate(schedule, &simulation, &fuzz_error));
    memo_check_destroy(check);
    memo_simulation_destroy(simulation);
    memo_schedule_destroy(schedule);
}

static void fuzz_sharding_of(fuzz_bytes* in, memo_sharding_desc* desc, int64_t* begins,
                             memo_segment* segments) {
    int64_t* parents = begins + FUZZ_N + 1;
    fuzz_fill_from(in, desc, &(memo_sharding_desc){.ring = 2, .ulysses = 2, .n_tokens = 64},
                   sizeof *desc);
    FUZZ_POINTERS(*desc, 80, &desc->document_begins, &desc->document_parents, &desc->segments);
    begins[0] = 0;
    for (int i = 1; i <= FUZZ_N; i++) fuzz_word(in, &begins[i]);
    desc->document_begins = fuzz_pick(in, 2) ? begins : NULL;
    desc->n_documents = fuzz_count(in);
    for (int i = 0; i < FUZZ_N; i++) parents[i] = fuzz_pick(in, 2) ? i - 1 : -1;
    fuzz_change(in, parents, FUZZ_N * sizeof *parents);
    desc->document_parents = fuzz_pick(in, 2) ? parents : NULL;
    for (int i = 0; i < FUZZ_N; i++)
        segments[i] = (memo_segment){8 * i, 8 * i + 8, 0, 64, MEMO_SEGMENT_CAUSAL, 0};
    fuzz_change(in, segments, FUZZ_N * sizeof *segments);
    desc->segments = fuzz_pick(in, 2) ? segments : NULL;
    desc->n_segments = fuzz_pick(in, FUZZ_N + 2) - 1;
}

static void fuzz_attention(fuzz_bytes* in) {
    const memo_sp_attention_desc valid = {
        .n_q_heads = 4, .n_kv_heads = 2, .head_size = 8, .type = MEMO_TYPE_F32};
    memo_sharding_desc queries, keys;
    memo_sp_attention_desc desc;
    memo_sp_attention_sizes sizes;
    int64_t begins[2 * FUZZ_N + 1], key_begins[2 * FUZZ_N + 1]; /* and parents */
    memo_segment segments[2][FUZZ_N];
    memo_sharding sharding;
    fuzz_sharding_of(in, &queries, begins, segments[0]);
    fuzz_sharding_of(in, &keys, key_begins, segments[1]);
    fuzz_fill_from(in, &desc, &valid, sizeof desc);
    if (fuzz_is_refused(memo_sharding_make(&queries, &sharding, &fuzz_error))) return;
    memo_sharding key_sharding = {0};
    if (fuzz_pick(in, 2) &&
        fuzz_is_refused(memo_sharding_make(&keys, &key_sharding, &fuzz_error))) {
        memo_sharding_free(&sharding);
        return;
    }
    memset(&desc.attention, 0, sizeof desc.attention);
    FUZZ_POINTERS(desc, 392, &desc.device, &desc.stream, &desc.ring, &desc.ulysses, &desc.nodes,
                  &desc.device_memory);
    desc.sharding = sharding;
    desc.key_sharding = key_sharding;
    desc.scale = fuzz_float(in);
    desc.softcap = fuzz_float(in);
    if (!fuzz_is_refused(memo_sp_attention_desc_get_sizes(&desc, &sizes, &fuzz_error)))
        FUZZ_CHECK(sizes.device_bytes >= 0 && sizes.lse_bytes >= 0 && sizes.saved_bytes >= 0);
    memo_sharding_free(&sharding);
    memo_sharding_free(&key_sharding);
}

static void fuzz_loss(fuzz_bytes* in) {
    memo_loss_desc desc;
    memo_loss_sizes sizes;
    const memo_loss_desc valid = {.vocabulary = 1000, .type = MEMO_TYPE_F32};
    fuzz_fill_from(in, &desc, &valid, sizeof desc);
    FUZZ_POINTERS(desc, 80, &desc.device, &desc.stream, &desc.tensor, &desc.device_memory);
    memset(&desc.functions, 0, sizeof desc.functions);
    desc.softcap = fuzz_float(in);
    if (!fuzz_is_refused(memo_loss_desc_get_sizes(&desc, &sizes, &fuzz_error)))
        FUZZ_CHECK(sizes.device_bytes >= 0 && sizes.tile_rows > 0 && sizes.n_columns > 0 &&
                   sizes.n_columns == desc.vocabulary);
}

static memo_status fuzz_split(MEMO_UNUSED memo_comm* comm, MEMO_UNUSED int32_t color,
                              MEMO_UNUSED int32_t key, MEMO_UNUSED const char* name,
                              memo_comm** part, memo_error* error) {
    *part = NULL;
    return memo_error_set(error, MEMO_STATUS_COMM, "no parts");
}

static void fuzz_mesh(fuzz_bytes* in) {
    memo_comm world = {.split = fuzz_split};
    memo_mesh_desc desc;
    memo_mesh* mesh;
    int64_t size;
    FUZZ_FILL(in, desc, 24, NULL);
    fuzz_word(in, &size);
    world.size = (int32_t)memob_max(size & INT32_MAX, 1);
    world.rank = fuzz_pick(in, world.size);
    FUZZ_CHECK(fuzz_is_refused(memo_mesh_create(&world, &desc, &mesh, &fuzz_error)) && !mesh);
}

static void fuzz_step(void* user, memo_session* session) {
    const memo_session_desc* desc = (const memo_session_desc*)user;
    for (int32_t layer = 0; layer < desc->n_layers; layer++) {
        (void)memo_session_forward_begin(session, layer);
        memo_session_forward_end(session, layer);
    }
    for (int32_t layer = desc->n_layers - 1; layer >= 0; layer--) {
        (void)memo_session_backward_begin(session, layer);
        memo_session_backward_end(session, layer);
    }
}
static void fuzz_recompute(void* user, memo_session* session, int32_t layer, int32_t tensor,
                           int64_t begin, int64_t end) {
    (void)user, (void)session, (void)layer, (void)tensor, (void)begin, (void)end;
}

/* Forward, backward, update, and the like. */
static void fuzz_layer(void* user, memo_session* session, int32_t layer) {
    (void)user, (void)session, (void)layer;
}
static void fuzz_pass(void* user, memo_session* session) { (void)user, (void)session; }

/* An order of a pipeline's stage: each micro-batch passes through the chunks, `ahead` forwards
 * come before the first backward.  At times a turn is another, or the count is.  Returns the number
 * of turns. */
enum { FUZZ_TURNS = 2 * FUZZ_N * 2 };
static int32_t fuzz_order(fuzz_bytes* in, memo_turn* order) {
    const int32_t n = 1 + (int32_t)fuzz_pick(in, FUZZ_N), n_chunks = 1 + (int32_t)fuzz_pick(in, 2);
    const int32_t ahead = (int32_t)fuzz_pick(in, n);
    int32_t n_turns = 0, k, c;
    for (k = 0; k < n + ahead; k++) {
        const int32_t back = k - ahead;
        for (c = 0; c < n_chunks && k < n; c++) {
            const memo_turn forward = {k, c, MEMO_PASS_FORWARD};
            order[n_turns++] = forward;
        }
        for (c = n_chunks - 1; c >= 0 && back >= 0; c--) {
            const memo_turn backward = {back, c, MEMO_PASS_BACKWARD};
            order[n_turns++] = backward;
        }
    }
    if (!fuzz_pick(in, 4)) { /* two numbers of a turn */
        int64_t word;
        fuzz_word(in, &word);
        memcpy(&order[fuzz_pick(in, n_turns)], &word, sizeof word);
    }
    if (!fuzz_pick(in, 4)) order[fuzz_pick(in, n_turns)].pass = (memo_pass)(fuzz_pick(in, 8) - 1);
    if (!fuzz_pick(in, 4)) order[fuzz_pick(in, n_turns)] = order[fuzz_pick(in, n_turns)];
    return fuzz_pick(in, 8) ? n_turns : (int32_t)fuzz_pick(in, n_turns + 1) - 1;
}

/* All but the tables that a target fills. */
static void fuzz_session_pointers(memo_session_desc* desc) {
    FUZZ_POINTERS(*desc, 408, &desc->profile_path, &desc->planned, &desc->device,
                  &desc->compute_stream, &desc->tensors, &desc->order, &desc->shapes,
                  &desc->layer_kinds, &desc->user, &desc->step, &desc->forward, &desc->between,
                  &desc->backward, &desc->loss, &desc->recompute, &desc->buffers, &desc->agree,
                  &desc->spill_directory, &desc->states, &desc->update, &desc->update_host,
                  &desc->fetch, &desc->rows, &desc->log.write, &desc->log.user,
                  &desc->device_memory, &desc->host_memory);
}

/* A session's error names nothing of the layers below it. */
static void fuzz_session_plan(const memo_session_desc* desc, const memo_profile* profiles) {
    memo_step_plan *plan = NULL, *each;
    if (fuzz_is_refused(memo_session_plan(desc, profiles, &plan, &fuzz_error))) {
        FUZZ_CHECK(!plan);
        FUZZ_CHECK(!strstr(fuzz_error.message, "memo_swap") &&
                   !strstr(fuzz_error.message, "memo_arena") &&
                   !strstr(fuzz_error.message, "memob_"));
    } else {
        FUZZ_CHECK(plan);
        for (each = plan; each; each = each->next) {
            FUZZ_CHECK(each->device_bytes >= 0 && each->host_bytes >= 0);
            FUZZ_CHECK(each->fits == !each->shortage[0]);
        }
    }
    memo_step_plan_destroy(plan);
}

static void fuzz_session(fuzz_bytes* in) {
    memo_session_desc desc;
    memo_item tensors[FUZZ_N];
    memo_session_buffer buffers[FUZZ_N];
    memo_shape shapes[FUZZ_N];
    int64_t rows[FUZZ_N * FUZZ_N], n_slices = 1;
    int32_t layer_kinds[FUZZ_N], n_kinds = 1, i;
    memo_profile profiles[FUZZ_N];
    memo_state states[FUZZ_N];
    const int has_profile = fuzz_pick(in, 2), has_kinds = fuzz_pick(in, 2);
    const int has_buffers = fuzz_pick(in, 2), has_rows = fuzz_pick(in, 2);
    const int has_shapes = fuzz_pick(in, 2);
    fuzz_fill(in, &desc, sizeof desc);
    fuzz_session_pointers(&desc);
    fuzz_tensors(in, tensors);
    fuzz_rows(in, rows);
    desc.n_tensors = fuzz_count_32(in);
    desc.n_layers = fuzz_count_32(in);
    for (i = 0; i < FUZZ_N; i++) {
        FUZZ_FILL(in, buffers[i], 48, &buffers[i].name);
        buffers[i].name = fuzz_pick(in, 2) ? "b" : NULL;
        FUZZ_FILL(in, shapes[i], 16, NULL);
        layer_kinds[i] = fuzz_pick(in, 8) ? fuzz_pick(in, 3) : fuzz_count_32(in);
        tensors[i].kinds = fuzz_pick(in, 2) ? 0 : (uint32_t)fuzz_pick(in, 8);
        if (!has_kinds) tensors[i].kinds = 0;
        if (has_kinds && i < desc.n_layers && layer_kinds[i] >= n_kinds)
            n_kinds = layer_kinds[i] + 1;
    }
    desc.tensors = tensors;
    desc.layer_kinds = has_kinds ? layer_kinds : NULL;
    desc.user = &desc;
    desc.step = fuzz_pick(in, 4) ? fuzz_step : NULL;
    desc.recompute = fuzz_pick(in, 4) ? fuzz_recompute : NULL;
    desc.buffers = has_buffers ? buffers : NULL;
    desc.n_buffers = has_buffers ? fuzz_count_32(in) : 0;
    desc.spill_directory = fuzz_pick(in, 2) ? "/tmp" : NULL;
    desc.shapes = has_shapes ? shapes : NULL;
    desc.n_shapes = has_shapes ? fuzz_count_32(in) : 0;
    /* The table has a row for each shape, layer and slice. */
    if (desc.slice_rows > 0 && desc.n_rows > desc.slice_rows)
        n_slices += (desc.n_rows - 1) / desc.slice_rows;
    n_slices += desc.n_group > 1;
    desc.rows = has_rows && n_slices == 1 && desc.n_shapes < 2 ? rows : NULL;
    for (i = 0; i < FUZZ_N; i++) {
        if (i && !has_shapes) break;
        FUZZ_FILL(in, profiles[i], 35992, NULL);
        profiles[i].n_tensors = desc.n_tensors;
        profiles[i].n_kinds = n_kinds;
        for (int32_t t = 0; t < FUZZ_N; t++) strcpy(profiles[i].tensors[t].name, "t");
    }
    for (i = 0; i < FUZZ_N; i++) {
        FUZZ_FILL(in, states[i], 24, &states[i].name);
        states[i].name = "s";
    }
    desc.n_states = fuzz_pick(in, 2) ? fuzz_count_32(in) : 0;
    desc.states = fuzz_pick(in, 4) ? states : NULL;
    desc.update = fuzz_pick(in, 4) ? fuzz_layer : NULL;
    fuzz_session_plan(&desc, has_profile ? profiles : NULL);
}

/* A valid session with micro-batches in flight, except for some words. */
static void fuzz_in_flight(fuzz_bytes* in) {
    static const char* const names[FUZZ_N] = {"a", "b", "c", "d"};
    memo_session_desc desc = {.n_layers = FUZZ_N, .n_rows = 64, .tile_rows = 8};
    memo_item tensors[FUZZ_N];
    memo_turn order[FUZZ_TURNS];
    memo_session_buffer buffers[] = {
        {"span", 0, 8, MEMO_PASS_FORWARD, 1, MEMO_PASS_BACKWARD, 1, 0},
        {"gradient", 0, 8, MEMO_PASS_BACKWARD, MEMO_EACH_LAYER, MEMO_PASS_BACKWARD, 0, 0},
        {"scratch", 64, 0, MEMO_PASS_FORWARD, MEMO_EACH_LAYER, MEMO_PASS_FORWARD, 0, 0},
        {"whole", 64, 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0, 0}};
    int64_t rows[FUZZ_N * FUZZ_N * FUZZ_N]; /* each micro-batch in flight has its own */
    memo_profile profile = {.n_rows = 64, .n_kinds = 1};
    memo_state state = {"w", 512, MEMO_STATE_WEIGHTS, 0};
    int i;
    desc.n_tensors = profile.n_tensors = 1 + (int32_t)fuzz_pick(in, FUZZ_N);
    desc.policy = (memo_policy)fuzz_pick(in, MEMO_N_POLICIES);
    desc.n_buffers = (int32_t)fuzz_pick(in, FUZZ_N + 1);
    desc.device_bytes = fuzz_pick(in, 2) ? 0 : 2048 * fuzz_pick(in, 64);
    desc.host_bytes = fuzz_pick(in, 2) ? 0 : 1024 * fuzz_pick(in, 64);
    for (i = 0; i < FUZZ_N; i++) {
        const memo_item tensor = {
            names[i], 8 * (int64_t)fuzz_pick(in, 8), (int32_t)fuzz_pick(in, 4), 0, 0, 0};
        tensors[i] = tensor;
        strcpy(profile.tensors[i].name, names[i]);
    }
    for (i = 0; i < FUZZ_N * FUZZ_N * FUZZ_N; i++) rows[i] = 8 * fuzz_pick(in, 10) - 8;
    profile.forward_s[0] = profile.backward_s[0] = 1e-3;
    profile.copies[1].size_bytes = 1 << 20;
    profile.copies[1].out_s = profile.copies[1].back_s = 1e-3 * fuzz_pick(in, 4);

    /* Then some words, and all pointers. */
    const int32_t n_buffers = desc.n_buffers;
    desc.n_order = fuzz_order(in, order);
    const int32_t n_order = desc.n_order;
    fuzz_change(in, &desc, sizeof desc);
    fuzz_session_pointers(&desc);
    if (desc.n_layers > FUZZ_N) desc.n_layers = FUZZ_N; /* `rows` has no more */
    if (desc.n_tensors > FUZZ_N) desc.n_tensors = FUZZ_N;
    if (desc.n_group > 1) desc.n_group = 1;
    if (desc.n_order > n_order && desc.n_order <= MEMO_TURNS_MAX) desc.n_order = n_order;
    if (desc.n_buffers > n_buffers) desc.n_buffers = n_buffers;
    desc.n_shapes = 0;
    desc.states = &state;
    desc.n_states = (int32_t)fuzz_pick(in, 2);
    desc.update = fuzz_layer;
    fuzz_change(in, &profile, sizeof profile);
    profile.n_tensors = desc.n_tensors;
    for (i = 0; i < FUZZ_N; i++) strcpy(profile.tensors[i].name, names[i]);
    for (i = 0; i < 4; i++) {
        fuzz_change(in, &buffers[i], sizeof buffers[i]);
        FUZZ_POINTERS(buffers[i], 48, &buffers[i].name);
        buffers[i].name = names[i];
    }
    desc.tensors = tensors;
    desc.order = fuzz_pick(in, 32) ? order : NULL;
    desc.buffers = buffers;
    desc.rows = desc.policy == MEMO_POLICY_ROWS ? rows : NULL;
    desc.user = &desc;
    desc.forward = desc.backward = fuzz_pick(in, 32) ? fuzz_layer : NULL;
    desc.recompute = fuzz_pick(in, 8) ? fuzz_recompute : NULL;
    desc.between = fuzz_pick(in, 2) ? fuzz_pass : NULL;
    desc.loss = fuzz_pick(in, 16) ? NULL : fuzz_pass;
    if ((desc.policy == MEMO_POLICY_MEMO || desc.policy == MEMO_POLICY_ALPHA) &&
        fuzz_plans_less(in, 8))
        desc.policy = MEMO_POLICY_RECOMPUTE;
    fuzz_session_plan(&desc, fuzz_pick(in, 4) ? &profile : NULL);
}

static void fuzz_blocks(fuzz_bytes* in) {
    memo_blocks_schedule_desc desc;
    memo_block_times times[FUZZ_N * FUZZ_N];
    memo_schedule* schedule;
    fuzz_fill_from(in, &desc, &(memo_blocks_schedule_desc){.n_blocks = 2}, sizeof desc);
    FUZZ_POINTERS(desc, 20, NULL);
    for (int i = 0; i < FUZZ_N * FUZZ_N; i++) {
        fuzz_fill_one(in, &times[i], &(memo_block_times){1, 1, 2, 1, 1}, sizeof times[i]);
        FUZZ_POINTERS(times[i], 40, NULL);
    }
    if (!in->is_valid) {
        desc.n_blocks = fuzz_count_32(in);
        desc.n_parts = fuzz_count_32(in);
    }
    if (desc.n_blocks > FUZZ_N) desc.n_blocks = FUZZ_N;
    if (desc.n_parts > FUZZ_N) desc.n_parts = FUZZ_N;
    int passes = fuzz_pick(in, 8);
    (void)fuzz_is_refused(memo_blocks_generate(&desc, fuzz_pick(in, 2) ? times : NULL, passes,
                                               &schedule, &fuzz_error));
    memo_schedule_destroy(schedule);
}

static int fuzz_is_amount(double value) { return value >= 0 && value < 1e300; }

static void fuzz_layouts(fuzz_bytes* in) {
    memo_parallel_desc desc = {0};
    memo_parallel_layout layout;
    memo_parallel_prediction prediction;
    memo_parallel_list* list = NULL;
    const int is_any = !in->is_valid && fuzz_pick(in, 4) == 3;
    desc.model.n_layers = 4;
    desc.model.hidden = 64;
    desc.model.n_q_heads = desc.model.n_kv_heads = 8;
    desc.cluster.n_gpus = desc.cluster.gpus_per_node = in->is_valid ? 4 : 8;
    desc.cluster.device_bytes = (int64_t)1 << 30;
    desc.cluster.peak_flops_per_s = 1e12;
    desc.cluster.link_bytes_per_s = desc.cluster.nic_bytes_per_s = 1e9;
    desc.sequence = 1024;
    desc.global_batch = 8;
    if (in->is_valid)
        fuzz_change_fields(in, &desc, sizeof desc);
    else if (is_any)
        fuzz_fill(in, &desc, sizeof desc);
    else
        fuzz_change(in, &desc, sizeof desc);
    FUZZ_POINTERS(desc, 352, NULL);
    FUZZ_FILL(in, layout, 36, NULL);
    if (fuzz_pick(in, 2)) {
        layout.data = layout.pipeline = layout.tensor = layout.ring = 1;
        layout.ulysses = desc.cluster.n_gpus;
    }
    if (!fuzz_is_refused(memo_parallel_predict(&desc, &layout, &prediction, &fuzz_error)))
        FUZZ_CHECK(fuzz_is_amount(prediction.time.step_s) &&
                   fuzz_is_amount(prediction.memory.device_bytes));
    if (fuzz_plans_less(in, 64)) return;
    if (!fuzz_is_refused(memo_plan_layouts(&desc, &list, &fuzz_error)))
        FUZZ_CHECK(list->n_fitting <= list->n_legal && list->n_legal <= list->n_entries);
    memo_parallel_list_destroy(list);
}

static void fuzz_degrees(fuzz_bytes* in) {
    static const int32_t degrees[] = {1, 2, 4, 8};
    memo_degrees_problem* problem = NULL;
    memo_degrees_plan plan;
    static int32_t planned[MEMO_DEGREES_BLOCKS_MAX];
    degrees_model model;
    memo_degree_cost costs[FUZZ_N * FUZZ_N];
    double time_limit_s, real;
    memo_degrees_problem all = {0};
    for (int i = 0; i < FUZZ_N * FUZZ_N; i++) {
        const memo_degree_cost valid = {1, 1, 1, 1, 1, 64, 64, 64};
        fuzz_fill_one(in, &costs[i], &valid, sizeof valid);
        FUZZ_POINTERS(costs[i], 64, NULL);
    }
    all.n_blocks = in->is_valid ? FUZZ_N : fuzz_count_32(in);
    all.n_degrees = in->is_valid ? FUZZ_N : fuzz_count_32(in);
    for (int i = 0; i < FUZZ_N; i++) {
        all.degrees[i] = in->is_valid || fuzz_pick(in, 16) ? degrees[i] : fuzz_count_32(in);
        for (int k = 0; k < FUZZ_N && !in->is_valid; k++) fuzz_word(in, &all.gather_s[i][k]);
    }
    if (in->is_valid) {
        all.memory_bytes = 1 << 20;
        time_limit_s = 1;
        fuzz_change_fields(in, &all, offsetof(memo_degrees_problem, gather_s));
        if (all.n_blocks > FUZZ_N && all.n_blocks <= MEMO_DEGREES_BLOCKS_MAX) all.n_blocks = FUZZ_N;
        if (all.n_degrees > FUZZ_N && all.n_degrees <= MEMO_DEGREES_MAX) all.n_degrees = FUZZ_N;
    } else {
        fuzz_word(in, &all.memory_bytes);
        all.boundary_degree = fuzz_count_32(in);
        all.has_gradients = fuzz_pick(in, 2);
        fuzz_word(in, &time_limit_s);
    }
    FUZZ_POINTERS(all, 2144, &all.costs);
    all.costs = costs;
    if (!fuzz_is_refused(memo_degrees_problem_check(&all, &fuzz_error)))
        FUZZ_CHECK(all.n_blocks > 0 && all.n_degrees > 0);
    if (!fuzz_is_refused(memo_degrees_solve(&all, time_limit_s, planned, &plan, &fuzz_error)))
        FUZZ_CHECK(plan.step_s >= 0 && plan.lower_bound_s <= plan.step_s && plan.memory_bytes >= 0);
    FUZZ_FILL(in, model, 264, NULL);
    model.n_degrees = fuzz_count_32(in);
    for (int i = 0; i < FUZZ_N; i++) {
        model.degrees[i] = degrees[i];
        fuzz_word(in, &real);
        model.bandwidth_bytes_per_s[i] = real;
    }
    if (model.n_layers > 64) model.n_layers = 64;
    if (!fuzz_is_refused(degrees_problem_from_model(&model, &problem, &fuzz_error)))
        FUZZ_CHECK(memo_degrees_problem_check(problem, &fuzz_error) == MEMO_STATUS_OK);
    MEMO_FREE(problem);
}

static void fuzz_descs(const uint8_t* data, size_t size) {
    static void (*const targets[])(fuzz_bytes*) = {
        fuzz_swap, fuzz_row_plan, fuzz_row_kernels, fuzz_host_device, fuzz_plan_desc,
        fuzz_operation, fuzz_attention, fuzz_loss, fuzz_mesh, fuzz_session, fuzz_blocks,
        fuzz_layouts, fuzz_degrees, fuzz_in_flight,
        /* from here on with valid structs */
        fuzz_swap, fuzz_row_plan, fuzz_plan_desc, fuzz_attention, fuzz_loss, fuzz_blocks,
        fuzz_layouts, fuzz_degrees};
    fuzz_bytes in = {.next = data, .left = size};
    const int target = fuzz_pick(&in, (int)(sizeof targets / sizeof *targets));
    in.is_valid = target >= 14;
    targets[target](&in);
}

/* An input, and others that differ in one to three bytes or in all, of targets that take
 * microseconds: what libFuzzer does for each input takes longer than these. */
static void fuzz_near_descs(const uint8_t* data, size_t size) {
    enum { MOST = 4096, RANDOM = 200, N_OTHERS = 400 };
    static const uint8_t short_ones[] = {0,  2,  3,  4,  5,  6,  7,  8,  12, /* any structs */
                                         14, 16, 17, 18, 21, 14, 16, 17, 18, 21};
    static uint8_t other[MOST];
    uint64_t state = 0;
    fuzz_descs(data, size);
    if (!size || size > MOST) return;
    const int is_short = memchr(short_ones, *data % 22, sizeof short_ones) != NULL;
    for (size_t i = 0; i < size; i++) state = (state + data[i]) * 0x9e3779b97f4a7c15u;
    for (int k = 0; k < N_OTHERS; k++) {
        const size_t n_bytes = k % 4 ? size : RANDOM;
        memcpy(other, data, size);
        for (size_t i = 0; i < (k % 4 ? 1 + (size_t)k % 3 : RANDOM); i++) {
            state = (state + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
            other[k % 4 ? (state >> 40) % size : i] = (uint8_t)(state >> 32);
        }
        if (!is_short || k % 2 == 0) *other = short_ones[(state >> 24) % sizeof short_ones];
        fuzz_descs(other, n_bytes);
    }
}

FUZZ_TARGET(fuzz_near_descs)
