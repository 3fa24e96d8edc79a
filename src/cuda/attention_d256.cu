/* Attention for heads of 256 columns. O alone takes 128 registers a thread. */
#include "cuda/attention_kernel.cuh"

extern "C" cudaError_t dt_attention_launch_d256(const dt_attention_kernel *kernel, const dt_attention_shape *shape,
                                                int ctas, cudaStream_t stream) {
  return dt_attention_launch_shape<256, 80, 2>(kernel, shape, ctas, stream);
}
