#include "fit_stages.h"

#include <stdlib.h>

#include "core/error.h"
#include "core/spans.h"
#include "core/statistics.h"

enum { STAGES = 4 };

/* -1: of no stage. */
static int stage_of(int32_t kind) {
  switch (kind) {
  case DT_SPAN_DISPATCH:
    return 0;
  case DT_SPAN_L1:
  case DT_SPAN_L2:
  case DT_SPAN_SHARED:
    return 1;
  case DT_SPAN_SEGMENT:
    return 2;
  case DT_SPAN_REDUCE:
    return 3;
  default:
    return -1;
  }
}

typedef struct stage_begin {
  double sum; /* over ranks, of their first spans */
  uint64_t earliest;
  int ranks;
} stage_begin;

/* First begin of each stage on one rank; 0: the stage is empty there. */
static void first_begins(const dt_trace_rank *trace, uint64_t first[STAGES]) {
  for (int s = 0; s < STAGES; s++) first[s] = 0;
  for (size_t i = 0; i < trace->span_count; i++) {
    const dt_span *span = &trace->spans[i];
    int stage = stage_of(span->kind);
    if (stage >= 0 && (first[stage] == 0 || span->begin_ns < first[stage])) first[stage] = span->begin_ns;
  }
}

/* The end of the latest span, of work or of a link, that had ended by `limit`. */
static uint64_t last_end(const dt_trace_rank *traces, size_t count, uint64_t limit) {
  uint64_t last = 0;
  for (size_t r = 0; r < count; r++) {
    for (size_t i = 0; i < traces[r].span_count; i++) {
      const dt_span *span = &traces[r].spans[i];
      if (stage_of(span->kind) < 0 && span->kind != DT_SPAN_LINK) continue;
      if (span->end_ns <= limit && span->end_ns > last) last = span->end_ns;
    }
  }
  return last;
}

/* The gap before each stage but the first, from the last end on any rank to the mean first begin: barrier and waking
 * the threads. */
static int stage_gaps(const dt_trace_rank *traces, size_t count, uint64_t origin, double gaps[STAGES]) {
  stage_begin begin[STAGES] = {{0}};
  for (size_t r = 0; r < count; r++) {
    uint64_t first[STAGES];
    first_begins(&traces[r], first);
    for (int s = 0; s < STAGES; s++) {
      if (first[s] == 0) continue;
      begin[s].sum += (double)(first[s] - origin);
      if (begin[s].ranks++ == 0 || first[s] < begin[s].earliest) begin[s].earliest = first[s];
    }
  }
  int found = 0;
  for (int s = 1; s < STAGES; s++) {
    if (begin[s].ranks == 0) continue;
    uint64_t last = last_end(traces, count, begin[s].earliest);
    if (last == 0) continue;
    gaps[found++] = (begin[s].sum / begin[s].ranks - (double)(last - origin)) * 1e-9;
  }
  return found;
}

/* From the begin of a rank's plan to its first task, averaged over ranks; < 0: none has a plan's span. */
static double plan_seconds(const dt_trace_rank *traces, size_t count) {
  double sum = 0.0;
  int ranks = 0;
  for (size_t r = 0; r < count; r++) {
    uint64_t first[STAGES], begin = 0, task = 0;
    first_begins(&traces[r], first);
    for (int s = STAGES - 1; s >= 0; s--)
      if (first[s]) task = first[s];
    for (size_t i = 0; i < traces[r].span_count; i++) {
      const dt_span *span = &traces[r].spans[i];
      if (span->kind != DT_SPAN_PLAN) continue;
      begin = span->begin_ns;
      if (task < span->end_ns) task = span->end_ns;
      ranks++;
      sum += (double)(task - begin) * 1e-9;
      break;
    }
  }
  return ranks ? sum / ranks : -1.0;
}

dt_status sim_fit_stages(const dt_trace_rank *traces, size_t count, dt_sim_costs *costs) {
  double *gaps = malloc((count + 1) * STAGES * sizeof *gaps), *plans = malloc((count + 1) * sizeof *plans);
  if (!gaps || !plans) {
    free(gaps);
    free(plans);
    return dt_fail(DT_ERR_MEMORY, "fit: no memory for its stages");
  }
  size_t gap_count = 0, plan_count = 0;
  for (size_t first = 0, end; first < count; first = end) {
    end = first + 1; /* a run: ranks ascend */
    while (end < count && traces[end].rank > traces[end - 1].rank) end++;
    uint64_t origin = dt_spans_begin_ns(&traces[first], end - first);
    gap_count += (size_t)stage_gaps(&traces[first], end - first, origin, gaps + gap_count);
    double plan = plan_seconds(&traces[first], end - first);
    if (plan >= 0.0) plans[plan_count++] = plan;
  }
  if (gap_count) {
    double gap = dt_median(gaps, gap_count);
    costs->barrier_s = gap > 0.0 ? gap : 0.0;
  }
  if (plan_count) {
    costs->plan_s = dt_median(plans, plan_count);
    costs->entry_s = 0.0;
  }
  free(gaps);
  free(plans);
  return DT_OK;
}
