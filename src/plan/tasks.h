/* From a band order to the L1 and L2 tasks of every schedule. */
#ifndef DT_PLAN_TASKS_H
#define DT_PLAN_TASKS_H

#include "order.h"

/* Consecutive entries of the band order that belong to one expert, run column by column so that weights are read once a
 * unit: entries [first, first + bands). */
typedef struct dt_unit {
  int32_t first, bands;
} dt_unit;

/* Where a walk over the tiles of a list of units stands. */
typedef struct dt_tile_cursor {
  int64_t unit;
  int32_t column, band;
} dt_tile_cursor;

typedef struct dt_table {
  const int32_t *band_order;
  const dt_unit *units;
  int64_t unit_count;
  const int32_t *group_first; /* [group_count + 1]: units of group i are [group_first[i], group_first[i + 1]) */
  int64_t group_count;
  int32_t columns_1, columns_2;
} dt_table;

/* units is [band_count] at most. Returns how many. */
DT_HD static inline int64_t dt_units_build(const int32_t *band_order, int64_t band_count, const dt_band *bands,
                                           int32_t raster_bands, dt_unit *units) {
  int64_t n = 0;
  for (int64_t i = 0; i < band_count; i++) {
    if (n > 0 && units[n - 1].bands < raster_bands && bands[band_order[i - 1]].expert == bands[band_order[i]].expert) {
      units[n - 1].bands++;
    } else {
      units[n].first = (int32_t)i;
      units[n].bands = 1;
      n++;
    }
  }
  return n;
}

/* Groups of consecutive units with at least group_tasks L1 tasks; the last may fall short. Returns how many;
 * group_first is [unit_count + 1]. */
DT_HD static inline int64_t dt_groups_by_tasks(const dt_unit *units, int64_t unit_count, int32_t columns_1,
                                               int32_t group_tasks, int32_t *group_first) {
  int64_t n = 0, tasks = 0;
  group_first[0] = 0;
  for (int64_t u = 0; u < unit_count; u++) {
    tasks += (int64_t)units[u].bands * columns_1;
    if (tasks < group_tasks && u + 1 < unit_count) continue;
    group_first[++n] = (int32_t)(u + 1);
    tasks = 0;
  }
  return n;
}

/* Waves by experts: units sorted by their expert's first appearance (stable) into `out`, a group for every wave_experts
 * experts. rank_of is scratch of [experts], start of [experts + 1]. Returns the number of groups. */
DT_HD static inline int64_t dt_groups_by_experts(const int32_t *band_order, const dt_band *bands, const dt_unit *units,
                                                 int64_t unit_count, int32_t experts, int32_t wave_experts,
                                                 int32_t *rank_of, int32_t *start, dt_unit *out, int32_t *group_first) {
  int32_t seen = 0;
  int64_t n = 0;
  for (int32_t e = 0; e < experts; e++) rank_of[e] = -1;
  for (int32_t e = 0; e <= experts; e++) start[e] = 0;
  for (int64_t u = 0; u < unit_count; u++) {
    int32_t e = bands[band_order[units[u].first]].expert;
    if (rank_of[e] < 0) rank_of[e] = seen++;
    start[rank_of[e] + 1]++;
  }
  for (int32_t i = 0; i < seen; i++) start[i + 1] += start[i];
  group_first[0] = 0;
  for (int64_t i = wave_experts; i < (int64_t)seen + wave_experts; i += wave_experts) {
    group_first[++n] = start[dt_min64(i, seen)];
  }
  for (int64_t u = 0; u < unit_count; u++) {
    out[start[rank_of[bands[band_order[units[u].first]].expert]]++] = units[u];
  }
  return n;
}

DT_HD static inline void dt_task_set(dt_task *task, dt_phase phase, int32_t index, int32_t column) {
  task->phase = phase;
  task->index = index;
  task->column = column;
}

/* The tile under the cursor, which moves on: all bands of the unit, then the next column, then the next unit. */
DT_HD static inline void dt_tile_next(const dt_table *table, dt_phase phase, int32_t columns, dt_tile_cursor *cursor,
                                      dt_task *out) {
  const dt_unit *unit = &table->units[cursor->unit];
  dt_task_set(out, phase, table->band_order[unit->first + cursor->band], cursor->column);
  if (++cursor->band < unit->bands) return;
  cursor->band = 0;
  if (++cursor->column < columns) return;
  cursor->column = 0;
  cursor->unit++;
}

/* All tiles of units [first, last). Returns the next free task. */
DT_HD static inline dt_task *dt_emit_units(const dt_table *table, dt_phase phase, int64_t first, int64_t last,
                                           dt_task *out) {
  int32_t columns = phase == DT_PHASE_L1 ? table->columns_1 : table->columns_2;
  for (int64_t u = first; u < last; u++) {
    const dt_unit *unit = &table->units[u];
    for (int32_t c = 0; c < columns; c++) {
      for (int32_t b = 0; b < unit->bands; b++) dt_task_set(out++, phase, table->band_order[unit->first + b], c);
    }
  }
  return out;
}

/* L1 of group i + lead before L2 of group i; lead 0 is the wave schedule. */
DT_HD static inline dt_task *dt_emit_interleave(const dt_table *table, int64_t lead, dt_task *out) {
  const int32_t *first = table->group_first;
  int64_t warm_up = dt_min64(lead, table->group_count);
  out = dt_emit_units(table, DT_PHASE_L1, 0, first[warm_up], out);
  for (int64_t i = 0; i < table->group_count; i++) {
    if (i + lead < table->group_count) {
      out = dt_emit_units(table, DT_PHASE_L1, first[i + lead], first[i + lead + 1], out);
    }
    out = dt_emit_units(table, DT_PHASE_L2, first[i], first[i + 1], out);
  }
  return out;
}

/* After a warm-up of `lead` groups one L1 task follows every L2 task; before an L2 task come L1 tasks until its band
 * has all of them. In a unit column by column, a band's last L1 tile is its place in the unit's last column. */
DT_HD static inline dt_task *dt_emit_alternate(const dt_table *table, int64_t lead, dt_task *out) {
  dt_tile_cursor one = {0, 0, 0};
  int64_t issued = 0, total = 0, before = 0;
  one.unit = table->group_first[dt_min64(lead, table->group_count)];
  for (int64_t u = 0; u < table->unit_count; u++) {
    if (u == one.unit) issued = total;
    total += (int64_t)table->units[u].bands * table->columns_1;
  }
  if (one.unit == table->unit_count) issued = total;
  out = dt_emit_units(table, DT_PHASE_L1, 0, one.unit, out);
  for (int64_t u = 0; u < table->unit_count; u++) {
    const dt_unit *unit = &table->units[u];
    int64_t last_column = before + (int64_t)(table->columns_1 - 1) * unit->bands;
    for (int32_t c = 0; c < table->columns_2; c++) {
      for (int32_t b = 0; b < unit->bands; b++) {
        for (; issued <= last_column + b; issued++) dt_tile_next(table, DT_PHASE_L1, table->columns_1, &one, out++);
        dt_task_set(out++, DT_PHASE_L2, table->band_order[unit->first + b], c);
        if (issued == total) continue;
        dt_tile_next(table, DT_PHASE_L1, table->columns_1, &one, out++);
        issued++;
      }
    }
    before += (int64_t)unit->bands * table->columns_1;
  }
  return out;
}

/* The L1 and L2 tasks: bands * (columns_1 + columns_2). Returns the next free task. */
DT_HD static inline dt_task *dt_emit_schedule(const dt_table *table, dt_schedule schedule, int32_t lead, dt_task *out) {
  switch (schedule) {
  case DT_SCHEDULE_WAVE:
    return dt_emit_interleave(table, 0, out);
  case DT_SCHEDULE_INTERLEAVE:
    return dt_emit_interleave(table, lead, out);
  case DT_SCHEDULE_ALTERNATE:
    return dt_emit_alternate(table, lead, out);
  default:
    out = dt_emit_units(table, DT_PHASE_L1, 0, table->unit_count, out);
    return dt_emit_units(table, DT_PHASE_L2, 0, table->unit_count, out);
  }
}

#endif
