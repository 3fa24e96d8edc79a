#include "rank_report.h"

#include <stdio.h>

#include <draintile/trace.h>
#include <draintile/units.h>

#include "commands.h"
#include "json.h"
#include "log.h"

void rank_report_machine(int32_t ranks, int32_t workers, int32_t consumers, const dt_comm_config *comm) {
  char rate[32], capacity[32];
  printf("%d rank%s, %d worker%s and %d consumer%s each; ", ranks, ranks == 1 ? "" : "s", workers,
         workers == 1 ? "" : "s", consumers, consumers == 1 ? "" : "s");
  if (comm->link_bytes_per_s > 0)
    printf("link %s, %s\n", dt_format_bytes_per_s(comm->link_bytes_per_s, rate, sizeof(rate)),
           dt_format_bytes(comm->link_capacity_bytes, capacity, sizeof(capacity)));
  else
    printf("link at memory speed\n");
}

void rank_report_verdict(tool_table *table, const figures_verdict *verdict, int checked) {
  table_cell(table, "%s", verdict->bit_equal ? "equal" : "DIFFER");
  if (checked)
    table_cell(table, "%.2e", verdict->max_relative_error);
  else
    table_cell(table, "unchecked");
}

int rank_report_judge(const char *schedule, const figures_verdict *verdict, double tolerance) {
  int exact = verdict->bit_equal, near = verdict->max_relative_error <= tolerance;
  if (!exact) log_note("check: %s: output differs from serial's; allowed: equal to the bit", schedule);
  if (!near)
    log_note("check: %s: token %lld: relative error %.3g; allowed: at most %g", schedule,
             (long long)verdict->worst_token, verdict->max_relative_error, tolerance);
  return !exact || !near;
}

void rank_report_prices(const double *predicted_s, dt_schedule chosen) {
  char text[32];
  for (int i = 0; i < SCHEDULES; i++)
    log_note("auto: %-10s %s%s", schedule_names[i],
             predicted_s[i] > 0 ? dt_format_seconds(predicted_s[i], text, sizeof(text)) : "needs a consumer",
             i == (int)chosen ? "  <- chosen" : "");
}

void rank_report_times_json(json_t *object, const figures_overlap *overlap) {
  json_object_set_new(object, "total_s", json_figure(overlap->total_s));
  json_object_set_new(object, "compute_alone_s", json_figure(overlap->compute_alone_s));
  json_object_set_new(object, "comm_alone_s", json_figure(overlap->comm_alone_s));
  json_object_set_new(object, "serial_s", json_figure(overlap->serial_s));
}

void rank_report_ratios_json(json_t *object, const figures_overlap *overlap) {
  json_object_set_new(object, "hidden_ratio", json_figure(overlap->hidden_ratio));
  json_object_set_new(object, "efficiency", json_figure(overlap->efficiency));
  json_object_set_new(object, "speedup_over_serial", json_figure(overlap->speedup_over_serial));
}

void rank_report_verdict_json(json_t *object, const figures_verdict *verdict) {
  json_object_set_new(object, "bit_equal", json_boolean(verdict->bit_equal));
  json_object_set_new(object, "max_relative_error", json_figure(verdict->max_relative_error));
  json_object_set_new(object, "worst_token", verdict->worst_token < 0 ? json_null() : json_whole(verdict->worst_token));
}

void rank_report_link_json(json_t *object, const dt_comm_config *comm) {
  json_object_set_new(object, "link_bytes_per_s", json_figure(comm->link_bytes_per_s));
  json_object_set_new(object, "link_capacity_bytes", json_figure(comm->link_capacity_bytes));
  json_object_set_new(object, "link_latency_s", json_figure(comm->link_latency_s));
}

json_t *rank_report_busy_json(const double *busy_s, int kinds) {
  json_t *busy = json_object();
  for (int kind = 0; kind < kinds; kind++) {
    char key[32];
    snprintf(key, sizeof(key), "%s_s", dt_span_kind_name((dt_span_kind)kind));
    json_object_set_new(busy, key, json_figure(busy_s[kind]));
  }
  return busy;
}

json_t *rank_report_sent_json(const uint64_t *sent, int32_t ranks) {
  json_t *matrix = json_array();
  for (int32_t rank = 0; rank < ranks; rank++) {
    json_t *row = json_array();
    for (int32_t peer = 0; peer < ranks; peer++)
      json_array_append_new(row, json_whole_unsigned(sent[(size_t)rank * (size_t)ranks + (size_t)peer]));
    json_array_append_new(matrix, row);
  }
  return matrix;
}
