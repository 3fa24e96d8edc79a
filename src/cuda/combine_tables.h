/* The device tables of a combine, made from its plan. Pure. */
#ifndef DT_CUDA_COMBINE_TABLES_H
#define DT_CUDA_COMBINE_TABLES_H

#include <draintile/plan.h>

#include "combine_kernels.h"

typedef struct dt_combine_tables {
  int32_t *expert_rows, *remote_rows; /* [experts] memory rows; those of them that are other ranks', with padding */
  int32_t *band_rows, *band_slot;     /* [bands] rows that the GEMM multiplies; place of its counter */
  uint64_t *staged, *direct;          /* [rows], owner << 32 | row: see dt_combine_device_tables */
  dt_combine_chunk *chunks;           /* in segment order */
  int32_t chunk_count;
} dt_combine_tables;

/* Rows of a chunk at most. */
int32_t dt_combine_chunk_rows(int64_t row_bytes);
/* row_bytes: of an output row. On failure nothing is left behind. */
dt_status dt_combine_tables_create(const dt_plan *plan, int64_t row_bytes, dt_combine_tables *tables);
void dt_combine_tables_destroy(dt_combine_tables *tables);

#endif
