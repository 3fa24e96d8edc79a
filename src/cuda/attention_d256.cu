/* Attention for heads of 256 columns: O alone takes 128 registers a thread. */
#include "cuda/attention_kernel.cuh"

namespace {
template <int N>
cudaError_t launch(const dt_attention_kernel *kernel, const dt_attention_shape *shape, int ctas, cudaStream_t stream) {
  if (shape->half && shape->causal)
    return dt_attention_launch<dt_attention_config<256, N, 2, true, true, false>>(kernel, ctas, stream);
  if (shape->half) return dt_attention_launch<dt_attention_config<256, N, 2, true, false, false>>(kernel, ctas, stream);
  if (shape->causal)
    return dt_attention_launch<dt_attention_config<256, N, 2, false, true, false>>(kernel, ctas, stream);
  return dt_attention_launch<dt_attention_config<256, N, 2, false, false, false>>(kernel, ctas, stream);
}
} // namespace

extern "C" cudaError_t dt_attention_launch_d256(const dt_attention_kernel *kernel, const dt_attention_shape *shape,
                                                int ctas, cudaStream_t stream) {
  if (shape->block == 80 && shape->groups == 2 && !shape->turns) return launch<80>(kernel, shape, ctas, stream);
  return cudaErrorInvalidConfiguration;
}
