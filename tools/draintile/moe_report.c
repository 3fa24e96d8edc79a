/* The tables of a finished run, its JSON and its trace. */
#include <string.h>

#include "figures.h"
#include "json.h"
#include "log.h"
#include "moe_cuda.h"
#include "moe_figures.h"
#include "rank_report.h"
#include "table.h"

static void print_head(const moe_job *job) {
  printf("%s layer %d: hidden %lld, intermediate %lld, %d experts, top-%d; %lld tokens in %s\n", job->info->model_type,
         job->layer, (long long)job->info->hidden, (long long)job->info->intermediate, job->info->experts, job->top_k,
         (long long)job->input.tokens, dt_dtype_name(job->input.dtype));
  if (job->gpus) {
    int32_t sharers;
    moe_cuda_device(job, 0, &sharers);
    printf("%d ranks on %d GPUs, %d multiprocessors each\n", job->ranks,
           job->gpus < job->ranks ? job->gpus : job->ranks, job->shared.facts[0].sms / sharers / 2 * 2);
  } else {
    rank_report_machine(job->ranks, job->config.workers, job->config.consumers, &job->comm);
  }
}

static void print_runs(const moe_job *job, const moe_figures *all) {
  tool_table *table = table_create("<schedule|total|speedup|hidden|efficiency|limit|total/limit|predicted|"
                                   "predicted/total|bits|max error");
  for (int32_t run = 0; run < *job->shared.run_count; run++) {
    const moe_figures *f = &all[run];
    table_cell(table, "%s", schedule_names[f->schedule]);
    table_time(table, f->overlap.total_s);
    table_ratio(table, f->overlap.speedup_over_serial);
    table_ratio(table, f->overlap.hidden_ratio);
    table_ratio(table, f->overlap.efficiency);
    table_time(table, f->limits.limit_s);
    table_ratio(table, f->overlap.total_s / f->limits.limit_s);
    table_time(table, f->predicted_s);
    table_ratio(table, f->predicted_s / f->overlap.total_s);
    rank_report_verdict(table, &f->verdict, job->check);
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
  table_time(table, serial->overlap.compute_alone_s);
  table_time(table, serial->overlap.comm_alone_s);
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

static int judge(const moe_job *job, const moe_figures *figures) {
  int failed = 0;
  for (int32_t run = 0; run < *job->shared.run_count; run++)
    failed |= rank_report_judge(schedule_names[figures[run].schedule], &figures[run].verdict, moe_tolerance(job));
  return failed ? TOOL_CHECK_FAILED : TOOL_OK;
}

int moe_report(moe_job *job) {
  moe_figures *figures = moe_figures_make(job);
  if (!figures) return log_out_of_memory();
  const char *json = args_text(job->args, "json");
  if (!json_is_stdout(json)) {
    print_head(job);
    print_runs(job, figures);
    print_alone(job, figures);
    if (!job->gpus || args_set(job->args, "trace")) print_stages(job, figures); /* GPUs know only what is traced */
    print_peers(job);
  }
  int code = json ? json_write(moe_figures_json(job, figures), json) : TOOL_OK;
  if (code == TOOL_OK && job->check) code = judge(job, figures);
  moe_figures_free(figures, *job->shared.run_count);
  return code;
}
