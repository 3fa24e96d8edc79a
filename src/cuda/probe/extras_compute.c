/* Rates of matrix products by cuBLAS, loaded at run time: what the tile engine is held against, and a stand-in for the
 * attention kernel. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/random.h"
#include "cuda/driver.h"
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
  int (*gemm_strided)(void *handle, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha,
                      const void *a, int a_type, int lda, long long stride_a, const void *b, int b_type, int ldb,
                      long long stride_b, const void *beta, void *c, int c_type, int ldc, long long stride_c, int batch,
                      int compute, int algorithm);
} blas;

static int load_blas(blas *api) {
  static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
  static const char *const symbols[] = {"cublasCreate_v2", "cublasDestroy_v2", "cublasSetStream_v2", "cublasGemmEx",
                                        "cublasGemmStridedBatchedEx"};
  void *library = dt_extras_library(names, 3);
  void **functions = (void **)api;
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    functions[i] = library ? dlsym(library, symbols[i]) : NULL;
    if (!functions[i]) return 0;
  }
  return 1;
}

typedef struct bench {
  blas api;
  void *handle;
  cudaStream_t stream;
  cudaEvent_t begin, end;
  unsigned short *a, *b, *c; /* bf16 */
} bench;

enum { ELEMENTS = 268435456 }; /* of each matrix at most, 512 MiB */

/* Random values: products of zeros run too fast. One block, repeated. */
static dt_status fill(unsigned short *matrix) {
  enum { BLOCK = 1 << 21 };
  unsigned short *block = malloc(BLOCK * sizeof *block);
  if (!block) return dt_fail(DT_ERR_MEMORY, "matrix: %d elements", BLOCK);
  dt_random random = {42};
  for (size_t i = 0; i < BLOCK; i++) {
    float value = (float)(2.0 * dt_random_unit(&random) - 1.0);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    block[i] = (unsigned short)(bits >> 16);
  }
  cudaError_t error = cudaSuccess;
  for (size_t at = 0; at < ELEMENTS && error == cudaSuccess; at += BLOCK)
    error = cudaMemcpy(matrix + at, block, BLOCK * sizeof *block, cudaMemcpyHostToDevice);
  free(block);
  return dt_cuda_check(error, "matrix");
}

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

/* Scores and weighted values of `tiles` KV tiles of 128 for every head's `queries` rows, D 128, without the softmax. */
static int attention(const bench *b, int64_t queries, int64_t keys, int heads) {
  const float one = 1.0f, zero = 0.0f;
  unsigned short *output = b->c + keys * queries * heads; /* not over the queries: they would grow until infinite */
  int error = b->api.gemm_strided(b->handle, OP_T, OP_N, (int)keys, (int)queries, 128, &one, b->b, R_16BF, 128,
                                  keys * 128, b->a, R_16BF, 128, queries * 128, &zero, b->c, R_16BF, (int)keys,
                                  keys * queries, heads, COMPUTE_32F, GEMM_DEFAULT);
  if (error) return error;
  return b->api.gemm_strided(b->handle, OP_N, OP_N, 128, (int)queries, (int)keys, &one, b->b, R_16BF, 128, keys * 128,
                             b->c, R_16BF, (int)keys, keys * queries, &zero, output, R_16BF, 128, queries * 128, heads,
                             COMPUTE_32F, GEMM_DEFAULT);
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

static dt_status attention_constant(const bench *b, int32_t sms, int32_t rounds, dt_platform *platform) {
  enum { QUERIES = 4096, KEYS = 4096, HEADS = 12 };
  _Static_assert(HEADS * QUERIES * (KEYS + 128) <= ELEMENTS, "scores and output share a matrix");
  double samples[DT_EXTRA_ROUNDS], seconds;
  dt_status status = DT_OK;
  for (int32_t r = -2; r < rounds && !status; r++) {
    cudaError_t begun = cudaEventRecord(b->begin, b->stream);
    int error = attention(b, QUERIES, KEYS, HEADS);
    status = timed(b, &seconds, error, begun);
    /* An SM's time for one 128 x 128 tile, all SMs at work. */
    if (r >= 0) samples[r] = seconds * sms / ((double)QUERIES / 128 * KEYS / 128 * HEADS);
  }
  if (status) return status;
  return dt_extras_constant(platform, "attention_kv_tile_s", samples, (size_t)rounds,
                            "stand-in: cuBLAS products of 12 heads, 4096 x 4096, D 128, bf16, no softmax; an SM's "
                            "share for 128 queries and 128 keys");
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
  if (!status) status = fill(b.a);
  if (!status) status = fill(b.b);
  if (!status) status = gemm_table(&b, rounds, platform);
  if (!status) status = attention_constant(&b, probe->sms, rounds, platform);
  if (b.handle) b.api.destroy(b.handle);
  if (b.begin) cudaEventDestroy(b.begin);
  if (b.end) cudaEventDestroy(b.end);
  cudaFree(b.a), cudaFree(b.b), cudaFree(b.c);
  return status;
}
