#pragma once
/* ---- 3 row kernels ------------------------------------------------------------------------------
 *
 * The device has the row kernels of memo_sp.h (memo_row_add(device, stream, ...) and others), if
 * memo_sp.h is included before this file's implementation.  Otherwise it has none. */
