/* The tables of a finished run, its JSON and its trace. */
#include <stdlib.h>
#include <string.h>

#include <draintile/units.h>

#include "figures.h"
#include "json.h"
#include "log.h"
#include "moe_figures.h"
#include "table.h"

static void print_head(const moe_job *job) {
  char rate[32], capacity[32];
  printf("%s layer %d: hidden %lld, intermediate %lld, %d experts, top-%d; %lld tokens in %s\n", job->info->model_type,
         job->layer, (long long)job->info->hidden, (long long)job->info->intermediate, job->info->experts, job->top_k,
         (long long)job->input.tokens, dt_dtype_name(job->input.dtype));
  printf("%d ranks, %d workers and %d consumers each; ", job->ranks, job->config.workers, job->config.consumers);
  if (job->comm.link_bytes_per_s > 0)
    printf("link %s, %s\n", dt_format_bytes_per_s(job->comm.link_bytes_per_s, rate, sizeof(rate)),
           dt_format_bytes(job->comm.link_capacity_bytes, capacity, sizeof(capacity)));
  else
    printf("link at memory speed\n");
}

static void print_runs(const moe_job *job, const moe_figures *all) {
  tool_table *table = table_create("<schedule|total|speedup|hidden|efficiency|limit|total/limit|predicted|"
                                   "predicted/total|bits|max error");
  for (int32_t run = 0; run < *job->shared.run_count; run++) {
    const moe_figures *f = &all[run];
    table_cell(table, "%s", schedule_names[f->schedule]);
    table_time(table, f->total_s);
    table_ratio(table, f->speedup_over_serial);
    table_ratio(table, f->hidden_ratio);
    table_ratio(table, f->efficiency);
    table_time(table, f->limits.limit_s);
    table_ratio(table, f->total_s / f->limits.limit_s);
    table_time(table, f->predicted_s);
    table_ratio(table, f->predicted_s / f->total_s);
    table_cell(table, "%s", f->bit_equal ? "equal" : "DIFFER");
    if (job->check)
      table_cell(table, "%.2e", f->max_relative_error);
    else
      table_cell(table, "unchecked");
  }
  printf("\n");
  table_print(table, stdout);
}

static void print_stages(const moe_job *job, const moe_figures *all) {
  tool_table *table = table_create("<schedule|plan|dispatch|L1|L2|store|segment|reduce|shared|wait|bytes off rank");
  static const dt_span_kind kinds[] = {DT_SPAN_PLAN,    DT_SPAN_DISPATCH, DT_SPAN_L1,     DT_SPAN_L2,  DT_SPAN_STORE,
                                       DT_SPAN_SEGMENT, DT_SPAN_REDUCE,   DT_SPAN_SHARED, DT_SPAN_WAIT};
  for (int32_t run = 0; run < *job->shared.run_count; run++) {
    double busy_s[SPAN_KINDS];
    moe_busy(job, run, busy_s);
    table_cell(table, "%s", schedule_names[all[run].schedule]);
    for (size_t i = 0; i < ARGS_COUNT(kinds); i++) table_time(table, busy_s[kinds[i]]);
    table_size(table, (double)all[run].bytes_sent);
  }
  printf("\nthread time by task, summed over ranks, last repeat (waits and stores lie inside tasks)\n");
  table_print(table, stdout);
}

static void print_alone(const moe_job *job, const moe_figures *serial) {
  tool_table *table = table_create("compute alone|communication alone|rows|padded rows|tiles|rank load|expert load");
  moe_load ranks = moe_rank_load(job), experts = moe_expert_load(job);
  table_time(table, serial->compute_alone_s);
  table_time(table, serial->comm_alone_s);
  table_cell(table, "%lld", (long long)serial->rows);
  table_cell(table, "%lld", (long long)serial->padded_rows);
  table_cell(table, "%lld", (long long)serial->tiles);
  table_ratio(table, ranks.max / ranks.mean);
  table_ratio(table, experts.max / experts.mean);
  printf("\nthe layer (loads: max/mean)\n");
  table_print(table, stdout);
}

static void print_peers(const moe_job *job) {
  if (job->ranks > 8) return; /* the JSON holds them */
  char columns[256] = "<bytes from", name[32];
  for (int32_t rank = 0; rank < job->ranks; rank++) {
    snprintf(name, sizeof(name), "|to rank %d", rank);
    strncat(columns, name, sizeof(columns) - strlen(columns) - 1);
  }
  tool_table *table = table_create(columns);
  for (int32_t rank = 0; rank < job->ranks; rank++) {
    table_cell(table, "rank %d", rank);
    for (int32_t peer = 0; peer < job->ranks; peer++)
      table_size(table, peer == rank ? 0 : (double)job->shared.sent[rank * job->ranks + peer]);
  }
  printf("\n");
  table_print(table, stdout);
}

/* Which checks failed, one line each. */
static int judge(const moe_job *job, const moe_figures *all) {
  int failed = 0;
  double tolerance = figures_tolerance(job->input.dtype);
  for (int32_t run = 0; run < *job->shared.run_count; run++) {
    const moe_figures *f = &all[run];
    if (!f->bit_equal) {
      failed = 1;
      log_note("check: %s: output differs from serial's; allowed: equal to the bit", schedule_names[f->schedule]);
    }
    if (!(f->max_relative_error <= tolerance)) {
      failed = 1;
      log_note("check: %s: token %lld: relative error %.3g; allowed: at most %g", schedule_names[f->schedule],
               (long long)f->worst_token, f->max_relative_error, tolerance);
    }
  }
  return failed ? TOOL_CHECK_FAILED : TOOL_OK;
}

int moe_report(moe_job *job) {
  moe_figures *figures = moe_figures_make(job);
  if (!figures) return log_out_of_memory();
  const char *json = args_text(job->args, "json");
  if (!json || strcmp(json, "-") != 0) {
    print_head(job);
    print_runs(job, figures);
    print_alone(job, figures);
    print_stages(job, figures);
    print_peers(job);
  }
  int code = json ? json_write(moe_figures_json(job, figures), json) : TOOL_OK;
  if (code == TOOL_OK && job->check) code = judge(job, figures);
  moe_figures_free(figures, *job->shared.run_count);
  return code;
}

int moe_write_trace(const moe_job *job, const char *path) {
  size_t ranks = (size_t)job->ranks, count = ranks * (size_t)*job->shared.run_count;
  dt_trace_rank *traces = calloc(count, sizeof(*traces));
  if (!traces) return log_out_of_memory();
  for (size_t i = 0; i < count; i++)
    traces[i] = (dt_trace_rank){.name = schedule_names[job->shared.schedules[i / ranks]],
                                .rank = (int32_t)(i % ranks),
                                .workers = job->config.workers,
                                .consumers = job->config.consumers,
                                .spans = job->last_spans[i].spans,
                                .span_count = job->last_spans[i].count};
  dt_status status = dt_trace_write(path, traces, count);
  free(traces);
  return status ? log_status(status, NULL) : TOOL_OK;
}
