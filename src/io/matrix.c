/* Weight rows widened to float32, and dequantized. The inner loops of the 16-bit types are branch-free so that
 * compilers turn them into vector code: widening bf16 must run at memory speed. */
#include <draintile/weights.h>

#include <math.h>
#include <string.h>

static float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static float widen_bf16(uint16_t x) {
  return from_bits((uint32_t)x << 16);
}

/* Subnormals go through the integer converter: a multiply of float32 subnormals would trap into microcode. Both ways
 * are computed and one chosen by masks, so that the loop around it stays vector code. */
static float widen_f16(uint16_t x) {
  uint32_t magnitude = x & 0x7fffu, sign = (uint32_t)(x & 0x8000u) << 16;
  uint32_t is_small = 0u - (magnitude < 0x400u), is_special = 0u - (magnitude >= 0x7c00u); /* special: infinity, NaN */
  uint32_t normal = (magnitude << 13) + (112u << 23) + (is_special & (112u << 23));
  float small = (float)(int32_t)(magnitude & 0x3ffu) * 0x1p-24f;
  uint32_t small_bits;
  memcpy(&small_bits, &small, sizeof small_bits);
  return from_bits((small_bits & is_small) | (normal & ~is_small) | sign);
}

/* OCP E4M3 (no infinity): bias 7, S.1111.111 is NaN. */
#define E4M3_MAGNITUDE(b)                                                                                              \
  (((b)&0x7f) == 0x7f ? __builtin_nanf("")                                                                             \
   : ((b) >> 3 & 15)  ? (float)(8 + ((b)&7)) * (float)(1 << ((b) >> 3 & 15)) / 1024.0f                                 \
                      : (float)((b)&7) / 512.0f)
#define E4M3(b) ((b)&0x80 ? -E4M3_MAGNITUDE(b) : E4M3_MAGNITUDE(b))
#define E4M3_4(b) E4M3(b), E4M3((b) + 1), E4M3((b) + 2), E4M3((b) + 3)
#define E4M3_16(b) E4M3_4(b), E4M3_4((b) + 4), E4M3_4((b) + 8), E4M3_4((b) + 12)
#define E4M3_64(b) E4M3_16(b), E4M3_16((b) + 16), E4M3_16((b) + 32), E4M3_16((b) + 48)
static const float e4m3[256] = {E4M3_64(0), E4M3_64(64), E4M3_64(128), E4M3_64(192)};

/* OCP E2M1: the two values of a byte, low nibble first. */
#define E2M1_PAIRS(high)                                                                                               \
  {0.0f, high}, {0.5f, high}, {1.0f, high}, {1.5f, high}, {2.0f, high}, {3.0f, high}, {4.0f, high}, {6.0f, high},      \
      {-0.0f, high}, {-0.5f, high}, {-1.0f, high}, {-1.5f, high}, {-2.0f, high}, {-3.0f, high}, {-4.0f, high}, {       \
    -6.0f, high                                                                                                        \
  }
static const float e2m1[256][2] = {E2M1_PAIRS(0.0f),  E2M1_PAIRS(0.5f),  E2M1_PAIRS(1.0f),  E2M1_PAIRS(1.5f),
                                   E2M1_PAIRS(2.0f),  E2M1_PAIRS(3.0f),  E2M1_PAIRS(4.0f),  E2M1_PAIRS(6.0f),
                                   E2M1_PAIRS(-0.0f), E2M1_PAIRS(-0.5f), E2M1_PAIRS(-1.0f), E2M1_PAIRS(-1.5f),
                                   E2M1_PAIRS(-2.0f), E2M1_PAIRS(-3.0f), E2M1_PAIRS(-4.0f), E2M1_PAIRS(-6.0f)};

/* OCP E8M0: 2^(x - 127), 255 is NaN. */
static float widen_e8m0(uint8_t x) {
  return x == 255 ? NAN : x == 0 ? 0x1p-127f : from_bits((uint32_t)x << 23);
}

/* `count` elements, `stride` apart, to consecutive floats. Apart from the unit stride, which must vectorize, one loop
 * serves all. */
static void widen_line(dt_dtype dtype, const void *data, int64_t at, int64_t stride, int64_t count,
                       float *restrict out) {
  if (dtype == DT_DTYPE_F32) {
    const float *in = (const float *)data + at;
    if (stride == 1) {
      memcpy(out, in, (size_t)count * sizeof *out);
      return;
    }
    for (int64_t j = 0; j < count; j++) out[j] = in[j * stride];
  } else if (dtype == DT_DTYPE_BF16) {
    const uint16_t *in = (const uint16_t *)data + at;
    if (stride == 1) {
      for (int64_t j = 0; j < count; j++) out[j] = widen_bf16(in[j]);
      return;
    }
    for (int64_t j = 0; j < count; j++) out[j] = widen_bf16(in[j * stride]);
  } else if (dtype == DT_DTYPE_F16) {
    const uint16_t *in = (const uint16_t *)data + at;
    if (stride == 1) {
      for (int64_t j = 0; j < count; j++) out[j] = widen_f16(in[j]);
      return;
    }
    for (int64_t j = 0; j < count; j++) out[j] = widen_f16(in[j * stride]);
  } else if (dtype == DT_DTYPE_F8_E4M3) {
    const uint8_t *in = (const uint8_t *)data + at;
    for (int64_t j = 0; j < count; j++) out[j] = e4m3[in[j * stride]];
  } else if (dtype == DT_DTYPE_F64) {
    const double *in = (const double *)data + at;
    for (int64_t j = 0; j < count; j++) out[j] = (float)in[j * stride];
  } else {
    for (int64_t j = 0; j < count; j++) out[j] = NAN; /* no weight type: never taken for a value */
  }
}

static void widen_mxfp4_row(const dt_matrix *matrix, int64_t row, float *restrict out) {
  int64_t blocks = matrix->cols / 32, at = row * matrix->row_stride * blocks;
  const uint8_t *in = (const uint8_t *)matrix->data + at * 16;
  const uint8_t *scales = (const uint8_t *)matrix->scales + at;
  for (int64_t b = 0; b < blocks; b++) {
    float scale = widen_e8m0(scales[b]);
    for (int64_t j = 0; j < 16; j++) {
      const float *pair = e2m1[in[b * 16 + j]];
      out[b * 32 + 2 * j] = pair[0] * scale;
      out[b * 32 + 2 * j + 1] = pair[1] * scale;
    }
  }
}

static void scale_blocks(const dt_matrix *matrix, int64_t row, float *restrict out) {
  const float *scales = (const float *)matrix->scales + row / matrix->scale_rows * matrix->scale_stride;
  for (int64_t begin = 0, b = 0; begin < matrix->cols; begin += matrix->scale_cols, b++) {
    int64_t end = begin + matrix->scale_cols < matrix->cols ? begin + matrix->scale_cols : matrix->cols;
    for (int64_t j = begin; j < end; j++) out[j] *= scales[b];
  }
}

/* Transposed storage: rows lie close together and columns far apart. Lines of columns are widened into a small square
 * and turned there: writing them straight to `out` would hit the same few cache sets with every power-of-two width. */
static void widen_transposed(const dt_matrix *matrix, int64_t first, int64_t count, float *out) {
  enum { SIDE = 32 };
  float square[SIDE][SIDE + 1]; /* [column][row]; odd pitch: reading a row does not hit one cache set either */
  size_t element = dt_dtype_bytes(matrix->dtype);
  for (int64_t j0 = 0; j0 < matrix->cols; j0 += SIDE) {
    int64_t cols = matrix->cols - j0 < SIDE ? matrix->cols - j0 : SIDE;
    for (int64_t i0 = 0; i0 < count; i0 += SIDE) {
      int64_t rows = count - i0 < SIDE ? count - i0 : SIDE;
      for (int64_t j = 0; j < cols; j++) {
        int64_t at = (first + i0) * matrix->row_stride + (j0 + j) * matrix->col_stride;
        if (j0 + j + SIDE < matrix->cols) { /* columns lie in pages of their own: too far apart for the hardware */
          __builtin_prefetch((const char *)matrix->data + (size_t)(at + SIDE * matrix->col_stride) * element);
        }
        widen_line(matrix->dtype, matrix->data, at, matrix->row_stride, rows, square[j]);
      }
      for (int64_t i = 0; i < rows; i++) {
        float *row = out + (i0 + i) * matrix->cols + j0;
        for (int64_t j = 0; j < cols; j++) row[j] = square[j][i];
      }
    }
  }
}

void dt_matrix_widen(const dt_matrix *matrix, int64_t first, int64_t count, float *out) {
  int transposed = matrix->dtype != DT_DTYPE_MXFP4 && matrix->col_stride != 1;
  if (transposed) widen_transposed(matrix, first, count, out);
  for (int64_t i = 0; i < count; i++) {
    float *row = out + i * matrix->cols;
    if (matrix->dtype == DT_DTYPE_MXFP4) {
      widen_mxfp4_row(matrix, first + i, row);
    } else if (!transposed) {
      widen_line(matrix->dtype, matrix->data, (first + i) * matrix->row_stride, 1, matrix->cols, row);
    }
    if (matrix->dtype == DT_DTYPE_F8_E4M3 && matrix->scales) scale_blocks(matrix, first + i, row);
  }
}

const float *dt_matrix_f32(const dt_matrix *matrix, int64_t first, int64_t *row_stride) {
  if (matrix->dtype != DT_DTYPE_F32 || matrix->col_stride != 1) return NULL;
  *row_stride = matrix->row_stride;
  return (const float *)matrix->data + first * matrix->row_stride;
}
