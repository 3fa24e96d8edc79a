/* Routers, in float32. A token's logits come from its own row alone, to the bit: a library's sgemm picks another order
 * of summation by matrix size and row position, so that tokens near a tie would change experts with the rank count. */
#include <draintile/checkpoint.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

enum { BLOCK = 64 };

/* Scores, what they are chosen by (the scores, or a corrected copy), and which groups are open. */
typedef struct scratch {
  float *rows;          /* [BLOCK][hidden] */
  float *logits;        /* [BLOCK][experts] */
  float *choice;        /* [experts] */
  float *group;         /* [groups] */
  unsigned char *taken; /* [max(experts, groups)] */
} scratch;

/* The k largest values in descending order, ties by ascending index; values[i] = -infinity is still eligible. */
static void top_k(const float *values, int32_t count, int32_t k, unsigned char *taken, int32_t *ids) {
  memset(taken, 0, (size_t)count);
  for (int32_t n = 0; n < k; n++) {
    int32_t best = -1;
    for (int32_t i = 0; i < count; i++) {
      if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
    }
    taken[best] = 1;
    ids[n] = best;
  }
}

static void softmax(float *values, int32_t count) {
  float most = -INFINITY, sum = 0.0f;
  for (int32_t i = 0; i < count; i++) most = values[i] > most ? values[i] : most;
  for (int32_t i = 0; i < count; i++) {
    values[i] = expf(values[i] - most);
    sum += values[i];
  }
  for (int32_t i = 0; i < count; i++) values[i] /= sum;
}

static void divide_by_sum(float *weights, int32_t count, float added) {
  float sum = 0.0f;
  for (int32_t i = 0; i < count; i++) sum += weights[i];
  for (int32_t i = 0; i < count; i++) weights[i] /= sum + added;
}

/* A group's score is the sum of its two best corrected scores; experts of closed groups cannot be chosen. */
static void close_groups(const dt_router *router, const scratch *s) {
  int32_t width = router->experts / router->groups;
  for (int32_t g = 0; g < router->groups; g++) {
    float first = -INFINITY, second = -INFINITY;
    for (int32_t i = g * width; i < (g + 1) * width; i++) {
      float value = s->choice[i];
      if (value > first) {
        second = first;
        first = value;
      } else if (value > second) {
        second = value;
      }
    }
    s->group[g] = first + second;
  }
  for (int32_t closed = router->groups - router->group_top_k; closed > 0; closed--) {
    int32_t worst = -1; /* ties: the higher index closes first */
    for (int32_t g = 0; g < router->groups; g++) {
      if (!isnan(s->group[g]) && (worst < 0 || s->group[g] <= s->group[worst])) worst = g;
    }
    s->group[worst] = NAN;
    for (int32_t i = worst * width; i < (worst + 1) * width; i++) s->choice[i] = -INFINITY;
  }
}

/* One token: logits (overwritten) to ids and weights. */
static void route(const dt_router *router, const scratch *s, float *logits, int32_t *ids, float *weights) {
  int32_t experts = router->experts, k = router->top_k;
  switch (router->score) {
  case DT_ROUTER_SOFTMAX:
    softmax(logits, experts);
    top_k(logits, experts, k, s->taken, ids);
    for (int32_t i = 0; i < k; i++) weights[i] = logits[ids[i]];
    if (router->normalize) divide_by_sum(weights, k, 0.0f);
    break;
  case DT_ROUTER_TOPK_SOFTMAX:
    top_k(logits, experts, k, s->taken, ids);
    for (int32_t i = 0; i < k; i++) weights[i] = logits[ids[i]];
    softmax(weights, k);
    break;
  case DT_ROUTER_SIGMOID_GROUPS:
    for (int32_t i = 0; i < experts; i++) {
      logits[i] = 1.0f / (1.0f + expf(-logits[i]));
      s->choice[i] = logits[i] + (router->correction ? router->correction[i] : 0.0f);
    }
    close_groups(router, s);
    top_k(s->choice, experts, k, s->taken, ids);
    for (int32_t i = 0; i < k; i++) weights[i] = logits[ids[i]];
    if (router->normalize) divide_by_sum(weights, k, 1e-20f);
    for (int32_t i = 0; i < k; i++) weights[i] *= router->scale;
    break;
  }
}

/* Finds the first row that holds a NaN or an infinity; -1: none. */
static int64_t find_not_finite(const float *rows, int64_t count, int64_t width) {
  for (int64_t i = 0; i < count; i++) {
    float poison = 0.0f; /* stays 0 unless a value is not finite */
    for (int64_t j = 0; j < width; j++) poison += rows[i * width + j] * 0.0f;
    if (poison != 0.0f) return i;
  }
  return -1;
}

typedef float lanes __attribute__((vector_size(16)));
enum { LANES = 4, TOKENS = 4, EXPERTS = 2 }; /* TOKENS*EXPERTS sums in flight hide the latency of an add */

static lanes load(const float *from) {
  lanes value;
  memcpy(&value, from, sizeof value);
  return value;
}

/* Dot products of all pairs, each summed in the same order: by lanes, then across them, then the rest of the row. */
static void dot_pairs(const float *const x[TOKENS], const float *const w[EXPERTS], int64_t width,
                      float out[TOKENS][EXPERTS]) {
  lanes sums[TOKENS][EXPERTS] = {{{0}}};
  int64_t whole = width / LANES * LANES;
  for (int64_t j = 0; j < whole; j += LANES) {
    lanes w0 = load(w[0] + j), w1 = load(w[1] + j);
    for (int i = 0; i < TOKENS; i++) {
      lanes xi = load(x[i] + j);
      sums[i][0] += xi * w0;
      sums[i][1] += xi * w1;
    }
  }
  for (int i = 0; i < TOKENS; i++) {
    for (int e = 0; e < EXPERTS; e++) {
      lanes sum = sums[i][e];
      out[i][e] = (sum[0] + sum[2]) + (sum[1] + sum[3]);
      for (int64_t j = whole; j < width; j++) out[i][e] += x[i][j] * w[e][j];
    }
  }
}

/* Where rows or experts run out, the last one is computed again. */
static void compute_logits(const dt_router *router, const float *rows, int64_t count, float *logits) {
  int64_t width = router->hidden, experts = router->experts;
  for (int64_t e0 = 0; e0 < experts; e0 += EXPERTS) {
    int64_t expert[EXPERTS];
    const float *w[EXPERTS];
    for (int64_t e = 0; e < EXPERTS; e++) {
      expert[e] = e0 + e < experts ? e0 + e : experts - 1;
      w[e] = router->weight + expert[e] * width;
    }
    for (int64_t i0 = 0; i0 < count; i0 += TOKENS) {
      int64_t row[TOKENS];
      const float *x[TOKENS];
      float out[TOKENS][EXPERTS];
      for (int64_t i = 0; i < TOKENS; i++) {
        row[i] = i0 + i < count ? i0 + i : count - 1;
        x[i] = rows + row[i] * width;
      }
      dot_pairs(x, w, width, out);
      for (int i = 0; i < TOKENS; i++) {
        for (int e = 0; e < EXPERTS; e++) logits[row[i] * experts + expert[e]] = out[i][e];
      }
    }
  }
}

static dt_status route_block(const dt_router *router, const scratch *s, const dt_matrix *hidden, int64_t first,
                             int64_t count, int32_t *ids, float *weights) {
  int32_t experts = router->experts, k = router->top_k;
  dt_matrix_widen(hidden, first, count, s->rows);
  int64_t bad = find_not_finite(s->rows, count, router->hidden);
  if (bad >= 0) {
    return dt_fail(DT_ERR_INPUT,
                   "hidden_states: token %" PRId64 " holds a NaN or an infinity; only finite values are allowed",
                   first + bad);
  }
  compute_logits(router, s->rows, count, s->logits);
  for (int64_t i = 0; i < count; i++) {
    float *logits = s->logits + i * experts;
    for (int32_t e = 0; e < experts; e++) {
      if (router->bias) logits[e] += router->bias[e];
      if (!isfinite(logits[e])) {
        return dt_fail(DT_ERR_INPUT, "router: the logit of token %" PRId64 " for expert %d is not finite", first + i,
                       e);
      }
    }
    route(router, s, logits, ids + (first + i) * k, weights + (first + i) * k);
  }
  return DT_OK;
}

static dt_status check_groups(const dt_router *router) {
  if (router->groups < 1 || router->experts % router->groups || router->experts / router->groups < 2 ||
      router->group_top_k < 1 || router->group_top_k > router->groups) {
    return dt_fail(DT_ERR_ARGUMENT,
                   "groups: %d of which %d; must divide %d experts into 2 or more each, and 1 to groups be open",
                   router->groups, router->group_top_k, router->experts);
  }
  const int32_t open = router->experts / router->groups * router->group_top_k;
  if (router->top_k <= open) return DT_OK;
  return dt_fail(DT_ERR_ARGUMENT, "top_k: %d; allowed are 1 to %d, the experts of %d groups", router->top_k, open,
                 router->group_top_k);
}

static dt_status check_router(const dt_router *router, dt_dtype dtype, int64_t tokens) {
  if ((unsigned)router->score > DT_ROUTER_SIGMOID_GROUPS) {
    return dt_fail(DT_ERR_ARGUMENT, "score: %d; allowed are 0 to %d", (int)router->score, DT_ROUTER_SIGMOID_GROUPS);
  }
  if (router->hidden < 1 || router->hidden > INT32_MAX || router->experts < 1 || !router->weight) {
    return dt_fail(DT_ERR_ARGUMENT, "weight: %d experts of %" PRId64 " values%s; allowed are 1 to %d each, given",
                   router->experts, router->hidden, router->weight ? "" : ", missing", INT32_MAX);
  }
  if (tokens < 0) return dt_fail(DT_ERR_ARGUMENT, "tokens: %" PRId64 "; 0 or more are allowed", tokens);
  if (dtype != DT_DTYPE_F32 && dtype != DT_DTYPE_BF16 && dtype != DT_DTYPE_F16) {
    return dt_fail(DT_ERR_ARGUMENT, "hidden_states: dtype %s; allowed are f32, bf16 and f16", dt_dtype_name(dtype));
  }
  if (router->top_k < 1 || router->top_k > router->experts) {
    return dt_fail(DT_ERR_ARGUMENT, "top_k: %d; allowed are 1 to %d experts", router->top_k, router->experts);
  }
  if (router->score == DT_ROUTER_SIGMOID_GROUPS) {
    dt_status status = check_groups(router);
    if (status != DT_OK) return status;
  }
  for (int32_t e = 0; router->correction && e < router->experts; e++) {
    if (!isfinite(router->correction[e])) {
      return dt_fail(DT_ERR_INPUT, "router: e_score_correction_bias of expert %d is not finite", e);
    }
  }
  return DT_OK;
}

dt_status dt_router_run(const dt_router *router, dt_dtype dtype, const void *hidden, int64_t tokens, int32_t *ids,
                        float *weights) {
  dt_status status = check_router(router, dtype, tokens);
  if (status != DT_OK || tokens == 0) return status;
  if (!hidden || !ids || !weights) {
    return dt_fail(DT_ERR_ARGUMENT, "hidden, ids, weights: must be given for %" PRId64 " tokens", tokens);
  }
  size_t experts = (size_t)router->experts, floats = BLOCK * ((size_t)router->hidden + experts) + 2 * experts;
  float *memory = malloc(floats * sizeof *memory + experts);
  if (!memory) return dt_fail(DT_ERR_MEMORY, "router: no memory for %zu floats", floats);
  scratch s = {.rows = memory, .logits = memory + BLOCK * (size_t)router->hidden};
  s.choice = s.logits + BLOCK * experts;
  s.group = s.choice + experts; /* groups <= experts */
  s.taken = (unsigned char *)(memory + floats);
  dt_matrix rows = {.data = hidden,
                    .dtype = dtype,
                    .rows = tokens,
                    .cols = router->hidden,
                    .row_stride = router->hidden,
                    .col_stride = 1};
  for (int64_t first = 0; first < tokens && status == DT_OK; first += BLOCK) {
    int64_t count = tokens - first < BLOCK ? tokens - first : BLOCK;
    status = route_block(router, &s, &rows, first, count, ids, weights);
  }
  free(memory);
  return status;
}
