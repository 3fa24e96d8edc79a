/* Checks the MoE layer on GPUs: shapes with tails, empty experts, ranks without tokens, biases; every schedule bit by
 * bit against serial, serial against float64 on sampled tokens; 200 layers back to back with changing inputs and no
 * host between them; a captured graph; the parts; layers that give up. Ranks are threads, on as many
 * GPUs as there are; several on one GPU share its multiprocessors. Exit code 77 without a Hopper GPU.
 */
#include <draintile/cuda_moe.h>

#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"

enum { RANKS_MAX = 4, INPUTS = 4, BACK_TO_BACK = 200, SAMPLES = 6 };

typedef struct shape {
  int32_t ranks;
  int64_t hidden, intermediate;
  int32_t experts, top_k; /* experts: per rank */
  int64_t tokens;
  int32_t bias, hot; /* hot: most choices go to the first expert of rank 0 */
  int32_t hasty;     /* also layers that give up */
} shape;
static const shape shapes[] = {
    {1, 64, 64, 1, 1, 1, 0, 0, 0},       {1, 256, 128, 4, 2, 300, 0, 0, 0},    {1, 264, 136, 7, 3, 1000, 1, 0, 0},
    {2, 64, 64, 1, 1, 40, 0, 0, 0},      {2, 520, 200, 3, 3, 500, 1, 0, 0},    {2, 2048, 768, 16, 8, 1500, 0, 1, 0},
    {2, 4096, 1536, 8, 4, 900, 0, 0, 0}, {2, 2048, 512, 32, 8, 4096, 0, 0, 0}, {3, 512, 256, 5, 2, 700, 0, 1, 0},
    {4, 1024, 384, 6, 4, 1024, 1, 0, 0}, {1, 2048, 768, 16, 8, 2048, 0, 0, 1},
};
static const dt_schedule schedules[] = {DT_SCHEDULE_SERIAL, DT_SCHEDULE_DIRECT, DT_SCHEDULE_WAVE,
                                        DT_SCHEDULE_INTERLEAVE, DT_SCHEDULE_ALTERNATE};

typedef struct input {
  int64_t tokens;
  uint16_t *hidden; /* host */
  int32_t *ids;
  float *weights;
  uint16_t *expected; /* host: what serial gave */
  dt_cuda_moe_input device;
} input;

typedef struct rank {
  pthread_t thread;
  int32_t rank, device, sms;
  dt_comm *control, *comm;
  const shape *shape;
  input inputs[INPUTS];
  double worst;
  dt_status status;
  char detail[256];
} rank;
static rank ranks[RANKS_MAX];
static uint16_t *host_weights[3]; /* gate, up, down of all ranks */
static float *host_biases[3];

static float widen(uint16_t value) {
  const uint32_t bits = (uint32_t)value << 16;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static dt_status cuda(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return DT_OK;
  printf("FAIL %s: %s\n", what, cudaGetErrorString(error));
  return DT_ERR_DEVICE;
}

/* bf16 in (-2, 2) * scale: scale a power of two. */
static void fill(uint16_t *to, size_t count, uint64_t seed, int power) {
  dt_random random = {seed};
  for (size_t i = 0; i < count; i++) {
    const uint64_t bits = dt_random_u64(&random);
    to[i] = (uint16_t)((bits & 0x807f) | (uint64_t)(127 - power - (int)(bits >> 16 & 1)) << 7);
  }
}

static void *to_device(const void *host, size_t bytes, dt_status *status) {
  void *device = NULL;
  if (!*status) *status = cuda(cudaMalloc(&device, bytes + 16), "memory");
  if (!*status && bytes) *status = cuda(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "copy");
  return device;
}

static void make_input(rank *r, int index, dt_status *status) {
  const shape *s = r->shape;
  input *in = &r->inputs[index];
  const int32_t experts = s->ranks * s->experts;
  dt_random random = {(uint64_t)(1000 + 10 * r->rank + index)};
  in->tokens = index == 0 ? s->tokens : (int64_t)(dt_random_u64(&random) % (uint64_t)(s->tokens + 1));
  if (index == 2 && r->rank == s->ranks - 1) in->tokens = 0;
  const size_t t = (size_t)in->tokens, h = (size_t)s->hidden, k = (size_t)s->top_k;
  in->hidden = malloc(2 * t * h + 16);
  in->ids = malloc(4 * t * k + 16);
  in->weights = malloc(4 * t * k + 16);
  in->expected = malloc(2 * t * h + 16);
  fill(in->hidden, t * h, (uint64_t)(77 + 10 * r->rank + index), 0);
  for (size_t i = 0; i < t; i++)
    for (size_t j = 0; j < k; j++) {
      int32_t id, again = 1;
      while (again) {
        id = (int32_t)(dt_random_u64(&random) % (uint64_t)experts);
        if (s->hot && j == 0 && dt_random_u64(&random) % 4 != 0) id = 0;
        if (index == 3 && experts > 2 * s->top_k && id % 2) id--; /* every other expert without rows */
        again = 0;
        for (size_t c = 0; c < j; c++) again |= in->ids[i * k + c] == id;
      }
      in->ids[i * k + j] = index == 1 && dt_random_u64(&random) % 5 == 0 ? -1 : id;
      in->weights[i * k + j] = (float)(1 + dt_random_u64(&random) % 100) / 100;
    }
  in->device.tokens = in->tokens;
  in->device.hidden = to_device(in->hidden, 2 * t * h, status);
  in->device.ids = to_device(in->ids, 4 * t * k, status);
  in->device.weights = to_device(in->weights, 4 * t * k, status);
  in->device.output = to_device(in->hidden, 2 * t * h, status);
}

static void free_input(input *in) {
  cudaFree((void *)(uintptr_t)in->device.hidden), cudaFree((void *)(uintptr_t)in->device.ids);
  cudaFree((void *)(uintptr_t)in->device.weights), cudaFree(in->device.output);
  free(in->hidden), free(in->ids), free(in->weights), free(in->expected);
}

/* Relative error of one token against float64. */
static double token_error(const rank *r, const input *in, int64_t t, const uint16_t *output) {
  const shape *s = r->shape;
  const size_t h = (size_t)s->hidden, n = (size_t)s->intermediate;
  double *sum = calloc(h, sizeof *sum), *act = malloc(n * sizeof *act), difference = 0, norm = 0;
  for (int32_t c = 0; c < s->top_k; c++) {
    const int32_t id = in->ids[t * s->top_k + c];
    if (id < 0) continue;
    const uint16_t *gate = host_weights[0] + (size_t)id * n * h, *up = host_weights[1] + (size_t)id * n * h;
    const uint16_t *down = host_weights[2] + (size_t)id * n * h;
    for (size_t i = 0; i < n; i++) {
      double g = s->bias ? host_biases[0][(size_t)id * n + i] : 0, u = s->bias ? host_biases[1][(size_t)id * n + i] : 0;
      for (size_t j = 0; j < h; j++) {
        const double x = widen(in->hidden[(size_t)t * h + j]);
        g += x * widen(gate[i * h + j]);
        u += x * widen(up[i * h + j]);
      }
      if (s->bias) {
        g = fmin(g, 7);
        u = fmin(fmax(u, -7), 7);
        act[i] = (u + 1) * g / (1 + exp(-1.702 * g));
      } else {
        act[i] = u * g / (1 + exp(-g));
      }
    }
    for (size_t j = 0; j < h; j++) {
      double y = s->bias ? host_biases[2][(size_t)id * h + j] : 0;
      for (size_t i = 0; i < n; i++) y += act[i] * widen(down[j * n + i]);
      sum[j] += in->weights[t * s->top_k + c] * y;
    }
  }
  for (size_t j = 0; j < h; j++) {
    const double d = widen(output[(size_t)t * h + j]) - sum[j];
    difference += d * d;
    norm += sum[j] * sum[j];
  }
  free(sum), free(act);
  if (norm == 0) return difference == 0 ? 0 : INFINITY;
  return isnan(difference) ? INFINITY : sqrt(difference / norm);
}

static dt_status forward(rank *r, dt_cuda_moe *moe, int index, cudaStream_t stream) {
  const input *in = &r->inputs[index];
  dt_status status =
      cuda(cudaMemsetAsync(in->device.output, 0xff, 2 * (size_t)(in->tokens * r->shape->hidden), stream), "poison");
  return status ? status : dt_cuda_moe_forward(moe, &in->device, stream);
}

static dt_status fetch(const rank *r, int index, uint16_t *output) {
  const input *in = &r->inputs[index];
  return cuda(
      cudaMemcpy(output, in->device.output, 2 * (size_t)(in->tokens * r->shape->hidden), cudaMemcpyDeviceToHost),
      "output");
}

/* The output must be serial's, to the bit. */
static dt_status compare(const rank *r, int index, const char *what, int number) {
  const input *in = &r->inputs[index];
  const size_t words = (size_t)(in->tokens * r->shape->hidden);
  uint16_t *output = malloc(2 * words + 16);
  dt_status status = fetch(r, index, output);
  size_t wrong = 0, first = 0;
  for (size_t i = words; i > 0 && !status; i--)
    if (output[i - 1] != in->expected[i - 1]) wrong++, first = i - 1;
  free(output);
  if (!wrong) return status;
  printf("FAIL rank %d, %s %d, input %d: %zu of %zu words differ, first token %zu column %zu\n", r->rank, what, number,
         index, wrong, words, first / (size_t)r->shape->hidden, first % (size_t)r->shape->hidden);
  return DT_ERR_INTERNAL;
}

static dt_status run_schedules(rank *r, dt_cuda_moe *moe, dt_cuda_moe_config config, cudaStream_t stream) {
  dt_status status = DT_OK;
  for (size_t n = 0; n < 2 * sizeof schedules / sizeof *schedules && !status; n++) {
    config.schedule = schedules[n / 2];
    config.group_tasks = n % 2 ? 3 : 0; /* small groups: L2 waits for what is just being stored */
    if (n % 2 && config.schedule == DT_SCHEDULE_WAVE) config.wave_experts = 2;
    status = dt_cuda_moe_set_schedule(moe, &config);
    for (int index = 0; index < INPUTS && !status; index++) {
      status = forward(r, moe, index, stream);
      if (!status) status = dt_cuda_moe_check(moe, stream);
      if (!status && n == 0) status = fetch(r, index, r->inputs[index].expected);
      const input *in = &r->inputs[index];
      for (int i = 0; n == 0 && i < SAMPLES && !status && in->tokens; i++) {
        const double error = token_error(r, in, i * (in->tokens - 1) / (SAMPLES - 1), in->expected);
        if (!(error <= r->worst)) r->worst = error;
      }
      if (!status && n > 0) status = compare(r, index, dt_schedule_name(config.schedule), config.group_tasks);
    }
  }
  return status;
}

static dt_status run_more(rank *r, dt_cuda_moe *moe, dt_cuda_moe_config config, cudaStream_t stream) {
  dt_status status = DT_OK;
  for (size_t n = 0; n < sizeof schedules / sizeof *schedules && !status; n++) { /* no host between layers */
    config.schedule = schedules[n];
    config.group_tasks = 5;
    status = dt_cuda_moe_set_schedule(moe, &config);
    for (int i = 0; i < BACK_TO_BACK / 5 && !status; i++)
      status = dt_cuda_moe_forward(moe, &r->inputs[(i * 7 + i / 5) % INPUTS].device, stream);
    if (!status) status = dt_cuda_moe_check(moe, stream);
    for (int index = 0; index < INPUTS && !status; index++) status = compare(r, index, "back to back", (int)n);
  }
  cudaGraph_t graph = NULL;
  cudaGraphExec_t exec = NULL;
  /* All ranks capture at once: a synchronous copy of another thread would spoil it. */
  if (!status) status = dt_comm_barrier(r->comm, "capture");
  if (!status) status = cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capture");
  for (int index = 0; index < INPUTS && !status; index++) status = forward(r, moe, index, stream);
  if (!status) status = cuda(cudaStreamEndCapture(stream, &graph), "capture");
  if (!status) status = dt_comm_barrier(r->comm, "captured");
  if (!status) status = cuda(cudaGraphInstantiate(&exec, graph, 0), "graph");
  for (int i = 0; i < 5 && !status; i++) status = cuda(cudaGraphLaunch(exec, stream), "graph");
  if (!status) status = dt_cuda_moe_check(moe, stream);
  for (int index = 0; index < INPUTS && !status; index++) status = compare(r, index, "graph", 0);
  for (int part = DT_CUDA_MOE_COMPUTE; part <= DT_CUDA_MOE_REDUCE && !status; part++) {
    for (int i = 0; i < 3 && !status; i++)
      status = dt_cuda_moe_run_part(moe, (dt_cuda_moe_part)part, &r->inputs[INPUTS - 1].device, stream);
    if (!status) status = dt_cuda_moe_check(moe, stream);
    if (!status) status = dt_comm_barrier(r->comm, "part");
  }
  for (int index = 0; index < INPUTS && !status; index++) status = forward(r, moe, index, stream);
  if (!status) status = dt_cuda_moe_check(moe, stream);
  for (int index = 0; index < INPUTS && !status; index++) status = compare(r, index, "after parts", 0);
  if (exec) cudaGraphExecDestroy(exec);
  if (graph) cudaGraphDestroy(graph);
  return status;
}

/* A layer that gives up in the middle of its tiles says so, and leaves the device as it was. Alone on its rank. */
static dt_status run_hasty(rank *r, dt_cuda_moe_config config, const dt_cuda_moe_weights *w, cudaStream_t stream) {
  dt_status status = DT_OK;
  int gave_up = 0;
  for (int i = 0; i < 12 && !status; i++) {
    dt_cuda_moe *moe = NULL;
    config.schedule = schedules[i % (int)(sizeof schedules / sizeof *schedules)];
    config.timeout_s = 3e-6 * (1 << i % 4);
    status = dt_cuda_moe_create(&config, w, &moe);
    if (!status) status = forward(r, moe, 0, stream);
    if (!status) {
      const dt_status seen = dt_cuda_moe_check(moe, stream);
      gave_up += seen == DT_ERR_TIMEOUT;
      if (seen != DT_OK && seen != DT_ERR_TIMEOUT) status = seen;
    }
    if (!status) status = cuda(cudaDeviceSynchronize(), "after giving up");
    if (moe) dt_cuda_moe_destroy(moe);
  }
  if (!status) printf("     gave up in %d of 12 hasty layers\n", gave_up);
  if (!status && gave_up == 0) {
    printf("FAIL no wait expired\n");
    status = DT_ERR_INTERNAL;
  }
  return status;
}

static dt_status work(rank *r) {
  const shape *s = r->shape;
  cudaStream_t stream = NULL;
  dt_cuda_moe *moe = NULL;
  dt_status status = cuda(cudaSetDevice(r->device), "device");
  if (!status) status = cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  for (int i = 0; i < INPUTS; i++) make_input(r, i, &status);
  const size_t matrix = (size_t)(s->hidden * s->intermediate), own = (size_t)(r->rank * s->experts);
  void *weights[3], *biases[3] = {NULL, NULL, NULL};
  for (int i = 0; i < 3; i++) {
    const size_t columns = (size_t)(i == 2 ? s->hidden : s->intermediate);
    weights[i] = to_device(host_weights[i] + own * matrix, 2 * matrix * (size_t)s->experts, &status);
    if (s->bias) biases[i] = to_device(host_biases[i] + own * columns, 4 * columns * (size_t)s->experts, &status);
  }
  dt_cuda_moe_config config;
  dt_cuda_moe_config_init(&config);
  config.comm = r->comm;
  config.hidden = s->hidden;
  config.intermediate = s->intermediate;
  config.experts_per_rank = s->experts;
  config.top_k = s->top_k;
  config.max_tokens = s->tokens;
  config.activation = s->bias ? DT_ACTIVATION_SWIGLU_CLAMPED : DT_ACTIVATION_SILU;
  config.activation_alpha = 1.702f;
  config.activation_limit = 7;
  config.schedule = DT_SCHEDULE_SERIAL;
  config.sms = r->sms;
  config.timeout_s = 2;
  const dt_cuda_moe_weights w = {weights[0], weights[1], weights[2], biases[0], biases[1], biases[2]};
  if (!status) status = dt_cuda_moe_create(&config, &w, &moe);
  if (!status) status = run_schedules(r, moe, config, stream);
  if (!status) status = run_more(r, moe, config, stream);
  if (!status && s->hasty) status = run_hasty(r, config, &w, stream);
  if (status) {
    snprintf(r->detail, sizeof r->detail, "%s", dt_error_detail());
    dt_comm_abort(r->comm, status, r->detail);
  }
  cudaStreamSynchronize(stream);
  dt_comm_barrier(r->comm, "end");
  if (moe) dt_cuda_moe_destroy(moe);
  for (int i = 0; i < 3; i++) cudaFree(weights[i]), cudaFree(biases[i]);
  for (int i = 0; i < INPUTS; i++) free_input(&r->inputs[i]);
  if (stream) cudaStreamDestroy(stream);
  return status;
}

static void *run_rank(void *context) {
  rank *r = context;
  r->status = dt_comm_create_cuda(r->control, r->device, &r->comm);
  if (r->status) {
    snprintf(r->detail, sizeof r->detail, "%s", dt_error_detail());
    dt_comm_abort(r->control, r->status, r->detail);
    return NULL;
  }
  r->status = work(r);
  return NULL;
}

static int check(const shape *s, int devices, int sms) {
  const size_t experts = (size_t)(s->ranks * s->experts), matrix = (size_t)(s->hidden * s->intermediate);
  int power = 0;
  while ((int64_t)1 << (2 * power) < s->hidden) power++;
  for (int i = 0; i < 3; i++) {
    const size_t columns = (size_t)(i == 2 ? s->hidden : s->intermediate);
    host_weights[i] = malloc(2 * experts * matrix);
    host_biases[i] = malloc(4 * experts * columns);
    fill(host_weights[i], experts * matrix, (uint64_t)(i + 1), power);
    for (size_t n = 0; n < experts * columns; n++) host_biases[i][n] = (float)((int)(n % 17) - 8) / 8;
  }
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
  for (int32_t r = 0; r < s->ranks; r++) {
    ranks[r] = (rank){.rank = r, .device = r % devices, .control = controls[r], .shape = s};
    ranks[r].sms = share > 1 ? sms / share / 2 * 2 : 0;
    pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]);
  }
  for (int32_t r = 0; r < s->ranks; r++) pthread_join(ranks[r].thread, NULL);
  int good = 1;
  double worst = 0;
  for (int32_t r = 0; r < s->ranks; r++) {
    if (!(ranks[r].worst <= worst)) worst = ranks[r].worst;
    if (ranks[r].status == DT_OK) continue;
    printf("FAIL rank %d: %s: %s\n", r, dt_status_name(ranks[r].status), ranks[r].detail);
    good = 0;
  }
  good = good && worst <= 8e-3;
  printf("%-4s ranks %d on %d GPUs, hidden %lld intermediate %lld experts %d top_k %d tokens %lld%s%s: error %.2e\n",
         good ? "ok" : "FAIL", s->ranks, devices < s->ranks ? devices : s->ranks, (long long)s->hidden,
         (long long)s->intermediate, s->experts, s->top_k, (long long)s->tokens, s->bias ? " clamped, biases" : "",
         s->hot ? " hot expert" : "", worst);
  fflush(stdout);
  for (int32_t r = 0; r < s->ranks; r++) dt_comm_destroy(ranks[r].comm ? ranks[r].comm : ranks[r].control);
  for (int i = 0; i < 3; i++) free(host_weights[i]), free(host_biases[i]);
  return good;
}

/* An argument: that shape alone. */
int main(int argc, char **argv) {
  int devices = 0, major = 0, sms = 0, reach = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 1 ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess || major != 9 ||
      cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0) != cudaSuccess) {
    printf("skipped: no Hopper GPU\n");
    return 77;
  }
  if (devices > 1 && (cudaDeviceCanAccessPeer(&reach, 0, 1) != cudaSuccess || !reach)) devices = 1;
  if (devices > 2) devices = 2;
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
    if ((argc < 2 || (size_t)atoi(argv[1]) == i) && !check(&shapes[i], devices, sms)) return 1;
  return 0;
}
