#pragma once
#include "plan/session/desc.h"
/* --- >>session agreement ---
 * Knows: what ranks must agree on, and the session that is made of a desc: its shapes, which states
 * its plan streams, and whether a plan that is opened is of the desc.  Knows nothing of how a plan
 * is found.
 *
 * Ranks must make the same calls of agree, or ranks would wait for each other for ever.  So each
 * phase that can fail ends with a call of agree, which carries the status.  Whatever a decision
 * depends on is agreed first; decisions are then the same without a word.
 *
 * A session that plans or opens keeps its first failure, and goes on to the end of the phase, where
 * memoi_session_settle makes it every rank's failure.  From then on nothing is exchanged, and no
 * stage fits, so that all loops end. */

/* values[0] is the status; every other value becomes its maximum.  Fails on every rank if a rank
 * has failed. */
MEMOI MEMOB_NOINLINE memo_status memoi_session_agree(const memo_session_desc* desc,
                                                     memo_status status, int64_t* values, int64_t n,
                                                     memo_error* error) {
    memo_status agreed;
    memo_error own;
    if (!desc->agree) return status;
    values[0] = (int64_t)status;
    agreed = desc->agree(desc->user, values, n, &own);
    if (status) return status;
    if (agreed) {
        if (error) *error = own;
        return agreed;
    }
    if (!values[0]) return MEMO_STATUS_OK;
    return memo_error_set(error, (memo_status)values[0],
                          "memo_session: another rank failed (%s); its message gives the reason",
                          memo_status_name((memo_status)values[0]));
}

MEMOI MEMOB_NOINLINE memo_status memob_session_verdict(const memo_session_desc* desc,
                                                       memo_status status, memo_error* error) {
    int64_t value;
    return memoi_session_agree(desc, status, &value, 1, error);
}

/* Ends a phase of a session that plans or opens, with values as above. */
MEMOI MEMOB_NOINLINE void memoi_session_settle_values(memo_session* s, int64_t* values, int64_t n) {
    memo_status status;
    if (s->all_failed) return;
    status = memoi_session_agree(&s->desc, s->failure.status, values, n, &s->call_error);
    s->all_failed = status != MEMO_STATUS_OK;
    memoi_keep(s, status);
}
MEMOI void memoi_session_settle(memo_session* s) {
    int64_t value;
    memoi_session_settle_values(s, &value, 1);
}

/* Hashes the values that must match on all ranks, of lines of a kind; MEMOI_LINE_KINDS: all other
 * values.  The hash is not negative: agree needs -hash. */
MEMOI int64_t memoi_session_digest(const memo_session* s, int32_t of) {
    memoi_step_plan_line line;
    uint64_t digest = 0;
    for (int32_t k = 0; k < s->desc.n_shapes; k++)
        for (int64_t i = 0; memoi_step_plan_get_line(s->parts[k].plan, i, &line); i++)
            for (int32_t v = 0; v < line.n; v++) {
                if ((v < line.n_same ? line.of : (int32_t)MEMOI_LINE_KINDS) != of) continue;
                digest = 31 * digest + memob_hash((const char*)&line.values[v], 8);
                if (v == 0 && line.name)
                    digest = 31 * digest + memob_hash(line.name, (int64_t)strlen(line.name));
            }
    return (int64_t)(digest >> 2);
}

/* Hashes n and bytes [begin, end) of each struct; the name before begin is left out. */
MEMOI int64_t memoi_session_digest_table(const void* table, int64_t n, size_t stride, size_t begin,
                                         size_t end) {
    uint64_t digest = (uint64_t)n;
    for (const char* at = (const char*)table; n > 0; n--, at += stride)
        digest = 31 * digest + memob_hash(at + begin, (int64_t)(end - begin));
    return (int64_t)(digest >> 2);
}
#define MEMOI_DIGEST_TABLE(table, n, type, first, last)                                            \
    memoi_session_digest_table(table, n, sizeof(type), offsetof(type, first),                      \
                               offsetof(type, last) + sizeof((table)->last))

/* Descs must match, and budgets become the least.  has_profile: of the call. */
MEMOI void memoi_session_meet(memo_session* s, int has_profile) {
    enum { N_NUMBERS = MEMOI_N_ALIKE, N = N_NUMBERS + 11 };
    memo_session_desc* own = &s->desc;
    int64_t* const budgets[] = {&own->device_bytes, &own->host_bytes, &own->disk_bytes};
    MEMOB_TABLE_OF(MEMO_N_TIERS, budgets);
    const memob_value* numbers = memoi_session_alike;
    const struct {
        const char* field;
        int64_t value;
    } others[N - N_NUMBERS] = {
        {"shapes", memoi_session_digest(s, MEMOI_LINE_SHAPE)},
        {"tensors", memoi_session_digest(s, MEMOI_LINE_TENSOR)},
        {"layer_kinds", memoi_session_digest(s, MEMOI_LINE_STEP)},
        {"order", memoi_session_digest(s, MEMOI_LINE_TURN)},
        {s->own_plan ? "rows" : NULL, memoi_session_digest(s, MEMOI_LINE_KINDS)},
        {"buffers",
         MEMOI_DIGEST_TABLE(own->buffers, own->n_buffers, memo_session_buffer, size_bytes, kinds)},
        {"states", MEMOI_DIGEST_TABLE(own->states, own->n_states, memo_state, size_bytes, kinds)},
        {"update_on", own->update_host ? 1 + (int64_t)own->update_on : 0},
        {"spill_directory", own->spill_directory != NULL},
        {"alpha", (int64_t)(memob_hash((const char*)&own->alpha, sizeof own->alpha) >> 2)},
        {"profile", has_profile}};
    int64_t values[1 + 2 * N + MEMO_N_TIERS], *highest = values + 1, *lowest = highest + N;
    for (int32_t k = 0; k < N_NUMBERS; k++)
        highest[k] = memob_record_number(&numbers[k], (const char*)own + numbers[k].offset);
    for (int32_t k = N_NUMBERS; k < N; k++) highest[k] = others[k - N_NUMBERS].value;

    /* A value and its negative: the two maxima show whether the value is the same everywhere. */
    for (int32_t k = 0; k < N; k++) lowest[k] = -highest[k];
    for (int32_t k = 0; k < MEMO_N_TIERS; k++)
        lowest[N + k] = *budgets[k] ? -*budgets[k] : -INT64_MAX;
    memoi_session_settle_values(s, values, 1 + 2 * N + MEMO_N_TIERS);
    for (int32_t k = 0; k < N; k++)
        if (highest[k] != -lowest[k]) {
            const char* field = k < N_NUMBERS ? numbers[k].what : others[k - N_NUMBERS].field;
            memoi_keep(s, MEMOB_INVALID(&s->call_error,
                                        "%s%s: not the same on all ranks; give all ranks the same",
                                        field ? "memo_session_desc." : "memo_session_open: plan",
                                        field ? field : ""));
        }
    for (int32_t k = 0; k < MEMO_N_TIERS; k++)
        *budgets[k] = lowest[N + k] == -INT64_MAX ? 0 : -lowest[N + k];
}

/* The longest times.  Times are not negative, or -1 on every rank, so that the order of bits is the
 * order of times.  Names and sizes are the same everywhere.  Not inlined: the copy would stay on
 * the stack of callers, who go on to plan. */
MEMOI MEMOB_NOINLINE void memoi_session_settle_profile(memo_session* s, memo_profile* profile) {
    int64_t values[1 + sizeof(memo_profile) / sizeof(int64_t)]; /* the first carries the status */
    memcpy(values + 1, profile, sizeof *profile);
    memoi_session_settle_values(s, values, (int64_t)(sizeof values / sizeof *values));
    memcpy(profile, values + 1, sizeof *profile);
}

/* A plan must be of the session's shapes and tensors, because kernels rely on it, and fit.  What
 * lives as long as the session lies at one address. */
MEMOI memo_status memoi_session_match(const memo_session* s, const memo_step_plan* first,
                                      memo_error* error) {
    const memo_step_plan *plan = first, *lacking = NULL;
    memoi_step_plan_line own, found;
    char text[200] = "";
    for (int32_t k = 0; k < s->desc.n_shapes; k++, plan = plan->next) {
        if (!plan || (plan->next != NULL) != (k + 1 < s->desc.n_shapes))
            snprintf(text, sizeof text, "the session has %d shapes", (int)s->desc.n_shapes);
        for (int64_t i = 0; !*text && memoi_step_plan_get_line(s->parts[k].plan, i, &own); i++) {
            (void)memoi_step_plan_get_line(plan, i, &found);
            memoi_step_plan_differs(&own, &found, text, sizeof text);
        }
        if (*text)
            return MEMOB_INVALID(error, "memo_session_open: shape %d of the plan: %s; plan again",
                                 (int)k, text);
        if (!plan->fits && (!lacking || plan->device_bytes > lacking->device_bytes)) lacking = plan;

        /* Buffers that live as long as the session. */
        for (int64_t i = memob_min(plan->addresses->n_buffers, first->addresses->n_buffers) - 1;
             i > 0; i--) {
            const memo_buffer *a = &first->addresses->buffers[i], *b = &plan->addresses->buffers[i];
            const int lasts = a->memory_class == MEMO_CLASS_PERSISTENT;
            if (lasts == (b->memory_class == MEMO_CLASS_PERSISTENT) &&
                (!lasts || (a->offset_bytes == b->offset_bytes && a->size_bytes == b->size_bytes)))
                continue;
            return MEMOB_INVALID(error,
                                 "memo_session_open: shape %d of the plan: buffers of the session "
                                 "lie at other addresses than in shape 0; plan again",
                                 (int)k);
        }
    }

    return lacking ? memo_error_set(error, MEMO_STATUS_INFEASIBLE, "%s", lacking->shortage)
                   : MEMO_STATUS_OK;
}

/* 1: the trainer updates states there. */
MEMOI int memoi_session_updates(const memo_session_desc* desc, int on_host) {
    return on_host ? desc->update_host != NULL : desc->update != NULL;
}

/* Copies the kinds of layers, with those of FIRST and LAST.  Checks the table of states, and
 * prepares the engine's desc, in which nothing is streamed yet. */
MEMOI memo_status memoi_session_take_states(memo_session* s, memo_error* error) {
    memo_session_desc* desc = &s->desc;
    memob_states_desc* states = &s->states_desc;
    memo_state* table = (memo_state*)(uintptr_t)desc->states; /* the session's copy */
    const uint32_t ends = MEMO_STATE_FIRST | MEMO_STATE_LAST;
    const int on_host = desc->update_on == MEMO_UPDATE_HOST;
    const int32_t n_layers = desc->n_layers + 2; /* with FIRST and LAST */
    int32_t *kinds = MEMOB_ARRAY(&s->kept, int32_t, n_layers), *turns;
    if (!kinds) return memob_no_memory(error, "the kinds of layers");
    if (desc->layer_kinds)
        memcpy(kinds + 1, desc->layer_kinds, (size_t)desc->n_layers * sizeof *kinds);
    desc->layer_kinds = kinds + 1; /* all 0 without the caller's */
    if (!desc->n_states) return MEMO_STATUS_OK;

    if (!memoi_session_updates(desc, on_host))
        return MEMOB_INVALID(error, "memo_session_desc.%s: NULL, but n_states is %d; set it",
                             on_host ? "update_host" : "update", (int)desc->n_states);
    if (on_host && (desc->states_stay || desc->n_layers < 2))
        return MEMOB_INVALID(error,
                             "memo_session_desc.update_on: HOST, but %s; choose PLANNED or "
                             "DEVICE",
                             desc->states_stay ? "states_stay is 1" : "one layer");

    for (int32_t i = 0; i < desc->n_states; i++) {
        const int is_shared = (desc->states[i].uses & MEMO_STATE_SHARED) != 0;
        if ((desc->states[i].kinds & ends) == ends && !is_shared)
            return MEMOB_INVALID(error,
                                 "memo_session_desc.states[%d].kinds: FIRST and LAST, which would "
                                 "be two states; add MEMO_STATE_SHARED to its uses, or declare "
                                 "one of each",
                                 (int)i);
        if (is_shared && desc->update_host)
            return MEMOB_INVALID(error,
                                 "memo_session_desc.states[%d].uses: SHARED, but update_host is "
                                 "set; leave one of them out",
                                 (int)i);
        if (!desc->states[i].kinds) table[i].kinds = ~ends;
    }

    s->streamed = MEMOB_ARRAY(&s->kept, uint32_t, n_layers);
    s->spilled = MEMOB_ARRAY(&s->kept, uint32_t, n_layers);
    s->whole = MEMOB_ARRAY(&s->kept, int64_t, 2 * (int64_t)n_layers * desc->n_states);
    s->masks = MEMOB_ARRAY(&s->kept, uint32_t, n_layers);
    turns = MEMOB_ARRAY(&s->kept, int32_t, desc->n_order);
    if (s->kept.failed) return memob_no_memory(error, "the states of layers");

    for (int32_t i = 0; i < desc->n_layers; i++)
        if (kinds[1 + i] < 0 || kinds[1 + i] >= 30)
            return MEMOB_INVALID(
                error,
                "memo_session_desc.layer_kinds[%d]: out of range (%d); with states "
                "0 to 29 are valid",
                (int)i, (int)kinds[1 + i]);

    /* Kinds of the states before the first layer and behind the last. */
    kinds[0] = 30;
    kinds[n_layers - 1] = 31;

    /* The turns of an order, by their chunks. */
    states->n_chunks = memoi_session_n_chunks(desc);
    for (int32_t k = 0; k < desc->n_order; k++) {
        const int32_t chunk = desc->order[k].chunk;
        turns[k] = desc->order[k].pass == MEMO_PASS_BACKWARD ? -1 - chunk : chunk;
    }
    states->turns = desc->n_order ? turns : NULL;
    states->n_turns = desc->n_order;

    states->states = s->desc.states;
    states->n_states = desc->n_states;
    states->n_layers = n_layers;
    states->layer_kinds = kinds;
    states->streamed = s->streamed;
    states->spilled = s->spilled;
    return memob_states_get_sizes(states, &s->states_sizes, error);
}

/* When the states of a table leave the device, by what streaming costs: first those that the update
 * alone uses, or forwards alone, then gradients, FETCHED ones, which take no host memory, and
 * others. */
MEMOI int32_t memoi_session_leaves(uint32_t uses) {
    uses &= ~(uint32_t)(MEMO_STATE_MADE | MEMO_STATE_ALONE | MEMO_STATE_SHARED);
    if (!uses || uses == MEMO_STATE_UPDATE) return 0;
    if (uses == MEMO_STATE_GRADIENT) return 1;
    return uses & MEMO_STATE_FETCHED ? 2 : 3;
}

/* Bytes of a state in all layers. */
MEMOI double memoi_session_state_bytes(const memo_session* s, int32_t state) {
    const memob_states_desc* desc = &s->states_desc;
    const memo_state* of = &desc->states[state];
    int64_t n = 0;
    for (int32_t layer = 0; layer < desc->n_layers; layer++)
        n += !of->kinds || of->kinds >> desc->layer_kinds[layer] & 1;
    if (of->uses & MEMO_STATE_SHARED) n = n > 0;
    return (double)n * (double)of->size_bytes;
}

/* The turn of each state.  Small ones, beside the largest, leave behind others: they free little
 * memory, but a layer with a streamed state has a place, for which those of other layers wait.
 * SHARED ones leave last, each with all its layers. */
enum { MEMOI_TURN_SMALL = 4, MEMOI_TURN_SHARED, MEMOI_N_TURNS };
#define MEMOI_SMALL 0.03125
MEMOI void memoi_session_take_turns(const memo_session* s, int32_t* turns) {
    double state_bytes[MEMO_STATES_MAX], largest_bytes = 0;
    for (int32_t i = 0; i < s->states_desc.n_states; i++) {
        state_bytes[i] = memoi_session_state_bytes(s, i);
        largest_bytes = fmax(largest_bytes, state_bytes[i]);
    }
    for (int32_t i = 0; i < s->states_desc.n_states; i++) {
        const uint32_t uses = s->desc.states[i].uses;
        turns[i] = memoi_session_leaves(uses);
        if (state_bytes[i] < MEMOI_SMALL * largest_bytes) turns[i] = MEMOI_TURN_SMALL;
        if (uses & MEMO_STATE_SHARED && memoi_session_leaves(uses)) turns[i] = MEMOI_TURN_SHARED;
    }
}

/* Sets the bits of the first n states of layers that leave the device, or (to_file) the host, for
 * whose file no SHARED state leaves. */
MEMOI void memoi_session_take_first(const memo_session* s, int64_t n, int to_file, uint32_t* bits) {
    const int64_t n_layers = s->states_desc.n_layers;
    const int32_t n_states = s->states_desc.n_states;
    int32_t turns[MEMO_STATES_MAX];
    memset(bits, 0, (size_t)n_layers * sizeof *bits);
    memoi_session_take_turns(s, turns);
    for (int32_t k = 0; k < MEMOI_N_TURNS * n_states; k++) {
        const int32_t i = k % n_states;
        const uint32_t uses = s->desc.states[i].uses;
        const int is_shared = turns[i] == MEMOI_TURN_SHARED;
        const int64_t count = is_shared && n > 0 ? n_layers : memob_min(n, n_layers);
        if (turns[i] != k / n_states || (to_file && (is_shared || uses & MEMO_STATE_FETCHED)))
            continue;
        for (int64_t layer = 0; layer < n_layers; layer++)
            if ((layer + 1) * count / n_layers > layer * count / n_layers) bits[layer] |= 1u << i;
        n -= is_shared ? n > 0 : count;
    }
    if (n_layers <= 3) bits[0] = 0; /* FIRST, one layer and LAST are open at once */
}

/* How many of the first states of layers have a share of the bytes of all. */
MEMOI int64_t memoi_session_first_of(const memo_session* s, double share) {
    const int32_t n_states = s->states_desc.n_states;
    int32_t turns[MEMO_STATES_MAX];
    double left_bytes = 0;
    int64_t n = 0;
    memoi_session_take_turns(s, turns);
    for (int32_t i = 0; i < n_states; i++) left_bytes += share * memoi_session_state_bytes(s, i);

    for (int32_t k = 0; k < MEMOI_N_TURNS * n_states; k++) {
        const int32_t i = k % n_states;
        const int64_t count = turns[i] == MEMOI_TURN_SHARED ? 1 : s->states_desc.n_layers;
        if (turns[i] != k / n_states) continue;
        const double state_bytes = memoi_session_state_bytes(s, i);
        if (left_bytes <= state_bytes && state_bytes > 0)
            return n + (int64_t)ceil(left_bytes / state_bytes * (double)count);
        left_bytes -= state_bytes;
        n += count;
    }
    return n;
}

MEMOI memo_status memoi_session_update_host(void* session, int32_t layer, memo_error* error) {
    memo_session* s = (memo_session*)session;
    void* states[MEMO_STATES_MAX];
    const double begin_s = memob_now_s();
    for (int32_t i = 0; i < s->desc.n_states; i++)
        states[i] = memob_states_get_host_address(s->states, layer, i);
    s->desc.update_host(s->desc.user, layer - 1, states);
    (void)error;
    s->timing.host_s += memob_now_s() - begin_s;
    s->timing.host_bytes += memob_states_update_bytes(s->states, layer);
    return MEMO_STATUS_OK;
}

/* The status of a function of the trainer that takes or gives bytes of a state.  Its error names
 * the state, which other threads do not know as the trainer does. */
MEMOI memo_status memoi_session_name_bytes(const memo_session* s, const char* function,
                                           int32_t layer, int32_t state, int64_t at,
                                           int64_t n_bytes, memo_status status,
                                           const memo_error* why, memo_error* error) {
    if (!status) return status;
    return memo_error_set(error, status, "%s: layer %d, state `%.32s`, bytes %lld to %lld: %.300s",
                          function, (int)layer - 1, memob_session_name(s->desc.states[state].name),
                          (long long)at, (long long)(at + n_bytes),
                          *why->message ? why->message : memo_status_name(status));
}

MEMOI memo_status memoi_session_fetch(void* session, int32_t layer, int32_t state, int64_t at,
                                      void* to, int64_t n_bytes, memo_error* error) {
    const memo_session* s = (const memo_session*)session;
    memo_error why = MEMO_ZERO(memo_error);
    const memo_status status = s->desc.fetch(s->desc.user, layer - 1, state, at, to, n_bytes, &why);
    return memoi_session_name_bytes(s, "memo_session_desc.fetch", layer, state, at, n_bytes, status,
                                    &why, error);
}

/* Streams, spills and updates states as the current plan says. */
MEMOI void memoi_session_stream(memo_session* s) {
    const memo_step_plan* plan = s->part->plan;
    if (!s->streamed) return;
    s->states_desc.device = s->device;
    s->states_desc.compute_stream = s->desc.compute_stream;
    s->states_desc.computes_on_host = s->desc.computes_on_host;
    s->states_desc.spill_directory = s->desc.spill_directory;
    s->states_desc.spill_bytes_per_s = s->desc.spill_bytes_per_s;
    s->states_desc.update_at = plan->update_at;
    s->states_desc.trainer.update_host = plan->update_is_on_host ? memoi_session_update_host : NULL;
    s->states_desc.trainer.fetch = s->desc.fetch ? memoi_session_fetch : NULL;
    s->states_desc.trainer.user = s;
    memoi_session_take_first(s, plan->n_streamed, 0, s->streamed);
    memoi_session_take_first(s, plan->n_spilled, 1, s->spilled);
    memoi_keep(s, memob_states_get_sizes(&s->states_desc, &s->states_sizes, &s->call_error));
}

/* Makes a plan of each shape, without rows but those of the desc. */
MEMOI memo_status memoi_session_fill(memo_session* s, memo_error* error) {
    memo_session_desc* desc = &s->desc;
    memo_step_plan** next = &s->own_plan;
    const int64_t* rows = desc->policy == MEMO_POLICY_ROWS ? desc->rows : NULL;
    const memo_shape all = {desc->n_rows, 0};
    const int32_t n = (int32_t)memob_max(desc->n_shapes, 1);
    if (!desc->slice_rows || desc->slice_rows > desc->n_rows) desc->slice_rows = desc->n_rows;
    for (int32_t k = 0; k < n; k++, next = &(*next)->next) {
        const memo_status status =
            memoi_step_plan_create(desc, desc->n_shapes ? desc->shapes[k] : all, rows, next, error);
        s->parts[k].plan = *next;
        if (status) return status;
        s->most_steps = memob_max(s->most_steps, (*next)->swap.n_layers);
        if (rows) rows += (int64_t)(*next)->swap.n_layers * desc->n_tensors;
    }
    desc->n_shapes = n;
    memoi_session_use_shape(s, 0);
    memoi_session_stream(s);
    return MEMO_STATUS_OK;
}

/* The plan that is opened takes the place of the session's own. */
MEMOI memo_status memoi_session_take_plan(memo_session* s, const memo_step_plan* plan,
                                          memo_error* error) {
    const int on_host = plan->update_is_on_host;
    const memo_status status = memoi_session_match(s, plan, error);
    if (status) return status;
    if (s->streamed && !memoi_session_updates(&s->desc, on_host))
        return MEMOB_INVALID(error, "memo_session_desc.%s: NULL, but the plan needs it; set it",
                             on_host ? "update_host" : "update");
    memo_step_plan_destroy(s->own_plan);
    s->own_plan = NULL;
    for (int32_t k = 0; plan; plan = plan->next) /* never written to, nor destroyed */
        s->parts[k++].plan = (memo_step_plan*)(uintptr_t)plan;
    memoi_session_use_shape(s, 0);
    memoi_session_stream(s);
    return memcmp(s->part->plan->bytes[0], s->states_sizes.bytes[0],
                  sizeof s->states_sizes.bytes[0])
               ? MEMOB_INVALID(error, "memo_session_desc.states: the plan was made for other "
                                      "states; plan again")
               : MEMO_STATUS_OK;
}

/* The log that MEMO_CHECK gives a program without one. */
MEMOI void memoi_session_write_line(MEMO_UNUSED void* user, const char* line) {
    (void)fprintf(stderr, "%s\n", line);
}

/* The caller's desc, checked, with copies of what it points to, and what follows from it; as in
 * memoi_session_make. */
MEMOI memo_status memoi_session_take_desc(memo_session* s, const memo_session_desc* desc,
                                          const memo_step_plan* plan, memo_error* error) {
    const char* check = getenv("MEMO_CHECK");
    memo_status status;
    s->desc = *desc;
    s->timing.policy = desc->policy;
    s->timing.n_group = desc->n_group;
    if (check && *check && strcmp(check, "0")) {
        s->desc.is_checked = 1;
        if (!s->desc.log.write) s->desc.log.write = memoi_session_write_line;
    }
    if (desc->alpha < 0) s->desc.alpha = -1; /* the same on all ranks */
    if (plan) {
        s->desc.policy = MEMO_POLICY_KEEP; /* the plan decides */
        if (!desc->slice_rows) s->desc.slice_rows = plan->slice_rows;
    }
    if (desc->n_group == MEMO_GROUP_PLANNED) s->desc.n_group = plan ? plan->n_group : 1;
    status = memoi_session_check_desc(&s->desc, plan != NULL, error);
    if (!status) status = memoi_session_copy_desc(s, plan != NULL, error);
    if (!status) status = memoi_session_take_states(s, error);
    if (!status) status = memoi_session_take_device(s, plan != NULL, error);
    if (!status) status = memoi_session_take_budget(s, plan != NULL, error);
    if (!status) status = memoi_session_fill(s, error);
    return status || !plan ? status : memoi_session_take_plan(s, plan, error);
}

/* A session for one of the public calls, which may have failed; plan not NULL: the session will run
 * this plan.  Checks, then agrees, so that no rank is left waiting.  NULL: OUT_OF_HOST_MEMORY. */
MEMOI memo_session* memoi_session_make(const memo_session_desc* desc, const memo_step_plan* plan,
                                       int has_profile, memo_error* error) {
    memo_session* s = (memo_session*)memob_calloc(1, sizeof *s);
    if (!s) {
        (void)memob_session_verdict(desc, memob_no_memory(error, "a session"), error);
        return NULL;
    }
    memoi_keep(s, memoi_session_take_desc(s, desc, plan, &s->call_error));
    memoi_session_settle(s);
    if (!s->failure.status && desc->agree) memoi_session_meet(s, has_profile);
    return s;
}
