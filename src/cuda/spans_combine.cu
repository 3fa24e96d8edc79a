/* The combine's engine, tiles alone, with stamps. */
#define DT_STAMPED
#include "cuda/spans_combine.h"
#include "cuda/tile_engine.cuh"

__global__ void __cluster_dims__(DT_TILE_CLUSTER, 1, 1) __launch_bounds__(DT_THREADS, 1)
    dt_stamped_combine_kernel(const __grid_constant__ dt_stamped_combine c) {
  extern __shared__ uint8_t dt_shared[];
  const uint32_t shared = dt_shared_start(dt_shared);
  if (threadIdx.x == DT_THREADS - 32) dt_stamps_open(c.stamps, shared);
  dt_run_cta<false, true>(c.combine.gemm, dt_shared);
  if (threadIdx.x == DT_THREADS - 32) dt_stamps_close(c.stamps, shared);
}

extern "C" cudaError_t dt_stamped_combine_launch(const dt_stamped_combine *combine, cudaStream_t stream) {
  return dt_launch_clusters((const void *)dt_stamped_combine_kernel, combine, combine->combine.tile_ctas, stream);
}
