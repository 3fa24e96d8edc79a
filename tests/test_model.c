#include <draintile/model.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/random.h"

static json_t *load(const char *name) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", DT_TEST_DATA, name);
  json_error_t error;
  json_t *root = json_load_file(path, 0, &error);
  if (!root) fail_msg("%s: %s", path, error.text);
  return root;
}

static double number(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  if (!json_is_number(value)) fail_msg("%s: no number", key);
  return json_number_value(value);
}

static void assert_close(const json_t *expect, const char *key, double got, size_t at) {
  double want = number(expect, key);
  if (!(fabs(got - want) <= 1e-12 * fabs(want))) fail_msg("case %zu, %s: %.17g, expected %.17g", at, key, got, want);
}

static void vectors(void **state) {
  (void)state;
  json_t *root = load("model.json"), *cases = json_object_get(root, "cases");
  assert_true(json_array_size(cases) >= 20);
  size_t i;
  json_t *c;
  json_array_foreach(cases, i, c) {
    dt_burst_model model = {number(c, "t0_s"), number(c, "rate_bytes_per_s"), number(c, "capacity_bytes")};
    dt_burst_question question = {number(c, "burst_bytes"), number(c, "gap_s"),
                                  json_is_true(json_object_get(c, "aligned"))};
    dt_burst_prediction p;
    assert_int_equal(dt_burst_predict(&model, &question, &p), DT_OK);
    const json_t *expect = json_object_get(c, "expect");
    assert_close(expect, "t_issue_s", p.t_issue_s, i);
    assert_close(expect, "period_s", p.period_s, i);
    assert_close(expect, "recovery_gap_s", p.recovery_gap_s, i);
    assert_close(expect, "isolated_issue_s", p.isolated_issue_s, i);
    assert_close(expect, "completion_coupled_period_s", p.completion_coupled_period_s, i);
    assert_string_equal(dt_regime_name(p.regime), json_string_value(json_object_get(expect, "regime")));
    assert_int_equal(p.rate_ok, json_is_true(json_object_get(expect, "rate_ok")));
    assert_int_equal(p.capacity_ok, json_is_true(json_object_get(expect, "capacity_ok")));
  }
  json_decref(root);
}

static void sequence_vectors(void **state) {
  (void)state;
  json_t *root = load("sequence.json"), *cases = json_object_get(root, "cases");
  assert_true(json_array_size(cases) >= 5);
  size_t i, j;
  json_t *c, *b;
  json_array_foreach(cases, i, c) {
    json_t *list = json_object_get(c, "bursts"), *expect = json_object_get(c, "expect");
    size_t count = json_array_size(list);
    dt_burst bursts[64] = {{0}};
    double issue[64] = {0}, backlog[64] = {0};
    assert_in_range(count, 1, 64);
    json_array_foreach(list, j, b) bursts[j] =
        (dt_burst){number(b, "burst_bytes"), number(b, "t0_s"), number(b, "gap_s")};
    double rate = number(c, "rate_bytes_per_s");
    assert_int_equal(dt_burst_sequence(rate, number(c, "capacity_bytes"), bursts, count, issue, backlog), DT_OK);
    for (j = 0; j < count; j++) {
      const json_t *e = json_array_get(expect, j);
      assert_close(e, "t_issue_s", issue[j], i);
      assert_close(e, "backlog_before_bytes", backlog[j], i);
      assert_close(e, "backlog_after_bytes", fmax(0.0, backlog[j] + bursts[j].burst_bytes - rate * issue[j]), i);
    }
  }
  json_decref(root);
}

/* The periodic steady state of the recursion is the aligned law; with capacity to spare it is the published one. */
static void sequence_settles_on_the_law(void **state) {
  (void)state;
  enum { N = 400 };
  dt_random random = {7};
  for (int trial = 0; trial < 500; trial++) {
    dt_burst_model model = {1e-6 * dt_random_unit(&random), 1e11 + 9e11 * dt_random_unit(&random),
                            5e6 * dt_random_unit(&random)};
    dt_burst_question question = {1e4 + 1e7 * dt_random_unit(&random), 1e-5 * dt_random_unit(&random), 1};
    dt_burst bursts[N];
    double issue[N];
    for (int i = 0; i < N; i++) bursts[i] = (dt_burst){question.burst_bytes, model.t0_s, question.gap_s};
    assert_int_equal(dt_burst_sequence(model.rate_bytes_per_s, model.capacity_bytes, bursts, N, issue, NULL), DT_OK);
    dt_burst_prediction p;
    assert_int_equal(dt_burst_predict(&model, &question, &p), DT_OK);
    /* The first burst meets an empty queue. */
    assert_true(fabs(issue[0] - p.isolated_issue_s) <= 1e-12 * p.isolated_issue_s);
    /* Backlog grows by a fixed amount a burst until it is full; settled unless that amount is tiny. */
    double growth = question.burst_bytes - model.rate_bytes_per_s * (model.t0_s + question.gap_s);
    if (growth > 0.0 && growth * N < 2.0 * model.capacity_bytes) continue;
    assert_true(fabs(issue[N - 1] - p.t_issue_s) <= 1e-9 * p.t_issue_s);
  }
}

/* Figures of the published setting (148 producers of 32 KiB, 717 GB/s, 4.25 MiB, 0.76 us). */
static void published_figures(void **state) {
  (void)state;
  dt_burst_model model = {0.76e-6, 717e9, 4.25 * 1024 * 1024};
  dt_burst_question question = {4.625 * 1024 * 1024, 2e-6, 0};
  dt_burst_prediction p;
  assert_int_equal(dt_burst_predict(&model, &question, &p), DT_OK);
  assert_true(fabs(p.recovery_gap_s - 6.00e-6) < 0.01e-6);
  assert_true(fabs(p.period_s - 6.76e-6) < 0.01e-6);
  assert_int_equal(p.regime, DT_REGIME_DRAIN);
  assert_false(p.rate_ok);
  assert_true(p.capacity_ok); /* by 0.145 MiB */
  model.capacity_bytes *= 0.96;
  assert_int_equal(dt_burst_predict(&model, &question, &p), DT_OK);
  assert_false(p.capacity_ok);
}

/* Against a grid over the box: the answer and the interval must agree with every point of it. */
static void answers_over_the_box(void **state) {
  (void)state;
  dt_random random = {11};
  int seen[3] = {0, 0, 0};
  for (int trial = 0; trial < 3000; trial++) {
    dt_interval box[3];
    double scale[3] = {2e-6, 6e11, 5e6};
    for (int i = 0; i < 3; i++) {
      double value = scale[i] * (0.05 + dt_random_unit(&random));
      double width = 0.3 * dt_random_unit(&random);
      box[i] = (dt_interval){value, value * (1 - width), value * (1 + width)};
    }
    dt_burst_model_interval model = {box[0], box[1], box[2]};
    dt_burst_question question = {6e6 * dt_random_unit(&random), 1e-5 * dt_random_unit(&random), trial % 2};
    dt_answer answer;
    dt_interval issue;
    assert_int_equal(dt_burst_answer(&model, &question, &answer, &issue), DT_OK);
    assert_true(issue.low <= issue.value && issue.value <= issue.high);
    int safe = 0, unsafe = 0, touched_low = 0, touched_high = 0;
    for (int corner = 0; corner < 125; corner++) {
      int step[3] = {corner % 5, corner / 5 % 5, corner / 25};
      double at[3];
      for (int i = 0; i < 3; i++)
        at[i] = step[i] == 4 ? box[i].high : box[i].low + 0.25 * step[i] * (box[i].high - box[i].low);
      dt_burst_model point = {at[0], at[1], at[2]};
      dt_burst_prediction p;
      assert_int_equal(dt_burst_predict(&point, &question, &p), DT_OK);
      int ok = p.rate_ok && (!question.aligned || p.capacity_ok);
      safe += ok;
      unsafe += !ok;
      assert_true(issue.low <= p.t_issue_s && p.t_issue_s <= issue.high);
      touched_low += p.t_issue_s == issue.low;
      touched_high += p.t_issue_s == issue.high;
    }
    assert_true(touched_low && touched_high); /* no wider than it must be */
    assert_int_equal(answer, unsafe == 0 ? DT_ANSWER_SAFE : safe == 0 ? DT_ANSWER_UNSAFE : DT_ANSWER_UNDECIDED);
    seen[answer]++;
  }
  assert_true(seen[0] > 50 && seen[1] > 50 && seen[2] > 50);
  assert_string_equal(dt_answer_name(DT_ANSWER_UNDECIDED), "undecided");
}

/* A burst of hardly more than the capacity, where V/R and Q/R nearly cancel. */
static void intervals_hold_where_bursts_just_overflow(void **state) {
  (void)state;
  dt_random random = {13};
  for (int trial = 0; trial < 3000; trial++) {
    double rate = 1e6 + 1e11 * dt_random_unit(&random), width = 1e-3 * dt_random_unit(&random);
    double capacity = 1e3 + 1e8 * dt_random_unit(&random);
    dt_burst_model_interval model = {
        {0, 0, 0}, {rate, rate * (1 - width), rate * (1 + width)}, {capacity, capacity, capacity}};
    dt_burst_question question = {capacity * (1 + 4e-16 * (1 + trial % 4)), 10 * capacity / rate, 1};
    dt_answer answer;
    dt_interval issue;
    assert_int_equal(dt_burst_answer(&model, &question, &answer, &issue), DT_OK);
    assert_true(issue.low <= issue.value && issue.value <= issue.high);
    dt_burst_prediction p;
    assert_int_equal(dt_burst_predict(&(dt_burst_model){0, rate, capacity}, &question, &p), DT_OK);
    assert_true(p.t_issue_s == issue.value && p.t_issue_s == p.isolated_issue_s);
  }
}

static void assert_refused(dt_status status, const char *field) {
  assert_int_equal(status, DT_ERR_ARGUMENT);
  if (strncmp(dt_error_detail(), field, strlen(field)) != 0) fail_msg("%s: %s", field, dt_error_detail());
}

static void bad_values_name_the_field(void **state) {
  (void)state;
  static const double bad[] = {-1.0, NAN, INFINITY, -INFINITY};
  static const char *const names[] = {"t0_s", "rate_bytes_per_s", "capacity_bytes", "burst_bytes", "gap_s"};
  for (size_t b = 0; b < 4; b++) {
    for (int field = 0; field < 5; field++) {
      double v[5] = {1e-6, 1e9, 1e6, 1e5, 1e-6};
      v[field] = bad[b];
      dt_burst_model model = {v[0], v[1], v[2]};
      dt_burst_question question = {v[3], v[4], 1};
      dt_burst_prediction p;
      memset(&p, 0x55, sizeof p);
      dt_burst_prediction untouched = p;
      assert_refused(dt_burst_predict(&model, &question, &p), names[field]);
      assert_memory_equal(&p, &untouched, sizeof p);
      dt_burst_model_interval box = {{v[0], v[0], v[0]}, {v[1], v[1], v[1]}, {v[2], v[2], v[2]}};
      dt_answer answer;
      assert_refused(dt_burst_answer(&box, &question, &answer, NULL), names[field]);
    }
    dt_burst bursts[2] = {{1, 1, 1}, {1, 1, 1}};
    bursts[1].t0_s = bad[b];
    assert_refused(dt_burst_sequence(1e9, 1e6, bursts, 2, NULL, NULL), "bursts[1].t0_s");
    assert_refused(dt_burst_sequence(bad[b], 1e6, bursts, 1, NULL, NULL), "rate_bytes_per_s");
    assert_refused(dt_burst_sequence(1e9, bad[b], bursts, 1, NULL, NULL), "capacity_bytes");
  }
  dt_burst_model zero_rate = {1e-6, 0.0, 1e6};
  dt_burst_question question = {1e5, 1e-6, 0};
  dt_burst_prediction p;
  assert_refused(dt_burst_predict(&zero_rate, &question, &p), "rate_bytes_per_s");
  dt_burst_model_interval crossed = {{1e-6, 1e-6, 1e-6}, {1e9, 2e9, 3e9}, {1e6, 1e6, 1e6}};
  dt_answer answer;
  assert_refused(dt_burst_answer(&crossed, &question, &answer, NULL), "rate_bytes_per_s");
  crossed.rate_bytes_per_s = (dt_interval){1e9, 1e9, NAN};
  assert_refused(dt_burst_answer(&crossed, &question, &answer, NULL), "rate_bytes_per_s");
  dt_burst_model tiny = {1e-6, 1e-300, 1e6};
  dt_burst_question huge = {1e300, 1e-6, 0};
  assert_refused(dt_burst_predict(&tiny, &huge, &p), "period_s");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(vectors),
      cmocka_unit_test(sequence_vectors),
      cmocka_unit_test(sequence_settles_on_the_law),
      cmocka_unit_test(published_figures),
      cmocka_unit_test(answers_over_the_box),
      cmocka_unit_test(intervals_hold_where_bursts_just_overflow),
      cmocka_unit_test(bad_values_name_the_field),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
