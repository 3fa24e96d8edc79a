#include <draintile/simulate.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* 8 ranks of 10,000 tasks in less than half a second, plans and trace included. */
static void eighty_thousand_tasks(void **state) {
  (void)state;
  enum { RANKS = 8, EXPERTS = 32, COLUMNS = 12 };
  static int32_t counts[RANKS * RANKS * EXPERTS];
  int64_t tokens[RANKS];
  for (int i = 0; i < RANKS * RANKS * EXPERTS; i++) counts[i] = 44 + i % 9;
  for (int r = 0; r < RANKS; r++) tokens[r] = 2048;
  dt_sim_config config;
  dt_sim_config_init(&config);
  config.plan.ranks = RANKS;
  config.plan.experts_per_rank = EXPERTS;
  config.plan.tile_m = 32;
  config.plan.columns_1 = config.plan.columns_2 = COLUMNS;
  config.plan.schedule = DT_SCHEDULE_INTERLEAVE;
  config.plan.order = dt_schedule_default_order(config.plan.schedule);
  config.plan.raster_bands = 4;
  config.plan.group_tasks = 64;
  config.workers = 16;
  config.consumers = 2;
  config.row_in_bytes = config.row_out_bytes = 4096;
  config.tokens = tokens;
  dt_sim_costs costs;
  dt_sim_costs_init(&costs);
  costs.l1_row_s = costs.l2_row_s = 1e-7;
  costs.l1_panel_s = costs.l2_panel_s = 1e-6;
  costs.copy_s_per_byte = 1e-11;
  costs.link_bytes_per_s = 3e11;
  costs.link_capacity_bytes = 2e6;
  costs.cores = 100;
  costs.cache_panels = 64;

  double best = 1e9;
  size_t tasks = 0, spans = 0;
  for (int repeat = 0; repeat < 3; repeat++) {
    dt_sim_result result = {0};
    dt_trace_rank *traces;
    double begin = seconds();
    if (dt_simulate(&config, &costs, counts, &result, &traces)) fail_msg("%s", dt_error_detail());
    double took = seconds() - begin;
    if (took < best) best = took;
    tasks = spans = 0;
    for (int r = 0; r < RANKS; r++) {
      spans += traces[r].span_count;
      for (size_t i = 0; i < traces[r].span_count; i++) {
        int kind = traces[r].spans[i].kind;
        tasks += kind == DT_SPAN_DISPATCH || kind == DT_SPAN_L1 || kind == DT_SPAN_L2 || kind == DT_SPAN_REDUCE;
      }
    }
    dt_sim_traces_free(traces, RANKS);
  }
  print_message("%zu tasks, %zu spans: %.3f s (limit 0.5 s)\n", tasks, spans, best);
  assert_true(tasks >= RANKS * 10000);
  assert_true(best < 0.5);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(eighty_thousand_tasks)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
