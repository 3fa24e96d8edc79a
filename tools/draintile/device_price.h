/* What the simulator says of a layer on GPUs, from a platform file alone. */
#ifndef DRAINTILE_TOOL_DEVICE_PRICE_H
#define DRAINTILE_TOOL_DEVICE_PRICE_H

#include <draintile/platform.h>
#include <draintile/simulate.h>

typedef struct device_layer {
  const dt_platform *platform;
  int32_t ranks, experts, top_k; /* experts of all ranks */
  int64_t hidden, intermediate;
  const int32_t *counts;                /* [ranks][experts] */
  const int64_t *tokens;                /* [ranks] */
  const int64_t *dispatch_rows;         /* [ranks][ranks] tokens from a rank to another, with dedup; NULL: all */
  int32_t dedup, head, send_sms, ahead; /* as dt_cuda_moe_config */
  int32_t sms;                          /* of a rank */
  int32_t rows_in_place;                /* as dt_layer_model */
} device_layer;

void device_model(const device_layer *layer, dt_layer_model *model);

/* Seconds of each order; NaN where the platform does not know tiles. Exit codes. */
int device_price(const device_layer *layer, const dt_layer_order *orders, int32_t count, double *predicted_s);
/* `auto`: what the layer should run. */
int device_choose(const device_layer *layer, const dt_layer_order *grouping, dt_layer_choice *choice);
/* Notes every price of a choice. */
void device_explain(const dt_layer_choice *choice);

#endif
