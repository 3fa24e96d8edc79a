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
  uint32_t *arrivals[DT_LAYER_RANKS]; /* as in dt_tile_layer, and so are rows_of, staging_of, tokens_max, row_bytes */
  uint32_t *act_ready, *stored;
  int32_t *band_places; /* paced: [bands_max], see dt_moe_place */
  dt_tile_task *tasks;
  dt_layer_piece *pieces, *puts;
  uint64_t *row_target;
  dt_device_slots slot; /* of this rank's tokens */
  dt_layer_input input; /* for the state */
  int32_t dedup;        /* 1: pieces are of this rank's own bands, in the order of L1 */
  int32_t expand_rows;  /* dedup: of a piece; divides a band */
  int32_t early_blocks; /* of the table's kernel, that dispatch while it is made (layer_early.cuh) */
  int32_t early_share;  /* of the dispatch pieces at most one in so many leaves early */
  uint8_t *rows_of[DT_LAYER_RANKS], *staging_of[DT_LAYER_RANKS];
  int64_t tokens_max, row_bytes;
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
DT_PHASE size_t dt_moe_scratch_words(int32_t ranks, int32_t experts, int32_t order) {
  const size_t g = (size_t)ranks * (size_t)experts + 1, e = (size_t)experts + 1;
  const size_t words = (size_t)ranks * (g + 2 * e) + 3 * g + 2 * e + 2;
  if (order == DT_ORDER_REMOTE_FIRST) return words + 2 * g + 6 * (2 * e);
  return words + 6 * e + (order == DT_ORDER_PACED ? g : 0);
}
/* Room for a piece that leaves early, behind the scratch. */
static inline size_t dt_moe_early_bytes(const dt_moe_plan *p) {
  return p->dedup ? 0 : 256 + (size_t)p->piece_rows * (size_t)p->row_bytes;
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
