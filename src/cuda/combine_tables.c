#include "combine_tables.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "tile_table.h"

int32_t dt_combine_chunk_rows(int64_t row_bytes) {
  return row_bytes >= DT_COMBINE_CHUNK_BYTES ? 1 : (int32_t)(DT_COMBINE_CHUNK_BYTES / row_bytes);
}

/* Memory rows of a group or an expert. */
static int32_t padded(const dt_plan *plan, int64_t rows) {
  return plan->config.layout == DT_LAYOUT_ALIGNED ? dt_bands((int32_t)rows) * DT_TILE_M : (int32_t)rows;
}

static void fill_targets(const dt_plan *plan, dt_combine_tables *t) {
  for (int64_t row = 0; row < plan->rows; row++) t->direct[row] = t->staged[row] = DT_COMBINE_NOWHERE;
  for (int32_t g = 0; g < plan->group_count; g++) {
    const dt_group *group = &plan->groups[g];
    const int own = group->owner == plan->config.rank;
    t->expert_rows[group->expert] += own ? (int32_t)group->rows : padded(plan, group->rows);
    if (!own) t->remote_rows[group->expert] += padded(plan, group->rows);
    for (int64_t i = 0; i < group->rows; i++) {
      const uint64_t row = (uint64_t)(group->row + i), at = (uint64_t)(group->dst_row + i);
      t->direct[row] = (uint64_t)group->owner << 32 | at;
      t->staged[row] = own ? (uint64_t)DT_COMBINE_OWN << 32 | at : (uint64_t)DT_COMBINE_STAGING << 32 | row;
    }
  }
  for (int32_t e = 0; e < plan->config.experts_per_rank; e++) t->expert_rows[e] = padded(plan, t->expert_rows[e]);
}

/* The counters come in the order of the bands. */
static void fill_bands(const dt_plan *plan, dt_combine_tables *t) {
  for (int32_t at = 0; at < plan->band_count; at++) {
    const int32_t band = plan->band_order[at];
    t->band_rows[band] = padded(plan, plan->bands[band].rows);
    t->band_slot[band] = at;
  }
}

static void fill_chunks(const dt_plan *plan, int32_t most, dt_combine_tables *t) {
  t->chunk_count = 0;
  for (int32_t s = 0; s < plan->segment_count; s++) {
    const dt_segment *segment = &plan->segments[plan->segment_order[s]];
    for (int64_t row = 0; row < segment->rows; row += most)
      t->chunks[t->chunk_count++] =
          (dt_combine_chunk){.row = (int32_t)(segment->row + row),
                             .rows = (int32_t)(segment->rows - row < most ? segment->rows - row : most),
                             .owner = segment->owner,
                             .first_band = segment->first_band,
                             .dst_row = segment->dst_row + row,
                             .bands = segment->bands};
  }
}

dt_status dt_combine_tables_create(const dt_plan *plan, int64_t row_bytes, dt_combine_tables *tables) {
  const int32_t most = dt_combine_chunk_rows(row_bytes);
  int64_t chunks = 0;
  for (int32_t s = 0; s < plan->segment_count; s++) chunks += (plan->segments[s].rows + most - 1) / most;
  if (chunks > INT32_MAX) return dt_fail(DT_ERR_CAPACITY, "counts: %lld chunks to put", (long long)chunks);
  const size_t rows = (size_t)plan->rows + 1, experts = (size_t)plan->config.experts_per_rank,
               bands = (size_t)plan->band_count + 1;
  dt_combine_tables t = {
      .expert_rows = calloc(experts, sizeof *t.expert_rows),
      .remote_rows = calloc(experts, sizeof *t.remote_rows),
      .band_rows = calloc(bands, sizeof *t.band_rows),
      .band_slot = calloc(bands, sizeof *t.band_slot),
      .staged = calloc(rows, sizeof *t.staged),
      .direct = calloc(rows, sizeof *t.direct),
      .chunks = calloc((size_t)chunks + 1, sizeof *t.chunks),
  };
  if (!t.expert_rows || !t.remote_rows || !t.band_rows || !t.band_slot || !t.staged || !t.direct || !t.chunks) {
    dt_combine_tables_destroy(&t);
    return dt_fail(DT_ERR_MEMORY, "tables: %zu rows", rows);
  }
  fill_targets(plan, &t);
  fill_bands(plan, &t);
  fill_chunks(plan, most, &t);
  *tables = t;
  return DT_OK;
}

void dt_combine_tables_destroy(dt_combine_tables *t) {
  free(t->expert_rows), free(t->remote_rows), free(t->band_rows), free(t->band_slot);
  free(t->staged), free(t->direct), free(t->chunks);
  memset(t, 0, sizeof *t);
}
