#include "driver.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "comm/clock.h"
#include "core/error.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static dt_cuda_driver_api loaded;
static const char *missing; /* symbol that could not be found; NULL: all there */
static cudaError_t load_error;

static void load(void) {
  int devices = 0;
  load_error = cudaGetDeviceCount(&devices);
  if (load_error == cudaSuccess && devices == 0) load_error = cudaErrorNoDevice;
  if (load_error != cudaSuccess) return;
  static const struct {
    const char *symbol;
    unsigned version;
    size_t offset;
  } table[] = {
#define DT_CUDA_DRIVER_ROW(name, version, parameters) {#name, version, offsetof(dt_cuda_driver_api, name)},
      DT_CUDA_DRIVER_TABLE(DT_CUDA_DRIVER_ROW)
#undef DT_CUDA_DRIVER_ROW
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    cudaError_t error =
        cudaGetDriverEntryPointByVersion(table[i].symbol, &function, table[i].version, cudaEnableDefault, &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || !function) {
      missing = table[i].symbol;
      return;
    }
    memcpy((char *)&loaded + table[i].offset, &function, sizeof function);
  }
}

dt_status dt_cuda_driver(const dt_cuda_driver_api **api) {
  pthread_once(&once, load);
  if (load_error != cudaSuccess)
    return dt_fail(DT_ERR_NO_DEVICE, "no GPU that CUDA can use: %s", cudaGetErrorString(load_error));
  if (missing) return dt_fail(DT_ERR_UNSUPPORTED, "CUDA driver: %s is missing; a newer driver is needed", missing);
  *api = &loaded;
  return DT_OK;
}

int dt_cuda_device_count(void) {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

dt_status dt_cuda_check(cudaError_t result, const char *what) {
  if (result == cudaSuccess) return DT_OK;
  dt_status status = DT_ERR_DEVICE;
  if (result == cudaErrorMemoryAllocation) status = DT_ERR_MEMORY;
  if (result == cudaErrorNoDevice || result == cudaErrorInsufficientDriver) status = DT_ERR_NO_DEVICE;
  return dt_fail(status, "%s: %s (%s)", what, cudaGetErrorName(result), cudaGetErrorString(result));
}

cudaError_t dt_cuda_settle(void) {
  const uint64_t end_ns = dt_now_ns() + DT_NS_PER_S;
  cudaError_t error = cudaDeviceSynchronize();
  for (uint64_t ns = 100000; error == cudaErrorStreamCaptureUnsupported && dt_now_ns() < end_ns; ns *= 2) {
    const struct timespec a_while = dt_timespec(ns); /* longer each time: every try spoils a capture */
    cudaGetLastError();                              /* or a later launch would seem to have failed */
    nanosleep(&a_while, NULL);
    error = cudaDeviceSynchronize();
  }
  return error;
}

cudaError_t dt_cuda_write(void *to, const void *from, size_t bytes) {
  const cudaError_t error = cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
  return error == cudaSuccess ? cudaStreamSynchronize(cudaStreamLegacy) : error;
}

cudaError_t dt_cuda_fill(void *memory, int value, size_t bytes) {
  const cudaError_t error = cudaMemset(memory, value, bytes);
  return error == cudaSuccess ? cudaStreamSynchronize(cudaStreamLegacy) : error;
}

dt_status dt_cuda_hopper(int *sms) {
  int device, major, minor;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(sms, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return dt_cuda_check(error, "device attributes");
  if (major != 9 || minor != 0)
    return dt_fail(DT_ERR_UNSUPPORTED, "compute capability: %d.%d; 9.0 allowed", major, minor);
  return DT_OK;
}

dt_status dt_cuda_driver_check(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS) return DT_OK;
  const char *name = NULL;
  if (!loaded.cuGetErrorName || loaded.cuGetErrorName(result, &name) != CUDA_SUCCESS) name = "unknown error";
  return dt_fail(result == CUDA_ERROR_OUT_OF_MEMORY ? DT_ERR_MEMORY : DT_ERR_DEVICE, "%s: %s", what, name);
}
