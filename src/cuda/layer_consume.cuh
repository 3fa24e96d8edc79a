/* Consumers of the schedule signal: the last CTAs of the layer's launch put rows of other ranks, each as soon as the
 * tiles of its bands are stored, from where L2 left them to their owners. The copies are the combine's
 * (combine_put.cuh). The tiles' CTAs come first and wait for nothing that consumers do.
 */
#ifndef DT_CUDA_LAYER_CONSUME_CUH
#define DT_CUDA_LAYER_CONSUME_CUH

#include "cuda/combine_put.cuh"
#include "cuda/layer_beside.cuh"

enum { DT_LAYER_CONSUMER_THREAD = 352 }; /* its stamps are those of a warp that copies */

/* A piece to put, under the names that dt_put_chunks knows. */
typedef struct dt_layer_chunk {
  dt_layer_piece piece;
  int32_t index, first_band, bands;
} dt_layer_chunk;

DT_DEVICE bool dt_chunks_failed(const dt_tile_layer &layer) {
  return dt_layer_failed(layer);
}
DT_DEVICE dt_layer_chunk dt_chunk_at(const dt_tile_layer &layer, int32_t i) {
  dt_layer_chunk chunk;
  chunk.piece = layer.puts[i];
  chunk.index = i;
  chunk.first_band = chunk.piece.band;
  chunk.bands = chunk.piece.bands;
  return chunk;
}

/* Where L2 counts what is stored of a band. */
DT_DEVICE uint32_t *dt_stored(const dt_tile_layer &layer, int32_t band) {
  return layer.stored + (layer.band_places != NULL ? layer.band_places[band] : band);
}

/* Acquire: pairs with dt_release_tile. */
DT_DEVICE bool dt_chunk_ready(const dt_tile_layer &layer, const dt_layer_chunk &chunk) {
  const uint32_t target = (uint32_t)chunk.piece.band_rows * layer.l2_tiles;
  for (int32_t band = chunk.first_band; band < chunk.first_band + chunk.bands; band++)
    if (dt_acquire_gpu(dt_stored(layer, band)) < target) return false;
  return true;
}
DT_DEVICE void dt_chunk_await(const dt_tile_layer &layer, const dt_layer_chunk &chunk) {
  const uint32_t start = dt_time_us();
  while (!dt_chunk_ready(layer, chunk)) {
    const uint32_t waited = dt_time_us() - start;
    if (waited > layer.gemm.timeout_us)
      dt_layer_fail(layer, DT_LAYER_ERROR_STORED, chunk.first_band, (uint32_t)chunk.piece.band_rows * layer.l2_tiles,
                    dt_load_volatile(dt_stored(layer, chunk.first_band)));
    else if (waited > 20)
      dt_layer_watch_peers(layer);
    if (dt_layer_failed(layer)) return;
  }
}
DT_DEVICE void dt_chunk_put(const dt_tile_layer &layer, dt_put &put, const dt_layer_chunk &chunk) {
  const dt_layer_piece &piece = chunk.piece;
  const int64_t row_bytes = layer.gemm.row_bytes;
  dt_stamp_put(put.shared, (uint32_t)chunk.index, piece.band, piece.rows);
  dt_put_rows(put, layer.buffers[piece.peer] + piece.to * row_bytes,
              layer.rows_of[layer.rank] + piece.from * row_bytes, piece.rows * row_bytes);
  dt_stamp_end(put.shared);
}

/* True: this CTA is a consumer, and through. One thread does the work; the last of all consumers tells the peers. The
 * rank's own rows are the tiles', for which its reduction waits by the launch. */
DT_DEVICE bool dt_layer_consume(const dt_tile_layer &layer, uint32_t shared) {
  const int32_t step = layer.consumers, index = (int32_t)blockIdx.x - ((int32_t)gridDim.x - step);
  if (index < 0) return false;
  if (threadIdx.x != DT_LAYER_CONSUMER_THREAD) return true;
  dt_grid_launch();
  dt_await_plan(layer);
  dt_put_init(shared);
  dt_put put = {shared, 0, 0, layer.gemm.timeout_us, false};
  dt_fence_async_global(); /* what the kernels before wrote is read through the asynchronous proxy */
  dt_put_chunks<true>(put, layer, index, step, (int32_t)layer.state->puts);
  dt_bulk_wait_all();
  if (put.expired) dt_layer_fail(layer, DT_LAYER_ERROR_COPY, index, put.loaded, put.sent);
  if (dt_layer_failed(layer)) return true;
  dt_fence_sys(); /* this CTA's stores to all peers, before whoever tells them sees the count */
  if (dt_add_acq_rel(&layer.state->passed, 1) + 1 == layer.state->passed_target) dt_tell_sent(layer);
  return true;
}

#endif
