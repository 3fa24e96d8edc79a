/* What a worker does with the tickets it draws. */
#include "cpu/executor.h"

#include <string.h>

#include "core/error.h"
#include "cpu/kernels.h"

bool dt_schedule_stores_direct(dt_schedule schedule) {
  return schedule != DT_SCHEDULE_SERIAL && schedule != DT_SCHEDULE_SIGNAL;
}

/* Columns [*first, *first + result) of the tile. */
static int64_t tile_columns(const dt_moe *moe, int32_t column, int64_t width, int64_t *first) {
  *first = (int64_t)column * moe->config.tile_n;
  return width - *first < moe->config.tile_n ? width - *first : moe->config.tile_n;
}

/* The one rank whose rows the band awaits; -1 if there are several. */
static int32_t awaited_rank(const dt_moe *moe, const dt_band *band) {
  int32_t peer = -1;
  for (int32_t i = 0; i < band->parts; i++) {
    int32_t owner = moe->plan->parts[band->first_part + i].owner;
    if (owner == moe->rank) continue;
    if (peer >= 0) return -1;
    peer = owner;
  }
  return peer;
}

/* The rows of a product. Those of full bands may be computed with others, and then whole groups are, so that their bits
 * do not depend on the others: `lead` rows before the first one, and some after the last. */
typedef struct call_rows {
  int64_t count, lead;
  bool joinable;
} call_rows;

/* to[rows][columns] = a * w^T. Rows that are never joined are computed turned, [columns][rows]: OpenBLAS packs its
 * operands at every call, and fewer rows than columns pack cheaper on the right (measured: docs/cpu.md). */
static void multiply(dt_thread *thread, const call_rows *r, int64_t columns, int64_t inner, const float *a,
                     int64_t a_stride, const float *w, int64_t w_stride, float *to, int64_t to_stride) {
  int64_t rows = r->count;
  if (r->joinable) {
    dt_gemm_nt(dt_call_rows(r->lead + rows, thread->moe->row_group), columns, inner, a - r->lead * a_stride, a_stride,
               w, w_stride, to - r->lead * to_stride, to_stride);
    return;
  }
  dt_gemm_nt(columns, rows, inner, w, w_stride, a, a_stride, thread->turned, rows);
  dt_transpose(thread->turned, columns, rows, to, to_stride);
}

static void gate_up(dt_thread *thread, const dt_expert *expert, const call_rows *r, const float *a, int64_t a_stride,
                    int64_t first, int64_t columns) {
  int64_t gate_stride, up_stride, hidden = thread->moe->hidden;
  const float *gate = dt_panel_b(thread, 0, &expert->gate, first, columns, &gate_stride);
  multiply(thread, r, columns, hidden, a, a_stride, gate, gate_stride, thread->gate + r->lead * columns, columns);
  const float *up = dt_panel_b(thread, 1, &expert->up, first, columns, &up_stride);
  multiply(thread, r, columns, hidden, a, a_stride, up, up_stride, thread->up + r->lead * columns, columns);
}

/* Columns [first, first + columns) of act, whose rows are `inner` long. */
static void apply_glu(dt_thread *thread, const dt_expert *expert, const call_rows *r, int64_t first, int64_t columns,
                      float *act, int64_t inner) {
  const dt_moe_weights *weights = thread->moe->weights;
  dt_glu glu = {.activation = weights->activation,
                .alpha = weights->activation_alpha,
                .limit = weights->activation_limit,
                .gate_bias = expert->gate_bias ? expert->gate_bias + first : NULL,
                .up_bias = expert->up_bias ? expert->up_bias + first : NULL};
  const float *gate = thread->gate + r->lead * columns, *up = thread->up + r->lead * columns;
  for (int64_t i = 0; i < r->count; i++)
    dt_glu_row(&glu, gate + i * columns, up + i * columns, columns, act + i * inner + first);
}

/* Columns [first, first + columns) of act * down^T + bias. */
static void down(dt_thread *thread, const dt_expert *expert, const call_rows *r, const float *act, int64_t inner,
                 int64_t first, int64_t columns, float *to, int64_t to_stride) {
  int64_t stride;
  const float *w = dt_panel_b(thread, 2, &expert->down, first, columns, &stride);
  multiply(thread, r, columns, inner, act, inner, w, stride, to, to_stride);
  for (int64_t i = 0; i < r->count && expert->down_bias; i++)
    dt_add_row(to + i * to_stride, expert->down_bias + first, columns);
}

/* Tiles of one column that one call computes, by their bands' rows in memory.
 */
typedef struct run {
  const dt_task *const *tasks;
  int32_t count;
  call_rows rows;
  uint64_t started_ns; /* after waiting */
} run;

static const dt_band *band_of(const dt_moe *moe, const dt_task *task) {
  return &moe->plan->bands[task->index];
}

/* Rows between the group of the expert's rows that the band begins in, and the band. */
static int64_t lead_of(const dt_moe *moe, int32_t index) {
  const dt_band *bands = moe->plan->bands;
  int32_t first = index;
  while (first > 0 && bands[first - 1].expert == bands[index].expert) first--;
  return (bands[index].row - bands[first].row) % moe->row_group;
}

static bool is_ready(const dt_thread *thread, const dt_task *task) {
  const dt_moe *moe = thread->moe;
  if (task->phase == DT_PHASE_L2)
    return dt_bank_reached(thread, DT_COUNTER_TILES_1, task->index, (uint32_t)moe->plan->config.columns_1);
  uint32_t remote = (uint32_t)band_of(moe, task)->remote_rows;
  return remote == 0 || dt_bank_reached(thread, DT_COUNTER_ARRIVAL, task->index, remote);
}

static dt_status await_input(dt_thread *thread, const dt_task *task) {
  const dt_moe *moe = thread->moe;
  const dt_band *band = band_of(moe, task);
  if (task->phase == DT_PHASE_L2)
    return dt_bank_wait(thread, DT_COUNTER_TILES_1, task->index, (uint32_t)moe->plan->config.columns_1, -1);
  if (band->remote_rows == 0) return DT_OK;
  return dt_bank_wait(thread, DT_COUNTER_ARRIVAL, task->index, (uint32_t)band->remote_rows, awaited_rank(moe, band));
}

/* Waits for the first of `left` tiles, and takes along the full ones after it
 * that need no waiting. */
static dt_status begin_run(dt_thread *thread, const dt_task *const *tasks, int32_t left, run *r) {
  const dt_moe *moe = thread->moe;
  const dt_band *band = band_of(moe, tasks[0]);
  *r = (run){.tasks = tasks, .count = 1, .rows = {.count = band->rows}};
  r->rows.joinable = moe->call_bands > 1 && band->rows == moe->config.tile_m;
  if (r->rows.joinable) r->rows.lead = lead_of(moe, tasks[0]->index);
  dt_status status = await_input(thread, tasks[0]);
  r->started_ns = dt_now_ns();
  while (!status && r->rows.joinable && r->count < left) {
    const dt_band *next = band_of(moe, tasks[r->count]);
    if (next->row != band->row + r->rows.count || next->rows != moe->config.tile_m ||
        !is_ready(thread, tasks[r->count]))
      break;
    r->rows.count += next->rows;
    r->count++;
  }
  return status;
}

static dt_status publish_l1(dt_thread *thread, const run *r) {
  dt_status status = DT_OK;
  for (int32_t i = 0; i < r->count && !status; i++)
    status = dt_bank_add(thread, DT_COUNTER_TILES_1, r->tasks[i]->index, 1);
  return status;
}

static dt_status run_l1(dt_thread *thread, const run *r) {
  dt_moe *moe = thread->moe;
  const dt_band *band = band_of(moe, r->tasks[0]);
  const dt_expert *expert = &moe->weights->experts[band->expert];
  int64_t first, stride, columns = tile_columns(moe, r->tasks[0]->column, moe->intermediate, &first);
  const float *a = dt_panel_a(thread, r->tasks, r->count, &stride);
  gate_up(thread, expert, &r->rows, a, stride, first, columns);
  if (moe->config.publish_early) {
    dt_status status = publish_l1(thread, r);
    if (status) return status;
  }
  dt_delay(thread);
  apply_glu(thread, expert, &r->rows, first, columns, moe->act + band->row * moe->intermediate, moe->intermediate);
  return moe->config.publish_early ? DT_OK : publish_l1(thread, r);
}

/* Rows of this rank, and those that wait for a consumer, are rounded to where they belong in full rows. */
static void store_local(const dt_moe *moe, const float *tile, int64_t columns, int64_t rows, unsigned char *to) {
  for (int64_t i = 0; i < rows; i++)
    dt_round_row(moe->config.dtype, tile + i * columns, columns, to + (size_t)i * moe->row_bytes);
}

static dt_status store_direct(dt_thread *thread, const dt_task *task, const dt_part *part, const float *tile,
                              int64_t first, int64_t columns) {
  dt_moe *moe = thread->moe;
  const void *src = tile;
  if (moe->config.dtype != DT_DTYPE_F32) {
    dt_round_row(moe->config.dtype, tile, part->rows * columns, thread->rounded);
    src = thread->rounded;
  }
  size_t bytes = (size_t)columns * moe->element;
  dt_put put = {.window = moe->combine,
                .peer = part->owner,
                .offset = (size_t)part->dst_row * moe->row_bytes + (size_t)first * moe->element,
                .dst_stride = moe->row_bytes,
                .src = src,
                .src_stride = bytes,
                .row_bytes = bytes,
                .rows = part->rows};
  uint64_t visible_ns;
  dt_status status = dt_carry_put(thread, &put, DT_SPAN_STORE, task->index, task->column, &visible_ns);
  if (visible_ns > thread->peer_stamp[part->owner]) thread->peer_stamp[part->owner] = visible_ns;
  return status;
}

static dt_status store_parts(dt_thread *thread, const dt_task *task, const float *tile, int64_t first,
                             int64_t columns) {
  dt_moe *moe = thread->moe;
  const dt_band *band = band_of(moe, task);
  bool direct = dt_schedule_stores_direct(moe->config.schedule);
  unsigned char *own = dt_window_local(moe->combine);
  for (int32_t i = 0; i < band->parts; i++) {
    const dt_part *part = &moe->plan->parts[band->first_part + i];
    const float *rows = tile + (part->row - band->row) * columns;
    size_t left = (size_t)first * moe->element;
    if (part->owner == moe->rank) {
      store_local(moe, rows, columns, part->rows, own + (size_t)part->dst_row * moe->row_bytes + left);
    } else if (!direct) {
      store_local(moe, rows, columns, part->rows, moe->y + (size_t)part->row * moe->row_bytes + left);
    } else {
      dt_status status = store_direct(thread, task, part, rows, first, columns);
      if (status) return status;
    }
  }
  return DT_OK;
}

static dt_status publish_l2(dt_thread *thread, const dt_task *task) {
  dt_status status = DT_OK;
  if (thread->moe->config.schedule == DT_SCHEDULE_SIGNAL)
    status = dt_bank_add(thread, DT_COUNTER_TILES_2, task->index, 1);
  return status ? status : dt_bank_add(thread, DT_COUNTER_TILES_2_ALL, 0, 1);
}

/* `end`: of the ticket in the table. */
static dt_status publish_early(dt_thread *thread, const run *r, int64_t end) {
  dt_status status = DT_OK;
  for (int32_t i = 0; i < r->count && !status; i++) status = publish_l2(thread, r->tasks[i]);
  if (!status && dt_schedule_stores_direct(thread->moe->config.schedule)) status = dt_tell_peers(thread, end);
  return status;
}

static dt_status run_l2(dt_thread *thread, const run *r, int64_t end) {
  dt_moe *moe = thread->moe;
  const dt_band *band = band_of(moe, r->tasks[0]);
  const dt_expert *expert = &moe->weights->experts[band->expert];
  int64_t first, columns = tile_columns(moe, r->tasks[0]->column, moe->hidden, &first);
  float *tile = thread->up + r->rows.lead * columns;
  down(thread, expert, &r->rows, moe->act + band->row * moe->intermediate, moe->intermediate, first, columns, tile,
       columns);
  dt_status status = moe->config.publish_early ? publish_early(thread, r, end) : DT_OK;
  if (status) return status;
  dt_delay(thread);

  for (int32_t i = 0; i < r->count && !status; i++) {
    status = store_parts(thread, r->tasks[i], tile, first, columns);
    if (!status && !moe->config.publish_early) status = publish_l2(thread, r->tasks[i]);
    tile += band_of(moe, r->tasks[i])->rows * columns;
  }
  return status;
}

/* The tiles of a call share its time evenly; the first one has the wait before
 * it. */
static void record_run(dt_thread *thread, const run *r, dt_span_kind kind, uint64_t begin) {
  uint64_t end = dt_now_ns(), share = (end - r->started_ns) / (uint64_t)r->count;
  for (int32_t i = 0; i < r->count; i++) {
    uint64_t next = i + 1 < r->count ? r->started_ns + (uint64_t)(i + 1) * share : end;
    dt_span *span = dt_span_add(thread, kind, begin, next);
    span->index = r->tasks[i]->index;
    span->column = r->tasks[i]->column;
    span->rows = band_of(thread->moe, r->tasks[i])->rows;
    begin = next;
  }
}

/* Tiles [first, end) of the table: of one column and one expert. */
static dt_status run_tiles(dt_thread *thread, int64_t first, int64_t end) {
  const dt_plan *plan = thread->moe->plan;
  const dt_task *tasks[DT_A_PANELS];
  int32_t count = 0;
  for (int64_t p = first; p < end; p++) { /* bands ascending, as their rows do */
    int32_t at = count++;
    for (; at > 0 && tasks[at - 1]->index > plan->tasks[p].index; at--) tasks[at] = tasks[at - 1];
    tasks[at] = &plan->tasks[p];
  }
  run r;
  for (int32_t done = 0; done < count; done += r.count) {
    uint64_t begin = dt_now_ns();
    bool second = tasks[0]->phase == DT_PHASE_L2;
    dt_status status = begin_run(thread, tasks + done, count - done, &r);
    if (!status) status = second ? run_l2(thread, &r, end) : run_l1(thread, &r);
    record_run(thread, &r, second ? DT_SPAN_L2 : DT_SPAN_L1, begin);
    if (status) return status;
  }
  return DT_OK;
}

static dt_status run_shared(dt_thread *thread, const dt_task *task) {
  dt_moe *moe = thread->moe;
  const dt_moe_weights *weights = moe->weights;
  const dt_expert *shared = &weights->shared;
  int64_t first, count, width = weights->shared_intermediate, hidden = moe->hidden, n = moe->config.tile_n;
  dt_token_block(moe->input->tokens, moe->plan->config.shared_blocks, task->index, &first, &count);
  const unsigned char *rows = (const unsigned char *)moe->input->hidden + (size_t)first * moe->row_bytes;
  const float *a = (const float *)(const void *)rows;
  if (moe->config.dtype != DT_DTYPE_F32) {
    dt_widen_row(moe->config.dtype, rows, count * hidden, thread->row_block);
    a = thread->row_block;
  }
  const call_rows r = {.count = count};
  for (int64_t c = 0; c < width; c += n) {
    int64_t columns = width - c < n ? width - c : n;
    gate_up(thread, shared, &r, a, hidden, c, columns);
    apply_glu(thread, shared, &r, c, columns, thread->shared_act, width);
  }
  float *out = moe->shared_out + first * hidden;
  for (int64_t c = 0; c < hidden; c += n)
    down(thread, shared, &r, thread->shared_act, width, c, hidden - c < n ? hidden - c : n, out + c, hidden);
  for (int64_t i = 0; i < count; i++) {
    if (weights->shared_gate)
      dt_scale_row(out + i * hidden, hidden, dt_sigmoid_dot(a + i * hidden, weights->shared_gate, hidden));
  }
  return dt_bank_add(thread, DT_COUNTER_SHARED, task->index, 1);
}

/* Waits for every rank that holds results of the tokens, this one included, then for their shared-expert rows. */
static dt_status await_results(dt_thread *thread, int32_t block, int64_t first, int64_t count) {
  dt_moe *moe = thread->moe;
  int32_t k = moe->config.top_k, per_rank = moe->weights->experts_per_rank;
  memset(thread->peer_used, 0, (size_t)moe->ranks * sizeof(*thread->peer_used));
  for (int64_t slot = first * k; slot < (first + count) * k; slot++) {
    if (moe->input->ids[slot] >= 0) thread->peer_used[moe->input->ids[slot] / per_rank] = true;
  }
  for (int32_t i = 0; i < moe->ranks; i++) {
    int32_t peer = (moe->rank + i) % moe->ranks; /* own tiles first */
    if (!thread->peer_used[peer]) continue;
    uint32_t all_tiles = (uint32_t)moe->plan->band_count * (uint32_t)moe->plan->config.columns_2;
    dt_status status =
        i == 0 ? dt_bank_wait(thread, DT_COUNTER_TILES_2_ALL, 0, all_tiles, -1)
               : dt_bank_wait(thread, DT_COUNTER_COMBINE, peer, (uint32_t)moe->headers[peer].producers, peer);
    if (status) return status;
  }
  return moe->weights->shared_intermediate ? dt_bank_wait(thread, DT_COUNTER_SHARED, block, 1, -1) : DT_OK;
}

static dt_status run_reduce(dt_thread *thread, const dt_task *task) {
  dt_moe *moe = thread->moe;
  const unsigned char *combine = dt_window_local(moe->combine);
  int64_t first, count;
  int32_t k = moe->config.top_k;
  dt_token_block(moe->input->tokens, moe->plan->config.reduce_blocks, task->index, &first, &count);
  dt_status status = await_results(thread, task->index, first, count);
  if (status) return status;
  float *sum = thread->row_block;
  for (int64_t t = first; t < first + count; t++) {
    memset(sum, 0, (size_t)moe->hidden * sizeof(float));
    for (int64_t slot = t * k; slot < (t + 1) * k; slot++) {
      int64_t row = moe->row_of_slot[slot];
      if (row < 0) continue;
      dt_accumulate_row(moe->config.dtype, moe->input->weights[slot], combine + (size_t)row * moe->row_bytes,
                        moe->hidden, sum);
    }
    if (moe->weights->shared_intermediate) dt_add_row(sum, moe->shared_out + t * moe->hidden, moe->hidden);
    dt_round_row(moe->config.dtype, sum, moe->hidden, (unsigned char *)moe->output + (size_t)t * moe->row_bytes);
  }
  return DT_OK;
}

static dt_status run_task(dt_thread *thread, int64_t position) {
  const dt_plan *plan = thread->moe->plan;
  const dt_task *task = &plan->tasks[position];
  uint64_t begin = dt_now_ns();
  dt_status status = DT_OK;
  dt_span_kind kind = DT_SPAN_SHARED;
  int32_t blocks = plan->config.shared_blocks;
  switch ((dt_phase)task->phase) {
  case DT_PHASE_DISPATCH:
    return dt_dispatch_one(thread, task->index);
  case DT_PHASE_SHARED:
    status = run_shared(thread, task);
    break;
  case DT_PHASE_REDUCE:
    kind = DT_SPAN_REDUCE;
    blocks = plan->config.reduce_blocks;
    status = run_reduce(thread, task);
    break;
  case DT_PHASE_L1:
  case DT_PHASE_L2:
  case DT_PHASE_SEGMENT:
    return dt_fail(DT_ERR_INTERNAL,
                   "tasks: %lld is of phase %d; tiles have their own way, "
                   "segments are the consumers'",
                   (long long)position, (int)task->phase);
  }
  int64_t first, rows;
  dt_token_block(thread->moe->input->tokens, blocks, task->index, &first, &rows);
  dt_span *span = dt_span_add(thread, kind, begin, dt_now_ns());
  span->index = task->index;
  span->column = task->column;
  span->rows = (int32_t)rows;
  return status;
}

static dt_status run_ticket(dt_thread *thread, int64_t ticket) {
  const dt_moe *moe = thread->moe;
  int64_t first = moe->tickets[ticket];
  uint32_t phase = (uint32_t)moe->plan->tasks[first].phase;
  if (phase == DT_PHASE_L1 || phase == DT_PHASE_L2) return run_tiles(thread, first, moe->tickets[ticket + 1]);
  return run_task(thread, first);
}

dt_status dt_tasks_run(dt_thread *thread) {
  dt_moe *moe = thread->moe;
  bool direct = dt_schedule_stores_direct(moe->config.schedule);
  while (!dt_failure_seen(&moe->failure)) {
    int64_t ticket = atomic_fetch_add_explicit(&moe->ticket, 1, memory_order_relaxed);
    /* Before anything that may wait: a peer's reduction waits for this. */
    if (direct) {
      dt_status status = dt_tell_peers(thread, ticket < moe->ticket_end ? moe->tickets[ticket] : moe->task_end);
      if (status) return status;
    }
    if (ticket >= moe->ticket_end) return DT_OK;
    dt_status status = run_ticket(thread, ticket);
    if (status) return status;
  }
  return dt_layer_error(moe);
}
