#pragma once
#include "cuda/state.h"
/* ---- >>phantom memory ---------------------------------------------------------------------------
 * Knows: the driver's virtual memory management.  Knows nothing of who requested the addresses.
 *
 * 1. A chunk is whole pages, and the addresses are whole chunks.
 * 2. Each chunk of the addresses is mapped once. */

struct memoi_cuda_phantom {
    const memoi_cuda* cuda;
    CUmemAllocationProp properties;
    int64_t page_bytes; /* sizes of chunks are multiples of it */
    CUmemGenericAllocationHandle chunk;
    int64_t chunk_bytes; /* 0: none yet */
    CUdeviceptr address;
    int64_t size_bytes; /* of addresses: whole chunks */
    int64_t n_mapped;
};

MEMOI int memoi_cuda_has(const memoi_cuda* cuda, CUdevice_attribute attribute) {
    int value = 0;
    return cuda->driver.get_attribute(&value, attribute, cuda->desc.ordinal) == CUDA_SUCCESS &&
           value;
}

/* What the pages must be able to do.  A GPU that lacks something gets pages without it. */
MEMOI memo_status memoi_cuda_phantom_describe(memoi_cuda_phantom* phantom, memo_error* error) {
    const memoi_cuda* cuda = phantom->cuda;
    CUmemAllocationProp* properties = &phantom->properties;
    size_t page_bytes = 0;
    memo_status status;
    if (!memoi_cuda_has(cuda, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "memo_cuda_device_desc.phantom_bytes: GPU %d has no virtual memory "
                              "management; use 0",
                              cuda->desc.ordinal);
    properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties->location.id = cuda->desc.ordinal;
    if (memoi_cuda_has(cuda, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
        properties->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (memoi_cuda_has(cuda, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED))
        properties->allocFlags.gpuDirectRDMACapable = 1;
    status =
        MEMOI_CUDA_DRIVER(&cuda->driver, granularity, cuMemGetAllocationGranularity,
                          (&page_bytes, properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), error);
    phantom->page_bytes = (int64_t)page_bytes;
    return status;
}

/* The device's context is current. */
MEMOI void memoi_cuda_phantom_destroy(memoi_cuda_phantom* phantom) {
    const memoi_cuda_driver* driver;
    CUdeviceptr at;
    if (!phantom) return;
    driver = &phantom->cuda->driver;
    for (at = phantom->address; phantom->n_mapped > 0; phantom->n_mapped--) {
        (void)driver->unmap(at, (size_t)phantom->chunk_bytes);
        at += (CUdeviceptr)phantom->chunk_bytes;
    }
    if (phantom->address)
        (void)driver->free_addresses(phantom->address, (size_t)phantom->size_bytes);
    if (phantom->chunk_bytes) (void)driver->release(phantom->chunk);
    MEMO_FREE(phantom);
}

/* Fewer, larger mappings are faster to make.  Without a requested size, a chunk that does not fit
 * is halved. */
MEMOI memo_status memoi_cuda_take_chunk(memoi_cuda_phantom* phantom, memo_error* error) {
    const int64_t most_bytes = (int64_t)1 << 30, least_bytes = (int64_t)16 << 20;
    const memo_cuda_device_desc* desc = &phantom->cuda->desc;
    const memoi_cuda_driver* driver = &phantom->cuda->driver;
    int64_t chunk_bytes = desc->phantom_chunk_bytes;
    const int is_chosen = chunk_bytes != 0;
    memo_status status;
    if (!is_chosen) chunk_bytes = memob_min(desc->phantom_bytes, most_bytes);
    for (;;) {
        int64_t whole_bytes = memob_align_up(chunk_bytes, phantom->page_bytes);
        status = MEMOI_CUDA_DRIVER(driver, create, cuMemCreate,
                                   (&phantom->chunk, (size_t)whole_bytes, &phantom->properties, 0),
                                   error);
        if (!status) phantom->chunk_bytes = whole_bytes;
        MEMO_ASSERT(phantom->chunk_bytes % phantom->page_bytes == 0); /* 1 */
        if (status != MEMO_STATUS_OUT_OF_DEVICE_MEMORY || is_chosen || chunk_bytes <= least_bytes)
            return status;
        chunk_bytes /= 2;
    }
}

MEMOI memo_status memoi_cuda_map_chunk(memoi_cuda_phantom* phantom, memo_error* error) {
    const int64_t size_bytes = phantom->cuda->desc.phantom_bytes;
    const int64_t n_chunks = (size_bytes - 1) / phantom->chunk_bytes + 1;
    const memoi_cuda_driver* driver = &phantom->cuda->driver;
    CUmemAccessDesc access;
    CUdeviceptr at;
    memo_status status;
    phantom->size_bytes = n_chunks * phantom->chunk_bytes;
    MEMO_ASSERT(phantom->size_bytes >= size_bytes); /* 1 */
    status = MEMOI_CUDA_DRIVER(driver, reserve, cuMemAddressReserve,
                               (&phantom->address, (size_t)phantom->size_bytes, 0, 0, 0), error);
    for (at = phantom->address; phantom->n_mapped < n_chunks && !status;
         at += (CUdeviceptr)phantom->chunk_bytes) {
        status = MEMOI_CUDA_DRIVER(driver, map, cuMemMap,
                                   (at, (size_t)phantom->chunk_bytes, 0, phantom->chunk, 0), error);
        if (!status) phantom->n_mapped++;
    }
    MEMO_ASSERT(status || at == phantom->address + (CUdeviceptr)phantom->size_bytes); /* 2 */
    memset(&access, 0, sizeof access);
    access.location = phantom->properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return status ? status
                  : MEMOI_CUDA_DRIVER(driver, set_access, cuMemSetAccess,
                                      (phantom->address, (size_t)phantom->size_bytes, &access, 1),
                                      error);
}

/* The device's context is current.  After a failure the device's destruction gives back what was
 * taken. */
MEMOI memo_status memoi_cuda_phantom_make(memoi_cuda* cuda, memo_error* error) {
    memoi_cuda_phantom* phantom = (memoi_cuda_phantom*)memob_calloc(1, sizeof *phantom);
    memo_status status;
    if (!phantom) return memob_no_memory(error, "phantom memory");
    cuda->phantom = phantom;
    phantom->cuda = cuda;
    status = memoi_cuda_phantom_describe(phantom, error);
    if (!status) status = memoi_cuda_take_chunk(phantom, error);
    if (!status) status = memoi_cuda_map_chunk(phantom, error);
    return status;
}
