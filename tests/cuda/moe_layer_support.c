#include "moe_layer_support.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/random.h"
#include "cuda/driver.h"
#include "support_gpus.h"

enum { SAMPLES = 6 };

static uint16_t *host_weights[3]; /* gate, up, down of all ranks */
static float *host_biases[3];

static float widen(uint16_t value) {
  const uint32_t bits = (uint32_t)value << 16;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

dt_status moe_cuda(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return DT_OK;
  printf("FAIL %s: %s\n", what, cudaGetErrorString(error));
  return DT_ERR_DEVICE;
}

dt_status moe_fail(const moe_rank *rank, const char *format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  printf("FAIL rank %d: %s\n", rank->rank, text);
  return DT_ERR_INTERNAL;
}

void moe_give_up(moe_rank *r, dt_status status) {
  if (r->detail[0]) return;
  snprintf(r->detail, sizeof r->detail, "%s", dt_error_detail());
  dt_comm_abort(r->comm, status, r->detail);
}

void moe_fill(uint16_t *to, size_t count, uint64_t seed, int power) {
  dt_random random = {seed};
  for (size_t i = 0; i < count; i++) {
    const uint64_t bits = dt_random_u64(&random);
    to[i] = (uint16_t)((bits & 0x807f) | (uint64_t)(127 - power - (int)(bits >> 16 & 1)) << 7);
  }
}

void *moe_to_device(const void *host, size_t bytes, dt_status *status) {
  void *device = NULL;
  if (!*status) *status = moe_cuda(cudaMalloc(&device, bytes + 16), "memory");
  if (!*status && bytes) *status = moe_cuda(dt_cuda_write(device, host, bytes), "copy");
  return device;
}

static void choose_experts(const moe_shape *s, int index, dt_random *random, moe_input *in) {
  const int32_t experts = s->ranks * s->experts;
  const size_t k = (size_t)s->top_k;
  for (size_t i = 0; i < (size_t)in->tokens; i++)
    for (size_t j = 0; j < k; j++) {
      int32_t id, again = 1;
      while (again) {
        id = (int32_t)(dt_random_u64(random) % (uint64_t)experts);
        if (s->hot && j == 0 && dt_random_u64(random) % 4 != 0) id = 0;
        if (index == 3 && experts > 2 * s->top_k && id % 2) id--; /* every other expert without rows */
        again = 0;
        for (size_t c = 0; c < j; c++) again |= in->ids[i * k + c] == id;
      }
      in->ids[i * k + j] = index == 1 && dt_random_u64(random) % 5 == 0 ? -1 : id;
      in->weights[i * k + j] = (float)(1 + dt_random_u64(random) % 100) / 100;
    }
}

static void make_input(moe_rank *r, int index, dt_status *status) {
  const moe_shape *s = r->shape;
  moe_input *in = &r->inputs[index];
  dt_random random = {(uint64_t)(1000 + 10 * r->rank + index)};
  in->tokens = index == 0 ? s->tokens : (int64_t)(dt_random_u64(&random) % (uint64_t)(s->tokens + 1));
  if (index == 2 && r->rank == s->ranks - 1) in->tokens = 0;
  const size_t t = (size_t)in->tokens, h = (size_t)s->hidden, k = (size_t)s->top_k;
  in->hidden = malloc(2 * t * h + 16);
  in->ids = malloc(4 * t * k + 16);
  in->weights = malloc(4 * t * k + 16);
  in->expected = malloc(2 * t * h + 16);
  moe_fill(in->hidden, t * h, (uint64_t)(77 + 10 * r->rank + index), 0);
  choose_experts(s, index, &random, in);
  in->device.tokens = in->tokens;
  in->device.hidden = moe_to_device(in->hidden, 2 * t * h, status);
  in->device.ids = moe_to_device(in->ids, 4 * t * k, status);
  in->device.weights = moe_to_device(in->weights, 4 * t * k, status);
  in->device.output = moe_to_device(in->hidden, 2 * t * h, status);
}

static void free_input(moe_input *in) {
  cudaFree((void *)(uintptr_t)in->device.hidden), cudaFree((void *)(uintptr_t)in->device.ids);
  cudaFree((void *)(uintptr_t)in->device.weights), cudaFree(in->device.output);
  free(in->hidden), free(in->ids), free(in->weights), free(in->expected);
}

/* act of one expert for a token, in float64. */
static void reference_act(const moe_shape *s, size_t id, const uint16_t *x, double *act) {
  const size_t h = (size_t)s->hidden, n = (size_t)s->intermediate;
  const uint16_t *gate = host_weights[0] + id * n * h, *up = host_weights[1] + id * n * h;
  for (size_t i = 0; i < n; i++) {
    double g = s->bias ? host_biases[0][id * n + i] : 0, u = s->bias ? host_biases[1][id * n + i] : 0;
    for (size_t j = 0; j < h; j++) {
      g += widen(x[j]) * (double)widen(gate[i * h + j]);
      u += widen(x[j]) * (double)widen(up[i * h + j]);
    }
    if (s->bias) {
      g = fmin(g, 7);
      u = fmin(fmax(u, -7), 7);
      act[i] = (u + 1) * g / (1 + exp(-1.702 * g));
    } else {
      act[i] = u * g / (1 + exp(-g));
    }
  }
}

static double token_error(const moe_shape *s, const moe_input *in, int64_t t, const uint16_t *output) {
  const size_t h = (size_t)s->hidden, n = (size_t)s->intermediate;
  double *sum = calloc(h, sizeof *sum), *act = malloc(n * sizeof *act), difference = 0, norm = 0;
  for (int32_t c = 0; c < s->top_k; c++) {
    const int32_t id = in->ids[t * s->top_k + c];
    if (id < 0) continue;
    const uint16_t *down = host_weights[2] + (size_t)id * n * h;
    reference_act(s, (size_t)id, in->hidden + (size_t)t * h, act);
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

double moe_error(const moe_rank *r, int index, const uint16_t *output) {
  const moe_input *in = &r->inputs[index];
  double worst = 0;
  for (int64_t i = 0; i < in->tokens * r->shape->hidden; i++)
    if (output[i] == MOE_POISON) return INFINITY; /* not written: others would not have written it either */
  for (int i = 0; i < SAMPLES && in->tokens; i++) {
    const double error = token_error(r->shape, in, i * (in->tokens - 1) / (SAMPLES - 1), output);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

dt_status moe_forward(moe_rank *r, dt_cuda_moe *moe, int index) {
  const moe_input *in = &r->inputs[index];
  const size_t bytes = 2 * (size_t)(in->tokens * r->shape->hidden);
  dt_status status = moe_cuda(cudaMemsetAsync(in->device.output, 0xff, bytes, r->stream), "poison");
  return status ? status : dt_cuda_moe_forward(moe, &in->device, r->stream);
}

dt_status moe_fetch(const moe_rank *r, int index, uint16_t *output) {
  const moe_input *in = &r->inputs[index];
  const size_t bytes = 2 * (size_t)(in->tokens * r->shape->hidden);
  return moe_cuda(cudaMemcpy(output, in->device.output, bytes, cudaMemcpyDeviceToHost), "output");
}

dt_status moe_compare(const moe_rank *r, int index, const char *what, int number) {
  const moe_input *in = &r->inputs[index];
  const size_t columns = (size_t)r->shape->hidden, words = (size_t)in->tokens * columns;
  uint16_t *output = malloc(2 * words + 16);
  dt_status status = moe_fetch(r, index, output);
  size_t wrong = 0, first = 0;
  for (size_t i = words; i > 0 && !status; i--)
    if (output[i - 1] != in->expected[i - 1]) wrong++, first = i - 1;
  free(output);
  if (!wrong) return status;
  return moe_fail(r, "%s %d, input %d: %zu of %zu words differ, first token %zu column %zu", what, number, index, wrong,
                  words, first / columns, first % columns);
}

dt_status moe_run_graph(moe_rank *r, dt_cuda_moe *moe) {
  cudaGraph_t graph = NULL;
  cudaGraphExec_t exec = NULL;
  /* All ranks capture at once: a synchronous copy of another thread would spoil it. */
  dt_status status = dt_comm_barrier(r->comm, "capture");
  if (!status) status = moe_cuda(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeRelaxed), "capture");
  for (int index = 0; index < MOE_INPUTS && !status; index++) status = moe_forward(r, moe, index);
  if (!status) status = moe_cuda(cudaStreamEndCapture(r->stream, &graph), "capture");
  if (!status) status = dt_comm_barrier(r->comm, "captured");
  if (!status) status = moe_cuda(cudaGraphInstantiate(&exec, graph, 0), "graph");
  for (int i = 0; i < 5 && !status; i++) status = moe_cuda(cudaGraphLaunch(exec, r->stream), "graph");
  if (!status) status = dt_cuda_moe_check(moe, r->stream);
  for (int index = 0; index < MOE_INPUTS && !status; index++) status = moe_compare(r, index, "graph", 0);
  if (exec) cudaGraphExecDestroy(exec);
  if (graph) cudaGraphDestroy(graph);
  return status;
}

dt_status moe_run_parts(moe_rank *r, dt_cuda_moe *moe) {
  dt_status status = DT_OK;
  for (int part = DT_CUDA_MOE_COMPUTE; part <= DT_CUDA_MOE_IN_PLACE && !status; part++) {
    for (int i = 0; i < 3 && !status; i++)
      status = dt_cuda_moe_run_part(moe, (dt_cuda_moe_part)part, &r->inputs[MOE_INPUTS - 1].device, r->stream);
    if (!status) status = dt_cuda_moe_check(moe, r->stream);
    if (!status) status = dt_comm_barrier(r->comm, "part");
  }
  for (int index = 0; index < MOE_INPUTS && !status; index++) status = moe_forward(r, moe, index);
  if (!status) status = dt_cuda_moe_check(moe, r->stream);
  for (int index = 0; index < MOE_INPUTS && !status; index++) status = moe_compare(r, index, "after parts", 0);
  return status;
}

double moe_timeout_s = 2;

static dt_cuda_moe_config config_of(const moe_rank *r) {
  const moe_shape *s = r->shape;
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
  config.timeout_s = moe_timeout_s;
  return config;
}

static dt_status work(moe_rank *r) {
  const moe_shape *s = r->shape;
  dt_status status = moe_cuda(cudaSetDevice(r->device), "device");
  if (!status) status = moe_cuda(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking), "stream");
  for (int i = 0; i < MOE_INPUTS; i++) make_input(r, i, &status);
  const size_t matrix = (size_t)(s->hidden * s->intermediate), own = (size_t)(r->rank * s->experts);
  void *weights[3], *biases[3] = {NULL, NULL, NULL};
  for (int i = 0; i < 3; i++) {
    const size_t columns = (size_t)(i == 2 ? s->hidden : s->intermediate);
    weights[i] = moe_to_device(host_weights[i] + own * matrix, 2 * matrix * (size_t)s->experts, &status);
    if (s->bias) biases[i] = moe_to_device(host_biases[i] + own * columns, 4 * columns * (size_t)s->experts, &status);
  }
  const dt_cuda_moe_config config = config_of(r);
  const dt_cuda_moe_weights w = {weights[0], weights[1], weights[2], biases[0], biases[1], biases[2]};
  if (!status) status = r->work(r, &config, &w);
  if (status) moe_give_up(r, status);
  cudaStreamSynchronize(r->stream);
  dt_comm_barrier(r->comm, "end");
  for (int i = 0; i < 3; i++) cudaFree(weights[i]), cudaFree(biases[i]);
  for (int i = 0; i < MOE_INPUTS; i++) free_input(&r->inputs[i]);
  if (r->stream) cudaStreamDestroy(r->stream);
  return status;
}

static void *run_rank(void *context) {
  moe_rank *r = context;
  r->status = dt_comm_create_cuda(r->control, r->device, &r->comm);
  if (r->status) {
    snprintf(r->detail, sizeof r->detail, "%s", dt_error_detail());
    dt_comm_abort(r->control, r->status, r->detail);
  } else {
    r->status = work(r);
  }
  return NULL;
}

/* Of a rank that is through: prints its error. */
static int is_well(const moe_rank *r) {
  const int good = r->status == DT_OK && r->worst <= 8e-3;
  if (r->status) printf("FAIL rank %d: %s: %s\n", r->rank, dt_status_name(r->status), r->detail);
  if (!(r->worst <= 8e-3)) printf("FAIL rank %d: relative error %.2e\n", r->rank, r->worst);
  return good;
}

static void make_weights(const moe_shape *s) {
  const size_t experts = (size_t)(s->ranks * s->experts), matrix = (size_t)(s->hidden * s->intermediate);
  int power = 0;
  while ((int64_t)1 << (2 * power) < s->hidden) power++;
  for (int i = 0; i < 3; i++) {
    const size_t columns = (size_t)(i == 2 ? s->hidden : s->intermediate);
    host_weights[i] = malloc(2 * experts * matrix);
    host_biases[i] = malloc(4 * experts * columns);
    moe_fill(host_weights[i], experts * matrix, (uint64_t)(i + 1), power);
    for (size_t n = 0; n < experts * columns; n++) host_biases[i][n] = (float)((int)(n % 17) - 8) / 8;
  }
}

static void free_weights(void) {
  for (int i = 0; i < 3; i++) free(host_weights[i]), free(host_biases[i]);
}

static moe_rank rank_of(const moe_shape *s, int32_t rank, int devices, int sms, moe_work part) {
  const int share = (s->ranks + devices - 1) / devices;
  return (moe_rank){
      .rank = rank, .device = rank % devices, .sms = share > 1 ? sms / share / 2 * 2 : 0, .shape = s, .work = part};
}

static void print_line(const char *name, const moe_shape *s, int good, double worst) {
  printf("%-4s %s: ranks %d, hidden %lld intermediate %lld experts %d top_k %d tokens %lld%s%s", good ? "ok" : "FAIL",
         name, s->ranks, (long long)s->hidden, (long long)s->intermediate, s->experts, s->top_k, (long long)s->tokens,
         s->bias ? " clamped, biases" : "", s->hot ? " hot expert" : "");
  if (worst > 0) printf(": error %.2e", worst);
  printf("\n");
  fflush(stdout);
}

static dt_comm_config comm_config(void) {
  dt_comm_config config;
  dt_comm_config_init(&config);
  config.entry_timeout_s = config.timeout_s = 10;
  return config;
}

int moe_check_threads(const char *name, const moe_shape *s, int devices, int sms, moe_work part) {
  moe_rank ranks[MOE_RANKS_MAX];
  dt_comm *controls[MOE_RANKS_MAX];
  const dt_comm_config config = comm_config();
  if (dt_comm_create_local(s->ranks, &config, controls) != DT_OK) {
    printf("FAIL %s\n", dt_error_detail());
    return 0;
  }
  make_weights(s);
  for (int32_t r = 0; r < s->ranks; r++) {
    ranks[r] = rank_of(s, r, devices, sms, part);
    ranks[r].control = controls[r];
    pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]);
  }
  int good = 1;
  double worst = 0;
  for (int32_t r = 0; r < s->ranks; r++) {
    pthread_join(ranks[r].thread, NULL);
    good = is_well(&ranks[r]) && good;
    if (!(ranks[r].worst <= worst)) worst = ranks[r].worst;
  }
  for (int32_t r = 0; r < s->ranks; r++) dt_comm_destroy(ranks[r].comm ? ranks[r].comm : ranks[r].control);
  free_weights();
  print_line(name, s, good, worst);
  return good;
}

/* Where processes meet before they have a fabric. */
typedef struct board {
  pthread_barrier_t barrier;
  int32_t ranks;
  unsigned char data[MOE_RANKS_MAX * 65536];
} board;
typedef struct seat {
  board *board;
  int32_t rank;
} seat;

static int gather(void *context, const void *send, void *receive, size_t bytes) {
  const seat *s = context;
  if (bytes > 65536) return 1;
  memcpy(s->board->data + (size_t)s->rank * bytes, send, bytes);
  pthread_barrier_wait(&s->board->barrier);
  memcpy(receive, s->board->data, (size_t)s->board->ranks * bytes);
  pthread_barrier_wait(&s->board->barrier);
  return 0;
}

static int process(const moe_shape *s, int32_t rank, moe_work part, board *meeting) {
  int sms = 0;
  const int devices = moe_devices(&sms);
  if (devices == 0) return MOE_SKIPPED;
  moe_rank r = rank_of(s, rank, devices, sms, part);
  seat own = {meeting, rank};
  const dt_comm_config config = comm_config();
  r.status = dt_comm_create_shm(rank, s->ranks, gather, &own, &config, &r.control);
  if (r.status) {
    snprintf(r.detail, sizeof r.detail, "%s", dt_error_detail());
    return !is_well(&r);
  }
  make_weights(s);
  run_rank(&r);
  const int good = is_well(&r);
  dt_comm_destroy(r.comm ? r.comm : r.control);
  free_weights();
  fflush(stdout);
  return !good;
}

int moe_check_processes(const char *name, const moe_shape *s, moe_work part, int32_t dies) {
  board *meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (meeting == MAP_FAILED) return 0;
  meeting->ranks = s->ranks;
  pthread_barrierattr_t shared;
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&meeting->barrier, &shared, (unsigned)s->ranks);
  fflush(stdout);
  pid_t children[MOE_RANKS_MAX];
  for (int32_t r = 0; r < s->ranks; r++) {
    children[r] = fork();
    if (children[r] == 0) _exit(process(s, r, part, meeting));
  }
  int good = 1, skipped = 0;
  for (int32_t r = 0; r < s->ranks; r++) {
    int status = 0;
    if (children[r] < 0 || waitpid(children[r], &status, 0) != children[r]) status = 1;
    if (WIFEXITED(status) && WEXITSTATUS(status) == MOE_SKIPPED) skipped = 1;
    const int as_expected = r == dies ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!as_expected && !skipped) printf("FAIL rank %d's process: wait status %#x\n", r, (unsigned)status);
    good = good && as_expected;
  }
  munmap(meeting, sizeof *meeting);
  if (skipped) return -1;
  print_line(name, s, good, 0);
  return good;
}

int moe_devices(int *sms) {
  const int devices = support_gpus(2);
  if (devices < 1 || cudaDeviceGetAttribute(sms, cudaDevAttrMultiProcessorCount, 0) != cudaSuccess) return 0;
  return devices;
}
