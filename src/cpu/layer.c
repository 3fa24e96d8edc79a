/* One layer: the counts exchange, the plan, and the jobs that run it. */
#include "cpu/executor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

static dt_status fail_layer(dt_moe *moe, dt_status status) {
  return dt_layer_fail(moe, status, dt_error_detail());
}

static dt_status wait_counter(dt_moe *moe, dt_counter_kind kind, int64_t index, uint32_t target, const dt_wait *wait) {
  return dt_comm_wait(moe->comm, moe->counters, dt_bank_offset(moe, kind, index), target, wait);
}

static dt_status await_arrivals(dt_moe *moe) {
  for (int32_t i = 0; i < moe->plan->band_count; i++) {
    dt_wait wait = {.phase = "dispatch", .counter = "arrival of band", .index = i, .peer = -1};
    dt_status status = wait_counter(moe, DT_COUNTER_ARRIVAL, i, (uint32_t)moe->plan->bands[i].remote_rows, &wait);
    if (status) return status;
  }
  return DT_OK;
}

static dt_status await_combine(dt_moe *moe) {
  for (int32_t i = 1; i < moe->ranks; i++) {
    int32_t peer = (moe->rank + i) % moe->ranks;
    dt_wait wait = {.phase = "combine", .counter = "combine rows of rank", .index = peer, .peer = peer};
    dt_status status = wait_counter(moe, DT_COUNTER_COMBINE, peer, (uint32_t)moe->headers[peer].producers, &wait);
    if (status) return status;
  }
  return DT_OK;
}

/* Every counter of the last layer has reached its target: what the reduction did not need may still be on its way. */
static dt_status settle(dt_moe *moe) {
  if (!moe->unsettled) return DT_OK;
  dt_status status = await_combine(moe);
  if (!status) moe->unsettled = false;
  return status;
}

static size_t counts_slot(const dt_moe *moe, int32_t source) {
  return ((moe->epoch & 1) * (size_t)moe->ranks + (size_t)source) * moe->slot_bytes;
}

static int32_t combine_producers(const dt_moe *moe) {
  bool by_workers = dt_schedule_stores_direct(moe->config.schedule) || moe->config.consumers == 0;
  return by_workers ? moe->config.workers : moe->config.consumers;
}

static dt_status publish_counts(dt_moe *moe, int64_t tokens) {
  dt_counts_header *own = &moe->headers[moe->rank];
  *own = (dt_counts_header){.epoch = moe->epoch, .tokens = tokens, .producers = combine_producers(moe)};
  size_t counts_bytes = (size_t)moe->experts * sizeof(int32_t);
  memcpy(moe->message, own, sizeof(*own));
  memcpy(moe->message + sizeof(*own), moe->counts + (size_t)moe->rank * moe->experts, counts_bytes);
  for (int32_t i = 1; i < moe->ranks; i++) {
    dt_put put = {.window = moe->counts_window,
                  .peer = (moe->rank + i) % moe->ranks,
                  .offset = counts_slot(moe, moe->rank),
                  .src = moe->message,
                  .row_bytes = sizeof(*own) + counts_bytes,
                  .rows = 1};
    uint64_t visible_ns;
    dt_status status = dt_comm_put(moe->comm, &put, &visible_ns);
    size_t counter = counts_slot(moe, moe->rank) + moe->slot_bytes - sizeof(dt_counter);
    if (!status) status = dt_comm_signal(moe->comm, moe->counts_window, put.peer, counter, 1, visible_ns);
    if (status) return status;
  }
  return DT_OK;
}

static dt_status receive_counts(dt_moe *moe) {
  const unsigned char *window = dt_window_local(moe->counts_window);
  for (int32_t i = 1; i < moe->ranks; i++) {
    int32_t peer = (moe->rank + i) % moe->ranks;
    dt_wait wait = {.phase = "counts", .counter = "counts of rank", .index = peer, .peer = peer, .entry = 1};
    size_t slot = counts_slot(moe, peer);
    /* Never reset: each parity's counter rises by one every other layer. */
    uint32_t target = (uint32_t)((moe->epoch + 1) / 2);
    dt_status status =
        dt_comm_wait(moe->comm, moe->counts_window, slot + moe->slot_bytes - sizeof(dt_counter), target, &wait);
    if (status) return status;
    memcpy(&moe->headers[peer], window + slot, sizeof(dt_counts_header));
    memcpy(moe->counts + (size_t)peer * moe->experts, window + slot + sizeof(dt_counts_header),
           (size_t)moe->experts * sizeof(int32_t));
    if (moe->headers[peer].epoch != moe->epoch)
      return dt_fail(DT_ERR_INTERNAL, "epoch: rank %d is in layer %" PRIu64 ", rank %d in layer %" PRIu64, peer,
                     moe->headers[peer].epoch, moe->rank, moe->epoch);
  }
  return DT_OK;
}

static void reset_range(unsigned char *bank, size_t base, int64_t count) {
  memset(bank + base, 0, (size_t)count * sizeof(dt_counter));
}

/* The next layer's bank. All counts of this layer are here, so no rank writes the layer before this one's counters any
 * more; and no rank writes the next one's before it has this rank's next counts. */
static void reset_next_bank(dt_moe *moe) {
  int parity = (int)((moe->epoch + 1) & 1);
  unsigned char *bank = (unsigned char *)dt_window_local(moe->counters) + (size_t)parity * moe->bank_bytes;
  reset_range(bank, moe->counter_base[DT_COUNTER_ARRIVAL], moe->bank_bands[parity]);
  reset_range(bank, moe->counter_base[DT_COUNTER_TILES_1], moe->bank_bands[parity]);
  reset_range(bank, moe->counter_base[DT_COUNTER_TILES_2], moe->bank_bands[parity]);
  reset_range(bank, moe->counter_base[DT_COUNTER_SHARED], moe->bank_blocks[parity]);
  reset_range(bank, moe->counter_base[DT_COUNTER_COMBINE], moe->ranks);
  reset_range(bank, moe->counter_base[DT_COUNTER_TILES_2_ALL], 1);
  moe->bank_bands[parity] = moe->bank_blocks[parity] = 0;
}

/* Every rank sees the same counts, so every rank refuses alike and nobody needs to be told. */
static dt_status check_capacity(dt_moe *moe) {
  char detail[160];
  int32_t per_rank = moe->weights->experts_per_rank;
  for (int32_t r = 0; r < moe->ranks; r++) {
    if (moe->headers[r].tokens > moe->config.max_tokens) {
      snprintf(detail, sizeof(detail), "tokens: %" PRId64 " on rank %d; max_tokens is %" PRId64, moe->headers[r].tokens,
               r, moe->config.max_tokens);
      return dt_layer_refuse(moe, DT_ERR_CAPACITY, detail);
    }
    int64_t rows = 0;
    for (int32_t s = 0; s < moe->ranks; s++) {
      const int32_t *counts = moe->counts + (size_t)s * moe->experts + (size_t)r * per_rank;
      for (int32_t e = 0; e < per_rank; e++) rows += counts[e];
    }
    if (rows > moe->max_rows) {
      snprintf(detail, sizeof(detail), "rows: %" PRId64 " are routed to rank %d; its capacity (max_rows) is %" PRId64,
               rows, r, moe->max_rows);
      return dt_layer_refuse(moe, DT_ERR_CAPACITY, detail);
    }
  }
  return DT_OK;
}

static dt_status make_plan(dt_moe *moe) {
  const dt_moe_config *config = &moe->config;
  int64_t n = config->tile_n, tokens = moe->input->tokens;
  int32_t blocks = (int32_t)((tokens + DT_BLOCK_TOKENS - 1) / DT_BLOCK_TOKENS);
  dt_plan_config plan;
  dt_plan_config_init(&plan);
  plan.ranks = moe->ranks;
  plan.experts_per_rank = moe->weights->experts_per_rank;
  plan.rank = moe->rank;
  plan.tile_m = config->tile_m;
  plan.layout = config->layout;
  plan.order = config->order;
  plan.segment_bands = config->segment_bands;
  plan.schedule = config->schedule;
  plan.columns_1 = (int32_t)((moe->intermediate + n - 1) / n);
  plan.columns_2 = (int32_t)((moe->hidden + n - 1) / n);
  plan.raster_bands = config->raster_bands;
  plan.lead = config->lead;
  plan.wave_experts = config->wave_experts;
  plan.group_tasks = config->group_tasks;
  plan.dispatch = 1;
  plan.shared_blocks = moe->weights->shared_intermediate ? blocks : 0;
  plan.reduce_blocks = blocks;
  dt_plan_destroy(moe->plan);
  moe->plan = NULL;
  return dt_plan_create(&plan, moe->counts, &moe->plan);
}

/* The last place in the table (signal: in the segment order) that sends rows to each peer. */
static void find_last_tasks(dt_moe *moe) {
  const dt_plan *plan = moe->plan;
  for (int32_t p = 0; p < moe->ranks; p++) moe->last_task[p] = -1;
  if (moe->config.schedule == DT_SCHEDULE_SIGNAL) {
    for (int32_t i = 0; i < plan->segment_count; i++) moe->last_task[plan->segments[plan->segment_order[i]].owner] = i;
    return;
  }
  for (int64_t i = plan->dispatch_tasks; i < plan->task_count; i++) {
    if (plan->tasks[i].phase != DT_PHASE_L2) continue;
    const dt_band *band = &plan->bands[plan->tasks[i].index];
    for (int32_t part = 0; part < band->parts; part++) moe->last_task[plan->parts[band->first_part + part].owner] = i;
  }
}

static dt_status prepare_threads(dt_moe *moe) {
  for (int32_t i = 0; i < moe->thread_count; i++) {
    dt_thread *thread = &moe->threads[i];
    dt_panels_reset(thread);
    memset(thread->peer_stamp, 0, (size_t)moe->ranks * sizeof(*thread->peer_stamp));
    memset(thread->peer_told, 0, (size_t)moe->ranks * sizeof(*thread->peer_told));
    thread->delays.state = moe->config.delay_seed + moe->epoch * 1000003u + (uint64_t)(moe->rank * 1024 + i) * 7919u;
  }
  return dt_spans_reserve(moe);
}

/* Dispatch leaves most of the link's buffer to direct stores, which would stall a worker: it adds a small piece when
 * the backlog is as small. Nothing competes with it in the other schedules. */
static void pace_dispatch(dt_moe *moe) {
  moe->dispatch_backlog_bytes = 0;
  moe->dispatch_piece_rows = moe->config.tile_m;
  if (!dt_schedule_stores_direct(moe->config.schedule) || moe->comm->config.link_bytes_per_s <= 0) return;
  moe->dispatch_backlog_bytes = moe->comm->config.link_capacity_bytes * DT_DISPATCH_LINK_SHARE;
  int64_t rows = (int64_t)(moe->dispatch_backlog_bytes / (double)moe->row_bytes);
  moe->dispatch_piece_rows = rows < 1 ? 1 : rows < moe->config.tile_m ? rows : moe->config.tile_m;
}

static dt_status prepare_layer(dt_moe *moe) {
  dt_status status = make_plan(moe);
  if (status) return status;
  const dt_plan *plan = moe->plan;
  for (int64_t row = 0; row < plan->combine_rows; row++)
    moe->token_of_row[row] = moe->slot_of_row[row] / moe->config.top_k;
  find_last_tasks(moe);
  moe->reduce_first = plan->task_count - plan->config.reduce_blocks;
  moe->bank_bands[moe->epoch & 1] = plan->band_count;
  moe->bank_blocks[moe->epoch & 1] = plan->config.shared_blocks;
  pace_dispatch(moe);
  return prepare_threads(moe);
}

static dt_status run_tickets(dt_moe *moe, dt_job job, int64_t first, int64_t end) {
  atomic_store(&moe->ticket, first);
  moe->task_end = end;
  atomic_store(&moe->carry_ticket, 0);
  atomic_store(&moe->segment_ticket, 0);
  return dt_pool_run(moe, job);
}

static dt_status run_serial(dt_moe *moe, dt_moe_stats *stats, dt_stage_log *log) {
  const dt_plan *plan = moe->plan;
  uint64_t mark = dt_now_ns();
  dt_status status = run_tickets(moe, DT_JOB_DISPATCH, 0, plan->dispatch_tasks);
  if (!status) status = await_arrivals(moe);
  if (!status) status = dt_stage_barrier(log, moe->comm, "after dispatch");
  if (status) return status;
  stats->dispatch_s = dt_seconds_since(&mark);
  status = run_tickets(moe, DT_JOB_COMPUTE, plan->dispatch_tasks, moe->reduce_first);
  if (!status) status = dt_stage_barrier(log, moe->comm, "after compute");
  if (status) return status;
  stats->compute_s = dt_seconds_since(&mark);
  status = run_tickets(moe, DT_JOB_COMBINE, 0, 0);
  if (!status) status = await_combine(moe);
  if (!status) status = dt_stage_barrier(log, moe->comm, "after combine");
  if (status) return status;
  stats->combine_s = dt_seconds_since(&mark);
  status = run_tickets(moe, DT_JOB_REDUCE, moe->reduce_first, plan->task_count);
  stats->reduce_s = dt_seconds_since(&mark);
  return status;
}

/* Counts of all ranks, then the plan. */
static dt_status enter_layer(dt_moe *moe) {
  const dt_moe_input *input = moe->input;
  dt_status status = settle(moe);
  if (status) return status;
  moe->epoch++;
  int32_t *own = moe->counts + (size_t)moe->rank * moe->experts;
  memset(own, 0, (size_t)moe->experts * sizeof(int32_t));
  if (input->tokens <= moe->config.max_tokens) {
    status =
        dt_slots(input->ids, input->tokens, moe->config.top_k, moe->experts, own, moe->row_of_slot, moe->slot_of_row);
    if (status) return status;
  }
  status = publish_counts(moe, input->tokens);
  if (!status) status = receive_counts(moe);
  if (status) return status;
  reset_next_bank(moe);
  status = check_capacity(moe);
  return status ? status : prepare_layer(moe);
}

static dt_status check_input(const dt_moe_input *input, const void *output) {
  if (input->tokens < 0) return dt_fail(DT_ERR_ARGUMENT, "tokens: %" PRId64 "; allowed: 0 or more", input->tokens);
  if (input->tokens > 0 && (!input->hidden || !input->ids || !input->weights || !output))
    return dt_fail(DT_ERR_ARGUMENT, "hidden, ids, weights, output: must be given for %" PRId64 " tokens",
                   input->tokens);
  return DT_OK;
}

dt_status dt_moe_forward(dt_moe *moe, const dt_moe_input *input, void *output, dt_moe_stats *stats) {
  if (!moe || !input) return dt_fail(DT_ERR_ARGUMENT, "moe, input: must be given");
  dt_status status = dt_layer_error(moe);
  if (status) return status;
  dt_moe_stats measured = {0};
  dt_stage_log log = {.count = 0};
  uint64_t begin = dt_now_ns(), mark = begin, sent = dt_bytes_sent(moe->comm);
  moe->input = input;
  moe->output = output;
  status = check_input(input, output);
  if (!status) status = enter_layer(moe);
  if (status) return fail_layer(moe, status);
  measured.plan_s = dt_seconds_since(&mark);
  dt_stage_add(&log, DT_SPAN_PLAN, begin);

  moe->unsettled = true;
  if (moe->config.schedule == DT_SCHEDULE_SERIAL) {
    status = run_serial(moe, &measured, &log);
  } else {
    int64_t first = moe->config.consumers ? moe->plan->dispatch_tasks : 0;
    status = run_tickets(moe, DT_JOB_LAYER, first, moe->plan->task_count);
  }
  if (status) return fail_layer(moe, status);
  measured.total_s = (double)(dt_now_ns() - begin) * 1e-9;
  status = dt_spans_gather(moe, log.spans, log.count);
  if (status) return fail_layer(moe, status);

  measured.rows = moe->plan->rows;
  measured.padded_rows = moe->plan->padded_rows;
  measured.tiles = moe->reduce_first - moe->plan->dispatch_tasks - moe->plan->config.shared_blocks;
  measured.bytes_sent = dt_bytes_sent(moe->comm) - sent;
  if (stats) *stats = measured;
  return DT_OK;
}

void dt_moe_spans(const dt_moe *moe, const dt_span **spans, size_t *count) {
  *spans = moe->spans;
  *count = moe->span_count;
}

const dt_plan *dt_moe_plan(const dt_moe *moe) {
  return moe->plan;
}

const int32_t *dt_moe_counts(const dt_moe *moe) {
  return moe->counts;
}
