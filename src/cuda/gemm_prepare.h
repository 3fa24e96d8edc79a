/* The grouped GEMM up to its kernel, for whoever runs tiles beside something else in one launch. */
#ifndef DT_CUDA_GEMM_PREPARE_H
#define DT_CUDA_GEMM_PREPARE_H

#include <draintile/gemm.h>

#include "tile_combine.h"

/* Checks everything, queues the task table and fills what the kernel needs. *ctas: of the launch that must follow on
 * `stream`; 0: there is nothing to multiply. */
dt_status dt_gemm_prepare(const dt_cuda_gemm *gemm, void *workspace, void *stream, dt_tile_gemm *prepared, int *ctas);

/* The same in two steps, for a table that serves several launches: whoever repeats one leaves 0 in the header's `next`.
 * The table does not depend on a, b or which memory rows go to. split: with turned tasks, for dt_gemm_describe_split.
 */
dt_status dt_gemm_table(const dt_cuda_gemm *gemm, int split, void *workspace, void *stream);
dt_status dt_gemm_describe(const dt_cuda_gemm *gemm, void *workspace, dt_tile_gemm *prepared, int *ctas);

/* Whether to turn tasks where the first of each expert's rows are another owner's than the rest: whether some expert
 * has rows for it. rows: [experts], of the host. */
int dt_gemm_may_split(const dt_cuda_gemm *gemm, const int32_t *rows);
dt_status dt_gemm_describe_split(const dt_cuda_gemm *gemm, void *workspace, dt_tile_split *prepared, int *ctas);

#endif
