/* The plan's kernels: the phases of plan_slots.h, plan_measure.h, plan_fill.h and plan_table.h with barriers between.
 *
 * A kernel that follows another one starts while that one ends (programmatic dependent launch): until dt_grid_wait it
 * touches nothing but its own shared memory, and what placing slots has for itself (plan_device.h). Blocks never wait
 * for one another, so any number may be resident.
 */
#include "plan.h"

#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"
#include "plan_slots.h"
#include "plan_table.h"

enum { DT_SLOTS_THREADS_MAX = 1024, DT_PLAN_THREADS_MAX = 512 };

static __device__ __forceinline__ dt_team dt_team_of_thread(int32_t warps, int32_t block, int32_t blocks) {
  dt_team team;
  team.warp = (int32_t)(threadIdx.x / DT_WARP);
  team.warps = warps;
  team.block = block;
  team.blocks = blocks;
  return team;
}

__global__ void __launch_bounds__(DT_SLOTS_THREADS_MAX)
    dt_slots_count_kernel(const __grid_constant__ dt_device_slots slots) {
  extern __shared__ __align__(16) int32_t dt_memory[];
  const dt_team team = dt_team_of_thread((int32_t)(blockDim.x / DT_WARP), (int32_t)blockIdx.x, (int32_t)gridDim.x);
  dt_grid_launch();
  const dt_slots_scratch scratch = dt_slots_scratch_at(&slots, dt_memory, &team);
#define DT_RUN(phase)                                                                                                  \
  phase(&slots, &scratch, &team);                                                                                      \
  __syncthreads();
  DT_COUNT_PHASES(DT_RUN)
#undef DT_RUN
}

/* counts: this rank's row of the matrix. Warps beyond those that place only keep the barriers. */
static __device__ __forceinline__ void dt_place_run(const dt_device_slots *slots, const int32_t *counts, int32_t block,
                                                    int32_t *memory) {
  const dt_team team = dt_team_of_thread(slots->warps, block, slots->blocks);
  const bool here = team.warp < team.warps;
  const dt_slots_scratch scratch = dt_slots_scratch_at(slots, memory, &team);
  if (here) dt_place_clear(slots, &scratch, &team);
  __syncthreads();
  if (here) dt_place_count(slots, &scratch, &team);
  dt_grid_wait(); /* for counts and histograms */
  if (here) dt_place_sum(slots, counts, &scratch, &team);
  __syncthreads();
  if (here) dt_place_warps(slots, &scratch, &team);
  __syncthreads();
  if (here) dt_place_rows(slots, &scratch, &team);
}

/* A barrier of one part of a block's warps. */
static __device__ __forceinline__ void dt_part_sync(int32_t barrier, int32_t warps) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(warps * DT_WARP) : "memory");
}

/* With groups: runs, units and groups by the first warps, beside them arrays that do not depend on these by the others,
 * which take as long, and sizes by the last. */
static __device__ __forceinline__ void dt_plan_grouped(const dt_device_plan *plan, const dt_summary *summary,
                                                       const dt_team *team) {
  const int32_t first = team->warps / 4;
  dt_team part = *team;
  if (team->warp < first) {
    part.warps = first;
#define DT_RUN(phase)                                                                                                  \
  phase(plan, summary, &part);                                                                                         \
  if (phase != dt_table_befores) dt_part_sync(1, first);
    if (plan->config.order == DT_ORDER_REMOTE_FIRST) {
      DT_RUN(dt_summary_runs)
    }
    DT_TABLE_PHASES(DT_RUN)
#undef DT_RUN
  } else {
    part.warp -= first;
    part.warps -= first;
    dt_summary_ends(plan, summary, &part);
    dt_part_sync(2, part.warps);
    dt_summary_decide(plan, summary, &part);
    if (--part.warps == part.warp) return;
    dt_device_plan_sizes sizes;
    if (dt_summary_fits(plan, summary, &sizes)) dt_fill(plan, summary, &part, &sizes);
  }
}

static __device__ __forceinline__ void dt_plan_run(const dt_device_plan *plan, int32_t block, int32_t *memory) {
  const dt_team team = dt_team_of_thread((int32_t)(blockDim.x / DT_WARP), block, plan->blocks);
  const dt_summary summary = dt_summary_at(plan, memory);
#define DT_RUN(phase)                                                                                                  \
  phase(plan, &summary, &team);                                                                                        \
  if (phase == dt_summary_begin) dt_grid_wait(); /* for the counts */                                                  \
  __syncthreads();
  DT_SUMMARY_PHASES(DT_RUN)
#undef DT_RUN
  if (dt_is_grouped(plan)) {
    dt_plan_grouped(plan, &summary, &team);
    __syncthreads();
    if (summary.totals->fits) dt_table_tasks(plan, &summary, &team, &summary.totals->sizes);
    return;
  }
  dt_team part = team;
  part.warps = 2;
  part.warp -= team.warps - part.warps;
  if (part.warp >= 0) {
    dt_summary_ends(plan, &summary, &part);
  } else {
    part.warp = team.warp;
    part.warps = team.warps - part.warps;
    dt_summary_runs(plan, &summary, &part);
  }
  __syncthreads();
  dt_device_plan_sizes sizes;
  if (block == plan->blocks - 1) dt_summary_decide(plan, &summary, &team);
  if (!dt_summary_fits(plan, &summary, &sizes)) return;
  dt_fill(plan, &summary, &team, &sizes);
  dt_table_tasks(plan, &summary, &team, &sizes);
}

/* The plan in the first blocks, which take longer, slots in the rest. */
typedef struct dt_plan_argument {
  dt_device_plan plan;
  dt_device_slots slots; /* blocks 0: none to place */
} dt_plan_argument;

__global__ void __launch_bounds__(DT_PLAN_THREADS_MAX, 1)
    dt_plan_kernel(const __grid_constant__ dt_plan_argument argument) {
  extern __shared__ __align__(16) int32_t dt_memory[];
  const int32_t block = (int32_t)blockIdx.x, place = block - argument.plan.blocks;
  dt_grid_launch();
  if (place < 0) {
    dt_plan_run(&argument.plan, block, dt_memory);
  } else {
    dt_place_run(&argument.slots, dt_own_counts(&argument.plan), place, dt_memory);
  }
}

/* So many experts and ranks that the summary does not fit into shared memory: each block's is in device memory. */
__global__ void __launch_bounds__(DT_PLAN_THREADS_MAX, 1)
    dt_plan_large_kernel(const __grid_constant__ dt_plan_argument argument) {
  extern __shared__ __align__(16) int32_t dt_memory[];
  const int32_t block = (int32_t)blockIdx.x, place = block - argument.plan.blocks;
  const int64_t words = (int64_t)(dt_summary_bytes(&argument.plan) / sizeof(int32_t));
  dt_grid_launch();
  if (place < 0) {
    dt_plan_run(&argument.plan, block, argument.plan.workspace + block * words);
  } else {
    dt_place_run(&argument.slots, dt_own_counts(&argument.plan), place, dt_memory);
  }
}

extern "C" cudaError_t dt_plan_kernels_prepare(int shared_bytes) {
  const void *kernels[] = {(const void *)dt_slots_count_kernel, (const void *)dt_plan_kernel,
                           (const void *)dt_plan_large_kernel};
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

extern "C" cudaError_t dt_slots_kernel_launch(const dt_device_slots *slots, cudaStream_t stream) {
  return dt_launch_early((const void *)dt_slots_count_kernel, slots, slots->blocks, slots->warps * DT_WARP,
                         dt_slots_count_bytes(slots), 0, stream);
}

extern "C" cudaError_t dt_plan_kernel_launch(const dt_device_plan *plan, const dt_device_slots *slots, int after_kernel,
                                             cudaStream_t stream) {
  dt_plan_argument argument = {};
  argument.plan = *plan;
  if (slots) argument.slots = *slots;
  size_t shared = plan->workspace ? 0 : dt_summary_bytes(plan);
  if (slots && dt_slots_place_bytes(slots) > shared) shared = dt_slots_place_bytes(slots);
  const void *kernel = plan->workspace ? (const void *)dt_plan_large_kernel : (const void *)dt_plan_kernel;
  return dt_launch_early(kernel, &argument, plan->blocks + argument.slots.blocks, plan->warps * DT_WARP, shared,
                         after_kernel, stream);
}
