#pragma once
#include "memo/engine.h"
#include "plan/rows/limits.h"
/* ---- 4 session ----------------------------------------------------------------------------------
 * Knows: budgets, the chapters above, memo.h's arena and swap engine.  Knows nothing of how rows or
 * offsets are found.
 *
 * A session object is made of a desc, whether it is opened or a planner needs it for a call. */

/* What is timed of a step. */
enum {
    MEMOI_SPAN_UPDATE = 0, /* of a layer, at its first step */
    MEMOI_SPAN_FORWARD,
    MEMOI_SPAN_BETWEEN, /* of the last step alone */
    MEMOI_SPAN_BACKWARD,
    MEMOI_SPAN_TENSOR, /* recomputation of tensor 0; tensor t has MEMOI_SPAN_TENSOR + t */
    MEMOI_SPAN_UPDATE_FIRST = MEMOI_SPAN_TENSOR + MEMO_PROFILE_TENSORS_MAX, /* at step 0 */
    MEMOI_SPAN_UPDATE_LAST,                                                 /* likewise */
    /* No time: bytes that were copied beside the layer's forward, and beside its backward;
     * negative: to the device.  See >>session slowing. */
    MEMOI_SPAN_BESIDE,
    MEMOI_SPANS_MAX = MEMOI_SPAN_BESIDE + 2
};
static const int32_t memoi_span_of_pass[] = {-1, MEMOI_SPAN_FORWARD, MEMOI_SPAN_BETWEEN,
                                             MEMOI_SPAN_BACKWARD, -1}; /* -1: none */
MEMOB_TABLE_OF(MEMO_N_PASSES, memoi_span_of_pass);

/* 1: of the computation of a layer. */
MEMOI int memoi_span_is_of_layer(int64_t span) {
    return span == MEMOI_SPAN_FORWARD || span == MEMOI_SPAN_BACKWARD;
}

#define MEMOI_SESSION_REPETITIONS 11 /* micro-batches that are timed */

/* Measures a span, or a part of one. */
typedef struct memoi_timer {
    memo_event events[2]; /* of begin and end */
    double* span_s;       /* to be added to, once the device is so far; NULL: none */
    double scale;         /* of what is added */
} memoi_timer;
#define MEMOI_TIMERS_MAX 4096

/* Copies that are only there to find how much copies slow computation: >>session slowing. */
typedef struct memoi_slowing {
    memob_engine engine; /* its streams, and memory for a copy on the host */
    memo_event event;
    int64_t n_bytes; /* of a copy; 0: it is not measured */
    int64_t at;      /* of a copy in the session's device memory */
    int32_t is_open; /* 1, 2: the open layer has copies to the host, to the device */
} memoi_slowing;

/* A plan with the memory that its desc points to. */
typedef struct memoi_step_plan {
    memo_step_plan plan; /* first */
    memo_item tensors[MEMO_PROFILE_TENSORS_MAX];
    char names[MEMO_PROFILE_TENSORS_MAX][sizeof((memo_profile_tensor*)NULL)->name];
    memob_arrays arrays; /* order, and what swap points to */
} memoi_step_plan;

/* A buffer of a checked session, see >>session checked. */
typedef struct memoi_checked_buffer {
    void* address;       /* the arena's; NULL: it has ended */
    const char* name;    /* NULL: requested by the trainer */
    int64_t at, n_bytes; /* in the memory of buffers */
} memoi_checked_buffer;

typedef struct memoi_checked {
    memob_engine engine; /* copies on the compute stream, or on its own if the thread computes */
    memo_stream stream;  /* the engine's */
    char* slots;         /* on the device; two, and room behind them for what overflows; NULL: the
                            session is not checked */
    char* image;         /* of a slot, pinned; behind it is room for a copy */
    memo_row_content* found; /* of rows: what memoi_checked_view has seen last */
    memo_row_content* seen;  /* the same on the device; NULL: the device has no `inspect` */
    int64_t slot_bytes;
    int64_t* offsets; /* (n_tensors + 1), of rows in a slot; the last: the end of the slot */
    uint64_t* hashes; /* (n_steps, n_tensors, most_rows) */
    int64_t most_rows;
    uint32_t kinds;    /* bit k: recomputation of a layer of kind k is tested */
    int32_t n_trained; /* micro-batches with a backward, without an error */
    int32_t is_moved;  /* 1: slots and halves have changed places */
    uint64_t* states;  /* (engine's layers, n_states): hashes, MEMOI_HASH_ZERO, or 0: not known */
    /* Of the states of open visits, with guards, on the device: two halves, which take turns. */
    char* states_memory;
    int64_t states_bytes; /* of a half */
    int64_t guard_bytes;  /* behind each state */
    int64_t* states_at;   /* (n_states): where a state lies, in either half by turns */
    uint64_t* guards;     /* (n_states): hashes of the guards */
    int32_t* lies_of;     /* (n_states): 1 + the engine's layer whose state lies there; 0: none */
    int32_t* n_open;      /* (n_states): layers that are open, and use what lies there */
    int is_swept;         /* all else there is poison */
    int32_t n_updated;    /* layers that this update has changed */
    int32_t n_missed; /* 1 + the engine's layer that it has not, though its gradients are not 0 */
    char* memory;     /* of buffers, on the device */
    int64_t memory_bytes, n_buffers;
    memoi_checked_buffer* buffers; /* of this micro-batch, in the order of their requests */
    memob_arrays arrays;           /* offsets, hashes, buffers */
} memoi_checked;

/* What a watcher of a checked session is told of, when it begins and when it ends. */
typedef enum memob_watched {
    MEMOB_WATCH_RECOMPUTATION, /* of every tensor of a step, whatever the plan */
    MEMOB_WATCH_FORWARD_ALONE, /* a micro-batch without a backward */
    MEMOB_WATCH_FORWARD,       /* of a step, which is still open; its end alone */
    MEMOB_WATCH_BACKWARD,      /* likewise; its rows are there */
    MEMOB_WATCH_UPDATE,        /* on the device, of an engine's layer, whose states are there */
    MEMOB_WATCH_STEP           /* of states: it is over, and its update is due; its begin alone */
} memob_watched;

/* Calls between two micro-batches. */
typedef enum memoi_states_call {
    MEMOI_CALL_UPDATE,
    MEMOI_CALL_SKIP_UPDATE,
    MEMOI_CALL_FLUSH,
    MEMOI_CALL_FILL_STATES,
    MEMOI_CALL_SET_UPDATE_VALUES,
    MEMOI_CALL_SLEEP,
    MEMOI_CALL_SNAPSHOT,
    MEMOI_N_CALLS
} memoi_states_call;

/* A session that times its first steps: >>session timing. */
typedef struct memoi_timing {
    void (*plan)(memo_session* s); /* by the spans of the steps so far; NULL: nothing is timed */
    memo_policy policy;            /* with n_group: the caller's, for another plan */
    int32_t n_group;
    int32_t due;               /* the step, from 0 on, before which to plan */
    int32_t n_ended;           /* training steps, while some are timed */
    int32_t n_skipped;         /* of all training steps */
    int64_t n_batches;         /* micro-batches with a backward that have begun */
    int is_open;               /* a micro-batch that is timed has begun and not ended */
    double host_s, host_bytes; /* of updates on the host */
    memoi_slowing slowing;
    void* kept;             /* states of the device, while they move; NULL: none */
    memo_profile* profiles; /* (n_shapes); until times are known: of copies, in the first */
    int is_known;           /* profiles has times */
    int is_lost;            /* neither plan could be opened */
    char why[200];          /* the first plan stays; "": it does not */
} memoi_timing;

/* What a shape has of its own. */
typedef struct memoi_session_part {
    memo_step_plan* plan; /* the stage, or the plan that is open, which is never written to */
    memob_swap_placement placement;
    memo_arena* arena;
    memo_swap* swap;
    memob_step* step; /* of the states, of the engine, or own_step: where the trainer is */
    memob_step own_step;
    memob_sink own_sink;
    char* base;       /* of the engine's device memory */
    uint8_t* skipped; /* (n_steps): 1: memo_session_skip_layer was called in the latest forward */
    double* spans_s;  /* of a session that times its steps */
    int32_t n_timed;  /* repetitions of them */
} memoi_session_part;

struct memo_session {
    memo_session_desc desc; /* the caller's, with all ranks' budgets; slice_rows: 1 to n_rows */
    void* buffer_addresses[MEMO_SESSION_BUFFERS_MAX];
    const memo_device* device;
    memo_device* own_device;
    memo_step_plan* own_plan; /* which it destroys; NULL: the caller's */

    /* Shapes, which share memory, and the current one.  A slice of a layer is a *step*; without
     * slices a layer is one.  Public functions and callbacks get layers. */
    memoi_session_part parts[MEMO_SHAPES_MAX], *part;
    const memo_swap_desc* steps;           /* of the current plan */
    int32_t n_steps, n_slices, n_of_batch; /* of a layer: slices, and those of a micro-batch */
    int64_t most_steps;                    /* of the shape with the most */
    /* With an order, layer l begins with step place * n + l * n_slices % n.  This turn computes
     * n_turn_steps steps from first_step on, layers from first_layer on.  Without an order: every
     * step. */
    int32_t n_turn_steps, first_step, first_layer;
    int32_t next_turn; /* 0: no micro-batch is in flight */

    /* Running. */
    int is_open;                       /* arenas have memory; 0: a plan is being made */
    void *device_memory, *host_memory; /* of all shapes */
    int64_t memory_bytes;              /* of device_memory */
    char* kept_bytes;         /* of the device, while the session sleeps; NULL: it is awake */
    memo_stream sleep_stream; /* of the first sleep on: copies these bytes */
    uintptr_t slept_at;       /* the device memory before that */
    memoi_timing timing;

    /* States.  The engine's layer 0 is FIRST, then come the session's, then LAST. */
    memob_states_desc states_desc; /* of the stage or the plan that is open */
    memob_states_sizes states_sizes;
    uint32_t *streamed, *spilled; /* (n_layers + 2); NULL: the session has no states */
    memob_states* states;
    memo_snapshot_desc snapshot; /* the latest */
    int is_filling;              /* memo_session_fill_states is under way */
    int is_fused;                /* the latest micro-batch has updated all layers */
    int is_part;                 /* the micro-batch adds to gradients of earlier ones */
    int is_again;                /* these are lost, and the step has not been dropped */
    int32_t n_rounds_taken;      /* how often steps of another number of micro-batches were taken */
    char lost[96];               /* why layers are of different steps; "": they are not */
    int64_t* whole;              /* (n_layers + 2, n_states, 2): bytes that were set since then */
    uint32_t* masks;       /* (n_layers + 2): states that the step's first micro-batch has named */
    int is_deferred;       /* the update that runs finds values[1] */
    int has_update_values; /* values[1] are of the update that comes next */
    union {
        double align;
        char bytes[MEMO_BATCH_VALUES_MAX];
    } values[2];       /* of this micro-batch; of pending updates */
    memob_arrays kept; /* as long as the session: copies of the desc, kinds, profiles */

    memo_error failure;    /* the first of the call that plans or opens */
    int all_failed;        /* it is every rank's, and no rank waits for another */
    memo_error error;      /* the first of this micro-batch */
    int is_reported;       /* a call has returned this error; the next error takes its place */
    memo_error call_error; /* of the latest call, for either */
    memo_batch batch;      /* n_rows is not 0 */
    int is_routed;         /* memo_session_set_routed was called in the open forward */
    int is_in_run;         /* memo_session_run calls the trainer's functions */
    int is_running;        /* between begin and end */

    memoi_checked checked;
    /* Of extras/memo_check.h, which keeps what `watcher` points to in `kept`; NULL: none. */
    void (*watch)(memo_session* s, memob_watched what, int32_t step, int is_end);
    void* watcher;

    /* Times: (n_steps of the longest shape, MEMOI_SPANS_MAX, repetitions), then the median in the
     * first.  NULL: nothing is timed. */
    double* spans_s;
    /* One after the other, around: those of a micro-batch, if they are not too many.  They are read
     * when the next timed micro-batch begins, so the host waits for the device there alone. */
    memoi_timer* timers;
    int32_t n_timers, next_timer;
    int32_t open_timers[MEMOI_SPANS_MAX]; /* of the open part of a span */
    int32_t repetition;
    double* layers_s;    /* (n_steps of the longest shape), for a median */
    memob_arrays arrays; /* of all three */
};

const char* memo_policy_name(memo_policy policy) {
    static const char* const names[] = {"memo", "keep", "recompute", "swap", "alpha", "rows"};
    MEMOB_TABLE_OF(MEMO_N_POLICIES, names);
    return (int)policy >= 0 && (int)policy < MEMO_N_POLICIES ? names[policy] : "unknown";
}

#define MEMOB_ASLEEP                                                                               \
    "the session sleeps and has no memory of the device; memo_session_wake comes next"

/* 1: more bytes than a budget has; 0: it has no limit. */
MEMOI int memoi_is_over(int64_t n_bytes, int64_t budget_bytes) {
    return budget_bytes && n_bytes > budget_bytes;
}

/* What a trainer has named, in messages. */
MEMOI const char* memob_session_name(const char* name) { return name ? name : "NULL"; }

MEMOI void memob_session_log(const memo_session* s, const char* format, ...) MEMO_PRINTF(2, 3);
MEMOI void memob_session_log(const memo_session* s, const char* format, ...) {
    char line[256];
    va_list arguments;
    if (!s->desc.log.write) return;
    va_start(arguments, format);
    (void)vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    s->desc.log.write(s->desc.log.user, line);
}
