/* A rank's slots, sorted by global expert, stable: a counting sort. */
#ifndef DT_PLAN_SLOTS_H
#define DT_PLAN_SLOTS_H

#include "pure.h"

/* Index of the first id outside [-1, experts), or -1. */
DT_HD static inline int64_t dt_slots_bad(const int32_t *ids, int64_t slots, int32_t experts) {
  uint32_t worst = 0;
  for (int64_t i = 0; i < slots; i++) {
    uint32_t shifted = (uint32_t)ids[i] + 1u; /* -1, dropped, becomes 0; other negatives wrap to large values */
    if (shifted > worst) worst = shifted;
  }
  if (worst <= (uint32_t)experts) return -1;
  for (int64_t i = 0; i < slots; i++) {
    if ((uint32_t)ids[i] + 1u > (uint32_t)experts) return i;
  }
  return -1;
}

/* ids are valid. counts serves as the cursors of the second pass and is restored after it, so no scratch is needed. */
DT_HD static inline void dt_slots_place(const int32_t *ids, int64_t slots, int32_t experts, int32_t *counts,
                                        int32_t *row_of_slot, int32_t *slot_of_row) {
  int32_t row = 0, end = 0;
  for (int32_t g = 0; g < experts; g++) counts[g] = 0;
  for (int64_t i = 0; i < slots; i++) {
    if (ids[i] >= 0) counts[ids[i]]++;
  }
  for (int32_t g = 0; g < experts; g++) {
    int32_t n = counts[g];
    counts[g] = row;
    row += n;
  }
  for (int64_t i = 0; i < slots; i++) {
    int32_t at = ids[i] < 0 ? -1 : counts[ids[i]]++;
    row_of_slot[i] = at;
    if (at >= 0) slot_of_row[at] = (int32_t)i;
  }
  for (int32_t g = 0; g < experts; g++) {
    int32_t n = counts[g] - end;
    end = counts[g];
    counts[g] = n;
  }
}

#endif
