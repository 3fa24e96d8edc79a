/* Host time to issue one MoE layer (dt_cuda_moe_forward), by what changes between calls, by whether the host has just
 * waited for the device, and with two threads that issue at once, as ranks of one process do.
 *
 *   moe_issue FILE.json
 *
 * Exit code 1 if a median is above the limit, 77 without a Hopper GPU.
 */
#include <draintile/cuda_moe.h>

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/statistics.h"
#include "cuda_must.h"

enum { SAMPLES = 300, IN_A_ROW = 20, THREADS = 2, HIDDEN = 2048, INNER = 768, EXPERTS = 16, TOP_K = 8, TOKENS = 128 };
static const double LIMIT_S = 15e-6;

typedef enum change { SAME, TOKENS_AND_ROUTING, EVERYTHING, CHANGES } change;
static const char *const change_names[] = {"the same", "tokens, ids, weights", "all new"};
static const dt_schedule schedules[] = {DT_SCHEDULE_DIRECT, DT_SCHEDULE_SERIAL};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

typedef struct result {
  double samples[SAMPLES], median_s, p90_s;
} result;

typedef struct issuer {
  pthread_t thread;
  pthread_barrier_t *together;
  int device;
  dt_comm *comm;
  dt_cuda_moe *moe;
  cudaStream_t stream;
  dt_cuda_moe_input inputs[2];
  result results[SCHEDULES][CHANGES][2]; /* last: in a row, after a wait */
} issuer;

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *zeros(size_t bytes) {
  void *memory;
  cuda_must(cudaMalloc(&memory, bytes), "cudaMalloc");
  cuda_must(cudaMemset(memory, 0, bytes), "cudaMemset");
  return memory;
}

/* Rows are zeros: what is timed is the host. */
static dt_cuda_moe_input make_input(int64_t tokens, int32_t shift) {
  int32_t ids[TOKENS * TOP_K];
  for (int32_t i = 0; i < TOKENS * TOP_K; i++) ids[i] = (i / TOP_K + i % TOP_K + shift) % EXPERTS;
  const dt_cuda_moe_input input = {.tokens = tokens,
                                   .hidden = zeros(2 * TOKENS * HIDDEN),
                                   .ids = zeros(sizeof ids),
                                   .weights = zeros(TOKENS * TOP_K * sizeof(float)),
                                   .output = zeros(2 * TOKENS * HIDDEN)};
  cuda_must(cudaMemcpy((void *)(uintptr_t)input.ids, ids, sizeof ids, cudaMemcpyHostToDevice), "ids");
  return input;
}

static dt_cuda_moe_config open_layer(issuer *one) {
  dt_comm *control;
  dt_cuda_moe_config config;
  must(dt_comm_create_local(1, NULL, &control), "comm");
  must(dt_comm_create_cuda(control, one->device, &one->comm), "comm");
  cuda_must(cudaSetDevice(one->device), "cudaSetDevice");
  cuda_must(cudaStreamCreateWithFlags(&one->stream, cudaStreamNonBlocking), "stream");
  dt_cuda_moe_config_init(&config);
  config.comm = one->comm;
  config.hidden = HIDDEN;
  config.intermediate = INNER;
  config.experts_per_rank = EXPERTS;
  config.top_k = TOP_K;
  config.max_tokens = TOKENS;
  config.sms = 64; /* of each: threads may share a GPU */
  const size_t matrix = 2ul * EXPERTS * HIDDEN * INNER;
  const dt_cuda_moe_weights weights = {.gate = zeros(matrix), .up = zeros(matrix), .down = zeros(matrix)};
  must(dt_cuda_moe_create(&config, &weights, &one->moe), "layer");
  one->inputs[0] = make_input(TOKENS, 0);
  one->inputs[1] = make_input(TOKENS - 32, 3);
  /* Not for the device: the other thread may capture a graph. */
  cuda_must(cudaStreamSynchronize(cudaStreamLegacy), "layer");
  return config;
}

static void measure(issuer *one, change what, int waits, result *r) {
  dt_cuda_moe_input other = one->inputs[what != SAME];
  if (what == TOKENS_AND_ROUTING) {
    other.hidden = one->inputs[0].hidden;
    other.output = one->inputs[0].output;
  }
  for (int i = -IN_A_ROW; i < SAMPLES; i++) {
    if (waits || i % IN_A_ROW == 0) {
      cuda_must(cudaStreamSynchronize(one->stream), "layer");
      pthread_barrier_wait(one->together);
    }
    const double start = seconds();
    must(dt_cuda_moe_forward(one->moe, i % 2 ? &other : &one->inputs[0], one->stream), "forward");
    if (i >= 0) r->samples[i] = seconds() - start;
  }
  must(dt_cuda_moe_check(one->moe, one->stream), "layers");
  r->median_s = dt_median(r->samples, SAMPLES);
  r->p90_s = dt_quantile(r->samples, SAMPLES, 0.9);
}

static void *issue(void *context) {
  issuer *one = context;
  dt_cuda_moe_config config = open_layer(one);
  for (int s = 0; s < SCHEDULES; s++) {
    config.schedule = schedules[s];
    must(dt_cuda_moe_set_schedule(one->moe, &config), "schedule");
    for (int what = 0; what < CHANGES; what++)
      for (int waits = 0; waits < 2; waits++) measure(one, (change)what, waits, &one->results[s][what][waits]);
  }
  return NULL;
}

/* The slower thread's figures. Returns the largest median. */
static double report(FILE *out, const issuer *all, int threads, int *first) {
  double worst = 0;
  for (int i = 0; i < SCHEDULES * CHANGES * 2; i++) {
    const int s = i / (CHANGES * 2), what = i / 2 % CHANGES, waits = i % 2;
    const result *r = &all[0].results[s][what][waits];
    for (int t = 1; t < threads; t++)
      if (all[t].results[s][what][waits].median_s > r->median_s) r = &all[t].results[s][what][waits];
    printf("%d thread%s %-8s input %-21s %-12s median %6.2f us, 90 %% %6.2f us, %.2f of the limit\n", threads,
           threads > 1 ? "s," : ", ", dt_schedule_name(schedules[s]), change_names[what],
           waits ? "after a wait" : "in a row", r->median_s * 1e6, r->p90_s * 1e6, r->median_s / LIMIT_S);
    fprintf(out,
            "%s\n  {\"threads\": %d, \"schedule\": \"%s\", \"input\": \"%s\", \"waits\": %s, \"median_s\": %.4g, "
            "\"p90_s\": %.4g, \"samples_s\": [",
            *first ? "" : ",", threads, dt_schedule_name(schedules[s]), change_names[what], waits ? "true" : "false",
            r->median_s, r->p90_s);
    for (int n = 0; n < SAMPLES; n++) fprintf(out, "%s%.3g", n ? ", " : "", r->samples[n]);
    fprintf(out, "]}");
    *first = 0;
    if (r->median_s > worst) worst = r->median_s;
  }
  return worst;
}

static void write_machine(FILE *out) {
  struct cudaDeviceProp device;
  int driver, runtime;
  cuda_must(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  cuda_must(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  cuda_must(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  fprintf(
      out,
      "{\"schema\": \"draintile-moe-issue\", \"version\": 1,\n \"command\": \"moe_issue\",\n \"machine\": {\"gpu\": "
      "\"%s\", \"cuda_driver\": %d, \"cuda_runtime\": %d},\n \"limit_s\": %.3g, \"in_a_row\": %d,\n \"runs\": [",
      device.name, driver, runtime, LIMIT_S, IN_A_ROW);
}

int main(int argc, char **argv) {
  int devices, major, first = 1;
  double worst = 0;
  if (argc != 2) {
    fprintf(stderr, "usage: moe_issue FILE.json\n");
    return 2;
  }
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 1 ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess || major != 9) {
    printf("skipped: no Hopper GPU\n");
    return 77;
  }
  FILE *out = fopen(argv[1], "w");
  if (!out) {
    perror(argv[1]);
    return 3;
  }
  write_machine(out);
  for (int threads = 1; threads <= THREADS; threads++) {
    pthread_barrier_t together;
    issuer *all = calloc(THREADS, sizeof *all);
    if (!all) return 3;
    pthread_barrier_init(&together, NULL, (unsigned)threads);
    for (int t = 0; t < threads; t++) {
      all[t].together = &together;
      all[t].device = t % devices;
      pthread_create(&all[t].thread, NULL, issue, &all[t]);
    }
    for (int t = 0; t < threads; t++) pthread_join(all[t].thread, NULL);
    const double most = report(out, all, threads, &first);
    if (most > worst) worst = most;
    pthread_barrier_destroy(&together);
    free(all);
  }
  fprintf(out, "],\n \"summary\": {\"median_max_s\": %.4g, \"limit_s\": %.4g}}\n", worst, LIMIT_S);
  if (fclose(out) != 0) return 3;
  printf("largest median %.2f us, limit %.0f us\n", worst * 1e6, LIMIT_S * 1e6);
  return worst > LIMIT_S;
}
