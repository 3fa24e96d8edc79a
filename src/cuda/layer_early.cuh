/* What of the dispatch leaves while the table is made, by blocks of its kernel that have no part in it: the first rows
 * of the order in which L1 wants them, so that the first tiles find them. With dedup the first tokens, where tiles have
 * no rows of this rank's to begin with. Where ranks share a device there are no such blocks.
 */
#ifndef DT_CUDA_LAYER_EARLY_CUH
#define DT_CUDA_LAYER_EARLY_CUH

#include "cuda/layer_words.cuh"
#include "cuda/moe_places.h"

/* A block has placed its slots. Whole block. Release: pairs with dt_await_placed. */
DT_DEVICE void dt_tell_placed(const dt_moe_plan &p) {
  __syncthreads();
  if (threadIdx.x == 0) dt_release_add(&p.state->placed, 1);
}

/* Until all slots of this rank are placed, by other blocks of this kernel, which wait for nothing. A warp. False: gave
 * up. */
DT_DEVICE bool dt_await_placed(const dt_moe_plan &p) {
  bool good = true;
  if (threadIdx.x % DT_WARP == 0) {
    const uint32_t start = dt_time_us(), target = (uint32_t)p.slot.blocks;
    while (good && dt_acquire_gpu(&p.state->placed) < target) {
      if (dt_time_us() - start > p.timeout_us)
        dt_layer_fail(p, DT_LAYER_ERROR_PLAN, -1, target, dt_load_volatile(&p.state->placed));
      good = !dt_layer_failed(p);
    }
  }
  __syncwarp(); /* the other lanes' loads come behind this one's acquire */
  return __shfl_sync(0xffffffffu, good, 0);
}

/* Shared memory for a piece, behind what the table takes. */
DT_DEVICE uint32_t dt_early_room(const dt_moe_plan &p, const int32_t *memory) {
  const uint32_t words = (uint32_t)dt_moe_scratch_words(p.ranks, p.experts, p.order);
  return ((uint32_t)__cvta_generic_to_shared(memory + words) + 127) / 128 * 128;
}

/* A piece through shared memory, all of its rows at once, by one warp; `from`: where the lane's row is. False: gave up.
 */
DT_DEVICE bool dt_carry_early(const dt_moe_plan &p, const dt_layer_piece &piece, const uint8_t *from, uint32_t shared,
                              uint32_t parity) {
  const uint32_t lane = threadIdx.x % DT_WARP, row_bytes = (uint32_t)p.row_bytes, rows_at = shared + 128;
  const uint32_t bytes = (uint32_t)piece.rows * row_bytes;
  bool good = true;
  if (lane == 0) dt_barrier_expect(shared, bytes);
  __syncwarp();
  if ((int32_t)lane < piece.rows) dt_bulk_load(rows_at + lane * row_bytes, from, row_bytes, shared);
  if (lane == 0) {
    const uint32_t start = dt_time_us();
    while (good && !dt_barrier_try(shared, parity))
      if (dt_time_us() - start > p.timeout_us) good = false;
    if (good) {
      dt_bulk_store(p.rows_of[piece.peer] + piece.to * p.row_bytes, rows_at, bytes);
      dt_bulk_commit();
      dt_bulk_wait_all();
      dt_dispatch_done(p, piece.peer, piece.band, (uint32_t)piece.rows);
    } else {
      dt_layer_fail(p, DT_LAYER_ERROR_COPY, -1, bytes, 0);
    }
  }
  return __shfl_sync(0xffffffffu, good, 0);
}

/* Every `blocks`-th of the first pieces, by the block's first warp. s: with its sums made. */
DT_DEVICE void dt_dispatch_early(const dt_moe_plan &p, const dt_moe_scratch &s, int32_t block, int32_t blocks,
                                 uint32_t shared) {
  const int32_t pieces = dt_moe_early_pieces(&p, dt_moe_pieces(&p, &s)), lane = (int32_t)threadIdx.x;
  const uint8_t *hidden = p.state->input.hidden;
  for (int32_t r = 0; r < p.ranks; r++) /* more rows than there is room for: the table says so */
    if (s.first_row[r * (p.experts + 1) + p.experts] > p.rows_max) return;
  if (lane >= DT_WARP) return;
  if (lane == 0) {
    dt_barrier_init(shared, 1);
    dt_barrier_init_fence();
  }
  dt_fence_async_global(); /* the rows are read by the copy engine */
  uint32_t parity = 0;
  for (int32_t i = block; i < pieces; i += blocks, parity ^= 1) {
    const dt_layer_piece piece = dt_moe_piece(&p, &s, i);
    if (i == block && !dt_await_placed(p)) return;
    const uint32_t slot = lane < piece.rows ? dt_load_volatile((uint32_t *)p.slot.slot_of_row + piece.from + lane) : 0;
    const uint8_t *from = hidden + (int64_t)(slot / (uint32_t)p.slot.top_k) * p.row_bytes;
    if (!dt_carry_early(p, piece, from, shared, parity)) return;
  }
}

/* With dedup: the first tokens, a warp each. A token's row of staging is told by its number, so nothing is waited for;
 * the dispatch kernel says where the rows come from. */
DT_DEVICE void dt_send_early(const dt_moe_plan &p, int32_t tokens, int32_t block, int32_t blocks) {
  enum { AHEAD = 4 };
  const int32_t lane = (int32_t)(threadIdx.x % DT_WARP), top_k = p.slot.top_k, words = (int32_t)(p.row_bytes / 16);
  const int32_t warps = blocks * (int32_t)(blockDim.x / DT_WARP);
  const uint8_t *hidden = p.state->input.hidden;
  for (int32_t t = block * (int32_t)(blockDim.x / DT_WARP) + (int32_t)(threadIdx.x / DT_WARP); t < tokens; t += warps) {
    const int32_t id = lane < top_k ? p.slot.ids[(int64_t)t * top_k + lane] : -1;
    const int32_t to = id < 0 ? p.rank : id / p.experts;
    const uint4 *from = (const uint4 *)(hidden + t * p.row_bytes);
    for (uint32_t left = __reduce_or_sync(0xffffffffu, to == p.rank ? 0 : 1u << to); left != 0; left &= left - 1) {
      const int32_t r = __ffs((int)left) - 1, k = (p.rank + p.ranks - r - 1) % p.ranks;
      uint4 *row = (uint4 *)(p.staging_of[r] + (k * p.tokens_max + t) * p.row_bytes);
      dt_copy_row<AHEAD>(row, from, words);
    }
  }
  dt_fence_async_global(); /* the reader may copy the rows by the bulk copy engine */
}

#endif
