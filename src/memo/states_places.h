#pragma once
#include "memo/cursor.h"
#include "memo/poison.h"
/* ---- >>states places ----------------------------------------------------------------------------
 * Knows: the struct of the engine, where states lie on each tier, and which states a pass uses.
 * Knows nothing of the order of a step.
 *
 * A resident state stays on the device.  A streamed state lies in pinned host memory; its bytes
 * come to the device before a visit of its layer uses them, and go back after one has changed them.
 *
 * Layers with streamed states use two places on the device in turn, so the states of one layer
 * travel while another layer computes.  One place begins at the bottom of an area and one at its
 * top; the area is as large as any two neighbors together.  A place has all states of a layer:
 * those of the optimizer are free all through the backward, so the first updates find theirs there.
 * What all layers share (an embedding) is a layer of its own kind.
 *
 * Third tier: a file.  Spilled states pass through two places on the host, one for each place on
 * the device.  So do FETCHED ones, which lie nowhere in memo's memory: a function of the caller
 * takes the place of the file.
 *
 * Shared states are of their lowest layer.  What only the update uses is that layer's alone, as if
 * it were not shared.  Others that are streamed have a stay in each layer's place, first of all,
 * and so an address by layer.  Neighbors that share a state have it in one place, as they are open
 * at once.
 *
 * Update on the host.  States that only the update uses never leave the host, and have no place on
 * the device.
 *
 * 1. A state is one of the table's.
 * 2. What a place holds of a layer lies in the area of places. */

/* Takes bytes [at, at + n_bytes) of a state. */
typedef memo_status (*memob_write_function)(void* user, int32_t layer, int32_t state, int64_t at,
                                            const void* bytes, int64_t n_bytes, memo_error* error);

/* What the trainer does.  A failure of `update` or `look` ends the visit. */
typedef struct memob_states_trainer {
    memo_status (*update)(void* user, int32_t layer); /* enqueues the update of a layer */
    /* NULL, or called behind each begin and before each end of a layer's pass or update, but for
     * the begin of a fused update on the device. */
    memo_status (*look)(void* user, int32_t pass, int32_t layer, int is_end);
    /* NULL: `update` is called.  Otherwise the engine calls this function for each layer on a
     * thread of the device, by launch_host on the file's stream.  All states that the update uses
     * are then streamed and not spilled; they are at memob_states_get_host_address.  The function
     * may run as late as the next forward of the layer, so what changes from step to step, such as
     * a step number, belongs in a state. */
    memo_status (*update_host)(void* user, int32_t layer, memo_error* error);
    memob_fetch_function fetch; /* gives FETCHED states, from threads of the device, too */
    void* user;                 /* the first argument of all */
} memob_states_trainer;

/* Start from all zero. */
typedef struct memob_states_desc {
    const memo_device* device; /* checked; may be NULL unless an engine is created */
    memo_stream compute_stream;
    int32_t computes_on_host; /* as in memo_swap_desc */
    const memo_state* states; /* copied; at most MEMO_STATES_MAX */
    int32_t n_states, n_layers;
    const int32_t* layer_kinds; /* (n_layers), copied: 0 to 31; NULL: all layers are of kind 0 */
    const uint32_t* streamed;   /* (n_layers), copied.  Bit s: state s is streamed; NULL: none */
    /* Likewise: those of them that lie in a file; NULL: none.  Bits of FETCHED ones do nothing. */
    const uint32_t* spilled;
    const char* spill_directory; /* of the file, as in memo_swap_desc, as the next */
    double spill_bytes_per_s;
    int32_t update_at; /* memo_update_at; 0: PASS.  On the host DEFERRED is PASS, too */
    /* (n_turns), copied: the turns of an order, c: forwards of chunk c, -1 - c: its backwards.  The
     * layers between the first and the last are n_chunks equal parts.  NULL: a micro-batch at a
     * time. */
    const int32_t* turns;
    int32_t n_turns, n_chunks;
    void *device_memory, *host_memory; /* as in memo_swap_desc */
    memob_states_trainer trainer;
} memob_states_desc;

typedef struct memob_states_sizes {
    int64_t bytes[MEMO_N_TIERS][MEMO_OWNER_PLACES + 1]; /* the next are sums of them */
    int64_t device_bytes;                               /* resident_bytes + the area of places */
    int64_t host_bytes;                                 /* pinned */
    int64_t resident_bytes, fetched_bytes; /* the second: of the first, of FETCHED states */
    int64_t spill_bytes;                   /* of the file */
    uint64_t digest; /* of the states of layers that are streamed, and of those in the file */
} memob_states_sizes;

typedef struct memob_states_layer {
    uint32_t has, streamed, spilled; /* bit s: state s.  spilled: also FETCHED ones that stream */
    /* SHARED ones: of a lower layer, which updates them; that a higher layer's backward begins. */
    uint32_t lent, begun, on_top; /* the last: those that are streamed, and lie in place 1 */
    int32_t place;                /* 0 or 1; -1: nothing is streamed */
    int32_t has_gradients;        /* a backward of this step has ended */
    int32_t open_pass;            /* 1 + memob_pass; 0: the layer is closed */
} memob_states_layer;

/* The update of a layer on the host. */
typedef struct memob_states_update {
    memo_host_call call;
    struct memob_states* states;
    int32_t layer;
} memob_states_update;

typedef struct memob_states {
    memob_sink sink; /* memory.spill_ops: (n_layers, n_states, 2); NULL: nothing has windows */
    int32_t update_at, n_layers, n_states; /* update_at: memo_update_at */
    int32_t* turns;                        /* of the desc */
    int32_t n_turns, n_chunks;
    memo_state states[MEMO_STATES_MAX];
    uint32_t gradients, updated;      /* which states they are */
    uint32_t made;                    /* the update writes all their bytes */
    uint32_t fetched;                 /* the caller's function gives them */
    uint32_t alone;                   /* a forward of no backward reads them, too */
    uint32_t shared;                  /* one copy for all layers */
    uint32_t used_by[MEMOB_N_PASSES]; /* (memob_pass): which states each pass uses, and gradients */
    uint32_t hosted;                  /* those that never leave the host */
    int32_t home[MEMO_STATES_MAX];    /* of SHARED ones: their lowest layer */
    int32_t shared_items[MEMO_STATES_MAX]; /* of SHARED ones that are streamed; -1: none */
    int64_t shared_at[MEMO_STATES_MAX];    /* where they lie in a place */
    memob_states_trainer trainer;
    memob_states_update* updates; /* (n_layers); NULL: not on the host */
    memob_states_layer* layers;   /* (n_layers) */
    memob_state_bytes* bytes;     /* (n_layers, n_states): the law's items */
    memob_states_sizes sizes;

    /* Items, l * n_states + s: state s of layer l. */
    memob_item* items;
    char* ends; /* 1: a gradient, whose value ends with the update */
    int32_t n_slots[MEMO_N_TIERS];
    int64_t* slot_at; /* of each slot of the device: its begin */
    memob_moves moves;
    memob_there there;
    memob_step* steps; /* of each number of slices and rounds: where a step is */

    /* The step that is under way. */
    memob_step* step;                  /* the latest; NULL: none yet */
    int32_t round;                     /* rounds of it so far */
    int32_t n_rounds, n_rounds_before; /* of the latest whole step, and of the one before */
    int32_t is_running;                /* visits are under way: of a round, or of updates alone */
    int32_t is_alone;                  /* the second */
    int32_t is_last, is_forward_only;  /* of the latest round */
    int32_t n_updates;                 /* begun in it, or in the latest updates alone */
    int32_t is_due;                    /* the update comes next */
    int32_t n_pending;                 /* layers whose update is deferred, and has not begun */
    int32_t is_filling;     /* the update fills states, and may leave bytes as they are */
    uint32_t* masks;        /* (n_layers): the states that this step uses */
    int32_t n_updating;     /* layers that it updates */
    int32_t passes_updates; /* deferred updates: none runs in this step */
    memob_snapshot snapshot;
    memob_write_function snapshot_write; /* with trainer.user */
    char* kept_bytes; /* room for a piece of the file, then resident states; NULL: no snapshot */
    int64_t* kept_at; /* (n_items): of resident states */
    int64_t n_unseen; /* updates since all streams were synchronized without an error */
} memob_states;

/* Are these the uses of a state? */
MEMOI int memoi_states_are_uses(uint32_t uses) {
    const uint32_t frozen = MEMO_STATE_FORWARD | MEMO_STATE_BACKWARD;
    uses &= ~(uint32_t)MEMO_STATE_SHARED;
    if (uses & MEMO_STATE_ALONE) uses = (uses & ~(uint32_t)MEMO_STATE_ALONE) | MEMO_STATE_FORWARD;
    if (uses & MEMO_STATE_UPDATE)
        uses &= ~(uint32_t)MEMO_STATE_MADE;
    else if (uses & frozen)
        uses &= ~(uint32_t)MEMO_STATE_FETCHED;
    return uses > 0 && uses <= MEMO_STATE_GRADIENT;
}

/* The sizes and uses of states; all else of a desc is a session's.  With this limit no sum of bytes
 * overflows. */
MEMOI memo_status memoi_states_check_desc(const memob_states_desc* desc, memo_error* error) {
    for (int32_t i = 0; i < desc->n_states; i++) {
        const memo_state* state = &desc->states[i];
        if (!memob_is_within(state->size_bytes, 0, MEMOB_BYTES_MAX / desc->n_layers / 64))
            return MEMOB_INVALID(
                error,
                "memo_session_desc.states[%d].size_bytes: %lld bytes in each of %d "
                "layers; 0 to 2^56 in all are valid",
                (int)i, (long long)state->size_bytes, (int)desc->n_layers);
        if (!memoi_states_are_uses(state->uses))
            return MEMOB_INVALID(error,
                                 "memo_session_desc.states[%d].uses: %u; with or without _SHARED a "
                                 "sum of "
                                 "MEMO_STATE_FORWARD, _BACKWARD, _ALONE and _UPDATE, with _UPDATE "
                                 "also _MADE, without it also _FETCHED, or MEMO_STATE_GRADIENT "
                                 "and no other, is valid",
                                 (int)i, (unsigned)state->uses);
    }
    return MEMO_STATUS_OK;
}

/* Bytes that the update of a layer uses. */
MEMOI double memob_states_update_bytes(const memob_states* states, int32_t layer) {
    const memob_states_layer* l = &states->layers[layer];
    const uint32_t used = l->has & ~l->lent & (states->updated | states->gradients);
    double n_bytes = 0;
    for (int32_t s = 0; s < states->n_states; s++)
        if (used >> s & 1) n_bytes += (double)states->states[s].size_bytes;
    return n_bytes;
}

MEMOI memob_state_bytes* memoi_states_bytes(const memob_states* states, int32_t layer,
                                            int32_t state) {
    MEMO_ASSERT(layer >= 0 && layer < states->n_layers && state >= 0 && /* 1 */
                state < states->n_states);
    return &states->bytes[(int64_t)layer * states->n_states + state];
}

/* The layer whose bytes they are: of a SHARED state the lowest that has it. */
MEMOI int32_t memob_states_home(const memob_states* states, int32_t layer, int32_t state) {
    return states->layers[layer].lent >> state & 1 ? states->home[state] : layer;
}

MEMOI memo_owner memoi_states_owner(const memo_state* state) {
    if (state->uses & MEMO_STATE_GRADIENT) return MEMO_OWNER_GRADIENTS;
    return state->uses & (MEMO_STATE_FORWARD | MEMO_STATE_BACKWARD | MEMO_STATE_ALONE)
               ? MEMO_OWNER_WEIGHTS
               : MEMO_OWNER_OPTIMIZER;
}

/* 1: states pass through windows on the host: spilled or FETCHED ones. */
MEMOI int memoi_states_have_windows(const memob_states* states) {
    return states->sizes.bytes[MEMO_TIER_HOST][MEMO_OWNER_PLACES] > 0;
}

/* The SHARED states of a layer that are streamed. */
MEMOI uint32_t memoi_states_travel(const memob_states* states, int32_t layer) {
    return states->layers[layer].streamed & states->shared;
}

/* Which of them lie in place 1. */
MEMOI uint32_t memoi_states_on_top(const memob_states* states, int32_t layer) {
    const uint32_t travel = memoi_states_travel(states, layer);
    const uint32_t stay = layer ? travel & memoi_states_travel(states, layer - 1) : 0;
    const uint32_t below = layer ? states->layers[layer - 1].on_top & stay : 0;
    return below | (states->layers[layer].place == 1 ? travel & ~stay : 0);
}

/* The bytes of a layer's place before its own states: for those that it shares, or the layer below
 * does. */
MEMOI int64_t memoi_states_shared_bytes(const memob_states* states, int32_t layer) {
    const memob_states_layer* of = &states->layers[layer];
    const uint32_t travel = memoi_states_travel(states, layer);
    const uint32_t below = layer ? memoi_states_travel(states, layer - 1) & ~travel : 0;
    const uint32_t on_top = of->on_top | (below ? below & of[-1].on_top : 0);
    uint32_t here = (travel | below) & (of->place == 1 ? on_top : ~on_top);
    int64_t end = 0;
    for (; here && of->place >= 0; here &= here - 1) {
        const int32_t s = __builtin_ctz(here);
        const int64_t size_bytes = states->states[s].size_bytes;
        end = memob_max(end,
                        states->shared_at[s] + memob_align_up(size_bytes, MEMOB_DEVICE_ALIGNMENT));
    }
    return end;
}

/* Which SHARED states are streamed: those that are in all layers that have them.  Where they lie in
 * a place. */
MEMOI void memoi_states_find_shared(memob_states* states) {
    int64_t at = 0;
    uint32_t stay = states->n_layers > 3 ? 0 : ~0u; /* FIRST, one layer and LAST are open at once */
    for (int32_t l = 0; l < states->n_layers; l++)
        stay |= states->layers[l].has & ~states->layers[l].streamed;
    for (int32_t l = 0; l < states->n_layers; l++)
        states->layers[l].streamed &= ~(states->shared & stay);
    for (int32_t s = 0; s < states->n_states; s++) {
        const int32_t home = states->shared >> s & 1 ? states->home[s] : -1;
        states->shared_items[s] = -1;
        if (home < 0 || !(states->layers[home].streamed >> s & 1)) continue;
        states->shared_items[s] = home * states->n_states + s;
        states->shared_at[s] = at;
        at += memob_align_up(states->states[s].size_bytes, MEMOB_DEVICE_ALIGNMENT);
    }
}

/* Offsets in places become offsets in memory.  begin, area: of the areas on the device and on the
 * host, and their bytes. */
MEMOI void memoi_states_settle(memob_states* states, const int64_t* begin, const int64_t* area) {
    for (int32_t l = 0; l < states->n_layers; l++) {
        const memob_states_layer* layer = &states->layers[l];
        const uint32_t travels = memoi_states_travel(states, l);
        for (int32_t s = 0; s < states->n_states; s++) {
            const int64_t size_bytes = states->states[s].size_bytes;
            int64_t* at = memoi_states_bytes(states, l, s)->at;
            for (int32_t k = 0; k < 2; k++) {
                const int64_t alignment = k ? MEMOB_SPILL_ALIGNMENT : MEMOB_DEVICE_ALIGNMENT;
                const int64_t bytes = memob_align_up(size_bytes, alignment);
                if (!((k ? layer->spilled : layer->streamed) >> s & 1)) continue;
                if (!k && travels >> s & 1 ? layer->on_top >> s & 1 : layer->place == 1)
                    at[k] = area[k] - at[k] - bytes;
                MEMO_ASSERT(states->hosted >> s & 1 || /* 2 */
                            memob_is_within(at[k], 0, area[k] - bytes));
                at[k] += begin[k];
            }
        }
    }
}

/* Gives each state its offsets, and each layer its place, in an area behind the resident states:
 * place 0 begins at the bottom, place 1 at the top, so that a large layer reaches into the bytes of
 * layers that are not its neighbors. */
MEMOI void memoi_states_lay_out(memob_states* states) {
    int64_t stays[MEMO_N_TIERS] = {0}; /* of each tier, as the next */
    int64_t before[2] = {0, 0}, area[2] = {0, 0};
    memob_states_sizes* sizes = &states->sizes;
    int32_t n_streamed = 0;
    for (int32_t l = 0; l < states->n_layers; l++) {
        memob_states_layer* layer = &states->layers[l];
        const uint32_t travels = memoi_states_travel(states, l);
        int64_t in_place[2] = {0, 0};
        layer->place = layer->streamed & ~states->hosted ? n_streamed++ & 1 : -1;
        layer->on_top = memoi_states_on_top(states, l);
        in_place[0] = memoi_states_shared_bytes(states, l);
        for (int32_t s = 0; s < states->n_states; s++) {
            const memo_state* state = &states->states[s];
            const int64_t bytes[2] = {memob_align_up(state->size_bytes, MEMOB_DEVICE_ALIGNMENT),
                                      memob_align_up(state->size_bytes, MEMOB_SPILL_ALIGNMENT)};
            const int is_spilled = (int)(layer->spilled >> s & 1);
            const int32_t tier = (int)(layer->streamed >> s & 1) + is_spilled; /* where it stays */
            const int64_t stays_bytes =
                layer->spilled & states->fetched & 1u << s ? 0 : bytes[is_spilled];
            memob_state_bytes* of = memoi_states_bytes(states, l, s);
            of->at[MEMO_TIER_FILE] = is_spilled && stays_bytes ? stays[2] : -1;
            if (travels >> s & 1) of->at[0] = states->shared_at[s];
            if (!(layer->has & ~layer->lent & 1u << s)) continue;
            of->n_bytes = state->size_bytes;
            sizes->bytes[tier][memoi_states_owner(state)] += stays_bytes;
            for (int32_t k = travels >> s & 1; k < 2; k++)
                of->at[k] = k < tier ? in_place[k] : stays[k];
            stays[tier] += stays_bytes;
            sizes->fetched_bytes += stays_bytes * (int64_t)(states->fetched >> s & 1) * !tier;
            if (tier && !((states->hosted | travels) >> s & 1)) in_place[0] += bytes[0];
            if (is_spilled) in_place[1] += bytes[1];
        }
        for (int32_t k = 0; k < 2 && layer->place >= 0; k++) {
            area[k] = memob_max(area[k], before[k] + in_place[k]);
            before[k] = in_place[k];
        }
    }

    for (int32_t k = 0; k < 2; k++) {
        const int64_t begin = stays[k];
        if (k && area[1]) stays[1] = memob_align_up(stays[1], MEMOB_SPILL_ALIGNMENT);
        sizes->bytes[k][MEMO_OWNER_PLACES] = stays[k] - begin + area[k];
    }
    memoi_states_settle(states, stays, area);
    sizes->resident_bytes = stays[0];
    sizes->device_bytes = stays[0] + area[0];
    sizes->host_bytes = stays[1] + area[1];
    sizes->spill_bytes = stays[2];
}

/* SHARED states lie where their lowest layer has them, but for those on the device that travel. */
MEMOI void memoi_states_lend(memob_states* states) {
    for (int32_t k = 0; k < states->n_layers * states->n_states; k++) {
        const int32_t l = k / states->n_states, s = k % states->n_states;
        const int64_t device_at = states->bytes[k].at[0];
        if (!(states->layers[l].has & states->layers[l].lent & 1u << s)) continue;
        states->bytes[k] = *memoi_states_bytes(states, states->home[s], s);
        if (states->shared_items[s] >= 0) states->bytes[k].at[0] = device_at;
    }
}

MEMOI memo_status memoi_states_run_update(void* update, memo_error* error) {
    const memob_states_update* u = (const memob_states_update*)update;
    return u->states->trainer.update_host(u->states->trainer.user, u->layer, error);
}

/* Prepares updates on the host.  What they use must lie there. */
MEMOI memo_status memoi_states_take_updates(memob_states* states, const memob_states_desc* desc,
                                            memo_error* error) {
    for (int32_t s = 0; s < desc->n_states; s++)
        if ((desc->states[s].uses & ~(uint32_t)MEMO_STATE_MADE) == MEMO_STATE_UPDATE)
            states->hosted |= 1u << s;

    for (int32_t l = 0; l < desc->n_layers; l++) {
        const memob_states_layer* layer = &states->layers[l];
        const uint32_t used = layer->has & (states->updated | states->gradients);
        const memob_states_update update = {
            {memoi_states_run_update, &states->updates[l], NULL}, states, l};
        if (used & (~layer->streamed | layer->spilled))
            return MEMOB_INVALID(
                error,
                "memo_session_desc.update_host: layer %d has states for the update "
                "that are not streamed, or that are spilled; stream all of them, "
                "and spill none",
                (int)l);
        states->updates[l] = update;
    }
    return MEMO_STATUS_OK;
}

/* A SHARED state, which some layers have. */
MEMOI void memoi_states_share(memob_states* states, int32_t s) {
    const uint32_t bit = 1u << s;
    int32_t home = -1, top = -1;
    for (int32_t l = 0; l < states->n_layers; l++) {
        if (!(states->layers[l].has & bit)) continue;
        if (home < 0) home = l;
        top = l;
    }
    states->home[s] = home;
    states->shared |=
        bit & (states->used_by[MEMOB_FORWARD] | states->used_by[MEMOB_BACKWARD] | states->alone);
    for (int32_t l = home + 1; home >= 0 && l < states->n_layers; l++) {
        memob_states_layer* layer = &states->layers[l];
        layer->lent |= layer->has & bit;
        if (!(states->shared & bit)) layer->has &= ~bit;
    }
    for (int32_t l = 0; l < top; l++)
        states->layers[l].begun |= states->shared & states->layers[l].has & bit;
}

/* Which layer has which state, and where. */
MEMOI void memoi_states_take_table(memob_states* states, const memob_states_desc* desc) {
    static const uint32_t of_pass[] = {MEMO_STATE_FORWARD,
                                       MEMO_STATE_BACKWARD | MEMO_STATE_GRADIENT,
                                       MEMO_STATE_UPDATE | MEMO_STATE_GRADIENT};
    MEMOB_TABLE_OF(MEMOB_N_PASSES, of_pass);
    for (int32_t s = 0; s < desc->n_states; s++) {
        const memo_state* state = &desc->states[s];
        states->states[s] = *state;
        for (int32_t pass = 0; pass < MEMOB_N_PASSES; pass++)
            if (state->uses & of_pass[pass]) states->used_by[pass] |= 1u << s;
        if (state->uses & MEMO_STATE_GRADIENT) states->gradients |= 1u << s;
        if (state->uses & MEMO_STATE_UPDATE) states->updated |= 1u << s;
        if (state->uses & MEMO_STATE_MADE) states->made |= 1u << s;
        if (state->uses & MEMO_STATE_FETCHED) states->fetched |= 1u << s;
        if (state->uses & MEMO_STATE_ALONE) states->alone |= 1u << s;
        for (int32_t l = 0; l < desc->n_layers && state->size_bytes; l++)
            if (!state->kinds || state->kinds >> (desc->layer_kinds ? desc->layer_kinds[l] : 0) & 1)
                states->layers[l].has |= 1u << s;
        if (state->uses & MEMO_STATE_SHARED) memoi_states_share(states, s);
    }

    for (int32_t l = 0; l < desc->n_layers && desc->streamed; l++) {
        memob_states_layer* layer = &states->layers[l];
        layer->streamed = desc->streamed[l] & layer->has;
    }
    memoi_states_find_shared(states);
    for (int32_t l = 0; l < desc->n_layers; l++) {
        memob_states_layer* layer = &states->layers[l];
        layer->spilled = layer->streamed & ~layer->lent &
                         (states->fetched | (desc->spilled ? desc->spilled[l] : 0));
    }
}

/* Fills in all that needs no device; *states is zero. */
MEMOI memo_status memob_states_init(memob_states* states, const memob_states_desc* desc,
                                    memo_error* error) {
    const int on_host = desc->trainer.update_host != NULL;
    memob_engine* e = &states->sink.engine;
    memo_status status = memoi_states_check_desc(desc, error);
    if (status) return status;
    states->n_layers = desc->n_layers;
    states->n_states = desc->n_states;
    states->update_at = (int32_t)memob_max(desc->update_at, MEMO_UPDATE_PASS);
    states->trainer = desc->trainer;
    if (on_host && desc->update_at == MEMO_UPDATE_DEFERRED) states->update_at = MEMO_UPDATE_PASS;
    states->n_turns = desc->turns ? desc->n_turns : 0;
    states->n_chunks = (int32_t)memob_max(desc->n_chunks, 1);
    states->turns = MEMOB_ARRAY(&e->arrays, int32_t, states->n_turns);
    states->layers = MEMOB_ARRAY(&e->arrays, memob_states_layer, desc->n_layers);
    states->masks = MEMOB_ARRAY(&e->arrays, uint32_t, desc->n_layers);
    states->bytes =
        MEMOB_ARRAY(&e->arrays, memob_state_bytes, (int64_t)desc->n_layers * desc->n_states);
    if (on_host) states->updates = MEMOB_ARRAY(&e->arrays, memob_states_update, desc->n_layers);
    if (e->arrays.failed) return memob_no_memory(error, "the places of states");
    for (int32_t k = 0; k < states->n_turns; k++) states->turns[k] = desc->turns[k];
    for (int32_t l = 0; l < desc->n_layers; l++) states->masks[l] = ~0u;
    states->n_updating = desc->n_layers;

    memoi_states_take_table(states, desc);
    if (on_host) {
        status = memoi_states_take_updates(states, desc, error);
        if (status) return status;
    }
    memoi_states_lay_out(states);
    memoi_states_lend(states);
    if (memoi_states_have_windows(states)) {
        e->memory.spill_ops =
            MEMOB_ARRAY(&e->arrays, memob_spill_op, (int64_t)desc->n_layers * desc->n_states * 2);
        if (!e->memory.spill_ops) return memob_no_memory(error, "the reads and writes of states");
    }
    return MEMO_STATUS_OK;
}

/* Waits for the snapshot, and frees what it has kept.  Errors: of `write`. */
MEMOI memo_status memob_states_finish_snapshot(memob_states* states, memo_error* error) {
    const memo_status status = memoi_snapshot_finish(&states->snapshot, error);
    MEMO_FREE(states->kept_bytes);
    states->kept_bytes = NULL;
    return status;
}

MEMOI void memob_states_free(memob_states* states) {
    for (memob_step* step = states->steps; step; step = states->steps) {
        states->steps = step->next;
        memob_step_free(step);
        MEMO_FREE(step);
    }
    MEMOB_IGNORE(memob_states_finish_snapshot(states, NULL));
    memoi_snapshot_free(&states->snapshot);
    memob_sink_free(&states->sink);
}

/* Errors: INVALID_ARGUMENT, also for sums above 2^62. */
MEMOI memo_status memob_states_get_sizes(const memob_states_desc* desc, memob_states_sizes* sizes,
                                         memo_error* error) {
    memob_states states = MEMO_ZERO(memob_states);
    const memo_status status = memob_states_init(&states, desc, error);
    for (int32_t l = 0; l < states.n_layers && !status; l++) {
        const uint32_t bits[2] = {states.layers[l].streamed, states.layers[l].spilled};
        const uint64_t digest = memob_digest((const char*)bits, (int64_t)sizeof bits);
        states.sizes.digest = 31 * states.sizes.digest + digest;
    }
    if (!status) *sizes = states.sizes;
    memob_states_free(&states);
    return status;
}

/* Addresses between begin and end of the layer, and in pinned host memory for update_host; they
 * never change.  NULL: the layer lacks the state, or has it elsewhere. */
MEMOI void* memob_states_get_address(const memob_states* states, int32_t layer, int32_t state) {
    const int64_t offset = memoi_states_bytes(states, layer, state)->at[0];
    const uint32_t has = states->layers[layer].has & ~states->hosted;
    return has >> state & 1 ? memob_at(states->sink.engine.memory.device, offset) : NULL;
}
MEMOI void* memob_states_get_host_address(const memob_states* states, int32_t layer,
                                          int32_t state) {
    const memob_states_layer* l = &states->layers[memob_states_home(states, layer, state)];
    const int64_t offset = memoi_states_bytes(states, layer, state)->at[1];
    return l->streamed & ~l->spilled & 1u << state ? states->sink.engine.memory.host + offset
                                                   : NULL;
}
