/* One run of `draintile attention`: what the parent prepares, the ranks fill and the parent reports. */
#ifndef DRAINTILE_TOOL_ATTENTION_H
#define DRAINTILE_TOOL_ATTENTION_H

#include <draintile/attention.h>
#include <draintile/checkpoint.h>
#include <draintile/trace.h>

#include "args.h"
#include "figures.h"
#include "progress.h"
#include "rank_spans.h"
#include "ranks.h"

enum { ATTENTION_SCHEDULES = 2 };
extern const char *const attention_schedule_names[];
extern const char *const attention_text_names[];

/* The three tensors of the input file, whole. */
typedef struct attention_input {
  const char *path;
  dt_tensor_file *file;
  const void *q, *k, *v;
} attention_input;

/* What one rank measured, kept in memory shared with the parent. */
typedef struct attention_rank_facts {
  double flops;            /* of its heads */
  double sgemm_flop_per_s; /* one big GEMM, all ranks at once */
  int64_t peak_bytes;      /* resident at most; on a GPU: of the operator there */
  char gpu[128];
} attention_rank_facts;

/* Arrays in one shared mapping. Samples: [run][repeat][rank]; sent: [run][rank][peer]. */
typedef struct attention_shared {
  dt_attention_stats *samples;
  figures_verdict *verdicts;   /* [run][rank] */
  attention_rank_facts *facts; /* [rank] */
  uint64_t *sent;              /* bytes of one forward */
  void *base;
  size_t bytes;
} attention_shared;

typedef struct attention_job {
  const tool_args *args;
  attention_input input;
  dt_attention_config config;
  dt_comm_config comm;
  int32_t ranks, repeat, check;
  int32_t gpus;      /* of the machine, with --device cuda; else 0 */
  int32_t run_count; /* serial, the baseline of every figure, is run 0 */
  dt_attention_schedule schedules[ATTENTION_SCHEDULES];
  dt_tensor_writer *writer;
  attention_shared shared;
  rank_spans spans[ATTENTION_SCHEDULES * RANKS_MAX]; /* of the last repeat: [run][rank] */
  tool_progress bar;
} attention_job;

dt_attention_stats *attention_sample(const attention_job *job, int32_t run, int32_t repeat, int32_t rank);
figures_verdict *attention_verdict(const attention_job *job, int32_t run, int32_t rank);
uint64_t *attention_sent(const attention_job *job, int32_t run, int32_t rank); /* [ranks] */

/* attention_input.c: opens and checks the file, and fills what it says of the configuration. */
int attention_input_open(const char *path, bool on_host, attention_input *input, dt_attention_config *config);
void attention_input_close(attention_input *input);
/* attention_rank.c: one rank, in its process. */
int attention_rank_main(rank_link *link, void *job);

typedef struct attention_figures {
  figures_overlap overlap;
  figures_verdict verdict;
  double limit_s, limit_compute_s, limit_link_s, limit_constants_s;
  double in_s, compute_s, out_s; /* medians of the slowest ranks; NaN but for serial */
  double *samples_s;             /* [repeat], slowest rank */
  int64_t tiles;
  uint64_t bytes_sent;
} attention_figures;

/* attention_figures.c. figures[run_count]; samples_s freed by _free. TOOL_FAILED when out of memory. */
int attention_figures_make(const attention_job *job, attention_figures *figures);
void attention_figures_free(const attention_job *job, attention_figures *figures);
/* Busy seconds of a run's last repeat by span kind, summed over threads and ranks. */
enum { ATTENTION_SPAN_KINDS = DT_SPAN_ATTENTION + 1 };
void attention_busy(const attention_job *job, int32_t run, double busy_s[ATTENTION_SPAN_KINDS]);

/* attention_report.c: tables and JSON. Returns TOOL_CHECK_FAILED when a check failed. */
int attention_report(const attention_job *job);

#endif
