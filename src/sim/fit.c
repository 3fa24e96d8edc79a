/* Task costs from the spans of measured serial runs. */
#include <draintile/simulate.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/spans.h"
#include "core/statistics.h"
#include "fit_stages.h"
#include "robust.h"

/* Columns of each kind's observations. Rates come before bases: where all tasks have as many rows, the two cannot be
 * told apart and the rate keeps the time. */
enum { L1_ROW, L2_ROW, L1_PANEL, L2_PANEL, BAND_ROW, L1_BASE, L2_BASE };
enum { RATE, BASE };
enum { COPY_LOCAL, COPY_REMOTE, PUT_BASE };

typedef struct observations {
  sim_observation *items;
  size_t count, capacity;
} observations;

/* A time above this many fitted ones is an accident; below it may be a machine that others use too. */
static const double accident = 20.0;

typedef struct fitting {
  const dt_sim_config *config;
  const dt_sim_costs *costs;
  double compute_share, copy_share; /* of a core that a thread had */
  observations tiles, reduce, shared, copies, wakes;
  const dt_span **sorted; /* scratch for one trace */
  size_t *tiles_end;      /* [traces] */
} fitting;

/* The new, zeroed observation, or NULL. */
static sim_observation *add(observations *list, double y) {
  if (list->count == list->capacity) {
    size_t capacity = list->capacity ? 2 * list->capacity : 256;
    sim_observation *items = realloc(list->items, capacity * sizeof *items);
    if (!items) return NULL;
    list->items = items;
    list->capacity = capacity;
  }
  sim_observation *item = &list->items[list->count++];
  *item = (sim_observation){.y = y};
  return item;
}

static int by_begin(const void *a, const void *b) {
  const dt_span *x = *(const dt_span *const *)a, *y = *(const dt_span *const *)b;
  if (x->begin_ns != y->begin_ns) return x->begin_ns < y->begin_ns ? -1 : 1;
  return (x->track > y->track) - (x->track < y->track);
}

/* What a worker holds, as the simulator has it: see task_cost.c. */
typedef struct holdings {
  int64_t panel[2];
  int32_t *bands, next, capacity;
} holdings;

static void forget(holdings *held) {
  held->panel[0] = held->panel[1] = -1;
  held->next = 0;
  for (int32_t i = 0; i < held->capacity; i++) held->bands[i] = -1;
}

static int take_band(holdings *held, uint8_t *widened, int32_t band) {
  if (held->capacity == 0) {
    int missing = !widened[band];
    widened[band] = 1;
    return missing;
  }
  for (int32_t i = 0; i < held->capacity; i++)
    if (held->bands[i] == band) return 0;
  held->bands[held->next] = band;
  held->next = (held->next + 1) % held->capacity;
  return 1;
}

static dt_status no_memory(void) {
  return dt_fail(DT_ERR_MEMORY, "fit: no memory for its observations");
}

static dt_status bad_span(const dt_span *span) {
  return dt_fail(DT_ERR_INPUT, "spans: %s %d column %d; not a task of its plan",
                 dt_span_kind_name((dt_span_kind)span->kind), span->index, span->column);
}

/* Seconds of the span at `at`, without the waits inside it. */
static double work_seconds(const fitting *fit, size_t at, size_t count) {
  const dt_span *span = fit->sorted[at];
  uint64_t end = span->end_ns < span->begin_ns ? span->begin_ns : span->end_ns, work = end - span->begin_ns;
  for (size_t i = at + 1; i < count; i++) {
    const dt_span *inner = fit->sorted[i];
    if (inner->track != span->track || inner->begin_ns >= end) break;
    if (inner->kind != DT_SPAN_WAIT) continue;
    uint64_t inner_end = inner->end_ns < end ? inner->end_ns : end;
    uint64_t wait = inner_end > inner->begin_ns ? inner_end - inner->begin_ns : 0;
    work -= wait < work ? wait : work;
  }
  return (double)work * 1e-9;
}

static dt_status add_tile(fitting *fit, const dt_plan *plan, const dt_span *span, double seconds, holdings *held,
                          uint8_t *widened) {
  int second = span->kind == DT_SPAN_L2;
  int32_t columns = second ? plan->config.columns_2 : plan->config.columns_1;
  if (span->index < 0 || span->index >= plan->band_count || span->column < 0 || span->column >= columns)
    return bad_span(span);
  const dt_band *band = &plan->bands[span->index];
  sim_observation *o = add(&fit->tiles, seconds * fit->compute_share);
  if (!o) return no_memory();
  int64_t panel = (int64_t)band->expert * columns + span->column;
  o->x[second ? L2_ROW : L1_ROW] = band->rows;
  o->x[second ? L2_BASE : L1_BASE] = 1.0;
  o->x[second ? L2_PANEL : L1_PANEL] = held->panel[second] != panel;
  held->panel[second] = panel;
  if (!second && take_band(held, widened, span->index)) o->x[BAND_ROW] = band->rows;
  return DT_OK;
}

static dt_status add_block(observations *list, const dt_span *span, double seconds) {
  sim_observation *o = add(list, seconds);
  if (!o) return no_memory();
  o->x[RATE] = span->rows;
  o->x[BASE] = 1.0;
  return DT_OK;
}

static dt_status add_tasks(fitting *fit, const dt_trace_rank *trace, const dt_plan *plan) {
  size_t count = trace->span_count;
  int32_t capacity = fit->costs->band_panels;
  if (capacity > plan->band_count) capacity = plan->band_count > 0 ? plan->band_count : 1; /* there are no more */
  holdings held = {.bands = malloc(((size_t)capacity + 1) * sizeof(int32_t)), .capacity = capacity};
  uint8_t *widened = calloc((size_t)plan->band_count + 1, 1);
  if (!held.bands || !widened) {
    free(held.bands);
    free(widened);
    return no_memory();
  }
  dt_status status = DT_OK;
  qsort((void *)fit->sorted, count, sizeof(void *), dt_span_order);
  for (size_t i = 0; !status && i < count; i++) {
    const dt_span *span = fit->sorted[i];
    if (i == 0 || fit->sorted[i - 1]->track != span->track) forget(&held);
    if (span->kind == DT_SPAN_L1 || span->kind == DT_SPAN_L2) {
      status = add_tile(fit, plan, span, work_seconds(fit, i, count), &held, widened);
    } else if (span->kind == DT_SPAN_REDUCE) {
      status = add_block(&fit->reduce, span, work_seconds(fit, i, count) * fit->compute_share);
    } else if (span->kind == DT_SPAN_SHARED) {
      held.panel[0] = held.panel[1] = -1;
      status = add_block(&fit->shared, span, work_seconds(fit, i, count) * fit->compute_share);
    }
  }
  free(held.bands);
  free(widened);
  return status;
}

/* A put tells the cost of copying only if its link had room when it began: then it cannot have stalled. */
static dt_status add_copies(fitting *fit, const dt_trace_rank *trace) {
  const dt_sim_costs *costs = fit->costs;
  double drain_free = 0.0;
  qsort((void *)fit->sorted, trace->span_count, sizeof(void *), by_begin);
  for (size_t i = 0; i < trace->span_count; i++) {
    const dt_span *span = fit->sorted[i];
    if (span->kind != DT_SPAN_DISPATCH && span->kind != DT_SPAN_SEGMENT) continue;
    int remote = span->peer >= 0 && span->peer != trace->rank;
    double begin = (double)span->begin_ns * 1e-9, seconds = ((double)span->end_ns - (double)span->begin_ns) * 1e-9;
    double row = (double)(span->kind == DT_SPAN_DISPATCH ? fit->config->row_in_bytes : fit->config->row_out_bytes);
    double bytes = row * span->rows;
    if (remote && costs->link_bytes_per_s > 0.0) {
      double drain = bytes / costs->link_bytes_per_s;
      drain_free = fmax(drain_free, begin) + drain;
      double stall = drain_free - costs->link_capacity_bytes / costs->link_bytes_per_s - begin;
      /* A long stall outlasts the copy: what follows it is the waking. */
      if (stall > drain / 2 && !add(&fit->wakes, fmax(0.0, seconds - stall))) return no_memory();
      if (stall > 0.0) continue;
    }
    sim_observation *o = add(&fit->copies, seconds * fit->copy_share);
    if (!o) return no_memory();
    o->x[remote ? COPY_REMOTE : COPY_LOCAL] = bytes;
    o->x[PUT_BASE] = remote;
  }
  return DT_OK;
}

static int has_column(const observations *list, int column) {
  for (size_t i = 0; i < list->count; i++)
    if (list->items[i].x[column] > 0.0) return 1;
  return 0;
}

/* What the tiles of traces[first .. end) took by the coefficients. */
static double fitted_sum(const fitting *fit, size_t first, size_t end, const double coefficients[SIM_COLUMNS]) {
  double sum = 0.0;
  for (size_t i = first ? fit->tiles_end[first - 1] : 0; i < fit->tiles_end[end - 1]; i++)
    sum += sim_robust_value(&fit->tiles.items[i], coefficients);
  return sum;
}

/* What they took, accidents cut off. */
static double measured_sum(const fitting *fit, size_t trace, const double coefficients[SIM_COLUMNS]) {
  double sum = 0.0;
  for (size_t i = trace ? fit->tiles_end[trace - 1] : 0; i < fit->tiles_end[trace]; i++) {
    const sim_observation *o = &fit->tiles.items[i];
    sum += fmin(o->y, accident * sim_robust_value(o, coefficients));
  }
  return sum;
}

/* From the first begin to the last end of the tiles of a run, all ranks. */
static double compute_seconds(const dt_trace_rank *traces, size_t count) {
  uint64_t begin = UINT64_MAX, end = 0;
  for (size_t t = 0; t < count; t++) {
    for (size_t i = 0; i < traces[t].span_count; i++) {
      const dt_span *span = &traces[t].spans[i];
      if (span->kind != DT_SPAN_L1 && span->kind != DT_SPAN_L2) continue;
      if (span->begin_ns < begin) begin = span->begin_ns;
      if (span->end_ns > end) end = span->end_ns;
    }
  }
  return end > begin ? (double)(end - begin) * 1e-9 : 0.0;
}

/* Times are skewed: a sum of many tends to its mean, which lies above what a robust fit finds. The factor makes up for
 * it: the median, over ranks and runs, of measured by fitted sum. Where threads take turns on too few cores, single
 * times say little (most tiles run undisturbed, some wait for a whole turn); but then all cores are busy throughout,
 * and the work of a run is cores * time. */
static dt_status skew(const fitting *fit, const dt_trace_rank *traces, size_t count,
                      const double coefficients[SIM_COLUMNS], double *factor) {
  double *ratios = malloc((count + 1) * sizeof *ratios);
  if (!ratios) return no_memory();
  size_t found = 0;
  for (size_t first = 0, end; first < count; first = end) {
    end = first + 1;
    double measured;
    if (fit->compute_share < 1.0) {
      while (end < count && traces[end].rank > traces[end - 1].rank) end++; /* a run: ranks ascend */
      measured = fit->costs->cores * compute_seconds(&traces[first], end - first);
    } else {
      measured = measured_sum(fit, first, coefficients);
    }
    double fitted = fitted_sum(fit, first, end, coefficients);
    if (fitted > 0.0) ratios[found++] = measured / fitted;
  }
  *factor = found ? dt_median(ratios, found) : 1.0;
  free(ratios);
  return DT_OK;
}

static dt_status median_wake(const observations *wakes, double *wake_s) {
  double *seconds = malloc((wakes->count + 1) * sizeof *seconds);
  if (!seconds) return no_memory();
  for (size_t i = 0; i < wakes->count; i++) seconds[i] = wakes->items[i].y;
  if (wakes->count) *wake_s = dt_median(seconds, wakes->count);
  free(seconds);
  return DT_OK;
}

/* What the runs did not show keeps its value. */
static dt_status solve(const fitting *fit, const dt_trace_rank *traces, size_t count, dt_sim_costs *costs) {
  double tiles[SIM_COLUMNS], reduce[SIM_COLUMNS], shared[SIM_COLUMNS], copies[SIM_COLUMNS];
  dt_status status = sim_robust_fit(fit->tiles.items, fit->tiles.count, tiles);
  if (!status) status = sim_robust_fit(fit->reduce.items, fit->reduce.count, reduce);
  if (!status) status = sim_robust_fit(fit->shared.items, fit->shared.count, shared);
  if (!status) status = sim_robust_fit(fit->copies.items, fit->copies.count, copies);
  double factor = 1.0;
  if (!status) status = skew(fit, traces, count, tiles, &factor);
  if (!status) status = median_wake(&fit->wakes, &costs->wake_s);
  if (status) return status;
  for (int c = 0; c < SIM_COLUMNS; c++) tiles[c] *= factor;
  if (has_column(&fit->tiles, L1_BASE)) {
    costs->l1_base_s = tiles[L1_BASE];
    costs->l1_row_s = tiles[L1_ROW];
    costs->l1_panel_s = tiles[L1_PANEL];
    costs->band_s_per_row = tiles[BAND_ROW];
  }
  if (has_column(&fit->tiles, L2_BASE)) {
    costs->l2_base_s = tiles[L2_BASE];
    costs->l2_row_s = tiles[L2_ROW];
    costs->l2_panel_s = tiles[L2_PANEL];
  }
  if (fit->reduce.count) {
    costs->reduce_base_s = reduce[BASE];
    costs->reduce_row_s = reduce[RATE];
  }
  if (fit->shared.count) {
    costs->shared_base_s = shared[BASE];
    costs->shared_row_s = shared[RATE];
  }
  if (has_column(&fit->copies, COPY_LOCAL)) costs->local_copy_s_per_byte = copies[COPY_LOCAL];
  if (has_column(&fit->copies, COPY_REMOTE)) {
    costs->copy_s_per_byte = copies[COPY_REMOTE];
    costs->put_base_s = copies[PUT_BASE];
  }
  return DT_OK;
}

static double share_of_core(const dt_sim_costs *costs, double threads) {
  return costs->cores > 0.0 && threads > costs->cores ? costs->cores / threads : 1.0;
}

static dt_status fit_trace(fitting *fit, const dt_trace_rank *trace, const dt_plan *plan) {
  if (trace->span_count == 0) return DT_OK;
  const dt_span **sorted = malloc(trace->span_count * sizeof(void *));
  if (!sorted) return no_memory();
  for (size_t i = 0; i < trace->span_count; i++) sorted[i] = &trace->spans[i];
  fit->sorted = sorted;
  dt_status status = add_tasks(fit, trace, plan);
  if (!status) status = add_copies(fit, trace);
  free((void *)sorted);
  fit->sorted = NULL;
  return status;
}

dt_status dt_sim_fit(const dt_sim_config *config, const dt_trace_rank *traces, const dt_plan *const *plans,
                     size_t count, dt_sim_costs *costs) {
  if (config->row_in_bytes < 1 || config->row_out_bytes < 1)
    return dt_fail(DT_ERR_ARGUMENT, "row_in_bytes, row_out_bytes: %lld, %lld; >= 1 is allowed",
                   (long long)config->row_in_bytes, (long long)config->row_out_bytes);
  if (costs->band_panels < 0)
    return dt_fail(DT_ERR_ARGUMENT, "band_panels: %d; a number >= 0 is allowed", costs->band_panels);
  double ranks = config->plan.ranks, movers = config->consumers ? config->consumers : config->workers;
  fitting fit = {.config = config,
                 .costs = costs,
                 .compute_share = share_of_core(costs, ranks * config->workers),
                 .copy_share = share_of_core(costs, ranks * movers),
                 .tiles_end = calloc(count + 1, sizeof(size_t))};
  if (!fit.tiles_end) return no_memory();
  dt_status status = DT_OK;
  for (size_t i = 0; !status && i < count; i++) {
    status = fit_trace(&fit, &traces[i], plans[i]);
    fit.tiles_end[i] = fit.tiles.count;
  }
  if (!status && fit.tiles.count == 0)
    status = dt_fail(DT_ERR_INPUT, "spans: no L1 or L2 task; traces of serial runs are needed");
  dt_sim_costs fitted = *costs;
  if (!status) status = solve(&fit, traces, count, &fitted);
  if (!status) status = sim_fit_stages(traces, count, &fitted);
  if (!status) *costs = fitted;
  free(fit.tiles_end);
  free(fit.tiles.items);
  free(fit.reduce.items);
  free(fit.shared.items);
  free(fit.copies.items);
  free(fit.wakes.items);
  return status;
}
