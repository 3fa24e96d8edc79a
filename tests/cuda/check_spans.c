/* Checks the spans of the MoE layer on GPUs: the outputs are those of a layer without timestamps, to the bit; every
 * tile of the table has one span, and every L2 tile one of its stores, of as many rows as the plan has; spans lie
 * inside the forward on the host's clock, and stages follow each other; a recorder that is too small says what it lost
 * and keeps the rest whole. Ranks are threads, on one GPU or two. Exit code 77 without a Hopper GPU.
 */
#include <draintile/cuda_moe.h>

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/random.h"
#include "cuda/driver.h"
#include "cuda/moe_handle.h"
#include "support_gpus.h"

enum { RANKS_MAX = 2, SLACK_NS = 30000 /* of two clocks, and of a launch that the host has not seen end */ };

typedef struct shape {
  int32_t ranks;
  int64_t hidden, intermediate;
  int32_t experts, top_k;
  int64_t tokens;
} shape;
static const shape shapes[] = {
    {1, 256, 128, 4, 2, 300}, {1, 2048, 768, 16, 8, 2048}, {2, 520, 200, 3, 3, 500}, {2, 2048, 768, 16, 8, 1500}};
static const dt_schedule schedules[] = {DT_SCHEDULE_SERIAL, DT_SCHEDULE_SIGNAL,     DT_SCHEDULE_DIRECT,
                                        DT_SCHEDULE_WAVE,   DT_SCHEDULE_INTERLEAVE, DT_SCHEDULE_ALTERNATE};

typedef struct rank {
  pthread_t thread;
  int32_t rank, device, sms, failed;
  const shape *shape;
  dt_comm *control, *comm;
  cudaStream_t stream;
  dt_cuda_moe_input input;
  uint16_t *expected, *output; /* host */
  uint64_t begin_ns, end_ns;   /* of the forward, on the host's clock */
} rank;

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void fail(rank *r, const char *what, long long seen, long long expected) {
  printf("FAIL rank %d: %s: %lld; %lld expected\n", r->rank, what, seen, expected);
  r->failed = 1;
}

static void *device_bf16(size_t count, uint64_t seed, int power) {
  uint16_t *host = malloc(2 * count + 16);
  void *device = NULL;
  dt_random random = {seed};
  for (size_t i = 0; i < count; i++) {
    const uint64_t bits = dt_random_u64(&random);
    host[i] = (uint16_t)((bits & 0x807f) | (uint64_t)(127 - power - (int)(bits >> 16 & 1)) << 7);
  }
  if (cudaMalloc(&device, 2 * count + 16) != cudaSuccess || dt_cuda_write(device, host, 2 * count) != cudaSuccess)
    device = NULL;
  free(host);
  return device;
}

static void make_input(rank *r) {
  const shape *s = r->shape;
  const size_t slots = (size_t)(s->tokens * s->top_k);
  int32_t *ids = malloc(4 * slots + 16), *device_ids = NULL;
  float *weights = malloc(4 * slots + 16), *device_weights = NULL;
  dt_random random = {(uint64_t)(5 + r->rank)};
  for (size_t i = 0; i < slots; i++) {
    ids[i] = (int32_t)(dt_random_u64(&random) % (uint64_t)(s->ranks * s->experts));
    weights[i] = 0.25f;
  }
  if (cudaMalloc((void **)&device_ids, 4 * slots + 16) != cudaSuccess ||
      cudaMalloc((void **)&device_weights, 4 * slots + 16) != cudaSuccess ||
      dt_cuda_write(device_ids, ids, 4 * slots) != cudaSuccess ||
      dt_cuda_write(device_weights, weights, 4 * slots) != cudaSuccess)
    fail(r, "memory", 0, 1);
  const size_t words = (size_t)(s->tokens * s->hidden);
  r->input = (dt_cuda_moe_input){.tokens = s->tokens,
                                 .hidden = device_bf16(words, 11 + (uint64_t)r->rank, 0),
                                 .ids = device_ids,
                                 .weights = device_weights,
                                 .output = device_bf16(words, 3, 0)};
  r->expected = malloc(2 * words + 16);
  r->output = malloc(2 * words + 16);
  free(ids), free(weights);
}

static void forward(rank *r, dt_cuda_moe *moe, uint16_t *output) {
  const size_t bytes = 2 * (size_t)(r->shape->tokens * r->shape->hidden);
  dt_status status = dt_comm_barrier(r->comm, "forward");
  if (cudaMemsetAsync(r->input.output, 0xff, bytes, r->stream) != cudaSuccess ||
      cudaStreamSynchronize(r->stream) != cudaSuccess)
    fail(r, "poison", 0, 1);
  r->begin_ns = now_ns();
  if (!status) status = dt_cuda_moe_forward(moe, &r->input, r->stream);
  if (!status) status = dt_cuda_moe_check(moe, r->stream);
  r->end_ns = now_ns();
  if (!status && cudaMemcpy(output, r->input.output, bytes, cudaMemcpyDeviceToHost) != cudaSuccess)
    status = DT_ERR_DEVICE;
  if (status) fail(r, dt_error_detail(), (long long)status, 0);
}

/* How often each tile of a phase was seen, by band, column and warpgroup. */
typedef struct seen {
  uint8_t *times; /* [bands][columns][2] */
  int32_t columns;
  int64_t rows, bytes;
} seen;

static void note(rank *r, const dt_cuda_moe *moe, seen *s, const dt_span *span, int group) {
  if (span->index < 0 || span->index >= moe->plan.bands_max || span->column < 0 || span->column >= s->columns) {
    fail(r, "band of a span", span->index, moe->plan.bands_max);
    return;
  }
  uint8_t *times = &s->times[2 * ((size_t)span->index * (size_t)s->columns + (size_t)span->column) + (size_t)group];
  if (++*times > 1) fail(r, "spans of a tile", *times, 1);
  s->rows += span->rows;
  s->bytes += span->bytes;
}

static void check_times(rank *r, const dt_span *spans, size_t count) {
  uint64_t stages[3][2] = {{0, 0}}; /* plan, dispatch, reduction */
  for (size_t i = 0; i < count && !r->failed; i++) {
    const dt_span *s = &spans[i];
    if (s->begin_ns > s->end_ns) fail(r, "length of a span in ns", (long long)(s->end_ns - s->begin_ns), 0);
    if (s->begin_ns + SLACK_NS < r->begin_ns)
      fail(r, "ns from the forward to a span", (long long)(s->begin_ns - r->begin_ns), 0);
    if (s->end_ns > r->end_ns + SLACK_NS)
      fail(r, "ns from a span's end to the forward's", (long long)(r->end_ns - s->end_ns), 0);
    const int stage = s->track != 0 ? -1 : s->kind == DT_SPAN_PLAN ? 0 : s->kind == DT_SPAN_DISPATCH ? 1 : 2;
    if (stage == 2 && s->kind != DT_SPAN_REDUCE) continue;
    if (stage >= 0) stages[stage][0] = s->begin_ns, stages[stage][1] = s->end_ns;
  }
  for (int i = 0; i < 3; i++)
    if (stages[i][1] == 0) fail(r, "spans of a stage", 0, 1);
  for (int i = 0; i < 2; i++)
    if (stages[i][1] > stages[i + 1][0])
      fail(r, "ns between two stages", (long long)(stages[i + 1][0] - stages[i][1]), 0);
  for (size_t i = 0; i < count && !r->failed; i++) {
    const dt_span *s = &spans[i];
    if ((s->kind == DT_SPAN_L1 || s->kind == DT_SPAN_L2) &&
        (s->begin_ns + 100 < stages[1][1] || s->end_ns > stages[2][0] + 100))
      fail(r, "ns from a tile to the reduction", (long long)(stages[2][0] - s->end_ns), 0);
  }
}

static void check_spans(rank *r, dt_cuda_moe *moe, int whole) {
  const dt_span *spans = NULL;
  size_t count = 0;
  uint64_t lost = 0;
  dt_cuda_moe_stats stats;
  dt_status status = dt_cuda_moe_spans(moe, r->stream, &spans, &count, &lost);
  if (!status) status = dt_cuda_moe_stats_read(moe, r->stream, &stats);
  if (status) {
    fail(r, dt_error_detail(), (long long)status, 0);
    return;
  }
  if (whole ? lost != 0 : lost == 0) fail(r, "spans lost", (long long)lost, !whole);
  if (moe->recorder->timer_step_ns > 2000)
    fail(r, "step of the timer in ns", (long long)moe->recorder->timer_step_ns, 32);
  const dt_moe_plan *p = &moe->plan;
  seen l1 = {.columns = p->columns_1}, l2 = {.columns = p->columns_2}, stores = {.columns = p->columns_2};
  l1.times = calloc(2 * (size_t)p->bands_max * (size_t)l1.columns, 1);
  l2.times = calloc(2 * (size_t)p->bands_max * (size_t)l2.columns, 1);
  stores.times = calloc(2 * (size_t)p->bands_max * (size_t)l2.columns, 1);
  int64_t dispatched = 0, published = 0, put = 0;
  for (size_t i = 0; i < count && !r->failed; i++) {
    const dt_span *s = &spans[i];
    const int role = (s->track - 1) % DT_DEVICE_ROLES;
    if (s->kind == DT_SPAN_L1) note(r, moe, &l1, s, role - DT_ROLE_CONSUMER);
    if (s->kind == DT_SPAN_L2) note(r, moe, &l2, s, role - DT_ROLE_CONSUMER);
    if (s->kind == DT_SPAN_STORE) note(r, moe, &stores, s, role - DT_ROLE_STORES);
    if (s->kind == DT_SPAN_DISPATCH && s->track != 0) dispatched += s->bytes;
    if (s->kind == DT_SPAN_PUBLISH && s->index >= 0) published += s->rows;
    if (s->kind == DT_SPAN_SEGMENT && s->track != 0) put += s->bytes;
  }
  if (whole && !r->failed) {
    if (l1.rows != stats.rows * p->columns_1) fail(r, "rows of L1's spans", l1.rows, stats.rows * p->columns_1);
    if (l2.rows != stats.rows * p->columns_2) fail(r, "rows of L2's spans", l2.rows, stats.rows * p->columns_2);
    if (stores.rows != l2.rows) fail(r, "rows of the stores' spans", stores.rows, l2.rows);
    if (published != l1.rows) fail(r, "rows of the published tiles", published, l1.rows);
    const int64_t bytes = p->staged ? 0 : (int64_t)stats.combine_bytes;
    if (stores.bytes != bytes) fail(r, "bytes of the stores to other ranks", stores.bytes, bytes);
    const int64_t segments = moe->consumers ? (int64_t)stats.combine_bytes : 0;
    if (put != segments) fail(r, "bytes of the segments", put, segments);
    if (dispatched > (int64_t)stats.dispatch_bytes)
      fail(r, "bytes of the dispatch's spans", dispatched, (long long)stats.dispatch_bytes);
  }
  check_times(r, spans, count);
  free(l1.times), free(l2.times), free(stores.times);
}

static void compare(rank *r, const char *what) {
  const size_t words = (size_t)(r->shape->tokens * r->shape->hidden);
  size_t wrong = 0;
  for (size_t i = 0; i < words; i++) wrong += r->expected[i] != r->output[i];
  if (wrong) fail(r, what, (long long)wrong, 0);
}

/* With room for one record a role, where there are several tiles a multiprocessor. */
static void check_overflow(rank *r, dt_cuda_moe *moe) {
  dt_recorder *whole = moe->recorder;
  if (dt_recorder_create(whole->ctas, 1, &moe->recorder) != DT_OK) {
    fail(r, dt_error_detail(), 0, 1);
    moe->recorder = whole;
    return;
  }
  forward(r, moe, r->output);
  compare(r, "words that differ where spans were lost");
  if (!r->failed) check_spans(r, moe, 0);
  dt_recorder_destroy(moe->recorder);
  moe->recorder = whole;
}

static void work(rank *r) {
  const shape *s = r->shape;
  const size_t matrix = (size_t)(s->hidden * s->intermediate * s->experts);
  int power = 0;
  while ((int64_t)1 << (2 * power) < s->hidden) power++;
  cudaSetDevice(r->device);
  cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking);
  const uint64_t seed = 100 * (uint64_t)(r->rank + 1);
  const dt_cuda_moe_weights w = {.gate = device_bf16(matrix, seed, power),
                                 .up = device_bf16(matrix, seed + 1, power),
                                 .down = device_bf16(matrix, seed + 2, power)};
  make_input(r);
  dt_cuda_moe_config config;
  dt_cuda_moe_config_init(&config);
  config.comm = r->comm;
  config.hidden = s->hidden;
  config.intermediate = s->intermediate;
  config.experts_per_rank = s->experts;
  config.top_k = s->top_k;
  config.max_tokens = s->tokens;
  config.max_rows = s->ranks * s->tokens * s->top_k;
  config.schedule = DT_SCHEDULE_SERIAL;
  config.sms = r->sms;
  config.timeout_s = 2;
  dt_cuda_moe *plain = NULL, *moe = NULL;
  const dt_span *spans;
  size_t count;
  uint64_t lost;
  dt_status status = dt_cuda_moe_create(&config, &w, &plain);
  config.timestamps = 1;
  if (!status) status = dt_cuda_moe_create(&config, &w, &moe);
  if (status) fail(r, dt_error_detail(), (long long)status, 0);
  if (!r->failed) forward(r, plain, r->expected);
  if (!r->failed && dt_cuda_moe_spans(plain, r->stream, &spans, &count, &lost) != DT_ERR_ARGUMENT)
    fail(r, "spans without timestamps", 0, DT_ERR_ARGUMENT);
  for (size_t i = 0; i < sizeof schedules / sizeof *schedules && !r->failed; i++) {
    config.schedule = schedules[i];
    status = dt_cuda_moe_set_schedule(moe, &config);
    if (status) fail(r, dt_error_detail(), (long long)status, 0);
    for (int repeat = 0; repeat < 2 && !r->failed; repeat++) forward(r, moe, r->output);
    compare(r, dt_schedule_name(schedules[i]));
    if (!r->failed) check_spans(r, moe, 1);
    if (r->failed) printf("     schedule %s\n", dt_schedule_name(schedules[i]));
  }
  if (!r->failed && s->tokens > 1000) check_overflow(r, moe);
  if (!r->failed) {
    const dt_recorder *k = moe->recorder;
    printf("     rank %d: timer steps of %llu ns, host's clock within %llu ns, %.3f GHz, %zu spans\n", r->rank,
           (unsigned long long)k->timer_step_ns, (unsigned long long)k->host_error_ns, 1e-9 * dt_recorder_hz(k, 0),
           moe->span_count);
  }
  if (r->failed) dt_comm_abort(r->comm, DT_ERR_INTERNAL, "a check failed");
  cudaStreamSynchronize(r->stream);
  dt_cuda_moe_destroy(moe);
  dt_cuda_moe_destroy(plain);
  cudaFree((void *)(uintptr_t)w.gate), cudaFree((void *)(uintptr_t)w.up), cudaFree((void *)(uintptr_t)w.down);
  cudaFree((void *)(uintptr_t)r->input.hidden), cudaFree((void *)(uintptr_t)r->input.ids);
  cudaFree((void *)(uintptr_t)r->input.weights), cudaFree(r->input.output);
  cudaStreamDestroy(r->stream);
  free(r->expected), free(r->output);
}

static void *run_rank(void *context) {
  rank *r = context;
  if (dt_comm_create_cuda(r->control, r->device, &r->comm) != DT_OK) {
    fail(r, dt_error_detail(), 0, 1);
    dt_comm_abort(r->control, DT_ERR_INTERNAL, "no fabric");
  } else {
    work(r);
  }
  return NULL;
}

static int check(const shape *s, int devices, int sms) {
  rank ranks[RANKS_MAX];
  dt_comm *controls[RANKS_MAX];
  dt_comm_config config;
  dt_comm_config_init(&config);
  config.entry_timeout_s = config.timeout_s = 10;
  if (dt_comm_create_local(s->ranks, &config, controls) != DT_OK) {
    printf("FAIL %s\n", dt_error_detail());
    return 0;
  }
  memset(ranks, 0, sizeof ranks);
  const int share = (s->ranks + devices - 1) / devices;
  int good = 1;
  for (int32_t r = 0; r < s->ranks; r++) {
    ranks[r] = (rank){.rank = r, .device = r % devices, .control = controls[r], .shape = s};
    ranks[r].sms = share > 1 ? sms / share / 2 * 2 : 0;
    pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]);
  }
  for (int32_t r = 0; r < s->ranks; r++) pthread_join(ranks[r].thread, NULL);
  for (int32_t r = 0; r < s->ranks; r++) good &= !ranks[r].failed;
  printf("%-4s ranks %d on %d GPUs, hidden %lld intermediate %lld experts %d top_k %d tokens %lld\n",
         good ? "ok" : "FAIL", s->ranks, devices < s->ranks ? devices : s->ranks, (long long)s->hidden,
         (long long)s->intermediate, s->experts, s->top_k, (long long)s->tokens);
  fflush(stdout);
  for (int32_t r = 0; r < s->ranks; r++) dt_comm_destroy(ranks[r].comm ? ranks[r].comm : ranks[r].control);
  return good;
}

int main(void) {
  const int devices = support_gpus(2);
  int sms = 0;
  if (devices < 1 || cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0) != cudaSuccess) {
    printf("skipped: no Hopper GPU\n");
    return 77;
  }
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
    if (!check(&shapes[i], devices, sms)) return 1;
  return 0;
}
