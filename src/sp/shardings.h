#pragma once
#include "sp/comm.h"
#include "sp/attention/segments.h"
/* ---- >>shardings --------------------------------------------------------------------------------
 * Knows: positions, ranks, rows, and how many keys queries see.  Knows nothing of attention,
 * streams or devices.
 *
 * 1. Parts of documents never take more rows than a rank has.
 * 2. Pieces of documents and of padding fill the rows of all ranks.
 * 3. No run is empty. */

MEMOI const char* memoi_sharding_name(memo_sharding_kind kind) {
    static const char* const names[] = {"zigzag", "plain", "documents"};
    MEMOB_TABLE_OF(MEMO_N_SHARDING_KINDS, names);
    return MEMOI_NAME(names, kind, "no sharding");
}

/* The runs of a rank must fit 31 bits, and those of all ranks 63. */
#define MEMOI_DOCUMENTS_MAX (INT32_MAX / 4)

/* name: "memo_mask_desc.document_begins"; n_tokens -1: they end anywhere. */
MEMOI memo_status memoi_sharding_check_documents(const char* name, const int64_t* begins,
                                                 int64_t n_documents, int64_t n_tokens,
                                                 memo_error* error) {
    int is_valid = begins && n_documents >= 1 && n_documents <= MEMOI_DOCUMENTS_MAX && !begins[0] &&
                   (n_tokens < 0 || begins[n_documents] == n_tokens);
    for (int64_t i = 0; is_valid && i < n_documents; i++) is_valid = begins[i] <= begins[i + 1];
    if (is_valid) return MEMO_STATUS_OK;
    return MEMOI_REFUSE("%s, n_documents: invalid (%lld documents); 1 to %d that ascend from 0 to "
                        "the sharding's n_tokens (%lld) are valid",
                        name, (long long)n_documents, MEMOI_DOCUMENTS_MAX, (long long)n_tokens);
}

/* The parent of i is i - 1 or one of its ancestors.  NULL is valid. */
MEMOI memo_status memoi_sharding_check_parents(const char* name, const int64_t* parents,
                                               int64_t n_documents, memo_error* error) {
    for (int64_t i = 0; i < n_documents && parents; i++) {
        int64_t at = i - 1, depth = 0;
        while (at > parents[i] && at >= 0) at = parents[at];
        if (at != parents[i])
            return MEMOI_REFUSE("%s[%lld]: %lld; -1, the document before, or one of that one's "
                                "ancestors is valid (preorder)",
                                name, (long long)i, (long long)parents[i]);
        for (; at >= 0; depth++) at = parents[at];
        if (depth > MEMO_TREE_DEPTH_MAX)
            return MEMOI_REFUSE("%s[%lld]: %lld ancestors; at most %d are valid", name,
                                (long long)i, (long long)depth, MEMO_TREE_DEPTH_MAX);
    }
    return MEMO_STATUS_OK;
}

/* Tokens of the ancestors of a document. */
MEMOI int64_t memoi_sharding_prefix(const memo_sharding* sharding, int64_t document) {
    const int64_t *begins = sharding->document_begins, *parents = sharding->document_parents;
    int64_t n = 0;
    while (parents && parents[document] >= 0) {
        document = parents[document];
        n += begins[document + 1] - begins[document];
    }
    return n;
}

MEMOI memo_status memoi_sharding_check_capacity(const memo_sharding* sharding, memo_error* error) {
    const int has_documents = sharding->kind == MEMO_SHARDING_DOCUMENTS;
    if (sharding->capacity && sharding->capacity < sharding->n_tokens)
        return MEMOI_REFUSE("memo_sharding_desc.capacity: below n_tokens (%lld, %lld); as many, "
                            "more, or 0 is valid",
                            (long long)sharding->capacity, (long long)sharding->n_tokens);
    return MEMOI_INTEGER("memo_sharding_desc", sharding, capacity, 0,
                         has_documents ? MEMOB_BYTES_MAX / 2 : 0);
}

/* Segments of queries of the sequence, each level ascending. */
MEMOI memo_status memoi_sharding_check_segments(const memo_sharding_desc* desc, memo_error* error) {
    const memo_segment* list = desc->segments;
    const int has_documents = desc->kind == MEMO_SHARDING_DOCUMENTS;
    int is_valid = desc->n_segments >= 0 && (!desc->n_segments || (list && has_documents));
    for (int64_t i = 0; is_valid && i < desc->n_segments; i++) {
        const memo_segment* x = &list[i];
        const int follows = i && x[-1].level == x->level;
        is_valid = x->q_begin >= (follows ? x[-1].q_end : 0) && x->q_end > x->q_begin &&
                   x->q_end <= desc->n_tokens && x->level >= (i ? x[-1].level : 0) &&
                   x->level < MEMO_LEVELS_MAX && (uint32_t)x->type < MEMO_N_SEGMENT_TYPES;
        is_valid = is_valid && x->k_begin >= 0 && x->k_end > x->k_begin &&
                   x->k_end <= MEMOB_BYTES_MAX / 2 &&
                   (x->type == MEMO_SEGMENT_FULL || x->k_end - x->k_begin >= x->q_end - x->q_begin);
    }
    if (is_valid) return MEMO_STATUS_OK;
    return MEMOI_REFUSE(
        "memo_sharding_desc.segments, n_segments: invalid (%lld segments); those of "
        "a memo_mask of n_tokens queries (%lld) are valid, in the sharding "
        "documents",
        (long long)desc->n_segments, (long long)desc->n_tokens);
}

/* All but the pieces of documents, from the fields that a desc has. */
MEMOI memo_status memoi_sharding_measure(memo_sharding* sharding, memo_error* error) {
    static const char name[] = "memo_sharding_desc";
    const int has_documents = sharding->kind == MEMO_SHARDING_DOCUMENTS;
    int64_t unit;
    if (MEMOI_INTEGER(name, sharding, kind, 0, MEMO_N_SHARDING_KINDS - 1) ||
        MEMOI_INTEGER(name, sharding, ring, 0, has_documents ? 1 << 16 : INT32_MAX) ||
        MEMOI_INTEGER(name, sharding, ulysses, 0, INT32_MAX) ||
        MEMOI_INTEGER(name, sharding, n_tokens, 1, MEMOB_BYTES_MAX / 2) ||
        memoi_sharding_check_capacity(sharding, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (!sharding->ring) sharding->ring = 1;
    if (!sharding->ulysses) sharding->ulysses = 1;

    /* Documents belong to one kind, which needs them. */
    if (!has_documents && (sharding->document_begins || sharding->document_parents))
        return MEMOI_REFUSE(
            "memo_sharding_desc.document_begins, document_parents: not used by the "
            "sharding %s; use MEMO_SHARDING_DOCUMENTS, or pass the documents in the "
            "mask",
            memoi_sharding_name(sharding->kind));
    if (!has_documents) sharding->n_documents = 0;
    if (has_documents &&
        (memoi_sharding_check_documents("memo_sharding_desc.document_begins",
                                        sharding->document_begins, sharding->n_documents,
                                        sharding->n_tokens, error) ||
         memoi_sharding_check_parents("memo_sharding_desc.document_parents",
                                      sharding->document_parents, sharding->n_documents, error)))
        return MEMO_STATUS_INVALID_ARGUMENT;

    /* Equal shares.  Zigzag cuts the rows of a ring rank in two, so their number must be even. */
    unit = (int64_t)sharding->ring * sharding->ulysses;
    if (sharding->kind == MEMO_SHARDING_ZIGZAG && sharding->ulysses % 2) unit *= 2;
    if (sharding->slice_tokens < 0 || sharding->slice_tokens % unit ||
        (sharding->slice_tokens && has_documents))
        return MEMOI_REFUSE("memo_sharding_desc.slice_tokens: %lld in the sharding %s; multiples "
                            "of %lld work, in the shardings zigzag and plain",
                            (long long)sharding->slice_tokens, memoi_sharding_name(sharding->kind),
                            (long long)unit);
    if (unit > INT32_MAX)
        return MEMOI_REFUSE(
            "memo_sharding_desc: ring %d x ulysses %d are too many ranks; at most %d are valid",
            (int)sharding->ring, (int)sharding->ulysses, INT32_MAX / 2);
    sharding->padded_tokens =
        (memob_max(sharding->n_tokens, sharding->capacity) + unit - 1) / unit * unit;
    sharding->local_tokens = sharding->padded_tokens / sharding->ring / sharding->ulysses;
    sharding->ring_tokens = sharding->local_tokens * sharding->ulysses;
    return MEMO_STATUS_OK;
}

/* --- slices --- */

/* Rows of a rank in each slice but the last. */
MEMOI int64_t memoi_sharding_slice_rows(const memo_sharding* sharding) {
    return sharding->slice_tokens ? sharding->slice_tokens / sharding->ring / sharding->ulysses
                                  : sharding->local_tokens;
}

MEMOI void memoi_sharding_cut(memo_sharding* sharding, int64_t n_tokens, int64_t local_tokens) {
    sharding->n_tokens = n_tokens;
    sharding->local_tokens = local_tokens;
    sharding->ring_tokens = local_tokens * sharding->ulysses;
    sharding->padded_tokens = sharding->ring_tokens * sharding->ring;
}

void memo_sharding_slice(const memo_sharding* sharding, int64_t k, memo_sharding* slice,
                         memo_sharding* so_far) {
    if (!sharding || !slice || !so_far) return;
    const int64_t each = sharding->slice_tokens ? sharding->slice_tokens : sharding->n_tokens;
    const int64_t rows = memoi_sharding_slice_rows(sharding), first = k * each;
    const int is_last = k == (sharding->n_tokens - 1) / each;
    const int64_t n = is_last ? sharding->n_tokens - first : each;
    const int64_t n_rows = is_last ? sharding->local_tokens - k * rows : rows;
    *slice = *so_far = *sharding;
    slice->slice_tokens = 0;
    memoi_sharding_cut(slice, n, n_rows);
    memoi_sharding_cut(so_far, first + n, k * rows + n_rows);
}

/* --- the sharding of documents --- */

/* The last of n ascending numbers, `stride` apart in memory, that is at most `at`; the first one if
 * none is. */
MEMOI int64_t memoi_sharding_search(const int64_t* numbers, int64_t stride, int64_t n, int64_t at) {
    int64_t low = 0, high = n; /* the number is one of [low, high) */
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (numbers[middle * stride] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The begin of the document that contains position; its end follows.  Empty documents contain
 * nothing. */
MEMOI const int64_t* memoi_sharding_document_of(const int64_t* begins, int64_t n_documents,
                                                int64_t position) {
    return begins + memoi_sharding_search(begins, 1, n_documents, position);
}

/* Positions of a document, behind n_before others that are elsewhere, its ancestors included. */
typedef struct memoi_spread_part {
    int64_t begin, end, n_before;
} memoi_spread_part;

typedef struct memoi_spread_piece {
    int64_t begin, count, rank;
} memoi_spread_piece;

typedef struct memoi_spread {
    memo_sharding* sharding;
    memob_arrays arrays;
    int64_t* n_free; /* (ring): rows; differ by at most 1 within a group of ranks */
    memoi_spread_part* halves[2];
    memoi_spread_piece* pieces; /* freed apart */
    int64_t n_pieces, capacity;
    double most_apart; /* scores of a rank of both halves of a group */
    /* What queries see, or no levels, which begin at first[i] and end at first[n_levels];
     * before[i]: scores of all segments before i. */
    const memo_segment* segments;
    int64_t first[MEMO_LEVELS_MAX + 1];
    int32_t n_levels;
    double* before;
} memoi_spread;

/* The scores of a segment's first n queries: their keys grow, stay or shrink by one each. */
MEMOI double memoi_spread_segment(const memo_segment* segment, int64_t n) {
    int64_t first, first_end, last, last_end;
    memo_segment_keys(segment, segment->q_begin, &first, &first_end);
    memo_segment_keys(segment, segment->q_begin + n - 1, &last, &last_end);
    return n > 0 ? (double)n * (double)(first_end - first + last_end - last) / 2 : 0;
}

/* The scores of all queries before a position.  Segments of a level ascend. */
MEMOI double memoi_spread_up_to(const memoi_spread* s, int64_t position) {
    double scores = 0;
    for (int32_t level = 0; level < s->n_levels; level++) {
        const int64_t first = s->first[level];
        const int64_t i =
            first + memoi_sharding_search(&s->segments[first].q_begin, sizeof *s->segments / 8,
                                          s->first[level + 1] - first, position);
        const memo_segment* at = &s->segments[i];
        scores += s->before[i] - s->before[first] +
                  memoi_spread_segment(at, memob_min(position, at->q_end) - at->q_begin);
    }
    return scores;
}

/* The scores of n positions of a part from its position `at` on; causal ones without segments. */
MEMOI double memoi_spread_scores_of(const memoi_spread* s, const memoi_spread_part* part,
                                    int64_t at, int64_t n) {
    if (s->n_levels) return memoi_spread_up_to(s, at + n) - memoi_spread_up_to(s, at);
    return (double)n * ((double)(part->n_before + at - part->begin) + ((double)n + 1) / 2);
}
MEMOI double memoi_spread_scores(const memoi_spread* s, const memoi_spread_part* part) {
    return memoi_spread_scores_of(s, part, part->begin, part->end - part->begin);
}

MEMOI void memoi_spread_add(memoi_spread* s, int64_t begin, int64_t count, int64_t rank) {
    const memoi_spread_piece piece = {begin, count, rank};
    if (count && !memob_reserve(&s->pieces, &s->capacity, s->n_pieces + 1, sizeof piece))
        s->arrays.failed = 1;
    if (count && !s->arrays.failed) s->pieces[s->n_pieces++] = piece;
}

/* The scores of `count` positions of a part, n from its begin and the others from its end, without
 * those that so many positions have in the mean. */
MEMOI double memoi_spread_excess(const memoi_spread* s, const memoi_spread_part* part,
                                 int64_t count, int64_t n) {
    return memoi_spread_scores_of(s, part, part->begin, n) +
           memoi_spread_scores_of(s, part, part->end - (count - n), count - n) -
           memoi_spread_scores(s, part) * (double)count / (double)(part->end - part->begin);
}

/* How many of `count` positions a rank gets from the begin of a part: half of them, unless others
 * have more nearly the mean. */
MEMOI int64_t memoi_spread_first(const memoi_spread* s, const memoi_spread_part* part,
                                 int64_t count, int64_t half) {
    const double excess = count ? memoi_spread_excess(s, part, count, half) : 0;
    const int64_t ends[2] = {0, count};
    int64_t best = half;
    double least = fabs(excess);
    if (least <= s->most_apart / 32) return half;
    for (int i = 0; i < 2; i++) {
        const double at_end = memoi_spread_excess(s, part, count, ends[i]);
        int64_t same = half, other = ends[i]; /* as the sign of the excess */
        if ((at_end < 0) == (excess < 0)) {
            if (fabs(at_end) < least) best = ends[i];
            least = fmin(least, fabs(at_end));
            continue;
        }
        while (other - same > 1 || same - other > 1) {
            const int64_t middle = (same + other) / 2;
            const double here = memoi_spread_excess(s, part, count, middle);
            *((here < 0) == (excess < 0) ? &same : &other) = middle;
        }
        return same;
    }
    return best;
}

/* Cuts a part zigzag over n ranks.  Ranks with more free rows get a token more. */
MEMOI void memoi_spread_cut(memoi_spread* s, const memoi_spread_part* part, int32_t first,
                            int32_t n) {
    memoi_spread_part rest = *part;
    int64_t most = 0, n_most = 0;
    const int64_t each = (rest.end - rest.begin) / n, n_more = (rest.end - rest.begin) % n;
    int64_t more_most, more_others;
    for (int32_t r = first; r < first + n; r++) most = memob_max(most, s->n_free[r]);
    for (int32_t r = first; r < first + n; r++) n_most += s->n_free[r] == most;
    more_most = memob_min(n_more, n_most);
    more_others = n_more - more_most;

    for (int32_t r = first; r < first + n; r++) {
        int64_t* more = s->n_free[r] == most ? &more_most : &more_others;
        const int64_t count = each + (*more > 0);
        const int64_t half = (count + s->n_free[r] % 2) / 2;
        const int64_t n_first =
            r == first + n - 1 ? count : memoi_spread_first(s, &rest, count, half);
        *more -= *more > 0;
        memoi_spread_add(s, rest.begin, n_first, r);
        memoi_spread_add(s, rest.end - (count - n_first), count - n_first, r);
        rest.begin += n_first;
        rest.n_before += n_first;
        rest.end -= count - n_first;
        s->n_free[r] -= count;
        MEMO_ASSERT(s->n_free[r] >= 0); /* 1 */
    }
}

/* Gives parts to the halves of n ranks, the one with most scores first, each to the half with
 * fewer; the part that fills a half to both.
 * Returns how far the halves are apart. */
MEMOI double memoi_spread_halve(memoi_spread* s, const memoi_spread_part* parts, int64_t n_parts,
                                int32_t first, int32_t n, int64_t n_halves[2]) {
    const int32_t n_ranks[2] = {n / 2, n - n / 2};
    int64_t n_free[2] = {0, 0}, i;
    double scores[2] = {0, 0};
    n_halves[0] = n_halves[1] = 0;
    for (int32_t r = 0; r < n; r++) n_free[r >= n_ranks[0]] += s->n_free[first + r];
    for (i = 0; i < n_parts; i++) {
        int side = scores[0] * n_ranks[1] > scores[1] * n_ranks[0];
        memoi_spread_part part = parts[i];
        while (part.begin < part.end) {
            memoi_spread_part* here = &s->halves[side][n_halves[side]];
            *here = part;
            here->end = memob_min(part.end, part.begin + n_free[side]);
            part.n_before += here->end - here->begin;
            part.begin = here->end;
            n_free[side] -= here->end - here->begin;
            n_halves[side] += here->begin < here->end;
            scores[side] += memoi_spread_scores(s, here);
            side = !side;
        }
    }
    return fabs(scores[0] / n_ranks[0] - scores[1] / n_ranks[1]);
}

/* Gives parts, that with most scores first, to n ranks, which have as many free rows.  There is
 * room for n - 1 parts more, because each halving cuts one at most. */
MEMOI void memoi_spread_over(memoi_spread* s, memoi_spread_part* parts, int64_t n_parts,
                             int32_t first, int32_t n) {
    memoi_spread_part* second;
    int64_t n_halves[2];
    for (; n_parts &&
           (n == 1 || memoi_spread_halve(s, parts, n_parts, first, n, n_halves) > s->most_apart);
         n_parts--)
        memoi_spread_cut(s, parts++, first, n);
    if (!n_parts) return;

    second = parts + n_halves[0] + n / 2 - 1;
    memcpy(parts, s->halves[0], (size_t)n_halves[0] * sizeof *parts);
    memcpy(second, s->halves[1], (size_t)n_halves[1] * sizeof *parts);
    memoi_spread_over(s, parts, n_halves[0], first, n / 2);
    memoi_spread_over(s, second, n_halves[1], first + n / 2, n - n / 2);
}

/* For qsort: by ranks, and in a rank by positions. */
MEMOI int memoi_spread_compare(const void* left, const void* right) {
    const memoi_spread_piece *a = (const memoi_spread_piece*)left,
                             *b = (const memoi_spread_piece*)right;
    return a->rank != b->rank ? memob_compare(a->rank, b->rank) : memob_compare(a->begin, b->begin);
}

/* The scores of all segments before each. */
MEMOI void memoi_spread_take_segments(memoi_spread* s, const memo_sharding_desc* desc) {
    s->before = MEMOB_ARRAY(&s->arrays, double, desc->n_segments + 1);
    if (s->arrays.failed) return;
    s->segments = desc->segments;
    for (int64_t i = 0; i < desc->n_segments; i++) {
        const memo_segment* at = &s->segments[i];
        s->before[i + 1] = s->before[i] + memoi_spread_segment(at, at->q_end - at->q_begin);
        if (!i || at[-1].level < at->level) s->first[s->n_levels++] = i;
    }
    s->first[s->n_levels] = desc->n_segments;
}

MEMOI memo_status memoi_sharding_spread(const memo_sharding_desc* desc, memo_sharding* sharding,
                                        memo_error* error) {
    const int64_t *begins = sharding->document_begins, n = sharding->n_documents;
    const int32_t rd = sharding->ring;
    int64_t n_parts = 0, at = sharding->n_tokens;
    memoi_spread_part *parts, *documents;
    memob_keyed* order;
    memoi_spread s = MEMO_ZERO(memoi_spread);
    s.sharding = sharding;
    parts = MEMOB_ARRAY(&s.arrays, memoi_spread_part, n + rd);
    documents = s.halves[0] = MEMOB_ARRAY(&s.arrays, memoi_spread_part, n + rd);
    s.halves[1] = MEMOB_ARRAY(&s.arrays, memoi_spread_part, n + rd);
    s.n_free = MEMOB_ARRAY(&s.arrays, int64_t, rd);
    order = MEMOB_ARRAY(&s.arrays, memob_keyed, n);
    memoi_spread_take_segments(&s, desc);

    /* Documents, the one with most scores first. */
    for (int64_t i = 0; i < n && !s.arrays.failed; i++) {
        documents[i].begin = begins[i];
        documents[i].end = begins[i + 1];
        documents[i].n_before = memoi_sharding_prefix(sharding, i);
        const double scores = memoi_spread_scores(&s, &documents[i]);
        order[i] = memob_keyed_of((int64_t)fmin(scores, 9e18), i);
        s.most_apart += scores / rd / 32;
    }
    if (!s.arrays.failed) memob_keyed_sort(order, n);
    for (int64_t i = n - 1; i >= 0 && !s.arrays.failed; i--)
        if (documents[order[i].index].begin < documents[order[i].index].end)
            parts[n_parts++] = documents[order[i].index];
    for (int32_t r = 0; r < rd && !s.arrays.failed; r++)
        s.n_free[r] = memo_share_of(sharding->n_tokens, rd, r).count;
    if (!s.arrays.failed) memoi_spread_over(&s, parts, n_parts, 0, rd);

    /* Padding follows the tokens of its rank. */
    for (int32_t r = 0; r < rd; r++) {
        const int64_t count =
            sharding->ring_tokens - memo_share_of(sharding->n_tokens, rd, r).count;
        memoi_spread_add(&s, at, count, r);
        at += count;
    }
    sharding->pieces = (memo_sharding_piece*)memob_calloc(s.n_pieces + 1, sizeof *sharding->pieces);
    if (s.arrays.failed) memo_sharding_free(sharding);
    if (sharding->pieces) {
        qsort(s.pieces, (size_t)s.n_pieces, sizeof *s.pieces, memoi_spread_compare);
        for (int64_t i = at = 0; i < s.n_pieces; at += s.pieces[i++].count) {
            sharding->pieces[i].row = at;
            sharding->pieces[i].position = s.pieces[i].begin;
        }
        MEMO_ASSERT(at == sharding->padded_tokens); /* 2 */
        sharding->pieces[s.n_pieces].row = sharding->pieces[s.n_pieces].position = at;
        sharding->n_pieces = s.n_pieces;
    }
    memob_arrays_free(&s.arrays);
    MEMO_FREE(s.pieces);
    return sharding->pieces ? MEMO_STATUS_OK : memob_no_memory(error, "a sharding of documents");
}

void memo_sharding_free(memo_sharding* sharding) {
    if (!sharding) return;
    MEMO_FREE(sharding->pieces);
    sharding->pieces = NULL;
}

memo_status memo_sharding_make(const memo_sharding_desc* desc, memo_sharding* sharding,
                               memo_error* error) {
    MEMOB_REFUSE_NULL(error, "desc", desc);
    MEMOB_REFUSE_NULL(error, "sharding", sharding);
    memo_status status;
    memset(sharding, 0, sizeof *sharding);
    sharding->kind = desc->kind;
    sharding->ring = desc->ring;
    sharding->ulysses = desc->ulysses;
    sharding->n_tokens = desc->n_tokens;
    sharding->capacity = desc->capacity;
    sharding->document_begins = desc->document_begins;
    sharding->n_documents = desc->n_documents;
    sharding->document_parents = desc->document_parents;
    sharding->slice_tokens = desc->slice_tokens;
    status = memoi_sharding_measure(sharding, error);
    if (!status) status = memoi_sharding_check_segments(desc, error);
    return status || desc->kind != MEMO_SHARDING_DOCUMENTS
               ? status
               : memoi_sharding_spread(desc, sharding, error);
}

/* --- runs --- */

/* The run that begins at a row of a sequence rank; it may go on in the next one's rows. */
MEMOI memo_run memoi_sharding_run_at(const memo_sharding* sharding, int32_t sequence_rank,
                                     int64_t row) {
    const int64_t n = sharding->ring_tokens, rd = sharding->ring;
    const int64_t ring_rank = sequence_rank / sharding->ulysses;
    const int64_t place = sequence_rank % sharding->ulysses * sharding->local_tokens + row;
    memo_run run = {ring_rank * n + place, n - place};
    if (sharding->slice_tokens) {
        const int64_t rows = memoi_sharding_slice_rows(sharding);
        const int64_t k = memob_min(row / rows, (sharding->n_tokens - 1) / sharding->slice_tokens);
        memo_sharding slice, so_far;
        memo_sharding_slice(sharding, k, &slice, &so_far);
        run = memoi_sharding_run_at(&slice, sequence_rank, row - k * rows);
        run.start += k * sharding->slice_tokens;
        run.count = memob_min(run.count, so_far.local_tokens - row);
        return run;
    }

    switch (sharding->kind) {
    case MEMO_SHARDING_PLAIN: break;
    case MEMO_SHARDING_ZIGZAG:
        if (rd == 1) break; /* the two chunks touch */
        run.start = ring_rank * (n / 2) + place;
        run.count = n / 2 - place;
        if (place < n / 2) break;
        run.start = (2 * rd - 1 - ring_rank) * (n / 2) + place - n / 2;
        run.count = n - place;
        break;
    case MEMO_SHARDING_DOCUMENTS: {
        const int64_t at = sequence_rank * sharding->local_tokens + row;
        const memo_sharding_piece* piece =
            sharding->pieces +
            memoi_sharding_search(&sharding->pieces->row, 2, sharding->n_pieces, at);
        run.start = piece->position + at - piece->row;
        run.count = memob_min(piece[1].row - at, run.count);
        break;
    }
    case MEMO_N_SHARDING_KINDS: break;
    }
    return run;
}

/* The run that begins at *row of a sequence rank.  Advances *row past it.  Returns 0 at the end. */
MEMOI int memoi_sharding_next(const memo_sharding* sharding, int32_t sequence_rank, int64_t* row,
                              memo_run* run) {
    int64_t left = sharding->local_tokens - *row;
    if (left <= 0) return 0;
    *run = memoi_sharding_run_at(sharding, sequence_rank, *row);
    run->count = memob_min(run->count, left);
    MEMO_ASSERT(run->count > 0); /* 3 */
    *row += run->count;
    return 1;
}

int32_t memo_sharding_runs(const memo_sharding* sharding, int32_t sequence_rank, memo_run* runs) {
    if (!sharding) return 0;
    memo_run run;
    int64_t row = 0;
    int32_t n = 0;
    for (; memoi_sharding_next(sharding, sequence_rank, &row, &run); n++)
        if (runs) runs[n] = run;
    return n;
}

MEMOI int32_t memoi_sharding_ring_runs(const memo_sharding* sharding, int32_t ring_rank,
                                       memo_run* runs) {
    memo_sharding by_ring = *sharding; /* its sequence ranks are the ring ranks */
    by_ring.ulysses = 1;
    by_ring.local_tokens = sharding->ring_tokens;
    return memo_sharding_runs(&by_ring, ring_rank, runs);
}

int64_t memo_sharding_position(const memo_sharding* sharding, int32_t sequence_rank, int64_t row) {
    if (!sharding) return 0;
    return memoi_sharding_run_at(sharding, sequence_rank, row).start;
}

/* Makes document the one of a position, with its ancestors if it is of the sharding, unless the
 * position is in there. */
MEMOI void memoi_sharding_document(const memo_sharding* sharding, const int64_t* begins, int64_t n,
                                   int64_t position, memoi_spread_part* document) {
    const int is_own = !begins;
    int64_t i;
    if (position >= document->begin && position < document->end) return;
    document->begin = document->n_before = 0;
    document->end = sharding->n_tokens;
    if (is_own) {
        begins = sharding->document_begins;
        n = sharding->n_documents;
    }
    if (!begins || position >= sharding->n_tokens) return;
    i = memoi_sharding_search(begins, 1, n, position);
    document->begin = begins[i];
    document->end = begins[i + 1];
    if (is_own) document->n_before = memoi_sharding_prefix(sharding, i);
}

/* positions[local_tokens] of a rank's rows: from the begin of each document on, behind its
 * ancestors.  Padding counts on from n_tokens. */
MEMOI void memoi_sharding_positions(const memo_sharding* sharding, int32_t sequence_rank,
                                    int64_t* positions) {
    memoi_spread_part document = {0, 0, 0};
    int64_t row = 0;
    memo_run run;
    while (memoi_sharding_next(sharding, sequence_rank, &row, &run))
        for (int64_t at = run.start; at < run.start + run.count; at++) {
            memoi_sharding_document(sharding, NULL, 0, at, &document);
            *positions++ = at - document.begin + document.n_before;
        }
}

/* The number of positions of a run below `end`. */
MEMOI int64_t memoi_sharding_run_below(const memo_run* run, int64_t end) {
    return memob_min(memob_max(end - run->start, 0), run->count);
}

int64_t memo_sharding_labels(const memo_sharding* sharding, int32_t sequence_rank, int64_t n_batch,
                             const int32_t* tokens, int64_t ahead, const int64_t* document_begins,
                             int64_t n_documents, int32_t ignored, int32_t* labels) {
    if (!sharding || !tokens || !labels) return 0;
    memo_run run;
    int64_t n_labels = 0;
    for (int64_t b = 0; b < n_batch; b++, tokens += sharding->n_tokens) {
        memoi_spread_part document = {0, 0, 0};
        int64_t row = 0;
        while (memoi_sharding_next(sharding, sequence_rank, &row, &run))
            for (int64_t at = run.start; at < run.start + run.count; at++) {
                memoi_sharding_document(sharding, document_begins, n_documents, at, &document);
                /* Padding has no label, nor has a token whose label is in another document. */
                *labels = at < sharding->n_tokens && ahead >= document.begin - at &&
                                  ahead < document.end - at
                              ? tokens[at + ahead]
                              : ignored;
                n_labels += *labels++ != ignored;
            }
    }
    return n_labels;
}
