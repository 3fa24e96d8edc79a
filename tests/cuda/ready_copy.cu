/* A consumer that runs beside the GEMM: it waits for each band's counter, then copies the band's rows. */
#include <cuda_runtime.h>
#include <stdint.h>

static __global__ void ready_copy_kernel(const uint32_t *ready, const int32_t *row, const int32_t *rows, int bands,
                                         uint32_t tiles, const uint4 *from, uint4 *to, int row_words,
                                         uint32_t *expired) {
  for (int band = blockIdx.x; band < bands; band += gridDim.x) {
    if (threadIdx.x == 0) {
      uint64_t start, now;
      uint32_t seen;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(ready + band) : "memory");
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
      } while (seen < tiles * (uint32_t)rows[band] && now - start < 2000000000ull);
      if (seen < tiles * (uint32_t)rows[band]) atomicAdd(expired, 1u);
    }
    __syncthreads();
    const int64_t first = (int64_t)row[band] * row_words;
    for (int i = threadIdx.x; i < rows[band] * row_words; i += blockDim.x) to[first + i] = from[first + i];
    __syncthreads();
  }
}

/* tiles: how many tiles of a band it waits for. */
extern "C" cudaError_t ready_copy(const uint32_t *ready, const int32_t *row, const int32_t *rows, int bands,
                                  uint32_t tiles, const uint16_t *from, uint16_t *to, int64_t n, uint32_t *expired,
                                  cudaStream_t stream) {
  ready_copy_kernel<<<8, 512, 0, stream>>>(ready, row, rows, bands, tiles, (const uint4 *)from, (uint4 *)to,
                                           (int)(n / 8), expired);
  return cudaGetLastError();
}
