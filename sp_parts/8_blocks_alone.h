/* memo_sp.h with its chapter on overlapped blocks, which is still a part of its own. */
#include "../memo_sp.h"
#ifdef __cplusplus
extern "C" {
#endif
#include "8_blocks_schedule.h"
#include "8_blocks.h"
#ifdef __cplusplus
}
#endif
#ifdef MEMO_SP_IMPLEMENTATION
#include "8_blocks_schedule.inc"
#include "8_blocks.inc"
#endif
