/* From fits to constants and tables of a platform. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calibration.h"
#include "core/error.h"
#include "core/statistics.h"

static const char rate_method[] = "median of V/(T+G), free-running bursts that stall; bootstrap over rounds, 95 %";
static const char floor_method[] = "median T, free-running, G at least 1.1 V/R; bootstrap over rounds, 95 %";
static const char capacity_method[] =
    "median of V - R*T, isolated bursts that stall, T mean over producers; bootstrap over rounds, 95 %";
static const char usual_method[] =
    "median of V - R*T, isolated bursts that stall, T mean over producers, rounds in the machine's usual state; "
    "bootstrap over rounds, 95 %";
static const char other_method[] =
    "median of V - R*T, isolated bursts that stall, T mean over producers, rounds in the machine's other state; "
    "bootstrap over rounds, 95 %";

static dt_status add_points(const dt_calibration_set *set, const char *name, const char *method,
                            const dt_fit_points *points, dt_platform *platform) {
  if (!points->count) return DT_OK;
  dt_platform_point rows[DT_FIT_POINTS];
  memset(rows, 0, sizeof rows);
  for (size_t i = 0; i < points->count; i++) {
    const dt_fit_point *p = &points->point[i];
    rows[i].at[0] = p->producers;
    rows[i].at[1] = p->producer_bytes;
    rows[i].interval = p->interval;
    rows[i].n = p->n;
  }
  dt_platform_table table = {.name = name,
                             .pattern = dt_probe_pattern_name(set->pattern),
                             .operation = dt_probe_operation_name(set->operation),
                             .alignment = "",
                             .method = method,
                             .argument_count = 2,
                             .arguments = {"producers", "producer_bytes"},
                             .points = rows,
                             .point_count = points->count};
  return dt_platform_add_table(platform, &table);
}

static const char *method_of_capacity(const dt_fit *fit) {
  return fit->other_capacities.count ? usual_method : capacity_method;
}

/* How often the machine was in its other state, 95 % by Wilson's score interval: rounds lie further apart than a state
 * lasts, so that they are taken for independent. */
static dt_status add_other_state(const dt_calibration_set *set, dt_platform *platform) {
  const dt_fit *fit = &set->fit;
  if (!fit->other_capacities.count) return DT_OK;
  double n = (double)(fit->state_rounds[0] + fit->state_rounds[1] + fit->state_rounds[2]);
  double share = (double)fit->state_rounds[1] / n, z = 1.96;
  double middle = (share + z * z / (2.0 * n)) / (1.0 + z * z / n);
  double half = z / (1.0 + z * z / n) * sqrt(share * (1.0 - share) / n + z * z / (4.0 * n * n));
  dt_platform_point point = {.interval = {share, fmin(share, middle - half), fmax(share, middle + half)},
                             .n = (int64_t)n};
  dt_platform_table table = {.name = "other_state_share_ratio",
                             .pattern = dt_probe_pattern_name(set->pattern),
                             .operation = dt_probe_operation_name(set->operation),
                             .alignment = "",
                             .method = "rounds whose isolated bursts fell into a second group, over all; Wilson, 95 %",
                             .points = &point,
                             .point_count = 1};
  dt_status status = dt_platform_add_table(platform, &table);
  return status ? status : add_points(set, "other_capacity_bytes", other_method, &fit->other_capacities, platform);
}

static dt_status set_constant(dt_platform *platform, const char *name, dt_interval interval, int64_t n,
                              const char *method) {
  dt_platform_constant constant = {.name = name, .interval = interval, .n = n, .method = method};
  return dt_platform_set_constant(platform, &constant);
}

static const dt_fit_point *last_point(const dt_fit_points *points) {
  return points->count ? &points->point[points->count - 1] : NULL;
}

/* The main set also fixes the constants of those names: all producers, the base burst. */
static dt_status add_constants(const dt_calibration_set *set, dt_platform *platform) {
  const dt_fit *fit = &set->fit;
  dt_status status = set_constant(platform, "rate_bytes_per_s", fit->rate_bytes_per_s, fit->rate_n, rate_method);
  const dt_fit_point *capacity = last_point(&fit->capacities);
  if (!status && capacity)
    status = set_constant(platform, "capacity_bytes", capacity->interval, capacity->n, method_of_capacity(fit));
  /* The same for the simulator, by the names it looks for. */
  if (!status) status = set_constant(platform, "sim_link_bytes_per_s", fit->rate_bytes_per_s, fit->rate_n, rate_method);
  if (!status && capacity)
    status =
        set_constant(platform, "sim_link_capacity_bytes", capacity->interval, capacity->n, method_of_capacity(fit));
  for (size_t i = 0; i < fit->floors.count && !status; i++) {
    const dt_fit_point *p = &fit->floors.point[i];
    if (p->producers == set->design.producers && p->producer_bytes == (double)set->design.producer_bytes)
      status = set_constant(platform, "t0_s", p->interval, p->n, floor_method);
  }
  return status;
}

/* Measured issue times of one alignment, a point a setting: its samples are the rounds. */
static dt_status add_issue_table(const dt_calibration_set *set, int32_t rounds, int32_t alignment,
                                 dt_platform *platform) {
  size_t count = set->experiments.count, points = 0;
  dt_platform_point *rows = calloc(count + 1, sizeof *rows);
  double *issue = malloc((count + 1) * (size_t)rounds * sizeof *issue), *gaps = malloc((size_t)rounds * sizeof *gaps);
  dt_status status = rows && issue && gaps ? DT_OK : dt_fail(DT_ERR_MEMORY, "issue times: %zu settings", count);
  for (size_t i = 0; i < count && !status; i++) {
    const dt_probe_setting *s = &set->experiments.list[i].setting;
    if (dt_design_alignment(s) != alignment) continue;
    double *samples = issue + points * (size_t)rounds;
    size_t n = 0;
    double drain_s = (double)s->producers * (double)s->producer_bytes / set->design.bytes_per_s;
    for (int32_t r = 0; r < rounds; r++) {
      const dt_probe_result *result = &set->results[(size_t)r * count + i];
      if (!result->bursts || (alignment == DT_FIT_ALIGNED && result->start_spread_s > 0.1 * drain_s)) continue;
      samples[n] = result->issue_s, gaps[n] = result->gap_s;
      n++;
    }
    if (!n || (alignment == DT_FIT_ALIGNED && 2 * n < (size_t)rounds)) continue; /* mostly late: chance picked these */
    dt_platform_point *row = &rows[points++];
    row->at[0] = s->producers, row->at[1] = (double)s->producer_bytes, row->at[2] = dt_median(gaps, n);
    row->interval =
        (dt_interval){dt_median(samples, n), dt_quantile(samples, n, 0.025), dt_quantile(samples, n, 0.975)};
    row->n = (int64_t)n;
    row->samples = samples, row->sample_count = n;
  }
  if (!status && points) {
    dt_platform_table table = {.name = "issue_s",
                               .pattern = dt_probe_pattern_name(set->pattern),
                               .operation = dt_probe_operation_name(set->operation),
                               .alignment = dt_probe_alignment_name(alignment),
                               .method = "mean over producers and bursts of a run; the median run and the middle 95 %",
                               .argument_count = 3,
                               .arguments = {"producers", "producer_bytes", "gap_s"},
                               .points = rows,
                               .point_count = points};
    status = dt_platform_add_table(platform, &table);
  }
  free(rows), free(issue), free(gaps);
  return status;
}

/* R both ways over R one way, by rounds of the same setting. */
static dt_status add_both_ways(const dt_calibration *c, dt_platform *platform) {
  const dt_calibration_set *one = NULL, *both = NULL;
  for (size_t s = 0; s < c->set_count; s++) {
    if (c->sets[s].pattern == DT_PROBE_ONE_WAY && !one) one = &c->sets[s];
    if (c->sets[s].pattern == DT_PROBE_BOTH_WAYS && !both) both = &c->sets[s];
  }
  if (!one || !both) return DT_OK;
  double ratios[DT_CALIBRATION_ROUNDS];
  size_t n = 0;
  for (size_t i = 0; i < both->experiments.count && !n; i++) { /* the first setting without a gap in both sets */
    const dt_probe_setting *s = &both->experiments.list[i].setting;
    if (s->alignment != DT_FIT_FREE || s->gap_s > 0.0 || s->producers != both->design.producers) continue;
    for (size_t j = 0; j < one->experiments.count && !n; j++) {
      const dt_probe_setting *t = &one->experiments.list[j].setting;
      if (t->alignment != DT_FIT_FREE || t->gap_s > 0.0 || t->producers != s->producers ||
          t->producer_bytes != s->producer_bytes)
        continue;
      for (int32_t r = 0; r < c->rounds && n < DT_CALIBRATION_ROUNDS; r++) {
        double way = one->results[(size_t)r * one->experiments.count + j].bytes_per_s;
        double ways = both->results[(size_t)r * both->experiments.count + i].bytes_per_s;
        if (way > 0.0 && ways > 0.0) ratios[n++] = ways / way;
      }
    }
  }
  if (!n) return DT_OK;
  dt_platform_constant constant = {
      .name = "both_ways_over_one_way_ratio",
      .interval = {dt_median(ratios, n), dt_quantile(ratios, n, 0.025), dt_quantile(ratios, n, 0.975)},
      .n = (int64_t)n,
      .method = "V/(T+G) each way over one way, no gap, all producers; the median round and the middle 95 %",
      .samples = ratios,
      .sample_count = n};
  return dt_platform_set_constant(platform, &constant);
}

/* The same V and total G with the gap split in two: the law says that the sum of the two issue times is the one. */
static dt_status add_split(const dt_calibration_set *set, int32_t rounds, dt_platform *platform) {
  if (set->design.producers == 1) return DT_OK; /* alone, the capacity limits one of the two and not the other */
  size_t count = set->experiments.count;
  const dt_probe_setting *whole = NULL, *half = NULL;
  size_t at_whole = 0, at_half = 0;
  for (size_t i = 0; i < count; i++) {
    const dt_probe_setting *s = &set->experiments.list[i].setting;
    if (s->alignment != DT_FIT_FREE || s->producers != set->design.producers) continue;
    for (size_t j = 0; j < count; j++) {
      const dt_probe_setting *t = &set->experiments.list[j].setting;
      if (t->alignment == DT_FIT_FREE && t->producers == s->producers && s->gap_s > 0.0 &&
          2 * t->producer_bytes == s->producer_bytes && fabs(2.0 * t->gap_s - s->gap_s) < 1e-3 * s->gap_s &&
          s->gap_s * set->design.bytes_per_s < 0.9 * s->producers * (double)s->producer_bytes)
        whole = s, half = t, at_whole = i, at_half = j;
    }
  }
  if (!whole || !half) return DT_OK;
  double ratios[DT_CALIBRATION_ROUNDS];
  size_t n = 0;
  for (int32_t r = 0; r < rounds && n < DT_CALIBRATION_ROUNDS; r++) {
    const dt_probe_result *one = &set->results[(size_t)r * count + at_whole];
    const dt_probe_result *two = &set->results[(size_t)r * count + at_half];
    /* Gaps are a little longer than asked for, and twice so when split: compare T + G, which the law fixes. */
    if (one->bursts && two->bursts) ratios[n++] = 2.0 * (two->issue_s + two->gap_s) / (one->issue_s + one->gap_s);
  }
  if (!n) return DT_OK;
  char method[160];
  snprintf(method, sizeof method, "period of two bursts of %lld bytes, half the gap each, over one of %lld bytes",
           (long long)half->producer_bytes, (long long)whole->producer_bytes);
  dt_platform_constant constant = {
      .name = "split_gap_period_ratio",
      .interval = {dt_median(ratios, n), dt_quantile(ratios, n, 0.025), dt_quantile(ratios, n, 0.975)},
      .n = (int64_t)n,
      .method = method,
      .samples = ratios,
      .sample_count = n};
  return dt_platform_set_constant(platform, &constant);
}

/* Which law predicts the aligned pairs and isolated bursts that no constant was fitted to. */
static dt_status note_laws(const dt_calibration_set *set, dt_platform *platform) {
  char text[512];
  int used = snprintf(text, sizeof text, "laws, aligned pairs, %s %s: median / p90 error",
                      dt_probe_operation_name(set->operation), dt_probe_pattern_name(set->pattern));
  for (int32_t law = 0; law < DT_LAWS; law++) {
    dt_fit_error error;
    dt_status status = dt_fit_compare(&set->fit, law, set->samples, set->sample_count, DT_FIT_ALIGNED, 0, &error);
    if (status) return status;
    if (!error.n) return DT_OK;
    used += snprintf(text + used, sizeof text - (size_t)used, "%s %s %.1f %% / %.1f %%", law ? "," : "",
                     dt_law_name(law), 100.0 * error.median, 100.0 * error.p90);
  }
  return dt_platform_add_note(platform, text);
}

dt_status dt_calibration_tables(const dt_calibration *c, dt_platform *platform) {
  dt_status status = DT_OK;
  int main_done = 0;
  for (size_t s = 0; s < c->set_count && !status; s++) {
    const dt_calibration_set *set = &c->sets[s];
    if (set->fitted) {
      if (!main_done) status = add_constants(set, platform);
      if (!status && !main_done) status = add_split(set, c->rounds, platform);
      main_done = 1;
      if (!status) status = add_points(set, "rate_bytes_per_s", rate_method, &set->fit.rates, platform);
      if (!status) status = add_points(set, "t0_s", floor_method, &set->fit.floors, platform);
      if (!status)
        status = add_points(set, "capacity_bytes", method_of_capacity(&set->fit), &set->fit.burst_capacities, platform);
      if (!status) status = add_other_state(set, platform);
      if (!status) status = note_laws(set, platform);
    }
    for (int32_t alignment = DT_FIT_FREE; alignment <= DT_FIT_ALONE && !status; alignment++)
      status = add_issue_table(set, c->rounds, alignment, platform);
  }
  if (!status && c->rounds && c->sm_hz[0] > 0.0) {
    size_t n = (size_t)c->rounds;
    dt_platform_constant constant = {
        .name = "sm_clock_hz",
        .interval = {dt_median(c->sm_hz, n), dt_quantile(c->sm_hz, n, 0.0), dt_quantile(c->sm_hz, n, 1.0)},
        .n = c->rounds,
        .method = "cycles by globaltimer for 3 ms before each round; the median round, the least and the most",
        .samples = c->sm_hz,
        .sample_count = n};
    status = dt_platform_set_constant(platform, &constant);
  }
  return status ? status : add_both_ways(c, platform);
}
