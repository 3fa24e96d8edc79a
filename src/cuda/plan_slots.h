/* dt_slots on the device, in two launches: count (slots of every expert, of each block and of all) and, beside the
 * plan, place (where each slot goes). The exchange waits for counts alone, so counting does nothing else: placing
 * counts its slots a second time, by warp, before the counts of all are there.
 *
 * Slots are split over blocks, and a block's over warps, in contiguous stretches, 32 at a time, so a slot's row is its
 * expert's first row + slots of the expert in earlier blocks, warps, rounds and lanes: the stable order of dt_slots,
 * whatever the timing.
 */
#ifndef DT_CUDA_PLAN_SLOTS_H
#define DT_CUDA_PLAN_SLOTS_H

#include "slots_shared.h"

/* What a block works with: its slots, [first, end), and the number of all; and its shared memory. */
typedef struct dt_slots_scratch {
  int32_t first, end, total;
  /* Launch 1 */
  int32_t *here; /* [experts], slots of the block */
  /* Launch 2 */
  int32_t *next;   /* [warps][experts], slots of each warp; then the row of its first one */
  int32_t *before; /* [experts], slots of the blocks before */
  int32_t *start;  /* first row: a list of experts */
} dt_slots_scratch;

static inline size_t dt_slots_count_bytes(const dt_device_slots *slots) {
  return sizeof(int32_t) * (size_t)slots->experts;
}

static inline size_t dt_slots_place_bytes(const dt_device_slots *slots) {
  return sizeof(int32_t) * (((size_t)slots->warps + 1) * (size_t)slots->experts +
                            (size_t)dt_list_words(slots->experts, DT_WARP * DT_SCAN_EACH));
}

/* Slots that a warp takes, whole rounds of 32; split as if all tokens were there, so that ids can be loaded together
 * with the number of tokens. */
DT_PHASE int32_t dt_slots_each(const dt_device_slots *slots) {
  const int32_t capacity = (int32_t)slots->tokens_capacity * slots->top_k;
  const int32_t lanes = slots->blocks * slots->warps * DT_WARP;
  return dt_quotient(capacity + lanes - 1, lanes) * DT_WARP;
}

/* [first, end), of all blocks' warps from the index-th on. */
typedef struct dt_slots_stretch {
  int32_t first, end;
} dt_slots_stretch;

DT_PHASE dt_slots_stretch dt_slots_stretch_at(const dt_device_slots *slots, int32_t index, int32_t warps) {
  const int32_t each = dt_slots_each(slots), all = (int32_t)slots->tokens_capacity * slots->top_k;
  dt_slots_stretch stretch;
  stretch.first = dt_min32(index * each, all);
  stretch.end = dt_min32((index + warps) * each, all);
  return stretch;
}

DT_PHASE dt_slots_scratch dt_slots_scratch_at(const dt_device_slots *slots, int32_t *memory, const dt_team *team) {
  const int64_t tokens = slots->tokens ? *slots->tokens : slots->tokens_capacity;
  const dt_slots_stretch block = dt_slots_stretch_at(slots, team->block * slots->warps, slots->warps);
  dt_slots_scratch scratch;
  scratch.first = block.first;
  scratch.end = block.end;
  scratch.total = tokens < 0 || tokens > slots->tokens_capacity ? 0 : (int32_t)tokens * slots->top_k;
  scratch.here = memory;
  scratch.start = memory;
  scratch.next = memory + dt_list_words(slots->experts, DT_WARP * DT_SCAN_EACH);
  scratch.before = scratch.next + slots->warps * slots->experts;
  return scratch;
}

/* The expert of an id that was read for a slot; -1: none, dropped or out of range. */
DT_PHASE int32_t dt_slot_expert(const dt_device_slots *slots, const dt_slots_scratch *scratch, int32_t slot,
                                int32_t id) {
  return slot < scratch->total && (uint32_t)id < (uint32_t)slots->experts ? id : -1;
}

/* Launch 1. */
DT_PHASE void dt_count_clear(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  DT_FOR_ITEMS(g, team, slots->experts) scratch->here[g] = 0;
}

DT_PHASE void dt_count_add(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  enum { BATCH = 4 };
  const int32_t threads = team->warps * DT_WARP;
  DT_FOR_LANES(lane) {
    DT_ROLLED
    for (int32_t slot = scratch->first + team->warp * DT_WARP + lane; slot < scratch->end; slot += BATCH * threads) {
      int32_t id[BATCH];
      DT_UNROLL
      for (int i = 0; i < BATCH; i++) id[i] = slot + i * threads < scratch->end ? slots->ids[slot + i * threads] : -1;
      DT_UNROLL
      for (int i = 0; i < BATCH; i++) {
        const int32_t expert = dt_slot_expert(slots, scratch, slot + i * threads, id[i]);
        if (expert >= 0) {
          dt_add(&scratch->here[expert], 1);
        } else if (id[i] != -1 && slot + i * threads < scratch->total) {
          dt_error_set(slots->error, DT_DEVICE_PLAN_ERROR_ID);
        }
      }
    }
  }
  if (slots->tokens && (*slots->tokens < 0 || *slots->tokens > slots->tokens_capacity)) {
    dt_error_set(slots->error, DT_DEVICE_PLAN_ERROR_TOKENS);
  }
}

/* To the blocks that place, and to the exchange. */
DT_PHASE void dt_count_write(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  DT_FOR_ITEMS(g, team, slots->experts) {
    const int32_t here = scratch->here[g];
    slots->histograms[(int64_t)team->block * slots->experts + g] = here;
    if (here > 0) dt_add(&slots->counts[g], here);
  }
}

/* Launch 2. The ids must be there before the counts are. */
DT_PHASE void dt_place_clear(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  DT_FOR_ITEMS(i, team, slots->experts * (team->warps + 1)) scratch->next[i] = 0; /* and before */
}

/* row_of_slot for now: which of the warp's slots for its expert a slot is; -1: none. */
DT_PHASE void dt_place_count(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  const dt_slots_stretch stretch = dt_slots_stretch_at(slots, team->block * team->warps + team->warp, 1);
  int32_t *mine = &scratch->next[team->warp * slots->experts];
  DT_ROLLED
  for (int32_t round = stretch.first; round < stretch.end; round += DT_WARP) {
    DT_FOR_LANES(lane) {
      const int32_t slot = round + lane;
      const int32_t expert = slot < stretch.end ? dt_slot_expert(slots, scratch, slot, slots->ids[slot]) : -1;
      const uint32_t peers = dt_slot_peers(slots, round, dt_min32(stretch.end, scratch->total), expert);
      const int32_t rank = expert < 0 ? -1 : mine[expert] + dt_bits(peers & ((1u << lane) - 1));
      if (slot < stretch.end && slot < scratch->total) slots->row_of_slot[slot] = rank;
      dt_warp_sync(); /* all have read their expert's count */
      if (rank >= 0 && peers >> lane == 1) mine[expert] = rank + 1;
    }
    dt_warp_sync();
  }
}

DT_PHASE void dt_place_sum(const dt_device_slots *slots, const int32_t *counts, const dt_slots_scratch *scratch,
                           const dt_team *team) {
  dt_slots_sum(slots, counts, scratch->start, scratch->before, team);
}

/* From slots of each warp to the row of its first one. */
DT_PHASE void dt_place_warps(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  const int32_t experts = slots->experts;
  DT_FOR_ITEMS(g, team, experts) {
    dt_slots_of_warps(scratch->next, team->warps, experts, g, scratch->start[g] + scratch->before[g]);
  }
}

DT_PHASE void dt_place_rows(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  const dt_slots_stretch stretch = dt_slots_stretch_at(slots, team->block * team->warps + team->warp, 1);
  const int32_t end = dt_min32(stretch.end, scratch->total);
  const int32_t *mine = &scratch->next[team->warp * slots->experts];
  DT_FOR_LANES(lane) {
    DT_UNROLL_BY(2)
    for (int32_t slot = stretch.first + lane; slot < end; slot += DT_WARP) {
      const int32_t rank = slots->row_of_slot[slot], id = slots->ids[slot];
      if (rank < 0) continue;
      const int32_t row = mine[id] + rank;
      slots->row_of_slot[slot] = row;
      slots->slot_of_row[row] = (int32_t)slot;
    }
  }
}

/* The phases in order, with a barrier of the block between each two. */
#define DT_COUNT_PHASES(PHASE)                                                                                         \
  PHASE(dt_count_clear)                                                                                                \
  PHASE(dt_count_add)                                                                                                  \
  PHASE(dt_count_write)

#endif
