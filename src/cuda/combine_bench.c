/* The combine benchmark: a thread a GPU, all methods on the same operands, first checked, then timed in turns. */
#include <draintile/combine.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "combine_bench.h"
#include "comm/fabric.h"
#include "core/error.h"
#include "core/random.h"
#include "core/statistics.h"
#include "driver.h"
#include "probe/burst.h"

enum {
  PERIOD = 8388593, /* of the random values: a prime, so that no two rows or experts hold the same */
  FLUSH_BYTES = 512 << 20,
  CHECKED_ROWS = 48, /* sampled a rank */
  CHECKED_COLUMNS = 32
};

typedef struct bench bench;

/* One rank: its thread, device and memory. */
typedef struct bench_rank {
  bench *shared;
  pthread_t thread;
  int32_t rank;
  dt_comm *control, *comm;
  dt_combine *combine;
  dt_plan *plan;
  dt_peer *peer;
  dt_window *align;
  uint32_t *align_at[DT_BENCH_RANKS], *expired;
  uint32_t round;
  cudaStream_t stream;
  cudaEvent_t start, stop;
  cudaGraphExec_t graphs[DT_METHODS];
  uint16_t *a, *b, *block; /* a holds a row more: shifted by one it is another input */
  uint16_t *packed, *receive, *expected;
  uint8_t *flush;
  unsigned long long *wrong;
  double *samples[DT_METHODS];
  int64_t words_wrong[DT_METHODS];
  double error[DT_METHODS];
  dt_status status;
  char detail[256];
} bench_rank;

struct bench {
  dt_combine_bench *result;
  const dt_combine_bench_config *config;
  int32_t *counts;
  int64_t rows_max, combine_rows_max;
  uint16_t *block; /* host */
  dt_peers *peers;
  bench_rank ranks[DT_BENCH_RANKS];
};

void dt_combine_bench_config_init(dt_combine_bench_config *config) {
  *config = (dt_combine_bench_config){.size = sizeof *config,
                                      .ranks = 2,
                                      .rows = 16384,
                                      .n = 8192,
                                      .k = 2048,
                                      .experts = 8,
                                      .consumers = 16,
                                      .segment_bands = 1,
                                      .repeat = 20,
                                      .warm_up = 3};
}

static int is_baseline(int method) {
  return method == DT_METHOD_LOOP || method == DT_METHOD_GROUPED || method == DT_METHOD_LOOP_GRAPH ||
         method == DT_METHOD_GROUPED_GRAPH;
}

static int any_baseline(const dt_combine_bench_config *config) {
  for (int m = 0; m < DT_METHODS; m++)
    if (config->methods[m] && is_baseline(m)) return 1;
  return 0;
}

static int wanted(const bench *shared, int method) {
  const dt_combine_bench_config *c = shared->config;
  if (method == DT_METHOD_CUBLAS) return any_baseline(c);
  if (method == DT_METHOD_RESERVED) return c->methods[DT_METHOD_SIGNAL];
  return method == DT_METHOD_GEMM || c->methods[method];
}

static int64_t offset_a(int32_t rank) {
  return 1000003LL * (rank + 1);
}
static int64_t offset_b(int32_t rank) {
  return 3000017LL * (rank + 1);
}

static uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
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

static dt_status make_memory(bench_rank *r) {
  const dt_combine_bench_config *c = r->shared->config;
  const size_t n = (size_t)c->n, k = (size_t)c->k, rows = (size_t)r->shared->rows_max;
  const size_t a = (rows + 1) * k, b = (size_t)c->experts * n * k, combine = (size_t)r->shared->combine_rows_max * n;
  dt_status status = allocate((void **)&r->a, 2 * a, "a");
  if (!status) status = allocate((void **)&r->b, 2 * b, "b");
  if (!status) status = allocate((void **)&r->block, 2 * (size_t)PERIOD, "block");
  if (!status) status = allocate((void **)&r->packed, 2 * rows * n, "packed rows");
  if (!status) status = allocate((void **)&r->receive, 2 * combine, "received rows");
  if (!status) status = allocate((void **)&r->expected, 2 * combine, "expected rows");
  if (!status) status = allocate((void **)&r->flush, FLUSH_BYTES, "flush");
  if (!status) status = allocate((void **)&r->wrong, sizeof *r->wrong, "counter");
  if (!status) status = allocate((void **)&r->expired, sizeof *r->expired, "flag");
  if (status) return status;
  cudaError_t error = cudaMemcpy(r->block, r->shared->block, 2 * (size_t)PERIOD, cudaMemcpyHostToDevice);
  if (error == cudaSuccess) error = cudaMemset(r->expired, 0, sizeof *r->expired);
  if (error == cudaSuccess) error = cudaMemset(r->flush, 1, FLUSH_BYTES);
  if (error == cudaSuccess) error = dt_bench_fill(r->a, (int64_t)a, r->block, PERIOD, offset_a(r->rank), r->stream);
  if (error == cudaSuccess) error = dt_bench_fill(r->b, (int64_t)b, r->block, PERIOD, offset_b(r->rank), r->stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(r->stream);
  return dt_cuda_check(error, "operands");
}

static dt_status make_combine(bench_rank *r) {
  const bench *shared = r->shared;
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

static dt_status make_peer(bench_rank *r) {
  const bench *shared = r->shared;
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

static dt_status make_rank(bench_rank *r) {
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

static void release_rank(bench_rank *r) {
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

static dt_status run_method(bench_rank *r, int method) {
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
static dt_status capture(bench_rank *r, int method, int live) {
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
static dt_status sample_error(bench_rank *r, int method, double *worst) {
  const bench *shared = r->shared;
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
    const bench_rank *owner = &shared->ranks[group->owner];
    const uint16_t *buffer = is_baseline(method) ? owner->receive : dt_combine_buffer(owner->combine);
    status = dt_cuda_check(
        cudaMemcpy(row, buffer + (group->dst_row + at - group->row) * n, 2 * (size_t)n, cudaMemcpyDefault), "row");
    double error = 0, norm = 0;
    for (int c = 0; c < CHECKED_COLUMNS; c++) {
      const int64_t column = (int64_t)dt_random_below(&random, (uint64_t)n);
      double sum = 0;
      for (int64_t i = 0; i < k; i++)
        sum += from_bf16(shared->block[(at * k + i + offset_a(r->rank)) % PERIOD]) *
               from_bf16(shared->block[((group->expert * n + column) * k + i + offset_b(r->rank)) % PERIOD]);
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
static dt_status check_method(bench_rank *r, int method) {
  const dt_combine_bench_config *c = r->shared->config;
  const size_t bytes = 2 * (size_t)r->plan->combine_rows * (size_t)c->n;
  void *buffer = is_baseline(method) ? (void *)r->receive : dt_combine_buffer(r->combine);
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

static dt_status time_method(bench_rank *r, int method, double *seconds) {
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
static dt_status read_clock(bench_rank *r, double *hz) {
  uint64_t results[4] = {0}, *memory = NULL;
  cudaError_t error = cudaMalloc((void **)&memory, sizeof results);
  if (error == cudaSuccess) error = dt_clock_launch_kernel(3000000, memory, r->stream);
  if (error == cudaSuccess) error = cudaMemcpyAsync(results, memory, 24, cudaMemcpyDeviceToHost, r->stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(r->stream);
  cudaFree(memory);
  if (error == cudaSuccess && results[1]) *hz = 1e9 * (double)results[0] / (double)results[1];
  return dt_cuda_check(error, "clock");
}

static dt_status work(bench_rank *r) {
  /* bulk before those that are compared with it; graphs after what they capture */
  static const int order[DT_METHODS] = {
      DT_METHOD_GEMM,     DT_METHOD_CUBLAS, DT_METHOD_BULK,   DT_METHOD_LOOP,       DT_METHOD_GROUPED,
      DT_METHOD_RESERVED, DT_METHOD_SIGNAL, DT_METHOD_DIRECT, DT_METHOD_LOOP_GRAPH, DT_METHOD_GROUPED_GRAPH};
  const dt_combine_bench_config *c = r->shared->config;
  dt_status status = make_rank(r);
  for (int i = 0; i < DT_METHODS && !status; i++)
    if (wanted(r->shared, order[i]) || order[i] == DT_METHOD_BULK) status = check_method(r, order[i]);
  if (!status && r->rank == 0) status = read_clock(r, &r->shared->result->sm_hz_before);
  for (int32_t round = -c->warm_up; round < c->repeat && !status; round++)
    for (int i = 0; i < DT_METHODS && !status; i++) {
      double seconds;
      if (!wanted(r->shared, order[i])) continue;
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

static void *run_rank(void *context) {
  bench_rank *r = context;
  r->status = work(r);
  if (r->status) {
    strncpy(r->detail, dt_error_detail(), sizeof r->detail - 1);
    dt_comm *comm = r->comm ? r->comm : r->control;
    if (comm) dt_comm_abort(comm, r->status, r->detail);
  }
  return NULL;
}

static dt_status check_config(const dt_combine_bench_config *c) {
  if (c == NULL || c->size != sizeof *c)
    return dt_fail(DT_ERR_ARGUMENT, "size: not set by dt_combine_bench_config_init; %zu expected", sizeof *c);
  if (c->ranks < 2 || c->ranks > DT_BENCH_RANKS)
    return dt_fail(DT_ERR_ARGUMENT, "ranks: %d; 2 to %d allowed", c->ranks, DT_BENCH_RANKS);
  if (c->rows < 1 || c->rows > 1 << 24) return dt_fail(DT_ERR_ARGUMENT, "rows: %lld; 1 to 2^24", (long long)c->rows);
  if (c->repeat < 1 || c->warm_up < 0)
    return dt_fail(DT_ERR_ARGUMENT, "repeat: %d; at least 1, and warm_up at least 0", c->repeat);
  int devices = dt_cuda_device_count(), reach = 1;
  if (devices < c->ranks) return dt_fail(DT_ERR_NO_DEVICE, "ranks: %d; this machine has %d GPUs", c->ranks, devices);
  for (int32_t r = 0; r < c->ranks; r++)
    for (int32_t p = 0; p < c->ranks; p++) {
      if (p == r) continue;
      dt_status status = dt_cuda_check(cudaDeviceCanAccessPeer(&reach, r, p), "cudaDeviceCanAccessPeer");
      if (status) return status;
      if (!reach) return dt_fail(DT_ERR_UNSUPPORTED, "device %d has no peer access to device %d", r, p);
    }
  return DT_OK;
}

/* Rows of every rank, the largest of which size all buffers. */
static void measure_counts(bench *b) {
  dt_combine_bench *result = b->result;
  const int32_t ranks = b->config->ranks, experts = b->config->experts;
  for (int32_t r = 0; r < ranks; r++) {
    int64_t combine = 0;
    for (int32_t p = 0; p < ranks; p++)
      for (int32_t e = 0; e < experts; e++) {
        const int64_t rows = b->counts[((int64_t)r * ranks + p) * experts + e];
        combine += rows;
        result->rank_rows[p] += rows;
        if (p == r) continue;
        result->sent_rows[p] += rows;
        result->received_rows[r] += rows;
      }
    if (combine > b->combine_rows_max) b->combine_rows_max = combine;
  }
  for (int32_t r = 0; r < ranks; r++)
    if (result->rank_rows[r] > b->rows_max) b->rows_max = result->rank_rows[r];
  for (int32_t g = 0; g < ranks * experts; g++) {
    int64_t rows = 0;
    for (int32_t s = 0; s < ranks; s++) rows += b->counts[(int64_t)s * ranks * experts + g];
    if (rows > result->expert_rows_max) result->expert_rows_max = rows;
  }
}

static dt_status prepare(bench *b) {
  const dt_combine_bench_config *c = b->config;
  const size_t pairs = (size_t)c->ranks * (size_t)c->ranks * (size_t)c->experts;
  b->counts = calloc(pairs, sizeof *b->counts);
  b->block = malloc(2 * (size_t)PERIOD);
  if (!b->counts || !b->block) return dt_fail(DT_ERR_MEMORY, "benchmark: %zu counts", pairs);
  dt_status status = dt_combine_route(c->router, c->seed, c->ranks, c->experts, c->rows, b->counts);
  if (status) return status;
  measure_counts(b);
  dt_random random = {c->seed + 12345};
  for (int i = 0; i < PERIOD; i++) b->block[i] = to_bf16((float)dt_random_normal(&random));
  for (int32_t r = 0; r < c->ranks; r++)
    for (int m = 0; m < DT_METHODS; m++) {
      b->ranks[r].samples[m] = calloc((size_t)c->repeat, sizeof(double));
      if (!b->ranks[r].samples[m]) return dt_fail(DT_ERR_MEMORY, "samples: %d", c->repeat);
      b->ranks[r].words_wrong[m] = -1;
      b->ranks[r].error[m] = NAN;
    }
  if (any_baseline(c)) status = dt_peers_open(c->ranks, &b->peers);
  if (status) return status;
  dt_comm_config comm;
  dt_comm_config_init(&comm);
  comm.entry_timeout_s = 20;
  comm.timeout_s = 20;
  dt_comm *controls[DT_BENCH_RANKS] = {NULL};
  status = dt_comm_create_local(c->ranks, &comm, controls);
  for (int32_t r = 0; r < c->ranks && !status; r++) {
    b->ranks[r].shared = b;
    b->ranks[r].rank = r;
    b->ranks[r].control = controls[r];
  }
  return status;
}

/* The slowest rank of each sample; the worst of each check. A failure that caused the others' is the one to tell. */
static dt_status gather(bench *b) {
  const dt_combine_bench_config *c = b->config;
  const bench_rank *failed = NULL;
  for (int32_t r = 0; r < c->ranks; r++)
    if (b->ranks[r].status && (!failed || failed->status == DT_ERR_PEER)) failed = &b->ranks[r];
  if (failed) return dt_fail(failed->status, "%s", failed->detail);
  for (int m = 0; m < DT_METHODS; m++) {
    dt_combine_timing *t = &b->result->timings[m];
    t->timed = wanted(b, m);
    t->words_wrong = -1;
    t->max_relative_error = NAN;
    if (!t->timed) continue;
    t->samples_s = calloc((size_t)c->repeat, sizeof *t->samples_s);
    if (!t->samples_s) return dt_fail(DT_ERR_MEMORY, "samples: %d", c->repeat);
    for (int32_t r = 0; r < c->ranks; r++) {
      const bench_rank *rank = &b->ranks[r];
      for (int32_t i = 0; i < c->repeat; i++)
        if (rank->samples[m][i] > t->samples_s[i]) t->samples_s[i] = rank->samples[m][i];
      if (rank->words_wrong[m] >= 0) t->words_wrong = (t->words_wrong < 0 ? 0 : t->words_wrong) + rank->words_wrong[m];
      if (r == 0 || isnan(rank->error[m]) || rank->error[m] > t->max_relative_error)
        t->max_relative_error = rank->error[m];
    }
    t->median_s = dt_median(t->samples_s, (size_t)c->repeat);
  }
  if (b->peers) dt_peers_versions(b->peers, b->result->cublas, b->result->nccl, sizeof b->result->nccl);
  struct cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, 0) == cudaSuccess)
    memcpy(b->result->device, properties.name, sizeof b->result->device - 1);
  return DT_OK;
}

static void release(bench *b) {
  for (int32_t r = 0; r < b->config->ranks; r++)
    if (b->ranks[r].shared) release_rank(&b->ranks[r]);
  dt_peers_close(b->peers);
  for (int32_t r = 0; r < b->config->ranks; r++)
    for (int m = 0; m < DT_METHODS; m++) free(b->ranks[r].samples[m]);
  free(b->counts), free(b->block), free(b);
}

dt_status dt_combine_bench_run(const dt_combine_bench_config *config, dt_combine_bench **out) {
  dt_status status = check_config(config);
  if (status) return status;
  bench *b = calloc(1, sizeof *b);
  dt_combine_bench *result = calloc(1, sizeof *result);
  if (!b || !result) {
    free(b), free(result);
    return dt_fail(DT_ERR_MEMORY, "benchmark: %zu bytes", sizeof *b);
  }
  result->config = *config;
  b->result = result;
  b->config = &result->config;
  status = prepare(b);
  int32_t started = 0;
  while (!status && started < config->ranks)
    if (pthread_create(&b->ranks[started].thread, NULL, run_rank, &b->ranks[started]) == 0)
      started++;
    else
      status = dt_fail(DT_ERR_SYSTEM, "pthread_create: rank %d", started);
  if (status && started > 0) dt_comm_abort(b->ranks[started].control, status, "a rank's thread could not start");
  for (int32_t r = 0; r < started; r++) pthread_join(b->ranks[r].thread, NULL);
  if (!status) status = gather(b);
  release(b);
  if (status)
    dt_combine_bench_destroy(result);
  else
    *out = result;
  return status;
}

void dt_combine_bench_destroy(dt_combine_bench *result) {
  if (!result) return;
  for (int m = 0; m < DT_METHODS; m++) free(result->timings[m].samples_s);
  free(result);
}
