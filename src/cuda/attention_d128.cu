/* Attention for heads of 128 columns. Three warpgroups: with two, each waits for its own softmax. */
#include "cuda/attention_kernel.cuh"

namespace {
template <bool Half, bool Causal>
cudaError_t launch(const dt_attention_kernel *kernel, int ctas, cudaStream_t stream) {
  if constexpr (!Causal)
    if (kernel->cut_tiles > 0)
      return dt_attention_launch<dt_attention_config<128, 80, 3, Half, Causal, true>>(kernel, ctas, stream);
  return dt_attention_launch<dt_attention_config<128, 80, 3, Half, Causal, false>>(kernel, ctas, stream);
}
} // namespace

extern "C" cudaError_t dt_attention_launch_d128(const dt_attention_kernel *kernel, const dt_attention_shape *shape,
                                               int ctas, cudaStream_t stream) {
  if (shape->block != 80 || shape->groups != 3) return cudaErrorInvalidConfiguration;
  if (shape->causal) return shape->half ? launch<true, true>(kernel, ctas, stream) : launch<false, true>(kernel, ctas, stream);
  return shape->half ? launch<true, false>(kernel, ctas, stream) : launch<false, false>(kernel, ctas, stream);
}
