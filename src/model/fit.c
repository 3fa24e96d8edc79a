#include "fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap.h"
#include "core/error.h"
#include "core/statistics.h"

/* Which samples speak for which constant; thresholds are those of fit.h. */
static const double plateau = 0.97, recovered = 1.1, stalled = 1.15, zero_gap = 0.06;

static int by_place(const void *a, const void *b) {
  const dt_fit_point *x = a, *y = b;
  if (x->producers != y->producers) return x->producers < y->producers ? -1 : 1;
  return (x->producer_bytes > y->producer_bytes) - (x->producer_bytes < y->producer_bytes);
}

static dt_status point_of(dt_fit_points *points, const dt_fit_sample *sample, int with_bytes, dt_fit_point **point) {
  double bytes = with_bytes ? sample->producer_bytes : 0.0;
  for (size_t i = 0; i < points->count; i++) {
    *point = &points->point[i];
    if ((*point)->producers == sample->producers && (*point)->producer_bytes == bytes) return DT_OK;
  }
  if (points->count == DT_FIT_POINTS)
    return dt_fail(DT_ERR_INPUT, "samples: more than %d different settings of one kind", DT_FIT_POINTS);
  *point = &points->point[points->count++];
  **point = (dt_fit_point){.producers = sample->producers, .producer_bytes = bytes};
  return DT_OK;
}

static double burst_bytes(const dt_fit_sample *sample) {
  return (double)sample->producers * sample->producer_bytes;
}

typedef struct fitting {
  const dt_fit_sample *samples;
  size_t count;
  dt_resample *resample;
  double rate; /* R of the current replicate, which the capacities of the same replicate use */
  const dt_fit *fit;
} fitting;

static int is_rate(const dt_fit_sample *s) {
  return !s->held_out && s->alignment == DT_FIT_FREE && s->bytes_per_s > 0.0 &&
         s->gap_s * s->bytes_per_s <= zero_gap * burst_bytes(s);
}

static int is_floor(const dt_fit_sample *s, double rate) {
  return !s->held_out && s->alignment == DT_FIT_FREE && s->gap_s * rate >= recovered * burst_bytes(s);
}

static int is_capacity(const dt_fit_sample *s, const dt_fit_points *floors) {
  return !s->held_out && s->alignment == DT_FIT_DRAINED && floors->count &&
         s->issue_s >= stalled * dt_fit_lookup(floors, s->producers, s->producer_bytes);
}

/* The median over the resampled samples that speak for `point`. */
static double rate_median(const fitting *f, const dt_fit_point *point) {
  dt_resample_clear(f->resample);
  for (size_t i = 0; i < f->count; i++)
    if (f->samples[i].producers == point->producers && is_rate(&f->samples[i]))
      dt_resample_take(f->resample, i, f->samples[i].bytes_per_s);
  return dt_resample_median(f->resample);
}

static double plateau_median(const fitting *f, const dt_fit_points *rates) {
  double best = 0.0;
  for (size_t p = 0; p < rates->count; p++) best = fmax(best, rates->point[p].interval.value);
  dt_resample_clear(f->resample);
  for (size_t p = 0; p < rates->count; p++) {
    if (rates->point[p].interval.value < plateau * best) continue;
    for (size_t i = 0; i < f->count; i++)
      if (f->samples[i].producers == rates->point[p].producers && is_rate(&f->samples[i]))
        dt_resample_take(f->resample, i, f->samples[i].bytes_per_s);
  }
  return dt_resample_median(f->resample);
}

static double floor_median(const fitting *f, const dt_fit_point *point) {
  dt_resample_clear(f->resample);
  for (size_t i = 0; i < f->count; i++) {
    const dt_fit_sample *s = &f->samples[i];
    if (s->producers == point->producers && s->producer_bytes == point->producer_bytes &&
        is_floor(s, f->fit->rate_bytes_per_s.value))
      dt_resample_take(f->resample, i, s->issue_s);
  }
  return dt_resample_median(f->resample);
}

/* producers 0: all, divided by K. */
static double capacity_median(const fitting *f, int32_t producers) {
  dt_resample_clear(f->resample);
  for (size_t i = 0; i < f->count; i++) {
    const dt_fit_sample *s = &f->samples[i];
    if ((producers && s->producers != producers) || !is_capacity(s, &f->fit->floors)) continue;
    double capacity = fmax(0.0, burst_bytes(s) - f->rate * s->issue_s);
    dt_resample_take(f->resample, i, producers ? capacity : capacity / s->producers);
  }
  return dt_resample_median(f->resample);
}

/* Finds the points and their values on the whole sample. */
static dt_status fit_values(fitting *f, dt_fit *fit) {
  dt_fit_point *point;
  for (size_t i = 0; i < f->count; i++) {
    if (!is_rate(&f->samples[i])) continue;
    dt_status status = point_of(&fit->rates, &f->samples[i], 0, &point);
    if (status) return status;
    point->n++;
  }
  if (!fit->rates.count) return dt_fail(DT_ERR_INPUT, "samples: none is free-running without a gap; R needs some");
  qsort(fit->rates.point, fit->rates.count, sizeof *point, by_place);
  for (size_t p = 0; p < fit->rates.count; p++)
    fit->rates.point[p].interval.value = rate_median(f, &fit->rates.point[p]);
  fit->rate_bytes_per_s.value = f->rate = plateau_median(f, &fit->rates);
  fit->rate_n = (int64_t)dt_resample_count(f->resample);

  for (size_t i = 0; i < f->count; i++) {
    if (!is_floor(&f->samples[i], f->rate)) continue;
    dt_status status = point_of(&fit->floors, &f->samples[i], 1, &point);
    if (status) return status;
    point->n++;
  }
  if (!fit->floors.count)
    return dt_fail(DT_ERR_INPUT, "samples: none is free-running with a gap above 1.1 V/R; T0 needs some");
  qsort(fit->floors.point, fit->floors.count, sizeof *point, by_place);
  for (size_t p = 0; p < fit->floors.count; p++)
    fit->floors.point[p].interval.value = floor_median(f, &fit->floors.point[p]);

  for (size_t i = 0; i < f->count; i++) {
    if (!is_capacity(&f->samples[i], &fit->floors)) continue;
    dt_status status = point_of(&fit->capacities, &f->samples[i], 0, &point);
    if (status) return status;
    point->n++;
  }
  qsort(fit->capacities.point, fit->capacities.count, sizeof *point, by_place);
  for (size_t p = 0; p < fit->capacities.count; p++)
    fit->capacities.point[p].interval.value = capacity_median(f, fit->capacities.point[p].producers);
  fit->producer_capacity_bytes = fit->capacities.count ? capacity_median(f, 0) : 0.0;
  return DT_OK;
}

/* The percentile interval, widened to hold the value. */
static void set_interval(dt_interval *interval, const double *replicates, size_t count) {
  interval->low = interval->high = interval->value;
  if (!count) return;
  interval->low = fmin(interval->value, dt_quantile(replicates, count, 0.025));
  interval->high = fmax(interval->value, dt_quantile(replicates, count, 0.975));
}

/* One column of values per constant: R, R(K)..., T0..., Q... */
static dt_status fit_intervals(fitting *f, int32_t replicates, dt_fit *fit) {
  size_t columns = 1 + fit->rates.count + fit->floors.count + fit->capacities.count;
  double *values = malloc(columns * (size_t)(replicates > 0 ? replicates : 1) * sizeof *values);
  size_t *used = calloc(columns, sizeof *used);
  if (!values || !used) {
    free(values), free(used);
    return dt_fail(DT_ERR_MEMORY, "bootstrap: %zu constants, %d replicates", columns, replicates);
  }
  for (int32_t r = 0; r < replicates; r++) {
    dt_resample_draw(f->resample);
    double value = plateau_median(f, &fit->rates);
    f->rate = isnan(value) ? fit->rate_bytes_per_s.value : value;
    for (size_t column = 0; column < columns; column++) {
      size_t at = column - 1;
      if (column > 0) {
        if (at < fit->rates.count) value = rate_median(f, &fit->rates.point[at]);
        else if ((at -= fit->rates.count) < fit->floors.count) value = floor_median(f, &fit->floors.point[at]);
        else value = capacity_median(f, fit->capacities.point[at - fit->floors.count].producers);
      }
      if (!isnan(value)) values[column * (size_t)replicates + used[column]++] = value;
    }
  }
  size_t column = 0;
  set_interval(&fit->rate_bytes_per_s, values, used[column]);
  dt_fit_points *groups[] = {&fit->rates, &fit->floors, &fit->capacities};
  for (size_t g = 0; g < 3; g++)
    for (size_t p = 0; p < groups[g]->count; p++) {
      column++;
      set_interval(&groups[g]->point[p].interval, values + column * (size_t)replicates, used[column]);
    }
  free(values), free(used);
  return DT_OK;
}

dt_status dt_fit_samples(const dt_fit_sample *samples, size_t count, int32_t replicates, uint64_t seed, dt_fit *fit) {
  for (size_t i = 0; i < count; i++) {
    const dt_fit_sample *s = &samples[i];
    if (!(s->producers > 0 && s->producer_bytes > 0.0 && s->gap_s >= 0.0 && s->issue_s >= 0.0 &&
          s->bytes_per_s >= 0.0 && isfinite(s->producer_bytes + s->gap_s + s->issue_s + s->bytes_per_s)))
      return dt_fail(DT_ERR_INPUT,
                     "samples[%zu]: %d producers, %g bytes, gap %g s, issue %g s, %g B/s; must be finite, not negative",
                     i, s->producers, s->producer_bytes, s->gap_s, s->issue_s, s->bytes_per_s);
  }
  dt_fit result;
  memset(&result, 0, sizeof result);
  fitting f = {.samples = samples, .count = count, .fit = &result};
  int32_t *rounds = malloc((count ? count : 1) * sizeof *rounds);
  if (!rounds) return dt_fail(DT_ERR_MEMORY, "fit: %zu samples", count);
  for (size_t i = 0; i < count; i++) rounds[i] = samples[i].round;
  dt_status status = dt_resample_create(rounds, count, seed, &f.resample);
  free(rounds);
  if (status) return status;
  status = fit_values(&f, &result);
  if (!status) status = fit_intervals(&f, replicates, &result);
  dt_resample_destroy(f.resample);
  if (!status) *fit = result;
  return status;
}
