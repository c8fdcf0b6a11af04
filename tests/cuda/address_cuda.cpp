/* address_cuda.cpp - a CUDA runtime whose memory is addresses only, as large as an H200's: what
 * PyTorch's caching allocator calls, so that bench/arena.c measures it without a GPU. */
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <string.h>
#include <unordered_map>

static const size_t DEVICE_BYTES = (size_t)139 << 30, GRANULE = (size_t)2 << 20;
static size_t used_bytes;
static uintptr_t next_address = (uintptr_t)1 << 44;
static std::unordered_map<void*, size_t> live;

extern "C" {

/* --- memory --- */

cudaError_t cudaMalloc(void** address, size_t n_bytes) {
    n_bytes = (n_bytes + GRANULE - 1) / GRANULE * GRANULE;
    if (n_bytes > DEVICE_BYTES - used_bytes) return cudaErrorMemoryAllocation;
    *address = (void*)next_address;
    live[*address] = n_bytes;
    next_address += n_bytes;
    used_bytes += n_bytes;
    return cudaSuccess;
}
cudaError_t cudaFree(void* address) {
    auto found = live.find(address);
    if (!address) return cudaSuccess;
    if (found == live.end()) return cudaErrorInvalidValue;
    used_bytes -= found->second;
    live.erase(found);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
    *free_bytes = DEVICE_BYTES - used_bytes;
    *total_bytes = DEVICE_BYTES;
    return cudaSuccess;
}

/* --- one device, with nothing on its streams --- */

cudaError_t cudaGetDeviceCount(int* n) {
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* ordinal) {
    *ordinal = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
    memset(properties, 0, sizeof *properties);
    properties->major = 9;
    properties->totalGlobalMem = DEVICE_BYTES;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }

} /* extern "C" */
