#include "stores.h"

#include <stdlib.h>

#include <draintile/trace.h>

#include "core/error.h"
#include "cuda/moe_handle.h"

void stores_begin(stores_samples *s) {
  stores_list *const lists[] = {&s->span, &s->issue,       &s->period,     &s->l1_period, &s->stall,
                                &s->wait, &s->active_mean, &s->active_max, &s->k_act};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) lists[i]->count = 0;
  s->lost = 0;
}

void stores_end(stores_samples *s) {
  free(s->span.values), free(s->issue.values), free(s->period.values);
  free(s->l1_period.values), free(s->stall.values), free(s->wait.values), free(s->active_mean.values);
  free(s->active_max.values), free(s->k_act.values);
  *s = (stores_samples){.lost = 0};
}

static dt_status add(stores_list *list, double value) {
  if (list->count == list->capacity) {
    const size_t capacity = list->capacity ? 2 * list->capacity : 1024;
    double *values = realloc(list->values, capacity * sizeof *values);
    if (!values) return dt_fail(DT_ERR_MEMORY, "samples: %zu", capacity);
    list->values = values;
    list->capacity = capacity;
  }
  list->values[list->count++] = value;
  return DT_OK;
}

/* A warpgroup's records, in order of time. Tiles with fewer than 128 rows are left out: their other warpgroup may have
 * nothing to multiply. */
static dt_status add_role(stores_samples *s, const dt_cuda_moe *moe, int32_t cta, int32_t role, double cycles) {
  const dt_recorder *r = moe->recorder;
  const double second = 1 / dt_recorder_hz(r, cta);
  const double matrix = cycles * moe->layer.gemm.k_blocks, l1_matrix = cycles * moe->layer.l1_k_blocks;
  uint32_t count, before = 0;
  int follows = 0;
  const dt_stamp *stamps = dt_recorder_role(r, cta, role, &count);
  dt_status status = DT_OK;
  for (uint32_t i = 0; i < count && !status; i++) {
    const dt_stamp *x = &stamps[i];
    const int l1 = dt_stamp_is_l1(x), whole = dt_stamp_rows(x) == DT_TILE_M;
    if (x->kind != DT_STAMP_TILE) continue;
    if (x->stores && !l1 && whole) {
      status = add(&s->span, second * (x->done - x->first));
      if (!status) status = add(&s->issue, second * (x->issued - x->first));
    }
    if (!status && follows && whole) {
      const double period = x->end - before;
      status = add(l1 ? &s->l1_period : &s->period, second * period);
      if (!status && !l1) status = add(&s->stall, second * (period - matrix));
      if (!status && !l1) status = add(&s->wait, second * (x->middle - x->begin));
    }
    before = x->end;
    follows = 1;
  }
  s->matrix_s = second * matrix;
  s->l1_matrix_s = second * l1_matrix;
  return status;
}

static dt_status add_activity(stores_samples *s, dt_cuda_moe *moe, cudaStream_t stream, double window_s) {
  const dt_span *spans;
  size_t count;
  uint64_t lost;
  dt_store_activity activity;
  dt_status status = dt_cuda_moe_spans(moe, stream, &spans, &count, &lost);
  if (!status) status = dt_trace_stores(spans, count, 0, window_s, &activity);
  if (!status) status = add(&s->active_mean, activity.active_mean);
  if (!status) status = add(&s->active_max, activity.active_max);
  return status ? status : add(&s->k_act, activity.k_act);
}

dt_status stores_add(stores_samples *s, dt_cuda_moe *moe, cudaStream_t stream, int32_t run, double cycles_a_stage,
                     double window_s) {
  dt_status status = run % 4 == 0 ? add_activity(s, moe, stream, window_s) : dt_recorder_read(moe->recorder, stream);
  for (int32_t c = 0; c < moe->recorder->ctas && !status; c++)
    for (int32_t role = DT_STAMP_CONSUMER; (c / 2 + run) % 4 == 0 && role <= DT_STAMP_CONSUMER + 1 && !status; role++)
      status = add_role(s, moe, c, role, cycles_a_stage);
  if (!status) s->lost += moe->recorder->lost;
  return status;
}
