/* The tile engine: one persistent kernel of warp-specialised clusters of two CTAs.
 *
 * Warps 0 to 7 are two warpgroups of consumers, 64 rows of the tile each; warp 8 loads operands; warp 9 publishes what
 * is stored; warp 10 of CTA 0 draws tickets for the cluster. A consumer packs a finished tile into 64 registers and
 * stores it, 64 columns at a time, during the next tile's main loop, so that stores never keep the tensor cores
 * waiting. See docs/engine.md.
 *
 * Layer false is the grouped GEMM, Gated one whose rows wait for other ranks (docs/combine.md); Layer true runs the
 * tasks of a MoE layer (docs/moe_cuda.md): two GEMMs, of which the first ends in the activation, waits before tiles,
 * and warps that would idle dispatch rows. Each kernel is an instance in a source of its own; with stamps
 * (docs/spans.md) another.
 */
#ifndef DT_CUDA_TILE_ENGINE_CUH
#define DT_CUDA_TILE_ENGINE_CUH

#include "cuda/combine_gate.cuh"
#include "cuda/launch.cuh"
#include "cuda/layer_beside.cuh"
#include "cuda/layer_roles.cuh"
#include "cuda/mma.cuh"
#include "cuda/mma_turned.cuh"
#include "cuda/pipeline.cuh"
#include "cuda/tile_pieces.cuh"

enum { DT_THREADS = 384, DT_WARP_LOAD = 8, DT_WARP_RELEASE = 9, DT_WARP_TICKET = 10, DT_WARP_ENTRY = 11 };

/* How rows may leave: one by one or in slabs; in slabs alone, through the copy engine; the same, and of turned tiles;
 * the same where a slab's rows may be those of two owners. Row stores need the registers that turned tiles do. */
enum { DT_STORES_ANY, DT_STORES_COPIED, DT_STORES_TURNED, DT_STORES_SPLIT };

/* Steps of a finished tile's stores: of the GEMM, and of a layer's L2 and L1. Then it is done, then also told to the
 * release warp. */
enum { DT_STORE_STEPS = 5, DT_STORE_STEPS_L2 = 8, DT_STORE_STEPS_L1 = 10, DT_STORE_TOLD = 11 };
template <bool Layer> constexpr uint32_t dt_store_done = Layer ? DT_STORE_STEPS_L1 : DT_STORE_STEPS;

/* A finished tile on its way out. */
typedef struct dt_pending {
  uint32_t packed[64]; /* L1: gate in the first half, up in the second */
  uint64_t to;         /* see dt_slab_target; of a turned tile the two top bits, rows from bit 32, first row. Where
                          slabs may be two owners': this lane's piece (tile_split.h) */
  int32_t column;      /* of the tile; odd if it has 128 columns to store: a narrow one, or L1 */
  uint32_t step;       /* next step; then dt_store_done, DT_STORE_TOLD */
} dt_pending;

/* What the table says of this lane's row of a slab. Read early: the multiplications still under way hide it. */
template <bool Layer>
DT_DEVICE uint64_t dt_row_target(const dt_tile_gemm &gemm, uint32_t phase, int32_t row, int32_t rows) {
  const int32_t lane = (int32_t)(threadIdx.x % 32);
  if constexpr (Layer) {
    const dt_tile_layer &layer = dt_layer_of(gemm);
    if (phase == DT_TASK_L1) return (uint32_t)(row + lane);
    if (layer.local_rows) return (uint64_t)layer.rank << 32 | (uint32_t)(row % layer.local_rows + lane);
  } else {
    if (gemm.row_target == NULL) return (uint32_t)(row + lane);
  }
  return lane < rows && lane < 16 ? gemm.row_target[row + lane] : 0;
}

/* Where a warp's slab goes. If its rows lie one after the other at one owner: bit 63, the owner from bit 40, and the
 * coordinates in the owner's ragged view, the row within the box from bit 32. Else lane l < 16 gets the address of row
 * l at the tile's column, 0: nowhere. */
template <bool Layer>
DT_DEVICE uint64_t dt_slab_target(const dt_tile_gemm &gemm, uint32_t phase, uint64_t target, int32_t rows,
                                  int32_t column) {
  const int32_t lane = (int32_t)(threadIdx.x % 32), last = min(rows, 16);
  const uint64_t first = __shfl_sync(0xffffffffu, target, 0);
  const bool together = __all_sync(0xffffffffu, lane >= last || target == first + (uint64_t)lane);
  const bool act = Layer && phase == DT_TASK_L1;
  if (act || (gemm.tensor_stores && together && first >> 32 < gemm.owners_count)) {
    const int32_t skip = 16 - last;
    const uint64_t owner = act ? (uint64_t)DT_LAYER_ACT : first >> 32;
    return (uint64_t)1 << 63 | owner << 40 | (uint64_t)(uint32_t)skip << 32 | (uint32_t)((int32_t)first + 16 - skip);
  }
  if (lane >= last || target >> 32 >= gemm.owners_count) return 0;
  return (uint64_t)gemm.owner_rows[target >> 32] + (target & 0xffffffffu) * (uint64_t)gemm.row_bytes +
         2 * (uint64_t)column;
}

/* 64 columns of registers into one of a warp's slabs, two 8x8 matrices across and down at a time. */
template <int Chunk, int Slabs> DT_DEVICE void dt_fill_slab(const uint32_t (&packed)[64], uint32_t slabs) {
  const uint32_t lane = threadIdx.x % 32, row = lane % 16;
  const uint32_t to = slabs + Chunk % Slabs * DT_SLAB_BYTES + row * 128 + (lane / 16 ^ (row & 7)) * 16;
#pragma unroll
  for (uint32_t j = 0; j < 4; j++) {
    const uint32_t *p = packed + 16 * Chunk + 4 * j;
    dt_store_matrices(to ^ 32 * j, p[0], p[1], p[2], p[3]);
  }
}

/* The same of a turned tile, whose registers hold columns by rows: 64 rows of 16 columns. */
template <int Chunk> DT_DEVICE void dt_fill_turned(const uint32_t (&packed)[64], uint32_t slabs) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t to = slabs + Chunk % 2 * DT_SLAB_BYTES + (lane / 16 * 8 + lane % 8) * 32 + lane / 8 % 2 * 16;
#pragma unroll
  for (uint32_t j = 0; j < 4; j++) {
    const uint32_t *p = packed + 16 * Chunk + 4 * j;
    dt_store_transposed(to + 512 * j, p[0], p[1], p[2], p[3]);
  }
}
/* Sends such a slab out: rows 64 * chunk and on, if there are any. One thread. */
DT_DEVICE void dt_send_turned(const dt_tile_gemm &gemm, const dt_pending &pending, uint32_t chunk, uint32_t slab) {
  const int32_t rows = (int32_t)(pending.to >> 32 & 255) - 64 * (int32_t)chunk, skip = 64 - min(rows, 64);
  if (rows <= 0) return;
  dt_tensor_store_3d(&gemm.owners[DT_TURNED_OUT], pending.column, skip,
                     (int32_t)pending.to + 64 * (int32_t)chunk + 64 - skip, slab);
}
/* Sends a slab out through `map`, to the owner that dt_slab_target found. One thread. */
DT_DEVICE uint32_t dt_slab_owner(const dt_pending &pending) {
  return (uint32_t)(pending.to >> 32) >> 8 & (DT_TILE_OWNERS - 1);
}
DT_DEVICE void dt_send_slab(const CUtensorMap *map, const dt_pending &pending, uint32_t chunk, uint32_t slab) {
  dt_tensor_store_3d(map, (pending.column & ~1) + 64 * (int32_t)chunk, (int32_t)((uint32_t)(pending.to >> 32) & 255),
                     (int32_t)pending.to, slab);
}
template <int Stores> DT_DEVICE bool dt_is_turned(const dt_pending &pending) {
  return Stores == DT_STORES_SPLIT ? (pending.to >> 62 & 1) != 0 : pending.to >> 62 == 3;
}

DT_DEVICE float dt_activate(const dt_tile_layer &layer, float gate, float up) {
  const float clamped = fminf(gate, layer.limit);
  const float linear = fminf(fmaxf(up, -layer.limit), layer.limit) + layer.add;
  return clamped * linear * dt_reciprocal(1 + dt_power_of_two(clamped * (-1.44269504f * layer.alpha)));
}
/* Of two columns. Gate and up are bf16: as exact as a product that is written down before the activation. */
DT_DEVICE uint32_t dt_activate_pair(const dt_tile_layer &layer, uint32_t gate, uint32_t up) {
  const float low = dt_activate(layer, dt_low(gate), dt_low(up));
  return dt_pack_bf16(low, dt_activate(layer, dt_high(gate), dt_high(up)));
}
/* 16 columns of act into a quarter of the slab. */
template <int Quarter>
DT_DEVICE void dt_fill_act(const dt_tile_layer &layer, const dt_pending &pending, uint32_t slab) {
  const uint32_t lane = threadIdx.x % 32, row = lane % 16;
  const uint32_t to = slab + row * 128 + (lane / 16 ^ (row & 7)) * 16;
  const uint32_t *g = pending.packed + 4 * Quarter, *u = g + 32;
  uint32_t act[4];
#pragma unroll
  for (int i = 0; i < 4; i++) act[i] = dt_activate_pair(layer, g[i], u[i]);
  dt_store_matrices(to ^ 32 * (Quarter % 4), act[0], act[1], act[2], act[3]);
}

/* A slab's 64 columns to where they go, 16 bytes a lane, whole rows of 128 bytes. */
DT_DEVICE void dt_store_rows(const dt_tile_gemm &gemm, const dt_pending &pending, uint32_t chunk, uint32_t slab) {
  const uint32_t lane = threadIdx.x % 32;
  const bool inside = pending.column + (int32_t)(64 * chunk + lane % 8 * 8) < gemm.columns;
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t row = lane / 8 + 4 * i;
    const uint64_t address = __shfl_sync(0xffffffffu, pending.to, row);
    const uint4 value = dt_load_shared(slab + row * 128 + (lane % 8 ^ (row & 7)) * 16);
    if (address != 0 && inside) dt_store_global((void *)(address + 128 * chunk + lane % 8 * 16), value);
  }
}

/* A tile's stores in five steps: each sends out the slab that the step before filled, then fills the other one, so that
 * none waits for its own writes to shared memory. Every warp has two slabs of its own; warps never meet here. */
template <int Stores>
DT_DEVICE void dt_store_step(const dt_tile_gemm &gemm, dt_pending &pending, uint32_t shared, uint32_t slabs) {
  const uint32_t lane = threadIdx.x % 32, step = pending.step;
  const bool turned = Stores >= DT_STORES_TURNED && dt_is_turned<Stores>(pending);
  dt_stamp_send(shared, step == 1u);
  if (step > 0) {
    const uint32_t chunk = step - 1, slab = slabs + chunk % 2 * DT_SLAB_BYTES;
    if constexpr (Stores == DT_STORES_SPLIT) {
      dt_fence_async_shared();
      __syncwarp();
      if (lane < 2) {
        dt_send_piece(gemm, pending.to, pending.column & ~1, slab);
        dt_bulk_commit();
        dt_bulk_wait_read<1>(); /* the other slab has been read */
      }
      if (turned)
        pending.to = __shfl_down_sync(0xffffffffu, pending.to, 2); /* the next slab's pieces */
      else
        pending.column += 64;
    } else if (Stores != DT_STORES_ANY || (int64_t)pending.to < 0) {
      dt_fence_async_shared();
      __syncwarp();
      if (lane == 0) {
        if (turned)
          dt_send_turned(gemm, pending, chunk, slab);
        else
          dt_send_slab(&gemm.owners[dt_slab_owner(pending)], pending, chunk, slab);
        dt_bulk_commit();
        dt_bulk_wait_read<1>(); /* the other slab has been read */
      }
    } else {
      if (gemm.tensor_stores && lane == 0) dt_bulk_wait_read<0>(); /* slabs before it may have been the engine's */
      __syncwarp();
      dt_store_rows(gemm, pending, chunk, slab);
    }
    __syncwarp();
  }
  if (turned && Stores == DT_STORES_SPLIT) {
    switch (step) {
    case 0:
      dt_fill_split<0>(pending.packed, pending.to, slabs);
      break;
    case 1:
      dt_fill_split<1>(pending.packed, pending.to, slabs);
      break;
    case 2:
      dt_fill_split<2>(pending.packed, pending.to, slabs);
      break;
    case 3:
      dt_fill_split<3>(pending.packed, pending.to, slabs);
      break;
    }
  } else if (turned) {
    switch (step) {
    case 0:
      dt_fill_turned<0>(pending.packed, slabs);
      break;
    case 1:
      dt_fill_turned<1>(pending.packed, slabs);
      break;
    case 2:
      dt_fill_turned<2>(pending.packed, slabs);
      break;
    case 3:
      dt_fill_turned<3>(pending.packed, slabs);
      break;
    }
  } else {
    switch (step) {
    case 0:
      dt_fill_slab<0, 2>(pending.packed, slabs);
      break;
    case 1:
      dt_fill_slab<1, 2>(pending.packed, slabs);
      break;
    case 2:
      dt_fill_slab<2, 2>(pending.packed, slabs);
      break;
    case 3:
      dt_fill_slab<3, 2>(pending.packed, slabs);
      break;
    }
  }
  /* A narrow tile has two slabs' columns: what is put into the next slab stays there. A turned one takes all steps, also
   * where it has no rows for the last slab: its third slab must have been read before the next tile fills it. */
  pending.step = step == 2 && (pending.column & 1) ? DT_STORE_STEPS : step + 1;
  dt_stamp_sent(shared, pending.step == DT_STORE_STEPS);
}

/* The same of a layer, whose warps have one slab each, because rows on their way take the rest of the room
 * (layer_carry.cuh): a step fills it or sends it out. L1 has two slabs' columns and fills a quarter of one a step,
 * since the activation takes time, in which this warp feeds no tensor core: its steps 4 and 9 send, of L2 every second.
 */
DT_DEVICE void dt_store_step_layer(const dt_tile_layer &layer, dt_pending &pending, uint32_t shared, uint32_t slab) {
  const uint32_t lane = threadIdx.x % 32, step = pending.step;
  const bool act = pending.column & 1, sends = act ? step % 5 == 4 : step % 2 == 1;
  dt_stamp_send(shared, step == (act ? 4u : 1u));
  if (sends) {
    const uint32_t chunk = act ? step / 5 : step / 2;
    if ((int64_t)pending.to < 0) {
      dt_fence_async_shared();
      __syncwarp();
      if (lane == 0) {
        dt_send_slab(act ? &layer.act : &layer.gemm.owners[dt_slab_owner(pending)], pending, chunk, slab);
        dt_bulk_commit();
      }
    } else {
      __syncwarp();
      dt_store_rows(layer.gemm, pending, chunk, slab);
      __syncwarp();
    }
  } else {
    if (act ? step == 5 : step > 0) {
      if (lane == 0) dt_bulk_wait_read<0>(); /* the slab has been read */
      __syncwarp();
    }
    if (act) {
      switch (step) {
      case 0:
        dt_fill_act<0>(layer, pending, slab);
        break;
      case 1:
        dt_fill_act<1>(layer, pending, slab);
        break;
      case 2:
        dt_fill_act<2>(layer, pending, slab);
        break;
      case 3:
        dt_fill_act<3>(layer, pending, slab);
        break;
      case 5:
        dt_fill_act<4>(layer, pending, slab);
        break;
      case 6:
        dt_fill_act<5>(layer, pending, slab);
        break;
      case 7:
        dt_fill_act<6>(layer, pending, slab);
        break;
      case 8:
        dt_fill_act<7>(layer, pending, slab);
        break;
      }
    } else {
      switch (step) {
      case 0:
        dt_fill_slab<0, 1>(pending.packed, slab);
        break;
      case 2:
        dt_fill_slab<1, 1>(pending.packed, slab);
        break;
      case 4:
        dt_fill_slab<2, 1>(pending.packed, slab);
        break;
      case 6:
        dt_fill_slab<3, 1>(pending.packed, slab);
        break;
      }
    }
  }
  pending.step = !act && step + 1 == DT_STORE_STEPS_L2 ? DT_STORE_STEPS_L1 : step + 1;
  dt_stamp_sent(shared, pending.step == DT_STORE_STEPS_L1);
}

template <bool Layer, int Stores>
DT_DEVICE void dt_store_next(const dt_tile_gemm &gemm, dt_pending &pending, uint32_t shared, uint32_t slabs) {
  if constexpr (Layer)
    dt_store_step_layer(dt_layer_of(gemm), pending, shared, slabs);
  else
    dt_store_step<Stores>(gemm, pending, shared, slabs);
}

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

/* A consumer warp's word that its part of tile `sequence` is stored. */
template <bool Layer> DT_DEVICE void dt_tile_stored(const dt_tile_gemm &gemm, uint32_t shared, uint32_t sequence) {
  if (!Layer && gemm.ready == NULL) return dt_stamp_stored(shared, false);
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    dt_bulk_wait_all();
    dt_stamp_stored(shared, true);
    dt_barrier_arrive(dt_tile_done(shared, sequence));
  }
}

/* Every lane's copy of the next task. Split: its shape as dt_shape_split. */
template <bool Layer, bool Split>
DT_DEVICE dt_tile dt_next_tile(const dt_tile_gemm &gemm, uint32_t shared, uint32_t sequence, uint32_t rank) {
  uint4 first = make_uint4(0, 0, 0, 0), second = first;
  if (threadIdx.x % 32 == 0) dt_slot_read<Layer>(gemm, shared, sequence, first, second);
  dt_stamp_task(shared, second, rank);
  dt_tile tile = dt_tile_of<Layer>(first, second, rank);
  if (Split) tile.shape = dt_shape_split(tile.shape, second.y >> DT_TILE_MEET_SHIFT);
  tile.row = __shfl_sync(0xffffffffu, tile.row, 0);
  tile.shape = __shfl_sync(0xffffffffu, tile.shape, 0);
  tile.expert = Layer ? (int32_t)tile.shape >> DT_SHAPE_EXPERT_SHIFT : __shfl_sync(0xffffffffu, tile.expert, 0);
  return tile;
}

/* What a consumer warp carries from tile to tile. */
typedef struct dt_consumer {
  uint32_t shared, warp;
  uint32_t step, sequence; /* stages consumed; tasks read */
  dt_tile tile;
  dt_pending pending;
} dt_consumer;

template <bool Layer> DT_DEVICE uint32_t dt_slabs(const dt_consumer &c) {
  return c.shared + DT_SHARED_SLABS + c.warp * (Layer ? 1 : 2) * DT_SLAB_BYTES;
}

/* Adds the biases of a tile to its accumulators: L2's 256 columns, or 128 of gate and the same of up. */
DT_DEVICE void dt_add_bias(const dt_tile_layer &layer, float (&d)[128], uint32_t phase, int32_t expert,
                           int32_t column) {
  const bool l1 = phase == DT_TASK_L1;
  const int32_t columns = l1 ? layer.l1_columns : layer.gemm.columns, lane = (int32_t)(threadIdx.x % 32);
#pragma unroll
  for (int32_t j = 0; j < 32; j++) {
    const float *bias = !l1 ? layer.down_bias : j < 16 ? layer.gate_bias : layer.up_bias;
    const int32_t at = column + 8 * (l1 ? j % 16 : j) + 2 * (lane % 4);
    if (bias == NULL || at >= columns) continue;
    const float2 b = *(const float2 *)(bias + (int64_t)expert * columns + at);
    d[4 * j] += b.x;
    d[4 * j + 1] += b.y;
    d[4 * j + 2] += b.x;
    d[4 * j + 3] += b.y;
  }
}

/* Whether the pending tile may be what this one waits for: it is of L1, this of L2, whose operands are not there. */
DT_DEVICE bool dt_must_store_first(const dt_consumer &c) {
  if (c.pending.step == DT_STORE_TOLD || !(c.pending.column & 1) || dt_tile_phase<true>(c.tile.shape) != DT_TASK_L2)
    return false;
  return __any_sync(0xffffffffu, !dt_barrier_try(dt_stage_full(c.shared, c.step % DT_STAGES), c.step / DT_STAGES & 1));
}

/* Among how many steps the main loop spreads the pending tile's stores. */
template <bool Layer> DT_DEVICE uint32_t dt_store_steps(const dt_pending &pending) {
  return !Layer ? DT_STORE_STEPS : pending.column & 1 ? DT_STORE_STEPS_L1 : DT_STORE_STEPS_L2;
}

/* One tile: its main loop, during which the tile before is stored, then packing it. Columns of the accumulators: 256,
 * 128 of a narrow tile, else of a turned one its rows, rounded up. An instance each, since ptxas keeps multiplications
 * asynchronous only where a loop has one shape of them. */
template <bool Layer, int Stores, int Columns>
DT_DEVICE void dt_consume_tile(const dt_tile_gemm &gemm, dt_consumer &c) {
  const uint32_t shared = c.shared, group = c.warp / 4, shape = c.tile.shape, phase = dt_tile_phase<Layer>(shape);
  const uint32_t slabs = dt_slabs<Layer>(c);
  const uint32_t a0 = dt_mma_start(shared) + group * DT_MMA_ROWS64, b0 = dt_mma_start(shared + DT_STAGE_A_BYTES);
  const uint32_t k_blocks = (uint32_t)(Layer && phase == DT_TASK_L1 ? dt_layer_of(gemm).l1_k_blocks : gemm.k_blocks);
  constexpr bool Narrow = Columns == 128, Turned = Columns != 256 && !Narrow, Split = Stores == DT_STORES_SPLIT;
  const int32_t slab_row = (int32_t)(16 * c.warp); /* of the tile: where this warp's 16 rows start, or columns */
  float d[128];
  dt_stamp_begin(shared, DT_STAMP_TILE, shape);
  for (uint32_t k = 0; k < k_blocks; k++, c.step++) {
    const uint32_t stage = c.step % DT_STAGES;
    const bool hold = Layer && k == 0 && dt_must_store_first(c);
    if (!hold) dt_wait<Layer>(gemm, shared, dt_stage_full(shared, stage), c.step / DT_STAGES & 1, DT_TILE_ERROR_FULL);
    dt_stamp_operands(shared, k == 0);
    if (!hold && dt_tile_rows(shape) > (int32_t)(64 * group)) {
      const uint32_t a = a0 + stage * (DT_STAGE_BYTES / 16), b = b0 + stage * (DT_STAGE_BYTES / 16);
      dt_mma_fence();
#pragma unroll
      for (uint32_t i = 0; i < DT_TILE_K / 16; i++) {
        const uint64_t a_i = dt_mma_operand(a + i * DT_MMA_K), b_i = dt_mma_operand(b + i * DT_MMA_K);
        if constexpr (Turned)
          dt_mma_turned<Columns>(d, a_i, b_i, (k | i) != 0);
        else if constexpr (Narrow)
          dt_mma_narrow(d, a_i, b_i, (k | i) != 0);
        else
          dt_mma(d, a_i, b_i, (k | i) != 0);
      }
      dt_mma_commit();
    }
    /* The two warpgroups store at different times: while one does, the other feeds the tensor cores. */
    while (c.pending.step < dt_store_done<Layer> &&
           (Narrow || hold || (2 * c.pending.step + group) * k_blocks <= 2 * dt_store_steps<Layer>(c.pending) * k ||
            k + 1 == k_blocks))
      dt_store_next<Layer, Stores>(gemm, c.pending, shared, slabs);
    if (hold) {
      dt_tile_stored<Layer>(gemm, shared, c.sequence - 2);
      c.pending.step = DT_STORE_TOLD;
      k--, c.step--; /* this round did not begin the tile */
    } else if (k > 0) {
      dt_mma_wait<1>();
      dt_stage_release(shared, (c.step - 1) % DT_STAGES);
    }
  }
  const int32_t first = c.tile.row, rows = dt_tile_rows(shape) - slab_row;
  const int32_t column = Split ? dt_shape_split_column(shape) : dt_tile_column<Layer>(shape);
  uint64_t target = 0;
  if constexpr (!Turned) {
    target = dt_row_target<Layer>(gemm, phase, first + slab_row, rows);
  } else if constexpr (Split) {
    const int32_t at = dt_turned_piece((int32_t)(threadIdx.x % 32), dt_tile_rows(shape), dt_shape_meet(shape));
    if (at >= 0) target = gemm.row_target[first + at];
  }
  if constexpr (Layer) {
    if (c.pending.step != DT_STORE_TOLD) dt_tile_stored<true>(gemm, shared, c.sequence - 2);
  } else {
    if (c.sequence > 1) dt_tile_stored<false>(gemm, shared, c.sequence - 2);
  }
  c.tile = dt_next_tile<Layer, Split>(gemm, shared, c.sequence++, dt_cluster_rank());
  dt_mma_wait<0>();
  dt_settle(d);
  dt_stage_release(shared, (c.step - 1) % DT_STAGES);
  dt_stamp_multiplied(shared);
  if constexpr (Layer)
    if (dt_layer_of(gemm).biases)
      dt_add_bias(dt_layer_of(gemm), d, phase, (int32_t)(shape >> DT_SHAPE_EXPERT_SHIFT), column);
#pragma unroll
  for (int i = 0; i < Columns / 4; i++) c.pending.packed[i] = dt_pack_bf16(d[2 * i], d[2 * i + 1]);
  if constexpr (Turned) {
    if constexpr (Split)
      c.pending.to =
          dt_turned_target((int32_t)(threadIdx.x % 32), target, dt_tile_rows(shape), dt_shape_meet(shape));
    else
      c.pending.to = (uint64_t)3 << 62 | (uint64_t)dt_tile_rows(shape) << 32 | (uint32_t)first;
    c.pending.column = column + slab_row;
    c.pending.step = 0;
    return;
  }
  if constexpr (Split)
    c.pending.to = dt_slab_pieces(target, rows);
  else
    c.pending.to = dt_slab_target<Layer>(gemm, phase, target, rows, column);
  c.pending.column = column + (Narrow || (Layer && phase == DT_TASK_L1) ? 1 : 0);
  c.pending.step = rows > 0 ? 0 : dt_store_done<Layer>;
}

template <bool Layer, int Stores> DT_DEVICE void dt_store_all(const dt_tile_gemm &gemm, dt_consumer &c) {
  while (c.pending.step < dt_store_done<Layer>)
    dt_store_next<Layer, Stores>(gemm, c.pending, c.shared, dt_slabs<Layer>(c));
}

/* A turned tile, by the smallest multiplication that holds its rows. */
template <int Stores, int Columns> DT_DEVICE void dt_consume_turned(const dt_tile_gemm &gemm, dt_consumer &c) {
  if constexpr (Columns < (Stores == DT_STORES_SPLIT ? (int)DT_SPLIT_TURNED_MAX : (int)DT_TURNED_MAX))
    if (dt_tile_rows(c.tile.shape) > Columns) return dt_consume_turned<Stores, Columns + 16>(gemm, c);
  dt_consume_tile<false, Stores, Columns>(gemm, c);
}

/* Every lane's copy of the first task, and nothing to store yet. */
template <bool Layer, bool Split>
DT_DEVICE void dt_consumer_start(const dt_tile_gemm &gemm, dt_consumer &c, uint32_t shared, uint32_t rank) {
  c.shared = shared;
  c.warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  c.step = c.sequence = 0;
  c.pending.step = Layer ? (uint32_t)DT_STORE_TOLD : dt_store_done<Layer>;
  if (Layer) c.pending.column = 0;
  c.tile = dt_next_tile<Layer, Split>(gemm, shared, c.sequence++, rank);
}

template <bool Gated, int Stores> DT_DEVICE void dt_consume(const dt_tile_gemm &gemm, dt_consumer &c) {
  while (c.tile.expert >= 0) {
    if (Stores >= DT_STORES_TURNED && c.tile.shape & DT_SHAPE_TURNED) {
      if constexpr (Stores >= DT_STORES_TURNED) dt_consume_turned<Stores, DT_TURNED_MIN>(gemm, c);
    } else if (c.tile.shape & DT_SHAPE_NARROW) {
      dt_consume_tile<false, Stores, 128>(gemm, c);
    } else {
      dt_consume_tile<false, Stores, 256>(gemm, c);
    }
    if constexpr (Gated) {
      if (c.sequence == 2) dt_gate_wait(c.shared); /* the first tile is done */
      if (!dt_gate_open(c.shared)) c.pending.step = dt_store_done<false>;
    }
  }
  dt_store_all<false, Stores>(gemm, c);
  if (c.sequence > 1) dt_tile_stored<false>(gemm, c.shared, c.sequence - 2);
  if constexpr (Gated)
    dt_bulk_wait_all(); /* dt_gate_leave publishes it */
  else
    dt_bulk_wait_read<0>();
}

DT_DEVICE void dt_consume_layer(const dt_tile_layer &layer, uint32_t shared, uint32_t rank) {
  const dt_tile_gemm &gemm = layer.gemm;
  dt_await_plan(layer);
  dt_consumer c;
  dt_consumer_start<true, false>(gemm, c, shared, rank);
  while ((int32_t)c.tile.shape >= 0) dt_consume_tile<true, DT_STORES_ANY, 256>(gemm, c);
  dt_store_all<true, DT_STORES_ANY>(gemm, c);
  if (c.pending.step != DT_STORE_TOLD) dt_tile_stored<true>(gemm, shared, c.sequence - 2);
  dt_bulk_wait_read<0>();
}

/* A CTA of any of the kernels. Gated: of a combine whose rows wait for the peers' entry. Turns: tasks may be turned,
 * and all rows leave through the copy engine; of a combine to one or two owners (tile_split.h). */
template <bool Layer, bool Gated = false, bool Turns = false>
DT_DEVICE void dt_run_cta(const dt_tile_gemm &gemm, const uint8_t *dynamic) {
  const uint32_t shared = dt_shared_start(dynamic);
  const uint32_t rank = dt_cluster_rank(), warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0),
                 lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    dt_grid_launch(); /* whoever follows may be there when the last tile is stored */
    if constexpr (Gated) dt_gate_init(shared);
    dt_pipeline_init(shared, DT_CONSUMER_WARPS + 1 + (Layer || gemm.ready != NULL));
    dt_tensor_prefetch(&gemm.a);
    dt_tensor_prefetch(&gemm.b);
  }
  dt_cluster_sync();
  if (warp >= DT_CONSUMER_WARPS) {
    dt_registers_lower<40>();
    if (warp == DT_WARP_LOAD && lane == 0) dt_load<Layer, Turns, Turns && Gated>(gemm, shared, rank);
    if (warp == DT_WARP_RELEASE && lane == 0) {
      if constexpr (Layer)
        dt_release_tasks(dt_layer_of(gemm), shared, rank);
      else if (gemm.ready != NULL)
        dt_release_tiles(gemm, shared, rank);
    }
    if (warp == DT_WARP_TICKET && lane == 0 && rank == 0) dt_draw<Layer>(gemm, shared);
    if constexpr (Gated)
      if (warp == DT_WARP_ENTRY) dt_gate_keep(gemm, shared);
    if constexpr (Layer)
      if (warp == DT_WARP_ENTRY) dt_copy_behind(dt_layer_of(gemm), shared);
  } else {
    dt_registers_raise<232>();
    if constexpr (Layer) {
      dt_consume_layer(dt_layer_of(gemm), shared, rank);
    } else {
      dt_consumer c;
      dt_consumer_start<false, Turns && Gated>(gemm, c, shared, rank);
      if constexpr (Turns && Gated)
        dt_consume<Gated, DT_STORES_SPLIT>(gemm, c);
      else if constexpr (!Turns)
        dt_consume<Gated, DT_STORES_ANY>(gemm, c);
      else if (c.tile.shape & DT_SHAPE_AMONG_TURNED)
        dt_consume<Gated, DT_STORES_TURNED>(gemm, c);
      else
        dt_consume<Gated, DT_STORES_COPIED>(gemm, c);
    }
  }
  __syncwarp();
  if constexpr (Layer) dt_leave();
  if (Layer && dt_load_shared_word(shared + DT_SHARED_DEAD)) dt_pause_us(200); /* copies under way must land first */
  dt_cluster_sync(); /* the peer may still arrive at barriers of this CTA */
  if constexpr (Gated)
    if (threadIdx.x < 32 && dt_cluster_rank() == 0) dt_gate_leave(gemm);
}

/* Launches `kernel` with one of the parameter structures, so that it may come before the kernel ahead has ended. */
static cudaError_t dt_launch_clusters(const void *kernel, const void *params, int ctas, cudaStream_t stream) {
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, DT_SHARED_ALLOCATION);
  if (error != cudaSuccess) return error;
  return dt_launch_early(kernel, params, ctas, DT_THREADS, DT_SHARED_ALLOCATION, 1, stream);
}

#endif
