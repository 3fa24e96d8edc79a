/* Checks of the combine benchmark's methods: bit by bit against bulk, sampled rows against float64. */
#include <math.h>
#include <string.h>

#include "combine_bench_rank.h"
#include "core/error.h"
#include "core/random.h"
#include "driver.h"

/* Of all rows that this rank owns. The owner recomputes them from the values that the expert's rank has. */
dt_status dt_bench_choose_samples(dt_bench_rank *r) {
  const dt_bench *shared = r->shared;
  const dt_combine_bench_case *s = shared->setting;
  dt_random random = {s->seed + 77 + (uint64_t)r->rank};
  const int64_t rows = shared->plans[r->rank]->combine_rows;
  dt_bench_sample samples[DT_BENCH_CHECKED_ROWS];
  memset(samples, 0, sizeof samples);
  for (int i = 0; i < DT_BENCH_CHECKED_ROWS && rows > 0; i++) {
    const int64_t at = (int64_t)dt_random_below(&random, (uint64_t)rows);
    for (int32_t p = 0; p < shared->config.ranks; p++)
      for (int32_t g = 0; g < shared->plans[p]->group_count; g++) {
        const dt_group *group = &shared->plans[p]->groups[g];
        if (group->owner != r->rank || at < group->dst_row || at >= group->dst_row + group->rows) continue;
        samples[i] = (dt_bench_sample){.row = at,
                                       .a = (group->row + at - group->dst_row) * s->k + dt_bench_offset_a(p),
                                       .b = group->expert * s->n * s->k + dt_bench_offset_b(p)};
      }
  }
  return dt_cuda_check(dt_cuda_write(r->sampled, samples, sizeof samples), "samples");
}

/* After a live run of the method, so that NCCL is connected and cuBLAS has its workspace. */
static dt_status capture(dt_bench_rank *r, int method, int live) {
  cudaGraph_t graph = NULL;
  dt_status status = dt_bench_run_method(r, live);
  if (!status) status = dt_cuda_check(cudaStreamSynchronize(r->stream), "live run");
  if (!status)
    status = dt_cuda_check(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  if (status) return status;
  status = dt_bench_run_method(r, live);
  const dt_status ended = dt_cuda_check(cudaStreamEndCapture(r->stream, &graph), "cudaStreamEndCapture");
  if (!status) status = ended;
  if (!status) status = dt_cuda_check(cudaGraphInstantiate(&r->graphs[method], graph, 0), "cudaGraphInstantiate");
  if (graph) cudaGraphDestroy(graph);
  return status;
}

static dt_status compare(dt_bench_rank *r, int method, const uint16_t *buffer, size_t bytes) {
  const dt_bench *shared = r->shared;
  cudaError_t error = cudaSuccess;
  if (method == DT_METHOD_BULK)
    error = cudaMemcpyAsync(r->expected, buffer, bytes, cudaMemcpyDeviceToDevice, r->stream);
  if (error == cudaSuccess) error = dt_bench_compare(buffer, r->expected, bytes, r->wrong, r->stream);
  if (error == cudaSuccess && bytes > 0)
    error =
        dt_bench_sample_error(buffer, r->sampled, DT_BENCH_CHECKED_ROWS, r->block, DT_BENCH_PERIOD, shared->setting->n,
                              shared->setting->k, shared->setting->seed, r->wrong + 1, r->stream);
  unsigned long long found[2] = {0, 0};
  if (error == cudaSuccess) error = cudaMemcpyAsync(found, r->wrong, sizeof found, cudaMemcpyDefault, r->stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(r->stream);
  r->words_wrong[method] = (int64_t)found[0];
  memcpy(&r->error[method], &found[1], sizeof r->error[method]);
  return dt_cuda_check(error, "compare");
}

dt_status dt_bench_check_method(dt_bench_rank *r, int method) {
  const dt_combine_bench_case *s = r->shared->setting;
  if (method == DT_METHOD_GEMM || method == DT_METHOD_CUBLAS || method == DT_METHOD_RESERVED ||
      method == DT_METHOD_REDUCE)
    return dt_bench_run_method(r, method);
  const dt_plan *plan = r->shared->plans[r->rank];
  const size_t bytes = 2 * (size_t)plan->combine_rows * (size_t)s->n;
  uint16_t *buffer = dt_bench_is_baseline(method) ? r->receive : dt_combine_buffer(r->combine);
  dt_status status = DT_OK;
  if (method == DT_METHOD_LOOP_GRAPH) status = capture(r, method, DT_METHOD_LOOP);
  if (method == DT_METHOD_GROUPED_GRAPH) status = capture(r, method, DT_METHOD_GROUPED);
  /* What the method does not write, or reads too early, shows. */
  if (!status) status = dt_combine_run_gemm(r->combine, 0, r->a + s->k, r->b, r->stream);
  cudaError_t error = cudaMemsetAsync(r->packed, 0xff, 2 * (size_t)plan->rows * (size_t)s->n, r->stream);
  if (error == cudaSuccess) error = cudaMemsetAsync(buffer, 0xff, bytes, r->stream);
  if (error == cudaSuccess) error = cudaMemsetAsync(r->wrong, 0, 2 * sizeof *r->wrong, r->stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(r->stream);
  if (!status) status = dt_cuda_check(error, "poison");
  if (!status) status = dt_comm_barrier(r->comm, "check");
  if (!status) status = dt_bench_run_method(r, method);
  if (!status) status = dt_combine_check(r->combine, r->stream);
  if (!status) status = compare(r, method, buffer, bytes);
  /* No rank may poison a buffer before its owner has compared it. */
  return status ? status : dt_comm_barrier(r->comm, "checked");
}
