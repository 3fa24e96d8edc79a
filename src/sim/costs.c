#include <draintile/simulate.h>

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "core/error.h"
#include "sim.h"

/* The fields of dt_sim_costs that are doubles, and their names as constants of a platform file. */
static const struct {
  size_t offset;
  const char *name;
} fields[] = {
    {offsetof(dt_sim_costs, l1_base_s), "sim_l1_base_s"},
    {offsetof(dt_sim_costs, l1_row_s), "sim_l1_s_per_row"},
    {offsetof(dt_sim_costs, l1_panel_s), "sim_l1_panel_s"},
    {offsetof(dt_sim_costs, l2_base_s), "sim_l2_base_s"},
    {offsetof(dt_sim_costs, l2_row_s), "sim_l2_s_per_row"},
    {offsetof(dt_sim_costs, l2_panel_s), "sim_l2_panel_s"},
    {offsetof(dt_sim_costs, band_s_per_row), "sim_band_s_per_row"},
    {offsetof(dt_sim_costs, shared_base_s), "sim_shared_base_s"},
    {offsetof(dt_sim_costs, shared_row_s), "sim_shared_s_per_row"},
    {offsetof(dt_sim_costs, reduce_base_s), "sim_reduce_base_s"},
    {offsetof(dt_sim_costs, reduce_row_s), "sim_reduce_s_per_row"},
    {offsetof(dt_sim_costs, copy_s_per_byte), "sim_copy_s_per_byte"},
    {offsetof(dt_sim_costs, put_base_s), "sim_put_base_s"},
    {offsetof(dt_sim_costs, local_copy_s_per_byte), "sim_local_copy_s_per_byte"},
    {offsetof(dt_sim_costs, plan_s), "sim_plan_s"},
    {offsetof(dt_sim_costs, entry_s), "sim_entry_s"},
    {offsetof(dt_sim_costs, barrier_s), "sim_barrier_s"},
    {offsetof(dt_sim_costs, wake_s), "sim_wake_s"},
    {offsetof(dt_sim_costs, link_bytes_per_s), "sim_link_bytes_per_s"},
    {offsetof(dt_sim_costs, link_capacity_bytes), "sim_link_capacity_bytes"},
    {offsetof(dt_sim_costs, link_latency_s), "sim_link_latency_s"},
    {offsetof(dt_sim_costs, receiver_bytes_per_s), "sim_receiver_bytes_per_s"},
    {offsetof(dt_sim_costs, cores), "sim_cores_count"},
    {offsetof(dt_sim_costs, dispatch_backlog_bytes), "sim_dispatch_backlog_bytes"},
};
enum { FIELDS = sizeof fields / sizeof *fields };
static const struct {
  size_t offset;
  const char *name;
} counts[] = {
    {offsetof(dt_sim_costs, cache_panels), "sim_cache_panels_count"},
    {offsetof(dt_sim_costs, band_panels), "sim_band_panels_count"},
};
enum { COUNTS = sizeof counts / sizeof *counts };

static double *field_of(dt_sim_costs *costs, size_t i) {
  return (double *)(void *)((char *)costs + fields[i].offset);
}

static int32_t *count_of(dt_sim_costs *costs, size_t i) {
  return (int32_t *)(void *)((char *)costs + counts[i].offset);
}

void dt_sim_costs_init(dt_sim_costs *costs) {
  memset(costs, 0, sizeof *costs);
  costs->band_panels = DT_BAND_PANELS;
}

dt_status sim_costs_check(const dt_sim_costs *costs) {
  dt_sim_costs copy = *costs;
  for (size_t i = 0; i < FIELDS; i++) {
    double value = *field_of(&copy, i);
    if (!(value >= 0.0) || !isfinite(value))
      return dt_fail(DT_ERR_ARGUMENT, "%s: %g; a finite number >= 0 is allowed", fields[i].name, value);
  }
  for (size_t i = 0; i < COUNTS; i++) {
    int32_t value = *count_of(&copy, i);
    if (value < 0) return dt_fail(DT_ERR_ARGUMENT, "%s: %d; a number >= 0 is allowed", counts[i].name, value);
  }
  return DT_OK;
}

static const dt_platform_constant *find(const dt_platform *platform, const char *name, int32_t *count) {
  const dt_platform_constant *constant = dt_platform_find_constant(platform, name);
  if (constant) ++*count;
  return constant;
}

dt_status dt_sim_costs_from_platform(const dt_platform *platform, dt_sim_costs *costs, int32_t *found) {
  dt_sim_costs read = *costs;
  int32_t count = 0;
  for (size_t i = 0; i < FIELDS; i++) {
    const dt_platform_constant *constant = find(platform, fields[i].name, &count);
    if (constant) *field_of(&read, i) = constant->interval.value;
  }
  for (size_t i = 0; i < COUNTS; i++) {
    const dt_platform_constant *constant = find(platform, counts[i].name, &count);
    if (!constant) continue;
    double value = constant->interval.value;
    if (!(value >= 0.0 && value <= INT32_MAX))
      return dt_fail(DT_ERR_ARGUMENT, "%s: %g; 0 to %d is allowed", counts[i].name, value, INT32_MAX);
    *count_of(&read, i) = (int32_t)value;
  }
  dt_status status = sim_costs_check(&read);
  if (status) return status;
  *costs = read;
  if (found) *found = count;
  return DT_OK;
}

dt_status dt_sim_costs_to_platform(const dt_sim_costs *costs, int64_t n, const char *method, dt_platform *platform) {
  dt_status status = sim_costs_check(costs);
  dt_sim_costs copy = *costs;
  for (size_t i = 0; !status && i < FIELDS + COUNTS; i++) {
    double value = i < FIELDS ? *field_of(&copy, i) : *count_of(&copy, i - FIELDS);
    const char *name = i < FIELDS ? fields[i].name : counts[i - FIELDS].name;
    dt_platform_constant constant = {.name = name, .interval = {value, value, value}, .n = n, .method = method};
    status = dt_platform_set_constant(platform, &constant);
  }
  return status;
}
