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
  const int32_t run = dt_last_at_most(s->run_start, plan->runs, position);
  return dt_table_unit(plan, s, run, dt_divide(plan->by_raster, position - s->run_start[run]));
}

DT_PHASE int32_t dt_table_band(const dt_device_plan *plan, const dt_summary *s, const dt_unit_place *unit, int32_t b) {
  const int32_t first = s->run_band[unit->run];
  if (plan->config.order != DT_ORDER_PACED) return first + unit->offset + b;
  const int32_t remote = s->remote_bands[dt_own(plan) + unit->run]; /* an expert a run */
  return first + dt_paced_band(remote, dt_table_run_bands(s, unit->run) - remote, unit->offset + b);
}

/* Where group g begins: behind the g-th end of a group. run_group counts the ends in runs before. */
DT_PHASE int32_t dt_table_group_start(const dt_device_plan *plan, const dt_summary *s, int32_t g) {
  if (g <= 0) return 0;
  if (g >= s->totals->groups) return s->run_start[plan->runs];
  const int32_t run = dt_last_at_most(s->run_group, plan->runs, g - 1), bands = dt_table_run_bands(s, run);
  int64_t at = s->run_cut[run];
  if (at < bands) at += (int64_t)(g - 1 - s->run_group[run]) * plan->step;
  return s->run_start[run] + (int32_t)dt_min64(at, bands);
}

DT_PHASE int32_t dt_table_group_of(const dt_device_plan *plan, const dt_summary *s, const dt_unit_place *unit) {
  const int32_t group = s->run_group[unit->run], behind = unit->offset - s->run_cut[unit->run];
  return behind < 0 ? group : group + 1 + dt_divide(plan->by_step, behind);
}

/* Groups by tasks, where a run ends the open one: the missing bands are rounded up to whole units, or the run; the next
 * groups end `step` bands on, as long as `need` are left. Returns how many end, and what is open behind the run. */
DT_PHASE int32_t dt_table_cut_run(const dt_device_plan *plan, int32_t bands, int32_t missing, int32_t *open,
                                  int32_t *run_cut) {
  const int32_t cut = (dt_divide(plan->by_raster, missing - 1) + 1) * plan->raster_bands;
  *open = 0;
  *run_cut = cut;
  if (cut >= bands) return 1;
  const int32_t more = dt_divide(plan->by_step, bands - cut - 1), rest = bands - cut - more * plan->step;
  if (rest >= plan->need) return 2 + more;
  *open = rest;
  return 1 + more;
}

/* By one lane, and most runs only add to the open group: starts are read two runs ahead, and run_cut says already that
 * no group ends. Returns the number of groups. */
DT_PHASE int32_t dt_table_walk_tasks(const dt_device_plan *plan, const dt_summary *s) {
  const int32_t runs = plan->runs, need = plan->need;
  int32_t groups = 0, open = 0, start = 0, next = s->run_start[1], later = s->run_start[dt_min32(2, runs)];
  DT_ROLLED
  for (int32_t run = 0; run < runs; run++) {
    const int32_t bands = next - start, before = open;
    start = next;
    next = later;
    later = s->run_start[dt_min32(run + 3, runs)];
    s->run_group[run] = groups;
    open += bands;
    if (open >= need) groups += dt_table_cut_run(plan, bands, need - before, &open, &s->run_cut[run]);
  }
  return groups + (open > 0);
}

/* A group by experts ends with the last run of every wave_experts-th expert that has bands. */
DT_PHASE int32_t dt_table_walk_experts(const dt_device_plan *plan, const dt_summary *s) {
  const int32_t pairs = plan->config.order == DT_ORDER_REMOTE_FIRST;
  int32_t groups = 0, open = 0;
  DT_ROLLED
  for (int32_t run = 0; run < plan->runs; run++) {
    s->run_group[run] = groups;
    if (pairs && run % 2 == 0) continue;
    open += s->run_start[run + 1] > s->run_start[run - pairs];
    if (open < plan->config.wave_experts) continue;
    groups++;
    open = 0;
  }
  return groups + (open > 0);
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

/* Phase 7, by one warp, while the others fill arrays that do not need it. */
DT_PHASE void dt_table_groups(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  if (!s->totals->fits || !dt_has_tiles(&plan->config) || plan->config.schedule < DT_SCHEDULE_WAVE) return;
  if (team->warp != 0) return;
  DT_FOR_LANES(lane) {
    if (lane != 0) continue;
    s->totals->groups =
        dt_plan_by_experts(&plan->config) ? dt_table_walk_experts(plan, s) : dt_table_walk_tasks(plan, s);
  }
  dt_warp_sync();
  if (plan->config.schedule == DT_SCHEDULE_ALTERNATE) dt_table_gates(plan, s);
}

DT_PHASE void dt_table_fill(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  dt_table_groups(plan, s, team);
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
  const int32_t run = dt_last_at_most(s->run_gate, plan->runs, number);
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
  const uint32_t in_unit = (uint32_t)(number - unit.first * columns);
  const int32_t column = (int32_t)(in_unit / (uint32_t)unit.bands), b = (int32_t)in_unit - column * unit.bands;
  const int32_t before =
      first ? dt_table_l2_before(plan, s, &unit, number) : dt_table_l1_before(plan, s, &unit, number);
  dt_task *tasks = &plan->arrays.tasks[s->totals->sizes.dispatch_tasks + plan->config.shared_blocks];
  dt_task_set(&tasks[number + before], first ? DT_PHASE_L1 : DT_PHASE_L2, dt_table_band(plan, s, &unit, b), column);
}

/* Phase 8, the last. */
DT_PHASE void dt_table_tasks(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  if (!s->totals->fits || !dt_has_tiles(&plan->config)) return;
  const int32_t bands = s->totals->sizes.band_count, all_1 = bands * plan->config.columns_1;
  DT_FOR_ALL_ITEMS(i, team, all_1 + bands * plan->config.columns_2) {
    dt_table_task(plan, s, i < all_1, i < all_1 ? i : i - all_1);
  }
}

/* The phases in order, with a barrier of the block between each two. The counts must be there before the second. */
#define DT_PLAN_PHASES(PHASE)                                                                                          \
  PHASE(dt_summary_begin)                                                                                              \
  PHASE(dt_summary_sources)                                                                                            \
  PHASE(dt_summary_measure)                                                                                            \
  PHASE(dt_summary_place)                                                                                              \
  PHASE(dt_summary_lists)                                                                                              \
  PHASE(dt_summary_runs)                                                                                               \
  PHASE(dt_table_fill)                                                                                                 \
  PHASE(dt_table_tasks)

#endif
