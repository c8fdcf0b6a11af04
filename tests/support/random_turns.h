/* random_turns.h - turns of an order for engines of states.  Include after memo_test.h. */
#ifndef RANDOM_TURNS_H
#define RANDOM_TURNS_H

/* Turns of one to three micro-batches, each its forwards and then its backwards, in any order: chunk
 * 0, 1, ... each time.  *n_chunks becomes a divisor of n_layers.  Returns their number, at most 6
 * n_layers. */
static MEMO_UNUSED int32_t random_turns(int32_t n_layers, int32_t* n_chunks, int32_t* turns) {
    const int32_t n_batches = (int32_t)memo_test_int(1, 3);
    int32_t n_done[3] = {0, 0, 0}, n = 0;
    while (n_layers % *n_chunks) --*n_chunks;
    while (n < 2 * n_batches * *n_chunks) {
        const int32_t i = (int32_t)memo_test_int(0, n_batches - 1), done = n_done[i];
        if (done == 2 * *n_chunks) continue;
        turns[n++] = done < *n_chunks ? done : done - 2 * *n_chunks;
        n_done[i]++;
    }
    return n;
}

#endif
