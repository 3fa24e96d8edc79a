/* The tile engine's warps beside its consumers, a thread each: the loader of operands, the one that draws tickets, and
 * the one that publishes what is stored.
 */
#ifndef DT_CUDA_TILE_WARPS_CUH
#define DT_CUDA_TILE_WARPS_CUH

#include "cuda/layer_beside.cuh"
#include "cuda/layer_roles.cuh"
#include "cuda/pipeline.cuh"
#include "cuda/tile_pieces.cuh"

/* The view whose boxes hold half of a turned tile's rows. */
template <bool Split> DT_DEVICE const CUtensorMap *dt_turned_rows(const dt_tile_gemm &gemm, uint32_t half) {
  const uint32_t view = (half - DT_TURNED_MIN / 2) / 8;
  if constexpr (Split) return &dt_split_of(gemm).views[view];
  return &gemm.owners[DT_TURNED_VIEWS + view];
}

/* Operands of every tile, in stages. One thread. A's boxes of 64 rows end with the band: the ragged view fills the rest
 * with zeros, which cost neither cache traffic nor, in the tensor cores, much power. */
template <bool Layer, bool Turns, bool Split>
DT_DEVICE void dt_load(const dt_tile_gemm &gemm, uint32_t shared, uint32_t rank) {
  if constexpr (Layer) dt_await_plan(dt_layer_of(gemm)); /* counters and epoch */
  uint32_t step = 0, last = 0;
  for (uint32_t sequence = 0;; sequence++) {
    uint4 first, second;
    dt_slot_read<Layer>(gemm, shared, sequence, first, second);
    const dt_tile tile = dt_tile_of<Layer>(first, second, rank);
    if (tile.expert < 0) return;
    dt_stamp_task(shared, second, rank);
    dt_stamp_begin(shared, DT_STAMP_LOAD, tile.shape);
    if (sequence > 0 && second.z <= last) dt_give_up<Layer>(gemm, shared, DT_TILE_ERROR_SEQUENCE);
    last = second.z;
    const uint32_t phase = dt_tile_phase<Layer>(tile.shape);
    const int32_t rows = dt_tile_rows(tile.shape), column = dt_tile_column<Layer>(tile.shape);
    const bool whole = rows > 64;
    /* A tile without rows, of a cut band, loads none: for a box outside a ragged view the copy engine asks for an
     * address before the matrix (docs/engine.md). */
    const bool any = Layer || rows > 0;
    const bool narrow = !Layer && tile.shape & DT_SHAPE_NARROW, turned = Turns && tile.shape & DT_SHAPE_TURNED;
    const uint32_t half = (uint32_t)(rows + 15) / 16 * 8; /* of a turned tile's rows, which a CTA loads for both */
    const uint32_t a_bytes = DT_STAGE_A_BYTES / 2 * (whole ? 2 : any ? 1 : 0);
    const uint32_t bytes =
        turned ? DT_STAGE_A_BYTES + 2 * DT_TILE_K * 2 * half : a_bytes + DT_STAGE_B_BYTES / (narrow ? 2 : 1);
    const int32_t skip = 64 - min(rows, 64), skip_2 = 128 - rows;             /* rows that the boxes lack */
    const CUtensorMap *a_map = &gemm.a, *b_map = &gemm.b, *b_map_2 = &gemm.b; /* b_map_2: of the second half of B */
    int32_t column_2 = column + 128, k_blocks = gemm.k_blocks;
    if constexpr (Layer) {
      const dt_tile_layer &layer = dt_layer_of(gemm);
      if (!dt_await_operands(layer, shared, phase, (int32_t)second.w + (tile.shares_rows ? 0 : (int32_t)rank), rows))
        return;
      if (phase == DT_TASK_L1) {
        a_map = &layer.x;
        b_map = &layer.gate;
        b_map_2 = &layer.up;
        column_2 = column;
        k_blocks = layer.l1_k_blocks;
      }
    }
    dt_stamp_middle(shared);
    for (int32_t k = 0; k < k_blocks; k++, step++) {
      const uint32_t stage = step % DT_STAGES;
      const uint32_t full = dt_stage_full(shared, stage);
      const uint32_t a = shared + stage * DT_STAGE_BYTES, a_2 = a + DT_STAGE_A_BYTES / 2, b = a + DT_STAGE_A_BYTES,
                     b_2 = b + DT_STAGE_B_BYTES / 2;
      const int32_t x = k * DT_TILE_K;
      if (!dt_wait<Layer>(gemm, shared, dt_stage_empty(shared, stage), (step / DT_STAGES & 1) ^ 1, DT_TILE_ERROR_EMPTY))
        return;
      dt_barrier_expect(full, bytes);
      if (turned) { /* the weights take A's place, the rows B's */
        dt_tensor_load_3d(a, b_map, x, column, tile.expert, full);
        dt_tensor_multicast_3d(b + rank * half * DT_TILE_K * 2, dt_turned_rows<Split>(gemm, half), x,
                               tile.row + (int32_t)(rank * half), 0, full, 3);
      } else if (tile.shares_rows) {
        if (rank == 0) {
          if (any) dt_tensor_multicast_3d(a, a_map, x, skip, tile.row + 64 - skip, full, 3);
        } else if (whole) {
          dt_tensor_multicast_3d(a_2, a_map, x, skip_2, tile.row + 128 - skip_2, full, 3);
        }
        dt_tensor_load_3d(b, b_map, x, column, tile.expert, full);
        if (!narrow) dt_tensor_load_3d(b_2, b_map_2, x, column_2, tile.expert, full);
      } else {
        /* Weights first: they come from memory, rows from the cache. */
        if (rank == 0)
          dt_tensor_multicast_3d(b, b_map, x, column, tile.expert, full, 3);
        else if (!narrow)
          dt_tensor_multicast_3d(b_2, b_map_2, x, column_2, tile.expert, full, 3);
        if (any) dt_tensor_load_3d(a, a_map, x, skip, tile.row + 64 - skip, full);
        if (whole) dt_tensor_load_3d(a_2, a_map, x, skip_2, tile.row + 128 - skip_2, full);
      }
    }
    dt_stamp_end(shared);
  }
}

/* Draws the cluster's tickets and puts each task into both CTAs' slots. One thread of CTA 0. */
template <bool Layer> DT_DEVICE void dt_draw(const dt_tile_gemm &gemm, uint32_t shared) {
  if constexpr (Layer)
    dt_await_plan(dt_layer_of(gemm));
  else
    dt_grid_wait(); /* the table is the previous kernel's */
  uint32_t *next;
  uint32_t count;
  if constexpr (Layer) {
    const dt_tile_layer &layer = dt_layer_of(gemm);
    next = &layer.state->next_task;
    count = dt_layer_failed(layer) ? 0 : layer.state->tasks;
  } else {
    next = &gemm.header->next;
    count = gemm.header->count;
  }
  const uint4 *tasks = (const uint4 *)gemm.tasks;
  for (uint32_t sequence = 0;; sequence++) {
    const uint32_t slot = sequence % DT_SLOTS;
    if (!dt_wait<Layer>(gemm, shared, dt_slot_empty(shared, slot), (sequence / DT_SLOTS & 1) ^ 1, DT_TILE_ERROR_SLOT))
      return;
    const uint32_t ticket = atomicAdd(next, 1u);
    uint4 first = make_uint4(0, 0, 0, 0), second = make_uint4((uint32_t)-1, 0, 0, 0);
    if (ticket < count) {
      first = tasks[2 * ticket];
      second = tasks[2 * ticket + 1];
    }
    second.z = ticket;
    const uint32_t full = dt_slot_full(shared, slot);
    const uint32_t to = shared + DT_SHARED_SLOTS + slot * (uint32_t)sizeof(dt_tile_task);
    dt_barrier_expect(full, (uint32_t)sizeof(dt_tile_task));
    dt_barrier_expect_peer(dt_peer_address(full, 1), (uint32_t)sizeof(dt_tile_task));
#pragma unroll
    for (uint32_t rank = 0; rank < DT_TILE_CLUSTER; rank++) {
      const uint32_t peer_full = dt_peer_address(full, rank), peer_to = dt_peer_address(to, rank);
      dt_store_async(peer_to, first, peer_full);
      dt_store_async(peer_to + 16, second, peer_full);
    }
    if (ticket >= count) return;
  }
}

/* Publishes every tile of this CTA once its stores are done: pairs with an acquire of the band's counter. One thread;
 * the consumers would lose time to its fence. */
DT_DEVICE void dt_release_tiles(const dt_tile_gemm &gemm, uint32_t shared, uint32_t rank) {
  for (uint32_t sequence = 0;; sequence++) {
    uint4 first, second;
    dt_slot_read<false>(gemm, shared, sequence, first, second);
    const dt_tile tile = dt_tile_of<false>(first, second, rank);
    if (tile.expert < 0) return;
    if (!dt_wait<false>(gemm, shared, dt_tile_done(shared, sequence), sequence / DT_DONES & 1, DT_TILE_ERROR_DONE))
      return;
    dt_stamp_task(shared, second, rank);
    dt_stamp_begin(shared, DT_STAMP_PUBLISH, tile.shape);
    const uint32_t band = second.w + (tile.shares_rows ? 0 : rank);
    if (dt_tile_column<false>(tile.shape) < gemm.columns)
      dt_release_add(gemm.ready + band, (uint32_t)dt_tile_rows(tile.shape) << (tile.shape & DT_SHAPE_NARROW ? 0 : 1));
    dt_stamp_end(shared);
  }
}
/* The same for a layer. Rows of other ranks are published once, when this CTA has passed the last of them. */
DT_DEVICE void dt_release_tasks(const dt_tile_layer &layer, uint32_t shared, uint32_t rank) {
  dt_await_plan(layer); /* counters and epoch */
  uint32_t share = 0;
  const uint32_t count = layer.state->tasks;
  for (uint32_t sequence = 0;; sequence++) {
    uint4 first, second;
    dt_slot_read<true>(layer.gemm, shared, sequence, first, second);
    const dt_tile tile = dt_tile_of<true>(first, second, rank);
    dt_stamp_task(shared, second, rank);
    if (tile.expert < 0) {
      dt_stamp_begin(shared, DT_STAMP_PASS, 0);
      /* Whoever draws the first ticket behind the tiles counts one more, so that somebody is last even without any. */
      dt_publish_sent(layer, share + (second.z == count && rank == 0 ? 1 : 0));
      dt_stamp_end(shared);
      return;
    }
    if (!dt_wait<true>(layer.gemm, shared, dt_tile_done(shared, sequence), sequence / DT_DONES & 1, DT_TILE_ERROR_DONE))
      return;
    dt_stamp_begin(shared, DT_STAMP_PUBLISH, tile.shape);
    if (dt_tile_phase<true>(tile.shape) == DT_TASK_L2) share++;
    dt_release_tile(layer, (int32_t)second.w, tile, rank);
    dt_stamp_end(shared);
  }
}

#endif
