/* What the combine's checks share. */
#ifndef DT_TESTS_COMBINE_SUPPORT_H
#define DT_TESTS_COMBINE_SUPPORT_H

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "support_gpus.h"

#include <draintile/plan.h>
#include <draintile/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes are multiples of 16, memory is the device's. wrong grows by the 4-byte words that differ. */
cudaError_t support_compare(const void *a, const void *b, int64_t bytes, unsigned long long *wrong,
                            cudaStream_t stream);
cudaError_t support_poison(void *to, int64_t bytes, cudaStream_t stream); /* bf16 NaN everywhere */
cudaError_t support_delay(uint32_t ns, cudaStream_t stream);
/* Keeps one multiprocessor to itself until *end is not 0 (mapped host memory), or the limit. */
cudaError_t support_hold(const uint32_t *end, double limit_s, cudaStream_t stream);

static inline dt_status support_cuda(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return DT_OK;
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  return DT_ERR_DEVICE;
}

/* bf16, +-1 to +-4, every mantissa: products of some of them are sums that no other product has. */
static inline uint64_t support_mix(uint64_t z) {
  z = (z + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 29)) * 0x94d049bb133111ebu;
  return z ^ (z >> 32);
}
static inline void support_fill(uint16_t *to, int64_t elements, uint64_t seed) {
  for (int64_t i = 0; i < elements; i += 4) {
    const uint64_t bits = support_mix(seed * 0x1000003 + (uint64_t)i);
    for (int64_t j = i; j < i + 4 && j < elements; j++) to[j] = (uint16_t)((bits >> (16 * (j - i)) & 0x80ff) | 0x3f80);
  }
}

/* In functions that return a dt_status. */
#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    const dt_status try_status = (call);                                                                               \
    if (try_status) return try_status;                                                                                 \
  } while (0)
#define CUDA(call) TRY(support_cuda(call, #call))

/* One rank of a combine. */
typedef struct support_shape {
  int32_t ranks, rank, experts, segment_bands;
  int64_t n, k;
} support_shape;

dt_status support_plan(const support_shape *s, const int32_t *counts, dt_layout layout, dt_order order, dt_plan **plan);
/* The operand in a plan's layout, NaN in padding: a row's values depend on what it is and on `salt`, not on where it
 * is. to: device, [rows_max][k]. */
dt_status support_operand(const support_shape *s, uint64_t salt, const dt_plan *plan, int64_t rows_max, uint16_t *to);
/* The experts' weights, on the device. */
dt_status support_weights(const support_shape *s, uint16_t **b);
/* This rank's product by the grouped GEMM alone, on the host, for a packed plan in natural order. */
dt_status support_product(const support_shape *s, uint64_t salt, const dt_plan *plan, const void *b, void *stream,
                          uint16_t **product);
/* This rank's buffer of `rows` rows as it must be, from the plans and products of all ranks: on the device, poison
 * where no row belongs. */
dt_status support_expect(const support_shape *s, dt_plan *const *plans, uint16_t *const *products, int64_t rows,
                         uint16_t **expected);

#ifdef __cplusplus
}
#endif
#endif
