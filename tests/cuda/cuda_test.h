/* cuda_test.h - shared by the tests on a GPU.  Without a GPU each test counts as skipped. */
#ifndef CUDA_TEST_H
#define CUDA_TEST_H

#include "../memo_test.h"

static memo_error error;

/* A device with small chunks of pinned memory, so that copies cross their borders; NULL: no GPU. */
static inline memo_device* open_device(void) {
    memo_cuda_device_desc desc = memo_cuda_device_desc_default();
    memo_device* device = NULL;
    desc.host_chunk_bytes = (int64_t)32 << 20;
    if (memo_cuda_device_create(&desc, &device, &error) && error.status != MEMO_STATUS_UNSUPPORTED)
        printf("# %s\n", error.message);
    return device;
}

#define NEED_DEVICE(device)                                                                        \
    memo_device* device = open_device();                                                           \
    if (!device) SKIP("no GPU; run it on a machine with one, as bench/device.sh does")

#endif
