/* A finished tile on its way out of the tile engine: where its rows go, a warp's slabs of shared memory filled from
 * registers, and slabs sent out. tile_store.cuh takes these in steps.
 */
#ifndef DT_CUDA_TILE_SLAB_CUH
#define DT_CUDA_TILE_SLAB_CUH

#include "cuda/layer_roles.cuh"
#include "cuda/mma.cuh"
#include "cuda/tile_pieces.cuh"

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

#endif
