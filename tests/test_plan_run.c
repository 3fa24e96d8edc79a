/* The tables of all ranks, run together: whatever the number of workers and their luck, every schedule ends. */
#include "test_plan_run.h"

static void every_schedule_ends(void **state) {
  (void)state;
  dt_random random = {5150};
  for (int32_t turn = 0; turn < 2400; turn++) {
    routing r = routing_random(&random, random_in(&random, 1, 8), random_in(&random, 1, 6), 24);
    dt_plan_config config = config_random(&random, &r, turn);
    dt_plan **plans = plans_new(config, r.counts);
    run_config by_workers = {random_in(&random, 1, 8), 0, random_in(&random, 1, RUN_AHEAD_MAX)};
    run_config with_consumers = {random_in(&random, 1, 8), random_in(&random, 1, 3), random_in(&random, 1, 3)};
    assert_true(run_plans(by_workers, plans, r.ranks, &random));
    assert_true(run_plans(with_consumers, plans, r.ranks, &random));
    plans_free(plans, r.ranks);
    routing_free(&r);
  }
}

static void wide_layers_end(void **state) {
  (void)state;
  dt_random random = {77};
  for (int32_t turn = 0; turn < 36; turn++) {
    routing r = routing_random(&random, random_in(&random, 9, 16), random_in(&random, 16, 64), 60);
    dt_plan_config config = config_random(&random, &r, turn);
    dt_plan **plans = plans_new(config, r.counts);
    run_config run = {1 + turn % 8, turn % 3, 1 + turn % 3};
    assert_true(run_plans(run, plans, r.ranks, &random));
    plans_free(plans, r.ranks);
    routing_free(&r);
  }
}

/* What broke other systems: no number of workers is special. */
static void any_number_of_workers(void **state) {
  (void)state;
  static const int32_t workers[] = {1, 2, 78, 132, 148, 1000};
  dt_random random = {78148};
  for (int32_t turn = 0; turn < 36; turn++) {
    routing r = routing_random(&random, 4, 4, 100);
    dt_plan_config config = config_random(&random, &r, turn);
    dt_plan **plans = plans_new(config, r.counts);
    for (size_t i = 0; i < sizeof workers / sizeof *workers; i++) {
      run_config run = {workers[i], (int32_t)i % 3, 2};
      assert_true(run_plans(run, plans, r.ranks, &random));
    }
    plans_free(plans, r.ranks);
    routing_free(&r);
  }
}

static void swap_tasks(dt_plan *plan, int64_t a, int64_t b) {
  dt_task *tasks = (dt_task *)plan->tasks, kept = tasks[a];
  tasks[a] = tasks[b];
  tasks[b] = kept;
}

static int64_t first_of(const dt_plan *plan, dt_phase phase) {
  for (int64_t i = 0; i < plan->task_count; i++) {
    if (plan->tasks[i].phase == (int32_t)phase) return i;
  }
  fail_msg("no %s task", dt_phase_name(phase));
  return -1;
}

/* Two ranks with one token each for every expert. */
static routing everybody_to_all(void) {
  routing r = routing_new(2, 2, 4);
  for (int32_t s = 0; s < 2; s++) {
    routing_tokens(&r, s, 1);
    for (int32_t i = 0; i < 4; i++) r.ids[s][i] = i;
  }
  routing_place(&r);
  return r;
}

static dt_plan_config small_config(void) {
  dt_plan_config config;
  dt_plan_config_init(&config);
  config.ranks = config.experts_per_rank = 2;
  config.tile_m = 4;
  config.columns_1 = config.columns_2 = 2;
  config.dispatch = 1;
  config.reduce_blocks = 1;
  return config;
}

/* The interpreter does find deadlocks: an L2 task in front of its L1 stops a single worker. */
static void forward_wait_deadlocks(void **state) {
  (void)state;
  dt_random random = {1};
  routing r = everybody_to_all();
  dt_plan **plans = plans_new(small_config(), r.counts);
  run_config one = {1, 0, 1};
  assert_true(run_plans(one, plans, 2, &random));
  swap_tasks(plans[0], first_of(plans[0], DT_PHASE_L1), first_of(plans[0], DT_PHASE_L2));
  assert_false(run_plans(one, plans, 2, &random));
  assert_int_equal(dt_plan_check(plans[0], r.counts), DT_ERR_INTERNAL);
  plans_free(plans, 2);
  routing_free(&r);
}

/* Across ranks: each waits for rows that the other would send only after its own first tile. One such table is
 * survived, two are not, which no rank can see alone: hence the rule that dispatch comes before all else. */
static void late_dispatch_deadlocks_across_ranks(void **state) {
  (void)state;
  dt_random random = {1};
  routing r = everybody_to_all();
  dt_plan **plans = plans_new(small_config(), r.counts);
  run_config one = {1, 0, 1};
  for (int32_t i = 0; i < 2; i++) {
    assert_int_equal(plans[i]->dispatch[2].peer, 1 - i);
    swap_tasks(plans[i], 2, first_of(plans[i], DT_PHASE_L1));
    assert_int_equal(dt_plan_check(plans[i], r.counts), DT_ERR_INTERNAL);
    assert_int_equal(run_plans(one, plans, 2, &random), i == 0);
  }
  plans_free(plans, 2);
  routing_free(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_schedule_ends), cmocka_unit_test(wide_layers_end),
                                     cmocka_unit_test(any_number_of_workers), cmocka_unit_test(forward_wait_deadlocks),
                                     cmocka_unit_test(late_dispatch_deadlocks_across_ranks)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
