/* The Ulysses operator's kernels beside the attention: entry, copies, arrival, exit. Every wait is bounded; whoever
 * gives up says so to its peers and publishes no arrival. Pairs of the memory order are named at both ends. */
#include "cuda/ulysses_kernels.h"
#include "cuda/ulysses_meet.cuh"

/* One thread: until every rank has entered. */
DT_DEVICE bool dt_ulysses_met(const dt_ulysses_params &p, uint32_t epoch) {
  for (int32_t r = 0; r < p.ranks; r++)
    if (r != p.rank) dt_ulysses_await(p, r, &p.slots[r].entered, epoch, DT_ULYSSES_ERROR_ENTRY);
  return !dt_ulysses_failed(p);
}

/* Where there is no attention kernel that enters by itself. */
__global__ void dt_ulysses_enter_kernel(const dt_ulysses_params p) {
  dt_ulysses_enter(p);
}

typedef struct dt_ulysses_ring {
  uint32_t stages, full; /* shared-memory addresses */
} dt_ulysses_ring;

DT_DEVICE void dt_ulysses_load(const dt_ulysses_move &m, const dt_ulysses_item &item, const dt_ulysses_ring &ring,
                               int32_t at) {
  const uint32_t stage = (uint32_t)at % DT_ULYSSES_STAGES, full = ring.full + 8 * stage;
  if (item.from < 0) return;
  dt_barrier_expect(full, DT_ULYSSES_STAGE_BYTES);
  dt_tensor_load_3d(ring.stages + stage * DT_ULYSSES_STAGE_BYTES, &m.from[item.from], 0, item.from_head, item.from_row,
                    full);
}

/* Until the item has been read. An item without rows leaves its stage's parity as it is, so phases are counted. */
DT_DEVICE bool dt_ulysses_arrive(const dt_ulysses_move &m, const dt_ulysses_ring &ring, int32_t at, uint32_t *phases) {
  const uint32_t stage = (uint32_t)at % DT_ULYSSES_STAGES, start = dt_time_us();
  while (!dt_barrier_try(ring.full + 8 * stage, *phases >> stage & 1))
    if (dt_time_us() - start > m.params.timeout_us) {
      dt_ulysses_fail(m.params, DT_ULYSSES_ERROR_COPY, (int32_t)blockIdx.x, (uint32_t)at, 0);
      return false;
    }
  *phases ^= 1u << stage;
  return true;
}

DT_DEVICE bool dt_ulysses_store(const dt_ulysses_move &m, const dt_ulysses_item &item, const dt_ulysses_ring &ring,
                                int32_t at, uint32_t *phases) {
  const uint32_t stage = (uint32_t)at % DT_ULYSSES_STAGES;
  if (item.from >= 0) {
    if (!dt_ulysses_arrive(m, ring, at, phases)) return false;
    dt_tensor_store_3d(&m.to[item.to], 0, item.to_head, item.to_row, ring.stages + stage * DT_ULYSSES_STAGE_BYTES);
  }
  dt_bulk_commit();
  return true;
}

/* After the item and all before it of this block are written. Release: pairs with the attention's acquire. */
DT_DEVICE void dt_ulysses_publish(const dt_ulysses_params &p, const dt_ulysses_item &item) {
  if (item.weight == 0) return;
  dt_fence_async_global();
  dt_add_release_sys(p.arrived[item.rank] + item.word, item.weight);
  dt_add_release_sys(p.late[item.rank] + item.word, item.weight);
}

/* Lets the kernel behind come once the ranks have met: all blocks of all ranks are resident then, so that an attention
 * that waits keeps no multiprocessor from what it waits for. */
DT_DEVICE bool dt_ulysses_meet(const dt_ulysses_params &p, uint32_t epoch) {
  const bool met = dt_ulysses_met(p, epoch);
  if (blockIdx.x == 0) p.state->times.ready = dt_time_ns();
  dt_grid_launch();
  return met;
}

/* One thread of the block copies its items; the copy engine has some of them under way. */
DT_DEVICE void dt_ulysses_copy(const dt_ulysses_move &m, const dt_ulysses_ring &ring, uint32_t epoch) {
  const dt_ulysses_params &p = m.params;
  const dt_ulysses_item *items = m.items + m.first[blockIdx.x];
  const int32_t count = m.first[blockIdx.x + 1] - m.first[blockIdx.x];
  bool met = !m.enters, good = true;
  uint32_t phases = 0;
  int32_t loaded = 0, stored = 0, published = 0;
  for (; stored < count; stored++) {
    /* The stage of item stored + LOADS - 1 held item stored - 1 - STORES, which is written. */
    for (; loaded < count && loaded < stored + DT_ULYSSES_LOADS; loaded++)
      dt_ulysses_load(m, items[loaded], ring, loaded);
    if (!met && (items[stored].rank != p.rank || items[published].weight)) good = met = dt_ulysses_meet(p, epoch);
    if (!good) break;
    good = dt_ulysses_store(m, items[stored], ring, stored, &phases);
    dt_bulk_wait<DT_ULYSSES_STORES>();
    if (stored >= DT_ULYSSES_STORES) dt_ulysses_publish(p, items[published++]);
  }
  dt_bulk_wait<0>();
  if (!met && good) good = dt_ulysses_meet(p, epoch);
  for (; good && published < count; published++) dt_ulysses_publish(p, items[published]);
  /* The copy engine must not write into a block that has ended. */
  for (; stored < loaded; stored++)
    if (items[stored].from >= 0) dt_ulysses_arrive(m, ring, stored, &phases);
}

/* A rank's own words also say that the others have entered: own rows are published after that, so the attention may
 * store to whom it likes once a head has arrived. */
__global__ void __launch_bounds__(32, 1) dt_ulysses_move_kernel(const __grid_constant__ dt_ulysses_move m) {
  extern __shared__ __align__(128) uint8_t shared[];
  const dt_ulysses_params &p = m.params;
  const uint32_t base = (dt_shared_address(shared) + 127) & ~127u;
  const dt_ulysses_ring ring = {base, base + DT_ULYSSES_STAGES * DT_ULYSSES_STAGE_BYTES};
  const uint32_t epoch = p.state->epoch + 1;
  const int32_t thread = (int32_t)threadIdx.x;
  const bool failed = dt_ulysses_failed(p);
  if (m.enters && blockIdx.x == 0 && thread < p.ranks && thread != p.rank)
    dt_ulysses_announce(p, thread, epoch, failed);
  __syncwarp();
  if (thread != 0) return;
  if (blockIdx.x == 0) *(m.enters ? &p.state->times.in_first : &p.state->times.out_first) = dt_time_ns();
  if (!failed) {
    for (int s = 0; s < DT_ULYSSES_FROM_MAPS; s++) dt_tensor_prefetch(&m.from[s]);
    for (int s = 0; s < DT_ULYSSES_STAGES; s++) dt_barrier_init(ring.full + 8 * s, 1);
    dt_barrier_init_fence();
    dt_ulysses_copy(m, ring, epoch);
  }
  if (!m.enters) return;
  atomicMax((unsigned long long *)&p.state->times.in_last, (unsigned long long)dt_time_ns());
  dt_release_add(&p.state->sent, 1);
}

__global__ void dt_ulysses_gather_kernel(const dt_ulysses_params p) {
  const uint32_t target = p.state->target, start = dt_time_us();
  for (int32_t head = (int32_t)threadIdx.x; head < p.heads; head += (int32_t)blockDim.x)
    for (;;) {
      int32_t gave_up = -1; /* what it published before comes first */
      for (int32_t r = 0; r < p.ranks; r++)
        if (r != p.rank && dt_acquire_sys(&p.slots[r].failed) != 0) gave_up = r;
      const uint32_t seen = dt_acquire_sys(p.arrived[p.rank] + head);
      if ((int32_t)(seen - target) >= 0 || dt_ulysses_failed(p)) break;
      if (gave_up >= 0) dt_ulysses_fail(p, DT_ULYSSES_ERROR_PEER, gave_up, 0, 0);
      if (dt_time_us() - start > p.timeout_us) {
        dt_ulysses_fail(p, DT_ULYSSES_ERROR_ARRIVAL, head, target, seen);
        break;
      }
    }
  __syncthreads();
  if (threadIdx.x == 0) p.state->times.ready = dt_time_ns();
}

/* The attention may have let this kernel come, and ended, before the way in has: it is waited for by its count. Told:
 * the attention's last CTA has told the peers. */
__global__ void dt_ulysses_leave_kernel(const dt_ulysses_params p, uint32_t blocks, bool brought, bool told) {
  dt_grid_wait();
  const int32_t thread = (int32_t)threadIdx.x;
  /* Looked at together: one after the other, each would cost a way to memory. */
  const uint32_t epoch = p.state->epoch + 1, attention = *(volatile uint32_t *)p.attention_error;
  uint32_t sent = *(volatile uint32_t *)&p.state->sent;
  bool good = !dt_ulysses_failed(p);
  if (thread == 0) {
    p.state->times.stored = dt_time_ns();
    const uint32_t start = dt_time_us();
    while (sent < blocks) {
      sent = dt_acquire_sys(&p.state->sent);
      if (sent < blocks && dt_time_us() - start > p.timeout_us) {
        dt_ulysses_fail(p, DT_ULYSSES_ERROR_SENT, -1, blocks, sent);
        good = false;
        break;
      }
    }
    if (attention) dt_ulysses_fail(p, DT_ULYSSES_ERROR_ATTENTION, -1, 0, attention);
    good = good && attention == 0;
  }
  __syncwarp();
  good = __all_sync(0xffffffffu, good);
  if (thread < p.ranks && thread != p.rank) {
    if (!good) {
      dt_fence_sys();
      dt_release_sys(&p.peer_slot[thread]->failed, 1);
    } else {
      /* Release: the attention's stores, which have ended with its kernel; pairs with the peer's await. */
      if (!told) {
        dt_fence_sys();
        dt_release_sys(&p.peer_slot[thread]->left, epoch);
      }
      good = dt_ulysses_await(p, thread, &p.slots[thread].left, epoch, DT_ULYSSES_ERROR_LEAVE);
    }
  }
  /* Whoever gave up here says so now: there may be no run after this one. */
  if (!__all_sync(0xffffffffu, good) && thread < p.ranks && thread != p.rank)
    dt_release_sys(&p.peer_slot[thread]->failed, 1);
  /* Also of runs that do not open it: by difference, a gate that was left behind for 2^31 runs would look open. */
  for (int32_t head = thread; head < p.heads; head += 32) p.gate[head] = epoch;
  __syncwarp();
  if (thread != 0) return;
  p.state->times.left = dt_time_ns();
  p.state->sent = p.state->ticket = 0;
  p.state->epoch = epoch;
  p.state->next = epoch + 1;
  if (brought) p.state->target += (uint32_t)(p.ranks * DT_ULYSSES_UNITS);
}

__global__ void dt_ulysses_clock_kernel(uint64_t *now_ns) {
  *now_ns = dt_time_ns();
}

extern "C" cudaError_t dt_ulysses_clock_launch(uint64_t *now_ns, cudaStream_t stream) {
  dt_ulysses_clock_kernel<<<1, 1, 0, stream>>>(now_ns);
  return cudaGetLastError();
}

extern "C" cudaError_t dt_ulysses_enter_launch(const dt_ulysses_params *params, cudaStream_t stream) {
  dt_ulysses_enter_kernel<<<1, 32, 0, stream>>>(*params);
  return cudaGetLastError();
}

extern "C" cudaError_t dt_ulysses_move_launch(const dt_ulysses_move *move, int blocks, cudaStream_t stream) {
  /* More than half of a multiprocessor's: each block has one alone. */
  enum { SHARED = DT_ULYSSES_STAGES * DT_ULYSSES_STAGE_BYTES + 8 * DT_ULYSSES_STAGES + 128 };
  cudaError_t error =
      cudaFuncSetAttribute(dt_ulysses_move_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
  if (error != cudaSuccess) return error;
  dt_ulysses_move_kernel<<<blocks, 32, SHARED, stream>>>(*move);
  return cudaGetLastError();
}

extern "C" cudaError_t dt_ulysses_gather_launch(const dt_ulysses_params *params, cudaStream_t stream) {
  dt_ulysses_gather_kernel<<<1, 256, 0, stream>>>(*params);
  return cudaGetLastError();
}

/* Launched so that it may come before the kernel ahead of it has ended, for which it waits itself. */
extern "C" cudaError_t dt_ulysses_leave_launch(const dt_ulysses_params *params, int blocks, int brought, int told,
                                               cudaStream_t stream) {
  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1, 1, 1);
  config.blockDim = dim3(32, 1, 1);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, dt_ulysses_leave_kernel, *params, (uint32_t)blocks, brought != 0,
                            told != 0);
}
