#include "latency.h"
#include "ptx.h"

namespace {

constexpr uint64_t wait_ns = 2000000000;

__device__ bool wait_at_least(const uint32_t *word, uint32_t value, bool acquire, uint32_t *dead) {
  uint64_t deadline = dt_globaltimer() + wait_ns;
  for (;;) {
    uint32_t seen = acquire ? dt_load_acquire_sys(word) : dt_load_relaxed_sys(word);
    if ((int32_t)(seen - value) >= 0) return true;
    if (dt_globaltimer() > deadline) {
      *(volatile uint32_t *)dead = 1;
      return false;
    }
  }
}

__device__ bool iterate(const dt_latency_launch &l, uint32_t value) {
  uint32_t *own = l.slots[l.rank];
  uint32_t peer = (uint32_t)(l.rank == 0 ? 1 : 0);
  bool release = l.kind == DT_LATENCY_RELEASE;
  switch (l.kind) {
  case DT_LATENCY_FLAG:
  case DT_LATENCY_RELEASE:
    if (l.rank == 1 && !wait_at_least(own, value, release, l.dead)) return false;
    if (release)
      dt_store_release_sys(l.slots[peer] + l.rank * DT_LATENCY_WORDS, value);
    else
      dt_store_relaxed_sys(l.slots[peer] + l.rank * DT_LATENCY_WORDS, value);
    return l.rank == 1 || wait_at_least(own + DT_LATENCY_WORDS, value, release, l.dead);
  case DT_LATENCY_FENCE:
    dt_store_relaxed_sys(l.slots[peer], value);
    dt_fence_sys();
    return true;
  case DT_LATENCY_FENCE_IDLE:
    dt_fence_sys();
    return true;
  case DT_LATENCY_BARRIER:
    for (int r = 0; r < l.ranks; r++)
      if (r != l.rank) dt_store_release_sys(l.slots[r] + l.rank * DT_LATENCY_WORDS, value);
    for (int r = 0; r < l.ranks; r++)
      if (r != l.rank && !wait_at_least(own + r * DT_LATENCY_WORDS, value, true, l.dead)) return false;
    return true;
  default:
    dt_add_release_gpu(own + l.rank * DT_LATENCY_WORDS, 1);
    return dt_load_acquire_gpu(own + l.rank * DT_LATENCY_WORDS) != 0xffffffffu;
  }
}

__global__ void latency_kernel(const __grid_constant__ dt_latency_launch l) {
  uint64_t begin = 0;
  for (uint32_t i = 1; i <= l.iterations; i++) {
    if (!iterate(l, l.first + i)) {
      *l.cycles = 0; /* expired */
      return;
    }
    if (i == 1) begin = clock64(); /* the first one also waits for the other rank's launch */
  }
  *l.cycles = clock64() - begin;
}

__global__ void empty_kernel() {}

} // namespace

extern "C" cudaError_t dt_latency_launch_kernel(const dt_latency_launch *launch, cudaStream_t stream) {
  latency_kernel<<<1, 1, 0, stream>>>(*launch);
  return cudaGetLastError();
}

extern "C" cudaError_t dt_empty_launch_kernel(cudaStream_t stream) {
  empty_kernel<<<1, 32, 0, stream>>>();
  return cudaGetLastError();
}
