/* dt_sim_costs as JSON: what `moe` writes as "costs" and `simulate` reads. */
#ifndef DRAINTILE_TOOL_COSTS_FILE_H
#define DRAINTILE_TOOL_COSTS_FILE_H

#include <jansson.h>

#include <draintile/simulate.h>

json_t *costs_json(const dt_sim_costs *costs);
/* The "costs" object of a JSON file; fields that it lacks keep their values. Returns an exit code, having said what is
 * wrong. */
int costs_read(const char *path, dt_sim_costs *costs);

#endif
