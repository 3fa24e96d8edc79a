#include "costs_file.h"

#include <stddef.h>
#include <string.h>

#include "args.h"
#include "json.h"
#include "log.h"

#define COST(name)                                                                                                     \
  { #name, offsetof(dt_sim_costs, name) }

static const struct {
  const char *name;
  size_t offset; /* of a double */
} fields[] = {
    COST(l1_base_s),
    COST(l1_row_s),
    COST(l1_panel_s),
    COST(l2_base_s),
    COST(l2_row_s),
    COST(l2_panel_s),
    COST(band_s_per_row),
    COST(shared_base_s),
    COST(shared_row_s),
    COST(reduce_base_s),
    COST(reduce_row_s),
    COST(copy_s_per_byte),
    COST(put_base_s),
    COST(local_copy_s_per_byte),
    COST(plan_s),
    COST(entry_s),
    COST(barrier_s),
    COST(wake_s),
    COST(link_bytes_per_s),
    COST(link_capacity_bytes),
    COST(link_latency_s),
    COST(receiver_bytes_per_s),
    COST(cores),
    COST(dispatch_backlog_bytes),
};
static const struct {
  const char *name;
  size_t offset; /* of an int32_t */
} counts[] = {
    {"cache_panels", offsetof(dt_sim_costs, cache_panels)},
    {"band_panels", offsetof(dt_sim_costs, band_panels)},
};

static double *field_of(dt_sim_costs *costs, size_t i) {
  return (double *)((char *)costs + fields[i].offset);
}

static int32_t *count_of(dt_sim_costs *costs, size_t i) {
  return (int32_t *)((char *)costs + counts[i].offset);
}

json_t *costs_json(const dt_sim_costs *costs) {
  json_t *object = json_object();
  dt_sim_costs copy = *costs;
  for (size_t i = 0; i < ARGS_COUNT(fields); i++)
    json_object_set_new(object, fields[i].name, json_figure(*field_of(&copy, i)));
  for (size_t i = 0; i < ARGS_COUNT(counts); i++)
    json_object_set_new(object, counts[i].name, json_integer(*count_of(&copy, i)));
  return object;
}

static int read_field(const char *path, const char *key, const json_t *value, dt_sim_costs *costs) {
  double number = json_number_value(value);
  if (!json_is_number(value) || number < 0)
    return log_fail(TOOL_USAGE, "%s: costs.%s: allowed: a number >= 0", path, key);
  for (size_t i = 0; i < ARGS_COUNT(counts); i++)
    if (strcmp(counts[i].name, key) == 0) {
      if (!json_is_integer(value) || number > INT32_MAX)
        return log_fail(TOOL_USAGE, "%s: costs.%s: allowed: an integer from 0 to %d", path, key, INT32_MAX);
      *count_of(costs, i) = (int32_t)number;
      return TOOL_OK;
    }
  for (size_t i = 0; i < ARGS_COUNT(fields); i++)
    if (strcmp(fields[i].name, key) == 0) {
      *field_of(costs, i) = number;
      return TOOL_OK;
    }
  const char *names[ARGS_COUNT(fields)];
  for (size_t i = 0; i < ARGS_COUNT(fields); i++) names[i] = fields[i].name;
  const char *nearest = args_nearest(key, names, ARGS_COUNT(fields));
  return log_fail(TOOL_USAGE, "%s: costs.%s: no such cost%s%s", path, key, nearest ? "; did you mean " : "",
                  nearest ? nearest : "");
}

int costs_read(const char *path, dt_sim_costs *costs) {
  json_t *root = NULL;
  int code = json_read(path, &root);
  if (code) return code;
  json_t *object = json_object_get(root, "costs"), *value;
  const char *key;
  code = json_is_object(object) ? TOOL_OK : log_fail(TOOL_USAGE, "%s: costs: allowed: an object of numbers", path);
  if (code == TOOL_OK) json_object_foreach(object, key, value) {
      code = read_field(path, key, value, costs);
      if (code) break;
    }
  json_decref(root);
  return code;
}
