#include "extras.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/random.h"
#include "cuda/driver.h"
#include "model/bootstrap.h"

dt_status dt_extras_constant(dt_platform *platform, const char *name, const double *samples, size_t count,
                             const char *method) {
  dt_platform_constant constant = {
      .name = name, .n = (int64_t)count, .method = method, .samples = samples, .sample_count = count};
  dt_status status = dt_bootstrap_median(samples, count, 500, 1, &constant.interval);
  return status ? status : dt_platform_set_constant(platform, &constant);
}

dt_status dt_extras_table_create(const char *name, const char *pattern, const char *operation, const char *alignment,
                                 const char *method, dt_extras_table **out) {
  dt_extras_table *table = calloc(1, sizeof *table);
  if (!table) return dt_fail(DT_ERR_MEMORY, "%s: %zu bytes", name, sizeof *table);
  table->table = (dt_platform_table){
      .name = name, .pattern = pattern, .operation = operation, .alignment = alignment, .method = method};
  *out = table;
  return DT_OK;
}

void dt_extras_argument(dt_extras_table *table, const char *name) {
  table->table.arguments[table->table.argument_count++] = name;
}

dt_status dt_extras_point(dt_extras_table *table, const double *at, const double *samples, size_t count) {
  if (table->table.point_count == 64 || count == 0 || count > DT_EXTRA_ROUNDS)
    return dt_fail(DT_ERR_INTERNAL, "%s: over 64 points or %d samples", table->table.name, DT_EXTRA_ROUNDS);
  dt_platform_point *point = &table->points[table->table.point_count++];
  double *kept = table->samples + table->used;
  table->used += count;
  memcpy(kept, samples, count * sizeof *samples);
  memcpy(point->at, at, (size_t)table->table.argument_count * sizeof *at);
  point->n = (int64_t)count;
  point->samples = kept;
  point->sample_count = count;
  return dt_bootstrap_median(samples, count, 500, 1, &point->interval);
}

dt_status dt_extras_table_finish(dt_extras_table *table, dt_status status, dt_platform *platform) {
  if (!status && table->table.point_count) {
    table->table.points = table->points;
    status = dt_platform_add_table(platform, &table->table);
  }
  free(table);
  return status;
}

dt_status dt_extras_fill(void *matrix, int64_t elements) {
  enum { BLOCK = 1 << 20 };
  uint16_t *block = malloc(BLOCK * sizeof *block);
  if (!block) return dt_fail(DT_ERR_MEMORY, "matrix: %d elements", BLOCK);
  dt_random random = {43};
  for (size_t i = 0; i < BLOCK; i++) {
    float value = (float)(2.0 * dt_random_unit(&random) - 1.0);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    block[i] = (uint16_t)(bits >> 16);
  }
  const size_t bytes = (size_t)elements * sizeof *block;
  size_t filled = BLOCK * sizeof *block < bytes ? BLOCK * sizeof *block : bytes;
  cudaError_t error = cudaMemcpy(matrix, block, filled, cudaMemcpyHostToDevice);
  free(block);
  for (; filled < bytes && error == cudaSuccess; filled *= 2)
    error = cudaMemcpy((char *)matrix + filled, matrix, filled <= bytes - filled ? filled : bytes - filled,
                       cudaMemcpyDeviceToDevice);
  if (error == cudaSuccess) error = cudaStreamSynchronize(cudaStreamLegacy); /* or streams would not wait for it */
  return dt_cuda_check(error, "matrix");
}
