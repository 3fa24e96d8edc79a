/* Dispatch: its first pieces on all multiprocessors before the tiles, the others by warps beside them. */
#include <math.h>
#include <stdlib.h>

#include "core/error.h"
#include "layer.h"

enum { COPY_BYTES = 16384 };

/* A piece is told of when so much behind it has left, or there is no more (layer_carry.cuh). */
static const double behind_bytes = 16384.0;

/* The first pieces leave so long before the table is there: docs/notes/model.md. */
static const double early_s = 5e-6;

/* Copies take longer where memory is at its rate, hardly before; shares of a full link differ by so much on either
 * side: stamps (docs/notes/model.md). */
static const double crowd_power = 20.0, share_spread = 0.25;

int layer_add_piece(layer_rank *rank, int32_t *room, layer_piece piece) {
  if (rank->piece_count == *room) {
    *room = *room ? 2 * *room : 1024;
    layer_piece *pieces = realloc(rank->pieces, (size_t)*room * sizeof *pieces);
    if (!pieces) return 0;
    rank->pieces = pieces;
  }
  rank->pieces[rank->piece_count++] = piece;
  return 1;
}

/* Experts in each rank's order, of each place the next rank's first and this one's own last; cut where the expert's
 * rows are. */
dt_status layer_dispatch_create(layer_world *world, int32_t self) {
  const int32_t ranks = world->model->ranks;
  layer_rank *rank = &world->rank[self];
  int32_t room = 0, good = 1;
  for (int32_t place = 0; place < world->experts; place++)
    for (int32_t k = 1; k <= ranks; k++) {
      const int32_t peer = (self + k) % ranks, e = world->rank[peer].table.sorted[place];
      int32_t low = 0, end;
      for (int32_t owner = (peer + 1) % ranks; owner != self; owner = (owner + 1) % ranks)
        low += layer_count(world, owner, peer, e);
      end = low + layer_count(world, self, peer, e);
      while (good && low < end) {
        const int32_t cut = (low / world->piece_rows + 1) * world->piece_rows, to = cut < end ? cut : end;
        const int32_t band = world->rank[peer].table.first_band[e] + low / LAYER_BAND;
        good = layer_add_piece(rank, &room, (layer_piece){to - low, peer, band, 0.0});
        low = to;
      }
    }
  return good ? DT_OK : dt_fail(DT_ERR_MEMORY, "price of a layer: no memory for its dispatch");
}

void layer_dispatch_start(layer_world *world, int32_t self) {
  const dt_layer_costs *c = world->costs;
  layer_rank *rank = &world->rank[self];
  const int32_t asked = world->in_place ? rank->piece_count : layer_head(world, rank->piece_count);
  const int32_t early = world->model->short_bands_alone ? 0 : dt_layer_early_pieces(rank->piece_count);
  const int32_t head = asked > 0 ? asked : early;
  double away = 0.0, own = 0.0;
  for (int32_t i = 0; i < head && !world->in_place; i++) {
    const layer_piece *piece = &rank->pieces[i];
    const double bytes = 2.0 * piece->rows * (double)world->model->hidden;
    *(piece->peer == self ? &own : &away) += bytes;
  }
  rank->next_piece = head;
  const double begin = world->now + c->fill_s - (asked > 0 ? 0.0 : early_s), away_s = away / c->link_bytes_per_s;
  /* A kernel ends when the link has taken its stores; the table's, which asks nobody, when pieces have been written. */
  const double taken = away_s - (asked > 0 ? c->link_capacity_bytes / c->link_bytes_per_s : 0.0);
  const double copied = begin + fmax(fmax(taken, own / c->copy_bytes_per_s), 0.0) + c->release_s;
  const double end = asked > 0 ? copied : fmax(world->now, head > 0 ? copied : 0.0);
  rank->link.empty = begin + away_s;
  for (int32_t i = 0; i < head; i++) {
    const layer_piece *piece = &rank->pieces[i];
    const double at = piece->peer == self ? end : fmax(world->now, rank->link.empty + c->link_latency_s);
    layer_push(world, (layer_event){.at = world->in_place ? world->now : at,
                                    .kind = LAYER_ARRIVED,
                                    .rank = piece->peer,
                                    .index = piece->band,
                                    .rows = piece->rows});
  }
  const double start = world->in_place ? world->now : end;
  world->dispatched = fmax(world->dispatched, asked > 0 ? start : world->now);
  layer_push(world,
             (layer_event){.at = start + c->launch_s, .kind = LAYER_START, .rank = self, .rows = world->clusters});
}

/* A warp copies as fast as its loads come back from the cache, which tiles load from, too. */
static double warp_rate(const dt_layer_costs *c, const layer_rank *rank) {
  return 1.0 / (rank->busy / c->warp_bytes_per_s + (1.0 - rank->busy) / c->quiet_warp_bytes_per_s);
}

void layer_copy_next(layer_world *world, int32_t self, int32_t index, int32_t copied) {
  const dt_layer_costs *c = world->costs;
  layer_rank *rank = &world->rank[self];
  if (index < 0 || copied >= rank->pieces[index].rows) {
    if (rank->next_piece >= rank->piece_count) {
      rank->copying--;
      return;
    }
    index = rank->next_piece++;
    copied = 0;
  }
  const layer_piece *piece = &rank->pieces[index];
  const double row_bytes = 2.0 * (double)world->model->hidden;
  int32_t rows = (int32_t)(COPY_BYTES / (2 * world->model->hidden));
  rows = rows < 1 ? 1 : rows;
  if (rows > piece->rows - copied) rows = piece->rows - copied;
  const double crowd = c->crowd_ratio * pow(rank->load, crowd_power);
  const double slower = (1.0 + crowd) * (1.0 + c->shadow_ratio * layer_fill(world, &rank->link));
  layer_flow flow = {.done =
                         world->now + (copied == 0 ? c->piece_s : 0.0) + rows * row_bytes / warp_rate(c, rank) * slower,
                     .cluster = -1,
                     .weight = 1.0 + share_spread * layer_chance(world, self, LAYER_COPY, index),
                     .piece = index,
                     .copied = copied + rows};
  if (piece->peer != self)
    layer_send(world, self, flow, rows * row_bytes);
  else
    layer_copied(world, self, &flow, flow.done, flow.done + c->release_s);
}

void layer_copied(layer_world *world, int32_t self, const layer_flow *flow, double done, double visible) {
  const layer_piece *piece = &world->rank[self].pieces[flow->piece];
  const double there = piece->peer == self ? visible : fmax(visible, done + world->costs->link_latency_s);
  const layer_rank *rank = &world->rank[self];
  const double told = rank->next_piece < rank->piece_count ? behind_bytes / warp_rate(world->costs, rank) : 0.0;
  if (flow->copied >= piece->rows)
    layer_push(
        world,
        (layer_event){
            .at = there + told, .kind = LAYER_ARRIVED, .rank = piece->peer, .index = piece->band, .rows = piece->rows});
  layer_push(world,
             (layer_event){.at = done, .kind = LAYER_COPIED, .rank = self, .index = flow->piece, .rows = flow->copied});
}
