#include "model_explain.h"

#include <draintile/units.h>

static const char *label(const char *text) {
  return text && *text ? text : "any";
}

static void print_value(FILE *out, int which, const dt_interval *interval) {
  char *(*const formats[])(double, char *, size_t) = {dt_format_seconds, dt_format_bytes_per_s, dt_format_bytes};
  char value[32], low[32], high[32];
  formats[which](interval->value, value, sizeof(value));
  formats[which](interval->low, low, sizeof(low));
  formats[which](interval->high, high, sizeof(high));
  fprintf(out, "%s, 95 %% interval %s to %s", value, low, high);
}

static void print_table(FILE *out, const dt_platform_source *source) {
  const dt_platform_table *table = source->table;
  int64_t samples = 0;
  for (size_t i = 0; i < table->point_count; i++) samples += table->points[i].n;
  fprintf(out, "     table %s, pattern %s, operation %s: %zu measured settings, %lld runs%s\n", table->name,
          label(table->pattern), label(table->operation), table->point_count, (long long)samples,
          source->inside ? ", interpolated" : "; OUTSIDE the measured range, nearest value taken");
  fprintf(out, "     method: %s\n", table->method);
}

/* What the queue holds in the machine's other state, where calibration saw one. */
static void print_other_state(FILE *out, const dt_platform *platform, const dt_platform_question *question,
                              const dt_platform_table *capacities) {
  const dt_platform_table *other = dt_platform_find_table(platform, "other_capacity_bytes", capacities->pattern,
                                                          capacities->operation, capacities->alignment);
  const dt_platform_table *share = dt_platform_find_table(platform, "other_state_share_ratio", capacities->pattern,
                                                          capacities->operation, capacities->alignment);
  const double at[] = {question->producers, question->producer_bytes};
  dt_interval capacity, often;
  if (!other || !share || other->argument_count != 2 || share->argument_count != 0) return;
  if (dt_platform_interpolate(other, at, &capacity, NULL) || dt_platform_interpolate(share, at, &often, NULL)) return;
  fprintf(out, "     in the machine's other state, %.0f %% of the rounds (95 %% interval %.0f to %.0f): Q = ",
          100 * often.value, 100 * often.low, 100 * often.high);
  print_value(out, 2, &capacity);
  fprintf(out, "\n");
}

void model_explain(FILE *out, const dt_platform *platform, const dt_platform_question *question,
                   const dt_platform_source sources[3]) {
  static const char *const names[] = {"T0", "R", "Q"};
  const dt_platform_device *device = dt_platform_get_device(platform);
  char bytes[32];
  fprintf(out, "question: %.0f producers of %s each, pattern %s, operation %s\n", question->producers,
          dt_format_bytes(question->producer_bytes, bytes, sizeof(bytes)), label(question->pattern),
          label(question->operation));
  fprintf(out, "platform: %lld x %s, driver %s, measured %s%s\n", (long long)device->count, device->name,
          device->driver, device->date, device->throttled ? ", while THROTTLED" : "");
  for (int i = 0; i < 3; i++) {
    fprintf(out, "  %-2s = ", names[i]);
    print_value(out, i, &sources[i].interval);
    fprintf(out, "\n");
    if (sources[i].table) {
      print_table(out, &sources[i]);
      if (i == 2) print_other_state(out, platform, question, sources[i].table);
    } else if (sources[i].constant) {
      fprintf(out, "     constant %s, n = %lld\n     method: %s\n", sources[i].constant->name,
              (long long)sources[i].constant->n, sources[i].constant->method);
    }
  }
  fprintf(out, "law: free-running T = max(T0, V/R - G), eq. (2); aligned T = max(T0, V/R - min(G, Q/R))\n\n");
}
