/* One run of `draintile moe`: what the parent prepares, the ranks fill and the parent reports. */
#ifndef DRAINTILE_TOOL_MOE_H
#define DRAINTILE_TOOL_MOE_H

#include <draintile/checkpoint.h>
#include <draintile/comm.h>
#include <draintile/moe.h>
#include <draintile/simulate.h>
#include <draintile/trace.h>

#include "args.h"
#include "commands.h"
#include "device_limit.h"
#include "figures.h"
#include "moe_input.h"
#include "progress.h"
#include "rank_spans.h"
#include "ranks.h"

/* A run's place among the schedules: the baseline first, whether asked for or not. */
enum { RUNS_MAX = SCHEDULES };

/* What one rank measured of one schedule, kept in memory shared with the parent. */
typedef struct moe_rank_run {
  dt_plan_config plan; /* as the executor resolved it */
  figures_verdict verdict;
  uint64_t spans_lost;              /* on a GPU, with --trace: for which it had no room */
  int32_t sms, send_sms, consumers; /* on a GPU, as dt_cuda_moe_stats */
} moe_rank_run;

typedef struct moe_rank_facts {
  int64_t tokens, slots, dropped_slots;
  int64_t token_rank_pairs; /* distinct (token, other rank) pairs: the fewest rows it must dispatch */
  double weight_bytes;      /* of the experts that got rows */
  double flops;             /* L1 and L2 of its rows */
  double sgemm_flop_per_s;  /* one big GEMM, all ranks at once */
  double read_bytes_per_s;  /* reading its experts' weights, all ranks at once */
  int64_t peak_bytes;       /* resident at most; on a GPU what the layer and its weights hold there */
  double touched_bytes;     /* of weight_bytes as a GPU holds them, bf16 */
  int32_t sms;              /* multiprocessors of the rank's GPU */
} moe_rank_facts;

/* What auto chose for a run on GPUs, in place of what was given. */
typedef struct moe_form {
  int32_t chosen; /* 0: as given */
  int32_t group_tasks, lead, dedup;
} moe_form;

/* Arrays in one shared mapping. Samples: [run][repeat][rank]; sent: [run][rank][peer]. */
typedef struct moe_shared {
  dt_moe_stats *samples;
  moe_rank_run *runs;    /* [run][rank] */
  moe_rank_facts *facts; /* [rank] */
  uint64_t *sent;        /* bytes of one forward */
  int32_t *counts;       /* [ranks][experts] */
  int32_t *ids;          /* [tokens][top_k] */
  float *weights;        /* [tokens][top_k] */
  double *reference;     /* [tokens][hidden], with --check */
  int32_t *run_count;    /* runs measured: the parent adds what auto chose */
  int32_t *schedules;    /* [RUNS_MAX], by run */
  moe_form *forms;       /* the same */
  void *base;
  size_t bytes;
} moe_shared;

typedef struct moe_job {
  const tool_args *args;
  dt_checkpoint *checkpoint;
  const dt_checkpoint_info *info;
  int32_t layer, ranks, top_k, repeat;
  int32_t gpus; /* 0: the ranks compute on CPUs */
  device_machine machine;
  moe_input input;
  dt_comm_config comm;
  dt_moe_config config; /* schedule-dependent fields as given: 0 or unset means the schedule's default */
  int order_given, choose, check;
  dt_tensor_writer *writer;
  moe_shared shared;
  /* gathered by the parent */
  rank_spans *serial_spans; /* [repeat + 1][rank], the warm-up last */
  rank_spans *last_spans;   /* [run][rank] */
  dt_sim_costs costs;
  int costs_ready;
  double predicted_s[RUNS_MAX];
  tool_progress bar;
} moe_job;

/* Messages from the ranks to the parent: spans of (run, repeat). */
static inline int32_t moe_span_tag(int32_t run, int32_t repeat) {
  return run << 24 | repeat;
}

int64_t moe_max_tokens(const moe_job *job); /* of any rank */
dt_moe_config moe_config_of(const moe_job *job, dt_schedule schedule);
dt_moe_stats *moe_sample(const moe_job *job, int32_t run, int32_t repeat, int32_t rank);
moe_rank_run *moe_run_of(const moe_job *job, int32_t run, int32_t rank);
/* The rows that rank s sends to rank r's experts, from the counts. */
int64_t moe_rows_between(const moe_job *job, int32_t source, int32_t rank);
uint64_t moe_spans_lost(const moe_job *job, int32_t run); /* of all ranks */

/* The largest relative error that --check allows: of what the rows travel as. */
double moe_tolerance(const moe_job *job);

/* moe_rank.c: one rank, in its process. */
int moe_rank_main(rank_link *link, void *job);
/* Ids and weights of this rank's tokens, into the memory that all ranks share. */
int moe_route(rank_link *link, moe_job *job, const dt_layer *layer, int64_t first, int64_t count);
/* moe_check.c: this rank's share of the float64 reference, then the errors of its own tokens. */
int moe_check_reference(rank_link *link, moe_job *job, dt_comm *comm, const dt_moe_weights *weights);
void moe_check_error(const moe_job *job, int64_t first, int64_t count, const void *output, figures_verdict *verdict);
/* moe_limit.c: probes of a rank; the limit of the run, in the parent. */
void moe_facts(const rank_link *link, moe_job *job, const dt_moe_weights *weights);
int moe_probe(rank_link *link, moe_job *job, const dt_moe_weights *weights, dt_comm *comm);
typedef struct moe_limits {
  double compute_s, link_s, memory_s, constants_s, limit_s;
} moe_limits;
moe_limits moe_limit(const moe_job *job, double compute_alone_s);
/* moe_predict.c: costs fitted to the serial runs, and the price of every run. Exit codes. */
int moe_fit(moe_job *job, int32_t first_repeat, int32_t end_repeat);
int moe_predict(moe_job *job);
int moe_choose(moe_job *job, int32_t *schedule);
/* moe_report.c: tables and JSON. Returns TOOL_CHECK_FAILED when a check failed. */
int moe_report(moe_job *job);

#endif
