/* memo.c - memo's implementation, compiled once.  It takes longer to compile than the trainer, and
 * does not need the optimization that the trainer's products need. */
#define MEMO_IMPLEMENTATION
#include "memo.h"
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#define MEMO_LAYOUT_IMPLEMENTATION
#include "extras/memo_layout.h"
#define MEMO_LOOK_IMPLEMENTATION
#include "extras/memo_look.h"
