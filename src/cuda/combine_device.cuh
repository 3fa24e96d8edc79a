/* What the combine operator's kernels share: words of other ranks, and errors. */
#ifndef DT_CUDA_COMBINE_DEVICE_CUH
#define DT_CUDA_COMBINE_DEVICE_CUH

#include "cuda/combine_kernels.h"
#include "cuda/words.cuh"

DT_DEVICE void dt_combine_fail(const dt_combine_params &p, uint32_t error, int32_t index, uint32_t expected,
                               uint32_t seen) {
  if (atomicCAS(&p.state->error, (uint32_t)DT_COMBINE_ERROR_NONE, error) != DT_COMBINE_ERROR_NONE) return;
  p.state->index = index;
  p.state->expected = expected;
  p.state->seen = seen;
}
DT_DEVICE bool dt_combine_failed(const dt_combine_params &p) {
  return *(volatile uint32_t *)&p.state->error != DT_COMBINE_ERROR_NONE;
}

#endif
