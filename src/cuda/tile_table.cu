/* Makes the task table of a grouped GEMM on the device, from the experts' row counts. */
#include "cuda/ptx.cuh"
#include "cuda/tile_table.h"

enum { DT_TABLE_THREADS = 256 };

DT_DEVICE int32_t dt_scan_warp(int32_t value) {
  for (int i = 1; i < 32; i *= 2) {
    int32_t other = __shfl_up_sync(0xffffffffu, value, i);
    if ((int32_t)(threadIdx.x % 32) >= i) value += other;
  }
  return value;
}

/* First rows, bands and tasks of all experts, by one warp, each array experts + 1 long. any_short: some band has at
 * most 64 rows. */
DT_DEVICE void dt_scan(const dt_tile_table &table, int32_t *first_row, int32_t *first_band, int32_t *first_task,
                       uint32_t &error, int32_t &any_short) {
  const int32_t lane = (int32_t)(threadIdx.x % 32);
  int64_t row = 0;
  int32_t band = 0, task = 0;
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
    const int32_t tasks = dt_expert_tasks(rows, table.column_tiles, table.raster_bands);
    any_short |= dt_ends_short(rows);
    const int32_t last_band = dt_scan_warp(dt_bands(rows)), last_task = dt_scan_warp(tasks);
    if (expert < table.experts) {
      first_row[expert] = (int32_t)start;
      first_band[expert] = band + last_band - dt_bands(rows);
      first_task[expert] = task + last_task - tasks;
    }
    row = __shfl_sync(0xffffffffu, end, 31);
    band += __shfl_sync(0xffffffffu, last_band, 31);
    task += __shfl_sync(0xffffffffu, last_task, 31);
  }
  if (lane == 0) {
    first_row[table.experts] = (int32_t)row;
    first_band[table.experts] = band;
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

/* Every block scans all experts; every thread writes one task, or those that it is cut into. */
__global__ void __launch_bounds__(DT_TABLE_THREADS) dt_tile_table_kernel(const dt_tile_table table) {
  extern __shared__ int32_t dt_first[];
  __shared__ dt_cut cut;
  int32_t *first_row = dt_first, *first_band = first_row + table.experts + 1;
  int32_t *first_task = first_band + table.experts + 1;
  dt_grid_launch(); /* the GEMM may set up its pipelines meanwhile */
  dt_grid_wait();   /* what the stream did before: the counts, and readers of the last table */
  if (threadIdx.x < 32) {
    uint32_t error = DT_TILE_OK;
    int32_t any_short;
    dt_scan(table, first_row, first_band, first_task, error, any_short);
    __syncwarp();
    if (threadIdx.x == 0) {
      const int32_t tasks = first_task[table.experts];
      cut = dt_cut_of(tasks, table.clusters, any_short, table.whole_columns);
      if (blockIdx.x == 0) {
        table.header->next = 0;
        table.header->count = (uint32_t)(tasks + cut.tasks * (cut.parts - 1));
        table.header->error = error;
        table.header->rows = (uint32_t)first_row[table.experts];
      }
    }
  }
  __syncthreads();
  const int32_t task = (int32_t)(blockIdx.x * DT_TABLE_THREADS + threadIdx.x), tasks = first_task[table.experts];
  if (task >= tasks) return;
  int32_t low = 0, high = table.experts; /* first_task[low] <= task < first_task[high] */
  while (high - low > 1) {
    int32_t middle = (low + high) / 2;
    if (first_task[middle] <= task)
      low = middle;
    else
      high = middle;
  }
  const dt_tile_task made = dt_expert_task(low, first_row[low], first_row[low + 1] - first_row[low], first_band[low],
                                           table.column_tiles, table.raster_bands, task - first_task[low]);
  const int32_t whole = tasks - cut.tasks;
  if (task < whole) {
    dt_write_task(table, task, made);
    return;
  }
  for (int32_t i = 0; i < cut.parts; i++)
    dt_write_task(table, whole + cut.parts * (task - whole) + i, dt_part_of(made, i, cut.parts));
}

extern "C" cudaError_t dt_tile_table_launch(const dt_tile_table *table, int64_t tasks_max, cudaStream_t stream) {
  unsigned blocks = (unsigned)((tasks_max + DT_TABLE_THREADS - 1) / DT_TABLE_THREADS);
  if (blocks == 0) blocks = 1;
  const size_t shared = 3 * sizeof(int32_t) * ((size_t)table->experts + 1);
  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks, 1, 1);
  config.blockDim = dim3(DT_TABLE_THREADS, 1, 1);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, dt_tile_table_kernel, *table);
}
