/* The MoE layer's engine, with stamps. */
#define DT_STAMPED
#include "cuda/layer_consume.cuh"
#include "cuda/tile_engine.cuh"

__global__ void __cluster_dims__(DT_TILE_CLUSTER, 1, 1) __launch_bounds__(DT_THREADS, 1)
    dt_stamped_layer_kernel(const __grid_constant__ dt_stamped_layer layer) {
  extern __shared__ uint8_t dt_shared[];
  const uint32_t shared = dt_shared_start(dt_shared);
  if (threadIdx.x == DT_THREADS - 32) dt_stamps_open(layer.stamps, shared);
  if (!dt_layer_consume(layer.layer, shared)) dt_run_cta<true>(layer.layer.gemm, dt_shared);
  if (threadIdx.x == DT_THREADS - 32) dt_stamps_close(layer.stamps, shared);
}

extern "C" cudaError_t dt_stamped_layer_launch(const dt_stamped_layer *layer, int ctas, cudaStream_t stream) {
  return dt_launch_clusters((const void *)dt_stamped_layer_kernel, layer, ctas, stream);
}
