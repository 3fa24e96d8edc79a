/* The same attention in float64, straight from its definition. */
#include <math.h>
#include <stdlib.h>

#include <cblas.h>

#include <draintile/attention.h>

#include "core/error.h"
#include "cpu/attention.h"
#include "cpu/blas_memory.h"
#include "cpu/kernels.h"
#include "plan/ulysses.h"

enum { REFERENCE_ROWS = 32 }; /* of q at a time */

typedef struct reference {
  const dt_attention_config *config;
  dt_ulysses_layout layout;
  double scale;
  double *k, *v;  /* [S_kv][D]: of one head */
  double *q;      /* [REFERENCE_ROWS][D] */
  double *scores; /* [REFERENCE_ROWS][S_kv] */
  double *o;      /* [REFERENCE_ROWS][D] */
  float *narrow;  /* [D] */
} reference;

/* Rows [first, first + rows) of one head of a tensor [..][heads][D]. */
static void load(const reference *r, const void *tensor, int32_t heads, int32_t head, int64_t first, int64_t rows,
                 double *out) {
  size_t element = dt_dtype_bytes(r->config->dtype), width = (size_t)r->config->head_dim;
  for (int64_t i = 0; i < rows; i++) {
    size_t at = ((size_t)(first + i) * (size_t)heads + (size_t)head) * width;
    dt_widen_row(r->config->dtype, (const unsigned char *)tensor + at * element, (int64_t)width, r->narrow);
    for (size_t d = 0; d < width; d++) out[(size_t)i * width + d] = r->narrow[d];
  }
}

static void softmax(double *row, int64_t visible, int64_t count) {
  double top = -INFINITY, sum = 0;
  for (int64_t j = 0; j < visible; j++) top = fmax(top, row[j]);
  for (int64_t j = 0; j < visible; j++) sum += row[j] = exp(row[j] - top);
  for (int64_t j = 0; j < visible; j++) row[j] /= sum;
  for (int64_t j = visible; j < count; j++) row[j] = 0;
}

static void run_rows(const reference *r, const void *q, int32_t head, int64_t first, int64_t rows) {
  int64_t width = r->config->head_dim, kv = r->config->kv_tokens;
  load(r, q, r->config->heads, head, first, rows, r->q);
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)kv, (int)width, r->scale, r->q, (int)width, r->k,
              (int)width, 0, r->scores, (int)kv);
  for (int64_t i = 0; i < rows; i++) softmax(r->scores + i * kv, dt_ulysses_visible(&r->layout, first + i), kv);
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)width, (int)kv, 1, r->scores, (int)kv, r->v,
              (int)width, 0, r->o, (int)width);
}

static void run_head(const reference *r, const void *q, const void *k, const void *v, int32_t head, int64_t first,
                     int64_t rows, double *out) {
  int64_t width = r->config->head_dim, heads = r->config->heads;
  int32_t kv_head = head / dt_ulysses_group(&r->layout);
  load(r, k, r->config->kv_heads, kv_head, 0, r->config->kv_tokens, r->k);
  load(r, v, r->config->kv_heads, kv_head, 0, r->config->kv_tokens, r->v);
  for (int64_t at = 0; at < rows; at += REFERENCE_ROWS) {
    int64_t count = dt_min64(rows - at, REFERENCE_ROWS);
    if (r->config->kv_tokens > 0) run_rows(r, q, head, first + at, count);
    for (int64_t i = 0; i < count; i++)
      for (int64_t d = 0; d < width; d++)
        out[((at + i) * heads + head) * width + d] = r->config->kv_tokens > 0 ? r->o[i * width + d] : 0;
  }
}

dt_status dt_attention_reference(const dt_attention_config *config, const void *q, const void *k, const void *v,
                                 int64_t first, int64_t rows, double *out) {
  dt_ulysses_layout as_created;
  dt_status status = dt_attention_layout(config, 1, &as_created);
  if (status) return status;
  if (first < 0 || rows < 0 || first > config->tokens || rows > config->tokens - first)
    return dt_fail(DT_ERR_ARGUMENT, "rows: %lld from %lld; allowed: within the %lld tokens", (long long)rows,
                   (long long)first, (long long)config->tokens);
  reference r = {.config = config,
                 .scale = isnan(config->scale) ? 1 / sqrt(config->head_dim) : config->scale,
                 .layout = {.ranks = 1,
                            .heads = config->heads,
                            .kv_heads = config->kv_heads,
                            .head_dim = config->head_dim,
                            .tokens = config->tokens,
                            .kv_tokens = config->kv_tokens,
                            .causal = config->causal,
                            .tile_rows = 1}};
  status = dt_ulysses_init(&r.layout);
  if (!status && blas_ensure(1)) status = dt_fail(DT_ERR_MEMORY, "reference: no memory for a BLAS buffer");
  if (status) return status;
  size_t width = (size_t)config->head_dim, kv = (size_t)config->kv_tokens;
  r.k = malloc((kv * width + 1) * sizeof(double));
  r.v = malloc((kv * width + 1) * sizeof(double));
  r.q = malloc(REFERENCE_ROWS * width * sizeof(double));
  r.o = malloc(REFERENCE_ROWS * width * sizeof(double));
  r.scores = malloc((REFERENCE_ROWS * kv + 1) * sizeof(double));
  r.narrow = malloc(width * sizeof(float));
  int ready = r.k && r.v && r.q && r.o && r.scores && r.narrow;
  for (int32_t head = 0; ready && head < config->heads; head++) run_head(&r, q, k, v, head, first, rows, out);
  if (!ready) status = dt_fail(DT_ERR_MEMORY, "kv_tokens: out of memory for %zu rows in float64", kv);
  void *owned[] = {r.k, r.v, r.q, r.o, r.scores, r.narrow};
  for (size_t i = 0; i < sizeof(owned) / sizeof(owned[0]); i++) free(owned[i]);
  return status;
}
