/* What stands before the attention kernel in its tests: words set by hand, operands that come late. */
#include "arrival_support.h"
#include "cuda/words.cuh"

namespace {
__device__ bool arrival_late(uint64_t start, uint32_t limit_us) {
  return dt_time_us() - (uint32_t)start > limit_us;
}

/* Sets the words, lets the kernel behind come, then stays until `watched` is no longer `poison`. */
__global__ void watch_kernel(uint32_t *words, int heads, uint32_t value, const uint32_t *watched, uint32_t poison,
                             uint32_t limit_us, uint32_t *seen) {
  const uint32_t start = dt_time_us();
  for (int h = 0; h < heads; h++) dt_release_sys(words + h, value);
  dt_grid_launch();
  *seen = 0;
  while (!arrival_late(start, limit_us))
    if (*(volatile const uint32_t *)watched != poison) {
      *seen = 1;
      break;
    }
}

__device__ void bring_rows(const uint4 *from, uint4 *to, int64_t rows, int heads, int head, int units) {
  for (int64_t i = threadIdx.x; i < rows * units; i += blockDim.x) {
    const int64_t at = (i / units * heads + head) * units + i % units;
    to[at] = from[at];
  }
}
/* Waits, copies one head of q, k and v into place, then says so. */
__global__ void bring_kernel(arrival_operands o, int head, uint32_t delay_us, uint32_t *word, uint32_t value) {
  const uint32_t start = dt_time_us();
  while (!arrival_late(start, delay_us)) {
  }
  const int units = o.head_dim / 8;
  for (int t = 0; t < 3; t++)
    bring_rows((const uint4 *)o.from[t], (uint4 *)o.to[t], t ? o.kv_tokens : o.tokens, o.heads, head, units);
  dt_fence_async_global(); /* the copy engine reads them next */
  __syncthreads();
  if (threadIdx.x == 0) {
    dt_fence_sys();
    dt_release_sys(word, value);
  }
}
} // namespace

extern "C" cudaError_t arrival_watch(uint32_t *words, int heads, uint32_t value, const void *watched, uint32_t poison,
                                     uint32_t limit_us, uint32_t *seen, cudaStream_t stream) {
  watch_kernel<<<1, 1, 0, stream>>>(words, heads, value, (const uint32_t *)watched, poison, limit_us, seen);
  return cudaGetLastError();
}
extern "C" cudaError_t arrival_bring(const arrival_operands *operands, int head, uint32_t delay_us, uint32_t *word,
                                     uint32_t value, cudaStream_t stream) {
  bring_kernel<<<1, 512, 0, stream>>>(*operands, head, delay_us, word, value);
  return cudaGetLastError();
}
