/* The tile engine's consumers: two warpgroups, 64 rows of the tile each, that multiply and store what they multiplied
 * before.
 */
#ifndef DT_CUDA_TILE_CONSUME_CUH
#define DT_CUDA_TILE_CONSUME_CUH

#include "cuda/combine_gate.cuh"
#include "cuda/layer_roles.cuh"
#include "cuda/mma.cuh"
#include "cuda/mma_turned.cuh"
#include "cuda/tile_store.cuh"
#include "cuda/tile_warps.cuh"

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

/* The stage of the main loop in which the pending tile's next store step is due. They are spread over all stages, and
 * the two warpgroups' differ: while one stores, the other feeds the tensor cores. Asked once a step and not in every
 * stage, since what a warp does beside its multiplications takes time from them. */
template <bool Layer, bool Narrow>
DT_DEVICE uint32_t dt_store_due(const dt_pending &pending, uint32_t group, uint32_t k_blocks) {
  if (pending.step >= dt_store_done<Layer>) return UINT32_MAX;
  if (Narrow) return 0;
  const uint32_t half_step = !Layer               ? 65536 / (2 * DT_STORE_STEPS) /* in 65536ths of the loop */
                             : pending.column & 1 ? 65536 / (2 * DT_STORE_STEPS_L1)
                                                  : 65536 / (2 * DT_STORE_STEPS_L2);
  return min(((2 * pending.step + group) * k_blocks * half_step + 65535) >> 16, k_blocks - 1);
}

/* One tile: its main loop, during which the tile before is stored, then packing it. Columns of the accumulators: 256,
 * 128 of a narrow tile, else of a turned one its rows, rounded up. An instance each, since ptxas keeps multiplications
 * asynchronous only where a loop has one shape of them. */
template <bool Layer, int Stores, int Columns>
DT_DEVICE void dt_consume_tile(const dt_tile_gemm &gemm, dt_consumer &c) {
  const uint32_t shared = c.shared, group = c.warp / 4, shape = c.tile.shape, phase = dt_tile_phase<Layer>(shape);
  uint32_t slabs = dt_slabs<Layer>(c);
  const uint32_t a0 = dt_mma_start(shared) + group * DT_MMA_ROWS64;
  uint32_t k_blocks = (uint32_t)(Layer && phase == DT_TASK_L1 ? dt_layer_of(gemm).l1_k_blocks : gemm.k_blocks);
  if (Layer) asm volatile("" : "+r"(k_blocks)); /* else it is loaded in every stage */
  constexpr bool Narrow = Columns == 128, Turned = Columns != 256 && !Narrow, Split = Stores == DT_STORES_SPLIT;
  const int32_t slab_row = (int32_t)(16 * c.warp); /* of the tile: where this warp's 16 rows start, or columns */
  float d[128];
  dt_stamp_begin(shared, DT_STAMP_TILE, shape);
  uint32_t due = dt_store_due<Layer, Narrow>(c.pending, group, k_blocks);
  for (uint32_t k = 0; k < k_blocks; k++, c.step++) {
    const uint32_t stage = c.step % DT_STAGES;
    const bool hold = Layer && k == 0 && dt_must_store_first(c);
    if (!hold) dt_wait<Layer>(gemm, shared, dt_stage_full(shared, stage), c.step / DT_STAGES & 1, DT_TILE_ERROR_FULL);
    dt_stamp_operands(shared, k == 0);
    if (!hold && dt_tile_rows(shape) > (int32_t)(64 * group)) {
      /* From one lane: then the descriptors are made in uniform registers, without four moves to them each. */
      const uint32_t a = __shfl_sync(0xffffffffu, a0 + stage * (DT_STAGE_BYTES / 16), 0);
      const uint32_t b = a - group * DT_MMA_ROWS64 + DT_STAGE_A_BYTES / 16;
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
    while (k >= due || (hold && c.pending.step < dt_store_done<Layer>)) {
      if (Stores != DT_STORES_ANY) asm volatile("" : "+r"(slabs)); /* else its addresses are kept, and others spilled */
      dt_store_next<Layer, Stores>(gemm, c.pending, shared, slabs);
      due = dt_store_due<Layer, Narrow>(c.pending, group, k_blocks);
    }
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
  asm volatile("" : "+r"(shared)); /* else it is kept twice, once as what it was made of */
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

#endif
