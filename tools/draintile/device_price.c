#include "device_price.h"

#include <math.h>
#include <string.h>

#include "args.h"
#include "log.h"

/* The engine's tiles: 128 rows by 256 columns, in L1 half of them gate and half up. */
enum { TILE_ROWS = 128, TILE_COLUMNS_1 = 128, TILE_COLUMNS_2 = 256, REDUCE_TOKENS = 8 };

/* The machine's rate of grouped products at the rows, experts and width of this layer; 0: the file has no table. */
static double gemm_rate(const device_layer *layer, double n, double k) {
  const dt_platform_table *table = dt_platform_find_table(layer->platform, "gemm_flop_per_s", NULL, NULL, NULL);
  double at[DT_PLATFORM_ARGUMENTS], slots = 0;
  for (size_t i = 0; i < (size_t)layer->ranks * (size_t)layer->experts; i++) slots += layer->counts[i];
  const double question[] = {slots / layer->ranks, n, k, (double)layer->experts / layer->ranks};
  static const char *const names[] = {"rows", "n", "k", "experts"};
  int known = 0;
  dt_interval rate;
  for (int32_t a = 0; table && a < table->argument_count; a++)
    for (size_t i = 0; i < ARGS_COUNT(names); i++)
      if (strcmp(table->arguments[a], names[i]) == 0) at[a] = question[i], known++;
  if (!table || known != table->argument_count || dt_platform_interpolate(table, at, &rate, NULL)) return 0;
  return rate.value;
}

/* Costs of a tile on one multiprocessor, where the file has not measured them: its share of the machine's rates. */
static void fill_rates(const device_layer *layer, dt_sim_costs *costs) {
  const double hidden = (double)layer->hidden, intermediate = (double)layer->intermediate;
  const double rate_1 = gemm_rate(layer, 2 * intermediate, hidden) / layer->sms;
  const double rate_2 = gemm_rate(layer, hidden, intermediate) / layer->sms;
  dt_interval memory;
  if (rate_1 > 0) costs->l1_row_s = 4 * hidden * TILE_COLUMNS_1 / rate_1;
  if (rate_2 > 0) costs->l2_row_s = 2 * intermediate * TILE_COLUMNS_2 / rate_2;
  if (dt_platform_lookup(layer->platform, "memory_bytes_per_s", &memory)) return;
  costs->reduce_row_s = 2 * hidden * layer->sms / memory.value;
}

static int make(const device_layer *layer, const device_grouping *grouping, dt_sim_config *config,
                dt_sim_costs *costs) {
  int32_t found = 0;
  dt_sim_costs_init(costs);
  const dt_status status = dt_sim_costs_from_platform(layer->platform, costs, &found);
  if (status) return log_status(status, "platform");
  if (costs->l1_base_s + costs->l1_row_s <= 0) fill_rates(layer, costs);
  dt_sim_config_init(config);
  config->plan.ranks = layer->ranks;
  config->plan.experts_per_rank = layer->experts / layer->ranks;
  config->plan.tile_m = TILE_ROWS;
  config->plan.columns_1 = (int32_t)((layer->intermediate + TILE_COLUMNS_1 - 1) / TILE_COLUMNS_1);
  config->plan.columns_2 = (int32_t)((layer->hidden + TILE_COLUMNS_2 - 1) / TILE_COLUMNS_2);
  config->plan.raster_bands = grouping->raster_bands;
  config->plan.group_tasks = grouping->group_tasks;
  config->plan.lead = grouping->lead;
  config->plan.wave_experts = grouping->wave_experts;
  config->plan.dispatch = 1;
  config->workers = layer->sms;
  config->consumers = 0;
  config->row_in_bytes = config->row_out_bytes = 2 * layer->hidden;
  config->reduce_tokens = REDUCE_TOKENS;
  config->tokens = layer->tokens;
  return TOOL_OK;
}

int device_price(const device_layer *layer, dt_schedule schedule, const device_grouping *grouping,
                 double *predicted_s) {
  dt_sim_config config;
  dt_sim_costs costs;
  dt_sim_result result = {0};
  *predicted_s = NAN;
  const int code = make(layer, grouping, &config, &costs);
  if (code || costs.l1_base_s + costs.l1_row_s <= 0) return code; /* a platform may know the link alone */
  config.plan.schedule = schedule;
  config.plan.order = dt_schedule_default_order(schedule);
  const dt_status status = dt_simulate(&config, &costs, layer->counts, &result, NULL);
  if (status) return log_status(status, dt_schedule_name(schedule));
  *predicted_s = result.total_s;
  return TOOL_OK;
}

int device_choose(const device_layer *layer, const device_grouping *grouping, dt_schedule *chosen,
                  double predicted_s[6]) {
  static const dt_schedule schedules[] = {DT_SCHEDULE_SERIAL, DT_SCHEDULE_DIRECT, DT_SCHEDULE_WAVE,
                                          DT_SCHEDULE_INTERLEAVE, DT_SCHEDULE_ALTERNATE};
  double best = INFINITY;
  for (int i = 0; i < 6; i++) predicted_s[i] = NAN;
  *chosen = DT_SCHEDULE_DIRECT;
  for (size_t i = 0; i < ARGS_COUNT(schedules); i++) {
    double *price = &predicted_s[schedules[i]];
    const int code = device_price(layer, schedules[i], grouping, price);
    if (code) return code;
    if (*price < best) {
      best = *price;
      *chosen = schedules[i];
    }
  }
  return TOOL_OK;
}
