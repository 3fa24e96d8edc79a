/* Rows of finished tiles to another device, by a warp of its own: as fast as the link takes them, and no faster, while
 * the consumers compute the next tile.
 *
 * Each warpgroup leaves its rows of a tile in shared memory, with a destination behind each. A few rows are under way
 * at a time, and as many after a while, so that a tile's are gone well before the next tile is done: so they leave
 * evenly, and hold up no loads. A CTA's last rows go as fast as the link takes them.
 */
#ifndef DT_CUDA_ATTENTION_SEND_CUH
#define DT_CUDA_ATTENTION_SEND_CUH

#include "cuda/attention_pipeline.cuh"

DT_DEVICE uint8_t *dt_load_shared_address(uint32_t from) {
  uint64_t address;
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(address) : "r"(from) : "memory");
  return (uint8_t *)address;
}
DT_DEVICE void dt_store_shared_address(uint32_t to, const uint8_t *address) {
  asm volatile("st.shared.u64 [%0], %1;" ::"r"(to), "l"(address) : "memory");
}

/* A tile's rows of one warpgroup, or the end. No limit of its own: the consumers that it waits for have one, and say so
 * where they give up. */
template <class C> DT_DEVICE bool dt_attention_send_wait(uint32_t shared, uint32_t group, uint32_t tile) {
  while (!dt_barrier_try(dt_attention_barriers<C>::sent_full(shared, group), tile & 1))
    if (dt_load_shared_word(shared + C::SHARED_DEAD)) return false;
  return dt_load_shared_word(shared + C::SHARED_SENT_END) != tile + 1;
}

template <class C> DT_DEVICE void dt_attention_send_run(const dt_attention_kernel &a, uint32_t shared) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t due = 0;
  for (uint32_t tile = 0;; tile++)
#pragma unroll 1
    for (uint32_t group = 0; group < C::GROUPS; group++) {
      if (!__all_sync(0xffffffffu, dt_attention_send_wait<C>(shared, group, tile))) return;
      const bool hurry = dt_load_shared_word(shared + C::SHARED_HURRY) != 0;
      const uint32_t rows = hurry ? 32 : (uint32_t)a.paced;
      if (group == 0) due = dt_time_low_ns();
#pragma unroll 1
      for (uint32_t first = 0; first < 64; first += rows, due += a.paced_ns) {
        while (!hurry && (int32_t)(dt_time_low_ns() - due) < 0) __nanosleep(200);
        const uint32_t from = shared + C::SHARED_SENT + (64 * group + first + lane) * C::SENT_ROW_BYTES;
        uint8_t *to = lane < rows ? dt_load_shared_address(from + 2 * C::D) : NULL;
        if (to != NULL) dt_bulk_store(to, from, 2 * C::D);
        dt_bulk_commit();
        dt_bulk_wait_all();
      }
      dt_fence_async_global(); /* the rows, then whatever the consumers tell others */
      __syncwarp();
      if (lane == 0) dt_barrier_arrive(dt_attention_barriers<C>::sent_empty(shared, group));
    }
}

#endif
