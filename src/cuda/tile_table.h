/* The arithmetic of the grouped GEMM's task table, for host and device.
 *
 * Bands are 128 rows of an expert, the last may be short. Up to `raster_bands` bands form a unit, whose tiles run two
 * columns at a time, all bands of the unit before the next columns, so that weights are read once a unit and rows stay
 * in the L2 cache. Bands with more than 64 rows go in pairs that share the weights of a column. One that is left over,
 * and a band of at most 64 rows, takes two columns at once instead: beside a full band it would only wait for it.
 *
 * When all bands are whole and the last round of tasks would leave most of the clusters idle, its tasks are cut: into
 * two of 64 rows a CTA, which take 0.63 of a whole one's time, or those again into two of 128 columns, 0.38 of it.
 */
#ifndef DT_CUDA_TILE_TABLE_H
#define DT_CUDA_TILE_TABLE_H

#include "cuda/tile_gemm.h"

#ifdef __CUDACC__
#define DT_BOTH static __host__ __device__ __forceinline__
#else
#define DT_BOTH static inline
#endif

/* Bands of a unit: `pairs` pairs, then `singles` on their own. */
typedef struct dt_unit {
  int32_t pairs, singles;
} dt_unit;

DT_BOTH int32_t dt_bands(int32_t rows) {
  return (rows + DT_TILE_M - 1) / DT_TILE_M;
}
/* Whether an expert's last band has at most 64 rows. */
DT_BOTH int32_t dt_ends_short(int32_t rows) {
  return rows > 0 && (rows - 1) % DT_TILE_M < 64;
}
/* Units before an expert's last one: whole pairs, since raster_bands is even. */
DT_BOTH int32_t dt_units_before(int32_t rows, int32_t raster_bands) {
  return rows == 0 ? 0 : (dt_bands(rows) - 1) / raster_bands;
}
DT_BOTH dt_unit dt_last_unit(int32_t rows, int32_t raster_bands) {
  const int32_t bands = rows == 0 ? 0 : (dt_bands(rows) - 1) % raster_bands + 1;
  dt_unit unit;
  unit.pairs = (bands - dt_ends_short(rows)) / 2;
  unit.singles = bands - 2 * unit.pairs;
  return unit;
}

/* Tasks of an expert. columns: tiles across N. */
DT_BOTH int32_t dt_expert_tasks(int32_t rows, int32_t columns, int32_t raster_bands) {
  const dt_unit last = dt_last_unit(rows, raster_bands);
  return dt_units_before(rows, raster_bands) * (raster_bands / 2) * columns + last.pairs * columns +
         last.singles * ((columns + 1) / 2);
}

/* Task `local` of an expert whose `rows` rows start at `row` and whose bands at `first_band`. */
DT_BOTH dt_tile_task dt_expert_task(int32_t expert, int32_t row, int32_t rows, int32_t first_band, int32_t columns,
                                    int32_t raster_bands, int32_t local) {
  const int32_t before = dt_units_before(rows, raster_bands), whole = raster_bands / 2 * columns;
  const int32_t index = local / whole < before ? local / whole : before;
  dt_unit unit = dt_last_unit(rows, raster_bands);
  if (index < before) {
    unit.pairs = raster_bands / 2;
    unit.singles = 0;
  }
  local -= index * whole;
  const int32_t step = 2 * unit.pairs + unit.singles; /* tasks of two columns */
  const int32_t column = 2 * (local / step), two = columns - column > 1 ? 2 : 1;
  local %= step;
  const int32_t band = index * raster_bands, paired = unit.pairs * two;
  dt_tile_task task = {{0, 0}, {0, 0}, {0, 0}, expert, 0, 0, 0};
  int32_t bands[2];
  if (local < paired) {
    task.column[0] = task.column[1] = (uint16_t)(2 * (column + local / unit.pairs));
    bands[0] = band + 2 * (local % unit.pairs);
    bands[1] = bands[0] + 1;
  } else {
    task.column[0] = (uint16_t)(2 * column);
    task.column[1] = (uint16_t)(2 * column + 2); /* past the last: loads zeros, stores nothing */
    task.flags = DT_TILE_SHARES_ROWS;
    bands[0] = bands[1] = band + 2 * unit.pairs + local - paired;
  }
  task.band = first_band + bands[0];
  for (int i = 0; i < 2; i++) {
    const int32_t left = rows - bands[i] * DT_TILE_M;
    task.row[i] = row + bands[i] * DT_TILE_M;
    task.rows[i] = (uint16_t)(left < DT_TILE_M ? left : DT_TILE_M);
  }
  return task;
}

/* The last `tasks` of the table are cut into `parts` each. */
typedef struct dt_cut {
  int32_t tasks, parts;
} dt_cut;
/* any_short: some band has at most 64 rows; whole_columns: N is a multiple of 256. */
DT_BOTH dt_cut dt_cut_of(int32_t tasks, int32_t clusters, int32_t any_short, int32_t whole_columns) {
  dt_cut cut;
  cut.tasks = tasks % clusters;
  cut.parts = whole_columns && 4 * cut.tasks <= clusters ? 4 : 2;
  if (any_short || cut.parts * cut.tasks > clusters) cut.tasks = 0;
  return cut;
}
/* Part `index` of a task whose bands have more than 64 rows: lower bits the rows' half, then the columns'. */
DT_BOTH dt_tile_task dt_part_of(dt_tile_task task, int32_t index, int32_t parts) {
  for (int i = 0; i < 2; i++) {
    task.row[i] += 64 * (index % 2);
    task.rows[i] = (uint16_t)(index % 2 ? task.rows[i] - 64 : 64);
    if (parts == 4) task.column[i] = (uint16_t)(task.column[i] + index / 2);
  }
  if (parts == 4) task.flags |= DT_TILE_NARROW;
  return task;
}

#endif
