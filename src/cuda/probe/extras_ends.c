/* What a product takes however few tiles it has: the first fill, which the limits of overlapped operators allow for
 * (docs/combine.md). */
#include <draintile/gemm.h>

#include "core/error.h"
#include "cuda/driver.h"
#include "extras.h"

enum {
  TILE_ROWS = 128,
  N = 256,
  K = 64,
  AHEAD_NS = 60000 /* a spin before each product lets the host get ahead */
};

typedef struct wave {
  int32_t rows; /* of one wave: a tile a multiprocessor */
  cudaStream_t stream;
  cudaEvent_t begin, end;
  uint64_t *clock;
  void *a, *b, *out, *workspace;
  int32_t *counts;
} wave;

/* Event to event. */
static dt_status run(const wave *w, int32_t rows, double *seconds) {
  dt_cuda_gemm gemm;
  dt_cuda_gemm_init(&gemm);
  gemm.a = w->a, gemm.b = w->b, gemm.out = w->out, gemm.counts = w->counts;
  gemm.experts = 1, gemm.rows_max = w->rows, gemm.n = N, gemm.k = K;
  float ms = 0.0f;
  cudaError_t error = cudaMemcpyAsync(w->counts, &rows, sizeof rows, cudaMemcpyHostToDevice, w->stream);
  if (error == cudaSuccess) error = dt_clock_launch_kernel(AHEAD_NS, w->clock, w->stream);
  if (error == cudaSuccess) error = cudaEventRecord(w->begin, w->stream);
  dt_status status = dt_cuda_check(error, "one wave");
  if (!status) status = dt_cuda_grouped_gemm(&gemm, w->workspace, w->stream);
  if (status) return status;
  error = cudaEventRecord(w->end, w->stream);
  if (error == cudaSuccess) error = cudaEventSynchronize(w->end);
  if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, w->begin, w->end);
  *seconds = ms * 1e-3;
  status = dt_cuda_check(error, "one wave");
  return status ? status : dt_cuda_gemm_check(w->workspace, w->stream);
}

static dt_status allocate(wave *w) {
  dt_cuda_gemm gemm;
  size_t workspace = 0;
  dt_cuda_gemm_init(&gemm);
  gemm.rows_max = w->rows, gemm.n = N, gemm.k = K, gemm.experts = 1;
  dt_status status = dt_cuda_gemm_workspace(&gemm, &workspace);
  if (status) return status;
  cudaError_t error = cudaMalloc(&w->workspace, workspace);
  if (error == cudaSuccess) error = cudaMalloc((void **)&w->counts, sizeof *w->counts);
  if (error == cudaSuccess) error = cudaMalloc((void **)&w->clock, 4 * sizeof *w->clock);
  if (error == cudaSuccess) error = cudaEventCreate(&w->begin);
  if (error == cudaSuccess) error = cudaEventCreate(&w->end);
  if (error == cudaSuccess) error = cudaMalloc(&w->a, 2 * (size_t)w->rows * K);
  if (error == cudaSuccess) error = cudaMalloc(&w->b, 2 * N * K);
  if (error == cudaSuccess) error = cudaMalloc(&w->out, 2 * (size_t)w->rows * N);
  if (error == cudaSuccess) error = cudaMemsetAsync(w->a, 0, 2 * (size_t)w->rows * K, w->stream);
  if (error == cudaSuccess) error = cudaMemsetAsync(w->b, 0, 2 * N * K, w->stream);
  return dt_cuda_check(error, "one wave");
}

static dt_status measure(const wave *w, int32_t rounds, dt_platform *platform) {
  double fill[DT_EXTRA_ROUNDS], empty = 0.0, full = 0.0;
  dt_status status = DT_OK;
  for (int32_t r = -3; r < rounds && !status; r++) {
    status = run(w, 0, &empty);
    if (!status) status = run(w, w->rows, &full);
    if (r >= 0) fill[r] = full - empty;
  }
  return status ? status
                : dt_extras_constant(platform, "first_fill_s", fill, (size_t)rounds,
                                     "one wave of the tile engine at K 64 minus the same launches without rows, event "
                                     "to event: first loads, one stage, the stores and what of them is not hidden");
}

dt_status dt_extras_ends(dt_cuda_probe *probe, int32_t rounds, dt_platform *platform) {
  wave w = {.rows = TILE_ROWS * probe->sms, .stream = probe->streams[0]};
  dt_status status = dt_cuda_check(cudaSetDevice(0), "device");
  if (!status) status = allocate(&w);
  if (!status) status = measure(&w, rounds, platform);
  if (w.begin) cudaEventDestroy(w.begin);
  if (w.end) cudaEventDestroy(w.end);
  cudaFree(w.a), cudaFree(w.b), cudaFree(w.out), cudaFree(w.workspace), cudaFree(w.counts), cudaFree(w.clock);
  return status;
}
