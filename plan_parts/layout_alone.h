/* memo_plan.h with its chapter on layouts, which is still a part of its own. */
#ifndef MEMO_PLAN_LAYOUT_ALONE_H
#define MEMO_PLAN_LAYOUT_ALONE_H
#include "../memo_plan.h"
#ifdef __cplusplus
extern "C" {
#endif
#include "layout.h"
#ifdef __cplusplus
}
#endif
#ifdef MEMO_PLAN_IMPLEMENTATION
#include "layout.inc"
#endif
#endif
