#include "gemm_cublas.h"

#include <cublas_v2.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda/driver.h"

static __typeof__(&cublasCreate_v2) create;
static __typeof__(&cublasSetStream_v2) set_stream;
static __typeof__(&cublasGemmEx) gemm_ex;
static __typeof__(&cublasGemmGroupedBatchedEx) grouped_ex;
static cublasHandle_t handle;

static void cublas_must(cublasStatus_t status, const char *what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fprintf(stderr, "%s: cuBLAS status %d\n", what, (int)status);
  exit(3);
}

int cublas_open(cudaStream_t stream) {
  void *library = dlopen("libcublas.so.13", RTLD_NOW);
  if (library == NULL) library = dlopen("libcublas.so", RTLD_NOW);
  if (library == NULL) return 0;
  *(void **)&create = dlsym(library, "cublasCreate_v2");
  *(void **)&set_stream = dlsym(library, "cublasSetStream_v2");
  *(void **)&gemm_ex = dlsym(library, "cublasGemmEx");
  *(void **)&grouped_ex = dlsym(library, "cublasGemmGroupedBatchedEx");
  if (!create || !set_stream || !gemm_ex || !grouped_ex) return 0;
  cublas_must(create(&handle), "cublasCreate");
  cublas_must(set_stream(handle, stream), "cublasSetStream");
  return 1;
}

static void gemm(const gemm_problem *p, int expert, int64_t row, int64_t rows, uint16_t *out) {
  const float one = 1, zero = 0;
  const int n = (int)p->shape.n, k = (int)p->shape.k;
  cublas_must(gemm_ex(handle, CUBLAS_OP_T, CUBLAS_OP_N, n, (int)rows, k, &one, p->b + (int64_t)expert * n * k,
                      CUDA_R_16BF, k, p->a + row * k, CUDA_R_16BF, k, &zero, out + row * n, CUDA_R_16BF, n,
                      CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
              "cublasGemmEx");
}

void cublas_loop(const gemm_problem *p, uint16_t *out) {
  for (int e = 0; e < p->shape.experts; e++)
    if (p->counts[e] > 0) gemm(p, e, p->first[e], p->counts[e], out);
}

void cublas_dense(const gemm_problem *p, uint16_t *out) {
  gemm(p, 0, 0, p->shape.rows, out);
}

enum { GROUPS_MAX = 4096 };
static int group_count, m_of[GROUPS_MAX], n_of[GROUPS_MAX], k_of[GROUPS_MAX], size_of[GROUPS_MAX];
static cublasOperation_t transposed[GROUPS_MAX], plain[GROUPS_MAX];
static float ones[GROUPS_MAX], zeros[GROUPS_MAX];
static const void **pointers; /* device: B, A, then outputs of all groups */

void cublas_grouped_prepare(const gemm_problem *p, uint16_t *out) {
  const int64_t n = p->shape.n, k = p->shape.k;
  static const void *host[3 * GROUPS_MAX];
  if (pointers == NULL) cuda_must(cudaMalloc((void **)&pointers, sizeof host), "cudaMalloc");
  group_count = 0;
  for (int e = 0; e < p->shape.experts; e++) {
    if (p->counts[e] == 0) continue;
    const int g = group_count++;
    m_of[g] = (int)n;
    n_of[g] = p->counts[e];
    k_of[g] = (int)k;
    size_of[g] = 1;
    transposed[g] = CUBLAS_OP_T;
    plain[g] = CUBLAS_OP_N;
    ones[g] = 1;
    zeros[g] = 0;
    host[g] = p->b + e * n * k;
    host[GROUPS_MAX + g] = p->a + p->first[e] * k;
    host[2 * GROUPS_MAX + g] = out + p->first[e] * n;
  }
  cuda_must(dt_cuda_write(pointers, host, sizeof host), "pointers");
}

void cublas_grouped(const gemm_problem *p, uint16_t *out) {
  (void)p;
  (void)out;
  cublas_must(grouped_ex(handle, transposed, plain, m_of, n_of, k_of, ones, pointers, CUDA_R_16BF, k_of,
                         pointers + GROUPS_MAX, CUDA_R_16BF, k_of, zeros, (void *const *)(pointers + 2 * GROUPS_MAX),
                         CUDA_R_16BF, m_of, group_count, size_of, CUBLAS_COMPUTE_32F),
              "cublasGemmGroupedBatchedEx");
}
