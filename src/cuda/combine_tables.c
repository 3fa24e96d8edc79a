#include "combine_tables.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

static int32_t rows_of_chunk(int64_t row_bytes) {
  return row_bytes >= DT_COMBINE_CHUNK_BYTES ? 1 : (int32_t)(DT_COMBINE_CHUNK_BYTES / row_bytes);
}

static void fill_targets(const dt_plan *plan, dt_combine_tables *t) {
  for (int32_t g = 0; g < plan->group_count; g++) {
    const dt_group *group = &plan->groups[g];
    t->expert_rows[group->expert] += (int32_t)group->rows;
    for (int64_t i = 0; i < group->rows; i++) {
      const uint64_t row = (uint64_t)(group->row + i), at = (uint64_t)(group->dst_row + i);
      t->direct[row] = (uint64_t)group->owner << 32 | at;
      t->staged[row] = group->owner == plan->config.rank ? (uint64_t)DT_COMBINE_OWN << 32 | at
                                                         : (uint64_t)DT_COMBINE_STAGING << 32 | row;
    }
  }
  for (int32_t b = 0; b < plan->band_count; b++) t->band_rows[b] = plan->bands[b].rows;
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
  const int32_t most = rows_of_chunk(row_bytes);
  int64_t chunks = 0;
  for (int32_t s = 0; s < plan->segment_count; s++) chunks += (plan->segments[s].rows + most - 1) / most;
  if (chunks > INT32_MAX) return dt_fail(DT_ERR_CAPACITY, "counts: %lld chunks to put", (long long)chunks);
  const size_t rows = (size_t)plan->rows + 1;
  dt_combine_tables t = {
      .expert_rows = calloc((size_t)plan->config.experts_per_rank, sizeof *t.expert_rows),
      .band_rows = calloc((size_t)plan->band_count + 1, sizeof *t.band_rows),
      .staged = calloc(rows, sizeof *t.staged),
      .direct = calloc(rows, sizeof *t.direct),
      .chunks = calloc((size_t)chunks + 1, sizeof *t.chunks),
  };
  if (!t.expert_rows || !t.band_rows || !t.staged || !t.direct || !t.chunks) {
    dt_combine_tables_destroy(&t);
    return dt_fail(DT_ERR_MEMORY, "tables: %zu rows", rows);
  }
  fill_targets(plan, &t);
  fill_chunks(plan, most, &t);
  *tables = t;
  return DT_OK;
}

void dt_combine_tables_destroy(dt_combine_tables *t) {
  free(t->expert_rows), free(t->band_rows), free(t->staged), free(t->direct), free(t->chunks);
  memset(t, 0, sizeof *t);
}
