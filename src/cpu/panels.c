/* Rows and weights as float32. Float32 that lies in one piece is used there; the rest is widened once and kept while
 * consecutive tasks of this worker need it: the raster order of a unit makes that the common case. Rows of this rank's
 * own tokens come straight from the input: nothing dispatches them. */
#include "cpu/executor.h"

#include <stdlib.h>

#include "core/error.h"
#include "cpu/kernels.h"

/* Bytes of bands a worker keeps at most. */
static const int64_t A_BUDGET_BYTES = 16 << 20;

static int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

typedef struct sizes {
  size_t a, b[3], tile, rounded, shared_act, row_block;
} sizes;

static sizes panel_sizes(const dt_moe *moe) {
  int64_t m = moe->config.tile_m, n = moe->config.tile_n, h = moe->hidden;
  int64_t tile_rows = larger(m, DT_BLOCK_TOKENS);
  return (sizes){
      .a = (size_t)(m * h) * sizeof(float),
      .b = {(size_t)(n * h) * sizeof(float), (size_t)(n * h) * sizeof(float),
            (size_t)(n * larger(moe->intermediate, moe->weights->shared_intermediate)) * sizeof(float)},
      .tile = (size_t)(tile_rows * n) * sizeof(float),
      .rounded = (size_t)(m * n) * moe->element,
      .shared_act = (size_t)(DT_BLOCK_TOKENS * moe->weights->shared_intermediate) * sizeof(float),
      .row_block = (size_t)(DT_BLOCK_TOKENS * h) * sizeof(float),
  };
}

int32_t dt_panels_kept(int32_t tile_m, int64_t hidden) {
  int64_t panels = A_BUDGET_BYTES / (tile_m * hidden * (int64_t)sizeof(float));
  return (int32_t)(panels < 1 ? 1 : panels > DT_A_PANELS ? DT_A_PANELS : panels);
}

dt_status dt_panels_create(dt_thread *thread) {
  const sizes s = panel_sizes(thread->moe);
  bool ok = true;
  thread->a_count = dt_panels_kept(thread->moe->config.tile_m, thread->moe->hidden);
  for (int32_t i = 0; i < thread->a_count; i++) ok &= (thread->a[i].rows = dt_pages_alloc(s.a)) != NULL;
  for (int i = 0; i < 3; i++) ok &= (thread->b[i].rows = dt_pages_alloc(s.b[i])) != NULL;
  ok &= (thread->gate = dt_pages_alloc(s.tile)) != NULL;
  ok &= (thread->up = dt_pages_alloc(s.tile)) != NULL;
  ok &= (thread->rounded = dt_pages_alloc(s.rounded)) != NULL;
  ok &= (thread->shared_act = dt_pages_alloc(s.shared_act)) != NULL;
  ok &= (thread->row_block = dt_pages_alloc(s.row_block)) != NULL;
  dt_panels_reset(thread);
  return ok ? DT_OK : dt_fail(DT_ERR_MEMORY, "workers: out of memory for the panels of worker %d", thread->track);
}

void dt_panels_destroy(dt_thread *thread) {
  if (thread->consumer || !thread->moe) return; /* not even begun */
  const sizes s = panel_sizes(thread->moe);
  for (int32_t i = 0; i < thread->a_count; i++) dt_pages_free(thread->a[i].rows, s.a);
  for (int i = 0; i < 3; i++) dt_pages_free(thread->b[i].rows, s.b[i]);
  dt_pages_free(thread->gate, s.tile);
  dt_pages_free(thread->up, s.tile);
  dt_pages_free(thread->rounded, s.rounded);
  dt_pages_free(thread->shared_act, s.shared_act);
  dt_pages_free(thread->row_block, s.row_block);
}

void dt_panels_reset(dt_thread *thread) {
  for (int32_t i = 0; i < thread->a_count; i++) thread->a[i].band = -1;
}

static const unsigned char *dispatched_row(const dt_moe *moe, int64_t row) {
  return (const unsigned char *)dt_window_local(moe->dispatch) + (size_t)row * moe->row_bytes;
}

static void fill_panel(const dt_moe *moe, const dt_band *band, float *rows) {
  const unsigned char *hidden = moe->input->hidden;
  for (int32_t i = 0; i < band->parts; i++) {
    const dt_part *part = &moe->plan->parts[band->first_part + i];
    float *to = rows + (part->row - band->row) * moe->hidden;
    if (part->owner != moe->rank) {
      dt_widen_row(moe->config.dtype, dispatched_row(moe, part->row), part->rows * moe->hidden, to);
      continue;
    }
    for (int32_t j = 0; j < part->rows; j++) {
      size_t token = (size_t)moe->token_of_row[part->dst_row + j];
      dt_widen_row(moe->config.dtype, hidden + token * moe->row_bytes, moe->hidden, to + j * moe->hidden);
    }
  }
}

const float *dt_panel_a(dt_thread *thread, const dt_band *band, int32_t index, int64_t *stride) {
  const dt_moe *moe = thread->moe;
  *stride = moe->hidden;
  if (moe->config.dtype == DT_DTYPE_F32 && band->remote_rows == band->rows)
    return (const float *)(const void *)dispatched_row(moe, band->row);
  for (int32_t i = 0; i < thread->a_count; i++) {
    if (thread->a[i].band == index) return thread->a[i].rows;
  }
  dt_a_panel *panel = &thread->a[thread->a_next];
  thread->a_next = (thread->a_next + 1) % thread->a_count;
  panel->band = index;
  fill_panel(moe, band, panel->rows);
  return panel->rows;
}

const float *dt_panel_b(dt_thread *thread, int slot, const dt_matrix *matrix, int64_t first, int64_t count,
                        int64_t *stride) {
  const float *in_place = dt_matrix_f32(matrix, first, stride);
  if (in_place) return in_place;
  dt_b_panel *panel = &thread->b[slot];
  *stride = matrix->cols;
  if (panel->matrix == matrix && panel->first == first && panel->count == count) return panel->rows;
  dt_matrix_widen(matrix, first, count, panel->rows);
  panel->matrix = matrix;
  panel->first = first;
  panel->count = count;
  return panel->rows;
}
