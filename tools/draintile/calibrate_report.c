#include "calibrate_report.h"

#include <math.h>
#include <string.h>

#include "json.h"
#include "log.h"
#include "table.h"

static int ends_with(const char *text, const char *end) {
  size_t length = strlen(text), tail = strlen(end);
  return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* In the unit that the name ends with. */
static void value_cell(tool_table *table, const char *name, double value) {
  if (ends_with(name, "_bytes_per_s"))
    table_rate(table, value);
  else if (ends_with(name, "_bytes"))
    table_size(table, value);
  else if (ends_with(name, "_s"))
    table_time(table, value);
  else
    table_cell(table, "%.4g", value);
}

static int is_rate_or_time(const char *name) {
  return !ends_with(name, "_flop_per_s") && !ends_with(name, "_per_row") && !ends_with(name, "_per_byte");
}

static void report_constants(FILE *out, const dt_platform *platform) {
  tool_table *table = table_create("<constant|value|low|high|n");
  for (size_t i = 0; i < dt_platform_constant_count(platform); i++) {
    const dt_platform_constant *c = dt_platform_constant_at(platform, i);
    const char *unit = is_rate_or_time(c->name) ? c->name : "";
    table_cell(table, "%s", c->name);
    value_cell(table, unit, c->interval.value);
    value_cell(table, unit, c->interval.low);
    value_cell(table, unit, c->interval.high);
    table_cell(table, "%lld", (long long)c->n);
  }
  table_print(table, out);
}

static void report_bursts(FILE *out, const dt_platform *platform) {
  tool_table *table = table_create("<table|<pattern|<operation|producers|bytes each|value|low|high|n");
  static const char *const names[] = {"rate_bytes_per_s", "t0_s", "capacity_bytes", "other_capacity_bytes"};
  for (size_t t = 0; t < dt_platform_table_count(platform); t++) {
    const dt_platform_table *source = dt_platform_table_at(platform, t);
    int shown = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) shown |= strcmp(source->name, names[i]) == 0;
    for (size_t p = 0; shown && p < source->point_count; p++) {
      const dt_platform_point *point = &source->points[p];
      table_cell(table, "%s", source->name);
      table_cell(table, "%s", source->pattern);
      table_cell(table, "%s", source->operation);
      table_cell(table, "%.0f", point->at[0]);
      table_size(table, point->at[1]);
      value_cell(table, source->name, point->interval.value);
      value_cell(table, source->name, point->interval.low);
      value_cell(table, source->name, point->interval.high);
      table_cell(table, "%lld", (long long)point->n);
    }
  }
  table_print(table, out);
}

void report_platform(FILE *out, const dt_platform *platform) {
  const dt_platform_device *device = dt_platform_get_device(platform);
  fprintf(out, "%lld x %s, driver %s, %s", (long long)device->count, device->name, device->driver, device->date);
  if (device->clocks_before.sm_hz > 0)
    fprintf(out, ", SM clock %.0f MHz before and %.0f MHz after", device->clocks_before.sm_hz * 1e-6,
            device->clocks_after.sm_hz * 1e-6);
  fprintf(out, "%s\n\n", device->throttled ? ", THROTTLED" : "");
  report_constants(out, platform);
  fprintf(out, "\n");
  report_bursts(out, platform);
  fprintf(out, "\n");
  for (size_t i = 0; i < dt_platform_note_count(platform); i++) fprintf(out, "%s\n", dt_platform_note_at(platform, i));
}

void report_verification(FILE *out, const dt_verification *v) {
  tool_table *table = table_create("<pattern|<operation|<alignment|settings|median error|p90 error|<within 5 % / 15 %");
  for (size_t g = 0; g < v->group_count; g++) {
    const dt_verify_group *group = &v->groups[g];
    table_cell(table, "%s", group->pattern);
    table_cell(table, "%s", group->operation);
    table_cell(table, "%s", group->alignment);
    table_cell(table, "%lld", (long long)group->n);
    table_cell(table, "%.2f %%", 100 * group->error_median);
    table_cell(table, "%.2f %%", 100 * group->error_p90);
    table_cell(table, "%s", group->pass ? "yes" : "NO");
  }
  table_print(table, out);
  fprintf(out,
          "\n%lld aligned settings left out: their bursts did not start together\n"
          "issue time, all settings: median error %.2f %%, p90 %.2f %%\n"
          "half-width of R's interval %.2f %% (at most 2 %%), of Q's (widest) %.2f %% (at most 10 %%)\n",
          (long long)v->late_settings, 100 * v->issue_error_median, 100 * v->issue_error_p90, 100 * v->rate_half_width,
          100 * v->capacity_half_width);
  if (v->both_ways_over_one_way > 0)
    fprintf(out, "R both ways / one way %.4f (1 within 2 %%)\n", v->both_ways_over_one_way);
  fprintf(out, "%s\n", v->pass ? "pass" : "FAIL");
}

static json_t *rows_json(const dt_verification *v) {
  json_t *rows = json_array();
  for (size_t i = 0; i < v->row_count; i++) {
    const dt_verify_row *row = &v->rows[i];
    json_t *samples = json_array();
    for (int64_t s = 0; s < row->n; s++) json_array_append_new(samples, json_figure(row->samples_s[s]));
    json_array_append_new(rows,
                          json_pack("{s:s, s:s, s:s, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:o}", "pattern",
                                    row->pattern, "operation", row->operation, "alignment", row->alignment, "producers",
                                    row->producers, "producer_bytes", row->producer_bytes, "gap_s", row->gap_s,
                                    "issue_s", row->issue_s, "predicted_s", row->predicted_s.value, "predicted_low_s",
                                    row->predicted_s.low, "predicted_high_s", row->predicted_s.high, "error_ratio",
                                    row->error, "n", (json_int_t)row->n, "samples", samples));
  }
  return rows;
}

static json_t *groups_json(const dt_verification *v) {
  json_t *groups = json_array();
  for (size_t g = 0; g < v->group_count; g++) {
    const dt_verify_group *group = &v->groups[g];
    json_array_append_new(groups, json_pack("{s:s, s:s, s:s, s:I, s:f, s:f, s:b}", "pattern", group->pattern,
                                            "operation", group->operation, "alignment", group->alignment, "n",
                                            (json_int_t)group->n, "issue_error_median", group->error_median,
                                            "issue_error_p90", group->error_p90, "pass", group->pass));
  }
  return groups;
}

int report_write(const dt_verification *v, const dt_platform *platform, const char *command, const char *path) {
  const dt_platform_device *device = dt_platform_get_device(platform);
  json_t *root = json_results("draintile-verification"), *summary = json_object();
  json_object_set_new(root, "command", json_string(command));
  json_object_set_new(root, "date", json_now());
  json_object_set_new(root, "device", json_string(device->name));
  json_object_set_new(root, "platform_date", json_string(device->date));
  json_object_set_new(summary, "issue_error_median", json_figure(v->issue_error_median));
  json_object_set_new(summary, "issue_error_p90", json_figure(v->issue_error_p90));
  json_object_set_new(summary, "rate_half_width", json_figure(v->rate_half_width));
  json_object_set_new(summary, "capacity_half_width", json_figure(v->capacity_half_width));
  json_object_set_new(summary, "both_ways_over_one_way",
                      v->both_ways_over_one_way > 0 ? json_figure(v->both_ways_over_one_way) : json_null());
  json_object_set_new(summary, "pass", json_boolean(v->pass));
  json_object_set_new(root, "summary", summary);
  json_object_set_new(root, "late_settings", json_integer(v->late_settings));
  json_object_set_new(root, "groups", groups_json(v));
  json_object_set_new(root, "rows", rows_json(v));
  return json_write_as(root, path, "output");
}
