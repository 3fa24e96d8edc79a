/* A layer's words in memory: acquires, releases, and giving up. Used by the engine and by the kernels around it. */
#ifndef DT_CUDA_LAYER_WORDS_CUH
#define DT_CUDA_LAYER_WORDS_CUH

#include "cuda/tile_layer.h"
#include "cuda/words.cuh"

/* Adds to a counter of another rank after all that this thread has seen. */
DT_DEVICE void dt_release_add_sys(uint32_t *counter, uint32_t value) {
  asm volatile("fence.acq_rel.sys;\n\tred.release.sys.global.add.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}
DT_DEVICE void dt_store_relaxed_sys(uint32_t *word, uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
/* 16 bytes that are read once. */
DT_DEVICE uint4 dt_load_row(const uint4 *from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
/* A row of `words` of 16 bytes, read once; the whole warp, Ahead loads of a lane under way. */
template <int32_t Ahead> DT_DEVICE void dt_copy_row(uint4 *to, const uint4 *from, int32_t words) {
#pragma unroll 1
  for (int32_t w = (int32_t)(threadIdx.x % 32); w < words; w += 32 * Ahead) {
    uint4 v[Ahead];
#pragma unroll
    for (int32_t j = 0; j < Ahead; j++)
      if (w + 32 * j < words) v[j] = dt_load_row(from + w + 32 * j);
#pragma unroll
    for (int32_t j = 0; j < Ahead; j++)
      if (w + 32 * j < words) dt_store_global(to + w + 32 * j, v[j]);
  }
}

DT_DEVICE void dt_pause_us(uint32_t us) {
  const uint32_t start = dt_time_us();
  while (dt_time_us() - start < us) continue;
}

DT_DEVICE uint32_t dt_load_volatile(const uint32_t *word) {
  return *(const volatile uint32_t *)word;
}

/* `Owner` has state, slots, peer_slot, arrivals, bands_max, rank and ranks: a dt_tile_layer or a dt_moe_plan. */
template <class Owner> DT_DEVICE bool dt_layer_failed(const Owner &owner) {
  return dt_load_volatile(&owner.state->error) != DT_LAYER_OK;
}
/* Sticky. The first to fail says so to every peer, for the epoch under way. */
template <class Owner>
DT_DEVICE void dt_layer_fail(const Owner &owner, uint32_t error, int32_t index, uint32_t expected, uint32_t seen) {
  dt_layer_state *state = owner.state;
  if (atomicCAS(&state->error, (uint32_t)DT_LAYER_OK, error) != DT_LAYER_OK) return;
  state->index = index;
  state->expected = expected;
  state->seen = seen;
  for (int32_t r = 0; r < owner.ranks; r++)
    if (r != owner.rank) dt_release_sys(&owner.peer_slot[r]->failed, 1);
}
/* Takes note of a peer that gave up. */
template <class Owner> DT_DEVICE void dt_layer_watch_peers(const Owner &owner) {
  for (int32_t r = 0; r < owner.ranks; r++)
    if (r != owner.rank && dt_acquire_sys(&owner.slots[r].failed) != 0)
      dt_layer_fail(owner, DT_LAYER_ERROR_PEER, r, 0, 0);
}

/* The counter of rows that have arrived for a band of `rank`, in this epoch. */
template <class Owner> DT_DEVICE uint32_t *dt_arrival(const Owner &owner, int32_t rank, int32_t band) {
  return owner.arrivals[rank] + (int64_t)(owner.state->epoch & 1) * owner.bands_max + band;
}
/* Publishes rows that this rank has stored for a band of `peer`. One thread, after the barrier that others passed
 * behind their stores. */
template <class Owner>
DT_DEVICE void dt_dispatch_done(const Owner &owner, int32_t peer, int32_t band, uint32_t rows) {
  if (peer == owner.rank)
    dt_release_add(dt_arrival(owner, peer, band), rows);
  else
    dt_release_add_sys(dt_arrival(owner, peer, band), rows);
}
/* Tells every rank that its combine buffer holds all rows of this one. One thread, which has acquired them. */
DT_DEVICE void dt_tell_sent(const dt_tile_layer &layer) {
  const uint32_t epoch = layer.state->epoch;
  dt_fence_sys(); /* once: with the stores behind it a release for every rank */
  for (int32_t r = 0; r < layer.ranks; r++) dt_store_relaxed_sys(&layer.peer_slot[r]->sent, epoch);
}

#endif
