#include <math.h>
#include <stdlib.h>

#include "log.h"
#include "random.h"
#include "synthetic.h"

const char *const synthetic_routing_names[] = {"balanced", "moderate_skew", "stress_skew", NULL};

static int contains(const int32_t *ids, int32_t count, int32_t id) {
  for (int32_t i = 0; i < count; i++)
    if (ids[i] == id) return 1;
  return 0;
}

static void shuffle(int32_t *values, int32_t count, uint64_t *state) {
  for (int32_t i = count - 1; i > 0; i--) {
    int32_t j = (int32_t)random_below(state, (uint64_t)i + 1), held = values[i];
    values[i] = values[j];
    values[j] = held;
  }
}

/* The first entry of `cumulative` above a uniform draw. */
static int32_t draw(const double *cumulative, int32_t count, uint64_t *state) {
  double u = random_unit(state) * cumulative[count - 1];
  int32_t low = 0, high = count - 1;
  while (low < high) {
    int32_t middle = low + (high - low) / 2;
    if (cumulative[middle] > u)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

static void route_token(synthetic_routing routing, int64_t token, int32_t experts, int32_t top_k, const int32_t *order,
                        const double *cumulative, uint64_t *state, int32_t *ids) {
  if (routing == SYNTHETIC_BALANCED) {
    for (int32_t k = 0; k < top_k; k++) ids[k] = order[(token * top_k + k) % experts];
    return;
  }
  int32_t hot = experts / 8 > 0 ? experts / 8 : 1;
  int32_t wanted = (int32_t)((top_k + (token & 1)) / 2);
  if (wanted > hot) wanted = hot;
  for (int32_t k = 0; k < top_k;) {
    int32_t id;
    if (routing == SYNTHETIC_MODERATE_SKEW)
      id = order[draw(cumulative, experts, state)];
    else
      id = (int32_t)random_below(state, (uint64_t)(k < wanted ? hot : experts));
    if (!contains(ids, k, id)) ids[k++] = id;
  }
}

int synthetic_route(synthetic_routing routing, int64_t tokens, int32_t experts, int32_t top_k, uint64_t seed,
                    int32_t *ids) {
  uint64_t state = random_seed_of(seed, "routing");
  int32_t *order = calloc((size_t)experts, sizeof(*order));
  double *cumulative = calloc((size_t)experts, sizeof(*cumulative)), sum = 0;
  if (!order || !cumulative) {
    free(order);
    free(cumulative);
    return log_out_of_memory();
  }
  for (int32_t i = 0; i < experts; i++) {
    order[i] = i;
    cumulative[i] = sum += 1 / sqrt(i + 1.0);
  }
  shuffle(order, experts, &state);
  for (int64_t token = 0; token < tokens; token++)
    route_token(routing, token, experts, top_k, order, cumulative, &state, ids + token * top_k);
  free(cumulative);
  free(order);
  return TOOL_OK;
}
