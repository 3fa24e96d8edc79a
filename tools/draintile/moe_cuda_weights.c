/* The experts and tokens of a rank, from files to the memory of its GPU: bf16, whatever the checkpoint's layout. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "floats.h"
#include "moe_cuda.h"

enum { BLOCK_ROWS = 256 };

/* Rows [row, row + rows) and columns [col, col + cols) of a matrix, as [rows][width] in bf16; columns beyond are 0. */
typedef struct piece {
  const dt_matrix *matrix;
  int64_t row, rows, col, cols, width;
} piece;

static int lies_ready(const piece *p) {
  const dt_matrix *m = p->matrix;
  return m->dtype == DT_DTYPE_BF16 && m->col_stride == 1 && m->row_stride == m->cols && p->cols == m->cols &&
         p->width == m->cols;
}

static dt_status upload_widened(const piece *p, uint16_t *to) {
  const dt_matrix *m = p->matrix;
  float *wide = malloc(BLOCK_ROWS * (size_t)m->cols * sizeof *wide);
  uint16_t *narrow = calloc(BLOCK_ROWS * (size_t)p->width, sizeof *narrow);
  dt_status status = wide && narrow ? DT_OK : DT_ERR_MEMORY;
  for (int64_t at = 0; at < p->rows && !status; at += BLOCK_ROWS) {
    const int64_t rows = p->rows - at < BLOCK_ROWS ? p->rows - at : BLOCK_ROWS;
    dt_matrix_widen(m, p->row + at, rows, wide);
    for (int64_t r = 0; r < rows; r++)
      floats_store(DT_DTYPE_BF16, wide + r * m->cols + p->col, (size_t)p->cols, narrow + r * p->width);
    status = dt_cuda_copy(to + at * p->width, narrow, (size_t)(rows * p->width) * sizeof *narrow);
  }
  free(wide), free(narrow);
  return status;
}

static dt_status upload(const piece *p, uint16_t *to) {
  if (p->rows <= 0 || p->cols <= 0) return DT_OK;
  if (!lies_ready(p)) return upload_widened(p, to);
  const uint16_t *from = p->matrix->data;
  return dt_cuda_copy(to, from + p->row * p->width, (size_t)(p->rows * p->width) * sizeof *to);
}

/* Inner values [inner, inner + I) of an expert as one of I; what the expert lacks stays 0. */
static dt_status upload_expert(const dt_expert *expert, int64_t inner, int64_t hidden, int64_t intermediate,
                               uint16_t *gate, uint16_t *up, uint16_t *down) {
  const int64_t left = expert->gate.rows - inner, rows = left < intermediate ? left : intermediate;
  const piece pieces[] = {
      {.matrix = &expert->gate, .row = inner, .rows = rows, .cols = hidden, .width = hidden},
      {.matrix = &expert->up, .row = inner, .rows = rows, .cols = hidden, .width = hidden},
      {.matrix = &expert->down, .rows = hidden, .col = inner, .cols = rows, .width = intermediate},
  };
  dt_status status = upload(&pieces[0], gate);
  if (!status) status = upload(&pieces[1], up);
  return status ? status : upload(&pieces[2], down);
}

/* Biases of all experts, [E'][width]; those of shared experts are 0. */
static dt_status upload_bias(const dt_moe_weights *w, int which, int64_t width, int32_t experts, void **to) {
  float *all = calloc((size_t)experts * (size_t)width, sizeof *all);
  if (!all) return DT_ERR_MEMORY;
  for (int32_t e = 0; e < w->experts_per_rank; e++) {
    const float *const biases[] = {w->experts[e].gate_bias, w->experts[e].up_bias, w->experts[e].down_bias};
    if (biases[which]) memcpy(all + e * width, biases[which], (size_t)width * sizeof *all);
  }
  dt_status status = dt_cuda_alloc((size_t)experts * (size_t)width * sizeof *all, to);
  if (!status) status = dt_cuda_copy(*to, all, (size_t)experts * (size_t)width * sizeof *all);
  free(all);
  return status;
}

/* Local experts that stand for the shared one. */
static int32_t extra_experts(int64_t intermediate, int64_t shared_intermediate) {
  return (int32_t)((shared_intermediate + intermediate - 1) / intermediate);
}

dt_status moe_cuda_upload(const dt_moe_weights *w, moe_cuda_weights *out) {
  const int64_t hidden = w->hidden, inner = w->intermediate, matrix = hidden * inner;
  const int32_t own = w->experts_per_rank, extra = extra_experts(inner, w->shared_intermediate), all = own + extra;
  const size_t bytes = (size_t)all * (size_t)matrix * sizeof(uint16_t);
  *out = (moe_cuda_weights){.experts_per_rank = all, .extra = extra, .bytes = 3 * bytes};
  dt_status status = DT_OK;
  for (int i = 0; i < 3 && !status; i++) {
    status = dt_cuda_alloc(bytes, &out->memory[i]);
    if (!status && extra) status = dt_cuda_set(out->memory[i], 0, bytes); /* what padded experts lack */
  }
  uint16_t *const gate = out->memory[0], *const up = out->memory[1], *const down = out->memory[2];
  for (int32_t e = 0; e < all && !status; e++)
    status = upload_expert(e < own ? &w->experts[e] : &w->shared, e < own ? 0 : (e - own) * inner, hidden, inner,
                           gate + e * matrix, up + e * matrix, down + e * matrix);
  const int64_t widths[] = {inner, inner, hidden};
  for (int i = 0; i < 3 && !status && own > 0 && w->experts[0].gate_bias; i++) {
    status = upload_bias(w, i, widths[i], all, &out->memory[3 + i]);
    out->bytes += (uint64_t)all * (uint64_t)widths[i] * sizeof(float);
  }
  out->weights = (dt_cuda_moe_weights){.gate = gate,
                                       .up = up,
                                       .down = down,
                                       .gate_bias = out->memory[3],
                                       .up_bias = out->memory[4],
                                       .down_bias = out->memory[5]};
  return status;
}

void moe_cuda_weights_release(moe_cuda_weights *weights) {
  for (int i = 0; i < 6; i++) dt_cuda_free(weights->memory[i]);
}

/* The weight of the shared experts in a token's sum. */
static float shared_weight(const dt_moe_weights *w, dt_dtype dtype, const void *row, double *x) {
  if (!w->shared_gate) return 1;
  double sum = 0;
  floats_load(dtype, row, (size_t)w->hidden, x);
  for (int64_t h = 0; h < w->hidden; h++) sum += x[h] * (double)w->shared_gate[h];
  return (float)(1 / (1 + exp(-sum)));
}

/* Routed choices with this layer's numbers of experts, then the shared ones of this rank. */
static void make_choices(const moe_job *job, const dt_moe_weights *w, int32_t rank, int64_t first, int64_t count,
                         double *x, int32_t *ids, float *weights) {
  const int32_t extra = extra_experts(w->intermediate, w->shared_intermediate), own = w->experts_per_rank;
  const int32_t top_k = job->top_k, all = own + extra;
  const size_t row = (size_t)job->input.hidden * dt_dtype_bytes(job->input.dtype);
  for (int64_t t = 0; t < count; t++) {
    const int64_t from = (first + t) * top_k, to = t * (top_k + extra);
    for (int32_t c = 0; c < top_k; c++) {
      const int32_t id = job->shared.ids[from + c];
      ids[to + c] = id < 0 ? id : id / own * all + id % own;
      weights[to + c] = job->shared.weights[from + c];
    }
    if (!extra) continue;
    const float weight =
        shared_weight(w, job->input.dtype, (const char *)job->input.data + (size_t)(first + t) * row, x);
    for (int32_t j = 0; j < extra; j++) {
      ids[to + top_k + j] = rank * all + own + j;
      weights[to + top_k + j] = weight;
    }
  }
}

static dt_status upload_hidden(const moe_job *job, int64_t first, int64_t count, void *to) {
  const size_t values = (size_t)(count * job->input.hidden), element = dt_dtype_bytes(job->input.dtype);
  const char *from = (const char *)job->input.data + (size_t)(first * job->input.hidden) * element;
  if (job->input.dtype == DT_DTYPE_BF16) return dt_cuda_copy(to, from, values * element);
  double *wide = malloc(values * sizeof *wide + 1);
  float *single = malloc(values * sizeof *single + 1);
  uint16_t *narrow = malloc(values * sizeof *narrow + 1);
  dt_status status = wide && single && narrow ? DT_OK : DT_ERR_MEMORY;
  if (!status) {
    floats_load(job->input.dtype, from, values, wide);
    for (size_t i = 0; i < values; i++) single[i] = (float)wide[i];
    floats_store(DT_DTYPE_BF16, single, values, narrow);
    status = dt_cuda_copy(to, narrow, values * sizeof *narrow);
  }
  free(wide), free(single), free(narrow);
  return status;
}

dt_status moe_cuda_tokens_upload(const moe_job *job, const dt_moe_weights *w, int32_t rank, int64_t first,
                                 int64_t count, moe_cuda_tokens *out) {
  const int32_t choices = job->top_k + extra_experts(w->intermediate, w->shared_intermediate);
  const size_t slots = (size_t)(count * choices), values = (size_t)(count * job->input.hidden);
  int32_t *ids = malloc(slots * sizeof *ids + 1);
  float *weights = malloc(slots * sizeof *weights + 1);
  double *x = malloc((size_t)job->input.hidden * sizeof *x);
  dt_status status = ids && weights && x ? DT_OK : DT_ERR_MEMORY;
  if (!status) make_choices(job, w, rank, first, count, x, ids, weights);
  if (!status) status = dt_cuda_alloc(values * sizeof(uint16_t), &out->hidden);
  if (!status) status = dt_cuda_alloc(values * sizeof(uint16_t), &out->input.output);
  if (!status) status = dt_cuda_alloc(slots * sizeof *ids, &out->ids);
  if (!status) status = dt_cuda_alloc(slots * sizeof *weights, &out->weights);
  if (!status && count) status = upload_hidden(job, first, count, out->hidden);
  if (!status && slots) status = dt_cuda_copy(out->ids, ids, slots * sizeof *ids);
  if (!status && slots) status = dt_cuda_copy(out->weights, weights, slots * sizeof *weights);
  free(ids), free(weights), free(x);
  out->input.tokens = count;
  out->input.hidden = out->hidden;
  out->input.ids = out->ids;
  out->input.weights = out->weights;
  return status;
}

void moe_cuda_tokens_release(moe_cuda_tokens *tokens) {
  dt_cuda_free(tokens->hidden);
  dt_cuda_free(tokens->ids);
  dt_cuda_free(tokens->weights);
  dt_cuda_free(tokens->input.output);
}
