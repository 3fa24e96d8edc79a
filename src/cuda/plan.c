/* Host side of the device plan: checks and launch shapes. */
#include "plan.h"

#include <stdlib.h>

#include "core/error.h"
#include "driver.h"
#include "plan_slots.h"
#include "plan_summary.h"

/* Blocks that place and blocks that plan together leave a multiprocessor to each: two on one take twice as long.
 * Measured on H200 (docs/notes/device-plan.md). */
enum { SLOTS_WARPS = 16, SLOTS_BLOCKS_MAX = 64, PLAN_WARPS = 16, PLAN_BLOCKS_MAX = 64 };
_Static_assert(SLOTS_WARPS <= PLAN_WARPS, "slots are placed beside the plan");

/* Most shared memory a block may ask for; the kernels are told so. */
static dt_status shared_limit(int *bytes) {
  int device;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return dt_cuda_check(error, "cudaGetDevice");
  error = cudaDeviceGetAttribute(bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess) return dt_cuda_check(error, "cudaDeviceGetAttribute");
  error = dt_plan_kernels_prepare(*bytes);
  return dt_cuda_check(error, "cudaFuncSetAttribute");
}

static int32_t blocks_for(int64_t items, int32_t warps, int32_t most) {
  int64_t blocks = dt_ceil_div(items, (int64_t)warps * DT_WARP);
  return blocks < 1 ? 1 : (int32_t)dt_min64(blocks, most);
}

dt_status dt_device_slots_prepare(dt_device_slots *slots, size_t *bytes) {
  int shared;
  if (slots->top_k < 1) return dt_fail(DT_ERR_ARGUMENT, "top_k: %d; at least 1", slots->top_k);
  if (slots->experts < 1) return dt_fail(DT_ERR_ARGUMENT, "experts: %d; at least 1", slots->experts);
  if (slots->tokens_capacity < 0 || slots->tokens_capacity > DT_PLAN_TASKS_MAX / slots->top_k) {
    return dt_fail(DT_ERR_ARGUMENT, "tokens_capacity: %lld; 0 to %d with top_k %d (below 2^30 slots)",
                   (long long)slots->tokens_capacity, DT_PLAN_TASKS_MAX / slots->top_k, slots->top_k);
  }
  dt_status status = shared_limit(&shared);
  if (status != DT_OK) return status;
  slots->warps = SLOTS_WARPS;
  while (slots->warps > 1 && dt_slots_place_bytes(slots) > (size_t)shared) slots->warps /= 2;
  if (dt_slots_place_bytes(slots) > (size_t)shared) {
    return dt_fail(DT_ERR_ARGUMENT, "experts: %d; at most %d with %d bytes of shared memory", slots->experts,
                   (shared / (int)sizeof(int32_t) - DT_WARP * DT_SCAN_EACH) / 3, shared);
  }
  slots->blocks = blocks_for(slots->tokens_capacity * slots->top_k, slots->warps, SLOTS_BLOCKS_MAX);
  *bytes = (size_t)slots->blocks * (size_t)slots->experts * sizeof(int32_t);
  return DT_OK;
}

/* dt_plan_create judges the configuration; a plan of no rows costs next to nothing. */
static dt_status check_config(const dt_plan_config *config) {
  dt_plan *plan;
  int32_t *counts = NULL;
  if (config->ranks > 0 && config->experts_per_rank > 0) {
    counts = calloc((size_t)config->ranks * (size_t)config->ranks, sizeof *counts * (size_t)config->experts_per_rank);
    if (!counts) return dt_fail(DT_ERR_MEMORY, "plan: no memory for the counts");
  }
  dt_status status = dt_plan_create(config, counts, &plan);
  if (status == DT_OK) dt_plan_destroy(plan);
  free(counts);
  return status;
}

static dt_status check_capacity(const dt_device_plan *plan) {
  const dt_plan_capacity *c = &plan->capacity;
  const struct {
    const char *field;
    int64_t value, limit;
  } fields[] = {{"capacity.rows", c->rows, DT_PLAN_TASKS_MAX},
                {"capacity.tasks", c->tasks, DT_PLAN_TASKS_MAX},
                {"capacity.groups", c->groups, DT_PLAN_ENTRIES_MAX},
                {"capacity.bands", c->bands, DT_PLAN_ENTRIES_MAX},
                {"capacity.parts", c->parts, DT_PLAN_ENTRIES_MAX},
                {"capacity.segments", c->segments, DT_PLAN_ENTRIES_MAX},
                {"capacity.dispatch", c->dispatch, DT_PLAN_ENTRIES_MAX},
                {"shared_blocks", plan->config.shared_blocks, DT_PLAN_ENTRIES_MAX},
                {"reduce_blocks", plan->config.reduce_blocks, DT_PLAN_ENTRIES_MAX}};
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    if (fields[i].value < 0 || fields[i].value > fields[i].limit) {
      return dt_fail(DT_ERR_ARGUMENT, "%s: %lld; 0 to %lld", fields[i].field, (long long)fields[i].value,
                     (long long)fields[i].limit);
    }
  }
  return DT_OK;
}

dt_status dt_device_plan_prepare(dt_device_plan *plan, size_t *bytes) {
  int shared;
  dt_status status = check_config(&plan->config);
  if (status == DT_OK) status = check_capacity(plan);
  if (status == DT_OK) status = shared_limit(&shared);
  if (status != DT_OK) return status;
  dt_device_plan_derive(plan);
  plan->warps = PLAN_WARPS;
  plan->blocks = blocks_for(2 * plan->capacity.tasks + 4 * plan->capacity.parts, plan->warps, PLAN_BLOCKS_MAX);
  *bytes = dt_summary_bytes(plan) <= (size_t)shared ? 0 : (size_t)plan->blocks * dt_summary_bytes(plan);
  return DT_OK;
}

dt_status dt_device_slots_launch(const dt_device_slots *slots, cudaStream_t stream) {
  return dt_cuda_check(dt_slots_kernel_launch(slots, stream), "slots");
}

dt_status dt_device_plan_launch(const dt_device_plan *plan, const dt_device_slots *slots, int after_kernel,
                                cudaStream_t stream) {
  return dt_cuda_check(dt_plan_kernel_launch(plan, slots, after_kernel, stream), "plan");
}
