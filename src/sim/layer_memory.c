/* A rank's memory and cache: what tiles must read from memory, and how fast they run. */
#include <math.h>

#include "layer.h"

/* Around the capacity a line may be there or not, on either side by this share. */
static const double cache_spread = 0.3;
/* Waits for memory that is near its rate, and for its latency: time^n is the sum of both times^n. At 3.3 of 4.4 TB/s
 * tiles wait for 9.6 % of their time (docs/notes/engine.md, run 10). */
static const double queue_power = 3.4;

/* Share of what was read `traffic` bytes ago that must be read again. */
static double missing(const dt_layer_costs *costs, double traffic) {
  const double low = (1.0 - cache_spread) * costs->cache_bytes, high = (1.0 + cache_spread) * costs->cache_bytes;
  return traffic <= low ? 0.0 : traffic >= high ? 1.0 : (traffic - low) / (high - low);
}

double layer_read_rows(const layer_world *world, layer_rank *rank, layer_panel *rows, double bytes) {
  const double missed = rows->seen ? bytes * missing(world->costs, rank->traffic - rows->first) : bytes;
  rows->seen = 1;
  rows->first = rank->traffic;
  return missed;
}

void layer_advance(layer_world *world, layer_rank *rank) {
  const double elapsed = world->now - rank->updated;
  for (int32_t i = 0; elapsed > 0.0 && i < world->clusters; i++) {
    layer_cluster *c = &rank->cluster[i];
    if (c->state != LAYER_RUNNING) continue;
    const double share = layer_less(c->rate * elapsed, 1.0 - c->done); /* the rest of the time it waits for the link */
    c->done += share;
    rank->traffic += c->bytes * share;
  }
  rank->updated = world->now;
}

/* Multiplies, and does not only wait for the link to take what it stores. */
static int is_working(const layer_cluster *c) {
  return c->state == LAYER_RUNNING && c->done < 1.0;
}

/* How much passed since whoever is ahead, or was last, read what this cluster reads now. A negative number: nobody. */
static double behind(const layer_rank *rank, const layer_panel *panel, int32_t self, double traffic_per_s) {
  const layer_cluster *c = &rank->cluster[self];
  double least = -1.0;
  for (int32_t i = 0; i < panel->users; i++) {
    const layer_cluster *d = &rank->cluster[panel->user[i]];
    const double ahead = d->done - c->done;
    if (panel->user[i] == self || ahead < -1e-9 || (ahead <= 1e-9 && panel->user[i] > self)) continue;
    const double lag = d->rate > 0.0 ? layer_more(ahead, 0.0) / d->rate * traffic_per_s : 0.0;
    if (least < 0.0 || lag < least) least = lag;
  }
  if (panel->seen) {
    const double lag = layer_more(rank->traffic - (panel->first + c->done * (panel->last - panel->first)), 0.0);
    if (least < 0.0 || lag < least) least = lag;
  }
  return least;
}

/* The rate a reader gets at most, when all together want more than there is: who wants less gets what it wants. */
static double fair_share(const layer_world *world, const layer_rank *rank, int32_t running) {
  const double rate = world->costs->memory_bytes_per_s;
  double share = rate / running;
  for (int32_t round = 0; round < 6; round++) {
    double left = rate;
    int32_t more = 0;
    for (int32_t i = 0; i < world->clusters; i++) {
      const layer_cluster *c = &rank->cluster[i];
      if (!is_working(c)) continue;
      const double wants = c->bytes / c->least_s;
      if (wants <= share)
        left -= wants;
      else
        more++;
    }
    if (more == 0) break;
    const double next = left / more, change = fabs(next - share);
    share = next;
    if (change < 1e-3 * share) break;
  }
  return share;
}

/* What a tile takes when nothing holds it up, weights that come from memory included: `fewer` of its time where few
 * tiles run, but no tile multiplies faster than at the highest clock, and stages come no faster for either. */
static double with_latency(const layer_cluster *c, double fewer) {
  const double time_s = layer_more(c->time_s * fewer, c->floor_s);
  double weights = 0.0;
  for (int32_t p = 0; p < c->panels; p++) weights += c->panel_bytes[p];
  const double late = c->latency_s * (c->bytes - c->rows_bytes) / (weights * time_s);
  return late < 0.2 ? time_s : time_s * pow(1.0 + pow(late, queue_power), 1.0 / queue_power);
}

void layer_rates(layer_world *world, layer_rank *rank) {
  double traffic_per_s = 0.0, wanted = 0.0, bytes = 0.0;
  int32_t running = 0;
  for (int32_t i = 0; i < world->clusters; i++) {
    const layer_cluster *c = &rank->cluster[i];
    if (is_working(c)) traffic_per_s += c->bytes * c->rate, running++;
  }
  rank->busy = (double)running / world->clusters;
  rank->load = 0.0;
  if (running == 0) return;
  const double fewer = 1.0 - world->costs->together_ratio * (1.0 - rank->busy); /* tile_s is of all at work */
  for (int32_t i = 0; i < world->clusters; i++) {
    layer_cluster *c = &rank->cluster[i];
    if (!is_working(c)) continue;
    c->bytes = c->rows_bytes;
    layer_panel *weights = rank->weights[rank->table.tasks[c->task].l1];
    for (int32_t p = 0; p < c->panels; p++) {
      const double traffic = behind(rank, &weights[c->panel[p]], i, layer_more(traffic_per_s, 1e9));
      c->bytes += c->panel_bytes[p] * (traffic < 0.0 ? 1.0 : missing(world->costs, traffic));
    }
    c->least_s = with_latency(c, fewer);
    wanted += c->bytes / c->least_s;
    bytes += c->bytes;
  }
  const double rate = world->costs->memory_bytes_per_s, mean = bytes / running;
  const double share = wanted > rate ? fair_share(world, rank, running) : INFINITY,
               load = layer_less(wanted / rate, 1.0);
  rank->load = load;
  /* A band alone loads weights that no other CTA shares: through the cache's fabric, which all clusters want. */
  const double alone = 1.0 + rank->busy * (world->costs->alone_ratio / world->costs->short_ratio - 1.0);
  const double warps = 2.0 * world->costs->copy_warps * world->clusters;
  const double beside =
      1.0 + (rank->copying * world->costs->beside_ratio + rank->link.copies * world->costs->beside_full_ratio) / warps;
  double waits_before = 0.0, slower = 1.0; /* of the cluster before: most wait alike, and powers take long */
  for (int32_t i = 0; i < world->clusters; i++) {
    layer_cluster *c = &rank->cluster[i];
    if (!is_working(c)) continue;
    const double part = c->bytes < mean ? c->bytes / mean : 1.0; /* whoever reads little waits little */
    const double waits = layer_more(load * part, c->bytes / (share * c->luck) / c->least_s);
    if (waits != waits_before) slower = waits == 0.0 ? 1.0 : pow(1.0 + pow(waits, queue_power), 1.0 / queue_power);
    waits_before = waits;
    c->rate = 1.0 / (c->least_s * layer_more(slower, c->alone ? alone : 1.0) * beside);
  }
}
