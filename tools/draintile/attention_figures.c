/* The figures of docs/attention.md, computed once for tables and JSON. */
#include <math.h>
#include <stdlib.h>

#include <draintile/build.h>

#include "attention.h"
#include "figures.h"

static double field_of(const dt_attention_stats *stats, int field) {
  const double fields[] = {stats->total_s, stats->in_s, stats->compute_s, stats->out_s};
  return fields[field];
}

/* Over the repeats: each one's slowest rank. Returns the median. */
static double slowest(const attention_job *job, int32_t run, int field, double *samples) {
  for (int32_t repeat = 0; repeat < job->repeat; repeat++) {
    samples[repeat] = 0;
    for (int32_t rank = 0; rank < job->ranks; rank++)
      samples[repeat] = fmax(samples[repeat], field_of(attention_sample(job, run, repeat, rank), field));
  }
  return figures_median(samples, job->repeat);
}

static void add_ranks(const attention_job *job, int32_t run, attention_figures *f) {
  f->verdict = (figures_verdict){.bit_equal = 1, .max_relative_error = job->check ? 0 : NAN, .worst_token = -1};
  for (int32_t rank = 0; rank < job->ranks; rank++) {
    const dt_attention_stats *stats = attention_sample(job, run, job->repeat - 1, rank);
    f->tiles += stats->tiles;
    f->bytes_sent += stats->bytes_sent;
    figures_verdict_merge(&f->verdict, attention_verdict(job, run, rank));
  }
}

/* The bound that no schedule can beat here: the products at the better of our rate and the library's, the bytes that a
 * rank must send at the link's rate, and what comes before the first tile and after the last one. */
static void add_limit(const attention_job *job, int32_t run, attention_figures *f) {
  double flops = 0, rate = 0, gemm_s = 0, bytes = 0;
  for (int32_t rank = 0; rank < job->ranks; rank++) {
    const attention_rank_facts *facts = &job->shared.facts[rank];
    double sent = 0;
    flops += facts->flops;
    rate += facts->sgemm_flop_per_s;
    if (facts->sgemm_flop_per_s > 0) gemm_s = fmax(gemm_s, facts->flops / facts->sgemm_flop_per_s);
    for (int32_t peer = 0; peer < job->ranks; peer++)
      if (peer != rank) sent += (double)attention_sent(job, run, rank)[peer];
    bytes = fmax(bytes, sent);
  }
  /* Where the ranks share processors, one that is done early leaves its share to the others. */
  if (job->ranks * job->config.workers > dt_build_processors()) gemm_s = rate > 0 ? flops / rate : 0;
  /* On a GPU the kernel's own time: there is no rate of a library beside it. */
  f->limit_compute_s = job->gpus ? f->overlap.compute_alone_s : fmin(gemm_s, f->overlap.compute_alone_s);
  if (job->comm.link_bytes_per_s > 0) {
    f->limit_link_s = bytes / job->comm.link_bytes_per_s;
    f->limit_constants_s = 2 * job->comm.link_latency_s;
  }
  f->limit_s = fmax(f->limit_compute_s, f->limit_link_s) + f->limit_constants_s;
}

static int make_one(const attention_job *job, int32_t run, const attention_figures *serial, attention_figures *f) {
  f->samples_s = calloc((size_t)job->repeat, sizeof(double));
  double *samples = calloc((size_t)job->repeat, sizeof(double));
  if (!samples || !f->samples_s) {
    free(samples);
    return 0;
  }
  double total_s = slowest(job, run, 0, f->samples_s);
  f->in_s = run == 0 ? slowest(job, run, 1, samples) : NAN;
  f->compute_s = run == 0 ? slowest(job, run, 2, samples) : NAN;
  f->out_s = run == 0 ? slowest(job, run, 3, samples) : NAN;
  double serial_s = run == 0 ? total_s : serial->overlap.total_s;
  f->overlap = figures_overlap_of(total_s, serial->compute_s, serial->in_s + serial->out_s, serial_s);
  free(samples);
  add_ranks(job, run, f);
  add_limit(job, run, f);
  return 1;
}

int attention_figures_make(const attention_job *job, attention_figures *figures) {
  for (int32_t run = 0; run < job->run_count; run++) figures[run] = (attention_figures){0};
  for (int32_t run = 0; run < job->run_count; run++)
    if (!make_one(job, run, figures, &figures[run])) {
      attention_figures_free(job, figures);
      return TOOL_FAILED;
    }
  return TOOL_OK;
}

void attention_figures_free(const attention_job *job, attention_figures *figures) {
  for (int32_t run = 0; run < job->run_count; run++) free(figures[run].samples_s);
}

void attention_busy(const attention_job *job, int32_t run, double busy_s[ATTENTION_SPAN_KINDS]) {
  rank_spans_busy(&job->spans[run * job->ranks], job->ranks, busy_s, ATTENTION_SPAN_KINDS);
}
