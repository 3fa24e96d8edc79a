/* The gate between a combine's tiles and the other ranks' buffers. Tiles are multiplied while the ranks still meet; a
 * warp that would idle waits for the peers' entry, and no warp stores its first tile before that: a peer may still read
 * what the last run left in its buffer.
 */
#ifndef DT_CUDA_COMBINE_GATE_CUH
#define DT_CUDA_COMBINE_GATE_CUH

#include "cuda/combine_roles.cuh"
#include "cuda/pipeline.cuh"
#include "cuda/tile_combine.h"

/* Of the word in shared memory. */
enum { DT_GATE_SHUT = 0, DT_GATE_OPEN = 1, DT_GATE_FAILED = 2 };

/* The combine that a launch of the engine runs; only if it runs one. */
DT_DEVICE const dt_tile_combine &dt_combine_of(const dt_tile_gemm &gemm) {
  return (const dt_tile_combine &)gemm;
}

DT_DEVICE void dt_gate_init(const dt_tile_gemm &gemm, uint32_t shared) {
  dt_store_shared_word(shared + DT_SHARED_GATE, dt_combine_of(gemm).gated ? DT_GATE_SHUT : DT_GATE_OPEN);
}

/* Opens the gate once all peers have entered (a lane each acquires; pairs with the peers' dt_combine_enter_kernel). If
 * one does not come it stays shut and no more tickets are handed out. Whole warp. */
DT_DEVICE void dt_gate_keep(const dt_tile_gemm &gemm, uint32_t shared) {
  const dt_tile_combine &c = dt_combine_of(gemm);
  if (!c.gated) return;
  dt_grid_wait(); /* the epoch and the table are the kernels' before */
  dt_combine_await_entry(c.combine, (int32_t)(threadIdx.x % 32));
  __syncwarp();
  if (threadIdx.x % 32 != 0) return;
  const bool failed = dt_combine_failed(c.combine);
  if (failed) atomicMax(&gemm.header->next, gemm.header->count);
  dt_fence_cta();
  dt_store_shared_word(shared + DT_SHARED_GATE, failed ? DT_GATE_FAILED : DT_GATE_OPEN);
}

/* Until that is decided, which dt_gate_keep does in bounded time. A whole warp, before it stores its first tile:
 * through the asynchronous proxy, too. */
DT_DEVICE void dt_gate_wait(uint32_t shared) {
  while (dt_load_shared_word(shared + DT_SHARED_GATE) == DT_GATE_SHUT) continue;
  dt_fence_cta();
  dt_fence_async_global();
  __syncwarp();
}

DT_DEVICE bool dt_gate_open(uint32_t shared) {
  return dt_load_shared_word(shared + DT_SHARED_GATE) == DT_GATE_OPEN;
}

#endif
