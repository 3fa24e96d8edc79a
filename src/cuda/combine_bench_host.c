/* What the benchmarks of the combine, of the MoE layer and of attention share on the host. */
#include <stdlib.h>
#include <string.h>

#include "combine_bench.h"
#include "comm/fabric.h"
#include "core/error.h"
#include "core/random.h"
#include "driver.h"
#include "probe/burst.h"

static uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

dt_status dt_bench_values(uint64_t seed, uint16_t **values) {
  dt_random random = {seed};
  *values = malloc((size_t)DT_BENCH_PERIOD * sizeof **values);
  if (!*values) return dt_fail(DT_ERR_MEMORY, "values: %d", DT_BENCH_PERIOD);
  for (int i = 0; i < DT_BENCH_PERIOD; i++) (*values)[i] = to_bf16((float)dt_random_normal(&random));
  return DT_OK;
}

dt_status dt_bench_check_peers(int32_t gpus) {
  int reach = 1;
  for (int32_t r = 0; r < gpus; r++)
    for (int32_t p = 0; p < gpus; p++) {
      if (p == r) continue;
      const dt_status status = dt_cuda_check(cudaDeviceCanAccessPeer(&reach, r, p), "cudaDeviceCanAccessPeer");
      if (status) return status;
      if (!reach) return dt_fail(DT_ERR_UNSUPPORTED, "device %d has no peer access to device %d", r, p);
    }
  return DT_OK;
}

dt_status dt_bench_clock(cudaStream_t stream, double *hz) {
  uint64_t results[4] = {0}, *memory = NULL;
  cudaError_t error = cudaMalloc((void **)&memory, sizeof results);
  if (error == cudaSuccess) error = dt_clock_launch_kernel(3000000, memory, stream);
  if (error == cudaSuccess) error = cudaMemcpyAsync(results, memory, 24, cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  cudaFree(memory);
  if (error == cudaSuccess && results[1]) *hz = 1e9 * (double)results[0] / (double)results[1];
  return dt_cuda_check(error, "clock");
}
