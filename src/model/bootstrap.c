#include "bootstrap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/random.h"
#include "core/statistics.h"

struct dt_resample {
  size_t count, rounds, taken;
  int32_t *round_of; /* [count]: index of the sample's round */
  int32_t *drawn;    /* [rounds]: how often */
  double *values;
  size_t capacity;
  int failed; /* out of memory while taking */
  dt_random random;
};

static int ascending_i32(const void *a, const void *b) {
  int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

dt_status dt_resample_create(const int32_t *rounds, size_t count, uint64_t seed, dt_resample **out) {
  dt_resample *r = calloc(1, sizeof *r);
  int32_t *distinct = malloc((count ? count : 1) * sizeof *distinct);
  if (!r || !distinct) goto memory;
  r->count = count;
  r->random.state = seed;
  r->capacity = 2 * count + 16;
  r->round_of = malloc((count ? count : 1) * sizeof *r->round_of);
  r->drawn = malloc((count ? count : 1) * sizeof *r->drawn);
  r->values = malloc(r->capacity * sizeof *r->values);
  if (!r->round_of || !r->drawn || !r->values) goto memory;
  memcpy(distinct, rounds, count * sizeof *distinct);
  qsort(distinct, count, sizeof *distinct, ascending_i32);
  for (size_t i = 0; i < count; i++)
    if (r->rounds == 0 || distinct[r->rounds - 1] != distinct[i]) distinct[r->rounds++] = distinct[i];
  if (r->rounds < 5) {
    r->rounds = count;
    for (size_t i = 0; i < count; i++) r->round_of[i] = (int32_t)i;
  } else {
    for (size_t i = 0; i < count; i++) {
      int32_t *found = bsearch(&rounds[i], distinct, r->rounds, sizeof *distinct, ascending_i32);
      r->round_of[i] = (int32_t)(found - distinct);
    }
  }
  for (size_t i = 0; i < r->rounds; i++) r->drawn[i] = 1;
  free(distinct);
  *out = r;
  return DT_OK;
memory:
  free(distinct);
  dt_resample_destroy(r);
  return dt_fail(DT_ERR_MEMORY, "bootstrap: %zu samples", count);
}

void dt_resample_destroy(dt_resample *r) {
  if (!r) return;
  free(r->round_of), free(r->drawn), free(r->values);
  free(r);
}

void dt_resample_draw(dt_resample *r) {
  memset(r->drawn, 0, r->rounds * sizeof *r->drawn);
  for (size_t i = 0; i < r->rounds; i++) r->drawn[dt_random_below(&r->random, r->rounds)]++;
}

void dt_resample_clear(dt_resample *r) {
  r->taken = 0;
}

void dt_resample_take(dt_resample *r, size_t sample, double value) {
  int32_t times = r->drawn[r->round_of[sample]];
  if (r->taken + (size_t)times > r->capacity) {
    size_t capacity = 2 * (r->taken + (size_t)times);
    double *values = realloc(r->values, capacity * sizeof *values);
    if (!values) {
      r->failed = 1;
      return;
    }
    r->values = values, r->capacity = capacity;
  }
  for (int32_t i = 0; i < times; i++) r->values[r->taken++] = value;
}

size_t dt_resample_count(const dt_resample *r) {
  return r->taken;
}

double dt_resample_median(dt_resample *r) {
  if (!r->taken || r->failed) return NAN;
  qsort(r->values, r->taken, sizeof *r->values, dt_ascending);
  return 0.5 * (r->values[(r->taken - 1) / 2] + r->values[r->taken / 2]);
}

dt_status dt_resample_status(const dt_resample *r) {
  return r->failed ? dt_fail(DT_ERR_MEMORY, "bootstrap: %zu samples", r->count) : DT_OK;
}

dt_status dt_bootstrap_median(const double *samples, size_t count, int32_t replicates, uint64_t seed,
                              dt_interval *interval) {
  int32_t *rounds = malloc((count ? count : 1) * sizeof *rounds);
  double *medians = malloc((replicates > 0 ? (size_t)replicates : 1) * sizeof *medians);
  dt_resample *resample = NULL;
  dt_status status = rounds && medians ? DT_OK : dt_fail(DT_ERR_MEMORY, "bootstrap: %zu samples", count);
  for (size_t i = 0; i < count && !status; i++) rounds[i] = (int32_t)i;
  if (!status) status = dt_resample_create(rounds, count, seed, &resample);
  for (int32_t r = 0; r < replicates && !status; r++) {
    dt_resample_draw(resample);
    dt_resample_clear(resample);
    for (size_t i = 0; i < count; i++) dt_resample_take(resample, i, samples[i]);
    medians[r] = dt_resample_median(resample);
  }
  if (!status) status = dt_resample_status(resample);
  if (!status) {
    double value = dt_median(samples, count);
    *interval = (dt_interval){value, value, value};
    if (replicates > 0)
      *interval = (dt_interval){value, fmin(value, dt_quantile(medians, (size_t)replicates, 0.025)),
                                fmax(value, dt_quantile(medians, (size_t)replicates, 0.975))};
  }
  dt_resample_destroy(resample);
  free(rounds), free(medians);
  return status;
}
