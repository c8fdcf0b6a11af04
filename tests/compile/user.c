/* A program that uses the headers in a translation unit without the implementations. */
#include "memo.h"
#include "memo_plan.h"
#include "memo_sp.h"
#include "extras/memo_check.h"
#include "extras/memo_layout.h"
#include "extras/memo_hooks.h"
#include "extras/memo_look.h"

int main(void) {
    memo_error error;
    memo_trace* trace;
    memo_plan* plan;
    memo_plan_desc desc = MEMO_ZERO(memo_plan_desc);
    memo_status status = memo_trace_create(&trace, &error);
    if (status) return 1;
    desc.engine = MEMO_PLAN_ENGINE_GREEDY;
    status = memo_trace_malloc(trace, 1, 1000, MEMO_CLASS_TRANSIENT, 0, &error);
    if (!status) status = memo_trace_free(trace, 1, &error);
    if (!status) status = memo_plan_from_trace(trace, 0, &plan, &error);
    if (!status) {
        status = memo_plan_solve(plan, &desc, &error);
        if (!status && plan->peak_bytes != 1024) status = MEMO_STATUS_DIVERGED;
        memo_plan_destroy(plan);
    }
    memo_trace_destroy(trace);
    return status ? 2 : 0;
}
