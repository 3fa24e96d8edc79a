#include "cpu/executor.h"

#include <stdio.h>

#include "core/error.h"

/* What a matrix must be for dt_matrix_widen to stay inside it; its strides are the caller's word. */
static dt_status check_matrix(const char *where, const dt_matrix *matrix, int64_t rows, int64_t cols) {
  if (!matrix->data || matrix->rows != rows || matrix->cols != cols)
    return dt_fail(DT_ERR_ARGUMENT, "%s: %lld x %lld%s; allowed: %lld x %lld, its data given", where,
                   (long long)matrix->rows, (long long)matrix->cols, matrix->data ? "" : ", without data",
                   (long long)rows, (long long)cols);
  switch (matrix->dtype) {
  case DT_DTYPE_F32:
  case DT_DTYPE_BF16:
  case DT_DTYPE_F16:
    return DT_OK;
  case DT_DTYPE_F8_E4M3:
    if (!matrix->scales || (matrix->scale_rows >= 1 && matrix->scale_cols >= 1)) return DT_OK;
    return dt_fail(DT_ERR_ARGUMENT, "%s: scales for blocks of %d x %d; allowed: 1 or more each", where,
                   matrix->scale_rows, matrix->scale_cols);
  case DT_DTYPE_MXFP4:
    if (matrix->scales && cols % 32 == 0) return DT_OK;
    return dt_fail(DT_ERR_ARGUMENT, "%s: mxfp4, %lld columns, scales %s; allowed: a multiple of 32, scales given",
                   where, (long long)cols, matrix->scales ? "given" : "missing");
  default:
    return dt_fail(DT_ERR_ARGUMENT, "%s: type %s; allowed: f32, bf16, f16, f8_e4m3, mxfp4", where,
                   dt_dtype_name(matrix->dtype));
  }
}

static dt_status check_expert(const char *where, const dt_expert *expert, int64_t hidden, int64_t intermediate) {
  const struct {
    const char *name;
    const dt_matrix *matrix;
    int64_t rows, cols;
  } parts[] = {{"gate", &expert->gate, intermediate, hidden},
               {"up", &expert->up, intermediate, hidden},
               {"down", &expert->down, hidden, intermediate}};
  for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
    char name[48];
    snprintf(name, sizeof(name), "%s.%s", where, parts[i].name);
    dt_status status = check_matrix(name, parts[i].matrix, parts[i].rows, parts[i].cols);
    if (status) return status;
  }
  return DT_OK;
}

dt_status dt_check_weights(const dt_moe_weights *weights) {
  if (weights->experts_per_rank < 1 || !weights->experts)
    return dt_fail(DT_ERR_ARGUMENT, "experts_per_rank: %d; allowed: 1 or more, with experts given",
                   weights->experts_per_rank);
  if ((unsigned)weights->activation > DT_ACTIVATION_SWIGLU_CLAMPED)
    return dt_fail(DT_ERR_ARGUMENT, "activation: %d; allowed: 0 to %d", (int)weights->activation,
                   DT_ACTIVATION_SWIGLU_CLAMPED);
  dt_status status = DT_OK;
  for (int32_t e = 0; e < weights->experts_per_rank && !status; e++) {
    char where[32];
    snprintf(where, sizeof(where), "experts[%d]", e);
    status = check_expert(where, &weights->experts[e], weights->hidden, weights->intermediate);
  }
  if (!status && weights->shared_intermediate > 0)
    status = check_expert("shared", &weights->shared, weights->hidden, weights->shared_intermediate);
  return status;
}
