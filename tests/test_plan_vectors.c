/* The reference vectors: every field of every case must match exactly. */
#include <draintile/plan.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

static int64_t integer(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  if (!json_is_integer(value)) fail_msg("%s: not an integer", key);
  return json_integer_value(value);
}

static const char *string(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  if (!json_is_string(value)) fail_msg("%s: not a string", key);
  return json_string_value(value);
}

static json_t *load(const char *name) {
  char path[1024];
  json_error_t error;
  snprintf(path, sizeof path, "%s/%s", DT_TEST_DATA, name);
  json_t *root = json_load_file(path, 0, &error);
  if (!root) fail_msg("%s: %s", path, error.text);
  return root;
}

static int32_t *counts_of(const json_t *vector, int32_t ranks, int32_t width) {
  const json_t *rows = json_object_get(vector, "counts");
  int32_t *counts = calloc((size_t)ranks * (size_t)width, sizeof *counts);
  assert_non_null(counts);
  for (int32_t s = 0; s < ranks; s++) {
    const json_t *row = json_array_get(rows, (size_t)s);
    assert_int_equal(json_array_size(row), width);
    for (int32_t g = 0; g < width; g++) {
      counts[s * width + g] = (int32_t)json_integer_value(json_array_get(row, (size_t)g));
    }
  }
  return counts;
}

static dt_plan *plan_of(const json_t *vector, dt_plan_config *config) {
  dt_plan *plan = NULL;
  config->ranks = (int32_t)json_array_size(json_object_get(vector, "counts"));
  config->experts_per_rank = (int32_t)integer(vector, "experts_per_rank");
  config->rank = (int32_t)integer(vector, "rank");
  config->tile_m = (int32_t)integer(vector, "tile_m");
  config->segment_bands = (int32_t)integer(vector, "segment_bands");
  assert_int_equal(dt_layout_parse(string(vector, "layout"), &config->layout), DT_OK);
  assert_int_equal(dt_order_parse(string(vector, "order"), &config->order), DT_OK);
  int32_t *counts = counts_of(vector, config->ranks, config->ranks * config->experts_per_rank);
  if (dt_plan_create(config, counts, &plan) != DT_OK) fail_msg("%s", dt_error_detail());
  if (dt_plan_check(plan, counts) != DT_OK) fail_msg("%s", dt_error_detail());
  free(counts);
  return plan;
}

static const json_t *listed(const json_t *expect, const char *key, int64_t count) {
  const json_t *list = json_object_get(expect, key);
  assert_true(json_is_array(list));
  assert_int_equal(json_array_size(list), count);
  return list;
}

/* Compares one field and counts it, so that no field of a vector goes unread. */
#define SAME(object, structure, field) (assert_int_equal(integer(object, #field), (structure)->field), fields_read++)
/* Rows of an expert at their owner: groups and segments are such. */
#define SAME_ROWS(object, structure)                                                                                   \
  do {                                                                                                                 \
    SAME(object, structure, expert);                                                                                   \
    SAME(object, structure, owner);                                                                                    \
    SAME(object, structure, row);                                                                                      \
    SAME(object, structure, rows);                                                                                     \
    SAME(object, structure, dst_row);                                                                                  \
  } while (0)

static size_t fields_read;

static void compare_bands(const json_t *list, const dt_plan *plan) {
  size_t i, j;
  const json_t *item, *inner;
  json_array_foreach(list, i, item) {
    const dt_band *band = &plan->bands[i];
    SAME(item, band, expert);
    SAME(item, band, row);
    SAME(item, band, rows);
    SAME(item, band, remote_rows);
    const json_t *parts = listed(item, "parts", band->parts);
    fields_read++;
    json_array_foreach(parts, j, inner) {
      const dt_part *part = &plan->parts[(size_t)band->first_part + j];
      SAME(inner, part, owner);
      SAME(inner, part, row);
      SAME(inner, part, rows);
      SAME(inner, part, dst_row);
      assert_int_equal(json_object_size(inner), 4);
    }
    assert_int_equal(json_object_size(item), 5);
  }
}

static void compare_segments(const json_t *list, const dt_plan *plan) {
  size_t i;
  const json_t *item;
  json_array_foreach(list, i, item) {
    const dt_segment *segment = &plan->segments[i];
    SAME_ROWS(item, segment);
    SAME(item, segment, first_band);
    SAME(item, segment, bands);
    assert_int_equal(json_object_size(item), 7);
  }
}

static void compare_order(const json_t *list, const int32_t *order) {
  size_t i;
  const json_t *item;
  json_array_foreach(list, i, item) assert_int_equal(json_integer_value(item), order[i]);
}

static void plan_vectors(void **state) {
  (void)state;
  json_t *root = load("plan.json");
  size_t n, i;
  const json_t *vector, *item;
  assert_true(json_array_size(json_object_get(root, "cases")) > 0);
  json_array_foreach(json_object_get(root, "cases"), n, vector) {
    dt_plan_config config;
    dt_plan_config_init(&config);
    dt_plan *plan = plan_of(vector, &config);
    const json_t *expect = json_object_get(vector, "expect");
    SAME(expect, plan, rows);
    SAME(expect, plan, padded_rows);
    json_array_foreach(listed(expect, "groups", plan->group_count), i, item) {
      const dt_group *group = &plan->groups[i];
      SAME_ROWS(item, group);
      assert_int_equal(json_object_size(item), 5);
    }
    compare_bands(listed(expect, "bands", plan->band_count), plan);
    compare_segments(listed(expect, "segments", plan->segment_count), plan);
    compare_order(listed(expect, "band_order", plan->band_count), plan->band_order);
    compare_order(listed(expect, "segment_order", plan->segment_count), plan->segment_order);
    assert_int_equal(json_object_size(expect), 7);
    assert_int_equal(plan->task_count, 0);
    dt_plan_destroy(plan);
  }
  assert_true(fields_read > 1000);
  json_decref(root);
}

static void task_vectors(void **state) {
  (void)state;
  json_t *root = load("tasks.json");
  size_t n, i;
  const json_t *vector, *item;
  assert_true(json_array_size(json_object_get(root, "cases")) > 0);
  json_array_foreach(json_object_get(root, "cases"), n, vector) {
    dt_plan_config config;
    dt_plan_config_init(&config);
    config.columns_1 = (int32_t)integer(vector, "columns_1");
    config.columns_2 = (int32_t)integer(vector, "columns_2");
    config.raster_bands = (int32_t)integer(vector, "raster_bands");
    config.lead = (int32_t)integer(vector, "lead");
    config.wave_experts = (int32_t)integer(vector, "wave_experts");
    config.group_tasks = (int32_t)integer(vector, "group_tasks");
    assert_int_equal(dt_schedule_parse(string(vector, "schedule"), &config.schedule), DT_OK);
    dt_plan *plan = plan_of(vector, &config);
    json_array_foreach(listed(json_object_get(vector, "expect"), "tasks", plan->task_count), i, item) {
      const dt_task *task = &plan->tasks[i];
      const int64_t expected[3] = {json_integer_value(json_array_get(item, 0)),
                                   json_integer_value(json_array_get(item, 1)),
                                   json_integer_value(json_array_get(item, 2))};
      if (task->phase != expected[0] || task->index != expected[1] || task->column != expected[2]) {
        fail_msg("case %zu task %zu: [%d, %d, %d], expected [%d, %d, %d]", n, i, task->phase, task->index, task->column,
                 (int)expected[0], (int)expected[1], (int)expected[2]);
      }
    }
    dt_plan_destroy(plan);
  }
  json_decref(root);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(plan_vectors), cmocka_unit_test(task_vectors)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
