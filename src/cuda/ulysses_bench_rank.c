#include "ulysses_bench_rank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/fabric.h"
#include "core/error.h"
#include "core/random.h"
#include "driver.h"

enum {
  CHECKED_MOST = 32,       /* rows of a head, sampled a rank */
  CHECKED_WORK = 100000000 /* multiplications that a rank spends on them, about */
};

/* Element i of a whole tensor is value (i + offset) % period of the block. */
static int64_t offset_of(int tensor) {
  return 1000003LL * (tensor + 1);
}

static double from_bf16(uint16_t value) {
  const uint32_t bits = (uint32_t)value << 16;
  float out;
  memcpy(&out, &bits, sizeof out);
  return out;
}

static dt_status make_inputs(dt_ulysses_bench_rank *r) {
  const dt_attention_config *a = &r->shared->attention;
  const int64_t token = (int64_t)a->heads * a->head_dim;
  dt_status status = DT_OK;
  for (int t = 0; t < 3 && !status; t++) {
    dt_attention_rows runs[2];
    status = dt_attention_rows_in(a, r->shared->config->ranks, r->rank, t > 0, runs);
    if (!status)
      status =
          dt_bench_allocate((void **)&r->inputs[t], 2 * (size_t)((runs[0].rows + runs[1].rows) * token), "operands");
    for (int i = 0; i < 2 && !status; i++)
      status = dt_cuda_check(dt_bench_fill(r->inputs[t] + runs[i].local * token, runs[i].rows * token, r->block,
                                           DT_BENCH_PERIOD, offset_of(t) + runs[i].first * token, r->stream),
                             "operands");
  }
  return status;
}

static dt_status make_memory(dt_ulysses_bench_rank *r) {
  const size_t block = 2 * (size_t)DT_BENCH_PERIOD;
  r->output_bytes = dt_window_bytes(r->ulysses->output, r->rank);
  dt_status status = dt_bench_allocate((void **)&r->block, block, "block");
  if (!status) status = dt_bench_allocate((void **)&r->expected, r->output_bytes, "expected rows");
  if (!status) status = dt_bench_allocate((void **)&r->expected_beside, r->output_bytes, "expected rows");
  if (!status) status = dt_bench_allocate((void **)&r->wrong, sizeof *r->wrong, "counter");
  if (status) return status;
  cudaError_t error = cudaMemcpyAsync(r->block, r->shared->block, block, cudaMemcpyHostToDevice, r->stream);
  status = dt_cuda_check(error, "memory");
  if (!status) status = make_inputs(r);
  return status ? status : dt_cuda_check(cudaStreamSynchronize(r->stream), "operands");
}

static void configure(const dt_ulysses_bench_rank *r, int beside, dt_ulysses_config *config) {
  dt_ulysses_config_init(config);
  config->comm = r->comm;
  config->attention = r->shared->attention;
  config->attention.overlap_in = beside;
  config->senders = r->shared->config->senders;
  config->direct_stores = r->shared->config->direct_stores;
  config->sms = r->sms;
  config->timeout_s = 5;
}

static dt_status make_operators(dt_ulysses_bench_rank *r) {
  dt_ulysses_config config;
  configure(r, 0, &config);
  dt_status status = dt_ulysses_create(&config, &r->ulysses);
  configure(r, 1, &config);
  return status ? status : dt_ulysses_create(&config, &r->beside);
}

static dt_status make_rank(dt_ulysses_bench_rank *r) {
  const int32_t ranks = r->shared->config->ranks, gpus = r->shared->result->gpus;
  int sms = 0;
  dt_status status = dt_bench_rank_open(r->device, &r->control, &r->comm, &r->stream);
  if (!status)
    status = dt_cuda_check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, r->device), "multiprocessors");
  r->sms = ranks > gpus ? sms / ((ranks + gpus - 1) / gpus) : 0;
  if (!status) status = make_operators(r);
  if (!status) status = make_memory(r);
  return status ? status : dt_bench_watch_open(&r->watch, r->comm, r->stream);
}

void dt_ulysses_bench_release(dt_ulysses_bench_rank *r) {
  cudaSetDevice(r->device);
  cudaDeviceSynchronize();
  for (int m = 0; m < DT_ULYSSES_METHODS; m++)
    if (r->graphs[m]) cudaGraphExecDestroy(r->graphs[m]);
  dt_bench_watch_close(&r->watch);
  dt_ulysses_destroy(r->beside);
  dt_ulysses_destroy(r->ulysses);
  for (int t = 0; t < 3; t++) cudaFree(r->inputs[t]);
  cudaFree(r->block), cudaFree(r->expected), cudaFree(r->expected_beside), cudaFree(r->wrong);
  dt_bench_rank_close(r->control, r->comm, r->stream);
}

/* The live method that a graph holds; others: themselves. */
static int live_method(int method) {
  if (method == DT_ULYSSES_METHOD_FUSED_GRAPH) return DT_ULYSSES_METHOD_FUSED;
  return method == DT_ULYSSES_METHOD_WHOLE_GRAPH ? DT_ULYSSES_METHOD_WHOLE : method;
}

static dt_ulysses *operator_of(const dt_ulysses_bench_rank *r, int method) {
  return live_method(method) == DT_ULYSSES_METHOD_WHOLE ? r->beside : r->ulysses;
}

dt_status dt_ulysses_bench_set_serial(dt_ulysses_bench_rank *r, int beside, int serial) {
  dt_ulysses_config config;
  configure(r, beside, &config);
  config.attention.schedule = serial ? DT_ATTENTION_SERIAL : DT_ATTENTION_PIGGYBACK;
  return dt_ulysses_set_schedule(beside ? r->beside : r->ulysses, &config);
}

dt_status dt_ulysses_bench_queue(dt_ulysses_bench_rank *r, int method) {
  static const dt_ulysses_part parts[DT_ULYSSES_METHODS] = {[DT_ULYSSES_METHOD_KERNEL] = DT_ULYSSES_ATTENTION,
                                                            [DT_ULYSSES_METHOD_FUSED] = DT_ULYSSES_FUSED,
                                                            [DT_ULYSSES_METHOD_IN] = DT_ULYSSES_IN};
  if (r->graphs[method]) return dt_cuda_check(cudaGraphLaunch(r->graphs[method], r->stream), "graph");
  return dt_ulysses_run(operator_of(r, method), parts[live_method(method)], r->inputs[0], r->inputs[1], r->inputs[2],
                        r->stream);
}

static dt_status capture(dt_ulysses_bench_rank *r, int method) {
  cudaGraph_t graph = NULL;
  dt_status status =
      dt_cuda_check(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  if (status) return status;
  status = dt_ulysses_bench_queue(r, method);
  const dt_status ended = dt_cuda_check(cudaStreamEndCapture(r->stream, &graph), "cudaStreamEndCapture");
  if (!status) status = ended;
  if (!status) status = dt_cuda_check(cudaGraphInstantiate(&r->graphs[method], graph, 0), "cudaGraphInstantiate");
  if (graph) cudaGraphDestroy(graph);
  return status;
}

/* One row of one head in float64: out[head_dim]. */
static void reference(const dt_ulysses_bench_shared *shared, int64_t row, int32_t head, double *scores, double *out) {
  const dt_attention_config *a = &shared->attention;
  const int64_t token = (int64_t)a->heads * a->head_dim, at = (int64_t)head * a->head_dim;
  const int64_t visible = a->causal ? row + 1 : a->kv_tokens;
  double most = -INFINITY, sum = 0;
  const uint16_t *block = shared->block;
  for (int64_t j = 0; j < visible; j++) {
    int64_t q = (row * token + at + offset_of(0)) % DT_BENCH_PERIOD;
    int64_t k = (j * token + at + offset_of(1)) % DT_BENCH_PERIOD;
    scores[j] = 0;
    for (int32_t d = 0; d < a->head_dim; d++) {
      scores[j] += from_bf16(block[q++]) * from_bf16(block[k++]);
      if (q == DT_BENCH_PERIOD) q = 0;
      if (k == DT_BENCH_PERIOD) k = 0;
    }
    scores[j] /= sqrt((double)a->head_dim);
    if (scores[j] > most) most = scores[j];
  }
  for (int32_t d = 0; d < a->head_dim; d++) out[d] = 0;
  for (int64_t j = 0; j < visible; j++) {
    const double p = exp(scores[j] - most);
    int64_t v = (j * token + at + offset_of(2)) % DT_BENCH_PERIOD;
    sum += p;
    for (int32_t d = 0; d < a->head_dim; d++) {
      out[d] += p * from_bf16(block[v++]);
      if (v == DT_BENCH_PERIOD) v = 0;
    }
  }
  for (int32_t d = 0; d < a->head_dim; d++) out[d] /= sum;
}

/* Sampled rows and heads of this rank's output. */
static dt_status sample_error(dt_ulysses_bench_rank *r, dt_ulysses *ulysses) {
  const dt_attention_config *a = &r->shared->attention;
  const int64_t token = (int64_t)a->heads * a->head_dim;
  dt_attention_rows runs[2];
  if (isnan(r->error)) return DT_OK; /* of the other operator */
  dt_status status = dt_attention_rows_out(a, r->shared->config->ranks, r->rank, runs);
  double *scores = malloc((size_t)a->kv_tokens * sizeof *scores), out[256];
  uint16_t got[256];
  if (!scores) return dt_fail(DT_ERR_MEMORY, "scores: %lld", (long long)a->kv_tokens);
  int64_t samples = CHECKED_WORK / (2 * a->kv_tokens * a->head_dim);
  samples = samples < 4 ? 4 : samples > CHECKED_MOST ? CHECKED_MOST : samples;
  dt_random random = {r->shared->config->seed + 77 + (uint64_t)r->rank};
  for (int64_t s = 0; s < samples && !status; s++) {
    const int64_t local = (int64_t)dt_random_below(&random, (uint64_t)(runs[0].rows + runs[1].rows));
    const dt_attention_rows *run = local < runs[0].rows ? &runs[0] : &runs[1];
    const int32_t head = (int32_t)dt_random_below(&random, (uint64_t)a->heads);
    const uint16_t *from = (const uint16_t *)dt_ulysses_output(ulysses) + local * token + (int64_t)head * a->head_dim;
    status = dt_cuda_check(cudaMemcpy(got, from, 2 * (size_t)a->head_dim, cudaMemcpyDeviceToHost), "row");
    reference(r->shared, run->first + local - run->local, head, scores, out);
    double error = 0, norm = 0;
    for (int32_t d = 0; d < a->head_dim; d++) {
      error += (from_bf16(got[d]) - out[d]) * (from_bf16(got[d]) - out[d]);
      norm += out[d] * out[d];
    }
    const double relative = sqrt(error / norm);
    if (!(relative <= r->error)) r->error = relative;
    if (isnan(r->error)) break;
  }
  free(scores);
  return status;
}

/* From poisoned output, so that rows that are not written, or come too late, show: a method's words against `expected`,
 * which takes them if `first`. */
static dt_status compare(dt_ulysses_bench_rank *r, int method, uint16_t *expected, int first) {
  dt_ulysses *ulysses = expected == r->expected ? r->ulysses : r->beside;
  void *output = dt_ulysses_output(ulysses);
  unsigned long long wrong = 0;
  cudaError_t error = cudaMemsetAsync(output, 0xff, r->output_bytes, r->stream);
  if (error == cudaSuccess) error = cudaMemsetAsync(r->wrong, 0, sizeof *r->wrong, r->stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(r->stream);
  dt_status status = dt_cuda_check(error, "poison");
  if (!status) status = dt_comm_barrier(r->comm, "check");
  if (!status && r->graphs[method]) status = dt_ulysses_bench_queue(r, method);
  if (!status && !r->graphs[method])
    status = dt_ulysses_run(ulysses, method == DT_ULYSSES_METHOD_FUSED ? DT_ULYSSES_FUSED : DT_ULYSSES_WHOLE,
                            r->inputs[0], r->inputs[1], r->inputs[2], r->stream);
  if (!status) status = dt_ulysses_check(ulysses, r->stream);
  if (status) return status;
  if (first) error = cudaMemcpyAsync(expected, output, r->output_bytes, cudaMemcpyDeviceToDevice, r->stream);
  if (error == cudaSuccess) error = dt_bench_compare(output, expected, r->output_bytes, r->wrong, r->stream);
  if (error == cudaSuccess) error = cudaMemcpyAsync(&wrong, r->wrong, sizeof wrong, cudaMemcpyDefault, r->stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(r->stream);
  r->words_wrong[method] = (int64_t)wrong;
  status = dt_cuda_check(error, "compare");
  return status ? status : dt_comm_barrier(r->comm, "checked");
}

/* Each operator's serial run first, then what it is to equal. */
static dt_status check_methods(dt_ulysses_bench_rank *r) {
  const dt_ulysses_bench_config *c = r->shared->config;
  static const int same[] = {DT_ULYSSES_METHOD_FUSED, DT_ULYSSES_METHOD_PIGGYBACK, DT_ULYSSES_METHOD_FUSED_GRAPH};
  static const int beside[] = {DT_ULYSSES_METHOD_WHOLE, DT_ULYSSES_METHOD_WHOLE_GRAPH};
  dt_status status = dt_ulysses_bench_set_serial(r, 0, 1);
  if (!status) status = compare(r, DT_ULYSSES_METHOD_SERIAL, r->expected, 1);
  if (!status) status = sample_error(r, r->ulysses);
  if (!status) status = dt_ulysses_bench_set_serial(r, 0, 0);
  for (size_t i = 0; i < sizeof same / sizeof *same && !status; i++) {
    if (!dt_ulysses_bench_times(c, same[i])) continue;
    if (same[i] == DT_ULYSSES_METHOD_FUSED_GRAPH) status = capture(r, same[i]);
    if (!status) status = compare(r, same[i], r->expected, 0);
  }
  if (!dt_ulysses_bench_times(c, beside[0]) && !dt_ulysses_bench_times(c, beside[1])) return status;
  if (!status) status = dt_ulysses_bench_set_serial(r, 1, 1);
  if (!status) status = compare(r, DT_ULYSSES_METHOD_WHOLE, r->expected_beside, 1);
  if (!status) status = sample_error(r, r->beside);
  if (!status) status = dt_ulysses_bench_set_serial(r, 1, 0);
  for (size_t i = 0; i < sizeof beside / sizeof *beside && !status; i++) {
    if (!dt_ulysses_bench_times(c, beside[i])) continue;
    if (beside[i] == DT_ULYSSES_METHOD_WHOLE_GRAPH) status = capture(r, beside[i]);
    if (!status) status = compare(r, beside[i], r->expected_beside, 0);
  }
  return status;
}

dt_status dt_ulysses_bench_work(dt_ulysses_bench_rank *r) {
  dt_status status = make_rank(r);
  if (!status) status = check_methods(r);
  if (!status && r->rank == 0) status = dt_bench_clock(r->stream, &r->shared->result->sm_hz_before);
  if (!status) status = dt_ulysses_bench_time(r);
  if (!status) status = dt_ulysses_check(r->ulysses, r->stream);
  if (!status) status = dt_ulysses_check(r->beside, r->stream);
  if (!status && r->rank == 0) status = dt_bench_clock(r->stream, &r->shared->result->sm_hz_after);
  if (!status) status = dt_bench_watch_check(&r->watch);
  return status ? status : dt_comm_barrier(r->comm, "end");
}
