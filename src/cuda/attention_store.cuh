/* A finished tile's rows, from the accumulators to their owner's memory, 16 bytes a lane: through shared memory, where
 * there is room for them, else straight from the registers. Short code: it runs once a tile, and comes from memory.
 */
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

/* This warp's 16 rows of the tile to their owner; sum: of the whole rows, of which a thread has parts of two. A row
 * that saw nothing is zero. Sends: the sending warp takes them from shared memory, and finds a destination behind each
 * row; 0: the row does not exist. */
template <class C>
DT_DEVICE void dt_attention_store(const dt_attention_kernel &a, const dt_attention_item &item, uint32_t shared,
                                  const float (&o)[C::D / 2], const float (&sum)[2], bool sends) {
  constexpr uint32_t LANES = C::D / 8, ROWS = 32 / LANES; /* of a row; rows at a time */
  const uint32_t lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16;
  const uint32_t rows = shared + C::SHARED_SENT + first * C::SENT_ROW_BYTES;
  const uint32_t to = rows + lane % 16 * C::SENT_ROW_BYTES + lane / 16 * 16;
  const float scale_0 = sum[0] > 0 ? 1 / sum[0] : 0, scale_1 = sum[1] > 0 ? 1 / sum[1] : 0;
  __syncwarp(); /* all lanes have read what lies there */
#pragma unroll
  for (int i = 0; i < C::D / 2; i += 8)
    dt_store_matrices(to + 4 * i, dt_pack<C::HALF>(o[i] * scale_0, o[i + 1] * scale_0),
                      dt_pack<C::HALF>(o[i + 2] * scale_1, o[i + 3] * scale_1),
                      dt_pack<C::HALF>(o[i + 4] * scale_0, o[i + 5] * scale_0),
                      dt_pack<C::HALF>(o[i + 6] * scale_1, o[i + 7] * scale_1));
  const int32_t row = (int32_t)(first + lane % 16);
  uint8_t *out = row < item.rows ? dt_attention_row_out(a, item, row) + item.head * (C::D * 2) : NULL;
  if (sends) {
    if (lane < 16) dt_store_shared_address(rows + lane * C::SENT_ROW_BYTES + 2 * C::D, out);
    return;
  }
  __syncwarp();
  uint4 x[16 / ROWS];
#pragma unroll
  for (uint32_t i = 0; i < 16 / ROWS; i++)
    x[i] = dt_load_shared(rows + (i * ROWS + lane / LANES) * C::SENT_ROW_BYTES + lane % LANES * 16);
#pragma unroll
  for (uint32_t i = 0; i < 16 / ROWS; i++) {
    uint8_t *at = (uint8_t *)__shfl_sync(0xffffffffu, (unsigned long long)out, (int)(i * ROWS + lane / LANES));
    if (at != NULL) dt_store_global(at + lane % LANES * 16, x[i]);
  }
}

/* Rows `row` and row + 8 of the tile, straight from the registers. */
template <class C>
DT_DEVICE void dt_attention_store_direct(const dt_attention_kernel &a, const dt_attention_item &item, int32_t row,
                                         const float (&o)[C::D / 2], const float (&sum)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    uint8_t *out = dt_attention_row_out(a, item, row + 8 * r) + item.head * (C::D * 2) + threadIdx.x % 4 * 16;
    const float scale = sum[r] > 0 ? 1 / sum[r] : 0;
#pragma unroll
    for (int i = 0; i < C::D / 32; i++) {
      uint32_t x[4];
#pragma unroll
      for (int j = 0; j < 4; j++)
        x[j] = dt_pack<C::HALF>(o[16 * i + 4 * j + 2 * r] * scale, o[16 * i + 4 * j + 2 * r + 1] * scale);
      dt_quad_transpose(x);
      if (row + 8 * r < item.rows) dt_store_global(out + 64 * i, make_uint4(x[0], x[1], x[2], x[3]));
    }
  }
}

#endif
