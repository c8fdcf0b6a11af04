/* The one translation unit with the implementations. */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#define MEMO_CHECK_IMPLEMENTATION
#define MEMO_LAYOUT_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_HOOKS_IMPLEMENTATION
#include "memo.h"
#include "extras/memo_pack.h"
#include "memo_plan.h"
#include "memo_sp.h"
#include "extras/memo_check.h"
#include "extras/memo_layout.h"
#include "extras/memo_hooks.h"
#include "extras/memo_look.h"
