/* A rank's link: a buffer of limited capacity that drains at the link's rate. What finds it full waits, and all that
 * wait share the rate: the mean over producers of equation (2'), not first come, first served. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "layer.h"

static double capacity_s(const layer_world *world) {
  return world->costs->link_capacity_bytes / world->costs->link_bytes_per_s;
}

double layer_fill(const layer_world *world, const layer_link *link) {
  return layer_less(layer_more((link->empty - world->now) / capacity_s(world), 0.0), 1.0);
}

/* To world->now. */
static void advance_link(const layer_world *world, layer_link *link) {
  if (link->waiting > 0) {
    link->served += (world->now - link->updated) * world->costs->link_bytes_per_s / link->weight;
    link->empty = world->now + capacity_s(world);
  }
  link->updated = world->now;
}

/* Virtual time: flows end in the order of their bytes and what was served before, whatever comes later. */
static void push_flow(layer_world *world, layer_link *link, layer_flow flow) {
  if (link->waiting == link->room) {
    const int32_t room = link->room ? 2 * link->room : 256;
    layer_flow *flows = realloc(link->flows, (size_t)room * sizeof *flows);
    if (!flows) {
      world->no_memory = 1;
      return;
    }
    link->flows = flows;
    link->room = room;
  }
  link->weight += flow.weight;
  link->copies += flow.cluster < 0;
  int32_t at = link->waiting++;
  for (; at > 0 && flow.end < link->flows[(at - 1) / 2].end; at = (at - 1) / 2)
    link->flows[at] = link->flows[(at - 1) / 2];
  link->flows[at] = flow;
}

static layer_flow pop_flow(layer_link *link) {
  const layer_flow first = link->flows[0], last = link->flows[--link->waiting];
  int32_t at = 0;
  for (;;) {
    int32_t child = 2 * at + 1;
    if (child >= link->waiting) break;
    if (child + 1 < link->waiting && link->flows[child + 1].end < link->flows[child].end) child++;
    if (last.end <= link->flows[child].end) break;
    link->flows[at] = link->flows[child];
    at = child;
  }
  link->flows[at] = last;
  link->copies -= first.cluster < 0;
  link->weight = link->waiting > 0 ? link->weight - first.weight : 0.0;
  return first;
}

static void accept(layer_world *world, int32_t self, const layer_flow *flow) {
  layer_rank *rank = &world->rank[self];
  const double visible = rank->link.empty + world->costs->link_latency_s;
  if (flow->cluster >= 0) {
    rank->cluster[flow->cluster].accepted = world->now;
    rank->sent = fmax(rank->sent, visible);
  } else {
    layer_copied(world, self, flow, fmax(flow->done, world->now), visible);
  }
}

static void schedule(layer_world *world, int32_t self) {
  layer_link *link = &world->rank[self].link;
  if (link->waiting == 0) return;
  const double left = (link->flows[0].end - link->served) * link->weight / world->costs->link_bytes_per_s;
  layer_push(world,
             (layer_event){
                 .at = world->now + fmax(left, 0.0), .kind = LAYER_ACCEPTED, .rank = self, .index = ++link->schedules});
}

/* Capacity is the multiprocessors': a tile has that of its own two. Copies come in small parts, from all. */
static double own_room(const layer_world *world, const layer_flow *flow) {
  return world->costs->link_capacity_bytes / (flow->cluster >= 0 ? world->clusters : 1);
}

void layer_send(layer_world *world, int32_t self, layer_flow flow, double bytes) {
  layer_link *link = &world->rank[self].link;
  const double rate = world->costs->link_bytes_per_s;
  advance_link(world, link);
  if (link->waiting == 0) {
    const double empty = fmax(link->empty, world->now);
    const double room = world->costs->link_capacity_bytes - (empty - world->now) * rate;
    const double taken = layer_less(layer_less(bytes, own_room(world, &flow)), layer_more(room, 0.0));
    link->empty = empty + taken / rate;
    bytes -= taken;
  }
  if (bytes <= 0.0) {
    accept(world, self, &flow);
    return;
  }
  flow.end = link->served + bytes / flow.weight;
  push_flow(world, link, flow);
  schedule(world, self);
}

void layer_accept(layer_world *world, int32_t self, int32_t number) {
  layer_link *link = &world->rank[self].link;
  if (number != link->schedules) return; /* flows came since */
  advance_link(world, link);
  /* Done to a thousandth of a byte, or to what passes in the least time that the clock can tell: it would stand. */
  const double least =
      link->waiting ? 4.0 * DBL_EPSILON * world->now * world->costs->link_bytes_per_s / link->weight : 0;
  const double served = link->served + layer_more(1e-3, least);
  while (link->waiting > 0 && link->flows[0].end <= served) {
    const layer_flow flow = pop_flow(link);
    accept(world, self, &flow);
  }
  schedule(world, self);
}
