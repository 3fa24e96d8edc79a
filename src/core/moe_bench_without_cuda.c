/* What a build without the CUDA parts says. */
#include <draintile/moe_bench.h>

#include <string.h>

#include "core/error.h"

#ifndef DT_WITH_CUDA
static dt_status without(void) {
  return dt_fail(DT_ERR_UNSUPPORTED, "benchmark of the MoE layer on GPUs; this build has no CUDA parts");
}

dt_status dt_moe_bench_open(const dt_moe_bench_config *config, dt_moe_bench **bench) {
  (void)config, (void)bench;
  return without();
}
void dt_moe_bench_close(dt_moe_bench *bench) {
  (void)bench;
}
dt_status dt_moe_bench_run(dt_moe_bench *bench, const dt_moe_bench_row *row, dt_moe_bench_result *result) {
  (void)bench, (void)row, (void)result;
  return without();
}
void dt_moe_bench_result_free(dt_moe_bench_result *result) {
  memset(result, 0, sizeof *result);
}
#endif
