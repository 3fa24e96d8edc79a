/* Sampled tokens of the layer benchmark against float64: every rank runs its own experts on all of them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "driver.h"
#include "moe_bench_rank.h"

static double from_bf16(uint16_t value) {
  const uint32_t bits = (uint32_t)value << 16;
  float out;
  memcpy(&out, &bits, sizeof out);
  return (double)out;
}

/* The choices of sampled tokens that fall on this rank's experts, by sample; first[samples + 1]. */
static int32_t list_choices(const dt_moe_bench_rank *r, dt_moe_bench_choice *choices, int32_t *first) {
  const dt_moe_bench *b = r->shared;
  const int32_t top_k = b->config.shape.top_k, per_rank = b->config.shape.experts / b->config.ranks;
  int32_t count = 0, sample = 0;
  for (int32_t s = 0; s < b->config.ranks; s++)
    for (int32_t i = 0; i < b->samples; i++, sample++) {
      const int64_t slot = (s * b->row->tokens + b->sample[s][i]) * top_k;
      first[sample] = count;
      for (int32_t c = 0; c < top_k; c++)
        if (b->ids[slot + c] / per_rank == r->rank)
          choices[count++] = (dt_moe_bench_choice){
              .sample = sample, .expert = b->ids[slot + c] % per_rank, .weight = (double)b->weights[slot + c]};
    }
  first[sample] = count;
  return count;
}

dt_status dt_moe_bench_refer_samples(dt_moe_bench_rank *r) {
  const dt_moe_bench *b = r->shared;
  const dt_moe_shape *shape = &b->config.shape;
  const int32_t samples = b->config.ranks * b->samples;
  const size_t slots = (size_t)samples * (size_t)shape->top_k;
  dt_moe_bench_choice *choices = malloc((slots + 1) * sizeof *choices);
  int32_t *first = malloc(((size_t)samples + 1) * sizeof *first);
  if (!choices || !first) {
    free(choices), free(first);
    return dt_fail(DT_ERR_MEMORY, "choices: %zu", slots);
  }
  const int32_t count = list_choices(r, choices, first);
  cudaError_t error = dt_cuda_write(r->choices, choices, (size_t)count * sizeof *choices);
  if (error == cudaSuccess) error = dt_cuda_write(r->first, first, ((size_t)samples + 1) * sizeof *first);
  free(choices), free(first);
  for (int32_t s = 0, sample = 0; s < b->config.ranks; s++)
    for (int32_t i = 0; i < b->samples && error == cudaSuccess; i++, sample++)
      error = dt_moe_bench_fill(r->sampled_x + sample * shape->hidden, shape->hidden, DT_MOE_BENCH_STREAM(3, s),
                                b->sample[s][i] * shape->hidden, 1.0f, r->stream);
  const dt_moe_bench_reference reference = {.hidden = shape->hidden,
                                            .intermediate = shape->intermediate,
                                            .gate = r->gate,
                                            .up = r->up,
                                            .down = r->down,
                                            .x = r->sampled_x,
                                            .choices = r->choices,
                                            .first = r->first,
                                            .choice_count = count,
                                            .samples = samples,
                                            .act = r->act,
                                            .y = r->y};
  if (error == cudaSuccess) error = dt_moe_bench_refer(&reference, r->stream);
  if (error == cudaSuccess)
    error = cudaMemcpyAsync(r->partial, r->y, (size_t)samples * (size_t)shape->hidden * sizeof *r->partial,
                            cudaMemcpyDeviceToHost, r->stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(r->stream);
  return dt_cuda_check(error, "reference");
}

dt_status dt_moe_bench_error(const dt_moe_bench_rank *r, double *worst) {
  const dt_moe_bench *b = r->shared;
  const int64_t hidden = b->config.shape.hidden;
  uint16_t *row = malloc((size_t)hidden * sizeof *row);
  if (!row) return dt_fail(DT_ERR_MEMORY, "row: %lld elements", (long long)hidden);
  dt_status status = DT_OK;
  *worst = 0;
  for (int32_t i = 0; i < b->samples && !status; i++) {
    status = dt_cuda_check(cudaMemcpy(row, r->output + b->sample[r->rank][i] * hidden, (size_t)hidden * sizeof *row,
                                      cudaMemcpyDeviceToHost),
                           "row");
    double difference = 0, norm = 0;
    for (int64_t h = 0; h < hidden; h++) {
      double y = 0;
      for (int32_t p = 0; p < b->config.ranks; p++) y += b->ranks[p].partial[(r->rank * b->samples + i) * hidden + h];
      const double d = from_bf16(row[h]) - y;
      difference += d * d;
      norm += y * y;
    }
    const double relative = sqrt(difference / norm);
    if (!(relative <= *worst)) *worst = relative;
    if (isnan(*worst)) break;
  }
  free(row);
  return status;
}
