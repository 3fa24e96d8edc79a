/* What a layer on GPUs costs, by a platform file; and the choice of its schedule. */
#include <draintile/simulate.h>

#include <string.h>

#include "core/error.h"

/* Share of a whole tile's time that a tile without rows would take: half a band takes 0.63 (docs/engine.md). */
static const double fixed_share = 0.26;
/* Fitted to task orders measured on one H200, tests/data/h200-layer-orders.json; a platform's sim_mixing_ratio replaces
 * it. */
static const double mixing_ratio = 0.13;
static const double tile_rows = 128.0;
static const double burst_bytes = 32768.0; /* of a producer: what the burst tables were measured for most densely */

static dt_status tile_time(const dt_platform *platform, int64_t k, double *seconds) {
  const dt_platform_table *table = dt_platform_find_table(platform, "tile_s", NULL, NULL, NULL);
  double at[DT_PLATFORM_ARGUMENTS] = {(double)k};
  dt_interval time;
  int inside = 0;
  if (!table || table->argument_count != 1)
    return dt_fail(DT_ERR_INPUT, "tables.tile_s: missing; a platform file of a GPU with its tile times is allowed");
  dt_status status = dt_platform_interpolate(table, at, &time, &inside);
  if (status) return status;
  *seconds = time.value;
  if (inside) return DT_OK;
  double edge = table->points[0].at[0]; /* beyond the measured range: in proportion to the nearest K */
  for (size_t i = 1; i < table->point_count; i++) {
    double k_i = table->points[i].at[0];
    if ((double)k > edge ? k_i > edge : k_i < edge) edge = k_i;
  }
  *seconds *= (double)k / edge;
  return DT_OK;
}

dt_status dt_sim_costs_gpu(const dt_platform *platform, int64_t hidden, int64_t intermediate, int32_t workers,
                           int32_t top_k, dt_sim_costs *costs) {
  if (hidden < 1 || intermediate < 1 || workers < 1 || top_k < 1)
    return dt_fail(DT_ERR_ARGUMENT, "hidden, intermediate, workers, top_k: %lld, %lld, %d, %d; 1 or more is allowed",
                   (long long)hidden, (long long)intermediate, workers, top_k);
  static const char *const names[] = {"launch_s",       "entry_barrier_s", "link_latency_s",   "fence_sys_s",
                                      "flag_release_s", "counter_s",       "fence_sys_idle_s", "memory_bytes_per_s"};
  enum { LAUNCH, ENTRY, LATENCY, FENCE, FLAG, COUNTER, FENCE_IDLE, MEMORY, NAMES };
  dt_sim_costs read = *costs;
  dt_interval value[NAMES];
  double l1 = 0.0, l2 = 0.0;
  dt_status status = tile_time(platform, hidden, &l1);
  if (!status) status = tile_time(platform, intermediate, &l2);
  for (int i = 0; i < NAMES && !status; i++) status = dt_platform_lookup(platform, names[i], &value[i]);
  dt_burst_model_interval link = {{0.0, 0.0, 0.0}, {0.0, 0.0, 0.0}, {0.0, 0.0, 0.0}};
  dt_platform_question both = {workers, burst_bytes, "both-ways", "st.v4", NULL},
                       any = {workers, burst_bytes, NULL, NULL, NULL};
  if (!status && dt_platform_burst_model(platform, &both, &link, NULL))
    status = dt_platform_burst_model(platform, &any, &link, NULL);
  if (status) return status;
  read.l1_base_s = fixed_share * l1;
  read.l1_row_s = (1.0 - fixed_share) * l1 / tile_rows;
  read.l2_base_s = fixed_share * l2;
  read.l2_row_s = (1.0 - fixed_share) * l2 / tile_rows;
  read.l1_panel_s = read.l2_panel_s = read.band_s_per_row = 0.0;
  double copied = workers / value[MEMORY].value; /* a worker's share: seconds for a byte read or written */
  read.local_copy_s_per_byte = 2.0 * copied;
  read.reduce_row_s = 2.0 * (double)hidden * (top_k + 1.0) * copied;
  read.copy_s_per_byte = link.t0_s.value / burst_bytes;
  read.link_bytes_per_s = link.rate_bytes_per_s.value;
  read.link_capacity_bytes = link.capacity_bytes.value;
  read.link_latency_s = value[LATENCY].value + value[FENCE].value + value[FLAG].value;
  read.entry_s = value[LAUNCH].value + value[ENTRY].value;
  read.barrier_s = value[LAUNCH].value + value[ENTRY].value;
  read.release_s = value[COUNTER].value + value[FENCE_IDLE].value;
  double tile_columns = 256.0, element = 2.0;
  read.memory_bytes_per_s = value[MEMORY].value;
  read.l1_panel_bytes = tile_columns * (double)hidden * element;
  read.l2_panel_bytes = tile_columns * (double)intermediate * element;
  read.l1_row_in_bytes = (double)hidden * element;
  read.l2_row_in_bytes = (double)intermediate * element;
  read.l1_row_out_bytes = 0.5 * tile_columns * element; /* gate and up make one */
  read.l2_row_out_bytes = tile_columns * element;
  read.mixing_ratio = mixing_ratio;
  read.deferred_stores = 1;
  read.tickets_ahead = 2; /* the engine's: docs/engine.md */
  dt_sim_costs given = read;
  status = dt_sim_costs_from_platform(platform, &given, NULL);
  if (status) return status;
  given.link_bytes_per_s = read.link_bytes_per_s; /* sim_link_* are the one-way figures of the same tables */
  given.link_capacity_bytes = read.link_capacity_bytes;
  given.link_latency_s = read.link_latency_s;
  *costs = given;
  return DT_OK;
}

dt_status dt_schedule_choose(const dt_sim_config *config, const dt_sim_costs *costs, const int32_t *counts,
                             dt_sim_choice *choice) {
  static const int32_t waves[] = {1, 2, 4};
  dt_sim_choice found = {.count = 0};
  found.priced[found.count++] = (dt_sim_priced){.schedule = DT_SCHEDULE_DIRECT};
  found.priced[found.count++] = (dt_sim_priced){.schedule = DT_SCHEDULE_WAVE, .group_tasks = 6 * config->workers};
  for (int s = DT_SCHEDULE_INTERLEAVE; s <= DT_SCHEDULE_ALTERNATE; s++)
    for (size_t w = 0; w < sizeof waves / sizeof *waves; w++)
      for (int32_t lead = 1; lead <= 2; lead++)
        found.priced[found.count++] =
            (dt_sim_priced){.schedule = (dt_schedule)s, .group_tasks = waves[w] * config->workers, .lead = lead};
  int32_t best = 0;
  for (int32_t i = 0; i < found.count; i++) {
    dt_sim_config priced = *config;
    dt_sim_result result = {.rank_total_s = NULL};
    priced.plan.schedule = found.priced[i].schedule;
    priced.plan.order = dt_schedule_default_order(found.priced[i].schedule);
    priced.plan.group_tasks = found.priced[i].group_tasks;
    priced.plan.lead = found.priced[i].lead;
    priced.plan.wave_experts = 0;
    dt_status status = dt_simulate(&priced, costs, counts, &result, NULL);
    if (status) return status;
    found.priced[i].total_s = result.total_s;
    if (result.total_s < found.priced[best].total_s) best = i;
  }
  found.best = found.priced[best];
  *choice = found;
  return DT_OK;
}
