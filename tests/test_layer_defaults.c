/* What a layer on GPUs does where its configuration has 0, as draintile/cuda_moe.h and docs/moe_cuda.md say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan/layer_defaults.h"

enum { CLUSTERS = 66 };
static const dt_layer_grouping zeros = {0, 0, 0, 0, 0};

/* Units of 16 bands and groups of two waves of clusters; waves of six; signal's units of four, so that segments become
 * ready a few at a time. Schedules that end L1 before L2 have no groups. */
static void test_grouping(void **state) {
  (void)state;
  static const struct {
    dt_schedule schedule;
    int32_t raster_bands, group_tasks, lead;
  } rows[] = {{DT_SCHEDULE_SERIAL, 16, 2 * CLUSTERS, DT_LAYER_LEAD_ALL},
              {DT_SCHEDULE_SIGNAL, 4, 2 * CLUSTERS, DT_LAYER_LEAD_ALL},
              {DT_SCHEDULE_DIRECT, 16, 2 * CLUSTERS, DT_LAYER_LEAD_ALL},
              {DT_SCHEDULE_WAVE, 16, 6 * CLUSTERS, 0},
              {DT_SCHEDULE_INTERLEAVE, 16, 2 * CLUSTERS, 1},
              {DT_SCHEDULE_ALTERNATE, 16, 2 * CLUSTERS, 1}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const dt_layer_grouping full = dt_layer_group(rows[i].schedule, zeros, CLUSTERS);
    assert_int_equal(full.raster_bands, rows[i].raster_bands);
    assert_int_equal(full.segment_bands, 1);
    assert_int_equal(full.group_tasks, rows[i].group_tasks);
    assert_int_equal(full.lead, rows[i].lead);
    assert_int_equal(full.wave_experts, 0);
  }
}

/* What is given stays, but a lead where there are no groups and wave_experts of other schedules. */
static void test_given(void **state) {
  (void)state;
  const dt_layer_grouping given = {6, 5, 7, 3, 2};
  for (int schedule = DT_SCHEDULE_SERIAL; schedule <= DT_SCHEDULE_ALTERNATE; schedule++) {
    const dt_layer_grouping full = dt_layer_group((dt_schedule)schedule, given, CLUSTERS);
    const int groups = schedule >= DT_SCHEDULE_WAVE;
    assert_int_equal(full.raster_bands, 6);
    assert_int_equal(full.segment_bands, 5);
    assert_int_equal(full.group_tasks, 7);
    assert_int_equal(full.lead, !groups ? (int)DT_LAYER_LEAD_ALL : schedule == DT_SCHEDULE_WAVE ? 0 : 3);
    assert_int_equal(full.wave_experts, schedule == DT_SCHEDULE_WAVE ? 2 : 0);
  }
}

/* 16, or a quarter of few multiprocessors, whole clusters of two, never none. */
static void test_consumers(void **state) {
  (void)state;
  static const int32_t sms[] = {4, 8, 22, 62, 64, 132}, consumers[] = {2, 2, 4, 14, 16, 16};
  for (size_t i = 0; i < sizeof sms / sizeof *sms; i++)
    assert_int_equal(dt_layer_consumers(DT_SCHEDULE_SIGNAL, 0, sms[i]), consumers[i]);
  assert_int_equal(dt_layer_consumers(DT_SCHEDULE_SIGNAL, 40, 132), 40);
  assert_int_equal(dt_layer_consumers(DT_SCHEDULE_DIRECT, 40, 132), 0);
}

/* The most rows that fit, a lane each, halved until they do: they then divide a band. */
static void test_piece_rows(void **state) {
  (void)state;
  for (int64_t hidden = 8; hidden <= 1 << 17; hidden += 8) {
    const int32_t rows = dt_layer_piece_rows(hidden, DT_LAYER_PIECE_BYTES);
    assert_true(rows >= 2 && rows <= 32 && 128 % rows == 0);
    assert_true(rows == 2 || rows * 2 * hidden <= DT_LAYER_PIECE_BYTES);
    assert_true(rows == 32 || 2 * rows * 2 * hidden > DT_LAYER_PIECE_BYTES);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_grouping), cmocka_unit_test(test_given),
                                     cmocka_unit_test(test_consumers), cmocka_unit_test(test_piece_rows)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
