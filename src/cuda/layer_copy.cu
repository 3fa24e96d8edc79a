/* A layer's copies on all multiprocessors: the first rows of the dispatch, the puts of the serial schedule, and the
 * reduction. */
#include "cuda/launch.cuh"
#include "cuda/layer_words.cuh"

/* Pieces are copied by teams of warps. */
enum { DT_COPY_THREADS = 512, DT_PIECE_WARPS = 4, DT_PIECE_TEAMS = DT_COPY_THREADS / 32 / DT_PIECE_WARPS };
enum { DT_REDUCE_THREADS = 256 };

/* Rows [0, rows) from where source(i) says to `to`: by Warps of a block's warps, two rows at a time each, with 16 loads
 * under way. */
template <int Warps, class Source>
DT_DEVICE void dt_copy_rows(const Source &source, uint8_t *to, int32_t rows, int64_t row_bytes) {
  enum { AHEAD = 8 };
  const int32_t lane = (int32_t)(threadIdx.x % 32), words = (int32_t)(row_bytes / 16);
  for (int32_t i = 2 * (int32_t)(threadIdx.x / 32 % Warps); i < rows; i += 2 * Warps) {
    const bool two = i + 1 < rows;
    const uint4 *a = (const uint4 *)source(i), *b = (const uint4 *)source(two ? i + 1 : i);
    uint4 *to_a = (uint4 *)(to + i * row_bytes), *to_b = (uint4 *)(to + (i + 1) * row_bytes);
    for (int32_t w = lane; w < words; w += 32 * AHEAD) {
      uint4 v[2 * AHEAD];
#pragma unroll
      for (int32_t j = 0; j < AHEAD; j++) {
        if (w + 32 * j >= words) continue;
        v[2 * j] = dt_load_row(a + w + 32 * j);
        v[2 * j + 1] = dt_load_row(b + w + 32 * j);
      }
#pragma unroll
      for (int32_t j = 0; j < AHEAD; j++) {
        if (w + 32 * j >= words) continue;
        dt_store_global(to_a + w + 32 * j, v[2 * j]);
        if (two) dt_store_global(to_b + w + 32 * j, v[2 * j + 1]);
      }
    }
  }
}

__global__ void __launch_bounds__(DT_COPY_THREADS)
    dt_layer_dispatch_kernel(const __grid_constant__ dt_tile_layer layer) {
  dt_grid_launch();
  dt_grid_wait();
  if (dt_layer_failed(layer)) return;
  const uint32_t head = layer.state->head;
  const uint8_t *hidden = layer.state->input.hidden;
  const int64_t row_bytes = layer.gemm.row_bytes;
  const uint32_t team = threadIdx.x / (32 * DT_PIECE_WARPS);
  for (uint32_t i = blockIdx.x * DT_PIECE_TEAMS + team; i < head; i += gridDim.x * DT_PIECE_TEAMS) {
    const dt_layer_piece piece = layer.pieces[i];
    const int32_t *slots = layer.slot_of_row + piece.from;
    const auto source = [&](int32_t row) { return hidden + (int64_t)(slots[row] / layer.top_k) * row_bytes; };
    dt_copy_rows<DT_PIECE_WARPS>(source, layer.rows_of[piece.peer] + (int64_t)piece.to * row_bytes, piece.rows,
                                 row_bytes);
    dt_fence_async_global(); /* the reader loads the rows through the copy engine */
    asm volatile("bar.sync %0, %1;" ::"r"(1 + team), "r"(32 * DT_PIECE_WARPS) : "memory");
    if (threadIdx.x % (32 * DT_PIECE_WARPS) == 0) dt_dispatch_done(layer, piece.peer, piece.band, (uint32_t)piece.rows);
  }
}

__global__ void __launch_bounds__(DT_COPY_THREADS) dt_layer_put_kernel(const __grid_constant__ dt_tile_layer layer) {
  dt_grid_launch();
  dt_grid_wait();
  if (dt_layer_failed(layer)) return;
  const uint32_t puts = layer.state->puts;
  const int64_t row_bytes = layer.gemm.row_bytes;
  const uint32_t team = threadIdx.x / (32 * DT_PIECE_WARPS);
  for (uint32_t i = blockIdx.x * DT_PIECE_TEAMS + team; i < puts; i += gridDim.x * DT_PIECE_TEAMS) {
    const dt_layer_piece piece = layer.puts[i];
    const uint8_t *from = layer.rows_of[layer.rank] + (int64_t)piece.from * row_bytes;
    const auto source = [&](int32_t row) { return from + row * row_bytes; };
    dt_copy_rows<DT_PIECE_WARPS>(source, layer.buffers[piece.peer] + (int64_t)piece.to * row_bytes, piece.rows,
                                 row_bytes);
  }
  __syncthreads();
  if (threadIdx.x != 0 || !layer.signals) return;
  dt_fence_sys(); /* this block's stores, before the block that tells the peers sees the count */
  if (dt_add_acq_rel(&layer.state->passed, 1) + 1 == layer.state->passed_target) dt_tell_sent(layer);
}

/* Until every rank's rows are here. Acquire: pairs with dt_tell_sent. */
DT_DEVICE bool dt_await_sent(const dt_tile_layer &layer) {
  const int32_t rank = (int32_t)threadIdx.x;
  bool good = true;
  if (rank < layer.ranks && layer.waits) {
    const uint32_t epoch = layer.state->epoch, start = dt_time_us();
    for (;;) {
      const uint32_t seen = dt_acquire_sys(&layer.slots[rank].sent);
      if (seen == epoch) break;
      const uint32_t waited = dt_time_us() - start;
      if (waited > layer.gemm.timeout_us)
        dt_layer_fail(layer, DT_LAYER_ERROR_SENT, rank, epoch, seen);
      else if (waited > 20)
        dt_layer_watch_peers(layer);
      if (dt_layer_failed(layer)) {
        good = false;
        break;
      }
    }
  }
  return __syncthreads_and(good);
}

/* The wait alone, in one block. Where ranks share a device, a reduction that waits, or any kernel that is on the device
 * before its turn, would hold the multiprocessors on which another rank has to compute what it waits for. */
__global__ void __launch_bounds__(32) dt_layer_await_kernel(const __grid_constant__ dt_tile_layer layer) {
  dt_grid_wait();
  if (!dt_layer_failed(layer)) dt_await_sent(layer);
}

/* out[t] = sum over choices ascending of weight * row, in float32. A warp takes a token's 512 columns at a time. */
__global__ void __launch_bounds__(DT_REDUCE_THREADS)
    dt_layer_reduce_kernel(const __grid_constant__ dt_tile_layer layer) {
  enum { AHEAD = 8, PARTS = 2 };
  dt_grid_launch();
  dt_grid_wait();
  if (dt_layer_failed(layer) || !dt_await_sent(layer)) return;
  const dt_layer_input input = layer.state->input;
  const int32_t lane = (int32_t)(threadIdx.x % 32), top_k = layer.top_k;
  const int64_t row_bytes = layer.gemm.row_bytes;
  const int32_t words = (int32_t)(row_bytes / 16), spans = (words + 32 * PARTS - 1) / (32 * PARTS);
  const uint8_t *buffer = layer.buffers[layer.rank];
  const int64_t warps = (int64_t)gridDim.x * (DT_REDUCE_THREADS / 32), items = input.tokens * spans;
  for (int64_t item = (int64_t)blockIdx.x * (DT_REDUCE_THREADS / 32) + threadIdx.x / 32; item < items; item += warps) {
    const int64_t token = item / spans, slot = token * top_k;
    const int32_t first = (int32_t)(item - token * spans) * 32 * PARTS + lane;
    const int32_t own_row = lane < top_k ? layer.row_of_slot[slot + lane] : -1;
    const float own_weight = lane < top_k ? input.weights[slot + lane] : 0;
    float sum[PARTS][8];
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
      for (int i = 0; i < 8; i++) sum[part][i] = 0;
    for (int32_t choice = 0; choice < top_k; choice += AHEAD) {
      uint4 v[PARTS][AHEAD];
#pragma unroll
      for (int32_t j = 0; j < AHEAD; j++) {
        const int32_t row = __shfl_sync(0xffffffffu, own_row, (choice + j) % 32);
        const uint4 *from = (const uint4 *)(buffer + row * row_bytes);
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
          v[part][j] = make_uint4(0, 0, 0, 0);
          if (choice + j < top_k && row >= 0 && first + 32 * part < words)
            v[part][j] = dt_load_row(from + first + 32 * part);
        }
      }
#pragma unroll
      for (int32_t j = 0; j < AHEAD; j++) {
        const int32_t row = __shfl_sync(0xffffffffu, own_row, (choice + j) % 32);
        const float weight = __shfl_sync(0xffffffffu, own_weight, (choice + j) % 32);
        if (choice + j >= top_k || row < 0) continue;
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
          const uint32_t pairs[4] = {v[part][j].x, v[part][j].y, v[part][j].z, v[part][j].w};
#pragma unroll
          for (int p = 0; p < 4; p++) {
            sum[part][2 * p] = fmaf(weight, dt_low(pairs[p]), sum[part][2 * p]);
            sum[part][2 * p + 1] = fmaf(weight, dt_high(pairs[p]), sum[part][2 * p + 1]);
          }
        }
      }
    }
    uint4 *to = (uint4 *)(input.output + token * row_bytes);
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      const float *s = sum[part];
      if (first + 32 * part < words)
        dt_store_global(to + first + 32 * part, make_uint4(dt_pack_bf16(s[0], s[1]), dt_pack_bf16(s[2], s[3]),
                                                           dt_pack_bf16(s[4], s[5]), dt_pack_bf16(s[6], s[7])));
    }
  }
}

static cudaError_t dt_launch_copies(const void *kernel, const dt_tile_layer *layer, int blocks, int threads,
                                    cudaStream_t stream) {
  return dt_launch_early(kernel, layer, blocks, threads, 0, !layer->crowded, stream);
}

extern "C" cudaError_t dt_layer_dispatch_launch(const dt_tile_layer *layer, int ctas, cudaStream_t stream) {
  return dt_launch_copies((const void *)dt_layer_dispatch_kernel, layer, ctas, DT_COPY_THREADS, stream);
}
extern "C" cudaError_t dt_layer_put_launch(const dt_tile_layer *layer, int ctas, cudaStream_t stream) {
  return dt_launch_copies((const void *)dt_layer_put_kernel, layer, ctas, DT_COPY_THREADS, stream);
}
extern "C" cudaError_t dt_layer_reduce_launch(const dt_tile_layer *layer, int ctas, cudaStream_t stream) {
  if (layer->crowded && layer->waits) {
    const cudaError_t error = dt_launch_copies((const void *)dt_layer_await_kernel, layer, 1, 32, stream);
    if (error != cudaSuccess) return error;
  }
  return dt_launch_copies((const void *)dt_layer_reduce_kernel, layer, 2 * ctas, DT_REDUCE_THREADS, stream);
}
