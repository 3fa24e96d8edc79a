/* What a build without the CUDA parts says. */
#include <draintile/gemm.h>

#include "core/error.h"

#ifndef DT_WITH_CUDA
static dt_status without(void) {
  return dt_fail(DT_ERR_UNSUPPORTED, "grouped GEMM on a GPU; this build has no CUDA parts");
}

dt_status dt_cuda_gemm_workspace(const dt_cuda_gemm *gemm, size_t *bytes) {
  (void)gemm, (void)bytes;
  return without();
}
dt_status dt_cuda_grouped_gemm(const dt_cuda_gemm *gemm, void *workspace, void *stream) {
  (void)gemm, (void)workspace, (void)stream;
  return without();
}
dt_status dt_cuda_gemm_check(const void *workspace, void *stream) {
  (void)workspace, (void)stream;
  return without();
}
#endif
