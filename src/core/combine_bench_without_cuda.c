/* What a build without the CUDA parts says of the benchmark. */
#include <draintile/combine_bench.h>

#include "core/error.h"

#ifndef DT_WITH_CUDA
dt_status dt_combine_bench_run(const dt_combine_bench_config *config) {
  (void)config;
  return dt_fail(DT_ERR_NO_DEVICE, "combine on GPUs; this build has no CUDA parts");
}
#endif
