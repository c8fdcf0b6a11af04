/* The implementation, compiled once for all tests that use public functions alone. */
#include "../support/scarce.h"
#ifdef MEMOI /* programs take private functions from here, too */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE 1
#define TURNS_IN_LIBRARY
#include "../support/turns.h"
#endif
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#define MEMO_CHECK_IMPLEMENTATION
#define MEMO_LAYOUT_IMPLEMENTATION
#define MEMO_HOOKS_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#include "extras/memo_check.h" /* first: checked sessions run updates both ways */
#include "memo.h"
#include "memo_plan.h"
#include "memo_sp.h"
#include "extras/memo_layout.h"
#include "extras/memo_hooks.h"
#include "extras/memo_look.h"
