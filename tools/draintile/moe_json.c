/* The results of `moe` as JSON: docs/formats.md describes every key. */
#include "costs_file.h"
#include "figures.h"
#include "json.h"
#include "moe_figures.h"
#include "rank_report.h"

static int64_t peak_bytes(const moe_job *job) {
  int64_t peak = 0;
  for (int32_t rank = 0; rank < job->ranks; rank++)
    if (job->shared.facts[rank].peak_bytes > peak) peak = job->shared.facts[rank].peak_bytes;
  return peak;
}

/* GPUs have two kinds more, and none without --trace. */
static json_t *busy_json(const moe_job *job, const double busy_s[SPAN_KINDS]) {
  if (job->gpus && !args_set(job->args, "trace")) return json_null();
  json_t *busy = rank_report_busy_json(busy_s, DT_SPAN_LINK + 1);
  for (int kind = DT_SPAN_STALL; job->gpus && kind <= DT_SPAN_PUBLISH; kind++) {
    char key[32];
    snprintf(key, sizeof(key), "%s_s", dt_span_kind_name((dt_span_kind)kind));
    json_object_set_new(busy, key, json_figure(busy_s[kind]));
  }
  return busy;
}

static json_t *run_json(const moe_job *job, int32_t index, const moe_figures *f) {
  static const char *const part_names[] = {"compute_s", "link_s", "memory_s", "constants_s"};
  const double parts[] = {f->limits.compute_s, f->limits.link_s, f->limits.memory_s, f->limits.constants_s};
  double busy_s[SPAN_KINDS];
  json_t *run = json_object();
  const dt_plan_config *plan = &moe_run_of(job, index, 0)->plan;
  moe_busy(job, index, busy_s);
  json_object_set_new(run, "schedule", json_string(schedule_names[f->schedule]));
  json_object_set_new(run, "order", json_string(dt_order_name(plan->order)));
  rank_report_times_json(run, &f->overlap);
  json_object_set_new(run, "limit_s", json_figure(f->limits.limit_s));
  json_object_set_new(run, "limit_parts", json_named_figures(part_names, parts, 4));
  json_object_set_new(run, "predicted_s", json_figure(f->predicted_s));
  rank_report_ratios_json(run, &f->overlap);
  rank_report_verdict_json(run, &f->verdict);
  json_object_set_new(run, "rows", json_whole(f->rows));
  json_object_set_new(run, "padded_rows", json_whole(f->padded_rows));
  json_object_set_new(run, "tiles", json_whole(f->tiles));
  json_object_set_new(run, "bytes_sent", json_whole_unsigned(f->bytes_sent));
  json_object_set_new(run, "bytes_sent_to_peer",
                      rank_report_sent_json(job->shared.sent + index * job->ranks * job->ranks, job->ranks));
  json_object_set_new(run, "device_bytes", json_whole(peak_bytes(job)));
  json_object_set_new(run, "stages", json_named_figures(moe_stage_names, f->stages_s, STAGES));
  json_object_set_new(run, "busy", busy_json(job, busy_s));
  if (job->gpus) {
    const moe_rank_run *on = moe_run_of(job, index, 0);
    json_object_set_new(run, "sms", json_integer(on->sms));
    json_object_set_new(run, "send_sms", json_integer(on->send_sms));
    json_object_set_new(run, "consumers", json_integer(on->consumers));
  }
  if (job->gpus) json_object_set_new(run, "spans_lost", json_whole_unsigned(moe_spans_lost(job, index)));
  json_object_set_new(run, "samples_s", json_figures(f->samples_s, (size_t)job->repeat));
  return run;
}

static json_t *load_json(moe_load load) {
  json_t *object = json_object();
  json_object_set_new(object, "max_rows", json_figure(load.max));
  json_object_set_new(object, "mean_rows", json_figure(load.mean));
  json_object_set_new(object, "max_over_mean", json_figure(load.max / load.mean));
  return object;
}

static json_t *router_json(const moe_job *job) {
  int64_t dropped = 0;
  for (int32_t rank = 0; rank < job->ranks; rank++) dropped += job->shared.facts[rank].dropped_slots;
  json_t *router = json_object();
  json_object_set_new(router, "ranks", load_json(moe_rank_load(job)));
  json_object_set_new(router, "experts", load_json(moe_expert_load(job)));
  json_object_set_new(router, "slots", json_whole(job->input.tokens * job->top_k));
  json_object_set_new(router, "dropped_slots", json_whole(dropped));
  return router;
}

static json_t *setting_json(const moe_job *job) {
  json_t *setting = json_object();
  const dt_plan_config *plan = &moe_run_of(job, 0, 0)->plan;
  json_object_set_new(setting, "checkpoint", json_text(args_text(job->args, "checkpoint")));
  json_object_set_new(setting, "input", json_text(job->input.path));
  json_object_set_new(setting, "model_type", json_string(job->info->model_type));
  json_object_set_new(setting, "device", json_string(job->gpus ? "cuda" : "cpu"));
  if (job->gpus) json_object_set_new(setting, "gpus", json_integer(job->gpus));
  json_object_set_new(setting, "layer", json_integer(job->layer));
  json_object_set_new(setting, "ranks", json_integer(job->ranks));
  if (!job->gpus) { /* GPUs: by run */
    json_object_set_new(setting, "workers", json_integer(job->config.workers));
    json_object_set_new(setting, "consumers", json_integer(job->config.consumers));
  }
  json_object_set_new(setting, "tokens", json_whole(job->input.tokens));
  json_object_set_new(setting, "hidden", json_whole(job->info->hidden));
  json_object_set_new(setting, "intermediate", json_whole(job->info->intermediate));
  json_object_set_new(setting, "experts", json_integer(job->info->experts));
  json_object_set_new(setting, "top_k", json_integer(job->top_k));
  json_object_set_new(setting, "dtype", json_string(dt_dtype_name(job->input.dtype)));
  json_object_set_new(setting, "layout", json_string(dt_layout_name(plan->layout)));
  json_object_set_new(setting, "tile_m", json_integer(plan->tile_m));
  json_object_set_new(setting, "columns_1", json_integer(plan->columns_1));
  json_object_set_new(setting, "columns_2", json_integer(plan->columns_2));
  rank_report_link_json(setting, &job->comm);
  json_object_set_new(setting, "repeat", json_integer(job->repeat));
  return setting;
}

json_t *moe_figures_json(const moe_job *job, const moe_figures *figures) {
  json_t *root = json_results("draintile-moe"), *runs = json_array();
  for (int32_t run = 0; run < *job->shared.run_count; run++)
    json_array_append_new(runs, run_json(job, run, &figures[run]));
  json_object_set_new(root, "setting", setting_json(job));
  json_object_set_new(root, "router", router_json(job));
  json_object_set_new(root, "tolerance", json_figure(moe_tolerance(job)));
  json_object_set_new(root, "costs", job->costs_ready ? costs_json(&job->costs) : json_null());
  json_object_set_new(root, "runs", runs);
  return root;
}
