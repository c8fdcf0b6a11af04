/* One header and nothing else: -DHEADER='"memo.h"', with or without the implementation macros. */
#include HEADER

#ifdef MEMO_LOOK_H
/* Uses macros, because their text is compiled only where they are used. */
memo_status alone(const memo_device* device, memo_stream stream, const float* x, float* y);
memo_status alone(const memo_device* device, memo_stream stream, const float* x, float* y) {
    return MEMO_ANNOTATE(device, stream, "relu", NULL, memo_reads(x, 4), memo_writes(y, 4));
}
#endif
