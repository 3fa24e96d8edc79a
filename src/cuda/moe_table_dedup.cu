/* The table kernel of a layer with dedup. */
#define DT_MOE_DEDUPS(plan) 1
#include "cuda/moe_table.cuh"

__global__ void __launch_bounds__(DT_TABLE_THREADS) dt_moe_table_dedup_kernel(const __grid_constant__ dt_moe_plan p) {
  extern __shared__ int32_t dt_memory[];
  dt_make_table(p, dt_memory);
}

extern "C" cudaError_t dt_moe_plan_dedup_prepare(int shared_bytes) {
  return dt_prepare_table((const void *)dt_moe_table_dedup_kernel, shared_bytes);
}
extern "C" cudaError_t dt_moe_table_dedup_launch(const dt_moe_plan *plan, int blocks, cudaStream_t stream) {
  return dt_launch_table((const void *)dt_moe_table_dedup_kernel, plan, blocks, stream);
}
