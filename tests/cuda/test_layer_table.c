/* The simulated layer's table of tasks and its copies are the device's, place by place: random counts, every order,
 * with and without dedup. Needs no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "moe_phases_support.h"
#include "sim/layer.h"

enum { RANKS = 4, EXPERTS = 24, TOP_K = 2 };

static int32_t counts[RANKS * RANKS * EXPERTS];
static int32_t memory[16 * RANKS * RANKS * EXPERTS];

typedef struct setting {
  dt_layer_model model;
  dt_layer_order order; /* nothing left to defaults */
  int64_t tokens[RANKS];
} setting;

static void compare_tasks(const dt_moe_plan *p, const dt_moe_scratch *s, const layer_world *world) {
  layer_table table;
  const int32_t l1 = dt_moe_l1_tasks(p, s), all = l1 + dt_moe_l2_tasks(p, s);
  assert_int_equal(layer_table_create(world, p->rank, &table), DT_OK);
  assert_int_equal(table.count, all);
  assert_int_equal(table.ahead, *s->ahead);
  for (int32_t i = 0; i < all; i++) {
    int32_t place;
    const int is_l1 = i < l1;
    const dt_tile_task device = dt_moe_task(p, s, is_l1, is_l1 ? i : i - l1, &place);
    const layer_task *task = &table.tasks[place];
    const int pair = !(device.flags & DT_TILE_SHARES_ROWS);
    assert_int_equal(task->l1, is_l1);
    assert_int_equal(task->expert, device.expert);
    assert_int_equal(task->pair, pair);
    for (int c = 0; c < 2; c++) {
      const int32_t column = is_l1 ? device.column[c] : device.column[c] / 2;
      const int32_t columns = is_l1 ? world->columns_1 : world->columns_2;
      assert_int_equal(task->column[c], column < columns ? column : -1);
      assert_int_equal(dt_moe_band_place(p, s, task->band[c]), device.band + (pair ? c : 0));
      assert_int_equal(task->rows[c], device.rows[c]);
    }
  }
  layer_table_release(&table);
}

/* Pieces in the order of the device's, to the same bands of the same ranks. */
static void compare_pieces(const dt_moe_plan *p, const dt_moe_scratch *s, layer_world *world) {
  for (int32_t r = 0; r < p->ranks; r++) assert_int_equal(layer_table_create(world, r, &world->rank[r].table), DT_OK);
  layer_rank *rank = &world->rank[p->rank];
  assert_int_equal(p->dedup ? layer_dedup_create(world, p->rank) : layer_dispatch_create(world, p->rank), DT_OK);
  assert_int_equal(rank->piece_count, dt_moe_pieces(p, s));
  for (int32_t i = 0; i < rank->piece_count; i++) {
    const dt_layer_piece device = dt_moe_piece(p, s, i);
    assert_int_equal(rank->pieces[i].peer, device.peer);
    const int32_t peer = device.peer, *first = world->rank[peer].table.first_band;
    const int32_t e = dt_last_at_most(first, p->experts, rank->pieces[i].band);
    assert_int_equal(dt_moe_place(p, s, peer, e, rank->pieces[i].band - first[e]), device.band);
    assert_int_equal(rank->pieces[i].rows, device.rows);
  }
  for (int32_t r = 0; r < p->ranks; r++) layer_table_release(&world->rank[r].table);
  free(rank->pieces);
}

static void compare(const setting *set, int32_t self) {
  const dt_layer_model *m = &set->model;
  dt_layer_costs costs = {.link_bytes_per_s = 1e9};
  layer_rank ranks[RANKS];
  memset(ranks, 0, sizeof ranks);
  layer_world world = {.model = m,
                       .costs = &costs,
                       .order = set->order,
                       .clusters = m->sms / 2,
                       .experts = m->experts_per_rank,
                       .columns_1 = layer_divide_up(m->intermediate, LAYER_COLUMN_1),
                       .columns_2 = layer_divide_up(m->hidden, LAYER_COLUMN_2),
                       .piece_rows = 32,
                       .rank = ranks};
  dt_moe_plan p;
  memset(&p, 0, sizeof p);
  p.ranks = m->ranks, p.rank = self, p.experts = m->experts_per_rank;
  p.columns_1 = world.columns_1, p.columns_2 = world.columns_2;
  p.order = (int32_t)set->order.order;
  p.raster_bands = set->order.raster_bands, p.piece_rows = p.put_rows = world.piece_rows;
  p.lead = set->order.lead, p.group_tasks = set->order.group_tasks, p.wave_experts = set->order.wave_experts;
  p.alternate = set->order.schedule == DT_SCHEDULE_ALTERNATE;
  p.clusters = world.clusters;
  p.expand_rows = 2 * 32 * m->hidden > 40 * 1024 ? 16 : 32; /* as create has it; hidden is below 1,280 */
  p.dedup = m->dedup, p.ahead = m->ahead, p.slot.top_k = TOP_K;
  const dt_moe_scratch s = support_phases(&p, memory, sizeof memory / sizeof *memory, counts);
  compare_tasks(&p, &s, &world);
  compare_pieces(&p, &s, &world);
}

static void test_equal(void **state) {
  (void)state;
  dt_random random = {11};
  static const dt_schedule schedules[] = {DT_SCHEDULE_DIRECT, DT_SCHEDULE_WAVE, DT_SCHEDULE_INTERLEAVE,
                                          DT_SCHEDULE_ALTERNATE};
  for (int round = 0; round < 400; round++) {
    setting set = {.order = {.schedule = schedules[round % 4]}};
    dt_layer_model_init(&set.model);
    set.model.ranks = 1 + (int32_t)dt_random_below(&random, RANKS);
    set.model.experts_per_rank = 1 + (int32_t)dt_random_below(&random, EXPERTS);
    set.model.hidden = 8 + (int64_t)dt_random_below(&random, 1200);
    set.model.intermediate = 8 + (int64_t)dt_random_below(&random, 900);
    set.model.sms = 4, set.model.top_k = TOP_K, set.model.counts = counts, set.model.tokens = set.tokens;
    set.model.dedup = round / 4 % 2, set.model.ahead = (int32_t)dt_random_below(&random, 4) - 1;
    const int32_t ranks = set.model.ranks, experts = set.model.experts_per_rank;
    const uint64_t most = round % 3 ? 400 : 70;
    for (int32_t source = 0; source < ranks; source++) {
      int64_t slots = 0;
      for (int32_t g = 0; g < ranks * experts; g++) {
        int32_t *count = &counts[source * ranks * experts + g];
        *count = dt_random_below(&random, 4) == 0 ? 0 : (int32_t)dt_random_below(&random, most);
        slots += *count;
      }
      counts[source * ranks * experts] += (int32_t)(slots % TOP_K); /* whole tokens */
      set.tokens[source] = (slots + slots % TOP_K) / TOP_K;
    }
    set.order.raster_bands = 2 * (1 + (int32_t)dt_random_below(&random, 8));
    set.order.group_tasks = 1 + (int32_t)dt_random_below(&random, 40);
    set.order.lead = set.order.schedule == DT_SCHEDULE_DIRECT ? DT_LAYER_LEAD_ALL
                     : set.order.schedule == DT_SCHEDULE_WAVE ? 0
                                                              : 1 + (int32_t)dt_random_below(&random, 3);
    if (set.order.schedule == DT_SCHEDULE_WAVE) set.order.wave_experts = (int32_t)dt_random_below(&random, 4);
    for (int order = DT_ORDER_NATURAL; order <= DT_ORDER_PACED; order++) {
      const int all_l1_first = set.order.lead == DT_LAYER_LEAD_ALL;
      if (set.model.dedup && (order == DT_ORDER_PACED || (order == DT_ORDER_REMOTE_FIRST && !all_l1_first))) continue;
      set.order.order = (dt_order)order;
      for (int32_t rank = 0; rank < ranks; rank++) compare(&set, rank);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_equal)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
