/* Prices rows of the MoE benchmark by a platform file, without a GPU:
 *   bench_layer_prices PLATFORM.json [--short-bands-alone] [--set NAME VALUE]... < ROWS > PRICES
 * ROWS are lines "model router tokens" of two ranks, seed 1; a line of PRICES is the row, L1 and L2 alone, serial,
 * direct, wave, interleave and alternate, in us, then direct's bytes from memory. scripts/moe_prices.sh compares them
 * with what was measured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <draintile/moe_bench.h>
#include <draintile/platform.h>
#include <draintile/simulate.h>

enum { RANKS = 2, SEED = 1, SMS = 132, ORDERS = 5 };

static int fail(const char *what) {
  fprintf(stderr, "bench_layer_prices: %s: %s\n", what, dt_error_detail());
  return 1;
}

static int price(const dt_platform *platform, const char *name, const char *router_name, long tokens, int alone) {
  static const dt_layer_order orders[ORDERS] = {{.schedule = DT_SCHEDULE_SERIAL},
                                                {.schedule = DT_SCHEDULE_DIRECT},
                                                {.schedule = DT_SCHEDULE_WAVE},
                                                {.schedule = DT_SCHEDULE_INTERLEAVE},
                                                {.schedule = DT_SCHEDULE_ALTERNATE}};
  const dt_moe_shape *shape = dt_moe_shape_find(name);
  dt_moe_router router;
  if (!shape || dt_moe_router_parse(router_name, &router) || tokens < 1) return fail("row");
  const size_t slots = (size_t)RANKS * (size_t)tokens * (size_t)shape->top_k;
  const int64_t each[RANKS] = {tokens, tokens};
  int32_t *ids = malloc(slots * sizeof *ids), *counts = calloc((size_t)RANKS * (size_t)shape->experts, sizeof *counts);
  float *weights = malloc(slots * sizeof *weights);
  if (!ids || !counts || !weights) return fail("memory");
  int bad = dt_moe_route(router, SEED, RANKS, shape->experts, shape->top_k, tokens, ids, weights) != DT_OK;
  for (size_t i = 0; i < slots && !bad; i++) counts[i / (slots / RANKS) * (size_t)shape->experts + (size_t)ids[i]]++;
  dt_layer_model model;
  dt_moe_shape_model(shape, RANKS, &model);
  model.sms = SMS;
  model.counts = counts;
  model.tokens = each;
  model.short_bands_alone = alone;
  dt_layer_costs costs;
  dt_layer_answer answers[ORDERS];
  double compute = 0.0;
  bad = bad || dt_layer_costs_from_platform(platform, shape->hidden, shape->intermediate, SMS, &costs) ||
        dt_layer_price_alone(&model, &costs, &compute) || dt_layer_price(&model, &costs, orders, ORDERS, answers);
  free(ids), free(counts), free(weights);
  if (bad) return fail(name);
  printf("%s %s %ld %.2f", name, router_name, tokens, 1e6 * compute);
  for (int i = 0; i < ORDERS; i++) printf(" %.2f", 1e6 * answers[i].total_s);
  printf(" %.4g\n", answers[1].memory_bytes);
  fflush(stdout);
  return 0;
}

int main(int count, char **values) {
  dt_platform *platform = NULL;
  int alone = 0;
  if (count < 2 || dt_platform_load(values[1], &platform)) return fail(count < 2 ? "platform file missing" : values[1]);
  for (int i = 2; i < count; i++) {
    if (strcmp(values[i], "--short-bands-alone") == 0) {
      alone = 1;
    } else if (strcmp(values[i], "--set") == 0 && i + 2 < count) {
      const double value = strtod(values[i + 2], NULL);
      const dt_platform_constant constant = {
          .name = values[i + 1], .interval = {value, value, value}, .n = 1, .method = "given"};
      if (dt_platform_set_constant(platform, &constant)) return fail(values[i + 1]);
      i += 2;
    } else {
      return fail(values[i]);
    }
  }
  char name[64], router[32];
  long tokens;
  int bad = 0;
  while (!bad && scanf("%63s %31s %ld", name, router, &tokens) == 3) bad = price(platform, name, router, tokens, alone);
  dt_platform_destroy(platform);
  return bad;
}
