/* Names, defaults, and what dt_plan_create refuses: the field, its value and what is allowed. */
#include "test_plan_support.h"

#include <stdio.h>

static dt_plan_config base(void) {
  dt_plan_config config;
  dt_plan_config_init(&config);
  config.ranks = 2;
  config.experts_per_rank = 3;
  return config;
}

static void refused(const dt_plan_config *config, const int32_t *counts, const char *detail) {
  dt_plan *plan = (dt_plan *)&plan, *untouched = plan;
  assert_int_equal(dt_plan_create(config, counts, &plan), DT_ERR_ARGUMENT);
  assert_string_equal(dt_error_detail(), detail);
  assert_ptr_equal(plan, untouched);
}

static void every_field(void **state) {
  (void)state;
  static const int32_t none[12] = {0};
  dt_plan_config good = base(), bad;
#define REFUSE(field, value, detail) (bad = good, bad.field = (value), refused(&bad, none, detail))
  REFUSE(ranks, 0, "ranks: 0; 1 to 2147483647");
  REFUSE(experts_per_rank, 0, "experts_per_rank: 0; 1 to 1073741823");
  REFUSE(experts_per_rank, 1 << 30, "experts_per_rank: 1073741824; 1 to 1073741823");
  REFUSE(rank, -1, "rank: -1; 0 to 1");
  REFUSE(rank, 2, "rank: 2; 0 to 1");
  REFUSE(tile_m, 0, "tile_m: 0; 1 to 16777216");
  REFUSE(layout, (dt_layout)2, "layout: 2; 0 to 1");
  REFUSE(order, (dt_order)-1, "order: -1; 0 to 2");
  REFUSE(segment_bands, 0, "segment_bands: 0; 1 to 2147483647");
  REFUSE(schedule, (dt_schedule)6, "schedule: 6; 0 to 5");
  REFUSE(columns_1, -1, "columns_1: -1; 0 to 2147483647");
  REFUSE(columns_2, -7, "columns_2: -7; 0 to 2147483647");
  REFUSE(raster_bands, 0, "raster_bands: 0; 1 to 2147483647");
  REFUSE(lead, 0, "lead: 0; 1 to 2147483647");
  REFUSE(wave_experts, -1, "wave_experts: -1; 0 to 2147483647");
  REFUSE(group_tasks, 0, "group_tasks: 0; 1 to 2147483647");
  REFUSE(dispatch, 2, "dispatch: 2; 0 to 1");
  REFUSE(shared_blocks, -1, "shared_blocks: -1; 0 to 2147483647");
  REFUSE(reduce_blocks, -1, "reduce_blocks: -1; 0 to 2147483647");
#undef REFUSE
  char detail[128];
  bad = good;
  bad.size = 4;
  snprintf(detail, sizeof detail, "size: 4; %zu, as dt_plan_config_init sets it", sizeof bad);
  refused(&bad, none, detail);
  refused(&good, NULL, "counts: NULL; [ranks][ranks*experts_per_rank]");
}

static void counts_out_of_range(void **state) {
  (void)state;
  dt_plan_config config = base();
  int32_t counts[12] = {0};
  counts[9] = -4;
  refused(&config, counts, "counts[1][3]: -4; at least 0");
  counts[9] = INT32_MAX;
  counts[10] = 1;
  refused(&config, counts, "counts[1]: 2147483648 slots in all; at most 2147483647");
  counts[10] = 0;
  config.rank = 1;
  config.tile_m = 1;
  refused(&config, counts, "counts: 2147483647 bands; below 2147483647 (a larger tile_m makes fewer)");
}

/* More rows than 31 bits hold: 16 ranks send a billion slots each to one rank. */
static void rows_beyond_31_bits(void **state) {
  (void)state;
  const int64_t each = 1000000000;
  static int32_t counts[16 * 16];
  dt_plan_config config;
  dt_plan_config_init(&config);
  config.ranks = 16;
  config.rank = 5;
  config.tile_m = 1 << 20;
  config.dispatch = 1;
  for (int32_t s = 0; s < 16; s++) counts[s * 16 + 5] = (int32_t)each;
  dt_plan *plan;
  assert_int_equal(dt_plan_create(&config, counts, &plan), DT_OK);
  assert_true(plan->rows == 16 * each && plan->padded_rows == 0 && plan->combine_rows == each);
  assert_int_equal(plan->group_count, 16);
  for (int32_t i = 0; i < 16; i++) {
    assert_int_equal(plan->groups[i].owner, (6 + i) % 16);
    assert_true(plan->groups[i].row == i * each && plan->groups[i].rows == each);
  }
  assert_int_equal(plan->band_count, 15259);
  assert_true(plan->bands[15258].row == INT64_C(15258) << 20);
  assert_int_equal(plan->bands[15258].rows, 16 * each - (INT64_C(15258) << 20));
  assert_int_equal(plan->band_order[15258], 15258);
  assert_true(plan->segments[plan->segment_count - 1].row + plan->segments[plan->segment_count - 1].rows == 15 * each);
  assert_true(plan->dispatch[0].row == 15 * each && plan->dispatch[0].src_row == 0);
  dt_plan_destroy(plan);
}

static void no_memory(void **state) {
  (void)state;
  dt_plan_config config = base();
  const int32_t counts[12] = {1};
  dt_plan *plan = NULL;
  config.columns_1 = config.columns_2 = INT32_MAX;
  config.tile_m = 1;
  int32_t many[12] = {1 << 30};
  assert_int_equal(dt_plan_create(&config, many, &plan), DT_ERR_MEMORY);
  assert_null(plan);
  config.columns_1 = config.columns_2 = 1;
  assert_int_equal(dt_plan_create(&config, counts, &plan), DT_OK);
  dt_plan_destroy(plan);
  dt_plan_destroy(NULL);
}

static void names(void **state) {
  (void)state;
  dt_layout layout;
  dt_order order;
  dt_schedule schedule;
  for (int i = 0; i < 2; i++) {
    assert_int_equal(dt_layout_parse(dt_layout_name((dt_layout)i), &layout), DT_OK);
    assert_int_equal(layout, i);
  }
  for (int i = 0; i < 3; i++) {
    assert_int_equal(dt_order_parse(dt_order_name((dt_order)i), &order), DT_OK);
    assert_int_equal(order, i);
  }
  for (int i = 0; i < 6; i++) {
    assert_int_equal(dt_schedule_parse(dt_schedule_name((dt_schedule)i), &schedule), DT_OK);
    assert_int_equal(schedule, i);
  }
  assert_string_equal(dt_order_name(DT_ORDER_REMOTE_FIRST), "remote-first");
  assert_string_equal(dt_phase_name(DT_PHASE_SEGMENT), "segment");
  assert_string_equal(dt_schedule_name((dt_schedule)-1), "unknown");
  order = DT_ORDER_PACED;
  assert_int_equal(dt_order_parse("remote_first", &order), DT_ERR_ARGUMENT);
  assert_string_equal(dt_error_detail(), "order: remote_first; one of natural, remote-first, paced");
  assert_int_equal(order, DT_ORDER_PACED);
  assert_int_equal(dt_layout_parse("", &layout), DT_ERR_ARGUMENT);
  assert_string_equal(dt_error_detail(), "layout: ; one of packed, aligned");
  assert_int_equal(dt_schedule_parse("Serial", &schedule), DT_ERR_ARGUMENT);
  assert_string_equal(dt_error_detail(),
                      "schedule: Serial; one of serial, signal, direct, wave, interleave, alternate");
}

static void default_orders(void **state) {
  (void)state;
  assert_int_equal(dt_schedule_default_order(DT_SCHEDULE_SERIAL), DT_ORDER_NATURAL);
  assert_int_equal(dt_schedule_default_order(DT_SCHEDULE_SIGNAL), DT_ORDER_REMOTE_FIRST);
  for (int i = DT_SCHEDULE_DIRECT; i <= DT_SCHEDULE_ALTERNATE; i++) {
    assert_int_equal(dt_schedule_default_order((dt_schedule)i), DT_ORDER_PACED);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_field),
                                     cmocka_unit_test(counts_out_of_range),
                                     cmocka_unit_test(rows_beyond_31_bits),
                                     cmocka_unit_test(no_memory),
                                     cmocka_unit_test(names),
                                     cmocka_unit_test(default_orders)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
