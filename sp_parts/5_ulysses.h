/* ---- 5 Ulysses: all positions of some heads ------------------------------------------------------------
 *
 * Before attention, all to all turns (n_batch, local_tokens, all heads) into (n_batch, ring_tokens, some heads), and
 * back after it; each way is the other's backward (DeepSpeed-Ulysses).  What arrives by heads is received in place,
 * what leaves by heads is sent in place; the other side is packed by rows, where a rank needs more than one and less
 * than all heads.
 *
 * Rank u of ud owns the query heads [u Hq / ud, (u + 1) Hq / ud), rounded down, so counts may differ by one, or be 0.
 * It needs the key heads that these read: with fewer key heads than ranks several need the same one, and the gradients
 * of these replicas travel and are summed in fp32 where the rows live. */

typedef struct memo_ulysses_heads {
    int32_t first_q, n_q;
    int32_t first_kv, n_kv; /* key head of query head h: h / (Hq / Hkv) */
} memo_ulysses_heads;

/* n_q_heads is a multiple of n_kv_heads; nothing else needs to divide. */
MEMO_API memo_ulysses_heads memo_ulysses_heads_of(int32_t n_q_heads, int32_t n_kv_heads,
                                                  int32_t ulysses, int32_t ulysses_rank);
