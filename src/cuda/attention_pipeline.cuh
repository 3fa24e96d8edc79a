/* Shared memory, barriers, bounded waits and work items of the attention kernel, and its loader.
 *
 * Q of a tile lies in one buffer a warpgroup, K and V blocks in two stages each. A stage is handed back by every
 * consumer warp. What a tile is comes with its Q, in one of eight slots: more than warpgroups can be apart.
 */
#ifndef DT_CUDA_ATTENTION_PIPELINE_CUH
#define DT_CUDA_ATTENTION_PIPELINE_CUH

#include "cuda/attention.h"
#include "cuda/words.cuh"

/* D columns a head, N rows of K and V a block, Groups consumer warpgroups; Cut: some tiles are cut over KV. */
template <int D_, int N_, int Groups, bool Half_, bool Causal_, bool Cut> struct dt_attention_config {
  static constexpr int D = D_, N = N_, GROUPS = Groups, M = 64 * Groups, THREADS = 128 * (Groups + 1);
  static constexpr bool HALF = Half_, CAUSAL = Causal_, CUT = Cut;
  static constexpr uint32_t STAGES = 2, SLOTS = 8;
  static constexpr uint32_t GROUP_Q_BYTES = 64 * D * 2, BLOCK_BYTES = N * D * 2;
  static constexpr bool CARRIES = D_ <= 128; /* there is room */
  static constexpr uint32_t CARRY_STAGES = CARRIES ? DT_ATTENTION_CARRY_STAGES : 0;
  static constexpr uint32_t SHARED_K = Groups * GROUP_Q_BYTES, SHARED_V = SHARED_K + STAGES * BLOCK_BYTES,
                            SHARED_CARRY = SHARED_V + STAGES * BLOCK_BYTES,
                            SHARED_SLOTS = SHARED_CARRY + CARRY_STAGES * DT_ATTENTION_CARRY_BYTES,
                            SHARED_BARRIERS = SHARED_SLOTS + 32 * SLOTS,
                            BARRIERS = 4 * STAGES + 2 * Groups + CARRY_STAGES,
                            SHARED_DEAD = SHARED_BARRIERS + 8 * BARRIERS, SHARED_MERGE = SHARED_DEAD + 8,
                            SHARED_ALLOCATION = SHARED_MERGE + 8 * Groups + 1024; /* aligned by hand */
  /* What the launch allots, 168 a thread of three warpgroups or 128 of four, dealt again. A causal loader needs more.
   */
  static constexpr int REGISTERS_CONSUMER = Groups == 2 ? (Causal_ ? 232 : 240) : 160,
                       REGISTERS_LOADER = (Groups == 2 ? 504 : 512) - Groups * REGISTERS_CONSUMER;
};

/* Offsets of barriers from the start of shared memory. */
template <class C> struct dt_attention_barriers {
  DT_DEVICE uint32_t at(uint32_t shared, uint32_t i) { return shared + C::SHARED_BARRIERS + 8 * i; }
  DT_DEVICE uint32_t k_full(uint32_t shared, uint32_t stage) { return at(shared, stage); }
  DT_DEVICE uint32_t k_empty(uint32_t shared, uint32_t stage) { return at(shared, C::STAGES + stage); }
  DT_DEVICE uint32_t v_full(uint32_t shared, uint32_t stage) { return at(shared, 2 * C::STAGES + stage); }
  DT_DEVICE uint32_t v_empty(uint32_t shared, uint32_t stage) { return at(shared, 3 * C::STAGES + stage); }
  DT_DEVICE uint32_t q_full(uint32_t shared, uint32_t group) { return at(shared, 4 * C::STAGES + group); }
  DT_DEVICE uint32_t q_empty(uint32_t shared, uint32_t group) {
    return at(shared, 4 * C::STAGES + C::GROUPS + group);
  }
  DT_DEVICE uint32_t carry_full(uint32_t shared, uint32_t stage) {
    return at(shared, 4 * C::STAGES + 2 * C::GROUPS + stage);
  }
  DT_DEVICE void init(uint32_t shared) {
    if constexpr (C::CARRIES)
      for (uint32_t i = 0; i < C::CARRY_STAGES; i++) dt_barrier_init(carry_full(shared, i), 1);
    for (uint32_t i = 0; i < C::STAGES; i++) {
      dt_barrier_init(k_full(shared, i), 1);
      dt_barrier_init(v_full(shared, i), 1);
      dt_barrier_init(k_empty(shared, i), 4 * C::GROUPS);
      dt_barrier_init(v_empty(shared, i), 4 * C::GROUPS);
    }
    for (uint32_t i = 0; i < C::GROUPS; i++) {
      dt_barrier_init(q_full(shared, i), 1);
      dt_barrier_init(q_empty(shared, i), 4);
    }
    dt_store_shared_word(shared + C::SHARED_DEAD, 0);
    dt_barrier_init_fence();
  }
};

/* Sticky in this CTA: once a thread has given up nobody waits any more, so that every role runs to its end. */
template <class C>
DT_DEVICE void dt_attention_give_up(const dt_attention_kernel &a, uint32_t shared, uint32_t error, uint32_t head) {
  dt_store_shared_word(shared + C::SHARED_DEAD, 1);
  if (atomicCAS(&a.header->error, 0u, error) == 0u) a.header->error_head = head;
}
/* False if it gave up. */
template <class C>
DT_DEVICE bool dt_attention_wait(const dt_attention_kernel &a, uint32_t shared, uint32_t barrier, uint32_t parity,
                                 uint32_t error) {
  if (dt_barrier_try(barrier, parity)) return true;
  const uint32_t start = dt_time_us();
  while (!dt_barrier_try(barrier, parity)) {
    if (dt_load_shared_word(shared + C::SHARED_DEAD)) return false;
    if (dt_time_us() - start > a.timeout_us) dt_attention_give_up<C>(a, shared, error, 0);
  }
  return true;
}

/* One piece of work: a tile, or some of its KV blocks. 32 bytes, as it lies in a slot. */
typedef struct dt_attention_item {
  int32_t head, row, rows, run; /* rows of the tile that exist */
  int32_t block, blocks;        /* KV blocks from `block` down; 0: no more work */
  int32_t masked;               /* the first `masked` of them hold columns that some row does not see */
  int32_t merge;                /* -1: a whole tile. Else which of this CTA's pieces it is */
} dt_attention_item;

/* KV blocks that a tile's rows see, and how many of them every row sees in full. */
template <class C>
DT_DEVICE void dt_attention_blocks(const dt_attention_kernel &a, int32_t row, int32_t rows, int32_t &blocks,
                                   int32_t &full) {
  int32_t last = a.kv_tokens, every = a.kv_tokens;
  if constexpr (C::CAUSAL) {
    last = max(1, min(last, row + rows + a.causal_offset)); /* rows that see nothing still take a block: all masked */
    every = max(0, min(every, row + a.causal_offset + 1));
  }
  blocks = (last + C::N - 1) / C::N;
  full = every / C::N;
}

template <class C>
DT_DEVICE dt_attention_item dt_attention_tile(const dt_attention_kernel &a, int32_t head, int32_t run, int32_t tile) {
  dt_attention_item item;
  item.head = head;
  item.run = run;
  item.row = a.runs[run].start + tile * C::M;
  item.rows = min(C::M, a.runs[run].end - item.row);
  int32_t full;
  dt_attention_blocks<C>(a, item.row, item.rows, item.blocks, full);
  item.block = item.blocks - 1;
  item.masked = item.blocks - full;
  item.merge = -1;
  return item;
}

/* Tile `index` in the kernel's order: remote runs first; within them sections of heads, tiles, heads. Causal tiles
 * come longest first, so from the last. */
template <class C> DT_DEVICE dt_attention_item dt_attention_tile_at(const dt_attention_kernel &a, int32_t index) {
  int32_t group = 0;
  if (index >= a.groups[0].tiles) {
    index -= a.groups[0].tiles;
    group = 1;
  }
  dt_attention_item none;
  none.blocks = 0;
  if (index >= a.groups[group].tiles) return none;
  const int32_t per_section = a.head_section * a.groups[group].tiles_per_head, section = index / per_section;
  const int32_t within = index - section * per_section;
  const int32_t heads = min(a.head_section, a.heads - section * a.head_section);
  const int32_t tile = within / heads;
  int32_t run = a.groups[group].runs_begin;
  while (run + 1 < a.groups[group].runs_end && a.runs[run].tiles_end <= tile) run++;
  int32_t in_run = tile - (a.runs[run].tiles_end - a.runs[run].tiles);
  if (C::CAUSAL) in_run = a.runs[run].tiles - 1 - in_run;
  return dt_attention_tile<C>(a, section * a.head_section + within % heads, run, in_run);
}

/* The next work of this CTA: its pieces, then whole tiles. */
typedef struct dt_attention_feed {
  int32_t pieces; /* taken */
  int32_t index;  /* next tile */
} dt_attention_feed;
template <class C>
DT_DEVICE dt_attention_item dt_attention_next(const dt_attention_kernel &a, dt_attention_feed &feed) {
  /* One call of dt_attention_tile_at: the loader has few registers. */
  const dt_attention_piece *piece = NULL;
  while (C::CUT && feed.pieces < DT_ATTENTION_PIECES && piece == NULL) {
    piece = &a.pieces[blockIdx.x][feed.pieces++];
    if (piece->blocks == 0) piece = NULL;
  }
  int32_t index = feed.index;
  if (piece != NULL)
    index = piece->tile;
  else if (C::CAUSAL)
    feed.index = (int32_t)atomicAdd(&a.header->next, 1u);
  else
    feed.index += (int32_t)gridDim.x;
  dt_attention_item item = dt_attention_tile_at<C>(a, index);
  if (piece != NULL) {
    item.masked = item.masked > 0 && piece->block_first + piece->blocks == item.blocks;
    item.block = piece->block_first + piece->blocks - 1;
    item.blocks = piece->blocks;
    if (piece->pieces > 1) item.merge = feed.pieces - 1;
  }
  return item;
}
template <class C> DT_DEVICE void dt_attention_feed_start(const dt_attention_kernel &a, dt_attention_feed &feed) {
  feed.pieces = 0;
  feed.index = C::CAUSAL ? (int32_t)atomicAdd(&a.header->next, 1u) : a.cut_tiles + (int32_t)blockIdx.x;
}
/* The last CTA to draw leaves the counters as it found them. */
template <class C> DT_DEVICE void dt_attention_feed_end(const dt_attention_kernel &a) {
  if constexpr (C::CAUSAL) {
    if (atomicAdd(&a.header->done, 1u) + 1 < gridDim.x) return;
    a.header->next = 0;
    a.header->done = 0;
  }
}

DT_DEVICE void dt_attention_slot_write(uint32_t slot, const dt_attention_item &item) {
  dt_store_shared(slot, make_uint4((uint32_t)item.head, (uint32_t)item.row, (uint32_t)item.rows, (uint32_t)item.run));
  dt_store_shared(slot + 16, make_uint4((uint32_t)item.block, (uint32_t)item.blocks, (uint32_t)item.masked,
                                        (uint32_t)item.merge));
}

/* Until all that this head needs has come: pairs with the senders' release of its word. What they stored is read by
 * the copy engine next. */
template <class C> DT_DEVICE bool dt_attention_arrived(const dt_attention_kernel &a, uint32_t shared, int32_t head) {
  const uint32_t target = a.arrived_target_from ? *a.arrived_target_from : a.arrived_target;
  const uint32_t start = dt_time_us();
  for (;;) {
    if ((int32_t)(dt_acquire_sys(a.arrived + head) - target) >= 0) break;
    if (dt_load_shared_word(shared + C::SHARED_DEAD)) return false;
    if (*(volatile uint32_t *)&a.header->error != 0) dt_store_shared_word(shared + C::SHARED_DEAD, 1);
    if (dt_time_us() - start > a.timeout_us)
      dt_attention_give_up<C>(a, shared, DT_ATTENTION_ERROR_ARRIVED, (uint32_t)head);
  }
  dt_fence_async_global();
  return true;
}

template <class C>
DT_DEVICE void dt_attention_load_block(const CUtensorMap *map, uint32_t to, int32_t head, int32_t row, uint32_t full) {
  dt_barrier_expect(full, C::BLOCK_BYTES);
#pragma unroll
  for (int32_t x = 0; x < C::D / 64; x++) dt_tensor_load_3d(to + x * C::N * 128, map, 64 * x, head, row, full);
}

/* Operands of all the work of this CTA. One thread. K runs a block ahead of V, also across tiles: the order in which
 * the consumers free the stages. */
template <class C> DT_DEVICE void dt_attention_load(const dt_attention_kernel &a, uint32_t shared) {
  typedef dt_attention_barriers<C> B;
  uint32_t k_step = 0, sequence = 0;
  int32_t v_head = 0, v_row = -1, ready = -1; /* the V to load next, that of the last K; -1: none */
  dt_attention_feed feed;
  dt_attention_feed_start<C>(a, feed);
  const auto load_v = [&]() {
    if (v_row < 0) return true;
    const uint32_t step = k_step - 1, stage = step % C::STAGES;
    if (!dt_attention_wait<C>(a, shared, B::v_empty(shared, stage), (step / C::STAGES & 1) ^ 1,
                              DT_ATTENTION_ERROR_FREE_V))
      return false;
    dt_attention_load_block<C>(&a.v, shared + C::SHARED_V + stage * C::BLOCK_BYTES, v_head, v_row,
                               B::v_full(shared, stage));
    v_row = -1;
    return true;
  };
  for (;; sequence++) {
    const dt_attention_item item = dt_attention_next<C>(a, feed);
    int32_t kv_head = 0;
    if (item.blocks > 0) {
      kv_head = a.mapped ? a.head_to_kv[item.head] : (int32_t)((int64_t)item.head * a.kv_heads / a.heads);
    }
    /* Consumers store a tile when they have the next one's Q. */
    const int32_t awaited = a.arrived == NULL        ? ready
                            : a.arrived_gates_stores ? (sequence == 1 ? 0 : ready)
                            : item.blocks > 0        ? item.head
                                                     : ready;
    if (awaited != ready) {
      /* The tile before must not wait for this head with its last V. */
      if (!load_v() || !dt_attention_arrived<C>(a, shared, awaited)) return;
      ready = awaited;
    }
    for (int32_t j = 0; j < item.blocks || j == 0; j++) {
      const uint32_t stage = k_step % C::STAGES;
      const int32_t row = (item.block - j) * C::N;
      if (item.blocks > 0) {
        if (!dt_attention_wait<C>(a, shared, B::k_empty(shared, stage), (k_step / C::STAGES & 1) ^ 1,
                                  DT_ATTENTION_ERROR_FREE_K))
          return;
        dt_attention_load_block<C>(&a.k, shared + C::SHARED_K + stage * C::BLOCK_BYTES, kv_head, row,
                                   B::k_full(shared, stage));
      }
      if (!load_v()) return;
      if (item.blocks > 0) {
        k_step++;
        v_head = kv_head;
        v_row = row;
      }
      if (j > 0) continue;
      for (uint32_t group = 0; group < C::GROUPS; group++) {
        if (!dt_attention_wait<C>(a, shared, B::q_empty(shared, group), (sequence & 1) ^ 1, DT_ATTENTION_ERROR_FREE_Q))
          return;
        if (group == 0) dt_attention_slot_write(shared + C::SHARED_SLOTS + sequence % C::SLOTS * 32, item);
        const uint32_t full = B::q_full(shared, group), to = shared + group * C::GROUP_Q_BYTES;
        if (item.blocks == 0) {
          dt_barrier_arrive(full);
          continue;
        }
        dt_barrier_expect(full, C::GROUP_Q_BYTES);
#pragma unroll
        for (int32_t x = 0; x < C::D / 64; x++)
          dt_tensor_load_3d(to + x * 64 * 128, &a.q, 64 * x, item.head, item.row + (int32_t)(64 * group), full);
      }
    }
    if (item.blocks == 0) break;
  }
  dt_attention_feed_end<C>(a);
}

#endif
