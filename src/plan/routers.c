/* Counts of the combine benchmark's routers. Pure: the same seed gives the same counts everywhere. */
#include <draintile/combine.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/random.h"

/* Every source deals its slots around one shuffled list of all experts, starting where the source before it stopped. */
static void route_balanced(dt_random *random, int32_t ranks, int32_t experts, int64_t rows, int32_t *list,
                           int32_t *counts) {
  for (int32_t i = 0; i < experts; i++) list[i] = i;
  dt_random_shuffle(random, list, experts);
  int64_t at = 0;
  for (int32_t s = 0; s < ranks; s++)
    for (int64_t i = 0; i < rows; i++, at++) counts[(int64_t)s * experts + list[at % experts]]++;
}

static void route_moderate(dt_random *random, int32_t ranks, int32_t experts, int64_t rows, int32_t *list, double *upto,
                           int32_t *counts) {
  for (int32_t i = 0; i < experts; i++) list[i] = i;
  dt_random_shuffle(random, list, experts);
  double sum = 0;
  for (int32_t i = 0; i < experts; i++) upto[i] = sum += pow(list[i] + 1, -0.5);
  for (int32_t s = 0; s < ranks; s++)
    for (int64_t i = 0; i < rows / 2; i++) {
      const int32_t first = dt_random_draw(random, upto, experts);
      int32_t second = first;
      while (second == first) second = dt_random_draw(random, upto, experts);
      counts[(int64_t)s * experts + first]++;
      counts[(int64_t)s * experts + second]++;
    }
}

static void route_stress(dt_random *random, int32_t ranks, int32_t experts, int64_t rows, int32_t *counts) {
  const int32_t hot = experts / 8 > 0 ? experts / 8 : 1;
  for (int32_t s = 0; s < ranks; s++)
    for (int64_t i = 0; i < rows / 2; i++) {
      const int32_t first = (int32_t)dt_random_below(random, (uint64_t)hot);
      int32_t second = first;
      while (second == first) second = (int32_t)dt_random_below(random, (uint64_t)experts);
      counts[(int64_t)s * experts + first]++;
      counts[(int64_t)s * experts + second]++;
    }
}

static void route_crossed(int32_t ranks, int32_t experts_per_rank, int64_t rows, int32_t *counts) {
  for (int32_t s = 0; s < ranks; s++) {
    const int32_t to = (s + ranks - 1) % ranks;
    for (int32_t e = 0; e < experts_per_rank; e++)
      counts[((int64_t)s * ranks + to) * experts_per_rank + e] =
          (int32_t)(rows / experts_per_rank + (e < rows % experts_per_rank));
  }
}

dt_status dt_combine_route(dt_combine_router router, uint64_t seed, int32_t ranks, int32_t experts_per_rank,
                           int64_t rows, int32_t *counts) {
  const int64_t experts = (int64_t)ranks * experts_per_rank;
  if (ranks < 1 || ranks > 64) return dt_fail(DT_ERR_ARGUMENT, "ranks: %d; 1 to 64 allowed", ranks);
  if (experts_per_rank < 1 || experts_per_rank > 4000)
    return dt_fail(DT_ERR_ARGUMENT, "experts_per_rank: %d; 1 to 4000 allowed", experts_per_rank);
  if (router != DT_ROUTER_CROSSED && experts < 2)
    return dt_fail(DT_ERR_ARGUMENT, "experts_per_rank: %d; two experts a token need two", experts_per_rank);
  if (rows < 0 || rows > INT32_MAX || (router != DT_ROUTER_CROSSED && rows % 2 != 0))
    return dt_fail(DT_ERR_ARGUMENT, "rows: %lld; 0 to %d allowed, even for two experts a token", (long long)rows,
                   INT32_MAX);
  int32_t *list = malloc((size_t)experts * sizeof *list);
  double *upto = malloc((size_t)experts * sizeof *upto);
  if (!list || !upto) {
    free(list), free(upto);
    return dt_fail(DT_ERR_MEMORY, "router: %lld experts", (long long)experts);
  }
  memset(counts, 0, (size_t)(ranks * experts) * sizeof *counts);
  dt_random random = {seed};
  dt_status status = DT_OK;
  switch (router) {
  case DT_ROUTER_BALANCED:
    route_balanced(&random, ranks, (int32_t)experts, rows, list, counts);
    break;
  case DT_ROUTER_MODERATE:
    route_moderate(&random, ranks, (int32_t)experts, rows, list, upto, counts);
    break;
  case DT_ROUTER_STRESS:
    route_stress(&random, ranks, (int32_t)experts, rows, counts);
    break;
  case DT_ROUTER_CROSSED:
    route_crossed(ranks, experts_per_rank, rows, counts);
    break;
  default:
    status = dt_fail(DT_ERR_ARGUMENT, "router: %d; 0 to 3 allowed", (int)router);
  }
  free(list), free(upto);
  return status;
}
