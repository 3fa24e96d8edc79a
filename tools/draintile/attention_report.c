/* The tables of a finished run, its JSON and its trace. */
#include <math.h>
#include <stdlib.h>

#include "attention.h"
#include "figures.h"
#include "json.h"
#include "log.h"
#include "rank_report.h"
#include "table.h"

static const char *name_of(const attention_job *job, int32_t run) {
  return attention_schedule_names[job->schedules[run]];
}

static void print_head(const attention_job *job) {
  const dt_attention_config *c = &job->config;
  printf("attention: q [%lld, %d, %d], k and v [%lld, %d, %d] in %s%s", (long long)c->tokens, c->heads, c->head_dim,
         (long long)c->kv_tokens, c->kv_heads, c->head_dim, dt_dtype_name(c->dtype), c->causal ? ", causal" : "");
  if (c->text_tokens) printf(", %lld tokens of text %s", (long long)c->text_tokens, attention_text_names[c->text]);
  printf("\n");
  if (!job->gpus) {
    rank_report_machine(job->ranks, c->workers, c->consumers, &job->comm);
    return;
  }
  const attention_rank_facts *facts = &job->shared.facts[0];
  printf("%d ranks on %d x %s\n", job->ranks, job->gpus < job->ranks ? job->gpus : job->ranks, facts->gpu);
  if (job->gpus < job->ranks) printf("ranks share GPUs: the times are of that, not of a machine with a GPU a rank\n");
}

static void print_runs(const attention_job *job, const attention_figures *all) {
  tool_table *table =
      table_create("<schedule|total|speedup|hidden|efficiency|limit|total/limit|tiles|bytes off rank|bits|max error");
  for (int32_t run = 0; run < job->run_count; run++) {
    const attention_figures *f = &all[run];
    table_cell(table, "%s", name_of(job, run));
    table_time(table, f->overlap.total_s);
    table_ratio(table, f->overlap.speedup_over_serial);
    table_ratio(table, f->overlap.hidden_ratio);
    table_ratio(table, f->overlap.efficiency);
    table_time(table, f->limit_s);
    table_ratio(table, f->overlap.total_s / f->limit_s);
    table_cell(table, "%lld", (long long)f->tiles);
    table_size(table, (double)f->bytes_sent);
    rank_report_verdict(table, &f->verdict, job->check);
  }
  printf("\n");
  table_print(table, stdout);
}

static void print_alone(const attention_figures *serial) {
  tool_table *table = table_create("compute alone|communication alone|way in|way out");
  table_time(table, serial->overlap.compute_alone_s);
  table_time(table, serial->overlap.comm_alone_s);
  table_time(table, serial->in_s);
  table_time(table, serial->out_s);
  printf("\nserial, stage by stage\n");
  table_print(table, stdout);
}

static void print_busy(const attention_job *job) {
  static const dt_span_kind kinds[] = {DT_SPAN_DISPATCH, DT_SPAN_ATTENTION, DT_SPAN_STORE,
                                       DT_SPAN_SEGMENT,  DT_SPAN_WAIT,      DT_SPAN_BARRIER};
  tool_table *table = table_create("<schedule|dispatch|attention|store|segment|wait|barrier");
  for (int32_t run = 0; run < job->run_count; run++) {
    double busy_s[ATTENTION_SPAN_KINDS];
    attention_busy(job, run, busy_s);
    table_cell(table, "%s", name_of(job, run));
    for (size_t i = 0; i < ARGS_COUNT(kinds); i++) table_time(table, busy_s[kinds[i]]);
  }
  printf("\nthread time by task, summed over ranks, last repeat (waits and stores lie inside attention)\n");
  table_print(table, stdout);
}

static int64_t peak_bytes(const attention_job *job) {
  int64_t peak = 0;
  for (int32_t rank = 0; rank < job->ranks; rank++)
    if (job->shared.facts[rank].peak_bytes > peak) peak = job->shared.facts[rank].peak_bytes;
  return peak;
}

static json_t *run_json(const attention_job *job, int32_t index, const attention_figures *f) {
  static const char *const part_names[] = {"compute_s", "link_s", "constants_s"};
  static const char *const stage_names[] = {"in_s", "compute_s", "out_s"};
  const double parts[] = {f->limit_compute_s, f->limit_link_s, f->limit_constants_s};
  const double stages[] = {f->in_s, f->compute_s, f->out_s};
  double busy_s[ATTENTION_SPAN_KINDS];
  json_t *run = json_object();
  attention_busy(job, index, busy_s);
  json_object_set_new(run, "schedule", json_string(name_of(job, index)));
  rank_report_times_json(run, &f->overlap);
  json_object_set_new(run, "limit_s", json_figure(f->limit_s));
  json_object_set_new(run, "limit_parts", json_named_figures(part_names, parts, 3));
  rank_report_ratios_json(run, &f->overlap);
  rank_report_verdict_json(run, &f->verdict);
  json_object_set_new(run, "tiles", json_whole(f->tiles));
  json_object_set_new(run, "bytes_sent", json_whole_unsigned(f->bytes_sent));
  json_object_set_new(run, "bytes_sent_to_peer", rank_report_sent_json(attention_sent(job, index, 0), job->ranks));
  json_object_set_new(run, "device_bytes", json_whole(peak_bytes(job)));
  json_object_set_new(run, "stages", json_named_figures(stage_names, stages, 3));
  json_object_set_new(run, "busy", rank_report_busy_json(busy_s, ATTENTION_SPAN_KINDS));
  json_object_set_new(run, "samples_s", json_figures(f->samples_s, (size_t)job->repeat));
  return run;
}

/* What each rank holds: rows in and out, query heads, key heads. */
static json_t *shares_json(const attention_job *job) {
  json_t *shares = json_array();
  for (int32_t rank = 0; rank < job->ranks; rank++) {
    dt_attention_rows in[2], out[2];
    int32_t first, heads, kv_first, kv_heads;
    if (dt_attention_rows_in(&job->config, job->ranks, rank, 0, in) ||
        dt_attention_rows_out(&job->config, job->ranks, rank, out) ||
        dt_attention_heads(&job->config, job->ranks, rank, &first, &heads, &kv_first, &kv_heads))
      break;
    json_t *share = json_object();
    json_object_set_new(share, "rows_in", json_whole(in[0].rows + in[1].rows));
    json_object_set_new(share, "rows_out", json_whole(out[0].rows + out[1].rows));
    json_object_set_new(share, "first_head", json_integer(first));
    json_object_set_new(share, "heads", json_integer(heads));
    json_object_set_new(share, "first_kv_head", json_integer(kv_first));
    json_object_set_new(share, "kv_heads", json_integer(kv_heads));
    json_array_append_new(shares, share);
  }
  return shares;
}

static json_t *setting_json(const attention_job *job) {
  const dt_attention_config *c = &job->config;
  json_t *setting = json_object();
  json_object_set_new(setting, "input", json_text(job->input.path));
  json_object_set_new(setting, "device", json_string(job->gpus ? "cuda" : "cpu"));
  if (job->gpus) {
    json_object_set_new(setting, "gpu", json_text(job->shared.facts[0].gpu));
    json_object_set_new(setting, "gpus", json_integer(job->gpus));
  }
  json_object_set_new(setting, "ranks", json_integer(job->ranks));
  json_object_set_new(setting, "workers", json_integer(c->workers));
  json_object_set_new(setting, "consumers", json_integer(c->consumers));
  json_object_set_new(setting, "tokens", json_whole(c->tokens));
  json_object_set_new(setting, "kv_tokens", json_whole(c->kv_tokens));
  json_object_set_new(setting, "heads", json_integer(c->heads));
  json_object_set_new(setting, "kv_heads", json_integer(c->kv_heads));
  json_object_set_new(setting, "head_dim", json_integer(c->head_dim));
  json_object_set_new(setting, "dtype", json_string(dt_dtype_name(c->dtype)));
  json_object_set_new(setting, "text_tokens", json_whole(c->text_tokens));
  json_object_set_new(setting, "text", json_string(attention_text_names[c->text]));
  json_object_set_new(setting, "causal", json_boolean(c->causal));
  json_object_set_new(setting, "scale", json_figure(isnan(c->scale) ? 1 / sqrt(c->head_dim) : c->scale));
  json_object_set_new(setting, "overlap_in", json_boolean(c->overlap_in));
  json_object_set_new(setting, "tile_rows", json_integer(c->tile_rows));
  json_object_set_new(setting, "own_lag", json_integer(c->own_lag));
  rank_report_link_json(setting, &job->comm);
  json_object_set_new(setting, "repeat", json_integer(job->repeat));
  json_object_set_new(setting, "shares", shares_json(job));
  return setting;
}

static json_t *report_json(const attention_job *job, const attention_figures *figures) {
  json_t *root = json_results("draintile-attention"), *runs = json_array();
  for (int32_t run = 0; run < job->run_count; run++) json_array_append_new(runs, run_json(job, run, &figures[run]));
  json_object_set_new(root, "setting", setting_json(job));
  json_object_set_new(root, "tolerance", json_figure(figures_tolerance(job->config.dtype)));
  json_object_set_new(root, "runs", runs);
  return root;
}

static int judge(const attention_job *job, const attention_figures *figures) {
  int failed = 0;
  for (int32_t run = 0; run < job->run_count; run++)
    failed |= rank_report_judge(name_of(job, run), &figures[run].verdict, figures_tolerance(job->config.dtype));
  return failed ? TOOL_CHECK_FAILED : TOOL_OK;
}

int attention_report(const attention_job *job) {
  attention_figures figures[ATTENTION_SCHEDULES];
  if (attention_figures_make(job, figures)) return log_fail(TOOL_FAILED, "out of memory");
  const char *json = args_text(job->args, "json");
  if (!json_is_stdout(json)) {
    print_head(job);
    print_runs(job, figures);
    print_alone(figures);
    if (!job->gpus) print_busy(job);
  }
  int code = json ? json_write(report_json(job, figures), json) : TOOL_OK;
  if (code == TOOL_OK && job->check) code = judge(job, figures);
  attention_figures_free(job, figures);
  return code;
}
