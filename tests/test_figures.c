/* Figures of the command that decide whether a check passed: errors of tokens, the worst of several, medians and
 * quartiles. What is not a number never passes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <math.h>

#include <cmocka.h>

#include "../tools/draintile/figures.c"

static void test_median(void **state) {
  (void)state;
  const double values[] = {5, 1, 9, 3};
  assert_true(figures_median(values, 1) == 5);
  assert_true(figures_median(values, 3) == 5);
  assert_true(figures_median(values, 4) == 4);
  assert_true(isnan(figures_median(values, 0)));
  double many[] = {8, 1, 7, 2, 6, 3, 5, 4}, low, median, high;
  figures_quartiles(many, 8, &low, &median, &high);
  assert_true(low == 2 && median == 4.5 && high == 7);
}

static void test_raise(void **state) {
  (void)state;
  const double infinite = INFINITY;
  double worst = 0;
  figures_raise(&worst, 2e-3);
  assert_true(worst == 2e-3);
  figures_raise(&worst, 1e-3);
  assert_true(worst == 2e-3);
  figures_raise(&worst, infinite);
  assert_true(worst == infinite);
  figures_raise(&worst, NAN);
  figures_raise(&worst, 1e-3);
  assert_true(isnan(worst));
}

/* sqrt(3^2 + 4^2)/sqrt(6^2 + 8^2); of nothing but zeros only zeros are right; values below the type's normal ones count
 * as if they were these. */
static void test_token_error(void **state) {
  (void)state;
  const double reference[] = {6, 8}, zero[] = {0, 0}, tiny[] = {0x1p-20, 0}, y[] = {9, 12}, nan[] = {6, NAN};
  assert_true(fabs(figures_token_error(DT_DTYPE_BF16, y, reference, 2) - 0.5) < 1e-15);
  assert_true(figures_token_error(DT_DTYPE_BF16, reference, reference, 2) == 0);
  assert_true(figures_token_error(DT_DTYPE_F32, zero, zero, 2) == 0);
  assert_true(isinf(figures_token_error(DT_DTYPE_F32, tiny, zero, 2)));
  assert_true(isinf(figures_token_error(DT_DTYPE_BF16, nan, reference, 2)));
  assert_true(isinf(figures_token_error(DT_DTYPE_BF16, nan, zero, 2)));
  const double twice[] = {0x1p-19, 0};
  assert_true(figures_token_error(DT_DTYPE_BF16, twice, tiny, 2) == 1);
  assert_true(fabs(figures_token_error(DT_DTYPE_F16, twice, tiny, 2) - 0x1p-6 / sqrt(2)) < 1e-15);
}

/* The first token counts whatever its error is; the worst one's number stays. */
static void test_verdict(void **state) {
  (void)state;
  figures_verdict verdict = {.bit_equal = 1, .max_relative_error = 0, .worst_token = -1};
  figures_verdict_add(&verdict, 0, 7);
  assert_true(verdict.worst_token == 7 && verdict.max_relative_error == 0);
  figures_verdict_add(&verdict, 1e-3, 8);
  figures_verdict_add(&verdict, 1e-4, 9);
  assert_true(verdict.worst_token == 8 && verdict.max_relative_error == 1e-3);
  const figures_verdict none = {.bit_equal = 1, .max_relative_error = 5, .worst_token = -1};
  figures_verdict_merge(&verdict, &none);
  assert_true(verdict.bit_equal && verdict.worst_token == 8);
  const figures_verdict worse = {.bit_equal = 0, .max_relative_error = INFINITY, .worst_token = 3};
  figures_verdict_merge(&verdict, &worse);
  assert_true(!verdict.bit_equal && verdict.worst_token == 3 && isinf(verdict.max_relative_error));
}

static void test_tolerance(void **state) {
  (void)state;
  assert_true(figures_tolerance(DT_DTYPE_F32) == 1e-5);
  assert_true(figures_tolerance(DT_DTYPE_F16) == 1e-3);
  assert_true(figures_tolerance(DT_DTYPE_BF16) == 8e-3);
}

/* A layer faster than its computation alone, or slower than serial, shows as it is: only the visible part of the
 * communication has a floor. */
static void test_overlap(void **state) {
  (void)state;
  const figures_overlap fast = figures_overlap_of(8, 10, 5, 16), slow = figures_overlap_of(20, 10, 5, 16);
  assert_true(fast.hidden_ratio == 1 && fast.efficiency == 7.0 / 5 && fast.speedup_over_serial == 2);
  assert_true(slow.hidden_ratio == -1 && slow.efficiency == -1 && slow.speedup_over_serial == 0.8);
  const figures_overlap most = figures_overlap_of(12, 4, 10, 15);
  assert_true(fabs(most.hidden_ratio - 0.2) < 1e-15 && most.efficiency == 0.5);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_median),      cmocka_unit_test(test_raise),
                                     cmocka_unit_test(test_token_error), cmocka_unit_test(test_verdict),
                                     cmocka_unit_test(test_tolerance),   cmocka_unit_test(test_overlap)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
