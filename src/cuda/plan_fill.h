/* Every entry of the plan's arrays but L1 and L2 tasks, from its position and the summary. */
#ifndef DT_CUDA_PLAN_FILL_H
#define DT_CUDA_PLAN_FILL_H

#include "plan_measure.h"
#include "plan_paced.h"

/* Bands of this rank's expert e. */
DT_PHASE int32_t dt_expert_bands(const dt_device_plan *plan, const dt_summary *s, int32_t e) {
  const int32_t *first = &s->first_band[dt_own(plan) + e];
  return first[1] - first[0];
}

DT_PHASE int32_t dt_fill_band_at(const dt_device_plan *plan, const dt_summary *s, int32_t position) {
  const int32_t experts = plan->config.experts_per_rank, own = dt_own(plan);
  if (plan->config.order == DT_ORDER_NATURAL) return position;
  if (plan->config.order == DT_ORDER_PACED) {
    const int32_t e = dt_last_by_steps(&s->first_band[own], experts, position), first = s->first_band[own + e];
    const int32_t remote = s->remote_bands[own + e];
    return first + dt_paced_band(remote, dt_expert_bands(plan, s, e) - remote, position - first);
  }
  const int32_t local = position >= s->remote_start[experts];
  const int32_t *start = local ? s->local_start : s->remote_start;
  if (local) position -= s->remote_start[experts];
  const int32_t k = dt_last_by_steps(start, experts, position), x = own + s->order[own + k];
  return s->first_band[x] + (local ? s->remote_bands[x] : 0) + position - start[k];
}

DT_PHASE void dt_fill_group(const dt_device_plan *plan, const dt_summary *s, int32_t index) {
  const int32_t experts = plan->config.experts_per_rank, width = plan->config.ranks * experts;
  const int32_t j = dt_last_by_steps(s->first_group, width, index);
  const dt_group_place at = dt_group_at(plan, s, j);
  dt_group *group = &plan->arrays.groups[index];
  group->expert = at.expert;
  group->owner = at.owner;
  group->row = s->row[dt_own(plan) + at.expert] + at.offset;
  group->rows = at.rows;
  group->dst_row = dt_slots_before(plan, s, at.owner, plan->config.rank * experts + at.expert);
}

/* The band whose first row is in group j, at offset `from` of the expert; its first part is `part`. */
DT_PHASE void dt_fill_band(const dt_device_plan *plan, const dt_summary *s, int32_t j, int32_t from, int32_t part) {
  const int32_t ranks = plan->config.ranks, tile_m = plan->config.tile_m, expert = dt_divide(plan->by_ranks, j);
  const int32_t x = dt_own(plan) + expert, index = dt_divide(plan->by_tile, from);
  dt_band band;
  band.expert = expert;
  band.first_part = part;
  band.row = (int64_t)s->row[x] + from;
  if (plan->config.layout == DT_LAYOUT_ALIGNED) { /* of one owner */
    const dt_group_place group = dt_group_at(plan, s, j);
    band.rows = dt_min32(tile_m, group.offset + group.rows - from);
    band.remote_rows = group.remote ? band.rows : 0;
    band.parts = 1;
  } else {
    const int32_t left = s->row[x + 1] - s->row[x] - from, remote = s->offset[x] - from;
    band.rows = dt_min32(tile_m, left);
    band.remote_rows = dt_min32(band.rows, dt_max32(remote, 0));
    /* Until the last group that begins before the band's end. */
    const int32_t last =
        expert * ranks + dt_last_by_steps(&s->group_offset[expert * ranks], ranks, from + band.rows - 1);
    const int32_t parts = index - dt_divide(plan->by_tile, s->group_offset[last]) + 1;
    band.parts = dt_min32(s->first_part[last] + parts, s->first_part[last + 1]) - part;
  }
  plan->arrays.bands[s->first_band[x] + index] = band;
}

/* Part `index`, and its band if the part begins it. */
DT_PHASE void dt_fill_part(const dt_device_plan *plan, const dt_summary *s, int32_t index) {
  const int32_t experts = plan->config.experts_per_rank, width = plan->config.ranks * experts;
  const int32_t tile_m = plan->config.tile_m, j = dt_last_by_steps(s->first_part, width, index);
  const dt_group_place group = dt_group_at(plan, s, j);
  const int32_t k = index - s->first_part[j], band = dt_divide(plan->by_tile, group.offset) + k;
  const int32_t from = k == 0 ? group.offset : band * tile_m;
  const int64_t end = dt_min64((int64_t)group.offset + group.rows, ((int64_t)band + 1) * tile_m);
  dt_part part;
  part.owner = group.owner;
  part.rows = (int32_t)(end - from);
  part.row = (int64_t)s->row[dt_own(plan) + group.expert] + from;
  part.dst_row =
      dt_slots_before(plan, s, group.owner, plan->config.rank * experts + group.expert) + (from - group.offset);
  plan->arrays.parts[index] = part;
  if (from == band * tile_m) dt_fill_band(plan, s, j, from, index);
}

DT_PHASE void dt_fill_segment(const dt_device_plan *plan, const dt_summary *s, int32_t index) {
  const int32_t experts = plan->config.experts_per_rank, width = plan->config.ranks * experts;
  const int32_t tile_m = plan->config.tile_m, j = dt_last_by_steps(s->first_segment, width, index);
  const dt_group_place group = dt_group_at(plan, s, j);
  const int32_t k = index - s->first_segment[j], last = s->first_segment[j + 1] - s->first_segment[j] - 1;
  const int32_t low = dt_divide(plan->by_tile, group.offset);
  const int32_t high = dt_divide(plan->by_tile, group.offset + group.rows - 1), x = dt_own(plan) + group.expert;
  int32_t band = low, bands = 1;
  if (k > 0 && k == last) band = high;
  if (k > 0 && k < last) {
    band = low + 1 + (k - 1) * plan->segment_bands;
    bands = dt_min32(plan->segment_bands, high - band);
  }
  const int32_t from = k == 0 ? group.offset : band * tile_m;
  const int64_t end = dt_min64((int64_t)group.offset + group.rows, ((int64_t)band + bands) * tile_m);
  dt_segment segment;
  segment.expert = group.expert;
  segment.owner = group.owner;
  segment.row = (int64_t)s->row[x] + from;
  segment.rows = end - from;
  segment.dst_row =
      dt_slots_before(plan, s, group.owner, plan->config.rank * experts + group.expert) + (from - group.offset);
  segment.first_band = s->first_band[x] + band;
  segment.bands = bands;
  plan->arrays.segments[index] = segment;
}

/* In every order an expert's remote bands ascend and are not mixed with those of others, so segments come expert by
 * expert as they are listed. */
DT_PHASE int32_t dt_fill_segment_at(const dt_device_plan *plan, const dt_summary *s, int32_t position) {
  if (plan->config.order != DT_ORDER_REMOTE_FIRST) return position;
  const int32_t k = dt_last_by_steps(s->segment_start, plan->config.experts_per_rank, position);
  const int32_t e = s->order[dt_own(plan) + k];
  return s->first_segment[e * plan->config.ranks] + position - s->segment_start[k];
}

/* Own rows in the expert's band of that index. */
DT_PHASE void dt_fill_own_send(const dt_device_plan *plan, const dt_summary *s, int32_t index, int32_t e,
                               int32_t band) {
  const int32_t rank = plan->config.rank, experts = plan->config.experts_per_rank, x = dt_own(plan) + e;
  const int32_t g = rank * experts + e;
  const int32_t offset = s->offset[x], rows = dt_slots_of(plan, s, rank, g);
  const int32_t from = dt_max32(offset, band * plan->config.tile_m);
  dt_dispatch send;
  send.peer = rank;
  send.band = s->first_band[x] + band;
  send.rows = (int32_t)dt_min64((int64_t)offset + rows, ((int64_t)band + 1) * plan->config.tile_m) - from;
  send.row = (int64_t)s->row[x] + from;
  send.src_row = dt_slots_before(plan, s, rank, g) + (from - offset);
  plan->arrays.dispatch[index] = send;
}

/* Own rows in the band order: all local-only bands hold some, and of the remote bands at most the last. */
DT_PHASE void dt_fill_own(const dt_device_plan *plan, const dt_summary *s, int32_t index) {
  const int32_t experts = plan->config.experts_per_rank, own = dt_own(plan);
  const int32_t late = plan->config.order == DT_ORDER_REMOTE_FIRST && index >= s->own_start[experts];
  const int32_t *start = late ? s->local_start : s->own_start;
  const int32_t at = late ? index - s->own_start[experts] : index;
  const int32_t k = dt_last_by_steps(start, experts, at), e = s->order[own + k], i = at - start[k];
  const int32_t remote = s->remote_bands[own + e], local = dt_expert_bands(plan, s, e) - remote;
  int32_t band = (late ? remote : remote - 1) + i; /* remote-first */
  if (plan->config.order != DT_ORDER_REMOTE_FIRST) {
    const int32_t mixed = start[k + 1] - start[k] > local; /* the last remote band has own rows too */
    band = remote - mixed + i;
    if (mixed && plan->config.order == DT_ORDER_PACED) {
      const int32_t before = dt_paced_local_before(remote, local, remote - 1);
      if (i < before) {
        band = remote + i;
      } else if (i == before) {
        band = remote - 1;
      }
    }
  }
  dt_fill_own_send(plan, s, index, e, band);
}

/* D tasks of peers, counted peer after peer: task t of a peer comes in turn t of all peers that still have one. */
DT_PHASE void dt_fill_send(const dt_device_plan *plan, const dt_summary *s, int32_t index) {
  const int32_t experts = plan->config.experts_per_rank, peers = plan->config.ranks - 1;
  const int32_t place = dt_last_by_steps(s->peer_sends, peers, index), t = index - s->peer_sends[place];
  const int32_t peer = dt_ring_owner(plan, plan->config.rank, place), base = peer * plan->expert_list;
  const int32_t k = dt_last_by_steps(&s->sends[base], experts, t), e = s->order[base + k], g = peer * experts + e;
  const int32_t rank = plan->config.rank, tile_m = plan->config.tile_m;
  const int32_t offset = s->offset[base + e], rows = dt_slots_of(plan, s, rank, g);
  const int32_t first = dt_divide(plan->by_tile, offset), band = first + t - s->sends[base + k];
  const int32_t from = band == first ? offset : band * tile_m;
  int32_t to = dt_summary_own_sends(plan, s);
  DT_UNROLL_BY(4)
  for (int32_t other = 0; other < peers; other++) {
    const int32_t count = s->peer_sends[other + 1] - s->peer_sends[other];
    to += dt_min32(count, t) + (other < place && count > t);
  }
  dt_dispatch send;
  send.peer = peer;
  send.band = s->first_band[base + e] + band;
  send.rows = (int32_t)dt_min64((int64_t)offset + rows, ((int64_t)band + 1) * tile_m) - from;
  send.row = (int64_t)s->row[base + e] + from;
  send.src_row = dt_slots_before(plan, s, rank, g) + (from - offset);
  plan->arrays.dispatch[to] = send;
}

/* Entry `index` of all arrays one behind another, so that every thread has about one to write. */
DT_PHASE void dt_fill_entry(const dt_device_plan *plan, const dt_summary *s, const dt_device_plan_sizes *sizes,
                            int32_t index) {
  const int32_t shared = plan->config.shared_blocks, own = dt_summary_own_sends(plan, s);
  if (index < sizes->part_count) return dt_fill_part(plan, s, index);
  index -= sizes->part_count;
  if (index < sizes->segment_count) return dt_fill_segment(plan, s, index);
  index -= sizes->segment_count;
  if (index < sizes->group_count) return dt_fill_group(plan, s, index);
  index -= sizes->group_count;
  if (index < sizes->band_count) {
    plan->arrays.band_order[index] = dt_fill_band_at(plan, s, index);
    return;
  }
  index -= sizes->band_count;
  if (index < sizes->segment_count) {
    plan->arrays.segment_order[index] = dt_fill_segment_at(plan, s, index);
    return;
  }
  index -= sizes->segment_count;
  if (index < sizes->dispatch_count) {
    if (index < own) {
      dt_fill_own(plan, s, index);
    } else {
      dt_fill_send(plan, s, index - own);
    }
    dt_task_set(&plan->arrays.tasks[index], DT_PHASE_DISPATCH, index, 0);
    return;
  }
  index -= sizes->dispatch_count;
  if (index < shared) {
    dt_task_set(&plan->arrays.tasks[sizes->dispatch_tasks + index], DT_PHASE_SHARED, index, 0);
    return;
  }
  index -= shared;
  dt_task_set(&plan->arrays.tasks[sizes->task_count - plan->config.reduce_blocks + index], DT_PHASE_REDUCE, index, 0);
}

/* All arrays but L1 and L2 tasks. The last warps begin: the first have a task to write. */
DT_PHASE void dt_fill(const dt_device_plan *plan, const dt_summary *s, const dt_team *team,
                      const dt_device_plan_sizes *sizes) {
  const int32_t count = sizes->part_count + 2 * sizes->segment_count + sizes->group_count + sizes->band_count +
                        sizes->dispatch_count + plan->config.shared_blocks + plan->config.reduce_blocks;
  DT_FOR_ALL_ITEMS_BACKWARD(i, team, count) dt_fill_entry(plan, s, sizes, i);
}

#endif
