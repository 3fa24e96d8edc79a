/* The routers of the layer benchmark: different experts a token, evenness, skew, seeds; shapes by name. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <draintile/moe_bench.h>

enum { RANKS = 4, EXPERTS = 32, TOP_K = 6, TOKENS = 1001, SLOTS = RANKS * TOKENS * TOP_K };

static int32_t ids[SLOTS];
static float weights[SLOTS];
static int64_t loads[EXPERTS];

/* Routes and checks what holds for every router. */
static void route(dt_moe_router router, uint64_t seed) {
  memset(ids, 0x55, sizeof ids);
  memset(loads, 0, sizeof loads);
  assert_int_equal(dt_moe_route(router, seed, RANKS, EXPERTS, TOP_K, TOKENS, ids, weights), DT_OK);
  for (int32_t t = 0; t < RANKS * TOKENS; t++) {
    const int32_t *own = ids + t * TOP_K;
    double sum = 0;
    for (int32_t c = 0; c < TOP_K; c++) {
      assert_in_range(own[c], 0, EXPERTS - 1);
      for (int32_t d = 0; d < c; d++) assert_int_not_equal(own[c], own[d]);
      assert_true(weights[t * TOP_K + c] > 0);
      sum += weights[t * TOP_K + c];
      loads[own[c]]++;
    }
    assert_true(fabs(sum - 1) < 1e-6);
  }
}

static void test_balanced(void **state) {
  (void)state;
  route(DT_MOE_ROUTER_BALANCED, 3);
  for (int32_t e = 0; e < EXPERTS; e++) assert_in_range(loads[e], SLOTS / EXPERTS, (SLOTS + EXPERTS - 1) / EXPERTS);
}

static void test_crossed(void **state) {
  (void)state;
  enum { OWN = EXPERTS / RANKS, EACH = TOKENS * TOP_K };
  route(DT_MOE_ROUTER_CROSSED, 3);
  for (int32_t slot = 0; slot < SLOTS; slot++) assert_int_equal(ids[slot] / OWN, (slot / EACH + 1) % RANKS);
  for (int32_t e = 0; e < EXPERTS; e++) assert_in_range(loads[e], EACH / OWN, (EACH + OWN - 1) / OWN);
}

static int descending(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x < y) - (x > y);
}

/* One choice a token, so that shares are the weights rank^-0.5 themselves. */
static void test_skewed(void **state) {
  (void)state;
  enum { DRAWS = 200000 };
  int32_t *ones = malloc(RANKS * DRAWS * sizeof *ones);
  float *all = malloc(RANKS * DRAWS * sizeof *all);
  assert_true(ones && all);
  route(DT_MOE_ROUTER_SKEWED, 3);
  assert_int_equal(dt_moe_route(DT_MOE_ROUTER_SKEWED, 5, RANKS, EXPERTS, 1, DRAWS, ones, all), DT_OK);
  memset(loads, 0, sizeof loads);
  for (int32_t i = 0; i < RANKS * DRAWS; i++) loads[ones[i]]++;
  qsort(loads, EXPERTS, sizeof *loads, descending);
  double sum = 0;
  for (int32_t e = 1; e <= EXPERTS; e++) sum += 1 / sqrt(e);
  for (int32_t e = 0; e < EXPERTS; e++) {
    const double expected = RANKS * DRAWS / (sum * sqrt(e + 1));
    assert_true(fabs((double)loads[e] - expected) < 6 * sqrt(expected)); /* sorting brings neighbours a little nearer */
  }
  free(ones), free(all);
}

static void test_seeds(void **state) {
  (void)state;
  static int32_t first[SLOTS];
  for (int router = DT_MOE_ROUTER_BALANCED; router <= DT_MOE_ROUTER_CROSSED; router++) {
    route((dt_moe_router)router, 7);
    memcpy(first, ids, sizeof first);
    route((dt_moe_router)router, 7);
    assert_memory_equal(first, ids, sizeof first);
    route((dt_moe_router)router, 8);
    assert_memory_not_equal(first, ids, sizeof first);
  }
}

static void refused(const char *field, dt_moe_router router, int32_t ranks, int32_t experts, int32_t top_k,
                    int64_t tokens) {
  assert_int_equal(dt_moe_route(router, 1, ranks, experts, top_k, tokens, ids, weights), DT_ERR_ARGUMENT);
  if (strncmp(dt_error_detail(), field, strlen(field)) != 0) fail_msg("\"%s\", not %s", dt_error_detail(), field);
}

static void test_refused(void **state) {
  (void)state;
  refused("ranks: 0", DT_MOE_ROUTER_BALANCED, 0, 8, 2, 4);
  refused("experts: 9", DT_MOE_ROUTER_BALANCED, 2, 9, 2, 4);
  refused("top_k: 9", DT_MOE_ROUTER_BALANCED, 2, 8, 9, 4);
  refused("top_k: 5", DT_MOE_ROUTER_CROSSED, 2, 8, 5, 4); /* of the next rank's four */
  refused("tokens: -1", DT_MOE_ROUTER_SKEWED, 2, 8, 2, -1);
  refused("router: 3", (dt_moe_router)3, 2, 8, 2, 4);
}

static void test_shapes(void **state) {
  (void)state;
  for (int32_t i = 0; i < DT_MOE_SHAPES; i++) {
    const dt_moe_shape *shape = dt_moe_shape_at(i);
    dt_layer_model model;
    assert_ptr_equal(dt_moe_shape_find(shape->name), shape);
    dt_moe_shape_model(shape, 2, &model);
    assert_int_equal(model.size, sizeof model);
    assert_int_equal(model.ranks, 2);
    assert_int_equal(model.experts_per_rank, shape->experts / 2);
    assert_int_equal(model.top_k, shape->top_k);
    assert_int_equal(model.hidden, shape->hidden);
    assert_int_equal(model.intermediate, shape->intermediate);
  }
  /* No ranks are for the price to refuse. */
  dt_layer_model none;
  dt_layer_costs costs;
  dt_layer_answer answer;
  int32_t count = 0;
  int64_t tokens = 0;
  memset(&costs, 0, sizeof costs);
  dt_moe_shape_model(dt_moe_shape_at(0), 0, &none);
  none.counts = &count;
  none.tokens = &tokens;
  assert_int_equal(dt_layer_price(&none, &costs, &(dt_layer_order){.schedule = DT_SCHEDULE_DIRECT}, 1, &answer),
                   DT_ERR_ARGUMENT);
  assert_ptr_equal(strstr(dt_error_detail(), "ranks: 0; 1 to 64"), dt_error_detail());
  assert_null(dt_moe_shape_at(-1));
  assert_null(dt_moe_shape_at(DT_MOE_SHAPES));
  assert_null(dt_moe_shape_find("mixtra"));
}

static void test_names(void **state) {
  (void)state;
  dt_moe_router router = DT_MOE_ROUTER_CROSSED;
  assert_int_equal(dt_moe_router_parse("balanced", &router), DT_OK);
  assert_int_equal(router, DT_MOE_ROUTER_BALANCED);
  assert_int_equal(dt_moe_router_parse("crossed", &router), DT_OK);
  assert_int_equal(router, DT_MOE_ROUTER_CROSSED);
  assert_int_equal(dt_moe_router_parse("skewed", &router), DT_OK);
  assert_int_equal(dt_moe_router_parse("skew", &router), DT_ERR_ARGUMENT);
  assert_string_equal(dt_error_detail(), "router: skew; one of balanced, skewed, crossed");
  assert_int_equal(router, DT_MOE_ROUTER_SKEWED);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_balanced), cmocka_unit_test(test_crossed),
                                     cmocka_unit_test(test_skewed),   cmocka_unit_test(test_seeds),
                                     cmocka_unit_test(test_refused),  cmocka_unit_test(test_shapes),
                                     cmocka_unit_test(test_names)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
