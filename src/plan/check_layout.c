#include "check.h"

static dt_status check_groups(const dt_plan *plan, const int32_t *counts) {
  dt_walk w = dt_walk_start(plan, counts, plan->config.rank);
  int64_t i = 0, rows = 0;
  for (; dt_walk_next(&w); i++) {
    DT_RULE(i < plan->group_count, "groups: %d; expert %d of owner %d is missing", plan->group_count, w.expert,
            w.owner);
    const dt_group *group = &plan->groups[i];
    DT_RULE(group->expert == w.expert && group->owner == w.owner && group->row == w.row && group->rows == w.rows,
            "group %lld: not the rows of expert %d, owner %d in row order", (long long)i, w.expert, w.owner);
    DT_RULE(group->dst_row == dt_combine_row(plan, counts, w.owner, plan->config.rank, w.expert),
            "group %lld: dst_row %lld is not its owner's", (long long)i, (long long)group->dst_row);
    rows += w.rows;
  }
  DT_RULE(i == plan->group_count, "groups: %d; %lld have rows", plan->group_count, (long long)i);
  DT_RULE(plan->rows == w.end, "rows: %lld; %lld by the counts", (long long)plan->rows, (long long)w.end);
  DT_RULE(plan->padded_rows == w.end - rows, "padded_rows: %lld; %lld by the counts", (long long)plan->padded_rows,
          (long long)(w.end - rows));
  int64_t width = (int64_t)plan->config.ranks * plan->config.experts_per_rank, combine = 0;
  for (int64_t g = 0; g < width; g++) combine += counts[plan->config.rank * width + g];
  DT_RULE(plan->combine_rows == combine, "combine_rows: %lld; %lld by the counts", (long long)plan->combine_rows,
          (long long)combine);
  return DT_OK;
}

static dt_status check_band(const dt_plan *plan, int64_t index, const dt_walk *w, const dt_part *part) {
  const dt_band *band = &plan->bands[index];
  DT_RULE(band->expert == w->expert && band->row <= part->row &&
              part->row + part->rows <= band->row + plan->config.tile_m,
          "band %lld: does not hold its part at row %lld", (long long)index, (long long)part->row);
  DT_RULE((band->row - w->expert_row) % plan->config.tile_m == 0 &&
              index == w->first_band + (band->row - w->expert_row) / plan->config.tile_m,
          "band %lld: row %lld is not a tile of its expert", (long long)index, (long long)band->row);
  return DT_OK;
}

/* Parts in row order follow the groups; every band is a run of them. */
static dt_status check_bands(const dt_plan *plan, const int32_t *counts) {
  dt_walk w = dt_walk_start(plan, counts, plan->config.rank);
  int64_t done = 0, group = -1;
  int32_t next = 0;
  for (int64_t b = 0; b < plan->band_count; b++) {
    const dt_band *band = &plan->bands[b];
    int64_t rows = 0, remote = 0;
    DT_RULE(band->parts > 0 && band->first_part == next && band->parts <= plan->part_count - next,
            "band %lld: parts [%d, +%d) do not follow the previous band's", (long long)b, band->first_part,
            band->parts);
    for (int32_t p = next; p < next + band->parts; p++) {
      const dt_part *part = &plan->parts[p];
      if (group < 0 || done == w.rows) {
        DT_RULE(dt_walk_next(&w), "part %d: no group has its rows", p);
        done = 0;
        group++;
      }
      DT_RULE(part->owner == w.owner && part->row == w.row + done && part->rows > 0 && part->rows <= w.rows - done,
              "part %d: not the next rows of expert %d, owner %d", p, w.expert, w.owner);
      DT_RULE(part->dst_row == plan->groups[group].dst_row + done, "part %d: dst_row %lld; %lld by its group", p,
              (long long)part->dst_row, (long long)(plan->groups[group].dst_row + done));
      dt_status status = check_band(plan, b, &w, part);
      if (status != DT_OK) return status;
      done += part->rows;
      rows += part->rows;
      if (part->owner != plan->config.rank) remote += part->rows;
    }
    DT_RULE(band->rows == rows && band->remote_rows == remote,
            "band %lld: %d rows, %d remote; its parts have %lld, %lld", (long long)b, band->rows, band->remote_rows,
            (long long)rows, (long long)remote);
    next += band->parts;
  }
  DT_RULE(next == plan->part_count, "parts: %d; the bands hold %d", plan->part_count, next);
  DT_RULE((group < 0 || done == w.rows) && !dt_walk_next(&w), "bands: rows of expert %d, owner %d are in none",
          w.expert, w.owner);
  return DT_OK;
}

/* The bands of a segment are exactly those that hold its rows, and no interior run is longer or shorter than asked. */
static dt_status check_segment_bands(const dt_plan *plan, int32_t index, const dt_group *group) {
  const dt_segment *s = &plan->segments[index];
  int64_t tile_m = plan->config.tile_m;
  DT_RULE(s->bands > 0 && s->first_band >= 0 && s->bands <= plan->band_count - s->first_band,
          "segment %d: bands [%d, +%d) are not the plan's", index, s->first_band, s->bands);
  const dt_band *first = &plan->bands[s->first_band], *last = &plan->bands[s->first_band + s->bands - 1];
  DT_RULE(first->row <= s->row && s->row < first->row + tile_m && last->row < s->row + s->rows &&
              s->row + s->rows <= last->row + tile_m,
          "segment %d: rows [%lld, +%lld) are not in its bands", index, (long long)s->row, (long long)s->rows);
  int begins = s->row == group->row, ends = s->row + s->rows == group->row + group->rows;
  int penultimate = group->row + group->rows <= last->row + 2 * tile_m;
  int32_t most = begins || ends ? 1 : plan->config.segment_bands;
  DT_RULE(s->bands == most || (s->bands < most && penultimate), "segment %d: %d bands; %d", index, s->bands, most);
  return DT_OK;
}

static dt_status check_segments(const dt_plan *plan) {
  int32_t next = 0;
  for (int32_t g = 0; g < plan->group_count; g++) {
    const dt_group *group = &plan->groups[g];
    if (group->owner == plan->config.rank) continue;
    for (int64_t done = 0; done < group->rows; next++) {
      DT_RULE(next < plan->segment_count, "segments: %d; rows of expert %d, owner %d are in none", plan->segment_count,
              group->expert, group->owner);
      const dt_segment *s = &plan->segments[next];
      DT_RULE(s->expert == group->expert && s->owner == group->owner && s->row == group->row + done && s->rows > 0 &&
                  s->rows <= group->rows - done && s->dst_row == group->dst_row + done,
              "segment %d: not the next rows of expert %d, owner %d", next, group->expert, group->owner);
      dt_status status = check_segment_bands(plan, next, group);
      if (status != DT_OK) return status;
      done += s->rows;
    }
  }
  DT_RULE(next == plan->segment_count, "segments: %d; the remote rows need %d", plan->segment_count, next);
  return DT_OK;
}

/* Marks each entry's position; seen is [count], all -1. */
static dt_status check_permutation(const char *name, const int32_t *order, int32_t count, int32_t *seen) {
  for (int32_t i = 0; i < count; i++) {
    DT_RULE(order[i] >= 0 && order[i] < count, "%s[%d]: %d; 0 to %d", name, i, order[i], count - 1);
    DT_RULE(seen[order[i]] < 0, "%s[%d]: %d comes twice", name, i, order[i]);
    seen[order[i]] = i;
  }
  return DT_OK;
}

static int32_t latest(const dt_segment *segment, const int32_t *position) {
  int32_t last = 0;
  for (int32_t b = 0; b < segment->bands; b++) {
    if (position[segment->first_band + b] > last) last = position[segment->first_band + b];
  }
  return last;
}

/* seen is [band_count + segment_count], all -1. */
static dt_status check_orders(const dt_plan *plan, int32_t *seen) {
  dt_status status = check_permutation("band_order", plan->band_order, plan->band_count, seen);
  if (status == DT_OK) {
    status = check_permutation("segment_order", plan->segment_order, plan->segment_count, seen + plan->band_count);
  }
  if (status != DT_OK) return status;
  for (int32_t i = 1; i < plan->segment_count; i++) {
    int32_t a = plan->segment_order[i - 1], b = plan->segment_order[i];
    int32_t before = latest(&plan->segments[a], seen), after = latest(&plan->segments[b], seen);
    DT_RULE(before < after || (before == after && plan->segments[a].row < plan->segments[b].row),
            "segment_order[%d]: segment %d is ready before segment %d", i, b, a);
  }
  return DT_OK;
}

dt_status dt_check_layout(const dt_plan *plan, const int32_t *counts, int32_t *seen) {
  dt_status status = check_groups(plan, counts);
  if (status == DT_OK) status = check_bands(plan, counts);
  if (status == DT_OK) status = check_segments(plan);
  if (status == DT_OK) status = check_orders(plan, seen);
  return status;
}
