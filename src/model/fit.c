#include "fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap.h"
#include "core/error.h"
#include "core/statistics.h"
#include "states.h"

/* Which samples speak for which constant; thresholds are those of fit.h. */
static const double plateau = 0.95, recovered = 1.1, stalled = 1.15, small_gap = 0.1, short_bursts = 4.0;

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
  double rough_rate;      /* tells which bursts had time to recover */
  double rate_drift;      /* R of the current replicate over R: its capacities use its rate */
  dt_fit_points isolated; /* by K and B: isolated bursts (n) and how many of them stall (value) */
  dt_fit_points longest;  /* by K: the longest bursts that Q(K) counts */
  int32_t *state;         /* [count], of states.h */
  const dt_fit *fit;
} fitting;

static int runs_free(const dt_fit_sample *s) {
  return !s->held_out && (s->alignment == DT_FIT_FREE || s->alignment == DT_FIT_ALONE);
}

static int is_floor(const dt_fit_sample *s, double rate) {
  return runs_free(s) && !s->may_stall && s->gap_s * rate >= recovered * burst_bytes(s);
}

static int stalls(const dt_fit_sample *s, const dt_fit_points *floors) {
  return s->issue_s >= stalled * dt_fit_lookup(floors, s->producers, s->producer_bytes);
}

static int is_rate(const dt_fit_sample *s, const dt_fit_points *floors) {
  return runs_free(s) && s->bytes_per_s > 0.0 && stalls(s, floors) &&
         (s->alignment == DT_FIT_FREE || s->gap_s * s->bytes_per_s <= small_gap * burst_bytes(s));
}

static int at_point(const dt_fit_sample *s, const dt_fit_point *point) {
  return s->producers == point->producers &&
         (point->producer_bytes == 0.0 || s->producer_bytes == point->producer_bytes);
}

/* Of a setting that stalls: the few slow rounds of one that does not say how slow they were, not how much is held. */
static int is_capacity(const fitting *f, const dt_fit_sample *s) {
  if (s->held_out || s->alignment != DT_FIT_DRAINED || !stalls(s, &f->fit->floors)) return 0;
  for (size_t p = 0; p < f->isolated.count; p++) {
    const dt_fit_point *point = &f->isolated.point[p];
    if (at_point(s, point)) return 2.0 * point->interval.value >= (double)point->n;
  }
  return 0;
}

static int is_short(const fitting *f, const dt_fit_sample *s) {
  return s->producer_bytes <= dt_fit_lookup(&f->longest, s->producers, 0.0);
}

/* Medians over the resampled samples that speak for `point`. */
static double rate_median(const fitting *f, const dt_fit_point *point) {
  dt_resample_clear(f->resample);
  for (size_t i = 0; i < f->count; i++)
    if (at_point(&f->samples[i], point) && is_rate(&f->samples[i], &f->fit->floors))
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
      if (at_point(&f->samples[i], &rates->point[p]) && is_rate(&f->samples[i], &f->fit->floors))
        dt_resample_take(f->resample, i, f->samples[i].bytes_per_s);
  }
  return dt_resample_median(f->resample);
}

static double floor_median(const fitting *f, const dt_fit_point *point) {
  dt_resample_clear(f->resample);
  for (size_t i = 0; i < f->count; i++)
    if (at_point(&f->samples[i], point) && is_floor(&f->samples[i], f->rough_rate))
      dt_resample_take(f->resample, i, f->samples[i].issue_s);
  return dt_resample_median(f->resample);
}

/* R of the same K and B where it was measured, else R. */
static double rate_of(const fitting *f, const dt_fit_sample *s) {
  const dt_fit_points *rates = &f->fit->rates;
  for (size_t p = 0; p < rates->count; p++)
    if (at_point(s, &rates->point[p])) return rates->point[p].interval.value * f->rate_drift;
  return f->fit->rate_bytes_per_s.value * f->rate_drift;
}

static double held_bytes(const fitting *f, const dt_fit_sample *s) {
  return fmax(0.0, burst_bytes(s) - rate_of(f, s) * s->issue_s);
}

/* Of the rounds in one state. point NULL: all, divided by K. */
static double capacity_median_in(const fitting *f, const dt_fit_point *point, int32_t state) {
  dt_resample_clear(f->resample);
  for (size_t i = 0; i < f->count; i++) {
    const dt_fit_sample *s = &f->samples[i];
    if (f->state[i] != state || (point && !at_point(s, point))) continue;
    if (((!point || point->producer_bytes == 0.0) && !is_short(f, s)) || !is_capacity(f, s)) continue;
    dt_resample_take(f->resample, i, held_bytes(f, s) / (point ? 1 : s->producers));
  }
  return dt_resample_median(f->resample);
}

static double capacity_median(const fitting *f, const dt_fit_point *point) {
  return capacity_median_in(f, point, DT_STATE_USUAL);
}

static double other_capacity_median(const fitting *f, const dt_fit_point *point) {
  return capacity_median_in(f, point, DT_STATE_OTHER);
}

/* A rate to tell recovered bursts by, before R is known: nearly the largest seen. */
static dt_status find_rough_rate(fitting *f) {
  double *rates = malloc((f->count ? f->count : 1) * sizeof *rates);
  if (!rates) return dt_fail(DT_ERR_MEMORY, "fit: %zu samples", f->count);
  size_t n = 0;
  for (size_t i = 0; i < f->count; i++) {
    const dt_fit_sample *s = &f->samples[i];
    if (runs_free(s) && s->bytes_per_s > 0.0) rates[n++] = s->bytes_per_s;
  }
  f->rough_rate = dt_quantile(rates, n, 0.95);
  free(rates);
  return n ? DT_OK : dt_fail(DT_ERR_INPUT, "samples: none is free-running with its rate; R needs some");
}

/* The settings that have samples of one kind. */
static dt_status find_points(const fitting *f, int (*speaks)(const fitting *, const dt_fit_sample *), int with_bytes,
                             dt_fit_points *points) {
  for (size_t i = 0; i < f->count; i++) {
    const dt_fit_sample *s = &f->samples[i];
    if (!speaks(f, s) || (!with_bytes && !is_short(f, s))) continue;
    dt_fit_point *point;
    dt_status status = point_of(points, s, with_bytes, &point);
    if (status) return status;
    point->n++;
  }
  qsort(points->point, points->count, sizeof points->point[0], by_place);
  return DT_OK;
}

static int speaks_of_floor(const fitting *f, const dt_fit_sample *s) {
  return is_floor(s, f->rough_rate);
}

static int speaks_of_rate(const fitting *f, const dt_fit_sample *s) {
  return is_rate(s, &f->fit->floors);
}

static int speaks_of_capacity(const fitting *f, const dt_fit_sample *s) {
  return f->state[s - f->samples] == DT_STATE_USUAL && is_capacity(f, s);
}

static int speaks_of_other_capacity(const fitting *f, const dt_fit_sample *s) {
  return f->state[s - f->samples] == DT_STATE_OTHER && is_capacity(f, s);
}

static dt_status count_isolated(fitting *f) {
  for (size_t i = 0; i < f->count; i++) {
    const dt_fit_sample *s = &f->samples[i];
    dt_fit_point *point;
    if (s->held_out || s->alignment != DT_FIT_DRAINED) continue;
    dt_status status = point_of(&f->isolated, s, 1, &point);
    if (status) return status;
    point->n++;
    point->interval.value += stalls(s, &f->fit->floors);
  }
  return DT_OK;
}

static dt_status find_longest(fitting *f) {
  for (size_t i = 0; i < f->count; i++) {
    const dt_fit_sample *s = &f->samples[i];
    dt_fit_point *point;
    if (!is_capacity(f, s)) continue;
    dt_status status = point_of(&f->longest, s, 0, &point);
    if (status) return status;
    double longest = short_bursts * s->producer_bytes;
    point->interval.value = point->interval.value > 0.0 ? fmin(point->interval.value, longest) : longest;
  }
  qsort(f->longest.point, f->longest.count, sizeof f->longest.point[0], by_place);
  return DT_OK;
}

/* Tells the machine's states apart by how much more than its setting's median every isolated burst leaves queued. */
static dt_status find_states(fitting *f, dt_fit *fit) {
  dt_fit_points all = {.count = 0};
  double *excess = malloc((f->count + 1) * sizeof *excess);
  if (!excess) return dt_fail(DT_ERR_MEMORY, "fit: %zu samples", f->count);
  dt_status status = find_points(f, speaks_of_capacity, 1, &all); /* until now all rounds are usual */
  for (size_t p = 0; p < all.count && !status; p++) all.point[p].interval.value = capacity_median(f, &all.point[p]);
  for (size_t i = 0; i < f->count && !status; i++) {
    const dt_fit_sample *s = &f->samples[i];
    excess[i] = NAN;
    for (size_t p = 0; p < all.count && is_capacity(f, s); p++)
      if (at_point(s, &all.point[p]))
        excess[i] = (burst_bytes(s) - rate_of(f, s) * s->issue_s - all.point[p].interval.value) / burst_bytes(s);
  }
  if (!status) status = dt_find_states(f->samples, excess, f->count, f->state, fit->state_rounds);
  free(excess);
  return status;
}

static dt_status fit_capacities(fitting *f, dt_fit *fit) {
  dt_status status = count_isolated(f);
  if (!status) status = find_longest(f);
  if (!status) status = find_states(f, fit);
  if (!status) status = find_points(f, speaks_of_capacity, 0, &fit->capacities);
  if (!status) status = find_points(f, speaks_of_capacity, 1, &fit->burst_capacities);
  if (!status) status = find_points(f, speaks_of_other_capacity, 1, &fit->other_capacities);
  if (status) return status;
  dt_fit_points *groups[] = {&fit->capacities, &fit->burst_capacities, &fit->other_capacities};
  for (size_t g = 0; g < 3; g++)
    for (size_t p = 0; p < groups[g]->count; p++)
      groups[g]->point[p].interval.value =
          capacity_median_in(f, &groups[g]->point[p], g < 2 ? DT_STATE_USUAL : DT_STATE_OTHER);
  fit->producer_capacity_bytes = fit->capacities.count ? capacity_median(f, NULL) : 0.0;
  return DT_OK;
}

/* Finds the points and their values on the whole sample. */
static dt_status fit_values(fitting *f, dt_fit *fit) {
  dt_status status = find_rough_rate(f);
  if (!status) status = find_points(f, speaks_of_floor, 1, &fit->floors);
  if (!status && !fit->floors.count)
    status = dt_fail(DT_ERR_INPUT, "samples: none is free-running with a gap above 1.1 V/R; T0 needs some");
  if (status) return status;
  for (size_t p = 0; p < fit->floors.count; p++)
    fit->floors.point[p].interval.value = floor_median(f, &fit->floors.point[p]);

  status = find_points(f, speaks_of_rate, 1, &fit->rates);
  if (!status && !fit->rates.count)
    status = dt_fail(DT_ERR_INPUT, "samples: no free-running burst stalls; R needs some that do");
  if (status) return status;
  for (size_t p = 0; p < fit->rates.count; p++)
    fit->rates.point[p].interval.value = rate_median(f, &fit->rates.point[p]);
  fit->rate_bytes_per_s.value = plateau_median(f, &fit->rates);
  fit->rate_n = (int64_t)dt_resample_count(f->resample);

  return fit_capacities(f, fit);
}

/* The percentile interval, widened to hold the value. */
static void set_interval(dt_interval *interval, const double *replicates, size_t count) {
  interval->low = interval->high = interval->value;
  if (!count) return;
  interval->low = fmin(interval->value, dt_quantile(replicates, count, 0.025));
  interval->high = fmax(interval->value, dt_quantile(replicates, count, 0.975));
}

enum { GROUPS = 5 };

/* One column of values per constant: R, then the groups in order. */
static dt_status fit_intervals(fitting *f, int32_t replicates, dt_fit *fit) {
  dt_fit_points *groups[] = {&fit->rates, &fit->floors, &fit->capacities, &fit->burst_capacities,
                             &fit->other_capacities};
  double (*const medians[])(const fitting *, const dt_fit_point *) = {rate_median, floor_median, capacity_median,
                                                                      capacity_median, other_capacity_median};
  size_t columns = 1, stride = replicates > 0 ? (size_t)replicates : 1;
  for (size_t g = 0; g < GROUPS; g++) columns += groups[g]->count;
  double *values = malloc(columns * stride * sizeof *values);
  size_t *used = calloc(columns, sizeof *used);
  if (!values || !used) {
    free(values), free(used);
    return dt_fail(DT_ERR_MEMORY, "bootstrap: %zu constants, %d replicates", columns, replicates);
  }
  for (int32_t r = 0; r < replicates; r++) {
    dt_resample_draw(f->resample);
    double value = plateau_median(f, &fit->rates);
    f->rate_drift = isnan(value) ? 1.0 : value / fit->rate_bytes_per_s.value;
    if (!isnan(value)) values[used[0]++] = value;
    size_t column = 1;
    for (size_t g = 0; g < GROUPS; g++)
      for (size_t p = 0; p < groups[g]->count; p++, column++) {
        value = medians[g](f, &groups[g]->point[p]);
        if (!isnan(value)) values[column * stride + used[column]++] = value;
      }
  }
  set_interval(&fit->rate_bytes_per_s, values, used[0]);
  size_t column = 1;
  for (size_t g = 0; g < GROUPS; g++)
    for (size_t p = 0; p < groups[g]->count; p++, column++)
      set_interval(&groups[g]->point[p].interval, values + column * stride, used[column]);
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
  fitting f = {.samples = samples, .count = count, .fit = &result, .rate_drift = 1.0};
  int32_t *rounds = malloc((count + 1) * sizeof *rounds);
  f.state = calloc(count + 1, sizeof *f.state);
  dt_status status = rounds && f.state ? DT_OK : dt_fail(DT_ERR_MEMORY, "fit: %zu samples", count);
  for (size_t i = 0; i < count && !status; i++) rounds[i] = samples[i].round;
  if (!status) status = dt_resample_create(rounds, count, seed, &f.resample);
  if (!status) status = fit_values(&f, &result);
  if (!status) status = fit_intervals(&f, replicates, &result);
  if (!status) status = dt_resample_status(f.resample);
  dt_resample_destroy(f.resample);
  free(rounds), free(f.state);
  if (!status) *fit = result;
  return status;
}
