/* The price of a plan: 65,536 slots, 256 experts, 8 ranks under 2 ms on one core, memory linear in slots. */
#include "test_plan_support.h"

#include <malloc.h>
#include <stdio.h>
#include <time.h>

enum { RANKS = 8, EXPERTS = 32, TOP_K = 8, TOKENS = 8192, ROUNDS = 20 };
static const double limit_s = 2e-3;

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static routing uniform(int64_t tokens) {
  dt_random random = {7};
  routing r = routing_new(RANKS, EXPERTS, TOP_K);
  for (int32_t s = 0; s < RANKS; s++) {
    routing_tokens(&r, s, tokens);
    for (int64_t i = 0; i < tokens * TOP_K; i++) r.ids[s][i] = (int32_t)dt_random_below(&random, RANKS * EXPERTS);
  }
  routing_place(&r);
  return r;
}

/* Tile counts of a layer of hidden size 7168 and intermediate size 2048. */
static dt_plan_config config_of(dt_schedule schedule) {
  dt_plan_config config;
  dt_plan_config_init(&config);
  config.ranks = RANKS;
  config.experts_per_rank = EXPERTS;
  config.rank = 3;
  config.schedule = schedule;
  config.order = dt_schedule_default_order(schedule);
  config.columns_1 = 16;
  config.columns_2 = 28;
  config.group_tasks = 264;
  config.dispatch = 1;
  config.reduce_blocks = 64;
  return config;
}

static void whole_plan_under_two_milliseconds(void **state) {
  (void)state;
  routing r = uniform(TOKENS);
  int32_t *row = &r.counts[3 * RANKS * EXPERTS];
  for (int schedule = DT_SCHEDULE_SERIAL; schedule <= DT_SCHEDULE_ALTERNATE; schedule++) {
    dt_plan_config config = config_of((dt_schedule)schedule);
    double best = 1e9;
    int64_t tasks = 0;
    for (int i = 0; i < ROUNDS; i++) {
      dt_plan *plan;
      double start = now_s();
      assert_int_equal(dt_slots(r.ids[3], TOKENS, TOP_K, RANKS * EXPERTS, row, r.row_of_slot[3], r.slot_of_row[3]),
                       DT_OK);
      assert_int_equal(dt_plan_create(&config, r.counts, &plan), DT_OK);
      double took = now_s() - start;
      if (took < best) best = took;
      tasks = plan->task_count;
      dt_plan_destroy(plan);
    }
    printf("%-10s 65536 slots, 256 experts, 8 ranks, %lld tasks: %.3f ms (limit %.0f ms)\n",
           dt_schedule_name((dt_schedule)schedule), (long long)tasks, 1e3 * best, 1e3 * limit_s);
    assert_true(best < limit_s);
  }
  routing_free(&r);
}

static size_t bytes_for(int64_t tokens) {
  routing r = uniform(tokens);
  dt_plan_config config = config_of(DT_SCHEDULE_INTERLEAVE);
  dt_plan *plan = plan_new(&config, r.counts);
  size_t bytes = malloc_usable_size(plan->storage);
  dt_plan_destroy(plan);
  routing_free(&r);
  return bytes;
}

static void memory_linear_in_slots(void **state) {
  (void)state;
  size_t one = bytes_for(TOKENS), four = bytes_for(4 * TOKENS);
  printf("plan of 65536 slots: %zu bytes; of 262144: %zu\n", one, four);
  assert_true(four <= 4 * one);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(whole_plan_under_two_milliseconds),
                                     cmocka_unit_test(memory_linear_in_slots)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
