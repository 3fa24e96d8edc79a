/* `auto` on GPUs. */
#include "layer.h"

/* Prices that differ by less are the same: direct's, which needs no group, is taken. */
static const double same_price = 0.005;

dt_status dt_layer_choose(const dt_layer_model *model, const dt_layer_costs *costs, const dt_layer_order *grouping,
                          dt_layer_choice *choice) {
  static const dt_schedule schedules[DT_LAYER_CHOICES] = {DT_SCHEDULE_DIRECT,     DT_SCHEDULE_SERIAL,
                                                          DT_SCHEDULE_SIGNAL,     DT_SCHEDULE_WAVE,
                                                          DT_SCHEDULE_INTERLEAVE, DT_SCHEDULE_ALTERNATE};
  dt_layer_order orders[DT_LAYER_CHOICES];
  for (int32_t i = 0; i < DT_LAYER_CHOICES; i++) {
    orders[i] = grouping ? *grouping : (dt_layer_order){.raster_bands = 0};
    orders[i].schedule = schedules[i];
  }
  dt_layer_answer answers[DT_LAYER_CHOICES];
  dt_status status = dt_layer_price(model, costs, orders, DT_LAYER_CHOICES, answers);
  if (status) return status;
  dt_layer_choice found = {.best = orders[0], .predicted_s = answers[0].total_s};
  for (int32_t i = 0; i < DT_LAYER_CHOICES; i++) {
    found.orders[i] = orders[i];
    found.total_s[i] = answers[i].total_s;
    if (answers[i].total_s < found.predicted_s && answers[i].total_s * (1.0 + same_price) < answers[0].total_s) {
      found.best = orders[i];
      found.predicted_s = answers[i].total_s;
    }
  }
  *choice = found;
  return DT_OK;
}
