/* What a build without the CUDA parts says. */
#include <draintile/cuda_attention.h>

#include "core/error.h"

#ifndef DT_WITH_CUDA
static dt_status without(void) {
  return dt_fail(DT_ERR_UNSUPPORTED, "attention on a GPU; this build has no CUDA parts");
}

dt_status dt_cuda_attention_workspace(const dt_cuda_attention *attention, size_t *bytes) {
  (void)attention, (void)bytes;
  return without();
}
dt_status dt_cuda_attention_forward(const dt_cuda_attention *attention, void *workspace, void *stream) {
  (void)attention, (void)workspace, (void)stream;
  return without();
}
dt_status dt_cuda_attention_check(const void *workspace, void *stream) {
  (void)workspace, (void)stream;
  return without();
}
#endif
