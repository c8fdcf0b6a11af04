#pragma once
/* ---- 6 ring: keys and values go round -----------------------------------------------------------
 *
 * In a step a ring rank computes all its queries against the keys and values of one rank, first of
 * its own.  Meanwhile those of later steps arrive on a stream of the engine.  Each step calls the
 * local attention with the runs that see each other under the mask: one to three times, so that
 * query heads share key heads evenly; more often for latent keys and separate masks.
 *
 * Each row travels once, straight from its owner, to each rank that reads it.  The messages of all
 * ranks are one list, which each rank makes alone from the masks.  In a turn of the list a rank
 * sends keys to at most one rank and gets some from at most one, and so with gradients; a rank
 * without a message does not wait in it.  Two orders are played on a clock, where receiving takes a
 * sixth of a forward: by distance of ranks, and always the message that can begin first.  The one
 * that takes less is the list (bench/batches).  A message is in a later turn than all that it waits
 * for, so no two ranks wait for each other.
 *
 *   forward    the outputs and LSEs of the steps are merged in fp32, and at the end with the sinks
 *   backward   keys and values travel again; the gradients of their rows return to the owner at
 *              once, in fp32 or rounded to the tensors' type; the owner adds these in fp32 on the
 *              engine's stream, in the order of turns; of step 0, the owner's own, a third comes
 *              first, while keys arrive, and the rest last, while gradients return; if it is one
 *              segment, all of it comes last
 *
 * The rows for a reader are ranges, each a message of k and a message of v.  A sequence has at most
 * 256 / n_batch ranges, but between 4 and 64.  Of more ranges the narrowest gaps travel, too, and
 * all gaps if these are then less than an eighth of all rows.
 *
 * Nodes.  With desc.nodes a row crosses to a node once, to the rank at the owner's place, which
 * holds all rows that anybody in its node reads until these have them, and adds up their gradients,
 * which return to the owner once.  Rows that cross, and sums that return, are messages of the same
 * list, on a stream and links of their own, which the clock takes for ten times slower.  This
 * takes as much memory more as two sets of keys, and in backward four of gradients.  What to
 * choose (simulated time over the ideal, 131,072 tokens on 128 ranks in 16 nodes, 32 heads, both
 * passes; bench/sp nodes):
 *
 *     ulysses 8, ring 16              1.03, 1.03   if each rank of a node has key heads of its own
 *     the same, latent keys           1.72, 1.38   every rank of a node gets all latent rows
 *     ring 128 over 16 nodes          1.00, 1.02   with any number of key heads, and latent keys
 *     ring 128 without nodes          6.51, 5.21   each row crosses 8 times
 *
 * Memory does not grow with the ring.  Keys and values of other ranks lie in a pool of twice the
 * rank's own rows, contributions to d_k and d_v in a pool of three times these rows (in fp32; twice
 * if they are rounded), each where there is room.  So ranks whose steps are unequal do not wait for
 * each other, unless a pool is full (bench/sp makespan).  memo_schedule_check finds a race if any
 * of these waits is removed:
 *
 *   an exchange  waits for  the start (the first one), so that k and v are complete, or are back
 *                           from swap; the latest step whose keys lay in the room that it fills; in
 *                           backward, the step that made the d_k and d_v that are sent
 *   step s       waits for  the exchange that brought its keys; in backward, for the exchange that
 *                           sent what lay in the room of its contribution
 *   rows that cross  wait for the start; the readers of those that lay in their room, and their sum
 *   a sum        waits for  all contributions to it
 *   the end      waits for  the last exchange, so that the caller may overwrite k and v, and a
 *                           synchronized stream has passed every exchange */
