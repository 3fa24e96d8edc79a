/* What a build without the CUDA parts says of the benchmark. */
#include <draintile/combine_bench.h>

#include "core/error.h"

#ifndef DT_WITH_CUDA
void dt_combine_bench_case_init(dt_combine_bench_case *setting) {
  *setting =
      (dt_combine_bench_case){.rows = 16384, .n = 8192, .k = 2048, .experts = 8, .consumers = 16, .segment_bands = 1};
}
void dt_combine_bench_config_init(dt_combine_bench_config *config) {
  *config = (dt_combine_bench_config){.size = sizeof *config, .ranks = 2, .repeat = 20, .warm_up = 3};
}
dt_status dt_combine_bench_run(const dt_combine_bench_config *config) {
  (void)config;
  return dt_fail(DT_ERR_NO_DEVICE, "combine on GPUs; this build has no CUDA parts");
}
#endif
