/* L1 and L2 tasks of every schedule by position.
 *
 * Tasks of a phase are numbered as dt_emit_units lists them; a schedule only shifts them: what of the other phase comes
 * before. A run's units are raster_bands long but for the last, so unit, column and band follow from a task's number.
 * Schedules with groups list the units, each with what its tasks have before them; only walking over groups is
 * sequential.
 */
#ifndef DT_CUDA_PLAN_TABLE_H
#define DT_CUDA_PLAN_TABLE_H

#include "plan_fill.h"

/* A unit of the table, and where it is. */
typedef struct dt_unit_place {
  int32_t run, offset;  /* in the run */
  int32_t first, bands; /* position in the table */
} dt_unit_place;

/* The unit that holds a position of the table. */
DT_PHASE dt_unit_place dt_table_unit_at(const dt_device_plan *plan, const dt_summary *s, int32_t position) {
  dt_unit_place unit;
  unit.run = dt_last_by_steps(s->run_start, plan->runs, position);
  const int32_t start = s->run_start[unit.run], end = s->run_start[unit.run + 1];
  unit.offset = dt_divide(plan->by_raster, position - start) * plan->raster_bands;
  unit.first = start + unit.offset;
  unit.bands = dt_min32(plan->raster_bands, end - unit.first);
  return unit;
}

DT_PHASE int32_t dt_table_band(const dt_device_plan *plan, const dt_summary *s, const dt_unit_place *unit, int32_t b) {
  const int32_t first = s->run_band[unit->run];
  if (plan->config.order != DT_ORDER_PACED) return first + unit->offset + b;
  const int32_t remote = s->remote_bands[dt_own(plan) + unit->run]; /* an expert a run */
  const int32_t bands = s->run_start[unit->run + 1] - s->run_start[unit->run];
  return first + dt_paced_band(remote, bands - remote, unit->offset + b);
}

/* Units as listed; 0 if there is no room for them, which dt_summary_decide finds, too. */
DT_PHASE int32_t dt_table_unit_count(const dt_device_plan *plan, const dt_summary *s) {
  const int32_t units = s->totals->wrong ? 0 : s->run_unit[plan->runs];
  return units <= plan->units ? units : 0;
}

/* The phases of schedules with groups, after those of the summary; beside them other warps fill arrays. */

/* Where each unit begins, and which unit begins the next group if this one begins a group: the first whose position is
 * `need` bands on. */
DT_PHASE void dt_table_list(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  const int32_t runs = plan->runs, units = dt_table_unit_count(plan, s);
  DT_FOR_ITEMS(u, team, units + 1) {
    if (u == units) {
      s->unit_start[u] = s->run_start[runs];
      s->unit_next[u] = u;
      continue;
    }
    const int32_t run = dt_last_by_steps(s->run_unit, runs, u);
    const int32_t start = s->run_start[run] + (u - s->run_unit[run]) * plan->raster_bands, end = start + plan->need;
    const int32_t in = run + dt_last_by_steps(&s->run_start[run], runs - run, end - 1), behind = end - s->run_start[in];
    s->unit_start[u] = start;
    s->unit_run[u] = run;
    s->unit_next[u] = dt_min32(s->run_unit[in] + dt_divide(plan->by_raster, behind - 1) + 1, s->run_unit[in + 1]);
  }
}

/* The groups that follow one another from unit 0 on; one lane. Behind the last unit comes the end again and again, so
 * that several steps can be taken before it is looked for. Returns how many. */
DT_PHASE int32_t dt_table_groups_by_tasks(const dt_summary *s, int32_t units) {
  int32_t groups = 0, at = 0;
  DT_ROLLED
  while (at < units) {
    int32_t beyond = 0;
    DT_UNROLL
    for (int i = 0; i < DT_GROUP_STEPS; i++) {
      s->group_first[groups + i] = at;
      beyond += at >= units;
      at = s->unit_next[at];
    }
    groups += DT_GROUP_STEPS - beyond;
  }
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

/* `alternate`: L2 task n of a unit is preceded by min(all, n + max(warm-up, peak)) L1 tasks, where peak is the largest
 * of all units until this one of: L1 tasks that its first L2 task waits for, less the L2 tasks before that. */
DT_PHASE int32_t dt_table_peak(const dt_device_plan *plan, const dt_summary *s, int32_t u) {
  const int32_t columns_1 = plan->config.columns_1, first = s->unit_start[u], bands = s->unit_start[u + 1] - first;
  return first * columns_1 - first * plan->config.columns_2 + (columns_1 - 1) * bands + 1;
}

/* Groups by one lane; alternate's peaks of the units before each by another warp. */
DT_PHASE void dt_table_groups(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  const int32_t units = dt_table_unit_count(plan, s);
  if (units == 0) return;
  if (team->warp == 0) {
    DT_FOR_LANES(lane) {
      if (lane == 0) {
        s->totals->groups = dt_plan_by_experts(&plan->config) ? dt_table_groups_by_experts(plan, s)
                                                              : dt_table_groups_by_tasks(s, units);
      }
    }
  }
  if (plan->config.schedule != DT_SCHEDULE_ALTERNATE || team->warp != (team->warps > 1)) return;
  DT_FOR_LANES(lane) {
    DT_ROLLED
    for (int32_t u = lane; u < units; u += DT_WARP) s->unit_gate[u] = dt_table_peak(plan, s, u);
  }
  dt_warp_sync();
  dt_warp_peaks(s->unit_gate, units);
}

/* Where group g begins. */
DT_PHASE int32_t dt_table_group_start(const dt_device_plan *plan, const dt_summary *s, int32_t g) {
  if (g <= 0) return 0;
  return g < s->totals->groups ? s->unit_start[s->group_first[g]] : s->run_start[plan->runs];
}

/* What comes before the tasks of group g's units, by several lanes: L2 tasks before L1 tasks, L1 tasks before L2
 * tasks. */
DT_PHASE void dt_table_group_befores(const dt_device_plan *plan, const dt_summary *s, int32_t units, int32_t g,
                                     int32_t lane, int32_t lanes) {
  const int32_t l2 = plan->config.columns_2 * dt_table_group_start(plan, s, g - plan->lead);
  const int32_t l1 = plan->config.columns_1 * dt_table_group_start(plan, s, g + plan->lead + 1);
  const int32_t end = g + 1 < s->totals->groups ? s->group_first[g + 1] : units;
  DT_ROLLED
  for (int32_t u = s->group_first[g] + lane; u < end; u += lanes) {
    s->unit_l2[u] = l2;
    s->unit_l1[u] = l1;
  }
}

/* The same of all units; for alternate their gates, each the number of the L1 task that follows the unit's first L2
 * task. */
DT_PHASE void dt_table_befores(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  enum { LANES = 4 };
  const int32_t units = dt_table_unit_count(plan, s);
  if (units == 0) return;
  if (plan->config.schedule != DT_SCHEDULE_ALTERNATE) {
    DT_FOR_ITEMS(i, team, s->totals->groups * LANES) {
      dt_table_group_befores(plan, s, units, i / LANES, i % LANES, LANES);
    }
    return;
  }
  const int32_t warm_up = dt_table_group_start(plan, s, plan->lead) * plan->config.columns_1;
  DT_FOR_ITEMS(u, team, units) {
    const int32_t peak = dt_max32(dt_max32(s->unit_gate[u], warm_up), dt_table_peak(plan, s, u));
    s->unit_gate[u] = s->unit_start[u] * plan->config.columns_2 + peak;
  }
}

/* L2 tasks before L1 task `number` of unit u. */
DT_PHASE int32_t dt_table_l2_before(const dt_device_plan *plan, const dt_summary *s, int32_t u, int32_t number) {
  if (plan->config.schedule != DT_SCHEDULE_ALTERNATE) return s->unit_l2[u];
  const int32_t columns_2 = plan->config.columns_2;
  const int32_t open = dt_last_by_steps(s->unit_gate, s->run_unit[plan->runs], number); /* the last whose gate is */
  const int32_t since = number - s->unit_gate[open];
  if (since < 0) return 0;
  return dt_min32(s->unit_start[open + 1] * columns_2, s->unit_start[open] * columns_2 + since + 1);
}

/* L1 tasks before L2 task `number` of unit u. */
DT_PHASE int32_t dt_table_l1_before(const dt_device_plan *plan, const dt_summary *s, int32_t u, int32_t number) {
  if (plan->config.schedule != DT_SCHEDULE_ALTERNATE) return s->unit_l1[u];
  const int32_t all = s->run_start[plan->runs] * plan->config.columns_1;
  return (int32_t)dt_min64(all, (int64_t)s->unit_gate[u] + number - s->unit_start[u] * plan->config.columns_2);
}

/* Every `each`-th task, from the one of band `b` on, of a column of unit u. */
DT_PHASE void dt_table_column(const dt_device_plan *plan, const dt_summary *s, dt_task *tasks, int first, int32_t u,
                              int32_t column, int32_t b, int32_t each) {
  dt_unit_place unit;
  unit.run = s->unit_run[u];
  unit.first = s->unit_start[u];
  unit.bands = s->unit_start[u + 1] - unit.first;
  unit.offset = unit.first - s->run_start[unit.run];
  const int32_t number = unit.first * (first ? plan->config.columns_1 : plan->config.columns_2) + column * unit.bands;
  DT_ROLLED
  for (; b < unit.bands; b += each) {
    const int32_t n = number + b;
    const int32_t before = first ? dt_table_l2_before(plan, s, u, n) : dt_table_l1_before(plan, s, u, n);
    dt_task_set(&tasks[n + before], first ? DT_PHASE_L1 : DT_PHASE_L2, dt_table_band(plan, s, &unit, b), column);
  }
}

/* With groups: the columns of all units, each by a few lanes of a warp: 8 in L1, 4 in L2. */
DT_PHASE void dt_table_columns(const dt_device_plan *plan, const dt_summary *s, const dt_team *team, dt_task *tasks) {
  const int32_t units = s->run_unit[plan->runs], columns_1 = plan->config.columns_1, columns_2 = plan->config.columns_2;
  const int32_t warps_1 = (units * columns_1 + 3) / 4, warps = warps_1 + (units * columns_2 + 7) / 8;
  DT_ROLLED
  for (int32_t i = team->warp * team->blocks + team->block; i < warps; i += team->blocks * team->warps) {
    const int first = i < warps_1;
    const int32_t shift = first ? 3 : 2, columns = first ? columns_1 : columns_2;
    const int32_t from = (first ? i : i - warps_1) << (5 - shift);
    DT_FOR_LANES(lane) {
      const int32_t index = from + (lane >> shift);
      if (index < units * columns) {
        const int32_t u = dt_divide(first ? plan->by_columns_1 : plan->by_columns_2, index);
        dt_table_column(plan, s, tasks, first, u, index - u * columns, lane & ((1 << shift) - 1), 1 << shift);
      }
    }
  }
}

/* Without groups: task `number` of L1 or L2. */
DT_PHASE void dt_table_task(const dt_device_plan *plan, const dt_summary *s, dt_task *tasks, int first,
                            int32_t number) {
  const int32_t columns = first ? plan->config.columns_1 : plan->config.columns_2;
  const int32_t position = dt_divide(first ? plan->by_columns_1 : plan->by_columns_2, number);
  const dt_unit_place unit = dt_table_unit_at(plan, s, position);
  const int32_t in_unit = number - unit.first * columns;
  const int32_t column = dt_quotient(in_unit, unit.bands), b = in_unit - column * unit.bands;
  dt_task_set(&tasks[number], first ? DT_PHASE_L1 : DT_PHASE_L2, dt_table_band(plan, s, &unit, b), column);
}

/* The last phase: L1 and L2. */
DT_PHASE void dt_table_tasks(const dt_device_plan *plan, const dt_summary *s, const dt_team *team,
                             const dt_device_plan_sizes *sizes) {
  dt_task *tasks = &plan->arrays.tasks[sizes->dispatch_tasks + plan->config.shared_blocks];
  if (!dt_has_tiles(&plan->config)) return;
  if (dt_is_grouped(plan)) {
    dt_table_columns(plan, s, team, tasks);
    return;
  }
  const int32_t all_1 = sizes->band_count * plan->config.columns_1;
  DT_FOR_ALL_ITEMS(i, team, all_1 + sizes->band_count * plan->config.columns_2) {
    const int first = i < all_1;
    dt_table_task(plan, s, first ? tasks : tasks + all_1, first, first ? i : i - all_1);
  }
}

/* The phases in order, with a barrier between each two; the counts must be there before the second. Then some warps
 * have dt_summary_runs and, with groups, the table's phases, others dt_summary_ends, then dt_summary_decide and, where
 * it dt_summary_fits, dt_fill. dt_table_tasks is the last. */
#define DT_SUMMARY_PHASES(PHASE)                                                                                       \
  PHASE(dt_summary_begin)                                                                                              \
  PHASE(dt_summary_load)                                                                                               \
  PHASE(dt_summary_measure)                                                                                            \
  PHASE(dt_summary_entries)                                                                                            \
  PHASE(dt_summary_lists)
#define DT_TABLE_PHASES(PHASE)                                                                                         \
  PHASE(dt_table_list)                                                                                                 \
  PHASE(dt_table_groups)                                                                                               \
  PHASE(dt_table_befores)

#endif
