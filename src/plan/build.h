/* The whole plan of one rank over the caller's arrays: measure, let the caller provide arrays of those sizes, fill. */
#ifndef DT_PLAN_BUILD_H
#define DT_PLAN_BUILD_H

#include "dispatch.h"
#include "tasks.h"

typedef struct dt_build_sizes {
  dt_expert_layout total; /* rows, span, bands, groups, parts, segments of the rank */
  int64_t dispatch, combine_rows;
} dt_build_sizes;

/* Needed by dt_build_measure already: experts and sends hold all ranks where the table has D tasks, else only what the
 * rank itself needs: [experts_per_rank] and nothing. */
typedef struct dt_build_ranks {
  dt_expert_layout *experts; /* [ranks or 1][experts_per_rank] */
  dt_send *sends;            /* [ranks or 0][experts_per_rank] */
  int32_t *expert_orders;    /* [ranks or 1][experts_per_rank] */
  int32_t *sorting;          /* [experts_per_rank + 1] */
  int32_t *rank_of;          /* [experts_per_rank] */
  int64_t *dst_rows;         /* [ranks] */
  dt_send_cursor *cursors;   /* [ranks or 0] */
} dt_build_ranks;

/* Scratch of dt_build_fill. */
typedef struct dt_build_scratch {
  int32_t *position, *bucket, *latest; /* [bands], [bands + 1], [segments] */
  dt_unit *units, *sorted_units;       /* [bands] each */
  int32_t *group_first;                /* [bands + 1] */
} dt_build_scratch;

typedef struct dt_build_arrays {
  dt_group *groups;
  dt_band *bands;
  dt_part *parts;
  dt_segment *segments;
  int32_t *band_order, *segment_order;
  dt_dispatch *dispatch;
  dt_task *tasks;
} dt_build_arrays;

DT_HD static inline int dt_has_tiles(const dt_plan_config *config) {
  return config->columns_1 > 0 && config->columns_2 > 0;
}

/* The slice of experts (and expert_orders) that belongs to the plan's own rank. */
DT_HD static inline int64_t dt_own_experts(const dt_plan_config *config) {
  return config->dispatch ? (int64_t)config->rank * config->experts_per_rank : 0;
}

DT_HD static inline void dt_build_measure(const dt_plan_config *config, const int32_t *counts,
                                          const dt_build_ranks *ranks, dt_build_sizes *sizes) {
  dt_shape shape = dt_shape_of(config, counts);
  int64_t width = (int64_t)shape.ranks * shape.experts, src_row = 0;
  sizes->dispatch = sizes->combine_rows = 0;
  for (int64_t g = 0; g < width; g++) sizes->combine_rows += counts[config->rank * width + g];
  if (config->dispatch) {
    for (int32_t p = 0; p < shape.ranks; p++) {
      int64_t base = (int64_t)p * shape.experts;
      dt_rank_measure(&shape, p, &ranks->experts[base], &sizes->total);
      sizes->dispatch +=
          dt_sends_measure(&shape, config->rank, p, &ranks->experts[base], &src_row, &ranks->sends[base]);
    }
  }
  dt_rank_measure(&shape, config->rank, &ranks->experts[dt_own_experts(config)], &sizes->total);
}

/* Once the bands are known to fit an int32 this cannot overflow. */
DT_HD static inline int64_t dt_build_task_count(const dt_plan_config *config, const dt_build_sizes *sizes) {
  int64_t columns = dt_has_tiles(config) ? (int64_t)config->columns_1 + config->columns_2 : 0;
  return sizes->dispatch + config->shared_blocks + config->reduce_blocks + sizes->total.bands * columns;
}

DT_HD static inline void dt_build_dispatch(const dt_plan_config *config, const dt_shape *shape,
                                           const dt_build_sizes *sizes, const dt_build_ranks *ranks,
                                           const dt_build_arrays *out) {
  int64_t local =
      dt_dispatch_local(config->rank, out->band_order, sizes->total.bands, out->bands, out->parts, out->dispatch);
  for (int32_t p = 0; p < shape->ranks; p++) {
    int64_t base = (int64_t)p * shape->experts;
    if (p == config->rank) continue;
    dt_expert_order(config->order, shape->experts, &ranks->experts[base], &ranks->expert_orders[base], ranks->sorting);
  }
  dt_dispatch_remote(shape, config->rank, ranks->expert_orders, ranks->sends, ranks->cursors, sizes->dispatch - local,
                     &out->dispatch[local]);
}

/* The table: D, shared experts, L1 and L2 as the schedule has them, R. */
DT_HD static inline void dt_build_tasks(const dt_plan_config *config, const dt_build_sizes *sizes,
                                        const dt_build_ranks *ranks, const dt_build_scratch *scratch,
                                        const dt_build_arrays *arrays) {
  dt_task *out = arrays->tasks;
  dt_table table;
  for (int64_t i = 0; i < sizes->dispatch; i++) dt_task_set(out++, DT_PHASE_DISPATCH, (int32_t)i, 0);
  for (int32_t i = 0; i < config->shared_blocks; i++) dt_task_set(out++, DT_PHASE_SHARED, i, 0);
  if (dt_has_tiles(config)) {
    table.band_order = arrays->band_order;
    table.columns_1 = config->columns_1;
    table.columns_2 = config->columns_2;
    table.units = scratch->units;
    table.group_first = scratch->group_first;
    table.unit_count =
        dt_units_build(arrays->band_order, sizes->total.bands, arrays->bands, config->raster_bands, scratch->units);
    if (config->schedule == DT_SCHEDULE_WAVE && config->wave_experts > 0) {
      table.group_count = dt_groups_by_experts(arrays->band_order, arrays->bands, scratch->units, table.unit_count,
                                               config->experts_per_rank, config->wave_experts, ranks->rank_of,
                                               ranks->sorting, scratch->sorted_units, scratch->group_first);
      table.units = scratch->sorted_units;
    } else {
      table.group_count = dt_groups_by_tasks(scratch->units, table.unit_count, config->columns_1, config->group_tasks,
                                             scratch->group_first);
    }
    out = dt_emit_schedule(&table, config->schedule, config->lead, out);
  }
  for (int32_t i = 0; i < config->reduce_blocks; i++) dt_task_set(out++, DT_PHASE_REDUCE, i, 0);
}

DT_HD static inline void dt_build_fill(const dt_plan_config *config, const int32_t *counts, const dt_build_sizes *sizes,
                                       const dt_build_ranks *ranks, const dt_build_scratch *scratch,
                                       const dt_build_arrays *out) {
  dt_shape shape = dt_shape_of(config, counts);
  int64_t own = dt_own_experts(config);
  const dt_expert_layout *experts = &ranks->experts[own];
  int32_t *expert_order = &ranks->expert_orders[own];
  dt_layout_fill(&shape, config->rank, experts, ranks->dst_rows, out->groups, out->bands, out->parts, out->segments);
  dt_expert_order(config->order, shape.experts, experts, expert_order, ranks->sorting);
  dt_band_order(config->order, shape.experts, experts, expert_order, out->band_order);
  dt_segment_order(out->band_order, sizes->total.bands, out->segments, sizes->total.segments, scratch->position,
                   scratch->bucket, scratch->latest, out->segment_order);
  if (config->dispatch) dt_build_dispatch(config, &shape, sizes, ranks, out);
  dt_build_tasks(config, sizes, ranks, scratch, out);
}

#endif
