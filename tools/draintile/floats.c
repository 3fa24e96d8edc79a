#include "floats.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

static float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static uint16_t to_bf16(float value) {
  uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)((bits >> 16) | 0x40);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static uint16_t to_f16(float value) {
  uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and more round to infinity */
  if (magnitude < 0x38800000) { /* below 2^-14: adding 0.5 aligns the value to f16's subnormal step, 2^-24 */
    float aligned = float_of(magnitude) + 0.5f;
    return (uint16_t)(sign | (bits_of(aligned) - 0x3f000000));
  }
  uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return (uint16_t)(sign | ((rounded - 0x38000000) >> 13));
}

static float from_f16(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31, mantissa = half & 0x3ff;
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)mantissa * 0x1p-24f;
  if (exponent == 31) return float_of(sign | 0x7f800000 | mantissa << 13);
  return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

void floats_store(dt_dtype dtype, const float *from, size_t count, void *to) {
  uint16_t *half = to;
  if (dtype == DT_DTYPE_F32)
    memcpy(to, from, count * sizeof(float));
  else if (dtype == DT_DTYPE_BF16)
    for (size_t i = 0; i < count; i++) half[i] = to_bf16(from[i]);
  else
    for (size_t i = 0; i < count; i++) half[i] = to_f16(from[i]);
}

static float load_one(dt_dtype dtype, const void *from, size_t i) {
  if (dtype == DT_DTYPE_F32) return ((const float *)from)[i];
  uint16_t half = ((const uint16_t *)from)[i];
  return dtype == DT_DTYPE_BF16 ? float_of((uint32_t)half << 16) : from_f16(half);
}

void floats_load(dt_dtype dtype, const void *from, size_t count, double *to) {
  for (size_t i = 0; i < count; i++) to[i] = load_one(dtype, from, i);
}

size_t floats_first_not_finite(dt_dtype dtype, const void *from, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (!isfinite(load_one(dtype, from, i))) return i;
  return count;
}
