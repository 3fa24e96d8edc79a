/* The layer in float64: every rank runs its own experts on all tokens and adds to a sum that all ranks share. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <draintile/reference.h>

#include "figures.h"
#include "floats.h"
#include "moe.h"

enum { CHUNK_ROWS = 256 };

typedef struct check_space {
  double *x, *y;   /* [CHUNK_ROWS][hidden] */
  int64_t *tokens; /* [CHUNK_ROWS] */
  float *weights;
} check_space;

static void widen_token(const moe_job *job, int64_t token, double *out) {
  size_t row = (size_t)job->input.hidden * dt_dtype_bytes(job->input.dtype);
  floats_load(job->input.dtype, (const char *)job->input.data + (size_t)token * row, (size_t)job->input.hidden, out);
}

/* Adds a row to the shared sum. Ranks add to the same token at once, so every addition is atomic. */
static void add_row(double *sum, const double *row, double weight, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    double old, new;
    __atomic_load(&sum[i], &old, __ATOMIC_RELAXED);
    do new = old + weight *row[i];
    while (!__atomic_compare_exchange(&sum[i], &old, &new, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  }
}

static dt_status flush_chunk(const moe_job *job, const dt_moe_weights *weights, int32_t expert, int64_t rows,
                             const check_space *space) {
  int64_t hidden = job->input.hidden;
  for (int64_t i = 0; i < rows; i++) widen_token(job, space->tokens[i], space->x + i * hidden);
  dt_status status = dt_expert_reference(weights, expert, space->x, rows, space->y);
  for (int64_t i = 0; !status && i < rows; i++)
    add_row(job->shared.reference + space->tokens[i] * hidden, space->y + i * hidden, space->weights[i], hidden);
  return status;
}

static dt_status add_expert(const moe_job *job, const dt_moe_weights *weights, int32_t rank, int32_t expert,
                            const check_space *space) {
  int32_t global = rank * weights->experts_per_rank + expert;
  int64_t rows = 0, slots = job->input.tokens * job->top_k;
  dt_status status = DT_OK;
  for (int64_t slot = 0; !status && slot < slots; slot++) {
    if (job->shared.ids[slot] != global) continue;
    space->tokens[rows] = slot / job->top_k;
    space->weights[rows++] = job->shared.weights[slot];
    if (rows < CHUNK_ROWS) continue;
    status = flush_chunk(job, weights, expert, rows, space);
    rows = 0;
  }
  return status || rows == 0 ? status : flush_chunk(job, weights, expert, rows, space);
}

static dt_status add_shared(const moe_job *job, const dt_moe_weights *weights, int32_t rank, const check_space *space) {
  int64_t first, count, hidden = job->input.hidden;
  dt_token_block(job->input.tokens, job->ranks, rank, &first, &count);
  for (int64_t at = 0; at < count; at += CHUNK_ROWS) {
    int64_t rows = count - at < CHUNK_ROWS ? count - at : CHUNK_ROWS;
    for (int64_t i = 0; i < rows; i++) widen_token(job, first + at + i, space->x + i * hidden);
    dt_status status = dt_shared_reference(weights, space->x, rows, space->y);
    if (status) return status;
    for (int64_t i = 0; i < rows; i++)
      add_row(job->shared.reference + (first + at + i) * hidden, space->y + i * hidden, 1, hidden);
  }
  return DT_OK;
}

int moe_check_reference(rank_link *link, moe_job *job, dt_comm *comm, const dt_moe_weights *weights) {
  size_t values = CHUNK_ROWS * (size_t)job->input.hidden;
  check_space space = {
      .x = malloc(values * sizeof(double)),
      .y = malloc(values * sizeof(double)),
      .tokens = malloc(CHUNK_ROWS * sizeof(int64_t)),
      .weights = malloc(CHUNK_ROWS * sizeof(float)),
  };
  int ready = space.x && space.y && space.tokens && space.weights;
  dt_status status = DT_OK;
  for (int32_t expert = 0; ready && !status && expert < weights->experts_per_rank; expert++)
    status = add_expert(job, weights, link->rank, expert, &space);
  if (ready && !status && weights->shared_intermediate) status = add_shared(job, weights, link->rank, &space);
  if (ready && !status) status = dt_comm_barrier(comm, "check"); /* every rank has added its share */
  free(space.x);
  free(space.y);
  free(space.tokens);
  free(space.weights);
  if (!ready) return rank_link_fail(link, TOOL_FAILED, "out of memory for the check");
  return status ? rank_link_fail_status(link, status) : TOOL_OK;
}

void moe_check_error(const moe_job *job, int64_t first, int64_t count, const void *output, figures_verdict *verdict) {
  int64_t hidden = job->input.hidden;
  size_t row = (size_t)hidden * dt_dtype_bytes(job->input.dtype);
  double *y = malloc((size_t)hidden * sizeof(*y));
  verdict->max_relative_error = y ? 0 : INFINITY;
  verdict->worst_token = -1;
  for (int64_t token = 0; y && token < count; token++) {
    floats_load(job->input.dtype, (const char *)output + (size_t)token * row, (size_t)hidden, y);
    const double *reference = job->shared.reference + (first + token) * hidden;
    figures_verdict_add(verdict, figures_token_error(job->input.dtype, y, reference, hidden), first + token);
  }
  free(y);
}
