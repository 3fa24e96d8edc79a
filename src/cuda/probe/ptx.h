/* The few instructions that CUDA C has no name for. */
#ifndef DT_CUDA_PROBE_PTX_H
#define DT_CUDA_PROBE_PTX_H

#include <stdint.h>

static __device__ __forceinline__ uint64_t dt_globaltimer(void) {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

static __device__ __forceinline__ void dt_store_release_sys(uint32_t *at, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

static __device__ __forceinline__ void dt_store_relaxed_sys(uint32_t *at, uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

static __device__ __forceinline__ uint32_t dt_load_acquire_sys(const uint32_t *at) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

static __device__ __forceinline__ uint32_t dt_load_relaxed_sys(const uint32_t *at) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

static __device__ __forceinline__ void dt_store_release_gpu(uint32_t *at, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

static __device__ __forceinline__ uint32_t dt_load_acquire_gpu(const uint32_t *at) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

static __device__ __forceinline__ void dt_add_release_gpu(uint32_t *at, uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

static __device__ __forceinline__ void dt_fence_sys(void) {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}

static __device__ __forceinline__ void dt_store_16(unsigned char *at, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

/* Past L1, so that a repeated read measures the path to L2. */
static __device__ __forceinline__ uint4 dt_load_16(const unsigned char *at) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at)
               : "memory");
  return v;
}

static __device__ __forceinline__ void dt_bulk_store(unsigned char *to, uint32_t from_shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from_shared), "r"(bytes)
               : "memory");
}

static __device__ __forceinline__ void dt_tensor_store(const void *map, int32_t column, int32_t row,
                                                       uint32_t from_shared) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(column),
               "r"(row), "r"(from_shared)
               : "memory");
}

static __device__ __forceinline__ void dt_bulk_commit(void) {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* The shared-memory source may be reused: the bytes have left. */
static __device__ __forceinline__ void dt_bulk_wait_read(void) {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* The writes themselves are complete. */
static __device__ __forceinline__ void dt_bulk_wait(void) {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#endif
