/* Robust least squares with coefficients that are times: none is negative. */
#ifndef DT_SIM_ROBUST_H
#define DT_SIM_ROBUST_H

#include <stddef.h>

#include <draintile/status.h>

enum { SIM_COLUMNS = 8 };

/* One observation: y = sum of x*coefficient, plus noise. Unused columns are 0. */
typedef struct sim_observation {
  double x[SIM_COLUMNS], y;
} sim_observation;

/* Huber's estimate by reweighting. A column that is zero or depends on those before it, or whose coefficient would be
 * negative, gets 0. DT_ERR_MEMORY. */
dt_status sim_robust_fit(const sim_observation *observations, size_t count, double coefficients[SIM_COLUMNS]);

/* What the coefficients say of one observation. */
double sim_robust_value(const sim_observation *observation, const double coefficients[SIM_COLUMNS]);

#endif
