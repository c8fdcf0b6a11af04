/* fuzz_session.c - random calls of an open session: each is accepted or refused by a few rules,
 * whatever the plan, and rows and states are those of plain arrays.
 *
 * Bytes decide a valid trainer (trainer.h), a list of calls and a budget.  The calls run by a plan
 * that keeps everything, then by the budget's plan.  In some inputs a function of the trainer fails,
 * or a call of the device: what the error says to do is done, states are then those before the step
 * or after it, and the other calls go on.  In some inputs up to three words of the desc are changed:
 * it is refused with words, or runs.
 *
 * make -f .ci/checks.mk fuzz runs it with clang's libFuzzer; test_random_calls.c runs random bytes and
 * tests/corpus/session. */
#ifndef FUZZ_REPLAY
#define FUZZ_BYTES
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_TEST_OWN_MAIN
#endif
#include "memo.h"
#include "memo_plan.h"
#include "extras/memo_look.h"
#include "owned.h"
#include "trainer.h"
#include "fuzz.h"

enum { ROWS = 40, CALLS_MAX = 14, MASKS = 3 };

typedef enum call_kind {
    RUN,
    LOOK, /* a forward alone */
    UPDATE,
    SKIP,
    FLUSH,
    READ,
    WRITE,
    FILL,
    SET_VALUES,
    PIECES,  /* a micro-batch that ends too early, or with a call out of order */
    OUTSIDE, /* asks for addresses while no layer is open */
    SLEEP,   /* and wakes */
    SNAPSHOT /* of the states; if one is under way, it ends */
} call_kind;

typedef struct call {
    call_kind what;
    int32_t how;
    memo_batch batch;
    uint64_t key;         /* of the values and bytes that it gives */
    int has_values;       /* the batch gives a rate */
    int32_t masks;        /* which of the choices of states, or as the step has; -1: all states */
    int32_t layer, state; /* also where a function fails */
    int64_t offset, n_bytes;
    int32_t fails_in; /* a memo_pass, _AFTER: the update; -1: nowhere */
} call;

typedef uint64_t state_words[T_LAYERS_MAX + 2][T_N_STATES][T_STATE_WORDS_MAX];

/* What calls before have left, and the same in plain arrays. */
static struct {
    t_plain plain;
    state_words before; /* the latest update or fill */
    t_sums sums;        /* when the list of visits began */
    uint64_t rate, given_rate;
    int has_given_rate, is_over /* an update comes next */, has_part, is_again;
    int has_error;  /* of a call that has no status */
    int is_snapped; /* a snapshot is under way */
    int32_t turn;   /* the next; above 0: micro-batches are in flight */
    memo_batch batch;
    const uint32_t* masks; /* of the step */
    const call* now;
    int has_struck;       /* a function of the trainer has failed in this call */
    memo_faults* faults;  /* NULL: none */
    int is_timed, n_told; /* n_told: calls that have failed by a fault */
} at;

/* Choices of the states that a step uses; the first: all. */
static uint32_t choices[MASKS][T_LAYERS_MAX + 2];
static int has_choices;

/* --- the functions of the trainer --- */

static void strike(memo_session* s, memo_pass pass, int32_t layer) {
    if (!at.now || at.now->fails_in != (int32_t)pass || at.now->layer != layer) return;
    memo_session_fail(s, MEMO_STATUS_DEVICE, "the trainer's own");
    at.has_struck = 1;
}
static void failing_forward(void* user, memo_session* s, int32_t layer) {
    t_forward(user, s, layer);
    strike(s, MEMO_PASS_FORWARD, layer);
}
static void failing_backward(void* user, memo_session* s, int32_t layer) {
    strike(s, MEMO_PASS_BACKWARD, layer);
    t_backward(user, s, layer);
}
static void failing_update(void* user, memo_session* s, int32_t layer) {
    t_update(user, s, layer);
    strike(s, MEMO_PASS_AFTER, layer);
}

static uint64_t fill_word(uint64_t key, int32_t layer, int32_t state, int64_t k) {
    return t_mix(key + (uint64_t)(100 * layer + state), (uint64_t)k);
}
static int is_filled(const trainer* t, int32_t layer, int32_t i) {
    return t->states[i].uses & MEMO_STATE_UPDATE && t_has(t, layer, i) &&
           t_home(t, layer, i) == layer;
}
typedef struct fill_job {
    uint64_t *words, key;
    int32_t layer, state;
    int64_t n;
} fill_job;
static memo_status run_fill(void* arguments, MEMO_UNUSED memo_error* e) {
    const fill_job* j = (const fill_job*)arguments;
    for (int64_t k = 0; k < j->n; k++) j->words[k] = fill_word(j->key, j->layer, j->state, k);
    return MEMO_STATUS_OK;
}
static void fill(void* user, memo_session* s, int32_t layer) {
    trainer* t = (trainer*)user;
    for (int32_t i = 0; i < t->desc.n_states; i++) {
        if (!is_filled(t, layer, i)) continue;
        fill_job j = {(uint64_t*)memo_session_get_state(s, layer, i), at.now->key, layer, i,
                      t->states[i].size_bytes / 8};
        if (!j.words) return;
        if (!t->host || t->desc.update_on == MEMO_UPDATE_HOST)
            (void)run_fill(&j, NULL);
        else
            memo_session_fail(s,
                              memo_host_device_launch(t->host, t->desc.compute_stream, run_fill, &j,
                                                      (int64_t)sizeof j, &error),
                              error.message);
    }
    strike(s, MEMO_PASS_AFTER, layer);
}

/* --- inputs --- */

static void draw_trainer(trainer* t) {
    memo_session_desc* d = &t->desc;
    t_init_random(t, ROWS);
    const int64_t kind = memo_test_int(0, 3);
    if (kind == 1) t_take_order(t);
    if (kind == 2 && !d->n_group) { /* all tensors, with late rows and buffers */
        d->n_tensors = T_N_TENSORS, d->n_buffers = T_N_BUFFERS;
        d->routed_rows_layer = ROWS;
        d->routed_rows_all = d->n_layers * ROWS;
        memset(t->kinds, 0, sizeof t->kinds);
        t->tensors[T_X].row_bytes = T_ROW_BYTES;
        t->tensors[T_INPUT].scope = MEMO_INPUT;
        if (!d->slice_rows) d->slice_rows = 4 * memo_test_int(2, 5);
        if (memo_test_int(0, 1)) {
            d->n_states = d->update_may = 0;
            d->states = NULL, d->update = NULL, d->update_host = NULL;
            d->update_on = MEMO_UPDATE_PLANNED;
        }
    }
    if (memo_test_int(0, 2) == 0) t->states[S_MOMENTS].uses |= MEMO_STATE_ALONE;
    if (memo_test_int(0, 2) == 0) t->states[S_FROZEN].uses = MEMO_STATE_ALONE;
    if (d->n_states && d->update_on == MEMO_UPDATE_DEVICE && memo_test_int(0, 2) == 0) {
        const uint32_t where = MEMO_STATE_FIRST | MEMO_STATE_LAST | (memo_test_int(0, 1) ? 2u : 0u);
        for (int i = S_FIRST; i <= S_FIRST_GRADIENTS; i++)
            t->states[i].uses |= MEMO_STATE_SHARED, t->states[i].kinds = where;
        d->update_host = NULL;
    }
    has_choices = (int)memo_test_int(0, 1);
    for (int k = 0; k < MASKS; k++)
        for (int l = 0; l < T_LAYERS_MAX + 2; l++) {
            uint32_t out = memo_test_int(0, 1) ? 1u << memo_test_int(0, T_N_STATES - 1) : 0;
            if (memo_test_int(0, 2) == 0)
                out |= 1u << S_GRADIENTS | 1u << S_FIRST_GRADIENTS | 1u << S_LAST_GRADIENTS;
            choices[k][l] = k ? ~out : ~0u;
            for (int i = 0; i < T_N_STATES && l; i++) /* SHARED ones: in all layers, or none */
                if (t->states[i].uses & MEMO_STATE_SHARED)
                    choices[k][l] = (choices[k][l] & ~(1u << i)) | (choices[k][0] & 1u << i);
        }
    if (memo_test_int(0, 1)) d->update_may &= ~MEMO_MAY_NOT_PASS;
    d->forward = failing_forward;
    d->backward = failing_backward;
    if (d->update) d->update = failing_update;
    d->is_unadvised = 1;
}

static void draw_call(const trainer* t, call* c) {
    static const uint8_t kinds[] = {RUN,    RUN,     RUN,    RUN,    RUN,      RUN,
                                    RUN,    UPDATE,  UPDATE, UPDATE, LOOK,     UPDATE,
                                    SKIP,   FLUSH,   READ,   WRITE,  FILL,     SET_VALUES,
                                    PIECES, OUTSIDE, SLEEP,  SLEEP,  SNAPSHOT, SNAPSHOT};
    memset(c, 0, sizeof *c);
    c->what = (call_kind)kinds[memo_test_int(0, (int64_t)sizeof kinds - 1)];
    c->how = (int32_t)memo_test_int(0, 7);
    c->key = memo_test_random();
    c->has_values = memo_test_int(0, 3) > 0;
    c->batch.shape = (int32_t)memo_test_int(0, t->desc.n_shapes - 1);
    if (c->what == LOOK) c->batch.is_forward_only = 1;
    if (c->how % 3 == 0) c->batch.n_rows = memo_test_int(1, ROWS); /* at times too many */
    c->batch.more_follow = (int32_t)memo_test_int(0, 2) == 0;
    c->masks = has_choices ? (int32_t)memo_test_int(-1, MASKS - 1) : -1;
    c->layer = (int32_t)memo_test_int(-1, t->desc.n_layers);
    c->state = (int32_t)memo_test_int(0, T_N_STATES - 1);
    const int64_t n = t->states[c->state].size_bytes;
    c->offset = memo_test_int(0, n);
    c->n_bytes = memo_test_int(0, n - c->offset) + (c->how == 7); /* at times one too many */
    c->fails_in = -1;
    if (memo_test_int(0, 7) == 0)
        c->fails_in = (int32_t)(memo_pass[]){MEMO_PASS_FORWARD, MEMO_PASS_BACKWARD,
                                             MEMO_PASS_AFTER}[memo_test_int(0, 2)];
}

/* --- which calls are legal --- */

static int is_forward_only(const trainer* t, const memo_batch* b) {
    return b->is_forward_only || t->shapes[b->shape].is_forward_only;
}
static int has_turns(const trainer* t, const memo_batch* b) {
    return t->desc.n_order && !t->shapes[b->shape].is_forward_only;
}
static int64_t rows_of(const trainer* t, const memo_batch* b) {
    return b->n_rows ? b->n_rows : t->shapes[b->shape].n_rows;
}
/* What no micro-batch changes, if it is refused. */
static int is_batch(const trainer* t, const memo_batch* b) {
    const memo_turn* due = &t->order[at.turn];
    if (rows_of(t, b) > t->shapes[b->shape].n_rows) return 0;
    if (!t->desc.n_order) return 1;
    if (at.turn && (b->shape != at.batch.shape || rows_of(t, b) != rows_of(t, &at.batch) ||
                    b->more_follow != at.batch.more_follow))
        return 0;
    if (!has_turns(t, b)) return 1;
    return !b->is_forward_only && !memcmp(&b->turn, due, sizeof *due);
}
/* All micro-batches of a step use the same states. */
static int is_masks(const trainer* t, const memo_batch* b) {
    if (!t->desc.n_states) return !b->states;
    if (is_forward_only(t, b) || !(at.has_part || at.turn)) return 1;
    for (int32_t l = MEMO_LAYER_FIRST; l <= t->desc.n_layers; l++)
        for (int32_t i = 0; i < t->desc.n_states; i++)
            if (t_has(t, l, i) &&
                ((b->states ? b->states[l + 1] : ~0u) ^ (at.masks ? at.masks[l + 1] : ~0u)) >> i &
                    1)
                return 0;
    return 1;
}
static int run_is_legal(const trainer* t, const memo_batch* b) {
    if (!is_batch(t, b) || !is_masks(t, b)) return 0;
    return at.turn || !t->desc.n_states || (!at.is_over && (!at.is_again || is_forward_only(t, b)));
}
static int may_fuse(const trainer* t) { return (t->desc.update_may & MEMO_MAY_FUSE) != 0; }

static int is_legal(const trainer* t, const call* c) {
    const int has_states = t->desc.n_states > 0;
    if (at.turn) return 0;
    switch (c->what) {
    case UPDATE: return has_states && at.is_over;
    case SET_VALUES: return has_states && at.is_over && !may_fuse(t);
    case FILL:
    case SKIP: return !at.is_over || !may_fuse(t);
    case WRITE:
        if (has_states && t->states[c->state].uses & MEMO_STATE_GRADIENT)
            return 0; /* fall through */
    case READ:
        if (!has_states || (at.is_over && may_fuse(t))) return 0;
        if (c->what == READ && t->states[c->state].uses & MEMO_STATE_GRADIENT && !at.is_over &&
            !at.has_part)
            return 0; /* it has no bytes */
        return !t_has(t, c->layer, c->state) ||
               c->offset + c->n_bytes <= t->states[c->state].size_bytes;
    default: return 1;
    }
}

/* The status is what the rules say; a fault that has struck is an error.  Returns 1: the call has
 * done what it should. */
static int is_done(const trainer* t, memo_status status, int is_legal_call) {
    const int has_failed = at.has_struck || (at.faults && at.faults->failed);
    CHECK_CASE(status || is_legal_call, "call %d, illegal", (int)at.now->what);
    CHECK_CASE(!status || !is_legal_call || has_failed, "call %d: %s", (int)at.now->what,
               error.message);
    CHECK_CASE(status || !at.has_struck || t->desc.update_on == MEMO_UPDATE_HOST, "call %d: OK",
               (int)at.now->what);
    if (status) CHECK(error.status == status && error.message[0]);
    at.n_told += status && is_legal_call;
    return !status;
}

/* --- what they do --- */

static int tells_loss(void) {
    return strstr(error.message, "set the states of all layers again") != NULL;
}

static void synchronize(const trainer* t) {
    if (t->host) CHECK_OK(memo_stream_synchronize(t->host, t->desc.compute_stream, &error));
}

static memo_status transfer(const trainer* t, memo_session* s, int is_write, state_words words) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t layer = MEMO_LAYER_FIRST; layer <= t->desc.n_layers; layer++)
        for (int32_t i = 0; i < t->desc.n_states && !status; i++) {
            uint64_t* of = words[t_home(t, layer, i) + 1][i];
            if (t->states[i].uses & MEMO_STATE_GRADIENT || !t_has(t, layer, i)) continue;
            const int64_t n = t->states[i].size_bytes;
            status = is_write ? memo_session_write_state(s, layer, i, 0, of, n, &error)
                              : memo_session_read_state(s, layer, i, 0, of, n, &error);
        }
    return status;
}
static int same_states(const trainer* t, state_words a, state_words b) {
    for (int32_t layer = MEMO_LAYER_FIRST; layer <= t->desc.n_layers; layer++)
        for (int32_t i = 0; i < t->desc.n_states; i++)
            if (!(t->states[i].uses & MEMO_STATE_GRADIENT) && t_has(t, layer, i) &&
                t_home(t, layer, i) == layer &&
                memcmp(a[layer + 1][i], b[layer + 1][i], (size_t)t->states[i].size_bytes))
                return 0;
    return 1;
}

static void forget_fault(void) {
    if (at.faults) at.faults->failing_call = 0, at.faults->failed = NULL;
}

/* A new step begins, with states that are all of one step. */
static void recover(trainer* t, memo_session* s) {
    static state_words words;
    const int is_lost = tells_loss(), of_device = at.faults && at.faults->failed;
    forget_fault();
    at.has_struck = at.turn = at.has_given_rate = 0;
    at.now = NULL;
    if (!t->desc.n_states) return;
    if (is_lost) {
        if (!of_device) /* whose own state nobody may have seen */
            CHECK_ERROR(memo_session_skip_update(s, &error), INVALID_STATE, "set the states of");
        CHECK_OK(transfer(t, s, 1, at.plain.states));
    } else if (!at.is_over || !may_fuse(t)) {
        CHECK_OK(memo_session_skip_update(s, &error));
        at.is_over = 0;
    }
    if (is_lost) CHECK_OK(memo_session_skip_update(s, &error));
    if (is_lost || !at.is_over) {
        memcpy(words, at.plain.states, sizeof words);
        CHECK_OK(transfer(t, s, 0, words));
        const int is_after = same_states(t, words, at.plain.states);
        CHECK(is_after || (!is_lost && same_states(t, words, at.before)));
        if (!is_after) memcpy(at.plain.states, words, sizeof words);
        at.is_over = 0;
        t_drop_gradients(t, &at.plain);
    }
    at.has_part = at.is_again = 0;
}

/* Gradients of the step are lost. */
static void fail_list(trainer* t) {
    synchronize(t);
    t->sums = at.sums;
    at.is_again |= at.has_part && t->desc.n_states;
    at.has_part = at.turn = 0;
    t_drop_gradients(t, &at.plain);
}

/* A micro-batch, a group or a turn. */
static void run_turn(trainer* t, memo_session* s, memo_batch batch) {
    const int legal = run_is_legal(t, &batch);
    if (!at.turn) {
        synchronize(t);
        at.sums = t->sums;
        if (legal) at.batch = batch;
        if (legal && !is_forward_only(t, &batch)) at.masks = batch.states;
    }
    if (legal && batch.values) at.rate = *(const uint64_t*)batch.values;
    if (!is_done(t, memo_session_run(s, &batch, &error), legal)) {
        if (at.has_struck || (at.faults && at.faults->failed)) {
            const int is_of_update =
                !at.has_struck || at.now->fails_in == MEMO_PASS_AFTER || tells_loss();
            fail_list(t);
            if (is_of_update) recover(t, s);
        }
        return;
    }
    if (!is_forward_only(t, &batch) && t->desc.n_order) {
        at.turn = (at.turn + 1) % t->desc.n_order;
        if (at.turn) return;
    }
    const int is_one = t->shapes[batch.shape].is_forward_only;
    t->masks = batch.states;
    t_run_plain_call(t, &at.plain, is_one ? 1 : t_n_in_call(t, s), rows_of(t, &batch),
                     is_forward_only(t, &batch));
    if (is_forward_only(t, &batch)) return;
    at.has_part = batch.more_follow;
    at.is_over = !batch.more_follow && t->desc.n_states;
}

/* The states of a micro-batch: mostly those of its step. */
static const uint32_t* choose(const trainer* t, const call* c) {
    if ((at.has_part || at.turn) && c->how % 4 && c->what != LOOK) return at.masks;
    if (!t->desc.n_states && c->how % 4) return NULL;
    return c->masks < 0 ? NULL : choices[c->masks];
}

static void run_batch(trainer* t, memo_session* s, const call* c) {
    memo_batch batch = c->batch;
    if (c->has_values) batch.values = &c->key, batch.values_bytes = sizeof c->key;
    batch.states = choose(t, c);
    if (at.turn && c->how % 4) /* of the same micro-batches */
        batch.shape = at.batch.shape, batch.n_rows = at.batch.n_rows,
        batch.more_follow = at.batch.more_follow;
    do {
        memset(&batch.turn, 0, sizeof batch.turn);
        if (has_turns(t, &batch)) batch.turn = t->order[at.turn];
        if (c->how == 6 && has_turns(t, &batch)) batch.turn.micro_batch++;
        run_turn(t, s, batch);
        if (c->how == 1 || memo_test.failures || !at.now) break; /* a turn alone */
        if (at.turn && c->what == RUN)
            batch.shape = at.batch.shape, batch.n_rows = at.batch.n_rows,
            batch.more_follow = at.batch.more_follow, batch.states = at.masks;
    } while (at.turn && c->what == RUN && c->how != 6);
}

/* Forwards of some layers, then the end, or a call out of order and the end. */
static void run_pieces(trainer* t, memo_session* s, const call* c) {
    const int32_t n = c->layer < t->desc.n_layers - 1 ? c->layer : t->desc.n_layers - 1;
    memo_batch batch = c->batch;
    if (has_turns(t, &batch)) batch.turn = t->order[at.turn];
    if (at.turn) batch.shape = at.batch.shape, batch.n_rows = at.batch.n_rows;
    if (at.turn) batch.more_follow = at.batch.more_follow;
    batch.states = choose(t, c);
    const int legal = run_is_legal(t, &batch);
    if (!at.turn) {
        synchronize(t);
        at.sums = t->sums;
    }
    const int begins = memo_session_begin(s, &batch);
    CHECK_CASE(legal || !begins, "illegal");
    CHECK_CASE(begins || !legal || (at.faults && at.faults->failed), "refused");
    if (begins && batch.turn.pass != MEMO_PASS_BACKWARD)
        for (int32_t k = 0; k <= n * memo_session_get_slice(s).n_slices; k++) {
            const int32_t layer = k / memo_session_get_slice(s).n_slices;
            if (memo_session_forward_begin(s, layer)) t_forward(t, s, layer);
            if (k < n || (c->how % 2 && n < t->desc.n_layers - 1 && !t->desc.n_order))
                memo_session_forward_end(s, layer);
        }
    if (begins && c->how == 2) memo_session_backward_end(s, 0);
    if (begins && c->how == 3)
        CHECK_ERROR(memo_session_run(s, &batch, &error), INVALID_STATE, "inside a micro-batch");
    if (begins && c->how == 4)
        CHECK_ERROR(memo_session_update(s, &error), INVALID_STATE, "is open");
    const memo_status status = memo_session_end(s, &error);
    CHECK_CASE(begins || status, "it began with an error");
    if (!begins && !(at.faults && at.faults->failed)) return;
    fail_list(t);
    if ((at.faults && at.faults->failed) || (status && tells_loss())) recover(t, s);
}

static void keep_before(void) { memcpy(at.before, at.plain.states, sizeof at.before); }

static void update(trainer* t, memo_session* s, const call* c) {
    const int legal = is_legal(t, c);
    if (legal) {
        keep_before();
        t->rate = at.has_given_rate ? at.given_rate : at.rate;
        if (t->desc.update_on == MEMO_UPDATE_HOST) t->rate = 0;
    }
    const memo_status status = memo_session_update(s, &error);
    t->masks = at.masks;
    if (legal) t_update_plain(t, &at.plain);
    if (is_done(t, status, legal))
        at.is_over = at.has_part = at.has_given_rate = 0;
    else if (legal)
        at.is_over = 0, recover(t, s);
}

static void fill_states(trainer* t, memo_session* s, const call* c) {
    const int legal = is_legal(t, c);
    if (legal && t->desc.n_states) {
        keep_before();
        for (int32_t layer = MEMO_LAYER_FIRST; layer <= t->desc.n_layers; layer++)
            for (int32_t i = 0; i < t->desc.n_states; i++)
                for (int64_t k = 0; is_filled(t, layer, i) && k < t->states[i].size_bytes / 8; k++)
                    at.plain.states[layer + 1][i][k] = fill_word(c->key, layer, i, k);
        t_drop_gradients(t, &at.plain);
    }
    const memo_status status = memo_session_fill_states(s, fill, &error);
    if (legal && t->desc.n_states) at.is_over = at.has_part = at.is_again = at.has_given_rate = 0;
    if (!is_done(t, status, legal) && legal) recover(t, s);
}

/* A call that fails by a fault works the second time. */
static void transfer_part(trainer* t, memo_session* s, const call* c) {
    static uint64_t words[T_STATE_WORDS_MAX + 1];
    const int legal = is_legal(t, c), reads = c->what == READ, is_zero = !reads && c->how == 5;
    const int32_t home = t_home(t, c->layer, c->state);
    char* plain = (char*)at.plain.states[home + 1][c->state] + c->offset;
    for (int64_t k = 0; k <= T_STATE_WORDS_MAX; k++) words[k] = t_mix(c->key, (uint64_t)k);
    for (int is_again = 0; is_again < 2; is_again++) {
        const memo_status status =
            reads ? memo_session_read_state(s, c->layer, c->state, c->offset, words, c->n_bytes,
                                            &error)
                  : memo_session_write_state(s, c->layer, c->state, c->offset,
                                             is_zero ? NULL : words, c->n_bytes, &error);
        const int done = is_done(t, status, legal);
        if (!done && !legal) return;
        if (done) break;
        recover(t, s);
        if (at.is_over) return;
        at.now = c;
    }
    if (!t_has(t, c->layer, c->state)) return;
    if (!reads && is_zero)
        memset(plain, 0, (size_t)c->n_bytes);
    else if (!reads)
        memcpy(plain, words, (size_t)c->n_bytes);
    else if (!(t->states[c->state].uses & MEMO_STATE_GRADIENT))
        CHECK_CASE(!memcmp(plain, words, (size_t)c->n_bytes), "layer %d, state %d", (int)c->layer,
                   (int)c->state);
}

/* An error between micro-batches is that of the next call, which does nothing else. */
static void take_error(trainer* t, memo_session* s, const call* c) {
    const int legal = is_legal(t, c);
    memo_status status;
    if (c->what == RUN || c->what == LOOK) {
        status = memo_session_run(s, &c->batch, &error);
        if (at.turn) fail_list(t);
    } else if (c->what == UPDATE && legal)
        status = memo_session_update(s, &error);
    else if (c->what == SKIP && legal)
        status = memo_session_skip_update(s, &error);
    else if (c->what == FLUSH && legal)
        status = memo_session_flush(s, &error);
    else if (c->what == FILL && legal)
        status = memo_session_fill_states(s, fill, &error);
    else
        status = memo_session_end(s, &error);
    CHECK_ERROR(status, INVALID_ARGUMENT, "out of range");
    at.has_error = 0;
}

/* Somebody else uses the device's memory while the session sleeps.  What fails works the second
 * time. */
static void sleep_and_wake(trainer* t, memo_session* s, const call* c) {
    const int64_t n_bytes = memo_session_get_info(s).plan->device_bytes;
    void* other = NULL;
    for (int k = 0; !is_done(t, memo_session_sleep(s, &error), !at.turn); k++) {
        if (at.turn || k) return;
        forget_fault();
    }
    CHECK(!memo_session_get_info(s).arena);
    if (c->how % 2)
        CHECK_ERROR(memo_session_run(s, &c->batch, &error), INVALID_STATE, "wake comes next");
    else
        CHECK_ERROR(memo_session_update(s, &error), INVALID_STATE, "wake comes next");
    if (!memo_device_alloc(t->desc.device, n_bytes, &other, NULL)) {
        memset(other, 0x5a, (size_t)n_bytes);
        IGNORE(memo_device_free(t->desc.device, other, NULL));
    }
    for (int k = 0; !is_done(t, memo_session_wake(s, &error), 1); k++) {
        if (k) return;
        forget_fault();
        CHECK_ERROR(memo_session_flush(s, &error), INVALID_STATE, "wake comes next");
    }
    CHECK_ERROR(memo_session_wake(s, &error), INVALID_STATE, "does not sleep");
}

/* What a snapshot should write, and writes. */
static state_words snapped, written;
static memo_status write_words(MEMO_UNUSED void* user, int32_t layer, int32_t state, int64_t from,
                               const void* bytes, int64_t n_bytes, MEMO_UNUSED memo_error* e) {
    memcpy((char*)written[layer + 1][state] + from, bytes, (size_t)n_bytes);
    return MEMO_STATUS_OK;
}
static void finish_snapshot(const trainer* t, memo_session* s) {
    CHECK_OK(memo_session_finish_snapshot(s, &error));
    CHECK(same_states(t, written, snapped));
    at.is_snapped = 0;
}
static void snapshot(trainer* t, memo_session* s, const call* c) {
    static const memo_snapshot_desc desc = {write_words, NULL};
    const int legal = t->desc.n_states && !at.turn && !(at.is_over && may_fuse(t));
    if (at.is_snapped) {
        finish_snapshot(t, s);
        return;
    }
    const memo_status status = memo_session_snapshot(s, &desc, &error);
    if (is_done(t, status, legal)) {
        memcpy(snapped, at.plain.states, sizeof snapped);
        at.is_snapped = 1;
    } else if (legal) {
        recover(t, s);
        at.now = c;
    }
}

static void make_call(trainer* t, memo_session* s, const call* c) {
    memo_status status;
    at.now = c;
    at.has_struck = 0;
    if (at.has_error) take_error(t, s, c);
    switch (c->what) {
    case RUN:
    case LOOK: run_batch(t, s, c); return;
    case PIECES: run_pieces(t, s, c); return;
    case SNAPSHOT: snapshot(t, s, c); return;
    case SLEEP: sleep_and_wake(t, s, c); return;
    case UPDATE: update(t, s, c); return;
    case FILL: fill_states(t, s, c); return;
    case READ:
    case WRITE: transfer_part(t, s, c); return;
    case OUTSIDE:
        CHECK(!memo_session_get_address(s, -1, 0));
        CHECK(!memo_session_get_buffer(s, T_N_BUFFERS));
        if (c->how % 2) CHECK_ERROR(memo_session_end(s, &error), INVALID_ARGUMENT, "out of range");
        at.has_error = c->how % 2 == 0;
        return;
    case SKIP:
        status = memo_session_skip_update(s, &error);
        if (!is_done(t, status, is_legal(t, c))) break;
        if (!t->desc.n_states) return;
        t_drop_gradients(t, &at.plain);
        at.is_over = at.has_part = at.is_again = at.has_given_rate = 0;
        return;
    case SET_VALUES:
        status = memo_session_set_update_values(s, &c->key, sizeof c->key, &error);
        if (!is_done(t, status, is_legal(t, c))) return;
        at.given_rate = c->key;
        at.has_given_rate = 1;
        return;
    case FLUSH:
        status = memo_session_flush(s, &error);
        if (is_done(t, status, is_legal(t, c))) return;
    }
    if (at.has_struck || (at.faults && at.faults->failed)) recover(t, s);
}

/* --- a budget --- */

static int64_t most_bytes(const memo_step_plan* plan, int tier) {
    int64_t n = 0;
    for (; plan; plan = plan->next) {
        const int64_t of = tier ? plan->host_bytes : plan->device_bytes;
        if (of > n) n = of;
    }
    return n;
}
static int fits(const memo_step_plan* plan) {
    for (; plan; plan = plan->next)
        if (!plan->fits) return 0;
    return 1;
}

static void make_calls(trainer* t, memo_session* s, const call* calls, int n) {
    const call rest = {.what = RUN, .how = 2, .masks = -1, .batch = at.batch, .fails_in = -1};
    const call last = {.what = UPDATE, .fails_in = -1};
    static state_words words;
    for (int k = 0; k < n && !memo_test.failures; k++) make_call(t, s, &calls[k]);
    if (memo_test.failures) return;
    if (at.has_error) take_error(t, s, &last);
    if (at.turn) {
        call now = rest;
        now.batch = at.batch;
        make_call(t, s, &now);
    }
    if (at.is_over) make_call(t, s, &last);
    at.now = &last;
    if (at.faults) { /* whatever has failed was told */
        CHECK(!at.faults->failed || at.is_timed);
        at.faults->failing_call = 0;
    }
    if (at.is_snapped) finish_snapshot(t, s);
    if (t->desc.n_states) {
        memcpy(words, at.plain.states, sizeof words);
        CHECK_OK(transfer(t, s, 0, words));
        CHECK(same_states(t, words, at.plain.states));
    }
    synchronize(t);
    CHECK(!memcmp(&t->sums, &t->plain_sums, sizeof t->sums));
}

typedef struct budget {
    memo_policy policy;
    double alpha;
    int64_t more_bytes, host_share; /* beyond the least; of four, 0: no limit */
    int is_timed, on_stream, is_checked, spills;
    int64_t failing_call;
} budget;

/* The least device memory, and more. */
static memo_step_plan* plan_for(trainer* t, const budget* b) {
    memo_session_desc* d = &t->desc;
    memo_step_plan* plan = NULL;
    if (b->policy == MEMO_POLICY_KEEP) return step_plan_of(d, NULL);
    d->device_bytes = 1;
    plan = step_plan_of(d, NULL);
    if (!plan) return NULL;
    d->device_bytes = most_bytes(plan, 0) + b->more_bytes;
    if (b->host_share) d->host_bytes = most_bytes(plan, 1) * b->host_share / 4 + 1;
    memo_step_plan_destroy(plan);
    return step_plan_of(d, NULL);
}

static void run_budget(trainer* t, const budget* b, const call* calls, int n) {
    const memo_session_desc desc = t->desc;
    memo_session_desc* d = &t->desc;
    memo_session* s = NULL;
    memo_faults faults;
    memset(&at, 0, sizeof at);
    memset(&t->sums, 0, sizeof t->sums);
    memset(&t->plain_sums, 0, sizeof t->plain_sums);
    t->number = 0;
    t->waits = b->on_stream;
    d->policy = b->policy, d->alpha = b->alpha;
    d->is_checked = b->is_checked;
    if (b->spills) d->spill_directory = "/tmp";
    own_step_plan* plan = plan_for(t, b);
    if (plan && fits(plan)) {
        const memo_host_device_desc capacity = {.device_memory_bytes =
                                                    b->is_checked ? 0 : most_bytes(plan, 0)};
        own_device* host = new_device(capacity);
        memo_faults_init(&faults, host);
        d->device = &faults.device;
        if (b->on_stream) {
            t->host = host;
            d->computes_on_host = 0;
            CHECK_OK(memo_stream_create(host, "compute", 0, &d->compute_stream, &error));
        }
        faults.failing_call = b->failing_call;
        if (b->failing_call) at.faults = &faults;
        at.is_timed = b->is_timed;
        d->timed_steps = b->is_timed ? 2 : 0;
        const memo_status status = b->is_timed ? memo_session_create(d, &s, &error)
                                               : memo_session_open(d, plan, &s, &error);
        CHECK_CASE(!status || (at.faults && faults.failed) || b->is_timed, "%s", error.message);
        CHECK(!status == (s != NULL));
        if (s) make_calls(t, s, calls, n);
        memo_session_destroy(s);
        if (b->on_stream) memo_stream_destroy(host, d->compute_stream, NULL);
    }
    t->host = NULL;
    t->desc = desc;
}

/* --- changed descs --- */

/* Bytes at both ends of a row, in the first slice that is open. */
static void touch(const trainer* t, memo_session* s, int32_t layer) {
    for (int32_t i = 0; i < t->desc.n_tensors; i++) {
        char* row = (char*)memo_session_get_address(s, layer, i);
        if (row && t->tensors[i].row_bytes > 0) row[0] = row[t->tensors[i].row_bytes - 1] = 1;
    }
}
static void touch_forward(void* user, memo_session* s, int32_t layer) {
    memo_session_set_routed(s, layer, 1);
    touch((const trainer*)user, s, layer);
}
static void touch_backward(void* user, memo_session* s, int32_t layer) {
    const trainer* t = (const trainer*)user;
    touch(t, s, layer);
    for (int32_t i = 0; i < t->desc.n_buffers; i++) {
        char* bytes = (char*)memo_session_get_buffer(s, i);
        if (bytes) bytes[0] = 1;
    }
}
static void touch_recompute(void* user, memo_session* s, int32_t layer, int32_t tensor,
                            int64_t begin, int64_t end) {
    CHECK(begin >= 0 && begin < end && tensor >= 0);
    touch((const trainer*)user, s, layer);
}
static void touch_states(const trainer* t, void* const* states) {
    for (int32_t i = 0; i < t->desc.n_states; i++)
        if (states[i]) ((char*)states[i])[t->states[i].size_bytes - 1] = 1;
}
static void touch_update(void* user, memo_session* s, int32_t layer) {
    const trainer* t = (const trainer*)user;
    void* states[T_N_STATES] = {NULL};
    for (int32_t i = 0; i < t->desc.n_states; i++)
        if (t->states[i].uses & (MEMO_STATE_UPDATE | MEMO_STATE_GRADIENT) && t_has(t, layer, i))
            states[i] = memo_session_get_state(s, layer, i);
    touch_states(t, states);
}
static void touch_update_host(void* user, int32_t layer, void* const* states) {
    (void)layer;
    touch_states((const trainer*)user, states);
}

/* Another number in place of one of a struct. */
static void change_number(void* number, int n_bytes) {
    static const int64_t numbers[] = {0,  1,   2,   3,    4,         7,         8,         16,
                                      40, 512, 513, 4096, INT32_MAX, INT64_MAX, INT64_MIN, -1};
    const int64_t value = numbers[memo_test_int(0, 15)];
    const int32_t short_value = value > INT32_MAX   ? INT32_MAX
                                : value < INT32_MIN ? INT32_MIN
                                                    : (int32_t)value;
    if (n_bytes == 8)
        memcpy(number, &value, 8);
    else
        memcpy(number, &short_value, 4);
}

/* One to three words of the desc or its tables; no more than the tables have. */
static void change_words(trainer* t) {
    memo_session_desc* d = &t->desc;
    const memo_session_desc were = *d;
    for (int64_t k = memo_test_int(1, 3); k > 0; k--) {
        memo_item* tensor = &t->tensors[memo_test_int(0, were.n_tensors - 1)];
        memo_state* state = &t->states[memo_test_int(0, T_N_STATES - 1)];
        memo_shape* shape = &t->shapes[memo_test_int(0, 1)];
        memo_session_buffer* buffer = &t->buffers[memo_test_int(0, T_N_BUFFERS - 1)];
        memo_turn* turn = &t->order[memo_test_int(0, were.n_order ? were.n_order - 1 : 0)];
        const struct {
            void* at;
            int n_bytes;
        } words[] = {{&d->n_tensors, 4},
                     {&d->n_layers, 4},
                     {&d->n_rows, 8},
                     {&d->tile_rows, 8},
                     {&d->slice_rows, 8},
                     {&d->routed_rows_layer, 8},
                     {&d->n_buffers, 4},
                     {&d->routed_rows_all, 8},
                     {&d->micro_batches, 4},
                     {&d->n_group, 4},
                     {&d->n_order, 4},
                     {&d->n_shapes, 4},
                     {&d->n_states, 4},
                     {&d->update_on, 4},
                     {&d->update_may, 4},
                     {&d->states_stay, 4},
                     {&d->device_bytes, 8},
                     {&d->host_bytes, 8},
                     {&d->disk_bytes, 8},
                     {&d->reserve_bytes, 8},
                     {&d->policy, 4},
                     {&d->is_checked, 4},
                     {&tensor->row_bytes, 8},
                     {&tensor->away, 4},
                     {&tensor->scope, 4},
                     {&tensor->is, 4},
                     {&tensor->kinds, 4},
                     {&state->size_bytes, 8},
                     {&state->uses, 4},
                     {&state->kinds, 4},
                     {&shape->n_rows, 8},
                     {&shape->is_forward_only, 4},
                     {&buffer->size_bytes, 8},
                     {&buffer->row_bytes, 8},
                     {&buffer->first, 4},
                     {&buffer->first_layer, 4},
                     {&buffer->last, 4},
                     {&buffer->last_layer, 4},
                     {&buffer->kinds, 4},
                     {&turn->micro_batch, 4},
                     {&turn->chunk, 4},
                     {&turn->pass, 4},
                     {&t->kinds[memo_test_int(0, were.n_layers - 1)], 4}};
        const int64_t i = memo_test_int(0, (int64_t)(sizeof words / sizeof *words) - 1);
        change_number(words[i].at, words[i].n_bytes);
    }
    if (d->n_tensors > were.n_tensors) d->n_tensors = were.n_tensors;
    if (d->n_layers > T_LAYERS_MAX) d->n_layers = T_LAYERS_MAX;
    if (d->n_states > were.n_states) d->n_states = were.n_states;
    if (d->n_buffers > were.n_buffers) d->n_buffers = were.n_buffers;
    if (d->n_order > were.n_order) d->n_order = were.n_order;
    if (d->n_shapes > 2) d->n_shapes = 2;
    if (d->slice_rows > 0 && d->n_rows > 1000) d->n_rows = 1000; /* no end of slices */
    d->forward = touch_forward, d->backward = touch_backward, d->recompute = touch_recompute;
    if (d->update) d->update = touch_update;
    if (d->update_host) d->update_host = touch_update_host;
}

/* A changed desc is refused with words; else its calls are, or work. */
static void run_changed(trainer* t, const budget* b, const call* calls, int n) {
    static char bytes[4096];
    memo_session_desc* d = &t->desc;
    own_session* s = NULL;
    own_step_plan* plan = NULL;
    memo_status status;
    memset(&at, 0, sizeof at);
    d->policy = b->policy, d->alpha = b->alpha;
    change_words(t);
    error.message[0] = 0;
    status = memo_session_plan(d, NULL, &plan, &error);
    if (!status && fits(plan)) status = memo_session_open(d, plan, &s, &error);
    CHECK(!status || (error.status == status && error.message[0]));
    for (int k = 0; k < n && s; k++) {
        const call* c = &calls[k];
        memo_batch batch = c->batch;
        error.message[0] = 0;
        if (batch.shape < d->n_shapes && d->n_order > 0) batch.turn = t->order[k % d->n_order];
        switch (c->what) {
        case UPDATE: status = memo_session_update(s, &error); break;
        case SKIP: status = memo_session_skip_update(s, &error); break;
        case FLUSH: status = memo_session_flush(s, &error); break;
        case FILL: status = memo_session_fill_states(s, touch_update, &error); break;
        case READ:
        case WRITE:
            status = memo_session_read_state(s, c->layer, c->state, c->offset, bytes,
                                             c->n_bytes < 4096 ? c->n_bytes : 4096, &error);
            break;
        default: status = memo_session_run(s, &batch, &error);
        }
        CHECK(!status || error.message[0]);
    }
}

/* What a failed input does. */
static void show(const trainer* t, const budget* b, const call* calls, int n) {
    static const char* const names[] = {"run",     "look",  "update",  "skip",       "flush",
                                        "read",    "write", "fill",    "set_values", "pieces",
                                        "outside", "sleep", "snapshot"};
    const memo_session_desc* d = &t->desc;
    printf(
        "# %d tensors, %d layers, slices of %lld, n_group %d, %d turns, %d shapes (%lld rows%s), "
        "%d states, update_may %d, on %d\n",
        (int)d->n_tensors, (int)d->n_layers, (long long)d->slice_rows, (int)d->n_group,
        (int)d->n_order, (int)d->n_shapes, (long long)t->shapes[1].n_rows,
        t->shapes[1].is_forward_only ? ", forward only" : "", (int)d->n_states, (int)d->update_may,
        (int)d->update_on);
    printf("# policy %s, %lld more bytes, host %lld/4%s%s%s%s, device call %lld fails\n",
           memo_policy_name(b->policy), (long long)b->more_bytes, (long long)b->host_share,
           b->spills ? ", a file" : "", b->is_timed ? ", timed" : "",
           b->on_stream ? ", a stream" : "", b->is_checked ? ", checked" : "",
           (long long)b->failing_call);
    for (int k = 0; k < n; k++)
        printf(
            "# %2d %s: how %d, shape %d, rows %lld, masks %d, more %d, layer %d, state %d, bytes "
            "%lld from %lld, fails in pass %d\n",
            k, names[calls[k].what], (int)calls[k].how, (int)calls[k].batch.shape,
            (long long)calls[k].batch.n_rows, (int)calls[k].masks, (int)calls[k].batch.more_follow,
            (int)calls[k].layer, (int)calls[k].state, (long long)calls[k].n_bytes,
            (long long)calls[k].offset, (int)calls[k].fails_in);
}

static void fuzz_session(const uint8_t* data, size_t size) {
    static trainer t;
    static call calls[CALLS_MAX];
    const budget keeps = {.policy = MEMO_POLICY_KEEP};
    const uint64_t state = memo_test.state;
    budget b = {0};
    memo_test.bytes = data, memo_test.n_bytes = size;
    memo_test.state = 0; /* behind the bytes */
    draw_trainer(&t);
    b.policy = (memo_policy[]){MEMO_POLICY_RECOMPUTE, MEMO_POLICY_SWAP,
                               MEMO_POLICY_ALPHA}[memo_test_int(0, 2)]; /* MEMO searches long */
    b.alpha = memo_test_int(0, 1) ? -1 : 0.125 * (double)memo_test_int(0, 8);
    b.more_bytes = memo_test_int(0, 2) * memo_test_int(0, 200) * 100;
    b.host_share = memo_test_int(0, 2) ? 0 : memo_test_int(1, 4);
    b.spills = b.host_share && memo_test_int(0, 1);
    b.is_timed = b.policy == MEMO_POLICY_ALPHA && b.alpha < 0 && memo_test_int(0, 3) == 0;
    b.on_stream = (int)memo_test_int(0, 1);
    b.is_checked = memo_test_int(0, 7) == 0;
    b.failing_call = memo_test_int(0, 3) ? 0 : memo_test_int(1, 250);
    const int n = (int)memo_test_int(1, CALLS_MAX);
    for (int k = 0; k < n; k++) draw_call(&t, &calls[k]);
    if (memo_test_int(0, 5) == 0) {
        run_changed(&t, &b, calls, n);
    } else {
        memo_test.n_bytes = 0;
        run_budget(&t, &keeps, calls, n);
        if (memo_test.failures) printf("# by the plan that keeps everything:\n");
        if (!memo_test.failures) run_budget(&t, &b, calls, n);
    }
    if (memo_test.failures) show(&t, &b, calls, n);
    memo_test.n_bytes = 0;
    memo_test.state = state;
#ifndef FUZZ_REPLAY
    fflush(stdout);
    FUZZ_CHECK(!memo_test.failures);
#endif
}

FUZZ_TARGET(fuzz_session)
