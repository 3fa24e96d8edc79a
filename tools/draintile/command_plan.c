/* draintile plan: layout, bands, segments, orders and tasks of one rank. */
#include <stdlib.h>

#include <draintile/plan.h>

#include "commands.h"
#include "counts_file.h"
#include "json.h"
#include "log.h"
#include "table.h"

static json_t *groups_json(const dt_plan *plan) {
  json_t *array = json_array();
  for (int32_t i = 0; i < plan->group_count; i++) {
    const dt_group *g = &plan->groups[i];
    json_array_append_new(array, json_pack("{s:i, s:i, s:I, s:I, s:I}", "expert", g->expert, "owner", g->owner, "row",
                                           (json_int_t)g->row, "rows", (json_int_t)g->rows, "dst_row",
                                           (json_int_t)g->dst_row));
  }
  return array;
}

static json_t *bands_json(const dt_plan *plan) {
  json_t *array = json_array();
  for (int32_t i = 0; i < plan->band_count; i++) {
    const dt_band *b = &plan->bands[i];
    json_t *parts = json_array();
    for (int32_t j = b->first_part; j < b->first_part + b->parts; j++) {
      const dt_part *p = &plan->parts[j];
      json_array_append_new(parts, json_pack("{s:i, s:I, s:i, s:I}", "owner", p->owner, "row", (json_int_t)p->row,
                                             "rows", p->rows, "dst_row", (json_int_t)p->dst_row));
    }
    json_array_append_new(array, json_pack("{s:i, s:I, s:i, s:i, s:o}", "expert", b->expert, "row", (json_int_t)b->row,
                                           "rows", b->rows, "remote_rows", b->remote_rows, "parts", parts));
  }
  return array;
}

static json_t *segments_json(const dt_plan *plan) {
  json_t *array = json_array();
  for (int32_t i = 0; i < plan->segment_count; i++) {
    const dt_segment *s = &plan->segments[i];
    json_array_append_new(array, json_pack("{s:i, s:i, s:I, s:I, s:I, s:i, s:i}", "expert", s->expert, "owner",
                                           s->owner, "row", (json_int_t)s->row, "rows", (json_int_t)s->rows, "dst_row",
                                           (json_int_t)s->dst_row, "first_band", s->first_band, "bands", s->bands));
  }
  return array;
}

static json_t *tasks_json(const dt_plan *plan) {
  json_t *array = json_array();
  for (int64_t i = 0; i < plan->task_count; i++)
    json_array_append_new(array,
                          json_pack("[i, i, i]", plan->tasks[i].phase, plan->tasks[i].index, plan->tasks[i].column));
  return array;
}

static json_t *to_json(const dt_plan *plan, int with_tasks) {
  json_t *root = json_results("draintile-plan");
  json_object_set_new(root, "rows", json_whole(plan->rows));
  json_object_set_new(root, "padded_rows", json_whole(plan->padded_rows));
  json_object_set_new(root, "groups", groups_json(plan));
  json_object_set_new(root, "bands", bands_json(plan));
  json_object_set_new(root, "segments", segments_json(plan));
  json_object_set_new(root, "band_order", json_wholes32(plan->band_order, (size_t)plan->band_count));
  json_object_set_new(root, "segment_order", json_wholes32(plan->segment_order, (size_t)plan->segment_count));
  if (with_tasks) json_object_set_new(root, "tasks", tasks_json(plan));
  return root;
}

static void print_plan(const dt_plan *plan, int with_tasks) {
  printf("rank %d of %d, %d experts a rank, %s layout, %s order, tile_m %d\n", plan->config.rank, plan->config.ranks,
         plan->config.experts_per_rank, dt_layout_name(plan->config.layout), dt_order_name(plan->config.order),
         plan->config.tile_m);
  printf("%lld rows in memory, %lld of them padding; %d groups, %d bands, %d segments", (long long)plan->rows,
         (long long)plan->padded_rows, plan->group_count, plan->band_count, plan->segment_count);
  if (with_tasks) printf(", %lld tasks (%s)", (long long)plan->task_count, dt_schedule_name(plan->config.schedule));
  printf("\n\n");
  tool_table *bands = table_create("position|band|expert|first row|rows|remote rows|<owners");
  for (int32_t i = 0; i < plan->band_count; i++) {
    const dt_band *b = &plan->bands[plan->band_order[i]];
    char owners[128] = "";
    size_t used = 0;
    for (int32_t j = b->first_part; j < b->first_part + b->parts && used < sizeof(owners); j++)
      used += (size_t)snprintf(owners + used, sizeof(owners) - used, "%s%d", used ? " " : "", plan->parts[j].owner);
    table_cell(bands, "%d", i);
    table_cell(bands, "%d", plan->band_order[i]);
    table_cell(bands, "%d", b->expert);
    table_cell(bands, "%lld", (long long)b->row);
    table_cell(bands, "%d", b->rows);
    table_cell(bands, "%d", b->remote_rows);
    table_cell(bands, "%s", owners);
  }
  table_print(bands, stdout);
  if (plan->segment_count == 0) return;
  printf("\n");
  tool_table *segments = table_create("position|segment|expert|owner|first row|rows|owner's row|bands");
  for (int32_t i = 0; i < plan->segment_count; i++) {
    const dt_segment *s = &plan->segments[plan->segment_order[i]];
    table_cell(segments, "%d", i);
    table_cell(segments, "%d", plan->segment_order[i]);
    table_cell(segments, "%d", s->expert);
    table_cell(segments, "%d", s->owner);
    table_cell(segments, "%lld", (long long)s->row);
    table_cell(segments, "%lld", (long long)s->rows);
    table_cell(segments, "%lld", (long long)s->dst_row);
    table_cell(segments, "%d..%d", s->first_band, s->first_band + s->bands - 1);
  }
  table_print(segments, stdout);
}

static int fill_config(const tool_args *args, const counts_matrix *counts, dt_plan_config *config) {
  int64_t experts = args_int(args, "experts-per-rank"), rank = args_int(args, "rank");
  if (counts->experts % counts->ranks)
    return log_fail(TOOL_USAGE, "%s: counts: %d columns; allowed: a multiple of its %d rows", args_text(args, "counts"),
                    counts->experts, counts->ranks);
  if ((int64_t)counts->ranks * experts != counts->experts)
    return log_fail(TOOL_USAGE, "--experts-per-rank: %lld; allowed: %d, as counts has %d rows of %d",
                    (long long)experts, counts->experts / counts->ranks, counts->ranks, counts->experts);
  if (rank >= counts->ranks)
    return log_fail(TOOL_USAGE, "--rank: %lld; allowed: 0 to %d", (long long)rank, counts->ranks - 1);
  dt_plan_config_init(config);
  config->ranks = counts->ranks;
  config->experts_per_rank = (int32_t)experts;
  config->rank = (int32_t)rank;
  config->tile_m = (int32_t)args_int(args, "tile-m");
  config->layout = (dt_layout)args_choice(args, "layout");
  config->segment_bands = (int32_t)args_int(args, "segment-bands");
  bool tasks = args_set(args, "schedule");
  config->schedule = tasks ? (dt_schedule)args_choice(args, "schedule") : DT_SCHEDULE_SERIAL;
  if (args_set(args, "order"))
    config->order = (dt_order)args_choice(args, "order");
  else
    config->order = tasks ? dt_schedule_default_order(config->schedule) : DT_ORDER_NATURAL;
  config->columns_1 = tasks ? (int32_t)args_int(args, "columns-1") : 0;
  config->columns_2 = tasks ? (int32_t)args_int(args, "columns-2") : 0;
  config->raster_bands = (int32_t)args_int(args, "raster-bands");
  config->lead = (int32_t)args_int(args, "lead");
  config->wave_experts = (int32_t)args_int(args, "wave-experts");
  config->group_tasks = (int32_t)args_int(args, "group-tasks");
  return TOOL_OK;
}

static int run(const tool_args *args) {
  counts_matrix counts;
  int code = counts_read(args_text(args, "counts"), &counts);
  if (code) return code;
  dt_plan_config config;
  dt_plan *plan = NULL;
  code = fill_config(args, &counts, &config);
  if (code == TOOL_OK) {
    dt_status status = dt_plan_create(&config, counts.values, &plan);
    if (status) code = log_status(status, NULL);
  }
  if (code == TOOL_OK) {
    const char *json = args_text(args, "json");
    int tasks = args_set(args, "schedule");
    if (!json_is_stdout(json)) print_plan(plan, tasks);
    if (json) code = json_write(to_json(plan, tasks), json);
  }
  dt_plan_destroy(plan);
  free(counts.values);
  return code;
}

static const arg_option options[] = {
    OPT_TEXT("counts", "FILE", arg_required,
             "JSON {\"counts\": [[...W*E...] x W]}: slots of each source rank for each global expert"),
    OPT_INT("experts-per-rank", "E", arg_required, 1, 1 << 20, "experts of a rank"),
    OPT_INT("rank", "R", "0", 0, 4095, "the rank whose plan is made"),
    OPT_INT("tile-m", "M", "128", 1, 65536, "rows of a band"),
    OPT_CHOICE("layout", "LAYOUT", "packed", layout_names, "rows in memory"),
    OPT_CHOICE("order", "ORDER", NULL, order_names, "band order (default: the schedule's, natural without one)"),
    OPT_INT("segment-bands", "B", "1", 1, 65536, "interior bands of a group that travel together"),
    OPT_CHOICE("schedule", "SCHEDULE", NULL, schedule_names, "list the tasks of a schedule as well"),
    OPT_INT("columns-1", "N", "1", 1, 65536, "tiles across L1's output"),
    OPT_INT("columns-2", "N", "1", 1, 65536, "tiles across L2's output"),
    OPT_INT("raster-bands", "R", "1", 1, 65536, "bands of a unit at most"),
    OPT_INT("lead", "D", "1", 1, 65536, "groups of L1 ahead of L2 (interleave, alternate)"),
    OPT_INT("wave-experts", "N", "0", 0, 65536, "experts of a wave; 0: by --group-tasks"),
    OPT_INT("group-tasks", "N", "1", 1, 1e9, "L1 tasks that a group holds at least"),
    OPTION_JSON,
};

const tool_command command_plan = {
    .name = "plan",
    .summary = "lay out the rows, bands, segments and tasks of one rank from a matrix of counts",
    .options = options,
    .option_count = ARGS_COUNT(options),
    .run = run,
};
