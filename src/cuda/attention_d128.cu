/* Attention for heads of 128 columns: two warpgroups. */
#include "cuda/attention_kernel.cuh"

namespace {
template <int N, bool Half, bool Causal, bool Turns>
cudaError_t launch(const dt_attention_kernel *kernel, int ctas, cudaStream_t stream) {
  if constexpr (!Causal)
    if (kernel->cut_tiles > 0)
      return dt_attention_launch<dt_attention_config<128, N, 2, Half, Causal, Turns, true>>(kernel, ctas, stream);
  return dt_attention_launch<dt_attention_config<128, N, 2, Half, Causal, Turns, false>>(kernel, ctas, stream);
}
} // namespace

#define DT_CASE(N, Causal, Turns)                                                                                      \
  if (shape->block == N && shape->causal == Causal && shape->turns == Turns)                                           \
  return shape->half ? launch<N, true, Causal, Turns>(kernel, ctas, stream)                                            \
                     : launch<N, false, Causal, Turns>(kernel, ctas, stream)

extern "C" cudaError_t dt_attention_launch_d128(const dt_attention_kernel *kernel, const dt_attention_shape *shape,
                                                int ctas, cudaStream_t stream) {
  if (shape->groups != 2) return cudaErrorInvalidConfiguration;
  DT_CASE(160, 0, 1);
  DT_CASE(144, 0, 1);
  DT_CASE(160, 1, 0);
  return cudaErrorInvalidConfiguration;
}
