/* The grouped GEMM where tasks may be turned (tile_table.h). */
#include "cuda/tile_engine.cuh"

__global__ void __cluster_dims__(DT_TILE_CLUSTER, 1, 1) __launch_bounds__(DT_THREADS, 1)
    dt_tile_turned_kernel(const __grid_constant__ dt_tile_gemm gemm) {
  extern __shared__ uint8_t dt_shared[];
  dt_run_cta<false, false, true>(gemm, dt_shared);
}

extern "C" cudaError_t dt_tile_turned_launch(const dt_tile_gemm *gemm, int ctas, cudaStream_t stream) {
  return dt_launch_clusters((const void *)dt_tile_turned_kernel, gemm, ctas, stream);
}
