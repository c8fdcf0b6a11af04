/* The shared object of memo_plan: the public functions of the headers, and the sizes of the structs that __init__.py
 * mirrors. */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#include "extras/memo_pack.h"
#include "memo_plan.h"
#include "extras/memo_look.h"

extern const int64_t memo_python_sizes[];
const int64_t memo_python_sizes[] = {sizeof(memo_error), sizeof(memo_buffer), sizeof(memo_gap), sizeof(memo_plan),
                                     sizeof(memo_plan_desc)};
