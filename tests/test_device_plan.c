/* The plan's device code, run on the host phase by phase (src/cuda/plan_warp.h): equal to dt_slots and dt_plan_create
 * in every entry, for any number of blocks and warps, and within its arrays when these are too small.
 * bench/device_plan.c repeats this on a GPU. */
#include "cuda/plan_slots.h"
#include "cuda/plan_table.h"

#include "device_plan_support.h"
#include "device_slots_support.h"

#include <stdio.h>

enum { GUARD = 64 };

/* Without padding at the end. */
enum { SIZES_BYTES = offsetof(dt_device_plan_sizes, dispatch_count) + sizeof(int32_t) };

static dt_slots_scratch scratch_of(const dt_device_slots *slots, int32_t *memory, const dt_team *team) {
  return dt_slots_scratch_at(slots, memory, team);
}

static void run_place(const dt_device_slots *slots, const int32_t *counts, int32_t warps) {
  (void)warps;
  dt_team team = {0, slots->warps, 0, slots->blocks};
  int32_t *memory = take(dt_slots_place_bytes(slots), 1);
  for (team.block = 0; team.block < team.blocks; team.block++) {
    memset(memory, 0xa5, dt_slots_place_bytes(slots));
    dt_slots_scratch scratch = dt_slots_scratch_at(slots, memory, &team);
    for (team.warp = 0; team.warp < team.warps; team.warp++) dt_place_clear(slots, &scratch, &team);
    for (team.warp = 0; team.warp < team.warps; team.warp++) dt_place_count(slots, &scratch, &team);
    for (team.warp = 0; team.warp < team.warps; team.warp++) dt_place_sum(slots, counts, &scratch, &team);
    for (team.warp = 0; team.warp < team.warps; team.warp++) dt_place_warps(slots, &scratch, &team);
    for (team.warp = 0; team.warp < team.warps; team.warp++) dt_place_rows(slots, &scratch, &team);
  }
  free(memory);
}

static void run_plan(const dt_device_plan *plan) {
  dt_team team = {0, plan->warps, 0, plan->blocks};
  int32_t *memory = take(dt_summary_bytes(plan), 1);
  dt_summary summary = dt_summary_at(plan, memory);
#define PHASE(phase)                                                                                                   \
  for (team.warp = 0; team.warp < team.warps; team.warp++) phase(plan, &summary, &team);
  for (team.block = 0; team.block < team.blocks; team.block++) {
    memset(memory, 0xa5, dt_summary_bytes(plan));
    DT_SUMMARY_PHASES(PHASE)
    PHASE(dt_summary_runs)
    if (dt_is_grouped(plan)) {
      DT_TABLE_PHASES(PHASE)
    }
    PHASE(dt_summary_ends)
    PHASE(dt_summary_decide)
    dt_device_plan_sizes sizes;
    const int fits = dt_summary_fits(plan, &summary, &sizes);
    assert_int_equal(fits, summary.totals->fits);
    for (team.warp = 0; team.warp < team.warps && fits; team.warp++) {
      dt_fill(plan, &summary, &team, &sizes);
      dt_table_tasks(plan, &summary, &team, &sizes);
    }
  }
#undef PHASE
  free(memory);
}

/* Arrays of exactly the capacities, each between guards. */
typedef struct arena {
  unsigned char *pieces[DEVICE_PLAN_ARRAYS];
  size_t bytes[DEVICE_PLAN_ARRAYS];
} arena;

static void arena_open(arena *a, dt_device_plan *plan) {
  device_plan_array_bytes(&plan->capacity, a->bytes);
  void *at[DEVICE_PLAN_ARRAYS];
  for (int i = 0; i < DEVICE_PLAN_ARRAYS; i++) {
    a->pieces[i] = take(a->bytes[i] + 2 * GUARD, 1);
    memset(a->pieces[i], 0x5a, a->bytes[i] + 2 * GUARD);
    at[i] = a->pieces[i] + GUARD;
  }
  device_plan_point(&plan->arrays, at);
}

static void arena_close(arena *a, int untouched) {
  for (int i = 0; i < DEVICE_PLAN_ARRAYS; i++) {
    for (size_t b = 0; b < a->bytes[i] + 2 * GUARD; b++) {
      if (untouched || b < GUARD || b >= a->bytes[i] + GUARD) assert_int_equal(a->pieces[i][b], 0x5a);
    }
    free(a->pieces[i]);
  }
}

static dt_device_plan device_plan_of(dt_random *random, const dt_plan *plan, const int32_t *counts,
                                     dt_device_plan_sizes *sizes, uint32_t *error) {
  dt_device_plan device = {.config = plan->config, .counts = counts, .sizes = sizes, .error = error};
  device.capacity = device_plan_exact(plan);
  device.blocks = random_in(random, 1, 5);
  device.warps = random_in(random, 1, MOST_WARPS);
  memset(sizes, 0x77, sizeof *sizes);
  *error = 0;
  return device;
}

static void check_plan(dt_random *random, const dt_plan *plan, const int32_t *counts) {
  dt_device_plan_sizes sizes;
  uint32_t error;
  arena arrays;
  dt_device_plan device = device_plan_of(random, plan, counts, &sizes, &error);
  dt_device_plan_derive(&device);
  arena_open(&arrays, &device);
  run_plan(&device);
  assert_int_equal(error, DT_DEVICE_PLAN_OK);
  const char *difference = device_plan_difference(plan, &sizes, &device.arrays);
  if (difference) {
    const dt_plan_config *c = &plan->config;
    fail_msg("%s differs: ranks %d, experts %d, rank %d, tile_m %d, layout %d, order %d, schedule %d", difference,
             c->ranks, c->experts_per_rank, c->rank, c->tile_m, c->layout, c->order, c->schedule);
  }
  arena_close(&arrays, 0);
}

/* One entry too few in one array: an error, no sizes, nothing written. */
static void check_overflow(dt_random *random, const dt_plan *plan, const int32_t *counts) {
  dt_device_plan_sizes sizes, none = {0};
  uint32_t error;
  arena arrays;
  dt_device_plan device = device_plan_of(random, plan, counts, &sizes, &error);
  int64_t *const fields[] = {&device.capacity.rows,  &device.capacity.groups,   &device.capacity.bands,
                             &device.capacity.parts, &device.capacity.segments, &device.capacity.dispatch,
                             &device.capacity.tasks};
  int64_t *field = fields[dt_random_below(random, sizeof fields / sizeof *fields)];
  if (*field == 0) return;
  --*field;
  dt_device_plan_derive(&device);
  arena_open(&arrays, &device);
  run_plan(&device);
  assert_int_equal(error, DT_DEVICE_PLAN_ERROR_CAPACITY);
  assert_memory_equal(&sizes, &none, SIZES_BYTES);
  arena_close(&arrays, 1);
}

/* What dt_plan_capacity_of promises for the rows and slots there are. */
static void check_capacity(const dt_plan *plan) {
  dt_plan_capacity exact = device_plan_exact(plan);
  dt_plan_capacity bound = dt_plan_capacity_of(&plan->config, plan->rows - plan->padded_rows,
                                               plan->config.dispatch ? plan->combine_rows : 0);
  assert_true(exact.rows <= bound.rows && exact.groups <= bound.groups && exact.bands <= bound.bands);
  assert_true(exact.parts <= bound.parts && exact.segments <= bound.segments);
  assert_true(exact.dispatch <= bound.dispatch && exact.tasks <= bound.tasks);
}

static void test_plans(void **state) {
  dt_random random = {5};
  int32_t turn = 0;
  (void)state;
  for (int i = 0; i < ROUTINGS; i++) {
    int32_t ranks = random_in(&random, 1, 16), experts = random_in(&random, 1, i % 3 ? 6 : 64);
    routing r = routing_random(&random, ranks, experts, i % 2 ? 40 : 300);
    for (int j = 0; j < 36; j++, turn++) {
      dt_plan_config config = config_random(&random, &r, turn);
      config.rank = random_in(&random, 0, ranks - 1);
      config.dispatch = random_in(&random, 0, 3) > 0;
      if (random_in(&random, 0, 9) == 0) config.columns_1 = 0;
      if (random_in(&random, 0, 5) == 0) config.group_tasks = random_in(&random, 1, 2000);
      if (random_in(&random, 0, 9) == 0) config.raster_bands = config.segment_bands = config.lead = INT32_MAX;
      dt_plan *plan = plan_new(&config, r.counts);
      check_plan(&random, plan, r.counts);
      check_overflow(&random, plan, r.counts);
      check_capacity(plan);
      dt_plan_destroy(plan);
    }
    routing_free(&r);
  }
}

/* Counts that cannot be: negative, or more rows than 31 bits. */
static void test_plan_errors(void **state) {
  int32_t counts[3][8] = {{1, 2, -3, 4, 5, 6, 7, 8}, {INT32_MAX, INT32_MAX, 0, 0, 0, 0, 0, 0}, {0}};
  dt_plan_capacity capacity = {64, 64, 64, 64, 64, 64, 64};
  (void)state;
  counts[2][0] = counts[2][4] = INT32_MAX; /* each source has few enough, their rank too many */
  for (int i = 0; i < 3; i++) {
    dt_device_plan_sizes sizes, none = {0};
    uint32_t error = 0;
    arena arrays;
    dt_device_plan device = {.capacity = capacity, .counts = counts[i], .sizes = &sizes, .error = &error};
    dt_plan_config_init(&device.config);
    device.config.ranks = device.config.experts_per_rank = 2;
    device.config.dispatch = device.config.columns_1 = device.config.columns_2 = 1;
    device.config.order = DT_ORDER_REMOTE_FIRST;
    device.blocks = device.warps = 2;
    dt_device_plan_derive(&device);
    arena_open(&arrays, &device);
    run_plan(&device);
    assert_int_equal(error, DT_DEVICE_PLAN_ERROR_COUNTS);
    assert_memory_equal(&sizes, &none, SIZES_BYTES);
    arena_close(&arrays, 1);
  }
}

static void test_divider(void **state) {
  dt_random random = {3};
  (void)state;
  for (int i = 0; i < 200000; i++) {
    int32_t divisor = 1 + (int32_t)(dt_random_below(&random, INT32_MAX) >> dt_random_below(&random, 31));
    int32_t value = (int32_t)(dt_random_below(&random, (uint64_t)INT32_MAX + 1) >> dt_random_below(&random, 31));
    dt_divider by = dt_divider_of(divisor);
    int32_t multiple = value - value % divisor;
    assert_int_equal(dt_divide(by, value), value / divisor);
    assert_int_equal(dt_divide(by, multiple), multiple / divisor);
    if (multiple > 0) assert_int_equal(dt_divide(by, multiple - 1), (multiple - 1) / divisor);
    assert_int_equal(dt_divide(by, INT32_MAX), INT32_MAX / divisor);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_divider), cmocka_unit_test(test_slots),       cmocka_unit_test(test_slots_errors),
      cmocka_unit_test(test_plans),   cmocka_unit_test(test_plan_errors),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
