/* The host's way to a plan: validation and memory. What is computed is in build.h. */
#include <draintile/plan.h>

#include <stdlib.h>
#include <string.h>

#include "build.h"
#include "core/error.h"

/* Above this, row arithmetic with padding could leave int64; no tile comes near it. */
enum { MAX_TILE_M = 1 << 24 };

void dt_plan_config_init(dt_plan_config *config) {
  memset(config, 0, sizeof *config);
  config->size = sizeof *config;
  config->ranks = 1;
  config->experts_per_rank = 1;
  config->tile_m = 128;
  config->segment_bands = 2;
  config->raster_bands = 8;
  config->lead = 1;
  config->group_tasks = 1;
}

static dt_status check_range(const char *field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return DT_OK;
  return dt_fail(DT_ERR_ARGUMENT, "%s: %lld; %lld to %lld", field, (long long)value, (long long)low, (long long)high);
}

static dt_status check_config(const dt_plan_config *c) {
  if (c->size != sizeof *c) {
    return dt_fail(DT_ERR_ARGUMENT, "size: %zu; %zu, as dt_plan_config_init sets it", c->size, sizeof *c);
  }
  const struct {
    const char *field;
    int64_t value, low, high;
  } fields[] = {
      {"ranks", c->ranks, 1, INT32_MAX},
      {"experts_per_rank", c->experts_per_rank, 1, INT32_MAX / (c->ranks > 0 ? c->ranks : 1)},
      {"rank", c->rank, 0, (int64_t)c->ranks - 1},
      {"tile_m", c->tile_m, 1, MAX_TILE_M},
      {"layout", (int)c->layout, DT_LAYOUT_PACKED, DT_LAYOUT_ALIGNED},
      {"order", (int)c->order, DT_ORDER_NATURAL, DT_ORDER_PACED},
      {"segment_bands", c->segment_bands, 1, INT32_MAX},
      {"schedule", (int)c->schedule, DT_SCHEDULE_SERIAL, DT_SCHEDULE_ALTERNATE},
      {"columns_1", c->columns_1, 0, INT32_MAX},
      {"columns_2", c->columns_2, 0, INT32_MAX},
      {"raster_bands", c->raster_bands, 1, INT32_MAX},
      {"lead", c->lead, 1, INT32_MAX},
      {"wave_experts", c->wave_experts, 0, INT32_MAX},
      {"group_tasks", c->group_tasks, 1, INT32_MAX},
      {"dispatch", c->dispatch, 0, 1},
      {"shared_blocks", c->shared_blocks, 0, INT32_MAX},
      {"reduce_blocks", c->reduce_blocks, 0, INT32_MAX},
  };
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    dt_status status = check_range(fields[i].field, fields[i].value, fields[i].low, fields[i].high);
    if (status != DT_OK) return status;
  }
  return DT_OK;
}

/* No negative counts, and no source with more slots than a 31-bit slot index reaches: all later sums then fit int64. */
static dt_status check_counts(const dt_plan_config *config, const int32_t *counts) {
  if (!counts) return dt_fail(DT_ERR_ARGUMENT, "counts: NULL; [ranks][ranks*experts_per_rank]");
  int64_t width = (int64_t)config->ranks * config->experts_per_rank;
  for (int32_t s = 0; s < config->ranks; s++) {
    const int32_t *row = &counts[s * width];
    int64_t sum = 0;
    int32_t lowest = 0;
    for (int64_t g = 0; g < width; g++) {
      sum += row[g];
      if (row[g] < lowest) lowest = row[g];
    }
    for (int64_t g = 0; lowest < 0 && g < width; g++) {
      if (row[g] < 0) {
        return dt_fail(DT_ERR_ARGUMENT, "counts[%d][%lld]: %d; at least 0", s, (long long)g, row[g]);
      }
    }
    if (sum > INT32_MAX) {
      return dt_fail(DT_ERR_ARGUMENT, "counts[%d]: %lld slots in all; at most %d", s, (long long)sum, INT32_MAX);
    }
  }
  return DT_OK;
}

static dt_status check_sizes(const dt_build_sizes *sizes) {
  const struct {
    const char *what;
    int64_t value;
  } parts[] = {{"bands", sizes->total.bands},
               {"parts", sizes->total.parts},
               {"segments", sizes->total.segments},
               {"dispatch tasks", sizes->dispatch}};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    if (parts[i].value >= INT32_MAX) {
      return dt_fail(DT_ERR_ARGUMENT, "counts: %lld %s; below %d (a larger tile_m makes fewer)",
                     (long long)parts[i].value, parts[i].what, INT32_MAX);
    }
  }
  return DT_OK;
}

/* Hands out aligned pieces of a block. Without a block yet it only adds up sizes, so that one function both measures
 * and carves. */
typedef struct carver {
  char *base;
  size_t used;
  int overflow;
} carver;

static void *carve(carver *c, int64_t count, size_t size) {
  size_t bytes, before = c->used;
  if (__builtin_mul_overflow((size_t)count, size, &bytes) || bytes > SIZE_MAX / 2 - before) c->overflow = 1;
  c->used += (bytes + 15) & ~(size_t)15;
  return c->base ? c->base + before : NULL;
}

static void carve_ranks(carver *c, const dt_plan_config *config, dt_build_ranks *ranks) {
  int64_t experts = config->experts_per_rank, all = config->dispatch ? config->ranks : 0, some = all ? all : 1;
  ranks->experts = carve(c, some * experts, sizeof *ranks->experts);
  ranks->sends = carve(c, all * experts, sizeof *ranks->sends);
  ranks->expert_orders = carve(c, some * experts, sizeof *ranks->expert_orders);
  ranks->sorting = carve(c, experts + 1, sizeof *ranks->sorting);
  ranks->rank_of = carve(c, experts, sizeof *ranks->rank_of);
  ranks->dst_rows = carve(c, config->ranks, sizeof *ranks->dst_rows);
  ranks->cursors = carve(c, all, sizeof *ranks->cursors);
}

static void carve_scratch(carver *c, const dt_build_sizes *sizes, dt_build_scratch *scratch) {
  int64_t bands = sizes->total.bands;
  scratch->position = carve(c, bands, sizeof *scratch->position);
  scratch->bucket = carve(c, bands + 1, sizeof *scratch->bucket);
  scratch->latest = carve(c, sizes->total.segments, sizeof *scratch->latest);
  scratch->units = carve(c, bands, sizeof *scratch->units);
  scratch->sorted_units = carve(c, bands, sizeof *scratch->sorted_units);
  scratch->group_first = carve(c, bands + 1, sizeof *scratch->group_first);
}

static void carve_arrays(carver *c, const dt_build_sizes *sizes, int64_t tasks, dt_plan **plan,
                         dt_build_arrays *arrays) {
  *plan = carve(c, 1, sizeof **plan);
  arrays->groups = carve(c, sizes->total.groups, sizeof *arrays->groups);
  arrays->bands = carve(c, sizes->total.bands, sizeof *arrays->bands);
  arrays->parts = carve(c, sizes->total.parts, sizeof *arrays->parts);
  arrays->segments = carve(c, sizes->total.segments, sizeof *arrays->segments);
  arrays->band_order = carve(c, sizes->total.bands, sizeof *arrays->band_order);
  arrays->segment_order = carve(c, sizes->total.segments, sizeof *arrays->segment_order);
  arrays->dispatch = carve(c, sizes->dispatch, sizeof *arrays->dispatch);
  arrays->tasks = carve(c, tasks, sizeof *arrays->tasks);
}

/* From measuring to carving: 0 if there is no memory, which is then reported. */
static int allocate(carver *c) {
  size_t bytes = c->used;
  c->used = 0;
  c->base = c->overflow ? NULL : malloc(bytes);
  if (c->base) return 1;
  if (c->overflow) {
    dt_fail(DT_ERR_MEMORY, "plan: larger than the address space");
  } else {
    dt_fail(DT_ERR_MEMORY, "plan: no memory for %zu bytes", bytes);
  }
  return 0;
}

static void describe(dt_plan *plan, const dt_plan_config *config, const dt_build_sizes *sizes,
                     const dt_build_arrays *arrays, void *storage) {
  memset(plan, 0, sizeof *plan);
  plan->config = *config;
  plan->rows = sizes->total.span;
  plan->padded_rows = sizes->total.span - sizes->total.rows;
  plan->combine_rows = sizes->combine_rows;
  plan->group_count = (int32_t)sizes->total.groups;
  plan->band_count = (int32_t)sizes->total.bands;
  plan->part_count = (int32_t)sizes->total.parts;
  plan->segment_count = (int32_t)sizes->total.segments;
  plan->dispatch_count = (int32_t)sizes->dispatch;
  plan->task_count = dt_build_task_count(config, sizes);
  plan->dispatch_tasks = sizes->dispatch;
  plan->groups = arrays->groups;
  plan->bands = arrays->bands;
  plan->parts = arrays->parts;
  plan->segments = arrays->segments;
  plan->band_order = arrays->band_order;
  plan->segment_order = arrays->segment_order;
  plan->dispatch = arrays->dispatch;
  plan->tasks = arrays->tasks;
  plan->storage = storage;
}

/* `ranks` holds what measuring needs; the plan's own block is sized by it. */
static dt_status build(const dt_plan_config *config, const int32_t *counts, const dt_build_ranks *ranks,
                       dt_plan **plan) {
  dt_build_sizes sizes;
  dt_build_scratch scratch;
  dt_build_arrays arrays;
  dt_plan *result;
  carver block = {0}, temporary = {0};
  dt_build_measure(config, counts, ranks, &sizes);
  dt_status status = check_sizes(&sizes);
  if (status != DT_OK) return status;
  int64_t tasks = dt_build_task_count(config, &sizes);
  carve_arrays(&block, &sizes, tasks, &result, &arrays);
  carve_scratch(&temporary, &sizes, &scratch);
  if (!allocate(&block)) return DT_ERR_MEMORY;
  if (!allocate(&temporary)) {
    free(block.base);
    return DT_ERR_MEMORY;
  }
  carve_arrays(&block, &sizes, tasks, &result, &arrays);
  carve_scratch(&temporary, &sizes, &scratch);
  dt_build_fill(config, counts, &sizes, ranks, &scratch, &arrays);
  describe(result, config, &sizes, &arrays, block.base);
  free(temporary.base);
  *plan = result;
  return DT_OK;
}

dt_status dt_plan_create(const dt_plan_config *config, const int32_t *counts, dt_plan **plan) {
  dt_build_ranks ranks;
  carver temporary = {0};
  dt_status status = check_config(config);
  if (status == DT_OK) status = check_counts(config, counts);
  if (status != DT_OK) return status;
  carve_ranks(&temporary, config, &ranks);
  if (!allocate(&temporary)) return DT_ERR_MEMORY;
  carve_ranks(&temporary, config, &ranks);
  status = build(config, counts, &ranks, plan);
  free(temporary.base);
  return status;
}

void dt_plan_destroy(dt_plan *plan) {
  if (plan) free(plan->storage);
}
