#pragma once
/* ---- 8 states: weights, gradients, optimizer states ---------------------------------------------
 *
 * A *state* is bytes of a layer that live from step to step.  The desc of a session (memo_plan.h,
 * States) lists the states and the passes that use them. */

enum {
    MEMO_STATE_FORWARD = 1,  /* the forward reads it */
    MEMO_STATE_BACKWARD = 2, /* the backward reads it */
    MEMO_STATE_UPDATE = 4,   /* the update reads and writes it */
    MEMO_STATE_GRADIENT = 8, /* the backward adds to it, the update reads it; no other use */
    MEMO_STATE_WEIGHTS = 7,  /* each pass uses it */
    /* With UPDATE: the update writes all bytes and reads none, such as weights that are rounded
     * from a master copy.  They do not travel to an update. */
    MEMO_STATE_MADE = 16,
    /* A forward alone reads it, as of averaged weights.  FORWARD includes forwards alone. */
    MEMO_STATE_ALONE = 32,
    /* With any other use: one copy for all layers that have it, such as a table that is tied.  See
     * Shared states in memo_plan.h. */
    MEMO_STATE_SHARED = 64,
    /* With FORWARD, BACKWARD or ALONE, and no other use: frozen weights in a file of the caller's,
     * whose bytes memo_session_desc.fetch copies.  See Fetched states in memo_plan.h. */
    MEMO_STATE_FETCHED = 128
};

typedef struct memo_state {
    const char* name;   /* no blanks */
    int64_t size_bytes; /* of each layer that has the state */
    uint32_t uses;  /* sum of the constants above; without UPDATE or GRADIENT: not copied back */
    uint32_t kinds; /* bit k: layers of kind k have the state; 0: all layers */
} memo_state;
#define MEMO_STATES_MAX 32

/* Tiers of memory, and who needs bytes there. */
typedef enum memo_tier {
    MEMO_TIER_DEVICE = 0,
    MEMO_TIER_HOST,
    MEMO_TIER_FILE,
    MEMO_N_TIERS
} memo_tier;
typedef enum memo_owner {
    MEMO_OWNER_WEIGHTS = 0, /* states that the forward or the backward reads; where they stay */
    MEMO_OWNER_GRADIENTS,   /* likewise */
    MEMO_OWNER_OPTIMIZER,   /* likewise: states that the update alone uses */
    MEMO_OWNER_PLACES,      /* through which streamed states come and go */
    MEMO_OWNER_ACTIVATIONS, /* the swap engine's */
    MEMO_OWNER_SESSION,     /* buffers of pass SESSION */
    MEMO_OWNER_MICRO_BATCH, /* its other requests, where they do not share bytes */
    MEMO_N_OWNERS
} memo_owner;

/* When states are updated. */
typedef enum memo_update_at {
    MEMO_UPDATE_PASS = 1, /* in memo_session_update, behind all layers */
    MEMO_UPDATE_FUSED,    /* in the last backward of a step */
    MEMO_UPDATE_DEFERRED, /* before the layer's next forward */
    MEMO_N_UPDATE_MOMENTS /* with 0, which is none */
} memo_update_at;
