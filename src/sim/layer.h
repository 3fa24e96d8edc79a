/* A MoE layer on GPUs, simulated as it is launched: what the files layer_*.c share. A worker is a cluster of two
 * multiprocessors, the table is the device's. docs/model.md says what is mirrored. */
#ifndef DT_SIM_LAYER_H
#define DT_SIM_LAYER_H

#include <draintile/simulate.h>

#include "plan/layer_defaults.h"

enum {
  LAYER_STAGE = 64, /* of K */
  LAYER_BAND = 128,
  LAYER_SHORT = 64,
  LAYER_COLUMN_1 = 128,
  LAYER_COLUMN_2 = 256,
  LAYER_USERS = 16
};

/* A cluster's task: two bands at one column, or one band at two (column[1] -1: only one is left). */
typedef struct layer_task {
  int32_t expert, l1, pair;
  int32_t band[2], rows[2], column[2];
} layer_task;

typedef struct layer_table {
  layer_task *tasks;
  int32_t count, bands;
  int32_t ahead;       /* dedup: experts whose early runs of L1 come first */
  int32_t *band_rows;  /* [bands] */
  int32_t *first_band; /* [experts + 1] */
  int32_t *remote;     /* [experts]: bands with rows of other ranks, the first ones */
  int32_t *sorted;     /* [experts]: experts in their order */
  int32_t *entry;      /* [bands]: an expert's bands in their order, from 0 */
} layer_table;

/* Rows of one expert and source in one band of `peer`, copied by one warp, or by all before the tiles. */
typedef struct layer_piece {
  int32_t rows, peer, band;
  double ready; /* dedup: when its last token is here */
} layer_piece;

/* What the cache may still hold: the rank's memory traffic when it was read from the first byte to the last, and the
 * clusters that read it now. */
typedef struct layer_panel {
  double first, last;
  int32_t seen, users;
  int32_t user[LAYER_USERS];
} layer_panel;

typedef enum layer_state { LAYER_IDLE, LAYER_WAITING, LAYER_RUNNING, LAYER_DONE } layer_state;

typedef struct layer_cluster {
  layer_state state;
  int32_t drawn[3], drawn_count; /* tickets held, the next first */
  int32_t task;                  /* running, or run last; -1: none */
  int32_t unreleased;            /* an L1 task whose stores leave during this one; -1: none */
  int32_t unstored;              /* the task whose writes reach memory during this one; -1: none */
  double done;                   /* share of the task */
  int32_t alone;                 /* one short band at two columns */
  double time_s;                 /* that it takes when nothing holds it up */
  double floor_s;                /* at the highest clock */
  double latency_s;              /* of its stages, if all its weights come from memory */
  double least_s;                /* with that, when nothing else holds it up */
  double luck;                   /* of its share of memory's rate */
  double rows_bytes, bytes;      /* from memory: of rows and stores; with weights, as it stands now */
  double rate;                   /* shares a second */
  double accepted;               /* not over before the link has taken the last tile's rows */
  double began;                  /* memory traffic of the rank then */
  int32_t panels, panel[2];
  double panel_bytes[2];
} layer_cluster;

/* Bytes on their way into a link: of a cluster's tile, or (cluster -1) of a piece: rows up to `copied`. */
typedef struct layer_flow {
  double end;  /* accepted when so much was served of each weight */
  double done; /* the copy is, at the earliest */
  double weight;
  int32_t cluster, piece, copied;
} layer_flow;

typedef struct layer_link {
  double empty;                             /* when it will have sent all it was given */
  double served, updated;                   /* bytes of each weight, until when */
  double weight;                            /* of all that wait */
  layer_flow *flows;                        /* a heap by end */
  int32_t waiting, copies, room, schedules; /* copies: of those that wait */
} layer_link;

typedef struct layer_rank {
  layer_table table;
  int32_t next_task;
  layer_cluster *cluster;
  int32_t *arrived, *released; /* [bands] rows; L1 columns */
  layer_panel *weights[2];     /* of L2, of L1: [experts][columns] */
  layer_panel *rows[2];        /* act, expert rows: [bands] */
  double traffic, updated;     /* bytes that memory moved, until when */
  double load, busy;           /* of its rate, by tiles; of the clusters, those with a tile */
  layer_link link;
  layer_piece *pieces;
  int32_t piece_count, next_piece, started;
  int32_t copying;     /* warps beside the tiles */
  double sent;         /* when this rank's rows are at their owners */
  double *stored;      /* [bands]; signal: when all of L2's tiles until now are stored */
  double energy;       /* seconds of all multiprocessors at the full rate */
  double early, delay; /* dedup: share of what it sends that leaves while the table is made; by what that keeps tiles */
} layer_rank;

typedef enum layer_event_kind {
  LAYER_START,
  LAYER_ARRIVED,
  LAYER_COPIED,
  LAYER_RELEASED,
  LAYER_ACCEPTED
} layer_event_kind;
/* index and rows: START: clusters from, to; ARRIVED: band, rows; COPIED: piece, rows so far; RELEASED: task, who
 * stored it before its next task; ACCEPTED: number. */
typedef struct layer_event {
  double at;
  uint64_t order;
  layer_event_kind kind;
  int32_t rank, index, rows;
} layer_event;

typedef enum layer_kind { LAYER_TASK, LAYER_SHARE, LAYER_CLUSTER, LAYER_COPY } layer_kind; /* that chance is of */

typedef struct layer_world {
  const dt_layer_model *model;
  const dt_layer_costs *costs;
  dt_layer_order order;
  int32_t in_place; /* L1 and L2 only: rows are there, */
  int32_t alone;    /* and those of L2 stay */
  double clock;     /* tiles take so many times tile_s */
  uint32_t chance;  /* which of the tiles' small differences */
  int32_t clusters, experts, columns_1, columns_2, piece_rows;
  int32_t *order_of_draws; /* [clusters] */
  layer_rank *rank;
  double now, dispatched; /* when the slowest rank's dispatch kernel is over */
  layer_event *events;
  int32_t event_count, event_room;
  uint64_t event_order;
  int32_t no_memory;
} layer_world;

/* layer_tasks.c */
dt_status layer_table_create(const layer_world *world, int32_t rank, layer_table *table);
void layer_table_release(layer_table *table);
/* The early or the late bands of L1 of an expert. */
void layer_half(const layer_world *world, int32_t rank, int32_t expert, int32_t early, int32_t *first_band,
                int32_t *rows);

/* layer_events.c */
void layer_push(layer_world *world, layer_event event);
int layer_pop(layer_world *world, double before, layer_event *event); /* 0: none until then */

/* layer_dedup.c */
dt_status layer_dedup_create(layer_world *world, int32_t rank);
dt_status layer_dedup_start(layer_world *world, int32_t rank);
void layer_expand_next(layer_world *world, int32_t rank); /* a warp beside the tiles */

/* layer_dispatch.c */
int layer_add_piece(layer_rank *rank, int32_t *room, layer_piece piece);
dt_status layer_dispatch_create(layer_world *world, int32_t rank);
void layer_dispatch_start(layer_world *world, int32_t rank);                         /* the kernel before the tiles */
void layer_copy_next(layer_world *world, int32_t rank, int32_t piece, int32_t rows); /* a warp beside them */
/* Rows of a piece have left, or are there: the warp goes on at `done`. */
void layer_copied(layer_world *world, int32_t rank, const layer_flow *flow, double done, double visible);

/* layer_link.c */
double layer_fill(const layer_world *world, const layer_link *link); /* share of its capacity */
void layer_send(layer_world *world, int32_t rank, layer_flow flow, double bytes);
void layer_accept(layer_world *world, int32_t rank, int32_t number); /* ACCEPTED */

/* layer_signal.c */
int32_t layer_consumers(const dt_layer_order *order, int32_t sms); /* multiprocessors of them */
double layer_signal_end(const layer_world *world, int32_t rank);   /* when all that they put is at its owners */

/* layer_memory.c */
void layer_advance(layer_world *world, layer_rank *rank); /* to world->now */
void layer_rates(layer_world *world, layer_rank *rank);
double layer_read_rows(const layer_world *world, layer_rank *rank, layer_panel *rows, double bytes);

/* layer_cluster.c; chance: from -1 to 1, of a thing of a rank; 0 where none is drawn */
double layer_chance(const layer_world *world, int32_t rank, layer_kind kind, int32_t index);
void layer_start_tiles(layer_world *world, int32_t rank, int32_t first, int32_t end); /* clusters */
void layer_wake(layer_world *world, layer_rank *rank);
void layer_finish(layer_world *world, int32_t rank, int32_t cluster);
void layer_release(layer_world *world, layer_rank *rank, int32_t task, int32_t storer);

/* Tokens cross once, and ranks copy their rows themselves. */
static inline int layer_dedups(const layer_world *world) {
  return world->model->dedup && !world->in_place;
}
/* The first copies, which the dispatch kernel makes, of `pieces`. */
static inline int32_t layer_head(const layer_world *world, int32_t pieces) {
  const int32_t given = world->model->head, before = world->model->short_bands_alone;
  const int32_t layers = world->model->dedup ? (before ? 384 : DT_LAYER_HEAD_DEDUP) : (before ? 256 : 0);
  const int32_t head = world->order.schedule == DT_SCHEDULE_SERIAL ? 1024 : given ? given : layers;
  return head < 0 ? 0 : (int32_t)(((int64_t)pieces * head + 1023) / 1024);
}
/* Of numbers; fmax and fmin are calls, which take a tenth of a simulation. */
static inline double layer_more(double a, double b) {
  return a > b ? a : b;
}
static inline double layer_less(double a, double b) {
  return a < b ? a : b;
}
static inline int32_t layer_divide_up(int64_t a, int64_t b) {
  return (int32_t)((a + b - 1) / b);
}
static inline int32_t layer_count(const layer_world *world, int32_t source, int32_t peer, int32_t expert) {
  return world->model->counts[((int64_t)source * world->model->ranks + peer) * world->experts + expert];
}

#endif
