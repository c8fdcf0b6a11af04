/* memo.h with the schedules of overlapped blocks, which are still a part of their own. */
#include "../memo.h"
#ifdef __cplusplus
extern "C" {
#endif
#include "8_blocks_schedule.h"
#ifdef __cplusplus
}
#endif
#ifdef MEMO_IMPLEMENTATION
#include "8_blocks_schedule.inc"
#endif
