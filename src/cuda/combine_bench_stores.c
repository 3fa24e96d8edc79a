/* The combine benchmark: how many multiprocessors store to other ranks at once, from direct with timestamps. */
#include <string.h>

#include "combine_bench_rank.h"
#include "combine_handle.h"
#include "core/error.h"
#include "driver.h"

enum { WARM_UP = 3 };

dt_status dt_bench_count_stores(dt_bench_rank *r) {
  dt_combine *combine = NULL;
  const dt_span *spans;
  size_t count;
  uint64_t lost = 0;
  dt_status status = dt_bench_make_combine(r, 1, &combine);
  if (!status) status = dt_combine_set_counts(combine, r->shared->counts);
  for (int i = 0; i <= WARM_UP && !status; i++) {
    status = dt_comm_barrier(r->comm, "stores");
    if (!status) status = dt_combine_run(combine, DT_COMBINE_DIRECT, r->a, r->b, r->stream);
    if (!status) status = dt_combine_check(combine, r->stream);
  }
  if (!status) status = dt_combine_spans(combine, r->stream, &spans, &count, &lost);
  if (!status && lost > 0) status = dt_fail(DT_ERR_CAPACITY, "spans: %llu lost", (unsigned long long)lost);
  if (!status)
    status = dt_trace_stores(spans, count, 1, r->shared->config.window_s, &r->shared->result.stores[r->rank]);
  if (!status && r->rank == 0) {
    r->shared->result.window_s = r->shared->config.window_s;
    r->shared->result.producers = combine->recorder->ctas;
  }
  if (!status) status = dt_comm_barrier(r->comm, "stores counted");
  dt_combine_destroy(combine);
  return status;
}
