/* A layer on GPUs costs no more where a tile, the link or a launch costs half: without exception for what comes in
 * order (the plan, puts, the reduction), and for tiles, the link and steps between tiles but for chance. Clusters draw
 * from one counter and wait for each other, so who gets the last tiles may change for the worse, as in any list of
 * tasks (Graham, 1966): one change in 200, docs/model.md. Usage: test_sim_monotone [LAYERS] */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <draintile/simulate.h>

#include "core/random.h"
#include "platform_support.h"

enum { RANKS_MAX = 3, EXPERTS_MAX = 12 };
static int layers = 40;

typedef struct layer {
  dt_layer_model model;
  dt_layer_costs costs;
  dt_layer_order order;
  int32_t counts[RANKS_MAX * RANKS_MAX * EXPERTS_MAX];
  int64_t tokens[RANKS_MAX];
} layer;

static int32_t between(dt_random *random, int32_t low, int32_t high) {
  return low + (int32_t)dt_random_below(random, (uint64_t)(high - low + 1));
}

static void draw_layer(dt_random *random, int32_t clusters, layer *l) {
  static const dt_schedule schedules[] = {DT_SCHEDULE_DIRECT, DT_SCHEDULE_SERIAL,     DT_SCHEDULE_SIGNAL,
                                          DT_SCHEDULE_WAVE,   DT_SCHEDULE_INTERLEAVE, DT_SCHEDULE_ALTERNATE};
  dt_layer_model *m = &l->model;
  memset(l, 0, sizeof *l);
  dt_layer_model_init(m);
  m->ranks = between(random, 1, RANKS_MAX);
  m->experts_per_rank = between(random, 1, EXPERTS_MAX);
  const int32_t experts = m->ranks * m->experts_per_rank;
  m->top_k = between(random, 1, experts < 8 ? experts : 8);
  m->hidden = 128 * between(random, 1, between(random, 0, 2) ? 16 : 56);
  m->intermediate = 128 * between(random, 1, between(random, 0, 2) ? 10 : 32);
  m->sms = 2 * (clusters ? clusters : between(random, 1, between(random, 0, 1) ? 8 : 74));
  m->dedup = between(random, 0, 3) == 0;
  m->counts = l->counts, m->tokens = l->tokens;
  for (int32_t r = 0; r < m->ranks; r++) {
    l->tokens[r] = between(random, 1, between(random, 0, 1) ? 100 : 1000);
    for (int64_t i = 0; i < l->tokens[r] * m->top_k; i++) l->counts[r * experts + between(random, 0, experts - 1)]++;
  }
  l->order.schedule = schedules[between(random, 0, 5)];
  if (l->order.schedule == DT_SCHEDULE_SIGNAL && m->sms < 6) l->order.schedule = DT_SCHEDULE_DIRECT;
  assert_int_equal(dt_layer_costs_from_platform(platform, m->hidden, m->intermediate, m->sms, &l->costs), DT_OK);
}

typedef struct cost {
  const char *name;
  size_t offset;
  double factor;
  int in_order; /* beside no tile */
} cost;
#define COST(field, factor, in_order)                                                                                  \
  { #field, offsetof(dt_layer_costs, field), factor, in_order }
static const cost costs[] = {COST(tile_1_s, 0.5, 0),
                             COST(tile_2_s, 0.5, 0),
                             COST(activation_s, 0.5, 0),
                             COST(memory_latency_s, 0.5, 0),
                             COST(fill_s, 0.5, 0),
                             COST(memory_bytes_per_s, 2.0, 0),
                             COST(release_s, 0.5, 0),
                             COST(store_s, 0.5, 0),
                             COST(launch_s, 0.5, 0),
                             COST(link_latency_s, 0.5, 0),
                             COST(link_bytes_per_s, 2.0, 0),
                             COST(warp_bytes_per_s, 2.0, 0),
                             COST(quiet_warp_bytes_per_s, 2.0, 0),
                             COST(plan_s, 0.5, 1),
                             COST(plan_expert_s, 0.5, 1),
                             COST(put_s, 0.5, 1),
                             COST(reduce_s, 0.5, 1),
                             COST(reduce_bytes_per_s, 2.0, 1),
                             COST(consumer_bytes_per_s, 2.0, 1)};
enum { COSTS = sizeof costs / sizeof *costs, BOTH_TILES = COSTS, ALL, CHANGES };

static const char *name_of(int change) {
  return change == ALL ? "all" : change == BOTH_TILES ? "both tiles" : costs[change].name;
}

static int is_in_order(int change) {
  return change < COSTS && costs[change].in_order;
}

static dt_layer_costs halved(const dt_layer_costs *given, int change) {
  dt_layer_costs half = *given;
  for (int c = 0; c < COSTS; c++)
    if (change == ALL || change == c || (change == BOTH_TILES && c < 2))
      *(double *)(void *)((char *)&half + costs[c].offset) *= costs[c].factor;
  return half;
}

static void price(const layer *l, const dt_layer_costs *c, double *whole_s, double *alone_s) {
  dt_layer_answer answer;
  assert_int_equal(dt_layer_price(&l->model, c, &l->order, 1, &answer), DT_OK);
  assert_int_equal(dt_layer_price_alone(&l->model, c, alone_s), DT_OK);
  *whole_s = answer.total_s;
}

typedef struct tally {
  int longer, longer_alone; /* layers, by more than 0.5 % */
  double most, most_alone;
} tally;

static void try_layers(uint64_t seed, int32_t clusters, tally *tallies) {
  dt_random random = {seed};
  for (int i = 0; i < layers; i++) {
    layer l;
    double whole_s, alone_s;
    draw_layer(&random, clusters, &l);
    price(&l, &l.costs, &whole_s, &alone_s);
    for (int k = 0; k < CHANGES; k++) {
      const dt_layer_costs half = halved(&l.costs, k);
      double whole, alone;
      price(&l, &half, &whole, &alone);
      whole /= whole_s, alone /= alone_s;
      tallies[k].longer += whole > 1.005, tallies[k].longer_alone += alone > 1.005;
      tallies[k].most = fmax(tallies[k].most, whole);
      tallies[k].most_alone = fmax(tallies[k].most_alone, alone);
    }
  }
  for (int k = 0; k < CHANGES; k++)
    printf("%-22s %d of %d layers more than 0.5 %% longer, at most %.6f; L1 and L2 alone %d, %.6f\n", name_of(k),
           tallies[k].longer, layers, tallies[k].most, tallies[k].longer_alone, tallies[k].most_alone);
}

static void test_random_layers(void **state) {
  (void)state;
  tally tallies[CHANGES] = {{0, 0, 0.0, 0.0}};
  int longer = 0, longer_alone = 0;
  try_layers(20261130, 0, tallies);
  for (int k = 0; k < CHANGES; k++) {
    if (is_in_order(k)) assert_true(tallies[k].most <= 1.0 + 1e-9 && tallies[k].most_alone <= 1.0 + 1e-9);
    assert_true(tallies[k].longer <= 1 + layers / 25 && tallies[k].longer_alone <= 1 + layers / 100);
    longer += tallies[k].longer, longer_alone += tallies[k].longer_alone;
  }
  assert_true(longer <= 0.01 * layers * CHANGES && longer_alone <= 0.002 * layers * CHANGES);
}

/* One cluster has nobody to draw with. Tiles that end before their next rows are there wait for these, which costs
 * fill_s; and copies are slower beside tiles. */
static void test_one_cluster(void **state) {
  (void)state;
  tally tallies[CHANGES] = {{0, 0, 0.0, 0.0}};
  try_layers(7, 1, tallies);
  for (int k = 0; k < CHANGES; k++) {
    const double most = is_in_order(k) ? 1.0 + 1e-9 : 1.03;
    assert_true(tallies[k].most <= most && tallies[k].most_alone <= 1.01);
    assert_true(tallies[k].longer <= 1 + layers / 100);
  }
}

/* Tiles that are faster than the clock allows, and wait for their weights: twice as fast they once cost 53 % more. */
static void test_faster_than_the_clock(void **state) {
  (void)state;
  layer l;
  double before = INFINITY;
  memset(&l, 0, sizeof l);
  dt_layer_model_init(&l.model);
  l.model.experts_per_rank = 8, l.model.hidden = 7168, l.model.intermediate = 2048, l.model.sms = 148;
  l.model.counts = l.counts, l.model.tokens = l.tokens;
  for (int e = 0; e < 8; e++) l.counts[e] = 16;
  l.tokens[0] = 128;
  assert_int_equal(dt_layer_costs_from_platform(platform, 7168, 2048, 148, &l.costs), DT_OK);
  for (int i = 0; i < 6; i++, l.costs.tile_1_s *= 0.5, l.costs.tile_2_s *= 0.5) {
    double whole, alone;
    l.order.schedule = DT_SCHEDULE_DIRECT;
    price(&l, &l.costs, &whole, &alone);
    printf("tiles of 1/%-2d: %.1f us, L1 and L2 alone %.1f us\n", 1 << i, 1e6 * whole, 1e6 * alone);
    assert_true(whole <= before * (1.0 + 1e-9));
    before = whole;
  }
}

int main(int count, char **values) {
  if (count > 1) layers = (int)strtol(values[1], NULL, 10);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_layers), cmocka_unit_test(test_one_cluster),
                                     cmocka_unit_test(test_faster_than_the_clock)};
  return cmocka_run_group_tests(tests, load_platform, free_platform);
}
