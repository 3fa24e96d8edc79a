/* `simulate`: what its sources share. */
#ifndef DRAINTILE_TOOL_SIMULATE_H
#define DRAINTILE_TOOL_SIMULATE_H

#include <draintile/simulate.h>

#include "args.h"
#include "counts_file.h"

typedef struct simulate_costs {
  dt_sim_costs tasks;
  int gpu; /* the layer as it runs on GPUs, by the platform's tile times: then `layer` counts */
  dt_layer_costs layer;
} simulate_costs;

/* By --platform, --costs and the rates that were given; returns an exit code. */
int simulate_costs_read(const tool_args *args, const counts_matrix *counts, simulate_costs *costs);

#endif
