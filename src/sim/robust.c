#include "robust.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/statistics.h"

enum { ROUNDS = 60 };
static const double huber_k = 1.345;            /* 95 % as efficient as least squares on normal noise */
static const double mad_to_sigma = 1.4826;      /* of a normal distribution */
static const double dependent_pivot = 1e-9;     /* of a column with unit norm */
static const double relative_resolution = 1e-9; /* noise below this is taken for rounding */

typedef struct normal_equations {
  double a[SIM_COLUMNS][SIM_COLUMNS], b[SIM_COLUMNS], scale[SIM_COLUMNS];
} normal_equations;

static void accumulate(normal_equations *n, const sim_observation *observations, const double *weights, size_t count) {
  memset(n, 0, sizeof *n);
  for (size_t i = 0; i < count; i++) {
    const sim_observation *o = &observations[i];
    for (int r = 0; r < SIM_COLUMNS; r++) {
      if (o->x[r] == 0.0) continue;
      double wx = weights[i] * o->x[r];
      for (int c = 0; c <= r; c++) n->a[r][c] += wx * o->x[c];
      n->b[r] += wx * o->y;
    }
  }
  for (int r = 0; r < SIM_COLUMNS; r++) n->scale[r] = n->a[r][r] > 0.0 ? 1.0 / sqrt(n->a[r][r]) : 0.0;
  for (int r = 0; r < SIM_COLUMNS; r++) {
    for (int c = 0; c <= r; c++) n->a[r][c] *= n->scale[r] * n->scale[c];
    n->b[r] *= n->scale[r];
  }
}

/* Cholesky over the columns in use; one whose pivot vanishes leaves them. */
static void solve(const normal_equations *n, int use[SIM_COLUMNS], double x[SIM_COLUMNS]) {
  double l[SIM_COLUMNS][SIM_COLUMNS] = {{0}}, z[SIM_COLUMNS] = {0};
  for (int r = 0; r < SIM_COLUMNS; r++) {
    if (!use[r]) continue;
    double pivot = n->a[r][r], right = n->b[r];
    for (int c = 0; c < r; c++) {
      if (!use[c]) continue;
      double sum = n->a[r][c];
      for (int k = 0; k < c; k++) sum -= l[r][k] * l[c][k];
      l[r][c] = sum / l[c][c];
      pivot -= l[r][c] * l[r][c];
      right -= l[r][c] * z[c];
    }
    use[r] = pivot > dependent_pivot;
    if (!use[r]) {
      memset(l[r], 0, sizeof l[r]);
      continue;
    }
    l[r][r] = sqrt(pivot);
    z[r] = right / l[r][r];
  }
  for (int r = SIM_COLUMNS - 1; r >= 0; r--) {
    x[r] = 0.0;
    if (!use[r]) continue;
    double sum = z[r];
    for (int k = r + 1; k < SIM_COLUMNS; k++) sum -= l[k][r] * x[k];
    x[r] = sum / l[r][r];
  }
}

static void solve_non_negative(const normal_equations *n, double coefficients[SIM_COLUMNS]) {
  int use[SIM_COLUMNS];
  double x[SIM_COLUMNS];
  for (int r = 0; r < SIM_COLUMNS; r++) use[r] = n->scale[r] > 0.0;
  for (int worst = 0; worst >= 0;) {
    solve(n, use, x);
    worst = -1;
    for (int r = 0; r < SIM_COLUMNS; r++)
      if (x[r] < 0.0 && (worst < 0 || x[r] < x[worst])) worst = r;
    if (worst >= 0) use[worst] = 0;
  }
  for (int r = 0; r < SIM_COLUMNS; r++) coefficients[r] = x[r] * n->scale[r];
}

double sim_robust_value(const sim_observation *observation, const double coefficients[SIM_COLUMNS]) {
  double value = 0.0;
  for (int c = 0; c < SIM_COLUMNS; c++) value += observation->x[c] * coefficients[c];
  return value;
}

dt_status sim_robust_fit(const sim_observation *observations, size_t count, double coefficients[SIM_COLUMNS]) {
  memset(coefficients, 0, SIM_COLUMNS * sizeof *coefficients);
  if (count == 0) return DT_OK;
  double *weights = malloc(count * sizeof *weights), *sizes = malloc(count * sizeof *sizes), largest = 0.0;
  if (!weights || !sizes) {
    free(weights);
    free(sizes);
    return dt_fail(DT_ERR_MEMORY, "fit: no memory for %zu observations", count);
  }
  for (size_t i = 0; i < count; i++) {
    weights[i] = 1.0;
    largest = fmax(largest, fabs(observations[i].y));
  }
  normal_equations n;
  for (int round = 0; round < ROUNDS; round++) {
    accumulate(&n, observations, weights, count);
    solve_non_negative(&n, coefficients);
    for (size_t i = 0; i < count; i++)
      sizes[i] = fabs(observations[i].y - sim_robust_value(&observations[i], coefficients));
    double sigma = mad_to_sigma * dt_median(sizes, count);
    double limit = huber_k * fmax(sigma, relative_resolution * largest);
    for (size_t i = 0; i < count; i++) weights[i] = sizes[i] > limit ? limit / sizes[i] : 1.0;
  }
  free(weights);
  free(sizes);
  return DT_OK;
}
