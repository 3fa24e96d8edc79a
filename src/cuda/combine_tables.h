/* The device tables of a combine, made from its plan. Pure. */
#ifndef DT_CUDA_COMBINE_TABLES_H
#define DT_CUDA_COMBINE_TABLES_H

#include <draintile/plan.h>

#include "combine_kernels.h"

/* Owners of `staged`: where the GEMM puts rows that another rank owns. */
enum { DT_COMBINE_OWN = 0, DT_COMBINE_STAGING = 1 };

typedef struct dt_combine_tables {
  int32_t *expert_rows, *band_rows; /* [experts], [bands] */
  uint64_t *staged, *direct;        /* [rows], owner << 32 | row: own rows to the buffer and others' to the staging; all
                                       rows to their owners' buffers */
  dt_combine_chunk *chunks;         /* in segment order */
  int32_t chunk_count;
} dt_combine_tables;

/* row_bytes: of an output row. On failure nothing is left behind. */
dt_status dt_combine_tables_create(const dt_plan *plan, int64_t row_bytes, dt_combine_tables *tables);
void dt_combine_tables_destroy(dt_combine_tables *tables);

#endif
