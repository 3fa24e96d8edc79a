/* The kernels of a layer's plan. */
#define DT_MOE_DEDUPS(plan) 0
#include "cuda/moe_table.cuh"

enum { DT_COUNT_THREADS_MAX = 1024 };

/* This rank's counts to every rank, by one block that has acquired them. Release: pairs with dt_await_counts; it also
 * says that this rank has reduced the layer before, so that its memory may be written again. */
DT_DEVICE void dt_publish_counts(const dt_moe_plan &p) {
  const uint32_t wrong = dt_load_volatile(&p.state->slot_error);
  if (dt_layer_failed(p) || wrong) { /* all threads see the same: nobody else of this rank is at work */
    if (threadIdx.x == 0 && wrong) dt_layer_fail(p, DT_LAYER_ERROR_INPUT, -1, 0, 0);
    return;
  }
  const uint32_t epoch = p.state->epoch + 1;
  const int32_t g = p.ranks * p.experts;
  for (int32_t i = (int32_t)threadIdx.x; i < g * p.ranks; i += (int32_t)blockDim.x) {
    const int32_t r = i / g;
    dt_counts_of(p, p.peer_counts[r], epoch, p.rank)[i - r * g] =
        (int32_t)dt_load_volatile((const uint32_t *)p.slot.counts + (i - r * g));
  }
  __syncthreads();
  if (threadIdx.x < p.ranks) {
    dt_release_sys(&p.peer_slot[threadIdx.x]->counted, epoch); /* of all that the block has stored: it met before */
  }
  if (threadIdx.x == 0) {
    p.state->input = p.input;
    p.state->epoch = epoch;
    p.state->counted = 0;
    p.state->placed = 0;
  }
}

__global__ void __launch_bounds__(DT_COUNT_THREADS_MAX) dt_moe_count_kernel(const __grid_constant__ dt_moe_plan p) {
  extern __shared__ int32_t dt_memory[];
  __shared__ uint32_t last;
  const dt_team team = dt_team_here((int32_t)blockIdx.x, (int32_t)gridDim.x);
  const dt_slots_scratch scratch = dt_slots_scratch_at(&p.slot, dt_memory, team.block, team.warp);
  dt_grid_launch();
  dt_count_clear(&p.slot, &scratch, &team);
  dt_grid_wait(); /* the ids may be the previous kernel's */
  __syncthreads();
  dt_count_add(&p.slot, &scratch, &team);
  __syncthreads();
  dt_count_warps(&p.slot, &scratch, &team);
  __syncthreads();
  if (threadIdx.x == 0) last = dt_add_acq_rel(&p.state->counted, 1) == gridDim.x - 1;
  __syncthreads();
  if (last) dt_publish_counts(p);
  dt_count_rank(&p.slot, &scratch, &team);
}

/* The same, in one block: a table kernel that waits holds many multiprocessors. */
__global__ void dt_moe_meet_kernel(const __grid_constant__ dt_moe_plan p) {
  dt_grid_wait();
  dt_await_counts(p, p.state->epoch);
}

__global__ void __launch_bounds__(DT_TABLE_THREADS) dt_moe_table_kernel(const __grid_constant__ dt_moe_plan p) {
  extern __shared__ int32_t dt_memory[];
  dt_make_table(p, dt_memory);
}

extern "C" cudaError_t dt_moe_plan_prepare(int shared_bytes) {
  cudaError_t error = dt_prepare_table((const void *)dt_moe_count_kernel, shared_bytes);
  if (error == cudaSuccess) error = dt_prepare_table((const void *)dt_moe_table_kernel, shared_bytes);
  return error == cudaSuccess ? dt_moe_plan_dedup_prepare(shared_bytes) : error;
}

extern "C" cudaError_t dt_moe_count_launch(const dt_moe_plan *plan, cudaStream_t stream) {
  return dt_launch_plan((const void *)dt_moe_count_kernel, plan, plan->slot.blocks, plan->slot.warps * DT_WARP,
                        dt_slots_count_bytes(&plan->slot), stream);
}

extern "C" cudaError_t dt_moe_table_launch(const dt_moe_plan *plan, int blocks, cudaStream_t stream) {
  if (plan->crowded && !plan->tiles_only) {
    const cudaError_t error = dt_launch_plan((const void *)dt_moe_meet_kernel, plan, 1, DT_WARP, 0, stream);
    if (error != cudaSuccess) return error;
  }
  if (plan->dedup) return dt_moe_table_dedup_launch(plan, blocks, stream);
  return dt_launch_table((const void *)dt_moe_table_kernel, plan, blocks, stream);
}
