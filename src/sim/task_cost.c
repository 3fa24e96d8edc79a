#include "sim.h"

/* Panels of a rank: (phase, expert, column), numbered. */
static int64_t panel_number(const dt_plan *plan, const sim_item *item) {
  int64_t columns_1 = plan->config.columns_1, columns_2 = plan->config.columns_2;
  int64_t expert = plan->bands[item->index].expert;
  if (item->kind == DT_SPAN_L1) return expert * columns_1 + item->column;
  return plan->config.experts_per_rank * columns_1 + expert * columns_2 + item->column;
}

static void unlink_panel(sim_rank *rank, int32_t panel) {
  int32_t newer = rank->panel_newer[panel], older = rank->panel_older[panel];
  if (newer >= 0) rank->panel_older[newer] = older;
  if (older >= 0) rank->panel_newer[older] = newer;
  if (rank->panel_newest == panel) rank->panel_newest = older;
  if (rank->panel_oldest == panel) rank->panel_oldest = newer;
}

/* 1: the panel was among the most recently used ones of the rank; it is the newest now. */
static int touch_panel(sim_rank *rank, int32_t panel, int32_t capacity) {
  int hit = rank->panel_newest == panel || rank->panel_newer[panel] >= 0;
  if (hit) {
    unlink_panel(rank, panel);
  } else if (rank->panels_cached == capacity) {
    int32_t oldest = rank->panel_oldest;
    unlink_panel(rank, oldest);
    rank->panel_newer[oldest] = rank->panel_older[oldest] = -1;
  } else {
    rank->panels_cached++;
  }
  rank->panel_older[panel] = rank->panel_newest;
  rank->panel_newer[panel] = -1;
  if (rank->panel_newest >= 0) rank->panel_newer[rank->panel_newest] = panel;
  rank->panel_newest = panel;
  if (rank->panel_oldest < 0) rank->panel_oldest = panel;
  return hit;
}

/* 1: the band's rows must be widened. */
static int take_band(sim_world *world, sim_thread *thread, int32_t band) {
  int32_t panels = world->costs.band_panels;
  uint8_t *widened = &world->rank[thread->rank].widened[band];
  if (panels == 0) {
    int missing = !*widened;
    *widened = 1;
    return missing;
  }
  for (int32_t i = 0; i < panels; i++)
    if (thread->held_bands[i] == band) return 0;
  thread->held_bands[thread->next_held] = band;
  thread->next_held = (thread->next_held + 1) % panels;
  return 1;
}

static double tile_cost(sim_world *world, sim_thread *thread) {
  const dt_sim_costs *costs = &world->costs;
  const sim_item *item = &thread->item;
  sim_rank *rank = &world->rank[thread->rank];
  int second = item->kind == DT_SPAN_L2;
  double base = second ? costs->l2_base_s : costs->l1_base_s, row = second ? costs->l2_row_s : costs->l1_row_s;
  double cost = base + item->rows * row;
  int64_t panel = panel_number(rank->plan, item);
  int hit = panel == thread->last_panel[second];
  thread->last_panel[second] = panel;
  if (costs->cache_panels > 0) hit = touch_panel(rank, (int32_t)panel, costs->cache_panels);
  if (!hit) cost += second ? costs->l2_panel_s : costs->l1_panel_s;
  if (!second && costs->band_s_per_row > 0.0 && take_band(world, thread, item->index))
    cost += item->rows * costs->band_s_per_row;
  return cost;
}

double sim_item_cost(sim_world *world, sim_thread *thread) {
  const dt_sim_costs *costs = &world->costs;
  const sim_item *item = &thread->item;
  switch (item->kind) {
  case DT_SPAN_L1:
  case DT_SPAN_L2:
    return tile_cost(world, thread);
  case DT_SPAN_REDUCE:
    return costs->reduce_base_s + item->rows * costs->reduce_row_s;
  case DT_SPAN_SHARED:
    thread->last_panel[0] = thread->last_panel[1] = -1; /* the shared experts' weights took their place */
    return costs->shared_base_s + item->rows * costs->shared_row_s;
  default: /* puts have their own cost */
    return 0.0;
  }
}
