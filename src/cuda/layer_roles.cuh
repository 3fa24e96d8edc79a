/* The tile engine's roles in a layer, beside tiles: waits for rows and counters, dispatch by warps that would idle, and
 * what is published when. Memory order: docs/moe_cuda.md; pairs are named at both ends.
 */
#ifndef DT_CUDA_LAYER_ROLES_CUH
#define DT_CUDA_LAYER_ROLES_CUH

#include "cuda/layer_carry.cuh"
#include "cuda/layer_words.cuh"
#include "cuda/spans.cuh"

/* Until `word` has reached `target`. One thread. False: gave up. Sys: other ranks add to it. */
template <bool Sys>
DT_DEVICE bool dt_await_count(const dt_tile_layer &layer, uint32_t shared, const uint32_t *word, uint32_t target,
                              uint32_t error, int32_t index) {
  uint32_t seen = Sys ? dt_acquire_sys(word) : dt_acquire_gpu(word);
  if (seen >= target) return true;
  const uint32_t start = dt_time_us();
  for (;;) {
    seen = Sys ? dt_acquire_sys(word) : dt_acquire_gpu(word);
    if (seen >= target) return true;
    if (dt_load_shared_word(shared + DT_SHARED_DEAD)) return false;
    const uint32_t waited = dt_time_us() - start;
    if (waited > layer.gemm.timeout_us)
      dt_layer_fail(layer, error, index, target, seen);
    else if (waited > 20)
      dt_layer_watch_peers(layer);
    if (dt_layer_failed(layer)) {
      dt_set_dead(shared);
      return false;
    }
  }
}

/* The loader's wait before a tile: for its rows (L1; pairs with dt_dispatch_done), or for the act of its band (L2;
 * pairs with dt_release_tile). */
DT_DEVICE bool dt_await_operands(const dt_tile_layer &layer, uint32_t shared, uint32_t phase, int32_t band,
                                 int32_t rows) {
  bool good = true;
  if (phase == DT_TASK_L2)
    good = dt_await_count<false>(layer, shared, layer.act_ready + band, (uint32_t)rows * layer.l1_tiles,
                                 DT_LAYER_ERROR_ACT, band);
  else if (layer.waits)
    good = dt_await_count<true>(layer, shared, dt_arrival(layer, layer.rank, band), (uint32_t)rows,
                                DT_LAYER_ERROR_ARRIVAL, band);
  dt_fence_async_global();
  return good;
}

/* Rows of a piece without dedup: tokens of this rank. */
typedef struct dt_token_rows {
  const dt_tile_layer &layer;
  DT_DEVICE_MEMBER uint32_t begin(const dt_layer_piece &piece) const {
    const int32_t lane = (int32_t)(threadIdx.x % 32);
    return lane < piece.rows ? (uint32_t)layer.slot_of_row[piece.from + lane] + 1 : 0;
  }
  DT_DEVICE_MEMBER const uint8_t *found(uint32_t asked) const {
    if (asked == 0) return NULL;
    const uint8_t *row =
        layer.state->input.hidden + (int64_t)((asked - 1) / (uint32_t)layer.top_k) * layer.gemm.row_bytes;
    dt_expect_row(row, layer.gemm.row_bytes);
    return row;
  }
  DT_DEVICE_MEMBER const uint8_t *await(const dt_layer_piece &) const {
    return NULL; /* they are all there */
  }
} dt_token_rows;

/* What the dispatch kernel has left of the pieces. Waits for nothing. */
DT_DEVICE void dt_dispatch_behind(const dt_tile_layer &layer, uint32_t shared) {
  dt_grid_wait();
  if (dt_layer_failed(layer)) return;
  const dt_token_rows rows = {layer};
  dt_carry_pieces(layer, shared, rows);
}

/* A CTA has passed its last tile; `share` of them had rows of owners. The last CTA to do so tells every rank that all
 * rows of this one are there (pairs with dt_await_sent). One thread. The fence covers what the CTA's other warps
 * stored, since the thread has waited for them; the add passes that on to whoever adds last. */
DT_DEVICE void dt_publish_sent(const dt_tile_layer &layer, uint32_t share) {
  if (!layer.signals || share == 0) return;
  const bool failed = dt_layer_failed(layer);
  dt_fence_sys();
  if (failed) return;
  if (dt_add_acq_rel(&layer.state->passed, share) + share == layer.state->passed_target) dt_tell_sent(layer);
}

/* Publishes a stored tile: of L1 to the loaders of L2, of L2 to consumers, if there are any (layer_consume.cuh). One
 * thread. */
DT_DEVICE void dt_release_tile(const dt_tile_layer &layer, int32_t band, const dt_tile &tile, uint32_t rank) {
  const bool l1 = dt_tile_phase<true>(tile.shape) == DT_TASK_L1;
  uint32_t *counters = l1 ? layer.act_ready : layer.stored;
  if (counters != NULL && dt_tile_column<true>(tile.shape) < (l1 ? layer.l1_columns : layer.gemm.columns))
    dt_release_add(counters + band + (tile.shares_rows ? 0 : rank), (uint32_t)dt_tile_rows(tile.shape));
}

#endif
