/* The combine operator's kernels beside the GEMM: entry, put, exit. */
#include "cuda/combine_roles.cuh"
#include "cuda/launch.cuh"

__global__ void dt_combine_enter_kernel(const dt_combine_params p) {
  const int32_t thread = (int32_t)threadIdx.x, threads = (int32_t)blockDim.x;
  const uint32_t epoch = p.state->epoch + 1;
  const int32_t bands = p.tables.sizes->bands; /* of the run before, which may have counted them */
  /* If the ranks need not meet first, the table and the GEMM come while this ends: who stores to a peer waits for its
   * entry. */
  if (!p.meets) dt_grid_launch();
  for (int32_t i = thread; i < bands; i += threads)
    p.ready[i] = p.fault == DT_COMBINE_FAULT_READY ? INT32_MAX : 0;
  if (p.own_counts != NULL) {
    /* No peer still reads the last counts: its rows of the last epoch have arrived here. */
    const int32_t width = p.ranks * p.experts;
    for (int32_t i = thread; i < p.ranks * width; i += threads)
      p.matrix[i / width][p.rank * width + i % width] = p.own_counts[i % width];
  }
  __syncthreads();
  if (thread == 0) {
    p.state->epoch = p.state->opened = epoch;
    p.state->done = 0;
  }
  dt_combine_announce(p, thread, epoch);
  if (p.meets && thread < p.ranks && thread != p.rank && !dt_combine_failed(p))
    dt_combine_await(p, thread, &p.slots[thread].entered, epoch, DT_COMBINE_ERROR_ENTRY);
  __syncthreads();
  if (p.meets) dt_grid_launch();
  if (p.own_counts != NULL) return; /* the plan says how many rows there are */
  const bool failed = dt_combine_failed(p);
  for (int32_t i = thread; i < p.experts; i += threads) p.tables.active[i] = failed ? 0 : p.tables.counts[i];
}

/* CTAs come in clusters of two, as the GEMM's do, so that beside it they leave whole pairs of multiprocessors free. */
template <bool WaitReady>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(DT_COMBINE_THREADS, 1)
    dt_combine_send_kernel(const dt_combine_params p) {
  extern __shared__ __align__(128) uint8_t dt_memory[];
  if (!WaitReady) dt_grid_wait(); /* for the GEMM before it on the stream */
  dt_combine_consume<WaitReady>(p, (int32_t)blockIdx.x, (int32_t)gridDim.x, dt_shared_address(dt_memory));
}

__global__ void __cluster_dims__(2, 1, 1) dt_combine_warm_kernel() {
}

__global__ void dt_combine_leave_kernel(const dt_combine_params p) {
  dt_grid_wait();
  dt_combine_close(p);
}

extern "C" cudaError_t dt_combine_enter_launch(const dt_combine_params *params, cudaStream_t stream) {
  dt_combine_enter_kernel<<<1, 512, 0, stream>>>(*params);
  return cudaGetLastError();
}

extern "C" cudaError_t dt_combine_warm_launch(cudaStream_t stream) {
  cudaError_t error =
      cudaFuncSetAttribute(dt_combine_warm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, DT_PUT_SHARED_BYTES);
  if (error != cudaSuccess) return error;
  dt_combine_warm_kernel<<<2, DT_COMBINE_THREADS, DT_PUT_SHARED_BYTES, stream>>>();
  return cudaGetLastError();
}

extern "C" cudaError_t dt_combine_send_launch(const dt_combine_params *params, int ctas, int wait_ready,
                                              cudaStream_t stream) {
  /* More than half of a multiprocessor's: each block has one alone, and none shares with the GEMM. */
  enum { SHARED = DT_PUT_SHARED_BYTES };
  void (*kernel)(dt_combine_params) = wait_ready ? dt_combine_send_kernel<true> : dt_combine_send_kernel<false>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
  if (error != cudaSuccess) return error;
  if (!wait_ready) return dt_launch_early((const void *)kernel, params, ctas, DT_COMBINE_THREADS, SHARED, 1, stream);
  kernel<<<ctas, DT_COMBINE_THREADS, SHARED, stream>>>(*params);
  return cudaGetLastError();
}

extern "C" cudaError_t dt_combine_leave_launch(const dt_combine_params *params, cudaStream_t stream) {
  return dt_launch_early((const void *)dt_combine_leave_kernel, params, 1, 32, 0, 1, stream);
}
