/* The orders of bands and segments. All of them are permutations that need no comparison of rows: an expert's bands
 * with remote rows are its first remote_bands ones (layout.h). */
#ifndef DT_PLAN_ORDER_H
#define DT_PLAN_ORDER_H

#include "layout.h"

/* Experts by number of bands with remote rows, descending, ties by index: a bottom-up merge sort, stable and without
 * recursion. sorted and scratch are [experts]. */
DT_HD static inline void dt_experts_sort(int32_t experts, const dt_expert_layout *expert, int32_t *sorted,
                                         int32_t *scratch) {
  for (int32_t e = 0; e < experts; e++) sorted[e] = e;
  for (int64_t width = 1; width < experts; width *= 2) {
    for (int64_t low = 0; low < experts; low += 2 * width) {
      int64_t middle = dt_min64(low + width, experts), high = dt_min64(low + 2 * width, experts);
      int64_t i = low, j = middle;
      for (int64_t k = low; k < high; k++) {
        int left = j == high || (i < middle && expert[sorted[i]].remote_bands >= expert[sorted[j]].remote_bands);
        scratch[k] = left ? sorted[i++] : sorted[j++];
      }
    }
    for (int32_t e = 0; e < experts; e++) sorted[e] = scratch[e];
  }
}

/* The order in which a rank's experts (and so their remote bands) come. scratch is [experts]. */
DT_HD static inline void dt_expert_order(dt_order order, int32_t experts, const dt_expert_layout *expert, int32_t *out,
                                         int32_t *scratch) {
  if (order == DT_ORDER_REMOTE_FIRST) {
    dt_experts_sort(experts, expert, out, scratch);
  } else {
    for (int32_t e = 0; e < experts; e++) out[e] = e;
  }
}

/* Bands first, first+1, ... of one expert: remote band i of n_r has key (2i+1)/(2n_r), local band j of n_l has
 * (2j+1)/(2n_l); ascending, ties remote first. */
DT_HD static inline void dt_expert_paced(const dt_expert_layout *expert, int32_t *out) {
  int64_t remote = expert->remote_bands, local = expert->bands - remote, i = 0, j = 0;
  while (i + j < expert->bands) {
    int take = j == local || (i < remote && (2 * i + 1) * local <= (2 * j + 1) * remote);
    int64_t band = take ? i++ : remote + j++;
    out[i + j - 1] = (int32_t)(expert->first_band + band);
  }
}

/* expert_order as dt_expert_order gives it for the same order. */
DT_HD static inline void dt_band_order(dt_order order, int32_t experts, const dt_expert_layout *expert,
                                       const int32_t *expert_order, int32_t *out) {
  int64_t n = 0;
  if (order == DT_ORDER_PACED) {
    for (int32_t e = 0; e < experts; e++) dt_expert_paced(&expert[e], &out[expert[e].first_band]);
    return;
  }
  for (int32_t i = 0; i < experts; i++) {
    const dt_expert_layout *x = &expert[expert_order[i]];
    int64_t bands = order == DT_ORDER_REMOTE_FIRST ? x->remote_bands : x->bands;
    for (int64_t b = 0; b < bands; b++) out[n++] = (int32_t)(x->first_band + b);
  }
  if (order != DT_ORDER_REMOTE_FIRST) return;
  for (int32_t i = 0; i < experts; i++) {
    const dt_expert_layout *x = &expert[expert_order[i]];
    for (int64_t b = x->remote_bands; b < x->bands; b++) out[n++] = (int32_t)(x->first_band + b);
  }
}

/* Segments by the latest band_order position of their bands, ties by row: segments are listed by row, so a stable
 * counting sort by position does it. position is scratch of [bands], bucket of [bands + 1], latest of [segments]. */
DT_HD static inline void dt_segment_order(const int32_t *band_order, int64_t bands, const dt_segment *segments,
                                          int64_t count, int32_t *position, int32_t *bucket, int32_t *latest,
                                          int32_t *out) {
  for (int64_t i = 0; i < bands; i++) position[band_order[i]] = (int32_t)i;
  for (int64_t i = 0; i <= bands; i++) bucket[i] = 0;
  for (int64_t i = 0; i < count; i++) {
    int32_t last = 0;
    for (int32_t b = 0; b < segments[i].bands; b++) {
      int32_t at = position[segments[i].first_band + b];
      if (at > last) last = at;
    }
    latest[i] = last;
    bucket[last + 1]++;
  }
  for (int64_t i = 0; i < bands; i++) bucket[i + 1] += bucket[i];
  for (int64_t i = 0; i < count; i++) out[bucket[latest[i]]++] = (int32_t)i;
}

#endif
