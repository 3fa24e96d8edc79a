/* The combine: the tile engine on tiles whose rows go to other ranks, and consumers beside them. */
#include "cuda/tile_engine.cuh"

/* The tiles' CTAs come first: they wait for nothing that the others do, so that any number of resident CTAs gets on. */
__global__ void __cluster_dims__(DT_TILE_CLUSTER, 1, 1) __launch_bounds__(DT_THREADS, 1)
    dt_tile_combine_kernel(const __grid_constant__ dt_tile_combine c) {
  extern __shared__ uint8_t dt_shared[];
  const int32_t index = (int32_t)blockIdx.x - c.tile_ctas;
  if (index >= 0) {
    dt_grid_wait(); /* entry, plan and table are over: the counters are clear */
    dt_combine_consume<true>(c.combine, index, (int32_t)gridDim.x - c.tile_ctas, dt_shared_start(dt_shared));
    return;
  }
  dt_run_cta<false, true>(c.gemm, dt_shared);
}

extern "C" cudaError_t dt_tile_combine_launch(const dt_tile_combine *combine, int consumers, cudaStream_t stream) {
  return dt_launch_clusters((const void *)dt_tile_combine_kernel, combine, combine->tile_ctas + consumers, stream);
}
