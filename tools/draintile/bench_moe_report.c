#include <math.h>
#include <stdio.h>

#include <draintile/units.h>

#include "bench_moe.h"
#include "figures.h"
#include "json.h"
#include "log.h"

double bench_moe_part(const bench_moe_methods *methods, const dt_moe_bench_result *result, dt_cuda_moe_part part) {
  double least = NAN;
  for (int32_t m = 0; m < methods->count; m++)
    if (methods->list[m].part == (int32_t)part) least = fmin(least, result->timings[m].median_s);
  return least;
}

device_limit bench_moe_limit(const bench_moe_row *row, const device_machine *machine, const dt_moe_bench_result *result,
                             double compute_s) {
  const double row_bytes = 2.0 * (double)row->shape->hidden;
  const double expert_bytes = 6.0 * (double)row->shape->hidden * (double)row->shape->intermediate;
  double link_bytes = 0, weight_bytes = 0;
  for (int32_t r = 0; r < row->ranks; r++) {
    link_bytes = fmax(link_bytes, (double)(result->dispatch_rows[r] + result->sent_rows[r]) * row_bytes);
    weight_bytes = fmax(weight_bytes, (double)result->touched_experts[r] * expert_bytes);
  }
  return device_limit_of(machine, compute_s, link_bytes, weight_bytes);
}

/* The fastest schedule that was replayed from a graph. */
static int32_t best_of(const bench_moe_methods *methods, const dt_moe_bench_result *result) {
  int32_t best = 0;
  for (int32_t m = 1; m < methods->count; m++)
    if (methods->list[m].part < 0 && methods->list[m].graph &&
        result->timings[m].median_s < result->timings[best].median_s)
      best = m;
  return best;
}

void bench_moe_print(const bench_moe_row *row, const bench_moe_methods *methods, const dt_moe_bench_result *result,
                     const device_limit *limit) {
  printf("%s %s %lld:", row->shape->name, bench_moe_routers[row->router], (long long)row->tokens);
  for (int32_t m = 0; m < methods->count; m++) {
    char text[32];
    const double seconds = result ? result->timings[m].median_s : methods->predicted_s[m];
    if (!isnan(seconds))
      printf(" %s %s%s", methods->names[m], dt_format_seconds(seconds, text, sizeof text),
             m + 1 < methods->count ? "," : "");
  }
  if (result) {
    const int32_t best = best_of(methods, result);
    char text[32];
    printf("; limit %s, best %s", dt_format_seconds(limit->limit_s, text, sizeof text), methods->names[best]);
    if (!isnan(limit->limit_s)) printf(" %.3f of it", result->timings[best].median_s / limit->limit_s);
  }
  printf("\n");
  fflush(stdout);
}

static json_t *method_json(const bench_moe_methods *methods, int32_t m, const dt_moe_bench_result *result,
                           const device_limit *limit, int32_t repeat) {
  const dt_moe_bench_method *method = &methods->list[m];
  json_t *json = json_object();
  json_object_set_new(json, "name", json_string(methods->names[m]));
  json_object_set_new(json, "predicted_s", json_figure(methods->predicted_s[m]));
  const int in_place = method->part == DT_CUDA_MOE_IN_PLACE;
  if (method->part < 0 || in_place) {
    json_object_set_new(json, "schedule", json_string(dt_schedule_name(method->schedule)));
    json_object_set_new(json, "order", json_string(dt_order_name(method->order)));
    json_object_set_new(json, "raster_bands", json_integer(method->raster_bands));
    json_object_set_new(json, "group_tasks", json_integer(method->group_tasks));
    json_object_set_new(json, "lead", json_integer(method->lead));
    json_object_set_new(json, "wave_experts", json_integer(method->wave_experts));
    json_object_set_new(json, "consumers", json_integer(method->consumers));
    json_object_set_new(json, "segment_bands", json_integer(method->segment_bands));
    json_object_set_new(json, "dedup", json_boolean(method->dedup));
    json_object_set_new(json, "head", json_integer(method->head));
    json_object_set_new(json, "send_sms", json_integer(method->send_sms));
    json_object_set_new(json, "ahead", json_integer(method->ahead));
    if (!in_place) json_object_set_new(json, "graph", json_boolean(method->graph));
  }
  if (!result) return json;
  const dt_moe_bench_timing *t = &result->timings[m];
  json_object_set_new(json, "median_s", json_figure(t->median_s));
  json_object_set_new(json, "samples_s", json_figures(t->samples_s, (size_t)repeat));
  if (method->part < 0 || in_place) json_object_set_new(json, "words_wrong", json_whole(t->words_wrong));
  if (method->part >= 0) return json;
  json_object_set_new(json, "over_limit", json_figure(t->median_s / limit->limit_s));
  json_object_set_new(json, "max_relative_error", json_figure(t->max_relative_error));
  json_object_set_new(json, "host_issue_s", json_figure(t->host_issue_s));
  json_object_set_new(json, "dispatch_bytes", json_whole_unsigned(t->dispatch_bytes));
  json_object_set_new(json, "combine_bytes", json_whole_unsigned(t->combine_bytes));
  return json;
}

/* What issue and design allow a layer: weights, rows that can come with their inner rows, staging, combine buffer. */
static double plain_bytes(const bench_moe_row *row, const dt_moe_bench_result *result, int64_t max_tokens) {
  const dt_moe_shape *shape = row->shape;
  const int64_t per_rank = shape->experts / row->ranks, k = shape->top_k < per_rank ? shape->top_k : per_rank;
  const double rows = (double)row->ranks * (double)max_tokens * (double)k;
  const double staging = (double)row->ranks * (double)max_tokens * (double)shape->hidden * 2;
  const double combine = (double)max_tokens * (double)shape->top_k * (double)shape->hidden * 2;
  return (double)result->weight_bytes + rows * (double)(shape->hidden + shape->intermediate) * 2 + staging + combine;
}

static json_t *loads_json(const bench_moe_row *row, const dt_moe_bench_result *result) {
  json_t *json = json_object();
  int64_t touched[8];
  for (int32_t r = 0; r < row->ranks; r++) touched[r] = result->touched_experts[r];
  json_object_set_new(json, "rank_rows", json_wholes(result->rank_rows, (size_t)row->ranks));
  json_object_set_new(json, "sent_rows", json_wholes(result->sent_rows, (size_t)row->ranks));
  json_object_set_new(json, "dispatch_rows", json_wholes(result->dispatch_rows, (size_t)row->ranks));
  json_object_set_new(json, "touched_experts", json_wholes(touched, (size_t)row->ranks));
  return json;
}

json_t *bench_moe_json(const bench_moe_row *row, const bench_moe_methods *methods, const dt_moe_bench_result *result,
                       const device_limit *limit, int32_t repeat, int64_t max_tokens) {
  const dt_moe_shape *shape = row->shape;
  json_t *json = json_object(), *list = json_array();
  for (int32_t m = 0; m < methods->count; m++)
    if (result || methods->list[m].part < 0 || methods->list[m].part == DT_CUDA_MOE_IN_PLACE)
      json_array_append_new(list, method_json(methods, m, result, limit, repeat));
  json_object_set_new(json, "model", json_string(shape->name));
  json_object_set_new(json, "hidden", json_whole(shape->hidden));
  json_object_set_new(json, "intermediate", json_whole(shape->intermediate));
  json_object_set_new(json, "experts", json_integer(shape->experts));
  json_object_set_new(json, "top_k", json_integer(shape->top_k));
  json_object_set_new(json, "router", json_string(bench_moe_routers[row->router]));
  json_object_set_new(json, "tokens", json_whole(row->tokens));
  if (result) {
    json_object_set_new(json, "loads", loads_json(row, result));
    json_object_set_new(json, "limit", device_limit_json(limit));
    json_object_set_new(json, "best", json_string(methods->names[best_of(methods, result)]));
    json_object_set_new(json, "device_bytes", json_whole_unsigned(result->device_bytes + result->weight_bytes));
    json_object_set_new(
        json, "device_bytes_over_plain",
        json_figure((double)(result->device_bytes + result->weight_bytes) / plain_bytes(row, result, max_tokens)));
    json_object_set_new(json, "sm_hz_before", json_figure(result->sm_hz_before));
    json_object_set_new(json, "sm_hz_after", json_figure(result->sm_hz_after));
  }
  json_object_set_new(json, "methods", list);
  return json;
}

int bench_moe_judge(const bench_moe_row *row, const bench_moe_methods *methods, const dt_moe_bench_result *result) {
  int code = TOOL_OK;
  for (int32_t m = 0; m < methods->count; m++) {
    const dt_moe_bench_timing *t = &result->timings[m];
    const int32_t part = methods->list[m].part;
    if (part >= 0 && part != DT_CUDA_MOE_IN_PLACE) continue;
    if (t->words_wrong != 0)
      code = log_fail(TOOL_CHECK_FAILED, "%s %s %lld, %s: %lld words differ from serial's", row->shape->name,
                      bench_moe_routers[row->router], (long long)row->tokens, methods->names[m],
                      (long long)t->words_wrong);
    if (part >= 0) continue;
    if (!(t->max_relative_error <= figures_tolerance(DT_DTYPE_BF16)))
      code = log_fail(TOOL_CHECK_FAILED, "%s %s %lld, %s: relative error %g; allowed: up to %g", row->shape->name,
                      bench_moe_routers[row->router], (long long)row->tokens, methods->names[m], t->max_relative_error,
                      figures_tolerance(DT_DTYPE_BF16));
  }
  return code;
}
