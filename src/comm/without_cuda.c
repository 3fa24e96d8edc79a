/* What a build without the CUDA parts says. */
#include <draintile/comm.h>

#include "core/error.h"

#ifndef DT_WITH_CUDA
dt_status dt_comm_create_cuda(dt_comm *control, int32_t device, dt_comm **endpoint) {
  (void)control, (void)endpoint;
  return dt_fail(DT_ERR_UNSUPPORTED, "device: cuda %d; this build has no CUDA parts", device);
}
#endif
