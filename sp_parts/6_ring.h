/* ---- 6 ring: keys and values go round -----------------------------------------------------------------
 *
 * In step s ring rank r computes its queries against the keys and values of rank r - s (mod rd), while those of step
 * s + 1 arrive on a stream of the engine's own.  Each step is one call of the local attention with the runs that see
 * something of each other under the mask; what sees nothing is not computed, and keys travel no further than the
 * last rank that needs them (causal and full masks: rd - 1 hops).
 *
 *   forward    outputs and LSEs of the steps are merged in fp32
 *   backward   keys and values go round again; d_k and d_v follow one step behind, in fp32, and the last hop
 *              takes them home
 *
 * Two buffers for keys and values, two for d_k and d_v, one for what a step adds: whatever the size of the ring.
 * The waits, each of which memo_schedule_check finds a race without:
 *   exchange s   waits for  the start (s = 0); for step s - 1, which used the buffer that is overwritten and, in
 *                           backward, made the d_k and d_v that are sent
 *   step s       waits for  exchange s - 1, which brought its keys; in backward, before it adds to d_k and d_v, for
 *                           exchange s, which brought these
 *   the end      waits for  the last exchange, so that the caller may overwrite k and v
 * On a rank that skips steps the start or the end may wait for more than it needs. */

/* For the schedules of chapter 7; zero takes no time. */
typedef struct memo_sp_attention_costs {
    double forward_s_per_score, backward_s_per_score; /* of a pair (query, key) of one head */
    double ring_bytes_per_s, ring_latency_s; /* 0 bytes per second: no time but the latency */
    double ulysses_bytes_per_s, ulysses_latency_s;
} memo_sp_attention_costs;
