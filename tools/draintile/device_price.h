/* What the simulator says of a layer on GPUs, from a platform file alone. */
#ifndef DRAINTILE_TOOL_DEVICE_PRICE_H
#define DRAINTILE_TOOL_DEVICE_PRICE_H

#include <draintile/platform.h>
#include <draintile/simulate.h>

/* Seconds of each order; NaN where the platform does not know tiles. Exit codes. */
int device_price(const dt_platform *platform, const dt_layer_model *model, const dt_layer_order *orders, int32_t count,
                 double *predicted_s);
/* `auto`: what the layer should run. */
int device_choose(const dt_platform *platform, const dt_layer_model *model, const dt_layer_order *grouping,
                  dt_layer_choice *choice);
/* Notes every price of a choice. */
void device_explain(const dt_layer_choice *choice);

#endif
