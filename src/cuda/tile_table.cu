/* Makes the task table of a grouped GEMM on the device, from the experts' row counts. */
#include "cuda/ptx.cuh"
#include "cuda/tile_split.h"
#include "cuda/tile_table.h"

enum { DT_TABLE_THREADS = 256 };

/* In shared memory, the same in every block. */
typedef struct dt_table_scratch {
  int32_t *first_row;               /* [experts + 1] */
  int32_t *key, *expert;            /* [experts]; expert: by descending key, see dt_sort_experts */
  int32_t *first_slot, *first_task; /* [runs + 1] */
} dt_table_scratch;

/* What the experts' rows are like. */
typedef struct dt_table_rows {
  uint32_t error;
  int32_t fewest, most; /* of an expert that has any */
  int32_t turned;       /* some may be turned */
  int32_t remote;       /* of all experts, those of other ranks; only with link_k */
} dt_table_rows;

/* How the table is made: see tile_table.h. */
typedef struct dt_table_choice {
  int32_t mixed, turned;
} dt_table_choice;

static __host__ __device__ __forceinline__ int32_t dt_table_runs(int32_t experts, int32_t order) {
  return order == DT_ORDER_REMOTE_FIRST ? 2 * experts : experts;
}

DT_DEVICE dt_table_scratch dt_table_scratch_at(int32_t *memory, int32_t experts, int32_t runs) {
  dt_table_scratch s;
  s.first_row = memory;
  s.first_slot = s.first_row + experts + 1;
  s.first_task = s.first_slot + runs + 1;
  s.key = s.first_task + runs + 1;
  s.expert = s.key + experts;
  return s;
}

DT_DEVICE int32_t dt_scan_warp(int32_t value) {
  for (int i = 1; i < 32; i *= 2) {
    int32_t other = __shfl_up_sync(0xffffffffu, value, i);
    if ((int32_t)(threadIdx.x % 32) >= i) value += other;
  }
  return value;
}

/* First rows of all experts, by one warp, from their counts there. */
DT_DEVICE dt_table_rows dt_scan_rows(const dt_tile_table &table, const dt_tile_order &order,
                                     const dt_table_scratch &s) {
  const int32_t lane = (int32_t)(threadIdx.x % 32);
  int64_t row = 0;
  dt_table_rows facts = {DT_TILE_OK, INT32_MAX, 0, 0, 0};
  for (int32_t base = 0; base < table.experts; base += 32) {
    const int32_t expert = base + lane;
    const int32_t count = expert < table.experts ? s.first_row[expert] : 0;
    if (count < 0) facts.error = DT_TILE_ERROR_ROWS;
    int64_t end = max(count, 0);
    for (int i = 1; i < 32; i *= 2) {
      int64_t other = __shfl_up_sync(0xffffffffu, end, i);
      if (lane >= i) end += other;
    }
    end += row;
    if (end > table.rows_capacity) facts.error = DT_TILE_ERROR_ROWS;
    end = min(end, (int64_t)table.rows_capacity);
    int64_t start = __shfl_up_sync(0xffffffffu, end, 1);
    if (lane == 0) start = row;
    const int32_t rows = (int32_t)(end - start);
    if (rows > 0) facts.fewest = min(facts.fewest, rows);
    facts.most = max(facts.most, rows);
    facts.turned |= dt_may_turn(rows);
    if (table.link_k > 0 && expert < table.experts) facts.remote += min(order.remote_rows[expert], rows);
    if (expert < table.experts) s.first_row[expert] = (int32_t)start;
    row = __shfl_sync(0xffffffffu, end, 31);
  }
  if (lane == 0) s.first_row[table.experts] = (int32_t)row;
  facts.error = __reduce_max_sync(0xffffffffu, facts.error);
  facts.fewest = __reduce_min_sync(0xffffffffu, facts.fewest);
  facts.most = __reduce_max_sync(0xffffffffu, facts.most);
  facts.turned = __any_sync(0xffffffffu, facts.turned);
  facts.remote = __reduce_add_sync(0xffffffffu, facts.remote);
  return facts;
}

/* Experts by descending key (remote-first: number of remote bands; mixed: rows), ties by index: each counts those that
 * come before it. Whole block. */
DT_DEVICE void dt_sort_experts(const dt_tile_table &table, const dt_tile_order &order, const dt_table_scratch &s) {
  for (int32_t e = (int32_t)threadIdx.x; e < table.experts; e += DT_TABLE_THREADS) {
    const int32_t rows = s.first_row[e + 1] - s.first_row[e];
    s.key[e] = order.order == DT_ORDER_REMOTE_FIRST ? dt_remote_bands(rows, order.remote_rows[e]) : rows;
  }
  __syncthreads();
  for (int32_t e = (int32_t)threadIdx.x; e < table.experts; e += DT_TABLE_THREADS) {
    const int32_t key = s.key[e];
    int32_t before = 0;
#pragma unroll 8
    for (int32_t other = 0; other < table.experts; other++)
      before += s.key[other] > key || (s.key[other] == key && other < e);
    s.expert[before] = e;
  }
  __syncthreads();
}

/* Slots are not known before the scan of the runs, which does not need them. mixed: runs 2i and 2i + 1 are the experts
 * with the i-th fewest and the i-th most rows. */
DT_DEVICE dt_run dt_run_of(const dt_tile_table &table, const dt_tile_order &order, const dt_table_scratch &s,
                           const dt_table_choice &choice, int32_t index) {
  dt_run run;
  const int32_t k = index < table.experts ? index : index - table.experts;
  run.expert = k;
  if (order.order == DT_ORDER_REMOTE_FIRST) run.expert = s.expert[k];
  if (choice.mixed) run.expert = s.expert[k % 2 ? k / 2 : table.experts - 1 - k / 2];
  run.row = s.first_row[run.expert];
  run.rows = s.first_row[run.expert + 1] - run.row;
  run.slot = run.remote = 0;
  run.turns = choice.turned;
  if (order.order == DT_ORDER_PACED)
    run.remote = dt_paced_bands(run.rows, order.remote_rows[run.expert], table.raster_bands, order.paced_units);
  if (table.split) run.turns &= run.remote == 0 && dt_may_turn_split(run.rows);
  if (order.order == DT_ORDER_REMOTE_FIRST) {
    const int32_t remote = dt_remote_run_rows(run.rows, s.key[run.expert]);
    if (index >= table.experts) run.row += remote;
    run.rows = index < table.experts ? remote : run.rows - remote;
  }
  return run;
}

/* First slots and tasks of all runs, by one warp. */
DT_DEVICE void dt_scan_runs(const dt_tile_table &table, const dt_tile_order &order, const dt_table_scratch &s,
                            const dt_table_choice &choice, int32_t runs) {
  const int32_t lane = (int32_t)(threadIdx.x % 32);
  int32_t slot = 0, task = 0;
  for (int32_t base = 0; base < runs; base += 32) {
    const int32_t index = base + lane;
    int32_t bands = 0, tasks = 0;
    if (index < runs) {
      const dt_run run = dt_run_of(table, order, s, choice, index);
      bands = dt_bands(run.rows);
      tasks = dt_run_tasks(&run, table.column_tiles);
    }
    const int32_t until_slot = dt_scan_warp(bands), until_task = dt_scan_warp(tasks);
    if (index < runs) {
      s.first_slot[index] = slot + until_slot - bands;
      s.first_task[index] = task + until_task - tasks;
    }
    slot += __shfl_sync(0xffffffffu, until_slot, 31);
    task += __shfl_sync(0xffffffffu, until_task, 31);
  }
  if (lane == 0) {
    s.first_slot[runs] = slot;
    s.first_task[runs] = task;
  }
}

/* Two mixed experts: from a task's place among both to its expert, and its place there. */
DT_DEVICE void dt_take_turns(const dt_table_scratch &s, int32_t &run, int32_t &local) {
  const int32_t first = run & ~1, light = s.first_task[first + 1] - s.first_task[first];
  const int32_t heavy = s.first_task[first + 2] - s.first_task[first + 1];
  const int32_t task = dt_paced_band(light, heavy, local + s.first_task[run] - s.first_task[first]);
  run = task < light ? first : first + 1;
  local = task < light ? task : task - light;
}

DT_DEVICE void dt_write_task(const dt_tile_table &table, int32_t index, const dt_tile_task &task) {
  uint4 *to = (uint4 *)(table.tasks + index);
  const uint4 *from = (const uint4 *)&task;
  to[0] = from[0];
  to[1] = from[1];
}

/* Every block scans all experts; every thread writes one task, or those that it is cut into. */
__global__ void __launch_bounds__(DT_TABLE_THREADS)
    dt_tile_table_kernel(const dt_tile_table table, const dt_tile_order order) {
  extern __shared__ int32_t dt_memory[];
  __shared__ dt_cut cut;
  __shared__ dt_table_choice choice;
  const int32_t runs = dt_table_runs(table.experts, order.order);
  const dt_table_scratch s = dt_table_scratch_at(dt_memory, table.experts, runs);
  const bool scans = threadIdx.x < 32;
  dt_table_rows facts = {DT_TILE_OK, 0, 0, 0, 0};
  dt_grid_launch(); /* the GEMM may set up its pipelines meanwhile */
  dt_grid_wait();   /* what the stream did before: the counts, and readers of the last table */
  for (int32_t e = (int32_t)threadIdx.x; e < table.experts; e += DT_TABLE_THREADS) s.first_row[e] = table.counts[e];
  __syncthreads();
  if (scans) facts = dt_scan_rows(table, order, s);
  if (threadIdx.x == 0) {
    choice.mixed = table.mixes && facts.fewest < DT_LIGHT_ROWS && facts.most > DT_LIGHT_ROWS;
    choice.turned = table.turns && facts.turned;
  }
  __syncthreads();
  if (order.order == DT_ORDER_REMOTE_FIRST || choice.mixed) dt_sort_experts(table, order, s);
  if (scans) {
    dt_scan_runs(table, order, s, choice, runs);
    __syncwarp();
    if (threadIdx.x == 0) {
      const int32_t tasks = s.first_task[runs];
      const bool linked = (int64_t)table.k * s.first_row[table.experts] < (int64_t)table.link_k * facts.remote;
      cut = dt_cut_of(tasks, table.clusters, table.whole_columns, linked);
      if (blockIdx.x == 0) {
        table.header->next = 0;
        int32_t parts;
        table.header->count = (uint32_t)dt_cut_place(&cut, tasks, tasks, &parts);
        table.header->error = facts.error;
        table.header->rows = (uint32_t)s.first_row[table.experts];
      }
    }
  }
  __syncthreads();
  const int32_t task = (int32_t)(blockIdx.x * DT_TABLE_THREADS + threadIdx.x), tasks = s.first_task[runs];
  if (task >= tasks) return;
  int32_t low = 0, high = runs; /* first_task[low] <= task < first_task[high] */
  while (high - low > 1) {
    int32_t middle = (low + high) / 2;
    if (s.first_task[middle] <= task)
      low = middle;
    else
      high = middle;
  }
  int32_t local = task - s.first_task[low];
  if (choice.mixed && (low | 1) < runs) dt_take_turns(s, low, local);
  dt_run run = dt_run_of(table, order, s, choice, low);
  run.slot = s.first_slot[low];
  dt_tile_task made = dt_run_task(&run, table.column_tiles, table.raster_bands, local);
  if (choice.turned) made.flags |= DT_TILE_AMONG_TURNED;
  if (table.split && made.flags & DT_TILE_TURNED)
    made.flags |= dt_split_meet(made.row[0] - run.row, made.rows[0], order.remote_rows[run.expert])
                  << DT_TILE_MEET_SHIFT;
  int32_t parts;
  const int32_t place = dt_cut_place(&cut, tasks, task, &parts);
  if (parts == 1) {
    dt_write_task(table, place, made);
    return;
  }
  for (int32_t i = 0; i < parts; i++) dt_write_task(table, place + i, dt_part_of(made, i, parts));
}

extern "C" cudaError_t dt_tile_ordered_table_launch(const dt_tile_table *table, const dt_tile_order *order,
                                                    int64_t tasks_max, cudaStream_t stream) {
  enum { SHARED_BY_DEFAULT = 48 * 1024 };
  unsigned blocks = (unsigned)((tasks_max + DT_TABLE_THREADS - 1) / DT_TABLE_THREADS);
  if (blocks == 0) blocks = 1;
  const size_t experts = (size_t)table->experts, runs = (size_t)dt_table_runs(table->experts, order->order);
  const size_t sorted = order->order == DT_ORDER_REMOTE_FIRST || table->mixes ? 2 * experts : 0;
  const size_t shared = sizeof(int32_t) * (experts + 1 + 2 * (runs + 1) + sorted);
  if (shared > SHARED_BY_DEFAULT) {
    cudaError_t error =
        cudaFuncSetAttribute(dt_tile_table_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (error != cudaSuccess) return error;
  }
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
  return cudaLaunchKernelEx(&config, dt_tile_table_kernel, *table, *order);
}
