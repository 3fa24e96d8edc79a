/* The engine's pipelines: operand stages between the loader and the consumers, ticket slots between the ticket warp and
 * everyone, and the bounded wait that all of them use.
 *
 * A stage is handed back by every consumer warp of both CTAs to both loaders, since a multicast box lands in both. A
 * slot is handed back to the ticket warp of CTA 0, which fills the slots of both.
 */
#ifndef DT_CUDA_PIPELINE_CUH
#define DT_CUDA_PIPELINE_CUH

#include "cuda/layer_words.cuh"
#include "cuda/ptx.cuh"
#include "cuda/spans.h"
#include "cuda/tile_gemm.h"

enum {
  DT_STAGES = 4,
  DT_SLOTS = 2, /* tickets drawn ahead of the tile in work */
  DT_DONES = 4, /* tiles whose stores may be under way: more than any warp can be ahead of another */
  DT_CONSUMER_WARPS = 8,
  DT_CARRY_PARTS = 4, /* rows' parts on their way through a layer's shared memory */
  DT_DRAIN_US = 400,  /* from giving up to running on: see dt_wait */
  DT_STAGE_A_BYTES = DT_TILE_M * DT_TILE_K * 2,
  DT_STAGE_B_BYTES = DT_TILE_N * DT_TILE_K * 2,
  DT_STAGE_BYTES = DT_STAGE_A_BYTES + DT_STAGE_B_BYTES,
  DT_SLAB_BYTES = 16 * 64 * 2, /* 16 rows by 64 columns of output, two a warp, in a layer one */
  DT_SHARED_SLABS = DT_STAGES * DT_STAGE_BYTES,
  DT_SHARED_CARRY = DT_SHARED_SLABS + DT_CONSUMER_WARPS * DT_SLAB_BYTES, /* of a layer: rows: see layer_carry.cuh */
  DT_SHARED_SLOTS = DT_SHARED_SLABS + 2 * DT_CONSUMER_WARPS * DT_SLAB_BYTES,
  DT_SHARED_BARRIERS = DT_SHARED_SLOTS + DT_SLOTS * (int)sizeof(dt_tile_task),
  DT_SHARED_DEAD = DT_SHARED_BARRIERS + 8 * (2 * DT_STAGES + 2 * DT_SLOTS + DT_DONES), /* a word: see dt_give_up */
  DT_SHARED_GATE_OPEN = DT_SHARED_DEAD + 4,               /* a word: see combine_gate.cuh */
  DT_SHARED_GATE = DT_SHARED_DEAD + 8,                    /* a barrier: likewise */
  DT_SHARED_STAMPS = (DT_SHARED_GATE + 8 + 15) / 16 * 16, /* spans.cuh */
  DT_SHARED_PLACES = DT_SHARED_STAMPS + DT_STAMP_BYTES,   /* of a layer: what the rows' room holds, and its barriers */
  DT_SHARED_BYTES = DT_SHARED_PLACES + DT_CARRY_PARTS * (16 + 8),
  DT_SHARED_ALLOCATION = DT_SHARED_BYTES + 1024 /* stages are aligned by hand */
};

/* Where a CTA's shared memory starts for the engine. */
DT_DEVICE uint32_t dt_shared_start(const uint8_t *dynamic) {
  return (dt_shared_address(dynamic) + 1023) & ~1023u;
}

/* Offsets of barriers from the start of shared memory. */
DT_DEVICE uint32_t dt_stage_full(uint32_t shared, uint32_t stage) {
  return shared + DT_SHARED_BARRIERS + 8 * stage;
}
DT_DEVICE uint32_t dt_stage_empty(uint32_t shared, uint32_t stage) {
  return shared + DT_SHARED_BARRIERS + 8 * (DT_STAGES + stage);
}
DT_DEVICE uint32_t dt_slot_full(uint32_t shared, uint32_t slot) {
  return shared + DT_SHARED_BARRIERS + 8 * (2 * DT_STAGES + slot);
}
DT_DEVICE uint32_t dt_slot_empty(uint32_t shared, uint32_t slot) {
  return shared + DT_SHARED_BARRIERS + 8 * (2 * DT_STAGES + DT_SLOTS + slot);
}

DT_DEVICE uint32_t dt_tile_done(uint32_t shared, uint32_t sequence) {
  return shared + DT_SHARED_BARRIERS + 8 * (2 * DT_STAGES + 2 * DT_SLOTS + sequence % DT_DONES);
}

/* slot_readers: warps of a CTA that read every slot. */
DT_DEVICE void dt_pipeline_init(uint32_t shared, uint32_t slot_readers) {
  dt_store_shared_word(shared + DT_SHARED_DEAD, 0);
  for (uint32_t i = 0; i < DT_STAGES; i++) {
    dt_barrier_init(dt_stage_full(shared, i), 1);
    dt_barrier_init(dt_stage_empty(shared, i), DT_TILE_CLUSTER * DT_CONSUMER_WARPS);
  }
  for (uint32_t i = 0; i < DT_SLOTS; i++) {
    dt_barrier_init(dt_slot_full(shared, i), 1);
    dt_barrier_init(dt_slot_empty(shared, i), DT_TILE_CLUSTER * slot_readers);
  }
  for (uint32_t i = 0; i < DT_DONES; i++) dt_barrier_init(dt_tile_done(shared, i), DT_CONSUMER_WARPS);
  dt_barrier_init_fence();
}

/* Hands a stage back to both loaders. Every lane of a consumer warp calls it. */
DT_DEVICE void dt_stage_release(uint32_t shared, uint32_t stage) {
  const uint32_t lane = threadIdx.x % 32;
  if (lane < DT_TILE_CLUSTER) dt_barrier_arrive(dt_peer_address(dt_stage_empty(shared, stage), lane));
}

/* The layer that a launch of the engine runs; only if it runs one. */
DT_DEVICE const dt_tile_layer &dt_layer_of(const dt_tile_gemm &gemm) {
  return (const dt_tile_layer &)gemm;
}

/* Sticky in this CTA, with the time: once a thread has given up, nobody waits for anything any more, so that every role
 * runs to its end. */
DT_DEVICE void dt_set_dead(uint32_t shared) {
  if (dt_load_shared_word(shared + DT_SHARED_DEAD) == 0)
    dt_store_shared_word(shared + DT_SHARED_DEAD, dt_time_us() | 1);
}
template <bool Layer> DT_DEVICE void dt_give_up(const dt_tile_gemm &gemm, uint32_t shared, uint32_t error) {
  dt_set_dead(shared);
  if constexpr (Layer)
    dt_layer_fail(dt_layer_of(gemm), DT_LAYER_ERROR_PIPE + error, -1, 0, 0);
  else
    atomicCAS(&gemm.header->error, 0u, error);
}
/* False if it gave up. A layer's launches also end when another CTA or rank has given up. Whoever waits in a CTA that
 * gave up stays for a while: what it does next may arrive at barriers out of turn, and a loader of either CTA that
 * still issued copies behind that would break its barriers. Until then both have run out of stages and noticed. */
template <bool Layer>
DT_DEVICE bool dt_wait(const dt_tile_gemm &gemm, uint32_t shared, uint32_t barrier, uint32_t parity, uint32_t error) {
  if (dt_barrier_try(barrier, parity)) return true;
  const uint32_t start = dt_time_us();
  while (!dt_barrier_try(barrier, parity)) {
    const uint32_t dead = dt_load_shared_word(shared + DT_SHARED_DEAD);
    if (dead) {
      while ((int32_t)(dt_time_us() - dead) < DT_DRAIN_US) continue;
      return false;
    }
    const uint32_t waited = dt_time_us() - start;
    if (waited > gemm.timeout_us) dt_give_up<Layer>(gemm, shared, error);
    if constexpr (Layer)
      if (waited > 100 && dt_layer_failed(dt_layer_of(gemm))) dt_set_dead(shared);
  }
  return true;
}

/* One thread's reading of the slot that holds task `sequence` of this cluster, and handing the slot back: only when
 * both loads have returned, which the condition makes a data dependency. */
template <bool Layer>
DT_DEVICE void dt_slot_read(const dt_tile_gemm &gemm, uint32_t shared, uint32_t sequence, uint4 &first, uint4 &second) {
  const uint32_t slot = sequence % DT_SLOTS;
  const bool good =
      dt_wait<Layer>(gemm, shared, dt_slot_full(shared, slot), sequence / DT_SLOTS & 1, DT_TILE_ERROR_TICKET);
  const uint32_t address = shared + DT_SHARED_SLOTS + slot * (uint32_t)sizeof(dt_tile_task);
  first = dt_load_shared(address);
  second = dt_load_shared(address + 16);
  if (!good) second.x = (uint32_t)-1;
  if ((int32_t)first.x >= 0 && (int32_t)second.x >= -1)
    dt_barrier_arrive(dt_peer_address(dt_slot_empty(shared, slot), 0));
}

/* One CTA's share of a task. shape is all that the main loop keeps of it in registers: rows in 8 bits, then whether it
 * is narrow, then in a layer the phase (1 bit), the column (10 bits) and the expert (11 bits), else whether it is
 * turned and from bit 16 the column. */
typedef struct dt_tile {
  int32_t row, expert, shares_rows;
  uint32_t shape;
} dt_tile;
enum {
  DT_SHAPE_NARROW = 256,
  DT_SHAPE_PHASE = 512,  /* of a layer */
  DT_SHAPE_TURNED = 512, /* else, as the next */
  DT_SHAPE_AMONG_TURNED = 1024,
  DT_SHAPE_COLUMN_SHIFT = 10,
  DT_SHAPE_EXPERT_SHIFT = 20,
};
DT_DEVICE int32_t dt_tile_rows(uint32_t shape) {
  return (int32_t)(shape & 255);
}
template <bool Layer> DT_DEVICE int32_t dt_tile_column(uint32_t shape) {
  return (int32_t)(Layer ? shape >> DT_SHAPE_COLUMN_SHIFT & 1023 : shape >> 16) * (DT_TILE_N / 2);
}
template <bool Layer> DT_DEVICE uint32_t dt_tile_phase(uint32_t shape) {
  return Layer && shape & DT_SHAPE_PHASE ? (uint32_t)DT_TASK_L1 : (uint32_t)DT_TASK_L2;
}

/* For consumers whose slabs may be two owners': the rows before those of the second from bit 10, the column from 18. */
DT_DEVICE uint32_t dt_shape_split(uint32_t shape, uint32_t meet) {
  return (shape & 1023) | meet << 10 | shape >> 16 << 18;
}
DT_DEVICE int32_t dt_shape_meet(uint32_t shape) {
  return (int32_t)(shape >> 10 & 255);
}
DT_DEVICE int32_t dt_shape_split_column(uint32_t shape) {
  return (int32_t)(shape >> 18) * (DT_TILE_N / 2);
}

template <bool Layer> DT_DEVICE dt_tile dt_tile_of(uint4 first, uint4 second, uint32_t rank) {
  dt_tile tile;
  tile.row = (int32_t)(rank ? first.y : first.x);
  tile.expert = (int32_t)second.x;
  tile.shares_rows = (int32_t)(second.y & DT_TILE_SHARES_ROWS);
  const uint32_t column = first.w >> (16 * rank);
  tile.shape = first.z >> (16 * rank) & 0xffff;
  if constexpr (Layer) {
    tile.shape |= (column & 1023) << DT_SHAPE_COLUMN_SHIFT | second.x << DT_SHAPE_EXPERT_SHIFT;
    if (second.y >> DT_TASK_PHASE_SHIFT & 1) tile.shape |= DT_SHAPE_PHASE;
  } else {
    tile.shape |= column << 16;
    if (second.y & DT_TILE_NARROW) tile.shape |= DT_SHAPE_NARROW;
    if (second.y & DT_TILE_TURNED) tile.shape |= DT_SHAPE_TURNED;
    if (second.y & DT_TILE_AMONG_TURNED) tile.shape |= DT_SHAPE_AMONG_TURNED;
  }
  return tile;
}

#endif
