/* What one ticket holds: a task, or tiles of one column that a worker may hand to the BLAS library in one call.
 *
 * The library packs both operands at every call, and the packing of the weights is what a call of few rows spends its
 * time on: a call of four bands packs them once. So a ticket takes up to call_bands consecutive tiles of one column and
 * one expert, and the worker joins those that are full, adjacent and ready. Nothing waits for a tile that is not ready:
 * it is left for a call of its own, and each tile keeps its counters.
 *
 * Which tiles meet in a call thus depends on the schedule and on timing, but a row's bits must not. They do not where
 * each row has the same place in the kernel's group of rows: a call begins and ends at a multiple of row_group rows of
 * the expert, some of which it computes for nothing. That this holds for the kernels at hand, and with what group, is
 * looked at when the layer is created; where it does not hold nothing is joined. */
#include "cpu/executor.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "cpu/kernels.h"

enum {
  PHASES = 3,              /* places in a group of rows that bands may begin at: 128 rows, 12 a group */
  CALL_ROWS = 512,         /* at most; the packing of the weights is then 1 % (docs/cpu.md) */
  LEAST_PRODUCTS = 1 << 21 /* of a tile: the library has other kernels for products of up to 2^20 */
};

typedef struct probe {
  int64_t rows, columns, inner; /* of a tile */
  int32_t bands, group;
  float *a, *b, *alone, *joined; /* rows: those of all tiles, and a group */
} probe;

static void fill(float *values, int64_t count, uint64_t seed) {
  dt_random random = {seed};
  for (int64_t i = 0; i < count; i++) values[i] = (float)dt_random_unit(&random) - 0.5f;
}

/* Tiles [first, first + count) in one call, to their places in `joined`. */
static void multiply_tiles(const probe *p, int32_t first, int32_t count) {
  int64_t row = first * p->rows, lead = row % p->group;
  dt_gemm_nt(dt_call_rows(lead + count * p->rows, p->group), p->columns, p->inner, p->a + (row - lead) * p->inner,
             p->inner, p->b, p->inner, p->joined + (row - lead) * p->columns, p->columns);
}

static size_t tile_bytes(const probe *p) {
  return (size_t)(p->rows * p->columns) * sizeof(float);
}

static bool same_joined(const probe *p, int32_t first, int32_t count) {
  int64_t at = first * p->rows * p->columns;
  multiply_tiles(p, first, count);
  return memcmp(p->alone + at, p->joined + at, (size_t)count * tile_bytes(p)) == 0;
}

/* Whether tiles get the same bits alone and joined, by two and by `bands`, wherever in a group they begin. */
static bool same_bits(const probe *p) {
  for (int32_t i = 0; i < p->bands + PHASES - 1; i++) {
    int64_t at = i * p->rows * p->columns;
    multiply_tiles(p, i, 1);
    memcpy(p->alone + at, p->joined + at, tile_bytes(p));
  }
  bool same = true;
  for (int32_t first = 0; first < PHASES && same; first++)
    same = same_joined(p, first, 2) && (p->bands == 2 || same_joined(p, first, p->bands));
  return same;
}

/* The group becomes the smallest that will do, from *group on; 0: none. */
static dt_status probe_shape(int64_t rows, int32_t bands, int64_t columns, int64_t inner, int32_t *group) {
  probe p = {.rows = rows, .columns = columns, .inner = inner, .bands = bands, .group = *group};
  int64_t space = (bands + PHASES - 1) * rows + DT_ROW_GROUP;
  p.a = malloc((size_t)(space * inner) * sizeof(float));
  p.b = malloc((size_t)(columns * inner) * sizeof(float));
  p.alone = malloc((size_t)(space * columns) * sizeof(float));
  p.joined = malloc((size_t)(space * columns) * sizeof(float));
  bool ok = p.a && p.b && p.alone && p.joined;
  if (ok) {
    fill(p.a, space * inner, 1);
    fill(p.b, columns * inner, 2);
    while (p.group && !same_bits(&p)) p.group = p.group == 1 ? DT_ROW_GROUP : 0;
  }
  *group = p.group;
  free(p.a);
  free(p.b);
  free(p.alone);
  free(p.joined);
  return ok ? DT_OK : dt_fail(DT_ERR_MEMORY, "tile_m: out of memory for a product of %d bands", bands);
}

/* The shapes of a tile of either phase, and of its last column. */
dt_status dt_calls_choose(dt_moe *moe) {
  int64_t rows = moe->config.tile_m, n = moe->config.tile_n, h = moe->hidden, i = moe->intermediate;
  const int64_t shapes[][2] = {{n < i ? n : i, h}, {i % n, h}, {n < h ? n : h, i}, {h % n, i}};
  const int32_t count = sizeof(shapes) / sizeof(shapes[0]);
  int32_t kept = dt_panels_kept(moe->config.tile_m, h);
  int32_t bands = rows * kept > CALL_ROWS ? (int32_t)(CALL_ROWS / rows) : kept;
  moe->call_bands = moe->row_group = 1;
  if (bands < 2) return DT_OK;
  for (int32_t s = 0; s < count; s++)
    if (shapes[s][0] > 0 && rows * shapes[s][0] * shapes[s][1] < LEAST_PRODUCTS) return DT_OK;
  int32_t group = 1;
  for (int32_t s = 0; s < count && group; s++) {
    bool seen = shapes[s][0] == 0 || (s >= 2 && memcmp(shapes[s], shapes[s - 2], sizeof(shapes[s])) == 0);
    dt_status status = seen ? DT_OK : probe_shape(rows, bands, shapes[s][0], shapes[s][1], &group);
    if (status) return status;
  }
  if (!group) return DT_OK;
  moe->call_bands = bands;
  moe->row_group = group;
  return DT_OK;
}

/* Near the end of the tiles tickets grow small, so that the workers finish together. */
static int64_t ticket_limit(const dt_moe *moe, int64_t position) {
  int64_t fair = (moe->reduce_first - position) / (2 * moe->config.workers);
  return fair < 1 ? 1 : fair < moe->call_bands ? fair : moe->call_bands;
}

static bool same_panel(const dt_plan *plan, const dt_task *a, const dt_task *b) {
  return a->phase == b->phase && a->column == b->column && plan->bands[a->index].expert == plan->bands[b->index].expert;
}

dt_status dt_tickets_build(dt_moe *moe) {
  const dt_plan *plan = moe->plan;
  if (moe->ticket_capacity < plan->task_count + 1) {
    free(moe->tickets);
    moe->ticket_capacity = 0;
    moe->tickets = malloc((size_t)(plan->task_count + 1) * sizeof(*moe->tickets));
    if (!moe->tickets)
      return dt_fail(DT_ERR_MEMORY, "tokens: out of memory for %lld tickets", (long long)plan->task_count);
    moe->ticket_capacity = plan->task_count + 1;
  }
  moe->ticket_count = 0;
  for (int64_t i = 0, end; i < plan->task_count; i = end) {
    const dt_task *task = &plan->tasks[i];
    bool tile = task->phase == DT_PHASE_L1 || task->phase == DT_PHASE_L2;
    int64_t limit = tile ? i + ticket_limit(moe, i) : i + 1;
    for (end = i + 1; end < limit && same_panel(plan, task, &plan->tasks[end]);) end++;
    moe->tickets[moe->ticket_count++] = i;
  }
  moe->tickets[moe->ticket_count] = plan->task_count;
  return DT_OK;
}

int64_t dt_ticket_at(const dt_moe *moe, int64_t position) {
  int64_t first = 0, end = moe->ticket_count;
  while (first < end) {
    int64_t middle = first + (end - first) / 2;
    if (moe->tickets[middle] < position)
      first = middle + 1;
    else
      end = middle;
  }
  return first;
}
