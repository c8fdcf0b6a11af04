/* cuda_test.h - shared by the tests on a GPU.  Without a GPU each test counts as skipped. */
#ifndef CUDA_TEST_H
#define CUDA_TEST_H

#include "../support/memo_test.h"

static memo_error error;

/* NULL: no GPU. */
static inline memo_device* open_device(void) {
    memo_cuda_device_desc desc = MEMO_ZERO(memo_cuda_device_desc);
    memo_device* device = NULL;
    if (memo_cuda_device_create(&desc, &device, &error) && error.status != MEMO_STATUS_UNSUPPORTED)
        printf("# %s\n", error.message);
    return device;
}

#define NO_GPU "no GPU; run it on a machine with one, as bench/device.sh does"
#define NEED_DEVICE(device)                                                                        \
    memo_device* device = open_device();                                                           \
    if (!device) SKIP(NO_GPU)

/* A device with two streams and two events, until the end of the block. */
struct cuda_rig {
    memo_device* device;
    memo_stream stream = NULL, other = NULL;
    memo_event event = NULL, later = NULL;

    explicit cuda_rig(memo_device* opened) : device(opened) {
        if (!device) return;
        CHECK_OK(memo_stream_create(device, "stream", 0, &stream, &error));
        CHECK_OK(memo_stream_create(device, "other", 0, &other, &error));
        CHECK_OK(memo_event_create(device, &event, &error));
        CHECK_OK(memo_event_create(device, &later, &error));
    }
    ~cuda_rig() {
        if (!device) return;
        CHECK_OK(memo_event_destroy(device, event, &error));
        CHECK_OK(memo_event_destroy(device, later, &error));
        CHECK_OK(memo_stream_destroy(device, stream, &error));
        CHECK_OK(memo_stream_destroy(device, other, &error));
        memo_cuda_device_destroy(device); /* frees memory that is left */
    }
    cuda_rig(const cuda_rig&) = delete;
    operator memo_device*() const { return device; }
};
#define NEED_RIG(rig)                                                                              \
    cuda_rig rig(open_device());                                                                   \
    if (!rig.device) SKIP(NO_GPU)

#endif
