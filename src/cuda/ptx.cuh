/* One-line wrappers of the PTX that the kernels use. Nothing here knows about tiles or tasks.
 *
 * Shared-memory addresses are 32-bit. An address of this CTA is also a valid shared::cluster address of itself;
 * dt_peer_address gives the same place in another CTA of the cluster.
 */
#ifndef DT_CUDA_PTX_CUH
#define DT_CUDA_PTX_CUH

#include <stdint.h>

#define DT_DEVICE static __device__ __forceinline__

DT_DEVICE uint32_t dt_shared_address(const void *pointer) {
  return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* The device's timer, where it stands among loads and stores. */
DT_DEVICE uint64_t dt_time_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  return ns;
}

/* About: in units of 1,024 ns. */
DT_DEVICE uint32_t dt_time_us() {
  return (uint32_t)(dt_time_ns() >> 10);
}

/* Its low half: differences of up to two seconds. */
DT_DEVICE uint32_t dt_time_low_ns() {
  return (uint32_t)dt_time_ns();
}

/* Clusters. */
DT_DEVICE uint32_t dt_cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
DT_DEVICE uint32_t dt_peer_address(uint32_t address, uint32_t rank) {
  uint32_t peer;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(address), "r"(rank));
  return peer;
}
DT_DEVICE void dt_cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Register budgets of a warpgroup's role. */
template <int Registers> DT_DEVICE void dt_registers_raise() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers> DT_DEVICE void dt_registers_lower() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

/* Barriers in shared memory. */
DT_DEVICE void dt_barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
DT_DEVICE void dt_barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
DT_DEVICE void dt_barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/* `barrier` is a shared::cluster address. Not qualified .release.cluster: that costs a memory barrier an arrive, and a
 * stage or slot is handed back only after its reads have returned. */
DT_DEVICE void dt_barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
DT_DEVICE void dt_barrier_expect_peer(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
DT_DEVICE bool dt_barrier_try(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n\t.reg .pred p;\n\t"
               "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
               "selp.u32 %0, 1, 0, p;\n\t}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}
/* The same without waiting at all. */
DT_DEVICE bool dt_barrier_test(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n\t.reg .pred p;\n\t"
               "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
               "selp.u32 %0, 1, 0, p;\n\t}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}
/* 16 bytes into another CTA's shared memory, counted by a barrier there. */
DT_DEVICE void dt_store_async(uint32_t address, uint4 value, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier)
      : "memory");
}

/* The bulk tensor copy engine. Coordinates: innermost first. */
DT_DEVICE void dt_tensor_prefetch(const void *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
DT_DEVICE void dt_tensor_load_3d(uint32_t to, const void *map, int32_t x, int32_t y, int32_t z, uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
               "%4}], [%5];" ::"r"(to),
               "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
               : "memory");
}
/* The same box at the same offset in every CTA of `mask`; each CTA's own barrier counts its bytes. */
DT_DEVICE void dt_tensor_multicast_3d(uint32_t to, const void *map, int32_t x, int32_t y, int32_t z, uint32_t barrier,
                                      uint16_t mask) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
               "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(mask)
               : "memory");
}
DT_DEVICE void dt_tensor_store_3d(const void *map, int32_t x, int32_t y, int32_t z, uint32_t from) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map),
               "r"(x), "r"(y), "r"(z), "r"(from)
               : "memory");
}
/* Consecutive bytes, a multiple of 16, as are the addresses; the barrier counts them. */
DT_DEVICE void dt_bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
DT_DEVICE void dt_bulk_store(void *to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
DT_DEVICE void dt_bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Until at most `Left` of this thread's groups still read their source. */
template <int Left> DT_DEVICE void dt_bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Left) : "memory");
}
/* Until at most `Left` of this thread's groups are not yet written. */
template <int Left> DT_DEVICE void dt_bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Left) : "memory");
}
/* Until this thread's groups are written. */
DT_DEVICE void dt_bulk_wait_all() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
/* Adds to a counter of this device after all that this thread has seen. */
DT_DEVICE void dt_release_add(uint32_t *counter, uint32_t value) {
  asm volatile("fence.acq_rel.gpu;\n\tred.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}
/* Shared memory written by plain stores, next read by the copy engine. */
DT_DEVICE void dt_fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

DT_DEVICE uint32_t dt_load_shared_word(uint32_t address) {
  uint32_t value;
  asm volatile("ld.relaxed.cta.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
DT_DEVICE void dt_store_shared_word(uint32_t address, uint32_t value) {
  asm volatile("st.relaxed.cta.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
/* Shared and global memory, 16 bytes at a time. */
DT_DEVICE uint4 dt_load_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
DT_DEVICE void dt_store_shared(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
DT_DEVICE void dt_store_global(void *pointer, uint4 v) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
/* Four 8x8 matrices of 16-bit elements in the accumulators' layout; lane l gives the address of row l%8 of matrix
 * l/8. */
DT_DEVICE void dt_store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
/* Approximate, denormals as zeros: one instruction each. 2^-infinity is 0. */
DT_DEVICE float dt_power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DT_DEVICE float dt_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/* The same, each matrix transposed on its way. */
DT_DEVICE void dt_store_transposed(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
/* low half: lo, high half: hi, both rounded to nearest even. */
DT_DEVICE uint32_t dt_pack_bf16(float lo, float hi) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(hi), "f"(lo));
  return packed;
}
/* The halves of such a pair. */
DT_DEVICE float dt_low(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
DT_DEVICE float dt_high(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

/* Programmatic launch: what the previous kernel of the stream wrote is visible after the wait. */
DT_DEVICE void dt_grid_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
DT_DEVICE void dt_grid_launch() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

#endif
