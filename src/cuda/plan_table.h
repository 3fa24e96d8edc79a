/* L1 and L2 tasks of every schedule by position.
 *
 * Tasks of a phase are numbered as dt_emit_units lists them; a schedule only shifts them: what of the other phase comes
 * before. A run's units are raster_bands long but for the last, so unit, column and band follow from a task's number,
 * and a group's place from where the run's first group begins. Only walking over runs is sequential.
 */
#ifndef DT_CUDA_PLAN_TABLE_H
#define DT_CUDA_PLAN_TABLE_H

#include "plan_fill.h"

/* A unit of the table, and where it is. */
typedef struct dt_unit_place {
  int32_t run, offset;  /* in the run */
  int32_t first, bands; /* position in the table */
} dt_unit_place;

DT_PHASE int32_t dt_table_run_bands(const dt_summary *s, int32_t run) {
  return s->run_start[run + 1] - s->run_start[run];
}

DT_PHASE dt_unit_place dt_table_unit(const dt_device_plan *plan, const dt_summary *s, int32_t run, int32_t k) {
  dt_unit_place unit;
  unit.run = run;
  unit.offset = k * plan->raster_bands;
  unit.first = s->run_start[run] + unit.offset;
  unit.bands = dt_min32(plan->raster_bands, s->run_start[run + 1] - unit.first);
  return unit;
}

/* The unit that holds a position of the table. */
DT_PHASE dt_unit_place dt_table_unit_at(const dt_device_plan *plan, const dt_summary *s, int32_t position) {
  const int32_t run = dt_last_by_steps(s->run_start, plan->runs, position);
  return dt_table_unit(plan, s, run, dt_divide(plan->by_raster, position - s->run_start[run]));
}

DT_PHASE int32_t dt_table_band(const dt_device_plan *plan, const dt_summary *s, const dt_unit_place *unit, int32_t b) {
  const int32_t first = s->run_band[unit->run];
  if (plan->config.order != DT_ORDER_PACED) return first + unit->offset + b;
  const int32_t remote = s->remote_bands[dt_own(plan) + unit->run]; /* an expert a run */
  return first + dt_paced_band(remote, dt_table_run_bands(s, unit->run) - remote, unit->offset + b);
}

/* Phase 7, only with groups: units before each run, by one warp. */
DT_PHASE void dt_table_units(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  if (!dt_is_grouped(plan) || !s->totals->fits || team->warp != 0) return;
  DT_FOR_LANES(lane) {
    DT_ROLLED
    for (int32_t r = lane; r < plan->runs; r += DT_WARP) {
      s->run_unit[r] = dt_units_of(plan, s->run_start[r + 1] - s->run_start[r]);
    }
  }
  dt_warp_sync();
  dt_warp_scan(s->run_unit, s->run_unit, plan->runs, 1);
}

/* Phase 8, only with groups: where each unit begins, and which unit begins the next group if this one begins a group:
 * the first whose position is `need` bands on. */
DT_PHASE void dt_table_list(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  const int32_t runs = plan->runs;
  if (!dt_is_grouped(plan) || !s->totals->fits) return;
  const int32_t units = s->run_unit[runs];
  DT_FOR_ITEMS(u, team, units + 1) {
    if (u == units) {
      s->unit_start[u] = s->run_start[runs];
      continue;
    }
    const int32_t run = dt_last_by_steps(s->run_unit, runs, u);
    const int32_t start = s->run_start[run] + (u - s->run_unit[run]) * plan->raster_bands, end = start + plan->need;
    const int32_t in = run + dt_last_by_steps(&s->run_start[run], runs - run, end - 1), behind = end - s->run_start[in];
    s->unit_start[u] = start;
    s->unit_next[u] = dt_min32(s->run_unit[in] + dt_divide(plan->by_raster, behind - 1) + 1, s->run_unit[in + 1]);
  }
}

/* The groups that follow one another from unit 0 on; one lane. Returns how many. */
DT_PHASE int32_t dt_table_groups_by_tasks(const dt_summary *s, int32_t units) {
  int32_t groups = 0;
  DT_ROLLED
  for (int32_t u = 0; u < units; u = s->unit_next[u]) s->group_first[groups++] = u;
  return groups;
}

/* A group by experts ends with the last run of every wave_experts-th expert that has bands. One lane. */
DT_PHASE int32_t dt_table_groups_by_experts(const dt_device_plan *plan, const dt_summary *s) {
  const int32_t runs_each = plan->config.order == DT_ORDER_REMOTE_FIRST ? 2 : 1;
  int32_t groups = 0, open = 0;
  s->group_first[0] = 0;
  DT_ROLLED
  for (int32_t run = runs_each; run <= plan->runs; run += runs_each) {
    open += s->run_unit[run] > s->run_unit[run - runs_each];
    if (open < plan->config.wave_experts) continue;
    s->group_first[++groups] = s->run_unit[run];
    open = 0;
  }
  return groups + (open > 0);
}

/* Where group g begins. */
DT_PHASE int32_t dt_table_group_start(const dt_device_plan *plan, const dt_summary *s, int32_t g) {
  if (g <= 0) return 0;
  return g < s->totals->groups ? s->unit_start[s->group_first[g]] : s->run_start[plan->runs];
}

DT_PHASE int32_t dt_table_group_of(const dt_device_plan *plan, const dt_summary *s, const dt_unit_place *unit) {
  const int32_t index = s->run_unit[unit->run] + dt_divide(plan->by_raster, unit->offset);
  return dt_last_by_steps(s->group_first, s->totals->groups, index);
}

/* `alternate`: L2 task n of a unit is preceded by min(all, n + max(warm-up, peak)) L1 tasks, where peak is the largest
 * of all units until this one of: L1 tasks that its first L2 task waits for, less the L2 tasks before that. In a run
 * this is largest at its first, its last whole or its last unit. */
DT_PHASE int32_t dt_table_peak(const dt_device_plan *plan, const dt_summary *s, int32_t run, int32_t k) {
  const dt_unit_place unit = dt_table_unit(plan, s, run, k);
  const int32_t columns_1 = plan->config.columns_1, columns_2 = plan->config.columns_2;
  return unit.first * columns_1 - unit.first * columns_2 + (columns_1 - 1) * unit.bands + 1;
}

/* Of the units of the run until the k-th. */
DT_PHASE int32_t dt_table_run_peak(const dt_device_plan *plan, const dt_summary *s, int32_t run, int32_t k) {
  const int32_t peak = dt_table_peak(plan, s, run, 0);
  if (k == 0) return peak;
  return dt_max32(peak, dt_max32(dt_table_peak(plan, s, run, k - 1), dt_table_peak(plan, s, run, k)));
}

DT_PHASE int32_t dt_table_peak_until(const dt_device_plan *plan, const dt_summary *s, int32_t run, int32_t k) {
  const int32_t before = dt_max32(s->run_peak[run], s->totals->warm_up);
  return dt_max32(before, dt_table_run_peak(plan, s, run, k));
}

/* The number of the L1 task that follows the first L2 task of unit k of a run. */
DT_PHASE int32_t dt_table_gate(const dt_device_plan *plan, const dt_summary *s, int32_t run, int32_t k) {
  return (s->run_start[run] + k * plan->raster_bands) * plan->config.columns_2 + dt_table_peak_until(plan, s, run, k);
}

DT_PHASE int32_t dt_table_last_unit(const dt_device_plan *plan, const dt_summary *s, int32_t run) {
  return dt_divide(plan->by_raster, dt_table_run_bands(s, run) - 1);
}

/* By one warp. An empty run's gate is that of a unit which adds nothing. */
DT_PHASE void dt_table_gates(const dt_device_plan *plan, const dt_summary *s) {
  DT_FOR_LANES(lane) {
    if (lane == 0) s->totals->warm_up = dt_table_group_start(plan, s, plan->lead) * plan->config.columns_1;
    DT_ROLLED
    for (int32_t run = lane; run < plan->runs; run += DT_WARP) {
      s->run_peak[run] = dt_table_run_bands(s, run) > 0
                             ? dt_table_run_peak(plan, s, run, dt_table_last_unit(plan, s, run))
                             : INT32_MIN;
    }
  }
  dt_warp_sync();
  dt_warp_peaks(s->run_peak, plan->runs);
  DT_FOR_LANES(lane) {
    DT_ROLLED
    for (int32_t run = lane; run < plan->runs; run += DT_WARP) {
      s->run_gate[run] = dt_table_run_bands(s, run) > 0 ? dt_table_gate(plan, s, run, 0)
                                                        : s->run_start[run] * plan->config.columns_2 +
                                                              dt_max32(s->run_peak[run], s->totals->warm_up);
    }
  }
}

/* Phase 9 of one warp, only with groups, while the others fill arrays that do not need them. */
DT_PHASE void dt_table_groups(const dt_device_plan *plan, const dt_summary *s) {
  const int32_t units = s->run_unit[plan->runs];
  if (units == 0) return;
  DT_FOR_LANES(lane) {
    if (lane == 0) {
      s->totals->groups =
          dt_plan_by_experts(&plan->config) ? dt_table_groups_by_experts(plan, s) : dt_table_groups_by_tasks(s, units);
    }
  }
  dt_warp_sync();
  if (plan->config.schedule == DT_SCHEDULE_ALTERNATE) dt_table_gates(plan, s);
}

/* Phase 9: all arrays but L1 and L2 tasks. */
DT_PHASE void dt_table_fill(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  if (!s->totals->fits) return;
  if (dt_is_grouped(plan) && team->warp == 0) dt_table_groups(plan, s);
  dt_fill(plan, s, team);
}

/* L2 tasks before L1 task `number` of the unit. */
DT_PHASE int32_t dt_table_l2_before(const dt_device_plan *plan, const dt_summary *s, const dt_unit_place *unit,
                                    int32_t number) {
  const int32_t columns_2 = plan->config.columns_2;
  if (plan->config.schedule < DT_SCHEDULE_WAVE) return 0;
  if (plan->config.schedule != DT_SCHEDULE_ALTERNATE) {
    return columns_2 * dt_table_group_start(plan, s, dt_table_group_of(plan, s, unit) - plan->lead);
  }
  const int32_t run = dt_last_by_steps(s->run_gate, plan->runs, number);
  if (s->run_gate[run] > number) return 0;
  if (dt_table_run_bands(s, run) == 0) return s->run_start[run] * columns_2;
  int32_t low = 0, high = dt_table_last_unit(plan, s, run) + 1; /* the last unit whose gate is open */
  DT_ROLLED
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (dt_table_gate(plan, s, run, middle) <= number) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const dt_unit_place open = dt_table_unit(plan, s, run, low);
  return dt_min32((open.first + open.bands) * columns_2, number - dt_table_peak_until(plan, s, run, low) + 1);
}

/* L1 tasks before L2 task `number` of the unit. */
DT_PHASE int32_t dt_table_l1_before(const dt_device_plan *plan, const dt_summary *s, const dt_unit_place *unit,
                                    int32_t number) {
  const int32_t columns_1 = plan->config.columns_1, all = s->run_start[plan->runs] * columns_1;
  if (plan->config.schedule < DT_SCHEDULE_WAVE) return all;
  if (plan->config.schedule != DT_SCHEDULE_ALTERNATE) {
    return columns_1 * dt_table_group_start(plan, s, dt_table_group_of(plan, s, unit) + plan->lead + 1);
  }
  return (int32_t)dt_min64(all, (int64_t)number +
                                    dt_table_peak_until(plan, s, unit->run, dt_divide(plan->by_raster, unit->offset)));
}

/* Task `number` of L1 or L2. */
DT_PHASE void dt_table_task(const dt_device_plan *plan, const dt_summary *s, int first, int32_t number) {
  const int32_t columns = first ? plan->config.columns_1 : plan->config.columns_2;
  const int32_t position = dt_divide(first ? plan->by_columns_1 : plan->by_columns_2, number);
  const dt_unit_place unit = dt_table_unit_at(plan, s, position);
  const int32_t in_unit = number - unit.first * columns;
  const int32_t column = dt_quotient(in_unit, unit.bands), b = in_unit - column * unit.bands;
  const int32_t before =
      first ? dt_table_l2_before(plan, s, &unit, number) : dt_table_l1_before(plan, s, &unit, number);
  dt_task *tasks = &plan->arrays.tasks[s->totals->sizes.dispatch_tasks + plan->config.shared_blocks];
  dt_task_set(&tasks[number + before], first ? DT_PHASE_L1 : DT_PHASE_L2, dt_table_band(plan, s, &unit, b), column);
}

/* Phase 10, the last. */
DT_PHASE void dt_table_tasks(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  if (!s->totals->fits || !dt_has_tiles(&plan->config)) return;
  const int32_t bands = s->totals->sizes.band_count, all_1 = bands * plan->config.columns_1;
  DT_FOR_ALL_ITEMS(i, team, all_1 + bands * plan->config.columns_2) {
    dt_table_task(plan, s, i < all_1, i < all_1 ? i : i - all_1);
  }
}

/* The phases in order, with a barrier of the block between each two; the counts must be there before the second. With
 * groups dt_table_units and dt_table_list come before dt_table_fill; without them dt_table_tasks needs no barrier
 * before it. */
#define DT_SUMMARY_PHASES(PHASE)                                                                                       \
  PHASE(dt_summary_begin)                                                                                              \
  PHASE(dt_summary_load)                                                                                               \
  PHASE(dt_summary_measure)                                                                                            \
  PHASE(dt_summary_entries)                                                                                            \
  PHASE(dt_summary_lists)                                                                                              \
  PHASE(dt_summary_runs)

#endif
