/* The combine benchmark: what counts on the device cost before the GEMM. */
#include "combine_bench_rank.h"
#include "combine_handle.h"
#include "core/error.h"
#include "driver.h"

dt_status dt_bench_time_counts(dt_bench_rank *r) {
  const dt_bench *shared = r->shared;
  const int64_t width = (int64_t)shared->config.ranks * shared->setting->experts;
  dt_status status = dt_comm_barrier(r->comm, "counts"); /* making memory waits for kernels that wait for this rank */
  if (!status)
    status = dt_cuda_check(
        dt_cuda_write(r->own_counts, &shared->counts[r->rank * width], (size_t)width * sizeof *r->own_counts),
        "counts");
  if (!status) status = dt_combine_follow_counts(r->combine, r->own_counts);
  for (int32_t round = -shared->config.warm_up; round < shared->config.repeat && !status; round++)
    for (int method = DT_METHOD_EXCHANGE; method <= DT_METHOD_COUNTS && !status; method++) {
      double seconds;
      if (!shared->setting->methods[method]) continue;
      status = dt_bench_time_method(r, method, &seconds);
      if (!status && round >= 0) r->samples[method][round] = seconds;
    }
  return status ? status : dt_combine_check(r->combine, r->stream);
}
