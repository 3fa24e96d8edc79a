/* What the event simulator says of a layer on GPUs, from a platform file alone. */
#ifndef DRAINTILE_TOOL_DEVICE_PRICE_H
#define DRAINTILE_TOOL_DEVICE_PRICE_H

#include <draintile/platform.h>
#include <draintile/simulate.h>

typedef struct device_layer {
  const dt_platform *platform;
  int32_t ranks, experts; /* of all ranks */
  int64_t hidden, intermediate;
  const int32_t *counts; /* [ranks][experts] */
  const int64_t *tokens; /* [ranks] */
  int32_t sms;           /* of a rank */
} device_layer;

typedef struct device_grouping {
  int32_t raster_bands, group_tasks, lead, wave_experts; /* 0: the schedule's default */
} device_grouping;

/* Seconds of every schedule (by dt_schedule; NaN: not priced). Exit codes. */
int device_price(const device_layer *layer, dt_schedule schedule, const device_grouping *grouping, double *predicted_s);
/* The cheapest of those that the layer runs on GPUs. */
int device_choose(const device_layer *layer, const device_grouping *grouping, dt_schedule *chosen,
                  double predicted_s[6]);

#endif
