/* Times both GEMMs of a MoE layer alone, in one launch of the layer's engine on one GPU: all rows are there, none go to
 * another rank. Beside it cuBLAS with as many flops in two dense GEMMs (every row by one expert's weights), L1 alone
 * with its activation fused, and L1 as a plain grouped GEMM that stores gate and up. Candidates in turn, launches
 * spaced, the cache evicted before each; the median counts. tests/cuda/check_moe.c checks results.
 *
 *   layer_alone FILE.json COMMIT
 *
 * Shapes and the prototype's times beside them are those of a throw-away engine on another card of the same kind; what
 * can be compared between cards is the ratio to cuBLAS of the same run.
 */
#include <draintile/comm.h>
#include <draintile/gemm.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/random.h"
#include "core/statistics.h"
#include "cuda/driver.h"
#include "cuda/gemm_prepare.h"
#include "cuda/moe_bench_kernels.h"
#include "cuda/moe_handle.h"
#include "gemm_cublas.h"
#include "gemm_problem.h"

cudaError_t gemm_settle(const void *memory, size_t bytes, cudaStream_t stream);

enum { REPEATS = 20, WARM_UP = 3, TABLE_BLOCKS = 64, FLUSH_BYTES = 512 << 20 };

typedef struct alone_shape {
  const char *model;
  int64_t hidden, intermediate, rows;
  int32_t experts, top_k, uneven; /* experts: half of the model's, as on each of two GPUs */
  double prototype_us, prototype_dense_us;
} alone_shape;
static const alone_shape shapes[] = {{"qwen3-30b", 2048, 768, 65536, 64, 8, 0, 833, 850},
                                     {"qwen3-30b", 2048, 768, 8192, 64, 8, 0, 177, 152},
                                     {"qwen3-235b", 4096, 1536, 32768, 64, 8, 0, 1625, 1619},
                                     {"qwen3-235b", 4096, 1536, 8192, 64, 8, 0, 638, 438},
                                     {"deepseek-v3", 7168, 2048, 32768, 128, 8, 0, 4067, 3717},
                                     {"mixtral", 4096, 14336, 16384, 4, 2, 0, 7226, 7300},
                                     {"qwen3-next", 2048, 512, 40960, 256, 10, 0, 589, 399},
                                     {"qwen3-30b", 2048, 768, 65536, 64, 8, 1, 869, 862},
                                     {"qwen3-235b", 4096, 1536, 32768, 64, 8, 1, 1809, 1616},
                                     {"deepseek-v3", 7168, 2048, 32768, 128, 8, 1, 4847, 3727}};

typedef enum method { LAYER, PART, L1, PLAIN_L1, DENSE, METHODS } method;
static const char *const names[METHODS] = {"one launch", "one launch and its table", "L1 fused", "L1 plain",
                                           "cublas dense"};

static cudaStream_t stream;
static void *flush;

/* A layer of one rank, and operands of the others. */
typedef struct alone {
  const alone_shape *shape;
  dt_comm *comm;
  dt_cuda_moe *moe;
  dt_cuda_moe_input input;
  uint16_t *gate, *up, *down, *both, *x, *output, *wide, *narrow; /* both: gate and up of an expert in one matrix */
  int32_t *ids, *counts, l1_tasks;
  float *weights;
  void *workspace;
  dt_cuda_gemm plain;
} alone;

static uint16_t *device_random(int64_t elements, uint64_t seed, float scale) {
  uint16_t *to;
  cuda_must(cudaMalloc((void **)&to, 2 * (size_t)elements), "cudaMalloc");
  cuda_must(dt_moe_bench_fill(to, elements, seed, 0, scale, stream), "fill");
  return to;
}

static void *device_copy(const void *from, size_t bytes) {
  void *to;
  cuda_must(cudaMalloc(&to, bytes), "cudaMalloc");
  cuda_must(dt_cuda_write(to, from, bytes), "copy");
  return to;
}

/* Rows of each expert: even, or in proportion to uniform random numbers; none has more than there are tokens. */
static void draw_counts(const alone_shape *s, int32_t *counts) {
  dt_random random = {77};
  const int64_t tokens = s->rows / s->top_k;
  double *weight = malloc((size_t)s->experts * sizeof *weight), sum = 0, upto = 0;
  for (int32_t e = 0; e < s->experts; e++) sum += weight[e] = s->uneven ? dt_random_unit(&random) : 1;
  int64_t given = 0;
  for (int32_t e = 0; e < s->experts; e++) {
    upto += weight[e];
    int64_t rows = (int64_t)(upto / sum * (double)s->rows + 0.5) - given;
    if (e + 1 == s->experts) rows = s->rows - given;
    if (rows > tokens) {
      fprintf(stderr, "%s: expert %d has %lld rows, more than tokens\n", s->model, e, (long long)rows);
      exit(3);
    }
    counts[e] = (int32_t)rows;
    given += rows;
  }
  free(weight);
}

/* Choices one after the other down the tokens, expert by expert: no token meets an expert twice. */
static void fill_choices(const alone_shape *s, const int32_t *counts, int32_t *ids, float *weights) {
  const int64_t tokens = s->rows / s->top_k;
  int64_t slot = 0;
  for (int32_t e = 0; e < s->experts; e++)
    for (int32_t i = 0; i < counts[e]; i++, slot++) ids[slot % tokens * s->top_k + slot / tokens] = e;
  for (int64_t i = 0; i < s->rows; i++) weights[i] = 1.0f / (float)s->top_k;
}

static void open_layer(alone *a) {
  const alone_shape *s = a->shape;
  dt_comm_config comm;
  dt_comm_config_init(&comm);
  dt_comm *control;
  must(dt_comm_create_local(1, &comm, &control), "fabric");
  must(dt_comm_create_cuda(control, 0, &a->comm), "fabric");
  dt_cuda_moe_config config;
  dt_cuda_moe_config_init(&config);
  config.comm = a->comm;
  config.hidden = s->hidden;
  config.intermediate = s->intermediate;
  config.experts_per_rank = s->experts;
  config.top_k = s->top_k;
  config.max_tokens = s->rows / s->top_k;
  config.schedule = DT_SCHEDULE_SERIAL;
  config.timeout_s = 3;
  const dt_cuda_moe_weights weights = {.gate = a->gate, .up = a->up, .down = a->down};
  must(dt_cuda_moe_create(&config, &weights, &a->moe), "layer");
  must(dt_cuda_moe_forward(a->moe, &a->input, stream), "forward");
  must(dt_cuda_moe_check(a->moe, stream), "forward");
}

static void open_alone(alone *a, const alone_shape *s) {
  memset(a, 0, sizeof *a);
  a->shape = s;
  const int64_t matrix = s->experts * s->hidden * s->intermediate, tokens = s->rows / s->top_k;
  a->gate = device_random(matrix, 1, 0.02f);
  a->up = device_random(matrix, 2, 0.02f);
  a->down = device_random(matrix, 3, 0.02f);
  a->both = device_random(2 * matrix, 4, 0.02f);
  a->x = device_random(s->rows * s->hidden, 5, 1);
  const int64_t widest = s->hidden > 2 * s->intermediate ? s->hidden : 2 * s->intermediate;
  a->wide = device_random(s->rows * widest, 6, 1);
  a->narrow = device_random(s->rows * s->hidden, 8, 1);
  a->output = device_random(tokens * s->hidden, 7, 1);
  int32_t *counts = malloc((size_t)s->experts * sizeof *counts), *ids = malloc((size_t)s->rows * sizeof *ids);
  float *weights = malloc((size_t)s->rows * sizeof *weights);
  draw_counts(s, counts);
  fill_choices(s, counts, ids, weights);
  for (int32_t e = 0; e < s->experts; e++) {
    const dt_run run = {.expert = e, .rows = counts[e]};
    a->l1_tasks += dt_run_tasks(&run, (int32_t)((s->intermediate + DT_TILE_N / 2 - 1) / (DT_TILE_N / 2)));
  }
  a->counts = device_copy(counts, (size_t)s->experts * sizeof *counts);
  a->ids = device_copy(ids, (size_t)s->rows * sizeof *ids);
  a->weights = device_copy(weights, (size_t)s->rows * sizeof *weights);
  free(counts), free(ids), free(weights);
  a->input =
      (dt_cuda_moe_input){.tokens = tokens, .hidden = a->x, .ids = a->ids, .weights = a->weights, .output = a->output};
  open_layer(a);
  dt_cuda_gemm *g = &a->plain;
  dt_cuda_gemm_init(g);
  g->a = a->x;
  g->b = a->both;
  g->out = a->wide;
  g->counts = a->counts;
  g->experts = s->experts;
  g->rows_max = s->rows;
  g->n = 2 * s->intermediate;
  g->k = s->hidden;
  g->timeout_s = 3;
  size_t bytes;
  must(dt_cuda_gemm_workspace(g, &bytes), "workspace");
  cuda_must(cudaMalloc(&a->workspace, bytes), "cudaMalloc");
}

static void close_alone(alone *a) {
  dt_cuda_moe_destroy(a->moe);
  dt_comm_destroy(a->comm);
  void *const memory[] = {a->gate,   a->up,     a->down, a->both,   a->x,       a->wide,
                          a->narrow, a->output, a->ids,  a->counts, a->weights, a->workspace};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) cudaFree(memory[i]);
}

/* The layer's tiles as DT_CUDA_MOE_COMPUTE runs them, once the table is there. */
static cudaError_t launch_tiles(alone *a) {
  const dt_cuda_moe *m = a->moe;
  dt_tile_layer layer = m->layer;
  layer.signals = layer.waits = 0;
  layer.local_rows = m->combine_rows > 16 ? (int32_t)m->combine_rows - 15 : 1;
  layer.gemm.owners_count = 1;
  layer.gemm.owners[0] = m->buffers[0];
  layer.gemm.owner_rows[0] = layer.buffers[0];
  return dt_tile_layer_launch(&layer, m->sms / DT_TILE_CLUSTER * DT_TILE_CLUSTER, stream);
}

static void run_dense(const alone *a) {
  const alone_shape *s = a->shape;
  gemm_problem p = {.shape = {s->rows, 2 * s->intermediate, s->hidden, 1, SIZES_EVEN}, .a = a->x, .b = a->both};
  cublas_dense(&p, a->wide);
  p.shape.n = s->hidden;
  p.shape.k = s->intermediate;
  p.a = a->wide; /* what it holds does not matter, but that it is not zero */
  p.b = a->down;
  cublas_dense(&p, a->narrow);
}

/* One launch between the events; what only prepares it comes before. */
static double time_one(alone *a, method m, cudaEvent_t start, cudaEvent_t stop) {
  dt_tile_gemm plain;
  int ctas = 0;
  if (m == LAYER || m == L1) {
    a->moe->plan.tiles_only = 1;
    dt_cuda_moe_take_input(&a->moe->plan, &a->input);
    cuda_must(dt_moe_table_launch(&a->moe->plan, TABLE_BLOCKS, stream), "table");
  }
  if (m == L1)
    cuda_must(
        cudaMemcpyAsync(&a->moe->layer.state->tasks, &a->l1_tasks, sizeof a->l1_tasks, cudaMemcpyHostToDevice, stream),
        "tasks");
  if (m == PLAIN_L1) must(dt_gemm_prepare(&a->plain, a->workspace, stream, &plain, &ctas), "plain");
  cuda_must(gemm_settle(flush, FLUSH_BYTES, stream), "gemm_settle");
  cuda_must(cudaEventRecord(start, stream), "cudaEventRecord");
  switch (m) {
  case LAYER:
  case L1:
    cuda_must(launch_tiles(a), "tiles");
    break;
  case PART:
    must(dt_cuda_moe_run_part(a->moe, DT_CUDA_MOE_COMPUTE, &a->input, stream), "compute");
    break;
  case PLAIN_L1:
    cuda_must(dt_tile_gemm_launch(&plain, ctas, stream), "plain");
    break;
  default:
    run_dense(a);
    break;
  }
  cuda_must(cudaEventRecord(stop, stream), "cudaEventRecord");
  cuda_must(cudaEventSynchronize(stop), names[m]);
  float ms;
  cuda_must(cudaEventElapsedTime(&ms, start, stop), "cudaEventElapsedTime");
  usleep(500);
  return 1e-3 * ms;
}

/* Over the prototype: ours over cuBLAS, by the same of the prototype. NaN without cuBLAS. */
typedef struct ratios {
  double over_prototype, fused_over_plain;
} ratios;

static ratios time_shape(const alone_shape *s, int methods, FILE *json, int last) {
  static double samples[METHODS][REPEATS];
  alone a;
  open_alone(&a, s);
  cudaEvent_t start, stop;
  cuda_must(cudaEventCreate(&start), "cudaEventCreate");
  cuda_must(cudaEventCreate(&stop), "cudaEventCreate");
  for (int r = -WARM_UP; r < REPEATS; r++)
    for (int m = 0; m < methods; m++) {
      const double seconds = time_one(&a, (method)m, start, stop);
      if (r >= 0) samples[m][r] = seconds;
    }
  must(dt_cuda_moe_check(a.moe, stream), "layer");
  must(dt_cuda_gemm_check(a.workspace, stream), "plain");
  fprintf(json,
          "  {\"model\": \"%s\", \"hidden\": %lld, \"intermediate\": %lld, \"experts\": %d, \"rows\": %lld, \"sizes\": "
          "\"%s\", \"flops\": %.6e, \"prototype_s\": %.4e, \"prototype_dense_s\": %.4e, \"candidates\": [\n",
          s->model, (long long)s->hidden, (long long)s->intermediate, s->experts, (long long)s->rows,
          s->uneven ? "uniform" : "even", 6.0 * (double)s->rows * (double)s->hidden * (double)s->intermediate,
          1e-6 * s->prototype_us, 1e-6 * s->prototype_dense_us);
  double median[METHODS];
  for (int m = 0; m < METHODS; m++) median[m] = m < methods ? dt_median(samples[m], REPEATS) : NAN;
  const ratios r = {median[LAYER] / median[DENSE] / (s->prototype_us / s->prototype_dense_us),
                    median[L1] / median[PLAIN_L1]};
  printf("%s rows %lld %s:", s->model, (long long)s->rows, s->uneven ? "uniform" : "even");
  for (int m = 0; m < methods; m++) {
    printf(" %s %.1f us;", names[m], 1e6 * median[m]);
    fprintf(json, "    {\"name\": \"%s\", \"median_s\": %.4e, \"samples_s\": [", names[m], median[m]);
    for (int i = 0; i < REPEATS; i++) fprintf(json, "%s%.4e", i ? ", " : "", samples[m][i]);
    fprintf(json, "]}%s\n", m + 1 < methods ? "," : "");
  }
  fprintf(json, "  ]}%s\n", last ? "" : ",");
  printf(" over the prototype %.3f\n", r.over_prototype);
  fflush(stdout);
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  close_alone(&a);
  return r;
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: layer_alone FILE.json COMMIT\n");
    return 2;
  }
  FILE *json = fopen(argv[1], "w");
  if (json == NULL) {
    perror(argv[1]);
    return 1;
  }
  struct cudaDeviceProp device;
  cuda_must(cudaSetDevice(0), "cudaSetDevice");
  cuda_must(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  cuda_must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  cuda_must(cudaMalloc(&flush, FLUSH_BYTES), "cudaMalloc");
  cuda_must(dt_cuda_fill(flush, 1, FLUSH_BYTES), "flush");
  const int methods = cublas_open(stream) ? METHODS : METHODS - 1;
  if (methods < METHODS) fprintf(stderr, "cuBLAS not found: timing ours alone\n");
  fprintf(json, "{\"schema\": 1, \"device\": \"%s\", \"commit\": \"%s\", \"repeats\": %d, \"shapes\": [\n", device.name,
          argv[2], REPEATS);
  const int count = sizeof shapes / sizeof *shapes;
  double most = 0, logs = 0, fused = 0;
  for (int i = 0; i < count; i++) {
    const ratios r = time_shape(&shapes[i], methods, json, i + 1 == count);
    most = fmax(most, r.over_prototype);
    logs += log(r.over_prototype) / count;
    fused = fmax(fused, r.fused_over_plain);
  }
  fprintf(json, "]");
  if (methods == METHODS)
    fprintf(json,
            ", \"summary\": {\"over_prototype_max\": %.4f, \"over_prototype_geomean\": %.4f, "
            "\"l1_fused_over_plain_max\": %.4f}",
            most, exp(logs), fused);
  fprintf(json, "}\n");
  return fclose(json) != 0;
}
