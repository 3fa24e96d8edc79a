/* Slabs in which rows of two owners meet, for host and device: what of them goes where.
 *
 * An expert's rows of another rank come first, its own rank's behind them, and each owner's lie one after the other in
 * its buffer. So a slab leaves in at most two pieces, through the owners' ragged views (tile_gemm.h), which end a box
 * at any row. A box begins at any row of a plain tile's slab, but only at every fourth of a turned one's, whose rows
 * have 32 bytes: there the second owner's rows go to the next such place, and a slab holds 48 rows instead of 64. Lane
 * 0 has a slab's first piece, lane 1 its second; of a turned tile lanes 2i and 2i + 1 those of slab i.
 *
 * A piece, 0: none: bit 63, where it stands from bit 56, the slab's row at which it begins from bit 42, the owner's
 * view from bit 39, the box's coordinates there: from bit 32 the row within it, and the row that it ends at. All lanes
 * of a turned tile have bit 62.
 */
#ifndef DT_CUDA_TILE_SPLIT_H
#define DT_CUDA_TILE_SPLIT_H

#include "cuda/plan_warp.h"
#include "cuda/tile_gemm.h"

enum {
  DT_SPLIT_OUT = 2, /* among the owners' views: of the same rows as the two before, in boxes as DT_TURNED_OUT's */
  DT_SPLIT_SLAB = 16,
  DT_SPLIT_TURNED_SLAB = 48,
  DT_SPLIT_TURNED_BOX = 64,
  DT_SPLIT_TURNED_MAX = 192 /* rows of a turned tile */
};

/* Of a task's rows, from `row` of its expert on, those before the second owner's; remote: of the expert. */
DT_PHASE int32_t dt_split_meet(int32_t row, int32_t rows, int32_t remote) {
  return remote <= row ? 0 : remote - row < rows ? remote - row : rows;
}

/* Where a turned slab's row stands whose second piece begins at row `begin`. */
DT_PHASE int32_t dt_turned_place(int32_t row, int32_t begin) {
  return row < begin ? row : row + (-begin & 3);
}
/* `rows` rows from row `begin` of a slab on, which stand `at` times 32 bytes from its start; target: owner << 32 | row
 * of the first. */
DT_PHASE uint64_t dt_piece(uint64_t target, int32_t begin, int32_t at, int32_t rows, int32_t box) {
  return (uint64_t)1 << 63 | (uint64_t)(uint32_t)at << 56 | (uint64_t)(uint32_t)begin << 42 | (target >> 32) << 39 |
         (uint64_t)(uint32_t)(box - rows) << 32 | (uint32_t)((int32_t)target + rows);
}
DT_PHASE int32_t dt_piece_at(uint64_t piece) {
  return (int32_t)(piece >> 56 & 63);
}
DT_PHASE int32_t dt_piece_begin(uint64_t piece) {
  return (int32_t)(piece >> 42 & 63);
}
DT_PHASE int32_t dt_piece_view(uint64_t piece) {
  return (int32_t)(piece >> 39 & 7);
}
DT_PHASE int32_t dt_piece_inside(uint64_t piece) {
  return (int32_t)(piece >> 32 & 127);
}

/* The row of a turned tile with which this lane's piece begins, -1: none. meet: as dt_split_meet. */
DT_PHASE int32_t dt_turned_piece(int32_t lane, int32_t rows, int32_t meet) {
  const int32_t begin = lane / 2 * DT_SPLIT_TURNED_SLAB, left = rows - begin;
  if (left <= 0) return -1;
  if (lane % 2 == 0) return begin;
  return meet > begin && meet < begin + dt_min32(left, DT_SPLIT_TURNED_SLAB) ? meet : -1;
}
/* That piece; target: of that row. */
DT_PHASE uint64_t dt_turned_target(int32_t lane, uint64_t target, int32_t rows, int32_t meet) {
  const int32_t at = dt_turned_piece(lane, rows, meet), begin = lane / 2 * DT_SPLIT_TURNED_SLAB;
  const uint64_t all = (uint64_t)1 << 62;
  if (at < 0) return all;
  const int32_t end = begin + dt_min32(rows - begin, DT_SPLIT_TURNED_SLAB);
  const int32_t until = at == begin && meet > begin && meet < end ? meet : end;
  return all | dt_piece(target + ((uint64_t)DT_SPLIT_OUT << 32), at - begin, dt_turned_place(at - begin, at - begin),
                        until - at, DT_SPLIT_TURNED_BOX);
}

#endif
