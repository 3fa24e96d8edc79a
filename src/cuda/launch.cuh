/* Host side: a launch that may come before the kernel ahead of it has ended. */
#ifndef DT_CUDA_LAUNCH_CUH
#define DT_CUDA_LAUNCH_CUH

#include <cuda_runtime_api.h>
#include <stddef.h>

/* `params` points to the kernel's only parameter. shared: bytes of dynamic shared memory. early: programmatic. */
static inline cudaError_t dt_launch_early(const void *kernel, const void *params, int blocks, int threads,
                                          size_t shared, int early, cudaStream_t stream) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = early;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((unsigned)blocks);
  config.blockDim = dim3((unsigned)threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  void *arguments[] = {const_cast<void *>(params)};
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

#endif
