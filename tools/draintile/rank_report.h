/* What the reports of the commands that run ranks say alike, as text and as JSON. */
#ifndef DRAINTILE_TOOL_RANK_REPORT_H
#define DRAINTILE_TOOL_RANK_REPORT_H

#include <stdint.h>

#include <draintile/comm.h>
#include <draintile/plan.h>
#include <jansson.h>

#include "figures.h"
#include "table.h"

/* One line: ranks, threads of each, and the link between them. */
void rank_report_machine(int32_t ranks, int32_t workers, int32_t consumers, const dt_comm_config *comm);
/* Two cells: bits, max error. */
void rank_report_verdict(tool_table *table, const figures_verdict *verdict, int checked);
/* Says which checks of a run failed, one line each; true: any. */
int rank_report_judge(const char *schedule, const figures_verdict *verdict, double tolerance);
/* Notes the price of every schedule, by dt_schedule; 0: signal without a consumer. */
void rank_report_prices(const double *predicted_s, dt_schedule chosen);

/* Each adds its keys to `object`. */
void rank_report_times_json(json_t *object, const figures_overlap *overlap);
void rank_report_ratios_json(json_t *object, const figures_overlap *overlap);
void rank_report_verdict_json(json_t *object, const figures_verdict *verdict);
void rank_report_link_json(json_t *object, const dt_comm_config *comm);
/* {"plan_s": ...}, a key a span kind. */
json_t *rank_report_busy_json(const double *busy_s, int kinds);
/* sent[ranks][ranks] as rows. */
json_t *rank_report_sent_json(const uint64_t *sent, int32_t ranks);

#endif
