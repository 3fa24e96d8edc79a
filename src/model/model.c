#include <draintile/model.h>

#include <math.h>
#include <stdio.h>

#include "core/error.h"

const char *dt_regime_name(dt_regime regime) {
  static const char *const names[] = {"floor", "drain", "capacity"};
  return (unsigned)regime < sizeof names / sizeof *names ? names[regime] : "unknown";
}

const char *dt_answer_name(dt_answer answer) {
  static const char *const names[] = {"safe", "unsafe", "undecided"};
  return (unsigned)answer < sizeof names / sizeof *names ? names[answer] : "unknown";
}

/* Written so that NaN fails. */
static dt_status check_at_least_zero(const char *field, double value) {
  if (value >= 0.0 && isfinite(value)) return DT_OK;
  return dt_fail(DT_ERR_ARGUMENT, "%s: %g; a finite number >= 0 is allowed", field, value);
}

static dt_status check_rate(const char *field, double value) {
  if (value > 0.0 && isfinite(value)) return DT_OK;
  return dt_fail(DT_ERR_ARGUMENT, "%s: %g; a finite number > 0 is allowed", field, value);
}

static dt_status check_model(const dt_burst_model *model) {
  dt_status status = check_at_least_zero("t0_s", model->t0_s);
  if (!status) status = check_rate("rate_bytes_per_s", model->rate_bytes_per_s);
  if (!status) status = check_at_least_zero("capacity_bytes", model->capacity_bytes);
  return status;
}

static dt_status check_question(const dt_burst_question *question) {
  dt_status status = check_at_least_zero("burst_bytes", question->burst_bytes);
  if (!status) status = check_at_least_zero("gap_s", question->gap_s);
  return status;
}

/* V/R and the like overflow for absurd but finite arguments. */
static dt_status check_result(const char *field, double value) {
  if (isfinite(value)) return DT_OK;
  return dt_fail(DT_ERR_ARGUMENT, "%s: not finite; burst_bytes, capacity_bytes and gap_s are too large for %s", field,
                 "rate_bytes_per_s and t0_s");
}

/* V/R - Q/R is written (V - Q)/R: where the two nearly cancel, the difference of rounded quotients would fall and rise
 * as R grows, and the ends of an interval would swap. */
static double issue_time(const dt_burst_model *model, const dt_burst_question *question) {
  double rate = model->rate_bytes_per_s, issue = fmax(model->t0_s, question->burst_bytes / rate - question->gap_s);
  return question->aligned ? fmax(issue, (question->burst_bytes - model->capacity_bytes) / rate) : issue;
}

static int rate_ok(const dt_burst_model *model, const dt_burst_question *question) {
  return question->burst_bytes <= model->rate_bytes_per_s * (model->t0_s + question->gap_s);
}

static int capacity_ok(const dt_burst_model *model, const dt_burst_question *question) {
  return fmax(0.0, question->burst_bytes - model->rate_bytes_per_s * model->t0_s) <= model->capacity_bytes;
}

dt_status dt_burst_predict(const dt_burst_model *model, const dt_burst_question *question,
                           dt_burst_prediction *prediction) {
  dt_status status = check_model(model);
  if (!status) status = check_question(question);
  if (status) return status;
  double t0 = model->t0_s, rate = model->rate_bytes_per_s, capacity = model->capacity_bytes;
  double burst = question->burst_bytes, gap = question->gap_s;

  dt_burst_prediction p;
  p.t_issue_s = issue_time(model, question);
  p.period_s = p.t_issue_s + gap;
  p.recovery_gap_s = fmax(0.0, burst / rate - t0);
  p.isolated_issue_s = fmax(t0, (burst - capacity) / rate);
  p.completion_coupled_period_s = burst / rate + gap;
  if (p.t_issue_s == t0) {
    p.regime = DT_REGIME_FLOOR;
  } else {
    p.regime = question->aligned && gap > capacity / rate ? DT_REGIME_CAPACITY : DT_REGIME_DRAIN;
  }
  p.rate_ok = rate_ok(model, question);
  p.capacity_ok = capacity_ok(model, question);

  status = check_result("period_s", p.period_s);
  if (!status) status = check_result("isolated_issue_s", p.isolated_issue_s);
  if (!status) status = check_result("completion_coupled_period_s", p.completion_coupled_period_s);
  if (status) return status;
  *prediction = p;
  return DT_OK;
}

static dt_status check_interval(const char *field, const dt_interval *interval) {
  if (interval->low <= interval->value && interval->value <= interval->high) return DT_OK;
  return dt_fail(DT_ERR_ARGUMENT, "%s: value %g, low %g, high %g; low <= value <= high is allowed", field,
                 interval->value, interval->low, interval->high);
}

/* The box's corners suffice: no stall means V <= R*(T0 + G) and, aligned, V - R*T0 <= Q; both can only become true as
 * R, T0 and Q grow. So the box is safe when its lowest corner is, unsafe when its highest corner is not. The issue time
 * max(T0, V/R - G[, (V - Q)/R]) grows with T0 and falls with R and Q (where V < Q the last term is below T0). */
dt_status dt_burst_answer(const dt_burst_model_interval *model, const dt_burst_question *question, dt_answer *answer,
                          dt_interval *t_issue_s) {
  const dt_interval *t0 = &model->t0_s, *rate = &model->rate_bytes_per_s, *capacity = &model->capacity_bytes;
  dt_burst_model middle = {t0->value, rate->value, capacity->value};
  dt_burst_model lowest = {t0->low, rate->low, capacity->low};
  dt_burst_model highest = {t0->high, rate->high, capacity->high};
  dt_burst_model fastest = {t0->low, rate->high, capacity->high};
  dt_burst_model slowest = {t0->high, rate->low, capacity->low};

  dt_status status = check_interval("t0_s", t0);
  if (!status) status = check_interval("rate_bytes_per_s", rate);
  if (!status) status = check_interval("capacity_bytes", capacity);
  if (!status) status = check_model(&lowest);
  if (!status) status = check_model(&highest);
  if (!status) status = check_question(question);
  if (status) return status;

  dt_interval issue = {issue_time(&middle, question), issue_time(&fastest, question), issue_time(&slowest, question)};
  status = check_result("t_issue_s", issue.high);
  if (status) return status;

  int lowest_ok = rate_ok(&lowest, question), highest_ok = rate_ok(&highest, question);
  if (question->aligned) {
    lowest_ok = lowest_ok && capacity_ok(&lowest, question);
    highest_ok = highest_ok && capacity_ok(&highest, question);
  }
  if (answer) *answer = lowest_ok ? DT_ANSWER_SAFE : highest_ok ? DT_ANSWER_UNDECIDED : DT_ANSWER_UNSAFE;
  if (t_issue_s) *t_issue_s = issue;
  return DT_OK;
}

static dt_status check_bursts(const dt_burst *bursts, size_t count) {
  char field[64];
  for (size_t i = 0; i < count; i++) {
    const dt_burst *b = &bursts[i];
    if (b->burst_bytes >= 0.0 && b->t0_s >= 0.0 && b->gap_s >= 0.0 && isfinite(b->burst_bytes) && isfinite(b->t0_s) &&
        isfinite(b->gap_s))
      continue;
    const char *name = "gap_s";
    double value = b->gap_s;
    if (!(b->burst_bytes >= 0.0 && isfinite(b->burst_bytes))) {
      name = "burst_bytes";
      value = b->burst_bytes;
    } else if (!(b->t0_s >= 0.0 && isfinite(b->t0_s))) {
      name = "t0_s";
      value = b->t0_s;
    }
    (void)snprintf(field, sizeof field, "bursts[%zu].%s", i, name);
    return check_at_least_zero(field, value);
  }
  return DT_OK;
}

dt_status dt_burst_sequence(double rate_bytes_per_s, double capacity_bytes, const dt_burst *bursts, size_t count,
                            double *issue_s, double *backlog_bytes) {
  dt_status status = check_rate("rate_bytes_per_s", rate_bytes_per_s);
  if (!status) status = check_at_least_zero("capacity_bytes", capacity_bytes);
  if (!status) status = check_bursts(bursts, count);
  if (status) return status;
  /* First pass without stores: outputs are written on success only. */
  for (int store = 0; store <= 1; store++) {
    double backlog = 0.0;
    for (size_t i = 0; i < count; i++) {
      const dt_burst *b = &bursts[i];
      double issue = fmax(b->t0_s, (backlog + b->burst_bytes - capacity_bytes) / rate_bytes_per_s);
      if (!isfinite(issue)) {
        return dt_fail(DT_ERR_ARGUMENT, "bursts[%zu].burst_bytes: %g; too large for rate_bytes_per_s %g", i,
                       b->burst_bytes, rate_bytes_per_s);
      }
      if (store && issue_s) issue_s[i] = issue;
      if (store && backlog_bytes) backlog_bytes[i] = backlog;
      double after = fmax(0.0, backlog + b->burst_bytes - rate_bytes_per_s * issue);
      backlog = fmax(0.0, after - rate_bytes_per_s * b->gap_s);
    }
  }
  return DT_OK;
}
