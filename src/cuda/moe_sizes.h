/* A layer's plan on the device, how much there is: phases 1 to 3, from counts to the sums over experts of rows, bands,
 * tasks and pieces; the runs that bands form. */
#ifndef DT_CUDA_MOE_SIZES_H
#define DT_CUDA_MOE_SIZES_H

#include "cuda/moe_plan.h"

DT_PHASE int32_t dt_moe_rank_after(const dt_moe_plan *p, int32_t rank, int32_t k) {
  const int32_t r = rank + 1 + k;
  return r >= p->ranks ? r - p->ranks : r;
}
DT_PHASE int32_t dt_moe_combine_row(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t source, int32_t g) {
  return s->combine_row[source * (p->ranks * p->experts + 1) + g];
}
DT_PHASE int32_t dt_moe_count(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t source, int32_t g) {
  return dt_moe_combine_row(p, s, source, g + 1) - dt_moe_combine_row(p, s, source, g);
}
/* Rows of owners before `until` in expert g at its rank. */
DT_PHASE int32_t dt_moe_rows_before(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t at, int32_t g,
                                    int32_t until) {
  int32_t rows = 0;
  for (int32_t k = 0, owner = dt_moe_rank_after(p, at, 0); owner != until; owner = dt_moe_rank_after(p, at, ++k))
    rows += dt_moe_count(p, s, owner, g);
  return rows;
}
/* Pieces of rows [before, before + rows) of an expert: cut where the expert's rows are multiples of `each`, so that
 * each lies in one band. */
DT_PHASE int32_t dt_moe_cells(int32_t before, int32_t rows, int32_t each) {
  return rows == 0 ? 0 : (before + rows - 1) / each - before / each + 1;
}
DT_PHASE dt_run dt_moe_run(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t expert) {
  const int32_t at = p->rank * (p->experts + 1) + expert;
  dt_run run;
  run.expert = expert;
  run.row = s->first_row[at];
  run.rows = s->first_row[at + 1] - run.row;
  run.slot = s->first_band[at];
  run.remote = p->order == DT_ORDER_PACED ? s->remote[p->rank * p->experts + expert] : 0;
  run.turns = 0;
  return run;
}

/* The expert of `rank` that comes at place `at`, and the half of run `index` of remote-first: 0 has the bands with rows
 * of other ranks. Waves of whole experts have both halves of each together. */
DT_PHASE int32_t dt_moe_expert(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t rank, int32_t at) {
  return p->order == DT_ORDER_REMOTE_FIRST ? s->sorted[rank * p->experts + at] : at;
}
DT_PHASE int32_t dt_moe_run_place(const dt_moe_plan *p, int32_t index, int32_t *half) {
  *half = p->wave_experts > 0 ? index % 2 : index / p->experts;
  return p->wave_experts > 0 ? index / 2 : index % p->experts;
}
/* Of all bands of an expert, those of a half. */
DT_PHASE dt_run dt_moe_remote_half(dt_run run, int32_t remote, int32_t half) {
  const int32_t rows = dt_min32(run.rows, remote * DT_TILE_M);
  if (half == 0) {
    run.rows = rows;
  } else {
    run.row += rows;
    run.slot += remote;
    run.rows -= rows;
  }
  return run;
}
/* Run `index` of the table. */
DT_PHASE dt_run dt_moe_run_at(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t index) {
  int32_t half;
  if (p->order != DT_ORDER_REMOTE_FIRST) return dt_moe_run(p, s, index);
  const int32_t expert = dt_moe_expert(p, s, p->rank, dt_moe_run_place(p, index, &half));
  return dt_moe_remote_half(dt_moe_run(p, s, expert), s->remote[p->rank * p->experts + expert], half);
}
/* Where the counters of an expert's band are among those of its rank: bands count in their order within the expert. */
DT_PHASE int32_t dt_moe_place(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t rank, int32_t expert,
                              int32_t band) {
  const int32_t at = rank * (p->experts + 1) + expert, first = s->first_band[at];
  if (p->order != DT_ORDER_PACED) return first + band;
  return first + dt_paced_place(s->remote[rank * p->experts + expert], s->first_band[at + 1] - first, band);
}

/* dedup: the early or the late bands of L1 of an expert whose last `own` rows are this rank's. Early: those without
 * rows of others, but that both together have no more tasks than all bands in one. */
DT_PHASE dt_run dt_moe_half(const dt_moe_plan *p, dt_run run, int32_t own, int early) {
  const int32_t bands = dt_bands(run.rows);
  int32_t cut = dt_bands(run.rows - own);
  if (cut % 2 != 0 && (bands - cut) % 2 != 0 && p->columns_1 % 2 != 0) cut++;
  const int32_t rows = dt_min32(run.rows, cut * DT_TILE_M);
  if (early) {
    run.row += rows;
    run.slot += cut;
    run.rows -= rows;
  } else {
    run.rows = rows;
  }
  return run;
}
DT_PHASE int32_t dt_moe_run_pieces(const dt_moe_plan *p, const dt_run *run) {
  return (run->rows + p->expand_rows - 1) / p->expand_rows;
}
DT_PHASE int32_t dt_moe_own_rows(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t expert) {
  return dt_moe_count(p, s, p->rank, p->rank * p->experts + expert);
}

/* How many runs L1 has: with dedup an expert's early and late ones count as one. All tasks of L1, and of L2. */
DT_PHASE int32_t dt_moe_l1_runs(const dt_moe_plan *p) {
  return DT_MOE_DEDUPS(p) ? p->experts : dt_moe_runs(p);
}
DT_PHASE int32_t dt_moe_l1_tasks(const dt_moe_plan *p, const dt_moe_scratch *s) {
  return s->l1[dt_moe_l1_runs(p)];
}
DT_PHASE int32_t dt_moe_l2_tasks(const dt_moe_plan *p, const dt_moe_scratch *s) {
  return s->l2[dt_moe_runs(p)];
}

/* Phase 1: combine rows of every source. */
DT_PHASE int dt_moe_sources(const dt_moe_plan *p, const dt_moe_scratch *s, const dt_team *team, const int32_t *counts) {
  const int32_t g = p->ranks * p->experts;
  int wrong = 0;
  for (int32_t r = team->warp; r < p->ranks; r += team->warps)
    wrong |= dt_warp_scan(s->combine_row + r * (g + 1), counts + r * g, g, DT_SCAN_EACH);
  return wrong;
}

/* Not natural: bands of every expert with rows of other ranks, which are its first. */
DT_PHASE void dt_moe_remotes(const dt_moe_plan *p, const dt_moe_scratch *s, const dt_team *team) {
  if (p->order == DT_ORDER_NATURAL) return;
  DT_FOR_ITEMS(i, team, p->ranks * p->experts) {
    int32_t rows = 0;
    for (int32_t source = 0; source < p->ranks; source++)
      if (source != i / p->experts) rows += dt_moe_count(p, s, source, i);
    s->remote[i] = dt_bands(rows);
  }
}
/* remote-first: experts with most of them first, ties by index: each counts those before it. */
DT_PHASE void dt_moe_sort(const dt_moe_plan *p, const dt_moe_scratch *s, const dt_team *team) {
  if (p->order != DT_ORDER_REMOTE_FIRST) return;
  DT_FOR_ITEMS(i, team, p->ranks * p->experts) {
    const int32_t e = i % p->experts, *remote = s->remote + (i - e);
    int32_t at = 0;
    for (int32_t other = 0; other < p->experts; other++)
      at += remote[other] > remote[e] || (remote[other] == remote[e] && other < e);
    s->sorted[i - e + at] = e;
  }
}

/* Tasks of an expert's run or, remote-first, runs; own expert at place `at`. all: its bands. */
DT_PHASE void dt_moe_run_sizes(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t at, const dt_run *all) {
  const int32_t halves = p->order == DT_ORDER_REMOTE_FIRST ? 2 : 1;
  for (int32_t half = 0; half < halves; half++) {
    const int32_t index = halves == 1 ? at : p->wave_experts > 0 ? 2 * at + half : half * p->experts + at;
    const dt_run run =
        halves == 1 ? *all : dt_moe_remote_half(*all, s->remote[p->rank * p->experts + all->expert], half);
    s->l2[index] = dt_run_tasks(&run, p->columns_2);
    if (!DT_MOE_DEDUPS(p)) s->l1[index] = dt_run_tasks(&run, p->columns_1);
  }
}

/* Phase 2: sizes, to be summed. */
DT_PHASE void dt_moe_sizes(const dt_moe_plan *p, const dt_moe_scratch *s, const dt_team *team) {
  const int32_t experts = p->experts, ranks = p->ranks;
  DT_FOR_ITEMS(i, team, ranks * experts) {
    const int32_t r = i / experts, at = i - r * experts, e = dt_moe_expert(p, s, r, at), g = r * experts + e;
    int32_t rows = 0;
    for (int32_t source = 0; source < ranks; source++) rows += dt_moe_count(p, s, source, g);
    s->first_row[r * (experts + 1) + e] = rows;
    s->first_band[r * (experts + 1) + e] = dt_bands(rows);
    if (r == p->rank) {
      const dt_run run = {e, 0, rows, 0, 0, 0};
      dt_moe_run_sizes(p, s, at, &run);
      if (DT_MOE_DEDUPS(p)) {
        const dt_run early = dt_moe_half(p, run, dt_moe_own_rows(p, s, e), 1);
        s->early[e] = dt_run_tasks(&early, p->columns_1);
        s->l1[e] = dt_run_tasks(&run, p->columns_1);
        s->early_piece[e] = dt_moe_run_pieces(p, &early);
        s->piece[e] = dt_moe_run_pieces(p, &run);
      }
    }
    const int32_t k = (r + ranks - 1 - p->rank) % ranks, sent = dt_moe_count(p, s, p->rank, g);
    if (!DT_MOE_DEDUPS(p))
      s->piece[at * ranks + k] = dt_moe_cells(dt_moe_rows_before(p, s, r, g, p->rank), sent, p->piece_rows);
    const int32_t mine = dt_moe_expert(p, s, p->rank, at), own = p->rank * experts + mine;
    const int32_t owned = dt_moe_count(p, s, r, own);
    s->owner_row[mine * ranks + k] = owned;
    s->put[at * ranks + k] =
        r == p->rank ? 0 : dt_moe_cells(dt_moe_rows_before(p, s, p->rank, own, r), owned, p->put_rows);
  }
}

/* Phase 3: sums, a warp each. */
DT_PHASE void dt_moe_sums(const dt_moe_plan *p, const dt_moe_scratch *s, const dt_team *team) {
  const int32_t experts = p->experts, g = p->ranks * experts;
  for (int32_t job = team->warp; job < 2 * p->ranks + (DT_MOE_DEDUPS(p) ? 7 : 5); job += team->warps) {
    int32_t *of = job < p->ranks       ? s->first_row + job * (experts + 1)
                  : job < 2 * p->ranks ? s->first_band + (job - p->ranks) * (experts + 1)
                                       : s->owner_row;
    int32_t count = experts;
    const int32_t rest = job - 2 * p->ranks;
    if (rest == 1) of = s->piece;
    if (rest == 2) of = s->put;
    if (rest == 3) of = s->l1;
    if (rest == 4) of = s->l2;
    if (DT_MOE_DEDUPS(p) && rest == 5) of = s->early;
    if (DT_MOE_DEDUPS(p) && rest == 6) of = s->early_piece;
    if (rest >= 0 && rest < 3) count = g;
    if (rest == 3) count = dt_moe_l1_runs(p);
    if (rest == 4) count = dt_moe_runs(p);
    if (rest == 1 && DT_MOE_DEDUPS(p)) count = experts;
    dt_warp_scan(of, of, count, 4);
  }
}

#endif
