/* Consumers of the schedule signal: segments in order, each once its bands are stored, as one server. */
#include <math.h>

#include "layer.h"

int32_t layer_consumers(const dt_layer_order *order, int32_t sms) {
  return dt_layer_consumers(order->schedule, order->consumers, sms);
}

/* Rows [row, end) of an expert go to their owner, a segment at a time: its part of the first band, up to segment_bands
 * between, its part of the last. Returns when the last has left. */
static double put_group(const layer_world *world, const layer_rank *rank, int32_t expert, int32_t row, int32_t end,
                        double rate, double now) {
  const int32_t first = row / LAYER_BAND, last = (end - 1) / LAYER_BAND;
  const double *stored = rank->stored + rank->table.first_band[expert];
  for (int32_t band = first, bands; band <= last && row < end; band += bands) {
    const int inside = band > first && band < last;
    bands = inside && last - band > world->order.segment_bands ? world->order.segment_bands : inside ? last - band : 1;
    const int32_t to = (band + bands) * LAYER_BAND < end ? (band + bands) * LAYER_BAND : end;
    for (int32_t b = band; b < band + bands; b++) now = layer_more(now, stored[b]);
    now += 2.0 * (to - row) * (double)world->model->hidden / rate;
    row = to;
  }
  return now;
}

double layer_signal_end(const layer_world *world, int32_t self) {
  const layer_rank *rank = &world->rank[self];
  const dt_layer_costs *c = world->costs;
  const int32_t ranks = world->model->ranks, consumers = layer_consumers(&world->order, world->model->sms);
  const double rate = fmin(consumers * c->consumer_bytes_per_s, c->link_bytes_per_s);
  double now = 0.0;
  for (int32_t place = 0; place < world->experts; place++)
    for (int32_t k = 1, row = 0; k < ranks; k++) {
      const int32_t e = rank->table.sorted[place];
      const int32_t rows = layer_count(world, (self + k) % ranks, self, e);
      now = put_group(world, rank, e, row, row + rows, rate, now);
      row += rows;
    }
  return now + c->release_s + c->link_latency_s;
}
