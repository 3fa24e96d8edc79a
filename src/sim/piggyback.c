/* Attention whose output tiles go to their owners from the kernel itself: X-Stage, section 1.5 and equations (16) to
 * (20), with a platform's constants. Of a tile's bytes all count as remote: the law is for tiles that leave. */
#include <draintile/simulate.h>

#include <math.h>

#include "core/error.h"

static double positive(double value) {
  return fmax(value, 0.0);
}

static dt_status check(const dt_piggyback_question *q) {
  const struct {
    const char *name;
    double value, least;
  } fields[] = {{"tokens", q->tokens, 1.0},   {"heads", q->heads, 1.0},         {"head_dim", q->head_dim, 1.0},
                {"ranks", q->ranks, 1.0},     {"producers", q->producers, 1.0}, {"tile_rows", q->tile_rows, 1.0},
                {"kv_tile", q->kv_tile, 1.0}, {"kv_tile_s", q->kv_tile_s, 0.0}, {"floor_s", q->floor_s, 0.0}};
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    if (!(fields[i].value >= fields[i].least) || !isfinite(fields[i].value))
      return dt_fail(DT_ERR_ARGUMENT, "%s: %g; a finite number from %g is allowed", fields[i].name, fields[i].value,
                     fields[i].least);
  return DT_OK;
}

/* What ends the kernel: the last drain's latency, a fence, a flag with its release. */
static dt_status floor_of(const dt_platform *platform, double *seconds) {
  static const char *const names[] = {"link_latency_s", "fence_sys_s", "flag_release_s"};
  *seconds = 0.0;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    dt_interval value;
    dt_status status = dt_platform_lookup(platform, names[i], &value);
    if (status) return status;
    *seconds += value.value;
  }
  return DT_OK;
}

dt_status dt_sim_piggyback(const dt_platform *platform, const dt_piggyback_question *question,
                           dt_piggyback_answer *answer) {
  dt_piggyback_question q = *question;
  dt_status status = check(&q);
  dt_interval sigma = {q.kv_tile_s, q.kv_tile_s, q.kv_tile_s};
  if (!status && q.kv_tile_s == 0.0) status = dt_platform_lookup(platform, "attention_kv_tile_s", &sigma);
  if (!status && !(sigma.value >= 0.0))
    status = dt_fail(DT_ERR_INPUT, "attention_kv_tile_s: %g; 0 or more is allowed", sigma.value);
  if (!status && q.floor_s == 0.0) status = floor_of(platform, &q.floor_s);
  double bytes = q.tile_rows * q.head_dim * 2.0, volume = q.producers * bytes;
  dt_platform_question both = {q.producers, bytes, "both-ways", "tensor", NULL};
  static const char *const operations[] = {"tensor", "bulk", "st.v4", NULL};
  dt_burst_model_interval m = {{0.0, 0.0, 0.0}, {0.0, 0.0, 0.0}, {0.0, 0.0, 0.0}};
  dt_status known = DT_ERR_INPUT;
  for (size_t i = 0; i < sizeof operations / sizeof *operations && !status && known; i++) {
    both.operation = operations[i];
    if (!operations[i]) both.pattern = NULL;
    known = dt_platform_burst_model(platform, &both, &m, NULL);
  }
  if (status || known) return status ? status : known;
  double t0 = m.t0_s.value, drain = volume / m.rate_bytes_per_s.value;
  dt_piggyback_answer a = {.gap_s = sigma.value * ceil(q.tokens / q.kv_tile), .recovery_gap_s = positive(drain - t0)};
  a.bursts = ceil(q.tokens / q.tile_rows) * q.heads / q.producers;
  a.attention_s = ceil(a.bursts) * a.gap_s;
  /* With finite Q, waiting recovers no more than Q/R: the completed law (2'). */
  double gap = fmin(a.gap_s, m.capacity_bytes.value / m.rate_bytes_per_s.value);
  a.residual_s = q.floor_s + a.bursts * positive(drain - t0 - a.gap_s);
  double low_gap = fmin(a.gap_s, m.capacity_bytes.low / m.rate_bytes_per_s.low);
  a.residual_high_s =
      q.floor_s + a.bursts * positive(volume / m.rate_bytes_per_s.low - m.t0_s.low - fmin(low_gap, gap));
  a.coupled_s = q.floor_s + a.bursts * drain;
  a.least_tokens = sigma.value > 0.0 ? q.kv_tile * ceil(a.recovery_gap_s / sigma.value) : 0.0;
  const double sums[] = {a.gap_s,           a.recovery_gap_s, a.bursts,      a.attention_s,
                         a.residual_high_s, a.coupled_s,      a.least_tokens};
  for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
    if (!isfinite(sums[i]))
      return dt_fail(DT_ERR_ARGUMENT, "tokens, heads: %g, %g; fewer are allowed, their times are not finite", q.tokens,
                     q.heads);
  *answer = a;
  return DT_OK;
}
