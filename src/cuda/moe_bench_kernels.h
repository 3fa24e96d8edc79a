/* Device helpers of the layer benchmark: random values from their indices, and the layer in float64. */
#ifndef DT_CUDA_MOE_BENCH_KERNELS_H
#define DT_CUDA_MOE_BENCH_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* to[i] = a nearly normal value of (stream, first + i), times scale, in bf16. The same on every GPU. */
cudaError_t dt_moe_bench_fill(uint16_t *to, int64_t elements, uint64_t stream, int64_t first, float scale,
                              cudaStream_t cuda_stream);

/* One choice of a sampled token that falls on an expert of this rank. */
typedef struct dt_moe_bench_choice {
  int32_t sample, expert; /* expert: local */
  double weight;
} dt_moe_bench_choice;

typedef struct dt_moe_bench_reference {
  int64_t hidden, intermediate;
  const uint16_t *gate, *up, *down;   /* [experts][I][H], the same, [experts][H][I] */
  const uint16_t *x;                  /* [samples][H] */
  const dt_moe_bench_choice *choices; /* [choice_count], by sample */
  const int32_t *first;               /* [samples + 1], into choices */
  int32_t choice_count, samples;
  double *act; /* [choice_count][I] */
  double *y;   /* [samples][H]: the sum of this rank's choices */
} dt_moe_bench_reference;
/* SiLU. Queues two kernels. */
cudaError_t dt_moe_bench_refer(const dt_moe_bench_reference *reference, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
