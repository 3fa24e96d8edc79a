/* The combine benchmark: a thread a GPU, all methods on the same operands, first checked, then timed in turns. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "combine_bench_rank.h"
#include "core/error.h"
#include "core/random.h"
#include "core/statistics.h"
#include "driver.h"

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

static int any_baseline(const dt_combine_bench_config *config) {
  for (int m = 0; m < DT_METHODS; m++)
    if (config->methods[m] && dt_bench_is_baseline(m)) return 1;
  return 0;
}

int dt_bench_wanted(const dt_bench *shared, int method) {
  const dt_combine_bench_config *c = shared->config;
  if (method == DT_METHOD_CUBLAS) return any_baseline(c);
  if (method == DT_METHOD_RESERVED) return c->methods[DT_METHOD_SIGNAL];
  return method == DT_METHOD_GEMM || c->methods[method];
}

static uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static void *run_rank(void *context) {
  dt_bench_rank *r = context;
  r->status = dt_bench_rank_work(r);
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
static void measure_counts(dt_bench *b) {
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

static dt_status prepare(dt_bench *b) {
  const dt_combine_bench_config *c = b->config;
  const size_t pairs = (size_t)c->ranks * (size_t)c->ranks * (size_t)c->experts;
  b->counts = calloc(pairs, sizeof *b->counts);
  b->block = malloc(2 * (size_t)DT_BENCH_PERIOD);
  if (!b->counts || !b->block) return dt_fail(DT_ERR_MEMORY, "benchmark: %zu counts", pairs);
  dt_status status = dt_combine_route(c->router, c->seed, c->ranks, c->experts, c->rows, b->counts);
  if (status) return status;
  measure_counts(b);
  dt_random random = {c->seed + 12345};
  for (int i = 0; i < DT_BENCH_PERIOD; i++) b->block[i] = to_bf16((float)dt_random_normal(&random));
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
static dt_status gather(dt_bench *b) {
  const dt_combine_bench_config *c = b->config;
  const dt_bench_rank *failed = NULL;
  for (int32_t r = 0; r < c->ranks; r++)
    if (b->ranks[r].status && (!failed || failed->status == DT_ERR_PEER)) failed = &b->ranks[r];
  if (failed) return dt_fail(failed->status, "%s", failed->detail);
  for (int m = 0; m < DT_METHODS; m++) {
    dt_combine_timing *t = &b->result->timings[m];
    t->timed = dt_bench_wanted(b, m);
    t->words_wrong = -1;
    t->max_relative_error = NAN;
    if (!t->timed) continue;
    t->samples_s = calloc((size_t)c->repeat, sizeof *t->samples_s);
    if (!t->samples_s) return dt_fail(DT_ERR_MEMORY, "samples: %d", c->repeat);
    for (int32_t r = 0; r < c->ranks; r++) {
      const dt_bench_rank *rank = &b->ranks[r];
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

static void release(dt_bench *b) {
  for (int32_t r = 0; r < b->config->ranks; r++)
    if (b->ranks[r].shared) dt_bench_rank_release(&b->ranks[r]);
  dt_peers_close(b->peers);
  for (int32_t r = 0; r < b->config->ranks; r++)
    for (int m = 0; m < DT_METHODS; m++) free(b->ranks[r].samples[m]);
  free(b->counts), free(b->block), free(b);
}

dt_status dt_combine_bench_run(const dt_combine_bench_config *config, dt_combine_bench **out) {
  dt_status status = check_config(config);
  if (status) return status;
  dt_bench *b = calloc(1, sizeof *b);
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
