/* The CUDA driver API, loaded at run time through the runtime library: nothing links libcuda, so the same library also
 * runs where there is no driver. Pointers are NULL until dt_cuda_driver succeeded.
 */
#ifndef DT_CUDA_DRIVER_H
#define DT_CUDA_DRIVER_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include <draintile/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* symbol, first version that has it, parameters */
#define DT_CUDA_DRIVER_TABLE(X)                                                                                        \
  X(cuDeviceGetAttribute, 2000, (int *, CUdevice_attribute, CUdevice))                                                 \
  X(cuGetErrorName, 6000, (CUresult, const char **))                                                                   \
  X(cuMemGetAllocationGranularity, 10020, (size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags))   \
  X(cuMemCreate, 10020, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))     \
  X(cuMemRelease, 10020, (CUmemGenericAllocationHandle))                                                               \
  X(cuMemAddressReserve, 10020, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                      \
  X(cuMemAddressFree, 10020, (CUdeviceptr, size_t))                                                                    \
  X(cuMemMap, 10020, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))                  \
  X(cuMemUnmap, 10020, (CUdeviceptr, size_t))                                                                          \
  X(cuMemSetAccess, 10020, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                                     \
  X(cuMemExportToShareableHandle, 10020,                                                                               \
    (void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long))                             \
  X(cuMemImportFromShareableHandle, 10020, (CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType))        \
  X(cuTensorMapEncodeTiled, 12000,                                                                                     \
    (CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,                   \
     const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,        \
     CUtensorMapFloatOOBfill))

typedef struct dt_cuda_driver_api {
#define DT_CUDA_DRIVER_MEMBER(name, version, parameters) CUresult(CUDAAPI *name) parameters;
  DT_CUDA_DRIVER_TABLE(DT_CUDA_DRIVER_MEMBER)
#undef DT_CUDA_DRIVER_MEMBER
} dt_cuda_driver_api;

/* Sets *api to the loaded table (static; loaded once). DT_ERR_NO_DEVICE: no driver or no GPU; DT_ERR_UNSUPPORTED
 * names the function that this driver lacks. */
dt_status dt_cuda_driver(const dt_cuda_driver_api **api);

/* Number of GPUs; 0 without a driver, never an error. */
int dt_cuda_device_count(void);

/* DT_OK, or DT_ERR_DEVICE (DT_ERR_MEMORY when it ran out, DT_ERR_NO_DEVICE without a driver or a GPU) with "what: error
 * name". */
dt_status dt_cuda_check(cudaError_t result, const char *what);
dt_status dt_cuda_driver_check(CUresult result, const char *what);

/* cudaDeviceSynchronize, tried again for up to a second while another thread of this process captures a graph on the
 * device: CUDA refuses it then, and that thread's capture is lost, so whoever captures tries again as well. */
cudaError_t dt_cuda_settle(void);

/* cudaMemcpy and cudaMemset that are over when they return. By themselves both may return before, and a stream made
 * cudaStreamNonBlocking does not wait for the legacy stream, where they are: a kernel queued there next might see the
 * memory as it was, or have what it wrote overwritten. Nothing else on the device is waited for. */
cudaError_t dt_cuda_write(void *to, const void *from, size_t bytes);
cudaError_t dt_cuda_fill(void *memory, int value, size_t bytes);

/* *sms: multiprocessors of the current device. DT_ERR_UNSUPPORTED: it is not a Hopper. */
dt_status dt_cuda_hopper(int *sms);

#ifdef __cplusplus
}
#endif
#endif
