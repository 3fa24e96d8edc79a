/* What a tile's stores cost the tile engine, by schedule: how long a tile's stores take, how long the tensor cores
 * wait, and how many multiprocessors store at once, with the rows at other ranks and, as a control, the same tiles in
 * the same order with all rows in local memory. From in-kernel timestamps.
 *
 *   bench_stores FILE.json [--ranks N] [--repeat N] [--platform FILE] [--shape NAME]
 *
 * Every token goes to experts of the next rank, so all rows are remote where each rank has a GPU. A tile is 128 rows by
 * up to 256 columns: shapes with 128, 192 and 256 columns store 32, 48 and 64 KiB a tile for the same multiplications.
 * Ranks are threads; they share GPUs where there are fewer. Exit code 77 without a Hopper GPU.
 */
#include <draintile/cuda_moe.h>
#include <draintile/platform.h>
#include <draintile/trace.h>

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"
#include "core/statistics.h"
#include "cuda/driver.h"
#include "cuda/moe_handle.h"
#include "cuda_must.h"
#include "stores.h"

enum { RANKS_MAX = 8, CYCLES_A_STAGE = 1024 /* of both warpgroups' multiplications: 2 x 4 of 128 cycles */ };

typedef struct shape {
  const char *name;
  int64_t hidden, intermediate;
  int32_t experts, top_k; /* experts: per rank */
  int64_t tokens;
} shape;
static const shape shapes[] = {
    {"32 KiB, K 768", 128, 768, 8, 8, 16384},   {"48 KiB, K 768", 192, 768, 8, 8, 16384},
    {"64 KiB, K 768", 256, 768, 8, 8, 16384},   {"32 KiB, K 2048", 128, 2048, 8, 8, 16384},
    {"48 KiB, K 2048", 192, 2048, 8, 8, 16384}, {"64 KiB, K 2048", 256, 2048, 8, 8, 16384},
    {"qwen3-30b", 2048, 768, 64, 8, 8192},      {"qwen3-235b", 4096, 1536, 64, 8, 4096},
    {"mixtral", 4096, 14336, 4, 2, 8192},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };
static const dt_schedule schedules[] = {DT_SCHEDULE_SERIAL, DT_SCHEDULE_DIRECT, DT_SCHEDULE_WAVE,
                                        DT_SCHEDULE_INTERLEAVE, DT_SCHEDULE_ALTERNATE};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

static struct {
  int32_t ranks, repeat, devices;
  double rate, capacity;
  const char *shape;
  FILE *out;
  int rows;
} options = {.repeat = 20};

typedef struct rank {
  pthread_t thread;
  int32_t rank, device;
  dt_comm *control, *comm;
  const shape *shape;
  cudaStream_t stream;
  cudaEvent_t start, stop;
  dt_cuda_moe *moe;
  dt_cuda_moe_weights weights;
  dt_cuda_moe_input input;
  void *memory[8];
  int memories;
  stores_samples samples;
} rank;
static rank ranks[RANKS_MAX];

/* Random bf16 of about +-2^-power: the same block of them again and again. */
static void *device_bf16(rank *r, size_t count, uint64_t seed, int power) {
  enum { BLOCK = 1 << 20 };
  uint16_t *block = malloc(2 * BLOCK);
  uint8_t *device = NULL;
  dt_random random = {seed};
  for (size_t i = 0; i < BLOCK; i++) {
    const uint64_t bits = dt_random_u64(&random);
    block[i] = (uint16_t)((bits & 0x807f) | (uint64_t)(127 - power - (int)(bits >> 16 & 1)) << 7);
  }
  cuda_must(cudaMalloc((void **)&device, 2 * count + 16), "memory");
  for (size_t i = 0; i < count; i += BLOCK) {
    const size_t part = count - i < BLOCK ? count - i : BLOCK;
    cuda_must(cudaMemcpyAsync(device + 2 * i, i ? device : (void *)block, 2 * part, cudaMemcpyDefault, r->stream),
              "values");
  }
  cuda_must(cudaStreamSynchronize(r->stream), "values");
  free(block);
  r->memory[r->memories++] = device;
  return device;
}

static void *device_copy(rank *r, const void *host, size_t bytes) {
  void *device;
  cuda_must(cudaMalloc(&device, bytes + 16), "memory");
  cuda_must(dt_cuda_write(device, host, bytes), "copy");
  r->memory[r->memories++] = device;
  return device;
}

/* Choices deal the next rank's experts in turn. */
static void make_input(rank *r) {
  const shape *s = r->shape;
  const size_t slots = (size_t)(s->tokens * s->top_k);
  int32_t *ids = malloc(4 * slots);
  float *weights = malloc(4 * slots);
  for (size_t i = 0; i < slots; i++) {
    ids[i] = (r->rank + 1) % options.ranks * s->experts + (int32_t)(i % (size_t)s->experts);
    weights[i] = 1.0f / (float)s->top_k;
  }
  r->input = (dt_cuda_moe_input){.tokens = s->tokens,
                                 .hidden = device_bf16(r, (size_t)(s->tokens * s->hidden), 7, 0),
                                 .ids = device_copy(r, ids, 4 * slots),
                                 .weights = device_copy(r, weights, 4 * slots),
                                 .output = device_bf16(r, (size_t)(s->tokens * s->hidden), 8, 0)};
  free(ids), free(weights);
}

static dt_cuda_moe_config config_of(const rank *r, int timestamps) {
  const shape *s = r->shape;
  dt_cuda_moe_config config;
  dt_cuda_moe_config_init(&config);
  config.comm = r->comm;
  config.hidden = s->hidden;
  config.intermediate = s->intermediate;
  config.experts_per_rank = s->experts;
  config.top_k = s->top_k;
  config.max_tokens = s->tokens;
  config.max_rows = s->tokens * s->top_k;
  config.schedule = DT_SCHEDULE_DIRECT;
  config.timestamps = timestamps;
  return config;
}

static double forward_s(rank *r, dt_cuda_moe *moe) {
  float ms = 0;
  must(dt_comm_barrier(r->comm, "forward"), "barrier");
  cuda_must(cudaEventRecord(r->start, r->stream), "event");
  must(dt_cuda_moe_forward(moe, &r->input, r->stream), "forward");
  cuda_must(cudaEventRecord(r->stop, r->stream), "event");
  must(dt_cuda_moe_check(moe, r->stream), "check");
  cuda_must(cudaEventElapsedTime(&ms, r->start, r->stop), "event");
  return 1e-3 * (double)ms;
}

/* Medians of the layer without and with timestamps, in turns. Makes the layer that has them. */
static void time_layers(rank *r, double medians[2]) {
  double *samples[2];
  dt_cuda_moe *layers[2];
  for (int stamped = 0; stamped < 2; stamped++) {
    const dt_cuda_moe_config config = config_of(r, stamped);
    must(dt_cuda_moe_create(&config, &r->weights, &layers[stamped]), "layer");
    samples[stamped] = malloc((size_t)options.repeat * sizeof **samples);
  }
  for (int32_t i = -3; i < options.repeat; i++)
    for (int stamped = 0; stamped < 2; stamped++) {
      const double seconds = forward_s(r, layers[stamped]);
      if (i >= 0) samples[stamped][i] = seconds;
    }
  for (int stamped = 0; stamped < 2; stamped++) {
    medians[stamped] = dt_median(samples[stamped], (size_t)options.repeat);
    free(samples[stamped]);
  }
  must(dt_comm_barrier(r->comm, "timed"), "barrier");
  dt_cuda_moe_destroy(layers[0]);
  r->moe = layers[1];
}

static void print_figure(const char *name, const stores_list *list, const char *end) {
  double sum = 0;
  for (size_t i = 0; i < list->count; i++) sum += list->values[i];
  fprintf(options.out, "    \"%s\": {\"mean\": %.4g, \"median\": %.4g, \"p95\": %.4g, \"n\": %zu}%s\n", name,
          list->count ? sum / (double)list->count : 0, dt_median(list->values, list->count),
          dt_quantile(list->values, list->count, 0.95), list->count, end);
}

static void print_row(const rank *r, dt_schedule schedule, int local, const double layer_s[2]) {
  const shape *s = r->shape;
  const stores_samples *x = &r->samples;
  const int64_t columns = s->hidden < DT_TILE_N ? s->hidden : DT_TILE_N;
  const int remote = !local && options.ranks > 1 && options.devices > 1;
  fprintf(options.out,
          "%s  {\"shape\": \"%s\", \"hidden\": %lld, \"intermediate\": %lld, \"experts\": %d, \"top_k\": %d,\n",
          options.rows++ ? ",\n" : "", s->name, (long long)s->hidden, (long long)s->intermediate,
          s->experts * options.ranks, s->top_k);
  fprintf(options.out, "    \"tokens\": %lld, \"schedule\": \"%s\", \"target\": \"%s\", \"payload_bytes\": %lld,\n",
          (long long)s->tokens, dt_schedule_name(schedule),
          local               ? "local"
          : remote            ? "peer"
          : options.ranks > 1 ? "rank on the same GPU"
                              : "own rank",
          (long long)(2 * DT_TILE_M * columns));
  fprintf(options.out, "    \"ctas\": %d, \"sm_hz\": %.5g, \"layer_s\": %.5g, \"layer_stamped_s\": %.5g,\n",
          r->moe->recorder->ctas, dt_recorder_hz(r->moe->recorder, 0), layer_s[0], layer_s[1]);
  fprintf(options.out, "    \"matrix_s\": %.4g, \"l1_matrix_s\": %.4g, \"lost\": %llu,\n", x->matrix_s, x->l1_matrix_s,
          (unsigned long long)x->lost);
  print_figure("store_span_s", &x->span, ",");
  print_figure("store_issue_s", &x->issue, ",");
  print_figure("period_s", &x->period, ",");
  print_figure("l1_period_s", &x->l1_period, ",");
  print_figure("stall_s", &x->stall, ",");
  print_figure("operand_wait_s", &x->wait, ",");
  print_figure("active_mean", &x->active_mean, ",");
  print_figure("active_max", &x->active_max, ",");
  print_figure("k_act", &x->k_act, "}");
  fflush(options.out);
}

static void measure(rank *r, dt_schedule schedule, int local, const double layer_s[2]) {
  stores_begin(&r->samples);
  for (int32_t i = -1; i < options.repeat; i++) {
    if (local) {
      must(dt_comm_barrier(r->comm, "part"), "barrier");
      must(dt_cuda_moe_run_part(r->moe, DT_CUDA_MOE_COMPUTE, &r->input, r->stream), "tiles");
      must(dt_cuda_moe_check(r->moe, r->stream), "check");
    } else {
      forward_s(r, r->moe);
    }
    if (i >= 0)
      must(stores_add(&r->samples, r->moe, r->stream, i, CYCLES_A_STAGE,
                      options.rate > 0 ? options.capacity / options.rate : 0),
           "samples");
  }
  if (r->rank == 0) print_row(r, schedule, local, layer_s);
  must(dt_comm_barrier(r->comm, "row"), "barrier");
}

static void *run_rank(void *context) {
  rank *r = context;
  const shape *s = r->shape;
  double layer_s[2];
  int power = 0;
  while ((int64_t)1 << (2 * power) < s->hidden) power++;
  must(dt_comm_create_cuda(r->control, r->device, &r->comm), "fabric");
  cuda_must(cudaSetDevice(r->device), "device");
  cuda_must(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking), "stream");
  cuda_must(cudaEventCreate(&r->start), "event");
  cuda_must(cudaEventCreate(&r->stop), "event");
  const size_t matrix = (size_t)(s->hidden * s->intermediate * s->experts);
  r->weights.gate = device_bf16(r, matrix, 1, power);
  r->weights.up = device_bf16(r, matrix, 2, power);
  r->weights.down = device_bf16(r, matrix, 3, power);
  make_input(r);
  time_layers(r, layer_s);
  for (int i = 0; i < SCHEDULES; i++) {
    dt_cuda_moe_config config = config_of(r, 1);
    config.schedule = schedules[i];
    must(dt_cuda_moe_set_schedule(r->moe, &config), "schedule");
    measure(r, schedules[i], 0, layer_s);
    measure(r, schedules[i], 1, layer_s);
  }
  dt_cuda_moe_destroy(r->moe);
  for (int i = 0; i < r->memories; i++) cudaFree(r->memory[i]);
  cudaEventDestroy(r->start), cudaEventDestroy(r->stop), cudaStreamDestroy(r->stream);
  stores_end(&r->samples);
  return NULL;
}

static void run_shape(const shape *s) {
  dt_comm *controls[RANKS_MAX];
  dt_comm_config config;
  dt_comm_config_init(&config);
  config.entry_timeout_s = config.timeout_s = 20;
  must(dt_comm_create_local(options.ranks, &config, controls), "ranks");
  memset(ranks, 0, sizeof ranks);
  for (int32_t r = 0; r < options.ranks; r++) {
    ranks[r] = (rank){.rank = r, .device = r % options.devices, .control = controls[r], .shape = s};
    pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]);
  }
  for (int32_t r = 0; r < options.ranks; r++) pthread_join(ranks[r].thread, NULL);
  for (int32_t r = 0; r < options.ranks; r++) dt_comm_destroy(ranks[r].comm);
}

static void read_platform(const char *path) {
  dt_platform *platform = NULL;
  dt_interval rate, capacity;
  must(dt_platform_load(path, &platform), "platform file");
  must(dt_platform_lookup(platform, "rate_bytes_per_s", &rate), "platform file");
  must(dt_platform_lookup(platform, "capacity_bytes", &capacity), "platform file");
  options.rate = rate.value;
  options.capacity = capacity.value;
  dt_platform_destroy(platform);
}

static int usage(void) {
  fprintf(stderr, "usage: bench_stores FILE.json [--ranks N] [--repeat N] [--platform FILE] [--shape NAME]\n");
  return 2;
}

int main(int argc, char **argv) {
  int devices = 0, major = 0;
  if (argc < 2 || argc % 2 != 0) return usage();
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 1 ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess || major != 9) {
    printf("skipped: no Hopper GPU\n");
    return 77;
  }
  options.devices = options.ranks = devices < RANKS_MAX ? devices : RANKS_MAX;
  for (int i = 2; i < argc; i += 2) {
    if (strcmp(argv[i], "--ranks") == 0)
      options.ranks = atoi(argv[i + 1]);
    else if (strcmp(argv[i], "--repeat") == 0)
      options.repeat = atoi(argv[i + 1]);
    else if (strcmp(argv[i], "--platform") == 0)
      read_platform(argv[i + 1]);
    else if (strcmp(argv[i], "--shape") == 0)
      options.shape = argv[i + 1];
    else
      return usage();
  }
  if (options.ranks < 1 || options.ranks > RANKS_MAX || options.repeat < 1) return usage();
  struct cudaDeviceProp properties;
  cuda_must(cudaGetDeviceProperties(&properties, 0), "device");
  options.out = strcmp(argv[1], "-") == 0 ? stdout : fopen(argv[1], "w");
  if (!options.out) {
    perror(argv[1]);
    return 3;
  }
  fprintf(options.out,
          "{\"schema\": \"draintile-bench-stores\", \"version\": 1, \"device\": \"%s\", \"gpus\": %d, \"ranks\": %d,\n"
          " \"repeat\": %d, \"rate_bytes_per_s\": %.6g, \"capacity_bytes\": %.6g,\n \"rows\": [\n",
          properties.name, options.devices < options.ranks ? options.devices : options.ranks, options.ranks,
          options.repeat, options.rate, options.capacity);
  for (int i = 0; i < SHAPES; i++)
    if (!options.shape || strstr(shapes[i].name, options.shape)) run_shape(&shapes[i]);
  fprintf(options.out, "\n ]}\n");
  return options.out != stdout && fclose(options.out) ? 3 : 0;
}
