/* random_order.h - turns of micro-batches in flight, as memo_swap_desc.order lists them.
 *
 * Include after memo.h and memo_test.h. */
#ifndef RANDOM_ORDER_H
#define RANDOM_ORDER_H

#define RANDOM_ORDER_MAX  24
#define RANDOM_PLACES_MAX 4

/* Any legal order: 1F1B, or backwards of any micro-batch in flight.  Each forward takes the first
 * place that is free.  Returns the number of turns; *n_places: those that are used. */
static inline int32_t random_order(int32_t* order, int32_t* n_places) {
    const int32_t most = (int32_t)memo_test_int(1, RANDOM_PLACES_MAX);
    const int is_fifo = memo_test_int(0, 1) != 0;
    int32_t in_flight[RANDOM_PLACES_MAX], n = 0, n_turns = 0, place, k;
    int64_t n_left = memo_test_int(most, RANDOM_ORDER_MAX / 2);
    *n_places = 0;
    while (n_left || n) {
        if (!n || (n < most && n_left && (is_fifo || *n_places < most || memo_test_int(0, 1)))) {
            for (place = k = 0; k < n; k++)
                if (in_flight[k] == place) place++, k = -1;
            order[n_turns++] = in_flight[n++] = place;
            *n_places += place == *n_places;
            n_left--;
        } else {
            k = is_fifo ? 0 : (int32_t)memo_test_int(0, n - 1);
            order[n_turns++] = -1 - in_flight[k];
            for (n--; k < n; k++) in_flight[k] = in_flight[k + 1];
        }
    }
    return n_turns;
}

#endif
