/* Pictures by gnuplot: data as inline blocks of one script, fed through a pipe. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "args.h"
#include "calibrate_report.h"
#include "json.h"
#include "log.h"
#include "pictures.h"

static const dt_platform_table *find(const dt_platform *platform, const char *name, const char *pattern,
                                     const char *operation, const char *alignment) {
  return dt_platform_find_table(platform, name, pattern, operation, alignment);
}

/* The operation that the main set was measured with: of the first issue table. */
static const char *main_operation(const dt_platform *platform) {
  const dt_platform_table *table = find(platform, "issue_s", "one-way", NULL, "free");
  return table ? table->operation : NULL;
}

static void header(pictures *p, const char *title, const char *x, const char *y) {
  fprintf(p->script,
          "reset\nset key outside right top\nset grid\nset title \"%s\"\nset xlabel \"%s\"\nset ylabel \"%s\"\n", title,
          x, y);
}

static double most_producers(const dt_platform_table *table) {
  double most = 0;
  for (size_t i = 0; i < table->point_count; i++) most = fmax(most, table->points[i].at[0]);
  return most;
}

/* 1: V/(T+G) without a gap against K: up to the link's rate the producers' own issue limits it. */
static void plot_rate(pictures *p, const dt_platform *platform, const char *operation) {
  const char *patterns[] = {"one-way", "both-ways", "one-way"}, *operations[] = {operation, operation, "bulk"};
  char plots[512] = "";
  for (int i = 0; i < 3; i++) {
    int rows = 0;
    fprintf(p->script, "$rate%d << EOD\n", i);
    for (int t = 0; t < 2; t++) {
      const dt_platform_table *table =
          find(platform, "issue_s", patterns[i], operations[i], t ? "free" : "alone"); /* alone: K = 1 */
      for (size_t j = 0; table && j < table->point_count; j++) {
        const dt_platform_point *point = &table->points[j];
        double volume = point->at[0] * point->at[1], gap = point->at[2];
        if (gap > 0.6e-6 || (point->at[1] != 32768 && point->at[0] > 1)) continue;
        fprintf(p->script, "%.9g %.9g %.9g %.9g\n", point->at[0], volume / (point->interval.value + gap) * 1e-9,
                volume / (point->interval.high + gap) * 1e-9, volume / (point->interval.low + gap) * 1e-9);
        rows++;
      }
    }
    fprintf(p->script, "EOD\n");
    size_t used = strlen(plots);
    if (rows)
      snprintf(plots + used, sizeof(plots) - used, "%s$rate%d using 1:2:3:4 with yerrorbars pt %d title \"%s %s\"",
               used ? ", " : "", i, 5 + 2 * i, operations[i], patterns[i]);
  }
  if (!*plots) return;
  header(p, "Drain rate against producers: 32 KiB each, no gap", "producers K", "V/(T+G), GB/s");
  fprintf(p->script, "set yrange [0:*]\n");
  pictures_draw(p, "calibration-rate", plots);
}

/* The model's line and band over x for one alignment; `by_gap`: x is the gap, else the burst. */
static int model_block(pictures *p, const char *name, const dt_platform *platform, const char *pattern,
                       const char *operation, const char *alignment, double producers, double bytes, double last,
                       int by_gap) {
  fprintf(p->script, "$%s << EOD\n", name);
  int rows = 0;
  for (int i = 0; i <= 120; i++) {
    double x = last * i / 120;
    dt_interval issue;
    if (dt_platform_issue(platform, pattern, operation, alignment, producers, by_gap ? bytes : x, by_gap ? x : 1,
                          &issue))
      continue;
    fprintf(p->script, "%.9g %.9g %.9g %.9g\n", by_gap ? x * 1e6 : x * producers * 1e-6, issue.value * 1e6,
            issue.low * 1e6, issue.high * 1e6);
    rows++;
  }
  fprintf(p->script, "EOD\n");
  return rows;
}

static int measured_block(pictures *p, const char *name, const dt_platform_table *table, double producers, double bytes,
                          double *last_gap) {
  int rows = 0;
  fprintf(p->script, "$%s << EOD\n", name);
  for (size_t i = 0; table && i < table->point_count; i++) {
    const dt_platform_point *point = &table->points[i];
    if (point->at[0] != producers || point->at[1] != bytes) continue;
    fprintf(p->script, "%.9g %.9g %.9g %.9g\n", point->at[2] * 1e6, point->interval.value * 1e6,
            point->interval.low * 1e6, point->interval.high * 1e6);
    *last_gap = fmax(*last_gap, point->at[2]);
    rows++;
  }
  fprintf(p->script, "EOD\n");
  return rows;
}

/* 2: T(G), free and aligned, points with the model's line and band. */
static void plot_gap(pictures *p, const dt_platform *platform, const char *operation) {
  const dt_platform_table *free_table = find(platform, "issue_s", "one-way", operation, "free");
  const dt_platform_table *aligned = find(platform, "issue_s", "one-way", operation, "aligned");
  if (!free_table || !free_table->point_count) return;
  double producers = most_producers(free_table), bytes = free_table->points[0].at[1], last = 0;
  char plots[1024];
  if (!measured_block(p, "gapfree", free_table, producers, bytes, &last)) return;
  int has_aligned = measured_block(p, "gapaligned", aligned, producers, bytes, &last);
  model_block(p, "lawfree", platform, "one-way", operation, "free", producers, bytes, last, 1);
  model_block(p, "lawaligned", platform, "one-way", operation, "aligned", producers, bytes, last, 1);
  int used = snprintf(plots, sizeof(plots),
                      "$lawfree using 1:3:4 with filledcurves fc rgb \"#c6d8ef\" notitle, "
                      "$lawfree using 1:2 with lines lc rgb \"#1f5fa8\" title \"max(T0, V/R - G)\", "
                      "$gapfree using 1:2:3:4 with yerrorbars lc rgb \"#1f5fa8\" pt 7 title \"free, measured\"");
  if (has_aligned)
    snprintf(plots + used, sizeof(plots) - (size_t)used,
             ", $lawaligned using 1:3:4 with filledcurves fc rgb \"#f3d3c4\" notitle, "
             "$lawaligned using 1:2 with lines lc rgb \"#b8471b\" title \"V/R - min(G, Q/R)\", "
             "$gapaligned using 1:2:3:4 with yerrorbars lc rgb \"#b8471b\" pt 5 title \"aligned, measured\"");
  char title[160];
  snprintf(title, sizeof(title), "Issue time against gap: %.0f producers, %.0f bytes each", producers, bytes);
  header(p, title, "gap G, us", "issue time T, us");
  pictures_draw(p, "calibration-gap", plots);
}

/* 3: isolated bursts against volume. */
static void plot_isolated(pictures *p, const dt_platform *platform, const char *operation) {
  const dt_platform_table *table = find(platform, "issue_s", "one-way", operation, "drained");
  if (!table) return;
  char plots[1024] = "", data[24], law[24];
  double shown[3] = {0, 0, 0};
  int curves = 0;
  for (size_t i = 0; i < table->point_count && curves < 3; i++) {
    double producers = table->points[i].at[0], last = 0;
    int seen = 0;
    for (int c = 0; c < curves; c++) seen |= shown[c] == producers;
    if (seen) continue;
    shown[curves] = producers;
    snprintf(data, sizeof(data), "iso%d", curves);
    snprintf(law, sizeof(law), "isolaw%d", curves);
    fprintf(p->script, "$%s << EOD\n", data);
    for (size_t j = 0; j < table->point_count; j++) {
      const dt_platform_point *point = &table->points[j];
      if (point->at[0] != producers || point->at[1] > 65536 * 1.01) continue;
      last = fmax(last, point->at[1]);
      fprintf(p->script, "%.9g %.9g %.9g %.9g\n", producers * point->at[1] * 1e-6, point->interval.value * 1e6,
              point->interval.low * 1e6, point->interval.high * 1e6);
    }
    fprintf(p->script, "EOD\n");
    model_block(p, law, platform, "one-way", operation, "drained", producers, 0, last, 0);
    size_t used = strlen(plots);
    snprintf(plots + used, sizeof(plots) - used,
             "%s$%s using 1:2 with lines lt %d title \"max(T0, (V-Q)/R), K = %.0f\", "
             "$%s using 1:2:3:4 with yerrorbars lt %d pt 7 title \"measured, K = %.0f\"",
             used ? ", " : "", law, curves + 1, producers, data, curves + 1, producers);
    curves++;
  }
  header(p, "Isolated burst against volume", "volume V, MB", "issue time T, us");
  pictures_draw(p, "calibration-isolated", plots);
}

static int read_residuals(const char *path, json_t **root) {
  const int code = json_read(path, root);
  if (code) return code;
  const char *schema = json_string_value(json_object_get(*root, "schema"));
  if (schema && strcmp(schema, "draintile-verification") == 0) return TOOL_OK;
  json_decref(*root);
  return log_fail(TOOL_USAGE, "--residuals: %s: schema: another; allowed: draintile-verification", path);
}

/* 4: residuals of a verification. */
static void plot_residuals(pictures *p, const json_t *root) {
  static const char *const alignments[] = {"free", "aligned", "drained"};
  const json_t *row;
  size_t i;
  for (int a = 0; a < 3; a++) {
    fprintf(p->script, "$res%d << EOD\n0 NaN\n", a);
    json_array_foreach(json_object_get(root, "rows"), i, row) {
      const char *alignment = json_string_value(json_object_get(row, "alignment"));
      double measured = json_number_value(json_object_get(row, "issue_s"));
      double predicted = json_number_value(json_object_get(row, "predicted_s"));
      if (!alignment || strcmp(alignment, alignments[a]) != 0 || measured <= 0) continue;
      fprintf(p->script, "%.9g %.9g\n", measured * 1e6, 100 * (predicted / measured - 1));
    }
    fprintf(p->script, "EOD\n");
  }
  header(p, "Held-out settings: predicted over measured issue time", "measured issue time T, us", "error, %");
  fprintf(p->script, "set logscale x\nset yrange [-20:20]\n");
  pictures_draw(
      p, "calibration-residuals",
      "$res0 using 1:2 with points pt 7 title \"free\", $res1 using 1:2 with points pt 5 title \"aligned\", "
      "$res2 using 1:2 with points pt 9 title \"drained\", 5 lc rgb \"#999999\" title \"5 %\", -5 lc rgb \"#999999\" "
      "notitle");
}

/* 5: how the safety tests move with R, Q and T0, each alone from -40 % to +40 %. */
static void plot_sensitivity(pictures *p, const dt_platform *platform, const char *operation) {
  const dt_platform_table *table = find(platform, "t0_s", "one-way", operation, NULL);
  if (!table) return;
  double producers = most_producers(table), bytes = 32768, volume;
  dt_platform_question question = {producers, bytes, "one-way", operation, NULL};
  dt_burst_model_interval box;
  if (table->point_count && producers < 16) bytes = table->points[0].at[1];
  question.producer_bytes = bytes;
  volume = producers * bytes;
  if (dt_platform_burst_model(platform, &question, &box, NULL)) return;
  dt_interval tile; /* sigma, an SM's time for one KV tile */
  int has_tile = dt_platform_lookup(platform, "attention_kv_tile_s", &tile) == DT_OK;
  static const char *const names[] = {"R", "Q", "T0"};
  for (int c = 0; c < 3; c++) {
    fprintf(p->script, "$sens%d << EOD\n", c);
    for (int i = -40; i <= 40; i++) {
      double f = 1 + i / 100.0, r = box.rate_bytes_per_s.value, q = box.capacity_bytes.value, t0 = box.t0_s.value;
      if (c == 0) r *= f;
      if (c == 1) q *= f;
      if (c == 2) t0 *= f;
      double gap = fmax(0, volume / r - t0);
      double tokens = has_tile ? 128 * ceil(gap / tile.value) : gap * 1e6;
      /* (10): margin of the capacity test over V; (14): the window that drains a tile; (20): tokens of the Q-loop. */
      fprintf(p->script, "%d %.9g %.9g %.9g\n", i, (q - fmax(0, volume - r * t0)) / volume, volume / r * 1e6, tokens);
    }
    fprintf(p->script, "EOD\n");
  }
  static const struct {
    const char *file, *title, *y;
    int column;
  } rows[] = {{"calibration-sensitivity-10", "Equation (10): capacity margin (Q - max(0, V - R T0))/V; safe above 0",
               "margin", 2},
              {"calibration-sensitivity-14", "Equation (14): window that drains one burst, V/R", "us", 3},
              {"calibration-sensitivity-20", NULL, NULL, 4}};
  for (int i = 0; i < 3; i++) {
    char plots[512] = "";
    for (int c = 0; c < 3; c++) {
      size_t used = strlen(plots);
      snprintf(plots + used, sizeof(plots) - used, "%s$sens%d using 1:%d with lines lw %d title \"%s\"",
               used ? ", " : "", c, rows[i].column, 8 - 3 * c, names[c]); /* where they agree all can be seen */
    }
    const char *title = rows[i].title, *y = rows[i].y;
    if (!title && has_tile)
      title = "Equation (20): tokens M* from which the Q-loop covers the recovery gap", y = "tokens";
    if (!title) title = "Equation (5): recovery gap G* that the Q-loop must cover", y = "us";
    header(p, title, "constant off by, %", y);
    pictures_draw(p, rows[i].file, plots);
  }
}

int plot_platform(const dt_platform *platform, const char *verification, const char *folder) {
  if (strpbrk(folder, "\"\\\n`|")) /* which gnuplot would end the name with, or run */
    return log_fail(TOOL_USAGE, "--plot: %s; allowed: no quotes, backslashes, backticks or bars", folder);
  const char *operation = main_operation(platform);
  if (!operation)
    return log_fail(TOOL_USAGE, "--plot: the platform has no table issue_s, one-way, free; allowed: platforms that "
                                "have it, as calibrate --device cuda makes them");
  if (mkdir(folder, 0777) != 0 && errno != EEXIST)
    return log_fail(TOOL_FAILED, "--plot: %s: %s", folder, strerror(errno));
  const int descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0 || faccessat(descriptor, ".", W_OK | X_OK, 0) != 0) {
    const int cause = errno;
    if (descriptor >= 0) close(descriptor);
    return log_fail(TOOL_FAILED, "--plot: %s: %s", folder, strerror(cause));
  }
  close(descriptor);
  json_t *residuals = NULL;
  int code = verification ? read_residuals(verification, &residuals) : TOOL_OK;
  if (code) return code;
  pictures p;
  code = pictures_begin(&p);
  if (code != TOOL_OK) {
    json_decref(residuals);
    return code;
  }
  plot_rate(&p, platform, operation);
  plot_gap(&p, platform, operation);
  plot_isolated(&p, platform, operation);
  plot_sensitivity(&p, platform, operation);
  if (residuals) plot_residuals(&p, residuals);
  json_decref(residuals);
  code = pictures_end(&p, folder);
  if (code == TOOL_OK) log_note("pictures in %s", folder);
  return code;
}
