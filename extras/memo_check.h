/* memo_check.h - has memo changed no bit of a trainer? Which of its tensors must it keep? To be
 * asked before it trains.
 *
 * EXAMPLE.  desc: of the session that the trainer is about to create.  check: what the trainer
 * changes outside of it.
 *
 *     #define MEMO_IMPLEMENTATION             // in exactly one translation unit
 *     #define MEMO_PLAN_IMPLEMENTATION        // in the same unit
 *     #define MEMO_CHECK_IMPLEMENTATION       // in the same unit
 *     #include "extras/memo_check.h"          // includes memo_plan.h; link with -lpthread -lm
 *
 *     if (memo_session_verify(&desc, &check, &error)) fprintf(stderr, "%s\n", error.message);
 *
 * License: MIT.  Language: C99 that is also C++11. */
#ifndef MEMO_CHECK_H
#define MEMO_CHECK_H

#ifdef MEMO_CHECK_IMPLEMENTATION /* checked sessions run updates both ways */
#define MEMO_CHECK_COMES
#endif
#include "memo_plan.h"

#if MEMO_VERSION_MAJOR != 0 || MEMO_VERSION_MINOR != 5
#error "memo_check.h: memo.h is of another release; use the memo.h of the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes outside of the session that a micro-batch changes and that matter afterwards: gradients
 * that add up, a loss, the state of a generator, a step number.  They are memory of the device, or
 * of the host if the calling thread computes. */
typedef struct memo_verify_output {
    const char* name; /* shown in messages; borrowed, as the bytes are */
    void* address;
    int64_t size_bytes;
    memo_type type;   /* of its numbers */
    int32_t n_layers; /* equal parts, one of each layer, as in (L, C, C); 0: it is of no layer */
} memo_verify_output;

/* What a check cannot see by itself.  All zero: nothing, so that gradients are states. */
typedef struct memo_verify_desc {
    const memo_verify_output* outputs;
    int32_t n_outputs;
    /* A step of the trainer, with what lies between its micro-batches: memo_session_run of each,
     * then memo_session_update.  user: the desc's.  NULL: desc.micro_batches alike, then the
     * update, without memo_batch.values. */
    memo_status (*train)(void* user, memo_session* session, memo_error* error);
    /* Called with 1 before each micro-batch, or step, of memo_session_verify, with 0 after it.  The
     * trainer takes care of what `outputs` does not list.  It may leave out its communication
     * between the two.  NULL: nothing. */
    void (*verifying)(void* user, memo_session* session, int32_t begins);
    /* The norm of all gradients, or another number that follows from all bytes that the update
     * reads, and is the same for the same bytes.  memo_session_verify calls it before each run, and
     * when the outputs have their bytes again.  Another number is an error: `outputs` lacks bytes.
     * The function waits for its own work.  NULL: none. */
    double (*norm)(void* user);
} memo_verify_desc;

/* Has memo changed no bit? Call this once, before memo_session_create, with inputs and rows of
 * which a kept step fits in a checked session.  All ranks call it.  check NULL: all zero.
 *
 * A micro-batch of the first shape with a backward runs in sessions of its own: twice in a checked
 * session, then with every tensor kept, with half of the rows swapped and half recomputed, and by
 * the desc's policy and budgets, planned by estimated times.  The run with half of the rows is left
 * out if it does not fit host memory.  Outputs and gradients among states must have the same bits
 * each time.  In slices, kept outputs are also compared with outputs of a layer at once, whose sums
 * have another order: both may differ by a hundredth of the norm, in 16 bits by a tenth.
 *
 * With states and an update, three steps follow: first in a checked session, then with the states
 * where the desc's budgets allow, and with as little device memory as works; and for each moment
 * that desc.update_may allows.  All states must have the same bits each time.  If the desc has
 * several micro-batches, a gradient must differ after one and after two of them: a backward adds.
 *
 * Each run begins with the same outputs, which have their bytes again afterwards.  States begin
 * with small numbers, those that the update alone uses with positive ones.
 *
 * So verify finds what a checked session cannot see: a backward that reads a layer that has ended,
 * gradients that are zeroed in the wrong slice, a step number or a norm that an update finds
 * elsewhere than in memo_batch.values.  Errors: INVALID_ARGUMENT (the output or state, layer and
 * number that differ first, and in which run; or nothing to compare); INFEASIBLE (a kept step does
 * not fit); errors of the session. */
MEMO_TRY memo_status memo_session_verify(const memo_session_desc* desc,
                                         const memo_verify_desc* check, memo_error* error);

/* Which tensors does the backward need, and what may become of them?  Start a port with every
 * tensor MEMO_KEEP, call this before memo_session_create, and paste what is appended to text in
 * place of your table: a comment with what was seen, then a line of C for each tensor:
 *
 *     MEMO_ITEM("hidden", 1024, MEMO_ROWS), // MEMO_KEEP
 *
 * ends with what the desc has, and says why if the tensor is not needed, which bytes of it nobody
 * writes, and how many rows a call of `recompute` must have.  Tensors that come with another one
 * (MEMO_WITH) follow it, so the order may change.  check as in memo_session_verify, whose outputs
 * and gradients among states must show what a backward reads; give random weights and inputs.
 *
 * It runs micro-batches of the first shape with a backward in checked sessions of their own, each
 * layer at once, with every tensor on the device: two to compare, then one or two for each tensor.
 * There each row of the tensor has the bytes of the row before it when the backward of a layer
 * begins; if that changes no result, it has NaN (memo_session_desc.is_checked).  A tensor of small
 * integers gets other rows alone, because a kernel may use them as addresses; if all of these are
 * alike it is taken as read.  In the last run the first layer of each kind calls `recompute` for
 * each tensor, in a few runs of rows, while that tensor and later ones are NaN; these rows alone
 * must have the forward's bits.  `recompute` leaves alone what it does not know.  EDGE tensors keep
 * their line.  Outputs have their bytes again afterwards.
 *
 * Waits for the compute stream in every layer.  Takes what a checked session takes, and twice a
 * layer's tensors in host memory.  All ranks call it; each appends what its rank has seen.  Errors:
 * INVALID_ARGUMENT (nothing to compare; two micro-batches differ); INFEASIBLE (a kept step does
 * not fit: give fewer rows); OUT_OF_HOST_MEMORY; errors of the session. */
MEMO_TRY memo_status memo_session_describe(const memo_session_desc* desc,
                                           const memo_verify_desc* check, memo_text* text,
                                           memo_error* error);

/* Updates both ways.  A checked session (is_checked, MEMO_CHECK=1) runs the update of one layer a
 * step, in turn, twice from the same bytes, if this header comes before memo_plan.h's
 * implementation: where the plan has it and where a pass would, or in a pass twice.  Both must give
 * the same states, so `update` may read nothing else but memo_session_get_batch().values.  Of all
 * ranks it is the same layer, so both runs may communicate.  Takes the states of a layer once more,
 * on the host.
 *
 * Lets a checked session that is open look at bytes of the trainer, too: `recompute` must change no
 * output, and a forward alone must not change the norm; outputs have the bytes again that they had
 * before the second update.  And the backward of layer 0 runs once more in one micro-batch, from
 * infinite gradients, which must stay so: a backward adds, and clears nothing.  It runs where
 * earlier micro-batches or slices have added and another micro-batch follows, if
 * memo_session_run calls desc.backward, in a session of one rank, without an order or groups.
 * outputs are copied, not their bytes.  A session that is not checked does not look.  Errors:
 * INVALID_ARGUMENT; OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_session_watch(memo_session* session, const memo_verify_desc* check,
                                        memo_error* error);

#ifdef __cplusplus
}
#endif

#endif /* MEMO_CHECK_H */

/* ==== implementation ======================================================================== */

#if defined(MEMO_CHECK_IMPLEMENTATION) && !defined(MEMO_CHECK_IMPLEMENTATION_DONE)
#define MEMO_CHECK_IMPLEMENTATION_DONE

#ifndef MEMO_PLAN_IMPLEMENTATION_DONE
#error "memo_check.h: define MEMO_IMPLEMENTATION and MEMO_PLAN_IMPLEMENTATION in the same unit"
#endif

MEMOI memo_status memoi_check_outputs(const memo_verify_desc* check, memo_error* error) {
    if (check->n_outputs < 0 || (check->n_outputs && !check->outputs))
        return MEMOB_INVALID(error,
                             "memo_verify_desc.outputs: NULL, or n_outputs is below 0; set the "
                             "table, or its length to 0");
    for (int32_t i = 0; i < check->n_outputs; i++)
        if (!check->outputs[i].address || check->outputs[i].size_bytes < 0 ||
            check->outputs[i].size_bytes > MEMOB_BYTES_MAX / check->n_outputs)
            return MEMOB_INVALID(error,
                                 "memo_verify_desc.outputs[%d]: `%.40s` has no address, or a wrong "
                                 "size_bytes; state where a micro-batch writes it",
                                 (int)i, memob_session_name(check->outputs[i].name));
    return MEMO_STATUS_OK;
}

/* Copies the outputs to bytes, or back, in the order of the compute stream, and waits.  Copies of a
 * device take pinned memory, a piece at a time; if there is none left they take bytes itself. */
MEMOI memo_status memoi_check_copy(const memo_verify_desc* check, const memo_session* s,
                                   char* bytes, int is_back, memo_error* error) {
    const int on_host = s->desc.computes_on_host;
    int64_t most = (int64_t)1 << 20, n_bytes;
    memo_status status = MEMO_STATUS_OK, freed = MEMO_STATUS_OK;
    void* pinned = NULL;
    if (on_host || memo_host_alloc(s->device, most, &pinned, NULL)) {
        pinned = NULL;
        most = MEMOB_BYTES_MAX;
    }
    for (int32_t i = 0; i < check->n_outputs; i++) {
        const int64_t size_bytes = check->outputs[i].size_bytes;
        for (int64_t at = 0; at < size_bytes && !status; at += n_bytes, bytes += n_bytes) {
            char* output = (char*)check->outputs[i].address + at;
            void* piece = on_host ? output : bytes;
            if (pinned) piece = pinned;
            n_bytes = memob_min(size_bytes - at, most);
            if (is_back) memmove(piece, bytes, (size_t)n_bytes);
            if (!on_host)
                status = memob_copy_now(s->device, s->desc.compute_stream, output, piece, n_bytes,
                                        is_back, error);
            if (!is_back) memmove(bytes, piece, (size_t)n_bytes);
        }
    }

    if (pinned) freed = memo_host_free(s->device, pinned, status ? NULL : error);
    return status ? status : freed;
}

/* ---- >>watch ------------------------------------------------------------------------------------
 * Knows: bytes of the trainer before and after a part of a checked step. */

/* The update of one layer a step, in turn, runs both ways from the same bytes: where the plan does
 * it and where a pass would; in a pass twice.  Outputs are as after the plan's. */
typedef struct memoi_watcher {
    memo_verify_desc check;
    memo_verify_output* outputs; /* (n_outputs) */
    uint64_t* hashes;            /* (n_outputs): before recomputation is tested */
    double norm;                 /* before a forward alone */
    char* saved;                 /* outputs, while an update runs for nothing */
    int32_t layer;               /* the engine's, of this step's update */
    int is_known;                /* the update has run: its results are in `seen` */
    char* bytes;                 /* of the layer's states before it */
    uint64_t* seen;              /* (n_states): hashes after it */
    int is_told;                 /* outputs are known, and no backward has run twice */
} memoi_watcher;

/* Recomputation leaves the outputs alone. */
MEMOI void memoi_watch_outputs(memo_session* s, int32_t step, int is_end, memo_error* found) {
    memoi_watcher* w = (memoi_watcher*)s->watcher;
    for (int32_t i = 0; i < w->check.n_outputs && !s->error.status && !found->status; i++) {
        const memo_verify_output* output = &w->outputs[i];
        const uint64_t hash = memob_checked_hash(s, (char*)output->address, output->size_bytes,
                                                 s->desc.computes_on_host);
        if (is_end && hash != w->hashes[i] && !s->error.status)
            (void)MEMOB_INVALID(
                found,
                "checked session: layer %d: recompute changes output `%.40s`; it may write tensors "
                "of its layer alone: let the forward count, and use no buffer that the backward "
                "reads as scratch",
                (int)memob_session_layer(s, step), memob_session_name(output->name));
        w->hashes[i] = hash;
    }
}

/* After a forward alone the update reads nothing new. */
MEMOI void memoi_watch_norm(memo_session* s, int is_end, memo_error* found) {
    memoi_watcher* w = (memoi_watcher*)s->watcher;
    const double now = w->check.norm ? w->check.norm(s->desc.user) : 0;
    if (is_end && memcmp(&now, &w->norm, sizeof now) != 0)
        (void)MEMOB_INVALID(found,
                            "checked session: norm was %.9g and is %.9g after a forward alone; add "
                            "gradients only if memo_session_get_batch gives is_forward_only 0",
                            w->norm, now);
    w->norm = now;
}

/* The moments of the update, and what else than the moment may change a state there. */
static const struct {
    int32_t may;
    const char *at_most, *at_least; /* why states differ, with most memory and with least */
} memoi_check_moments[] = {
    {0,
     "two runs of three steps differ, or a checked session changes it; `update`, or what lies "
     "between micro-batches, changes bytes that outputs lack, or reads bytes of a layer or a "
     "buffer that has ended, which are NaN",
     "the least device memory changes it; a pass uses a state that its uses lack, or an address "
     "kept from another visit"},
    {MEMO_MAY_DEFER,
     "an update that is deferred changes it; `update` reads a number that has changed since its "
     "step, such as a step number: take it from memo_session_get_batch().values",
     "an update that is deferred changes it with the least device memory; `update` uses a state "
     "that its uses lack"},
    {MEMO_MAY_FUSE,
     "a fused update changes it; `update` reads what is known when the step is over, such as a "
     "norm of all gradients: take that of the step before, or leave MEMO_MAY_FUSE out",
     "a fused update changes it with the least device memory; `update` uses a state that its uses "
     "lack"}};

/* The states that the layer's update uses in this step; 0: it is not updated on the device. */
MEMOI uint32_t memoi_watched_states(const memo_session* s, int32_t layer) {
    const memob_states* states = s->states;
    const uint32_t used = memob_states_used(states, MEMOB_UPDATE, layer);
    const uint32_t gradients = states->layers[layer].has & states->gradients;
    const int is_updated = !gradients || gradients & states->masks[layer];
    return is_updated && used & states->updated ? used : 0;
}

/* Copies the states of the open update to `bytes`, or back. */
MEMOI void memoi_watched_copy(memo_session* s, const memoi_watcher* w, int is_back) {
    char* bytes = w->bytes;
    for (uint32_t used = memoi_watched_states(s, w->layer); used; used &= used - 1) {
        const int32_t i = __builtin_ctz(used);
        char* at = (char*)memob_checked_state_address(s, w->layer, i);
        if (!memob_checked_copy(s, at, bytes, s->desc.states[i].size_bytes, is_back)) return;
        bytes += s->desc.states[i].size_bytes;
    }
}

/* What the open update has made.  why: it must be what has been seen; NULL: it is seen now. */
MEMOI void memoi_watched_look(memo_session* s, memoi_watcher* w, const char* why,
                              memo_error* found) {
    uint32_t made = memoi_watched_states(s, w->layer) & s->states->updated;
    w->is_known = !why;
    for (; made && !s->error.status && !found->status; made &= made - 1) {
        const int32_t i = __builtin_ctz(made);
        const uint64_t hash = memob_checked_hash(
            s, (char*)memob_checked_state_address(s, w->layer, i), s->desc.states[i].size_bytes, 0);
        if (why && hash != w->seen[i] && !s->error.status)
            (void)MEMOB_INVALID(found, "checked session: layer %d, state `%.32s`, update: %s",
                                (int)w->layer - 1, memob_session_name(s->desc.states[i].name), why);
        w->seen[i] = hash;
    }
}

/* Updates the layer, and gives the outputs their bytes again. */
MEMOI void memoi_watched_update(memo_session* s, memoi_watcher* w, memo_error* found) {
    if (memoi_check_copy(&w->check, s, w->saved, 0, found)) return;
    s->desc.update(s->desc.user, s, w->layer - 1);
    (void)memoi_check_copy(&w->check, s, w->saved, 1, found);
}

/* Updates the layer from `bytes` where no visit is open, and forgets its states. */
MEMOI void memoi_watched_try(memo_session* s, memoi_watcher* w, const char* why,
                             memo_error* found) {
    const uint32_t all = memoi_watched_states(s, w->layer);
    const char *bytes = w->bytes, *fault = NULL;
    uint32_t used = all;
    s->states->layers[w->layer].open_pass = 1 + MEMOB_UPDATE;
    s->is_deferred = s->has_update_values;
    for (; used && !s->error.status && !fault; used &= used - 1) {
        const int32_t i = __builtin_ctz(used);
        fault = memob_checked_place(s, w->layer, i, s->states->made >> i & 1 ? NULL : bytes,
                                    MEMO_COPY_TO_DEVICE);
        bytes += s->desc.states[i].size_bytes;
    }
    if (fault)
        (void)MEMOB_INVALID(found, "checked session: layer %d: %s", (int)w->layer - 1, fault);
    if (!s->error.status && !found->status) memoi_watched_update(s, w, found);
    memoi_watched_look(s, w, why, found);
    for (used = all; used && !s->error.status; used &= used - 1)
        memob_checked_leave(s, __builtin_ctz(used));
    s->is_deferred = 0;
    s->states->layers[w->layer].open_pass = 0;
}

/* The plan's update of a layer begins or ends.  A deferred one comes behind that of a pass. */
MEMOI void memoi_watch_update(memo_session* s, int32_t layer, int is_end, memo_error* found) {
    memoi_watcher* w = (memoi_watcher*)s->watcher;
    const int32_t at = s->states->update_at;
    if (layer != w->layer || s->is_filling || !memoi_watched_states(s, layer)) return;
    if (at == MEMO_UPDATE_DEFERRED && is_end && w->is_known)
        memoi_watched_look(s, w, memoi_check_moments[1].at_most, found);
    if (at == MEMO_UPDATE_DEFERRED) return;
    if (!is_end) memoi_watched_copy(s, w, 0);
    if (is_end) memoi_watched_look(s, w, NULL, found);
    if (!is_end || at != MEMO_UPDATE_PASS || s->error.status) return;
    memoi_watched_copy(s, w, 1);
    if (!s->error.status) memoi_watched_update(s, w, found);
    memoi_watched_look(s, w,
                       "two runs from the same bytes differ; `update` reads what it has changed "
                       "beside states: take numbers of its step from "
                       "memo_session_get_batch().values",
                       found);
}

/* A step is over: what a pass would do. */
MEMOI void memoi_watch_step(memo_session* s, memo_error* found) {
    memoi_watcher* w = (memoi_watcher*)s->watcher;
    char* bytes = w->bytes;
    uint32_t used = 0;
    if (s->states->updates) return; /* on the host */
    if (s->states->update_at == MEMO_UPDATE_FUSED && s->is_fused && w->is_known)
        memoi_watched_try(s, w, memoi_check_moments[2].at_most, found);
    w->is_known = 0;
    for (int32_t k = 0; k < s->states->n_layers && !used; k++) {
        w->layer = (w->layer + 1) % s->states->n_layers;
        used = memoi_watched_states(s, w->layer);
    }
    if (s->states->update_at != MEMO_UPDATE_DEFERRED || !used || found->status) return;

    for (uint32_t left = used; left && !found->status; left &= left - 1) {
        const int32_t i = __builtin_ctz(left);
        const int64_t size_bytes = s->desc.states[i].size_bytes;
        found->status =
            memob_states_transfer(s->states, w->layer, i, 1, 0, bytes, size_bytes, found);
        bytes += size_bytes;
    }
    if (!found->status) memoi_watched_try(s, w, NULL, found);
}

/* Bytes of a gradient that layer 0 adds to, or of a buffer that is read later. */
typedef struct memoi_watched_piece {
    char* at;
    int64_t n_bytes;
    int32_t layer, state; /* state -1: a buffer */
} memoi_watched_piece;
enum { MEMOI_WATCHED_MAX = MEMO_STATES_MAX + MEMO_SESSION_BUFFERS_MAX };

/* What an open backward of layer 0 may write, and others read later.  Returns how many. */
MEMOI int32_t memoi_watched_pieces(const memo_session* s, memoi_watched_piece* pieces) {
    int32_t n = 0;
    uint32_t seen = 0;
    for (int32_t layer = 1; layer >= 0; layer--) { /* the engine's: layer 0, and FIRST */
        uint32_t used = memob_states_used(s->states, MEMOB_BACKWARD, layer) & s->states->gradients;
        for (used &= ~seen, seen |= used; used; used &= used - 1) {
            const int32_t i = __builtin_ctz(used);
            const memoi_watched_piece piece = {(char*)memob_checked_state_address(s, layer, i),
                                               s->desc.states[i].size_bytes, layer, i};
            pieces[n++] = piece;
        }
    }
    for (int32_t i = 0; i < s->desc.n_buffers; i++) {
        const memo_session_buffer* b = &s->desc.buffers[i];
        const int is_of_session = b->first == MEMO_PASS_SESSION;
        const int64_t n_rows = is_of_session ? s->desc.n_rows : s->batch.n_rows;
        const memoi_watched_piece piece = {(char*)s->buffer_addresses[i],
                                           b->size_bytes + b->row_bytes * n_rows, 0, -1};
        if (piece.at && (is_of_session || b->last == MEMO_PASS_AFTER)) pieces[n++] = piece;
    }
    return n;
}

/* Numbers of a gradient that are infinite; of 2 bytes every second one.  0: one is not, unless
 * is_set. */
MEMOI int memoi_watched_infinite(char* bytes, int64_t n_bytes, int is_set) {
    uint16_t half = 0x7f80;
    for (int64_t i = 2; i + 2 <= n_bytes; i += 4) {
        if (is_set)
            memcpy(bytes + i, &half, sizeof half);
        else
            memcpy(&half, bytes + i, sizeof half);
        if ((half & 0x7c00) != 0x7c00) return 0;
    }
    return 1;
}

/* The backward of layer 0, the last of a micro-batch, runs once more from infinite gradients: what
 * it adds to stays infinite.  Once in a session, where gradients add up and a micro-batch
 * follows. */
MEMOI void memoi_watch_gradients(memo_session* s, int32_t step, memo_error* found) {
    memoi_watcher* w = (memoi_watcher*)s->watcher;
    memoi_watched_piece pieces[MEMOI_WATCHED_MAX];
    const int adds = s->states && (s->is_part || s->n_slices > 1) && s->batch.more_follow;
    const int is_one = !s->desc.agree && !s->steps->order && s->n_slices == s->n_of_batch;
    int32_t n = 0;
    int64_t n_bytes = 0, at = 0;
    char* saved;
    if (step || !w->is_told || !s->is_in_run || s->desc.step || !adds || !is_one) return;
    n = memoi_watched_pieces(s, pieces);
    for (int32_t k = 0; k < n; k++) n_bytes += pieces[k].n_bytes;
    saved = (char*)memob_calloc(2 * n_bytes + 1, 1);
    if (!saved || memoi_check_copy(&w->check, s, w->saved, 0, found)) {
        MEMO_FREE(saved);
        return;
    }

    for (int32_t k = 0; k < n && !s->error.status; at += pieces[k++].n_bytes) {
        (void)memob_checked_copy(s, pieces[k].at, saved + at, pieces[k].n_bytes, 0);
        if (pieces[k].state < 0) continue;
        (void)memoi_watched_infinite(saved + n_bytes + at, pieces[k].n_bytes, 1);
        (void)memob_checked_copy(s, pieces[k].at, saved + n_bytes + at, pieces[k].n_bytes, 1);
    }
    if (!s->error.status) s->desc.backward(s->desc.user, s, 0);
    at = 0;
    for (int32_t k = 0; k < n && !s->error.status; at += pieces[k++].n_bytes) {
        char* bytes = saved + n_bytes + at;
        (void)memob_checked_copy(s, pieces[k].at, bytes, pieces[k].n_bytes, 0);
        (void)memob_checked_copy(s, pieces[k].at, saved + at, pieces[k].n_bytes, 1);
        if (pieces[k].state < 0 || found->status ||
            memoi_watched_infinite(bytes, pieces[k].n_bytes, 0))
            continue;
        (void)MEMOB_INVALID(
            found,
            "checked session: layer %d, state `%.32s`, backward: it drops what earlier "
            "micro-batches or slices have added; add to the gradient, and do not clear it: the "
            "session does, when a step begins",
            (int)pieces[k].layer - 1, memob_session_name(s->desc.states[pieces[k].state].name));
    }
    w->is_told = 0;
    (void)memoi_check_copy(&w->check, s, w->saved, 1, found->status ? NULL : found);
    MEMO_FREE(saved);
}

MEMOI void memoi_watch(memo_session* s, memob_watched what, int32_t step, int is_end) {
    memo_error found;
    found.status = MEMO_STATUS_OK;
    switch (what) {
    case MEMOB_WATCH_RECOMPUTATION: memoi_watch_outputs(s, step, is_end, &found); break;
    case MEMOB_WATCH_FORWARD_ALONE: memoi_watch_norm(s, is_end, &found); break;
    case MEMOB_WATCH_FORWARD: break;
    case MEMOB_WATCH_BACKWARD:
        if (is_end) memoi_watch_gradients(s, step, &found);
        break;
    case MEMOB_WATCH_UPDATE: memoi_watch_update(s, step, is_end, &found); break;
    case MEMOB_WATCH_STEP: memoi_watch_step(s, &found); break;
    }
    if (found.status) memo_session_fail(s, found.status, found.message);
}

memo_status memo_session_watch(memo_session* s, const memo_verify_desc* check, memo_error* error) {
    memoi_watcher* w;
    int64_t n_bytes = 0, n_saved = 0;
    MEMOB_REFUSE_NULL(error, "session", s);
    MEMOB_REFUSE_NULL(error, "check", check);
    if (memoi_check_outputs(check, error)) return MEMO_STATUS_INVALID_ARGUMENT;
    for (int32_t i = 0; i < check->n_outputs; i++) n_saved += check->outputs[i].size_bytes;
    for (int32_t i = 0; i < s->desc.n_states && s->checked.slots; i++)
        n_bytes += s->desc.states[i].size_bytes;
    w = MEMOB_ARRAY(&s->kept, memoi_watcher, 1);
    if (w) {
        w->check = *check;
        w->check.outputs = w->outputs = MEMOB_ARRAY(&s->kept, memo_verify_output, check->n_outputs);
        w->hashes = MEMOB_ARRAY(&s->kept, uint64_t, check->n_outputs);
        w->saved = MEMOB_ARRAY(&s->kept, char, n_saved);
        w->bytes = MEMOB_ARRAY(&s->kept, char, n_bytes);
        w->seen = MEMOB_ARRAY(&s->kept, uint64_t, s->desc.n_states);
    }
    if (s->kept.failed) return memob_no_memory(error, "what a session watches");
    for (int32_t i = 0; i < check->n_outputs; i++) w->outputs[i] = check->outputs[i];
    w->is_told = 1;
    s->watcher = w;
    s->watch = memoi_watch;
    return MEMO_STATUS_OK;
}

MEMOI memo_status memo_check_updates(memo_session* s, memo_error* error) {
    const memo_verify_desc check = MEMO_ZERO(memo_verify_desc);
    memo_status status;
    if (!s->checked.slots || s->watch) return MEMO_STATUS_OK;
    status = memo_session_watch(s, &check, error);
    if (!status) ((memoi_watcher*)s->watcher)->is_told = 0;
    return status;
}

/* ---- >>verify -----------------------------------------------------------------------------------
 * Knows: runs of one desc by several plans, and the bytes that they leave.  Knows nothing of how a
 * plan is made. */

/* Bytes of outputs, then of gradients among states, layer by layer. */
typedef struct memoi_verified {
    const char* caller; /* in messages */
    const memo_session_desc* desc;
    memo_verify_desc check;
    int32_t shape;
    int64_t output_bytes, n_bytes;
    char *expected, *found;   /* of a run before, and of the last one */
    char* saved;              /* the outputs before a run */
    uint64_t *digests, *seen; /* (n_layers + 2, n_states), of a run of steps before; of the last */
    memob_arrays arrays;      /* of these */
} memoi_verified;

/* A number of an output. */
MEMOI double memoi_verified_number(const char* bytes, memo_type type) {
    uint16_t half;
    uint32_t word;
    float single;
    double number;
    if (type == MEMO_TYPE_F64) return memcpy(&number, bytes, sizeof number), number;
    memcpy(&half, bytes, sizeof half);
    if (type == MEMO_TYPE_F16) {
        const int exponent = half >> 10 & 31;
        number = ldexp((half & 1023) + (exponent ? 1024 : 0), exponent + !exponent - 25);
        if (exponent == 31) return (double)NAN;
        return half >> 15 ? -number : number;
    }
    word = (uint32_t)half << 16;
    if (type == MEMO_TYPE_F32) memcpy(&word, bytes, sizeof word);
    memcpy(&single, &word, sizeof single);
    return (double)single;
}

/* Compares an output, or a layer's part of an output; layer: -2 if the output is of no layer.  why:
 * of a difference of bits; NULL: only a large difference is an error, by the norm of the expected
 * numbers. */
MEMOI memo_status memoi_verified_compare(const memoi_verified* v, const char* name, int32_t layer,
                                         memo_type type, int64_t at, int64_t n_bytes,
                                         const char* why, memo_error* error) {
    static const int64_t sizes[] = {4, 8, 2, 2, 4, 8, 1};
    MEMOB_TABLE_OF(MEMO_N_TYPES, sizes);
    static const double bounds[] = {0.01, 0.01, 0.1, 0.1, 0, 0, 0}; /* 0: no distance is taken */
    MEMOB_TABLE_OF(MEMO_N_TYPES, bounds);
    const double bound = bounds[type];
    const char *expected = v->expected + at, *found = v->found + at;
    double norm = 0, distance = 0; /* sums of squares at first */
    char of_layer[32] = "";
    int64_t i = 0;
    if (layer >= MEMO_LAYER_FIRST) snprintf(of_layer, sizeof of_layer, ", layer %d", (int)layer);

    for (; !why && bound > 0 && i + sizes[type] <= n_bytes; i += sizes[type]) {
        const double a = memoi_verified_number(expected + i, type);
        const double b = memoi_verified_number(found + i, type);
        norm += a * a;
        distance += (a - b) * (a - b);
    }
    if (distance > 0) distance = sqrt(distance / norm);
    if (!why && !(distance <= bound))
        return MEMOB_INVALID(
            error,
            "%s: output `%.40s`%s: in slices it differs by %.3g %% from that of "
            "a layer at once; gradients of LAYER tensors begin at zero in the first slice of a "
            "backward, which has the last rows, and each slice adds its rows alone",
            v->caller, name, of_layer, 100 * distance);
    while (why && i < n_bytes && expected[i] == found[i]) i++;
    if (!why || i == n_bytes) return MEMO_STATUS_OK;
    return MEMOB_INVALID(error, "%s: output `%.40s`%s, number %lld (byte %lld of %lld): %s",
                         v->caller, name, of_layer, (long long)(i / sizes[type]), (long long)i,
                         (long long)n_bytes, why);
}

MEMOI memo_status memoi_verified_compare_outputs(const memoi_verified* v, const char* why,
                                                 memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int64_t at = 0;
    for (int32_t i = 0; i < v->check.n_outputs; i++) {
        const memo_verify_output* output = &v->check.outputs[i];
        const int32_t n = output->n_layers > 0 ? output->n_layers : 1;
        for (int32_t layer = 0; layer < n && !status; layer++, at += output->size_bytes / n)
            status = memoi_verified_compare(v, memob_session_name(output->name),
                                            output->n_layers > 0 ? layer : -2, output->type, at,
                                            output->size_bytes / n, why, error);
    }
    return status;
}

/* Outputs, and gradients among states.  Only large differences count: of no type that they may
 * have. */
MEMOI memo_status memoi_verified_compare_all(const memoi_verified* v, const char* why,
                                             memo_error* error) {
    static const memo_type types[] = {MEMO_TYPE_F64, MEMO_TYPE_F16, MEMO_TYPE_BF16, MEMO_TYPE_F32};
    memo_status status = memoi_verified_compare_outputs(v, why, error);
    int64_t at = v->output_bytes;
    memo_error other; /* of a type that it has not */
    for (int32_t layer = MEMO_LAYER_FIRST; layer <= v->desc->n_layers; layer++)
        for (int32_t i = 0; i < v->desc->n_states && !status; i++) {
            if (!(v->desc->states[i].uses & MEMO_STATE_GRADIENT)) continue;
            for (int k = why ? 3 : 0; k < 4 && (!k || why || status); k++)
                status = memoi_verified_compare(v, v->desc->states[i].name, layer, types[k], at,
                                                v->desc->states[i].size_bytes, why,
                                                k < 3 ? &other : error);
            at += v->desc->states[i].size_bytes;
        }
    return status;
}

/* Fills the states of all layers with numbers from 0.008 to 0.12, in f32 as well as in bf16, or
 * reads gradients.  What passes read has numbers of either sign; the rest may be a variance. */
MEMOI memo_status memoi_verified_visit_states(memoi_verified* v, memo_session* s, int reads,
                                              memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    char* bytes = v->found + v->output_bytes;
    uint64_t random = 1;
    for (int32_t layer = MEMO_LAYER_FIRST; layer <= v->desc->n_layers; layer++)
        for (int32_t i = 0; i < v->desc->n_states && !status; i++) {
            const memo_state* state = &v->desc->states[i];
            if (reads == !(state->uses & MEMO_STATE_GRADIENT)) continue;
            if (state->uses & MEMO_STATE_FETCHED) continue; /* it has the caller's numbers */
            memset(bytes, 0, (size_t)state->size_bytes);    /* also where a layer lacks it */
            for (int64_t k = 0; k < state->size_bytes / 2 && !reads; k++) {
                const uint64_t r = memob_random(&random);
                const uint64_t sign =
                    state->uses & (MEMO_STATE_FORWARD | MEMO_STATE_BACKWARD) ? r >> 9 & 0x8000 : 0;
                const uint16_t half = (uint16_t)(0x3c00 | (r & 0x1ff) | sign);
                memcpy(bytes + 2 * k, &half, sizeof half);
            }
            status =
                reads ? memo_session_read_state(s, layer, i, 0, bytes, state->size_bytes, error)
                      : memo_session_write_state(s, layer, i, 0, bytes, state->size_bytes, error);
            if (reads) bytes += state->size_bytes;
        }
    return status;
}

MEMOI void memoi_verified_swap(memoi_verified* v) {
    char* found = v->found;
    v->found = v->expected;
    v->expected = found;
}

/* A call of a shape, or all turns of an order. */
MEMOI memo_status memoi_verified_run_turns(memo_session* s, int32_t shape, int more_follow,
                                           memo_error* error) {
    const memo_step_plan* plan = s->parts[shape].plan;
    memo_batch batch;
    memo_status status = MEMO_STATUS_OK;
    memset(&batch, 0, sizeof batch);
    batch.shape = shape;
    batch.more_follow = more_follow;
    for (int32_t k = 0; k < memob_max(plan->n_order, 1) && !status; k++) {
        if (plan->n_order) batch.turn = plan->order[k];
        status = memo_session_run(s, &batch, error);
    }
    return status;
}

/* What a session runs: so many micro-batches of a step that goes on, or steps. */
typedef enum memoi_verified_run {
    MEMOI_VERIFIED_ONE = 1,
    MEMOI_VERIFIED_TWO = 2,
    MEMOI_VERIFIED_STEPS = 3
} memoi_verified_run;

/* Digests of all states but gradients, which have no meaning after an update. */
MEMOI memo_status memoi_verified_digest(memoi_verified* v, memo_session* s, memo_error* error) {
    const int32_t n = v->desc->n_states;
    char* bytes = v->found + v->n_bytes; /* room for the largest state */
    memo_status status = MEMO_STATUS_OK;
    for (int64_t k = 0; k < (int64_t)n * (v->desc->n_layers + 2) && !status; k++) {
        const memo_state* state = &v->desc->states[k % n];
        if (state->uses & MEMO_STATE_GRADIENT) continue;
        memset(bytes, 0, (size_t)state->size_bytes); /* of a layer that lacks the state */
        status = memo_session_read_state(s, (int32_t)(k / n) + MEMO_LAYER_FIRST, (int32_t)(k % n),
                                         0, bytes, state->size_bytes, error);
        v->seen[k] = memob_digest(bytes, state->size_bytes);
    }
    return status;
}

/* A step of the trainer. */
MEMOI memo_status memoi_verified_train(memoi_verified* v, memo_session* s, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    if (v->check.train) return v->check.train(v->desc->user, s, error);
    for (int32_t left = memob_session_n_rounds(s) - 1; left >= 0 && !status; left--)
        status = memoi_verified_run_turns(s, v->shape, left > 0, error);
    return status ? status : memo_session_update(s, error);
}

/* Runs micro-batches of a step into `found`, or steps into `found` and `seen`, from equal outputs
 * and states each time.  The trainer's norm must have its value again afterwards. */
MEMOI memo_status memoi_verified_run_once(memoi_verified* v, memo_session* s,
                                          memoi_verified_run what, memo_error* error) {
    const memo_verify_desc* check = &v->check;
    void* user = v->desc->user;
    const double before = check->norm ? check->norm(user) : 0;
    const int are_steps = what == MEMOI_VERIFIED_STEPS;
    memo_status status, saved;
    if (check->verifying) check->verifying(user, s, 1);
    status = saved = memoi_check_copy(check, s, v->saved, 0, error);
    if (!status) status = memoi_verified_visit_states(v, s, 0, error);
    for (int32_t k = 0; k < (int32_t)what && !status; k++)
        status = are_steps ? memoi_verified_train(v, s, error)
                           : memoi_verified_run_turns(s, v->shape, 1, error);
    if (!status && are_steps) status = memoi_verified_digest(v, s, error); /* ends all updates */
    if (!status) status = memoi_check_copy(check, s, v->found, 0, error);
    if (!status && !are_steps) status = memoi_verified_visit_states(v, s, 1, error);
    if (!saved) saved = memoi_check_copy(check, s, v->saved, 1, status ? NULL : error);
    if (!status) status = saved;
    if (check->verifying) check->verifying(user, s, 0);

    if (!status && check->norm) {
        const double now = check->norm(user);
        if (memcmp(&before, &now, sizeof now) != 0)
            status = MEMOB_INVALID(
                error,
                "memo_verify_desc.outputs: norm was %.9g and is %.9g, now that the outputs have "
                "the "
                "bytes again that they had before; list all bytes that a micro-batch changes and "
                "the update reads, or let norm be the same for the same bytes",
                before, now);
    }
    return status;
}

/* A session of the desc and the plan, which runs once or, to see whether that repeats, twice. */
MEMOI memo_status memoi_verified_in_session(memoi_verified* v, const memo_session_desc* desc,
                                            const memo_step_plan* plan, memoi_verified_run what,
                                            int is_twice, memo_error* error) {
    memo_session* s = NULL;
    memo_status status = memo_session_open(desc, plan, &s, error);
    if (status) return status;
    if (is_twice && !v->check.norm)
        memob_session_log(s, "session: norm is NULL: verify does not see what outputs lack");
    status = memo_session_watch(s, &v->check, error);
    if (!status) status = memoi_verified_run_once(v, s, what, error);
    if (!status && is_twice) {
        memoi_verified_swap(v);
        if (desc->n_states) status = memo_session_skip_update(s, error); /* gradients begin anew */
        if (!status) status = memoi_verified_run_once(v, s, what, error);
    }
    memo_session_destroy(s);
    return status;
}

/* Near half of the tiles, with no divisor in common with all: kernels that compute several tiles at
 * a time then begin or end elsewhere than in the forward. */
MEMOI double memoi_verified_alpha(const memo_session_desc* desc) {
    const int64_t tile = desc->tile_rows > 0 ? desc->tile_rows : 1;
    const int64_t n = desc->slice_rows > 0 ? (desc->slice_rows + tile - 1) / tile : 1;
    int64_t k = n / 2 > 0 ? n / 2 : 1, a, b, rest;
    for (;; k++) {
        for (a = n, b = k; b; a = b, b = rest) rest = a % b;
        if (a == 1) return (double)k / (double)n;
    }
}

/* Memory for the outputs and the gradients of states. */
MEMOI memo_status memoi_verified_create(memoi_verified* v, memo_error* error) {
    const memo_session_desc* desc = v->desc;
    const int64_t n_digests = (int64_t)desc->n_states * (desc->n_layers + 2);
    int64_t most_bytes = 0;
    if (memoi_check_outputs(&v->check, error)) return MEMO_STATUS_INVALID_ARGUMENT;
    while (v->shape + 1 < desc->n_shapes && desc->shapes[v->shape].is_forward_only) v->shape++;
    for (int32_t i = 0; i < v->check.n_outputs; i++)
        v->output_bytes += v->check.outputs[i].size_bytes;
    v->n_bytes = v->output_bytes;
    for (int32_t i = 0; i < desc->n_states; i++) {
        most_bytes = memob_max(most_bytes, desc->states[i].size_bytes);
        if (desc->states[i].uses & MEMO_STATE_GRADIENT)
            v->n_bytes += desc->states[i].size_bytes * (desc->n_layers + 2);
    }
    if (!v->n_bytes)
        return MEMOB_INVALID(
            error, "memo_verify_desc.outputs: nothing to compare; list gradients there, or "
                   "among states");

    v->expected = MEMOB_ARRAY(&v->arrays, char, v->n_bytes + most_bytes);
    v->found = MEMOB_ARRAY(&v->arrays, char, v->n_bytes + most_bytes);
    v->saved = MEMOB_ARRAY(&v->arrays, char, v->output_bytes);
    v->digests = MEMOB_ARRAY(&v->arrays, uint64_t, n_digests);
    v->seen = MEMOB_ARRAY(&v->arrays, uint64_t, n_digests);
    return v->arrays.failed ? memob_no_memory(error, "the outputs of a micro-batch")
                            : MEMO_STATUS_OK;
}

/* A session of its own, beside which the trainer has none: more memory, no planned plan. */
MEMOI memo_session_desc memoi_verified_desc(const memoi_verified* v) {
    memo_session_desc own = *v->desc;
    own.device_memory = own.host_memory = NULL;
    own.planned = NULL; /* the trainer may keep its plan */
    return own;
}

/* The checked run comes first: it sees writes that would overwrite memory of others. */
MEMOI memo_status memoi_verified_micro_batches(memoi_verified* v, const memo_step_plan* planned,
                                               memo_error* error) {
    static const struct {
        memo_policy policy;
        const char* why;
    } runs[] = {
        {MEMO_POLICY_KEEP, "two micro-batches differ; a kernel is not deterministic, or reads "
                           "what a micro-batch changes and outputs lack, or an address kept from "
                           "the micro-batch before, or recompute writes what the backward reads, "
                           "such as scratch or statistics"},
        {MEMO_POLICY_KEEP, "a checked session changes it; the backward reads bytes that no kernel "
                           "has written, or of a tensor or buffer that has ended, which are NaN"},
        {MEMO_POLICY_KEEP, NULL}, /* at once */
        {MEMO_POLICY_ALPHA,
         "half of the rows swapped and half recomputed change it; a kernel reads "
         "or writes a tensor of a layer that has ended, or the backward "
         "recomputes other bits"},
        {MEMO_POLICY_MEMO, "the desc's plan changes it; a kernel reads or writes a tensor of a "
                           "layer that has ended, or runs on another stream"}};
    enum { CHECKED = 0, KEPT = 1, AT_ONCE = 2, HALF = 3, PLANNED = 4 };
    const int is_sliced = planned->slice_rows != 0;
    memo_status status = MEMO_STATUS_OK;
    memo_error found; /* what differs */
    for (int32_t k = CHECKED; k <= PLANNED && !status; k++) {
        memo_session_desc own = memoi_verified_desc(v);
        memo_step_plan* plan = NULL;
        own.slice_rows = k == AT_ONCE || !is_sliced ? own.n_rows : planned->slice_rows;
        own.is_checked |= k == CHECKED;
        found.status = MEMO_STATUS_OK;
        if (k == AT_ONCE && !is_sliced) continue;
        if (k < PLANNED) {
            own.policy = runs[k].policy;
            own.alpha = memoi_verified_alpha(&own);
            own.device_bytes = 0;
            status = memo_session_plan(&own, NULL, &plan, error);
        }

        /* The kept run is what later ones are compared with.  No run of the trainer takes more host
         * memory than the desc's. */
        if (!status && (k != HALF || memob_step_plan_fits(plan))) {
            status = memoi_verified_in_session(v, &own, plan ? plan : planned, MEMOI_VERIFIED_ONE,
                                               k == CHECKED, error);
            if (k == AT_ONCE) memoi_verified_swap(v);
            if (!status) (void)memoi_verified_compare_all(v, runs[k].why, &found);
            if (k == KEPT || k == AT_ONCE) memoi_verified_swap(v);
        }
        memo_step_plan_destroy(plan);
        if (!status && found.status && error) *error = found;
        status = memob_session_verdict(v->desc, status ? status : found.status, error);
    }
    return status;
}

/* Compares states with those of a run before. */
MEMOI memo_status memoi_verified_compare_states(const memoi_verified* v, const char* why,
                                                memo_error* error) {
    const int32_t n = v->desc->n_states;
    for (int64_t k = 0; k < (int64_t)n * (v->desc->n_layers + 2); k++)
        if (v->seen[k] != v->digests[k])
            return MEMOB_INVALID(error, "memo_session_verify: state `%.40s`, layer %d: %s",
                                 memob_session_name(v->desc->states[k % n].name),
                                 (int)(k / n) + MEMO_LAYER_FIRST, why);
    return MEMO_STATUS_OK;
}

/* Three steps under each moment that the desc allows, with most and with least device memory; first
 * in a checked session. */
MEMOI memo_status memoi_verified_steps(memoi_verified* v, memo_error* error) {
    enum { N_MOMENTS = sizeof memoi_check_moments / sizeof *memoi_check_moments };
    memo_status status = MEMO_STATUS_OK;
    memo_error found;
    for (int32_t k = -1; k < 2 * N_MOMENTS && !status; k++) {
        const int32_t moment = k < 0 ? 0 : k / 2;
        const int is_least = k > 0 && k % 2, is_first = k < 0;
        memo_session_desc own = memoi_verified_desc(v);
        memo_step_plan* plan = NULL;
        if (moment && !(own.update_may & memoi_check_moments[moment].may)) continue;
        own.update_may = moment ? memoi_check_moments[moment].may | MEMO_MAY_NOT_PASS : 0;
        if (own.update_on == MEMO_UPDATE_PLANNED) own.update_on = MEMO_UPDATE_DEVICE;
        own.is_checked |= is_first;
        own.device_bytes = 0;
        found.status = MEMO_STATUS_OK;
        if (is_least && memo_session_get_least(&own, &own.device_bytes, NULL)) continue;
        if (!is_least) own.policy = MEMO_POLICY_KEEP;
        status = memo_session_plan(&own, NULL, &plan, error);
        if (!status)
            status = memoi_verified_in_session(v, &own, plan, MEMOI_VERIFIED_STEPS, 0, error);
        memo_step_plan_destroy(plan);

        if (!status && !is_first) {
            const char* why = is_least ? memoi_check_moments[moment].at_least
                                       : memoi_check_moments[moment].at_most;
            if (!memoi_verified_compare_states(v, why, &found))
                (void)memoi_verified_compare_outputs(v, why, &found);
        }
        if (is_first) {
            uint64_t* seen = v->seen;
            v->seen = v->digests, v->digests = seen;
            memoi_verified_swap(v);
        }
        if (!status && found.status && error) *error = found;
        status = memob_session_verdict(v->desc, status ? status : found.status, error);
    }
    return status;
}

/* 1: bytes are f32, or bf16, of which one is infinite or NaN. */
MEMOI int memoi_verified_is_infinite(const char* bytes, int64_t n_bytes) {
    for (int64_t i = 2; i + 2 <= n_bytes; i += 4) {
        uint16_t half; /* the upper one of f32 */
        memcpy(&half, bytes + i, sizeof half);
        if ((half & 0x7f80) == 0x7f80) return 1;
    }
    return 0;
}

/* Gradients after one micro-batch, and after two with the same bytes: the backward adds. */
MEMOI memo_status memoi_verified_adds(memoi_verified* v, memo_error* error) {
    memo_session_desc own = memoi_verified_desc(v);
    memo_step_plan* plan = NULL;
    memo_status status;
    const char *expected, *found;
    own.policy = MEMO_POLICY_KEEP;
    own.device_bytes = 0;
    status = memo_session_plan(&own, NULL, &plan, error);
    if (!status) status = memoi_verified_in_session(v, &own, plan, MEMOI_VERIFIED_ONE, 0, error);
    memoi_verified_swap(v);
    if (!status) status = memoi_verified_in_session(v, &own, plan, MEMOI_VERIFIED_TWO, 0, error);
    memo_step_plan_destroy(plan);

    expected = v->expected + v->output_bytes, found = v->found + v->output_bytes;
    for (int32_t layer = MEMO_LAYER_FIRST; layer <= own.n_layers && !status; layer++)
        for (int32_t i = 0; i < own.n_states && !status; i++) {
            const int64_t n_bytes = own.states[i].size_bytes;
            int64_t at = 0;
            if (!(own.states[i].uses & MEMO_STATE_GRADIENT)) continue;
            while (at < n_bytes && !found[at]) at++;
            if (at < n_bytes && !memcmp(expected, found, (size_t)n_bytes) &&
                !memoi_verified_is_infinite(found, n_bytes))
                status = MEMOB_INVALID(
                    error,
                    "memo_session_verify: state `%.40s`, layer %d: the gradient is the same after "
                    "one and after two equal micro-batches; add to it in the backward, and do not "
                    "clear it: the session does, when a step begins",
                    memob_session_name(own.states[i].name), (int)layer);
            expected += n_bytes, found += n_bytes;
        }
    return memob_session_verdict(v->desc, status, error);
}

memo_status memo_session_verify(const memo_session_desc* desc, const memo_verify_desc* check,
                                memo_error* error) {
    memo_step_plan* planned = NULL;
    memoi_verified v;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    memset(&v, 0, sizeof v);
    v.caller = "memo_session_verify";
    v.desc = desc;
    if (check) v.check = *check;
    status = memo_session_plan(desc, NULL, &planned, error);
    if (!status) status = memob_session_verdict(desc, memoi_verified_create(&v, error), error);
    if (!status) status = memoi_verified_micro_batches(&v, planned, error);
    if (!status && desc->n_states && (desc->micro_batches > 1 || desc->n_order > 2))
        status = memoi_verified_adds(&v, error);
    if (!status && desc->n_states) status = memoi_verified_steps(&v, error);
    memo_step_plan_destroy(planned);
    memob_arrays_free(&v.arrays);
    return status;
}

/* ---- >>describe ---------------------------------------------------------------------------------
 * Knows: which bytes of a layer's tensors a kept micro-batch writes and reads.  Knows nothing of
 * budgets. */

/* Two ways to spoil a tensor before its backward: a row gets the row before it, which is safe for
 * indices; then, if no result changes, poison. */
typedef enum memoi_spoiled { MEMOI_SPOILED_NOT, MEMOI_SPOILED_TURNED, MEMOI_SPOILED } memoi_spoiled;

/* A tensor as seen. */
typedef struct memoi_seen {
    uint8_t* layers;     /* (n_layers): 1: the forward wrote it */
    uint8_t* columns;    /* (row_bytes): 1: the byte was written in some row */
    int64_t least, most; /* rows that a layer wrote; most 0: no layer did */
    int64_t used_bytes;  /* of a layer, to the last byte that was written */
    int is_number;       /* not only small integers, which may be indices */
    int is_turned;       /* rows of a layer differ, so turning them has an effect */
    int is_read;         /* by the backward */
    int is_needed;       /* by the backward, or by the recomputation of what is needed */
    int32_t leader;      /* whose call of recompute gives its bits; -1: none */
    int64_t tile_rows;   /* of a leader: the least that give its bits, and those of its followers */
} memoi_seen;

typedef struct memoi_described {
    memoi_verified* v;
    memoi_seen* seen;         /* (n_tensors) */
    uint8_t *gives, *needs;   /* (n_tensors, n_tensors): of recompute of t: whose bits, from what */
    int64_t *at, *size_bytes; /* (n_tensors): in saved and found; of the open layer, 0: absent */
    void** addresses;         /* (n_tensors) */
    char *saved, *found;      /* a layer's tensors */
    int64_t n_rows;
    uint32_t kinds; /* that have been recomputed */
    int32_t tensor; /* that is spoiled */
    memoi_spoiled spoiled;
    int is_recomputed;   /* recompute is tried */
    memob_arrays arrays; /* of these */
} memoi_described;

MEMOI const memo_item* memoi_described_leader(const memoi_described* d, int32_t t) {
    const memo_item* tensors = d->v->desc->tensors;
    return &tensors[memob_item_leader(tensors, t)];
}

/* Does a run look at the tensor?  EDGE rows are of all layers. */
MEMOI int memoi_described_is_seen(const memoi_described* d, int32_t t) {
    return d->v->desc->tensors[t].row_bytes && memoi_described_leader(d, t)->scope != MEMO_EDGE;
}

/* May recompute give the tensor? */
MEMOI int memoi_described_may_recompute(const memoi_described* d, int32_t t) {
    const int32_t scope = memoi_described_leader(d, t)->scope;
    return d->size_bytes[t] && scope != MEMO_INPUT && scope != MEMO_CARRIED;
}

/* Copies a tensor of the open layer to bytes, or back, and waits. */
MEMOI void memoi_described_copy(const memoi_described* d, memo_session* s, int32_t t, char* bytes,
                                int is_back) {
    if (d->size_bytes[t] && !s->error.status)
        (void)memob_checked_copy(s, (char*)d->addresses[t], bytes, d->size_bytes[t], is_back);
}

/* The tensors of a step that opens or ends. */
MEMOI void memoi_described_take(memoi_described* d, memo_session* s, int32_t step) {
    const memo_slice slice = memo_session_get_slice(s);
    d->n_rows = slice.end - slice.begin;
    memo_session_get_addresses(s, memob_session_layer(s, step), 0, d->addresses);
    for (int32_t t = 0; t < d->v->desc->n_tensors; t++) {
        int64_t n = d->n_rows;
        if (memoi_described_leader(d, t)->scope == MEMO_CARRIED) n = 1;
        if (memob_tensor_is_routed(s->steps, t)) n = slice.n_routed;
        d->size_bytes[t] = memoi_described_is_seen(d, t) && memob_layer_has(s->steps, step, t)
                               ? n * d->v->desc->tensors[t].row_bytes
                               : 0;
    }
}

/* Which bytes of tensor t has the forward of a layer written? */
MEMOI void memoi_described_look(memoi_described* d, int32_t t, int32_t layer) {
    memoi_seen* seen = &d->seen[t];
    const int64_t row_bytes = d->v->desc->tensors[t].row_bytes, n_bytes = d->size_bytes[t];
    const char* bytes = d->found + d->at[t];
    uint64_t poison;
    int64_t n_rows = 0, last = -1, used = 0;
    memob_poison((char*)&poison, sizeof poison);
    for (int64_t i = 0; i < n_bytes; i++) {
        if (bytes[i] == ((char*)&poison)[i % 8]) continue;
        seen->columns[i % row_bytes] = 1;
        n_rows += i / row_bytes != last;
        last = i / row_bytes;
        used = i + 1;
    }
    if (!used) return;

    seen->least = seen->most ? memob_min(seen->least, n_rows) : n_rows;
    seen->most = memob_max(seen->most, n_rows);
    seen->used_bytes = memob_max(seen->used_bytes, used);
    seen->layers[layer] = 1;
    for (int64_t i = 0; i + 4 <= used; i += 4) { /* a small integer: the upper byte is a sign */
        int32_t word;
        memcpy(&word, bytes + i, sizeof word);
        seen->is_number |= word > 0xffffff || word < -0x1000000;
    }
    seen->is_turned |=
        n_bytes > row_bytes && memcmp(bytes, bytes + row_bytes, (size_t)(n_bytes - row_bytes)) != 0;
}

/* Gives each row of t the row before it, and the first row the last one. */
MEMOI void memoi_described_turn(const memoi_described* d, memo_session* s, int32_t t) {
    const int64_t row_bytes = d->v->desc->tensors[t].row_bytes;
    const size_t rest = (size_t)memob_max(d->size_bytes[t] - row_bytes, 0);
    char* found = d->found + d->at[t];
    if (!d->size_bytes[t]) return;
    memcpy(found, d->saved + d->at[t] + rest, (size_t)row_bytes);
    memcpy(found + row_bytes, d->saved + d->at[t], rest);
    memoi_described_copy(d, s, t, found, 1);
}

/* Recomputes rows [begin, end) of t while t and later tensors are poison.  is_kept[u] stays 1 if
 * these rows have their bytes again, and all others are poison. */
MEMOI void memoi_described_run_rows(const memoi_described* d, memo_session* s, int32_t step,
                                    int32_t t, int64_t begin, int64_t end, int32_t turned,
                                    uint8_t* is_kept) {
    const memo_session_desc* desc = d->v->desc;
    for (int32_t u = t; u < desc->n_tensors; u++) {
        memob_poison(d->found + d->at[u], d->size_bytes[u]);
        memoi_described_copy(d, s, u, d->found + d->at[u], 1);
    }
    if (turned >= 0) memoi_described_turn(d, s, turned);
    if (!s->error.status)
        desc->recompute(desc->user, s, memob_session_layer(s, step), t, begin, end);

    for (int32_t u = t; u < desc->n_tensors; u++) {
        char* found = d->found + d->at[u];
        const char* saved = d->saved + d->at[u];
        const int64_t row_bytes = desc->tensors[u].row_bytes;
        uint64_t poison;
        memob_poison((char*)&poison, sizeof poison);
        memoi_described_copy(d, s, u, found, 0);
        for (int64_t i = 0; i < d->size_bytes[u] && is_kept[u]; i++)
            is_kept[u] = i >= begin * row_bytes && i < end * row_bytes
                             ? found[i] == saved[i]
                             : found[i] == ((char*)&poison)[i % 8];
    }
}

/* The same in a few runs of tile_rows.  The layer is as before afterwards. */
MEMOI void memoi_described_recompute(const memoi_described* d, memo_session* s, int32_t step,
                                     int32_t t, int64_t tile_rows, int32_t turned,
                                     uint8_t* is_kept) {
    const int64_t n = d->size_bytes[t] / d->v->desc->tensors[t].row_bytes;
    int64_t begin, end;
    for (int32_t u = t; u < d->v->desc->n_tensors; u++) is_kept[u] = d->size_bytes[u] > 0;
    for (int32_t i = 0; memob_checked_run(n, tile_rows, i, &begin, &end); i++)
        memoi_described_run_rows(d, s, step, t, begin, end, turned, is_kept);
    for (int32_t u = 0; u < d->v->desc->n_tensors; u++)
        memoi_described_copy(d, s, u, d->saved + d->at[u], 1);
}

/* The most of all ranks. */
MEMOI memo_status memoi_described_agree(const memoi_described* d, int64_t* values, int64_t n,
                                        memo_error* error) {
    const memo_session_desc* desc = d->v->desc;
    return desc->agree ? desc->agree(desc->user, values, n, error) : MEMO_STATUS_OK;
}

/* 1: on all ranks. */
MEMOI int memoi_described_all(const memoi_described* d, memo_session* s, int holds) {
    int64_t value = !holds;
    memo_error error;
    const memo_status status = memoi_described_agree(d, &value, 1, &error);
    if (status) memo_session_fail(s, status, error.message);
    return !value;
}

/* Which tensors does recompute give in a layer, in which tiles, and from which unread ones? */
MEMOI void memoi_described_try(memoi_described* d, memo_session* s, int32_t step) {
    const int32_t n = d->v->desc->n_tensors;
    uint8_t is_kept[MEMO_PROFILE_TENSORS_MAX];
    for (int32_t t = 0; t < n && !s->error.status; t++) {
        uint8_t *gives = d->gives + (int64_t)t * n, *needs = d->needs + (int64_t)t * n;
        const int64_t n_all = d->size_bytes[t] / memob_max(d->v->desc->tensors[t].row_bytes, 1);
        const int is_routed = memob_tensor_is_routed(s->steps, t); /* perhaps on this rank alone */
        int64_t least = is_routed ? n_all : 1;
        int keeps;
        if (!memoi_described_may_recompute(d, t)) continue;
        memoi_described_recompute(d, s, step, t, n_all, -1, is_kept);
        for (int32_t u = t; u < n; u++)
            if (d->size_bytes[u]) gives[u] &= is_kept[u] && memoi_described_may_recompute(d, u);
        if (!is_routed) gives[t] = (uint8_t)memoi_described_all(d, s, gives[t]);
        if (!gives[t]) continue;

        for (;; least = memob_min(2 * least, n_all)) {
            memoi_described_recompute(d, s, step, t, least, -1, is_kept);
            keeps = 1;
            for (int32_t u = t; u < n; u++) keeps &= !d->size_bytes[u] || !gives[u] || is_kept[u];
            if (least == n_all || memoi_described_all(d, s, keeps) || s->error.status) break;
        }
        d->seen[t].tile_rows = memob_max(d->seen[t].tile_rows, least);

        for (int32_t u = 0; u < t; u++) {
            if (d->seen[u].is_read || !d->size_bytes[u]) continue;
            memoi_described_recompute(d, s, step, t, n_all, u, is_kept);
            needs[u] |= !is_kept[t] || !d->seen[u].is_turned;
            for (int32_t v = t; v < n; v++) needs[u] |= d->size_bytes[v] && gives[v] && !is_kept[v];
        }
    }
}

MEMOI void memoi_described_watch(memo_session* s, memob_watched what, int32_t step, int is_end) {
    memoi_described* d = (memoi_described*)s->watcher;
    const uint32_t kind = 1u << memob_layer_kind(s->steps, step);
    const int32_t n = d->v->desc->n_tensors;
    if (what != MEMOB_WATCH_FORWARD && (what != MEMOB_WATCH_BACKWARD || is_end)) return;
    memoi_described_take(d, s, step);
    if (what == MEMOB_WATCH_FORWARD) {
        for (int32_t t = 0; t < n; t++) {
            memoi_described_copy(d, s, t, d->found + d->at[t], 0);
            if (!s->error.status) memoi_described_look(d, t, memob_session_layer(s, step));
        }
        s->part->skipped[step] = 1; /* a tensor that no forward writes is no error here */
        return;
    }

    if (d->spoiled == MEMOI_SPOILED_NOT && !d->is_recomputed) return;
    for (int32_t t = 0; t < n; t++) memoi_described_copy(d, s, t, d->saved + d->at[t], 0);
    if (d->spoiled == MEMOI_SPOILED_TURNED) memoi_described_turn(d, s, d->tensor);
    if (d->spoiled == MEMOI_SPOILED) {
        memob_poison(d->found + d->at[d->tensor], d->size_bytes[d->tensor]);
        memoi_described_copy(d, s, d->tensor, d->found + d->at[d->tensor], 1);
    }
    if (d->is_recomputed && !(d->kinds & kind)) memoi_described_try(d, s, step);
    d->kinds |= d->is_recomputed ? kind : 0;
}

/* A micro-batch; *differs: from the first, or it fails, which it did not. */
MEMOI memo_status memoi_described_run(memoi_described* d, const memo_session_desc* own,
                                      const memo_step_plan* plan, int* differs, memo_error* error) {
    memoi_verified* v = d->v;
    memo_session* s = NULL;
    memo_error found;
    memo_status status = memo_session_open(own, plan, &s, error), ran;
    int64_t value;
    if (status) return status;
    s->watcher = d;
    s->watch = memoi_described_watch;
    ran = memoi_verified_run_once(v, s, MEMOI_VERIFIED_ONE, error);
    memo_session_destroy(s);
    if (d->spoiled == MEMOI_SPOILED_NOT) status = memob_session_verdict(v->desc, ran, error);
    if (!differs || status) return status;

    value = ran || memoi_verified_compare_all(v, "it differs", &found);
    status = memoi_described_agree(d, &value, 1, error);
    *differs = value != 0;
    return status;
}

/* What is needed for the backward, from the last tensor to the first. */
MEMOI void memoi_described_conclude(memoi_described* d) {
    const int32_t n = d->v->desc->n_tensors;
    for (int32_t u = 0; u < n; u++) {
        d->seen[u].leader = -1;
        for (int32_t t = 0; t <= u; t++) /* the nearest one */
            if (d->seen[u].most && d->seen[t].tile_rows && d->gives[(int64_t)t * n + t] &&
                d->gives[(int64_t)t * n + u] &&
                memoi_described_leader(d, t)->kinds == memoi_described_leader(d, u)->kinds)
                d->seen[u].leader = t;
    }
    for (int32_t t = n - 1; t >= 0; t--) {
        memoi_seen* seen = &d->seen[t];
        seen->is_needed |= seen->is_read;
        if (!seen->is_needed || seen->leader < 0) continue;
        d->seen[seen->leader].is_needed = 1;
        for (int32_t u = 0; u < t && seen->leader == t; u++)
            d->seen[u].is_needed |= d->needs[(int64_t)t * n + u];
    }
}

MEMOI memo_status memoi_described_create(memoi_described* d, memo_error* error) {
    const memo_session_desc* desc = d->v->desc;
    const int32_t n = desc->n_tensors;
    int64_t n_bytes = 0;
    d->seen = MEMOB_ARRAY(&d->arrays, memoi_seen, n);
    d->gives = MEMOB_ARRAY(&d->arrays, uint8_t, (int64_t)n * n);
    d->needs = MEMOB_ARRAY(&d->arrays, uint8_t, (int64_t)n * n);
    d->at = MEMOB_ARRAY(&d->arrays, int64_t, n);
    d->size_bytes = MEMOB_ARRAY(&d->arrays, int64_t, n);
    d->addresses = MEMOB_ARRAY(&d->arrays, void*, n);
    for (int32_t t = 0; t < n && !d->arrays.failed; t++) {
        const memo_item* of = memoi_described_leader(d, t);
        int64_t n_rows = of->scope == MEMO_CARRIED ? 1 : desc->n_rows;
        if (of->is & MEMO_LATE_ROWS) n_rows = desc->routed_rows_layer;
        d->seen[t].layers = MEMOB_ARRAY(&d->arrays, uint8_t, desc->n_layers);
        d->seen[t].columns = MEMOB_ARRAY(&d->arrays, uint8_t, desc->tensors[t].row_bytes);
        d->at[t] = n_bytes;
        n_bytes += memob_align_up(n_rows * desc->tensors[t].row_bytes, 8);
    }
    d->saved = MEMOB_ARRAY(&d->arrays, char, n_bytes);
    d->found = MEMOB_ARRAY(&d->arrays, char, n_bytes);
    if (d->arrays.failed) return memob_no_memory(error, "the tensors of a layer");
    memset(d->gives, desc->recompute != NULL, (size_t)n * (size_t)n);
    return MEMO_STATUS_OK;
}

/* "0-2, 5"; "none". */
MEMOI void memoi_described_put_layers(const memoi_seen* seen, int32_t n_layers, char text[28]) {
    size_t n = 0;
    strcpy(text, "none");
    for (int32_t k = 0, first; k < n_layers && n < 16; k++) {
        if (!seen->layers[k]) continue;
        for (first = k; k + 1 < n_layers && seen->layers[k + 1];) k++;
        n += (size_t)snprintf(text + n, 28 - n, k > first ? "%s%d-%d" : "%s%d", n ? ", " : "",
                              (int)first, (int)k);
    }
    if (n >= 16 && n + 4 < 28) strcpy(text + n, "...");
}

/* What a row leaves unused, or the rows of a layer. */
MEMOI void memoi_described_put_waste(const memoi_described* d, int32_t t, memo_text* text) {
    const memoi_seen* seen = &d->seen[t];
    const memo_item* item = &d->v->desc->tensors[t];
    const int is_late = memoi_described_leader(d, t)->is & MEMO_LATE_ROWS;
    int64_t first = item->row_bytes, n_unused = 0;
    for (int64_t i = item->row_bytes - 1; i >= 0; i--)
        if (!seen->columns[i]) n_unused++, first = i;
    if (n_unused)
        memo_text_put(text, "; %lld bytes of each row are never written, the first is byte %lld",
                      (long long)n_unused, (long long)first);
    if (is_late || memoi_described_leader(d, t)->scope == MEMO_CARRIED) return;
    if (seen->least < seen->most)
        memo_text_put(text, "; if the data decides how many rows, MEMO_LATE_ROWS");
    else if (seen->most < d->n_rows)
        memo_text_put(text,
                      "; only %lld bytes of %lld are written: if its rows are no tokens, a "
                      "row_bytes of %lld does",
                      (long long)seen->used_bytes, (long long)(d->n_rows * item->row_bytes),
                      (long long)((seen->used_bytes + d->n_rows - 1) / d->n_rows));
}

/* The table in words. */
MEMOI void memoi_described_put_seen(const memoi_described* d, memo_text* text) {
    const memo_session_desc* desc = d->v->desc;
    memo_text_put(text,
                  "/* As seen in a micro-batch of %lld rows.\n"
                  " * %-16s %-22s %-16s %-8s %s\n",
                  (long long)d->n_rows, "tensor", "written by layers", "rows written", "backward",
                  "recompute");

    for (int32_t t = 0; t < desc->n_tensors; t++) {
        const memoi_seen* seen = &d->seen[t];
        char layers[28], rows[48], recomputed[96] = "no";
        memoi_described_put_layers(seen, desc->n_layers, layers);
        snprintf(rows, sizeof rows, seen->least < seen->most ? "%lld to %lld" : "%lld",
                 (long long)seen->least, (long long)seen->most);
        if (seen->leader == t)
            snprintf(recomputed, sizeof recomputed, "gives it in runs of %lld",
                     (long long)seen->tile_rows);
        else if (seen->leader >= 0)
            snprintf(recomputed, sizeof recomputed, "gives it with `%.40s`",
                     memob_session_name(desc->tensors[seen->leader].name));
        if (memoi_described_is_seen(d, t))
            memo_text_put(text, " * %-16.40s %-22s %-16s %-8s %s\n",
                          memob_session_name(desc->tensors[t].name), layers, rows,
                          seen->is_read ? "reads it" : "no", recomputed);
        else
            memo_text_put(text, " * %-16.40s not looked at\n",
                          memob_session_name(desc->tensors[t].name));
    }
    memo_text_put(text, " */\n");
}

/* The line of a tensor.  away: KEEP if it is not looked at. */
MEMOI void memoi_described_put_line(const memoi_described* d, int32_t t, memo_text* text) {
    static const char* const aways[] = {"MEMO_KEEP", "MEMO_MOVE", "MEMO_ROWS", "MEMO_WHOLE",
                                        "MEMO_WITH"};
    MEMOB_TABLE_OF(MEMO_N_AWAYS, aways);
    static const char* const scopes[] = {"MEMO_SLICE", "MEMO_LAYER", "MEMO_EDGE", "MEMO_INPUT",
                                         "MEMO_CARRIED"};
    MEMOB_TABLE_OF(MEMO_N_SCOPES, scopes);
    const memo_session_desc* desc = d->v->desc;
    const memoi_seen* seen = &d->seen[t];
    const memo_item *item = &desc->tensors[t], *of = memoi_described_leader(d, t);
    const int is_seen = memoi_described_is_seen(d, t);
    const int64_t tile_rows = memob_max(desc->tile_rows, 1);
    int32_t away = is_seen ? MEMO_MOVE : item->away, is;
    const char* out = is_seen && !seen->is_needed ? "// " : "";
    if (seen->leader >= 0) away = seen->leader == t ? MEMO_ROWS : MEMO_WITH;
    is = of->is & (away == MEMO_MOVE ? ~MEMO_BY_BACKWARD : ~0);
    if (away == MEMO_ROWS && seen->tile_rows > 1 && seen->tile_rows >= d->n_rows &&
        !(is & MEMO_LATE_ROWS))
        away = MEMO_WHOLE;

    memo_text_put(text, "    %sMEMO_ITEM(\"%s\", %lld, %s", out, memob_session_name(item->name),
                  (long long)item->row_bytes, aways[away]);
    if (away != MEMO_WITH && (of->scope || is || of->kinds))
        memo_text_put(text, ", %s, %d, %uu", scopes[of->scope], (int)is, (unsigned)of->kinds);
    memo_text_put(text, "), // %s", aways[item->away]);
    if (!is_seen)
        memo_text_put(text, " stays");
    else if (!seen->most)
        memo_text_put(text, ": no forward writes it; remove it");
    else if (!seen->is_needed)
        memo_text_put(text, ": no backward needs it; make it a buffer of pass FORWARD with "
                            "MEMO_EACH_LAYER");
    else if (!seen->is_read)
        memo_text_put(text, ": only recompute reads it");
    if (away == MEMO_ROWS && seen->tile_rows > tile_rows)
        memo_text_put(text, "; tile_rows of %lld", (long long)seen->tile_rows);
    if (away == MEMO_WITH && item->away != MEMO_WITH)
        memo_text_put(text, "; keep it right behind `%.40s`",
                      memob_session_name(desc->tensors[seen->leader].name));
    if (is_seen && seen->most) memoi_described_put_waste(d, t, text);
    memo_text_put(text, "\n");
}

/* Each leader, then its followers. */
MEMOI void memoi_described_put(const memoi_described* d, memo_text* text) {
    const int32_t n = d->v->desc->n_tensors;
    memoi_described_put_seen(d, text);
    memo_text_put(text, "static const memo_item tensors[] = {\n");
    for (int32_t t = 0; t < n; t++) {
        if (d->seen[t].leader >= 0 && d->seen[t].leader != t) continue;
        memoi_described_put_line(d, t, text);
        for (int32_t u = t + 1; u < n; u++)
            if (d->seen[u].leader == t) memoi_described_put_line(d, u, text);
    }
    memo_text_put(text, "};\n");
}

/* Is a tensor read by the backward?  What cannot be spoiled safely is taken as read. */
MEMOI memo_status memoi_described_spoil(memoi_described* d, const memo_session_desc* own,
                                        const memo_step_plan* plan, int32_t t, memo_error* error) {
    memoi_seen* seen = &d->seen[t];
    int64_t values[3];
    memo_status status;
    values[0] = seen->most > 0, values[1] = seen->is_number, values[2] = seen->is_turned;
    status = memoi_described_agree(d, values, 3, error);
    if (status || !values[0]) return status;
    seen->is_turned = values[2] != 0;
    d->tensor = t;
    seen->is_read = !values[1] && !values[2];
    for (int k = MEMOI_SPOILED_TURNED; k <= MEMOI_SPOILED && !seen->is_read && !status; k++) {
        d->spoiled = (memoi_spoiled)k;
        if (values[k == MEMOI_SPOILED ? 1 : 2])
            status = memoi_described_run(d, own, plan, &seen->is_read, error);
    }
    d->spoiled = MEMOI_SPOILED_NOT;
    return status;
}

/* Runs of the kept plan: two that differ in nothing, then with each tensor spoiled, at last with
 * recompute. */
MEMOI memo_status memoi_described_runs(memoi_described* d, const memo_session_desc* own,
                                       const memo_step_plan* plan, memo_error* error) {
    static const char* const whys[] = {
        "two micro-batches differ; a kernel is not deterministic, or reads what a micro-batch "
        "changes and outputs lack",
        "`recompute` changes it; it may write tensors of its layer alone"};
    int differs = 0;
    memo_status status = memoi_described_run(d, own, plan, NULL, error);
    memoi_verified_swap(d->v);
    if (!status) status = memoi_described_run(d, own, plan, &differs, error);
    for (int32_t t = 0; t < own->n_tensors && !status && !differs; t++)
        status = memoi_described_spoil(d, own, plan, t, error);
    if (!status && !differs && own->recompute) {
        d->is_recomputed = 1;
        status = memoi_described_run(d, own, plan, &differs, error);
    }
    if (!status && differs)
        status = memoi_verified_compare_all(d->v, whys[d->is_recomputed], error);
    return memob_session_verdict(d->v->desc, status, error);
}

memo_status memo_session_describe(const memo_session_desc* desc, const memo_verify_desc* check,
                                  memo_text* text, memo_error* error) {
    memo_session_desc own;
    memo_step_plan* plan = NULL;
    memoi_verified v;
    memoi_described d;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    MEMOB_REFUSE_NULL(error, "text", text);
    memset(&v, 0, sizeof v);
    memset(&d, 0, sizeof d);
    v.caller = "memo_session_describe";
    v.desc = desc;
    if (check) v.check = *check;
    d.v = &v;

    own = memoi_verified_desc(&v);
    own.policy = MEMO_POLICY_KEEP;
    own.is_checked = 1;
    own.slice_rows = own.n_rows;
    own.device_bytes = 0;
    status = memo_session_plan(&own, NULL, &plan, error); /* it checks the desc, too */
    if (!status) {
        status = memoi_verified_create(&v, error);
        if (!status) status = memoi_described_create(&d, error);
        status = memob_session_verdict(desc, status, error);
    }
    if (!status) status = memoi_described_runs(&d, &own, plan, error);
    if (!status) {
        memoi_described_conclude(&d);
        memoi_described_put(&d, text);
        if (text->failed) status = memob_no_memory(error, "the table of tensors");
    }
    memo_step_plan_destroy(plan);
    memob_arrays_free(&d.arrays);
    memob_arrays_free(&v.arrays);
    return status;
}

#endif /* MEMO_CHECK_IMPLEMENTATION */
