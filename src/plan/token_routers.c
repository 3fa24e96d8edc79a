/* Defaults, shapes and routers of the layer benchmark. Pure: the same seed gives the same ids everywhere. */
#include <draintile/moe_bench.h>

#include <math.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/random.h"

static const dt_moe_shape shapes[DT_MOE_SHAPES] = {
#define DT_MOE_SHAPE_ROW(name, hidden, intermediate, experts, top_k) {name, hidden, intermediate, experts, top_k},
    DT_MOE_SHAPE_TABLE(DT_MOE_SHAPE_ROW)
#undef DT_MOE_SHAPE_ROW
};

const dt_moe_shape *dt_moe_shape_at(int32_t index) {
  return index >= 0 && index < DT_MOE_SHAPES ? &shapes[index] : NULL;
}

void dt_moe_bench_config_init(dt_moe_bench_config *config) {
  *config = (dt_moe_bench_config){.size = sizeof *config,
                                  .ranks = 2,
                                  .max_tokens = 8192,
                                  .repeat = 20,
                                  .warm_up = 3,
                                  .checked_tokens = 16,
                                  .seed = 1,
                                  .timeout_s = 10};
}

static int holds(const int32_t *ids, int32_t count, int32_t id) {
  for (int32_t i = 0; i < count; i++)
    if (ids[i] == id) return 1;
  return 0;
}

/* Deals `list` round by round, shuffled anew for each. A token that spans two rounds may find one of its experts at the
 * front of the second: the next that it lacks changes places with it. */
static void deal(dt_random *random, int32_t *list, int32_t count, int32_t *at, int64_t tokens, int32_t top_k,
                 int32_t *ids) {
  for (int64_t t = 0; t < tokens; t++, ids += top_k)
    for (int32_t c = 0; c < top_k; c++) {
      if (*at == count) {
        dt_random_shuffle(random, list, count);
        *at = 0;
      }
      int32_t other = *at;
      while (holds(ids, c, list[other])) other++;
      ids[c] = list[other];
      list[other] = list[*at];
      list[(*at)++] = ids[c];
    }
}

static void draw_tokens(dt_random *random, const double *upto, int32_t count, int64_t tokens, int32_t top_k,
                        int32_t *ids) {
  for (int64_t t = 0; t < tokens; t++, ids += top_k)
    for (int32_t c = 0; c < top_k; c++) {
      do ids[c] = dt_random_draw(random, upto, count);
      while (holds(ids, c, ids[c]));
    }
}

static void fill_weights(dt_random *random, int64_t tokens, int32_t top_k, float *weights) {
  for (int64_t t = 0; t < tokens; t++, weights += top_k) {
    double sum = 0, value[top_k];
    for (int32_t c = 0; c < top_k; c++) sum += value[c] = 0.1 + dt_random_unit(random);
    for (int32_t c = 0; c < top_k; c++) weights[c] = (float)(value[c] / sum);
  }
}

static dt_status check(dt_moe_router router, int32_t ranks, int32_t experts, int32_t top_k, int64_t tokens) {
  if (ranks < 1 || ranks > 64) return dt_fail(DT_ERR_ARGUMENT, "ranks: %d; 1 to 64 allowed", ranks);
  if (experts < 1 || experts > 1 << 20 || experts % ranks)
    return dt_fail(DT_ERR_ARGUMENT, "experts: %d; a multiple of the %d ranks up to 2^20", experts, ranks);
  const int32_t reach = router == DT_MOE_ROUTER_CROSSED ? experts / ranks : experts;
  if (top_k < 1 || top_k > reach || top_k > 64)
    return dt_fail(DT_ERR_ARGUMENT, "top_k: %d; 1 to %d allowed", top_k, reach < 64 ? reach : 64);
  if (tokens < 0 || tokens > 1 << 24)
    return dt_fail(DT_ERR_ARGUMENT, "tokens: %lld; 0 to 2^24 allowed", (long long)tokens);
  if (router != DT_MOE_ROUTER_BALANCED && router != DT_MOE_ROUTER_SKEWED && router != DT_MOE_ROUTER_CROSSED)
    return dt_fail(DT_ERR_ARGUMENT, "router: %d; 0 to 2 allowed", (int)router);
  return DT_OK;
}

dt_status dt_moe_route(dt_moe_router router, uint64_t seed, int32_t ranks, int32_t experts, int32_t top_k,
                       int64_t tokens, int32_t *ids, float *weights) {
  const dt_status status = check(router, ranks, experts, top_k, tokens);
  if (status) return status;
  int32_t *list = malloc((size_t)experts * sizeof *list);
  double *upto = malloc((size_t)experts * sizeof *upto);
  if (!list || !upto) {
    free(list), free(upto);
    return dt_fail(DT_ERR_MEMORY, "router: %d experts", experts);
  }
  dt_random random = {seed};
  const int64_t slots = tokens * top_k;
  int32_t reach = experts, at = experts;
  for (int32_t i = 0; i < experts; i++) list[i] = i;
  if (router == DT_MOE_ROUTER_SKEWED) {
    double sum = 0;
    dt_random_shuffle(&random, list, experts);
    for (int32_t i = 0; i < experts; i++) upto[i] = sum += pow(list[i] + 1, -0.5);
  }
  for (int32_t s = 0; s < ranks; s++) {
    if (router == DT_MOE_ROUTER_CROSSED) {
      reach = at = experts / ranks;
      for (int32_t i = 0; i < reach; i++) list[i] = (s + 1) % ranks * reach + i;
    }
    if (router == DT_MOE_ROUTER_SKEWED)
      draw_tokens(&random, upto, experts, tokens, top_k, ids + s * slots);
    else
      deal(&random, list, reach, &at, tokens, top_k, ids + s * slots);
  }
  fill_weights(&random, tokens * ranks, top_k, weights);
  free(list), free(upto);
  return DT_OK;
}
