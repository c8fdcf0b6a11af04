/* host.h - the operations of kernels.h on a stream of the host device, with helper
 * threads: a function for each kind. */
#ifndef GPT_KERNELS_HOST_H
#define GPT_KERNELS_HOST_H

#include "gpt/kernels/kernels.h"
#include "host_attention.h"

/* Lives as long as the models that use it; one model at a time. */
typedef struct gpt_host_kernels {
    memo_device* device;
    host_attention attention;
    memo_stream compute;
    float *scratch, *scratch_beside; /* of compute; of another stream */
} gpt_host_kernels;

/* device: a host device; NULL: to plan only. */
gpt_kernels gpt_kernels_host(gpt_host_kernels* host, memo_device* device);

#endif
