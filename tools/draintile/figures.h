/* What several reports compute alike. */
#ifndef DRAINTILE_TOOL_FIGURES_H
#define DRAINTILE_TOOL_FIGURES_H

#include <stdint.h>

#include <draintile/weights.h>

/* Sorts a copy; NaN without values. */
double figures_median(const double *values, int32_t count);

/* The largest relative error of a token that --check allows. */
double figures_tolerance(dt_dtype dtype);
/* ||y - reference|| / ||reference||; where the reference is 0, y must be 0. NaN counts as infinitely wrong. */
double figures_token_error(const double *y, const double *reference, int64_t count);

#endif
