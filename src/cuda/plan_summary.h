/* What a rank's plan is a closed-form function of: prefix sums over sources, experts, groups, orders and runs.
 *
 * Every block makes the whole summary in its shared memory, from the counts alone, so that blocks need not wait for one
 * another; then each thread writes entries of the plan's arrays by position (plan_fill.h, plan_table.h). Sums are
 * small: their length is experts times ranks, never rows, bands or tasks.
 *
 * Lists are concatenated with one entry more than they have, their end. "Ring order" of owners is rank + 1, rank + 2,
 * ..., rank; group j of the rank is (expert j / ranks, ring place j % ranks).
 */
#ifndef DT_CUDA_PLAN_SUMMARY_H
#define DT_CUDA_PLAN_SUMMARY_H

#include "plan_device.h"

typedef struct dt_summary_totals {
  dt_device_plan_sizes sizes;
  int32_t wrong;        /* counts cannot be planned */
  int32_t fits;         /* sizes are within the capacities: arrays may be written */
  int32_t groups;       /* of units */
  int32_t warm_up;      /* alternate: L1 tasks before the first L2 task */
  int32_t valid, sends; /* this rank's rows without padding; D tasks for peers */
} dt_summary_totals;

typedef struct dt_summary {
  dt_summary_totals *totals;
  int32_t *before; /* [ranks][width + 1]: slots of a source for the global experts before g */
  /* Of the measured ranks (all if the table has D tasks, else this one): [measured][experts + 1] */
  int32_t *row, *first_band; /* of an expert */
  int32_t *sends;            /* this rank's D tasks for the experts before, in that rank's order of experts */
  int32_t *remote_bands;     /* of an expert */
  int32_t *offset;           /* of this rank's group in the expert */
  int32_t *order;            /* the rank's experts as their remote bands come */
  int32_t *peer_sends;       /* [ranks]: D tasks for the peers before, ring order */
  /* Of this rank's groups: [experts*ranks + 1] */
  int32_t *group_offset;                             /* within the expert */
  int32_t *first_group, *first_part, *first_segment; /* listed before */
  /* Of this rank's experts by `order`: [experts + 1] */
  int32_t *remote_start, *local_start; /* remote bands, local-only bands of the experts before */
  int32_t *own_start;                  /* own rows' D tasks; remote-first: only those in remote bands */
  int32_t *segment_start;
  /* Runs: consecutive bands of one expert in the order of the table. [runs + 1] */
  int32_t *run_start, *run_band; /* first position; first band */
  int32_t *run_group, *run_cut;  /* the group of its first unit; where in the run the next group begins */
  int32_t *run_peak, *run_gate;  /* alternate: plan_table.h */
} dt_summary;

DT_PHASE int32_t dt_measured(const dt_device_plan *plan) {
  return plan->config.dispatch ? plan->config.ranks : 1;
}

/* Where this rank's experts are among the measured ones. */
DT_PHASE int32_t dt_own(const dt_device_plan *plan) {
  return plan->config.dispatch ? plan->config.rank * (plan->config.experts_per_rank + 1) : 0;
}

DT_PHASE int32_t *dt_summary_take(int32_t **memory, int64_t words) {
  int32_t *piece = *memory;
  *memory += words;
  return piece;
}

DT_PHASE dt_summary dt_summary_at(const dt_device_plan *plan, int32_t *memory) {
  const int64_t ranks = plan->config.ranks, experts = plan->config.experts_per_rank, runs = plan->runs;
  const int64_t measured = dt_measured(plan) * (experts + 1), groups = ranks * experts + 1;
  dt_summary s;
  s.totals = (dt_summary_totals *)dt_summary_take(&memory, sizeof *s.totals / sizeof *memory);
  s.before = dt_summary_take(&memory, ranks * (ranks * experts + 1));
  s.row = dt_summary_take(&memory, measured);
  s.first_band = dt_summary_take(&memory, measured);
  s.sends = dt_summary_take(&memory, measured);
  s.remote_bands = dt_summary_take(&memory, measured);
  s.offset = dt_summary_take(&memory, measured);
  s.order = dt_summary_take(&memory, measured);
  s.peer_sends = dt_summary_take(&memory, ranks + 1);
  s.group_offset = dt_summary_take(&memory, groups);
  s.first_group = dt_summary_take(&memory, groups);
  s.first_part = dt_summary_take(&memory, groups);
  s.first_segment = dt_summary_take(&memory, groups);
  s.remote_start = dt_summary_take(&memory, experts + 1);
  s.local_start = dt_summary_take(&memory, experts + 1);
  s.own_start = dt_summary_take(&memory, experts + 1);
  s.segment_start = dt_summary_take(&memory, experts + 1);
  s.run_start = dt_summary_take(&memory, runs + 1);
  s.run_band = dt_summary_take(&memory, runs + 1);
  s.run_group = dt_summary_take(&memory, runs + 1);
  s.run_cut = dt_summary_take(&memory, runs + 1);
  s.run_peak = dt_summary_take(&memory, runs + 1);
  s.run_gate = dt_summary_take(&memory, runs + 1);
  return s;
}

/* A multiple of 16. */
DT_HD static inline size_t dt_summary_bytes(const dt_device_plan *plan) {
  const int64_t ranks = plan->config.ranks, experts = plan->config.experts_per_rank, runs = plan->runs;
  const int64_t words = ranks * (ranks * experts + 1) + 6 * dt_measured(plan) * (experts + 1) + ranks + 1 +
                        4 * (ranks * experts + 1) + 4 * (experts + 1) + 6 * (runs + 1);
  return (sizeof(dt_summary_totals) + (size_t)words * sizeof(int32_t) + 15) & ~(size_t)15;
}

/* Slots of `source` for global expert g. */
DT_PHASE int32_t dt_slots_of(const dt_device_plan *plan, const dt_summary *s, int32_t source, int32_t g) {
  const int32_t *before = &s->before[source * (plan->config.ranks * plan->config.experts_per_rank + 1) + g];
  return before[1] - before[0];
}

/* The owner at a place of `rank`'s ring. */
DT_PHASE int32_t dt_ring_owner(const dt_device_plan *plan, int32_t rank, int32_t place) {
  const int32_t owner = rank + 1 + place;
  return owner < plan->config.ranks ? owner : owner - plan->config.ranks;
}

/* A group of this rank. */
typedef struct dt_group_place {
  int32_t expert, owner, rows, offset; /* offset within the expert */
  int32_t remote;
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

/* Phase 1, before the counts are there. `wrong` may be set by any thread and is never unset; later phases then leave
 * their sums out, which would not fit. */
DT_PHASE void dt_summary_begin(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  (void)plan;
  if (team->warp != 0) return;
  DT_FOR_LANES(lane) {
    if (lane == 0) s->totals->wrong = s->totals->valid = s->totals->sends = 0;
  }
}

/* Phase 2: sums over each source's experts. */
DT_PHASE void dt_summary_sources(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  const int32_t width = plan->config.ranks * plan->config.experts_per_rank;
  DT_ROLLED
  for (int32_t source = team->warp; source < plan->config.ranks; source += team->warps) {
    const int32_t *counts = &plan->counts[source * width];
    if (dt_warp_scan(&s->before[source * (width + 1)], counts, width, DT_SCAN_EACH)) s->totals->wrong = 1;
  }
}

/* Phase 3: each measured expert, as dt_expert_measure. */
DT_PHASE void dt_summary_measure_expert(const dt_device_plan *plan, const dt_summary *s, int32_t m, int32_t e) {
  const int32_t ranks = plan->config.ranks, experts = plan->config.experts_per_rank, x = m * (experts + 1) + e;
  const int32_t aligned = plan->config.layout == DT_LAYOUT_ALIGNED,
                rank = plan->config.dispatch ? m : plan->config.rank;
  const int32_t own = rank == plan->config.rank;
  int64_t span = 0, remote = 0, valid = 0;
  const int32_t width = ranks * experts + 1, g = rank * experts + e;
  for (int32_t place = 0; place < ranks; place++) {
    const int32_t owner = dt_ring_owner(plan, rank, place);
    const int32_t *before = &s->before[owner * width + g], rows = before[1] - before[0];
    if (owner == plan->config.rank) s->offset[x] = (int32_t)span;
    if (own) s->group_offset[e * ranks + place] = (int32_t)span;
    if (place == ranks - 1) remote = span;
    valid += rows;
    span += aligned ? (int64_t)dt_bands_of(plan, rows) * plan->config.tile_m : rows;
  }
  if (span > INT32_MAX) {
    s->totals->wrong = 1;
    return;
  }
  if (own) dt_add(&s->totals->valid, (int32_t)valid);
  s->row[x] = (int32_t)span;
  s->first_band[x] = dt_bands_of(plan, (int32_t)span);
  s->remote_bands[x] = dt_bands_of(plan, (int32_t)remote);
}

DT_PHASE void dt_summary_measure(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  const int32_t experts = plan->config.experts_per_rank;
  if (s->totals->wrong) return;
  DT_FOR_ITEMS(i, team, dt_measured(plan) * experts) {
    const int32_t m = dt_divide(plan->by_experts, i);
    dt_summary_measure_expert(plan, s, m, i - m * experts);
  }
}

/* Where the expert at x comes among its rank's: by remote bands, descending, ties by index. */
DT_PHASE int32_t dt_summary_rank_of(const dt_device_plan *plan, const dt_summary *s, int32_t x, int32_t e) {
  const int32_t *bands = &s->remote_bands[x - e];
  int32_t ahead = 0;
  if (plan->config.order != DT_ORDER_REMOTE_FIRST) return e;
  for (int32_t other = 0; other < plan->config.experts_per_rank; other++) {
    ahead += bands[other] > bands[e] || (bands[other] == bands[e] && other < e);
  }
  return ahead;
}

/* Phase 4: rows and bands before each expert; the orders of experts; sizes of groups. */
DT_PHASE void dt_summary_place(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  const int32_t experts = plan->config.experts_per_rank, measured = dt_measured(plan);
  if (s->totals->wrong) return;
  DT_ROLLED
  for (int32_t job = team->warp; job < 2 * measured; job += team->warps) {
    int32_t *list = (job % 2 ? s->first_band : s->row) + job / 2 * (experts + 1);
    if (dt_warp_scan(list, list, experts, 2)) s->totals->wrong = 1;
  }
  DT_FOR_ITEMS_BACKWARD(i, team, measured * experts) {
    const int32_t m = dt_divide(plan->by_experts, i), e = i - m * experts, x = m * (experts + 1) + e;
    s->order[x - e + dt_summary_rank_of(plan, s, x, e)] = e;
  }
  DT_FOR_ITEMS_BACKWARD(j, team, plan->config.ranks * experts) {
    const dt_group_place group = dt_group_at(plan, s, j);
    const int32_t touched = dt_touched(plan, group.offset, group.rows);
    int32_t segments = touched;
    if (touched > 2) segments = 3 + dt_divide(plan->by_segment, touched - 3);
    s->first_group[j] = group.rows > 0;
    s->first_part[j] = touched;
    s->first_segment[j] = group.remote ? segments : 0;
  }
}

/* D tasks for expert e of measured rank m. */
DT_PHASE int32_t dt_summary_sends(const dt_device_plan *plan, const dt_summary *s, int32_t m, int32_t e) {
  const int32_t experts = plan->config.experts_per_rank;
  const int32_t rows = dt_slots_of(plan, s, plan->config.rank, m * experts + e);
  return dt_touched(plan, s->offset[m * (experts + 1) + e], rows);
}

/* Own rows' D tasks of the k-th expert: remote-first takes the expert's last remote band, if own rows are in it too,
 * long before the rest. */
DT_PHASE int32_t dt_summary_own(const dt_device_plan *plan, const dt_summary *s, int32_t e) {
  const int32_t rank = plan->config.rank, experts = plan->config.experts_per_rank;
  const int32_t offset = s->offset[dt_own(plan) + e], rows = dt_slots_of(plan, s, rank, rank * experts + e);
  if (plan->config.order != DT_ORDER_REMOTE_FIRST) return dt_touched(plan, offset, rows);
  return rows > 0 && dt_divide(plan->by_tile, offset) < s->remote_bands[dt_own(plan) + e];
}

/* Phase 5: sums over groups, and over experts in their order; a warp each. */
DT_PHASE void dt_summary_lists(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  const int32_t experts = plan->config.experts_per_rank, groups = plan->config.ranks * experts, own = dt_own(plan);
  const int32_t jobs = 6 + (plan->config.dispatch ? plan->config.ranks : 0);
  if (s->totals->wrong) return;
  DT_ROLLED
  for (int32_t job = team->warp; job < jobs; job += team->warps) {
    if (job < 3) {
      int32_t *list = job == 0 ? s->first_group : job == 1 ? s->first_part : s->first_segment;
      dt_warp_scan(list, list, groups, DT_SCAN_EACH);
      continue;
    }
    const int32_t m = job - 6, base = m < 0 ? own : m * (experts + 1);
    int32_t *list = job == 3 ? s->remote_start : job == 4 ? s->local_start : job == 5 ? s->own_start : s->sends + base;
    DT_FOR_LANES(lane) {
      DT_ROLLED
      for (int32_t k = lane; k < experts; k += DT_WARP) {
        const int32_t e = s->order[base + k], remote = s->remote_bands[base + e];
        list[k] = job == 3   ? remote
                  : job == 4 ? s->first_band[own + e + 1] - s->first_band[own + e] - remote
                  : job == 5 ? dt_summary_own(plan, s, e)
                             : dt_summary_sends(plan, s, m, e);
      }
    }
    dt_warp_sync();
    dt_warp_scan(list, list, experts, 2);
    if (job >= 6 && m != plan->config.rank) {
      DT_FOR_LANES(lane) {
        if (lane == 0) dt_add(&s->totals->sends, list[experts]);
      }
    }
  }
}

/* Remote-first: the last expert with remote bands may also be the first with local ones; these follow each other in the
 * order and so make one run. Its place in the order, or -1. */
DT_PHASE int32_t dt_summary_junction(const dt_device_plan *plan, const dt_summary *s) {
  const int32_t experts = plan->config.experts_per_rank, remote = s->remote_start[experts];
  if (remote == 0) return -1;
  const int32_t k = dt_last_at_most(s->remote_start, experts, remote - 1);
  return s->local_start[k] == 0 && s->local_start[k + 1] > 0 ? k : -1;
}

/* Where run r of a remote-first table begins. By experts: each one's remote, then local bands; else all remote bands,
 * then all local ones. Runs between the two that a junction joins, and the second, are empty and begin where it ends.
 */
DT_PHASE int32_t dt_summary_run_start(const dt_device_plan *plan, const dt_summary *s, int32_t junction, int32_t r) {
  const int32_t experts = plan->config.experts_per_rank;
  if (dt_plan_by_experts(&plan->config)) {
    if (junction >= 0 && r == 2 * junction + 1) r++;
    return s->remote_start[(r + 1) / 2] + s->local_start[r / 2];
  }
  if (junction >= 0 && r > junction && r <= experts + junction) r = experts + junction + 1;
  return r < experts ? s->remote_start[r] : s->remote_start[experts] + s->local_start[r - experts];
}

DT_PHASE void dt_summary_run(const dt_device_plan *plan, const dt_summary *s, int32_t junction, int32_t r) {
  s->run_cut[r] = INT32_MAX;
  const int32_t experts = plan->config.experts_per_rank, own = dt_own(plan);
  if (plan->config.order != DT_ORDER_REMOTE_FIRST) {
    s->run_start[r] = s->run_band[r] = s->first_band[own + r];
    return;
  }
  s->run_start[r] = dt_summary_run_start(plan, s, junction, r);
  if (r == plan->runs) return;
  const int32_t by_experts = dt_plan_by_experts(&plan->config);
  const int32_t local = by_experts ? r % 2 : r >= experts, k = by_experts ? r / 2 : r - local * experts;
  const int32_t x = own + s->order[own + k];
  s->run_band[r] = s->first_band[x] + (local ? s->remote_bands[x] : 0);
}

/* Own rows' D tasks. */
DT_PHASE int32_t dt_summary_own_sends(const dt_device_plan *plan, const dt_summary *s) {
  const int32_t experts = plan->config.experts_per_rank;
  return s->own_start[experts] + (plan->config.order == DT_ORDER_REMOTE_FIRST ? s->local_start[experts] : 0);
}

DT_PHASE void dt_summary_sizes(const dt_device_plan *plan, const dt_summary *s, dt_device_plan_sizes *sizes) {
  const dt_plan_config *config = &plan->config;
  const int32_t experts = config->experts_per_rank, groups = config->ranks * experts, own = dt_own(plan);
  const int64_t columns = dt_has_tiles(config) ? (int64_t)config->columns_1 + config->columns_2 : 0;
  const int64_t sends = config->dispatch ? (int64_t)s->totals->sends + dt_summary_own_sends(plan, s) : 0;
  sizes->rows = s->row[own + experts];
  sizes->padded_rows = sizes->rows - s->totals->valid;
  sizes->combine_rows = s->before[config->rank * (groups + 1) + groups];
  sizes->group_count = s->first_group[groups];
  sizes->band_count = s->first_band[own + experts];
  sizes->part_count = s->first_part[groups];
  sizes->segment_count = s->first_segment[groups];
  sizes->dispatch_count = (int32_t)dt_min64(sends, INT32_MAX);
  sizes->dispatch_tasks = sends;
  sizes->task_count = sends + config->shared_blocks + config->reduce_blocks + sizes->band_count * columns;
}

DT_PHASE int dt_summary_fits(const dt_plan_capacity *capacity, const dt_device_plan_sizes *sizes) {
  return sizes->rows <= capacity->rows && sizes->group_count <= capacity->groups &&
         sizes->band_count <= capacity->bands && sizes->part_count <= capacity->parts &&
         sizes->segment_count <= capacity->segments && sizes->dispatch_tasks <= capacity->dispatch &&
         sizes->task_count <= capacity->tasks;
}

/* Sizes as the caller sees them, once, and whether arrays may be written. */
DT_PHASE void dt_summary_decide(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  dt_device_plan_sizes sizes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  uint32_t error = DT_DEVICE_PLAN_ERROR_COUNTS;
  if (!s->totals->wrong) {
    dt_summary_sizes(plan, s, &sizes);
    error = dt_summary_fits(&plan->capacity, &sizes) ? DT_DEVICE_PLAN_OK : DT_DEVICE_PLAN_ERROR_CAPACITY;
  }
  s->totals->fits = error == DT_DEVICE_PLAN_OK;
  s->totals->sizes = sizes;
  if (team->block != 0) return;
  const dt_device_plan_sizes none = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  *plan->sizes = error == DT_DEVICE_PLAN_OK ? sizes : none;
  if (error != DT_DEVICE_PLAN_OK) dt_error_set(plan->error, error);
}

/* Phase 6: runs; segments by order; D tasks of peers in ring order; sizes. */
DT_PHASE void dt_summary_runs(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  const int32_t experts = plan->config.experts_per_rank, ranks = plan->config.ranks, own = dt_own(plan);
  if (team->warp == team->warps / 2) { /* beside the scans of the first warps and the runs of the last */
    DT_FOR_LANES(lane) {
      if (lane == 0) dt_summary_decide(plan, s, team);
    }
  }
  if (s->totals->wrong) return;
  const int32_t junction = plan->config.order == DT_ORDER_REMOTE_FIRST ? dt_summary_junction(plan, s) : -1;
  DT_FOR_ITEMS_BACKWARD(r, team, plan->runs + 1) dt_summary_run(plan, s, junction, r);
  DT_ROLLED
  for (int32_t job = team->warp; job < 2; job += team->warps) {
    DT_FOR_LANES(lane) {
      DT_ROLLED
      for (int32_t k = lane; job == 0 && k < experts; k += DT_WARP) {
        const int32_t *segment = &s->first_segment[s->order[own + k] * ranks];
        s->segment_start[k] = segment[ranks] - segment[0];
      }
      DT_ROLLED
      for (int32_t i = lane; job == 1 && plan->config.dispatch && i < ranks - 1; i += DT_WARP) {
        s->peer_sends[i] = s->sends[dt_ring_owner(plan, plan->config.rank, i) * (experts + 1) + experts];
      }
    }
    dt_warp_sync();
    if (job == 0) dt_warp_scan(s->segment_start, s->segment_start, experts, 2);
    if (job == 1 && plan->config.dispatch) dt_warp_scan(s->peer_sends, s->peer_sends, ranks - 1, 1);
  }
}

#endif
