/* What a layer on GPUs does where its configuration has 0: the layer (draintile/cuda_moe.h), host and device, and its
 * price (draintile/simulate.h) ask here. Measured: docs/notes/moe.md. */
#ifndef DT_PLAN_LAYER_DEFAULTS_H
#define DT_PLAN_LAYER_DEFAULTS_H

#include <stdint.h>

#include <draintile/plan.h>

enum {
  DT_LAYER_SEND_SMS = 32,     /* dedup: multiprocessors of the dispatch kernel */
  DT_LAYER_HEAD_DEDUP = 32,   /* 1024ths of the copies that it makes */
  DT_LAYER_EARLY_PIECES = 64, /* of dispatch, that leave while the table is made, */
  DT_LAYER_EARLY_SHARE = 2,   /* and at most one in so many: dt_layer_early_pieces */
  /* With dedup so many tokens and a quarter of all do, if of a rank's rows at most one in so many stays there. */
  DT_LAYER_EARLY_TOKENS = 256,
  DT_LAYER_EARLY_STAY = 8,
  DT_LAYER_CONSUMERS = 16,
  DT_LAYER_LEAD_ALL = 1 << 28, /* all of L1 before L2 */
  /* Tokens that cross to one rank while every cluster does an L1 tile: a tile takes 2*128*256*hidden operations, a
   * token 2*hidden bytes, at 740 TFLOP/s of 132 multiprocessors and 350 GB/s. */
  DT_LAYER_TOKENS_A_WAVE = 2048
};

/* signal's: a quarter of few multiprocessors, rather than so many that little is left for tiles. */
static inline int32_t dt_layer_consumers(dt_schedule schedule, int32_t consumers, int32_t sms) {
  const int32_t most = sms / 8 * 2; /* clusters of two */
  if (schedule != DT_SCHEDULE_SIGNAL) return 0;
  if (consumers) return consumers;
  return DT_LAYER_CONSUMERS < most ? DT_LAYER_CONSUMERS : most < 2 ? 2 : most;
}

/* Rows of a piece of dispatch, or with dedup of a copy from staging: a lane each, fewer where they are too long. */
enum { DT_LAYER_PIECE_BYTES = 80 * 1024, DT_LAYER_EXPAND_BYTES = 40 * 1024 };
static inline int32_t dt_layer_piece_rows(int64_t hidden, int64_t most_bytes) {
  int32_t rows = 32;
  while (rows > 2 && rows * 2 * hidden > most_bytes) rows /= 2;
  return rows;
}

/* How many of the pieces of a dispatch without dedup leave while the table is made (src/cuda/moe_places.h). Half of
 * few: all would keep the table's kernel, and every tile with it. */
static inline int32_t dt_layer_early_pieces(int32_t pieces) {
  const int32_t most = pieces / DT_LAYER_EARLY_SHARE;
  return most < DT_LAYER_EARLY_PIECES ? most : DT_LAYER_EARLY_PIECES;
}

typedef struct dt_layer_grouping {
  int32_t raster_bands, segment_bands, group_tasks, lead, wave_experts;
} dt_layer_grouping;

/* clusters: that run tiles; a wave is a task of each. signal: units of few bands are complete, and can be put, a few at
 * a time. */
static inline dt_layer_grouping dt_layer_group(dt_schedule schedule, dt_layer_grouping given, int32_t clusters) {
  const int signal = schedule == DT_SCHEDULE_SIGNAL, wave = schedule == DT_SCHEDULE_WAVE;
  dt_layer_grouping full = given;
  if (full.raster_bands == 0) full.raster_bands = signal ? 4 : 16;
  if (full.segment_bands == 0) full.segment_bands = 1;
  if (full.group_tasks == 0) full.group_tasks = (wave ? 6 : 2) * clusters;
  if (full.lead == 0) full.lead = 1;
  if (wave) full.lead = 0;
  if (signal || schedule == DT_SCHEDULE_SERIAL || schedule == DT_SCHEDULE_DIRECT) full.lead = DT_LAYER_LEAD_ALL;
  if (!wave) full.wave_experts = 0;
  return full;
}

#endif
