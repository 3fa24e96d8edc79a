/* Tensor maps of bf16 matrices for the tile engine, encoded by the driver. */
#ifndef DT_CUDA_TENSOR_MAP_H
#define DT_CUDA_TENSOR_MAP_H

#include <cuda.h>
#include <stdint.h>

#include <draintile/status.h>

/* Three dimensions, innermost first, with the strides of the outer two in elements; boxes of 64 by box_rows, 128-byte
 * swizzle. Or of box_columns by box_rows, unswizzled. */
typedef struct dt_tensor {
  const char *name; /* for the error */
  const void *data;
  int64_t dims[3], strides[2];
  uint32_t box_rows, box_columns; /* box_columns 0: 64, swizzled */
} dt_tensor;

/* A ragged view of [rows][columns]: see tile_gemm.h. */
dt_tensor dt_tensor_ragged(const char *name, const void *data, int64_t rows, int64_t columns, uint32_t box_rows);
/* [experts][rows][columns]. */
dt_tensor dt_tensor_experts(const char *name, const void *data, int64_t experts, int64_t rows, int64_t columns,
                            uint32_t box_rows);
dt_status dt_tensor_encode(const dt_tensor *tensor, CUtensorMap *map);

#endif
