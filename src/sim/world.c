#include "sim.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

static const uint8_t worker_alone[] = {SIM_TABLE, SIM_END};
static const uint8_t consumer_direct[] = {SIM_DISPATCH, SIM_END};
static const uint8_t consumer_signal[] = {SIM_DISPATCH, SIM_SEGMENTS, SIM_END};
static const uint8_t serial_alone[] = {SIM_DISPATCH, SIM_BARRIER, SIM_WORK,   SIM_BARRIER,
                                       SIM_GROUPS,   SIM_BARRIER, SIM_REDUCE, SIM_END};
static const uint8_t serial_worker[] = {SIM_BARRIER, SIM_WORK, SIM_BARRIER, SIM_BARRIER, SIM_REDUCE, SIM_END};
static const uint8_t serial_consumer[] = {SIM_DISPATCH, SIM_BARRIER, SIM_BARRIER, SIM_GROUPS, SIM_BARRIER, SIM_END};

static const uint8_t *program(const dt_sim_config *config, int is_worker) {
  if (config->plan.schedule == DT_SCHEDULE_SERIAL) {
    if (!is_worker) return serial_consumer;
    return config->consumers ? serial_worker : serial_alone;
  }
  if (is_worker) return worker_alone;
  return config->plan.schedule == DT_SCHEDULE_SIGNAL ? consumer_signal : consumer_direct;
}

static void counter_init(sim_counter *counter, int64_t target) {
  *counter = (sim_counter){.target = target, .first_waiter = -1, .last_waiter = -1};
}

static dt_plan_config rank_config(const dt_sim_config *config, int32_t rank) {
  dt_plan_config plan = config->plan;
  int64_t tokens = config->tokens[rank], block = config->reduce_tokens;
  int32_t blocks = (int32_t)((tokens + block - 1) / block);
  plan.rank = rank;
  plan.reduce_blocks = blocks;
  if (plan.shared_blocks > 0) plan.shared_blocks = blocks;
  /* The CPU executor's defaults. */
  if (plan.segment_bands <= 0) plan.segment_bands = 1;
  if (plan.raster_bands <= 0) plan.raster_bands = DT_BAND_PANELS;
  if (plan.lead <= 0) plan.lead = 1;
  if (plan.group_tasks <= 0) plan.group_tasks = (plan.schedule == DT_SCHEDULE_WAVE ? 6 : 2) * config->workers;
  return plan;
}

/* Where the table's last task (the last segment) with rows for each peer lies, and the peers in that order. */
static void find_last_tickets(sim_world *world, int32_t self) {
  sim_rank *rank = &world->rank[self];
  const dt_plan *plan = rank->plan;
  for (int32_t p = 0; p < world->ranks; p++) rank->last_ticket[p] = -1;
  if (plan->config.schedule == DT_SCHEDULE_SIGNAL) {
    for (int32_t i = 0; i < plan->segment_count; i++)
      rank->last_ticket[plan->segments[plan->segment_order[i]].owner] = i;
  } else {
    for (int64_t i = plan->dispatch_tasks; i < plan->task_count; i++) {
      if (plan->tasks[i].phase != DT_PHASE_L2) continue;
      const dt_band *band = &plan->bands[plan->tasks[i].index];
      for (int32_t k = 0; k < band->parts; k++) rank->last_ticket[plan->parts[band->first_part + k].owner] = i;
    }
  }
  int32_t count = 0;
  for (int32_t p = 0; p < world->ranks; p++) {
    if (p == self) continue;
    int32_t at = count++;
    for (; at > 0 && rank->last_ticket[rank->peer_order[at - 1]] > rank->last_ticket[p]; at--)
      rank->peer_order[at] = rank->peer_order[at - 1];
    rank->peer_order[at] = p;
  }
}

static dt_status no_memory(void) {
  return dt_fail(DT_ERR_MEMORY, "simulator: no memory for its tables");
}

static dt_status create_panels(sim_rank *rank) {
  const dt_plan_config *plan = &rank->plan->config;
  size_t panels = (size_t)plan->experts_per_rank * ((size_t)plan->columns_1 + (size_t)plan->columns_2);
  rank->panel_newer = malloc((panels + 1) * sizeof *rank->panel_newer);
  rank->panel_older = malloc((panels + 1) * sizeof *rank->panel_older);
  if (!rank->panel_newer || !rank->panel_older) return no_memory();
  memset(rank->panel_newer, 0xff, panels * sizeof *rank->panel_newer);
  memset(rank->panel_older, 0xff, panels * sizeof *rank->panel_older);
  rank->panel_newest = rank->panel_oldest = -1;
  return DT_OK;
}

static dt_status create_rank(sim_world *world, int32_t self, const int32_t *counts) {
  sim_rank *rank = &world->rank[self];
  const dt_sim_config *config = &world->config;
  dt_plan_config plan_config = rank_config(config, self);
  dt_plan *plan = NULL;
  dt_status status = dt_plan_create(&plan_config, counts, &plan);
  if (status) return status;
  rank->plan = plan;
  rank->tokens = config->tokens[self];
  size_t bands = (size_t)plan->band_count + 1;
  rank->arrival = malloc(bands * sizeof *rank->arrival);
  rank->l1 = malloc(bands * sizeof *rank->l1);
  rank->l2 = malloc(bands * sizeof *rank->l2);
  rank->widened = calloc(bands, 1);
  rank->last_ticket = malloc((size_t)world->ranks * sizeof *rank->last_ticket);
  rank->peer_order = malloc((size_t)world->ranks * sizeof *rank->peer_order);
  if (!rank->arrival || !rank->l1 || !rank->l2 || !rank->widened || !rank->last_ticket || !rank->peer_order)
    return no_memory();
  for (int32_t b = 0; b < plan->band_count; b++) {
    counter_init(&rank->arrival[b], plan->config.dispatch ? plan->bands[b].rows : 0);
    counter_init(&rank->l1[b], plan->config.columns_1);
    counter_init(&rank->l2[b], plan->config.columns_2);
  }
  int64_t own = 0;
  rank->first_reduce = plan->task_count;
  for (int64_t i = plan->dispatch_tasks; i < plan->task_count; i++) {
    int32_t phase = plan->tasks[i].phase;
    own += phase == DT_PHASE_L2 || phase == DT_PHASE_SHARED;
    if (phase == DT_PHASE_REDUCE && rank->first_reduce == plan->task_count) rank->first_reduce = i;
  }
  int32_t senders = plan->config.schedule == DT_SCHEDULE_SIGNAL ? config->consumers : config->workers;
  if (plan->config.schedule == DT_SCHEDULE_SERIAL) senders = 0; /* a barrier stands between */
  counter_init(&rank->own, own);
  counter_init(&rank->peers, (int64_t)senders * (world->ranks - 1));

  rank->limit[SIM_DISPATCH] = plan->dispatch_tasks;
  rank->ticket[SIM_TABLE] = config->consumers ? plan->dispatch_tasks : 0;
  rank->limit[SIM_TABLE] = plan->task_count;
  rank->ticket[SIM_WORK] = plan->dispatch_tasks;
  rank->limit[SIM_WORK] = rank->ticket[SIM_REDUCE] = rank->first_reduce;
  rank->limit[SIM_REDUCE] = plan->task_count;
  rank->limit[SIM_SEGMENTS] = plan->segment_count;
  rank->limit[SIM_GROUPS] = plan->group_count;
  find_last_tickets(world, self);
  return world->costs.cache_panels > 0 ? create_panels(rank) : DT_OK;
}

/* A worker that could hold every band there is forgets none. */
static dt_status create_held(sim_world *world) {
  int32_t bands = 1;
  for (int32_t r = 0; r < world->ranks; r++)
    if (world->rank[r].plan->band_count > bands) bands = world->rank[r].plan->band_count;
  if (world->costs.band_panels > bands) world->costs.band_panels = bands;
  const size_t held = (size_t)world->threads * (size_t)world->costs.band_panels;
  world->held_bands = malloc((held + 1) * sizeof *world->held_bands);
  if (!world->held_bands) return no_memory();
  memset(world->held_bands, 0xff, held * sizeof *world->held_bands); /* -1 */
  return DT_OK;
}

static void start_threads(sim_world *world) {
  const dt_sim_config *config = &world->config;
  double begin = world->costs.entry_s + world->costs.plan_s;
  for (int32_t i = 0; i < world->threads; i++) {
    sim_thread *thread = &world->thread[i];
    thread->rank = i / world->threads_per_rank;
    thread->track = i % world->threads_per_rank;
    thread->is_worker = thread->track < config->workers;
    thread->program = program(config, thread->is_worker);
    thread->last_panel[0] = thread->last_panel[1] = -1;
    thread->held_bands = world->held_bands + (size_t)i * (size_t)world->costs.band_panels;
    thread->stamps = world->stamps + (size_t)i * (size_t)world->ranks;
    sim_wake_at(world, thread, begin);
  }
  sim_item plan = {.index = -1, .column = -1, .peer = -1};
  for (int32_t r = 0; begin > 0.0 && r < world->ranks; r++) sim_span(world, r, DT_SPAN_PLAN, 0, &plan, 0.0, begin);
}

dt_status sim_world_create(const dt_sim_config *config, const dt_sim_costs *costs, const int32_t *counts, int trace,
                           sim_world **out) {
  sim_world *world = calloc(1, sizeof *world);
  if (!world) return no_memory();
  world->config = *config;
  world->costs = *costs;
  world->trace = trace;
  world->ranks = config->plan.ranks;
  world->threads_per_rank = config->workers + config->consumers;
  world->threads = world->ranks * world->threads_per_rank;
  world->barrier_first = -1;
  size_t threads = (size_t)world->threads, ranks = (size_t)world->ranks;
  world->rank = calloc(ranks, sizeof *world->rank);
  world->thread = calloc(threads, sizeof *world->thread);
  world->stamps = calloc(threads * ranks, sizeof *world->stamps);
  world->by_time.events = malloc(threads * sizeof(sim_event));
  world->by_work.events = malloc(threads * sizeof(sim_event));
  if (!world->rank || !world->thread || !world->stamps || !world->by_time.events || !world->by_work.events) {
    sim_world_destroy(world);
    return no_memory();
  }
  dt_status status = DT_OK;
  for (int32_t r = 0; !status && r < world->ranks; r++) status = create_rank(world, r, counts);
  if (!status) status = create_held(world);
  if (status) {
    sim_world_destroy(world);
    return status;
  }
  start_threads(world);
  *out = world;
  return DT_OK;
}

void sim_world_destroy(sim_world *world) {
  if (!world) return;
  for (int32_t r = 0; world->rank && r < world->ranks; r++) {
    sim_rank *rank = &world->rank[r];
    dt_plan_destroy((dt_plan *)rank->plan);
    free(rank->arrival);
    free(rank->l1);
    free(rank->l2);
    free(rank->widened);
    free(rank->last_ticket);
    free(rank->peer_order);
    free(rank->panel_newer);
    free(rank->panel_older);
    free(rank->spans);
  }
  free(world->rank);
  free(world->thread);
  free(world->stamps);
  free(world->held_bands);
  free(world->by_time.events);
  free(world->by_work.events);
  free(world);
}

/* What is beyond the trace is refused at the end. */
static uint64_t to_ns(double seconds) {
  return seconds <= SIM_TRACE_MOST_S ? (uint64_t)(seconds * 1e9 + 0.5) : UINT64_MAX;
}

void sim_span(sim_world *world, int32_t r, dt_span_kind kind, int32_t track, const sim_item *item, double begin,
              double end) {
  if (!world->trace) return;
  sim_rank *rank = &world->rank[r];
  if (rank->span_count == rank->span_capacity) {
    size_t capacity = rank->span_capacity ? 2 * rank->span_capacity : 1024;
    dt_span *spans = realloc(rank->spans, capacity * sizeof *spans);
    if (!spans) {
      world->out_of_memory = 1;
      return;
    }
    rank->spans = spans;
    rank->span_capacity = capacity;
  }
  rank->spans[rank->span_count++] = (dt_span){
      .begin_ns = to_ns(begin),
      .end_ns = to_ns(end),
      .kind = kind,
      .track = track,
      .index = item->index,
      .column = item->column,
      .peer = item->peer,
      .rows = item->rows,
      .bytes = item->bytes,
  };
}
