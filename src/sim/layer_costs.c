/* What a layer on GPUs costs, by a platform file. */
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "core/error.h"
#include "layer.h"

/* What no calibration measures yet, on H200; a constant of the platform with that name replaces it. docs/model.md says
 * where each comes from. */
static const struct {
  size_t offset;
  const char *name;
  double value;
} fields[] = {
    {offsetof(dt_layer_costs, tile_1_s), "sim_layer_tile_1_s", NAN}, /* NAN: of the platform, below */
    {offsetof(dt_layer_costs, tile_2_s), "sim_layer_tile_2_s", NAN},
    {offsetof(dt_layer_costs, activation_s), "sim_layer_activation_s", 1.8e-6},
    {offsetof(dt_layer_costs, short_ratio), "sim_layer_short_ratio", 0.63},
    {offsetof(dt_layer_costs, alone_ratio), "sim_layer_alone_ratio", 0.93},
    {offsetof(dt_layer_costs, sustained_ratio), "sim_layer_sustained_ratio", 1.2},
    {offsetof(dt_layer_costs, sustained_s), "sim_layer_sustained_s", 3e-3},
    {offsetof(dt_layer_costs, least_ratio), "sim_layer_least_ratio", 0.72},
    {offsetof(dt_layer_costs, power_s_per_byte), "sim_layer_power_s_per_byte", 45e-15},
    {offsetof(dt_layer_costs, memory_bytes_per_s), "sim_layer_memory_bytes_per_s", 4.5e12},
    {offsetof(dt_layer_costs, memory_latency_s), "sim_layer_memory_latency_s", 1.4e-6},
    {offsetof(dt_layer_costs, together_ratio), "sim_layer_together_ratio", 0.1},
    {offsetof(dt_layer_costs, cache_bytes), "sim_layer_cache_bytes", 20e6},
    {offsetof(dt_layer_costs, link_bytes_per_s), "sim_layer_link_bytes_per_s", NAN},
    {offsetof(dt_layer_costs, link_capacity_bytes), "sim_layer_link_capacity_bytes", NAN},
    {offsetof(dt_layer_costs, link_latency_s), "sim_layer_link_latency_s", NAN},
    {offsetof(dt_layer_costs, tile_link_ratio), "sim_layer_tile_link_ratio", 1.7},
    {offsetof(dt_layer_costs, copy_bytes_per_s), "sim_layer_copy_bytes_per_s", NAN},
    {offsetof(dt_layer_costs, warp_bytes_per_s), "sim_layer_warp_bytes_per_s", 4.2e9},
    {offsetof(dt_layer_costs, quiet_warp_bytes_per_s), "sim_layer_quiet_warp_bytes_per_s", 6.7e9},
    {offsetof(dt_layer_costs, piece_s), "sim_layer_piece_s", 0.0},
    {offsetof(dt_layer_costs, crowd_ratio), "sim_layer_crowd_ratio", 0.35},
    {offsetof(dt_layer_costs, beside_ratio), "sim_layer_beside_ratio", 0.03},
    {offsetof(dt_layer_costs, beside_full_ratio), "sim_layer_beside_full_ratio", 0.25},
    {offsetof(dt_layer_costs, shadow_ratio), "sim_layer_shadow_ratio", 0.3},
    {offsetof(dt_layer_costs, copy_warps), "sim_layer_copy_warps_count", 1.0},
    {offsetof(dt_layer_costs, expand_bytes_per_s), "sim_layer_expand_bytes_per_s", 3.15e9},
    {offsetof(dt_layer_costs, sm_bytes_per_s), "sim_layer_sm_bytes_per_s", 35e9},
    {offsetof(dt_layer_costs, launch_s), "sim_layer_launch_s", NAN},
    {offsetof(dt_layer_costs, plan_s), "sim_layer_plan_s", 27.5e-6},
    {offsetof(dt_layer_costs, plan_expert_s), "sim_layer_plan_expert_s", 11e-9},
    {offsetof(dt_layer_costs, table_s), "sim_layer_table_s", 22e-6},
    {offsetof(dt_layer_costs, fill_s), "sim_layer_fill_s", 2.5e-6},
    {offsetof(dt_layer_costs, release_s), "sim_layer_release_s", 2e-6},
    {offsetof(dt_layer_costs, store_s), "sim_layer_store_s", 2e-6},
    {offsetof(dt_layer_costs, put_s), "sim_layer_put_s", 4e-6},
    {offsetof(dt_layer_costs, reduce_s), "sim_layer_reduce_s", 6e-6},
    {offsetof(dt_layer_costs, reduce_bytes_per_s), "sim_layer_reduce_bytes_per_s", NAN},
    {offsetof(dt_layer_costs, consumer_bytes_per_s), "sim_layer_consumer_bytes_per_s", 45e9},
};
enum { FIELDS = sizeof fields / sizeof *fields };
static const double burst_bytes = 65536.0; /* of a producer: a tile of 128 rows by 256 columns */

static double *field_of(dt_layer_costs *costs, size_t i) {
  return (double *)(void *)((char *)costs + fields[i].offset);
}

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

/* The link as all multiprocessors store to it, both ways at once. */
static dt_status read_link(const dt_platform *platform, int32_t sms, dt_layer_costs *costs) {
  dt_burst_model_interval link = {{0.0, 0.0, 0.0}, {0.0, 0.0, 0.0}, {0.0, 0.0, 0.0}};
  static const char *const operations[] = {"tensor", "bulk", "st.v4"}; /* L2's rows leave by the copy engine */
  dt_status status = DT_ERR_INPUT;
  for (size_t i = 0; i < sizeof operations / sizeof *operations && status; i++) {
    const dt_platform_question both = {sms, burst_bytes, "both-ways", operations[i], NULL};
    status = dt_platform_burst_model(platform, &both, &link, NULL);
  }
  const dt_platform_question any = {sms, burst_bytes, NULL, NULL, NULL};
  if (status) status = dt_platform_burst_model(platform, &any, &link, NULL);
  costs->link_bytes_per_s = link.rate_bytes_per_s.value;
  costs->link_capacity_bytes = link.capacity_bytes.value;
  return status;
}

dt_status dt_layer_costs_from_platform(const dt_platform *platform, int64_t hidden, int64_t intermediate, int32_t sms,
                                       dt_layer_costs *costs) {
  static const char *const names[] = {"launch_s", "link_latency_s", "fence_sys_s", "flag_release_s",
                                      "memory_bytes_per_s"};
  enum { LAUNCH, LATENCY, FENCE, FLAG, MEMORY, NAMES };
  if (hidden < 1 || intermediate < 1 || sms < 2)
    return dt_fail(DT_ERR_ARGUMENT, "hidden, intermediate, sms: %lld, %lld, %d; 1 or more, 2 or more is allowed",
                   (long long)hidden, (long long)intermediate, sms);
  dt_interval value[NAMES];
  dt_layer_costs read;
  for (size_t i = 0; i < FIELDS; i++) *field_of(&read, i) = fields[i].value;
  dt_status status = tile_time(platform, hidden, &read.tile_1_s);
  if (!status) status = tile_time(platform, intermediate, &read.tile_2_s);
  for (int i = 0; i < NAMES && !status; i++) status = dt_platform_lookup(platform, names[i], &value[i]);
  if (!status) status = read_link(platform, sms, &read);
  if (status) return status;
  read.launch_s = value[LAUNCH].value;
  read.link_latency_s = value[LATENCY].value + value[FENCE].value + value[FLAG].value;
  read.copy_bytes_per_s = 0.5 * value[MEMORY].value; /* read and written */
  read.reduce_bytes_per_s = value[MEMORY].value;
  for (size_t i = 0; i < FIELDS; i++) {
    const dt_platform_constant *constant = dt_platform_find_constant(platform, fields[i].name);
    if (constant) *field_of(&read, i) = constant->interval.value;
  }
  status = dt_layer_costs_check(&read);
  if (!status) *costs = read;
  return status;
}

/* Beyond any machine, and near enough to one that no time is lost beside another: the price would wait for ever. */
static bool is_size(const char *name) {
  return strstr(name, "_s_per_byte") == NULL && (strstr(name, "_bytes") != NULL || strstr(name, "_count") != NULL);
}
static double most_of(const char *name) {
  return is_size(name) ? 1e18 : 1e3;
}

dt_status dt_layer_costs_check(const dt_layer_costs *costs) {
  if (costs == NULL) return dt_fail(DT_ERR_ARGUMENT, "costs: NULL; needed");
  dt_layer_costs copy = *costs;
  for (size_t i = 0; i < FIELDS; i++) {
    const double value = *field_of(&copy, i);
    if (!(value >= 0.0 && value <= most_of(fields[i].name)))
      return dt_fail(DT_ERR_ARGUMENT, "%s: %g; 0 to %g is allowed", fields[i].name, value, most_of(fields[i].name));
  }
  const struct {
    const char *name;
    double value;
  } above[] = {{"tile_1_s", costs->tile_1_s},
               {"tile_2_s", costs->tile_2_s},
               {"short_ratio", costs->short_ratio},
               {"least_ratio", costs->least_ratio},
               {"memory_bytes_per_s", costs->memory_bytes_per_s},
               {"cache_bytes", costs->cache_bytes},
               {"link_bytes_per_s", costs->link_bytes_per_s},
               {"tile_link_ratio", costs->tile_link_ratio},
               {"copy_bytes_per_s", costs->copy_bytes_per_s},
               {"warp_bytes_per_s", costs->warp_bytes_per_s},
               {"quiet_warp_bytes_per_s", costs->quiet_warp_bytes_per_s},
               {"expand_bytes_per_s", costs->expand_bytes_per_s},
               {"sm_bytes_per_s", costs->sm_bytes_per_s},
               {"reduce_bytes_per_s", costs->reduce_bytes_per_s},
               {"consumer_bytes_per_s", costs->consumer_bytes_per_s}};
  for (size_t i = 0; i < sizeof above / sizeof *above; i++) {
    const double least = is_size(above[i].name) ? 1.0 : 1e-12;
    if (above[i].value < least)
      return dt_fail(DT_ERR_ARGUMENT, "%s: %g; %g or more is allowed", above[i].name, above[i].value, least);
  }
  if (!(costs->copy_warps >= 0.5 && costs->copy_warps <= 64.0)) /* a warp of a cluster; those of a multiprocessor */
    return dt_fail(DT_ERR_ARGUMENT, "copy_warps: %g; 0.5 to 64 is allowed", costs->copy_warps);
  return DT_OK;
}
