/* memo_plan.h with its chapter on degrees, which is still a part of its own. */
#include "../memo_plan.h"
#ifdef __cplusplus
extern "C" {
#endif
#include "degrees.h"
#ifdef __cplusplus
}
#endif
#ifdef MEMO_PLAN_IMPLEMENTATION
#include "degrees.inc"
#endif
