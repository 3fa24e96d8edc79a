/* What a layer's results and times are compared with: the same experts in float64, and the rate of one big GEMM of the
 * BLAS library. For checks and benchmarks; nothing else needs them. */
#ifndef DRAINTILE_REFERENCE_H
#define DRAINTILE_REFERENCE_H

#include <stdint.h>

#include <draintile/status.h>
#include <draintile/weights.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* y[rows][H] = expert `index` of this rank (0 .. E - 1) on x[rows][H], both row-major, no rounding but float64's.
 * DT_ERR_ARGUMENT: no such expert, or rows beyond 0 to 2^31 - 1. DT_ERR_MEMORY. */
dt_status dt_expert_reference(const dt_moe_weights *weights, int32_t index, const double *x, int64_t rows, double *y);
/* The same for the shared expert, its gate included; zeros when the layer has none. */
dt_status dt_shared_reference(const dt_moe_weights *weights, const double *x, int64_t rows, double *y);

/* Multiply-adds count as two. `threads` threads multiply square float32 matrices of `side` (64 to 8192) at once,
 * `repeats` times: the rate of the best repeat, and over all of them. Takes 12*side*side bytes a thread.
 * DT_ERR_ARGUMENT names the field; DT_ERR_MEMORY, DT_ERR_SYSTEM (no thread). */
dt_status dt_sgemm_rate(int32_t threads, int32_t side, int32_t repeats, double *best_flop_per_s,
                        double *mean_flop_per_s);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
