#include <math.h>
#include <string.h>

#include "core/error.h"
#include "platform.h"

const dt_platform_constant *dt_platform_find_constant(const dt_platform *platform, const char *name) {
  for (size_t i = 0; i < platform->constant_count; i++)
    if (strcmp(platform->constants[i].name, name) == 0) return &platform->constants[i].view;
  return NULL;
}

static int agrees(const char *label, const char *wanted) {
  return !wanted || strcmp(label, wanted) == 0;
}

const dt_platform_table *dt_platform_find_table(const dt_platform *platform, const char *name, const char *pattern,
                                                const char *operation, const char *alignment) {
  for (size_t i = 0; i < platform->table_count; i++) {
    const dt_platform_table *table = &platform->tables[i].view;
    if (strcmp(table->name, name) == 0 && agrees(table->pattern, pattern) && agrees(table->operation, operation) &&
        agrees(table->alignment, alignment))
      return table;
  }
  return NULL;
}

dt_status dt_platform_lookup(const dt_platform *platform, const char *name, dt_interval *interval) {
  const dt_platform_constant *constant = dt_platform_find_constant(platform, name);
  if (!constant) return dt_fail(DT_ERR_INPUT, "constants.%s: missing; this needs it in the platform file", name);
  *interval = constant->interval;
  return DT_OK;
}

/* The points whose first `fixed` arguments are those of `slice`. */
static int in_slice(const dt_platform_point *point, const double *slice, int32_t fixed) {
  for (int32_t a = 0; a < fixed; a++)
    if (point->at[a] != slice[a]) return 0;
  return 1;
}

/* Fixes one argument after the other at the two measured values around at[argument]; slice holds those chosen so far.
 * A slice has its own values of the later arguments, so the points need not form a grid. */
static dt_interval interpolate(const dt_platform_table *table, const double *at, double *slice, int32_t argument,
                               int *inside) {
  double below = -INFINITY, above = INFINITY;
  if (argument >= table->argument_count || argument >= DT_PLATFORM_ARGUMENTS) {
    size_t i = 0;
    while (!in_slice(&table->points[i], slice, argument)) i++; /* slice was made of a point's arguments */
    return table->points[i].interval;
  }
  for (size_t i = 0; i < table->point_count; i++) {
    if (!in_slice(&table->points[i], slice, argument)) continue;
    double value = table->points[i].at[argument];
    if (value <= at[argument] && value > below) below = value;
    if (value >= at[argument] && value < above) above = value;
  }
  if (isinf(below) || isinf(above)) {
    *inside = 0;
    if (isinf(below)) below = above;
    above = below;
  }
  slice[argument] = below;
  dt_interval low = interpolate(table, at, slice, argument + 1, inside);
  if (above == below) return low;
  slice[argument] = above;
  dt_interval high = interpolate(table, at, slice, argument + 1, inside);
  double share = (at[argument] - below) / (above - below);
  return (dt_interval){
      .value = low.value + share * (high.value - low.value),
      .low = low.low + share * (high.low - low.low),
      .high = low.high + share * (high.high - low.high),
  };
}

dt_status dt_platform_interpolate(const dt_platform_table *table, const double *at, dt_interval *interval,
                                  int *inside) {
  double slice[DT_PLATFORM_ARGUMENTS];
  int within = 1;
  for (int32_t a = 0; a < table->argument_count; a++)
    if (!isfinite(at[a]))
      return dt_fail(DT_ERR_ARGUMENT, "%s of %s: %g; a finite number is allowed", table->arguments[a], table->name,
                     at[a]);
  *interval = interpolate(table, at, slice, 0, &within);
  /* Rounding must not break low <= value <= high. */
  interval->low = fmin(interval->low, interval->value);
  interval->high = fmax(interval->high, interval->value);
  if (inside) *inside = within;
  return DT_OK;
}

static dt_status find_quantity(const dt_platform *platform, const char *name, const dt_platform_question *question,
                               dt_platform_source *source) {
  const dt_platform_table *table =
      dt_platform_find_table(platform, name, question->pattern, question->operation, question->alignment);
  *source = (dt_platform_source){.inside = 1};
  if (!table) {
    /* A constant answers for what no table tells apart; it was measured with one pattern and operation. */
    if (!dt_platform_find_table(platform, name, NULL, NULL, NULL))
      source->constant = dt_platform_find_constant(platform, name);
    if (!source->constant)
      return dt_fail(
          DT_ERR_INPUT,
          "%s: not in the platform file for pattern %s, operation %s, alignment %s; measured ones are allowed", name,
          question->pattern ? question->pattern : "any", question->operation ? question->operation : "any",
          question->alignment ? question->alignment : "any");
    source->interval = source->constant->interval;
    return DT_OK;
  }
  double at[DT_PLATFORM_ARGUMENTS];
  for (int32_t a = 0; a < table->argument_count; a++) {
    if (strcmp(table->arguments[a], "producers") == 0) {
      at[a] = question->producers;
    } else if (strcmp(table->arguments[a], "producer_bytes") == 0) {
      at[a] = question->producer_bytes;
    } else {
      return dt_fail(DT_ERR_INPUT, "tables.%s.arguments: \"%s\"; producers and producer_bytes are allowed here", name,
                     table->arguments[a]);
    }
  }
  source->table = table;
  return dt_platform_interpolate(table, at, &source->interval, &source->inside);
}

/* Intervals are what was measured; a link whose laws hold has none below these. */
static dt_status check_possible(const char *name, const dt_interval *interval, int above_zero) {
  if (above_zero ? interval->low > 0.0 : interval->low >= 0.0) return DT_OK;
  return dt_fail(DT_ERR_INPUT, "%s: low %g; %s is allowed", name, interval->low,
                 above_zero ? "a rate above 0" : "0 or more");
}

dt_status dt_platform_burst_model(const dt_platform *platform, const dt_platform_question *question,
                                  dt_burst_model_interval *model, dt_platform_source sources[3]) {
  static const char *const names[] = {"t0_s", "rate_bytes_per_s", "capacity_bytes"};
  dt_platform_source found[3];
  if (!(question->producers > 0.0) || !isfinite(question->producers))
    return dt_fail(DT_ERR_ARGUMENT, "producers: %g; a finite number > 0 is allowed", question->producers);
  if (!(question->producer_bytes >= 0.0) || !isfinite(question->producer_bytes))
    return dt_fail(DT_ERR_ARGUMENT, "producer_bytes: %g; a finite number >= 0 is allowed", question->producer_bytes);
  for (int i = 0; i < 3; i++) {
    dt_status status = find_quantity(platform, names[i], question, &found[i]);
    if (!status) status = check_possible(names[i], &found[i].interval, i == 1);
    if (status) return status;
  }
  *model = (dt_burst_model_interval){found[0].interval, found[1].interval, found[2].interval};
  if (sources) memcpy(sources, found, sizeof found);
  return DT_OK;
}
