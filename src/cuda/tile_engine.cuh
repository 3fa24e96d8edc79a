/* The tile engine: one persistent kernel of warp-specialised clusters of two CTAs.
 *
 * Warps 0 to 7 are two warpgroups of consumers, 64 rows of the tile each; warp 8 loads operands; warp 9 publishes what
 * is stored; warp 10 of CTA 0 draws tickets for the cluster. A consumer packs a finished tile into 64 registers and
 * stores it, 64 columns at a time, during the next tile's main loop, so that stores never keep the tensor cores
 * waiting. See docs/engine.md.
 *
 * Layer false is the grouped GEMM, Gated one whose rows wait for other ranks (docs/combine.md); Layer true runs the
 * tasks of a MoE layer (docs/moe_cuda.md): two GEMMs, of which the first ends in the activation, waits before tiles,
 * and warps that would idle dispatch rows. Each kernel is an instance in a source of its own; with stamps
 * (docs/spans.md) another.
 */
#ifndef DT_CUDA_TILE_ENGINE_CUH
#define DT_CUDA_TILE_ENGINE_CUH

#include "cuda/launch.cuh"
#include "cuda/tile_consume.cuh"

enum { DT_THREADS = 384, DT_WARP_LOAD = 8, DT_WARP_RELEASE = 9, DT_WARP_TICKET = 10, DT_WARP_ENTRY = 11 };

/* A CTA of any of the kernels. Gated: of a combine whose rows wait for the peers' entry. Turns: tasks may be turned,
 * and all rows leave through the copy engine; of a combine to one or two owners (tile_split.h). */
template <bool Layer, bool Gated = false, bool Turns = false>
DT_DEVICE void dt_run_cta(const dt_tile_gemm &gemm, const uint8_t *dynamic) {
  const uint32_t shared = dt_shared_start(dynamic);
  const uint32_t rank = dt_cluster_rank(), warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0),
                 lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    dt_grid_launch(); /* whoever follows may be there when the last tile is stored */
    if constexpr (Gated) dt_gate_init(shared);
    dt_pipeline_init(shared, DT_CONSUMER_WARPS + 1 + (Layer || gemm.ready != NULL));
    dt_tensor_prefetch(&gemm.a);
    dt_tensor_prefetch(&gemm.b);
  }
  dt_cluster_sync();
  if (warp >= DT_CONSUMER_WARPS) {
    dt_registers_lower<40>();
    if (warp == DT_WARP_LOAD && lane == 0) dt_load<Layer, Turns, Turns && Gated>(gemm, shared, rank);
    if (warp == DT_WARP_RELEASE && lane == 0) {
      if constexpr (Layer)
        dt_release_tasks(dt_layer_of(gemm), shared, rank);
      else if (gemm.ready != NULL)
        dt_release_tiles(gemm, shared, rank);
    }
    if (warp == DT_WARP_TICKET && lane == 0 && rank == 0) dt_draw<Layer>(gemm, shared);
    if constexpr (Gated)
      if (warp == DT_WARP_ENTRY) dt_gate_keep(gemm, shared);
    if constexpr (Layer)
      if (warp == DT_WARP_ENTRY) dt_copy_behind(dt_layer_of(gemm), shared);
  } else {
    dt_registers_raise<232>();
    if constexpr (Layer) {
      dt_consume_layer(dt_layer_of(gemm), shared, rank);
    } else {
      dt_consumer c;
      dt_consumer_start<false, Turns && Gated>(gemm, c, shared, rank);
      if constexpr (Turns && Gated)
        dt_consume<Gated, DT_STORES_SPLIT>(gemm, c);
      else if constexpr (!Turns)
        dt_consume<Gated, DT_STORES_ANY>(gemm, c);
      else if (c.tile.shape & DT_SHAPE_AMONG_TURNED)
        dt_consume<Gated, DT_STORES_TURNED>(gemm, c);
      else
        dt_consume<Gated, DT_STORES_COPIED>(gemm, c);
    }
  }
  __syncwarp();
  if constexpr (Layer) dt_leave();
  if (Layer && dt_load_shared_word(shared + DT_SHARED_DEAD)) dt_pause_us(200); /* copies under way must land first */
  dt_cluster_sync(); /* the peer may still arrive at barriers of this CTA */
  if constexpr (Gated)
    if (threadIdx.x < 32 && dt_cluster_rank() == 0) dt_gate_leave(gemm);
}

/* Launches `kernel` with one of the parameter structures, so that it may come before the kernel ahead has ended. */
static cudaError_t dt_launch_clusters(const void *kernel, const void *params, int ctas, cudaStream_t stream) {
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, DT_SHARED_ALLOCATION);
  if (error != cudaSuccess) return error;
  return dt_launch_early(kernel, params, ctas, DT_THREADS, DT_SHARED_ALLOCATION, 1, stream);
}

#endif
