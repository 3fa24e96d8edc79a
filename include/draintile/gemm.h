/* Grouped GEMM on a Hopper GPU: the tile engine alone.
 *
 * For every expert e, out[rows of e] = a[rows of e] * b[e]^T, `dtype` in and out, float32 accumulate. Rows are packed:
 * expert e's follow expert e-1's. How many each expert has is read on the device, so that nothing waits for the host
 * and the call can be captured in a CUDA graph. Every output element is one sum over K in ascending order.
 */
#ifndef DRAINTILE_GEMM_H
#define DRAINTILE_GEMM_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/plan.h>
#include <draintile/status.h>
#include <draintile/weights.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define DT_CUDA_OWNERS_MAX 8

/* All pointers are memory that the device can reach, 16-byte aligned. n and k are multiples of 8. */
typedef struct dt_cuda_gemm {
  size_t size;           /* sizeof, set by dt_cuda_gemm_init */
  const void *a;         /* [rows_max][k] */
  const void *b;         /* [experts][n][k]: output features by input features, as checkpoints store them */
  void *out;             /* [rows_max][n]; rows past the last expert's are not written. Unused with row_target */
  const int32_t *counts; /* [experts] rows of each expert */
  int32_t experts;       /* 1 to 4000 */
  int64_t rows_max;      /* rows that a and out hold; the counts must add up to no more */
  int64_t n, k;
  /* Direct stores: where each row goes instead of `out`. Row r goes to row row_target[r] & 0xffffffff of owner
   * row_target[r] >> 32 (an owner that does not exist: nowhere), whose buffer may be another device's memory. */
  const uint64_t *row_target; /* NULL, or [rows_max] */
  int32_t owners;             /* with row_target: 1 to DT_CUDA_OWNERS_MAX */
  void *owner_out[DT_CUDA_OWNERS_MAX];
  int64_t owner_rows[DT_CUDA_OWNERS_MAX]; /* [owner_rows][n] */
  uint32_t *ready; /* NULL, or [bands], zeroed by the caller. A band is up to 128 rows of an expert; bands count on from
                      expert to expert. Each stored tile adds its rows times its columns in units of 128 to its band's
                      counter (release, this device): a band is complete at rows * 2 * ceil(n / 256). Counters come in
                      the order of bands. The order of tiles is not specified */
  dt_order order;  /* of bands (draintile/plan.h): natural (default), remote-first or paced */
  int32_t paced_units; /* paced: experts with fewer units of raster_bands stay in natural order; 0 (default): none */
  const int32_t *remote_rows; /* [experts], not for natural: how many of each expert's rows, the first, others own */
  int32_t raster_bands;       /* bands of 128 rows that run column by column together; even; 0: 16 */
  int32_t tensor_stores;      /* 1 (default): 16 rows that stay together leave through the copy engine; 0: every row
                                 by 16-byte stores, as rows that do not stay together always do */
  int32_t sms;                /* multiprocessors to use; 0: all */
  int32_t link_k;   /* with remote_rows: the k at which a tile's products take as long as its bytes over the link to
                       the other owners; 0 (default): no link. Where it holds the tiles up (k * rows < link_k *
                       remote rows) the first tasks are cut, so that it has work early */
  dt_dtype dtype;   /* of a, b and out: bf16 (default), the only one that the kernel has an instance for */
  double timeout_s; /* of a wait inside the kernel, below 4,000; 0: 10 */
} dt_cuda_gemm;
void dt_cuda_gemm_init(dt_cuda_gemm *gemm);

/* *bytes: device memory, 128-byte aligned, that one call in flight needs. DT_ERR_ARGUMENT names the field. */
dt_status dt_cuda_gemm_workspace(const dt_cuda_gemm *gemm, size_t *bytes);

/* Queues the GEMM on `stream` (a cudaStream_t) of the current device. DT_ERR_ARGUMENT names the field that is out of
 * range; DT_ERR_UNSUPPORTED: not a Hopper GPU; DT_ERR_DEVICE: CUDA's error is in the detail. */
dt_status dt_cuda_grouped_gemm(const dt_cuda_gemm *gemm, void *workspace, void *stream);

/* Waits for `stream`, then says how the last call with this workspace ended: DT_OK, DT_ERR_CAPACITY (counts negative or
 * above rows_max), DT_ERR_TIMEOUT (a wait expired) or DT_ERR_INTERNAL. */
dt_status dt_cuda_gemm_check(const void *workspace, void *stream);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
