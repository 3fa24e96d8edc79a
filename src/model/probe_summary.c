#include "probe.h"

#include <math.h>
#include <stdlib.h>

#include "core/error.h"

const char *dt_probe_operation_name(int32_t operation) {
  static const char *const names[] = {"st.v4", "bulk", "tensor", "put"};
  return (unsigned)operation < sizeof names / sizeof *names ? names[operation] : "unknown";
}

const char *dt_probe_pattern_name(int32_t pattern) {
  static const char *const names[] = {"local", "one-way", "both-ways", "all-to-all", "many-to-one"};
  return (unsigned)pattern < sizeof names / sizeof *names ? names[pattern] : "unknown";
}

const char *dt_probe_alignment_name(int32_t alignment) {
  static const char *const names[] = {"free", "aligned", "drained", "alone"};
  return (unsigned)alignment < sizeof names / sizeof *names ? names[alignment] : "unknown";
}

/* Warm-up is left out: of a free run its first quarter and what ends after the window; of trains the first train, and
 * the first burst of every train of several (it meets an empty queue: a drained burst, not an aligned one). */
static int counts_burst(const dt_probe_setting *s, const dt_probe_stamp *stamp, uint32_t n, double window_s,
                        double tick) {
  if (n == 0) return 0;
  if (s->alignment == DT_FIT_FREE) return stamp->start * tick >= 0.25 * window_s && stamp->end * tick <= window_s;
  uint32_t per_train = (uint32_t)s->per_train;
  return n >= per_train && (per_train <= 1 || n % per_train != 0);
}

/* A producer whose samples ran out stopped before the window's end: from then on the others ran without it. */
static double window_of(const dt_probe_setting *s, const dt_probe_stamp *stamps, const uint32_t *counts, size_t stride,
                        double tick) {
  double window_s = s->window_s;
  for (int32_t p = 0; p < s->producers; p++)
    if (counts[p] && counts[p] == stride) window_s = fmin(window_s, stamps[(size_t)p * stride + stride - 1].end * tick);
  return window_s;
}

typedef struct extremes {
  double least, most, first_start, last_start, sum_least, sum_most, sum_spread;
  int64_t bursts;
} extremes;

/* Over producers, burst by burst; only bursts that every producer has. */
static void find_extremes(const dt_probe_setting *s, const dt_probe_stamp *stamps, size_t stride, uint32_t common,
                          double tick, extremes *e) {
  for (uint32_t n = 1; n < common; n++) {
    if (s->alignment == DT_FIT_FREE ? n < common / 4 : !counts_burst(s, &stamps[n], n, 0.0, tick)) continue;
    double least = INFINITY, most = 0.0, first = INFINITY, last = 0.0;
    for (int32_t p = 0; p < s->producers; p++) {
      const dt_probe_stamp *stamp = &stamps[(size_t)p * stride + n];
      double issue = (double)(stamp->end - stamp->start) * tick, start = stamp->start * tick;
      least = fmin(least, issue), most = fmax(most, issue);
      first = fmin(first, start), last = fmax(last, start);
    }
    e->sum_least += least, e->sum_most += most, e->sum_spread += last - first;
    e->bursts++;
  }
}

static dt_status count_active(const dt_probe_setting *s, const dt_probe_stamp *stamps, const uint32_t *counts,
                              size_t stride, double window_s, double tick, size_t bursts, double *active) {
  double *starts = malloc((bursts ? bursts : 1) * sizeof *starts);
  if (!starts) return dt_fail(DT_ERR_MEMORY, "active producers: %zu bursts", bursts);
  size_t used = 0;
  for (int32_t p = 0; p < s->producers; p++)
    for (uint32_t n = 0; n < counts[p] && used < bursts; n++) {
      const dt_probe_stamp *stamp = &stamps[(size_t)p * stride + n];
      if (counts_burst(s, stamp, n, window_s, tick)) starts[used++] = stamp->start * tick;
    }
  *active = dt_fit_active_producers(starts, used, s->active_window_s);
  free(starts);
  return DT_OK;
}

dt_status dt_probe_summary(const dt_probe_setting *setting, const dt_probe_stamp *stamps, const uint32_t *counts,
                           size_t stride, double tick, dt_probe_result *result) {
  double issue = 0.0, gap = 0.0, third = 0.0, window_s = window_of(setting, stamps, counts, stride, tick);
  int64_t bursts = 0;
  uint32_t common = UINT32_MAX;
  for (int32_t p = 0; p < setting->producers; p++) {
    if (counts[p] < common) common = counts[p];
    for (uint32_t n = 1; n < counts[p]; n++) {
      const dt_probe_stamp *stamp = &stamps[(size_t)p * stride + n];
      if (!counts_burst(setting, stamp, n, window_s, tick)) continue;
      issue += (double)(stamp->end - stamp->start) * tick;
      gap += (double)(stamp->start - stamp[-1].end) * tick;
      third += stamp->third * tick;
      bursts++;
    }
  }
  if (!bursts) return dt_fail(DT_ERR_INPUT, "probe: no burst of %d producers fell into the window", setting->producers);
  extremes e = {0};
  find_extremes(setting, stamps, stride, common, tick, &e);
  double n = (double)bursts, volume = (double)setting->producers * (double)setting->producer_bytes;
  *result = (dt_probe_result){.issue_s = issue / n, .gap_s = gap / n, .third_s = third / n, .bursts = bursts};
  result->bytes_per_s = volume * n / (issue + gap);
  if (e.bursts) {
    result->issue_min_s = e.sum_least / (double)e.bursts;
    result->issue_max_s = e.sum_most / (double)e.bursts;
    result->start_spread_s = e.sum_spread / (double)e.bursts;
  }
  if (setting->active_window_s > 0.0)
    return count_active(setting, stamps, counts, stride, window_s, tick, (size_t)bursts, &result->active_producers);
  return DT_OK;
}
