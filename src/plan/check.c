/* The checker: what a plan must satisfy, tested against the counts alone. It shares no arithmetic with the code that
 * builds plans, so that a mistake there does not hide itself here. */
#include <draintile/plan.h>

#include <stdlib.h>

#include "core/error.h"

#define RULE(holds, ...)                                                                                               \
  do {                                                                                                                 \
    if (!(holds)) return dt_fail(DT_ERR_INTERNAL, __VA_ARGS__);                                                        \
  } while (0)

/* A rank's rows as the definitions have them, group by group. */
typedef struct walk {
  const dt_plan_config *config;
  const int32_t *counts;
  int32_t rank, expert, step, owner;
  int64_t row, end, expert_row, rows, first_band; /* of the current group; first_band is its expert's */
} walk;

static int64_t count_of(const dt_plan_config *c, const int32_t *counts, int32_t source, int32_t rank, int32_t expert) {
  return counts[((int64_t)source * c->ranks + rank) * c->experts_per_rank + expert];
}

static walk walk_start(const dt_plan *plan, const int32_t *counts, int32_t rank) {
  walk w = {.config = &plan->config, .counts = counts, .rank = rank, .expert = -1, .step = plan->config.ranks};
  return w;
}

/* The next group that has rows; 0 after the last. */
static int walk_next(walk *w) {
  const dt_plan_config *c = w->config;
  int64_t tile_m = c->tile_m, padding;
  for (;;) {
    if (w->step == c->ranks) {
      w->first_band += (w->end - w->expert_row + tile_m - 1) / tile_m;
      w->expert_row = w->end;
      w->step = 0;
      if (++w->expert == c->experts_per_rank) return 0;
    }
    w->owner = (int32_t)(((int64_t)w->rank + ++w->step) % c->ranks);
    w->rows = count_of(c, w->counts, w->owner, w->rank, w->expert);
    w->row = w->end;
    padding = c->layout == DT_LAYOUT_ALIGNED ? (tile_m - w->rows % tile_m) % tile_m : 0;
    w->end += w->rows + padding;
    if (w->rows > 0) return 1;
  }
}

/* O[source][g] for the plan's rank. */
static int64_t combine_row(const dt_plan *plan, const int32_t *counts, int32_t source, int32_t rank, int32_t expert) {
  const dt_plan_config *c = &plan->config;
  int64_t width = (int64_t)c->ranks * c->experts_per_rank, sum = 0;
  for (int64_t g = 0; g < (int64_t)rank * c->experts_per_rank + expert; g++) sum += counts[source * width + g];
  return sum;
}

static dt_status check_groups(const dt_plan *plan, const int32_t *counts) {
  walk w = walk_start(plan, counts, plan->config.rank);
  int64_t i = 0, rows = 0;
  for (; walk_next(&w); i++) {
    RULE(i < plan->group_count, "groups: %d; expert %d of owner %d is missing", plan->group_count, w.expert, w.owner);
    const dt_group *group = &plan->groups[i];
    RULE(group->expert == w.expert && group->owner == w.owner && group->row == w.row && group->rows == w.rows,
         "group %lld: not the rows of expert %d, owner %d in row order", (long long)i, w.expert, w.owner);
    RULE(group->dst_row == combine_row(plan, counts, w.owner, plan->config.rank, w.expert),
         "group %lld: dst_row %lld is not its owner's", (long long)i, (long long)group->dst_row);
    rows += w.rows;
  }
  RULE(i == plan->group_count, "groups: %d; %lld have rows", plan->group_count, (long long)i);
  RULE(plan->rows == w.end, "rows: %lld; %lld by the counts", (long long)plan->rows, (long long)w.end);
  RULE(plan->padded_rows == w.end - rows, "padded_rows: %lld; %lld by the counts", (long long)plan->padded_rows,
       (long long)(w.end - rows));
  int64_t width = (int64_t)plan->config.ranks * plan->config.experts_per_rank, combine = 0;
  for (int64_t g = 0; g < width; g++) combine += counts[plan->config.rank * width + g];
  RULE(plan->combine_rows == combine, "combine_rows: %lld; %lld by the counts", (long long)plan->combine_rows,
       (long long)combine);
  return DT_OK;
}

static dt_status check_band(const dt_plan *plan, int64_t index, const walk *w, const dt_part *part) {
  const dt_band *band = &plan->bands[index];
  RULE(band->expert == w->expert && band->row <= part->row && part->row + part->rows <= band->row + plan->config.tile_m,
       "band %lld: does not hold its part at row %lld", (long long)index, (long long)part->row);
  RULE((band->row - w->expert_row) % plan->config.tile_m == 0 &&
           index == w->first_band + (band->row - w->expert_row) / plan->config.tile_m,
       "band %lld: row %lld is not a tile of its expert", (long long)index, (long long)band->row);
  return DT_OK;
}

/* Parts in row order follow the groups; every band is a run of them. */
static dt_status check_bands(const dt_plan *plan, const int32_t *counts) {
  walk w = walk_start(plan, counts, plan->config.rank);
  int64_t done = 0, group = -1;
  int32_t next = 0;
  for (int64_t b = 0; b < plan->band_count; b++) {
    const dt_band *band = &plan->bands[b];
    int64_t rows = 0, remote = 0;
    RULE(band->parts > 0 && band->first_part == next && band->parts <= plan->part_count - next,
         "band %lld: parts [%d, +%d) do not follow the previous band's", (long long)b, band->first_part, band->parts);
    for (int32_t p = next; p < next + band->parts; p++) {
      const dt_part *part = &plan->parts[p];
      if (group < 0 || done == w.rows) {
        RULE(walk_next(&w), "part %d: no group has its rows", p);
        done = 0;
        group++;
      }
      RULE(part->owner == w.owner && part->row == w.row + done && part->rows > 0 && part->rows <= w.rows - done,
           "part %d: not the next rows of expert %d, owner %d", p, w.expert, w.owner);
      RULE(part->dst_row == plan->groups[group].dst_row + done, "part %d: dst_row %lld; %lld by its group", p,
           (long long)part->dst_row, (long long)(plan->groups[group].dst_row + done));
      dt_status status = check_band(plan, b, &w, part);
      if (status != DT_OK) return status;
      done += part->rows;
      rows += part->rows;
      if (part->owner != plan->config.rank) remote += part->rows;
    }
    RULE(band->rows == rows && band->remote_rows == remote, "band %lld: %d rows, %d remote; its parts have %lld, %lld",
         (long long)b, band->rows, band->remote_rows, (long long)rows, (long long)remote);
    next += band->parts;
  }
  RULE(next == plan->part_count, "parts: %d; the bands hold %d", plan->part_count, next);
  RULE((group < 0 || done == w.rows) && !walk_next(&w), "bands: rows of expert %d, owner %d are in none", w.expert,
       w.owner);
  return DT_OK;
}

/* The bands of a segment are exactly those that hold its rows, and no interior run is longer or shorter than asked. */
static dt_status check_segment_bands(const dt_plan *plan, int32_t index, const dt_group *group) {
  const dt_segment *s = &plan->segments[index];
  int64_t tile_m = plan->config.tile_m;
  RULE(s->bands > 0 && s->first_band >= 0 && s->bands <= plan->band_count - s->first_band,
       "segment %d: bands [%d, +%d) are not the plan's", index, s->first_band, s->bands);
  const dt_band *first = &plan->bands[s->first_band], *last = &plan->bands[s->first_band + s->bands - 1];
  RULE(first->row <= s->row && s->row < first->row + tile_m && last->row < s->row + s->rows &&
           s->row + s->rows <= last->row + tile_m,
       "segment %d: rows [%lld, +%lld) are not in its bands", index, (long long)s->row, (long long)s->rows);
  int begins = s->row == group->row, ends = s->row + s->rows == group->row + group->rows;
  int penultimate = group->row + group->rows <= last->row + 2 * tile_m;
  int32_t most = begins || ends ? 1 : plan->config.segment_bands;
  RULE(s->bands == most || (s->bands < most && penultimate), "segment %d: %d bands; %d", index, s->bands, most);
  return DT_OK;
}

static dt_status check_segments(const dt_plan *plan) {
  int32_t next = 0;
  for (int32_t g = 0; g < plan->group_count; g++) {
    const dt_group *group = &plan->groups[g];
    if (group->owner == plan->config.rank) continue;
    for (int64_t done = 0; done < group->rows; next++) {
      RULE(next < plan->segment_count, "segments: %d; rows of expert %d, owner %d are in none", plan->segment_count,
           group->expert, group->owner);
      const dt_segment *s = &plan->segments[next];
      RULE(s->expert == group->expert && s->owner == group->owner && s->row == group->row + done && s->rows > 0 &&
               s->rows <= group->rows - done && s->dst_row == group->dst_row + done,
           "segment %d: not the next rows of expert %d, owner %d", next, group->expert, group->owner);
      dt_status status = check_segment_bands(plan, next, group);
      if (status != DT_OK) return status;
      done += s->rows;
    }
  }
  RULE(next == plan->segment_count, "segments: %d; the remote rows need %d", plan->segment_count, next);
  return DT_OK;
}

/* Marks each entry's position; seen is [count], all -1. */
static dt_status check_permutation(const char *name, const int32_t *order, int32_t count, int32_t *seen) {
  for (int32_t i = 0; i < count; i++) {
    RULE(order[i] >= 0 && order[i] < count, "%s[%d]: %d; 0 to %d", name, i, order[i], count - 1);
    RULE(seen[order[i]] < 0, "%s[%d]: %d comes twice", name, i, order[i]);
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
    RULE(before < after || (before == after && plan->segments[a].row < plan->segments[b].row),
         "segment_order[%d]: segment %d is ready before segment %d", i, b, a);
  }
  return DT_OK;
}

/* What is left to send to one expert of one peer, and where the next row of it goes. */
typedef struct route {
  int64_t src_row, row, rows, expert_row, first_band;
} route;

static void routes_find(const dt_plan *plan, const int32_t *counts, route *routes) {
  const dt_plan_config *c = &plan->config;
  for (int32_t p = 0; p < c->ranks; p++) {
    walk w = walk_start(plan, counts, p);
    while (walk_next(&w)) {
      if (w.owner != c->rank) continue;
      route *r = &routes[(int64_t)p * c->experts_per_rank + w.expert];
      r->src_row = combine_row(plan, counts, c->rank, p, w.expert);
      r->row = w.row;
      r->rows = w.rows;
      r->expert_row = w.expert_row;
      r->first_band = w.first_band;
    }
  }
}

/* routes is [ranks * experts_per_rank], all zero. */
static dt_status check_dispatch(const dt_plan *plan, const int32_t *counts, route *routes) {
  const dt_plan_config *c = &plan->config;
  int64_t tile_m = c->tile_m, width = (int64_t)c->ranks * c->experts_per_rank;
  int own = 1;
  routes_find(plan, counts, routes);
  for (int32_t i = 0; i < plan->dispatch_count; i++) {
    const dt_dispatch *d = &plan->dispatch[i];
    RULE(d->peer >= 0 && d->peer < c->ranks, "dispatch %d: peer %d; 0 to %d", i, d->peer, c->ranks - 1);
    RULE(own || d->peer != c->rank, "dispatch %d: own rows after a peer's", i);
    own = d->peer == c->rank;
    route *r = &routes[(int64_t)d->peer * c->experts_per_rank], *end = r + c->experts_per_rank;
    while (r < end && !(r->rows > 0 && r->src_row == d->src_row)) r++;
    RULE(r < end && d->rows > 0 && d->rows <= r->rows,
         "dispatch %d: rows [%lld, +%d) are not the next of an expert of rank %d", i, (long long)d->src_row, d->rows,
         d->peer);
    RULE(d->row == r->row, "dispatch %d: row %lld of rank %d; %lld by the counts", i, (long long)d->row, d->peer,
         (long long)r->row);
    int64_t offset = d->row - r->expert_row;
    RULE(d->band == r->first_band + offset / tile_m && offset % tile_m + d->rows <= tile_m,
         "dispatch %d: band %d of rank %d does not hold rows [%lld, +%d)", i, d->band, d->peer, (long long)d->row,
         d->rows);
    r->src_row += d->rows;
    r->row += d->rows;
    r->rows -= d->rows;
  }
  for (int64_t g = 0; g < width; g++) {
    RULE(!c->dispatch || routes[g].rows == 0, "dispatch: %lld rows for expert %lld are in no task",
         (long long)routes[g].rows, (long long)g);
  }
  return DT_OK;
}

/* One pass over the table: what has been seen so far decides what may follow. */
typedef struct table_walk {
  int64_t dispatch, shared, reduce;
  int32_t *l1;              /* [bands]: tiles seen */
  unsigned char *tile_seen; /* [bands * (columns_1 + columns_2)] */
  int64_t tiles;
} table_walk;

static dt_status check_tile(const dt_plan *plan, int64_t at, const dt_task *task, table_walk *t) {
  const dt_plan_config *c = &plan->config;
  int one = task->phase == DT_PHASE_L1;
  int32_t columns = one ? c->columns_1 : c->columns_2;
  RULE(task->index >= 0 && task->index < plan->band_count && task->column >= 0 && task->column < columns,
       "task %lld: %s of band %d, column %d; the plan has %d, %d", (long long)at, dt_phase_name((dt_phase)task->phase),
       task->index, task->column, plan->band_count, columns);
  int64_t tile =
      (int64_t)task->index * ((int64_t)c->columns_1 + c->columns_2) + task->column + (one ? 0 : c->columns_1);
  RULE(!t->tile_seen[tile], "task %lld: %s of band %d, column %d comes twice", (long long)at,
       dt_phase_name((dt_phase)task->phase), task->index, task->column);
  t->tile_seen[tile] = 1;
  t->tiles++;
  if (one) {
    t->l1[task->index]++;
  } else {
    RULE(t->l1[task->index] == c->columns_1, "task %lld: L2 of band %d waits for L1 tasks that come later",
         (long long)at, task->index);
  }
  RULE(t->reduce == 0, "task %lld: a tile after a reduction, which waits for all tiles", (long long)at);
  return DT_OK;
}

static dt_status check_task(const dt_plan *plan, int64_t at, table_walk *t) {
  const dt_task *task = &plan->tasks[at];
  switch (task->phase) {
  case DT_PHASE_DISPATCH:
    RULE(task->index == t->dispatch && at == t->dispatch, "task %lld: dispatch %d is not before all else, in order",
         (long long)at, task->index);
    t->dispatch++;
    return DT_OK;
  case DT_PHASE_SHARED:
    RULE(task->index == t->shared && t->tiles == 0 && t->reduce == 0,
         "task %lld: shared block %d is not between dispatch and L1, in order", (long long)at, task->index);
    t->shared++;
    return DT_OK;
  case DT_PHASE_L1:
  case DT_PHASE_L2:
    return check_tile(plan, at, task, t);
  case DT_PHASE_REDUCE:
    RULE(task->index == t->reduce, "task %lld: reduction %d; %lld is next", (long long)at, task->index,
         (long long)t->reduce);
    t->reduce++;
    return DT_OK;
  default:
    return dt_fail(DT_ERR_INTERNAL, "task %lld: phase %d is never in the table", (long long)at, task->phase);
  }
}

static dt_status check_table(const dt_plan *plan, table_walk *t) {
  const dt_plan_config *c = &plan->config;
  int64_t tiles =
      c->columns_1 > 0 && c->columns_2 > 0 ? (int64_t)plan->band_count * ((int64_t)c->columns_1 + c->columns_2) : 0;
  for (int64_t i = 0; i < plan->task_count; i++) {
    dt_status status = check_task(plan, i, t);
    if (status != DT_OK) return status;
  }
  RULE(t->dispatch == plan->dispatch_count && t->dispatch == plan->dispatch_tasks,
       "dispatch tasks: %lld in the table, %lld said, %d listed", (long long)t->dispatch,
       (long long)plan->dispatch_tasks, plan->dispatch_count);
  RULE(t->shared == c->shared_blocks, "shared tasks: %lld; %d", (long long)t->shared, c->shared_blocks);
  RULE(t->reduce == c->reduce_blocks, "reduction tasks: %lld; %d", (long long)t->reduce, c->reduce_blocks);
  RULE(t->tiles == tiles, "L1 and L2 tasks: %lld; %lld", (long long)t->tiles, (long long)tiles);
  return DT_OK;
}

static dt_status check_with(const dt_plan *plan, const int32_t *counts, int32_t *seen, route *routes, table_walk *t) {
  dt_status status = check_groups(plan, counts);
  if (status == DT_OK) status = check_bands(plan, counts);
  if (status == DT_OK) status = check_segments(plan);
  if (status == DT_OK) status = check_orders(plan, seen);
  if (status == DT_OK) status = check_dispatch(plan, counts, routes);
  if (status == DT_OK) status = check_table(plan, t);
  return status;
}

dt_status dt_plan_check(const dt_plan *plan, const int32_t *counts) {
  const dt_plan_config *c = &plan->config;
  size_t bands = (size_t)plan->band_count, entries = bands + (size_t)plan->segment_count;
  size_t columns = (size_t)c->columns_1 + (size_t)c->columns_2;
  int32_t *seen = malloc((entries + 1) * sizeof *seen);
  route *routes = calloc((size_t)c->ranks * (size_t)c->experts_per_rank, sizeof *routes);
  table_walk t = {.l1 = calloc(bands + 1, sizeof *t.l1), .tile_seen = calloc(bands * columns + 1, 1)};
  dt_status status;
  if (seen && routes && t.l1 && t.tile_seen) {
    for (size_t i = 0; i < entries; i++) seen[i] = -1;
    status = check_with(plan, counts, seen, routes, &t);
  } else {
    status = dt_fail(DT_ERR_MEMORY, "plan: no memory to check it");
  }
  free(t.tile_seen);
  free(t.l1);
  free(routes);
  free(seen);
  return status;
}
