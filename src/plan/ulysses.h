/* The layout of Ulysses attention: which rank holds which rows and heads, what goes where, in which order. Pure: the
 * CPU executor and CUDA kernels compile the same functions.
 *
 * Rows (DeepSpeed-Ulysses, arXiv 2309.14509, shards evenly; here blocks may differ by one): a sequence is its text,
 * then its image, each split over the ranks in contiguous blocks, larger blocks first. Rank r owns block r of the text,
 * then block r of the image: in order of ranks the sequence is held as T0 I0 T1 I1 ..., while attention sees it in file
 * order. Replicated text is held whole by every rank, and owned (as output) by blocks all the same.
 *
 * Heads: contiguous, each rank floor(H/W) or ceil(H/W). Which ranks get the larger share is chosen so that the fewest
 * key heads are needed on two ranks (ulysses.c).
 *
 * Tiles (X-Stage, arXiv 2607.23264): at most tile_rows rows of one run of one owner and one head,
 * so that a tile has one destination. Head by head, so that the first heads need no later arrival: the remote tiles, of
 * owners r+1, ..., r+W-1, then, own_lag heads later, this rank's own. What is stored last then drains behind own tiles.
 * With own_lag 0 stores spread over the whole run, beside the way in; from `heads` on all remote tiles come first.
 */
#ifndef DT_PLAN_ULYSSES_H
#define DT_PLAN_ULYSSES_H

#include <stdint.h>

#include <draintile/status.h>

#include "plan/pure.h"

enum { DT_ULYSSES_RANKS = 64 };

enum { DT_ULYSSES_TEXT = 0, DT_ULYSSES_IMAGE = 1, DT_ULYSSES_PARTS };

typedef struct dt_ulysses_layout {
  int32_t ranks;
  int32_t heads, kv_heads, head_dim;
  int64_t tokens, kv_tokens, text_tokens;
  int32_t text_replicated, causal;
  int32_t tile_rows;
  int32_t own_lag;                          /* heads by which the own tiles of a head follow its remote ones */
  int32_t head_first[DT_ULYSSES_RANKS + 1]; /* by dt_ulysses_init; [ranks] is heads */
} dt_ulysses_layout;

/* Consecutive rows of the sequence. */
typedef struct dt_ulysses_rows {
  int64_t first, rows;
  int64_t local; /* place of the first row among the rank's own */
} dt_ulysses_rows;

/* One message of the way in: the rows that `source` holds of one head, to a rank that needs it. */
typedef struct dt_ulysses_send {
  int32_t peer;
  int32_t head; /* among the peer's query heads, or its key heads */
  int32_t kv;   /* 1: of k and v; 0: of q */
} dt_ulysses_send;

typedef struct dt_ulysses_tile {
  int32_t head;  /* among this rank's query heads */
  int32_t owner; /* of the rows */
  int64_t row;   /* first one, of the sequence */
  int64_t local; /* the same among the owner's rows */
  int32_t rows;
} dt_ulysses_tile;

/* ---- Rows ---- */

/* Block `index` of `total` over `blocks`: sizes differ by at most one, larger ones first. */
DT_HD static inline int64_t dt_ulysses_block(int64_t total, int32_t blocks, int32_t index, int64_t *first) {
  int64_t base = total / blocks, extra = total % blocks;
  *first = index * base + dt_min64(index, extra);
  return base + (index < extra ? 1 : 0);
}

/* The run of one part that `rank` owns, of a sequence of `tokens` rows. */
DT_HD static inline dt_ulysses_rows dt_ulysses_owned(const dt_ulysses_layout *u, int64_t tokens, int32_t rank,
                                                     int part) {
  dt_ulysses_rows text, image;
  text.rows = dt_ulysses_block(u->text_tokens, u->ranks, rank, &text.first);
  text.local = 0;
  if (part == DT_ULYSSES_TEXT) return text;
  image.rows = dt_ulysses_block(tokens - u->text_tokens, u->ranks, rank, &image.first);
  image.first += u->text_tokens;
  image.local = text.rows;
  return image;
}

/* The run of one part that `rank` passes in. */
DT_HD static inline dt_ulysses_rows dt_ulysses_held(const dt_ulysses_layout *u, int64_t tokens, int32_t rank,
                                                    int part) {
  dt_ulysses_rows run = dt_ulysses_owned(u, tokens, rank, part);
  if (!u->text_replicated) return run;
  if (part == DT_ULYSSES_IMAGE) {
    run.local = u->text_tokens;
    return run;
  }
  run.first = 0;
  run.rows = u->text_tokens;
  return run;
}

/* What of that goes to `peer`: all of it, but replicated text is there already. */
DT_HD static inline dt_ulysses_rows dt_ulysses_sent(const dt_ulysses_layout *u, int64_t tokens, int32_t rank,
                                                    int32_t peer, int part) {
  dt_ulysses_rows run = dt_ulysses_held(u, tokens, rank, part);
  if (u->text_replicated && part == DT_ULYSSES_TEXT && peer != rank) run.rows = 0;
  return run;
}

/* Rows that `rank` sends to `peer` for one head. */
DT_HD static inline int64_t dt_ulysses_sent_rows(const dt_ulysses_layout *u, int64_t tokens, int32_t rank,
                                                 int32_t peer) {
  return dt_ulysses_sent(u, tokens, rank, peer, DT_ULYSSES_TEXT).rows +
         dt_ulysses_sent(u, tokens, rank, peer, DT_ULYSSES_IMAGE).rows;
}

DT_HD static inline int64_t dt_ulysses_owned_rows(const dt_ulysses_layout *u, int64_t tokens, int32_t rank) {
  return dt_ulysses_owned(u, tokens, rank, DT_ULYSSES_TEXT).rows +
         dt_ulysses_owned(u, tokens, rank, DT_ULYSSES_IMAGE).rows;
}

/* Rows of k that row `row` of q sees: they are the first ones. Aligned at the end, as in FlashAttention from 2.1 on. */
DT_HD static inline int64_t dt_ulysses_visible(const dt_ulysses_layout *u, int64_t row) {
  if (!u->causal) return u->kv_tokens;
  int64_t visible = row + 1 + u->kv_tokens - u->tokens;
  return visible < 0 ? 0 : dt_min64(visible, u->kv_tokens);
}

/* ---- Heads ---- */

DT_HD static inline int32_t dt_ulysses_head_count(const dt_ulysses_layout *u, int32_t rank) {
  return u->head_first[rank + 1] - u->head_first[rank];
}

/* Query heads that share a key head. */
DT_HD static inline int32_t dt_ulysses_group(const dt_ulysses_layout *u) {
  return u->heads / u->kv_heads;
}

DT_HD static inline int32_t dt_ulysses_kv_first(const dt_ulysses_layout *u, int32_t rank) {
  return u->head_first[rank] / dt_ulysses_group(u);
}

DT_HD static inline int32_t dt_ulysses_kv_count(const dt_ulysses_layout *u, int32_t rank) {
  return (u->head_first[rank + 1] - 1) / dt_ulysses_group(u) - dt_ulysses_kv_first(u, rank) + 1;
}

/* The key head, among the rank's own, of its query head `head`. */
DT_HD static inline int32_t dt_ulysses_kv_of(const dt_ulysses_layout *u, int32_t rank, int32_t head) {
  return (u->head_first[rank] + head) / dt_ulysses_group(u) - dt_ulysses_kv_first(u, rank);
}

/* ---- The memory of arrivals on a rank, in elements: q [heads][S][D], k [kv heads][S_kv][D], v likewise ---- */

DT_HD static inline int64_t dt_ulysses_q_at(const dt_ulysses_layout *u, int32_t head, int64_t row) {
  return (head * u->tokens + row) * u->head_dim;
}

/* v: 0 for k, 1 for v. */
DT_HD static inline int64_t dt_ulysses_kv_at(const dt_ulysses_layout *u, int32_t rank, int32_t v, int32_t head,
                                             int64_t row) {
  int64_t heads = dt_ulysses_kv_count(u, rank);
  int64_t q = (int64_t)dt_ulysses_head_count(u, rank) * u->tokens;
  return (q + (v * heads + head) * u->kv_tokens + row) * u->head_dim;
}

DT_HD static inline int64_t dt_ulysses_arrivals(const dt_ulysses_layout *u, int32_t rank) {
  return dt_ulysses_kv_at(u, rank, 2, 0, 0);
}

/* ---- Tables (ulysses.c) ---- */

/* Checks every field but head_first (DT_ERR_ARGUMENT), then fills that. */
dt_status dt_ulysses_init(dt_ulysses_layout *u);

/* The messages of `rank`, in order: the i-th heads of all peers before their next ones, k and v before the first q that
 * uses them, own rows before the peers'. sends may be NULL, to count. */
int64_t dt_ulysses_sends(const dt_ulysses_layout *u, int32_t rank, dt_ulysses_send *sends);

/* The tiles of `rank` in the order above. tiles may be NULL, to count. */
int64_t dt_ulysses_tiles(const dt_ulysses_layout *u, int32_t rank, dt_ulysses_tile *tiles);

#endif
