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

/* Whether q lies at a rank by owners, those behind it first, so that an owner's text and image are one run and tiles
 * may go over from one owner to the next. Causal attention needs the order of the sequence; replicated text is one run.
 */
int32_t dt_ulysses_by_owner(const dt_ulysses_layout *layout);
/* The place of an owner's run in q at `rank`. */
int64_t dt_ulysses_q_place(const dt_ulysses_layout *layout, int32_t rank, int32_t owner, int part);

/* Who copies what on the way in. The first `fast` heads: rows for other ranks go round blocks [0, fast_senders), own
 * ones round the other blocks (all, if there are no others). Later heads: all rows go round [0, senders). */
typedef struct dt_ulysses_shares {
  int32_t blocks, senders, fast_senders, fast;
} dt_ulysses_shares;
/* The way in of `rank`: head by head, k and v before the first q that uses them, own rows first. DT_ERR_MEMORY. */
dt_status dt_ulysses_table_in(const dt_ulysses_layout *layout, int32_t rank, const dt_ulysses_shares *shares,
                              dt_ulysses_table *table);
/* The way in of `rank` for CTAs that draw items: one block, head by head, own rows last; every item says by itself that
 * it is done, k and v to all heads that use them. DT_ERR_MEMORY. */
dt_status dt_ulysses_table_carried(const dt_ulysses_layout *layout, int32_t rank, dt_ulysses_table *table);
/* The way out of `rank` after the attention: the rows of its heads that others own. DT_ERR_MEMORY. */
dt_status dt_ulysses_table_out(const dt_ulysses_layout *layout, int32_t rank, int32_t blocks, dt_ulysses_table *table);

#ifdef __cplusplus
}
#endif
#endif
