/* The event simulator's state. Threads are state machines (thread.c); time and events are in events.c; puts and their
 * links in link.c; the world is built and torn down in world.c. */
#ifndef DT_SIM_SIM_H
#define DT_SIM_SIM_H

#include <draintile/plan.h>
#include <draintile/simulate.h>

#define SIM_TRACE_MOST_S 1.8e10 /* 2^64 ns are 1.84e10 s */

/* What a thread draws its work from, one after the other: its program. */
typedef enum sim_source {
  SIM_DISPATCH, /* D tasks */
  SIM_TABLE,    /* what is left of the whole table */
  SIM_WORK,     /* serial: the table up to the reduction */
  SIM_REDUCE,   /* serial: the rest of it */
  SIM_SEGMENTS, /* signal: in segment_order */
  SIM_GROUPS,   /* serial: remote groups, in bulk */
  SIM_SOURCES,  /* number of those with tickets */
  SIM_BARRIER,
  SIM_END
} sim_source;

typedef enum sim_step {
  SIM_STEP_DRAW,
  SIM_STEP_WAIT,         /* for the item's counters */
  SIM_STEP_WORKED,       /* its computation is over */
  SIM_STEP_PUT,          /* its next put, if any */
  SIM_STEP_PUT_COPIED,   /* may have to stall */
  SIM_STEP_PUT_DONE,     /* counters and stamps */
  SIM_STEP_FINISH,       /* the item is over */
  SIM_STEP_BARRIER,      /* own puts are visible: arrive */
  SIM_STEP_BARRIER_LEFT, /* released */
  SIM_STEP_ENDED
} sim_step;

typedef struct sim_counter {
  int64_t count, target;
  double visible; /* latest stamp among the adds */
  int32_t first_waiter, last_waiter;
} sim_counter;

/* An event wakes a thread; a thread has one pending event at most. */
typedef struct sim_event {
  double at;
  uint64_t order;
  int32_t thread;
} sim_event;
typedef struct sim_heap {
  sim_event *events;
  int32_t count;
} sim_heap;

typedef struct sim_item {
  int32_t kind; /* dt_span_kind */
  int32_t index, column, peer, rows;
  int64_t bytes; /* moved off the rank so far */
  double begin;
} sim_item;

typedef struct sim_put {
  int32_t peer, rows;
  double bytes, begin, copied, stall_end, visible;
} sim_put;

typedef struct sim_thread {
  int32_t rank, track;
  int is_worker;
  sim_step step;
  const uint8_t *program; /* sim_source */
  sim_item item;
  sim_put put;
  int32_t next_put;   /* part of the band, or 0 and 1 for an item with one put */
  int32_t wait_index; /* which of the item's counters */
  double wait_begin;
  int64_t last_panel[2]; /* of L1, of L2 */
  int32_t *held_bands;   /* [band_panels] widened; -1: none */
  int32_t next_held;
  double *stamps; /* [ranks] visibility of this thread's puts */
  double latest_stamp;
  int32_t signalled; /* peers of sim_rank.peer_order that are behind this thread */
  int32_t next_waiter;
} sim_thread;

typedef struct sim_rank {
  const dt_plan *plan;
  int64_t tokens, first_reduce;
  int64_t ticket[SIM_SOURCES], limit[SIM_SOURCES];
  sim_counter *arrival, *l1, *l2; /* [bands] */
  uint8_t *widened;               /* [bands] */
  sim_counter peers, own;         /* what a reduction waits for */
  int64_t *last_ticket;           /* [ranks] last task (segment) with rows for a peer; -1: none */
  int32_t *peer_order;            /* [ranks-1] peers by last_ticket */
  double link_end;                /* of the last link span */
  double drain_free, port_free;   /* link of this sender; port of this receiver */
  int32_t *panel_newer, *panel_older, panel_newest, panel_oldest, panels_cached; /* least recently used panels */
  double end;
  dt_span *spans;
  size_t span_count, span_capacity;
} sim_rank;

typedef struct sim_world {
  dt_sim_config config;
  dt_sim_costs costs;
  int32_t ranks, threads, threads_per_rank, ended;
  sim_rank *rank;
  sim_thread *thread;
  double *stamps;
  int32_t *held_bands;
  double now;
  double worked; /* virtual time: what each running thread has computed since the start */
  int32_t running;
  uint64_t order;
  sim_heap by_time, by_work;
  int32_t barrier_count, barrier_first, barriers;
  double barrier_end[4];
  double worker_wait_s, store_stall_s;
  int trace, out_of_memory;
} sim_world;

/* events.c */
void sim_wake_at(sim_world *world, sim_thread *thread, double at);                /* parks until then */
void sim_work(sim_world *world, sim_thread *thread, double work_s);               /* computes on a shared core */
sim_thread *sim_next(sim_world *world);                                           /* NULL: no event is left */
int sim_counter_wait(sim_world *world, sim_thread *thread, sim_counter *counter); /* 1: ready, 0: parked */
void sim_counter_add(sim_world *world, sim_counter *counter, int64_t value, double visible);

/* link.c */
int sim_paces_dispatch(const sim_world *world, const sim_thread *thread);
int sim_put_may_start(sim_world *world, sim_thread *thread);
void sim_put_start(sim_world *world, sim_thread *thread);
void sim_put_finish(sim_world *world, sim_thread *thread);

/* costs.c */
dt_status sim_costs_check(const dt_sim_costs *costs); /* DT_ERR_ARGUMENT names the field */

/* task_cost.c */
double sim_item_cost(sim_world *world, sim_thread *thread);

/* thread.c */
void sim_run_thread(sim_world *world, sim_thread *thread);

/* world.c */
dt_status sim_world_create(const dt_sim_config *config, const dt_sim_costs *costs, const int32_t *counts, int trace,
                           sim_world **world);
void sim_world_destroy(sim_world *world);
void sim_span(sim_world *world, int32_t rank, dt_span_kind kind, int32_t track, const sim_item *item, double begin,
              double end);

static inline int sim_is_direct(dt_schedule schedule) {
  return schedule != DT_SCHEDULE_SERIAL && schedule != DT_SCHEDULE_SIGNAL;
}

#endif
