/* Checks and times the grouped GEMM. Every variant of ours is compared bit by bit with cuBLAS expert by expert, and with
 * float64 on samples; outputs are poisoned first. Candidates are timed in turn, launches spaced, the cache flushed
 * before each; the median counts.
 *
 *   gemm --check            the correctness grid
 *   gemm --time FILE.json   the timing list
 */
#include <draintile/gemm.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/statistics.h"
#include "gemm_cublas.h"
#include "gemm_problem.h"

cudaError_t gemm_settle(const void *memory, size_t bytes, cudaStream_t stream);

enum { REPEATS = 24, WARM_UP = 3 };
static cudaStream_t stream;
static int have_cublas;

typedef enum method { OURS, CUBLAS_DENSE, CUBLAS_GROUPED, CUBLAS_LOOP } method;
typedef struct candidate {
  const char *name;
  method method;
  int32_t tensor_stores, raster_bands, sms;
} candidate;

typedef struct workspace {
  void *memory;
  size_t bytes;
} workspace;

static void must(dt_status status, const char *what) {
  if (status == DT_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, dt_status_name(status), dt_error_detail());
  exit(3);
}

static dt_cuda_gemm describe(const gemm_problem *p, const candidate *c) {
  dt_cuda_gemm gemm;
  dt_cuda_gemm_init(&gemm);
  gemm.a = p->a;
  gemm.b = p->b;
  gemm.out = p->out;
  gemm.counts = p->device_counts;
  gemm.experts = p->shape.experts;
  gemm.rows_max = p->shape.rows;
  gemm.n = p->shape.n;
  gemm.k = p->shape.k;
  gemm.tensor_stores = c->tensor_stores;
  gemm.raster_bands = c->raster_bands;
  gemm.sms = c->sms;
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
  case OURS: must(dt_cuda_grouped_gemm(gemm, w->memory, stream), c->name); break;
  case CUBLAS_DENSE: cublas_dense(p, p->other); break;
  case CUBLAS_GROUPED: cublas_grouped(p, p->other); break;
  default: cublas_loop(p, p->other); break;
  }
}

/* One variant on one problem: runs it `times` times from poisoned outputs. Returns 1 if all is well. */
static int check(const gemm_problem *p, const gemm_arena *arena, const candidate *c, const uint16_t *expected, uint16_t *got,
                 uint64_t *addresses, int times, workspace *w) {
  const int64_t n = p->shape.n, rows = p->shape.rows;
  const size_t bytes = 2 * (size_t)((rows + GUARD_ROWS) * n);
  dt_cuda_gemm gemm = describe(p, c);
  gemm.row_address = addresses;
  reserve(w, &gemm);
  int64_t wrong = 0, touched = 0;
  for (int i = 0; i < times; i++) {
    cuda_must(cudaMemsetAsync(p->out, 0xff, bytes, stream), "cudaMemset");
    must(dt_cuda_grouped_gemm(&gemm, w->memory, stream), c->name);
    must(dt_cuda_gemm_check(w->memory, stream), c->name);
    cuda_must(cudaMemcpy(got, p->out, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (int64_t r = 0; r < rows; r++) {
      const uint16_t *mine = got + (addresses ? rows - 1 - r : r) * n;
      if (expected == NULL || memcmp(mine, expected + r * n, 2 * (size_t)n) == 0) continue;
      for (int64_t j = 0; j < n; j++) wrong += mine[j] != expected[r * n + j];
    }
    for (int64_t j = 0; j < GUARD_ROWS * n; j++) touched += got[rows * n + j] != 0xffff;
  }
  const double error = addresses ? 0 : problem_error(p, arena, got, 40, 99);
  /* Another order of summation (cuBLAS may split K) shows as a few last bits; those must stay as near to float64. */
  const int good = touched == 0 && error <= 4e-3 && (double)wrong <= 0.02 * (double)times * (double)(rows * n);
  printf("%-4s rows %lld n %lld k %lld experts %d %s, %s%s: %lld of %lld differ from cuBLAS, %lld outside touched, "
         "error %.2e\n",
         good ? "ok" : "FAIL", (long long)rows, (long long)n, (long long)p->shape.k, p->shape.experts,
         gemm_sizes_name(p->shape.kind), c->name, addresses ? " by address, reversed" : "", (long long)wrong,
         (long long)(times * rows * n), (long long)touched, error);
  fflush(stdout);
  return good;
}

static int check_all(const gemm_shape *shapes, int count) {
  static const candidate variants[] = {{"rows", OURS, 0, 0, 0},
                                       {"tensor stores", OURS, 1, 4, 0},
                                       {"rows, one cluster", OURS, 0, 2, 2},
                                       {"tensor stores, six SMs", OURS, 1, 64, 6}};
  gemm_arena arena;
  workspace w = {0};
  arena_create(&arena, shapes, count);
  int good = 1;
  for (int i = 0; i < count; i++) {
    const gemm_shape *s = &shapes[i];
    const size_t bytes = 2 * (size_t)((s->rows + GUARD_ROWS) * s->n);
    gemm_problem p;
    problem_create(&p, &arena, s, 7 + (uint64_t)i);
    uint16_t *expected = have_cublas ? malloc(bytes) : NULL, *got = malloc(bytes);
    if (have_cublas) {
      cublas_loop(&p, p.other);
      cuda_must(cudaStreamSynchronize(stream), "cuBLAS");
      cuda_must(cudaMemcpy(expected, p.other, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    }
    const int big = (double)s->rows * (double)s->n * (double)s->k > 3e10;
    for (int v = 0; v < (big ? 2 : 4); v++)
      good &= check(&p, &arena, &variants[v], expected, got, NULL, big ? 1 : 3, &w);
    uint64_t *host = malloc(8 * (size_t)s->rows), *addresses;
    for (int64_t r = 0; r < s->rows; r++) host[r] = (uint64_t)(uintptr_t)(p.out + (s->rows - 1 - r) * s->n);
    cuda_must(cudaMalloc((void **)&addresses, 8 * (size_t)s->rows), "cudaMalloc");
    cuda_must(cudaMemcpy(addresses, host, 8 * (size_t)s->rows, cudaMemcpyHostToDevice), "cudaMemcpy");
    good &= check(&p, &arena, &variants[0], expected, got, addresses, 1, &w);
    cudaFree(addresses);
    free(host);
    free(expected);
    free(got);
    problem_destroy(&p);
  }
  return good;
}

static void time_shape(const gemm_shape *s, const gemm_arena *arena, const candidate *list, int count, workspace *w, FILE *json,
                       int last) {
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
  fprintf(json, "    {\"rows\": %lld, \"n\": %lld, \"k\": %lld, \"experts\": %d, \"sizes\": \"%s\", \"candidates\": [\n",
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
  static const candidate all[] = {
      {"rows", OURS, 0, 16, 0},          {"tensor raster 8", OURS, 1, 8, 0},        {"tensor", OURS, 1, 16, 0},
      {"tensor raster 32", OURS, 1, 32, 0}, {"cublas dense", CUBLAS_DENSE, 0, 0, 0}, {"cublas grouped", CUBLAS_GROUPED, 0, 0, 0},
      {"cublas loop", CUBLAS_LOOP, 0, 0, 0}};
  const int own = 4, every = sizeof all / sizeof all[0];
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
  static const gemm_shape small[] = {{1, 256, 64, 1, SIZES_EVEN},       {1, 8, 8, 1, SIZES_EVEN},
                                {128, 256, 64, 1, SIZES_EVEN},     {129, 264, 72, 1, SIZES_EVEN},
                                {64, 512, 256, 1, SIZES_EVEN},     {65, 776, 136, 2, SIZES_UNIFORM},
                                {300, 1000, 200, 7, SIZES_SPARSE}, {256, 768, 512, 1, SIZES_EVEN},
                                {1000, 2056, 1032, 9, SIZES_UNIFORM}};
  static const gemm_shape large[] = {{777, 2048, 768, 64, SIZES_UNIFORM},   {4096, 2048, 512, 64, SIZES_ZIPF},
                                {5000, 768, 2048, 128, SIZES_SPARSE},  {300, 256, 512, 300, SIZES_UNIFORM},
                                {2500, 4096, 7168, 8, SIZES_UNIFORM},  {16384, 8192, 2048, 8, SIZES_EVEN},
                                {16384, 8192, 2048, 64, SIZES_UNIFORM}};
  static const gemm_shape timed[] = {{16384, 8192, 2048, 8, SIZES_EVEN},    {16384, 8192, 2048, 64, SIZES_EVEN},
                                {16384, 8192, 2048, 64, SIZES_UNIFORM}, {16384, 8192, 2048, 64, SIZES_ZIPF},
                                {16384, 2048, 768, 8, SIZES_EVEN},     {16384, 2048, 768, 64, SIZES_EVEN},
                                {16384, 2048, 512, 8, SIZES_EVEN},     {16384, 7168, 512, 64, SIZES_EVEN},
                                {16384, 4096, 7168, 8, SIZES_EVEN},    {16384, 4096, 1024, 8, SIZES_EVEN}};
  cuda_must(cudaSetDevice(0), "cudaSetDevice");
  cuda_must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  have_cublas = cublas_open(stream);
  printf("cuBLAS: %s\n", have_cublas ? "found" : "not found");
  fflush(stdout);
  if (argc == 2 && strcmp(argv[1], "--check-small") == 0) return !check_all(small, sizeof small / sizeof small[0]);
  if (argc == 2 && strcmp(argv[1], "--check") == 0) return !check_all(large, sizeof large / sizeof large[0]);
  if (argc == 3 && strcmp(argv[1], "--time") == 0) return !time_all(timed, sizeof timed / sizeof timed[0], argv[2]);
  fprintf(stderr, "usage: gemm --check-small | --check | --time FILE.json\n");
  return 2;
}
