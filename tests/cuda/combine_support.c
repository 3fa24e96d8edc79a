#include "combine_support.h"

#include <string.h>

#include "cuda/driver.h"

#include <draintile/gemm.h>

dt_status support_plan(const support_shape *s, const int32_t *counts, dt_layout layout, dt_order order,
                       dt_plan **plan) {
  dt_plan_config config;
  dt_plan_config_init(&config);
  config.ranks = s->ranks;
  config.rank = s->rank;
  config.experts_per_rank = s->experts;
  config.layout = layout;
  config.order = order;
  config.segment_bands = s->segment_bands;
  return dt_plan_create(&config, counts, plan);
}

dt_status support_operand(const support_shape *s, uint64_t salt, const dt_plan *plan, int64_t rows_max, uint16_t *to) {
  uint16_t *host = malloc(2 * (size_t)(rows_max * s->k));
  memset(host, 0xff, 2 * (size_t)(rows_max * s->k));
  for (int32_t g = 0; g < plan->group_count; g++) {
    const dt_group *group = &plan->groups[g];
    const uint64_t seed =
        salt << 48 ^ (uint64_t)s->rank << 44 ^ (uint64_t)group->expert << 32 ^ (uint64_t)group->owner << 28;
    for (int64_t i = 0; i < group->rows; i++)
      support_fill(host + (group->row + i) * s->k, s->k, support_mix(seed ^ (uint64_t)i));
  }
  const cudaError_t error = dt_cuda_write(to, host, 2 * (size_t)(rows_max * s->k));
  free(host);
  return support_cuda(error, "operand");
}

dt_status support_product(const support_shape *s, uint64_t salt, const dt_plan *plan, const void *b, void *stream,
                          uint16_t **product) {
  const size_t bytes = 2 * (size_t)(plan->rows * s->n);
  int32_t *rows = calloc((size_t)s->experts, sizeof *rows), *counts = NULL;
  void *workspace = NULL, *out = NULL, *a = NULL;
  for (int32_t g = 0; g < plan->group_count; g++) rows[plan->groups[g].expert] += (int32_t)plan->groups[g].rows;
  dt_cuda_gemm gemm;
  dt_cuda_gemm_init(&gemm);
  gemm.experts = s->experts;
  gemm.rows_max = plan->rows + 1;
  gemm.n = s->n;
  gemm.k = s->k;
  size_t size = 0;
  TRY(dt_cuda_gemm_workspace(&gemm, &size));
  CUDA(cudaMalloc(&workspace, size));
  CUDA(cudaMalloc(&out, bytes + 16));
  CUDA(cudaMalloc(&a, 2 * (size_t)((plan->rows + 1) * s->k)));
  CUDA(cudaMalloc((void **)&counts, (size_t)s->experts * sizeof *counts));
  CUDA(dt_cuda_write(counts, rows, (size_t)s->experts * sizeof *rows));
  TRY(support_operand(s, salt, plan, plan->rows + 1, a));
  gemm.a = a;
  gemm.b = b;
  gemm.counts = counts;
  gemm.out = out;
  TRY(dt_cuda_grouped_gemm(&gemm, workspace, stream));
  TRY(dt_cuda_gemm_check(workspace, stream));
  *product = malloc(bytes + 16);
  CUDA(cudaMemcpy(*product, out, bytes, cudaMemcpyDeviceToHost));
  cudaFree(workspace), cudaFree(out), cudaFree(a), cudaFree(counts), free(rows);
  return DT_OK;
}

dt_status support_expect(const support_shape *s, dt_plan *const *plans, uint16_t *const *products, int64_t rows,
                         uint16_t **expected) {
  const size_t bytes = 2 * (size_t)(rows * s->n);
  uint16_t *host = malloc(bytes);
  memset(host, 0xff, bytes);
  for (int32_t e = 0; e < s->ranks; e++)
    for (int32_t g = 0; g < plans[e]->group_count; g++) {
      const dt_group *group = &plans[e]->groups[g];
      if (group->owner == s->rank)
        memcpy(host + group->dst_row * s->n, products[e] + group->row * s->n, 2 * (size_t)(group->rows * s->n));
    }
  CUDA(cudaMalloc((void **)expected, bytes));
  const cudaError_t error = dt_cuda_write(*expected, host, bytes);
  free(host);
  return support_cuda(error, "expected");
}

dt_status support_weights(const support_shape *s, uint16_t **b) {
  const int64_t elements = s->experts * s->n * s->k;
  uint16_t *host = malloc(2 * (size_t)elements);
  support_fill(host, elements, 50 + (uint64_t)s->rank);
  CUDA(cudaMalloc((void **)b, 2 * (size_t)elements));
  const cudaError_t error = dt_cuda_write(*b, host, 2 * (size_t)elements);
  free(host);
  return support_cuda(error, "weights");
}
