#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "platform.h"

/* Longest first: a name that ends in _bytes_per_s also ends in _s. */
static const char *const units[] = {"s_per_byte", "s_per_row", "bytes_per_s", "flop_per_s", "bytes",
                                    "ratio",      "count",     "hz",          "s"};
static const char units_allowed[] =
    "a name that ends in _s, _bytes, _bytes_per_s, _s_per_byte, _s_per_row, _flop_per_s, _hz, _ratio or _count";

/* What JSON readers keep exactly. */
static const int64_t most_count = INT64_C(1) << 53;

const char *dt_platform_unit(const char *name) {
  size_t length = strlen(name);
  for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
    size_t unit = strlen(units[i]);
    if (length > unit + 1 && name[length - unit - 1] == '_' && strcmp(name + length - unit, units[i]) == 0)
      return units[i];
  }
  return NULL;
}

static int is_identifier(const char *name) {
  if (!name || !*name) return 0;
  for (const char *c = name; *c; c++)
    if (!(islower((unsigned char)*c) || isdigit((unsigned char)*c) || *c == '_')) return 0;
  return 1;
}

static dt_status check_text(const char *text, const char *where, const char *field, dt_status status) {
  if (text && *text) return DT_OK;
  return dt_fail(status, "%s.%s: %s; a text that is not empty is allowed", where, field, text ? "\"\"" : "missing");
}

static dt_status check_count(int64_t n, const char *where, const char *field, dt_status status) {
  if (n >= 1 && n <= most_count) return DT_OK;
  return dt_fail(status, "%s.%s: %lld; an integer from 1 to 2^53 is allowed", where, field, (long long)n);
}

static dt_status check_interval(const dt_interval *interval, const char *where, dt_status status) {
  const double values[] = {interval->value, interval->low, interval->high};
  static const char *const names[] = {"value", "low", "high"};
  for (int i = 0; i < 3; i++)
    if (!isfinite(values[i]))
      return dt_fail(status, "%s.%s: %g; a finite number is allowed", where, names[i], values[i]);
  if (interval->low <= interval->value && interval->value <= interval->high) return DT_OK;
  return dt_fail(status, "%s.value: %g with low %g and high %g; low <= value <= high is allowed", where,
                 interval->value, interval->low, interval->high);
}

static dt_status check_samples(const double *samples, size_t count, const char *where, dt_status status) {
  if (count && !samples) return dt_fail(status, "%s.samples: missing; %zu numbers were announced", where, count);
  for (size_t i = 0; i < count; i++)
    if (!isfinite(samples[i]))
      return dt_fail(status, "%s.samples[%zu]: %g; a finite number is allowed", where, i, samples[i]);
  return DT_OK;
}

static dt_status check_name(const char *name, const char *where, dt_status status) {
  if (is_identifier(name) && dt_platform_unit(name)) return DT_OK;
  return dt_fail(status, "%s: wrong name or unit; %s is allowed", where, units_allowed);
}

static int is_date(const char *text) {
  static const char form[] = "dddd-dd-dd";
  for (int i = 0; form[i]; i++)
    if (form[i] == 'd' ? !isdigit((unsigned char)text[i]) : text[i] != form[i]) return 0;
  int month = 10 * (text[5] - '0') + text[6] - '0', day = 10 * (text[8] - '0') + text[9] - '0';
  if (month < 1 || month > 12 || day < 1 || day > 31) return 0;
  return text[10] == '\0' || text[10] == 'T' || text[10] == ' ';
}

dt_status dt_platform_check_device(const dt_platform_device *device, dt_status status) {
  static const char *const where = "device";
  if (!device->kind || (strcmp(device->kind, "cpu") != 0 && strcmp(device->kind, "cuda") != 0))
    return dt_fail(status, "device.kind: \"%s\"; cpu or cuda is allowed", device->kind ? device->kind : "");
  dt_status result = check_text(device->name, where, "name", status);
  if (!result) result = check_text(device->driver, where, "driver", status);
  if (!result) result = check_text(device->date, where, "date", status);
  if (!result && !is_date(device->date))
    result = dt_fail(status, "device.date: \"%s\"; ISO 8601 is allowed, as 2026-11-30T02:00:00Z", device->date);
  if (!result) result = check_count(device->count, where, "count", status);
  if (result) return result;
  const double clocks[] = {device->clocks_before.sm_hz, device->clocks_before.memory_hz, device->clocks_after.sm_hz,
                           device->clocks_after.memory_hz};
  static const char *const names[] = {"clocks_before.sm_hz", "clocks_before.memory_hz", "clocks_after.sm_hz",
                                      "clocks_after.memory_hz"};
  for (int i = 0; i < 4; i++)
    if (!(clocks[i] >= 0.0) || !isfinite(clocks[i]))
      return dt_fail(status, "device.%s: %g; a finite number >= 0 is allowed", names[i], clocks[i]);
  return DT_OK;
}

dt_status dt_platform_check_constant(const dt_platform_constant *constant, const char *where, dt_status status) {
  dt_status result = check_name(constant->name, where, status);
  if (!result) result = check_interval(&constant->interval, where, status);
  if (!result) result = check_count(constant->n, where, "n", status);
  if (!result) result = check_text(constant->method, where, "method", status);
  if (!result) result = check_samples(constant->samples, constant->sample_count, where, status);
  return result;
}

dt_status dt_platform_constant_check(const dt_platform_constant *constant) {
  return dt_platform_check_constant(constant, constant->name ? constant->name : "name", DT_ERR_ARGUMENT);
}

static dt_status check_point(const dt_platform_table *table, size_t index, const char *where, dt_status status) {
  const dt_platform_point *point = &table->points[index];
  char at[320];
  snprintf(at, sizeof at, "%s.points[%zu]", where, index);
  for (int32_t a = 0; a < table->argument_count; a++) {
    double value = point->at[a];
    if (!(value >= 0.0) || !isfinite(value))
      return dt_fail(status, "%s.%s: %g; a finite number >= 0 is allowed", at, table->arguments[a], value);
    if (!dt_platform_unit(table->arguments[a]) && value != floor(value))
      return dt_fail(status, "%s.%s: %g; a whole number is allowed, or a name that ends in a unit", at,
                     table->arguments[a], value);
  }
  dt_status result = check_interval(&point->interval, at, status);
  if (!result) result = check_count(point->n, at, "n", status);
  if (!result) result = check_samples(point->samples, point->sample_count, at, status);
  for (size_t i = 0; !result && i < index; i++) {
    int32_t same = 0;
    for (int32_t a = 0; a < table->argument_count; a++) same += table->points[i].at[a] == point->at[a];
    if (same == table->argument_count)
      result = dt_fail(status, "%s: the same arguments as points[%zu]; each is allowed once", at, i);
  }
  return result;
}

dt_status dt_platform_check_table(const dt_platform_table *table, const char *where, dt_status status) {
  dt_status result = check_name(table->name, where, status);
  if (!result) result = check_text(table->method, where, "method", status);
  if (result) return result;
  if (table->argument_count < 0 || table->argument_count > DT_PLATFORM_ARGUMENTS)
    return dt_fail(status, "%s.arguments: %d of them; 0 to %d are allowed", where, table->argument_count,
                   DT_PLATFORM_ARGUMENTS);
  for (int32_t a = 0; a < table->argument_count; a++) {
    if (!is_identifier(table->arguments[a]))
      return dt_fail(status, "%s.arguments[%d]: letters a to z, digits and _ are allowed", where, a);
    for (int32_t b = 0; b < a; b++)
      if (strcmp(table->arguments[a], table->arguments[b]) == 0)
        return dt_fail(status, "%s.arguments[%d]: \"%s\" again; each is allowed once", where, a, table->arguments[a]);
  }
  if (table->point_count == 0 || !table->points)
    return dt_fail(status, "%s.points: none; at least 1 is allowed", where);
  for (size_t i = 0; !result && i < table->point_count; i++) result = check_point(table, i, where, status);
  return result;
}
