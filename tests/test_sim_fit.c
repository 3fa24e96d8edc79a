#include <draintile/simulate.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "sim/robust.h"

enum { RANKS = 3, EXPERTS = 4, RUNS = 3 };

typedef struct measured {
  dt_sim_config config;
  int64_t tokens[RANKS];
  int32_t counts[RANKS * RANKS * EXPERTS];
  dt_trace_rank traces[RUNS * RANKS];
  dt_plan *plans[RUNS * RANKS];
} measured;

static void planted_costs(dt_sim_costs *costs) {
  dt_sim_costs_init(costs);
  costs->l1_base_s = 40e-6;
  costs->l1_row_s = 6e-6;
  costs->l1_panel_s = 150e-6;
  costs->l2_base_s = 25e-6;
  costs->l2_row_s = 3e-6;
  costs->l2_panel_s = 70e-6;
  costs->band_s_per_row = 2e-6;
  costs->shared_base_s = 30e-6;
  costs->shared_row_s = 5e-6;
  costs->reduce_base_s = 20e-6;
  costs->reduce_row_s = 1e-6;
  costs->copy_s_per_byte = 4e-10;
  costs->local_copy_s_per_byte = 3e-10;
  costs->put_base_s = 5e-6;
  costs->plan_s = 400e-6;
  costs->barrier_s = 60e-6;
  costs->wake_s = 15e-6;
  costs->link_bytes_per_s = 2e8;
  costs->link_capacity_bytes = 300000;
  costs->link_latency_s = 20e-6;
}

static void measure(measured *m, const dt_sim_costs *costs, int32_t workers) {
  dt_random random = {99};
  memset(m, 0, sizeof *m);
  dt_sim_config_init(&m->config);
  m->config.plan.ranks = RANKS;
  m->config.plan.experts_per_rank = EXPERTS;
  m->config.plan.tile_m = 32;
  m->config.plan.columns_1 = 3;
  m->config.plan.columns_2 = 4;
  m->config.plan.raster_bands = 4;
  m->config.plan.segment_bands = 1;
  m->config.plan.shared_blocks = 1;
  m->config.plan.schedule = DT_SCHEDULE_SERIAL;
  m->config.workers = workers;
  m->config.consumers = 1;
  m->config.row_in_bytes = m->config.row_out_bytes = 4096;
  m->config.reduce_tokens = 40;
  m->config.tokens = m->tokens;
  for (int32_t s = 0; s < RANKS; s++) {
    for (int32_t g = 0; g < RANKS * EXPERTS; g++) {
      int32_t count = 10 + (int32_t)dt_random_below(&random, 60);
      m->counts[s * RANKS * EXPERTS + g] = count;
      m->tokens[s] += count;
    }
    m->tokens[s] /= 2;
  }
  for (int run = 0; run < RUNS; run++) {
    dt_sim_result result = {0};
    dt_trace_rank *traces;
    if (dt_simulate(&m->config, costs, m->counts, &result, &traces)) fail_msg("%s", dt_error_detail());
    for (int32_t r = 0; r < RANKS; r++) {
      dt_plan_config plan = m->config.plan;
      plan.rank = r;
      m->traces[run * RANKS + r] = traces[r];
      assert_int_equal(dt_plan_create(&plan, m->counts, &m->plans[run * RANKS + r]), DT_OK);
    }
    free(traces);
  }
}

static void release(measured *m) {
  for (int i = 0; i < RUNS * RANKS; i++) {
    dt_plan_destroy(m->plans[i]);
    free((void *)m->traces[i].spans);
  }
}

/* Stretches work by noise, and in one run of three one span in twenty by an outlier: a preempted thread. */
static void disturb(measured *m, uint64_t seed) {
  dt_random random = {seed};
  for (int i = 0; i < RUNS * RANKS; i++) {
    dt_span *spans = (dt_span *)(uintptr_t)m->traces[i].spans;
    for (size_t s = 0; s < m->traces[i].span_count; s++) {
      dt_span *span = &spans[s];
      if (span->kind == DT_SPAN_LINK || span->kind == DT_SPAN_BARRIER || span->kind == DT_SPAN_PLAN) continue;
      double work = (double)(span->end_ns - span->begin_ns) * (1.0 + 0.03 * dt_random_normal(&random));
      if (i < RANKS && dt_random_below(&random, 20) == 0) work *= 5.0 + 20.0 * dt_random_unit(&random);
      span->end_ns = span->begin_ns + (uint64_t)fmax(0.0, work);
    }
  }
}

static void assert_within(const char *name, double got, double want, double tolerance) {
  if (!(fabs(got - want) <= tolerance * want)) fail_msg("%s: %g, planted %g", name, got, want);
}

static void fit_blank(measured *m, const dt_sim_costs *planted, dt_sim_costs *got) {
  dt_sim_costs_init(got);
  got->link_bytes_per_s = planted->link_bytes_per_s;
  got->link_capacity_bytes = planted->link_capacity_bytes;
  got->link_latency_s = planted->link_latency_s;
  got->cores = planted->cores;
  got->band_panels = planted->band_panels;
  if (dt_sim_fit(&m->config, m->traces, (const dt_plan *const *)m->plans, RUNS * RANKS, got))
    fail_msg("%s", dt_error_detail());
}

static void assert_recovered(const dt_sim_costs *got, const dt_sim_costs *planted, double tolerance) {
#define SAME(field) assert_within(#field, got->field, planted->field, tolerance)
  SAME(l1_row_s);
  SAME(l1_panel_s);
  SAME(l1_base_s);
  SAME(l2_row_s);
  SAME(l2_panel_s);
  SAME(l2_base_s);
  SAME(band_s_per_row);
  SAME(reduce_row_s);
  SAME(reduce_base_s);
  SAME(shared_row_s);
  SAME(shared_base_s);
  SAME(copy_s_per_byte);
  SAME(local_copy_s_per_byte);
  SAME(put_base_s);
  SAME(wake_s);
#undef SAME
}

static void recovers_exactly_without_noise(void **state) {
  (void)state;
  for (int32_t workers = 1; workers <= 2; workers++) {
    for (int32_t panels = 0; panels <= 8; panels += 4) {
      measured m;
      dt_sim_costs planted, got;
      planted_costs(&planted);
      planted.band_panels = panels;
      measure(&m, &planted, workers);
      fit_blank(&m, &planted, &got);
      assert_recovered(&got, &planted, 1e-3); /* spans are whole nanoseconds */
      assert_within("plan_s", got.plan_s, planted.plan_s, 1e-6);
      assert_within("barrier_s", got.barrier_s, planted.barrier_s, 0.02);
      assert_true(got.link_latency_s == planted.link_latency_s && got.entry_s == 0.0);
      release(&m);
    }
  }
}

/* Threads that share cores take longer; the cost is that of a whole core. */
static void shared_cores_are_accounted_for(void **state) {
  (void)state;
  measured m;
  dt_sim_costs planted, got;
  planted_costs(&planted);
  planted.cores = 3;
  measure(&m, &planted, 2);
  fit_blank(&m, &planted, &got);
  assert_within("l1_row_s", got.l1_row_s, planted.l1_row_s, 0.1);
  assert_within("l2_row_s", got.l2_row_s, planted.l2_row_s, 0.1);
  release(&m);
}

/* Six workers take turns on three cores: two of three tiles run undisturbed, the others wait for turns; the stage takes
 * as long as the simulator says. The median of the tiles is a half of their mean. */
static void turns_on_a_core_are_accounted_for(void **state) {
  (void)state;
  measured m;
  dt_sim_costs planted, got;
  planted_costs(&planted);
  planted.cores = 3;
  measure(&m, &planted, 2);
  for (int i = 0; i < RUNS * RANKS; i++) {
    dt_span *spans = (dt_span *)(uintptr_t)m.traces[i].spans;
    uint64_t last = 0;
    int turn = 0;
    for (size_t s = 0; s < m.traces[i].span_count; s++) {
      dt_span *span = &spans[s];
      if (span->kind != DT_SPAN_L1 && span->kind != DT_SPAN_L2) continue;
      if (span->end_ns > last) last = span->end_ns;
    }
    for (size_t s = 0; s < m.traces[i].span_count; s++) {
      dt_span *span = &spans[s];
      if ((span->kind != DT_SPAN_L1 && span->kind != DT_SPAN_L2) || span->end_ns == last) continue;
      uint64_t half = (span->end_ns - span->begin_ns) / 2;
      span->end_ns += turn++ % 3 == 0 ? 2 * half : 0;
      if (turn % 3 != 1) span->end_ns -= half;
      if (span->end_ns > last) span->end_ns = last;
    }
  }
  fit_blank(&m, &planted, &got);
  dt_sim_result want = {0}, predicted = {0};
  assert_int_equal(dt_simulate(&m.config, &planted, m.counts, &want, NULL), DT_OK);
  assert_int_equal(dt_simulate(&m.config, &got, m.counts, &predicted, NULL), DT_OK);
  assert_within("compute_s", predicted.compute_s, want.compute_s, 0.1);
  release(&m);
}

static void recovers_through_noise_and_outliers(void **state) {
  (void)state;
  measured m;
  dt_sim_costs planted, got;
  planted_costs(&planted);
  measure(&m, &planted, 1);
  disturb(&m, 5);
  fit_blank(&m, &planted, &got);
  assert_within("l1_row_s", got.l1_row_s, planted.l1_row_s, 0.04);
  assert_within("l2_row_s", got.l2_row_s, planted.l2_row_s, 0.04);
  assert_within("l1_panel_s", got.l1_panel_s, planted.l1_panel_s, 0.05);
  assert_within("l2_panel_s", got.l2_panel_s, planted.l2_panel_s, 0.05);
  assert_within("l1_base_s", got.l1_base_s, planted.l1_base_s, 0.15);
  assert_within("copy_s_per_byte", got.copy_s_per_byte, planted.copy_s_per_byte, 0.1);
  assert_within("local_copy_s_per_byte", got.local_copy_s_per_byte, planted.local_copy_s_per_byte, 0.1);
  assert_within("reduce_row_s", got.reduce_row_s, planted.reduce_row_s, 0.2);
  /* What counts: the other schedules' times. */
  for (int s = DT_SCHEDULE_SERIAL; s <= DT_SCHEDULE_ALTERNATE; s++) {
    dt_sim_result want = {0}, predicted = {0};
    m.config.plan.schedule = (dt_schedule)s;
    m.config.plan.order = dt_schedule_default_order((dt_schedule)s);
    m.config.plan.group_tasks = 2;
    assert_int_equal(dt_simulate(&m.config, &planted, m.counts, &want, NULL), DT_OK);
    assert_int_equal(dt_simulate(&m.config, &got, m.counts, &predicted, NULL), DT_OK);
    assert_within(dt_schedule_name((dt_schedule)s), predicted.total_s, want.total_s, 0.04);
  }
  release(&m);
}

/* All tiles alike: base and rate cannot be told apart, but their sum is right. */
static void equal_tiles(void **state) {
  (void)state;
  sim_observation o[40];
  double x[SIM_COLUMNS];
  for (int i = 0; i < 40; i++) o[i] = (sim_observation){.x = {64, 0, 1, i % 4 == 0}, .y = 5.0 + (i % 4 == 0)};
  assert_int_equal(sim_robust_fit(o, 40, x), DT_OK);
  assert_within("rate", x[0], 5.0 / 64, 1e-9);
  assert_true(x[1] == 0.0 && x[2] == 0.0);
  assert_within("panel", x[3], 1.0, 1e-9);
}

static void never_negative(void **state) {
  (void)state;
  sim_observation o[40];
  double x[SIM_COLUMNS];
  for (int i = 0; i < 40; i++) o[i] = (sim_observation){.x = {i + 1, 1}, .y = 3.0 * (i + 1) - 2.0};
  assert_int_equal(sim_robust_fit(o, 40, x), DT_OK);
  assert_true(x[1] == 0.0 && x[0] > 2.8 && x[0] < 3.0);
  assert_int_equal(sim_robust_fit(o, 0, x), DT_OK);
  assert_true(x[0] == 0.0);
}

static void what_is_not_shown_keeps_its_value(void **state) {
  (void)state;
  measured m;
  dt_sim_costs planted, got;
  planted_costs(&planted);
  measure(&m, &planted, 1);
  dt_sim_costs_init(&got);
  got.shared_row_s = 7;
  got.dispatch_backlog_bytes = 9;
  for (int i = 0; i < RUNS * RANKS; i++) {
    dt_span *spans = (dt_span *)(uintptr_t)m.traces[i].spans;
    size_t kept = 0;
    for (size_t s = 0; s < m.traces[i].span_count; s++)
      if (spans[s].kind != DT_SPAN_SHARED) spans[kept++] = spans[s];
    m.traces[i].span_count = kept;
  }
  assert_int_equal(dt_sim_fit(&m.config, m.traces, (const dt_plan *const *)m.plans, RUNS * RANKS, &got), DT_OK);
  assert_true(got.shared_row_s == 7 && got.dispatch_backlog_bytes == 9);
  dt_sim_costs before = got;
  assert_int_equal(dt_sim_fit(&m.config, m.traces, (const dt_plan *const *)m.plans, 0, &got), DT_ERR_INPUT);
  assert_memory_equal(&before, &got, sizeof got);
  for (size_t s = 0; s < m.traces[0].span_count; s++) ((dt_span *)(uintptr_t)m.traces[0].spans)[s].index = 100000;
  assert_int_equal(dt_sim_fit(&m.config, m.traces, (const dt_plan *const *)m.plans, RUNS * RANKS, &got), DT_ERR_INPUT);
  release(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(recovers_exactly_without_noise),
      cmocka_unit_test(shared_cores_are_accounted_for),
      cmocka_unit_test(turns_on_a_core_are_accounted_for),
      cmocka_unit_test(recovers_through_noise_and_outliers),
      cmocka_unit_test(equal_tiles),
      cmocka_unit_test(never_negative),
      cmocka_unit_test(what_is_not_shown_keeps_its_value),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
