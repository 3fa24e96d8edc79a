#include "synthetic.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "floats.h"
#include "interrupt.h"
#include "log.h"
#include "progress.h"
#include "random.h"

enum { NORMALS = 65536, BLOCK_BYTES = 1 << 20 };

/* Standard normal values are drawn from a table of quantiles, 16 random bits each: a checkpoint of gigabytes in
 * seconds. Symmetric, variance 1 within 1e-4. */
static float *normal_quantiles(void) {
  float *table = malloc(NORMALS * sizeof(*table));
  double z = 0;
  for (int i = NORMALS / 2; table && i < NORMALS; i++) {
    double target = (i + 0.5) / NORMALS;
    for (int step = 0; step < 50; step++) { /* Newton on the distribution function, from the previous quantile */
      double error = 0.5 * erfc(-z / 1.4142135623730951) - target;
      double slope = 0.3989422804014327 * exp(-0.5 * z * z);
      double next = z - error / slope;
      if (fabs(next - z) < 1e-12) break;
      z = next;
    }
    table[i] = (float)z;
    table[NORMALS - 1 - i] = (float)-z;
  }
  return table;
}

int64_t synthetic_bytes(const dt_tensor_spec *spec) {
  int64_t bytes = (int64_t)dt_dtype_bytes(spec->dtype);
  for (int32_t i = 0; i < spec->dims; i++) bytes *= spec->shape[i];
  return bytes;
}

/* `unit` holds the quantiles in the tensor's type, scaled. */
static void fill(void *out, size_t element, size_t count, const char *unit, uint64_t *state) {
  uint64_t bits = 0;
  for (size_t i = 0; i < count; i++) {
    if (i % 4 == 0) bits = random_next(state);
    memcpy((char *)out + i * element, unit + (bits & 0xffff) * element, element);
    bits >>= 16;
  }
}

static int write_tensor(const dt_tensor_writer *writer, const synthetic_tensor *tensor, uint64_t seed,
                        const float *normals, tool_progress *progress) {
  const dt_tensor_spec *spec = &tensor->spec;
  size_t element = dt_dtype_bytes(spec->dtype);
  int64_t rows = spec->dims ? spec->shape[0] : 1;
  int64_t row = rows ? synthetic_bytes(spec) / rows : 0;
  int64_t block = row ? (BLOCK_BYTES + row - 1) / row : 1;
  float *scaled = malloc(NORMALS * sizeof(*scaled));
  char *unit = malloc(NORMALS * element), *buffer = malloc((size_t)(block * row) + 1);
  int code = scaled && unit && buffer ? TOOL_OK : log_out_of_memory();
  uint64_t state = random_seed_of(seed, spec->name);
  if (code == TOOL_OK) {
    for (int i = 0; i < NORMALS; i++) scaled[i] = (float)(tensor->mean + tensor->deviation * normals[i]);
    floats_store(spec->dtype, scaled, NORMALS, unit);
  }
  for (int64_t first = 0; code == TOOL_OK && first < rows && row; first += block) {
    int64_t count = rows - first < block ? rows - first : block;
    fill(buffer, element, (size_t)(count * row) / element, unit, &state);
    dt_status status = dt_tensor_writer_rows(writer, spec->name, first, count, buffer);
    if (status) code = log_status(status, NULL);
    progress_add(progress, (double)(count * row));
    if (code == TOOL_OK && interrupt_number()) code = interrupt_fail(interrupt_number());
  }
  free(buffer);
  free(unit);
  free(scaled);
  return code;
}

int synthetic_write(const char *path, const synthetic_tensor *tensors, size_t count, uint64_t seed) {
  dt_tensor_spec *specs = calloc(count ? count : 1, sizeof(*specs));
  float *normals = normal_quantiles();
  dt_tensor_writer *writer = NULL;
  double total = 0;
  for (size_t i = 0; specs && i < count; i++) {
    specs[i] = tensors[i].spec;
    double bytes = (double)dt_dtype_bytes(specs[i].dtype); /* not yet known to be one that a file can have */
    for (int32_t d = 0; d < specs[i].dims; d++) bytes *= (double)specs[i].shape[d];
    total += bytes;
  }
  int code = specs && normals ? TOOL_OK : log_out_of_memory();
  if (code == TOOL_OK) {
    dt_status status = dt_tensor_writer_create(path, specs, count, &writer);
    if (status) code = log_status(status, NULL);
  }
  tool_progress progress;
  progress_start(&progress, path, total);
  for (size_t i = 0; code == TOOL_OK && i < count; i++) {
    if (!tensors[i].data) {
      code = write_tensor(writer, &tensors[i], seed, normals, &progress);
      continue;
    }
    dt_status status = dt_tensor_writer_rows(writer, specs[i].name, 0, specs[i].shape[0], tensors[i].data);
    if (status) code = log_status(status, NULL);
  }
  progress_end(&progress);
  if (code == TOOL_OK) {
    dt_status status = dt_tensor_writer_commit(writer);
    if (status) code = log_status(status, NULL);
  } else {
    dt_tensor_writer_discard(writer);
  }
  free(normals);
  free(specs);
  return code;
}
