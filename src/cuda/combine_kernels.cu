/* The combine operator's kernels beside the GEMM: entry, put, exit. Every wait is bounded; whoever gives up says so to
 * its peers and publishes no arrival. Pairs of the memory order are named at both ends. */
#include "cuda/combine_device.cuh"

DT_DEVICE uint4 dt_load_staging(const uint4 *from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

/* Until `peer` has put `epoch` into a word of its slot. Acquire: pairs with dt_release_sys of the peer. */
DT_DEVICE void dt_combine_await(const dt_combine_params &p, int32_t peer, const uint32_t *word, uint32_t epoch,
                                uint32_t error) {
  const uint32_t start = dt_time_us();
  for (;;) {
    const bool gave_up = dt_acquire_sys(&p.slots[peer].failed) != 0; /* what it published before comes first */
    const uint32_t seen = dt_acquire_sys(word);
    if ((int32_t)(seen - epoch) >= 0) return;
    if (gave_up) return dt_combine_fail(p, DT_COMBINE_ERROR_PEER, peer, 0, 0);
    if (dt_combine_failed(p)) return;
    if (dt_time_us() - start > p.timeout_us) return dt_combine_fail(p, error, peer, epoch, seen);
  }
}

/* Publishes this rank's rows, waits for the others'. Whole block, after its thread 0 has acquired whatever this rank
 * stored; the barriers pass that on. */
DT_DEVICE void dt_combine_close(const dt_combine_params &p) {
  const int32_t peer = (int32_t)threadIdx.x;
  if (peer == 0 && *p.gemm_error != 0) dt_combine_fail(p, DT_COMBINE_ERROR_GEMM, -1, 0, *p.gemm_error);
  __syncthreads();
  if (peer >= p.ranks || peer == p.rank) return;
  const uint32_t epoch = p.state->epoch;
  dt_fence_sys();
  if (dt_combine_failed(p)) return dt_release_sys(&p.peer_slot[peer]->failed, 1);
  dt_release_sys(&p.peer_slot[peer]->arrived, epoch);
  dt_combine_await(p, peer, &p.slots[peer].arrived, epoch, DT_COMBINE_ERROR_ARRIVAL);
}

__global__ void dt_combine_enter_kernel(const dt_combine_params p) {
  const int32_t thread = (int32_t)threadIdx.x, threads = (int32_t)blockDim.x;
  const uint32_t epoch = p.state->epoch + 1;
  const int32_t bands = p.tables.sizes->bands; /* of the run before, which may have counted them */
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
    p.state->epoch = epoch;
    p.state->done = 0;
  }
  if (thread < p.ranks && thread != p.rank) {
    if (dt_combine_failed(p)) {
      dt_release_sys(&p.peer_slot[thread]->failed, 1);
    } else {
      /* Release: what the stream did with the buffer before is done; this block's counts. */
      dt_fence_sys();
      dt_release_sys(&p.peer_slot[thread]->entered, epoch);
      if (p.fault == DT_COMBINE_FAULT_ARRIVED) dt_release_sys(&p.peer_slot[thread]->arrived, epoch);
      dt_combine_await(p, thread, &p.slots[thread].entered, epoch, DT_COMBINE_ERROR_ENTRY);
    }
  }
  __syncthreads();
  /* Not before the ranks have met: a GEMM that waits would keep multiprocessors from what a peer may depend on. */
  dt_grid_launch();
  if (p.own_counts != NULL) return; /* the plan says how many rows there are */
  const bool failed = dt_combine_failed(p);
  for (int32_t i = thread; i < p.experts; i += threads) p.tables.active[i] = failed ? 0 : p.tables.counts[i];
}

/* Until all tiles of the chunk's bands are stored. One thread. Acquire: pairs with the GEMM's release of each tile. */
DT_DEVICE void dt_combine_await_bands(const dt_combine_params &p, const dt_combine_chunk &chunk) {
  const uint32_t start = dt_time_us();
  for (int32_t band = chunk.first_band; band < chunk.first_band + chunk.bands; band++) {
    const uint32_t target = (uint32_t)p.tables.band_rows[band] * p.band_parts;
    const uint32_t *counter = p.ready + p.tables.band_slot[band];
    for (;;) {
      const uint32_t seen = dt_acquire_gpu(counter);
      if (seen >= target || dt_combine_failed(p)) break;
      if (dt_time_us() - start > p.timeout_us) return dt_combine_fail(p, DT_COMBINE_ERROR_READY, band, target, seen);
    }
  }
}

/* Whole block; 16 bytes a thread, eight loads under way. */
DT_DEVICE void dt_combine_copy(uint4 *to, const uint4 *from, int64_t words) {
  enum { AHEAD = 8 };
  int64_t i = threadIdx.x;
  for (; i + (AHEAD - 1) * DT_COMBINE_THREADS < words; i += AHEAD * DT_COMBINE_THREADS) {
    uint4 v[AHEAD];
#pragma unroll
    for (int j = 0; j < AHEAD; j++) v[j] = dt_load_staging(from + i + j * DT_COMBINE_THREADS);
#pragma unroll
    for (int j = 0; j < AHEAD; j++) dt_store_global(to + i + j * DT_COMBINE_THREADS, v[j]);
  }
  for (; i < words; i += DT_COMBINE_THREADS) dt_store_global(to + i, dt_load_staging(from + i));
}

/* Chunks go round the CTAs in order. CTAs come in clusters of two, as the GEMM's do, so that beside it they leave whole
 * pairs of multiprocessors free. */
template <bool WaitReady>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(DT_COMBINE_THREADS, 1)
    dt_combine_send_kernel(const dt_combine_params p) {
  __shared__ bool stop, last;
  if (!WaitReady) dt_grid_wait(); /* for the GEMM before it on the stream */
  if (threadIdx.x == 0) stop = dt_combine_failed(p);
  __syncthreads();
  const int32_t chunks = p.tables.sizes->chunks;
  int32_t known_band = -1, known_bands = 0; /* waited for before */
  for (int32_t i = (int32_t)blockIdx.x; i < chunks && !stop; i += (int32_t)gridDim.x) {
    const dt_combine_chunk chunk = p.tables.chunks[i];
    if (WaitReady && (chunk.first_band != known_band || chunk.bands != known_bands)) {
      known_band = chunk.first_band;
      known_bands = chunk.bands;
      __syncthreads(); /* the last round has read `stop` */
      if (threadIdx.x == 0) {
        dt_combine_await_bands(p, chunk);
        stop = dt_combine_failed(p);
      }
      __syncthreads();
      if (stop) break;
    }
    dt_combine_copy((uint4 *)(p.buffers[chunk.owner] + chunk.dst_row * p.row_bytes),
                    (const uint4 *)(p.staging + (int64_t)chunk.row * p.row_bytes), chunk.rows * p.row_bytes / 16);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    /* This block's stores to all peers, before the block that closes sees the count. */
    dt_fence_sys();
    last = dt_add_acq_rel(&p.state->done, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last) dt_combine_close(p);
}

__global__ void dt_combine_leave_kernel(const dt_combine_params p) {
  dt_grid_wait();
  dt_combine_close(p);
}

extern "C" cudaError_t dt_combine_enter_launch(const dt_combine_params *params, cudaStream_t stream) {
  dt_combine_enter_kernel<<<1, 512, 0, stream>>>(*params);
  return cudaGetLastError();
}

extern "C" cudaError_t dt_combine_send_launch(const dt_combine_params *params, int ctas, int wait_ready,
                                              cudaStream_t stream) {
  /* More than half of a multiprocessor's, so that each block has one alone and none shares with the GEMM. */
  enum { SHARED = 120 * 1024 };
  void (*kernel)(dt_combine_params) = wait_ready ? dt_combine_send_kernel<true> : dt_combine_send_kernel<false>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
  if (error != cudaSuccess) return error;
  if (!wait_ready) return dt_launch_early(kernel, *params, ctas, DT_COMBINE_THREADS, SHARED, stream);
  kernel<<<ctas, DT_COMBINE_THREADS, SHARED, stream>>>(*params);
  return cudaGetLastError();
}

extern "C" cudaError_t dt_combine_leave_launch(const dt_combine_params *params, cudaStream_t stream) {
  return dt_launch_early<dt_combine_params>(dt_combine_leave_kernel, *params, 1, 32, 0, stream);
}
