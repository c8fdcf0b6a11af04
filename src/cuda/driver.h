#pragma once
#include "cuda/errors.h"
/* ---- >>cuda driver ------------------------------------------------------------------------------
 * Knows: names and errors of the driver's functions.  Knows nothing of what they are used for.
 *
 * The runtime finds them in the driver, so that programs do not link with libcuda.  The runtime 12
 * requires a driver of CUDA 12.0, which has all of them. */

/* F(member of memoi_cuda_driver, function) */
#define MEMOI_CUDA_DRIVER_FUNCTIONS(F)                                                             \
    F(error_name, cuGetErrorName)                                                                  \
    F(get_attribute, cuDeviceGetAttribute)                                                         \
    F(retain, cuDevicePrimaryCtxRetain)                                                            \
    F(release_context, cuDevicePrimaryCtxRelease)                                                  \
    F(get_current, cuCtxGetCurrent)                                                                \
    F(set_current, cuCtxSetCurrent)                                                                \
    F(query_stream, cuStreamQuery)                                                                 \
    F(query_event, cuEventQuery)                                                                   \
    F(wait_value, cuStreamWaitValue32)                                                             \
    F(granularity, cuMemGetAllocationGranularity)                                                  \
    F(create, cuMemCreate)                                                                         \
    F(release, cuMemRelease)                                                                       \
    F(reserve, cuMemAddressReserve)                                                                \
    F(free_addresses, cuMemAddressFree)                                                            \
    F(map, cuMemMap)                                                                               \
    F(unmap, cuMemUnmap)                                                                           \
    F(set_access, cuMemSetAccess)

typedef struct memoi_cuda_driver {
#define MEMOI_CUDA_DRIVER_MEMBER(member, function) decltype(&function) member;
    MEMOI_CUDA_DRIVER_FUNCTIONS(MEMOI_CUDA_DRIVER_MEMBER)
} memoi_cuda_driver;

MEMOI memo_status memoi_cuda_driver_check(const memoi_cuda_driver* driver, CUresult code,
                                          const char* call, int line, memo_error* error) {
    const char* name = NULL;
    memo_status status = MEMO_STATUS_DEVICE;
    if (code == CUDA_SUCCESS) return MEMO_STATUS_OK;
    if (driver->error_name) (void)driver->error_name(code, &name);
    if (code == CUDA_ERROR_OUT_OF_MEMORY) status = MEMO_STATUS_OUT_OF_DEVICE_MEMORY;
    if (code == CUDA_ERROR_NOT_SUPPORTED) status = MEMO_STATUS_UNSUPPORTED;
    return memo_error_set(error, status, "%s: %s (%d), memo_cuda.cuh:%d", call,
                          name ? name : "an error without a name", (int)code, line);
}
#define MEMOI_CUDA_DRIVER(driver, member, call, arguments, error)                                  \
    memoi_cuda_driver_check(driver, (driver)->member arguments, #call, __LINE__, error)

MEMOI memo_status memoi_cuda_find(const char* symbol, void** function, memo_error* error) {
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    memo_status status;
    *function = NULL;
#if CUDART_VERSION >= 12050
    status = MEMOI_CUDA_CALL(cudaGetDriverEntryPointByVersion,
                             (symbol, function, 12000, cudaEnableDefault, &found), error);
#else
    status = MEMOI_CUDA_CALL(cudaGetDriverEntryPoint, (symbol, function, cudaEnableDefault, &found),
                             error);
#endif
    if (status) return status;
    if (found == cudaDriverEntryPointSuccess && *function) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                          "the driver has no %s; memo needs a driver of CUDA 12.0 or later",
                          symbol);
}

MEMOI memo_status memoi_cuda_driver_open(memoi_cuda_driver* driver, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
#define MEMOI_CUDA_DRIVER_FIND(member, function)                                                   \
    if (!status) status = memoi_cuda_find(#function, (void**)&driver->member, error);
    MEMOI_CUDA_DRIVER_FUNCTIONS(MEMOI_CUDA_DRIVER_FIND)
    return status;
}
