/* blocks_order.h - the order of overlapped blocks as printed in the papers, written out here
 * independently of memo_sp.h, against a schedule: one that was generated, or recorded. */
#ifndef BLOCKS_ORDER_H
#define BLOCKS_ORDER_H

#include "extras/memo_look.h"

enum { ORDER_NAME = 24, ORDER_MOST = 512 };

typedef struct order_list { /* of one stream: "F1a", "cB2b", ..., as in the schedules */
    char names[ORDER_MOST][ORDER_NAME];
    int n;
} order_list;

static inline void order_add(order_list* list, const char* kind, int block, int part) {
    char* name = list->names[list->n++];
    if (list->n == ORDER_MOST) abort();
    if (block < 0)
        snprintf(name, ORDER_NAME, "%s%c", kind, 'a' + part);
    else
        snprintf(name, ORDER_NAME, "%s%d%c", kind, block + 1, 'a' + part);
}

/* Is the sum of a block's recomputation read? */
static inline int order_reads_output(memo_blocks_order order, int block, int m) {
    return order == MEMO_BLOCKS_FINE ? 0 : order == MEMO_BLOCKS_CROSS ? block % m != m - 1 : 1;
}

/* Is the block's input kept for its backward? */
static inline int order_keeps_input(memo_blocks_order order, int block, int m) {
    return order == MEMO_BLOCKS_FINE || block % m == 0;
}

/* lists: compute, comm. */
static inline void order_recompute(order_list* lists, memo_blocks_order order, int block, int m,
                                   int part) {
    order_add(&lists[0], "R", block, part);
    if (order_reads_output(order, block, m)) order_add(&lists[1], "cR", block, part);
}
static inline void order_backward(order_list* lists, int has_weights, int block, int part) {
    order_add(&lists[0], "B", block, part);
    order_add(&lists[1], "cB", block, part);
    if (has_weights) order_add(&lists[0], "W", block, part);
}

static inline void order_pass(order_list* lists, const memo_blocks_schedule_desc* d, int m,
                              int n_parts, int has_weights, int is_backward) {
    int segment, fine = d->order == MEMO_BLOCKS_FINE;
    for (int i = 0; i < d->n_blocks && !is_backward; i++)
        for (int s = 0; s < n_parts; s++) {
            order_add(&lists[0], "F", i, s);
            order_add(&lists[1], "cF", i, s);
        }

    for (int first = d->n_blocks - m; first >= 0 && is_backward; first -= m) {
        /* Recomputation of the whole layer comes first, except for the last blocks, whose backward
         * follows directly. */
        segment = fine ? first : d->order == MEMO_BLOCKS_CROSS ? first + m - 1 : first + m;
        for (int i = first; i < segment; i++)
            for (int s = 0; s < n_parts; s++) order_recompute(lists, d->order, i, m, s);

        for (int i = first + m - 1; i >= first; i--) {
            /* The keys of all parts of a sequence exist before the last part's backward. */
            int all_first = i >= segment && d->splits_sequence && i == first;
            for (int s = 0; s < n_parts && all_first; s++)
                order_recompute(lists, d->order, i, m, s);
            for (int s = 0; s < n_parts; s++) {
                int part = d->splits_sequence ? n_parts - 1 - s : s;
                if (i >= segment && !all_first) order_recompute(lists, d->order, i, m, part);
                order_backward(lists, has_weights, i, part);
            }
        }
    }

    for (int s = 0; s < n_parts; s++) order_add(&lists[0], "end-", -1, s);
}

/* n_steps of a forward and a backward pass.  lists: has room; the names that were expected. */
static inline memo_status order_check(const memo_schedule* schedule,
                                      const memo_blocks_schedule_desc* d, int has_weights,
                                      int n_steps, order_list* lists, memo_error* e) {
    const int m = d->blocks_per_layer ? d->blocks_per_layer : 2;
    const int n_parts = d->n_parts ? d->n_parts : 2;
    const char *wrong = NULL, *name = "", *before = "";
    int step, list, at[2] = {0, 0};
    lists[0].n = lists[1].n = 0;
    for (step = 0; step < 2 * n_steps; step++)
        order_pass(lists, d, m, n_parts, has_weights, step % 2);

    for (int64_t i = 0; i < schedule->n_ops && !wrong; i++) {
        if (schedule->ops[i].kind != MEMO_OP_RUN) continue;
        name = memo_schedule_op_name(schedule, i);
        list = name[0] == 'c';
        if (strcmp(schedule->text + schedule->streams[schedule->ops[i].stream],
                   list ? "comm" : "compute"))
            wrong = "the wrong stream";
        else if (at[list] == lists[list].n || strcmp(lists[list].names[at[list]++], name))
            wrong = "out of order";
        /* The weight gradient runs after the launch of its input gradient's collective. */
        else if (name[0] == 'W' && (strncmp(before, "cB", 2) || strcmp(before + 2, name + 1)))
            wrong = "not directly after its collective";
        before = name;
    }
    for (list = 0; list < 2; list++)
        if (!wrong && at[list] != lists[list].n) wrong = "operations are missing after it";
    return wrong ? memo_error_set(e, MEMO_STATUS_INVALID_ARGUMENT, "%s: %s", name, wrong)
                 : MEMO_STATUS_OK;
}

#endif
