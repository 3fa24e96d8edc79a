/* A deterministic interpreter of all ranks' tables: workers draw tickets in table order, hold one or more ahead, and
 * wait for what a task needs instead of skipping it, as the executors do. Who moves next is random. */
#ifndef DT_TEST_PLAN_RUN_H
#define DT_TEST_PLAN_RUN_H

#include "test_plan_support.h"

enum { RUN_AHEAD_MAX = 3 };

typedef struct run_config {
  int32_t workers, consumers; /* a rank; consumers 0: workers carry dispatch, and segments leave with the tiles */
  int32_t ahead;              /* tickets a worker holds, 1 to RUN_AHEAD_MAX */
} run_config;

/* One worker or consumer: the tickets it holds, oldest first. */
typedef struct run_thread {
  int64_t tickets[RUN_AHEAD_MAX];
  int32_t held, rank, consumer;
} run_thread;

typedef struct run_rank {
  const dt_plan *plan;
  int64_t ticket, done;                   /* of the table */
  int64_t consumer_ticket, consumer_done; /* dispatch, then segments by segment_order */
  int32_t *arrived, *l1, *l2;             /* [bands] */
  int64_t *owed;                          /* [ranks]: L2 tiles or segments still to come for each owner */
} run_rank;

typedef struct run_state {
  run_config config;
  int32_t ranks, thread_count;
  run_rank *rank;
  run_thread *threads;
} run_state;

/* Segments by consumers are `signal` with consumers; every other run stores with the tiles. */
static inline int run_by_segments(const run_state *run, const dt_plan *plan) {
  return run->config.consumers > 0 && plan->config.schedule == DT_SCHEDULE_SIGNAL;
}

static inline run_state run_new(run_config config, dt_plan *const *plans, int32_t ranks) {
  run_state run = {.config = config, .ranks = ranks, .thread_count = ranks * (config.workers + config.consumers)};
  run.rank = take((size_t)ranks, sizeof *run.rank);
  run.threads = take((size_t)run.thread_count, sizeof *run.threads);
  for (int32_t r = 0; r < ranks; r++) {
    run_rank *rank = &run.rank[r];
    const dt_plan *plan = rank->plan = plans[r];
    rank->ticket = rank->done = config.consumers > 0 ? plan->dispatch_tasks : 0;
    rank->arrived = take((size_t)plan->band_count, sizeof *rank->arrived);
    rank->l1 = take((size_t)plan->band_count, sizeof *rank->l1);
    rank->l2 = take((size_t)plan->band_count, sizeof *rank->l2);
    rank->owed = take((size_t)ranks, sizeof *rank->owed);
    int segments = run_by_segments(&run, plan);
    for (int32_t i = 0; i < plan->part_count; i++) {
      if (!segments || plan->parts[i].owner == r) rank->owed[plan->parts[i].owner] += plan->config.columns_2;
    }
    for (int32_t i = 0; segments && i < plan->segment_count; i++) rank->owed[plan->segments[i].owner]++;
    for (int32_t i = 0; i < config.workers + config.consumers; i++) {
      run_thread *thread = &run.threads[r * (config.workers + config.consumers) + i];
      thread->rank = r;
      thread->consumer = i < config.consumers;
    }
  }
  return run;
}

static inline void run_free(run_state *run) {
  for (int32_t r = 0; r < run->ranks; r++) {
    free(run->rank[r].arrived);
    free(run->rank[r].l1);
    free(run->rank[r].l2);
    free(run->rank[r].owed);
  }
  free(run->rank);
  free(run->threads);
}

static inline void run_dispatch(run_state *run, const dt_dispatch *d) {
  run->rank[d->peer].arrived[d->band] += d->rows;
}

static inline int run_l2_complete(const run_rank *rank, int32_t first, int32_t bands) {
  for (int32_t b = first; b < first + bands; b++) {
    if (rank->l2[b] < rank->plan->config.columns_2) return 0;
  }
  return 1;
}

/* Runs the task if what it waits for is there; 0 if it has to wait. */
static inline int run_task(run_state *run, int32_t r, const dt_task *task) {
  run_rank *rank = &run->rank[r];
  const dt_plan *plan = rank->plan;
  const dt_band *band;
  switch (task->phase) {
  case DT_PHASE_DISPATCH:
    run_dispatch(run, &plan->dispatch[task->index]);
    return 1;
  case DT_PHASE_SHARED:
    return 1;
  case DT_PHASE_L1:
    if (rank->arrived[task->index] < plan->bands[task->index].rows) return 0;
    rank->l1[task->index]++;
    return 1;
  case DT_PHASE_L2:
    if (rank->l1[task->index] < plan->config.columns_1) return 0;
    rank->l2[task->index]++;
    band = &plan->bands[task->index];
    for (int32_t p = band->first_part; p < band->first_part + band->parts; p++) {
      int32_t owner = plan->parts[p].owner;
      if (!run_by_segments(run, plan) || owner == r) rank->owed[owner]--;
    }
    return 1;
  case DT_PHASE_REDUCE:
    for (int32_t p = 0; p < run->ranks; p++) {
      if (run->rank[p].owed[r] > 0) return 0;
    }
    return 1;
  }
  fail_msg("phase %d in the table", task->phase);
  return 0;
}

static inline int64_t run_consumer_total(const run_state *run, const dt_plan *plan) {
  return plan->dispatch_count + (run_by_segments(run, plan) ? plan->segment_count : 0);
}

static inline int run_consumer_task(run_state *run, int32_t r, int64_t ticket) {
  run_rank *rank = &run->rank[r];
  const dt_plan *plan = rank->plan;
  if (ticket < plan->dispatch_count) {
    run_dispatch(run, &plan->dispatch[ticket]);
    return 1;
  }
  const dt_segment *segment = &plan->segments[plan->segment_order[ticket - plan->dispatch_count]];
  if (!run_l2_complete(rank, segment->first_band, segment->bands)) return 0;
  rank->owed[segment->owner]--;
  return 1;
}

/* One move of one thread: draw a ticket, or run the oldest one held. 0 if it can do neither. */
static inline int run_move(run_state *run, run_thread *thread, int draw) {
  run_rank *rank = &run->rank[thread->rank];
  int64_t *ticket = thread->consumer ? &rank->consumer_ticket : &rank->ticket;
  int64_t total = thread->consumer ? run_consumer_total(run, rank->plan) : rank->plan->task_count;
  if (*ticket < total && (thread->held == 0 || (draw && thread->held < run->config.ahead))) {
    thread->tickets[thread->held++] = (*ticket)++;
    return 1;
  }
  if (thread->held == 0) return 0;
  int ran = thread->consumer ? run_consumer_task(run, thread->rank, thread->tickets[0])
                             : run_task(run, thread->rank, &rank->plan->tasks[thread->tickets[0]]);
  if (!ran) return 0;
  *(thread->consumer ? &rank->consumer_done : &rank->done) += 1;
  thread->held--;
  for (int32_t i = 0; i < thread->held; i++) thread->tickets[i] = thread->tickets[i + 1];
  return 1;
}

/* Runs until no thread can move. 1 if everything was done, 0 for a deadlock. */
static inline int run_to_end(run_state *run, dt_random *random) {
  for (int idle = 0; !idle;) {
    int32_t start = (int32_t)dt_random_below(random, (uint64_t)run->thread_count);
    idle = 1;
    for (int32_t i = 0; idle && i < run->thread_count; i++) {
      run_thread *thread = &run->threads[(start + i) % run->thread_count];
      if (run_move(run, thread, dt_random_below(random, 2) == 0)) idle = 0;
    }
  }
  for (int32_t r = 0; r < run->ranks; r++) {
    const run_rank *rank = &run->rank[r];
    if (rank->done < rank->plan->task_count) return 0;
    if (run->config.consumers > 0 && rank->consumer_done < run_consumer_total(run, rank->plan)) return 0;
  }
  return 1;
}

/* What must hold at the end: every row arrived once, every tile ran once, nothing is owed. */
static inline void run_assert_complete(const run_state *run) {
  for (int32_t r = 0; r < run->ranks; r++) {
    const run_rank *rank = &run->rank[r];
    for (int32_t b = 0; b < rank->plan->band_count; b++) {
      assert_int_equal(rank->arrived[b], rank->plan->bands[b].rows);
      assert_int_equal(rank->l1[b], rank->plan->config.columns_1);
      assert_int_equal(rank->l2[b], rank->plan->config.columns_2);
    }
    for (int32_t p = 0; p < run->ranks; p++) assert_int_equal(rank->owed[p], 0);
  }
}

static inline int run_plans(run_config config, dt_plan *const *plans, int32_t ranks, dt_random *random) {
  run_state run = run_new(config, plans, ranks);
  int ended = run_to_end(&run, random);
  if (ended) run_assert_complete(&run);
  run_free(&run);
  return ended;
}

#endif
