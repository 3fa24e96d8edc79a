/* The Ulysses benchmark: what all ranks share, their threads, and what comes of them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/statistics.h"
#include "driver.h"
#include "ulysses_bench_rank.h"

static dt_status check_config(const dt_ulysses_bench_config *c) {
  if (c == NULL || c->size != sizeof *c)
    return dt_fail(DT_ERR_ARGUMENT, "size: not set by dt_ulysses_bench_config_init; %zu expected", sizeof *c);
  if (c->ranks < 1 || c->ranks > DT_BENCH_RANKS)
    return dt_fail(DT_ERR_ARGUMENT, "ranks: %d; 1 to %d allowed", c->ranks, DT_BENCH_RANKS);
  if (c->repeat < 1 || c->warm_up < 0)
    return dt_fail(DT_ERR_ARGUMENT, "repeat: %d; at least 1, and warm_up at least 0", c->repeat);
  const int devices = dt_cuda_device_count();
  if (devices < 1) return dt_fail(DT_ERR_NO_DEVICE, "ranks: %d; this machine has no GPU", c->ranks);
  return dt_bench_check_peers(devices < c->ranks ? devices : c->ranks);
}

static void describe(dt_ulysses_bench_shared *b) {
  const dt_ulysses_bench_config *c = b->config;
  dt_attention_config_init(&b->attention);
  b->attention.dtype = DT_DTYPE_BF16;
  b->attention.tokens = b->attention.kv_tokens = c->shape.image_tokens + c->shape.text_tokens;
  b->attention.text_tokens = c->shape.text_tokens;
  b->attention.heads = b->attention.kv_heads = c->shape.heads;
  b->attention.head_dim = c->shape.head_dim;
  b->attention.causal = c->causal;
}

static dt_status prepare(dt_ulysses_bench_shared *b) {
  const dt_ulysses_bench_config *c = b->config;
  describe(b);
  b->repeat = c->repeat;
  const int devices = dt_cuda_device_count();
  b->result->gpus = devices < c->ranks ? devices : c->ranks;
  dt_status status = dt_bench_values(c->seed + 12345, &b->block);
  if (status) return status;
  for (int32_t r = 0; r < c->ranks; r++)
    for (int m = 0; m < DT_ULYSSES_METHODS; m++) b->ranks[r].words_wrong[m] = -1;
  dt_comm_config comm;
  dt_comm_config_init(&comm);
  comm.entry_timeout_s = comm.timeout_s = 60;
  dt_comm *controls[DT_BENCH_RANKS] = {NULL};
  status = dt_comm_create_local(c->ranks, &comm, controls);
  for (int32_t r = 0; r < c->ranks && !status; r++) {
    b->ranks[r].shared = b;
    b->ranks[r].rank = r;
    b->ranks[r].device = r % b->result->gpus;
    b->ranks[r].control = controls[r];
  }
  return status;
}

/* What the rank with most of it computes and sends. */
static void count(dt_ulysses_bench_shared *b) {
  const dt_attention_config *a = &b->attention;
  dt_ulysses_bench *result = b->result;
  for (int32_t r = 0; r < b->config->ranks; r++) {
    const dt_ulysses_layout *l = &b->ranks[r].ulysses->layout;
    const int64_t heads = dt_ulysses_head_count(l, r), others = a->heads - heads;
    const int64_t owned = dt_ulysses_owned_rows(l, a->tokens, r);
    const double pairs = (double)a->tokens * (a->causal ? 0.5 * (double)(a->tokens + 1) : (double)a->kv_tokens);
    result->flops = fmax(result->flops, 4 * pairs * (double)heads * a->head_dim);
    const int64_t in = 6 * owned * others * a->head_dim, out = 2 * (a->tokens - owned) * heads * a->head_dim;
    if (in > result->in_bytes) result->in_bytes = in;
    if (out > result->out_bytes) result->out_bytes = out;
    const uint64_t bytes = dt_ulysses_device_bytes(b->ranks[r].beside);
    if (bytes > result->device_bytes) result->device_bytes = bytes;
  }
}

/* The slowest rank of each sample. method below 0: the kernel's while links sleep. */
static dt_status take_samples(const dt_ulysses_bench_shared *b, int method, dt_ulysses_timing *timing) {
  timing->samples_s = calloc((size_t)b->repeat, sizeof *timing->samples_s);
  if (!timing->samples_s) return dt_fail(DT_ERR_MEMORY, "samples: %d", b->repeat);
  for (int32_t r = 0; r < b->config->ranks; r++) {
    const double *samples = method < 0 ? b->ranks[r].asleep : b->ranks[r].samples[method];
    for (int32_t i = 0; i < b->repeat; i++) timing->samples_s[i] = fmax(timing->samples_s[i], samples[i]);
  }
  timing->median_s = dt_median(timing->samples_s, (size_t)b->repeat);
  return DT_OK;
}

/* Also the worst of each check. */
static dt_status gather(dt_ulysses_bench_shared *b) {
  const dt_ulysses_bench_config *c = b->config;
  dt_ulysses_bench *result = b->result;
  count(b);
  result->config.repeat = b->repeat;
  result->sms = b->ranks[0].ulysses->sms;
  result->tile_rows = dt_ulysses_tile_rows(b->ranks[0].ulysses);
  for (int32_t r = 0; r < c->ranks; r++)
    if (r == 0 || isnan(b->ranks[r].error) || b->ranks[r].error > result->max_relative_error)
      result->max_relative_error = b->ranks[r].error;
  for (int m = 0; m < DT_ULYSSES_METHODS; m++) {
    dt_ulysses_timing *t = &result->timings[m];
    t->words_wrong = -1;
    t->median_s = NAN;
    if (!dt_ulysses_bench_times(c, m)) continue;
    const dt_status status = take_samples(b, m, t);
    if (status) return status;
    for (int32_t r = 0; r < c->ranks; r++) {
      const int64_t wrong = b->ranks[r].words_wrong[m];
      if (wrong >= 0) t->words_wrong = (t->words_wrong < 0 ? 0 : t->words_wrong) + wrong;
    }
  }
  result->kernel_asleep = (dt_ulysses_timing){.median_s = NAN, .words_wrong = -1};
  if (b->in_blocks && dt_ulysses_bench_times(c, DT_ULYSSES_METHOD_KERNEL)) {
    const dt_status status = take_samples(b, -1, &result->kernel_asleep);
    if (status) return status;
  }
  struct cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, 0) == cudaSuccess)
    memcpy(result->device, properties.name, sizeof result->device - 1);
  return DT_OK;
}

static void release(dt_ulysses_bench_shared *b) {
  for (int32_t r = 0; r < b->config->ranks; r++)
    if (b->ranks[r].shared) dt_ulysses_bench_release(&b->ranks[r]);
  for (int32_t r = 0; r < b->config->ranks; r++)
    for (int m = 0; m < DT_ULYSSES_METHODS; m++) free(b->ranks[r].samples[m]);
  for (int32_t r = 0; r < b->config->ranks; r++) free(b->ranks[r].asleep);
  free(b->block), free(b);
}

static dt_status work(void *rank) {
  return dt_ulysses_bench_work(rank);
}

static dt_status run_ranks(dt_ulysses_bench_shared *b) {
  dt_bench_thread threads[DT_BENCH_RANKS];
  for (int32_t r = 0; r < b->config->ranks; r++) {
    dt_ulysses_bench_rank *rank = &b->ranks[r];
    threads[r] = (dt_bench_thread){.rank = rank, .work = work, .control = &rank->control, .comm = &rank->comm};
  }
  return dt_bench_threads_run(threads, b->config->ranks);
}

dt_status dt_ulysses_bench_run(const dt_ulysses_bench_config *config, dt_ulysses_bench **out) {
  dt_status status = check_config(config);
  if (status) return status;
  dt_ulysses_bench_shared *b = calloc(1, sizeof *b);
  dt_ulysses_bench *result = calloc(1, sizeof *result);
  if (!b || !result) {
    free(b), free(result);
    return dt_fail(DT_ERR_MEMORY, "benchmark: %zu bytes", sizeof *b);
  }
  b->result = result;
  result->config = *config;
  b->config = config;
  status = prepare(b);
  if (!status) status = run_ranks(b);
  if (!status) status = gather(b);
  release(b);
  if (status)
    dt_ulysses_bench_destroy(result);
  else
    *out = result;
  return status;
}

void dt_ulysses_bench_destroy(dt_ulysses_bench *bench) {
  if (!bench) return;
  for (int m = 0; m < DT_ULYSSES_METHODS; m++) free(bench->timings[m].samples_s);
  free(bench->kernel_asleep.samples_s);
  free(bench);
}
