/* The design of experiments and the fit on a simulated machine that obeys the laws; what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <draintile/calibrate.h>

#include "calibrate/calibration.h"
#include "core/random.h"
#include "cpu/probe.h"
#include "model/experiments.h"

/* A link with R, Q and T0 = t0_s_per_byte*B that never lies, but for noise. */
typedef struct simulated {
  double rate, capacity, t0_s_per_byte, noise;
  dt_random random;
  int32_t runs, largest_producers;
} simulated;

static dt_status run_simulated(void *context, const dt_probe_setting *s, dt_probe_result *result) {
  simulated *machine = context;
  double volume = (double)s->producers * (double)s->producer_bytes,
         t0 = machine->t0_s_per_byte * (double)s->producer_bytes;
  dt_burst_model model = {t0, machine->rate, machine->capacity};
  double gap = s->gap_s, issue;
  if (s->alignment == DT_FIT_DRAINED) {
    gap = s->train_s;
    issue = fmax(t0, (volume - machine->capacity) / machine->rate);
  } else if (s->alignment == DT_FIT_ALIGNED) {
    gap = fmax(0.0, s->period_s - fmax(t0, (volume - machine->capacity) / machine->rate));
    issue = dt_fit_pair_s(&model, volume, gap);
  } else {
    double longest = s->producers == 1 ? fmin(gap, machine->capacity / machine->rate) : gap;
    issue = fmax(t0, volume / machine->rate - longest);
  }
  issue *= 1.0 + machine->noise * dt_random_normal(&machine->random);
  machine->runs++;
  if (s->producers > machine->largest_producers) machine->largest_producers = s->producers;
  *result = (dt_probe_result){.issue_s = issue,
                              .issue_min_s = issue,
                              .issue_max_s = issue,
                              .gap_s = gap,
                              .bytes_per_s = volume / (issue + gap),
                              .bursts = 10};
  return DT_OK;
}

static const double *design_of(int32_t index, int32_t *producers) {
  static const double machines[][3] = {
      {3.7e11, 2.4e6, 1.6e-11}, {5e10, 3e6, 1.0e-10}, {2e7, 4e4, 2e-10}, {1e9, 2e6, 2e-10}};
  static const int32_t counts[] = {132, 78, 1, 1};
  *producers = counts[index];
  return machines[index];
}

static void test_design_recovers(void **state) {
  (void)state;
  for (int32_t i = 0; i < 4; i++) {
    int32_t producers;
    const double *m = design_of(i, &producers);
    simulated link = {.rate = m[0], .capacity = m[1], .t0_s_per_byte = m[2], .noise = 0.005, .random = {5}};
    dt_probe_machine machine = {.context = &link, .max_producers = producers, .run = run_simulated};
    dt_design design = {.operation = DT_PROBE_STORE,
                        .pattern = DT_PROBE_ONE_WAY,
                        .producers = producers,
                        .producer_bytes = producers > 1 ? 32768 : 0,
                        .unit_bytes = 64,
                        .bursts = 10,
                        .detail = producers > 1 ? 2 : 1};
    assert_int_equal(dt_design_pilot(&machine, &design), DT_OK);
    assert_true(fabs(design.bytes_per_s / m[0] - 1.0) < 0.05);
    static dt_experiments experiments;
    experiments.count = 0;
    assert_int_equal(dt_design_fit(&design, &experiments), DT_OK);
    assert_int_equal(dt_design_held_out(&design, &experiments), DT_OK);
    static dt_probe_result results[8 * DT_EXPERIMENTS];
    static dt_fit_sample samples[8 * DT_EXPERIMENTS];
    assert_int_equal(dt_experiments_run(&machine, &experiments, 8, NULL, NULL, results), DT_OK);
    size_t late, n = dt_experiments_samples(&design, &experiments, 8, results, samples, &late);
    assert_int_equal(n, 8 * experiments.count);
    dt_fit fit;
    assert_int_equal(dt_fit_samples(samples, n, 200, 1, &fit), DT_OK);
    assert_true(fabs(fit.rate_bytes_per_s.value / m[0] - 1.0) < 0.02);
    assert_true(fit.capacities.count > 0);
    double capacity = fit.capacities.point[fit.capacities.count - 1].interval.value;
    if (!(fabs(capacity / m[1] - 1.0) < 0.05)) fail_msg("machine %d: Q %g, set %g", i, capacity, m[1]);
    /* The held-out half, by the law that the machine obeys. */
    dt_fit_error error;
    assert_int_equal(dt_fit_compare(&fit, DT_LAW_BURST_CAPACITY, samples, n, -1, 1, &error), DT_OK);
    assert_true(error.n > 40);
    assert_true(error.median < 0.02);
  }
}

/* Memory that a disturbed pilot takes for a slow link: no burst stalls, and that is said before minutes of runs. A
 * queue that only the longest bursts fill is no such thing. */
static void test_nothing_stalls(void **state) {
  (void)state;
  simulated link = {.rate = 1e9, .capacity = INFINITY, .t0_s_per_byte = 2e-10, .noise = 0.005, .random = {5}};
  const dt_probe_machine machine = {.context = &link, .max_producers = 1, .run = run_simulated};
  const dt_design asked = {.operation = DT_PROBE_STORE, .producers = 1, .unit_bytes = 64, .bursts = 10};
  dt_design design = asked;
  assert_int_equal(dt_design_pilot(&machine, &design), DT_ERR_INPUT);
  assert_non_null(strstr(dt_error_detail(), "samples: no isolated burst of up to 5"));
  assert_true(link.runs < 20);
  link.capacity = 0.35 * link.rate;
  design = asked;
  assert_int_equal(dt_design_pilot(&machine, &design), DT_OK);
}

/* No setting is fitted and held out; held-out settings never reach the fit. */
static void test_halves_are_apart(void **state) {
  (void)state;
  dt_design design = {.producers = 132,
                      .producer_bytes = 32768,
                      .unit_bytes = 512,
                      .bytes_per_s = 3.7e11,
                      .issue_s_per_byte = 2e-11,
                      .bursts = 40,
                      .detail = 2};
  static dt_experiments fitted, held_out;
  assert_int_equal(dt_design_fit(&design, &fitted), DT_OK);
  assert_int_equal(dt_design_held_out(&design, &held_out), DT_OK);
  for (size_t i = 0; i < fitted.count; i++) {
    const dt_probe_setting *a = &fitted.list[i].setting;
    assert_int_equal(fitted.list[i].held_out, 0);
    assert_true(a->producers >= 1 && a->producers <= 132 && a->producer_bytes % 512 == 0);
    for (size_t j = 0; j < held_out.count; j++) {
      const dt_probe_setting *b = &held_out.list[j].setting;
      assert_int_equal(held_out.list[j].held_out, 1);
      assert_false(a->alignment == b->alignment && a->producers == b->producers &&
                   a->producer_bytes == b->producer_bytes && a->gap_s == b->gap_s && a->period_s == b->period_s);
    }
  }
}

/* Stamps of two producers made by hand. */
static void test_summary(void **state) {
  (void)state;
  dt_probe_setting s = {
      .alignment = DT_FIT_ALIGNED, .producers = 2, .producer_bytes = 1000, .per_train = 2, .trains = 3};
  dt_probe_stamp stamps[2][6];
  uint32_t counts[2] = {6, 6};
  for (uint32_t n = 0; n < 6; n++) {
    uint32_t start = n / 2 * 1000 + n % 2 * 100;
    stamps[0][n] = (dt_probe_stamp){start, start + 20 + n % 2 * 20, 0};
    stamps[1][n] = (dt_probe_stamp){start + 2, start + 2 + 40 + n % 2 * 20, 0};
  }
  dt_probe_result result;
  assert_int_equal(dt_probe_summary(&s, &stamps[0][0], counts, 6, 1e-9, &result), DT_OK);
  assert_int_equal(result.bursts, 4); /* the second of each pair, the first train left out */
  assert_true(fabs(result.issue_s - 50e-9) < 1e-12);
  assert_true(fabs(result.gap_s - 70e-9) < 1e-12);
  assert_true(fabs(result.issue_min_s - 40e-9) < 1e-12 && fabs(result.issue_max_s - 60e-9) < 1e-12);
  assert_true(fabs(result.start_spread_s - 2e-9) < 1e-12);
  counts[0] = counts[1] = 1;
  assert_int_equal(dt_probe_summary(&s, &stamps[0][0], counts, 6, 1e-9, &result), DT_ERR_INPUT);
}

/* A machine so fast that the samples end long before the window: what ran counts, after its first quarter. */
static void test_samples_run_out(void **state) {
  (void)state;
  enum { SAMPLES = 16 };
  dt_probe_setting s = {.alignment = DT_FIT_FREE, .producers = 1, .producer_bytes = 1000, .window_s = 1.0};
  dt_probe_stamp stamps[SAMPLES];
  uint32_t counts[1] = {SAMPLES};
  for (uint32_t n = 0; n < SAMPLES; n++) stamps[n] = (dt_probe_stamp){n * 100, n * 100 + 60, 0};
  dt_probe_result result;
  assert_int_equal(dt_probe_summary(&s, stamps, counts, SAMPLES, 1e-9, &result), DT_OK);
  assert_int_equal(result.bursts, 12); /* from 0.25 of 1560 ns on */
  assert_true(fabs(result.issue_s - 60e-9) < 1e-12 && fabs(result.bytes_per_s - 1e10) < 1.0);
}

static void test_all_to_all_peers(void **state) {
  (void)state;
  for (int32_t ranks = 2; ranks <= 9; ranks++)
    for (int32_t rank = 0; rank < ranks; rank++)
      for (int32_t producer = 0; producer < 8; producer++) {
        int32_t bursts[9] = {0};
        for (uint32_t n = 0; n < (uint32_t)(3 * (ranks - 1)); n++)
          bursts[dt_cpu_probe_peer(rank, ranks, producer, n)]++;
        for (int32_t peer = 0; peer < ranks; peer++) assert_int_equal(bursts[peer], peer == rank ? 0 : 3);
      }
}

/* One way and both ways, the ratio of the first setting only; aligned bursts that mostly came late are no point. */
static void test_tables(void **state) {
  (void)state;
  enum { ROUNDS = 20 };
  static dt_calibration_set sets[2];
  memset(sets, 0, sizeof sets);
  for (int32_t i = 0; i < 2; i++) {
    sets[i].pattern = i ? DT_PROBE_BOTH_WAYS : DT_PROBE_ONE_WAY;
    sets[i].design = (dt_design){.producers = 8, .producer_bytes = 1024, .bytes_per_s = 1e9};
    sets[i].experiments.count = 3;
    for (int32_t e = 0; e < 3; e++)
      sets[i].experiments.list[e].setting = (dt_probe_setting){.pattern = sets[i].pattern,
                                                               .alignment = e == 2 ? DT_FIT_ALIGNED : DT_FIT_FREE,
                                                               .producers = 8,
                                                               .producer_bytes = e == 1 ? 2048 : 1024};
    sets[i].results = calloc(3 * ROUNDS, sizeof *sets[i].results);
    for (int32_t r = 0; r < 3 * ROUNDS; r++)
      sets[i].results[r] = (dt_probe_result){.issue_s = 1e-6,
                                             .bytes_per_s = r % 3 == 1 ? 5e8 * (1 + i) : 1e9,
                                             .bursts = 10,
                                             .start_spread_s = i == 1 && r >= 27 ? 1.0 : 0.0};
  }
  dt_platform_device device = {
      .kind = "cuda", .name = "test", .driver = "1", .date = "2026-11-30T00:00:00Z", .count = 2};
  dt_platform *platform = NULL;
  assert_int_equal(dt_platform_create(&device, &platform), DT_OK);
  dt_calibration calibration = {.sets = sets, .set_count = 2, .rounds = ROUNDS};
  assert_int_equal(dt_calibration_tables(&calibration, platform), DT_OK);
  const dt_platform_constant *ratio = dt_platform_find_constant(platform, "both_ways_over_one_way_ratio");
  assert_non_null(ratio);
  assert_int_equal(ratio->n, ROUNDS);
  assert_true(ratio->interval.low == 1.0 && ratio->interval.high == 1.0);
  assert_non_null(dt_platform_find_table(platform, "issue_s", "one-way", NULL, "aligned"));
  assert_null(dt_platform_find_table(platform, "issue_s", "both-ways", NULL, "aligned"));
  dt_platform_destroy(platform);
  free(sets[0].results), free(sets[1].results);
}

static void test_refused(void **state) {
  (void)state;
  dt_calibrate_config config;
  dt_platform *platform = NULL;
  dt_calibrate_config_init(&config);
  config.size = 1;
  assert_int_equal(dt_calibrate(&config, &platform), DT_ERR_ARGUMENT);
  assert_non_null(strstr(dt_error_detail(), "config.size"));
  if (access("/dev/nvidia0", F_OK) != 0) {
    dt_calibrate_config_init(&config);
    assert_int_equal(dt_calibrate(&config, &platform), DT_ERR_NO_DEVICE);
    assert_null(platform);
  }
}

static dt_platform *make_platform(double rate_width) {
  dt_platform_device device = {
      .kind = "cuda", .name = "test", .driver = "1", .date = "2026-11-30T00:00:00Z", .count = 2};
  dt_platform *platform = NULL;
  assert_int_equal(dt_platform_create(&device, &platform), DT_OK);
  const struct {
    const char *name;
    dt_interval interval;
  } rows[] = {{"t0_s", {0.5e-6, 0.45e-6, 0.55e-6}},
              {"rate_bytes_per_s", {4e11, 4e11 * (1 - rate_width), 4e11 * (1 + rate_width)}},
              {"capacity_bytes", {2e6, 1.9e6, 2.1e6}}};
  for (size_t i = 0; i < 3; i++) {
    dt_platform_constant constant = {.name = rows[i].name, .interval = rows[i].interval, .n = 3, .method = "set"};
    assert_int_equal(dt_platform_set_constant(platform, &constant), DT_OK);
  }
  return platform;
}

static void test_platform_issue(void **state) {
  (void)state;
  dt_platform *platform = make_platform(0.025);
  dt_interval issue;
  /* V = 4 MB: V/R = 10 us, Q/R = 5 us. */
  assert_int_equal(dt_platform_issue(platform, "one-way", "st.v4", "free", 100, 40000, 2e-6, &issue), DT_OK);
  assert_true(fabs(issue.value - 8e-6) < 1e-12 && issue.low < issue.value && issue.high > issue.value);
  assert_int_equal(dt_platform_issue(platform, "one-way", "st.v4", "free", 100, 40000, 20e-6, &issue), DT_OK);
  assert_true(fabs(issue.value - 0.5e-6) < 1e-12);
  assert_int_equal(dt_platform_issue(platform, "one-way", "st.v4", "aligned", 100, 40000, 20e-6, &issue), DT_OK);
  assert_true(fabs(issue.value - 5e-6) < 1e-12);
  assert_int_equal(dt_platform_issue(platform, "one-way", "st.v4", "aligned", 100, 40000, 3e-6, &issue), DT_OK);
  assert_true(fabs(issue.value - 7e-6) < 1e-12);
  assert_int_equal(dt_platform_issue(platform, "one-way", "st.v4", "drained", 100, 40000, 1.0, &issue), DT_OK);
  assert_true(fabs(issue.value - 5e-6) < 1e-12);
  assert_int_equal(dt_platform_issue(platform, "one-way", "st.v4", "alone", 100, 40000, 20e-6, &issue), DT_OK);
  assert_true(fabs(issue.value - 5e-6) < 1e-12);
  assert_int_equal(dt_platform_issue(platform, "one-way", "st.v4", "sideways", 1, 1, 1, &issue), DT_ERR_ARGUMENT);
  assert_non_null(strstr(dt_error_detail(), "alignment"));
  dt_platform_destroy(platform);
}

enum { VERIFIED = 4, VERIFIED_ROUNDS = 10 };

/* Held-out bursts of 4 MB with a gap of 2 us, which the platform says take 8 us, and took 1/(1 + errors[e]) of that.
 * The last setting is aligned, late_rounds of its rounds started too far apart, and takes 8 us as well. */
static dt_verification *verify(dt_platform *platform, const double *errors, int32_t late_rounds) {
  static dt_calibration_set set;
  dt_verification *verification = calloc(1, sizeof *verification);
  const dt_calibration calibration = {.sets = &set, .set_count = 1, .rounds = VERIFIED_ROUNDS};
  memset(&set, 0, sizeof set);
  set.pattern = DT_PROBE_ONE_WAY;
  set.design.bytes_per_s = 4e11;
  set.experiments.count = VERIFIED + 1;
  set.results = calloc(VERIFIED_ROUNDS * (VERIFIED + 1), sizeof *set.results);
  assert_true(verification && set.results);
  for (int32_t e = 0; e <= VERIFIED; e++) {
    set.experiments.list[e].setting = (dt_probe_setting){.pattern = DT_PROBE_ONE_WAY,
                                                         .alignment = e < VERIFIED ? DT_FIT_FREE : DT_FIT_ALIGNED,
                                                         .producers = 100,
                                                         .producer_bytes = 40000,
                                                         .per_train = 2};
    for (int32_t r = 0; r < VERIFIED_ROUNDS; r++)
      set.results[r * (VERIFIED + 1) + e] =
          (dt_probe_result){.issue_s = 8e-6 / (1 + (e < VERIFIED ? errors[e] : 0)),
                            .gap_s = 2e-6,
                            .bursts = 10,
                            .start_spread_s = e == VERIFIED && r < late_rounds ? 1.1e-6 : 0.9e-6};
  }
  assert_int_equal(dt_verification_fill(&calibration, platform, verification), DT_OK);
  free(set.results);
  return verification;
}

static void expect_pass(dt_platform *platform, const double *errors, int32_t late_rounds, int32_t pass) {
  dt_verification *v = verify(platform, errors, late_rounds);
  assert_int_equal(v->pass, pass);
  dt_verification_destroy(v);
}

/* What it takes to pass: every group's median error and 90th percentile, the widths of R and Q, both ways as one. */
static void test_verification(void **state) {
  (void)state;
  static const double good[] = {0.01, 0.02, 0.03, 0.05}, worst[] = {0.01, 0.02, 0.03, 0.25},
                      median[] = {0.04, 0.06, 0.06, 0.07};
  dt_platform *platform = make_platform(0.019), *wide = make_platform(0.021);
  dt_verification *v = verify(platform, good, 5);
  assert_int_equal(v->row_count, VERIFIED + 1);
  assert_int_equal(v->group_count, 2);
  assert_int_equal(v->groups[0].n, VERIFIED);
  assert_true(fabs(v->groups[0].error_median - 0.025) < 1e-9);
  assert_true(fabs(v->groups[0].error_p90 - 0.044) < 1e-9);
  assert_int_equal(v->rows[VERIFIED].n, VERIFIED_ROUNDS - 5); /* rounds that started together */
  assert_int_equal(v->late_settings, 0);
  assert_true(fabs(v->rate_half_width - 0.019) < 1e-9);
  assert_int_equal(v->pass, 1);
  dt_verification_destroy(v);

  v = verify(platform, good, 6); /* most rounds are late: the setting says nothing */
  assert_int_equal(v->row_count, VERIFIED);
  assert_int_equal(v->group_count, 1);
  assert_int_equal(v->late_settings, 1);
  assert_int_equal(v->pass, 1);
  dt_verification_destroy(v);

  expect_pass(platform, worst, 0, 0);
  expect_pass(platform, median, 0, 0);
  expect_pass(wide, good, 0, 0);
  dt_platform_constant ratio = {
      .name = "both_ways_over_one_way_ratio", .interval = {1.03, 1.03, 1.03}, .n = 3, .method = "set"};
  assert_int_equal(dt_platform_set_constant(platform, &ratio), DT_OK);
  expect_pass(platform, good, 0, 0);
  ratio.interval = (dt_interval){0.99, 0.99, 0.99};
  assert_int_equal(dt_platform_set_constant(platform, &ratio), DT_OK);
  expect_pass(platform, good, 0, 1);
  const dt_platform_point point = {.at = {100}, .interval = {2e6, 1.7e6, 2.2e6}, .n = 3}; /* 12.5 % */
  const dt_platform_table capacity = {.name = "capacity_bytes",
                                      .pattern = "one-way",
                                      .operation = "st.v4",
                                      .alignment = "",
                                      .method = "set",
                                      .argument_count = 1,
                                      .arguments = {"producers"},
                                      .points = &point,
                                      .point_count = 1};
  assert_int_equal(dt_platform_add_table(platform, &capacity), DT_OK);
  expect_pass(platform, good, 0, 0);
  dt_platform_destroy(platform);
  dt_platform_destroy(wide);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_design_recovers),  cmocka_unit_test(test_nothing_stalls),
      cmocka_unit_test(test_halves_are_apart), cmocka_unit_test(test_summary),
      cmocka_unit_test(test_samples_run_out),  cmocka_unit_test(test_all_to_all_peers),
      cmocka_unit_test(test_tables),           cmocka_unit_test(test_refused),
      cmocka_unit_test(test_platform_issue),   cmocka_unit_test(test_verification),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
