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

void figures_quartiles(double *values, int32_t count, double *low, double *median, double *high) {
  qsort(values, (size_t)count, sizeof(*values), ascending);
  *median = figures_median(values, count);
  *low = values[(count - 1) / 4];
  *high = values[count - 1 - (count - 1) / 4];
}

double figures_tolerance(dt_dtype dtype) {
  return dtype == DT_DTYPE_F32 ? 1e-5 : dtype == DT_DTYPE_F16 ? 1e-3 : 8e-3;
}

/* Below this a type's values are a fixed step apart, whatever their size. */
static double smallest_normal(dt_dtype dtype) {
  return dtype == DT_DTYPE_F16 ? 0x1p-14 : 0x1p-126;
}

double figures_token_error(dt_dtype dtype, const double *y, const double *reference, int64_t count) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < count; i++) {
    difference += (y[i] - reference[i]) * (y[i] - reference[i]);
    norm += reference[i] * reference[i];
  }
  if (difference == 0) return 0;
  const double least = smallest_normal(dtype);
  double error = norm > 0 ? sqrt(difference / fmax(norm, (double)count * least * least)) : INFINITY;
  return isnan(error) ? INFINITY : error;
}

void figures_raise(double *worst, double error) {
  if (!isnan(*worst) && !(error <= *worst)) *worst = error;
}

void figures_verdict_add(figures_verdict *verdict, double error, int64_t token) {
  if (verdict->worst_token >= 0 && error <= verdict->max_relative_error) return;
  verdict->max_relative_error = error;
  verdict->worst_token = token;
}

void figures_verdict_merge(figures_verdict *verdict, const figures_verdict *rank) {
  verdict->bit_equal &= rank->bit_equal;
  if (rank->worst_token >= 0) figures_verdict_add(verdict, rank->max_relative_error, rank->worst_token);
}

figures_overlap figures_overlap_of(double total_s, double compute_alone_s, double comm_alone_s, double serial_s) {
  return (figures_overlap){
      .total_s = total_s,
      .compute_alone_s = compute_alone_s,
      .comm_alone_s = comm_alone_s,
      .serial_s = serial_s,
      .hidden_ratio = 1 - fmax(0, total_s - compute_alone_s) / comm_alone_s,
      .efficiency = (compute_alone_s + comm_alone_s - total_s) / fmin(compute_alone_s, comm_alone_s),
      .speedup_over_serial = serial_s / total_s,
  };
}
