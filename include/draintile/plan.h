/* From routing to a table of tasks: counts, layout, bands, segments, orders, schedules.
 *
 * Definitions (docs/plan.md has pictures). W ranks, E experts a rank; global expert g = r*E + e lives on rank r.
 * counts[s*W*E + g] is the number of slots of source rank s that go to global expert g; a slot is one (token, choice)
 * pair, ordered by token, then choice. Everything here is a pure function of counts and configuration: each side of a
 * transfer computes the same positions without being told. No I/O, no clock, no global state.
 */
#ifndef DRAINTILE_PLAN_H
#define DRAINTILE_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/status.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* packed: no padding; tiles count from an expert's first row and may hold rows of several owners.
 * aligned: every remote (expert, owner) group and every expert padded to a multiple of tile_m (arXiv 2607.19539). */
typedef enum dt_layout { DT_LAYOUT_PACKED = 0, DT_LAYOUT_ALIGNED = 1 } dt_layout;

/* natural: experts, bands ascending. remote-first: bands with remote rows of all experts first, experts by number of
 * such bands descending. paced: remote and local bands of an expert spread evenly. */
typedef enum dt_order { DT_ORDER_NATURAL = 0, DT_ORDER_REMOTE_FIRST = 1, DT_ORDER_PACED = 2 } dt_order;

typedef enum dt_schedule {
  DT_SCHEDULE_SERIAL = 0,     /* dispatch, L1, L2, combine, one after the other */
  DT_SCHEDULE_SIGNAL = 1,     /* L1 then L2; consumers send segments as their tiles finish (2607.19539) */
  DT_SCHEDULE_DIRECT = 2,     /* L1 then L2; L2 stores each row to its owner */
  DT_SCHEDULE_WAVE = 3,       /* per group (or n experts): L1 then L2, direct stores (2607.23264 baseline) */
  DT_SCHEDULE_INTERLEAVE = 4, /* L1 of group i+lead before L2 of group i, direct stores (2607.23264 Algorithm 1) */
  DT_SCHEDULE_ALTERNATE = 5   /* L2 and L1 tasks one for one after a warm-up of `lead` groups, direct stores */
} dt_schedule;

/* Names as the command writes them ("packed", "remote-first", "interleave", ...). The *_parse calls set *out and
 * return DT_OK, or DT_ERR_ARGUMENT with the allowed names in the detail. */
const char *dt_layout_name(dt_layout layout);
const char *dt_order_name(dt_order order);
const char *dt_schedule_name(dt_schedule schedule);
dt_status dt_layout_parse(const char *text, dt_layout *out);
dt_status dt_order_parse(const char *text, dt_order *out);
dt_status dt_schedule_parse(const char *text, dt_schedule *out);
/* The order a schedule uses unless told otherwise: remote-first for signal, paced for the direct-store schedules,
 * natural for serial. */
dt_order dt_schedule_default_order(dt_schedule schedule);

typedef struct dt_plan_config {
  size_t size; /* sizeof(dt_plan_config), set by dt_plan_config_init */
  int32_t ranks, experts_per_rank, rank;
  int32_t tile_m; /* rows of a band */
  dt_layout layout;
  dt_order order;
  int32_t segment_bands; /* interior bands of a group that travel together (the paper's mgb) */
  dt_schedule schedule;
  int32_t columns_1, columns_2; /* tiles across L1's (gate, up) and L2's output */
  int32_t raster_bands;         /* bands of a unit at most */
  int32_t lead;                 /* groups of L1 ahead of L2: interleave, alternate */
  int32_t wave_experts;         /* wave only: experts a wave; 0: by group_tasks */
  int32_t group_tasks;          /* L1 tasks a group holds at least */
  int32_t dispatch;             /* 1: the table holds D tasks (before all else) */
  int32_t shared_blocks;        /* shared-expert tasks (token blocks), after D */
  int32_t reduce_blocks;        /* R tasks (token blocks), last */
} dt_plan_config;
void dt_plan_config_init(dt_plan_config *config);

/* Rows of one owner for one expert at the expert's rank: one contiguous run there and one in the owner's combine
 * buffer. `expert` is local, rows are counted without padding. */
typedef struct dt_group {
  int32_t expert, owner;
  int64_t row, rows; /* in the expert rank's row space */
  int64_t dst_row;   /* first row in the owner's combine buffer: O[owner][g] */
} dt_group;

/* The share of a band that belongs to one owner. */
typedef struct dt_part {
  int32_t owner, rows;
  int64_t row, dst_row;
} dt_part;

/* tile_m consecutive rows of an expert (the last may be short). parts[first_part .. first_part + parts). */
typedef struct dt_band {
  int32_t expert, rows, remote_rows; /* valid rows, and those of other ranks */
  int32_t first_part, parts;
  int64_t row;
} dt_band;

/* What one transfer of `signal` moves: rows of one remote group in consecutive bands. Ready when all tiles of its
 * bands are done. */
typedef struct dt_segment {
  int32_t expert, owner;
  int64_t row, rows, dst_row;
  int32_t first_band, bands;
} dt_segment;

/* One D task: the rows that this rank sends to `peer` for one band of the peer. The source rows are this rank's
 * combine rows [src_row, src_row + rows): dt_slots maps them to tokens. `row` is in the peer's row space, `band` an
 * index into the peer's bands (and arrival counters). */
typedef struct dt_dispatch {
  int32_t peer, band, rows;
  int64_t row, src_row;
} dt_dispatch;

typedef enum dt_phase {
  DT_PHASE_DISPATCH = 0, /* index: into dispatch[] */
  DT_PHASE_L1 = 1,       /* index: band; gate, up, SwiGLU */
  DT_PHASE_L2 = 2,       /* index: band; down */
  DT_PHASE_REDUCE = 3,   /* index: token block */
  DT_PHASE_SHARED = 4,   /* index: token block; the shared experts of own tokens */
  DT_PHASE_SEGMENT = 5   /* index: into segments[]; never in the table, consumers take them by segment_order */
} dt_phase;
const char *dt_phase_name(dt_phase phase);

/* What a task waits for follows from its phase: L1 for the rows of its band (arrival counter = rows), L2 for all
 * columns_1 L1 tiles of its band, R for every peer its tokens use and for this rank's own L2 tiles. */
typedef struct dt_task {
  int32_t phase, index, column;
} dt_task;

/* All arrays belong to the plan. Only what the configuration asks for is filled: with columns_1 or columns_2 = 0 there
 * are no L1 and L2 tasks, with dispatch = 0 neither D tasks nor dispatch[]. */
typedef struct dt_plan {
  dt_plan_config config;
  int64_t rows, padded_rows; /* memory rows, padding included; the padding alone */
  int64_t combine_rows;      /* rows of this rank's own combine buffer */
  int32_t group_count, band_count, part_count, segment_count, dispatch_count;
  int64_t task_count, dispatch_tasks; /* tasks[0 .. dispatch_tasks) are D */
  const dt_group *groups;
  const dt_band *bands;
  const dt_part *parts;
  const dt_segment *segments;
  const int32_t *band_order, *segment_order; /* permutations */
  const dt_dispatch *dispatch;               /* local rows first, then peers by their own band order */
  const dt_task *tasks;
  void *storage; /* one block, released by dt_plan_destroy */
} dt_plan;

/* Builds the plan of config->rank. counts is [ranks][ranks*experts_per_rank], int32, each >= 0.
 * DT_ERR_ARGUMENT names the field that is out of range; DT_ERR_MEMORY. Sets *plan only on success. */
dt_status dt_plan_create(const dt_plan_config *config, const int32_t *counts, dt_plan **plan);
void dt_plan_destroy(dt_plan *plan);

/* The checker of docs/plan.md: groups and bands disjoint and covering, segments cover exactly the remote rows, orders
 * are permutations, every task once, every wait points backwards. DT_ERR_INTERNAL names the first broken rule. */
dt_status dt_plan_check(const dt_plan *plan, const int32_t *counts);

/* Contiguous token blocks: sizes differ by at most one, larger first. */
void dt_token_block(int64_t tokens, int32_t ranks, int32_t rank, int64_t *first, int64_t *count);

/* Where this rank's slots go. Arrays are the caller's: ids [tokens*top_k] in [0, experts) or -1 (dropped),
 * row_of_slot [tokens*top_k] (combine row, -1 if dropped), slot_of_row [tokens*top_k] (first combine_rows used),
 * counts [experts] (this rank's row of the matrix). DT_ERR_INPUT names the slot whose id is out of range. */
dt_status dt_slots(const int32_t *ids, int64_t tokens, int32_t top_k, int32_t experts, int32_t *counts,
                   int32_t *row_of_slot, int32_t *slot_of_row);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
