#include "sim.h"

#include <math.h>

/* At which a backlog shrinks: of the link, or of a port behind it that is slower; 0: nothing queues. */
static double drain_rate(const dt_sim_costs *costs) {
  if (costs->link_bytes_per_s <= 0.0) return costs->receiver_bytes_per_s;
  if (costs->receiver_bytes_per_s <= 0.0) return costs->link_bytes_per_s;
  return fmin(costs->link_bytes_per_s, costs->receiver_bytes_per_s);
}

/* Dispatch keeps the backlog low, so that direct stores, which must not stall, find room. */
int sim_paces_dispatch(const sim_world *world, const sim_thread *thread) {
  const dt_sim_costs *costs = &world->costs;
  if (thread->item.kind != DT_SPAN_DISPATCH || thread->item.peer == thread->rank) return 0;
  if (drain_rate(costs) <= 0.0 || costs->dispatch_backlog_bytes <= 0.0) return 0;
  return sim_is_direct(world->rank[thread->rank].plan->config.schedule);
}

/* 0: parked until it may be. */
int sim_put_may_start(sim_world *world, sim_thread *thread) {
  const dt_sim_costs *costs = &world->costs;
  const sim_rank *rank = &world->rank[thread->rank];
  if (!sim_paces_dispatch(world, thread)) return 1;
  double at = rank->drain_free - costs->dispatch_backlog_bytes / drain_rate(costs);
  if (at <= world->now) return 1;
  sim_wake_at(world, thread, at + costs->wake_s);
  return 0;
}

/* The sender's link drains puts in order of their start at R; a receiver's port takes what arrives at its own rate, and
 * a full port holds up the links that feed it. */
static double drain(sim_world *world, sim_rank *from, sim_rank *to, double bytes) {
  const dt_sim_costs *costs = &world->costs;
  double start = fmax(world->now, from->drain_free), end = start;
  if (costs->link_bytes_per_s > 0.0) end += bytes / costs->link_bytes_per_s;
  if (costs->receiver_bytes_per_s > 0.0) {
    to->port_free = fmax(to->port_free, start) + bytes / costs->receiver_bytes_per_s;
    end = fmax(end, to->port_free);
  }
  from->drain_free = end;
  return end;
}

void sim_put_start(sim_world *world, sim_thread *thread) {
  const dt_sim_costs *costs = &world->costs;
  sim_put *put = &thread->put;
  double window = 0.0;
  put->begin = world->now;
  if (put->peer == thread->rank) {
    put->stall_end = put->visible = world->now;
    sim_work(world, thread, put->bytes * costs->local_copy_s_per_byte);
    return;
  }
  double drained = drain(world, &world->rank[thread->rank], &world->rank[put->peer], put->bytes);
  double rate = drain_rate(costs);
  if (rate > 0.0) window = costs->link_capacity_bytes / rate;
  put->stall_end = drained - window;
  put->visible = drained + costs->link_latency_s;
  if (world->trace && (costs->link_bytes_per_s > 0.0 || costs->receiver_bytes_per_s > 0.0)) {
    sim_item item = thread->item;
    item.peer = put->peer;
    item.rows = put->rows;
    item.bytes = (int64_t)llround(put->bytes);
    sim_rank *rank = &world->rank[thread->rank];
    double begin = fmax(put->begin, rank->link_end); /* slices of the link follow each other */
    rank->link_end = put->visible;
    sim_span(world, thread->rank, DT_SPAN_LINK, world->threads_per_rank, &item, begin, put->visible);
  }
  sim_work(world, thread, costs->put_base_s + put->bytes * costs->copy_s_per_byte);
}

void sim_put_finish(sim_world *world, sim_thread *thread) {
  sim_put *put = &thread->put;
  sim_item *item = &thread->item;
  world->store_stall_s += world->now - put->copied;
  if (put->visible < world->now) put->visible = world->now;
  if (put->peer != thread->rank) {
    item->bytes += (int64_t)llround(put->bytes);
    if (put->visible > thread->stamps[put->peer]) thread->stamps[put->peer] = put->visible;
    if (put->visible > thread->latest_stamp) thread->latest_stamp = put->visible;
  }
  if (item->kind == DT_SPAN_L2 && world->trace) {
    sim_item store = *item;
    store.peer = put->peer;
    store.rows = put->rows;
    store.bytes = (int64_t)llround(put->bytes);
    sim_span(world, thread->rank, DT_SPAN_STORE, thread->track, &store, put->begin, world->now);
  }
}
