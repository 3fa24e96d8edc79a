/* How ranks meet: what one tells another in the other's slot, and what is said of a failure. */
#ifndef DT_CUDA_ULYSSES_MEET_CUH
#define DT_CUDA_ULYSSES_MEET_CUH

#include "cuda/ulysses_kernels.h"
#include "cuda/ulysses_meet.h"
#include "cuda/words.cuh"

DT_DEVICE void dt_ulysses_fail(const dt_ulysses_params &p, uint32_t error, int32_t index, uint32_t expected,
                               uint32_t seen) {
  if (atomicCAS(&p.state->error, (uint32_t)DT_ULYSSES_ERROR_NONE, error) != DT_ULYSSES_ERROR_NONE) return;
  /* An attention that waits for what will not come ends, one that has not begun does nothing. */
  if (error != DT_ULYSSES_ERROR_ATTENTION) atomicCAS(p.attention_error, 0u, (uint32_t)DT_ATTENTION_ERROR_STOPPED);
  p.state->index = index;
  p.state->expected = expected;
  p.state->seen = seen;
}
DT_DEVICE bool dt_ulysses_failed(const dt_ulysses_params &p) {
  return *(volatile uint32_t *)&p.state->error != DT_ULYSSES_ERROR_NONE;
}

/* Until `peer` has put `epoch` into a word of its slot; false: given up. Acquire: pairs with dt_release_sys of the
 * peer. */
DT_DEVICE bool dt_ulysses_await(const dt_ulysses_params &p, int32_t peer, const uint32_t *word, uint32_t epoch,
                                uint32_t error) {
  if ((int32_t)(dt_acquire_sys(word) - epoch) >= 0) return true;
  const uint32_t start = dt_time_us();
  for (;;) {
    const bool gave_up = dt_acquire_sys(&p.slots[peer].failed) != 0; /* what it published before comes first */
    const uint32_t seen = dt_acquire_sys(word);
    if ((int32_t)(seen - epoch) >= 0) return true;
    if (gave_up) dt_ulysses_fail(p, DT_ULYSSES_ERROR_PEER, peer, 0, 0);
    if (gave_up || dt_ulysses_failed(p)) return false;
    if (dt_time_us() - start > p.timeout_us) dt_ulysses_fail(p, error, peer, epoch, seen);
  }
}

/* Release: what the stream did before with this rank's windows is done. */
DT_DEVICE void dt_ulysses_announce(const dt_ulysses_params &p, int32_t peer, uint32_t epoch, bool failed) {
  if (failed) return dt_release_sys(&p.peer_slot[peer]->failed, 1);
  dt_release_sys(&p.peer_slot[peer]->entered, epoch);
}

/* One thread, behind this rank's last stores to peers. Release: pairs with the peer's await. */
DT_DEVICE void dt_ulysses_tell_left(const dt_ulysses_params &p) {
  const uint32_t epoch = p.state->epoch + 1;
  dt_fence_sys();
  for (int32_t r = 0; r < p.ranks; r++)
    if (r != p.rank) dt_release_sys(&p.peer_slot[r]->left, epoch);
}

/* One warp: tells every peer that this rank enters, waits for every peer, opens the gate. */
DT_DEVICE void dt_ulysses_enter(const dt_ulysses_params &p) {
  const int32_t lane = (int32_t)(threadIdx.x % 32);
  const uint32_t epoch = p.state->epoch + 1;
  bool good = !dt_ulysses_failed(p);
  if (lane < p.ranks && lane != p.rank) {
    dt_ulysses_announce(p, lane, epoch, !good);
    good = dt_ulysses_await(p, lane, &p.slots[lane].entered, epoch, DT_ULYSSES_ERROR_ENTRY) && good;
  }
  if (!__all_sync(0xffffffffu, good)) return;
  /* Release: the other ranks' windows are open; pairs with the attention's acquire of its heads' words. */
  for (int32_t head = lane; head < p.heads; head += 32) dt_release_sys(p.gate + head, epoch);
  if (lane == 0) p.state->times.in_first = p.state->times.in_last = p.state->times.ready = dt_time_ns();
}

#endif
