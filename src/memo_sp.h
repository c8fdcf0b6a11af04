/* memo_sp.h - sequence parallelism (Ulysses, ring, hybrid) and overlapped tensor parallelism.
 *
 * Ranks communicate through a small table of functions, memo_comm.  This header provides ranks as
 * threads of one process, on host devices or on GPUs that reach each other (no dependency).
 * memo_cuda.cuh implements a communicator over NCCL, examples/comm_mpi.h one over MPI.
 *
 * NOT FOR: choosing a model's parallel layout while it trains, moving weights between stages, or
 * starting processes.  Layouts are planned before, by extras/memo_layout.h; launchers start ranks.
 * Fused attention kernels are the trainer's: it hands in a local attention, such as cuDNN's.
 *
 * STEP BY STEP, in the order of calls:
 *
 *     1  a memo_comm: memo_comm_create_threads, memo_comm_create_nccl, or examples/comm_mpi.h
 *     2  memo_sequence_create, once; memo_sequence_batch_create with a batch's documents
 *     3  memo_sequence_batch_attend and memo_sequence_batch_attend_backward in each layer
 *     4  chapters 8 to 12 as needed: tensor-parallel blocks, loss, scans, experts
 *
 * The glossary of memo.h defines the terms, such as ring, Ulysses, zigzag and LSE.
 *
 * In exactly one translation unit, which contains memo.h's implementation:
 *
 *     #define MEMO_IMPLEMENTATION
 *     #define MEMO_SP_IMPLEMENTATION
 *     #include "memo_sp.h"              // cc -std=c99 ... -lpthread -lm
 *
 * EXAMPLE: causal attention of two packed documents over all ranks of comm, in every layer.  Each
 * rank holds some of the tokens: q, k, v and out are (local_tokens, heads, 64).  local computes a
 * rank's part, such as examples/host_attention.h on the host (examples/10_ulysses_threads.c).
 *
 *     memo_status attend(memo_comm* comm, memo_device* device, memo_stream stream,
 *                        memo_attention local, const memo_sp_attention_tensors* qkv_and_out,
 *                        memo_error* error) {
 *         const int64_t begins[] = {0, 400, 1000};
 *         const memo_sequence_batch_desc documents = {1000, begins, 2, NULL};
 *         memo_sequence_desc desc = {0};
 *         memo_sequence* sequence = NULL;
 *         memo_sequence_batch* batch = NULL;
 *         memo_status status;
 *         desc.device = device;
 *         desc.stream = stream;
 *         desc.comm = comm;
 *         desc.n_tokens = 1000;                            // any number; padded if necessary
 *         desc.n_layers = 2;
 *         desc.n_q_heads = 8;
 *         desc.n_kv_heads = 2;
 *         desc.head_size = 64;
 *         desc.attention = local;
 *         status = memo_sequence_create(&desc, &sequence, error);                    // once
 *         if (!status) status = memo_sequence_batch_create(sequence, &documents, &batch, error);
 *         for (int layer = 0; layer < 2 && !status; layer++)
 *             status = memo_sequence_batch_attend(batch, layer, qkv_and_out, error);
 *         if (!status) status = memo_stream_synchronize(device, stream, error);
 *         memo_sequence_batch_destroy(batch);
 *         memo_sequence_destroy(sequence);
 *         return status;
 *     }
 *
 * RULES.  As in memo.h.  In chapters 7 to 13 create returns INVALID_ARGUMENT, OUT_OF_HOST_MEMORY
 * and errors of the device; destroy waits for the desc's stream.  A pass enqueues on the desc's
 * stream and returns at once.  All ranks must call it, each from its thread, in one order.  It
 * returns INVALID_ARGUMENT; COMM if ranks differ (see memo_label); errors of callbacks, of
 * memo_comm and of the device.  The functions' comments name what differs from this.
 *
 * CHAPTERS  1 comm | 2 mesh | 3 shardings | 4 local attention | 5 Ulysses | 6 ring | 7 hybrid
 *           8 overlapped tensor-parallel blocks | 9 loss in tiles | 10 scan | 11 row kernels
 *           12 experts | 13 sequence
 *
 * OPTIONS (define before the implementation, and identically in every file that includes memo_sp.h)
 *     MEMO_NO_HOST_DEVICE      removes the threads back end, and memo.h's chapter 6
 *
 * License: MIT.  Language: C99 that is also C++11. */
#ifndef MEMO_SP_H
#define MEMO_SP_H

#include "memo.h"
#include <math.h>

#if MEMO_VERSION_MAJOR != 0 || MEMO_VERSION_MINOR != 5
#error "memo_sp.h: memo.h is of another release; use the memo.h of the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#include "sp/api/comm.h"
#include "sp/api/mesh.h"
#include "sp/api/shardings.h"
#include "sp/api/local_attention.h"
#include "sp/api/ulysses.h"
#include "sp/api/ring.h"
#include "sp/api/hybrid.h"
#include "sp/api/blocks.h"
#include "sp/api/loss.h"
#include "sp/api/scan.h"
#include "sp/api/row_kernels.h"
#include "sp/api/experts.h"
#include "sp/api/sequence.h"
#ifdef __cplusplus
}
#endif

#endif /* MEMO_SP_H */

/* ==== row arithmetic ======================================================================== */
/* For the implementation, and for that of memo_cuda.cuh: it compiles for host and GPU, so that both
 * agree.  Names without memoi_ are those that memo_cuda.cuh uses. */
#if (defined(MEMO_SP_IMPLEMENTATION) || defined(MEMO_CUDA_IMPLEMENTATION)) &&                      \
    !defined(MEMO_ROW_MATH_DONE)
#define MEMO_ROW_MATH_DONE

#include "sp/row_math.h"
#endif /* MEMO_ROW_MATH_DONE */

/* ==== implementation ======================================================================== */
#if defined(MEMO_SP_IMPLEMENTATION) && !defined(MEMO_SP_IMPLEMENTATION_DONE)
#define MEMO_SP_IMPLEMENTATION_DONE
#ifndef MEMO_IMPLEMENTATION_DONE
#error "memo_sp.h: MEMO_IMPLEMENTATION is not defined; define it in the same file"
#endif
#if defined(MEMO_CUDA_IMPLEMENTATION_DONE) && !defined(MEMO_CUDA_ROW_KERNELS)
#error "memo_sp.h: include it before memo_cuda.cuh, whose implementation compiles the row kernels"
#endif

/* ROOMS, each with the words to search for.  A room uses public functions, memob_ ones of
 * memo.h, and the rooms above it.
 *
 *     >>comm calls          types, checks, groups of messages, bytes and labels for all back ends
 *     >>row kernels         loops over rows on the host; the devices of row kernels
 *     >>threads back end    ranks as threads: messages, meetings, failures, simulated links
 *     >>mesh                coordinates and groups of a rank
 *     >>segments            lists of segments, and those of the rows of a block
 *     >>shardings           positions, ranks and rows
 *     >>target              streams and events to enqueue on; messages and row kernels
 *     >>masks               documents and intervals as segments; checks of a list
 *     >>launches            segments as calls of fused kernels
 *     >>attention shape     tokens, heads and masks of a rank
 *     >>ulysses exchange    rows to heads and back
 *     >>pairs of ranks      who reads which rows of whom, from runs and masks
 *     >>pools of rows       rows that come one after another, where there is room
 *     >>messages            the messages of all ranks, and the orders of their steps
 *     >>distances           all messages of a distance in one turn
 *     >>order of messages   a pass played once: what can begin first
 *     >>clock of messages   the time of a list, and the choice of one
 *     >>exchange plans      steps and rows that travel of a rank
 *     >>ring attention      steps, exchanges and merges of the ring
 *     >>attention desc      checks of a desc, and the shape that follows
 *     >>uploads             segments of all steps on the device
 *     >>attention buffers   what a pass keeps in scratch memory
 *     >>hybrid attention    exchanges and passes of Ulysses x ring
 *     >>sequence            attention of all layers in one object
 *     >>block orders        the orders of overlapped blocks
 *     >>block runs          creation, passes and layers of blocks
 *     >>loss                tiles of the classifier, their losses and gradients
 *     >>scan                states and halo rows of recurrences
 *     >>experts             rows that go to the ranks of their experts, and back */

#include "sp/comm.h"
#include "sp/row_kernels.h"
#include "sp/threads.h"
#include "sp/mesh.h"
#include "sp/attention/segments.h"
#include "sp/shardings.h"
#include "sp/target.h"
#include "sp/attention/masks.h"
#include "sp/attention/launches.h"
#include "sp/attention/shape.h"
#include "sp/attention/ulysses.h"
#include "sp/attention/pairs.h"
#include "sp/attention/pools.h"
#include "sp/attention/messages.h"
#include "sp/attention/distances.h"
#include "sp/attention/play.h"
#include "sp/attention/clock.h"
#include "sp/attention/exchange.h"
#include "sp/attention/ring.h"
#include "sp/attention/desc.h"
#include "sp/attention/uploads.h"
#include "sp/attention/buffers.h"
#include "sp/attention/hybrid.h"
#include "sp/attention/sequence.h"
#include "sp/block_orders.h"
#include "sp/block_runs.h"
#include "sp/loss.h"
#include "sp/scan.h"
#include "sp/experts.h"
#endif /* MEMO_SP_IMPLEMENTATION */
