/* The combine's tables made on the device, from a device plan (plan.h) of the exchanged counts. */
#ifndef DT_CUDA_COMBINE_PLAN_H
#define DT_CUDA_COMBINE_PLAN_H

#include "combine_kernels.h"
#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dt_combine_planned {
  dt_combine_params params;
  dt_build_arrays arrays; /* of the plan */
  const dt_device_plan_sizes *sizes;
  const uint32_t *error;
  int32_t layout;
  int32_t chunk_rows; /* rows of a chunk at most */
  int32_t direct;     /* which of the row targets */
} dt_combine_planned;

/* After dt_device_plan_launch. Writes all tables but `counts` and the other row targets; more rows than a buffer holds,
 * or a plan's error, become the combine's error, and then no expert has rows. */
cudaError_t dt_combine_tables_launch(const dt_combine_planned *planned, int ctas, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
