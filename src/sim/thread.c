#include "sim.h"

/* Beside direct stores, dispatch puts no more at a time than the backlog that it keeps to. */
static int32_t dispatch_piece_rows(const sim_world *world, const sim_thread *thread) {
  const sim_item *item = &thread->item;
  if (!sim_paces_dispatch(world, thread)) return item->rows > 0 ? item->rows : 1;
  double rows = world->costs.dispatch_backlog_bytes / (double)world->config.row_in_bytes;
  return rows < 1.0 ? 1 : rows < item->rows ? (int32_t)rows : item->rows;
}

/* A worker's put into one owner's rows of its band, or an item's only put. 0: there is none left. */
static int choose_put(sim_world *world, sim_thread *thread) {
  const sim_rank *rank = &world->rank[thread->rank];
  const dt_plan *plan = rank->plan;
  const sim_item *item = &thread->item;
  sim_put *put = &thread->put;
  *put = (sim_put){.peer = item->peer, .rows = item->rows};
  switch (item->kind) {
  case DT_SPAN_DISPATCH: {
    int32_t piece = dispatch_piece_rows(world, thread), first = thread->next_put * piece;
    if (first >= item->rows && thread->next_put > 0) return 0;
    put->rows = item->rows - first < piece ? item->rows - first : piece;
    put->bytes = (double)world->config.row_in_bytes * put->rows;
    thread->next_put++;
    return 1;
  }
  case DT_SPAN_SEGMENT:
    put->bytes = (double)world->config.row_out_bytes * item->rows;
    return thread->next_put++ == 0;
  case DT_SPAN_L2: {
    if (!sim_is_direct(plan->config.schedule)) return 0;
    const dt_band *band = &plan->bands[item->index];
    while (thread->next_put < band->parts) {
      const dt_part *part = &plan->parts[band->first_part + thread->next_put++];
      if (part->owner == thread->rank || part->rows == 0) continue;
      put->peer = part->owner;
      put->rows = part->rows;
      put->bytes = (double)world->config.row_out_bytes / plan->config.columns_2 * part->rows;
      return 1;
    }
    return 0;
  }
  default:
    return 0;
  }
}

/* One after the other, what the item waits for. NULL: nothing more. */
static sim_counter *choose_counter(sim_world *world, sim_thread *thread) {
  sim_rank *rank = &world->rank[thread->rank];
  const sim_item *item = &thread->item;
  int32_t at = thread->wait_index;
  switch (item->kind) {
  case DT_SPAN_L1:
    return at == 0 ? &rank->arrival[item->index] : NULL;
  case DT_SPAN_L2:
    return at == 0 ? &rank->l1[item->index] : NULL;
  case DT_SPAN_SEGMENT: {
    if (rank->plan->config.schedule != DT_SCHEDULE_SIGNAL) return NULL; /* serial's groups follow a barrier */
    const dt_segment *segment = &rank->plan->segments[item->index];
    return at < segment->bands ? &rank->l2[segment->first_band + at] : NULL;
  }
  case DT_SPAN_REDUCE:
    return at == 0 ? &rank->own : at == 1 ? &rank->peers : NULL;
  default:
    return NULL;
  }
}

static int32_t block_rows(const sim_rank *rank, int32_t blocks, int32_t block) {
  int64_t first, count;
  dt_token_block(rank->tokens, blocks, block, &first, &count);
  return (int32_t)count;
}

static void take_task(sim_world *world, sim_thread *thread, const dt_task *task) {
  const sim_rank *rank = &world->rank[thread->rank];
  const dt_plan *plan = rank->plan;
  sim_item item = {.index = task->index, .column = task->column, .peer = -1, .begin = world->now};
  switch (task->phase) {
  case DT_PHASE_DISPATCH:
    item.kind = DT_SPAN_DISPATCH;
    item.column = -1;
    item.peer = plan->dispatch[task->index].peer;
    item.rows = plan->dispatch[task->index].rows;
    break;
  case DT_PHASE_L1:
  case DT_PHASE_L2:
    item.kind = task->phase == DT_PHASE_L1 ? DT_SPAN_L1 : DT_SPAN_L2;
    item.rows = plan->bands[task->index].rows;
    break;
  default: {
    int reduces = task->phase == DT_PHASE_REDUCE;
    item.kind = reduces ? DT_SPAN_REDUCE : DT_SPAN_SHARED;
    item.column = -1;
    item.rows = block_rows(rank, reduces ? plan->config.reduce_blocks : plan->config.shared_blocks, task->index);
    break;
  }
  }
  thread->item = item;
}

/* A segment of signal, or a group of serial's bulk combine. */
static void take_rows(sim_world *world, sim_thread *thread, int source, int64_t ticket) {
  const dt_plan *plan = world->rank[thread->rank].plan;
  sim_item item = {.kind = DT_SPAN_SEGMENT, .column = -1, .begin = world->now};
  if (source == SIM_SEGMENTS) {
    const dt_segment *segment = &plan->segments[plan->segment_order[ticket]];
    item.index = plan->segment_order[ticket];
    item.peer = segment->owner;
    item.rows = (int32_t)segment->rows;
  } else {
    item.index = (int32_t)ticket;
    item.peer = plan->groups[ticket].owner;
    item.rows = (int32_t)plan->groups[ticket].rows;
  }
  thread->item = item;
}

/* Once a thread's ticket has passed its last task with rows for a peer, it tells the peer. */
static void signal_peers(sim_world *world, sim_thread *thread, int64_t ticket) {
  sim_rank *rank = &world->rank[thread->rank];
  while (thread->signalled < world->ranks - 1) {
    int32_t peer = rank->peer_order[thread->signalled];
    if (rank->last_ticket[peer] >= ticket) return;
    thread->signalled++;
    sim_counter_add(world, &world->rank[peer].peers, 1, thread->stamps[peer]);
  }
}

static int has_rows(const sim_world *world, const sim_thread *thread, int source, int64_t ticket) {
  if (source != SIM_GROUPS) return 1;
  const dt_group *group = &world->rank[thread->rank].plan->groups[ticket];
  return group->owner != thread->rank && group->rows > 0;
}

static sim_step draw(sim_world *world, sim_thread *thread) {
  sim_rank *rank = &world->rank[thread->rank];
  dt_schedule schedule = rank->plan->config.schedule;
  for (;;) {
    int source = *thread->program;
    if (source == SIM_END) {
      world->ended++;
      if (world->now > rank->end) rank->end = world->now;
      return SIM_STEP_ENDED;
    }
    if (source == SIM_BARRIER) {
      thread->program++;
      thread->item = (sim_item){.kind = DT_SPAN_BARRIER, .index = -1, .column = -1, .peer = -1, .begin = world->now};
      return SIM_STEP_BARRIER;
    }
    int signals = sim_is_direct(schedule) ? source == SIM_TABLE : source == SIM_SEGMENTS;
    int64_t ticket = rank->ticket[source];
    if (ticket >= rank->limit[source]) {
      if (signals) signal_peers(world, thread, INT64_MAX);
      thread->program++;
      continue;
    }
    rank->ticket[source]++;
    if (signals) signal_peers(world, thread, ticket);
    if (!has_rows(world, thread, source, ticket)) continue;
    if (source == SIM_SEGMENTS || source == SIM_GROUPS) {
      take_rows(world, thread, source, ticket);
    } else {
      take_task(world, thread, &rank->plan->tasks[ticket]);
    }
    thread->wait_index = thread->next_put = 0;
    thread->wait_begin = world->now;
    return SIM_STEP_WAIT;
  }
}

static void end_wait(sim_world *world, sim_thread *thread) {
  if (world->now == thread->wait_begin) return;
  if (thread->is_worker) world->worker_wait_s += world->now - thread->wait_begin;
  sim_span(world, thread->rank, DT_SPAN_WAIT, thread->track, &thread->item, thread->wait_begin, world->now);
}

static void finish(sim_world *world, sim_thread *thread) {
  sim_rank *rank = &world->rank[thread->rank];
  const sim_item *item = &thread->item;
  switch (item->kind) {
  case DT_SPAN_DISPATCH: {
    sim_rank *peer = &world->rank[item->peer];
    double stamp = item->peer == thread->rank ? 0.0 : thread->put.visible;
    sim_counter_add(world, &peer->arrival[rank->plan->dispatch[item->index].band], item->rows, stamp);
    break;
  }
  case DT_SPAN_L1:
    sim_counter_add(world, &rank->l1[item->index], 1, 0.0);
    break;
  case DT_SPAN_L2:
    sim_counter_add(world, &rank->l2[item->index], 1, 0.0);
    sim_counter_add(world, &rank->own, 1, 0.0);
    break;
  case DT_SPAN_SHARED:
    sim_counter_add(world, &rank->own, 1, 0.0);
    break;
  default:
    break;
  }
  sim_span(world, thread->rank, (dt_span_kind)item->kind, thread->track, item, item->begin, world->now);
}

/* Parked until the last thread of all ranks has arrived. */
static void arrive(sim_world *world, sim_thread *thread) {
  int32_t index = (int32_t)(thread - world->thread);
  thread->next_waiter = world->barrier_first;
  world->barrier_first = index;
  if (++world->barrier_count < world->threads) return;
  double release = world->now + world->costs.barrier_s;
  if (world->barriers < 4) world->barrier_end[world->barriers++] = release;
  for (int32_t i = world->barrier_first; i >= 0; i = world->thread[i].next_waiter)
    sim_wake_at(world, &world->thread[i], release);
  world->barrier_first = -1;
  world->barrier_count = 0;
}

/* Goes on with the thread until it is parked or has ended. */
void sim_run_thread(sim_world *world, sim_thread *thread) {
  for (;;) {
    switch (thread->step) {
    case SIM_STEP_DRAW:
      thread->step = draw(world, thread);
      break;
    case SIM_STEP_WAIT: {
      sim_counter *counter = choose_counter(world, thread);
      if (counter) {
        if (!sim_counter_wait(world, thread, counter)) return;
        thread->wait_index++;
        break;
      }
      end_wait(world, thread);
      thread->step = SIM_STEP_WORKED;
      double cost = sim_item_cost(world, thread);
      if (cost > 0.0) {
        sim_work(world, thread, cost);
        return;
      }
      break;
    }
    case SIM_STEP_WORKED:
      thread->step = choose_put(world, thread) ? SIM_STEP_PUT : SIM_STEP_FINISH;
      break;
    case SIM_STEP_PUT:
      if (!sim_put_may_start(world, thread)) return;
      thread->step = SIM_STEP_PUT_COPIED;
      sim_put_start(world, thread);
      return;
    case SIM_STEP_PUT_COPIED:
      thread->put.copied = world->now;
      thread->step = SIM_STEP_PUT_DONE;
      if (thread->put.stall_end <= world->now) break;
      sim_wake_at(world, thread, thread->put.stall_end + world->costs.wake_s);
      return;
    case SIM_STEP_PUT_DONE:
      sim_put_finish(world, thread);
      thread->step = SIM_STEP_WORKED;
      break;
    case SIM_STEP_FINISH:
      finish(world, thread);
      thread->step = SIM_STEP_DRAW;
      break;
    case SIM_STEP_BARRIER:
      /* What a stage put must be visible before the stage is over. */
      if (thread->latest_stamp > world->now) {
        sim_wake_at(world, thread, thread->latest_stamp);
        return;
      }
      thread->step = SIM_STEP_BARRIER_LEFT;
      arrive(world, thread);
      return;
    case SIM_STEP_BARRIER_LEFT:
      sim_span(world, thread->rank, DT_SPAN_BARRIER, thread->track, &thread->item, thread->item.begin, world->now);
      thread->step = SIM_STEP_DRAW;
      break;
    case SIM_STEP_ENDED:
      return;
    }
  }
}
