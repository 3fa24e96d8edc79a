/* The MoE layer's plan phase by phase, as the plan kernels run them, by one thread of the host. */
#ifndef DT_MOE_PHASES_SUPPORT_H
#define DT_MOE_PHASES_SUPPORT_H

#include "cuda/moe_places.h"

/* What comes before tasks and pieces are written. words: room at memory. The scratch lies there. */
static inline dt_moe_scratch support_phases(const dt_moe_plan *p, int32_t *memory, size_t words,
                                            const int32_t *counts) {
  const dt_team team = {0, 1, 0, 1};
  assert_true(dt_moe_scratch_words(p->ranks, p->experts, p->order) <= words);
  const dt_moe_scratch s = dt_moe_scratch_at(p, memory);
  assert_false(dt_moe_sources(p, &s, &team, counts));
  dt_moe_remotes(p, &s, &team);
  dt_moe_sort(p, &s, &team);
  dt_moe_sizes(p, &s, &team);
  dt_moe_sums(p, &s, &team);
  dt_moe_ahead(p, &s, &team);
  dt_moe_group_starts(p, &s, &team);
  dt_moe_group_sums(p, &s, &team);
  dt_moe_groups(p, &s, &team);
  return s;
}

#endif
