/* A rank's plan made on the device: from top-k ids to counts and combine rows (dt_slots), and from the count matrix to
 * everything of dt_plan, in the same order to the bit. No sizes are known to the host, nothing is synchronized, and all
 * launches can be captured in a CUDA graph.
 *
 *   dt_device_slots_launch   ids -> counts
 *   (exchange of counts between ranks, by the caller)
 *   dt_device_plan_launch    counts of all ranks -> sizes, arrays; row_of_slot, slot_of_row
 *
 * Errors of the data go to an error word in device memory: dt_device_plan_error.
 */
#ifndef DT_CUDA_PLAN_H
#define DT_CUDA_PLAN_H

#include <cuda_runtime_api.h>

#include "plan_device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The launch for tokens_capacity, top_k and experts on the current device: sets blocks and warps. *bytes: what
 * slots->histograms must hold. */
dt_status dt_device_slots_prepare(dt_device_slots *slots, size_t *bytes);

/* The launch for config and capacity on the current device: sets what is derived. *bytes: what plan->workspace must
 * hold, or 0: leave it NULL. */
dt_status dt_device_plan_prepare(dt_device_plan *plan, size_t *bytes);

/* One kernel each. The second also places the slots of the first, if `slots` is not NULL. after_kernel: the stream's
 * last work is a kernel, whose end then overlaps this launch; nothing of it is read before it has ended. */
dt_status dt_device_slots_launch(const dt_device_slots *slots, cudaStream_t stream);
dt_status dt_device_plan_launch(const dt_device_plan *plan, const dt_device_slots *slots, int after_kernel,
                                cudaStream_t stream);

/* plan.cu */
cudaError_t dt_plan_kernels_prepare(int shared_bytes);
cudaError_t dt_slots_kernel_launch(const dt_device_slots *slots, cudaStream_t stream);
cudaError_t dt_plan_kernel_launch(const dt_device_plan *plan, const dt_device_slots *slots, int after_kernel,
                                  cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
