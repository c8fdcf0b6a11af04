/* capacities.c - appends the capacities of each CUDA device that a program creates to the file
 * $CAPACITIES, if it is set: "DEVICE HOST".  Link it with --wrap=memo_cuda_device_create. */
#include <stdio.h>
#include <stdlib.h>

#include "memo_sp.h" /* of MEMO_CUDA_NCCL */

#include "memo_cuda.cuh"

memo_status __real_memo_cuda_device_create(const memo_cuda_device_desc* desc, memo_device** device,
                                           memo_error* error);
memo_status __wrap_memo_cuda_device_create(const memo_cuda_device_desc* desc, memo_device** device,
                                           memo_error* error);

memo_status __wrap_memo_cuda_device_create(const memo_cuda_device_desc* desc, memo_device** device,
                                           memo_error* error) {
    const char* path = getenv("CAPACITIES");
    FILE* file = path ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "%lld %lld\n", (long long)desc->device_memory_bytes,
                (long long)desc->host_memory_bytes);
        fclose(file);
    }
    return __real_memo_cuda_device_create(desc, device, error);
}
