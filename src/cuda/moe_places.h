/* A layer's plan on the device, where everything is: tasks and their places in the table, pieces to dispatch and to
 * put, where rows go. Of any index, once moe_order.h's phases are through. */
#ifndef DT_CUDA_MOE_PLACES_H
#define DT_CUDA_MOE_PLACES_H

#include "cuda/moe_order.h"

/* dedup: the run that item `index` belongs to in the order of L1; *local: its number there. all, early: items of the
 * experts before each, and the early ones among them. */
DT_PHASE dt_run dt_moe_l1_run(const dt_moe_plan *p, const dt_moe_scratch *s, const int32_t *all, const int32_t *early,
                              int32_t index, int32_t *local) {
  const int32_t ahead = *s->ahead, early_ahead = early[ahead];
  int32_t expert, is_early = 1;
  if (index < early_ahead) {
    expert = dt_last_at_most(early, ahead, index);
    *local = index - early[expert];
  } else if (index < all[ahead]) {
    int32_t high = ahead;
    expert = is_early = 0;
    while (high - expert > 1) { /* the last expert with at most so many late items before it */
      const int32_t middle = (expert + high) / 2;
      if (all[middle] - early[middle] <= index - early_ahead)
        expert = middle;
      else
        high = middle;
    }
    *local = index - early_ahead - (all[expert] - early[expert]);
  } else {
    expert = dt_last_at_most(all, p->experts, index);
    *local = index - all[expert];
    return dt_moe_run(p, s, expert);
  }
  return dt_moe_half(p, dt_moe_run(p, s, expert), dt_moe_own_rows(p, s, expert), is_early);
}

/* Task `index` of L1 (l1 1) or L2; *place: where in the table. */
DT_PHASE dt_tile_task dt_moe_task(const dt_moe_plan *p, const dt_moe_scratch *s, int l1, int32_t index,
                                  int32_t *place) {
  const int32_t *first = l1 ? s->l1 : s->l2;
  int32_t expert = dt_last_at_most(first, l1 ? dt_moe_l1_runs(p) : dt_moe_runs(p), index); /* the run */
  int32_t local = index - first[expert];
  dt_run run;
  if (!DT_MOE_DEDUPS(p) || !l1) {
    run = dt_moe_run_at(p, s, expert);
  } else {
    run = dt_moe_l1_run(p, s, s->l1, s->early, index, &local);
    expert = run.expert;
  }
  dt_tile_task task = dt_run_task(&run, l1 ? p->columns_1 : p->columns_2, p->raster_bands, local);
  if (l1) {
    task.flags |= DT_TASK_L1 << DT_TASK_PHASE_SHIFT;
    task.column[0] /= 2; /* a tile of L1 has 128 columns of act */
    task.column[1] /= 2;
    *place = index + dt_moe_l2_before(p, s, expert, index);
  } else {
    *place = index + dt_moe_l1_before(p, s, expert, index);
  }
  return task;
}

DT_PHASE int32_t dt_moe_pieces(const dt_moe_plan *p, const dt_moe_scratch *s) {
  return s->piece[DT_MOE_DEDUPS(p) ? p->experts : p->ranks * p->experts];
}
/* Pieces, or with dedup tokens of `tokens`, that leave while the table is made. These do only where hardly any rows
 * stay: where tiles have own rows to begin with, they are kept waiting. */
DT_PHASE int32_t dt_moe_early_pieces(const dt_moe_plan *p, int32_t pieces) {
  return p->early_blocks > 0 ? dt_min32(pieces / p->early_share, DT_LAYER_EARLY_PIECES) : 0;
}
DT_PHASE int32_t dt_moe_early_tokens(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t tokens) {
  const int32_t first = p->rank * p->experts, all = dt_moe_combine_row(p, s, p->rank, p->ranks * p->experts);
  const int32_t own = dt_moe_combine_row(p, s, p->rank, first + p->experts) - dt_moe_combine_row(p, s, p->rank, first);
  if (p->early_blocks == 0 || own > all / DT_LAYER_EARLY_STAY) return 0;
  return dt_min32(tokens, tokens / 4 + DT_LAYER_EARLY_TOKENS);
}
/* dedup: piece `index`. A run starts with a band. */
DT_PHASE dt_layer_piece dt_moe_expand_piece(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t index) {
  int32_t local;
  const dt_run run = dt_moe_l1_run(p, s, s->piece, s->early_piece, index, &local);
  const int32_t skip = local * p->expand_rows;
  dt_layer_piece piece = {run.slot * DT_TILE_M + skip,
                          run.row + skip,
                          dt_min32(run.rows - skip, p->expand_rows),
                          p->rank,
                          run.slot + skip / DT_TILE_M,
                          0,
                          0,
                          0};
  return piece;
}
/* Dispatch piece `index`. */
DT_PHASE dt_layer_piece dt_moe_piece(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t index) {
  if (DT_MOE_DEDUPS(p)) return dt_moe_expand_piece(p, s, index);
  const int32_t q = dt_last_at_most(s->piece, p->ranks * p->experts, index);
  const int32_t place = q / p->ranks, r = dt_moe_rank_after(p, p->rank, q - place * p->ranks);
  const int32_t e = dt_moe_expert(p, s, r, place), g = r * p->experts + e;
  const int32_t before = dt_moe_rows_before(p, s, r, g, p->rank), end = before + dt_moe_count(p, s, p->rank, g);
  const int32_t cell = before / p->piece_rows + index - s->piece[q];
  const int32_t low = dt_max32(before, cell * p->piece_rows), high = dt_min32(end, (cell + 1) * p->piece_rows);
  const int32_t at = r * (p->experts + 1) + e;
  dt_layer_piece piece = {dt_moe_combine_row(p, s, p->rank, g) + low - before,
                          s->first_row[at] + low,
                          high - low,
                          r,
                          dt_moe_place(p, s, r, e, low / DT_TILE_M),
                          0,
                          0,
                          0};
  return piece;
}
/* Piece `index` to put, of a segment: a group's part of its first band, of its last, or of up to segment_bands bands
 * between them. The pieces of segments in the plan's order: by their last band, then by row. */
DT_PHASE dt_layer_piece dt_moe_put(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t index) {
  const int32_t q = dt_last_at_most(s->put, p->ranks * p->experts, index), place = q / p->ranks, k = q % p->ranks;
  const int32_t e = dt_moe_expert(p, s, p->rank, place), owner = dt_moe_rank_after(p, p->rank, k);
  const dt_run run = dt_moe_run(p, s, e);
  const int32_t *rows = s->owner_row + e * p->ranks + k, before = rows[0] - run.row, end = rows[1] - run.row;
  const int32_t cell = before / p->put_rows + index - s->put[q];
  const int32_t low = dt_max32(before, cell * p->put_rows), high = dt_min32(end, (cell + 1) * p->put_rows);
  const int32_t first = before / DT_TILE_M, last = (end - 1) / DT_TILE_M;
  int32_t band = low / DT_TILE_M, bands = 1;
  if (band > first && band < last) {
    band -= (band - first - 1) % p->segment_bands;
    bands = dt_min32(p->segment_bands, last - band);
  }
  dt_layer_piece piece = {run.row + low,
                          dt_moe_combine_row(p, s, owner, p->rank * p->experts + e) + low - before,
                          high - low,
                          owner,
                          run.slot + band,
                          bands,
                          dt_min32(run.rows - band * DT_TILE_M, DT_TILE_M),
                          0};
  return piece;
}
/* Paced: the place of band `band` of this rank. */
DT_PHASE int32_t dt_moe_band_place(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t band) {
  const int32_t *first = s->first_band + p->rank * (p->experts + 1), e = dt_last_at_most(first, p->experts, band);
  return dt_moe_place(p, s, p->rank, e, band - first[e]);
}
/* dedup: combine row c of this rank's tokens, of global expert g, is the row source_base[g] + c of the expert's rank,
 * counting whole bands. */
DT_PHASE int32_t dt_moe_source_base(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t g) {
  const int32_t r = g / p->experts, e = g - r * p->experts;
  return s->first_band[r * (p->experts + 1) + e] * DT_TILE_M + dt_moe_rows_before(p, s, r, g, p->rank) -
         dt_moe_combine_row(p, s, p->rank, g);
}
/* Where L2 stores row `row`. */
DT_PHASE uint64_t dt_moe_row_target(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t row) {
  const int32_t q = dt_last_at_most(s->owner_row, p->ranks * p->experts, row);
  const int32_t e = q / p->ranks, owner = dt_moe_rank_after(p, p->rank, q - e * p->ranks);
  const int32_t to = dt_moe_combine_row(p, s, owner, p->rank * p->experts + e) + row - s->owner_row[q];
  if (!p->staged) return (uint64_t)(uint32_t)owner << 32 | (uint32_t)to;
  return owner == p->rank ? (uint32_t)to : (uint64_t)1 << 32 | (uint32_t)row;
}

#endif
