/* What moves rows between ranks: dispatch, signal's segments, serial's bulk combine; and the counters. */
#include "cpu/executor.h"

#include <string.h>

/* Shorter waits are the cost of looking. */
enum { SHORT_WAIT_NS = 1000 };

static const struct {
  const char *phase, *counter;
} counter_names[DT_COUNTER_KINDS] = {
    [DT_COUNTER_ARRIVAL] = {"L1", "arrival of band"},
    [DT_COUNTER_TILES_1] = {"L2", "L1 tiles of band"},
    [DT_COUNTER_TILES_2] = {"segments", "L2 tiles of band"},
    [DT_COUNTER_SHARED] = {"reduction", "shared-expert block"},
    [DT_COUNTER_COMBINE] = {"reduction", "combine rows of rank"},
    [DT_COUNTER_TILES_2_ALL] = {"reduction", "L2 tiles"},
};

dt_status dt_bank_wait(dt_thread *thread, dt_counter_kind kind, int64_t index, uint32_t target, int32_t peer) {
  dt_moe *moe = thread->moe;
  dt_wait wait = {.phase = counter_names[kind].phase,
                  .counter = counter_names[kind].counter,
                  .index = kind == DT_COUNTER_TILES_2_ALL ? -1 : index,
                  .peer = peer};
  dt_delay(thread);
  uint64_t begin = dt_now_ns();
  dt_status status = dt_comm_wait(moe->comm, moe->counters, dt_bank_offset(moe, kind, index), target, &wait);
  uint64_t end = dt_now_ns();
  if (end - begin >= SHORT_WAIT_NS) {
    dt_span *span = dt_span_add(thread, DT_SPAN_WAIT, begin, end);
    span->index = (int32_t)index;
    span->peer = peer;
  }
  dt_delay(thread);
  return status;
}

dt_status dt_bank_add(dt_thread *thread, dt_counter_kind kind, int64_t index, uint32_t value) {
  dt_moe *moe = thread->moe;
  dt_delay(thread);
  return dt_comm_signal(moe->comm, moe->counters, moe->rank, dt_bank_offset(moe, kind, index), value, 0);
}

dt_status dt_carry_put(dt_thread *thread, const dt_put *put, dt_span_kind kind, int32_t index, int32_t column,
                       uint64_t *visible_ns) {
  int64_t bytes = put->rows * (int64_t)put->row_bytes;
  *visible_ns = 0;
  dt_delay(thread);
  uint64_t begin = dt_now_ns();
  dt_status status = dt_comm_put(thread->moe->comm, put, visible_ns);
  dt_span *span = dt_span_add(thread, kind, begin, dt_now_ns());
  span->index = index;
  span->column = column;
  span->peer = put->peer;
  span->rows = (int32_t)put->rows;
  span->bytes = bytes;
  if (*visible_ns > begin) {
    dt_span *link = dt_span_add(thread, DT_SPAN_LINK, begin, *visible_ns);
    link->track = thread->moe->thread_count;
    link->index = index;
    link->column = column;
    link->peer = put->peer;
    link->rows = (int32_t)put->rows;
    link->bytes = bytes;
  }
  dt_delay(thread);
  return status;
}

static dt_status tell_peer(dt_thread *thread, int32_t peer) {
  dt_moe *moe = thread->moe;
  thread->peer_told[peer] = true;
  dt_delay(thread);
  return dt_comm_signal(moe->comm, moe->counters, peer, dt_bank_offset(moe, DT_COUNTER_COMBINE, moe->rank), 1,
                        thread->peer_stamp[peer]);
}

dt_status dt_tell_peers(dt_thread *thread, int64_t position) {
  dt_moe *moe = thread->moe;
  for (int32_t i = 1; i < moe->ranks; i++) {
    int32_t peer = (moe->rank + i) % moe->ranks;
    if (thread->peer_told[peer] || moe->last_task[peer] >= position) continue;
    dt_status status = tell_peer(thread, peer);
    if (status) return status;
  }
  return DT_OK;
}

/* In pieces of at most dispatch_piece_rows: one large put would leave the link's buffer no room for a direct store. */
static dt_status put_dispatch(dt_thread *thread, int32_t index, const dt_dispatch *dispatch, uint64_t *visible_ns) {
  dt_moe *moe = thread->moe;
  for (int64_t first = 0; first < dispatch->rows; first += moe->dispatch_piece_rows) {
    int64_t left = dispatch->rows - first;
    dt_put put = {.window = moe->dispatch,
                  .peer = dispatch->peer,
                  .offset = (size_t)(dispatch->row + first) * moe->row_bytes,
                  .dst_stride = moe->row_bytes,
                  .src = moe->input->hidden,
                  .src_stride = moe->row_bytes,
                  .src_index = moe->token_of_row + dispatch->src_row + first,
                  .row_bytes = moe->row_bytes,
                  .rows = left < moe->dispatch_piece_rows ? left : moe->dispatch_piece_rows,
                  .backlog_limit_bytes = moe->dispatch_backlog_bytes};
    dt_status status = dt_carry_put(thread, &put, DT_SPAN_DISPATCH, index, -1, visible_ns);
    if (status) return status;
  }
  return DT_OK;
}

static dt_status signal_arrival(dt_thread *thread, const dt_dispatch *dispatch, uint64_t visible_ns) {
  dt_moe *moe = thread->moe;
  return dt_comm_signal(moe->comm, moe->counters, dispatch->peer,
                        dt_bank_offset(moe, DT_COUNTER_ARRIVAL, dispatch->band), (uint32_t)dispatch->rows, visible_ns);
}

dt_status dt_dispatch_one(dt_thread *thread, int32_t index) {
  const dt_dispatch *dispatch = &thread->moe->plan->dispatch[index];
  uint64_t visible_ns = 0;
  /* Own rows stay where they are: L1 reads them from the input. The span says that this costs nothing. */
  if (dispatch->peer == thread->moe->rank) {
    uint64_t now = dt_now_ns();
    dt_span *span = dt_span_add(thread, DT_SPAN_DISPATCH, now, now);
    span->index = index;
    span->peer = dispatch->peer;
    span->rows = dispatch->rows;
    return DT_OK;
  }
  if (thread->moe->config.publish_early) {
    dt_status status = signal_arrival(thread, dispatch, 0);
    dt_delay(thread);
    return status ? status : put_dispatch(thread, index, dispatch, &visible_ns);
  }
  dt_status status = put_dispatch(thread, index, dispatch, &visible_ns);
  return status ? status : signal_arrival(thread, dispatch, visible_ns);
}

dt_status dt_dispatch_run(dt_thread *thread) {
  dt_moe *moe = thread->moe;
  while (!dt_failure_seen(&moe->failure)) {
    int64_t ticket = atomic_fetch_add_explicit(&moe->carry_ticket, 1, memory_order_relaxed);
    if (ticket >= moe->plan->dispatch_tasks) return DT_OK;
    dt_status status = dt_dispatch_one(thread, moe->plan->tasks[ticket].index);
    if (status) return status;
  }
  return dt_layer_error(moe);
}

/* Y rows [row, row + rows) to their owner's combine buffer. */
static dt_status put_combine(dt_thread *thread, int32_t owner, int64_t row, int64_t dst_row, int64_t rows,
                             int32_t index) {
  dt_moe *moe = thread->moe;
  dt_put put = {.window = moe->combine,
                .peer = owner,
                .offset = (size_t)dst_row * moe->row_bytes,
                .dst_stride = moe->row_bytes,
                .src = moe->y + (size_t)row * moe->row_bytes,
                .src_stride = moe->row_bytes,
                .row_bytes = moe->row_bytes,
                .rows = rows};
  uint64_t visible_ns;
  dt_status status = dt_carry_put(thread, &put, DT_SPAN_SEGMENT, index, -1, &visible_ns);
  if (visible_ns > thread->peer_stamp[owner]) thread->peer_stamp[owner] = visible_ns;
  return status;
}

static dt_status run_segment(dt_thread *thread, int64_t position) {
  dt_moe *moe = thread->moe;
  int32_t index = moe->plan->segment_order[position];
  const dt_segment *segment = &moe->plan->segments[index];
  for (int32_t i = 0; i < segment->bands; i++) {
    dt_status status =
        dt_bank_wait(thread, DT_COUNTER_TILES_2, segment->first_band + i, (uint32_t)moe->plan->config.columns_2, -1);
    if (status) return status;
  }
  if (moe->config.publish_early) {
    dt_status status = dt_tell_peers(thread, position + 1);
    if (status) return status;
    dt_delay(thread);
  }
  return put_combine(thread, segment->owner, segment->row, segment->dst_row, segment->rows, index);
}

dt_status dt_segments_run(dt_thread *thread) {
  dt_moe *moe = thread->moe;
  while (!dt_failure_seen(&moe->failure)) {
    int64_t position = atomic_fetch_add_explicit(&moe->segment_ticket, 1, memory_order_relaxed);
    dt_status status = dt_tell_peers(thread, position);
    if (status) return status;
    if (position >= moe->plan->segment_count) return dt_tell_peers(thread, INT64_MAX);
    status = run_segment(thread, position);
    if (status) return status;
  }
  return dt_layer_error(moe);
}

dt_status dt_bulk_run(dt_thread *thread) {
  dt_moe *moe = thread->moe;
  while (!dt_failure_seen(&moe->failure)) {
    int64_t index = atomic_fetch_add_explicit(&moe->carry_ticket, 1, memory_order_relaxed);
    if (index >= moe->plan->group_count) return dt_tell_peers(thread, INT64_MAX);
    const dt_group *group = &moe->plan->groups[index];
    if (group->owner == moe->rank) continue;
    dt_status status = put_combine(thread, group->owner, group->row, group->dst_row, group->rows, (int32_t)index);
    if (status) return status;
  }
  return dt_layer_error(moe);
}
