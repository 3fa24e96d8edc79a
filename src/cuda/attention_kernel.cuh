/* The attention kernel: one persistent CTA a multiprocessor, warp-specialised.
 *
 * Consumer warpgroups own 64 rows of the tile each and issue in turn. A step multiplies P of the block before by its V,
 * and Q by the next block of K; while the other warpgroups do theirs, it turns the scores into the next P. The first
 * block of the next tile goes with the last V of this one. P stays in registers. The last warpgroup is the loader. See
 * docs/attention_cuda.md.
 */
#ifndef DT_CUDA_ATTENTION_KERNEL_CUH
#define DT_CUDA_ATTENTION_KERNEL_CUH

#include "cuda/attention_carry.cuh"
#include "cuda/attention_merge.cuh"
#include "cuda/attention_mma.cuh"
#include "cuda/attention_pipeline.cuh"
#include "cuda/attention_resume.cuh"
#include "cuda/attention_send.cuh"
#include "cuda/attention_store.cuh"
#include "cuda/launch.cuh"

/* A consumer thread's share of its warpgroup's rows: two of them, dt_attention_row() and the one 8 below. */
template <class C> struct dt_attention_consumer {
  uint32_t shared, group;
  uint32_t step;                  /* blocks of K consumed */
  float s[C::N / 2], o[C::D / 2]; /* scores; sums of P V */
  uint32_t p[C::N / 4];
  float shift[2], sum[2]; /* p is exp2(scale * score - shift); sum: of p in this thread's columns */
  bool ready;             /* the operands of the next step were seen */
  uint32_t debt;          /* bit n: piece n of this CTA is written and not merged; or a tile is left and nobody told */
  uint32_t sent;          /* tiles given to the sending warp */
};

/* What Q number `sequence` is: valid until this warpgroup has waited for the one after the next. */
template <class C> DT_DEVICE dt_attention_item dt_attention_slot_read(uint32_t shared, uint32_t sequence) {
  const uint32_t slot = shared + C::SHARED_SLOTS + sequence % C::SLOTS * 32;
  const uint4 first = dt_load_shared(slot), second = dt_load_shared(slot + 16);
  dt_attention_item item;
  item.head = __shfl_sync(0xffffffffu, (int32_t)first.x, 0);
  item.row = __shfl_sync(0xffffffffu, (int32_t)first.y, 0);
  item.rows = __shfl_sync(0xffffffffu, (int32_t)first.z, 0);
  item.run = __shfl_sync(0xffffffffu, (int32_t)first.w, 0);
  item.block = __shfl_sync(0xffffffffu, (int32_t)second.x, 0);
  item.blocks = __shfl_sync(0xffffffffu, (int32_t)second.y, 0);
  item.masked = __shfl_sync(0xffffffffu, (int32_t)second.z, 0);
  item.merge = __shfl_sync(0xffffffffu, (int32_t)second.w, 0);
  return item;
}

/* The work that comes with Q number `sequence`; none after a failure. */
template <class C>
DT_DEVICE dt_attention_item dt_attention_item_wait(const dt_attention_kernel &a, uint32_t shared, uint32_t group,
                                                   uint32_t sequence) {
  const bool good = dt_attention_wait<C>(a, shared, dt_attention_barriers<C>::q_full(shared, group), sequence & 1,
                                         DT_ATTENTION_ERROR_Q);
  dt_attention_item item = dt_attention_slot_read<C>(shared, sequence);
  if (__any_sync(0xffffffffu, !good)) item.blocks = 0;
  return item;
}

/* Turns: warpgroup g may issue when g - 1 has; named barriers 1 to GROUPS. */
template <class C> DT_DEVICE void dt_turn_take(uint32_t group) {
  asm volatile("bar.sync %0, 256;" ::"r"(group + 1) : "memory");
}
template <class C> DT_DEVICE void dt_turn_pass(uint32_t group) {
  asm volatile("bar.arrive %0, 256;" ::"r"(group + 1 == C::GROUPS ? 1 : group + 2) : "memory");
}

DT_DEVICE void dt_attention_release(uint32_t barrier) {
  if (threadIdx.x % 32 == 0) dt_barrier_arrive(barrier);
}

/* Zero, which the compiler cannot know (the grid has one row). D = 256 has more descriptors than there are uniform
 * registers: those that it can compute ahead it keeps in others, and moves them between the multiplications (R2UR). */
template <class C> DT_DEVICE uint32_t dt_attention_zero() {
  uint32_t zero = 0;
  if constexpr (C::D == 256) asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(zero));
  return zero;
}

/* s = Q K^T of the block in `stage`. */
template <class C> DT_DEVICE void dt_attention_scores(dt_attention_consumer<C> &c, uint32_t stage) {
  const uint32_t zero = dt_attention_zero<C>();
  const uint32_t q = dt_mma_start(c.shared + c.group * C::GROUP_Q_BYTES) + zero;
  const uint32_t k = dt_mma_start(c.shared + C::SHARED_K + stage * C::BLOCK_BYTES) + zero;
#pragma unroll
  for (uint32_t i = 0; i < C::D / 16; i++) {
    const uint64_t q_i = dt_mma_operand(q + i % 4 * DT_MMA_K + i / 4 * DT_MMA_ROWS64);
    const uint64_t k_i = dt_mma_operand(k + i % 4 * DT_MMA_K + i / 4 * (C::N * 8));
    if (i == 0)
      dt_scores<C::N>::template first<C::HALF>(c.s, q_i, k_i);
    else
      dt_scores<C::N>::template add<C::HALF>(c.s, q_i, k_i);
  }
}
/* o = P V or o += P V of the block in `stage`. */
template <class C> DT_DEVICE void dt_attention_values(dt_attention_consumer<C> &c, uint32_t stage, int accumulate) {
  const uint32_t v = dt_mma_start_v(c.shared + C::SHARED_V + stage * C::BLOCK_BYTES, C::N * 128);
#pragma unroll
  for (uint32_t i = 0; i < C::N / 16; i++)
    dt_values<C::D>::template add<C::HALF>(c.o, c.p + 4 * i, dt_mma_operand(v + i * DT_MMA_V16), i ? 1 : accumulate);
}

template <class C>
DT_DEVICE void dt_attention_wait_k(const dt_attention_kernel &a, const dt_attention_consumer<C> &c, uint32_t stage) {
  dt_attention_wait<C>(a, c.shared, dt_attention_barriers<C>::k_full(c.shared, stage), c.step / C::STAGES & 1,
                       DT_ATTENTION_ERROR_K);
}
/* The block before the one at c.step. */
template <class C>
DT_DEVICE void dt_attention_wait_v(const dt_attention_kernel &a, const dt_attention_consumer<C> &c, uint32_t stage) {
  dt_attention_wait<C>(a, c.shared, dt_attention_barriers<C>::v_full(c.shared, stage), (c.step - 1) / C::STAGES & 1,
                       DT_ATTENTION_ERROR_V);
}

/* The first of this thread's two rows of the tile. */
DT_DEVICE int32_t dt_attention_row() {
  return (int32_t)(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4);
}

/* Scores of columns that a row does not see become -infinity: columns from `limit` on, counted from this thread's
 * first one. */
template <class C> DT_DEVICE void dt_attention_mask(dt_attention_consumer<C> &c, int32_t limit_0, int32_t limit_1) {
#pragma unroll
  for (int i = 0; i < C::N / 2; i++) {
    const int column = i / 4 * 8 + i % 2;
    if (column >= (i % 4 < 2 ? limit_0 : limit_1)) c.s[i] = -INFINITY;
  }
}
template <class C>
DT_DEVICE void dt_attention_mask_block(const dt_attention_kernel &a, dt_attention_consumer<C> &c,
                                       const dt_attention_item &item, int32_t block) {
  const int32_t first = block * C::N + (int32_t)(threadIdx.x % 4 * 2);
  int32_t limit_0 = a.kv_tokens, limit_1 = a.kv_tokens;
  if constexpr (C::CAUSAL) {
    limit_0 = min(limit_0, item.row + dt_attention_row() + a.causal_offset + 1);
    limit_1 = min(limit_1, item.row + dt_attention_row() + a.causal_offset + 9);
  }
  dt_attention_mask(c, limit_0 - first, limit_1 - first);
}

/* What a thread's weights of a row and block may sum to: P's 16 bits hold each of them. */
constexpr float DT_ATTENTION_SUM_MAX = 16384;

/* p from the scores and the maximum with this block, of rows in which a thread's sum is too large; others keep theirs,
 * so that no row's result depends on its neighbours. Factor scales what went before. Guarded: a row may have seen
 * nothing yet, so that its maximum is -infinity. First: there is nothing before. */
template <class C, bool First, bool Guarded>
DT_DEVICE void dt_attention_softmax(const dt_attention_kernel &a, dt_attention_consumer<C> &c, const float (&sum)[2],
                                    float (&factor)[2]) {
  const float scale = a.scale_log2;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float top = fmaxf(c.s[2 * r], c.s[2 * r + 1]);
#pragma unroll
    for (int i = 4; i < C::N / 2; i += 4) top = fmaxf(top, fmaxf(c.s[i + 2 * r], c.s[i + 2 * r + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    top = __fmul_rn(top, scale);
    const float before = c.shift[r];
    if (!First) {
      const uint32_t quad = 15u << threadIdx.x % 32 / 4 * 4;
      const uint32_t over = __ballot_sync(0xffffffffu, !(sum[r] <= DT_ATTENTION_SUM_MAX));
      top = over & quad ? fmaxf(top, before) : before;
    }
    c.shift[r] = top;
    const float shift = Guarded && top == -INFINITY ? 0.0f : top;
    if (!First) factor[r] = dt_power_of_two(__fsub_rn(before, shift));
    float sum_0 = 0, sum_1 = 0;
#pragma unroll
    for (int i = 0; i < C::N / 2; i += 4) {
      float &x = c.s[i + 2 * r], &y = c.s[i + 2 * r + 1];
      x = dt_power_of_two(__fmaf_rn(x, scale, -shift));
      y = dt_power_of_two(__fmaf_rn(y, scale, -shift));
      sum_0 += x;
      sum_1 += y;
    }
    c.sum[r] = First ? sum_0 + sum_1 : __fmaf_rn(c.sum[r], factor[r], sum_0 + sum_1);
  }
#pragma unroll
  for (int i = 0; i < C::N / 4; i++) c.p[i] = dt_pack<C::HALF>(c.s[2 * i], c.s[2 * i + 1]);
}

/* A later block, with the maximum brought up to date. */
template <class C>
DT_DEVICE void dt_attention_raise(const dt_attention_kernel &a, dt_attention_consumer<C> &c, const float (&sum)[2]) {
  float factor[2];
  dt_attention_softmax<C, false, C::CAUSAL>(a, c, sum, factor);
#pragma unroll
  for (int i = 0; i < C::D / 2; i++) c.o[i] *= factor[i % 4 / 2];
}

/* A later block, with the maximum as it was: weights may exceed 1, which float32 sums and P do not mind. False, and
 * only p is spoilt, if a thread's sum of a row is too large or no number: with a maximum of -infinity too. */
template <class C>
DT_DEVICE bool dt_attention_weigh(const dt_attention_kernel &a, dt_attention_consumer<C> &c, float (&sum)[2]) {
  const float scale = a.scale_log2;
  float sums[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < C::N / 4; i++) {
    const int r = i % 2;
    const float x = dt_power_of_two(__fmaf_rn(c.s[2 * i], scale, -c.shift[r]));
    const float y = dt_power_of_two(__fmaf_rn(c.s[2 * i + 1], scale, -c.shift[r]));
    sums[2 * r] += x;
    sums[2 * r + 1] += y;
    c.p[i] = dt_pack<C::HALF>(x, y);
  }
  sum[0] = sums[0] + sums[1];
  sum[1] = sums[2] + sums[3];
  const bool good = sum[0] <= DT_ATTENTION_SUM_MAX && sum[1] <= DT_ATTENTION_SUM_MAX;
  if (__any_sync(0xffffffffu, !good)) return false;
  c.sum[0] += sum[0];
  c.sum[1] += sum[1];
  return true;
}

/* The first block of a tile or of a piece, whose scores are there. */
template <class C>
DT_DEVICE void dt_attention_begin(const dt_attention_kernel &a, dt_attention_consumer<C> &c,
                                  const dt_attention_item &item) {
  if (C::RESUMES && item.merge == DT_ATTENTION_RESUMED) {
    float sum[2];
    dt_state_read<C>(a, c.o, c.shift, c.sum);
    if (!dt_attention_weigh(a, c, sum)) dt_attention_raise(a, c, sum);
    return;
  }
  if (C::CUT)
    for (int i = 0; i < C::D / 2; i++) c.o[i] = 0; /* added to in every step: what goes on has no first one */
  float factor[2];
  const float none[2] = {0, 0};
  if (item.masked > 0) dt_attention_mask_block(a, c, item, item.block);
  dt_attention_softmax<C, true, C::CAUSAL>(a, c, none, factor);
}

/* The products of block j > 0 of a tile, which lies in `stage`: a constant, so that the descriptors need no registers
 * but uniform ones. */
template <class C>
DT_DEVICE void dt_attention_multiply(const dt_attention_kernel &a, dt_attention_consumer<C> &c, int32_t j, bool last,
                                     uint32_t stage) {
  typedef dt_attention_barriers<C> B;
  const uint32_t before = stage ^ 1;
  if (!c.ready) {
    dt_attention_wait_v(a, c, before);
    dt_attention_wait_k(a, c, stage);
  }
  dt_turn_take<C>(c.group);
  dt_mma_fence();
  dt_attention_values(c, before, C::CUT || j > 1);
  dt_attention_scores(c, stage);
  dt_mma_commit();
  dt_turn_pass<C>(c.group);
  dt_mma_wait<0>();
  dt_settle(c.s);
  dt_settle(c.o);
  dt_settle(c.p);
  dt_attention_release(B::v_empty(c.shared, before));
  dt_attention_release(B::k_empty(c.shared, stage));
  if (last) dt_attention_release(B::q_empty(c.shared, c.group));
  c.step++;
  /* Asked now, so that the answer is there when the weights are. */
  c.ready = dt_barrier_test(B::k_full(c.shared, before), c.step / C::STAGES & 1) &
            dt_barrier_test(B::v_full(c.shared, stage), (c.step - 1) / C::STAGES & 1);
}

/* Blocks from 1 on. Two a turn of the loop, one a stage. */
template <class C>
DT_DEVICE void dt_attention_steps(const dt_attention_kernel &a, dt_attention_consumer<C> &c,
                                  const dt_attention_item &item) {
  static_assert(C::STAGES == 2, "steps of a pair");
  c.ready = false;
  float sum[2];
  for (int32_t j = 1;;) {
    if (c.step % 2 == 0) {
      if (j >= item.blocks) return;
      dt_attention_multiply(a, c, j, j + 1 == item.blocks, 0);
      j++;
      if ((C::CAUSAL && j <= item.masked) || !dt_attention_weigh(a, c, sum)) goto raise;
    }
    if (j >= item.blocks) return;
    dt_attention_multiply(a, c, j, j + 1 == item.blocks, 1);
    j++;
    if ((C::CAUSAL && j <= item.masked) || !dt_attention_weigh(a, c, sum)) goto raise;
    continue;
  raise:
    if (C::CAUSAL && j <= item.masked) {
      dt_attention_mask_block(a, c, item, item.block - j + 1);
      sum[0] = sum[1] = INFINITY;
    }
    dt_attention_raise(a, c, sum);
  }
}

/* Merges the pieces written before: by now the other CTAs have written theirs. */
template <class C> DT_DEVICE void dt_attention_settle_debt(const dt_attention_kernel &a, dt_attention_consumer<C> &c) {
  if constexpr (C::CUT) {
    if (c.debt == 0) return;
    for (int32_t n = 0; n < DT_ATTENTION_PIECES; n++)
      if (c.debt >> n & 1) dt_piece_merge<C>(a, c.shared, c.group, n);
    c.debt = 0;
    for (int i = 0; i < C::D / 2; i++) c.o[i] = 0; /* of no use before and while merging needs the registers */
  }
}

/* A tile was left off in the item before: its stores have had time since. */
template <class C> DT_DEVICE void dt_attention_tell(const dt_attention_kernel &a, dt_attention_consumer<C> &c) {
  if constexpr (C::RESUMES) {
    if (c.debt != 1u << DT_ATTENTION_SUSPENDED) return;
    dt_state_tell<C>(a);
    c.debt = 0;
  }
}

/* This warp's rows of a tile to the sending warp. */
template <class C> DT_DEVICE void dt_attention_hand_over(dt_attention_consumer<C> &c) {
  c.sent++;
  __syncwarp();
  dt_attention_release(dt_attention_barriers<C>::sent_full(c.shared, c.group));
}

/* A tile's O and its rows' sums are complete. Last: of this CTA, which the sending warp gets only if there are pieces
 * to merge: there is nothing else behind which it could hide. Pieces are merged before the sending warp begins with
 * the tile, if it is not in a hurry, as where only a short piece follows: what that has under way holds up their
 * loads. */
template <class C>
DT_DEVICE void dt_attention_finish(const dt_attention_kernel &a, dt_attention_consumer<C> &c, uint32_t sequence,
                                   bool last, bool hurry) {
  typedef dt_attention_barriers<C> B;
  const dt_attention_item item = dt_attention_slot_read<C>(c.shared, sequence); /* again: not kept in registers */
  if (C::RESUMES && item.merge == DT_ATTENTION_SUSPENDED) {
    dt_state_write<C>(a, c.o, c.shift, c.sum);
    c.debt = 1u << DT_ATTENTION_SUSPENDED;
    return;
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    c.sum[r] += __shfl_xor_sync(0xffffffffu, c.sum[r], 1);
    c.sum[r] += __shfl_xor_sync(0xffffffffu, c.sum[r], 2);
  }
  if (C::CUT && item.merge >= 0 && item.merge < DT_ATTENTION_PIECES) {
    dt_piece_write<C>(a, c.shared, c.group, item.merge, dt_attention_row(), c.o, c.shift, c.sum);
    c.debt |= 1u << item.merge;
    return;
  }
  const bool sends = C::SENDS && !(last && c.debt == 0) && a.paced && a.runs[item.run].away;
  if constexpr (C::SENDS) {
    if (a.paced) /* what lies there has gone */
      dt_attention_wait<C>(a, c.shared, B::sent_empty(c.shared, c.group), (c.sent & 1) ^ 1,
                           DT_ATTENTION_ERROR_FREE_SENT);
    dt_attention_store<C>(a, item, c.shared, c.o, c.sum, sends);
  } else {
    dt_attention_store_direct<C>(a, item, dt_attention_row(), c.o, c.sum);
  }
  if (sends) dt_fence_async_shared();
  if (sends && (last || hurry)) dt_store_shared_word(c.shared + C::SHARED_HURRY, 1);
  if (sends && last) dt_attention_hand_over(c);
  dt_attention_settle_debt(a, c);
  if (sends && !last) dt_attention_hand_over(c);
}

/* Behind this CTA's last tile: no more for the sending warp. The last warpgroup of all CTAs to be through says so to
 * the peers (not at D = 256). */
template <class C> DT_DEVICE void dt_attention_end(const dt_attention_kernel &a, const dt_attention_consumer<C> &c) {
  typedef dt_attention_barriers<C> B;
  if (!C::SENDS) return;
  const bool sends = a.paced != 0;
  /* Until the sending warp is through with this warpgroup's last rows: its barrier must not be two phases ahead of it,
   * which by parity look like none. */
  if (sends)
    dt_attention_wait<C>(a, c.shared, B::sent_empty(c.shared, c.group), (c.sent & 1) ^ 1, DT_ATTENTION_ERROR_FREE_SENT);
  if (sends && c.group == 0) {
    if (threadIdx.x == 0) dt_store_shared_word(c.shared + C::SHARED_SENT_END, c.sent + 1);
    dt_group_sync(0); /* no warp may arrive here before all have arrived for the tile before */
    dt_attention_release(B::sent_full(c.shared, 0));
  }
  if constexpr (C::HOLDS)
    if (a.held_most > 0)
      dt_attention_wait<C>(a, c.shared, B::held_gone(c.shared), 0, DT_ATTENTION_ERROR_FREE_SENT);
  if (!a.carry.enters) return;
  dt_group_sync(c.group);
  if (threadIdx.x % 128 != 0 || dt_load_shared_word(c.shared + C::SHARED_DEAD)) return;
  dt_fence_sys(); /* the warpgroup's rows, then the count */
  if (dt_add_acq_rel(&a.header->stored, 1) + 1 != C::GROUPS * gridDim.x) return;
  a.header->stored = 0;
  dt_ulysses_tell_left(a.carry.meet);
}

template <class C> DT_DEVICE void dt_attention_consume(const dt_attention_kernel &a, uint32_t shared) {
  typedef dt_attention_barriers<C> B;
  dt_attention_consumer<C> c;
  const uint32_t warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  c.shared = shared;
  c.group = warp / 4;
  c.step = c.debt = c.sent = 0;
  uint32_t sequence = 0;
  dt_attention_item item = dt_attention_item_wait<C>(a, shared, c.group, sequence);
  if (item.blocks == 0) {
    if (!dt_load_shared_word(shared + C::SHARED_DEAD)) dt_attention_end(a, c);
    return;
  }
  if (c.group + 1 == C::GROUPS) dt_turn_pass<C>(c.group);
  dt_attention_wait_k(a, c, 0);
  dt_turn_take<C>(c.group);
  dt_mma_fence();
  dt_attention_scores(c, 0);
  dt_mma_commit();
  dt_turn_pass<C>(c.group);
  dt_mma_wait<0>();
  for (;;) {
    dt_settle(c.s);
    if (sequence == 0) dt_attention_release(B::k_empty(shared, 0));
    if (sequence == 0 && item.blocks == 1) dt_attention_release(B::q_empty(shared, c.group));
    c.step++;
    dt_attention_begin(a, c, item);
    dt_attention_tell(a, c);
    dt_attention_steps(a, c, item);

    /* The last V, and with it the first block of the next tile. */
    const dt_attention_item next = dt_attention_item_wait<C>(a, shared, c.group, ++sequence);
    const uint32_t stage = __shfl_sync(0xffffffffu, c.step % C::STAGES, 0), before = stage ^ 1;
    dt_attention_wait_v(a, c, before);
    if (next.blocks == 0) {
      dt_mma_fence();
      dt_attention_values(c, before, C::CUT || item.blocks > 1);
      dt_mma_commit();
      dt_mma_wait<0>();
      dt_settle(c.o);
      if (dt_load_shared_word(shared + C::SHARED_DEAD)) return; /* this tile is not whole, or may not be stored */
      dt_attention_finish(a, c, sequence - 1, true, false);
      dt_attention_tell(a, c);
      dt_attention_settle_debt(a, c);
      return dt_attention_end(a, c);
    }
    dt_attention_wait_k(a, c, stage);
    dt_turn_take<C>(c.group);
    dt_mma_fence();
    dt_attention_values(c, before, C::CUT || item.blocks > 1);
    dt_attention_scores(c, stage);
    dt_mma_commit();
    dt_turn_pass<C>(c.group);
    dt_mma_wait<0>();
    dt_settle(c.o);
    dt_settle(c.p);
    dt_attention_release(B::k_empty(shared, stage));
    dt_attention_release(B::v_empty(shared, before));
    if (next.blocks == 1) dt_attention_release(B::q_empty(shared, c.group));
    /* The sending warp takes 0.6 of a tile's time for it, and the end waits for that. */
    const bool short_end = C::RESUMES && next.merge == DT_ATTENTION_RESUMED && 3 * next.blocks < 2 * item.blocks;
    dt_attention_finish(a, c, sequence - 1, false, short_end);
    item = next;
  }
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, 1)
    dt_attention_forward_kernel(const __grid_constant__ dt_attention_kernel a) {
  extern __shared__ uint8_t dt_attention_shared[];
  const uint32_t shared = (dt_shared_address(dt_attention_shared) + 1023) & ~1023u;
  const uint32_t warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  uint32_t failed = 0;
  if (threadIdx.x == 0) {
    failed = *(volatile uint32_t *)&a.header->error; /* on its way meanwhile */
    dt_tensor_prefetch(&a.k);
    dt_tensor_prefetch(&a.q);
    dt_tensor_prefetch(&a.v);
    dt_grid_launch(); /* whoever follows may be there when the last tile is stored */
    dt_attention_barriers<C>::init(shared);
  }
  /* Sticky: after a failure nothing runs. Another CTA may fail meanwhile, so the threads of this one agree. */
  if (__syncthreads_or(failed != 0)) return;
  if (warp >= 4 * C::GROUPS) {
    dt_registers_lower<C::REGISTERS_LOADER>();
    if constexpr (C::SENDS)
      if (warp == 4 * C::GROUPS + 2) { /* what is early is carried before there are rows to send */
        const bool carries = a.carry.count > 0 && blockIdx.x % DT_ATTENTION_CARRY_EVERY == 0;
        if (carries && threadIdx.x % 32 == 0) dt_attention_carry_run<C>(a, shared, 1, false);
        __syncwarp();
        if (a.paced) dt_attention_send_run<C>(a, shared);
        return;
      }
    if (warp == 4 * C::GROUPS + 1 && a.carry.enters && blockIdx.x == 0) dt_ulysses_enter(a.carry.meet);
    if (threadIdx.x % 32 != 0) return;
    if (warp == 4 * C::GROUPS) {
      dt_attention_load<C>(a, shared);
      dt_grid_wait(); /* whoever follows this kernel also follows the one before, which `arrived` let it overtake */
      return;
    }
    if (warp == 4 * C::GROUPS + 3) return dt_attention_load_values<C>(a, shared);
    if constexpr (C::CARRIES)
      if (warp == 4 * C::GROUPS + 1 && a.carry.count > 0) dt_attention_carry_run<C>(a, shared, 0, true);
  } else {
    dt_registers_raise<C::REGISTERS_CONSUMER>();
    dt_attention_consume<C>(a, shared);
  }
}

template <class C>
static cudaError_t dt_attention_launch(const dt_attention_kernel *kernel, int ctas, cudaStream_t stream) {
  cudaError_t error = cudaFuncSetAttribute(dt_attention_forward_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)C::SHARED_ALLOCATION);
  if (error != cudaSuccess) return error;
  /* What it reads may wait for its words, not for the kernel before; but a rank enters behind that, and tiles that were
   * left off by a launch before are gone on with until its end. */
  return dt_launch_early((const void *)dt_attention_forward_kernel<C>, kernel, ctas, C::THREADS, C::SHARED_ALLOCATION,
                         kernel->arrived != NULL && !kernel->carry.enters && !kernel->resumes, stream);
}

template <int D, int N, int Groups, bool Half, bool Causal>
static cudaError_t dt_attention_launch_type(const dt_attention_kernel *kernel, int ctas, cudaStream_t stream) {
  if constexpr (!Causal)
    if (kernel->cut_tiles > 0)
      return dt_attention_launch<dt_attention_config<D, N, Groups, Half, Causal, true>>(kernel, ctas, stream);
  return dt_attention_launch<dt_attention_config<D, N, Groups, Half, Causal, false>>(kernel, ctas, stream);
}

/* The instance of D columns, blocks of N rows and so many warpgroups that `shape` asks for. */
template <int D, int N, int Groups>
static cudaError_t dt_attention_launch_shape(const dt_attention_kernel *kernel, const dt_attention_shape *shape,
                                             int ctas, cudaStream_t stream) {
  if (shape->block != N || shape->groups != Groups) return cudaErrorInvalidConfiguration;
  if (shape->causal)
    return shape->half ? dt_attention_launch_type<D, N, Groups, true, true>(kernel, ctas, stream)
                       : dt_attention_launch_type<D, N, Groups, false, true>(kernel, ctas, stream);
  return shape->half ? dt_attention_launch_type<D, N, Groups, true, false>(kernel, ctas, stream)
                     : dt_attention_launch_type<D, N, Groups, false, false>(kernel, ctas, stream);
}

#endif
