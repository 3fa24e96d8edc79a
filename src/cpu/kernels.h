/* The element-wise loops of the CPU executor, and its matrix products. All are pure and give the same bits on every
 * call with the same arguments, so that a schedule cannot change a result. */
#ifndef DT_CPU_KERNELS_H
#define DT_CPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/weights.h>

/* c[m][n] = a[m][k] * b[n][k]^T, float32; the strides count elements. Under the thread sanitizer it is plain loops, so
 * that the sanitizer sees every read. */
void dt_gemm_nt(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_stride, const float *b, int64_t b_stride,
                float *c, int64_t c_stride);

/* c[m][n] = a[m][k] * b[k][n], and +=, likewise. */
void dt_gemm_nn(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_stride, const float *b, int64_t b_stride,
                float *c, int64_t c_stride);
void dt_gemm_nn_add(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_stride, const float *b, int64_t b_stride,
                    float *c, int64_t c_stride);

/* F32, BF16 or F16 to float32, and back to nearest even (NaN stays NaN, overflow becomes infinity). */
void dt_widen_row(dt_dtype dtype, const void *src, int64_t count, float *dst);
void dt_round_row(dt_dtype dtype, const float *src, int64_t count, void *dst);

/* acc[i] += weight * row[i] */
void dt_accumulate_row(dt_dtype dtype, float weight, const void *row, int64_t count, float *acc);

/* out[i] = activation(gate[i] + gate_bias, up[i] + up_bias). exp is our own polynomial, accurate to about 1e-7
 * relative: libm's is one call an element. */
typedef struct dt_glu {
  dt_activation activation;
  float alpha, limit, gate_bias, up_bias;
} dt_glu;
void dt_glu_row(const dt_glu *glu, const float *gate, const float *up, int64_t count, float *out);

/* One block of an online softmax. row[i] = exp(row[i] - m) for i < visible and 0 up to count, m being the maximum of
 * *top and the visible values; *top becomes m, and *sum the sum so far. Returns what earlier results must be multiplied
 * by. A row that has seen nothing but -infinity has the sum 0, one that has seen NaN the sum NaN. */
float dt_softmax_row(float *row, int64_t visible, int64_t count, float *top, float *sum);

/* dst[m][n] = transpose of src[n][m]; src is dense. */
void dt_transpose(const float *src, int64_t n, int64_t m, float *dst, int64_t dst_stride);

/* row[i] = row[i] * scale; row[i] = row[i] + bias[i]; row[i] = row[i] + offset; the logistic function of a dot product.
 */
void dt_scale_row(float *row, int64_t count, float scale);
void dt_add_row(float *row, const float *bias, int64_t count);
void dt_offset_row(float *row, int64_t count, float offset);
float dt_sigmoid_dot(const float *a, const float *b, int64_t count);

#endif
