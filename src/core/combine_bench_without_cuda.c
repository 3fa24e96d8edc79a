/* What a build without the CUDA parts says of the benchmark. */
#include <draintile/combine_bench.h>

#include <string.h>

#include "core/error.h"

#ifndef DT_WITH_CUDA
void dt_combine_bench_case_init(dt_combine_bench_case *setting) {
  memset(setting, 0, sizeof *setting);
}
void dt_combine_bench_config_init(dt_combine_bench_config *config) {
  memset(config, 0, sizeof *config);
  config->size = sizeof *config;
}
dt_status dt_combine_bench_run(const dt_combine_bench_config *config) {
  (void)config;
  return dt_fail(DT_ERR_NO_DEVICE, "combine on GPUs; this build has no CUDA parts");
}
#endif
