#pragma once
/* ---- 5 Ulysses: all positions of some heads -----------------------------------------------------
 *
 * Before attention an all-to-all exchange converts (n_batch, local_tokens, all heads) to (n_batch,
 * ring_tokens, some heads); after attention another exchange converts back.  Each is the backward
 * of the other (DeepSpeed-Ulysses).  The side by heads, and rows for a rank that needs all heads,
 * are sent in place; other rows are packed.
 *
 * Rank u of ud owns the query heads [u Hq / ud, (u + 1) Hq / ud), rounded down.  So the numbers of
 * heads may differ by 1, or be 0.  A rank needs the key heads that its query heads read, so several
 * ranks may need the same one.  The gradients of these replicas are sent and summed in fp32 on the
 * rank that holds the rows.
 *
 * A rank may split its heads into G equal groups (memo_sp_attention_desc.ulysses_groups): G ud
 * divides Hq.  Group g of rank u owns the heads that rank u G + g of G ud ranks would.  So a key
 * head that several groups read travels for each, unless G divides the key heads of a rank.  The
 * exchanges run on a stream of the engine, to heads ("g arrives") and back to rows ("g leaves"): 0
 * arrives, 1 arrives, 0 leaves, 2 arrives, 1 leaves.
 *
 *   g arrives    waits for  the start (g = 0); group g - 2, which used the same buffers, has left
 *   attention    waits for  the arrival of g; the results wait until the results of g - 1 have left
 *   g leaves     waits for  the results of g
 *   the end      waits for  the last group to leave */

typedef struct memo_ulysses_heads {
    int32_t first_q, n_q;
    int32_t first_kv, n_kv; /* key head of query head h: h / (Hq / Hkv) */
} memo_ulysses_heads;
