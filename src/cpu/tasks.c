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

/* A tile is computed as W * A^T, transposed: [columns][rows]. OpenBLAS packs its operands at every call, and packs the
 * weights, the larger of the two here, cheaper on the left (measured: docs/cpu.md). */
static void gate_up(dt_thread *thread, const dt_expert *expert, const float *a, int64_t a_stride, int64_t rows,
                    int64_t first, int64_t columns) {
  int64_t gate_stride, up_stride, hidden = thread->moe->hidden;
  const float *gate = dt_panel_b(thread, 0, &expert->gate, first, columns, &gate_stride);
  dt_gemm_nt(columns, rows, hidden, gate, gate_stride, a, a_stride, thread->gate, rows);
  const float *up = dt_panel_b(thread, 1, &expert->up, first, columns, &up_stride);
  dt_gemm_nt(columns, rows, hidden, up, up_stride, a, a_stride, thread->up, rows);
}

/* act: [I][rows], transposed as the tiles are, so that a tile's share is one piece. */
static void apply_glu(dt_thread *thread, const dt_expert *expert, int64_t rows, int64_t first, int64_t columns,
                      float *act) {
  const dt_moe_weights *weights = thread->moe->weights;
  dt_glu glu = {
      .activation = weights->activation, .alpha = weights->activation_alpha, .limit = weights->activation_limit};
  act += first * rows;
  if (!expert->gate_bias && !expert->up_bias) {
    dt_glu_row(&glu, thread->gate, thread->up, columns * rows, act);
    return;
  }
  for (int64_t j = 0; j < columns; j++) {
    glu.gate_bias = expert->gate_bias ? expert->gate_bias[first + j] : 0;
    glu.up_bias = expert->up_bias ? expert->up_bias[first + j] : 0;
    dt_glu_row(&glu, thread->gate + j * rows, thread->up + j * rows, rows, act + j * rows);
  }
}

/* Columns [first, first + columns) of act * down^T + bias, turned back into rows. */
static void down(dt_thread *thread, const dt_expert *expert, const float *act, int64_t inner, int64_t rows,
                 int64_t first, int64_t columns, float *to, int64_t to_stride) {
  int64_t stride;
  const float *b = dt_panel_b(thread, 2, &expert->down, first, columns, &stride);
  dt_gemm_nn(columns, rows, inner, b, stride, act, rows, thread->gate, rows);
  for (int64_t j = 0; j < columns && expert->down_bias; j++)
    dt_offset_row(thread->gate + j * rows, rows, expert->down_bias[first + j]);
  dt_transpose(thread->gate, columns, rows, to, to_stride);
}

static dt_status run_l1(dt_thread *thread, const dt_task *task) {
  dt_moe *moe = thread->moe;
  const dt_band *band = &moe->plan->bands[task->index];
  const dt_expert *expert = &moe->weights->experts[band->expert];
  dt_status status = DT_OK;
  if (band->remote_rows)
    status =
        dt_bank_wait(thread, DT_COUNTER_ARRIVAL, task->index, (uint32_t)band->remote_rows, awaited_rank(moe, band));
  if (status) return status;
  int64_t first, stride, columns = tile_columns(moe, task->column, moe->intermediate, &first);
  const float *a = dt_panel_a(thread, band, task->index, &stride);
  gate_up(thread, expert, a, stride, band->rows, first, columns);
  if (moe->config.publish_early) {
    status = dt_bank_add(thread, DT_COUNTER_TILES_1, task->index, 1);
    if (status) return status;
  }
  dt_delay(thread);
  apply_glu(thread, expert, band->rows, first, columns, moe->act + band->row * moe->intermediate);
  return moe->config.publish_early ? DT_OK : dt_bank_add(thread, DT_COUNTER_TILES_1, task->index, 1);
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

static dt_status store_parts(dt_thread *thread, const dt_task *task, const dt_band *band, int64_t first,
                             int64_t columns) {
  dt_moe *moe = thread->moe;
  bool direct = dt_schedule_stores_direct(moe->config.schedule);
  unsigned char *own = dt_window_local(moe->combine);
  for (int32_t i = 0; i < band->parts; i++) {
    const dt_part *part = &moe->plan->parts[band->first_part + i];
    const float *tile = thread->up + (part->row - band->row) * columns;
    size_t left = (size_t)first * moe->element;
    if (part->owner == moe->rank) {
      store_local(moe, tile, columns, part->rows, own + (size_t)part->dst_row * moe->row_bytes + left);
    } else if (!direct) {
      store_local(moe, tile, columns, part->rows, moe->y + (size_t)part->row * moe->row_bytes + left);
    } else {
      dt_status status = store_direct(thread, task, part, tile, first, columns);
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

static dt_status run_l2(dt_thread *thread, const dt_task *task, int64_t position) {
  dt_moe *moe = thread->moe;
  const dt_band *band = &moe->plan->bands[task->index];
  const dt_expert *expert = &moe->weights->experts[band->expert];
  dt_status status = dt_bank_wait(thread, DT_COUNTER_TILES_1, task->index, (uint32_t)moe->plan->config.columns_1, -1);
  if (status) return status;
  int64_t first, columns = tile_columns(moe, task->column, moe->hidden, &first);
  down(thread, expert, moe->act + band->row * moe->intermediate, moe->intermediate, band->rows, first, columns,
       thread->up, columns);
  if (moe->config.publish_early) {
    status = publish_l2(thread, task);
    if (!status && dt_schedule_stores_direct(moe->config.schedule)) status = dt_tell_peers(thread, position + 1);
    if (status) return status;
  }
  dt_delay(thread);
  status = store_parts(thread, task, band, first, columns);
  if (status || moe->config.publish_early) return status;
  return publish_l2(thread, task);
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
  for (int64_t c = 0; c < width; c += n) {
    int64_t columns = width - c < n ? width - c : n;
    gate_up(thread, shared, a, hidden, count, c, columns);
    apply_glu(thread, shared, count, c, columns, thread->shared_act);
  }
  float *out = moe->shared_out + first * hidden;
  for (int64_t c = 0; c < hidden; c += n)
    down(thread, shared, thread->shared_act, width, count, c, hidden - c < n ? hidden - c : n, out + c, hidden);
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
  const dt_moe *moe = thread->moe;
  const dt_plan *plan = moe->plan;
  const dt_task *task = &plan->tasks[position];
  uint64_t begin = dt_now_ns();
  dt_status status = DT_OK;
  dt_span_kind kind = DT_SPAN_L1;
  int64_t rows = 0, first;
  switch ((dt_phase)task->phase) {
  case DT_PHASE_DISPATCH:
    return dt_dispatch_one(thread, task->index);
  case DT_PHASE_L1:
    status = run_l1(thread, task);
    rows = plan->bands[task->index].rows;
    break;
  case DT_PHASE_L2:
    kind = DT_SPAN_L2;
    status = run_l2(thread, task, position);
    rows = plan->bands[task->index].rows;
    break;
  case DT_PHASE_SHARED:
    kind = DT_SPAN_SHARED;
    status = run_shared(thread, task);
    dt_token_block(moe->input->tokens, plan->config.shared_blocks, task->index, &first, &rows);
    break;
  case DT_PHASE_REDUCE:
    kind = DT_SPAN_REDUCE;
    status = run_reduce(thread, task);
    dt_token_block(moe->input->tokens, plan->config.reduce_blocks, task->index, &first, &rows);
    break;
  case DT_PHASE_SEGMENT:
    return dt_fail(DT_ERR_INTERNAL, "tasks: %lld is a segment; these are the consumers'", (long long)position);
  }
  dt_span *span = dt_span_add(thread, kind, begin, dt_now_ns());
  span->index = task->index;
  span->column = task->column;
  span->rows = (int32_t)rows;
  return status;
}

dt_status dt_tasks_run(dt_thread *thread) {
  dt_moe *moe = thread->moe;
  bool direct = dt_schedule_stores_direct(moe->config.schedule);
  while (!dt_failure_seen(&moe->failure)) {
    int64_t position = atomic_fetch_add_explicit(&moe->ticket, 1, memory_order_relaxed);
    /* Before anything that may wait: a peer's reduction waits for this. */
    if (direct) {
      dt_status status = dt_tell_peers(thread, position);
      if (status) return status;
    }
    if (position >= moe->task_end) return DT_OK;
    dt_status status = run_task(thread, position);
    if (status) return status;
  }
  return dt_layer_error(moe);
}
