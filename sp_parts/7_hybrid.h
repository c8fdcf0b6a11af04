/* ---- 7 hybrid: attention over ulysses x ring ranks ------------------------------------------------------
 *
 * One object a rank and shape, for all layers.  All ranks of the mesh's sequence group create it alike and call forward
 * and backward in the same order.  What is of degree 1 costs nothing: no copy, no message, no buffer.
 *
 *     memo_mesh_create(world, &mesh_desc, &mesh, &error);
 *     memo_layout_make(&layout_desc, &layout, &error);       // the same degrees
 *     desc = memo_sp_attention_desc_default();
 *     desc.device = device;      desc.stream = compute;
 *     desc.ring = mesh->ring;    desc.ulysses = mesh->ulysses;
 *     desc.layout = layout;      desc.n_batch = 1;
 *     desc.n_q_heads = 32;       desc.n_kv_heads = 8;       desc.head_size = 128;
 *     desc.type = MEMO_TYPE_BF16;
 *     desc.attention = memo_host_attention_functions(&state);
 *     memo_sp_attention_create(&desc, &attention, &error);
 *     memo_sp_attention_forward(attention, &tensors, &mask, &error);      // mask = memo_mask_default(): causal
 *     memo_sp_attention_backward(attention, &tensors, &mask, &error); */

typedef struct memo_sp_attention_desc {
    const memo_device* device; /* may be NULL for get_sizes and ring_schedule */
    memo_stream stream;        /* on which everything is enqueued but the exchanges of the ring */
    memo_comm *ring,
        *ulysses; /* memo_mesh.ring and .ulysses; NULL where the degree is 1, and for get_sizes */
    int32_t ring_rank, ulysses_rank; /* for get_sizes, where ring, ulysses is NULL */
    memo_layout layout;
    int32_t n_batch; /* 0: 1 */
    int32_t n_q_heads, n_kv_heads, head_size;
    memo_type type; /* of all tensors but lse: F32, BF16, F16 */
    float scale;    /* 0: 1 / sqrt(head_size) */
    /* With ulysses above 1, backward needs q, k and v by heads.  0: forward leaves them in tensors.saved.
     * 1: backward sends them again; saved is not used. */
    int32_t sends_again;
    memo_attention attention;
    void*
        device_memory; /* memo_sp_attention_sizes.device_bytes, 512-aligned; NULL: from the device */
} memo_sp_attention_desc;

/* What a desc needs and does; exact, before anything is allocated. */
typedef struct memo_sp_attention_sizes {
    int64_t device_bytes; /* scratch, shared by all layers */
    int64_t saved_bytes;  /* of tensors.saved, kept from forward to backward */
    int64_t lse_bytes;    /* of tensors.lse, likewise */
    memo_ulysses_heads heads;
    /* Sent by this rank in one call, to others.  With n = n_batch * local_tokens * head_size elements, ud = ulysses
     * dividing both counts of heads, and rd = ring:
     *   ulysses forward    (2 Hq + 2 Hkv) n (ud - 1) / ud, in type
     *   ulysses backward   the same, and n_batch * local_tokens * Hq (ud - 1) / ud of fp32 (row_dots);
     *                      with sends_again another (Hq + 2 Hkv) n (ud - 1) / ud
     *   ring forward       2 Hkv n (rd - 1), in type
     *   ring backward      the same, and 2 Hkv n rd in fp32
     * A sliding window may need fewer hops than that. */
    int64_t ulysses_forward_bytes, ulysses_backward_bytes;
    int64_t ring_forward_bytes, ring_backward_bytes;
} memo_sp_attention_sizes;

/* A layer's tensors in device memory, rows of this rank.  Contiguous, heads of a row side by side:
 * q, out, d_out, d_q (n_batch, local_tokens, n_q_heads, head_size); k, v, d_k, d_v with n_kv_heads. */
typedef struct memo_sp_attention_tensors {
    const void *q, *k, *v; /* with tensors.saved, backward does not read them */
    void* out;             /* set by forward, read by backward */
    float* lse;  /* (n_batch, ring_tokens, heads.n_q), fp32; set by forward, read by backward */
    void* saved; /* may be NULL where saved_bytes is 0 */
    const void* d_out;     /* the rest: backward only */
    void *d_q, *d_k, *d_v; /* set */
} memo_sp_attention_tensors;

typedef struct memo_sp_attention memo_sp_attention;

MEMO_API memo_sp_attention_desc memo_sp_attention_desc_default(void);
/* Errors: INVALID_ARGUMENT, which says what would work. */
MEMO_API memo_status memo_sp_attention_get_sizes(const memo_sp_attention_desc* desc,
                                                 memo_sp_attention_sizes* sizes, memo_error* error);
/* Every rank for itself.  Errors: as above, OUT_OF_HOST_MEMORY, and the device's. */
MEMO_API memo_status memo_sp_attention_create(const memo_sp_attention_desc* desc,
                                              memo_sp_attention** attention, memo_error* error);
/* Waits for the desc's stream and the engine's own; before either, or the communicators, are destroyed. */
MEMO_API void memo_sp_attention_destroy(memo_sp_attention* attention);

/* All ranks of the sequence group call them, each from its own thread.  Enqueued on the desc's stream; return at
 * once.  mask.n_tokens is taken from the layout; the same mask in forward and backward.  Gradients of rows that are
 * padding are 0.  Errors: INVALID_ARGUMENT (documents that do not ascend from 0 to n_tokens, tensors that are NULL),
 * those of the device, of memo_comm and of the local attention; after a failure the results are undefined. */
MEMO_API memo_status memo_sp_attention_forward(memo_sp_attention* attention,
                                               const memo_sp_attention_tensors* tensors,
                                               const memo_mask* mask, memo_error* error);
MEMO_API memo_status memo_sp_attention_backward(memo_sp_attention* attention,
                                                const memo_sp_attention_tensors* tensors,
                                                const memo_mask* mask, memo_error* error);

/* What forward (is_backward 0) or backward would enqueue on this rank, appended to schedule: streams "compute" and
 * "ring", with the addresses of tensors and buffers, so that it can be checked and compared with a record.  costs may
 * be NULL. */
MEMO_API memo_status memo_sp_attention_schedule(const memo_sp_attention* attention,
                                                const memo_sp_attention_tensors* tensors,
                                                const memo_mask* mask, int32_t is_backward,
                                                const memo_sp_attention_costs* costs,
                                                memo_schedule* schedule, memo_error* error);
/* The same of all ring ranks together, without addresses, to be simulated and drawn: streams "compute 0", "ring 0",
 * ...; an exchange occupies the ring streams of all ranks. */
MEMO_API memo_status memo_sp_attention_ring_schedule(const memo_sp_attention_desc* desc,
                                                     const memo_mask* mask, int32_t is_backward,
                                                     const memo_sp_attention_costs* costs,
                                                     memo_schedule* schedule, memo_error* error);
