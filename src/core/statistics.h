/* Order statistics of samples. Pure. */
#ifndef DT_CORE_STATISTICS_H
#define DT_CORE_STATISTICS_H

#include <stddef.h>

/* For qsort of doubles. */
int dt_ascending(const void *a, const void *b);

/* Quantile p in [0, 1] with linear interpolation between order statistics (type 7). samples is not changed; count 0
 * gives 0. Allocates nothing, so that it cannot fail: about 60 passes over the samples. */
double dt_quantile(const double *samples, size_t count, double p);
double dt_median(const double *samples, size_t count);

#endif
