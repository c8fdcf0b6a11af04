#pragma once
#include "cuda/device.h"
#include "cuda/host_functions.h"
/* ---- >>device life ------------------------------------------------------------------------------
 * Knows: what a device takes from CUDA, and in which order it gives it back.  Knows nothing of what
 * runs on it.
 *
 * 1. A device that ends has given back all device memory that it counted, and all pinned memory but
 *    the kept. */

MEMOI memo_status memoi_cuda_check_desc(const memo_cuda_device_desc* desc, memo_error* error) {
    if (!desc) return MEMOB_INVALID(error, "memo_cuda_device_desc: NULL; pass a desc");
    const memob_bounds fields[] = {
        {"ordinal", desc->ordinal, 0, INT32_MAX},
        {"host_threads", desc->host_threads, 0, INT32_MAX},
        {"local_ranks", desc->local_ranks, 0, INT32_MAX},
        {"host_limit", (int64_t)desc->host_limit, 0, MEMO_N_CUDA_HOST_LIMITS - 1},
        {"device_memory_bytes", desc->device_memory_bytes, 0, MEMOB_BYTES_MAX},
        {"host_memory_bytes", desc->host_memory_bytes, 0, MEMOB_BYTES_MAX},
        {"phantom_bytes", desc->phantom_bytes, 0, MEMOB_BYTES_MAX / 2},
        {"phantom_chunk_bytes", desc->phantom_chunk_bytes, 0, MEMOB_BYTES_MAX / 2}};
    return MEMOB_CHECK_FIELDS("memo_cuda_device_desc", fields, error);
}

/* Properties of the GPU that change what calls do. */
MEMOI memo_status memoi_cuda_read_attributes(memoi_cuda* cuda, memo_error* error) {
    const char* connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    int max_pitch = 0;
    memo_status status = MEMOI_CUDA_CALL(
        cudaDeviceGetAttribute, (&max_pitch, cudaDevAttrMaxPitch, cuda->desc.ordinal), error);
    cuda->max_pitch_bytes = (size_t)max_pitch;
    if (!status)
        status = MEMOI_CUDA_CALL(
            cudaDeviceGetAttribute,
            (&cuda->can_register, cudaDevAttrCanUseHostPointerForRegisteredMem, cuda->desc.ordinal),
            error);
    cuda->n_queues = connections && atoi(connections) > 0 ? atoi(connections) : 8;
    if (cuda->n_queues == 1)
        memoi_cuda_log(&cuda->desc.log,
                       "CUDA_DEVICE_MAX_CONNECTIONS is 1: all streams share one hardware queue, "
                       "and copies overlap less with computation; 8 or more is better");
    return status;
}

/* What the device takes from CUDA; memo_cuda_device_destroy gives back any part of it. */
MEMOI memo_status memoi_cuda_acquire(memoi_cuda* cuda, memo_error* error) {
    memo_status status = memoi_cuda_driver_open(&cuda->driver, error);
    if (!status)
        status = MEMOI_CUDA_DRIVER(&cuda->driver, retain, cuDevicePrimaryCtxRetain,
                                   (&cuda->context, cuda->desc.ordinal), error);
    if (status) return status;
    memoi_cuda_on on(cuda, error);
    status = on.status;
    if (!status) status = memoi_cuda_read_attributes(cuda, error);
    if (!status)
        status = MEMOI_CUDA_CALL(cudaStreamCreateWithFlags, (&cuda->probe, cudaStreamNonBlocking),
                                 error);
    if (!status) status = memoi_cuda_prepare_worker(cuda, error);
    if (!status && cuda->desc.phantom_bytes) status = memoi_cuda_phantom_make(cuda, error);
    return status;
}

MEMOI void memoi_cuda_fill_table(memoi_cuda* cuda) {
    memo_device* table = &cuda->table;
    table->struct_bytes = (int64_t)sizeof *table;
    table->name = cuda->phantom ? "cuda phantom" : "cuda";
    table->context = cuda;

#define MEMOI_CUDA_SET(function) table->function = memoi_cuda_##function;
    MEMOB_DEVICE_FUNCTIONS(MEMOI_CUDA_SET)
    MEMOI_CUDA_SET(event_create_untimed)
    MEMOI_CUDA_SET(launch_host)
#ifdef MEMO_SP_H
    MEMOI_CUDA_SET(row_kernel)
#endif
#ifdef MEMOI_CUDA_HAS_INSPECT
    MEMOI_CUDA_SET(inspect)
#endif
}

memo_status memo_cuda_device_create(const memo_cuda_device_desc* desc, memo_device** device,
                                    memo_error* error) {
    MEMOB_REFUSE_NULL(error, "device", device);
    memoi_cuda* cuda;
    memo_status status = memoi_cuda_check_desc(desc, error);
    int n_devices = 0;
    *device = NULL;
    if (!status) status = MEMOI_CUDA_CALL(cudaGetDeviceCount, (&n_devices), error);
    if (status) return status;
    if (desc->ordinal >= n_devices)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "memo_cuda_device_desc.ordinal: no such GPU (%d); CUDA has %d",
                              (int)desc->ordinal, n_devices);

    /* What failed half-way is given back by destroy. */
    cuda = (memoi_cuda*)memob_calloc(1, sizeof *cuda);
    if (!cuda) return memob_no_memory(error, "a CUDA device");
    cuda->magic = MEMOI_CUDA_MAGIC;
    cuda->desc = *desc;
    cuda->table.context = cuda;
    pthread_mutex_init(&cuda->mutex, NULL);
    pthread_cond_init(&cuda->has_work, NULL);
    status = memoi_cuda_acquire(cuda, error);
    memoi_cuda_fill_table(cuda);
    if (status) {
        memo_cuda_device_destroy(&cuda->table);
        return status;
    }
    *device = &cuda->table;
    return MEMO_STATUS_OK;
}

/* Also of a device around it, such as a recorder's.  NULL: memo_cuda_device_create made none.  A
 * context is only looked at if some function of the table is of this device. */
MEMOI memoi_cuda* memoi_cuda_of(const memo_device* device) {
#define MEMOI_CUDA_HAS(function) || device->function == memoi_cuda_##function
    for (; device; device = MEMO_DEVICE_HAS(device, inner) ? device->inner : NULL) {
        const int is_cuda = 0 MEMOB_DEVICE_NEEDS(MEMOI_CUDA_HAS);
        memoi_cuda* cuda = is_cuda ? (memoi_cuda*)device->context : NULL;
        if (cuda && cuda->magic == MEMOI_CUDA_MAGIC) return cuda;
    }
    return NULL;
}

/* What copies may still use stays mapped until the process ends. */
MEMOI void memoi_cuda_release_host_blocks(memoi_cuda* cuda) {
    memoi_cuda_block *block, *left = cuda->host_blocks;
    int64_t kept_bytes = 0;
    char kept[32], message[160];
    cuda->host_blocks = NULL;
    while ((block = left) != NULL) {
        left = block->next;
        (void)memoi_cuda_release_host(cuda, block, NULL);
    }

    while ((block = cuda->host_blocks) != NULL) {
        cuda->host_blocks = block->next;
        kept_bytes += block->mapped_bytes;
        MEMO_FREE(block);
    }
    MEMO_ASSERT(kept_bytes || cuda->stats.host_bytes == 0); /* 1 */
    if (!kept_bytes) return;
    snprintf(message, sizeof message,
             "pinned memory: %s stay mapped, because the device could not be waited for",
             memob_bytes_text(kept, (double)kept_bytes));
    memoi_cuda_log(&cuda->desc.log, message);
}

void memo_cuda_device_destroy(memo_device* device) {
    memoi_cuda* cuda = memoi_cuda_of(device);
    memoi_cuda_block* block;
    if (!cuda || device->context != cuda) return;
    if (cuda->context) {
        memoi_cuda_on on(cuda, NULL);
        /* Nothing uses the memory any more, unless CUDA refuses all calls after an error. */
        if (cuda->probe) (void)MEMOI_CUDA_CALL(cudaDeviceSynchronize, (), NULL);
        memoi_cuda_end_worker(cuda);
        while ((block = cuda->device_blocks) != NULL) {
            cuda->device_blocks = block->next;
            (void)memoi_cuda_release_device(cuda, block, NULL);
        }
        MEMO_ASSERT(cuda->stats.device_bytes == 0); /* 1 */
        memoi_cuda_release_host_blocks(cuda);
        memoi_cuda_phantom_destroy(cuda->phantom);
        if (cuda->probe) (void)MEMOI_CUDA_CALL(cudaStreamDestroy, (cuda->probe), NULL);
    }

    if (cuda->context) (void)cuda->driver.release_context(cuda->desc.ordinal);
    pthread_mutex_destroy(&cuda->mutex);
    pthread_cond_destroy(&cuda->has_work);
    cuda->magic = 0;
    MEMO_FREE(cuda);
}

void memo_cuda_device_fail(void* device, const memo_error* why) {
    memoi_cuda* cuda = memoi_cuda_of((const memo_device*)device);
    if (cuda) memob_failure_keep(&cuda->failure, why->status, "%.400s", why->message);
}

memo_cuda_device_stats memo_cuda_device_get_stats(const memo_device* device) {
    const memoi_cuda* cuda = memoi_cuda_of(device);
    return cuda ? cuda->stats : MEMO_ZERO(memo_cuda_device_stats);
}
