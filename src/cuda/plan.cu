/* The plan's kernels: the phases of plan_slots.h, plan_summary.h, plan_fill.h and plan_table.h with barriers between.
 *
 * A kernel that follows another one starts while that one ends (programmatic dependent launch): until dt_grid_wait it
 * touches nothing but its own shared memory. Blocks never wait for one another, so any number may be resident.
 */
#include "plan.h"

#include "cuda/ptx.cuh"
#include "plan_slots.h"
#include "plan_table.h"

enum { DT_PLAN_THREADS_MAX = 1024, DT_PLAN_LARGE_THREADS_MAX = 512 };

static __device__ __forceinline__ dt_team dt_team_of_thread() {
  dt_team team;
  team.warp = (int32_t)(threadIdx.x / DT_WARP);
  team.warps = (int32_t)(blockDim.x / DT_WARP);
  team.block = (int32_t)blockIdx.x;
  team.blocks = (int32_t)gridDim.x;
  return team;
}

__global__ void __launch_bounds__(DT_PLAN_THREADS_MAX)
    dt_slots_count_kernel(const __grid_constant__ dt_device_slots slots) {
  extern __shared__ int32_t dt_memory[];
  const dt_team team = dt_team_of_thread();
  const dt_slots_scratch scratch = dt_slots_scratch_at(&slots, dt_memory, &team);
  dt_grid_launch();
#define DT_RUN(phase)                                                                                                  \
  phase(&slots, &scratch, &team);                                                                                      \
  __syncthreads();
  DT_COUNT_PHASES(DT_RUN)
#undef DT_RUN
}

__global__ void __launch_bounds__(DT_PLAN_THREADS_MAX)
    dt_slots_place_kernel(const __grid_constant__ dt_device_slots slots) {
  extern __shared__ int32_t dt_memory[];
  const dt_team team = dt_team_of_thread();
  const dt_slots_scratch scratch = dt_slots_scratch_at(&slots, dt_memory, &team);
  dt_grid_launch();
#define DT_RUN(phase)                                                                                                  \
  phase(&slots, &scratch, &team);                                                                                      \
  if (phase == dt_place_clear) dt_grid_wait(); /* for the histograms */                                                \
  __syncthreads();
  DT_PLACE_PHASES(DT_RUN)
#undef DT_RUN
}

static __device__ __forceinline__ void dt_plan_run(const dt_device_plan *plan, int32_t *memory) {
  const dt_team team = dt_team_of_thread();
  const dt_summary summary = dt_summary_at(plan, memory);
  dt_grid_launch();
#define DT_RUN(phase)                                                                                                  \
  phase(plan, &summary, &team);                                                                                        \
  if (phase == dt_summary_begin) dt_grid_wait(); /* for the counts */                                                  \
  __syncthreads();
  DT_PLAN_PHASES(DT_RUN)
#undef DT_RUN
}

__global__ void __launch_bounds__(DT_PLAN_THREADS_MAX) dt_plan_kernel(const __grid_constant__ dt_device_plan plan) {
  extern __shared__ int32_t dt_memory[];
  dt_plan_run(&plan, dt_memory);
}

/* So many experts and ranks that the summary does not fit into shared memory: each block's is in device memory. */
__global__ void __launch_bounds__(DT_PLAN_LARGE_THREADS_MAX)
    dt_plan_large_kernel(const __grid_constant__ dt_device_plan plan) {
  dt_plan_run(&plan, plan.workspace + (int64_t)blockIdx.x * (int64_t)(dt_summary_bytes(&plan) / sizeof(int32_t)));
}

extern "C" cudaError_t dt_plan_kernels_prepare(int shared_bytes) {
  const void *kernels[] = {(const void *)dt_slots_count_kernel, (const void *)dt_slots_place_kernel,
                           (const void *)dt_plan_kernel};
  for (const void *kernel : kernels) {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) return error;
    /* The same split of cache and shared memory for all, as matrix kernels have it: changing it would drain the device.
     */
    error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

static cudaError_t dt_launch(const void *kernel, int32_t blocks, int32_t warps, size_t shared_bytes,
                             const void *argument, int after_kernel, cudaStream_t stream) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3((unsigned)blocks);
  launch.blockDim = dim3((unsigned)(warps * DT_WARP));
  launch.dynamicSmemBytes = shared_bytes;
  launch.stream = stream;
  launch.attrs = &attribute;
  launch.numAttrs = after_kernel ? 1 : 0;
  void *arguments[] = {const_cast<void *>(argument)};
  return cudaLaunchKernelExC(&launch, kernel, arguments);
}

extern "C" cudaError_t dt_slots_kernels_launch(const dt_device_slots *slots, cudaStream_t stream) {
  const cudaError_t error = dt_launch((const void *)dt_slots_count_kernel, slots->blocks, slots->warps,
                                      dt_slots_count_bytes(slots), slots, 0, stream);
  if (error != cudaSuccess) return error;
  return dt_launch((const void *)dt_slots_place_kernel, slots->blocks, slots->warps, dt_slots_place_bytes(slots), slots,
                   1, stream);
}

extern "C" cudaError_t dt_plan_kernel_launch(const dt_device_plan *plan, int after_kernel, cudaStream_t stream) {
  if (plan->workspace) {
    return dt_launch((const void *)dt_plan_large_kernel, plan->blocks, plan->warps, 0, plan, after_kernel, stream);
  }
  return dt_launch((const void *)dt_plan_kernel, plan->blocks, plan->warps, dt_summary_bytes(plan), plan, after_kernel,
                   stream);
}
