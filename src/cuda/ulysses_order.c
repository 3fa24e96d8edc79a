/* In which order the attention needs what the way in brings, by its schedule. Pure. */
#include <float.h>
#include <stdlib.h>

#include "core/error.h"
#include "cuda/ulysses_tables.h"

/* When, in rounds of tiles from the start, and for which of its tiles first. */
typedef struct moment {
  double when;
  int32_t tile;
} moment;

static void no_later(moment *at, double when, int32_t tile) {
  if (when < at->when) *at = (moment){when, tile};
}

/* The first row of a tile of the first group. */
static int32_t tile_row(const dt_attention_kernel *kernel, int32_t tile, int32_t tile_rows) {
  const dt_attention_group *group = &kernel->groups[0];
  int32_t run = group->runs_begin;
  while (run + 1 < group->runs_end && kernel->runs[run].tiles_end <= tile) run++;
  const dt_attention_run *r = &kernel->runs[run];
  return r->start + (tile - (r->tiles_end - r->tiles)) * tile_rows;
}

/* When tile `index` begins, or its first piece. *own_first: 1 if own rows of k and v are read first. A first piece that
 * another CTA goes on with is half of a tile on average. */
static double tile_when(const dt_attention_kernel *kernel, int32_t index, int32_t ctas, double *own_first) {
  const int32_t behind = index - kernel->cut_from;
  if (behind >= 0 && behind < kernel->cut_tiles) {
    *own_first = kernel->resumes;
    return kernel->tile_first;
  }
  const int32_t round = (behind < 0 ? index : index - kernel->cut_tiles) / ctas;
  *own_first = 1;
  return kernel->resumes && kernel->tile_first && round > 0 ? round + 0.5 : round;
}

static int earlier(const moment *a, const moment *b) {
  return a->when < b->when || (a->when == b->when && a->tile < b->tile);
}

/* Both at the earlier one. */
static void share(moment *a, moment *b) {
  const moment early = earlier(b, a) ? *b : *a;
  *a = *b = early;
}

/* Stable. */
static void sort(const moment *at, int32_t heads, dt_ulysses_need *needs) {
  for (int32_t i = 0; i < 2 * heads; i++) {
    const dt_ulysses_need need = {.head = i / 2, .kv = i % 2};
    int32_t place = i;
    for (; place > 0; place--) {
      const dt_ulysses_need *before = &needs[place - 1];
      if (!earlier(&at[i], &at[2 * before->head + before->kv])) break;
      needs[place] = *before;
    }
    needs[place] = need;
  }
}

dt_status dt_ulysses_order(const dt_ulysses_layout *u, int32_t rank, const dt_attention_kernel *kernel,
                           int32_t tile_rows, int32_t ctas, dt_ulysses_needs *needs) {
  const int32_t heads = dt_ulysses_head_count(u, rank), by_owner = dt_ulysses_by_owner(u);
  const int64_t own_q = by_owner ? u->tokens - dt_ulysses_owned_rows(u, u->tokens, rank) : u->tokens;
  const double own_kv = u->kv_tokens ? 1 - (double)dt_ulysses_late_rows(u, rank) / (double)u->kv_tokens : 0;
  moment *at = malloc(2 * ((size_t)heads + 1) * sizeof *at);
  *needs = (dt_ulysses_needs){.needs = calloc(2 * ((size_t)heads + 1), sizeof *needs->needs), .count = 2 * heads};
  if (!at || !needs->needs) {
    free(at), free(needs->needs);
    *needs = (dt_ulysses_needs){0};
    return dt_fail(DT_ERR_MEMORY, "order: %d heads", heads);
  }
  for (int32_t i = 0; i < 2 * heads; i++) at[i] = (moment){DBL_MAX, 0};
  for (int32_t i = 0; i < kernel->groups[0].tiles; i++) {
    int32_t head, tile;
    dt_attention_place(kernel, 0, i, !u->causal, &head, &tile);
    double own_first;
    const double when = tile_when(kernel, i, ctas, &own_first);
    if (tile_row(kernel, tile, tile_rows) < own_q) no_later(&at[2 * head], when, i);
    no_later(&at[2 * head + 1], when + own_first * own_kv, i);
  }
  for (int32_t h = 1; h < heads; h++) /* k and v of heads that share them come once, for the first */
    if (dt_ulysses_kv_of(u, rank, h) == dt_ulysses_kv_of(u, rank, h - 1)) share(&at[2 * h - 1], &at[2 * h + 1]);
  for (int32_t h = heads - 1; h > 0; h--)
    if (dt_ulysses_kv_of(u, rank, h) == dt_ulysses_kv_of(u, rank, h - 1)) share(&at[2 * h - 1], &at[2 * h + 1]);
  sort(at, heads, needs->needs);
  while (needs->early < needs->count) {
    const dt_ulysses_need *need = &needs->needs[needs->early];
    if (at[2 * need->head + need->kv].when >= 1) break;
    needs->early++;
  }
  free(at);
  return DT_OK;
}

void dt_ulysses_needs_destroy(dt_ulysses_needs *needs) {
  free(needs->needs);
  *needs = (dt_ulysses_needs){0};
}
