#include "statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int dt_ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double dt_quantile(const double *samples, size_t count, double p) {
  if (count == 0) return 0.0;
  double *sorted = malloc(count * sizeof *sorted);
  if (!sorted) return NAN;
  memcpy(sorted, samples, count * sizeof *sorted);
  qsort(sorted, count, sizeof *sorted, dt_ascending);
  double at = p * (double)(count - 1);
  size_t low = (size_t)at;
  size_t high = low + 1 < count ? low + 1 : low;
  double value = sorted[low] + (at - (double)low) * (sorted[high] - sorted[low]);
  free(sorted);
  return value;
}

double dt_median(const double *samples, size_t count) {
  return dt_quantile(samples, count, 0.5);
}
