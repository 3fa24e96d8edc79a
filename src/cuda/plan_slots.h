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

#include "plan_device.h"

/* What a block works with: its slots, [first, end), and the number of all; and its shared memory. */
typedef struct dt_slots_scratch {
  int64_t first, end, total;
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

/* Slots are split as if all tokens were there, so that ids can be loaded together with the number of tokens. */
DT_PHASE dt_slots_scratch dt_slots_scratch_at(const dt_device_slots *slots, int32_t *memory, const dt_team *team) {
  const uint32_t capacity = (uint32_t)slots->tokens_capacity * (uint32_t)slots->top_k;
  const uint32_t lanes = (uint32_t)slots->blocks * DT_WARP;
  const int64_t each = (int64_t)((capacity + lanes - 1) / lanes) * DT_WARP;
  const int64_t tokens = slots->tokens ? *slots->tokens : slots->tokens_capacity;
  dt_slots_scratch scratch;
  scratch.first = team->block * each;
  scratch.end = dt_min64(scratch.first + each, capacity);
  scratch.total = tokens < 0 || tokens > slots->tokens_capacity ? 0 : tokens * slots->top_k;
  scratch.here = memory;
  scratch.next = memory;
  scratch.before = memory + (int64_t)slots->warps * slots->experts;
  scratch.start = scratch.before + slots->experts;
  return scratch;
}

/* The expert of an id that was read for a slot; -1: none, dropped or out of range. */
DT_PHASE int32_t dt_slot_expert(const dt_device_slots *slots, const dt_slots_scratch *scratch, int64_t slot,
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
    for (int64_t slot = scratch->first + team->warp * DT_WARP + lane; slot < scratch->end; slot += BATCH * threads) {
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

/* A warp's slots: whole rounds of 32 but for the last. */
typedef struct dt_slots_stretch {
  int64_t first, end;
} dt_slots_stretch;

DT_PHASE dt_slots_stretch dt_slots_of_warp(const dt_slots_scratch *scratch, const dt_team *team) {
  const uint32_t rounds = (uint32_t)(scratch->end - scratch->first + DT_WARP - 1) / DT_WARP;
  const int64_t each = (int64_t)((rounds + (uint32_t)team->warps - 1) / (uint32_t)team->warps) * DT_WARP;
  dt_slots_stretch stretch;
  stretch.first = scratch->first + team->warp * each;
  stretch.end = dt_min64(stretch.first + each, scratch->end);
  return stretch;
}

/* Lanes of a round whose slots go to the same expert as this lane's; all lanes take part. */
DT_PHASE uint32_t dt_slot_peers(const dt_device_slots *slots, const dt_slots_scratch *scratch, int64_t round,
                                int32_t expert) {
#ifdef __CUDA_ARCH__
  (void)scratch;
  (void)round;
  return dt_warp_alike(expert, slots->experts);
#else
  uint32_t peers = 0;
  for (int64_t lane = 0; lane < dt_min64(DT_WARP, scratch->end - round); lane++) {
    if (dt_slot_expert(slots, scratch, round + lane, slots->ids[round + lane]) == expert) peers |= 1u << lane;
  }
  return peers;
#endif
}

/* Launch 2. The ids must be there before the counts are. */
DT_PHASE void dt_place_clear(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  DT_FOR_ITEMS(i, team, slots->experts * (team->warps + 1)) scratch->next[i] = 0; /* and before */
}

/* row_of_slot for now: which of the warp's slots for its expert a slot is; -1: none. */
DT_PHASE void dt_place_count(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  const dt_slots_stretch stretch = dt_slots_of_warp(scratch, team);
  int32_t *mine = &scratch->next[team->warp * slots->experts];
  DT_ROLLED
  for (int64_t round = stretch.first; round < stretch.end; round += DT_WARP) {
    DT_FOR_LANES(lane) {
      const int64_t slot = round + lane;
      const int32_t expert = slot < stretch.end ? dt_slot_expert(slots, scratch, slot, slots->ids[slot]) : -1;
      const uint32_t peers = dt_slot_peers(slots, scratch, round, expert);
      const int32_t rank = expert < 0 ? -1 : mine[expert] + dt_bits(peers & ((1u << lane) - 1));
      if (slot < stretch.end && slot < scratch->total) slots->row_of_slot[slot] = rank;
      dt_warp_sync(); /* all have read their expert's count */
      if (rank >= 0 && peers >> lane == 1) mine[expert] = rank + 1;
    }
    dt_warp_sync();
  }
}

/* Now the counts are there. The first row of every expert; slots of the blocks before, which several threads share
 * where there are more threads than experts. */
DT_PHASE void dt_place_sum(const dt_device_slots *slots, const int32_t *counts, const dt_slots_scratch *scratch,
                           const dt_team *team) {
  enum { BATCH = 16 };
  const int32_t experts = slots->experts, shares = dt_max32(1, team->warps * DT_WARP / experts);
  if (team->warp == 0) dt_warp_scan_long(scratch->start, counts, experts);
  DT_FOR_ITEMS_BACKWARD(i, team, experts * shares) {
    const int32_t share = i / experts, g = i - share * experts;
    const int32_t *histogram = &slots->histograms[share * experts + g];
    int32_t sum = 0;
    DT_ROLLED
    for (int32_t left = team->block - share; left > 0; left -= BATCH * shares) {
      int32_t count[BATCH];
      DT_UNROLL
      for (int j = 0; j < BATCH; j++) count[j] = j * shares < left ? histogram[j * shares * experts] : 0;
      DT_UNROLL
      for (int j = 0; j < BATCH; j++) sum += count[j];
      histogram += BATCH * shares * experts;
    }
    dt_add(&scratch->before[g], sum);
  }
  if (team->block != 0) return;
  DT_FOR_ITEMS(g, team, slots->experts) slots->counts[g] = 0; /* for the next layer */
}

/* From slots of each warp to the row of its first one. */
DT_PHASE void dt_place_warps(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  enum { BATCH = 4 };
  const int32_t experts = slots->experts;
  DT_FOR_ITEMS(g, team, experts) {
    int32_t row = scratch->start[g] + scratch->before[g];
    DT_ROLLED
    for (int32_t w = 0; w < team->warps; w += BATCH) {
      int32_t *next = &scratch->next[w * experts + g], count[BATCH];
      DT_UNROLL
      for (int i = 0; i < BATCH; i++) count[i] = w + i < team->warps ? next[i * experts] : 0;
      DT_UNROLL
      for (int i = 0; i < BATCH; i++) {
        if (w + i < team->warps) next[i * experts] = row;
        row += count[i];
      }
    }
  }
}

DT_PHASE void dt_place_rows(const dt_device_slots *slots, const dt_slots_scratch *scratch, const dt_team *team) {
  const dt_slots_stretch stretch = dt_slots_of_warp(scratch, team);
  const int64_t end = dt_min64(stretch.end, scratch->total);
  const int32_t *mine = &scratch->next[team->warp * slots->experts];
  DT_FOR_LANES(lane) {
    DT_UNROLL_BY(2)
    for (int64_t slot = stretch.first + lane; slot < end; slot += DT_WARP) {
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
