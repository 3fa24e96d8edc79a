/* The slots of a layer, in two launches: count (every block its own slots: how many an expert has, and which of them
 * each slot is), place (every block adds the rows of experts and blocks before). The counts are sent to the peers
 * before the slots are told apart, which the exchange hides; plan_slots.h does that while it waits for its own
 * counting.
 *
 * Slots are split over warps in contiguous stretches, 32 at a time, so a slot's row is its expert's first row + slots
 * of the expert in earlier blocks, warps, rounds and lanes: the stable order of dt_slots, whatever the timing.
 */
#ifndef DT_CUDA_MOE_SLOTS_H
#define DT_CUDA_MOE_SLOTS_H

#include "slots_shared.h"

/* What a warp works with: its slots, [first, end), whole rounds of 32 but for the last; and the block's shared memory.
 */
typedef struct dt_slots_scratch {
  int64_t first, end;
  /* Launch 1 */
  int32_t *next; /* [warps][experts], slots of each warp, then of the warps before */
  /* Launch 2 */
  int32_t *before; /* [experts], slots of the blocks before */
  int32_t *start;  /* [experts + 1], first row */
} dt_slots_scratch;

static inline size_t dt_slots_count_bytes(const dt_device_slots *slots) {
  return sizeof(int32_t) * (size_t)slots->warps * (size_t)slots->experts;
}

static inline size_t dt_slots_place_bytes(const dt_device_slots *slots) {
  return sizeof(int32_t) * (2 * (size_t)slots->experts + 1);
}

/* first and end are those of a counting warp. */
DT_PHASE dt_slots_scratch dt_slots_scratch_at(const dt_device_slots *slots, int32_t *memory, int32_t block,
                                              int32_t warp) {
  const int64_t tokens = slots->tokens ? *slots->tokens : slots->tokens_capacity;
  const uint32_t total = tokens < 0 || tokens > slots->tokens_capacity ? 0 : (uint32_t)tokens * (uint32_t)slots->top_k;
  const uint32_t lanes = (uint32_t)(slots->blocks * slots->warps * DT_WARP);
  const int64_t each = (int64_t)((total + lanes - 1) / lanes) * DT_WARP;
  dt_slots_scratch scratch;
  scratch.first = ((int64_t)block * slots->warps + warp) * each;
  scratch.end = dt_min64(scratch.first + each, total);
  scratch.next = memory;
  scratch.before = memory;
  scratch.start = memory + slots->experts;
  return scratch;
}

/* The expert of a slot; -1: none, dropped or out of range. */
DT_PHASE int32_t dt_slot_expert(const dt_device_slots *slots, const dt_slots_scratch *scratch, int64_t slot) {
  if (slot >= scratch->end) return -1;
  const int32_t id = slots->ids[slot];
  return (uint32_t)id < (uint32_t)slots->experts ? id : -1;
}

/* Launch 1. */
DT_PHASE void dt_count_clear(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  DT_FOR_ITEMS(i, team, slots->experts * team->warps) scratch->next[i] = 0;
}

DT_PHASE void dt_count_add(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  int32_t *mine = &scratch->next[(int64_t)team->warp * slots->experts];
  DT_ROLLED
  for (int64_t round = scratch->first; round < scratch->end; round += DT_WARP) {
    DT_FOR_LANES(lane) {
      const int32_t expert = dt_slot_expert(slots, scratch, round + lane);
      if (expert >= 0) {
        dt_add(&mine[expert], 1);
      } else if (round + lane < scratch->end && slots->ids[round + lane] != -1) {
        dt_error_set(slots->error, DT_DEVICE_PLAN_ERROR_ID);
      }
    }
  }
  if (slots->tokens && (*slots->tokens < 0 || *slots->tokens > slots->tokens_capacity)) {
    dt_error_set(slots->error, DT_DEVICE_PLAN_ERROR_TOKENS);
  }
}

/* From slots of each warp to slots of the warps before; all of them to the other blocks and to the exchange. */
DT_PHASE void dt_count_warps(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  const int32_t experts = slots->experts;
  DT_FOR_ITEMS(g, team, experts) {
    const int32_t all = dt_slots_of_warps(scratch->next, team->warps, experts, g, 0);
    slots->histograms[(int64_t)team->block * experts + g] = all;
    if (all > 0) dt_add(&slots->counts[g], all);
  }
}

/* row_of_slot for now: which of the block's slots for its expert a slot is; -1: none. */
DT_PHASE void dt_count_rank(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  int32_t *mine = &scratch->next[(int64_t)team->warp * slots->experts];
  DT_ROLLED
  for (int64_t round = scratch->first; round < scratch->end; round += DT_WARP) {
    DT_FOR_LANES(lane) {
      const int32_t expert = dt_slot_expert(slots, scratch, round + lane);
      const uint32_t peers = dt_slot_peers(slots, round, scratch->end, expert);
      const int32_t rank = expert < 0 ? -1 : mine[expert] + dt_bits(peers & ((1u << lane) - 1));
      if (round + lane < scratch->end) slots->row_of_slot[round + lane] = rank;
      dt_warp_sync(); /* all have read their expert's count */
      if (rank >= 0 && peers >> lane == 1) mine[expert] = rank + 1;
    }
    dt_warp_sync();
  }
}

/* team->block is the counting block. */
DT_PHASE void dt_place_clear(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  DT_FOR_ITEMS(g, team, slots->experts) scratch->before[g] = 0;
}

DT_PHASE void dt_place_sum(const dt_device_slots *slots, const int32_t *counts, const dt_slots_scratch *scratch,
                           const dt_team *team) {
  dt_slots_sum(slots, counts, scratch->start, scratch->before, team);
}

DT_PHASE void dt_place_rows(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  const int64_t first = dt_slots_scratch_at(slots, scratch->before, team->block, 0).first;
  const int64_t end = dt_slots_scratch_at(slots, scratch->before, team->block, slots->warps - 1).end;
  DT_FOR_LANES(lane) {
    for (int64_t slot = first + team->warp * DT_WARP + lane; slot < end; slot += team->warps * DT_WARP) {
      const int32_t rank = slots->row_of_slot[slot], id = slots->ids[slot];
      if (rank < 0) continue;
      const int32_t row = scratch->start[id] + scratch->before[id] + rank;
      slots->row_of_slot[slot] = row;
      slots->slot_of_row[row] = (int32_t)slot;
    }
  }
}

/* The phases of launch 1 in order, with a barrier of the block between each two; launch 2 has dt_place_clear,
 * dt_place_sum and dt_place_rows. */
#define DT_COUNT_PHASES(PHASE)                                                                                         \
  PHASE(dt_count_clear)                                                                                                \
  PHASE(dt_count_add)                                                                                                  \
  PHASE(dt_count_warps)                                                                                                \
  PHASE(dt_count_rank)

#endif
