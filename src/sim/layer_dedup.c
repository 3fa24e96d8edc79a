/* Dispatch with dedup: a kernel on a few multiprocessors sends every token once to each rank that wants it, in order,
 * and makes the first copies to expert rows; warps beside the tiles make the others. Tiles start at once on the other
 * multiprocessors, with rows that need no link. */
#include <math.h>
#include <stdlib.h>

#include "core/error.h"
#include "layer.h"

enum { SEND_WARPS = 24 /* of a multiprocessor of the dispatch kernel */ };

static double sent_bytes(const layer_world *world, int32_t source) {
  const dt_layer_model *m = world->model;
  double rows = 0.0;
  for (int32_t peer = 0; peer < m->ranks; peer++)
    if (peer != source)
      rows += (double)(m->dispatch_rows ? m->dispatch_rows[source * m->ranks + peer] : m->tokens[source]);
  return 2.0 * rows * (double)m->hidden;
}

/* The first tokens leave so long before the table is there; differences: docs/notes/model.md. */
static const double early_s = 16e-6;

/* Of the bytes that `source` sends, the share that leaves while the table is made: where hardly any rows stay. */
static double early_share(const layer_world *world, int32_t source) {
  const dt_layer_model *m = world->model;
  int64_t own = 0, all = 0;
  for (int32_t peer = 0; peer < m->ranks; peer++)
    for (int32_t e = 0; e < world->experts; e++) {
      const int32_t rows = layer_count(world, source, peer, e);
      all += rows;
      own += peer == source ? rows : 0;
    }
  const int64_t tokens = m->tokens[source];
  if (m->short_bands_alone || own > all / DT_LAYER_EARLY_STAY || tokens == 0) return 0.0;
  return fmin(1.0, 0.25 + (double)DT_LAYER_EARLY_TOKENS / (double)tokens);
}
/* From world->now until so much of what `source` sends has left. */
static double sent_after(const layer_world *world, int32_t source, double share) {
  const layer_rank *rank = &world->rank[source];
  const double left = fmax(0.0, share - rank->early) * sent_bytes(world, source);
  return rank->delay + world->costs->fill_s + left / world->costs->link_bytes_per_s;
}

/* When the tokens of rows [low, high) of an expert are here: a source's rows are in the order of its tokens. */
static double ready_at(const layer_world *world, int32_t self, int32_t expert, int32_t low, int32_t high) {
  const dt_layer_costs *c = world->costs;
  const int32_t ranks = world->model->ranks;
  double ready = world->now;
  int32_t first = 0;
  for (int32_t k = 1; k < ranks; k++) {
    const int32_t source = (self + k) % ranks, rows = layer_count(world, source, self, expert);
    const int32_t last = (high < first + rows ? high : first + rows) - first;
    if (last > 0 && low < first + rows)
      ready = fmax(ready, world->now + c->link_latency_s + sent_after(world, source, (double)last / rows));
    first += rows;
  }
  return ready;
}

enum { EARLY, LATE, BOTH };
/* half: early, late, or all of it. */
static int add_run(layer_world *world, int32_t self, int32_t expert, int32_t half, int32_t *room) {
  layer_rank *rank = &world->rank[self];
  const int32_t step = dt_layer_piece_rows(world->model->hidden, DT_LAYER_EXPAND_BYTES);
  int32_t first_band = 0, rows = 0, good = 1;
  if (half != BOTH)
    layer_half(world, self, expert, half == EARLY, &first_band, &rows);
  else
    for (int32_t source = 0; source < world->model->ranks; source++) rows += layer_count(world, source, self, expert);
  for (int32_t row = 0; good && row < rows; row += step) {
    const int32_t low = first_band * LAYER_BAND + row, count = rows - row < step ? rows - row : step;
    const layer_piece piece = {count, self, rank->table.first_band[expert] + low / LAYER_BAND,
                               ready_at(world, self, expert, low, low + count)};
    good = layer_add_piece(rank, room, piece);
  }
  return good;
}

/* In the order of L1. world->now: when the kernel starts. */
dt_status layer_dedup_create(layer_world *world, int32_t self) {
  const int32_t ahead = world->rank[self].table.ahead, ranks = self == 0 ? world->model->ranks : 0;
  for (int32_t r = 0; r < ranks; r++) {
    layer_rank *rank = &world->rank[r];
    rank->early = early_share(world, r);
    rank->delay = fmax(0.0, rank->early * sent_bytes(world, r) / world->costs->link_bytes_per_s - early_s);
  }
  int32_t room = 0, good = 1;
  for (int32_t e = 0; e < ahead; e++) good = good && add_run(world, self, e, EARLY, &room);
  for (int32_t e = 0; e < ahead; e++) good = good && add_run(world, self, e, LATE, &room);
  for (int32_t e = ahead; e < world->experts; e++) good = good && add_run(world, self, e, BOTH, &room);
  return good ? DT_OK : dt_fail(DT_ERR_MEMORY, "price of a layer: no memory for its dispatch");
}

static void arrive(layer_world *world, int32_t self, const layer_piece *piece, double done) {
  layer_push(world, (layer_event){.at = done + world->costs->release_s,
                                  .kind = LAYER_ARRIVED,
                                  .rank = self,
                                  .index = piece->band,
                                  .rows = piece->rows});
}

static void start_at(layer_world *world, int32_t self, double at, int32_t first, int32_t end) {
  layer_push(
      world,
      (layer_event){.at = at + world->costs->launch_s, .kind = LAYER_START, .rank = self, .index = first, .rows = end});
}

/* The first `head` pieces by the kernel's warps, of which every other block's send before. Returns when all is done. */
static double expand_head(layer_world *world, int32_t self, int32_t head, int32_t warps, double *free_at) {
  const dt_layer_costs *c = world->costs;
  layer_rank *rank = &world->rank[self];
  const double begin = world->now + world->rank[self].delay + c->fill_s;
  const double sent = world->now + sent_after(world, self, 1.0);
  double end = sent;
  for (int32_t w = 0; w < warps; w++) free_at[w] = w % 2 == 0 ? sent : begin;
  for (int32_t i = 0; i < head; i++) {
    int32_t first = 0;
    for (int32_t w = 1; w < warps; w++)
      if (free_at[w] < free_at[first]) first = w;
    const layer_piece *piece = &rank->pieces[i];
    const double bytes = 2.0 * piece->rows * (double)world->model->hidden;
    free_at[first] = fmax(free_at[first], piece->ready) + bytes * SEND_WARPS / c->sm_bytes_per_s;
    end = fmax(end, free_at[first]);
    arrive(world, self, piece, free_at[first]);
  }
  rank->link.empty = sent;
  rank->next_piece = head;
  return end;
}

dt_status layer_dedup_start(layer_world *world, int32_t self) {
  const dt_layer_model *m = world->model;
  const int32_t serial = world->order.schedule == DT_SCHEDULE_SERIAL, clusters = world->clusters;
  const int32_t wanted = serial ? 2 * clusters : m->send_sms ? m->send_sms : DT_LAYER_SEND_SMS;
  const int32_t sms = wanted < 2 * clusters ? wanted : 2 * clusters, warps = SEND_WARPS * sms;
  const int32_t pieces = world->rank[self].piece_count, head = layer_head(world, pieces);
  double *free_at = calloc((size_t)warps + 1, sizeof *free_at);
  if (!free_at) return dt_fail(DT_ERR_MEMORY, "price of a layer: no memory for its dispatch");
  const double end = expand_head(world, self, head, warps, free_at);
  free(free_at);
  const int32_t first = serial ? 0 : clusters - sms / 2;
  world->dispatched = fmax(world->dispatched, first > 0 ? world->now : end);
  if (first > 0) start_at(world, self, world->now + world->rank[self].delay, 0, first);
  start_at(world, self, end, first, clusters);
  return DT_OK;
}

void layer_expand_next(layer_world *world, int32_t self) {
  layer_rank *rank = &world->rank[self];
  if (rank->next_piece >= rank->piece_count) {
    rank->copying--;
    return;
  }
  const layer_piece *piece = &rank->pieces[rank->next_piece++];
  const double bytes = 2.0 * piece->rows * (double)world->model->hidden;
  const double done = fmax(world->now, piece->ready) + bytes / world->costs->expand_bytes_per_s;
  arrive(world, self, piece, done);
  layer_push(world, (layer_event){.at = done, .kind = LAYER_COPIED, .rank = self});
}
