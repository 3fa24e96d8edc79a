/* The tile engine's own figures: rates of grouped products, a tile's time by K, and what reading weights again costs.
 */
#include <draintile/gemm.h>

#include <string.h>

#include "core/error.h"
#include "cuda/driver.h"
#include "extras.h"

enum {
  SLOWEST_K = 7168,
  PAIRS = 66 /* tasks of a wave: a task is two tiles of 128 x 256, a cluster of two multiprocessors runs it */
};
static const int64_t narrow = 16 * 256, wide = 48 * 256; /* columns: 16 and 48 waves of one expert's rows */

typedef struct engine {
  cudaStream_t stream;
  cudaEvent_t begin, end;
  uint64_t *clock;
  void *a, *b, *out, *workspace;
  int32_t *counts;
  int64_t elements[3]; /* of a, b, out */
} engine;

/* One grouped product, experts of equal size. A short spin before it lets the host get ahead. */
static dt_status run(const engine *e, int64_t rows, int64_t n, int64_t k, int32_t experts, int32_t raster_bands,
                     double *seconds) {
  enum { AHEAD_NS = 60000 };
  dt_cuda_gemm gemm;
  dt_cuda_gemm_init(&gemm);
  gemm.a = e->a, gemm.b = e->b, gemm.out = e->out, gemm.counts = e->counts;
  gemm.experts = experts, gemm.rows_max = rows, gemm.n = n, gemm.k = k, gemm.raster_bands = raster_bands;
  float ms = 0.0f;
  cudaError_t error = dt_clock_launch_kernel(AHEAD_NS, e->clock, e->stream);
  if (error == cudaSuccess) error = cudaEventRecord(e->begin, e->stream);
  dt_status status = dt_cuda_check(error, "tile engine");
  if (!status) status = dt_cuda_grouped_gemm(&gemm, e->workspace, e->stream);
  if (status) return status;
  error = cudaEventRecord(e->end, e->stream);
  if (error == cudaSuccess) error = cudaEventSynchronize(e->end);
  if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, e->begin, e->end);
  *seconds = ms * 1e-3;
  status = dt_cuda_check(error, "tile engine");
  return status ? status : dt_cuda_gemm_check(e->workspace, e->stream);
}

static dt_status set_counts(const engine *e, int64_t rows, int32_t experts) {
  int32_t counts[DT_EXTRA_EXPERTS];
  for (int32_t i = 0; i < experts; i++) counts[i] = (int32_t)(rows / experts);
  return dt_cuda_check(
      cudaMemcpyAsync(e->counts, counts, (size_t)experts * sizeof *counts, cudaMemcpyHostToDevice, e->stream),
      "row counts");
}

static dt_status rate_table(const engine *e, int32_t rounds, dt_platform *platform) {
  dt_extras_table *table;
  dt_status status = dt_extras_table_create("gemm_flop_per_s", "", "draintile", "",
                                            "the tile engine, bf16, experts of equal size, random data", &table);
  if (status) return status;
  dt_extras_argument(table, "rows");
  dt_extras_argument(table, "n");
  dt_extras_argument(table, "k");
  dt_extras_argument(table, "experts");
  for (size_t i = 0; i < DT_EXTRA_SHAPES && !status; i++) {
    const int64_t *s = dt_extra_shapes[i];
    double samples[DT_EXTRA_ROUNDS], seconds = 0.0;
    status = set_counts(e, s[0], (int32_t)s[3]);
    for (int32_t r = -2; r < rounds && !status; r++) {
      status = run(e, s[0], s[1], s[2], (int32_t)s[3], 0, &seconds);
      if (r >= 0) samples[r] = 2.0 * (double)s[0] * (double)s[1] * (double)s[2] / seconds;
    }
    const double at[] = {(double)s[0], (double)s[1], (double)s[2], (double)s[3]};
    if (!status) status = dt_extras_point(table, at, samples, (size_t)rounds);
  }
  return dt_extras_table_finish(table, status, platform);
}

/* The slope over whole waves, so that launch, first fill and last drain fall out. */
static dt_status tile_table(const engine *e, int32_t rounds, dt_platform *platform) {
  static const int32_t ks[] = {512, 768, 1024, 1536, 2048, 4096, SLOWEST_K};
  const int64_t rows = 2 * 128 * PAIRS;
  dt_extras_table *table;
  dt_status status = dt_extras_table_create(
      "tile_s", "", "draintile", "",
      "a multiprocessor's time for 128 x 256 outputs, all at work: 48 waves minus 16, over 32", &table);
  if (status) return status;
  dt_extras_argument(table, "k");
  status = set_counts(e, rows, 1);
  for (size_t i = 0; i < sizeof ks / sizeof *ks && !status; i++) {
    double samples[DT_EXTRA_ROUNDS], few = 0.0, many = 0.0;
    for (int32_t r = -2; r < rounds && !status; r++) {
      status = run(e, rows, narrow, ks[i], 1, 0, &few);
      if (!status) status = run(e, rows, wide, ks[i], 1, 0, &many);
      if (r >= 0) samples[r] = (many - few) * 256.0 / (double)(wide - narrow);
    }
    const double at[] = {ks[i]};
    if (!status) status = dt_extras_point(table, at, samples, (size_t)rounds);
  }
  return dt_extras_table_finish(table, status, platform);
}

/* The same product in smaller units reads its weights more often: what that costs in time. */
static dt_status raster_table(const engine *e, int32_t rounds, dt_platform *platform) {
  static const int32_t bands[] = {2, 4, 8, 16};
  enum { POINTS = sizeof bands / sizeof *bands };
  dt_extras_table *table;
  double samples[POINTS][DT_EXTRA_ROUNDS], seconds = 0.0;
  dt_status status =
      dt_extras_table_create("gemm_raster_s", "", "draintile", "",
                             "the tile engine, 16384 x 8192 x 2048 over 8 experts, by bands of a unit", &table);
  if (status) return status;
  dt_extras_argument(table, "raster_bands");
  status = set_counts(e, 16384, 8);
  for (int32_t r = -2; r < rounds && !status; r++)
    for (size_t i = 0; i < POINTS && !status; i++) {
      status = run(e, 16384, 8192, 2048, 8, bands[i], &seconds);
      if (r >= 0) samples[i][r] = seconds;
    }
  for (size_t i = 0; i < POINTS && !status; i++) {
    const double at[] = {bands[i]};
    status = dt_extras_point(table, at, samples[i], (size_t)rounds);
  }
  return dt_extras_table_finish(table, status, platform);
}

static int64_t most(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/* What the largest of all products needs. */
static dt_status allocate(engine *e) {
  const int64_t rows = 2 * 128 * PAIRS;
  dt_cuda_gemm gemm;
  size_t workspace = 0, bytes;
  int64_t shapes[DT_EXTRA_SHAPES + 1][4] = {{rows, wide, SLOWEST_K, 1}};
  memcpy(shapes + 1, dt_extra_shapes, sizeof dt_extra_shapes);
  for (size_t i = 0; i <= DT_EXTRA_SHAPES; i++) {
    const int64_t *s = shapes[i];
    dt_cuda_gemm_init(&gemm);
    gemm.rows_max = s[0], gemm.n = s[1], gemm.k = s[2], gemm.experts = (int32_t)s[3];
    dt_status status = dt_cuda_gemm_workspace(&gemm, &bytes);
    if (status) return status;
    workspace = bytes > workspace ? bytes : workspace;
    e->elements[0] = most(e->elements[0], s[0] * s[2]);
    e->elements[1] = most(e->elements[1], s[1] * s[2] * s[3]);
    e->elements[2] = most(e->elements[2], s[0] * s[1]);
  }
  void **matrices[] = {&e->a, &e->b, &e->out};
  cudaError_t error = cudaMalloc(&e->workspace, workspace);
  if (error == cudaSuccess) error = cudaMalloc((void **)&e->counts, DT_EXTRA_EXPERTS * sizeof *e->counts);
  if (error == cudaSuccess) error = cudaMalloc((void **)&e->clock, 4 * sizeof *e->clock);
  if (error == cudaSuccess) error = cudaEventCreate(&e->begin);
  if (error == cudaSuccess) error = cudaEventCreate(&e->end);
  for (size_t i = 0; i < 3 && error == cudaSuccess; i++) error = cudaMalloc(matrices[i], 2 * (size_t)e->elements[i]);
  return dt_cuda_check(error, "tile engine's matrices");
}

dt_status dt_extras_engine(dt_cuda_probe *probe, int32_t rounds, dt_platform *platform) {
  engine e = {.stream = probe->streams[0]};
  dt_status status = dt_cuda_check(cudaSetDevice(0), "device");
  if (!status) status = allocate(&e);
  if (!status) status = dt_extras_fill(e.a, e.elements[0]);
  if (!status) status = dt_extras_fill(e.b, e.elements[1]);
  if (!status) status = rate_table(&e, rounds, platform);
  if (!status) status = tile_table(&e, rounds, platform);
  if (!status) status = raster_table(&e, rounds, platform);
  if (e.begin) cudaEventDestroy(e.begin);
  if (e.end) cudaEventDestroy(e.end);
  cudaFree(e.a), cudaFree(e.b), cudaFree(e.out), cudaFree(e.workspace), cudaFree(e.counts), cudaFree(e.clock);
  return status;
}
