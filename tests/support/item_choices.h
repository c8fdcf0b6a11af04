/* item_choices.h - the choices of items, for tables of tests.
 *
 * Include after memo.h and memo_test.h. */
#ifndef ITEM_CHOICES_H
#define ITEM_CHOICES_H

static inline void item_choose(memo_item* item, int32_t away, int32_t scope, int32_t is) {
    item->away = away;
    item->scope = scope;
    item->is = is;
}

/* One of the first `n`: ROWS, WHOLE, MOVE, KEEP. */
static inline int32_t random_away(int64_t n) {
    static const int32_t choices[] = {MEMO_ROWS, MEMO_WHOLE, MEMO_MOVE, MEMO_KEEP};
    return choices[memo_test_int(0, n - 1)];
}

/* Whose recomputation makes item t. */
static inline int32_t item_leader(const memo_item* items, int32_t t) {
    return items[t].away == MEMO_WITH ? item_leader(items, t - 1) : t;
}
static inline int item_recomputes(const memo_item* items, int32_t t) {
    const int32_t away = items[item_leader(items, t)].away;
    return away == MEMO_ROWS || away == MEMO_WHOLE;
}

/* Nothing is made with item t, nor item t with another. */
static inline int item_is_alone(const memo_item* items, int32_t n, int32_t t) {
    return items[t].away != MEMO_WITH && (t + 1 == n || items[t + 1].away != MEMO_WITH);
}

#endif
