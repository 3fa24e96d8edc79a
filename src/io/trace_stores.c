/* The stores of a GPU's trace: bursts, and how many are under way at once. */
#include <draintile/trace.h>

#include <stdlib.h>

#include "core/error.h"
#include "core/statistics.h"
#include "model/fit.h"

typedef struct burst {
  uint64_t begin_ns, end_ns;
  int32_t sm, index, column;
} burst;

static int by_tile(const void *a, const void *b) {
  const burst *x = a, *y = b;
  if (x->sm != y->sm) return x->sm < y->sm ? -1 : 1;
  if (x->index != y->index) return x->index < y->index ? -1 : 1;
  return (x->column > y->column) - (x->column < y->column);
}

static int by_begin(const void *a, const void *b) {
  const burst *x = a, *y = b;
  if (x->sm != y->sm) return x->sm < y->sm ? -1 : 1;
  return (x->begin_ns > y->begin_ns) - (x->begin_ns < y->begin_ns);
}

typedef struct edge {
  uint64_t ns;
  int change;
} edge;

static int by_time(const void *a, const void *b) {
  const edge *x = a, *y = b;
  if (x->ns != y->ns) return x->ns < y->ns ? -1 : 1;
  return x->change - y->change; /* what ends makes room before what begins */
}

/* The warpgroups' spans of a tile become one burst. */
static size_t merge_tiles(burst *bursts, size_t count) {
  size_t kept = 0;
  qsort(bursts, count, sizeof *bursts, by_tile);
  for (size_t i = 0; i < count; i++) {
    burst *last = kept ? &bursts[kept - 1] : NULL;
    if (!last || by_tile(last, &bursts[i]) != 0) {
      bursts[kept++] = bursts[i];
      continue;
    }
    if (bursts[i].begin_ns < last->begin_ns) last->begin_ns = bursts[i].begin_ns;
    if (bursts[i].end_ns > last->end_ns) last->end_ns = bursts[i].end_ns;
  }
  return kept;
}

/* Multiprocessors with a burst under way: two bursts of one that overlap count once. Changes the bursts. */
static void count_active(burst *bursts, size_t count, edge *edges, dt_store_activity *activity) {
  size_t kept = 0;
  qsort(bursts, count, sizeof *bursts, by_begin);
  for (size_t i = 0; i < count; i++) {
    burst *last = kept ? &bursts[kept - 1] : NULL;
    if (last && last->sm == bursts[i].sm && bursts[i].begin_ns <= last->end_ns) {
      if (bursts[i].end_ns > last->end_ns) last->end_ns = bursts[i].end_ns;
    } else {
      bursts[kept++] = bursts[i];
    }
  }
  for (size_t i = 0; i < kept; i++) {
    edges[2 * i] = (edge){bursts[i].begin_ns, 1};
    edges[2 * i + 1] = (edge){bursts[i].end_ns, -1};
  }
  qsort(edges, 2 * kept, sizeof *edges, by_time);
  double area = 0;
  int active = 0;
  for (size_t i = 0; i + 1 < 2 * kept; i++) {
    active += edges[i].change;
    if (active > activity->active_max) activity->active_max = active;
    area += active * (double)(edges[i + 1].ns - edges[i].ns);
  }
  const double length = (double)(edges[2 * kept - 1].ns - edges[0].ns);
  activity->active_mean = length > 0 ? area / length : activity->active_max;
}

dt_status dt_trace_stores(const dt_span *spans, size_t count, int remote, double window_s,
                          dt_store_activity *activity) {
  dt_store_activity sum = {.bursts = 0};
  size_t stores = 0;
  burst *bursts = malloc((count + 1) * sizeof *bursts);
  edge *edges = malloc((2 * count + 1) * sizeof *edges);
  double *values = malloc((count + 1) * sizeof *values);
  const dt_status status = bursts && edges && values ? DT_OK : dt_fail(DT_ERR_MEMORY, "stores: %zu spans", count);
  for (size_t i = 0; i < count && !status; i++) {
    const dt_span *s = &spans[i];
    if (s->kind != DT_SPAN_STORE || (remote && s->bytes == 0)) continue;
    bursts[stores++] = (burst){s->begin_ns, s->end_ns, (s->track - 1) / DT_DEVICE_ROLES, s->index, s->column};
    sum.bytes += s->bytes;
  }
  if (!status && stores) {
    stores = merge_tiles(bursts, stores);
    sum.bursts = (int64_t)stores;
    for (size_t i = 0; i < stores; i++) {
      values[i] = 1e-9 * (double)(bursts[i].end_ns - bursts[i].begin_ns);
      sum.span_mean_s += values[i] / (double)stores;
    }
    sum.span_median_s = dt_median(values, stores);
    sum.span_p95_s = dt_quantile(values, stores, 0.95);
    uint64_t first = bursts[0].begin_ns;
    for (size_t i = 1; i < stores; i++)
      if (bursts[i].begin_ns < first) first = bursts[i].begin_ns;
    for (size_t i = 0; i < stores; i++) values[i] = 1e-9 * (double)(bursts[i].begin_ns - first);
    sum.k_act = dt_fit_active_producers(values, stores, window_s);
    count_active(bursts, stores, edges, &sum);
  }
  free(bursts), free(edges), free(values);
  if (!status) *activity = sum;
  return status;
}
