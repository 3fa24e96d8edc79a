/* Attention for heads of 128 columns. Three warpgroups: with two, each waits for its own softmax. */
#include "cuda/attention_kernel.cuh"

extern "C" cudaError_t dt_attention_launch_d128(const dt_attention_kernel *kernel, const dt_attention_shape *shape,
                                                int ctas, cudaStream_t stream) {
  return dt_attention_launch_shape<128, 80, 3>(kernel, shape, ctas, stream);
}
