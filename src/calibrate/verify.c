#include <draintile/calibrate.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calibration.h"
#include "core/error.h"
#include "core/statistics.h"

/* The issue time at one corner of the constants' box. */
static double issue_at(const dt_burst_model *model, const char *alignment, double volume, double gap_s) {
  if (strcmp(alignment, "aligned") == 0) return dt_fit_pair_s(model, volume, gap_s);
  dt_burst_question question = {.burst_bytes = volume, .gap_s = gap_s, .aligned = strcmp(alignment, "alone") == 0};
  dt_burst_prediction prediction;
  if (dt_burst_predict(model, &question, &prediction)) return NAN;
  return strcmp(alignment, "drained") == 0 ? prediction.isolated_issue_s : prediction.t_issue_s;
}

dt_status dt_platform_issue(const dt_platform *platform, const char *pattern, const char *operation,
                            const char *alignment, double producers, double producer_bytes, double gap_s,
                            dt_interval *issue_s) {
  if (strcmp(alignment, "free") != 0 && strcmp(alignment, "aligned") != 0 && strcmp(alignment, "drained") != 0 &&
      strcmp(alignment, "alone") != 0)
    return dt_fail(DT_ERR_ARGUMENT, "alignment: %s; free, aligned, drained or alone", alignment);
  dt_platform_question question = {
      .producers = producers, .producer_bytes = producer_bytes, .pattern = pattern, .operation = operation};
  dt_burst_model_interval box;
  dt_status status = dt_platform_burst_model(platform, &question, &box, NULL);
  if (status) return status;
  double volume = producers * producer_bytes;
  dt_burst_model value = {box.t0_s.value, box.rate_bytes_per_s.value, box.capacity_bytes.value};
  /* Issue times grow with T0 and fall with R and Q: the box's extremes are two corners. */
  dt_burst_model low = {box.t0_s.low, box.rate_bytes_per_s.high, box.capacity_bytes.high};
  dt_burst_model high = {box.t0_s.high, box.rate_bytes_per_s.low, box.capacity_bytes.low};
  double at[] = {issue_at(&value, alignment, volume, gap_s), issue_at(&low, alignment, volume, gap_s),
                 issue_at(&high, alignment, volume, gap_s)};
  if (isnan(at[0] + at[1] + at[2]))
    return dt_fail(DT_ERR_ARGUMENT, "question: %g producers of %g bytes, gap %g s; finite and >= 0", producers,
                   producer_bytes, gap_s);
  *issue_s = (dt_interval){at[0], fmin(at[0], at[1]), fmax(at[0], at[2])};
  return DT_OK;
}

/* The median round of one setting; n 0: no round counted, or, of aligned bursts, not half of them. */
static dt_status median_round(const dt_calibration_set *set, size_t at, int32_t rounds, dt_verify_row *row) {
  const dt_probe_setting *s = &set->experiments.list[at].setting;
  double issue[DT_CALIBRATION_ROUNDS], gap[DT_CALIBRATION_ROUNDS],
      drain_s = (double)s->producers * (double)s->producer_bytes / set->design.bytes_per_s;
  size_t n = 0;
  for (int32_t r = 0; r < rounds; r++) {
    const dt_probe_result *result = &set->results[(size_t)r * set->experiments.count + at];
    if (!result->bursts || (s->alignment == DT_FIT_ALIGNED && result->start_spread_s > 0.1 * drain_s)) continue;
    issue[n] = result->issue_s, gap[n] = result->gap_s;
    n++;
  }
  if (s->alignment == DT_FIT_ALIGNED && 2 * n < (size_t)rounds) n = 0;
  double *samples = malloc((n + 1) * sizeof *samples);
  if (!samples) return dt_fail(DT_ERR_MEMORY, "verification: %zu rounds", n);
  memcpy(samples, issue, n * sizeof *samples);
  *row = (dt_verify_row){.pattern = dt_probe_pattern_name(set->pattern),
                         .operation = dt_probe_operation_name(set->operation),
                         .alignment = dt_probe_alignment_name(dt_design_alignment(s)),
                         .producers = s->producers,
                         .producer_bytes = (double)s->producer_bytes,
                         .gap_s = dt_median(gap, n),
                         .issue_s = dt_median(issue, n),
                         .n = (int64_t)n,
                         .samples_s = samples};
  return DT_OK;
}

static dt_status compare_rows(const dt_calibration *c, const dt_platform *platform, dt_verification *v) {
  size_t total = 0;
  for (size_t s = 0; s < c->set_count; s++) total += c->sets[s].experiments.count;
  v->rows = calloc(total + 1, sizeof *v->rows);
  v->groups = calloc(3 * c->set_count + 1, sizeof *v->groups);
  if (!v->rows || !v->groups) return dt_fail(DT_ERR_MEMORY, "verification: %zu settings", total);
  for (size_t s = 0; s < c->set_count; s++) {
    const dt_calibration_set *set = &c->sets[s];
    for (size_t i = 0; i < set->experiments.count; i++) {
      dt_verify_row *row = &v->rows[v->row_count];
      dt_status status = median_round(set, i, c->rounds, row);
      if (status) return status;
      if (!row->n) {
        free(row->samples_s);
        v->late_settings += set->experiments.list[i].setting.alignment == DT_FIT_ALIGNED;
        continue;
      }
      v->row_count++;
      status = dt_platform_issue(platform, row->pattern, row->operation, row->alignment, row->producers,
                                 row->producer_bytes, row->gap_s, &row->predicted_s);
      if (status) return status;
      row->error = fabs(row->predicted_s.value - row->issue_s) / row->issue_s;
    }
  }
  return DT_OK;
}

static int in_group(const dt_verify_row *row, const dt_verify_group *group) {
  return strcmp(row->pattern, group->pattern) == 0 && strcmp(row->operation, group->operation) == 0 &&
         strcmp(row->alignment, group->alignment) == 0;
}

static dt_status summarize(dt_verification *v) {
  double *errors = malloc((v->row_count + 1) * sizeof *errors);
  if (!errors) return dt_fail(DT_ERR_MEMORY, "verification: %zu rows", v->row_count);
  v->pass = v->row_count > 0;
  for (size_t i = 0; i < v->row_count; i++) {
    size_t g = 0;
    while (g < v->group_count && !in_group(&v->rows[i], &v->groups[g])) g++;
    if (g < v->group_count) continue;
    dt_verify_group *group = &v->groups[v->group_count++];
    *group = (dt_verify_group){v->rows[i].pattern, v->rows[i].operation, v->rows[i].alignment, 0, 0.0, 0.0, 0};
    size_t n = 0;
    for (size_t j = 0; j < v->row_count; j++)
      if (in_group(&v->rows[j], group)) errors[n++] = v->rows[j].error;
    group->n = (int64_t)n;
    group->error_median = dt_median(errors, n);
    group->error_p90 = dt_quantile(errors, n, 0.9);
    group->pass = group->error_median <= 0.05 && group->error_p90 <= 0.15;
    if (!group->pass) v->pass = 0;
  }
  for (size_t i = 0; i < v->row_count; i++) errors[i] = v->rows[i].error;
  v->issue_error_median = dt_median(errors, v->row_count);
  v->issue_error_p90 = dt_quantile(errors, v->row_count, 0.9);
  free(errors);
  return DT_OK;
}

static double half_width(const dt_interval *interval) {
  return interval->value > 0.0 ? 0.5 * (interval->high - interval->low) / interval->value : 0.0;
}

static dt_status check_constants(const dt_platform *platform, dt_verification *v) {
  dt_interval rate, ratio;
  dt_status status = dt_platform_lookup(platform, "rate_bytes_per_s", &rate);
  if (status) return status;
  v->rate_half_width = half_width(&rate);
  for (size_t t = 0; t < dt_platform_table_count(platform); t++) {
    const dt_platform_table *table = dt_platform_table_at(platform, t);
    if (strcmp(table->name, "capacity_bytes") != 0) continue;
    for (size_t p = 0; p < table->point_count; p++)
      v->capacity_half_width = fmax(v->capacity_half_width, half_width(&table->points[p].interval));
  }
  if (dt_platform_find_constant(platform, "both_ways_over_one_way_ratio")) {
    status = dt_platform_lookup(platform, "both_ways_over_one_way_ratio", &ratio);
    if (status) return status;
    v->both_ways_over_one_way = ratio.value;
    if (fabs(ratio.value - 1.0) > 0.02) v->pass = 0;
  }
  if (v->rate_half_width > 0.02 || v->capacity_half_width > 0.10) v->pass = 0;
  return DT_OK;
}

dt_status dt_verification_fill(const dt_calibration *calibration, const dt_platform *platform, dt_verification *v) {
  dt_status status = compare_rows(calibration, platform, v);
  if (!status) status = summarize(v);
  if (!status) status = check_constants(platform, v);
  return status;
}

dt_status dt_verify(const dt_calibrate_config *config, const dt_platform *platform, dt_verification **out) {
  dt_calibration_device device = {.context = NULL};
  dt_status status = dt_calibration_open(config, &device);
  if (status) return status;
  if (!device.context) { /* a rank that served */
    *out = NULL;
    return DT_OK;
  }
  dt_verification *v = calloc(1, sizeof *v);
  dt_calibration calibration = {0};
  const char *kind = dt_platform_get_device(platform)->kind;
  if (strcmp(kind, device.kind) != 0)
    status =
        dt_fail(DT_ERR_INPUT, "device.kind: %s in the platform file; this calibration measures %s", kind, device.kind);
  if (!v) status = dt_fail(DT_ERR_MEMORY, "verification: %zu bytes", sizeof *v);
  if (!status) status = dt_calibration_run(config, &device, 1, &calibration);
  if (!status) status = dt_verification_fill(&calibration, platform, v);
  dt_calibration_release(&calibration);
  device.close(device.context);
  if (status)
    dt_verification_destroy(v);
  else
    *out = v;
  return status;
}

void dt_verification_destroy(dt_verification *verification) {
  if (!verification) return;
  for (size_t i = 0; i < verification->row_count; i++) free(verification->rows[i].samples_s);
  free(verification->rows), free(verification->groups);
  free(verification);
}
