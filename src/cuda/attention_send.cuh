/* Rows of finished tiles to another device, by a warp of its own: as fast as the link takes them, and no faster, while
 * the consumers compute the next tile.
 *
 * Each warpgroup leaves its rows of a tile in shared memory, with a destination behind each. A few rows are under way
 * at a time, and as many after a while, so that a tile's are gone well before the next tile is done: so they leave
 * evenly, and hold up no loads. A CTA's last rows go as fast as the link takes them.
 *
 * Or they are held back: a long kernel's rows go to memory here until its last rounds, so that its links sleep
 * meanwhile (docs/ulysses.md). Then pieces of 32 rows come back, and go on, each so much after the one before.
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

/* What this CTA holds back, in pieces; `due`: when the next one may go. */
struct dt_attention_held {
  uint32_t kept, sent, due;
};
template <class C> DT_DEVICE uint8_t *dt_attention_held_at(const dt_attention_kernel &a, uint32_t piece) {
  return a.held + ((int64_t)blockIdx.x * a.held_most + piece) * C::HELD_BYTES;
}

/* A warpgroup's rows, as they lie in shared memory, with their destinations. One thread writes them, and reads them
 * again, by the copy engine both. */
template <class C>
DT_DEVICE void dt_attention_hold(const dt_attention_kernel &a, uint32_t shared, uint32_t group,
                                 dt_attention_held &held) {
  if (threadIdx.x % 32 == 0) {
    dt_bulk_store(dt_attention_held_at<C>(a, held.kept), shared + C::SHARED_SENT + 64 * group * C::SENT_ROW_BYTES,
                  64 * C::SENT_ROW_BYTES);
    dt_bulk_commit();
    dt_bulk_wait_all();
  }
  held.kept += 64 / DT_ATTENTION_HELD_ROWS;
  held.due = dt_time_low_ns();
}

/* The next piece to its owners, by way of the room of what is carried early, which nobody needs by now. Waits for the
 * load whatever else fails: the copy engine must not write into a CTA that has ended. */
template <class C>
DT_DEVICE bool dt_attention_send_held(const dt_attention_kernel &a, uint32_t shared, dt_attention_held &held) {
  const uint32_t lane = threadIdx.x % 32, start = dt_time_us();
  const uint32_t at = shared + C::SHARED_CARRY + DT_ATTENTION_CARRY_BYTES;
  const uint32_t full = dt_attention_barriers<C>::held_full(shared);
  held.due = dt_time_low_ns() + a.drain_ns;
  if (lane == 0) {
    dt_barrier_expect(full, C::HELD_BYTES);
    dt_bulk_load(at, dt_attention_held_at<C>(a, held.sent), C::HELD_BYTES, full);
  }
  while (!__all_sync(0xffffffffu, dt_barrier_try(full, held.sent & 1)))
    if (__any_sync(0xffffffffu, dt_time_us() - start > a.timeout_us)) {
      dt_attention_give_up<C>(a, shared, DT_ATTENTION_ERROR_FREE_SENT, 0);
      return false;
    }
  uint8_t *to = dt_load_shared_address(at + lane * C::SENT_ROW_BYTES + 2 * C::D);
  if (to != NULL) dt_bulk_store(to, at + lane * C::SENT_ROW_BYTES, 2 * C::D);
  dt_bulk_commit();
  dt_bulk_wait_all();
  __syncwarp();
  held.sent++;
  return true;
}

template <class C> DT_DEVICE bool dt_attention_drains(uint32_t shared) {
  return __any_sync(0xffffffffu, dt_load_shared_word(shared + C::SHARED_DRAIN) != 0);
}

/* Behind the end: what is left; then the consumers may tell others. */
template <class C>
DT_DEVICE void dt_attention_send_rest(const dt_attention_kernel &a, uint32_t shared, dt_attention_held &held) {
  if (__any_sync(0xffffffffu, dt_load_shared_word(shared + C::SHARED_DEAD) != 0)) return;
  while (held.sent < held.kept)
    if (!dt_attention_send_held<C>(a, shared, held)) return;
  dt_fence_async_global(); /* the rows, then whatever the consumers tell others */
  __syncwarp();
  if (threadIdx.x % 32 == 0) dt_barrier_arrive(dt_attention_barriers<C>::held_gone(shared));
}

/* A tile's rows of one warpgroup, or the end. No limit of its own: the consumers that it waits for have one, and say so
 * where they give up. */
template <class C> DT_DEVICE bool dt_attention_send_wait(uint32_t shared, uint32_t group, uint32_t tile) {
  while (!dt_barrier_try(dt_attention_barriers<C>::sent_full(shared, group), tile & 1))
    if (dt_load_shared_word(shared + C::SHARED_DEAD)) return false;
  return dt_load_shared_word(shared + C::SHARED_SENT_END) != tile + 1;
}
/* The same, with rows to send meanwhile. All lanes as one. */
template <class C>
DT_DEVICE bool dt_attention_send_wait_draining(const dt_attention_kernel &a, uint32_t shared, uint32_t group,
                                               uint32_t tile, dt_attention_held &held) {
  while (!__all_sync(0xffffffffu, dt_barrier_test(dt_attention_barriers<C>::sent_full(shared, group), tile & 1))) {
    if (__any_sync(0xffffffffu, dt_load_shared_word(shared + C::SHARED_DEAD) != 0)) return false;
    const bool due = held.sent < held.kept && (int32_t)(dt_time_low_ns() - held.due) >= 0;
    if (!dt_attention_drains<C>(shared) || !__all_sync(0xffffffffu, due))
      __nanosleep(500);
    else if (!dt_attention_send_held<C>(a, shared, held))
      return false;
  }
  return dt_load_shared_word(shared + C::SHARED_SENT_END) != tile + 1;
}

template <class C> DT_DEVICE void dt_attention_send_run(const dt_attention_kernel &a, uint32_t shared) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t due = 0;
  dt_attention_held held = {};
  for (uint32_t tile = 0;; tile++)
#pragma unroll 1
    for (uint32_t group = 0; group < C::GROUPS; group++) {
      bool hurry = false;
      if constexpr (C::HOLDS) {
        if (a.held_most > 0) {
          if (!dt_attention_send_wait_draining<C>(a, shared, group, tile, held))
            return dt_attention_send_rest<C>(a, shared, held);
          hurry = dt_attention_drains<C>(shared);
        }
      }
      if (!C::HOLDS || a.held_most == 0)
        if (!__all_sync(0xffffffffu, dt_attention_send_wait<C>(shared, group, tile))) return;
      if (C::HOLDS && !hurry && (int32_t)held.kept < a.held_most) {
        dt_attention_hold<C>(a, shared, group, held);
      } else {
        hurry |= dt_load_shared_word(shared + C::SHARED_HURRY) != 0;
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
      }
      dt_fence_async_global(); /* the rows, then whatever the consumers tell others */
      __syncwarp();
      if (lane == 0) dt_barrier_arrive(dt_attention_barriers<C>::sent_empty(shared, group));
    }
}

#endif
