#include "bench_combine.h"

#include <math.h>

#include "log.h"

/* The link's latency is the last drain: what a burst takes beyond its bytes over the rate until it is complete. */
const char *const combine_constant_names[COMBINE_CONSTANTS] = {"entry_barrier_s", "first_fill_s", "link_latency_s",
                                                               "fence_sys_s", "flag_release_s"};

static double look_up(const dt_platform *platform, const char *name) {
  dt_interval interval;
  return dt_platform_lookup(platform, name, &interval) == DT_OK ? interval.value : NAN;
}

int combine_platform_read(combine_platform *p, const char *path) {
  *p =
      (combine_platform){.rate_bytes_per_s = NAN, .memory_bytes_per_s = NAN, .capacity_bytes = NAN, .constants_s = NAN};
  for (int i = 0; i < COMBINE_CONSTANTS; i++) p->constant_s[i] = NAN;
  if (!path) return TOOL_OK;
  const dt_status loaded = dt_platform_load(path, &p->platform);
  if (loaded) return log_unread(loaded);
  p->rate_bytes_per_s = look_up(p->platform, "rate_bytes_per_s");
  p->memory_bytes_per_s = look_up(p->platform, "memory_bytes_per_s");
  p->capacity_bytes = look_up(p->platform, "capacity_bytes");
  p->constants_s = 0;
  for (int i = 0; i < COMBINE_CONSTANTS; i++) {
    p->constant_s[i] = look_up(p->platform, combine_constant_names[i]);
    if (!isnan(p->constant_s[i])) p->constants_s += p->constant_s[i];
  }
  if (isnan(p->rate_bytes_per_s) || isnan(p->constant_s[0]))
    return log_fail(TOOL_USAGE, "%s: rate_bytes_per_s or %s is missing", path, combine_constant_names[0]);
  return TOOL_OK;
}

combine_limit combine_limit_of(const dt_combine_bench *bench, const combine_platform *platform) {
  const dt_combine_bench_case *s = &bench->setting;
  combine_limit l = {.compute_s = bench->timings[DT_METHOD_GEMM].median_s};
  for (int32_t r = 0; r < bench->ranks; r++) {
    const int64_t rows = bench->sent_rows[r] > bench->received_rows[r] ? bench->sent_rows[r] : bench->received_rows[r];
    if (rows * 2 * s->n > l.bytes) l.bytes = rows * 2 * s->n;
  }
  if (bench->timings[DT_METHOD_CUBLAS].done) l.compute_s = fmin(l.compute_s, bench->timings[DT_METHOD_CUBLAS].median_s);
  l.weights_bytes = 2 * (int64_t)s->experts * s->n * s->k;
  l.link_s = (double)l.bytes / platform->rate_bytes_per_s;
  l.weights_s = (double)l.weights_bytes / platform->memory_bytes_per_s;
  l.total_s = fmax(fmax(l.compute_s, l.link_s), isnan(l.weights_s) ? 0 : l.weights_s) + platform->constants_s;
  if (isnan(l.compute_s) || isnan(l.link_s)) l.total_s = NAN;
  return l;
}
