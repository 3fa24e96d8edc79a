/* The checker's common ground: a walk over the groups of any rank, straight from the definitions. It shares no
 * arithmetic with the code that builds plans, so that a mistake there does not hide itself here. */
#ifndef DT_PLAN_CHECK_H
#define DT_PLAN_CHECK_H

#include <draintile/plan.h>

#include "core/error.h"

#define DT_RULE(holds, ...)                                                                                            \
  do {                                                                                                                 \
    if (!(holds)) return dt_fail(DT_ERR_INTERNAL, __VA_ARGS__);                                                        \
  } while (0)

/* A rank's rows as the definitions have them, group by group. */
typedef struct dt_walk {
  const dt_plan_config *config;
  const int32_t *counts;
  int32_t rank, expert, step, owner;
  int64_t row, end, expert_row, rows, first_band; /* of the current group; first_band is its expert's */
} dt_walk;

static inline int64_t dt_count_of(const dt_plan_config *c, const int32_t *counts, int32_t source, int32_t rank,
                                  int32_t expert) {
  return counts[((int64_t)source * c->ranks + rank) * c->experts_per_rank + expert];
}

static inline dt_walk dt_walk_start(const dt_plan *plan, const int32_t *counts, int32_t rank) {
  dt_walk w = {.config = &plan->config, .counts = counts, .rank = rank, .expert = -1, .step = plan->config.ranks};
  return w;
}

/* The next group that has rows; 0 after the last. */
static inline int dt_walk_next(dt_walk *w) {
  const dt_plan_config *c = w->config;
  int64_t tile_m = c->tile_m, padding;
  for (;;) {
    if (w->step == c->ranks) {
      w->first_band += (w->end - w->expert_row + tile_m - 1) / tile_m;
      w->expert_row = w->end;
      w->step = 0;
      if (++w->expert == c->experts_per_rank) return 0;
    }
    w->owner = (int32_t)(((int64_t)w->rank + ++w->step) % c->ranks);
    w->rows = dt_count_of(c, w->counts, w->owner, w->rank, w->expert);
    w->row = w->end;
    padding = c->layout == DT_LAYOUT_ALIGNED ? (tile_m - w->rows % tile_m) % tile_m : 0;
    w->end += w->rows + padding;
    if (w->rows > 0) return 1;
  }
}

/* O[source][g] for the plan's rank. */
static inline int64_t dt_combine_row(const dt_plan *plan, const int32_t *counts, int32_t source, int32_t rank,
                                     int32_t expert) {
  const dt_plan_config *c = &plan->config;
  int64_t width = (int64_t)c->ranks * c->experts_per_rank, sum = 0;
  for (int64_t g = 0; g < (int64_t)rank * c->experts_per_rank + expert; g++) sum += counts[source * width + g];
  return sum;
}

/* Groups, bands and parts, segments, orders. seen is scratch of [band_count + segment_count], all -1. */
dt_status dt_check_layout(const dt_plan *plan, const int32_t *counts, int32_t *seen);

#endif
