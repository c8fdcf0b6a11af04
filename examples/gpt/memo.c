/* memo.c - memo's implementation, compiled once.  It takes the compiler longer than the trainer does, and gains
 * nothing from the optimization that the trainer's products need. */
#define MEMO_IMPLEMENTATION
#include "memo.h"
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
