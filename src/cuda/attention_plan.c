/* The attention kernel's schedule: which tiles, in which order, and which of them are cut over KV. Pure. */
#include <math.h>
#include <string.h>

#include "cuda/attention.h"

dt_attention_shape dt_attention_shape_of(const dt_cuda_attention *attention) {
  return (dt_attention_shape){.head_dim = attention->head_dim,
                              .block = attention->head_dim == 64 ? 128 : 80,
                              .groups = attention->head_dim == 256 ? 2 : 3,
                              .half = attention->dtype == DT_DTYPE_F16,
                              .causal = attention->causal != 0};
}

double dt_attention_tile_ns(const dt_cuda_attention *attention, const dt_attention_shape *shape) {
  static const double step_ns = 1300; /* of a block of K and V, at head_dim 64 and 128 alike; measured */
  return step_ns * (double)((attention->kv_tokens + shape->block - 1) / shape->block);
}

/* Tiles go over from a run to the next where that lies behind it, so that only the last tile of such a row of runs may
 * be short. A tile ends in the run it starts in or in the next one: a run between two others that is shorter than a
 * tile begins anew. Causal tiles stay in their runs, whose order is turned. */
static void plan_tiles(const dt_cuda_attention *attention, int32_t tile_rows, dt_attention_group *group,
                       dt_attention_run *runs) {
  for (int32_t i = group->runs_begin; i < group->runs_end;) {
    int32_t last = i;
    while (!attention->causal && last + 1 < group->runs_end &&
           runs[last].first + runs[last].rows == runs[last + 1].first && (last == i || runs[last].rows >= tile_rows))
      last++;
    const int32_t end = runs[last].first + runs[last].rows;
    int32_t start = runs[i].first;
    for (; i <= last; i++) {
      dt_attention_run *run = &runs[i];
      const int32_t left = run->first + run->rows - start;
      run->start = start;
      run->end = end;
      run->tiles = left > 0 ? (left + tile_rows - 1) / tile_rows : 0;
      start += run->tiles * tile_rows;
      group->tiles_per_head += run->tiles;
      run->tiles_end = group->tiles_per_head;
    }
  }
}

/* Tiles begin at rising rows, so those that lead are the first or the last. */
static void plan_lead(const dt_cuda_attention *attention, int32_t tile_rows, dt_attention_group *group,
                      const dt_attention_run *runs) {
  const int64_t rows = attention->head_dim > 128 ? 0 : attention->lead_rows,
                from = rows < 0 ? attention->tokens + rows : 0;
  const int64_t end = rows < 0 ? attention->tokens : rows;
  int32_t lead = 0;
  for (int32_t i = group->runs_begin; i < group->runs_end; i++)
    for (int32_t tile = 0; tile < runs[i].tiles; tile++) {
      const int64_t row = runs[i].start + (int64_t)tile * tile_rows;
      lead += row >= from && row < end;
    }
  if (lead == 0) lead = group->tiles_per_head;
  group->lead = lead;
  group->lead_from = rows < 0 ? group->tiles_per_head - lead : 0;
}

static void plan_runs(const dt_cuda_attention *attention, int32_t tile_rows, int32_t remote, int32_t *next,
                      dt_attention_kernel *kernel) {
  dt_attention_group *group = &kernel->groups[remote ? 0 : 1];
  group->runs_begin = *next;
  const int32_t count = attention->owners_count;
  for (int32_t n = 0; n < count; n++) {
    /* Causal: longest first. */
    const dt_cuda_attention_owner *owner = &attention->owners[attention->causal ? count - 1 - n : n];
    if ((owner->remote != 0) != remote || owner->rows == 0) continue;
    dt_attention_run *run = &kernel->runs[(*next)++];
    run->out = owner->out;
    run->row_bytes = 2 * owner->row_stride;
    run->first = (int32_t)owner->first;
    run->rows = (int32_t)owner->rows;
    run->away = owner->away;
  }
  group->runs_end = *next;
  plan_tiles(attention, tile_rows, group, kernel->runs);
  group->tiles = group->tiles_per_head * attention->heads;
  plan_lead(attention, tile_rows, group, kernel->runs);
}

/* Causal: heads whose tiles are dealt together, longest first: as many as have their K and V in the L2 cache, but so
 * many that a section has some tiles for every CTA, and all sections about the same number: what the last one leaves
 * uneven stays so. Not where heads are waited for: all of a section's are needed at once. */
enum { SECTION_BYTES = 24 << 20, SECTION_TILES = 3 };
static int32_t head_section(const dt_cuda_attention *attention, int32_t tiles_per_head, int32_t ctas) {
  if (!attention->causal) {
    const int32_t most = attention->lead_heads < attention->heads ? attention->lead_heads : attention->heads;
    return most > 1 && attention->head_dim <= 128 ? most : 1;
  }
  const int64_t bytes = 4 * attention->kv_tokens * attention->head_dim, most = attention->heads;
  const int64_t each = most >= attention->kv_heads ? most / attention->kv_heads : 1; /* that share a K and V */
  const int64_t fit = SECTION_BYTES / (bytes > 0 ? bytes : 1) * each, tiles = tiles_per_head > 0 ? tiles_per_head : 1;
  const int waits = attention->arrived != NULL && !attention->arrived_gates_stores;
  if (waits && fit < most) return (int32_t)(fit > each ? fit : each);
  const int64_t enough = (SECTION_TILES * ctas + tiles - 1) / tiles, least = fit > enough ? fit : enough;
  if (most < 2 * least) return (int32_t)most;
  const int64_t sections = most / least, heads = (most + sections - 1) / sections;
  return (int32_t)((heads + each - 1) / each * each);
}

void dt_attention_plan(const dt_cuda_attention *attention, const dt_attention_shape *shape, int32_t cut, int32_t ctas,
                       dt_attention_kernel *kernel) {
  int32_t next = 0;
  memset(kernel->runs, 0, sizeof kernel->runs);
  memset(kernel->groups, 0, sizeof kernel->groups);
  plan_runs(attention, 64 * shape->groups, 1, &next, kernel);
  plan_runs(attention, 64 * shape->groups, 0, &next, kernel);
  kernel->heads = attention->heads;
  kernel->head_section =
      head_section(attention, kernel->groups[0].tiles_per_head + kernel->groups[1].tiles_per_head, ctas);
  dt_attention_plan_uncut(kernel);
  if (!attention->causal && cut != 0) dt_attention_plan_cut(attention, shape, ctas, kernel);
  /* A kernel that waits for heads and goes on with tiles would not overlap the one before, which brings the rows, and
   * would begin with the heads that come last. */
  const int waits = attention->arrived != NULL && !attention->arrived_gates_stores && !kernel->carry.enters;
  if (kernel->resumes && waits) dt_attention_plan_uncut(kernel);
}

void dt_attention_plan_pace(const dt_cuda_attention *a, const dt_attention_shape *shape, dt_attention_kernel *kernel) {
  enum { ROWS_MOST = 32 };
  static const double share = 0.6, way_ns = 1700; /* there and back; measured */
  const double left_ns = share * dt_attention_tile_ns(a, shape);
  const int32_t tile_rows = 64 * shape->groups;
  kernel->paced = kernel->paced_ns = 0;
  if (!a->paced || !kernel->carry.enters || a->causal || a->head_dim > 128) return;
  if (tile_rows / ROWS_MOST * way_ns > left_ns) return;
  kernel->paced = 4;
  while (tile_rows / kernel->paced * way_ns > left_ns) kernel->paced *= 2;
  kernel->paced_ns = (uint32_t)(left_ns * kernel->paced / tile_rows);
}

static int32_t rounds_of(const dt_attention_kernel *kernel, int32_t ctas) {
  return (kernel->groups[0].tiles + kernel->groups[1].tiles + ctas - 1) / ctas;
}

int dt_attention_outlasts_links(const dt_cuda_attention *a, const dt_attention_shape *shape, int32_t ctas,
                                const dt_attention_kernel *kernel) {
  static const double long_ns = 60e6; /* links sleep after 50 ms without traffic (nvidia-smi nvlink -gLowPwrInfo) */
  return a->paced && !a->causal && kernel->cut_tiles == 0 &&
         rounds_of(kernel, ctas) * dt_attention_tile_ns(a, shape) >= long_ns;
}

void dt_attention_plan_hold(const dt_cuda_attention *a, const dt_attention_shape *shape, int32_t ctas,
                            dt_attention_kernel *kernel) {
  static const double piece_ns = 12600; /* with all CTAs a fifth of what the link takes */
  const dt_attention_carry *carry = &kernel->carry;
  const int32_t tiles = kernel->groups[0].tiles + kernel->groups[1].tiles, rounds = rounds_of(kernel, ctas);
  const double tile_ns = dt_attention_tile_ns(a, shape);
  kernel->held = NULL;
  kernel->held_most = 0;
  kernel->drain_from = INT32_MAX;
  kernel->drain_ns = 0;
  if (!kernel->paced || kernel->cut_tiles > 0 || !carry->held || carry->holds == 0) return;
  if (carry->holds < 0 && !dt_attention_outlasts_links(a, shape, ctas, kernel)) return;
  /* A tile waits as a whole: what is left of it would go by the clock of a tile long gone. */
  const int32_t tile_rows = 64 * shape->groups, each = tile_rows / DT_ATTENTION_HELD_ROWS; /* pieces */
  const size_t room = carry->held_bytes / (size_t)ctas / ((size_t)tile_rows * (2 * (size_t)a->head_dim + 16));
  double away = 0;
  for (int32_t run = 0; run < kernel->groups[1].runs_end; run++)
    if (kernel->runs[run].away) away += (double)kernel->runs[run].rows * a->heads / DT_ATTENTION_HELD_ROWS;
  const double last_rounds = carry->holds == 1 ? 0 : ceil(away / ctas * piece_ns / tile_ns);
  kernel->held = carry->held;
  kernel->held_most = each * (room < (size_t)rounds ? (int32_t)room : rounds);
  kernel->drain_from = last_rounds < rounds ? tiles - (int32_t)last_rounds * ctas : 0;
  kernel->drain_ns = carry->holds == 1 ? 0 : (uint32_t)piece_ns;
}

void dt_attention_plan_own(const dt_cuda_attention *attention, const dt_attention_carry *carry,
                           dt_attention_kernel *kernel) {
  kernel->own_q_row = kernel->own_kv_row = INT32_MAX;
  kernel->own_q_rows = 0;
  if (!carry || !carry->reads_own) return;
  if (carry->own_q < attention->tokens) {
    kernel->own_q_row = carry->own_q;
    kernel->own_q_rows = (int32_t)attention->tokens - carry->own_q;
  }
  if (carry->late_rows < attention->kv_tokens) kernel->own_kv_row = carry->late_rows;
}
