/* What a cluster does: tickets, waits, tiles, and what leaves when. */
#include <math.h>

#include "layer.h"

static int32_t columns_of(const layer_world *world, int32_t l1) {
  return l1 ? world->columns_1 : world->columns_2;
}

static int is_ready(const layer_world *world, const layer_rank *rank, int32_t index) {
  const layer_task *task = &rank->table.tasks[index];
  for (int32_t i = 0; i <= task->pair; i++) {
    const int32_t band = task->band[i];
    if (task->l1 ? rank->arrived[band] < rank->table.band_rows[band] : rank->released[band] < world->columns_1)
      return 0;
  }
  return 1;
}

static void draw(layer_rank *rank, layer_cluster *c, int32_t held) {
  while (c->drawn_count < held && rank->next_task < rank->table.count) c->drawn[c->drawn_count++] = rank->next_task++;
}

/* What is alike differs by so much on either side, by stamps (docs/notes/model.md): tiles, which is also as wide as
 * tile_s is known; clusters, all their tiles; shares of memory's rate. Who draws which ticket depends on it. */
static const double tile_spread = 0.02, cluster_spread = 0.022, share_spread = 0.035;

static uint32_t mix(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

double layer_chance(const layer_world *world, int32_t rank, layer_kind kind, int32_t index) {
  if (!world->chance) return 0.0;
  const uint32_t x = mix(((uint32_t)index * 2u + 1u) * 0x9e3779b1u ^ ((uint32_t)rank + 1u) * 0x85ebca6bu ^
                         (uint32_t)kind * 0x27d4eb2fu ^ world->chance * 0xc2b2ae35u);
  return (double)x / 2147483648.0 - 1.0;
}

static int is_whole(const layer_task *task) {
  return task->rows[0] > LAYER_SHORT || (task->pair && task->rows[1] > LAYER_SHORT);
}

/* A tile of more than 64 rows keeps both consumers busy. */
static double tile_time(const layer_world *world, const layer_task *task) {
  const dt_layer_costs *c = world->costs;
  return (task->l1 ? c->tile_1_s + c->activation_s : c->tile_2_s) * world->clock *
         (is_whole(task) ? 1.0 : c->short_ratio);
}

static void use_weights(layer_world *world, layer_rank *rank, int32_t self, const layer_task *task) {
  layer_cluster *c = &rank->cluster[self];
  const double k = (double)(task->l1 ? world->model->hidden : world->model->intermediate);
  c->panels = task->pair || task->column[1] < 0 ? 1 : 2;
  for (int32_t p = 0; p < c->panels; p++) {
    const double left = (double)(world->model->hidden - (int64_t)task->column[p] * LAYER_COLUMN_2);
    const double columns = !task->l1 && left < LAYER_COLUMN_2 ? left : LAYER_COLUMN_2; /* L1: of gate and of up */
    c->panel[p] = task->expert * columns_of(world, task->l1) + task->column[p];
    c->panel_bytes[p] = 2.0 * columns * k;
    layer_panel *panel = &rank->weights[task->l1][c->panel[p]];
    if (panel->users < LAYER_USERS) panel->user[panel->users++] = self;
  }
}

/* Of the engine: clocks of a stage of 64 in K, all tensor cores at work; stages of operands. */
static const double stage_clocks = 1024.0, stages_under_way = 4.0, highest_hz = 1.98e9;

static void start(layer_world *world, layer_rank *rank, int32_t self, int waited) {
  layer_cluster *c = &rank->cluster[self];
  c->task = c->drawn[0];
  c->drawn[0] = c->drawn[1], c->drawn[1] = c->drawn[2], c->drawn_count--;
  draw(rank, c, 1);
  const layer_task *task = &rank->table.tasks[c->task];
  const double k = (double)(task->l1 ? world->model->hidden : world->model->intermediate);
  const int32_t index = (int32_t)(rank - world->rank);
  const double like = 1.0 + tile_spread * layer_chance(world, index, LAYER_TASK, c->task) +
                      cluster_spread * layer_chance(world, index, LAYER_CLUSTER, self);
  c->time_s = like * tile_time(world, task) + (waited ? world->costs->fill_s : 0.0);
  c->floor_s = like * k / LAYER_STAGE * stage_clocks / highest_hz * (is_whole(task) ? 1.0 : world->costs->short_ratio);
  c->latency_s = k / LAYER_STAGE * world->costs->memory_latency_s / stages_under_way;
  c->luck = 1.0 + share_spread * layer_chance(world, index, LAYER_SHARE, c->task);
  c->alone = !task->pair && task->column[1] >= 0 && task->rows[0] <= LAYER_SHORT;
  c->done = c->rate = 0.0;
  c->began = rank->traffic;
  c->rows_bytes = 0.0;
  use_weights(world, rank, self, task);
  for (int32_t i = 0; i <= task->pair; i++)
    c->rows_bytes += layer_read_rows(world, rank, &rank->rows[task->l1][task->band[i]], 2.0 * task->rows[i] * k);
  if (c->unstored >= 0) {
    const layer_task *before = &rank->table.tasks[c->unstored];
    const int32_t columns = before->l1 ? LAYER_COLUMN_1 : LAYER_COLUMN_2;
    c->rows_bytes += 2.0 * columns * (before->rows[0] + before->rows[1]);
    c->unstored = -1;
  }
  c->bytes = c->rows_bytes;
  c->state = LAYER_RUNNING;
}

static void go_on(layer_world *world, layer_rank *rank, int32_t self, int waited) {
  layer_cluster *c = &rank->cluster[self];
  if (c->drawn_count == 0) {
    c->state = LAYER_DONE;
  } else if (is_ready(world, rank, c->drawn[0])) {
    start(world, rank, self, waited);
  } else {
    c->state = LAYER_WAITING;
    draw(rank, c, 2);
  }
}

/* Three tickets each, a round at a time; in which order clusters draw is chance. */
static void draw_first(const layer_world *world, int32_t index, int32_t first, int32_t end) {
  layer_rank *rank = &world->rank[index];
  for (int32_t held = 1; held <= 3; held++) {
    for (int32_t i = first; i < end; i++) world->order_of_draws[i] = i;
    for (int32_t i = first; i < end && world->chance; i++) {
      const uint32_t x = mix(((uint32_t)index * 4u + (uint32_t)held) * 0x85ebca6bu ^ (uint32_t)i * 0x9e3779b1u ^
                             world->chance * 0xc2b2ae35u);
      const int32_t j = i + (int32_t)(x % (uint32_t)(end - i)), swap = world->order_of_draws[i];
      world->order_of_draws[i] = world->order_of_draws[j];
      world->order_of_draws[j] = swap;
    }
    for (int32_t i = first; i < end; i++) draw(rank, &rank->cluster[world->order_of_draws[i]], held);
  }
}

void layer_start_tiles(layer_world *world, int32_t index, int32_t first, int32_t end) {
  layer_rank *rank = &world->rank[index];
  if (rank->started)
    layer_advance(world, rank);
  else
    rank->updated = world->now;
  rank->started = 1;
  draw_first(world, index, first, end);
  for (int32_t i = first; i < end; i++) go_on(world, rank, i, 1);
  layer_rates(world, rank);
  const int32_t warps = (int32_t)(world->costs->copy_warps * 2 * (end - first));
  rank->copying += warps;
  for (int32_t i = 0; i < warps; i++)
    if (layer_dedups(world))
      layer_expand_next(world, index);
    else
      layer_copy_next(world, index, -1, 0);
}

void layer_wake(layer_world *world, layer_rank *rank) {
  int woken = 0;
  for (int32_t i = 0; i < world->clusters; i++) {
    layer_cluster *c = &rank->cluster[i];
    if (c->state != LAYER_WAITING || !is_ready(world, rank, c->drawn[0])) continue;
    if (!woken++) layer_advance(world, rank);
    start(world, rank, i, 1);
  }
  if (woken) layer_rates(world, rank);
}

/* storer: the cluster that stored the task before its next one, plus one; 0: during that. Only then its release warp
 * reads the slot of the next, and one more ticket is drawn. */
void layer_release(layer_world *world, layer_rank *rank, int32_t index, int32_t storer) {
  if (storer > 0) {
    layer_cluster *c = &rank->cluster[storer - 1];
    draw(rank, c, c->state == LAYER_WAITING ? 3 : 2);
  }
  const layer_task *task = &rank->table.tasks[index];
  const int32_t columns = task->pair || task->column[1] < 0 ? 1 : 2;
  for (int32_t i = 0; i <= task->pair; i++) rank->released[task->band[i]] += columns;
  layer_wake(world, rank);
}

/* Rows of a task that other ranks own: an expert's own rows are its last. */
static double rows_away(const layer_world *world, int32_t self, const layer_task *task) {
  const layer_rank *rank = &world->rank[self];
  int32_t away = 0, rows = 0;
  for (int32_t source = 0; source < world->model->ranks; source++)
    if (source != self) away += layer_count(world, source, self, task->expert);
  for (int32_t i = 0; i < 2; i++) {
    if (!task->pair && task->column[i] < 0) continue;
    const int32_t low = (task->band[i] - rank->table.first_band[task->expert]) * LAYER_BAND;
    const int32_t end = low + task->rows[i] < away ? low + task->rows[i] : away;
    if (end > low) rows += end - low;
  }
  return rows;
}

static void stop_using(layer_rank *rank, int32_t self) {
  const layer_cluster *c = &rank->cluster[self];
  for (int32_t p = 0; p < c->panels; p++) {
    layer_panel *panel = &rank->weights[rank->table.tasks[c->task].l1][c->panel[p]];
    int32_t users = 0;
    for (int32_t i = 0; i < panel->users; i++)
      if (panel->user[i] != self) panel->user[users++] = panel->user[i];
    panel->users = users;
    panel->seen = 1;
    panel->first = c->began;
    panel->last = rank->traffic;
  }
}

/* Seconds of all multiprocessors at the full rate: half by the time of the tile, half by its rows, since zeros need
 * less power. */
static double energy_of(const layer_world *world, const layer_task *task) {
  const dt_layer_costs *c = world->costs;
  const double columns = task->pair || task->column[1] >= 0 ? 1.0 : 0.5;
  const double rows = (task->rows[0] + task->rows[1]) / (2.0 * LAYER_BAND);
  const double time = tile_time(world, task) / world->clock;
  return 0.5 * columns * (time + (task->l1 ? c->tile_1_s : c->tile_2_s) * rows) / world->clusters;
}

void layer_finish(layer_world *world, int32_t index, int32_t self) {
  const dt_layer_costs *costs = world->costs;
  layer_rank *rank = &world->rank[index];
  layer_cluster *c = &rank->cluster[self];
  const layer_task *task = &rank->table.tasks[c->task];
  const double stored = world->now + costs->release_s + costs->store_s;
  c->state = LAYER_IDLE;
  c->unstored = c->task;
  stop_using(rank, self);
  rank->energy += energy_of(world, task);
  if (c->unreleased >= 0)
    layer_push(world,
               (layer_event){
                   .at = world->now + costs->release_s, .kind = LAYER_RELEASED, .rank = index, .index = c->unreleased});
  c->unreleased = -1;
  if (task->l1) {
    const int behind = c->drawn_count > 0 && (rank->table.tasks[c->drawn[0]].l1 || is_ready(world, rank, c->drawn[0]));
    if (behind)
      c->unreleased = c->task;
    else
      layer_push(world, (layer_event){.at = stored,
                                      .kind = LAYER_RELEASED,
                                      .rank = index,
                                      .index = c->task,
                                      .rows = c->drawn_count > 0 ? self + 1 : 0});
  } else {
    const int stays = world->order.schedule == DT_SCHEDULE_SERIAL || world->order.schedule == DT_SCHEDULE_SIGNAL;
    const double rows = world->alone || stays ? 0.0 : rows_away(world, index, task);
    c->accepted = rows > 0.0 ? INFINITY : 0.0;
    if (rows > 0.0)
      layer_send(world, index, (layer_flow){.cluster = self, .weight = 2.0 * costs->tile_link_ratio},
                 2.0 * LAYER_COLUMN_2 * rows);
    rank->sent = fmax(rank->sent, stored);
    for (int32_t i = 0; i <= task->pair; i++) rank->stored[task->band[i]] = fmax(rank->stored[task->band[i]], stored);
  }
  go_on(world, rank, self, 0);
}
