/* A finished tile's rows, from the accumulators straight to their owner's memory, 16 bytes a lane. */
#ifndef DT_CUDA_ATTENTION_STORE_CUH
#define DT_CUDA_ATTENTION_STORE_CUH

#include "cuda/attention_mma.cuh"
#include "cuda/attention_pipeline.cuh"
#include "cuda/attention_send.cuh"

/* Lane q of a quad gets register q of its four lanes. */
DT_DEVICE void dt_quad_transpose(uint32_t (&x)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
  uint32_t u = __shfl_xor_sync(0xffffffffu, odd ? x[0] : x[1], 1);
  uint32_t v = __shfl_xor_sync(0xffffffffu, odd ? x[2] : x[3], 1);
  x[0] = odd ? u : x[0];
  x[1] = odd ? x[1] : u;
  x[2] = odd ? v : x[2];
  x[3] = odd ? x[3] : v;
  u = __shfl_xor_sync(0xffffffffu, high ? x[0] : x[2], 2);
  v = __shfl_xor_sync(0xffffffffu, high ? x[1] : x[3], 2);
  x[0] = high ? u : x[0];
  x[1] = high ? v : x[1];
  x[2] = high ? x[2] : u;
  x[3] = high ? x[3] : v;
}

/* Where row `row` of a tile goes, head 0: to the run in which the tile starts, or the one behind it. */
DT_DEVICE uint8_t *dt_attention_row_out(const dt_attention_kernel &a, const dt_attention_item &item, int32_t row) {
  const int32_t at = item.row + row - a.runs[item.run].first;
  const bool beyond = at >= a.runs[item.run].rows;
  const dt_attention_run &run = a.runs[item.run + beyond];
  return run.out + (int64_t)(beyond ? at - a.runs[item.run].rows : at) * run.row_bytes;
}

/* Rows `row` and row + 8 of the tile; sum: of the whole rows. A row that saw nothing is zero. To their owner, or to
 * shared memory, where the sending warp finds a destination behind each row; 0: the row does not exist. */
template <class C>
DT_DEVICE void dt_attention_store(const dt_attention_kernel &a, const dt_attention_item &item, uint32_t sent,
                                  int32_t row, const float (&o)[C::D / 2], const float (&sum)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    uint8_t *out = dt_attention_row_out(a, item, row + 8 * r) + item.head * (C::D * 2);
    const uint32_t stage = sent + (uint32_t)(row + 8 * r) * C::SENT_ROW_BYTES;
    const float scale = sum[r] > 0 ? 1 / sum[r] : 0;
    const bool inside = row + 8 * r < item.rows;
    if (sent && threadIdx.x % 4 == 0) dt_store_shared_address(stage + 2 * C::D, inside ? out : NULL);
    out += threadIdx.x % 4 * 16;
#pragma unroll
    for (int i = 0; i < C::D / 32; i++) {
      uint32_t x[4];
#pragma unroll
      for (int j = 0; j < 4; j++)
        x[j] = dt_pack<C::HALF>(o[16 * i + 4 * j + 2 * r] * scale, o[16 * i + 4 * j + 2 * r + 1] * scale);
      dt_quad_transpose(x);
      if (sent)
        dt_store_shared(stage + threadIdx.x % 4 * 16 + 64 * i, make_uint4(x[0], x[1], x[2], x[3]));
      else if (inside)
        dt_store_global(out + 64 * i, make_uint4(x[0], x[1], x[2], x[3]));
    }
  }
}

#endif
