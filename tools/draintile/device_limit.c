#include "device_limit.h"

#include <math.h>

#include "json.h"
#include "log.h"

/* The exchange at the start, the first row's way, the fence behind the last row and the flag that tells of it. */
static const char *const constant_names[DEVICE_CONSTANTS] = {"entry_barrier_s", "link_latency_s", "fence_sys_s",
                                                             "flag_release_s"};

int device_machine_read(const char *path, device_machine *machine) {
  *machine = (device_machine){.rate_bytes_per_s = NAN, .memory_bytes_per_s = NAN, .constants_s = NAN};
  for (int i = 0; i < DEVICE_CONSTANTS; i++) machine->constant_s[i] = NAN;
  if (!path) return TOOL_OK;
  dt_status status = dt_platform_load(path, &machine->platform);
  if (status) return log_unread(status);
  dt_interval interval;
  status = dt_platform_lookup(machine->platform, "rate_bytes_per_s", &interval);
  if (!status) machine->rate_bytes_per_s = interval.value;
  if (!status) status = dt_platform_lookup(machine->platform, "memory_bytes_per_s", &interval);
  if (!status) machine->memory_bytes_per_s = interval.value;
  machine->constants_s = 0;
  for (int i = 0; i < DEVICE_CONSTANTS && !status; i++) {
    status = dt_platform_lookup(machine->platform, constant_names[i], &interval);
    if (status) break;
    machine->constant_s[i] = interval.value;
    machine->constants_s += interval.value;
  }
  return status ? log_status(DT_ERR_INPUT, path) : TOOL_OK;
}

void device_machine_release(device_machine *machine) {
  dt_platform_destroy(machine->platform);
  machine->platform = NULL;
}

device_limit device_limit_of(const device_machine *machine, double compute_s, double link_bytes, double weight_bytes) {
  device_limit limit = {.compute_s = compute_s,
                        .link_s = link_bytes / machine->rate_bytes_per_s,
                        .memory_s = weight_bytes / machine->memory_bytes_per_s,
                        .constants_s = machine->constants_s,
                        .link_bytes = link_bytes,
                        .weight_bytes = weight_bytes};
  /* fmax skips what is not known; a sum with an unknown is unknown. */
  limit.limit_s = fmax(limit.compute_s, fmax(limit.link_s, limit.memory_s)) + limit.constants_s;
  return limit;
}

json_t *device_limit_json(const device_limit *limit) {
  static const char *const names[] = {"compute_s", "link_s",     "memory_s",    "constants_s",
                                      "limit_s",   "link_bytes", "weight_bytes"};
  const double values[] = {limit->compute_s, limit->link_s,     limit->memory_s,    limit->constants_s,
                           limit->limit_s,   limit->link_bytes, limit->weight_bytes};
  return json_named_figures(names, values, sizeof names / sizeof *names);
}

json_t *device_machine_json(const device_machine *machine) {
  json_t *object = json_named_figures(constant_names, machine->constant_s, DEVICE_CONSTANTS);
  json_object_set_new(object, "rate_bytes_per_s", json_figure(machine->rate_bytes_per_s));
  json_object_set_new(object, "memory_bytes_per_s", json_figure(machine->memory_bytes_per_s));
  return object;
}
