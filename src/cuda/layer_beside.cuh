/* The tile engine's roles beside a dispatch kernel with dedup: only a source that defines DT_BESIDE before it includes
 * the engine has them (tile_layer_dedup.cu). In the others a role starts when the kernel before has ended, and idle
 * warps dispatch; the machine code is the same as if nothing of this were there.
 */
#ifndef DT_CUDA_LAYER_BESIDE_CUH
#define DT_CUDA_LAYER_BESIDE_CUH

#include "cuda/layer_roles.cuh"

#ifdef DT_BESIDE

#include "cuda/layer_expand.cuh"

/* What a role starts with: the table, counters and epoch. Beside the dispatch kernel there is no waiting for it to end:
 * its blocks say that the table is there (pairs with dt_tell_planned). The kernels ahead of both are through. */
DT_DEVICE void dt_await_plan(const dt_tile_layer &layer) {
  if (!layer.beside) return dt_grid_wait();
  const uint32_t start = dt_time_us();
  while (dt_acquire_gpu(&layer.state->planned) != dt_load_volatile(&layer.state->epoch)) {
    if (dt_layer_failed(layer)) return;
    if (dt_time_us() - start > layer.gemm.timeout_us) return dt_layer_fail(layer, DT_LAYER_ERROR_PLAN, -1, 0, 0);
  }
}

/* What the dispatch kernel has left of the copies, by one warp that has few registers. Waits for tokens of other ranks,
 * which wait for nothing. */
DT_DEVICE void dt_copy_behind(const dt_tile_layer &layer, uint32_t shared) {
  dt_await_plan(layer);
  for (;;) {
    uint32_t taken = 0;
    if (threadIdx.x % 32 == 0) taken = atomicAdd(&layer.state->next_piece, 1u);
    taken = __shfl_sync(0xffffffffu, taken, 0);
    if (taken >= layer.state->pieces || dt_layer_failed(layer)) return;
    const dt_layer_piece *piece = layer.pieces + taken;
    dt_stamp_piece(shared, taken, piece->band, piece->rows);
    if (!dt_expand_piece<4>(layer, *piece)) return;
    dt_stamp_end(shared);
  }
}

/* Whoever waits for this kernel to end also waits for the one before it. */
DT_DEVICE void dt_leave() {
  dt_grid_wait();
}

#else

DT_DEVICE void dt_await_plan(const dt_tile_layer &) {
  dt_grid_wait();
}
DT_DEVICE void dt_copy_behind(const dt_tile_layer &layer, uint32_t shared) {
  dt_dispatch_behind(layer, shared);
}
DT_DEVICE void dt_leave() {}

#endif
#endif
