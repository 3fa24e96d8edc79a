#include "burst.h"
#include "ptx.h"

namespace {

struct Shared {
  dt_burst_stamp stamps[DT_BURST_SAMPLES];
  uint64_t rendezvous; /* this SM's cycle count at the agreed time */
  uint32_t go;
  uint32_t sink;
  alignas(128) unsigned char data[DT_BURST_DATA_BYTES];
};

/* More than half of an SM's shared memory, so that every producer has an SM of its own. */
constexpr int shared_bytes = 120 * 1024;
static_assert(sizeof(Shared) + 128 <= shared_bytes, "a producer's shared memory");
constexpr uint64_t wait_ns = 2000000000; /* the longest any wait lasts */
constexpr uint64_t lead_ns = 30000;      /* from the agreement to the agreed time */

/* False: expired; the sticky word tells the others and the host. */
__device__ bool wait_at_least(const uint32_t *word, uint32_t value, bool system, dt_burst_control *control) {
  uint64_t deadline = dt_globaltimer() + wait_ns;
  for (;;) {
    uint32_t seen = system ? dt_load_acquire_sys(word) : dt_load_acquire_gpu(word);
    if ((int32_t)(seen - value) >= 0) return true;
    if (*(volatile uint32_t *)&control->dead) return false;
    if (dt_globaltimer() > deadline) {
      *(volatile uint32_t *)&control->dead = 1;
      return false;
    }
  }
}

/* One thread a producer. Producer 0 waits for its own, then for the other ranks, and fixes the time. */
__device__ bool rendezvous(const dt_burst_launch &l, uint64_t *cycles) {
  dt_burst_control *own = l.control[l.rank];
  dt_add_release_gpu(&own->arrived, 1); /* pairs with the acquire of `arrived` below */
  if (blockIdx.x == 0) {
    if (!wait_at_least(&own->arrived, l.arrivals, false, own)) return false;
    for (int r = 0; r < l.ranks; r++)
      if (r != l.rank) dt_store_release_sys(&l.control[r]->ready[l.rank][0], l.epoch);
    for (int r = 0; r < l.ranks; r++)
      if (r != l.rank && !wait_at_least(&own->ready[r][0], l.epoch, true, own)) return false;
    own->start_ns = dt_globaltimer() + lead_ns;
    dt_store_release_gpu(&own->start_epoch, l.epoch); /* pairs with the acquire of `start_epoch` below */
  } else if (!wait_at_least(&own->start_epoch, l.epoch, false, own)) {
    return false;
  }
  uint64_t start = *(volatile uint64_t *)&own->start_ns;
  while (dt_globaltimer() < start) {}
  *cycles = clock64();
  return true;
}

__device__ void store_burst(const dt_burst_launch &l, unsigned char *to, const unsigned char *from) {
  uint32_t thread = threadIdx.x;
  if (l.operation == DT_BURST_STORE) {
    uint4 value = make_uint4(thread, 1, 2, 3);
#pragma unroll 4
    for (uint64_t at = thread * 16; at < l.bytes; at += DT_BURST_THREADS * 16) dt_store_16(to + at, value);
  } else {
    uint64_t at = thread * 16;
    for (; at + 3 * DT_BURST_THREADS * 16 < l.bytes; at += 4 * DT_BURST_THREADS * 16) {
      uint4 v[4];
#pragma unroll
      for (int i = 0; i < 4; i++) v[i] = dt_load_16(from + at + i * DT_BURST_THREADS * 16);
#pragma unroll
      for (int i = 0; i < 4; i++) dt_store_16(to + at + i * DT_BURST_THREADS * 16, v[i]);
    }
    for (; at < l.bytes; at += DT_BURST_THREADS * 16) dt_store_16(to + at, dt_load_16(from + at));
  }
}

__device__ void copy_burst(const dt_burst_launch &l, const Shared *shared, int target, uint64_t offset) {
  uint32_t data = (uint32_t)__cvta_generic_to_shared(shared->data);
  for (uint64_t at = 0; at < l.bytes; at += DT_BURST_CHUNK_BYTES) {
    uint32_t from = data + (uint32_t)(at % DT_BURST_DATA_BYTES);
    if (l.operation == DT_BURST_BULK)
      dt_bulk_store(l.target[target] + offset + at, from, DT_BURST_CHUNK_BYTES);
    else
      dt_tensor_store(&l.map[target], 0, (int32_t)((offset + at) / 128), from);
  }
  dt_bulk_commit();
  dt_bulk_wait_read();
}

__global__ void __launch_bounds__(DT_BURST_THREADS, 1) burst_kernel(const __grid_constant__ dt_burst_launch l) {
  extern __shared__ unsigned char raw[];
  Shared *shared = (Shared *)(((uintptr_t)raw + 127) & ~(uintptr_t)127);
  const uint32_t thread = threadIdx.x, producer = blockIdx.x;
  const int target = (int)(producer % (uint32_t)l.targets);
  const bool by_engine = l.operation == DT_BURST_BULK || l.operation == DT_BURST_TENSOR;

  for (uint32_t at = thread * 4; at < DT_BURST_DATA_BYTES; at += DT_BURST_THREADS * 4)
    *(uint32_t *)(shared->data + at) = at * 2654435761u;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* the copy engine reads what was written */
  if (thread == 0) {
    uint64_t cycles = 0;
    shared->go = rendezvous(l, &cycles);
    shared->rendezvous = cycles;
  }
  __syncthreads();
  if (!shared->go) return;
  __syncthreads(); /* read by all before the first burst writes it again */
  const uint64_t origin = shared->rendezvous;
  const uint64_t begin_cycles = clock64(), begin_ns = dt_globaltimer();

  uint32_t sink = 0, count = 0, slot = 0, place = 0; /* place: in its train */
  uint64_t at = 0, train_at = 0;
  unsigned char *const to = l.target[target] + producer * l.stride;
  const unsigned char *const from = l.source + producer * l.stride;
  for (uint32_t n = 0; n < l.bursts; n++) {
    while (clock64() - origin < at) {}
    if (thread == 0)
      shared->go = l.trains > 0 ? n < (uint32_t)(l.trains * l.per_train) : clock64() - origin < l.window_cycles;
    __syncthreads();
    if (!shared->go) break;
    const uint32_t start = (uint32_t)(clock64() - origin);
    if (!by_engine)
      store_burst(l, to + slot * l.bytes, from);
    else if (thread == 0)
      copy_burst(l, shared, target, producer * l.stride + slot * l.bytes);
    __syncthreads();
    uint32_t end = (uint32_t)(clock64() - origin), third = 0;
    if (l.third == DT_BURST_VISIBLE) {
      if (by_engine && thread == 0) dt_bulk_wait();
      dt_fence_sys();
      __syncthreads();
      third = (uint32_t)(clock64() - origin) - start;
      if (l.trains == 0) end = start + third; /* a put is complete when its bytes are there */
    } else if (l.third == DT_BURST_LOADS) {
      uint4 v = dt_load_16(from + (n % 4) * DT_BURST_LOAD_BYTES + thread * 16);
      sink += v.x ^ v.y ^ v.z ^ v.w;
      __syncthreads_or((int)sink); /* the loaded values are needed before the clock is read */
      third = (uint32_t)(clock64() - origin) - end;
    }
    if (thread == 0) shared->stamps[n] = {start, end, third};
    count = n + 1;
    if (++slot == l.slots) slot = 0;
    if (l.trains == 0) {
      at = end + l.gap_cycles;
    } else if (++place < (uint32_t)l.per_train) {
      at += l.period_cycles;
    } else {
      place = 0;
      at = train_at += l.train_cycles;
    }
  }
  __syncthreads();
  if (sink == 0x9e3779b9u) shared->sink = sink; /* keeps the loads */
  for (uint32_t n = thread; n < count; n += DT_BURST_THREADS)
    l.stamps[(uint64_t)producer * DT_BURST_SAMPLES + n] = shared->stamps[n];
  if (thread == 0) {
    l.counts[producer] = count;
    if (producer == 0) l.clocks[0] = clock64() - begin_cycles, l.clocks[1] = dt_globaltimer() - begin_ns;
  }
}

__global__ void clock_kernel(uint64_t duration_ns, uint64_t *results) {
  const uint64_t entered = clock64(), most_cycles = 1ull << 32; /* about 2 s: a timer that stands still ends it */
  uint64_t first = dt_globaltimer(), step = duration_ns, last = first, now;
  while ((now = dt_globaltimer()) == first && clock64() - entered < most_cycles) { /* start at an edge of the timer */
  }
  uint64_t begin_cycles = clock64(), begin = now;
  last = now;
  while (now - begin < duration_ns && clock64() - entered < most_cycles) {
    now = dt_globaltimer();
    if (now != last && now - last < step) step = now - last;
    last = now;
  }
  results[0] = clock64() - begin_cycles;
  results[1] = now - begin;
  results[2] = step;
}

} // namespace

extern "C" cudaError_t dt_burst_launch_kernel(const dt_burst_launch *launch, int32_t producers, cudaStream_t stream) {
  /* Per device, and cheap: no need to remember which devices have it. */
  cudaError_t error = cudaFuncSetAttribute(burst_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  burst_kernel<<<producers, DT_BURST_THREADS, shared_bytes, stream>>>(*launch);
  return cudaGetLastError();
}

extern "C" cudaError_t dt_clock_launch_kernel(uint64_t duration_ns, uint64_t *results, cudaStream_t stream) {
  clock_kernel<<<1, 1, 0, stream>>>(duration_ns, results);
  return cudaGetLastError();
}
