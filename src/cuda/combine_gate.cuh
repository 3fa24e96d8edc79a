/* The gate between a combine's tiles and the other ranks' buffers. Tiles are multiplied while the ranks still meet; a
 * warp that would idle waits for the peers' entry, and no warp stores its first tile before that: a peer may still read
 * what the last run left in its buffer.
 */
#ifndef DT_CUDA_COMBINE_GATE_CUH
#define DT_CUDA_COMBINE_GATE_CUH

#include "cuda/combine_roles.cuh"
#include "cuda/pipeline.cuh"
#include "cuda/tile_combine.h"

/* The combine that a launch of the engine runs; only if it runs one. */
DT_DEVICE const dt_tile_combine &dt_combine_of(const dt_tile_gemm &gemm) {
  return (const dt_tile_combine &)gemm;
}

DT_DEVICE const dt_tile_split &dt_split_of(const dt_tile_gemm &gemm) {
  return (const dt_tile_split &)gemm;
}

/* Before dt_barrier_init_fence. */
DT_DEVICE void dt_gate_init(uint32_t shared) {
  dt_barrier_init(shared + DT_SHARED_GATE, 1);
}

/* One lane says what has been decided: the word, then the barrier's only phase. */
DT_DEVICE void dt_gate_decide(uint32_t shared, bool open) {
  dt_store_shared_word(shared + DT_SHARED_GATE_OPEN, open);
  dt_barrier_arrive(shared + DT_SHARED_GATE);
}

/* Opens the gate once all peers have entered (a lane each acquires; pairs with the peers' dt_combine_enter_kernel). If
 * one does not come it stays shut and no more tickets are handed out. Whole warp. */
DT_DEVICE void dt_gate_keep(const dt_tile_gemm &gemm, uint32_t shared) {
  const dt_tile_combine &c = dt_combine_of(gemm);
  const int32_t lane = (int32_t)(threadIdx.x % 32);
  if (!c.gated) {
    if (lane == 0) dt_gate_decide(shared, true);
    return;
  }
  dt_grid_wait(); /* the epoch and the table are the kernels' before */
  if (c.combine.opens) {
    /* The first CTA to come tells the peers, whichever that is: nobody waits for one that is not resident. */
    const uint32_t epoch = dt_combine_epoch(c.combine);
    const uint32_t before = lane == 0 ? atomicExch(&c.combine.state->opened, epoch) : 0;
    if (__shfl_sync(0xffffffffu, before, 0) != epoch) dt_combine_announce(c.combine, lane, epoch);
  }
  dt_combine_await_entry(c.combine, lane);
  __syncwarp();
  if (lane != 0) return;
  const bool failed = dt_combine_failed(c.combine);
  if (failed) atomicMax(&gemm.header->next, gemm.header->count);
  dt_gate_decide(shared, !failed);
}

/* At a cluster's end: the last one to come closes the epoch. Its stores are complete and a barrier of the cluster has
 * passed that on. One warp of the cluster. */
DT_DEVICE void dt_gate_leave(const dt_tile_gemm &gemm) {
  const dt_tile_combine &c = dt_combine_of(gemm);
  if (!c.closes) return;
  uint32_t left = 0;
  if (threadIdx.x % 32 == 0) {
    dt_fence_sys();
    left = dt_add_acq_rel(&c.combine.state->done, DT_TILE_CLUSTER) + DT_TILE_CLUSTER;
  }
  if (__shfl_sync(0xffffffffu, left, 0) != (uint32_t)c.tile_ctas) return;
  if (c.keeps && threadIdx.x % 32 == 0) gemm.header->next = 0;
  dt_combine_close(c.combine);
}

/* Until that is decided, which dt_gate_keep does in bounded time. A whole warp, before it stores its first tile:
 * through the asynchronous proxy, too. */
DT_DEVICE void dt_gate_wait(uint32_t shared) {
  while (!dt_barrier_try(shared + DT_SHARED_GATE, 0)) continue;
  dt_fence_async_global();
  __syncwarp();
}

DT_DEVICE bool dt_gate_open(uint32_t shared) {
  return dt_load_shared_word(shared + DT_SHARED_GATE_OPEN) != 0;
}

#endif
