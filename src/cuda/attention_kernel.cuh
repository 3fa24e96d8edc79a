/* The attention kernel: one persistent CTA a multiprocessor, warp-specialised.
 *
 * Consumer warpgroups own 64 rows of the tile each. A step multiplies Q by a block of K, and P of the block before by
 * its V, both under way while the other warpgroups compute their softmax; the first block of the next tile goes with
 * the last V of this one. P stays in registers. The last warpgroup is the loader. See docs/attention_cuda.md.
 */
#ifndef DT_CUDA_ATTENTION_KERNEL_CUH
#define DT_CUDA_ATTENTION_KERNEL_CUH

#include "cuda/attention_merge.cuh"
#include "cuda/attention_mma.cuh"
#include "cuda/attention_pipeline.cuh"
#include "cuda/attention_store.cuh"

/* A consumer thread's share of its warpgroup's rows: two of them, `row` and row + 8 of the tile. */
template <class C> struct dt_attention_consumer {
  uint32_t shared, group;
  uint32_t step; /* blocks of K consumed */
  int32_t row;
  float s[C::N / 2], o[C::D / 2]; /* scores, later exp2 of them; sums of P V */
  uint32_t p[C::N / 4];
  float max[2], sum[2]; /* sum: of this thread's columns */
  uint32_t debt;        /* bit n: piece n of this CTA is written and not merged */
};

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
  if constexpr (C::TURNS) asm volatile("bar.sync %0, 256;" ::"r"(group + 1) : "memory");
}
template <class C> DT_DEVICE void dt_turn_pass(uint32_t group) {
  if constexpr (C::TURNS)
    asm volatile("bar.arrive %0, 256;" ::"r"(group + 1 == C::GROUPS ? 1 : group + 2) : "memory");
}

DT_DEVICE void dt_attention_release(uint32_t barrier) {
  if (threadIdx.x % 32 == 0) dt_barrier_arrive(barrier);
}

/* s = Q K^T of the block in `stage`. */
template <class C> DT_DEVICE void dt_attention_scores(dt_attention_consumer<C> &c, uint32_t stage) {
  const uint32_t q = dt_mma_start(c.shared + c.group * C::GROUP_Q_BYTES);
  const uint32_t k = dt_mma_start(c.shared + C::SHARED_K + stage * C::BLOCK_BYTES);
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
    limit_0 = min(limit_0, item.row + c.row + a.causal_offset + 1);
    limit_1 = min(limit_1, item.row + c.row + a.causal_offset + 9);
  }
  dt_attention_mask(c, limit_0 - first, limit_1 - first);
}

/* s becomes exp2(scale * (s - max)), with the maximum so far; sum and factor, which scales what went before, follow.
 * Guarded: a row may have seen nothing yet, so that its maximum is -infinity. First: there is nothing before. */
template <class C, bool First, bool Guarded>
DT_DEVICE void dt_attention_softmax(const dt_attention_kernel &a, dt_attention_consumer<C> &c, float (&factor)[2]) {
  const float scale = a.scale_log2;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float top = fmaxf(c.s[2 * r], c.s[2 * r + 1]);
#pragma unroll
    for (int i = 4; i < C::N / 2; i += 4) top = fmaxf(top, fmaxf(c.s[i + 2 * r], c.s[i + 2 * r + 1]));
    const float before = c.max[r];
    if (!First) top = fmaxf(top, before);
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    c.max[r] = top;
    float shift = __fmul_rn(top, scale);
    if (Guarded) shift = top == -INFINITY ? 0.0f : shift;
    if (!First) factor[r] = dt_exp2(__fsub_rn(__fmul_rn(before, scale), shift));
    float sum_0 = 0, sum_1 = 0;
#pragma unroll
    for (int i = 0; i < C::N / 2; i += 4) {
      float &x = c.s[i + 2 * r], &y = c.s[i + 2 * r + 1];
      x = dt_exp2(__fmaf_rn(x, scale, -shift));
      y = dt_exp2(__fmaf_rn(y, scale, -shift));
      sum_0 += x;
      sum_1 += y;
    }
    c.sum[r] = First ? sum_0 + sum_1 : __fmaf_rn(c.sum[r], factor[r], sum_0 + sum_1);
  }
}
template <class C> DT_DEVICE void dt_attention_pack(dt_attention_consumer<C> &c) {
#pragma unroll
  for (int i = 0; i < C::N / 4; i++) c.p[i] = dt_pack<C::HALF>(c.s[2 * i], c.s[2 * i + 1]);
}

/* The first block of a tile, whose scores are there. */
template <class C>
DT_DEVICE void dt_attention_begin(const dt_attention_kernel &a, dt_attention_consumer<C> &c,
                                  const dt_attention_item &item) {
  float factor[2];
  if (item.masked > 0) dt_attention_mask_block(a, c, item, item.block);
  dt_attention_softmax<C, true, C::CAUSAL>(a, c, factor);
  dt_attention_pack(c);
}

/* Block j > 0 of a tile. */
template <class C, bool Masked>
DT_DEVICE void dt_attention_step(const dt_attention_kernel &a, dt_attention_consumer<C> &c,
                                 const dt_attention_item &item, int32_t j) {
  typedef dt_attention_barriers<C> B;
  const uint32_t stage = __shfl_sync(0xffffffffu, c.step % C::STAGES, 0), before = stage ^ 1;
  dt_attention_wait_k(a, c, stage);
  dt_attention_wait_v(a, c, before);
  dt_turn_take<C>(c.group);
  dt_mma_fence();
  dt_attention_scores(c, stage);
  dt_mma_commit();
  dt_attention_values(c, before, j > 1);
  dt_mma_commit();
  dt_turn_pass<C>(c.group);
  dt_mma_wait<1>();
  dt_settle(c.s);
  dt_attention_release(B::k_empty(c.shared, stage));
  if (j + 1 == item.blocks) dt_attention_release(B::q_empty(c.shared, c.group));
  if (Masked) dt_attention_mask_block(a, c, item, item.block - j);
  float factor[2];
  dt_attention_softmax<C, false, Masked>(a, c, factor);
  dt_mma_wait<0>();
  dt_settle(c.o);
  dt_settle(c.p);
  dt_attention_release(B::v_empty(c.shared, before));
#pragma unroll
  for (int i = 0; i < C::D / 2; i++) c.o[i] *= factor[i % 4 / 2];
  dt_attention_pack(c);
  c.step++;
}

/* Merges the pieces written before: by now the other CTAs have written theirs. */
template <class C> DT_DEVICE void dt_attention_settle_debt(const dt_attention_kernel &a, dt_attention_consumer<C> &c) {
  if constexpr (C::CUT) {
    if (c.debt == 0) return;
    for (int32_t n = 0; n < DT_ATTENTION_PIECES; n++)
      if (c.debt >> n & 1) dt_piece_merge<C>(a, c.shared, c.group, n);
    c.debt = 0;
  }
}

/* A tile's O and its rows' sums are complete. */
template <class C>
DT_DEVICE void dt_attention_finish(const dt_attention_kernel &a, dt_attention_consumer<C> &c,
                                   const dt_attention_item &item) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    c.sum[r] += __shfl_xor_sync(0xffffffffu, c.sum[r], 1);
    c.sum[r] += __shfl_xor_sync(0xffffffffu, c.sum[r], 2);
  }
  if (C::CUT && item.merge >= 0) {
    dt_piece_write<C>(a, c.shared, c.group, item.merge, c.row, c.o, c.max, c.sum);
    c.debt |= 1u << item.merge;
    return;
  }
  dt_attention_store<C>(a, item, c.row, c.o, c.sum);
  dt_attention_settle_debt(a, c);
}

template <class C> DT_DEVICE void dt_attention_consume(const dt_attention_kernel &a, uint32_t shared) {
  typedef dt_attention_barriers<C> B;
  dt_attention_consumer<C> c;
  const uint32_t warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  c.shared = shared;
  c.group = warp / 4;
  c.row = (int32_t)(16 * warp + threadIdx.x % 32 / 4);
  c.step = c.debt = 0;
  uint32_t sequence = 0;
  dt_attention_item item = dt_attention_item_wait<C>(a, shared, c.group, sequence);
  if (item.blocks == 0) return;
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
    int32_t j = 1;
    if constexpr (C::CAUSAL)
      for (; j < item.masked; j++) dt_attention_step<C, true>(a, c, item, j);
    for (; j < item.blocks; j++) dt_attention_step<C, false>(a, c, item, j);

    /* The last V, and with it the first block of the next tile. */
    const dt_attention_item next = dt_attention_item_wait<C>(a, shared, c.group, ++sequence);
    const uint32_t stage = __shfl_sync(0xffffffffu, c.step % C::STAGES, 0), before = stage ^ 1;
    dt_attention_wait_v(a, c, before);
    if (next.blocks == 0) {
      dt_mma_fence();
      dt_attention_values(c, before, item.blocks > 1);
      dt_mma_commit();
      dt_mma_wait<0>();
      dt_settle(c.o);
      dt_attention_finish(a, c, item);
      dt_attention_settle_debt(a, c);
      return;
    }
    dt_attention_wait_k(a, c, stage);
    dt_turn_take<C>(c.group);
    dt_mma_fence();
    dt_attention_scores(c, stage);
    dt_mma_commit();
    dt_attention_values(c, before, item.blocks > 1);
    dt_mma_commit();
    dt_turn_pass<C>(c.group);
    dt_mma_wait<0>();
    dt_settle(c.o);
    dt_settle(c.p);
    dt_attention_release(B::k_empty(shared, stage));
    dt_attention_release(B::v_empty(shared, before));
    if (next.blocks == 1) dt_attention_release(B::q_empty(shared, c.group));
    dt_attention_finish(a, c, item);
    item = next;
  }
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, 1)
    dt_attention_forward_kernel(const __grid_constant__ dt_attention_kernel a) {
  extern __shared__ uint8_t dt_attention_shared[];
  const uint32_t shared = (dt_shared_address(dt_attention_shared) + 1023) & ~1023u;
  const uint32_t warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  /* Sticky: after a failure nothing runs. Another CTA may fail meanwhile, so the threads of this one agree. */
  if (__syncthreads_or(threadIdx.x == 0 && a.header->error != 0)) return;
  if (threadIdx.x == 0) {
    dt_grid_launch(); /* whoever follows may be there when the last tile is stored */
    dt_attention_barriers<C>::init(shared);
    dt_tensor_prefetch(&a.q);
    dt_tensor_prefetch(&a.k);
    dt_tensor_prefetch(&a.v);
  }
  __syncthreads();
  if (warp >= 4 * C::GROUPS) {
    dt_registers_lower<C::REGISTERS_LOADER>();
    if (warp == 4 * C::GROUPS && threadIdx.x % 32 == 0) {
      dt_attention_load<C>(a, shared);
      dt_grid_wait(); /* whoever follows this kernel also follows the one before, which `arrived` let it overtake */
    }
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
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((unsigned)ctas, 1, 1);
  config.blockDim = dim3(C::THREADS, 1, 1);
  config.dynamicSmemBytes = C::SHARED_ALLOCATION;
  config.stream = stream;
  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  if (kernel->arrived != NULL) { /* what it reads waits for its words, not for the kernel before */
    config.attrs = &overlap;
    config.numAttrs = 1;
  }
  return cudaLaunchKernelEx(&config, dt_attention_forward_kernel<C>, *kernel);
}

#endif
