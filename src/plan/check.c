/* What a plan must satisfy, tested against the counts alone; here dispatch, the table and its waits. */
#include <draintile/plan.h>

#include <stdlib.h>

#include "check.h"

/* The rows for one expert of one peer: here, there, and where the expert begins there. */
typedef struct route {
  int64_t src_row, row, rows, expert_row, first_band;
} route;

static void routes_find(const dt_plan *plan, const int32_t *counts, route *routes) {
  const dt_plan_config *c = &plan->config;
  for (int32_t p = 0; p < c->ranks; p++) {
    dt_walk w = dt_walk_start(plan, counts, p);
    while (dt_walk_next(&w)) {
      if (w.owner != c->rank) continue;
      route *r = &routes[(int64_t)p * c->experts_per_rank + w.expert];
      r->src_row = dt_combine_row(plan, counts, c->rank, p, w.expert);
      r->row = w.row;
      r->rows = w.rows;
      r->expert_row = w.expert_row;
      r->first_band = w.first_band;
    }
  }
}

static dt_status check_dispatch_task(const dt_plan *plan, int32_t index, const route *routes, unsigned char *sent) {
  const dt_plan_config *c = &plan->config;
  const dt_dispatch *d = &plan->dispatch[index];
  DT_RULE(d->peer >= 0 && d->peer < c->ranks, "dispatch %d: peer %d; 0 to %d", index, d->peer, c->ranks - 1);
  const route *r = &routes[(int64_t)d->peer * c->experts_per_rank], *end = r + c->experts_per_rank;
  while (r < end && (d->src_row < r->src_row || d->src_row >= r->src_row + r->rows)) r++;
  DT_RULE(r < end && d->rows > 0 && d->src_row + d->rows <= r->src_row + r->rows,
          "dispatch %d: rows [%lld, +%d) are not for one expert of rank %d", index, (long long)d->src_row, d->rows,
          d->peer);
  int64_t row = r->row + (d->src_row - r->src_row), offset = row - r->expert_row, tile_m = c->tile_m;
  DT_RULE(d->row == row, "dispatch %d: row %lld of rank %d; %lld by the counts", index, (long long)d->row, d->peer,
          (long long)row);
  DT_RULE(d->band == r->first_band + offset / tile_m && offset % tile_m + d->rows <= tile_m,
          "dispatch %d: band %d of rank %d does not hold rows [%lld, +%d)", index, d->band, d->peer, (long long)d->row,
          d->rows);
  for (int64_t i = d->src_row; i < d->src_row + d->rows; i++) {
    DT_RULE(!sent[i], "dispatch %d: row %lld is sent twice", index, (long long)i);
    sent[i] = 1;
  }
  return DT_OK;
}

/* routes is [ranks * experts_per_rank], sent [combine_rows], all zero. */
static dt_status check_dispatch(const dt_plan *plan, const int32_t *counts, route *routes, unsigned char *sent) {
  const dt_plan_config *c = &plan->config;
  int own = 1;
  routes_find(plan, counts, routes);
  for (int32_t i = 0; i < plan->dispatch_count; i++) {
    dt_status status = check_dispatch_task(plan, i, routes, sent);
    if (status != DT_OK) return status;
    DT_RULE(own || plan->dispatch[i].peer != c->rank, "dispatch %d: own rows after a peer's", i);
    own = plan->dispatch[i].peer == c->rank;
  }
  for (int64_t i = 0; c->dispatch && i < plan->combine_rows; i++) {
    DT_RULE(sent[i], "dispatch: row %lld is in no task", (long long)i);
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
  DT_RULE(task->index >= 0 && task->index < plan->band_count && task->column >= 0 && task->column < columns,
          "task %lld: %s of band %d, column %d; the plan has %d, %d", (long long)at,
          dt_phase_name((dt_phase)task->phase), task->index, task->column, plan->band_count, columns);
  int64_t tile =
      (int64_t)task->index * ((int64_t)c->columns_1 + c->columns_2) + task->column + (one ? 0 : c->columns_1);
  DT_RULE(!t->tile_seen[tile], "task %lld: %s of band %d, column %d comes twice", (long long)at,
          dt_phase_name((dt_phase)task->phase), task->index, task->column);
  t->tile_seen[tile] = 1;
  t->tiles++;
  if (one) {
    t->l1[task->index]++;
  } else {
    DT_RULE(t->l1[task->index] == c->columns_1, "task %lld: L2 of band %d waits for L1 tasks that come later",
            (long long)at, task->index);
  }
  DT_RULE(t->reduce == 0, "task %lld: a tile after a reduction, which waits for all tiles", (long long)at);
  return DT_OK;
}

static dt_status check_task(const dt_plan *plan, int64_t at, table_walk *t) {
  const dt_task *task = &plan->tasks[at];
  switch (task->phase) {
  case DT_PHASE_DISPATCH:
    DT_RULE(task->index == t->dispatch && at == t->dispatch, "task %lld: dispatch %d is not before all else, in order",
            (long long)at, task->index);
    t->dispatch++;
    return DT_OK;
  case DT_PHASE_SHARED:
    DT_RULE(task->index == t->shared && t->tiles == 0 && t->reduce == 0,
            "task %lld: shared block %d is not between dispatch and L1, in order", (long long)at, task->index);
    t->shared++;
    return DT_OK;
  case DT_PHASE_L1:
  case DT_PHASE_L2:
    return check_tile(plan, at, task, t);
  case DT_PHASE_REDUCE:
    DT_RULE(task->index == t->reduce, "task %lld: reduction %d; %lld is next", (long long)at, task->index,
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
  DT_RULE(t->dispatch == plan->dispatch_count && t->dispatch == plan->dispatch_tasks,
          "dispatch tasks: %lld in the table, %lld said, %d listed", (long long)t->dispatch,
          (long long)plan->dispatch_tasks, plan->dispatch_count);
  DT_RULE(t->shared == c->shared_blocks, "shared tasks: %lld; %d", (long long)t->shared, c->shared_blocks);
  DT_RULE(t->reduce == c->reduce_blocks, "reduction tasks: %lld; %d", (long long)t->reduce, c->reduce_blocks);
  DT_RULE(t->tiles == tiles, "L1 and L2 tasks: %lld; %lld", (long long)t->tiles, (long long)tiles);
  return DT_OK;
}

static dt_status check_with(const dt_plan *plan, const int32_t *counts, int32_t *seen, route *routes,
                            unsigned char *sent, table_walk *t) {
  dt_status status = dt_check_layout(plan, counts, seen);
  if (status == DT_OK) status = check_dispatch(plan, counts, routes, sent);
  if (status == DT_OK) status = check_table(plan, t);
  return status;
}

dt_status dt_plan_check(const dt_plan *plan, const int32_t *counts) {
  const dt_plan_config *c = &plan->config;
  size_t bands = (size_t)plan->band_count, entries = bands + (size_t)plan->segment_count;
  size_t columns = (size_t)c->columns_1 + (size_t)c->columns_2;
  int32_t *seen = malloc((entries + 1) * sizeof *seen);
  route *routes = calloc((size_t)c->ranks * (size_t)c->experts_per_rank, sizeof *routes);
  unsigned char *sent = calloc((size_t)dt_combine_row(plan, counts, c->rank, c->ranks, 0) + 1, 1);
  table_walk t = {.l1 = calloc(bands + 1, sizeof *t.l1), .tile_seen = calloc(bands * columns + 1, 1)};
  dt_status status;
  if (seen && routes && sent && t.l1 && t.tile_seen) {
    for (size_t i = 0; i < entries; i++) seen[i] = -1;
    status = check_with(plan, counts, seen, routes, sent, &t);
  } else {
    status = dt_fail(DT_ERR_MEMORY, "plan: no memory to check it");
  }
  free(t.tile_seen);
  free(t.l1);
  free(sent);
  free(routes);
  free(seen);
  return status;
}
