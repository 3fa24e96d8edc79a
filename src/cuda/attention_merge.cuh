/* Tiles cut over KV: a warpgroup writes its rows of a piece to scratch memory, and later the pieces' CTAs merge a slice
 * of the rows each.
 *
 * Nobody waits. A word a cut tile and warpgroup counts pieces written (low 8 bits) and has a bit for each CTA that came
 * by to merge. Who comes by after the last piece was written merges its slice; the slices of those who came by before
 * fall to the writer of the last piece. The last to come by zeroes the word.
 */
#ifndef DT_CUDA_ATTENTION_MERGE_CUH
#define DT_CUDA_ATTENTION_MERGE_CUH

#include "cuda/attention_mma.cuh"
#include "cuda/attention_pipeline.cuh"
#include "cuda/attention_store.cuh"

DT_DEVICE void dt_group_sync(uint32_t group) {
  asm volatile("bar.sync %0, 128;" ::"r"(group + 8) : "memory");
}

/* A slab: [rows of a tile][D] sums of P V, then for each row its maximum (scaled) and sum. */
template <class C> DT_DEVICE float *dt_slab(const dt_attention_kernel &a, uint32_t slab) {
  return a.scratch + (size_t)slab * (C::M * (C::D + 2));
}

/* This thread's rows `row` and row + 8 of piece `n` of this CTA. */
template <class C>
DT_DEVICE void dt_piece_write(const dt_attention_kernel &a, uint32_t shared, uint32_t group, int32_t n, int32_t row,
                              const float (&o)[C::D / 2], const float (&top)[2], const float (&sum)[2]) {
  const dt_attention_piece piece = a.pieces[dt_attention_cta()][n];
  float *slab = dt_slab<C>(a, piece.scratch + piece.piece);
  const uint32_t quad = threadIdx.x % 4;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float *to = slab + (row + 8 * r) * C::D + 2 * quad;
#pragma unroll
    for (int i = 0; i < C::D / 8; i++) *(float2 *)(to + 8 * i) = make_float2(o[4 * i + 2 * r], o[4 * i + 2 * r + 1]);
    if (quad == 0)
      *(float2 *)(slab + C::M * C::D + 2 * (row + 8 * r)) = make_float2(top[r], sum[r]);
  }
  dt_group_sync(group);
  if (threadIdx.x % 128 != 0) return;
  __threadfence(); /* the warpgroup's stores, then the count: pairs with the fence in dt_piece_merge */
  const uint32_t seen = atomicAdd(&a.header->merges[piece.merge * C::GROUPS + group], 1u) + 1;
  const uint32_t last = (seen & 255) == piece.pieces ? seen >> 8 : 0;
  dt_store_shared_word(shared + C::SHARED_MERGE + 8 * group + 4 * n, last);
}

/* Four columns of a row from all pieces to their owner. All loads are under way at once: a consumer that merges
 * computes nothing meanwhile. */
template <class C>
DT_DEVICE void dt_row_merge(const dt_attention_kernel &a, const dt_attention_piece &piece,
                            const dt_attention_item &item, int32_t row, int32_t column) {
  constexpr int PIECES = DT_ATTENTION_TILE_PIECES;
  constexpr size_t SLAB = (size_t)C::M * (C::D + 2);
  const float *slabs = dt_slab<C>(a, piece.scratch);
  const float *sums = slabs + C::M * C::D + 2 * row, *rows = slabs + row * C::D + column;
  float2 own[PIECES];
  float4 x[PIECES];
#pragma unroll
  for (int i = 0; i < PIECES; i++) {
    own[i] = i < piece.pieces ? __ldcg((const float2 *)(sums + i * SLAB)) : make_float2(-INFINITY, 0);
    x[i] = i < piece.pieces ? __ldcg((const float4 *)(rows + i * SLAB)) : make_float4(0, 0, 0, 0);
  }
  float top = own[0].x, total = 0, o[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 1; i < PIECES; i++) top = fmaxf(top, own[i].x);
#pragma unroll
  for (int i = 0; i < PIECES; i++) {
    const float weight = dt_power_of_two(own[i].x - top);
    total += weight * own[i].y;
    o[0] += weight * x[i].x, o[1] += weight * x[i].y, o[2] += weight * x[i].z, o[3] += weight * x[i].w;
  }
  if (row >= item.rows) return;
  const float scale = total > 0 ? 1 / total : 0;
  uint8_t *to = dt_attention_row_out(a, item, row) + (item.head * C::D + column) * 2;
  *(uint2 *)to = make_uint2(dt_pack<C::HALF>(o[0] * scale, o[1] * scale), dt_pack<C::HALF>(o[2] * scale, o[3] * scale));
}

/* Comes by for piece `n` of this CTA. */
template <class C>
DT_DEVICE void dt_piece_merge(const dt_attention_kernel &a, uint32_t shared, uint32_t group, int32_t n) {
  const dt_attention_piece piece = a.pieces[dt_attention_cta()][n];
  const uint32_t word = shared + C::SHARED_MERGE + 8 * group + 4 * n;
  if (threadIdx.x % 128 == 0) {
    uint32_t *merges = &a.header->merges[piece.merge * C::GROUPS + group];
    /* Acquire: pairs with the fence in dt_piece_write. A fence here would wait for a tile's rows on their way. */
    const uint32_t own = 1u << piece.piece, seen = dt_or_acquire(merges, own << 8);
    const uint32_t slices = dt_load_shared_word(word) | ((seen & 255) == piece.pieces ? own : 0);
    if ((seen >> 8 | own) == (1u << piece.pieces) - 1) *merges = 0;
    dt_store_shared_word(word, slices);
  }
  dt_group_sync(group);
  const uint32_t slices = __shfl_sync(0xffffffffu, dt_load_shared_word(word), 0);
  const dt_attention_item item = dt_attention_tile_at<C>(a, a.cut_from + piece.tile);
  constexpr int LANES = C::D / 4, ROWS = 128 / LANES; /* of a row; rows at a time */
  const int32_t thread = (int32_t)(threadIdx.x % 128);
  for (uint32_t i = 0; i < piece.pieces; i++) {
    if (!(slices >> i & 1)) continue;
    const int32_t end = (int32_t)(64 * (i + 1) / piece.pieces);
    for (int32_t row = (int32_t)(64 * i / piece.pieces) + thread / LANES; row < end; row += ROWS)
      dt_row_merge<C>(a, piece, item, (int32_t)(64 * group) + row, thread % LANES * 4);
  }
}

#endif
