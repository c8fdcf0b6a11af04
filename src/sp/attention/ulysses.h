#pragma once
#include "sp/shardings.h"
#include "sp/target.h"
#include "sp/attention/shape.h"
/* ---- >>ulysses exchange -------------------------------------------------------------------------
 * Knows: the heads and rows of a rank and of its ulysses group.  Knows nothing of positions, masks
 * or attention.
 *
 * 1. Rows are packed for the heads that peers need, no more: staging has room for these.
 * 2. Heads that arrive by rows are all placed. */

/* A tensor to exchange: in each row n elements per head. */
typedef struct memoi_exchanged {
    const char* name;
    int32_t is_kv;
    int64_t n;
    memo_type type;
} memoi_exchanged;

typedef struct memoi_heads {
    int64_t first, n;
} memoi_heads;

MEMOI MEMOB_NOINLINE memoi_heads memoi_ulysses_heads_for(const memoi_shape* shape, int32_t is_kv,
                                                         int32_t rank) {
    memo_ulysses_heads both = memoi_shape_heads_of(shape, rank);
    memoi_heads heads;
    heads.first = is_kv ? both.first_kv : both.first_q;
    heads.n = is_kv ? both.n_kv : both.n_q;
    return heads;
}

/* The heads that all ranks need together; more than exist if some are replicated. */
MEMOI int64_t memoi_ulysses_heads_needed(const memoi_shape* shape, int32_t is_kv) {
    int64_t n = 0;
    for (int32_t p = 0; p < shape->sharding.ulysses; p++)
        n += memoi_ulysses_heads_for(shape, is_kv, p).n;
    return n;
}

typedef struct memoi_ulysses {
    const memoi_shape* shape;
    memoi_target* target;
    int stream; /* of the target */
    memo_comm* comm;
    char* staging; /* holds all heads needed, of all local rows */
} memoi_ulysses;

/* One exchange. */
typedef struct memoi_ulysses_move {
    const memoi_shape* shape;
    const memoi_exchanged* x;
    int32_t degree, me;
    int64_t n_heads, n_needed; /* all; that all ranks need together */
    memoi_heads own;
    int64_t unit;                 /* bytes of a head in a row */
    int64_t n_local, n_rows;      /* rows of this rank: of a sequence, of the batch */
    int64_t slice_rows, n_pieces; /* slices of a sequence; of the batch */
    int64_t ring_tokens;          /* rows by heads, of a sequence */
    int64_t row_bytes, own_bytes; /* of a row with all heads, with the own heads */
    /* Bytes that this rank sends: what the peers need, or its heads to all peers. */
    int64_t to_heads_bytes, to_rows_bytes;
} memoi_ulysses_move;

MEMOI memoi_ulysses_move memoi_ulysses_measure(const memoi_shape* shape, const memoi_exchanged* x) {
    memoi_ulysses_move m;
    m.shape = shape;
    m.x = x;
    m.degree = shape->sharding.ulysses;
    m.me = shape->ulysses_rank;
    m.n_heads = x->is_kv ? shape->n_kv_heads : shape->n_q_heads;
    m.n_needed = memoi_ulysses_heads_needed(shape, x->is_kv);
    m.own = memoi_ulysses_heads_for(shape, x->is_kv, m.me);
    m.unit = x->n * memo_type_bytes(x->type);
    m.n_local = memoi_shape_sharding(shape, x->is_kv)->local_tokens;
    m.n_rows = shape->n_batch * m.n_local;
    m.slice_rows = memoi_sharding_slice_rows(memoi_shape_sharding(shape, x->is_kv));
    m.n_pieces = shape->n_batch * ((m.n_local - 1) / m.slice_rows + 1);
    m.ring_tokens = memoi_shape_sharding(shape, x->is_kv)->ring_tokens;
    m.row_bytes = m.n_heads * m.unit;
    m.own_bytes = m.own.n * m.unit;
    m.to_heads_bytes = (m.n_needed - m.own.n) * m.unit * m.n_rows;
    m.to_rows_bytes = m.own_bytes * m.n_rows * (m.degree - 1);
    return m;
}

/* Piece i: consecutive rows of every rank of the group, which follow each other by heads. */
typedef struct memoi_ulysses_piece {
    int64_t row, heads_row, n; /* first rows; heads_row: of rank 0 */
} memoi_ulysses_piece;

MEMOI memoi_ulysses_piece memoi_ulysses_piece_of(const memoi_ulysses_move* m, int64_t i) {
    const int64_t n_slices = m->n_pieces / m->shape->n_batch, b = i / n_slices;
    const int64_t first = i % n_slices * m->slice_rows;
    const memoi_ulysses_piece piece = {b * m->n_local + first,
                                       b * m->ring_tokens + first * m->degree,
                                       memob_min(m->slice_rows, m->n_local - first)};
    return piece;
}

/* The peer to send to in a step; the one to receive from, if step is negative.  In step k every
 * rank sends to another one, so that no rank is everyone's first. */
MEMOI int32_t memoi_ulysses_peer(const memoi_ulysses_move* m, int32_t step) {
    return (m->me + step + m->degree) % m->degree;
}
MEMOI memoi_heads memoi_ulysses_peer_heads(const memoi_ulysses_move* m, int32_t step) {
    return memoi_ulysses_heads_for(m->shape, m->x->is_kv, memoi_ulysses_peer(m, step));
}

/* Rows to heads, first part: what the peers need goes to staging, what this rank needs to its
 * place.  A peer that needs all heads is sent whole rows, unpacked.  Returns the bytes of staging
 * used. */
MEMOI int64_t memoi_ulysses_pack(const memoi_ulysses* u, const memoi_ulysses_move* m,
                                 const char* from, char* to) {
    int64_t staged = 0;
    for (int32_t step = 1; step < m->degree; step++) {
        const memoi_heads peer = memoi_ulysses_peer_heads(m, step);
        const int64_t bytes = peer.n * m->unit;
        if (peer.n == m->n_heads) continue;
        memoi_target_copy_rows(u->target, u->stream, u->staging + staged, bytes,
                               from + peer.first * m->unit, m->row_bytes, bytes, m->n_rows);
        staged += bytes * m->n_rows;
    }
    MEMO_ASSERT(staged <= m->to_heads_bytes); /* 1 */
    for (int64_t i = 0; i < m->n_pieces; i++) {
        const memoi_ulysses_piece p = memoi_ulysses_piece_of(m, i);
        memoi_target_copy_rows(
            u->target, u->stream, to + (p.heads_row + m->me * p.n) * m->own_bytes, m->own_bytes,
            from + p.row * m->row_bytes + m->own.first * m->unit, m->row_bytes, m->own_bytes, p.n);
    }
    return staged;
}

/* The messages between the side by heads, in place, and rows of the peers' heads, which are packed;
 * whole, if not NULL, holds the rows of a peer that has all heads. */
MEMOI void memoi_ulysses_exchange(const memoi_ulysses* u, const memoi_ulysses_move* m, int to_heads,
                                  const char* heads, const char* packed, const char* whole) {
    for (int32_t step = 1; step < m->degree; step++) {
        const int32_t rows_step = to_heads ? step : -step;
        const int32_t heads_rank = memoi_ulysses_peer(m, -rows_step);
        const memoi_heads peer = memoi_ulysses_peer_heads(m, rows_step);
        const int is_whole = whole && peer.n == m->n_heads;
        const char* rows = is_whole ? whole : packed;
        for (int64_t i = 0; i < m->n_pieces; i++) {
            const memoi_ulysses_piece p = memoi_ulysses_piece_of(m, i);
            memoi_target_message(u->target, u->stream, u->comm, to_heads,
                                 rows + p.row * peer.n * m->unit, p.n * peer.n * m->x->n,
                                 m->x->type, memoi_ulysses_peer(m, rows_step));
            memoi_target_message(u->target, u->stream, u->comm, !to_heads,
                                 heads + (p.heads_row + heads_rank * p.n) * m->own_bytes,
                                 p.n * m->own.n * m->x->n, m->x->type, heads_rank);
        }
        if (!is_whole) packed += peer.n * m->unit * m->n_rows;
    }
    memoi_target_group_end(u->target, u->stream, u->comm);
}

/* from (n_batch, local_tokens, all heads, n) -> to (n_batch, ring_tokens, own heads, n) */
MEMOI void memoi_ulysses_to_heads(const memoi_ulysses* u, const memoi_exchanged* x,
                                  const void* from, void* to) {
    const memoi_ulysses_move m = memoi_ulysses_measure(u->shape, x);
    memo_range reads[2], write;
    if (!m.n_needed || !x->n) return; /* on no rank */
    reads[0] = memob_range_at(from, m.n_rows * m.row_bytes);
    reads[1] = memob_range_at(u->staging, memoi_ulysses_pack(u, &m, (const char*)from, (char*)to));
    write = memob_range_at(to, m.shape->n_batch * m.ring_tokens * m.own_bytes);
    memoi_target_group_begin(u->target, u->stream, u->comm, x->name, -1, reads, 2, &write, 1,
                             m.to_heads_bytes);
    memoi_ulysses_exchange(u, &m, 1, (const char*)to, u->staging, (const char*)from);
}

/* Puts rows of some heads to their place in to; with sums, adds the rows there. */
MEMOI void memoi_ulysses_place(const memoi_ulysses* u, const memoi_ulysses_move* m, char* to,
                               float* sums, int64_t first_row, memoi_heads heads, const char* rows,
                               int64_t n_rows) {
    const int64_t at = (first_row * m->n_heads + heads.first) * m->x->n, n = heads.n * m->x->n;
    if (sums)
        memoi_target_add(u->target, u->stream, MEMO_TYPE_F32, sums + at, m->n_heads * m->x->n, rows,
                         n, n, n_rows);
    else
        memoi_target_copy_rows(u->target, u->stream, to + at * memo_type_bytes(m->x->type),
                               m->row_bytes, rows, heads.n * m->unit, heads.n * m->unit, n_rows);
}

/* from (n_batch, ring_tokens, own heads, n) -> to (n_batch, local_tokens, all heads, n).  With sums
 * (fp32, shaped as to), to is not used: replicas of a head are added up in sums, which the first
 * group clears.  The heads of the peers arrive in staging. */
MEMOI void memoi_ulysses_to_rows(const memoi_ulysses* u, const memoi_exchanged* x,
                                 const void* from_heads, void* to_rows, float* sums) {
    const memoi_ulysses_move m = memoi_ulysses_measure(u->shape, x);
    const char *from = (const char*)from_heads, *packed = u->staging;
    char* to = (char*)to_rows;
    memo_range read = memob_range_at(from, m.shape->n_batch * m.ring_tokens * m.own_bytes);
    memo_range write = memob_range_at(packed, (m.n_needed - m.own.n) * m.unit * m.n_rows);
    if (m.n_needed && x->n) { /* on any rank */
        memoi_target_group_begin(u->target, u->stream, u->comm, x->name, -1, &read, 1, &write, 1,
                                 m.to_rows_bytes);
        memoi_ulysses_exchange(u, &m, 0, from, packed, NULL);
    }
    if (sums && !u->shape->group)
        memoi_target_fill(u->target, u->stream, sums, m.n_rows * m.row_bytes);

    /* The own heads, then those of each peer. */
    for (int64_t i = 0; i < m.n_pieces; i++) {
        const memoi_ulysses_piece p = memoi_ulysses_piece_of(&m, i);
        memoi_ulysses_place(u, &m, to, sums, p.row, m.own,
                            from + (p.heads_row + m.me * p.n) * m.own_bytes, p.n);
    }
    for (int32_t step = 1; step < m.degree; step++) {
        const memoi_heads peer = memoi_ulysses_peer_heads(&m, -step);
        memoi_ulysses_place(u, &m, to, sums, 0, peer, packed, m.n_rows);
        packed += peer.n * m.unit * m.n_rows;
    }
    MEMO_ASSERT(packed == u->staging + (m.n_needed - m.own.n) * m.unit * m.n_rows); /* 2 */
}
