/* Attention problems, their results straight from the definition in float64, and a body that runs them on a rank. */
#ifndef DT_TESTS_ATTENTION_SUPPORT_H
#define DT_TESTS_ATTENTION_SUPPORT_H

#include "comm_ranks.h"

#include <math.h>

#include <draintile/attention.h>

#include "core/random.h"
#include "cpu/kernels.h"

typedef struct problem {
  dt_attention_config config;
  int32_t ranks;
  double amplitude;    /* of q and k; 0: 1 */
  int64_t check_every; /* of the rows of q, how many apart are compared with float64; 0: all */
  uint64_t seed;
  /* made by problem_create: whole tensors of dtype */
  unsigned char *q, *k, *v;
  double *expected;               /* [S][H][D]; rows that are not checked are absent */
  unsigned char *serial, *output; /* [S][H][D], shared between processes */
  int32_t *written;               /* [S]: ranks that got the row; shared */
} problem;

static inline size_t token_values(const problem *p) {
  return (size_t)p->config.heads * (size_t)p->config.head_dim;
}

static inline size_t token_bytes(const problem *p) {
  return token_values(p) * dt_dtype_bytes(p->config.dtype);
}

static inline int checked_row(const problem *p, int64_t row) {
  return p->check_every <= 1 || row % p->check_every == 0;
}

static inline unsigned char *random_tensor(const problem *p, dt_random *random, int64_t rows, int32_t heads,
                                           double amplitude) {
  int64_t count = rows * heads * p->config.head_dim;
  float *wide = malloc((size_t)(count + 1) * sizeof(float));
  unsigned char *out = malloc((size_t)(count + 1) * sizeof(float));
  for (int64_t i = 0; i < count; i++) wide[i] = (float)(amplitude * dt_random_normal(random));
  dt_round_row(p->config.dtype, wide, count, out);
  free(wide);
  return out;
}

/* Row `row` of one head of a tensor [..][heads][D] as doubles. */
static inline void row_of(const problem *p, const unsigned char *tensor, int32_t heads, int32_t head, int64_t row,
                          double *out) {
  float wide[4096];
  size_t at = ((size_t)row * (size_t)heads + (size_t)head) * (size_t)p->config.head_dim;
  dt_widen_row(p->config.dtype, tensor + at * dt_dtype_bytes(p->config.dtype), p->config.head_dim, wide);
  for (int32_t d = 0; d < p->config.head_dim; d++) out[d] = wide[d];
}

/* One row of one head from the definition, two passes, no blocks. */
static inline void expect_row(const problem *p, int32_t head, int64_t row, double *out) {
  const dt_attention_config *c = &p->config;
  int32_t kv_head = head / (c->heads / c->kv_heads);
  double q[4096], x[4096], top = -INFINITY, sum = 0;
  double *score = malloc((size_t)(c->kv_tokens + 1) * sizeof(double));
  double scale = isnan(c->scale) ? 1 / sqrt(c->head_dim) : c->scale;
  row_of(p, p->q, c->heads, head, row, q);
  for (int32_t d = 0; d < c->head_dim; d++) out[d] = 0;
  for (int64_t j = 0; j < c->kv_tokens; j++) {
    score[j] = -INFINITY;
    if (c->causal && j - c->kv_tokens > row - c->tokens) continue;
    row_of(p, p->k, c->kv_heads, kv_head, j, x);
    score[j] = 0;
    for (int32_t d = 0; d < c->head_dim; d++) score[j] += scale * q[d] * x[d];
    top = fmax(top, score[j]);
  }
  for (int64_t j = 0; j < c->kv_tokens; j++) {
    if (score[j] == -INFINITY) continue;
    double weight = exp(score[j] - top);
    sum += weight;
    row_of(p, p->v, c->kv_heads, kv_head, j, x);
    for (int32_t d = 0; d < c->head_dim; d++) out[d] += weight * x[d];
  }
  for (int32_t d = 0; d < c->head_dim && sum > 0; d++) out[d] /= sum;
  free(score);
}

static inline void problem_create(problem *p) {
  dt_random random = {p->seed * 7919 + 3};
  const dt_attention_config *c = &p->config;
  double amplitude = p->amplitude > 0 ? p->amplitude : 1;
  p->q = random_tensor(p, &random, c->tokens, c->heads, amplitude);
  p->k = random_tensor(p, &random, c->kv_tokens, c->kv_heads, amplitude);
  p->v = random_tensor(p, &random, c->kv_tokens, c->kv_heads, 1);
  p->expected = malloc((size_t)(c->tokens + 1) * token_values(p) * sizeof(double));
  for (int64_t row = 0; row < c->tokens; row++)
    for (int32_t head = 0; checked_row(p, row) && head < c->heads; head++)
      expect_row(p, head, row, p->expected + (size_t)row * token_values(p) + (size_t)(head * c->head_dim));
  p->serial = shared_pages((size_t)c->tokens * token_bytes(p));
  p->output = shared_pages((size_t)c->tokens * token_bytes(p));
  p->written = shared_pages((size_t)c->tokens * sizeof(int32_t));
}

static inline void problem_destroy(problem *p) {
  size_t bytes = (size_t)p->config.tokens * token_bytes(p);
  free(p->q);
  free(p->k);
  free(p->v);
  free(p->expected);
  munmap(p->serial, bytes ? bytes : 1);
  munmap(p->output, bytes ? bytes : 1);
  munmap(p->written, p->config.tokens ? (size_t)p->config.tokens * sizeof(int32_t) : 1);
}

/* What a rank passes in, copied out of the whole tensors. */
static inline unsigned char *held_rows(const problem *p, const unsigned char *tensor, int32_t heads, int32_t rank,
                                       int kv) {
  dt_attention_rows runs[2];
  size_t row = (size_t)heads * (size_t)p->config.head_dim * dt_dtype_bytes(p->config.dtype);
  if (dt_attention_rows_in(&p->config, p->ranks, rank, kv, runs)) abort();
  unsigned char *out = malloc((size_t)(runs[0].rows + runs[1].rows + 1) * row);
  for (int i = 0; i < 2; i++)
    memcpy(out + (size_t)runs[i].local * row, tensor + (size_t)runs[i].first * row, (size_t)runs[i].rows * row);
  return out;
}

static inline dt_attention_input make_input(const problem *p, int32_t rank) {
  return (dt_attention_input){.q = held_rows(p, p->q, p->config.heads, rank, 0),
                              .k = held_rows(p, p->k, p->config.kv_heads, rank, 1),
                              .v = held_rows(p, p->v, p->config.kv_heads, rank, 1)};
}

static inline void free_input(dt_attention_input *input) {
  free((void *)input->q);
  free((void *)input->k);
  free((void *)input->v);
}

/* A rank's output to its place in the whole one. */
static inline void place_output(problem *p, const dt_attention *attention, int32_t rank, unsigned char *whole) {
  dt_attention_rows runs[2];
  const unsigned char *own = dt_attention_output(attention);
  if (dt_attention_rows_out(&p->config, p->ranks, rank, runs)) abort();
  for (int i = 0; i < 2; i++) {
    memcpy(whole + (size_t)runs[i].first * token_bytes(p), own + (size_t)runs[i].local * token_bytes(p),
           (size_t)runs[i].rows * token_bytes(p));
    for (int64_t row = runs[i].first; row < runs[i].first + runs[i].rows; row++)
      __atomic_fetch_add(&p->written[row], 1, __ATOMIC_RELAXED);
  }
}

/* 1 where the rows that a rank got differ between two whole outputs. */
static inline int rows_differ(const problem *p, int32_t rank, const unsigned char *a, const unsigned char *b) {
  dt_attention_rows runs[2];
  if (dt_attention_rows_out(&p->config, p->ranks, rank, runs)) abort();
  for (int i = 0; i < 2; i++) {
    size_t at = (size_t)runs[i].first * token_bytes(p);
    if (memcmp(a + at, b + at, (size_t)runs[i].rows * token_bytes(p)) != 0) return 1;
  }
  return 0;
}

/* max over the checked tokens of ||y - yref||/||yref||; where yref is 0, y must be. Infinity for NaN. */
static inline double relative_error(const problem *p, const unsigned char *whole) {
  double worst = 0;
  for (int64_t row = 0; row < p->config.tokens; row++) {
    if (!checked_row(p, row)) continue;
    double error = 0, norm = 0, y[4096];
    for (int32_t head = 0; head < p->config.heads; head++) {
      row_of(p, whole, p->config.heads, head, row, y);
      const double *expected = p->expected + (size_t)row * token_values(p) + (size_t)head * (size_t)p->config.head_dim;
      for (int32_t d = 0; d < p->config.head_dim; d++) {
        error += (y[d] - expected[d]) * (y[d] - expected[d]);
        norm += expected[d] * expected[d];
      }
    }
    double relative = norm > 0 ? sqrt(error / norm) : error == 0 ? 0 : INFINITY;
    if (!(relative <= worst)) worst = isnan(relative) ? INFINITY : relative;
  }
  return worst;
}

static inline double tolerance(dt_dtype dtype) {
  return dtype == DT_DTYPE_F32 ? 1e-5 : 8e-3;
}

static inline problem make_problem(int32_t ranks, int64_t tokens, int64_t kv_tokens, int32_t heads, int32_t kv_heads,
                                   int32_t head_dim, dt_dtype dtype, uint64_t seed) {
  problem p = {.ranks = ranks, .seed = seed};
  dt_attention_config_init(&p.config);
  p.config.dtype = dtype;
  p.config.tokens = tokens;
  p.config.kv_tokens = kv_tokens;
  p.config.heads = heads;
  p.config.kv_heads = kv_heads;
  p.config.head_dim = head_dim;
  p.config.tile_rows = 16;
  return p;
}

#endif
