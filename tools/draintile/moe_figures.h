/* The figures of docs/command.md, computed once for tables and JSON. */
#ifndef DRAINTILE_TOOL_MOE_FIGURES_H
#define DRAINTILE_TOOL_MOE_FIGURES_H

#include <stdint.h>

#include <jansson.h>

#include "moe.h"

enum { STAGES = 5 };
extern const char *const moe_stage_names[STAGES]; /* "plan_s", "dispatch_s", ... */

typedef struct moe_figures {
  dt_schedule schedule;
  figures_overlap overlap;
  figures_verdict verdict;
  double predicted_s;
  moe_limits limits;
  double stages_s[STAGES]; /* medians; NaN: the schedule has no such stage */
  double *samples_s;       /* [repeat], slowest rank */
  int64_t rows, padded_rows, tiles;
  uint64_t bytes_sent;
} moe_figures;

/* Busy seconds of a run's last repeat by span kind, summed over threads and ranks. */
enum { SPAN_KINDS = DT_SPAN_KINDS };
void moe_busy(const moe_job *job, int32_t run, double busy_s[SPAN_KINDS]);

typedef struct moe_load {
  double max, mean;
} moe_load;
moe_load moe_rank_load(const moe_job *job);
moe_load moe_expert_load(const moe_job *job);

/* [run_count], freed by moe_figures_free; NULL when out of memory. */
moe_figures *moe_figures_make(const moe_job *job);
void moe_figures_free(moe_figures *figures, int32_t count);
json_t *moe_figures_json(const moe_job *job, const moe_figures *figures);

#endif
