#include "fit.h"

#include <math.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/statistics.h"

const char *dt_law_name(dt_law law) {
  static const char *const names[] = {"max", "capacity", "producer-capacity", "burst-capacity"};
  return (unsigned)law < sizeof names / sizeof *names ? names[law] : "unknown";
}

/* Linear in B among the points of one K (a run of equal producers), nearest beyond. */
static double along_bytes(const dt_fit_point *run, size_t count, double bytes) {
  if (count == 1 || bytes <= run[0].producer_bytes) return run[0].interval.value;
  for (size_t i = 1; i < count; i++) {
    if (bytes > run[i].producer_bytes) continue;
    double at = (bytes - run[i - 1].producer_bytes) / (run[i].producer_bytes - run[i - 1].producer_bytes);
    return run[i - 1].interval.value + at * (run[i].interval.value - run[i - 1].interval.value);
  }
  return run[count - 1].interval.value;
}

double dt_fit_lookup(const dt_fit_points *points, double producers, double producer_bytes) {
  double before = NAN, before_k = 0.0;
  for (size_t i = 0, end; i < points->count; i = end) {
    for (end = i; end < points->count && points->point[end].producers == points->point[i].producers;) end++;
    double value = along_bytes(points->point + i, end - i, producer_bytes);
    double k = points->point[i].producers;
    if (producers <= k) {
      if (isnan(before)) return value;
      return before + (producers - before_k) / (k - before_k) * (value - before);
    }
    before = value, before_k = k;
  }
  return before;
}

double dt_fit_pair_s(const dt_burst_model *model, double burst_bytes, double gap_s) {
  dt_burst bursts[2] = {{burst_bytes, model->t0_s, gap_s}, {burst_bytes, model->t0_s, 0.0}};
  double issue_s[2];
  if (dt_burst_sequence(model->rate_bytes_per_s, model->capacity_bytes, bursts, 2, issue_s, NULL)) return NAN;
  return issue_s[1];
}

static double capacity_of(const dt_fit *fit, dt_law law, const dt_fit_sample *question) {
  if (!fit->capacities.count) return 0.0;
  if (law == DT_LAW_PRODUCER_CAPACITY) return question->producers * fit->producer_capacity_bytes;
  if (law == DT_LAW_CAPACITY) return dt_fit_lookup(&fit->capacities, question->producers, 0.0);
  return dt_fit_lookup(&fit->burst_capacities, question->producers, question->producer_bytes);
}

static double issue_s(const dt_fit *fit, dt_law law, const dt_fit_sample *question) {
  double volume = question->producers * question->producer_bytes;
  dt_burst_model model = {
      .t0_s = dt_fit_lookup(&fit->floors, question->producers, question->producer_bytes),
      .rate_bytes_per_s = dt_fit_lookup(&fit->rates, question->producers, question->producer_bytes),
      .capacity_bytes = capacity_of(fit, law, question),
  };
  if (law == DT_LAW_MAX && question->alignment == DT_FIT_DRAINED) return model.t0_s;
  if (law == DT_LAW_MAX || question->alignment == DT_FIT_FREE)
    return fmax(model.t0_s, volume / model.rate_bytes_per_s - question->gap_s);
  if (question->alignment == DT_FIT_ALONE)
    return fmax(model.t0_s,
                volume / model.rate_bytes_per_s - fmin(question->gap_s, model.capacity_bytes / model.rate_bytes_per_s));
  if (question->alignment == DT_FIT_ALIGNED) return dt_fit_pair_s(&model, volume, question->gap_s);
  return fmax(model.t0_s, (volume - model.capacity_bytes) / model.rate_bytes_per_s);
}

dt_status dt_fit_compare(const dt_fit *fit, dt_law law, const dt_fit_sample *samples, size_t count, int32_t alignment,
                         int32_t held_out, dt_fit_error *error) {
  double *errors = malloc((count ? count : 1) * sizeof *errors);
  if (!errors) return dt_fail(DT_ERR_MEMORY, "compare: %zu samples", count);
  size_t n = 0;
  for (size_t i = 0; i < count; i++) {
    const dt_fit_sample *s = &samples[i];
    if ((alignment >= 0 && s->alignment != alignment) || s->held_out != held_out || s->issue_s <= 0.0) continue;
    errors[n++] = fabs(issue_s(fit, law, s) - s->issue_s) / s->issue_s;
  }
  *error = (dt_fit_error){dt_median(errors, n), dt_quantile(errors, n, 0.9), dt_quantile(errors, n, 1.0), n};
  free(errors);
  return DT_OK;
}

double dt_fit_active_producers(double *starts_s, size_t count, double window_s) {
  qsort(starts_s, count, sizeof *starts_s, dt_ascending);
  for (size_t i = 0, end = 0; i < count; i++) {
    if (end < i) end = i; /* a window of nothing holds none */
    while (end < count && starts_s[end] < starts_s[i] + window_s) end++;
    starts_s[i] = (double)(end - i); /* no later burst looks at this start */
  }
  return dt_quantile(starts_s, count, 0.95);
}
