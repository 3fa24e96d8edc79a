/* Inputs that broke other systems, with the plan they must give: empty experts, empty ranks, one expert for all, row
 * counts around a tile, hundreds of experts, tiles that do not divide the rows. */
#include "test_plan_run.h"

static dt_plan_config config_of(int32_t ranks, int32_t experts_per_rank, int32_t tile_m) {
  dt_plan_config config;
  dt_plan_config_init(&config);
  config.ranks = ranks;
  config.experts_per_rank = experts_per_rank;
  config.tile_m = tile_m;
  config.columns_1 = 3;
  config.columns_2 = 2;
  config.dispatch = 1;
  config.reduce_blocks = 1;
  return config;
}

/* Both layouts, all orders and schedules: checked, and run by one worker and by seven with consumers. */
static void runs_everywhere(dt_plan_config config, const int32_t *counts) {
  dt_random random = {config.ranks};
  for (int32_t variant = 0; variant < 36; variant++) {
    config.layout = (dt_layout)(variant % 2);
    config.order = (dt_order)(variant / 2 % 3);
    config.schedule = (dt_schedule)(variant / 6);
    dt_plan **plans = plans_new(config, counts);
    run_config one = {1, 0, 1}, seven = {7, 2, 2};
    assert_true(run_plans(one, plans, config.ranks, &random));
    assert_true(run_plans(seven, plans, config.ranks, &random));
    plans_free(plans, config.ranks);
  }
}

static void assert_bands(const dt_plan *plan, const int32_t (*expected)[3], int32_t count) {
  assert_int_equal(plan->band_count, count);
  for (int32_t i = 0; i < count; i++) {
    assert_int_equal(plan->bands[i].expert, expected[i][0]);
    assert_int_equal(plan->bands[i].row, expected[i][1]);
    assert_int_equal(plan->bands[i].rows, expected[i][2]);
  }
}

/* Empty groups have no band, no group, no task. */
static void empty_experts(void **state) {
  (void)state;
  static const int32_t counts[] = {162, 0, 2577, 446, 0, 83};
  static const int32_t rows[] = {162, 2577, 446, 83}, bands[] = {2, 21, 4, 1}, experts[] = {0, 2, 3, 5};
  dt_plan_config config = config_of(1, 6, 128);
  dt_plan *plan = plan_new(&config, counts);
  int64_t row = 0;
  int32_t band = 0;
  assert_int_equal(plan->rows, 3268);
  assert_int_equal(plan->group_count, 4);
  assert_int_equal(plan->band_count, 28);
  assert_int_equal(plan->segment_count, 0);
  assert_int_equal(plan->task_count, 28 + 28 * 5 + 1);
  for (int32_t g = 0; g < 4; g++) {
    assert_int_equal(plan->groups[g].expert, experts[g]);
    assert_int_equal(plan->groups[g].row, row);
    assert_int_equal(plan->groups[g].rows, rows[g]);
    for (int32_t i = 0; i < bands[g]; i++, band++) {
      assert_int_equal(plan->bands[band].expert, experts[g]);
      assert_int_equal(plan->bands[band].row, row + 128 * i);
      assert_int_equal(plan->bands[band].rows, i + 1 < bands[g] ? 128 : rows[g] - 128 * i);
    }
    row += rows[g];
  }
  dt_plan_destroy(plan);
  config.layout = DT_LAYOUT_ALIGNED;
  plan = plan_new(&config, counts);
  assert_int_equal(plan->rows, 28 * 128);
  assert_int_equal(plan->padded_rows, 28 * 128 - 3268);
  dt_plan_destroy(plan);
  runs_everywhere(config, counts);
  runs_everywhere(config_of(2, 3, 128), (const int32_t[]){162, 0, 2577, 446, 0, 83, 0, 0, 1, 0, 512, 0});
}

/* Nothing anywhere. */
static void no_tokens_at_all(void **state) {
  (void)state;
  static const int32_t counts[4 * 8] = {0};
  dt_plan_config config = config_of(4, 2, 16);
  dt_plan *plan = plan_new(&config, counts);
  assert_true(plan->rows == 0 && plan->band_count == 0 && plan->dispatch_count == 0 && plan->combine_rows == 0);
  assert_int_equal(plan->task_count, 1);
  assert_int_equal(plan->tasks[0].phase, DT_PHASE_REDUCE);
  dt_plan_destroy(plan);
  runs_everywhere(config, counts);
}

/* Rank 1 has no tokens, and everything goes to rank 2's experts. */
static void everything_to_one_rank(void **state) {
  (void)state;
  int32_t counts[4][8] = {{0}};
  dt_plan_config config = config_of(4, 2, 16);
  counts[0][4] = 20;
  counts[0][5] = 3;
  counts[2][5] = 17;
  counts[3][4] = 9;
  static const int32_t bands[][3] = {{0, 0, 16}, {0, 16, 13}, {1, 29, 16}, {1, 45, 4}};
  dt_plan **plans = plans_new(config, counts[0]);
  static const int64_t combine[] = {23, 0, 17, 9};
  static const int32_t dispatch[] = {3, 0, 2, 1};
  for (int32_t r = 0; r < 4; r++) {
    assert_int_equal(plans[r]->rows, r == 2 ? 49 : 0);
    assert_int_equal(plans[r]->combine_rows, combine[r]);
    assert_int_equal(plans[r]->dispatch_count, dispatch[r]);
  }
  assert_bands(plans[2], bands, 4);
  static const int32_t segments[][4] = {{3, 0, 9, 0}, {0, 9, 7, 0}, {0, 16, 13, 7}, {0, 29, 3, 20}};
  assert_int_equal(plans[2]->segment_count, 4);
  for (int32_t i = 0; i < 4; i++) {
    assert_int_equal(plans[2]->segments[i].owner, segments[i][0]);
    assert_int_equal(plans[2]->segments[i].row, segments[i][1]);
    assert_int_equal(plans[2]->segments[i].rows, segments[i][2]);
    assert_int_equal(plans[2]->segments[i].dst_row, segments[i][3]);
  }
  plans_free(plans, 4);
  runs_everywhere(config, counts[0]);
}

/* One expert gets every slot of every rank. */
static void one_expert_gets_everything(void **state) {
  (void)state;
  int32_t counts[8][32] = {{0}};
  dt_plan_config config = config_of(8, 4, 128);
  for (int32_t s = 0; s < 8; s++) counts[s][13] = 500;
  dt_plan **plans = plans_new(config, counts[0]);
  for (int32_t r = 0; r < 8; r++) {
    assert_int_equal(plans[r]->rows, r == 3 ? 4000 : 0);
    assert_int_equal(plans[r]->band_count, r == 3 ? 32 : 0);
  }
  assert_int_equal(plans[3]->bands[31].rows, 32);
  plans_free(plans, 8);
  runs_everywhere(config, counts[0]);
}

/* Exactly one tile of rows; 40 rows; 5 tokens over 256 experts. */
static void few_rows(void **state) {
  (void)state;
  static const int32_t full[][3] = {{0, 0, 128}}, forty[][3] = {{0, 0, 40}};
  dt_plan_config config = config_of(1, 1, 128);
  for (int layout = 0; layout < 2; layout++) {
    config.layout = (dt_layout)layout;
    dt_plan *plan = plan_new(&config, (const int32_t[]){128});
    assert_bands(plan, full, 1);
    assert_int_equal(plan->padded_rows, 0);
    dt_plan_destroy(plan);
    plan = plan_new(&config, (const int32_t[]){40});
    assert_bands(plan, forty, 1);
    assert_int_equal(plan->padded_rows, layout == DT_LAYOUT_ALIGNED ? 88 : 0);
    dt_plan_destroy(plan);
  }
  routing r = routing_new(4, 64, 2);
  static const int32_t ids[5][2] = {{0, 255}, {64, 65}, {128, 0}, {255, 63}, {17, 200}};
  for (int32_t s = 0; s < 4; s++) {
    int64_t first, count;
    dt_token_block(5, 4, s, &first, &count);
    routing_tokens(&r, s, count);
    memcpy(r.ids[s], ids[first], (size_t)count * sizeof ids[0]);
  }
  routing_place(&r);
  dt_plan **plans = plans_new(config_of(4, 64, 128), r.counts);
  static const int32_t bands[4] = {3, 2, 1, 2}, last_rows[4] = {1, 1, 1, 2};
  for (int32_t p = 0; p < 4; p++) {
    assert_int_equal(plans[p]->band_count, bands[p]);
    assert_int_equal(plans[p]->bands[bands[p] - 1].rows, last_rows[p]);
  }
  assert_int_equal(plans[0]->bands[0].rows, 2);
  assert_int_equal(plans[0]->rows, 4);
  plans_free(plans, 4);
  runs_everywhere(config_of(4, 64, 128), r.counts);
  routing_free(&r);
}

/* 512 experts; 33 experts a rank with another batch each time. Properties of such plans are tested over random
 * routings elsewhere; here the sizes. */
static void many_experts(void **state) {
  (void)state;
  dt_random random = {512};
  static const int32_t shapes[][2] = {{8, 64}, {4, 33}, {1, 512}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    for (int64_t batch = 0; batch <= 333; batch += 111) {
      routing r = routing_random(&random, shapes[i][0], shapes[i][1], batch);
      dt_plan_config config = config_random(&random, &r, (int32_t)batch);
      dt_plan **plans = plans_new(config, r.counts);
      int64_t rows = 0, slots = 0;
      for (int32_t p = 0; p < r.ranks; p++) {
        rows += plans[p]->rows - plans[p]->padded_rows;
        slots += plans[p]->combine_rows;
      }
      assert_int_equal(rows, slots);
      run_config run = {3, 1, 2};
      assert_true(run_plans(run, plans, r.ranks, &random));
      plans_free(plans, r.ranks);
      routing_free(&r);
    }
  }
}

/* 1024 rows in tiles of 192; lengths that are no multiple of 64. */
static void tiles_that_do_not_divide(void **state) {
  (void)state;
  static const int32_t bands[][3] = {{0, 0, 192},  {0, 192, 192}, {0, 384, 192},  {0, 576, 192}, {0, 768, 192},
                                     {0, 960, 64}, {1, 1024, 77}, {2, 1101, 192}, {2, 1293, 9}};
  static const int32_t counts[] = {1024, 77, 201};
  dt_plan_config config = config_of(1, 3, 192);
  dt_plan *plan = plan_new(&config, counts);
  assert_bands(plan, bands, 9);
  assert_int_equal(plan->rows, 1302);
  dt_plan_destroy(plan);
  runs_everywhere(config, counts);
}

/* As far as rows go: 200,000 tokens, top-8, all ranks to one rank's experts. */
static void two_hundred_thousand_tokens(void **state) {
  (void)state;
  int32_t counts[8][16] = {{0}};
  dt_plan_config config = config_of(8, 2, 128);
  for (int32_t s = 0; s < 8; s++) counts[s][0] = counts[s][1] = 800000;
  dt_plan *plan = plan_new(&config, counts[0]);
  assert_int_equal(plan->rows, 12800000);
  assert_int_equal(plan->band_count, 100000);
  assert_int_equal(plan->groups[15].dst_row, 800000);
  assert_int_equal(plan->task_count, plan->dispatch_count + 500000 + 1);
  dt_plan_destroy(plan);
}

/* The example of docs/plan.md. */
static void example_of_the_docs(void **state) {
  (void)state;
  static const int32_t counts[] = {5, 2, 3, 1, 6, 3, 2, 4};
  static const int32_t bands[][3] = {{0, 0, 4}, {0, 4, 4}, {0, 8, 3}, {1, 11, 4}, {1, 15, 1}};
  static const int32_t parts[][3] = {{1, 0, 0}, {1, 4, 4}, {0, 6, 0}, {0, 8, 2}, {1, 11, 6}, {0, 14, 5}, {0, 15, 6}};
  static const int32_t orders[3][5] = {{0, 1, 2, 3, 4}, {0, 1, 3, 2, 4}, {0, 2, 1, 3, 4}};
  static const char *const tables[] = {"a0a2a1a3a4b0b2b1b3b4", "a0a2a1a3a4b0b2b1b3b4", "a0a2a1a3a4b0b2b1b3b4",
                                       "a0a2b0b2a1a3b1b3a4b4", "a0a2a1a3b0b2a4b1b3b4", "a0a2b0a1b2a3b1a4b3b4"};
  dt_plan_config config = config_of(2, 2, 4);
  config.columns_1 = config.columns_2 = config.raster_bands = 1;
  config.dispatch = config.reduce_blocks = 0;
  config.group_tasks = 2;
  for (int order = 0; order < 3; order++) {
    config.order = (dt_order)order;
    dt_plan *plan = plan_new(&config, counts);
    assert_bands(plan, bands, 5);
    assert_int_equal(plan->part_count, 7);
    for (int32_t i = 0; i < 7; i++) {
      assert_int_equal(plan->parts[i].owner, parts[i][0]);
      assert_int_equal(plan->parts[i].row, parts[i][1]);
      assert_int_equal(plan->parts[i].dst_row, parts[i][2]);
    }
    assert_int_equal(plan->segment_count, 3);
    assert_memory_equal(plan->band_order, orders[order], sizeof orders[order]);
    dt_plan_destroy(plan);
  }
  for (int schedule = 0; schedule < 6; schedule++) {
    char table[32] = "";
    config.schedule = (dt_schedule)schedule;
    dt_plan *plan = plan_new(&config, counts);
    assert_int_equal(plan->task_count, 10);
    for (int32_t i = 0; i < 10; i++) {
      table[2 * i] = plan->tasks[i].phase == DT_PHASE_L1 ? 'a' : 'b';
      table[2 * i + 1] = (char)('0' + plan->tasks[i].index);
    }
    assert_string_equal(table, tables[schedule]);
    dt_plan_destroy(plan);
  }
  config.layout = DT_LAYOUT_ALIGNED;
  dt_plan *plan = plan_new(&config, counts);
  assert_true(plan->rows == 24 && plan->padded_rows == 8);
  dt_plan_destroy(plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(example_of_the_docs),
                                     cmocka_unit_test(empty_experts),
                                     cmocka_unit_test(no_tokens_at_all),
                                     cmocka_unit_test(everything_to_one_rank),
                                     cmocka_unit_test(one_expert_gets_everything),
                                     cmocka_unit_test(few_rows),
                                     cmocka_unit_test(many_experts),
                                     cmocka_unit_test(tiles_that_do_not_divide),
                                     cmocka_unit_test(two_hundred_thousand_tokens)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
