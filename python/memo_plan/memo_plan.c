/* The shared object of memo_plan: the public functions of the headers, and the sizes of the structs that __init__.py
 * mirrors. */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#include "examples/tools/plan_proof.h" /* includes extras/memo_pack.h and memo_plan.h */
#include "extras/memo_look.h"

memo_status memo_python_write_proof(const memo_plan* plan, const char* path, int* is_found, memo_error* error);
memo_status memo_python_write_proof(const memo_plan* plan, const char* path, int* is_found, memo_error* error) {
    return write_proof(plan, path, is_found, error);
}

extern const int64_t memo_python_sizes[];
const int64_t memo_python_sizes[] = {sizeof(memo_error), sizeof(memo_buffer), sizeof(memo_gap), sizeof(memo_plan),
                                     sizeof(memo_plan_desc)};
