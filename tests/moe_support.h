/* Random MoE layers, their float64 results, and a body that runs them on a rank. */
#ifndef DT_TESTS_MOE_SUPPORT_H
#define DT_TESTS_MOE_SUPPORT_H

#include "comm_ranks.h"

#include <math.h>

#include <draintile/moe.h>
#include <draintile/reference.h>

#include "core/random.h"
#include "cpu/kernels.h"

typedef enum routing {
  ROUTE_RANDOM,    /* distinct experts */
  ROUTE_DROPS,     /* a tenth of the slots dropped */
  ROUTE_LAST_RANK, /* all to the last rank's experts */
  ROUTE_ONE_EXPERT /* the first choice is expert 0, the others are dropped */
} routing;

typedef struct layer_shape {
  int32_t ranks, experts_per_rank, top_k;
  int64_t hidden, intermediate, shared_intermediate;
  dt_dtype dtype, weight_dtype;
  dt_activation activation;
  int biases, shared_gate;
  routing route;
  int64_t tokens[RANKS_MAX];
  int64_t check_every; /* of the tokens, how many apart are compared with float64; 0: all */
  uint64_t seed;
} layer_shape;

typedef struct layer {
  layer_shape shape;
  dt_moe_weights weights[RANKS_MAX];
  dt_expert *experts; /* [ranks*experts_per_rank] */
  dt_moe_input input[RANKS_MAX];
  double *expected[RANKS_MAX];      /* [tokens][hidden] */
  unsigned char *serial[RANKS_MAX]; /* outputs; shared between processes */
  unsigned char *output[RANKS_MAX];
} layer;

static inline float *random_floats(dt_random *random, int64_t count, double scale) {
  float *values = malloc((size_t)(count ? count : 1) * sizeof(float));
  for (int64_t i = 0; i < count; i++) values[i] = (float)(scale * (2 * dt_random_unit(random) - 1));
  return values;
}

static inline dt_matrix random_matrix(dt_random *random, dt_dtype dtype, int64_t rows, int64_t cols) {
  float *values = random_floats(random, rows * cols, sqrt(3.0 / (double)cols));
  void *data = values;
  if (dtype != DT_DTYPE_F32) {
    data = malloc((size_t)(rows * cols) * sizeof(uint16_t));
    dt_round_row(dtype, values, rows * cols, data);
    free(values);
  }
  return (dt_matrix){.data = data, .dtype = dtype, .rows = rows, .cols = cols, .row_stride = cols, .col_stride = 1};
}

static inline dt_expert random_expert(dt_random *random, const layer_shape *shape, int64_t intermediate) {
  dt_expert expert = {.gate = random_matrix(random, shape->weight_dtype, intermediate, shape->hidden),
                      .up = random_matrix(random, shape->weight_dtype, intermediate, shape->hidden),
                      .down = random_matrix(random, shape->weight_dtype, shape->hidden, intermediate)};
  if (shape->biases) {
    expert.gate_bias = random_floats(random, intermediate, 0.3);
    expert.up_bias = random_floats(random, intermediate, 0.3);
    expert.down_bias = random_floats(random, shape->hidden, 0.3);
  }
  return expert;
}

static inline void free_expert(dt_expert *expert) {
  free((void *)expert->gate.data);
  free((void *)expert->up.data);
  free((void *)expert->down.data);
  free((void *)expert->gate_bias);
  free((void *)expert->up_bias);
  free((void *)expert->down_bias);
}

static inline void route_token(dt_random *random, const layer_shape *shape, int32_t *ids) {
  int32_t per_rank = shape->experts_per_rank, all = per_rank * shape->ranks;
  int32_t base = shape->route == ROUTE_LAST_RANK ? all - per_rank : 0;
  for (int32_t j = 0; j < shape->top_k; j++) {
    if (shape->route == ROUTE_ONE_EXPERT) {
      ids[j] = j == 0 ? 0 : -1;
      continue;
    }
    if (shape->route == ROUTE_DROPS && dt_random_below(random, 10) == 0) {
      ids[j] = -1;
      continue;
    }
    for (int again = 1; again;) {
      ids[j] = base + (int32_t)dt_random_below(random, (uint64_t)(all - base));
      again = 0;
      for (int32_t i = 0; i < j; i++) again |= ids[i] == ids[j];
    }
  }
}

static inline dt_moe_input random_input(dt_random *random, const layer_shape *shape, int64_t tokens) {
  int64_t values = tokens * shape->hidden, slots = tokens * shape->top_k;
  float *wide = random_floats(random, values, 1.0);
  void *hidden = malloc((size_t)(values ? values : 1) * sizeof(float));
  dt_round_row(shape->dtype, wide, values, hidden);
  free(wide);
  int32_t *ids = malloc((size_t)(slots ? slots : 1) * sizeof(int32_t));
  for (int64_t t = 0; t < tokens; t++) route_token(random, shape, ids + t * shape->top_k);
  return (dt_moe_input){.tokens = tokens, .hidden = hidden, .ids = ids, .weights = random_floats(random, slots, 1.0)};
}

static inline int checked_token(const layer_shape *shape, int64_t token) {
  return shape->check_every <= 1 || token % shape->check_every == 0;
}

/* Adds what one expert does for the checked tokens of one rank. */
static inline void add_expert(layer *l, int32_t rank, int32_t expert) {
  const layer_shape *shape = &l->shape;
  const dt_moe_input *input = &l->input[rank];
  int64_t hidden = shape->hidden, slots = input->tokens * shape->top_k, rows = 0;
  int64_t *which = malloc((size_t)(slots ? slots : 1) * sizeof(*which));
  for (int64_t slot = 0; slot < slots; slot++) {
    if (input->ids[slot] == expert && checked_token(shape, slot / shape->top_k)) which[rows++] = slot;
  }
  double *x = malloc((size_t)(rows * hidden + 1) * sizeof(double)),
         *y = malloc((size_t)(rows * hidden + 1) * sizeof(double));
  float *wide = malloc((size_t)hidden * sizeof(float));
  for (int64_t r = 0; r < rows; r++) {
    size_t at = (size_t)(which[r] / shape->top_k * hidden) * dt_dtype_bytes(shape->dtype);
    dt_widen_row(shape->dtype, (const unsigned char *)input->hidden + at, hidden, wide);
    for (int64_t h = 0; h < hidden; h++) x[r * hidden + h] = wide[h];
  }
  const dt_moe_weights *weights = &l->weights[expert / shape->experts_per_rank];
  if (rows && dt_expert_reference(weights, expert % shape->experts_per_rank, x, rows, y)) abort();
  for (int64_t r = 0; r < rows; r++) {
    double *to = l->expected[rank] + which[r] / shape->top_k * hidden;
    for (int64_t h = 0; h < hidden; h++) to[h] += (double)input->weights[which[r]] * y[r * hidden + h];
  }
  free(which);
  free(x);
  free(y);
  free(wide);
}

static inline void add_shared(layer *l, int32_t rank) {
  const layer_shape *shape = &l->shape;
  int64_t hidden = shape->hidden;
  float *wide = malloc((size_t)hidden * sizeof(float));
  double *x = malloc((size_t)hidden * sizeof(double)), *y = malloc((size_t)hidden * sizeof(double));
  for (int64_t t = 0; t < l->input[rank].tokens; t++) {
    if (!checked_token(shape, t)) continue;
    size_t at = (size_t)(t * hidden) * dt_dtype_bytes(shape->dtype);
    dt_widen_row(shape->dtype, (const unsigned char *)l->input[rank].hidden + at, hidden, wide);
    for (int64_t h = 0; h < hidden; h++) x[h] = wide[h];
    if (dt_shared_reference(&l->weights[rank], x, 1, y)) abort();
    for (int64_t h = 0; h < hidden; h++) l->expected[rank][t * hidden + h] += y[h];
  }
  free(wide);
  free(x);
  free(y);
}

/* New tokens for the same experts. */
static inline void layer_tokens(layer *l, const int64_t *tokens, uint64_t seed) {
  layer_shape *shape = &l->shape;
  dt_random random = {seed};
  for (int32_t r = 0; r < shape->ranks; r++) {
    shape->tokens[r] = tokens[r];
    l->input[r] = random_input(&random, shape, tokens[r]);
    size_t bytes = (size_t)(tokens[r] * shape->hidden) * sizeof(float);
    l->serial[r] = shared_pages(bytes);
    l->output[r] = shared_pages(bytes);
  }
}

/* After the routing is final. */
static inline void layer_expect(layer *l) {
  const layer_shape *shape = &l->shape;
  for (int32_t r = 0; r < shape->ranks; r++) {
    l->expected[r] = calloc((size_t)(shape->tokens[r] * shape->hidden + 1), sizeof(double));
    for (int32_t e = 0; e < shape->ranks * shape->experts_per_rank; e++) add_expert(l, r, e);
    if (shape->shared_intermediate) add_shared(l, r);
  }
}

static inline void layer_weights(layer *l, const layer_shape *shape) {
  *l = (layer){.shape = *shape};
  dt_random random = {shape->seed};
  int32_t all = shape->ranks * shape->experts_per_rank;
  l->experts = calloc((size_t)all, sizeof(dt_expert));
  for (int32_t e = 0; e < all; e++) l->experts[e] = random_expert(&random, shape, shape->intermediate);
  dt_moe_weights weights = {.hidden = shape->hidden,
                            .intermediate = shape->intermediate,
                            .experts_per_rank = shape->experts_per_rank,
                            .activation = shape->activation,
                            .activation_alpha = 1.702f,
                            .activation_limit = 0.9f,
                            .shared_intermediate = shape->shared_intermediate};
  if (shape->shared_intermediate) {
    weights.shared = random_expert(&random, shape, shape->shared_intermediate);
    if (shape->shared_gate) weights.shared_gate = random_floats(&random, shape->hidden, 0.5);
  }
  for (int32_t r = 0; r < shape->ranks; r++) {
    l->weights[r] = weights;
    l->weights[r].experts = l->experts + (size_t)r * shape->experts_per_rank;
  }
}

static inline void layer_create(layer *l, const layer_shape *shape) {
  layer_weights(l, shape);
  layer_tokens(l, shape->tokens, shape->seed + 1);
  layer_expect(l);
}

static inline void layer_free_tokens(layer *l) {
  for (int32_t r = 0; r < l->shape.ranks; r++) {
    size_t bytes = (size_t)(l->shape.tokens[r] * l->shape.hidden) * sizeof(float);
    free((void *)l->input[r].hidden);
    free((void *)l->input[r].ids);
    free((void *)l->input[r].weights);
    free(l->expected[r]);
    l->expected[r] = NULL;
    munmap(l->serial[r], bytes ? bytes : 1);
    munmap(l->output[r], bytes ? bytes : 1);
  }
}

static inline void layer_destroy(layer *l) {
  layer_free_tokens(l);
  for (int32_t e = 0; e < l->shape.ranks * l->shape.experts_per_rank; e++) free_expert(&l->experts[e]);
  free(l->experts);
  if (l->shape.shared_intermediate) {
    free_expert(&l->weights[0].shared);
    free((void *)l->weights[0].shared_gate);
  }
}

static inline size_t output_bytes(const layer *l, int32_t rank) {
  return (size_t)(l->shape.tokens[rank] * l->shape.hidden) * dt_dtype_bytes(l->shape.dtype);
}

/* max over tokens of ||y - yref|| / ||yref||; where yref is 0, y must be. Infinity for NaN. */
static inline double relative_error(const layer *l, int32_t rank, const unsigned char *output) {
  int64_t hidden = l->shape.hidden;
  float *wide = malloc((size_t)hidden * sizeof(float));
  double worst = 0;
  for (int64_t t = 0; t < l->shape.tokens[rank]; t++) {
    if (!checked_token(&l->shape, t)) continue;
    dt_widen_row(l->shape.dtype, output + (size_t)(t * hidden) * dt_dtype_bytes(l->shape.dtype), hidden, wide);
    double error = 0, norm = 0;
    for (int64_t h = 0; h < hidden; h++) {
      double expected = l->expected[rank][t * hidden + h];
      error += (wide[h] - expected) * (wide[h] - expected);
      norm += expected * expected;
    }
    double relative = norm > 0 ? sqrt(error / norm) : error == 0 ? 0 : INFINITY;
    if (!(relative <= worst)) worst = isnan(relative) ? INFINITY : relative;
  }
  free(wide);
  return worst;
}

static inline double tolerance(dt_dtype dtype) {
  return dtype == DT_DTYPE_F32 ? 1e-5 : 8e-3;
}

static inline dt_moe_config layer_config(const layer_shape *shape) {
  dt_moe_config config;
  dt_moe_config_init(&config);
  config.dtype = shape->dtype;
  config.top_k = shape->top_k;
  for (int32_t r = 0; r < shape->ranks; r++) {
    if (shape->tokens[r] > config.max_tokens) config.max_tokens = shape->tokens[r];
  }
  config.tile_m = 16;
  config.tile_n = 16;
  return config;
}

#endif
