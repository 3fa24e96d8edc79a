#include "moe_figures.h"

#include <math.h>
#include <stdlib.h>

#include "figures.h"

const char *const moe_stage_names[STAGES] = {"plan_s", "dispatch_s", "compute_s", "combine_s", "reduce_s"};

static double stage_of(const dt_moe_stats *stats, int stage) {
  const double stages[STAGES] = {stats->plan_s, stats->dispatch_s, stats->compute_s, stats->combine_s, stats->reduce_s};
  return stages[stage];
}

/* Over the repeats: each one's slowest rank. stage < 0: the total. */
static void slowest(const moe_job *job, int32_t run, int stage, double *out) {
  for (int32_t repeat = 0; repeat < job->repeat; repeat++) {
    out[repeat] = 0;
    for (int32_t rank = 0; rank < job->ranks; rank++) {
      const dt_moe_stats *stats = moe_sample(job, run, repeat, rank);
      double value = stage < 0 ? stats->total_s : stage_of(stats, stage);
      if (value > out[repeat]) out[repeat] = value;
    }
  }
}

static void add_ranks(const moe_job *job, int32_t run, moe_figures *f) {
  f->verdict = (figures_verdict){.bit_equal = 1, .max_relative_error = job->check ? 0 : NAN, .worst_token = -1};
  for (int32_t rank = 0; rank < job->ranks; rank++) {
    const dt_moe_stats *stats = moe_sample(job, run, job->repeat - 1, rank);
    f->rows += stats->rows;
    f->padded_rows += stats->padded_rows;
    f->tiles += stats->tiles;
    f->bytes_sent += stats->bytes_sent;
    figures_verdict_merge(&f->verdict, &moe_run_of(job, run, rank)->verdict);
  }
}

static int make_one(const moe_job *job, int32_t run, const moe_figures *serial, moe_figures *f) {
  f->schedule = (dt_schedule)job->shared.schedules[run];
  f->predicted_s = job->predicted_s[run];
  f->samples_s = calloc((size_t)job->repeat, sizeof(double));
  double *samples = calloc((size_t)job->repeat, sizeof(double));
  if (!samples || !f->samples_s) {
    free(samples);
    return 0;
  }
  slowest(job, run, -1, f->samples_s);
  double total_s = figures_median(f->samples_s, job->repeat);
  for (int stage = 0; stage < STAGES; stage++) {
    slowest(job, run, stage, samples);
    f->stages_s[stage] = run == 0 || stage == 0 ? figures_median(samples, job->repeat) : NAN;
  }
  free(samples);
  add_ranks(job, run, f);
  f->overlap = figures_overlap_of(total_s, serial->stages_s[2], serial->stages_s[1] + serial->stages_s[3],
                                  run == 0 ? total_s : serial->overlap.total_s);
  f->limits = moe_limit(job, f->overlap.compute_alone_s);
  return 1;
}

moe_figures *moe_figures_make(const moe_job *job) {
  int32_t count = *job->shared.run_count;
  moe_figures *figures = calloc((size_t)count, sizeof(*figures));
  for (int32_t run = 0; figures && run < count; run++)
    if (!make_one(job, run, figures, &figures[run])) {
      moe_figures_free(figures, count);
      return NULL;
    }
  return figures;
}

void moe_figures_free(moe_figures *figures, int32_t count) {
  for (int32_t run = 0; figures && run < count; run++) free(figures[run].samples_s);
  free(figures);
}

void moe_busy(const moe_job *job, int32_t run, double busy_s[SPAN_KINDS]) {
  rank_spans_busy(&job->last_spans[(size_t)run * (size_t)job->ranks], job->ranks, busy_s, SPAN_KINDS);
}

uint64_t moe_spans_lost(const moe_job *job, int32_t run) {
  uint64_t lost = 0;
  for (int32_t rank = 0; rank < job->ranks; rank++) lost += moe_run_of(job, run, rank)->spans_lost;
  return lost;
}

static moe_load load_of(const moe_job *job, int32_t parts) {
  moe_load load = {0};
  int32_t experts = job->info->experts, width = experts / parts;
  for (int32_t part = 0; part < parts; part++) {
    double rows = 0;
    for (int32_t source = 0; source < job->ranks; source++)
      for (int32_t e = part * width; e < (part + 1) * width; e++) rows += job->shared.counts[source * experts + e];
    load.mean += rows / parts;
    if (rows > load.max) load.max = rows;
  }
  return load;
}

moe_load moe_rank_load(const moe_job *job) {
  return load_of(job, job->ranks);
}

moe_load moe_expert_load(const moe_job *job) {
  return load_of(job, job->info->experts);
}
