/* memo.h - memory for long-context transformer training: plan it, replay it, move it.
 *
 * A trainer written in C or CUDA runs out of device memory long before it runs out of time.  This
 * header has two parts against that, each usable alone:
 *
 *   trace, plan, arena    Record the memory requests of one training step.  Choose an offset for
 *                         each buffer before training.  Replay the plan every step, without a lock,
 *                         a system call or fragmentation.
 *   swap engine           Move activations that the backward pass needs to host memory, row by row,
 *                         while the device computes.  Bring them back in time; recompute the rest.
 *
 * Both parts call a device through one small table of functions, memo_device.  This header contains
 * a device of host memory and threads; memo_cuda.cuh contains the CUDA device.
 * extras/memo_look.h records what is enqueued on which stream, and checks it for races.
 *
 * NOT FOR: computing.  There are no kernels of a model here, no autograd and no optimizer; a
 * trainer keeps its own.  A step that fits into device memory is not faster with memo.  The arena
 * serves requests that repeat from step to step, and refuses others.  No page is migrated behind
 * the trainer's back: what moves, moves by the trainer's calls.
 *
 * License: MIT, see LICENSE.  Language: the subset of C99 that is also C++11.  Dependencies: none.
 * Needs 64-bit addresses.  docs/proofs.md lists what is claimed, and the command that shows it.
 *
 * USE.  Include memo.h where you need it.  Define MEMO_IMPLEMENTATION in exactly one source file,
 * preferably a small memo.c.  -ffast-math is refused for this file:
 *
 *     #define MEMO_IMPLEMENTATION
 *     #include "memo.h"                 // cc -std=c99 -O2 -c memo.c; link with -lpthread -lm
 *
 * STEP BY STEP, in the order of calls:
 *
 *     1  memo_host_device_create, or memo_cuda_device_create of memo_cuda.cuh
 *     2  memo_arena_create with a trace, one step (dry), memo_plan_from_trace, memo_plan_solve
 *     3  memo_arena_create with the plan; then memo_arena_begin, _alloc, _free, _end each step
 *     4  or, without 2 and 3, memo_session_create of memo_plan.h, which does both and also swaps
 *
 * EXAMPLE.  Run a step without computing, plan the step, replay every step (examples/01_arena.c).
 * For a whole trainer, start with the session of memo_plan.h (examples/05_three_edits.c).
 *
 *     #define MEMO_IMPLEMENTATION
 *     #define MEMO_PLAN_IMPLEMENTATION
 *     #include "memo_plan.h"                               // includes memo.h
 *
 *     static memo_status step(memo_arena* arena, memo_error* error) {
 *         void *x, *y;
 *         if (memo_arena_begin(arena, error) ||
 *             memo_arena_alloc(arena, 3 << 20, 0, &x, error) ||
 *             memo_arena_alloc(arena, 1 << 20, 0, &y, error)) return error->status;
 *         // ... compute with x and y, unless this is the dry run ...
 *         if (memo_arena_free(arena, x, error) || memo_arena_free(arena, y, error))
 *             return error->status;
 *         return memo_arena_end(arena, error);
 *     }
 *
 *     memo_status train(memo_device* device, memo_error* error) {
 *         memo_arena_desc record = {0}, replay = record;
 *         memo_arena *dry = NULL, *arena = NULL;
 *         memo_plan* plan = NULL;
 *         memo_status status = memo_trace_create(&record.trace, error);
 *         if (!status) status = memo_arena_create(&record, &dry, error);   // no device: a dry run
 *         if (!status) status = step(dry, error);                          // addresses only
 *         if (!status) status = memo_plan_from_trace(record.trace, 0, &plan, error);
 *         if (!status) status = memo_plan_solve(plan, NULL, error);
 *         replay.device = device;
 *         replay.plan = plan;                              // one block of plan->peak_bytes
 *         if (!status) status = memo_arena_create(&replay, &arena, error);
 *         while (!status) status = step(arena, error);     // some nanoseconds a request
 *         memo_arena_destroy(arena);
 *         memo_arena_destroy(dry);
 *         memo_plan_destroy(plan);
 *         memo_trace_destroy(record.trace);
 *         return status;
 *     }
 *
 * RULES.  A function that can fail returns memo_status and takes a memo_error, which may be NULL;
 * the message names the object, the problem, the value and what would work.  Only calls inside a
 * micro-batch of memo_plan.h's session do not: memo_session_end returns the error.  A desc is a
 * plain struct in which zero means default, unless a field's comment names another default.  Start
 * with {0} in C, with {} in C++, or with MEMO_ZERO(type) in either.  A function that creates an
 * object gives NULL on failure; destroying NULL does nothing.  NULL for an object, a desc or a
 * result is INVALID_ARGUMENT, unless the comment of the call allows NULL.  Calls without a status
 * then do nothing, and return NULL or zero.  memo_x_get_y fills a struct or numbers, or returns a
 * number, a handle or an address.  There is no global state.  After creation no function allocates,
 * locks or synchronizes on the training path.  Only one thread at a time may use an object.  Sizes
 * are bytes, times are seconds, intervals are half-open.  Bytes, rows and elements are counted in
 * 64 bits.  A name MEMO_N_... that ends an enum is the number of its values, and no value.
 *
 * GLOSSARY.  Terms of all four headers.
 *
 *   row             the values of a token in a tensor
 *   head            a part of a row that attention treats as a query, key or value
 *   micro-batch     the sequences that a forward and its backward process
 *   dry run         a micro-batch that makes all requests but computes nothing
 *   tile            a fixed number of consecutive rows; rows are split between tiles only
 *   persistent      buffer that lives through the whole step: parameters, optimizer states
 *   skeletal        buffer that a layer's forward makes and the layer's backward needs
 *   transient       every other buffer (these three: MEMO paper, section 3.1)
 *   lifetime        half-open interval [malloc, free) in which a buffer occupies memory
 *   offset          first byte of a buffer, counted from the start of the arena
 *   peak            largest end of any buffer: the size of the arena
 *   lower bound     largest sum of sizes that live at the same time, or the end of a fixed buffer
 *                   if that is larger; no peak is smaller
 *   rounding buffer device memory that layers use in turn for the rows that they swap
 *   alpha           fraction of rows that are swapped; the other rows are recomputed
 *   makespan        time from the start of the first operation to the end of the last
 *   stall           time in which a stream waits between the first and the last operation
 *   rank            a process or thread of several, numbered from 0, with a device
 *   group           the ranks of a communicator
 *   all-to-all      exchange in which every rank sends each other rank a different part of the data
 *   ZeRO            ranks with equal parameters share optimizer states (stage 1), gradients
 *                   (2) and parameters (3): each holds a part
 *   degree          the number of ranks that share a dimension: ring degree rd, Ulysses degree ud
 *   Ulysses         each rank computes some heads of all tokens; an all-to-all before and after
 *   ring            each rank keeps its queries; keys and values pass from rank to rank
 *   zigzag          ring rank r holds chunks r and 2 rd - 1 - r of 2 rd chunks of the tokens, so
 *                   that a causal mask gives all ranks equal work
 *   LSE             log of the sum of exp(score) over the keys of a query; a number per row and
 *                   head; merges partial attention
 *   sub-batch       a part of a batch; collectives of a part overlap other parts' computation
 *
 * CHAPTERS  1 status and error | 2 trace | 3 plan | 4 device | 5 arena | 6 host device
 *           7 swap engine | 8 states | then the implementation, whose rooms have words to
 *           search for, such as >>swap engine.
 *
 * OPTIONS (define before the implementation)
 *     MEMO_STATIC              all functions are static
 *     MEMO_MALLOC, MEMO_FREE   memory for memo's own bookkeeping (default malloc, free)
 *     MEMO_ASSERT              checks invariants of the library, for example with assert (default:
 *                              nothing is checked, which costs nothing)
 *     MEMO_FILE_BYTES_MAX      larger files are refused (default 2^30)
 *     MEMO_ALLOW_FAST_MATH     accepts -ffast-math and its parts, such as -fassociative-math, which
 *                              break NaN, infinity and -0 in rows
 *     MEMO_NO_HOST_DEVICE      leaves out chapter 6 and POSIX threads.  The rest compiles
 *                              for Windows, where spilling is UNSUPPORTED */
#ifndef MEMO_H
#define MEMO_H

#define MEMO_VERSION_MAJOR 0
#define MEMO_VERSION_MINOR 5
#define MEMO_VERSION_PATCH 0

#if defined(MEMO_IMPLEMENTATION) && !defined(_WIN32)
/* The implementation uses POSIX: threads, clock, files.  The request comes before system
 * headers. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE 1
#endif
#endif

#include <stddef.h>
#include <stdint.h>

#if UINTPTR_MAX < 0xffffffffffffffffu
#error "memo.h: a 64-bit target is required: sizes exceed 32 bits; compile without -m32"
#endif

#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define MEMO_PRINTF(position, first) __attribute__((format(printf, position, first)))
#define MEMO_UNUSED                  __attribute__((unused))
#define MEMO_USED_RESULT             __attribute__((warn_unused_result))
#else
#define MEMO_PRINTF(position, first)
#define MEMO_UNUSED
#define MEMO_USED_RESULT
#endif
#define MEMO_FUNCTION static inline MEMO_UNUSED

/* Does not compile unless the array has n elements.  Behind a table, in a function or outside: a
 * value that is added to the table's enum is missed there. */
#define MEMOB_TABLE_OF(n, table)                                                                   \
    typedef char memob_table_of_##table[sizeof(table) / sizeof *(table) == (n) ? 1 : -1] MEMO_UNUSED

/* Functions that host code and kernels share. */
#if defined(__CUDACC__)
#define MEMO_INLINE MEMO_FUNCTION __host__ __device__
#else
#define MEMO_INLINE MEMO_FUNCTION
#endif

/* A value of a type, all zero; and a conversion that -Wold-style-cast accepts. */
#if defined(__cplusplus)
#define MEMO_ZERO(type)        type()
#define MEMO_CAST(type, value) static_cast<type>(value)
#else
#define MEMO_ZERO(type)        ((type){0})
#define MEMO_CAST(type, value) ((type)(value))
#endif

#ifdef MEMO_STATIC
#define MEMO_API static MEMO_UNUSED
#else
#define MEMO_API extern
#endif

/* Functions that can fail: compilers warn where the status is not used. */
#define MEMO_TRY      MEMO_API MEMO_USED_RESULT
#define MEMO_TRY_CALL MEMO_FUNCTION MEMO_USED_RESULT

#ifdef __cplusplus
extern "C" {
#endif

#include "memo/api/status.h"
#include "memo/api/trace.h"
#include "memo/api/plan.h"
#include "memo/api/device.h"
#include "memo/api/arena.h"
#include "memo/api/host_device.h"
#include "memo/api/swap.h"
#include "memo/api/states.h"
#ifdef __cplusplus
}
#endif

#endif /* MEMO_H */

/* ==== implementation ======================================================================== */
/* ROOMS, each with the words to search for.  A room uses public functions and the rooms above it.
 *
 * Names that begin with memob_ are shared: memo's other headers, tools, benchmarks and tests use
 * them, and no memoi_ name of another header.  They are not for trainers: they may change in any
 * version.  Unless stated otherwise, a function that returns int returns 1 on success and 0 on
 * failure or for "no"; one that returns memo_status sets error if it fails.
 *
 *     >>base                 numbers, arrays, hash map, sorting, clock; all headers use it
 *     >>error                statuses and messages
 *     >>text                 text that is written; files that are replaced whole
 *     >>reader               lines, words, numbers
 *     >>records              lines of values, by one table; first and last line of memo's files
 *     >>trace                requests of a step
 *     >>trace file           their text
 *     >>marks                what marks say; classes
 *     >>plan                 buffers, gaps and holds in order; a sweep over time
 *     >>plan from trace      lifetimes and holds of a trace's buffers
 *     >>plan validation      offsets, holds, peak and bound
 *     >>plan file            its text
 *     >>device               a table of functions, checked and copied
 *     >>poison               bytes that nobody may use, on a device
 *     >>arena                blocks of a device, recorded or in use
 *     >>arena creation       slots of a plan, memory of an arena
 *     >>arena requests       micro-batches and requests
 *     >>host device          counters, worker threads, queues, copies
 *     >>bulk                 host memory copied and cleared by several threads
 *     >>spill file           an unnamed file and its operations
 *     >>list                 the visits of a step
 *     >>waits                which operation waits for which
 *     >>engine               memory, streams, events and file of an engine
 *     >>law                  what travels when, in a step
 *     >>law operations       its operations, in the order of enqueueing
 *     >>clock                when streams and bytes are free: predictions
 *     >>sink                 how its operations wait on a device
 *     >>snapshot             a thread that writes items, and who waits for it
 *     >>moves                where the bytes of items lie, and their copies
 *     >>step                 where a step is, and what lies on the device there
 *     >>cursor               how it goes through visits, and jumps
 *     >>swap rows            tiles; rows swapped and recomputed
 *     >>swap places          offsets on the device, on the host and in the file
 *     >>swap items           which rows share bytes; the law of a micro-batch
 *     >>swap engine          they run on a device
 *     >>states places        which states lie where,
 *     >>states items         which visits use them,
 *     >>states               and how a step goes through them
 *     >>states snapshot      writes states out while steps go on */

#if (defined(MEMO_IMPLEMENTATION) || defined(MEMO_CUDA_IMPLEMENTATION)) && !defined(MEMO_BASE_DONE)
#define MEMO_BASE_DONE

/* clang has no macro for parts of -ffast-math: memo_host_device_create looks at a sum. */
#if (defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) ||          \
     defined(__ASSOCIATIVE_MATH__) || defined(__NO_SIGNED_ZEROS__) ||                              \
     defined(__RECIPROCAL_MATH__)) &&                                                              \
    !defined(MEMO_ALLOW_FAST_MATH)
#error "memo.h: the implementation is compiled with -ffast-math, -Ofast or a part of these, \
which breaks NaN, infinity and -0 in rows; compile the implementation in a file of its own \
without this option"
#endif

#if defined(_WIN32) && !defined(MEMO_NO_HOST_DEVICE)
#error "memo.h: the host device needs POSIX threads; define MEMO_NO_HOST_DEVICE on Windows"
#endif

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#if !defined(MEMO_NO_HOST_DEVICE) || defined(MEMO_CUDA_IMPLEMENTATION)
#include <pthread.h>
#endif
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(_WIN32)
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>
#undef near
#undef far
#else
#include <sys/resource.h>
#endif
#include <sys/stat.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#include <time.h>
#include <unistd.h>

/* Two macros that C libraries hide without _POSIX_C_SOURCE and _DEFAULT_SOURCE. */
#if defined(__linux__) && !(defined(CLOCK_MONOTONIC) && defined(M_PI))
#error "memo.h: a system header came before the implementation without POSIX; include memo.h \
first in this file, or compile with -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE"
#endif

#if defined(MEMO_MALLOC) != defined(MEMO_FREE)
#error "memo.h: define MEMO_MALLOC and MEMO_FREE both, or neither"
#endif
#ifndef MEMO_MALLOC
#define MEMO_MALLOC(size_bytes) malloc(size_bytes)
#define MEMO_FREE(address)      free(address)
#endif
#ifndef MEMO_ASSERT
#define MEMO_ASSERT(condition) ((void)sizeof(!(condition)))
#endif
#ifndef MEMO_FILE_BYTES_MAX
#define MEMO_FILE_BYTES_MAX ((int64_t)1 << 30)
#endif

#include "memo/base.h"
#endif

#if defined(MEMO_IMPLEMENTATION) && !defined(MEMO_IMPLEMENTATION_DONE)
#define MEMO_IMPLEMENTATION_DONE

#include "memo/error.h"
#include "memo/text.h"
#include "memo/reader.h"
#include "memo/records.h"
#include "memo/trace.h"
#include "memo/trace_file.h"
#include "memo/marks.h"
#include "memo/plan.h"
#include "memo/plan_from_trace.h"
#include "memo/plan_validation.h"
#include "memo/plan_file.h"
#include "memo/device.h"
#include "memo/poison.h"
#include "memo/arena.h"
#include "memo/arena_creation.h"
#include "memo/arena_requests.h"
#include "memo/host_device.h"
#include "memo/bulk.h"
#include "memo/spill_file.h"
#include "memo/list.h"
#include "memo/waits.h"
#include "memo/engine.h"
#include "memo/law.h"
#include "memo/law_ops.h"
#include "memo/clock.h"
#include "memo/sink.h"
#include "memo/snapshot.h"
#include "memo/moves.h"
#include "memo/step.h"
#include "memo/cursor.h"
#include "memo/swap_rows.h"
#include "memo/swap_places.h"
#include "memo/swap_items.h"
#include "memo/swap_engine.h"
#include "memo/states_places.h"
#include "memo/states_items.h"
#include "memo/states.h"
#include "memo/states_snapshot.h"
#endif /* MEMO_IMPLEMENTATION */
