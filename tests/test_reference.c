/* The float64 reference against plain loops, and the rate of one big GEMM. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <draintile/build.h>
#include <draintile/reference.h>

#include "core/random.h"

enum { H = 37, I = 300, ROWS = 5, EXPERTS = 2 };

typedef struct example {
  float gate[EXPERTS][I * H], up[EXPERTS][I * H], down[EXPERTS][H * I];
  float gate_bias[I], up_bias[I], down_bias[H], shared_gate[H];
  dt_expert experts[EXPERTS];
  dt_moe_weights weights;
  double x[ROWS * H], y[ROWS * H];
} example;

static void fill(dt_random *random, float *values, size_t count) {
  for (size_t i = 0; i < count; i++) values[i] = (float)dt_random_normal(random) * 0.2f;
}

static dt_matrix matrix(const float *data, int64_t rows, int64_t cols) {
  return (dt_matrix){
      .data = data, .dtype = DT_DTYPE_F32, .rows = rows, .cols = cols, .row_stride = cols, .col_stride = 1};
}

static void make(example *e, int biases) {
  dt_random random = {7};
  memset(e, 0, sizeof(*e));
  for (int i = 0; i < EXPERTS; i++) {
    fill(&random, e->gate[i], I * H);
    fill(&random, e->up[i], I * H);
    fill(&random, e->down[i], H * I);
    e->experts[i] =
        (dt_expert){.gate = matrix(e->gate[i], I, H), .up = matrix(e->up[i], I, H), .down = matrix(e->down[i], H, I)};
  }
  fill(&random, e->gate_bias, I);
  fill(&random, e->up_bias, I);
  fill(&random, e->down_bias, H);
  fill(&random, e->shared_gate, H);
  for (size_t i = 0; i < ROWS * H; i++) e->x[i] = dt_random_normal(&random) * 3;
  if (biases) {
    e->experts[1].gate_bias = e->gate_bias;
    e->experts[1].up_bias = e->up_bias;
    e->experts[1].down_bias = e->down_bias;
  }
  e->weights = (dt_moe_weights){.hidden = H, .intermediate = I, .experts_per_rank = EXPERTS, .experts = e->experts};
}

static double row_dot(const float *matrix_rows, int64_t row, int64_t cols, const double *x) {
  double sum = 0;
  for (int64_t i = 0; i < cols; i++) sum += (double)matrix_rows[row * cols + i] * x[i];
  return sum;
}

/* What expert 1 does to row `row`, output value `h`. */
static double expected(const example *e, int row, int h, int biases) {
  double act[I];
  const double *x = e->x + row * H;
  for (int i = 0; i < I; i++) {
    double gate = row_dot(e->gate[1], i, H, x) + (biases ? (double)e->gate_bias[i] : 0);
    double up = row_dot(e->up[1], i, H, x) + (biases ? (double)e->up_bias[i] : 0);
    if (e->weights.activation == DT_ACTIVATION_SILU) {
      act[i] = gate / (1 + exp(-gate)) * up;
    } else {
      double limit = (double)e->weights.activation_limit;
      gate = gate > limit ? limit : gate;
      up = up > limit ? limit : up < -limit ? -limit : up;
      act[i] = (up + 1) * gate / (1 + exp(-(double)e->weights.activation_alpha * gate));
    }
  }
  return row_dot(e->down[1], h, I, act) + (biases ? (double)e->down_bias[h] : 0);
}

static void check_expert(const example *e, const double *y, int biases) {
  for (int row = 0; row < ROWS; row++)
    for (int h = 0; h < H; h++) assert_true(fabs(y[row * H + h] - expected(e, row, h, biases)) < 1e-10);
}

static void test_silu(void **state) {
  (void)state;
  static example e;
  make(&e, 0);
  assert_int_equal(dt_expert_reference(&e.weights, 1, e.x, ROWS, e.y), DT_OK);
  check_expert(&e, e.y, 0);
}

static void test_clamped_with_biases(void **state) {
  (void)state;
  static example e;
  make(&e, 1);
  e.weights.activation = DT_ACTIVATION_SWIGLU_CLAMPED;
  e.weights.activation_alpha = 1.702f;
  e.weights.activation_limit = 2.0f;
  assert_int_equal(dt_expert_reference(&e.weights, 1, e.x, ROWS, e.y), DT_OK);
  check_expert(&e, e.y, 1);
}

static void test_shared(void **state) {
  (void)state;
  static example e;
  make(&e, 0);
  e.y[3] = 5;
  assert_int_equal(dt_shared_reference(&e.weights, e.x, ROWS, e.y), DT_OK);
  for (int i = 0; i < ROWS * H; i++) assert_true(e.y[i] == 0);
  e.weights.shared = e.experts[1];
  e.weights.shared_intermediate = I;
  e.weights.shared_gate = e.shared_gate;
  assert_int_equal(dt_shared_reference(&e.weights, e.x, ROWS, e.y), DT_OK);
  for (int row = 0; row < ROWS; row++) {
    double weight = 1 / (1 + exp(-row_dot(e.shared_gate, 0, H, e.x + row * H)));
    for (int h = 0; h < H; h++) assert_true(fabs(e.y[row * H + h] - weight * expected(&e, row, h, 0)) < 1e-10);
  }
}

static void test_arguments(void **state) {
  (void)state;
  static example e;
  double rate = 0, mean = 0;
  make(&e, 0);
  assert_int_equal(dt_expert_reference(&e.weights, EXPERTS, e.x, ROWS, e.y), DT_ERR_ARGUMENT);
  assert_int_equal(dt_expert_reference(&e.weights, -1, e.x, ROWS, e.y), DT_ERR_ARGUMENT);
  assert_int_equal(dt_expert_reference(&e.weights, 0, e.x, 0, e.y), DT_OK);
  /* Rows that no call can have: sizes of both signs, and one whose bytes would wrap round to few. */
  const int64_t rows[] = {-1, INT64_MIN, (int64_t)INT32_MAX + 1, INT64_MAX, (int64_t)1 << 61};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    assert_int_equal(dt_expert_reference(&e.weights, 0, e.x, rows[i], e.y), DT_ERR_ARGUMENT);
    assert_non_null(strstr(dt_error_detail(), "; allowed: 0 to 2147483647"));
    for (int shared = 0; shared <= 1; shared++) {
      dt_moe_weights weights = e.weights;
      if (!shared) weights.shared_intermediate = 0;
      assert_int_equal(dt_shared_reference(&weights, e.x, rows[i], e.y), DT_ERR_ARGUMENT);
      assert_ptr_equal(strstr(dt_error_detail(), "rows: "), dt_error_detail());
    }
  }
  assert_int_equal(dt_sgemm_rate(0, 64, 1, &rate, &mean), DT_ERR_ARGUMENT);
  assert_int_equal(dt_sgemm_rate(1, 64, 0, &rate, &mean), DT_ERR_ARGUMENT);
  assert_int_equal(dt_sgemm_rate(1, 63, 1, &rate, &mean), DT_ERR_ARGUMENT);
  assert_string_not_equal(dt_error_detail(), "");
}

static void test_rate_and_build(void **state) {
  (void)state;
  double rate = 0, mean = 0;
  assert_int_equal(dt_sgemm_rate(2, 512, 3, &rate, &mean), DT_OK);
  assert_true(mean > 1e8 && mean <= rate && rate < 1e14);
  dt_build build;
  dt_build_info(&build);
  assert_string_not_equal(build.blas_core, "");
  assert_true(build.cuda == 0 || build.cuda == 1);
  assert_true(dt_build_processors() >= 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_silu),      cmocka_unit_test(test_clamped_with_biases), cmocka_unit_test(test_shared),
      cmocka_unit_test(test_arguments), cmocka_unit_test(test_rate_and_build),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
