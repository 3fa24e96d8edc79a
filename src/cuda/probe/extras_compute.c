/* Rates of matrix products by cuBLAS, loaded at run time: what the tile engine is held against. */
#include "core/error.h"
#include "cuda/driver.h"
#include "cuda/libraries.h"
#include "extras.h"

/* Of cublas_api.h and library_types.h, which need not be installed. */
enum { OP_N = 0, OP_T = 1, R_16BF = 14, COMPUTE_32F = 68, GEMM_DEFAULT = -1 };

typedef struct blas {
  int (*create)(void **handle);
  int (*destroy)(void *handle);
  int (*set_stream)(void *handle, cudaStream_t stream);
  int (*gemm)(void *handle, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha, const void *a,
              int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,
              int compute, int algorithm);
} blas;

static int load_blas(blas *api) {
  static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
  static const char *const symbols[] = {"cublasCreate_v2", "cublasDestroy_v2", "cublasSetStream_v2", "cublasGemmEx"};
  return dt_library_load(names, 3, symbols, sizeof symbols / sizeof *symbols, api);
}

typedef struct bench {
  blas api;
  void *handle;
  cudaStream_t stream;
  cudaEvent_t begin, end;
  unsigned short *a, *b, *c; /* bf16 */
} bench;

enum { ELEMENTS = 268435456 }; /* of each matrix at most, 512 MiB */

/* rows tokens in all, split evenly over the experts: C[rows][n] = A[rows][k] B[expert][n][k]^T, one call an expert. */
static int grouped(const bench *b, int64_t rows, int64_t n, int64_t k, int64_t experts) {
  const float one = 1.0f, zero = 0.0f;
  int64_t share = rows / experts, held = ELEMENTS / (n * k);
  int error = 0;
  for (int64_t e = 0; e < experts && !error; e++)
    error = b->api.gemm(b->handle, OP_T, OP_N, (int)n, (int)share, (int)k, &one, b->b + e % held * n * k, R_16BF,
                        (int)k, b->a + e * share * k, R_16BF, (int)k, &zero, b->c + e * share * n, R_16BF, (int)n,
                        COMPUTE_32F, GEMM_DEFAULT);
  return error;
}

static dt_status timed(const bench *b, double *seconds, int error, cudaError_t begun) {
  float ms = 0.0f;
  cudaError_t cuda = begun;
  if (cuda == cudaSuccess) cuda = cudaEventRecord(b->end, b->stream);
  if (cuda == cudaSuccess) cuda = cudaEventSynchronize(b->end);
  if (cuda == cudaSuccess) cuda = cudaEventElapsedTime(&ms, b->begin, b->end);
  *seconds = ms * 1e-3;
  if (error) return dt_fail(DT_ERR_DEVICE, "cuBLAS: status %d", error);
  return dt_cuda_check(cuda, "matrix product");
}

const int64_t dt_extra_shapes[DT_EXTRA_SHAPES][4] = {
    {16384, 8192, 2048, 8},  {16384, 8192, 2048, 64}, {16384, 2048, 8192, 8}, {4096, 8192, 2048, 8},
    {1024, 8192, 2048, 8},   {16384, 1536, 2048, 16}, {16384, 2048, 768, 16}, {16384, 4096, 7168, 32},
    {16384, 7168, 2048, 32}, {8192, 8192, 8192, 1},
};

static dt_status gemm_table(const bench *b, int32_t rounds, dt_platform *platform) {
  dt_extras_table *table;
  dt_status status = dt_extras_table_create("gemm_flop_per_s", "", "cublas", "",
                                            "cublasGemmEx, bf16, one call an expert, random data", &table);
  if (status) return status;
  dt_extras_argument(table, "rows");
  dt_extras_argument(table, "n");
  dt_extras_argument(table, "k");
  dt_extras_argument(table, "experts");
  for (size_t i = 0; i < DT_EXTRA_SHAPES && !status; i++) {
    const int64_t *s = dt_extra_shapes[i];
    double samples[DT_EXTRA_ROUNDS], seconds;
    for (int32_t r = -2; r < rounds && !status; r++) {
      cudaError_t begun = cudaEventRecord(b->begin, b->stream);
      int error = grouped(b, s[0], s[1], s[2], s[3]);
      status = timed(b, &seconds, error, begun);
      if (r >= 0) samples[r] = 2.0 * (double)s[0] * (double)s[1] * (double)s[2] / seconds;
    }
    const double at[] = {(double)s[0], (double)s[1], (double)s[2], (double)s[3]};
    if (!status) status = dt_extras_point(table, at, samples, (size_t)rounds);
  }
  return dt_extras_table_finish(table, status, platform);
}

dt_status dt_extras_compute(dt_cuda_probe *probe, int32_t rounds, dt_platform *platform) {
  bench b = {.stream = probe->streams[0]};
  if (!load_blas(&b.api))
    return dt_platform_add_note(platform, "matrix products were not measured: libcublas.so was not found");
  cudaError_t error = cudaSetDevice(0);
  unsigned short **matrices[] = {&b.a, &b.b, &b.c};
  for (size_t i = 0; i < 3 && error == cudaSuccess; i++)
    error = cudaMalloc((void **)matrices[i], (size_t)ELEMENTS * sizeof **matrices[i]);
  if (error == cudaSuccess) error = cudaEventCreate(&b.begin);
  if (error == cudaSuccess) error = cudaEventCreate(&b.end);
  dt_status status = dt_cuda_check(error, "matrices");
  if (!status && b.api.create(&b.handle)) status = dt_fail(DT_ERR_DEVICE, "cuBLAS: no handle");
  if (!status && b.api.set_stream(b.handle, b.stream)) status = dt_fail(DT_ERR_DEVICE, "cuBLAS: no stream");
  if (!status) status = dt_extras_fill(b.a, ELEMENTS);
  if (!status) status = dt_extras_fill(b.b, ELEMENTS);
  if (!status) status = gemm_table(&b, rounds, platform);
  if (b.handle) b.api.destroy(b.handle);
  if (b.begin) cudaEventDestroy(b.begin);
  if (b.end) cudaEventDestroy(b.end);
  cudaFree(b.a), cudaFree(b.b), cudaFree(b.c);
  return status;
}
