/* The task table of a grouped GEMM, made on the device from the experts' row counts.
 *
 * Bands are 128 rows of an expert, the last may be short. Up to `raster_bands` bands form a unit, whose tiles run two
 * columns at a time, all bands of the unit before the next columns, so that weights are read once a unit and rows stay
 * in the L2 cache. Bands with more than 64 rows go in pairs that share the weights of a column. One that is left over,
 * and a band of at most 64 rows, takes two columns at once instead: beside a full band it would only wait for it.
 *
 * When all bands are whole and the last round of tasks would leave half of the clusters idle or more, its tasks are cut
 * into two of 64 rows a CTA: each takes 0.63 of a whole one's time.
 */
#include "cuda/ptx.cuh"
#include "cuda/tile_gemm.h"

enum { DT_TABLE_THREADS = 256 };

/* The bands of one unit: `pairs` pairs, then `single` whole and short bands on their own. */
typedef struct dt_unit {
  int32_t pairs, singles;
} dt_unit;

DT_DEVICE dt_unit dt_last_unit(int32_t rows, int32_t raster_bands) {
  dt_unit unit = {0, 0};
  if (rows == 0) return unit;
  const int32_t bands = (rows + DT_TILE_M - 1) / DT_TILE_M;
  const int32_t last = (bands - 1) % raster_bands + 1;
  const int32_t is_short = (rows - 1) % DT_TILE_M < 64;
  unit.pairs = (last - is_short) / 2;
  unit.singles = last - 2 * unit.pairs;
  return unit;
}
DT_DEVICE int32_t dt_unit_tasks(dt_unit unit, int32_t columns) {
  return unit.pairs * columns + unit.singles * ((columns + 1) / 2);
}
/* Units before an expert's last one are whole pairs: raster_bands is even. */
DT_DEVICE int32_t dt_units_before(int32_t rows, int32_t raster_bands) {
  const int32_t bands = (rows + DT_TILE_M - 1) / DT_TILE_M;
  return bands == 0 ? 0 : (bands - 1) / raster_bands;
}

/* Task `local` of an expert that starts at `row` and has `rows`. */
DT_DEVICE dt_tile_task dt_task_of(const dt_tile_table &table, int32_t expert, int32_t row, int32_t rows,
                                  int32_t local) {
  const int32_t columns = table.column_tiles, before = dt_units_before(rows, table.raster_bands);
  const int32_t whole = table.raster_bands / 2 * columns;
  const int32_t index = min(local / whole, before);
  dt_unit unit = {table.raster_bands / 2, 0};
  if (index == before) unit = dt_last_unit(rows, table.raster_bands);
  local -= index * whole;
  const int32_t step = 2 * unit.pairs + unit.singles; /* tasks of two columns */
  const int32_t column = 2 * (local / step);
  local %= step;
  const int32_t paired = unit.pairs * min(2, columns - column);
  const int32_t first_band = index * table.raster_bands;
  dt_tile_task task = {};
  task.expert = expert;
  int32_t band[2];
  if (local < paired) {
    task.column[0] = task.column[1] = (uint16_t)(column + local / unit.pairs);
    band[0] = first_band + 2 * (local % unit.pairs);
    band[1] = band[0] + 1;
  } else {
    task.column[0] = (uint16_t)column;
    task.column[1] = (uint16_t)(column + 1); /* past the last: loads nothing, stores nothing */
    task.shares_rows = 1;
    band[0] = band[1] = first_band + 2 * unit.pairs + local - paired;
  }
  for (int i = 0; i < 2; i++) {
    task.row[i] = row + band[i] * DT_TILE_M;
    task.rows[i] = (uint16_t)min(DT_TILE_M, rows - band[i] * DT_TILE_M);
  }
  return task;
}

/* First rows and first tasks of all experts, by one warp. Both arrays have experts + 1 entries. any_short: some band has
 * at most 64 rows. */
DT_DEVICE void dt_scan(const dt_tile_table &table, int32_t *first_row, int32_t *first_task, uint32_t &error,
                       int32_t &any_short) {
  const int32_t lane = (int32_t)(threadIdx.x % 32);
  int64_t row = 0;
  int32_t task = 0;
  any_short = 0;
  for (int32_t base = 0; base < table.experts; base += 32) {
    const int32_t expert = base + lane;
    const int32_t count = expert < table.experts ? table.counts[expert] : 0;
    if (count < 0) error = DT_TILE_ERROR_ROWS;
    int64_t end = max(count, 0);
    for (int i = 1; i < 32; i *= 2) {
      int64_t other = __shfl_up_sync(0xffffffffu, end, i);
      if (lane >= i) end += other;
    }
    end += row;
    if (end > table.rows_capacity) error = DT_TILE_ERROR_ROWS;
    end = min(end, (int64_t)table.rows_capacity);
    int64_t start = __shfl_up_sync(0xffffffffu, end, 1);
    if (lane == 0) start = row;
    const int32_t rows = (int32_t)(end - start);
    const int32_t before = dt_units_before(rows, table.raster_bands) * (table.raster_bands / 2) * table.column_tiles;
    int32_t tasks = before + dt_unit_tasks(dt_last_unit(rows, table.raster_bands), table.column_tiles);
    int32_t last = tasks;
    for (int i = 1; i < 32; i *= 2) {
      int32_t other = __shfl_up_sync(0xffffffffu, last, i);
      if (lane >= i) last += other;
    }
    any_short |= rows > 0 && (rows - 1) % DT_TILE_M < 64;
    if (expert < table.experts) {
      first_row[expert] = (int32_t)start;
      first_task[expert] = task + last - tasks;
    }
    row = __shfl_sync(0xffffffffu, end, 31);
    task += __shfl_sync(0xffffffffu, last, 31);
  }
  if (lane == 0) {
    first_row[table.experts] = (int32_t)row;
    first_task[table.experts] = task;
  }
  error = __reduce_max_sync(0xffffffffu, error);
  any_short = __any_sync(0xffffffffu, any_short);
}

DT_DEVICE void dt_write_task(const dt_tile_table &table, int32_t index, const dt_tile_task &task) {
  uint4 *to = (uint4 *)(table.tasks + index);
  const uint4 *from = (const uint4 *)&task;
  to[0] = from[0];
  to[1] = from[1];
}

__global__ void __launch_bounds__(DT_TABLE_THREADS) dt_tile_table_kernel(const dt_tile_table table) {
  extern __shared__ int32_t dt_first[];
  __shared__ int32_t cut; /* tasks from the table's end that are cut in two */
  int32_t *first_row = dt_first, *first_task = dt_first + table.experts + 1;
  dt_grid_launch(); /* the GEMM may set up its pipelines meanwhile */
  if (threadIdx.x < 32) {
    uint32_t error = DT_TILE_OK;
    int32_t any_short;
    dt_scan(table, first_row, first_task, error, any_short);
    __syncwarp();
    if (threadIdx.x == 0) {
      const int32_t total = first_task[table.experts], left = total % table.clusters;
      cut = any_short || 2 * left > table.clusters ? 0 : left;
      if (blockIdx.x == 0) {
        table.header->next = 0;
        table.header->count = (uint32_t)(total + cut);
        table.header->error = error;
        table.header->rows = (uint32_t)first_row[table.experts];
      }
    }
  }
  __syncthreads();
  const int32_t task = (int32_t)(blockIdx.x * DT_TABLE_THREADS + threadIdx.x), total = first_task[table.experts];
  if (task >= total) return;
  int32_t low = 0, high = table.experts; /* first_task[low] <= task < first_task[high] */
  while (high - low > 1) {
    int32_t middle = (low + high) / 2;
    if (first_task[middle] <= task)
      low = middle;
    else
      high = middle;
  }
  dt_tile_task made =
      dt_task_of(table, low, first_row[low], first_row[low + 1] - first_row[low], task - first_task[low]);
  const int32_t whole = total - cut;
  if (task < whole) {
    dt_write_task(table, task, made);
    return;
  }
  dt_tile_task second = made;
  for (int i = 0; i < 2; i++) {
    made.rows[i] = 64;
    second.row[i] += 64;
    second.rows[i] -= 64;
  }
  dt_write_task(table, whole + 2 * (task - whole), made);
  dt_write_task(table, whole + 2 * (task - whole) + 1, second);
}

extern "C" cudaError_t dt_tile_table_launch(const dt_tile_table *table, int64_t tasks_max, cudaStream_t stream) {
  const unsigned blocks = (unsigned)((tasks_max + DT_TABLE_THREADS - 1) / DT_TABLE_THREADS);
  const size_t shared = 2 * sizeof(int32_t) * ((size_t)table->experts + 1);
  dt_tile_table_kernel<<<blocks > 0 ? blocks : 1, DT_TABLE_THREADS, shared, stream>>>(*table);
  return cudaGetLastError();
}
