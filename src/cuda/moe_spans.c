/* The spans of a layer's last forward: what the stamps say of the tasks of its table. */
#include "moe_spans.h"

#include <stdlib.h>

#include "core/error.h"
#include "driver.h"
#include "moe_handle.h"

enum { SHOWN_NS = 100 /* shorter waits are the check itself */ };

dt_status dt_cuda_moe_make_recorder(dt_cuda_moe *m) {
  if (!m->config.timestamps) return DT_OK;
  const dt_moe_plan *p = &m->plan;
  const int32_t clusters = m->sms / DT_TILE_CLUSTER;
  const int64_t tasks = (int64_t)p->bands_max * ((p->columns_1 + 1) / 2 + (p->columns_2 + 1) / 2);
  /* Tickets go to whoever is free, so a cluster may have more than its share; four times as many would take four times
   * as long. */
  const int64_t capacity = 256 + 4 * (tasks / clusters + 1);
  const dt_status status = dt_recorder_create(clusters * DT_TILE_CLUSTER, (uint32_t)capacity, &m->recorder);
  if (!status) m->memory_bytes += m->recorder->device_bytes;
  return status;
}

void dt_cuda_moe_free_recorder(dt_cuda_moe *m) {
  dt_recorder_destroy(m->recorder);
  free(m->spans);
}

dt_status dt_cuda_moe_mark(dt_cuda_moe *m, dt_cuda_moe_mark_at at, cudaStream_t stream) {
  if (!m->recorder) return DT_OK;
  m->marked = at == DT_MARK_BEGIN ? 1 : m->marked | 1u << at;
  return dt_cuda_check(dt_mark_launch(m->recorder->marks + at, !m->layer.crowded, stream), "mark");
}

/* Host copies of what the records point into. */
typedef struct dt_span_tables {
  dt_layer_state state;
  dt_tile_task *tasks;
  dt_layer_piece *pieces, *puts;
  uint64_t *row_target;
} dt_span_tables;

static dt_status copy_table(void **to, const void *from, size_t bytes, cudaStream_t stream) {
  *to = malloc(bytes + 1);
  if (!*to) return dt_fail(DT_ERR_MEMORY, "spans: %zu bytes", bytes);
  const cudaError_t error = cudaMemcpyAsync(*to, from, bytes, cudaMemcpyDeviceToHost, stream);
  return dt_cuda_check(error, "spans");
}

static dt_status read_tables(dt_cuda_moe *m, cudaStream_t stream, dt_span_tables *t) {
  dt_status status = dt_cuda_moe_read_state(m, stream, &t->state);
  if (status) return status;
  if (t->state.error != DT_LAYER_OK) return dt_cuda_moe_check(m, stream);
  status = copy_table((void **)&t->tasks, m->plan.tasks, t->state.tasks * sizeof *t->tasks, stream);
  if (!status) status = copy_table((void **)&t->pieces, m->plan.pieces, t->state.pieces * sizeof *t->pieces, stream);
  if (!status) status = copy_table((void **)&t->puts, m->plan.puts, t->state.puts * sizeof *t->puts, stream);
  if (!status)
    status =
        copy_table((void **)&t->row_target, m->plan.row_target, (size_t)t->state.rows * sizeof *t->row_target, stream);
  return status ? status : dt_cuda_check(cudaStreamSynchronize(stream), "spans");
}

static void free_tables(dt_span_tables *t) {
  free(t->tasks), free(t->pieces), free(t->puts), free(t->row_target);
}

static dt_status make_room(dt_cuda_moe *m) {
  size_t records = 0;
  for (int32_t c = 0; c < m->recorder->ctas; c++)
    for (int role = 0; role < DT_STAMP_ROLES; role++) {
      uint32_t count;
      dt_recorder_role(m->recorder, c, role, &count);
      records += count;
    }
  const size_t capacity = 3 * records + DT_MARKS; /* a tile, its wait and its stores */
  m->span_count = 0;
  if (capacity <= m->span_capacity) return DT_OK;
  free(m->spans);
  m->span_capacity = 0;
  m->spans = malloc(capacity * sizeof *m->spans);
  if (!m->spans) return dt_fail(DT_ERR_MEMORY, "spans: %zu", capacity);
  m->span_capacity = capacity;
  return DT_OK;
}

static void add(dt_cuda_moe *m, const dt_span *of, dt_span_kind kind, uint64_t begin_ns, uint64_t end_ns) {
  dt_span *span = &m->spans[m->span_count++];
  *span = *of;
  span->kind = kind;
  span->begin_ns = begin_ns;
  span->end_ns = end_ns;
}

static void add_kernels(dt_cuda_moe *m) {
  static const struct {
    dt_span_kind kind;
    dt_cuda_moe_mark_at from, to;
  } kernels[] = {{DT_SPAN_PLAN, DT_MARK_BEGIN, DT_MARK_PLANNED},
                 {DT_SPAN_DISPATCH, DT_MARK_PLANNED, DT_MARK_DISPATCHED},
                 {DT_SPAN_SEGMENT, DT_MARK_TILED, DT_MARK_PUT},
                 {DT_SPAN_REDUCE, DT_MARK_TILED, DT_MARK_REDUCED},
                 {DT_SPAN_REDUCE, DT_MARK_PUT, DT_MARK_REDUCED}};
  const dt_span none = {.track = 0, .index = -1, .column = -1, .peer = -1};
  for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
    const int staged = (m->marked >> DT_MARK_PUT & 1) && kernels[i].from == DT_MARK_TILED;
    if (!(m->marked >> kernels[i].from & 1) || !(m->marked >> kernels[i].to & 1)) continue;
    if (staged && kernels[i].to == DT_MARK_REDUCED) continue;
    add(m, &none, kernels[i].kind, m->recorder->marks_ns[kernels[i].from], m->recorder->marks_ns[kernels[i].to]);
  }
}

/* What a warpgroup's rows of an L2 tile are to other ranks. */
static void note_owners(const dt_cuda_moe *m, const dt_span_tables *t, int64_t row, dt_span *span) {
  if (m->plan.staged || m->plan.tiles_only) return;
  int32_t sent = 0, peer = -1, several = 0;
  for (int64_t i = row; i < row + span->rows; i++) {
    const int32_t owner = (int32_t)(t->row_target[i] >> 32);
    if (owner == m->plan.rank) continue;
    several |= sent > 0 && owner != peer;
    peer = owner;
    sent++;
  }
  const int64_t left = m->config.hidden - (int64_t)span->column * DT_TILE_N;
  span->bytes = 2 * (int64_t)sent * (left < DT_TILE_N ? left : DT_TILE_N);
  span->peer = sent < span->rows || several ? -1 : peer;
}

/* Of a record, what its task says; 0: it has no part in it (a column past the last, or a short band's second half). */
static int describe(const dt_cuda_moe *m, const dt_span_tables *t, int32_t cta, int32_t role, const dt_stamp *stamp,
                    dt_span *span, int *phase) {
  if (stamp->task >= t->state.tasks) return 0;
  const dt_tile_task *task = &t->tasks[stamp->task];
  const int32_t half = cta % DT_TILE_CLUSTER;
  const int group = role == DT_STAMP_CONSUMER + 1;
  *phase = task->flags >> DT_TASK_PHASE_SHIFT & 1;
  span->index = stamp->band;
  span->column = *phase == DT_TASK_L1 ? task->column[half] : task->column[half] / 2;
  span->rows = task->rows[half] - 64 * group;
  if (role <= DT_STAMP_CONSUMER + 1 && span->rows > 64) span->rows = 64;
  if (span->rows <= 0 || span->column >= (*phase == DT_TASK_L1 ? m->plan.columns_1 : m->plan.columns_2)) return 0;
  return 1;
}

/* A warpgroup's tile, described, and its stores. */
static void add_tile(dt_cuda_moe *m, const dt_span_tables *t, int32_t cta, int32_t group, const dt_stamp *stamp,
                     dt_span *span, int phase) {
  const dt_recorder *r = m->recorder;
  const uint64_t begin = dt_recorder_ns(r, cta, stamp->begin), middle = dt_recorder_ns(r, cta, stamp->middle);
  add(m, span, phase == DT_TASK_L1 ? DT_SPAN_L1 : DT_SPAN_L2, begin, dt_recorder_ns(r, cta, stamp->end));
  if (middle > begin + SHOWN_NS) add(m, span, DT_SPAN_STALL, begin, middle);
  if (phase == DT_TASK_L1 || !stamp->stores) return;
  span->track += DT_ROLE_STORES - DT_ROLE_CONSUMER;
  note_owners(m, t, (int64_t)t->tasks[stamp->task].row[cta % DT_TILE_CLUSTER] + 64 * group, span);
  add(m, span, DT_SPAN_STORE, dt_recorder_ns(r, cta, stamp->first), dt_recorder_ns(r, cta, stamp->done));
}

/* Of the dispatch, or to put. */
static void add_piece(dt_cuda_moe *m, const dt_span_tables *t, const dt_stamp *stamp, dt_span *span, uint64_t begin,
                      uint64_t end) {
  const int put = stamp->kind == DT_STAMP_PUT;
  if (stamp->task >= (put ? t->state.puts : t->state.pieces)) return;
  const dt_layer_piece *piece = put ? &t->puts[stamp->task] : &t->pieces[stamp->task];
  span->index = (int32_t)stamp->task;
  span->rows = piece->rows;
  if (piece->peer != m->plan.rank) {
    span->peer = piece->peer;
    span->bytes = 2 * piece->rows * m->config.hidden;
  }
  add(m, span, put ? DT_SPAN_SEGMENT : DT_SPAN_DISPATCH, begin, end);
}

static void add_record(dt_cuda_moe *m, const dt_span_tables *t, int32_t cta, int32_t role, const dt_stamp *stamp) {
  static const dt_device_role roles[DT_STAMP_ROLES] = {DT_ROLE_CONSUMER, DT_ROLE_CONSUMER + 1, DT_ROLE_LOADER,
                                                       DT_ROLE_RELEASE,  DT_ROLE_COPIES,       DT_ROLE_COPIES + 1};
  const dt_recorder *r = m->recorder;
  const int32_t sm = (int32_t)r->cta[cta].sm;
  dt_span span = {.track = dt_device_track(sm, roles[role]), .index = -1, .column = -1, .peer = -1};
  const uint64_t begin = dt_recorder_ns(r, cta, stamp->begin), end = dt_recorder_ns(r, cta, stamp->end);
  if (stamp->kind == DT_STAMP_PIECE || stamp->kind == DT_STAMP_PUT) {
    add_piece(m, t, stamp, &span, begin, end);
    return;
  }
  if (stamp->kind == DT_STAMP_PASS) {
    add(m, &span, DT_SPAN_PUBLISH, begin, end);
    return;
  }
  int phase;
  if (!describe(m, t, cta, role, stamp, &span, &phase)) return;
  const uint64_t middle = dt_recorder_ns(r, cta, stamp->middle);
  if (stamp->kind == DT_STAMP_TILE)
    add_tile(m, t, cta, role - DT_STAMP_CONSUMER, stamp, &span, phase);
  else if (stamp->kind == DT_STAMP_LOAD && middle > begin + SHOWN_NS)
    add(m, &span, DT_SPAN_WAIT, begin, middle);
  else if (stamp->kind == DT_STAMP_PUBLISH && phase == DT_TASK_L1)
    add(m, &span, DT_SPAN_PUBLISH, begin, end);
}

dt_status dt_cuda_moe_spans(dt_cuda_moe *m, void *stream, const dt_span **spans, size_t *count, uint64_t *lost) {
  if (!m->recorder) return dt_fail(DT_ERR_ARGUMENT, "spans: timestamps is 0; 1 when it was created");
  dt_span_tables tables = {.tasks = NULL};
  dt_status status = dt_cuda_check(cudaSetDevice(m->device), "cudaSetDevice");
  if (!status) status = dt_recorder_read(m->recorder, stream);
  if (!status) status = read_tables(m, stream, &tables);
  if (!status) status = make_room(m);
  if (!status) {
    add_kernels(m);
    for (int32_t c = 0; c < m->recorder->ctas; c++)
      for (int32_t role = 0; role < DT_STAMP_ROLES; role++) {
        uint32_t records;
        const dt_stamp *stamp = dt_recorder_role(m->recorder, c, role, &records);
        for (uint32_t i = 0; i < records; i++) add_record(m, &tables, c, role, &stamp[i]);
      }
    *spans = m->spans;
    *count = m->span_count;
    *lost = m->recorder->lost;
  }
  free_tables(&tables);
  return status;
}
