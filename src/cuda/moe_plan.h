/* A layer's plan on the device, in two kernels: count (slots of every expert, published to every rank) and table (once
 * all counts are here: where every slot, row and tile goes). Phases as in plan_warp.h; positions are closed forms of
 * the counts, so every rank and every thread computes them alone.
 *
 * Order of L1 and L2 tasks: runs, merged into groups. A run is consecutive bands of an expert: natural and paced have a
 * run an expert, remote-first one for its bands with rows of other ranks and one for the others. An L2 task i has A(i)
 * tasks of L1 before it, an L1 task m has B(m) = #{i: A(i) <= m} of L2: their places are i + A(i) and m + B(m).
 *
 * dedup: bands of this rank's rows alone need no link. Of the first `ahead` experts these early runs of L1 come first,
 * then their late runs, so that the tiles have work until other ranks' tokens are here; these experts are one group.
 * So dedup has an order of its own for L1: remote-first is that of L2 and of puts alone, where all of L1 comes before
 * L2.
 */
#ifndef DT_CUDA_MOE_PLAN_H
#define DT_CUDA_MOE_PLAN_H

#include <draintile/plan.h>

#include "cuda/moe_slots.h"
#include "cuda/tile_layer.h"
#include "cuda/tile_table.h"
#include "plan/layer_defaults.h"

typedef struct dt_moe_plan {
  int32_t ranks, rank, experts;     /* experts: per rank */
  int32_t columns_1, columns_2;     /* tiles across act and the output */
  int32_t raster_bands, piece_rows; /* piece_rows, put_rows: of a piece of the dispatch, to put; divide a band */
  int32_t put_rows;
  int32_t lead, group_tasks, wave_experts; /* lead: groups of L1 ahead of L2; DT_LAYER_LEAD_ALL */
  int32_t order;                           /* of dt_order */
  int32_t alternate, staged;     /* staged: rows of other ranks stay here (owner 1 of row_target) until they are put */
  int32_t crowded;               /* 1: other ranks on this device, whose kernels need room while this one's wait */
  int32_t tiles_only;            /* the table again, for L1 and L2 without a dispatch */
  int32_t head;                  /* 1024ths of the dispatch pieces that the dispatch kernel copies */
  int32_t put_blocks, bands_max; /* put_blocks: signal: its consumers */
  int32_t segment_bands;         /* signal: see dt_moe_put */
  int64_t rows_max;
  uint32_t timeout_us;
  int32_t *counts;                      /* [2][ranks][ranks*experts], in this rank's control window */
  int32_t *peer_counts[DT_LAYER_RANKS]; /* the same at each peer */
  dt_layer_slot *slots;
  dt_layer_slot *peer_slot[DT_LAYER_RANKS];
  dt_layer_state *state;
  uint32_t *arrivals; /* own, [2][bands_max] */
  uint32_t *act_ready, *stored;
  int32_t *band_places; /* paced: [bands_max], see dt_moe_place */
  dt_tile_task *tasks;
  dt_layer_piece *pieces, *puts;
  uint64_t *row_target;
  dt_device_slots slot;    /* of this rank's tokens */
  dt_layer_input input;    /* for the state */
  int32_t dedup;           /* 1: pieces are of this rank's own bands, in the order of L1 */
  int32_t expand_rows;     /* dedup: of a piece; divides a band */
  int32_t ahead, clusters; /* waves of early L1 tasks, a task a cluster; -1: none, 0: as many as the link takes */
  uint32_t *sources;       /* own, [2][bands_max*DT_TILE_M]: see dt_tile_layer */
  int32_t *source_base;    /* [ranks*experts]: see dt_moe_source_base */
} dt_moe_plan;
/* Kernels are of one kind or the other. */
#ifndef DT_MOE_DEDUPS
#define DT_MOE_DEDUPS(plan) ((plan)->dedup)
#endif

/* A block's shared memory. g counts ranks*experts, q = expert*ranks + k counts (expert, k-th rank after this one). */
typedef struct dt_moe_scratch {
  int32_t *combine_row;            /* [ranks][G + 1]: of source rank and expert g, the first combine row */
  int32_t *first_row, *first_band; /* [ranks][experts + 1]: at each expert's rank */
  int32_t *owner_row;              /* [G + 1]: of own experts, by q: first row of the k-th owner */
  int32_t *piece, *put;         /* [G + 1]: by q: first dispatch piece to the k-th rank, first put to the k-th owner */
  int32_t *l1, *l2;             /* [runs + 1]: first task */
  int32_t *group, *before;      /* [runs]; before: alternate's A of the run's first L2 task */
  int32_t *group_l1, *group_l2; /* [runs + 1]: tasks before each group */
  int32_t *groups;              /* [1] */
  int32_t *early;               /* [experts + 1]: early tasks of L1 before an expert; its late ones: l1 - early */
  int32_t *early_piece;         /* [experts + 1]: dedup: the same of pieces; piece: all of an expert */
  int32_t *ahead;               /* [1]: experts whose early runs come first */
  int32_t *remote;              /* not natural: [ranks][experts]: at each expert's rank, bands with others' rows */
  int32_t *sorted;              /* remote-first: [ranks][experts]: each rank's experts in their order */
} dt_moe_scratch;

/* order: of dt_order. */
static inline size_t dt_moe_scratch_words(int32_t ranks, int32_t experts, int32_t order) {
  const size_t g = (size_t)ranks * (size_t)experts + 1, e = (size_t)experts + 1;
  const size_t words = (size_t)ranks * (g + 2 * e) + 3 * g + 2 * e + 2;
  if (order == DT_ORDER_REMOTE_FIRST) return words + 2 * g + 6 * (2 * e);
  return words + 6 * e + (order == DT_ORDER_PACED ? g : 0);
}
DT_PHASE int32_t dt_moe_runs(const dt_moe_plan *p) {
  return p->order == DT_ORDER_REMOTE_FIRST ? 2 * p->experts : p->experts;
}
DT_PHASE dt_moe_scratch dt_moe_scratch_at(const dt_moe_plan *p, int32_t *memory) {
  const int32_t g = p->ranks * p->experts + 1, e = p->experts + 1, n = dt_moe_runs(p) + 1;
  dt_moe_scratch s;
  s.combine_row = memory;
  s.first_row = s.combine_row + p->ranks * g;
  s.first_band = s.first_row + p->ranks * e;
  s.owner_row = s.first_band + p->ranks * e;
  s.piece = s.owner_row + g;
  s.put = s.piece + g;
  s.l1 = s.put + g;
  s.l2 = s.l1 + n;
  s.group = s.l2 + n;
  s.before = s.group + n;
  s.group_l1 = s.before + n;
  s.group_l2 = s.group_l1 + n;
  s.groups = s.group_l2 + n;
  s.early = s.groups + 1;
  s.early_piece = s.early + e;
  s.ahead = s.early_piece + e;
  s.remote = s.ahead + 1;
  s.sorted = s.remote + g;
  return s;
}

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

/* Phase 4: experts whose early runs come first, by one thread. */
DT_PHASE void dt_moe_ahead(const dt_moe_plan *p, const dt_moe_scratch *s, const dt_team *team) {
  DT_FOR_ITEMS(i, team, 1) {
    int32_t most = 0, waves = p->ahead; /* most: tokens of any other rank */
    for (int32_t r = 0; r < p->ranks; r++)
      if (r != p->rank) most = dt_max32(most, dt_moe_combine_row(p, s, r, p->ranks * p->experts));
    most /= p->slot.top_k;
    if (waves == 0) waves = 1 + most * (p->ranks - 1) / DT_LAYER_TOKENS_A_WAVE;
    *s->ahead = 0;
    if (DT_MOE_DEDUPS(p) && most > 0 && waves > 0 && !p->tiles_only && s->early[p->experts] >= waves * p->clusters)
      *s->ahead = dt_min32(p->experts, 1 + dt_last_at_most(s->early, p->experts + 1, waves * p->clusters - 1));
  }
}

/* Phase 5: groups, by one thread for each run of the first warp; alternate's places. With dedup, `expert` is a run: its
 * order has one an expert wherever there are groups. */
DT_PHASE int32_t dt_moe_raw_group(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t expert) {
  if (DT_MOE_DEDUPS(p) && *s->ahead > 0) {
    const int32_t ahead = *s->ahead;
    if (expert < ahead) return 0;
    return 1 +
           (p->wave_experts > 0 ? (expert - ahead) / p->wave_experts : (s->l1[expert] - s->l1[ahead]) / p->group_tasks);
  }
  const int32_t halves = p->order == DT_ORDER_REMOTE_FIRST ? 2 : 1;
  return p->wave_experts > 0 ? expert / halves / p->wave_experts : s->l1[expert] / p->group_tasks;
}
/* Tasks of L1 until all of the run's are out. */
DT_PHASE int32_t dt_moe_l1_end(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t expert) {
  return s->l1[DT_MOE_DEDUPS(p) ? dt_max32(*s->ahead, expert + 1) : expert + 1];
}
DT_PHASE int32_t dt_moe_starts_group(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t expert) {
  return expert > 0 && dt_moe_raw_group(p, s, expert) != dt_moe_raw_group(p, s, expert - 1);
}
DT_PHASE void dt_moe_group_starts(const dt_moe_plan *p, const dt_moe_scratch *s, const dt_team *team) {
  if (p->lead >= DT_LAYER_LEAD_ALL) return;
  DT_FOR_ITEMS(e, team, dt_moe_runs(p)) {
    s->group[e] = dt_moe_starts_group(p, s, e);
    s->before[e] = dt_moe_l1_end(p, s, e) - s->l2[e];
  }
}
DT_PHASE void dt_moe_group_sums(const dt_moe_plan *p, const dt_moe_scratch *s, const dt_team *team) {
  if (p->lead >= DT_LAYER_LEAD_ALL) return;
  if (team->warp == 0) dt_warp_scan(s->group, s->group, dt_moe_runs(p), 4);    /* exclusive: without its own start */
  if (team->warp == 1 % team->warps) dt_warp_peaks(s->before, dt_moe_runs(p)); /* likewise */
}
DT_PHASE void dt_moe_groups(const dt_moe_plan *p, const dt_moe_scratch *s, const dt_team *team) {
  if (p->lead >= DT_LAYER_LEAD_ALL) return;
  const int32_t last = s->group[dt_moe_runs(p)]; /* number of the last group */
  DT_FOR_ITEMS(e, team, dt_moe_runs(p)) {
    const int32_t starts = dt_moe_starts_group(p, s, e);
    if (e == 0 || starts) {
      const int32_t group = e == 0 ? 0 : s->group[e] + 1;
      s->group_l1[group] = s->l1[e];
      s->group_l2[group] = s->l2[e];
    }
    if (e == 0) {
      s->group_l1[last + 1] = dt_moe_l1_tasks(p, s);
      s->group_l2[last + 1] = dt_moe_l2_tasks(p, s);
      *s->groups = last + 1;
    }
  }
}

DT_PHASE int32_t dt_moe_group_of(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t expert) {
  return s->group[expert] + dt_moe_starts_group(p, s, expert);
}
/* alternate: A of the first L2 task of an expert. */
DT_PHASE int32_t dt_moe_alternate_first(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t expert) {
  const int32_t warm = s->group_l1[dt_min32(p->lead, *s->groups)];
  const int32_t need = dt_max32(s->before[expert], dt_moe_l1_end(p, s, expert) - s->l2[expert]);
  return s->l2[expert] + dt_max32(warm, need);
}
/* A: L1 tasks before L2 task `task` of `expert`. */
DT_PHASE int32_t dt_moe_l1_before(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t expert, int32_t task) {
  const int32_t all = dt_moe_l1_tasks(p, s);
  if (p->lead >= DT_LAYER_LEAD_ALL) return all;
  if (p->alternate) return dt_min32(all, dt_moe_alternate_first(p, s, expert) + task - s->l2[expert]);
  return s->group_l1[dt_min32(*s->groups, dt_moe_group_of(p, s, expert) + p->lead + 1)];
}
/* B: L2 tasks before L1 task `task` of `expert`. */
DT_PHASE int32_t dt_moe_l2_before(const dt_moe_plan *p, const dt_moe_scratch *s, int32_t expert, int32_t task) {
  if (p->lead >= DT_LAYER_LEAD_ALL) return 0;
  if (!p->alternate) return s->group_l2[dt_max32(0, dt_moe_group_of(p, s, expert) - p->lead)];
  int32_t low = -1, high = dt_moe_runs(p); /* the last run whose first L2 task comes before */
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (dt_moe_alternate_first(p, s, middle) <= task)
      low = middle;
    else
      high = middle;
  }
  if (low < 0) return 0;
  return dt_min32(s->l2[low + 1], s->l2[low] + task - dt_moe_alternate_first(p, s, low) + 1);
}

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

#ifdef __cplusplus
extern "C" {
#endif
/* Counts, publishes; then the table. Both may start while the kernel before them ends. */
cudaError_t dt_moe_plan_prepare(int shared_bytes);
cudaError_t dt_moe_count_launch(const dt_moe_plan *plan, cudaStream_t stream);
cudaError_t dt_moe_table_launch(const dt_moe_plan *plan, int blocks, cudaStream_t stream);
/* Parts of the others, of the table kernel with dedup. */
cudaError_t dt_moe_plan_dedup_prepare(int shared_bytes);
cudaError_t dt_moe_table_dedup_launch(const dt_moe_plan *plan, int blocks, cudaStream_t stream);
#ifdef __cplusplus
}
#endif

#endif
