#include "device_price.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <draintile/units.h>

#include "args.h"
#include "log.h"

static int read_costs(const dt_platform *platform, const dt_layer_model *model, dt_layer_costs *costs) {
  const dt_status status =
      dt_layer_costs_from_platform(platform, model->hidden, model->intermediate, model->sms, costs);
  return status ? log_status(status, "platform") : TOOL_OK;
}

/* A platform may know the link alone. */
static int knows_tiles(const dt_platform *platform) {
  return dt_platform_find_table(platform, "tile_s", NULL, NULL, NULL) != NULL;
}

int device_price(const dt_platform *platform, const dt_layer_model *model, const dt_layer_order *orders, int32_t count,
                 double *predicted_s) {
  dt_layer_costs costs;
  for (int32_t i = 0; i < count; i++) predicted_s[i] = NAN;
  if (count == 0 || !knows_tiles(platform)) return TOOL_OK;
  dt_layer_answer *answers = malloc((size_t)count * sizeof *answers);
  if (!answers) return log_out_of_memory();
  int code = read_costs(platform, model, &costs);
  if (code == TOOL_OK) {
    const dt_status status = dt_layer_price(model, &costs, orders, count, answers);
    if (status) code = log_status(status, "price");
  }
  const double table_s = model->rows_in_place ? costs.table_s : 0.0; /* what is measured has one before */
  for (int32_t i = 0; i < count && code == TOOL_OK; i++) predicted_s[i] = answers[i].total_s + table_s;
  free(answers);
  return code;
}

int device_choose(const dt_platform *platform, const dt_layer_model *model, const dt_layer_order *grouping,
                  dt_layer_choice *choice) {
  dt_layer_costs costs;
  const int code = read_costs(platform, model, &costs);
  if (code) return code;
  const dt_status status = dt_layer_choose(model, &costs, grouping, choice);
  return status ? log_status(status, "--schedule auto") : TOOL_OK;
}

void device_explain(const dt_layer_choice *choice) {
  char time[32], form[64];
  for (int i = 0; i < choice->count; i++) {
    const dt_layer_order *o = &choice->orders[i];
    const int fine = choice->dedups[i] && o->group_tasks;
    snprintf(form, sizeof form, "%s%s", dt_schedule_name(o->schedule), choice->dedups[i] ? " dedup" : "");
    if (fine)
      snprintf(form, sizeof form, "%s dedup, group-tasks %d, lead %d", dt_schedule_name(o->schedule), o->group_tasks,
               o->lead);
    log_note("auto: %-10s %s%s", form, dt_format_seconds(choice->total_s[i], time, sizeof time),
             memcmp(o, &choice->best, sizeof *o) == 0 && choice->dedups[i] == choice->dedup ? "  <- chosen" : "");
  }
}
