/* The results of `moe` as JSON: docs/formats.md describes every key. */
#include <math.h>

#include "costs_file.h"
#include "figures.h"
#include "json.h"
#include "moe_figures.h"

static json_t *stages_json(const moe_figures *f) {
  json_t *stages = json_object();
  for (int stage = 0; stage < STAGES; stage++)
    json_object_set_new(stages, moe_stage_names[stage], json_figure(f->stages_s[stage]));
  return stages;
}

static json_t *busy_json(const moe_job *job, int32_t run) {
  double busy_s[SPAN_KINDS];
  json_t *busy = json_object();
  moe_busy(job, run, busy_s);
  for (int kind = 0; kind < SPAN_KINDS; kind++) {
    char key[32];
    snprintf(key, sizeof(key), "%s_s", dt_span_kind_name((dt_span_kind)kind));
    json_object_set_new(busy, key, json_figure(busy_s[kind]));
  }
  return busy;
}

static json_t *sent_json(const moe_job *job, int32_t run) {
  json_t *matrix = json_array();
  for (int32_t rank = 0; rank < job->ranks; rank++) {
    json_t *row = json_array();
    for (int32_t peer = 0; peer < job->ranks; peer++)
      json_array_append_new(row, json_whole_unsigned(job->shared.sent[(run * job->ranks + rank) * job->ranks + peer]));
    json_array_append_new(matrix, row);
  }
  return matrix;
}

static json_t *limits_json(const moe_limits *limits) {
  json_t *parts = json_object();
  json_object_set_new(parts, "compute_s", json_figure(limits->compute_s));
  json_object_set_new(parts, "link_s", json_figure(limits->link_s));
  json_object_set_new(parts, "memory_s", json_figure(limits->memory_s));
  json_object_set_new(parts, "constants_s", json_figure(limits->constants_s));
  return parts;
}

static int64_t peak_bytes(const moe_job *job) {
  int64_t peak = 0;
  for (int32_t rank = 0; rank < job->ranks; rank++)
    if (job->shared.facts[rank].peak_bytes > peak) peak = job->shared.facts[rank].peak_bytes;
  return peak;
}

static json_t *run_json(const moe_job *job, int32_t index, const moe_figures *f) {
  json_t *run = json_object();
  const dt_plan_config *plan = &moe_run_of(job, index, 0)->plan;
  json_object_set_new(run, "schedule", json_string(schedule_names[f->schedule]));
  json_object_set_new(run, "order", json_string(dt_order_name(plan->order)));
  json_object_set_new(run, "total_s", json_figure(f->total_s));
  json_object_set_new(run, "compute_alone_s", json_figure(f->compute_alone_s));
  json_object_set_new(run, "comm_alone_s", json_figure(f->comm_alone_s));
  json_object_set_new(run, "serial_s", json_figure(f->serial_s));
  json_object_set_new(run, "limit_s", json_figure(f->limits.limit_s));
  json_object_set_new(run, "limit_parts", limits_json(&f->limits));
  json_object_set_new(run, "predicted_s", json_figure(f->predicted_s));
  json_object_set_new(run, "hidden_ratio", json_figure(f->hidden_ratio));
  json_object_set_new(run, "efficiency", json_figure(f->efficiency));
  json_object_set_new(run, "speedup_over_serial", json_figure(f->speedup_over_serial));
  json_object_set_new(run, "bit_equal", json_boolean(f->bit_equal));
  json_object_set_new(run, "max_relative_error", json_figure(f->max_relative_error));
  json_object_set_new(run, "worst_token", f->worst_token < 0 ? json_null() : json_whole(f->worst_token));
  json_object_set_new(run, "rows", json_whole(f->rows));
  json_object_set_new(run, "padded_rows", json_whole(f->padded_rows));
  json_object_set_new(run, "tiles", json_whole(f->tiles));
  json_object_set_new(run, "bytes_sent", json_whole_unsigned(f->bytes_sent));
  json_object_set_new(run, "bytes_sent_to_peer", sent_json(job, index));
  json_object_set_new(run, "device_bytes", json_whole(peak_bytes(job)));
  json_object_set_new(run, "stages", stages_json(f));
  json_object_set_new(run, "busy", busy_json(job, index));
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
  json_object_set_new(setting, "device", json_string("cpu"));
  json_object_set_new(setting, "layer", json_integer(job->layer));
  json_object_set_new(setting, "ranks", json_integer(job->ranks));
  json_object_set_new(setting, "workers", json_integer(job->config.workers));
  json_object_set_new(setting, "consumers", json_integer(job->config.consumers));
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
  json_object_set_new(setting, "link_bytes_per_s", json_figure(job->comm.link_bytes_per_s));
  json_object_set_new(setting, "link_capacity_bytes", json_figure(job->comm.link_capacity_bytes));
  json_object_set_new(setting, "link_latency_s", json_figure(job->comm.link_latency_s));
  json_object_set_new(setting, "repeat", json_integer(job->repeat));
  return setting;
}

json_t *moe_figures_json(const moe_job *job, const moe_figures *figures) {
  json_t *root = json_results("draintile-moe"), *runs = json_array();
  for (int32_t run = 0; run < *job->shared.run_count; run++)
    json_array_append_new(runs, run_json(job, run, &figures[run]));
  json_object_set_new(root, "setting", setting_json(job));
  json_object_set_new(root, "router", router_json(job));
  json_object_set_new(root, "tolerance", json_figure(figures_tolerance(job->input.dtype)));
  json_object_set_new(root, "costs", job->costs_ready ? costs_json(&job->costs) : json_null());
  json_object_set_new(root, "runs", runs);
  return root;
}
