#pragma once
#include "sp/target.h"
#include "sp/attention/exchange.h"
/* ---- >>ring attention ---------------------------------------------------------------------------
 * Knows: the runs of each ring rank, the mask, the local attention, three streams.  Knows nothing
 * of Ulysses or of where its tensors come from.  They are by heads: (n_batch, ring_tokens, heads of
 * the rank, head_size or v_head_size).  Arrays of two hold one for keys, then one for values.
 *
 * 1. A step is enqueued behind the exchange that brings its keys.
 * 2. A call of the local attention has query heads that share key heads evenly.
 * 3. A room that is read was filled in this pass, and each has a cell. */

/* The buffers of one rank; those that are not needed are NULL. */
typedef struct memoi_ring_buffers {
    char* kv[2]; /* pools: keys and values of other ranks */
    float *block_out, *block_lse;
    float* d_kv[2];   /* the sums of all steps */
    char* gradients;  /* pool, in carried_type: contributions, each rows of d_k, then rows of d_v */
    float* d_kv_step; /* the contribution of a step before it is rounded; NULL: computed in place */
    /* Over nodes: pools of keys and values that are held for the node, and of the sums of their
     * gradients, each rows of d_k, then rows of d_v; sums that return, and come, in carried_type.
     * sums_given: NULL if that is fp32. */
    char* held[2];
    float *held_sums, *far_sums[2]; /* far_sums: of own keys, from other nodes */
    char *sums_given, *sums_taken;
    /* Keys and values of latent rows: of a step's, and of some heads. */
    char* expanded[2];
    float* d_expanded[2];
} memoi_ring_buffers;

/* Cells of the target: bytes that several streams touch.  Keys by heads have a cell for each
 * buffer; behind these each room of a pass has one. */
enum {
    MEMOI_CELL_ROWS = 0,                        /* the user's tensors, and row dots by rows */
    MEMOI_CELL_RESULTS,                         /* by heads, as they leave */
    MEMOI_CELL_HEADS,                           /* of even and odd groups: q, d_out, row dots */
    MEMOI_CELL_OWN_SUMS = MEMOI_CELL_HEADS + 2, /* gradients of own keys */
    MEMOI_CELL_FAR_SUMS,                        /* those that come from other nodes */
    MEMOI_CELL_KEYS
};

/* Who used the bytes of the pools in a pass. */
typedef struct memoi_ring_rooms {
    int32_t first_cell, n_cells;     /* room 0 is what was there before the pass */
    int32_t n;                       /* rooms so far */
    memoi_pool pools[MEMOI_N_POOLS]; /* in bytes; of keys, and held keys: of k */
} memoi_ring_rooms;

/* What an exchange reads and writes; the bytes that it sends. */
typedef struct memoi_ring_access {
    memo_range reads[3], writes[3];
    int64_t n_reads, n_writes, n_out;
} memoi_ring_access;

/* One forward or backward on one rank. */
typedef struct memoi_ring {
    const memoi_shape* shape;
    memoi_target* target;
    memo_comm *comm, *nodes; /* nodes: ranks at this place of their nodes */
    const memo_attention* attention;
    const memo_exchange* plan;
    int32_t is_backward;

    char *q, *kv[2]; /* only read */
    const char* d_out;
    float *out, *lse; /* merged so far; final at the end */
    const float* row_dots;
    float* d_q;
    float* d_kv_final[2]; /* sums of this rank's rows */
    memoi_ring_buffers buffers;

    int32_t keys_cell, heads_cell; /* of kv; of q, d_out and row_dots */
    memoi_ring_rooms* rooms;

    int32_t last_step;    /* the plan's; 0 on a rank without heads */
    int32_t n_turns;      /* exchanges of this ring, passed or enqueued so far */
    int32_t last_brought; /* the last step whose keys these bring */
    int32_t last_held;    /* the last held rows that these bring */
} memoi_ring;

/* Elements of q. */
MEMOI int64_t memoi_ring_q_elements(const memoi_shape* shape) {
    return shape->n_batch * shape->sharding.ring_tokens * shape->heads.n_q * shape->head_size;
}

/* Step 0 is of own keys.  Before it a backward may have done a part of it. */
enum { MEMOI_RING_OWN_FIRST = -1 };

/* Tensors that travel: of keys and values the rows that are needed later, and their gradients. */
enum { MEMOI_RING_K = 0, MEMOI_RING_V, MEMOI_RING_D_KV, MEMOI_RING_N_TENSORS };

/* Elements of a row of a tensor, and its type. */
MEMOI int64_t memoi_ring_row(const memoi_shape* shape, int tensor) {
    const int32_t* size = shape->kv_size;
    return (int64_t)shape->heads.n_kv *
           (tensor < MEMOI_RING_D_KV ? size[tensor] : size[0] + size[1]);
}
MEMOI memo_type memoi_ring_type(const memoi_shape* shape, int tensor) {
    return tensor < MEMOI_RING_D_KV ? shape->type : shape->carried_type;
}
/* Elements of k, or of v. */
MEMOI MEMOB_NOINLINE int64_t memoi_ring_kv_elements(const memoi_shape* shape, int is_v) {
    return shape->n_batch * shape->key_sharding.ring_tokens * memoi_ring_row(shape, is_v);
}
MEMOI int64_t memoi_ring_row_bytes(const memoi_shape* shape, int tensor) {
    return memoi_ring_row(shape, tensor) * memo_type_bytes(memoi_ring_type(shape, tensor));
}
/* Instead of a number of held rows: own ones, whose gradients come from other nodes.  They have
 * sums of their own, so that neither stream of messages waits for the other. */
enum { MEMOI_RING_FAR = -1 };

/* Rows that lie before those of sequence b where held rows lie, or own ones. */
MEMOI int64_t memoi_ring_rows_before(const memoi_ring* ring, int32_t held, int32_t b) {
    const memoi_shape* shape = ring->shape;
    int64_t n = 0;
    if (held <= 0) return b * shape->key_sharding.ring_tokens;
    for (int32_t i = 0; i < b; i++)
        n += memoi_exchange_whole_of(ring->plan, held)[shape->n_parts > 1 ? i : 0].n_rows;
    return n;
}
/* What a reader reads of these rows, in each part; and of all its sequences, which is also what it
 * contributes. */
MEMOI const memoi_exchange_pieces* memoi_ring_read_pieces(const memoi_ring* ring, int32_t held,
                                                          int32_t reader) {
    if (!held) return memoi_exchange_pieces_of(ring->plan, MEMOI_PIECES_SENT, reader, 0);
    return memoi_exchange_read_of(ring->plan, memoi_exchange_held_of(ring->plan, held)->owner,
                                  reader);
}
MEMOI int64_t memoi_ring_read_rows(const memoi_ring* ring, int32_t held, int32_t reader) {
    const memoi_shape* shape = ring->shape;
    int64_t n = 0;
    for (int32_t i = 0; i < shape->n_parts; i++)
        n += memoi_ring_read_pieces(ring, held, reader)[i].n_rows;
    return n * (shape->n_batch / shape->n_parts);
}
/* Rows of keys of step s. */
MEMOI int64_t memoi_ring_key_rows(const memoi_ring* ring, int32_t s) {
    const memoi_shape* shape = ring->shape;
    return s > 0 ? *memoi_exchange_rows_of(ring->plan, 1, ring->plan->owners[s])
                 : shape->n_batch * shape->key_sharding.ring_tokens;
}

/* Where k or v of held rows lie, or of own ones (0). */
MEMOI char* memoi_ring_held(const memoi_ring* ring, int is_v, int32_t held) {
    if (!held) return ring->kv[is_v];
    return ring->buffers.held[is_v] +
           memoi_exchange_held_of(ring->plan, held)->row * memoi_ring_row_bytes(ring->shape, is_v);
}
/* Where sums of their gradients do. */
MEMOI void memoi_ring_sums(const memoi_ring* ring, int32_t held, float* d_kv[2]) {
    const memoi_shape* shape = ring->shape;
    const memoi_exchange_held* x;
    d_kv[0] = held ? ring->buffers.far_sums[0] : ring->d_kv_final[0];
    d_kv[1] = held ? ring->buffers.far_sums[1] : ring->d_kv_final[1];
    if (held <= 0) return;
    x = memoi_exchange_held_of(ring->plan, held);
    d_kv[0] = ring->buffers.held_sums + x->row * memoi_ring_row(shape, MEMOI_RING_D_KV);
    d_kv[1] = d_kv[0] + x->n_rows * memoi_ring_row(shape, 0);
}
/* Where k or v of step s lies. */
MEMOI char* memoi_ring_keys(const memoi_ring* ring, int is_v, int32_t s) {
    if (s <= 0) return ring->kv[is_v];
    if (ring->plan->held_of[s]) return memoi_ring_held(ring, is_v, ring->plan->held_of[s]);
    return ring->buffers.kv[is_v] + memoi_exchange_room_of(ring->plan, MEMOI_POOL_KEYS, s)->row *
                                        memoi_ring_row_bytes(ring->shape, is_v);
}
/* Where the contribution of step s lies that leaves. */
MEMOI char* memoi_ring_contribution(const memoi_ring* ring, int32_t s) {
    return ring->buffers.gradients +
           memoi_exchange_room_of(ring->plan, MEMOI_POOL_GRADIENTS, s)->row *
               memoi_ring_row_bytes(ring->shape, MEMOI_RING_D_KV);
}
/* Where those of others arrive. */
MEMOI char* memoi_ring_taken(const memoi_ring* ring) {
    return ring->buffers.gradients +
           ring->plan->taken_row * memoi_ring_row_bytes(ring->shape, MEMOI_RING_D_KV);
}
/* Is the contribution to the own keys computed apart, because others are added meanwhile? */
MEMOI int memoi_ring_is_apart(const memoi_ring* ring) {
    return ring->plan->has_others && ring->plan->has_own_work;
}
/* Does step s compute its contribution apart from the sums of own keys? */
MEMOI int memoi_ring_step_is_apart(const memoi_ring* ring, int32_t s) {
    return s > 0 || (!s && memoi_ring_is_apart(ring));
}
MEMOI const memoi_exchange_step* memoi_ring_step_of(const memoi_ring* ring, int32_t s,
                                                    int32_t mask) {
    const memo_exchange* plan = ring->plan;
    if (s <= 0 && ring->is_backward && plan->splits_own) s += plan->last_step + 2;
    return memoi_exchange_step_of(plan, s, mask);
}
/* Where step s computes d_k and d_v. */
MEMOI void memoi_ring_d_kv(const memoi_ring* ring, int32_t s, float* d_kv[2]) {
    const memoi_shape* shape = ring->shape;
    const int64_t n = memoi_ring_key_rows(ring, s);
    d_kv[0] = ring->d_kv_final[0];
    d_kv[1] = ring->d_kv_final[1];
    if (!memoi_ring_step_is_apart(ring, s)) return;
    d_kv[0] = ring->buffers.d_kv_step;
    if (!d_kv[0])
        d_kv[0] = (float*)(void*)memoi_ring_contribution(ring, s ? s : ring->last_step + 1);
    d_kv[1] = d_kv[0] + n * memoi_ring_row(shape, 0);
}

/* --- rooms --- */

/* The bytes of a row in a pool. */
MEMOI int64_t memoi_ring_pool_row_bytes(const memoi_ring* ring, int pool) {
    if (pool == MEMOI_POOL_SUMS) return memoi_ring_row(ring->shape, MEMOI_RING_D_KV) * 4;
    return memoi_ring_row_bytes(ring->shape,
                                pool == MEMOI_POOL_GRADIENTS ? MEMOI_RING_D_KV : MEMOI_RING_K);
}

/* An operation fills bytes of a pool, behind all that used any of them. */
MEMOI void memoi_ring_fill_bytes(memoi_ring* ring, memoi_target_op* op, int pool, int64_t begin,
                                 int64_t n_bytes) {
    memoi_ring_rooms* rooms = ring->rooms;
    memoi_pool* p = &rooms->pools[pool];
    if (!ring->target->order) return;
    for (int32_t i = 0; i < p->n && p->stretches[i].begin < begin + n_bytes; i++)
        if (p->stretches[i].end > begin)
            memoi_target_follow(ring->target, op, rooms->first_cell + p->stretches[i].step);
    MEMO_ASSERT(rooms->n + 1 < rooms->n_cells); /* 3 */
    memoi_pool_take(p, begin, begin + n_bytes, ++rooms->n);
    ring->target->cells[rooms->first_cell + rooms->n] = MEMO_ZERO(memob_cell);
    memoi_target_touch(ring->target, op, rooms->first_cell + rooms->n, 1);
}

/* The rows of step s in their room; behind the last step: of the own contribution. */
MEMOI void memoi_ring_fill_room(memoi_ring* ring, memoi_target_op* op, int pool, int32_t s) {
    const int32_t of = s <= ring->last_step ? s : 0;
    const int64_t n = memoi_ring_key_rows(ring, of);
    const int64_t row_bytes = memoi_ring_pool_row_bytes(ring, pool);
    memoi_ring_fill_bytes(ring, op, pool,
                          memoi_exchange_room_of(ring->plan, pool, s)->row * row_bytes,
                          n * row_bytes);
}

/* An operation reads rows that fill their room, from `row` on, or writes them. */
MEMOI void memoi_ring_touch_room(const memoi_ring* ring, memoi_target_op* op, int pool, int64_t row,
                                 int is_written) {
    const memoi_ring_rooms* rooms = ring->rooms;
    const memoi_pool_stretch* at = rooms->pools[pool].stretches;
    const int64_t begin = row * memoi_ring_pool_row_bytes(ring, pool);
    if (!ring->target->order) return;
    while (at->end <= begin) at++;
    MEMO_ASSERT(at->begin == begin && at->step); /* 3 */
    memoi_target_touch(ring->target, op, rooms->first_cell + at->step, is_written);
}
/* An operation reads the rows of step s. */
MEMOI void memoi_ring_read_room(const memoi_ring* ring, memoi_target_op* op, int pool, int32_t s) {
    memoi_ring_touch_room(ring, op, pool, memoi_exchange_room_of(ring->plan, pool, s)->row, 0);
}
/* An operation reads held rows, or own ones (0); or writes their sums. */
MEMOI void memoi_ring_read_held(const memoi_ring* ring, memoi_target_op* op, int32_t held) {
    if (held)
        memoi_ring_touch_room(ring, op, MEMOI_POOL_HELD,
                              memoi_exchange_held_of(ring->plan, held)->row, 0);
    else
        memoi_target_touch(ring->target, op, ring->keys_cell, 0);
}
MEMOI void memoi_ring_add_to_held(const memoi_ring* ring, memoi_target_op* op, int32_t held) {
    if (held)
        memoi_ring_touch_room(ring, op, MEMOI_POOL_SUMS,
                              memoi_exchange_held_of(ring->plan, held)->row, 1);
    else
        memoi_target_touch(ring->target, op, MEMOI_CELL_OWN_SUMS, 1);
}

/* Before a pass. */
MEMOI void memoi_ring_clear_rooms(memoi_ring_rooms* rooms) {
    const memoi_pool_stretch all = {0, INT64_MAX, 0};
    rooms->n = 0;
    for (int i = 0; i < MEMOI_N_POOLS; i++) {
        rooms->pools[i].n_rows = INT64_MAX;
        rooms->pools[i].n = 1;
        rooms->pools[i].stretches[0] = all;
    }
}

/* Moves the addresses of a block on by rows and by heads. */
MEMOI void memoi_ring_block_move(memo_attention_block* b, int64_t q_row, int64_t k_row,
                                 int64_t q_head, int64_t kv_head) {
    const int64_t bytes = memo_type_bytes(b->type);
    const int64_t q = q_row * b->q_row_stride + q_head * b->head_size;
    const int64_t k = k_row * b->k_row_stride + kv_head * b->head_size;
    const int64_t v = k_row * b->v_row_stride + kv_head * b->v_head_size;
    const int64_t out = q_row * b->out_row_stride + q_head * b->v_head_size;
    const int64_t lse = q_row * b->lse_row_stride + q_head;
    b->q = (const char*)b->q + q * bytes;
    b->k = (const char*)b->k + k * bytes;
    b->v = (const char*)b->v + v * bytes;
    b->lse += lse;
    if (b->out) b->out += out;
    if (!b->d_q) return;
    b->d_out = (const char*)b->d_out + out * bytes;
    b->row_dots += lse;
    b->d_q += q;
    b->d_k += k;
    b->d_v += v;
}

/* Does a step merge its output into that of others? */
MEMOI int memoi_ring_merges(const memoi_ring* ring, int32_t mask, int32_t s) {
    return !ring->is_backward && (s || mask % ring->plan->n_levels);
}

/* The rectangle of step s. */
MEMOI memo_attention_block memoi_ring_block(const memoi_ring* ring, int32_t mask,
                                            const memoi_exchange_step* r, int32_t s) {
    const int32_t part = mask / ring->plan->n_levels;
    const int merges = memoi_ring_merges(ring, mask, s);
    const memoi_shape* shape = ring->shape;
    const memoi_ring_buffers* buffers = &ring->buffers;
    const int64_t n_keys = shape->key_sharding.ring_tokens;
    float* d_kv[2];
    memo_attention_block block = MEMO_ZERO(memo_attention_block);
    block.type = shape->type;
    block.scale = shape->scale;
    block.softcap = shape->softcap;
    block.first_q_head = shape->heads.first_q;
    block.n_batch = shape->n_batch / shape->n_parts;
    block.head_size = shape->head_size;
    block.v_head_size = shape->v_head_size;

    /* The positions of its rows. */
    block.q_runs = r->q_runs;
    block.n_q_runs = r->n_q_runs;
    block.k_runs = r->k_runs;
    block.n_k_runs = r->n_k_runs;
    block.segments = r->seen.segments;

    block.q_row_stride = (int64_t)shape->heads.n_q * shape->head_size;
    block.k_row_stride = memoi_ring_row(shape, 0);
    block.v_row_stride = memoi_ring_row(shape, 1);
    block.out_row_stride = (int64_t)shape->heads.n_q * shape->v_head_size;
    block.lse_row_stride = shape->heads.n_q;
    block.q_batch_stride = shape->sharding.ring_tokens * block.q_row_stride;
    block.k_batch_stride = (s > 0 ? r->n_k_rows : n_keys) * block.k_row_stride;
    block.v_batch_stride = (s > 0 ? r->n_k_rows : n_keys) * block.v_row_stride;
    block.out_batch_stride = shape->sharding.ring_tokens * block.out_row_stride;
    block.lse_batch_stride = shape->sharding.ring_tokens * block.lse_row_stride;

    /* Addresses of row 0; then of the block's first rows. */
    block.q = ring->q;
    block.k = memoi_ring_keys(ring, 0, s);
    block.v = memoi_ring_keys(ring, 1, s);
    block.lse = merges ? buffers->block_lse : ring->lse;
    if (ring->is_backward) {
        block.d_out = ring->d_out;
        block.row_dots = ring->row_dots;
        block.d_q = ring->d_q;
        memoi_ring_d_kv(ring, s, d_kv);
        block.d_k = d_kv[0];
        block.d_v = d_kv[1];
    } else {
        block.out = merges ? buffers->block_out : ring->out;
    }

    memoi_ring_block_move(&block, part * shape->sharding.ring_tokens + r->q_row,
                          s > 0 ? r->k_row : part * n_keys, 0, 0);
    return block;
}

/* The bytes of n rows of each batch, from the first row of the first batch to the last row of the
 * last one; like: the array whose strides they have. */
#define MEMOI_RING_RANGE(b, x, like, n, element_bytes)                                             \
    memob_range_at(                                                                                \
        (b)->x, (((b)->n_batch - 1) * (b)->like##_batch_stride + (n) * (b)->like##_row_stride) *   \
                    (element_bytes))

/* Announces the operation with what it reads and writes. */
MEMOI void memoi_ring_announce(const memoi_ring* ring, const memo_attention_block* b, int64_t n_q,
                               int64_t n_k) {
    const int64_t bytes = memo_type_bytes(b->type);
    const memo_range reads[] = {
        MEMOI_RING_RANGE(b, q, q, n_q, bytes), MEMOI_RING_RANGE(b, k, k, n_k, bytes),
        MEMOI_RING_RANGE(b, v, v, n_k, bytes), MEMOI_RING_RANGE(b, d_out, out, n_q, bytes),
        MEMOI_RING_RANGE(b, lse, lse, n_q, 4), MEMOI_RING_RANGE(b, row_dots, lse, n_q, 4)};
    const memo_range forward[] = {MEMOI_RING_RANGE(b, out, out, n_q, 4),
                                  MEMOI_RING_RANGE(b, lse, lse, n_q, 4)};
    const memo_range backward[] = {MEMOI_RING_RANGE(b, d_q, q, n_q, 4),
                                   MEMOI_RING_RANGE(b, d_k, k, n_k, 4),
                                   MEMOI_RING_RANGE(b, d_v, v, n_k, 4)};
    if (ring->is_backward)
        memoi_target_announce(ring->target, MEMOI_TARGET_COMPUTE, "attention backward", reads, 6,
                              backward, 3, 0);
    else
        memoi_target_announce(ring->target, MEMOI_TARGET_COMPUTE, "attention", reads, 3, forward, 2,
                              0);
}

/* Calls a function of latent keys for each sequence of a block of n_rows; part has some of its
 * heads. */
MEMOI void memoi_ring_latent(const memoi_ring* ring, const memo_attention_block* block,
                             const memo_attention_block* part, int32_t first_head, int64_t n_rows,
                             memo_latent_function function) {
    const memo_latent* latent = &ring->shape->latent;
    const int64_t bytes = memo_type_bytes(block->type);
    memoi_target* target = ring->target;
    memo_latent_block rows;
    rows.type = block->type;
    rows.first_kv_head = first_head;
    rows.n_kv_heads = part->n_kv_heads;
    rows.n_rows = n_rows;
    for (int64_t b = 0; b < block->n_batch && !target->status; b++) {
        rows.latent = (const char*)block->k + b * block->k_batch_stride * bytes;
        rows.k = ring->buffers.expanded[0] + b * part->k_batch_stride * bytes;
        rows.v = ring->buffers.expanded[1] + b * part->v_batch_stride * bytes;
        rows.d_k = ring->is_backward ? part->d_k + b * part->k_batch_stride : NULL;
        rows.d_v = ring->is_backward ? part->d_v + b * part->v_batch_stride : NULL;
        rows.d_latent = ring->is_backward ? block->d_k + b * block->k_batch_stride : NULL;
        target->status =
            function(latent->user, target->streams[MEMOI_TARGET_COMPUTE], &rows, target->error);
    }
}

/* Gives a part of a block its keys and values, from latent rows. */
MEMOI void memoi_ring_expand(const memoi_ring* ring, const memo_attention_block* block,
                             memo_attention_block* part, int32_t first_head, int64_t n_rows) {
    const memoi_ring_buffers* buffers = &ring->buffers;
    part->k = buffers->expanded[0];
    part->v = buffers->expanded[1];
    part->k_row_stride = (int64_t)part->n_kv_heads * part->head_size;
    part->v_row_stride = (int64_t)part->n_kv_heads * part->v_head_size;
    part->k_batch_stride = n_rows * part->k_row_stride;
    part->v_batch_stride = n_rows * part->v_row_stride;
    if (ring->is_backward) {
        part->d_k = buffers->d_expanded[0];
        part->d_v = buffers->d_expanded[1];
        memoi_target_fill(ring->target, MEMOI_TARGET_COMPUTE, part->d_k,
                          part->n_batch * part->k_batch_stride * 4);
        memoi_target_fill(ring->target, MEMOI_TARGET_COMPUTE, part->d_v,
                          part->n_batch * part->v_batch_stride * 4);
    }
    memoi_ring_latent(ring, block, part, first_head, n_rows, ring->shape->latent.expand);
}

/* In at most three parts of the rank's heads, or more of latent keys: the callback requires that
 * query heads share key heads evenly. */
MEMOI void memoi_ring_attend(const memoi_ring* ring, const memo_attention_block* block,
                             const memoi_exchange_step* r) {
    const memo_attention* attention = ring->attention;
    const memo_ulysses_heads* own = &ring->shape->heads;
    const memo_latent* latent = &ring->shape->latent;
    int32_t group = ring->shape->n_q_heads / ring->shape->n_read_heads, next;
    int32_t end = own->first_q + own->n_q;
    memoi_target* target = ring->target;
    if (memoi_target_is_heard(target)) memoi_ring_announce(ring, block, r->n_q_rows, r->n_k_rows);

    for (int32_t q = own->first_q; q < end && !target->status; q = next) {
        memo_attention_block part = *block;
        next = q % group || end - q < group ? (q / group + 1) * group : end / group * group;
        if (latent->size && latent->n_heads)
            next = (int32_t)memob_min(next, ((int64_t)q / group + latent->n_heads) * group);
        if (next > end) next = end;
        part.first_q_head += q - own->first_q;
        part.n_q_heads = next - q;
        part.n_kv_heads = (next - 1) / group - q / group + 1;
        MEMO_ASSERT(part.n_q_heads % part.n_kv_heads == 0); /* 2 */
        memoi_ring_block_move(&part, 0, 0, q - own->first_q,
                              latent->size ? 0 : q / group - own->first_kv);
        if (latent->size) memoi_ring_expand(ring, block, &part, q / group, r->n_k_rows);
        if (!target->status)
            target->status = (ring->is_backward ? attention->backward : attention->forward)(
                attention->user, target->streams[MEMOI_TARGET_COMPUTE], &part, target->error);
        if (latent->size && ring->is_backward)
            memoi_ring_latent(ring, block, &part, q / group, r->n_k_rows, latent->reduce);
    }
}

MEMOI void memoi_ring_merge(const memoi_ring* ring, const memo_attention_block* block,
                            const memoi_exchange_step* r) {
    const memoi_shape* shape = ring->shape;
    memo_merge_desc merge = MEMO_ZERO(memo_merge_desc);
    merge.part_out = block->out;
    merge.part_lse = block->lse;
    merge.part_type = MEMO_TYPE_F32;
    merge.out = ring->out + (block->out - ring->buffers.block_out);
    merge.lse = ring->lse + (block->lse - ring->buffers.block_lse);
    merge.n_batches = block->n_batch;
    merge.n_rows = r->n_q_rows * shape->heads.n_q;
    merge.n_columns = shape->v_head_size;
    merge.batch_stride_rows = shape->sharding.ring_tokens * shape->heads.n_q;
    memoi_target_kernel(ring->target, MEMOI_TARGET_COMPUTE, MEMO_ROW_MERGE, &merge);
}

/* LSEs of n rows in each of n_batch sequences, of rows that see nothing: -inf, which is 4 times a
 * number whose bytes are equal, and which is nearly the lowest. */
MEMOI void memoi_ring_clear_lses(const memoi_ring* ring, float* lse, int64_t n, int32_t n_batch) {
    const int64_t n_heads = ring->shape->heads.n_q;
    const int64_t stride = ring->shape->sharding.ring_tokens * n_heads;
    memoi_target* target = ring->target;
    for (int32_t b = 0; b < n_batch && !target->status; b++)
        target->status = memo_fill(target->device, target->streams[MEMOI_TARGET_COMPUTE],
                                   lse + b * stride, 0xfe, n * n_heads * 4, target->error);
    for (int k = 0; k < 2; k++)
        memoi_target_add(target, MEMOI_TARGET_COMPUTE, MEMO_TYPE_F32, lse, stride, lse, stride,
                         n * n_heads, n_batch);
}

/* Rows that see nothing in step 0, such as padding, and rows between them. */
MEMOI void memoi_ring_clear_rows(const memoi_ring* ring) {
    const memoi_shape* shape = ring->shape;
    const int64_t first = ring->plan->first_unset, n = shape->sharding.ring_tokens - first;
    const int64_t row = (int64_t)shape->heads.n_q * shape->v_head_size;
    if (!n || !shape->heads.n_q) return;
    for (int32_t b = 0; b < shape->n_batch; b++)
        memoi_target_fill(ring->target, MEMOI_TARGET_COMPUTE,
                          ring->out + (b * shape->sharding.ring_tokens + first) * row, n * row * 4);
    memoi_ring_clear_lses(ring, ring->lse + first * shape->heads.n_q, n, shape->n_batch);
}

/* Before the first step.  In backward it zeroes the gradients that steps add to. */
MEMOI void memoi_ring_begin(memoi_ring* ring) {
    const memoi_shape* shape = ring->shape;
    memoi_target_op op = memoi_target_op_on(MEMOI_TARGET_COMPUTE);
    ring->n_turns = ring->last_brought = ring->last_held = 0;
    if (!ring->is_backward) memoi_ring_clear_rows(ring);
    if (!ring->is_backward) return;
    memoi_target_fill(ring->target, MEMOI_TARGET_COMPUTE, ring->d_q,
                      memoi_ring_q_elements(shape) * 4);
    if (!shape->heads.n_q) return;
    memoi_target_touch(ring->target, &op, MEMOI_CELL_OWN_SUMS, 1);
    if (ring->plan->crosses) memoi_target_touch(ring->target, &op, MEMOI_CELL_FAR_SUMS, 1);
    memoi_target_begin(ring->target, &op);
    for (int32_t is_v = 0; is_v < 2; is_v++) {
        const int64_t n_bytes = memoi_ring_kv_elements(shape, is_v) * 4;
        memoi_target_fill(ring->target, MEMOI_TARGET_COMPUTE, ring->d_kv_final[is_v], n_bytes);
        if (ring->plan->crosses)
            memoi_target_fill(ring->target, MEMOI_TARGET_COMPUTE, ring->buffers.far_sums[is_v],
                              n_bytes);
    }
    memoi_target_end(ring->target, &op);
}

/* The messages of a sequence's pieces of k or v, one each: from their places on the owner, or to
 * where they arrive, one after another.  Returns the address behind the latter. */
MEMOI char* memoi_ring_send_pieces(const memoi_ring* ring, int stream, int tensor,
                                   const memoi_exchange_pieces* p, int is_receive, char* rows,
                                   int32_t peer) {
    memo_comm* comm = stream == MEMOI_TARGET_NODES ? ring->nodes : ring->comm;
    const int64_t row = memoi_ring_row(ring->shape, tensor);
    const int64_t row_bytes = memoi_ring_row_bytes(ring->shape, tensor);
    for (int32_t k = 0; k < p->n; k++) {
        const int64_t n = p->rows[k].end - p->rows[k].begin;
        memoi_target_message(ring->target, stream, comm, !is_receive,
                             is_receive ? rows : rows + p->rows[k].begin * row_bytes, n * row,
                             memoi_ring_type(ring->shape, tensor), peer);
        if (is_receive) rows += n * row_bytes;
    }
    return rows;
}

/* k or v of all sequences, own rows or held ones to a peer, which pieces are of; or those that come
 * from a peer. */
MEMOI void memoi_ring_send_rows(const memoi_ring* ring, int stream, int is_v, int32_t held,
                                const memoi_exchange_pieces* pieces, int32_t peer) {
    const memoi_shape* shape = ring->shape;
    char* rows = memoi_ring_held(ring, is_v, held);
    for (int32_t b = 0; b < shape->n_batch; b++)
        memoi_ring_send_pieces(
            ring, stream, is_v, pieces + (shape->n_parts > 1 ? b : 0), 0,
            rows + memoi_ring_rows_before(ring, held, b) * memoi_ring_row_bytes(shape, is_v), peer);
}
MEMOI void memoi_ring_get_rows(const memoi_ring* ring, int stream, int is_v, char* rows,
                               const memoi_exchange_pieces* pieces, int32_t peer) {
    for (int32_t b = 0; b < ring->shape->n_batch; b++)
        rows = memoi_ring_send_pieces(ring, stream, is_v,
                                      pieces + (ring->shape->n_parts > 1 ? b : 0), 1, rows, peer);
}

/* A contribution to d_k and d_v of n rows, in one message. */
MEMOI void memoi_ring_send_gradients(const memoi_ring* ring, int stream, int is_receive, int64_t n,
                                     char* rows, int32_t peer) {
    memoi_target_message(
        ring->target, stream, stream == MEMOI_TARGET_NODES ? ring->nodes : ring->comm, !is_receive,
        rows, n * memoi_ring_row(ring->shape, MEMOI_RING_D_KV), ring->shape->carried_type, peer);
}

/* Adds packed rows, contributions of readers, to the sums of held rows, or of own ones (0); pieces:
 * of each part. */
MEMOI void memoi_ring_add(memoi_ring* ring, int stream, char* packed, int64_t n_rows, int32_t held,
                          const memoi_exchange_pieces* pieces) {
    const memoi_shape* shape = ring->shape;
    const int64_t bytes = memo_type_bytes(shape->carried_type);
    memo_pack_desc pack;
    float* d_kv[2];
    int64_t n = 0;
    memoi_ring_sums(ring, held, d_kv);
    pack.packed_type = shape->carried_type;
    pack.rows_type = MEMO_TYPE_F32;
    pack.n_ranges = 0;
    pack.packed[0] = packed;
    for (int32_t t = 0; t < 2; t++) {
        pack.n_columns[t] = memoi_ring_row(shape, t);
        pack.rows[t] = d_kv[t];
    }
    pack.packed[1] = packed + n_rows * pack.n_columns[0] * bytes;

    for (int32_t b = 0; b < shape->n_batch; b++) {
        const memoi_exchange_pieces* p = &pieces[shape->n_parts > 1 ? b : 0];
        const int64_t before = memoi_ring_rows_before(ring, held, b);
        for (int32_t k = 0; k < p->n; k++) {
            pack.begins[pack.n_ranges] = before + p->rows[k].begin;
            n += p->rows[k].end - p->rows[k].begin;
            pack.ends[pack.n_ranges++] = n;
            if (pack.n_ranges < MEMO_PACK_MAX) continue;
            memoi_target_kernel(ring->target, stream, MEMO_ROW_ADD_PACKED, &pack);
            for (int32_t t = 0; t < 2; t++)
                pack.packed[t] = (char*)pack.packed[t] + n * pack.n_columns[t] * bytes;
            pack.n_ranges = 0;
            n = 0;
        }
    }
    if (n) memoi_target_kernel(ring->target, stream, MEMO_ROW_ADD_PACKED, &pack);
}

/* An exchange reads rows, or writes them. */
MEMOI void memoi_ring_access_add(memoi_ring_access* x, int is_written, const void* at,
                                 int64_t n_bytes) {
    if (is_written)
        x->writes[x->n_writes++] = memob_range_at(at, n_bytes);
    else
        x->reads[x->n_reads++] = memob_range_at(at, n_bytes);
}
/* It sends some of held rows, or own ones (0): all are announced, whichever travel. */
MEMOI void memoi_ring_access_sent(const memoi_ring* ring, memoi_ring_access* x, int32_t held,
                                  int64_t n_sent) {
    const memoi_shape* shape = ring->shape;
    const int64_t n = held ? memoi_exchange_held_of(ring->plan, held)->n_rows
                           : shape->n_batch * shape->key_sharding.ring_tokens;
    for (int is_v = 0; is_v < 2; is_v++) {
        const int64_t row_bytes = memoi_ring_row_bytes(shape, is_v);
        memoi_ring_access_add(x, 0, memoi_ring_held(ring, is_v, held), n * row_bytes);
        x->n_out += n_sent * row_bytes;
    }
}

/* What an exchange reads and writes. */
MEMOI void memoi_ring_touch_turn(memoi_ring* ring, const memoi_exchange_turn* turn,
                                 memoi_target_op* op, memoi_ring_access* x) {
    const memoi_shape* shape = ring->shape;
    const int64_t given_bytes = memoi_ring_row_bytes(shape, MEMOI_RING_D_KV);
    if (turn->reader >= 0) {
        memoi_ring_access_sent(ring, x, turn->read_of,
                               memoi_ring_read_rows(ring, turn->read_of, turn->reader));
        memoi_ring_read_held(ring, op, turn->read_of);
    }
    if (turn->k) {
        for (int is_v = 0; is_v < 2; is_v++)
            memoi_ring_access_add(x, 1, memoi_ring_keys(ring, is_v, turn->k),
                                  memoi_ring_key_rows(ring, turn->k) *
                                      memoi_ring_row_bytes(shape, is_v));
        memoi_ring_fill_room(ring, op, MEMOI_POOL_KEYS, turn->k);
    }

    /* Gradients that leave, and those that come. */
    if (turn->given) {
        const int64_t n_bytes = memoi_ring_key_rows(ring, turn->given) * given_bytes;
        memoi_ring_read_room(ring, op, MEMOI_POOL_GRADIENTS, turn->given);
        if (turn->giver != shape->ring_rank) {
            memoi_ring_access_add(x, 0, memoi_ring_contribution(ring, turn->given), n_bytes);
            x->n_out += n_bytes;
        }
    }
    if (turn->giver >= 0) memoi_ring_add_to_held(ring, op, turn->given_of);
    if (turn->giver >= 0 && turn->giver != shape->ring_rank) {
        const int64_t n_bytes =
            memoi_ring_read_rows(ring, turn->given_of, turn->giver) * given_bytes;
        memoi_ring_access_add(x, 1, memoi_ring_taken(ring), n_bytes);
        memoi_ring_fill_bytes(ring, op, MEMOI_POOL_GRADIENTS, ring->plan->taken_row * given_bytes,
                              n_bytes);
    }
}

/* The messages of an exchange within the node. */
MEMOI void memoi_ring_messages(memoi_ring* ring, const memoi_exchange_turn* turn) {
    const memo_exchange* plan = ring->plan;
    const int32_t me = ring->shape->ring_rank, per = memoi_exchange_places(plan);
    for (int is_v = 0; is_v < 2; is_v++) {
        if (turn->reader >= 0)
            memoi_ring_send_rows(ring, MEMOI_TARGET_RING, is_v, turn->read_of,
                                 memoi_ring_read_pieces(ring, turn->read_of, turn->reader),
                                 turn->reader);
        if (turn->k) {
            const int32_t owner = plan->owners[turn->k];
            const int is_near = owner / per == me / per;
            memoi_ring_get_rows(ring, MEMOI_TARGET_RING, is_v, memoi_ring_keys(ring, is_v, turn->k),
                                memoi_exchange_pieces_of(
                                    plan, is_near ? MEMOI_PIECES_READ : MEMOI_PIECES_GOT, owner, 0),
                                me / per * per + owner % per);
        }
    }
    if (turn->given && turn->giver != me)
        memoi_ring_send_gradients(ring, MEMOI_TARGET_RING, 0,
                                  memoi_ring_key_rows(ring, turn->given),
                                  memoi_ring_contribution(ring, turn->given),
                                  me / per * per + plan->owners[turn->given] % per);
    if (turn->giver >= 0 && turn->giver != me)
        memoi_ring_send_gradients(ring, MEMOI_TARGET_RING, 1,
                                  memoi_ring_read_rows(ring, turn->given_of, turn->giver),
                                  memoi_ring_taken(ring), turn->giver);
}

/* The next exchange within the node, one group of messages; a rank adds its own contribution to
 * what it holds without one. */
MEMOI void memoi_ring_exchange_near(memoi_ring* ring, const memoi_exchange_turn* turn) {
    memoi_target* target = ring->target;
    memoi_target_op op = memoi_target_op_on(MEMOI_TARGET_RING);
    memoi_ring_access x = MEMO_ZERO(memoi_ring_access);
    const int adds_own = turn->giver == ring->shape->ring_rank;
    if (turn->k) ring->last_brought = turn->k;
    memoi_ring_touch_turn(ring, turn, &op, &x);
    memoi_target_begin(target, &op);
    if (x.n_reads || x.n_writes) {
        memoi_target_group_begin(target, MEMOI_TARGET_RING, ring->comm, "ring exchange",
                                 turn->number, x.reads, x.n_reads, x.writes, x.n_writes, x.n_out);
        memoi_ring_messages(ring, turn);
        memoi_target_group_end(target, MEMOI_TARGET_RING, ring->comm);
    }

    /* What others contributed. */
    if (turn->giver >= 0)
        memoi_ring_add(ring, MEMOI_TARGET_RING,
                       adds_own ? memoi_ring_contribution(ring, turn->given)
                                : memoi_ring_taken(ring),
                       memoi_ring_read_rows(ring, turn->given_of, turn->giver), turn->given_of,
                       memoi_ring_read_pieces(ring, turn->given_of, turn->giver));
    memoi_target_end(target, &op);
}

/* Held rows come to their place, or their sum leaves. */
MEMOI void memoi_ring_touch_held(memoi_ring* ring, const memoi_exchange_turn* turn,
                                 memoi_target_op* op, memoi_ring_access* x) {
    const memoi_shape* shape = ring->shape;
    for (int i = 0; i < 2 && turn->k; i++) {
        const memoi_exchange_held* held = memoi_exchange_held_of(ring->plan, turn->k);
        const int pool = i ? MEMOI_POOL_SUMS : MEMOI_POOL_HELD;
        const int64_t row_bytes = memoi_ring_pool_row_bytes(ring, pool);
        memoi_ring_access_add(x, 1, memoi_ring_held(ring, i, turn->k),
                              held->n_rows * memoi_ring_row_bytes(shape, i));
        if (!i || ring->is_backward)
            memoi_ring_fill_bytes(ring, op, pool, held->row * row_bytes, held->n_rows * row_bytes);
    }

    /* Rows and sums that leave, and sums that come. */
    if (turn->reader >= 0) {
        memoi_ring_read_held(ring, op, 0);
        memoi_ring_access_sent(ring, x, 0, ring->plan->crossing_rows[turn->reader]);
    }
    if (turn->given) {
        const memoi_exchange_held* held = memoi_exchange_held_of(ring->plan, turn->given);
        const int64_t n_bytes = held->n_rows * memoi_ring_row_bytes(shape, MEMOI_RING_D_KV);
        float* d_kv[2];
        memoi_ring_sums(ring, turn->given, d_kv);
        memoi_ring_touch_room(ring, op, MEMOI_POOL_SUMS, held->row, 0);
        memoi_ring_access_add(
            x, 0, ring->buffers.sums_given ? ring->buffers.sums_given : (char*)d_kv[0], n_bytes);
        x->n_out += n_bytes;
    }
    if (turn->giver >= 0) {
        memoi_target_touch(ring->target, op, MEMOI_CELL_FAR_SUMS, 1);
        memoi_ring_access_add(x, 1, ring->buffers.sums_taken,
                              ring->plan->crossing_rows[turn->giver] *
                                  memoi_ring_row_bytes(shape, MEMOI_RING_D_KV));
    }
}

/* The next exchange between nodes. */
MEMOI void memoi_ring_exchange_far(memoi_ring* ring, const memoi_exchange_turn* turn) {
    const memo_exchange* plan = ring->plan;
    const int32_t n_parts = ring->shape->n_parts, per = memoi_exchange_places(plan);
    const int64_t row = memoi_ring_row(ring->shape, MEMOI_RING_D_KV);
    const int stream = MEMOI_TARGET_NODES;
    memoi_target* target = ring->target;
    memoi_target_op op = memoi_target_op_on(stream);
    memoi_ring_access x = MEMO_ZERO(memoi_ring_access);
    const memoi_exchange_held* comes = turn->k ? memoi_exchange_held_of(plan, turn->k) : NULL;
    const memoi_exchange_held* leaves =
        turn->given ? memoi_exchange_held_of(plan, turn->given) : NULL;
    char* sums = ring->buffers.sums_given;
    float* d_kv[2];
    if (turn->k) ring->last_held = turn->k;
    memoi_ring_touch_held(ring, turn, &op, &x);
    memoi_target_begin(target, &op);
    if (leaves) {
        memoi_ring_sums(ring, turn->given, d_kv);
        if (sums)
            memoi_target_cast(target, stream, sums, ring->shape->carried_type, d_kv[0],
                              leaves->n_rows * row);
        else
            sums = (char*)d_kv[0];
    }

    memoi_target_group_begin(target, stream, ring->nodes, "node exchange", turn->number, x.reads,
                             x.n_reads, x.writes, x.n_writes, x.n_out);
    for (int is_v = 0; is_v < 2; is_v++) {
        if (turn->reader >= 0)
            memoi_ring_send_rows(ring, stream, is_v, 0, plan->crossing + turn->reader * n_parts,
                                 turn->reader);
        if (comes)
            memoi_ring_get_rows(ring, stream, is_v, memoi_ring_held(ring, is_v, turn->k),
                                memoi_exchange_whole_of(plan, turn->k), comes->owner / per);
    }
    if (leaves)
        memoi_ring_send_gradients(ring, stream, 0, leaves->n_rows, sums, leaves->owner / per);
    if (turn->giver >= 0)
        memoi_ring_send_gradients(ring, stream, 1, plan->crossing_rows[turn->giver],
                                  ring->buffers.sums_taken, turn->giver);
    memoi_target_group_end(target, stream, ring->nodes);

    if (comes && ring->is_backward) {
        memoi_ring_sums(ring, turn->k, d_kv);
        memoi_target_fill(target, stream, d_kv[0], comes->n_rows * row * 4);
    }
    if (turn->giver >= 0)
        memoi_ring_add(ring, stream, ring->buffers.sums_taken, plan->crossing_rows[turn->giver],
                       MEMOI_RING_FAR, plan->crossing + turn->giver * n_parts);
    memoi_target_end(target, &op);
}

/* Before the first block of step s.  The rows of a contribution go back as they came, in
 * carried_type: then the steps' own sums are of the compute stream alone. */
MEMOI void memoi_ring_step_begin(memoi_ring* ring, int32_t s, memoi_target_op* op) {
    const int is_apart = ring->is_backward && memoi_ring_step_is_apart(ring, s);
    memoi_target* target = ring->target;
    float* d_kv[2];
    const int32_t held = s > 0 ? ring->plan->held_of[s] : 0;
    MEMO_ASSERT(held ? held <= ring->last_held : s <= ring->last_brought); /* 1 */
    memoi_target_touch(target, op, ring->heads_cell, 0);
    if (s > 0 && !held)
        memoi_ring_read_room(ring, op, MEMOI_POOL_KEYS, s);
    else
        memoi_ring_read_held(ring, op, held);
    if (ring->is_backward && !is_apart) memoi_target_touch(target, op, MEMOI_CELL_OWN_SUMS, 1);
    if (is_apart && !ring->buffers.d_kv_step)
        memoi_ring_fill_room(ring, op, MEMOI_POOL_GRADIENTS, s ? s : ring->last_step + 1);
    memoi_target_begin(target, op);
    if (!is_apart) return;
    memoi_ring_d_kv(ring, s, d_kv);
    memoi_target_fill(target, MEMOI_TARGET_COMPUTE, d_kv[0],
                      memoi_ring_key_rows(ring, s) * memoi_ring_row(ring->shape, MEMOI_RING_D_KV) *
                          4);
}

MEMOI void memoi_ring_step(memoi_ring* ring, int32_t s) {
    const memoi_shape* shape = ring->shape;
    memoi_target* target = ring->target;
    memoi_target_op op = memoi_target_op_on(MEMOI_TARGET_COMPUTE);
    int has_worked = 0;
    for (int32_t mask = 0; mask < shape->n_parts * ring->plan->n_levels; mask++) {
        const memoi_exchange_step* step = memoi_ring_step_of(ring, s, mask);
        memo_attention_block block;
        if (!step->seen.segments.n) continue;
        if (!has_worked) memoi_ring_step_begin(ring, s, &op);
        has_worked = 1;
        block = memoi_ring_block(ring, mask, step, s);
        if (memoi_ring_merges(ring, mask, s) && step->seen.n_rows < step->n_q_rows)
            memoi_ring_clear_lses(ring, block.lse, step->n_q_rows, block.n_batch);
        memoi_ring_attend(ring, &block, step);
        if (memoi_ring_merges(ring, mask, s)) memoi_ring_merge(ring, &block, step);
    }
    if (has_worked) memoi_target_end(target, &op);

    /* A contribution that was computed elsewhere. */
    if (s > 0 && ring->is_backward && ring->buffers.d_kv_step && has_worked) {
        op = memoi_target_op_on(MEMOI_TARGET_COMPUTE);
        memoi_ring_fill_room(ring, &op, MEMOI_POOL_GRADIENTS, s);
        memoi_target_begin(target, &op);
        memoi_target_cast(target, MEMOI_TARGET_COMPUTE, memoi_ring_contribution(ring, s),
                          shape->carried_type, ring->buffers.d_kv_step,
                          memoi_ring_key_rows(ring, s) * memoi_ring_row(shape, MEMOI_RING_D_KV));
        memoi_target_end(target, &op);
    }
}

/* The exchanges that may begin behind step s; 0: from the start.  Before the first part of own keys
 * those that add no contribution: what is enqueued later may wait for that part. */
MEMOI void memoi_ring_exchange_behind(memoi_ring* ring, int32_t s) {
    const memo_exchange* plan = ring->plan;
    while (ring->n_turns < plan->n_turns[ring->is_backward]) {
        const memoi_exchange_turn* turn = &plan->turns[ring->is_backward][ring->n_turns];
        const int is_far = turn->number % MEMOI_N_LINKS == MEMOI_LINK_NODES;
        if (turn->gate > memob_max(s, 0)) break;
        if (s == MEMOI_RING_OWN_FIRST && turn->giver >= 0 && !is_far) break;
        ring->n_turns++;
        (is_far ? memoi_ring_exchange_far : memoi_ring_exchange_near)(ring, turn);
    }
}

/* Adds to the gradients of own keys: the own contribution, or those of other nodes. */
MEMOI void memoi_ring_add_sums(memoi_ring* ring, float* const d_kv[2], int is_far) {
    memoi_target_op op = memoi_target_op_on(MEMOI_TARGET_COMPUTE);
    const int64_t n_own = ring->shape->n_batch * ring->shape->key_sharding.ring_tokens;
    memoi_target_touch(ring->target, &op, MEMOI_CELL_OWN_SUMS, 1);
    if (is_far)
        memoi_target_touch(ring->target, &op, MEMOI_CELL_FAR_SUMS, 0);
    else if (!ring->buffers.d_kv_step)
        memoi_ring_read_room(ring, &op, MEMOI_POOL_GRADIENTS, ring->last_step + 1);
    memoi_target_begin(ring->target, &op);
    for (int32_t is_v = 0; is_v < 2; is_v++)
        memoi_target_add(ring->target, MEMOI_TARGET_COMPUTE, MEMO_TYPE_F32, ring->d_kv_final[is_v],
                         0, d_kv[is_v], 0, n_own * memoi_ring_row(ring->shape, is_v), 1);
    memoi_target_end(ring->target, &op);
}

/* All steps.  A backward begins with a part of step 0, the rank's own keys, while the first keys
 * arrive, and ends with the rest, behind which the last contributions return. */
MEMOI void memoi_ring_run(memoi_ring* ring) {
    const int32_t n = ring->last_step + 1, is_backward = ring->is_backward;
    float* d_kv[2];
    memoi_ring_begin(ring);
    if (!ring->shape->heads.n_q) return;
    if (is_backward && ring->plan->splits_own) {
        memoi_ring_exchange_behind(ring, MEMOI_RING_OWN_FIRST);
        memoi_ring_step(ring, MEMOI_RING_OWN_FIRST);
    }
    memoi_ring_exchange_behind(ring, 0);
    for (int32_t i = 0; i < n; i++) {
        const int32_t s = (i + is_backward) % n;
        memoi_ring_step(ring, s);
        if (!s) continue;
        memoi_ring_exchange_behind(ring, s);
    }

    /* All contributions of others are there. */
    if (!is_backward) return;
    if (memoi_ring_is_apart(ring)) {
        memoi_ring_d_kv(ring, 0, d_kv);
        memoi_ring_add_sums(ring, d_kv, 0);
    }
    if (ring->plan->crosses) memoi_ring_add_sums(ring, ring->buffers.far_sums, 1);
}
