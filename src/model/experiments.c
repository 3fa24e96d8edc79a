#include "experiments.h"

#include <math.h>
#include <string.h>

#include "core/error.h"

typedef struct design_row {
  int32_t detail; /* from which level on */
  int32_t alignment;
  double producers, bytes; /* of the design's */
  double gap;
} design_row;

enum { FREE = DT_FIT_FREE, ALIGNED = DT_FIT_ALIGNED, DRAINED = DT_FIT_DRAINED };

/* Free-running without a gap and with long gaps (R and T0), isolated (Q), and aligned pairs, which no constant is
 * fitted to: they decide between the laws. */
static const design_row fit_rows[] = {
    {0, FREE, 1, 1, 0},          {0, FREE, 1, 1, 1.5},       {0, FREE, 1, 2, 0},          {0, FREE, 1, 2, 1.5},
    {0, DRAINED, 1, 1, 0},       {0, DRAINED, 1, 2, 0},      {0, FREE, 1, 0.5, 0},        {0, FREE, 1, 0.5, 1.5},
    {0, FREE, 1, 0.25, 1.5},     {0, FREE, 1, 0.125, 1.5},   {1, FREE, 1, 1, 0.25},       {1, FREE, 1, 1, 0.5},
    {1, FREE, 1, 1, 0.75},       {1, FREE, 1, 1, 1.2},       {1, FREE, 1, 2, 0.25},       {1, FREE, 1, 2, 0.5},
    {1, FREE, 1, 2, 0.75},       {1, FREE, 1, 2, 1.2},       {1, FREE, 1, 0.5, 0.5},      {1, FREE, 0.5, 1, 0},
    {1, FREE, 0.5, 1, 0.5},      {1, FREE, 0.5, 1, 1.5},     {1, FREE, 0.5, 2, 0},        {1, FREE, 0.5, 2, 0.5},
    {1, FREE, 0.5, 2, 1.5},      {1, FREE, 0.25, 1, 0},      {1, FREE, 0.25, 1, 1.5},     {1, FREE, 0.25, 2, 0},
    {1, FREE, 0.25, 2, 1.5},     {1, DRAINED, 1, 0.625, 0},  {1, DRAINED, 1, 0.75, 0},    {1, DRAINED, 1, 1.25, 0},
    {1, DRAINED, 0.5, 0.75, 0},  {1, DRAINED, 0.5, 1, 0},    {1, DRAINED, 0.5, 1.25, 0},  {1, DRAINED, 0.5, 2, 0},
    {1, DRAINED, 0.25, 0.75, 0}, {1, DRAINED, 0.25, 1, 0},   {1, DRAINED, 0.25, 1.25, 0}, {1, DRAINED, 0.25, 2, 0},
    {1, ALIGNED, 1, 1, 0.8},     {1, ALIGNED, 1, 1, 0.9},    {1, ALIGNED, 1, 1, 0.95},    {1, ALIGNED, 1, 1, 1.1},
    {1, ALIGNED, 1, 1, 1.5},     {1, ALIGNED, 1, 1, 2.2},    {1, ALIGNED, 1, 2, 0.95},    {1, ALIGNED, 1, 2, 1.1},
    {1, ALIGNED, 1, 2, 1.5},     {1, ALIGNED, 0.5, 1, 0.9},  {1, ALIGNED, 0.5, 1, 1.1},   {1, ALIGNED, 0.5, 1, 1.5},
    {2, FREE, 0.0076, 1, 0},     {2, FREE, 0.0303, 1, 0},    {2, FREE, 0.0607, 1, 0},     {2, FREE, 0.091, 1, 0},
    {2, FREE, 0.1213, 1, 0},     {2, FREE, 0.182, 1, 0},     {2, FREE, 0.3637, 1, 0},     {2, FREE, 0.7576, 1, 0},
    {2, FREE, 0.7576, 1, 1.5},   {2, DRAINED, 0.7576, 1, 0}, {2, DRAINED, 0.7576, 2, 0},  {2, DRAINED, 0.7576, 1.25, 0},
    {2, DRAINED, 1, 0.25, 0},    {2, DRAINED, 1, 0.375, 0},  {2, DRAINED, 1, 0.5, 0},     {2, DRAINED, 1, 4, 0},
    {2, DRAINED, 1, 8, 0},
};

static const design_row held_out_rows[] = {
    {0, FREE, 1, 1.5, 0.15},      {0, FREE, 1, 1, 0.35},        {0, DRAINED, 1, 1.5, 0},
    {0, ALIGNED, 1, 1.5, 1.15},   {0, ALIGNED, 1, 1.5, 1.5},    {1, FREE, 1, 1, 0.1},
    {1, FREE, 1, 1, 0.6},         {1, FREE, 1, 1, 0.9},         {1, FREE, 1, 1, 1.05},
    {1, FREE, 1, 1, 1.35},        {1, FREE, 1, 1.5, 0.35},      {1, FREE, 1, 1.5, 0.6},
    {1, FREE, 1, 1.5, 0.85},      {1, FREE, 1, 1.5, 1.3},       {1, FREE, 1, 0.75, 0.15},
    {1, FREE, 1, 0.75, 0.4},      {1, FREE, 1, 0.75, 0.65},     {1, FREE, 1, 0.75, 1.3},
    {1, FREE, 0.7576, 1.5, 0.2},  {1, FREE, 0.7576, 1.5, 0.6},  {1, FREE, 0.5, 1.5, 0.2},
    {1, FREE, 0.5, 1, 0.35},      {1, FREE, 0.5, 1.5, 0.65},    {1, FREE, 0.5, 1.5, 1.3},
    {1, DRAINED, 1, 0.875, 0},    {1, DRAINED, 1, 1.125, 0},    {1, DRAINED, 1, 1.75, 0},
    {1, DRAINED, 0.7576, 1.5, 0}, {1, DRAINED, 0.5, 0.875, 0},  {1, DRAINED, 0.5, 1.125, 0},
    {1, DRAINED, 0.5, 1.5, 0},    {1, DRAINED, 0.5, 1.75, 0},   {1, DRAINED, 0.25, 1.125, 0},
    {1, DRAINED, 0.25, 1.5, 0},   {1, ALIGNED, 1, 1, 0.75},     {1, ALIGNED, 1, 1, 0.85},
    {1, ALIGNED, 1, 1, 1},        {1, ALIGNED, 1, 1, 1.25},     {1, ALIGNED, 1, 0.75, 0.8},
    {1, ALIGNED, 1, 0.75, 0.9},   {1, ALIGNED, 1, 0.75, 1},     {1, ALIGNED, 1, 0.75, 1.3},
    {1, ALIGNED, 1, 1.5, 0.9},    {1, ALIGNED, 1, 1.5, 0.95},   {1, ALIGNED, 1, 1.5, 1},
    {1, ALIGNED, 1, 2, 0.92},     {1, ALIGNED, 1, 2, 1},        {1, ALIGNED, 0.5, 1, 0.85},
    {1, ALIGNED, 0.5, 1, 0.95},   {1, ALIGNED, 0.5, 1, 1.05},   {1, ALIGNED, 0.5, 1.5, 0.95},
    {1, ALIGNED, 0.5, 1.5, 1.05}, {1, ALIGNED, 0.5, 1.5, 1.25},
};

/* A fraction of the producers: whole fours where there are many, so that a round number of SMs takes part. */
static int32_t producers_of(const dt_design *design, double fraction) {
  int32_t producers = (int32_t)lrint(fraction * design->producers);
  if (producers > 4 && producers < design->producers) producers -= producers % 4;
  return producers < 1 ? 1 : producers;
}

dt_probe_setting dt_design_setting(const dt_design *design, int32_t alignment, double producers, double bytes,
                                   double gap) {
  dt_probe_setting s = {.operation = design->operation, .pattern = design->pattern, .alignment = alignment};
  s.producers = producers_of(design, producers);
  int64_t units = llrint(bytes * (double)design->producer_bytes / (double)design->unit_bytes);
  s.producer_bytes = (units < 1 ? 1 : units) * design->unit_bytes;
  double drain_s = (double)s.producers * (double)s.producer_bytes / design->bytes_per_s;
  double issue_s = design->issue_s_per_byte * (double)s.producer_bytes;
  double busy_s = fmax(drain_s, issue_s); /* the least that a period can take */
  if (alignment == DT_FIT_FREE) {
    s.gap_s = gap * drain_s;
    s.window_s = design->bursts * fmax(busy_s, s.gap_s + issue_s) * 4.0 / 3.0; /* the first quarter is not counted */
    return s;
  }
  s.per_train = alignment == DT_FIT_ALIGNED ? 2 : 1;
  s.trains = design->bursts / 2 + 2;
  s.period_s = alignment == DT_FIT_ALIGNED ? gap * drain_s : 0.0;
  s.train_s = s.period_s + s.per_train * 1.5 * busy_s + drain_s; /* the queue is empty before the next train */
  return s;
}

static int same_setting(const dt_probe_setting *a, const dt_probe_setting *b) {
  return a->operation == b->operation && a->pattern == b->pattern && a->alignment == b->alignment &&
         a->producers == b->producers && a->producer_bytes == b->producer_bytes && a->gap_s == b->gap_s &&
         a->window_s == b->window_s && a->period_s == b->period_s && a->train_s == b->train_s &&
         a->per_train == b->per_train && a->trains == b->trains && a->third == b->third &&
         a->active_window_s == b->active_window_s;
}

static dt_status append_rows(const dt_design *design, const design_row *rows, size_t count, int32_t held_out,
                             dt_experiments *experiments) {
  for (size_t i = 0; i < count; i++) {
    if (rows[i].detail > design->detail) continue;
    dt_experiment e = {.held_out = held_out};
    e.setting = dt_design_setting(design, rows[i].alignment, rows[i].producers, rows[i].bytes, rows[i].gap);
    int seen = 0; /* with few producers several fractions are one number */
    for (size_t j = 0; j < experiments->count && !seen; j++)
      seen = same_setting(&experiments->list[j].setting, &e.setting);
    if (seen) continue;
    if (experiments->count == DT_EXPERIMENTS) return dt_fail(DT_ERR_INTERNAL, "design: over %d", DT_EXPERIMENTS);
    experiments->list[experiments->count++] = e;
  }
  return DT_OK;
}

dt_status dt_design_fit(const dt_design *design, dt_experiments *experiments) {
  return append_rows(design, fit_rows, sizeof fit_rows / sizeof *fit_rows, 0, experiments);
}

dt_status dt_design_held_out(const dt_design *design, dt_experiments *experiments) {
  return append_rows(design, held_out_rows, sizeof held_out_rows / sizeof *held_out_rows, 1, experiments);
}

/* Longer and longer runs without a gap until two agree: the first bytes only fill the queue. */
static dt_status pilot_rate(const dt_probe_machine *machine, dt_design *design) {
  dt_probe_setting s = {.operation = design->operation, .pattern = design->pattern, .producers = design->producers};
  s.producer_bytes = design->unit_bytes * (1 + 16383 / design->unit_bytes);
  double before = 0.0;
  for (s.window_s = design->pilot_s > 0.0 ? design->pilot_s : 0.02; s.window_s < 3.0; s.window_s *= 2.0) {
    dt_probe_result result;
    dt_status status = machine->run(machine->context, &s, &result);
    if (status == DT_ERR_INPUT) continue; /* not one burst in so short a window */
    if (status) return status;
    design->bytes_per_s = result.bytes_per_s;
    design->issue_s_per_byte = result.issue_min_s / (double)s.producer_bytes;
    if (fabs(result.bytes_per_s - before) < 0.02 * before) return DT_OK;
    before = result.bytes_per_s;
  }
  if (!(design->bytes_per_s > 0.0))
    return dt_fail(DT_ERR_INPUT, "pilot: no burst of %lld bytes ended within %g s; a faster link is needed",
                   (long long)s.producer_bytes, 0.75 * s.window_s);
  return DT_OK; /* the last and longest is the best there is */
}

/* The shortest of some isolated bursts, `bytes` of the design's, since whatever else the machine does only delays; the
 * first that takes less than `enough_s` will do. */
static dt_status pilot_isolated(const dt_probe_machine *machine, const dt_design *design, double bytes, double enough_s,
                                double *issue_s) {
  dt_design brief = *design;
  brief.bursts = 4;
  dt_probe_setting s = dt_design_setting(&brief, DT_FIT_DRAINED, 1, bytes, 0);
  *issue_s = INFINITY;
  for (int repeat = 0; repeat < 5 && *issue_s >= enough_s; repeat++) {
    dt_probe_result result;
    dt_status status = machine->run(machine->context, &s, &result);
    if (status) return status;
    *issue_s = fmin(*issue_s, result.issue_s);
  }
  return DT_OK;
}

dt_status dt_design_pilot(const dt_probe_machine *machine, dt_design *design) {
  dt_status status = pilot_rate(machine, design);
  if (status || design->producer_bytes > 0) return status;
  /* Isolated bursts, each twice the last, until one takes half of V/R: V is then about 2 Q. */
  double bytes = 2e-3 * design->bytes_per_s / design->producers; /* queues hold at least about a millisecond */
  double issue_s = 0.0, longer_s;
  for (int step = 0; step < 8; step++, bytes *= 2.0) {
    design->producer_bytes = (int64_t)(bytes / (double)design->unit_bytes + 1.0) * design->unit_bytes;
    double volume = (double)design->producers * (double)design->producer_bytes;
    double stall_s = 0.4 * volume / design->bytes_per_s;
    status = pilot_isolated(machine, design, 1, stall_s, &issue_s);
    if (status) return status;
    double capacity = volume - design->bytes_per_s * issue_s;
    design->capacity_bytes = fmax(capacity, 0.0);
    if (issue_s < stall_s) continue;
    int64_t units = (int64_t)(1.7 * fmax(capacity, 0.25 * volume) / design->producers / (double)design->unit_bytes);
    design->producer_bytes = (units < 1 ? 1 : units) * design->unit_bytes;
    return DT_OK;
  }
  /* Twice that is the longest the design has. Behind a queue that it fills it would take 1.75 times as long a byte or
   * more; else, or if it hardly takes any of V/R, nothing stalls, which a long run would only say later. */
  const double volume = 2.0 * design->producers * (double)design->producer_bytes;
  const double least_s = fmax(1.5 * 2.0 * issue_s, 0.05 * volume / design->bytes_per_s);
  status = pilot_isolated(machine, design, 2, least_s, &longer_s);
  if (!status && longer_s < least_s)
    status =
        dt_fail(DT_ERR_INPUT, "samples: no isolated burst of up to %.0f bytes stalls; Q needs some that do", volume);
  return status;
}

dt_status dt_experiments_run(const dt_probe_machine *machine, const dt_experiments *experiments, int32_t rounds,
                             dt_progress_fn progress, void *context, dt_probe_result *results) {
  size_t total = (size_t)rounds * experiments->count;
  for (size_t i = 0; i < total; i++) {
    if (progress) progress(context, (double)i, (double)total);
    dt_status status = machine->run(machine->context, &experiments->list[i % experiments->count].setting, &results[i]);
    if (status == DT_ERR_INPUT)
      results[i] = (dt_probe_result){.bursts = 0};
    else if (status)
      return status;
  }
  if (progress) progress(context, (double)total, (double)total);
  return DT_OK;
}

int32_t dt_design_alignment(const dt_probe_setting *setting) {
  return setting->alignment == DT_FIT_FREE && setting->producers == 1 ? DT_FIT_ALONE : setting->alignment;
}

size_t dt_experiments_samples(const dt_design *design, const dt_experiments *experiments, int32_t rounds,
                              const dt_probe_result *results, dt_fit_sample *samples, size_t *late) {
  size_t n = 0;
  *late = 0;
  for (int32_t round = 0; round < rounds; round++) {
    for (size_t i = 0; i < experiments->count; i++) {
      const dt_probe_setting *s = &experiments->list[i].setting;
      const dt_probe_result *r = &results[(size_t)round * experiments->count + i];
      double volume = (double)s->producers * (double)s->producer_bytes, drain_s = volume / design->bytes_per_s;
      if (!r->bursts || s->third != DT_PROBE_NOTHING) continue;
      if (s->alignment == DT_FIT_ALIGNED && r->start_spread_s > 0.1 * drain_s) {
        ++*late;
        continue;
      }
      samples[n++] = (dt_fit_sample){.producers = s->producers,
                                     .round = round,
                                     .producer_bytes = (double)s->producer_bytes,
                                     .gap_s = r->gap_s,
                                     .issue_s = r->issue_s,
                                     .bytes_per_s = s->alignment == DT_FIT_FREE ? r->bytes_per_s : 0.0,
                                     .alignment = dt_design_alignment(s),
                                     .may_stall = design->capacity_bytes > 0.0 && volume > 0.6 * design->capacity_bytes,
                                     .held_out = experiments->list[i].held_out};
    }
  }
  return n;
}
