/* memo_plan.h - the planners: where every tensor goes, how many rows travel; and the session, which
 * runs a trainer's step by their plans.
 *
 * NOT FOR: changing a model's results to save memory.  Plans choose places and times; what they
 * cannot place within the budgets they refuse, with what would work.  Nothing is compiled, traced
 * from Python or rewritten: the trainer describes its tensors and keeps its loops.
 *
 * STEP BY STEP, a session in the order of calls (examples/05_three_edits.c):
 *
 *     1  a memo_session_desc: tensors, layers, rows, budgets, and the trainer's functions
 *     2  memo_session_verify of extras/memo_check.h, once in a new trainer: do several plans give
 *        the same bits?  Also run a few steps with MEMO_CHECK=1 in the environment, which names
 *        mistakes.  Without a check a wrong table gives wrong numbers, silently
 *     3  memo_session_create: memo_session_plan and memo_session_open in one; the session then
 *        times its first training steps and plans again
 *     4  memo_session_run for each micro-batch, or memo_session_begin, the trainer's own loops
 *        between memo_session_forward_begin and its like, memo_session_end
 *     5  memo_session_update, if states (weights, gradients, moments) are in the budgets
 *     6  memo_session_destroy
 *
 * EXAMPLE: two tensors of a layer, of which one is computed again (a whole trainer:
 * examples/05_three_edits.c; a plan of offsets alone: examples/02_plan_trace_file.c).
 *
 *     #define MEMO_IMPLEMENTATION             // in exactly one translation unit
 *     #define MEMO_PLAN_IMPLEMENTATION        // in the same unit
 *     #include "memo_plan.h"                  // cc -std=c99 train.c -lpthread -lm
 *
 *     enum { L = 8, T = 512, C = 32 };
 *     // Name, bytes of a row, and how rows may leave the device: all are moved to the host and
 *     // back (MOVE), or some are moved and the others recomputed (ROWS).
 *     static const memo_item tensors[] = {MEMO_ITEM("inp", sizeof(float) * C, MEMO_MOVE),
 *                                         MEMO_ITEM("out", sizeof(float) * C, MEMO_ROWS)};
 *     static float x[T * C], dx[T * C];       // between layers: the input, and the gradient
 *     static void recompute(void* user, memo_session* s, int32_t layer, int32_t tensor,
 *                           int64_t begin, int64_t end) {
 *         const float* inp = (const float*)memo_session_get_address(s, layer, tensor - 1);
 *         float* out = (float*)memo_session_get_address(s, layer, tensor);
 *         for (int64_t i = begin * C; i < end * C; i++) out[i] = tanhf(inp[i]);
 *         (void)user;
 *     }
 *     static void forward(void* user, memo_session* s, int32_t layer) {
 *         memcpy(memo_session_get_address(s, layer, 0), x, sizeof x);
 *         recompute(user, s, layer, 1, 0, T);
 *         memcpy(x, memo_session_get_address(s, layer, 1), sizeof x);
 *     }
 *     static void between(void* user, memo_session* s) {  // the loss is the sum of squares / 2
 *         memcpy(dx, x, sizeof x);
 *         (void)user, (void)s;
 *     }
 *     static void backward(void* user, memo_session* s, int32_t layer) {
 *         const float* out = (const float*)memo_session_get_address(s, layer, 1);
 *         for (int i = 0; i < T * C; i++) dx[i] *= 1 - out[i] * out[i];
 *         (void)user;
 *     }
 *     int main(void) {
 *         memo_session_desc desc = {0};
 *         memo_session* session = NULL;
 *         memo_error error;
 *         desc.tensors = tensors;  desc.n_tensors = 2;
 *         desc.n_layers = L;  desc.n_rows = T;  desc.tile_rows = 64;
 *         desc.forward = forward;  desc.between = between;  desc.backward = backward;
 *         desc.recompute = recompute;
 *         desc.device_bytes = 384 << 10;      // of 1 MiB that all tensors take
 *         memo_status status = memo_session_create(&desc, &session, &error);
 *         for (int i = 0; i < 6 && !status; i++)
 *             status = memo_session_run(session, NULL, &error);   // one micro-batch
 *         if (status) fprintf(stderr, "%s\n", error.message);
 *         memo_session_destroy(session);
 *         return status != MEMO_STATUS_OK;
 *     }
 *
 * CHAPTERS
 *   1 offsets  memo_plan_solve     offsets of a memo_plan: proven optimal, or with a gap
 *   2 profile  memo_profile        times of a trainer's kernels and copies, in a file
 *   3 rows     memo_plan_swap      which rows of each tensor and layer to keep, swap, recompute
 *   4 session  memo_session_*      from tensors and a budget to a running step
 * The implementation follows the chapters, in parts called rooms.  It begins with a table of them:
 * search for the word beside a room's name.
 *
 * lp_solve 5.5 is optional: compile with -DMEMO_LP_SOLVE and link -llpsolve55.  Without lp_solve
 * the built-in planners are used, and the engine MIP returns UNSUPPORTED unless greedy meets the
 * bound or the capacity.
 *
 * License: MIT.  lp_solve is LGPL and is linked, never copied in.  Language: C99 that is also
 * C++11. */
#ifndef MEMO_PLAN_H
#define MEMO_PLAN_H

#include "memo.h"

#if MEMO_VERSION_MAJOR != 0 || MEMO_VERSION_MINOR != 5
#error "memo_plan.h: memo.h is of another release; use the memo.h of the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#include "plan/api/offsets.h"
#include "plan/api/profile.h"
#include "plan/api/rows.h"
#include "plan/api/session.h"
#ifdef __cplusplus
}
#endif

#endif /* MEMO_PLAN_H */

/* ==== implementation ======================================================================== */

/* ROOMS, each with the words to search for.  A room uses public functions, memob_ ones of
 * memo.h, and the rooms above it.
 *
 *   1 offsets: problem, bounds, engines, a loop; extras/memo_pack.h adds engines for puzzles
 *     >>problem                a plan in units of size and sections of time; the planner in a page
 *     >>sections               the largest sets of items that live together, and bounds
 *     >>items                  buffers as items, and pairs that streams keep apart
 *     >>solution               the best plan so far, and the effort that is left
 *     >>neighbors              lists of what conflicts with an item
 *     >>reuse                  the bound of items of which none can follow another
 *     >>cover                  holds and gaps as sections, which the exact search takes
 *     >>pack doors             where extras/memo_pack.h adds
 *     >>greedy                 engine: the item that can lie lowest comes next
 *     >>first fit              engine: each item goes into the lowest hole; heeds gaps and holds
 *     >>search                 a node of the exact search, placed and undone
 *     >>stacks                 holes that alignments leave among few items
 *     >>exact search           engine: is there a plan within a capacity?
 *     >>full sections          engine: the items that live there come first, others around them
 *     >>ejections              engine: items above a capacity take the places of others
 *     >>mixed-integer program  engine: the paper's, by lp_solve
 *     >>bi-level               engine: layers once, then what joins them
 *     >>loop                   which engine comes next: rounds of work that doubles
 *     >>plan solve             memo_plan_solve
 *   2 profile
 *     >>profile                measures kernels, copies and a file
 *     >>profile file           its text
 *   3 rows of every tensor
 *     >>row words              tables of rows, and predicted times, in words
 *     >>row times              a clock for the operations of a step
 *     >>row planner            bundles of tensors, and kinds of layers
 *     >>row bytes              what a table of rows takes and moves
 *     >>row score              the step of a table
 *     >>row search             random changes of tables
 *     >>row limits             memo_plan_swap: which limit keeps the step from being shorter
 *   4 session
 *     >>session state          errors, spans, the current shape
 *     >>session desc           a desc, checked and copied
 *     >>session slowing        how much copies beside layers slow them
 *     >>session agreement      what ranks decide together; the session of a desc
 *     >>session states         weights, gradients, optimizer states
 *     >>session checked        hashes of tensors between forward and backward
 *     >>session running        a micro-batch
 *     >>session sleep          the device's memory is given away between micro-batches
 *     >>session snapshot       when states may be written out while steps go on
 *     >>session stage          rows and addresses of one policy, and whether they fit
 *     >>session plan           stages by streamed states and shapes, until one fits
 *     >>session words          a plan on the terminal
 *     >>session open           arena and engine of a plan
 *     >>session slices         which size of slices
 *     >>session advice         budgets that would do
 *     >>session times          a profile from the spans of micro-batches
 *     >>session timing         the first training steps give the times of the plan behind them */
#if defined(MEMO_PLAN_IMPLEMENTATION) && !defined(MEMO_PLAN_IMPLEMENTATION_DONE)
#define MEMO_PLAN_IMPLEMENTATION_DONE

#ifndef MEMO_IMPLEMENTATION_DONE
#error                                                                                             \
    "memo_plan.h: define MEMO_IMPLEMENTATION too; both implementations live in one translation unit"
#endif

#ifdef MEMO_LP_SOLVE
#if defined(__has_include)
#if __has_include(<lpsolve/lp_lib.h>)
#include <lpsolve/lp_lib.h>
#else
#include <lp_lib.h>
#endif
#else
#include <lpsolve/lp_lib.h>
#endif
#endif

#ifndef MEMOI_WITHOUT /* bench/plan.c switches stages off, to see what each of them earns */
#define MEMOI_WITHOUT(stage) 0
#endif

#include "plan/offsets/problem.h"
#include "plan/offsets/sections.h"
#include "plan/offsets/items.h"
#include "plan/offsets/solution.h"
#include "plan/offsets/neighbors.h"
#include "plan/offsets/reuse.h"
#include "plan/offsets/cover.h"
#include "plan/offsets/pack_doors.h"
#include "plan/offsets/greedy.h"
#include "plan/offsets/first_fit.h"
#include "plan/offsets/search.h"
#include "plan/offsets/stacks.h"
#include "plan/offsets/exact_search.h"
#include "plan/offsets/full_sections.h"
#include "plan/offsets/ejections.h"
#include "plan/offsets/mixed_integer_program.h"
#include "plan/offsets/bi_level.h"
#include "plan/offsets/loop.h"
#include "plan/offsets/plan_solve.h"
#include "plan/profile.h"
#include "plan/profile_file.h"
#include "plan/rows/rows.h"
#include "plan/rows/words.h"
#include "plan/rows/times.h"
#include "plan/rows/planner.h"
#include "plan/rows/bytes.h"
#include "plan/rows/score.h"
#include "plan/rows/search.h"
#include "plan/rows/limits.h"
#include "plan/session/session.h"
#include "plan/session/state.h"
#include "plan/session/slowing.h"
#include "plan/session/desc.h"
#include "plan/session/agreement.h"
#include "plan/session/states.h"
#include "plan/session/checked.h"
#include "plan/session/running.h"
#include "plan/session/sleep.h"
#include "plan/session/snapshot.h"
#include "plan/session/stage.h"
#include "plan/session/plan.h"
#include "plan/session/words.h"
#include "plan/session/open.h"
#include "plan/session/slices.h"
#include "plan/session/advice.h"
#include "plan/session/times.h"
#include "plan/session/timing.h"
#endif /* MEMO_PLAN_IMPLEMENTATION */
