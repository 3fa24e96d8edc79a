/* Routers against their definitions in float64, and what makes them safe: no dependence on the batch, no NaN. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <draintile/checkpoint.h>

#include "core/random.h"

enum { HIDDEN = 48, MAX_EXPERTS = 64, TOKENS = 150 };

typedef struct fixture {
  float weight[MAX_EXPERTS * HIDDEN], bias[MAX_EXPERTS], correction[MAX_EXPERTS], hidden[TOKENS * HIDDEN];
  int32_t ids[TOKENS * MAX_EXPERTS];
  float weights[TOKENS * MAX_EXPERTS];
} fixture;

static fixture f;

static void fill(uint64_t seed) {
  dt_random random = {seed};
  for (int i = 0; i < MAX_EXPERTS * HIDDEN; i++) f.weight[i] = (float)dt_random_normal(&random) * 0.3f;
  for (int i = 0; i < MAX_EXPERTS; i++) f.bias[i] = (float)dt_random_normal(&random);
  for (int i = 0; i < MAX_EXPERTS; i++) f.correction[i] = (float)dt_random_normal(&random) * 0.5f;
  for (int i = 0; i < TOKENS * HIDDEN; i++) f.hidden[i] = (float)dt_random_normal(&random);
}

/* The definition, one token: repeated maximum over float64 scores. Returns the gap that decides the closest id. */
static double define(const dt_router *r, const float *x, int32_t *ids, double *weights) {
  double score[MAX_EXPERTS], choice[MAX_EXPERTS], sum = 0.0, most = -INFINITY, gap = INFINITY;
  for (int e = 0; e < r->experts; e++) {
    double logit = r->bias ? (double)r->bias[e] : 0.0;
    for (int j = 0; j < HIDDEN; j++) logit += (double)x[j] * (double)r->weight[e * HIDDEN + j];
    score[e] = logit;
    most = fmax(most, logit);
  }
  if (r->score == DT_ROUTER_SOFTMAX) {
    for (int e = 0; e < r->experts; e++) sum += exp(score[e] - most);
    for (int e = 0; e < r->experts; e++) score[e] = exp(score[e] - most) / sum;
  }
  if (r->score == DT_ROUTER_SIGMOID_GROUPS) {
    for (int e = 0; e < r->experts; e++) score[e] = 1.0 / (1.0 + exp(-score[e]));
  }
  for (int e = 0; e < r->experts; e++) choice[e] = score[e] + (r->correction ? (double)r->correction[e] : 0.0);
  if (r->score == DT_ROUTER_SIGMOID_GROUPS) {
    int width = r->experts / r->groups;
    double group[MAX_EXPERTS];
    for (int g = 0; g < r->groups; g++) {
      group[g] = -INFINITY; /* best sum of any two */
      for (int a = 0; a < width; a++) {
        for (int b = 0; b < a; b++) group[g] = fmax(group[g], choice[g * width + a] + choice[g * width + b]);
      }
    }
    for (int g = 0; g < r->groups; g++) {
      int better = 0;
      for (int h = 0; h < r->groups; h++) {
        better += group[h] > group[g];
        if (h != g) gap = fmin(gap, fabs(group[h] - group[g]));
      }
      for (int a = 0; a < width && better >= r->group_top_k; a++) choice[g * width + a] = -INFINITY;
    }
  }
  for (int i = 0; i < r->top_k; i++) {
    int best = 0;
    for (int e = 1; e < r->experts; e++) {
      if (choice[e] > choice[best]) best = e;
    }
    ids[i] = best;
    weights[i] = score[best];
    double taken = choice[best];
    choice[best] = -INFINITY;
    for (int e = 0; e < r->experts; e++) gap = fmin(gap, taken - choice[e]);
  }
  sum = 0.0;
  for (int i = 0; i < r->top_k; i++) {
    if (r->score == DT_ROUTER_TOPK_SOFTMAX) weights[i] = exp(weights[i] - most);
    sum += weights[i];
  }
  for (int i = 0; i < r->top_k; i++) {
    if (r->normalize || r->score == DT_ROUTER_TOPK_SOFTMAX) weights[i] /= sum;
    weights[i] *= (double)r->scale;
  }
  return gap;
}

static void ids_and_weights_follow_the_definitions(void **state) {
  (void)state;
  const dt_router routers[] = {
      {.score = DT_ROUTER_SOFTMAX, .experts = 8, .top_k = 2, .normalize = 1, .scale = 1.0f},
      {.score = DT_ROUTER_SOFTMAX, .experts = 60, .top_k = 4, .scale = 1.0f},
      {.score = DT_ROUTER_SOFTMAX, .experts = 5, .top_k = 5, .normalize = 1, .scale = 1.0f},
      {.score = DT_ROUTER_SOFTMAX, .experts = 1, .top_k = 1, .scale = 1.0f},
      {.score = DT_ROUTER_TOPK_SOFTMAX, .experts = 32, .top_k = 4, .bias = f.bias, .scale = 1.0f},
      {.score = DT_ROUTER_SIGMOID_GROUPS,
       .experts = 64,
       .top_k = 8,
       .normalize = 1,
       .groups = 8,
       .group_top_k = 4,
       .scale = 2.5f,
       .correction = f.correction},
      {.score = DT_ROUTER_SIGMOID_GROUPS,
       .experts = 16,
       .top_k = 4,
       .groups = 4,
       .group_top_k = 1,
       .scale = 1.0f,
       .correction = f.correction},
      {.score = DT_ROUTER_SIGMOID_GROUPS, .experts = 16, .top_k = 6, .groups = 1, .group_top_k = 1, .scale = 2.0f},
  };
  int decided = 0;
  for (size_t n = 0; n < sizeof routers / sizeof *routers; n++) {
    dt_router r = routers[n];
    r.hidden = HIDDEN;
    r.weight = f.weight;
    fill(100 + n);
    assert_int_equal(dt_router_run(&r, DT_DTYPE_F32, f.hidden, TOKENS, f.ids, f.weights), DT_OK);
    for (int t = 0; t < TOKENS; t++) {
      int32_t ids[MAX_EXPERTS];
      double weights[MAX_EXPERTS];
      if (define(&r, f.hidden + t * HIDDEN, ids, weights) < 1e-6) continue; /* rounding decides */
      decided++;
      for (int i = 0; i < r.top_k; i++) {
        assert_int_equal(f.ids[t * r.top_k + i], ids[i]);
        assert_true(fabs((double)f.weights[t * r.top_k + i] - weights[i]) <= 3e-6 * weights[i]);
      }
    }
  }
  assert_true(decided > 7 * TOKENS);
}

static dt_router small_router(void) {
  return (dt_router){.score = DT_ROUTER_SOFTMAX,
                     .hidden = HIDDEN,
                     .experts = 12,
                     .top_k = 3,
                     .normalize = 1,
                     .scale = 1.0f,
                     .weight = f.weight};
}

/* Splitting tokens over ranks must not change a bit. */
static void a_token_does_not_see_its_batch(void **state) {
  (void)state;
  fill(1);
  dt_router r = small_router();
  assert_int_equal(dt_router_run(&r, DT_DTYPE_F32, f.hidden, TOKENS, f.ids, f.weights), DT_OK);
  for (int first = 0; first < TOKENS; first += 7) {
    for (int count = 1; count <= TOKENS - first; count += 13) {
      static int32_t ids[TOKENS * 3];
      static float weights[TOKENS * 3];
      assert_int_equal(dt_router_run(&r, DT_DTYPE_F32, f.hidden + first * HIDDEN, count, ids, weights), DT_OK);
      assert_memory_equal(ids, f.ids + first * 3, (size_t)count * 3 * sizeof *ids);
      assert_memory_equal(weights, f.weights + first * 3, (size_t)count * 3 * sizeof *weights);
    }
  }
}

static void ties_go_to_the_lower_expert(void **state) {
  (void)state;
  fill(2);
  dt_router r = small_router();
  memset(f.weight, 0, sizeof f.weight);
  assert_int_equal(dt_router_run(&r, DT_DTYPE_F32, f.hidden, 5, f.ids, f.weights), DT_OK);
  for (int i = 0; i < 15; i++) {
    assert_int_equal(f.ids[i], i % 3);
    assert_true(fabsf(f.weights[i] - 1.0f / 3.0f) < 1e-6f);
  }
  r.score = DT_ROUTER_SIGMOID_GROUPS;
  r.groups = 4;
  r.group_top_k = 2;
  assert_int_equal(dt_router_run(&r, DT_DTYPE_F32, f.hidden, 5, f.ids, f.weights), DT_OK);
  for (int i = 0; i < 15; i++) assert_int_equal(f.ids[i], i % 3);
}

/* Scores that are all 0 have a sum of 1e-20, not of 0: weights of 0, no NaN. */
static void scores_of_nothing(void **state) {
  (void)state;
  fill(3);
  dt_router r = small_router();
  r.score = DT_ROUTER_SIGMOID_GROUPS;
  r.groups = r.group_top_k = 1;
  for (int i = 0; i < 12 * HIDDEN; i++) f.weight[i] = -1e3f;
  for (int i = 0; i < HIDDEN; i++) f.hidden[i] = 1.0f;
  assert_int_equal(dt_router_run(&r, DT_DTYPE_F32, f.hidden, 1, f.ids, f.weights), DT_OK);
  for (int i = 0; i < 3; i++) assert_true(f.ids[i] == i && f.weights[i] == 0.0f);
}

static void sixteen_bit_rows_route_like_their_float32_values(void **state) {
  (void)state;
  fill(3);
  dt_router r = small_router();
  static const dt_dtype dtypes[] = {DT_DTYPE_BF16, DT_DTYPE_F16};
  for (int d = 0; d < 2; d++) {
    static uint16_t codes[TOKENS * HIDDEN];
    static float wide[TOKENS * HIDDEN];
    static int32_t ids[TOKENS * 3];
    static float weights[TOKENS * 3];
    dt_random random = {4};
    for (int i = 0; i < TOKENS * HIDDEN; i++) {
      codes[i] =
          (uint16_t)(dt_random_below(&random, 2) << 15 | ((d ? 0x3400u : 0x3f00u) + dt_random_below(&random, 512)));
    }
    dt_matrix m = {
        .data = codes, .dtype = dtypes[d], .rows = TOKENS, .cols = HIDDEN, .row_stride = HIDDEN, .col_stride = 1};
    dt_matrix_widen(&m, 0, TOKENS, wide);
    assert_int_equal(dt_router_run(&r, DT_DTYPE_F32, wide, TOKENS, ids, weights), DT_OK);
    assert_int_equal(dt_router_run(&r, dtypes[d], codes, TOKENS, f.ids, f.weights), DT_OK);
    assert_memory_equal(ids, f.ids, sizeof ids);
    assert_memory_equal(weights, f.weights, sizeof weights);
  }
}

static void bad_values_name_their_token(void **state) {
  (void)state;
  dt_router r = small_router();
  static const float bad[] = {NAN, INFINITY, -INFINITY};
  for (int i = 0; i < 3; i++) {
    fill(5);
    f.hidden[137 * HIDDEN + 47] = bad[i];
    f.hidden[140 * HIDDEN] = NAN;
    assert_int_equal(dt_router_run(&r, DT_DTYPE_F32, f.hidden, TOKENS, f.ids, f.weights), DT_ERR_INPUT);
    assert_non_null(strstr(dt_error_detail(), "hidden_states: token 137 holds"));
  }
  fill(5);
  uint16_t rows[2 * HIDDEN] = {0};
  rows[HIDDEN + 3] = 0x7fc0;
  assert_int_equal(dt_router_run(&r, DT_DTYPE_BF16, rows, 2, f.ids, f.weights), DT_ERR_INPUT);
  assert_non_null(strstr(dt_error_detail(), "hidden_states: token 1 holds"));
  fill(5); /* finite rows whose logits overflow */
  for (int j = 0; j < HIDDEN; j++) f.hidden[2 * HIDDEN + j] = copysignf(3e38f, f.weight[4 * HIDDEN + j]);
  assert_int_equal(dt_router_run(&r, DT_DTYPE_F32, f.hidden, TOKENS, f.ids, f.weights), DT_ERR_INPUT);
  assert_non_null(strstr(dt_error_detail(), "logit of token 2"));
  fill(5); /* large logits are no reason for a NaN */
  for (int j = 0; j < HIDDEN; j++) f.hidden[j] *= 1e4f;
  assert_int_equal(dt_router_run(&r, DT_DTYPE_F32, f.hidden, 1, f.ids, f.weights), DT_OK);
  for (int i = 0; i < 3; i++) assert_true(f.weights[i] >= 0.0f && f.weights[i] <= 1.0f);
}

static void bad_requests_are_refused(void **state) {
  (void)state;
  fill(6);
  dt_router r = small_router();
  assert_int_equal(dt_router_run(&r, DT_DTYPE_F32, NULL, 0, NULL, NULL), DT_OK);
  assert_int_equal(dt_router_run(&r, DT_DTYPE_I64, f.hidden, 1, f.ids, f.weights), DT_ERR_ARGUMENT);
  r.top_k = 13;
  assert_int_equal(dt_router_run(&r, DT_DTYPE_F32, f.hidden, 1, f.ids, f.weights), DT_ERR_ARGUMENT);
  assert_non_null(strstr(dt_error_detail(), "13"));
  r = small_router();
  r.score = DT_ROUTER_SIGMOID_GROUPS;
  r.groups = 5;
  r.group_top_k = 1;
  assert_int_equal(dt_router_run(&r, DT_DTYPE_F32, f.hidden, 1, f.ids, f.weights), DT_ERR_ARGUMENT);
  r.groups = 4;
  r.group_top_k = 5;
  assert_int_equal(dt_router_run(&r, DT_DTYPE_F32, f.hidden, 1, f.ids, f.weights), DT_ERR_ARGUMENT);
  r.group_top_k = 1; /* of 3 experts */
  r.top_k = 4;
  assert_int_equal(dt_router_run(&r, DT_DTYPE_F32, f.hidden, 1, f.ids, f.weights), DT_ERR_ARGUMENT);
  assert_non_null(strstr(dt_error_detail(), "top_k: 4; allowed are 1 to 3"));
  r.top_k = 1;
  r.groups = 12; /* the two best of one expert */
  assert_int_equal(dt_router_run(&r, DT_DTYPE_F32, f.hidden, 1, f.ids, f.weights), DT_ERR_ARGUMENT);
  assert_non_null(strstr(dt_error_detail(), "2 or more each"));
  r = small_router();
  const dt_router good = r;
#define REFUSE(field, value, detail)                                                                                   \
  (r = good, r.field = (value),                                                                                        \
   assert_int_equal(dt_router_run(&r, DT_DTYPE_F32, f.hidden, 1, f.ids, f.weights), DT_ERR_ARGUMENT),                  \
   assert_non_null(strstr(dt_error_detail(), detail)))
  REFUSE(score, (dt_router_score)3, "score: 3; allowed are 0 to 2");
  REFUSE(weight, NULL, ", missing; allowed");
  REFUSE(hidden, 0, "12 experts of 0 values; allowed are 1 to");
  REFUSE(hidden, INT64_MAX, "12 experts of 9223372036854775807 values");
  REFUSE(experts, 0, "weight: 0 experts");
#undef REFUSE
  assert_int_equal(dt_router_run(&good, DT_DTYPE_F32, f.hidden, -1, f.ids, f.weights), DT_ERR_ARGUMENT);
  assert_int_equal(dt_router_run(&good, DT_DTYPE_F32, NULL, 1, f.ids, f.weights), DT_ERR_ARGUMENT);
  assert_int_equal(dt_router_run(&good, DT_DTYPE_F32, f.hidden, 1, NULL, f.weights), DT_ERR_ARGUMENT);
  r = good;
  r.score = DT_ROUTER_SIGMOID_GROUPS;
  r.groups = 4;
  r.group_top_k = 2;
  r.correction = f.correction;
  f.correction[3] = NAN;
  assert_int_equal(dt_router_run(&r, DT_DTYPE_F32, f.hidden, 1, f.ids, f.weights), DT_ERR_INPUT);
  assert_non_null(strstr(dt_error_detail(), "expert 3"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ids_and_weights_follow_the_definitions),
      cmocka_unit_test(a_token_does_not_see_its_batch),
      cmocka_unit_test(ties_go_to_the_lower_expert),
      cmocka_unit_test(scores_of_nothing),
      cmocka_unit_test(sixteen_bit_rows_route_like_their_float32_values),
      cmocka_unit_test(bad_values_name_their_token),
      cmocka_unit_test(bad_requests_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
