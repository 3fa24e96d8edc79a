/* Words that ranks and kernels tell each other by: acquires, releases and the fences around them. docs/memory-order.md
 * and the pages of the operators name the pairs. */
#ifndef DT_CUDA_WORDS_CUH
#define DT_CUDA_WORDS_CUH

#include "cuda/ptx.cuh"

DT_DEVICE uint32_t dt_acquire_sys(const uint32_t *word) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
DT_DEVICE uint32_t dt_acquire_gpu(const uint32_t *word) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
DT_DEVICE void dt_fence_sys() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}
DT_DEVICE void dt_release_sys(uint32_t *word, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
DT_DEVICE void dt_add_release_sys(uint32_t *word, uint32_t value) {
  asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
DT_DEVICE void dt_add_release_gpu(uint32_t *word, uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
DT_DEVICE uint32_t dt_or_acquire(uint32_t *word, uint32_t bits) {
  uint32_t old;
  asm volatile("atom.acquire.gpu.global.or.b32 %0, [%1], %2;" : "=r"(old) : "l"(word), "r"(bits) : "memory");
  return old;
}
DT_DEVICE uint32_t dt_add_acq_rel(uint32_t *word, uint32_t value) {
  uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(word), "r"(value) : "memory");
  return old;
}
/* Global memory between what the generic and the asynchronous proxy do with it. */
DT_DEVICE void dt_fence_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

#endif
