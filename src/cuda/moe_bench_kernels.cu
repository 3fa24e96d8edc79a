#include "cuda/moe_bench_kernels.h"

#include <cuda_bf16.h>

enum { DT_BLOCKS = 1056, DT_THREADS = 256, DT_WARPS = DT_THREADS / 32 };

/* splitmix64's finish; the sum of its four 16-bit quarters is normal enough. */
static __device__ __forceinline__ uint16_t value_of(uint64_t stream, int64_t index, float scale) {
  uint64_t z = (uint64_t)index * 0x9e3779b97f4a7c15u + stream * 0xd1342543de82ef95u + 0x632be59bd9b4e019u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  const int32_t sum = (int32_t)((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48));
  return __bfloat16_as_ushort(__float2bfloat16_rn((float)(sum - 131070) * (1.0f / 37837.0f) * scale));
}

__global__ void dt_moe_bench_fill_kernel(uint16_t *to, int64_t elements, uint64_t stream, int64_t first, float scale) {
  const int64_t step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < elements; i += step)
    to[i] = value_of(stream, first + i, scale);
}

static __device__ __forceinline__ double wide(uint16_t value) {
  return (double)__bfloat162float(__ushort_as_bfloat16(value));
}

static __device__ __forceinline__ double warp_sum(double value) {
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
  return value;
}

/* A warp an intermediate value of a choice. */
__global__ void dt_moe_bench_act_kernel(const dt_moe_bench_reference r) {
  const dt_moe_bench_choice choice = r.choices[blockIdx.y];
  const uint16_t *x = r.x + choice.sample * r.hidden;
  const int lane = threadIdx.x % 32;
  for (int64_t i = blockIdx.x * DT_WARPS + threadIdx.x / 32; i < r.intermediate; i += (int64_t)gridDim.x * DT_WARPS) {
    const uint16_t *gate = r.gate + (choice.expert * r.intermediate + i) * r.hidden;
    const uint16_t *up = r.up + (choice.expert * r.intermediate + i) * r.hidden;
    double g = 0, u = 0;
    for (int64_t h = lane; h < r.hidden; h += 32) {
      g += wide(gate[h]) * wide(x[h]);
      u += wide(up[h]) * wide(x[h]);
    }
    g = warp_sum(g);
    u = warp_sum(u);
    if (lane == 0) r.act[blockIdx.y * r.intermediate + i] = g / (1.0 + exp(-g)) * u;
  }
}

/* A warp an output value of a sampled token. */
__global__ void dt_moe_bench_out_kernel(const dt_moe_bench_reference r) {
  const int32_t sample = (int32_t)blockIdx.y;
  const int lane = threadIdx.x % 32;
  for (int64_t h = blockIdx.x * DT_WARPS + threadIdx.x / 32; h < r.hidden; h += (int64_t)gridDim.x * DT_WARPS) {
    double sum = 0;
    for (int32_t c = r.first[sample]; c < r.first[sample + 1]; c++) {
      const uint16_t *down = r.down + (r.choices[c].expert * r.hidden + h) * r.intermediate;
      const double *act = r.act + c * r.intermediate;
      double y = 0;
      for (int64_t i = lane; i < r.intermediate; i += 32) y += wide(down[i]) * act[i];
      sum += r.choices[c].weight * y;
    }
    sum = warp_sum(sum);
    if (lane == 0) r.y[sample * r.hidden + h] = sum;
  }
}

extern "C" cudaError_t dt_moe_bench_fill(uint16_t *to, int64_t elements, uint64_t stream, int64_t first, float scale,
                                         cudaStream_t cuda_stream) {
  dt_moe_bench_fill_kernel<<<DT_BLOCKS, DT_THREADS, 0, cuda_stream>>>(to, elements, stream, first, scale);
  return cudaGetLastError();
}

extern "C" cudaError_t dt_moe_bench_refer(const dt_moe_bench_reference *r, cudaStream_t stream) {
  if (r->samples < 1) return cudaSuccess;
  if (r->choice_count > 0) dt_moe_bench_act_kernel<<<dim3(64, r->choice_count), DT_THREADS, 0, stream>>>(*r);
  dt_moe_bench_out_kernel<<<dim3(64, r->samples), DT_THREADS, 0, stream>>>(*r);
  return cudaGetLastError();
}
