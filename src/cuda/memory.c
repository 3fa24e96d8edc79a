/* draintile/cuda_memory.h over the CUDA runtime. */
#include <draintile/cuda_memory.h>

#include <string.h>

#include "core/error.h"
#include "driver.h"

int32_t dt_cuda_devices(void) {
  return (int32_t)dt_cuda_device_count();
}

dt_status dt_cuda_device_info(int32_t device, dt_cuda_device *info) {
  const int32_t devices = dt_cuda_devices();
  if (device < 0 || device >= devices) return dt_fail(DT_ERR_NO_DEVICE, "device: %d; of %d GPUs", device, devices);
  struct cudaDeviceProp properties;
  const dt_status status = dt_cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  if (status) return status;
  *info = (dt_cuda_device){.sms = properties.multiProcessorCount,
                           .major = properties.major,
                           .minor = properties.minor,
                           .memory_bytes = properties.totalGlobalMem};
  memcpy(info->name, properties.name, sizeof info->name - 1);
  return DT_OK;
}

dt_status dt_cuda_device_use(int32_t device) {
  const int32_t devices = dt_cuda_devices();
  if (device < 0 || device >= devices) return dt_fail(DT_ERR_NO_DEVICE, "device: %d; of %d GPUs", device, devices);
  return dt_cuda_check(cudaSetDevice(device), "cudaSetDevice");
}

dt_status dt_cuda_alloc(size_t bytes, void **memory) {
  void *allocated = NULL;
  const cudaError_t error = cudaMalloc(&allocated, bytes > 0 ? bytes : 1);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError(); /* not sticky: later calls are not to report it */
    return dt_fail(DT_ERR_MEMORY, "device memory: %zu bytes", bytes);
  }
  if (error == cudaSuccess) *memory = allocated;
  return dt_cuda_check(error, "cudaMalloc");
}

void dt_cuda_free(void *memory) {
  if (memory) cudaFree(memory);
}

dt_status dt_cuda_copy(void *to, const void *from, size_t bytes) {
  cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cudaStreamPerThread);
  if (error == cudaSuccess) error = cudaStreamSynchronize(cudaStreamPerThread);
  return dt_cuda_check(error, "copy");
}

dt_status dt_cuda_set(void *memory, int value, size_t bytes) {
  cudaError_t error = cudaMemsetAsync(memory, value, bytes, cudaStreamPerThread);
  if (error == cudaSuccess) error = cudaStreamSynchronize(cudaStreamPerThread);
  return dt_cuda_check(error, "set");
}

dt_status dt_cuda_stream_create(void **stream) {
  cudaStream_t made = NULL;
  const dt_status status = dt_cuda_check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "stream");
  if (!status) *stream = made;
  return status;
}

dt_status dt_cuda_stream_wait(void *stream) {
  return dt_cuda_check(cudaStreamSynchronize(stream), "stream");
}

void dt_cuda_stream_destroy(void *stream) {
  if (stream) cudaStreamDestroy(stream);
}

dt_status dt_cuda_event_create(void **event) {
  cudaEvent_t made = NULL;
  const dt_status status = dt_cuda_check(cudaEventCreate(&made), "event");
  if (!status) *event = made;
  return status;
}

dt_status dt_cuda_event_record(void *event, void *stream) {
  return dt_cuda_check(cudaEventRecord(event, stream), "event");
}

dt_status dt_cuda_event_seconds(void *start, void *stop, double *seconds) {
  float ms = 0;
  cudaError_t error = cudaEventSynchronize(stop);
  if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, start, stop);
  if (error == cudaSuccess) *seconds = 1e-3 * (double)ms;
  return dt_cuda_check(error, "event");
}

void dt_cuda_event_destroy(void *event) {
  if (event) cudaEventDestroy(event);
}
