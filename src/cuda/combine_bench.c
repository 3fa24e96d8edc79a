/* The combine benchmark: a thread a GPU; for each setting all methods on the same operands, first checked, then timed
 * in turns. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "combine_bench_rank.h"
#include "comm/clock.h"
#include "core/error.h"
#include "core/statistics.h"
#include "driver.h"
#include "tile_gemm.h"

enum { BAND_ROWS = 128 /* what the aligned layout pads groups to a multiple of */ };

static int any_baseline(const dt_combine_bench_config *config) {
  for (int64_t i = 0; i < config->case_count; i++)
    for (int m = 0; m < DT_METHODS; m++)
      if (config->cases[i].methods[m] && (dt_bench_is_baseline(m) || m == DT_METHOD_CUBLAS)) return 1;
  return 0;
}

static dt_status check_devices(const dt_combine_bench_config *config) {
  const int32_t ranks = config->ranks;
  const int devices = dt_cuda_device_count();
  if (devices < 1) return dt_fail(DT_ERR_NO_DEVICE, "ranks: %d; this machine has no GPU", ranks);
  if (devices < ranks && any_baseline(config))
    return dt_fail(DT_ERR_UNSUPPORTED, "methods: of cuBLAS and NCCL, with %d ranks on %d GPUs", ranks, devices);
  return dt_bench_check_peers(devices < ranks ? devices : ranks);
}

static dt_status check_config(const dt_combine_bench_config *c) {
  if (c == NULL || c->size != sizeof *c)
    return dt_fail(DT_ERR_ARGUMENT, "size: not set by dt_combine_bench_config_init; %zu expected", sizeof *c);
  if (c->ranks < 2 || c->ranks > DT_BENCH_RANKS)
    return dt_fail(DT_ERR_ARGUMENT, "ranks: %d; 2 to %d allowed", c->ranks, DT_BENCH_RANKS);
  if (c->repeat < 0 || c->warm_up < 0)
    return dt_fail(DT_ERR_ARGUMENT, "repeat: %d, warm_up: %d; at least 0 allowed", c->repeat, c->warm_up);
  if (c->case_count < 1 || !c->cases)
    return dt_fail(DT_ERR_ARGUMENT, "cases: %lld; at least 1 allowed", (long long)c->case_count);
  for (int64_t i = 0; i < c->case_count; i++) {
    const dt_combine_bench_case *s = &c->cases[i];
    if (s->rows < 2 || s->rows > 1 << 24 || s->rows % 2 != 0)
      return dt_fail(DT_ERR_ARGUMENT, "rows: %lld; an even number from 2 to 2^24 allowed", (long long)s->rows);
    if (s->n < 8 || s->n % 8 != 0 || s->k < 8 || s->k % 8 != 0)
      return dt_fail(DT_ERR_ARGUMENT, "n, k: %lld, %lld; multiples of 8 allowed", (long long)s->n, (long long)s->k);
    if (s->experts < 1 || s->experts > 4000)
      return dt_fail(DT_ERR_ARGUMENT, "experts: %d; 1 to 4000 allowed", s->experts);
  }
  return check_devices(c);
}

static int same_counts(const dt_combine_bench_case *a, const dt_combine_bench_case *b) {
  return a->rows == b->rows && a->experts == b->experts && a->router == b->router && a->seed == b->seed;
}

static int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/* The most that any rank has in a setting. Counts are the same in many settings. */
static dt_status measure(dt_bench *b, int64_t index, int64_t *rows, int64_t *combine_rows) {
  const dt_combine_bench_case *s = &b->config.cases[index];
  const int32_t ranks = b->config.ranks;
  dt_status status = dt_combine_route(s->router, s->seed, ranks, s->experts, s->rows, b->counts);
  for (int32_t r = 0; r < ranks && !status; r++) {
    int64_t own = 0, owned = 0;
    for (int32_t p = 0; p < ranks; p++)
      for (int32_t e = 0; e < s->experts; e++) {
        own += b->counts[((int64_t)p * ranks + r) * s->experts + e];
        owned += b->counts[((int64_t)r * ranks + p) * s->experts + e];
      }
    *rows = larger(*rows, own);
    *combine_rows = larger(*combine_rows, owned);
  }
  return status;
}

static dt_status measure_all(dt_bench *b) {
  dt_bench_sizes *most = &b->sizes;
  for (int64_t i = 0; i < b->config.case_count; i++)
    most->experts = (int32_t)larger(most->experts, b->config.cases[i].experts);
  b->counts = calloc((size_t)b->config.ranks * (size_t)b->config.ranks * (size_t)most->experts, sizeof *b->counts);
  if (!b->counts) return dt_fail(DT_ERR_MEMORY, "counts: %d experts", most->experts);
  int64_t rows = 0, combine_rows = 0;
  for (int64_t i = 0; i < b->config.case_count; i++) {
    const dt_combine_bench_case *s = &b->config.cases[i];
    if (i == 0 || !same_counts(s, s - 1)) {
      rows = combine_rows = 0;
      dt_status status = measure(b, i, &rows, &combine_rows);
      if (status) return status;
    }
    const int64_t padded =
        rows + (s->layout == DT_LAYOUT_ALIGNED ? (int64_t)b->config.ranks * s->experts * (BAND_ROWS - 1) : 0);
    most->rows = larger(most->rows, padded);
    most->combine_rows = larger(most->combine_rows, combine_rows);
    most->a = larger(most->a, (padded + 1) * s->k);
    most->b = larger(most->b, s->experts * s->n * s->k);
    most->out = larger(most->out, padded * s->n);
    most->combine = larger(most->combine, combine_rows * s->n);
  }
  return DT_OK;
}

static dt_status prepare(dt_bench *b) {
  const dt_combine_bench_config *c = &b->config;
  const int devices = dt_cuda_device_count();
  b->result.gpus = devices < c->ranks ? devices : c->ranks;
  dt_status status = dt_bench_values(12345, &b->block);
  if (!status) status = measure_all(b);
  if (status) return status;
  for (int m = 0; m < DT_METHODS; m++) {
    b->samples[m] = calloc((size_t)c->repeat + 1, sizeof(double));
    if (!b->samples[m]) return dt_fail(DT_ERR_MEMORY, "samples: %d", c->repeat);
    for (int32_t r = 0; r < c->ranks; r++) {
      b->ranks[r].samples[m] = calloc((size_t)c->repeat + 1, sizeof(double));
      if (!b->ranks[r].samples[m]) return dt_fail(DT_ERR_MEMORY, "samples: %d", c->repeat);
    }
  }
  if (any_baseline(c)) status = dt_peers_open(c->ranks, &b->peers);
  if (status) return status;
  struct cudaDeviceProp properties;
  status = dt_cuda_check(cudaGetDeviceProperties(&properties, 0), "device");
  if (status) return status;
  memcpy(b->result.device, properties.name, sizeof b->result.device - 1);
  dt_comm_config comm;
  dt_comm_config_init(&comm);
  comm.entry_timeout_s = 30;
  comm.timeout_s = 30;
  dt_comm *controls[DT_BENCH_RANKS] = {NULL};
  status = dt_comm_create_local(c->ranks, &comm, controls);
  for (int32_t r = 0; r < c->ranks && !status; r++) {
    b->ranks[r].shared = b;
    b->ranks[r].rank = r;
    b->ranks[r].device = r % b->result.gpus;
    b->ranks[r].control = controls[r];
  }
  return status;
}

static void release_plans(dt_bench *b) {
  for (int32_t r = 0; r < DT_BENCH_RANKS; r++) {
    dt_plan_destroy(b->plans[r]);
    b->plans[r] = NULL;
  }
}

static void count_rows(dt_bench *b) {
  dt_combine_bench *result = &b->result;
  const int32_t ranks = b->config.ranks, experts = b->setting->experts;
  for (int32_t r = 0; r < ranks; r++)
    for (int32_t p = 0; p < ranks; p++)
      for (int32_t e = 0; e < experts; e++) {
        const int64_t rows = b->counts[((int64_t)r * ranks + p) * experts + e];
        result->rank_rows[p] += rows;
        if (p == r) continue;
        result->sent_rows[p] += rows;
        result->received_rows[r] += rows;
      }
  for (int32_t g = 0; g < ranks * experts; g++) {
    int64_t rows = 0;
    for (int32_t s = 0; s < ranks; s++) rows += b->counts[(int64_t)s * ranks * experts + g];
    result->expert_rows_max = larger(result->expert_rows_max, rows);
  }
}

dt_status dt_bench_begin(dt_bench *b, int64_t index) {
  dt_combine_bench *result = &b->result;
  b->started_s = dt_now_s();
  release_plans(b);
  result->index = index;
  result->setting = b->config.cases[index];
  result->ranks = b->config.ranks;
  result->repeat = b->config.repeat;
  result->sm_hz_before = result->sm_hz_after = 0;
  result->expert_rows_max = 0;
  result->window_s = 0;
  result->producers = 0;
  memset(result->stores, 0, sizeof result->stores);
  memset(result->rank_rows, 0, sizeof result->rank_rows);
  memset(result->sent_rows, 0, sizeof result->sent_rows);
  memset(result->received_rows, 0, sizeof result->received_rows);
  b->setting = &result->setting;
  result->setting.methods[DT_METHOD_GEMM] = 1;
  const dt_combine_bench_case *s = b->setting;
  dt_status status = dt_combine_route(s->router, s->seed, b->config.ranks, s->experts, s->rows, b->counts);
  if (status) return status;
  count_rows(b);
  dt_plan_config plan;
  dt_plan_config_init(&plan);
  plan.ranks = b->config.ranks;
  plan.experts_per_rank = s->experts;
  plan.layout = s->layout;
  for (int32_t r = 0; r < b->config.ranks && !status; r++) {
    plan.rank = r;
    status = dt_plan_create(&plan, b->counts, &b->plans[r]);
    result->padded_rows[r] = status ? 0 : b->plans[r]->padded_rows;
    result->tiles[r] = status ? 0 : b->plans[r]->band_count * ((s->n + DT_TILE_N - 1) / DT_TILE_N);
    for (int m = 0; m < DT_METHODS; m++) {
      b->ranks[r].words_wrong[m] = -1;
      b->ranks[r].error[m] = NAN;
    }
  }
  return status;
}

/* The slowest rank of each sample; the worst of each check. */
void dt_bench_end(dt_bench *b) {
  const dt_combine_bench_config *c = &b->config;
  for (int m = 0; m < DT_METHODS; m++) {
    dt_combine_timing *t = &b->result.timings[m];
    *t = (dt_combine_timing){.done = b->setting->methods[m],
                             .median_s = NAN,
                             .samples_s = b->samples[m],
                             .words_wrong = -1,
                             .max_relative_error = NAN};
    if (!t->done) continue;
    for (int32_t i = 0; i < c->repeat; i++) b->samples[m][i] = 0;
    for (int32_t r = 0; r < c->ranks; r++) {
      const dt_bench_rank *rank = &b->ranks[r];
      for (int32_t i = 0; i < c->repeat; i++)
        if (rank->samples[m][i] > b->samples[m][i]) b->samples[m][i] = rank->samples[m][i];
      if (rank->words_wrong[m] >= 0) t->words_wrong = (t->words_wrong < 0 ? 0 : t->words_wrong) + rank->words_wrong[m];
      if (r == 0 || isnan(rank->error[m]) || rank->error[m] > t->max_relative_error)
        t->max_relative_error = rank->error[m];
    }
    if (c->repeat > 0) t->median_s = dt_median(b->samples[m], (size_t)c->repeat);
  }
  if (b->peers) dt_peers_versions(b->peers, b->result.cublas, b->result.nccl, sizeof b->result.nccl);
  b->result.wall_s = dt_now_s() - b->started_s;
  if (c->done) c->done(c->context, &b->result);
}

static void release(dt_bench *b) {
  for (int32_t r = 0; r < b->config.ranks; r++)
    if (b->ranks[r].shared) dt_bench_rank_release(&b->ranks[r]);
  dt_peers_close(b->peers);
  for (int m = 0; m < DT_METHODS; m++) {
    for (int32_t r = 0; r < b->config.ranks; r++) free(b->ranks[r].samples[m]);
    free(b->samples[m]);
  }
  release_plans(b);
  free(b->counts), free(b->block), free(b);
}

static dt_status work(void *rank) {
  return dt_bench_rank_work(rank);
}

static dt_status run_ranks(dt_bench *b) {
  dt_bench_thread threads[DT_BENCH_RANKS];
  for (int32_t r = 0; r < b->config.ranks; r++) {
    dt_bench_rank *rank = &b->ranks[r];
    threads[r] = (dt_bench_thread){.rank = rank, .work = work, .control = &rank->control, .comm = &rank->comm};
  }
  return dt_bench_threads_run(threads, b->config.ranks);
}

dt_status dt_combine_bench_run(const dt_combine_bench_config *config) {
  dt_status status = check_config(config);
  if (status) return status;
  dt_bench *b = calloc(1, sizeof *b);
  if (!b) return dt_fail(DT_ERR_MEMORY, "benchmark: %zu bytes", sizeof *b);
  b->config = *config;
  status = prepare(b);
  if (!status) status = run_ranks(b);
  release(b);
  return status;
}
