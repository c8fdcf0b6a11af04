#pragma once
/* ---- 4 session: from tensors and a budget to a running step -------------------------------------
 *
 * A trainer describes its tensors, names its functions and states a budget.  memo_session_create
 * plans, and opens an arena and a swap engine that fit.
 * The head of this header has an example.
 *
 * Self-timing.  The fastest plan depends on times, which nobody knows at first.  Every plan has the
 * same bits, so the first training steps run by a plan that fits (everything recomputed, if that
 * fits), and are timed; then the session plans by their times, between two steps, and goes on.  No
 * function of the trainer runs only to be timed.  What is timed:
 *
 *     desc.timed_steps   steps before the plan, 4 by default, of which the first does not count.
 *                        Micro-batches with fewer than half of their shape's rows, forwards alone,
 *                        and what fails do not count; if too few count, the session waits as long
 *                        again.  In these steps recompute is called for all rows of each tensor.
 *     before the steps   copies of the session's own bytes to the host and back, and a file
 *     beside layers      the same copies beside two of three layers, to find how much they slow
 *                        computation, if the budgets have room for one beside the first plan.  A
 *                        timed layer waits for all other copies, so that these steps take longer
 *     not timed          an update at another place than the first plan's; shapes that have not
 *                        trained get the times of others, by rows
 *
 * When the session plans again, the device memory stays the same block, of all device_bytes.
 * Buffers of pass SESSION keep address and bytes.
 * Other addresses are new: desc.planned says when (graphs, registered memory).  Slices and
 * the place of the update stay.  States keep their bytes, and move if host_bytes and disk_bytes
 * have room for both plans' states at once and host_bytes beside them for those on the device, if
 * so much can be pinned, and if host_memory is NULL; otherwise they stay where they are, and rows
 * alone are planned.  Pending updates run first.
 * If the plan cannot be opened, for instance because no memory can be pinned, the first plan stays,
 * with a line in the log.  All ranks plan before the same step, by the same times.
 * desc.profile_path keeps the times for the next run, which then begins by the second plan.
 *
 * With times that are known, from memo_session_get_profile or a file of another run:
 *
 *     memo_session_plan(&desc, &profile, &plan, &error);      // data; needs no device
 *     memo_session_open(&desc, plan, &session, &error);       // arena and swap engine
 *
 * A plan fits or says what is missing.  So a table of all policies is a loop:
 *
 *     desc.alpha = -1;                                        // planned
 *     for (policy = 0; policy < MEMO_POLICY_ROWS; policy++) {
 *         desc.policy = (memo_policy)policy;
 *         if (memo_session_plan(&desc, &profile, &plan, &error)) return error.status;
 *         printf("%s %lld %s\n", memo_policy_name(plan->policy), plan->device_bytes,
 *                plan->shortage);
 *         memo_step_plan_destroy(plan);
 *     }
 *
 * Bits.  A run keeps the bits if recompute gives each row the bits of the first computation, for
 * any run of whole tiles.  Products of libraries choose an algorithm by shape: compute products
 * tile by tile in the forward too, or make the tensor WHOLE.  memo_session_verify compares the
 * gradients of several plans before training.  A checked session (is_checked, or MEMO_CHECK=1 in
 * the environment) tests this, and finds wrong sizes, orders and recomputations.
 *
 * Functions.  A trainer with a loop gives `step` instead of forward, between and backward.  `step`
 * computes everything between begin and end of a micro-batch.
 *
 *     static void step(void* user, memo_session* s) {
 *         for (l = 0; l < L; l++) {
 *             if (memo_session_forward_begin(s, l)) ... compute ...
 *             memo_session_forward_end(s, l);
 *         }
 *         for (l = L - 1; l >= 0; l--) {
 *             if (memo_session_backward_begin(s, l)) {
 *                 void* scratch = memo_session_get_buffer(s, SCRATCH);   // declared: no malloc
 *                 ... compute ...
 *             }
 *             memo_session_backward_end(s, l);
 *         }
 *     }
 *
 * A plan needs the desc alone: no function of the trainer is called before the first micro-batch.
 * Begin calls return 0 after an error and for an empty slice; then the layer does not compute.  Two
 * layers may be open at a time, for fused kernels (memo.h, chapter 7).
 *
 * Errors.  A session keeps the first error of a micro-batch, and later calls do nothing, so a step
 * need not check calls.  memo_session_end and memo_session_run return the error.  An error between
 * micro-batches is returned by the next call that has a status; that call does nothing else, but
 * with `agree` the step ends.
 *
 * One thread at a time.  Between begin and end no call allocates or locks, and none waits unless
 * the calling thread computes or the session is checked. */

typedef struct memo_session memo_session;

/* Slices.  With slice_rows a layer is computed in slices of its rows, each with rounding buffers of
 * a slice (memo.h, chapter 7): device memory then depends on the slice, and on the tensors of scope
 * LAYER, but not on n_rows.  A trainer calls begin and end of each layer once for each
 * slice, memo_slice.n_slices times in a row: first to last in the forward, last to first in the
 * backward.  memo_session_get_slice gives that number, and the rows of the open slice.
 *
 *     for (l = 0; l < L; l++)
 *         for (i = 0; i < memo_session_get_slice(s).n_slices; i++) {
 *             if (memo_session_forward_begin(s, l)) ... compute rows of memo_session_get_slice ...
 *             memo_session_forward_end(s, l);
 *         }
 *
 * Without `step`, forward and backward are called for each slice.  recompute gets rows of the
 * slice.  Each slice of the last layer finds its output in the EDGE when the backward
 * begins; there `loss` is called.  The state of a recurrence lies in a buffer of pass FORWARD with
 * MEMO_EACH_LAYER, the gradient in a buffer of pass BACKWARD: slices pass both on, and the trainer
 * clears both at borders of documents.  A CARRIED tensor keeps the first state of a slice.  If a
 * micro-batch has few rows, the last slices are empty: begin returns 0.  One layer is open at a
 * time.  Forwards and gradients of each slice size are the same bits under every policy.
 *
 * LAYER tensors: a slice writes its rows, counted from the layer's row 0, and reads earlier rows.
 * The EDGE: the trainer writes the rows in the first layer.  In the backward the last layer finds
 * the output there, other layers the gradient.  With T rows of a layer and R of a slice, memory is
 * what R rows without slices take, and, times row_bytes,
 *
 *     on the device   T for each layer that keeps a LAYER tensor; 2 T if some layers do not (T if
 *                     these are all even or all odd); 2 R for the EDGE
 *     on the host     the sum over slices; T for each layer but the last two of a LAYER tensor; T
 *                     for the EDGE.  In an order: of each place, of all its layers, but T alone for
 *                     the EDGE without `loss`
 *
 * Late rows.  How many rows the experts of a layer get is known only when its forward has routed
 * them: then the trainer calls memo_session_set_routed.  Items with LATE_ROWS have that many rows
 * in that layer, at most routed_rows_layer, in all layers together at most A = routed_rows_all.  Of
 * n such layers, each with A / n rows, a plan keeps the rows of k, and the device has a scratch of
 * routed_rows_layer rows, unless k is n.  Rows that do not fit into k A / n rows are the surplus:
 * that of a MOVE item moves to the host and comes back, that of a ROWS item is recomputed.  So
 * layers with more rows than A / n take more time, but no more memory, and the bits are the same.
 * The surplus never spills.  A slice or a shorter shape has at most its share of both numbers. */

/* Groups.  Micro-batches of a step may go through the layers together: each layer computes all of a
 * group, as it computes slices, before the next layer begins.  The states of a layer then travel
 * once a group, and not once a micro-batch; the rows of all wait on the host at once.  A group of
 * n_group micro-batches is one call of memo_session_run, with the tokens of all:
 *
 *     for (i = 0; i < N; i += plan->n_group) {        // N: desc.micro_batches, a step
 *         batch.more_follow = i + plan->n_group < N;
 *         if (memo_session_run(s, &batch, &error)) ...;
 *     }
 *
 * memo_slice.micro_batch says which of the group the open layer computes; rows of memo_slice and
 * memo_batch.n_rows count in that micro-batch, and all have as many.  memo_slice.n_slices counts
 * the slices of the whole group.  Forwards begin with the last micro-batch, backwards with the
 * first: gradients add up in the order of the micro-batches, so that a sum has the same bits under
 * every n_group.  LAYER tensors, CARRIED ones and buffers of MEMO_EACH_LAYER begin anew in each
 * micro-batch of a layer.  A buffer that lives across layers has a part for each micro-batch,
 * n_group parts of its bytes rounded up to 512 in a row;
 * memo_session_get_buffer gives the open one's, and outside of layers the first.  A group needs a
 * MEMO_EDGE, and `loss` instead of `between`.  Shapes that are is_forward_only have no groups.
 * With MEMO_GROUP_PLANNED memo_session_plan compares groups by the predicted step; without a
 * profile micro-batches then follow one another.  A session that times itself begins so, and plans
 * in memo_session_update: read n_group from memo_session_info.plan after each update. */

/* States.  A trainer may also give weights, gradients and optimizer states to the session (memo.h,
 * chapter 8).  The budgets then include the states: a state that does not fit on the device lies on
 * the host, or in a file, and comes to the device for each layer that uses the state.
 *
 *     static const memo_state states[] = {{"weights", 2 * P, MEMO_STATE_WEIGHTS, 0},
 *                                         {"gradients", 4 * P, MEMO_STATE_GRADIENT, 0},
 *                                         {"moments", 8 * P, MEMO_STATE_UPDATE, 0}};
 *
 *     memo_session_run(session, &batch, &error);       // batch.more_follow = 1: gradients add up
 *     memo_session_update(session, &error);            // calls desc.update for each layer
 *
 * Layers.  A state whose kinds have the bit MEMO_STATE_FIRST is of the part before layer 0, such as
 * an embedding: layer MEMO_LAYER_FIRST.  A state with the bit MEMO_STATE_LAST is of the part after
 * the last layer, such as a classifier: layer n_layers.  kinds 0 means all layers between these
 * two.  A state that both use is SHARED, see below; others have at most one of both bits.  The
 * states of a layer are on the device between begin and end of the layer.  States of
 * FIRST are there until layer 0 ends the forward, and after layer 0 begins the backward.  States of
 * LAST are there from the end of the last forward to the end of the first backward.  One layer is
 * open at a time.
 *
 * Passes.  A step is any number of micro-batches, each a forward and a backward, and then an
 * update: memo_session_update ends each step.  States are zero bytes at first, unless FETCHED.  The
 * session
 * fills gradients with zero bytes when the first backward of a step begins their layer.  After the
 * update the bytes of gradients have no meaning.
 *
 * When the update runs.  By default memo_session_update updates all layers, in a pass of its own,
 * in which all that the update uses travels and little is computed.  With desc.update_may a plan
 * may choose another moment, if the predicted step is shorter; the bits are the same:
 *
 *     MEMO_MAY_DEFER   right before the layer's next forward.  States travel while other layers
 *                      compute.  `update` is then called in a forward of the next step; what it
 *                      reads beside states must still be that of its own step.  Small values of a
 *                      step (a rate, a step number) may come with the micro-batch,
 *                      memo_batch.values, or behind it, such as a norm of all gradients:
 *                      memo_session_set_update_values.
 *     MEMO_MAY_FUSE    in the last backward of the step, when the layer ends.  Nothing travels for
 *                      the update alone.  Sums over ranks fit into `update` of a layer; a norm of
 *                      all gradients does not.
 *
 * Deferred updates that are pending run in a pass of their own before states are read, written or
 * filled, before a forward alone, and in memo_session_flush.  What they would change is not there
 * before, so a trainer that reads results of `update` in memory of its own calls
 * memo_session_flush.  A session that is destroyed drops them.  An update on the host is never
 * deferred, because it runs beside the next forward anyway.
 *
 * What is legal between two micro-batches, and where it leads, is the same under every plan:
 *
 *                                 idle    part    over    again   lost
 *     run, more_follow is 1       part    part    U       S       W
 *     run, more_follow is 0       over    over    U       S       W
 *     run, is_forward_only        idle    part    U       again   W
 *     memo_session_update         N       M       idle    S       W
 *     _set_update_values      F   N       M       over    S       W
 *     _skip_update                idle    idle    idle F  idle    W
 *     _flush; _sleep, _wake       idle    part    over    again   W
 *     _read_state, _snapshot      idle    part    over F  again   W
 *     _read_state, a gradient     G       part    over F  G       W
 *     _write_state                idle    part    over F  again   lost, or idle: all are set
 *     _fill_states                idle    idle    idle F  idle    idle
 *
 *     idle   no step is open             part   micro-batches have run, more follow
 *     over   the last one has run        again  a micro-batch has failed, behind others of the step
 *     lost   an update has failed between two layers
 *     F      INVALID_STATE if update_may has MEMO_MAY_FUSE: a plan may have updated
 *     other letters: INVALID_STATE, and nothing changes.  U: update or skip.  N: no step is over.
 *     M: more_follow was 1.  S: skip, then run the whole step again.  W: set all states again.
 *     G: a gradient has no bytes before the first backward
 *
 * While turns of an order are in flight only the turns that are left are legal; in a session that
 * sleeps only memo_session_wake.  A micro-batch that fails leads back to idle, or to again.
 *
 * Memory.  A resident state stays on the device, at one address.  A streamed state lies in pinned
 * host memory, or in a file if it is spilled.  Layers with streamed states use two places on the
 * device in turn, so the states of one layer travel while another layer computes.  Both places
 * together take the most bytes of two layers that follow each other.  On the device states take all
 * resident states and both places.  On the host they take the streamed states that are not spilled,
 * and two places for spilled ones.
 * Changed states go back when their layer ends; a state that no pass changes never goes back.
 * Losses and states are the same bits, whatever is streamed.
 *
 * Masks.  Layers that train by turns, adapters of many tenants over one base, a reference model: a
 * step may leave states out.  memo_batch.states has a mask for each layer:
 *
 *     uint32_t masks[N_LAYERS + 2];                        // of FIRST, each layer, and LAST
 *     for (l = 0; l < N_LAYERS + 2; l++)
 *         masks[l] = trains(l - 1) ? ~0u : 1u << WEIGHTS;  // its gradients and moments stay away
 *     batch.states = masks;                                // equal in all micro-batches of a step
 *
 * A state that is left out neither travels nor is cleared, and memo_session_get_state gives NULL
 * for it, without an error.  A layer is updated if the step uses a gradient of it, or if the layer
 * never has one; update_host then gets all its states.  A forward alone has masks of its own.  The
 * masks of a step are those of its update, too, whenever that runs; where the next step has other
 * masks, updates that are deferred run in a pass before it.  Where masks change, the device waits
 * for what is newer to leave.  Plans and predictions are those of a step that uses all states.
 *
 * Shared states.  A state with the bit MEMO_STATE_SHARED has one copy, in the budget, for all
 * layers that have it, FIRST and LAST included: a tied table, a table that several heads use.
 *
 *     {"table", 4 * V * C, MEMO_STATE_WEIGHTS | MEMO_STATE_SHARED,
 *      MEMO_STATE_FIRST | MEMO_STATE_LAST}
 *
 * Its address may be another in each of these layers, but one in layers that are open at once.  It
 * is the last to leave the device, and its bytes travel where the next of these layers is far away.
 * What the update alone uses belongs to the lowest of these layers.  A gradient is cleared before
 * the first backward that uses it, of the highest layer.  The update of the lowest layer gets the
 * state; it runs when all of them have added their parts, at every moment.  In `update` of a layer
 * above memo_session_get_state gives NULL, without an error.
 * memo_session_read_state and memo_session_write_state take any of the layers.  The bits in masks
 * are equal in all of them.  Not with update_host, and not across sessions: stages of a pipeline
 * have two states.
 *
 * Alone.  A state with the bit MEMO_STATE_ALONE is also read by a forward alone
 * (memo_batch.is_forward_only), such as averaged weights, which the update writes: ALONE | UPDATE.
 * No other pass brings it for that.  MEMO_STATE_FORWARD includes forwards alone.
 *
 * Fetched states.  Frozen weights, which no pass writes, may stay in a file of the caller's, of any
 * layout.  A state with the bit MEMO_STATE_FETCHED has no copy in memo's host memory or file:
 * desc.fetch copies bytes of it, or decodes them, from a mapped file, which ranks may share.
 *
 *     static memo_status fetch(void* user, int32_t layer, int32_t state, int64_t at, void* to,
 *                              int64_t n_bytes, memo_error* error) {
 *         memcpy(to, mapped + offset_of(layer, state) + at, n_bytes);
 *         return MEMO_STATUS_OK;
 *     }
 *
 *     bytes    [at, at + n_bytes) of the state, at a multiple of 4,096; a state may come in pieces.
 *              They must be the same each time.  A checked session compares them, and names layer
 *              and state if they are not
 *     when     resident states: when the session opens, and when it plans again and states move.
 *              Streamed states: before each load, through two places in pinned host memory, which
 *              is all that they take of host_bytes.  A session that times itself also times fetch
 *     threads  of streamed states a thread of the device, which needs launch_host, and three more
 *              for pieces of a large state, at once.  When the session opens, and in
 *              memo_session_read_state, the thread that calls
 *     may      wait, try again and allocate.  It must not call memo, but memo_error_set
 *     fails    with any status but OK: the session's error has the layer, the state and *error.  In
 *              a step the device has then failed, as if the file of a spill_directory fails
 *
 * memo_session_write_state refuses such a state, memo_session_fill_states leaves it as it is, and
 * update_host gets NULL for it.
 *
 * Update on the host.  With desc.update_host a layer may be updated on the host, by a thread of the
 * device, while the device computes.  Then all states are streamed and none is spilled.  States
 * that only the update uses never travel, a layer's gradients go to the host, and the next forward
 * fetches what the update has changed.  desc.update_on says where; MEMO_UPDATE_PLANNED is the
 * shorter step.
 *
 * A session that times itself keeps the place of the first update: on the device, if that fits.
 * Predicted times are of a step of desc.micro_batches, with its update and all copies of states. */
#define MEMO_LAYER_FIRST (-1)
#define MEMO_STATE_FIRST (1u << 30)
#define MEMO_STATE_LAST  (1u << 31)

typedef enum memo_pass {
    MEMO_PASS_SESSION = 0, /* as long as the session */
    MEMO_PASS_FORWARD,
    MEMO_PASS_BETWEEN,
    MEMO_PASS_BACKWARD,
    MEMO_PASS_AFTER, /* until the next micro-batch, or turn, begins: an output */
    MEMO_N_PASSES
} memo_pass;

/* In flight.  A stage of a pipeline runs forwards of later micro-batches before the backward of an
 * earlier micro-batch.  The trainer lists the turns of a step in `order`: the forward or the
 * backward of a micro-batch in a chunk of layers.  Each call of memo_session_run, or of begin and
 * end, is the next turn; after the last turn the order begins again.  1F1B of M micro-batches:
 *
 *     int32_t ahead = n_stages - 1 - stage, n = 0;      // forwards before the first backward
 *     if (ahead >= M) ahead = M - 1;
 *     for (i = 0; i < M + ahead; i++) {
 *         memo_turn forward = {i, 0, MEMO_PASS_FORWARD};
 *         memo_turn backward = {i - ahead, 0, MEMO_PASS_BACKWARD};
 *         if (i < M) order[n++] = forward;
 *         if (i >= ahead) order[n++] = backward;
 *     }
 *     desc.order = order;  desc.n_order = n;
 *     ...
 *     for (k = 0; k < n; k++) {                         // a step
 *         memo_batch batch = MEMO_ZERO(memo_batch);
 *         batch.turn = order[k];                        // another turn than the next is an error
 *         if (memo_session_run(session, &batch, &error)) ...;
 *     }
 *
 *     static void forward(void* user, memo_session* s, int32_t layer) {
 *         int32_t i = memo_session_get_batch(s).turn.micro_batch;
 *         if (layer == 0) receive(stage - 1, i, memo_session_get_address(s, layer, INPUT));
 *         ... compute; the last layer sends its output ...
 *     }
 *
 * An interleaved stage has C chunks of n_layers / C layers each: chunk c has the layers from
 * c * n_layers / C on.  A forward turn computes the layers of its chunk, a backward turn their
 * backwards.  `between` begins the backward turns of the last chunk.  A *place* is what a chunk of
 * a micro-batch takes from its forward to its backward: tensors.  Chunks whose layers have the same
 * kinds share places; each forward takes the first place that is free.  Buffers live in one turn,
 * or as long as the session: what lives from a forward to its backward is a MEMO_KEEP tensor.  Both
 * layers of a buffer are of the same chunk; BETWEEN is of the last chunk.  Device memory:
 *
 *     n_places         the most that are in flight at once, summed over chunks of unlike kinds;
 *                      1F1B: ahead + 1
 *     activations      rows of n_places * n_layers / C layers, or of so many layers' slices
 *     + a turn         the most that buffers take in a turn
 *     + SESSION        buffers that live as long as the session
 *
 * All turns have the same shape and rows.  After an error the micro-batches in flight are lost, and
 * the order begins again; a turn that is not the next is refused and loses nothing.  Measured and
 * predicted times are of the whole order, without what the stage waits for others.  Shapes that are
 * is_forward_only have no order; run them while no micro-batch is in flight, and without chunks.
 * With spill_directory the file has each layer of a place at most once.  LATE_ROWS do not work with
 * an order.  One layer is open at a time.
 *
 * The EDGE in an order.  In the forward the first layer of a chunk writes the rows, which are the
 * batch's or come from the stage before, and the last layer leaves the output there, to be sent.
 * The last layer of a backward turn writes the gradient that it has received, before it reads the
 * EDGE; the first layer leaves the gradient to be sent.  With `loss`, which the last stage has, the
 * last layer of the last chunk finds its output instead, where `loss` puts the gradient: outputs of
 * all micro-batches in flight wait on the host.  In slices all of this is done slice by slice.
 *
 * States.  An order is a step, or with more_follow, which all its turns share, a part of a step;
 * then comes memo_session_update.  A chunk's turn brings the states of its layers.  States of FIRST
 * are there in turns of chunk 0, as in other passes.  States of LAST are there in backward turns of
 * the last chunk, from `between` to the end of the first layer.  Deferred updates run before a
 * layer's first turn in the next order, fused ones in its last turn.  While micro-batches are in
 * flight, states are neither read, written nor updated. */
typedef struct memo_turn {
    int32_t micro_batch; /* 0 to n_order - 1, in any order; one turn of each pass a chunk */
    int32_t chunk;       /* forwards of a micro-batch from chunk 0 on, backwards to chunk 0 */
    memo_pass pass;      /* MEMO_PASS_FORWARD or _BACKWARD */
} memo_turn;
#define MEMO_TURNS_MAX         4096
#define MEMO_MICRO_BATCHES_MAX 1000000
#define MEMO_GROUP_MAX         256
#define MEMO_GROUP_PLANNED     (-1)

/* Where states are updated. */
typedef enum memo_update {
    MEMO_UPDATE_PLANNED = 0, /* on the host if states leave the device, and the predicted step is
                                shorter by measured times, or only that fits */
    MEMO_UPDATE_DEVICE,      /* by memo_session_desc.update */
    MEMO_UPDATE_HOST,        /* by update_host, even if all states would fit on the device */
    MEMO_N_UPDATES
} memo_update;

/* When a trainer lets memo update them, see memo_update_at. */
enum {
    MEMO_MAY_DEFER = 1,
    MEMO_MAY_FUSE = 2,
    MEMO_MAY_NOT_PASS = 4 /* one of these two, even if a pass is faster; for comparisons */
};

/* What happens to activations between forward and backward. */
typedef enum memo_policy {
    MEMO_POLICY_MEMO = 0,  /* the fastest rows that fit; everything is kept if that fits */
    MEMO_POLICY_KEEP,      /* every tensor stays on the device */
    MEMO_POLICY_RECOMPUTE, /* what can be recomputed is; the rest stays on the device */
    MEMO_POLICY_SWAP,      /* every tensor is swapped, except MEMO_KEEP */
    MEMO_POLICY_ALPHA,     /* one alpha: the desc's, or the fastest that fits (MEMO paper) */
    MEMO_POLICY_ROWS,      /* memo_session_desc.rows */
    MEMO_N_POLICIES
} memo_policy;
MEMO_API const char* memo_policy_name(memo_policy policy); /* "keep"; never NULL */

/* A buffer of device memory, requested and freed by the session, lives from the begin of layer
 * first_layer of pass `first` to the end of layer last_layer of pass `last`.  The backward begins
 * with layer n_layers - 1 and ends with layer 0; BETWEEN and AFTER have no layer.  first_layer
 * MEMO_EACH_LAYER: lives in each layer of that pass alone: scratch, of recomputation too.  Then one
 * layer of that pass may be open at a time.  With slices a layer lasts from the begin of the first
 * slice to the end of the last: gradients of LAYER tensors, which every slice adds to, are such a
 * buffer of pass BACKWARD.  MEMO_EACH_SLICE: lives in each slice of each layer of that pass alone,
 * and row_bytes counts for the rows of a slice.  `last` and last_layer are then not read.  kinds:
 * of both, lives in layers of these kinds alone, so that scratch of several kinds takes as much as
 * the largest.  The size is size_bytes + row_bytes for each row of the micro-batch, or of the
 * longest shape if the buffer lives as long as the session. */
typedef struct memo_session_buffer {
    const char* name; /* shown in plans; borrowed */
    int64_t size_bytes, row_bytes;
    memo_pass first;
    int32_t first_layer;
    memo_pass last;
    int32_t last_layer;
    uint32_t kinds; /* MEMO_EACH_LAYER, MEMO_EACH_SLICE: bit k for kind k; 0: all layers */
} memo_session_buffer;
#define MEMO_EACH_LAYER          (-1)
#define MEMO_EACH_SLICE          (-2)
#define MEMO_SESSION_BUFFERS_MAX 64

/* Shapes exclude each other: training at several lengths, validation, generation.  Each shape has a
 * plan of rows and addresses.  All shapes share one block of device memory and one block of pinned
 * memory, as large as the largest needs.  The longest shape is planned first; the other shapes take
 * no more device memory if possible.  A buffer of the whole session has one address under all. */
typedef struct memo_shape {
    int64_t n_rows;          /* most rows of a micro-batch; 1 to the desc's */
    int32_t is_forward_only; /* 1: no backward follows; layers share memory, and with slices EDGE
                                rows alone are moved */
} memo_shape;
#define MEMO_SHAPES_MAX 16

typedef struct memo_step_plan memo_step_plan;

typedef struct memo_session_desc {
    /* --- where it computes --- */
    /* NULL: the session creates a host device, and the calling thread computes. */
    const memo_device* device;
    memo_stream compute_stream;
    int32_t computes_on_host; /* as in memo_swap_desc; 1 if device is NULL */

    /* --- the model --- */
    const memo_item* tensors; /* copied; at most MEMO_PROFILE_TENSORS_MAX */
    int32_t n_tensors, n_layers;
    /* Layers may differ: local and global attention, dense layers before experts.  Each kind is
     * timed, and memo_item.kinds says which kinds have a tensor. */
    const int32_t* layer_kinds; /* (n_layers), copied: 0 to 31; NULL: all layers are of kind 0 */
    int64_t n_rows;             /* tokens of a micro-batch, at most */
    int64_t tile_rows;          /* 0: 1 */
    /* Rows of a slice, a multiple of tile_rows: only tensors of scope LAYER then take more device
     * memory for more n_rows, see Slices above.  n_rows: a layer is computed at once.  0: if there
     * is an EDGE, the planner chooses, at least 1,024 rows: the largest that fits, or a
     * smaller, faster slice. */
    int64_t slice_rows;
    /* The most late rows in a layer, and in all layers of a micro-batch together, see Late rows. */
    int64_t routed_rows_layer, routed_rows_all;
    const memo_session_buffer* buffers; /* copied; memo_session_get_buffer gives their addresses */
    int32_t n_buffers;

    /* --- a step --- */
    /* In a step; 0: 1, or those of the order.  Plans are made for so many.  If two steps in a row
     * have another number, streamed states travel by that from then on, and the log says so. */
    int32_t micro_batches;
    /* Micro-batches of a call, see Groups: a divisor of micro_batches, at most MEMO_GROUP_MAX.
     * 0: 1.  MEMO_GROUP_PLANNED: the plan's choice, see memo_step_plan. */
    int32_t n_group;
    const memo_turn* order;   /* micro-batches in flight, copied; NULL: one after the other */
    int32_t n_order;          /* 0 to MEMO_TURNS_MAX */
    const memo_shape* shapes; /* copied; memo_batch.shape is an index */
    int32_t n_shapes;         /* 0: one shape of n_rows, forward and backward */

    /* --- what the trainer computes --- */
    void* user; /* first argument of every function */
    /* One micro-batch; NULL: forward of all layers, between, backward of all layers. */
    void (*step)(void* user, memo_session* session);
    void (*forward)(void* user, memo_session* session, int32_t layer);
    /* The loss and, unless the batch is_forward_only, its gradient; NULL: nothing. */
    void (*between)(void* user, memo_session* session);
    void (*backward)(void* user, memo_session* session, int32_t layer);
    /* The loss of the open slice of the last layer, whose output is in the EDGE, and its
     * gradient, which takes the output's place.  Called before each backward of the last layer; if
     * the batch is_forward_only, after each forward of it, for the loss alone.  A layer in one
     * slice behaves the same.  NULL: nothing. */
    void (*loss)(void* user, memo_session* session);
    /* Recomputes rows [begin, end) of tensor, and of the MEMO_WITH tensors behind it, from tensors
     * that come earlier in the table.  The function must change nothing else, such as a
     * generator.  memo_session_backward_begin calls the function in table order; see also
     * MEMO_BY_BACKWARD.  NULL is valid if no tensor is ROWS or WHOLE.  Scratch: declare a buffer of
     * pass BACKWARD. */
    void (*recompute)(void* user, memo_session* session, int32_t layer, int32_t tensor,
                      int64_t begin, int64_t end);

    /* --- weights, gradients, optimizer states --- */
    const memo_state* states; /* copied; in the same budgets: see States above */
    int32_t n_states;
    /* Updates the states of a layer from its gradients; MEMO_LAYER_FIRST, then 0 to n_layers.  NULL
     * without states, or if update_on is HOST. */
    void (*update)(void* user, memo_session* session, int32_t layer);
    /* The same on the host; NULL: only on the device.  states[i] is the address of state i of the
     * layer on the host, NULL if the layer lacks the state; the array is valid during the call.
     * Runs on a thread of the device, one layer at a time in the order of `update`, as late as the
     * next forward of the layer.  So what changes from step to step, such as a step number, belongs
     * in a state.  Needs device->launch_host. */
    void (*update_host)(void* user, int32_t layer, void* const* states);
    /* Copies bytes [at, at + n_bytes) of a FETCHED state to `to`, see Fetched states.  layer is as
     * in `update`.  NULL without such states. */
    memo_status (*fetch)(void* user, int32_t layer, int32_t state, int64_t at, void* to,
                         int64_t n_bytes, memo_error* error);
    memo_update update_on; /* 0: planned, if update_host is set */
    int32_t update_may;    /* sum of MEMO_MAY_DEFER, ...: see States; 0: a pass of its own */
    int32_t states_stay;   /* 1: on the device, whatever the budgets */

    /* --- budgets --- */
    /* What the session may take.  What the trainer itself allocates does not count. */
    int64_t device_bytes; /* 0: the free memory less reserve_bytes, without a device no limit */
    /* Without device_bytes: what is left to libraries, which take memory later.  0: 1 GiB or 3 % of
     * the device, the larger, but at most half of the free memory; none on a host device, or on a
     * device of less than 4 GiB. */
    int64_t reserve_bytes;
    /* Pinned; 1: nothing leaves the device.  0: what the device can pin.  memo_session_create plans
     * without a limit, and again with what can be pinned, found by trying, if the plan's bytes
     * cannot; with ranks that is an error. */
    int64_t host_bytes;
    /* For a file of what exceeds host memory; NULL: none.  The file is unnamed, and removed on
     * every exit path.  All its bytes are reserved at first, so a full disk is an error before the
     * first step.  Reads and writes bypass the page cache if the file system allows it.  In a
     * directory of a tmpfs, such as /dev/shm, it is host memory that is not pinned.  If one
     * fails, the device has failed (memo.h, chapter 4): the next call returns IO.  On CUDA, discard
     * what was computed from the missing rows; other devices skip that work. */
    const char* spill_directory;
    int64_t disk_bytes;       /* 0: no limit */
    double spill_bytes_per_s; /* limit of reads and writes; 0: none */
    /* The caller's memory, which the session uses instead of the device's: device_bytes bytes on
     * the device, and host_bytes bytes, pinned; both 512-aligned.  (A file of spilled bytes avoids
     * a copy if host_memory is 4096-aligned.)  A checked session and memo_session_verify take
     * memory of the device besides.  Sessions may share the memory: see Memory of the caller in
     * docs/memory.md.  NULL: allocated from the device. */
    void *device_memory, *host_memory;

    /* --- ranks --- */
    /* Replaces each of n values by its maximum over the ranks; NULL: one rank.  With
     * MPI: MPI_Allreduce(MPI_IN_PLACE, values, n, MPI_INT64_T, MPI_MAX, comm).  All ranks make the
     * same calls of plan, open and create.  Each calls agree equally often, even after an
     * error, and all fail if one does.  They use the least budget of all ranks and the longest
     * times, and choose the same rows.  Fields that must match are compared.
     *
     * Ranks meet where a step ends, and nowhere else: behind each step all ranks call
     * memo_session_update, with states or not, or all call memo_session_skip_update.  There a
     * session plans again; a checked one, and one that plans, compares how many updates were
     * skipped (INVALID_STATE).  So ranks may have unlike numbers of micro-batches, and a rank may
     * run forwards alone.  Without states the calls do nothing else. */
    memo_status (*agree)(void* user, int64_t* values, int64_t n, memo_error* error);

    /* --- the plan, and times --- */
    memo_policy policy; /* 0: MEMO */
    /* The table of policy ROWS, (shapes, n_layers, n_tensors) as in memo_swap_desc; with slices
     * (shapes, n_layers, n_slices, n_tensors), in a group those of all its micro-batches; with an
     * order (shapes, n_places, layers of a chunk, n_slices, n_tensors). */
    const int64_t* rows;
    double alpha; /* of policy ALPHA, 0 to 1; below 0: it is planned */
    /* Self-timing, of memo_session_create: so many training steps run by the first plan.  0: 4 if
     * the plan depends on times; negative: none, the session plans by estimates. */
    int32_t timed_steps;
    /* Times of the first shape with a backward; of shape k behind it: with ".k" appended.  Read if
     * the files are there (on every rank), and written once times are known.  NULL: none. */
    const char* profile_path;
    /* The timed steps are over, and addresses may be new.  A checked session that times nothing
     * moves layers and buffers, too, after its first backward.  plan: which is open now, perhaps
     * the first.  Called once, when a micro-batch begins, before its memory is used, or with states
     * in memo_session_update; and in memo_session_wake.  NULL: never. */
    void (*planned)(void* user, memo_session* session, const memo_step_plan* plan);
    int32_t is_timed; /* 1: measures stalls, see memo_swap_get_stats */

    /* --- checks and words --- */
    /* 1, or MEMO_CHECK=1 in the environment: a checked session.  Tensors are computed between
     * guards, and hashed when their layer ends; then they are NaN.  Every row must have its bytes
     * again when its backward begins.  Buffers lie between guards, too, and are NaN before their
     * life and after it, as is an EDGE in slices before the trainer writes it.  States lie between
     * guards in each visit, elsewhere than in the visit before; they change only in passes that may
     * write to them, and those that an update makes are NaN before, as are values behind
     * values_bytes.  The first difference is an error that names layer, tensor, row, buffer or
     * state, and the likely cause.  One layer of each kind recomputes every tensor once, whatever
     * the plan, and logs the least tile_rows that gives the bits.  With extras/memo_check.h before
     * the implementation an update runs both ways in each step, and memo_session_watch adds bytes
     * of the trainer.  Beside the budgets a checked session takes
     * three layers of device memory, two of host memory, four times the bytes of
     * MEMO_OWNER_MICRO_BATCH, three times the states of a layer, of FIRST and of LAST, and 8 bytes
     * for each row of each tensor of each layer; on a GPU, which hashes rows itself, 24 bytes more
     * for each row of a layer.  It waits in every layer. */
    int32_t is_checked;
    /* 1: the shortage of a plan has what this plan lacks; no budgets are tried.  Sooner by ten to a
     * hundred plans, for those who ask whether one of many sizes fits. */
    int32_t is_unadvised;
    memo_log log; /* a line for each phase; NULL, but with MEMO_CHECK=1: to stderr */
} memo_session_desc;

/* A plan of a shape's micro-batch: data, without a device.  swap, trace, addresses, times and the
 * plans of the other shapes are owned by the plan. */
struct memo_step_plan {
    memo_step_plan* next; /* of the next shape; NULL: the last */
    memo_shape shape;
    memo_policy policy;
    int64_t slice_rows;     /* the desc's, or chosen; 0: no slices */
    int32_t n_group;        /* likewise, of shapes with a backward; 1: no group */
    memo_swap_desc swap;    /* tensors, rows and places in host memory: for memo_swap_generate */
    const memo_turn* order; /* the desc's; swap.order has its places.  NULL: none */
    int32_t n_order, n_chunks;
    memo_swap_sizes sizes;                        /* of the swap engine */
    int64_t bytes[MEMO_N_TIERS][MEMO_N_OWNERS];   /* by memo_tier and memo_owner */
    int64_t device_bytes, host_bytes, disk_bytes; /* their sums; of the host: pinned */
    /* Number of streamed states, counted per layer.  States that the update alone uses are streamed
     * first, then gradients, FETCHED states, other weights.  If a state is streamed in some layers
     * only, these are evenly spread.  n_spilled of the streamed states lie in a file. */
    int64_t n_streamed, n_spilled;
    int32_t update_is_on_host; /* 1: by desc.update_host; then all states are streamed */
    int32_t update_at;         /* memo_update_at; PASS without states */
    int64_t device_budget_bytes, host_budget_bytes; /* 0: no limit */
    memo_trace* trace;                              /* the requests of a micro-batch */
    memo_plan* addresses;                           /* memo_plan_write_svg draws them */
    memo_swap_plan* times; /* predicted times, and the limit in words; NULL: without a profile */
    /* What memo_session_sleep takes: host bytes at most, and, with a profile, predicted seconds, as
     * if that memory were pinned. */
    int64_t sleep_bytes;
    double sleep_s;
    int32_t fits;
    /* Which budget lacks how much, and budgets that would do: they were tried, for all shapes; with
     * 512 bytes less nothing was found.  With is_unadvised untried.  Empty if the plan fits. */
    char shortage[400];
};

/* Plans a micro-batch of each shape by desc->policy.  profile: one for each shape.  Without a
 * profile (NULL) MEMO and ALPHA plan from estimated times.  A plan that exceeds the budgets is no
 * error: see fits.  Functions that compute may be NULL.  Errors: INVALID_ARGUMENT; errors of step;
 * OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_session_plan(const memo_session_desc* desc, const memo_profile* profile,
                                       memo_step_plan** plan, memo_error* error);
/* The smallest device_bytes with which a plan of desc->policy fits beside desc's other budgets:
 * with 512 bytes less nothing was found.  desc's own device_bytes is not used.  Ranks: the most of
 * all.  Errors: of memo_session_plan; INFEASIBLE (host_bytes or disk_bytes lack). */
MEMO_TRY memo_status memo_session_get_least(const memo_session_desc* desc, int64_t* device_bytes,
                                            memo_error* error);
/* Creates arena and swap engine.  The session borrows the plan.  Errors: INFEASIBLE (the plan does
 * not fit, with its shortage); INVALID_ARGUMENT (also a plan for other tensors); the device's. */
MEMO_TRY memo_status memo_session_open(const memo_session_desc* desc, const memo_step_plan* plan,
                                       memo_session** session, memo_error* error);
/* Plans and opens; the session then times its first steps, if the plan depends on times: see
 * Self-timing.  It does not if policy MEMO can keep everything on the device, states too, nor for
 * policies that need no times.  The session owns the plan.  Errors: of both, and of profile files;
 * UNSUPPORTED (a link or a file so slow that timing copies would take minutes). */
MEMO_TRY memo_status memo_session_create(const memo_session_desc* desc, memo_session** session,
                                         memo_error* error);
/* Waits for the compute stream. */
MEMO_API void memo_session_destroy(memo_session* session);

MEMO_API void memo_step_plan_destroy(memo_step_plan* plan);
/* Appends rows, limit, predicted times, and the bytes of each tier beside their budgets, for each
 * shape; then the sum and the maximum over shapes. */
MEMO_API void memo_step_plan_put(const memo_step_plan* plan, memo_text* text);
/* A micro-batch.  All zero: all rows, forward and backward. */
typedef struct memo_batch {
    int64_t n_rows;          /* 0: the shape's */
    int32_t is_forward_only; /* 1: no backward follows, and only EDGE rows are moved */
    int32_t shape;           /* index in the desc's shapes */
    int32_t more_follow; /* 1: gradients add up, and no update follows; of sessions with states */
    memo_turn turn;      /* of sessions with an order: the next turn */
    /* Bytes that are copied when the micro-batch begins, for memo_session_get_batch; NULL: those of
     * the micro-batch before. */
    const void* values;
    int32_t values_bytes; /* at most MEMO_BATCH_VALUES_MAX */
    /* (n_layers + 2), copied, of FIRST, each layer and LAST.  Bit i: the step uses state i of the
     * layer.  NULL: all.  See Masks. */
    const uint32_t* states;
} memo_batch;
#define MEMO_BATCH_VALUES_MAX 256

/* What the open layer computes. */
typedef struct memo_slice {
    int64_t begin, end;  /* rows of the micro-batch: the layer's open slice, or all rows */
    int32_t n_slices;    /* of each layer; of a group: of all its micro-batches; 1: no slices */
    int32_t micro_batch; /* of the group, 0 to n_group - 1; 0 if no layer is open */
    int64_t n_routed;    /* of memo_session_set_routed for the open layer; 0 before that */
} memo_slice;

/* One micro-batch, a group, or one turn of an order: begin, step, end.  batch NULL: all zero.
 * Inside an open micro-batch it returns INVALID_STATE, and changes nothing. */
MEMO_TRY memo_status memo_session_run(memo_session* session, const memo_batch* batch,
                                      memo_error* error);

/* The same in pieces.  memo_session_begin abandons an open micro-batch.  After the steps that are
 * timed it plans, waits for the device, and takes as long as that.  Begin calls return 1 if
 * the trainer must compute; 0 after an error, and for a slice without rows. */
MEMO_API int memo_session_begin(memo_session* session, const memo_batch* batch);
MEMO_TRY memo_status memo_session_end(memo_session* session, memo_error* error);
/* Bracket a layer, as memo_swap_forward_begin and the others do; backward_begin also recomputes. */
MEMO_API int memo_session_forward_begin(memo_session* session, int32_t layer);
MEMO_API void memo_session_forward_end(memo_session* session, int32_t layer);
MEMO_API int memo_session_backward_begin(memo_session* session, int32_t layer);
MEMO_API void memo_session_backward_end(memo_session* session, int32_t layer);
/* Returns this micro-batch, with n_rows, is_forward_only and states filled in (NULL without
 * states).  values
 * are the session's copy, MEMO_BATCH_VALUES_MAX bytes, aligned for every type; in `update` the copy
 * is of the last micro-batch of the step that the update ends, or what
 * memo_session_set_update_values has given. */
MEMO_API memo_batch memo_session_get_batch(const memo_session* session);
/* Between layers, rows are those of a layer's first slice. */
MEMO_API memo_slice memo_session_get_slice(const memo_session* session);

/* Sets the rows of LATE_ROWS in the open forward, once its rows are routed and before their
 * addresses are used; without this call there are none, and memo_session_get_address of such a
 * tensor is an error.  The number is also valid in recompute and in the backward.  More rows than
 * declared are an error of the session. */
MEMO_API void memo_session_set_routed(memo_session* session, int32_t layer, int64_t n_rows);

/* Leaves the layer out of the micro-batch (LayerDrop, stochastic depth): its open forward writes no
 * rows, and its backward recomputes none.  Rows that the plan moves still move.  Begin and end of
 * the layer are called in both passes, with slices for each slice.  A checked session needs this
 * call: a forward that writes nothing is an error otherwise. */
MEMO_API void memo_session_skip_layer(memo_session* session, int32_t layer);

/* Where a tensor of a layer lies.  NULL if the layer's kind lacks the tensor; a checked session
 * makes that an error, and returns memory that harms nothing.  Fixed for each shape until
 * desc.planned is due.  With slices: row 0 of the open slice (no slice is open: of the first);
 * LAYER tensors: of the layer. */
MEMO_API void* memo_session_get_address(const memo_session* session, int32_t layer, int32_t tensor);
/* Fills first[0 .. n_tensors) with the addresses of a row in a layer's tensors: a struct of
 * pointers in the order of the table; NULL for tensors that the layer's kind lacks.  With slices,
 * row counts from the first of the slice, and is less than its rows.  LAYER tensors always begin
 * with row 0 of the layer, unless the layer is one slice and they are ROWS or WHOLE.  CARRIED and
 * LATE_ROWS tensors have one address for all rows. */
MEMO_API void memo_session_get_addresses(const memo_session* session, int32_t layer, int64_t row,
                                         void** first);
/* A declared buffer.  NULL outside of its life; a checked session makes that an error, and returns
 * memory that harms nothing.  Call this inside the layer that uses the buffer. */
MEMO_API void* memo_session_get_buffer(const memo_session* session, int32_t buffer);
/* Where a state of a layer lies, MEMO_LAYER_FIRST to n_layers; NULL: the layer lacks it, or
 * memo_batch.states leaves it out.  Between begin and end of a pass of the layer that uses the
 * state; FIRST also before and beside layer 0, LAST from the end of the last layer's forward to the
 * end of its backward.  Elsewhere the state may have no bytes on the device: NULL, and an error of
 * the session, whatever the plan streams.
 * The address of a state that stays on the device (memo_step_plan.n_streamed is 0) does not change
 * unless the session plans again, so a trainer may keep it. */
MEMO_API void* memo_session_get_state(const memo_session* session, int32_t layer, int32_t state);
/* Ends a step: updates all layers, or defers that, or does nothing if the last backward has updated
 * them, as the plan says.  After the last micro-batch of a step either this call comes next, or
 * memo_session_skip_update, whatever the plan is.  After an error in a micro-batch run it again; if
 * the error says that the whole step must run again, call memo_session_skip_update first.  States
 * keep their bytes, unless the error says that the update has changed some layers: then all calls
 * but destroy are refused until memo_session_fill_states, or memo_session_write_state, has set all
 * states but gradients and FETCHED ones.  Pieces of a state add up if they adjoin.  Errors:
 * INVALID_STATE (also if more_follow was 1); the device's. */
MEMO_TRY memo_status memo_session_update(memo_session* session, memo_error* error);
/* What `update` of this step finds in memo_session_get_batch().values, in place of what came with
 * the micro-batch: at most MEMO_BATCH_VALUES_MAX bytes, copied, such as a norm of all gradients, of
 * which each backward of the last micro-batch has left its layer's part.  Call this behind the last
 * micro-batch of a step, before memo_session_update, wherever its updates run then.
 * memo_session_skip_update drops the values.  update_host gets none: what it needs of a step is a
 * state.  Errors: INVALID_ARGUMENT,
 * INVALID_STATE (also if update_may has MEMO_MAY_FUSE: the last backward may have updated). */
MEMO_TRY memo_status memo_session_set_update_values(memo_session* session, const void* values,
                                                    int64_t n_bytes, memo_error* error);
/* Runs deferred updates that are pending, between micro-batches.  Errors: as
 * memo_session_update. */
MEMO_TRY memo_status memo_session_flush(memo_session* session, memo_error* error);
/* Ends a step without an update, for instance if a norm is not finite: drops the gradients, and the
 * next micro-batch begins a new step.  A deferred update of the step before stays pending.  Between
 * micro-batches.  Errors: INVALID_STATE (also after the last micro-batch of a step, if update_may
 * has MEMO_MAY_FUSE: the last backward may have updated). */
MEMO_TRY memo_status memo_session_skip_update(memo_session* session, memo_error* error);
/* Calls fill for each layer, as update is called, to set states on the device: first values.  If
 * the update is on the host, memo_session_get_state gives addresses in pinned host memory there.
 * States that the update does not use keep their bytes.  Drops the gradients.  Between
 * micro-batches; if update_may has MEMO_MAY_FUSE, not between the last micro-batch of a step and
 * memo_session_update, where a plan may have updated.  Errors: as memo_session_update. */
MEMO_TRY memo_status memo_session_fill_states(memo_session* session,
                                              void (*fill)(void* user, memo_session* session,
                                                           int32_t layer),
                                              memo_error* error);
/* Copies bytes [offset_bytes, offset_bytes + n_bytes) of a state of a layer to the caller's host
 * memory, or sets them, unless it is a gradient or FETCHED; to write, bytes NULL is zero.
 * They are read and written where they lie, without room on the device.  Waits for the compute
 * stream and for all copies of states, even for 0 bytes.  Nothing happens if the layer lacks the
 * state.  When: as memo_session_fill_states.  Errors: INVALID_STATE; INVALID_ARGUMENT (a layer,
 * state or bytes out of range); the device's. */
MEMO_TRY memo_status memo_session_read_state(memo_session* session, int32_t layer, int32_t state,
                                             int64_t offset_bytes, void* bytes, int64_t n_bytes,
                                             memo_error* error);
MEMO_TRY memo_status memo_session_write_state(memo_session* session, int32_t layer, int32_t state,
                                              int64_t offset_bytes, const void* bytes,
                                              int64_t n_bytes, memo_error* error);
/* Gives the device's memory away, for instance to the inference of an RL step, to a validation by
 * another library, or to another session in the same memory of the caller.  What is newer on the
 * device goes to its home; resident states and buffers of pass SESSION are copied to host memory of
 * malloc, at most memo_step_plan.sleep_bytes.  FETCHED states are not kept, and gradients only in
 * the middle of a step or for updates that are pending: memo_session_flush before takes less.
 * Then memory of the device is freed; with desc.device_memory the block is the caller's until
 * memo_session_wake.  Pinned host memory, the file and a checked session's own memory stay.
 * Until then all calls but memo_session_wake and memo_session_destroy are refused.  Waits for the
 * compute stream.  Between micro-batches, while none is in flight; ranks need not sleep alike.
 * After an error the session is awake, and nothing has changed.
 * Errors: INVALID_STATE; OUT_OF_HOST_MEMORY; the device's. */
MEMO_TRY memo_status memo_session_sleep(memo_session* session, memo_error* error);
/* Takes memory of the device again, as much as before, and brings back what was there; the session
 * goes on with the same bits.  desc.planned is called if the memory has another address.  After an
 * error the session sleeps on.  Errors: INVALID_STATE (it does not sleep); OUT_OF_DEVICE_MEMORY;
 * OUT_OF_HOST_MEMORY; the device's; those of desc.fetch. */
MEMO_TRY memo_status memo_session_wake(memo_session* session, memo_error* error);
/* Writes all states but gradients and FETCHED ones, as memo_session_read_state would give them now,
 * while training goes on: a checkpoint.
 *
 * `write` takes bytes [at, at + n_bytes) of a state of a layer, MEMO_LAYER_FIRST to n_layers; of
 * SHARED states in their lowest layer.  It runs on a thread of the session's, one call after the
 * other; a state in a file comes in pieces.  It may wait, and must not call memo, but
 * memo_error_set.  After an error it is not called again; memo_session_finish_snapshot returns the
 * error with layer and state, and training goes on.  With MEMO_NO_HOST_DEVICE all is written in
 * this call. */
typedef struct memo_snapshot_desc {
    memo_status (*write)(void* user, int32_t layer, int32_t state, int64_t at, const void* bytes,
                         int64_t n_bytes, memo_error* error);
    void* user;
} memo_snapshot_desc;
/* Begins a snapshot, between micro-batches.  Runs updates that are pending, waits until what is
 * newer has left the device, and copies resident states to host memory of malloc, at most
 * memo_step_plan.sleep_bytes; streamed states are written from where they lie.  Then it returns.
 * Until a state is written, the copy that would change it waits: on its stream, so steps go on
 * until their next update.  On CUDA updates on the host, and reads and writes of the file, wait
 * behind it.  memo_session_write_state and _fill_states wait, too.
 * Errors: INVALID_STATE (also while a snapshot is under way, and where memo_session_read_state is
 * not legal); OUT_OF_HOST_MEMORY; as memo_session_flush. */
MEMO_TRY memo_status memo_session_snapshot(memo_session* session, const memo_snapshot_desc* desc,
                                           memo_error* error);
/* Waits for the snapshot, and returns the error of `write`; OK if there is none under way.  Legal
 * at any time; memo_session_info.n_unwritten says how long it will wait.  memo_session_destroy
 * waits, too, and a session that moves its states when it plans again. */
MEMO_TRY memo_status memo_session_finish_snapshot(memo_session* session, memo_error* error);
/* Makes an error of the trainer the session's error, unless there is one.  OK does nothing.
 * message NULL: the name of the status. */
MEMO_API void memo_session_fail(memo_session* session, memo_status status, const char* message);

typedef struct memo_session_info {
    /* The current shape's, at first that of shape 0. */
    const memo_step_plan* plan;
    memo_arena* arena; /* NULL: the session sleeps */
    memo_swap* swap;   /* NULL if the shape has neither a backward nor slices */
    /* Copies of states, enqueued so far; those of rows: memo_swap_get_stats. */
    int64_t states_to_host_bytes, states_to_device_bytes;
    int32_t n_unwritten; /* states of a snapshot, in all layers, that are not written yet */
} memo_session_info;
/* The times of a shape with a backward that the session plans by: of its first training steps, or
 * from files.  Errors: INVALID_ARGUMENT; INVALID_STATE (they are not known). */
MEMO_TRY memo_status memo_session_get_profile(const memo_session* session, int32_t shape,
                                              memo_profile* profile, memo_error* error);
MEMO_API memo_session_info memo_session_get_info(const memo_session* session);
