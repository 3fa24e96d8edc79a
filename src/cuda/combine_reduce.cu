/* The reduction at the owner of the rows: each token's sum over its choices. */
#include "cuda/combine_reduce.h"

#include "cuda/ptx.cuh"

enum { DT_REDUCE_THREADS = 256, DT_REDUCE_AHEAD = 4 };

/* Eight columns a thread; the choices' rows are loaded four at a time and added in order. */
__global__ void __launch_bounds__(DT_REDUCE_THREADS) dt_combine_reduce_kernel(const dt_combine_reduction r) {
  const int64_t pieces = r.columns / 8;
  for (int64_t token = blockIdx.x; token < r.tokens; token += gridDim.x) {
    const int32_t *rows = r.row_of_slot + token * r.top_k;
    const float *weights = r.weights + token * r.top_k;
    for (int64_t piece = threadIdx.x; piece < pieces; piece += DT_REDUCE_THREADS) {
      float sum[8] = {};
      for (int32_t first = 0; first < r.top_k; first += DT_REDUCE_AHEAD) {
        uint4 value[DT_REDUCE_AHEAD];
        float weight[DT_REDUCE_AHEAD];
#pragma unroll
        for (int32_t i = 0; i < DT_REDUCE_AHEAD; i++) {
          const int32_t row = first + i < r.top_k ? rows[first + i] : -1;
          weight[i] = row < 0 ? 0.0f : weights[first + i];
          value[i] = make_uint4(0, 0, 0, 0); /* adds +0 */
          if (row >= 0) value[i] = r.buffer[row * pieces + piece];
        }
#pragma unroll
        for (int32_t i = 0; i < DT_REDUCE_AHEAD; i++) {
          const uint32_t words[4] = {value[i].x, value[i].y, value[i].z, value[i].w};
#pragma unroll
          for (int j = 0; j < 4; j++) {
            sum[2 * j] = fmaf(weight[i], dt_low(words[j]), sum[2 * j]);
            sum[2 * j + 1] = fmaf(weight[i], dt_high(words[j]), sum[2 * j + 1]);
          }
        }
      }
      r.out[token * pieces + piece] = make_uint4(dt_pack_bf16(sum[0], sum[1]), dt_pack_bf16(sum[2], sum[3]),
                                                 dt_pack_bf16(sum[4], sum[5]), dt_pack_bf16(sum[6], sum[7]));
    }
  }
}

extern "C" cudaError_t dt_combine_reduce_launch(const dt_combine_reduction *reduction, int sms, cudaStream_t stream) {
  const int64_t most = 8 * (int64_t)sms;
  const unsigned blocks = (unsigned)(reduction->tokens < most ? reduction->tokens : most);
  dt_combine_reduce_kernel<<<blocks, DT_REDUCE_THREADS, 0, stream>>>(*reduction);
  return cudaGetLastError();
}
