/* From counts to rows: experts, groups, bands, parts, segments of one rank.
 *
 * Within an expert the owners follow in ring order and the rank itself comes last, so the bands that hold remote rows
 * are always the expert's first ones. Orders and dispatch rely on that. */
#ifndef DT_PLAN_LAYOUT_H
#define DT_PLAN_LAYOUT_H

#include <draintile/plan.h>

#include "pure.h"

typedef struct dt_shape {
  const int32_t *counts; /* [ranks][ranks*experts] */
  int32_t ranks, experts, tile_m, segment_bands;
  int32_t aligned; /* 0: packed */
} dt_shape;

/* What one expert takes at its rank, and where: sizes by dt_expert_measure, first_* by dt_experts_place. int64, so that
 * sizes which the plan's int32 indices cannot hold are seen before anything is built. */
typedef struct dt_expert_layout {
  int64_t rows, span; /* valid rows; memory rows, padding included */
  int64_t bands, remote_bands, groups, parts, segments;
  int64_t row, first_band, first_group, first_part, first_segment;
} dt_expert_layout;

DT_HD static inline dt_shape dt_shape_of(const dt_plan_config *config, const int32_t *counts) {
  dt_shape shape;
  shape.counts = counts;
  shape.ranks = config->ranks;
  shape.experts = config->experts_per_rank;
  shape.tile_m = config->tile_m;
  shape.segment_bands = config->segment_bands;
  shape.aligned = config->layout == DT_LAYOUT_ALIGNED;
  return shape;
}

DT_HD static inline int64_t dt_count(const dt_shape *shape, int32_t source, int32_t rank, int32_t expert) {
  return shape->counts[((int64_t)source * shape->ranks + rank) * shape->experts + expert];
}

/* Memory rows of a group. Only the aligned layout pads. */
DT_HD static inline int64_t dt_group_span(const dt_shape *shape, int64_t rows) {
  return shape->aligned ? dt_ceil_div(rows, shape->tile_m) * shape->tile_m : rows;
}

/* Bands that rows [offset, offset + rows) of an expert touch; rows >= 1. */
DT_HD static inline int64_t dt_bands_touched(const dt_shape *shape, int64_t offset, int64_t rows) {
  return (offset + rows - 1) / shape->tile_m - offset / shape->tile_m + 1;
}

DT_HD static inline int64_t dt_group_segments(const dt_shape *shape, int64_t bands) {
  return bands <= 2 ? bands : 2 + dt_ceil_div(bands - 2, shape->segment_bands);
}

/* First row of owner's group within the expert. */
DT_HD static inline int64_t dt_group_offset(const dt_shape *shape, int32_t rank, int32_t expert, int32_t owner) {
  int64_t offset = 0;
  for (int32_t s = (rank + 1) % shape->ranks; s != owner; s = (s + 1) % shape->ranks) {
    offset += dt_group_span(shape, dt_count(shape, s, rank, expert));
  }
  return offset;
}

DT_HD static inline void dt_expert_measure(const dt_shape *shape, int32_t rank, int32_t expert, dt_expert_layout *out) {
  out->rows = out->span = out->groups = out->parts = out->segments = out->remote_bands = 0;
  for (int32_t i = 1; i <= shape->ranks; i++) {
    int32_t owner = (int32_t)(((int64_t)rank + i) % shape->ranks);
    int64_t rows = dt_count(shape, owner, rank, expert);
    if (i == shape->ranks) out->remote_bands = dt_ceil_div(out->span, shape->tile_m);
    if (rows == 0) continue;
    int64_t touched = dt_bands_touched(shape, out->span, rows);
    out->groups++;
    out->parts += touched;
    if (owner != rank) out->segments += dt_group_segments(shape, touched);
    out->rows += rows;
    out->span += dt_group_span(shape, rows);
  }
  out->bands = dt_ceil_div(out->span, shape->tile_m);
}

/* Prefix sums over a rank's experts; *total receives the rank's own sizes. */
DT_HD static inline void dt_experts_place(int32_t experts, dt_expert_layout *out, dt_expert_layout *total) {
  dt_expert_layout sum = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  for (int32_t e = 0; e < experts; e++) {
    out[e].row = sum.span;
    out[e].first_band = sum.bands;
    out[e].first_group = sum.groups;
    out[e].first_part = sum.parts;
    out[e].first_segment = sum.segments;
    sum.rows += out[e].rows;
    sum.span += out[e].span;
    sum.bands += out[e].bands;
    sum.remote_bands += out[e].remote_bands;
    sum.groups += out[e].groups;
    sum.parts += out[e].parts;
    sum.segments += out[e].segments;
  }
  *total = sum;
}

DT_HD static inline void dt_rank_measure(const dt_shape *shape, int32_t rank, dt_expert_layout *out,
                                         dt_expert_layout *total) {
  for (int32_t e = 0; e < shape->experts; e++) dt_expert_measure(shape, rank, e, &out[e]);
  dt_experts_place(shape->experts, out, total);
}

/* The segments of one remote group: first and last band alone, interior bands segment_bands at a time. `first` is the
 * row of the expert, `base` its first band. Returns how many were written. */
DT_HD static inline int64_t dt_group_cut(const dt_shape *shape, const dt_group *group, int64_t first, int64_t base,
                                         dt_segment *segments) {
  int64_t tile_m = shape->tile_m, end = group->row + group->rows, n = 0;
  int64_t low = (group->row - first) / tile_m, high = (end - 1 - first) / tile_m;
  for (int64_t band = low; band <= high;) {
    int64_t bands = band == low || band == high ? 1 : dt_min64(shape->segment_bands, high - band);
    int64_t from = first + band * tile_m, to = dt_min64(end, from + bands * tile_m);
    dt_segment *segment = &segments[n++];
    if (from < group->row) from = group->row;
    segment->expert = group->expert;
    segment->owner = group->owner;
    segment->row = from;
    segment->rows = to - from;
    segment->dst_row = group->dst_row + (from - group->row);
    segment->first_band = (int32_t)(base + band);
    segment->bands = (int32_t)bands;
    band += bands;
  }
  return n;
}

/* The parts of one group, appended in row order, which is also the order of bands: a band's parts end up adjacent. */
DT_HD static inline int64_t dt_group_parts(const dt_shape *shape, int32_t rank, const dt_group *group,
                                           const dt_expert_layout *expert, int64_t first_part, dt_band *bands,
                                           dt_part *parts) {
  int64_t tile_m = shape->tile_m, n = 0;
  for (int64_t done = 0; done < group->rows;) {
    int64_t offset = group->row + done - expert->row, index = offset / tile_m;
    int64_t rows = dt_min64(group->rows - done, tile_m - offset % tile_m);
    dt_band *band = &bands[expert->first_band + index];
    dt_part *part = &parts[first_part + n];
    /* No band has padding in front, so the part at a band's first row is the first to touch it. */
    if (offset % tile_m == 0) {
      band->expert = group->expert;
      band->rows = band->remote_rows = band->parts = 0;
      band->first_part = (int32_t)(first_part + n);
      band->row = expert->row + index * tile_m;
    }
    part->owner = group->owner;
    part->rows = (int32_t)rows;
    part->row = group->row + done;
    part->dst_row = group->dst_row + done;
    band->rows += (int32_t)rows;
    if (group->owner != rank) band->remote_rows += (int32_t)rows;
    band->parts++;
    done += rows;
    n++;
  }
  return n;
}

/* Groups, bands, parts and segments of one expert. dst_rows[s] is O[s][g] of this expert. Experts are independent of
 * one another. */
DT_HD static inline void dt_expert_fill(const dt_shape *shape, int32_t rank, int32_t index,
                                        const dt_expert_layout *expert, const int64_t *dst_rows, dt_group *groups,
                                        dt_band *bands, dt_part *parts, dt_segment *segments) {
  int64_t row = expert->row, part = expert->first_part, segment = expert->first_segment, n = expert->first_group;
  for (int32_t i = 1; i <= shape->ranks; i++) {
    int32_t owner = (int32_t)(((int64_t)rank + i) % shape->ranks);
    int64_t rows = dt_count(shape, owner, rank, index);
    if (rows == 0) continue;
    dt_group *group = &groups[n++];
    group->expert = index;
    group->owner = owner;
    group->row = row;
    group->rows = rows;
    group->dst_row = dst_rows[owner];
    part += dt_group_parts(shape, rank, group, expert, part, bands, parts);
    if (owner != rank) segment += dt_group_cut(shape, group, expert->row, expert->first_band, &segments[segment]);
    row += dt_group_span(shape, rows);
  }
}

/* O[s][rank*E + 0] of every source. dt_layout_fill advances it over the experts. */
DT_HD static inline void dt_dst_rows(const dt_shape *shape, int32_t rank, int64_t *dst_rows) {
  int64_t before = (int64_t)rank * shape->experts, width = (int64_t)shape->ranks * shape->experts;
  for (int32_t s = 0; s < shape->ranks; s++) {
    int64_t sum = 0;
    for (int64_t g = 0; g < before; g++) sum += shape->counts[s * width + g];
    dst_rows[s] = sum;
  }
}

/* Everything of one rank, expert after expert. dst_rows is scratch of [ranks]. */
DT_HD static inline void dt_layout_fill(const dt_shape *shape, int32_t rank, const dt_expert_layout *experts,
                                        int64_t *dst_rows, dt_group *groups, dt_band *bands, dt_part *parts,
                                        dt_segment *segments) {
  dt_dst_rows(shape, rank, dst_rows);
  for (int32_t e = 0; e < shape->experts; e++) {
    dt_expert_fill(shape, rank, e, &experts[e], dst_rows, groups, bands, parts, segments);
    for (int32_t s = 0; s < shape->ranks; s++) dst_rows[s] += dt_count(shape, s, rank, e);
  }
}

#endif
