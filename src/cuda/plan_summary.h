/* What a rank's plan is a closed-form function of: prefix sums over sources, experts, groups, orders, runs and units.
 *
 * Every block makes the whole summary in its shared memory, from the counts alone (plan_measure.h), so that blocks need
 * not wait for one another; then each thread writes entries of the plan's arrays by position (plan_fill.h,
 * plan_table.h). Sums are small: their length is experts times ranks, never rows or tasks; only schedules with groups
 * list units, of which there are no more than bands.
 *
 * Lists are concatenated with one entry more than they have, their end. "Ring order" of owners is rank + 1, rank + 2,
 * ..., rank; group j of the rank is (expert j / ranks, ring place j % ranks).
 */
#ifndef DT_CUDA_PLAN_SUMMARY_H
#define DT_CUDA_PLAN_SUMMARY_H

#include "plan_device.h"

typedef struct dt_summary_totals {
  dt_device_plan_sizes sizes;
  int32_t wrong;       /* counts cannot be planned */
  int32_t wrong_sends; /* nor D tasks */
  int32_t fits;        /* sizes are within the capacities: arrays may be written */
  int32_t groups;      /* of units */
} dt_summary_totals;
enum { DT_TOTALS_BYTES = (sizeof(dt_summary_totals) + 15) / 16 * 16 };

typedef struct dt_summary {
  dt_summary_totals *totals;
  int32_t *counts, *before; /* [ranks][group_list]: slots of a source for a global expert; for those before it */
  /* Of the measured ranks (all if the table has D tasks, else this one): [measured][expert_list] */
  int32_t *row, *first_band; /* of an expert */
  int32_t *sends;            /* this rank's D tasks for the experts before, in that rank's order of experts */
  int32_t *remote_bands;     /* of an expert */
  int32_t *offset;           /* of this rank's group in the expert */
  int32_t *touched;          /* bands of the expert that this rank's group is in: D tasks */
  int32_t *order;            /* the rank's experts as their remote bands come */
  int32_t *peer_sends;       /* [ranks + 1]: D tasks for the peers before, ring order */
  /* Of this rank's groups: [group_list] */
  int32_t *first_group, *first_part, *first_segment; /* listed before */
  int32_t *group_offset;                             /* within the expert */
  /* Of this rank's experts by `order`: [expert_list] */
  int32_t *remote_start, *local_start; /* remote bands, local-only bands of the experts before */
  int32_t *own_start;                  /* own rows' D tasks; remote-first: only those in remote bands */
  int32_t *segment_start;              /* remote-first */
  /* Runs: consecutive bands of one expert in the order of the table; an expert each but for remote-first. [runs + 1] */
  int32_t *run_start, *run_band; /* first position; first band */
  /* Schedules with groups */
  int32_t *run_unit;   /* [runs + 1]: units of the runs before */
  int32_t *split_unit; /* [runs + 1]: the same if no run joins two (dt_summary_junction) */
  /* Of units: [unit_list]. Words that are not needed at the same time share their place. */
  int32_t *unit_start; /* position */
  int32_t *unit_run;
  int32_t *unit_next;                     /* first unit of the group behind one that begins with this unit */
  int32_t *group_first;                   /* first unit of a group */
  int32_t *unit_l1, *unit_l2, *unit_gate; /* dt_table_befores */
} dt_summary;

DT_PHASE int32_t dt_measured(const dt_device_plan *plan) {
  return plan->config.dispatch ? plan->config.ranks : 1;
}

/* Where this rank's experts are among the measured ones. */
DT_PHASE int32_t dt_own(const dt_device_plan *plan) {
  return plan->config.dispatch ? plan->config.rank * plan->expert_list : 0;
}

DT_PHASE int dt_is_grouped(const dt_device_plan *plan) {
  return dt_has_tiles(&plan->config) && plan->config.schedule >= DT_SCHEDULE_WAVE;
}

DT_PHASE int32_t *dt_summary_take(int32_t **memory, int64_t words) {
  int32_t *piece = *memory;
  *memory += words;
  return piece;
}

/* Lists that are read by vectors come first. Neighbours of one length are summed together: row, first_band and sends;
 * remote_start, local_start and own_start. */
DT_PHASE dt_summary dt_summary_at(const dt_device_plan *plan, int32_t *memory) {
  const int64_t sources = (int64_t)plan->config.ranks * plan->group_list, runs = plan->runs + 1;
  const int64_t measured = (int64_t)dt_measured(plan) * plan->expert_list;
  dt_summary s;
  s.totals = (dt_summary_totals *)dt_summary_take(&memory, DT_TOTALS_BYTES / sizeof *memory);
  s.counts = dt_summary_take(&memory, sources);
  s.before = dt_summary_take(&memory, sources);
  s.row = dt_summary_take(&memory, measured);
  s.first_band = dt_summary_take(&memory, measured);
  s.sends = dt_summary_take(&memory, measured);
  s.remote_bands = dt_summary_take(&memory, measured);
  s.offset = dt_summary_take(&memory, measured);
  s.touched = dt_summary_take(&memory, measured);
  s.order = dt_summary_take(&memory, measured);
  s.first_group = dt_summary_take(&memory, plan->group_list);
  s.first_part = dt_summary_take(&memory, plan->group_list);
  s.first_segment = dt_summary_take(&memory, plan->group_list);
  s.group_offset = dt_summary_take(&memory, plan->group_list);
  s.remote_start = dt_summary_take(&memory, plan->expert_list);
  s.local_start = dt_summary_take(&memory, plan->expert_list);
  s.own_start = dt_summary_take(&memory, plan->expert_list);
  s.segment_start = dt_summary_take(&memory, plan->expert_list);
  s.run_start = s.run_band = s.first_band + dt_own(plan);
  if (plan->config.order == DT_ORDER_REMOTE_FIRST) {
    s.run_start = dt_summary_take(&memory, runs);
    s.run_band = dt_summary_take(&memory, runs);
  }
  s.run_unit = s.split_unit = dt_summary_take(&memory, runs);
  if (plan->config.order == DT_ORDER_REMOTE_FIRST) s.split_unit = dt_summary_take(&memory, runs);
  s.unit_start = dt_summary_take(&memory, plan->unit_list);
  s.unit_run = dt_summary_take(&memory, plan->unit_list);
  s.unit_next = s.unit_l1 = dt_summary_take(&memory, plan->unit_list);
  s.unit_l2 = s.unit_gate = dt_summary_take(&memory, plan->unit_list);
  s.group_first = dt_summary_take(&memory, plan->unit_list);
  s.peer_sends = dt_summary_take(&memory, plan->config.ranks + 1);
  return s;
}

/* A multiple of 16. */
DT_HD static inline size_t dt_summary_bytes(const dt_device_plan *plan) {
  const int64_t words = 2 * (int64_t)plan->config.ranks * plan->group_list +
                        7 * (int64_t)dt_measured(plan) * plan->expert_list + plan->config.ranks + 1 +
                        4 * (int64_t)plan->group_list + 4 * (int64_t)plan->expert_list + 4 * ((int64_t)plan->runs + 1) +
                        5 * (int64_t)plan->unit_list;
  return (DT_TOTALS_BYTES + (size_t)words * sizeof(int32_t) + 15) & ~(size_t)15;
}

/* Slots of `source` for global expert g; for those before it. */
DT_PHASE int32_t dt_slots_of(const dt_device_plan *plan, const dt_summary *s, int32_t source, int32_t g) {
  return s->counts[source * plan->group_list + g];
}
DT_PHASE int32_t dt_slots_before(const dt_device_plan *plan, const dt_summary *s, int32_t source, int32_t g) {
  return s->before[source * plan->group_list + g];
}

/* The owner at a place of `rank`'s ring. */
DT_PHASE int32_t dt_ring_owner(const dt_device_plan *plan, int32_t rank, int32_t place) {
  const int32_t owner = rank + 1 + place;
  return owner < plan->config.ranks ? owner : owner - plan->config.ranks;
}

/* A group of this rank: `rows` rows from `offset` within the expert. */
typedef struct dt_group_place {
  int32_t expert, owner, rows, offset, remote;
} dt_group_place;

DT_PHASE dt_group_place dt_group_at(const dt_device_plan *plan, const dt_summary *s, int32_t j) {
  dt_group_place group;
  group.expert = dt_divide(plan->by_ranks, j);
  group.owner = dt_ring_owner(plan, plan->config.rank, j - group.expert * plan->config.ranks);
  group.rows = dt_slots_of(plan, s, group.owner, plan->config.rank * plan->config.experts_per_rank + group.expert);
  group.offset = s->group_offset[j];
  group.remote = group.owner != plan->config.rank;
  return group;
}

DT_PHASE int32_t dt_touched(const dt_device_plan *plan, int32_t offset, int32_t rows) {
  if (rows == 0) return 0;
  return dt_divide(plan->by_tile, offset + rows - 1) - dt_divide(plan->by_tile, offset) + 1;
}

/* Bands of a length below 2^31. */
DT_PHASE int32_t dt_bands_of(const dt_device_plan *plan, int32_t rows) {
  return rows == 0 ? 0 : dt_divide(plan->by_tile, rows - 1) + 1;
}

/* Units of a run. */
DT_PHASE int32_t dt_units_of(const dt_device_plan *plan, int32_t bands) {
  return bands == 0 ? 0 : dt_divide(plan->by_raster, bands - 1) + 1;
}

/* Segments of a group of other ranks' rows. */
DT_PHASE int32_t dt_segments_of(const dt_device_plan *plan, int32_t touched) {
  return touched > 2 ? 3 + dt_divide(plan->by_segment, touched - 3) : touched;
}

/* Own rows' D tasks. */
DT_PHASE int32_t dt_summary_own_sends(const dt_device_plan *plan, const dt_summary *s) {
  const int32_t experts = plan->config.experts_per_rank;
  return s->own_start[experts] + (plan->config.order == DT_ORDER_REMOTE_FIRST ? s->local_start[experts] : 0);
}

#endif
