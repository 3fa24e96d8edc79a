/* The summary's phases, with a barrier of the block between each two. All that counts is how many instructions a thread
 * runs one after another: few warps are resident, so that each waits for its own. */
#ifndef DT_CUDA_PLAN_MEASURE_H
#define DT_CUDA_PLAN_MEASURE_H

#include "plan_summary.h"

/* Phase 1, before the counts are there. `wrong` may be set by any thread and is never unset; later phases then leave
 * their sums out, which would not fit. */
DT_PHASE void dt_summary_begin(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  (void)plan;
  if (team->warp != 0) return;
  DT_FOR_LANES(lane) {
    if (lane == 0) s->totals->wrong = s->totals->wrong_sends = s->totals->groups = 0;
  }
}

/* Phase 2: the counts, once from memory. */
DT_PHASE void dt_summary_load(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  enum { BATCH = 4 };
  const int32_t width = plan->config.ranks * plan->config.experts_per_rank;
  const int32_t chunks = (width + DT_WARP - 1) / DT_WARP, all = plan->config.ranks * chunks;
  DT_FOR_LANES(lane) {
    DT_ROLLED
    for (int32_t first = team->warp; first < all; first += BATCH * team->warps) {
      int32_t count[BATCH], at[BATCH];
      DT_UNROLL
      for (int i = 0; i < BATCH; i++) {
        const int32_t chunk = first + i * team->warps, source = dt_divide(plan->by_row_chunks, chunk);
        const int32_t g = (chunk - source * chunks) * DT_WARP + lane;
        at[i] = chunk < all && g < width ? source * plan->group_list + g : -1;
        count[i] = at[i] >= 0 ? plan->counts[source * width + g] : 0;
      }
      DT_UNROLL
      for (int i = 0; i < BATCH; i++) {
        if (at[i] >= 0) s->counts[at[i]] = count[i];
      }
    }
  }
}

/* An expert e of measured rank m, as dt_expert_measure. A sum or product that exceeds 31 bits is below 2^32 when it
 * first does, so it shows as a sign; what follows from it is not used. */
DT_PHASE void dt_summary_expert(const dt_device_plan *plan, const dt_summary *s, int32_t m, int32_t e) {
  const int32_t ranks = plan->config.ranks, experts = plan->config.experts_per_rank, x = m * plan->expert_list + e;
  const int32_t aligned = plan->config.layout == DT_LAYOUT_ALIGNED,
                rank = plan->config.dispatch ? m : plan->config.rank, own = rank == plan->config.rank;
  const int32_t behind = plan->config.rank - rank - 1, own_place = behind < 0 ? behind + ranks : behind;
  const int32_t *counts = &s->counts[rank * experts + e];
  uint32_t span = 0, remote = 0, offset = 0, sent = 0, wrong = 0;
  int32_t owner = rank;
  DT_UNROLL_BY(2)
  for (int32_t place = 0; place < ranks; place++) {
    owner = owner + 1 < ranks ? owner + 1 : 0;
    uint32_t rows = (uint32_t)counts[owner * plan->group_list];
    if (place == own_place) {
      offset = span;
      sent = rows;
    }
    if (own) s->group_offset[e * ranks + place] = (int32_t)span;
    remote = span;
    wrong |= rows;
    if (aligned) rows = (uint32_t)dt_bands_of(plan, (int32_t)rows) * (uint32_t)plan->config.tile_m;
    span += rows;
    wrong |= rows | span;
  }
  if ((int32_t)wrong < 0) {
    s->totals->wrong = 1;
    return;
  }
  s->row[x] = (int32_t)span;
  s->first_band[x] = dt_bands_of(plan, (int32_t)span);
  s->remote_bands[x] = dt_bands_of(plan, (int32_t)remote);
  s->offset[x] = (int32_t)offset;
  s->touched[x] = dt_touched(plan, (int32_t)offset, (int32_t)sent);
  for (int32_t i = 1; e == experts - 1 && (e + i) % (2 * DT_VECTOR) != 0; i++)
    s->remote_bands[x + i] = -1; /* comes last */
}

/* Phase 3: sums over each source's experts, by the first warps; each measured expert, by the last. */
DT_PHASE void dt_summary_measure(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  const int32_t experts = plan->config.experts_per_rank, width = plan->config.ranks * experts;
  DT_ROLLED
  for (int32_t source = team->warp; source < plan->config.ranks; source += team->warps) {
    const int32_t at = source * plan->group_list;
    if (dt_warp_scan_long(&s->before[at], &s->counts[at], width)) s->totals->wrong = 1;
  }
  DT_FOR_ITEMS_BACKWARD(i, team, dt_measured(plan) * experts) {
    const int32_t m = dt_divide(plan->by_experts, i);
    dt_summary_expert(plan, s, m, i - m * experts);
  }
}

/* Where an expert comes among its rank's: by remote bands, descending, ties by index. */
DT_PHASE int32_t dt_summary_rank_of(const dt_device_plan *plan, const int32_t *remote_bands, int32_t e) {
  int32_t ahead = 0;
  if (plan->config.order != DT_ORDER_REMOTE_FIRST) return e;
  const int32_t bands = remote_bands[e];
  DT_ROLLED
  for (int32_t first = 0; first < plan->config.experts_per_rank; first += 2 * DT_VECTOR) {
    int32_t others[2 * DT_VECTOR];
    dt_vector_load(others, &remote_bands[first]);
    dt_vector_load(others + DT_VECTOR, &remote_bands[first + DT_VECTOR]);
    DT_UNROLL
    for (int i = 0; i < 2 * DT_VECTOR; i++) ahead += others[i] > bands - (first + i < e);
  }
  return ahead;
}

/* Own rows' D tasks of an expert: remote-first takes its last remote band, if own rows are in it too, long before the
 * rest. */
DT_PHASE int32_t dt_summary_own(const dt_device_plan *plan, const dt_summary *s, int32_t e) {
  const int32_t x = dt_own(plan) + e;
  if (plan->config.order != DT_ORDER_REMOTE_FIRST) return s->touched[x];
  return s->touched[x] > 0 && dt_divide(plan->by_tile, s->offset[x]) < s->remote_bands[x];
}

/* Runs of the k-th expert of a remote-first table: by experts, or all remote ones first. */
DT_PHASE int32_t dt_remote_run(const dt_device_plan *plan, int32_t k) {
  return dt_plan_by_experts(&plan->config) ? 2 * k : k;
}
DT_PHASE int32_t dt_local_run(const dt_device_plan *plan, int32_t k) {
  return dt_plan_by_experts(&plan->config) ? 2 * k + 1 : plan->config.experts_per_rank + k;
}

/* Units of the k-th expert of the order, by run: its remote and its local bands; one run where the order does not
 * divide them. */
DT_PHASE void dt_summary_units(const dt_device_plan *plan, const dt_summary *s, int32_t k, int32_t remote,
                               int32_t local) {
  if (plan->config.order != DT_ORDER_REMOTE_FIRST) {
    s->split_unit[k] = dt_units_of(plan, remote + local);
    return;
  }
  s->split_unit[dt_remote_run(plan, k)] = dt_units_of(plan, remote);
  s->split_unit[dt_local_run(plan, k)] = dt_units_of(plan, local);
}

/* Phase 4: every list's entries, to be summed. */
DT_PHASE void dt_summary_entries(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  const int32_t experts = plan->config.experts_per_rank;
  if (s->totals->wrong) return;
  DT_FOR_ITEMS(j, team, plan->config.ranks * experts) {
    const dt_group_place group = dt_group_at(plan, s, j);
    const int32_t touched = dt_touched(plan, group.offset, group.rows);
    s->first_group[j] = group.rows > 0;
    s->first_part[j] = touched;
    s->first_segment[j] = group.remote ? dt_segments_of(plan, touched) : 0;
  }
  DT_FOR_ITEMS_BACKWARD(i, team, dt_measured(plan) * experts) {
    const int32_t m = dt_divide(plan->by_experts, i), e = i - m * experts, base = m * plan->expert_list;
    const int32_t k = dt_summary_rank_of(plan, &s->remote_bands[base], e);
    s->order[base + k] = e;
    s->sends[base + k] = s->touched[base + e];
    if (base == dt_own(plan)) {
      const int32_t remote = s->remote_bands[base + e];
      s->remote_start[k] = remote;
      s->local_start[k] = s->first_band[base + e] - remote;
      if (dt_is_grouped(plan)) dt_summary_units(plan, s, k, remote, s->local_start[k]);
      s->own_start[k] = dt_summary_own(plan, s, e);
    }
  }
}

/* Remote-first: the last expert with remote bands may also be the first with local ones; these follow each other in the
 * order and so make one run. Its place in the order, or -1. */
DT_PHASE int32_t dt_summary_junction(const dt_device_plan *plan, const dt_summary *s) {
  /* Experts come by remote bands, descending. */
  const int32_t k = dt_warp_count_filled(s->remote_start, plan->config.experts_per_rank) - 1;
  return k >= 0 && s->local_start[k] == 0 && s->local_start[k + 1] > 0 ? k : -1;
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

/* Units before run r of a remote-first table. */
DT_PHASE int32_t dt_summary_run_unit(const dt_device_plan *plan, const dt_summary *s, int32_t junction, int32_t r) {
  if (junction < 0 || r <= dt_remote_run(plan, junction)) return s->split_unit[r];
  const int32_t *remote = &s->split_unit[dt_remote_run(plan, junction)];
  const int32_t *local = &s->split_unit[dt_local_run(plan, junction)];
  const int32_t bands = s->remote_start[junction + 1] - s->remote_start[junction] + s->local_start[junction + 1] -
                        s->local_start[junction];
  const int32_t joined = dt_units_of(plan, bands);
  if (r <= dt_local_run(plan, junction)) return remote[0] + joined;
  return s->split_unit[r] + joined - (remote[1] - remote[0]) - (local[1] - local[0]);
}

/* Remote-first. */
DT_PHASE void dt_summary_run(const dt_device_plan *plan, const dt_summary *s, int32_t junction, int32_t r) {
  const int32_t experts = plan->config.experts_per_rank, own = dt_own(plan);
  s->run_start[r] = dt_summary_run_start(plan, s, junction, r);
  if (dt_is_grouped(plan)) s->run_unit[r] = dt_summary_run_unit(plan, s, junction, r);
  if (r == plan->runs) return;
  const int32_t by_experts = dt_plan_by_experts(&plan->config);
  const int32_t local = by_experts ? r % 2 : r >= experts, k = by_experts ? r / 2 : r - local * experts;
  const int32_t x = own + s->order[own + k];
  s->run_band[r] = s->first_band[x] + (local ? s->remote_bands[x] : 0);
}

/* Phase 5: sums over experts and groups, a warp each. */
DT_PHASE void dt_summary_lists(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  enum { GROUPS, PARTS, SEGMENTS, LOCAL, RANKS };
  const int32_t experts = plan->config.experts_per_rank, measured = dt_measured(plan);
  if (s->totals->wrong) return;
  DT_ROLLED
  for (int32_t job = team->warp; job < RANKS + measured + dt_is_grouped(plan); job += team->warps) {
    int wrong = 0;
    if (job == RANKS + measured) {
      wrong = dt_warp_scan(s->split_unit, s->split_unit, plan->runs, 2);
    } else if (job >= LOCAL) {
      int32_t *lists = job == LOCAL ? s->remote_start : &s->row[(job - RANKS) * plan->expert_list];
      wrong = dt_warp_scan_three(lists, job == LOCAL ? plan->expert_list : measured * plan->expert_list, experts);
    } else {
      int32_t *list = &s->first_group[job * plan->group_list];
      wrong = dt_warp_scan_long(list, list, plan->config.ranks * experts);
    }
    if (wrong) s->totals->wrong = 1;
  }
}

/* D tasks for the peers before each, in ring order; one warp. Returns whether they are wrong. */
DT_PHASE int dt_summary_peers(const dt_device_plan *plan, const dt_summary *s) {
  const int32_t peers = plan->config.ranks - 1;
  DT_FOR_LANES(lane) {
    DT_ROLLED
    for (int32_t i = lane; i < peers; i += DT_WARP) {
      const int32_t peer = dt_ring_owner(plan, plan->config.rank, i);
      s->peer_sends[i] = s->sends[peer * plan->expert_list + plan->config.experts_per_rank];
    }
  }
  dt_warp_sync();
  return dt_warp_scan(s->peer_sends, s->peer_sends, peers, 1);
}

/* This rank's rows without padding. */
DT_PHASE int32_t dt_summary_valid(const dt_device_plan *plan, const dt_summary *s) {
  const int32_t first = plan->config.rank * plan->config.experts_per_rank, end = first + plan->config.experts_per_rank;
  int32_t rows = 0;
  DT_UNROLL_BY(4)
  for (int32_t source = 0; source < plan->config.ranks; source++) {
    rows += dt_slots_before(plan, s, source, end) - dt_slots_before(plan, s, source, first);
  }
  return rows;
}

/* Sizes as the caller sees them, and whether they fit. All but the tasks have 31 bits, D tasks 32. */
DT_PHASE int dt_summary_sizes(const dt_device_plan *plan, const dt_summary *s, dt_device_plan_sizes *sizes) {
  const dt_plan_config *config = &plan->config;
  const dt_plan_capacity *capacity = &plan->capacity;
  const int32_t experts = config->experts_per_rank, groups = config->ranks * experts, own = dt_own(plan);
  const int32_t rows = s->row[own + experts], bands = s->first_band[own + experts];
  const int32_t parts = s->first_part[groups], segments = s->first_segment[groups], listed = s->first_group[groups];
  const uint32_t columns = dt_has_tiles(config) ? (uint32_t)config->columns_1 + (uint32_t)config->columns_2 : 0;
  const uint32_t sends =
      config->dispatch ? (uint32_t)s->peer_sends[config->ranks - 1] + (uint32_t)dt_summary_own_sends(plan, s) : 0;
  const int64_t tasks = (int64_t)((uint64_t)(uint32_t)bands * columns) +
                        (int64_t)(sends + (uint64_t)(config->shared_blocks + config->reduce_blocks));
  sizes->rows = rows;
  sizes->padded_rows = config->layout == DT_LAYOUT_ALIGNED ? rows - dt_summary_valid(plan, s) : 0;
  sizes->combine_rows = dt_slots_before(plan, s, config->rank, groups);
  sizes->group_count = listed;
  sizes->band_count = bands;
  sizes->part_count = parts;
  sizes->segment_count = segments;
  sizes->dispatch_count = (int32_t)sends;
  sizes->dispatch_tasks = sends;
  sizes->task_count = tasks;
  return rows <= (int32_t)capacity->rows && listed <= (int32_t)capacity->groups && bands <= (int32_t)capacity->bands &&
         parts <= (int32_t)capacity->parts && segments <= (int32_t)capacity->segments &&
         sends <= (uint32_t)capacity->dispatch && tasks <= capacity->tasks;
}

/* Sizes, and whether arrays may be written. Every thread that needs them has its own, since they depend on few words.
 */
DT_PHASE int dt_summary_fits(const dt_device_plan *plan, const dt_summary *s, dt_device_plan_sizes *sizes) {
  return !s->totals->wrong && !s->totals->wrong_sends && dt_summary_sizes(plan, s, sizes);
}

/* Those of the table's tasks, and once, by the block that has the least to do, as the caller sees them. */
DT_PHASE void dt_summary_decide(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  const dt_device_plan_sizes none = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  if (team->warp != team->warps - 1) return;
  DT_FOR_LANES(lane) {
    if (lane == 0) {
      s->totals->fits = dt_summary_fits(plan, s, &s->totals->sizes);
      if (team->block == team->blocks - 1) {
        *plan->sizes = s->totals->fits ? s->totals->sizes : none;
        if (!s->totals->fits) {
          dt_error_set(plan->error, s->totals->wrong || s->totals->wrong_sends ? DT_DEVICE_PLAN_ERROR_COUNTS
                                                                               : DT_DEVICE_PLAN_ERROR_CAPACITY);
        }
      }
    }
  }
}

/* Remote-first's runs. */
DT_PHASE void dt_summary_runs(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  if (s->totals->wrong || plan->config.order != DT_ORDER_REMOTE_FIRST) return;
  const int32_t junction = dt_summary_junction(plan, s);
  DT_FOR_ITEMS(r, team, plan->runs + 1) dt_summary_run(plan, s, junction, r);
}

/* D tasks before each peer by one warp; remote-first's segments by order by another. */
DT_PHASE void dt_summary_ends(const dt_device_plan *plan, const dt_summary *s, const dt_team *team) {
  const int32_t experts = plan->config.experts_per_rank, ranks = plan->config.ranks;
  if (s->totals->wrong) return;
  if (team->warp == 0 && plan->config.dispatch && dt_summary_peers(plan, s)) s->totals->wrong_sends = 1;
  if (team->warp != team->warps - 1 || plan->config.order != DT_ORDER_REMOTE_FIRST) return;
  DT_FOR_LANES(lane) {
    DT_ROLLED
    for (int32_t k = lane; k < experts; k += DT_WARP) {
      const int32_t *segment = &s->first_segment[s->order[dt_own(plan) + k] * ranks];
      s->segment_start[k] = segment[ranks] - segment[0];
    }
  }
  dt_warp_sync();
  dt_warp_scan(s->segment_start, s->segment_start, experts, 1);
}

#endif
