/* What the plan's kernels take: pure structures, shared with the tests that run the kernels' phases on the host. */
#ifndef DT_CUDA_PLAN_DEVICE_H
#define DT_CUDA_PLAN_DEVICE_H

#include "plan/build.h"
#include "plan_warp.h"

/* The first error of any launch stays in the error word until the caller clears it. */
typedef enum dt_device_plan_error {
  DT_DEVICE_PLAN_OK = 0,
  DT_DEVICE_PLAN_ERROR_ID = 1,       /* a top-k id outside [-1, experts): its slot is dropped */
  DT_DEVICE_PLAN_ERROR_TOKENS = 2,   /* more tokens than the capacity: none is taken */
  DT_DEVICE_PLAN_ERROR_COUNTS = 3,   /* a negative count, or a source or rank with 2^31 rows or more */
  DT_DEVICE_PLAN_ERROR_CAPACITY = 4, /* an array is too small */
} dt_device_plan_error;

/* Everything on the device. ids and tokens must be there before the first launch begins: the second, which may begin
 * before the first has ended, reads them at once. The first launch adds to counts, which must be 0 before; the second,
 * after the exchange, clears them for the next layer and takes this rank's from its row of the matrix. */
typedef struct dt_device_slots {
  const int32_t *ids;    /* [tokens_capacity*top_k] in [0, experts), or -1: dropped; the rest is loaded, not used */
  const int64_t *tokens; /* in device memory; NULL: tokens_capacity */
  int64_t tokens_capacity;
  int32_t top_k, experts;
  int32_t *counts;                    /* [experts] */
  int32_t *row_of_slot, *slot_of_row; /* [tokens_capacity*top_k], as dt_slots fills them */
  int32_t *histograms;                /* scratch: [blocks][experts] */
  uint32_t *error;
  int32_t blocks, warps; /* that count; a block's slots are placed by as many warps of a block of the second launch */
} dt_device_slots;

/* As the members of dt_plan with these names. All 0 after an error. */
typedef struct dt_device_plan_sizes {
  int64_t rows, padded_rows, combine_rows, task_count, dispatch_tasks;
  int32_t group_count, band_count, part_count, segment_count, dispatch_count;
} dt_device_plan_sizes;

/* Entries of each array; rows is what the executor's buffers hold. */
typedef struct dt_plan_capacity {
  int64_t rows, groups, bands, parts, segments, dispatch, tasks;
} dt_plan_capacity;

/* At most, so that positions fit 31 bits: rows and tasks, and each other array. */
enum { DT_PLAN_TASKS_MAX = (1 << 30) - 1, DT_PLAN_ENTRIES_MAX = (1 << 27) - 1 };

typedef struct dt_device_plan {
  dt_plan_config config;
  dt_plan_capacity capacity;
  const int32_t *counts;  /* [ranks][ranks*experts_per_rank] */
  dt_build_arrays arrays; /* [capacity] each */
  dt_device_plan_sizes *sizes;
  uint32_t *error;
  /* Derived from the configuration by dt_device_plan_derive. */
  dt_divider by_tile, by_segment, by_raster, by_columns_1, by_columns_2, by_experts, by_ranks, by_row_chunks;
  int32_t segment_bands, raster_bands, lead; /* not above what the capacity allows to matter */
  int32_t need;                              /* bands a group holds at least */
  int32_t runs, units;                       /* of the table; units at most, 0 without groups */
  int32_t expert_list, group_list,
      unit_list; /* words of a list of experts, of groups (or a source's experts), of units */
  /* Chosen by the host. */
  int32_t blocks, warps;
  int32_t *workspace; /* [blocks][summary], where it does not fit into shared memory; else NULL */
} dt_device_plan;

/* Arrays that hold the plan of any routing with at most `rows` rows (valid ones, without padding) for this rank's
 * experts and at most `slots` slots of its own. */
static inline dt_plan_capacity dt_plan_capacity_of(const dt_plan_config *config, int64_t rows, int64_t slots) {
  dt_plan_capacity capacity;
  int64_t groups = (int64_t)config->ranks * config->experts_per_rank;
  int64_t ends = config->layout == DT_LAYOUT_ALIGNED ? groups : config->experts_per_rank; /* what may end in a band */
  int64_t columns = dt_has_tiles(config) ? (int64_t)config->columns_1 + config->columns_2 : 0;
  capacity.groups = dt_min64(groups, rows);
  capacity.bands = rows / config->tile_m + dt_min64(ends, rows);
  capacity.rows = config->layout == DT_LAYOUT_ALIGNED ? capacity.bands * config->tile_m : rows;
  capacity.parts = capacity.bands + capacity.groups;
  capacity.segments = config->ranks > 1 ? capacity.parts : 0;
  capacity.dispatch = config->dispatch ? slots / config->tile_m + 2 * dt_min64(groups, slots) : 0;
  capacity.tasks = capacity.dispatch + config->shared_blocks + config->reduce_blocks + capacity.bands * columns;
  return capacity;
}

DT_HD static inline int dt_plan_by_experts(const dt_plan_config *config) {
  return config->schedule == DT_SCHEDULE_WAVE && config->wave_experts > 0;
}

/* This rank's row of the matrix. */
DT_HD static inline const int32_t *dt_own_counts(const dt_device_plan *plan) {
  return plan->counts + (int64_t)plan->config.rank * plan->config.ranks * plan->config.experts_per_rank;
}

/* Groups are listed so many at a time, the last ones possibly beyond the end: a list of units has room for that, and
 * for an end. */
enum { DT_GROUP_STEPS = 4 };

/* A list in whole steps of a sum, and at least one entry more; of whole vectors. */
DT_HD static inline int32_t dt_list_words(int32_t count, int32_t step) {
  return (int32_t)dt_ceil_div(count, step) * step + DT_VECTOR;
}

/* config and capacity are set; the rest of what depends on them alone. */
static inline void dt_device_plan_derive(dt_device_plan *plan) {
  const dt_plan_config *config = &plan->config;
  const int32_t most = (int32_t)plan->capacity.bands + 1;
  plan->segment_bands = dt_min32(config->segment_bands, most);
  plan->raster_bands = dt_min32(config->raster_bands, most);
  plan->lead = config->schedule == DT_SCHEDULE_WAVE ? 0 : dt_min32(config->lead, most);
  plan->runs = config->order == DT_ORDER_REMOTE_FIRST ? 2 * config->experts_per_rank : config->experts_per_rank;
  plan->need = 1;
  plan->units = 0;
  if (dt_has_tiles(config) && config->schedule >= DT_SCHEDULE_WAVE) {
    plan->need = (int32_t)dt_min64(dt_ceil_div(config->group_tasks, config->columns_1), most);
    plan->units = (int32_t)dt_min64(plan->capacity.bands, plan->capacity.bands / plan->raster_bands + plan->runs);
  }
  plan->expert_list = dt_list_words(config->experts_per_rank, DT_WARP);
  plan->group_list = dt_list_words(config->ranks * config->experts_per_rank, DT_WARP * DT_SCAN_EACH);
  plan->unit_list = plan->units + DT_GROUP_STEPS;
  plan->by_tile = dt_divider_of(config->tile_m);
  plan->by_segment = dt_divider_of(plan->segment_bands);
  plan->by_raster = dt_divider_of(plan->raster_bands);
  plan->by_columns_1 = dt_divider_of(dt_max32(config->columns_1, 1));
  plan->by_columns_2 = dt_divider_of(dt_max32(config->columns_2, 1));
  plan->by_experts = dt_divider_of(config->experts_per_rank);
  plan->by_ranks = dt_divider_of(config->ranks);
  plan->by_row_chunks = dt_divider_of((int32_t)dt_ceil_div(config->ranks * config->experts_per_rank, DT_WARP));
}

#endif
