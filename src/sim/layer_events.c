/* The queue of events: by time, equal times in the order in which they were pushed. */
#include <stdlib.h>

#include "layer.h"

static int earlier(const layer_event *a, const layer_event *b) {
  if (a->at != b->at) return a->at < b->at;
  return a->order < b->order;
}

void layer_push(layer_world *world, layer_event event) {
  if (world->event_count == world->event_room) {
    const int32_t room = world->event_room ? 2 * world->event_room : 1024;
    layer_event *events = realloc(world->events, (size_t)room * sizeof *events);
    if (!events) {
      world->no_memory = 1;
      return;
    }
    world->events = events;
    world->event_room = room;
  }
  event.order = world->event_order++;
  int32_t at = world->event_count++;
  for (; at > 0 && earlier(&event, &world->events[(at - 1) / 2]); at = (at - 1) / 2)
    world->events[at] = world->events[(at - 1) / 2];
  world->events[at] = event;
}

int layer_pop(layer_world *world, double before, layer_event *event) {
  if (world->event_count == 0 || world->events[0].at > before) return 0;
  *event = world->events[0];
  const layer_event last = world->events[--world->event_count];
  int32_t at = 0;
  for (;;) {
    int32_t child = 2 * at + 1;
    if (child >= world->event_count) break;
    if (child + 1 < world->event_count && earlier(&world->events[child + 1], &world->events[child])) child++;
    if (!earlier(&world->events[child], &last)) break;
    world->events[at] = world->events[child];
    at = child;
  }
  world->events[at] = last;
  return 1;
}
