/* What a build without the CUDA parts says. */
#include <draintile/cuda_moe.h>

#include "core/error.h"

#ifndef DT_WITH_CUDA
static dt_status without(void) {
  return dt_fail(DT_ERR_UNSUPPORTED, "MoE layer on GPUs; this build has no CUDA parts");
}

dt_status dt_cuda_moe_create(const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights, dt_cuda_moe **moe) {
  (void)config, (void)weights, (void)moe;
  return without();
}
void dt_cuda_moe_destroy(dt_cuda_moe *moe) {
  (void)moe;
}
dt_status dt_cuda_moe_set_schedule(dt_cuda_moe *moe, const dt_cuda_moe_config *config) {
  (void)moe, (void)config;
  return without();
}
dt_status dt_cuda_moe_forward(dt_cuda_moe *moe, const dt_cuda_moe_input *input, void *stream) {
  (void)moe, (void)input, (void)stream;
  return without();
}
dt_status dt_cuda_moe_run_part(dt_cuda_moe *moe, dt_cuda_moe_part part, const dt_cuda_moe_input *input, void *stream) {
  (void)moe, (void)part, (void)input, (void)stream;
  return without();
}
dt_status dt_cuda_moe_check(dt_cuda_moe *moe, void *stream) {
  (void)moe, (void)stream;
  return without();
}
dt_status dt_cuda_moe_stats_read(dt_cuda_moe *moe, void *stream, dt_cuda_moe_stats *stats) {
  (void)moe, (void)stream, (void)stats;
  return without();
}
size_t dt_cuda_moe_device_bytes(const dt_cuda_moe *moe) {
  (void)moe;
  return 0;
}
dt_status dt_cuda_moe_spans(dt_cuda_moe *moe, void *stream, const dt_span **spans, size_t *count, uint64_t *lost) {
  (void)moe, (void)stream, (void)spans, (void)count, (void)lost;
  return without();
}
#endif
