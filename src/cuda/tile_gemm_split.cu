/* The combine by direct stores where tasks may be turned (tile_table.h), for one or two ranks. */
#include "cuda/tile_engine.cuh"

__global__ void __cluster_dims__(DT_TILE_CLUSTER, 1, 1) __launch_bounds__(DT_THREADS, 1)
    dt_tile_split_kernel(const __grid_constant__ dt_tile_split split) {
  extern __shared__ uint8_t dt_shared[];
  dt_run_cta<false, true, true>(split.combine.gemm, dt_shared);
}

/* A box may begin at a slab's last row and is read whole: behind the last slab there must be something. */
enum { DT_SPLIT_ALLOCATION = DT_SHARED_SLOTS + DT_SLAB_BYTES + 1024 };
static_assert((int)DT_SPLIT_ALLOCATION >= (int)DT_SHARED_ALLOCATION && DT_SPLIT_ALLOCATION <= 227 * 1024,
              "shared memory");

extern "C" cudaError_t dt_tile_split_launch(const dt_tile_split *split, cudaStream_t stream) {
  const void *kernel = (const void *)dt_tile_split_kernel;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, DT_SPLIT_ALLOCATION);
  if (error != cudaSuccess) return error;
  return dt_launch_early(kernel, split, split->combine.tile_ctas, DT_THREADS, DT_SPLIT_ALLOCATION, 1, stream);
}
