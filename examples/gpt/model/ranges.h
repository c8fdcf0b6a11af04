/* ranges.h - names of layers for profilers: NVTX ranges, which Nsight Systems draws, of what the
 * host enqueues for a pass of a layer.
 *
 * A trainer for GPUs has them if CUDA's header is there, which is the whole library: without a
 * profiler a range is a call that returns.  Others have none. */
#ifndef GPT_RANGES_H
#define GPT_RANGES_H

#if defined(TRAIN_CUDA) && defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#include <stdint.h>
#include <stdio.h>
#define GPT_HAS_RANGES
#endif
#endif

#ifdef GPT_HAS_RANGES
static inline void gpt_begin_range(const char* pass, int32_t layer) {
    char name[48];
    snprintf(name, sizeof name, "%s %d", pass, (int)layer);
    (void)nvtxRangePushA(name);
}
static inline void gpt_end_range(void) { (void)nvtxRangePop(); }
#else
#define gpt_begin_range(pass, layer) ((void)(layer))
#define gpt_end_range()              ((void)0)
#endif

#endif
