/* The routers of the combine benchmark: totals, evenness, skew, seeds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <draintile/combine.h>

enum { RANKS = 2, EXPERTS = 64, ROWS = 16384, ALL = RANKS * EXPERTS };

static int32_t counts[RANKS][ALL];

static int64_t rows_of(int32_t source) {
  int64_t rows = 0;
  for (int32_t g = 0; g < ALL; g++) {
    assert_true(counts[source][g] >= 0);
    rows += counts[source][g];
  }
  return rows;
}

static int64_t load_of(int32_t rank) {
  int64_t rows = 0;
  for (int32_t s = 0; s < RANKS; s++)
    for (int32_t e = 0; e < EXPERTS; e++) rows += counts[s][rank * EXPERTS + e];
  return rows;
}

static void route(dt_combine_router router, uint64_t seed) {
  memset(counts, 0x55, sizeof counts);
  assert_int_equal(dt_combine_route(router, seed, RANKS, EXPERTS, ROWS, &counts[0][0]), DT_OK);
  for (int32_t s = 0; s < RANKS; s++) assert_int_equal(rows_of(s), ROWS);
}

static void test_balanced(void **state) {
  (void)state;
  route(DT_ROUTER_BALANCED, 3);
  for (int32_t s = 0; s < RANKS; s++)
    for (int32_t g = 0; g < ALL; g++) assert_in_range(counts[s][g], ROWS / ALL, (ROWS + ALL - 1) / ALL);
  /* what does not divide: still within one of each other */
  int32_t few[2][6];
  assert_int_equal(dt_combine_route(DT_ROUTER_BALANCED, 3, 2, 3, 10, &few[0][0]), DT_OK);
  for (int32_t s = 0; s < 2; s++)
    for (int32_t g = 0; g < 6; g++) assert_in_range(few[s][g], 1, 2);
}

/* Weights rank^-0.5: the most loaded expert has about eleven times the least, and no expert is a token's choice twice.
 */
static void test_moderate(void **state) {
  (void)state;
  route(DT_ROUTER_MODERATE, 3);
  int64_t least = INT64_MAX, most = 0;
  for (int32_t g = 0; g < ALL; g++) {
    const int64_t load = counts[0][g] + counts[1][g];
    if (load < least) least = load;
    if (load > most) most = load;
    assert_in_range(counts[0][g], 0, ROWS / 2);
  }
  assert_in_range(most / least, 6, 16);
}

/* Half of the rows to the first eighth of the experts and half uniform, less the choices already taken. */
static void test_stress(void **state) {
  (void)state;
  route(DT_ROUTER_STRESS, 3);
  int64_t hot = 0;
  for (int32_t g = 0; g < ALL / 8; g++) hot += counts[0][g] + counts[1][g];
  assert_in_range(hot, (int64_t)(0.54 * RANKS * ROWS), (int64_t)(0.58 * RANKS * ROWS));
  assert_in_range(load_of(0), (int64_t)(0.73 * RANKS * ROWS), (int64_t)(0.77 * RANKS * ROWS));
}

static void test_crossed(void **state) {
  (void)state;
  route(DT_ROUTER_CROSSED, 3);
  for (int32_t s = 0; s < RANKS; s++)
    for (int32_t e = 0; e < EXPERTS; e++) {
      assert_int_equal(counts[s][s * EXPERTS + e], 0);
      assert_int_equal(counts[s][(1 - s) * EXPERTS + e], ROWS / EXPERTS);
    }
}

static void test_seeds(void **state) {
  (void)state;
  static int32_t first[RANKS][ALL];
  route(DT_ROUTER_MODERATE, 7);
  memcpy(first, counts, sizeof first);
  route(DT_ROUTER_MODERATE, 7);
  assert_memory_equal(first, counts, sizeof first);
  route(DT_ROUTER_MODERATE, 8);
  assert_memory_not_equal(first, counts, sizeof first);
}

static void test_refused(void **state) {
  (void)state;
  int32_t one[4];
  assert_int_equal(dt_combine_route(DT_ROUTER_BALANCED, 0, 2, 1, 3, one), DT_ERR_ARGUMENT);
  assert_non_null(strstr(dt_error_detail(), "rows: 3"));
  assert_int_equal(dt_combine_route(DT_ROUTER_BALANCED, 0, 1, 1, 2, one), DT_ERR_ARGUMENT);
  assert_int_equal(dt_combine_route((dt_combine_router)9, 0, 2, 1, 2, one), DT_ERR_ARGUMENT);
  assert_int_equal(dt_combine_route(DT_ROUTER_CROSSED, 0, 0, 1, 2, one), DT_ERR_ARGUMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_balanced), cmocka_unit_test(test_moderate),
                                     cmocka_unit_test(test_stress),   cmocka_unit_test(test_crossed),
                                     cmocka_unit_test(test_seeds),    cmocka_unit_test(test_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
