/* One MoE layer on GPUs: two ranks, threads of this process, with a Hopper GPU each (or halves of the only one). Random
 * weights in bf16; a forward on the caller's stream and its replay from a CUDA graph must give the same bits, and what
 * the CPU executor gives.
 *
 *     cc -std=c11 moe_layer_cuda.c $(pkg-config --cflags --libs draintile) -I/usr/local/cuda/include \
 *        -L/usr/local/cuda/lib64 -lcudart -lm -pthread
 *
 * Exits with 77 where there is no such GPU.
 */
#include <draintile/draintile.h>

#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 2, EXPERTS_PER_RANK = 8, HIDDEN = 1024, INTERMEDIATE = 512, TOKENS = 600, TOP_K = 4 };
enum { MATRIX = HIDDEN * INTERMEDIATE, VALUES = TOKENS * HIDDEN, SLOTS = TOKENS * TOP_K, REPLAYS = 3 };
static const double TOLERANCE = 1e-2; /* of a token's norm: both sides round to bf16 at other places */

typedef struct rank {
  pthread_t thread;
  int number, device;
  dt_comm *control, *comm, *cpu_comm; /* endpoints: host, GPU (on top of control), CPU executor */
  cudaStream_t stream;
  uint16_t *weights, *hidden, *output; /* host: gate, up, down of all experts; rows in bf16 */
  int32_t ids[SLOTS];
  float shares[SLOTS];
  void *device_weights, *device_hidden, *device_ids, *device_shares, *device_output;
  dt_cuda_moe_stats stats;
  dt_status status;
  double error;
} rank;

static float widen(uint16_t bf16) {
  const uint32_t bits = (uint32_t)bf16 << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* bf16, even in (-range, range). */
static uint16_t *random_values(size_t count, float range, uint32_t state) {
  uint16_t *values = malloc(count * sizeof *values);
  for (size_t i = 0; values && i < count; i++) {
    state = state * 1664525u + 1013904223u;
    const float value = range * ((float)(state >> 8) / 8388608.0f - 1.0f);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    values[i] = (uint16_t)(bits >> 16);
  }
  return values;
}

static dt_status cuda(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return DT_OK;
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  return DT_ERR_DEVICE;
}

static dt_status upload(rank *r, void **to, const void *from, size_t bytes) {
  dt_status status = cuda(cudaMalloc(to, bytes), "cudaMalloc");
  return status ? status : cuda(cudaMemcpyAsync(*to, from, bytes, cudaMemcpyDefault, r->stream), "upload");
}

/* What the layer borrows: weights until it is destroyed, a forward's memory until that has ended on the stream. */
static dt_status prepare(rank *r) {
  const float range = 1.7f / sqrtf(HIDDEN);
  r->weights = random_values(3ul * EXPERTS_PER_RANK * MATRIX, range, 1u + (uint32_t)r->number);
  r->hidden = random_values(VALUES, 1, 100u + (uint32_t)r->number);
  r->output = malloc(2 * VALUES * sizeof *r->output);
  if (!r->weights || !r->hidden || !r->output) return DT_ERR_MEMORY;
  for (int i = 0; i < SLOTS; i++) {
    r->ids[i] = (i * 5 + i / TOP_K * (3 + r->number)) % (RANKS * EXPERTS_PER_RANK); /* a router's choice */
    r->shares[i] = (float)(1 + i % TOP_K) / 10;
  }
  dt_status status = upload(r, &r->device_weights, r->weights, 3ul * EXPERTS_PER_RANK * MATRIX * 2);
  if (!status) status = upload(r, &r->device_hidden, r->hidden, VALUES * 2);
  if (!status) status = upload(r, &r->device_ids, r->ids, sizeof r->ids);
  if (!status) status = upload(r, &r->device_shares, r->shares, sizeof r->shares);
  if (!status) status = cuda(cudaMalloc(&r->device_output, VALUES * 2), "cudaMalloc");
  return status ? status : cuda(cudaStreamSynchronize(r->stream), "upload");
}

/* Waits for the stream. What a kernel met (a peer that does not come, an id out of range) is known only here. */
static dt_status fetch(rank *r, dt_cuda_moe *moe, uint16_t *to) {
  dt_status status = dt_cuda_moe_check(moe, r->stream);
  return status ? status : cuda(cudaMemcpy(to, r->device_output, VALUES * 2, cudaMemcpyDeviceToHost), "output");
}

/* Every rank replays as often as the others. Captured are this thread's calls: the other rank's may copy meanwhile. */
static dt_status replay(rank *r, dt_cuda_moe *moe, const dt_cuda_moe_input *input) {
  cudaGraph_t graph = NULL;
  cudaGraphExec_t exec = NULL;
  dt_status status = cuda(cudaMemsetAsync(r->device_output, 0xff, VALUES * 2, r->stream), "poison");
  if (!status) status = cuda(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal), "capture");
  if (!status) {
    status = dt_cuda_moe_forward(moe, input, r->stream);
    const dt_status ended = cuda(cudaStreamEndCapture(r->stream, &graph), "capture");
    if (!status) status = ended;
  }
  if (!status) status = cuda(cudaGraphInstantiate(&exec, graph, 0), "graph");
  if (!status) status = dt_comm_barrier(r->comm, "graph");
  for (int i = 0; i < REPLAYS && !status; i++) status = cuda(cudaGraphLaunch(exec, r->stream), "graph");
  if (!status) status = fetch(r, moe, r->output + VALUES);
  if (exec) cudaGraphExecDestroy(exec);
  if (graph) cudaGraphDestroy(graph);
  if (!status && memcmp(r->output, r->output + VALUES, VALUES * 2) != 0) {
    fprintf(stderr, "rank %d: the graph's rows differ from the call's\n", r->number);
    status = DT_ERR_INTERNAL;
  }
  return status;
}

static dt_status run_gpu(rank *r) {
  dt_cuda_moe_config config;
  dt_cuda_moe_config_init(&config);
  config.comm = r->comm;
  config.hidden = HIDDEN;
  config.intermediate = INTERMEDIATE;
  config.experts_per_rank = EXPERTS_PER_RANK;
  config.top_k = TOP_K;
  config.max_tokens = TOKENS;
  config.schedule = DT_SCHEDULE_INTERLEAVE;
  const uint16_t *w = r->device_weights;
  const dt_cuda_moe_weights weights = {
      .gate = w, .up = w + EXPERTS_PER_RANK * MATRIX, .down = w + 2 * EXPERTS_PER_RANK * MATRIX};
  const dt_cuda_moe_input input = {.tokens = TOKENS,
                                   .hidden = r->device_hidden,
                                   .ids = r->device_ids,
                                   .weights = r->device_shares,
                                   .output = r->device_output};
  dt_cuda_moe *moe = NULL;
  dt_status status = dt_cuda_moe_create(&config, &weights, &moe);
  if (!status) status = dt_cuda_moe_forward(moe, &input, r->stream); /* returns at once */
  if (!status) status = fetch(r, moe, r->output);
  if (!status) status = replay(r, moe, &input);
  if (!status) status = dt_cuda_moe_stats_read(moe, r->stream, &r->stats);
  if (status) dt_comm_abort(r->comm, status, dt_error_detail()); /* the peer's host gives up; its kernels, too */
  dt_cuda_moe_destroy(moe);
  return status;
}

static dt_matrix matrix_of(const uint16_t *data, int64_t rows, int64_t cols) {
  return (dt_matrix){
      .data = data, .dtype = DT_DTYPE_BF16, .rows = rows, .cols = cols, .row_stride = cols, .col_stride = 1};
}

/* The same layer by the CPU executor, from the same weights. */
static dt_status run_cpu(rank *r, uint16_t *output) {
  dt_expert experts[EXPERTS_PER_RANK] = {0};
  for (size_t e = 0; e < EXPERTS_PER_RANK; e++) {
    experts[e].gate = matrix_of(r->weights + e * MATRIX, INTERMEDIATE, HIDDEN);
    experts[e].up = matrix_of(r->weights + (EXPERTS_PER_RANK + e) * MATRIX, INTERMEDIATE, HIDDEN);
    experts[e].down = matrix_of(r->weights + (2 * EXPERTS_PER_RANK + e) * MATRIX, HIDDEN, INTERMEDIATE);
  }
  const dt_moe_weights weights = {
      .hidden = HIDDEN, .intermediate = INTERMEDIATE, .experts_per_rank = EXPERTS_PER_RANK, .experts = experts};
  const dt_moe_input input = {.tokens = TOKENS, .hidden = r->hidden, .ids = r->ids, .weights = r->shares};
  dt_moe_config config;
  dt_moe_config_init(&config);
  config.dtype = DT_DTYPE_BF16;
  config.top_k = TOP_K;
  config.max_tokens = TOKENS;
  dt_moe *moe = NULL;
  dt_status status = dt_moe_create(r->cpu_comm, &config, &weights, &moe);
  if (!status) status = dt_moe_forward(moe, &input, output, NULL);
  dt_moe_destroy(moe);
  return status;
}

static double largest_error(const uint16_t *output, const uint16_t *expected) {
  double worst = 0;
  for (int t = 0; t < TOKENS; t++) {
    double difference = 0, norm = 0;
    for (int i = t * HIDDEN; i < (t + 1) * HIDDEN; i++) {
      const double e = widen(expected[i]), d = widen(output[i]) - e;
      difference += d * d, norm += e * e;
    }
    const double error = sqrt(difference / norm);
    if (!(error <= worst)) worst = isnan(error) ? INFINITY : error;
  }
  return worst;
}

static void *rank_main(void *argument) {
  rank *r = argument;
  dt_status status = dt_comm_create_cuda(r->control, r->device, &r->comm); /* takes control over if it succeeds */
  if (!status) status = cuda(cudaSetDevice(r->device), "cudaSetDevice");
  if (!status) status = prepare(r);
  if (!status) status = run_gpu(r);
  if (!status) status = run_cpu(r, r->output + VALUES);
  if (!status) r->error = largest_error(r->output, r->output + VALUES);
  r->status = status;
  if (!status) return NULL;
  fprintf(stderr, "rank %d: %s: %s\n", r->number, dt_status_text(status), dt_error_detail());
  dt_comm_abort(r->comm ? r->comm : r->control, status, dt_error_detail());
  dt_comm_abort(r->cpu_comm, status, dt_error_detail());
  return NULL;
}

static void close_rank(rank *r) {
  if (r->stream) cudaStreamDestroy(r->stream);
  cudaFree(r->device_weights), cudaFree(r->device_hidden), cudaFree(r->device_ids), cudaFree(r->device_shares);
  cudaFree(r->device_output);
  free(r->weights), free(r->hidden), free(r->output);
  dt_comm_destroy(r->comm ? r->comm : r->control);
  dt_comm_destroy(r->cpu_comm);
}

int main(void) {
  dt_cuda_device info;
  const int devices = dt_cuda_devices();
  if (devices == 0 || dt_cuda_device_info(0, &info) != DT_OK || info.major != 9) {
    printf("no Hopper GPU here: skipped\n");
    return 77;
  }
  static rank ranks[RANKS];
  dt_comm *controls[RANKS], *cpu_comms[RANKS];
  if (dt_comm_create_local(RANKS, NULL, controls) || dt_comm_create_local(RANKS, NULL, cpu_comms)) {
    fprintf(stderr, "%s\n", dt_error_detail());
    return 3;
  }
  int failed = 0;
  for (int n = 0; n < RANKS; n++) {
    ranks[n] = (rank){.number = n, .device = n % devices, .control = controls[n], .cpu_comm = cpu_comms[n]};
    failed |= cuda(cudaSetDevice(ranks[n].device), "cudaSetDevice") != DT_OK ||
              cuda(cudaStreamCreateWithFlags(&ranks[n].stream, cudaStreamNonBlocking), "stream") != DT_OK;
  }
  if (failed) return 3;
  for (int n = 0; n < RANKS; n++)
    if (pthread_create(&ranks[n].thread, NULL, rank_main, &ranks[n]) != 0) return 3;
  for (int n = 0; n < RANKS; n++) {
    pthread_join(ranks[n].thread, NULL);
    failed |= ranks[n].status != DT_OK;
    if (ranks[n].status == DT_OK)
      printf(
          "rank %d, GPU %d: %lld rows, %lld for the other; call and graph equal to the bit, largest error of a token "
          "%.1e (allowed %.0e)\n",
          n, ranks[n].device, (long long)ranks[n].stats.rows, (long long)ranks[n].stats.sent_rows, ranks[n].error,
          TOLERANCE);
  }
  int wrong = 0;
  for (int n = 0; n < RANKS; n++) {
    wrong |= !(ranks[n].error <= TOLERANCE);
    close_rank(&ranks[n]);
  }
  return failed ? 3 : wrong;
}
