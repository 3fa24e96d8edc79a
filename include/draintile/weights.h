/* Element types, matrices as checkpoints store them, and the experts of one rank. */
#ifndef DRAINTILE_WEIGHTS_H
#define DRAINTILE_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/status.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef enum dt_dtype {
  DT_DTYPE_F32 = 0,
  DT_DTYPE_BF16 = 1,
  DT_DTYPE_F16 = 2,
  DT_DTYPE_F8_E4M3 = 3,
  DT_DTYPE_MXFP4 = 4, /* blocks of 32 values: 16 bytes of nibbles and one E8M0 scale */
  DT_DTYPE_I64 = 5,
  DT_DTYPE_I32 = 6,
  DT_DTYPE_U8 = 7,
  DT_DTYPE_F64 = 8
} dt_dtype;
const char *dt_dtype_name(dt_dtype dtype);                 /* "f32", "bf16", ... */
dt_status dt_dtype_parse(const char *text, dt_dtype *out); /* DT_ERR_ARGUMENT: none of these names */
size_t dt_dtype_bytes(dt_dtype dtype);                     /* of one element; 0 for MXFP4 */

/* A weight matrix [rows = output features][cols = input features] where it lies in a mapped file; nothing is copied.
 * Element (i, j) is at data + (i*row_stride + j*col_stride) elements. scales:
 *   F8_E4M3: float32 [ceil(rows/scale_rows)][scale_stride], one scale per block of scale_rows x scale_cols; NULL: none.
 *   MXFP4:   data is [row][cols/32][16] bytes with row_stride in rows of blocks (strides count matrix rows; col_stride
 *            1), scales uint8 E8M0 [row][cols/32] with the same row stride. */
typedef struct dt_matrix {
  const void *data;
  const void *scales;
  dt_dtype dtype;
  int32_t scale_rows, scale_cols;
  int64_t rows, cols;
  int64_t row_stride, col_stride, scale_stride;
} dt_matrix;

/* Rows [first, first + count) as float32 into out[count][cols], dequantized. */
void dt_matrix_widen(const dt_matrix *matrix, int64_t first, int64_t count, float *out);
/* The float32 rows where they lie, or NULL when they need dt_matrix_widen (another type, or strided columns);
 * *row_stride in elements. */
const float *dt_matrix_f32(const dt_matrix *matrix, int64_t first, int64_t *row_stride);

/* silu: silu(gate)*up. swiglu_clamped (gpt_oss): gate and up clamped to limit, (up + 1)*gate*sigmoid(alpha*gate). */
typedef enum dt_activation { DT_ACTIVATION_SILU = 0, DT_ACTIVATION_SWIGLU_CLAMPED = 1 } dt_activation;

/* One expert. Biases are float32 arrays owned like the matrices, NULL when the family has none. */
typedef struct dt_expert {
  dt_matrix gate, up, down; /* [I][H], [I][H], [H][I] */
  const float *gate_bias, *up_bias, *down_bias;
} dt_expert;

/* The experts of one rank. Everything pointed to must outlive the layer that uses it. */
typedef struct dt_moe_weights {
  int64_t hidden, intermediate; /* H, I */
  int32_t experts_per_rank;     /* E */
  const dt_expert *experts;     /* [E] */
  dt_activation activation;
  float activation_alpha, activation_limit;
  int64_t shared_intermediate; /* 0: no shared expert */
  dt_expert shared;            /* replicated on every rank; [I_s][H] ... */
  const float *shared_gate;    /* [H]: output scaled by sigmoid(x . shared_gate) (qwen2_moe); NULL: 1 */
} dt_moe_weights;

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
