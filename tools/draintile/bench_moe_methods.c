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
const char *const bench_moe_routers[] = {
#define ROUTER_NAME(id, name) name,
    DT_MOE_ROUTER_TABLE(ROUTER_NAME)
#undef ROUTER_NAME
        NULL};

/* wave: by tiles. wave-published: so many experts a wave that there are two L1 tiles a multiprocessor, the rule of the
 * published baseline. */
enum { SERIAL, SIGNAL, DIRECT, WAVE, WAVE_PUBLISHED, INTERLEAVE, ALTERNATE };
const char *const bench_moe_schedules[] = {"serial",         "signal",     "direct",    "wave",
                                           "wave-published", "interleave", "alternate", NULL};
static const dt_schedule schedule_of[] = {DT_SCHEDULE_SERIAL,   DT_SCHEDULE_SIGNAL, DT_SCHEDULE_DIRECT,
                                          DT_SCHEDULE_WAVE,     DT_SCHEDULE_WAVE,   DT_SCHEDULE_INTERLEAVE,
                                          DT_SCHEDULE_ALTERNATE};

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

static dt_moe_bench_method layer_method(const tool_args *args, int which, int dedup) {
  return (dt_moe_bench_method){.part = -1,
                               .schedule = schedule_of[which],
                               .raster_bands = (int32_t)args_int(args, "raster-bands"),
                               .dedup = dedup,
                               .graph = 1};
}

/* Settings that are not the schedule's own are in the name. */
static void append(char *name, const char *what, int32_t value) {
  char part[32];
  if (value == 0) return;
  snprintf(part, sizeof part, " %s %d", what, value);
  strncat(name, part, BENCH_MOE_NAME - strlen(name) - 1);
}
static const char *dedup_suffix(const tool_args *args, int dedup) {
  return dedup && args_list(args, "dedup")->list_count > 1 ? " dedup" : "";
}

static int add_named(const tool_args *args, int which, const dt_moe_bench_method *method, bench_moe_methods *methods) {
  char name[BENCH_MOE_NAME];
  snprintf(name, sizeof name, "%s%s%s%s", bench_moe_schedules[which], dedup_suffix(args, method->dedup),
           method->order == DT_ORDER_NATURAL ? "" : " ",
           method->order == DT_ORDER_NATURAL ? "" : dt_order_name(method->order));
  append(name, "group", method->group_tasks);
  append(name, "lead", method->lead);
  append(name, "consumers", method->consumers);
  append(name, "segments", method->segment_bands);
  append(name, "head", method->head);
  append(name, "send", method->send_sms);
  append(name, "ahead", method->ahead);
  return add(methods, method, name);
}

static const arg_value unset = {.list = {0}, .list_count = 1};

/* A method in each way of dispatching that was asked for: serial has one. */
static int add_dispatches(const tool_args *args, int which, dt_moe_bench_method method, bench_moe_methods *methods) {
  const int beside = which != SERIAL;
  const arg_value *heads = beside ? args_list(args, "head") : &unset;
  const arg_value *sends = beside ? args_list(args, "send-sms") : &unset;
  const arg_value *aheads = method.dedup ? args_list(args, "ahead") : &unset;
  int code = TOOL_OK;
  for (int h = 0; h < heads->list_count && code == TOOL_OK; h++)
    for (int s = 0; s < sends->list_count && code == TOOL_OK; s++)
      for (int a = 0; a < aheads->list_count && code == TOOL_OK; a++) {
        method.head = heads->list[h];
        method.send_sms = sends->list[s];
        method.ahead = aheads->list[a];
        code = add_named(args, which, &method, methods);
        if (!beside) return code;
      }
  return code;
}

/* A schedule in each grouping that was asked for, signal with each number of consumers and of bands; 0 is the
 * schedule's own and not in the name. */
static int add_ordered(const tool_args *args, const bench_moe_row *row, int32_t sms, int which, int dedup,
                       dt_order order, bench_moe_methods *methods) {
  const int grouped = which == WAVE || which == INTERLEAVE || which == ALTERNATE;
  const int leads = which == INTERLEAVE || which == ALTERNATE;
  const arg_value *groups = grouped ? args_list(args, "group-tasks") : &unset;
  const arg_value *lead = leads ? args_list(args, "lead") : &unset;
  const arg_value *consumers = which == SIGNAL ? args_list(args, "consumers") : groups;
  const arg_value *segments = which == SIGNAL ? args_list(args, "segment-bands") : lead;
  int code = TOOL_OK;
  for (int i = 0; i < consumers->list_count && code == TOOL_OK; i++)
    for (int j = 0; j < segments->list_count && code == TOOL_OK; j++) {
      dt_moe_bench_method method = layer_method(args, which, dedup);
      method.order = order;
      if (which == SIGNAL) {
        method.consumers = consumers->list[i];
        method.segment_bands = segments->list[j];
      } else {
        method.group_tasks = groups->list[i];
        method.lead = lead->list[j];
      }
      if (which == WAVE_PUBLISHED) method.wave_experts = published_wave(row, sms);
      code = add_dispatches(args, which, method, methods);
    }
  return code;
}

/* In each order that the schedule has; with dedup: dt_cuda_moe_config. serial is the baseline, in natural order. */
static int add_schedule(const tool_args *args, const bench_moe_row *row, int32_t sms, int which, int dedup,
                        bench_moe_methods *methods) {
  const arg_value *orders = which == SERIAL ? &unset : args_list(args, "order");
  int code = TOOL_OK;
  for (int i = 0; i < orders->list_count && code == TOOL_OK; i++) {
    const dt_order order = (dt_order)orders->list[i];
    const int has = order == DT_ORDER_REMOTE_FIRST && (which == SIGNAL || which == DIRECT);
    if (!dedup || order == DT_ORDER_NATURAL || has) code = add_ordered(args, row, sms, which, dedup, order, methods);
  }
  return code;
}

static int add_parts(const tool_args *args, int dedup, bench_moe_methods *methods) {
  static const char *const names[] = {"compute alone", "dispatch alone", "combine alone", "reduce alone"};
  int code = TOOL_OK;
  for (int part = DT_CUDA_MOE_COMPUTE; part <= DT_CUDA_MOE_REDUCE && code == TOOL_OK; part++) {
    char name[BENCH_MOE_NAME];
    snprintf(name, sizeof name, "%s%s", names[part], dedup_suffix(args, dedup));
    code = add(methods, &(dt_moe_bench_method){.part = part, .graph = 1}, name);
  }
  return code;
}

/* L1 and L2 of every layer above whose rows go to their owners from L2: rows of dispatch are where they belong. */
static int add_in_place(bench_moe_methods *methods) {
  const int32_t count = methods->count;
  int code = TOOL_OK;
  for (int32_t m = 0; m < count && code == TOOL_OK; m++) {
    dt_moe_bench_method method = methods->list[m];
    char name[BENCH_MOE_NAME];
    if (method.part >= 0 || !method.graph || method.schedule == DT_SCHEDULE_SERIAL ||
        method.schedule == DT_SCHEDULE_SIGNAL)
      continue;
    method.part = DT_CUDA_MOE_IN_PLACE;
    snprintf(name, sizeof name, "%.*s in place", (int)(BENCH_MOE_NAME - sizeof " in place"), methods->names[m]);
    code = add(methods, &method, name);
  }
  return code;
}

int bench_moe_methods_make(const tool_args *args, const bench_moe_row *row, int32_t sms, bench_moe_methods *methods) {
  const arg_value *schedules = args_list(args, "schedule"), *dedups = args_list(args, "dedup");
  methods->count = 0;
  int code = TOOL_OK;
  for (int d = 0; d < dedups->list_count && code == TOOL_OK; d++) {
    code = add_schedule(args, row, sms, SERIAL, dedups->list[d], methods);
    if (code == TOOL_OK) code = add_parts(args, dedups->list[d], methods);
  }
  for (int i = 0; i < schedules->list_count; i++)
    for (int d = 0; schedules->list[i] != SERIAL && d < dedups->list_count && code == TOOL_OK; d++)
      code = add_schedule(args, row, sms, schedules->list[i], dedups->list[d], methods);
  dt_moe_bench_method live = layer_method(args, DIRECT, dedups->list[dedups->list_count - 1]);
  live.graph = 0;
  if (code == TOOL_OK) code = add(methods, &live, "direct live");
  return code == TOOL_OK && args_set(args, "in-place") ? add_in_place(methods) : code;
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

/* What has a price: layers launched as a graph, and L1 and L2 in place. */
static int is_priced(const dt_moe_bench_method *m) {
  return m->part == DT_CUDA_MOE_IN_PLACE || (m->part < 0 && m->graph);
}

static int dispatches_alike(const dt_moe_bench_method *a, const dt_moe_bench_method *b) {
  return a->part == b->part && (a->dedup != 0) == (b->dedup != 0) && a->head == b->head && a->send_sms == b->send_sms &&
         a->ahead == b->ahead;
}

/* Of method `first` and all behind it that dispatch as it does. */
static int price_alike(const dt_platform *platform, dt_layer_model *model, const int64_t *rows, int32_t first,
                       bench_moe_methods *methods) {
  const dt_moe_bench_method *like = &methods->list[first];
  dt_layer_order orders[BENCH_MOE_METHODS];
  double predicted_s[BENCH_MOE_METHODS];
  int32_t of[BENCH_MOE_METHODS], count = 0;
  for (int32_t m = first; m < methods->count; m++) {
    const dt_moe_bench_method *method = &methods->list[m];
    if (!is_priced(method) || !dispatches_alike(method, like)) continue;
    of[count] = m;
    orders[count++] = (dt_layer_order){.schedule = method->schedule,
                                       .raster_bands = method->raster_bands,
                                       .group_tasks = method->group_tasks,
                                       .lead = method->lead,
                                       .wave_experts = method->wave_experts,
                                       .order = method->order,
                                       .consumers = method->consumers,
                                       .segment_bands = method->segment_bands};
  }
  model->rows_in_place = like->part >= 0;
  model->dedup = like->dedup != 0;
  model->dispatch_rows = model->dedup ? rows : NULL;
  model->head = like->head;
  model->send_sms = like->send_sms;
  model->ahead = like->ahead;
  const int code = device_price(platform, model, orders, count, predicted_s);
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
  dt_layer_model model;
  dt_moe_shape_model(shape, row->ranks, &model);
  model.sms = sms;
  model.counts = counts;
  model.tokens = tokens;
  for (int32_t m = 0; m < methods->count && code == TOOL_OK; m++) {
    const dt_moe_bench_method *method = &methods->list[m];
    int seen = !is_priced(method);
    for (int32_t i = 0; i < m && !seen; i++)
      seen = is_priced(&methods->list[i]) && dispatches_alike(&methods->list[i], method);
    if (!seen) code = price_alike(machine->platform, &model, rows, m, methods);
  }
  free(ids), free(weights), free(counts);
  return code;
}
