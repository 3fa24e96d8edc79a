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

/* Rows of a piece with dedup: tokens of any rank, when they are here (pairs with dt_send_tokens). */
typedef struct dt_staged_rows {
  const dt_tile_layer &layer;
  DT_DEVICE_MEMBER const uint32_t *word(const dt_layer_piece &piece) const {
    const int64_t bank = (int64_t)(layer.state->epoch & 1) * layer.bands_max * DT_TILE_M;
    return layer.sources[layer.rank] + bank + piece.from + threadIdx.x % 32;
  }
  DT_DEVICE_MEMBER uint32_t begin(const dt_layer_piece &piece) const {
    return (int32_t)(threadIdx.x % 32) < piece.rows ? dt_acquire_sys(word(piece)) : 0;
  }
  DT_DEVICE_MEMBER const uint8_t *found(uint32_t asked) const {
    if (asked == 0) return NULL;
    const uint8_t *row = dt_source_row(layer, asked);
    dt_expect_row(row, layer.gemm.row_bytes);
    return row;
  }
  DT_DEVICE_MEMBER const uint8_t *await(const dt_layer_piece &piece) const {
    if ((int32_t)(threadIdx.x % 32) >= piece.rows) return NULL;
    return dt_await_source(layer, word(piece), piece.band);
  }
} dt_staged_rows;

/* What the dispatch kernel has left of the copies. Waits for tokens of other ranks, which wait for nothing. */
DT_DEVICE void dt_copy_behind(const dt_tile_layer &layer, uint32_t shared) {
  dt_await_plan(layer);
  const dt_staged_rows rows = {layer};
  dt_carry_pieces(layer, shared, rows);
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
