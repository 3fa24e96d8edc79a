/* With dedup, from where a rank's tokens have come to its expert rows: where they are, for the dispatch kernel and for
 * the warps beside tiles (layer_beside.cuh); and the copies of the former, pieces of a band, a warp each. */
#ifndef DT_CUDA_LAYER_EXPAND_CUH
#define DT_CUDA_LAYER_EXPAND_CUH

#include "cuda/layer_words.cuh"

/* Tells the cache that a row will be read. Its bytes are a multiple of 16. */
DT_DEVICE void dt_expect_row(const uint8_t *row, int64_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(row), "r"((uint32_t)bytes) : "memory");
}

/* Where a source says that its row is. */
DT_DEVICE const uint8_t *dt_source_row(const dt_tile_layer &layer, uint32_t source) {
  const uint32_t at = source - 1, staged = (uint32_t)layer.staged_rows;
  const uint8_t *from = at < staged ? layer.staging[layer.rank] : layer.state->input.hidden;
  return from + (int64_t)(at < staged ? at : at - staged) * layer.gemm.row_bytes;
}

/* Address of the row whose source is `word`, when it is there (pairs with dt_send_tokens). One lane a row. NULL: gave
 * up. */
DT_DEVICE const uint8_t *dt_await_source(const dt_tile_layer &layer, const uint32_t *word, int32_t band) {
  const uint32_t start = dt_time_us();
  uint32_t source;
  while ((source = dt_acquire_sys(word)) == 0) {
    const uint32_t waited = dt_time_us() - start;
    if (waited > layer.gemm.timeout_us)
      dt_layer_fail(layer, DT_LAYER_ERROR_ARRIVAL, band, 1, 0);
    else if (waited > 20)
      dt_layer_watch_peers(layer);
    if (dt_layer_failed(layer)) return NULL;
  }
  return dt_source_row(layer, source);
}

/* Copies a piece's rows, at most 32, and counts them. Whole warp. False: gave up. */
DT_DEVICE bool dt_expand_piece(const dt_tile_layer &layer, const dt_layer_piece &piece) {
  constexpr int32_t AHEAD = 8; /* loads of 512 bytes under way */
  const int32_t lane = (int32_t)(threadIdx.x % 32), words = (int32_t)(layer.gemm.row_bytes / 16);
  const uint8_t *mine = layer.state->input.hidden;
  if (lane < piece.rows) {
    const int64_t bank = (int64_t)(layer.state->epoch & 1) * layer.bands_max * DT_TILE_M;
    mine = dt_await_source(layer, layer.sources[layer.rank] + bank + piece.from + lane, piece.band);
  }
  if (__any_sync(0xffffffffu, mine == NULL)) return false;
  if (lane < piece.rows) dt_expect_row(mine, layer.gemm.row_bytes);
  uint4 *to = (uint4 *)(layer.rows_of[layer.rank] + piece.to * layer.gemm.row_bytes);
#pragma unroll 1
  for (int32_t i = 0; i < piece.rows; i++, to += words) {
    const uint4 *from = (const uint4 *)__shfl_sync(0xffffffffu, (unsigned long long)mine, i);
    dt_copy_row<AHEAD>(to, from, words);
  }
  dt_fence_async_global(); /* the reader loads the rows through the copy engine */
  __syncwarp();
  if (lane == 0) dt_dispatch_done(layer, layer.rank, piece.band, (uint32_t)piece.rows);
  return true;
}

#endif
