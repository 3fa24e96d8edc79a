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
  int32_t early; /* carried: items of the needs of the first round */
} dt_ulysses_table;
void dt_ulysses_table_destroy(dt_ulysses_table *table);

/* Rows of one head that a stage holds. */
int32_t dt_ulysses_box_rows(int32_t head_dim);

/* Whether rows lie at a rank by owners, those behind it first, itself last, so that an owner's text and image are one
 * run, tiles may go over from one owner to the next, and own rows of k and v, which are there first, are read first.
 * Causal attention needs the order of the sequence; replicated text is one run. */
int32_t dt_ulysses_by_owner(const dt_ulysses_layout *layout);
/* The place of an owner's run in q (tensor 0), k or v at `rank`. */
int64_t dt_ulysses_place(const dt_ulysses_layout *layout, int32_t rank, int32_t tensor, int32_t owner, int part);
/* Rows of k and v at `rank` below this one are not its own: they come late. All, if rows lie in the sequence's order.
 */
int64_t dt_ulysses_late_rows(const dt_ulysses_layout *layout, int32_t rank);

/* Who copies what on the way in. The first `fast` heads: rows for other ranks go round blocks [0, fast_senders), own
 * ones round the other blocks (all, if there are no others). Later heads: all rows go round [0, senders). */
typedef struct dt_ulysses_shares {
  int32_t blocks, senders, fast_senders, fast;
} dt_ulysses_shares;

/* What the attention needs of a head: q, or k and v. In the order in which it needs them; the first `early` of them for
 * the first round of its tiles. */
typedef struct dt_ulysses_need {
  int32_t head, kv;
} dt_ulysses_need;
typedef struct dt_ulysses_needs {
  dt_ulysses_need *needs;
  int32_t count, early;
} dt_ulysses_needs;
/* By the schedule that `kernel` holds. DT_ERR_MEMORY. */
dt_status dt_ulysses_order(const dt_ulysses_layout *layout, int32_t rank, const dt_attention_kernel *kernel,
                           int32_t tile_rows, int32_t ctas, dt_ulysses_needs *needs);
void dt_ulysses_needs_destroy(dt_ulysses_needs *needs);
/* The way in of `rank`: head by head, k and v before the first q that uses them, own rows first. DT_ERR_MEMORY. */
dt_status dt_ulysses_table_in(const dt_ulysses_layout *layout, int32_t rank, const dt_ulysses_shares *shares,
                              dt_ulysses_table *table);
/* Whether CTAs may carry: there is an attention that has room for it, and no rank has more items for a word than that
 * counts. */
int32_t dt_ulysses_may_carry(const dt_ulysses_layout *layout);
/* The way in of `rank` for CTAs that draw items: one block, in the order of `needs`; heads that another rank has beyond
 * them last. Of its own rows, if rows lie by owners, those alone that a box may hold together with others'. Every item
 * says by itself that it is done: q to its head's word, k and v to the late words, behind those of all heads, of all
 * heads that use them. DT_ERR_MEMORY. */
enum { DT_ULYSSES_SHARED_ROWS = 128 }; /* at least a warpgroup's of q, a block's of k and v */
dt_status dt_ulysses_table_carried(const dt_ulysses_layout *layout, int32_t rank, const dt_ulysses_needs *needs,
                                   dt_ulysses_table *table);
/* The way out of `rank` after the attention: the rows of its heads that others own. DT_ERR_MEMORY. */
dt_status dt_ulysses_table_out(const dt_ulysses_layout *layout, int32_t rank, int32_t blocks, dt_ulysses_table *table);

#ifdef __cplusplus
}
#endif
#endif
