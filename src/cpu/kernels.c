/* These loops are worth the vectorizer at every build type; none of them looks at floating-point exceptions. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3", "no-trapping-math", "no-math-errno")
#endif

#include "cpu/kernels.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include <cblas.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define DT_SANITIZED 1
#else
#define DT_SANITIZED 0
#endif

/* One source, compiled for the vector units found at run time; what is called in the loops must be inlined for that.
 * The sanitizers cannot run in the resolver. */
#if defined(__x86_64__) && !defined(__clang__) && !DT_SANITIZED
#define DT_VECTOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DT_VECTOR
#endif
#define DT_INLINE static inline __attribute__((always_inline))

void dt_gemm_nt(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_stride, const float *b, int64_t b_stride,
                float *c, int64_t c_stride) {
  if (m <= 0 || n <= 0) return;
#if defined(__SANITIZE_THREAD__)
  for (int64_t i = 0; i < m; i++) {
    for (int64_t j = 0; j < n; j++) {
      float sum = 0;
      for (int64_t p = 0; p < k; p++) sum += a[i * a_stride + p] * b[j * b_stride + p];
      c[i * c_stride + j] = sum;
    }
  }
#else
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)n, (int)k, 1.0f, a, (int)a_stride, b, (int)b_stride,
              0.0f, c, (int)c_stride);
#endif
}

static void gemm_nn(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_stride, const float *b, int64_t b_stride,
                    float beta, float *c, int64_t c_stride) {
  if (m <= 0 || n <= 0 || k <= 0) return;
#if defined(__SANITIZE_THREAD__)
  for (int64_t i = 0; i < m; i++) {
    for (int64_t j = 0; j < n && beta == 0; j++) c[i * c_stride + j] = 0;
    for (int64_t p = 0; p < k; p++) {
      for (int64_t j = 0; j < n; j++) c[i * c_stride + j] += a[i * a_stride + p] * b[p * b_stride + j];
    }
  }
#else
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)m, (int)n, (int)k, 1.0f, a, (int)a_stride, b,
              (int)b_stride, beta, c, (int)c_stride);
#endif
}

void dt_gemm_nn(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_stride, const float *b, int64_t b_stride,
                float *c, int64_t c_stride) {
  gemm_nn(m, n, k, a, a_stride, b, b_stride, 0.0f, c, c_stride);
}

void dt_gemm_nn_add(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_stride, const float *b, int64_t b_stride,
                    float *c, int64_t c_stride) {
  gemm_nn(m, n, k, a, a_stride, b, b_stride, 1.0f, c, c_stride);
}

DT_INLINE float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

DT_INLINE uint32_t bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

DT_INLINE float widen_bf16(uint16_t half) {
  return float_of_bits((uint32_t)half << 16);
}

DT_INLINE uint16_t round_bf16(float value) {
  uint32_t bits = bits_of_float(value);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  uint32_t nan = (bits >> 16) | 0x40u;
  return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/* The exponent is rebiased by a multiplication, which also normalizes what is subnormal in half precision. */
DT_INLINE float widen_f16(uint16_t half) {
  uint32_t magnitude = (uint32_t)(half & 0x7fffu) << 13;
  uint32_t scaled = bits_of_float(float_of_bits(magnitude) * 0x1p112f);
  uint32_t special = magnitude | 0x7f800000u;
  uint32_t bits = magnitude >= 0x0f800000u ? special : scaled;
  return float_of_bits(bits | (uint32_t)(half & 0x8000u) << 16);
}

/* Subnormal results are rounded by the adder: at 0.5 one unit in the last place is the smallest half. */
DT_INLINE uint16_t round_f16(float value) {
  uint32_t bits = bits_of_float(value);
  uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t normal = (magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  uint32_t subnormal = bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x477ff000u ? large : half;
  return (uint16_t)(half | (bits >> 16 & 0x8000u));
}

/* 2^n * p(r) with x = n ln 2 + r: the terms of the series up to r^7, which leaves 5e-9. 0 where the result would be
 * subnormal and infinity where it would overflow, so that what has no weight has none. NaN goes through. */
DT_INLINE float fast_exp(float power) {
  float x = power > 88.0f ? 88.0f : power;
  x = x < -87.0f ? -87.0f : x;
  float shifted = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: rounds to an integer in the low bits */
  float n = shifted - 12582912.0f;
  float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  float value = p * float_of_bits((bits_of_float(shifted) + 127u) << 23);
  value = power < -87.0f ? 0.0f : value;
  return power > 88.0f ? INFINITY : value;
}

DT_INLINE float sigmoid(float x) {
  return 1.0f / (1.0f + fast_exp(-x));
}

DT_VECTOR static void widen_bf16_row(const uint16_t *restrict src, int64_t count, float *restrict dst) {
  for (int64_t i = 0; i < count; i++) dst[i] = widen_bf16(src[i]);
}

DT_VECTOR static void widen_f16_row(const uint16_t *restrict src, int64_t count, float *restrict dst) {
  for (int64_t i = 0; i < count; i++) dst[i] = widen_f16(src[i]);
}

void dt_widen_row(dt_dtype dtype, const void *src, int64_t count, float *dst) {
  if (dtype == DT_DTYPE_BF16)
    widen_bf16_row(src, count, dst);
  else if (dtype == DT_DTYPE_F16)
    widen_f16_row(src, count, dst);
  else
    memcpy(dst, src, (size_t)count * sizeof(float));
}

DT_VECTOR static void round_bf16_row(const float *restrict src, int64_t count, uint16_t *restrict dst) {
  for (int64_t i = 0; i < count; i++) dst[i] = round_bf16(src[i]);
}

DT_VECTOR static void round_f16_row(const float *restrict src, int64_t count, uint16_t *restrict dst) {
  for (int64_t i = 0; i < count; i++) dst[i] = round_f16(src[i]);
}

void dt_round_row(dt_dtype dtype, const float *src, int64_t count, void *dst) {
  if (dtype == DT_DTYPE_BF16)
    round_bf16_row(src, count, dst);
  else if (dtype == DT_DTYPE_F16)
    round_f16_row(src, count, dst);
  else
    memcpy(dst, src, (size_t)count * sizeof(float));
}

DT_VECTOR static void accumulate_f32(float weight, const float *restrict row, int64_t count, float *restrict acc) {
  for (int64_t i = 0; i < count; i++) acc[i] += weight * row[i];
}

DT_VECTOR static void accumulate_bf16(float weight, const uint16_t *restrict row, int64_t count, float *restrict acc) {
  for (int64_t i = 0; i < count; i++) acc[i] += weight * widen_bf16(row[i]);
}

DT_VECTOR static void accumulate_f16(float weight, const uint16_t *restrict row, int64_t count, float *restrict acc) {
  for (int64_t i = 0; i < count; i++) acc[i] += weight * widen_f16(row[i]);
}

void dt_accumulate_row(dt_dtype dtype, float weight, const void *row, int64_t count, float *acc) {
  if (dtype == DT_DTYPE_BF16)
    accumulate_bf16(weight, row, count, acc);
  else if (dtype == DT_DTYPE_F16)
    accumulate_f16(weight, row, count, acc);
  else
    accumulate_f32(weight, row, count, acc);
}

DT_VECTOR static void silu_row(const float *restrict gate, const float *restrict up, int64_t count,
                               float *restrict out) {
  for (int64_t i = 0; i < count; i++) out[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

DT_VECTOR static void clamped_row(float alpha, float limit, const float *restrict gate, const float *restrict up,
                                  int64_t count, float *restrict out) {
  for (int64_t i = 0; i < count; i++) {
    float g = gate[i] > limit ? limit : gate[i];
    float u = up[i] > limit ? limit : up[i];
    u = u < -limit ? -limit : u;
    out[i] = (u + 1.0f) * (g * sigmoid(alpha * g));
  }
}

void dt_glu_row(const dt_glu *glu, const float *gate, const float *up, int64_t count, float *out) {
  enum { CHUNK = 256 };
  float gate_chunk[CHUNK], up_chunk[CHUNK];
  for (int64_t i = 0; i < count; i += CHUNK) {
    int64_t n = count - i < CHUNK ? count - i : CHUNK;
    const float *g = gate + i, *u = up + i;
    if (glu->gate_bias != 0) {
      memcpy(gate_chunk, g, (size_t)n * sizeof(float));
      dt_offset_row(gate_chunk, n, glu->gate_bias);
      g = gate_chunk;
    }
    if (glu->up_bias != 0) {
      memcpy(up_chunk, u, (size_t)n * sizeof(float));
      dt_offset_row(up_chunk, n, glu->up_bias);
      u = up_chunk;
    }
    if (glu->activation == DT_ACTIVATION_SILU)
      silu_row(g, u, n, out + i);
    else
      clamped_row(glu->alpha, glu->limit, g, u, n, out + i);
  }
}

enum { LANES = 16 }; /* partial results of a reduction, so that it is a vector's: their order is fixed */

DT_VECTOR static float row_top(const float *restrict row, int64_t count, float top) {
  float lanes[LANES];
  for (int l = 0; l < LANES; l++) lanes[l] = top;
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES)
    for (int l = 0; l < LANES; l++) lanes[l] = row[i + l] > lanes[l] ? row[i + l] : lanes[l];
  for (; i < count; i++) lanes[0] = row[i] > lanes[0] ? row[i] : lanes[0];
  for (int l = 0; l < LANES; l++) top = lanes[l] > top ? lanes[l] : top;
  return top;
}

DT_VECTOR static float row_exp(float *restrict row, int64_t count, float top) {
  float lanes[LANES] = {0}, sum = 0;
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES)
    for (int l = 0; l < LANES; l++) {
      float p = fast_exp(row[i + l] - top);
      row[i + l] = p;
      lanes[l] += p;
    }
  for (; i < count; i++) {
    row[i] = fast_exp(row[i] - top);
    lanes[0] += row[i];
  }
  for (int l = 0; l < LANES; l++) sum += lanes[l];
  return sum;
}

/* A maximum does not see NaN. */
static bool has_nan(const float *row, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    if (isnan(row[i])) return true;
  return false;
}

float dt_softmax_row(float *row, int64_t visible, int64_t count, float *top, float *sum) {
  float before = *top, now = row_top(row, visible, before);
  if (now == -INFINITY && !has_nan(row, visible)) visible = 0;
  memset(row + visible, 0, (size_t)(count - visible) * sizeof(float));
  if (visible == 0) return 1.0f;
  float rescale = now == before ? 1.0f : fast_exp(before - now);
  *top = now;
  *sum = *sum * rescale + row_exp(row, visible, now);
  return rescale;
}

static DT_VECTOR void scale_row(float *row, int64_t count, float scale) {
  for (int64_t i = 0; i < count; i++) row[i] *= scale;
}

static DT_VECTOR void add_row(float *restrict row, const float *restrict bias, int64_t count) {
  for (int64_t i = 0; i < count; i++) row[i] += bias[i];
}

static DT_VECTOR void offset_row(float *row, int64_t count, float offset) {
  for (int64_t i = 0; i < count; i++) row[i] += offset;
}

/* Apart from the loops: the clones of a function that is not static are exported whatever its visibility. */
void dt_scale_row(float *row, int64_t count, float scale) {
  scale_row(row, count, scale);
}

void dt_add_row(float *row, const float *bias, int64_t count) {
  add_row(row, bias, count);
}

void dt_offset_row(float *row, int64_t count, float offset) {
  offset_row(row, count, offset);
}

typedef float vector8 __attribute__((vector_size(32)));

#define LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define HIGH(a, b) __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define LEFT(a, b) __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define RIGHT(a, b) __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define FRONT(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define BACK(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15)

DT_INLINE void transpose8(const float *src, int64_t src_stride, float *dst, int64_t dst_stride) {
  vector8 r[8], pairs[8], quads[8], out;
  for (int i = 0; i < 8; i++) memcpy(&r[i], src + i * src_stride, sizeof(r[i]));
  for (int i = 0; i < 4; i++) {
    pairs[2 * i] = LOW(r[2 * i], r[2 * i + 1]);
    pairs[2 * i + 1] = HIGH(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; i++) {
    quads[4 * i] = LEFT(pairs[4 * i], pairs[4 * i + 2]);
    quads[4 * i + 1] = RIGHT(pairs[4 * i], pairs[4 * i + 2]);
    quads[4 * i + 2] = LEFT(pairs[4 * i + 1], pairs[4 * i + 3]);
    quads[4 * i + 3] = RIGHT(pairs[4 * i + 1], pairs[4 * i + 3]);
  }
  for (int i = 0; i < 4; i++) {
    out = FRONT(quads[i], quads[i + 4]);
    memcpy(dst + i * dst_stride, &out, sizeof(out));
    out = BACK(quads[i], quads[i + 4]);
    memcpy(dst + (i + 4) * dst_stride, &out, sizeof(out));
  }
}

static DT_VECTOR void transpose(const float *src, int64_t n, int64_t m, float *dst, int64_t dst_stride) {
  int64_t n8 = n / 8 * 8, m8 = m / 8 * 8;
  for (int64_t i = 0; i < m8; i += 8) {
    for (int64_t j = 0; j < n8; j += 8) transpose8(src + j * m + i, m, dst + i * dst_stride + j, dst_stride);
    for (int64_t j = n8; j < n; j++) {
      for (int64_t k = i; k < i + 8; k++) dst[k * dst_stride + j] = src[j * m + k];
    }
  }
  for (int64_t i = m8; i < m; i++) {
    for (int64_t j = 0; j < n; j++) dst[i * dst_stride + j] = src[j * m + i];
  }
}

void dt_transpose(const float *src, int64_t n, int64_t m, float *dst, int64_t dst_stride) {
  transpose(src, n, m, dst, dst_stride);
}

float dt_sigmoid_dot(const float *a, const float *b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; i++) sum += (double)a[i] * b[i];
  return (float)(1.0 / (1.0 + exp(-sum)));
}
