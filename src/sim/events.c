#include "sim.h"

static int earlier(const sim_event *a, const sim_event *b) {
  if (a->at != b->at) return a->at < b->at;
  return a->order < b->order;
}

static void heap_push(sim_heap *heap, sim_event event) {
  int32_t at = heap->count++;
  while (at > 0 && earlier(&event, &heap->events[(at - 1) / 2])) {
    heap->events[at] = heap->events[(at - 1) / 2];
    at = (at - 1) / 2;
  }
  heap->events[at] = event;
}

static sim_event heap_pop(sim_heap *heap) {
  sim_event top = heap->events[0], last = heap->events[--heap->count];
  int32_t at = 0;
  for (;;) {
    int32_t child = 2 * at + 1;
    if (child >= heap->count) break;
    if (child + 1 < heap->count && earlier(&heap->events[child + 1], &heap->events[child])) child++;
    if (!earlier(&heap->events[child], &last)) break;
    heap->events[at] = heap->events[child];
    at = child;
  }
  heap->events[at] = last;
  return top;
}

static int32_t thread_index(const sim_world *world, const sim_thread *thread) {
  return (int32_t)(thread - world->thread);
}

void sim_wake_at(sim_world *world, sim_thread *thread, double at) {
  if (at < world->now) at = world->now;
  heap_push(&world->by_time, (sim_event){at, world->order++, thread_index(world, thread)});
}

/* All running threads progress at one speed, so the order in which they end does not change when others start or stop:
 * the heap is keyed by virtual time, which advances by speed * time. */
static double speed(const sim_world *world) {
  double cores = world->costs.cores;
  return cores > 0.0 && world->running > cores ? cores / world->running : 1.0;
}

void sim_work(sim_world *world, sim_thread *thread, double work_s) {
  heap_push(&world->by_work, (sim_event){world->worked + work_s, world->order++, thread_index(world, thread)});
  world->running++;
}

sim_thread *sim_next(sim_world *world) {
  if (world->by_time.count == 0 && world->by_work.count == 0) return NULL;
  double by_work = 0.0;
  if (world->by_work.count) {
    by_work = world->now + (world->by_work.events[0].at - world->worked) / speed(world);
    if (by_work < world->now) by_work = world->now;
  }
  if (world->by_time.count && (world->by_work.count == 0 || world->by_time.events[0].at <= by_work)) {
    sim_event event = heap_pop(&world->by_time);
    if (world->running) world->worked += (event.at - world->now) * speed(world);
    world->now = event.at;
    return &world->thread[event.thread];
  }
  sim_event event = heap_pop(&world->by_work);
  world->worked = event.at;
  world->now = by_work;
  world->running--;
  if (world->running == 0) world->worked = 0.0; /* keeps virtual time small, and so exact */
  return &world->thread[event.thread];
}

int sim_counter_wait(sim_world *world, sim_thread *thread, sim_counter *counter) {
  if (counter->count >= counter->target) {
    if (counter->visible <= world->now) return 1;
    sim_wake_at(world, thread, counter->visible + world->costs.wake_s);
    return 0;
  }
  int32_t index = thread_index(world, thread);
  thread->next_waiter = -1;
  if (counter->first_waiter < 0) {
    counter->first_waiter = index;
  } else {
    world->thread[counter->last_waiter].next_waiter = index;
  }
  counter->last_waiter = index;
  return 0;
}

void sim_counter_add(sim_world *world, sim_counter *counter, int64_t value, double visible) {
  counter->count += value;
  if (visible > counter->visible) counter->visible = visible;
  if (counter->count < counter->target) return;
  for (int32_t index = counter->first_waiter; index >= 0;) {
    sim_thread *thread = &world->thread[index];
    index = thread->next_waiter;
    double ready = counter->visible > world->now ? counter->visible : world->now;
    sim_wake_at(world, thread, ready + world->costs.wake_s);
  }
  counter->first_waiter = -1;
}
