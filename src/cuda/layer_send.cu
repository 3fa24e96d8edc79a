/* Dispatch with dedup: every token once to each rank that wants it, with where its rows come from; and copies of tokens
 * that are there to expert rows, in the order in which tiles want them. Runs on a few multiprocessors beside the tiles,
 * which start with rows that need no link. */
#include "cuda/launch.cuh"
#include "cuda/layer_expand.cuh"

enum { DT_SEND_THREADS = 768, DT_SEND_WARPS = DT_SEND_THREADS / 32, DT_SEND_TOKENS = 8 };

/* Tells tiles that run beside this kernel that the table is there: release, pairs with dt_await_plan. One thread of a
 * block, which has waited for the kernel before. */
DT_DEVICE void dt_tell_planned(const dt_tile_layer &layer) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(&layer.state->planned), "r"(layer.state->epoch) : "memory");
}

/* Where rank `to` looks for the source of a slot's row: expert `id` of its, this epoch. */
DT_DEVICE uint32_t *dt_source_of(const dt_tile_layer &layer, int32_t to, int32_t id, int64_t slot) {
  const int64_t bank = (int64_t)(layer.state->epoch & 1) * layer.bands_max * DT_TILE_M;
  return layer.sources[to] + bank + layer.source_base[id] + layer.row_of_slot[slot];
}

/* Own tokens are where they are: their rows can be copied from the start. */
DT_DEVICE void dt_list_own(const dt_tile_layer &layer) {
  const int64_t slots = layer.state->input.tokens * layer.top_k, threads = (int64_t)gridDim.x * DT_SEND_THREADS;
  const int32_t first = layer.rank * layer.experts;
  for (int64_t slot = (int64_t)blockIdx.x * DT_SEND_THREADS + threadIdx.x; slot < slots; slot += threads) {
    const int32_t id = layer.state->ids[slot];
    if (id < first || id >= first + layer.experts) continue;
    dt_store_relaxed_sys(dt_source_of(layer, layer.rank, id, slot),
                         (uint32_t)(layer.staged_rows + (int32_t)(slot / layer.top_k) + 1));
  }
}

/* Row of a token to its place in every rank of `ranks`. Whole warp. */
DT_DEVICE void dt_send_row(const dt_tile_layer &layer, int32_t token, uint32_t ranks) {
  enum { AHEAD = 8 };
  const int32_t lane = (int32_t)(threadIdx.x % 32), words = (int32_t)(layer.gemm.row_bytes / 16);
  const uint4 *from = (const uint4 *)(layer.state->input.hidden + token * layer.gemm.row_bytes);
  for (int32_t w = lane; w < words; w += 32 * AHEAD) {
    uint4 v[AHEAD];
#pragma unroll
    for (int32_t j = 0; j < AHEAD; j++)
      if (w + 32 * j < words) v[j] = dt_load_row(from + w + 32 * j);
    for (uint32_t left = ranks; left != 0; left &= left - 1) {
      const int32_t to = __ffs((int)left) - 1, k = (layer.rank + layer.ranks - to - 1) % layer.ranks;
      uint4 *row = (uint4 *)(layer.staging[to] + (k * layer.tokens_max + token) * layer.gemm.row_bytes);
#pragma unroll
      for (int32_t j = 0; j < AHEAD; j++)
        if (w + 32 * j < words) dt_store_global(row + w + 32 * j, v[j]);
    }
  }
}

/* The rank that wants the token of a slot, if it is another. */
DT_DEVICE int32_t dt_other_rank(const dt_tile_layer &layer, int32_t id) {
  const int32_t to = id < 0 ? layer.rank : id / layer.experts;
  return to == layer.rank ? -1 : to;
}

/* Tokens [first, last) to other ranks, but for those that are there already, then where their rows come from. Whole
 * warp; returns how many rows were sent. The fence, then the sources: release, pairs with dt_await_source. It is once
 * for several tokens: under load a system fence takes microseconds. */
DT_DEVICE uint32_t dt_send_tokens(const dt_tile_layer &layer, int32_t first, int32_t last) {
  const int32_t lane = (int32_t)(threadIdx.x % 32), top_k = layer.top_k;
  uint32_t sent = 0;
  for (int32_t token = first; token < last; token++) {
    const int32_t to = lane < top_k ? dt_other_rank(layer, layer.state->ids[(int64_t)token * top_k + lane]) : -1;
    const uint32_t ranks = __reduce_or_sync(0xffffffffu, to < 0 ? 0 : 1u << to);
    if (ranks != 0 && token >= layer.state->early_tokens) dt_send_row(layer, token, ranks);
    sent += (uint32_t)__popc(ranks);
  }
  if (sent == 0) return 0;
  dt_fence_async_global(); /* the reader may copy the rows by the bulk copy engine */
  __syncwarp();
  dt_fence_sys();
  for (int32_t i = lane; i < (last - first) * top_k; i += 32) {
    const int64_t slot = (int64_t)first * top_k + i;
    const int32_t id = layer.state->ids[slot], to = dt_other_rank(layer, id);
    if (to < 0) continue;
    const int32_t k = (layer.rank + layer.ranks - to - 1) % layer.ranks;
    const int64_t row = k * layer.tokens_max + first + i / top_k;
    dt_store_relaxed_sys(dt_source_of(layer, to, id, slot), (uint32_t)row + 1);
  }
  return sent;
}

/* This rank's tokens to the others, in order, so that bands are complete in order; few at a time if there are few. */
DT_DEVICE void dt_send_share(const dt_tile_layer &layer, int32_t block, int32_t blocks) {
  const int32_t warps = blocks * DT_SEND_WARPS, tokens = (int32_t)layer.state->input.tokens;
  const int32_t each = min(max(tokens / warps, 1), (int32_t)DT_SEND_TOKENS);
  uint32_t sent = 0;
  int32_t first = (block * DT_SEND_WARPS + (int32_t)threadIdx.x / 32) * each;
  for (; first < tokens; first += warps * each)
    sent += dt_send_tokens(layer, first, min(first + each, tokens));
  if (threadIdx.x % 32 == 0 && sent != 0)
    atomicAdd((unsigned long long *)&layer.state->dispatch_rows, (unsigned long long)sent);
}

/* The first pieces, a warp each. Waits for tokens of other ranks, whose sending waits for nothing. */
DT_DEVICE void dt_expand_head(const dt_tile_layer &layer) {
  const uint32_t head = layer.state->head;
  for (;;) {
    uint32_t taken = 0;
    if (threadIdx.x % 32 == 0) taken = atomicAdd(&layer.state->next_head, 1u);
    taken = __shfl_sync(0xffffffffu, taken, 0);
    if (taken >= head) return;
    const dt_layer_piece piece = layer.pieces[taken];
    if (!dt_expand_piece(layer, piece)) return;
  }
}

/* Clusters, so that multiprocessors that do not compute meanwhile are pairs. Every other one sends first: half of 16 is
 * nearly as fast as the link. */
__global__ void __cluster_dims__(DT_TILE_CLUSTER, 1, 1) __launch_bounds__(DT_SEND_THREADS, 1)
    dt_layer_send_kernel(const __grid_constant__ dt_tile_layer layer) {
  dt_grid_launch();
  dt_grid_wait();
  if (threadIdx.x == 0) dt_tell_planned(layer);
  if (dt_layer_failed(layer)) return;
  dt_list_own(layer);
  if (layer.ranks > 1 && blockIdx.x % 2 == 0)
    dt_send_share(layer, (int32_t)blockIdx.x / 2, ((int32_t)gridDim.x + 1) / 2);
  dt_expand_head(layer);
}

extern "C" cudaError_t dt_layer_send_launch(const dt_tile_layer *layer, int ctas, cudaStream_t stream) {
  return dt_launch_early((const void *)dt_layer_send_kernel, layer, ctas, DT_SEND_THREADS, 0, !layer->crowded, stream);
}
