/* What the blocks of the copying kernel move, made from the layout of plan/ulysses.h. Pure. */
#ifndef DT_CUDA_ULYSSES_TABLES_H
#define DT_CUDA_ULYSSES_TABLES_H

#include <stdint.h>

#include <draintile/status.h>

#include "plan/ulysses.h"
#include "ulysses_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Items by block: block b has items [first[b], first[b + 1]). */
typedef struct dt_ulysses_table {
  dt_ulysses_item *items;
  int32_t *first; /* [blocks + 1] */
  int32_t count, blocks;
} dt_ulysses_table;
void dt_ulysses_table_destroy(dt_ulysses_table *table);

/* Rows of one head that a stage holds. */
int32_t dt_ulysses_box_rows(int32_t head_dim);

/* Who copies what on the way in. The first `fast` heads: rows for other ranks go round blocks [0, fast_senders), own
 * ones round the other blocks (all, if there are no others). Later heads: all rows go round [0, senders). */
typedef struct dt_ulysses_shares {
  int32_t blocks, senders, fast_senders, fast;
} dt_ulysses_shares;
/* The way in of `rank`: head by head, k and v before the first q that uses them, own rows first. DT_ERR_MEMORY. */
dt_status dt_ulysses_table_in(const dt_ulysses_layout *layout, int32_t rank, const dt_ulysses_shares *shares,
                              dt_ulysses_table *table);
/* The way out of `rank` after the attention: the rows of its heads that others own. DT_ERR_MEMORY. */
dt_status dt_ulysses_table_out(const dt_ulysses_layout *layout, int32_t rank, int32_t blocks, dt_ulysses_table *table);

#ifdef __cplusplus
}
#endif
#endif
