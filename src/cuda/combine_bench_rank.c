#include "combine_bench_rank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/fabric.h"
#include "core/error.h"
#include "core/random.h"
#include "driver.h"
#include "probe/burst.h"

enum {
  FLUSH_BYTES = 512 << 20,
  CHECKED_ROWS = 48, /* sampled a rank */
  CHECKED_COLUMNS = 32
};

int dt_bench_is_baseline(int method) {
  return method == DT_METHOD_LOOP || method == DT_METHOD_GROUPED || method == DT_METHOD_LOOP_GRAPH ||
         method == DT_METHOD_GROUPED_GRAPH;
}

static int64_t offset_a(int32_t rank) {
  return 1000003LL * (rank + 1);
}
static int64_t offset_b(int32_t rank) {
  return 3000017LL * (rank + 1);
}

static double from_bf16(uint16_t value) {
  const uint32_t bits = (uint32_t)value << 16;
  float out;
  memcpy(&out, &bits, sizeof out);
  return out;
}

static dt_status allocate(void **pointer, size_t bytes, const char *what) {
  return dt_cuda_check(cudaMalloc(pointer, bytes ? bytes : 16), what);
}

static dt_status make_memory(dt_bench_rank *r) {
  const dt_combine_bench_config *c = r->shared->config;
  const size_t n = (size_t)c->n, k = (size_t)c->k, rows = (size_t)r->shared->rows_max;
  const size_t a = (rows + 1) * k, b = (size_t)c->experts * n * k, combine = (size_t)r->shared->combine_rows_max * n;
  dt_status status = allocate((void **)&r->a, 2 * a, "a");
  if (!status) status = allocate((void **)&r->b, 2 * b, "b");
  if (!status) status = allocate((void **)&r->block, 2 * (size_t)DT_BENCH_PERIOD, "block");
  if (!status) status = allocate((void **)&r->packed, 2 * rows * n, "packed rows");
  if (!status) status = allocate((void **)&r->receive, 2 * combine, "received rows");
  if (!status) status = allocate((void **)&r->expected, 2 * combine, "expected rows");
  if (!status) status = allocate((void **)&r->flush, FLUSH_BYTES, "flush");
  if (!status) status = allocate((void **)&r->wrong, sizeof *r->wrong, "counter");
  if (!status) status = allocate((void **)&r->expired, sizeof *r->expired, "flag");
  if (status) return status;
  cudaError_t error = cudaMemcpy(r->block, r->shared->block, 2 * (size_t)DT_BENCH_PERIOD, cudaMemcpyHostToDevice);
  if (error == cudaSuccess) error = cudaMemset(r->expired, 0, sizeof *r->expired);
  if (error == cudaSuccess) error = cudaMemset(r->flush, 1, FLUSH_BYTES);
  if (error == cudaSuccess)
    error = dt_bench_fill(r->a, (int64_t)a, r->block, DT_BENCH_PERIOD, offset_a(r->rank), r->stream);
  if (error == cudaSuccess)
    error = dt_bench_fill(r->b, (int64_t)b, r->block, DT_BENCH_PERIOD, offset_b(r->rank), r->stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(r->stream);
  return dt_cuda_check(error, "operands");
}

static dt_status make_combine(dt_bench_rank *r) {
  const dt_bench *shared = r->shared;
  const dt_combine_bench_config *c = shared->config;
  dt_combine_config config;
  dt_combine_config_init(&config);
  config.comm = r->comm;
  config.experts_per_rank = c->experts;
  config.n = c->n;
  config.k = c->k;
  config.rows_max = shared->rows_max;
  config.combine_rows_max = shared->combine_rows_max;
  config.consumers = c->consumers;
  config.segment_bands = c->segment_bands;
  config.raster_bands = c->raster_bands;
  config.timeout_s = 5;
  dt_status status = dt_combine_create(&config, &r->combine);
  return status ? status : dt_combine_set_counts(r->combine, shared->counts);
}

static dt_status make_peer(dt_bench_rank *r) {
  const dt_bench *shared = r->shared;
  dt_plan_config config;
  dt_plan_config_init(&config);
  config.ranks = shared->config->ranks;
  config.rank = r->rank;
  config.experts_per_rank = shared->config->experts;
  dt_status status = dt_plan_create(&config, shared->counts, &r->plan);
  if (status || !shared->peers) return status;
  const dt_peer_problem problem = {.plan = r->plan,
                                   .counts = shared->counts,
                                   .n = shared->config->n,
                                   .k = shared->config->k,
                                   .a = r->a,
                                   .b = r->b,
                                   .packed = r->packed,
                                   .receive = r->receive,
                                   .stream = r->stream};
  return dt_peer_create(shared->peers, &problem, &r->peer);
}

static dt_status make_rank(dt_bench_rank *r) {
  dt_status status = dt_comm_create_cuda(r->control, r->rank, &r->comm);
  if (status) return status;
  r->control = NULL; /* the new endpoint's */
  cudaError_t error = cudaSetDevice(r->rank);
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking);
  if (error == cudaSuccess) error = cudaEventCreate(&r->start);
  if (error == cudaSuccess) error = cudaEventCreate(&r->stop);
  status = dt_cuda_check(error, "stream");
  if (!status) status = make_memory(r);
  if (!status) status = make_combine(r);
  if (!status) status = make_peer(r);
  const size_t slot = DT_BENCH_SLOT_WORDS * sizeof(uint32_t);
  if (!status) status = dt_comm_alloc(r->comm, slot * DT_BENCH_RANKS, &r->align);
  for (int32_t p = 0; p < r->shared->config->ranks && !status; p++)
    r->align_at[p] = (uint32_t *)(r->align->pieces[p] + slot * (size_t)r->rank);
  return status;
}

void dt_bench_rank_release(dt_bench_rank *r) {
  cudaSetDevice(r->rank);
  cudaDeviceSynchronize();
  for (int m = 0; m < DT_METHODS; m++) {
    if (r->graphs[m]) cudaGraphExecDestroy(r->graphs[m]);
  }
  dt_peer_destroy(r->peer);
  dt_plan_destroy(r->plan);
  if (r->align) dt_comm_free(r->comm, r->align);
  dt_combine_destroy(r->combine);
  cudaFree(r->a), cudaFree(r->b), cudaFree(r->block), cudaFree(r->packed), cudaFree(r->receive), cudaFree(r->expected);
  cudaFree(r->flush), cudaFree(r->wrong), cudaFree(r->expired);
  if (r->start) cudaEventDestroy(r->start);
  if (r->stop) cudaEventDestroy(r->stop);
  if (r->stream) cudaStreamDestroy(r->stream);
  if (r->comm) dt_comm_destroy(r->comm);
  if (r->control) dt_comm_destroy(r->control);
}

static dt_status run_method(dt_bench_rank *r, int method) {
  switch (method) {
  case DT_METHOD_LOOP:
    return dt_peer_loop(r->peer);
  case DT_METHOD_GROUPED:
    return dt_peer_grouped(r->peer);
  case DT_METHOD_BULK:
    return dt_combine_run(r->combine, DT_COMBINE_BULK, r->a, r->b, r->stream);
  case DT_METHOD_SIGNAL:
    return dt_combine_run(r->combine, DT_COMBINE_SIGNAL, r->a, r->b, r->stream);
  case DT_METHOD_DIRECT:
    return dt_combine_run(r->combine, DT_COMBINE_DIRECT, r->a, r->b, r->stream);
  case DT_METHOD_GEMM:
  case DT_METHOD_RESERVED:
    return dt_combine_run_gemm(r->combine, method == DT_METHOD_RESERVED, r->a, r->b, r->stream);
  case DT_METHOD_CUBLAS:
    return dt_peer_gemm(r->peer);
  default:
    return dt_cuda_check(cudaGraphLaunch(r->graphs[method], r->stream), "graph");
  }
}

/* After a live run of the method, so that NCCL is connected and cuBLAS has its workspace. */
static dt_status capture(dt_bench_rank *r, int method, int live) {
  cudaGraph_t graph = NULL;
  dt_status status = run_method(r, live);
  if (!status) status = dt_cuda_check(cudaStreamSynchronize(r->stream), "live run");
  if (!status)
    status = dt_cuda_check(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  if (status) return status;
  status = run_method(r, live);
  const dt_status ended = dt_cuda_check(cudaStreamEndCapture(r->stream, &graph), "cudaStreamEndCapture");
  if (!status) status = ended;
  if (!status) status = dt_cuda_check(cudaGraphInstantiate(&r->graphs[method], graph, 0), "cudaGraphInstantiate");
  if (graph) cudaGraphDestroy(graph);
  return status;
}

/* Sampled rows of this rank's experts, wherever they went, against float64 sums over the operands' bf16 values. */
static dt_status sample_error(dt_bench_rank *r, int method, double *worst) {
  const dt_bench *shared = r->shared;
  const int64_t n = shared->config->n, k = shared->config->k;
  dt_random random = {shared->config->seed + 77 + (uint64_t)r->rank};
  uint16_t *row = malloc(2 * (size_t)n);
  if (!row) return dt_fail(DT_ERR_MEMORY, "row: %lld elements", (long long)n);
  dt_status status = DT_OK;
  *worst = 0;
  for (int s = 0; s < CHECKED_ROWS && r->plan->rows > 0 && !status; s++) {
    const int64_t at = (int64_t)dt_random_below(&random, (uint64_t)r->plan->rows);
    const dt_group *group = r->plan->groups;
    while (at < group->row || at >= group->row + group->rows) group++;
    const dt_bench_rank *owner = &shared->ranks[group->owner];
    const uint16_t *buffer = dt_bench_is_baseline(method) ? owner->receive : dt_combine_buffer(owner->combine);
    status = dt_cuda_check(
        cudaMemcpy(row, buffer + (group->dst_row + at - group->row) * n, 2 * (size_t)n, cudaMemcpyDefault), "row");
    double error = 0, norm = 0;
    for (int c = 0; c < CHECKED_COLUMNS; c++) {
      const int64_t column = (int64_t)dt_random_below(&random, (uint64_t)n);
      double sum = 0;
      for (int64_t i = 0; i < k; i++)
        sum += from_bf16(shared->block[(at * k + i + offset_a(r->rank)) % DT_BENCH_PERIOD]) *
               from_bf16(shared->block[((group->expert * n + column) * k + i + offset_b(r->rank)) % DT_BENCH_PERIOD]);
      const double difference = from_bf16(row[column]) - sum;
      error += difference * difference;
      norm += sum * sum;
    }
    const double relative = sqrt(error / norm);
    if (!(relative <= *worst)) *worst = relative;
    if (isnan(*worst)) break;
  }
  free(row);
  return status;
}

/* From buffers that hold another product's rows and poison: what a method does not write, or reads too early, shows. */
static dt_status check_method(dt_bench_rank *r, int method) {
  const dt_combine_bench_config *c = r->shared->config;
  const size_t bytes = 2 * (size_t)r->plan->combine_rows * (size_t)c->n;
  void *buffer = dt_bench_is_baseline(method) ? (void *)r->receive : dt_combine_buffer(r->combine);
  if (method == DT_METHOD_GEMM || method == DT_METHOD_CUBLAS || method == DT_METHOD_RESERVED)
    return run_method(r, method);
  dt_status status = DT_OK;
  if (method == DT_METHOD_LOOP_GRAPH) status = capture(r, method, DT_METHOD_LOOP);
  if (method == DT_METHOD_GROUPED_GRAPH) status = capture(r, method, DT_METHOD_GROUPED);
  if (!status) status = dt_combine_run_gemm(r->combine, 0, r->a + c->k, r->b, r->stream);
  cudaError_t error = cudaMemsetAsync(r->packed, 0xff, 2 * (size_t)r->plan->rows * (size_t)c->n, r->stream);
  if (error == cudaSuccess) error = cudaMemsetAsync(buffer, 0xff, bytes, r->stream);
  if (error == cudaSuccess) error = cudaMemsetAsync(r->wrong, 0, sizeof *r->wrong, r->stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(r->stream);
  if (!status) status = dt_cuda_check(error, "poison");
  if (!status) status = dt_comm_barrier(r->comm, "check");
  if (!status) status = run_method(r, method);
  if (!status) status = dt_combine_check(r->combine, r->stream);
  if (status) return status;
  if (method == DT_METHOD_BULK)
    error = cudaMemcpyAsync(r->expected, buffer, bytes, cudaMemcpyDeviceToDevice, r->stream);
  if (error == cudaSuccess) error = dt_bench_compare(buffer, r->expected, bytes, r->wrong, r->stream);
  unsigned long long wrong = 0;
  if (error == cudaSuccess) error = cudaMemcpyAsync(&wrong, r->wrong, sizeof wrong, cudaMemcpyDefault, r->stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(r->stream);
  status = dt_cuda_check(error, "compare");
  r->words_wrong[method] = (int64_t)wrong;
  if (!status) status = dt_comm_barrier(r->comm, "rows"); /* every owner has its rows */
  if (!status) status = sample_error(r, method, &r->error[method]);
  return status ? status : dt_comm_barrier(r->comm, "checked");
}

static dt_status time_method(dt_bench_rank *r, int method, double *seconds) {
  float ms = 0;
  dt_status status = dt_comm_barrier(r->comm, "round");
  if (status) return status;
  cudaError_t error = dt_bench_settle(r->flush, FLUSH_BYTES, r->stream);
  if (error == cudaSuccess)
    error = dt_bench_align(r->rank, r->shared->config->ranks, ++r->round, dt_window_local(r->align), r->align_at,
                           r->expired, r->stream);
  if (error == cudaSuccess) error = cudaEventRecord(r->start, r->stream);
  status = dt_cuda_check(error, "start");
  if (!status) status = run_method(r, method);
  if (status) return status;
  error = cudaEventRecord(r->stop, r->stream);
  if (error == cudaSuccess) error = cudaEventSynchronize(r->stop);
  if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, r->start, r->stop);
  *seconds = 1e-3 * ms;
  return dt_cuda_check(error, "stop");
}

/* Cycles of the SM clock a second, over 3 ms. */
static dt_status read_clock(dt_bench_rank *r, double *hz) {
  uint64_t results[4] = {0}, *memory = NULL;
  cudaError_t error = cudaMalloc((void **)&memory, sizeof results);
  if (error == cudaSuccess) error = dt_clock_launch_kernel(3000000, memory, r->stream);
  if (error == cudaSuccess) error = cudaMemcpyAsync(results, memory, 24, cudaMemcpyDeviceToHost, r->stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(r->stream);
  cudaFree(memory);
  if (error == cudaSuccess && results[1]) *hz = 1e9 * (double)results[0] / (double)results[1];
  return dt_cuda_check(error, "clock");
}

dt_status dt_bench_rank_work(dt_bench_rank *r) {
  /* bulk before those that are compared with it; graphs after what they capture */
  static const int order[DT_METHODS] = {
      DT_METHOD_GEMM,     DT_METHOD_CUBLAS, DT_METHOD_BULK,   DT_METHOD_LOOP,       DT_METHOD_GROUPED,
      DT_METHOD_RESERVED, DT_METHOD_SIGNAL, DT_METHOD_DIRECT, DT_METHOD_LOOP_GRAPH, DT_METHOD_GROUPED_GRAPH};
  const dt_combine_bench_config *c = r->shared->config;
  dt_status status = make_rank(r);
  for (int i = 0; i < DT_METHODS && !status; i++)
    if (dt_bench_wanted(r->shared, order[i]) || order[i] == DT_METHOD_BULK) status = check_method(r, order[i]);
  if (!status && r->rank == 0) status = read_clock(r, &r->shared->result->sm_hz_before);
  for (int32_t round = -c->warm_up; round < c->repeat && !status; round++)
    for (int i = 0; i < DT_METHODS && !status; i++) {
      double seconds;
      if (!dt_bench_wanted(r->shared, order[i])) continue;
      status = time_method(r, order[i], &seconds);
      if (!status && round >= 0) r->samples[order[i]][round] = seconds;
    }
  if (!status) status = dt_combine_check(r->combine, r->stream);
  if (!status && r->rank == 0) status = read_clock(r, &r->shared->result->sm_hz_after);
  uint32_t expired = 0;
  if (!status) status = dt_cuda_check(cudaMemcpy(&expired, r->expired, sizeof expired, cudaMemcpyDefault), "flag");
  if (!status && expired) status = dt_fail(DT_ERR_TIMEOUT, "rank %d: a start was 5 s late", r->rank);
  return status ? status : dt_comm_barrier(r->comm, "end");
}
