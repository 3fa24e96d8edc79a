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
  static constexpr uint32_t STAGES = 2, SLOTS = 8, VALUES = 4;
  static constexpr uint32_t GROUP_Q_BYTES = 64 * D * 2, BLOCK_BYTES = N * D * 2;
  static constexpr bool CARRIES = D_ <= 128, SENDS = D_ <= 128; /* there is room */
  static constexpr bool LEADS = D_ <= 128 && !Causal_;
  static constexpr bool RESUMES = D_ <= 128 && Cut;
  static constexpr bool HOLDS = SENDS && !Causal_ && !Cut; /* rows that are away may wait for the last rounds */
  static constexpr uint32_t CARRY_STAGES = CARRIES ? DT_ATTENTION_CARRY_STAGES : 0;
  static constexpr uint32_t SENT_ROW_BYTES = 2 * D + 16; /* with its destination */
  static constexpr uint32_t HELD_BYTES = DT_ATTENTION_HELD_ROWS * SENT_ROW_BYTES;
  static constexpr uint32_t SHARED_K = Groups * GROUP_Q_BYTES, SHARED_V = SHARED_K + STAGES * BLOCK_BYTES,
                            SHARED_CARRY = SHARED_V + STAGES * BLOCK_BYTES,
                            SHARED_SENT = SHARED_CARRY + CARRY_STAGES * DT_ATTENTION_CARRY_BYTES,
                            SHARED_SLOTS = SHARED_SENT + (SENDS ? M * SENT_ROW_BYTES : 0),
                            SHARED_BARRIERS = SHARED_SLOTS + 32 * SLOTS,
                            BARRIERS = 4 * STAGES + 4 * Groups + VALUES + CARRY_STAGES + (HOLDS ? 2 : 0),
                            SHARED_DEAD = SHARED_BARRIERS + 8 * BARRIERS, SHARED_SENT_END = SHARED_DEAD + 4,
                            SHARED_VALUES = SHARED_DEAD + 8,
                            SHARED_READY = SHARED_VALUES + 8 * VALUES, SHARED_HURRY = SHARED_READY + 4,
                            SHARED_MERGE = SHARED_READY + 8, SHARED_DRAIN = SHARED_MERGE + 8 * Groups,
                            SHARED_ALLOCATION = SHARED_DRAIN + (HOLDS ? 8 : 0) + 1024; /* aligned by hand */
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
  DT_DEVICE uint32_t sent_full(uint32_t shared, uint32_t group) {
    return at(shared, 4 * C::STAGES + 2 * C::GROUPS + group);
  }
  DT_DEVICE uint32_t sent_empty(uint32_t shared, uint32_t group) {
    return at(shared, 4 * C::STAGES + 3 * C::GROUPS + group);
  }
  DT_DEVICE uint32_t value(uint32_t shared, uint32_t step) {
    return at(shared, 4 * C::STAGES + 4 * C::GROUPS + step % C::VALUES);
  }
  DT_DEVICE uint32_t carry_full(uint32_t shared, uint32_t stage) {
    return at(shared, 4 * C::STAGES + 4 * C::GROUPS + C::VALUES + stage);
  }
  DT_DEVICE uint32_t held_full(uint32_t shared) { return at(shared, C::BARRIERS - 2); }
  DT_DEVICE uint32_t held_gone(uint32_t shared) { return at(shared, C::BARRIERS - 1); }
  DT_DEVICE void init(uint32_t shared) {
    if constexpr (C::HOLDS) {
      dt_barrier_init(held_full(shared), 1);
      dt_barrier_init(held_gone(shared), 1);
      dt_store_shared_word(shared + C::SHARED_DRAIN, 0);
    }
    if constexpr (C::CARRIES)
      for (uint32_t i = 0; i < C::CARRY_STAGES; i++) dt_barrier_init(carry_full(shared, i), 1);
    for (uint32_t i = 0; i < C::VALUES; i++) dt_barrier_init(value(shared, i), 1);
    for (uint32_t i = 0; i < C::STAGES; i++) {
      dt_barrier_init(k_full(shared, i), 1);
      dt_barrier_init(v_full(shared, i), 1);
      dt_barrier_init(k_empty(shared, i), 4 * C::GROUPS);
      dt_barrier_init(v_empty(shared, i), 4 * C::GROUPS);
    }
    for (uint32_t i = 0; i < C::GROUPS; i++) {
      dt_barrier_init(q_full(shared, i), 1);
      dt_barrier_init(q_empty(shared, i), 4);
      dt_barrier_init(sent_full(shared, i), 4);
      dt_barrier_init(sent_empty(shared, i), 1);
    }
    dt_store_shared_word(shared + C::SHARED_DEAD, 0);
    dt_store_shared_word(shared + C::SHARED_SENT_END, 0);
    dt_store_shared_word(shared + C::SHARED_READY, (uint32_t)-4);
    dt_store_shared_word(shared + C::SHARED_HURRY, 0);
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
  int32_t merge;                /* which of this CTA's pieces it is, or one of DT_ATTENTION_WHOLE... */
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

/* Tile `index` in the kernel's order: remote runs first; within them as dt_attention_place says. Causal tiles come
 * longest first, so from the last. */
template <class C> DT_DEVICE dt_attention_item dt_attention_tile_at(const dt_attention_kernel &a, int32_t index) {
  int32_t group = 0;
  if (index >= a.groups[0].tiles) {
    index -= a.groups[0].tiles;
    group = 1;
  }
  dt_attention_item none;
  none.blocks = 0;
  if (index >= a.groups[group].tiles) return none;
  int32_t head, tile;
  dt_attention_place(&a, group, index, C::LEADS, &head, &tile);
  int32_t run = a.groups[group].runs_begin;
  while (run + 1 < a.groups[group].runs_end && a.runs[run].tiles_end <= tile) run++;
  int32_t in_run = tile - (a.runs[run].tiles_end - a.runs[run].tiles);
  if (C::CAUSAL) in_run = a.runs[run].tiles - 1 - in_run;
  return dt_attention_tile<C>(a, head, run, in_run);
}

/* Volatile: read again where they are needed, not kept in the loader's few registers. */
DT_DEVICE int32_t dt_attention_cta() {
  int32_t cta;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(cta));
  return cta;
}
DT_DEVICE int32_t dt_attention_ctas() {
  int32_t ctas;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(ctas));
  return ctas;
}

/* The next work of this CTA, number `sequence`; where tiles are cut, of those behind the first. Next: a tile; where
 * tiles are cut, how many whole ones there were. Causal: the one whose ticket is drawn now; a ticket drawn a tile ahead
 * would be one that whoever is through first cannot have. */
template <class C>
DT_DEVICE dt_attention_item dt_attention_next(const dt_attention_kernel &a, int32_t &next, uint32_t sequence) {
  /* One call of dt_attention_tile_at: the loader has few registers. */
  dt_attention_piece piece = {};
  int32_t index = C::CAUSAL ? (int32_t)atomicAdd(&a.header->next, 1u) : next, merge = DT_ATTENTION_WHOLE;
  if constexpr (C::CUT) {
    const int32_t cta = dt_attention_cta(), pieces = (int32_t)sequence - next;
    const dt_attention_share share = a.shares[cta];
    index = next < share.whole ? a.round[next] + share.place : -1;
    if (pieces < share.before) {
      piece = a.pieces[cta][pieces];
      merge = a.resumes ? DT_ATTENTION_SUSPENDED : pieces;
    } else if (C::RESUMES && index < 0 && pieces < share.before + share.after) {
      piece = a.pieces[cta][1];
      merge = DT_ATTENTION_RESUMED;
    }
    if (piece.blocks > 0)
      index = a.cut_from + piece.tile;
    else if (index < 0)
      index = INT32_MAX;
    else if (index >= a.cut_from)
      index += a.cut_tiles;
    next += piece.blocks == 0;
  } else {
    next += dt_attention_ctas();
  }
  dt_attention_item item = dt_attention_tile_at<C>(a, index);
  if (piece.blocks > 0) {
    item.masked = item.masked > 0 && piece.block_first + piece.blocks == item.blocks;
    item.block = piece.block_first + piece.blocks - 1;
    item.blocks = piece.blocks;
    if (piece.pieces > 1) item.merge = merge;
  }
  return item;
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
template <class C>
DT_DEVICE bool dt_attention_arrived(const dt_attention_kernel &a, uint32_t shared, const uint32_t *words,
                                    int32_t head) {
  const uint32_t target = a.arrived_target_from ? *a.arrived_target_from : a.arrived_target;
  const uint32_t start = dt_time_us();
  for (;;) {
    if ((int32_t)(dt_acquire_sys(words + head) - target) >= 0) break;
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

/* Which block of V follows the K that was issued last; row < 0: none, the end. A K is issued two steps behind a step
 * whose V has come, so four places are enough. */
template <class C>
DT_DEVICE void dt_attention_value_ask(uint32_t shared, uint32_t step, int32_t head, int32_t row) {
  asm volatile("st.shared.v2.s32 [%0], {%1, %2};" ::"r"(shared + C::SHARED_VALUES + step % C::VALUES * 8), "r"(head),
               "r"(row)
               : "memory");
  dt_barrier_arrive(dt_attention_barriers<C>::value(shared, step));
}

/* V, by a thread of its own: it waits for other stages than K, and the loader of K and Q has few registers. */
template <class C> DT_DEVICE void dt_attention_load_values(const dt_attention_kernel &a, uint32_t shared) {
  typedef dt_attention_barriers<C> B;
  for (uint32_t step = 0;; step++) {
    const uint32_t stage = step % C::STAGES;
    /* No limit of its own: the loader that it waits for has one, and says so where it gives up. */
    while (!dt_barrier_try(B::value(shared, step), step / C::VALUES & 1))
      if (dt_load_shared_word(shared + C::SHARED_DEAD)) return;
    int32_t head, row;
    asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];"
                 : "=r"(head), "=r"(row)
                 : "r"(shared + C::SHARED_VALUES + step % C::VALUES * 8)
                 : "memory");
    if (row < 0 || !dt_attention_wait<C>(a, shared, B::v_empty(shared, stage), (step / C::STAGES & 1) ^ 1,
                                         DT_ATTENTION_ERROR_FREE_V))
      return;
    dt_fence_async_global(); /* the loader has seen the rows arrive; this thread's copies come after that */
    dt_attention_load_block<C>(C::CARRIES && row >= a.own_kv_row ? &a.own_v : &a.v,
                               shared + C::SHARED_V + stage * C::BLOCK_BYTES, head, row, B::v_full(shared, stage));
  }
}

/* A head's word, or its late one, unless this thread has seen it: what it saw of the last head is four times that, 1
 * more for the word, 2 for the late one. Kept in shared memory: the loader has few registers. */
template <class C>
DT_DEVICE bool dt_attention_see(const dt_attention_kernel &a, uint32_t shared, const uint32_t *words, int32_t head,
                                int32_t kind) {
  const int32_t seen = (int32_t)dt_load_shared_word(shared + C::SHARED_READY), same = seen >> 2 == head;
  if (same && (seen & kind)) return true;
  if (!dt_attention_arrived<C>(a, shared, words, head)) return false;
  dt_store_shared_word(shared + C::SHARED_READY, (uint32_t)((same ? seen : 4 * head) | kind));
  return true;
}

/* The first item, where tiles are cut; kv_head: of its K and V. */
template <class C> DT_DEVICE dt_attention_item dt_attention_first_item(const dt_attention_kernel &a, int32_t &kv_head) {
  const dt_attention_first first = a.first[dt_attention_cta()];
  dt_attention_item item;
  item.head = first.head;
  item.row = first.row;
  item.rows = first.rows;
  item.run = first.run;
  item.block = first.block;
  item.blocks = first.blocks;
  item.masked = first.masked;
  item.merge = first.merge;
  kv_head = first.kv_head;
  return item;
}

/* Until the tile that this CTA goes on with has been left off: pairs with the release in dt_attention_tell. The CTA
 * that did it is one before this one, and has long begun: nothing relies on how many are resident. */
template <class C> DT_DEVICE bool dt_attention_resumable(const dt_attention_kernel &a, uint32_t shared) {
  uint32_t *left = &a.header->merges[a.pieces[dt_attention_cta()][1].scratch];
  const uint32_t start = dt_time_us();
  while (dt_acquire_gpu(left) != 4 * C::GROUPS) {
    if (dt_load_shared_word(shared + C::SHARED_DEAD)) return false;
    if (*(volatile uint32_t *)&a.header->error != 0) dt_store_shared_word(shared + C::SHARED_DEAD, 1);
    if (dt_time_us() - start > a.timeout_us) dt_attention_give_up<C>(a, shared, DT_ATTENTION_ERROR_RESUME, 0);
  }
  *left = 0; /* for the next launch */
  return true;
}

/* Q and K of all the work of this CTA. One thread. */
template <class C> DT_DEVICE void dt_attention_load(const dt_attention_kernel &a, uint32_t shared) {
  typedef dt_attention_barriers<C> B;
  uint32_t k_step = 0, sequence = 0;
  int32_t next = C::CUT ? 0 : dt_attention_cta();
  for (;; sequence++) {
    dt_attention_item item;
    int32_t kv_head = 0;
    if (C::CUT && sequence == 0) {
      item = dt_attention_first_item<C>(a, kv_head);
      next = item.merge == DT_ATTENTION_WHOLE;
    } else {
      item = dt_attention_next<C>(a, next, sequence);
      if (item.blocks > 0)
        kv_head =
            a.mapped ? a.head_to_kv[item.head] : (int32_t)((uint32_t)(item.head * a.kv_heads) / (uint32_t)a.heads);
    }
    if constexpr (C::HOLDS)
      if (next >= a.drain_from) dt_store_shared_word(shared + C::SHARED_DRAIN, 1);
    /* What it held eight items ago nobody reads any more: Q of the item before the last has been handed back. */
    dt_attention_slot_write(shared + C::SHARED_SLOTS + sequence % C::SLOTS * 32, item);
    if (C::RESUMES && item.blocks > 0 && item.merge == DT_ATTENTION_RESUMED && !dt_attention_resumable<C>(a, shared))
      return;
    /* Consumers store a tile when they have the next one's Q. */
    if (a.arrived != NULL && (a.arrived_gates_stores ? sequence > 0 : item.blocks > 0 && item.row < a.own_q_row) &&
        !dt_attention_see<C>(a, shared, a.arrived, a.arrived_gates_stores ? 0 : item.head, 1))
      return;
    for (int32_t j = 0; j < item.blocks || j == 0; j++) {
      const uint32_t stage = k_step % C::STAGES;
      const int32_t row = (item.block - j) * C::N;
      if (item.blocks > 0) {
        if (C::CARRIES && row < a.carry.late_rows && !dt_attention_see<C>(a, shared, a.carry.late, item.head, 2))
          return;
        if (!dt_attention_wait<C>(a, shared, B::k_empty(shared, stage), (k_step / C::STAGES & 1) ^ 1,
                                  DT_ATTENTION_ERROR_FREE_K))
          return;
        dt_attention_load_block<C>(C::CARRIES && row >= a.own_kv_row ? &a.own_k : &a.k,
                                   shared + C::SHARED_K + stage * C::BLOCK_BYTES, kv_head, row,
                                   B::k_full(shared, stage));
        dt_attention_value_ask<C>(shared, k_step++, kv_head, row);
      }
      if (j > 0) continue;
#pragma unroll 1
      for (uint32_t group = 0; group < C::GROUPS; group++) {
        if (!dt_attention_wait<C>(a, shared, B::q_empty(shared, group), (sequence & 1) ^ 1, DT_ATTENTION_ERROR_FREE_Q))
          return;
        const uint32_t full = B::q_full(shared, group), to = shared + group * C::GROUP_Q_BYTES;
        if (item.blocks == 0) {
          dt_barrier_arrive(full);
          continue;
        }
        dt_barrier_expect(full, C::GROUP_Q_BYTES);
        const int32_t q_row = item.row + (int32_t)(64 * group);
        const CUtensorMap *map = C::CARRIES && dt_attention_reads_own_q(&a, q_row) ? &a.own_q : &a.q;
#pragma unroll
        for (int32_t x = 0; x < C::D / 64; x++)
          dt_tensor_load_3d(to + x * 64 * 128, map, 64 * x, item.head, q_row, full);
      }
    }
    if (item.blocks == 0) break;
  }
  dt_attention_value_ask<C>(shared, k_step, 0, -1);
  dt_attention_feed_end<C>(a);
}

#endif
