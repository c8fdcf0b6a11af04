#pragma once
/* ---- 3 row kernels ------------------------------------------------------------------------------
 *
 * The row kernels of memo_sp.h on the GPU, if memo_sp.h is included before this file's
 * implementation.  Otherwise the device has none. */

#ifdef MEMO_SP_H
/* Enqueues a kernel on stream, which belongs to the current GPU.  Errors: as memo_row_kernel. */
MEMO_TRY memo_status memo_cuda_row_kernel(memo_stream stream, memo_row_kind kind, const void* desc,
                                          memo_error* error);
#endif
