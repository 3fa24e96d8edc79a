/* What the plan's tests share: seeded random routings over all ranks, and the plans of all ranks for them. */
#ifndef DT_TEST_PLAN_SUPPORT_H
#define DT_TEST_PLAN_SUPPORT_H

#include <draintile/plan.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"

/* Every rank's slots, and where dt_slots puts them. */
typedef struct routing {
  int32_t ranks, experts_per_rank, top_k;
  int64_t *tokens;
  int32_t **ids, **row_of_slot, **slot_of_row;
  int32_t *counts;
} routing;

static inline void *take(size_t count, size_t size) {
  void *block = calloc(count + 1, size);
  assert_non_null(block);
  return block;
}

static inline routing routing_new(int32_t ranks, int32_t experts_per_rank, int32_t top_k) {
  routing r = {.ranks = ranks, .experts_per_rank = experts_per_rank, .top_k = top_k};
  r.tokens = take((size_t)ranks, sizeof *r.tokens);
  r.ids = take((size_t)ranks, sizeof *r.ids);
  r.row_of_slot = take((size_t)ranks, sizeof *r.row_of_slot);
  r.slot_of_row = take((size_t)ranks, sizeof *r.slot_of_row);
  r.counts = take((size_t)ranks * (size_t)ranks * (size_t)experts_per_rank, sizeof *r.counts);
  return r;
}

static inline void routing_tokens(routing *r, int32_t rank, int64_t tokens) {
  size_t slots = (size_t)tokens * (size_t)r->top_k;
  r->tokens[rank] = tokens;
  r->ids[rank] = take(slots, sizeof **r->ids);
  r->row_of_slot[rank] = take(slots, sizeof **r->row_of_slot);
  r->slot_of_row[rank] = take(slots, sizeof **r->slot_of_row);
}

static inline void routing_place(routing *r) {
  int32_t width = r->ranks * r->experts_per_rank;
  for (int32_t s = 0; s < r->ranks; s++) {
    dt_status status = dt_slots(r->ids[s], r->tokens[s], r->top_k, width, &r->counts[(size_t)s * (size_t)width],
                                r->row_of_slot[s], r->slot_of_row[s]);
    if (status != DT_OK) fail_msg("%s", dt_error_detail());
  }
}

static inline void routing_free(routing *r) {
  for (int32_t s = 0; s < r->ranks; s++) {
    free(r->ids[s]);
    free(r->row_of_slot[s]);
    free(r->slot_of_row[s]);
  }
  free(r->tokens);
  free(r->ids);
  free(r->row_of_slot);
  free(r->slot_of_row);
  free(r->counts);
}

/* How a token picks: uniform, one expert for all, one rank's experts for all, a few hot experts, or nothing. */
enum { PICK_UNIFORM, PICK_ONE_EXPERT, PICK_ONE_RANK, PICK_HOT, PICK_DROPPED, PICKS };

static inline int32_t pick_id(dt_random *random, const routing *r, int pick, int32_t hot) {
  int32_t width = r->ranks * r->experts_per_rank, first = hot - hot % r->experts_per_rank;
  switch (pick) {
  case PICK_ONE_EXPERT:
    return hot;
  case PICK_ONE_RANK:
    return first + (int32_t)dt_random_below(random, (uint64_t)r->experts_per_rank);
  case PICK_HOT:
    if (dt_random_below(random, 4) != 0) return (int32_t)((hot + dt_random_below(random, 3)) % (uint64_t)width);
    break;
  case PICK_DROPPED:
    return -1;
  }
  return (int32_t)dt_random_below(random, (uint64_t)width);
}

/* Ranks without tokens, dropped slots and repeated choices of one expert all occur. */
static inline routing routing_random(dt_random *random, int32_t ranks, int32_t experts_per_rank, int64_t max_tokens) {
  routing r = routing_new(ranks, experts_per_rank, 1 + (int32_t)dt_random_below(random, 8));
  int32_t hot = (int32_t)dt_random_below(random, (uint64_t)ranks * (uint64_t)experts_per_rank);
  int pick = dt_random_below(random, 3) ? PICK_UNIFORM : (int)dt_random_below(random, PICKS);
  uint64_t drop = dt_random_below(random, 3) ? 0 : 1 + dt_random_below(random, 3);
  for (int32_t s = 0; s < ranks; s++) {
    int empty = dt_random_below(random, 8) == 0;
    routing_tokens(&r, s, empty ? 0 : (int64_t)dt_random_below(random, (uint64_t)max_tokens + 1));
    for (int64_t i = 0; i < r.tokens[s] * r.top_k; i++) {
      r.ids[s][i] = drop && dt_random_below(random, 4) < drop ? -1 : pick_id(random, &r, pick, hot);
    }
  }
  routing_place(&r);
  return r;
}

static inline dt_plan *plan_new(const dt_plan_config *config, const int32_t *counts) {
  dt_plan *plan = NULL;
  if (dt_plan_create(config, counts, &plan) != DT_OK) fail_msg("%s", dt_error_detail());
  if (dt_plan_check(plan, counts) != DT_OK) fail_msg("%s", dt_error_detail());
  return plan;
}

/* The plans of all ranks; config.rank is ignored. */
static inline dt_plan **plans_new(dt_plan_config config, const int32_t *counts) {
  dt_plan **plans = take((size_t)config.ranks, sizeof *plans);
  for (config.rank = 0; config.rank < config.ranks; config.rank++) plans[config.rank] = plan_new(&config, counts);
  return plans;
}

static inline void plans_free(dt_plan **plans, int32_t ranks) {
  for (int32_t r = 0; r < ranks; r++) dt_plan_destroy(plans[r]);
  free(plans);
}

static inline int32_t random_in(dt_random *random, int32_t low, int32_t high) {
  return low + (int32_t)dt_random_below(random, (uint64_t)(high - low + 1));
}

/* Everything but ranks and experts at random; `turn` walks through all layouts, orders and schedules. */
static inline dt_plan_config config_random(dt_random *random, const routing *r, int32_t turn) {
  static const int32_t tiles[] = {1, 2, 3, 7, 8, 16, 64, 128, 192};
  dt_plan_config config;
  dt_plan_config_init(&config);
  config.ranks = r->ranks;
  config.experts_per_rank = r->experts_per_rank;
  config.tile_m = tiles[dt_random_below(random, sizeof tiles / sizeof *tiles)];
  config.layout = (dt_layout)(turn % 2);
  config.order = (dt_order)(turn / 2 % 3);
  config.schedule = (dt_schedule)(turn / 6 % 6);
  config.segment_bands = random_in(random, 1, 4);
  config.columns_1 = random_in(random, 1, 5);
  config.columns_2 = random_in(random, 1, 5);
  config.raster_bands = random_in(random, 1, 5);
  config.lead = random_in(random, 1, 6);
  config.wave_experts = random_in(random, 0, 3);
  config.group_tasks = random_in(random, 1, 40);
  config.dispatch = 1;
  config.shared_blocks = random_in(random, 0, 3);
  config.reduce_blocks = random_in(random, 0, 3);
  return config;
}

#endif
