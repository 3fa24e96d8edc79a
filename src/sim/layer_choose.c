/* `auto` on GPUs. */
#include <math.h>

#include "layer.h"

/* Prices that differ by less are the same: direct's, which needs no group, is taken, and none with dedup. Round numbers
 * below what prices are off by (in the median 0.7 % of gains of one schedule over another, 1.9 % of those with dedup
 * over direct: docs/model.md); scripts/tables.jq has them too. */
static const double same_price = 0.005;
static const double same_price_dedup = 0.015;

/* A price as it is compared. */
static double weighed(double total_s, dt_schedule schedule, int32_t dedup) {
  const double same = schedule == DT_SCHEDULE_DIRECT ? 0.0 : same_price;
  return total_s * (1.0 + (dedup ? same_price_dedup : same));
}

static void add(dt_layer_choice *found, const dt_layer_order *grouping, dt_schedule schedule, int32_t dedup) {
  dt_layer_order *order = &found->orders[found->count];
  *order = grouping ? *grouping : (dt_layer_order){.raster_bands = 0};
  order->schedule = schedule;
  found->dedups[found->count++] = dedup;
}

static void list(const dt_layer_model *model, const dt_layer_order *grouping, dt_layer_choice *found) {
  static const dt_schedule schedules[] = {DT_SCHEDULE_DIRECT, DT_SCHEDULE_SERIAL,     DT_SCHEDULE_SIGNAL,
                                          DT_SCHEDULE_WAVE,   DT_SCHEDULE_INTERLEAVE, DT_SCHEDULE_ALTERNATE};
  for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) add(found, grouping, schedules[i], 0);
  if (!model->dedup || (grouping && grouping->order != DT_ORDER_NATURAL)) return;
  add(found, grouping, DT_SCHEDULE_DIRECT, 1);
  add(found, grouping, DT_SCHEDULE_INTERLEAVE, 1);
  if (grouping && (grouping->group_tasks || grouping->lead)) return;
  add(found, grouping, DT_SCHEDULE_INTERLEAVE, 1);
  dt_layer_order *fine = &found->orders[found->count - 1];
  fine->group_tasks = model->sms / 2;
  fine->lead = 2;
}

dt_status dt_layer_choose(const dt_layer_model *model, const dt_layer_costs *costs, const dt_layer_order *grouping,
                          dt_layer_choice *choice) {
  dt_layer_choice found = {.count = 0};
  dt_layer_answer answers[DT_LAYER_CHOICES];
  dt_status status = DT_OK;
  if (model == NULL || model->size != sizeof *model) return dt_layer_price(model, costs, NULL, 0, answers);
  list(model, grouping, &found);
  for (int32_t first = 0, end; first < found.count && !status; first = end) {
    dt_layer_model form = *model;
    form.dedup = found.dedups[first];
    end = first;
    while (end < found.count && found.dedups[end] == form.dedup) end++;
    status = dt_layer_price(&form, costs, found.orders + first, end - first, answers + first);
  }
  if (status) return status;
  int32_t best = 0;
  double least = INFINITY;
  for (int32_t i = 0; i < found.count; i++) {
    found.total_s[i] = answers[i].total_s;
    const double price = weighed(answers[i].total_s, found.orders[i].schedule, found.dedups[i]);
    if (price < least) least = price, best = i;
  }
  found.best = found.orders[best];
  found.dedup = found.dedups[best];
  found.predicted_s = found.total_s[best];
  *choice = found;
  return DT_OK;
}
