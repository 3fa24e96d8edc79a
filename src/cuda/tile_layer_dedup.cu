/* The MoE layer with dedup: the tile engine on all tasks, beside the kernel that sends tokens. */
#define DT_BESIDE
#include "cuda/layer_consume.cuh"
#include "cuda/tile_engine.cuh"

__global__ void __cluster_dims__(DT_TILE_CLUSTER, 1, 1) __launch_bounds__(DT_THREADS, 1)
    dt_tile_layer_dedup_kernel(const __grid_constant__ dt_tile_layer layer) {
  extern __shared__ uint8_t dt_shared[];
  if (dt_layer_consume(layer, dt_shared_start(dt_shared))) return;
  dt_run_cta<true>(layer.gemm, dt_shared);
}

extern "C" cudaError_t dt_tile_layer_dedup_launch(const dt_tile_layer *layer, int ctas, cudaStream_t stream) {
  return dt_launch_clusters((const void *)dt_tile_layer_dedup_kernel, layer, ctas, stream);
}
