/* Kernels of the combine's checks: poison, comparison, delays, and a multiprocessor that is kept busy. */
#include <cuda_runtime.h>
#include <stdint.h>

#include "combine_support.h"

static __device__ uint64_t now_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

static __global__ void compare_kernel(const uint4 *a, const uint4 *b, int64_t count, unsigned long long *wrong) {
  unsigned long long differ = 0;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
    const uint4 x = a[i], y = b[i];
    differ += (x.x != y.x) + (x.y != y.y) + (x.z != y.z) + (x.w != y.w);
  }
  if (differ) atomicAdd(wrong, differ);
}

static __global__ void poison_kernel(uint4 *to, int64_t count) {
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x)
    to[i] = make_uint4(~0u, ~0u, ~0u, ~0u);
}

static __global__ void delay_kernel(uint32_t ns) {
  const uint64_t start = now_ns();
  while (now_ns() - start < ns) {
  }
}

static __global__ void hold_kernel(const volatile uint32_t *end, uint64_t limit_ns) {
  const uint64_t start = now_ns();
  while (*end == 0 && now_ns() - start < limit_ns) {
  }
}

static int blocks_for(int64_t count) {
  const int64_t blocks = (count + 255) / 256;
  return (int)(blocks < 264 ? blocks : 264);
}

extern "C" cudaError_t support_compare(const void *a, const void *b, int64_t bytes, unsigned long long *wrong,
                                       cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  compare_kernel<<<blocks_for(bytes / 16), 256, 0, stream>>>((const uint4 *)a, (const uint4 *)b, bytes / 16, wrong);
  return cudaGetLastError();
}

extern "C" cudaError_t support_poison(void *to, int64_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  poison_kernel<<<blocks_for(bytes / 16), 256, 0, stream>>>((uint4 *)to, bytes / 16);
  return cudaGetLastError();
}

extern "C" cudaError_t support_delay(uint32_t ns, cudaStream_t stream) {
  delay_kernel<<<1, 1, 0, stream>>>(ns);
  return cudaGetLastError();
}

extern "C" cudaError_t support_hold(const uint32_t *end, double limit_s, cudaStream_t stream) {
  enum { WHOLE = 200 * 1024 }; /* shared memory, so that nothing of a GEMM fits beside it */
  cudaError_t error = cudaFuncSetAttribute(hold_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, WHOLE);
  if (error != cudaSuccess) return error;
  hold_kernel<<<1, 32, WHOLE, stream>>>(end, (uint64_t)(1e9 * limit_s));
  return cudaGetLastError();
}
