/* degrees_problem.h - a problem of degrees with memory for its costs.
 *
 * Include it in a file with MEMO_IMPLEMENTATION, after memo_sp.h. */
#ifndef DEGREES_PROBLEM_H
#define DEGREES_PROBLEM_H

/* Its costs are zero.  NULL: no memory.  Valid numbers alone; free it with MEMO_FREE. */
static memo_degrees_problem* degrees_problem_create(int32_t n_blocks, const int32_t* degrees,
                                                    int32_t n_degrees) {
    memo_degrees_problem* made = (memo_degrees_problem*)memob_calloc(
        1, sizeof *made + (size_t)n_blocks * (size_t)n_degrees * sizeof *made->costs);
    if (!made) return NULL;
    made->costs = (memo_degree_cost*)(void*)(made + 1);
    made->n_blocks = n_blocks;
    made->n_degrees = n_degrees;
    memcpy(made->degrees, degrees, (size_t)n_degrees * sizeof *degrees);
    return made;
}

#endif
