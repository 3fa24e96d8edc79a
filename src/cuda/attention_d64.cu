/* Attention for heads of 64 columns. Three warpgroups that issue in turn. */
#include "cuda/attention_kernel.cuh"

namespace {
template <int N, int Groups, bool Turns>
cudaError_t launch(const dt_attention_kernel *kernel, const dt_attention_shape *shape, int ctas, cudaStream_t stream) {
  if (shape->half && shape->causal)
    return dt_attention_launch<dt_attention_config<64, N, Groups, true, true, Turns>>(kernel, ctas, stream);
  if (shape->half)
    return dt_attention_launch<dt_attention_config<64, N, Groups, true, false, Turns>>(kernel, ctas, stream);
  if (shape->causal)
    return dt_attention_launch<dt_attention_config<64, N, Groups, false, true, Turns>>(kernel, ctas, stream);
  return dt_attention_launch<dt_attention_config<64, N, Groups, false, false, Turns>>(kernel, ctas, stream);
}
} // namespace

extern "C" cudaError_t dt_attention_launch_d64(const dt_attention_kernel *kernel, const dt_attention_shape *shape,
                                               int ctas, cudaStream_t stream) {
  if (shape->block == 128 && shape->groups == 3 && shape->turns) return launch<128, 3, true>(kernel, shape, ctas, stream);
  return cudaErrorInvalidConfiguration;
}
