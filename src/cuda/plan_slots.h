/* dt_slots on the device, in two launches: count (every block its own slots), place (every block sums the counts of the
 * blocks before it and places its slots).
 *
 * Slots are split over warps in contiguous stretches, 32 at a time, so a slot's row is its expert's first row + slots
 * of the expert in earlier blocks, warps, rounds and lanes: the stable order of dt_slots, whatever the timing.
 */
#ifndef DT_CUDA_PLAN_SLOTS_H
#define DT_CUDA_PLAN_SLOTS_H

#include "plan_device.h"

/* Scratch of a block, in shared memory. */
typedef struct dt_slots_scratch {
  int32_t *total, *before; /* [experts]: slots of all blocks, and of the blocks before this one */
  int32_t *start;          /* [experts + 1]: first row */
  int32_t *next;           /* [warps][experts]: slots of each warp, then its next row */
} dt_slots_scratch;

static inline size_t dt_slots_count_bytes(const dt_device_slots *slots) {
  return sizeof(int32_t) * (size_t)slots->experts;
}

static inline size_t dt_slots_place_bytes(const dt_device_slots *slots) {
  return sizeof(int32_t) * (((size_t)slots->warps + 3) * (size_t)slots->experts + 1);
}

DT_PHASE dt_slots_scratch dt_slots_scratch_at(int32_t *memory, int32_t experts) {
  dt_slots_scratch scratch;
  scratch.total = memory;
  scratch.before = memory + experts;
  scratch.start = memory + 2 * (int64_t)experts;
  scratch.next = memory + 3 * (int64_t)experts + 1;
  return scratch;
}

/* The slots of one warp: [first, end), whole rounds of 32 but for the last warp. */
typedef struct dt_stretch {
  int64_t first, end;
} dt_stretch;

DT_PHASE int64_t dt_slots_total(const dt_device_slots *slots) {
  const int64_t tokens = slots->tokens ? *slots->tokens : slots->tokens_capacity;
  return tokens < 0 || tokens > slots->tokens_capacity ? 0 : tokens * slots->top_k;
}

DT_PHASE dt_stretch dt_slots_stretch(const dt_device_slots *slots, const dt_team *team) {
  const int64_t total = dt_slots_total(slots), warps = (int64_t)team->blocks * team->warps;
  const int64_t each = (total + warps * DT_WARP - 1) / (warps * DT_WARP) * DT_WARP;
  dt_stretch stretch;
  stretch.first = ((int64_t)team->block * team->warps + team->warp) * each;
  stretch.end = stretch.first + each < total ? stretch.first + each : total;
  return stretch;
}

/* The expert of a slot; -1: none, dropped or out of range. */
DT_PHASE int32_t dt_slot_expert(const dt_device_slots *slots, dt_stretch stretch, int64_t slot) {
  if (slot >= stretch.end) return -1;
  const int32_t id = slots->ids[slot];
  return (uint32_t)id < (uint32_t)slots->experts ? id : -1;
}

/* Lanes of a round whose slots go to the expert of lane `lane`; all lanes take part. */
DT_PHASE uint32_t dt_slot_peers(const dt_device_slots *slots, dt_stretch stretch, int64_t round, int32_t expert) {
#ifdef __CUDA_ARCH__
  (void)slots;
  (void)stretch;
  (void)round;
  return __match_any_sync(0xffffffffu, expert);
#else
  uint32_t peers = 0;
  for (int32_t lane = 0; lane < DT_WARP; lane++) {
    if (dt_slot_expert(slots, stretch, round + lane) == expert) peers |= 1u << lane;
  }
  return peers;
#endif
}

DT_PHASE int32_t dt_bits(uint32_t mask) {
#ifdef __CUDA_ARCH__
  return __popc(mask);
#else
  return __builtin_popcount(mask);
#endif
}

/* Launch 1. */
DT_PHASE void dt_count_clear(const dt_device_slots *slots, int32_t *histogram, const dt_team *team) {
  DT_FOR_ITEMS(g, team, slots->experts) histogram[g] = 0;
}

DT_PHASE void dt_count_add(const dt_device_slots *slots, int32_t *histogram, const dt_team *team) {
  const dt_stretch stretch = dt_slots_stretch(slots, team);
  for (int64_t round = stretch.first; round < stretch.end; round += DT_WARP) {
    DT_FOR_LANES(lane) {
      const int32_t expert = dt_slot_expert(slots, stretch, round + lane);
      if (expert >= 0) {
        dt_add(&histogram[expert], 1);
      } else if (round + lane < stretch.end && slots->ids[round + lane] != -1) {
        dt_error_set(slots->error, DT_DEVICE_PLAN_ERROR_ID);
      }
    }
  }
  if (slots->tokens && team->block == 0 && team->warp == 0 &&
      (*slots->tokens < 0 || *slots->tokens > slots->tokens_capacity)) {
    dt_error_set(slots->error, DT_DEVICE_PLAN_ERROR_TOKENS);
  }
}

DT_PHASE void dt_count_publish(const dt_device_slots *slots, const int32_t *histogram, const dt_team *team) {
  DT_FOR_ITEMS(g, team, slots->experts) slots->histograms[(int64_t)team->block * slots->experts + g] = histogram[g];
}

/* Launch 2. */
DT_PHASE void dt_place_clear(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  DT_FOR_ITEMS(g, team, slots->experts) scratch->total[g] = scratch->before[g] = 0;
  DT_FOR_ITEMS(i, team, slots->experts * team->warps) scratch->next[i] = 0;
}

/* Sums over blocks, which several threads share where there are more threads than experts; and this block's slots by
 * warp and expert. */
DT_PHASE void dt_place_sum(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  const int32_t experts = slots->experts, shares = dt_max32(1, team->warps * DT_WARP / experts);
  const dt_stretch stretch = dt_slots_stretch(slots, team);
  DT_FOR_ITEMS(i, team, experts * shares) {
    const int32_t g = i % experts;
    int32_t total = 0, before = 0;
    for (int32_t b = i / experts; b < team->blocks; b += shares) {
      const int32_t count = slots->histograms[(int64_t)b * experts + g];
      total += count;
      if (b < team->block) before += count;
    }
    dt_add(&scratch->total[g], total);
    dt_add(&scratch->before[g], before);
  }
  int32_t *mine = &scratch->next[(int64_t)team->warp * experts];
  for (int64_t round = stretch.first; round < stretch.end; round += DT_WARP) {
    DT_FOR_LANES(lane) {
      const int32_t expert = dt_slot_expert(slots, stretch, round + lane);
      const uint32_t peers = dt_slot_peers(slots, stretch, round, expert);
      if (expert >= 0 && peers >> lane == 1) mine[expert] += dt_bits(peers); /* the last of them */
    }
    dt_warp_sync();
  }
}

DT_PHASE void dt_place_start(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  if (team->block == 0) {
    DT_FOR_ITEMS_BACKWARD(g, team, slots->experts) slots->counts[g] = scratch->total[g];
  }
  if (team->warp != 0) return;
  DT_FOR_LANES(lane) {
    for (int32_t g = lane; g < slots->experts; g += DT_WARP) scratch->start[g] = scratch->total[g];
  }
  dt_warp_sync();
  dt_warp_scan(scratch->start, slots->experts);
}

DT_PHASE void dt_place_next(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  DT_FOR_ITEMS(g, team, slots->experts) {
    int32_t row = scratch->start[g] + scratch->before[g];
    for (int32_t w = 0; w < team->warps; w++) {
      int32_t *next = &scratch->next[(int64_t)w * slots->experts + g];
      const int32_t count = *next;
      *next = row;
      row += count;
    }
  }
}

DT_PHASE void dt_place_rows(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  const dt_stretch stretch = dt_slots_stretch(slots, team);
  int32_t *mine = &scratch->next[(int64_t)team->warp * slots->experts];
  for (int64_t round = stretch.first; round < stretch.end; round += DT_WARP) {
    DT_FOR_LANES(lane) {
      const int64_t slot = round + lane;
      const int32_t expert = dt_slot_expert(slots, stretch, slot);
      const uint32_t peers = dt_slot_peers(slots, stretch, round, expert);
      const int32_t before = dt_bits(peers & ((1u << lane) - 1)), row = expert < 0 ? -1 : mine[expert] + before;
      if (slot < stretch.end) slots->row_of_slot[slot] = row;
      if (row >= 0) slots->slot_of_row[row] = (int32_t)slot;
      dt_warp_sync(); /* all have read their expert's next row */
      if (row >= 0 && peers >> lane == 1) mine[expert] = row + 1;
    }
    dt_warp_sync();
  }
}

/* The phases in order, with a barrier of the block between each two. The histograms must be there before the second of
 * DT_PLACE_PHASES. */
#define DT_COUNT_PHASES(PHASE)                                                                                         \
  PHASE(dt_count_clear)                                                                                                \
  PHASE(dt_count_add)                                                                                                  \
  PHASE(dt_count_publish)
#define DT_PLACE_PHASES(PHASE)                                                                                         \
  PHASE(dt_place_clear)                                                                                                \
  PHASE(dt_place_sum)                                                                                                  \
  PHASE(dt_place_start)                                                                                                \
  PHASE(dt_place_next)                                                                                                 \
  PHASE(dt_place_rows)

#endif
