#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_moe.h"
#include "device_price.h"

const char *const bench_moe_models[] = {
#define MODEL_NAME(name, hidden, intermediate, experts, top_k) name,
    DT_MOE_SHAPE_TABLE(MODEL_NAME)
#undef MODEL_NAME
        NULL};
const char *const bench_moe_routers[] = {"balanced", "skewed", "crossed", NULL};

/* wave: by tiles. wave-published: so many experts a wave that there are two L1 tiles a multiprocessor, the rule of the
 * published baseline. */
enum { SERIAL, DIRECT, WAVE, WAVE_PUBLISHED, INTERLEAVE, ALTERNATE };
const char *const bench_moe_schedules[] = {"serial",     "direct",    "wave", "wave-published",
                                           "interleave", "alternate", NULL};
static const dt_schedule schedule_of[] = {DT_SCHEDULE_SERIAL, DT_SCHEDULE_DIRECT,     DT_SCHEDULE_WAVE,
                                          DT_SCHEDULE_WAVE,   DT_SCHEDULE_INTERLEAVE, DT_SCHEDULE_ALTERNATE};

enum { TILE_ROWS = 128, TILE_COLUMNS_1 = 128 /* of gate and as many of up */, RANKS_MOST = 8 };

static int32_t published_wave(const bench_moe_row *row, int32_t sms) {
  const int64_t slots = row->tokens * row->ranks * row->shape->top_k;
  const int64_t rows = (slots + row->shape->experts - 1) / row->shape->experts; /* of an expert, on average */
  const int64_t bands = (rows + TILE_ROWS - 1) / TILE_ROWS;
  const int64_t tiles = bands * ((row->shape->intermediate + TILE_COLUMNS_1 - 1) / TILE_COLUMNS_1);
  const int64_t experts = tiles > 0 ? (2 * sms + tiles - 1) / tiles : 1, all = row->shape->experts / row->ranks;
  return (int32_t)(experts < all ? experts : all);
}

static int add(bench_moe_methods *methods, const dt_moe_bench_method *method, const char *name) {
  if (methods->count == BENCH_MOE_METHODS)
    return log_fail(TOOL_USAGE, "--schedule: with its groupings more than %d methods; allowed: fewer",
                    BENCH_MOE_METHODS);
  methods->list[methods->count] = *method;
  methods->predicted_s[methods->count] = NAN;
  snprintf(methods->names[methods->count++], BENCH_MOE_NAME, "%s", name);
  return TOOL_OK;
}

static dt_moe_bench_method layer_method(const tool_args *args, int which) {
  return (dt_moe_bench_method){.part = -1,
                               .schedule = schedule_of[which],
                               .raster_bands = (int32_t)args_int(args, "raster-bands"),
                               .dedup = args_choice(args, "dedup"),
                               .graph = 1};
}

/* A schedule in each grouping that was asked for; 0 is the schedule's own and not in the name. */
static int add_schedule(const tool_args *args, const bench_moe_row *row, int32_t sms, int which,
                        bench_moe_methods *methods) {
  static const arg_value none = {.list = {0}, .list_count = 1};
  const int grouped = which == WAVE || which == INTERLEAVE || which == ALTERNATE;
  const int leads = which == INTERLEAVE || which == ALTERNATE;
  const arg_value *groups = grouped ? args_list(args, "group-tasks") : &none;
  const arg_value *lead = leads ? args_list(args, "lead") : &none;
  int code = TOOL_OK;
  for (int g = 0; g < groups->list_count && code == TOOL_OK; g++)
    for (int l = 0; l < lead->list_count && code == TOOL_OK; l++) {
      char name[BENCH_MOE_NAME], part[32];
      dt_moe_bench_method method = layer_method(args, which);
      method.group_tasks = groups->list[g];
      method.lead = lead->list[l];
      if (which == WAVE_PUBLISHED) method.wave_experts = published_wave(row, sms);
      snprintf(name, sizeof name, "%s", bench_moe_schedules[which]);
      if (method.group_tasks) {
        snprintf(part, sizeof part, " group %d", method.group_tasks);
        strncat(name, part, sizeof name - strlen(name) - 1);
      }
      if (method.lead) {
        snprintf(part, sizeof part, " lead %d", method.lead);
        strncat(name, part, sizeof name - strlen(name) - 1);
      }
      code = add(methods, &method, name);
    }
  return code;
}

static int add_parts(bench_moe_methods *methods) {
  static const char *const names[] = {"compute alone", "dispatch alone", "combine alone", "reduce alone"};
  int code = TOOL_OK;
  for (int part = DT_CUDA_MOE_COMPUTE; part <= DT_CUDA_MOE_REDUCE && code == TOOL_OK; part++)
    code = add(methods, &(dt_moe_bench_method){.part = part}, names[part]);
  return code;
}

int bench_moe_methods_make(const tool_args *args, const bench_moe_row *row, int32_t sms, bench_moe_methods *methods) {
  const arg_value *schedules = args_list(args, "schedule");
  methods->count = 0;
  int code = add_schedule(args, row, sms, SERIAL, methods);
  if (code == TOOL_OK) code = add_parts(methods);
  for (int i = 0; i < schedules->list_count && code == TOOL_OK; i++)
    if (schedules->list[i] != SERIAL) code = add_schedule(args, row, sms, schedules->list[i], methods);
  dt_moe_bench_method live = layer_method(args, DIRECT);
  live.graph = 0;
  return code == TOOL_OK ? add(methods, &live, "direct live") : code;
}

/* Rows that a rank sends to another where a token goes to each rank once. */
static void count_rows(const bench_moe_row *row, const int32_t *ids, int64_t *rows) {
  const int32_t top_k = row->shape->top_k, per_rank = row->shape->experts / row->ranks;
  for (int32_t r = 0; r < row->ranks; r++)
    for (int64_t t = 0; t < row->tokens; t++) {
      int to[RANKS_MOST] = {0};
      for (int32_t k = 0; k < top_k; k++) to[ids[(r * row->tokens + t) * top_k + k] / per_rank] = 1;
      for (int32_t p = 0; p < row->ranks; p++) rows[r * row->ranks + p] += to[p];
    }
}

/* Of the methods that dispatch so: layers launched as a graph. */
static int price_methods(const device_layer *layer, int dedup, bench_moe_methods *methods) {
  dt_layer_order orders[BENCH_MOE_METHODS];
  double predicted_s[BENCH_MOE_METHODS];
  int32_t of[BENCH_MOE_METHODS], count = 0;
  for (int32_t m = 0; m < methods->count; m++) {
    const dt_moe_bench_method *method = &methods->list[m];
    if (method->part >= 0 || !method->graph || (method->dedup != 0) != dedup) continue;
    of[count] = m;
    orders[count++] = (dt_layer_order){method->schedule, method->raster_bands, method->group_tasks, method->lead,
                                       method->wave_experts};
  }
  const int code = device_price(layer, orders, count, predicted_s);
  for (int32_t i = 0; i < count; i++) methods->predicted_s[of[i]] = predicted_s[i];
  return code;
}

int bench_moe_price(const bench_moe_row *row, const device_machine *machine, int32_t sms, uint64_t seed,
                    bench_moe_methods *methods) {
  if (!machine->platform) return TOOL_OK;
  const dt_moe_shape *shape = row->shape;
  const size_t slots = (size_t)row->ranks * (size_t)row->tokens * (size_t)shape->top_k;
  int32_t *ids = malloc((slots + 1) * sizeof *ids);
  float *weights = malloc((slots + 1) * sizeof *weights);
  int32_t *counts = calloc((size_t)row->ranks * (size_t)shape->experts, sizeof *counts);
  int64_t tokens[RANKS_MOST], rows[RANKS_MOST * RANKS_MOST] = {0};
  int code = ids && weights && counts ? TOOL_OK : log_out_of_memory();
  if (code == TOOL_OK &&
      dt_moe_route(row->router, seed, row->ranks, shape->experts, shape->top_k, row->tokens, ids, weights))
    code = log_status(DT_ERR_ARGUMENT, "routing");
  for (size_t slot = 0; code == TOOL_OK && slot < slots; slot++)
    counts[slot / (slots / (size_t)row->ranks) * (size_t)shape->experts + (size_t)ids[slot]]++;
  for (int32_t r = 0; r < row->ranks; r++) tokens[r] = row->tokens;
  if (code == TOOL_OK) count_rows(row, ids, rows);
  device_layer layer = {.platform = machine->platform,
                        .ranks = row->ranks,
                        .experts = shape->experts,
                        .top_k = shape->top_k,
                        .hidden = shape->hidden,
                        .intermediate = shape->intermediate,
                        .counts = counts,
                        .tokens = tokens,
                        .sms = sms};
  for (int dedup = 0; dedup < 2 && code == TOOL_OK; dedup++) {
    layer.dispatch_rows = dedup ? rows : NULL;
    code = price_methods(&layer, dedup, methods);
  }
  free(ids), free(weights), free(counts);
  return code;
}
