#include "fabric.h"

namespace {

__global__ void signal_kernel(dt_counter *counter, uint32_t value, unsigned long long visible_ns) {
  atomicMax_system((unsigned long long *)&counter->visible_ns, visible_ns);
  /* Pairs with the host's poll; the puts before it were complete when their stream was synchronized. */
  asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(&counter->value), "r"(value) : "memory");
}

} // namespace

extern "C" cudaError_t dt_cuda_signal_launch(dt_counter *counter, uint32_t value, uint64_t visible_ns,
                                             cudaStream_t stream) {
  signal_kernel<<<1, 1, 0, stream>>>(counter, value, visible_ns);
  return cudaGetLastError();
}
