/* A layer's plan on the device, in which order: phases 4 and 5, groups of runs, and how many tasks of L2 come before
 * one of L1 and the other way round (moe_plan.h). */
#ifndef DT_CUDA_MOE_ORDER_H
#define DT_CUDA_MOE_ORDER_H

#include "cuda/moe_sizes.h"

/* Phase 4: experts whose early runs come first, by one thread. */
DT_PHASE void dt_moe_ahead(const dt_moe_plan *p, const dt_moe_scratch *s, const dt_team *team) {
  DT_FOR_ITEMS(i, team, 1) {
    int32_t most = 0, waves = p->ahead; /* most: tokens of any other rank */
    for (int32_t r = 0; r < p->ranks; r++)
      if (r != p->rank) most = dt_max32(most, dt_moe_combine_row(p, s, r, p->ranks * p->experts));
    most /= p->slot.top_k;
    if (waves == 0) waves = 1 + most * (p->ranks - 1) / DT_LAYER_TOKENS_A_WAVE;
    *s->ahead = 0;
    if (DT_MOE_DEDUPS(p) && most > 0 && waves > 0 && !p->tiles_only && s->early[p->experts] >= waves * p->clusters)
      *s->ahead = dt_min32(p->experts, 1 + dt_last_at_most(s->early, p->experts + 1, waves * p->clusters - 1));
  }
}

/* Phase 5: groups, by one thread for each run of the first warp; alternate's places. With dedup, `expert` is a run: its
 * order has one an expert wherever there are groups. */
DT_PHASE int32_t dt_moe_raw_group(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t expert) {
  if (DT_MOE_DEDUPS(p) && *s->ahead > 0) {
    const int32_t ahead = *s->ahead;
    if (expert < ahead) return 0;
    return 1 +
           (p->wave_experts > 0 ? (expert - ahead) / p->wave_experts : (s->l1[expert] - s->l1[ahead]) / p->group_tasks);
  }
  const int32_t halves = p->order == DT_ORDER_REMOTE_FIRST ? 2 : 1;
  return p->wave_experts > 0 ? expert / halves / p->wave_experts : s->l1[expert] / p->group_tasks;
}
/* Tasks of L1 until all of the run's are out. */
DT_PHASE int32_t dt_moe_l1_end(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t expert) {
  return s->l1[DT_MOE_DEDUPS(p) ? dt_max32(*s->ahead, expert + 1) : expert + 1];
}
DT_PHASE int32_t dt_moe_starts_group(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t expert) {
  return expert > 0 && dt_moe_raw_group(p, s, expert) != dt_moe_raw_group(p, s, expert - 1);
}
DT_PHASE void dt_moe_group_starts(const dt_moe_plan *p, const dt_moe_scratch *s, const dt_team *team) {
  if (p->lead >= DT_LAYER_LEAD_ALL) return;
  DT_FOR_ITEMS(e, team, dt_moe_runs(p)) {
    s->group[e] = dt_moe_starts_group(p, s, e);
    s->before[e] = dt_moe_l1_end(p, s, e) - s->l2[e];
  }
}
DT_PHASE void dt_moe_group_sums(const dt_moe_plan *p, const dt_moe_scratch *s, const dt_team *team) {
  if (p->lead >= DT_LAYER_LEAD_ALL) return;
  if (team->warp == 0) dt_warp_scan(s->group, s->group, dt_moe_runs(p), 4);    /* exclusive: without its own start */
  if (team->warp == 1 % team->warps) dt_warp_peaks(s->before, dt_moe_runs(p)); /* likewise */
}
DT_PHASE void dt_moe_groups(const dt_moe_plan *p, const dt_moe_scratch *s, const dt_team *team) {
  if (p->lead >= DT_LAYER_LEAD_ALL) return;
  const int32_t last = s->group[dt_moe_runs(p)]; /* number of the last group */
  DT_FOR_ITEMS(e, team, dt_moe_runs(p)) {
    const int32_t starts = dt_moe_starts_group(p, s, e);
    if (e == 0 || starts) {
      const int32_t group = e == 0 ? 0 : s->group[e] + 1;
      s->group_l1[group] = s->l1[e];
      s->group_l2[group] = s->l2[e];
    }
    if (e == 0) {
      s->group_l1[last + 1] = dt_moe_l1_tasks(p, s);
      s->group_l2[last + 1] = dt_moe_l2_tasks(p, s);
      *s->groups = last + 1;
    }
  }
}

DT_PHASE int32_t dt_moe_group_of(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t expert) {
  return s->group[expert] + dt_moe_starts_group(p, s, expert);
}
/* alternate: A of the first L2 task of an expert. */
DT_PHASE int32_t dt_moe_alternate_first(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t expert) {
  const int32_t warm = s->group_l1[dt_min32(p->lead, *s->groups)];
  const int32_t need = dt_max32(s->before[expert], dt_moe_l1_end(p, s, expert) - s->l2[expert]);
  return s->l2[expert] + dt_max32(warm, need);
}
/* A: L1 tasks before L2 task `task` of `expert`. */
DT_PHASE int32_t dt_moe_l1_before(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t expert, int32_t task) {
  const int32_t all = dt_moe_l1_tasks(p, s);
  if (p->lead >= DT_LAYER_LEAD_ALL) return all;
  if (p->alternate) return dt_min32(all, dt_moe_alternate_first(p, s, expert) + task - s->l2[expert]);
  return s->group_l1[dt_min32(*s->groups, dt_moe_group_of(p, s, expert) + p->lead + 1)];
}
/* B: L2 tasks before L1 task `task` of `expert`. */
DT_PHASE int32_t dt_moe_l2_before(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t expert, int32_t task) {
  if (p->lead >= DT_LAYER_LEAD_ALL) return 0;
  if (!p->alternate) return s->group_l2[dt_max32(0, dt_moe_group_of(p, s, expert) - p->lead)];
  int32_t low = -1, high = dt_moe_runs(p); /* the last run whose first L2 task comes before */
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (dt_moe_alternate_first(p, s, middle) <= task)
      low = middle;
    else
      high = middle;
  }
  if (low < 0) return 0;
  return dt_min32(s->l2[low + 1], s->l2[low] + task - dt_moe_alternate_first(p, s, low) + 1);
}

#endif
