/* The reduction of a combine's rows to tokens. */
#ifndef DT_CUDA_COMBINE_REDUCE_H
#define DT_CUDA_COMBINE_REDUCE_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dt_combine_reduction {
  const float *weights;       /* [tokens][top_k] */
  const int32_t *row_of_slot; /* [tokens][top_k], -1: none */
  const uint4 *buffer;        /* [rows][columns] bf16 */
  uint4 *out;                 /* [tokens][columns] bf16 */
  int64_t tokens, columns;
  int32_t top_k;
} dt_combine_reduction;

/* tokens > 0. */
cudaError_t dt_combine_reduce_launch(const dt_combine_reduction *reduction, int sms, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
