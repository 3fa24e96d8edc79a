/* The table of a layer's L1 and L2 tasks, in the order of the device's (src/cuda/moe_plan.h). */
#include "layer.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "plan/order.h"

typedef struct layer_run {
  int32_t expert, rows, first_band, l1, columns, short_alone;
  const int32_t *entry; /* its bands in their order; NULL: ascending */
} layer_run;

static layer_task band_task(const layer_run *run, int32_t entry, int32_t next_entry) {
  const int32_t band = run->entry ? run->entry[entry] : entry, next = run->entry ? run->entry[next_entry] : next_entry;
  const int32_t left = run->rows - band * LAYER_BAND, left_next = run->rows - next * LAYER_BAND;
  return (layer_task){.expert = run->expert,
                      .l1 = run->l1,
                      .pair = band != next,
                      .band = {run->first_band + band, run->first_band + next},
                      .rows = {left < LAYER_BAND ? left : LAYER_BAND, left_next < LAYER_BAND ? left_next : LAYER_BAND}};
}

/* Writes the tasks of a unit's bands, two columns at a time; returns how many. to: NULL counts them. */
static int32_t unit_tasks(const layer_run *run, int32_t first, int32_t pairs, int32_t singles, layer_task *to) {
  int32_t count = 0;
  for (int32_t column = 0; column < run->columns; column += 2) {
    const int32_t two = run->columns - column > 1 ? 2 : 1;
    for (int32_t i = 0; i < two * pairs; i++, count++) {
      if (!to) continue;
      to[count] = band_task(run, first + 2 * (i % pairs), first + 2 * (i % pairs) + 1);
      to[count].column[0] = to[count].column[1] = column + i / pairs;
    }
    for (int32_t i = 0; i < singles; i++, count++) {
      if (!to) continue;
      to[count] = band_task(run, first + 2 * pairs + i, first + 2 * pairs + i);
      to[count].column[0] = column;
      to[count].column[1] = two == 2 ? column + 1 : -1;
    }
  }
  return count;
}

static int32_t run_tasks(const layer_run *run, int32_t raster_bands, layer_task *to) {
  const int32_t bands = layer_divide_up(run->rows, LAYER_BAND);
  int32_t count = 0;
  for (int32_t first = 0; first < bands; first += raster_bands) {
    const int32_t left = bands - first, unit = left < raster_bands ? left : raster_bands;
    const int32_t last_rows = run->rows - (bands - 1) * LAYER_BAND;
    const int32_t alone = run->short_alone && unit == left && last_rows <= LAYER_SHORT;
    const int32_t pairs = (unit - alone) / 2;
    count += unit_tasks(run, first, pairs, unit - 2 * pairs, to ? to + count : NULL);
  }
  return count;
}

static int remote_first(const layer_world *world) {
  return world->order.order == DT_ORDER_REMOTE_FIRST;
}
static int32_t runs_of(const layer_world *world) {
  return remote_first(world) ? 2 * world->experts : world->experts;
}
/* With dedup an expert's early and late bands count as one. */
static int32_t l1_runs_of(const layer_world *world) {
  return layer_dedups(world) ? world->experts : runs_of(world);
}

/* Run `index`: an expert, or remote-first its bands with rows of other ranks or its others. */
static layer_run run_at(const layer_world *world, int32_t index, int32_t l1, const layer_table *table,
                        const int32_t *rows) {
  const int waves = world->order.wave_experts > 0;
  const int32_t half = waves ? index % 2 : index / world->experts;
  const int32_t expert = remote_first(world) ? table->sorted[waves ? index / 2 : index % world->experts] : index;
  layer_run run = {expert,
                   rows[expert],
                   table->first_band[expert],
                   l1,
                   l1 ? world->columns_1 : world->columns_2,
                   world->model->short_bands_alone,
                   world->order.order == DT_ORDER_PACED ? table->entry + table->first_band[expert] : NULL};
  if (!remote_first(world)) return run;
  const int32_t most = table->remote[expert] * LAYER_BAND, remote = most < run.rows ? most : run.rows;
  run.rows = half == 0 ? remote : run.rows - remote;
  if (half == 1) run.first_band += table->remote[expert];
  return run;
}

void layer_half(const layer_world *world, int32_t self, int32_t expert, int32_t early, int32_t *first_band,
                int32_t *rows) {
  int32_t all = 0;
  for (int32_t source = 0; source < world->model->ranks; source++) all += layer_count(world, source, self, expert);
  const int32_t bands = layer_divide_up(all, LAYER_BAND);
  int32_t cut = layer_divide_up(all - layer_count(world, self, self, expert), LAYER_BAND);
  if (cut % 2 != 0 && (bands - cut) % 2 != 0 && world->columns_1 % 2 != 0) cut++;
  const int32_t upper = cut * LAYER_BAND < all ? cut * LAYER_BAND : all;
  *first_band = early ? cut : 0;
  *rows = early ? all - upper : upper;
}

/* How many experts' early runs come first. */
static int32_t ahead_of(const layer_world *world, int32_t self, const int32_t *early) {
  const dt_layer_model *m = world->model;
  int64_t most = 0;
  for (int32_t r = 0; r < m->ranks; r++)
    if (r != self && m->tokens[r] > most) most = m->tokens[r];
  const int64_t waves = m->ahead ? m->ahead : 1 + most * (m->ranks - 1) / DT_LAYER_TOKENS_A_WAVE;
  const int64_t tasks = waves * world->clusters;
  if (!layer_dedups(world) || most == 0 || waves < 0 || world->order.schedule == DT_SCHEDULE_SERIAL) return 0;
  if (early[world->experts] < tasks) return 0;
  int32_t last = 0;
  while (last < world->experts && early[last + 1] <= tasks - 1) last++;
  return last + 1 < world->experts ? last + 1 : world->experts;
}

/* L1 of an expert: early or late bands. */
static layer_run half_run(const layer_world *world, int32_t rank, int32_t expert, int32_t early,
                          const layer_table *table) {
  layer_run run = {expert, 0, table->first_band[expert], 1, world->columns_1, world->model->short_bands_alone, NULL};
  int32_t first = 0;
  layer_half(world, rank, expert, early, &first, &run.rows);
  run.first_band += first;
  return run;
}

/* Run `index` of L1: with dedup an expert, whatever the order. */
static layer_run l1_run(const layer_world *world, int32_t index, const layer_table *table, const int32_t *rows) {
  if (!layer_dedups(world)) return run_at(world, index, 1, table, rows);
  return (layer_run){index, rows[index], table->first_band[index], 1, world->columns_1, world->model->short_bands_alone,
                     NULL};
}

typedef struct layer_groups {
  int32_t *l1, *l2;  /* [runs + 1] first task */
  int32_t *group;    /* [runs] */
  int32_t *group_l1; /* [groups + 1] L1 tasks before each */
  int32_t *early;    /* [experts + 1] L1 tasks of early runs before */
  int32_t count, ahead;
} layer_groups;

/* The experts whose early runs come first are one group. */
static int32_t raw_group(const layer_world *world, const layer_groups *groups, int32_t expert) {
  const int32_t first = groups->ahead, waves = world->order.wave_experts;
  if (expert < first) return -1;
  return waves > 0 ? (expert - first) / (remote_first(world) ? 2 : 1) / waves
                   : (groups->l1[expert] - groups->l1[first]) / world->order.group_tasks;
}

static void make_groups(const layer_world *world, layer_groups *groups) {
  int32_t before = 0, group = 0;
  for (int32_t e = 0; world->order.lead < DT_LAYER_LEAD_ALL && e < runs_of(world); e++) {
    const int32_t raw = raw_group(world, groups, e);
    if (e > 0 && raw != before) group++;
    if (e == 0 || raw != before) groups->group_l1[group] = groups->l1[e];
    groups->group[e] = group;
    before = raw;
  }
  groups->count = group + 1;
  groups->group_l1[group + 1] = groups->l1[l1_runs_of(world)];
}

/* How many L1 tasks come before L2 task `task` of `expert`; *peak: alternate's, of the experts until this one. */
static int32_t l1_before(const layer_world *world, const layer_groups *groups, int32_t expert, int32_t task,
                         int32_t *peak) {
  const int32_t all = groups->l1[l1_runs_of(world)], lead = world->order.lead;
  if (lead >= DT_LAYER_LEAD_ALL) return all;
  if (world->order.schedule == DT_SCHEDULE_ALTERNATE) {
    const int32_t out = expert + 1 > groups->ahead ? expert + 1 : groups->ahead; /* all of its L1 is */
    const int32_t need = groups->l1[out] - groups->l2[expert];
    const int32_t warm = groups->group_l1[lead < groups->count ? lead : groups->count];
    if (need > *peak) *peak = need;
    const int32_t at = task + (warm > *peak ? warm : *peak);
    return at < all ? at : all;
  }
  const int32_t group = groups->group[expert] + lead + 1;
  return groups->group_l1[group < groups->count ? group : groups->count];
}

/* All L1 tasks in order: early runs of the experts ahead, their late runs, then expert by expert. */
static void list_l1(const layer_world *world, int32_t rank, const layer_groups *groups, const layer_table *table,
                    const int32_t *rows, layer_task *to) {
  const int32_t raster = world->order.raster_bands;
  for (int32_t half = 0; half < 2; half++)
    for (int32_t e = 0; e < groups->ahead; e++) {
      const layer_run run = half_run(world, rank, e, half == 0, table);
      to += run_tasks(&run, raster, to);
    }
  for (int32_t e = groups->ahead; e < l1_runs_of(world); e++) {
    const layer_run run = l1_run(world, e, table, rows);
    to += run_tasks(&run, raster, to);
  }
}

static void count_tasks(const layer_world *world, int32_t rank, layer_groups *groups, layer_table *table,
                        const int32_t *rows) {
  const int32_t raster = world->order.raster_bands;
  for (int32_t e = 0; e < l1_runs_of(world); e++) {
    const layer_run run = l1_run(world, e, table, rows);
    groups->l1[e + 1] = groups->l1[e] + run_tasks(&run, raster, NULL);
  }
  for (int32_t e = 0; e < world->experts; e++) {
    layer_run early = {.rows = 0};
    if (layer_dedups(world)) early = half_run(world, rank, e, 1, table);
    groups->early[e + 1] = groups->early[e] + run_tasks(&early, raster, NULL);
  }
  for (int32_t e = 0; e < runs_of(world); e++) {
    const layer_run l2 = run_at(world, e, 0, table, rows);
    groups->l2[e + 1] = groups->l2[e] + run_tasks(&l2, raster, NULL);
  }
  groups->ahead = ahead_of(world, rank, groups->early);
  table->ahead = groups->ahead;
}

static dt_status fill(const layer_world *world, int32_t rank, const int32_t *rows, layer_groups *groups,
                      layer_table *table) {
  count_tasks(world, rank, groups, table, rows);
  make_groups(world, groups);
  const int32_t all = groups->l1[l1_runs_of(world)];
  table->count = all + groups->l2[runs_of(world)];
  table->tasks = malloc(((size_t)table->count + 1) * sizeof *table->tasks);
  layer_task *first = malloc(((size_t)table->count + 1) * sizeof *first);
  if (!table->tasks || !first) {
    free(first);
    return DT_ERR_MEMORY;
  }
  layer_task *second = first + all; /* of one expert at a time */
  list_l1(world, rank, groups, table, rows, first);
  int32_t place = 0, done = 0, peak = INT32_MIN;
  for (int32_t e = 0; e < runs_of(world); e++) {
    const layer_run l2 = run_at(world, e, 0, table, rows);
    const int32_t count = run_tasks(&l2, world->order.raster_bands, second);
    for (int32_t i = 0; i < count; i++) {
      const int32_t before = l1_before(world, groups, e, groups->l2[e] + i, &peak);
      while (done < before) table->tasks[place++] = first[done++];
      table->tasks[place++] = second[i];
    }
  }
  while (done < all) table->tasks[place++] = first[done++];
  free(first);
  return DT_OK;
}

/* The order of experts and of each one's bands. scratch: [experts]. */
static dt_status sort_bands(const layer_world *world, int32_t rank, layer_table *table, int32_t *scratch) {
  const int32_t experts = world->experts;
  dt_expert_layout *layout = calloc((size_t)experts + 1, sizeof *layout);
  if (!layout) return DT_ERR_MEMORY;
  for (int32_t e = 0; e < experts; e++) {
    int32_t away = 0;
    for (int32_t source = 0; source < world->model->ranks; source++)
      if (source != rank) away += layer_count(world, source, rank, e);
    table->remote[e] = layer_divide_up(away, LAYER_BAND);
    layout[e].bands = table->first_band[e + 1] - table->first_band[e];
    layout[e].remote_bands = table->remote[e];
    dt_expert_paced(&layout[e], table->entry + table->first_band[e]);
  }
  dt_expert_order(world->order.order, experts, layout, table->sorted, scratch);
  free(layout);
  return DT_OK;
}

dt_status layer_table_create(const layer_world *world, int32_t rank, layer_table *table) {
  const int32_t experts = world->experts;
  const size_t n = 2 * (size_t)experts + 2;
  int32_t *memory = calloc(6 * n, sizeof *memory);
  *table = (layer_table){.first_band = calloc(n, sizeof *table->first_band),
                         .remote = calloc(n, sizeof *table->remote),
                         .sorted = calloc(n, sizeof *table->sorted)};
  dt_status status = memory && table->first_band && table->remote && table->sorted ? DT_OK : DT_ERR_MEMORY;
  if (!status) {
    int32_t *rows = memory;
    for (int32_t e = 0; e < experts; e++) {
      for (int32_t source = 0; source < world->model->ranks; source++) rows[e] += layer_count(world, source, rank, e);
      table->first_band[e + 1] = table->first_band[e] + layer_divide_up(rows[e], LAYER_BAND);
    }
    table->bands = table->first_band[experts];
    table->band_rows = calloc((size_t)table->bands + 1, sizeof *table->band_rows);
    table->entry = calloc((size_t)table->bands + 1, sizeof *table->entry);
    if (!table->band_rows || !table->entry) status = DT_ERR_MEMORY;
    if (!status) status = sort_bands(world, rank, table, memory + 3 * n);
    for (int32_t e = 0; !status && e < experts; e++)
      for (int32_t b = table->first_band[e]; b < table->first_band[e + 1]; b++) {
        const int32_t left = rows[e] - (b - table->first_band[e]) * LAYER_BAND;
        table->band_rows[b] = left < LAYER_BAND ? left : LAYER_BAND;
      }
    layer_groups groups = {.l1 = memory + n,
                           .l2 = memory + 2 * n,
                           .group = memory + 3 * n,
                           .group_l1 = memory + 4 * n,
                           .early = memory + 5 * n};
    if (!status) status = fill(world, rank, rows, &groups, table);
  }
  free(memory);
  return status ? dt_fail(status, "price of a layer: no memory for its table") : DT_OK;
}

void layer_table_release(layer_table *table) {
  free(table->tasks);
  free(table->band_rows);
  free(table->first_band);
  free(table->remote);
  free(table->sorted);
  free(table->entry);
}
