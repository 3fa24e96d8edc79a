/* The price of a layer on GPUs, by the committed platform file of 2 x H200: against layers measured on two H200, and
 * against a prototype's task orders, to whose times nothing was fitted. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include <draintile/moe_bench.h>
#include <draintile/simulate.h>

#include "platform_support.h"

enum { SMS = 132, RANKS = 2, EXPERTS_MAX = 512, COLUMNS = 6, SEED = 1 };

static double number(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  assert_true(json_is_number(value));
  return json_number_value(value);
}

static const char *text(const json_t *object, const char *key) {
  const char *value = json_string_value(json_object_get(object, key));
  assert_non_null(value);
  return value;
}

typedef struct layer {
  dt_layer_model model;
  dt_layer_costs costs;
  int32_t counts[RANKS * EXPERTS_MAX];
  int64_t tokens[RANKS];
} layer;

static void start_layer(int64_t hidden, int64_t intermediate, int32_t experts, int32_t top_k, layer *l) {
  const dt_moe_shape shape = {.hidden = hidden, .intermediate = intermediate, .experts = experts, .top_k = top_k};
  assert_true(experts <= EXPERTS_MAX);
  memset(l, 0, sizeof *l);
  dt_moe_shape_model(&shape, RANKS, &l->model);
  l->model.sms = SMS, l->model.counts = l->counts, l->model.tokens = l->tokens;
  assert_int_equal(dt_layer_costs_from_platform(platform, hidden, intermediate, SMS, &l->costs), DT_OK);
}

/* A model's layer, routed as the benchmark does. */
static void routed_layer(const char *name, const char *router, int64_t tokens, layer *l) {
  const dt_moe_shape *shape = dt_moe_shape_find(name);
  dt_moe_router which;
  assert_non_null(shape);
  assert_int_equal(dt_moe_router_parse(router, &which), DT_OK);
  start_layer(shape->hidden, shape->intermediate, shape->experts, shape->top_k, l);
  const size_t each = (size_t)tokens * (size_t)shape->top_k;
  int32_t *ids = malloc(RANKS * each * sizeof *ids);
  float *weights = malloc(RANKS * each * sizeof *weights);
  assert_true(ids && weights);
  assert_int_equal(dt_moe_route(which, SEED, RANKS, shape->experts, shape->top_k, tokens, ids, weights), DT_OK);
  for (size_t i = 0; i < RANKS * each; i++) l->counts[i / each * (size_t)shape->experts + (size_t)ids[i]]++;
  for (int r = 0; r < RANKS; r++) l->tokens[r] = tokens;
  free(ids), free(weights);
}

/* As it was when tests/data/h200x2-layers.json was measured. */
static void published_layer(const char *name, const char *router, int64_t tokens, layer *l) {
  routed_layer(name, router, tokens, l);
  l->model.short_bands_alone = 1;
  l->costs.activation_s = 3.2e-6;
  l->costs.warp_bytes_per_s = 2.3e9, l->costs.crowd_ratio = 0.45; /* rows were not fetched into the cache before */
  l->costs.quiet_warp_bytes_per_s = 2.4e9, l->costs.piece_s = 3.4e-6, l->costs.copy_warps = 1.5;
  l->costs.tile_link_ratio = 1.85;
  l->costs.beside_ratio = 0.065, l->costs.beside_full_ratio = 0.05;
  l->costs.plan_s = 20e-6, l->costs.plan_expert_s = 30e-9; /* another plan's */
}

static const dt_layer_order orders[COLUMNS - 1] = {{.schedule = DT_SCHEDULE_SERIAL},
                                                   {.schedule = DT_SCHEDULE_DIRECT},
                                                   {.schedule = DT_SCHEDULE_WAVE},
                                                   {.schedule = DT_SCHEDULE_INTERLEAVE},
                                                   {.schedule = DT_SCHEDULE_ALTERNATE}};

typedef struct tally {
  int rows, gains, gains_off, times, times_off, regrets;
} tally;

/* `us`: L1 and L2 alone, then the schedules in the order of `orders`. */
static void judge(const char *label, const double *us, layer *l, tally *t) {
  double total_s[COLUMNS - 1] = {0.0}, best = us[1], chosen = 0;
  dt_layer_choice choice;
  assert_int_equal(dt_layer_choose(&l->model, &l->costs, NULL, &choice), DT_OK); /* prices every schedule */
  for (int i = 0; i < COLUMNS - 1; i++)
    for (int c = 0; c < choice.count; c++)
      if (choice.orders[c].schedule == orders[i].schedule) total_s[i] = choice.total_s[c];
  printf("%-28s", label);
  for (int i = 0; i < COLUMNS - 1; i++) {
    const double ratio = 1e6 * total_s[i] / us[i + 1];
    printf(" %.3f", ratio);
    t->times++;
    t->times_off += fabs(ratio - 1) > 0.12;
    best = fmin(best, us[i + 1]);
    if (orders[i].schedule == choice.best.schedule) chosen = us[i + 1];
  }
  for (int i = 3; i < COLUMNS - 1; i++) {
    const double gain = total_s[2] / total_s[i] * us[i + 1] / us[3] - 1;
    printf(" %+5.1f %%", 100 * gain);
    t->gains++;
    t->gains_off += fabs(gain) > 0.05;
  }
  printf(" | auto +%.1f %%\n", 100 * (chosen / best - 1));
  t->regrets += chosen > 1.03 * best;
  t->rows++;
}

/* Of six models a balanced row of 128 tokens and a skewed one of 1,024, of three a crossed one of 4,096: what takes
 * longest is left out. scripts/moe_prices.sh has all 84. */
static void test_measured_layers(void **state) {
  (void)state;
  json_t *root = json_load_file(DT_TEST_DATA "/h200x2-layers.json", 0, NULL), *row;
  assert_non_null(root);
  tally t = {0};
  size_t i;
  json_array_foreach(json_object_get(root, "rows"), i, row) {
    const size_t place = i % 12, router = place / 4, tokens = place % 4;
    if (router != tokens) continue;
    if (i / 12 >= (router == 2 ? 3 : 6)) continue;
    layer l;
    double us[COLUMNS];
    char label[64];
    for (size_t c = 0; c < COLUMNS; c++) us[c] = json_number_value(json_array_get(json_object_get(row, "us"), c));
    snprintf(label, sizeof label, "%s %s %.0f", text(row, "model"), text(row, "router"), number(row, "tokens"));
    published_layer(text(row, "model"), text(row, "router"), (int64_t)number(row, "tokens"), &l);
    judge(label, us, &l, &t);
  }
  printf("%d rows: %d of %d gains beyond 5 %%, %d of %d times beyond 12 %%, %d choices beyond 3 %%\n", t.rows,
         t.gains_off, t.gains, t.times_off, t.times, t.regrets);
  assert_int_equal(t.rows, 15);
  assert_true(t.gains_off <= 2 && t.times_off <= 2 && t.regrets <= 1);
  json_decref(root);
}

static double measured_us(const json_t *row, const char *name) {
  const json_t *method;
  size_t i;
  json_array_foreach(json_object_get(row, "methods"), i, method) {
    if (strcmp(text(method, "name"), name) == 0) return 1e6 * number(method, "median_s");
  }
  return 0.0;
}

/* Few tokens, where serial is near: what direct takes beyond L1 and L2 alone is the first rows' way, copied while no
 * tile runs, if they have not left while the table was made. 20 us more make auto take serial, up to 13 % slower.
 * OLMoE's rows are why 9 us and 7 % are allowed: the grid is of before dt_layer_early_pieces took half of few pieces,
 * by which they are up to 7 us shorter. */
static void test_few_tokens(void **state) {
  (void)state;
  json_t *root = json_load_file(DT_TEST_DATA "/../../bench/results/h200x2/moe.json", 0, NULL), *row;
  assert_non_null(root);
  size_t i, rows = 0;
  json_array_foreach(json_object_get(root, "rows"), i, row) {
    const char *model = text(row, "model");
    if (number(row, "tokens") != 128 || (strcmp(model, "olmoe") != 0 && strcmp(model, "qwen3-30b") != 0)) continue;
    layer l;
    dt_layer_choice choice;
    double alone = 0.0;
    routed_layer(model, text(row, "router"), 128, &l);
    assert_int_equal(dt_layer_choose(&l.model, &l.costs, NULL, &choice), DT_OK);
    assert_int_equal(dt_layer_price_alone(&l.model, &l.costs, &alone), DT_OK);
    const double beyond = measured_us(row, "direct") - measured_us(row, "compute alone");
    const double priced = 1e6 * (choice.total_s[0] - alone);
    const double best = fmin(measured_us(row, "serial"), measured_us(row, "direct"));
    const double chosen = measured_us(row, dt_schedule_name(choice.best.schedule));
    const double ratio = 1e6 * choice.total_s[0] / measured_us(row, "direct");
    printf("%s %s: beyond L1 and L2 %.0f us, priced %.0f; all of it %.3f; auto %+.1f %%\n", model, text(row, "router"),
           beyond, priced, ratio, 100 * (chosen / best - 1));
    assert_int_equal(choice.orders[0].schedule, DT_SCHEDULE_DIRECT);
    assert_true(fabs(priced - beyond) < 9.0 && fabs(ratio - 1) < 0.07);
    assert_true(chosen > 0.0 && chosen <= 1.03 * best);
    rows++;
  }
  assert_int_equal(rows, 6);
  json_decref(root);
}

/* Where the dispatch kernel has all pieces no warp copies any; of others the first are copied while no tile runs. */
static void test_quiet_warp(void **state) {
  (void)state;
  layer l;
  dt_layer_answer slow, fast;
  routed_layer("olmoe", "crossed", 128, &l);
  l.model.head = 1024;
  assert_int_equal(dt_layer_price(&l.model, &l.costs, &orders[1], 1, &fast), DT_OK);
  l.costs.quiet_warp_bytes_per_s = l.costs.warp_bytes_per_s /= 2.0;
  assert_int_equal(dt_layer_price(&l.model, &l.costs, &orders[1], 1, &slow), DT_OK);
  assert_true(slow.total_s == fast.total_s);
  routed_layer("qwen3-next", "balanced", 1024, &l);
  assert_int_equal(dt_layer_price(&l.model, &l.costs, &orders[1], 1, &fast), DT_OK);
  l.costs.quiet_warp_bytes_per_s = l.costs.warp_bytes_per_s;
  assert_int_equal(dt_layer_price(&l.model, &l.costs, &orders[1], 1, &slow), DT_OK);
  assert_true(slow.total_s > fast.total_s + 2e-6); /* half of what a piece of 64 KB takes longer */
  assert_true(fast.dispatch_s == 0.0);             /* its kernel has no pieces */
  l.costs.quiet_warp_bytes_per_s = 0.0;
  assert_int_equal(dt_layer_price(&l.model, &l.costs, &orders[1], 1, &slow), DT_ERR_ARGUMENT);
}

/* Orders with dedup are those that the layer has: others used to wait for ever, or had the price of a layer that is not
 * there. */
static void test_orders_with_dedup(void **state) {
  (void)state;
  layer l;
  routed_layer("olmoe", "crossed", 128, &l);
  for (int dedup = 0; dedup < 2; dedup++)
    for (int s = DT_SCHEDULE_SERIAL; s <= DT_SCHEDULE_ALTERNATE; s++)
      for (int o = DT_ORDER_NATURAL; o <= DT_ORDER_PACED; o++) {
        const dt_layer_order order = {.schedule = (dt_schedule)s, .order = (dt_order)o};
        const int in_turn = s == DT_SCHEDULE_SERIAL || s == DT_SCHEDULE_SIGNAL || s == DT_SCHEDULE_DIRECT;
        const int allowed = !dedup || o == DT_ORDER_NATURAL || (o == DT_ORDER_REMOTE_FIRST && in_turn);
        dt_layer_answer answer;
        l.model.dedup = dedup;
        const dt_status status = dt_layer_price(&l.model, &l.costs, &order, 1, &answer);
        assert_int_equal(status, allowed ? DT_OK : DT_ERR_UNSUPPORTED);
        if (!allowed) assert_non_null(strstr(dt_error_detail(), "with dedup natural"));
      }
}

/* A CTA alone at its column streams weights no faster than four stages a latency: a few of them, with memory's rate to
 * spare, take longer for it. */
static void test_memory_latency(void **state) {
  (void)state;
  layer l;
  double with, without;
  routed_layer("mixtral", "balanced", 128, &l);
  assert_int_equal(dt_layer_price_alone(&l.model, &l.costs, &with), DT_OK);
  l.costs.memory_latency_s = 0.0;
  assert_int_equal(dt_layer_price_alone(&l.model, &l.costs, &without), DT_OK);
  assert_true(with > without + 10e-6); /* of which 224 stages of L2's last tiles are most */
  routed_layer("qwen3-30b", "balanced", 8192, &l);
  assert_int_equal(dt_layer_price_alone(&l.model, &l.costs, &with), DT_OK);
  l.costs.memory_latency_s = 0.0;
  assert_int_equal(dt_layer_price_alone(&l.model, &l.costs, &without), DT_OK);
  assert_true(with < 1.02 * without); /* many tiles share what one loads */
}

/* What tiles cost each other is gone where few run. */
static void test_together(void **state) {
  (void)state;
  layer l;
  dt_layer_answer all, fewer;
  routed_layer("mixtral", "balanced", 512, &l);
  assert_int_equal(dt_layer_price(&l.model, &l.costs, &orders[2], 1, &fewer), DT_OK);
  l.costs.together_ratio = 0.0;
  assert_int_equal(dt_layer_price(&l.model, &l.costs, &orders[2], 1, &all), DT_OK);
  assert_true(all.total_s > 1.005 * fewer.total_s && all.total_s < 1.08 * fewer.total_s);
}

enum { ORDERS_MAX = 16, REMOTES = 3 /* no, half, all rows of every expert are of the other rank */ };

static dt_layer_order prototype_order(const json_t *row, const json_t *order) {
  const double waves = number(order, "waves"), lead = number(order, "lead");
  dt_layer_order o = {.raster_bands = 8,
                      .group_tasks = waves > 0 ? (int32_t)(waves * SMS / 2) : 1,
                      .lead = (int32_t)(lead < 0 ? number(row, "units_lead") : lead),
                      .wave_experts = (int32_t)number(order, "wave_experts")};
  assert_int_equal(dt_schedule_parse(text(order, "schedule"), &o.schedule), DT_OK);
  return o;
}

/* Prices a layer's orders at once, since they share its clock. */
static void price_prototype(const json_t *row, double remote, const dt_layer_order *list, int32_t count,
                            dt_layer_answer *answers) {
  const int32_t experts = (int32_t)number(row, "experts"), rows = (int32_t)number(row, "rows_per_expert");
  layer l;
  start_layer((int64_t)number(row, "hidden"), (int64_t)number(row, "intermediate"), RANKS * experts, 8, &l);
  for (int32_t s = 0; s < RANKS; s++)
    for (int32_t g = 0; g < RANKS * experts; g++) {
      const int32_t away = (int32_t)lrint(rows * remote);
      l.counts[s * RANKS * experts + g] = g / experts == s ? rows - away : away;
    }
  l.model.rows_in_place = 1;
  l.costs.activation_s = 0;      /* it cost nothing there, */
  l.costs.sustained_ratio = 1.0; /* and launches had pauses between them */
  assert_int_equal(dt_layer_price(&l.model, &l.costs, list, count, answers), DT_OK);
  for (int32_t i = 0; i < count; i++) assert_true(answers[i].reduce_s == 0 && answers[i].plan_s == 0);
}

/* Another engine, other figures than these prices were made with: most orders within 8 %, all within 12 % but waves
 * that do not fill the device. These come out up to 38 % too slow, since the prototype told of act within the next tile
 * and drew tickets later. */
static void test_prototype_orders(void **state) {
  (void)state;
  json_t *root = json_load_file(DT_TEST_DATA "/h200-layer-orders.json", 0, NULL), *row, *order;
  assert_non_null(root);
  size_t i, o, cells = 0, near = 0, far = 0, waves = 0, waves_far = 0;
  json_array_foreach(json_object_get(root, "layers"), i, row) {
    const int one_band = number(row, "rows_per_expert") <= 128;
    const size_t step = one_band ? 1 : REMOTES - 1; /* large ones take longest */
    for (size_t r = 0; r < REMOTES; r += step) {
      dt_layer_order list[ORDERS_MAX];
      dt_layer_answer answers[ORDERS_MAX];
      const char *names[ORDERS_MAX];
      double us[ORDERS_MAX];
      int32_t count = 0;
      json_array_foreach(json_object_get(root, "orders"), o, order) {
        assert_true(count < ORDERS_MAX);
        us[count] = json_number_value(json_array_get(json_array_get(json_object_get(row, "us"), o), r));
        if (us[count] == 0.0) continue;
        names[count] = text(order, "name");
        list[count++] = prototype_order(row, order);
      }
      price_prototype(row, 0.5 * (double)r, list, count, answers);
      for (int32_t k = 0; k < count; k++) {
        const double error = 1e6 * answers[k].total_s / us[k] - 1.0;
        printf("%-17s %-20s %3.0f %% remote %7.0f us measured, error %+5.1f %%\n", text(row, "name"), names[k],
               50.0 * (double)r, us[k], 100.0 * error);
        const int part = one_band && list[k].schedule == DT_SCHEDULE_WAVE;
        cells++;
        near += fabs(error) <= 0.08;
        far += !part && fabs(error) > 0.12;
        waves += (size_t)part;
        waves_far += part && (error < 0 || error > 0.40);
      }
    }
  }
  printf("%zu of %zu within 8 %%, %zu beyond 12 %%; of %zu waves %zu beyond 40 %%\n", near, cells, far, waves,
         waves_far);
  assert_int_equal(cells, 53);
  assert_int_equal(waves, 6);
  assert_true(near >= 36 && far == 0 && waves_far == 0);
  json_decref(root);
}

/* Tokens that cross once leave the link to L2's rows; inside one GPU copies cost what they did (docs/notes/moe.md:
 * direct with dedup over direct without 1.005 on one H200, Qwen3-30B; 1.35 with 8 multiprocessors that make all
 * copies). */
static void test_dedup(void **state) {
  (void)state;
  layer l;
  dt_layer_answer each, once, few, again;
  int64_t rows[RANKS * RANKS] = {0};
  published_layer("qwen3-30b", "crossed", 4096, &l);
  assert_int_equal(dt_layer_price(&l.model, &l.costs, &orders[1], 1, &each), DT_OK);
  rows[1] = rows[2] = 4096; /* of 32,768 choices */
  l.model.dedup = 1, l.model.dispatch_rows = rows;
  assert_int_equal(dt_layer_price(&l.model, &l.costs, &orders[1], 1, &once), DT_OK);
  assert_true(fabs(once.total_s / each.total_s / 0.965 - 1) < 0.03); /* so on two H200: docs/notes/model.md */
  assert_true(fabs(once.plan_s + once.dispatch_s + once.tiles_s + once.combine_s + once.reduce_s - once.total_s) <
              1e-12);
  assert_int_equal(dt_layer_price(&l.model, &l.costs, &orders[1], 1, &again), DT_OK);
  assert_true(again.total_s == once.total_s); /* the same question, the same answer */
  l.model.dispatch_rows = NULL;               /* all tokens, which these are */
  assert_int_equal(dt_layer_price(&l.model, &l.costs, &orders[1], 1, &again), DT_OK);
  assert_true(again.total_s == once.total_s);

  published_layer("qwen3-30b", "balanced", 4096, &l); /* 8,192 tokens of one rank that has all experts */
  for (int32_t g = 0; g < 128; g++) l.counts[g] += l.counts[128 + g];
  l.model.ranks = 1, l.model.experts_per_rank = 128, l.tokens[0] = 8192;
  assert_int_equal(dt_layer_price(&l.model, &l.costs, &orders[1], 1, &each), DT_OK);
  l.model.dedup = 1;
  assert_int_equal(dt_layer_price(&l.model, &l.costs, &orders[1], 1, &once), DT_OK);
  l.model.send_sms = 8, l.model.head = 1024;
  assert_int_equal(dt_layer_price(&l.model, &l.costs, &orders[1], 1, &few), DT_OK);
  assert_true(fabs(once.total_s / each.total_s / 1.005 - 1) < 0.05);
  assert_true(few.total_s > 1.12 * each.total_s);

  dt_layer_answer answers[COLUMNS - 1];
  published_layer("qwen3-30b", "skewed", 1024, &l);
  l.model.dedup = 1;
  for (l.model.ahead = -1; l.model.ahead < 3; l.model.ahead++) {
    assert_int_equal(dt_layer_price(&l.model, &l.costs, orders, COLUMNS - 1, answers), DT_OK);
    for (int i = 0; i < COLUMNS - 1; i++) assert_true(answers[i].total_s > 0);
  }
}

/* No tokens anywhere, and one rank whose rows never leave. */
static void test_edges(void **state) {
  (void)state;
  layer l;
  dt_layer_answer empty, single;
  start_layer(2048, 768, 16, 8, &l);
  for (int i = 0; i < COLUMNS - 1; i++) {
    for (l.model.dedup = 0; l.model.dedup < 2; l.model.dedup++) {
      assert_int_equal(dt_layer_price(&l.model, &l.costs, &orders[i], 1, &empty), DT_OK);
      assert_true(empty.total_s > 0 && empty.total_s < 60e-6);
    }
  }
  l.model.ranks = 1, l.model.experts_per_rank = 7, l.tokens[0] = 1000;
  for (int e = 0; e < 7; e++) l.counts[e] = e * 381; /* from none to several bands, short ones among them */
  for (int i = 0; i < COLUMNS - 1; i++)
    for (int alone = 0; alone < 2; alone++) {
      l.model.short_bands_alone = alone, l.model.dedup = i % 2;
      assert_int_equal(dt_layer_price(&l.model, &l.costs, &orders[i], 1, &single), DT_OK);
      assert_true(single.total_s > empty.total_s);
    }
}

/* auto: the least price but for differences that mean nothing, and none that promises less than direct. */
static void test_choice(void **state) {
  (void)state;
  layer l;
  dt_layer_choice choice;
  published_layer("mixtral", "balanced", 1024, &l);
  assert_int_equal(dt_layer_choose(&l.model, &l.costs, NULL, &choice), DT_OK);
  assert_int_equal(choice.count, 6);
  for (int i = 0; i < choice.count; i++) {
    assert_true(choice.predicted_s <= 1.005 * choice.total_s[i]);
    if (choice.orders[i].schedule == DT_SCHEDULE_DIRECT) assert_true(choice.predicted_s <= choice.total_s[i]);
    if (choice.orders[i].schedule == DT_SCHEDULE_ALTERNATE) assert_true(choice.total_s[i] > 1.3 * choice.predicted_s);
  }
  published_layer("qwen3-30b", "crossed", 4096, &l); /* the link is the limit: groups */
  assert_int_equal(dt_layer_choose(&l.model, &l.costs, NULL, &choice), DT_OK);
  assert_true(choice.best.schedule == DT_SCHEDULE_INTERLEAVE || choice.best.schedule == DT_SCHEDULE_ALTERNATE);
  const double plain = choice.predicted_s;
  l.model.dedup = 1; /* tokens cross once instead of eight times */
  assert_int_equal(dt_layer_choose(&l.model, &l.costs, NULL, &choice), DT_OK);
  assert_int_equal(choice.count, DT_LAYER_CHOICES);
  assert_true(choice.dedup == 1 && choice.best.schedule == DT_SCHEDULE_INTERLEAVE && choice.predicted_s < 0.9 * plain);
  const dt_layer_order mixed = {.order = DT_ORDER_PACED}, grouped = {.group_tasks = 100};
  assert_int_equal(dt_layer_choose(&l.model, &l.costs, &mixed, &choice), DT_OK);
  assert_true(choice.count == 6 && choice.dedup == 0); /* dedup has natural order alone */
  assert_int_equal(dt_layer_choose(&l.model, &l.costs, &grouped, &choice), DT_OK);
  assert_true(choice.count == 8 && choice.best.group_tasks == 100);
  published_layer("qwen3-30b", "balanced", 128, &l); /* a hundredth of the weights' bytes: nothing to save */
  l.model.dedup = 1;
  assert_int_equal(dt_layer_choose(&l.model, &l.costs, NULL, &choice), DT_OK);
  assert_int_equal(choice.dedup, 0);
}

#define REFUSED(code, name, change)                                                                                    \
  do {                                                                                                                 \
    published_layer("olmoe", "balanced", 128, &l);                                                                     \
    o = orders[1];                                                                                                     \
    change;                                                                                                            \
    assert_int_equal(dt_layer_price(&l.model, &l.costs, &o, 1, &answer), code);                                        \
    assert_non_null(strstr(dt_error_detail(), name));                                                                  \
  } while (0)

static void test_refused(void **state) {
  (void)state;
  dt_platform_device device = {.kind = "cuda", .name = "n", .driver = "d", .date = "2026-11-30", .count = 2};
  dt_platform *p;
  dt_layer_costs costs;
  layer l;
  dt_layer_order o;
  dt_layer_answer answer;
  assert_int_equal(dt_platform_create(&device, &p), DT_OK);
  assert_int_equal(dt_layer_costs_from_platform(p, 2048, 768, SMS, &costs), DT_ERR_INPUT);
  assert_non_null(strstr(dt_error_detail(), "tile_s"));
  assert_int_equal(dt_layer_costs_from_platform(platform, 0, 768, SMS, &costs), DT_ERR_ARGUMENT);
  dt_platform_destroy(p);
  REFUSED(DT_ERR_ARGUMENT, "size", l.model.size = 0);
  REFUSED(DT_ERR_ARGUMENT, "ranks", l.model.ranks = 0);
  REFUSED(DT_ERR_ARGUMENT, "sms", l.model.sms = 1);
  REFUSED(DT_ERR_ARGUMENT, "head", l.model.head = 1025);
  REFUSED(DT_ERR_ARGUMENT, "dedup", l.model.dedup = 2);
  REFUSED(DT_ERR_ARGUMENT, "counts[3]", l.counts[3] = -1);
  REFUSED(DT_ERR_ARGUMENT, "tokens[1]", l.tokens[1] = -1);
  REFUSED(DT_ERR_ARGUMENT, "tokens[1]: 4294967297; 0 to 2^32", l.tokens[1] = ((int64_t)1 << 32) + 1);
  const int64_t rows[RANKS * RANKS] = {0, -1};
  REFUSED(DT_ERR_ARGUMENT, "dispatch_rows[1]", l.model.dispatch_rows = rows);
  REFUSED(DT_ERR_ARGUMENT, "cache_bytes", l.costs.cache_bytes = 0);
  REFUSED(DT_ERR_ARGUMENT, "sim_layer_plan_s", l.costs.plan_s = NAN);
  REFUSED(DT_ERR_ARGUMENT, "sim_layer_least_ratio: 1e+09; 0 to 1000", l.costs.least_ratio = 1e9);
  REFUSED(DT_ERR_ARGUMENT, "quiet_warp_bytes_per_s", l.costs.quiet_warp_bytes_per_s = 5e-324);
  REFUSED(DT_ERR_UNSUPPORTED, "schedule", o.schedule = (dt_schedule)9);
  REFUSED(DT_ERR_ARGUMENT, "consumers", o.schedule = DT_SCHEDULE_SIGNAL; o.consumers = 3);
  REFUSED(DT_ERR_ARGUMENT, "raster_bands", o.raster_bands = 3);
}

/* Costs at the ends of what is allowed: a price is a number, and comes in time. */
static void test_extremes(void **state) {
  (void)state;
  static const double values[] = {0, 1e-12, 1e3, 1e18};
  layer l;
  start_layer(2048, 768, 8, 2, &l);
  for (int i = 0; i < RANKS * 8; i++) l.counts[i] = 20 * i;
  for (int r = 0; r < RANKS; r++) l.tokens[r] = 500;
  int priced = 0;
  for (size_t field = 0; field < sizeof l.costs / sizeof(double); field++)
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
      dt_layer_costs costs = l.costs;
      dt_layer_answer answer;
      memcpy((double *)(void *)&costs + field, &values[i], sizeof values[i]);
      l.model.dedup = field % 2;
      const dt_status status = dt_layer_price(&l.model, &costs, &orders[i + 1], 1, &answer);
      if (status == DT_OK) assert_true(isfinite(answer.total_s) && answer.total_s > 0);
      if (status != DT_OK) assert_int_equal(status, DT_ERR_ARGUMENT);
      priced += status == DT_OK;
    }
  assert_true(priced > 50);
}

/* A constant of the platform replaces what the source has. */
static void test_overridden(void **state) {
  (void)state;
  const dt_platform_constant given = {
      .name = "sim_layer_cache_bytes", .interval = {1e6, 1e6, 1e6}, .n = 1, .method = "given"};
  dt_platform *p;
  dt_layer_costs costs;
  assert_int_equal(dt_platform_load(DT_TEST_DATA "/../../bench/results/h200x2/platform.json", &p), DT_OK);
  assert_int_equal(dt_platform_set_constant(p, &given), DT_OK);
  assert_int_equal(dt_layer_costs_from_platform(p, 2048, 768, SMS, &costs), DT_OK);
  assert_true(costs.cache_bytes == 1e6);
  dt_platform_destroy(p);
}

/* Equations (16) to (20) by hand: 148 producers of 32 KiB, R 717 GB/s, T0 0.76 us, sigma 0.79 us: M* = 1024. */
static void test_piggyback(void **state) {
  (void)state;
  dt_platform_device device = {.kind = "cuda", .name = "n", .driver = "d", .date = "2026-11-30", .count = 8};
  dt_platform *p;
  assert_int_equal(dt_platform_create(&device, &p), DT_OK);
  const struct {
    const char *name;
    double value;
  } constants[] = {{"t0_s", 0.76e-6},        {"rate_bytes_per_s", 717e9},      {"capacity_bytes", 4.25 * 1048576},
                   {"link_latency_s", 2e-6}, {"attention_kv_tile_s", 0.79e-6}, {"fence_sys_s", 1e-6}};
  for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
    double v = constants[i].value;
    dt_platform_constant c = {.name = constants[i].name, .interval = {v, v, v}, .n = 20, .method = "given"};
    assert_int_equal(dt_platform_set_constant(p, &c), DT_OK);
  }
  dt_piggyback_question q = {
      .tokens = 8192, .heads = 4, .head_dim = 128, .ranks = 8, .producers = 148, .tile_rows = 128, .kv_tile = 128};
  dt_piggyback_answer a;
  assert_int_equal(dt_sim_piggyback(p, &q, &a), DT_ERR_INPUT); /* no flag, no floor given */
  assert_non_null(strstr(dt_error_detail(), "flag_release_s"));
  q.floor_s = 16e-6;
  assert_int_equal(dt_sim_piggyback(p, &q, &a), DT_OK);
  assert_true(a.least_tokens == 1024.0);
  assert_true(fabs(a.recovery_gap_s - 6.0e-6) < 0.05e-6);
  assert_true(fabs(a.gap_s - 64 * 0.79e-6) < 1e-12);
  assert_true(a.residual_s == 16e-6); /* flat beyond M* */
  assert_true(fabs(a.coupled_s - (16e-6 + 64 * 4 / 148.0 * 148 * 32768 / 717e9)) < 1e-9);
  q.tokens = 512;
  assert_int_equal(dt_sim_piggyback(p, &q, &a), DT_OK);
  assert_true(a.residual_s > 16e-6 && a.residual_s < a.coupled_s && a.residual_high_s >= a.residual_s);
  assert_true(fabs(a.residual_high_s - a.residual_s) <
              1e-12); /* the queue outlasts the gap: waiting recovers all of it */
  const double few = 1e6, most = 4.25 * 1048576;
  dt_platform_constant capacity = {.name = "capacity_bytes", .interval = {most, few, most}, .n = 20, .method = "given"};
  assert_int_equal(dt_platform_set_constant(p, &capacity), DT_OK);
  assert_int_equal(dt_sim_piggyback(p, &q, &a), DT_OK);
  assert_true(fabs(a.residual_high_s - (16e-6 + 4 * 4 / 148.0 * (148 * 32768 / 717e9 - 0.76e-6 - few / 717e9))) < 1e-9);
  /* A link that may be slower recovers no more of a gap than it is known to. */
  dt_platform_constant rate = {
      .name = "rate_bytes_per_s", .interval = {717e9, 100e9, 717e9}, .n = 20, .method = "given"};
  assert_int_equal(dt_platform_set_constant(p, &rate), DT_OK);
  capacity.interval.low = most;
  assert_int_equal(dt_platform_set_constant(p, &capacity), DT_OK);
  q.tokens = 2048;
  assert_int_equal(dt_sim_piggyback(p, &q, &a), DT_OK);
  assert_true(a.gap_s > most / 717e9 && a.gap_s < most / 100e9);
  assert_true(fabs(a.residual_high_s - (16e-6 + 16 * 4 / 148.0 * (148 * 32768 / 100e9 - 0.76e-6 - most / 717e9))) <
              1e-9);
  q.tokens = 8192 + 1; /* a tile and a block of keys more, each for one row */
  assert_int_equal(dt_sim_piggyback(p, &q, &a), DT_OK);
  assert_true(fabs(a.bursts - 65 * 4 / 148.0) < 1e-12 && fabs(a.gap_s - 65 * 0.79e-6) < 1e-12);
  assert_true(fabs(a.attention_s - 2 * a.gap_s) < 1e-12);
  q.tokens = NAN;
  assert_int_equal(dt_sim_piggyback(p, &q, &a), DT_ERR_ARGUMENT);
  q.tokens = q.heads = 1e200;
  assert_int_equal(dt_sim_piggyback(p, &q, &a), DT_ERR_ARGUMENT);
  assert_non_null(strstr(dt_error_detail(), "tokens, heads: 1e+200, 1e+200; fewer"));
  q.tokens = q.heads = 64;
  dt_platform_constant sigma = {
      .name = "attention_kv_tile_s", .interval = {-1e-6, -1e-6, 0}, .n = 20, .method = "given"};
  assert_int_equal(dt_platform_set_constant(p, &sigma), DT_OK);
  assert_int_equal(dt_sim_piggyback(p, &q, &a), DT_ERR_INPUT);
  assert_non_null(strstr(dt_error_detail(), "attention_kv_tile_s: -1e-06; 0 or more"));
  dt_platform_destroy(p);
}

/* auto takes direct unless another promises 0.5 % more: with some of these numbers of rows one does, with others a
 * little less. */
static void test_direct_unless_more(void **state) {
  (void)state;
  int less = 0, more = 0;
  layer l;
  start_layer(512, 1024, 16, 2, &l);
  for (int32_t rows = 50; rows <= 80; rows++) {
    for (int r = 0; r < RANKS; r++) l.tokens[r] = 8 * rows;
    for (int i = 0; i < RANKS * 16; i++) l.counts[i] = rows;
    dt_layer_choice choice;
    assert_int_equal(dt_layer_choose(&l.model, &l.costs, NULL, &choice), DT_OK);
    assert_int_equal(choice.orders[0].schedule, DT_SCHEDULE_DIRECT);
    double least = choice.total_s[0];
    for (int c = 1; c < choice.count; c++) least = fmin(least, choice.total_s[c]);
    const int gains = least * 1.005 < choice.total_s[0];
    assert_int_equal(choice.best.schedule == DT_SCHEDULE_DIRECT, !gains);
    assert_true(choice.predicted_s == (gains ? least : choice.total_s[0]));
    less += least < choice.total_s[0] && !gains;
    more += gains;
  }
  assert_true(less > 0 && more > 0);
}

/* And without dedup unless a form with it promises 1.5 % more: the slower the link, the more it does. */
static void test_dedup_if_more(void **state) {
  (void)state;
  int less = 0, more = 0;
  layer l;
  published_layer("qwen3-235b", "crossed", 1024, &l);
  const double rate = l.costs.link_bytes_per_s;
  l.model.dedup = 1;
  for (int i = 1; i <= 6; i++) {
    l.costs.link_bytes_per_s = rate * (1.0 - 0.03 * i);
    dt_layer_choice choice;
    assert_int_equal(dt_layer_choose(&l.model, &l.costs, NULL, &choice), DT_OK);
    double plain = INFINITY, with = INFINITY;
    for (int c = 0; c < choice.count; c++) {
      const double total_s = choice.total_s[c];
      const int direct = choice.orders[c].schedule == DT_SCHEDULE_DIRECT;
      if (choice.dedups[c]) with = fmin(with, total_s);
      if (!choice.dedups[c]) plain = fmin(plain, direct ? total_s : 1.005 * total_s);
    }
    assert_int_equal(choice.dedup, with * 1.015 < plain);
    less += with * 1.005 < plain && !choice.dedup;
    more += choice.dedup;
  }
  assert_true(less > 0 && more > 0);
}

/* Files hold the attention kernel's own tile of keys, older ones that of a stand-in: both answer. */
static void test_key_tile(void **state) {
  (void)state;
  static const struct {
    const char *file, *method;
    double low, high;
  } files[] = {{DT_TEST_DATA "/../../bench/results/h200/platform.json", "the attention kernel", 1.1e-6, 1.6e-6},
               {DT_TEST_DATA "/../../bench/results/h200x2/platform.json", "stand-in", 2.5e-6, 3.2e-6}};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    dt_platform *p;
    dt_interval tile;
    assert_int_equal(dt_platform_load(files[i].file, &p), DT_OK);
    assert_int_equal(dt_platform_lookup(p, "attention_kv_tile_s", &tile), DT_OK);
    assert_true(files[i].low < tile.value && tile.value < files[i].high);
    const dt_platform_constant *constant = dt_platform_find_constant(p, "attention_kv_tile_s");
    assert_non_null(constant);
    assert_int_equal(strncmp(constant->method, files[i].method, strlen(files[i].method)), 0);
    dt_platform_destroy(p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_measured_layers),
      cmocka_unit_test(test_few_tokens),
      cmocka_unit_test(test_quiet_warp),
      cmocka_unit_test(test_orders_with_dedup),
      cmocka_unit_test(test_memory_latency),
      cmocka_unit_test(test_together),
      cmocka_unit_test(test_prototype_orders),
      cmocka_unit_test(test_dedup),
      cmocka_unit_test(test_edges),
      cmocka_unit_test(test_choice),
      cmocka_unit_test(test_refused),
      cmocka_unit_test(test_extremes),
      cmocka_unit_test(test_overridden),
      cmocka_unit_test(test_piggyback),
      cmocka_unit_test(test_direct_unless_more),
      cmocka_unit_test(test_dedup_if_more),
      cmocka_unit_test(test_key_tile),
  };
  return cmocka_run_group_tests(tests, load_platform, free_platform);
}
