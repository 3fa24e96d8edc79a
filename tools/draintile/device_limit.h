/* What a platform file says of a GPU, and the bound that follows for a layer: docs/command.md explains each term. */
#ifndef DRAINTILE_TOOL_DEVICE_LIMIT_H
#define DRAINTILE_TOOL_DEVICE_LIMIT_H

#include <jansson.h>

#include <draintile/platform.h>

enum { DEVICE_CONSTANTS = 4 };

typedef struct device_machine {
  dt_platform *platform;                       /* NULL: no file */
  double rate_bytes_per_s, memory_bytes_per_s; /* NaN: not known */
  double constant_s[DEVICE_CONSTANTS], constants_s;
} device_machine;

/* Without a path everything is unknown. Returns an exit code, having said what is wrong. */
int device_machine_read(const char *path, device_machine *machine);
void device_machine_release(device_machine *machine);

typedef struct device_limit {
  double compute_s, link_s, memory_s, constants_s, limit_s;
  double link_bytes, weight_bytes; /* the most that one rank must send, and read of weights */
} device_limit;

device_limit device_limit_of(const device_machine *machine, double compute_s, double link_bytes, double weight_bytes);
json_t *device_limit_json(const device_limit *limit);
json_t *device_machine_json(const device_machine *machine);

#endif
