/* The spans of a combine's last direct run: what the stamps say of the tasks of its table. */
#include <draintile/combine.h>

#include <stdlib.h>

#include "combine_handle.h"
#include "core/error.h"
#include "driver.h"
#include "tile_gemm.h"

dt_status dt_combine_make_recorder(dt_combine *c) {
  if (!c->config.timestamps) return DT_OK;
  const int32_t clusters = c->sms / DT_TILE_CLUSTER;
  const int64_t columns = (c->config.n + DT_TILE_N - 1) / DT_TILE_N;
  const int64_t tasks = (int64_t)dt_combine_bands_max(&c->config) * ((columns + 1) / 2);
  return dt_recorder_create(clusters * DT_TILE_CLUSTER, (uint32_t)(256 + 4 * (tasks / clusters + 1)), &c->recorder);
}

void dt_combine_free_recorder(dt_combine *c) {
  dt_recorder_destroy(c->recorder);
  free(c->spans);
}

/* Host copies of what the records point into. */
typedef struct tables {
  dt_tile_header header;
  dt_tile_task *tasks;
  uint64_t *targets; /* of rows */
} tables;

static dt_status read_tables(const dt_combine *c, cudaStream_t stream, tables *t) {
  cudaError_t error = cudaMemcpyAsync(&t->header, c->workspace, sizeof t->header, cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) return dt_cuda_check(error, "spans");
  const size_t tasks = t->header.count * sizeof *t->tasks, targets = t->header.rows * sizeof *t->targets;
  t->tasks = malloc(tasks + 1);
  t->targets = malloc(targets + 1);
  if (!t->tasks || !t->targets) return dt_fail(DT_ERR_MEMORY, "spans: %zu bytes", tasks + targets);
  error = cudaMemcpyAsync(t->tasks, (const uint8_t *)c->workspace + DT_TILE_TABLE_OFFSET, tasks, cudaMemcpyDeviceToHost,
                          stream);
  if (error == cudaSuccess)
    error = cudaMemcpyAsync(t->targets, c->params.tables.direct, targets, cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  return dt_cuda_check(error, "spans");
}

/* A tile's part of a warpgroup: 0 if it has none. */
static int describe(const dt_combine *c, const dt_tile_task *task, int32_t half, int32_t group, dt_span *span) {
  const int32_t rows = task->rows[half] - 64 * group;
  if (rows <= 0 || (int64_t)task->column[half] * (DT_TILE_N / 2) >= c->config.n) return 0;
  span->column = task->column[half] / 2;
  span->rows = rows < 64 ? rows : 64;
  return 1;
}

/* Of a tile's stores: what of its rows leaves the rank. */
static void note_owners(const dt_combine *c, const tables *t, const dt_tile_task *task, int32_t half, int32_t group,
                        dt_span *span) {
  const int64_t left = c->config.n - (int64_t)task->column[half] * (DT_TILE_N / 2);
  const int64_t wide = task->flags & DT_TILE_NARROW ? DT_TILE_N / 2 : DT_TILE_N;
  int32_t sent = 0, peer = -1, several = 0;
  for (int32_t i = 0; i < span->rows; i++) {
    const int32_t owner = (int32_t)(t->targets[task->row[half] + 64 * group + i] >> 32);
    if (owner == c->params.rank || owner >= c->params.ranks) continue;
    several |= sent > 0 && owner != peer;
    peer = owner;
    sent++;
  }
  span->bytes = 2 * sent * (left < wide ? left : wide);
  span->peer = sent < span->rows || several ? -1 : peer;
}

static void add_role(dt_combine *c, const tables *t, int32_t cta, int32_t group) {
  const dt_recorder *r = c->recorder;
  const int32_t sm = (int32_t)r->cta[cta].sm, half = cta % DT_TILE_CLUSTER;
  uint32_t count;
  const dt_stamp *stamps = dt_recorder_role(r, cta, DT_STAMP_CONSUMER + group, &count);
  for (uint32_t i = 0; i < count; i++) {
    const dt_stamp *x = &stamps[i];
    dt_span span = {
        .kind = DT_SPAN_L2, .track = dt_device_track(sm, DT_ROLE_CONSUMER + group), .index = x->band, .peer = -1};
    if (x->task >= t->header.count || !describe(c, &t->tasks[x->task], half, group, &span)) continue;
    span.begin_ns = dt_recorder_ns(r, cta, x->begin);
    span.end_ns = dt_recorder_ns(r, cta, x->end);
    c->spans[c->span_count++] = span;
    if (!x->stores) continue;
    span.kind = DT_SPAN_STORE;
    span.track = dt_device_track(sm, DT_ROLE_STORES + group);
    span.begin_ns = dt_recorder_ns(r, cta, x->first);
    span.end_ns = dt_recorder_ns(r, cta, x->done);
    note_owners(c, t, &t->tasks[x->task], half, group, &span);
    c->spans[c->span_count++] = span;
  }
}

dt_status dt_combine_spans(dt_combine *c, void *stream, const dt_span **spans, size_t *count, uint64_t *lost) {
  if (!c->recorder) return dt_fail(DT_ERR_ARGUMENT, "spans: timestamps is 0; 1 when it was created");
  tables t = {.tasks = NULL};
  dt_status status = dt_cuda_check(cudaSetDevice(c->device), "cudaSetDevice");
  if (!status) status = dt_recorder_read(c->recorder, stream);
  if (!status) status = read_tables(c, stream, &t);
  const size_t capacity = (size_t)c->recorder->ctas * 2 * 2 * c->recorder->kept; /* warpgroups; a tile and its stores */
  free(c->spans);
  c->spans = status ? NULL : malloc((capacity + 1) * sizeof *c->spans);
  c->span_count = 0;
  if (!status && !c->spans) status = dt_fail(DT_ERR_MEMORY, "spans: %zu", capacity);
  for (int32_t cta = 0; cta < c->recorder->ctas && !status; cta++)
    for (int32_t group = 0; group < 2; group++) add_role(c, &t, cta, group);
  free(t.tasks), free(t.targets);
  if (status) return status;
  *spans = c->spans;
  *count = c->span_count;
  *lost = c->recorder->lost;
  return DT_OK;
}
