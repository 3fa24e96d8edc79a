/* What both ways of placing slots share: plan_slots.h and moe_slots.h. */
#ifndef DT_CUDA_SLOTS_SHARED_H
#define DT_CUDA_SLOTS_SHARED_H

#include "plan_device.h"

/* Lanes of the 32 slots from `round` on whose slots go to the same expert as this lane's; all lanes take part. end: of
 * the slots that count. */
DT_PHASE uint32_t dt_slot_peers(const dt_device_slots *slots, int64_t round, int64_t end, int32_t expert) {
#ifdef __CUDA_ARCH__
  (void)round;
  (void)end;
  return dt_warp_alike(expert, slots->experts);
#else
  uint32_t peers = 0;
  for (int64_t lane = 0; lane < dt_min64(DT_WARP, end - round); lane++) {
    if (slots->ids[round + lane] == expert) peers |= 1u << lane;
  }
  return peers;
#endif
}

/* From slots of each warp for expert g, [warps][experts], to `first` and those of the warps before. Returns `first` and
 * all. */
DT_PHASE int32_t dt_slots_of_warps(int32_t *next, int32_t warps, int32_t experts, int32_t g, int32_t first) {
  enum { BATCH = 4 };
  DT_ROLLED
  for (int32_t w = 0; w < warps; w += BATCH) {
    int32_t *of = &next[w * experts + g], count[BATCH];
    DT_UNROLL
    for (int i = 0; i < BATCH; i++) count[i] = w + i < warps ? of[i * experts] : 0;
    DT_UNROLL
    for (int i = 0; i < BATCH; i++) {
      if (w + i < warps) of[i * experts] = first;
      first += count[i];
    }
  }
  return first;
}

/* Launch 2, once the counts are there. start: the first row of every expert, [experts + 1]; before: its slots of the
 * blocks before, 0 at first, which several threads share where there are more threads than experts. */
DT_PHASE void dt_slots_sum(const dt_device_slots *slots, const int32_t *counts, int32_t *start, int32_t *before,
                           const dt_team *team) {
  enum { BATCH = 16 };
  const int32_t experts = slots->experts, shares = dt_max32(1, team->warps * DT_WARP / experts);
  if (team->warp == 0) dt_warp_scan(start, counts, experts, DT_SCAN_EACH);
  DT_FOR_ITEMS_BACKWARD(i, team, experts * shares) {
    const int32_t share = i / experts, g = i - share * experts;
    int32_t sum = 0;
    DT_ROLLED
    for (int32_t first = share; first < team->block; first += BATCH * shares) {
      int32_t count[BATCH];
      DT_UNROLL
      for (int j = 0; j < BATCH; j++) {
        const int32_t block = first + j * shares;
        count[j] = block < team->block ? slots->histograms[(int64_t)block * experts + g] : 0;
      }
      DT_UNROLL
      for (int j = 0; j < BATCH; j++) sum += count[j];
    }
    dt_add(&before[g], sum);
  }
  if (team->block != 0) return;
  DT_FOR_ITEMS(g, team, experts) slots->counts[g] = 0; /* for the next layer */
}

#endif
