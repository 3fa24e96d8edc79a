/* Device memory in front of which nothing is mapped, so that an access there is an error on every machine: maps that
 * begin where row 0 would be begin there. */
#ifndef SUPPORT_GUARDED_H
#define SUPPORT_GUARDED_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "core/error.h"
#include "cuda/driver.h"

enum { SUPPORT_GUARD_BYTES = 1 << 26 }; /* of addresses: a multiple of any granularity */

/* On this thread's device. Never freed. */
static inline dt_status support_guarded(void **pointer, size_t bytes) {
  const dt_cuda_driver_api *api;
  int device = 0;
  dt_status status = dt_cuda_driver(&api);
  if (!status) status = dt_cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  if (status) return status;
  const CUmemAllocationProp memory = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
  const CUmemAccessDesc access = {.location = memory.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle;
  CUdeviceptr reserved = 0;
  size_t step = 1;
  CUresult result = api->cuMemGetAllocationGranularity(&step, &memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  bytes = (bytes + step - 1) / step * step;
  if (!result) result = api->cuMemAddressReserve(&reserved, bytes + SUPPORT_GUARD_BYTES, step, 0, 0);
  if (!result) result = api->cuMemCreate(&handle, bytes, &memory, 0);
  if (!result) result = api->cuMemMap(reserved + SUPPORT_GUARD_BYTES, bytes, 0, handle, 0);
  if (!result) result = api->cuMemSetAccess(reserved + SUPPORT_GUARD_BYTES, bytes, &access, 1);
  *pointer = (void *)(uintptr_t)(reserved + SUPPORT_GUARD_BYTES);
  return dt_cuda_driver_check(result, "guarded memory");
}

#endif
