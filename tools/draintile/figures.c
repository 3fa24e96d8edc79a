#include "figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double figures_median(const double *values, int32_t count) {
  double sorted[count > 0 ? count : 1];
  if (count < 1) return NAN;
  memcpy(sorted, values, (size_t)count * sizeof(*values));
  qsort(sorted, (size_t)count, sizeof(*sorted), ascending);
  return count % 2 ? sorted[count / 2] : 0.5 * (sorted[count / 2 - 1] + sorted[count / 2]);
}

double figures_tolerance(dt_dtype dtype) {
  return dtype == DT_DTYPE_F32 ? 1e-5 : dtype == DT_DTYPE_F16 ? 1e-3 : 8e-3;
}

double figures_token_error(const double *y, const double *reference, int64_t count) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < count; i++) {
    difference += (y[i] - reference[i]) * (y[i] - reference[i]);
    norm += reference[i] * reference[i];
  }
  if (difference == 0) return 0;
  double error = norm > 0 ? sqrt(difference / norm) : INFINITY;
  return isnan(error) ? INFINITY : error;
}
