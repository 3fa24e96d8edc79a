/* Times the grouped GEMM and cuBLAS: candidates in turn, launches spaced, the cache evicted before each; the median
 * counts. tests/cuda/check_gemm.c checks the results; bench/peers/torch_gemm.py times torch in the same job.
 *
 *   gemm FILE.json
 */
#include <draintile/gemm.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/statistics.h"
#include "cuda/driver.h"
#include "gemm_cublas.h"
#include "gemm_problem.h"

cudaError_t gemm_settle(const void *memory, size_t bytes, cudaStream_t stream);

enum { REPEATS = 24, WARM_UP = 3 };
static cudaStream_t stream;
static int have_cublas;
enum { READY_COUNTERS = 1 << 16 };
static uint32_t *ready_counters;
static uint64_t *row_target; /* two owners take turns, RUN rows each */
enum { RUN = 100, TARGETS = 1 << 15 };

typedef enum method { OURS, CUBLAS_DENSE, CUBLAS_GROUPED, CUBLAS_LOOP } method;
typedef struct candidate {
  const char *name;
  method method;
  int32_t tensor_stores, raster_bands, ready, run; /* run: rows of an owner that stay together; 0: no owners */
} candidate;

typedef struct workspace {
  void *memory;
  size_t bytes;
} workspace;

static dt_cuda_gemm describe(const gemm_problem *p, const candidate *c) {
  dt_cuda_gemm gemm = problem_gemm(p);
  gemm.tensor_stores = c->tensor_stores;
  gemm.raster_bands = c->raster_bands;
  gemm.ready = c->ready ? ready_counters : NULL;
  if (c->run > 0) { /* two owners, each with half of the output */
    gemm.row_target = row_target;
    gemm.owners = 2;
    for (int i = 0; i < 2; i++) {
      gemm.owner_out[i] = p->out + i * (p->shape.rows / 2) * p->shape.n;
      gemm.owner_rows[i] = p->shape.rows / 2; /* the last run's end may go nowhere */
    }
  }
  gemm.timeout_s = 3;
  return gemm;
}

static void reserve(workspace *w, const dt_cuda_gemm *gemm) {
  size_t bytes;
  must(dt_cuda_gemm_workspace(gemm, &bytes), "workspace");
  if (bytes <= w->bytes) return;
  cudaFree(w->memory);
  cuda_must(cudaMalloc(&w->memory, bytes), "cudaMalloc");
  w->bytes = bytes;
}

static void launch(const gemm_problem *p, const candidate *c, const dt_cuda_gemm *gemm, workspace *w) {
  switch (c->method) {
  case OURS:
    must(dt_cuda_grouped_gemm(gemm, w->memory, stream), c->name);
    break;
  case CUBLAS_DENSE:
    cublas_dense(p, p->other);
    break;
  case CUBLAS_GROUPED:
    cublas_grouped(p, p->other);
    break;
  default:
    cublas_loop(p, p->other);
    break;
  }
}

static void time_shape(const gemm_shape *s, const gemm_arena *arena, const candidate *list, int count, workspace *w,
                       FILE *json, int last) {
  static double samples[16][REPEATS];
  gemm_problem p;
  problem_create(&p, arena, s, 77);
  if (have_cublas) cublas_grouped_prepare(&p, p.other);
  cudaEvent_t start, stop;
  cuda_must(cudaEventCreate(&start), "cudaEventCreate");
  cuda_must(cudaEventCreate(&stop), "cudaEventCreate");
  for (int r = -WARM_UP; r < REPEATS; r++)
    for (int c = 0; c < count; c++) {
      dt_cuda_gemm gemm = describe(&p, &list[c]);
      reserve(w, &gemm);
      cuda_must(gemm_settle(arena->flush, arena->flush_bytes, stream), "gemm_settle");
      cuda_must(cudaEventRecord(start, stream), "cudaEventRecord");
      launch(&p, &list[c], &gemm, w);
      cuda_must(cudaEventRecord(stop, stream), "cudaEventRecord");
      cuda_must(cudaEventSynchronize(stop), list[c].name);
      float ms;
      cuda_must(cudaEventElapsedTime(&ms, start, stop), "cudaEventElapsedTime");
      if (r >= 0) samples[c][r] = 1e-3 * ms;
      usleep(500);
    }
  const double flops = 2.0 * (double)s->rows * (double)s->n * (double)s->k;
  printf("rows %lld n %lld k %lld experts %d %s:", (long long)s->rows, (long long)s->n, (long long)s->k, s->experts,
         gemm_sizes_name(s->kind));
  fprintf(json,
          "    {\"rows\": %lld, \"n\": %lld, \"k\": %lld, \"experts\": %d, \"sizes\": \"%s\", \"candidates\": [\n",
          (long long)s->rows, (long long)s->n, (long long)s->k, s->experts, gemm_sizes_name(s->kind));
  for (int c = 0; c < count; c++) {
    const double median = dt_median(samples[c], REPEATS);
    printf(" %s %.1f us %.0f;", list[c].name, 1e6 * median, 1e-12 * flops / median);
    fprintf(json, "      {\"name\": \"%s\", \"median_s\": %.4e, \"flop_per_s\": %.4e, \"samples_s\": [", list[c].name,
            median, flops / median);
    for (int r = 0; r < REPEATS; r++) fprintf(json, "%s%.4e", r ? ", " : "", samples[c][r]);
    fprintf(json, "]}%s\n", c + 1 < count ? "," : "");
  }
  fprintf(json, "    ]}%s\n", last ? "" : ",");
  printf("\n");
  fflush(stdout);
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  problem_destroy(&p);
}

static int time_all(const gemm_shape *shapes, int count, const char *path) {
  static const candidate all[] = {{"rows", OURS, 0, 0, 0, 0},
                                  {"rows, counters", OURS, 0, 0, 1, 0},
                                  {"copy engine", OURS, 1, 0, 0, 0},
                                  {"copy engine, counters", OURS, 1, 0, 1, 0},
                                  {"two owners, runs of 100", OURS, 1, 0, 0, 100},
                                  {"two owners, rows, runs of 100", OURS, 0, 0, 0, 100},
                                  {"cublas dense", CUBLAS_DENSE, 0, 0, 0, 0},
                                  {"cublas grouped", CUBLAS_GROUPED, 0, 0, 0, 0},
                                  {"cublas loop", CUBLAS_LOOP, 0, 0, 0, 0}};
  const int own = 6, every = sizeof all / sizeof all[0];
  FILE *json = fopen(path, "w");
  if (json == NULL) {
    perror(path);
    return 0;
  }
  gemm_arena arena;
  workspace w = {0};
  arena_create(&arena, shapes, count);
  fprintf(json, "{\"schema\": 1, \"repeats\": %d, \"shapes\": [\n", REPEATS);
  for (int i = 0; i < count; i++)
    time_shape(&shapes[i], &arena, all, have_cublas ? every : own, &w, json, i + 1 == count);
  fprintf(json, "]}\n");
  return fclose(json) == 0;
}

int main(int argc, char **argv) {
  static const gemm_shape timed[] = {{16384, 8192, 2048, 8, SIZES_EVEN},     {16384, 8192, 2048, 64, SIZES_EVEN},
                                     {16384, 8192, 2048, 64, SIZES_UNIFORM}, {16384, 8192, 2048, 64, SIZES_ZIPF},
                                     {16384, 2048, 768, 8, SIZES_EVEN},      {16384, 2048, 768, 64, SIZES_EVEN},
                                     {16384, 2048, 512, 8, SIZES_EVEN},      {16384, 7168, 512, 64, SIZES_EVEN},
                                     {16384, 4096, 7168, 8, SIZES_EVEN},     {16384, 4096, 1024, 8, SIZES_EVEN}};
  if (argc != 2) {
    fprintf(stderr, "usage: gemm FILE.json\n");
    return 2;
  }
  cuda_must(cudaSetDevice(0), "cudaSetDevice");
  cuda_must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  cuda_must(cudaMalloc((void **)&ready_counters, READY_COUNTERS * sizeof *ready_counters), "cudaMalloc");
  static uint64_t target[TARGETS];
  for (uint64_t r = 0; r < TARGETS; r++) target[r] = (r / RUN % 2) << 32 | (r / RUN / 2 * RUN + r % RUN);
  cuda_must(cudaMalloc((void **)&row_target, sizeof target), "cudaMalloc");
  cuda_must(dt_cuda_write(row_target, target, sizeof target), "row targets");
  have_cublas = cublas_open(stream);
  if (!have_cublas) fprintf(stderr, "cuBLAS not found: timing ours alone\n");
  return !time_all(timed, sizeof timed / sizeof timed[0], argv[1]);
}
