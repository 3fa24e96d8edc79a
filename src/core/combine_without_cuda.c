/* What a build without the CUDA parts says. */
#include <draintile/combine.h>

#include "core/error.h"

#ifndef DT_WITH_CUDA
static dt_status without(void) {
  return dt_fail(DT_ERR_UNSUPPORTED, "combine on GPUs; this build has no CUDA parts");
}

dt_status dt_combine_create(const dt_combine_config *config, dt_combine **combine) {
  (void)config, (void)combine;
  return without();
}
void dt_combine_destroy(dt_combine *combine) {
  (void)combine;
}
dt_status dt_combine_set_counts(dt_combine *combine, const int32_t *counts) {
  (void)combine, (void)counts;
  return without();
}
dt_status dt_combine_follow_counts(dt_combine *combine, const int32_t *counts) {
  (void)combine, (void)counts;
  return without();
}
dt_status dt_combine_reduce(dt_combine *combine, const float *weights, const int32_t *row_of_slot, int64_t tokens,
                            int32_t top_k, void *out, void *stream) {
  (void)combine, (void)weights, (void)row_of_slot, (void)tokens, (void)top_k, (void)out, (void)stream;
  return without();
}
dt_status dt_combine_run(dt_combine *combine, dt_combine_mode mode, const void *a, const void *b, void *stream) {
  (void)combine, (void)mode, (void)a, (void)b, (void)stream;
  return without();
}
dt_status dt_combine_run_gemm(dt_combine *combine, int reserve, const void *a, const void *b, void *stream) {
  (void)combine, (void)reserve, (void)a, (void)b, (void)stream;
  return without();
}
dt_status dt_combine_check(dt_combine *combine, void *stream) {
  (void)combine, (void)stream;
  return without();
}
dt_status dt_combine_spans(dt_combine *combine, void *stream, const dt_span **spans, size_t *count, uint64_t *lost) {
  (void)combine, (void)stream, (void)spans, (void)count, (void)lost;
  return without();
}
void *dt_combine_buffer(dt_combine *combine) {
  (void)combine;
  return NULL;
}
#endif
