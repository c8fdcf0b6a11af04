#pragma once
/* ---- 6 ring: keys and values go round -----------------------------------------------------------
 *
 * In step s ring rank r computes all its queries against the keys and values of rank r - s (mod
 * rd).  Meanwhile the keys and values of step s + 1 arrive on a stream of the engine.  Each step
 * calls the local attention with the runs that see each other under the mask: one to three times,
 * so that query heads share key heads evenly; more often for latent keys; and for each sequence, if
 * the sequences of a batch have separate masks.  Rows that see nothing are skipped.
 * (Exception: keys of cross-attention that no query sees.)
 *
 * Each step's keys come straight from their owner, and only the rows that this rank reads; steps in
 * which no rank reads anything are left out.  All steps send each row once to each rank that reads
 * the row.
 *
 *   forward    the outputs and LSEs of the steps are merged in fp32, and at the end with the sinks
 *   backward   keys and values travel again; the gradients of their rows return to the owner at
 *              once, while the next step computes, in fp32 or rounded to the tensors' type; the
 *              owner adds these in fp32, in the order of steps; step 0, the owner's own, comes just
 *              before the contribution of the last step
 *
 * The rows for a reader are ranges, each a message of k and a message of v.  A sequence has at most
 * 256 / n_batch ranges, but between 4 and 64.  Of more ranges the narrowest gaps travel, too, and
 * all gaps if these are then less than an eighth of all rows.
 *
 * Memory does not grow with the ring: two buffers for keys and values, and four for d_k and d_v:
 * their sums, the contribution of a step, what is sent and what arrives.  memo_schedule_check finds
 * a race if any of these waits is removed:
 *
 *   exchange s   waits for  the start (s = 0), so that k and v are complete, or are back from swap;
 *                           for the steps that used the buffers that the exchange fills; in
 *                           backward, for step s - 1, which made the d_k and d_v that are sent
 *   step s       waits for  exchange s - 1, which brought the keys of step s; in backward, for the
 *                           exchange that sent the previous contribution; and, before the step adds
 *                           what exchange s returns, for exchange s
 *   the end      waits for  the last exchange, so that the caller may overwrite k and v, and a
 *                           synchronized stream has passed every exchange */
