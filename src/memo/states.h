#pragma once
#include "memo/engine.h"
#include "memo/list.h"
#include "memo/swap_rows.h"
/* ---- >>states -----------------------------------------------------------------------------------
 * Knows: which states lie in which place, the order of a step's visits, and their waits.  Knows
 * nothing of what the trainer computes.
 *
 * Sessions, the planner's clock and memo_swap_generate run this engine.  A resident state stays on
 * the device.  A streamed state lies in pinned host memory; its bytes come to the device before a
 * pass of its layer uses them, and go back after a pass has changed them.
 *
 * Places.  Layers with streamed states use two places in turn, each as large as the layers there
 * need, so the states of one layer travel while another layer computes.  The layer that a pass ends
 * with stays for the next pass.  What all layers share (an embedding) is a layer of its own kind.
 *
 * When a layer ends, its changed states leave, and those of the next layer in its place come.  The
 * engine makes three waits for that, if anything is copied:
 *
 *   end     to host    waits for  the pass of the layer
 *           to device  waits for  the pass of the layer, and for its changed states on the host
 *   begin   compute    waits for  the layer's states on the device
 *
 * Third tier: a file.  Spilled states pass through two places on the host, one for each place on
 * the device, and these waits are made beside the others:
 *
 *   end     to host    waits for  the place's states in the file and from it
 *           file       waits for  the layer's changed states on the host; then writes
 *           file       waits for  the place's states on the device; then reads the next layer's
 *           to device  waits for  the next layer's states on the host
 *
 * Update on the host.  States that only the update uses never leave the host, and have no place on
 * the device.  Gradients go to the host; a function of the host updates the layer there, while
 * others compute.  The forward of the next step fetches what it has changed.  The waits beside the
 * others:
 *
 *   end     to host    waits for  the backward of the layer, or of all; then stores gradients
 *           file       waits for  the layer's gradients on the host, and for a fetch of what it
 *                                 changes if no pass has used it; then updates the layer
 *   later   to device  waits for  the layer's update, before it fetches what the update changes
 *           to host    waits for  the same, if nothing was fetched, before it stores gradients
 *
 * Deferred update.  Right before a layer's first forward of the next step the layer is updated, in
 * the same visit, so that gradients and moments travel while other layers compute.  What the update
 * has changed leaves at once, not when the forward ends. */

typedef enum memob_states_pass {
    MEMOB_STATES_PASS_FORWARD = 0,
    MEMOB_STATES_PASS_BACKWARD,
    MEMOB_STATES_PASS_UPDATE
} memob_states_pass;

/* Start from all zero. */
typedef struct memob_states_desc {
    const memo_device* device; /* checked; may be NULL unless an engine is created */
    memo_stream compute_stream;
    memo_stream copy_streams[3]; /* as in memo_swap_desc; sessions share them with rows */
    int32_t computes_on_host;    /* likewise */
    const memo_state* states;    /* copied; at most MEMO_STATES_MAX */
    int32_t n_states, n_layers;
    const int32_t* layer_kinds;  /* (n_layers), copied: 0 to 31; NULL: all layers are of kind 0 */
    const uint32_t* streamed;    /* (n_layers), copied.  Bit s: state s is streamed; NULL: none */
    const uint32_t* spilled;     /* likewise: those of them that lie in a file; NULL: none */
    const char* spill_directory; /* of the file, as in memo_swap_desc, as the next */
    double spill_bytes_per_s;
    int32_t update_at; /* memob_update_at; NONE: PASS.  On the host DEFERRED is PASS, too */
    void *device_memory, *host_memory; /* as in memo_swap_desc */
    /* NULL: the trainer enqueues updates.  Otherwise the engine calls this function for each layer
     * on a thread of the device, by launch_host on the file's stream.  All states that the update
     * uses are then streamed and not spilled; they are at memob_states_get_host_address.  The
     * function may run as late as the next forward of the layer, so what changes from step to step,
     * such as a step number, belongs in a state. */
    memo_status (*update_host)(void* user, int32_t layer, memo_error* error);
    void* user; /* its first argument */
} memob_states_desc;

typedef struct memob_states_sizes {
    int64_t device_bytes; /* resident_bytes + both places */
    int64_t host_bytes;   /* pinned */
    int64_t resident_bytes;
    int64_t spill_bytes; /* of the file */
} memob_states_sizes;

/* A visit is a layer in a phase of a step.  What follows decides what is fetched, so there are
 * five forwards. */
enum {
    MEMOI_PHASE_FORWARD = 0,         /* a backward follows */
    MEMOI_PHASE_LAST_FORWARD,        /* the last backward follows */
    MEMOI_PHASE_EVALUATION,          /* no backward follows */
    MEMOI_PHASE_UPDATE_FORWARD,      /* as FORWARD, with the deferred updates of the step before */
    MEMOI_PHASE_UPDATE_LAST_FORWARD, /* as LAST_FORWARD, likewise */
    MEMOI_PHASE_BACKWARD,
    MEMOI_PHASE_LAST_BACKWARD,
    MEMOI_PHASE_UPDATE,
    MEMOI_N_PHASES,
    MEMOI_PHASE_NONE = MEMOI_N_PHASES /* no micro-batch is open */
};

typedef struct memob_states_layer {
    uint32_t has, streamed, spilled; /* bit s: state s */
    int32_t place;                   /* 0 or 1; -1: nothing is streamed */
    int32_t has_gradients;           /* a backward of this step has ended */
} memob_states_layer;

/* The update of a layer on the host. */
typedef struct memob_states_update {
    memo_host_call call;
    struct memob_states* states;
    int32_t layer;
    int32_t is_awaited; /* by the copies of this layer's states */
    int64_t number;     /* of the latest one, from 1 on in the order of the stream */
} memob_states_update;

/* Events: two each, of the places, then of the update of each layer. */
enum {
    MEMOI_STATES_COMPUTED = 0,
    MEMOI_STATES_STORED = 2,
    MEMOI_STATES_LOADED = 4,
    MEMOI_STATES_FILED = 6,
    MEMOI_STATES_UPDATED = 8
};

/* What lies in a place. */
typedef struct memoi_states_place {
    int32_t layer;           /* -1: none */
    uint32_t present, dirty; /* states of the layer: their bytes are there; the host's are older */
    int32_t is_coming;       /* compute has not waited yet for the latest fetch */
    int32_t is_leaving;      /* fetches have not waited yet for what an update on the host needs */
    int32_t is_storing;      /* nor for what a deferred update has changed */
} memoi_states_place;

typedef struct memob_states {
    memob_engine engine; /* spill_ops: (n_layers, n_states, 2); NULL: none is spilled */
    int32_t update_at, n_layers, n_states;
    int32_t is_pending; /* the updates of the step before are deferred and have not begun */
    memo_state states[MEMO_STATES_MAX];
    uint32_t gradients, updated; /* which states they are */
    uint32_t made;               /* the update writes all their bytes */
    uint32_t used_by[3];         /* which states each pass uses, and gradients */
    uint32_t hosted;             /* those that never leave the host */
    memo_status (*update_host)(void* user, int32_t layer, memo_error* error);
    void* user;
    memob_states_update* updates; /* (n_layers); NULL: not on the host */
    int64_t n_updates, n_awaited; /* by the copies to the device: all up to this number */
    memob_states_layer* layers;   /* (n_layers) */
    int64_t* offsets;             /* (n_layers, n_states, 3): on the device; streamed: on the host;
                                    spilled: in the file, and in a place on the host */
    memob_states_sizes sizes;
    memoi_states_place places[2];
    int32_t phase, n_begun, n_ended; /* layers of the phase */
    int64_t n_unseen; /* updates since all streams were synchronized without an error */
} memob_states;

/* --- what does not change --- */

/* The sizes and uses of states; all else of a desc is a session's.  With this limit no sum of bytes
 * overflows. */
MEMOI memo_status memoi_states_check_desc(const memob_states_desc* desc, memo_error* error) {
    for (int32_t i = 0; i < desc->n_states; i++) {
        const memo_state* state = &desc->states[i];
        if (state->size_bytes < 0 || state->size_bytes > MEMOB_BYTES_MAX / desc->n_layers / 64)
            return MEMOB_INVALID(
                error,
                "memo_session_desc.states[%d].size_bytes: %lld bytes in each of %d "
                "layers; 0 to 2^56 in all are valid",
                (int)i, (long long)state->size_bytes, (int)desc->n_layers);
        if (state->uses == 0 ||
            (state->uses & ~(state->uses & MEMO_STATE_UPDATE ? (unsigned)MEMO_STATE_MADE : 0u)) >
                MEMO_STATE_GRADIENT)
            return MEMOB_INVALID(error,
                                 "memo_session_desc.states[%d].uses: %u; a sum of "
                                 "MEMO_STATE_FORWARD, _BACKWARD and _UPDATE, with _UPDATE also "
                                 "_MADE, or MEMO_STATE_GRADIENT alone, is valid",
                                 (int)i, (unsigned)state->uses);
    }
    return MEMO_STATUS_OK;
}

MEMOI memob_states_pass memoi_states_pass_of(int32_t phase) {
    return phase < MEMOI_PHASE_BACKWARD ? MEMOB_STATES_PASS_FORWARD
           : phase < MEMOI_PHASE_UPDATE ? MEMOB_STATES_PASS_BACKWARD
                                        : MEMOB_STATES_PASS_UPDATE;
}

/* 1: the phase is a forward with deferred updates. */
MEMOI int memoi_states_defers(int32_t phase) {
    return phase == MEMOI_PHASE_UPDATE_FORWARD || phase == MEMOI_PHASE_UPDATE_LAST_FORWARD;
}

/* 1: the phase updates each layer. */
MEMOI int memob_states_updates(const memob_states* states, int32_t phase) {
    return phase == MEMOI_PHASE_UPDATE || memoi_states_defers(phase) ||
           (phase == MEMOI_PHASE_LAST_BACKWARD && states->update_at == MEMOB_UPDATE_FUSED);
}

/* 1: the trainer updates a layer right behind the begin of its visit, or right before the end. */
MEMOI int memob_states_updates_now(const memob_states* states, int is_end) {
    return memob_states_updates(states, states->phase) &&
           memoi_states_defers(states->phase) == !is_end;
}

/* 1: the update comes next. */
MEMOI int memob_states_is_due(const memob_states* states) {
    return states->phase == MEMOI_PHASE_UPDATE;
}

/* 1: a micro-batch is open. */
MEMOI int memob_states_is_open(const memob_states* states) {
    return states->phase < MEMOI_PHASE_UPDATE;
}

/* The streamed states that a phase of a layer uses. */
MEMOI uint32_t memob_states_needs(const memob_states* states, int32_t phase, int32_t layer) {
    const memob_states_pass pass = memoi_states_pass_of(phase);
    uint32_t needs = states->used_by[pass];
    if (pass == MEMOB_STATES_PASS_BACKWARD && layer == states->n_layers - 1) /* LAST: one visit */
        needs |= states->used_by[MEMOB_STATES_PASS_FORWARD];
    if (states->updates)
        needs = phase == MEMOI_PHASE_UPDATE ? 0 : needs;
    else if (memob_states_updates(states, phase))
        needs |= states->used_by[MEMOB_STATES_PASS_UPDATE];
    return needs & states->layers[layer].streamed;
}

/* Layer number k of a phase: backwards go down. */
MEMOI int32_t memob_states_layer_of(const memob_states* states, int32_t phase, int32_t k) {
    return memoi_states_pass_of(phase) == MEMOB_STATES_PASS_BACKWARD ? states->n_layers - 1 - k : k;
}

/* Of the states that a phase of a layer needs, those that its update makes before anything reads
 * them: they are not fetched. */
MEMOI uint32_t memoi_states_makes(const memob_states* states, int32_t phase, int32_t layer) {
    uint32_t read = 0;
    if (!memob_states_updates(states, phase) || states->updates) return 0;
    if (phase == MEMOI_PHASE_LAST_BACKWARD) read |= states->used_by[MEMOB_STATES_PASS_BACKWARD];
    if (phase == MEMOI_PHASE_LAST_BACKWARD && layer == states->n_layers - 1) /* see needs */
        read |= states->used_by[MEMOB_STATES_PASS_FORWARD];
    return states->made & ~read;
}

/* Bytes that the update of a layer uses. */
MEMOI double memob_states_update_bytes(const memob_states* states, int32_t layer) {
    const uint32_t used = states->layers[layer].has & (states->updated | states->gradients);
    double n_bytes = 0;
    for (int32_t s = 0; s < states->n_states; s++)
        if (used >> s & 1) n_bytes += (double)states->states[s].size_bytes;
    return n_bytes;
}

/* The phase that follows.  The first layers of all forwards without updates need the same. */
MEMOI int32_t memoi_states_phase_after(const memob_states* states, int32_t phase) {
    static const int32_t behind_last[] = {MEMOI_PHASE_UPDATE, MEMOI_PHASE_UPDATE,
                                          MEMOI_PHASE_FORWARD, MEMOI_PHASE_UPDATE_FORWARD};
    switch (phase) {
    case MEMOI_PHASE_FORWARD:
    case MEMOI_PHASE_UPDATE_FORWARD: return MEMOI_PHASE_BACKWARD;
    case MEMOI_PHASE_LAST_FORWARD:
    case MEMOI_PHASE_UPDATE_LAST_FORWARD: return MEMOI_PHASE_LAST_BACKWARD;
    case MEMOI_PHASE_LAST_BACKWARD: return behind_last[states->update_at];
    default: return MEMOI_PHASE_FORWARD;
    }
}

MEMOI int64_t* memoi_states_offsets(const memob_states* states, int32_t layer, int32_t state) {
    MEMO_ASSERT(layer >= 0 && layer < states->n_layers && state >= 0 && state < states->n_states);
    return &states->offsets[3 * ((int64_t)layer * states->n_states + state)];
}

/* Gives each state its offsets, and each layer its place.  Places lie behind resident states. */
MEMOI void memoi_states_lay_out(memob_states* states) {
    int64_t stays[3] = {0, 0, 0}, places[2][2] = {{0, 0}, {0, 0}}; /* device, host; then file */
    int32_t n_streamed = 0;
    for (int32_t l = 0; l < states->n_layers; l++) {
        memob_states_layer* layer = &states->layers[l];
        int64_t in_place[2] = {0, 0};
        layer->place = layer->streamed & ~states->hosted ? n_streamed++ & 1 : -1;
        for (int32_t s = 0; s < states->n_states; s++) {
            const int64_t size_bytes = states->states[s].size_bytes;
            const int64_t bytes = memob_align_up(size_bytes, MEMOB_DEVICE_ALIGNMENT);
            const int64_t in_file = memob_align_up(size_bytes, MEMOB_SPILL_ALIGNMENT);
            const int is_streamed = (int)(layer->streamed >> s & 1);
            const int is_spilled = (int)(layer->spilled >> s & 1);
            int64_t* offsets = memoi_states_offsets(states, l, s);
            if (!(layer->has >> s & 1)) continue;
            offsets[0] = is_streamed ? in_place[0] : stays[0];
            offsets[1] = is_spilled ? in_place[1] : stays[1];
            offsets[2] = stays[2];
            if (!(states->hosted >> s & 1)) *(is_streamed ? &in_place[0] : &stays[0]) += bytes;
            *(is_spilled ? &in_place[1] : &stays[1]) += is_spilled    ? in_file
                                                        : is_streamed ? bytes
                                                                      : 0;
            stays[2] += is_spilled ? in_file : 0;
        }
        for (int32_t s = 0; s < 2 && layer->place >= 0; s++)
            places[s][layer->place] = memob_max(places[s][layer->place], in_place[s]);
    }

    if (stays[2]) stays[1] = memob_align_up(stays[1], MEMOB_SPILL_ALIGNMENT);
    for (int32_t l = 0; l < states->n_layers; l++)
        for (int32_t s = 0; s < states->n_states; s++) {
            const memob_states_layer* layer = &states->layers[l];
            int64_t* offsets = memoi_states_offsets(states, l, s);
            if (layer->streamed >> s & 1)
                offsets[0] += stays[0] + (layer->place ? places[0][0] : 0);
            if (layer->spilled >> s & 1) offsets[1] += stays[1] + (layer->place ? places[1][0] : 0);
        }
    states->sizes.resident_bytes = stays[0];
    states->sizes.device_bytes = stays[0] + places[0][0] + places[0][1];
    states->sizes.host_bytes = stays[1] + places[1][0] + places[1][1];
    states->sizes.spill_bytes = stays[2];
}

/* The write of a spilled state; the read follows it. */
MEMOI int64_t memoi_states_spill_op(const memob_states* states, int32_t layer, int32_t state) {
    return 2 * ((int64_t)layer * states->n_states + state);
}

/* The write and the read of each spilled state. */
MEMOI void memoi_states_describe_spill(memob_states* states) {
    memob_engine* e = &states->engine;
    for (int32_t l = 0; l < states->n_layers; l++)
        for (int32_t s = 0; s < states->n_states; s++) {
            const int64_t* offsets = memoi_states_offsets(states, l, s);
            memob_spill_op* ops = &e->spill_ops[memoi_states_spill_op(states, l, s)];
            for (int32_t is_read = 0; is_read < 2 && states->layers[l].spilled >> s & 1; is_read++)
                memob_spill_op_init(
                    &ops[is_read], &e->file, !is_read,
                    e->host_memory ? e->host_memory + offsets[1] : NULL, offsets[2],
                    memob_align_up(states->states[s].size_bytes, MEMOB_SPILL_ALIGNMENT));
        }
}

MEMOI memo_status memob_states_run_update(void* update, memo_error* error) {
    const memob_states_update* u = (const memob_states_update*)update;
    return u->states->update_host(u->states->user, u->layer, error);
}

/* Prepares updates on the host.  What they use must lie there. */
MEMOI memo_status memoi_states_take_updates(memob_states* states, const memob_states_desc* desc,
                                            memo_error* error) {
    states->update_host = desc->update_host;
    states->user = desc->user;
    for (int32_t s = 0; s < desc->n_states; s++)
        if ((desc->states[s].uses & ~(uint32_t)MEMO_STATE_MADE) == MEMO_STATE_UPDATE)
            states->hosted |= 1u << s;

    for (int32_t l = 0; l < desc->n_layers; l++) {
        const memob_states_layer* layer = &states->layers[l];
        const uint32_t used = layer->has & (states->updated | states->gradients);
        const memob_states_update update = {
            {memob_states_run_update, &states->updates[l], NULL}, states, l, 1, 0};
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

/* Fills in all that needs no device; *states is zero. */
MEMOI memo_status memob_states_init(memob_states* states, const memob_states_desc* desc,
                                    memo_error* error) {
    static const uint32_t of_pass[3] = {MEMO_STATE_FORWARD,
                                        MEMO_STATE_BACKWARD | MEMO_STATE_GRADIENT,
                                        MEMO_STATE_UPDATE | MEMO_STATE_GRADIENT};
    memob_engine* e = &states->engine;
    memo_status status = memoi_states_check_desc(desc, error);
    if (status) return status;
    states->n_layers = desc->n_layers;
    states->n_states = desc->n_states;
    states->update_at = desc->update_at;
    if (desc->update_host && desc->update_at == MEMOB_UPDATE_DEFERRED)
        states->update_at = MEMOB_UPDATE_PASS;
    e->n_events = MEMOI_STATES_UPDATED + (desc->update_host ? desc->n_layers : 0);
    e->events = MEMOB_ARRAY(&e->arrays, memo_event, e->n_events);
    states->layers = MEMOB_ARRAY(&e->arrays, memob_states_layer, desc->n_layers);
    states->offsets =
        MEMOB_ARRAY(&e->arrays, int64_t, (int64_t)desc->n_layers * desc->n_states * 3);
    if (desc->update_host)
        states->updates = MEMOB_ARRAY(&e->arrays, memob_states_update, desc->n_layers);
    if (e->arrays.failed) return memob_no_memory(error, "the places of states");

    /* Who has which state. */
    for (int32_t s = 0; s < desc->n_states; s++) {
        const memo_state* state = &desc->states[s];
        states->states[s] = *state;
        for (int32_t pass = 0; pass < 3; pass++)
            if (state->uses & of_pass[pass]) states->used_by[pass] |= 1u << s;
        if (state->uses & MEMO_STATE_GRADIENT) states->gradients |= 1u << s;
        if (state->uses & MEMO_STATE_UPDATE) states->updated |= 1u << s;
        if (state->uses & MEMO_STATE_MADE) states->made |= 1u << s;
        for (int32_t l = 0; l < desc->n_layers && state->size_bytes; l++)
            if (!state->kinds || state->kinds >> (desc->layer_kinds ? desc->layer_kinds[l] : 0) & 1)
                states->layers[l].has |= 1u << s;
    }
    for (int32_t l = 0; l < desc->n_layers && desc->streamed; l++) {
        states->layers[l].streamed = desc->streamed[l] & states->layers[l].has;
        if (desc->spilled)
            states->layers[l].spilled = desc->spilled[l] & states->layers[l].streamed;
    }

    if (desc->update_host) {
        status = memoi_states_take_updates(states, desc, error);
        if (status) return status;
    }
    memoi_states_lay_out(states);
    if (states->sizes.spill_bytes) {
        e->spill_ops = MEMOB_ARRAY(&e->arrays, memob_spill_op,
                                   memoi_states_spill_op(states, desc->n_layers, 0));
        if (!e->spill_ops) return memob_no_memory(error, "the reads and writes of states");
        memoi_states_describe_spill(states);
    }
    states->phase = MEMOI_PHASE_NONE;
    states->places[0].layer = states->places[1].layer = -1;
    return MEMO_STATUS_OK;
}

MEMOI void memob_states_free(memob_states* states) { memob_arrays_free(&states->engine.arrays); }

/* Errors: INVALID_ARGUMENT, also for sums above 2^62. */
MEMOI memo_status memob_states_get_sizes(const memob_states_desc* desc, memob_states_sizes* sizes,
                                         memo_error* error) {
    memob_states states = MEMO_ZERO(memob_states);
    const memo_status status = memob_states_init(&states, desc, error);
    if (!status) *sizes = states.sizes;
    memob_states_free(&states);
    return status;
}

/* Addresses between begin and end of the layer, and in pinned host memory for update_host; they
 * never change.  NULL: the layer lacks the state, or has it elsewhere. */
MEMOI void* memob_states_get_address(const memob_states* states, int32_t layer, int32_t state) {
    const int64_t offset = memoi_states_offsets(states, layer, state)[0];
    const uint32_t has = states->layers[layer].has & ~states->hosted;
    return has >> state & 1 ? memoi_at(states->engine.device_memory, offset) : NULL;
}
MEMOI void* memob_states_get_host_address(const memob_states* states, int32_t layer,
                                          int32_t state) {
    const memob_states_layer* l = &states->layers[layer];
    const int64_t offset = memoi_states_offsets(states, layer, state)[1];
    return l->streamed & ~l->spilled & 1u << state ? states->engine.host_memory + offset : NULL;
}

/* --- creation --- */

MEMOI void memob_states_destroy(memob_states* states) {
    if (!states) return;
    memob_engine_release(&states->engine);
    memob_states_free(states);
    MEMO_FREE(states);
}

/* Takes memory, file, streams and events; memob_states_destroy frees any part of them. */
MEMOI memo_status memoi_states_acquire(memob_states* states, const memob_states_desc* desc,
                                       int is_dry, memo_error* error) {
    static const char name[] = "memo_session_desc";
    const memob_states_sizes* sizes = &states->sizes;
    const int has_file = sizes->spill_bytes > 0, launches = has_file || states->updates;
    memob_engine* e = &states->engine;
    memo_stream filling;
    memo_status status = MEMO_STATUS_OK;
    if (has_file && !desc->spill_directory && !is_dry)
        return MEMOB_INVALID(error,
                             "memo_session_desc.spill_directory: NULL, but spilled has bits");
    if (launches)
        status =
            memob_engine_check_launch(e, name, has_file ? "the spill file" : "update_host", error);
    if (!status)
        status = memob_engine_acquire(e, name, sizes->device_bytes, sizes->host_bytes,
                                      desc->copy_streams, launches ? 3 : 2, error);
    if (status) return status;

    /* The file waits for both places also before their first use. */
    memob_engine_call(e, error);
    for (int32_t p = 0; p < 2 && has_file; p++) {
        memob_engine_record(e, MEMOB_SWAP_TO_DEVICE, MEMOI_STATES_LOADED + p);
        memob_engine_record(e, MEMOB_SWAP_FILE, MEMOI_STATES_FILED + p);
    }

    /* All states are zero at first, as a new file is. */
    if (has_file) memoi_states_describe_spill(states);
    if (e->status || is_dry) return e->status;
    if (sizes->host_bytes) memset(e->host_memory, 0, (size_t)sizes->host_bytes);
    if (has_file)
        status = memob_spill_create(
            &e->file, desc->spill_directory, sizes->spill_bytes, desc->spill_bytes_per_s,
            e->host_memory + sizes->host_bytes - MEMOB_SPILL_ALIGNMENT, error);
    filling = e->streams[MEMOB_SWAP_TO_DEVICE];
    if (!status && sizes->resident_bytes)
        status = memo_fill(&e->device, filling, e->device_memory, 0, sizes->resident_bytes, error);
    return status ? status : memo_stream_synchronize(&e->device, filling, error);
}

/* All states are zero bytes at first.  is_dry: as for memob_swap_create.  Errors: INVALID_ARGUMENT,
 * OUT_OF_DEVICE_MEMORY, OUT_OF_HOST_MEMORY, UNSUPPORTED (update_host, but no launch_host), the
 * device's; of a file as memo_swap_create. */
MEMOI memo_status memob_states_create(const memob_states_desc* desc, int is_dry,
                                      memob_states** result, memo_error* error) {
    memob_states* states = (memob_states*)memob_calloc(1, sizeof *states);
    memo_status status;
    *result = NULL;
    if (!states) return memob_no_memory(error, "an engine of states");
    memob_engine_begin(&states->engine, desc->device, desc->compute_stream, desc->computes_on_host);
    states->engine.device_memory = (char*)desc->device_memory;
    states->engine.host_memory = (char*)desc->host_memory;
    status = memob_states_init(states, desc, error);
    if (!status) status = memoi_states_acquire(states, desc, is_dry, error);
    if (status) {
        memob_states_destroy(states);
        return status;
    }
    *result = states;
    return MEMO_STATUS_OK;
}

/* --- a step --- */

/* Copies the streamed states `which` of a layer.  The file's stream writes or reads these
 * states. */
MEMOI void memoi_states_copy(memob_states* states, int32_t stream, int32_t layer, uint32_t which,
                             int is_read) {
    const int is_file = stream == MEMOB_SWAP_FILE;
    for (; which; which &= which - 1) {
        const int32_t s = __builtin_ctz(which);
        const int64_t* offsets = memoi_states_offsets(states, layer, s);
        if (is_file)
            memob_engine_use_file(&states->engine,
                                  memoi_states_spill_op(states, layer, s) + is_read);
        else
            memob_engine_copy(&states->engine, stream, offsets[0], offsets[1],
                              states->states[s].size_bytes);
    }
}

/* Stores the changed states of a place, after the update that may still use their bytes on the
 * host. */
MEMOI void memoi_states_store(memob_states* states, const memoi_states_place* place) {
    const int32_t layer = place->layer;
    if (states->updates && !states->updates[layer].is_awaited)
        memob_engine_wait(&states->engine, MEMOB_SWAP_TO_HOST, MEMOI_STATES_UPDATED + layer);
    memoi_states_copy(states, MEMOB_SWAP_TO_HOST, layer, place->dirty, 0);
}

/* Fetches states of a layer, after the update on the host that changes them. */
MEMOI void memoi_states_fetch(memob_states* states, int32_t layer, uint32_t which) {
    memob_engine* e = &states->engine;
    memob_states_update* update = states->updates ? &states->updates[layer] : NULL;
    if (update && (which & states->updated)) {
        if (update->number > states->n_awaited)
            memob_engine_wait(e, MEMOB_SWAP_TO_DEVICE, MEMOI_STATES_UPDATED + layer);
        if (e->status) return;
        states->n_awaited = memob_max(states->n_awaited, update->number);
        update->is_awaited = 1;
    }
    memoi_states_copy(states, MEMOB_SWAP_TO_DEVICE, layer, which, 0);
}

/* The changed states of a place leave, behind what compute has recorded there; spilled ones go on
 * to the file. */
MEMOI void memoi_states_leave(memob_states* states, int32_t at) {
    memob_engine* e = &states->engine;
    const memoi_states_place* place = &states->places[at];
    const uint32_t written = place->dirty ? place->dirty & states->layers[place->layer].spilled : 0;
    if (!place->dirty) return;
    memob_engine_wait(e, MEMOB_SWAP_TO_HOST, MEMOI_STATES_COMPUTED + at);
    if (written) memob_engine_wait(e, MEMOB_SWAP_TO_HOST, MEMOI_STATES_FILED + at);
    memoi_states_store(states, place);
    memob_engine_record(e, MEMOB_SWAP_TO_HOST, MEMOI_STATES_STORED + at);
    if (!written) return;
    memob_engine_wait(e, MEMOB_SWAP_FILE, MEMOI_STATES_STORED + at);
    memoi_states_copy(states, MEMOB_SWAP_FILE, place->layer, written, 0);
    memob_engine_record(e, MEMOB_SWAP_FILE, MEMOI_STATES_FILED + at);
}

/* Brings the states that a phase of a layer needs into the layer's place, after the changed states
 * of the layer that lies there have left.  What lies in a place is noted only when all calls have
 * succeeded, so calls after a failed call are made again and nothing is lost. */
MEMOI void memoi_states_bring(memob_states* states, int32_t phase, int32_t layer) {
    memob_engine* e = &states->engine;
    const int32_t at = states->layers[layer].place;
    const int32_t computed = MEMOI_STATES_COMPUTED + at, stored = MEMOI_STATES_STORED + at;
    const int32_t loaded = MEMOI_STATES_LOADED + at, filed = MEMOI_STATES_FILED + at;
    memoi_states_place* place = &states->places[at];
    const int is_there = place->layer == layer;
    const uint32_t needs =
        memob_states_needs(states, phase, layer) & ~memoi_states_makes(states, phase, layer);
    const uint32_t missing = is_there ? needs & ~place->present : needs;
    const uint32_t dirty = is_there ? 0 : place->dirty;
    const uint32_t fresh = states->layers[layer].has_gradients ? 0 : states->gradients;
    const uint32_t fetched = missing & ~fresh; /* gradients of a new step have no bytes yet */
    const uint32_t read = fetched & states->layers[layer].spilled;
    const int is_copied = fetched || dirty || place->is_leaving || (place->is_storing && !is_there);
    if (is_there && !missing) return;

    /* Out, after the pass that changed them.  What has left is behind that pass. */
    if (is_copied) memob_engine_record(e, MEMOB_SWAP_COMPUTE, computed);
    if (dirty) memoi_states_leave(states, at);
    if (read) memob_engine_wait(e, MEMOB_SWAP_FILE, loaded);
    if (is_copied && !dirty) memob_engine_wait(e, MEMOB_SWAP_TO_DEVICE, computed);
    if (dirty || place->is_leaving || (is_copied && place->is_storing))
        memob_engine_wait(e, MEMOB_SWAP_TO_DEVICE, stored);
    if (e->status) return;
    place->is_leaving = 0;
    if (is_copied) place->is_storing = 0;
    if (!is_there) {
        place->layer = layer;
        place->present = place->dirty = 0;
    }

    /* In. */
    if (read) memoi_states_copy(states, MEMOB_SWAP_FILE, layer, read, 1);
    if (read) memob_engine_record(e, MEMOB_SWAP_FILE, filed);
    if (read) memob_engine_wait(e, MEMOB_SWAP_TO_DEVICE, filed);
    memoi_states_fetch(states, layer, fetched);
    if (is_copied) memob_engine_record(e, MEMOB_SWAP_TO_DEVICE, loaded);
    if (e->status) return;
    place->present |= missing;
    place->is_coming |= is_copied;
}

/* Brings what the visit after number k of a phase needs that uses the same place next, if there is
 * one; is_own: if it is of the same layer.  Nothing is brought ahead of an update on the host,
 * which changes it there. */
MEMOI void memoi_states_bring_next(memob_states* states, int32_t phase, int32_t k, int is_own) {
    const int32_t own = memob_states_layer_of(states, phase, k), place = states->layers[own].place;
    int32_t n_phases = 0;
    while (place >= 0 && n_phases < MEMOI_N_PHASES) {
        int32_t layer;
        if (++k >= states->n_layers) {
            phase = memoi_states_phase_after(states, phase);
            n_phases++;
            k = 0;
        }
        layer = memob_states_layer_of(states, phase, k);
        if (states->layers[layer].place != place) continue;
        if (memob_states_needs(states, phase, layer)) {
            if (!is_own || layer == own) memoi_states_bring(states, phase, layer);
            return;
        }
        if (states->updates && memob_states_updates(states, phase)) return;
    }
}

/* Announces the update of a layer on the host, which reads gradients and changes all other
 * states. */
MEMOI void memoi_states_annotate(memob_states* states, int32_t layer) {
    memob_engine* e = &states->engine;
    const uint32_t used = states->layers[layer].has & (states->updated | states->gradients);
    memo_range reads[MEMO_STATES_MAX], writes[MEMO_STATES_MAX];
    memo_op_desc what = MEMO_ZERO(memo_op_desc);
    for (int32_t s = 0; s < states->n_states; s++) {
        if (!(used >> s & 1)) continue;
        reads[what.n_reads] = memob_range_at(memob_states_get_host_address(states, layer, s),
                                             states->states[s].size_bytes);
        if (states->updated >> s & 1) writes[what.n_writes++] = reads[what.n_reads];
        what.n_reads++;
    }
    what.name = "update on host";
    what.link_bytes = (int64_t)memob_states_update_bytes(states, layer);
    what.reads = reads;
    what.writes = writes;
    e->status = memo_annotate(&e->device, e->streams[MEMOB_SWAP_FILE], &what, e->error);
}

/* Enqueues the update of a layer on the host.  The layer's gradients go to the host first; if the
 * update has a pass of its own, the gradients of all layers that are still on the device. */
MEMOI void memoi_states_launch(memob_states* states, int32_t layer) {
    memob_engine* e = &states->engine;
    memob_states_update* update = &states->updates[layer];
    const int is_pass = states->phase == MEMOI_PHASE_UPDATE;
    const int32_t at = states->layers[layer].place;
    memoi_states_place* own =
        at >= 0 && states->places[at].layer == layer ? &states->places[at] : NULL;

    /* Stores end in order, so the host waits for an event behind all stores. */
    if (!is_pass || states->n_ended == 0) {
        memob_engine_record(e, MEMOB_SWAP_COMPUTE, MEMOI_STATES_COMPUTED);
        memob_engine_wait(e, MEMOB_SWAP_TO_HOST, MEMOI_STATES_COMPUTED);
        for (int k = 1; k >= 0; k--) {
            memoi_states_place* place = &states->places[k];
            const int leaves = place->dirty && (is_pass || place == own);
            if (leaves) memoi_states_store(states, place);
            if (e->status) return;
            if (leaves) place->dirty = 0;
            place->is_leaving |= leaves;
            if (k == 0 || place->is_leaving)
                memob_engine_record(e, MEMOB_SWAP_TO_HOST, MEMOI_STATES_STORED + k);
        }
        memob_engine_wait(e, MEMOB_SWAP_FILE, MEMOI_STATES_STORED);
    }

    /* What nobody has used yet may still be read from the host. */
    if (own && own->is_coming) memob_engine_wait(e, MEMOB_SWAP_FILE, MEMOI_STATES_LOADED + at);
    if (!e->status && e->device.annotate) memoi_states_annotate(states, layer);
    if (!e->status)
        e->status =
            memo_launch_host(&e->device, e->streams[MEMOB_SWAP_FILE], &update->call, e->error);
    memob_engine_record(e, MEMOB_SWAP_FILE, MEMOI_STATES_UPDATED + layer);
    if (e->status) return;
    update->number = ++states->n_updates;
    update->is_awaited = 0;
    if (own) own->present &= ~(states->gradients | states->updated);
}

/* Instead of an update: each layer is updated before its next forward. */
MEMOI void memob_states_defer(memob_states* states) {
    MEMO_ASSERT(states->update_at == MEMOB_UPDATE_DEFERRED && !states->is_pending &&
                (states->phase == MEMOI_PHASE_NONE || states->phase == MEMOI_PHASE_UPDATE));
    states->phase = MEMOI_PHASE_NONE;
    states->is_pending = 1;
}

/* Begins a micro-batch, and fetches what its first layers need.  is_last: the update comes after
 * its backward, or in it.  is_forward_only: no backward follows, and no updates are pending.
 * Errors: the device's. */
MEMOI memo_status memob_states_set_batch(memob_states* states, int is_last, int is_forward_only,
                                         memo_error* error) {
    static const int32_t phases[2][2] = {
        {MEMOI_PHASE_FORWARD, MEMOI_PHASE_LAST_FORWARD},
        {MEMOI_PHASE_UPDATE_FORWARD, MEMOI_PHASE_UPDATE_LAST_FORWARD}};
    const int32_t phase =
        is_forward_only ? MEMOI_PHASE_EVALUATION : phases[states->is_pending][is_last != 0];
    memob_engine* e = &states->engine;
    int32_t n_brought = 0;
    MEMO_ASSERT(states->phase == MEMOI_PHASE_NONE && !(is_forward_only && states->is_pending));
    memob_engine_call(e, error);
    for (int32_t layer = 0; layer < states->n_layers && n_brought < 2 && !e->status; layer++) {
        if (!memob_states_needs(states, phase, layer)) continue;
        memoi_states_bring(states, phase, layer);
        n_brought++;
    }
    if (!e->status) states->phase = phase;
    return e->status;
}

/* Begin and end enclose what the trainer enqueues for a layer of a pass.  Sessions have checked the
 * order.  A layer may begin before another layer ends, unless both use the same place.  An update
 * may also follow a micro-batch that was not the last, and ends deferred updates that are pending.
 * Errors: the device's; then comes memob_states_abandon. */
MEMOI memo_status memob_states_begin(memob_states* states, memob_states_pass pass, int32_t layer,
                                     memo_error* error) {
    memob_engine* e = &states->engine;
    if (pass == MEMOB_STATES_PASS_UPDATE && states->phase == MEMOI_PHASE_NONE && layer == 0)
        states->phase = MEMOI_PHASE_UPDATE; /* no micro-batch was the last */
    MEMO_ASSERT(memoi_states_pass_of(states->phase) == pass &&
                memob_states_layer_of(states, states->phase, states->n_begun) == layer);
    memob_engine_call(e, error);
    if (memob_states_needs(states, states->phase, layer)) {
        const int32_t place = states->layers[layer].place;
        memoi_states_bring(states, states->phase, layer);
        if (states->places[place].is_coming)
            memob_engine_wait(e, MEMOB_SWAP_COMPUTE, MEMOI_STATES_LOADED + place);
        if (!e->status) states->places[place].is_coming = 0;

        /* An update of a layer that has stayed there since its update before. */
        if (states->places[place].is_storing && memob_states_updates(states, states->phase)) {
            memob_engine_wait(e, MEMOB_SWAP_COMPUTE, MEMOI_STATES_STORED + place);
            if (!e->status) states->places[place].is_storing = 0;
        }
    }

    /* The first layers of the update that follows are there already: their other states come while
     * the backward computes. */
    if (states->phase == MEMOI_PHASE_LAST_BACKWARD && !e->status)
        memoi_states_bring_next(states, states->phase, states->n_begun, 1);

    /* Gradients of a new step begin at zero. */
    for (int32_t s = 0; s < states->n_states && !e->status; s++) {
        void* address = memob_states_get_address(states, layer, s);
        if (pass != MEMOB_STATES_PASS_BACKWARD || states->layers[layer].has_gradients) break;
        if (!address || !(states->gradients >> s & 1)) continue;
        if (e->computes_on_host)
            memset(address, 0, (size_t)states->states[s].size_bytes);
        else
            e->status = memo_fill(&e->device, e->streams[MEMOB_SWAP_COMPUTE], address, 0,
                                  states->states[s].size_bytes, error);
    }
    if (!e->status && states->n_begun++ == 0 && memob_states_updates(states, states->phase)) {
        states->n_unseen++;
        states->is_pending = 0;
    }
    return e->status;
}

/* The update of a layer on the device has changed its states, and used its gradients up. */
MEMOI void memoi_states_change(memob_states* states, int32_t layer) {
    const int32_t at = states->layers[layer].place;
    memoi_states_place* place = &states->places[at];
    MEMO_ASSERT(at >= 0 && place->layer == layer);
    place->present |= states->made & states->layers[layer].streamed;
    place->dirty |= states->updated & place->present;
    place->present &= ~states->gradients;
    place->dirty &= ~states->gradients;
}

/* The trainer has enqueued the deferred update of a layer, whose forward comes next.  What it has
 * changed leaves.  Errors: the device's; then comes memob_states_abandon. */
MEMOI memo_status memob_states_updated(memob_states* states, int32_t layer, memo_error* error) {
    memob_engine* e = &states->engine;
    memob_states_layer* of_layer = &states->layers[layer];
    MEMO_ASSERT(memob_states_updates_now(states, 0) && states->n_begun > states->n_ended);
    memob_engine_call(e, error);
    of_layer->has_gradients = 0;
    if (!memob_states_needs(states, states->phase, layer)) return MEMO_STATUS_OK;
    memoi_states_change(states, layer);
    if (!states->places[of_layer->place].dirty) return MEMO_STATUS_OK;
    memob_engine_record(e, MEMOB_SWAP_COMPUTE, MEMOI_STATES_COMPUTED + of_layer->place);
    memoi_states_leave(states, of_layer->place);
    if (e->status) return e->status;
    states->places[of_layer->place].dirty = 0;
    states->places[of_layer->place].is_storing = 1;
    return MEMO_STATUS_OK;
}

MEMOI memo_status memob_states_end(memob_states* states, memob_states_pass pass, int32_t layer,
                                   memo_error* error) {
    const int32_t phase = states->phase;
    memob_engine* e = &states->engine;
    memob_states_layer* of_layer = &states->layers[layer];
    MEMO_ASSERT(memoi_states_pass_of(phase) == pass && states->n_ended < states->n_begun &&
                memob_states_layer_of(states, phase, states->n_ended) == layer);

    /* What the pass has changed.  An update has used the gradients up. */
    if (memob_states_needs(states, phase, layer)) {
        memoi_states_place* place = &states->places[of_layer->place];
        if (pass == MEMOB_STATES_PASS_BACKWARD) place->dirty |= states->gradients & place->present;
        if (memob_states_updates_now(states, 1) && !states->updates)
            memoi_states_change(states, layer);
    }
    memob_engine_call(e, error);
    if (states->updates && memob_states_updates(states, phase)) memoi_states_launch(states, layer);
    if (e->status) return e->status;
    if (pass != MEMOB_STATES_PASS_FORWARD)
        of_layer->has_gradients = !memob_states_updates(states, phase);

    /* The phase ends only if the calls for the next layer succeed; a fault abandons it. */
    memoi_states_bring_next(states, phase, states->n_ended, 0);
    if (e->status || ++states->n_ended < states->n_layers) return e->status;
    states->phase = memoi_states_phase_after(states, phase);
    if (states->phase == MEMOI_PHASE_FORWARD) states->phase = MEMOI_PHASE_NONE;
    if (states->phase == MEMOI_PHASE_UPDATE_FORWARD) states->phase = MEMOI_PHASE_UPDATE;
    states->n_begun = states->n_ended = 0;
    return MEMO_STATUS_OK;
}

/* Abandons a step: gradients begin at zero again, and memob_states_set_batch comes next.  Updates
 * that are pending stay so if none has begun, with their gradients.  Returns INVALID_STATE if the
 * states must be set again: the update has changed some layers but not all, or the device reports a
 * failed operation (without waiting), and an update has begun since the last transfer.  After such
 * a failure transfers return the device's error, never bytes of two steps. */
MEMOI memo_status memob_states_abandon(memob_states* states, memo_error* error) {
    const int32_t phase = states->phase, n_begun = states->n_begun;
    const uint32_t dropped = states->is_pending ? 0 : states->gradients;
    memo_error late;
    for (int32_t i = 0; i < 2; i++) {
        states->places[i].present &= ~dropped;
        states->places[i].dirty &= ~dropped;
    }
    for (int32_t i = 0; i < states->n_layers && dropped; i++) states->layers[i].has_gradients = 0;
    states->phase = MEMOI_PHASE_NONE;
    states->n_begun = states->n_ended = 0;
    if (states->n_unseen && memo_device_status(&states->engine.device, &late))
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "an operation has failed on its stream, after %lld updates since "
                              "states were read or written: resident states are lost, and some "
                              "streamed ones are older than others; set the states of all layers "
                              "again, in a new session or engine",
                              (long long)states->n_unseen);
    if (n_begun == 0 || !memob_states_updates(states, phase)) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                          "the update has changed %d of %d layers; set the states of all layers "
                          "again",
                          (int)n_begun, (int)states->n_layers);
}

/* Forgets what lies on the device, as in a new engine. */
MEMOI void memob_states_reset(memob_states* states) {
    states->n_unseen = states->n_updates = states->n_awaited = 0;
    states->is_pending = 0;
    for (int p = 0; p < states->n_layers && states->updates; p++) {
        states->updates[p].number = 0;
        states->updates[p].is_awaited = 1;
    }
    (void)memob_states_abandon(states, NULL);
    for (int p = 0; p < 2; p++) {
        const memoi_states_place none = {-1, 0, 0, 0, 0, 0};
        states->places[p] = none;
    }
}

/* --- both engines --- */

/* What a step of a layer brings and releases, and with it the engine's first and last layer.
 * visit: called with user for each. */
MEMOI void memob_states_turn(void (*visit)(void*, memob_states_pass, int32_t, int), void* user,
                             int32_t n_layers, int32_t n_slices, int is_forward_only,
                             int is_backward, int32_t step, int is_end) {
    const int32_t layer = step / n_slices + 1, last = n_layers + 1;
    const int32_t turning = is_backward == !is_end ? n_slices - 1 : 0;
    const memob_states_pass of =
        is_backward ? MEMOB_STATES_PASS_BACKWARD : MEMOB_STATES_PASS_FORWARD;
    if (step % n_slices != turning) return;
    if (is_end && !is_backward && layer == 1) visit(user, of, 0, 1);
    if (is_end && is_backward && layer == n_layers) visit(user, of, last, 1);
    visit(user, of, layer, is_end);
    if (!is_end && is_backward && layer == 1) visit(user, of, 0, 0);
    if (!is_end || is_backward || layer < n_layers) return;
    visit(user, of, last, 0);
    if (is_forward_only) return;
    visit(user, of, last, 1);
    visit(user, MEMOB_STATES_PASS_BACKWARD, last, 0);
}

/* A step as the engines and the trainer go through it.  NULL: without states. */
typedef struct memob_walk {
    const memob_swap_placement* order;
    const memob_states* states;
    void (*rows)(void* user, int32_t k, int is_end); /* visit k of the order begins, or ends */
    void (*layer)(void* user, memob_states_pass pass, int32_t layer, int is_end);
    void (*compute)(void* user, int32_t k);    /* visit k */
    void (*between)(void* user, int32_t turn); /* before this turn of backwards */
    void* user;
} memob_walk;

/* A micro-batch, or all that are in flight. */
MEMOI void memob_walk_batch(const memob_walk* w) {
    const memob_swap_placement* order = w->order;
    const int32_t n_slices = order->n_slices, n_layers = order->n_layers / n_slices;
    if (w->states) w->layer(w->user, MEMOB_STATES_PASS_FORWARD, 0, 0);
    for (int32_t k = 0; k < order->n_visits; k++) {
        const memob_swap_visit* visit = &order->visits[k];
        if (visit->is_backward && k % order->n_forwards == 0)
            w->between(w->user, k / order->n_forwards);
        if (w->states)
            memob_states_turn(w->layer, w->user, n_layers, n_slices, 0, visit->is_backward,
                              visit->step, 0);
        w->rows(w->user, k, 0);
        w->compute(w->user, k);
        w->rows(w->user, k, 1);
        if (w->states)
            memob_states_turn(w->layer, w->user, n_layers, n_slices, 0, visit->is_backward,
                              visit->step, 1);
    }
    if (w->states) w->layer(w->user, MEMOB_STATES_PASS_BACKWARD, 0, 1);
}

/* The update after the last micro-batch of a step. */
MEMOI void memob_walk_update(const memob_walk* w, memob_states* states) {
    if (states && states->update_at == MEMOB_UPDATE_DEFERRED) memob_states_defer(states);
    if (!states || !memob_states_is_due(states)) return;
    for (int32_t layer = 0; layer < w->states->n_layers; layer++) {
        w->layer(w->user, MEMOB_STATES_PASS_UPDATE, layer, 0);
        w->layer(w->user, MEMOB_STATES_PASS_UPDATE, layer, 1);
    }
}

/* --- from and to the caller --- */

/* Writes the blocks with these bytes of a spilled state to the file, or reads them, now. */
MEMOI void memoi_states_pass_file(memob_states* states, int32_t layer, int32_t state, int is_read,
                                  int64_t offset_bytes, int64_t n_bytes) {
    memob_engine* e = &states->engine;
    const int64_t begin = offset_bytes / MEMOB_SPILL_ALIGNMENT * MEMOB_SPILL_ALIGNMENT;
    memob_spill_op op;
    if (e->status || !(states->layers[layer].spilled >> state & 1)) return;
    op = e->spill_ops[memoi_states_spill_op(states, layer, state) + is_read];
    op.address += begin;
    op.offset += begin;
    op.n_bytes = memob_align_up(offset_bytes + n_bytes - begin, MEMOB_SPILL_ALIGNMENT);
    e->status = memoi_spill_run(&op, e->error);
}

/* Waits for computation, copies and updates on the host. */
MEMOI memo_status memob_states_synchronize(memob_states* states, memo_error* error) {
    const memob_engine* e = &states->engine;
    memo_status status = MEMO_STATUS_OK;
    for (int k = MEMOB_SWAP_COMPUTE; k <= MEMOB_SWAP_FILE && !status; k++)
        if (k == MEMOB_SWAP_COMPUTE ? !e->computes_on_host : e->streams[k] != NULL)
            status = memo_stream_synchronize(&e->device, e->streams[k], error);
    if (!status) states->n_unseen = 0;
    return status;
}

/* Waits for computation and copies, then copies bytes of a state from where they lie, or there;
 * from NULL: sets them to zero.  A layer that lacks the state has none.  Needs no room on the
 * device.  Errors: INVALID_STATE (a layer is open), INVALID_ARGUMENT (outside of the state), the
 * device's. */
MEMOI memo_status memob_states_transfer(memob_states* states, int32_t layer, int32_t state,
                                        int is_out, int64_t offset_bytes, void* bytes,
                                        int64_t n_bytes, memo_error* error) {
    const char* const name = is_out ? "memo_session_read_state" : "memo_session_write_state";
    memob_engine* e = &states->engine;
    const memo_device* device = &e->device;
    const memo_stream stream = e->streams[is_out ? MEMOB_SWAP_TO_HOST : MEMOB_SWAP_TO_DEVICE];
    const int64_t* offsets = memoi_states_offsets(states, layer, state);
    const int64_t size_bytes = states->states[state].size_bytes;
    const uint32_t bit = 1u << state;
    memo_status status;
    memoi_states_place* place;
    char *on_device, *on_host;
    if (states->n_begun > states->n_ended)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE, "%s: a layer is open; end it first",
                              name);
    if (is_out && !bytes && n_bytes) return MEMOB_INVALID(error, "%s: bytes: NULL", name);
    if (!(states->layers[layer].has & bit)) return MEMO_STATUS_OK;
    if (offset_bytes < 0 || n_bytes < 0 || n_bytes > size_bytes ||
        offset_bytes > size_bytes - n_bytes)
        return MEMOB_INVALID(
            error, "%s: offset_bytes: %lld bytes from byte %lld; state %d has %lld bytes", name,
            (long long)n_bytes, (long long)offset_bytes, (int)state, (long long)size_bytes);
    status = memob_states_synchronize(states, error);
    if (status || !n_bytes) return status;

    /* Resident: on the device. */
    on_device = e->device_memory + offsets[0] + offset_bytes;
    if (!(states->layers[layer].streamed & bit)) {
        status =
            !bytes ? memo_fill(device, stream, on_device, 0, n_bytes, error)
            : is_out
                ? memo_copy(device, stream, MEMO_COPY_TO_HOST, bytes, on_device, n_bytes, error)
                : memo_copy(device, stream, MEMO_COPY_TO_DEVICE, on_device, bytes, n_bytes, error);
        return status ? status : memo_stream_synchronize(device, stream, error);
    }

    /* Streamed: on the host, after what is newer in the layer's place has left. */
    place = &states->places[memob_max(states->layers[layer].place, 0)];
    on_host = e->host_memory + offsets[1] + offset_bytes;
    memob_engine_call(e, error);
    if (place->layer == layer && (place->dirty & bit)) {
        memoi_states_copy(states, MEMOB_SWAP_TO_HOST, layer, bit, 0);
        if (!e->status)
            e->status = memo_stream_synchronize(device, e->streams[MEMOB_SWAP_TO_HOST], error);
        memoi_states_pass_file(states, layer, state, 0, 0, size_bytes);
        if (!e->status) place->dirty &= ~bit;
    }
    if (!e->status && place->layer == layer && !is_out) place->present &= ~bit;
    memoi_states_pass_file(states, layer, state, 1, offset_bytes, n_bytes);
    if (!e->status && bytes)
        memcpy(is_out ? bytes : on_host, is_out ? on_host : bytes, (size_t)n_bytes);
    else if (!e->status)
        memset(on_host, 0, (size_t)n_bytes);
    if (!is_out) memoi_states_pass_file(states, layer, state, 0, offset_bytes, n_bytes);
    return e->status;
}
