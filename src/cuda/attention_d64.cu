/* Attention for heads of 64 columns. Three warpgroups. */
#include "cuda/attention_kernel.cuh"

extern "C" cudaError_t dt_attention_launch_d64(const dt_attention_kernel *kernel, const dt_attention_shape *shape,
                                               int ctas, cudaStream_t stream) {
  return dt_attention_launch_shape<64, 128, 3>(kernel, shape, ctas, stream);
}
