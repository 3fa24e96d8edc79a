/* Attention for heads of 128 columns. Two warpgroups; the block length that wastes least of the sequence. */
#include "cuda/attention_kernel.cuh"

namespace {
template <int N, bool Causal, bool Turns>
cudaError_t launch(const dt_attention_kernel *kernel, const dt_attention_shape *shape, int ctas, cudaStream_t stream) {
  if (shape->half) return dt_attention_launch<dt_attention_config<128, N, 2, true, Causal, Turns>>(kernel, ctas, stream);
  return dt_attention_launch<dt_attention_config<128, N, 2, false, Causal, Turns>>(kernel, ctas, stream);
}
} // namespace

#define DT_CASE(N, Causal, Turns)                                                                                      \
  if (shape->block == N && shape->causal == Causal && shape->turns == Turns)                                           \
  return launch<N, Causal, Turns>(kernel, shape, ctas, stream)

extern "C" cudaError_t dt_attention_launch_d128(const dt_attention_kernel *kernel, const dt_attention_shape *shape,
                                                int ctas, cudaStream_t stream) {
  if (shape->groups != 2) return cudaErrorInvalidConfiguration;
  DT_CASE(160, 0, 0);
  DT_CASE(160, 0, 1);
  DT_CASE(144, 0, 0);
  DT_CASE(144, 0, 1);
  DT_CASE(128, 1, 0);
  DT_CASE(160, 1, 0);
  return cudaErrorInvalidConfiguration;
}
