#include <draintile/reference.h>

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "cpu/blas_memory.h"

enum { BLOCK_ROWS = 256 }; /* of weights widened at a time */

typedef struct reference_space {
  float *narrow;          /* [BLOCK_ROWS][max(H, I)] */
  double *wide;           /* the same */
  double *gate, *up;      /* [rows][BLOCK_ROWS] */
  double *act;            /* [rows][I] */
  int64_t hidden, middle; /* H, I */
} reference_space;

static void release(reference_space *space) {
  free(space->narrow);
  free(space->wide);
  free(space->gate);
  free(space->up);
  free(space->act);
}

static dt_status reserve(reference_space *space, int64_t hidden, int64_t middle, int64_t rows) {
  size_t columns = (size_t)(hidden > middle ? hidden : middle), count = (size_t)rows;
  *space = (reference_space){.hidden = hidden, .middle = middle};
  space->narrow = malloc(columns * BLOCK_ROWS * sizeof(float));
  space->wide = malloc(columns * BLOCK_ROWS * sizeof(double));
  space->gate = malloc(count * BLOCK_ROWS * sizeof(double));
  space->up = malloc(count * BLOCK_ROWS * sizeof(double));
  space->act = malloc(count * (size_t)middle * sizeof(double));
  if (space->narrow && space->wide && space->gate && space->up && space->act && blas_ensure(1) == 0) return DT_OK;
  release(space);
  dt_fail(DT_ERR_MEMORY, "reference: %lld rows of %lld: no memory", (long long)rows, (long long)middle);
  return DT_ERR_MEMORY;
}

/* out[rows][count] (leading dimension `stride`) = x[rows][cols] * matrix[first .. first + count)^T. */
static void multiply(const reference_space *space, const dt_matrix *matrix, int64_t first, int64_t count,
                     const double *x, int64_t rows, double *out, int64_t stride) {
  dt_matrix_widen(matrix, first, count, space->narrow);
  for (int64_t i = 0; i < count * matrix->cols; i++) space->wide[i] = space->narrow[i];
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)rows, (blasint)count, (blasint)matrix->cols, 1, x,
              (blasint)matrix->cols, space->wide, (blasint)matrix->cols, 0, out, (blasint)stride);
}

static double sigmoid(double x) {
  return 1 / (1 + exp(-x));
}

static double activate(const dt_moe_weights *weights, double gate, double up) {
  if (weights->activation == DT_ACTIVATION_SILU) return gate * sigmoid(gate) * up;
  double limit = weights->activation_limit;
  gate = fmin(gate, limit);
  up = fmax(fmin(up, limit), -limit);
  return (up + 1) * gate * sigmoid(weights->activation_alpha * gate);
}

static void first_half(const reference_space *space, const dt_moe_weights *weights, const dt_expert *expert,
                       const double *x, int64_t rows) {
  for (int64_t first = 0; first < space->middle; first += BLOCK_ROWS) {
    int64_t count = space->middle - first < BLOCK_ROWS ? space->middle - first : BLOCK_ROWS;
    multiply(space, &expert->gate, first, count, x, rows, space->gate, count);
    multiply(space, &expert->up, first, count, x, rows, space->up, count);
    for (int64_t row = 0; row < rows; row++)
      for (int64_t i = 0; i < count; i++) {
        double gate = space->gate[row * count + i], up = space->up[row * count + i];
        if (expert->gate_bias) gate += expert->gate_bias[first + i];
        if (expert->up_bias) up += expert->up_bias[first + i];
        space->act[row * space->middle + first + i] = activate(weights, gate, up);
      }
  }
}

static dt_status check_rows(int64_t rows) {
  if (rows >= 0 && rows <= INT32_MAX) return DT_OK;
  return dt_fail(DT_ERR_ARGUMENT, "rows: %lld; allowed: 0 to %d", (long long)rows, INT32_MAX);
}

static dt_status run_expert(const dt_moe_weights *weights, const dt_expert *expert, int64_t middle, const double *x,
                            int64_t rows, double *y) {
  reference_space space;
  int64_t hidden = weights->hidden;
  if (rows == 0) return DT_OK;
  dt_status status = reserve(&space, hidden, middle, rows);
  if (status) return status;
  first_half(&space, weights, expert, x, rows);
  for (int64_t first = 0; first < hidden; first += BLOCK_ROWS) {
    int64_t count = hidden - first < BLOCK_ROWS ? hidden - first : BLOCK_ROWS;
    multiply(&space, &expert->down, first, count, space.act, rows, y + first, hidden);
  }
  for (int64_t row = 0; expert->down_bias && row < rows; row++)
    for (int64_t i = 0; i < hidden; i++) y[row * hidden + i] += expert->down_bias[i];
  release(&space);
  return DT_OK;
}

dt_status dt_expert_reference(const dt_moe_weights *weights, int32_t index, const double *x, int64_t rows, double *y) {
  if (index < 0 || index >= weights->experts_per_rank)
    return dt_fail(DT_ERR_ARGUMENT, "index: %d; allowed: 0 to %d", index, weights->experts_per_rank - 1);
  const dt_status status = check_rows(rows);
  return status ? status : run_expert(weights, &weights->experts[index], weights->intermediate, x, rows, y);
}

dt_status dt_shared_reference(const dt_moe_weights *weights, const double *x, int64_t rows, double *y) {
  int64_t hidden = weights->hidden;
  dt_status status = check_rows(rows);
  if (status) return status;
  if (weights->shared_intermediate == 0) {
    memset(y, 0, (size_t)(rows * hidden) * sizeof(*y));
    return DT_OK;
  }
  status = run_expert(weights, &weights->shared, weights->shared_intermediate, x, rows, y);
  for (int64_t row = 0; status == DT_OK && weights->shared_gate && row < rows; row++) {
    double logit = 0;
    for (int64_t i = 0; i < hidden; i++) logit += x[row * hidden + i] * weights->shared_gate[i];
    for (int64_t i = 0; i < hidden; i++) y[row * hidden + i] *= sigmoid(logit);
  }
  return status;
}
