/* The arithmetic of the grouped GEMM's task table, for host and device.
 *
 * Bands are 128 rows of an expert, the last may be short. A run is consecutive bands of one expert in the order of the
 * table; up to `raster_bands` of its entries form a unit, whose tiles run two columns at a time, all bands of the unit
 * before the next columns, so that weights are read once a unit and rows stay in the L2 cache. Bands go in pairs that
 * share the weights of a column; one that is left over takes two columns at once. A short band is paired like any
 * other: the weights that it would load alone cost more than the time for which its CTA waits for the whole one.
 *
 * Turned tasks (where a run allows them): if an expert's last band has so few rows that with the band before they are
 * at most DT_TURNED_MAX, the two are multiplied as columns, the weights as rows: 128 weights a CTA by all rows of both
 * bands. That costs what the rows do, in steps of 16, where a pair costs as much as 256.
 *
 * When the last round of tasks would leave most of the clusters idle, its tasks are cut: into two of 64 rows a CTA,
 * which take 0.63 of a whole one's time, or those again into two of 128 columns, 0.38 of it. Of a short band one half
 * is empty, which costs nothing where clusters idle.
 *
 * The first tasks are cut where the link holds the tiles up: a third of the clusters begins with a quarter, a third
 * with a half, the others with a whole one. So the link has work early, and clusters take turns on it instead of
 * storing in step.
 *
 * Mixed experts: the tasks of an expert with few rows wait for memory, those of one with many for the tensor cores. So
 * where some have less than DT_LIGHT_ROWS and some more, the expert with the fewest rows and the one with the most take
 * turns, in proportion to their tasks, then the next two, and so on inwards.
 *
 * Orders (draintile/plan.h): natural has a run an expert; remote-first one for each expert's bands with remote rows,
 * then one for each expert's others; paced a run an expert, whose bands are mixed.
 */
#ifndef DT_CUDA_TILE_TABLE_H
#define DT_CUDA_TILE_TABLE_H

#include <draintile/plan.h>

#include "cuda/plan_paced.h"
#include "cuda/tile_gemm.h"
#include "cuda/tile_split.h"

#define DT_BOTH DT_PHASE

/* The order of the bands. */
typedef struct dt_tile_order {
  int32_t order;              /* of dt_order */
  const int32_t *remote_rows; /* [experts], on the device: how many of each expert's rows, the first, other ranks own */
  int32_t paced_units;        /* paced: an expert with fewer units stays in natural order */
} dt_tile_order;

/* Makes the table on the device, for at most tasks_max tasks and what they are cut into. */
#ifdef __cplusplus
extern "C" {
#endif
cudaError_t dt_tile_ordered_table_launch(const dt_tile_table *table, const dt_tile_order *order, int64_t tasks_max,
                                         cudaStream_t stream);
#ifdef __cplusplus
}
#endif

/* Consecutive bands of one expert, the first of which starts at `row`. */
typedef struct dt_run {
  int32_t expert, row, rows;
  int32_t slot;   /* place in the order, and so among the counters, of its first entry */
  int32_t remote; /* paced: so many of the bands, the first, are spread among the others; else 0 */
  int32_t turns;  /* its last two bands may be turned; not if paced */
} dt_run;

/* Rows with which multiplying by weights takes as long as reading them (800 TFLOP/s, 4.3 TB/s). */
enum { DT_LIGHT_ROWS = 192 };

/* Bands of a unit: `pairs` pairs, then perhaps one on its own, then perhaps two turned. */
typedef struct dt_tile_unit {
  int32_t pairs, singles, turned;
} dt_tile_unit;

DT_BOTH int32_t dt_bands(int32_t rows) {
  return (rows + DT_TILE_M - 1) / DT_TILE_M;
}
/* Whether an expert's last two bands may be turned. */
DT_BOTH int32_t dt_may_turn(int32_t rows) {
  return rows > DT_TILE_M && (rows - 1) % DT_TILE_M < DT_TURNED_MAX - DT_TILE_M;
}

/* The same where its rows may be two owners' (tile_split.h). */
DT_BOTH int32_t dt_may_turn_split(int32_t rows) {
  return rows > DT_TILE_M && (rows - 1) % DT_TILE_M < DT_SPLIT_TURNED_MAX - DT_TILE_M;
}

DT_BOTH dt_tile_unit dt_run_unit(const dt_run *run, int32_t raster_bands, int32_t index) {
  const int32_t left = dt_bands(run->rows) - index * raster_bands, bands = dt_min32(left, raster_bands);
  const int32_t turned = run->turns && bands == left && bands > 1 && dt_may_turn(run->rows);
  const dt_tile_unit unit = {(bands - 2 * turned) / 2, bands % 2, turned};
  return unit;
}

/* Tasks of a run. columns: tiles across N. Only its last unit can have a band on its own, since raster_bands is even.
 */
DT_BOTH int32_t dt_run_tasks(const dt_run *run, int32_t columns) {
  const int32_t bands = dt_bands(run->rows);
  return bands / 2 * columns + bands % 2 * ((columns + 1) / 2); /* turned: as many as a pair */
}

/* The band of a run, from 0, at entry `at` of its order. */
DT_BOTH int32_t dt_run_band(const dt_run *run, int32_t at) {
  return run->remote == 0 ? at : dt_paced_band(run->remote, dt_bands(run->rows) - run->remote, at);
}

/* Task `local` of a run. */
DT_BOTH dt_tile_task dt_run_task(const dt_run *run, int32_t columns, int32_t raster_bands, int32_t local) {
  const int32_t whole = raster_bands / 2 * columns, last = (dt_bands(run->rows) - 1) / raster_bands;
  const int32_t index = dt_min32(local / whole, last);
  local -= index * whole;
  const dt_tile_unit unit = dt_run_unit(run, raster_bands, index);
  const int32_t step = 2 * (unit.pairs + unit.turned) + unit.singles; /* tasks of two columns */
  const int32_t column = 2 * (local / step), two = columns - column > 1 ? 2 : 1;
  local %= step;
  dt_tile_task task = {{0, 0}, {0, 0}, {0, 0}, run->expert, 0, 0, 0};
  int32_t places[2];
  if (local < unit.pairs * two) {
    task.column[0] = task.column[1] = (uint16_t)(2 * (column + local / unit.pairs));
    places[0] = index * raster_bands + 2 * (local % unit.pairs);
    places[1] = places[0] + 1;
  } else if (local < (unit.pairs + unit.turned) * two) {
    task.column[0] = (uint16_t)(2 * (column + local - unit.pairs * two));
    task.column[1] = (uint16_t)(task.column[0] + 1);
    task.flags = DT_TILE_TURNED;
    places[0] = places[1] = index * raster_bands + 2 * unit.pairs + unit.singles;
  } else {
    task.column[0] = (uint16_t)(2 * column);
    task.column[1] = (uint16_t)(2 * column + 2); /* past the last: loads zeros, stores nothing */
    task.flags = DT_TILE_SHARES_ROWS;
    places[0] = places[1] = index * raster_bands + 2 * unit.pairs;
  }
  task.band = run->slot + places[0];
  for (int i = 0; i < 2; i++) {
    const int32_t band = dt_run_band(run, places[i]), left = run->rows - band * DT_TILE_M;
    task.row[i] = run->row + band * DT_TILE_M;
    task.rows[i] = (uint16_t)(task.flags == DT_TILE_TURNED || left < DT_TILE_M ? left : DT_TILE_M);
  }
  return task;
}

/* The runs of an expert with `rows` rows, the first remote_rows of other ranks. */
DT_BOTH int32_t dt_remote_bands(int32_t rows, int32_t remote_rows) {
  return dt_bands(dt_min32(rows, remote_rows < 0 ? 0 : remote_rows));
}
/* paced: how many of an expert's bands, the first, are spread among the others; 0: it stays in natural order. */
DT_BOTH int32_t dt_paced_bands(int32_t rows, int32_t remote_rows, int32_t raster_bands, int32_t paced_units) {
  return dt_bands(rows) > (paced_units - 1) * raster_bands ? dt_remote_bands(rows, remote_rows) : 0;
}
/* remote-first: the rows of its bands with remote rows. */
DT_BOTH int32_t dt_remote_run_rows(int32_t rows, int32_t remote_bands) {
  return dt_min32(rows, remote_bands * DT_TILE_M);
}

/* The last `tasks` of the table are cut into `parts` each, the first `quarters` into four, the next `halves` into two.
 */
typedef struct dt_cut {
  int32_t tasks, parts, quarters, halves;
} dt_cut;
/* whole_columns: N is a multiple of 256; linked: the link holds the tiles up. */
DT_BOTH dt_cut dt_cut_of(int32_t tasks, int32_t clusters, int32_t whole_columns, int32_t linked) {
  dt_cut cut;
  cut.tasks = tasks % clusters;
  cut.parts = whole_columns && 4 * cut.tasks <= clusters ? 4 : 2;
  if (cut.parts * cut.tasks > clusters) cut.tasks = 0;
  cut.quarters = (clusters + 6) / 12;
  cut.halves = clusters / 6;
  if (!linked || !whole_columns || cut.quarters + cut.halves > tasks - cut.tasks) cut.quarters = cut.halves = 0;
  return cut;
}
/* The place in the table of task `index` of `tasks`, and into how many parts it is cut. index = tasks: the table's end.
 */
DT_BOTH int32_t dt_cut_place(const dt_cut *cut, int32_t tasks, int32_t index, int32_t *parts) {
  const int32_t head = cut->quarters + cut->halves, whole = tasks - cut->tasks;
  const int32_t quarters = dt_min32(index, cut->quarters), halves = dt_min32(index, head) - quarters;
  *parts = index < cut->quarters ? 4 : index < head ? 2 : index < whole ? 1 : cut->parts;
  return index + 3 * quarters + halves + (index < whole ? 0 : (cut->parts - 1) * (index - whole));
}
/* Part `index` of a task: lower bit the rows' half, perhaps empty, then the columns'. A turned one is cut as the pair
 * that it could have been. */
DT_BOTH dt_tile_task dt_part_of(dt_tile_task task, int32_t index, int32_t parts) {
  if (task.flags & DT_TILE_TURNED) {
    task.row[1] += DT_TILE_M;
    task.rows[1] = (uint16_t)(task.rows[1] - DT_TILE_M);
    task.rows[0] = DT_TILE_M;
    task.column[1] = task.column[0];
    task.flags &= ~(DT_TILE_TURNED | 255 << DT_TILE_MEET_SHIFT);
  }
  for (int i = 0; i < 2; i++) {
    const int32_t rows = task.rows[i], upper = dt_min32(rows, 64);
    if (index % 2) task.row[i] += upper;
    task.rows[i] = (uint16_t)(index % 2 ? rows - upper : upper);
    if (parts == 4) task.column[i] = (uint16_t)(task.column[i] + index / 2);
  }
  if (parts == 4) task.flags |= DT_TILE_NARROW;
  return task;
}

#endif
