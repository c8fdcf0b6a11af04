/* block_parts.h - into how many parts to split the batch of overlapped blocks, from measured times.
 * Include it after extras/memo_look.h and memo_sp.h. */
#ifndef BLOCK_PARTS_H
#define BLOCK_PARTS_H

#include <stdlib.h>

/* The cost of splitting, from a profile. */
typedef struct block_overhead {
    double operation_s;  /* of each computation, for any size: launch, idle tail */
    double collective_s; /* of each collective: see block_latency */
} block_overhead;

/* The time of a collective of no bytes, from n measured ones: where the least-squares line meets 0
 * bytes, but at least 0.  Fewer than two sizes: 0. */
static double block_latency(const int64_t* message_bytes, const double* measured_s, int32_t n) {
    double mean_bytes = 0, mean_s = 0, products = 0, squares = 0, latency_s;
    for (int32_t i = 0; i < n; i++) {
        mean_bytes += (double)message_bytes[i] / n;
        mean_s += measured_s[i] / n;
    }
    for (int32_t i = 0; i < n; i++) {
        double bytes = (double)message_bytes[i] - mean_bytes;
        products += bytes * (measured_s[i] - mean_s);
        squares += bytes * bytes;
    }
    if (!(squares > 0)) return 0;
    latency_s = mean_s - products / squares * mean_bytes;
    return latency_s > 0 ? latency_s : 0;
}

/* Of passes over all blocks. */
static memo_status block_makespan(const memo_blocks_schedule_desc* desc,
                                  const memo_block_times* times, int32_t passes, double* makespan_s,
                                  memo_error* error) {
    memo_schedule* schedule;
    memo_simulation* simulation = NULL;
    memo_status status = memo_blocks_generate(desc, times, passes, &schedule, error);
    if (!status) status = memo_schedule_simulate(schedule, &simulation, error);
    if (!status) *makespan_s = simulation->makespan_s;
    memo_simulation_destroy(simulation);
    memo_schedule_destroy(schedule);
    return status;
}

static double block_share(double whole_s, double overhead_s, int32_t n_parts) {
    return whole_s <= overhead_s ? whole_s : overhead_s + (whole_s - overhead_s) / n_parts;
}

/* The times of one of n parts. */
static memo_block_times block_part_times(const memo_block_times* whole,
                                         const block_overhead* overhead, int32_t n) {
    memo_block_times part;
    part.forward_s = block_share(whole->forward_s, overhead->operation_s, n);
    part.recompute_s = block_share(whole->recompute_s, overhead->operation_s, n);
    part.backward_s = block_share(whole->backward_s, overhead->operation_s, n);
    part.weights_s = block_share(whole->weights_s, overhead->operation_s, n);
    part.reduce_s = block_share(whole->reduce_s, overhead->collective_s, n);
    return part;
}

/* Finds the number of parts, of 1, 2, 4, ... up to max_parts, with the least time of the passes
 * together.  It is 1 if messages are too small to gain.  Ties go to fewer parts.  whole (n_blocks):
 * times of the whole batch; a part takes the overhead and its share of the rest.  desc->n_parts is
 * ignored.  makespan_s may be NULL. */
static memo_status block_best_parts(const memo_blocks_schedule_desc* desc,
                                    const memo_block_times* whole, int32_t passes,
                                    const block_overhead* overhead, int32_t max_parts,
                                    int32_t* n_parts, double* makespan_s, memo_error* error) {
    memo_blocks_schedule_desc tried = *desc;
    memo_block_times* times =
        (memo_block_times*)calloc((size_t)desc->n_blocks * (size_t)max_parts, sizeof *times);
    double best_s = 0;
    memo_status status = MEMO_STATUS_OK;
    if (!times) return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no memory");
    if (!(overhead->operation_s >= 0) || !(overhead->collective_s >= 0))
        status = memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT, "overhead: below 0");

    /* The tolerance lets fewer parts win a tie in spite of rounding. */
    for (int32_t n = 1; !status && n <= max_parts; n *= 2) {
        double total_s = 0;
        tried.n_parts = n;
        for (int32_t i = 0; i < desc->n_blocks; i++)
            for (int32_t s = 0; s < n; s++)
                times[(int64_t)i * n + s] = block_part_times(&whole[i], overhead, n);
        status = block_makespan(&tried, times, passes, &total_s, error);
        if (!status && (n == 1 || total_s < best_s * (1 - 1e-12))) {
            best_s = total_s;
            *n_parts = n;
        }
    }
    free(times);
    if (makespan_s) *makespan_s = best_s;
    return status;
}

#endif /* BLOCK_PARTS_H */
