/* The bootstrap interval of a median, and K_act of a probe's stamps. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "core/statistics.h"
#include "model/bootstrap.h"
#include "model/fit.h"
#include "model/probe.h"

enum { SAMPLES = 400, REPLICATES = 400 };

static dt_interval interval_of(const double *samples, size_t count, int32_t replicates, uint64_t seed) {
  dt_interval interval = {-1, -1, -1};
  assert_int_equal(dt_bootstrap_median(samples, count, replicates, seed, &interval), DT_OK);
  assert_true(interval.low <= interval.value && interval.value <= interval.high);
  return interval;
}

/* Uniform on [0, 1): the median of n samples has a deviation of about 1/(2 sqrt(n)), its 95 % interval is 3.9 of them
 * wide; a bootstrap finds that within a third or so. */
static void median_of_uniform_samples(void **state) {
  (void)state;
  double samples[SAMPLES];
  dt_random random = {7};
  for (size_t i = 0; i < SAMPLES; i++) samples[i] = dt_random_unit(&random);
  const dt_interval all = interval_of(samples, SAMPLES, REPLICATES, 1);
  const dt_interval few = interval_of(samples, SAMPLES / 16, REPLICATES, 1);
  const double expected = 3.92 / (2 * sqrt(SAMPLES));
  assert_true(all.low < 0.5 && 0.5 < all.high);
  if (!(all.high - all.low > 0.6 * expected && all.high - all.low < 1.6 * expected))
    fail_msg("width %g, expected %g", all.high - all.low, expected);
  if (!(all.value - all.low > 0.25 * expected && all.high - all.value > 0.25 * expected)) /* both sides */
    fail_msg("from %g below to %g above, expected %g", all.value - all.low, all.high - all.value, expected / 2);
  assert_true(few.high - few.low > 2 * (all.high - all.low)); /* 4 times, but for chance */
}

/* Whether a draw takes samples of one round differently often, in any of many draws. */
static bool splits_rounds(int32_t rounds) {
  enum { EACH = 4, DRAWS = 50, MOST = 8 };
  int32_t round_of[MOST * EACH];
  dt_resample *resample;
  bool splits = false;
  for (int32_t i = 0; i < rounds * EACH; i++) round_of[i] = 10 * (i / EACH);
  assert_int_equal(dt_resample_create(round_of, (size_t)(rounds * EACH), 1, &resample), DT_OK);
  for (int32_t draw = 0; draw < DRAWS; draw++) {
    size_t first = 0;
    dt_resample_draw(resample);
    for (int32_t i = 0; i < rounds * EACH; i++) {
      dt_resample_clear(resample);
      dt_resample_take(resample, (size_t)i, 1.0);
      if (i % EACH == 0) first = dt_resample_count(resample);
      splits |= dt_resample_count(resample) != first;
    }
  }
  dt_resample_destroy(resample);
  return splits;
}

/* Rounds are resampled whole, unless they are too few to say anything: then each sample by itself. */
static void rounds_stay_whole(void **state) {
  (void)state;
  assert_true(splits_rounds(4));
  assert_false(splits_rounds(5));
  assert_false(splits_rounds(8));
}

static void same_seed_same_interval(void **state) {
  (void)state;
  double samples[40];
  dt_random random = {3};
  for (size_t i = 0; i < 40; i++) samples[i] = dt_random_unit(&random);
  const dt_interval one = interval_of(samples, 40, 50, 1), again = interval_of(samples, 40, 50, 1);
  const dt_interval other = interval_of(samples, 40, 50, 2), none = interval_of(samples, 40, 0, 1);
  assert_memory_equal(&one, &again, sizeof one);
  assert_true(one.low != other.low || one.high != other.high);
  assert_true(none.low == none.value && none.value == none.high && none.value == one.value);
}

static void constant_and_single_samples(void **state) {
  (void)state;
  const double same[] = {2, 2, 2, 2, 2, 2, 2}, one[] = {5};
  const dt_interval flat = interval_of(same, 7, 100, 1), single = interval_of(one, 1, 100, 1);
  assert_true(flat.low == 2 && flat.high == 2);
  assert_true(single.low == 5 && single.high == 5);
}

/* Four producers, trains of two bursts of 10 us each: together, then one after the other. */
static double active(uint32_t stagger, double window_s) {
  enum { PRODUCERS = 4, BURSTS = 12 };
  dt_probe_stamp stamps[PRODUCERS][BURSTS];
  uint32_t counts[PRODUCERS];
  for (uint32_t p = 0; p < PRODUCERS; p++) {
    counts[p] = BURSTS;
    for (uint32_t n = 0; n < BURSTS; n++) {
      const uint32_t start = 1000000 * n + p * stagger;
      stamps[p][n] = (dt_probe_stamp){.start = start, .end = start + 10000};
    }
  }
  const dt_probe_setting setting = {.alignment = DT_FIT_ALIGNED,
                                    .producers = PRODUCERS,
                                    .producer_bytes = 100,
                                    .per_train = 2,
                                    .trains = BURSTS / 2,
                                    .active_window_s = window_s};
  dt_probe_result result;
  assert_int_equal(dt_probe_summary(&setting, &stamps[0][0], counts, BURSTS, 1e-9, &result), DT_OK);
  assert_int_equal(result.bursts, PRODUCERS * (BURSTS / 2 - 1)); /* the second of every train but the first */
  return result.active_producers;
}

static void active_producers(void **state) {
  (void)state;
  assert_true(active(0, 20e-6) == 4);
  assert_true(active(100000, 20e-6) == 1);
  assert_true(active(100000, 150e-6) == 2); /* each window holds the next producer's burst too */
  assert_true(active(100000, 1) > 4);       /* a window over all trains holds bursts of several */
  assert_true(active(0, 0) == 0);           /* of a link without capacity, bursts at the same instant */
}

/* Type 7 on sorted samples, the definition. */
static double quantile_of_sorted(const double *sorted, size_t count, double p) {
  const double at = p * (double)(count - 1);
  const size_t low = (size_t)at, high = low + 1 < count ? low + 1 : low;
  return sorted[low] + (at - (double)low) * (sorted[high] - sorted[low]);
}

/* Ties, both signs, zeros, infinities, values of all sizes: to the bit what sorting gives. */
static void quantiles(void **state) {
  (void)state;
  dt_random random = {3};
  int finite = 0;
  for (int trial = 0; trial < 5000; trial++) {
    double samples[64], sorted[64];
    const size_t count = 1 + dt_random_below(&random, 64);
    for (size_t i = 0; i < count; i++) {
      const uint64_t kind = dt_random_below(&random, 8);
      samples[i] = ldexp(dt_random_unit(&random) - 0.5, (int)dt_random_below(&random, 2000) - 1000);
      if (kind == 0) samples[i] = samples[0];
      if (kind == 1) samples[i] = 0;
      if (kind == 2 && trial % 10 == 0) samples[i] = INFINITY;
    }
    memcpy(sorted, samples, sizeof sorted);
    qsort(sorted, count, sizeof *sorted, dt_ascending);
    const double p = trial % 3 ? dt_random_unit(&random) : 0.5;
    const double expected = quantile_of_sorted(sorted, count, p), found = dt_quantile(samples, count, p);
    assert_true(found == expected || (isnan(found) && isnan(expected)));
    finite += isfinite(found);
  }
  assert_true(finite > 4000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(median_of_uniform_samples), cmocka_unit_test(rounds_stay_whole),
      cmocka_unit_test(same_seed_same_interval),   cmocka_unit_test(constant_and_single_samples),
      cmocka_unit_test(active_producers),          cmocka_unit_test(quantiles),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
