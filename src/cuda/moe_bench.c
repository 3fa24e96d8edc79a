/* The layer benchmark: a thread a GPU; a model stays, its rows come and go. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/random.h"
#include "core/statistics.h"
#include "driver.h"
#include "moe_bench_rank.h"

static dt_status check_config(const dt_moe_bench_config *c) {
  if (c == NULL || c->size != sizeof *c)
    return dt_fail(DT_ERR_ARGUMENT, "size: not set by dt_moe_bench_config_init; %zu expected", sizeof *c);
  if (c->ranks < 1 || c->ranks > DT_BENCH_RANKS)
    return dt_fail(DT_ERR_ARGUMENT, "ranks: %d; 1 to %d allowed", c->ranks, DT_BENCH_RANKS);
  if (c->shape.experts < 1 || c->shape.experts % c->ranks)
    return dt_fail(DT_ERR_ARGUMENT, "experts: %d; a multiple of the %d ranks", c->shape.experts, c->ranks);
  if (c->max_tokens < 1 || c->max_tokens > 1 << 20)
    return dt_fail(DT_ERR_ARGUMENT, "max_tokens: %lld; 1 to 2^20 allowed", (long long)c->max_tokens);
  if (c->repeat < 1 || c->warm_up < 0)
    return dt_fail(DT_ERR_ARGUMENT, "repeat: %d; at least 1, and warm_up at least 0", c->repeat);
  if (c->checked_tokens < 1 || c->checked_tokens > DT_MOE_BENCH_SAMPLED)
    return dt_fail(DT_ERR_ARGUMENT, "checked_tokens: %d; 1 to %d allowed", c->checked_tokens, DT_MOE_BENCH_SAMPLED);
  const int devices = dt_cuda_device_count();
  if (devices < c->ranks) return dt_fail(DT_ERR_NO_DEVICE, "ranks: %d; this machine has %d GPUs", c->ranks, devices);
  return DT_OK;
}

static dt_status open_rank(void *rank) {
  return dt_moe_bench_rank_open(rank);
}

static dt_status run_rank(void *rank) {
  return dt_moe_bench_rank_run(rank);
}

static dt_status close_rank(void *rank) {
  return dt_moe_bench_rank_close(rank);
}

static dt_status run_all(dt_moe_bench *b, dt_status (*work)(void *rank)) {
  dt_bench_thread threads[DT_BENCH_RANKS];
  for (int32_t r = 0; r < b->config.ranks; r++) {
    dt_moe_bench_rank *rank = &b->ranks[r];
    threads[r] = (dt_bench_thread){.rank = rank, .work = work, .control = &rank->control, .comm = &rank->comm};
  }
  return dt_bench_threads_run(threads, b->config.ranks);
}

void dt_moe_bench_close(dt_moe_bench *b) {
  if (!b) return;
  char detail[256];
  strncpy(detail, dt_error_detail(), sizeof detail - 1); /* what failed before matters more */
  detail[sizeof detail - 1] = 0;
  if (b->ranks[0].shared && run_all(b, close_rank) == DT_OK) dt_set_detail("%s", detail);
  free(b->ids), free(b->weights), free(b);
}

dt_status dt_moe_bench_open(const dt_moe_bench_config *config, dt_moe_bench **out) {
  dt_status status = check_config(config);
  if (status) return status;
  dt_moe_bench *b = calloc(1, sizeof *b);
  if (!b) return dt_fail(DT_ERR_MEMORY, "benchmark: %zu bytes", sizeof *b);
  b->config = *config;
  const size_t slots = (size_t)config->ranks * (size_t)config->max_tokens * (size_t)config->shape.top_k;
  b->ids = malloc(slots * sizeof *b->ids);
  b->weights = malloc(slots * sizeof *b->weights);
  if (!b->ids || !b->weights) status = dt_fail(DT_ERR_MEMORY, "routing: %zu choices", slots);
  dt_comm_config comm;
  dt_comm_config_init(&comm);
  comm.entry_timeout_s = 60;
  comm.timeout_s = 60;
  dt_comm *controls[DT_BENCH_RANKS] = {NULL};
  if (!status) status = dt_comm_create_local(config->ranks, &comm, controls);
  for (int32_t r = 0; r < config->ranks && !status; r++)
    b->ranks[r] = (dt_moe_bench_rank){.shared = b, .rank = r, .control = controls[r]};
  if (!status) status = run_all(b, open_rank);
  if (status)
    dt_moe_bench_close(b);
  else
    *out = b;
  return status;
}

/* Routing of the row, what follows from its counts, and the tokens to check: the first, the last and random ones. */
static dt_status prepare(dt_moe_bench *b, const dt_moe_bench_row *row, dt_moe_bench_result *result) {
  const dt_moe_bench_config *c = &b->config;
  const int32_t ranks = c->ranks, experts = c->shape.experts, top_k = c->shape.top_k, per_rank = experts / ranks;
  dt_status status = dt_moe_route(row->router, c->seed, ranks, experts, top_k, row->tokens, b->ids, b->weights);
  if (status) return status;
  result->counts = calloc((size_t)ranks * (size_t)experts, sizeof *result->counts);
  if (!result->counts) return dt_fail(DT_ERR_MEMORY, "counts: %d", ranks * experts);
  for (int32_t s = 0; s < ranks; s++)
    for (int64_t t = 0; t < row->tokens; t++) {
      int to[DT_BENCH_RANKS] = {0};
      for (int32_t k = 0; k < top_k; k++) {
        const int32_t id = b->ids[(s * row->tokens + t) * top_k + k];
        result->counts[s * experts + id]++;
        to[id / per_rank] = 1;
      }
      for (int32_t p = 0; p < ranks; p++) result->dispatch_rows[s] += p != s && to[p];
    }
  for (int32_t g = 0; g < experts; g++) {
    int64_t rows = 0, sent = 0;
    for (int32_t s = 0; s < ranks; s++) {
      rows += result->counts[s * experts + g];
      sent += s == g / per_rank ? 0 : result->counts[s * experts + g];
    }
    result->rank_rows[g / per_rank] += rows;
    result->sent_rows[g / per_rank] += sent;
    result->touched_experts[g / per_rank] += rows > 0;
  }
  dt_random random = {c->seed + 77};
  b->samples = row->tokens < c->checked_tokens ? (int32_t)row->tokens : c->checked_tokens;
  for (int32_t s = 0; s < ranks; s++)
    for (int32_t i = 0; i < b->samples; i++)
      b->sample[s][i] = i == 0   ? 0
                        : i == 1 ? (int32_t)row->tokens - 1
                                 : (int32_t)dt_random_below(&random, (uint64_t)row->tokens);
  return DT_OK;
}

static dt_status make_seen(dt_moe_bench *b) {
  const size_t methods = (size_t)b->row->method_count, repeat = (size_t)b->config.repeat;
  for (int32_t r = 0; r < b->config.ranks; r++) {
    b->ranks[r].seen = calloc(methods, sizeof *b->ranks[r].seen);
    if (!b->ranks[r].seen) return dt_fail(DT_ERR_MEMORY, "samples: %zu", methods);
    for (size_t m = 0; m < methods; m++) {
      dt_moe_bench_seen *seen = &b->ranks[r].seen[m];
      seen->words_wrong = -1;
      seen->error = NAN;
      seen->samples = calloc(2 * repeat, sizeof *seen->samples);
      if (!seen->samples) return dt_fail(DT_ERR_MEMORY, "samples: %zu", repeat);
      seen->issues = seen->samples + repeat;
    }
  }
  return DT_OK;
}

static void free_seen(dt_moe_bench *b) {
  for (int32_t r = 0; r < b->config.ranks; r++) {
    for (int32_t m = 0; b->ranks[r].seen && m < b->row->method_count; m++) free(b->ranks[r].seen[m].samples);
    free(b->ranks[r].seen);
    b->ranks[r].seen = NULL;
  }
}

static uint64_t larger(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

/* The slowest rank of each sample, the worst of each check. */
static dt_status gather_method(const dt_moe_bench *b, int32_t m, dt_moe_bench_timing *t) {
  const int32_t repeat = b->config.repeat;
  *t = (dt_moe_bench_timing){.words_wrong = -1, .max_relative_error = NAN, .host_issue_s = NAN};
  t->samples_s = calloc((size_t)repeat, sizeof *t->samples_s);
  if (!t->samples_s) return dt_fail(DT_ERR_MEMORY, "samples: %d", repeat);
  for (int32_t r = 0; r < b->config.ranks; r++) {
    const dt_moe_bench_seen *seen = &b->ranks[r].seen[m];
    for (int32_t i = 0; i < repeat; i++)
      if (seen->samples[i] > t->samples_s[i]) t->samples_s[i] = seen->samples[i];
    const int32_t part = b->row->methods[m].part;
    if (part >= 0 && part != DT_CUDA_MOE_IN_PLACE) continue;
    t->words_wrong = (r == 0 ? 0 : t->words_wrong) + seen->words_wrong;
    if (part >= 0) continue;
    if (r == 0 || isnan(seen->error) || seen->error > t->max_relative_error) t->max_relative_error = seen->error;
    t->dispatch_bytes = larger(t->dispatch_bytes, seen->stats.dispatch_bytes);
    t->combine_bytes = larger(t->combine_bytes, seen->stats.combine_bytes);
    if (b->row->methods[m].graph) continue;
    const double issue_s = dt_median(seen->issues, (size_t)repeat);
    if (r == 0 || issue_s > t->host_issue_s) t->host_issue_s = issue_s;
  }
  t->median_s = dt_median(t->samples_s, (size_t)repeat);
  return DT_OK;
}

static dt_status gather(const dt_moe_bench *b, dt_moe_bench_result *result) {
  const dt_moe_bench_config *c = &b->config;
  result->timings = calloc((size_t)b->row->method_count, sizeof *result->timings);
  if (!result->timings) return dt_fail(DT_ERR_MEMORY, "timings: %d", b->row->method_count);
  result->method_count = b->row->method_count;
  for (int32_t m = 0; m < b->row->method_count; m++) {
    const dt_status status = gather_method(b, m, &result->timings[m]);
    if (status) return status;
  }
  for (int32_t r = 0; r < c->ranks; r++)
    result->device_bytes = larger(result->device_bytes, dt_cuda_moe_device_bytes(b->ranks[r].moe));
  result->weight_bytes =
      6 * (uint64_t)(c->shape.experts / c->ranks) * (uint64_t)c->shape.hidden * (uint64_t)c->shape.intermediate;
  struct cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, 0) == cudaSuccess)
    memcpy(result->device, properties.name, sizeof result->device - 1);
  return DT_OK;
}

static dt_status check_row(const dt_moe_bench *b, const dt_moe_bench_row *row) {
  if (row->tokens < 0 || row->tokens > b->config.max_tokens)
    return dt_fail(DT_ERR_ARGUMENT, "tokens: %lld; 0 to max_tokens, %lld", (long long)row->tokens,
                   (long long)b->config.max_tokens);
  if (row->method_count < 1 || row->methods[0].part >= 0)
    return dt_fail(DT_ERR_ARGUMENT, "methods: the first must be a schedule of the layer");
  return DT_OK;
}

dt_status dt_moe_bench_run(dt_moe_bench *b, const dt_moe_bench_row *row, dt_moe_bench_result *out) {
  dt_status status = check_row(b, row);
  if (status) return status;
  dt_moe_bench_result result = {.method_count = 0};
  b->row = row;
  b->result = &result;
  status = prepare(b, row, &result);
  if (!status) status = make_seen(b);
  if (!status) status = run_all(b, run_rank);
  if (!status) status = gather(b, &result);
  free_seen(b);
  if (status)
    dt_moe_bench_result_free(&result);
  else
    *out = result;
  return status;
}

void dt_moe_bench_result_free(dt_moe_bench_result *result) {
  for (int32_t m = 0; result->timings && m < result->method_count; m++) free(result->timings[m].samples_s);
  free(result->timings), free(result->counts);
  *result = (dt_moe_bench_result){.method_count = 0};
}
