/* The combine benchmark: one rank's memory, its operator, the methods and their times. */
#include "combine_bench_rank.h"

#include <stdlib.h>
#include <string.h>

#include "combine_handle.h"
#include "comm/fabric.h"
#include "core/error.h"
#include "core/random.h"
#include "driver.h"

enum { TOP_K = 2 };

int dt_bench_is_baseline(int method) {
  return method == DT_METHOD_LOOP || method == DT_METHOD_GROUPED || method == DT_METHOD_LOOP_GRAPH ||
         method == DT_METHOD_GROUPED_GRAPH;
}

int64_t dt_bench_offset_a(int32_t rank) {
  return 1000003LL * (rank + 1);
}
int64_t dt_bench_offset_b(int32_t rank) {
  return 3000017LL * (rank + 1);
}

/* For the largest setting. The operands' values depend on the place in memory alone, so they serve every shape. */
static dt_status make_memory(dt_bench_rank *r) {
  const dt_bench_sizes *most = &r->shared->sizes;
  const struct {
    void **pointer;
    int64_t bytes;
    const char *what;
  } table[] = {{(void **)&r->a, 2 * most->a, "a"},
               {(void **)&r->b, 2 * most->b, "b"},
               {(void **)&r->block, 2 * DT_BENCH_PERIOD, "values"},
               {(void **)&r->packed, 2 * most->out, "packed rows"},
               {(void **)&r->receive, 2 * most->combine, "received rows"},
               {(void **)&r->expected, 2 * most->combine, "expected rows"},
               {(void **)&r->wrong, 2 * sizeof *r->wrong, "counters"},
               {(void **)&r->sampled, DT_BENCH_CHECKED_ROWS * sizeof *r->sampled, "samples"},
               {(void **)&r->row_of_slot, 4 * most->combine_rows, "slots"},
               {(void **)&r->weights, 4 * most->combine_rows, "weights"},
               {(void **)&r->own_counts, 4 * (int64_t)r->shared->config.ranks * most->experts, "counts"}};
  dt_status status = DT_OK;
  for (size_t i = 0; i < sizeof table / sizeof *table && !status; i++)
    status = dt_bench_allocate(table[i].pointer, (size_t)table[i].bytes, table[i].what);
  if (status) return status;
  cudaError_t error =
      cudaMemcpyAsync(r->block, r->shared->block, 2 * (size_t)DT_BENCH_PERIOD, cudaMemcpyHostToDevice, r->stream);
  if (error == cudaSuccess)
    error = dt_bench_fill(r->a, most->a, r->block, DT_BENCH_PERIOD, dt_bench_offset_a(r->rank), r->stream);
  if (error == cudaSuccess)
    error = dt_bench_fill(r->b, most->b, r->block, DT_BENCH_PERIOD, dt_bench_offset_b(r->rank), r->stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(r->stream);
  return dt_cuda_check(error, "operands");
}

static dt_status make_rank(dt_bench_rank *r) {
  dt_status status = dt_bench_rank_open(r->device, &r->control, &r->comm, &r->stream);
  if (!status) status = make_memory(r);
  if (!status) status = dt_bench_watch_open(&r->watch, r->comm, r->stream);
  return status;
}

/* The operator of the setting before serves if only the counts differ. */
static int same_combine(const dt_combine_bench_case *a, const dt_combine_bench_case *b) {
  return a->n == b->n && a->k == b->k && a->experts == b->experts && a->consumers == b->consumers &&
         a->segment_bands == b->segment_bands && a->raster_bands == b->raster_bands && a->layout == b->layout &&
         a->order == b->order && a->launch == b->launch && a->entry == b->entry && a->pacing == b->pacing;
}

/* Even budgets for ranks that share a GPU; 0: all. */
static dt_status budget(const dt_bench_rank *r, int32_t *sms) {
  const int32_t ranks = r->shared->config.ranks, gpus = r->shared->result.gpus, together = (ranks + gpus - 1) / gpus;
  int all = 0;
  dt_status status =
      dt_cuda_check(cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, r->device), "multiprocessors");
  *sms = together > 1 ? all / together / 2 * 2 : 0;
  return status;
}

dt_status dt_bench_make_combine(dt_bench_rank *r, int timestamps, dt_combine **combine) {
  const dt_bench *shared = r->shared;
  const dt_combine_bench_case *s = shared->setting;
  dt_combine_config config;
  dt_combine_config_init(&config);
  config.comm = r->comm;
  config.experts_per_rank = s->experts;
  config.n = s->n;
  config.k = s->k;
  config.rows_max = shared->sizes.rows;
  config.combine_rows_max = shared->sizes.combine_rows;
  config.consumers = s->consumers;
  config.segment_bands = s->segment_bands;
  config.raster_bands = s->raster_bands;
  config.layout = s->layout;
  config.order = s->order;
  config.launch = s->launch;
  config.entry = s->entry;
  config.pacing = s->pacing;
  config.timestamps = timestamps;
  config.timeout_s = 5;
  const dt_status status = budget(r, &config.sms);
  return status ? status : dt_combine_create(&config, combine);
}

static dt_status make_combine(dt_bench_rank *r) {
  const dt_bench *shared = r->shared;
  const dt_combine_bench_case *s = shared->setting;
  if (r->combine && !same_combine(s, &r->combine_of)) {
    dt_combine_destroy(r->combine);
    r->combine = NULL;
  }
  if (!r->combine) {
    const dt_status status = dt_bench_make_combine(r, 0, &r->combine);
    if (status) return status;
    r->combine_of = *s;
  }
  return dt_combine_set_counts(r->combine, shared->counts);
}

static dt_status make_peer(dt_bench_rank *r) {
  const dt_bench *shared = r->shared;
  int wanted = shared->setting->methods[DT_METHOD_CUBLAS];
  for (int m = 0; m < DT_METHODS; m++) wanted |= dt_bench_is_baseline(m) && shared->setting->methods[m];
  if (!wanted) return DT_OK;
  const dt_peer_problem problem = {.plan = shared->plans[r->rank],
                                   .counts = shared->counts,
                                   .n = shared->setting->n,
                                   .k = shared->setting->k,
                                   .a = r->a,
                                   .b = r->b,
                                   .packed = r->packed,
                                   .receive = r->receive,
                                   .stream = r->stream};
  dt_status status = dt_peer_create(shared->peers, &problem, &r->peer);
  if (!status) status = dt_peer_warm(r->peer);
  if (!status) status = dt_cuda_check(cudaStreamSynchronize(r->stream), "cuBLAS");
  return status ? status : dt_comm_barrier(r->comm, "cuBLAS");
}

/* A place in the buffer for each token's choices: any permutation costs the same. */
static dt_status make_reduce(dt_bench_rank *r) {
  if (!r->shared->setting->methods[DT_METHOD_REDUCE]) return DT_OK;
  const int64_t rows = r->shared->plans[r->rank]->combine_rows;
  int32_t *at = malloc(4 * (size_t)rows + 4);
  float *weight = malloc(4 * (size_t)rows + 4);
  dt_status status = at && weight ? DT_OK : dt_fail(DT_ERR_MEMORY, "slots: %lld", (long long)rows);
  dt_random random = {r->shared->setting->seed + 99 + (uint64_t)r->rank};
  for (int64_t i = 0; i < rows && !status; i++) {
    const int64_t other = (int64_t)dt_random_below(&random, (uint64_t)i + 1);
    at[i] = at[other];
    at[other] = (int32_t)i;
    weight[i] = (float)dt_random_unit(&random);
  }
  if (!status) status = dt_cuda_check(dt_cuda_write(r->row_of_slot, at, 4 * (size_t)rows), "slots");
  if (!status) status = dt_cuda_check(dt_cuda_write(r->weights, weight, 4 * (size_t)rows), "weights");
  free(at), free(weight);
  return status;
}

/* Graphs are kept: when one is destroyed NCCL gives buffers back within its next call, which may wait for a GPU that
 * waits for this rank. */
static dt_status retire_setting(dt_bench_rank *r) {
  dt_peer_destroy(r->peer);
  r->peer = NULL;
  cudaGraphExec_t *retired = realloc(r->retired, (size_t)(r->retired_count + DT_METHODS) * sizeof *retired);
  if (!retired) return dt_fail(DT_ERR_MEMORY, "graphs: %d", r->retired_count);
  r->retired = retired;
  for (int m = 0; m < DT_METHODS; m++) {
    if (r->graphs[m]) retired[r->retired_count++] = r->graphs[m];
    r->graphs[m] = NULL;
  }
  return DT_OK;
}

void dt_bench_rank_release(dt_bench_rank *r) {
  cudaSetDevice(r->device);
  cudaDeviceSynchronize();
  (void)retire_setting(r); /* what cannot be listed is the driver's to release */
  for (int32_t i = 0; i < r->retired_count; i++) cudaGraphExecDestroy(r->retired[i]);
  free(r->retired);
  dt_bench_watch_close(&r->watch);
  dt_combine_destroy(r->combine);
  cudaFree(r->a), cudaFree(r->b), cudaFree(r->block), cudaFree(r->packed), cudaFree(r->receive), cudaFree(r->expected);
  cudaFree(r->wrong), cudaFree(r->sampled), cudaFree(r->row_of_slot), cudaFree(r->weights), cudaFree(r->own_counts);
  dt_bench_rank_close(r->control, r->comm, r->stream);
}

dt_status dt_bench_run_method(dt_bench_rank *r, int method) {
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
  case DT_METHOD_REDUCE:
    return dt_combine_reduce(r->combine, r->weights, r->row_of_slot, r->shared->plans[r->rank]->combine_rows / TOP_K,
                             TOP_K, r->packed, r->stream);
  case DT_METHOD_EXCHANGE:
  case DT_METHOD_COUNTS:
    return dt_combine_run_counts(r->combine, method == DT_METHOD_COUNTS, r->stream);
  default:
    return dt_cuda_check(cudaGraphLaunch(r->graphs[method], r->stream), "graph");
  }
}

dt_status dt_bench_time_method(dt_bench_rank *r, int method, double *seconds) {
  dt_status status = dt_comm_barrier(r->comm, "round");
  if (!status) status = dt_bench_watch_start(&r->watch, 1);
  if (!status) status = dt_bench_run_method(r, method);
  return status ? status : dt_bench_watch_stop(&r->watch, seconds);
}

/* bulk before those that are compared with it; graphs after what they capture. */
static const int order[] = {DT_METHOD_GEMM,       DT_METHOD_CUBLAS,        DT_METHOD_BULK,   DT_METHOD_LOOP,
                            DT_METHOD_GROUPED,    DT_METHOD_RESERVED,      DT_METHOD_SIGNAL, DT_METHOD_DIRECT,
                            DT_METHOD_LOOP_GRAPH, DT_METHOD_GROUPED_GRAPH, DT_METHOD_REDUCE};
enum { IN_TURNS = sizeof order / sizeof *order };

static dt_status time_all(dt_bench_rank *r) {
  const dt_bench *shared = r->shared;
  dt_status status = DT_OK;
  if (r->rank == 0) status = dt_bench_clock(r->stream, &r->shared->result.sm_hz_before);
  for (int32_t round = -shared->config.warm_up; round < shared->config.repeat && !status; round++)
    for (int i = 0; i < IN_TURNS && !status; i++) {
      double seconds;
      if (!shared->setting->methods[order[i]]) continue;
      status = dt_bench_time_method(r, order[i], &seconds);
      if (!status && round >= 0) r->samples[order[i]][round] = seconds;
    }
  if (!status && r->rank == 0) status = dt_bench_clock(r->stream, &r->shared->result.sm_hz_after);
  return status ? status : dt_bench_watch_check(&r->watch);
}

static dt_status run_setting(dt_bench_rank *r) {
  const dt_combine_bench_case *s = r->shared->setting;
  dt_status status = make_combine(r);
  if (!status) status = make_peer(r);
  if (!status) status = make_reduce(r);
  if (!status) status = dt_bench_choose_samples(r);
  /* From here on nobody allocates: that would wait for kernels that wait for this rank where ranks share a GPU. */
  if (!status) status = dt_comm_barrier(r->comm, "made");
  for (int i = 0; i < IN_TURNS && !status; i++) {
    const int compared = order[i] == DT_METHOD_BULK && (s->methods[DT_METHOD_SIGNAL] || s->methods[DT_METHOD_DIRECT]);
    if (s->methods[order[i]] || compared) status = dt_bench_check_method(r, order[i]);
  }
  if (!status && r->shared->config.repeat > 0) status = time_all(r);
  if (!status) status = dt_combine_check(r->combine, r->stream);
  if (!status && r->shared->config.window_s > 0 && s->methods[DT_METHOD_DIRECT]) status = dt_bench_count_stores(r);
  if (!status && (s->methods[DT_METHOD_EXCHANGE] || s->methods[DT_METHOD_COUNTS])) status = dt_bench_time_counts(r);
  return status ? status : retire_setting(r);
}

dt_status dt_bench_rank_work(dt_bench_rank *r) {
  dt_status status = make_rank(r);
  for (int64_t i = 0; i < r->shared->config.case_count && !status; i++) {
    if (r->rank == 0) status = dt_bench_begin(r->shared, i);
    if (!status) status = dt_comm_barrier(r->comm, "setting");
    if (!status) status = run_setting(r);
    if (!status) status = dt_comm_barrier(r->comm, "end of setting");
    if (!status && r->rank == 0) dt_bench_end(r->shared);
  }
  return status ? status : dt_comm_barrier(r->comm, "end");
}
